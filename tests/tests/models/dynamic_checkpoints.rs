//! Checkpoints of compressed-tensors whose inputs are quantised as a run goes, through the whole compiler: `i8` by rows
//! and by tensors, with zero points and without, and 8-bit floats. Products are of what is stored, rows are measured
//! where they are made, and the numbers are those of the format's arithmetic: of integers bit by bit.

use std::path::Path;

use frontend::nn::{Linear, Module, Params};
use frontend::tensor::Tensor;
use frontend::weights::{QuantizationConfig, Weights};
use graphc::emulate::Outcome;
use graphc_tests::emulator::toolchain;
use graphc_tests::quantised::Random;
use graphc_tests::reference::{Tensors, compile_cpu};
use ir::convert::{decode_f8, encode_f8, encode_f64, round_to};
use ir::kernel::{Body, Mapping};
use ir::plan::Work;
use ir::{DType, Graph, HostTensor, Plan};
use passes::OptLevel;

/// What a checkpoint is quantised by.
#[derive(Clone, Copy, Debug)]
struct Form {
    /// `i8` or `f8e4m3fn`.
    dtype: DType,
    by_row: bool,
    symmetric: bool,
    /// A scale of each row of the weight; else one number.
    by_channel: bool,
}

const FORMS: [Form; 6] = [
    form(DType::I8, true, true, true),
    form(DType::I8, true, false, true),
    form(DType::I8, false, true, true),
    form(DType::I8, false, false, false),
    form(DType::F8E4M3FN, true, true, true),
    form(DType::F8E4M3FN, true, true, false),
];

const fn form(dtype: DType, by_row: bool, symmetric: bool, by_channel: bool) -> Form {
    Form {
        dtype,
        by_row,
        symmetric,
        by_channel,
    }
}

impl Form {
    fn is_float(&self) -> bool {
        self.dtype == DType::F8E4M3FN
    }

    /// The configuration as published models have it.
    fn config(&self) -> QuantizationConfig {
        let (kind, format) = match self.is_float() {
            true => ("float", "float-quantized"),
            false => ("int", "int-quantized"),
        };
        let weights = if self.by_channel { "channel" } else { "tensor" };
        let inputs = if self.by_row { "token" } else { "tensor" };
        let symmetric = self.symmetric;
        let text = format!(
            r#"{{"architectures": ["LlamaForCausalLM"], "quantization_config": {{
              "config_groups": {{"group_0": {{
                "input_activations": {{"actorder": null, "block_structure": null, "dynamic": true, "group_size": null, "num_bits": 8,
                  "observer": null, "observer_kwargs": {{}}, "strategy": "{inputs}", "symmetric": {symmetric}, "type": "{kind}"}},
                "output_activations": null, "targets": ["Linear"],
                "weights": {{"actorder": null, "block_structure": null, "dynamic": false, "group_size": null, "num_bits": 8,
                  "observer": "minmax", "observer_kwargs": {{}}, "strategy": "{weights}", "symmetric": true, "type": "{kind}"}}}}}},
              "format": "{format}", "global_compression_ratio": 1.2, "ignore": ["lm_head"], "kv_cache_scheme": null,
              "quant_method": "compressed-tensors", "quantization_status": "compressed"}}}}"#
        );
        let parsed = QuantizationConfig::parse(Path::new("config.json"), text.as_bytes());
        parsed.expect("it is JSON").expect("it says something")
    }
}

/// A safetensors file of named tensors.
fn file(tensors: &[(String, &str, Vec<usize>, Vec<u8>)]) -> Weights {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, dims, bytes) in tensors {
        let from = data.len();
        data.extend_from_slice(bytes);
        let to = data.len();
        entries.push(format!(
            "\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{dims:?},\"data_offsets\":[{from},{to}]}}"
        ));
    }
    let header = format!("{{{}}}", entries.join(","));
    let mut all = (header.len() as u64).to_le_bytes().to_vec();
    all.extend_from_slice(header.as_bytes());
    all.extend_from_slice(&data);
    Weights::from_bytes("model.safetensors", all.into()).expect("a file")
}

/// A layer's weight: the stored bytes, the numbers that they are, and a scale for each output.
struct Weight {
    bytes: Vec<u8>,
    numbers: Vec<f64>,
    scales: Vec<f64>,
}

