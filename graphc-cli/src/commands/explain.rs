//! `graphc explain`: which rule did what, which nodes run together, and why the others do not.

use indexmap::IndexMap;
use ir::op::Composite;
use ir::schedule::Region;
use ir::{Graph, Op, Plan};
use passes::fuse::Barrier;
use passes::lower::unpacked::ForRows;
use serde_json::json;

use super::args::{self, BuildArgs, Format, ModelArgs};
use super::{Context, output};
use graphc::driver::{self, Model, VariantReport};
use graphc::error::{Error, Result};
use graphc::facts::explain::{as_json, by_size, label};

/// Say which rule rewrote and fused what, and for each edge not fused, why.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    build: BuildArgs,
    /// The target whose costs decide.
    #[arg(long, default_value = "cpu")]
    target: String,
    /// Show for each choice the steps that prove it.
    #[arg(long)]
    proofs: bool,
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
        // Ranks with a part of each layer are told alike; stages differ.
        let alike = |share: &ir::plan::Share| share.rank > 0 && share.stage.is_none();
        if variant.plan.share.as_ref().is_some_and(alike) {
            continue;
        }
        match args.format {
            Format::Json => all.push(as_json(&target, &variant.plan, report, args.proofs)),
            Format::Text => {
                let stage = variant.plan.share.as_ref().filter(|share| share.stage.is_some());
                // Where the model was cut is said once.
                let first = stage.is_none_or(|share| share.rank == 0);
                let target = stage.map_or(target.clone(), |_| runtime::device::made_for(&variant.plan));
                output::print(&text(&target, &variant.plan, report, args.proofs, first))?;
            }
        }
    }
    match (args.format, all.len()) {
        (Format::Text, _) => Ok(()),
        (Format::Json, 1) => output::print_json(&all[0]),
        (Format::Json, _) => output::print_json(&json!(all)),
    }
}

/// Equal lines, each once with how often it was there and the first place: twelve equal layers are one entry.
#[derive(Default)]
struct Groups(IndexMap<String, (usize, String)>);

impl Groups {
    fn add(&mut self, line: String, place: impl FnOnce() -> String) {
        let (count, _) = self.0.entry(line).or_insert_with(|| (0, place()));
        *count += 1;
    }

    fn text(&self) -> String {
        let entry = |(line, (count, place)): (&String, &(usize, String))| match count {
            1 => format!("  {:>5} {line} at {place}\n", ""),
            _ => format!("  {count:>4}x {line}, first at {place}\n"),
        };
        self.0.iter().map(entry).collect()
    }
}

