//! Layers on several devices, one after the other: what stages compute, what they move, and what happens where one
//! fails.

use std::ffi::{CStr, c_char, c_int};
use std::time::Duration;

use passes::shard::Split;
use runtime::Wanted;

use super::*;

/// Some of the layers on each device.
fn layered(options: SessionOptions) -> SessionOptions {
    options.split(Split::Layers)
}

fn layered_cpu(ranks: usize) -> SessionOptions {
    let choice: DeviceChoice = vec!["cpu"; ranks].join(",").parse().expect("a device");
    layered(SessionOptions::default().device(choice).expect("it is there"))
}

/// The stand-in for HIP that the runtime has loaded from there already.
fn emulated(hip: &EmulatedHip) -> libloading::Library {
    // SAFETY: as is said.
    unsafe { libloading::Library::new(hip.folder().join("libamdhip64.so.7")) }.expect("it is there")
}

/// How often each function of HIP was called, or how much there is that was not given back.
fn lines(hip: &EmulatedHip, name: &CStr) -> std::collections::BTreeMap<String, u64> {
    type Write = unsafe extern "C" fn(*mut c_char, c_int) -> c_int;
    let library = emulated(hip);
    let mut text = vec![0u8; 1 << 16];
    // SAFETY: the functions' own signature, and room as is said.
    let code = unsafe {
        let write: libloading::Symbol<'_, Write> = library.get(name).expect("it has it");
        write(text.as_mut_ptr().cast(), text.len() as c_int)
    };
    assert_eq!(code, 0);
    let text = CStr::from_bytes_until_nul(&text)
        .expect("it ends")
        .to_str()
        .expect("names");
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs
        .map(|(name, count)| (name.to_owned(), count.parse().expect("a count")))
        .collect()
}

fn copies(hip: &EmulatedHip) -> u64 {
    lines(hip, c"graphcEmuCalls")
        .get("hipMemcpyPeerAsync")
        .copied()
        .unwrap_or(0)
}

fn forget(hip: &EmulatedHip, waits: c_int) {
    let library = emulated(hip);
    // SAFETY: the function's own signature.
    unsafe {
        let forget: libloading::Symbol<'_, unsafe extern "C" fn(c_int) -> c_int> =
            library.get(c"graphcEmuForget").expect("it has it");
        assert_eq!(forget(waits), 0);
    }
}

fn set_faults(hip: &EmulatedHip, list: &CStr) {
    let library = emulated(hip);
    // SAFETY: the function's own signature, and a C string.
    unsafe {
        let set: libloading::Symbol<'_, unsafe extern "C" fn(*const c_char) -> c_int> =
            library.get(c"graphcEmuSetFaults").expect("it has it");
        assert_eq!(set(list.as_ptr()), 0);
    }
}

/// What crosses in one run of a loaded program: values and bytes.
fn crossing(session: &Session) -> (u64, u64) {
    let executable = session.executable().expect("it is compiled");
    let program = executable.program();
    // The first variant is all stages together; the later ones are as they were built.
    let of = program.variants[1..].iter().filter_map(|variant| {
        let stage = variant.plan.share.as_ref()?.stage.as_ref()?;
        Some((&variant.plan, stage))
    });
    let (mut values, mut bytes) = (0, 0);
    for (plan, stage) in of {
        for (port, source) in plan.inputs.iter().zip(&stage.inputs) {
            if let ir::plan::Source::Stage { .. } = source {
                values += 1;
                bytes += constant(&port.ty.bytes()) as u64;
            }
        }
    }
    (values, bytes)
}

