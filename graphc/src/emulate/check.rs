//! Emulated kernels against the reference evaluator.

use std::sync::Arc;

use emu::{Arch, CodeObject, Counters, Disassembler, Gpu, LaunchOptions};
use ir::dim::{Bindings, DimError};
use ir::entity::Entity;
use ir::kernel::eval::{Products, evaluate_for};
use ir::kernel::{
    Access, AttentionBody, AxisId, Body, CopyBody, Expr, Kernel, Mapping, Param, ParamId, RowBody, Stmt, WindowBody,
};
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
    /// The largest finite magnitude that was expected.
    pub largest: f64,
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

/// The tolerance of one kernel's results by their type: relative, and absolute in units of the largest expected
/// magnitude.
///
/// The evaluator computes in f64 and rounds what is stored; a kernel sums in f32, so f32 results differ by a few ulps
/// of the largest term and narrow ones by one of their own. Integers are equal.
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

/// The types that numbers are rounded to on their way to the results: attention's weights for a matrix instruction, and
/// what is made an 8-bit float and read in a wider type. A number near a tie is one of two neighbours of that type.
fn rounded_to(kernel: &Kernel) -> impl Iterator<Item = DType> + '_ {
    let weights = match (&kernel.body, &kernel.mapping) {
        (Body::Attention(_), Mapping::FlashMatrix(tiling)) => Some(tiling.instruction.input),
        _ => None,
    };
    let casts = kernel.exprs.iter().filter_map(|(_, e)| match e {
        Expr::Cast(to, _) if to.is_float() && to.bits() == 8 => Some(*to),
        _ => None,
    });
    weights.into_iter().chain(casts)
}

/// Compares what a kernel wrote with what it should have, each in the order of the written parameters.
pub(super) fn compare(step: StepId, kernel: &Kernel, got: &[HostTensor], want: &[HostTensor]) -> Verdict {
    verdict(step.to_string(), kernel, got, want)
}

