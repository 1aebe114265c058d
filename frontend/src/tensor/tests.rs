//! Recorded expressions against values computed by hand, in plain loops, or by identities; by the reference evaluator.

use indexmap::IndexMap;
use ir::graph::eval::evaluate;
use ir::graph::op::PadMode;
use ir::{DType, Dim, HostTensor, Origin, Scalar};

use super::*;
use crate::shape;

fn compute(t: &Tensor) -> HostTensor {
    evaluate(&t.graph().unwrap(), &IndexMap::new()).unwrap()["output"].clone()
}

fn values(t: &Tensor) -> Vec<f64> {
    compute(t).to_f64()
}

fn seq(n: usize, dims: &[usize]) -> Tensor {
    let v: Vec<f32> = (0..n).map(|i| i as f32).collect();
    Tensor::from_slice(&v, dims)
}

/// Reproducible numbers in −1..1.
fn noise(name: &str, dims: &[usize]) -> (Vec<f64>, Tensor) {
    let v: Vec<f32> = crate::onnx::randomize::uniform(name, 1, dims.iter().product(), -1.0, 1.0).collect();
    (v.iter().map(|x| f64::from(*x)).collect(), Tensor::from_slice(&v, dims))
}

#[track_caller]
fn near(got: &Tensor, want: &[f64]) {
    let got = values(got);
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= 1e-5 * (1.0 + w.abs()), "element {i}: {g} is not {w}");
    }
}

#[track_caller]
fn same(a: &Tensor, b: &Tensor) {
    assert_eq!(a.ty(), b.ty());
    near(a, &values(b));
}

#[test]
fn tensors_may_be_shared_by_threads() {
    fn shareable<T: Send + Sync + Clone>() {}
    shareable::<Tensor>();
    let x = seq(4, &[4]);
    let sums: Vec<f64> = std::thread::scope(|s| {
        let run = |i: i64| {
            let x = &x;
            s.spawn(move || values(&(x * i).sum(..))[0])
        };
        (0..8)
            .map(run)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|h| h.join().unwrap())
            .collect()
    });
    assert_eq!(sums, (0..8).map(|i| 6.0 * f64::from(i)).collect::<Vec<_>>());
}

#[test]
fn operators_broadcast_and_take_numbers_on_either_side() {
    let x = seq(6, &[2, 3]);
    let row = seq(3, &[3]);
    near(&(&x + &row), &[0., 2., 4., 3., 5., 7.]);
    near(&(2.0 - &row), &[2., 1., 0.]);
    near(&(1 / (&row + 1)), &[1., 0.5, 1. / 3.]);
    near(&(-(&row) * 2.0f32 % 3), &[0., -2., -1.]);
    near(&row.modulo(2), &[0., 1., 0.]);
    near(&row.gt(0.5).cast(DType::F32), &[0., 1., 1.]);
    near(&row.clamp(0.5, 1.5), &[0.5, 1., 1.5]);
    near(&row.eq(1).select(10.0, &row), &[0., 10., 2.]);
    near(&row.masked_fill(&row.lt(1), -1), &[-1., 1., 2.]);
    let ints = Tensor::from_slice(&[7i64, -7], [2]);
    near(&(&ints / 2), &[3., -3.]);
    assert!(
        (&ints * 0.5)
            .check()
            .unwrap_err()
            .to_string()
            .contains("0.5 does not fit i64")
    );
}

