//! Quantises a model: decides by calibration data, applies, and says what it costs.
//!
//! ```text
//! graph, samples  --ranges-->  recipe  --apply-->  graph
//!                                      --measure-->  report
//! ```
//!
//! What is decided is a [`Recipe`]; [`passes::quantize::recipe::apply`] makes a graph of it, and
//! [`frontend::onnx::ModelFile`] a file.

mod calibrate;
pub mod histogram;
pub mod predict;
mod report;
pub mod samples;

use indexmap::IndexMap;
use ir::recipe::{Activation, Kept, Recipe};
use ir::{Graph, HostTensor};
use passes::quantize::recipe::{
    Decision, FoundLayer, Layers, Product, QuantizeError, Scheme, apply, column_feedback, decide, layers, scaled_inputs,
};

use crate::driver::check_files;
use crate::error::{Error, Result};
use calibrate::Calibration;
pub use histogram::Method;
pub use predict::{Predicted, predict};
pub use report::{LayerReport, OutputReport, Report};

/// The inputs of one run, by name.
pub type Inputs = IndexMap<String, HostTensor>;

/// How weights become integers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rounding {
    /// To the nearest, ties to even.
    #[default]
    Nearest,
    /// So that rows along the depth make up for the errors of those before, by what calibration data multiply them
    /// with; of convolutions to the nearest.
    Gptq,
    /// To the nearest, after inputs of products were scaled so that those that carry much in calibration data are
    /// rounded more finely; for schemes that leave activations as they are.
    Awq,
}

/// How [`quantize`] goes about it.
#[derive(Clone, Debug)]
pub struct Options {
    pub decision: Decision,
    /// How the ranges of operands are chosen, where [`Scheme::needs_ranges`].
    pub method: Method,
    pub rounding: Rounding,
    /// Leave out layers, the worst first, until no output's error is above this: the root of the mean square of what
    /// changes over that of the output.
    pub max_error: Option<f64>,
    /// Threads of the runs; 0 takes one a core.
    pub threads: usize,
    /// Bytes of the values that one calibration run may give out.
    pub memory: usize,
}

impl Options {
    /// The scheme with nothing else said.
    pub fn new(scheme: Scheme) -> Options {
        Options {
            decision: Decision::new(scheme),
            method: Method::default(),
            rounding: Rounding::default(),
            max_error: None,
            threads: 0,
            memory: 512 << 20,
        }
    }
}

