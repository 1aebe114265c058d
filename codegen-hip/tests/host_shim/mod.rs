//! Runs generated kernels on the host: one g++ for all of a test's kernels, `shim.h` for the GPU's built-ins.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Command;

use graphc_codegen_hip as codegen_hip;

use ir::kernel::{Access, Kernel, LaunchSize};
use ir::program::Source;
use ir::{Bindings, HostTensor, Storage};

/// One launch to execute.
pub struct Job<'a> {
    pub kernel: &'a Kernel,
    pub source: &'a Source,
    pub buffers: Vec<HostTensor>,
    pub bindings: Bindings,
}

/// Says whether there is a C++ compiler.
pub fn is_available() -> bool {
    Command::new("g++")
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success())
}

/// Compiles all kernels into one program, runs every job and returns its buffers after; `Err` carries what the compiler
/// or the program said.
pub fn run(jobs: &[Job<'_>]) -> Result<Vec<Vec<HostTensor>>, String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let at = |name: &str| folder.path().join(name);
    for (name, text) in codegen_hip::device::headers() {
        std::fs::write(at(name), text).map_err(|e| e.to_string())?;
    }
    std::fs::write(at("shim.h"), include_str!("shim.h")).map_err(|e| e.to_string())?;
    let mut program = String::from("#include \"shim.h\"\n");
    let mut table = String::from("static void (*const KERNELS[])(void**, const long*) = {\n");
    for (i, job) in jobs.iter().enumerate() {
        // Namespaces keep names of equal kernels apart; what is `extern "C"` needs a name of its own.
        let entry = format!("kernel_{i}");
        let text = job
            .source
            .text
            .replacen(&format!("{}(", job.source.entry), &format!("{entry}("), 1);
        program.push_str(&text);
        let mut args: Vec<String> = Vec::new();
        for (p, param) in job.kernel.params.values().enumerate() {
            let constant = if param.access == Access::Read { "const " } else { "" };
            args.push(format!("({constant}{}*)a[{p}]", memory_type(param.dtype)));
        }
        args.extend((0..job.kernel.symbols.len()).map(|s| format!("s[{s}]")));
        let _ = writeln!(
            table,
            "    [](void** a, const long* s) {{ (void)s; {entry}({}); }},",
            args.join(", ")
        );
    }
    let _ = write!(
        program,
        "\n{table}}};\nint main(int n, char** v) {{ return host::run(n, v, KERNELS); }}\n"
    );
    std::fs::write(at("kernels.cpp"), &program).map_err(|e| e.to_string())?;
    let out = Command::new("g++")
        .args([
            "-std=c++17",
            "-O1",
            "-Wno-unknown-pragmas",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-o",
            "kernels",
            "kernels.cpp",
        ])
        .current_dir(folder.path())
        .output()
        .map_err(|e| e.to_string())?;
    if !out.status.success() {
        let log = String::from_utf8_lossy(&out.stderr);
        let numbered: String = program
            .lines()
            .enumerate()
            .map(|(i, l)| format!("{}: {l}\n", i + 1))
            .collect();
        return Err(format!("{}\n{numbered}", log.chars().take(4000).collect::<String>()));
    }
    let mut file = std::fs::File::create(at("jobs")).map_err(|e| e.to_string())?;
    let word = |file: &mut std::fs::File, v: u64| file.write_all(&v.to_le_bytes()).map_err(|e| e.to_string());
    for (i, job) in jobs.iter().enumerate() {
        let LaunchSize { grid, block, .. } = job.kernel.launch_size(&job.bindings).map_err(|e| e.to_string())?;
        let head = [
            i as u64,
            grid[0].into(),
            grid[2].into(),
            block.into(),
            job.buffers.len() as u64,
        ];
        for v in head {
            word(&mut file, v)?;
        }
        word(&mut file, job.kernel.symbols.len() as u64)?;
        for s in &job.kernel.symbols {
            word(&mut file, job.bindings[s] as u64)?;
        }
        for b in &job.buffers {
            word(&mut file, b.bytes.len() as u64)?;
            std::io::Write::write_all(&mut file, &b.bytes).map_err(|e| e.to_string())?;
        }
    }
    drop(file);
    let out = Command::new(at("kernels"))
        .args([at("jobs"), at("out")])
        .output()
        .map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!("{}: {}", out.status, String::from_utf8_lossy(&out.stderr)));
    }
    let bytes = std::fs::read(at("out")).map_err(|e| e.to_string())?;
    let mut rest = bytes.as_slice();
    let mut results = Vec::new();
    for job in jobs {
        let mut after = Vec::new();
        for b in &job.buffers {
            let (own, tail) = rest.split_at(b.bytes.len());
            rest = tail;
            let tensor =
                HostTensor::new(b.dtype, b.shape.clone(), Storage::new(own.to_vec())).map_err(|e| e.to_string())?;
            after.push(tensor);
        }
        results.push(after);
    }
    Ok(results)
}

fn memory_type(dtype: ir::DType) -> &'static str {
    use ir::DType::*;
    match dtype {
        F32 => "float",
        F64 => "double",
        F16 => "graphc::f16",
        BF16 => "graphc::bf16",
        F8E4M3FN => "graphc::f8e4m3fn",
        F8E4M3FNUZ => "graphc::f8e4m3fnuz",
        F8E5M2 => "graphc::f8e5m2",
        F8E5M2FNUZ => "graphc::f8e5m2fnuz",
        I64 => "long",
        I32 => "int",
        I16 => "short",
        I8 => "signed char",
        U8 | I4 | U4 => "unsigned char",
        Bool => "bool",
    }
}
