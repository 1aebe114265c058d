//! Recipes: a file and a graph of one recipe are one model, integers are those of the plain formula, errors are within
//! a scheme's bound, and the shipped digits network keeps its accuracy.

use std::collections::BTreeSet;

use graphc::driver::{BuildOptions, build};
use graphc::frontend::onnx::{ImportOptions, ModelFile};
use graphc::ir::graph::{eval, parse};
use graphc::ir::op::{Composite, Op};
use graphc::ir::recipe::{Activation, Recipe, finite};
use graphc::ir::{DType, Graph, HostTensor, Target};
use graphc::passes::quantize::recipe::{
    Decision, FoundLayer, QuantizeError, Range, Scheme, apply, decide, layers, stored,
};
use graphc::passes::{OptLevel, WeightType};
use graphc::quantize::{Inputs, Method, Options, Quantized, Rounding, follow, quantize};
use graphc_tests::reference::{assert_matches, compile_cpu};
use graphc_tests::{data, repository};
use indexmap::IndexMap;

const SCHEMES: [Scheme; 7] = [
    Scheme::WeightsInt8,
    Scheme::WeightsInt4,
    Scheme::StaticInt8,
    Scheme::DynamicInt8,
    Scheme::WeightsFp8,
    Scheme::StaticFp8,
    Scheme::DynamicFp8,
];

fn graph(text: &str) -> Graph {
    let graph = parse::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    graph.verify().unwrap_or_else(|e| panic!("{e}\n{text}"));
    graph
}

fn made(graph: &Graph, samples: &[Inputs], options: &Options) -> Quantized {
    quantize(graph, samples, options, &|_| None, &()).unwrap_or_else(|e| panic!("{e}"))
}

fn refused(graph: &Graph, samples: &[Inputs], options: &Options) -> String {
    let error = quantize(graph, samples, options, &|_| None, &()).expect_err("refused");
    assert_eq!(error.exit_code(), 2, "{error}");
    error.to_string()
}

/// Numbers that are the same every time, in [−1, 1).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / (1u64 << 30) as f64 - 1.0
    }

    fn below(&mut self, limit: usize) -> usize {
        ((self.next() + 1.0) / 2.0 * limit as f64) as usize
    }

    fn tensor(&mut self, shape: &[usize]) -> HostTensor {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| self.next() as f32).collect();
        HostTensor::from_f32(shape, &values).expect("as many")
    }
}

/// PyTorch's exports in each scheme: what the file says, read again and run on the CPU, are the bits of the graph that
/// the recipe makes.
#[test]
fn files_and_graphs_of_one_recipe_are_one_model() {
    let products = [Scheme::WeightsInt4, Scheme::StaticInt8];
    for (name, schemes) in [
        ("bert.ts", &SCHEMES[..]),
        ("llama.dy", &products),
        ("mobilenet.ts", &products[1..]),
    ] {
        let path = data(&format!("exports/{name}.onnx"));
        let file = ModelFile::read(&path).expect("readable");
        let graph = file.import(&ImportOptions::default()).expect("imports");
        let model = name.split('.').next().expect("a name");
        let inputs = graphc::arrays::read(&data(&format!("exports/{model}.in.npz"))).expect("readable");
        for scheme in schemes.iter().copied() {
            // Errors are not measured here: samples are for ranges alone.
            let samples = match scheme {
                scheme if scheme.needs_ranges() => std::slice::from_ref(&inputs),
                _ => &[],
            };
            let options = Options {
                threads: 2,
                ..Options::new(scheme)
            };
            let refuses = |layer: &FoundLayer| file.refuses(&layer.name, &layer.weight.shape);
            let made = quantize(&graph, samples, &options, &refuses, &()).expect("quantises");
            assert!(made.recipe.layers.len() >= 9, "{name}: {}", made.recipe.layers.len());
            assert!(
                made.report.bytes_after * 10 < made.report.bytes_before * 6,
                "{name} {scheme:?}"
            );
            let mut written = file.clone();
            written
                .quantize(&stored(&graph, &made.recipe).expect("fits"))
                .expect("fits");
            let bytes = written.to_bytes();
            let again = ModelFile::from_bytes("again.onnx", bytes.into(), None).expect("readable");
            let again = again.import(&ImportOptions::default()).expect("imports");
            let given: Vec<(&str, &HostTensor)> = inputs.iter().map(|(name, t)| (name.as_str(), t)).collect();
            let run = |graph: &Graph| {
                let session = graphc::Session::compile(graph.clone(), &graphc::SessionOptions::default());
                session.expect("compiles").run(&given).expect("runs")
            };
            assert_eq!(run(&again), run(&made.graph), "{name} {scheme:?}");
        }
    }
}