fn verdict(step: String, kernel: &Kernel, got: &[HostTensor], want: &[HostTensor]) -> Verdict {
    let written = kernel.params.values().filter(|p| p.access.leaves());
    let results = written
        .zip(got.iter().zip(want))
        .map(|(param, (got, want))| {
            let got = &comparable(kernel, got);
            let want = &comparable(kernel, want);
            let own = tolerance(param.dtype);
            let (rtol, atol) = match param.dtype.is_float() {
                true => rounded_to(kernel)
                    .map(tolerance)
                    .fold(own, |(r, a), (rtol, atol)| (r.max(rtol), a.max(atol))),
                false => own,
            };
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
                largest,
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

/// A result as it is compared. A part of attention stores its outputs, the score that its weights are relative to, and
/// their total. That score is about the largest, and kernels differ in which: what they agree on is the logarithm of
/// the sum of all `e^score`, which stands here in place of the total, and of the score.
fn comparable(kernel: &Kernel, result: &HostTensor) -> HostTensor {
    let Body::Attention(AttentionBody {
        row_weights: Some(_), ..
    }) = &kernel.body
    else {
        return result.clone();
    };
    let mut numbers = result.to_f64();
    let plane = numbers.len() / 3;
    let (relative, totals) = numbers[plane..].split_at_mut(plane);
    for (relative, total) in relative.iter_mut().zip(totals) {
        if *relative != f64::NEG_INFINITY {
            *relative += total.ln();
        }
        *total = *relative;
    }
    HostTensor::from_f64(DType::F64, result.shape.clone(), &numbers).unwrap_or_else(|_| result.clone())
}

/// One kernel with its code, and what it is checked on.
pub struct Subject<'a> {
    pub kernel: &'a Kernel,
    pub target: &'a str,
    pub source: &'a Source,
    pub code: &'a [u8],
    /// The buffers, in the order of the kernel's parameters.
    pub buffers: &'a [HostTensor],
    pub bindings: &'a Bindings,
}

/// What a check of one kernel saw.
#[derive(Clone, Debug)]
pub struct CheckedKernel {
    pub verdict: Verdict,
    pub counters: Counters,
    /// Workgroups that ran, and those of the whole launch.
    pub workgroups: (u64, u64),
    /// What each written parameter holds and should hold; of a sample, the elements that were written.
    pub results: Vec<(HostTensor, HostTensor)>,
}

/// Runs one kernel's code object and compares what it wrote with the evaluator.
///
/// With `sample`, at most about that many workgroups run: the corners of the grid, where tails are, and others spread
/// over it. What they write is compared, so a large kernel is checked with its own code at its own sizes. A kernel that
/// adds to what is there runs whole.
///
/// # Errors
/// A target the emulator does not know, code that does not load, a fault, or operands that do not fit.
pub fn check_kernel(
    subject: &Subject<'_>,
    disassembler: &Arc<dyn Disassembler>,
    options: &LaunchOptions,
    sample: Option<u64>,
) -> Result<CheckedKernel, EmulateError> {
    let Subject {
        kernel,
        target,
        source,
        code,
        buffers,
        bindings,
    } = *subject;
    let step: StepId = ir::Table::<StepId, ()>::new().next_key();
    let arch = Arch::by_name(target).ok_or_else(|| EmulateError::UnknownTarget {
        target: target.to_owned(),
        known: emu::arch::ARCHES.iter().map(|arch| arch.name).collect(),
    })?;
    let bytes: u64 = buffers.iter().map(|b| b.bytes.len() as u64 + 4096).sum();
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
    let size = kernel.launch_size(bindings)?;
    let total = size.grid.iter().map(|n| u64::from(*n)).product::<u64>() * u64::from(size.block.min(1));
    let updates = (kernel.params.values()).any(|p| matches!(p.access, Access::ReadWrite | Access::Tickets));
    let chosen = sample.filter(|n| !updates && total > *n).map(|n| spread(size.grid, n));
    // Before a sampled launch results hold a mark: an element that keeps it was not written.
    let mut buffers = buffers.to_vec();
    for (param, buffer) in kernel.params.values().zip(&mut buffers) {
        if param.access == Access::Tickets {
            let zeros = ir::data::Storage::new(vec![0; buffer.bytes.len()]);
            *buffer = tensor(&param.name, buffer, zeros)?;
        }
    }
    if chosen.is_some() {
        for (param, buffer) in kernel.params.values().zip(&mut buffers) {
            if param.access == Access::Write {
                let marked = ir::data::Storage::new(vec![MARK; buffer.bytes.len()]);
                *buffer = tensor(&param.name, buffer, marked)?;
            }
        }
    }
    let mut kernargs = Vec::new();
    let mut addresses = Vec::new();
    for (param, buffer) in kernel.params.values().zip(&buffers) {
        let memory = |error| EmulateError::Memory {
            buffer: param.name.clone(),
            error,
        };
        let mut bytes = buffer.bytes.len() as u64;
        if by_words(param) {
            bytes = bytes.next_multiple_of(4);
        }
        let address = gpu.memory().alloc(bytes).map_err(memory)?;
        if by_words(param) {
            gpu.memory().write(address, &vec![0; bytes as usize]).map_err(memory)?;
        }
        if param.access.reads() || param.access == Access::Write && chosen.is_some() {
            gpu.memory().write(address, &buffer.bytes).map_err(memory)?;
        }
        addresses.push(address);
    }
    for word in kernel.launch_arguments(addresses.iter().copied(), bindings) {
        kernargs.extend(word?.to_le_bytes());
    }
    let ran = chosen.as_ref().map_or(total, |c| c.len() as u64);
    let options = LaunchOptions {
        workgroups: chosen.clone().or_else(|| options.workgroups.clone()),
        ..options.clone()
    };
    let counters = if total == 0 {
        Counters::default()
    } else {
        gpu.launch(&loaded, size.grid, [size.block, 1, 1], &kernargs, 0, &options)
            .map_err(|error| EmulateError::Launch { step, error })?
    };
    let mut got: Vec<Option<HostTensor>> = Vec::new();
    for ((param, address), buffer) in kernel.params.values().zip(&addresses).zip(&buffers) {
        if !param.access.leaves() {
            got.push(None);
            continue;
        }
        let mut bytes = vec![0u8; buffer.bytes.len()];
        let read = gpu.memory().read(*address, &mut bytes);
        read.map_err(|error| EmulateError::Memory {
            buffer: param.name.clone(),
            error,
        })?;
        got.push(Some(tensor(&param.name, buffer, ir::data::Storage::new(bytes))?));
    }
    let mut want = buffers;
    let evaluate = |error| EmulateError::Evaluate { step, error };
    if chosen.is_none() {
        evaluate_for(kernel, &mut want, bindings, None, products(arch)).map_err(evaluate)?;
    } else {
        let written: Vec<Vec<bool>> = got.iter().map(|t| t.as_ref().map_or(Vec::new(), written)).collect();
        enough_written(kernel, bindings, &written, ran, total)?;
        let wanted = |param: ParamId, at: usize| written[param.index()].get(at).copied().unwrap_or(false);
        evaluate_for(kernel, &mut want, bindings, Some(&wanted), products(arch)).map_err(evaluate)?;
        for (i, got) in got.iter_mut().enumerate() {
            let Some(got) = got else { continue };
            let name = &kernel.params[ParamId::new(i)].name;
            *got = only(name, got, &written[i])?;
            want[i] = only(name, &want[i], &written[i])?;
        }
    }
    let (got, want): (Vec<HostTensor>, Vec<HostTensor>) =
        got.into_iter().zip(want).filter_map(|(g, w)| Some((g?, w))).unzip();
    Ok(CheckedKernel {
        verdict: verdict(step.to_string(), kernel, &got, &want),
        counters,
        workgroups: (ran, total),
        results: got.into_iter().zip(want).collect(),
    })
}

/// How an emulated GPU's matrix instructions multiply.
pub(super) fn products(arch: &Arch) -> Products {
    match arch.mfma_flushes_denormals {
        true => Products::Flushed,
        false => Products::Exact,
    }
}

/// Says whether a kernel writes elements of a parameter by swapping the whole words that they are in: atomics on narrow
/// types, and types of four bits. Such a buffer is whole words, whose other bytes are read and written back as they
/// are.
pub(super) fn by_words(param: &Param) -> bool {
    match param.access {
        Access::Read | Access::Scratch | Access::Tickets => false,
        Access::Write => param.dtype.bits() < 8,
        Access::ReadWrite => param.dtype.bits() < 32,
    }
}

/// What results hold before a sampled launch.
const MARK: u8 = 0x7b;

/// The elements that no longer hold the mark.
fn written(tensor: &HostTensor) -> Vec<bool> {
    let bytes = &tensor.bytes;
    let each = bytes.len() / tensor.elements().max(1);
    if each == 0 {
        // Types of four bits share bytes.
        return (0..tensor.elements())
            .map(|i| bytes.get(i / 2).is_some_and(|b| *b != MARK))
            .collect();
    }
    bytes.chunks_exact(each).map(|e| e.iter().any(|b| *b != MARK)).collect()
}

/// The elements of a tensor that are set in `mask`, as one row.
fn only(name: &str, t: &HostTensor, mask: &[bool]) -> Result<HostTensor, EmulateError> {
    let each = t.bytes.len() / t.elements().max(1);
    if each == 0 {
        return Ok(t.clone());
    }
    let kept = t.bytes.chunks_exact(each).zip(mask).filter(|(_, on)| **on);
    let bytes: Vec<u8> = kept.flat_map(|(element, _)| element.iter().copied()).collect();
    HostTensor::new(t.dtype, vec![bytes.len() / each], ir::data::Storage::new(bytes)).map_err(|error| {
        EmulateError::Bytes {
            buffer: name.to_owned(),
            error,
        }
    })
}

/// A tensor like another, of other bytes.
fn tensor(name: &str, like: &HostTensor, bytes: ir::data::Storage) -> Result<HostTensor, EmulateError> {
    HostTensor::new(like.dtype, like.shape.clone(), bytes).map_err(|error| EmulateError::Bytes {
        buffer: name.to_owned(),
        error,
    })
}

/// The numbers of about `n` workgroups of a grid: its corners first, then others evenly.
fn spread(grid: [u32; 3], n: u64) -> Vec<u64> {
    let [x, y, z] = grid.map(u64::from);
    let total = x * y * z;
    let mut chosen: Vec<u64> = Vec::new();
    for k in [0, z - 1] {
        for j in [0, y - 1] {
            for i in [0, x - 1] {
                chosen.push((k * y + j) * x + i);
            }
        }
    }
    chosen.sort_unstable();
    chosen.dedup();
    chosen.truncate(n.max(1) as usize);
    let rest = n.saturating_sub(chosen.len() as u64);
    chosen.extend((1..=rest).map(|i| (u128::from(i) * u128::from(total - 1) / u128::from(rest + 1)) as u64));
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

/// Checks that a sample of workgroups has stored about its share of what the whole launch stores.
///
/// What was not written is not compared, so a kernel that stores too little would pass. The workgroups at the corners
/// are among the sample, the first of which is never a tail: it alone stores at least the average. (A stored element
/// may happen to have the mark's bits, so a quarter may be missing.)
fn enough_written(
    kernel: &Kernel,
    bindings: &Bindings,
    written: &[Vec<bool>],
    ran: u64,
    total: u64,
) -> Result<(), EmulateError> {
    for (param, stored) in stores(kernel, bindings)? {
        let got = written[param.index()].iter().filter(|w| **w).count() as u64;
        let least = stored / total.max(1) * 3 / 4;
        if got < least.max(u64::from(stored > 0)) {
            return Err(EmulateError::Unwritten {
                kernel: kernel.name.clone(),
                param: kernel.params[param].name.clone(),
                got,
                least: least.max(1),
                ran,
                total,
            });
        }
    }
    Ok(())
}

/// The parameters that a kernel stores to, and how many elements of each.
fn stores(kernel: &Kernel, bindings: &Bindings) -> Result<Vec<(ParamId, u64)>, DimError> {
    let (axes, stmts): (Vec<AxisId>, &[Stmt]) = match &kernel.body {
        Body::Loops(l)
        | Body::Row(RowBody { loops: l, .. })
        | Body::Window(WindowBody { loops: l, .. })
        | Body::Copy(CopyBody { loops: l, .. }) => (l.parallel.clone(), &l.stmts),
        Body::Transform(t) => ([&t.parallel[..], &t.to].concat(), &t.stmts),
        Body::Contract(c) => (c.cells(), &c.epilogue),
        Body::Attention(a) => ([&a.batch[..], &[a.q, a.dv]].concat(), &a.epilogue),
        Body::Scan(s) => ([&s.parallel[..], &[s.axis]].concat(), &s.stores),
        Body::Sort(s) => ([&s.parallel[..], &[s.rank]].concat(), &s.stores),
        Body::Recurrent(r) => (r.cells().to_vec(), &r.stores),
    };
    let mut found = Vec::new();
    for stmt in stmts {
        if let Stmt::Store { param, axes: row, .. } = stmt {
            let each = axes.iter().chain(row).try_fold(1u64, |product, axis| {
                let extent = kernel.axes[*axis].extent.eval(bindings)?;
                Ok::<u64, DimError>(product.saturating_mul(u64::try_from(extent).unwrap_or(0)))
            })?;
            // A transform's squares may reach over the edge.
            let elements = kernel.params[*param].elements.eval(bindings)?;
            found.push((*param, each.min(u64::try_from(elements).unwrap_or(0))));
        }
    }
    Ok(found)
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
        Body::Loops(l)
        | Body::Row(RowBody { loops: l, .. })
        | Body::Window(WindowBody { loops: l, .. })
        | Body::Copy(CopyBody { loops: l, .. }) => extent(&l.parallel)?.saturating_mul(inner(&l.stmts)?),
        // Each element of the square is a sum along both sides.
        Body::Transform(t) => extent(&t.parallel)?.saturating_mul(extent(&t.from)?.saturating_mul(8)),
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
        Body::Recurrent(r) => extent(&[r.time, r.batch, r.gates])?.saturating_mul(extent(&[r.inner])?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_hold_the_corners_of_a_grid_and_no_workgroup_twice() {
        assert_eq!(spread([100, 1, 3], 6), [0, 99, 199, 200, 299]);
        assert_eq!(spread([5, 1, 1], 3), [0, 2, 4]);
        assert_eq!(spread([7, 1, 1], 1), [0]);
        let many = spread([1 << 31, 1, 65_535], 16);
        assert_eq!((many.len(), many[0]), (16, 0));
        assert_eq!(many[15], (1u64 << 31) * 65_535 - 1);
    }

    /// So many times 2^-15, which is a subnormal number of f16: in tiles, and a row at a time.
    #[test]
    fn subnormal_numbers_are_zero_to_the_matrix_and_dot_instructions_of_gfx90a() {
        for (rows, depth, target, want) in [
            (64, 64, "gfx90a", 0.0),
            (64, 64, "gfx942", 2f64.powi(-9)),
            (1, 1024, "gfx90a", 0.0),
            (1, 1024, "gfx942", 2f64.powi(-5)),
        ] {
            let text = format!(
                "graph @g stage=import {{\n x = input \"x\" : f16[{rows}, {depth}]\n w = input \"w\" : f16[1000, {depth}]\n \
                 t = transpose w {{perm=[1, 0]}}\n y = contract x, t\n return y as \"y\"\n}}"
            );
            let graph = ir::graph::parse::parse(&text).expect("parses");
            let mut options =
                crate::driver::BuildOptions::new(vec![target.parse().expect("known")], passes::OptLevel::O2);
            options.optimize.libraries = false;
            let built = crate::driver::build(&graph, &options).expect("builds");
            let kernel = &built.program.variants[0].plan.kernels[ir::plan::KernelId::new(0)];
            let is_meant = match rows {
                64 => matches!(kernel.mapping, Mapping::Matrix(_)),
                _ => matches!(kernel.mapping, Mapping::Gemv(_)),
            };
            assert!(is_meant, "{target}: {}", kernel.mapping);
            let full = |rows: usize, columns: usize, value: f64| {
                HostTensor::from_f64(DType::F16, [rows, columns], &vec![value; rows * columns]).expect("as many")
            };
            let mut buffers = vec![
                full(rows, depth, 1.0),
                full(1000, depth, 2f64.powi(-15)),
                full(rows, 1000, 0.0),
            ];
            let products = products(Arch::by_name(target).expect("emulated"));
            evaluate_for(kernel, &mut buffers, &Bindings::new(), None, products).expect("evaluates");
            assert!(
                buffers[2].to_f64().iter().all(|v| *v == want),
                "{target}, {rows} rows by {}",
                kernel.mapping
            );
        }
    }

    #[test]
    fn a_sample_that_stored_too_little_is_an_error() {
        let text =
            "graph @g stage=import {\n x = input \"x\" : f32[8192]\n y = cast x : f16[8192]\n return y as \"y\"\n}";
        let graph = ir::graph::parse::parse(text).expect("parses");
        let options = crate::driver::BuildOptions::new(vec!["gfx90a".parse().expect("known")], passes::OptLevel::O2);
        let built = crate::driver::build(&graph, &options).expect("builds");
        let kernel = &built.program.variants[0].plan.kernels[ir::plan::KernelId::new(0)];
        let wrote = |n: usize| vec![Vec::new(), (0..8192).map(|i| i < n).collect::<Vec<bool>>()];
        let bindings = Bindings::new();
        // 4 of 16 workgroups: the share of one is 512.
        let checked = |n: usize| enough_written(kernel, &bindings, &wrote(n), 4, 16);
        assert!(checked(2048).is_ok() && checked(384).is_ok());
        let error = checked(383).expect_err("a tail is missing").to_string();
        assert!(
            error.contains("4 of 16 workgroups stored 383 elements of out"),
            "{error}"
        );
        assert!(checked(0).is_err());
    }
}