/// As PyTorch and NumPy have them: what they give is written here.
#[test]
fn composed_functions_of_infinities_and_of_narrow_types() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let of = |row: &[f32]| Tensor::from_slice(row, [row.len()]);
    let is = |got: &Tensor, want: &[f64]| {
        let got = values(got);
        let same = |(g, w): (&f64, &f64)| g == w || g.is_nan() && w.is_nan() || (g - w).abs() <= 2e-3 * w.abs();
        assert!(
            got.len() == want.len() && got.iter().zip(want).all(same),
            "{got:?} is not {want:?}"
        );
    };
    let (wide_inf, wide_nan) = (f64::INFINITY, f64::NAN);
    is(&of(&[-inf, -inf]).logsumexp(0), &[-wide_inf]);
    is(&of(&[inf, 0.0]).logsumexp(0), &[wide_inf]);
    is(&of(&[inf, -inf]).logsumexp(0), &[wide_inf]);
    is(&of(&[-inf, 1.0]).logsumexp(0), &[1.0]);
    is(&of(&[nan, inf]).logsumexp(0), &[wide_nan]);
    is(&of(&[f32::MIN, f32::MIN]).logsumexp(0), &[f64::from(f32::MIN)]);
    is(&Tensor::zeros(DType::F32, shape![2, 0]).logsumexp(1), &[-wide_inf; 2]);
    is(&of(&[-inf, -inf]).log_softmax(0), &[wide_nan; 2]);
    is(&of(&[-inf, 0.0]).log_softmax(0), &[-wide_inf, 0.0]);
    is(&of(&[f32::MIN, 0.0]).softmax(0), &[0.0, 1.0]);
    is(&of(&[f32::MIN, f32::MIN]).softmax(0), &[0.5; 2]);
    is(&of(&[-inf, inf, nan]).softplus(), &[0.0, wide_inf, wide_nan]);
    is(&of(&[-inf, inf, nan]).mish(), &[wide_nan, wide_inf, wide_nan]);
    is(&of(&[-inf, inf, nan]).elu(1.0), &[-1.0, wide_inf, wide_nan]);
    is(&of(&[-inf, inf, nan]).hard_sigmoid(), &[0.0, 1.0, wide_nan]);
    is(&of(&[-inf, 1.0]).norm_keep(0), &[wide_inf]);
    is(&of(&[nan, inf]).norm_keep(0), &[wide_nan]);
    is(&of(&[inf, 1.0]).normalize(0, 1e-12), &[wide_nan, 0.0]);
    is(&of(&[inf, 1.0]).var(0), &[wide_nan]);
    // Squares of these leave f16 at either end.
    let half = |row: &[f32]| of(row).cast(DType::F16);
    is(&half(&[300.0, 400.0]).norm_keep(0), &[500.0]);
    is(&half(&[3e-5, 4e-5]).norm_keep(0), &[5e-5]);
    is(&half(&[300.0, 400.0]).normalize(0, 1e-12), &[0.6, 0.8]);
    is(&half(&[-400.0, 400.0]).std(0), &[400.0]);
    assert_eq!(half(&[1.0]).std(0).dtype(), DType::F16);
}

#[test]
fn reductions_over_one_some_and_all_axes() {
    let x = seq(24, &[2, 3, 4]);
    near(&x.sum(..), &[276.]);
    near(&x.sum([0, -1]), &[60., 92., 124.]);
    assert_eq!(x.mean_keep([1, 2]).shape().to_string(), "[2, 1, 1]");
    near(&x.mean_keep([1, 2]), &[5.5, 17.5]);
    near(&x.max(-1).min(0), &[3., 7., 11.]);
    near(&x.argmax(1), &[2.; 8]);
    near(&seq(4, &[4]).var(0), &[1.25]);
    near(&seq(4, &[4]).std(..), &[1.25f64.sqrt()]);
    near(
        &Tensor::from_slice(&[3.0f32, 4.0], [2]).normalize(0, 1e-12),
        &[0.6, 0.8],
    );
    near(
        &Tensor::from_slice(&[1000.0f32, 1000.0], [2]).logsumexp(0),
        &[1000.0 + 2f64.ln()],
    );
    assert!(x.sum([1, 1]).is_poisoned());
    assert!(
        x.sum(3)
            .check()
            .unwrap_err()
            .to_string()
            .contains("axis 3 is not inside rank 3")
    );
}

