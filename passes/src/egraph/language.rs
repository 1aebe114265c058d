//! Graph ops as e-nodes.
//!
//! Elementwise ops and matrix products are spelled out, so that patterns can name them; any other op is an entry in the
//! region's table of ops. What a region reads from outside is a leaf; a constant that a rule needs is an entry in the
//! table of made values, whose bytes come to be only where extraction chooses it. An e-class knows its type, a value of
//! the old graph that it stands for, and its number where it is one everywhere: constants compare by value, within the
//! rounding of an f32.

use std::fmt;
use std::str::FromStr;

use egg::{Analysis, DidMerge, EGraph, FromOp, Id, Language};
use indexmap::IndexSet;
use ir::op::{BinaryOp, Contract, Elementwise, UnaryOp};
use ir::{DType, Dim, Op, Shape, Target, TensorType, Value};
use smallvec::SmallVec;

use crate::analysis::index;

/// What an e-node does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Payload {
    Elementwise(Elementwise),
    /// A contraction: transpose flags and result type.
    Matmul(bool, bool, DType),
    /// An entry of the region's op table.
    Other(u32),
    /// An entry of the region's table of products and what is computed with them, in one kernel.
    Fused(u32),
    /// A value from outside the region.
    Leaf(u32),
    /// An entry of the region's table of made values.
    Made(u32),
}

/// An e-node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Enode {
    pub payload: Payload,
    pub children: SmallVec<[Id; 3]>,
}

impl Language for Enode {
    type Discriminant = Payload;

    fn discriminant(&self) -> Payload {
        self.payload
    }

    fn matches(&self, other: &Self) -> bool {
        self.payload == other.payload && self.children.len() == other.children.len()
    }

    fn children(&self) -> &[Id] {
        &self.children
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.children
    }
}

impl fmt::Display for Enode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.payload {
            Payload::Elementwise(Elementwise::Unary(op)) => f.write_str(op.name()),
            Payload::Elementwise(Elementwise::Binary(op)) => f.write_str(op.name()),
            Payload::Elementwise(Elementwise::Select) => f.write_str("select"),
            Payload::Elementwise(Elementwise::Cast(to)) => write!(f, "cast.{to}"),
            Payload::Matmul(l, r, out) => write!(
                f,
                "matmul{}{}.{out}",
                if l { "T" } else { "" },
                if r { "t" } else { "" }
            ),
            Payload::Other(i) => write!(f, "op{i}"),
            Payload::Fused(i) => write!(f, "fused{i}"),
            Payload::Leaf(i) => write!(f, "leaf{i}"),
            Payload::Made(i) => write!(f, "made{i}"),
        }
    }
}

/// The text names no op that patterns may use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("patterns know no op {0:?} of {1} operands")]
pub struct UnknownOp(String, usize);

impl FromOp for Enode {
    type Error = UnknownOp;

    fn from_op(op: &str, children: Vec<Id>) -> Result<Enode, UnknownOp> {
        let unknown = || UnknownOp(op.to_owned(), children.len());
        let payload = match children.len() {
            1 => UnaryOp::from_name(op).map(|op| Payload::Elementwise(Elementwise::Unary(op))),
            2 => match op.strip_prefix("matmul.") {
                Some(out) => DType::from_str(out).ok().map(|out| Payload::Matmul(false, false, out)),
                None => BinaryOp::from_name(op).map(|op| Payload::Elementwise(Elementwise::Binary(op))),
            },
            3 if op == "select" => Some(Payload::Elementwise(Elementwise::Select)),
            _ => None,
        };
        Ok(Enode {
            payload: payload.ok_or_else(unknown)?,
            children: children.into_iter().collect(),
        })
    }
}

/// What is known of an e-class.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ClassFacts {
    /// `None` only for a rewrite that does not type; such an e-node is never chosen.
    pub ty: Option<TensorType>,
    pub number: Option<f64>,
    /// The first value of the old graph that is in the class.
    pub value: Option<Value>,
}

/// A constant that a rule asks for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Made {
    /// One number everywhere: element type, shape, the bits of an f64.
    Filled(DType, Vec<usize>, u64),
    /// Constants of the old graph joined along an axis.
    Joined { parts: Vec<Value>, axis: usize },
}

/// A product and what is computed with its result in the same kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Fused {
    /// `Contract` or `Conv`, and its number of operands.
    pub product: Op,
    pub operands: usize,
    /// What follows, first to last.
    pub steps: Vec<Step>,
}

/// One op of an epilogue.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    pub op: Op,
    /// The operand that is the running result; the others are the next children of the e-node.
    pub running: usize,
    pub operands: usize,
}

/// Alternatives that pay only together: each class with the e-node that it would have.
#[derive(Clone, Debug)]
pub struct Group {
    pub rule: &'static str,
    pub members: Vec<(Id, Enode)>,
}

/// The region: its ops, what it reads, and what rules did.
pub struct Region<'a> {
    pub graph: &'a ir::Graph,
    pub target: &'a Target,
    /// Integer tensors as functions of position, for masks.
    pub positions: Option<&'a index::KnownElements>,
    /// What f32 becomes later, where less precision was asked for.
    pub computed_in: Option<DType>,
    pub ops: IndexSet<Op>,
    pub fused: IndexSet<Fused>,
    pub made: IndexSet<Made>,
    pub leaves: Vec<Value>,
    /// Nodes below this are there for patterns that begin before the region: they are read, and never computed anew.
    pub start: usize,
    /// How often each old node is read.
    pub uses: &'a [u32],
    /// The vouched-for facts of the next e-node that is added.
    pub next: Option<ClassFacts>,
    pub groups: Vec<Group>,
    /// Whether a rule other than the order of operands has joined classes.
    pub joined: bool,
}

