//! Checks a schedule against its graph and collects every error.

use std::collections::{BTreeMap, BTreeSet};

use super::{Part, RegionId, Schedule};
use crate::graph::op::{Op, View};
use crate::graph::{Graph, NodeId, Value};

/// One way in which a schedule is wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScheduleError {
    #[error("{region} names {what}, which the graph does not have")]
    Unknown { region: RegionId, what: String },
    #[error("{region}: its nodes are not in topological order, each once, at {node}")]
    Order { region: RegionId, node: NodeId },
    #[error("{region}: its anchor {anchor} is not one of its nodes")]
    Anchor { region: RegionId, anchor: NodeId },
    #[error("{region}: {node} reads {operand}, which is neither a node of the region nor among its inputs")]
    Operand {
        region: RegionId,
        node: NodeId,
        operand: Value,
    },
    #[error("{region}: input {value} is not a leaf and no earlier region gives it")]
    Input { region: RegionId, value: Value },
    #[error("{region}: output {value} is not of one of its nodes")]
    Output { region: RegionId, value: Value },
    #[error("{region}: output {value} is an output of an earlier region too")]
    TwiceGiven { region: RegionId, value: Value },
    #[error("{region}: {value} is to be part {operand} of {whole}, but {why}")]
    Part {
        region: RegionId,
        value: Value,
        whole: Value,
        operand: usize,
        why: &'static str,
    },
    #[error("{region} stores nothing")]
    NoOutput { region: RegionId },
    #[error("graph output {name:?} ({value}) is given by no region")]
    GraphOutput { name: String, value: Value },
}

/// All errors of a schedule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the schedule is not valid:\n{}", errors.iter().map(|e| format!("  {e}")).collect::<Vec<_>>().join("\n"))]
pub struct InvalidSchedule {
    /// Never empty.
    pub errors: Vec<ScheduleError>,
}

