//! `graphc doctor`: what graphc finds on this machine, where, in which versions; what is missing, and how to get it.

use std::path::{Path, PathBuf};

use runtime::gpu::{FoundDevice, Vendor};
use runtime::installed::{Component, State, survey};
use serde_json::{Value, json};

use super::args::Format;
use super::{Context, output};
use graphc::error::Result;

/// Say what of ROCm and CUDA is found here, what is missing, and the command that gets it.
#[derive(clap::Args)]
pub struct Args {
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// What was found.
struct Findings {
    /// Variables that are set, with their values.
    settings: Vec<(String, String)>,
    /// Variables that look like settings and are none.
    unknown: Vec<String>,
    components: Vec<Component>,
    /// By vendor, or why there can be none.
    devices: Vec<(Vendor, std::result::Result<Vec<FoundDevice>, String>)>,
    /// AMD's kernel driver: what is wrong with it, if anything.
    kernel_driver: std::result::Result<(), String>,
    cache: Option<PathBuf>,
    /// What is wrong with the cache's folder, if anything.
    cache_problem: Option<String>,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    let findings = look(context);
    match args.format {
        Format::Text => output::print(&text(&findings)),
        Format::Json => output::print_json(&as_json(&findings)),
    }
}

fn look(context: &Context) -> Findings {
    let settings = &context.settings;
    let search = settings.gpu_search();
    let devices = Vendor::ALL.map(|vendor| {
        let found = runtime::gpu::discover(&search, vendor);
        (vendor, found.map_err(|e| e.to_string()))
    });
    Findings {
        settings: settings.set.clone(),
        unknown: settings.unknown.clone(),
        components: survey(&settings.compiler_search(), &search),
        devices: devices.into(),
        kernel_driver: kernel_driver(Path::new("/dev/kfd")),
        cache: settings.cache_dir.clone(),
        cache_problem: settings.cache_dir.as_deref().and_then(unusable),
    }
}

/// Checks that this user may open AMD's compute device.
fn kernel_driver(device: &Path) -> std::result::Result<(), String> {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(device);
    opened.map(drop).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!(
                "there is no {}: no AMD GPU, or its kernel driver (amdgpu) is not loaded",
                device.display()
            )
        }
        _ => format!(
            "{}: {error}; put this user into the device's group: `sudo usermod -a -G render,video $USER`",
            device.display()
        ),
    })
}

/// Says why nothing could be kept in a folder, without making it.
fn unusable(folder: &Path) -> Option<String> {
    let there = folder.ancestors().find(|f| f.exists())?;
    match tempfile::tempfile_in(there) {
        Ok(_) => None,
        Err(error) => Some(format!("{}: {error}", there.display())),
    }
}

fn text(f: &Findings) -> String {
    let mut text = format!("graphc {}\n", env!("CARGO_PKG_VERSION"));
    if let Some(slow) = graphc::optimised::note() {
        text += &format!("{slow}\n");
    }
    text += "\nsettings\n";
    for (name, value) in &f.settings {
        text += &format!("  {name}={value}\n");
    }
    if f.settings.is_empty() {
        text += "  no variable is set: all are as by default\n";
    }
    for problem in &f.unknown {
        text += &format!("  {problem}\n");
    }
    match (&f.cache, &f.cache_problem) {
        (None, _) => text += "  compiled kernels are not kept\n",
        (Some(folder), None) => text += &format!("  compiled kernels are kept in {}\n", folder.display()),
        (Some(folder), Some(problem)) => {
            text += &format!("  compiled kernels cannot be kept in {}: {problem}\n", folder.display());
        }
    }
    text += "\nlibraries\n";
    for c in &f.components {
        match &c.state {
            State::Found(found) => {
                let version = found.version.as_deref().unwrap_or("version unknown");
                text += &format!("  {:<12} {version}, {}", c.name, found.path.display());
                if let Some(wrapper) = &found.through {
                    text += &format!(", through {}", wrapper.display());
                }
                text += "\n";
            }
            State::Missing { looked_in, get } => {
                text += &format!("  {:<12} MISSING, for {}: {get}\n", c.name, c.serves);
                for place in looked_in {
                    text += &format!("  {:<12}   looked at {place}\n", "");
                }
            }
        }
    }
    text += "\ndevices\n  cpu\n";
    for (vendor, found) in &f.devices {
        match found {
            Ok(devices) if devices.is_empty() => text += &format!("  {}: its runtime sees no GPU\n", vendor.name()),
            Ok(devices) => devices.iter().for_each(|d| text += &format!("  {}\n", device(d))),
            // Every place is listed above.
            Err(error) => {
                text += &format!(
                    "  {}: {}\n",
                    vendor.name(),
                    error.lines().next().unwrap_or_default().trim_end_matches("; looked at")
                )
            }
        }
    }
    if let Err(problem) = &f.kernel_driver {
        text += &format!("  {problem}\n");
    }
    text
}

fn device(d: &FoundDevice) -> String {
    let note = if d.target.is_none() { ", not a target" } else { "" };
    let memory = output::bytes(d.description.memory as u64);
    format!(
        "{}  {}  {}, {memory}, {}{note}",
        d.name, d.description.arch, d.description.product, d.description.driver
    )
}

fn as_json(f: &Findings) -> Value {
    let settings: serde_json::Map<String, Value> = f
        .settings
        .iter()
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    let libraries: Vec<Value> = f
        .components
        .iter()
        .map(|c| match &c.state {
            State::Found(found) => json!({
                "name": c.name, "serves": c.serves, "found": true, "path": found.path, "version": found.version,
                "through": found.through,
            }),
            State::Missing { looked_in, get } => json!({
                "name": c.name, "serves": c.serves, "found": false, "looked_in": looked_in, "get": get,
            }),
        })
        .collect();
    let mut devices = vec![json!({ "name": "cpu", "target": "cpu" })];
    let found = f.devices.iter().flat_map(|(_, found)| found.iter().flatten());
    devices.extend(found.map(|d| {
        json!({
            "name": d.name, "target": d.target.map(|t| t.name), "arch": d.description.arch,
            "product": d.description.product, "driver": d.description.driver,
            "memory_bytes": d.description.memory,
        })
    }));
    let problems: Vec<String> = f
        .devices
        .iter()
        .filter_map(|(_, found)| found.as_ref().err().cloned())
        .chain(f.kernel_driver.as_ref().err().cloned())
        .chain(f.cache_problem.clone())
        .chain(f.unknown.iter().cloned())
        .chain(graphc::optimised::note().map(str::to_owned))
        .collect();
    json!({
        "graphc": env!("CARGO_PKG_VERSION"), "settings": settings, "cache": f.cache, "libraries": libraries,
        "devices": devices, "problems": problems,
    })
}
