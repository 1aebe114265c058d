//! Files that ask for more than there is, say what is not so, or try to reach what is not theirs.

use std::io::Write;
use std::process::Command;

use graphc::arrays;
use graphc::ir::{DType, HostTensor};
use zip::write::SimpleFileOptions;

use crate::place::{Place, SMALL, compiler, digits, f32s, refused, text};

/// A cache that is written at a position.
const CACHE: &str = "graph @cache stage=import {
  past = input \"past\" : f32[8, 2]
  at = input \"at\" : i64[1, 1]
  new = input \"new\" : f32[1, 2]
  next = scatter_nd past, at, new
  sum = reduce next {op=sum, axes=[0]}
  return next as \"next\", sum as \"sum\"
}
";

/// Writes an archive whose one array says another shape than its bytes fill, or fills it with zeros.
fn archive(p: &Place, name: &str, shape: &str, zeros: usize) {
    let mut out = zip::ZipWriter::new(std::fs::File::create(p.path(name)).expect("writable"));
    out.start_file("x.npy", SimpleFileOptions::default()).expect("a member");
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    text += &" ".repeat(128 - 11 - text.len());
    text.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00\x76\x00").expect("written");
    out.write_all(text.as_bytes()).expect("written");
    let block = vec![0; 1 << 20];
    for start in (0..zeros).step_by(block.len()) {
        out.write_all(&block[..block.len().min(zeros - start)])
            .expect("written");
    }
    out.finish().expect("finished");
}

/// As the shell's `ulimit -v` has it, in KiB.
fn limited(p: &Place, kib: u64, args: &[&str]) -> std::process::Output {
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        &format!("ulimit -v {kib}; exec \"$@\""),
        "sh",
        env!("CARGO_BIN_EXE_graphc"),
    ]);
    shell
        .args(args)
        .current_dir(p.path(""))
        .env("GRAPHC_CACHE", p.path("cache"));
    shell.output().expect("a shell")
}

#[test]
fn what_an_archive_unpacks_to_is_held_against_the_model_first() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    // 400 MB of zeros in 400 KB: another shape than the input's is refused before it is unpacked, in less memory than
    // that.
    archive(&p, "bomb.npz", "(100000000,)", 400_000_000);
    let args = ["run", text(&m), "--inputs", "bomb.npz"];
    let said = ["\"x\"", "f32[n, 3]"];
    refused(&args, &limited(&p, 3_000_000, &args), 2, &said);
    p.fails(&[&args[..], &["--random"]].concat(), 2, &said);
    archive(&p, "more.npz", "(1, 3)", 1 << 20);
    p.fails(
        &["run", text(&m), "--inputs", "more.npz"],
        2,
        &["\"x\"", "says 12 bytes", "1048576"],
    );
    archive(&p, "less.npz", "(1000000000, 3)", 12);
    p.fails(
        &["run", text(&m), "--inputs", "less.npz"],
        2,
        &["says 12000000000 bytes"],
    );
    // Expected arrays and labels are held against the outputs.
    p.arrays("x.npz", &[("x", f32s(&[1, 3], &[1.0, -1.0, 2.0]))]);
    let mut renamed = std::fs::read(p.path("bomb.npz")).expect("there");
    for at in 0..renamed.len() - 5 {
        if &renamed[at..at + 5] == b"x.npy" {
            renamed[at] = b'y';
        }
    }
    p.write("expect.npz", renamed);
    let args = ["run", text(&m), "--inputs", "x.npz", "--expect", "expect.npz"];
    refused(&args, &limited(&p, 3_000_000, &args), 1, &["1 of 1 outputs differ"]);
}

