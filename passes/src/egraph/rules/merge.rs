//! Contractions that share their left operand and have constant right operands as one: Q, K and V, gate and up.
//!
//! ```text
//! q = contract(x, wq) + bq;  k = contract(x, wk) + bk     equals      m = contract(x, [wq|wk]) + [bq|bk]
//!                                                                     q = m[…, :nq];  k = m[…, nq:]
//! ```
//!
//! Quantised weights are joined with their scales and zero points, in four bits too.
//!
//! One launch reads `x` once and fills the machine better; the slices are strided loads of whoever reads them. Each
//! slice alone costs the whole product, so extraction takes all of a group or none (see [`super::super::extract`]).

use egg::{Applier, Id, Language, PatternAst, Rewrite, SearchMatches, Searcher, Subst, Symbol, Var};
use indexmap::IndexMap;
use ir::entity::Entity;
use ir::op::{BinaryOp, Composite, Contract, Elementwise, View};
use ir::{DType, Dim, HostTensor, Op, Value};

use super::Sign;
use crate::egraph::language::{Enode, Graph, Group, Made, Payload, Region};
use crate::egraph::term::Term;

/// The rule's name.
pub const NAME: &str = "merge_contractions";

/// A contraction.
pub const SIGN: Sign = |op| matches!(op, Op::Contract(_));

/// Joined weights are at most this many elements.
const MAX_ELEMENTS: usize = 1 << 28;

/// Returns the rule.
pub fn rewrite<'a>() -> Result<Rewrite<Enode, Region<'a>>, String> {
    Rewrite::new(NAME, Merge, Merge)
}

/// One contraction by a constant.
struct Member {
    class: Id,
    node: Enode,
    weight: Weight,
    /// The sum with a constant `[n]` that is the contraction's only reader.
    bias: Option<Bias>,
}

/// A right operand that is known: a constant, or what `dequantize` makes of several.
struct Weight {
    value: Value,
    dequantize: Option<Composite>,
    /// The constant, or the integers, their scales and their zero points; all have a product's columns on the same
    /// axis.
    parts: Vec<Value>,
}

impl Weight {
    /// The known right operand `[k, n]` in a class, or `[n, k]`: its columns are on `axis`.
    fn of(egraph: &Graph<'_>, class: Id, axis: usize) -> Option<Weight> {
        let graph = egraph.analysis.graph;
        let value = egraph[class].data.value?;
        let node = graph.node(value.node);
        let (dequantize, parts) = match &node.op {
            Op::Composite(made @ Composite::Dequantize { .. }) => (Some(made.clone()), node.operands.to_vec()),
            _ => (None, vec![value]),
        };
        let columns = graph.ty(value).shape.0.get(axis)?.clone();
        let joins = |part: &Value| {
            let constant = graph.as_constant(*part);
            constant.is_some_and(|c| c.shape.len() == 2 && columns.is(c.shape[axis] as i64))
        };
        // Folding keeps constants of less than a byte only where something makes numbers of them.
        let stored = dequantize.is_some() || graph.ty(value).dtype.bits() >= 8;
        (stored && parts.iter().all(joins)).then_some(Weight {
            value,
            dequantize,
            parts,
        })
    }

    /// What weights must agree in to be joined.
    fn kind(&self, graph: &ir::Graph) -> (Option<Composite>, Vec<DType>) {
        let types = self.parts.iter().map(|p| graph.ty(*p).dtype);
        (self.dequantize.clone(), types.collect())
    }
}

struct Bias {
    class: Id,
    node: Enode,
    /// Which operand of the sum the contraction is.
    at: usize,
    value: Value,
}

fn constant<'a>(egraph: &Graph<'a>, class: Id) -> Option<(Value, &'a HostTensor)> {
    let value = egraph[class].data.value?;
    Some((value, egraph.analysis.graph.as_constant(value)?))
}

fn groups(egraph: &Graph<'_>) -> Vec<Vec<Member>> {
    let mut classes: Vec<Id> = egraph.classes().map(|c| c.id).collect();
    classes.sort_unstable();
    let graph = egraph.analysis.graph;
    let mut found: IndexMap<_, Vec<Member>> = IndexMap::new();
    for class in classes {
        // What stands before the region has its value already.
        let own = |v: &Value| v.node.index() >= egraph.analysis.start;
        let Some(value) = egraph[class].data.value.filter(own) else {
            continue;
        };
        let is_narrow = |id: Id| egraph[id].data.value.is_some_and(|v| graph.ty(v).dtype.bits() < 32);
        let product = egraph[class].nodes.iter().find_map(|node| match node.payload {
            // Sums of integers, and those of 8-bit floats, become numbers by scales of their own columns; a slice
            // between the two would keep that out of the product's kernel, and each part would be read and written once
            // more.
            Payload::Matmul(false, _, DType::I32) => None,
            Payload::Matmul(false, _, DType::F32) if is_narrow(node.children[0]) => None,
            Payload::Matmul(false, transpose_rhs, _) => {
                let axis = usize::from(!transpose_rhs);
                let weight = Weight::of(egraph, node.children[1], axis)?;
                let n = graph.as_constant(weight.parts[0])?.shape[axis];
                Some((node, weight, n))
            }
            _ => None,
        });
        let Some((node, weight, n)) = product else {
            continue;
        };
        let only_one = egraph.analysis.uses[value.node.index()] == 1;
        let member = Member {
            class,
            node: node.clone(),
            weight,
            bias: only_one.then(|| bias(egraph, class, n)).flatten(),
        };
        found
            .entry((egraph.find(node.children[0]), node.payload, member.weight.kind(graph)))
            .or_default()
            .push(member);
    }
    let elements = |m: &Member| {
        let stored = graph.as_constant(m.weight.parts[0]);
        stored.map_or(0, HostTensor::elements)
    };
    found
        .into_values()
        .filter(|members| members.len() > 1 && members.iter().map(elements).sum::<usize>() <= MAX_ELEMENTS)
        .collect()
}

