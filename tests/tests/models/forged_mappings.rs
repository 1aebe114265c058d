//! Mappings with wrong numbers, as a damaged file could have them: each is refused by name, or everything that asks a
//! kernel for its sizes answers. Nothing panics, overflows or divides by zero.

use std::panic::{AssertUnwindSafe, catch_unwind};

use graphc::driver::{BuildOptions, build};
use graphc::passes::OptLevel;
use ir::dim::Bindings;
use ir::graph::parse::parse;
use ir::kernel::{Kernel, Mapping, limits, verify};
use ir::{Symbols, Target};
use serde_json::Value;

/// A graph for each kind of mapping; what kind, a target's facts say.
const GRAPHS: &[&str] = &[
    "x = input \"x\" : f16[256, 512]\n w = input \"w\" : f16[512, 384]\n y = contract x, w",
    "x = input \"x\" : f16[2, 512]\n w = input \"w\" : f16[512, 384]\n y = contract x, w",
    "x = input \"x\" : f16[1, 4096]\n w = input \"w\" : i4[8192, 4096]\n s = input \"s\" : f16[8192, 32]\n \
     q = dequantize w, s {axis=1, group=128, out=f16}\n y = contract x, q {transpose_rhs}",
    "x = input \"x\" : f16[2, 4096]\n w = input \"w\" : i4[8192, 4096]\n s = input \"s\" : f16[8192, 32]\n \
     q = dequantize w, s {axis=1, group=128, out=f16}\n y = contract x, q {transpose_rhs}",
    "x = input \"x\" : f64[40, 48]\n w = input \"w\" : f64[48, 56]\n y = contract x, w",
    "q = input \"q\" : f16[2, 4, 128, 64]\n k = input \"k\" : f16[2, 4, 128, 64]\n v = input \"v\" : f16[2, 4, 128, 64]\n \
     y = attention q, k, v {scale=0.125, causal}",
    "q = input \"q\" : f32[2, 4, 128, 64]\n k = input \"k\" : f32[2, 4, 128, 64]\n v = input \"v\" : f32[2, 4, 128, 64]\n \
     y = attention q, k, v {scale=0.125}",
    "q = input \"q\" : f64[1, 2, 9, 600]\n k = input \"k\" : f64[1, 2, 9, 600]\n v = input \"v\" : f64[1, 2, 9, 600]\n \
     y = attention q, k, v {scale=0.125}",
    "x = input \"x\" : f32[64, 1000]\n y = softmax x {axis=1}",
    "x = input \"x\" : f32[64, 1000]\n y = exp x",
    "x = input \"x\" : f32[4096, 4096]\n y = exp x",
    "x = input \"x\" : f32[8, 64, 56, 56]\n y = pool x {kind=max, size=[2, 2], strides=[2, 2]}",
    "x = input \"x\" : f32[8, 1000]\n y = top_k x {axis=1, k=3}",
    "x = input \"x\" : f32[300, 24, 500]\n y = reduce x {op=sum, axes=[1]}",
    "x = input \"x\" : f32[96, 64]\n t = transpose x {perm=[1, 0]}\n y = add t, t",
    "x = input \"x\" : f32[1, 8, 20, 20]\n y = reduce x {op=sum, axes=[0, 1, 2, 3]}",
];
const TARGETS: &[&str] = &["gfx90a", "gfx1100", "sm_90"];
/// What stands in a number's place.
const NUMBERS: &[u64] = &[0, 1, 3, 7, 64, 1000, 1 << 16, 1 << 31, u32::MAX as u64];

/// The places of all numbers and flags of a value, as JSON pointers.
fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(key, v)| leaves(v, &format!("{at}/{key}"), found)),
        Value::Array(items) => (items.iter().enumerate()).for_each(|(i, v)| leaves(v, &format!("{at}/{i}"), found)),
        Value::Number(_) | Value::Bool(_) => found.push(at.to_owned()),
        Value::Null | Value::String(_) => {}
    }
}

/// Asks everything that reads a mapping; says whether the kernel passed the checks.
fn ask(kernel: &Kernel, symbols: &Symbols, target: &Target) -> bool {
    let _ = kernel.mapping.to_string();
    if verify::verify(kernel).is_err() {
        return false;
    }
    let fits = limits::check(kernel, symbols, target).is_empty();
    let launched = kernel.launch_size(&Bindings::new());
    let emitted = codegen_hip::emit_kernel(kernel, symbols, target, &[]);
    fits && launched.is_ok() && emitted.is_ok()
}

