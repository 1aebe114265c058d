//! `graphc explain`: which rule did what, which nodes run together, and why the others do not.

use ir::schedule::Region;
use ir::{Graph, NodeId};
use serde_json::json;

use super::args::{self, BuildArgs, Format, ModelArgs};
use super::{Context, output};
use crate::driver::{self, Model, VariantReport};
use crate::error::{Error, Result};

/// Say which rule rewrote and fused what, and for each edge not fused, why.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    build: BuildArgs,
    /// The target whose costs decide.
    #[arg(long, default_value = "cpu")]
    target: String,
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn run(args: &Args, _context: &Context) -> Result<()> {
    let targets = args::targets(&args.target)?;
    let Model::Graph(graph) = driver::load(&args.model.model, &args.model.import()?)? else {
        return Err(Error::Config(
            "an artifact no longer holds its graph; explain the model it was made from".to_owned(),
        ));
    };
    let built = driver::build(&graph, &args.build.options(targets)?)?;
    let mut all = Vec::new();
    for (variant, report) in built.program.variants.iter().zip(&built.reports) {
        let target = variant.plan.target.to_string();
        match args.format {
            Format::Json => all.push(as_json(&target, report)),
            Format::Text => output::print(&text(&target, report))?,
        }
    }
    match (args.format, all.len()) {
        (Format::Text, _) => Ok(()),
        (Format::Json, 1) => output::print_json(&all[0]),
        (Format::Json, _) => output::print_json(&json!(all)),
    }
}

fn label(graph: &Graph, id: NodeId) -> String {
    passes::fuse::classify::label(graph, id)
}

fn text(target: &str, r: &VariantReport) -> String {
    let mut text = format!("target {target}\n\nrewrites\n");
    let mut counts: indexmap::IndexMap<(&str, &str), usize> = indexmap::IndexMap::new();
    for f in &r.optimize.fired {
        *counts.entry((f.pass, f.rule)).or_insert(0) += 1;
    }
    for ((pass, rule), n) in &counts {
        text += &format!("  {n:>5} x {rule} ({pass})\n");
    }
    for f in r.optimize.fired.iter().filter(|f| f.note.is_some() || f.cost.is_some()) {
        let at = f.origins.first().map(ToString::to_string).unwrap_or_default();
        text += &format!("  {} at {at}", f.rule);
        if let Some((before, after)) = f.cost {
            text += &format!(": {before:.2} -> {after:.2} us estimated");
        }
        if let Some(note) = &f.note {
            text += &format!(": {note}");
        }
        text += "\n";
        for step in &f.proof {
            let side = if step.forward { "" } else { ", read backwards" };
            text += &format!("      {} = {}  by {}{side}\n", step.from, step.to, step.rule);
        }
    }
    text += "\nregions\n";
    for (id, region) in r.schedule.regions.iter() {
        text += &format!("  {id} {}\n", describe(&r.core, region));
    }
    text += "\nedges through memory\n";
    for e in &r.fusion.unfused {
        let (from, to) = (e.producer, e.consumer);
        text += &format!(
            "  {} from {from} to {to}: {}\n",
            label(&r.core, e.value.node),
            e.reason.text()
        );
    }
    text
}

fn describe(graph: &Graph, region: &Region) -> String {
    let nodes: Vec<String> = region
        .nodes
        .iter()
        .map(|n| graph.node(*n).op.name().to_owned())
        .collect();
    let mut text = format!(
        "{}: {} at {}",
        region.kind.name(),
        nodes.join(" "),
        graph.node(region.anchor).origin
    );
    for part in &region.parts {
        text += &format!(", stored as part {} of {}", part.operand, label(graph, part.whole.node));
    }
    text
}

fn as_json(target: &str, r: &VariantReport) -> serde_json::Value {
    let rules: Vec<_> = r
        .optimize
        .fired
        .iter()
        .map(|f| {
            let origins: Vec<String> = f.origins.iter().map(ToString::to_string).collect();
            json!({
                "pass": f.pass, "rule": f.rule, "origins": origins, "note": f.note,
                "cost_us_before": f.cost.map(|c| c.0), "cost_us_after": f.cost.map(|c| c.1),
                "proof": f.proof.iter().map(|p| json!({
                    "rule": p.rule, "forward": p.forward, "from": p.from, "to": p.to,
                })).collect::<Vec<_>>(),
            })
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
    json!({ "target": target, "rules": rules, "regions": regions, "fused": fused, "unfused": unfused })
}