#[test]
fn stages_on_the_cpu_compute_the_bits_of_one_device() {
    let one = Session::compile(decoder(), &with_caches(SessionOptions::default())).expect("it compiles");
    for ranks in [2, 4] {
        let several = Session::compile(decoder(), &with_caches(layered_cpu(ranks))).expect("it compiles");
        one.reset_state();
        for position in 0..3 {
            let id = (7 * position + 3) % VOCABULARY;
            let (want, got) = (step(&one, id, position), step(&several, id, position));
            assert_eq!(
                want["logits"].bytes[..],
                got["logits"].bytes[..],
                "{ranks} stages, step {position}"
            );
        }
        let (want, got) = (one.save_state().expect("there"), several.save_state().expect("there"));
        for (name, want) in &want {
            assert_eq!(want.bytes[..], got[name].bytes[..], "{name}");
        }
        one.reset_state();
        several.reset_state();
        decodes_alike(&one, &several, 3);
    }
    // Sizes that the model leaves open, several threads, and runs that are not waited for between runs that are.
    let one = Session::compile(mlp(), &SessionOptions::default()).expect("it compiles");
    let several = Session::compile(mlp(), &layered_cpu(2)).expect("it compiles");
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (one, several) = (&one, &several);
            scope.spawn(move || {
                for rows in [1, 4 + thread] {
                    let x = x(rows);
                    let want = one.run(&[("x", &x)]).expect("it runs");
                    let begin = |_| several.submit([("x", &x)], &Wanted::device()).expect("it begins");
                    let begun: Vec<_> = (0..3).map(begin).collect();
                    let got = several.run(&[("x", &x)]).expect("it runs");
                    assert_eq!(want["y"].bytes[..], got["y"].bytes[..]);
                    for pending in begun {
                        let mut values = pending.wait().expect("it runs");
                        let value = values.swap_remove("y").expect("there").into_device().expect("there");
                        let again = several.values([("x", &value)], &Wanted::host()).expect("it runs");
                        let twice = one.run(&[("x", &value.download().expect("there"))]).expect("it runs");
                        let again = again["y"].clone().into_host().expect("there");
                        assert_eq!(twice["y"].bytes[..], again.bytes[..]);
                    }
                }
            });
        }
    });
}

#[test]
fn a_condition_that_fails_in_a_stage_is_said_and_the_stages_go_on() {
    let session = Session::compile(decoder(), &with_caches(layered_cpu(2))).expect("it compiles");
    let id = HostTensor::from_i64(DType::I64, [1, 1], &[VOCABULARY]).expect("one");
    let position = HostTensor::from_i64(DType::I64, [1], &[0]).expect("one");
    let error = session.run(&[("id", &id), ("position", &position)]).unwrap_err();
    assert!(error.to_string().contains("outside"), "{error}");
    session.reset_state();
    step(&session, 1, 0);
    let few = HostTensor::from_i64(DType::I64, [2, 1], &[1, 1]).expect("two");
    let refused = session.run(&[("id", &few), ("position", &position)]).unwrap_err();
    assert!(!refused.to_string().contains("stage"), "{refused}");
    step(&session, 1, 1);
}

#[test]
fn an_artifact_of_stages_runs_on_as_many_devices() {
    let mut options = BuildOptions::new(vec!["cpu".parse().expect("a target")], OptLevel::O2);
    options.ranks = Some(ShardOptions {
        split: Split::Layers,
        states: cache_names().iter().map(|n| (n.clone(), format!("{n}_next"))).collect(),
        ..ShardOptions::new(2)
    });
    let build = driver::build(&decoder(), &options).expect("it builds");
    let staging = build.reports[0].staging.as_ref().expect("it is cut");
    assert_eq!(staging.stages.len(), 2);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("decoder.graphc");
    build.program.save(&path).expect("it is saved");
    let read = Program::load(&path).expect("it is read");
    assert_eq!(read.variants[1].plan.share, build.program.variants[1].plan.share);
    let several = Session::open(&path, &with_caches(layered_cpu(2))).expect("it opens");
    let one = Session::compile(decoder(), &with_caches(SessionOptions::default())).expect("it compiles");
    decodes_alike(&one, &several, 2);
    let four = Session::open(&path, &with_caches(layered_cpu(4)))
        .unwrap_err()
        .to_string();
    assert!(
        four.contains("4 ranks") && four.contains("cpu (stage 0 of 2)"),
        "{four}"
    );
    // A stage that is not the next one's is damage that is said.
    let mut damaged = read;
    if let Some(stage) = damaged.variants[1]
        .plan
        .share
        .as_mut()
        .and_then(|share| share.stage.as_mut())
    {
        for source in &mut stage.inputs {
            if let ir::plan::Source::Stage { result, .. } = source {
                *result = 9;
            }
        }
    }
    let error = Session::of_program(Arc::new(damaged), &layered_cpu(2))
        .unwrap_err()
        .to_string();
    assert!(error.contains("result 9 of stage 0"), "{error}");
}

