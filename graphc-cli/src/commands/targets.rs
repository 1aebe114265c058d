//! `graphc targets`: what can be compiled for, and what is here to run on.

use ir::target::{Platform, TARGETS};
use runtime::gpu::Vendor;
use serde_json::json;

use super::args::Format;
use super::{Context, output};
use graphc::error::Result;

/// List the targets and what is known of each.
#[derive(clap::Args)]
pub struct Args {
    /// List the devices of this machine instead: what `run --device` takes.
    #[arg(long)]
    devices: bool,
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    if args.devices {
        return devices(args.format, context);
    }
    if args.format == Format::Json {
        let rows: Vec<_> = TARGETS
            .iter()
            .map(|t| {
                json!({
                    "name": t.name, "product": t.product, "aliases": t.aliases, "serves": t.serves,
                    "wave_size": t.wave_size, "compute_units": t.compute_units,
                    "vector_f32_tflops": t.vector_f32_tflops, "matrix_f16_tflops": t.matrix_f16_tflops,
                    "memory_tbps": t.memory_tbps, "lds_bytes": t.lds_bytes, "libraries": t.libraries,
                })
            })
            .collect();
        return output::print_json(&json!(rows));
    }
    let mut text = format!(
        "{:<15} {:<33} {:>5} {:>4} {:>9} {:>9} {:>8}  {}\n",
        "target", "product", "units", "wave", "f32 TF/s", "f16 TF/s", "TB/s", "also called"
    );
    for t in TARGETS {
        let host = t.platform == Platform::Cpu;
        let number = |v: f64| {
            if host || v == 0.0 {
                "-".to_owned()
            } else {
                format!("{v}")
            }
        };
        let units = if host {
            "-".to_owned()
        } else {
            t.compute_units.to_string()
        };
        text += &format!(
            "{:<15} {:<33} {:>5} {:>4} {:>9} {:>9} {:>8}  {}\n",
            t.name,
            t.product,
            units,
            t.wave_size,
            number(t.vector_f32_tflops),
            number(t.matrix_f16_tflops),
            number(t.memory_tbps),
            match t.serves {
                [] => t.aliases.join(", "),
                served => format!("code for {}", served.join(", ")),
            }
        );
    }
    output::print(&text)
}

fn devices(format: Format, context: &Context) -> Result<()> {
    let search = context.settings.gpu_search();
    let found = Vendor::ALL.map(|vendor| (vendor, runtime::gpu::discover(&search, vendor)));
    if format == Format::Json {
        let mut rows = vec![json!({ "name": "cpu", "target": "cpu" })];
        rows.extend(found.iter().flat_map(|(_, found)| found.iter().flatten()).map(|d| {
            json!({
                "name": d.name, "target": d.target.map(|t| t.name), "arch": d.description.arch,
                "product": d.description.product, "memory_bytes": d.description.memory,
            })
        }));
        return output::print_json(&json!(rows));
    }
    let mut text = "cpu\n".to_owned();
    for (vendor, found) in found {
        match found {
            Ok(devices) if devices.is_empty() => {
                let hidden = context.settings.hidden_devices(vendor);
                let note = hidden.map_or(String::new(), |note| format!("; {note}"));
                text += &format!("{}: its runtime sees no GPU{note}\n", vendor.name());
            }
            Ok(devices) => {
                for d in devices {
                    let (name, arch, product) = (d.name, d.description.arch, d.description.product);
                    let memory = output::bytes(d.description.memory as u64);
                    let note = if d.target.is_none() { ", not a target" } else { "" };
                    text += &format!("{name}  {arch}  {product}, {memory}{note}\n");
                }
            }
            Err(error) => text += &format!("{}: {error}\n", vendor.name()),
        }
    }
    output::print(&text)
}
