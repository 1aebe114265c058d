//! One model on several devices: ranks on the CPU, and on emulated GPUs with a stand-in for RCCL between them.
//!
//! Without ROCm to compile and disassemble with, the tests of GPUs print `skipped: …` and pass.

mod stages;

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use frontend::DType;
use frontend::tensor::{AttentionOptions, InputSpec, Tensor, scaled_dot_product_attention, trace};
use frontend::{Shape, shape};
use graphc::driver::{self, BuildOptions};
use graphc::options::Settings;
use graphc::session::{DeviceChoice, OpenDevice, Outputs, Session, SessionOptions};
use graphc_tests::emulated_hip::{EmulatedHip, options_of, options_on};
use ir::library::CollectiveKind;
use ir::plan::StepId;
use ir::schedule::LaneKind;
use ir::{Graph, HostTensor, Plan, Program};
use passes::shard::Halves;
use passes::{OptLevel, ShardOptions};
use runtime::compile::HiprtcSearch;
use runtime::gpu::GpuSearch;
use runtime::{Executable, LoadOptions, RuntimeError};

/// Numbers that look random and are the same each time.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let mut state = (seed as u32).wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

fn weight(seed: usize, rows: i64, columns: i64) -> Tensor {
    let scale = 2.0 / (rows as f32).sqrt();
    let values: Vec<f32> = numbers((rows * columns) as usize, seed)
        .iter()
        .map(|v| v * scale)
        .collect();
    Tensor::from_slice(&values, [rows as usize, columns as usize])
}

const WIDTH: i64 = 32;
const HEADS: i64 = 4;
const SHARED: i64 = 2;
const SIZE: i64 = 8;
const HIDDEN: i64 = 64;
const CAPACITY: i64 = 8;
const VOCABULARY: i64 = 48;
const LAYERS: usize = 2;

fn cache_names() -> Vec<String> {
    (0..LAYERS)
        .flat_map(|l| [format!("keys{l}"), format!("values{l}")])
        .collect()
}

/// A step of a decoder of two layers: heads that share keys, caches, gated units, a table and a vocabulary.
fn decoder() -> Graph {
    let caches: Vec<Tensor> = cache_names()
        .iter()
        .map(|name| Tensor::input(name, DType::F32, shape![1, SHARED, CAPACITY, SIZE]))
        .collect();
    let inputs = [
        InputSpec::new("id", DType::I64, shape![1, 1]),
        InputSpec::new("position", DType::I64, shape![1]),
    ];
    let graph = trace("decoder", inputs, |[id, position]| {
        let scalar = position.reshape(shape![1, 1, 1, 1]);
        let row: Shape = shape![1, SHARED, 1, SIZE];
        let at = scalar.expand(row);
        let seen = Tensor::iota(DType::I64, shape![1, 1, 1, CAPACITY], 3).le(&scalar);
        let options = AttentionOptions {
            mask: Some(seen),
            ..AttentionOptions::default()
        };
        let mut outputs = Vec::new();
        let mut h = weight(1, VOCABULARY, WIDTH).take(0, &id);
        for layer in 0..LAYERS {
            let seed = 100 * (layer + 1);
            let x = h.layer_norm(None, None, 1e-5);
            let query = x.matmul(&weight(seed, WIDTH, HEADS * SIZE)).split_heads(HEADS);
            let key = x.matmul(&weight(seed + 1, WIDTH, SHARED * SIZE)).split_heads(SHARED);
            let value = x.matmul(&weight(seed + 2, WIDTH, SHARED * SIZE)).split_heads(SHARED);
            let keys = caches[2 * layer].scatter(2, &at, &key);
            let values = caches[2 * layer + 1].scatter(2, &at, &value);
            let seen = scaled_dot_product_attention(&query, &keys, &values, &options);
            h = &h + seen.merge_heads().matmul(&weight(seed + 3, HEADS * SIZE, WIDTH));
            let x = h.layer_norm(None, None, 1e-5);
            let gate = x.matmul(&weight(seed + 4, WIDTH, HIDDEN)).silu();
            let up = x.matmul(&weight(seed + 5, WIDTH, HIDDEN));
            h = &h + (&gate * &up).matmul(&weight(seed + 6, HIDDEN, WIDTH));
            outputs.push((format!("keys{layer}_next"), keys));
            outputs.push((format!("values{layer}_next"), values));
        }
        outputs.insert(0, ("logits".to_owned(), h.matmul(&weight(2, WIDTH, VOCABULARY))));
        outputs
    });
    graph.expect("it types")
}