#[test]
fn two_and_four_gpus_have_layers_each_and_send_what_crosses() {
    for (arch, all) in [("gfx90a", vec![2usize, 4]), ("gfx942", vec![2])] {
        let devices = ("GRAPHC_EMU_DEVICES", "4");
        let Some(hip) = EmulatedHip::new(&[
            devices,
            ("GRAPHC_EMU_SEED", "3"),
            ("GRAPHC_EMU_ARCH", &[arch; 4].join(",")),
        ]) else {
            return;
        };
        let device = hip.open(0).expect("it is there");
        let one = Session::compile(decoder(), &with_caches(options_on(device))).expect("it compiles");
        for ranks in all {
            let device = hip.open_ranks(ranks).expect("they are there");
            let several = Session::compile(decoder(), &with_caches(layered(options_of(device)))).expect("it compiles");
            let (values, bytes) = crossing(&several);
            let before = copies(&hip);
            one.reset_state();
            let runs = match ranks {
                2 => {
                    decodes_alike(&one, &several, 2);
                    2 + 3
                }
                _ => {
                    assert!(apart(&step(&one, 3, 0)["logits"], &step(&several, 3, 0)["logits"]) < 1e-4);
                    1
                }
            };
            assert_eq!(copies(&hip) - before, runs * values, "{ranks} stages");
            if ranks == 2 {
                // The residual alone, and no library between the devices.
                assert_eq!((values, bytes), (1, WIDTH as u64 * 4));
                let rest = weights(&one) - weights(&several);
                assert!(
                    weights(&several) < weights(&one) * 3 / 4 && rest > 0,
                    "{}",
                    weights(&several)
                );
                assert_eq!(several.executable().expect("there").plan().collectives().count(), 0);
            }
        }
    }
}

/// Some layers in a row, of three rows each.
fn tower(layers: usize, width: i64) -> Graph {
    let graph = trace("tower", [InputSpec::new("x", DType::F32, shape![3, width])], |[x]| {
        let layer = |h: Tensor, layer| h.matmul(&weight(layer, width, width)).gelu();
        [("y", (0..layers).fold(x, layer))]
    });
    graph.expect("it types")
}

#[test]
fn a_wait_for_what_crosses_that_is_missing_shows() {
    let mut shown = [0; 3];
    let inputs: Vec<HostTensor> = (0..4)
        .map(|seed| {
            let values = numbers(3 * WIDTH as usize, 100 + seed);
            HostTensor::from_f32([3, WIDTH as usize], &values).expect("as many")
        })
        .collect();
    let one = Session::compile(tower(6, WIDTH), &SessionOptions::default()).expect("it compiles");
    let want: Vec<HostTensor> = inputs
        .iter()
        .map(|x| one.run(&[("x", x)]).expect("it runs")["y"].clone())
        .collect();
    for seed in ["1", "2", "3"] {
        let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "2"), ("GRAPHC_EMU_SEED", seed)]) else {
            return;
        };
        let device = hip.open_ranks(2).expect("they are there");
        let session = Session::compile(tower(6, WIDTH), &layered(options_of(device))).expect("it compiles");
        for forgotten in [0, 1, 2] {
            forget(&hip, forgotten);
            for _ in 0..6 {
                // Several runs, so that the devices are behind what is queued.
                let begin = |x| session.submit([("x", x)], &Wanted::host()).expect("it begins");
                let begun: Vec<_> = inputs.iter().map(begin).collect();
                for (pending, want) in begun.into_iter().zip(&want) {
                    let got = pending.wait().expect("it runs").swap_remove("y").expect("there");
                    let got = got.into_host().expect("there");
                    shown[forgotten as usize] += usize::from(apart(want, &got) > 1e-4);
                }
            }
        }
        forget(&hip, 0);
    }
    assert_eq!(shown[0], 0);
    assert!(shown[1] > 0 && shown[2] > 0, "{shown:?}");
}

