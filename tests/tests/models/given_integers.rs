//! Products of quantised tensors of which the run gives more than the left operand's numbers: both operands, or the
//! zero point of a padded image. They are integer products on the CPU, by the name of the engine, and equal to integer
//! arithmetic.

use graphc::runtime::ProfileOptions;
use graphc_tests::quantised::Random;
use graphc_tests::reference::{Tensors, compile_cpu};
use ir::graph::eval::evaluate;
use ir::graph::parse::parse;
use ir::{DType, HostTensor};
use passes::OptLevel;

fn tensor(dtype: DType, shape: &[usize], values: impl Iterator<Item = f64>) -> HostTensor {
    let values: Vec<f64> = values.collect();
    HostTensor::from_f64(dtype, shape.to_vec(), &values).expect("as many as the shape says")
}

fn bytes(random: &mut Random, dtype: DType, shape: &[usize]) -> HostTensor {
    let (low, _) = dtype.int_range().expect("an integer type");
    let values: Vec<f64> = (0..shape.iter().product())
        .map(|_| (low + random.below(256) as i64) as f64)
        .collect();
    tensor(dtype, shape, values.into_iter())
}

/// Runs a graph on the CPU: its result is the evaluator's, and `products` of its steps are integer products and no
/// loops.
fn check(text: &str, inputs: &Tensors, products: usize) {
    let graph = parse(text).unwrap_or_else(|e| panic!("{text}\n{e:?}"));
    let want = evaluate(&graph, inputs).expect("it evaluates");
    let executable = compile_cpu(&graph, OptLevel::O2, None);
    let got = executable.run(inputs).expect("it runs");
    assert_eq!(got["y"].to_f64(), want["y"].to_f64(), "{text}");
    let profile = executable
        .profile(inputs, &ProfileOptions { runs: 1, warm_up: 0 })
        .expect("it runs");
    let engines: Vec<(&str, &str)> = (profile.steps.iter())
        .map(|s| (s.name.as_str(), s.engine.as_str()))
        .collect();
    let integers = engines.iter().filter(|(_, engine)| engine.ends_with("integers"));
    assert!(integers.count() >= products, "{text}\n{engines:?}");
}

#[test]
fn both_operands_are_given() {
    let mut random = Random(5);
    for (batch, m, k, n) in [(1, 1, 1, 1), (3, 17, 35, 33), (2, 40, 64, 70), (4, 5, 130, 31)] {
        for (left, right, x_zero, y_zero) in [
            (DType::U8, DType::U8, 0, 255),
            (DType::U8, DType::I8, 131, -128),
            (DType::I8, DType::U8, 127, 128),
            (DType::I8, DType::I8, 0, 0),
        ] {
            for (turned, rhs) in [(false, [batch, k, n]), (true, [batch, n, k])] {
                let (transposed, [b, r, c]) = (if turned { "transpose_rhs, " } else { "" }, rhs);
                let text = format!(
                    "graph @both stage=import {{
  x = input \"x\" : {left}[{batch}, {m}, {k}]
  w = input \"w\" : {right}[{b}, {r}, {c}]
  xz = constant [{x_zero}] : {left}[1, 1, 1]
  wz = constant [{y_zero}] : {right}[1, 1, 1]
  s = constant [0.125] : f32[1, 1, 1]
  xd = dequantize x, s, xz {{out=f32}}
  wd = dequantize w, s, wz {{out=f32}}
  p = contract xd, wd {{{transposed}out=f32}}
  o = constant [64.0] : f32[1, 1, 1]
  oz = constant [9] : u8[1, 1, 1]
  y = quantize p, o, oz {{out=u8}}
  return y as \"y\"
}}
"
                );
                let inputs = Tensors::from([
                    ("x".to_owned(), bytes(&mut random, left, &[batch, m, k])),
                    ("w".to_owned(), bytes(&mut random, right, &rhs)),
                ]);
                check(&text, &inputs, 1);
            }
        }
    }
}

