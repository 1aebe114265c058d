//! Rules on the numbers that tell them apart from what they replace: the ends of the integer types, zeros with a sign,
//! infinities, numbers that a half type does not hold. Every bit must agree, at every level.

use indexmap::IndexMap;
use ir::graph::eval::evaluate;
use ir::{DType, Graph, HostTensor};

use crate::testing::graph;
use crate::{OptLevel, OptimizeOptions, OptimizeReport, optimize};

/// Optimises at every level and compares all outputs bit for bit; NaN equals NaN. Returns the last level's.
fn same(body: &str, inputs: &[(&str, &[f64])]) -> (Graph, OptimizeReport) {
    let before = graph(body);
    let numbers: IndexMap<&str, &[f64]> = inputs.iter().copied().collect();
    let inputs: IndexMap<String, HostTensor> = before
        .inputs()
        .iter()
        .map(|input| {
            let ty = before.ty(input.node.into());
            let shape: Vec<usize> = ty.shape.as_consts().unwrap().iter().map(|d| *d as usize).collect();
            let tensor = HostTensor::from_f64(ty.dtype, shape, numbers[input.name.as_str()]).unwrap();
            (input.name.clone(), tensor)
        })
        .collect();
    let want = evaluate(&before, &inputs).unwrap();
    let mut last = None;
    for level in [OptLevel::O0, OptLevel::O1, OptLevel::O3, OptLevel::O2] {
        let options = OptimizeOptions {
            verify: true,
            ..OptimizeOptions::at(level)
        };
        let (after, report) = optimize(before.clone(), &"cpu".parse().unwrap(), &options).unwrap();
        let got = evaluate(&after, &inputs).unwrap();
        for (name, want) in &want {
            let bits = |t: &HostTensor| -> Vec<u64> {
                let key = |v: f64| if v.is_nan() { u64::MAX } else { v.to_bits() };
                t.to_f64().into_iter().map(key).collect()
            };
            let (a, b) = (got[name].to_f64(), want.to_f64());
            assert_eq!(got[name].dtype, want.dtype, "{name} at {level:?}");
            assert_eq!(
                bits(&got[name]),
                bits(want),
                "{name} at {level:?}: {a:?}, not {b:?}\n{body}\n{after}"
            );
        }
        last = Some((after, report));
    }
    last.unwrap()
}

#[test]
fn a_float_between_two_integers_saturates() {
    for (from, to, numbers) in [
        ("i8", "u8", [-5.0, 127.0, -128.0]),
        ("i16", "i8", [300.0, -300.0, 7.0]),
        ("u8", "i8", [200.0, 255.0, 3.0]),
        ("i16", "u4", [300.0, -1.0, 15.0]),
    ] {
        for middle in ["f32", "f64"] {
            let body = format!(
                "x = input \"x\" : {from}[3]\na = cast x : {middle}[3]\ny = cast a : {to}[3]\nreturn y as \"y\""
            );
            let (_, report) = same(&body, &[("x", &numbers)]);
            assert_eq!(report.count("cast_of_exact_cast"), 0, "{body}");
        }
    }
    // A type that holds all of the first's: nothing to saturate.
    for (from, to) in [
        ("i8", "i16"),
        ("u8", "i32"),
        ("i16", "i16"),
        ("bool", "u4"),
        ("i8", "f64"),
    ] {
        let body = format!("x = input \"x\" : {from}[3]\na = cast x : f32[3]\ny = cast a : {to}[3]\nreturn y as \"y\"");
        let (_, report) = same(&body, &[("x", &[1.0, 0.0, 100.0])]);
        assert_eq!(report.count("cast_of_exact_cast"), 1, "{body}");
    }
}

#[test]
fn means_of_integers_truncate_each() {
    let body = |dtype: &str, op: &str| {
        format!(
            "x = input \"x\" : {dtype}[2, 2]\na = reduce x {{op={op}, axes=[1]}}\ny = reduce a {{op={op}, axes=[0]}}\nreturn y as \"y\""
        )
    };
    let numbers: &[(&str, &[f64])] = &[("x", &[1.0, 2.0, 101.0, 102.0])];
    for dtype in ["i8", "i16", "u8", "i64"] {
        let (_, report) = same(&body(dtype, "mean"), numbers);
        assert_eq!(report.count("reduce_of_reduce"), 0, "{dtype}");
        // Wrapping once or twice is the same.
        for op in ["sum", "prod", "max", "min"] {
            let (_, report) = same(&body(dtype, op), numbers);
            assert_eq!(report.count("reduce_of_reduce"), 1, "{dtype} {op}");
        }
    }
    let (_, report) = same(&body("f32", "mean"), numbers);
    assert_eq!(report.count("reduce_of_reduce"), 1);
}

