//! A graph that is shared among ranks means what it did: by the reference evaluator, optimised, and as plans.

use indexmap::IndexMap;
use ir::graph::eval::{evaluate, ranks::evaluate_ranks};
use ir::op::{BinaryOp, Composite, Contract, Gather, ReduceOp, Scatter, UnaryOp, View};
use ir::plan::{BufferId, Place, Step, Work};
use ir::schedule::LaneKind;
use ir::types::Scalar;
use ir::{ConstId, DType, Graph, HostTensor, Op, Origin, Plan, Shape, Table, Target, TensorType, Value};

use super::*;
use crate::testing;
use crate::{OptLevel, PlanOptions, ScheduleOptions};

/// A graph in the making, of f32 and known sizes.
pub(super) struct Model {
    pub graph: Graph,
    state: u64,
}

impl Model {
    pub fn new(seed: u64) -> Model {
        Model {
            graph: Graph::new("model"),
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        }
    }

    pub fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state >> 20
    }

    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.next() as usize % list.len()]
    }

    pub fn input(&mut self, name: &str, dtype: DType, shape: &[i64]) -> Value {
        let ty = TensorType::new(dtype, Shape::from(shape));
        self.graph.add_input(name, ty, Origin::Unknown)
    }

    pub fn weight(&mut self, shape: &[i64]) -> Value {
        let count: i64 = shape.iter().product();
        let scale = 1.0 / (shape[0] as f64).sqrt();
        let values: Vec<f64> = (0..count)
            .map(|_| (self.next() % 2001) as f64 / 1000.0 - 1.0)
            .map(|v| v * scale)
            .collect();
        let sizes: Vec<usize> = shape.iter().map(|d| *d as usize).collect();
        let tensor = HostTensor::from_f64(DType::F32, sizes, &values).unwrap();
        self.graph.add_constant(None, tensor, Origin::Unknown)
    }

    pub fn add(&mut self, op: Op, operands: &[Value]) -> Value {
        self.graph.add(op, operands, Origin::Unknown).unwrap().into()
    }

    pub fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        self.add(Op::binary(op), &[a, b])
    }

    pub fn shape(&self, value: Value) -> Vec<i64> {
        self.graph.ty(value).shape.as_consts().unwrap()
    }

    fn reshape(&mut self, value: Value, shape: &[i64]) -> Value {
        self.add(Op::View(View::Reshape(Shape::from(shape))), &[value])
    }

    pub fn linear(&mut self, x: Value, out: i64, bias: bool) -> Value {
        let width = *self.shape(x).last().unwrap();
        let transposed = self.pick(&[false, true]);
        let weight = match transposed {
            true => self.weight(&[out, width]),
            false => self.weight(&[width, out]),
        };
        let contract = Contract {
            transpose_lhs: false,
            transpose_rhs: transposed,
            out: DType::F32,
        };
        let y = self.add(Op::Contract(contract), &[x, weight]);
        if !bias {
            return y;
        }
        let bias = self.weight(&[out]);
        self.binary(BinaryOp::Add, y, bias)
    }

    pub fn mlp(&mut self, x: Value, hidden: i64) -> Value {
        let width = *self.shape(x).last().unwrap();
        let up = self.linear(x, hidden, true);
        let up = self.add(Op::unary(UnaryOp::Gelu), &[up]);
        self.linear(up, width, true)
    }

    /// `silu(gate) · up`, and back.
    pub fn gated(&mut self, x: Value, hidden: i64) -> Value {
        let width = *self.shape(x).last().unwrap();
        let gate = self.linear(x, hidden, false);
        let gate = self.add(Op::unary(UnaryOp::Silu), &[gate]);
        let up = self.linear(x, hidden, false);
        let both = self.binary(BinaryOp::Mul, gate, up);
        self.linear(both, width, false)
    }

    pub fn norm(&mut self, x: Value) -> Value {
        let axis = self.shape(x).len() - 1;
        let scale = self.weight(&[*self.shape(x).last().unwrap()]);
        let epsilon = Scalar::Float(1e-5);
        self.add(Op::Composite(Composite::RmsNorm { axis, epsilon }), &[x, scale])
    }

    fn heads(&mut self, x: Value, heads: i64, size: i64) -> Value {
        let [batch, length, _] = self.shape(x)[..] else {
            panic!("three axes")
        };
        let x = self.reshape(x, &[batch, length, heads, size]);
        self.add(Op::View(View::Transpose(vec![0, 2, 1, 3])), &[x])
    }

    /// Attention of `heads` that share `shared` keys; with a cache, one position is written to it and read with the
    /// others.
    pub fn attention(
        &mut self,
        x: Value,
        heads: i64,
        shared: i64,
        size: i64,
        cache: Option<(Value, &str, i64)>,
    ) -> Value {
        let [batch, length, width] = self.shape(x)[..] else {
            panic!("three axes")
        };
        let query = self.linear(x, heads * size, false);
        let query = self.heads(query, heads, size);
        let mut sides = Vec::new();
        for side in ["keys", "values"] {
            let made = self.linear(x, shared * size, false);
            let made = self.heads(made, shared, size);
            let Some((position, name, capacity)) = cache else {
                sides.push(made);
                continue;
            };
            let name = format!("{side}{name}");
            let kept = self.input(&name, DType::F32, &[batch, shared, capacity, size]);
            let at = self.reshape(position, &[1, 1, 1, 1]);
            let row = Shape::from(&[batch, shared, 1, size][..]);
            let at = self.add(Op::View(View::Broadcast(row)), &[at]);
            let scatter = Scatter::Elements { axis: 2, reduce: None };
            let now = self.add(Op::Scatter(scatter), &[kept, at, made]);
            self.graph.add_output(format!("{name}_next"), now);
            sides.push(now);
        }
        let composite = Composite::Attention {
            scale: Scalar::Float(0.5),
            causal: false,
            mask: false,
            scales: false,
        };
        let seen = self.add(Op::Composite(composite), &[query, sides[0], sides[1]]);
        let seen = self.add(Op::View(View::Transpose(vec![0, 2, 1, 3])), &[seen]);
        let seen = self.reshape(seen, &[batch, length, heads * size]);
        self.linear(seen, width, false)
    }

    pub fn embedding(&mut self, ids: Value, vocabulary: i64, width: i64) -> Value {
        let table = self.weight(&[vocabulary, width]);
        self.add(Op::Gather(Gather::Take { axis: 0 }), &[table, ids])
    }

    pub fn plus(&mut self, x: Value, f: impl FnOnce(&mut Model, Value) -> Value) -> Value {
        let normed = self.norm(x);
        let y = f(self, normed);
        self.binary(BinaryOp::Add, x, y)
    }
}

