//! Products whose bias and activation a library takes in.
//!
//! ```text
//! add(contract(x, w), b)                   equals      hipblaslt_matmul(x, w, b) with a bias
//! gelu_tanh(hipblaslt_matmul(x, w, b))     equals      hipblaslt_matmul(x, w, b) with a bias and GELU
//! relu(contract(x, w))                     equals      hipblaslt_matmul(x, w) with ReLU
//! ```
//!
//! One step at a time: the call with a bias is in the class that an activation reads, so the second step finds it there. As a
//! generated kernel does, the call adds and activates in f32 and rounds once. A product with another reader is not taken: it
//! would be computed twice.

use egg::Id;
use ir::Op;
use ir::entity::Entity;
use ir::library::{GemmEpilogue, Library, LibraryCall, LibraryOp};
use ir::op::{BinaryOp, Contract, Elementwise, UnaryOp};

use super::Recognizer;
use crate::egraph::language::{Enode, Payload};
use crate::egraph::term::{Found, Reader, Term};
use crate::route::hipblaslt;

/// The recogniser of hipBLASLt's products.
pub const HIPBLASLT: Recognizer = Recognizer {
    name: "hipblaslt",
    find,
};

fn find(r: Reader<'_, '_>, class: Id) -> Vec<Found> {
    let mut found = Vec::new();
    for node in r.nodes(class) {
        match node.payload {
            Payload::Elementwise(Elementwise::Binary(BinaryOp::Add)) => {
                for at in 0..2 {
                    found.extend(biased(r, class, node, at));
                }
            }
            Payload::Elementwise(Elementwise::Unary(kind @ (UnaryOp::Relu | UnaryOp::GeluTanh))) => {
                found.extend(activated(r, node, kind));
            }
            _ => {}
        }
    }
    found
}

/// Whether the value that a class stands for is of this region and has one reader.
fn is_alone(r: Reader<'_, '_>, class: Id) -> bool {
    let region = &r.egraph.analysis;
    let value = r.facts(class).value;
    value.is_some_and(|v| v.node.index() >= region.start && region.uses[v.node.index()] == 1)
}

/// The e-node of a contraction in a class that hipBLASLt takes.
fn product<'e>(r: Reader<'e, '_>, class: Id) -> Option<(&'e Enode, Contract)> {
    let region = &r.egraph.analysis;
    let value = r.facts(class).value.filter(|_| is_alone(r, class))?;
    let contract = hipblaslt::product(region.graph, value.node)?;
    let node = r
        .nodes(class)
        .find(|n| region.op(n.payload) == Some(Op::Contract(contract)))?;
    Some((node, contract))
}

fn classes(node: &Enode) -> Vec<Term> {
    node.children.iter().map(|child| Term::Class(*child)).collect()
}

fn called(contract: Contract, epilogue: GemmEpilogue, operands: Vec<Term>) -> Term {
    Term::Op(Op::Call(hipblaslt::call(contract, epilogue)), operands)
}

/// A product and a bias, which is the other operand of the sum.
fn biased(r: Reader<'_, '_>, class: Id, node: &Enode, at: usize) -> Option<Found> {
    let (result, bias) = (r.ty(class)?, node.children[1 - at]);
    // The bias lies in memory as it is, or nobody knows what it is.
    let stored = r
        .facts(bias)
        .value
        .is_some_and(|v| hipblaslt::is_stored(r.egraph.analysis.graph, v));
    if !hipblaslt::is_bias(r.ty(bias)?, result) || !stored || r.shape(node.children[at])? != &result.shape {
        return None;
    }
    let (inner, contract) = product(r, node.children[at])?;
    let mut operands = vec![Term::Class(bias); 2];
    operands[at] = Term::Node(inner.payload, classes(inner));
    let mut all = classes(inner);
    all.push(Term::Class(bias));
    Some(Found {
        seen: Term::Node(node.payload, operands),
        equal: called(contract, GemmEpilogue::Bias, all),
    })
}

/// An activation of a product, or of a call with a bias.
fn activated(r: Reader<'_, '_>, node: &Enode, kind: UnaryOp) -> Vec<Found> {
    let child = node.children[0];
    if !is_alone(r, child) {
        return Vec::new();
    }
    let region = &r.egraph.analysis;
    let plain = product(r, child).map(|(inner, contract)| (inner, contract, GemmEpilogue::None));
    let calls = r.nodes(child).filter_map(|inner| match region.op(inner.payload)? {
        Op::Call(LibraryCall {
            library: Library::HipBlasLt,
            op: LibraryOp::Gemm { contract, epilogue },
        }) => Some((inner, contract, epilogue)),
        _ => None,
    });
    let all = plain.into_iter().chain(calls);
    all.filter_map(|(inner, contract, epilogue)| {
        let epilogue = hipblaslt::activated(epilogue, kind)?;
        Some(Found {
            seen: Term::Node(node.payload, vec![Term::Node(inner.payload, classes(inner))]),
            equal: called(contract, epilogue, classes(inner)),
        })
    })
    .collect()
}