#[test]
fn views_and_slices_follow_python() {
    let x = seq(24, &[2, 3, 4]);
    assert_eq!(x.reshape(shape![-1, 6]).shape().to_string(), "[4, 6]");
    near(&x.permute(&[2, 0, 1]).at(0, 1), &[1., 5., 9., 13., 17., 21.]);
    near(&x.t().at(0, 0).at(0, -1), &[3., 7., 11.]);
    near(&seq(5, &[5]).slice(0, Some(1), Some(-1), 2), &[1., 3.]);
    near(&seq(5, &[5]).slice(0, None, None, -2), &[4., 2., 0.]);
    near(&seq(5, &[5]).slice(0, Some(-2), Some(100), 1), &[3., 4.]);
    near(&seq(5, &[5]).slice(0, Some(3), Some(0), -1), &[3., 2., 1.]);
    assert_eq!(seq(5, &[5]).slice(0, Some(4), Some(2), 1).shape().to_string(), "[0]");
    near(&seq(3, &[3]).flip(0), &[2., 1., 0.]);
    near(&seq(3, &[3]).pad(&[(1, 2)], 9), &[9., 0., 1., 2., 9., 9.]);
    near(
        &seq(3, &[3]).pad_mode(&[(2, 0)], PadMode::Reflect),
        &[2., 1., 0., 1., 2.],
    );
    assert_eq!(
        x.unsqueeze(-1)
            .squeeze(3)
            .flatten(0, 1)
            .unflatten(0, shape![2, -1])
            .ty(),
        x.ty()
    );
    near(&seq(2, &[2, 1]).expand(shape![3, -1, 2]).sum([0, 2]), &[0., 6.]);
    let [a, b] = seq(5, &[5]).split(0, [2, 3]);
    near(&cat(&[&b, &a], 0), &[2., 3., 4., 0., 1.]);
    let [a, b] = seq(4, &[4]).chunk::<2>(0);
    near(&stack(&[&a, &b], 1), &[0., 2., 1., 3.]);
    assert!(x.squeeze(0).is_poisoned() && x.split(0, [1, 2])[1].is_poisoned() && x.chunk::<5>(0)[0].is_poisoned());
}

#[test]
fn products_agree_with_loops() {
    let ((a, ta), (b, tb)) = (noise("a", &[2, 3, 4]), noise("b", &[4, 5]));
    let mut want = vec![0.0; 30];
    for i in 0..6 {
        for j in 0..5 {
            want[i * 5 + j] = (0..4).map(|k| a[i * 4 + k] * b[k * 5 + j]).sum();
        }
    }
    near(&ta.matmul(&tb), &want);
    near(&ta.matmul_t(&tb.t()), &want);
    near(&einsum("bik,kj->bij", &[&ta, &tb]), &want);
    near(&seq(3, &[3]).matmul(&seq(3, &[3])), &[5.]);
    near(&seq(2, &[2]).matmul(&seq(4, &[2, 2])), &[2., 3.]);
    near(&seq(4, &[2, 2]).matmul(&seq(2, &[2])), &[1., 3.]);
    near(&seq(2, &[2]).outer(&seq(3, &[3])), &[0., 0., 0., 0., 1., 2.]);
}

#[test]
fn einsum_sums_what_the_result_lacks() {
    let (x, y) = (noise("x", &[2, 3, 4, 5]).1, noise("y", &[2, 3, 6, 5]).1);
    same(&einsum("bhsd,bhtd->bhst", &[&x, &y]), &x.matmul(&y.t()));
    same(
        &einsum("bhsd,bhtd->tbs", &[&x, &y]),
        &x.matmul(&y.t()).sum(1).permute(&[2, 0, 1]),
    );
    same(&einsum("bhsd->db", &[&x]), &x.sum([1, 2]).t());
    same(
        &einsum("i,j->ji", &[&seq(2, &[2]), &seq(3, &[3])]),
        &seq(3, &[3]).outer(&seq(2, &[2])),
    );
    same(
        &einsum("ij,ij->ij", &[&seq(4, &[2, 2]), &seq(4, &[2, 2])]),
        &seq(4, &[2, 2]).square(),
    );
    for bad in ["ij,jk", "ij,jk->iz", "iij,jk->ik", "ijk,jk->ik"] {
        assert!(
            einsum(bad, &[&seq(4, &[2, 2]), &seq(4, &[2, 2])]).is_poisoned(),
            "{bad}"
        );
    }
}