/// A product or a convolution of made-up numbers, and what is needed to work it out by hand.
struct Case {
    graph: Graph,
    inputs: Inputs,
    /// Of each result, the operands and weights that it is the sum of the products of.
    sums: Vec<Vec<(usize, usize)>>,
}

fn product(random: &mut Random) -> Case {
    let (m, k, n) = (
        1 + random.below(5),
        [16, 48, 80, 97, 131, 192][random.below(6)],
        1 + random.below(40),
    );
    let (turned, seed) = (random.below(2) == 1, random.below(1000));
    let (shape, attribute) = match turned {
        true => (format!("{n}, {k}"), " {transpose_rhs}"),
        false => (format!("{k}, {n}"), ""),
    };
    let text = format!(
        "graph @p stage=import {{\n  x = input \"x\" : f32[{m}, {k}]\n  w = constant random(seed={seed}) : f32[{shape}]\n  \
         y = contract x, w{attribute}\n  return y as \"y\"\n}}\n"
    );
    let weight = |i: usize, column: usize| if turned { column * k + i } else { i * n + column };
    let sum = |row: usize, column: usize| (0..k).map(|i| (row * k + i, weight(i, column))).collect();
    Case {
        graph: graph(&text),
        inputs: Inputs::from([("x".to_owned(), random.tensor(&[m, k]))]),
        sums: (0..m)
            .flat_map(|row| (0..n).map(move |column| (row, column)))
            .map(|(r, c)| sum(r, c))
            .collect(),
    }
}

fn convolution(random: &mut Random) -> Case {
    let (c, o, size, seed) = (
        1 + random.below(6),
        1 + random.below(8),
        5 + random.below(4),
        random.below(1000),
    );
    let pad = random.below(2);
    let text = format!(
        "graph @c stage=import {{\n  x = input \"x\" : f32[1, {c}, {size}, {size}]\n  w = constant random(seed={seed}) : f32[{o}, {c}, 3, 3]\n  \
         y = conv x, w {{pad_low=[{pad}, {pad}], pad_high=[{pad}, {pad}]}}\n  return y as \"y\"\n}}\n"
    );
    let out = size + 2 * pad - 2;
    let mut sums = Vec::new();
    for filter in 0..o {
        for row in 0..out {
            for column in 0..out {
                let mut sum = Vec::new();
                for at in 0..c * 9 {
                    let (channel, dy, dx) = (at / 9, at / 3 % 3, at % 3);
                    let (y, x) = ((row + dy).wrapping_sub(pad), (column + dx).wrapping_sub(pad));
                    if y < size && x < size {
                        sum.push(((channel * size + y) * size + x, filter * c * 9 + at));
                    }
                }
                sums.push(sum);
            }
        }
    }
    Case {
        graph: graph(&text),
        inputs: Inputs::from([("x".to_owned(), random.tensor(&[1, c, size, size]))]),
        sums,
    }
}

/// What the recipe says of a weight's element, by the formula: its number after quantising, and half a step.
fn rounded(recipe: &Recipe, found: &FoundLayer) -> Vec<(f64, f64)> {
    let weight = &recipe.layers[0].weight;
    let shape = &found.weight.shape;
    let (low, high) = weight.dtype.int_range().unwrap_or_default();
    let numbers = finite(&found.weight).expect("finite");
    let element = |(at, number): (usize, &f32)| {
        // The position of its scale, by coordinates.
        let (mut rest, mut position, mut stride) = (at, 0, 1);
        for axis in (0..shape.len()).rev() {
            let coordinate = rest % shape[axis];
            rest /= shape[axis];
            if let Some(groups) = weight.groups.filter(|g| g.axis == axis) {
                position += coordinate / groups.size as usize * stride;
                stride *= shape[axis].div_ceil(groups.size as usize);
            } else if weight.axis == Some(axis) {
                position += coordinate * stride;
                stride *= shape[axis];
            }
        }
        let scale = weight.scales[position];
        if weight.dtype.is_f8() {
            let (number, half_step) = float8(weight.dtype, f64::from(number / scale));
            return (number * f64::from(scale), half_step * f64::from(scale));
        }
        let zero = weight.zeros.as_ref().map_or(0, |z| z[position]);
        let whole = (number / scale).round_ties_even() + zero as f32;
        let whole = whole.clamp(low as f32, high as f32) - zero as f32;
        (f64::from(whole) * f64::from(scale), f64::from(scale) / 2.0)
    };
    numbers.iter().enumerate().map(element).collect()
}

