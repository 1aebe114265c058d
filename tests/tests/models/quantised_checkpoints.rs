//! Linear layers of GPTQ, AWQ and compressed-tensors checkpoints through the whole compiler: what products read is what
//! is stored, on the CPU and on emulated GPUs, and the numbers are those of each layout's formula.

use frontend::nn::{Linear, Module, Params};
use frontend::tensor::Tensor;
use frontend::weights::Weights;
use graphc_tests::emulator::{Tally, toolchain};
use graphc_tests::quantised::Random;
use graphc_tests::reference::{Tensors, compile_cpu};
use ir::kernel::{Body, Mapping};
use ir::plan::Work;
use ir::{DType, Graph, HostTensor, Plan};
use passes::OptLevel;

const GROUP: usize = 128;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Layout {
    Gptq,
    /// With groups of inputs that are not neighbours.
    ActOrder,
    Awq,
    Compressed,
}

/// A safetensors file: the header's length, the header, the bytes.
fn file(tensors: &[(&str, &str, [usize; 2], Vec<u8>)]) -> Weights {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, dims, bytes) in tensors {
        let from = data.len();
        data.extend_from_slice(bytes);
        let dims = match *name {
            "g_idx" => format!("[{}]", dims[1]),
            _ => format!("{dims:?}"),
        };
        let to = data.len();
        entries.push(format!(
            "\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{dims},\"data_offsets\":[{from},{to}]}}"
        ));
    }
    let header = format!("{{{}}}", entries.join(","));
    let mut all = (header.len() as u64).to_le_bytes().to_vec();
    all.extend_from_slice(header.as_bytes());
    all.extend_from_slice(&data);
    Weights::from_bytes("layer.safetensors", all.into()).expect("a file")
}

struct Case {
    graph: Graph,
    inputs: Tensors,
    want: Vec<f64>,
    /// Bytes of the weight with its scales and zero points.
    bytes: usize,
}

/// A layer of random words, and the product by it as the layout's definition has it.
fn case(layout: Layout, rows: usize, inputs: usize, outputs: usize) -> Case {
    let mut random = Random(5 + rows as u64);
    let groups = inputs / GROUP;
    let mut words = |count: usize| -> Vec<u32> {
        (0..count)
            .map(|_| (random.below(1 << 16) as u32) << 16 | random.below(1 << 16) as u32)
            .collect()
    };
    let numbers = words(inputs * outputs / 8);
    let zeros = words(groups * outputs / 8);
    let scales: Vec<f64> = (0..groups * outputs)
        .map(|_| (1 + random.below(16)) as f64 / 1024.0)
        .collect();
    let bytes_of = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let halves = |values: &[f64]| ir::convert::encode_f64(DType::F16, values);
    let group_of = |input: usize| match layout {
        Layout::ActOrder => (input * 77 % inputs) / GROUP,
        _ => input / GROUP,
    };
    let nibble = |word: u32, place: usize| (word >> (4 * place)) & 15;
    // Where output n of eight is in AWQ's words.
    let place = [0, 4, 1, 5, 2, 6, 3, 7];
    let number = |n: usize, k: usize| match layout {
        Layout::Gptq | Layout::ActOrder => nibble(numbers[k / 8 * outputs + n], k % 8),
        Layout::Awq => nibble(numbers[k * outputs / 8 + n / 8], place[n % 8]),
        Layout::Compressed => nibble(numbers[n * inputs / 8 + k / 8], k % 8),
    };
    let zero = |n: usize, g: usize| match layout {
        Layout::Gptq | Layout::ActOrder => (nibble(zeros[g * outputs / 8 + n / 8], n % 8) + 1) % 16,
        Layout::Awq => nibble(zeros[g * outputs / 8 + n / 8], place[n % 8]),
        Layout::Compressed => nibble(zeros[n / 8 * groups + g], n % 8),
    };
    let scale = |n: usize, g: usize| match layout {
        Layout::Compressed => scales[n * groups + g],
        _ => scales[g * outputs + n],
    };
    let index: Vec<u32> = (0..inputs).map(|k| group_of(k) as u32).collect();
    let weights = match layout {
        Layout::Gptq | Layout::ActOrder => file(&[
            ("qweight", "I32", [inputs / 8, outputs], bytes_of(&numbers)),
            ("qzeros", "I32", [groups, outputs / 8], bytes_of(&zeros)),
            ("scales", "F16", [groups, outputs], halves(&scales)),
            ("g_idx", "I32", [1, inputs], bytes_of(&index)),
        ]),
        Layout::Awq => file(&[
            ("qweight", "I32", [inputs, outputs / 8], bytes_of(&numbers)),
            ("qzeros", "I32", [groups, outputs / 8], bytes_of(&zeros)),
            ("scales", "F16", [groups, outputs], halves(&scales)),
        ]),
        Layout::Compressed => file(&[
            ("weight_packed", "I32", [outputs, inputs / 8], bytes_of(&numbers)),
            ("weight_zero_point", "I32", [outputs / 8, groups], bytes_of(&zeros)),
            ("weight_scale", "F16", [outputs, groups], halves(&scales)),
        ]),
    };
    let x: Vec<f64> = (0..rows * inputs)
        .map(|i| ((i * 37 % 129) as f64 - 64.0) / 64.0)
        .collect();
    let mut want = Vec::with_capacity(rows * outputs);
    let row = |n: usize| -> Vec<f64> {
        let value = |k: usize| {
            let g = group_of(k);
            (f64::from(number(n, k)) - f64::from(zero(n, g))) * scale(n, g)
        };
        (0..inputs).map(value).collect()
    };
    let weight: Vec<Vec<f64>> = (0..outputs).map(row).collect();
    for x in x.chunks(inputs) {
        want.extend(weight.iter().map(|w| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>()));
    }
    let params = Params::new(weights).dtype(DType::F16);
    let linear = Linear::load_no_bias(&params, inputs, outputs).unwrap_or_else(|e| panic!("{e}"));
    let graph = linear
        .forward(&Tensor::input(
            "x",
            DType::F16,
            frontend::shape![rows as i64, inputs as i64],
        ))
        .graph()
        .expect("a graph");
    let x = HostTensor::from_f64(DType::F16, [rows, inputs], &x).expect("as many");
    Case {
        graph,
        inputs: Tensors::from([("x".to_owned(), x)]),
        want,
        bytes: inputs * outputs / 2 + groups * outputs * 2 + groups * outputs / 2,
    }
}

