//! `graphc inspect`: what a compiled model consists of.

use ir::Target;
use ir::plan::{Place, arena};
use ir::target::Platform;
use serde::Serialize;

use super::args::{self, BuildArgs, Format, ModelArgs};
use super::{Context, load, output};
use crate::error::{Error, Result};

/// Show kernels, registers, memory and work of a model or artifact.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    build: BuildArgs,
    /// The target; for an artifact that holds one, that one.
    #[arg(long)]
    target: Option<String>,
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// The facts of a program on one target; sizes at the hints of symbolic dims.
#[derive(Serialize)]
pub struct Facts {
    pub target: String,
    pub launches: usize,
    pub library_calls: usize,
    pub planned_peak_bytes: usize,
    /// The largest sum of buffers alive at one step.
    pub live_peak_bytes: usize,
    pub weight_bytes: usize,
    pub flops: i64,
    pub kernels: Vec<KernelFacts>,
}

/// The facts of one kernel; registers are `null` where nothing is compiled (cpu).
#[derive(Serialize)]
pub struct KernelFacts {
    pub name: String,
    pub source: String,
    /// How often it is launched in one run.
    pub launches: usize,
    pub vgpr: Option<u32>,
    pub agpr: Option<u32>,
    pub sgpr: Option<u32>,
    pub lds_bytes: Option<u32>,
    pub scratch_bytes: Option<u32>,
    pub vgpr_spills: Option<u32>,
    pub sgpr_spills: Option<u32>,
    pub wave_size: Option<u32>,
    /// The graph nodes it computes.
    pub nodes: Vec<String>,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    let target = args.target.as_deref().map(args::targets).transpose()?;
    let wanted = match &target {
        Some(t) if t.len() > 1 => return Err(Error::Config("--target: inspect one target at a time".to_owned())),
        Some(t) => t[0],
        None => Target::cpu(),
    };
    let mut loaded = load::load(&args.model, &args.build, vec![wanted], context)?;
    let variant = match target {
        None if loaded.program.variants.len() == 1 => 0,
        _ => load::variant(&loaded.program, &wanted)?,
    };
    load::compile_kernels(&mut loaded.program, context)?;
    let facts = facts(&loaded.program, variant)?;
    match args.format {
        Format::Json => output::print_json(&serde_json::to_value(&facts).unwrap_or_default()),
        Format::Text => output::print(&text(&facts)),
    }
}

/// Collects the facts of a variant.
pub fn facts(program: &ir::Program, variant: usize) -> Result<Facts> {
    let v = &program.variants[variant];
    let bindings = ir::dim::hints(&v.plan.symbols);
    let placement = arena::place(&v.plan, &bindings)?;
    let (launches, library_calls) = v.plan.launches();
    let mut weights: Vec<ir::ConstId> = Vec::new();
    for b in v.plan.buffers.values() {
        if let Place::Constant(id) = b.place
            && !weights.contains(&id)
        {
            weights.push(id);
        }
    }
    let mut times: ir::Table<ir::plan::KernelId, usize> = v.plan.kernels.keys().map(|_| 0).collect();
    for step in v.plan.steps.values() {
        if let ir::plan::Work::Launch { kernel, .. } = &step.work {
            times[*kernel] += 1;
        }
    }
    let mut kernels = Vec::new();
    for (id, kernel) in v.plan.kernels.iter() {
        let code = match &v.code[id] {
            Some(bytes) if v.plan.target.platform == Platform::Hip => {
                let object = runtime::code_object::read(bytes)?;
                object.kernels.into_iter().find(|k| k.name == v.sources[id].entry)
            }
            _ => None,
        };
        kernels.push(KernelFacts {
            name: kernel.name.clone(),
            source: v.sources[id].text.clone(),
            launches: times[id],
            vgpr: code.as_ref().map(|c| c.vgpr),
            agpr: code.as_ref().map(|c| c.agpr),
            sgpr: code.as_ref().map(|c| c.sgpr),
            lds_bytes: code.as_ref().map(|c| c.lds_bytes),
            scratch_bytes: code.as_ref().map(|c| c.scratch_bytes),
            vgpr_spills: code.as_ref().map(|c| c.vgpr_spills),
            sgpr_spills: code.as_ref().map(|c| c.sgpr_spills),
            wave_size: code.as_ref().map(|c| c.wave_size),
            nodes: kernel.origins.clone(),
        });
    }
    Ok(Facts {
        target: v.plan.target.to_string(),
        launches,
        library_calls,
        planned_peak_bytes: placement.total,
        live_peak_bytes: placement.live_peak,
        weight_bytes: weights.iter().map(|c| program.constants[*c].tensor.bytes.len()).sum(),
        flops: v.plan.flops.eval(&bindings)?,
        kernels,
    })
}

fn text(f: &Facts) -> String {
    let mut text = format!(
        "{}: {} launches of {} kernels, {} library calls\nplanned peak {} (live {}), weights {}, {:.3} GFLOP a run\n",
        f.target,
        f.launches,
        f.kernels.len(),
        f.library_calls,
        output::bytes(f.planned_peak_bytes as u64),
        output::bytes(f.live_peak_bytes as u64),
        output::bytes(f.weight_bytes as u64),
        f.flops as f64 / 1e9
    );
    let compiled = f.kernels.iter().any(|k| k.vgpr.is_some());
    if compiled {
        text += &format!(
            "{:>5} {:>5} {:>5} {:>6} {:>8} {:>7}  kernel\n",
            "times", "vgpr", "sgpr", "spills", "scratch", "LDS"
        );
    }
    for k in &f.kernels {
        let number = |v: Option<u32>| v.map_or("-".to_owned(), |v| v.to_string());
        if compiled {
            let spills = k.vgpr_spills.zip(k.sgpr_spills).map(|(v, s)| v + s);
            text += &format!(
                "{:>5} {:>5} {:>5} {:>6} {:>8} {:>7}  {}\n",
                k.launches,
                number(k.vgpr),
                number(k.sgpr),
                number(spills),
                number(k.scratch_bytes),
                number(k.lds_bytes),
                k.name
            );
        } else {
            text += &format!("{:>5} x {}\n", k.launches, k.name);
        }
    }
    text
}
