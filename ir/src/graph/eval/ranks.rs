//! The graphs of all ranks, evaluated in lockstep: each up to its next collective, then all of them past it.

use indexmap::IndexMap;

use super::collective::collective;
use super::{EvalError, Run, at};
use crate::data::HostTensor;
use crate::graph::{Graph, NodeId};
use crate::library::LibraryCall;
use crate::plan::{Source, Stage};

/// Evaluates one graph for each rank, each on inputs of its own, and returns their outputs in the order of the ranks.
///
/// # Errors
/// As [`super::evaluate`], with the rank; ranks whose next collectives differ, or that are not as many as a collective
/// is of.
pub fn evaluate_ranks(
    graphs: &[Graph],
    inputs: &[IndexMap<String, HostTensor>],
) -> Result<Vec<IndexMap<String, HostTensor>>, EvalError> {
    let of = |rank: usize| {
        move |error| EvalError::Rank {
            rank,
            error: Box::new(error),
        }
    };
    let pairs = graphs.iter().zip(inputs).enumerate();
    let mut runs: Vec<Run<'_>> = pairs
        .map(|(rank, (graph, inputs))| Run::new(graph, inputs).map_err(of(rank)))
        .collect::<Result<_, _>>()?;
    loop {
        let mut stops: Vec<Option<(NodeId, &LibraryCall)>> = Vec::with_capacity(runs.len());
        for (rank, run) in runs.iter_mut().enumerate() {
            stops.push(run.advance().map_err(of(rank))?);
        }
        let name = |stop: Option<(NodeId, &LibraryCall)>| stop.map_or("the end", |(_, call)| call.name()).to_owned();
        let Some(first) = stops.first().copied().flatten() else {
            return match stops.iter().position(Option::is_some) {
                Some(rank) => Err(EvalError::Order {
                    rank,
                    got: name(stops[rank]),
                    first: "the end".into(),
                }),
                None => {
                    let outputs = runs.iter().enumerate();
                    outputs.map(|(rank, run)| run.outputs().map_err(of(rank))).collect()
                }
            };
        };
        let differs = |stop: &Option<(NodeId, &LibraryCall)>| stop.is_none_or(|(_, call)| call != first.1);
        if let Some(rank) = stops.iter().position(differs) {
            return Err(EvalError::Order {
                rank,
                got: name(stops[rank]),
                first: name(Some(first)),
            });
        }
        // A run stops nowhere else.
        let Some(call) = first.1.as_collective() else { continue };
        if call.ranks as usize != runs.len() {
            return Err(EvalError::Ranks {
                got: runs.len(),
                expected: call.ranks,
            });
        }
        let stops: Vec<NodeId> = stops.iter().flatten().map(|(node, _)| *node).collect();
        let parts: Vec<_> = runs.iter().zip(&stops).map(|(run, id)| run.operand(*id)).collect();
        let result = collective(call, &parts).map_err(|error| at(runs[0].graph, stops[0], error))?;
        for (run, id) in runs.iter_mut().zip(stops) {
            run.set(id, vec![result.clone()]);
        }
    }
}

/// Evaluates the graphs of stages one after the other, and returns the model's outputs. `inputs` are the model's.
///
/// # Errors
/// As [`super::evaluate`], with the stage; ports that do not belong to the model or to an earlier stage.
pub fn evaluate_stages(
    graphs: &[Graph],
    stages: &[Stage],
    inputs: &IndexMap<String, HostTensor>,
) -> Result<IndexMap<String, HostTensor>, EvalError> {
    let mut results: Vec<Vec<HostTensor>> = Vec::with_capacity(graphs.len());
    let mut outputs: Vec<(u32, String, HostTensor)> = Vec::new();
    for (rank, (graph, stage)) in graphs.iter().zip(stages).enumerate() {
        let mut given = IndexMap::new();
        for (input, source) in graph.inputs().iter().zip(&stage.inputs) {
            let tensor = match *source {
                Source::Model(_) => inputs.get(&input.name),
                Source::Stage { stage, result } => results.get(stage as usize).and_then(|of| of.get(result as usize)),
            };
            if let Some(tensor) = tensor {
                given.insert(input.name.clone(), tensor.clone());
            }
        }
        let made = super::evaluate(graph, &given).map_err(|error| EvalError::Rank {
            rank,
            error: Box::new(error),
        })?;
        for ((name, tensor), number) in made.iter().zip(&stage.results) {
            outputs.extend(number.map(|number| (number, name.clone(), tensor.clone())));
        }
        results.push(made.into_values().collect());
    }
    outputs.sort_by_key(|(number, ..)| *number);
    Ok(outputs.into_iter().map(|(_, name, tensor)| (name, tensor)).collect())
}