#[test]
fn memory_that_is_not_there_is_refused_with_both_numbers() {
    let p = Place::new();
    let constants: String = (0..16)
        .map(|i| format!("  c{i} = constant 0.5 : f32[67108864]\n"))
        .collect();
    let m = p.write(
        "large.gir",
        format!("graph @large stage=import {{\n{constants}  return c0 as \"y\"\n}}\n"),
    );
    let args = ["run", text(&m), "--random"];
    refused(
        &args,
        &limited(&p, 2_000_000, &args),
        2,
        &["large.gir", "268435456 bytes", "available"],
    );
    let m = p.write("small.gir", SMALL.replace("1..64", "1..").as_str());
    let sizes = ["run", text(&m), "--random", "--size", "n=1000000000000"];
    p.fails(&sizes, 2, &["a run with n=1000000000000 takes", "available"]);
    let args = ["run", text(&m), "--random", "--size", "n=40000000"];
    let message = refused(&args, &limited(&p, 1_500_000, &args), 2, &["available"]);
    assert!(message.contains("bytes"), "{message}");
    let digits = digits();
    let args = ["run", digits.as_str(), "--random", "--size", "batch=4000000"];
    refused(
        &args,
        &limited(&p, 4_000_000, &args),
        2,
        &["a run takes 50336000000 bytes", "available"],
    );
    for verb in ["run", "compile", "explain", "inspect"] {
        let mut args = vec![verb, "digits.onnx", "--size", "batch=1099511627776"];
        args.extend(match verb {
            "run" => &["--random"][..],
            "compile" => &["--target", "cpu", "-o", "out.graphc"],
            _ => &[],
        });
        std::fs::copy(&digits, p.path("digits.onnx")).expect("copied");
        p.fails(&args, 2, &["too large at these sizes", "--size"]);
    }
}

#[test]
fn outputs_are_stored_or_deflated_or_written_as_safetensors() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    p.arrays("x.npz", &[("x", f32s(&[64, 3], &[1.0; 192]))]);
    let run = ["run", text(&m), "--inputs", "x.npz", "-o"];
    let mut sizes = Vec::new();
    for more in [&["out.npz"][..], &["small.npz", "--compress"], &["out.safetensors"]] {
        p.ok(&[&run[..], more].concat());
        let read = arrays::read(&p.path(more[0])).expect("readable");
        assert_eq!(read["y"], f32s(&[64, 3], &[1.0, 2.0, 3.0].repeat(64)));
        sizes.push(std::fs::metadata(p.path(more[0])).expect("there").len());
    }
    assert!(sizes[0] > 768 && sizes[1] < 700, "{sizes:?}");
    p.ok(&["run", text(&m), "--inputs", "x.npz", "--expect", "out.safetensors"]);
    p.fails(
        &[&run[..], &["a.safetensors", "--compress"]].concat(),
        2,
        &["--compress"],
    );
    let long = "n".repeat(70_000);
    let m = p.write("long.gir", SMALL.replace("\"y\"", &format!("\"{long}\"")));
    let args = ["run", text(&m), "--inputs", "x.npz", "-o", "long.npz"];
    p.fails(&args, 2, &["70000 bytes", ".safetensors"]);
    assert!(!p.path("long.npz").exists());
}

#[test]
fn names_do_not_reach_the_terminal_as_they_are() {
    let p = Place::new();
    let name = "evil\u{1b}[2J\u{9b}31m";
    let m = p.write("evil.gir", SMALL.replace("\"y\"", &format!("\"{name}\"")));
    let m = text(&m);
    for args in [
        vec!["run", m, "--random"],
        vec!["run", m, "--random", "--format", "json"],
        vec!["inspect", m],
        vec!["explain", m],
    ] {
        let shown = p.ok(&args);
        let obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
        assert!(!shown.contains(obeyed), "{args:?}: {shown:?}");
    }
    let shown: serde_json::Value = p.json(&["run", m, "--random", "--format", "json"]);
    assert!(shown["outputs"].get(name).is_some(), "{shown}");
    p.arrays("x.npz", &[("x\u{1b}[31m", f32s(&[1], &[0.0]))]);
    let message = p.fails(&["run", m, "--inputs", "x.npz"], 2, &["no input"]);
    assert!(!message.contains('\u{1b}'), "{message:?}");
}

#[test]
fn names_of_any_length_leave_lines_that_can_be_read() {
    let p = Place::new();
    let long = |what: &str| what.repeat(70_000);
    let (n, x, w, y) = (long("n"), long("x"), long("w"), long("y"));
    let m = p.write(
        "names.gir",
        format!(
            "graph @{} stage=import {{\n  symbol {n}: 1..4 hint 2\n  x = input {x:?} : f32[{n}, 3]\n  w = constant {w:?} \
             random(seed=1) : f32[3, 3]\n  y = contract x, w\n  z = softmax y {{axis=1}}\n  return z as {y:?}\n}}\n",
            long("g")
        ),
    );
    let m = text(&m);
    for args in [
        vec!["inspect", m],
        vec!["explain", m],
        vec!["explain", m, "--target", "gfx90a"],
        vec!["run", m, "--random"],
        vec!["bench", m, "--runs", "1"],
        vec!["profile", m, "--runs", "1"],
    ] {
        let shown = p.ok(&args);
        let longest = shown.lines().map(|line| line.chars().count()).max();
        assert!(longest < Some(1000), "{args:?}: {longest:?}");
    }
    let message = p.fails(&["run", m], 2, &["--random"]);
    assert!(message.len() < 3000, "{}", message.len());
    // A text that is read again is whole.
    assert!(p.ok(&["opt", m]).contains(&n));
}