#[test]
fn windows_agree_with_loops() {
    let ((x, tx), (w, tw)) = (noise("x", &[1, 2, 5, 4]), noise("w", &[3, 2, 3, 2]));
    let options = ConvOptions::default().stride([2, 1]).padding([1, 0]);
    let mut want = Vec::new();
    for (o, i, j) in (0..3).flat_map(|o| (0..3).flat_map(move |i| (0..3).map(move |j| (o, i, j)))) {
        let mut sum = 0.5;
        for (c, p, q) in (0..2).flat_map(|c| (0..3).flat_map(move |p| (0..2).map(move |q| (c, p, q)))) {
            let (row, column) = (2 * i + p, j + q);
            if (1..6).contains(&row) {
                sum += x[(c * 5 + row - 1) * 4 + column] * w[((o * 2 + c) * 3 + p) * 2 + q];
            }
        }
        want.push(sum);
    }
    let bias = Tensor::full(DType::F32, shape![3], 0.5);
    near(&tx.conv2d(&tw, Some(&bias), &options), &want);
    let image = seq(16, &[1, 1, 4, 4]);
    near(&image.max_pool(&PoolOptions::new(2)), &[5., 7., 13., 15.]);
    near(&image.avg_pool(&PoolOptions::new(2)), &[2.5, 4.5, 10.5, 12.5]);
    near(&image.adaptive_avg_pool2d(1, 1), &[7.5]);
    near(&image.adaptive_avg_pool2d(2, 2), &[2.5, 4.5, 10.5, 12.5]);
    near(&image.adaptive_avg_pool2d(1, 3), &[6.5, 7.5, 8.5]);
    near(
        &seq(2, &[1, 1, 1, 2]).upsample_nearest2d(2, 2),
        &[0., 0., 1., 1., 0., 0., 1., 1.],
    );
    let spread = seq(4, &[1, 1, 2, 2]).conv_transpose2d(
        &Tensor::ones(DType::F32, shape![1, 1, 2, 2]),
        None,
        &ConvOptions::default().stride(2),
    );
    same(&spread, &seq(4, &[1, 1, 2, 2]).upsample_nearest2d(2, 2));
    assert!(
        tx.conv1d(&tw, None, &options)
            .check()
            .unwrap_err()
            .to_string()
            .contains("the rank is 4, not 3")
    );
    assert!(
        tx.conv2d(&tw, None, &ConvOptions::default().padding([1, 1, 1]))
            .is_poisoned()
    );
}

#[test]
fn picking_and_placing() {
    let table = seq(6, &[3, 2]);
    let ids = Tensor::from_slice(&[2i64, 0, -1], [3]);
    near(&table.embedding(&ids), &[4., 5., 0., 1., 4., 5.]);
    near(&table.index_select(1, &Tensor::from_vec(vec![1i64])), &[1., 3., 5.]);
    near(
        &table.gather(1, &Tensor::from_slice(&[1i64, 0, 1], [3, 1])),
        &[1., 2., 5.],
    );
    near(&table.gather_nd(&Tensor::from_slice(&[2i64, 1], [1, 2]), 0), &[5.]);
    let (at, ones) = (Tensor::from_slice(&[1i64, 1], [2]), Tensor::ones(DType::F32, shape![2]));
    near(
        &Tensor::zeros(DType::F32, shape![3]).scatter_add(0, &at, &ones),
        &[0., 2., 0.],
    );
    near(
        &Tensor::zeros(DType::F32, shape![3]).scatter(0, &at, &ones),
        &[0., 1., 0.],
    );
    near(&seq(4, &[4]).cumsum(0), &[0., 1., 3., 6.]);
    let (v, i) = Tensor::from_slice(&[3.0f32, 9.0, 5.0], [3]).topk(0, 2);
    near(&v, &[9., 5.]);
    near(&i, &[1., 2.]);
    near(
        &Tensor::from_slice(&[3.0f32, 9.0, 5.0], [3]).sort(0, false).0,
        &[3., 5., 9.],
    );
    near(
        &ids.eq(2).cast(DType::I32).one_hot(2, DType::F32),
        &[0., 1., 1., 0., 1., 0.],
    );
    near(&seq(9, &[3, 3]).tril(0), &[0., 0., 0., 3., 4., 0., 6., 7., 8.]);
    near(&seq(9, &[3, 3]).triu(1), &[0., 1., 2., 0., 0., 5., 0., 0., 0.]);
    near(&Tensor::eye(DType::F32, 2), &[1., 0., 0., 1.]);
}

