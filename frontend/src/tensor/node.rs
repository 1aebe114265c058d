//! What a tensor handle points to: one recorded operation.
//!
//! Invariant: a node never changes once made, and its id is larger than its operands' ids: sorting by id is a
//! topological order, and the order in which a thread recorded them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use ir::graph::infer::{Types, check_indices, infer};
use ir::{HostTensor, Op, Origin, SymbolInfo, Symbols, TensorType};
use smallvec::{SmallVec, smallvec};

use super::remote::{Argument, Remote};
use super::{Tensor, TensorError};

/// A recorded operation.
pub(super) struct Node {
    pub id: u64,
    pub kind: Kind,
    pub operands: SmallVec<[Tensor; 2]>,
    pub types: Types,
    /// Every symbol of the operands and of the op, with what is known of it.
    pub symbols: Arc<Symbols>,
    pub origin: Origin,
}

/// What is recorded.
pub(super) enum Kind {
    Input(Arc<str>),
    Constant(Data),
    Op(Op),
    Poison(Box<TensorError>),
}

/// The values of a constant.
pub(super) struct Data {
    pub name: Option<Arc<str>>,
    pub tensor: Argument,
    /// The number stands in the program (`x + 1.0`); it is no data that could be exchanged for other data.
    pub literal: bool,
}

static NEXT: AtomicU64 = AtomicU64::new(0);
static NO_SYMBOLS: LazyLock<Arc<Symbols>> = LazyLock::new(Arc::default);

impl Kind {
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Input(_) => "input",
            Kind::Constant(_) => "constant",
            Kind::Op(op) => op.name(),
            Kind::Poison(_) => "poisoned",
        }
    }
}

impl Node {
    fn make(
        kind: Kind,
        operands: SmallVec<[Tensor; 2]>,
        types: Types,
        symbols: Arc<Symbols>,
        origin: Origin,
    ) -> Tensor {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let node = Arc::new(Node {
            id,
            kind,
            operands,
            types,
            symbols,
            origin,
        });
        Tensor { node, index: 0 }
    }

    /// Records an op; the first poisoned operand is returned in its place.
    pub fn record(op: Op, operands: &[&Tensor], origin: Origin) -> Tensor {
        if let Some(poisoned) = operands.iter().find(|t| t.is_poisoned()) {
            return (*poisoned).clone();
        }
        let symbols = operands
            .iter()
            .fold(NO_SYMBOLS.clone(), |all, t| merged(all, &t.node.symbols));
        let symbols = with_symbols_of(&op, symbols);
        let types: SmallVec<[&TensorType; 4]> = operands.iter().map(|t| t.ty()).collect();
        // Data that stands in the program is checked where it is given; other indices when the graph runs.
        let indices = operands.get(1).and_then(|t| match &t.node.kind {
            Kind::Constant(data) => match &data.tensor {
                Argument::Host(tensor) => Some(tensor),
                Argument::Remote(_) => None,
            },
            _ => None,
        });
        let inferred = infer(&op, &types, &symbols).and_then(|result| {
            indices.map_or(Ok(()), |indices| check_indices(&op, &types, indices))?;
            Ok(result)
        });
        match inferred {
            Ok(types) => {
                let operands = operands.iter().map(|t| (*t).clone()).collect();
                Node::make(Kind::Op(op), operands, types, symbols, origin)
            }
            Err(error) => Node::poison(error.at(origin).into()),
        }
    }

    pub fn input(name: &str, ty: TensorType, declared: &Symbols, origin: Origin) -> Tensor {
        let mut symbols = Symbols::new();
        let mut found = Vec::new();
        ty.shape.iter().for_each(|d| d.collect_symbols(&mut found));
        for symbol in found {
            let info = declared.get(&symbol).copied().unwrap_or_default();
            symbols.insert(symbol, info);
        }
        Node::make(
            Kind::Input(name.into()),
            SmallVec::new(),
            smallvec![ty],
            Arc::new(symbols),
            origin,
        )
    }

    pub fn constant(name: Option<&str>, tensor: HostTensor, origin: Origin) -> Tensor {
        Node::data(
            Data {
                name: name.map(Into::into),
                tensor: Argument::Host(tensor),
                literal: false,
            },
            origin,
        )
    }