/// Checks a schedule against the graph it was made for.
///
/// # Errors
/// Every error found.
pub fn verify(graph: &Graph, schedule: &Schedule) -> Result<(), InvalidSchedule> {
    let mut errors = Vec::new();
    let mut given: BTreeSet<Value> = BTreeSet::new();
    // Of concats that are stored part by part: the operands that exist so far.
    let mut placed: BTreeMap<Value, BTreeSet<usize>> = BTreeMap::new();
    let exists = |v: &Value| {
        graph
            .nodes()
            .get(v.node)
            .is_some_and(|n| (v.index as usize) < n.results.len())
    };
    let leaf = |v: &Value| graph.nodes().get(v.node).is_some_and(|n| n.op.is_leaf());
    for (region, r) in schedule.regions.iter() {
        let values = r
            .inputs
            .iter()
            .chain(&r.outputs)
            .filter(|v| !exists(v))
            .map(ToString::to_string);
        let nodes = r
            .nodes
            .iter()
            .filter(|n| graph.nodes().get(**n).is_none())
            .map(ToString::to_string);
        let unknown: Vec<String> = values.chain(nodes).collect();
        if !unknown.is_empty() {
            errors.extend(unknown.into_iter().map(|what| ScheduleError::Unknown { region, what }));
            continue;
        }
        errors.extend(
            r.nodes
                .windows(2)
                .filter(|w| w[0] >= w[1])
                .map(|w| ScheduleError::Order { region, node: w[1] }),
        );
        if !r.nodes.contains(&r.anchor) {
            errors.push(ScheduleError::Anchor {
                region,
                anchor: r.anchor,
            });
        }
        let nodes: BTreeSet<NodeId> = r.nodes.iter().copied().collect();
        let inputs: BTreeSet<Value> = r.inputs.iter().copied().collect();
        for node in &r.nodes {
            for operand in &graph.node(*node).operands {
                // Leaves other than graph inputs may be written into the kernel.
                let inlined = leaf(operand) && !matches!(graph.node(operand.node).op, Op::Input { .. });
                if !nodes.contains(&operand.node) && !inputs.contains(operand) && !inlined {
                    errors.push(ScheduleError::Operand {
                        region,
                        node: *node,
                        operand: *operand,
                    });
                }
            }
        }
        errors.extend(
            r.inputs
                .iter()
                .filter(|v| !leaf(v) && !given.contains(v))
                .map(|v| ScheduleError::Input { region, value: *v }),
        );
        if r.outputs.is_empty() {
            errors.push(ScheduleError::NoOutput { region });
        }
        for value in &r.outputs {
            if !nodes.contains(&value.node) {
                errors.push(ScheduleError::Output { region, value: *value });
            }
            if r.part(*value).is_none() && !given.insert(*value) {
                errors.push(ScheduleError::TwiceGiven { region, value: *value });
            }
        }
        for part in &r.parts {
            let Part { value, whole, operand } = *part;
            let concat = graph.nodes().get(whole.node);
            let operands = match concat.map(|n| (&n.op, &n.operands)) {
                Some((Op::View(View::Concat { .. }), operands)) if whole.index == 0 => Some(operands),
                _ => None,
            };
            let why = match operands {
                _ if !r.outputs.contains(&value) => Some("the region does not give it"),
                None => Some("that is no concat"),
                Some(operands) if operands.get(operand) != Some(&value) => Some("the concat has another operand there"),
                Some(operands) => {
                    let parts = placed.entry(whole).or_default();
                    let again = !parts.insert(operand);
                    let complete = parts.len() == operands.len() && !again;
                    if complete && !given.insert(whole) {
                        errors.push(ScheduleError::TwiceGiven { region, value: whole });
                    }
                    again.then_some("that part is given twice")
                }
            };
            errors.extend(why.map(|why| ScheduleError::Part {
                region,
                value,
                whole,
                operand,
                why,
            }));
        }
    }
    for output in graph.outputs() {
        let fed = matches!(
            graph.nodes().get(output.value.node).map(|n| &n.op),
            Some(Op::Input { .. } | Op::Constant(_))
        );
        if !fed && !given.contains(&output.value) {
            errors.push(ScheduleError::GraphOutput {
                name: output.name.clone(),
                value: output.value,
            });
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(InvalidSchedule { errors })
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;
    use crate::entity::Entity;

    #[test]
    fn regions_get_what_earlier_ones_give() {
        let text = "graph @g {\n n0 = input \"x\" : f32[4]\n n1 = exp n0\n n2 = log n1\n return n2 as \"y\"\n}";
        let graph = crate::graph::parse::parse(text).unwrap();
        let n = NodeId::new;
        let region = |nodes: &[usize], input: usize, output: usize| Region {
            kind: RegionKind::Pointwise,
            anchor: n(nodes[0]),
            nodes: nodes.iter().map(|i| n(*i)).collect(),
            inputs: vec![n(input).into()],
            outputs: vec![n(output).into()],
            parts: Vec::new(),
            lane: LaneKind::Compute,
        };
        let schedule = |regions: &[Region]| Schedule {
            regions: regions.iter().cloned().collect(),
        };
        let good = schedule(&[region(&[1], 0, 1), region(&[2], 1, 2)]);
        verify(&graph, &good).unwrap();
        assert_eq!(
            good.to_string(),
            "schedule {\n  r0 pointwise anchor n1 {n1} (n0) -> n1\n  r1 pointwise anchor n2 {n2} (n1) -> n2\n}\n"
        );
        let swapped = schedule(&[region(&[2], 1, 2), region(&[1], 0, 1)]);
        let errors = verify(&graph, &swapped).unwrap_err().errors;
        assert!(matches!(errors.as_slice(), [ScheduleError::Input { .. }]), "{errors:?}");
        let partial = schedule(&[region(&[2], 0, 1)]);
        let errors = verify(&graph, &partial).unwrap_err().errors;
        assert_eq!(errors.len(), 3, "{errors:?}");
    }

    #[test]
    fn a_concat_is_there_when_all_its_parts_are() {
        let text = "graph @g {\n n0 = input \"x\" : f32[4]\n n1 = exp n0\n n2 = log n0\n n3 = concat n1, n2 {axis=0}\n \
                    return n3 as \"y\"\n}";
        let graph = crate::graph::parse::parse(text).unwrap();
        let n = |i: usize| NodeId::new(i);
        let region = |node: usize, operand: usize| Region {
            kind: RegionKind::Pointwise,
            anchor: n(node),
            nodes: vec![n(node)],
            inputs: vec![n(0).into()],
            outputs: vec![n(node).into()],
            parts: vec![Part {
                value: n(node).into(),
                whole: n(3).into(),
                operand,
            }],
            lane: LaneKind::Compute,
        };
        let schedule = |regions: Vec<Region>| Schedule {
            regions: regions.into_iter().collect(),
        };
        let good = schedule(vec![region(1, 0), region(2, 1)]);
        verify(&graph, &good).unwrap();
        assert!(good.to_string().contains("(n0) -> n2 as part 1 of n3\n"), "{good}");
        let one = verify(&graph, &schedule(vec![region(1, 0)])).unwrap_err().errors;
        assert!(matches!(one.as_slice(), [ScheduleError::GraphOutput { .. }]), "{one:?}");
        let wrong = verify(&graph, &schedule(vec![region(1, 1), region(2, 1)]))
            .unwrap_err()
            .errors;
        assert!(
            matches!(
                wrong.as_slice(),
                [
                    ScheduleError::Part { operand: 1, .. },
                    ScheduleError::GraphOutput { .. }
                ]
            ),
            "{wrong:?}"
        );
    }
}