/// The nearest 8-bit float, by the spacing at a number's magnitude, and half of that.
fn float8(dtype: DType, number: f64) -> (f64, f64) {
    assert_eq!(dtype, DType::F8E4M3FN);
    let exponent = number.abs().log2().floor().clamp(-6.0, 8.0);
    let step = 2f64.powf(exponent - 3.0);
    (
        (number / step).round_ties_even().clamp(-448.0 / step, 448.0 / step) * step,
        step / 2.0,
    )
}

/// What the recipe says of an operand's element.
fn used(activation: Activation, x: &[f64]) -> (Vec<f64>, f64) {
    let floats = |dtype: DType, scale: f32| {
        let number = |v: &f64| float8(dtype, f64::from(*v as f32 / scale)).0 * f64::from(scale);
        // Half of the largest spacing.
        (x.iter().map(number).collect(), 16.0 * f64::from(scale))
    };
    let (scale, zero, low, high) = match activation {
        Activation::Float => return (x.to_vec(), 0.0),
        Activation::DynamicFloat { dtype } => {
            let most = x.iter().fold(0f32, |most, v| most.max(v.abs() as f32));
            return floats(dtype, most / 448.0);
        }
        Activation::Static { dtype, scale, zero } if dtype.is_f8() => {
            assert_eq!(zero, 0);
            return floats(dtype, scale);
        }
        Activation::Static { scale, zero, .. } => (scale, zero as f32, -128.0, 127.0),
        Activation::Dynamic => {
            let (least, most) = x
                .iter()
                .fold((0f32, 0f32), |(l, h), v| (l.min(*v as f32), h.max(*v as f32)));
            let scale = (most - least) / 255.0;
            (scale, (-least / scale).round_ties_even().clamp(0.0, 255.0), 0.0, 255.0)
        }
    };
    let number = |v: &f64| {
        let whole = ((*v as f32 / scale).round_ties_even() + zero).clamp(low, high) - zero;
        f64::from(whole) * f64::from(scale)
    };
    // Ends of the range are rounded to whole zero points: an end may be half a step outside.
    (x.iter().map(number).collect(), f64::from(scale))
}