#[test]
fn states_are_kept_and_artifacts_remember_them() {
    let p = Place::new();
    let m = p.write("cache.gir", CACHE);
    let m = text(&m);
    let state = ["--state", "past=next"];
    let at = |i: i64| HostTensor::from_i64(DType::I64, [1, 1], &[i]).expect("one");
    p.arrays("in.npz", &[("at", at(3)), ("new", f32s(&[1, 2], &[5.0, 7.0]))]);
    p.arrays("past.npz", &[("past", f32s(&[8, 2], &[1.0; 16]))]);
    let sum = |args: &[&str]| {
        p.ok(&[&["run"], args, &["-o", "out.npz"]].concat());
        let out = arrays::read(&p.path("out.npz")).expect("readable");
        assert_eq!(out["next"].shape, [8, 2]);
        out["sum"].to_f32()
    };
    // A state begins as zeros, or with what is given.
    assert_eq!(sum(&[&[m, "--inputs", "in.npz"], &state[..]].concat()), [5.0, 7.0]);
    let given = [m, "--inputs", "in.npz", "--inputs", "past.npz"];
    assert_eq!(sum(&[&given[..], &state].concat()), [12.0, 14.0]);
    p.fails(&["run", m, "--inputs", "in.npz"], 2, &["\"past\" is missing"]);
    p.ok(&[&["compile", m, "--target", "cpu", "-o", "a.graphc"], &state[..]].concat());
    assert_eq!(sum(&["a.graphc", "--inputs", "in.npz"]), [5.0, 7.0]);
    for args in [
        &["bench", "a.graphc", "--runs", "3"][..],
        &["bench", "a.graphc", "--runs", "3", "--resident"],
    ] {
        p.ok(&[args, &["--inputs", "in.npz"]].concat());
    }
    p.ok(&[&["profile", m, "--inputs", "in.npz", "--runs", "2"], &state[..]].concat());
    for wrong in ["past=sum", "new=next", "nothing=next", "past=nothing"] {
        for verb in [&["run", m, "--random"][..], &["bench", m], &["profile", m]] {
            let message = p.fails(&[verb, &["--state", wrong]].concat(), 2, &["state"]);
            assert!(wrong.split('=').all(|name| message.contains(name)), "{message}");
        }
    }
    // A write behind the end of the cache fails the run.
    p.arrays("far.npz", &[("at", at(8)), ("new", f32s(&[1, 2], &[0.0; 2]))]);
    p.fails(
        &["run", "a.graphc", "--inputs", "far.npz"],
        2,
        &["an index lies outside"],
    );
}

