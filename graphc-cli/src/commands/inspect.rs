//! `graphc inspect`: what a compiled model consists of, and what its code does on an emulated GPU.

use std::path::PathBuf;

use ir::Target;

use super::args::{self, BuildArgs, Format, ModelArgs};
use super::given::Given;
use super::times::{self, Prediction};
use super::{Context, contents, gguf, load, output};
use graphc::emulate::{self, Counted, Emulator};
use graphc::error::{Error, Result};
use graphc::facts::{Contents, VariantFacts, as_json, facts};

/// Show kernels, registers, memory and work of a model or artifact.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    build: BuildArgs,
    /// The target; without one, the cpu, or all that an artifact holds.
    #[arg(long)]
    target: Option<String>,
    /// Run the code once on an emulated GPU and show what it counted: instructions, memory, LDS, matrix units, waves.
    #[arg(long, requires = "target")]
    emulate: bool,
    /// Predict each kernel's time instead, from a sample of its workgroups: cycles, where they go, and what bounds it.
    #[arg(long, requires = "emulate")]
    time: bool,
    /// The shader clock that times are predicted at, in GHz; by default between the boost clock and what dense matrix
    /// work settles at.
    #[arg(long, value_name = "GHZ", value_parser = args::clock, requires = "time")]
    clock: Option<f64>,
    /// Predict launches whose code no cache holds, as after many other kernels; by default each follows another of its
    /// kernel.
    #[arg(long, requires = "time")]
    cold_code: bool,
    /// Write the first issues of the longest kernel's waves to a file for ui.perfetto.dev.
    #[arg(long, value_name = "FILE", requires = "time")]
    trace: Option<PathBuf>,
    /// Inputs of the emulated run by name: an .npz, .npy, .safetensors or .pb (ONNX's tensors) file. May be given
    /// several times; the rest is made up, at the hints of symbolic sizes.
    #[arg(long, value_name = "FILE", requires = "emulate")]
    inputs: Vec<PathBuf>,
    /// The seed of made-up inputs.
    #[arg(long, default_value_t = 0, requires = "emulate")]
    seed: u64,
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    let target = args.target.as_deref().map(args::targets).transpose()?;
    let wanted = match &target {
        Some(t) if t.len() > 1 => return Err(Error::Config("--target: inspect one target at a time".to_owned())),
        Some(t) => Some(t[0]),
        None => None,
    };
    if gguf::is_gguf(&args.model.model) {
        return gguf::inspect(&args.model.model, wanted, args.format);
    }
    let mut loaded = load::load(&args.model, &args.build, vec![wanted.unwrap_or(Target::cpu())], context)?;
    let contents = Contents::of(&loaded.program, &args.model.model, loaded.reports.is_empty())?;
    // Of an artifact everything is shown where nothing is asked for.
    let variants = match wanted {
        Some(target) => vec![load::variant(&loaded.program, &target)?],
        None => (0..loaded.program.variants.len()).collect(),
    };
    load::compile_kernels(&mut loaded.program, context)?;
    let mut all = Vec::new();
    for variant in variants {
        let mut facts = facts(&loaded.program, variant)?;
        if args.emulate {
            count(args, &loaded.program, variant, &mut facts, context)?;
        }
        all.push(facts);
    }
    match args.format {
        Format::Json => output::print_json(&as_json(&contents, &all)),
        Format::Text => {
            let variants: Vec<String> = all
                .iter()
                .map(|f| format!("\n{}{}{}", text(f), counters(f), times::table(&f.timed, &f.untimed)))
                .collect();
            output::print(&(contents::text(&contents) + &variants.concat()))
        }
    }
}