#[test]
fn what_cannot_be_shared_is_split_by_layers_where_memory_asks_for_it() {
    // 33 columns do not divide among two.
    let graph = tower(6, 33);
    let whole = 6 * 33 * 33 * 4;
    let build = |memory: Option<usize>| {
        let mut options = BuildOptions::new(vec!["gfx90a".parse().expect("a target")], OptLevel::O2);
        options.ranks = Some(ShardOptions {
            split: Split::Auto,
            memory,
            ..ShardOptions::new(2)
        });
        driver::build(&graph, &options).expect("it builds")
    };
    // One run takes less time without copies between devices.
    let reports = build(None).reports;
    let sharding = reports[0].sharding.as_ref().expect("each layer is on both");
    assert_eq!(
        (&sharding.rank_bytes[..], reports[0].staging.is_none()),
        (&[whole; 2][..], true)
    );
    let limited = build(Some(whole * 2 / 3));
    let staging = limited.reports[0].staging.as_ref().expect("layers");
    let bytes: Vec<usize> = staging.stages.iter().map(|stage| stage.weight_bytes).collect();
    assert_eq!(bytes, [whole / 2; 2]);
    assert!(staging.us > sharding.us, "{} {}", staging.us, sharding.us);
}

#[test]
fn the_first_stage_goes_on_while_the_second_has_the_run_before() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "2")]) else {
        return;
    };
    // What the first stage makes is an output too, so that it can be waited for alone.
    let graph = trace("two", [InputSpec::new("x", DType::F32, shape![3, WIDTH])], |[x]| {
        let h = x.matmul(&weight(7, WIDTH, WIDTH)).gelu();
        let y = h.matmul(&weight(9, WIDTH, WIDTH)).gelu();
        [("h", h), ("y", y)]
    });
    let graph = graph.expect("it types");
    let want = Session::compile(graph.clone(), &SessionOptions::default()).expect("it compiles");
    let device = hip.open_ranks(2).expect("they are there");
    device.device.set_timeout(Some(Duration::from_millis(1500)));
    let session = Session::compile(graph, &layered(options_of(device))).expect("it compiles");
    let begin = || session.submit([("x", &x(3))], &Wanted::device()).expect("it begins");
    // Two at once, so that nothing is made anew below.
    let (first, second) = (begin(), begin());
    first.wait().and(second.wait()).expect("they run");
    // The second stage's launch of the first run is never done.
    let launches = session.executable().expect("there").plan().launches().0 as u64;
    assert_eq!(launches, 2, "one for each stage");
    set_faults(&hip, c"hang@2");
    let (first, mut second) = (begin(), begin());
    let h = second
        .take("h")
        .expect("it is on the device")
        .download()
        .expect("the first stage is free");
    let other = want.run(&[("x", &x(3))]).expect("it runs");
    assert!(apart(&other["h"], &h) < 1e-4);
    let error = first.wait().expect_err("it hangs").to_string();
    assert!(error.contains("stage 1 on hip:1"), "{error}");
    assert!(second.wait().is_err());
    let later = session.run(&[("x", &x(3))]).expect_err("hip:1 is lost").to_string();
    assert!(later.contains("hip:1 is lost"), "{later}");
    drop(session);
    let blocked = lines(&hip, c"graphcEmuLive").get("blocked").copied();
    assert_eq!(blocked.unwrap_or(0), 0, "nobody waits for what hangs");
}

