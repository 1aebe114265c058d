//! Layers in each layout against the sums that the layouts' definitions give, and every way in which a file is refused.

use indexmap::IndexMap;
use ir::graph::eval::evaluate;
use ir::{DType, HostTensor};
use safetensors::Dtype;

use crate::nn::{Conv2d, Conv2dConfig, Linear, Module, NnError, Params};
use crate::tensor::{ConvOptions, Tensor};
use crate::weights::{QuantizationConfig, Weights};

/// The tensors of a file, by name.
#[derive(Clone, Default)]
struct File(Vec<(String, Dtype, Vec<usize>, Vec<u8>)>);

impl File {
    fn add(&mut self, name: &str, dtype: Dtype, dims: &[usize], bytes: Vec<u8>) {
        self.0.retain(|(other, ..)| other != name);
        self.0.push((name.into(), dtype, dims.into(), bytes));
    }

    fn words(&mut self, name: &str, dims: &[usize], words: Vec<u32>) {
        self.add(
            name,
            Dtype::I32,
            dims,
            words.iter().flat_map(|w| w.to_le_bytes()).collect(),
        );
    }

    fn floats(&mut self, name: &str, dims: &[usize], values: &[f32]) {
        self.add(
            name,
            Dtype::F32,
            dims,
            values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        );
    }

    fn params(&self) -> Params {
        let views = self.0.iter().map(|(name, dtype, dims, bytes)| {
            let view = safetensors::tensor::TensorView::new(*dtype, dims.clone(), bytes).unwrap();
            (name.as_str(), view)
        });
        let bytes = safetensors::serialize(views, None).unwrap();
        Params::new(Weights::from_bytes("test.safetensors", bytes.into()).unwrap())
    }
}

/// A quantised layer as its formula has it.
#[derive(Clone)]
struct Layer {
    outputs: usize,
    inputs: usize,
    bits: usize,
    /// The group of each input.
    group: Vec<usize>,
    numbers: Vec<u8>,
    /// `[groups, outputs]`.
    scales: Vec<f32>,
    zeros: Vec<u8>,
}

impl Layer {
    fn new(bits: usize, outputs: usize, inputs: usize, size: usize) -> Layer {
        let groups = inputs.div_ceil(size);
        let numbers = (0..outputs * inputs).map(|i| (i * 7 + i / 5 * 3 + i / inputs) as u8 % (1 << (bits - 1)) * 2);
        Layer {
            outputs,
            inputs,
            bits,
            group: (0..inputs).map(|input| input / size).collect(),
            numbers: numbers.collect(),
            scales: (0..groups * outputs).map(|i| 0.5 + (i % 5) as f32 * 0.25).collect(),
            zeros: (0..groups * outputs).map(|i| (i * 5 + 1) as u8 % 16).collect(),
        }
    }

    fn groups(&self) -> usize {
        self.scales.len() / self.outputs
    }

    /// `Σ x · (number − zero) · scale`.
    fn product(&self, x: &[f64]) -> Vec<f64> {
        let row = |x: &[f64], output: usize| -> f64 {
            let term = |input: usize| {
                let at = self.group[input] * self.outputs + output;
                let number = f64::from(self.numbers[output * self.inputs + input]) - f64::from(self.zeros[at]);
                x[input] * number * f64::from(self.scales[at])
            };
            (0..self.inputs).map(term).sum()
        };
        let rows = x.chunks(self.inputs);
        rows.flat_map(|x| (0..self.outputs).map(move |output| row(x, output)))
            .collect()
    }

    /// Packs along the second axis of a matrix that is given by a function.
    fn packed(rows: usize, columns: usize, bits: usize, number: impl Fn(usize, usize) -> u32) -> Vec<u32> {
        let each = 32 / bits;
        let word = |row: usize, word: usize| {
            let places = (0..each).filter(|place| word * each + place < columns);
            places.fold(0, |all, place| all | number(row, word * each + place) << (place * bits))
        };
        (0..rows)
            .flat_map(|row| (0..columns.div_ceil(each)).map(move |w| (row, w)))
            .map(|(row, w)| word(row, w))
            .collect()
    }

