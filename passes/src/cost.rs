//! A roofline cost of ops: microseconds on a target, by bytes, operations and launches, at the symbols' hints.
//!
//! It ranks alternatives; it predicts nothing. Generated products are rated at a share of the target's peak for their
//! type. Pointwise work is mostly fused into what is beside it, so it is charged a share of its traffic and of a
//! launch.

use ir::dim::Symbols;
use ir::library::{GemmEpilogue, GemmScale, LibraryCall, LibraryOp};
use ir::op::Composite;
use ir::{DType, Graph, NodeId, Op, Target, TensorType};

/// The share of a pointwise op's traffic and launch that fusion leaves.
const POINTWISE_SHARE: f64 = 0.15;
/// The share of peak that a generated contraction reaches.
pub const GENERATED_EFFICIENCY: f64 = 0.5;

/// An elementwise op of more vector operations than this is worth computing once rather than wherever it is read.
pub const FEW: u32 = 2;

/// A library must win by this factor: its start-up and workspace are not in the model.
const LIBRARY_MARGIN: f64 = 1.05;

/// The launches that a library's call counts for beside its own. One with an epilogue stands against one generated
/// kernel that does the same, and what the library does on the host is not measured: it must win by as much as rocBLAS
/// with a kernel behind it.
fn library_launches(call: &LibraryCall) -> f64 {
    match call.op {
        LibraryOp::Gemm { scale, epilogue, .. } if (scale, epilogue) != (GemmScale::None, GemmEpilogue::None) => 1.0,
        _ => 0.0,
    }
}

/// What costs are computed for.
#[derive(Clone, Copy)]
pub struct CostModel<'a> {
    pub target: &'a Target,
    pub symbols: &'a Symbols,
    /// What f32 becomes later, where less precision was asked for.
    pub computed_in: Option<DType>,
}