/// Runs the variant once on an emulated GPU and adds what it counted.
fn count(
    args: &Args,
    program: &ir::Program,
    variant: usize,
    facts: &mut VariantFacts,
    context: &Context,
) -> Result<()> {
    let given = Given::read(&args.inputs)?;
    let inputs = given.inputs(&program.variants[variant].plan, Some(args.seed))?;
    if args.time {
        let prediction = Prediction {
            clock: args.clock,
            cold_code: args.cold_code,
            trace: args.trace.as_deref(),
        };
        let predicted = times::predict(program, variant, &inputs, &prediction, context)?;
        (facts.timed, facts.untimed) = (predicted.kernels, predicted.untimed);
        return Ok(());
    }
    let busy = output::spinner(context, "running on the emulated GPU");
    let disassembler = emulate::disassembler(&context.settings, load::emulator_worker().as_deref())?;
    let emulator = Emulator::load(program, variant, &disassembler, emulate::Options::of(&context.settings))?;
    let launches = emulator.run(&inputs)?.launches;
    busy.finish_and_clear();
    facts.emulated = Some(emulate::total(&launches));
    for (kernel, counted) in facts.kernels.iter_mut().zip(emulator.counted(&launches)) {
        kernel.emulated = Some(counted);
    }
    Ok(())
}

fn text(f: &VariantFacts) -> String {
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
    if let Some(s) = &f.streaming {
        text += &format!(
            "takes {} of {} on the device (least {}); streams {} in {} copies a run, {} ahead\n",
            output::bytes(s.device_bytes as u64),
            output::bytes(s.limit_bytes as u64),
            output::bytes(s.least_bytes as u64),
            output::bytes(s.bytes_a_run as u64),
            s.copies.len(),
            s.distance
        );
        for copy in &s.copies {
            text += &format!(
                "{:>7} {:>10}  {}, used by {}\n",
                copy.step,
                output::bytes(copy.bytes as u64),
                copy.weight,
                copy.used_by.as_deref().unwrap_or("no step")
            );
        }
    }
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

/// The counters of an emulated run as two tables: what was executed, and what happened to memory.
fn counters(f: &VariantFacts) -> String {
    let Some(total) = &f.emulated else {
        return String::new();
    };
    let mut rows: Vec<(&str, &Counted)> = vec![("(all)", total)];
    rows.extend(
        f.kernels
            .iter()
            .filter_map(|k| Some((k.name.as_str(), k.emulated.as_ref()?))),
    );
    let mut text = format!(
        "\nemulated: {} workgroups, {} waves; wave instructions by class\n{:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} \
         {:>8} {:>7}  kernel\n",
        total.workgroups,
        total.waves,
        "valu",
        "salu",
        "matrix",
        "smem",
        "vmem",
        "lds",
        "branch",
        "control",
        "lanes",
        "MACs",
        "cycles"
    );
    for (name, c) in &rows {
        let by = &c.by_class;
        text += &format!(
            "{:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8} {:>7}  {name}\n",
            short(by.valu),
            short(by.salu),
            short(by.matrix),
            short(by.smem),
            short(by.vmem),
            short(by.lds),
            short(by.branch),
            short(by.control),
            short(c.lane_instructions),
            short(c.matrix_macs),
            short(c.matrix_cycles),
        );
    }
    text += &format!(
        "\nmemory and waves\n{:>10} {:>10} {:>9} {:>10} {:>8} {:>9} {:>8} {:>7} {:>9}  kernel\n",
        "loaded", "stored", "pieces", "coalescing", "lds", "conflicts", "barriers", "waves", "occupancy"
    );
    for (name, c) in &rows {
        let occupancy = match (c.occupancy, c.occupancy_by_registers) {
            (Some(waves), Some(registers)) if waves < registers => format!("{waves} LDS"),
            (Some(waves), _) => format!("{waves} reg"),
            _ => "-".to_owned(),
        };
        text += &format!(
            "{:>10} {:>10} {:>9} {:>10} {:>8} {:>9} {:>8} {:>7} {:>9}  {name}\n",
            output::bytes(c.global_load_bytes),
            output::bytes(c.global_store_bytes),
            short(c.global_transactions),
            c.coalescing.map_or("-".to_owned(), |c| format!("{c:.2}")),
            short(c.lds_accesses),
            short(c.lds_bank_conflicts),
            short(c.barriers),
            short(c.waves),
            occupancy,
        );
    }
    text
}

/// A count for people: exact below ten thousand, else four digits and a unit.
fn short(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..10_000_000 => format!("{:.1}k", n as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1}M", n as f64 / 1e6),
        _ => format!("{:.1}G", n as f64 / 1e9),
    }
}