#[test]
fn wrong_numbers_of_mappings_do_not_panic() {
    let (mut asked, mut refused, mut kinds) = (0, 0, std::collections::BTreeSet::new());
    let mut panicked = Vec::new();
    for (text, name) in GRAPHS
        .iter()
        .flat_map(|text| TARGETS.iter().map(move |name| (text, *name)))
    {
        let graph = parse(&format!("graph @g stage=import {{\n {text}\n return y as \"y\"\n}}\n")).expect("parses");
        let target: Target = name.parse().expect("known");
        let options = BuildOptions::new(vec![target], OptLevel::O2);
        let program = build(&graph, &options).expect("builds").program;
        let plan = &program.variants[0].plan;
        for kernel in plan.kernels.values() {
            assert!(ask(kernel, &plan.symbols, &target), "{name}: {kernel}");
            let honest = serde_json::to_value(&kernel.mapping).expect("serialises");
            kinds.insert(honest.as_object().and_then(|m| m.keys().next().cloned()));
            let mut places = Vec::new();
            leaves(&honest, "", &mut places);
            for (place, number) in places.iter().flat_map(|p| NUMBERS.iter().map(move |n| (p, *n))) {
                let mut forged = honest.clone();
                let leaf = forged.pointer_mut(place).expect("it was found");
                *leaf = match leaf {
                    Value::Bool(was) => Value::Bool(!*was),
                    _ => number.into(),
                };
                // A number that the type does not hold is refused where the file is read.
                let Ok(mapping) = serde_json::from_value::<Mapping>(forged) else {
                    continue;
                };
                let wrong = Kernel {
                    mapping,
                    ..kernel.clone()
                };
                asked += 1;
                match catch_unwind(AssertUnwindSafe(|| ask(&wrong, &plan.symbols, &target))) {
                    Ok(passed) => refused += usize::from(!passed),
                    Err(_) => panicked.push(format!("{name} {}: {place} = {number}", honest)),
                }
            }
        }
    }
    println!("{asked} mappings of {} kinds, {refused} refused", kinds.len());
    assert!(
        panicked.is_empty(),
        "{} panicked:\n{}",
        panicked.len(),
        panicked.join("\n")
    );
    assert!(kinds.len() >= 11, "{kinds:?}");
    assert!(refused * 2 > asked, "{refused} of {asked} refused");
}

/// Some rows by weights of four bits, on sm_90: their scales' type, the elements that share one, and what else is
/// dequantised from.
fn quantised_rows(rows: u32, stored: &str, scales: &str, group: usize, zero: &str) -> (Kernel, Symbols) {
    let groups = 4096 / group;
    let (declared, named) = match zero {
        "" => (String::new(), ""),
        zero => (format!(" z = input \"z\" : {zero}[8192, {groups}]\n"), ", z"),
    };
    let text = format!(
        "graph @g stage=import {{\n x = input \"x\" : f16[{rows}, 4096]\n w = input \"w\" : {stored}[8192, 4096]\n \
         s = input \"s\" : {scales}[8192, {groups}]\n{declared} q = dequantize w, s{named} {{axis=1, group={group}, out=f16}}\n \
         y = contract x, q {{transpose_rhs}}\n return y as \"y\"\n}}\n"
    );
    let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let target: Target = "sm_90".parse().expect("known");
    let program = build(&graph, &BuildOptions::new(vec![target], OptLevel::O2))
        .expect("builds")
        .program;
    let plan = program.variants[0].plan.clone();
    let kernel = plan.kernels.values().next().expect("one kernel").clone();
    (kernel, plan.symbols)
}

/// Matrix instructions for few rows ask for facts about the weights; a kernel that lacks one is refused and says which.
#[test]
fn few_rows_by_matrix_instructions_need_their_facts() {
    let tilings = |scales, group, zero| {
        let (kernel, symbols) = quantised_rows(2, "u4", scales, group, zero);
        match &kernel.mapping {
            Mapping::Gemv(tiling) => (tiling.clone(), kernel, symbols),
            other => panic!("{other}"),
        }
    };
    let sm_90: Target = "sm_90".parse().expect("known");
    let (by_sums, honest, symbols) = tilings("f16", 128, "u4");
    assert!(
        by_sums.matrix.as_ref().is_some_and(|m| m.scaled_sums),
        "{}",
        honest.mapping
    );
    assert_eq!(limits::check(&honest, &symbols, &sm_90), []);
    let (by_weights, ..) = tilings("f16", 32, "u4");
    assert!(by_weights.matrix.as_ref().is_some_and(|m| !m.scaled_sums));
    // Neither a scale that moves within a step and is of another type, nor a zero point that is no integer.
    assert!(tilings("f32", 32, "u4").0.matrix.is_none());
    assert!(tilings("f16", 128, "f32").0.matrix.is_none());

    let other = "gfx90a".parse().expect("known");
    let errors = limits::check(&honest, &symbols, &other);
    assert!(
        matches!(errors[..], [limits::LimitError::Instruction { .. }]),
        "{errors:?}"
    );
    let with = |kernel: Kernel, tiling: &ir::kernel::GemvTiling| Kernel {
        mapping: Mapping::Gemv(tiling.clone()),
        ..kernel
    };
    let (kernel, symbols) = quantised_rows(2, "u4", "f16", 32, "u4");
    let errors = limits::check(&with(kernel, &by_sums), &symbols, &sm_90);
    assert!(
        matches!(errors[..], [limits::LimitError::Scale { step: 128, .. }]),
        "{errors:?}"
    );
    for (scales, group, zero, tiling, word) in [
        ("f32", 32, "u4", &by_weights, "of which the scales must be"),
        ("f16", 128, "f32", &by_sums, "zero points are integers of four bits"),
    ] {
        let (kernel, _) = quantised_rows(2, "u4", scales, group, zero);
        let said = verify::verify(&with(kernel, tiling)).expect_err("refused");
        assert!(format!("{said:?}").contains(word), "{said:?}");
    }
}