impl CostModel<'_> {
    /// Returns the elements of a type at the hints.
    pub fn elements(&self, ty: &TensorType) -> f64 {
        ty.shape.iter().map(|d| d.hint(self.symbols).max(0) as f64).product()
    }

    /// Returns the bytes of a type at the hints.
    pub fn bytes(&self, ty: &TensorType) -> f64 {
        self.elements(ty) * f64::from(self.computed(ty.dtype).bits()) / 8.0
    }

    /// Returns the type in which a type is computed.
    pub fn computed(&self, dtype: DType) -> DType {
        match self.computed_in {
            Some(narrow) if dtype == DType::F32 => narrow,
            _ => dtype,
        }
    }

    /// Returns the microseconds that moving bytes takes.
    pub fn transfer(&self, bytes: f64) -> f64 {
        self.target.memory_us(bytes)
    }

    /// Returns the multiply-adds (times two) of a product, convolution or attention at the hints; 0 for others.
    pub fn flops(&self, op: &Op, operands: &[&TensorType], results: &[TensorType]) -> f64 {
        let all = crate::flops::product(op, operands, results).map_or(0.0, |flops| flops.hint(self.symbols) as f64);
        // What a causal mask hides is not computed.
        let causal = matches!(op, Op::Composite(Composite::Attention { causal: true, .. }));
        if causal { all / 2.0 } else { all }
    }

    /// Returns the microseconds of a contraction at a share of peak, without a launch.
    pub fn contraction(&self, op: &Op, operands: &[&TensorType], results: &[TensorType], efficiency: f64) -> f64 {
        let bytes: f64 =
            operands.iter().map(|t| self.bytes(t)).sum::<f64>() + results.iter().map(|t| self.bytes(t)).sum::<f64>();
        let peak = self.target.contract_tops(self.computed(operands[0].dtype)) * 1e6;
        let compute = self.flops(op, operands, results) / (peak * efficiency);
        compute.max(self.transfer(bytes))
    }

    /// Returns the microseconds of an op on operands of these types.
    pub fn op(&self, op: &Op, operands: &[&TensorType], results: &[TensorType]) -> f64 {
        let launch = self.target.launch_us;
        let written: f64 = results.iter().map(|t| self.bytes(t)).sum();
        let read: f64 = operands.iter().map(|t| self.bytes(t)).sum();
        let n: f64 = results.iter().map(|t| self.elements(t)).sum();
        let vector = self.target.vector_f32_tflops * 1e6;
        match op {
            Op::Input { .. } | Op::Constant(_) | Op::DimValue(_) => 0.0,
            Op::Iota { .. } => 0.01,
            Op::View(_) => 0.02 * launch + 0.02 * self.transfer(written),
            Op::Elementwise(kind) => {
                POINTWISE_SHARE * (launch + self.transfer(read + written)) + n * f64::from(kind.cost()) / vector
            }
            Op::Reduce { .. } => 0.6 * launch + self.transfer(read + written),
            Op::Contract(_) | Op::Conv(_) => launch + self.contraction(op, operands, results, GENERATED_EFFICIENCY),
            Op::Composite(Composite::Attention { .. }) => {
                launch + self.contraction(op, operands, results, 0.6 * GENERATED_EFFICIENCY)
            }
            Op::Composite(Composite::Dequantize { .. } | Composite::Quantize { .. }) => {
                POINTWISE_SHARE * (launch + self.transfer(read + written)) + n * f64::from(FEW) / vector
            }
            Op::Call(call) => match call.product() {
                Some(product) => {
                    let work =
                        self.contraction(&product, operands, results, self.target.library_efficiency) * LIBRARY_MARGIN;
                    launch * (1.0 + library_launches(call)) + work
                }
                // MIOpen reads a row for its maximum, its sum and its quotients.
                None if matches!(call.op, LibraryOp::Softmax { .. }) => launch + self.transfer(3.0 * read + written),
                None => launch + self.transfer(read + written),
            },
            // Rows are read once. What they become counts as it does where it is spelled out: mostly what follows takes
            // it in.
            Op::Composite(
                Composite::LayerNorm { .. }
                | Composite::RmsNorm { .. }
                | Composite::Softmax { .. }
                | Composite::LogSoftmax { .. },
            ) => launch + self.transfer(read) + POINTWISE_SHARE * self.transfer(written),
            Op::Random { .. } => POINTWISE_SHARE * launch + self.transfer(written),
            Op::Pool(_) | Op::Gather(_) | Op::Scatter(_) | Op::Scan { .. } | Op::TopK { .. } | Op::Composite(_) => {
                launch + self.transfer(read + written)
            }
        }
    }

    /// Returns the microseconds of an elementwise op that nothing before it takes in: a launch and all its traffic.
    pub fn alone(&self, op: &Op, operands: &[&TensorType], results: &[TensorType]) -> f64 {
        let moved: f64 =
            operands.iter().map(|t| self.bytes(t)).sum::<f64>() + results.iter().map(|t| self.bytes(t)).sum::<f64>();
        let fused = POINTWISE_SHARE * (self.target.launch_us + self.transfer(moved));
        self.op(op, operands, results) - fused + self.target.launch_us + self.transfer(moved)
    }

    /// Returns the microseconds that an elementwise op adds to the product it follows in one kernel: its arithmetic,
    /// and reading its other operands.
    pub fn as_epilogue(&self, op: &Op, others: &[&TensorType], result: &TensorType) -> f64 {
        let weight = match op {
            Op::Elementwise(kind) => f64::from(kind.cost()),
            _ => 0.0,
        };
        let vector = self.target.vector_f32_tflops * 1e6;
        let read: f64 = others.iter().map(|t| self.bytes(t)).sum();
        self.elements(result) * weight / vector + self.transfer(read)
    }

    /// Returns the microseconds of a node.
    pub fn node(&self, graph: &Graph, id: NodeId) -> f64 {
        let node = graph.node(id);
        let operands: Vec<&TensorType> = node.operands.iter().map(|v| graph.ty(*v)).collect();
        self.op(&node.op, &operands, &node.results)
    }

    /// Returns the microseconds of a set of nodes.
    pub fn nodes(&self, graph: &Graph, ids: &[NodeId]) -> f64 {
        ids.iter().map(|id| self.node(graph, *id)).sum()
    }
}
