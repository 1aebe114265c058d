//! Programs that hold together as files, checksum and all, and whose kernels say what is not so.

use std::sync::Arc;

use ir::dim::{Bindings, Symbol, SymbolInfo};
use ir::entity::{Entity, Table};
use ir::graph::{ConstId, Constant};
use ir::kernel::{Access, Body, ContractBody, Kernel, Operand, ParamId, SortBody, Stmt};
use ir::op::{BinaryOp, ReduceOp};
use ir::plan::{Buffer, BufferId, Lane, LaneId, Overlap, Place, Plan, Port, Step, Work};
use ir::program::Variant;
use ir::program::artifact::Check;
use ir::schedule::LaneKind;
use ir::{DType, Dim, HostTensor, Program, Storage, Target, TensorType};

use super::build::{Build, c, sym};
use super::contractions::{attend, conv};
use super::sizes;

use crate::device::{Device, LoadOptions};

/// A plan of one launch: parameters of the list are constants, what is written is an output, the rest are inputs.
fn plan(mut kernel: Kernel, constants: &[usize]) -> (Plan, Table<ConstId, Constant>) {
    // The tests' builder takes a name twice; the verifier does not.
    for (i, axis) in kernel.axes.values_mut().enumerate() {
        axis.name = format!("axis{i}");
    }
    let mut symbols = std::mem::take(&mut kernel.symbols);
    kernel
        .params
        .values()
        .for_each(|p| p.elements.collect_symbols(&mut symbols));
    kernel.symbols = symbols;
    let mut plan = Plan {
        target: Target::cpu(),
        symbols: kernel
            .symbols
            .iter()
            .map(|s: &Symbol| (s.clone(), SymbolInfo::default()))
            .collect(),
        kernels: Table::new(),
        buffers: Table::new(),
        steps: Table::new(),
        lanes: Table::from_iter([Lane {
            kind: LaneKind::Compute,
        }]),
        inputs: Vec::new(),
        outputs: Vec::new(),
        checks: Vec::new(),
        streaming: None,
        share: None,
        states: Vec::new(),
        flops: Dim::Const(0),
        requirements: Vec::new(),
        overlap: Overlap::default(),
    };
    let mut table = Table::new();
    let mut args: Vec<BufferId> = Vec::new();
    for (i, param) in kernel.params.values().enumerate() {
        let ty = TensorType::new(param.dtype, [param.elements.clone()]);
        let place = if param.access != Access::Read {
            Place::Output
        } else if constants.contains(&i) {
            let elements = param.elements.as_const().expect("a constant has a size") as usize;
            let values = vec![0.5; elements];
            let tensor = HostTensor::from_f64(param.dtype, [elements], &values).expect("the sizes fit");
            Place::Constant(table.push(Constant { name: None, tensor }))
        } else {
            Place::Input
        };
        let ports = match place {
            Place::Output => Some(&mut plan.outputs),
            Place::Input => Some(&mut plan.inputs),
            _ => None,
        };
        let buffer = plan.buffers.push(Buffer {
            name: param.name.clone(),
            ty: ty.clone(),
            place,
        });
        if let Some(ports) = ports {
            ports.push(Port {
                name: param.name.clone(),
                ty,
                buffer,
            });
        }
        args.push(buffer);
    }
    let kernel = plan.kernels.push(kernel);
    let work = Work::launch(kernel, args);
    plan.steps
        .push(Step::new(LaneId::new(0), Vec::new(), work, Dim::Const(0)));
    (plan, table)
}

