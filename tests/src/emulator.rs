//! Generated code on emulated GPUs: what compiles and decodes it, and a tally of what was compared.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use graphc::driver::{self, Build, BuildOptions};
use graphc::emu::{Disassembler, LaunchOptions};
use graphc::emulate::{self, CheckedKernel, Emulator, Outcome, Subject, Verdict, check_kernel};
use graphc::ir::graph::parse::parse;
use graphc::ir::kernel::Kernel;
use graphc::ir::target::Platform;
use graphc::ir::{Bindings, DType, Entity, Graph, HostTensor, Target};
use graphc::options::Settings;
use graphc::passes::OptLevel;
use graphc::runtime::cache::CachedCompiler;
use graphc::runtime::code_object;

use crate::reference::Tensors;

/// The GPUs that every generated kernel is run on: both CDNA generations with matrix cores, and RDNA 3 and 4.
pub const ARCHS: [&str; 4] = ["gfx90a", "gfx942", "gfx1100", "gfx1201"];

/// The real compiler, behind graphc's cache, and the emulator's disassembler.
pub struct Toolchain {
    pub compiler: CachedCompiler,
    pub disassembler: Arc<dyn Disassembler>,
}

/// Finds the toolchain, or prints a word on what is skipped.
pub fn toolchain() -> Option<Toolchain> {
    let binary = crate::graphc_binary();
    if !binary.is_file() {
        println!("skipped: {} is not built", binary.display());
        return None;
    }
    let settings = Settings::from_env().expect("the environment's settings");
    let words = |verb: &str| [binary.clone().into_os_string(), verb.into()];
    let compiler = driver::compiler(&settings, Some(&words("__compile-worker")), [Platform::Hip]);
    let disassembler = emulate::disassembler(&settings, Some(&words("__disassembler")));
    match (compiler, disassembler) {
        (Ok(compiler), Ok(disassembler)) => Some(Toolchain { compiler, disassembler }),
        (Err(error), _) | (_, Err(error)) => {
            println!("skipped: {error}");
            None
        }
    }
}

impl Toolchain {
    /// Builds a graph for a GPU, every kernel generated, and compiles the kernels.
    ///
    /// # Panics
    /// When something does not compile.
    pub fn build(&self, graph: &Graph, arch: &str, dtype: Option<DType>) -> Build {
        let target: Target = arch.parse().expect("a target of the table");
        let mut options = BuildOptions::new(vec![target], OptLevel::O2).dtype(dtype);
        options.optimize.libraries = false;
        let mut built = driver::build(graph, &options).unwrap_or_else(|e| panic!("{arch}: {e}"));
        driver::compile(&mut built.program, &self.compiler, &|_| ()).unwrap_or_else(|e| panic!("{arch}: {e}"));
        built
    }

    /// Runs a built graph whole and compares the kernels that take at most `limit` points.
    ///
    /// # Panics
    /// On a fault.
    pub fn run(&self, built: &Build, inputs: &Tensors, limit: u64) -> Outcome {
        let options = emulate::Options {
            check: Some(limit),
            ..emulate::Options::default()
        };
        Emulator::load(&built.program, 0, &self.disassembler, options)
            .and_then(|emulator| emulator.run(inputs))
            .unwrap_or_else(|e| panic!("{e}"))
    }

    /// Checks each kernel of a built graph alone, by about `sample` workgroups.
    ///
    /// # Panics
    /// On a fault.
    pub fn sample(&self, built: &Build, sample: u64) -> Outcome {
        let options = LaunchOptions::default();
        emulate::check_samples(&built.program, 0, &self.disassembler, &options, sample, 1)
            .unwrap_or_else(|e| panic!("{e}"))
    }

    /// Builds a graph of known sizes, given as text, and checks each kernel alone, on operands of its own and whole:
    /// what it computes, and that nothing spilled. Returns what each counted.
    ///
    /// # Panics
    /// When a kernel does not compile, faults, spills or is wrong.
    pub fn each_kernel(&self, arch: &str, text: &str) -> Vec<(Kernel, CheckedKernel)> {
        let graph = parse(text).unwrap_or_else(|e| panic!("{e}"));
        let built = self.build(&graph, arch, None);
        let variant = &built.program.variants[0];
        for (id, kernel) in variant.plan.kernels.iter() {
            let code = variant.code[id].as_ref().expect("it was compiled");
            for resources in &code_object::read(code).expect("a code object").kernels {
                let spilled = (resources.vgpr_spills, resources.scratch_bytes);
                assert_eq!(spilled, (0, 0), "{arch} {}: spills, scratch", kernel.name);
            }
        }
        self.each_of(arch, &built)
    }

