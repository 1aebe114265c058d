//! What crosses the bus: uploads beside compute, a stream of requests, weights that are streamed, and the way to a
//! first result.

use std::time::Instant;

use examples::models::decoder::numbers;
use examples::models::resnet::ResNet;
use graphc::driver::{self, BuildOptions};
use graphc::ir::{Graph, Program};
use graphc::prelude::*;
use graphc_benches::median;
use serde_json::json;

use super::{Args, host, statistics};

/// How often each of these is measured.
const TURNS: usize = 9;

fn seconds(work: impl FnOnce() -> graphc::Result<()>) -> graphc::Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

/// A chain of square products with one weight.
fn products(links: usize, size: usize) -> graphc::Result<Graph> {
    let weight = Tensor::from_host(host(&[size, size], 3)?);
    let side = size as i64;
    let x = InputSpec::new("x", DType::F32, shape![side, side]);
    Ok(trace("products", [x], |[x]| {
        let y = (0..links).fold(x, |h, _| h.matmul(&weight) * (1.0 / 64.0));
        [("y", y)]
    })?)
}

/// Uploads tensors of 256 MiB while products run: the time of both beside the longer of the two alone.
pub fn uploads(options: &SessionOptions) -> graphc::Result<()> {
    const TENSORS: usize = 4;
    const BYTES: usize = 256 << 20;
    let mut options = options.clone();
    options.dtype = Some(DType::F16);
    options.load.concurrent_runs = Some(2);
    let size = 4096;
    let session = Session::compile(products(60, size)?, &options)?;
    let x = session.upload(&host(&[size, size], 5)?)?;
    let large = host(&[BYTES / 4], 7)?;
    let compute = |runs: usize| -> graphc::Result<Vec<Pending>> {
        (0..runs)
            .map(|_| session.submit([("x", &x)], &Wanted::device()))
            .collect()
    };
    let ended = |pending: Vec<Pending>| -> graphc::Result<()> {
        for run in pending {
            run.wait()?;
        }
        Ok(())
    };
    let upload = || -> graphc::Result<()> {
        let tensors: Vec<DeviceTensor> = (0..TENSORS).map(|_| session.upload(&large)).collect::<Result<_, _>>()?;
        Ok(tensors.iter().try_for_each(DeviceTensor::wait)?)
    };
    let (mut alone, mut bus, mut both, mut one) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS + 2 {
        let single = seconds(|| ended(compute(1)?))?;
        let uploading = seconds(upload)?;
        // As long as the uploads, so that neither hides the other.
        let runs = (uploading / single).round().max(1.0) as usize;
        let computing = seconds(|| ended(compute(runs)?))?;
        let together = seconds(|| {
            std::thread::scope(|scope| {
                let computing = scope.spawn(|| ended(compute(runs)?));
                upload()?;
                computing
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })?;
        if turn >= 2 {
            one.push(uploading * 1e3);
            alone.push(computing * 1e3);
            bus.push((TENSORS * BYTES) as f64 / uploading / 1e9);
            both.push(together / computing.max(uploading));
        }
    }
    println!(
        "{}",
        json!({"case": "uploads", "compute_ms": median(&mut alone), "upload_ms": median(&mut one),
               "upload_gb_s": median(&mut bus), "both_over_longer": median(&mut both)})
    );
    Ok(())
}

/// Sends images through ResNet-50 from the host and back, beside the same runs on tensors that are on the device.
pub fn images(args: &Args, options: &SessionOptions) -> graphc::Result<()> {
    let params = Params::random(7);
    let model = ResNet::resnet50(&params).map_err(|error| graphc::Error::Config(error.to_string()))?;
    let graph = model.graph()?;
    for dtype in [DType::F32, DType::F16] {
        let mut options = options.clone();
        options.dtype = Some(dtype);
        let session = Session::compile(graph.clone(), &options)?;
        let images: Vec<HostTensor> = (0..8)
            .map(|seed| host(&[1, 3, 224, 224], seed))
            .collect::<Result<_, _>>()?;
        let here: Vec<DeviceTensor> = images
            .iter()
            .map(|image| session.upload(image))
            .collect::<Result<_, _>>()?;
        let device = || -> graphc::Result<()> {
            let mut last = None;
            for run in 0..args.images {
                last = Some(session.submit([("image", &here[run % 8])], &Wanted::device())?);
            }
            last.map_or(Ok(()), |run| Ok(run.wait().map(drop)?))
        };
        let streamed = || -> graphc::Result<()> {
            // As an app does: answers are taken in the order of the requests, a few behind them.
            let mut under_way = std::collections::VecDeque::new();
            for run in 0..args.images {
                under_way.push_back(session.submit([("image", &images[run % 8])], &Wanted::host())?);
                if under_way.len() > 3
                    && let Some(first) = under_way.pop_front()
                {
                    first.wait()?;
                }
            }
            under_way.into_iter().try_for_each(|run| Ok(run.wait().map(drop)?))
        };
        let waited = || -> graphc::Result<()> {
            (0..args.images).try_for_each(|run| session.run(&[("image", &images[run % 8])]).map(drop))
        };
        let (mut bound, mut submitted, mut one_by_one) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0..5 {
            let times = [seconds(device)?, seconds(streamed)?, seconds(waited)?];
            if turn > 0 {
                let per = |time: f64| time * 1e6 / args.images as f64;
                bound.push(per(times[0]));
                submitted.push(per(times[1]));
                one_by_one.push(per(times[2]));
            }
        }
        let (bound, submitted) = (median(&mut bound), median(&mut submitted));
        println!(
            "{}",
            json!({"case": "images", "dtype": dtype.to_string(), "images": args.images, "device_us": bound, "submit_us": submitted,
                   "run_us": median(&mut one_by_one), "of_device_bound": bound / submitted, "statistics": statistics(&session)})
        );
    }
    Ok(())
}

/// Layers of one wide vector, with half the memory that their weights need.
pub fn streamed(options: &SessionOptions) -> graphc::Result<()> {
    const LAYERS: usize = 16;
    const WIDTH: usize = 4096;
    let layers: Vec<Tensor> = (0..LAYERS)
        .map(|layer| Ok(Tensor::from_host(host(&[WIDTH, WIDTH], layer as u32)?)))
        .collect::<graphc::Result<_>>()?;
    let x = InputSpec::new("x", DType::F32, shape![1, WIDTH as i64]);
    let graph = trace("wide", [x], |[x]| {
        let y = layers
            .iter()
            .fold(x, |h, layer| (h.matmul(layer) * (1.0 / 32.0)).tanh());
        [("y", y)]
    })?;
    let weights = LAYERS * WIDTH * WIDTH * 4;
    let input = host(&[1, WIDTH], 99)?;
    let mut results = Vec::new();
    for limit in [None, Some(weights / 2)] {
        let mut options = options.clone();
        options.max_vram = limit;
        let session = Session::compile(graph.clone(), &options)?;
        let x = session.upload(&input)?;
        let streamed_bytes = || session.executable().map_or(0, |e| e.statistics().streamed_bytes);
        let mut times = Vec::new();
        let mut bytes = 0;
        for turn in 0..TURNS + 2 {
            let before = streamed_bytes();
            let mut y = None;
            let time = seconds(|| {
                y = session.values([("x", &x)], &Wanted::host())?.swap_remove("y");
                Ok(())
            })?;
            if let (0, Some(y)) = (turn, y) {
                results.push(y.into_host()?.to_f32());
            }
            if turn >= 2 {
                times.push(time * 1e3);
                bytes = streamed_bytes() - before;
            }
        }
        println!(
            "{}",
            json!({"case": "streamed", "weights": weights, "max_vram": limit, "run_ms": median(&mut times), "bytes_a_run": bytes,
                   "gb_s": bytes as f64 / median(&mut times) / 1e6})
        );
    }
    if results[0] != results[1] {
        return Err(graphc::Error::Config("streamed weights gave other numbers".into()));
    }
    Ok(())
}

/// From a compiled ResNet-50 to its first result: from a file, and from a graph whose kernels are in the cache.
pub fn first_result(options: &SessionOptions) -> graphc::Result<()> {
    let params = Params::random(7);
    let model = ResNet::resnet50(&params).map_err(|error| graphc::Error::Config(error.to_string()))?;
    let graph = model.graph()?;
    let settings = graphc::options::Settings::from_env()?;
    let compiler = driver::compiler(&settings, None, [options.target.platform])?;
    let image = HostTensor::from_f32([1, 3, 224, 224], &numbers(3 * 224 * 224, 1))
        .map_err(|error| graphc::Error::Config(error.to_string()))?;
    let (mut built, mut kernels, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    let mut compiled = || -> graphc::Result<Program> {
        let start = Instant::now();
        let build = driver::build(&graph, &BuildOptions::new(vec![options.target], options.level))?;
        built.push(start.elapsed().as_secs_f64() * 1e3);
        let mut program = build.program;
        let start = Instant::now();
        driver::compile(&mut program, &compiler, &|_| {})?;
        kernels.push(start.elapsed().as_secs_f64() * 1e3);
        Ok(program)
    };
    let file = tempfile::NamedTempFile::new().map_err(graphc::Error::io("make", "a temporary file"))?;
    compiled()?
        .save(file.path())
        .map_err(|error| graphc::Error::Config(error.to_string()))?;
    let compiles = compiler.cache().stats().compiles;
    let weights = std::fs::metadata(file.path()).map_or(0, |m| m.len());
    let (mut opened, mut made) = (Vec::new(), Vec::new());
    let (mut finding, mut reading) = (Vec::new(), Vec::new());
    let mut uploaded = Vec::new();
    for turn in 0..TURNS {
        let from_file = seconds(|| {
            let session = Session::open(file.path(), options)?;
            session.run(&[("image", &image)]).map(drop)
        })?;
        let from_graph = seconds(|| {
            let session = Session::of_program(std::sync::Arc::new(compiled()?), options)?;
            session.run(&[("image", &image)]).map(drop)
        })?;
        // As an app does: the program that was made of the graph before is kept.
        let again = seconds(|| {
            let session = Session::compile(graph.clone(), options)?;
            session.run(&[("image", &image)]).map(drop)
        })?;
        // Of that, what the host does before the device is asked for anything.
        let found = seconds(|| {
            let build = BuildOptions::new(vec![options.target], options.level);
            driver::program(&graph, &build, &compiler, &settings, &|_| {}).map(drop)
        })?;
        let read = seconds(|| {
            let read = Program::load(file.path());
            read.map(drop).map_err(|error| graphc::Error::Config(error.to_string()))
        })?;
        // The weights' bytes alone, from memory that is not pinned.
        let session = Session::compile(products(1, 64)?, options)?;
        let bytes = host(&[weights as usize / 4], 3)?;
        let upload = seconds(|| Ok(session.upload(&bytes)?.wait()?))?;
        if turn > 0 {
            opened.push(from_file * 1e3);
            made.push(from_graph * 1e3);
            kept.push(again * 1e3);
            finding.push(found * 1e3);
            reading.push(read * 1e3);
            uploaded.push(upload * 1e3);
        }
    }
    println!(
        "{}",
        json!({"case": "first_result", "file_bytes": weights, "from_file_ms": median(&mut opened), "from_graph_ms": median(&mut kept), "by_passes_ms": median(&mut made),
               "find_program_ms": median(&mut finding), "read_file_ms": median(&mut reading),
               "build_ms": median(&mut built), "kernels_ms": median(&mut kernels),
               "upload_ms": median(&mut uploaded), "kernels_compiled": compiler.cache().stats().compiles - compiles})
    );
    Ok(())
}
