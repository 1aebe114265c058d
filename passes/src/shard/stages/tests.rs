//! A graph that is cut into stages means what it did: by the reference evaluator, optimised, and as the one plan that
//! the stages' are.

use indexmap::IndexMap;
use ir::entity::Table;
use ir::graph::eval::evaluate;
use ir::graph::eval::ranks::evaluate_stages;
use ir::op::{BinaryOp, Composite, Contract, UnaryOp, View};
use ir::plan::stages::{StagesError, crossings, whole};
use ir::plan::verify::{PlanError, verify_order};
use ir::plan::{Place, Share, Source, Work};
use ir::{ConstId, DType, HostTensor, Op, Plan};

use super::*;
use crate::shard::tests::{Arrays, Model, STATES, decoder, options, target};
use crate::shard::{after, prepare};
use crate::{OptLevel, OptimizeOptions, PlanOptions, ScheduleOptions, testing};

fn cut(graph: &Graph, options: &ShardOptions) -> Staged {
    let passes = OptimizeOptions {
        verify: true,
        ..OptimizeOptions::default()
    };
    let (prepared, _) = prepare(graph.clone(), &target(), &passes).unwrap_or_else(|e| panic!("{e}\n{}", e.graph));
    stages(&prepared, &target(), options).unwrap_or_else(|e| panic!("{e}\n{prepared}"))
}

fn difference(want: &Arrays, got: &Arrays) -> f64 {
    assert_eq!(want.keys().collect::<Vec<_>>(), got.keys().collect::<Vec<_>>());
    let mut worst: f64 = 0.0;
    for (name, want) in want {
        assert_eq!((&got[name].shape, got[name].dtype), (&want.shape, want.dtype), "{name}");
        for (a, b) in got[name].to_f64().iter().zip(want.to_f64()) {
            let apart = (a - b).abs() / b.abs().max(1.0);
            worst = worst.max(if apart.is_nan() { f64::INFINITY } else { apart });
        }
    }
    worst
}

/// The plans of the stages for the CPU, with their constants.
fn plans(staged: &Staged) -> (Vec<Plan>, Table<ConstId, ir::graph::Constant>) {
    let cpu = Target::cpu();
    let passes = after(&OptimizeOptions::at(OptLevel::O2));
    let mut constants = Table::new();
    let mut plans = Vec::new();
    for (rank, (graph, stage)) in staged.graphs.iter().zip(&staged.stages).enumerate() {
        let (core, _) = crate::optimize(graph.clone(), &cpu, &passes).unwrap_or_else(|e| panic!("{e}\n{}", e.graph));
        let (schedule, _) = crate::schedule(&core, &cpu, &ScheduleOptions::default()).unwrap();
        let mut plan = crate::plan(&core, &schedule, &cpu, &PlanOptions::default()).unwrap();
        for buffer in plan.buffers.values_mut() {
            if let Place::Constant(id) = &mut buffer.place {
                *id = constants.push(core.constants()[*id].clone());
            }
        }
        plan.share = Some(Share {
            rank: rank as u32,
            ranks: staged.graphs.len() as u32,
            inputs: vec![None; plan.inputs.len()],
            outputs: vec![None; plan.outputs.len()],
            stage: Some(stage.clone()),
        });
        ir::plan::verify::verify(&plan).unwrap_or_else(|e| panic!("{e}\n{plan}"));
        plans.push(plan);
    }
    (plans, constants)
}

