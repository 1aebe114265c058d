//! What the page shows, as one JSON value. Figures that `inspect` and `explain` print are theirs; added here are the
//! graphs as nodes and edges, and the plan as steps and memory.

use ir::plan::work::{Roofline, StepWork};
use ir::plan::{Place, Plan, Work, arena};
use ir::schedule::Schedule;
use ir::{DType, Entity, Graph, Op, Target};
use serde::Serialize;
use serde_json::{Value, json};

use super::super::load::Loaded;
use super::super::profile::{self, Measured};
use super::super::times::Predicted;
use graphc::error::Result;
use graphc::facts::Contents;
use graphc::facts::VariantFacts;
use graphc::facts::explain;

/// Where the steps lie in time, and who says so.
#[derive(Serialize)]
pub struct Timeline {
    /// `predicted` or `measured`.
    source: &'static str,
    /// The device that was measured, or the GPU that was emulated.
    device: Option<String>,
    total_us: f64,
    intervals: Vec<Interval>,
    /// What `graphc profile` prints, where it was measured.
    profile: Option<Value>,
}

#[derive(Serialize)]
struct Interval {
    step: usize,
    start_us: f64,
    us: f64,
}

impl Timeline {
    pub fn predicted(predicted: &Predicted) -> Timeline {
        Timeline {
            source: "predicted",
            device: Some(predicted.gpu.to_owned()),
            total_us: predicted.micros,
            intervals: predicted
                .timeline
                .iter()
                .map(|span| Interval {
                    step: span.step.index(),
                    start_us: span.start,
                    us: span.micros,
                })
                .collect(),
            profile: None,
        }
    }

    pub fn measured(measured: Measured) -> Timeline {
        let run = &measured.profile.run;
        Timeline {
            source: "measured",
            total_us: run.device_us,
            intervals: run
                .timeline
                .iter()
                .map(|at| Interval {
                    step: at.step,
                    start_us: at.start_us,
                    us: at.us,
                })
                .collect(),
            profile: Some(profile::as_json(&measured)),
            device: Some(measured.device),
        }
    }
}

/// A step of the plan at the sizes' hints.
#[derive(Serialize)]
struct Step {
    name: String,
    /// `kernel`, `copy` or the library's name.
    engine: &'static str,
    lane: &'static str,
    waits: Vec<usize>,
    #[serde(flatten)]
    work: StepWork,
    roofline: Option<Roofline>,
}

/// A buffer of the arena at the sizes' hints.
#[derive(Serialize)]
struct Buffer {
    name: String,
    ty: String,
    bytes: usize,
    offset: usize,
    /// The first and the last step that it lives in.
    first: usize,
    last: usize,
    /// Whether it is where another buffer was.
    in_place: bool,
}

/// All that the page shows.
pub fn all(loaded: &Loaded, contents: &Contents, variants: Vec<Value>) -> Value {
    json!({
        "graphc": env!("CARGO_PKG_VERSION"),
        "contents": contents,
        "before": loaded.graph.as_ref().map(|graph| nodes(graph, None)),
        "variants": variants,
    })
}

/// What it shows of one target.
///
/// # Errors
/// A size that does not evaluate at the hints.
pub fn variant(loaded: &Loaded, variant: usize, facts: &VariantFacts, timeline: Option<Timeline>) -> Result<Value> {
    let plan = &loaded.program.variants[variant].plan;
    let report = loaded.reports.get(variant);
    Ok(json!({
        "facts": facts,
        "peaks": peaks(&plan.target),
        "explain": report.map(|report| explain::as_json(&facts.target, plan, report, false)),
        "after": report.map(|report| nodes(&report.core, Some(&report.schedule))),
        "steps": steps(plan)?,
        "buffers": buffers(plan)?,
        "timeline": timeline,
    }))
}

