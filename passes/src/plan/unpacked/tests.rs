//! Which products have their weights stored as numbers first, and that such plans mean the same.

use ir::graph::Graph;
use ir::graph::eval::evaluate;
use ir::kernel::Body;
use ir::plan::{Place, Work, eval};
use ir::{Bindings, DType, Dim, HostTensor, Plan, Symbol};

use crate::lower::unpacked::{ForRows, UnpackOnce};
use crate::plan::{PlanOptions, Planned};
use crate::testing;

fn planned(target: &str, body: &str, unpack_once: UnpackOnce) -> (Graph, Planned) {
    let options = PlanOptions {
        unpack_once,
        ..PlanOptions::default()
    };
    testing::planned(target, body, &options)
}

/// A product of `[rows, depth]` by `[columns, depth]` in four bits, with a residual.
fn product(rows: &str, [columns, depth]: [i64; 2]) -> String {
    let symbol = match rows.parse::<i64>() {
        Ok(_) => String::new(),
        Err(_) => format!("symbol {rows}: 1..8192 hint 8\n "),
    };
    format!(
        "{symbol}x = input \"x\" : f16[{rows}, {depth}]\n w = constant random(seed=3) : i4[{columns}, {depth}]\n \
         s = constant random(seed=4) : f16[{columns}, {}]\n r = input \"r\" : f16[{rows}, {columns}]\n \
         q = dequantize w, s {{axis=1, group=32, out=f16}}\n p = contract x, q {{transpose_rhs}}\n \
         y = add p, r\n return y as \"y\"",
        depth / 32
    )
}

fn at(rows: i64) -> Bindings {
    [(Symbol::new("n"), rows)].into_iter().collect()
}

/// For each launch at some sizes whether it unpacks within a product, multiplies what is stored, or does something
/// else; those without points left out.
fn launches(plan: &Plan, bindings: &Bindings) -> Vec<&'static str> {
    let works = plan.steps.values().map(|step| step.at(bindings).expect("bound"));
    let kernels = works.filter_map(|work| match work {
        Work::Launch { kernel, .. } => Some(&plan.kernels[*kernel]),
        _ => None,
    });
    let has_points = |kernel: &&ir::Kernel| kernel.axes.values().all(|axis| axis.extent.eval(bindings) != Ok(0));
    let kind = |kernel: &ir::Kernel| match &kernel.body {
        Body::Contract(body) if body.rhs.unpacking().is_some() => "fused",
        Body::Contract(_) => "product",
        _ => "unpack",
    };
    kernels.filter(has_points).map(kind).collect()
}

/// Random numbers of so many rows for every input.
fn inputs(core: &Graph, rows: usize) -> indexmap::IndexMap<String, HostTensor> {
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1u32 << 23) - 1.0
    };
    let tensor = |input: &ir::graph::Input| {
        let shape = core.ty(input.node.into()).shape.clone();
        let shape = vec![rows, shape[1].as_const().expect("known") as usize];
        let values: Vec<f64> = (0..shape[0] * shape[1]).map(|_| next()).collect();
        let tensor = HostTensor::from_f64(DType::F16, shape, &values).expect("as many values");
        (input.name.clone(), tensor)
    };
    core.inputs().iter().map(tensor).collect()
}

