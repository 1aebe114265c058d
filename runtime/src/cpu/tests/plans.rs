//! Whole plans through [`Executable`]: symbols, sizes, inputs that do not fit, many threads.

use std::sync::Arc;

use ir::dim::{Symbol, SymbolInfo, Symbols};
use ir::entity::{Entity, Table};
use ir::graph::Constant;
use ir::kernel::{Access, Body, ContractBody, Kernel, Operand};
use ir::op::{BinaryOp, UnaryOp};
use ir::plan::{Buffer, BufferId, Lane, LaneId, Overlap, Place, Plan, Port, Step, StepId, Work};
use ir::program::Variant;
use ir::schedule::LaneKind;
use ir::{DType, Dim, HostTensor, Program, Target, TensorType};

use super::build::{Build, Random, c, sym};
use super::{compare, named};
use crate::cpu::tests::cpu;
use crate::device::LoadOptions;
use crate::error::{InputError, RuntimeError};
use crate::executable::Executable;

const WIDTH: i64 = 24;

/// `x[s, 24] · w[24, 24]`, then GELU.
fn dense() -> Kernel {
    let mut b = Build::new("dense");
    let s = sym("s");
    let x = b.read("x", DType::F32, s.clone() * WIDTH);
    let w = b.read("w", DType::F32, WIDTH * WIDTH);
    let out = b.write("out", DType::F32, s.clone() * WIDTH);
    let (i, j, k) = (b.axis("i", s), b.axis("j", WIDTH), b.axis("k", WIDTH));
    let l = b.index(0, &[(i, c(WIDTH)), (k, c(1))]);
    let r = b.index(0, &[(k, c(WIDTH)), (j, c(1))]);
    let (lhs, rhs) = (b.load(x, l), b.load(w, r));
    let acc = b.var(DType::F32);
    let e = b.value(acc);
    let e = b.un(UnaryOp::Gelu, e);
    let to = b.index(0, &[(i, c(WIDTH)), (j, c(1))]);
    let store = b.store(out, to, e, &[]);
    let (lhs_operand, rhs_operand) = (Operand::new(&b.kernel.exprs, lhs), Operand::new(&b.kernel.exprs, rhs));
    b.kernel.body = Body::Contract(ContractBody {
        batch: vec![],
        m: vec![i],
        n: vec![j],
        k: vec![k],
        lhs: lhs_operand,
        rhs: rhs_operand,
        acc,
        pair: None,
        statistic: None,
        epilogue: vec![store],
        conv: None,
    });
    b.kernel
}

/// `h + x`, in place of `h`.
fn add() -> Kernel {
    let mut b = Build::new("add");
    let n = sym("s") * WIDTH;
    let h = b.read("h", DType::F32, n.clone());
    let x = b.read("x", DType::F32, n.clone());
    let out = b.param("out", DType::F32, n.clone(), Access::Write);
    let i = b.axis("i", n);
    let at = b.at(i);
    let (h, x) = (b.load(h, at), b.load(x, at));
    let sum = b.bin(BinaryOp::Add, h, x);
    let store = b.store(out, at, sum, &[]);
    b.loops(&[i], vec![store])
}

/// Two dense layers with a residual; outputs the sum, twice, and the input.
pub(super) fn program() -> Program {
    let ty = || TensorType::new(DType::F32, vec![sym("s"), Dim::Const(WIDTH)]);
    let weight = TensorType::new(DType::F32, vec![Dim::Const(WIDTH), Dim::Const(WIDTH)]);
    let mut constants = Table::new();
    let mut random = Random(3);
    let values: Vec<f64> = (0..WIDTH * WIDTH).map(|_| random.float() * 0.4).collect();
    let id = constants.push(Constant {
        name: Some("w".into()),
        tensor: HostTensor::from_f64(DType::F32, [WIDTH as usize, WIDTH as usize], &values).unwrap(),
    });
    let mut buffers = Table::new();
    let mut buffer = |name: &str, ty: TensorType, place: Place| {
        buffers.push(Buffer {
            name: name.into(),
            ty,
            place,
        })
    };
    let x = buffer("x", ty(), Place::Input);
    let w = buffer("w", weight, Place::Constant(id));
    let arena = |first, last, in_place_of| Place::Arena {
        first: StepId::new(first),
        last: StepId::new(last),
        in_place_of,
    };
    let h = buffer("h", ty(), arena(0, 1, None));
    let g = buffer("g", ty(), arena(1, 2, Some(h)));
    let y = buffer("y", ty(), Place::Output);
    let mut kernels = Table::new();
    let (k0, k1) = (kernels.push(dense()), kernels.push(add()));
    let launch =
        |kernel, args: Vec<BufferId>| Step::new(LaneId::new(0), vec![], Work::launch(kernel, args), Dim::Const(0));
    let steps = [
        launch(k0, vec![x, w, h]),
        launch(k1, vec![h, x, g]),
        launch(k0, vec![g, w, y]),
    ];
    let port = |name: &str, buffer| Port {
        name: name.into(),
        ty: ty(),
        buffer,
    };
    let plan = Plan {
        target: Target::cpu(),
        symbols: Symbols::from_iter([(
            Symbol::new("s"),
            SymbolInfo {
                min: 1,
                max: Some(200),
                hint: 16,
            },
        )]),
        kernels,
        buffers,
        steps: steps.into_iter().collect(),
        lanes: Table::from_iter([Lane {
            kind: LaneKind::Compute,
        }]),
        inputs: vec![port("x", x)],
        outputs: vec![port("y", y), port("again", y), port("same", x)],
        flops: Dim::Const(0),
        checks: Vec::new(),
        streaming: None,
        share: None,
        states: Vec::new(),
        requirements: Vec::new(),
        overlap: Overlap::default(),
    };
    Program {
        name: "residual".into(),
        variants: vec![Variant {
            sources: Table::new(),
            code: Table::new(),
            plan,
        }],
        constants,
    }
}

