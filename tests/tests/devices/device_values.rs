//! Tensors on devices, state, runs that are not waited for, graphs: on the CPU device and on the emulated GPU behind
//! HIP's interface.
//!
//! Without a ROCm to compile with the tests of the GPU print `skipped: …` and pass.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use examples::models::decoder::{Decoder, numbers};
use graphc::ir::Graph;
use graphc::prelude::*;
use graphc::runtime::{InputError, LoadOptions, RuntimeError};
use graphc_tests::emulated_hip::{EmulatedHip, options_on};

const ARCH: (&str, &str) = ("GRAPHC_EMU_ARCH", "gfx1100");

/// Calls a test with the CPU device and with an emulated GPU.
fn on_each_device(test: impl Fn(&str, &dyn Fn() -> SessionOptions)) {
    test("cpu", &SessionOptions::default);
    if let Some(hip) = EmulatedHip::new(&[ARCH, ("GRAPHC_EMU_CHECKS", "races")]) {
        let options = hip.session_options().expect("a device");
        test("hip:0", &|| options.clone());
    }
}

fn host(values: &[f32], shape: &[usize]) -> HostTensor {
    HostTensor::from_f32(shape, values).expect("fits")
}

/// `y = x · 2 + 1`, for any number of rows.
fn affine() -> Graph {
    let x = InputSpec::new("x", DType::F32, shape!["n", 4]).bounds("n", 1..=64);
    trace("affine", [x], |[x]| [("y", x * 2.0 + 1.0)]).expect("records")
}

fn compile(graph: Graph, options: &SessionOptions) -> Session {
    Session::compile(graph, options).expect("compiles")
}

/// The only output, on the device.
fn only(mut values: runtime::Values) -> DeviceTensor {
    let (_, value) = values.pop().expect("an output");
    value.into_device().expect("it is wanted there")
}