#[test]
fn norms_and_attention_agree_with_their_definitions() {
    let x = noise("x", &[2, 6]).1;
    same(&x.softmax(-1), &(x.exp() / x.exp().sum_keep(-1)));
    same(&x.log_softmax(0), &x.softmax(0).log());
    let (scale, bias) = (noise("s", &[6]).1, noise("b", &[6]).1);
    let standard = (&x - x.mean_keep(-1)) / (x.var_keep(-1) + 1e-5).sqrt();
    same(
        &x.layer_norm(Some(&scale), Some(&bias), 1e-5),
        &(&standard * &scale + &bias),
    );
    same(&x.layer_norm(None, None, 1e-5), &standard);
    same(
        &x.rms_norm(Some(&scale), 1e-5),
        &(&x / (x.square().mean_keep(-1) + 1e-5).sqrt() * &scale),
    );
    let [q, k, v] = ["q", "k", "v"].map(|n| noise(n, &[1, 2, 3, 4]).1);
    let causal = AttentionOptions {
        causal: true,
        ..AttentionOptions::default()
    };
    let visible = Tensor::ones(DType::F32, shape![3, 3]).tril(0).gt(0);
    let scores = (q.matmul(&k.t()) / 2.0).masked_fill(&visible.logical_not(), -1e9);
    let want = scores.softmax(-1).matmul(&v);
    same(&scaled_dot_product_attention(&q, &k, &v, &causal), &want);
    let masked = AttentionOptions {
        mask: Some(visible),
        ..AttentionOptions::default()
    };
    same(&scaled_dot_product_attention(&q, &k, &v, &masked), &want);
    // The second and third query have two keys.
    let near = AttentionOptions {
        causal: true,
        window: Some(2),
        ..AttentionOptions::default()
    };
    let visible = Tensor::ones(DType::F32, shape![3, 3]).tril(0).triu(-1).gt(0);
    let scores = (q.matmul(&k.t()) / 2.0).masked_fill(&visible.logical_not(), -1e9);
    let want = scores.softmax(-1).matmul(&v);
    same(&scaled_dot_product_attention(&q, &k, &v, &near), &want);
    same(&q.merge_heads().split_heads(2), &q);
}

/// Each sequence gives what it gives alone, its padding cut off; its last query is at its last key.
#[test]
fn attention_of_sequences_of_different_lengths() {
    let q = noise("q", &[2, 2, 2, 4]).1;
    let [k, v] = ["k", "v"].map(|n| noise(n, &[2, 1, 5, 4]).1);
    let lengths = Tensor::from_slice(&[3i64, 5], [2]);
    for (causal, window) in [(false, None), (true, None), (true, Some(2)), (false, Some(1))] {
        let options = AttentionOptions {
            causal,
            window,
            ..AttentionOptions::default()
        };
        let alone: Vec<Tensor> = [3i64, 5]
            .into_iter()
            .enumerate()
            .map(|(b, length)| {
                let of = |x: &Tensor| x.narrow(0, b as i64, 1);
                let [k, v] = [&k, &v].map(|x| of(x).narrow(2, 0, length));
                scaled_dot_product_attention(&of(&q), &k, &v, &options)
            })
            .collect();
        let want = cat(&alone.iter().collect::<Vec<_>>(), 0);
        let options = AttentionOptions {
            lengths: Some(lengths.clone()),
            ..options
        };
        same(&scaled_dot_product_attention(&q, &k, &v, &options), &want);
    }
}

#[test]
fn a_paged_cache_has_its_pages_in_the_tables_order() {
    let pool = noise("pool", &[3, 2, 1, 4]).1;
    let table = Tensor::from_slice(&[2i32, 0, 1, 1], [2, 2]);
    let page = |at: i64| pool.narrow(0, at, 1).reshape(shape![1, 2, 4]);
    let sequence = |pages: [i64; 2]| cat(&[&page(pages[0]), &page(pages[1])], 1).unsqueeze(0);
    let want = cat(&[&sequence([2, 0]), &sequence([1, 1])], 0);
    same(&paged_cache(&pool, &table), &want);
    assert!(paged_cache(&pool, &Tensor::from_slice(&[1i32], [1])).is_poisoned());
}

#[test]
fn rotary_embedding_rotates_pairs_by_position() {
    let x = noise("x", &[1, 3, 4]).1;
    let (cos, sin) = rotary_tables(&Tensor::arange(DType::I64, 3), 4, 10000.0);
    let (got, v) = (values(&apply_rotary(&x, &cos, &sin)), values(&x));
    for (p, i) in (0..3).flat_map(|p| [(p, 0), (p, 1)]) {
        let (s, c) = (p as f64 * 10000f64.powf(-(i as f64) / 2.0)).sin_cos();
        let (a, b) = (v[p * 4 + i], v[p * 4 + i + 2]);
        assert!((got[p * 4 + i] - (a * c - b * s)).abs() < 1e-5);
        assert!((got[p * 4 + i + 2] - (b * c + a * s)).abs() < 1e-5);
    }
}