#[test]
fn positions_wrap_in_their_type() {
    let bodies = [
        // 200 + 100 in eight bits.
        "a = constant splat(200) : u8[4]\nb = constant splat(100) : u8[4]\ny = add a, b\nreturn y as \"y\"",
        "a = constant 4294967296 : i64[]\nb = broadcast a : i64[3]\ny = cast b : i32[3]\nreturn y as \"y\"",
        "a = iota {axis=0} : u8[300]\nb = cast a : i64[300]\ny = neg b\nreturn y as \"y\"",
        // 299 is 43, so the comparison does not hold everywhere.
        "a = iota {axis=0} : u8[300]\nt = constant 255 : u8[]\ny = gt a, t\nz = constant 200 : u8[]\nw = ge a, z\nreturn y as \"y\"\nreturn w as \"w\"",
        "a = iota {axis=0} : i16[3]\nk = constant 20000 : i16[]\nb = mul a, k\nc = constant 0 : i16[]\ny = ge b, c\nreturn y as \"y\"",
        "a = constant -128 : i8[]\nb = broadcast a : i8[2]\nn = neg b\nc = constant 0 : i8[]\ny = lt n, c\nreturn n as \"n\"\nreturn y as \"y\"",
        // Where 64 bits end, too.
        "a = iota {axis=0} : i64[3]\nk = constant 4611686018427387904 : i64[]\nb = mul a, k\nc = constant 0 : i64[]\ny = ge b, c\nreturn y as \"y\"",
        "a = constant [-9223372036854775808, 9223372036854775807] : i64[2]\nc = constant 0 : i64[]\ny = ge a, c\nz = add a, c\nreturn y as \"y\"\nreturn z as \"z\"",
        "a = iota {axis=0} : i64[4]\nk = constant 2 : i64[]\nb = sub a, k\nc = cast b : u8[4]\ny = cast c : i64[4]\nreturn y as \"y\"",
    ];
    for body in bodies {
        same(body, &[]);
    }
    // A table read at positions that wrap.
    let body = "t = input \"t\" : f32[300]\na = iota {axis=0} : u8[300]\ny = take t, a {axis=0}\nreturn y as \"y\"";
    let table: Vec<f64> = (0..300).map(f64::from).collect();
    same(body, &[("t", &table)]);
    // What fits is still seen.
    let body = "t = input \"t\" : f32[300]\na = iota {axis=0} : u8[200]\nb = cast a : i32[200]\ny = take t, b {axis=0}\nreturn y as \"y\"";
    let (_, report) = same(body, &[("t", &table)]);
    assert_eq!(report.count("gather_by_position"), 1);
}

#[test]
fn known_numbers_are_cast_as_casts_do() {
    let body = |c: &str, from: &str, to: &str| {
        format!(
            "x = input \"x\" : {to}[3]\nc = constant {c} : {from}[]\nk = cast c : {to}[]\ny = add x, k\nz = mul x, k\nreturn y as \"y\"\nreturn z as \"z\""
        )
    };
    for (c, from, to) in [
        ("-3", "i64", "u8"),
        ("257", "i64", "u8"),
        ("300", "i32", "i8"),
        ("256", "i16", "u8"),
        ("65536", "i64", "i16"),
        ("-7.5", "f32", "u8"),
        ("1e30", "f32", "i16"),
    ] {
        same(&body(c, from, to), &[("x", &[0.0, 5.0, 100.0])]);
    }
}

/// But for the two rules that the page of `simplify` names.
#[test]
fn zeros_keep_their_signs() {
    let body = |op: &str, c: &str| {
        format!("x = input \"x\" : f32[4]\nc = constant {c} : f32[]\na = {op} x, c\ny = recip a\nreturn y as \"y\"")
    };
    let numbers = [-0.0, 0.0, 1.0, -2.0];
    for (op, c) in [
        ("add", "-0.0"),
        ("sub", "0.0"),
        ("mul", "1.0"),
        ("div", "1.0"),
        ("pow", "1.0"),
    ] {
        let (_, report) = same(&body(op, c), &[("x", &numbers)]);
        assert_eq!(report.count("identity_element"), 1, "{op} {c}");
    }
    for (op, c, rule) in [
        ("add", "0.0", "identity_element"),
        ("sub", "-0.0", "identity_element"),
        ("max", "0.0", "max_with_zero"),
    ] {
        // The sign that is lost is that of the first number, and nothing else.
        let (_, report) = same(&body(op, c), &[("x", &[0.0, f64::INFINITY, 1.0, -2.0])]);
        assert_eq!(report.count(rule), 1, "{op} {c}");
        let mut exact = OptimizeOptions::default();
        exact.disable.insert(rule.to_owned());
        let x = HostTensor::from_f64(DType::F32, [4], &numbers).unwrap();
        let inputs = IndexMap::from([("x".to_owned(), x)]);
        let before = graph(&body(op, c));
        let (after, _) = optimize(before.clone(), &"cpu".parse().unwrap(), &exact).unwrap();
        assert_eq!(
            evaluate(&after, &inputs).unwrap(),
            evaluate(&before, &inputs).unwrap(),
            "{op} {c}"
        );
    }
}