pub(super) fn target() -> Target {
    "gfx90a".parse().unwrap()
}

/// A bus on which everything that divides is worth sharing.
pub(super) fn options(ranks: u32, states: &[&str]) -> ShardOptions {
    ShardOptions {
        bus_gbps: 1e6,
        latency_us: 0.02,
        states: states.iter().map(|s| ((*s).to_owned(), format!("{s}_next"))).collect(),
        ..ShardOptions::new(ranks)
    }
}

fn share(graph: &Graph, target: &Target, options: &ShardOptions) -> Sharded {
    let passes = OptimizeOptions {
        verify: true,
        ..OptimizeOptions::default()
    };
    let (prepared, _) = prepare(graph.clone(), target, &passes).unwrap_or_else(|e| panic!("{e}\n{}", e.graph));
    shard(&prepared, target, options).unwrap_or_else(|e| panic!("{e}\n{prepared}"))
}

pub(super) type Arrays = IndexMap<String, HostTensor>;

/// What each rank is given of the whole's inputs.
fn parts(graph: &Graph, cuts: &[Option<u32>], ranks: u32, inputs: &Arrays) -> Vec<Arrays> {
    let of = |rank: usize| {
        let cut = graph.inputs().iter().zip(cuts).map(|(input, cut)| {
            let whole = &inputs[&input.name];
            let part = cut.map_or(whole.clone(), |axis| {
                let count = whole.shape[axis as usize] / ranks as usize;
                whole.part(axis as usize, rank * count, count).unwrap()
            });
            (input.name.clone(), part)
        });
        cut.collect()
    };
    (0..ranks as usize).map(of).collect()
}