#[test]
fn a_model_that_is_too_large_for_one_device_runs_on_two() {
    // 12 layers of a mebibyte each.
    const WIDE: i64 = 512;
    let graph = trace("large", [InputSpec::new("x", DType::F32, shape![1, WIDE])], |[x]| {
        let mut h = x;
        for layer in 0..12 {
            h = h.matmul(&weight(layer, WIDE, WIDE)).relu();
        }
        [("y", h)]
    });
    let graph = graph.expect("it types");
    let x = HostTensor::from_f32([1, WIDE as usize], &numbers(WIDE as usize, 3)).expect("as many");
    let want = Session::compile(graph.clone(), &SessionOptions::default()).expect("it compiles");
    let want = want.run(&[("x", &x)]).expect("it runs");
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "2"), ("GRAPHC_EMU_MEMORY_MIB", "9")]) else {
        return;
    };
    let alone = Session::compile(graph.clone(), &options_on(hip.open(0).expect("it is there")))
        .expect_err("12 MiB")
        .to_string();
    assert!(
        alone.contains("has no") && alone.contains("12582912 bytes of weights"),
        "{alone}"
    );
    let device = hip.open_ranks(2).expect("they are there");
    let session = Session::compile(graph.clone(), &layered(options_of(device))).expect("it compiles");
    let got = session.run(&[("x", &x)]).expect("it runs");
    assert!(apart(&want["y"], &got["y"]) < 1e-4);
    assert_eq!(weights(&session), 6 << 20, "half of the weights on each");
    drop(session);
    // A limit counts as the device's own memory does, and nothing is streamed where stages keep within it.
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "2")]) else {
        return;
    };
    let device = hip.open_ranks(2).expect("they are there");
    let options = SessionOptions {
        max_vram: Some(7 << 20),
        ..layered(options_of(device))
    };
    let session = Session::compile(graph, &options).expect("it compiles");
    let got = session.run(&[("x", &x)]).expect("it runs");
    assert!(apart(&want["y"], &got["y"]) < 1e-4);
    let executable = session.executable().expect("there");
    assert_eq!(executable.statistics().streamed_bytes, 0);
    assert!(executable.memory_at_hints().expect("known").device <= 7 << 20);
}

#[test]
fn a_stage_that_fails_leaves_nothing_and_the_next_run_is_right() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "2")]) else {
        return;
    };
    let live = |hip: &EmulatedHip| lines(hip, c"graphcEmuLive");
    let want = Session::compile(mlp(), &SessionOptions::default()).expect("it compiles");
    let want = want.run(&[("x", &x(3))]).expect("it runs")["y"].clone();
    let session = {
        let device = hip.open_ranks(2).expect("they are there");
        Session::compile(mlp(), &layered(options_of(device))).expect("it compiles")
    };
    session.run(&[("x", &x(3))]).expect("it runs");
    set_faults(&hip, c"");
    session.run(&[("x", &x(3))]).expect("it runs");
    let calls = lines(&hip, c"graphcEmuCalls");
    let kept = live(&hip);
    // What is made anew after a failure has the events of its own runs alone, not those of the forms before: never
    // more.
    let mut events = kept["events"];
    // Each call of a run fails once, with a code that leaves the device as it is.
    let mut failed = 0;
    for (name, count) in &calls {
        let ends = ["Free", "Destroy", "hipGetErrorName", "hipGetErrorString"];
        if ends.iter().any(|end| name.contains(end)) {
            continue;
        }
        for number in 1..=*count {
            let fault = std::ffi::CString::new(format!("{name}@{number}=hipErrorInvalidValue")).expect("no zero");
            set_faults(&hip, &fault);
            let ran = session.run(&[("x", &x(3))]);
            set_faults(&hip, c"");
            match ran {
                Ok(got) => assert!(apart(&want, &got["y"]) < 1e-4, "{fault:?}"),
                Err(error) => {
                    failed += 1;
                    let graphc::Error::Runtime(RuntimeError::Stage { device, .. }) = &error else {
                        panic!("{fault:?}: {error}")
                    };
                    assert!(device.starts_with("hip:"), "{fault:?}: {error}");
                }
            }
            let got = session
                .run(&[("x", &x(3))])
                .unwrap_or_else(|error| panic!("after {fault:?}: {error}"));
            assert!(apart(&want, &got["y"]) < 1e-4, "{fault:?}");
            let now = live(&hip)["events"];
            assert!(now <= events, "{fault:?}: {now} events after {events}");
            events = now;
        }
    }
    assert!(
        calls.contains_key("hipMemcpyPeerAsync") && failed > 20,
        "{failed} of {calls:?}"
    );
    session.run(&[("x", &x(3))]).expect("it runs");
    let now = live(&hip);
    for name in ["streams", "modules"] {
        assert_eq!(now.get(name), kept.get(name), "{name}");
    }
    assert_eq!(now["events"], events, "{kept:?}");
    drop(session);
    let left = live(&hip);
    assert!(!left.contains_key("events") || left["events"] == 0, "{left:?}");
}