/// A verb's model becomes shorter after its weights were mapped and before its output is written: the output goes to a
/// FIFO that nothing reads until then.
#[test]
fn no_verb_writes_what_a_file_that_became_shorter_gives() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    let p = Place::new();
    let weights: Vec<u8> = (0..512 * 512).flat_map(|i| ((i % 97) as f32).to_le_bytes()).collect();
    let weight = vec![crate::external_weight("w.bin", &[512, 512])];
    let m = p.write(
        "m.onnx",
        crate::model_of("MatMul", &["x", "w"], weight, [&[2, 512], &[2, 512]]),
    );
    p.write("w.bin", &weights);
    p.ok(&["compile", text(&m), "--target", "cpu", "-o", "a.graphc"]);
    let mut verbs: Vec<(&str, &str, &[&str])> = vec![
        ("w.bin", "out.npz", &["run", "m.onnx", "--random", "-o"]),
        ("w.bin", "out.graphc", &["compile", "m.onnx", "--target", "cpu", "-o"]),
        (
            "a.graphc",
            "out.graphc",
            &["compile", "a.graphc", "--target", "cpu", "-o"],
        ),
        (
            "w.bin",
            "out.gir",
            &[
                "compile",
                "m.onnx",
                "--target",
                "cpu",
                "--emit",
                "graph",
                "--weights",
                "-o",
            ],
        ),
        (
            "w.bin",
            "out.onnx",
            &["quantize", "m.onnx", "--scheme", "weights-int8", "-o"],
        ),
        ("w.bin", "out.html", &["report", "m.onnx", "--target", "gfx90a", "-o"]),
    ];
    let emulated = ["run", "e.graphc", "--random", "--target", "gfx90a", "--emulate", "-o"];
    if compiler(&p) {
        p.ok(&[
            "compile",
            "m.onnx",
            "--target",
            "gfx90a",
            "--no-libraries",
            "-o",
            "e.graphc",
        ]);
        verbs.push(("e.graphc", "out.npz", &emulated));
    }
    for (victim, out, args) in verbs {
        let (out, bytes) = (p.path(out), std::fs::read(p.path(victim)).expect("readable"));
        assert!(Command::new("mkfifo").arg(&out).status().expect("starts").success());
        let args = [args, &[text(&out)]].concat();
        let mut command = p.command(&args);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let (maps, start) = (format!("/proc/{}/maps", child.id()), Instant::now());
        let is_mapped = || std::fs::read_to_string(&maps).is_ok_and(|text| text.contains(victim));
        while !is_mapped() {
            assert!(start.elapsed() < Duration::from_secs(60), "{args:?}");
        }
        let file = std::fs::File::options().write(true).open(p.path(victim));
        file.and_then(|file| file.set_len(1000)).expect("shorter");
        // Not to hang where nothing is ever written.
        let mut reader = Command::new("cat")
            .arg(&out)
            .stdout(Stdio::null())
            .spawn()
            .expect("starts");
        let status = child.wait().expect("ends");
        let _ = reader.kill();
        let _ = reader.wait();
        let mut said = String::new();
        child
            .stderr
            .take()
            .expect("piped")
            .read_to_string(&mut said)
            .expect("text");
        assert_eq!(status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(victim) && said.contains("shorter"), "{args:?}: {said}");
        std::fs::write(p.path(victim), bytes).expect("writable");
        std::fs::remove_file(&out).expect("there");
    }
}

/// What the model itself fixes is compared with an array's header; no element is inflated first.
#[test]
fn an_array_that_contradicts_a_fixed_axis_is_not_inflated() {
    let p = Place::new();
    p.write("open.onnx", open_model());
    archive(&p, "good.npz", "(2, 3, 5)", 2 * 3 * 5 * 4);
    p.ok(&["run", "open.onnx", "--inputs", "good.npz"]);
    // 512 MiB of zeros, in half a megabyte.
    archive(&p, "large.npz", "(1, 4, 33554432)", 4 * 33_554_432 * 4);
    let message = p.fails(
        &["run", "open.onnx", "--inputs", "large.npz"],
        2,
        &["axis 1 is 4", "declares 3"],
    );
    // To compile for the inputs is to read them.
    assert!(!message.contains("compiled for the inputs"), "{message}");
}

/// A model over `f32[n, 3, w]`.
fn open_model() -> Vec<u8> {
    use graphc::frontend::onnx::proto::tensor_shape_proto::{Dimension, dimension::Value};
    use graphc::frontend::onnx::proto::{ModelProto, TensorShapeProto, type_proto};
    use prost::Message;

    let mut model = ModelProto::decode(&crate::model("Relu", &["x"], vec![])[..]).expect("reads");
    let dim = |value| Dimension {
        value: Some(value),
        ..Default::default()
    };
    let named = |name: &str| dim(Value::DimParam(name.to_owned()));
    let dims = vec![named("n"), dim(Value::DimValue(3)), named("w")];
    let graph = model.graph.as_mut().expect("there");
    for info in graph.input.iter_mut().chain(&mut graph.output) {
        if let Some(type_proto::Value::TensorType(tensor)) = info.r#type.as_mut().and_then(|ty| ty.value.as_mut()) {
            tensor.shape = Some(TensorShapeProto { dim: dims.clone() });
        }
    }
    model.encode_to_vec()
}

