//! Softmaxes whose scores a mask hides by a very negative number, or raises by a very large one: random cases on
//! emulated GPUs and on the CPU, against the reference evaluator.
//!
//! A graph is built once for a GPU and for the CPU, and runs with several masks. `GRAPHC_ALL_MODELS=1` runs 500 cases.

use graphc::ir::graph::eval::evaluate;
use graphc::passes::OptLevel;
use graphc_tests::emulator::toolchain;
use graphc_tests::everything;
use graphc_tests::quantised::Random;
use graphc_tests::reference::{Tensors, assert_matches, compile_cpu};
use ir::kernel::{Body, Mapping};
use ir::plan::Plan;
use ir::{DType, Graph, HostTensor};

/// Every kind of softmax is compiled for some of them.
const GPUS: [&str; 8] = [
    "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201",
];

/// Masks that a graph runs with.
const MASKS: usize = 5;

/// Numbers that models hide scores by, and some that raise them.
const NUMBERS: [f64; 18] = [
    f64::NEG_INFINITY,
    f32::MIN as f64,
    -1e4,
    -65504.0,
    -1e5,
    -1e6,
    -1e9,
    -4e9,
    -1e10,
    -1e20,
    -1e30,
    -1e38,
    -2e38,
    1e4,
    1e6,
    1e10,
    1e30,
    1e38,
];

/// How the scores become weights.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Form {
    /// One op, to which the mask is added.
    Attention,
    /// Two products and a softmax, with the mask between them.
    SpelledOut,
    /// Hidden by the positions of keys: those past the query's own or past the sequence's end. Some sequences have
    /// none.
    ByPosition,
    /// As `Attention`, of keys and values that lie in pages.
    Paged,
    Softmax,
    LogSoftmax,
    LogSumExp,
    /// A softmax behind a product that is cut along its depth.
    OfProduct,
}

#[derive(Clone, Debug)]
struct Case {
    form: Form,
    gpu: &'static str,
    dtype: DType,
    heads: [usize; 2],
    queries: usize,
    keys: usize,
    width: usize,
    causal: bool,
    /// A number that hides, where the graph has it.
    hidden: f64,
    /// A factor of queries and keys.
    large: f64,
}

impl Case {
    fn text(&self) -> String {
        let Case {
            dtype,
            heads: [heads, shared],
            queries,
            keys,
            width,
            hidden,
            ..
        } = self;
        let input = |name: &str, shape: &[usize]| format!("{name} = input \"{name}\" : {dtype}{shape:?}");
        let q = input("q", &[2, *heads, *queries, *width]);
        let [k, v] = ["k", "v"].map(|name| input(name, &[2, *shared, *keys, *width]));
        let m = input("m", &[2, 1, *queries, *keys]);
        let causal = if self.causal { ", causal" } else { "" };
        let attention = format!("y = attention q, k, v, m {{scale=0.125, mask{causal}}}");
        let row = input("m", &[*queries, *keys]);
        let lines: Vec<String> = match self.form {
            Form::Attention => vec![q, k, v, m, attention],
            Form::SpelledOut => vec![
                q,
                k,
                v,
                m,
                format!("c = constant 0.125 : {dtype}[]"),
                "d = contract q, k {transpose_rhs}".into(),
                "e = mul d, c".into(),
                "f = add e, m".into(),
                "w = softmax f {axis=3}".into(),
                "y = contract w, v".into(),
            ],
            Form::ByPosition => vec![
                q,
                k,
                v,
                "n = input \"n\" : i64[2]".into(),
                "l = reshape n : i64[2, 1, 1, 1]".into(),
                format!("i = iota {{axis=2}} : i64[1, 1, {queries}, 1]"),
                format!("j = iota {{axis=3}} : i64[1, 1, 1, {keys}]"),
                "short = lt j, l".into(),
                "past = le j, i".into(),
                "seen = and short, past".into(),
                format!("zero = constant 0.0 : {dtype}[]"),
                format!("hidden = constant {hidden:e} : {dtype}[]"),
                "m = select seen, zero, hidden".into(),
                "y = attention q, k, v, m {scale=0.125, mask}".into(),
            ],
            Form::Paged => {
                let pages = keys / 16;
                let pool = |name: &str| input(name, &[2 * pages, 16, *shared, *width]);
                let mut lines = vec![q, m, format!("t = input \"t\" : i32[2, {pages}]")];
                for (name, from) in [("k", "kp"), ("v", "vp")] {
                    lines.extend([
                        pool(from),
                        format!("{name}g = take {from}, t {{axis=0}}"),
                        format!("{name}r = reshape {name}g : {dtype}[2, {keys}, {shared}, {width}]"),
                        format!("{name} = transpose {name}r {{perm=[0, 2, 1, 3]}}"),
                    ]);
                }
                lines.push(attention);
                lines
            }
            Form::Softmax => vec![row, "y = softmax m {axis=1}".into()],
            Form::LogSoftmax => vec![row, "y = log_softmax m {axis=1}".into()],
            Form::LogSumExp => vec![
                row,
                "top = reduce m {op=max, axes=[1], keep_dims}".into(),
                "infinite = is_inf top".into(),
                format!("zero = constant 0.0 : {dtype}[]"),
                "shift = select infinite, zero, top".into(),
                "below = sub m, shift".into(),
                "power = exp below".into(),
                "sum = reduce power {op=sum, axes=[1], keep_dims}".into(),
                "log = log sum".into(),
                "y = add log, shift".into(),
            ],
            Form::OfProduct => vec![
                input("q", &[*queries, 8192]),
                input("k", &[8192, *keys]),
                row,
                "p = contract q, k".into(),
                "s = add p, m".into(),
                "y = softmax s {axis=1}".into(),
            ],
        };
        format!(
            "graph @hidden stage=import {{\n  {}\n  return y as \"y\"\n}}\n",
            lines.join("\n  ")
        )
    }

