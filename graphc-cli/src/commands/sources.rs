//! `graphc compile --emit hip -o DIR`: a folder from which a person can compile and launch the kernels by hand.
//!
//! ```text
//! DIR/softmax.hip            one file a kernel, as graphc gives it to the compiler, after an include that hipcc wants
//! DIR/graphc_math.hip.h      the device headers that they include
//! DIR/build.sh               one hipcc line a kernel (nvcc's for NVIDIA's targets)
//! DIR/launches.json          the steps of a run in order: kernel, arguments, and the launch's size at some sizes of the model
//! ```
//!
//! Several targets have a folder each, by their names.

use std::collections::BTreeSet;
use std::path::Path;

use ir::dim::hints;
use ir::plan::{BufferId, KernelId, Place, Work};
use ir::program::Variant;
use ir::target::Platform;
use ir::{Bindings, Plan, Program, Symbols, Table, Target};
use serde_json::{Value, json};

use super::args::{BuildArgs, ModelArgs};
use super::{Context, load, output};
use graphc::driver;
use graphc::error::{Error, Result};

/// Writes the folder.
///
/// # Errors
/// As the driver; a target without sources; a folder that cannot be made or written.
pub fn write(model: &ModelArgs, build: &BuildArgs, targets: &[Target], folder: &Path, context: &Context) -> Result<()> {
    if folder.exists() && !folder.is_dir() {
        return Err(Error::Config(format!(
            "-o {}: --emit hip writes a folder, and this is none; without -o it prints the sources",
            folder.display()
        )));
    }
    let program = load::load_for(model, build, targets, context)?.program;
    program.variants.iter().try_for_each(check)?;
    // All texts first: what cannot be made leaves no half of a folder.
    let several = program.variants.len() > 1;
    let mut files: Vec<(String, String)> = Vec::new();
    for (index, variant) in program.variants.iter().enumerate() {
        let prefix = match several {
            true => format!("{}/", variant.plan.target.to_string().replace(':', "_")),
            false => String::new(),
        };
        let texts = files_of(&program, index)?.into_iter();
        files.extend(texts.map(|(name, text)| (prefix.clone() + &name, text)));
    }
    for (name, text) in &files {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(Error::io("make", parent))?;
        }
        output::save(&path, text)?;
    }
    output::note(
        context,
        &format!(
            "{}: {} files; `sh build.sh` there compiles the kernels",
            folder.display(),
            files.len()
        ),
    );
    Ok(())
}

/// Refuses a target that nothing is compiled for.
pub fn check(variant: &Variant) -> Result<()> {
    match variant.plan.target.is_gpu() {
        true => Ok(()),
        false => Err(Error::Config("the cpu target has no HIP source; emit plan".to_owned())),
    }
}

/// Names and texts of the files of one target.
fn files_of(program: &Program, index: usize) -> Result<Vec<(String, String)>> {
    let variant = &program.variants[index];
    let is_hip = variant.plan.target.platform == Platform::Hip;
    let names = file_names(variant, if is_hip { "hip" } else { "cu" });
    let requests = driver::requests(&program.select(&[index]));
    let mut files = Vec::new();
    let mut script = String::from("#!/bin/sh\nset -e\ncd \"$(dirname \"$0\")\"\n");
    for ((_, name), request) in names.iter().zip(&requests) {
        // hiprtc and NVRTC have their built-in functions without being asked.
        let head = match is_hip {
            true => "#if !defined(__HIPCC_RTC__)\n#include <hip/hip_runtime.h>\n#endif\n",
            false => "",
        };
        files.push((name.clone(), format!("{head}{}", request.source)));
        let stem = name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem);
        script += &match is_hip {
            true => format!(
                "${{HIPCC:-hipcc}} --genco --offload-arch={} {} -I. {name} -o {stem}.co\n",
                request.arch,
                request.options.join(" ")
            ),
            false => format!(
                "${{NVCC:-nvcc}} -cubin -arch={} {} -I. {name} -o {stem}.cubin\n",
                request.arch,
                request.options.join(" ")
            ),
        };
    }
    let headers: BTreeSet<(String, String)> = requests.into_iter().flat_map(|r| r.headers).collect();
    files.extend(headers);
    files.push(("build.sh".to_owned(), script));
    let launches = launches(&variant.plan, &names, variant)?;
    files.push(("launches.json".to_owned(), format!("{launches:#}\n")));
    Ok(files)
}