    /// The transpose of a matrix of words.
    fn turned(words: &[u32], rows: usize) -> Vec<u32> {
        let columns = words.len() / rows;
        (0..words.len()).map(|i| words[i % rows * columns + i / rows]).collect()
    }

    /// `less` is what is taken from zero points before they are packed.
    fn gptq(&self, less: u32) -> File {
        let (each, mut file) = (32 / self.bits, File::default());
        let own = |output: usize, input: usize| u32::from(self.numbers[output * self.inputs + input]);
        let words = Layer::packed(self.outputs, self.inputs, self.bits, own);
        let turned = Layer::turned(&words, self.outputs);
        file.words("qweight", &[self.inputs / each, self.outputs], turned);
        let zero = |group: usize, output: usize| {
            u32::from(self.zeros[group * self.outputs + output]).wrapping_sub(less) & ((1 << self.bits) - 1)
        };
        let words = Layer::packed(self.groups(), self.outputs, self.bits, zero);
        file.words("qzeros", &[self.groups(), self.outputs.div_ceil(each)], words);
        file.floats("scales", &[self.groups(), self.outputs], &self.scales);
        file.words("g_idx", &[self.inputs], self.group.iter().map(|g| *g as u32).collect());
        file
    }

    fn awq(&self) -> File {
        // Number j of a word is output 0, 2, 4, 6, 1, 3, 5, 7 of eight.
        let output = |place: usize| place / 8 * 8 + [0, 2, 4, 6, 1, 3, 5, 7][place % 8];
        let mut file = File::default();
        let own = |input: usize, place: usize| u32::from(self.numbers[output(place) * self.inputs + input]);
        let words = Layer::packed(self.inputs, self.outputs, 4, own);
        file.words("qweight", &[self.inputs, self.outputs / 8], words);
        let zero = |group: usize, place: usize| u32::from(self.zeros[group * self.outputs + output(place)]);
        let words = Layer::packed(self.groups(), self.outputs, 4, zero);
        file.words("qzeros", &[self.groups(), self.outputs / 8], words);
        file.floats("scales", &[self.groups(), self.outputs], &self.scales);
        file
    }

    /// Unsigned numbers are those of the format, which adds half of the range to signed ones.
    fn compressed(&self, with_zeros: bool) -> File {
        let (each, mut file) = (32 / self.bits, File::default());
        let own = |output: usize, input: usize| u32::from(self.numbers[output * self.inputs + input]);
        let words = Layer::packed(self.outputs, self.inputs, self.bits, own);
        file.words("weight_packed", &[self.outputs, self.inputs.div_ceil(each)], words);
        let turned = |group: usize, output: usize| self.scales[group * self.outputs + output];
        let scales: Vec<f32> = (0..self.scales.len())
            .map(|i| turned(i % self.groups(), i / self.groups()))
            .collect();
        file.floats("weight_scale", &[self.outputs, self.groups()], &scales);
        let shape = [self.outputs as i64, self.inputs as i64];
        file.add(
            "weight_shape",
            Dtype::I64,
            &[2],
            shape.iter().flat_map(|d| d.to_le_bytes()).collect(),
        );
        if with_zeros {
            let zero = |group: usize, output: usize| u32::from(self.zeros[group * self.outputs + output]);
            let words = Layer::packed(self.groups(), self.outputs, self.bits, zero);
            let dims = [self.outputs.div_ceil(each), self.groups()];
            file.words("weight_zero_point", &dims, Layer::turned(&words, self.groups()));
        }
        file
    }

