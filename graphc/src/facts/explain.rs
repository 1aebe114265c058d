//! The decisions behind a plan: rules that fired, what is fused, and why other edges are not.

use std::fmt;

use ir::plan::Work;
use ir::{Graph, NodeId, Plan};
use serde::Serialize;
use serde_json::json;

use crate::driver::VariantReport;

/// A node as it is named here.
pub fn label(graph: &Graph, id: NodeId) -> String {
    passes::fuse::classify::label(graph, id)
}

/// A step that does one thing at some sizes and another at others.
#[derive(Serialize)]
pub struct BySize {
    pub step: String,
    /// What is compared.
    pub size: String,
    pub ranges: Vec<Range>,
}

/// What a step does from a size on.
#[derive(Serialize)]
pub struct Range {
    /// None: below the next range.
    pub from: Option<i64>,
    /// What runs it: `kernel`, or a library's name.
    pub engine: &'static str,
    pub name: String,
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(from) = self.from {
            write!(f, "from {from} on ")?;
        }
        write!(
            f,
            "{} {}",
            if self.engine == "kernel" { "kernel" } else { "call" },
            self.name
        )
    }
}

/// Collects the steps of a plan that do different things at different sizes.
pub fn by_size(plan: &Plan) -> Vec<BySize> {
    let range = |from: Option<i64>, work: &Work| {
        let (engine, name) = match work {
            Work::Launch { kernel, .. } => ("kernel", plan.kernels[*kernel].name.clone()),
            Work::Call { call, .. } => (call.library.name(), call.name().to_owned()),
            Work::Copy { .. } => ("copy", "copy".to_owned()),
        };
        Range { from, engine, name }
    };
    let sized = plan.steps.iter().filter_map(|(id, step)| {
        let first = step.choices.first()?;
        let rest = step.choices.iter().map(|choice| range(Some(choice.from), &choice.work));
        Some(BySize {
            step: id.to_string(),
            size: first.size.to_string(),
            ranges: std::iter::once(range(None, &step.work)).chain(rest).collect(),
        })
    });
    sized.collect()
}

/// The decisions for one target as one value.
pub fn as_json(target: &str, plan: &Plan, r: &VariantReport, proofs: bool) -> serde_json::Value {
    let rules: Vec<_> = r
        .optimize
        .fired
        .iter()
        .map(|f| {
            let origins: Vec<String> = f.origins.iter().map(ToString::to_string).collect();
            let mut rule = json!({
                "pass": f.pass, "rule": f.rule, "origins": origins, "note": f.note,
                "cost_us_before": f.cost.map(|c| c.0), "cost_us_after": f.cost.map(|c| c.1),
            });
            if proofs {
                rule["proof"] = f
                    .proof
                    .iter()
                    .map(|p| json!({ "rule": p.rule, "forward": p.forward, "from": p.from, "to": p.to }))
                    .collect();
            }
            rule
        })
        .collect();
    let regions: Vec<_> = r
        .schedule
        .regions
        .iter()
        .map(|(id, region)| {
            let nodes: Vec<String> = region.nodes.iter().map(|n| label(&r.core, *n)).collect();
            json!({ "id": id.to_string(), "kind": region.kind.name(), "anchor": label(&r.core, region.anchor), "nodes": nodes })
        })
        .collect();
    let unfused: Vec<_> = r
        .fusion
        .unfused
        .iter()
        .map(|e| {
            json!({
                "value": label(&r.core, e.value.node), "producer": e.producer.to_string(),
                "consumer": e.consumer.to_string(), "reason": e.reason, "why": e.reason.text(),
                "advice": e.reason.advice(),
            })
        })
        .collect();
    let fused: Vec<_> = r
        .fusion
        .fused
        .iter()
        .map(|e| {
            json!({
                "producer": label(&r.core, e.producer), "consumer": label(&r.core, e.consumer),
                "region": e.region.to_string(), "how": e.how,
            })
        })
        .collect();
    let tuned: Vec<_> = r
        .tuned
        .iter()
        .map(|t| json!({ "kernel": t.kernel, "product": t.product, "mapping": t.mapping, "predicted": t.predicted }))
        .collect();
    let mut all = json!({
        "target": target, "rules": rules, "regions": regions, "fused": fused, "unfused": unfused, "tuned": tuned,
        "by_size": by_size(plan),
    });
    if let Some(staging) = &r.staging {
        let stages = staging.stages.iter().map(|stage| {
            json!({
                "first": stage.first.to_string(), "last": stage.last.to_string(), "nodes": stage.nodes,
                "weight_bytes": stage.weight_bytes, "state_bytes": stage.state_bytes, "predicted_us": stage.us,
                "received": stage.received, "received_bytes": stage.received_bytes,
            })
        });
        all["stages"] = stages.collect();
    }
    all
}
