//! Convolutions by either engine: what the plan has, and that it computes the same.

use ir::library::Algorithm;
use ir::plan::eval;

use super::*;
use crate::plan::{Planned, reopen};
use crate::{OptimizeOptions, Tuning, testing};

/// Plans the lines of a graph for gfx90a, and checks the plan's results against the graph's.
fn planned(body: &str, prefer: Prefer, tuning: &Tuning) -> Planned {
    planned_from(body, false, prefer, tuning)
}

/// The same where the e-graph has made calls of all that it can.
fn planned_from(body: &str, calls: bool, prefer: Prefer, tuning: &Tuning) -> Planned {
    let target: Target = "gfx90a".parse().expect("known");
    let optimize = OptimizeOptions {
        prefer_calls: calls,
        // Channels stay where they are.
        disable: ["layout".to_owned()].into(),
        ..OptimizeOptions::default()
    };
    let graph = testing::graph(body);
    let inputs = testing::inputs(&graph);
    let want = ir::graph::eval::evaluate(&graph, &inputs).expect("evaluates");
    let (core, _) = crate::optimize(graph, &target, &optimize).expect("optimises");
    let mut options = PlanOptions {
        routes: Routes::of(&optimize, &target),
        tuning: tuning.clone(),
        prefer,
        ..PlanOptions::default()
    };
    let schedule = ScheduleOptions::default();
    let (core, called) = reopen(core, &target, &schedule, &options).expect("reopens");
    options.called = called;
    let (schedule, _) = crate::schedule(&core, &target, &schedule).expect("schedules");
    let planned = crate::plan_and_decided(&core, &schedule, &target, &options).expect("plans");
    let got = eval::evaluate(&planned.plan, core.constants(), &inputs).expect("evaluates");
    for (name, want) in &want {
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 2e-2 * (1.0 + b.abs());
        let (got, want) = (got[name].to_f64(), want.to_f64());
        assert!(got.iter().zip(&want).all(close), "{body}\n{}", planned.plan);
    }
    planned
}

/// What the steps of a plan are, without copies: `kernel`, or a call's name.
fn works(planned: &Planned) -> Vec<&'static str> {
    let work = |work: &Work| match work {
        Work::Launch { .. } => Some("kernel"),
        Work::Call { call, .. } => Some(call.name()),
        Work::Copy { .. } => None,
    };
    planned
        .plan
        .steps
        .values()
        .filter_map(|step| work(&step.work))
        .collect()
}

/// A convolution with a window of 3 and what comes after it.
fn body(ty: &str, [image, filter]: [&str; 2], attributes: &str, after: &str) -> String {
    format!(
        "x = input \"x\" : {ty}[{image}]\n w = input \"w\" : {ty}[{filter}]\n \
         y = conv x, w {{{attributes}pad_low=[1, 1], pad_high=[1, 1]}}\n {after}\n return z as \"z\""
    )
}

/// Convolutions, and the kernels that a call leaves of each.
fn cases() -> Vec<(String, usize)> {
    let first = ["2, 8, 6, 6", "16, 8, 3, 3"];
    let last = ["2, 6, 6, 8", "16, 3, 3, 8"];
    let bias = "b = input \"b\" : f32[16]";
    let biased = |body: String| {
        let body = body.replace("y = conv x, w", &format!("{bias}\n y = conv x, w, b"));
        assert!(body.contains(bias));
        body
    };
    let residual = "r = input \"r\" : f16[2, 6, 6, 16]\n a = add y, r\n z = relu a";
    let scaled = "s = input \"s\" : f32[]\n f = cast y : f32[2, 6, 6, 16]\n z = mul f, s";
    let i32s = "out=i32, ";
    vec![
        (
            body("f32", first, "", "z = identity y").replace("z = identity y\n return z", "return y"),
            0,
        ),
        (body("f32", first, "", "z = relu y"), 1),
        (biased(body("f32", first, "", "z = relu y")), 1),
        (biased(body("f32", last, "channels_last, ", "z = relu y")), 1),
        (body("f16", last, "channels_last, ", residual), 1),
        (body("bf16", first, "", "z = tanh y"), 1),
        (body("i8", last, &format!("channels_last, {i32s}"), scaled), 1),
        // A filter for each channel.
        (
            body("f16", ["2, 16, 6, 6", "16, 1, 3, 3"], "groups=16, ", "z = relu y"),
            1,
        ),
        (
            body(
                "f32",
                ["2, 6, 6, 16", "16, 3, 3, 1"],
                "groups=16, channels_last, ",
                "z = add y, y",
            ),
            1,
        ),
        // Open images.
        (
            format!(
                "symbol n: 1..64 hint 2\n {}",
                body("f32", ["n, 8, 6, 6", "16, 8, 3, 3"], "", "z = relu y")
            ),
            1,
        ),
        (
            format!(
                "symbol n: 1..64 hint 2\n {}",
                body("f16", ["n, 16, 6, 6", "16, 1, 3, 3"], "groups=16, ", "z = relu y")
            ),
            1,
        ),
    ]
}

