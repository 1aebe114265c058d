//! Factors of inputs (`--rounding awq`): results are nearer to those of the model, a file and a graph are one model,
//! and the factors cost no kernel where the constants of what makes the inputs take them in.

use graphc::driver::{BuildOptions, build};
use graphc::frontend::onnx::{ImportOptions, ModelFile};
use graphc::ir::graph::parse;
use graphc::ir::plan::Work;
use graphc::ir::{Graph, HostTensor, Target};
use graphc::passes::OptLevel;
use graphc::passes::quantize::recipe::{FoundLayer, Scheme, stored};
use graphc::quantize::{Inputs, Options, Quantized, Rounding, follow, quantize};
use graphc_tests::data;

const WIDTH: usize = 128;

fn options(scheme: Scheme, rounding: Rounding) -> Options {
    Options {
        rounding,
        threads: 2,
        ..Options::new(scheme)
    }
}

fn made(graph: &Graph, samples: &[Inputs], options: &Options) -> Quantized {
    quantize(graph, samples, options, &|_| None, &()).unwrap_or_else(|e| panic!("{e}"))
}

/// A norm whose scale is 30 times as large for every sixteenth feature, read by two products, then a hidden layer.
fn outliers(residual: bool) -> Graph {
    let scale: Vec<String> = (0..WIDTH)
        .map(|i| {
            if i % 16 == 5 {
                "30.0".to_owned()
            } else {
                format!("{:.1}", 0.5 + (i % 3) as f64 / 4.0)
            }
        })
        .collect();
    let text = format!(
        "graph @o stage=import {{\n  x = input \"x\" : f32[24, {WIDTH}]\n  s = constant [{}] : f32[{WIDTH}]\n  \
         b = constant random(seed=2) : f32[{WIDTH}]\n  n = layer_norm x, s, b {{axis=1, epsilon=0.001}}\n  \
         w = constant random(seed=3) : f32[{WIDTH}, 96]\n  v = constant random(seed=4) : f32[96, {WIDTH}]\n  \
         u = constant random(seed=5) : f32[96, 64]\n  p = contract n, w\n  q = contract n, v {{transpose_rhs}}\n  \
         g = sigmoid p\n  h = mul g, q\n  y = contract h, u\n{}  return y as \"y\"{}\n}}\n",
        scale.join(", "),
        if residual { "  z = add n, x\n" } else { "" },
        if residual { ", z as \"z\"" } else { "" },
    );
    parse::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn sample(seed: u64) -> Inputs {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f32 / (1u64 << 30) as f32 - 1.0
    };
    let values: Vec<f32> = (0..24 * WIDTH).map(|_| next()).collect();
    Inputs::from([(
        "x".to_owned(),
        HostTensor::from_f32([24, WIDTH], &values).expect("as many"),
    )])
}

fn launches(graph: &Graph, arch: &str) -> usize {
    let mut options = BuildOptions::new(vec![arch.parse::<Target>().expect("known")], OptLevel::O2);
    options.optimize.libraries = false;
    let program = build(graph, &options).unwrap_or_else(|e| panic!("{e}")).program;
    let steps = program.variants[0].plan.steps.values();
    steps.filter(|s| matches!(s.work, Work::Launch { .. })).count()
}

#[test]
fn a_layer_with_outliers_has_less_error() {
    let graph = outliers(false);
    let (seen, fresh) = ([sample(1), sample(2)], [sample(3)]);
    let nearest = made(&graph, &seen, &options(Scheme::WeightsInt4, Rounding::Nearest));
    let scaled = made(&graph, &seen, &options(Scheme::WeightsInt4, Rounding::Awq));
    let factors: Vec<_> = scaled.recipe.layers.iter().map(|l| l.inputs.clone()).collect();
    assert!(
        factors.len() == 3 && factors[0].is_some() && factors[0] == factors[1],
        "they share an operand"
    );
    // The report has both, layer by layer.
    for (plain, layer) in nearest.report.layers.iter().zip(&scaled.report.layers) {
        assert_eq!((plain.nearest, plain.scaled_inputs), (None, false));
        assert_eq!(layer.nearest, plain.decibels, "{}", layer.name);
        assert!(layer.decibels >= layer.nearest, "{}: {layer:?}", layer.name);
    }
    let gain =
        |i: usize| scaled.report.layers[i].decibels.expect("some") - scaled.report.layers[i].nearest.expect("some");
    assert!(gain(0) > 1.5 && gain(1) > 1.5, "{} and {} dB", gain(0), gain(1));
    // On other data, from the recipe as it is saved.
    let error = |made: &Quantized| {
        let text = serde_json::to_string(&made.recipe).expect("JSON");
        let again = follow(&graph, serde_json::from_str(&text).expect("JSON"), &fresh, 2, &()).expect("follows");
        assert_eq!(again.graph, made.graph);
        again.report.outputs[0].relative
    };
    let (before, after) = (error(&nearest), error(&scaled));
    assert!(after < 0.9 * before, "{after} of {before}");
    // The norm's constants and the columns of the product before take the factors in.
    for arch in ["cpu", "gfx90a"] {
        assert_eq!(launches(&scaled.graph, arch), launches(&nearest.graph, arch), "{arch}");
    }
}