fn mlp() -> Graph {
    let graph = trace("mlp", [InputSpec::new("x", DType::F32, shape!["n", WIDTH])], |[x]| {
        let h = (x.matmul(&weight(7, WIDTH, HIDDEN)) + weight(8, 1, HIDDEN)).gelu();
        [("y", h.matmul(&weight(9, HIDDEN, WIDTH)) + weight(10, 1, WIDTH))]
    });
    graph.expect("it types")
}

/// Everything that divides is shared, however small the model.
fn sharing(ranks: u32) -> ShardOptions {
    ShardOptions {
        bus_gbps: 1e6,
        latency_us: 0.02,
        ..ShardOptions::new(ranks)
    }
}

fn with_caches(options: SessionOptions) -> SessionOptions {
    cache_names()
        .iter()
        .fold(options, |options, name| options.state(name, &format!("{name}_next")))
}

fn shared(options: SessionOptions) -> SessionOptions {
    SessionOptions {
        sharing: Some(sharing(2)),
        ..options
    }
}

fn on_cpu(ranks: usize) -> SessionOptions {
    let choice: DeviceChoice = vec!["cpu"; ranks].join(",").parse().expect("a device");
    shared(SessionOptions::default().device(choice).expect("it is there"))
}

/// The logits of a step.
fn step(session: &Session, id: i64, position: i64) -> Outputs {
    let id = HostTensor::from_i64(DType::I64, [1, 1], &[id]).expect("one");
    let position = HostTensor::from_i64(DType::I64, [1], &[position]).expect("one");
    session
        .run(&[("id", &id), ("position", &position)])
        .expect("a step runs")
}

fn x(rows: usize) -> HostTensor {
    HostTensor::from_f32([rows, WIDTH as usize], &numbers(rows * WIDTH as usize, rows)).expect("as many")
}

/// The largest difference between two tensors.
fn apart(a: &HostTensor, b: &HostTensor) -> f64 {
    assert_eq!((a.dtype, &a.shape), (b.dtype, &b.shape));
    let pairs = a.to_f64().into_iter().zip(b.to_f64());
    pairs
        .map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() })
        .fold(
            0.0,
            |worst: f64, d| {
                if d.is_nan() { f64::INFINITY } else { worst.max(d) }
            },
        )
}

/// Steps of a decoder on one device and on several, with what it keeps saved, set, forgotten and forked.
fn decodes_alike(one: &Session, several: &Session, steps: i64) {
    for position in 0..steps {
        let id = (7 * position + 3) % VOCABULARY;
        let (want, got) = (step(one, id, position), step(several, id, position));
        let apart = apart(&want["logits"], &got["logits"]);
        assert!(apart < 1e-4, "step {position}: {apart}");
    }
    let (kept, whole) = (
        several.save_state().expect("it is there"),
        one.save_state().expect("it is there"),
    );
    assert_eq!(kept.len(), 2 * LAYERS);
    for (name, want) in &whole {
        assert!(apart(want, &kept[name]) < 1e-4, "{name}");
    }
    // What one device kept, several go on with, each way.
    let fork = several.fork();
    several.load_state(&whole).expect("it fits");
    let (want, got) = (step(one, 5, steps), step(several, 5, steps));
    assert!(apart(&want["logits"], &got["logits"]) < 1e-4);
    assert!(apart(&want["logits"], &step(&fork, 5, steps)["logits"]) < 1e-4);
    several.reset_state();
    one.reset_state();
    assert!(apart(&step(one, 9, 0)["logits"], &step(several, 9, 0)["logits"]) < 1e-4);
}