#[test]
fn a_convolution_is_one_kernel_or_a_call_and_what_follows_as_measured() {
    let none = Tuning::default();
    for (body, rest) in cases() {
        let as_call: Vec<&str> = std::iter::once("miopen_conv")
            .chain(std::iter::repeat_n("kernel", rest))
            .collect();
        let calls = planned(&body, Prefer::Calls, &none);
        let kernels = planned(&body, Prefer::Kernels, &none);
        assert_eq!(
            (works(&calls), works(&kernels)),
            (as_call.clone(), vec!["kernel"]),
            "{body}\n{}",
            calls.plan
        );
        let ([call], [kernel]) = (&calls.convolutions[..], &kernels.convolutions[..]) else {
            panic!("{body}: one convolution")
        };
        assert_eq!((&call.product, &call.mapping), (&kernel.product, &kernel.mapping));
        assert_eq!((call.call, kernel.call), (Some("miopen_conv"), None));
        assert_eq!((call.steps.len(), kernel.steps.len()), (1 + rest, 1));
        assert!(call.product.starts_with("gfx90a conv ") && call.product.contains("pads [1, 1] [1, 1]"));
        let algorithm: Algorithm = "2a00000000000000 of MIOpen 3.5.1 on HIP 7.2.0"
            .parse()
            .expect("an algorithm");
        for (engine, expected) in [
            (Engine::Kernel, vec!["kernel"]),
            (Engine::call("miopen_conv", None), as_call.clone()),
            (Engine::call("miopen_conv", Some(algorithm.clone())), as_call.clone()),
        ] {
            let mut tuning = Tuning::default();
            tuning.decide(call.product.clone(), engine.clone());
            let decided = planned(&body, Prefer::Fastest, &tuning);
            assert_eq!(works(&decided), expected, "{body}\n{}", decided.plan);
            assert_eq!(decided.plan, planned(&body, Prefer::Fastest, &tuning).plan);
            let [said] = &decided.decided[..] else {
                panic!("{body}: {:?}", decided.decided)
            };
            assert_eq!((&said.product, &said.engine), (&call.product, &engine.to_string()));
            let named = decided.plan.steps.values().find_map(|step| match &step.work {
                Work::Call { algorithm, .. } => algorithm.as_deref(),
                _ => None,
            });
            let has_algorithm = engine == Engine::call("miopen_conv", Some(algorithm.clone()));
            assert_eq!(named, has_algorithm.then_some(&algorithm));
        }
        // Rows of other versions and of other convolutions.
        let unmeasured = works(&planned(&body, Prefer::Fastest, &none));
        for (line, name) in [
            (call.product.clone(), "miopen_conv_of_tomorrow"),
            ("another".to_owned(), "miopen_conv"),
        ] {
            let mut tuning = Tuning::default();
            tuning.decide(line, Engine::call(name, None));
            let stale = planned(&body, Prefer::Fastest, &tuning);
            assert_eq!((works(&stale), stale.decided.len()), (unmeasured.clone(), 0), "{body}");
        }
    }
}

