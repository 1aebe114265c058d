//! Products and what follows them: one generated kernel, or a library's call and kernels of their own.
//!
//! ```text
//! gelu(add(contract(x, w), b))       equals      one kernel: contract add gelu (x, w, b)
//! contract(x, w)                     equals      rocblas_gemm(x, w)
//! gelu(add(contract(x, w), b))       equals      hipblaslt_matmul(x, w, b): see library_epilogue
//! conv(x, w)                         equals      miopen_conv(x, w)
//! softmax(x)                         equals      miopen_softmax(x), on request
//! ```
//!
//! A library reaches a larger share of peak; a generated kernel takes its neighbours in, so that no bias or activation
//! is a launch and a way through memory of its own. Both are in the e-graph, and the roofline decides. A product with
//! another reader is not taken into a kernel: it would be computed twice.

use egg::Id;
use ir::entity::Entity;
use ir::library::LibraryCall;
use ir::op::{Elementwise, View};
use ir::{Graph, NodeId, Op};

use super::Recognizer;
use crate::egraph::language::{Enode, Fused, Payload, Step};
use crate::egraph::term::{Found, Reader, Term};
use crate::route::{miopen, rocblas};

/// The recogniser of products with an epilogue.
pub const EPILOGUE: Recognizer = Recognizer {
    name: "epilogue",
    sign: is_product,
    find: epilogue,
};

/// The libraries' calls.
pub const LIBRARIES: &[Recognizer] = &[
    Recognizer {
        name: super::ROCBLAS,
        sign: is_product,
        find: |r, class| library(r, class, rocblas::call),
    },
    super::library_epilogue::HIPBLASLT,
    Recognizer {
        name: super::MIOPEN,
        sign: is_product,
        find: |r, class| library(r, class, miopen::call),
    },
];

/// The calls that are only looked for where calls are asked for.
pub const ASKED: &[Recognizer] = &[Recognizer {
    name: "miopen_asked",
    sign: miopen::may_be_asked,
    find: |r, class| library(r, class, miopen::asked),
}];

/// Steps that one kernel takes in are at most this many; more are a kernel of their own anyway.
const MAX_STEPS: usize = 8;

fn is_product(op: &Op) -> bool {
    matches!(op, Op::Contract(_) | Op::Conv(_))
}

fn takes_in(op: &Op) -> bool {
    matches!(
        op,
        Op::Elementwise(Elementwise::Unary(_) | Elementwise::Binary(_) | Elementwise::Select | Elementwise::Cast(_))
            | Op::View(View::Reshape(_) | View::Transpose(_) | View::Slice { .. })
    )
}

fn epilogue(r: Reader<'_, '_>, class: Id) -> Vec<Found> {
    let region = &r.egraph.analysis;
    let mut found = Vec::new();
    for node in r.nodes(class) {
        let Some(op) = region.op(node.payload).filter(takes_in) else {
            continue;
        };
        for (at, child) in node.children.iter().enumerate() {
            let alone = |v: ir::Value| region.uses[v.node.index()] == 1;
            let grows = matches!(op, Op::Elementwise(_)) && r.shape(*child) != r.shape(class);
            if grows || !r.facts(*child).value.is_some_and(alone) {
                continue;
            }
            for inner in r.nodes(*child) {
                found.extend(joined(r, node, &op, at, inner));
            }
        }
    }
    found
}

/// A product, or one with an epilogue, and one op more.
fn joined(r: Reader<'_, '_>, node: &Enode, op: &Op, at: usize, inner: &Enode) -> Option<Found> {
    let region = &r.egraph.analysis;
    let mut fused = match inner.payload {
        Payload::Fused(i) => region.fused.get_index(i as usize)?.clone(),
        payload => Fused {
            product: region.op(payload).filter(is_product)?,
            operands: inner.children.len(),
            steps: Vec::new(),
        },
    };
    if fused.steps.len() == MAX_STEPS {
        return None;
    }
    fused.steps.push(Step {
        op: op.clone(),
        running: at,
        operands: node.children.len(),
    });
    let classes = |enode: &Enode| -> Vec<Term> { enode.children.iter().map(|c| Term::Class(*c)).collect() };
    let mut operands = classes(node);
    let mut all = classes(inner);
    operands[at] = Term::Node(inner.payload, all.clone());
    all.extend(
        node.children
            .iter()
            .enumerate()
            .filter(|(i, _)| *i != at)
            .map(|(_, c)| Term::Class(*c)),
    );
    Some(Found {
        seen: Term::Node(node.payload, operands),
        equal: Term::Fused(fused, all),
    })
}

fn library(r: Reader<'_, '_>, class: Id, call: fn(&Graph, NodeId) -> Option<LibraryCall>) -> Vec<Found> {
    let region = &r.egraph.analysis;
    let Some(value) = r.facts(class).value.filter(|v| v.node.index() >= region.start) else {
        return Vec::new();
    };
    let Some(call) = call(region.graph, value.node) else {
        return Vec::new();
    };
    let op = &region.graph.node(value.node).op;
    let product = r.nodes(class).find(|n| region.op(n.payload).as_ref() == Some(op));
    let found = product.map(|n| {
        let operands: Vec<Term> = n.children.iter().map(|c| Term::Class(*c)).collect();
        Found {
            seen: Term::Node(n.payload, operands.clone()),
            equal: Term::Op(Op::Call(call), operands),
        }
    });
    found.into_iter().collect()
}