#[test]
fn ranks_on_the_cpu_compute_what_one_device_does() {
    let one = Session::compile(decoder(), &with_caches(SessionOptions::default())).expect("it compiles");
    for ranks in [2, 4] {
        let several = Session::compile(decoder(), &with_caches(on_cpu(ranks))).expect("it compiles");
        one.reset_state();
        decodes_alike(&one, &several, 4);
    }
    let one = Session::compile(mlp(), &SessionOptions::default()).expect("it compiles");
    let several = Session::compile(mlp(), &on_cpu(2)).expect("it compiles");
    // Several threads, and runs that are not waited for between runs that are.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (one, several) = (&one, &several);
            scope.spawn(move || {
                for rows in [1, 5, 3 + thread] {
                    let x = x(rows);
                    let want = one.run(&[("x", &x)]).expect("it runs");
                    let begun: Vec<_> = (0..3)
                        .map(|_| {
                            several
                                .submit([("x", &x)], &runtime::Wanted::device())
                                .expect("it begins")
                        })
                        .collect();
                    let got = several.run(&[("x", &x)]).expect("it runs");
                    assert!(apart(&want["y"], &got["y"]) < 1e-5);
                    for pending in begun {
                        let mut values = pending.wait().expect("it runs");
                        let value = values
                            .swap_remove("y")
                            .expect("it is there")
                            .into_device()
                            .expect("there");
                        assert_eq!(
                            (value.device(), value.shape()),
                            ("cpu,cpu", &[rows, WIDTH as usize][..])
                        );
                        // A tensor of the ranks is an input as any other.
                        let again = several
                            .values([("x", &value)], &runtime::Wanted::host())
                            .expect("it runs");
                        let want = one.run(&[("x", &value.download().expect("there"))]).expect("it runs");
                        let again = again["y"].clone().into_host().expect("there");
                        assert!(apart(&want["y"], &again) < 1e-5);
                    }
                }
            });
        }
    });
}

#[test]
fn a_condition_that_fails_is_said_and_the_ranks_go_on() {
    let session = Session::compile(decoder(), &with_caches(on_cpu(2))).expect("it compiles");
    let id = HostTensor::from_i64(DType::I64, [1, 1], &[VOCABULARY]).expect("one");
    let position = HostTensor::from_i64(DType::I64, [1], &[0]).expect("one");
    let error = session.run(&[("id", &id), ("position", &position)]).unwrap_err();
    assert!(error.to_string().contains("outside"), "{error}");
    session.reset_state();
    step(&session, 1, 0);
}

fn built(graph: &Graph, target: &str, ranks: Option<u32>) -> driver::Build {
    let mut options = BuildOptions::new(vec![target.parse().expect("a target")], OptLevel::O2);
    options.ranks = ranks.map(|ranks| ShardOptions {
        states: cache_names().iter().map(|n| (n.clone(), format!("{n}_next"))).collect(),
        ..sharing(ranks)
    });
    driver::build(graph, &options).expect("it builds")
}

#[test]
fn an_artifact_is_for_as_many_ranks_as_it_was_made_for() {
    let build = built(&decoder(), "cpu", Some(2));
    assert_eq!(build.program.variants.len(), 2);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("decoder.graphc");
    build.program.save(&path).expect("it is saved");
    let read = Program::load(&path).expect("it is read");
    assert_eq!(read.variants[1].plan.share, build.program.variants[1].plan.share);
    let several = Session::open(&path, &with_caches(on_cpu(2))).expect("it opens");
    let one = Session::compile(decoder(), &with_caches(SessionOptions::default())).expect("it compiles");
    decodes_alike(&one, &several, 2);
    let refused = |options: &SessionOptions| Session::open(&path, options).unwrap_err().to_string();
    let four = refused(&on_cpu(4));
    assert!(four.contains("4 ranks") && four.contains("cpu (rank 0 of 2)"), "{four}");
    let alone = refused(
        &SessionOptions::default()
            .device(DeviceChoice::Cpu)
            .expect("it is there"),
    );
    assert!(alone.contains("cpu (rank 0 of 2)"), "{alone}");
    // One rank's plan alone says what it lacks.
    let loaded = Executable::load_on(&graphc::cpu_device(), Arc::new(read), 0, &LoadOptions::default());
    let error = loaded.expect_err("it is one of two").to_string();
    assert!(
        error.contains("of 2 ranks on 1 device") && error.contains("load the program on 2 devices"),
        "{error}"
    );
}

