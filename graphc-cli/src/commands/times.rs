//! Predicted times for people: the table of kernels, and the picture of one kernel's waves.

use std::borrow::Cow;
use std::path::Path;

use emu::TimingOptions;
use emu::timing::{Part, perfetto};
use indexmap::IndexMap;
use ir::{HostTensor, Program};

use super::{Context, load, output};
use graphc::emulate::{self, CallTimer, Emulator, Span, TimedKernel, TimedStep, Untimed};
use graphc::error::{Error, Result};

/// Issues that a picture shows.
const ISSUES: usize = 20_000;

/// The predicted times as a table, and below it what each kernel waits for.
pub fn table(kernels: &[TimedKernel], untimed: &[Untimed]) -> String {
    let mut text = of_kernels(kernels);
    for call in untimed {
        text += &format!("\nnot timed: step {}, {}: {}\n", call.step, call.call, call.reason);
    }
    text
}

fn of_kernels(kernels: &[TimedKernel]) -> String {
    let Some(first) = kernels.first() else {
        return String::new();
    };
    let total: f64 = kernels.iter().map(|k| k.total_micros).sum();
    let mut text = format!(
        "\npredicted for {} as {}: {total:.1} us in launches one after another\n{:>5} {:>11} {:>6} {:>10} {:>10} {:>8} {:>7} {:>9}  \
         {:<18} kernel\n",
        first.report.arch,
        first.report.part,
        "times",
        "cycles",
        "GHz",
        "us each",
        "us all",
        "rounds",
        "waves",
        "roofline",
        "bound by"
    );
    for k in kernels {
        let r = &k.report;
        text += &format!(
            "{:>5} {:>11} {:>6.2} {:>10.1} {:>10.1} {:>8.2} {:>7.1} {:>8.0}%  {:<18} {}{} {:?}\n",
            k.launches,
            r.cycles,
            r.ghz,
            r.micros,
            k.total_micros,
            r.rounds,
            r.waves_per_simd,
            100.0 * r.roofline,
            r.bound,
            k.call.map(|call| format!("{call}: ")).unwrap_or_default(),
            short(&k.name),
            k.grid
        );
    }
    for k in kernels.iter().take(DETAILS) {
        let r = &k.report;
        text += &format!("\n{} {:?}\n", short(&k.name), k.grid);
        text += &format!("  issued    {}\n", parts(&r.issue));
        text += &format!("  held by   {}\n", parts(&r.stalls));
        text += &format!("  busy      {}\n", parts(&r.busy));
        for hot in &r.hot {
            text += &format!(
                "  {:>5.1}%  {:#x} {}  ({})\n",
                100.0 * hot.share,
                hot.address,
                hot.text,
                hot.cause
            );
        }
    }
    text
}

/// A name as tables show it: those of libraries go on for hundreds of letters.
fn short(name: &str) -> Cow<'_, str> {
    match name.char_indices().nth(LETTERS) {
        Some((end, _)) => format!("{}…", &name[..end]).into(),
        None => name.into(),
    }
}

const LETTERS: usize = 64;

/// Kernels that are shown in detail.
const DETAILS: usize = 8;

fn parts(parts: &[Part]) -> String {
    let shown = parts.iter().filter(|p| p.share >= 0.005).take(6);
    let words: Vec<String> = shown.map(|p| format!("{} {:.1}%", p.name, 100.0 * p.share)).collect();
    words.join(", ")
}

/// What a predicted run of a plan gave.
pub struct Predicted {
    /// The GPU that they are of: the target, or for a generic processor one that runs its code.
    pub gpu: &'static str,
    pub kernels: Vec<TimedKernel>,
    /// When each step runs, its lanes side by side.
    pub timeline: Vec<Span>,
    /// Microseconds of the whole plan by that.
    pub micros: f64,
    /// The same, every step after the one before.
    pub in_sequence: f64,
    /// Library calls that none of these hold.
    pub untimed: Vec<Untimed>,
}

/// How times are predicted.
pub struct Prediction<'a> {
    /// The shader clock in GHz, where it is given.
    pub clock: Option<f64>,
    /// Whether each kernel's code has to come from memory first.
    pub cold_code: bool,
    /// Where the picture of the longest launch goes.
    pub trace: Option<&'a Path>,
}

/// Finds what times library calls on the emulated GPU.
///
/// # Errors
/// What is missing.
pub fn call_timer(context: &Context) -> std::result::Result<CallTimer, String> {
    match load::calls_worker() {
        Some(worker) => CallTimer::find(&context.settings, &worker),
        None => Err("graphc does not know its own file, which it starts to call libraries".to_owned()),
    }
}

/// Predicts the times of a variant's steps on the emulated GPU.
///
/// # Errors
/// As the emulator's; a picture's file that cannot be written.
pub fn predict(
    program: &Program,
    variant: usize,
    inputs: &IndexMap<String, HostTensor>,
    prediction: &Prediction<'_>,
    context: &Context,
) -> Result<Predicted> {
    let busy = output::spinner(context, "predicting times");
    let disassembler = emulate::disassembler(&context.settings, load::emulator_worker().as_deref())?;
    let options = emulate::Options {
        time: Some(TimingOptions {
            ghz: prediction.clock,
            cold_code: prediction.cold_code,
            issues: if prediction.trace.is_some() { ISSUES } else { 0 },
            ..TimingOptions::default()
        }),
        calls: call_timer(context),
        ..emulate::Options::default()
    };
    let emulator = Emulator::load(program, variant, &disassembler, options)?;
    let steps = emulator.run(inputs)?.timed;
    busy.finish_and_clear();
    if let Some(path) = prediction.trace {
        write_picture(path, &emulator, &steps)?;
    }
    let plan = &program.variants[variant].plan;
    Ok(Predicted {
        gpu: emulator.gpu().arch().name,
        kernels: emulate::timed(plan, &steps),
        timeline: emulate::timeline(plan, &steps),
        micros: emulate::makespan(plan, &steps),
        in_sequence: steps.iter().map(|step| step.micros).sum(),
        untimed: emulate::untimed(&steps),
    })
}

/// Writes the picture of the launch that takes longest.
fn write_picture(path: &Path, emulator: &Emulator<'_>, steps: &[TimedStep]) -> Result<()> {
    let launches = steps.iter().filter_map(TimedStep::launch);
    let Some(launch) = launches.max_by(|a, b| a.report.micros.total_cmp(&b.report.micros)) else {
        return Err(Error::Config("--trace: the plan launches no kernel".to_owned()));
    };
    let picture = perfetto(emulator.kernel(launch.kernel), &launch.report);
    std::fs::write(path, picture).map_err(|source| Error::Io {
        doing: "write",
        path: path.to_owned(),
        source,
    })
}