/// Compares the ranks' outputs with the whole's; the largest difference, relative to a number's size or 1.
fn difference(whole: &Arrays, ranks: &[Arrays], cuts: &[Option<u32>]) -> f64 {
    let mut worst: f64 = 0.0;
    for ((name, want), cut) in whole.iter().zip(cuts) {
        let got: Vec<HostTensor> = ranks.iter().map(|outputs| outputs[name].clone()).collect();
        let got = match cut {
            Some(axis) => vec![HostTensor::join(&got, *axis as usize).unwrap()],
            None => got,
        };
        for got in got {
            assert_eq!((&got.shape, got.dtype), (&want.shape, want.dtype), "{name}");
            for (a, b) in got.to_f64().iter().zip(want.to_f64()) {
                let apart = (a - b).abs() / b.abs().max(1.0);
                worst = worst.max(if apart.is_nan() { f64::INFINITY } else { apart });
            }
        }
    }
    worst
}

/// Checks that the ranks mean what the graph does, as they are, optimised, and as plans for the CPU.
fn check(graph: &Graph, options: &ShardOptions) -> Sharded {
    let inputs = testing::inputs(graph);
    let whole = evaluate(graph, &inputs).unwrap();
    let cpu = Target::cpu();
    // What is worth it on a GPU means the same on the CPU.
    let sharded = share(graph, &target(), options);
    for rank in &sharded.graphs {
        ir::graph::verify::verify(rank).unwrap_or_else(|e| panic!("{e}\n{rank}"));
    }
    let given = parts(graph, &sharded.inputs, options.ranks, &inputs);
    let got = evaluate_ranks(&sharded.graphs, &given).unwrap_or_else(|e| panic!("{e}\n{}", sharded.graphs[0]));
    let apart = difference(&whole, &got, &sharded.outputs);
    assert!(apart < 1e-6, "{apart}\n{}\n{}", sharded.report, sharded.graphs[0]);
    let mut constants: Table<ConstId, ir::graph::Constant> = Table::new();
    let mut plans: Vec<Plan> = Vec::new();
    let passes = after(&OptimizeOptions::at(OptLevel::O2));
    let mut cores = Vec::new();
    for rank in &sharded.graphs {
        let (core, _) = crate::optimize(rank.clone(), &cpu, &passes).unwrap_or_else(|e| panic!("{e}\n{}", e.graph));
        let (schedule, _) = crate::schedule(&core, &cpu, &ScheduleOptions::default()).unwrap();
        let mut plan = crate::plan(&core, &schedule, &cpu, &PlanOptions::default()).unwrap();
        for buffer in plan.buffers.values_mut() {
            if let Place::Constant(id) = &mut buffer.place {
                *id = constants.push(core.constants()[*id].clone());
            }
        }
        plans.push(plan);
        cores.push(core);
    }
    let got = evaluate_ranks(&cores, &given).unwrap_or_else(|e| panic!("{e}\n{}", cores[0]));
    let apart = difference(&whole, &got, &sharded.outputs);
    assert!(apart < 1e-4, "{apart}\n{}", cores[0]);
    // Where no rank takes its part of a value that is whole, one set of kernels serves all.
    let takes = |graph: &Graph| graph.nodes().values().filter(|n| matches!(n.op, Op::Gather(_))).count();
    if takes(graph) == takes(&sharded.graphs[0]) {
        let kernels = |plan: &Plan| plan.kernels.values().map(ToString::to_string).collect::<Vec<_>>();
        for plan in &plans[1..] {
            assert_eq!(kernels(plan), kernels(&plans[0]));
        }
    }
    let plans: Vec<&Plan> = plans.iter().collect();
    let got = ir::plan::eval::evaluate_ranks(&plans, &constants, &given).unwrap();
    let apart = difference(&whole, &got, &sharded.outputs);
    assert!(apart < 1e-3, "{apart}\n{}", plans[0]);
    let plan = gpu_plan(&sharded.graphs[0]);
    let kinds: Vec<LaneKind> = plan.lanes.values().map(|lane| lane.kind).collect();
    // The verifier has held every buffer's life against the waits between lanes.
    assert_eq!(kinds.contains(&LaneKind::Collective), overlaps(&plan), "{plan}");
    sharded
}