fn error_of<T: std::fmt::Debug>(result: Result<T, graphc::Error>) -> InputError {
    match result.expect_err("refused") {
        graphc::Error::Runtime(RuntimeError::Input { error, .. }) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn tensors_stay_on_the_device_from_run_to_run() {
    on_each_device(|name, options| {
        let session = compile(affine(), &options());
        let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let first = session.upload(&host(&values, &[3, 4])).expect("uploads");
        assert_eq!(
            (first.device(), first.shape(), first.dtype()),
            (name, &[3, 4][..], DType::F32)
        );
        let mut x = first.clone();
        for _ in 0..3 {
            x = only(session.values([("x", &x)], &Wanted::device()).expect("runs"));
        }
        let want: Vec<f32> = values.iter().map(|v| v * 8.0 + 7.0).collect();
        assert_eq!(x.download().expect("downloads").to_f32(), want);
        // What a run was given is as it was.
        assert_eq!(first.download().expect("downloads").to_f32(), values);
        // Views share the memory: rows 1 and 2, as a model's input and on the host.
        let rows = x.rows(1, 2).expect("inside");
        drop(x);
        assert_eq!(rows.download().expect("downloads").to_f32(), want[4..]);
        let y = session.values([("x", &rows)], &Wanted::host()).expect("runs");
        let y = y["y"].clone().into_host().expect("on the host");
        assert_eq!(y.to_f32(), want[4..].iter().map(|v| v * 2.0 + 1.0).collect::<Vec<_>>());
        assert_eq!(
            rows.reshape([8]).expect("as many").download().expect("downloads").shape,
            [8]
        );
        assert!(rows.reshape([7]).is_none() && rows.rows(1, 2).is_none());
        // Dropped by another thread, after the session.
        drop(session);
        std::thread::spawn(move || drop(rows)).join().expect("no panic");
        assert_eq!(first.download().expect("downloads").to_f32(), values);
    });
}

#[test]
fn a_donated_input_gives_its_place() {
    on_each_device(|name, options| {
        let session = compile(put(), &options());
        let at = HostTensor::from_i64(DType::I64, [1, 4], &[2; 4]).expect("fits");
        let mut want: Vec<f32> = (0..32).map(|i| i as f32).collect();
        let x = session.upload(&host(&want, &[8, 4])).expect("uploads");
        want[8..12].fill(9.0);
        // A clone sees the memory, so it must not change.
        let other = x.clone();
        let inputs = |x: DeviceTensor| [("x", Given::Donated(x)), ("at", Given::from(&at))];
        let error = error_of(session.values(inputs(other), &Wanted::device()));
        assert_eq!(error, InputError::Shared("x".into()), "{name}");
        let kept = session.values([("x", Given::from(&x)), ("at", Given::from(&at))], &Wanted::device());
        let kept = only(kept.expect("runs"));
        assert_eq!(kept.download().expect("downloads").to_f32(), want);
        assert_eq!(
            x.download().expect("downloads").to_f32()[8],
            8.0,
            "{name}: x was not donated"
        );
        drop(kept);
        let place = x.address();
        let y = only(session.values(inputs(x), &Wanted::device()).expect("runs"));
        assert_eq!(y.download().expect("downloads").to_f32(), want);
        assert_eq!(y.address(), place, "{name}: the output is where the input was");
    });
}

/// `next[at] = 9` in `x`, where data says which rows.
fn put() -> Graph {
    let x = InputSpec::new("x", DType::F32, shape![8, 4]);
    let at = InputSpec::new("at", DType::I64, shape![1, 4]);
    trace("put", [x, at], |[x, at]| {
        let nine = Tensor::full(DType::F32, shape![1, 4], 9.0);
        [("next", x.scatter(0, &at, &nine))]
    })
    .expect("records")
}

/// Where the run writes is what was given away; that an index was wrong is known when it is done.
#[test]
fn indices_are_looked_at_where_inputs_are_donated() {
    on_each_device(|name, options| {
        let mut options = options();
        options.check_indices = Some(true);
        let rows = |row: i64| HostTensor::from_i64(DType::I64, [1, 4], &[row; 4]).expect("fits");
        let is_condition = |error: &graphc::Error| matches!(error, graphc::Error::Runtime(RuntimeError::Index(_)));
        let values: Vec<f32> = (0..32).map(|i| i as f32).collect();
        let session = compile(put(), &options);
        let mut want = values.clone();
        let mut x = session.upload(&host(&values, &[8, 4])).expect("uploads");
        let place = x.address();
        for row in [2, 5] {
            let at = rows(row);
            let inputs = [("x", Given::Donated(x)), ("at", Given::from(&at))];
            x = only(session.values(inputs, &Wanted::device()).expect("runs"));
            want[4 * row as usize..][..4].fill(9.0);
            assert_eq!(x.address(), place, "{name}: in place, conditions or not");
        }
        assert_eq!(x.download().expect("downloads").to_f32(), want, "{name}");
        let at = rows(8);
        let inputs = [("x", Given::Donated(x)), ("at", Given::from(&at))];
        let error = session.values(inputs, &Wanted::device()).expect_err("row 8 of 8");
        assert!(is_condition(&error), "{name}: {error}");
        let (error, at) = (error.to_string(), "index 8 at [0, 0] of the indices, which are [1, 4]");
        assert!(error.contains(at), "{name}: {error}");
        assert!(
            error.contains("axis 0 has 8 elements, so -8 to 7 are inside it"),
            "{name}: {error}"
        );

        // A state that such a run has written is not gone on with.
        let session = compile(put(), &options.clone().state("x", "next"));
        let run = |row: i64| session.run(&[("at", &rows(row))]);
        run(1).expect("runs");
        let error = run(-9).expect_err("row -9 of 8");
        assert!(
            is_condition(&error) && error.to_string().contains("index -9 at [0, 0]"),
            "{name}: {error}"
        );
        let error = run(1).expect_err("the state is lost").to_string();
        assert!(error.contains("a run failed"), "{name}: {error}");
        session.reset_state();
        run(3).expect("runs");
        let mut want = vec![0.0; 32];
        want[12..16].fill(9.0);
        assert_eq!(session.save_state().expect("saves")["x"].to_f32(), want, "{name}");
    });
}

#[test]
fn a_tensor_of_another_device_is_refused() {
    let Some(hip) = EmulatedHip::new(&[ARCH]) else { return };
    let options = hip.session_options().expect("a device");
    let gpu = compile(affine(), &options);
    let cpu = compile(affine(), &SessionOptions::default());
    let x = host(&[1.0; 4], &[1, 4]);
    for (session, other) in [(&gpu, &cpu), (&cpu, &gpu)] {
        let tensor = other.upload(&x).expect("uploads");
        let error = error_of(session.values([("x", &tensor)], &Wanted::host()));
        assert!(matches!(error, InputError::Elsewhere { .. }), "{error}");
    }
    let error = error_of(gpu.values([("x", &x)], &Wanted::host().but("z", Where::Device)));
    assert_eq!(error, InputError::NoOutput("z".into()));
    // A device that is opened twice is one device.
    let again = compile(affine(), &options_on(hip.open(0).expect("a device")));
    let tensor = gpu.upload(&x).expect("uploads");
    let y = only(again.values([("x", &tensor)], &Wanted::device()).expect("runs"));
    assert_eq!(y.download().expect("downloads").to_f32(), [3.0; 4]);
}

const DECODER: Decoder = Decoder {
    layers: 2,
    heads: 2,
    width: 16,
    capacity: 12,
};

fn with_cache(mut options: SessionOptions) -> SessionOptions {
    for (input, output) in DECODER.links() {
        options = options.state(&input, &output);
    }
    options
}

/// The outputs `y` of the first steps, by the reference evaluator, which is given every cache.
fn decoded(steps: usize) -> Vec<Vec<f32>> {
    let session = compile(
        DECODER.graph().expect("records"),
        &SessionOptions::default().engine(Engine::Reference),
    );
    let zeros = host(&vec![0.0; DECODER.cache().iter().product()], &DECODER.cache());
    let mut caches: Vec<HostTensor> = DECODER.links().iter().map(|_| zeros.clone()).collect();
    (0..steps)
        .map(|position| {
            let (x, position) = DECODER.step(position);
            let links = DECODER.links();
            let mut inputs = vec![("x", &x), ("position", &position)];
            inputs.extend(
                links
                    .iter()
                    .zip(&caches)
                    .map(|((name, _), cache)| (name.as_str(), cache)),
            );
            let outputs = session.run(&inputs).expect("evaluates");
            caches = links.iter().map(|(_, next)| outputs[next].clone()).collect();
            outputs["y"].to_f32()
        })
        .collect()
}

fn decode(session: &Session, position: usize) -> Vec<f32> {
    let (x, position) = DECODER.step(position);
    let outputs = session.run(&[("x", &x), ("position", &position)]).expect("runs");
    assert_eq!(outputs.keys().collect::<Vec<_>>(), ["y"]);
    outputs["y"].to_f32()
}

fn close(got: &[f32], want: &[f32], context: &str) {
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 + 1e-4 * b.abs();
    assert!(
        got.len() == want.len() && got.iter().zip(want).all(near),
        "{context}: {got:?} is not {want:?}"
    );
}

#[test]
fn state_is_appended_to_in_place_saved_and_forked() {
    let want = decoded(10);
    on_each_device(|name, options| {
        let session = compile(DECODER.graph().expect("records"), &with_cache(options()));
        assert!(session.state("keys0").is_none());
        for (position, want) in want.iter().enumerate().take(3) {
            close(&decode(&session, position), want, name);
        }
        let place = |session: &Session| session.state("keys1").expect("a value").address();
        let (before, placed) = (
            place(&session),
            session.executable().expect("compiled").statistics().placed,
        );
        close(&decode(&session, 3), &want[3], name);
        assert_eq!(place(&session), before, "{name}: the cache is updated where it is");
        let saved = session.save_state().expect("saves");
        assert_eq!(saved.len(), 4);
        // Both go on from here, and neither sees what the other appends.
        let fork = session.fork();
        close(&decode(&session, 4), &want[4], name);
        close(&decode(&fork, 4), &want[4], name);
        close(&decode(&session, 5), &want[5], name);
        assert_ne!(place(&session), place(&fork));
        close(&decode(&fork, 5), &want[5], name);
        let now = session.executable().expect("compiled").statistics().placed;
        // A cache that is shared takes a form of its own, once.
        assert!(now <= placed + 1, "{name}: {now} {placed}");
        session.reset_state();
        close(&decode(&session, 0), &want[0], name);
        session.load_state(&saved).expect("loads");
        for (position, want) in want.iter().enumerate().take(10).skip(4) {
            close(&decode(&session, position), want, name);
        }
        // Wrong inputs leave the state as it is.
        let x = host(&[0.0; 3], &[1, 1, 3]);
        assert!(session.run(&[("x", &x)]).is_err());
        let error = session
            .run(&[("keys0", &saved["keys0"])])
            .expect_err("kept by the session");
        assert!(error.to_string().contains("set it before the run"), "{error}");
        close(&decode(&fork, 6), &want[6], name);
    });
}

#[test]
fn state_must_fit_the_model() {
    let graph = || DECODER.graph().expect("records");
    for (input, output, part) in [
        ("keys0", "nothing", "no such output"),
        ("nothing", "y", "no such input"),
        ("keys0", "y", "the output f32"),
    ] {
        let error = Session::compile(graph(), &SessionOptions::default().state(input, output)).expect_err(part);
        assert!(error.to_string().contains(part), "{error}");
    }
    let n = InputSpec::new("sum", DType::F32, shape!["n"]);
    let graph = trace("sum", [n], |[sum]| [("next", sum + 1.0)]).expect("records");
    let session = compile(graph, &SessionOptions::default().state("sum", "next"));
    let error = error_of(session.values::<Given>([], &Wanted::host()));
    assert!(matches!(error, InputError::NoState { .. }), "{error}");
    session.set_state("sum", host(&[1.0, 2.0], &[2])).expect("sets");
    session.run(&[]).expect("runs");
    session.run(&[]).expect("runs");
    assert_eq!(session.save_state().expect("saves")["sum"].to_f32(), [3.0, 4.0]);
}

/// Lengths that grow by one: after the first that outgrew what was placed, nothing is placed again.
#[test]
fn sizes_within_what_was_placed_place_nothing() {
    let Some(hip) = EmulatedHip::new(&[ARCH]) else { return };
    let session = compile(affine(), &hip.session_options().expect("a device"));
    let statistics = || session.executable().expect("compiled").statistics();
    let run = |n: usize| {
        let x = session.upload(&host(&vec![1.0; 4 * n], &[n, 4])).expect("uploads");
        let y = only(session.values([("x", &x)], &Wanted::device()).expect("runs"));
        assert_eq!(y.download().expect("downloads").to_f32(), vec![3.0; 4 * n]);
    };
    run(1);
    run(2);
    let placed = statistics().placed;
    (3..=40).for_each(run);
    assert_eq!(statistics().placed, placed, "{:?}", statistics());
    // Sizes that come again are worked out already.
    let sized = statistics().sized;
    (36..=40).for_each(run);
    assert_eq!(statistics().sized, sized);
    assert_eq!(statistics().contexts, 1);
}

/// Ten launches that no fusion takes together.
fn deep() -> Graph {
    let w: Vec<f32> = numbers(64, 3).iter().map(|v| v * 2.0).collect();
    let w = Tensor::from_slice(&w, [8, 8]);
    let x = InputSpec::new("x", DType::F32, shape![4, 8]);
    trace("deep", [x], |[x]| {
        let mut h = x;
        for _ in 0..5 {
            h = h.matmul(&w).softmax(-1);
        }
        [("y", h)]
    })
    .expect("records")
}

#[test]
fn runs_that_come_again_are_one_launch_of_a_graph() {
    for (name, no_capture) in [("captured", false), ("step by step", true)] {
        let Some(hip) = EmulatedHip::new(&[ARCH, ("GRAPHC_EMU_SEED", "3")]) else {
            return;
        };
        let mut options = hip.session_options().expect("a device");
        options.load.no_capture = no_capture;
        let session = compile(deep(), &options);
        let reference = compile(deep(), &SessionOptions::default());
        // More sets of addresses than graphs are kept.
        let inputs: Vec<HostTensor> = (0..6).map(|i| host(&numbers(32, 50 + i), &[4, 8])).collect();
        let uploaded: Vec<DeviceTensor> = inputs.iter().map(|x| session.upload(x).expect("uploads")).collect();
        for round in 0..3 {
            for (x, on_device) in inputs.iter().zip(&uploaded) {
                let want = reference.run(&[("x", x)]).expect("runs")["y"].to_f32();
                for _ in 0..4 {
                    let y = only(session.values([("x", on_device)], &Wanted::device()).expect("runs"));
                    close(
                        &y.download().expect("downloads").to_f32(),
                        &want,
                        &format!("{name}, round {round}"),
                    );
                }
                // From the host, through the same staging memory each time.
                let y = session.run(&[("x", x)]).expect("runs");
                close(&y["y"].to_f32(), &want, &format!("{name}, from the host"));
            }
        }
        let statistics = session.executable().expect("compiled").statistics();
        assert_eq!(statistics.captured > 0, !no_capture, "{statistics:?}");
        assert_eq!(statistics.replayed > statistics.captured, !no_capture, "{statistics:?}");
        assert_eq!(statistics.refused, 0);
    }
}

/// Many runs under way at once, their inputs from the host and from runs that are not done, in any order that the
/// device may choose.
#[test]
fn runs_that_are_not_waited_for_come_out_right_in_any_order() {
    let seeds = ["1", "2", "3", "4", "5", "6"];
    let gpus = seeds
        .iter()
        .map_while(|seed| EmulatedHip::new(&[ARCH, ("GRAPHC_EMU_SEED", seed)]));
    let gpus: Vec<EmulatedHip> = gpus.collect();
    let all = std::iter::once(SessionOptions::default())
        .chain(gpus.iter().map(|hip| hip.session_options().expect("a device")));
    for mut options in all {
        options.load.concurrent_runs = Some(3);
        let session = compile(affine(), &options);
        let mut flights = Vec::new();
        for i in 0..8usize {
            let x = host(&vec![i as f32; 4 * (i + 1)], &[i + 1, 4]);
            let mut first = session.submit([("x", &x)], &Wanted::device()).expect("begins");
            let middle = first.take("y").expect("on the device");
            assert!(first.take("y").is_none());
            // Dropped at once, or waited for out of order.
            let second = session.submit([("x", middle)], &Wanted::host()).expect("begins");
            flights.push((i, second, (i % 2 == 0).then_some(first)));
        }
        while let Some((i, second, first)) = flights.pop() {
            let y = second.wait().expect("runs").swap_remove("y").expect("an output");
            assert_eq!(
                y.into_host().expect("there").to_f32(),
                vec![4.0 * i as f32 + 3.0; 4 * (i + 1)]
            );
            if let Some(first) = first {
                assert!(first.wait().expect("runs").is_empty(), "its output was taken");
            }
        }
        let contexts = session.executable().expect("compiled").statistics().contexts;
        assert!(contexts <= 3, "{contexts}");
        session.executable().expect("compiled").trim();
    }
}

/// State is right when the runs that update it are not waited for.
#[test]
fn state_is_in_order_though_nobody_waits() {
    let want = decoded(8);
    for seed in ["7", "8", "9"] {
        let Some(hip) = EmulatedHip::new(&[ARCH, ("GRAPHC_EMU_SEED", seed)]) else {
            return;
        };
        let session = compile(
            DECODER.graph().expect("records"),
            &with_cache(hip.session_options().expect("a device")),
        );
        let submit = |position: usize| {
            let (x, position) = DECODER.step(position);
            session
                .submit([("x", &x), ("position", &position)], &Wanted::host())
                .expect("begins")
        };
        let flights: Vec<Pending> = (0..8).map(submit).collect();
        for (pending, want) in flights.into_iter().zip(&want) {
            let y = pending.wait().expect("runs").swap_remove("y").expect("an output");
            close(&y.into_host().expect("there").to_f32(), want, seed);
        }
    }
}

struct Woken(AtomicBool, std::thread::Thread);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
        self.1.unpark();
    }
}

