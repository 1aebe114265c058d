//! Runs passes: verifies, times, observes, disables, stops, and keeps the graph's text when one fails.
//!
//! Invariant: a pass is a function from graph to graph; whether it changed anything is compared here, so the report is
//! truthful whatever the pass believes.

use std::time::Instant;

use ir::{Graph, Target};

use crate::error::{PassError, PassFault};
use crate::options::OptimizeOptions;
use crate::report::{Fired, OptimizeReport, PassRun};

/// What a pass may look at, and where it reports to.
pub struct Context<'a> {
    pub target: &'a Target,
    pub options: &'a OptimizeOptions,
    pub fired: Vec<Fired>,
}

/// A named function from graph to graph.
#[derive(Clone, Copy)]
pub struct Pass {
    pub name: &'static str,
    pub run: fn(&Graph, &mut Context<'_>) -> Result<Graph, PassFault>,
    /// Whether the Core stage needs it; such a pass cannot be disabled.
    pub required: bool,
}

/// Runs the passes in order.
///
/// # Errors
/// As [`crate::optimize`].
pub fn run(
    graph: Graph,
    target: &Target,
    options: &OptimizeOptions,
    passes: &[Pass],
) -> Result<(Graph, OptimizeReport), PassError> {
    let mut report = OptimizeReport::default();
    let mut graph = graph;
    let mut context = Context {
        target,
        options,
        fired: Vec::new(),
    };
    for pass in passes {
        if !pass.required && !options.enabled(pass.name) {
            continue;
        }
        let start = Instant::now();
        let next = match (pass.run)(&graph, &mut context) {
            Ok(next) => next,
            Err(fault) => return Err(failure(pass.name, fault, &graph)),
        };
        let seconds = start.elapsed().as_secs_f64();
        let changed = !same(&graph, &next);
        tracing::debug!(pass = pass.name, seconds, changed, nodes = next.nodes().len(), "pass");
        report.passes.push(PassRun {
            pass: pass.name,
            seconds,
            changed,
            nodes: next.nodes().len(),
        });
        if options.verify
            && let Err(errors) = ir::graph::verify::verify(&next)
        {
            return Err(failure(pass.name, PassFault::Verify(errors.to_string()), &next));
        }
        if let Some(observer) = &options.observer {
            observer(pass.name, &next);
        }
        graph = next;
        if options.stop_after.as_deref() == Some(pass.name) {
            break;
        }
    }
    report.fired = context.fired;
    Ok((graph, report))
}

fn failure(pass: &'static str, fault: PassFault, graph: &Graph) -> PassError {
    PassError {
        pass,
        fault,
        graph: ir::graph::print::print(
            graph,
            ir::graph::print::PrintOptions {
                elide_above: Some(16),
                ..ir::graph::print::PrintOptions::default()
            },
        ),
    }
}

/// Says whether two graphs have the same nodes, in the same order, and the same outputs.
fn same(a: &Graph, b: &Graph) -> bool {
    a.stage == b.stage
        && a.nodes().len() == b.nodes().len()
        && a.constants().len() == b.constants().len()
        && a.outputs() == b.outputs()
        && a.nodes().values().zip(b.nodes().values()).all(|(x, y)| x == y)
}
