//! Attention over keys and values in 8 bits: caches are read as they are stored, by one kernel, and give what the
//! evaluator gives.

use graphc_tests::emulator::{Tally, toolchain};
use graphc_tests::quantised::Random;
use graphc_tests::reference::{Tensors, compile_cpu};
use ir::convert::decode_f8;
use ir::kernel::{Body, Mapping};
use ir::{DType, Graph, HostTensor, Storage};
use passes::OptLevel;

/// Heads of queries and of keys, queries, keys, the size of a head.
type Sizes = [usize; 5];

struct Case {
    graph: Graph,
    inputs: Tensors,
    context: String,
}

/// What scales a cache has.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Scales {
    /// One, which the model knows.
    Known,
    /// One, which a run gives.
    Given,
    /// One so small that queries times it would have few bits left in f16; scores are of the usual size all the same.
    Tiny,
    /// One a head of keys, known, or given by a run in f16.
    KnownHeads,
    Heads,
    /// Of keys one a head and position, of values one a head and feature.
    Positions,
    /// Of keys and values one a head and position; of f16.
    Tokens,
}

impl Scales {
    /// The scales' shapes, type, and whether a run gives them.
    fn shapes(self, [_, heads, _, keys, size]: Sizes) -> ([[usize; 4]; 2], &'static str, bool) {
        match self {
            Scales::Known => ([[1; 4]; 2], "f32", false),
            Scales::Given | Scales::Tiny => ([[1; 4]; 2], "f32", true),
            Scales::KnownHeads => ([[1, heads, 1, 1]; 2], "f32", false),
            Scales::Heads => ([[1, heads, 1, 1]; 2], "f16", true),
            Scales::Positions => ([[1, heads, keys, 1], [1, heads, 1, size]], "f32", true),
            Scales::Tokens => ([[1, heads, keys, 1]; 2], "f16", true),
        }
    }

    /// Scale number `i` of the keys (0) or values (1).
    fn number(self, which: usize, i: usize) -> f64 {
        match (self, which) {
            (Scales::Known, _) => 0.0625,
            (Scales::Tiny, 0) => 2f64.powi(-20),
            (Scales::Given | Scales::Tiny, _) => [0.0625, 0.03125][which],
            _ => [0.0625, 0.03125][which] * (1.0 + (i * 7 % 5) as f64 / 4.0),
        }
    }
}