/// A rank's plan for the GPU that it was shared for.
fn gpu_plan(rank: &Graph) -> Plan {
    let passes = after(&OptimizeOptions::at(OptLevel::O2));
    let (core, _) = crate::optimize(rank.clone(), &target(), &passes).unwrap_or_else(|e| panic!("{e}\n{}", e.graph));
    let (schedule, _) = crate::schedule(&core, &target(), &ScheduleOptions::default()).unwrap();
    crate::plan(&core, &schedule, &target(), &PlanOptions::default()).unwrap_or_else(|e| panic!("{e}\n{schedule}"))
}

/// Says whether a collective is followed by what it need not have ended for.
fn overlaps(plan: &Plan) -> bool {
    let computes = |step: &&Step| !matches!(step.work, Work::Copy { .. });
    let steps: Vec<&Step> = plan.steps.values().filter(computes).collect();
    steps.windows(2).any(|pair| {
        let result = collective(pair[0]);
        result.is_some_and(|result| collective(pair[1]).is_none() && !touches(plan, pair[1], result))
    })
}

/// Says whether a step reads or writes the memory of a buffer.
fn touches(plan: &Plan, step: &Step, buffer: BufferId) -> bool {
    step.work.buffers().into_iter().any(|mut b| {
        while b != buffer
            && let Place::Arena {
                in_place_of: Some(of), ..
            } = plan.buffers[b].place
        {
            b = of;
        }
        b == buffer
    })
}

/// What a collective's result is in.
fn collective(step: &Step) -> Option<BufferId> {
    match &step.work {
        Work::Call { call, results, .. } if call.as_collective().is_some() => results.first().copied(),
        _ => None,
    }
}

#[test]
fn an_mlp_is_columns_then_rows_and_one_sum() {
    let mut model = Model::new(1);
    let x = model.input("x", DType::F32, &[4, 32]);
    let y = model.mlp(x, 96);
    model.graph.add_output("y", y);
    for ranks in [2, 4] {
        let report = check(&model.graph, &options(ranks, &[])).report;
        assert_eq!((report.all_reduces, report.all_gathers), (1, 0), "{report}");
        assert_eq!(report.collective_bytes, 4 * 32 * 4, "{report}");
        // Both weights and the first bias are cut; the second bias is added once, by all.
        let cut = (32 * 96 * 2 + 96) * 4 / ranks as usize;
        assert_eq!(report.rank_bytes, vec![cut + 32 * 4; ranks as usize], "{report}");
        let how: Vec<&str> = report.shared.iter().map(|s| s.how.split(':').next().unwrap()).collect();
        assert_eq!(how, ["columns", "rows"]);
    }
}

#[test]
fn what_does_not_divide_stays_whole_and_says_why() {
    let mut model = Model::new(2);
    let x = model.input("x", DType::F32, &[3, 33]);
    let y = model.mlp(x, 55);
    model.graph.add_output("y", y);
    let report = check(&model.graph, &options(2, &[])).report;
    assert_eq!((report.all_reduces, report.all_gathers), (0, 0));
    assert_eq!(report.rank_bytes, [report.whole_bytes; 2]);
    let text = report.to_string();
    assert!(text.contains("neither 55 columns nor 33 rows divide by 2"), "{text}");
}

