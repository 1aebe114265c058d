//! Kernels that lowering makes of random graphs, printed as HIP and executed on the host, compute what the kernels'
//! evaluator says. Each kernel runs by itself, on numbers that float arithmetic keeps exact for a while.

use crate::host_shim::{self, Job};
use graphc::driver::{BuildOptions, build};
use graphc_tests::random_graph::{Step, case};
use ir::{Bindings, DType, HostTensor, Symbol, Target};
use passes::OptLevel;

const CASES: u64 = 40;

/// Numbers that are the same every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn tensor(&mut self, dtype: DType, n: usize) -> HostTensor {
        let words: Vec<i64> = (0..n).map(|_| (self.next() % 9) as i64 - 4).collect();
        let made = if dtype.is_float() {
            HostTensor::from_f64(dtype, [n], &words.iter().map(|w| *w as f64 / 4.0).collect::<Vec<_>>())
        } else {
            HostTensor::from_i64(dtype, [n], &words)
        };
        made.expect("as many numbers as elements")
    }
}

#[test]
fn lowered_kernels_compute_what_the_evaluator_says() {
    if !host_shim::is_available() {
        println!("skipped: no g++ on this machine");
        return;
    }
    let mut random = Random(7);
    let target: Target = "gfx1100".parse().expect("a target of the table");
    let bindings = Bindings::from([(Symbol::new("b"), 3)]);
    let mut kernels = Vec::new();
    for head in 0..CASES {
        let steps: Vec<Step> = (0..8).map(|_| std::array::from_fn(|_| random.next() as u16)).collect();
        let case = case(head as u16 * 5, &steps);
        let built = build(&case.graph, &BuildOptions::new(vec![target], OptLevel::O2)).expect("builds");
        let variant = built.program.variants.into_iter().next().expect("one target");
        kernels.extend(
            variant
                .plan
                .kernels
                .values()
                .cloned()
                .zip(variant.sources.values().cloned()),
        );
    }
    let mut jobs = Vec::new();
    for (kernel, source) in &kernels {
        if kernel
            .launch_size(&bindings)
            .expect("a launch that fits")
            .grid
            .contains(&0)
        {
            continue;
        }
        let buffers = kernel
            .params
            .values()
            .map(|p| random.tensor(p.dtype, p.elements.eval(&bindings).expect("bound").max(0) as usize))
            .collect();
        jobs.push(Job {
            kernel,
            source,
            buffers,
            bindings: bindings.clone(),
        });
    }
    let results = host_shim::run(&jobs).unwrap_or_else(|e| panic!("{e}"));
    let mut wrong = Vec::new();
    for (job, got) in jobs.iter().zip(&results) {
        let mut want = job.buffers.clone();
        ir::kernel::eval::evaluate(job.kernel, &mut want, &bindings).unwrap_or_else(|e| panic!("{e}"));
        for ((param, got), want) in job.kernel.params.values().zip(got).zip(&want) {
            let tolerance = if matches!(want.dtype, DType::F16 | DType::BF16) {
                2e-2
            } else {
                1e-4
            };
            let (got, want) = (got.to_f64(), want.to_f64());
            let scale = want
                .iter()
                .filter(|w| w.is_finite())
                .fold(1.0f64, |m, w| m.max(w.abs()));
            let bad = (0..want.len()).find(|i| {
                let (g, w) = (got[*i], want[*i]);
                g != w && !(g.is_nan() && w.is_nan()) && ((g - w).is_nan() || (g - w).abs() > tolerance * scale)
            });
            if let Some(i) = bad {
                let name = format!("{} {}[{i}]", job.kernel.name, param.name);
                wrong.push(format!("{name}: got {}, want {}\n{}", got[i], want[i], job.source.text));
            }
        }
    }
    println!("{} kernels executed", jobs.len());
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}
