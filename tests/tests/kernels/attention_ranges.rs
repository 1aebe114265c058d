//! Attention that sees few of its keys (sliding windows, sequences of their own lengths) and caches in pages: random
//! cases on emulated GPUs against the reference evaluator, and how much of the keys is multiplied and read.

use graphc::emulate::Outcome;
use graphc_tests::emulator::{Tally, Toolchain, toolchain};
use graphc_tests::quantised::Random;
use graphc_tests::reference::{Tensors, assert_matches};
use ir::kernel::{AttentionBody, Body, Mapping};
use ir::plan::Plan;
use ir::{DType, Graph, HostTensor};

/// How a mask hides.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Spelling {
    /// Keeps where true.
    Bool,
    /// Adds 0 or a very negative number.
    Finite,
}

#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    heads: usize,
    shared: usize,
    queries: usize,
    keys: usize,
    width: usize,
    /// Keys up to a query's own, which is as far from the last key as the query from the last one.
    causal: bool,
    /// Keys at most so far before the query's own.
    window: Option<usize>,
    /// The keys of each sequence.
    lengths: Vec<usize>,
    spelling: Spelling,
    /// Rows of a page, where keys and values are in pages.
    page: Option<usize>,
    /// Whether a page has its heads first.
    heads_first: bool,
}

impl Case {
    fn batch(&self) -> usize {
        self.lengths.len()
    }

    /// Pages of the pool: fewer than the tables have entries, so that some repeat.
    fn pages(&self) -> usize {
        self.page.map_or(0, |page| self.batch() * self.keys / page * 3 / 4 + 1)
    }

    fn text(&self) -> String {
        let Case {
            dtype,
            heads,
            shared,
            queries,
            keys,
            width,
            ..
        } = self;
        let batch = self.batch();
        let mut lines = vec![format!(
            "q = input \"q\" : {dtype}[{batch}, {heads}, {queries}, {width}]"
        )];
        for (name, pool) in [("k", "kp"), ("v", "vp")] {
            match (self.page, self.heads_first) {
                (None, _) => {
                    lines.push(format!(
                        "{name} = input \"{name}\" : {dtype}[{batch}, {shared}, {keys}, {width}]"
                    ));
                }
                (Some(page), heads_first) => {
                    let pages = keys / page;
                    if name == "k" {
                        lines.push(format!("t = input \"t\" : i32[{batch}, {pages}]"));
                    }
                    let [a, b] = if heads_first { [*shared, page] } else { [page, *shared] };
                    lines.push(format!(
                        "{pool} = input \"{pool}\" : {dtype}[{}, {a}, {b}, {width}]",
                        self.pages()
                    ));
                    lines.push(format!("{name}g = take {pool}, t {{axis=0}}"));
                    if heads_first {
                        lines.push(format!("{name}t = transpose {name}g {{perm=[0, 2, 1, 3, 4]}}"));
                        lines.push(format!(
                            "{name} = reshape {name}t : {dtype}[{batch}, {shared}, {keys}, {width}]"
                        ));
                    } else {
                        lines.push(format!(
                            "{name}r = reshape {name}g : {dtype}[{batch}, {keys}, {shared}, {width}]"
                        ));
                        lines.push(format!("{name} = transpose {name}r {{perm=[0, 2, 1, 3]}}"));
                    }
                }
            }
        }
        lines.push(format!("i = iota {{axis=2}} : i64[1, 1, {queries}, 1]"));
        lines.push(format!("j = iota {{axis=3}} : i64[1, 1, 1, {keys}]"));
        lines.push(format!("reach = constant {} : i64[]", *keys as i64 - *queries as i64));
        lines.push("own = add i, reach".to_owned());
        lines.push(format!("n = input \"n\" : i64[{batch}]"));
        lines.push(format!("l = reshape n : i64[{batch}, 1, 1, 1]"));
        lines.push("m0 = lt j, l".to_owned());
        let mut mask = "m0";
        if self.causal {
            lines.push("past = le j, own".to_owned());
            lines.push(format!("m1 = and {mask}, past"));
            mask = "m1";
        }
        if let Some(window) = self.window {
            lines.push(format!("w = constant {window} : i64[]"));
            lines.push("distance = sub own, j".to_owned());
            lines.push("near = lt distance, w".to_owned());
            lines.push(format!("m2 = and {mask}, near"));
            mask = "m2";
        }
        if self.spelling == Spelling::Finite {
            let hidden = if *dtype == DType::F16 { "-inf" } else { "-3e38" };
            lines.push(format!("seen = constant 0.0 : {dtype}[]"));
            lines.push(format!("hidden = constant {hidden} : {dtype}[]"));
            lines.push(format!("m3 = select {mask}, seen, hidden"));
            mask = "m3";
        }
        lines.push(format!("a = attention q, k, v, {mask} {{scale=0.125, mask}}"));
        format!(
            "graph @ranges stage=import {{\n  {}\n  return a as \"y\"\n}}\n",
            lines.join("\n  ")
        )
    }

