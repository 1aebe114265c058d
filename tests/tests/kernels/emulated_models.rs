//! Models' own kernels on emulated GPUs, each against the reference evaluator, and outputs against what PyTorch gave.
//!
//! Small models run whole: exports of both exporters, the digits network, MiniLM at a short sequence. The CNNs are too
//! large for that: each of their kernels runs alone, with its own code at its own sizes, by some of its workgroups.
//! `GRAPHC_ALL_MODELS=1` runs all models on all four GPUs; otherwise each GPU has some of them.

use examples::models::minilm::{Config, MiniLm};
use frontend::nn::Params;
use frontend::onnx::{ImportOptions, import};
use graphc_tests::emulator::{ARCHS, Tally, Toolchain, toolchain};
use graphc_tests::{data, everything, reference, repository};
use ir::{DType, Graph, HostTensor};

/// Kernels of more points than this are not compared: the evaluator is slow.
fn limit() -> u64 {
    if everything() { 50_000_000 } else { 4_000_000 }
}

const NARROW: [Option<DType>; 2] = [Some(DType::F16), Some(DType::BF16)];

/// Runs a model whole and compares its kernels and, where there are expected outputs, those.
fn whole(
    tools: &Toolchain,
    tally: &mut Tally,
    name: &str,
    graph: &Graph,
    arch: &str,
    dtype: Option<DType>,
    inputs: &reference::Tensors,
    want: Option<&reference::Tensors>,
) {
    let built = tools.build(graph, arch, dtype);
    let outcome = tools.run(&built, inputs, limit());
    let context = format!("{name} {} {arch}", dtype.unwrap_or(DType::F32));
    tally.add(&context, &outcome);
    for (output, want) in want.into_iter().flatten() {
        let got = &outcome.outputs[output];
        let d = graphc::compare::compare(got, want, 1e-3, 1e-5).expect("same shape");
        if !d.is_within() {
            tally.wrong.push(format!("{context}: output {output}: {d:?}"));
        }
    }
}

/// Exports and the GPUs that run them when not everything is run.
const EXPORTS: [(&str, &[&str]); 8] = [
    ("bert.ts", &["gfx90a", "gfx1100"]),
    ("bert.dy", &["gfx1201"]),
    ("gpt2.dy", &["gfx942", "gfx1201"]),
    ("llama.dy", &["gfx90a", "gfx1100"]),
    ("vit.ts", &["gfx1201"]),
    ("vit.dy", &["gfx942"]),
    ("mobilenet.ts", &["gfx942"]),
    ("mobilenet.dy", &["gfx1100"]),
];

#[test]
fn exports() {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    for (name, some) in EXPORTS {
        let graph = import(&data(&format!("exports/{name}.onnx")), &ImportOptions::default()).expect("imports");
        let model = name.split('.').next().expect("a name");
        let arrays =
            |suffix: &str| graphc::arrays::read(&data(&format!("exports/{model}.{suffix}.npz"))).expect("read");
        let (inputs, want) = (arrays("in"), arrays("out"));
        for arch in ARCHS {
            if everything() || some.contains(&arch) {
                whole(&tools, &mut tally, name, &graph, arch, None, &inputs, Some(&want));
            }
            if everything() {
                for dtype in NARROW {
                    whole(&tools, &mut tally, name, &graph, arch, dtype, &inputs, None);
                }
            }
        }
    }
    tally.finish("exports", if everything() { 1000 } else { 100 });
}

#[test]
fn digits() {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    let graph = import(&repository("examples/digits/digits.onnx"), &ImportOptions::default()).expect("imports");
    // Two images.
    let rows = |file: &str| -> reference::Tensors {
        let arrays = graphc::arrays::read(&repository(&format!("examples/digits/{file}.npz"))).expect("readable");
        let cut = arrays.into_iter().map(|(name, t)| {
            let mut shape = t.shape.clone();
            shape[0] = 2;
            let bytes = t.bytes.slice(0, t.bytes.len() / t.shape[0] * 2).expect("inside");
            (name, HostTensor::new(t.dtype, shape, bytes).expect("fits"))
        });
        cut.collect()
    };
    let (inputs, want) = (rows("test"), rows("expected"));
    for arch in ARCHS {
        whole(&tools, &mut tally, "digits", &graph, arch, None, &inputs, Some(&want));
        for dtype in NARROW {
            whole(&tools, &mut tally, "digits", &graph, arch, dtype, &inputs, None);
        }
    }
    assert_eq!(tally.unchecked, [""; 0], "every kernel is compared");
    tally.finish("digits", 4 * 3 * 6);
}

#[test]
fn minilm_at_a_short_sequence() {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    let config = Config {
        vocabulary: 1000,
        ..Config::default()
    };
    let graph = MiniLm::load(&Params::random(1), config)
        .and_then(|m| Ok(m.graph()?))
        .expect("records");
    let bindings = graphc::random::bindings(graph.symbols(), &[("batch".to_owned(), 1), ("seq".to_owned(), 5)]);
    let inputs = reference::random_inputs(&graph, &bindings.expect("its sizes"), 3);
    let want = reference::compile_cpu(&graph, passes::OptLevel::O2, None).run(&inputs);
    let want = want.expect("runs");
    for arch in ARCHS {
        if everything() || arch == "gfx942" {
            whole(&tools, &mut tally, "minilm", &graph, arch, None, &inputs, Some(&want));
        }
        if everything() {
            for dtype in NARROW {
                whole(&tools, &mut tally, "minilm", &graph, arch, dtype, &inputs, None);
            }
        }
    }
    tally.finish("minilm", 10);
}

const LIGHT: [(&str, &[&str]); 9] = [
    ("light_squeezenet", &["gfx90a"]),
    ("light_shufflenet", &["gfx1201"]),
    ("light_resnet50", &[]),
    ("light_bvlc_alexnet", &["gfx1100"]),
    ("light_inception_v1", &[]),
    ("light_inception_v2", &[]),
    ("light_densenet121", &[]),
    ("light_vgg19", &[]),
    ("light_zfnet512", &["gfx942"]),
];

#[test]
fn cnns_by_samples() {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    for (name, some) in LIGHT {
        if !everything() && some.is_empty() {
            continue;
        }
        let graph = import(&data(&format!("light/{name}.onnx")), &ImportOptions::default()).expect("imports");
        for arch in ARCHS.into_iter().filter(|arch| everything() || some.contains(arch)) {
            let started = std::time::Instant::now();
            let built = tools.build(&graph, arch, None);
            tally.add(&format!("{name} {arch}"), &tools.sample(&built, 6));
            println!("{name} {arch}: {:.0} s", started.elapsed().as_secs_f64());
            // Narrow types once: their kernels differ in loads and stores only.
            if everything() && matches!(name, "light_resnet50" | "light_shufflenet") {
                for dtype in NARROW {
                    let built = tools.build(&graph, arch, dtype);
                    tally.add(&format!("{name} {dtype:?} {arch}"), &tools.sample(&built, 6));
                }
            }
        }
    }
    tally.finish("CNNs", 60);
}