#[test]
fn a_slow_bus_shares_nothing() {
    let mut model = Model::new(3);
    let x = model.input("x", DType::F32, &[64, 32]);
    let y = model.mlp(x, 64);
    model.graph.add_output("y", y);
    let slow = ShardOptions {
        bus_gbps: 1e-3,
        ..ShardOptions::new(2)
    };
    let report = check(&model.graph, &slow).report;
    assert_eq!(report.rank_bytes, [report.whole_bytes; 2], "{report}");
    assert!(report.to_string().contains("0.001 GB/s"), "{report}");
}

/// Two layers with caches: heads that share keys, and a vocabulary.
pub(super) fn decoder(heads: i64, shared: i64) -> Graph {
    let mut model = Model::new(4);
    let (size, width, capacity) = (8, 32, 12);
    let ids = model.input("ids", DType::I64, &[2, 1]);
    let position = model.input("position", DType::I64, &[1]);
    let mut h = model.embedding(ids, 64, width);
    for layer in ["0", "1"] {
        let cache = Some((position, layer, capacity));
        h = model.plus(h, |m, x| m.attention(x, heads, shared, size, cache));
        h = model.plus(h, |m, x| m.gated(x, 96));
    }
    let h = model.norm(h);
    let logits = model.linear(h, 64, false);
    model.graph.add_output("logits", logits);
    model.graph
}

pub(super) const STATES: [&str; 4] = ["keys0", "values0", "keys1", "values1"];

#[test]
fn a_decoder_has_two_sums_a_layer_and_its_caches_by_heads() {
    let graph = decoder(4, 2);
    let sharded = check(&graph, &options(2, &STATES));
    let report = &sharded.report;
    // The lookup and the last projection are joined.
    assert_eq!((report.all_reduces, report.all_gathers), (4, 2), "{report}");
    let cut = |name: &str| {
        let at = graph.inputs().iter().position(|i| i.name == name).unwrap();
        sharded.inputs[at]
    };
    assert_eq!(STATES.map(cut), [Some(1); 4], "{report}");
    assert_eq!((cut("ids"), cut("position")), (None, None));
    // Norms are whole: five of them.
    let norms = 5 * 32 * 4;
    assert_eq!(
        report.rank_bytes,
        [norms + (report.whole_bytes - norms) / 2; 2],
        "{report}"
    );
}

#[test]
fn keys_that_do_not_divide_are_whole_and_queries_are_not() {
    let sharded = check(&decoder(4, 2), &options(4, &STATES));
    let text = sharded.report.to_string();
    assert!(text.contains("2 keys do not divide by 4"), "{text}");
    assert_eq!(sharded.inputs.iter().flatten().count(), 0, "{text}");
    // The first layer's input is cut already, where joining it later is as cheap as sharing its heads.
    let mut attention = sharded.report.shared.iter().filter(|s| s.op == "attention");
    assert!(attention.any(|s| s.is_split), "{text}");
}

