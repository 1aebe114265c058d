//! What quantising costs: the error of each layer, that of the outputs, and bytes; and the choice of layers that keeps
//! a limit.

use indexmap::IndexMap;
use ir::recipe::{Activation, Kept, Recipe};
use ir::{Graph, HostTensor};
use passes::quantize::recipe::{apply, measured};
use serde::Serialize;

use super::calibrate::{Calibration, PREFIX};
use super::{Inputs, Predicted, Quantized};
use crate::error::Result;

/// What quantising a model has cost.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Runs that errors were measured by; 0 where none are.
    pub samples: usize,
    pub layers: Vec<LayerReport>,
    pub kept: Vec<Kept>,
    /// With all layers quantised.
    pub outputs: Vec<OutputReport>,
    /// Bytes of the model's constants.
    pub bytes_before: usize,
    pub bytes_after: usize,
    /// Where targets were named: [`super::predict()`].
    pub predicted: Vec<Predicted>,
}

/// A quantised layer.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LayerReport {
    pub name: String,
    /// The integers of the weight, with its groups.
    pub weight: String,
    /// What is done with the other operand.
    pub activation: String,
    pub bytes_before: usize,
    pub bytes_after: usize,
    /// Ten times the decimal logarithm of the squares of the layer's results over those of what changes when this layer
    /// alone is quantised; None where there are no samples or no error.
    pub decibels: Option<f64>,
    /// The same with integers to the nearest, where `--rounding` chose others; None where it did not, too.
    pub nearest: Option<f64>,
    /// Whether inputs are multiplied by factors before the product.
    pub scaled_inputs: bool,
}

/// An output of the model, as it was and as it is with all layers quantised.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OutputReport {
    pub name: String,
    /// The root of the mean square of what changed, over that of the output.
    pub relative: f64,
    /// The largest change of an element.
    pub max_abs: f64,
    /// Rows along the last axis of more than one element whose largest is still the same one.
    pub same_first: usize,
    pub rows: usize,
}

/// Measures a recipe, leaves out what a limit asks for, and applies the rest.
pub(super) fn measure(
    calibration: &Calibration<'_>,
    mut recipe: Recipe,
    nearest: Option<&Recipe>,
    limit: Option<f64>,
) -> Result<Quantized> {
    let graph = calibration.graph;
    let mut decibels: Vec<Option<f64>> = vec![None; recipe.layers.len()];
    let mut plain: IndexMap<String, Option<f64>> = IndexMap::new();
    let mut outputs = Vec::new();
    if !calibration.samples.is_empty() {
        if let Some(nearest) = nearest {
            let errors = layer_errors(calibration, nearest)?;
            plain = nearest.layers.iter().map(|l| l.name.clone()).zip(errors).collect();
        }
        decibels = layer_errors(calibration, &recipe)?;
        let mut wanted = Vec::new();
        calibration.run("outputs as they were", graph, |outputs| {
            wanted.push(outputs);
            Ok(())
        })?;
        outputs = output_errors(calibration, &apply(graph, &recipe)?, &wanted)?;
        if let Some(limit) = limit.filter(|limit| worst(&outputs) > *limit) {
            // The worst first; layers without an error last.
            let mut order: Vec<usize> = (0..recipe.layers.len()).collect();
            let of = |i: &usize| decibels[*i].unwrap_or(f64::INFINITY);
            order.sort_by(|a, b| of(a).total_cmp(&of(b)));
            // So many are enough, and so many are too few.
            let (mut enough, mut few) = (order.len(), 0);
            let mut best = None;
            while enough - few > 1 {
                let middle = few + (enough - few) / 2;
                let tried = output_errors(
                    calibration,
                    &apply(graph, &without(&recipe, &order[..middle]))?,
                    &wanted,
                )?;
                match worst(&tried) <= limit {
                    true => (enough, best) = (middle, Some(tried)),
                    false => few = middle,
                }
            }
            outputs = match best {
                Some(best) => best,
                None => output_errors(
                    calibration,
                    &apply(graph, &without(&recipe, &order[..enough]))?,
                    &wanted,
                )?,
            };
            let gone: Vec<usize> = order[..enough].to_vec();
            for index in &gone {
                let of = decibels[*index].map_or(String::new(), |db| format!(" of {db:.1} dB"));
                recipe.kept.push(Kept {
                    name: recipe.layers[*index].name.clone(),
                    reason: format!("its error{of} is among those that bring outputs beyond {limit}"),
                });
            }
            recipe = without(&recipe, &gone);
            decibels = decibels
                .into_iter()
                .enumerate()
                .filter(|(i, _)| !gone.contains(i))
                .map(|(_, db)| db)
                .collect();
        }
    }
    let quantized = apply(graph, &recipe)?;
    let report = Report {
        samples: calibration.samples.len(),
        layers: layer_reports(graph, &recipe, &decibels, &plain),
        kept: recipe.kept.clone(),
        outputs,
        bytes_before: bytes(graph),
        bytes_after: bytes(&quantized),
        predicted: Vec::new(),
    };
    Ok(Quantized {
        graph: quantized,
        recipe,
        report,
    })
}

fn without(recipe: &Recipe, indices: &[usize]) -> Recipe {
    let kept = recipe.layers.iter().enumerate().filter(|(i, _)| !indices.contains(i));
    Recipe {
        layers: kept.map(|(_, layer)| layer.clone()).collect(),
        kept: recipe.kept.clone(),
    }
}