#[test]
fn the_command_line_splits_by_layers() {
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_DEVICES", "2")]) else {
        return;
    };
    let line = CommandLine::new(&hip);
    let (at, ok) = (|name: &str| line.at(name), |words: &[&str]| line.ok(words));
    let (model, want, artifact) = (at("mlp.gir"), at("want.npz"), at("mlp.graphc"));
    let fixed = ["--size", "n=3"];
    ok(&["run", &model, "--random", "--size", "n=3", "-o", &want]);
    let layers = ["--split", "layers"];
    for device in ["cpu,cpu", "hip:0,1"] {
        let words = ["run", &model, "--random", "--device", device, "--expect", &want];
        let said = ok(&[&words[..], &fixed, &layers].concat());
        assert!(said.contains("y: ok"), "{said}");
    }
    let compile = ["compile", &model, "--target", "gfx90a", "--ranks", "2", "-o", &artifact];
    ok(&[&compile[..], &fixed, &layers].concat());
    assert!(ok(&["run", &artifact, "--random", "--device", "hip:0,1", "--expect", &want]).contains("y: ok"));
    let explain = ["explain", &model, "--target", "gfx90a", "--ranks", "2"];
    let said = ok(&[&explain[..], &fixed, &layers].concat());
    for part in [
        "by layers on 2 devices",
        "stage 0:",
        "stage 1:",
        "1 values of",
        "bytes cross in a run",
        "target gfx90a (stage 1 of 2)",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // So small a model has least to wait for where nothing is shared.
    let auto = ok(&[&explain[..], &fixed, &["--split", "auto"]].concat());
    assert!(auto.contains("shared among 2 devices"), "{auto}");
    let profile = ["profile", &model, "--device", "hip:0,1", "--runs", "2"];
    let said = ok(&[&profile[..], &fixed, &layers].concat());
    assert!(said.contains("matmul") || said.contains("kernel"), "{said}");
    let bench = ["bench", &model, "--device", "cpu,cpu", "--runs", "2"];
    ok(&[&bench[..], &fixed, &layers].concat());
    let bench = [
        "bench",
        &model,
        "--device",
        "hip:0,1",
        "--runs",
        "4",
        "--overlap",
        "3",
        "--resident",
    ];
    ok(&[&bench[..], &fixed, &layers].concat());
    let refused = |words: &[&str], part: &str| {
        let output = hip.graphc(words);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && err.contains(part), "{words:?}\n{err}");
    };
    refused(
        &["run", &artifact, "--random", "--device", "hip:0"],
        "gfx90a (stage 0 of 2)",
    );
    refused(
        &[
            "run", &artifact, "--random", "--device", "hip:0,1", "--split", "tensors",
        ],
        "--split",
    );
    refused(
        &["run", &model, "--random", "--split", "rows"],
        "tensors, layers or auto",
    );
}