/// What else reads the norm wants it as it is.
#[test]
fn inputs_that_others_read_are_multiplied() {
    let graph = outliers(true);
    let samples = [sample(1)];
    let scaled = made(&graph, &samples, &options(Scheme::WeightsInt4, Rounding::Awq));
    assert!(scaled.recipe.layers[0].inputs.is_some());
    let z = scaled.report.outputs.iter().find(|o| o.name == "z").expect("an output");
    assert_eq!(z.relative, 0.0, "the residual is not scaled");
    let options = options(Scheme::WeightsInt8, Rounding::Awq);
    assert!(made(&graph, &samples, &options).report.outputs[0].relative < 0.02);
}

#[test]
fn files_and_graphs_with_factors_are_one_model() {
    let name = "bert.ts";
    let file = ModelFile::read(data(&format!("exports/{name}.onnx"))).expect("readable");
    let graph = file.import(&ImportOptions::default()).expect("imports");
    let model = name.split('.').next().expect("a name");
    let inputs = graphc::arrays::read(&data(&format!("exports/{model}.in.npz"))).expect("readable");
    let refuses = |layer: &FoundLayer| file.refuses(&layer.name, &layer.weight.shape);
    let options = options(Scheme::WeightsInt4, Rounding::Awq);
    let made = quantize(&graph, std::slice::from_ref(&inputs), &options, &refuses, &()).expect("quantises");
    let scaled = made.recipe.layers.iter().filter(|l| l.inputs.is_some()).count();
    assert!(scaled >= 4, "{name}: {scaled} layers have factors");
    let mut written = file.clone();
    written
        .quantize(&stored(&graph, &made.recipe).expect("fits"))
        .expect("fits");
    let again = ModelFile::from_bytes("again.onnx", written.to_bytes().into(), None).expect("readable");
    let again = again.import(&ImportOptions::default()).expect("imports");
    let given: Vec<(&str, &HostTensor)> = inputs.iter().map(|(name, t)| (name.as_str(), t)).collect();
    let run = |graph: &Graph| {
        let session = graphc::Session::compile(graph.clone(), &graphc::SessionOptions::default());
        session.expect("compiles").run(&given).expect("runs")
    };
    assert_eq!(run(&again), run(&made.graph), "{name}");
}

#[test]
fn what_has_no_factors_is_said() {
    let graph = outliers(false);
    let samples = [sample(1)];
    for scheme in [Scheme::StaticInt8, Scheme::WeightsFp8] {
        let error = quantize(&graph, &samples, &options(scheme, Rounding::Awq), &|_| None, &()).expect_err("refused");
        assert!(error.to_string().contains("weights-int4 and weights-int8"), "{error}");
    }
    let weights = options(Scheme::WeightsInt4, Rounding::Awq);
    let error = quantize(&graph, &[], &weights, &|_| None, &()).expect_err("refused");
    assert!(error.to_string().contains("calibration data"), "{error}");
    // A recipe of another model.
    let mut recipe = made(&graph, &samples, &weights).recipe;
    recipe.layers[0].inputs = Some(vec![1.0; 5]);
    let error = follow(&graph, recipe.clone(), &[], 2, &())
        .expect_err("refused")
        .to_string();
    assert!(error.contains("5 factors of inputs"), "{error}");
    recipe.layers[0].inputs = Some(vec![0.0; WIDTH]);
    let error = follow(&graph, recipe, &[], 2, &()).expect_err("refused").to_string();
    assert!(error.contains("a factor of an input of 0"), "{error}");
}