/// A quantised value is off by one where the last bit of the quotient decides a tie.
#[test]
fn division_stays_where_a_rounding_follows() {
    let rule = |c: &str, after: &str| {
        let body = format!(
            "x = input \"x\" : f32[4]\nc = constant {c} : f32[]\nd = div x, c\nz = constant 3.0 : f32[]\n{after}\n\
             return y as \"y\""
        );
        let (_, report) = optimize(graph(&body), &"cpu".parse().unwrap(), &OptimizeOptions::default()).unwrap();
        report.count("divide_by_constant")
    };
    for after in [
        "y = round d",
        "y = floor d",
        "y = cast d {to=u8}",
        "y = cast d {to=f8e4m3fn}",
        "r = reshape d : f32[2, 2]\na = add r, z\ny = round a",
        "m = max d, z\ny = cast m {to=i8}",
    ] {
        assert_eq!(rule("0.1", after), 0, "{after}");
        // The inverse of a power of two is exact.
        assert_eq!(rule("0.125", after), 1, "{after}");
    }
    for after in ["y = exp d", "e = erf d\ny = round e", "y = add d, z"] {
        assert_eq!(rule("0.1", after), 1, "{after}");
    }
}

#[test]
fn division_stays_where_the_inverse_is_not_normal() {
    let rule = |dtype: &str, c: &str, compute: Option<DType>| {
        let body =
            format!("x = input \"x\" : {dtype}[4]\nc = constant {c} : {dtype}[]\ny = div x, c\nreturn y as \"y\"");
        let options = OptimizeOptions {
            dtype: compute,
            ..OptimizeOptions::default()
        };
        let (_, report) = optimize(graph(&body), &"cpu".parse().unwrap(), &options).unwrap();
        report.count("divide_by_constant")
    };
    // Half precision has nothing above 65504 and nothing normal below 6.1e-5.
    for c in ["1e-6", "1e-5", "20000.0", "60000.0"] {
        assert_eq!(rule("f16", c, None), 0, "{c}");
        assert_eq!(rule("f32", c, None), 1, "{c}");
        assert_eq!(rule("f32", c, Some(DType::F16)), 0, "{c} computed in f16");
        assert_eq!(rule("bf16", c, None), 1, "{c}");
    }
    for c in ["3.0", "10000.0", "0.0001"] {
        assert_eq!(rule("f16", c, None), 1, "{c}");
        assert_eq!(rule("f32", c, Some(DType::F16)), 1, "{c}");
    }
    for c in ["0.0", "1e38", "1e-39", "inf"] {
        assert_eq!(rule("f32", c, None), 0, "{c}");
    }
    let body = "x = input \"x\" : f16[4]\nc = constant 1e-6 : f16[]\ny = div x, c\nreturn y as \"y\"";
    same(body, &[("x", &[0.0, 1e-3, -2e-3, 1e-5])]);
}

#[test]
fn finite_constants_stay_finite_in_half_types() {
    // A mask of any size, as numbers or as one number to fill a shape with.
    for (dtype, most) in [(DType::F16, 65504.0), (DType::BF16, f64::from(half::bf16::MAX))] {
        for (rows, constant) in [
            (4, "m = constant splat(-3.4028235e38) : f32[4, 40]"),
            (40, "m = constant splat(-3.4028235e38) : f32[40, 40]"),
            (40, "s = constant -3.4028235e38 : f32[]\nm = broadcast s : f32[40, 40]"),
        ] {
            let body = format!("x = input \"x\" : f32[{rows}, 40]\n{constant}\ny = max x, m\nreturn y as \"y\"");
            for level in [OptLevel::O0, OptLevel::O1, OptLevel::O2] {
                let options = OptimizeOptions {
                    dtype: Some(dtype),
                    ..OptimizeOptions::at(level)
                };
                let before = graph(&body);
                let (after, _) = optimize(before, &"cpu".parse().unwrap(), &options).unwrap();
                let x = HostTensor::from_f64(DType::F32, [rows, 40], &vec![f64::NEG_INFINITY; rows * 40]).unwrap();
                let got = evaluate(&after, &IndexMap::from([("x".to_owned(), x)])).unwrap();
                assert!(
                    got["y"].to_f64().iter().all(|v| *v == -most),
                    "{dtype} at {level:?}\n{body}\n{after}"
                );
            }
        }
    }
}

