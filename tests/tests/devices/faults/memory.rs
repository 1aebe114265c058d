//! Memory that a device does not have: what was asked, what is free, what a run takes by plan, and what would do.

use std::sync::Arc;

use graphc::ir::Bindings;
use graphc::ir::plan::arena::place;
use graphc::passes::stream::least;
use graphc::prelude::*;
use graphc::runtime::{Device, LoadOptions, OutOfDeviceMemory, Planned, RuntimeError};
use graphc_tests::emulated_hip::{EmulatedHip, options_on};

use super::control::Control;
use super::{ARCH, close, host, layers, load, numbers, program, session, want};

fn short(error: RuntimeError) -> OutOfDeviceMemory {
    match error {
        RuntimeError::OutOfDeviceMemory(short) => *short,
        other => panic!("{other}"),
    }
}

#[test]
fn what_was_asked_for_is_free_is_planned_and_would_do_is_said() {
    const SIDE: i64 = 64;
    let Some(control) = Control::new(&[("GRAPHC_EMU_ARCH", ARCH)]) else {
        return;
    };
    let program = program(&layers(SIDE), None);
    let plan = &program.variants[0].plan;
    let planned = Planned {
        peak: place(plan, &Bindings::new()).expect("fixed").total,
        weights: 4 * (SIDE * SIDE) as usize * 4,
    };
    let least = least(plan).expect("fixed");
    assert!(least < planned.peak + planned.weights, "{least} of {planned:?}");
    let device = Arc::new(control.hip.open(0).expect("a device"));
    // The weights, then the arena; each the first time that it is asked for.
    for (number, asked) in [(1, planned.weights), (2, planned.peak)] {
        control.set_faults(&format!("hipMalloc@{number}=hipErrorOutOfMemory"));
        let error = short(
            session(&device, &program, |options| options)
                .map(drop)
                .expect_err("no memory"),
        );
        let (free, _) = device.memory().expect("is there");
        assert_eq!(
            (error.asked, error.planned, error.least),
            (asked, Some(planned), Some(least)),
            "{error}"
        );
        // The error was made while the program was half loaded.
        assert!(
            error.free.is_some_and(|then| then < free && free - then < 1 << 20),
            "{error}: {free}"
        );
        let text = error.to_string();
        for part in [
            format!("no {asked} bytes"),
            format!(
                "peak of a run is {} bytes beside {} bytes of weights",
                planned.peak, planned.weights
            ),
            format!("--max-vram SIZE weights are streamed from the host, for any size from {least} bytes on"),
        ] {
            assert!(text.contains(&part), "{part}: {text}");
        }
        // The runtime by itself cannot plan.
        control.set_faults(&format!("hipMalloc@{number}=hipErrorOutOfMemory"));
        let error = short(
            load(&device, &program, &LoadOptions::default())
                .map(drop)
                .expect_err("no memory"),
        );
        assert_eq!(error.least, None);
    }
    // Where even the driver does not say what is free.
    control.set_faults("hipMalloc@1=hipErrorOutOfMemory,hipMemGetInfo@1=hipErrorUnknown");
    let error = short(
        load(&device, &program, &LoadOptions::default())
            .map(drop)
            .expect_err("no memory"),
    );
    assert!(
        error.free.is_none() && error.to_string().contains("it does not say"),
        "{error}"
    );
    // A tensor is of no plan.
    control.set_faults("hipMalloc@1=hipErrorOutOfMemory");
    let x = host(&[0.0; 100], &[100]);
    let error = short(Device::upload(&*device, &x).map(drop).expect_err("no memory"));
    assert!(
        (error.planned, error.least) == (None, None) && error.asked >= 400,
        "{error}"
    );
    control.set_faults("hipHostMalloc@1=hipErrorOutOfMemory");
    let error = load(&device, &program, &LoadOptions::default())
        .map(drop)
        .expect_err("no memory");
    let RuntimeError::OutOfPinnedMemory { asked, call, code, .. } = &error else {
        panic!("{error}");
    };
    assert!(
        *asked > 0 && call == "hipHostMalloc" && code == "hipErrorOutOfMemory",
        "{error}"
    );
    control.set_faults("");
}

/// On a device that has too little for the weights, what the error says would do does.
#[test]
fn what_would_do_does() {
    let side = 512;
    let Some(hip) = EmulatedHip::new(&[("GRAPHC_EMU_ARCH", ARCH), ("GRAPHC_EMU_MEMORY_MIB", "3")]) else {
        return;
    };
    let graph = layers(side);
    let device = Arc::new(hip.open(0).expect("a device"));
    let options = options_on(device);
    let error = match Session::compile(graph.clone(), &options).map(drop) {
        Err(graphc::Error::Runtime(error)) => short(error),
        other => panic!("{other:?}"),
    };
    let (least, free) = (
        error.least.expect("weights can be streamed"),
        error.free.expect("it says"),
    );
    assert!(error.asked == 4 << 20 && free < 3 << 20 && least < free, "{error}");
    let fitting = SessionOptions {
        max_vram: Some(least),
        ..options.clone()
    };
    let session = Session::compile(graph.clone(), &fitting).expect("there is room");
    let x = host(&numbers(2 * side as usize, 9), &[2, side as usize]);
    let got = session.run(&[("x", &x)]).expect("runs");
    let whole = program(&graph, None);
    close(&got["y"].to_f32(), &want(&whole, &x));
    let refused = SessionOptions {
        max_vram: Some(least - 1),
        ..options
    };
    assert!(Session::compile(graph, &refused).is_err(), "one byte less does not do");
}