/// Checks that the stages mean what the graph does, as they are and as one plan, of which no wait for what crosses can
/// be left out.
fn check(graph: &Graph, options: &ShardOptions) -> Staged {
    let inputs = testing::inputs(graph);
    let want = evaluate(graph, &inputs).unwrap();
    let staged = cut(graph, options);
    assert_eq!(staged.graphs.len(), options.ranks as usize);
    for graph in &staged.graphs {
        ir::graph::verify::verify(graph).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    }
    let got = evaluate_stages(&staged.graphs, &staged.stages, &inputs).unwrap();
    let apart = difference(&want, &got);
    assert!(apart < 1e-6, "{apart}\n{}", staged.report);
    let (plans, constants) = plans(&staged);
    let refs: Vec<&Plan> = plans.iter().collect();
    let (one, _) = whole(&refs).unwrap();
    verify_order(&one).unwrap_or_else(|e| panic!("{e}\n{one}"));
    let got = ir::plan::eval::evaluate(&one, &constants, &inputs).unwrap();
    let apart = difference(&want, &got);
    assert!(apart < 1e-3, "{apart}\n{one}");
    let crossing = crossings(&refs).unwrap();
    let copies = |plan: &Plan| {
        plan.steps
            .values()
            .filter(|step| matches!(step.work, Work::Copy { .. }))
            .count()
    };
    let own: usize = plans.iter().map(copies).sum();
    let received: usize = staged.report.stages.iter().map(|stage| stage.received).sum();
    assert_eq!((copies(&one) - own, crossing.len()), (received, received));
    let mut shown = 0;
    for id in one.steps.keys() {
        let copies = |wait: &ir::plan::StepId| matches!(one.steps[*wait].work, Work::Copy { .. });
        let is_copy = matches!(one.steps[id].work, Work::Copy { .. });
        for at in 0..one.steps[id].waits.len() {
            if is_copy || copies(&one.steps[id].waits[at]) {
                let mut without = one.clone();
                without.steps[id].waits.remove(at);
                // What is behind another step that waits is in order without.
                if let Err(invalid) = verify_order(&without) {
                    assert!(matches!(invalid.errors[0], PlanError::Unordered { .. }), "{invalid}");
                    shown += 1;
                }
            }
        }
    }
    assert!(shown >= 2 * (options.ranks as usize - 1), "{shown}\n{one}");
    staged
}

#[test]
fn a_decoder_is_cut_between_its_layers_and_caches_stay_with_them() {
    let graph = decoder(4, 2);
    let staged = check(&graph, &options(2, &STATES));
    let [first, last] = &staged.report.stages[..] else {
        panic!("two stages")
    };
    // The residual alone crosses: two rows of 32.
    assert_eq!(
        (first.received, last.received, last.received_bytes),
        (0, 1, 2 * 32 * 4),
        "{}",
        staged.report
    );
    assert_eq!(first.weight_bytes + last.weight_bytes, staged.report.whole_bytes);
    assert_eq!(
        (first.state_bytes, last.state_bytes),
        (2 * 2 * 2 * 12 * 8 * 4, 2 * 2 * 2 * 12 * 8 * 4)
    );
    let named = |stage: usize| -> Vec<&str> { staged.graphs[stage].inputs().iter().map(|i| i.name.as_str()).collect() };
    assert_eq!(named(0), ["ids", "position", "keys0", "values0"]);
    assert_eq!(named(1)[..3], ["position", "keys1", "values1"]);
    assert!(named(1)[3].starts_with("stage0.n"), "{:?}", named(1));
    assert_eq!(staged.stages[0].results, [Some(0), Some(1), None]);
    assert_eq!(staged.stages[1].results, [Some(2), Some(3), Some(4)]);
    for ranks in [3, 4] {
        check(&graph, &options(ranks, &STATES));
    }
}

/// Branches whose ids go through all layers at once: products first, then what follows them.
#[test]
fn ids_that_go_through_all_layers_at_once_are_put_in_a_row() {
    let mut model = Model::new(9);
    let width = 16;
    let x = model.input("x", DType::F32, &[4, width]);
    let weights: Vec<_> = (0..6).map(|_| model.weight(&[width, width])).collect();
    // What is beside the way to the main output is made behind what it reads.
    let mut h = x;
    let mut beside = Vec::new();
    for weight in &weights {
        let contract = Op::Contract(Contract {
            transpose_lhs: false,
            transpose_rhs: false,
            out: DType::F32,
        });
        let y = model.add(contract, &[h, *weight]);
        let y = model.add(Op::unary(UnaryOp::Tanh), &[y]);
        h = model.binary(BinaryOp::Add, h, y);
        beside.push(h);
    }
    for (layer, value) in beside.iter().enumerate() {
        let softmax = model.add(Op::Composite(Composite::Softmax { axis: 1 }), &[*value]);
        model.graph.add_output(format!("seen{layer}"), softmax);
    }
    let y = model.add(Op::View(View::Transpose(vec![1, 0])), &[h]);
    model.graph.add_output("y", y);
    let staged = check(&model.graph, &options(3, &[]));
    for stage in &staged.report.stages[1..] {
        assert_eq!(
            (stage.received, stage.received_bytes),
            (1, 4 * 16 * 4),
            "{}",
            staged.report
        );
    }
    for stage in &staged.report.stages {
        assert_eq!(stage.weight_bytes, 2 * 16 * 16 * 4, "{}", staged.report);
    }
}