#[test]
fn channel_constants_of_transposed_convolutions_fold_in_either_layout() {
    for (x, w, layout) in [
        ("[1, 2, 4, 4]", "[2, 5, 3, 3]", ""),
        ("[1, 4, 4, 2]", "[2, 3, 3, 5]", ", channels_last"),
    ] {
        for tail in [
            "c = constant 1.0 : f32[]\ny = add a, c",
            "c = constant 0.5 : f32[]\ny = mul a, c",
        ] {
            let body = format!(
                "x = input \"x\" : f32{x}\nw = constant random(seed=3, scale=1.0) : f32{w}\na = conv x, w {{transposed=[0, 0]{layout}}}\n{tail}\nreturn y as \"y\""
            );
            let (_, report) = crate::testing::optimized(&graph(&body), "cpu", OptimizeOptions::default());
            assert_eq!(report.count("channel_constant_into_conv"), 1, "{body}");
            let mut without = OptimizeOptions::default();
            without.disable.insert("channel_constant_into_conv".to_owned());
            let (_, report) = crate::testing::optimized(&graph(&body), "cpu", without);
            assert_eq!(report.count("channel_constant_into_conv"), 0);
        }
    }
}

/// What a report names can be switched off, unless the Core stage needs its pass.
#[test]
fn every_rule_that_fires_has_a_name_that_can_be_disabled() {
    let body = "x = input \"x\" : f32[1, 3, 8, 8]\nw = constant random(seed=1, scale=0.5) : f32[4, 3, 3, 3]\na = conv x, w {pad_low=[1, 1], pad_high=[1, 1]}\nb = relu a\nf = concat a, b {axis=1}\ng = pool f {kind=max, size=[2, 2], strides=[2, 2]}\nh = reduce g {op=mean, axes=[2, 3], keep_dims}\ny = softmax h {axis=1}\nreturn y as \"y\"";
    let mut options = OptimizeOptions::default();
    let (_, report) = crate::testing::optimized(&graph(body), "cpu", options.clone());
    for rule in [
        "conv_channels_last",
        "pool_channels_last",
        "transpose_after_elementwise",
    ] {
        assert!(report.count(rule) > 0, "{rule}");
    }
    let names = crate::names::rules();
    for fired in &report.fired {
        assert!(
            names.contains(&fired.rule),
            "{} of {} is unknown",
            fired.rule,
            fired.pass
        );
        options.disable.insert(fired.rule.to_owned());
    }
    let (_, report) = crate::testing::optimized(&graph(body), "cpu", options.clone());
    let left: Vec<_> = report
        .fired
        .iter()
        .filter(|f| options.disable.contains(f.rule))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Constants are one by their bytes, wherever these are, and two where one byte differs, wherever it is.
#[test]
fn large_constants_of_equal_bytes_are_one() {
    let elements = 300_000;
    let numbers: Vec<f64> = (0..elements).map(|i| f64::from(i % 1000)).collect();
    let build = |changed: Option<usize>| {
        let mut graph = Graph::new("constants");
        let mut add = |values: &[f64]| {
            let tensor = HostTensor::from_f64(DType::F32, [values.len()], values).unwrap();
            graph.add_constant(None, tensor, ir::Origin::Unknown)
        };
        let mut other = numbers.clone();
        if let Some(at) = changed {
            other[at] += 1.0;
        }
        let values = [add(&numbers), add(&other)];
        let x = graph.add_input(
            "x",
            ir::TensorType::new(DType::F32, vec![ir::Dim::from(elements)]),
            ir::Origin::Unknown,
        );
        for (name, c) in ["y", "z"].into_iter().zip(values) {
            let y = graph
                .add(ir::Op::binary(ir::op::BinaryOp::Mul), &[x, c], ir::Origin::Unknown)
                .unwrap();
            graph.add_output(name, y.into());
        }
        let (after, _) = optimize(graph, &"cpu".parse().unwrap(), &OptimizeOptions::at(OptLevel::O1)).unwrap();
        after.constants().len()
    };
    assert_eq!(build(None), 1);
    for changed in [0, 20_000, 150_000, elements as usize - 1] {
        assert_eq!(build(Some(changed)), 2, "{changed}");
    }
}