#[test]
fn random_models_mean_the_same_on_ranks() {
    for seed in 10..26 {
        let mut model = Model::new(seed);
        let width = model.pick(&[12, 16, 24, 30]);
        let ids = model.input("ids", DType::I64, &[2, 3]);
        let mut h = model.embedding(ids, 20, width);
        for _ in 0..3 {
            match model.pick(&[0, 1, 2, 3, 4]) {
                0 => {
                    let hidden = model.pick(&[18, 24, 40]);
                    h = model.plus(h, |m, x| m.mlp(x, hidden));
                }
                1 => {
                    let hidden = model.pick(&[18, 24, 40]);
                    h = model.plus(h, |m, x| m.gated(x, hidden));
                }
                2 => {
                    let (heads, shared) = model.pick(&[(4, 4), (4, 2), (6, 3), (4, 1), (3, 3)]);
                    h = model.plus(h, |m, x| m.attention(x, heads, shared, 4, None));
                }
                // Two branches that are summed once.
                3 => {
                    let hidden = model.pick(&[18, 24]);
                    h = model.plus(h, |m, x| {
                        let (a, b) = (m.mlp(x, hidden), m.gated(x, hidden));
                        m.binary(BinaryOp::Sub, a, b)
                    });
                }
                _ => {
                    let scale = model.weight(&[width]);
                    let mean = model.add(
                        Op::Reduce {
                            op: ReduceOp::Max,
                            axes: vec![1],
                            keep_dims: true,
                        },
                        &[h],
                    );
                    let scaled = model.binary(BinaryOp::Mul, mean, scale);
                    h = model.binary(BinaryOp::Add, h, scaled);
                }
            }
        }
        let classes = model.pick(&[10, 12, 16]);
        let y = model.linear(h, classes, true);
        let y = model.add(Op::Composite(Composite::Softmax { axis: 2 }), &[y]);
        model.graph.add_output("y", y);
        let ranks = model.pick(&[2, 3, 4]);
        check(&model.graph, &options(ranks, &[]));
        let halves = ShardOptions {
            halves: Halves::Always,
            ..options(ranks, &[])
        };
        check(&model.graph, &halves);
    }
}

#[test]
fn halves_of_a_sum_travel_while_the_other_is_computed() {
    let mut model = Model::new(5);
    let x = model.input("x", DType::F32, &[2, 6, 32]);
    let h = model.plus(x, |m, x| m.attention(x, 4, 2, 8, None));
    let h = model.plus(h, |m, x| m.gated(x, 96));
    model.graph.add_output("y", h);
    let always = ShardOptions {
        halves: Halves::Always,
        ..options(2, &[])
    };
    let sharded = check(&model.graph, &always);
    let counts = (sharded.report.all_reduces, sharded.report.in_halves);
    assert_eq!(counts, (4, 2), "{}", sharded.report);
    assert!(sharded.report.to_string().contains("2 sums are made in halves"));
    assert_eq!(
        sharded.report.collective_bytes,
        2 * 2 * 6 * 32 * 4,
        "as many as of wholes"
    );
    let plan = gpu_plan(&sharded.graphs[0]);
    // Each but the last travels beside a product.
    let beside: Vec<bool> = (plan.steps.iter())
        .filter_map(|(id, step)| collective(step).map(|result| (id, result)))
        .map(|(id, result)| {
            let later = plan.steps.iter().skip_while(|(other, _)| *other <= id);
            let until = later.take_while(|(_, step)| !touches(&plan, step, result));
            until
                .flat_map(|(_, step)| step.kernels())
                .any(|kernel| matches!(plan.kernels[kernel].body, ir::kernel::Body::Contract(_)))
        })
        .collect();
    assert_eq!(beside, [true, true, true, false], "{plan}");
    // Rows of an odd number have no halves, a few of them are not worth two launches, and nobody need have any.
    let alone = |options: &ShardOptions, shape: &[i64]| {
        let mut model = Model::new(6);
        let x = model.input("x", DType::F32, shape);
        let y = model.mlp(x, 96);
        model.graph.add_output("y", y);
        check(&model.graph, options).report.all_reduces
    };
    assert_eq!(alone(&always, &[4, 32]), 2);
    assert_eq!(alone(&always, &[5, 32]), 1);
    assert_eq!(alone(&always, &[5, 2, 32]), 2, "of the next axis");
    assert_eq!(alone(&options(2, &[]), &[4, 32]), 1);
    let never = ShardOptions {
        halves: Halves::Never,
        ..options(2, &[])
    };
    assert_eq!(alone(&never, &[4, 32]), 1);
}

