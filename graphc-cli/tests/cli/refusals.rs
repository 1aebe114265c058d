//! What must not pass for a success: comparisons of nothing, options without effect, sizes that nothing holds.

use graphc::ir::{DType, HostTensor};

use crate::place::{Place, SMALL, compiler, f32s, text};

/// A graph whose size has no limit.
const OPEN: &str = "graph @open stage=import {
  symbol n: 1.. hint 4
  n0 = input \"x\" : f32[n, 3]
  n1 = relu n0
  return n1 as \"y\", n0 as \"z\"
}
";

#[test]
fn a_comparison_of_nothing_is_an_error() {
    let p = Place::new();
    let m = p.write("open.gir", OPEN);
    let (m, x) = (text(&m), f32s(&[1, 3], &[1.0, -1.0, 2.0]));
    p.arrays("x.npz", &[("x", x.clone())]);
    p.arrays("none.npz", &[]);
    let run = ["run", m, "--inputs", "x.npz", "--expect"];
    p.fails(&[&run[..], &["none.npz"]].concat(), 2, &["none.npz", "no arrays"]);
    // Outputs that are not in the file are said.
    p.arrays("z.npz", &[("z", x)]);
    let said = p.ok(&[&run[..], &["z.npz"]].concat());
    assert!(said.contains("z: ok") && said.contains("y: not compared"), "{said}");
    let report = p.json(&[&run[..], &["z.npz", "--format", "json"]].concat());
    let difference = |name: &str| report["outputs"][name].get("difference").cloned();
    assert_eq!(difference("y"), Some(serde_json::Value::Null), "{report}");
    assert!(difference("z").is_some_and(|d| d["mismatches"] == 0), "{report}");
    let labels = HostTensor::from_i64(DType::I64, [0], &[]).expect("empty");
    p.arrays("labels.npz", &[("labels", labels)]);
    p.fails(
        &["run", m, "--inputs", "x.npz", "--labels", "labels.npz"],
        2,
        &["no labels"],
    );
}

#[test]
fn verify_that_checks_no_kernel_fails() {
    let p = Place::new();
    if !compiler(&p) {
        return;
    }
    let m = p.write("small.gir", SMALL);
    let verify = ["verify", text(&m), "--target", "gfx90a", "--emulate"];
    assert!(p.ok(&verify).contains("1 kernels checked"));
    let args = [&verify[..], &["--limit", "0"]].concat();
    p.fails(&args, 2, &["no kernel was checked for gfx90a", "--limit", "--sample"]);
}

#[test]
fn an_artifact_takes_no_options_of_how_to_compile() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    p.ok(&["compile", text(&m), "--target", "cpu", "-o", "a.graphc"]);
    p.arrays("x.npz", &[("x", f32s(&[1, 3], &[1.0, -1.0, 2.0]))]);
    for option in [
        &["--dtype", "f16"][..],
        &["-O1"],
        &["--no-libraries"],
        &["--disable", "simplify"],
    ] {
        let name = &option[0][..option[0].len().min(if option[0].starts_with("-O") { 2 } else { 99 })];
        let run = [&["run", "a.graphc", "--inputs", "x.npz"][..], option].concat();
        p.fails(&run, 2, &[name, "a.graphc is compiled already"]);
        let compile = [
            &["compile", "a.graphc", "--target", "cpu", "-o", "b.graphc"][..],
            option,
        ]
        .concat();
        p.fails(&compile, 2, &[name, "a.graphc is compiled already"]);
    }
    p.fails(
        &["compile", "a.graphc", "--target", "gfx1100", "-o", "b.graphc"],
        2,
        &["no code for gfx1100", "it holds cpu"],
    );
    p.fails(
        &["compile", "a.graphc", "--target", "gfx1100", "--emit", "plan"],
        2,
        &["no code for gfx1100"],
    );
    assert!(!p.path("b.graphc").exists());
    if !compiler(&p) {
        return;
    }
    // Of several variants those that were asked for are kept, with the weights that they use.
    p.ok(&["compile", text(&m), "--target", "gfx90a,cpu", "-o", "both.graphc"]);
    p.ok(&["compile", "both.graphc", "--target", "cpu", "-o", "one.graphc"]);
    let bytes = |name: &str| std::fs::read(p.path(name)).expect("written");
    assert!(bytes("one.graphc") == bytes("a.graphc"), "the cpu's variant alone");
    p.fails(
        &["inspect", "one.graphc", "--target", "gfx90a"],
        2,
        &["no code for gfx90a"],
    );
}