/// The data sheet's peaks.
fn peaks(target: &Target) -> Value {
    let tops = |dtype: DType| target.contract_tops(dtype);
    json!({
        "product": target.product,
        "memory_tbps": target.memory_tbps,
        "vector_tflops": target.vector_f32_tflops,
        "product_tflops": { "f32": tops(DType::F32), "f16": tops(DType::F16), "bf16": tops(DType::BF16), "i8": tops(DType::I8) },
    })
}

/// The nodes of a graph, without its constants, which stand with their readers.
fn nodes(graph: &Graph, schedule: Option<&Schedule>) -> Value {
    let is_constant = |id: ir::NodeId| matches!(graph.node(id).op, Op::Constant(_));
    let nodes: Vec<Value> = graph
        .nodes()
        .iter()
        .filter(|(id, _)| !is_constant(*id))
        .map(|(id, node)| {
            let (constants, operands): (Vec<&ir::Value>, Vec<&ir::Value>) = node.operands.iter().partition(|v| is_constant(v.node));
            let regions = schedule.map_or(Vec::new(), |schedule| {
                let with = schedule.regions.iter().filter(|(_, region)| region.nodes.contains(&id));
                with.map(|(region, _)| region.to_string()).collect()
            });
            json!({
                "id": id.to_string(),
                "op": match &node.op { Op::Input { index } => graph.inputs().get(*index as usize).map_or("input", |i| &i.name), op => op.name() },
                "is_input": matches!(node.op, Op::Input { .. }),
                "label": explain::label(graph, id),
                "types": node.results.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "operands": operands.iter().map(|v: &&ir::Value| v.node.to_string()).collect::<Vec<_>>(),
                "constants": constants.iter().map(|v| graph.ty(**v).to_string()).collect::<Vec<_>>(),
                "regions": regions,
            })
        })
        .collect();
    let outputs: Vec<Value> = graph
        .outputs()
        .iter()
        .map(|output| json!({ "name": output.name, "node": output.value.node.to_string() }))
        .collect();
    json!({ "nodes": nodes, "outputs": outputs })
}

fn steps(plan: &Plan) -> Result<Vec<Step>> {
    let bindings = ir::dim::hints(&plan.symbols);
    let works = plan.works(&bindings)?;
    let mut steps = Vec::with_capacity(plan.steps.len());
    for (id, step) in plan.steps.iter() {
        let (name, engine) = match step.at(&bindings)? {
            Work::Launch { kernel, .. } => (plan.kernels[*kernel].name.clone(), "kernel"),
            Work::Call { call, .. } => (call.name().to_owned(), call.library.name()),
            Work::Copy { from, to } => {
                let on_host = |place: &Place| matches!(place, Place::Input | Place::Output | Place::Streamed(_));
                let name = match (on_host(&plan.buffers[*from].place), on_host(&plan.buffers[*to].place)) {
                    (true, false) => format!("copy {} to the device", plan.buffers[*from].name),
                    (false, true) => format!("copy {} to the host", plan.buffers[*to].name),
                    _ => format!("copy {}", plan.buffers[*from].name),
                };
                (name, "copy")
            }
        };
        steps.push(Step {
            name,
            engine,
            lane: plan.lanes[step.lane].kind.name(),
            waits: step.waits.iter().map(|wait| wait.index()).collect(),
            work: works[id],
            roofline: works[id].roofline(&plan.target),
        });
    }
    Ok(steps)
}

fn buffers(plan: &Plan) -> Result<Vec<Buffer>> {
    let placement = arena::place(plan, &ir::dim::hints(&plan.symbols))?;
    let placed = plan.buffers.iter().filter_map(|(id, buffer)| {
        let Place::Arena {
            first,
            last,
            in_place_of,
        } = buffer.place
        else {
            return None;
        };
        Some(Buffer {
            name: buffer.name.clone(),
            ty: buffer.ty.to_string(),
            bytes: placement.sizes[id],
            offset: placement.offsets[id]?,
            first: first.index(),
            last: last.index(),
            in_place: in_place_of.is_some(),
        })
    });
    Ok(placed.collect())
}