    /// Sorts nothing and gives each input a group by a stride, as act-order may leave them.
    fn shuffled(mut self) -> Layer {
        let (inputs, group) = (self.inputs, self.group.clone());
        // 5 has no divisor in common with the sizes of the tests.
        self.group = (0..inputs).map(|input| group[input * 5 % inputs]).collect();
        self
    }
}

fn x(rows: usize, inputs: usize) -> (Tensor, Vec<f64>) {
    let values: Vec<f32> = crate::onnx::randomize::uniform("x", 1, rows * inputs, -1.0, 1.0).collect();
    let wide = values.iter().map(|v| f64::from(*v)).collect();
    (Tensor::from_slice(&values, [rows, inputs]), wide)
}

#[track_caller]
fn check(layer: &Layer, params: &Params, gathers: bool) {
    let linear = Linear::load_no_bias(params, layer.inputs, layer.outputs).unwrap_or_else(|e| panic!("{e}"));
    let (x, numbers) = x(3, layer.inputs);
    let graph = linear.forward(&x).graph().unwrap();
    let got = evaluate(&graph, &IndexMap::new()).unwrap()["output"].to_f64();
    for (got, want) in got.iter().zip(layer.product(&numbers)) {
        assert!((got - want).abs() < 1e-3, "{got} is not {want}");
    }
    let names: Vec<&str> = graph.nodes().values().map(|n| n.op.name()).collect();
    let wanted: &[&str] = match gathers {
        true => &["take", "dequantize", "contract"],
        false => &["dequantize", "contract"],
    };
    let ops: Vec<&str> = names.iter().copied().filter(|n| wanted.contains(n)).collect();
    assert_eq!(ops.len(), wanted.len(), "{names:?}");
    // The weight takes as many bytes as its numbers have.
    let count = layer.outputs * layer.inputs;
    let of = |dtype: DType| graph.constants().values().filter(move |c| c.tensor.dtype == dtype);
    let dtype = if layer.bits == 4 { DType::U4 } else { DType::U8 };
    assert!(
        of(dtype).any(|c| c.tensor.elements() == count && c.tensor.bytes.len() == count * layer.bits / 8),
        "no {dtype} of {count} elements"
    );
}

#[test]
fn gptq_is_read_in_both_formats_and_widths() {
    let v2 = QuantizationConfig {
        gptq_v2: true,
        ..QuantizationConfig::default()
    };
    for (bits, outputs, inputs, size) in [(4, 24, 64, 16), (4, 8, 32, 32), (8, 12, 64, 32), (4, 40, 48, 32)] {
        let layer = Layer::new(bits, outputs, inputs, size);
        check(&layer, &layer.gptq(1).params(), false);
        check(&layer, &layer.gptq(0).params().quantized_as(v2.clone()), false);
        if inputs % size == 0 && inputs > size {
            let layer = layer.shuffled();
            check(&layer, &layer.gptq(1).params(), true);
        }
    }
    // A symmetric layer is known by its zero points, whichever format it claims.
    let mut layer = Layer::new(4, 16, 32, 16);
    layer.zeros.fill(8);
    check(&layer, &layer.gptq(1).params(), false);
    check(&layer, &layer.gptq(0).params(), false);
    // An index that says nothing: not there, or never filled in.
    let layer = Layer::new(4, 16, 32, 16);
    for index in [None, Some(0u32), Some(u32::MAX)] {
        let mut file = layer.gptq(1);
        file.0.retain(|(name, ..)| name != "g_idx");
        if let Some(value) = index {
            file.words("g_idx", &[32], vec![value; 32]);
        }
        check(&layer, &file.params(), false);
    }
}