pub(super) fn input(s: usize, seed: u64) -> HostTensor {
    let mut random = Random(seed);
    let values: Vec<f64> = (0..s * WIDTH as usize).map(|_| random.float()).collect();
    HostTensor::from_f64(DType::F32, [s, WIDTH as usize], &values).unwrap()
}

#[test]
fn runs_at_every_size_and_from_many_threads() {
    let program = Arc::new(program());
    let plan = &program.variants[0].plan;
    let options = LoadOptions {
        threads: 2,
        prepared_sizes: Some(2),
        ..LoadOptions::default()
    };
    let exe = Executable::load_on(&cpu(), program.clone(), 0, &options).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let (exe, program) = (&exe, &program);
            scope.spawn(move || {
                for s in [1usize, 7, 33, 120, 7] {
                    let inputs = named(vec![("x", input(s, t))]);
                    let got = exe.run(&inputs).unwrap();
                    let want = ir::plan::eval::evaluate(plan, &program.constants, &inputs).unwrap();
                    assert!(got.keys().eq(want.keys()));
                    for (name, want) in &want {
                        compare("plan", name, &got[name], want, 1e-4);
                    }
                }
            });
        }
    });
}

#[test]
fn says_what_does_not_fit() {
    let exe = Executable::load_on(&cpu(), Arc::new(program()), 0, &LoadOptions::default()).unwrap();
    let fails = |list: Vec<(&str, HostTensor)>| match exe.run(&named(list)) {
        Err(RuntimeError::Input { error, inputs }) => {
            assert_eq!(inputs, ["x: f32[s, 24]"]);
            error
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(fails(vec![]), InputError::Missing("x".into()));
    assert_eq!(
        fails(vec![("x", input(2, 0)), ("z", input(2, 0))]),
        InputError::Unknown("z".into())
    );
    let ints = HostTensor::from_i64(DType::I64, [1, 24], &[0; 24]).unwrap();
    assert!(matches!(fails(vec![("x", ints)]), InputError::DType { .. }));
    let wide = HostTensor::from_f32([1, 25], &[0.0; 25]).unwrap();
    assert!(matches!(fails(vec![("x", wide)]), InputError::Shape(_)));
    assert!(matches!(fails(vec![("x", input(201, 0))]), InputError::Shape(_)));
}

#[test]
fn a_memory_limit_and_a_missing_device_are_errors() {
    let options = LoadOptions {
        memory_limit: Some(1000),
        ..LoadOptions::default()
    };
    let exe = Executable::load_on(&cpu(), Arc::new(program()), 0, &options).unwrap();
    let error = exe.run(&named(vec![("x", input(100, 0))])).unwrap_err();
    assert!(
        matches!(error, RuntimeError::OutOfMemory { limit: 1000, .. }),
        "{error}"
    );
    let mut other = program();
    other.variants[0].plan.target = "gfx90a".parse().unwrap();
    let error = Executable::load_on(&cpu(), Arc::new(other), 0, &LoadOptions::default()).unwrap_err();
    assert!(matches!(error, RuntimeError::NotAvailable { .. }), "{error}");
    assert!(matches!(
        Executable::load_on(&cpu(), Arc::new(program()), 3, &LoadOptions::default()),
        Err(RuntimeError::Program(_))
    ));
}

#[test]
fn inputs_at_any_address_are_taken() {
    let exe = Executable::load_on(&cpu(), Arc::new(program()), 0, &LoadOptions::default()).unwrap();
    let x = input(5, 1);
    let mut shifted = vec![0u8];
    shifted.extend_from_slice(&x.bytes);
    let bytes = ir::Storage::new(shifted).slice(1, x.bytes.len()).unwrap();
    let odd = HostTensor::new(DType::F32, x.shape.clone(), bytes).unwrap();
    let (a, b) = (
        exe.run(&named(vec![("x", x)])).unwrap(),
        exe.run(&named(vec![("x", odd)])).unwrap(),
    );
    assert_eq!(a["y"].bytes, b["y"].bytes);
}

#[test]
fn damaged_plans_are_errors() {
    let damage: [fn(&mut Program); 4] = [
        |p| {
            if let Work::Launch { args, .. } = &mut p.variants[0].plan.steps[StepId::new(0)].work {
                args.pop();
            }
        },
        |p| p.constants[ir::ConstId::new(0)].tensor = HostTensor::from_f32([2], &[0.0; 2]).unwrap(),
        |p| p.variants[0].plan.outputs[0].buffer = BufferId::new(99),
        |p| p.variants[0].plan.buffers[BufferId::new(2)].ty = TensorType::new(DType::F32, vec![Dim::Const(3)]),
    ];
    for (i, damage) in damage.iter().enumerate() {
        let mut program = program();
        damage(&mut program);
        let got = Executable::load_on(&cpu(), Arc::new(program), 0, &LoadOptions::default());
        assert!(matches!(got, Err(RuntimeError::Program(_))), "{i}: {got:?}");
    }
}