/// A file for each kernel: its entry's name, and its number where two have one name.
fn file_names(variant: &Variant, extension: &str) -> Table<KernelId, String> {
    let entries: Vec<&str> = variant.sources.values().map(|s| s.entry.as_str()).collect();
    let name =
        |(id, source): (KernelId, &ir::program::Source)| match entries.iter().filter(|e| **e == source.entry).count() {
            1 => format!("{}.{extension}", source.entry),
            _ => format!("{}.{id}.{extension}", source.entry),
        };
    variant.sources.iter().map(name).collect()
}

/// The steps of one run, in order.
fn launches(plan: &Plan, files: &Table<KernelId, String>, variant: &Variant) -> Result<Value> {
    let examples = examples(&plan.symbols);
    let mut steps = Vec::new();
    let describe = |work: &Work| -> Value {
        match work {
            Work::Launch { kernel, args, .. } => {
                let k = &plan.kernels[*kernel];
                let mut sizes = Vec::new();
                for bindings in &examples {
                    // Sizes that the kernel cannot be launched at are none to show.
                    let Ok(size) = k.launch_size(bindings) else { continue };
                    let at: serde_json::Map<String, Value> =
                        bindings.iter().map(|(s, v)| (s.to_string(), json!(v))).collect();
                    let block = [size.block, 1, 1];
                    sizes.push(json!({ "sizes": at, "grid": size.grid, "block": block, "lds": size.lds }));
                }
                let sizes_last = k.symbols.iter().map(|s| json!({ "size": s.to_string() }));
                let arguments: Vec<Value> = args.iter().map(|b| buffer(plan, *b)).chain(sizes_last).collect();
                json!({
                    "launch": variant.sources[*kernel].entry, "file": files[*kernel], "launch_sizes": sizes,
                    "arguments": arguments,
                })
            }
            Work::Call {
                call,
                operands,
                results,
                ..
            } => json!({
                "call": call.name(),
                "operands": operands.iter().map(|b| buffer(plan, *b)).collect::<Vec<_>>(),
                "results": results.iter().map(|b| buffer(plan, *b)).collect::<Vec<_>>(),
            }),
            Work::Copy { from, to } => json!({ "copy": buffer(plan, *from), "to": buffer(plan, *to) }),
        }
    };
    for (id, step) in plan.steps.iter() {
        let mut value = describe(&step.work);
        if let Some(fields) = value.as_object_mut() {
            fields.insert("step".to_owned(), json!(id.to_string()));
            let waits: Vec<String> = step.waits.iter().map(ToString::to_string).collect();
            fields.insert("waits".to_owned(), json!(waits));
            fields.insert("lane".to_owned(), json!(step.lane.to_string()));
            let choices = step.choices.iter().map(|choice| {
                let mut work = describe(&choice.work);
                if let Some(fields) = work.as_object_mut() {
                    fields.insert("size".to_owned(), json!(choice.size.to_string()));
                    fields.insert("from".to_owned(), json!(choice.from));
                }
                work
            });
            fields.insert("choices".to_owned(), choices.collect());
        }
        steps.push(value);
    }
    Ok(json!({
        "target": plan.target.to_string(),
        "note": "every argument is 8 bytes: a buffer's address, then each size as a 64-bit integer; `lds` is the bytes of shared \
                 memory that the launch asks for beside what the kernel declares",
        "steps": steps,
    }))
}

fn buffer(plan: &Plan, id: BufferId) -> Value {
    let b = &plan.buffers[id];
    let place = match &b.place {
        Place::Input => "input",
        Place::Output => "output",
        Place::Constant(_) | Place::Streamed(_) => "constant",
        Place::Arena { .. } => "arena",
    };
    json!({ "buffer": b.name, "type": b.ty.to_string(), "place": place })
}

/// Sizes to show launches at: all at their least, their hints, and their most where there is one.
fn examples(symbols: &Symbols) -> Vec<Bindings> {
    let hints = hints(symbols);
    let all = |pick: fn(&ir::SymbolInfo) -> i64| -> Bindings {
        symbols
            .iter()
            .map(|(symbol, info)| (symbol.clone(), pick(info)))
            .collect()
    };
    let mut examples = vec![all(|info| info.min), hints, all(|info| info.max.unwrap_or(info.hint))];
    examples.dedup();
    examples
}