impl Weight {
    fn random(form: &Form, outputs: usize, inputs: usize, random: &mut Random) -> Weight {
        let byte = |random: &mut Random| loop {
            let byte = random.below(256) as u8;
            if !form.is_float() || decode_f8(form.dtype, byte).is_some_and(f64::is_finite) {
                return byte;
            }
        };
        let bytes: Vec<u8> = (0..outputs * inputs).map(|_| byte(random)).collect();
        let number = |byte: &u8| match form.is_float() {
            true => decode_f8(form.dtype, *byte).expect("8 bits"),
            false => f64::from(*byte as i8),
        };
        let numbers = bytes.iter().map(number).collect();
        let count = if form.by_channel { outputs } else { 1 };
        // Published scales are bf16.
        let scales: Vec<f64> = (0..count)
            .map(|_| round_to(DType::BF16, (1 + random.below(1000)) as f64 / 3e5))
            .collect();
        Weight { bytes, numbers, scales }
    }

    fn tensors(
        &self,
        form: &Form,
        name: &str,
        outputs: usize,
        inputs: usize,
    ) -> [(String, &'static str, Vec<usize>, Vec<u8>); 2] {
        let dims = if form.by_channel { vec![outputs, 1] } else { vec![1] };
        let dtype = if form.is_float() { "F8_E4M3" } else { "I8" };
        [
            (
                format!("{name}.weight"),
                dtype,
                vec![outputs, inputs],
                self.bytes.clone(),
            ),
            (
                format!("{name}.weight_scale"),
                "BF16",
                dims,
                encode_f64(DType::BF16, &self.scales),
            ),
        ]
    }
}

/// The product by the format's arithmetic: results, and the sums of the magnitudes of what each is the sum of.
fn exact(form: &Form, weight: &Weight, x: &[f32], inputs: usize, outputs: usize) -> (Vec<f64>, Vec<f64>) {
    let f = |v: f64| round_to(DType::F32, v);
    let (low, high) = if form.is_float() {
        (-448.0, 448.0)
    } else {
        (-128.0, 127.0)
    };
    let least = f64::from(f32::EPSILON);
    let measured = |x: &[f32]| -> (f64, f64) {
        let (mut bottom, mut top) = (0f64, 0f64);
        for v in x {
            (bottom, top) = (bottom.min(f64::from(*v)), top.max(f64::from(*v)));
        }
        if form.symmetric {
            return (f(top.max(-bottom) / ((high - low) / 2.0)).max(least), 0.0);
        }
        let scale = f(f(top - bottom) / (high - low)).max(least);
        (scale, f(low - f(bottom / scale)).clamp(low, high).round_ties_even())
    };
    let whole = measured(x);
    let (mut results, mut magnitudes) = (Vec::new(), Vec::new());
    for row in x.chunks(inputs) {
        let (scale, zero) = if form.by_row { measured(row) } else { whole };
        let stored = |v: &f32| {
            let quotient = f(f64::from(*v) / scale);
            match form.is_float() {
                true => {
                    let byte = encode_f8(form.dtype, quotient.clamp(low, high)).expect("8 bits");
                    decode_f8(form.dtype, byte).expect("8 bits")
                }
                false => (quotient.round_ties_even() + zero).clamp(low, high) - zero,
            }
        };
        let row: Vec<f64> = row.iter().map(stored).collect();
        for output in 0..outputs {
            let terms = row.iter().zip(&weight.numbers[output * inputs..]).map(|(x, w)| x * w);
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), t: f64| (sum + t, size + t.abs()));
            let t = weight.scales[if form.by_channel { output } else { 0 }];
            results.push(sum * scale * t);
            magnitudes.push(size * scale * t);
        }
    }
    (results, magnitudes)
}

struct Case {
    form: Form,
    graph: Graph,
    inputs: Tensors,
    exact: Vec<f64>,
    magnitudes: Vec<f64>,
}

impl Case {
    fn new(form: Form, rows: usize, inputs: usize, outputs: usize) -> Case {
        let mut random = Random(11 + rows as u64);
        let weight = Weight::random(&form, outputs, inputs, &mut random);
        let params = Params::new(file(&weight.tensors(&form, "q_proj", outputs, inputs))).quantized_as(form.config());
        let linear = Linear::load_no_bias(&params.sub("q_proj"), inputs, outputs).unwrap_or_else(|e| panic!("{e}"));
        let mut x: Vec<f32> = (0..rows * inputs)
            .map(|i| (random.below(20001) as f32 / 10000.0 - 0.9) * (1 + i / inputs % 5) as f32)
            .collect();
        // A row of zeros has the least scale.
        if rows > 2 {
            x[inputs..2 * inputs].fill(0.0);
        }
        let shape = frontend::shape![rows as i64, inputs as i64];
        let graph = linear
            .forward(&Tensor::input("x", DType::F32, shape))
            .graph()
            .expect("a graph");
        let (exact, magnitudes) = exact(&form, &weight, &x, inputs, outputs);
        let x = HostTensor::from_f32([rows, inputs], &x).expect("as many");
        Case {
            form,
            graph,
            inputs: Tensors::from([("x".to_owned(), x)]),
            exact,
            magnitudes,
        }
    }

