//! Emulated kernels against the reference evaluator.

use std::sync::Arc;

use emu::{Arch, CodeObject, Counters, Disassembler, Gpu, LaunchOptions};
use ir::dim::{Bindings, DimError};
use ir::kernel::{Access, AxisId, Body, Kernel, Stmt};
use ir::plan::StepId;
use ir::program::Source;
use ir::{DType, HostTensor};
use serde::Serialize;

use super::EmulateError;
use crate::compare::{self, Difference};

/// How a kernel's results compare with the evaluator's.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub kernel: String,
    /// The step whose operands were used.
    pub step: String,
    /// One for each buffer that the kernel writes.
    pub results: Vec<Checked>,
}

/// One written buffer.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    pub param: String,
    pub dtype: String,
    pub difference: Difference,
}

/// A kernel that was not compared.
#[derive(Clone, Debug, Serialize)]
pub struct Unchecked {
    pub kernel: String,
    pub reason: String,
}

impl Verdict {
    /// Says whether every result is within the tolerance of its type.
    pub fn is_within(&self) -> bool {
        self.results.iter().all(|r| r.difference.is_within())
    }

    /// The largest absolute and relative error over all results.
    pub fn worst(&self) -> (f64, f64) {
        let errors = self
            .results
            .iter()
            .map(|r| (r.difference.max_abs, r.difference.max_rel));
        errors.fold((0.0, 0.0), |(a, r), (abs, rel)| {
            (if abs.is_nan() { abs } else { a.max(abs) }, r.max(rel))
        })
    }
}

/// The tolerance of one kernel's results by their type: relative, and absolute in units of the largest expected magnitude.
///
/// The evaluator computes in f64 and rounds what is stored; a kernel sums in f32, so f32 results differ by a few ulps of the
/// largest term and narrow ones by one of their own. Integers are equal.
pub fn tolerance(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (1e-12, 1e-12),
        DType::F32 => (1e-4, 1e-5),
        DType::F16 => (2e-3, 1e-3),
        DType::BF16 => (1.6e-2, 8e-3),
        DType::F8E4M3FN | DType::F8E4M3FNUZ => (0.13, 2e-2),
        DType::F8E5M2 | DType::F8E5M2FNUZ => (0.26, 4e-2),
        _ => (0.0, 0.0),
    }
}

/// Compares what a kernel wrote with what it should have, each in the order of the written parameters.
pub(super) fn compare(step: StepId, kernel: &Kernel, got: &[HostTensor], want: &[HostTensor]) -> Verdict {
    verdict(step.to_string(), kernel, got, want)
}

fn verdict(step: String, kernel: &Kernel, got: &[HostTensor], want: &[HostTensor]) -> Verdict {
    let written = kernel.params.values().filter(|p| p.access != Access::Read);
    let results = written
        .zip(got.iter().zip(want))
        .map(|(param, (got, want))| {
            let (rtol, atol) = tolerance(param.dtype);
            let largest = want
                .to_f64()
                .into_iter()
                .filter(|v| v.is_finite())
                .fold(0.0f64, |m, v| m.max(v.abs()));
            let difference = compare::compare(got, want, rtol, atol * largest).unwrap_or(Difference {
                max_abs: f64::NAN,
                max_rel: f64::NAN,
                worst: 0,
                got: f64::NAN,
                want: f64::NAN,
                mismatches: want.elements(),
                elements: want.elements(),
            });
            Checked {
                param: param.name.clone(),
                dtype: param.dtype.to_string(),
                difference,
            }
        })
        .collect();
    Verdict {
        kernel: kernel.name.clone(),
        step,
        results,
    }
}