#[test]
fn a_run_is_a_future() {
    on_each_device(|name, options| {
        let session = compile(affine(), &options());
        let pending = session
            .submit([("x", &host(&[2.0; 4], &[1, 4]))], &Wanted::host())
            .expect("begins");
        let woken = Arc::new(Woken(AtomicBool::new(false), std::thread::current()));
        let waker = Waker::from(woken.clone());
        let mut pending = std::pin::pin!(pending);
        let values = loop {
            match pending.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(values) => break values.expect("runs"),
                Poll::Pending => {
                    while !woken.0.swap(false, Ordering::SeqCst) {
                        std::thread::park_timeout(std::time::Duration::from_secs(60));
                    }
                }
            }
        };
        assert_eq!(
            values["y"].clone().into_host().expect("there").to_f32(),
            [5.0; 4],
            "{name}"
        );
    });
}

/// Threads share sessions and tensors, and everything is given back.
#[test]
fn sixteen_threads_share_three_sessions_and_their_tensors() {
    let check = |options: &SessionOptions, rounds: usize| {
        let sessions: Vec<Session> = (0..3).map(|_| compile(affine(), options)).collect();
        let shared: Vec<DeviceTensor> = (0..4)
            .map(|i| sessions[0].upload(&host(&[i as f32; 8], &[2, 4])).expect("uploads"))
            .collect();
        std::thread::scope(|scope| {
            for thread in 0..16usize {
                let (sessions, shared) = (&sessions, &shared);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let (session, i) = (&sessions[(thread + round) % 3], (thread * 7 + round) % 4);
                        let first = session.values([("x", &shared[i])], &Wanted::device()).expect("runs");
                        let second = session.values([("x", Given::Donated(only(first)))], &Wanted::host());
                        let y = second.expect("runs").swap_remove("y").expect("an output");
                        assert_eq!(y.into_host().expect("there").to_f32(), [4.0 * i as f32 + 3.0; 8]);
                    }
                });
            }
        });
    };
    check(&SessionOptions::default(), 50);
    let Some(hip) = EmulatedHip::new(&[ARCH]) else { return };
    let device = hip.open(0).expect("a device");
    let (free, _) = device.memory().expect("a device");
    let options = options_on(device);
    check(&options, 4);
    drop(options);
    assert_eq!(
        hip.open(0).expect("a device").memory().expect("a device").0,
        free,
        "everything was given back"
    );
}