/// Writes the program, reads it as a file is read, loads it and runs it.
fn run(plan: Plan, constants: Table<ConstId, Constant>, sizes: &Bindings) -> Result<Vec<Vec<u8>>, String> {
    let program = Program {
        name: "forged".into(),
        variants: vec![Variant {
            sources: plan.kernels.values().map(|_| Default::default()).collect(),
            code: plan.kernels.values().map(|_| None).collect(),
            plan,
        }],
        constants,
    };
    let file = program.to_bytes().expect("memory takes it");
    let program = Program::read(&Storage::new(file), Check::All).map_err(|e| e.to_string())?;
    let plan = program.variants[0].plan.clone();
    let options = LoadOptions {
        threads: 1,
        ..LoadOptions::default()
    };
    let loaded = super::cpu()
        .load(Arc::new(program), 0, &options)
        .map_err(|e| e.to_string())?;
    let bytes = |port: &Port| vec![0u8; port.ty.bytes().eval(sizes).expect("sizes are bound").max(0) as usize];
    let inputs: Vec<Vec<u8>> = plan.inputs.iter().map(bytes).collect();
    let mut outputs: Vec<Vec<u8>> = plan.outputs.iter().map(bytes).collect();
    let given: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    // What follows an output is nobody's to write.
    let ends: Vec<usize> = outputs.iter().map(Vec::len).collect();
    outputs.iter_mut().for_each(|o| o.extend([0xA5; 4096]));
    let mut into: Vec<&mut [u8]> = outputs.iter_mut().zip(&ends).map(|(o, end)| &mut o[..*end]).collect();
    let ran = loaded.run(sizes, &given, &mut into, None);
    for (output, end) in outputs.iter_mut().zip(ends) {
        assert!(
            output.split_off(end).iter().all(|b| *b == 0xA5),
            "an output's end was passed"
        );
    }
    ran.map_err(|e| e.to_string())?;
    Ok(outputs)
}

fn forged(kernel: Kernel, constants: &[usize]) -> Result<Vec<Vec<u8>>, String> {
    let (plan, table) = plan(kernel, constants);
    run(plan, table, &Bindings::new())
}

#[track_caller]
fn refused(kernel: Kernel, constants: &[usize], what: &str) {
    let error = forged(kernel, constants).expect_err("a forged kernel");
    assert!(error.contains(what), "{error}");
}

/// `conv` at fixed sizes.
fn fixed() -> Kernel {
    let at = sizes(&[("n", 2), ("h", 6), ("w", 5)]);
    let with = at.iter().map(|(s, v)| (s.clone(), Dim::Const(*v))).collect();
    let mut kernel = conv(3, 8, 3, 1, 1, 1);
    kernel.symbols.clear();
    for param in kernel.params.values_mut() {
        param.elements = param.elements.substitute(&with);
    }
    for axis in kernel.axes.values_mut() {
        axis.extent = axis.extent.substitute(&with);
    }
    let mut exprs = ir::kernel::Exprs::default();
    for (id, expr) in kernel.exprs.iter() {
        let mut expr = expr.clone();
        if let ir::kernel::Expr::Size(d) = &mut expr {
            *d = d.substitute(&with);
        }
        exprs.add(expr, kernel.exprs.dtype(id));
    }
    assert_eq!(exprs.len(), kernel.exprs.len(), "no two sizes are the same");
    kernel.exprs = exprs;
    let Body::Contract(body) = &mut kernel.body else {
        unreachable!("a convolution is a contraction")
    };
    let facts = body.conv.as_mut().expect("its facts");
    facts.batch = facts.batch.substitute(&with);
    for size in facts.input_size.iter_mut().chain(&mut facts.output_size) {
        *size = size.substitute(&with);
    }
    kernel
}

fn facts(kernel: &mut Kernel) -> &mut ir::kernel::ConvFacts {
    match &mut kernel.body {
        Body::Contract(body) => body.conv.as_mut().expect("its facts"),
        _ => unreachable!("a convolution is a contraction"),
    }
}

#[test]
fn a_convolution_reads_what_its_body_does() {
    assert!(forged(fixed(), &[1]).is_ok());
    // The filter's buffer is not there but as packed panels.
    let mut kernel = fixed();
    facts(&mut kernel).input = ParamId::new(1);
    refused(kernel, &[1], "name f, which the lhs does not load");
    let mut kernel = fixed();
    facts(&mut kernel).filter = ParamId::new(2);
    refused(kernel, &[1, 2], "name bias, which the rhs does not load");
    let mut kernel = fixed();
    facts(&mut kernel).input_size = vec![c(600), c(5)];
    refused(kernel, &[1], "elements of x, which has");
    let mut kernel = fixed();
    facts(&mut kernel).filters = c(800);
    refused(kernel, &[1], "elements of f, which has");
    let mut kernel = fixed();
    facts(&mut kernel).window.strides = vec![3, 1];
    refused(kernel, &[1], "padding included");
    let mut kernel = fixed();
    facts(&mut kernel).window.pad_low = vec![1 << 62, 1];
    facts(&mut kernel).window.pad_high = vec![i64::MAX, 1];
    // As much padding as that is left to the loops.
    assert!(forged(kernel, &[1]).is_ok());
    let mut kernel = fixed();
    facts(&mut kernel).kernel_size.pop();
    refused(kernel, &[1], "2 sizes of the input");
}

