//! The time that a model takes on a target before and after it is quantised, as its plans have it.

use ir::plan::Work;
use ir::{Graph, Plan, Program, Target};
use passes::OptLevel;
use serde::Serialize;

use super::Inputs;
use crate::driver::{self, BuildOptions};
use crate::error::{Error, Result};

/// Predicted times of one run on a target, in microseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Predicted {
    pub target: String,
    /// `roofline`: each step's bytes and operations at the data sheet's peaks, and the cost of a launch, one step after
    /// the other. `emulated`: by the emulator's cycles, lanes side by side.
    pub by: &'static str,
    pub before_us: f64,
    pub after_us: f64,
    /// Kernels that are launched and library calls.
    pub launches_before: usize,
    pub launches_after: usize,
}

/// Builds a graph for one target.
///
/// # Errors
/// What [`driver::build`] reports.
pub fn program(graph: &Graph, target: Target) -> Result<Program> {
    Ok(driver::build(graph, &BuildOptions::new(vec![target], OptLevel::default()))?.program)
}

/// Predicts times by the roofline, at the sizes of a sample, or else at the hints of the model's sizes.
///
/// # Errors
/// What building reports; a sample that does not fit the model.
pub fn predict(before: &Graph, after: &Graph, targets: &[Target], sample: Option<&Inputs>) -> Result<Vec<Predicted>> {
    let one = |target: &Target| {
        let [before, after] = [before, after].map(|graph| -> Result<(f64, usize)> {
            let program = program(graph, *target)?;
            let plan = &program.variants[0].plan;
            Ok((roofline(graph, plan, sample)?, launches(plan)))
        });
        let ((before_us, launches_before), (after_us, launches_after)) = (before?, after?);
        Ok(Predicted {
            target: target.to_string(),
            by: "roofline",
            before_us,
            after_us,
            launches_before,
            launches_after,
        })
    };
    targets.iter().map(one).collect()
}

/// Counts what a plan starts.
pub fn launches(plan: &Plan) -> usize {
    let starts = |work: &Work| matches!(work, Work::Launch { .. } | Work::Call { .. });
    plan.steps.values().filter(|step| starts(&step.work)).count()
}

fn roofline(graph: &Graph, plan: &Plan, sample: Option<&Inputs>) -> Result<f64> {
    let bindings = match sample {
        None => ir::dim::hints(&plan.symbols),
        Some(sample) => {
            let shapes = sample.iter().map(|(name, t)| (name.as_str(), t.shape.as_slice()));
            let bound = graph.bind(&shapes.collect());
            bound.map_err(|error| Error::Config(format!("--calibrate: {error}")))?
        }
    };
    let works = plan.works(&bindings)?;
    let micros = plan.steps.iter().map(|(id, step)| {
        let launch = match step.work {
            Work::Launch { .. } | Work::Call { .. } => plan.target.launch_us,
            Work::Copy { .. } => 0.0,
        };
        launch + works[id].roofline(&plan.target).map_or(0.0, |line| line.micros)
    });
    Ok(micros.sum())
}
