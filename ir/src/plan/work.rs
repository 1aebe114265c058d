//! What each step of a plan moves and computes at some sizes, and the least time that a target's peaks allow it.

use serde::Serialize;

use super::{BufferId, Place, Plan, StepId, Work};
use crate::dim::{Bindings, DimError};
use crate::entity::Table;
use crate::kernel::{Body, Expr, ExprId, Kernel};
use crate::target::Architecture;
use crate::types::DType;

/// The work of one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct StepWork {
    /// Different bytes that it reads, and that it writes ([`Kernel::traffic`](crate::kernel::Kernel::traffic)).
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Floating-point operations; a multiply-add is two.
    pub flops: u64,
    /// The operands' type of a product, convolution or attention; `None` for other work.
    #[serde(serialize_with = "type_name")]
    pub product: Option<DType>,
    /// Whether the bytes go between host and device, so that no fact of the target limits them.
    pub over_bus: bool,
}

fn type_name<S: serde::Serializer>(dtype: &Option<DType>, serializer: S) -> Result<S::Ok, S::Error> {
    dtype.map(DType::name).serialize(serializer)
}

/// What a step cannot be faster than, at the data sheet's peaks of its target.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Roofline {
    /// Microseconds.
    pub micros: f64,
    pub bound: Bound,
}

/// Which of the two takes longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    Memory,
    Compute,
}

impl Bound {
    /// The word for people and files.
    pub const fn name(self) -> &'static str {
        match self {
            Bound::Memory => "memory",
            Bound::Compute => "compute",
        }
    }
}

impl StepWork {
    /// Bytes both ways.
    pub fn bytes(&self) -> u64 {
        self.read_bytes.saturating_add(self.written_bytes)
    }

    /// Operations a byte; `None` where nothing is moved.
    pub fn intensity(&self) -> Option<f64> {
        (self.bytes() > 0).then(|| self.flops as f64 / self.bytes() as f64)
    }

    /// The least time of the step on a target; `None` for what goes over the bus, and for no work.
    pub fn roofline(&self, target: &Architecture) -> Option<Roofline> {
        if self.over_bus || (self.bytes() == 0 && self.flops == 0) {
            return None;
        }
        let memory = target.memory_us(self.bytes() as f64);
        let compute = target.compute_us(self.flops as f64, self.product);
        Some(match compute > memory {
            true => Roofline {
                micros: compute,
                bound: Bound::Compute,
            },
            false => Roofline {
                micros: memory,
                bound: Bound::Memory,
            },
        })
    }
}

impl Plan {
    /// Works out what every step moves and computes.
    ///
    /// # Errors
    /// A size that is not bound or does not fit.
    pub fn works(&self, bindings: &Bindings) -> Result<Table<StepId, StepWork>, DimError> {
        self.steps.keys().map(|step| self.work(step, bindings)).collect()
    }

    fn work(&self, step: StepId, bindings: &Bindings) -> Result<StepWork, DimError> {
        let step = &self.steps[step];
        let bytes = |buffer: &BufferId| -> Result<u64, DimError> {
            Ok(u64::try_from(self.buffers[*buffer].ty.bytes().eval(bindings)?).unwrap_or(0))
        };
        let sum = |buffers: &[BufferId]| -> Result<u64, DimError> {
            buffers
                .iter()
                .try_fold(0u64, |sum, buffer| Ok(sum.saturating_add(bytes(buffer)?)))
        };
        let mut work = StepWork {
            read_bytes: 0,
            written_bytes: 0,
            flops: u64::try_from(step.flops.eval(bindings)?).unwrap_or(0),
            product: None,
            over_bus: false,
        };
        match step.at(bindings)? {
            Work::Copy { from, to } => {
                let moved = bytes(from)?.min(bytes(to)?);
                (work.read_bytes, work.written_bytes) = (moved, moved);
                let on_host =
                    |b: BufferId| matches!(self.buffers[b].place, Place::Input | Place::Output | Place::Streamed(_));
                work.over_bus = self.target.is_gpu() && (on_host(*from) || on_host(*to));
            }
            Work::Call { operands, results, .. } => {
                (work.read_bytes, work.written_bytes) = (sum(operands)?, sum(results)?);
                work.product = operands.first().map(|b| self.buffers[*b].ty.dtype);
            }
            Work::Launch { kernel, .. } => {
                let kernel = &self.kernels[*kernel];
                for traffic in kernel.traffic(bindings)?.values() {
                    work.read_bytes = work.read_bytes.saturating_add(traffic.read);
                    work.written_bytes = work.written_bytes.saturating_add(traffic.written);
                }
                work.product = match &kernel.body {
                    Body::Contract(contract) => Some(contract.lhs.element(&kernel.exprs)),
                    Body::Attention(attention) => Some(stored(kernel, attention.query)),
                    Body::Loops(_)
                    | Body::Row(_)
                    | Body::Window(_)
                    | Body::Copy(_)
                    | Body::Transform(_)
                    | Body::Scan(_)
                    | Body::Sort(_)
                    | Body::Recurrent(_) => None,
                };
            }
        }
        Ok(work)
    }
}

/// The type of an element before it was widened.
fn stored(kernel: &Kernel, mut value: ExprId) -> DType {
    while let Expr::Cast(_, inner) = kernel.exprs[value] {
        value = inner;
    }
    kernel.exprs.dtype(value)
}