/// What the stand-in counted: collectives and bytes of a rank.
fn counted(hip: &EmulatedHip, rank: usize) -> (u64, u64) {
    let library = stand_in(hip);
    let (mut calls, mut bytes) = (0u64, 0u64);
    // SAFETY: the stand-in's own function, with a place for each number.
    unsafe {
        let counts: libloading::Symbol<'_, unsafe extern "C" fn(usize, *mut u64, *mut u64)> =
            library.get(c"graphc_rccl_counts").expect("it has it");
        counts(rank, &mut calls, &mut bytes);
    }
    (calls, bytes)
}

fn plant(hip: &EmulatedHip, fault: c_int) {
    // SAFETY: as above.
    unsafe {
        let library = stand_in(hip);
        let plant: libloading::Symbol<'_, unsafe extern "C" fn(c_int)> =
            library.get(c"graphc_rccl_plant").expect("it has it");
        plant(fault);
    }
}

fn stand_in(hip: &EmulatedHip) -> libloading::Library {
    // SAFETY: the library that the runtime has loaded from there already.
    unsafe { libloading::Library::new(hip.folder().join("librccl.so.1")) }.expect("it is there")
}

fn weights(session: &Session) -> usize {
    let executable = session.executable().expect("it is compiled");
    executable.memory_at_hints().expect("sizes are known").packed_weights
}

#[test]
fn two_and_four_gpus_decode_as_one_does() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "4"), ("GRAPHC_EMU_SEED", "3")]) else {
        return;
    };
    let device = hip.open(0).expect("it is there");
    let one = Session::compile(decoder(), &with_caches(options_on(device))).expect("it compiles");
    for ranks in [2usize, 4] {
        let device = hip.open_ranks(ranks).expect("they are there");
        let before: Vec<(u64, u64)> = (0..ranks).map(|rank| counted(&hip, rank)).collect();
        let several = Session::compile(decoder(), &with_caches(shared(options_of(device)))).expect("it compiles");
        one.reset_state();
        match ranks {
            2 => decodes_alike(&one, &several, 2),
            _ => assert!(apart(&step(&one, 3, 0)["logits"], &step(&several, 3, 0)["logits"]) < 1e-4),
        }
        let plan = several.executable().expect("it is compiled").plan();
        // Each run has the plan's collectives on every rank: steps, one each after loading, forking and forgetting.
        let runs = if ranks == 2 { 2 + 3 } else { 1 };
        let each = plan.collectives().count() as u64;
        let bytes: i64 = plan
            .collectives()
            .map(|(_, part, _)| constant(&plan.buffers[part].ty.bytes()))
            .sum();
        for (rank, before) in before.iter().enumerate() {
            let (calls, given) = counted(&hip, rank);
            assert_eq!(
                (calls - before.0, given - before.1),
                (runs * each, runs * bytes as u64),
                "rank {rank}"
            );
        }
        if ranks == 2 {
            let sums = plan
                .collectives()
                .filter(|(of, ..)| of.kind == CollectiveKind::AllReduce);
            assert_eq!(
                sums.count(),
                2 * LAYERS,
                "one behind attention and one behind the gated unit"
            );
            assert_eq!(
                weights(&several) * 2,
                weights(&one),
                "all weights are halved, norms have none"
            );
            let cut = plan
                .share
                .as_ref()
                .expect("it is shared")
                .inputs
                .iter()
                .flatten()
                .count();
            assert_eq!(cut, 2 * LAYERS, "the caches are cut by heads");
        }
    }
}