/// Of each layer, the signal over the noise when it alone is quantised.
fn layer_errors(calibration: &Calibration<'_>, recipe: &Recipe) -> Result<Vec<Option<f64>>> {
    let graph = measured(calibration.graph, recipe, PREFIX)?;
    let mut sums = vec![[0.0f64; 2]; recipe.layers.len()];
    calibration.run("errors of layers", &graph, |outputs| {
        for (index, sums) in sums.iter_mut().enumerate() {
            for (sum, what) in sums.iter_mut().zip(["signal", "noise"]) {
                let number = outputs.get(&format!("{PREFIX}{index}.{what}")).map(HostTensor::to_f64);
                *sum += number.and_then(|n| n.first().copied()).unwrap_or(f64::NAN);
            }
        }
        Ok(())
    })?;
    let ratio = |[signal, noise]: [f64; 2]| {
        let db = 10.0 * (signal / noise).log10();
        db.is_finite().then_some(db)
    };
    Ok(sums.into_iter().map(ratio).collect())
}

/// Runs a graph and compares its outputs with those that are wanted.
fn output_errors(calibration: &Calibration<'_>, graph: &Graph, wanted: &[Inputs]) -> Result<Vec<OutputReport>> {
    struct Sums {
        noise: f64,
        signal: f64,
        max_abs: f64,
        same_first: usize,
        rows: usize,
    }
    let mut all: IndexMap<String, Sums> = IndexMap::new();
    let mut wanted = wanted.iter();
    calibration.run("outputs as they are", graph, |got| {
        let Some(wanted) = wanted.next() else { return Ok(()) };
        for (name, want) in wanted {
            let Some(got) = got.get(name) else { continue };
            let sums = all.entry(name.clone()).or_insert(Sums {
                noise: 0.0,
                signal: 0.0,
                max_abs: 0.0,
                same_first: 0,
                rows: 0,
            });
            let columns = want.shape.iter().rev().copied().find(|size| *size > 1).unwrap_or(1);
            let (got, want) = (got.to_f64(), want.to_f64());
            for (g, w) in got.iter().zip(&want) {
                let off = if g == w { 0.0 } else { g - w };
                sums.noise += off * off;
                sums.signal += w * w;
                sums.max_abs = if off.is_nan() {
                    f64::NAN
                } else {
                    sums.max_abs.max(off.abs())
                };
            }
            for (g, w) in got.chunks(columns).zip(want.chunks(columns)) {
                sums.rows += 1;
                sums.same_first += usize::from(first(g) == first(w));
            }
        }
        Ok(())
    })?;
    let report = all.into_iter().map(|(name, s)| OutputReport {
        name,
        relative: match (s.noise == 0.0, s.signal == 0.0) {
            (true, _) => 0.0,
            (false, true) => f64::INFINITY,
            (false, false) => (s.noise / s.signal).sqrt(),
        },
        max_abs: s.max_abs,
        same_first: s.same_first,
        rows: s.rows,
    });
    Ok(report.collect())
}

/// The position of the largest element, the first of equals.
fn first(row: &[f64]) -> usize {
    row.iter()
        .enumerate()
        .fold(0, |best, (i, v)| if *v > row[best] { i } else { best })
}

/// The largest error of an output; one that is not a number is the largest.
fn worst(outputs: &[OutputReport]) -> f64 {
    outputs
        .iter()
        .fold(0.0, |worst: f64, output| match output.relative.is_nan() {
            true => f64::INFINITY,
            false => worst.max(output.relative),
        })
}

fn layer_reports(
    graph: &Graph,
    recipe: &Recipe,
    decibels: &[Option<f64>],
    nearest: &IndexMap<String, Option<f64>>,
) -> Vec<LayerReport> {
    let found = passes::quantize::recipe::layers(graph);
    let reports = recipe.layers.iter().zip(decibels).map(|(layer, decibels)| {
        let own = found.found.iter().find(|l| l.name == layer.name);
        let weight = own.map(|l| &l.weight);
        let stored = own.and_then(|l| layer.store(&l.weight, l.depth).ok());
        LayerReport {
            name: layer.name.clone(),
            weight: match (layer.weight.groups, layer.weight.axis) {
                (Some(groups), _) => format!("{} in groups of {}", layer.weight.dtype, groups.size),
                (None, Some(_)) => format!("{} by column", layer.weight.dtype),
                (None, None) => layer.weight.dtype.to_string(),
            },
            activation: match layer.activation {
                Activation::Float => "as it is".to_owned(),
                Activation::Static { dtype, .. } => format!("{dtype}, one range"),
                Activation::DynamicFloat { dtype } => format!("{dtype}, each run's range"),
                Activation::Dynamic => "u8, each run's range".to_owned(),
            },
            bytes_before: weight.map_or(0, |w| w.bytes.len()),
            bytes_after: stored.map_or(0, |s| s.bytes()),
            decibels: *decibels,
            nearest: nearest.get(&layer.name).copied().flatten(),
            scaled_inputs: layer.inputs.is_some(),
        }
    });
    reports.collect()
}

/// The bytes of a graph's constants.
fn bytes(graph: &Graph) -> usize {
    graph.constants().values().map(|c| c.tensor.bytes.len()).sum()
}