    fn graph(&self) -> Graph {
        let text = self.text();
        ir::graph::parse::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    fn inputs(&self, random: &mut Random) -> Tensors {
        let mut numbers = |shape: &[usize]| {
            let values: Vec<f64> = (0..shape.iter().product())
                .map(|_| random.below(4001) as f64 / 2000.0 - 1.0)
                .collect();
            HostTensor::from_f64(self.dtype, shape.to_vec(), &values).expect("as many")
        };
        let (batch, width) = (self.batch(), self.width);
        let lengths: Vec<i64> = self.lengths.iter().map(|n| *n as i64).collect();
        let mut inputs = Tensors::from([
            ("q".to_owned(), numbers(&[batch, self.heads, self.queries, width])),
            (
                "n".to_owned(),
                HostTensor::from_i64(DType::I64, vec![batch], &lengths).expect("as many"),
            ),
        ]);
        let Some(page) = self.page else {
            for name in ["k", "v"] {
                let cache = numbers(&[batch, self.shared, self.keys, width]);
                inputs.insert(name.to_owned(), cache);
            }
            return inputs;
        };
        for name in ["kp", "vp"] {
            let [a, b] = match self.heads_first {
                true => [self.shared, page],
                false => [page, self.shared],
            };
            inputs.insert(name.to_owned(), numbers(&[self.pages(), a, b, width]));
        }
        let entries = batch * self.keys / page;
        let table: Vec<i64> = (0..entries).map(|_| random.below(self.pages()) as i64).collect();
        let table = HostTensor::from_i64(DType::I32, vec![batch, self.keys / page], &table).expect("as many");
        inputs.insert("t".to_owned(), table);
        inputs
    }
}

/// Lengths of sequences: nothing, everything, and anything in between.
fn lengths(random: &mut Random, keys: usize) -> Vec<usize> {
    vec![
        random.below(keys + 1),
        [0, keys][random.below(2)],
        1 + random.below(keys),
    ]
}

/// Random cases; every fourth is a decode of many keys, every third has pages.
fn cases(seed: u64, dtypes: &[DType], count: usize) -> Vec<Case> {
    let mut random = Random(seed);
    let random = &mut random;
    (0..count)
        .map(|i| {
            let shared = random.of(&[1, 2]);
            let decode = i % 4 == 0;
            let page = (i % 3 == 1).then(|| random.of(&[16, 32, 64]));
            let mut keys = if decode {
                300 + random.below(300)
            } else {
                20 + random.below(180)
            };
            if let Some(page) = page {
                keys = keys.div_ceil(page) * page;
            }
            let queries = if decode { 1 } else { 1 + random.below(keys) };
            let window = (random.below(3) > 0).then(|| random.of(&[3, 17, 64, 100, 1000]));
            Case {
                dtype: random.of(dtypes),
                heads: shared * random.of(&[1, 2, 4]),
                shared,
                queries,
                keys,
                width: random.of(&[32, 64, 128]),
                causal: window.is_none() || random.below(4) > 0,
                window,
                lengths: lengths(random, keys),
                spelling: random.of(&[Spelling::Bool, Spelling::Finite]),
                page,
                heads_first: random.below(2) == 0,
            }
        })
        .collect()
}

fn attentions(plan: &Plan) -> Vec<(&ir::kernel::Kernel, &AttentionBody)> {
    let bodies = plan.kernels.values().filter_map(|k| match &k.body {
        Body::Attention(a) => Some((k, a)),
        _ => None,
    });
    bodies.collect()
}

/// Runs a case; asserts that its only kernels are the attention and, of parts, their total, and that the outputs are
/// right.
fn run(tools: &Toolchain, arch: &str, case: &Case, random: &mut Random, tally: &mut Tally) -> (Outcome, Plan) {
    let graph = case.graph();
    let built = tools.build(&graph, arch, None);
    let plan = &built.program.variants[0].plan;
    let found = attentions(plan);
    let context = format!("{arch} {case:?}");
    let [(kernel, body)] = found[..] else {
        panic!("{context}: {} attentions", found.len())
    };
    let launches = 1 + usize::from(body.row_weights.is_some());
    assert_eq!(plan.kernels.len(), launches, "{context}\n{plan}");
    let range = body
        .range
        .as_ref()
        .unwrap_or_else(|| panic!("{context}: no range\n{kernel}"));
    assert!(range.end.is_some(), "{context}\n{kernel}");
    // A window of all keys is none.
    let window = case.window.is_some_and(|window| window < case.keys);
    assert_eq!(range.first.is_some(), window, "{context}\n{kernel}");
    let inputs = case.inputs(random);
    let outcome = tools.run(&built, &inputs, 1 << 24);
    tally.add(&context, &outcome);
    let want = ir::graph::eval::evaluate(&graph, &inputs).expect("it evaluates");
    let got: Tensors = outcome.outputs.clone().into_iter().collect();
    let want: Tensors = want.into_iter().collect();
    assert_matches(&got, &want, case.dtype, &context);
    (outcome, plan.clone())
}

fn check(arch: &str, seed: u64, dtypes: &[DType], count: usize) {
    let Some(tools) = toolchain() else { return };
    let mut random = Random(seed + 1);
    let mut tally = Tally::default();
    let (mut by_matrix, mut by_lanes, mut parts) = (0, 0, 0);
    for case in cases(seed, dtypes, count) {
        let (_, plan) = run(&tools, arch, &case, &mut random, &mut tally);
        for (kernel, body) in attentions(&plan) {
            parts += usize::from(body.row_weights.is_some());
            match &kernel.mapping {
                Mapping::FlashMatrix(_) => by_matrix += 1,
                Mapping::FlashLanes(_) => by_lanes += 1,
                other => panic!("{arch}: {other}"),
            }
        }
    }
    println!("{arch}: {by_matrix} by matrix instructions, {by_lanes} by lanes, {parts} in parts");
    // All outputs are compared above. Kernels of more points than that are not compared one by one, too.
    tally.finish(arch, count / 2);
}

#[test]
fn ranges_on_gfx90a() {
    check("gfx90a", 3, &[DType::F16, DType::BF16, DType::F32], 12);
}

#[test]
fn ranges_on_gfx942() {
    check("gfx942", 5, &[DType::F16, DType::BF16], 8);
}

#[test]
fn ranges_on_gfx950() {
    check("gfx950", 7, &[DType::BF16, DType::F16], 8);
}

#[test]
fn ranges_on_gfx1100() {
    check("gfx1100", 11, &[DType::F16, DType::F32], 8);
}

#[test]
fn ranges_on_gfx1201() {
    check("gfx1201", 13, &[DType::BF16, DType::F16, DType::F32], 8);
}

/// Heads too wide for registers: scores go through LDS.
#[test]
fn ranges_of_wide_heads() {
    let Some(tools) = toolchain() else { return };
    let mut random = Random(19);
    let mut tally = Tally::default();
    for (window, page, spelling) in [(Some(9), None, Spelling::Bool), (None, Some(16), Spelling::Finite)] {
        let case = Case {
            dtype: DType::F32,
            heads: 2,
            shared: 1,
            queries: 40,
            keys: 48,
            width: 520,
            causal: true,
            window,
            lengths: vec![48, 21],
            spelling,
            page,
            heads_first: false,
        };
        let (_, plan) = run(&tools, "gfx1100", &case, &mut random, &mut tally);
        let (kernel, _) = attentions(&plan)[0];
        assert!(matches!(kernel.mapping, Mapping::Flash { .. }), "{}", kernel.mapping);
    }
}

fn counted(arch: &str, case: &Case) -> Option<(u64, u64)> {
    let tools = toolchain()?;
    let mut random = Random(29);
    let (outcome, _) = run(&tools, arch, case, &mut random, &mut Tally::default());
    let counters = &outcome.launches[0].counters;
    Some((counters.matrix_macs, counters.global_load_bytes))
}

/// What is multiplied and read falls as the window and the lengths say.
#[test]
fn keys_that_are_not_seen_cost_nothing() {
    let whole = Case {
        dtype: DType::F16,
        heads: 2,
        shared: 1,
        queries: 512,
        keys: 512,
        width: 64,
        causal: true,
        window: None,
        lengths: vec![512, 512],
        spelling: Spelling::Bool,
        page: None,
        heads_first: false,
    };
    let decode = Case {
        heads: 8,
        queries: 1,
        keys: 2048,
        lengths: vec![2048; 2],
        ..whole.clone()
    };
    for arch in ["gfx90a", "gfx1100"] {
        let Some(causal) = counted(arch, &whole) else { return };
        let all_pairs = 2 * 2 * 512 * 512 * 2 * 64;
        // The diagonal's tiles are multiplied whole.
        assert!(causal.0 <= all_pairs * 13 / 20, "{arch}: {causal:?} of {all_pairs}");
        let near = counted(
            arch,
            &Case {
                window: Some(64),
                ..whole.clone()
            },
        )
        .expect("as before");
        assert!(
            near.0 * 4 < causal.0 * 3 && near.1 < causal.1,
            "{arch}: {near:?} of {causal:?}"
        );
        let short = counted(
            arch,
            &Case {
                lengths: vec![100, 0],
                ..whole.clone()
            },
        )
        .expect("as before");
        assert!(short.0 * 4 < causal.0, "{arch}: {short:?} of {causal:?}");
        let long = counted(arch, &decode).expect("as before");
        let few = counted(
            arch,
            &Case {
                lengths: vec![70, 1],
                ..decode.clone()
            },
        )
        .expect("as before");
        assert!(few.0 * 4 < long.0 && few.1 * 4 < long.1, "{arch}: {few:?} of {long:?}");
        let last = counted(
            arch,
            &Case {
                window: Some(128),
                ..decode.clone()
            },
        )
        .expect("as before");
        assert!(
            last.0 * 4 < long.0 && last.1 * 4 < long.1,
            "{arch}: {last:?} of {long:?}"
        );
    }
}

/// Pages are read as widely as a cache that lies in one piece, and cost as many bytes but for the table.
#[test]
fn pages_are_read_as_widely() {
    let Some(tools) = toolchain() else { return };
    let mut random = Random(31);
    let case = |page| Case {
        dtype: DType::F16,
        heads: 8,
        shared: 2,
        queries: 1,
        keys: 512,
        width: 128,
        causal: true,
        window: None,
        lengths: vec![512, 300, 77],
        spelling: Spelling::Bool,
        page,
        heads_first: false,
    };
    for arch in ["gfx942", "gfx1201"] {
        let mut read = [0, 0];
        for (read, page) in read.iter_mut().zip([None, Some(64)]) {
            let (outcome, plan) = run(&tools, arch, &case(page), &mut random, &mut Tally::default());
            let (kernel, _) = attentions(&plan)[0];
            let widths = match &kernel.mapping {
                Mapping::FlashMatrix(t) => [t.key.width, t.value.width],
                Mapping::FlashLanes(t) => [t.key.width, t.value.width],
                other => panic!("{other}"),
            };
            assert_eq!(widths, [8, 8], "{arch} {page:?}: {}", kernel.mapping);
            *read = outcome.launches[0].counters.global_load_bytes;
        }
        assert!(read[1] <= read[0] * 3 / 2, "{arch}: {read:?}");
    }
}
