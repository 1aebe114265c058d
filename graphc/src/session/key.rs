//! When two graphs are the same program: equal ops, types, bounds and constants, whatever lines they came from.

use ir::graph::op::Op;
use ir::{DType, Graph, Storage, Symbol, SymbolInfo, TensorType, Value};

/// The identity of a graph, for caches. Equal keys mean equal results.
///
/// Small constants count by their bytes. Larger ones count by where they are in memory, as comparing weights would cost
/// more than compiling; the key keeps that memory alive, so that nothing else can be there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GraphKey {
    nodes: Vec<(Op, Vec<Value>, Vec<TensorType>)>,
    constants: Vec<ConstantKey>,
    symbols: Vec<(Symbol, SymbolInfo)>,
    inputs: Vec<String>,
    outputs: Vec<(String, Value)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ConstantKey {
    dtype: DType,
    shape: Vec<usize>,
    data: Data,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Data {
    Bytes(Vec<u8>),
    Shared(Shared),
}

/// Bytes that are told apart by their place.
#[derive(Clone, Debug)]
struct Shared(Storage);

/// Constants up to this many bytes are compared.
const COMPARED: usize = 256;

impl Shared {
    fn place(&self) -> (usize, usize) {
        (self.0.as_ptr() as usize, self.0.len())
    }
}
impl PartialEq for Shared {
    fn eq(&self, other: &Shared) -> bool {
        self.place() == other.place()
    }
}
impl Eq for Shared {}
impl std::hash::Hash for Shared {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.place().hash(state);
    }
}

impl GraphKey {
    /// Makes the key of a graph.
    pub fn of(graph: &Graph) -> GraphKey {
        let constant = |c: &ir::graph::Constant| ConstantKey {
            dtype: c.tensor.dtype,
            shape: c.tensor.shape.clone(),
            data: if c.tensor.bytes.len() <= COMPARED {
                Data::Bytes(c.tensor.bytes.to_vec())
            } else {
                Data::Shared(Shared(c.tensor.bytes.clone()))
            },
        };
        let node = |n: &ir::graph::Node| (n.op.clone(), n.operands.to_vec(), n.results.to_vec());
        GraphKey {
            nodes: graph.nodes().values().map(node).collect(),
            constants: graph.constants().values().map(constant).collect(),
            symbols: graph.symbols().iter().map(|(s, info)| (s.clone(), *info)).collect(),
            inputs: graph.inputs().iter().map(|i| i.name.clone()).collect(),
            outputs: graph.outputs().iter().map(|o| (o.name.clone(), o.value)).collect(),
        }
    }
}