#[test]
fn a_decoder_with_caches_means_the_same_in_halves() {
    for ranks in [2, 4] {
        let always = ShardOptions {
            halves: Halves::Always,
            ..options(ranks, &STATES)
        };
        let report = check(&decoder(4, 2), &always).report;
        // On four ranks one of the four sums is a product that each computes whole.
        let sums = if ranks == 2 { 4 } else { 3 };
        assert_eq!((report.all_reduces, report.in_halves), (2 * sums, sums), "{report}");
    }
}

#[test]
fn sums_that_take_long_are_halved_by_themselves() {
    let sums = |rows: i64, bus_gbps: f64| {
        let mut model = Model::new(7);
        let x = model.input("x", DType::F32, &[rows, 1024]);
        let y = model.mlp(x, 4096);
        model.graph.add_output("y", y);
        let options = ShardOptions {
            bus_gbps,
            ..ShardOptions::new(2)
        };
        share(&model.graph, &target(), &options).report.all_reduces
    };
    // 16 MiB at 100 GB/s take 168 us, 1 MiB 10; at 1 TB/s 16 MiB take 17 us, which is less than two meetings.
    assert_eq!((sums(4096, 100.0), sums(256, 100.0), sums(4096, 1000.0)), (2, 1, 1));
}

#[test]
fn without_its_sum_a_product_by_rows_is_wrong() {
    let mut model = Model::new(5);
    let x = model.input("x", DType::F32, &[4, 32]);
    let y = model.mlp(x, 96);
    model.graph.add_output("y", y);
    let sharded = share(&model.graph, &Target::cpu(), &options(2, &[]));
    let without: Vec<Graph> = (sharded.graphs.iter())
        .map(|graph| {
            let mut b = crate::rewrite::Builder::new(graph, "test");
            for (id, node) in graph.nodes().iter() {
                match node.op {
                    Op::Call(_) => b.set(id, b.value(node.operands[0])),
                    _ => b.copy(id).unwrap(),
                }
            }
            b.finish(&mut Vec::new())
        })
        .collect();
    let inputs = testing::inputs(&model.graph);
    let whole = evaluate(&model.graph, &inputs).unwrap();
    let given = parts(&model.graph, &sharded.inputs, 2, &inputs);
    let got = evaluate_ranks(&without, &given).unwrap();
    assert!(difference(&whole, &got, &sharded.outputs) > 1e-2);
    // And ranks that do not meet are told.
    let mixed = [sharded.graphs[0].clone(), without[1].clone()];
    let error = evaluate_ranks(&mixed, &given).unwrap_err().to_string();
    assert!(
        error.contains("rank 1 is at the end, but rank 0 is at rccl_all_reduce"),
        "{error}"
    );
    let alone = evaluate(&sharded.graphs[0], &given[0]).unwrap_err().to_string();
    assert!(alone.contains("all 2 ranks"), "{alone}");
}

#[test]
fn mistakes_are_named() {
    let graph = decoder(4, 2);
    let refused = |options: &ShardOptions| shard(&graph, &target(), options).unwrap_err().to_string();
    assert!(refused(&options(1, &[])).contains("2 to 16 devices, not 1"));
    assert!(refused(&options(2, &["ids"])).contains("no such output"));
    let wrong = ShardOptions {
        states: vec![("position".into(), "keys0_next".into())],
        ..ShardOptions::new(2)
    };
    assert!(refused(&wrong).contains("the input is i64[1], the output f32[2, 2, 12, 8]"));
    let rank = share(&graph, &target(), &options(2, &STATES)).graphs.remove(0);
    let again = shard(&rank, &target(), &options(2, &[])).unwrap_err().to_string();
    assert!(again.contains("one rank's part"), "{again}");
    let text = ir::graph::print::print(&rank, ir::graph::print::PrintOptions::default());
    assert_eq!(ir::graph::parse::parse(&text).unwrap().to_string(), rank.to_string());
}