/// Runs one kernel's code object on `buffers` (in the order of its parameters) and compares it with the evaluator.
///
/// # Errors
/// A target the emulator does not know, code that does not load, a fault, or operands that do not fit.
pub fn check_kernel(
    kernel: &Kernel,
    target: &str,
    source: &Source,
    code: &[u8],
    disassembler: &Arc<dyn Disassembler>,
    buffers: &[HostTensor],
    bindings: &Bindings,
    options: &LaunchOptions,
) -> Result<(Verdict, Counters), EmulateError> {
    let step: StepId = ir::Table::<StepId, ()>::new().next_key();
    let arch = Arch::by_name(target).ok_or_else(|| EmulateError::UnknownTarget {
        target: target.to_owned(),
        known: emu::arch::ARCHES.iter().map(|arch| arch.name).collect(),
    })?;
    let bytes: u64 = buffers.iter().map(|b| b.bytes.len() as u64).sum();
    let gpu = Gpu::new(arch, bytes + (64 << 20));
    let failed = |error| EmulateError::Load {
        kernel: kernel.name.clone(),
        error,
    };
    let object = CodeObject::load_for(code, arch).map_err(failed)?;
    let loaded = gpu
        .load(object, disassembler.clone())
        .and_then(|m| m.kernel(&source.entry))
        .map_err(failed)?;
    let mut kernargs = Vec::new();
    let mut addresses = Vec::new();
    for (param, buffer) in kernel.params.values().zip(buffers) {
        let memory = |error| EmulateError::Memory {
            buffer: param.name.clone(),
            error,
        };
        let address = gpu.memory().alloc(buffer.bytes.len() as u64).map_err(memory)?;
        if param.access != Access::Write {
            gpu.memory().write(address, &buffer.bytes).map_err(memory)?;
        }
        addresses.push(address);
    }
    for word in kernel.launch_arguments(addresses.iter().copied(), bindings) {
        kernargs.extend(word?.to_le_bytes());
    }
    let mut want = buffers.to_vec();
    ir::kernel::eval::evaluate(kernel, &mut want, bindings).map_err(|error| EmulateError::Evaluate { step, error })?;
    let size = kernel.launch_size(bindings)?;
    let counters = if size.grid.contains(&0) || size.block == 0 {
        Counters::default()
    } else {
        gpu.launch(&loaded, size.grid, [size.block, 1, 1], &kernargs, 0, options)
            .map_err(|error| EmulateError::Launch { step, error })?
    };
    let (mut got, mut expected) = (Vec::new(), Vec::new());
    for ((param, address), want) in kernel.params.values().zip(&addresses).zip(want) {
        if param.access == Access::Read {
            continue;
        }
        let mut bytes = vec![0u8; want.bytes.len()];
        gpu.memory()
            .read(*address, &mut bytes)
            .map_err(|error| EmulateError::Memory {
                buffer: param.name.clone(),
                error,
            })?;
        let tensor =
            HostTensor::new(want.dtype, want.shape.clone(), ir::data::Storage::new(bytes)).map_err(|error| {
                EmulateError::Bytes {
                    buffer: param.name.clone(),
                    error,
                }
            })?;
        got.push(tensor);
        expected.push(want);
    }
    Ok((verdict(step.to_string(), kernel, &got, &expected), counters))
}

/// How many points the evaluator visits, about.
pub(super) fn points(kernel: &Kernel, bindings: &Bindings) -> Result<u64, DimError> {
    let extent = |axes: &[AxisId]| {
        axes.iter().try_fold(1u64, |product, axis| {
            let extent = kernel.axes[*axis].extent.eval(bindings)?;
            Ok::<u64, DimError>(product.saturating_mul(u64::try_from(extent).unwrap_or(0)))
        })
    };
    let inner = |stmts: &[Stmt]| {
        stmts.iter().try_fold(0u64, |sum, stmt| {
            let points = match stmt {
                Stmt::Let { .. } => 1,
                Stmt::Fold { axes, .. } | Stmt::Store { axes, .. } | Stmt::Update { axes, .. } => extent(axes)?,
            };
            Ok::<u64, DimError>(sum.saturating_add(points))
        })
    };
    Ok(match &kernel.body {
        Body::Loops(l) => extent(&l.parallel)?.saturating_mul(inner(&l.stmts)?),
        Body::Contract(c) => {
            let outer = extent(&c.batch)?
                .saturating_mul(extent(&c.m)?)
                .saturating_mul(extent(&c.n)?);
            outer.saturating_mul(extent(&c.k)?.saturating_add(inner(&c.epilogue)?))
        }
        Body::Attention(a) => {
            let pairs = extent(&a.batch)?
                .saturating_mul(extent(&[a.q])?)
                .saturating_mul(extent(&[a.k])?);
            pairs.saturating_mul(extent(&[a.d])?.saturating_add(extent(&[a.dv])?))
        }
        Body::Scan(s) => extent(&s.parallel)?.saturating_mul(extent(&[s.axis])?),
        // Each candidate is compared a number of times that grows with the logarithm of how many there are.
        Body::Sort(s) => extent(&s.parallel)?
            .saturating_mul(extent(&[s.axis])?)
            .saturating_mul(16),
    })
}