#[test]
fn fills_and_random_numbers() {
    near(&Tensor::full(DType::I32, shape![2], 7), &[7., 7.]);
    near(&Tensor::arange(DType::F32, 3), &[0., 1., 2.]);
    let x = values(&Tensor::randn(shape![1000], 3));
    assert!(x.iter().sum::<f64>().abs() < 150.0);
    assert_eq!(x, values(&Tensor::randn(shape![1000], 3)));
    assert!(
        values(&Tensor::rand(shape![100], 3))
            .iter()
            .all(|v| (0.0..1.0).contains(v))
    );
    let half = [1.0f32, 2.0].map(half::f16::from_f32);
    assert_eq!(compute(&Tensor::from_slice(&half, [2])).dtype, DType::F16);
    near(&Tensor::from_slice(&[true, false], [2]).cast(DType::F32), &[1., 0.]);
}

#[test]
fn the_first_error_comes_out_with_its_place() {
    let x = Tensor::input("x", DType::F32, shape!["batch", 3]);
    let line = line!() + 1;
    let wrong = x.matmul(&Tensor::zeros(DType::F32, shape![4, 5]));
    let later = (wrong.relu() + 1.0).reshape(shape![7]).softmax(9);
    let error = build_graph("g", &[("y", &later)]).unwrap_err();
    let TensorError::Infer(infer) = &error else {
        panic!("{error}")
    };
    assert_eq!(
        infer.origin,
        Origin::Source {
            file: file!().into(),
            line
        }
    );
    assert!(
        error.to_string().contains("contract(f32[batch, 3], f32[4, 5])"),
        "{error}"
    );
    assert!(x.dims::<3>().unwrap_err().to_string().contains("the rank is 2, not 3"));
    assert!(x.size(0).unwrap_err().to_string().contains("symbolic size batch"));
}

#[test]
fn traced_inputs_name_the_users_line() {
    let line = line!() + 1;
    let spec = InputSpec::new("x", DType::F32, shape!["n"]).bounds("n", 1..=4);
    let graph = trace("double", [spec], |[x]| [("y", x * 2.0)]).unwrap();
    let inputs = graph.nodes().values().filter(|n| matches!(n.op, ir::Op::Input { .. }));
    let origins: Vec<Origin> = inputs.map(|n| n.origin.clone()).collect();
    let mine = Origin::Source {
        file: file!().into(),
        line,
    };
    assert_eq!(origins, [mine]);
}

#[test]
fn operators_and_compositions_name_the_users_line() {
    let a = Tensor::zeros(DType::F32, shape![2]);
    let b = Tensor::zeros(DType::F32, shape![3]);
    let poisoned = [
        (line!(), &a + &b),
        (line!(), a.normalize(0, 1e-5).maximum(&b)),
        (line!(), a.leaky_relu(0.1) * &b),
        (line!(), a.linear(&b, None)),
        (line!(), cat(&[&a, &b], 1)),
        (line!(), a.tril(0)),
    ];
    for (line, t) in poisoned {
        let error = t.check().unwrap_err().to_string();
        assert!(error.contains(&format!("tests.rs:{line}")), "{line}: {error}");
    }
}

#[test]
fn one_graph_runs_at_several_sizes() {
    let x = Tensor::from_spec(
        &InputSpec::new("x", DType::F32, shape!["n", 2])
            .bounds("n", 1..=4)
            .hint("n", 3),
    );
    let [n, two] = x.dims().unwrap();
    let y = (&x * 2.0).reshape(shape![-1]) + Tensor::arange(DType::F32, n * two);
    let graph = build_graph("g", &[("y", &y)]).unwrap();
    let info = graph.symbols()[&ir::Symbol::new("n")];
    assert_eq!((info.min, info.max, info.hint), (1, Some(4), 3));
    for n in [1usize, 3, 4] {
        let input = HostTensor::from_f32([n, 2], &vec![1.0; 2 * n]).unwrap();
        let out = evaluate(&graph, &[("x".to_owned(), input)].into_iter().collect()).unwrap();
        let want: Vec<f64> = (0..2 * n).map(|i| 2.0 + i as f64).collect();
        assert_eq!(out["y"].to_f64(), want);
    }
    let input = HostTensor::from_f32([5, 2], &[0.0; 10]).unwrap();
    assert!(evaluate(&graph, &[("x".to_owned(), input)].into_iter().collect()).is_err());
}