/// Plans mean what their graphs do, on both sides of the number of rows from which weights are stored.
#[test]
fn plans_mean_the_same() {
    for target in ["gfx90a", "gfx1100", "sm_90"] {
        for (rows, counts) in [("n", &[1, 15, 16, 40][..]), ("40", &[40])] {
            let body = product(rows, [48, 64]);
            let (core, planned) = planned(target, &body, UnpackOnce::From(16));
            let [made] = &planned.unpacked[..] else {
                panic!("{target}: {}", planned.plan)
            };
            match (&made.from, rows) {
                (ForRows::All, "40") => {}
                (ForRows::From { size, least: 16 }, "n") => assert_eq!(*size, Dim::symbol("n")),
                other => panic!("{target}: {other:?}"),
            }
            for rows in counts {
                let inputs = inputs(&core, *rows);
                let want = evaluate(&core, &inputs).expect("evaluates")["y"].to_f64();
                let got = eval::evaluate(&planned.plan, core.constants(), &inputs).expect("evaluates")["y"].to_f64();
                let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 4e-3 * (1.0 + b.abs());
                assert!(
                    got.len() == want.len() && got.iter().zip(&want).all(close),
                    "{target}, {rows}: {}",
                    planned.plan
                );
                let expected: &[&str] = if *rows < 16 { &["fused"] } else { &["unpack", "product"] };
                assert_eq!(
                    launches(&planned.plan, &at(*rows as i64)),
                    expected,
                    "{target}, {rows}: {}",
                    planned.plan
                );
            }
        }
    }
}

/// A token at a time reads the weights as they are stored; a prompt multiplies by numbers. `wgmma` reads them as they
/// lie in LDS, and what is unpacked on the way cannot come there.
#[test]
fn many_rows_pay() {
    let (_, planned) = planned("sm_90", &product("n", [4096, 4096]), UnpackOnce::Fastest);
    let [made] = &planned.unpacked[..] else {
        panic!("{}", planned.plan)
    };
    let ForRows::From { least, .. } = made.from else {
        panic!("{:?}", made.from)
    };
    assert!((64..=4096).contains(&least), "{least}");
    assert!(made.predicted.stored() < made.predicted.fused);
    assert_eq!(launches(&planned.plan, &at(1)), ["fused"]);
    assert_eq!(launches(&planned.plan, &at(8192)), ["unpack", "product"]);
}

#[test]
fn few_rows_and_the_cpu_unpack_as_they_multiply() {
    for (target, body, once) in [
        ("gfx942", product("16", [4096, 4096]), UnpackOnce::Fastest),
        ("gfx942", product("8", [64, 64]), UnpackOnce::From(16)),
        ("gfx942", product("4096", [4096, 4096]), UnpackOnce::Never),
        ("cpu", product("4096", [64, 64]), UnpackOnce::From(16)),
    ] {
        let (_, planned) = planned(target, &body, once);
        assert!(planned.unpacked.is_empty(), "{target}: {}", planned.plan);
    }
}

/// Two products of the same weights read the same numbers, which have memory of their own for as long as that.
#[test]
fn products_of_the_same_weights_share_their_numbers() {
    let body = "x = input \"x\" : f16[64, 64]\n w = constant random(seed=3) : i4[64, 64]\n \
                s = constant random(seed=4) : f16[64, 2]\n q = dequantize w, s {axis=1, group=32, out=f16}\n \
                p = contract x, q {transpose_rhs}\n a = tanh p\n y = contract a, q {transpose_rhs}\n return y as \"y\"";
    let (core, planned) = planned("gfx90a", body, UnpackOnce::From(64));
    assert_eq!(
        launches(&planned.plan, &Bindings::new()),
        ["unpack", "product", "product"]
    );
    let numbers = planned
        .plan
        .buffers
        .values()
        .find(|b| b.name == made_value(&core).to_string());
    let numbers = numbers.expect("they are stored");
    assert_eq!(
        (numbers.ty.dtype, numbers.ty.elements()),
        (DType::F16, Dim::Const(64 * 64))
    );
    let Place::Arena { first, last, .. } = numbers.place else {
        panic!("{:?}", numbers.place)
    };
    assert_eq!(last.to_string(), planned.unpacked[1].step.to_string());
    assert!(first < planned.unpacked[0].step);
}

/// The value of a graph that dequantises.
fn made_value(core: &Graph) -> ir::Value {
    let made = core.nodes().iter().find(|(_, node)| node.op.name() == "dequantize");
    made.expect("there is one").0.into()
}
