//! Modules against plain loops and compositions; loading by name, and every way in which that fails.

use indexmap::IndexMap;
use ir::graph::eval::evaluate;
use ir::{DType, HostTensor};

use super::*;
use crate::shape;
use crate::tensor::{ConvOptions, PoolOptions};
use crate::weights::Weights;

fn values(t: &Tensor) -> Vec<f64> {
    let graph = t.graph().unwrap();
    evaluate(&graph, &IndexMap::new()).unwrap()["output"].to_f64()
}

fn noise(dims: &[usize]) -> Tensor {
    let v: Vec<f32> = crate::onnx::randomize::uniform("x", 1, dims.iter().product(), -1.0, 1.0).collect();
    Tensor::from_slice(&v, dims)
}

#[track_caller]
fn near(got: &Tensor, want: &Tensor) {
    assert_eq!(got.ty(), want.ty());
    for (g, w) in values(got).iter().zip(values(want)) {
        assert!((g - w).abs() < 1e-5, "{g} is not {w}");
    }
}

/// A safetensors file of `f32` tensors in memory.
fn file(tensors: &[(&str, Vec<usize>)]) -> Weights {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(name, dims)| {
            let n = dims.iter().product();
            crate::onnx::randomize::uniform(name, 5, n, -1.0, 1.0)
                .flat_map(f32::to_le_bytes)
                .collect()
        })
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, dims), bytes)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, dims.clone(), bytes).unwrap();
        (*name, view)
    });
    let all = safetensors::serialize(views, None).unwrap();
    Weights::from_bytes("test.safetensors", all.into()).unwrap()
}

/// A weight of three rows in 8-bit floats as compressed-tensors writes it; `scales` and `input` are what is beside it.
fn in_8_bits(scales: &[f32], input: Option<f32>) -> Weights {
    use safetensors::Dtype::{F8_E4M3, F32};
    let bytes: Vec<u8> = (0..12u8).map(|i| 0x30 + i * 3 + (i % 2) * 0x80).collect();
    let floats = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let mut tensors = vec![
        ("weight", F8_E4M3, vec![3, 4], bytes),
        ("weight_scale", F32, vec![scales.len(), 1], floats(scales)),
    ];
    tensors.extend(input.map(|scale| ("input_scale", F32, vec![1], floats(&[scale]))));
    let views = tensors.iter().map(|(name, dtype, dims, bytes)| {
        let view = safetensors::tensor::TensorView::new(*dtype, dims.clone(), bytes).unwrap();
        (*name, view)
    });
    Weights::from_bytes("test.safetensors", safetensors::serialize(views, None).unwrap().into()).unwrap()
}