fn constant(size: &ir::Dim) -> i64 {
    size.eval(&ir::Bindings::new()).expect("sizes are fixed")
}

#[test]
fn streams_in_any_order_give_the_same_and_a_wait_that_is_missing_shows() {
    let mut shown = [0; 3];
    let want = {
        let session = Session::compile(mlp(), &SessionOptions::default()).expect("it compiles");
        session.run(&[("x", &x(5))]).expect("it runs")["y"].clone()
    };
    for seed in ["1", "2", "3"] {
        let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "2"), ("GRAPHC_EMU_SEED", seed)]) else {
            return;
        };
        let device = hip.open_ranks(2).expect("they are there");
        let session = Session::compile(mlp(), &shared(options_of(device))).expect("it compiles");
        let plan = session.executable().expect("it is compiled").plan();
        assert_eq!(plan.collectives().count(), 1);
        for fault in [0, 1, 2] {
            plant(&hip, fault);
            for round in 0..8 {
                // Memory of an earlier run must not have the same result in its place.
                session.run(&[("x", &x(4 + round))]).expect("it runs");
                let got = session.run(&[("x", &x(5))]).expect("it runs");
                shown[fault as usize] += usize::from(apart(&want, &got["y"]) > 1e-4);
            }
        }
        plant(&hip, 0);
    }
    assert_eq!(shown[0], 0);
    assert!(shown[1] > 0 && shown[2] > 0, "{shown:?}");
}

#[test]
fn halves_travel_beside_the_other_in_any_order_and_a_wait_that_is_missing_shows() {
    let rows =
        |n: usize| HostTensor::from_f32([n, 8, WIDTH as usize], &numbers(n * 8 * WIDTH as usize, n)).expect("as many");
    let model = || {
        let input = InputSpec::new("x", DType::F32, shape![2, 8, WIDTH]);
        let graph = trace("blocks", [input], |[x]| {
            let mut h = x;
            for seed in [20, 30] {
                let up = h
                    .layer_norm(None, None, 1e-5)
                    .matmul(&weight(seed, WIDTH, HIDDEN))
                    .gelu();
                h = &h + up.matmul(&weight(seed + 1, HIDDEN, WIDTH));
            }
            [("y", h)]
        });
        graph.expect("it types")
    };
    let options = |device| SessionOptions {
        sharing: Some(ShardOptions {
            halves: Halves::Always,
            ..sharing(2)
        }),
        ..options_of(device)
    };
    let want = {
        let session = Session::compile(model(), &SessionOptions::default()).expect("it compiles");
        session.run(&[("x", &rows(2))]).expect("it runs")["y"].clone()
    };
    let lane = |plan: &Plan, step: StepId| plan.lanes[plan.steps[step].lane].kind;
    let program = {
        let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "2")]) else {
            return;
        };
        let device = hip.open_ranks(2).expect("they are there");
        let session = Session::compile(model(), &options(device)).expect("it compiles");
        (**session.executable().expect("it is compiled").program()).clone()
    };
    assert_eq!(program.variants[0].plan.collectives().count(), 4, "two sums in halves");
    // Waits that are left out: none, those for collectives, and those of collectives.
    let mut shown = [0; 3];
    for (fault, shown) in shown.iter_mut().enumerate() {
        let mut program = program.clone();
        for plan in program.variants.iter_mut().map(|variant| &mut variant.plan) {
            for id in plan.steps.keys().collect::<Vec<_>>() {
                let left_out = match (fault, lane(plan, id)) {
                    (1, LaneKind::Compute) => LaneKind::Collective,
                    (2, LaneKind::Collective) => LaneKind::Compute,
                    _ => continue,
                };
                let mut waits = std::mem::take(&mut plan.steps[id].waits);
                waits.retain(|wait| lane(plan, *wait) != left_out);
                plan.steps[id].waits = waits;
            }
        }
        let program = Arc::new(program);
        for seed in ["1", "2", "3", "4"] {
            let hip = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "2"), ("GRAPHC_EMU_SEED", seed)]).expect("as before");
            let device = hip.open_ranks(2).expect("they are there");
            let executable = Executable::load_on(&*device.device, program.clone(), 0, &LoadOptions::default());
            let executable = executable.expect("it loads");
            let given = |seed: usize| {
                let x = HostTensor::from_f32([2, 8, WIDTH as usize], &numbers(16 * WIDTH as usize, seed));
                [("x".to_owned(), x.expect("as many"))].into_iter().collect()
            };
            for round in 0..4 {
                // Memory of an earlier run must not have the same result in its place. Memory that was never written is
                // noticed by the GPU.
                let runs = executable
                    .run(&given(50 + round))
                    .and_then(|_| executable.run(&given(2)));
                let is_right = runs.is_ok_and(|got| apart(&want, &got["y"]) <= 1e-4);
                *shown += usize::from(!is_right);
            }
        }
    }
    assert_eq!(shown[0], 0, "{shown:?}");
    assert!(shown[1] > 0 && shown[2] > 0, "{shown:?}");
}