#[test]
fn the_format_is_read_from_the_configuration_beside_the_file() {
    let layer = Layer::new(4, 16, 48, 32);
    let mut file = layer.gptq(0);
    file.0.retain(|(name, ..)| name != "g_idx");
    let folder = tempfile::tempdir().unwrap();
    let views = file.0.iter().map(|(name, dtype, dims, bytes)| {
        let view = safetensors::tensor::TensorView::new(*dtype, dims.clone(), bytes).unwrap();
        (name.as_str(), view)
    });
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    let load = || {
        let params = Params::new(Weights::open(folder.path()).unwrap());
        Linear::load_no_bias(&params, 48, 16).map(|_| params)
    };
    let config = folder.path().join("config.json");
    // Two groups of 48 inputs may be 24 and 24; the configuration knows better.
    let text = r#"{"quantization_config": {"quant_method": "gptq", "group_size": 32, "checkpoint_format": "gptq_v2"}}"#;
    std::fs::write(&config, text).unwrap();
    check(&layer, &load().unwrap(), false);
    std::fs::write(&config, "{").unwrap();
    let error = load().unwrap_err().to_string();
    assert!(error.contains("config.json is not JSON"), "{error}");
}

#[test]
fn awq_is_read_in_its_order() {
    for (outputs, inputs, size) in [(24, 64, 16), (8, 32, 32), (40, 40, 8)] {
        let layer = Layer::new(4, outputs, inputs, size);
        check(&layer, &layer.awq().params(), false);
    }
}

#[test]
fn compressed_tensors_are_read_with_and_without_zero_points() {
    for (bits, outputs, inputs, size) in [(4, 12, 64, 16), (8, 6, 64, 32), (4, 5, 32, 32), (4, 9, 44, 22)] {
        let mut layer = Layer::new(bits, outputs, inputs, size);
        check(&layer, &layer.compressed(true).params(), false);
        if inputs > size {
            let layer = layer.clone().shuffled();
            let mut file = layer.compressed(true);
            file.words(
                "weight_g_idx",
                &[inputs],
                layer.group.iter().map(|g| *g as u32).collect(),
            );
            check(&layer, &file.params(), true);
        }
        layer.zeros.fill(1 << (bits - 1));
        check(&layer, &layer.compressed(false).params(), false);
    }
}

