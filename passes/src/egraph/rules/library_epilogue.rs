//! Products whose scales, bias and activation a library takes in.
//!
//! ```text
//! mul(contract(x, w), s)                   equals      hipblaslt_matmul(x, w, s) with scales
//! cast_f16(hipblaslt_matmul(x, w, s))      equals      hipblaslt_matmul(x, w, s) of f16
//! add(contract(x, w), b)                   equals      hipblaslt_matmul(x, w, b) with a bias
//! gelu_tanh(hipblaslt_matmul(x, w, b))     equals      hipblaslt_matmul(x, w, b) with a bias and GELU
//! relu(contract(x, w))                     equals      hipblaslt_matmul(x, w) with ReLU
//! ```
//!
//! One step at a time: the call with a bias is in the class that an activation reads, so the second step finds it
//! there. As a generated kernel does, the call scales, adds and activates in f32 and rounds once. A product with
//! another reader is not taken: it would be computed twice.

use egg::Id;
use ir::DType;
use ir::Op;
use ir::entity::Entity;
use ir::library::{GemmEpilogue, GemmScale, Library, LibraryCall, LibraryOp};
use ir::op::{BinaryOp, Contract, Elementwise, UnaryOp};

use super::Recognizer;
use crate::egraph::language::{Enode, Payload};
use crate::egraph::term::{Found, Reader, Term};
use crate::route::hipblaslt;

/// The recogniser of hipBLASLt's products.
pub const HIPBLASLT: Recognizer = Recognizer {
    name: "hipblaslt",
    sign: |op| matches!(op, Op::Contract(_)),
    find,
};

fn find(r: Reader<'_, '_>, class: Id) -> Vec<Found> {
    let mut found = Vec::new();
    for node in r.nodes(class) {
        match node.payload {
            Payload::Elementwise(Elementwise::Binary(kind @ (BinaryOp::Mul | BinaryOp::Add))) => {
                for at in 0..2 {
                    for inner in alone(r, node.children[at]) {
                        let equal = match kind {
                            BinaryOp::Mul => inner.scaled(r, class, node, at),
                            _ => inner.biased(r, class, node, at),
                        };
                        found.extend(equal.map(|equal| inner.found(node, at, equal)));
                    }
                }
            }
            Payload::Elementwise(Elementwise::Unary(kind @ (UnaryOp::Relu | UnaryOp::GeluTanh))) => {
                for inner in alone(r, node.children[0]) {
                    let equal = hipblaslt::activated(inner.epilogue, kind).map(|epilogue| Gemm {
                        epilogue,
                        ..inner.clone()
                    });
                    found.extend(equal.map(|equal| inner.found(node, 0, equal)));
                }
            }
            Payload::Elementwise(Elementwise::Cast(to)) => {
                for inner in alone(r, node.children[0]) {
                    found.extend(inner.narrowed(r, to).map(|equal| inner.found(node, 0, equal)));
                }
            }
            _ => {}
        }
    }
    found
}

/// A product, or a call with what follows it, as an e-node.
#[derive(Clone)]
struct Gemm<'e> {
    node: &'e Enode,
    contract: Contract,
    scale: GemmScale,
    epilogue: GemmEpilogue,
    /// Of the call: the product's, a scale, a bias.
    operands: Vec<Id>,
}

/// What a class has of them, where its value is of this region and has one reader.
fn alone<'e>(r: Reader<'e, '_>, class: Id) -> Vec<Gemm<'e>> {
    let region = &r.egraph.analysis;
    let Some(value) = r.facts(class).value else {
        return Vec::new();
    };
    if value.node.index() < region.start || region.uses[value.node.index()] != 1 {
        return Vec::new();
    }
    let own = hipblaslt::product(region.graph, value.node, region.target);
    let all = r.nodes(class).filter_map(|node| {
        let (contract, scale, epilogue) = match region.op(node.payload)? {
            Op::Contract(contract) if own == Some(contract) => (contract, GemmScale::None, GemmEpilogue::None),
            Op::Call(LibraryCall {
                library: Library::HipBlasLt,
                op:
                    LibraryOp::Gemm {
                        contract,
                        scale,
                        epilogue,
                    },
            }) => (contract, scale, epilogue),
            _ => return None,
        };
        Some(Gemm {
            node,
            contract,
            scale,
            epilogue,
            operands: node.children.to_vec(),
        })
    });
    all.collect()
}

impl Gemm<'_> {
    /// The match: `node` over this one as its operand `at`, which equals `equal`.
    fn found(&self, node: &Enode, at: usize, equal: Gemm<'_>) -> Found {
        let classes = |ids: &[Id]| -> Vec<Term> { ids.iter().map(|id| Term::Class(*id)).collect() };
        let mut seen = classes(&node.children);
        seen[at] = Term::Node(self.node.payload, classes(&self.node.children));
        let call = hipblaslt::call(equal.contract, equal.scale, equal.epilogue);
        Found {
            seen: Term::Node(node.payload, seen),
            equal: Term::Op(Op::Call(call), classes(&equal.operands)),
        }
    }

    /// The call that takes in the other operand of a node too, which lies in memory as it is, or nobody knows what it
    /// is.
    fn with_operand(&self, r: Reader<'_, '_>, class: Id, node: &Enode, at: usize) -> Option<Self> {
        let other = node.children[1 - at];
        let stored = (r.facts(other).value).is_some_and(|v| hipblaslt::is_stored(r.egraph.analysis.graph, v));
        let same = r.shape(node.children[at])? == r.shape(class)?;
        let mut with = self.clone();
        with.operands.push(other);
        (stored && same).then_some(with)
    }

    /// Sums that are multiplied by what scales them.
    fn scaled(&self, r: Reader<'_, '_>, class: Id, node: &Enode, at: usize) -> Option<Self> {
        if self.scale != GemmScale::None || self.epilogue != GemmEpilogue::None {
            return None;
        }
        let scale = hipblaslt::scale(r.ty(node.children[1 - at])?, r.ty(self.operands[0])?, r.ty(class)?)?;
        let with = self.with_operand(r, class, node, at)?;
        Some(Gemm { scale, ..with })
    }

    /// A product and a bias.
    fn biased(&self, r: Reader<'_, '_>, class: Id, node: &Enode, at: usize) -> Option<Self> {
        if self.epilogue != GemmEpilogue::None || !hipblaslt::is_bias(r.ty(node.children[1 - at])?, r.ty(class)?) {
            return None;
        }
        let with = self.with_operand(r, class, node, at)?;
        Some(Gemm {
            epilogue: GemmEpilogue::Bias,
            ..with
        })
    }

    /// Scaled sums that are stored in a narrower type.
    fn narrowed(&self, r: Reader<'_, '_>, to: DType) -> Option<Self> {
        let is_wide = self.contract.out == DType::F32 && self.scale != GemmScale::None;
        (is_wide && hipblaslt::narrows(r.ty(self.operands[0])?, to)).then(|| Gemm {
            contract: Contract {
                out: to,
                ..self.contract
            },
            ..self.clone()
        })
    }
}
