//! Reductions, norms and softmaxes of few long rows, on emulated GPUs: several workgroups share a row, and the results
//! are those of the evaluator. Sizes that nothing divides stay whole.

use graphc_tests::emulator::toolchain;
use graphc_tests::quantised::Random;
use graphc_tests::reference::Tensors;
use ir::graph::parse::parse;
use ir::{DType, HostTensor};

/// Builds, runs and compares `body`, whose input is `x: dtype[dims]`; returns how many kernels it is.
fn kernels(arch: &str, dtype: DType, dims: &[usize], body: &str) -> Option<usize> {
    let tools = toolchain()?;
    let mut random = Random(dims.iter().sum::<usize>() as u64);
    let values: Vec<f64> = (0..dims.iter().product())
        .map(|_| random.below(2001) as f64 / 1000.0 - 0.9)
        .collect();
    let x = HostTensor::from_f64(dtype, dims.to_vec(), &values).expect("as many as the shape says");
    let text =
        format!("graph @long stage=import {{\n  x = input \"x\" : {dtype}{dims:?}\n{body}  return y as \"y\"\n}}\n");
    let graph = parse(&text).unwrap_or_else(|e| panic!("{text}\n{e:?}"));
    let inputs = Tensors::from([("x".to_owned(), x)]);
    let want = ir::graph::eval::evaluate(&graph, &inputs).expect("it evaluates");
    let built = tools.build(&graph, arch, None);
    let outcome = tools.run(&built, &inputs, 0);
    let (got, want) = (outcome.outputs["y"].to_f64(), want["y"].to_f64());
    let tolerance = match dtype {
        _ if outcome.outputs["y"].dtype.is_int() => 0.0,
        DType::F16 => 2e-3,
        _ => 2e-5,
    };
    let largest = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    assert_eq!(got.len(), want.len(), "{arch}\n{text}");
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let off = (got - want).abs();
        assert!(
            off <= tolerance * largest,
            "{arch}: element {i} is {got} and not {want}\n{text}"
        );
    }
    Some(built.program.variants[0].plan.kernels.len())
}

fn reductions(arch: &str) {
    let (f32, f16) = (DType::F32, DType::F16);
    for (dtype, dims, axes, op, split) in [
        // Contiguous rows: one, some, one of a size that is no power of two.
        (f16, &[1 << 20][..], "0", "mean", true),
        (f32, &[3, 300_000], "1", "sum", true),
        (f32, &[2, 8, 181, 182], "1, 2, 3", "max", true),
        (f16, &[2, 524_288], "1", "min", true),
        // Rows that lie apart, and axes on both sides of what stays.
        (f32, &[4096, 600], "0", "max", true),
        (f16, &[40, 640, 96], "0, 1", "mean", true),
        // Nothing divides 1000003, and short rows are one kernel.
        (f32, &[1_000_003], "0", "sum", false),
        (f16, &[3, 4096], "1", "sum", false),
    ] {
        let body = format!("  y = reduce x {{op={op}, axes=[{axes}]}}\n");
        if let Some(count) = kernels(arch, dtype, dims, &body) {
            assert_eq!(
                count,
                if split { 2 } else { 1 },
                "{arch} {op} of {dtype}{dims:?} over {axes}"
            );
        }
    }
}

fn rows(arch: &str) {
    let group = |channels: usize, groups: usize| {
        format!(
            "  g = constant random(seed=1) : f32[{channels}]\n  b = constant random(seed=2) : f32[{channels}]\n  \
             n = group_norm x, g, b {{groups={groups}, epsilon=1e-5}}\n  y = silu n\n"
        )
    };
    // Groups are rows of one kernel, unless they are few and long.
    if let Some(count) = kernels(arch, DType::F32, &[2, 32, 9, 7], &group(32, 8)) {
        assert_eq!(count, 1, "{arch}");
    }
    if let Some(count) = kernels(arch, DType::F32, &[1, 4, 400, 320], &group(4, 1)) {
        assert!(count > 3, "{arch}: {count}");
    }
    // Channels lie last: the sums, two launches that merge parts, and the results. (Fewer halves are widened by a
    // launch before.)
    for (dtype, dims, groups, split) in [
        (DType::F16, [2, 129, 130, 48], 16, true),
        (DType::F32, [1, 96, 80, 40], 40, true),
        (DType::F32, [1, 70, 90, 64], 1, true),
        (DType::F16, [3, 5, 7, 12], 4, false),
    ] {
        let [n, h, w, c] = dims;
        let body = format!(
            "  g = constant random(seed=1) : {dtype}[{c}]\n  t = transpose x {{perm=[0, 3, 1, 2]}}\n  \
             n = group_norm t, g, g {{groups={groups}, epsilon=1e-5}}\n  s = silu n\n  y = transpose s {{perm=[0, 2, 3, 1]}}\n"
        );
        if let Some(count) = kernels(arch, dtype, &[n, h, w, c], &body) {
            assert_eq!(count, if split { 4 } else { 1 }, "{arch}: {dims:?}");
        }
    }
    for body in [
        "  y = softmax x {axis=1}\n",
        "  y = log_softmax x {axis=1}\n",
        "  y = layer_norm x {axis=1, epsilon=1e-5}\n",
        "  y = rms_norm x {axis=1, epsilon=1e-5}\n",
    ] {
        kernels(arch, DType::F32, &[2, 180_000], body);
    }
}

/// Values are of two thousand, so that many are equal: the first of them counts.
fn first(arch: &str) {
    for (dims, body, count) in [
        (&[1, 128_256][..], "  y = reduce x {op=arg_max, axes=[1]}\n", 4),
        (
            &[2, 3, 151_936],
            "  y = reduce x {op=arg_min, axes=[2], keep_dims}\n",
            4,
        ),
        (
            &[1, 50_257],
            "  t = top_k x {axis=1, k=40} : f32[1, 40], i64[1, 40]\n  y = neg t.1\n",
            4,
        ),
        (
            &[3, 9216, 2],
            "  t = top_k x {axis=1, k=7, smallest} : f32[3, 7, 2], i64[3, 7, 2]\n  y = neg t.1\n",
            3,
        ),
        (
            &[2, 9216],
            "  t = top_k x {axis=1, k=200} : f32[2, 200], i64[2, 200]\n  y = exp t\n",
            3,
        ),
        // A prime, and a row that is sorted at once.
        (
            &[1, 10_007],
            "  t = top_k x {axis=1, k=7} : f32[1, 7], i64[1, 7]\n  y = neg t.1\n",
            1,
        ),
        (
            &[1, 1000],
            "  t = top_k x {axis=1, k=7} : f32[1, 7], i64[1, 7]\n  y = neg t.1\n",
            1,
        ),
    ] {
        if let Some(found) = kernels(arch, DType::F32, dims, body) {
            assert!(found >= count, "{arch} {dims:?}: {found} kernels\n{body}");
        }
    }
}

#[test]
fn first_elements_on_gfx90a() {
    first("gfx90a");
}

#[test]
fn first_elements_on_gfx1100() {
    first("gfx1100");
}

#[test]
fn reductions_on_gfx90a() {
    reductions("gfx90a");
}

#[test]
fn reductions_on_gfx1100() {
    reductions("gfx1100");
}

#[test]
fn norms_and_softmaxes_on_gfx90a() {
    rows("gfx90a");
}

#[test]
fn norms_and_softmaxes_on_gfx1100() {
    rows("gfx1100");
}