#[test]
fn sizes_beyond_memory_are_the_users_mistake() {
    let p = Place::new();
    let m = p.write("open.gir", OPEN);
    let run = |size: &str, says: &[&str]| {
        p.fails(&["run", text(&m), "--random", "--size", size], 2, says);
    };
    run("n=4611686018427387904", &["4611686018427387904"]);
    // Bytes that 64 bits count, and no memory holds.
    run(
        "n=1000000000000000",
        &["a run with n=1000000000000000 takes", "available"],
    );
    p.fails(
        &["inspect", text(&m), "--size", "n=4611686018427387904"],
        2,
        &["open.gir:3", "does not fit 64 bits", "n=4611686018427387904"],
    );
}

/// Every op that takes indices, wherever it runs: an index outside its axis is named, with its place and the axis.
#[test]
fn an_index_outside_its_axis_is_named() {
    let p = Place::new();
    let graph = |name: &str, indices: &str, op: &str| {
        p.write(
            &format!("{name}.gir"),
            format!(
                "graph @{name} stage=import {{\n  symbol n: 1..8 hint 3\n  x = input \"x\" : f32[10, 3]\n  i = input \"i\" : \
                 {indices}\n  {op}\n  return y as \"y\"\n}}\n"
            ),
        )
    };
    let indices = |shape: &[usize], i: &[i64]| HostTensor::from_i64(DType::I64, shape, i).expect("fits");
    let narrow = |shape: &[usize], i: &[i64]| HostTensor::from_i64(DType::I32, shape, i).expect("fits");
    let mut emulated = vec![vec![], vec!["-O0"]];
    if compiler(&p) {
        emulated.push(vec!["--target", "gfx90a", "--emulate", "--check-indices"]);
        emulated.push(vec!["--target", "gfx1100", "--emulate", "--check-indices"]);
    }
    for (name, ty, op, i, says) in [
        (
            "take",
            "i64[n, 2]",
            "y = take x, i {axis=0}",
            indices(&[3, 2], &[0, 1, 9, 10, 11, -10]),
            "index 10 at [1, 1] of the indices, which are [3, 2]; axis 0 has 10 elements, so -10 to 9 are inside it",
        ),
        (
            "narrow",
            "i32[n]",
            "y = take x, i {axis=1}",
            narrow(&[3], &[0, 2, -4]),
            "index -4 at [2] of the indices, which are [3]; axis 1 has 3 elements, so -3 to 2 are inside it",
        ),
        (
            "one",
            "i64[]",
            "y = take x, i {axis=0}",
            indices(&[], &[1 << 40]),
            "an index of 2147483647 or more; axis 0 has 10 elements",
        ),
        (
            "along",
            "i64[n, 3]",
            "y = take_along_axis x, i {axis=0}",
            indices(&[1, 3], &[1, -11, 99]),
            "index -11 at [0, 1] of the indices, which are [1, 3]; axis 0 has 10 elements",
        ),
        (
            "tuples",
            "i64[n, 2]",
            "y = gather_nd x, i",
            indices(&[2, 2], &[9, 2, 2, 9]),
            "index 9 at [1, 1] of the indices, which are [2, 2]; axis 1 has 3 elements, so -3 to 2 are inside it",
        ),
    ] {
        let m = graph(name, ty, op);
        let x = f32s(&[10, 3], &[1.0; 30]);
        let inputs = p.arrays(&format!("{name}.npz"), &[("x", x), ("i", i)]);
        for options in &emulated {
            let args = [&["run", text(&m), "--inputs", text(&inputs)], &options[..]].concat();
            p.fails(&args, 2, &[&format!("{name}.gir"), says]);
        }
    }
}
