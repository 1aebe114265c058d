//! Generated kernels, executed on the host, compute what the kernels' evaluator says.

mod host_shim;
mod judge;
mod kernels;

use graphc_codegen_hip as codegen_hip;

use host_shim::Job;
use ir::kernel::Kernel;
use ir::{Bindings, Target};
use judge::{Random, differ, symbols};

fn check(kernels: &[Kernel], target: &str) {
    if !host_shim::is_available() {
        println!("skipped: no g++ on this machine");
        return;
    }
    let target: Target = target.parse().unwrap();
    let symbols = symbols();
    let bindings: Bindings = ir::dim::hints(&symbols);
    let sources: Vec<_> = kernels
        .iter()
        .map(|k| codegen_hip::emit_kernel(k, &symbols, &target, &[]).unwrap_or_else(|e| panic!("{e}")))
        .collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let jobs: Vec<Job<'_>> = kernels
        .iter()
        .zip(&sources)
        .map(|(kernel, source)| {
            let buffers = judge::operands(kernel, &bindings, &mut random);
            Job {
                kernel,
                source,
                buffers,
                bindings: bindings.clone(),
            }
        })
        .collect();
    let results = host_shim::run(&jobs).unwrap_or_else(|e| panic!("{e}"));
    let (mut wrong, mut first) = (Vec::new(), None);
    for (job, got) in jobs.iter().zip(&results) {
        let mut want = job.buffers.clone();
        if let Err(e) = ir::kernel::eval::evaluate(job.kernel, &mut want, &bindings) {
            panic!("{}: {e}", job.kernel.name);
        }
        for ((param, got), want) in job.kernel.params.values().zip(got).zip(&want) {
            if let Some(message) = differ(job.kernel, &param.name, got, want) {
                wrong.push(message);
                first = first.or(Some(&job.source.text));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{}\n\n{}",
        wrong.join("\n"),
        first.map_or("", |s| s.as_str())
    );
}

#[test]
fn generated_kernels_compute_what_the_evaluator_says_in_waves_of_32() {
    check(&kernels::all(), "gfx1100");
}

#[test]
fn generated_kernels_compute_what_the_evaluator_says_in_waves_of_64() {
    let shared: Vec<Kernel> = kernels::all()
        .into_iter()
        .filter(|k| {
            ["softmax", "layer_norm", "folds", "attention", "scan", "top_k"]
                .iter()
                .any(|n| k.name.starts_with(n))
        })
        .collect();
    check(&shared, "gfx90a");
}
