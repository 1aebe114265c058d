//! Kernels by hand, run prepared and by the interpreter: both must say the same.

mod build;
mod contractions;
mod copies;
mod folding;
mod forged;
mod loops;
mod places;
mod plans;
mod quantised;
mod recurrent;
mod rows;
mod segments;
mod strided;
mod transposed;

use indexmap::IndexMap;
use ir::dim::{Bindings, Symbol};
use ir::entity::Entity;
use ir::graph::ConstId;
use ir::host::Setting;
use ir::kernel::{Access, Kernel, ParamId};
use ir::{DType, HostTensor, Storage};

use super::CpuDevice;
use super::env::RunMemory;
use super::exec::{KernelExec, Packs, Prepare};
use super::kernels::workspace::AlignedBuf;
use super::kernels::{Isa, Pool};
use crate::error::RuntimeError;
use build::Random;

/// Sizes by name.
pub(super) fn sizes(list: &[(&str, i64)]) -> Bindings {
    list.iter().map(|(n, v)| (Symbol::new(n), *v)).collect()
}

/// The host's processor.
pub(super) fn cpu() -> CpuDevice {
    CpuDevice::new(codegen_cpu::lowering)
}

/// Lowers and prepares a kernel.
pub(super) fn prepare(
    kernel: &Kernel,
    bindings: &Bindings,
    threads: usize,
    constants: &[Option<(ConstId, &HostTensor)>],
    packs: &Packs,
) -> Result<KernelExec, RuntimeError> {
    let setting = Setting {
        bindings,
        constants,
        aliased: kernel.params.values().any(|p| p.access == Access::ReadWrite),
    };
    let lowered = codegen_cpu::lowering().lower(kernel, &setting)?;
    let cx = Prepare {
        name: &kernel.name,
        threads,
        pool: None,
        isa: Isa::detect(),
        constants,
        packs,
        direct_convolutions: false,
    };
    KernelExec::new(lowered, &cx)
}

/// Buffers for a kernel: random where it reads, a pattern where it writes.
pub(super) fn buffers(kernel: &Kernel, bindings: &Bindings, seed: u64) -> Vec<HostTensor> {
    let mut random = Random(seed);
    kernel
        .params
        .values()
        .map(|p| {
            let n = p.elements.eval(bindings).unwrap() as usize;
            match p.dtype {
                d if d.is_float() => {
                    let values: Vec<f64> = (0..n).map(|_| random.float()).collect();
                    HostTensor::from_f64(d, [n], &values).unwrap()
                }
                d => {
                    let values: Vec<i64> = (0..n).map(|_| (random.next() % 7) as i64 - 1).collect();
                    HostTensor::from_i64(d, [n], &values).unwrap()
                }
            }
        })
        .collect()
}

/// How a kernel's pieces are named when it is prepared with the given parameters as constants.
pub(super) fn check(kernel: &Kernel, bindings: &Bindings, constants: &[usize], tolerance: f64) -> Vec<&'static str> {
    check_with(kernel, bindings, buffers(kernel, bindings, 7), constants, tolerance)
}

/// Runs a kernel both ways and compares every buffer that it writes.
pub(super) fn check_with(
    kernel: &Kernel,
    bindings: &Bindings,
    given: Vec<HostTensor>,
    constants: &[usize],
    tolerance: f64,
) -> Vec<&'static str> {
    let mut want = given.clone();
    ir::kernel::eval::evaluate(kernel, &mut want, bindings).unwrap();
    let mut names = Vec::new();
    for threads in [1, 3] {
        let (runs, pieces) = run(kernel, bindings, &given, constants, threads);
        for got in runs {
            for (i, got) in got.iter().enumerate() {
                let param = &kernel.params[ParamId::new(i)];
                if param.access != Access::Read {
                    compare(&kernel.name, &param.name, got, &want[i], tolerance);
                }
            }
        }
        names = pieces;
    }
    names
}

/// Returns a kernel's buffers after each of two runs from the same, and what its pieces are called.
pub(super) fn run(
    kernel: &Kernel,
    bindings: &Bindings,
    given: &[HostTensor],
    constants: &[usize],
    threads: usize,
) -> (Vec<Vec<HostTensor>>, Vec<&'static str>) {
    let packs = Packs::default();
    let constants: Vec<_> = given
        .iter()
        .enumerate()
        .map(|(i, t)| constants.contains(&i).then(|| (ConstId::new(i), t)))
        .collect();
    let exec = prepare(kernel, bindings, threads, &constants, &packs).unwrap();
    let mut memory = RunMemory::new(std::sync::Arc::new(Pool::new(threads)));
    let (scratch, temporary) = exec.memory();
    memory.reserve(scratch, temporary).expect("there is memory");
    let bufs: Vec<AlignedBuf> = given.iter().map(|t| AlignedBuf::new(t.bytes.len())).collect();
    let mut runs = Vec::new();
    for _ in 0..2 {
        // A scatter adds to what is there: start each time from the same.
        for (buf, t) in bufs.iter().zip(given) {
            // SAFETY: made with this length.
            unsafe { std::ptr::copy_nonoverlapping(t.bytes.as_ptr(), buf.as_ptr(), t.bytes.len()) };
        }
        let mut params: Vec<*mut u8> = bufs.iter().map(AlignedBuf::as_ptr).collect();
        params.resize(bufs.len() + exec.temporaries(), std::ptr::null_mut());
        // SAFETY: the buffers are the parameters' sizes, and the memory what the kernel asked for.
        unsafe { exec.run(&mut memory, &mut params) };
        let after = bufs.iter().zip(given).map(|(buf, t)| {
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(buf.as_ptr(), buf.len()) }.to_vec();
            HostTensor::new(t.dtype, t.shape.clone(), Storage::new(bytes)).unwrap()
        });
        runs.push(after.collect());
    }
    (runs, exec.names())
}

/// Compares element by element: NaN with NaN, infinities exactly, the rest within `tolerance` of the magnitude.
pub(super) fn compare(kernel: &str, name: &str, got: &HostTensor, want: &HostTensor, tolerance: f64) {
    if !want.dtype.is_float() {
        assert_eq!(got.to_i64(), want.to_i64(), "{kernel}: {name}");
        return;
    }
    let tolerance = match want.dtype {
        DType::F16 => tolerance.max(2e-3),
        DType::BF16 => tolerance.max(1.6e-2),
        d if d.bits() == 8 => tolerance.max(0.13),
        _ => tolerance,
    };
    for (i, (g, w)) in got.to_f64().into_iter().zip(want.to_f64()).enumerate() {
        let same = (g.is_nan() && w.is_nan()) || g == w || (g - w).abs() <= tolerance * (1.0 + w.abs());
        assert!(same, "{kernel}: {name}[{i}] is {g}, should be {w}");
    }
}

/// Named tensors.
pub(super) fn named(list: Vec<(&str, HostTensor)>) -> IndexMap<String, HostTensor> {
    list.into_iter().map(|(n, t)| (n.to_owned(), t)).collect()
}