#[track_caller]
fn refused(file: &File, inputs: usize, outputs: usize, name: &str, says: &[&str]) {
    let error = Linear::load_no_bias(&file.params(), inputs, outputs).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(&error, NnError::Packed { name: found, .. } if found == name),
        "{text}"
    );
    for says in says {
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let layer = Layer::new(4, 16, 64, 16);
    let gptq = layer.gptq(1);
    // 2 and 3 bits, another size of layer, AWQ's other layout.
    for (bits, rows) in [(2, 4), (3, 6)] {
        let mut file = gptq.clone();
        file.words("qweight", &[rows, 16], vec![0; rows * 16]);
        let bits = format!("{bits} bits an element");
        refused(&file, 64, 16, "qweight", &[&bits, "bits=4"]);
    }
    refused(&gptq, 72, 16, "qweight", &["i32[8, 16]", "[9, 16] for 4 bits"]);
    refused(&gptq, 64, 24, "qweight", &["i32[8, 16]", "AWQ's [64, 3]"]);
    let mut file = gptq.clone();
    file.words("qweight", &[24, 8], vec![0; 24 * 8]);
    refused(&file, 64, 24, "qweight", &["version=\"gemm\""]);
    // Scales and zero points.
    let mut file = gptq.clone();
    file.floats("scales", &[4, 8], &[1.0; 32]);
    refused(&file, 64, 16, "scales", &["f32[4, 8]", "[groups, 16]"]);
    let mut file = gptq.clone();
    file.floats("scales", &[4, 16], &[f32::INFINITY; 64]);
    refused(&file, 64, 16, "scales", &["a scale of inf", "quantise the model again"]);
    let mut file = gptq.clone();
    file.words("qzeros", &[4, 3], vec![0; 12]);
    refused(&file, 64, 16, "qzeros", &["i32[4, 3]", "[4, 2]"]);
    let mut file = gptq.clone();
    file.floats("qzeros", &[4, 2], &[0.0; 8]);
    refused(&file, 64, 16, "qzeros", &["f32[4, 2]", "i32 words"]);
    // Groups: outside the scales, of unlike sizes, not dividing the inputs.
    let mut index: Vec<u32> = layer.group.iter().map(|g| *g as u32).collect();
    let with = |index: &[u32]| {
        let mut file = gptq.clone();
        file.words("g_idx", &[64], index.to_vec());
        file
    };
    index[5] = 4;
    refused(&with(&index), 64, 16, "g_idx", &["group 4 for input 5", "4 groups"]);
    index[5] = 3;
    refused(
        &with(&index),
        64,
        16,
        "g_idx",
        &["group 0 has 15 inputs", "desc_act=false"],
    );
    let mut file = gptq.clone();
    file.0.retain(|(name, ..)| name != "g_idx");
    file.floats("scales", &[3, 16], &[1.0; 48]);
    refused(&file, 64, 16, "scales", &["3 groups for 64 inputs", "config.json"]);
    let missing = |name: &str| {
        let mut file = gptq.clone();
        file.0.retain(|(other, ..)| other != name);
        let error = Linear::load_no_bias(&file.params(), 64, 16).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    };
    missing("qzeros");
    missing("scales");
    // AWQ in eight bits; compressed-tensors of another shape or width.
    let mut file = layer.awq();
    file.words("qweight", &[64, 4], vec![0; 256]);
    refused(&file, 64, 16, "qweight", &["i32[64, 4]", "[64, 2]: 4 bits"]);
    let compressed = layer.compressed(true);
    refused(&compressed, 64, 17, "weight_shape", &["[16, 64]", "[17, 64]"]);
    let mut file = compressed.clone();
    file.words("weight_packed", &[16, 4], vec![0; 64]);
    refused(&file, 64, 16, "weight_packed", &["2 bits an element", "num_bits=4"]);
    let mut file = compressed.clone();
    file.floats("weight_scale", &[4, 4], &[1.0; 16]);
    refused(&file, 64, 16, "weight_scale", &["f32[4, 4]", "[16, groups]"]);
    let mut file = compressed;
    file.words("weight_zero_point", &[16, 4], vec![0; 64]);
    refused(&file, 64, 16, "weight_zero_point", &["i32[16, 4]", "[2, 4]"]);
}