/// The largest difference over the largest number.
fn error(got: &HostTensor, want: &[f64]) -> f64 {
    let largest = want.iter().fold(0f64, |m, v| m.max(v.abs()));
    let differences = got.to_f64().into_iter().zip(want).map(|(g, w)| (g - w).abs());
    differences.fold(
        0.0,
        |worst: f64, d| if d.is_nan() { f64::INFINITY } else { worst.max(d) },
    ) / largest
}

fn launches(plan: &Plan) -> usize {
    let is_launch = |work: &Work| matches!(work, Work::Launch { .. });
    plan.steps.values().filter(|s| is_launch(&s.work)).count()
}

const LAYOUTS: [Layout; 4] = [Layout::Gptq, Layout::ActOrder, Layout::Awq, Layout::Compressed];

#[test]
fn layers_on_the_cpu() {
    for layout in LAYOUTS {
        for rows in [1, 5] {
            let case = case(layout, rows, 512, 264);
            let got = compile_cpu(&case.graph, OptLevel::O2, None)
                .run(&case.inputs)
                .expect("it runs");
            let error = error(got.values().next().expect("one"), &case.want);
            assert!(error <= 1.5e-3, "{layout:?} {rows}: {error}");
        }
    }
}

fn layers(arch: &str, rows: usize) {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    for layout in LAYOUTS {
        let case = case(layout, rows, 1024, 256);
        let built = tools.build(&case.graph, arch, None);
        let plan = &built.program.variants[0].plan;
        // Inputs out of their order are gathered once, by a kernel of its own or where the product reads them.
        let gathers = usize::from(layout == Layout::ActOrder);
        assert!(
            launches(plan) <= 1 + gathers,
            "{arch} {layout:?}: {} launches",
            launches(plan)
        );
        let mut products = plan.kernels.values().filter_map(|kernel| match &kernel.body {
            Body::Contract(body) => Some((body, &kernel.mapping)),
            _ => None,
        });
        let (body, mapping) = products.next().expect("a product");
        assert!(body.rhs.unpacking().is_some(), "{arch} {layout:?}: it does not unpack");
        let expected = match rows {
            1 => matches!(mapping, Mapping::Gemv(_)),
            _ => matches!(mapping, Mapping::Matrix(_)),
        };
        assert!(expected, "{arch} {layout:?}: {mapping:?}");
        let bytes: usize = built.program.constants.values().map(|c| c.tensor.bytes.len()).sum();
        // The order is 8 bytes an input, or 4.
        let most = case.bytes + gathers * 1024 * 8;
        assert!(
            (case.bytes..=most).contains(&bytes),
            "{arch} {layout:?}: {bytes} bytes of {}",
            case.bytes
        );
        let outcome = tools.run(&built, &case.inputs, 1 << 26);
        tally.add(&format!("{arch} {layout:?}"), &outcome);
        let error = error(outcome.outputs.values().next().expect("one"), &case.want);
        assert!(error <= 1.5e-3, "{arch} {layout:?}: {error}");
    }
    tally.finish(arch, LAYOUTS.len());
}

#[test]
fn layers_of_one_row_on_gfx90a() {
    layers("gfx90a", 1);
}

#[test]
fn layers_of_many_rows_on_gfx1100() {
    layers("gfx1100", 48);
}