#[test]
fn random_layers_are_what_the_formula_says_and_within_its_bound() {
    let mut random = Random(2024);
    let mut kinds: BTreeSet<String> = BTreeSet::new();
    for round in 0..if graphc_tests::everything() { 700 } else { 147 } {
        let case = match round % 3 {
            2 => convolution(&mut random),
            _ => product(&mut random),
        };
        let scheme = SCHEMES[round % SCHEMES.len()];
        let found = layers(&case.graph);
        let layer = &found.found[0];
        let options = Decision {
            symmetric: random.below(2) == 1,
            per_tensor: scheme != Scheme::WeightsInt4 && random.below(3) == 0,
            skip_small: false,
            ..Decision::new(scheme)
        };
        let x = case.inputs["x"].to_f64();
        let range = Range {
            low: x.iter().copied().fold(f64::INFINITY, f64::min),
            high: x.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        };
        let ranges = IndexMap::from([(layer.name.clone(), range)]);
        let recipe = decide(&found, &options, &ranges).expect("decides");
        let weight = &recipe.layers[0].weight;
        let context = format!("{round}: {scheme:?} {options:?}\n{}", case.graph);
        kinds.insert(format!(
            "{} {:?} {}",
            weight.dtype,
            weight.groups.is_some(),
            layer.is_conv()
        ));
        let quantised = apply(&case.graph, &recipe).expect("applies");
        quantised.verify().expect("verifies");
        let want = eval::evaluate(&case.graph, &case.inputs).expect("evaluates")["y"].to_f64();
        let got = eval::evaluate(&quantised, &case.inputs).expect("evaluates");
        let numbers = finite(&layer.weight).expect("finite");
        let (weights, (xs, step)) = (rounded(&recipe, layer), used(recipe.layers[0].activation, &x));
        for (i, sum) in case.sums.iter().enumerate() {
            let y = got["y"].to_f64()[i];
            let formula: f64 = sum.iter().map(|(a, b)| xs[*a] * weights[*b].0).sum();
            assert!((y - formula).abs() < 1e-5, "{i}: {y} and {formula}; {context}");
            // |x'w' − xw| ≤ |x'| · |w' − w| + |x' − x| · |w|; a clamped zero point costs at most another half step.
            let bound: f64 = sum
                .iter()
                .map(|(a, b)| xs[*a].abs() * weights[*b].1 * 2.0 + step * f64::from(numbers[*b]).abs())
                .sum();
            assert!(
                (y - want[i]).abs() <= bound + 1e-5,
                "{i}: {y} for {}, bound {bound}; {context}",
                want[i]
            );
        }
        let on_cpu = compile_cpu(&quantised, OptLevel::O2, None)
            .run(&case.inputs)
            .expect("runs");
        assert_matches(&on_cpu, &got, DType::F32, &context);
    }
    // In groups and by column, of products and of convolutions.
    let wanted = [
        "f8e4m3fn false false",
        "f8e4m3fn false true",
        "i4 true false",
        "i8 false false",
        "i8 false true",
        "u4 true false",
    ];
    assert_eq!(kinds.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
}

/// `--dtype int8`, `int4` and `fp8`: weights of products are stored so and stay exact to that; what stays as it is, is
/// said.
#[test]
fn one_flag_stores_the_weights_of_products() {
    let text = "graph @p stage=import {\n  x = input \"x\" : f32[3, 96]\n  w = constant random(seed=3) : f32[96, 128]\n  \
                v = constant random(seed=4) : f32[128, 8]\n  h = contract x, w\n  r = relu h\n  y = contract r, v\n  return y as \"y\"\n}\n";
    let graph = graph(text);
    let inputs = Inputs::from([("x".to_owned(), Random(5).tensor(&[3, 96]))]);
    for (weights, scheme) in [
        (WeightType::Int8, Scheme::WeightsInt8),
        (WeightType::Int4, Scheme::WeightsInt4),
        (WeightType::Fp8, Scheme::WeightsFp8),
    ] {
        let recipe = decide(&layers(&graph), &Decision::new(scheme), &IndexMap::new()).expect("decides");
        let want = eval::evaluate(&apply(&graph, &recipe).expect("applies"), &inputs).expect("evaluates");
        for (level, dtype) in [
            (OptLevel::O0, None),
            (OptLevel::O1, None),
            (OptLevel::O2, None),
            (OptLevel::O2, Some(DType::F16)),
        ] {
            let mut options = BuildOptions::new(vec![Target::cpu()], level).dtype(dtype);
            options.optimize.weights = Some(weights);
            let built = build(&graph, &options).expect("builds");
            let fired = &built.reports[0].optimize.fired;
            let notes = |rule: &str| {
                let notes = fired.iter().filter(|f| f.rule == rule).filter_map(|f| f.note.clone());
                notes.collect::<Vec<_>>()
            };
            let wanted = match weights {
                WeightType::Int8 => "i8, a scale a column",
                WeightType::Int4 => "u4 in groups of 96",
                WeightType::Fp8 => "f8e4m3fn, a scale a column",
            };
            assert_eq!(notes("quantized_weight"), [wanted]);
            let kept = notes("weight_kept");
            assert!(
                kept.len() == 1 && kept[0].starts_with("it has 1024 weights"),
                "{kept:?}"
            );
            let narrow = |dtype: DType| dtype.bits() <= 8;
            let integers = built.program.constants.values().filter(|c| narrow(c.tensor.dtype));
            let bytes: usize = integers.map(|c| c.tensor.bytes.len()).sum();
            let stored = 96 * 128 / if weights == WeightType::Int4 { 2 } else { 1 };
            assert!(bytes >= stored && bytes <= stored + 128, "{weights:?}: {bytes}");
            let program = std::sync::Arc::new(built.program);
            let executable =
                runtime::Executable::load_on(&graphc::cpu_device(), program, 0, &Default::default()).expect("loads");
            let got = executable.run(&inputs).expect("runs");
            assert_matches(
                &got,
                &want,
                dtype.unwrap_or(DType::F32),
                &format!("{weights:?} {level:?} {dtype:?}"),
            );
        }
    }
}

fn digits() -> (ModelFile, Graph, Inputs, Vec<i64>) {
    let at = |name: &str| repository(&format!("examples/digits/{name}"));
    let file = ModelFile::read(at("digits.onnx")).expect("readable");
    let graph = file.import(&ImportOptions::default()).expect("imports");
    let images = graphc::arrays::read(&at("test.npz")).expect("readable");
    let labels = graphc::arrays::read(&at("labels.npz")).expect("readable");
    (file, graph, images, labels["labels"].to_i64())
}

/// The rows of a tensor from one to another.
fn rows(tensor: &HostTensor, from: usize, to: usize) -> HostTensor {
    let width = tensor.bytes.len() / tensor.shape[0];
    let mut shape = tensor.shape.clone();
    shape[0] = to - from;
    let bytes = tensor.bytes.slice(from * width, (to - from) * width).expect("inside");
    HostTensor::new(tensor.dtype, shape, bytes).expect("as many")
}

fn right(graph: &Graph, inputs: &Inputs, labels: &[i64]) -> usize {
    let outputs = compile_cpu(graph, OptLevel::O2, None).run(inputs).expect("runs");
    let scores = outputs.values().next().expect("logits").to_f64();
    let best = |row: &[f64]| (0..10).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as i64;
    scores
        .chunks(10)
        .zip(labels)
        .filter(|(row, label)| best(row) == **label)
        .count()
}

/// f32 has 355 of 360 right. Ranges are those of the first sixty images alone.
#[test]
fn the_digits_network_keeps_its_accuracy() {
    let (_, graph, images, labels) = digits();
    let samples: Vec<Inputs> = (0..3)
        .map(|i| Inputs::from([("x".to_owned(), rows(&images["x"], i * 20, (i + 1) * 20))]))
        .collect();
    let mut tried = 0;
    for scheme in SCHEMES {
        for method in [Method::MinMax, Method::Percentile(99.9), Method::Entropy, Method::Mse] {
            let for_integers = matches!(method, Method::Entropy | Method::Mse);
            if method != Method::MinMax && (!scheme.needs_ranges() || for_integers && scheme.is_float()) {
                continue;
            }
            let mut options = Options {
                method,
                threads: 2,
                // Histograms of one operand a run.
                memory: 1,
                ..Options::new(scheme)
            };
            options.decision.skip_small = false;
            let made = made(&graph, &samples, &options);
            assert_eq!(made.recipe.layers.len(), 5);
            let count = right(&made.graph, &images, &labels);
            println!("{scheme:?} {method:?}: {count} of 360");
            let least = if scheme.is_float() { 350 } else { 353 };
            assert!(count >= least, "{scheme:?} {method:?}: {count} of 360");
            let output = &made.report.outputs[0];
            assert!(
                output.relative > 0.0 && output.relative < 0.08,
                "{scheme:?} {method:?}: {output:?}"
            );
            assert_eq!((output.rows, made.report.samples), (60, 3));
            for layer in &made.report.layers {
                let db = layer.decibels.expect("measured");
                assert!((20.0..80.0).contains(&db), "{scheme:?} {method:?} {}: {db}", layer.name);
                assert!(layer.bytes_after < layer.bytes_before);
            }
            tried += 1;
        }
    }
    assert_eq!(tried, 11);
}

/// The one-flag form on the same network: int8, int4, and int4 computed in f16; fp8 too.
#[test]
fn the_digits_network_keeps_its_accuracy_by_one_flag() {
    let (_, graph, images, labels) = digits();
    for (dtype, weights) in [
        (None, WeightType::Int8),
        (None, WeightType::Int4),
        (Some(DType::F16), WeightType::Int4),
        (None, WeightType::Fp8),
        (Some(DType::F16), WeightType::Fp8),
    ] {
        let options = graphc::SessionOptions {
            weights: Some(weights),
            dtype,
            ..graphc::SessionOptions::default()
        };
        let session = graphc::Session::compile(graph.clone(), &options).expect("compiles");
        let outputs = session.run(&[("x", &images["x"])]).expect("runs");
        let scores = outputs.values().next().expect("logits").to_f64();
        let best = |row: &[f64]| (0..10).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as i64;
        let count = scores
            .chunks(10)
            .zip(&labels)
            .filter(|(row, label)| best(row) == **label)
            .count();
        assert!(count >= 353, "{weights:?} {dtype:?}: {count} of 360");
    }
}

#[test]
fn rows_that_make_up_for_errors_leave_less_error() {
    let (_, graph, images, _) = digits();
    let samples = [Inputs::from([("x".to_owned(), rows(&images["x"], 0, 180))])];
    let fresh = [Inputs::from([("x".to_owned(), rows(&images["x"], 180, 360))])];
    let error = |rounding| {
        let options = Options {
            rounding,
            threads: 2,
            ..Options::new(Scheme::WeightsInt4)
        };
        let made = made(&graph, &samples, &options);
        let chosen = made
            .recipe
            .layers
            .iter()
            .filter(|l| l.weight.integers.is_some())
            .count();
        // The recipe as it is saved, on images that it was not made with.
        let text = serde_json::to_string(&made.recipe).expect("JSON");
        let again: Recipe = serde_json::from_str(&text).expect("JSON");
        assert_eq!(again, made.recipe);
        let again = follow(&graph, again, &fresh, 2, &()).expect("follows");
        assert_eq!(again.graph, made.graph);
        (
            made.report.outputs[0].relative,
            again.report.outputs[0].relative,
            chosen,
        )
    };
    let (nearest, fed) = (error(Rounding::Nearest), error(Rounding::Gptq));
    assert_eq!((nearest.2, fed.2), (0, 1), "of the products one is large enough");
    assert!(fed.0 < 0.6 * nearest.0, "on calibration data: {fed:?} and {nearest:?}");
    assert!(fed.1 < 0.7 * nearest.1, "on other data: {fed:?} and {nearest:?}");
}

#[test]
fn a_limit_leaves_out_the_worst_layers_and_no_more() {
    let (_, graph, images, _) = digits();
    let samples = [images];
    let mut options = Options {
        threads: 2,
        ..Options::new(Scheme::WeightsInt4)
    };
    options.decision.skip_small = false;
    let whole = made(&graph, &samples, &options);
    let error = |made: &Quantized| made.report.outputs[0].relative;
    assert!(error(&whole) > 0.02);
    options.max_error = Some(0.015);
    let limited = made(&graph, &samples, &options);
    assert!(error(&limited) <= 0.015, "{}", error(&limited));
    let left = limited.recipe.layers.len();
    assert!((1..5).contains(&left), "{left}");
    let gone = &limited.report.kept;
    assert!(
        gone.iter()
            .any(|k| k.name == "/12/Gemm" && k.reason.contains("beyond 0.015")),
        "{gone:?}"
    );
    // One layer more is one too many: the best of those that were left out.
    let mut order: Vec<_> = whole
        .report
        .layers
        .iter()
        .filter(|l| gone.iter().any(|k| k.name == l.name))
        .collect();
    order.sort_by(|a, b| b.decibels.partial_cmp(&a.decibels).expect("numbers"));
    let mut more = limited.recipe.clone();
    more.layers
        .push(whole.recipe.layer(&order[0].name).expect("there").clone());
    let more = follow(&graph, more, &samples, 2, &()).expect("follows");
    assert!(error(&more) > 0.015, "{}", error(&more));
    // What no quantised layer keeps, none is left for.
    options.max_error = Some(0.0);
    let none = made(&graph, &samples, &options);
    assert_eq!((none.recipe.layers.len(), error(&none)), (0, 0.0));
    assert_eq!(none.graph.constants().len(), graph.constants().len());
}

#[test]
fn what_cannot_be_quantised_is_said() {
    let product = |weight: &str, k: usize| {
        graph(&format!(
            "graph @p stage=import {{\n  x = input \"x\" : f32[2, {k}]\n  w = constant {weight} : f32[{k}, 64]\n  \
             y = contract x, w\n  return y as \"y\"\n}}\n"
        ))
    };
    let plain = product("random(seed=1)", 96);
    let with = |change: &dyn Fn(&mut Options), scheme| {
        let mut options = Options::new(scheme);
        change(&mut options);
        options
    };
    let says = |graph: &Graph, samples: &[Inputs], options: &Options, parts: &[&str]| {
        let text = refused(graph, samples, options);
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
    };
    // Data.
    let none: [Inputs; 0] = [];
    for options in [
        with(&|_| {}, Scheme::StaticInt8),
        with(&|o| o.rounding = Rounding::Gptq, Scheme::WeightsInt4),
        with(&|o| o.max_error = Some(0.1), Scheme::WeightsInt8),
    ] {
        says(&plain, &none, &options, &["--calibrate", "dynamic-int8"]);
    }
    let infinite = [Inputs::from([(
        "x".to_owned(),
        HostTensor::from_f32([2, 96], &[f32::INFINITY; 192]).expect("as many"),
    )])];
    for method in [Method::MinMax, Method::Mse] {
        let options = with(&|o| o.method = method, Scheme::StaticInt8);
        says(&plain, &infinite, &options, &["\"n2\"", "inf", "finite numbers"]);
    }
    let nan = [Inputs::from([(
        "x".to_owned(),
        HostTensor::from_f32([2, 96], &[f32::NAN; 192]).expect("as many"),
    )])];
    says(&plain, &nan, &with(&|_| {}, Scheme::StaticInt8), &["ranges from NaN"]);
    // Names.
    let options = with(
        &|o| o.decision.exclude = vec!["nothing*".to_owned()],
        Scheme::WeightsInt8,
    );
    says(
        &plain,
        &none,
        &options,
        &["no layer is named \"nothing*\"", "the layers are"],
    );
    let name = layers(&plain).found[0].name.clone();
    let options = with(
        &|o| o.decision.exclude = vec![name[..name.len() - 1].to_owned()],
        Scheme::StaticInt8,
    );
    says(&plain, &nan, &options, &[&format!("meant {name:?}")]);
    let options = with(&|o| o.decision.exclude = vec![name.clone()], Scheme::WeightsInt8);
    says(
        &plain,
        &none,
        &options,
        &["no layer is left to quantise", "it is excluded"],
    );
    // Groups.
    let options = with(&|o| o.decision.group = Some(36), Scheme::WeightsInt4);
    says(
        &plain,
        &none,
        &options,
        &["groups of 36", "(96)", "such as 96", "--exclude"],
    );
    // Weights.
    let mut odd = plain.clone();
    for (value, what) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let mut values = vec![0.5f32; 96 * 64];
        values[77] = value;
        let tensor = HostTensor::from_f32([96, 64], &values).expect("as many");
        odd = with_constant(&plain, tensor);
        says(
            &odd,
            &none,
            &with(&|_| {}, Scheme::WeightsInt8),
            &["element 77 of its weight", what],
        );
    }
    let mut options = BuildOptions::new(vec![Target::cpu()], OptLevel::O2);
    options.optimize.weights = Some(WeightType::Int4);
    let error = build(&odd, &options).expect_err("not finite");
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("element 77 of its weight is inf"), "{error}");
    // Models.
    let bare = graph("graph @n stage=import {\n  x = input \"x\" : f32[2]\n  y = relu x\n  return y as \"y\"\n}\n");
    says(
        &bare,
        &none,
        &with(&|_| {}, Scheme::WeightsInt8),
        &["no product or convolution"],
    );
    let quantised = made(&plain, &none, &with(&|_| {}, Scheme::WeightsInt8));
    says(
        &quantised.graph,
        &none,
        &with(&|_| {}, Scheme::WeightsInt8),
        &["all 1 products", "quantised already"],
    );
    // Recipes of another model, and of another weight.
    let error = follow(&bare, quantised.recipe.clone(), &none, 1, &()).expect_err("another");
    assert!(error.to_string().contains("no layer is named"), "{error}");
    let wide = product("random(seed=1)", 128);
    let mut recipe = quantised.recipe.clone();
    recipe.layers[0].weight.axis = Some(0);
    let error = follow(&wide, recipe, &none, 1, &()).expect_err("another");
    assert!(
        error
            .to_string()
            .contains("64 scales for a weight of shape [128, 64], which takes 128"),
        "{error}"
    );
    assert!(matches!(error, graphc::Error::Quantize(QuantizeError::Weight { .. })));
}