#[test]
fn filters_of_two_shapes_are_packed_for_each() {
    // [8, 3, 3, 3] and [24, 1, 3, 3] are the same 216 values.
    let (mut plan, table) = plan(fixed(), &[1]);
    let mut first = plan.kernels.values().next().expect("a kernel").clone();
    first.name = "again".into();
    let facts = facts(&mut first);
    (facts.kernel_size, facts.window.pad_low, facts.window.pad_high) = (vec![1, 9], vec![0, 4], vec![0, 4]);
    let kernel = plan.kernels.push(first);
    let Work::Launch { args, .. } = plan.steps.values().next().expect("a step").work.clone() else {
        unreachable!("one launch")
    };
    let lane = LaneId::new(0);
    plan.steps
        .push(Step::new(lane, Vec::new(), Work::launch(kernel, args), Dim::Const(0)));
    let outputs = run(plan, table, &Bindings::new()).expect("both are convolutions");
    assert_eq!(outputs.len(), 1);
}

#[test]
fn an_axis_without_points_excuses_only_its_own_loops() {
    // A store past the end, and an axis of nothing that no loop has.
    let mut kernel = fixed();
    let nothing = kernel.axes.push(ir::kernel::Axis {
        name: "nothing".into(),
        extent: c(0),
    });
    assert!(kernel.axes.get(nothing).is_some());
    kernel.params[ParamId::new(4)].elements = c(5);
    // What is stored past them is dropped.
    assert_eq!(forged(kernel, &[1]).map(|o| o[0].len()), Ok(20));
    let mut kernel = attend(None, false, false, 1);
    kernel.axes.push(ir::kernel::Axis {
        name: "nothing".into(),
        extent: c(0),
    });
    let out = ParamId::new(kernel.params.len() - 1);
    kernel.params[out].elements = c(3);
    let (plan, table) = plan(kernel, &[]);
    let outputs = run(plan, table, &sizes(&[("s", 5), ("t", 5)]));
    assert_eq!(outputs.map(|o| o[0].len()), Ok(12));
    // A sum computed right where it is stored.
    let mut b = Build::new("sum");
    let x = b.read("x", DType::F32, 64);
    let out = b.write("out", DType::F32, 8);
    let (i, _) = (b.axis("i", 64), b.axis("nothing", 0));
    let at = b.at(i);
    let v = b.load(x, at);
    let v = b.add(v, v);
    let store = b.store(out, at, v, &[]);
    assert_eq!(forged(b.loops(&[i], vec![store]), &[]).map(|o| o[0].len()), Ok(32));
}

#[test]
fn fewer_elements_than_none_are_none() {
    for elements in [-1, -8, i64::MIN] {
        let mut b = Build::new("copy");
        let x = b.read("x", DType::F32, elements);
        let out = b.write("out", DType::F32, 70);
        let i = b.axis("i", 70);
        let at = b.at(i);
        // One element for all lanes, and one for each.
        let (one, zero) = (b.load(x, at), b.int(0));
        let same = b.load(x, zero);
        let sum = b.add(one, same);
        let store = b.store(out, at, sum, &[]);
        let outputs = forged(b.loops(&[i], vec![store]), &[]).expect("nothing is read");
        assert_eq!(outputs, [vec![0; 280]], "{elements}");
    }
}

