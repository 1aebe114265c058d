//! graphc's own kernels with their predicted times, per model and GPU: the list of what to mend next.
//!
//! ```text
//! cargo build --release -p graphc -p graphc-runtime -p graphc-emu --bins
//! cargo run --release -p graphc-benches --bin predicted -- --graphc target/release/graphc MODELS/*.onnx > benches/predicted.md
//! ```
//!
//! The numbers are those of `graphc bench --emulate`: predictions, on no GPU. A model's sizes are the hints of its symbols.

use std::path::PathBuf;
use std::process::Command;

use clap::Parser;
use serde_json::Value;

#[derive(Parser)]
struct Args {
    /// Models that `graphc bench` takes.
    #[arg(required = true)]
    models: Vec<PathBuf>,
    /// The graphc that predicts.
    #[arg(long, default_value = "target/release/graphc")]
    graphc: PathBuf,
    /// The GPUs.
    #[arg(long, value_delimiter = ',', default_value = "gfx90a,gfx942,gfx950,gfx1100,gfx1201")]
    targets: Vec<String>,
    /// The type that is computed in.
    #[arg(long, default_value = "f16")]
    dtype: String,
    /// Kernels of each model, those that take longest.
    #[arg(long, default_value_t = 12)]
    kernels: usize,
}

fn main() -> graphc::Result<()> {
    let args = Args::parse();
    for model in &args.models {
        let name = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for target in &args.targets {
            match predict(&args, model, target) {
                Ok(run) => print(&name, target, &args, &run),
                Err(reason) => println!("## {name}, {target}, {}\n\n{reason}\n", args.dtype),
            }
        }
    }
    Ok(())
}

/// The JSON of `graphc bench --emulate`, or what it said instead.
fn predict(args: &Args, model: &std::path::Path, target: &str) -> Result<Value, String> {
    let output = Command::new(&args.graphc)
        .args(["bench", "--quiet", "--emulate", "--no-libraries", "--format", "json"])
        .args(["--dtype", &args.dtype, "--target", target])
        .arg(model)
        .output()
        .map_err(|error| format!("{}: {error}", args.graphc.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

fn print(name: &str, target: &str, args: &Args, run: &Value) {
    let milliseconds = |key: &str| run[key].as_f64().unwrap_or(f64::NAN);
    println!(
        "## {name}, {target}, {}: {:.3} ms predicted ({:.3} ms one step after another)\n\n\
         | kernel | launches | us | of all | bound by | roofline | waits mostly for |\n|---|---|---|---|---|---|---|",
        args.dtype,
        milliseconds("predicted_ms"),
        milliseconds("in_sequence_ms")
    );
    let all = 1e3 * milliseconds("in_sequence_ms");
    for kernel in run["kernels"].as_array().into_iter().flatten().take(args.kernels) {
        let report = &kernel["report"];
        let micros = kernel["total_micros"].as_f64().unwrap_or(f64::NAN);
        println!(
            "| {} | {} | {micros:.1} | {:.0}% | {} | {:.0}% | {} |",
            kernel["name"].as_str().unwrap_or(""),
            kernel["launches"],
            100.0 * micros / all,
            report["bound"].as_str().unwrap_or(""),
            100.0 * report["roofline"].as_f64().unwrap_or(f64::NAN),
            report["stalls"][0]["name"].as_str().unwrap_or("")
        );
    }
    println!();
}