#[test]
fn a_size_that_is_given_twice_is_one_size() {
    let p = Place::new();
    p.write("open.onnx", open_model());
    archive(&p, "good.npz", "(2, 3, 5)", 2 * 3 * 5 * 4);
    let run = |size| ["run", "open.onnx", "--inputs", "good.npz", "--size", size];
    p.ok(&run("n=2"));
    p.fails(&run("n=3"), 2, &["the size \"n\"", "it is 3", "have 2"]);
    p.fails(&run("n=4..8"), 2, &["it is 4..8", "have 2"]);
}

#[test]
fn a_shape_has_names_that_its_input_gives_sizes_to() {
    let p = Place::new();
    p.write("open.onnx", open_model());
    let run = |shape| ["run", "open.onnx", "--random", "--shape", shape];
    for shape in [
        "x=[n,3,div(a,2)]",
        "x=[n,3,a*b]",
        "x=[a+c,3,n]",
        "x=[n,3,max(a,2)]",
        "x=[div(a,0),3,n]",
    ] {
        let message = p.fails(&run(shape), 2, &[]);
        assert!(!message.contains("does not verify"), "{message}");
    }
    p.fails(
        &run("x=[n,3,div(a,2)]"),
        2,
        &["no input's size gives a", "write one name"],
    );
    for shape in ["x=[n, 3, 4*a]", "x=[n, 3, a + 1]", "x=[n, 3, a*n]"] {
        p.ok(&run(shape));
    }
    for shape in [
        "x=[n,3,4 a]",
        "x=[a%2,3,n]",
        "x=[1e3,3,n]",
        "x=[4a,3,n]",
        "x=[99999999999999999999,3,n]",
    ] {
        p.fails(&run(shape), 2, &["column", "a dim is a whole number"]);
    }
}

/// An artifact has no initializers that may be overridden, and says what has.
#[test]
fn an_artifact_says_how_an_initializer_is_overridden() {
    let p = Place::new();
    let m = crate::external_weights(&p);
    p.ok(&["compile", &m, "--target", "cpu", "-o", "a.graphc"]);
    let inputs = [("x", f32s(&[2, 3], &[1.0; 6])), ("w", f32s(&[2, 3], &[1.0; 6]))];
    p.arrays("both.npz", &inputs);
    p.fails(
        &["run", "a.graphc", "--inputs", "both.npz"],
        2,
        &["no input \"w\"", "(an initializer)"],
    );
}

/// One file serves a family: its code is that of a generic processor.
#[test]
fn an_artifact_of_a_generic_processor_serves_its_family() {
    let p = Place::new();
    if !compiler(&p) {
        return;
    }
    let m = p.write("small.gir", SMALL);
    p.ok(&[
        "compile",
        text(&m),
        "--target",
        "gfx11-generic,gfx90a",
        "-o",
        "a.graphc",
    ]);
    for args in [
        &["run", "a.graphc", "--random", "--emulate"][..],
        &["verify", "a.graphc", "--emulate"],
        &["inspect", "a.graphc", "--emulate"],
        &["inspect", "a.graphc"],
    ] {
        p.ok(&[args, &["--target", "gfx1101"]].concat());
    }
    p.fails(
        &["run", "a.graphc", "--random", "--emulate", "--target", "gfx1201"],
        2,
        &["no code for gfx1201", "gfx11-generic"],
    );
}

/// Its weights are read from the mapped file by each run.
#[test]
fn an_artifact_that_becomes_shorter_while_it_is_used_is_an_error() {
    use graphc::session::{Session, SessionOptions};

    let p = Place::new();
    let m = p.write(
        "wide.gir",
        "graph @wide stage=import {
  x = input \"x\" : f32[1048576]
  w = constant random(seed=1) : f32[1048576]
  y = mul x, w
  return y as \"y\"
}
",
    );
    p.ok(&["compile", text(&m), "--target", "cpu", "-o", "a.graphc"]);
    let session = Session::open(p.path("a.graphc"), &SessionOptions::default()).expect("opens");
    let x = f32s(&[1 << 20], &vec![1.0; 1 << 20]);
    session.run(&[("x", &x)]).expect("runs");
    let file = std::fs::File::options().write(true).open(p.path("a.graphc"));
    file.and_then(|file| file.set_len(100_000)).expect("shorter");
    let error = session.run(&[("x", &x)]).expect_err("pages are missing");
    assert_eq!(error.exit_code(), 2);
    let message = error.to_string();
    assert!(message.contains("a.graphc") && message.contains("shorter"), "{message}");
    p.fails(&["run", "a.graphc", "--random"], 2, &["a.graphc"]);
}