    /// Says what is wrong with a result. Sums of integers are exact, and what follows rounds three times; 8-bit floats
    /// differ by the order of their sum too.
    fn wrong(&self, got: &HostTensor) -> Option<String> {
        self.wrong_by_sums(got, self.form.is_float())
    }

    /// As [`Case::wrong`], where sums may be rounded or not.
    fn wrong_by_sums(&self, got: &HostTensor, rounded: bool) -> Option<String> {
        let (got, mut wrong) = (got.to_f64(), None);
        for (i, got) in got.iter().enumerate() {
            let near = match rounded {
                true => self.magnitudes[i] * 1e-6,
                false => self.exact[i].abs() * 3.0 * f64::from(f32::EPSILON) / 2.0,
            };
            if (got - self.exact[i]).is_nan() || (got - self.exact[i]).abs() > near {
                wrong = Some(format!("element {i} is {got} and not {}", self.exact[i]));
            }
        }
        wrong.or_else(|| (got.len() != self.exact.len()).then(|| format!("{} elements", got.len())))
    }
}

#[test]
fn the_reference_is_the_formats_arithmetic() {
    for form in FORMS {
        let case = Case::new(form, 5, 100, 24);
        let got = ir::graph::eval::evaluate(&case.graph, &case.inputs).expect("it evaluates");
        // Numbers are rounded to f32 before they are multiplied there.
        assert_eq!(case.wrong_by_sums(&got["output"], true), None, "{form:?}");
    }
}

#[test]
fn layers_on_the_cpu() {
    for form in FORMS {
        for (rows, inputs, outputs) in [(1, 96, 40), (7, 256, 264), (33, 100, 17)] {
            let case = Case::new(form, rows, inputs, outputs);
            let got = compile_cpu(&case.graph, OptLevel::O2, None)
                .run(&case.inputs)
                .expect("it runs");
            assert_eq!(case.wrong(&got["output"]), None, "{form:?} {rows}");
        }
    }
}

fn launches(plan: &Plan) -> usize {
    let is_launch = |work: &Work| matches!(work, Work::Launch { .. });
    plan.steps.values().filter(|s| is_launch(&s.work)).count()
}

/// The types that products of a plan multiply, and whether they do so by matrix instructions.
fn products(plan: &Plan) -> Vec<(DType, bool)> {
    let bodies = plan.kernels.values().filter_map(|kernel| match &kernel.body {
        Body::Contract(body) => {
            let of = |operand: &ir::kernel::Operand| operand.element(&kernel.exprs);
            assert_eq!(of(&body.lhs), of(&body.rhs), "{}", kernel.name);
            Some((of(&body.lhs), matches!(kernel.mapping, Mapping::Matrix(_))))
        }
        _ => None,
    });
    bodies.collect()
}

/// What a target multiplies.
fn factors(arch: &str, form: &Form) -> DType {
    match (arch, form.is_float()) {
        (_, false) => DType::I8,
        ("gfx942", true) => DType::F8E4M3FNUZ,
        ("gfx950" | "gfx1201", true) => DType::F8E4M3FN,
        _ => DType::F16,
    }
}

fn layers(arch: &str) {
    let Some(tools) = toolchain() else { return };
    for form in FORMS {
        let case = Case::new(form, 48, 512, 96);
        let built = tools.build(&case.graph, arch, None);
        let plan = &built.program.variants[0].plan;
        assert_eq!(products(plan), [(factors(arch, &form), true)], "{arch} {form:?}");
        // A row is measured and quantised by one kernel; the numbers of all rows must be known before one is quantised.
        if form.by_row {
            assert_eq!(launches(plan), 2, "{arch} {form:?}\n{plan}");
        }
        let outcome = tools.run(&built, &case.inputs, 1 << 26);
        compared(&outcome, &format!("{arch} {form:?}"));
        assert_eq!(case.wrong(&outcome.outputs["output"]), None, "{arch} {form:?}");
        let counted: u64 = outcome.launches.iter().map(|l| l.counters.matrix_macs).sum();
        assert!(
            counted >= 48 * 512 * 96,
            "{arch} {form:?}: {counted} by matrix instructions"
        );
    }
}

