//! Reading an e-graph for recognisers, and the terms that they find and make.
//!
//! A recogniser looks for a whole (a softmax, a norm, an attention) among the e-nodes of a class. It answers with two
//! terms: the one that it saw, e-node by e-node, and the one that equals it. Both go into the e-graph as they are, so
//! that the proof of a choice names the very operands that were matched.

use egg::{Id, Language};
use ir::op::{BinaryOp, Elementwise, ReduceOp, UnaryOp, View};
use ir::{Op, Shape, TensorType};

use super::language::{ClassFacts, Enode, Fused, Graph, Made, Payload};

/// A term over e-classes.
#[derive(Clone, Debug)]
pub enum Term {
    /// Any term of a class.
    Class(Id),
    /// An e-node that is in the e-graph.
    Node(Payload, Vec<Term>),
    /// An op.
    Op(Op, Vec<Term>),
    /// A product and what follows it in one kernel.
    Fused(Fused, Vec<Term>),
    /// A constant.
    Made(Made),
}

impl Term {
    /// Adds the term and returns the id of this very spelling.
    pub fn add(&self, egraph: &mut Graph<'_>) -> Id {
        let (payload, children) = match self {
            Term::Class(id) => return egraph.find(*id),
            Term::Node(payload, children) => (*payload, children.as_slice()),
            Term::Op(op, children) => (egraph.analysis.payload(op), children.as_slice()),
            Term::Fused(fused, children) => (
                Payload::Fused(egraph.analysis.fused.insert_full(fused.clone()).0 as u32),
                children.as_slice(),
            ),
            Term::Made(made) => (
                Payload::Made(egraph.analysis.made.insert_full(made.clone()).0 as u32),
                [].as_slice(),
            ),
        };
        let children = children.iter().map(|child| child.add(egraph)).collect();
        egraph.add_uncanonical(Enode { payload, children })
    }
}

/// What a recogniser saw, and what equals it.
#[derive(Clone, Debug)]
pub struct Found {
    pub seen: Term,
    pub equal: Term,
}

/// One operand of a matched op, and the op's payload.
#[derive(Clone, Copy)]
pub struct One {
    pub payload: Payload,
    pub operand: Id,
}

impl One {
    /// The matched e-node over a term of its operand.
    pub fn over(&self, operand: Term) -> Term {
        Term::Node(self.payload, vec![operand])
    }
}

/// Both operands of a matched op, and the op's payload.
#[derive(Clone, Copy)]
pub struct Two {
    pub payload: Payload,
    pub left: Id,
    pub right: Id,
}

impl Two {
    /// The matched e-node over terms of its operands.
    pub fn over(&self, left: Term, right: Term) -> Term {
        Term::Node(self.payload, vec![left, right])
    }
}

/// Read access to an e-graph; every method lists what a class offers, in a fixed order.
#[derive(Clone, Copy)]
pub struct Reader<'e, 'a> {
    pub egraph: &'e Graph<'a>,
}

impl<'e, 'a> Reader<'e, 'a> {
    /// Returns the class that an id belongs to now.
    pub fn find(self, id: Id) -> Id {
        self.egraph.find(id)
    }

    /// Says whether two ids are one class.
    pub fn same(self, a: Id, b: Id) -> bool {
        self.find(a) == self.find(b)
    }

    /// Returns what is known of a class.
    pub fn facts(self, class: Id) -> &'e ClassFacts {
        &self.egraph[class].data
    }

    /// Returns a class's type.
    pub fn ty(self, class: Id) -> Option<&'e TensorType> {
        self.facts(class).ty.as_ref()
    }

    /// Returns a class's shape.
    pub fn shape(self, class: Id) -> Option<&'e Shape> {
        self.ty(class).map(|ty| &ty.shape)
    }

    /// Returns the e-nodes of a class.
    pub fn nodes(self, class: Id) -> impl Iterator<Item = &'e Enode> {
        self.egraph[class].nodes.iter()
    }

    /// Returns the matches of a unary op.
    pub fn unary(self, class: Id, kind: UnaryOp) -> impl Iterator<Item = One> + use<'e, 'a> {
        let payload = Payload::Elementwise(Elementwise::Unary(kind));
        self.nodes(class).filter(move |n| n.payload == payload).map(|n| One {
            payload: n.payload,
            operand: n.children[0],
        })
    }

    /// Returns the matches of a binary op; the order of operands is a rule's business.
    pub fn binary(self, class: Id, kind: BinaryOp) -> impl Iterator<Item = Two> + use<'e, 'a> {
        let payload = Payload::Elementwise(Elementwise::Binary(kind));
        self.nodes(class).filter(move |n| n.payload == payload).map(two)
    }

    /// Returns the matches of `x op c` with a number `c`.
    pub fn with_number(self, class: Id, kind: BinaryOp) -> impl Iterator<Item = (Two, f64)> + use<'e, 'a> {
        self.binary(class, kind)
            .filter_map(move |m| Some((m, self.facts(m.right).number?)))
    }

    /// Returns the matches of a fold that keeps its axes.
    pub fn reduce(self, class: Id, kind: ReduceOp) -> impl Iterator<Item = (One, &'e [usize])> {
        self.others(class).filter_map(move |(node, op)| match op {
            Op::Reduce {
                op,
                axes,
                keep_dims: true,
            } if *op == kind => Some((one(node), axes.as_slice())),
            _ => None,
        })
    }

    /// Returns the matches of a view.
    pub fn views(self, class: Id) -> impl Iterator<Item = (One, &'e View)> {
        self.others(class).filter_map(|(node, op)| match op {
            Op::View(view) if node.children.len() == 1 => Some((one(node), view)),
            _ => None,
        })
    }

    /// Returns the e-nodes whose op is in the region's table.
    pub fn others(self, class: Id) -> impl Iterator<Item = (&'e Enode, &'e Op)> {
        self.nodes(class).filter_map(move |node| match node.payload {
            Payload::Other(i) => Some((node, self.egraph.analysis.ops.get_index(i as usize)?)),
            _ => None,
        })
    }

    /// Returns the matrix products of a class: transpose flags and operands.
    pub fn products(self, class: Id) -> impl Iterator<Item = (bool, bool, Two)> + use<'e, 'a> {
        self.nodes(class).filter_map(|n| match n.payload {
            Payload::Matmul(l, r, _) => Some((l, r, two(n))),
            _ => None,
        })
    }
}

fn one(node: &Enode) -> One {
    One {
        payload: node.payload,
        operand: node.children()[0],
    }
}

fn two(node: &Enode) -> Two {
    Two {
        payload: node.payload,
        left: node.children()[0],
        right: node.children()[1],
    }
}