/// The graph with its only constant replaced.
fn with_constant(graph: &Graph, tensor: HostTensor) -> Graph {
    let mut made = Graph::new("p");
    let input = graph.node(graph.inputs()[0].node);
    let x = made.add_input("x", input.results[0].clone(), input.origin.clone());
    let w = made.add_constant(None, tensor, input.origin.clone());
    let (product, node) = graph.nodes().iter().last().expect("a product");
    let y = made
        .add(node.op.clone(), &[x, w], graph.node(product).origin.clone())
        .expect("types");
    made.add_output("y", y.into());
    made
}

/// Tables that are looked up, weights on the left, batches and transposed convolutions stay, each with its reason; a
/// table that is also multiplied by stays a table.
#[test]
fn what_stays_is_said() {
    let text = "graph @s stage=import {\n  i = input \"i\" : i64[4]\n  z = input \"z\" : f32[2, 4, 64]\n  \
                t = constant random(seed=1) : f32[100, 64]\n  b = constant random(seed=2) : f32[2, 64, 64]\n  \
                e = take t, i {axis=0}\n  s = contract e, t {transpose_rhs}\n  m = contract z, b\n  \
                l = contract t, e {transpose_rhs}\n  a = contract m, z {transpose_rhs}\n  return s as \"s\"\n  return a as \"a\"\n  return l as \"l\"\n}\n";
    let graph = graph(text);
    let found = layers(&graph);
    assert_eq!(found.found.len(), 1);
    let reasons: Vec<&str> = found.others.iter().map(|k| k.reason.as_str()).collect();
    assert_eq!(
        reasons,
        [
            "rows of a table are looked up, not multiplied",
            "its weight is a batch of matrices",
            "its constant is on the left of the product",
        ]
    );
    let made = made(&graph, &[], &Options::new(Scheme::WeightsInt8));
    let tables = made
        .graph
        .nodes()
        .values()
        .filter(|n| matches!(n.op, Op::Composite(Composite::Dequantize { .. })));
    assert_eq!(tables.count(), 1);
    // The table stays for the rows that are looked up, so nothing is won; that is what the report says.
    assert!(made.report.bytes_after > made.report.bytes_before);
}