#[test]
fn weights_that_two_stages_read_are_on_both_and_a_limit_is_kept() {
    let mut model = Model::new(11);
    let ids = model.input("ids", DType::I64, &[2, 3]);
    let table = model.weight(&[40, 16]);
    let mut h = model.add(Op::Gather(ir::op::Gather::Take { axis: 0 }), &[table, ids]);
    for _ in 0..4 {
        h = model.plus(h, |m, x| m.mlp(x, 48));
    }
    let contract = Op::Contract(Contract {
        transpose_lhs: false,
        transpose_rhs: true,
        out: DType::F32,
    });
    let y = model.add(contract, &[h, table]);
    model.graph.add_output("y", y);
    let staged = check(&model.graph, &options(2, &[]));
    let bytes: usize = staged.report.stages.iter().map(|stage| stage.weight_bytes).sum();
    assert_eq!(bytes, staged.report.whole_bytes + 40 * 16 * 4, "{}", staged.report);
    // A layer is 16·48·2 + 48 + 16 + 16 numbers; two of them and the table have room, three have none.
    let layer = (16 * 48 * 2 + 48 + 16 + 16) * 4;
    let limited = ShardOptions {
        memory: Some(2 * layer + 40 * 16 * 4),
        ..options(2, &[])
    };
    let staged = check(&model.graph, &limited);
    for stage in &staged.report.stages {
        assert!(Some(stage.weight_bytes) <= limited.memory, "{}", staged.report);
    }
}

#[test]
fn random_models_mean_the_same_in_stages() {
    for seed in 40..52 {
        let mut model = Model::new(seed);
        let width = model.pick(&[12, 16, 24]);
        let ids = model.input("ids", DType::I64, &[2, 3]);
        let mut h = model.embedding(ids, 20, width);
        let first = h;
        for _ in 0..4 {
            match model.pick(&[0, 1, 2, 3]) {
                0 => h = model.plus(h, |m, x| m.mlp(x, 24)),
                1 => h = model.plus(h, |m, x| m.gated(x, 18)),
                2 => {
                    let (heads, shared) = model.pick(&[(4, 4), (4, 2), (3, 3)]);
                    h = model.plus(h, |m, x| m.attention(x, heads, shared, 4, None));
                }
                // A way past all layers.
                _ => h = model.binary(BinaryOp::Add, h, first),
            }
        }
        let y = model.linear(h, 10, true);
        model.graph.add_output("y", y);
        let ranks = model.pick(&[2, 3, 4]);
        let staged = check(&model.graph, &options(ranks, &[]));
        assert!(staged.report.stages.iter().all(|stage| stage.nodes > 0));
    }
}

#[test]
fn mistakes_are_named() {
    let graph = decoder(4, 2);
    let mut model = Model::new(5);
    let x = model.input("x", DType::F32, &[4, 16]);
    let y = model.linear(x, 8, false);
    model.graph.add_output("y", y);
    let refused = |graph: &Graph, options: &ShardOptions| stages(graph, &target(), options).unwrap_err().to_string();
    let few = refused(&model.graph, &options(2, &[]));
    assert!(few.contains("into 2 stages") && few.contains("room for 1"), "{few}");
    assert!(refused(&graph, &options(17, &[])).contains("2 to 16"));
    // Plans that are not of one model.
    let staged = cut(&graph, &options(2, &STATES));
    let (mut plans, _) = plans(&staged);
    let swapped = whole(&[&plans[1], &plans[0]]).unwrap_err();
    assert!(matches!(swapped, StagesError::Order { .. }), "{swapped}");
    if let Some(stage) = plans[1].share.as_mut().and_then(|share| share.stage.as_mut()) {
        stage.inputs[3] = Source::Stage { stage: 0, result: 0 };
    }
    let other = whole(&[&plans[0], &plans[1]]).unwrap_err();
    assert!(matches!(other, StagesError::Type { .. }), "{other}");
    if let Some(stage) = plans[1].share.as_mut().and_then(|share| share.stage.as_mut()) {
        stage.inputs[3] = Source::Stage { stage: 1, result: 0 };
    }
    let invalid = ir::plan::verify::verify(&plans[1]).unwrap_err();
    assert!(
        matches!(invalid.errors[0], PlanError::Stage { stage: 1, .. }),
        "{invalid}"
    );
    plans[1].share = None;
    let none = whole(&[&plans[0], &plans[1]]).unwrap_err();
    assert!(none.to_string().contains("stage 1 of 2"), "{none}");
    let unread: IndexMap<String, HostTensor> = IndexMap::new();
    let error = evaluate_stages(&staged.graphs, &staged.stages, &unread)
        .unwrap_err()
        .to_string();
    assert!(error.contains("rank 0") || error.contains("stage 0"), "{error}");
}