/// An attention with caches of a type and scales of the model's or of the run's own.
fn case(random: &mut Random, stored: DType, computed: DType, sizes: Sizes, scales: Scales, causal: bool) -> Case {
    let [heads, key_heads, queries, keys, size] = sizes;
    let (shapes, scale_type, given) = scales.shapes(sizes);
    let scale = |which: usize| {
        let (name, shape) = (["s", "t"][which], shapes[which]);
        let count: usize = shape.iter().product();
        match (given, count) {
            (true, _) => format!("{name} = input \"{name}\" : {scale_type}{shape:?}"),
            (false, _) => {
                let numbers: Vec<f64> = (0..count).map(|i| scales.number(which, i)).collect();
                format!("{name} = constant {numbers:?} : {scale_type}{shape:?}")
            }
        }
    };
    let factor = if scales == Scales::Tiny {
        0.125 * 2f64.powi(16)
    } else {
        0.125
    };
    let text = format!(
        "graph @a stage=import {{\n  q = input \"q\" : {computed}[1, {heads}, {queries}, {size}]\n  \
         k = input \"k\" : {stored}[1, {key_heads}, {keys}, {size}]\n  v = input \"v\" : {stored}[1, {key_heads}, {keys}, {size}]\n  \
         {}\n  {}\n  a = dequantize k, s {{out={}}}\n  b = dequantize v, t {{out={computed}}}\n  \
         y = attention q, a, b {{scale={factor:?}{}}}\n  return y as \"y\"\n}}\n",
        scale(0),
        scale(1),
        computed,
        if causal { ", causal" } else { "" }
    );
    let graph = ir::graph::parse::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let cache = |random: &mut Random| {
        let byte = |random: &mut Random| loop {
            let byte = random.below(256) as u8;
            // Numbers up to 32, as integers' are once they are divided by 4.
            match decode_f8(stored, byte) {
                Some(number) if number.is_nan() || number.abs() > 32.0 => {}
                _ if stored.is_f8() => return byte,
                _ => return (byte as i8 / 4) as u8,
            }
        };
        let bytes: Vec<u8> = (0..key_heads * keys * size).map(|_| byte(random)).collect();
        HostTensor::new(stored, vec![1, key_heads, keys, size], Storage::new(bytes)).expect("as many")
    };
    let q: Vec<f64> = (0..heads * queries * size)
        .map(|_| random.below(2001) as f64 / 1000.0 - 1.0)
        .collect();
    let q = HostTensor::from_f64(computed, vec![1, heads, queries, size], &q).expect("as many");
    let mut inputs = Tensors::from([
        ("q".to_owned(), q),
        ("k".to_owned(), cache(random)),
        ("v".to_owned(), cache(random)),
    ]);
    if given {
        for (which, shape) in shapes.into_iter().enumerate() {
            let numbers: Vec<f64> = (0..shape.iter().product()).map(|i| scales.number(which, i)).collect();
            let dtype = if scale_type == "f16" { DType::F16 } else { DType::F32 };
            let scale = HostTensor::from_f64(dtype, shape, &numbers).expect("as many");
            inputs.insert(["s", "t"][which].to_owned(), scale);
        }
    }
    let context = format!("{stored} in {computed}: {sizes:?} {scales:?} causal {causal}");
    Case { graph, inputs, context }
}

fn cases() -> Vec<Case> {
    let mut random = Random(17);
    let sizes: [Sizes; 4] = [
        [2, 2, 33, 70, 64],
        [4, 1, 1, 129, 64],
        [2, 1, 16, 64, 32],
        [1, 1, 5, 100, 128],
    ];
    let mut cases = Vec::new();
    for (i, stored) in [DType::F8E4M3FN, DType::I8, DType::F8E5M2, DType::F8E4M3FNUZ]
        .into_iter()
        .enumerate()
    {
        let computed = [DType::F16, DType::BF16, DType::F16, DType::F32][i];
        let scales = |given: bool| if given { Scales::Given } else { Scales::Known };
        cases.push(case(
            &mut random,
            stored,
            computed,
            sizes[i],
            scales(i % 2 == 1),
            i == 0,
        ));
        cases.push(case(
            &mut random,
            stored,
            DType::F16,
            sizes[(i + 1) % 4],
            scales(i % 2 == 0),
            false,
        ));
    }
    cases
}

/// Caches with more than one scale, and one that a half type cannot hold.
fn cases_of_scales() -> Vec<Case> {
    let mut random = Random(23);
    let (many, one): (Sizes, Sizes) = ([4, 2, 20, 70, 64], [4, 1, 1, 129, 64]);
    let mut cases = Vec::new();
    for (stored, computed, sizes, scales, causal) in [
        (DType::I8, DType::F16, many, Scales::Heads, true),
        (DType::F8E4M3FN, DType::F16, one, Scales::Positions, false),
        (DType::I8, DType::BF16, many, Scales::Positions, true),
        (DType::F8E5M2, DType::F16, [4, 2, 1, 100, 32], Scales::KnownHeads, false),
        (DType::I8, DType::F16, many, Scales::Tiny, false),
        (DType::I8, DType::F16, many, Scales::Tokens, true),
        (DType::F8E4M3FN, DType::BF16, one, Scales::Tokens, false),
        (DType::F8E5M2, DType::F32, [2, 1, 7, 67, 128], Scales::Tokens, false),
    ] {
        cases.push(case(&mut random, stored, computed, sizes, scales, causal));
    }
    cases
}

