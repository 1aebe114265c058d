//! Checks a schedule against its graph and collects every error.

use std::collections::BTreeSet;

use super::{RegionId, Schedule};
use crate::graph::op::Op;
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
            if !given.insert(*value) {
                errors.push(ScheduleError::TwiceGiven { region, value: *value });
            }
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
}
