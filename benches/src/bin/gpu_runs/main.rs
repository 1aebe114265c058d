//! What runs on a GPU take besides the device's work: the host's time for a run of many launches, with and without a
//! graph, a small model on tensors that stay on the device, a decoder that keeps its cache as state, and what crosses
//! the bus.
//!
//! ```text
//! cargo build --release -p graphc-benches --bin gpu_runs
//! target/release/gpu_runs --device cuda
//! ```
//!
//! One line of JSON a case; times are medians, in the unit of their names. `benches/h200/runtime.py` runs it beside
//! PyTorch. The binary needs nothing beside it but the GPU's driver and NVRTC or hiprtc, which it opens when it runs.

mod traffic;

use std::time::Instant;

use clap::{Parser, ValueEnum};
use examples::models::decoder::{Decoder, numbers};
use graphc::ir::Graph;
use graphc::prelude::*;
use graphc::runtime::{ProfileOptions, RunStatistics};

use graphc_benches::median;
use serde_json::json;

#[derive(Parser)]
struct Args {
    #[arg(long, default_value = "auto")]
    device: String,
    /// Runs that are timed, of each case.
    #[arg(long, default_value_t = 300)]
    runs: usize,
    /// Tokens that the decoder makes.
    #[arg(long, default_value_t = 1000)]
    tokens: usize,
    /// The decoder's layers.
    #[arg(long, default_value_t = 12)]
    layers: usize,
    /// Images that are sent through ResNet-50.
    #[arg(long, default_value_t = 200)]
    images: usize,
    /// The cases to run: all unless some are named.
    #[arg(value_enum)]
    cases: Vec<Case>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Case {
    Launches,
    Mlp,
    Decode,
    Uploads,
    Images,
    Streamed,
    FirstResult,
}

fn main() -> graphc::Result<()> {
    let args = Args::parse();
    let options = SessionOptions::default().device(args.device.parse()?)?;
    if let Some(device) = &options.device {
        let fallback = device.fallback.as_deref().unwrap_or_default();
        println!(
            "{}",
            json!({"device": device.device.name(), "target": device.target.to_string(), "fallback": fallback})
        );
    }
    let cases = match args.cases.as_slice() {
        [] => Case::value_variants(),
        named => named,
    };
    for case in cases {
        match case {
            Case::Launches => launches(&args, &options)?,
            Case::Mlp => mlp(&args, &options)?,
            Case::Decode => decode(&args, &options)?,
            Case::Uploads => traffic::uploads(&options)?,
            Case::Images => traffic::images(&args, &options)?,
            Case::Streamed => traffic::streamed(&options)?,
            Case::FirstResult => traffic::first_result(&options)?,
        }
    }
    Ok(())
}

fn shown(statistics: RunStatistics) -> serde_json::Value {
    json!({
        "placed": statistics.placed, "sized": statistics.sized, "captured": statistics.captured,
        "replayed": statistics.replayed, "refused": statistics.refused, "contexts": statistics.contexts,
    })
}

fn statistics(session: &Session) -> serde_json::Value {
    session
        .executable()
        .map_or(json!(null), |executable| shown(executable.statistics()))
}

fn host(shape: &[usize], seed: u32) -> graphc::Result<HostTensor> {
    let values = numbers(shape.iter().product(), seed);
    HostTensor::from_f32(shape, &values).map_err(|error| graphc::Error::Config(error.to_string()))
}

/// A chain that fuses to two launches a link.
fn chain(links: usize) -> graphc::Result<Graph> {
    let w = Tensor::from_host(host(&[64, 64], 3)?);
    let x = InputSpec::new("x", DType::F32, shape![64, 64]);
    Ok(trace("chain", [x], |[x]| {
        let mut h = x;
        for _ in 0..links {
            h = h.matmul(&w).softmax(-1);
        }
        [("y", h)]
    })?)
}

/// Times of submitting and of whole runs, each waited for: medians.
fn time(session: &Session, runs: usize, x: &DeviceTensor) -> graphc::Result<(f64, f64)> {
    let (mut begun, mut whole) = (Vec::new(), Vec::new());
    for run in 0..runs + 20 {
        let start = Instant::now();
        let pending = session.submit([("x", x)], &Wanted::device())?;
        let submitted = start.elapsed();
        pending.wait()?;
        if run >= 20 {
            begun.push(submitted.as_secs_f64() * 1e6);
            whole.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok((median(&mut begun), median(&mut whole)))
}

fn launches(args: &Args, options: &SessionOptions) -> graphc::Result<()> {
    for no_capture in [true, false] {
        let mut options = options.clone();
        options.load.no_capture = no_capture;
        let session = Session::compile(chain(30)?, &options)?;
        let x = session.upload(&host(&[64, 64], 5)?)?;
        let (submit, whole) = time(&session, args.runs, &x)?;
        let (mut launches, mut bare) = (0, None);
        if let Some(executable) = session.executable() {
            launches = executable.plan().launches().0;
            bare = executable
                .bare_launches(args.runs)?
                .map(|time| time.as_secs_f64() * 1e6);
        }
        println!(
            "{}",
            json!({"case": "launches", "capture": !no_capture, "launches": launches, "submit_us": submit, "run_us": whole,
                   "bare_us": bare, "statistics": statistics(&session)})
        );
    }
    Ok(())
}

/// The time of each step on the device, by name, in the order of the plan.
fn steps(session: &Session, inputs: &[(&str, &HostTensor)]) -> graphc::Result<serde_json::Value> {
    let Some(executable) = session.executable() else {
        return Ok(json!(null));
    };
    let inputs = inputs
        .iter()
        .map(|(name, tensor)| ((*name).to_owned(), (*tensor).clone()));
    let profile = executable.profile(&inputs.collect(), &ProfileOptions::default())?;
    Ok(profile
        .steps
        .iter()
        .map(|step| json!([step.name, step.median_us]))
        .collect())
}

/// The sizes of the MLP, and of its batch.
const MLP: [usize; 4] = [784, 512, 512, 10];
const BATCH: usize = 32;

fn mlp(args: &Args, options: &SessionOptions) -> graphc::Result<()> {
    let mut layers = Vec::new();
    for (index, pair) in MLP.windows(2).enumerate() {
        let weight = Tensor::from_host(host(&[pair[0], pair[1]], index as u32 + 20)?);
        layers.push((weight, Tensor::from_host(host(&[pair[1]], index as u32 + 30)?)));
    }
    let x = InputSpec::new("x", DType::F32, shape![BATCH, MLP[0]]);
    let graph = trace("mlp", [x], |[x]| {
        let mut h = x;
        for (index, (weight, bias)) in layers.iter().enumerate() {
            h = h.matmul(weight) + bias;
            if index + 1 < layers.len() {
                h = h.relu();
            }
        }
        [("y", h)]
    })?;
    let session = Session::compile(graph, options)?;
    let tensor = host(&[BATCH, MLP[0]], 7)?;
    let x = session.upload(&tensor)?;
    let (submit, whole) = time(&session, args.runs, &x)?;
    // Many in a row, and the last one waited for.
    let start = Instant::now();
    let mut last = None;
    for _ in 0..args.runs {
        last = Some(session.submit([("x", &x)], &Wanted::device())?);
    }
    if let Some(last) = last {
        last.wait()?;
    }
    let in_a_row = start.elapsed().as_secs_f64() * 1e6 / args.runs as f64;
    let mut from_host = Vec::new();
    for _ in 0..args.runs {
        let start = Instant::now();
        session.run(&[("x", &tensor)])?;
        from_host.push(start.elapsed().as_secs_f64() * 1e6);
    }
    println!(
        "{}",
        json!({"case": "mlp", "batch": BATCH, "submit_us": submit, "run_us": whole, "in_a_row_us": in_a_row,
               "from_host_us": median(&mut from_host), "steps_us": steps(&session, &[("x", &tensor)])?,
               "statistics": statistics(&session)})
    );
    Ok(())
}

fn decode(args: &Args, options: &SessionOptions) -> graphc::Result<()> {
    let decoder = Decoder {
        layers: args.layers,
        heads: 12,
        width: 768,
        capacity: args.tokens.max(1).next_power_of_two() as i64,
    };
    for no_capture in [true, false] {
        let mut options = options.clone();
        options.load.no_capture = no_capture;
        for (input, output) in decoder.links() {
            options = options.state(&input, &output);
        }
        let session = Session::compile(decoder.graph()?, &options)?;
        let (mut begun, mut whole) = (Vec::new(), Vec::new());
        let mut early = json!(null);
        for position in 0..args.tokens {
            let (x, at) = decoder.step(position);
            let start = Instant::now();
            let pending = session.submit([("x", &x), ("position", &at)], &Wanted::host())?;
            let submitted = start.elapsed();
            pending.wait()?;
            if position >= args.tokens / 10 {
                begun.push(submitted.as_secs_f64() * 1e6);
                whole.push(start.elapsed().as_secs_f64() * 1e6);
            }
            if position == 1 {
                early = statistics(&session);
            }
        }
        let (launches, _) = session
            .executable()
            .map_or((0, 0), |executable| executable.plan().launches());
        println!(
            "{}",
            json!({"case": "decode", "capture": !no_capture, "layers": args.layers, "tokens": args.tokens,
                   "launches": launches, "submit_us": median(&mut begun), "step_us": median(&mut whole),
                   "after_two": early, "statistics": statistics(&session)})
        );
    }
    Ok(())
}