#[test]
fn a_rank_that_fails_keeps_nobody_waiting() {
    // Kernels, copies and calls fail on one device or the other, which is let go.
    for fault in ["launch@7", "copy@9", "hipModuleLaunchKernel@6"] {
        let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "2"), ("GRAPHC_EMU_FAULTS", fault)]) else {
            return;
        };
        let device = hip.open_ranks(2).expect("they are there");
        let session = Session::compile(mlp(), &shared(options_of(device))).expect("it compiles");
        let mut failed = None;
        for _ in 0..6 {
            if let Err(error) = session.run(&[("x", &x(3))]) {
                failed = Some(error);
                break;
            }
        }
        let error = failed.unwrap_or_else(|| panic!("{fault}: nothing failed"));
        assert!(
            matches!(&error, graphc::Error::Runtime(RuntimeError::Rank { device, .. }) if device.starts_with("hip:")),
            "{fault}: {error}"
        );
        let later = session.run(&[("x", &x(3))]).expect_err("they do not compute together");
        assert!(
            matches!(&later, graphc::Error::Runtime(RuntimeError::RanksEnded { .. })),
            "{fault}: {later}"
        );
        assert!(later.to_string().contains("hip:0,1"), "{later}");
    }
}

#[test]
fn a_rank_that_is_refused_or_never_comes_is_said() {
    let deadline = ("GRAPHC_EMU_RCCL_DEADLINE", "300");
    for fault in [3, 4] {
        let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "2")]) else {
            return;
        };
        let device = hip.open_ranks(2).expect("they are there");
        // SAFETY: the tests of this file that set it do so in processes of their own.
        unsafe { std::env::set_var(deadline.0, deadline.1) };
        let session = Session::compile(mlp(), &shared(options_of(device))).expect("it compiles");
        session.run(&[("x", &x(3))]).expect("it runs");
        plant(&hip, fault);
        let error = session.run(&[("x", &x(3))]).expect_err("one rank is not there");
        let graphc::Error::Runtime(RuntimeError::Rank { rank, error, .. }) = &error else {
            panic!("{error}")
        };
        // Who is refused says so itself; of one that never comes the other tells.
        assert_eq!(*rank, if fault == 3 { 1 } else { 0 });
        assert!(
            error.to_string().contains("ncclAllReduce") && error.to_string().contains("system error"),
            "{error}"
        );
        plant(&hip, 0);
        let later = session.run(&[("x", &x(3))]).expect_err("they do not compute together");
        assert!(later.to_string().contains("hip:0,1"), "{later}");
    }
}

/// What C's functions give.
type Status = c_int;

