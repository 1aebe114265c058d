//! Graph ops as e-nodes.
//!
//! Elementwise ops and matrix products are spelled out, so that patterns can name them; any other op is an entry in the
//! region's table of ops, opaque to patterns. What a region reads from outside is a leaf. An e-class knows its type, and
//! its number where it is one everywhere: constants compare by value, within the rounding of an f32.

use std::fmt;
use std::str::FromStr;

use egg::{Analysis, DidMerge, EGraph, FromOp, Id, Language};
use indexmap::IndexMap;
use ir::dim::Symbols;
use ir::op::{BinaryOp, Contract, Elementwise, UnaryOp};
use ir::{DType, Op, TensorType};
use smallvec::SmallVec;

/// What an e-node does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Payload {
    Elementwise(Elementwise),
    /// A contraction: transpose flags and result type.
    Matmul(bool, bool, DType),
    /// An entry of the region's op table.
    Other(u32),
    /// A value from outside the region.
    Leaf(u32),
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
            Payload::Leaf(i) => write!(f, "leaf{i}"),
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
pub struct Facts {
    /// `None` only for a rewrite that does not type; such an e-node is never chosen.
    pub ty: Option<TensorType>,
    pub number: Option<f64>,
}

/// The region: its ops, what it reads, and which rules joined which classes.
pub struct Region<'a> {
    pub symbols: &'a Symbols,
    pub ops: Vec<Op>,
    pub leaves: Vec<Facts>,
    /// The vouched-for type of the next e-node that is added.
    pub next: Option<TensorType>,
    pub applied: IndexMap<Id, &'static str>,
}

/// An e-graph of a region.
pub type Graph<'a> = EGraph<Enode, Region<'a>>;

impl Region<'_> {
    /// Returns the op of an e-node that is not a leaf.
    pub fn op(&self, payload: Payload) -> Option<Op> {
        match payload {
            Payload::Elementwise(e) => Some(Op::Elementwise(e)),
            Payload::Matmul(transpose_lhs, transpose_rhs, out) => Some(Op::Contract(Contract {
                transpose_lhs,
                transpose_rhs,
                out,
            })),
            Payload::Other(i) => self.ops.get(i as usize).cloned(),
            Payload::Leaf(_) => None,
        }
    }
}

impl Analysis<Enode> for Region<'_> {
    type Data = Facts;

    fn make(egraph: &mut EGraph<Enode, Self>, enode: &Enode, _: Id) -> Facts {
        if let Payload::Leaf(i) = enode.payload {
            return egraph.analysis.leaves[i as usize].clone();
        }
        if let Some(ty) = egraph.analysis.next.take() {
            return Facts {
                ty: Some(ty),
                number: None,
            };
        }
        let types: Option<SmallVec<[&TensorType; 3]>> =
            enode.children.iter().map(|c| egraph[*c].data.ty.as_ref()).collect();
        let ty = types.zip(egraph.analysis.op(enode.payload)).and_then(|(types, op)| {
            let results = ir::graph::infer::infer(&op, &types, egraph.analysis.symbols).ok()?;
            results.first().cloned()
        });
        Facts { ty, number: None }
    }

    fn merge(&mut self, a: &mut Facts, b: Facts) -> DidMerge {
        let (had_ty, had_number) = (a.ty.is_some(), a.number.is_some());
        let changes_b = a.ty != b.ty || a.number != b.number;
        let mut changed = false;
        if !had_ty && b.ty.is_some() {
            a.ty = b.ty;
            changed = true;
        }
        if !had_number && b.number.is_some() {
            a.number = b.number;
            changed = true;
        }
        DidMerge(changed, changes_b)
    }
}