/// An e-graph of a region.
pub type Graph<'a> = EGraph<Enode, Region<'a>>;

impl<'a> Region<'a> {
    /// A region of nothing, of the same graph.
    pub fn of(graph: &'a ir::Graph, target: &'a Target, uses: &'a [u32]) -> Region<'a> {
        Region {
            graph,
            target,
            positions: None,
            computed_in: None,
            ops: IndexSet::new(),
            fused: IndexSet::new(),
            made: IndexSet::new(),
            leaves: Vec::new(),
            start: 0,
            uses,
            next: None,
            groups: Vec::new(),
            joined: false,
        }
    }

    /// Returns the op of an e-node that is one op.
    pub fn op(&self, payload: Payload) -> Option<Op> {
        match payload {
            Payload::Elementwise(e) => Some(Op::Elementwise(e)),
            Payload::Matmul(transpose_lhs, transpose_rhs, out) => Some(Op::Contract(Contract {
                transpose_lhs,
                transpose_rhs,
                out,
            })),
            Payload::Other(i) => self.ops.get_index(i as usize).cloned(),
            Payload::Leaf(_) | Payload::Made(_) | Payload::Fused(_) => None,
        }
    }

    /// Returns the payload of an op.
    pub fn payload(&mut self, op: &Op) -> Payload {
        match op {
            Op::Elementwise(e) => Payload::Elementwise(*e),
            Op::Contract(c) => Payload::Matmul(c.transpose_lhs, c.transpose_rhs, c.out),
            other => match self.ops.get_index_of(other) {
                Some(i) => Payload::Other(i as u32),
                None => Payload::Other(self.ops.insert_full(other.clone()).0 as u32),
            },
        }
    }

    /// Returns the type of a made constant, if its parts fit.
    pub fn made_type(&self, made: &Made) -> Option<TensorType> {
        match made {
            Made::Filled(dtype, shape, _) => Some(TensorType::new(*dtype, shape.clone())),
            Made::Joined { parts, axis } => {
                let first = self.graph.ty(*parts.first()?);
                let sum: Dim = parts.iter().map(|p| self.graph.ty(*p).shape[*axis].clone()).sum();
                let mut shape = first.shape.0.clone();
                shape[*axis] = sum;
                Some(TensorType {
                    dtype: first.dtype,
                    shape: Shape(shape),
                })
            }
        }
    }

    /// Returns the type of an op's first result, if its operands fit.
    pub fn infer(&self, op: &Op, types: &[&TensorType]) -> Option<TensorType> {
        let results = ir::graph::infer::infer(op, types, self.graph.symbols()).ok()?;
        results.into_iter().next()
    }

    /// Returns the type of an e-node over operands of these types.
    pub fn result(&self, payload: Payload, types: &[&TensorType]) -> Option<TensorType> {
        if let Payload::Fused(i) = payload {
            let fused = self.fused.get_index(i as usize)?;
            let (first, mut rest) = types.split_at_checked(fused.operands)?;
            let mut running = self.infer(&fused.product, first)?;
            for step in &fused.steps {
                let (mine, after) = rest.split_at_checked(step.operands - 1)?;
                rest = after;
                let mut operands: SmallVec<[&TensorType; 3]> = mine.iter().copied().collect();
                operands.insert(step.running, &running);
                let next = self.infer(&step.op, &operands)?;
                drop(operands);
                running = next;
            }
            return Some(running);
        }
        self.infer(&self.op(payload)?, types)
    }
}

impl Analysis<Enode> for Region<'_> {
    type Data = ClassFacts;

    fn make(egraph: &mut EGraph<Enode, Self>, enode: &Enode, _: Id) -> ClassFacts {
        if let Some(facts) = egraph.analysis.next.take() {
            return facts;
        }
        if let Payload::Made(i) = enode.payload {
            let region = &egraph.analysis;
            let Some(made) = region.made.get_index(i as usize) else {
                return ClassFacts::default();
            };
            let number = match made {
                Made::Filled(_, _, bits) => Some(f64::from_bits(*bits)),
                Made::Joined { .. } => None,
            };
            return ClassFacts {
                ty: region.made_type(made),
                number,
                value: None,
            };
        }
        let types: Option<SmallVec<[&TensorType; 3]>> =
            enode.children.iter().map(|c| egraph[*c].data.ty.as_ref()).collect();
        ClassFacts {
            ty: types.and_then(|types| egraph.analysis.result(enode.payload, &types)),
            ..ClassFacts::default()
        }
    }

    fn merge(&mut self, a: &mut ClassFacts, b: ClassFacts) -> DidMerge {
        // Only types flow on to the e-nodes above.
        let (changes_a, changes_b) = (a.ty.is_none() && b.ty.is_some(), a.ty != b.ty);
        if a.ty.is_none() {
            a.ty = b.ty;
        }
        if a.number.is_none() {
            a.number = b.number;
        }
        a.value = match (a.value, b.value) {
            (Some(x), Some(y)) => Some(x.min(y)),
            (x, y) => x.or(y),
        };
        DidMerge(changes_a, changes_b)
    }
}