/// Is told how far [`quantize`] has come.
pub trait Progress {
    /// `done` of `total` runs of a step.
    fn step(&self, what: &'static str, done: usize, total: usize);
}

/// Says nothing.
impl Progress for () {
    fn step(&self, _: &'static str, _: usize, _: usize) {}
}

/// A quantised model.
#[derive(Clone, Debug)]
pub struct Quantized {
    pub graph: Graph,
    pub recipe: Recipe,
    pub report: Report,
}

/// Quantises a graph as the front ends make it. Without samples, errors are not measured.
///
/// `refuses` names layers that cannot be quantised for another reason, such as that a file has no place for it.
///
/// # Errors
/// What [`decide`] reports; no samples where scales, rounding or an error's limit need some; a model without layers, or
/// one that is quantised already; samples that do not fit the model.
pub fn quantize(
    graph: &Graph,
    samples: &[Inputs],
    options: &Options,
    refuses: &dyn Fn(&FoundLayer) -> Option<String>,
    progress: &dyn Progress,
) -> Result<Quantized> {
    let needed =
        options.decision.scheme.needs_ranges() || options.rounding != Rounding::Nearest || options.max_error.is_some();
    if needed && samples.is_empty() {
        return Err(QuantizeError::NoSamples.into());
    }
    let found = usable(graph, refuses)?;
    let calibration = Calibration {
        graph,
        samples,
        threads: options.threads,
        memory: options.memory,
        progress,
    };
    let ranges = match options.decision.scheme {
        scheme if scheme.needs_ranges() => {
            // What is excluded needs no range, but a name that is none is an error before the work.
            decide(&found, &weights_only(&options.decision), &IndexMap::new())?;
            let symmetric = options.decision.symmetric || scheme.is_float();
            calibration.ranges(&found, options.method, symmetric)?
        }
        _ => IndexMap::new(),
    };
    let mut recipe = decide(&found, &options.decision, &ranges)?;
    if recipe.layers.is_empty() {
        let reasons = recipe.kept.iter().map(|k| format!("{:?}: {}", k.name, k.reason));
        return Err(QuantizeError::NothingLeft {
            reasons: reasons.collect(),
        }
        .into());
    }
    let nearest = (options.rounding != Rounding::Nearest).then(|| recipe.clone());
    match options.rounding {
        Rounding::Nearest => {}
        Rounding::Gptq => feed_back(&calibration, &found, &mut recipe)?,
        Rounding::Awq => scale_inputs(&calibration, &found, &mut recipe)?,
    }
    let made = report::measure(&calibration, recipe, nearest.as_ref(), options.max_error);
    check_files(graph)?;
    made
}

/// Applies a recipe that was made before, and measures it where there are samples.
///
/// # Errors
/// A recipe of another model; samples that do not fit.
pub fn follow(
    graph: &Graph,
    recipe: Recipe,
    samples: &[Inputs],
    threads: usize,
    progress: &dyn Progress,
) -> Result<Quantized> {
    apply(graph, &recipe)?;
    let calibration = Calibration {
        graph,
        samples,
        threads,
        memory: 0,
        progress,
    };
    let made = report::measure(&calibration, recipe, None, None);
    check_files(graph)?;
    made
}

/// The layers of a graph without those that are refused.
fn usable(graph: &Graph, refuses: &dyn Fn(&FoundLayer) -> Option<String>) -> Result<Layers> {
    let mut found = layers(graph);
    if found.found.is_empty() {
        return Err(match found.already {
            0 => QuantizeError::NoLayers,
            layers => QuantizeError::Already { layers },
        }
        .into());
    }
    let (mut kept, mut refused) = (Vec::new(), Vec::new());
    for layer in found.found {
        match refuses(&layer) {
            Some(reason) => refused.push(Kept {
                name: layer.name,
                reason,
            }),
            None => kept.push(layer),
        }
    }
    found.found = kept;
    found.others.append(&mut refused);
    Ok(found)
}

/// What is decided of weights alone.
fn weights_only(decision: &Decision) -> Decision {
    Decision {
        scheme: Scheme::WeightsInt8,
        ..decision.clone()
    }
}

/// The layers of a recipe.
fn wanted(found: &Layers, recipe: &Recipe) -> Layers {
    let wanted = |layer: &&FoundLayer| recipe.layer(&layer.name).is_some();
    Layers {
        found: found.found.iter().filter(wanted).cloned().collect(),
        ..Layers::default()
    }
}

/// Chooses the integers of products by column feedback.
fn feed_back(calibration: &Calibration<'_>, found: &Layers, recipe: &mut Recipe) -> Result<()> {
    let layers = wanted(found, recipe);
    calibration.moments(&layers, |names, moments| {
        for name in names {
            let found = layers.found.iter().find(|l| l.name == *name);
            let layer = recipe.layers.iter_mut().find(|l| l.name == *name);
            if let (Some(found), Some(layer)) = (found, layer)
                && let Some(depth) = found.depth
            {
                let made = column_feedback(&layer.weight, &found.weight, depth, moments);
                layer.weight = made.map_err(|error| QuantizeError::Weight {
                    layer: (*name).to_owned(),
                    error,
                })?;
            }
        }
        Ok(())
    })
}

/// Chooses factors of the inputs of products.
fn scale_inputs(calibration: &Calibration<'_>, found: &Layers, recipe: &mut Recipe) -> Result<()> {
    if !recipe.layers.iter().all(|l| l.activation == Activation::Float) || found_floats(recipe) {
        return Err(Error::Config(
            "--rounding awq scales inputs for integer weights alone: it is for --scheme weights-int4 and weights-int8"
                .to_owned(),
        ));
    }
    let layers = wanted(found, recipe);
    calibration.moments(&layers, |names, moments| {
        let own = |name: &&str| {
            let found = layers.found.iter().find(|l| l.name == *name)?;
            let product = Product {
                layer: recipe.layer(name)?,
                tensor: &found.weight,
                depth: found.depth?,
            };
            Some(product)
        };
        let products: Vec<Product<'_>> = names.iter().filter_map(own).collect();
        let made = scaled_inputs(&products, moments).map_err(|(at, error)| QuantizeError::Weight {
            layer: products[at].layer.name.clone(),
            error,
        })?;
        for layer in made {
            if let Some(own) = recipe.layers.iter_mut().find(|l| l.name == layer.name) {
                *own = layer;
            }
        }
        Ok(())
    })
}

/// Says whether a recipe stores 8-bit floats.
fn found_floats(recipe: &Recipe) -> bool {
    recipe.layers.iter().any(|layer| layer.weight.dtype.is_f8())
}