    /// The same for the evaluator, which rounds nothing between ops: scores are rounded to f32 where devices have them.
    /// A very negative number that is added leaves no digits of them.
    fn reference(&self) -> Graph {
        let Case {
            dtype,
            heads: [heads, shared],
            queries,
            keys,
            width,
            ..
        } = self;
        let text = self.text();
        let rounded = |text: &str, name: &str, op: &str| {
            let line = format!("{name} = {op}");
            assert!(text.contains(&line), "{text}");
            text.replace(
                &line,
                &format!("{name}_exact = {op}\n  {name} = cast {name}_exact {{to=f32}}"),
            )
        };
        let text = match (text.find("  y = attention"), self.form) {
            (None, Form::SpelledOut) => rounded(&rounded(&text, "e", "mul d, c"), "f", "add e, m"),
            (None, Form::OfProduct) => rounded(&text, "s", "add p, m"),
            (None, _) => text,
            (Some(at), _) => {
                let group = heads / shared;
                let mask = [2, 1, 1, *queries, *keys];
                let reach = *keys as i64 - *queries as i64;
                let hide = match self.causal {
                    true => "seen = le column, reach\n  score = select seen, f, infinite",
                    false => "score = cast f {to=f32}",
                };
                let text = format!(
                    "{}  qf = cast q {{to=f32}}\n  kf = cast k {{to=f32}}\n  vf = cast v {{to=f32}}\n  mf = cast m {{to=f32}}
  qs = reshape qf : f32[2, {shared}, {group}, {queries}, {width}]
  ks = reshape kf : f32[2, {shared}, 1, {keys}, {width}]
  vs = reshape vf : f32[2, {shared}, 1, {keys}, {width}]
  ms = reshape mf : f32{mask:?}
  c = constant 0.125 : f32[]
  infinite = constant -inf : f32[]
  reach_at = constant {reach} : i64[]
  row = iota {{axis=0}} : i64[{queries}, {keys}]
  column = iota {{axis=1}} : i64[{queries}, {keys}]
  reach = add row, reach_at
  d = contract qs, ks {{transpose_rhs}}
  e = mul d, c
  f = add e, ms
  {hide}
  w = softmax score {{axis=4}}
  o = contract w, vs
  yf = reshape o : f32[2, {heads}, {queries}, {width}]
  y = cast yf {{to={dtype}}}
  return y as \"y\"\n}}\n",
                    &text[..at]
                );
                rounded(&rounded(&text, "e", "mul d, c"), "f", "add e, ms")
            }
        };
        ir::graph::parse::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    fn graph(&self) -> Graph {
        let text = self.text();
        ir::graph::parse::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    /// Numbers whose products and sums are exact in f32, in any order: the rounding of a score to the digits that a
    /// large mask leaves is then the same everywhere.
    fn inputs(&self, random: &mut Random) -> Tensors {
        let graph = self.graph();
        let inputs = graph.inputs().iter().map(|input| {
            let ty = graph.ty(input.node.into());
            let shape: Vec<usize> = ty.shape.iter().map(|d| d.as_const().expect("known") as usize).collect();
            let count = shape.iter().product();
            let tensor = match (input.name.as_str(), ty.dtype) {
                ("n", _) => {
                    let lengths = [0, random.below(self.keys + 1) as i64];
                    HostTensor::from_i64(DType::I64, shape, &lengths)
                }
                ("t", _) => {
                    let pages: Vec<i64> = (0..count).map(|_| random.below(count) as i64).collect();
                    HostTensor::from_i64(DType::I32, shape, &pages)
                }
                ("m", dtype) => HostTensor::from_f64(dtype, shape, &self.mask(count, random)),
                (name, dtype) => {
                    let factor = if name.starts_with('v') { 1.0 } else { self.large };
                    let quarters = (0..count).map(|_| (random.below(9) as f64 / 4.0 - 1.0) * factor);
                    HostTensor::from_f64(dtype, shape, &quarters.collect::<Vec<f64>>())
                }
            };
            (input.name.clone(), tensor.expect("as many"))
        });
        inputs.collect()
    }

    /// A number that the type has.
    fn number(&self, random: &mut Random) -> f64 {
        loop {
            let number = random.of(&NUMBERS);
            match self.dtype {
                DType::F16 if number.is_finite() && number.abs() > 65504.0 => {}
                DType::BF16 if number == f64::from(f32::MIN) => return -(2.0 - 2f64.powi(-7)) * 2f64.powi(127),
                _ => return number,
            }
        }
    }

    /// Rows of masks, each of a kind of its own.
    fn mask(&self, count: usize, random: &mut Random) -> Vec<f64> {
        let mut mask = vec![0.0; count];
        // Rows of nothing else have scores of their own.
        let scores = matches!(self.form, Form::Softmax | Form::LogSoftmax | Form::LogSumExp);
        let alike = random.below(3) == 0;
        let same = (random.below(10), self.number(random));
        for row in mask.chunks_mut(self.keys) {
            let n = row.len();
            let (kind, number) = if alike {
                same
            } else {
                (random.below(10), self.number(random))
            };
            let own = |random: &mut Random| match scores {
                true => random.below(65) as f64 / 8.0 - 4.0,
                false => 0.0,
            };
            row.iter_mut().for_each(|m| *m = own(random) * self.large.min(64.0));
            let (from, to) = match kind {
                // Padding to the left, to the right, all but one, and all.
                1 => (0, random.below(n + 1)),
                2 => (random.below(n), n),
                3 | 4 => (0, n),
                _ => (0, 0),
            };
            let shown = row[n / 3];
            row[from..to].fill(number);
            match kind {
                3 => row[n / 3] = shown,
                5 => row
                    .iter_mut()
                    .filter(|_| random.below(2) == 0)
                    .for_each(|m| *m = number),
                6 => {
                    let other = self.number(random);
                    for m in row {
                        *m = [number, other, *m][random.below(3)];
                    }
                }
                7 => row.iter_mut().for_each(|m| *m = self.number(random)),
                8 if random.below(4) == 0 => row[n / 2] = f64::NAN,
                _ => {}
            }
        }
        mask
    }
}

/// Random attentions: long and short rows of queries, decodes whose keys are many, heads of many widths.
fn attentions(count: usize) -> Vec<Case> {
    let mut random = Random(0x5eed);
    let random = &mut random;
    let forms = [
        Form::Attention,
        Form::SpelledOut,
        Form::ByPosition,
        Form::Attention,
        Form::Paged,
    ];
    let cases = (0..count).map(|i| {
        let form = forms[i % forms.len()];
        let dtype = match form {
            // In narrower types its scores are rounded on the way, where one op's are not.
            Form::SpelledOut => DType::F32,
            _ => random.of(&[DType::F32, DType::F16, DType::BF16]),
        };
        let decode = random.below(3) == 0;
        let keys = match (decode, form) {
            (true, _) => 16 * (20 + random.below(60)),
            (_, Form::Paged) => 16 * (1 + random.below(8)),
            _ => 1 + random.below(150),
        };
        let causal = form == Form::Attention && random.below(3) == 0;
        let queries = match (decode, causal) {
            (true, _) => 1 + random.below(2),
            (_, true) => 1 + random.below(keys.min(70)),
            _ => 1 + random.below(70),
        };
        let shared = random.of(&[1, 2]);
        let heads = if form == Form::SpelledOut {
            shared
        } else {
            shared * random.of(&[1, 2])
        };
        Case {
            form,
            gpu: GPUS[(i + i / GPUS.len()) % GPUS.len()],
            dtype,
            heads: [heads, shared],
            queries,
            keys,
            // Wider heads' scores go through LDS.
            width: if i % 16 == 7 {
                520
            } else {
                random.of(&[16, 32, 64, 64, 128])
            },
            causal,
            hidden: match dtype {
                DType::F16 => f64::NEG_INFINITY,
                _ => random.of(&[-1e38, -3e38, -2e30]),
            },
            large: match dtype {
                DType::F16 => random.of(&[1.0, 1.0, 16.0, 128.0]),
                _ => random.of(&[1.0, 1.0, 16.0, 262_144.0]),
            },
        }
    });
    cases.collect()
}

/// Random rows: some that a wave holds, some that a workgroup does, some that are read again.
fn rows(count: usize) -> Vec<Case> {
    let mut random = Random(0xf01d);
    let random = &mut random;
    let forms = [Form::Softmax, Form::LogSoftmax, Form::LogSumExp, Form::OfProduct];
    let cases = (0..count).map(|i| {
        let form = forms[i % forms.len()];
        let of_product = form == Form::OfProduct;
        Case {
            form,
            gpu: GPUS[(i + i / GPUS.len()) % GPUS.len()],
            dtype: match of_product || form == Form::LogSumExp {
                true => DType::F32,
                false => random.of(&[DType::F32, DType::F16, DType::BF16]),
            },
            heads: [1, 1],
            queries: if of_product { 17 } else { 1 + random.below(20) },
            keys: match of_product {
                true => 40 + random.below(40),
                false => random.of(&[1, 7, 64, 257, 1000, 5000, 70_000]),
            },
            width: 1,
            causal: false,
            hidden: 0.0,
            large: if of_product { 1.0 } else { random.of(&[1.0, 64.0]) },
        }
    });
    cases.collect()
}

/// How many kernels had which mapping.
#[derive(Default, Debug)]
struct Mapped {
    by_matrix: usize,
    by_lanes: usize,
    by_lds: usize,
    in_parts: usize,
    rows: usize,
}

impl Mapped {
    fn count(&mut self, plan: &Plan) {
        for kernel in plan.kernels.values() {
            match (&kernel.body, &kernel.mapping) {
                (Body::Attention(_), Mapping::FlashMatrix(_)) => self.by_matrix += 1,
                (Body::Attention(_), Mapping::FlashLanes(_)) => self.by_lanes += 1,
                (Body::Attention(_), _) => self.by_lds += 1,
                (Body::Row(_), _) => self.rows += 1,
                _ => {}
            }
            self.in_parts += usize::from(matches!(&kernel.body, Body::Attention(a) if a.row_weights.is_some()));
        }
    }
}

/// Runs each case with several masks.
fn check(cases: &[Case]) -> Mapped {
    let mut mapped = Mapped::default();
    let Some(tools) = toolchain() else { return mapped };
    let mut random = Random(77);
    for (number, case) in cases.iter().enumerate() {
        let (graph, reference) = (case.graph(), case.reference());
        let built = tools.build(&graph, case.gpu, None);
        mapped.count(&built.program.variants[0].plan);
        let cpu = compile_cpu(&graph, OptLevel::O2, None);
        for mask in 0..MASKS {
            let inputs = case.inputs(&mut random);
            let want = evaluate(&reference, &inputs).expect("it evaluates");
            let context = format!("case {number}, mask {mask}: {case:?}");
            let got = tools.run(&built, &inputs, 0).outputs;
            assert_matches(&got, &want, case.dtype, &format!("{}, {context}", case.gpu));
            let got = cpu.run(&inputs).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_matches(&got, &want, case.dtype, &format!("CPU, {context}"));
        }
    }
    println!("{} cases of {} graphs: {mapped:?}", cases.len() * MASKS, cases.len());
    mapped
}

#[test]
fn hidden_scores_of_attention() {
    let mapped = check(&attentions(if everything() { 76 } else { 12 }));
    if toolchain().is_some() {
        assert!(
            mapped.by_matrix > 0 && mapped.by_lanes > 0 && mapped.by_lds > 0 && mapped.in_parts > 0,
            "{mapped:?}"
        );
    }
}

#[test]
fn hidden_scores_of_rows() {
    let mapped = check(&rows(if everything() { 24 } else { 6 }));
    assert!(mapped.rows > 0 || toolchain().is_none(), "{mapped:?}");
}