fn text(target: &str, plan: &Plan, r: &VariantReport, proofs: bool, first: bool) -> String {
    let mut text = format!("target {target}\n");
    if let Some(sharding) = &r.sharding {
        text += &format!("\nshared among {} devices\n", sharding.ranks);
        sharding
            .to_string()
            .lines()
            .for_each(|line| text += &format!("  {line}\n"));
    }
    if let Some(staging) = r.staging.as_ref().filter(|_| first) {
        text += &format!("\nby layers on {} devices\n", staging.stages.len());
        staging
            .to_string()
            .lines()
            .for_each(|line| text += &format!("  {line}\n"));
    }
    text += "\nrewrites\n";
    let mut counts: IndexMap<(&str, &str), usize> = IndexMap::new();
    for f in &r.optimize.fired {
        *counts.entry((f.pass, f.rule)).or_insert(0) += 1;
    }
    for ((pass, rule), n) in &counts {
        text += &format!("  {n:>4}x {rule} ({pass})\n");
    }
    let mut choices = Groups::default();
    let mut steps = String::new();
    for f in r.optimize.fired.iter().filter(|f| f.note.is_some() || f.cost.is_some()) {
        let place = || f.origins.first().map(ToString::to_string).unwrap_or_default();
        let mut line = f.rule.to_owned();
        if let Some((before, after)) = f.cost {
            line += &format!(": {before:.2} -> {after:.2} us estimated");
        }
        if let Some(note) = &f.note {
            line += &format!(": {note}");
        }
        if !f.proof.is_empty() {
            steps += &format!("  {line} at {}\n", place());
        }
        choices.add(line, place);
        for step in &f.proof {
            let side = if step.forward { "" } else { ", read backwards" };
            steps += &format!("      {} = {}  by {}{side}\n", step.from, step.to, step.rule);
        }
    }
    if !choices.0.is_empty() {
        text += &format!("\nchoices\n{}", choices.text());
    }
    if proofs {
        text += &format!("\nproofs\n{steps}");
    } else if !steps.is_empty() {
        text += "  (--proofs shows why each is equal to what it replaced)\n";
    }
    let mut regions = Groups::default();
    for region in r.schedule.regions.values() {
        regions.add(describe(&r.core, region), || {
            r.core.node(region.anchor).origin.to_string()
        });
    }
    text += &format!(
        "\nkernels and calls, each with what is fused into it\n{}",
        regions.text()
    );
    let mut sized = Groups::default();
    for step in by_size(plan) {
        let ranges: Vec<String> = step.ranges.iter().map(ToString::to_string).collect();
        sized.add(format!("as {} grows: {}", step.size, ranges.join(", ")), || {
            step.step.clone()
        });
    }
    if !sized.0.is_empty() {
        text += &format!(
            "\nsteps whose work depends on a size, chosen when sizes are bound\n{}",
            sized.text()
        );
    }
    if !r.tuned.is_empty() {
        text += "\nproducts whose tiling was measured, not predicted\n";
        for tuned in &r.tuned {
            text += &format!("  {}: {}\n", tuned.kernel, tuned.product);
            text += &format!("    takes {}\n", tuned.mapping);
            if tuned.mapping != tuned.predicted {
                text += &format!("    and not {}\n", tuned.predicted);
            }
        }
    }
    if !r.decided.is_empty() {
        text += "\nproducts whose kernel and call were both measured\n";
        for decided in &r.decided {
            let other = if decided.changed {
                ", where the estimate takes the other"
            } else {
                ""
            };
            text += &format!(
                "  {}: {}\n    {}{other}\n",
                decided.step, decided.product, decided.engine
            );
        }
    }
    if !r.filtered.is_empty() {
        text += "\nconvolutions that Winograd's filtering may compute, in three launches each, by predicted time\n";
        for f in &r.filtered {
            let (takes, p) = (if f.taken { "takes" } else { "leaves" }, &f.predicted);
            text += &format!(
                "  {}: {takes} {}, {:.1} us (patches {:.1}, products {:.1}, pixels {:.1}, launches {:.1}); \
                 a sum over the window {:.1} us\n",
                f.step,
                f.winograd.name(),
                p.filtered(),
                p.patches,
                p.product,
                p.pixels,
                p.launches,
                p.direct
            );
        }
    }
    if !r.unpacked.is_empty() {
        text += "\nproducts whose quantised weights are stored as numbers first, by predicted time\n";
        for u in &r.unpacked {
            let p = &u.predicted;
            let from = match &u.from {
                ForRows::All => String::new(),
                ForRows::From { least, .. } => format!(" from {least} rows on, there"),
            };
            text += &format!(
                "  {}:{from} {:.1} us (numbers {:.1}, product {:.1}, launch {:.1}); unpacked tile by tile {:.1} us\n",
                u.step,
                p.stored(),
                p.unpack,
                p.product,
                p.launch,
                p.fused
            );
        }
    }
    let mut edges: IndexMap<Barrier, Groups> = IndexMap::new();
    for e in &r.fusion.unfused {
        let from = kind(&r.core, &r.schedule.regions[e.producer]);
        let to = kind(&r.core, &r.schedule.regions[e.consumer]);
        let line = format!("{from} to {to}");
        edges
            .entry(e.reason)
            .or_default()
            .add(line, || label(&r.core, e.value.node));
    }
    text += "\nedges through memory\n";
    for (reason, groups) in &edges {
        text += &format!("  {}\n", reason.text());
        text += &format!("  -> {}\n", reason.advice());
        text += &groups.text();
    }
    text
}

/// A region in a word: what it is built around.
fn kind(graph: &Graph, region: &Region) -> String {
    let anchor = graph.node(region.anchor).op.name();
    match region.nodes.len() {
        1 => anchor.to_owned(),
        n => format!("{anchor} and {} more", n - 1),
    }
}

fn describe(graph: &Graph, region: &Region) -> String {
    let nodes: Vec<String> = region
        .nodes
        .iter()
        .map(|n| graph.node(*n).op.name().to_owned())
        .collect();
    let mut text = format!("{}: {}", region.kind.name(), nodes.join(" "));
    for node in &region.nodes {
        let node = graph.node(*node);
        if let (Op::Composite(Composite::Dequantize { .. }), Some(stored)) = (&node.op, node.operands.first()) {
            let ty = graph.ty(*stored);
            text += &format!(", reads {ty} as it is stored and dequantises it on the way in");
        }
    }
    for part in &region.parts {
        text += &format!(", stored as part {} of {}", part.operand, label(graph, part.whole.node));
    }
    text
}
