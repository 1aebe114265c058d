//! Prints published rankings of one kernel's variants beside the predicted ones: HipKittens' products of bf16 on
//! MI355X.
//!
//! The kernels are not part of this repository: `GRAPHC_HIPKITTENS` names a clone of
//! github.com/HazyResearch/HipKittens, of which the commits below are read by `git`. They are compiled as they are;
//! `rankings/include` has what their headers ask of a host. Words behind `--` choose rankings by a part of their names.
//! It fails where neighbours that differ by more than a tenth come out in another order, but for variants that are
//! known to miss, which say why.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Device, NoCode};
use graphc_emu::TimingOptions;
use graphc_emu::timing::Report;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The commit that most kernels and headers are of.
const PUBLISHED: &str = "f09e9685c4c6aaa41fb3ebd4fe4ca664938589e1";
/// Headers of the time at which the micro-kernels of producers and consumers were measured; later ones do not compile
/// with them.
const EARLIER: &str = "6125db682a1acfb1dabd25a585d968002008e518";

/// A product of `m` x `n` x `k` and what was published of it.
struct Variant {
    name: &'static str,
    file: &'static str,
    headers: &'static str,
    /// Replaced in the source, each of which must be there once.
    edits: Vec<(&'static str, String)>,
    grid: [u32; 2],
    waves: u32,
    size: [u64; 3],
    /// TFLOP/s.
    published: f64,
    /// Why it is known not to come out; such a variant is in no comparison.
    misses: Option<&'static str>,
}

/// Variants of one thing, neighbours beside each other.
struct Ranking {
    name: &'static str,
    variants: Vec<Variant>,
}

const FOLDER: &str = "kernels/gemm/bf16fp32/mi350x";
const SQUARE: [u64; 3] = [8192, 8192, 8192];

fn rankings() -> Vec<Ranking> {
    let plain = |name, file, headers, grid, waves, size, published| Variant {
        name,
        file,
        headers,
        edits: Vec::new(),
        grid,
        waves,
        size,
        published,
        misses: None,
    };
    let ping = |name, file, published| plain(name, file, PUBLISHED, [1024, 1], 8, SQUARE, published);
    let tall = [7680, 8192, 8192];
    let split = |name, file, grid, waves, published| plain(name, file, EARLIER, grid, waves, tall, published);
    // The variants' order of tiles, in the kernel of the same text but for later names of types: the headers that
    // theirs needs are in no commit.
    let order = |name, group: u32, milliseconds: f64| {
        let mut edits = vec![("const int WGM = 8;", format!("const int WGM = {};", group.max(1)))];
        if group == 0 {
            edits.push(("const int row = pid_m;", "const int row = blockIdx.y;".to_owned()));
            edits.push(("const int col = pid_n;", "const int col = blockIdx.x;".to_owned()));
        }
        Variant {
            edits,
            grid: if group == 0 { [32, 32] } else { [1024, 1] },
            ..ping(
                name,
                "256_256_64_32_with32x16.cpp",
                2.0 * 8192f64.powi(3) / milliseconds / 1e9,
            )
        }
    };
    vec![
        Ranking {
            name: "schedules",
            variants: vec![
                Variant {
                    misses: Some(
                        "waits for all of its loads in every step, and for longer than the model says (`emu/TIMING.md`)",
                    ),
                    ..ping("8 waves, 32x32x16", "256_256_64_32_with32x16.cpp", 1291.0)
                },
                ping("8 waves, 16x16x32", "256_256_64_32_with16x32.cpp", 1580.0),
            ],
        },
        Ranking {
            name: "producers",
            variants: vec![
                split(
                    "8 of 12 waves compute",
                    "micros/producer_consumer/16x32/micro_02_2stage_8c4p.cpp",
                    [32, 60],
                    12,
                    964.0,
                ),
                Variant {
                    misses: Some("spills registers in its loop as it is compiled here"),
                    ..split(
                        "12 of 16 waves compute",
                        "micros/producer_consumer/16x32/micro_04_2stage_12c4p.cpp",
                        [32, 40],
                        16,
                        1251.18,
                    )
                },
                split(
                    "all of 8 waves compute",
                    "micros/192x256/kernelv2.cpp",
                    [1280, 1],
                    8,
                    1521.94,
                ),
            ],
        },
        Ranking {
            name: "order of tiles",
            variants: vec![
                order("row by row", 0, 1.0816),
                order("groups of 2", 2, 1.0150),
                order("groups of 4", 4, 0.9916),
                order("groups of 8", 8, 0.9871),
                order("groups of 32", 32, 1.2564),
            ],
        },
    ]
}

fn main() -> ExitCode {
    let Some(clone) = std::env::var_os("GRAPHC_HIPKITTENS").map(PathBuf::from) else {
        println!("skipped: GRAPHC_HIPKITTENS names no clone of HipKittens");
        return ExitCode::SUCCESS;
    };
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let (mut wrong, mut known) = (Vec::new(), Vec::new());
    println!(
        "| ranking | variant | published TFLOP/s | predicted | ratio | ms | bound by |\n|---|---|---|---|---|---|---|"
    );
    for ranking in rankings() {
        if !wanted.is_empty() && !wanted.iter().any(|word| ranking.name.contains(word.as_str())) {
            continue;
        }
        let mut rates = Vec::new();
        for variant in &ranking.variants {
            let report = match predict(&clone, variant) {
                Ok(report) => report,
                Err(error) => {
                    println!("{}: {error}", variant.name);
                    return ExitCode::FAILURE;
                }
            };
            let [m, n, k] = variant.size;
            let rate = 2.0 * (m * n * k) as f64 / report.micros / 1e6;
            println!(
                "| {} | {} | {:.0} | {rate:.0} | {:.2} | {:.3} | {} |",
                ranking.name,
                variant.name,
                variant.published,
                rate / variant.published,
                report.micros / 1e3,
                report.bound
            );
            match variant.misses {
                None => rates.push((variant.published, rate, variant.name)),
                Some(why) => known.push(format!(
                    "{}, {}: in no comparison: it {why}",
                    ranking.name, variant.name
                )),
            }
        }
        for pair in rates.windows(2) {
            let [(first, one, a), (second, other, b)] = pair else {
                continue;
            };
            if (first / second).ln().abs() > 1.1f64.ln() && (first > second) != (one > other) {
                wrong.push(format!("{}: {a} and {b} are in another order", ranking.name));
            }
        }
    }
    println!();
    for line in known.iter().chain(&wrong) {
        println!("{line}");
    }
    if wrong.is_empty() {
        println!("all other neighbours that differ by more than 10% are in the published order");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// What `git` prints of a clone.
fn git(clone: &Path, words: &[&str]) -> Result<Vec<u8>, String> {
    let output =
        (Command::new("git").arg("-C").arg(clone).args(words).output()).map_err(|error| format!("git: {error}"))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!(
            "git {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// The headers of a commit, in a folder of the build's.
fn headers(clone: &Path, commit: &str) -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hipkittens").join(commit);
    if folder.join("include/kittens.cuh").exists() {
        return Ok(folder.join("include"));
    }
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let archive = folder.join("include.tar");
    let (to, of) = (archive.display().to_string(), folder.display().to_string());
    git(clone, &["archive", "-o", &to, commit, "include"])?;
    let unpacked = Command::new("tar").args(["-xf", &to, "-C", &of]).status();
    match unpacked {
        Ok(status) if status.success() => Ok(folder.join("include")),
        Ok(status) => Err(format!("tar of {to}: {status}")),
        Err(error) => Err(format!("tar: {error}")),
    }
}

fn predict(clone: &Path, variant: &Variant) -> Result<Report, String> {
    let source = git(clone, &["show", &format!("{PUBLISHED}:{FOLDER}/{}", variant.file)])?;
    let mut source = String::from_utf8(source).map_err(|error| error.to_string())?;
    for (old, new) in &variant.edits {
        if source.matches(old).count() != 1 {
            return Err(format!("{old} is not in {} once", variant.file));
        }
        source = source.replace(old, new);
    }
    let ours = format!("-I{}/benches/rankings/include", env!("CARGO_MANIFEST_DIR"));
    let theirs = format!("-I{}", headers(clone, variant.headers)?.display());
    let options = [
        "-std=c++20",
        "-w",
        "-DKITTENS_CDNA4",
        &ours,
        &theirs,
        "-I/usr/include/hip",
        "-I/usr/include",
        "-I/opt/rocm/include/hip",
        "-I/opt/rocm/include",
    ];
    let device = match Device::try_new(&source, "gfx950", &options) {
        Ok(device) => device,
        Err(NoCode::Skipped(reason)) => return Err(reason),
        Err(NoCode::Refused(log)) => return Err(log),
    };
    let [m, n, k] = variant.size;
    // Three matrices, each a pointer and four extents (batch, depth, rows, columns) and a word that is empty; then a
    // stream.
    let mut bytes = Vec::new();
    for [rows, columns] in [[m, k], [n, k], [m, n]] {
        let address = device.alloc((2 * rows * columns) as usize);
        for word in [address, 1, 1, rows, columns, 0] {
            bytes.extend(word.to_le_bytes());
        }
    }
    let kernel = device.kernel("_Z8micro_tk13micro_globals");
    bytes.resize(kernel.info().explicit_size() as usize, 0);
    let [x, y] = variant.grid;
    let block = 64 * variant.waves;
    device
        .gpu
        .time(
            &kernel,
            [x * block, y, 1],
            [block, 1, 1],
            &bytes,
            160_000,
            &TimingOptions::default(),
        )
        .map_err(|error| error.to_string())
}