/// The sum of a class and a constant `[n]`.
fn bias(egraph: &Graph<'_>, class: Id, n: usize) -> Option<Bias> {
    egraph[class].parents().find_map(|parent| {
        let node = egraph.id_to_node(parent);
        if node.payload != Payload::Elementwise(Elementwise::Binary(BinaryOp::Add)) {
            return None;
        }
        let at = node.children().iter().position(|c| egraph.find(*c) == class)?;
        let (value, tensor) = constant(egraph, node.children()[1 - at])?;
        (tensor.shape == [n]).then(|| Bias {
            class: egraph.find(parent),
            node: node.clone(),
            at,
            value,
        })
    })
}

/// A group's one product, a slice of it for each member, and what each slice equals.
fn merged(egraph: &Graph<'_>, members: &[Member]) -> Vec<(Vec<(Id, Term)>, Vec<Term>)> {
    let (first, g) = (&members[0].node, egraph.analysis.graph);
    let Payload::Matmul(_, transpose_rhs, out) = first.payload else {
        return Vec::new();
    };
    let axis = usize::from(!transpose_rhs);
    let contract = Op::Contract(Contract {
        transpose_lhs: false,
        transpose_rhs,
        out,
    });
    let weight = &members[0].weight;
    let mut joined = (0..weight.parts.len()).map(|part| {
        Term::Made(Made::Joined {
            parts: members.iter().map(|m| m.weight.parts[part]).collect(),
            axis,
        })
    });
    let weights = match &weight.dequantize {
        Some(dequantize) => Some(Term::Op(Op::Composite(dequantize.clone()), joined.collect())),
        None => joined.next(),
    };
    let Some(weights) = weights else { return Vec::new() };
    let product = Term::Op(contract, vec![Term::Class(first.children[0]), weights]);
    let sizes: Vec<Dim> = members
        .iter()
        .map(|m| g.ty(m.weight.value).shape[axis].clone())
        .collect();
    let slices = |whole: &Term| -> Option<Vec<Term>> {
        let shape = &egraph[members[0].class].data.ty.as_ref()?.shape;
        let last = shape.rank() - 1;
        let mut start = Dim::from(0);
        let slices = sizes.iter().map(|n| {
            let mut starts = vec![Dim::from(0); shape.rank()];
            starts[last] = start.clone();
            start = start.clone() + n.clone();
            let mut sizes = shape.0.clone();
            sizes[last] = n.clone();
            let steps = vec![1; shape.rank()];
            Term::Op(Op::View(View::Slice { starts, sizes, steps }), vec![whole.clone()])
        });
        Some(slices.collect())
    };
    let seen = |node: &Enode| Term::Node(node.payload, node.children.iter().map(|c| Term::Class(*c)).collect());
    let mut out = Vec::new();
    let biases: Option<Vec<&Bias>> = members.iter().map(|m| m.bias.as_ref()).collect();
    if let Some(biases) = biases {
        let joined = Made::Joined {
            parts: biases.iter().map(|b| b.value).collect(),
            axis: 0,
        };
        let sum = Term::Op(Op::binary(BinaryOp::Add), vec![product.clone(), Term::Made(joined)]);
        let sums = members.iter().zip(&biases).map(|(m, b)| {
            let mut operands = vec![Term::Class(b.node.children[0]), Term::Class(b.node.children[1])];
            operands[b.at] = seen(&m.node);
            (b.class, Term::Node(b.node.payload, operands))
        });
        out.extend(slices(&sum).map(|s| (sums.collect(), s)));
    }
    let products = members.iter().map(|m| (m.class, seen(&m.node))).collect();
    out.extend(slices(&product).map(|s| (products, s)));
    out
}

struct Merge;

impl<'a> Searcher<Enode, Region<'a>> for Merge {
    fn search_with_limit(&self, egraph: &Graph<'a>, _: usize) -> Vec<SearchMatches<'_, Enode>> {
        let found = groups(egraph);
        let of = |members: &Vec<Member>| SearchMatches {
            eclass: members[0].class,
            substs: vec![Subst::default()],
            ast: None,
        };
        found.iter().map(of).collect()
    }

    fn search_eclass_with_limit(&self, _: &Graph<'a>, _: Id, _: usize) -> Option<SearchMatches<'_, Enode>> {
        None
    }

    fn vars(&self) -> Vec<Var> {
        Vec::new()
    }
}

impl<'a> Applier<Enode, Region<'a>> for Merge {
    fn apply_matches(&self, egraph: &mut Graph<'a>, _: &[SearchMatches<'_, Enode>], _: Symbol) -> Vec<Id> {
        let mut changed = Vec::new();
        for members in groups(egraph) {
            for (seen, slices) in merged(egraph, &members) {
                let mut group = Group {
                    rule: NAME,
                    members: Vec::new(),
                };
                for ((class, seen), slice) in seen.iter().zip(&slices) {
                    if super::join(egraph, *class, seen, slice, NAME) {
                        let id = slice.add(egraph);
                        group.members.push((*class, egraph.id_to_node(id).clone()));
                    }
                }
                changed.extend(group.members.iter().map(|m| m.0));
                if group.members.len() == members.len() {
                    egraph.analysis.groups.push(group);
                }
            }
        }
        changed
    }

    fn apply_one(&self, _: &mut Graph<'a>, _: Id, _: &Subst, _: Option<&PatternAst<Enode>>, _: Symbol) -> Vec<Id> {
        Vec::new()
    }
}
