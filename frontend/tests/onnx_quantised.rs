//! Quantised models against what onnxruntime gives (see `scripts/py/quantised_cases.py`): each op alone, and networks as its
//! quantiser writes them.

mod cases;

use cases::{Case, cases, host};
use graphc_frontend::onnx::{ImportOptions, import_model, read_bytes};
use ir::HostTensor;

/// How far results may be from onnxruntime's, which rounds at other places (tables, merged factors, f32 where the evaluator
/// has f64): a fraction of the largest magnitude, for the worst element and on average.
struct Bound {
    worst: f64,
    mean: f64,
}

fn outputs(case: &Case) -> Result<Vec<(String, HostTensor, HostTensor)>, String> {
    let model = read_bytes(&case.name, case.model.clone().into(), None).map_err(|e| e.to_string())?;
    let graph = import_model(&model, &ImportOptions::default()).map_err(|e| e.to_string())?;
    ir::graph::verify::verify(&graph).map_err(|e| e.to_string())?;
    let inputs = host(&case.inputs).ok_or("an input of another type")?;
    let mut got = ir::graph::eval::evaluate(&graph, &inputs).map_err(|e| e.to_string())?;
    let expected = host(&case.outputs).ok_or("an output of another type")?;
    let mut all = Vec::new();
    for (name, want) in expected {
        let got = got.shift_remove(&name).ok_or(format!("no output {name}"))?;
        if (got.dtype, &got.shape) != (want.dtype, &want.shape) {
            return Err(format!(
                "{name}: {}{:?} for {}{:?}",
                got.dtype, got.shape, want.dtype, want.shape
            ));
        }
        all.push((name, got, want));
    }
    Ok(all)
}

/// Says what is wrong with an output, and how many of its elements are off by one step.
fn differ(name: &str, got: &HostTensor, want: &HostTensor, bound: &Bound) -> (Option<String>, usize) {
    let (got, numbers) = (got.to_f64(), want.to_f64());
    let gaps: Vec<f64> = got.iter().zip(&numbers).map(|(g, w)| (g - w).abs()).collect();
    let worst = gaps
        .iter()
        .fold(0.0, |a: f64, b| if b.is_nan() { f64::INFINITY } else { a.max(*b) });
    if !want.dtype.is_float() {
        let off = gaps.iter().filter(|gap| **gap == 1.0).count();
        return ((worst > 1.0).then(|| format!("{worst} steps")), off);
    }
    let largest = numbers.iter().fold(1e-6, |a: f64, b| a.max(b.abs()));
    let mean = gaps.iter().sum::<f64>() / gaps.len().max(1) as f64;
    let wrong = worst > bound.worst * largest || mean > bound.mean * largest;
    let text = format!(
        "worst {:.2e}, mean {:.2e} of the largest",
        worst / largest,
        mean / largest
    );
    println!("{name}: {text}");
    (wrong.then_some(text), 0)
}

fn check(prefix: &str, least: usize, bound: &Bound) {
    let (mut wrong, mut count, mut off, mut elements) = (Vec::new(), 0, 0, 0);
    for case in cases("onnx_quantised.bin")
        .iter()
        .filter(|c| c.name.starts_with(prefix))
    {
        count += 1;
        let found = match outputs(case) {
            Ok(found) => found,
            Err(error) => {
                wrong.push(format!("{}: {error}", case.name));
                continue;
            }
        };
        for (name, got, want) in &found {
            let (problem, steps) = differ(&case.name, got, want, bound);
            wrong.extend(problem.map(|text| format!("{} {name}: {text}", case.name)));
            if !want.dtype.is_float() {
                (off, elements) = (off + steps, elements + want.elements());
            }
        }
    }
    println!("{prefix}: {count} cases, {off} of {elements} quantised numbers off by one");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count >= least, "{count} cases of {prefix}");
    assert!(
        off * 100 <= elements,
        "{off} of {elements} quantised numbers are off by one"
    );
}

/// Integers within one step of onnxruntime's, and at most one in a hundred of them not equal.
#[test]
fn each_op_alone() {
    let bound = Bound {
        worst: 1e-5,
        mean: 2e-6,
    };
    check("op_", 60, &bound);
}

/// A step that one rounding takes at another place is a step of the last scale, or what a layer makes of it.
#[test]
fn networks_of_the_static_quantiser() {
    let bound = Bound {
        worst: 0.05,
        mean: 0.01,
    };
    check("static_", 12, &bound);
}

#[test]
fn networks_of_the_dynamic_quantiser() {
    let bound = Bound {
        worst: 0.01,
        mean: 2e-3,
    };
    check("dynamic_", 2, &bound);
}

#[test]
fn weights_in_blocks() {
    let bound = Bound {
        worst: 1e-5,
        mean: 2e-6,
    };
    check("blocks_", 4, &bound);
}