/// Tries of a run among calls that fail.
const TRIES: usize = 20;

/// Every so many calls of the driver one fails, whichever it is: errors have types, nothing is kept, and the next run
/// is right.
#[test]
fn calls_that_fail_leave_nothing_behind() {
    if EmulatedHip::new(&[ARCH]).is_none() {
        return;
    }
    let want = decoded(3);
    let mut failures = 0;
    let mut after_failures = 0;
    // Primes, so that each round meets other calls.
    for every in ["call@31%", "call@67%", "call@101%", "call@307%", "call@1009%"] {
        let hip = EmulatedHip::new(&[ARCH, ("GRAPHC_EMU_FAULTS", every)]).expect("as before");
        let Some(device) = (0..4).find_map(|_| hip.open(0).ok()) else {
            panic!("{every}: no device")
        };
        let free = || {
            (0..4)
                .find_map(|_| device.memory().ok())
                .expect("asked until it answers")
                .0
        };
        let before = free();
        // Of its own: what it keeps for later tensors goes with it.
        let plain = options_on((0..4).find_map(|_| hip.open(0).ok()).expect("a device"));
        let (mut program, mut decoded) = (None, 0);
        for round in 0..12 {
            let options = with_cache(plain.clone());
            let session = match program.clone() {
                None => Session::compile(DECODER.graph().expect("records"), &options),
                Some(program) => Session::of_program(program, &options),
            };
            let session = match session {
                Ok(session) => session,
                Err(error) => {
                    failures += 1;
                    assert!(matches!(error, graphc::Error::Runtime(_)), "{every}: {error}");
                    continue;
                }
            };
            program = Some(session.executable().expect("compiled").program().clone());
            // A failure begins the state again, so three runs in a row have to go well: where they take more calls than
            // lie between two failures, they never do, however often they are tried. With the longest distances they
            // do.
            let (mut position, mut tries) = (0, 0);
            let before = failures;
            while position < 3 && tries < TRIES {
                tries += 1;
                let (x, at) = DECODER.step(position);
                match session.run(&[("x", &x), ("position", &at)]) {
                    Ok(outputs) => {
                        close(
                            &outputs["y"].to_f32(),
                            &want[position],
                            &format!("{every}, round {round}"),
                        );
                        position += 1;
                    }
                    Err(graphc::Error::Runtime(error)) => {
                        failures += 1;
                        assert!(!matches!(error, RuntimeError::DeviceLost { .. }), "{every}: {error}");
                        // A state that a failed run may have written is begun again.
                        session.reset_state();
                        position = 0;
                    }
                    Err(other) => panic!("{every}: {other}"),
                }
            }
            decoded += usize::from(position == 3);
            after_failures += usize::from(position == 3 && failures > before);
        }
        println!("{every}: {decoded} of 12 rounds came to their end");
        drop(plain);
        assert_eq!(free(), before, "{every}: memory was kept");
    }
    assert!(failures > 10, "{failures}");
    assert!(after_failures > 0, "no round came to its end after a run that failed");
}