#[test]
fn linear_keeps_8_bit_floats_as_they_are_stored() {
    let x = noise(&[2, 4]);
    for (scales, input) in [
        (&[0.5f32, 2.0, 0.25][..], None),
        (&[0.5], Some(0.01)),
        (&[0.5, 2.0, 0.25], Some(0.01)),
    ] {
        let weights = in_8_bits(scales, input);
        let numbers = weights.get("weight").unwrap().to_host().unwrap().to_f64();
        let linear = Linear::load_no_bias(&Params::new(weights), 4, 3).unwrap();
        let y = linear.forward(&x);
        let constants = y.graph().unwrap();
        let stored = constants
            .constants()
            .values()
            .find(|c| c.tensor.dtype == DType::F8E4M3FN);
        assert_eq!(stored.map(|c| c.tensor.bytes.len()), Some(12));
        let given: Vec<f64> = values(&x)
            .iter()
            .map(|v| match input {
                Some(scale) => ir::convert::round_to(DType::F8E4M3FN, v / f64::from(scale)) * f64::from(scale),
                None => *v,
            })
            .collect();
        for (i, got) in values(&y).iter().enumerate() {
            let (row, col) = (i / 3, i % 3);
            let scale = f64::from(scales[if scales.len() == 1 { 0 } else { col }]);
            let want: f64 = (0..4).map(|k| given[row * 4 + k] * numbers[col * 4 + k] * scale).sum();
            assert!((got - want).abs() < 1e-5, "{got} is not {want}");
        }
    }
    for (scales, says) in [
        (&[0.5f32, 0.0, 1.0][..], "a scale of 0, which"),
        (&[f32::NAN], "a scale of NaN"),
        (&[1.0, 1.0], "asks for [3, 1]"),
    ] {
        let error = Linear::load_no_bias(&Params::new(in_8_bits(scales, None)), 4, 3).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    let error = Linear::load_no_bias(&Params::new(in_8_bits(&[1.0], Some(-1.0))), 4, 3).unwrap_err();
    assert!(
        error.to_string().contains("\"input_scale\" has a scale of -1"),
        "{error}"
    );
}

#[test]
fn linear_loads_by_name_and_names_its_constants() {
    let weights = file(&[("head.weight", vec![3, 4]), ("head.bias", vec![3])]);
    let (w, b) = (
        weights.get("head.weight").unwrap().to_host().unwrap().to_f64(),
        weights.get("head.bias").unwrap().to_host().unwrap().to_f64(),
    );
    let linear = Linear::load(&Params::new(weights).sub("head"), 4, 3).unwrap();
    let x = noise(&[2, 4]);
    let y = linear.forward(&x);
    let (got, x) = (values(&y), values(&x));
    for (i, got) in got.iter().enumerate() {
        let (row, o) = (i / 3, i % 3);
        let want: f64 = b[o] + (0..4).map(|k| x[row * 4 + k] * w[o * 4 + k]).sum::<f64>();
        assert!((got - want).abs() < 1e-6);
    }
    let graph = y.graph().unwrap();
    let names: Vec<_> = graph.constants().values().filter_map(|c| c.name.clone()).collect();
    assert_eq!(names, ["head.weight", "head.bias"]);
}

#[test]
fn a_wrong_file_is_refused_by_name() {
    let params = Params::new(file(&[("head.weight", vec![3, 4]), ("head.bais", vec![3])])).sub("head");
    let error = Linear::load(&params, 5, 3).unwrap_err();
    assert!(
        matches!(&error, NnError::Shape { name, wanted, found }
        if name == "head.weight" && wanted == &[3, 5] && found == &[3, 4]),
        "{error}"
    );
    let error = Linear::load(&params, 4, 3).unwrap_err().to_string();
    assert!(
        error.contains("\"head.bias\"") && error.contains("\"head.bais\""),
        "{error}"
    );
    let heads = AttentionConfig::new(8, 4).kv_heads(3);
    assert!(matches!(
        MultiHeadAttention::load(&Params::random(0), heads),
        Err(NnError::Config { .. })
    ));
    let groups = Conv2dConfig::new(3, 4, 3).options(ConvOptions::default().groups(2));
    assert!(matches!(
        Conv2d::load(&Params::random(0), &groups),
        Err(NnError::Config { .. })
    ));
}

#[test]
fn errors_in_forward_name_the_module_and_the_line() {
    let linear = Linear::load(&Params::random(0).sub("encoder").sub(3), 4, 3).unwrap();
    let line = line!() + 1;
    let error = linear.forward(&noise(&[2, 5])).relu().check().unwrap_err().to_string();
    assert!(
        error.contains("\"encoder.3\"") && error.contains(&format!("tests.rs:{line}")),
        "{error}"
    );
    let before = Tensor::zeros(DType::F32, shape![2]) + Tensor::zeros(DType::F32, shape![3]);
    assert!(
        !linear
            .forward(&before)
            .check()
            .unwrap_err()
            .to_string()
            .contains("encoder")
    );
}

#[test]
fn norms_and_convolutions_follow_their_formulas() {
    let params = Params::random(3);
    let x = noise(&[2, 4, 3, 3]);
    let bn = BatchNorm2d::load(&params.sub("bn"), 4).unwrap();
    let wide = |t: &Tensor| t.reshape(shape![4, 1, 1]);
    let want = (&x - wide(&bn.mean)) / (wide(&bn.variance) + bn.epsilon).sqrt() * wide(&bn.scale) + wide(&bn.bias);
    near(&bn.forward(&x), &want);
    let conv = Conv2d::load(&params.sub("conv"), &Conv2dConfig::new(4, 6, 1).no_bias()).unwrap();
    let want = conv
        .weight
        .reshape(shape![6, 4])
        .matmul(&x.flatten(2, 3))
        .reshape(shape![2, 6, 3, 3]);
    near(&conv.forward(&x), &want);
    let row = noise(&[2, 5]);
    let ln = LayerNorm::load(&params.sub("ln"), 5, 1e-12).unwrap();
    let centered = &row - row.mean_keep(-1);
    let want = &centered / (centered.square().mean_keep(-1) + 1e-12).sqrt() * &ln.scale + ln.bias.clone().unwrap();
    near(&ln.forward(&row), &want);
    let rms = RmsNorm::load(&params.sub("rms"), 5, 1e-6).unwrap();
    near(
        &rms.forward(&row),
        &(&row / (row.square().mean_keep(-1) + 1e-6).sqrt() * &rms.scale),
    );
    let gn = GroupNorm::load(&params.sub("gn"), 2, 4).unwrap();
    let groups = x.reshape(shape![2, 2, -1]);
    let centered = &groups - groups.mean_keep(-1);
    let normal = (&centered / (centered.square().mean_keep(-1) + 1e-5).sqrt()).reshape(x.shape().clone());
    near(&gn.forward(&x), &(normal * wide(&gn.scale) + wide(&gn.bias)));
}

#[test]
fn attention_agrees_with_one_head_after_the_other() {
    for kv_heads in [4, 2, 1] {
        let config = AttentionConfig::new(8, 4).kv_heads(kv_heads).causal();
        let mha = MultiHeadAttention::load(&Params::random(9).sub("attn"), config).unwrap();
        let x = noise(&[2, 3, 8]);
        let (q, k, v) = (mha.query.forward(&x), mha.key.forward(&x), mha.value.forward(&x));
        let visible = Tensor::ones(DType::F32, shape![3, 3]).tril(0).gt(0);
        let heads: Vec<Tensor> = (0..4)
            .map(|h| {
                let shared = (h * kv_heads as i64 / 4) * 2;
                let (q, k, v) = (q.narrow(2, h * 2, 2), k.narrow(2, shared, 2), v.narrow(2, shared, 2));
                let scores = q.matmul(&k.t()) / 2f64.sqrt();
                visible.select(&scores, f64::NEG_INFINITY).softmax(-1).matmul(&v)
            })
            .collect();
        let joined = crate::tensor::cat(&heads.iter().collect::<Vec<_>>(), 2);
        near(&mha.forward(&x), &mha.output.forward(&joined));
    }
}

#[test]
fn modules_compose() {
    let params = Params::random(1);
    let model = Sequential::new()
        .then(Conv2d::load(&params.sub("c"), &Conv2dConfig::new(1, 2, 3)).unwrap())
        .then(Activation::Relu)
        .then(MaxPool2d(PoolOptions::new(2)))
        .then(Residual(|x: &Tensor| x * 2.0))
        .then(Dropout)
        .then(|x: &Tensor| x.flatten(1, 3))
        .then(Linear::load(&params.sub("l"), 8, 3).unwrap())
        .then(Activation::Softmax);
    assert_eq!(model.len(), 8);
    let y = model.forward(&noise(&[2, 1, 6, 6]));
    let rows = values(&y.sum(-1));
    assert!(rows.len() == 2 && rows.iter().all(|s| (s - 1.0).abs() < 1e-5));
    let ids = Tensor::from_slice(&[1i64, 0], [2]);
    let table = Embedding::load(&params.sub("e"), 3, 4).unwrap();
    near(
        &table.forward(&ids),
        &crate::tensor::stack(&[&table.weight.at(0, 1), &table.weight.at(0, 0)], 0),
    );
}

#[test]
fn weights_may_be_converted_and_random_ones_depend_on_the_name() {
    let params = Params::random(1);
    let get = |p: &Params, n: &str| p.tensor(n, &[4], Init::Fan).unwrap();
    assert_eq!(values(&get(&params, "a")), values(&get(&params, "a")));
    assert_ne!(values(&get(&params, "a")), values(&get(&params, "b")));
    assert_eq!(get(&params.clone().dtype(DType::F16), "a").dtype(), DType::F16);
    let ints = Tensor::from_host(HostTensor::from_i64(DType::I64, [1], &[1]).unwrap());
    assert!(Activation::Gelu.forward(&ints).is_poisoned());
}

/// PyTorch's steps, of a layer without directions: `[T, B, I]` to `[T, B, H]`.
fn steps(params: &Params, x: &Tensor, layer: usize, suffix: &str, lstm: bool) -> Tensor {
    let (steps, inputs, hidden) = (x.size(0).unwrap(), x.size(2).unwrap() as usize, 3);
    let rows = if lstm { 4 } else { 3 } * hidden;
    let weight = |kind: &str, shape: &[usize]| {
        let name = format!("{kind}_l{layer}{suffix}");
        params.tensor(&name, shape, Init::Uniform(-0.1, 0.1)).unwrap()
    };
    let (w, r) = (
        weight("weight_ih", &[rows, inputs]),
        weight("weight_hh", &[rows, hidden]),
    );
    let (wb, rb) = (weight("bias_ih", &[rows]), weight("bias_hh", &[rows]));
    let mut h = Tensor::zeros(DType::F32, [x.size(1).unwrap(), hidden as i64]);
    let mut c = h.clone();
    let mut all = Vec::new();
    for at in 0..steps {
        let t = if suffix.is_empty() { at } else { steps - 1 - at };
        let own = x.at(0, t).linear(&w, Some(&wb));
        let state = h.linear(&r, Some(&rb));
        if lstm {
            let [i, f, g, o] = (&own + &state).chunk(1);
            c = f.sigmoid() * &c + i.sigmoid() * g.tanh();
            h = o.sigmoid() * c.tanh();
        } else {
            let ([r, z, n], [hr, hz, hn]) = (own.chunk(1), state.chunk(1));
            let (r, z) = ((r + hr).sigmoid(), (z + hz).sigmoid());
            let n = (n + r * hn).tanh();
            h = &n + z * (&h - &n);
        }
        all.push(h.clone());
    }
    if !suffix.is_empty() {
        all.reverse();
    }
    crate::tensor::stack(&all.iter().collect::<Vec<_>>(), 0)
}

#[test]
fn recurrent_layers_are_pytorchs_steps() {
    let config = RecurrentConfig {
        inputs: 4,
        hidden: 3,
        layers: 2,
        bidirectional: true,
        batch_first: false,
    };
    let x = noise(&[5, 2, 4]);
    for lstm in [true, false] {
        let params = Params::random(3);
        let mut want = x.clone();
        for layer in 0..2 {
            let both = ["", "_reverse"].map(|suffix| steps(&params, &want, layer, suffix, lstm));
            want = crate::tensor::cat(&[&both[0], &both[1]], 2);
        }
        let forward = |config| match lstm {
            true => Lstm::load(&params, config).unwrap().forward(&if_first(&x, config)),
            false => Gru::load(&params, config).unwrap().forward(&if_first(&x, config)),
        };
        near(&forward(config), &want);
        let first = RecurrentConfig {
            batch_first: true,
            ..config
        };
        near(&forward(first), &want.transpose(0, 1));
    }
}

fn if_first(x: &Tensor, config: RecurrentConfig) -> Tensor {
    if config.batch_first {
        x.transpose(0, 1)
    } else {
        x.clone()
    }
}