/// `out[i, j] = Σ x[i, k] · w[far + k, j]`, where `w` is a constant of 8 by 8.
fn product_reading_at(rows: i64, depth: i64, far: i64) -> Kernel {
    let mut b = Build::new("product");
    let x = b.read("x", DType::F32, rows * depth);
    let w = b.read("w", DType::F32, 64);
    let out = b.write("out", DType::F32, rows * 8);
    let (i, j, k) = (b.axis("i", rows), b.axis("j", 8), b.axis("k", depth));
    let left = b.index(far, &[(i, c(depth)), (k, c(1))]);
    let right = b.index(far, &[(k, c(8)), (j, c(1))]);
    let (left, right) = (b.load(x, left), b.load(w, right));
    let acc = b.var(DType::F32);
    let to = b.index(0, &[(i, c(8)), (j, c(1))]);
    let value = b.value(acc);
    let store = b.store(out, to, value, &[]);
    let operands = [left, right].map(|e| Operand::new(&b.kernel.exprs, e));
    let [lhs, rhs] = operands;
    b.kernel.body = Body::Contract(ContractBody {
        batch: Vec::new(),
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
    b.kernel
}

#[test]
fn a_product_of_nothing_reads_nothing() {
    // Far from the constant that would be packed, and from anything.
    for far in [1 << 20, 1 << 61, i64::MAX] {
        assert_eq!(forged(product_reading_at(0, 8, far), &[1]), Ok(vec![Vec::new()]));
        assert_eq!(forged(product_reading_at(2, 0, far), &[1]), Ok(vec![vec![0; 64]]));
        assert_eq!(forged(product_reading_at(2, 0, far), &[]), Ok(vec![vec![0; 64]]));
    }
}

#[test]
fn positions_at_the_ends_of_the_integers_are_looked_at() {
    for far in [i64::MIN, i64::MIN + 1, i64::MAX] {
        // A choice between two loads.
        let mut b = Build::new("choice");
        let (x, y) = (b.read("x", DType::F32, 4096), b.read("y", DType::F32, 4096));
        let out = b.write("out", DType::F32, 4096);
        let i = b.axis("i", 4096);
        let (at, moved, bound) = (b.at(i), b.index(far, &[(i, c(1))]), b.int(0));
        for (op, position) in [(BinaryOp::Lt, moved), (BinaryOp::Gt, moved), (BinaryOp::Ge, moved)] {
            let (p, q) = (b.load(x, at), b.load(y, at));
            let condition = b.bin(op, position, bound);
            let value = b.select(condition, p, q);
            let store = b.store(out, at, value, &[]);
            let kernel = b.kernel.clone();
            let copy = Build { kernel };
            assert!(forged(copy.loops(&[i], vec![store]), &[]).is_ok());
        }
        // A window whose condition is strict.
        let mut b = Build::new("pool");
        let x = b.read("x", DType::F32, 64);
        let out = b.write("out", DType::F32, 31);
        let (i, d) = (b.axis("i", 31), b.axis("d", 3));
        let at = b.index(0, &[(i, c(2)), (d, c(1))]);
        let (moved, zero) = (b.index(far, &[(i, c(2)), (d, c(1))]), b.int(0));
        let inside = b.bin(BinaryOp::Gt, moved, zero);
        let (v, fill) = (b.load(x, at), b.num(f64::NEG_INFINITY));
        let v = b.select(inside, v, fill);
        let (fold, value) = b.fold(ReduceOp::Max, &[d], v);
        let to = b.at(i);
        let store = b.store(out, to, value, &[]);
        assert!(forged(b.loops(&[i], vec![fold, store]), &[]).is_ok());
    }
}

#[test]
fn more_elements_than_bytes_can_be_counted_are_refused() {
    // 2^62 elements of four bytes are 0 bytes in 64 bits.
    let mut b = Build::new("huge");
    let x = b.read("x", DType::F32, 1i64 << 62);
    let out = b.write("out", DType::F32, 4);
    let i = b.axis("i", 4);
    let far = b.index(1 << 40, &[(i, c(1))]);
    let (v, at) = (b.load(x, far), b.at(i));
    let store = b.store(out, at, v, &[]);
    let kernel = b.loops(&[i], vec![store]);
    let (mut plan, table) = plan(kernel, &[]);
    plan.buffers[BufferId::new(0)].ty = TensorType::new(DType::F32, [c(4)]);
    plan.inputs[0].ty = TensorType::new(DType::F32, [c(4)]);
    assert!(run(plan, table, &Bindings::new()).is_err());
}

#[test]
fn buffers_of_the_caller_have_a_port() {
    let copy = || {
        let mut b = Build::new("copy");
        let x = b.read("x", DType::F32, 4);
        let out = b.write("out", DType::F32, 4);
        let i = b.axis("i", 4);
        let at = b.at(i);
        let v = b.load(x, at);
        let store = b.store(out, at, v, &[]);
        plan(b.loops(&[i], vec![store]), &[])
    };
    let (good, table) = copy();
    assert!(run(good, table, &Bindings::new()).is_ok());
    let (mut no_input, table) = copy();
    no_input.inputs.clear();
    let error = run(no_input, table, &Bindings::new()).expect_err("nothing gives b0");
    assert!(error.contains("b0") && error.contains("no port names it"), "{error}");
    let (mut no_output, table) = copy();
    no_output.outputs.clear();
    let error = run(no_output, table, &Bindings::new()).expect_err("nothing takes b1");
    assert!(error.contains("b1") && error.contains("no port names it"), "{error}");
    let (mut other, table) = copy();
    other.inputs[0].ty = TensorType::new(DType::F32, [c(3)]);
    let error = run(other, table, &Bindings::new()).expect_err("three are not four");
    assert!(error.contains("port \"x\" is f32[3]"), "{error}");
}

#[test]
fn a_variable_has_one_value() {
    // First the same for the whole row, then one a lane: what reads it must not take the one for the other.
    let mut b = Build::new("twice");
    let x = b.read("x", DType::F32, 64);
    let out = b.write("out", DType::F32, 64);
    let i = b.axis("i", 64);
    let at = b.at(i);
    let v = b.var(DType::F32);
    let (lanes, one) = (b.load(x, at), b.num(1.0));
    let value = b.value(v);
    let again = b.bin(BinaryOp::Add, value, value);
    let stmts = vec![
        Stmt::Let { var: v, value: lanes },
        Stmt::Let { var: v, value: one },
        b.store(out, at, again, &[]),
    ];
    refused(b.loops(&[i], stmts), &[], "v0 is assigned already");
}

#[test]
fn the_results_of_a_sort_may_be_stored_by_parts_of_their_rank() {
    let mut b = Build::new("sort");
    let x = b.read("x", DType::F32, 12);
    let out = b.write("out", DType::I64, 12);
    let (j, r) = (b.axis("j", 12), b.axis("r", 12));
    let at = b.at(j);
    let value = b.load(x, at);
    let (value_var, index_var) = (b.var(DType::F32), b.var(DType::I64));
    // The rank, transposed as 3 x 4: a permutation of 0..12.
    let (rank, four, three) = (b.at(r), b.int(4), b.int(3));
    let (high, low) = (b.bin(BinaryOp::Div, rank, four), b.bin(BinaryOp::Rem, rank, four));
    let low = b.mul(low, three);
    let to = b.add(high, low);
    let position = b.value(index_var);
    let store = b.store(out, to, position, &[]);
    b.kernel.body = Body::Sort(SortBody {
        parallel: Vec::new(),
        axis: j,
        rank: r,
        largest: true,
        value,
        value_var,
        index_var,
        stores: vec![store],
    });
    // All values are the same: each stays where it was.
    let outputs = forged(b.kernel, &[]).expect("a valid sort");
    let positions: Vec<i64> = outputs[0]
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().expect("eight bytes")))
        .collect();
    assert_eq!(positions, [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]);
}

#[test]
fn expressions_are_as_deep_as_the_stack_takes() {
    let chain = |length: usize| {
        let mut b = Build::new("chain");
        let x = b.read("x", DType::F32, sym("n"));
        let out = b.write("out", DType::F32, sym("n"));
        b.kernel.symbols.push(Symbol::new("n"));
        let i = b.axis("i", sym("n"));
        let at = b.at(i);
        let mut v = b.load(x, at);
        for _ in 0..length {
            let zero = b.num(0.0);
            let positive = b.bin(BinaryOp::Gt, v, zero);
            let more = b.add(v, v);
            v = b.select(positive, more, v);
        }
        let (sum, total) = b.fold(ReduceOp::Sum, &[], v);
        let store = b.store(out, at, total, &[]);
        b.loops(&[i], vec![sum, store])
    };
    let go = |kernel: Kernel| {
        let (plan, table) = plan(kernel, &[]);
        run(plan, table, &sizes(&[("n", 3)]))
    };
    // Two levels for each round.
    assert!(go(chain(450)).is_ok());
    let error = go(chain(5000)).expect_err("deeper than any stack");
    assert!(error.contains("expressions deep"), "{error}");
}