/// `i8` as compressed-tensors' `int-quantized` has it: numbers, scales a row or a group, zero points, a scale of the
/// input.
#[test]
fn i8_stays_as_it_is_stored() {
    let numbers: Vec<i8> = (0..24).map(|i: i32| (i * 37 % 256 - 128) as i8).collect();
    for (groups, zeros, input) in [
        (1, None, None),
        (2, Some([3i8, -4, 0, 100, -1, 7]), None),
        (1, Some([3, -4, 5, 0, 0, 0]), Some((0.01, 6i8))),
        (1, Some([0; 6]), Some((0.02, 0))),
    ] {
        let scales: Vec<f32> = (0..3 * groups).map(|i| 0.5 + i as f32 * 0.25).collect();
        let mut file = File::default();
        file.add("weight", Dtype::I8, &[3, 8], numbers.iter().map(|v| *v as u8).collect());
        file.floats("weight_scale", &[3, groups], &scales);
        if let Some(zeros) = zeros {
            let bytes = zeros[..3 * groups].iter().map(|z| *z as u8).collect();
            file.add("weight_zero_point", Dtype::I8, &[3, groups], bytes);
        }
        if let Some((scale, zero)) = input {
            file.floats("input_scale", &[1], &[scale]);
            file.add("input_zero_point", Dtype::I8, &[1], vec![zero as u8]);
        }
        let (x, values) = x(2, 8);
        let given: Vec<f64> = values
            .iter()
            .map(|v| match input {
                Some((scale, zero)) => {
                    let quotient = f64::from((*v as f32) / scale).round_ties_even() + f64::from(zero);
                    (quotient.clamp(-128.0, 127.0) - f64::from(zero)) * f64::from(scale)
                }
                None => *v,
            })
            .collect();
        let linear = Linear::load_no_bias(&file.params(), 8, 3).unwrap();
        let graph = linear.forward(&x).graph().unwrap();
        let got = evaluate(&graph, &IndexMap::new()).unwrap()["output"].to_f64();
        for (i, got) in got.iter().enumerate() {
            let (row, output) = (i / 3, i % 3);
            let term = |k: usize| {
                let at = output * groups + k / (8 / groups);
                let zero = f64::from(zeros.map_or(0, |z| z[at]));
                given[row * 8 + k] * (f64::from(numbers[output * 8 + k]) - zero) * f64::from(scales[at])
            };
            let want: f64 = (0..8).map(term).sum();
            assert!((got - want).abs() < 1e-3, "{got} is not {want}");
        }
        let stored = graph.constants().values().find(|c| c.tensor.elements() == 24);
        assert_eq!(
            stored.map(|c| (c.tensor.dtype, c.tensor.bytes.len())),
            Some((DType::I8, 24))
        );
    }
    let mut file = File::default();
    file.add("weight", Dtype::I8, &[3, 8], vec![0; 24]);
    file.floats("weight_scale", &[3, 1], &[1.0; 3]);
    file.add("weight_zero_point", Dtype::I8, &[2, 1], vec![0; 2]);
    refused(
        &file,
        8,
        3,
        "weight_zero_point",
        &["i8[2, 1]", "one zero point a scale"],
    );
    file.floats("weight_scale", &[3, 3], &[1.0; 9]);
    let error = Linear::load_no_bias(&file.params(), 8, 3).unwrap_err();
    assert!(
        matches!(&error, NnError::Shape { name, .. } if name == "weight_scale"),
        "{error}"
    );
}

#[test]
fn filters_in_i8_are_those_numbers_too() {
    let numbers: Vec<i8> = (0..4 * 3 * 9).map(|i: i32| (i * 53 % 256 - 128) as i8).collect();
    let scales = [0.5f32, 0.25, 2.0, 1.0];
    let config = Conv2dConfig::new(3, 4, 3)
        .options(ConvOptions::default().padding(1))
        .no_bias();
    for input in [None, Some(0.0078125f32)] {
        let mut file = File::default();
        file.add(
            "weight",
            Dtype::I8,
            &[4, 3, 3, 3],
            numbers.iter().map(|v| *v as u8).collect(),
        );
        file.floats("weight_scale", &[4, 1, 1, 1], &scales);
        if let Some(scale) = input {
            file.floats("input_scale", &[1], &[scale]);
        }
        let mut plain = File::default();
        let wide = |i: usize| f32::from(numbers[i]) * scales[i / 27];
        plain.floats("weight", &[4, 3, 3, 3], &(0..108).map(wide).collect::<Vec<_>>());
        // Multiples of the input's scale are what they are in eight bits.
        let values: Vec<f32> = (0..3 * 25).map(|i| ((i * 31 % 255) as f32 - 127.0) / 128.0).collect();
        let x = Tensor::from_slice(&values, [1, 3, 5, 5]);
        let run = |file: &File| {
            let conv = Conv2d::load(&file.params(), &config).unwrap();
            let graph = conv.forward(&x).graph().unwrap();
            let y: HostTensor = evaluate(&graph, &IndexMap::new()).unwrap()["output"].clone();
            (y.to_f64(), graph)
        };
        let ((got, graph), (want, _)) = (run(&file), run(&plain));
        assert!(
            got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-3),
            "{got:?} {want:?}"
        );
        assert!(
            graph
                .constants()
                .values()
                .any(|c| c.tensor.dtype == DType::I8 && c.tensor.elements() == 108)
        );
    }
}