/// A lazy tensor is computed where its data is, and its values stay there.
#[test]
fn lazy_tensors_realize_on_their_device() {
    let Some(hip) = EmulatedHip::new(&[ARCH]) else { return };
    let options = hip.session_options().expect("a device");
    let eager = Eager::new(options);
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]);
    let y = eager.realize(&[&(&x + 1.0)]).expect("computes").remove(0);
    assert_eq!(y.ty().to_string(), "f32[2, 2]");
    // The process's own place is the CPU; this is computed where `y` is, and not there.
    let shared = Eager::shared().stats();
    let z = (&y * &x).realize().expect("computes");
    assert_eq!(z.sum(..).item::<f32>().expect("computes"), 40.0);
    assert_eq!((Eager::shared().stats(), eager.stats().compiles), (shared, 3));
    // A graph that has it as a constant has the values.
    let graph = trace("g", [InputSpec::new("w", DType::F32, shape![2, 2])], |[w]| {
        [("s", &w + &z)]
    })
    .expect("records");
    let w = host(&[0.5; 4], &[2, 2]);
    let outputs = compile(graph, &SessionOptions::default())
        .run(&[("w", &w)])
        .expect("runs");
    assert_eq!(outputs["s"].to_f32(), [2.5, 6.5, 12.5, 20.5]);
    drop((y, z));
}

