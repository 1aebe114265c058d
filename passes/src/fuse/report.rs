//! What the scheduler did and why: the material of `graphc explain`.

use ir::schedule::RegionId;
use ir::{NodeId, Value};
use serde::Serialize;

/// Every decision about an edge between two computing nodes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FusionReport {
    pub fused: Vec<FusedEdge>,
    pub unfused: Vec<UnfusedEdge>,
}

/// A value that stays inside a region.
#[derive(Clone, Debug, Serialize)]
pub struct FusedEdge {
    pub producer: NodeId,
    pub consumer: NodeId,
    pub region: RegionId,
    pub how: Fusion,
}

/// A value that goes through memory.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct UnfusedEdge {
    pub value: Value,
    pub producer: RegionId,
    pub consumer: RegionId,
    pub reason: Barrier,
}

/// How a producer was taken into its consumer's region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fusion {
    /// The consumer is applied to the result while it is in registers.
    Epilogue,
    /// The producer is computed where its consumer reads it.
    Prologue,
    /// The consumer reads the quantised numbers as they are stored and dequantises them in registers.
    Unpacking,
    /// The producer only moves elements: it became an index map.
    IndexMap,
    /// The producer is a norm: its consumer multiplies the rows as they are, and scales their sums.
    RowScale,
    /// The producer is a product: its consumer, another, takes its results from registers.
    Chain,
    /// The producer stores its result where the consumer, a concat, would put it.
    InPlace,
}

/// Why a value goes through memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Barrier {
    /// Fusion is off at this optimisation level.
    Disabled,
    /// The value is an output of the model.
    ModelOutput,
    /// Several kernels read the value; computing it again would cost more than storing it.
    SeveralConsumers,
    /// The consumer reads each element many times (a contraction, convolution or attention operand).
    OperandReuse,
    /// The consumer's operand must be a dense tensor.
    DenseOperand,
    /// Through the views between them the operand would not be a strided access.
    NotStrided,
    /// The consumer folds or reorders a whole row of the producer's result.
    NeedsWholeRow,
    /// Fusing would make a region wait for itself.
    Cycle,
    /// The consumer works on more elements than the producer; computing it there would repeat costly work.
    RepeatedWork,
    /// The region holds as many nodes as one kernel should.
    RegionFull,
    /// The two shapes differ, so the consumer cannot run on the producer's elements one by one.
    ShapeDiffers,
    /// The producer has no epilogue (a library call, sort or scatter).
    NoEpilogue,
    /// The consumer is applied to the result of another contraction, convolution or reduction; a kernel has one of
    /// those.
    OtherAnchor,
    /// The consumer joins it with what another collective brings, which need not have come when this is computed.
    Collective,
}

impl Barrier {
    /// Returns the reason as a sentence.
    pub const fn text(self) -> &'static str {
        match self {
            Barrier::Disabled => "fusion is off at this optimisation level",
            Barrier::ModelOutput => "the value is an output of the model",
            Barrier::SeveralConsumers => {
                "several kernels read it, and computing it in each would cost more than storing it"
            }
            Barrier::OperandReuse => "the consumer reads each element many times, so it would be computed many times",
            Barrier::DenseOperand => "the consumer's operand must be a dense tensor",
            Barrier::NotStrided => "through the views between them the operand would not be a strided access",
            Barrier::NeedsWholeRow => {
                "the consumer folds or reorders whole rows, which one tile of the producer does not hold"
            }
            Barrier::Cycle => "fusing would make a region wait for its own result",
            Barrier::RepeatedWork => "the consumer works on more elements, so costly work would be repeated",
            Barrier::RegionFull => "the region already holds as many nodes as one kernel should",
            Barrier::ShapeDiffers => {
                "the shapes differ, so the consumer cannot work on the producer's elements one by one"
            }
            Barrier::NoEpilogue => "the producer takes no epilogue",
            Barrier::OtherAnchor => {
                "the consumer is applied to the result of another contraction, convolution or reduction; a kernel has one of those"
            }
            Barrier::Collective => "the consumer joins it with what another collective brings, which comes later",
        }
    }

    /// Returns what the writer of a model can do about it, in plain words.
    pub const fn advice(self) -> &'static str {
        match self {
            Barrier::Disabled => "compile with -O1 or higher",
            Barrier::ModelOutput => "leave the output out of the model if nobody reads it",
            Barrier::SeveralConsumers => "nothing to do: one write and several reads cost the least here",
            Barrier::OperandReuse => {
                "move elementwise work behind the product, where it fuses (a scale, a bias, an activation); before it, it does not"
            }
            Barrier::DenseOperand => {
                "drop transposes, slices and casts before it that the model can do without; --no-libraries lifts this where the \
                 consumer is a library's call"
            }
            Barrier::NotStrided => {
                "move the reshape between the two, or leave it out: a transpose or slice alone fuses"
            }
            Barrier::NeedsWholeRow => "nothing to do: the row must be whole before it is folded",
            Barrier::Cycle => "nothing to do, unless the model can do without one of the two paths between them",
            Barrier::RepeatedWork => "nothing to do: computing it once and storing it costs the least here",
            Barrier::RegionFull => "nothing to do: a longer kernel would run out of registers",
            Barrier::ShapeDiffers => "move the reshape or broadcast between the two in front of both, or behind both",
            Barrier::NoEpilogue => {
                "nothing to do behind a sort or scatter; behind a library's call, --no-libraries generates a kernel that fuses"
            }
            Barrier::OtherAnchor => "nothing to do: each of the two needs a kernel of its own",
            Barrier::Collective => "nothing to do: it is computed while the other is on its way",
        }
    }
}