    pub fn literal(tensor: HostTensor, origin: Origin) -> Tensor {
        Node::data(
            Data {
                name: None,
                tensor: Argument::Host(tensor),
                literal: true,
            },
            origin,
        )
    }

    pub fn remote(data: Arc<dyn Remote>, origin: Origin) -> Tensor {
        Node::data(
            Data {
                name: None,
                tensor: Argument::Remote(data),
                literal: false,
            },
            origin,
        )
    }

    fn data(data: Data, origin: Origin) -> Tensor {
        let ty = match &data.tensor {
            Argument::Host(tensor) => TensorType::new(tensor.dtype, tensor.shape.clone()),
            Argument::Remote(remote) => remote.ty(),
        };
        Node::make(
            Kind::Constant(data),
            SmallVec::new(),
            smallvec![ty],
            NO_SYMBOLS.clone(),
            origin,
        )
    }

    pub fn poison(error: TensorError) -> Tensor {
        let ty = TensorType::new(ir::DType::F32, ir::Shape::SCALAR);
        Node::make(
            Kind::Poison(Box::new(error)),
            SmallVec::new(),
            smallvec![ty],
            NO_SYMBOLS.clone(),
            Origin::Unknown,
        )
    }
}

/// Joins what two operands know of their symbols; nothing is allocated when one knows it all.
fn merged(a: Arc<Symbols>, b: &Arc<Symbols>) -> Arc<Symbols> {
    if Arc::ptr_eq(&a, b) || b.is_empty() {
        return a;
    }
    if a.is_empty() {
        return b.clone();
    }
    if b.iter().all(|(s, info)| a.get(s) == Some(info)) {
        return a;
    }
    let mut all = (*a).clone();
    for (symbol, info) in b.iter() {
        let known = all.entry(symbol.clone()).or_insert(*info);
        *known = narrowed(*known, *info);
    }
    Arc::new(all)
}

/// What holds when both hold. The default's bounds are nobody's word, so that bounds that someone gave stay as they
/// are, also where they are wider; a hint that someone chose beats the default's.
pub(super) fn narrowed(a: SymbolInfo, b: SymbolInfo) -> SymbolInfo {
    let default = SymbolInfo::default();
    let given = |info: &SymbolInfo| (info.min, info.max) != (default.min, default.max);
    let (min, max) = match (given(&a), given(&b)) {
        (true, false) => (a.min, a.max),
        (false, _) => (b.min, b.max),
        (true, true) => (a.min.max(b.min), a.max.into_iter().chain(b.max).min()),
    };
    let hint = if a.hint == default.hint { b.hint } else { a.hint };
    SymbolInfo {
        min,
        max,
        hint: hint.max(min).min(max.unwrap_or(i64::MAX)),
    }
}

fn with_symbols_of(op: &Op, symbols: Arc<Symbols>) -> Arc<Symbols> {
    let mut found = Vec::new();
    op.for_each_dim(|d| d.collect_symbols(&mut found));
    if found.iter().all(|s| symbols.contains_key(s)) {
        return symbols;
    }
    let mut all = (*symbols).clone();
    for symbol in found {
        all.entry(symbol).or_default();
    }
    Arc::new(all)
}

impl Drop for Node {
    /// Frees long chains of nodes in a loop: recursion would overflow the stack.
    fn drop(&mut self) {
        let mut orphans: Vec<Tensor> = std::mem::take(&mut self.operands).into_vec();
        while let Some(tensor) = orphans.pop() {
            if let Some(mut node) = Arc::into_inner(tensor.node) {
                orphans.extend(std::mem::take(&mut node.operands));
            }
        }
    }
}

impl Tensor {
    /// Records an op at the caller's line.
    #[track_caller]
    pub(crate) fn op(op: Op, operands: &[&Tensor]) -> Tensor {
        Node::record(op, operands, Origin::caller())
    }

    /// Returns another result of the node that this is the first result of; a poisoned node has only one.
    pub(super) fn result(&self, index: u32) -> Tensor {
        if (index as usize) < self.node.types.len() {
            Tensor {
                node: self.node.clone(),
                index,
            }
        } else {
            self.clone()
        }
    }
}