#[test]
fn ranks_that_ask_for_different_things_are_all_refused() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "2")]) else {
        return;
    };
    let _devices = hip.open_ranks(2).expect("they are there");
    let rccl = stand_in(&hip);
    // SAFETY: the library that the runtime has loaded from there already.
    let runtime = unsafe { libloading::Library::new(hip.folder().join("libamdhip64.so.7")) }.expect("it is there");
    // SAFETY: the functions have these types, and each is given memory of the device that its thread is on.
    unsafe {
        let init: libloading::Symbol<'_, unsafe extern "C" fn(*mut *mut c_void, c_int, *const c_int) -> Status> =
            rccl.get(c"ncclCommInitAll").expect("it has it");
        let mut comms = [std::ptr::null_mut(); 2];
        assert_eq!(init(comms.as_mut_ptr(), 2, [0, 0].as_ptr()), 5, "one device twice");
        assert_eq!(init(comms.as_mut_ptr(), 2, [0, 9].as_ptr()), 4, "no such device");
        assert_eq!(init(comms.as_mut_ptr(), 2, std::ptr::null()), 0);
        let comms = comms.map(|comm| comm as usize);
        let both = |asked: [(usize, c_uint); 2]| -> Vec<Status> {
            std::thread::scope(|scope| {
                let ranks = [0, 1].map(|rank: usize| {
                    let (rccl, runtime, comm) = (&rccl, &runtime, comms[rank]);
                    let (count, dtype) = asked[rank];
                    scope.spawn(move || one_rank(rccl, runtime, comm, rank as c_int, count, dtype))
                });
                ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
            })
        };
        assert_eq!(both([(4, 7), (4, 7)]), [0, 0]);
        assert_eq!(both([(4, 7), (8, 7)]), [4, 4], "counts differ");
        assert_eq!(both([(4, 7), (4, 2)]), [4, 4], "types differ");
    }
}

/// One rank's sum of `count` numbers of a type, on its device.
unsafe fn one_rank(
    rccl: &libloading::Library,
    runtime: &libloading::Library,
    comm: usize,
    rank: c_int,
    count: usize,
    dtype: c_uint,
) -> Status {
    type Sum =
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_uint, c_uint, *mut c_void, *mut c_void) -> Status;
    // SAFETY: the caller's.
    unsafe {
        let enter: libloading::Symbol<'_, unsafe extern "C" fn(c_int) -> Status> =
            runtime.get(c"hipSetDevice").expect("it has it");
        let allocate: libloading::Symbol<'_, unsafe extern "C" fn(*mut *mut c_void, usize) -> Status> =
            runtime.get(c"hipMalloc").expect("it has it");
        let sum: libloading::Symbol<'_, Sum> = rccl.get(c"ncclAllReduce").expect("it has it");
        let (mut part, mut result) = (std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!(enter(rank), 0);
        assert_eq!((allocate(&mut part, 256), allocate(&mut result, 256)), (0, 0));
        sum(part, result, count, dtype, 0, comm as *mut c_void, std::ptr::null_mut())
    }
}

#[test]
fn devices_that_cannot_compute_together_are_refused() {
    let settings = Settings::read(|_| None).expect("valid");
    for (text, said) in [
        ("hip:0,0", "hip:0 is there twice"),
        ("hip:1,0,1", "hip:1 is there twice"),
    ] {
        let error = OpenDevice::open(text.parse().expect("a device"), &settings)
            .expect_err("twice")
            .to_string();
        assert!(error.contains(said), "{error}");
    }
    let many = vec!["cpu"; 17].join(",");
    let error = OpenDevice::open(many.parse().expect("a device"), &settings)
        .expect_err("too many")
        .to_string();
    assert!(error.contains("2 to 16"), "{error}");
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", "gfx90a,gfx90a,gfx942")]) else {
        return;
    };
    let error = hip.open_ranks(3).expect_err("two kinds").to_string();
    assert!(
        error.contains("hip:0 is a gfx90a") && error.contains("hip:2 a gfx942"),
        "{error}"
    );
    let error = hip.open_ranks(4).expect_err("there are three").to_string();
    assert!(
        error.contains("hip:3") && error.contains("hip:0, hip:1, hip:2"),
        "{error}"
    );
    // Without the library that is said, with where it was looked for.
    let search = GpuSearch {
        collectives: HiprtcSearch::only("/graphc/no/rccl"),
        ..hip.search()
    };
    let gpus = (0..2)
        .map(|n| Arc::new(hip.open_with(&search, n).expect("it is there")))
        .collect();
    let device = OpenDevice::of_gpus(gpus).expect("they fit");
    let error = Session::compile(mlp(), &shared(options_of(device)))
        .expect_err("no library")
        .to_string();
    for part in ["RCCL", "hip:0,1", "/graphc/no/rccl", "GRAPHC_RCCL"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// The command line on an emulated GPU, and a folder with a model in it.
struct CommandLine<'a> {
    hip: &'a EmulatedHip,
    folder: tempfile::TempDir,
}