/// The depth may be open, as it is where attention's weights multiply values: of numbers up to a limit, of integers
/// without one.
#[test]
fn depths_are_open() {
    let mut random = Random(23);
    let symbols = ["  symbol k: 1..64 hint 8\n", "  symbol k: 1.. hint 8\n"];
    for (batch, m, n) in [(1, 1, 1), (3, 17, 33), (4, 24, 16)] {
        for (left, right, x_zero, y_zero) in [
            (DType::U8, DType::U8, 0, 131),
            (DType::U8, DType::I8, 131, -128),
            (DType::I8, DType::U8, -128, 7),
            (DType::I8, DType::I8, 0, 0),
            (DType::I8, DType::I8, 3, 0),
        ] {
            for (turned, shape) in [(false, "k, N"), (true, "N, k")] {
                for numbers in [true, false] {
                    let transposed = if turned { "transpose_rhs, " } else { "" };
                    let shape = shape.replace('N', &n.to_string());
                    let product = match numbers {
                        true => format!(
                            "  xd = dequantize x, s, xz {{out=f32}}
  wd = dequantize w, s, wz {{out=f32}}
  p = contract xd, wd {{{transposed}out=f32}}
"
                        ),
                        false => format!(
                            "  xi = cast x {{to=i32}}
  wi = cast w {{to=i32}}
  xzi = cast xz {{to=i32}}
  wzi = cast wz {{to=i32}}
  xd = sub xi, xzi
  wd = sub wi, wzi
  i = contract xd, wd {{{transposed}out=i32}}
  pf = cast i {{to=f32}}
  p = mul pf, s
"
                        ),
                    };
                    let text = format!(
                        "graph @open stage=import {{
{}  x = input \"x\" : {left}[{batch}, {m}, k]
  w = input \"w\" : {right}[{batch}, {shape}]
  xz = constant [{x_zero}] : {left}[1, 1, 1]
  wz = constant [{y_zero}] : {right}[1, 1, 1]
  s = constant [0.125] : f32[1, 1, 1]
{product}  o = constant [64.0] : f32[1, 1, 1]
  oz = constant [9] : u8[1, 1, 1]
  y = quantize p, o, oz {{out=u8}}
  return y as \"y\"
}}
",
                        symbols[usize::from(!numbers)],
                    );
                    for k in [1usize, 2, 24, 35, 64] {
                        let rhs = if turned { [batch, n, k] } else { [batch, k, n] };
                        let inputs = Tensors::from([
                            ("x".to_owned(), bytes(&mut random, left, &[batch, m, k])),
                            ("w".to_owned(), bytes(&mut random, right, &rhs)),
                        ]);
                        check(&text, &inputs, 1);
                    }
                }
            }
        }
    }
}

/// Sums of integers that leave 32 bits wrap, also those for zero points.
#[test]
fn sums_of_integers_wrap() {
    let text = "graph @wraps stage=import {
  symbol k: 1.. hint 8
  x = input \"x\" : u8[1, 2, k]
  w = input \"w\" : u8[1, k, 3]
  z = constant [-900000] : i32[1, 1, 1]
  v = constant [700000] : i32[1, 1, 1]
  xi = cast x {to=i32}
  wi = cast w {to=i32}
  xd = sub xi, z
  wd = sub wi, v
  y = contract xd, wd {out=i32}
  return y as \"y\"
}
";
    let mut random = Random(29);
    for k in [1usize, 7, 300] {
        let inputs = Tensors::from([
            ("x".to_owned(), bytes(&mut random, DType::U8, &[1, 2, k])),
            ("w".to_owned(), bytes(&mut random, DType::U8, &[1, k, 3])),
        ]);
        check(text, &inputs, 1);
    }
}

#[test]
fn the_zero_point_of_a_padded_image_is_given() {
    let mut random = Random(11);
    for (channels, filters, groups, kernel, stride) in [
        (3, 5, 1, 3, 1),
        (8, 33, 1, 3, 2),
        (12, 6, 3, 3, 1),
        (20, 20, 20, 3, 1),
        (7, 40, 1, 1, 1),
        (4, 8, 2, 5, 1),
    ] {
        for zero in [0, 131, 255] {
            let pad = kernel / 2;
            let weights = bytes(&mut random, DType::U8, &[filters * channels / groups * kernel * kernel]);
            let weights: Vec<String> = weights.to_f64().iter().map(|v| format!("{v}")).collect();
            let text = format!(
                "graph @given stage=import {{
  x = input \"x\" : f32[1, {channels}, 9, 7]
  s = input \"s\" : f32[1, 1, 1, 1]
  z = input \"z\" : u8[1, 1, 1, 1]
  q = quantize x, s, z {{out=u8}}
  qi = cast q {{to=i32}}
  zi = cast z {{to=i32}}
  d = sub qi, zi
  w = constant [{}] : u8[{filters}, {}, {kernel}, {kernel}]
  wi = cast w {{to=i32}}
  wz = constant [117] : i32[1, 1, 1, 1]
  wd = sub wi, wz
  c = conv d, wd {{pad_low=[{pad}, {pad}], pad_high=[{pad}, {pad}], strides=[{stride}, {stride}], groups={groups}, out=i32}}
  f = cast c {{to=f32}}
  g = mul f, s
  y = relu g
  return y as \"y\"
}}
",
                weights.join(", "),
                channels / groups,
            );
            let image: Vec<f64> = (0..channels * 63)
                .map(|_| random.below(512) as f64 / 8.0 - 32.0)
                .collect();
            let inputs = Tensors::from([
                (
                    "x".to_owned(),
                    tensor(DType::F32, &[1, channels, 9, 7], image.into_iter()),
                ),
                ("s".to_owned(), tensor(DType::F32, &[1, 1, 1, 1], [0.25].into_iter())),
                (
                    "z".to_owned(),
                    tensor(DType::U8, &[1, 1, 1, 1], [f64::from(zero)].into_iter()),
                ),
            ]);
            check(&text, &inputs, 1);
        }
    }
}