/// Streamed weights lie so that a copy has all of a chunk's, and an access some scales: a kernel whose weights do not
/// is refused.
#[test]
fn streamed_rows_need_their_facts() {
    let sm_90: Target = "sm_90".parse().expect("known");
    let tiling = |kernel: &Kernel| match &kernel.mapping {
        Mapping::Gemv(tiling) if tiling.stream.is_some() => tiling.clone(),
        other => panic!("{other}"),
    };
    let with = |kernel: &Kernel, change: &dyn Fn(&mut ir::kernel::GemvTiling)| {
        let mut tiling = tiling(kernel);
        change(&mut tiling);
        Kernel {
            mapping: Mapping::Gemv(tiling),
            ..kernel.clone()
        }
    };
    let (honest, symbols) = quantised_rows(1, "i4", "f16", 128, "");
    assert_eq!(limits::check(&honest, &symbols, &sm_90), []);
    tiling(&honest);
    for (stored, zero) in [("u4", ""), ("i4", "i4"), ("u4", "u4")] {
        let (kernel, symbols) = quantised_rows(1, stored, "f16", 128, zero);
        assert_eq!(limits::check(&kernel, &symbols, &sm_90), []);
        tiling(&kernel);
    }
    // Scales of each 32 or of a whole column, and zero points of another type, are not streamed.
    for (stored, group, zero) in [("i4", 32, ""), ("i4", 4096, ""), ("u4", 4096, "u4"), ("i4", 128, "f32")] {
        let (kernel, symbols) = quantised_rows(1, stored, "f16", group, zero);
        let streams = matches!(&kernel.mapping, Mapping::Gemv(tiling) if tiling.stream.is_some());
        assert!(!streams, "{}", kernel.mapping);
        let forged = Kernel {
            mapping: honest.mapping.clone(),
            ..kernel
        };
        let errors = limits::check(&forged, &symbols, &sm_90);
        let unproved = |e: &limits::LimitError| matches!(e, limits::LimitError::Stream { pack: 8, .. });
        let refused = verify::verify(&forged).is_err() || errors.iter().any(unproved);
        assert!(refused, "{stored} {group} {zero}: {errors:?}");
    }
    let errors = limits::check(&honest, &symbols, &"gfx90a".parse().expect("known"));
    assert!(
        errors
            .iter()
            .any(|e| matches!(e, limits::LimitError::Instruction { .. })),
        "{errors:?}"
    );
    // Chunks that LDS has no room for.
    let large = with(&honest, &|t| t.stream.iter_mut().for_each(|s| s.stages = 40));
    assert!(
        matches!(
            limits::check(&large, &symbols, &sm_90)[..],
            [limits::LimitError::Lds { .. }]
        ),
        "{:?}",
        limits::check(&large, &symbols, &sm_90)
    );
    type Change<'a> = &'a dyn Fn(&mut ir::kernel::GemvTiling);
    // Two beside each other are too large for a unit.
    let together = with(&honest, &|t| {
        t.stream.iter_mut().for_each(|s| (s.stages, s.residents) = (6, 2))
    });
    let said = limits::check(&together, &symbols, &sm_90);
    assert!(matches!(said[..], [limits::LimitError::Together { .. }]), "{said:?}");
    let changes: [(Change<'_>, &str); 8] = [
        (
            &|t| t.stream.iter_mut().for_each(|s| s.residents = 3),
            "one workgroup that stays, or two",
        ),
        (&|t| t.rows = 2, "one row"),
        (&|t| t.waves = 15, "whole packs"),
        (&|t| t.cols = 64, "a lane copies each"),
        (&|t| t.rhs.width = 16, "weights come by 32"),
        (
            &|t| t.stream.iter_mut().for_each(|s| s.stages = 0),
            "from 1 to 64 chunks",
        ),
        (
            &|t| t.stream.iter_mut().for_each(|s| s.workgroups = 0),
            "that can be launched",
        ),
        (
            &|t| t.stream.iter_mut().for_each(|s| s.copiers = 3),
            "1, 2 or 4 waves copy weights",
        ),
    ];
    for (change, word) in changes {
        let said = verify::verify(&with(&honest, change)).map_err(|e| format!("{e:?}"));
        let said = said.expect_err(word);
        assert!(said.contains(word), "{said}");
    }
}