impl CommandLine<'_> {
    fn new(hip: &EmulatedHip) -> CommandLine<'_> {
        let folder = tempfile::tempdir().expect("a folder");
        let line = CommandLine { hip, folder };
        let text = ir::graph::print::print(&mlp(), ir::graph::print::PrintOptions::default());
        std::fs::write(line.at("mlp.gir"), text).expect("written");
        line
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// What a command that ends well prints.
    fn ok(&self, words: &[&str]) -> String {
        let output = self.hip.graphc(words);
        let printed = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        let printed = printed.concat();
        assert!(output.status.success(), "{words:?}\n{printed}");
        printed
    }
}

#[test]
fn the_command_line_runs_a_model_on_several_devices() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "2")]) else {
        return;
    };
    let line = CommandLine::new(&hip);
    let (at, ok) = (|name: &str| line.at(name), |words: &[&str]| line.ok(words));
    let (model, want) = (at("mlp.gir"), at("want.npz"));
    ok(&["run", &model, "--random", "--size", "n=3", "-o", &want]);
    let few = ["--bus", "1e6", "--bus-latency", "0.02"];
    let on = |device: &str, model: &str, more: &[&str]| {
        let words = ["run", model, "--random", "--device", device, "--expect", &want];
        ok(&[&words[..], more].concat())
    };
    let fixed = ["--size", "n=3"];
    for device in ["cpu,cpu", "hip:0,1"] {
        let said = on(device, &model, &[&fixed[..], &few].concat());
        assert!(said.contains("y: ok"), "{said}");
    }
    let artifact = at("mlp.graphc");
    let compile = ["compile", &model, "--target", "gfx90a", "--ranks", "2", "-o", &artifact];
    ok(&[&compile[..], &fixed, &few].concat());
    assert!(on("hip:0,1", &artifact, &[]).contains("y: ok"));
    let explain = ["explain", &model, "--target", "gfx90a", "--ranks", "2"];
    let said = ok(&[&explain[..], &fixed, &few].concat());
    assert!(
        said.contains("shared among 2 devices") && said.contains("1 all-reduces and 0 all-gathers"),
        "{said}"
    );
    // What was decided before the graph was shared is said with the rest.
    let said = ok(&[&explain[..], &fixed, &few, &["--dtype", "int8"]].concat());
    assert!(said.contains("2x weight_kept (weight_only)"), "{said}");
    // By default such a small model is not worth it, and that is said too.
    let said = ok(&[&explain[..], &fixed].concat());
    assert!(said.contains("saves less than collectives take"), "{said}");
    let refused = |words: &[&str], part: &str| {
        let output = hip.graphc(words);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && err.contains(part), "{words:?}\n{err}");
    };
    refused(
        &["run", &artifact, "--random", "--device", "hip:0"],
        "gfx90a (rank 0 of 2)",
    );
    refused(
        &["run", &model, "--random", "--device", "hip:0,1", "--ranks", "4"],
        "--ranks 4",
    );
    refused(&["run", &model, "--random", "--device", "hip:0,0"], "twice");
}