#[test]
fn graphs_that_could_not_run_are_refused() {
    let x = Tensor::input("x", DType::F32, shape!["n"]);
    let other = Tensor::input("x", DType::F32, shape![3]);
    let error = build_graph("g", &[("a", &x), ("b", &other)]).unwrap_err();
    assert!(matches!(error, TensorError::DuplicateInput { .. }), "{error}");
    assert!(matches!(build_graph("g", &[]), Err(TensorError::NoOutputs)));
    assert!(matches!(
        build_graph("g", &[("a", &x), ("a", &x)]),
        Err(TensorError::DuplicateOutput { .. })
    ));
    let error = build_graph("g", &[("y", &Tensor::zeros(DType::F32, shape!["m"]))]).unwrap_err();
    assert!(
        matches!(&error, TensorError::UnboundSymbol { symbol, .. } if symbol.name() == "m"),
        "{error}"
    );
    assert!(matches!(
        build_graph_with("g", &[&x.relu()], &[("y", &x)]),
        Err(TensorError::NotAnInput { .. })
    ));
}

#[test]
fn inputs_keep_their_order_and_shared_work_is_recorded_once() {
    let [a, b] = ["a", "b"].map(|n| Tensor::input(n, DType::F32, shape![2]));
    let shared = &a + &b;
    let y = &shared * &shared;
    let graph = build_graph("g", &[("y", &y)]).unwrap();
    assert_eq!(graph.nodes().len(), 4);
    let names = |g: &ir::Graph| g.inputs().iter().map(|i| i.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&graph), ["a", "b"]);
    assert_eq!(
        names(&build_graph_with("g", &[&b, &a], &[("y", &y)]).unwrap()),
        ["b", "a"]
    );
    let unused = trace(
        "g",
        [
            InputSpec::new("x", DType::F32, shape![2]),
            InputSpec::new("z", DType::F32, shape![2]),
        ],
        |[x, _]| vec![("y".to_owned(), x)],
    );
    assert_eq!(names(&unused.unwrap()), ["x", "z"]);
}

#[test]
fn long_chains_neither_overflow_the_stack_when_built_nor_when_dropped() {
    let mut x = Tensor::input("x", DType::F32, shape![1]);
    for _ in 0..200_000 {
        x = x.relu();
    }
    assert_eq!(build_graph("g", &[("y", &x)]).unwrap().nodes().len(), 200_001);
}

#[test]
fn data_is_lifted_and_parameters_and_numbers_stay() {
    let weight = Tensor::parameter("w", HostTensor::from_f32([2], &[1.0, 2.0]).unwrap());
    let make = |data: &[f32]| (Tensor::from_slice(data, [2]) * &weight + 1.0).sum(..);
    let (a, b) = (
        lift("g", &[&make(&[1.0, 2.0])]).unwrap(),
        lift("g", &[&make(&[3.0, 4.0])]).unwrap(),
    );
    assert_eq!(a.graph.inputs().len(), 1);
    assert_eq!(a.graph.constants().len(), 2);
    let hosts = |lifted: &Lifted| -> IndexMap<String, HostTensor> {
        let host = |(name, argument): (&String, &Argument)| match argument {
            Argument::Host(tensor) => Some((name.clone(), tensor.clone())),
            Argument::Remote(_) => None,
        };
        lifted.arguments.iter().filter_map(host).collect()
    };
    assert_eq!(evaluate(&a.graph, &hosts(&a)).unwrap()["value0"].to_f64(), [7.0]);
    assert_eq!(evaluate(&a.graph, &hosts(&b)).unwrap()["value0"].to_f64(), [13.0]);
    let x = Tensor::input("x", DType::F32, shape![2]);
    assert_eq!(
        lift("g", &[&x]).unwrap_err(),
        TensorError::DependsOnInputs {
            inputs: vec!["x".to_owned()]
        }
    );
}

