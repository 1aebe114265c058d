//! Which scheme a layer has, and every way in which one is refused.

use std::path::Path;

use safetensors::Dtype;
use serde_json::{Value, json};

use crate::nn::{Conv2d, Conv2dConfig, Linear, NnError, Params};
use crate::weights::{CompressedTensors, QuantizationConfig, SchemeError, Strategy, Weights};
use ir::DType;

fn numbers(strategy: &str, dynamic: bool) -> Value {
    json!({"num_bits": 8, "type": "int", "strategy": strategy, "symmetric": true, "dynamic": dynamic})
}

fn group(targets: &[&str]) -> Value {
    json!({"targets": targets, "weights": numbers("channel", false), "input_activations": numbers("token", true)})
}

fn config(groups: Value, ignore: Value) -> QuantizationConfig {
    let said = json!({"quantization_config": {"config_groups": groups, "ignore": ignore, "format": "int-quantized"}});
    let parsed = QuantizationConfig::parse(Path::new("models/config.json"), said.to_string().as_bytes());
    parsed.unwrap().unwrap()
}

fn schemes(groups: Value, ignore: Value) -> CompressedTensors {
    CompressedTensors::clone(&config(groups, ignore).compressed.unwrap())
}

/// A layer of 3 outputs and 8 inputs under `a.q_proj`, without the tensors that are left out.
fn params(dtype: Dtype, scale: &[usize], left_out: &[&str], config: QuantizationConfig) -> Params {
    let bytes =
        |dtype: Dtype, count: usize| vec![if dtype == Dtype::F32 { 0x3f } else { 1u8 }; count * dtype.bitsize() / 8];
    let tensors = [
        ("a.q_proj.weight", dtype, vec![3, 8]),
        ("a.q_proj.weight_scale", Dtype::F32, scale.to_vec()),
    ];
    let stored: Vec<_> = tensors
        .into_iter()
        .filter(|(name, ..)| !left_out.contains(name))
        .map(|(name, dtype, dims)| {
            let count = dims.iter().product();
            (name, dtype, dims, bytes(dtype, count))
        })
        .collect();
    let views = stored.iter().map(|(name, dtype, dims, bytes)| {
        let view = safetensors::tensor::TensorView::new(*dtype, dims.clone(), bytes).unwrap();
        (*name, view)
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    let weights = Weights::from_bytes("models/model.safetensors", bytes.into()).unwrap();
    Params::new(weights).quantized_as(config).sub("a.q_proj")
}

#[test]
fn a_name_goes_before_a_pattern_and_a_pattern_before_a_class() {
    let mut of_pattern = group(&["re:.*_proj$", "re:nothing"]);
    of_pattern["input_activations"] = numbers("tensor", true);
    let mut of_name = group(&["a.k_proj"]);
    of_name["input_activations"] = Value::Null;
    let all = schemes(
        json!({"all": group(&["Linear"]), "some": of_pattern, "one": of_name}),
        json!(["lm_head", "re:.*router"]),
    );
    let of = |layer: &str| all.layer(layer, "Linear", "w").unwrap();
    let strategy = |layer: &str| of(layer).unwrap().inputs.map(|inputs| inputs.strategy);
    assert_eq!(strategy("a.fc"), Some(Strategy::Token));
    assert_eq!(strategy("a.q_proj"), Some(Strategy::Tensor));
    assert_eq!(strategy("a.k_proj"), None);
    // Patterns begin where names do, and need not end there.
    assert_eq!(strategy("b.nothing"), Some(Strategy::Token));
    assert_eq!(strategy("nothing.b"), Some(Strategy::Tensor));
    assert_eq!([of("lm_head"), of("mlp.router.fc")], [None, None]);
    assert_eq!(all.layer("a.fc", "Conv2d", "w"), Ok(None));
    let weights = of("a.fc").unwrap().weights.unwrap();
    assert_eq!((weights.dtype, weights.strategy), (DType::I8, Strategy::Channel));
}

/// Checks that an error names the tensor and the file, and says so.
#[track_caller]
fn refused(error: NnError, file: &str, says: &[&str]) {
    assert!(matches!(error, NnError::Scheme(_)), "{error:?}");
    let text = error.to_string();
    for part in [&[file, "\"a.q_proj.weight\""], says].concat() {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
}

#[test]
fn schemes_that_are_not_known_are_refused() {
    let place = "config_groups.g.";
    for (part, field, value, says) in [
        (
            "input_activations",
            "strategy",
            json!("group"),
            ["input_activations.strategy is \"group\"", "\"token\" or \"tensor\""],
        ),
        (
            "input_activations",
            "num_bits",
            json!(3),
            ["input_activations.num_bits is 3", "8 is expected; quantise"],
        ),
        (
            "input_activations",
            "num_bits",
            json!("8"),
            ["input_activations.num_bits is \"8\"", "8 is expected"],
        ),
        (
            "input_activations",
            "type",
            json!("bool"),
            ["input_activations.type is \"bool\"", "\"int\" or \"float\""],
        ),
        (
            "input_activations",
            "dynamic",
            json!("local"),
            ["input_activations.dynamic is \"local\"", "true or false"],
        ),
        (
            "input_activations",
            "dynamic",
            json!(false),
            ["input_activations.strategy is \"token\"", "not dynamic"],
        ),
        (
            "input_activations",
            "symmetric",
            json!(1),
            ["input_activations.symmetric is 1", "true or false"],
        ),
        (
            "weights",
            "num_bits",
            json!(3),
            ["weights.num_bits is 3", "4 or 8 is expected; quantise"],
        ),
        (
            "weights",
            "strategy",
            json!("block"),
            ["weights.strategy is \"block\"", "\"channel\" or \"group\""],
        ),
        (
            "weights",
            "strategy",
            json!("group"),
            ["weights.group_size is null", "above 0"],
        ),
        (
            "weights",
            "dynamic",
            json!(true),
            ["weights.dynamic is true", "weights are not"],
        ),
    ] {
        let mut g = group(&["Linear"]);
        g[part][field] = value;
        let params = params(Dtype::I8, &[3, 1], &[], config(json!({"g": g}), Value::Null));
        let error = Linear::load_no_bias(&params, 8, 3).unwrap_err();
        refused(error, "models/config.json", &[place, says[0], says[1]]);
    }
    for (groups, ignore, says) in [
        (json!([1]), Value::Null, "config_groups is [1]; an object of groups"),
        (
            json!({"g": {"targets": "Linear"}}),
            Value::Null,
            "config_groups.g.targets is \"Linear\"; a list",
        ),
        (json!({"g": group(&["re:(?!a)"])}), Value::Null, "look-around"),
        (
            json!({"g": group(&["Linear"])}),
            json!([3]),
            "ignore is 3; a name, a class or a pattern",
        ),
    ] {
        let params = params(Dtype::I8, &[3, 1], &[], config(groups, ignore));
        let error = Linear::load_no_bias(&params, 8, 3).unwrap_err();
        refused(error, "models/config.json", &[says]);
    }
}

#[test]
fn what_is_stored_must_be_what_the_scheme_says() {
    let plain = || config(json!({"g": group(&["Linear", "Conv2d"])}), Value::Null);
    let load = |params: Params| Linear::load_no_bias(&params, 8, 3);
    assert!(load(params(Dtype::I8, &[3, 1], &[], plain())).is_ok());
    let scale = "a.q_proj.weight_scale";
    let file = "models/model.safetensors";
    let error = load(params(Dtype::I8, &[3, 1], &[scale], plain())).unwrap_err();
    refused(error, file, &["the scale is missing", scale, "`ignore`"]);
    for dtype in [Dtype::F32, Dtype::F8_E4M3] {
        let error = load(params(dtype, &[3, 1], &[], plain())).unwrap_err();
        refused(error, file, &["the stored type is", "i8 is expected"]);
    }
    // Where a layer is named under `ignore`, floats are what they are.
    let ignored = config(json!({"g": group(&["Linear"])}), json!(["a.q_proj"]));
    assert!(load(params(Dtype::F32, &[3, 1], &[scale], ignored)).is_ok());
    // Inputs that have one scale for all runs have it in the file.
    let mut g = group(&["Linear"]);
    g["input_activations"] = numbers("tensor", false);
    let error = load(params(Dtype::I8, &[3, 1], &[], config(json!({"g": g}), Value::Null))).unwrap_err();
    refused(
        error,
        file,
        &[
            "the scale of the input is missing",
            "a.q_proj.input_scale",
            "dynamic=true",
        ],
    );
    // Groups of three do not divide eight inputs, whatever the scales are; groups of four have two of them.
    for (size, scale, says) in [
        (3, [3, 2], "does not divide its 8 inputs"),
        (4, [3, 4], "2 groups of 4 inputs"),
    ] {
        let mut g = group(&["Linear"]);
        g["weights"]["strategy"] = json!("group");
        g["weights"]["group_size"] = json!(size);
        let grouped = || config(json!({"g": g.clone()}), Value::Null);
        refused(
            load(params(Dtype::I8, &scale, &[], grouped())).unwrap_err(),
            file,
            &[says],
        );
        if size == 4 {
            assert!(load(params(Dtype::I8, &[3, 2], &[], grouped())).is_ok());
        }
    }
    // A pixel is no token.
    let conv = params(Dtype::I8, &[3, 1], &[], plain());
    let error = Conv2d::load(&conv, &Conv2dConfig::new(8, 3, 1).no_bias()).unwrap_err();
    refused(
        error,
        "models/config.json",
        &["input_activations.strategy is \"token\"", "of a convolution"],
    );
    // Scales by blocks are not left out in silence.
    let view = |dims: &[usize], bytes: &'static [u8], dtype| {
        safetensors::tensor::TensorView::new(dtype, dims.to_vec(), bytes).unwrap()
    };
    let views = [
        ("weight", view(&[3, 8], &[1; 24], Dtype::F8_E4M3)),
        ("weight_scale_inv", view(&[1, 1], &[0; 4], Dtype::F32)),
    ];
    let bytes = safetensors::serialize(views, None).unwrap();
    let blocks = Params::new(Weights::from_bytes("m.safetensors", bytes.into()).unwrap());
    let error = Linear::load_no_bias(&blocks, 8, 3).unwrap_err().to_string();
    assert!(error.contains("scaled by blocks (weight_scale_inv)"), "{error}");
    // Random weights have no scheme.
    let random = Params::random(1).quantized_as(plain());
    assert!(Linear::load_no_bias(&random, 8, 3).is_ok());
}

#[test]
fn the_configuration_beside_the_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let view = safetensors::tensor::TensorView::new(Dtype::I8, vec![3, 8], &[1; 24]).unwrap();
    let bytes = safetensors::serialize([("q.weight", view)], None).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    // As it was once called.
    for key in ["quantization_config", "compression_config"] {
        let said = json!({key: {"config_groups": {"g": group(&["Linear"])}}});
        std::fs::write(folder.path().join("config.json"), said.to_string()).unwrap();
        let params = Params::new(Weights::open(folder.path()).unwrap()).sub("q");
        let error = Linear::load_no_bias(&params, 8, 3).unwrap_err();
        let expected = "\"q.weight_scale\" is expected; save the model again with its scales";
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn errors_are_one_line() {
    let all = schemes(json!({"g": group(&["re:(?<n>(?=x))"])}), Value::Null);
    let error: SchemeError = all.layer("x", "Linear", "x.weight").unwrap_err();
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
}
