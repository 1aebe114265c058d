//! Results against those that a case has.

use graphc_frontend::onnx::{ImportOptions, import_model, read_bytes};
use ir::HostTensor;

use super::cases::{Case, host};

/// How far results may be from onnxruntime's, which rounds at other places (tables, merged factors, f32 where the
/// evaluator has f64): a fraction of the largest magnitude, for the worst element and on average.
pub struct Bound {
    pub worst: f64,
    pub mean: f64,
}

/// What graphc's evaluator gives for each output of a case, and what is expected.
pub fn outputs(case: &Case, options: &ImportOptions) -> Result<Vec<(String, HostTensor, HostTensor)>, String> {
    let model = read_bytes(&case.name, case.model.clone().into(), None).map_err(|e| e.to_string())?;
    let graph = import_model(&model, options).map_err(|e| e.to_string())?;
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
pub fn differ(name: &str, got: &HostTensor, want: &HostTensor, bound: &Bound) -> (Option<String>, usize) {
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