#[test]
fn numbers_take_the_type_they_meet() {
    let x = Tensor::zeros(DType::BF16, shape![1]);
    assert_eq!((&x + 1).dtype(), DType::BF16);
    assert_eq!(x.gt(0).select(1.0, 2).dtype(), DType::F32);
    assert_eq!(Tensor::full(DType::I8, shape![1], Scalar::Int(3)).dtype(), DType::I8);
    assert_eq!(Tensor::dim_value(Dim::Const(5)).dtype(), DType::I64);
    let a = Tensor::zeros(DType::F16, shape![1]);
    assert!((&x + &a).check().unwrap_err().to_string().contains("cast one of them"));
}

/// Bounds that an input gives are those of the graph, whichever inputs say nothing of the symbol.
#[test]
fn bounds_stay_as_they_are_given() {
    let bounded = |range: std::ops::RangeInclusive<i64>| {
        Tensor::from_spec(&InputSpec::new("x", DType::F32, shape!["n"]).bounds("n", range))
    };
    let bounds = |y: &Tensor| {
        let graph = build_graph("g", &[("y", y)]).unwrap();
        ir::graph::verify::verify(&graph).unwrap();
        let info = graph.symbols()[&ir::Symbol::new("n")];
        (info.min, info.max)
    };
    let silent = || Tensor::input("silent", DType::F32, shape!["n"]);
    assert_eq!(bounds(&(bounded(0..=8) + silent())), (0, Some(8)));
    assert_eq!(bounds(&(silent() + bounded(0..=8))), (0, Some(8)));
    // What was recorded before the bounds were known is inferred once more.
    let first = silent().narrow(0, 0, 1);
    assert_eq!(bounds(&(first + bounded(0..=8))), (0, Some(8)));
    let other = Tensor::from_spec(&InputSpec::new("z", DType::F32, shape!["n"]).bounds("n", 2..=99));
    assert_eq!(bounds(&(bounded(0..=8) + other)), (2, Some(8)));
    let open = Tensor::from_spec(&InputSpec::new("z", DType::F32, shape!["n"]).bounds("n", 0..));
    assert_eq!(bounds(&open), (0, None));
    assert_eq!(bounds(&(open + silent().relu())), (0, None));
}

#[test]
fn data_that_indexes_outside_its_axis_is_refused() {
    let table = Tensor::ones(DType::F32, shape![3, 2]);
    let at = |i: i64| Tensor::from_host(HostTensor::from_i64(DType::I64, [1], &[i]).unwrap());
    for fine in [-3, 0, 2] {
        table.take(0, &at(fine)).check().unwrap();
    }
    for wrong in [-4, 3] {
        let error = table.take(0, &at(wrong)).check().unwrap_err().to_string();
        assert!(error.contains(&format!("index {wrong} lies outside axis 0")), "{error}");
    }
}

#[test]
fn folds_of_integers_do_not_wrap_and_means_are_refused() {
    let bytes = Tensor::from_host(HostTensor::from_i64(DType::I8, [3], &[100, 100, 3]).unwrap());
    let flags = Tensor::from_host(HostTensor::from_i64(DType::Bool, [3], &[1, 1, 0]).unwrap());
    near(&bytes.sum(..), &[203.]);
    near(&bytes.prod_keep(0), &[30000.]);
    near(&bytes.cumsum(0), &[100., 200., 203.]);
    near(&bytes.cumprod(0), &[100., 10000., 30000.]);
    near(&flags.sum(..), &[2.]);
    assert_eq!(bytes.sum(..).dtype(), DType::I64);
    assert_eq!(bytes.max(..).dtype(), DType::I8);
    assert!(bytes.mean(..).is_poisoned());
    assert!(bytes.var(..).is_poisoned());
    near(&bytes.cast(DType::F32).mean(..), &[203. / 3.]);
}

#[test]
fn logsumexp_of_infinities() {
    let (inf, low) = (f32::INFINITY, f32::NEG_INFINITY);
    let x = Tensor::from_slice(&[low, low, inf, 1.0, low, 2.0, 1000.0, 1000.0], [4, 2]);
    let got = values(&x.logsumexp(1));
    assert_eq!(got[..3], [f64::NEG_INFINITY, f64::INFINITY, 2.0]);
    assert!((got[3] - 1_000.693_147).abs() < 1e-3, "{got:?}");
}
