//! Quantised models against what onnxruntime gives (see `scripts/py/quantised_cases.py`): each op alone, and networks
//! as its quantiser writes them.

#[path = "cases/against.rs"]
mod against;
mod cases;

use against::{Bound, differ, outputs};
use cases::cases;
use graphc_frontend::onnx::ImportOptions;

fn check(prefix: &str, least: usize, bound: &Bound) {
    let (mut wrong, mut count, mut off, mut elements) = (Vec::new(), 0, 0, 0);
    for case in cases("onnx_quantised.bin")
        .iter()
        .filter(|c| c.name.starts_with(prefix))
    {
        count += 1;
        let found = match outputs(case, &ImportOptions::default()) {
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