/// Memory that something else filled is read where it is, and let go of after the last use.
#[test]
fn memory_of_others_is_borrowed() {
    let Some(hip) = EmulatedHip::new(&[ARCH]) else { return };
    let device = hip.open(0).expect("a device");
    let session = compile(affine(), &hip.session_options().expect("a device"));
    // Another tensor's memory stands for another framework's.
    let theirs = session
        .upload(&host(&[1.0, 2.0, 3.0, 4.0, 5.0], &[5]))
        .expect("uploads");
    let flag = Arc::new(());
    for (start, want) in [(0, [3.0, 5.0, 7.0, 9.0]), (4, [5.0, 7.0, 9.0, 11.0])] {
        // SAFETY: four elements lie there, and `theirs` outlives the borrow.
        let borrowed = unsafe { device.borrow(theirs.address() + start, DType::F32, [1, 4], flag.clone()) };
        let kept = borrowed.clone();
        // It is never written, donated or not.
        drop(kept);
        let y = session
            .values([("x", Given::Donated(borrowed))], &Wanted::host())
            .expect("runs");
        assert_eq!(y["y"].clone().into_host().expect("there").to_f32(), want);
    }
    assert_eq!(Arc::strong_count(&flag), 1, "the owner is let go of");
    assert_eq!(
        theirs.download().expect("downloads").to_f32(),
        [1.0, 2.0, 3.0, 4.0, 5.0]
    );
}

/// A program with another limit refuses what is too much, and says so before anything runs.
#[test]
fn limits_are_stated() {
    let Some(hip) = EmulatedHip::new(&[ARCH]) else { return };
    let mut options = hip.session_options().expect("a device");
    options.load = LoadOptions {
        memory_limit: Some(1),
        ..LoadOptions::default()
    };
    let error = Session::compile(deep(), &options).expect_err("no room");
    assert!(error.to_string().contains("the limit is 1"), "{error}");
}