/// What the e-graph makes a call of is a kernel that takes in what follows, where that was faster.
#[test]
fn a_call_of_the_e_graph_becomes_the_kernel_with_all_that_follows() {
    let bodies = [
        body("f32", ["2, 8, 6, 6", "16, 8, 3, 3"], "", "z = relu y"),
        body("f16", ["2, 16, 6, 6", "16, 1, 3, 3"], "groups=16, ", "z = relu y"),
        format!(
            "symbol n: 1..64 hint 2\n {}",
            body("f16", ["n, 16, 6, 6", "16, 1, 3, 3"], "groups=16, ", "z = relu y")
        ),
    ];
    for body in &bodies {
        let none = Tuning::default();
        let call = vec!["miopen_conv", "kernel"];
        let product = planned(body, Prefer::Kernels, &none).convolutions[0].product.clone();
        for (prefer, expected) in [
            (Prefer::Fastest, call.clone()),
            (Prefer::Calls, call.clone()),
            (Prefer::Kernels, vec!["kernel"]),
        ] {
            assert_eq!(
                works(&planned_from(body, true, prefer, &none)),
                expected,
                "{prefer:?} {body}"
            );
        }
        for (line, engine, expected) in [
            (&product, Engine::Kernel, vec!["kernel"]),
            (&product, Engine::call("miopen_conv", None), call.clone()),
            // A row that is of no convolution here changes nothing of what the e-graph chose.
            (&"another".to_owned(), Engine::Kernel, call.clone()),
        ] {
            let mut tuning = Tuning::default();
            tuning.decide(line.clone(), engine.clone());
            let decided = planned_from(body, true, Prefer::Fastest, &tuning);
            assert_eq!(works(&decided), expected, "{}", decided.plan);
            let changed: Vec<bool> = decided.decided.iter().map(|d| d.changed).collect();
            let expected = if *line == product {
                vec![engine == Engine::Kernel]
            } else {
                Vec::new()
            };
            assert_eq!(changed, expected);
        }
    }
}

/// Two convolutions whose products are equal and whose windows are not have lines of their own.
#[test]
fn windows_are_told_apart() {
    let line = |filter: &str, attributes: &str| {
        let body = format!(
            "x = input \"x\" : f16[1, 8, 8, 8]\n w = input \"w\" : f16[16, {filter}, 8]\n \
             y = conv x, w {{channels_last, {attributes}}}\n z = relu y\n return z as \"z\""
        );
        planned(&body, Prefer::Kernels, &Tuning::default()).convolutions[0]
            .product
            .clone()
    };
    let lines = [
        line("3, 3", "pad_low=[1, 1], pad_high=[1, 1]"),
        line("1, 9", "pad_low=[0, 4], pad_high=[0, 4]"),
        line("9, 1", "pad_low=[4, 0], pad_high=[4, 0]"),
        line("3, 3", "dilations=[2, 2], pad_low=[2, 2], pad_high=[2, 2]"),
    ];
    for (nth, line) in lines.iter().enumerate() {
        assert!(line.contains("[1, 64, 16, 72]"), "{line}");
        assert!(!lines[..nth].contains(line), "{lines:#?}");
    }
}

/// What MIOpen has no call for is a kernel, whatever is preferred.
#[test]
fn what_miopen_does_not_take_has_no_line() {
    for attributes in ["pad_low=[1, 0], pad_high=[0, 1]", "transposed=[0, 0]"] {
        let body = format!(
            "x = input \"x\" : f32[1, 8, 8, 8]\n w = input \"w\" : f32[8, 8, 2, 2]\n \
             y = conv x, w {{{attributes}}}\n z = relu y\n return z as \"z\""
        );
        let planned = planned(&body, Prefer::Calls, &Tuning::default());
        assert!(
            planned.convolutions.is_empty() && !works(&planned).contains(&"miopen_conv"),
            "{}",
            planned.plan
        );
    }
}