    /// Checks each kernel of what was built of a graph of known sizes as [`Toolchain::each_kernel`] does, but for
    /// spills.
    ///
    /// # Panics
    /// When a kernel faults or is wrong.
    pub fn each_of(&self, arch: &str, built: &Build) -> Vec<(Kernel, CheckedKernel)> {
        let variant = &built.program.variants[0];
        let each = variant.plan.kernels.iter().map(|(id, kernel)| {
            let code = variant.code[id].as_ref().expect("it was compiled");
            let bindings = Bindings::new();
            let buffers: Vec<HostTensor> = kernel
                .params
                .iter()
                .map(|(id, p)| {
                    let n = usize::try_from(p.elements.eval(&bindings).expect("a size")).expect("not negative");
                    let tensor = match p.dtype {
                        DType::I64 => {
                            let indices: Vec<i64> = (0..n as i64).map(|i| i * 37 % 100).collect();
                            HostTensor::from_i64(p.dtype, [n], &indices)
                        }
                        _ => {
                            let value = |i: usize| ((i * 7 + id.index()) % 61) as f64 / 16.0 - 1.75;
                            let values: Vec<f64> = (0..n).map(value).collect();
                            HostTensor::from_f64(p.dtype, [n], &values)
                        }
                    };
                    tensor.expect("as many numbers as elements")
                })
                .collect();
            let subject = Subject {
                kernel,
                target: arch,
                source: &variant.sources[id],
                code,
                buffers: &buffers,
                bindings: &bindings,
            };
            let checked = check_kernel(&subject, &self.disassembler, &LaunchOptions::default(), None)
                .unwrap_or_else(|e| panic!("{arch} {}: {e}", kernel.name));
            assert!(
                checked.verdict.is_within(),
                "{arch} {}: {:?}\n{}",
                kernel.name,
                checked.verdict,
                variant.sources[id].text
            );
            (kernel.clone(), checked)
        });
        each.collect()
    }
}

/// What was compared so far.
#[derive(Default)]
pub struct Tally {
    /// Kernels compared.
    pub kernels: usize,
    /// Kernels that were not compared, and why.
    pub unchecked: Vec<String>,
    /// Kernels that differ.
    pub wrong: Vec<String>,
    /// By type of result: results, elements, and the worst error over the largest expected magnitude.
    worst: BTreeMap<String, (usize, usize, f64)>,
}

impl Tally {
    /// Adds what a run compared.
    pub fn add(&mut self, context: &str, outcome: &Outcome) {
        for verdict in &outcome.verdicts {
            self.verdict(context, verdict);
        }
        let unchecked = outcome.unchecked.iter();
        self.unchecked
            .extend(unchecked.map(|u| format!("{context} {}: {}", u.kernel, u.reason)));
    }

    fn verdict(&mut self, context: &str, verdict: &Verdict) {
        self.kernels += 1;
        for result in &verdict.results {
            let d = &result.difference;
            self.error(
                &result.dtype,
                d.elements,
                d.max_abs / result.largest.max(f64::MIN_POSITIVE),
            );
            if !d.is_within() {
                self.wrong.push(format!(
                    "{context} {} {} ({}): {} of {} elements; worst at {}: got {}, expected {}, largest {}",
                    verdict.kernel,
                    result.param,
                    result.dtype,
                    d.mismatches,
                    d.elements,
                    d.worst,
                    d.got,
                    d.want,
                    result.largest
                ));
            }
        }
    }

    /// Notes the error of one result.
    pub fn error(&mut self, dtype: &str, elements: usize, error: f64) {
        let (results, count, worst) = self.worst.entry(dtype.to_owned()).or_default();
        *results += 1;
        *count += elements;
        if error.is_nan() || error > *worst {
            *worst = error;
        }
    }

    /// Prints the tally.
    ///
    /// # Panics
    /// When a kernel differs, or fewer than `least` were compared.
    pub fn finish(&self, what: &str, least: usize) {
        println!("{what}: {self}");
        assert!(
            self.wrong.is_empty(),
            "{} differ\n{}",
            self.wrong.len(),
            self.wrong.join("\n")
        );
        assert!(self.kernels >= least, "only {} kernels were compared", self.kernels);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kernels compared, {} not", self.kernels, self.unchecked.len())?;
        for (dtype, (results, elements, worst)) in &self.worst {
            write!(
                f,
                "; {dtype}: {results} results, {elements} elements, worst {worst:.2e}"
            )?;
        }
        for unchecked in &self.unchecked {
            write!(f, "\n  not compared: {unchecked}")?;
        }
        Ok(())
    }
}