/// Half types keep their type: scales are of it, and a run's own range is of f32 alone.
#[test]
fn models_of_half_types_stay_so() {
    for dtype in ["f16", "bf16"] {
        let text = format!(
            "graph @h stage=import {{\n  x = input \"x\" : {dtype}[3, 96]\n  w = constant random(seed=3) : {dtype}[96, 64]\n  \
             y = contract x, w\n  return y as \"y\"\n}}\n"
        );
        let graph = graph(&text);
        let wide = Random(5).tensor(&[3, 96]);
        let ty = graph.ty(graph.inputs()[0].node.into()).dtype;
        let x = HostTensor::from_f64(ty, [3, 96], &wide.to_f64()).expect("as many");
        let samples = [Inputs::from([("x".to_owned(), x)])];
        let want = eval::evaluate(&graph, &samples[0]).expect("evaluates")["y"].to_f64();
        for scheme in SCHEMES {
            let made = made(&graph, &samples, &Options::new(scheme));
            let layer = &made.recipe.layers[0];
            assert_eq!(
                matches!(layer.activation, Activation::Static { .. }),
                scheme.needs_ranges()
            );
            assert_ne!(layer.activation, Activation::Dynamic);
            let stored = layer.weight.store(&layers(&graph).found[0].weight).expect("fits");
            assert_eq!(stored.scale.dtype, ty);
            assert_eq!(
                stored.scale.to_f32(),
                layer.weight.scales,
                "scales are numbers of the type"
            );
            let output = made.graph.ty(made.graph.outputs()[0].value).dtype;
            assert_eq!(output, ty);
            let got = compile_cpu(&made.graph, OptLevel::O2, None)
                .run(&samples[0])
                .expect("runs");
            let (noise, signal) = got["y"]
                .to_f64()
                .iter()
                .zip(&want)
                .fold((0.0, 0.0), |(n, s), (g, w)| (n + (g - w) * (g - w), s + w * w));
            let limit = match scheme {
                Scheme::WeightsInt4 => 0.2,
                scheme if scheme.is_float() => 0.06,
                _ => 0.03,
            };
            assert!(
                (noise / signal).sqrt() < limit,
                "{dtype} {scheme:?}: {noise} of {signal}"
            );
        }
    }
}
