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

/// Of every f16 and bf16 the GELU that is stored in that type is within one number of the nearest.
#[test]
fn gelus_of_all_16_bit_floats() {
    use ir::{DType, HostTensor};
    if !host_shim::is_available() {
        println!("skipped: no g++ on this machine");
        return;
    }
    let mapping = ir::kernel::Mapping::Stream {
        block: 64,
        vector: 8,
        unroll: 1,
    };
    let target: Target = "gfx90a".parse().unwrap();
    let symbols = symbols();
    let bindings: Bindings = ir::dim::hints(&symbols);
    for dtype in [DType::F16, DType::BF16] {
        let kernel = kernels::pointwise::pointwise("gelus", dtype, 1024, 64, mapping.clone());
        let source = codegen_hip::emit_kernel(&kernel, &symbols, &target, &[]).unwrap();
        assert!(source.text.contains("math::gelu_as<"), "{}", source.text);
        let bits: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let all = HostTensor::new(dtype, [65536], ir::Storage::new(bits)).unwrap();
        let buffers = vec![
            all.clone(),
            HostTensor::from_f32([64], &[0.0; 64]).unwrap(),
            all.clone(),
        ];
        let job = Job {
            kernel: &kernel,
            source: &source,
            buffers: buffers.clone(),
            bindings: bindings.clone(),
        };
        let got = host_shim::run(&[job]).unwrap_or_else(|e| panic!("{e}"));
        let mut want = buffers;
        ir::kernel::eval::evaluate(&kernel, &mut want, &bindings).unwrap();
        let least = if dtype == DType::F16 {
            0.0
        } else {
            f64::from(f32::MIN_POSITIVE)
        };
        // The place of a number among all of its type.
        let place = |bytes: &[u8]| {
            let bits = i32::from(i16::from_le_bytes([bytes[0], bytes[1]]));
            if bits < 0 { -(bits & 0x7fff) } else { bits }
        };
        let [inputs, results, wanted] = [&all, &got[0][2], &want[2]].map(HostTensor::to_f64);
        let mut further = 0;
        for (i, ((x, got_number), number)) in inputs.iter().zip(results).zip(wanted).enumerate() {
            // What the kernel takes the GELU of overflows f32.
            let overflows = x.is_finite() && (1.25 * x).abs() > f64::from(f32::MAX);
            if number.is_nan() || overflows && *x < 0.0 {
                assert!(got_number.is_nan(), "{dtype}: {x}: {got_number}");
            } else if number.abs() < least {
                assert!(got_number.abs() <= least, "{dtype}: {x}: {got_number}, not {number}");
            } else {
                let [got, want] = [&got[0][2], &want[2]].map(|t| place(&t.bytes[2 * i..2 * i + 2]));
                assert!((got - want).abs() <= 1, "{dtype}: {x}: {got_number}, not {number}");
                further += u32::from(got != want);
            }
        }
        println!("{dtype}: {further} of 65536 are the number beside the nearest");
        assert!(further < 3000, "{dtype}: {further}");
    }
}
