//! After the first run at a size, a run allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use graphc_runtime::cpu::CpuDevice;
use graphc_runtime::{Executable, LoadOptions};
use indexmap::IndexMap;
use ir::dim::{Symbol, SymbolInfo, Symbols};
use ir::entity::{Entity, Table};
use ir::graph::Constant;
use ir::kernel::{Body, ContractBody, Operand};
use ir::op::{BinaryOp, ReduceOp, UnaryOp};
use ir::plan::{Buffer, Lane, LaneId, Overlap, Place, Plan, Port, Step, StepId, Work};
use ir::program::Variant;
use ir::schedule::LaneKind;
use ir::{DType, Dim, HostTensor, Program, Target, TensorType};

#[path = "../src/cpu/tests/build.rs"]
#[expect(dead_code, reason = "shared with the unit tests")]
mod build;
use build::{Build, c, sym};

struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.realloc(ptr, layout, size) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const N: i64 = 40;

/// A product with a GELU on its tiles, then a softmax of the row plus one (not the plain shape, so that it is loops).
fn program() -> Program {
    let s = || sym("s");
    let mut b = Build::new("dense");
    let (x, w) = (b.read("x", DType::F32, s() * N), b.read("w", DType::F32, N * N));
    let out = b.write("out", DType::F32, s() * N);
    let (i, j, k) = (b.axis("i", s()), b.axis("j", N), b.axis("k", N));
    let l = b.index(0, &[(i, c(N)), (k, c(1))]);
    let r = b.index(0, &[(k, c(N)), (j, c(1))]);
    let (lhs, rhs) = (b.load(x, l), b.load(w, r));
    let acc = b.var(DType::F32);
    let e = b.value(acc);
    let e = b.un(UnaryOp::Gelu, e);
    let to = b.index(0, &[(i, c(N)), (j, c(1))]);
    let store = b.store(out, to, e, &[]);
    let (lhs, rhs) = (Operand::new(&b.kernel.exprs, lhs), Operand::new(&b.kernel.exprs, rhs));
    b.kernel.body = Body::Contract(ContractBody {
        batch: vec![],
        m: vec![i],
        n: vec![j],
        k: vec![k],
        lhs,
        rhs,
        acc,
        pair: None,
        statistic: None,
        epilogue: vec![store],
        conv: None,
    });
    let dense = b.kernel;
    let mut b = Build::new("softmax");
    let x = b.read("x", DType::F32, s() * N);
    let out = b.write("out", DType::F32, s() * N);
    let (i, r) = (b.axis("i", s()), b.axis("r", N));
    let at = b.index(0, &[(i, c(N)), (r, c(1))]);
    let v = b.load(x, at);
    let one = b.num(1.0);
    let v = b.add(v, one);
    let (max, max_v) = b.fold(ReduceOp::Max, &[r], v);
    let shifted = b.bin(BinaryOp::Sub, v, max_v);
    let exp = b.un(UnaryOp::Exp, shifted);
    let (sum, sum_v) = b.fold(ReduceOp::Sum, &[r], exp);
    let weight = b.bin(BinaryOp::Div, exp, sum_v);
    let store = b.store(out, at, weight, &[r]);
    let softmax = b.loops(&[i], vec![max, sum, store]);
    let mut constants = Table::new();
    let values: Vec<f32> = (0..N * N).map(|v| ((v % 17) as f32 - 8.0) * 0.03).collect();
    let id = constants.push(Constant {
        name: None,
        tensor: HostTensor::from_f32([N as usize, N as usize], &values).unwrap(),
    });
    let rows = || TensorType::new(DType::F32, vec![s(), Dim::Const(N)]);
    let buffer = |name: &str, ty, place| Buffer {
        name: name.into(),
        ty,
        place,
    };
    let mut buffers = Table::new();
    let x = buffers.push(buffer("x", rows(), Place::Input));
    let w = buffers.push(buffer(
        "w",
        TensorType::new(DType::F32, vec![Dim::Const(N), Dim::Const(N)]),
        Place::Constant(id),
    ));
    let arena = Place::Arena {
        first: StepId::new(0),
        last: StepId::new(1),
        in_place_of: None,
    };
    let h = buffers.push(buffer("h", rows(), arena));
    let y = buffers.push(buffer("y", rows(), Place::Output));
    let mut kernels = Table::new();
    let (k0, k1) = (kernels.push(dense), kernels.push(softmax));
    let step = |kernel, args| Step::new(LaneId::new(0), vec![], Work::launch(kernel, args), Dim::Const(0));
    let port = |name: &str, buffer| Port {
        name: name.into(),
        ty: rows(),
        buffer,
    };
    let plan = Plan {
        target: Target::cpu(),
        symbols: Symbols::from_iter([(Symbol::new("s"), SymbolInfo::default())]),
        kernels,
        buffers,
        steps: [step(k0, vec![x, w, h]), step(k1, vec![h, y])].into_iter().collect(),
        lanes: Table::from_iter([Lane {
            kind: LaneKind::Compute,
        }]),
        inputs: vec![port("x", x)],
        outputs: vec![port("y", y)],
        flops: Dim::Const(0),
        checks: Vec::new(),
        streaming: None,
        share: None,
        states: Vec::new(),
        requirements: Vec::new(),
        overlap: Overlap::default(),
    };
    Program {
        name: "allocations".into(),
        variants: vec![Variant {
            sources: Table::new(),
            code: Table::new(),
            plan,
        }],
        constants,
    }
}

#[test]
fn a_run_allocates_nothing_after_the_first_at_its_size() {
    let options = LoadOptions {
        threads: 2,
        ..LoadOptions::default()
    };
    let exe = Executable::load_on(&CpuDevice::new(codegen_cpu::lowering), Arc::new(program()), 0, &options).unwrap();
    let runs: Vec<_> = [3usize, 200]
        .into_iter()
        .map(|s| {
            let values: Vec<f32> = (0..s * N as usize).map(|v| (v % 13) as f32 * 0.1).collect();
            let x = HostTensor::from_f32([s, N as usize], &values).unwrap();
            let inputs = IndexMap::from([("x".to_owned(), x)]);
            let bindings = exe.bind(&inputs).unwrap();
            let outputs = exe.allocate(&bindings).unwrap();
            (inputs, bindings, outputs)
        })
        .collect();
    let mut runs = runs;
    for (inputs, bindings, outputs) in &mut runs {
        exe.run_into(bindings, inputs, outputs, None).unwrap();
    }
    // The counter is the process's, and the harness's own thread allocates now and then. A run that allocated would do
    // so in every window of runs; the harness leaves some alone.
    let windows = (0..8).map(|_| {
        let before = COUNT.load(Ordering::Relaxed);
        for _ in 0..20 {
            for (inputs, bindings, outputs) in &mut runs {
                exe.run_into(bindings, inputs, outputs, None).unwrap();
            }
        }
        COUNT.load(Ordering::Relaxed) - before
    });
    assert_eq!(windows.min(), Some(0));
    for (_, _, outputs) in &runs {
        let sum: f32 = outputs[0]
            .as_ref()
            .chunks_exact(4)
            .take(N as usize)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .sum();
        assert!((sum - 1.0).abs() < 1e-4, "{sum}");
    }
}