/// The largest difference over the largest magnitude.
fn error(got: &HostTensor, want: &HostTensor) -> f64 {
    let (got, want) = (got.to_f64(), want.to_f64());
    let largest = want.iter().fold(f64::MIN_POSITIVE, |m, v| m.max(v.abs()));
    let worst = |worst: f64, (a, b): (&f64, &f64)| match a - b {
        d if d.is_nan() => f64::INFINITY,
        d => worst.max(d.abs()),
    };
    got.iter().zip(&want).fold(0.0, worst) / largest
}

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1e-5,
        DType::F16 => 3e-3,
        _ => 2e-2,
    }
}

#[test]
fn attention_on_the_cpu() {
    for case in cases().into_iter().chain(cases_of_scales()) {
        let want = ir::graph::eval::evaluate(&case.graph, &case.inputs).expect("it evaluates");
        let got = compile_cpu(&case.graph, OptLevel::O2, None)
            .run(&case.inputs)
            .expect("it runs");
        let error = error(&got["y"], &want["y"]);
        assert!(error <= tolerance(got["y"].dtype), "{}: {error}", case.context);
    }
}

/// Every third case, from a first one on, or those of scales.
fn attention(arch: &str, first: Option<usize>) {
    let Some(tools) = toolchain() else { return };
    let mut tally = Tally::default();
    let cases: Vec<Case> = match first {
        Some(first) => cases().into_iter().skip(first).step_by(3).collect(),
        None => cases_of_scales(),
    };
    let (mut by_matrix, mut wide) = (0, 0);
    for case in &cases {
        let built = tools.build(&case.graph, arch, None);
        let plan = &built.program.variants[0].plan;
        let mut found = 0;
        for kernel in plan.kernels.values() {
            let Body::Attention(body) = &kernel.body else { continue };
            found += 1;
            // Keys and values come in 8 bits, in the type of the queries.
            let types = [body.query, body.key, body.value].map(|e| kernel.exprs.dtype(e));
            assert!(
                types.iter().all(|t| *t == types[0]),
                "{arch} {}: {types:?}",
                case.context
            );
            let bytes = kernel.params.values().filter(|p| p.dtype.bits() == 8).count();
            assert_eq!(bytes, 2, "{arch} {}: {}", case.context, kernel.name);
            if let Mapping::FlashMatrix(tiling) = &kernel.mapping {
                by_matrix += 1;
                wide += usize::from(tiling.key.width > 1 && tiling.value.width > 1);
            }
        }
        assert_eq!(found, 1, "{arch} {}", case.context);
        let outcome = tools.run(&built, &case.inputs, 1 << 24);
        tally.add(&format!("{arch} {}", case.context), &outcome);
        let want = ir::graph::eval::evaluate(&case.graph, &case.inputs).expect("it evaluates");
        let got = &outcome.outputs["y"];
        let error = error(got, &want["y"]);
        assert!(error <= tolerance(got.dtype), "{arch} {}: {error}", case.context);
        tally.error("attention", got.elements(), error);
    }
    println!(
        "{arch}: of {} attentions {by_matrix} by matrix instructions, {wide} with wide reads",
        cases.len()
    );
    tally.finish(arch, cases.len());
    assert!(
        by_matrix >= cases.len() / 2 && wide == by_matrix,
        "{arch}: {by_matrix}, {wide}"
    );
}

#[test]
fn attention_on_gfx90a() {
    attention("gfx90a", Some(0));
}

#[test]
fn attention_on_gfx942() {
    attention("gfx942", Some(1));
}

#[test]
fn attention_on_gfx1100() {
    attention("gfx1100", Some(2));
}

#[test]
fn attention_with_scales_on_gfx90a() {
    attention("gfx90a", None);
}

#[test]
fn attention_with_scales_on_gfx1201() {
    attention("gfx1201", None);
}