/// Holds each kernel against the evaluator, which computes in f64: of numbers halfway between two integers some are the
/// other one there. The results say which is right.
fn compared(outcome: &Outcome, what: &str) {
    assert!(
        outcome.unchecked.is_empty(),
        "{what}: {} kernels unchecked",
        outcome.unchecked.len()
    );
    for verdict in &outcome.verdicts {
        for result in &verdict.results {
            let d = &result.difference;
            let halfway = result.dtype == "i8" && d.max_abs <= 1.0 && d.mismatches * 500 <= d.elements;
            assert!(
                d.is_within() || halfway,
                "{what} {} {}: {d:?}",
                verdict.kernel,
                result.param
            );
        }
    }
}

#[test]
fn layers_on_gfx90a() {
    layers("gfx90a");
}

#[test]
fn layers_on_gfx942() {
    layers("gfx942");
}

#[test]
fn layers_on_gfx950() {
    layers("gfx950");
}

#[test]
fn layers_on_gfx1201() {
    layers("gfx1201");
}

/// A norm of a sum, and three layers of what it makes: the norm's kernel measures its rows and stores bytes and scales,
/// nothing wider, and each layer is one kernel more.
#[test]
fn rows_are_quantised_where_they_are_made() {
    let Some(tools) = toolchain() else { return };
    let (rows, inputs, outputs) = (48, 512, 64);
    for (form, arch) in [(FORMS[0], "gfx90a"), (FORMS[1], "gfx1201"), (FORMS[4], "gfx942")] {
        let mut random = Random(3);
        let names = ["q_proj", "k_proj", "v_proj"];
        let weights: Vec<Weight> = names
            .iter()
            .map(|_| Weight::random(&form, outputs, inputs, &mut random))
            .collect();
        let tensors = names
            .iter()
            .zip(&weights)
            .flat_map(|(name, w)| w.tensors(&form, name, outputs, inputs));
        let params = Params::new(file(&tensors.collect::<Vec<_>>()))
            .dtype(DType::F16)
            .quantized_as(form.config());
        let shape = || frontend::shape![rows as i64, inputs as i64];
        let (x, y) = (
            Tensor::input("x", DType::F16, shape()),
            Tensor::input("y", DType::F16, shape()),
        );
        let scale = Tensor::from_slice(&vec![1.5f32; inputs], [inputs]).cast(DType::F16);
        let normed = (x + y).rms_norm(Some(&scale), 1e-5);
        let layer = |name: &str| {
            let linear = Linear::load_no_bias(&params.sub(name), inputs, outputs).unwrap_or_else(|e| panic!("{e}"));
            linear.forward(&normed)
        };
        let all: Vec<Tensor> = names.iter().map(|name| layer(name)).collect();
        let graph = frontend::tensor::cat(&all.iter().collect::<Vec<_>>(), 1)
            .graph()
            .expect("a graph");
        let built = tools.build(&graph, arch, None);
        let plan = &built.program.variants[0].plan;
        assert!(
            launches(plan) <= 4,
            "{arch} {form:?}: {} launches\n{plan}",
            launches(plan)
        );
        let mut measured = plan.kernels.values().filter(|k| matches!(k.body, Body::Row(_)));
        let row = measured.next().expect("a row");
        let stored = row.params.values().filter(|p| p.access != ir::kernel::Access::Read);
        let wide = stored
            .filter(|p| p.dtype.bits() > 8 && p.elements.as_const() != Some(rows as i64))
            .count();
        assert_eq!((wide, measured.count()), (0, 0), "{arch} {form:?}\n{row}");
        let values: Vec<f64> = (0..rows * inputs)
            .map(|i| ((i * 37 % 129) as f64 - 64.0) / 64.0)
            .collect();
        let turned: Vec<f64> = values.iter().rev().map(|v| v * 0.7).collect();
        let tensor = |values: &[f64]| HostTensor::from_f64(DType::F16, [rows, inputs], values).expect("as many");
        let given = Tensors::from([("x".to_owned(), tensor(&values)), ("y".to_owned(), tensor(&turned))]);
        let outcome = tools.run(&built, &given, 1 << 26);
        compared(&outcome, &format!("{arch} {form:?}"));
        let want = ir::graph::eval::evaluate(&graph, &given).expect("it evaluates")["output"].to_f64();
        let got = outcome.outputs["output"].to_f64();
        let largest = want.iter().fold(0f64, |m, v| m.max(v.abs()));
        let worst = got.iter().zip(&want).fold(0f64, |m, (g, w)| m.max((g - w).abs()));
        // The norm is rounded to f16 there before it is quantised.
        assert!(worst <= 1e-2 * largest, "{arch} {form:?}: {worst} of {largest}");
    }
}
