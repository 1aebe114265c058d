//! Mistakes by the hundred: a command, the exit code, and what the message must name. None aborts, hangs or leaves a
//! file.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::process::Stdio;
use std::time::{Duration, Instant};

use graphc::ir::{DType, HostTensor};

use crate::outputs::{device, fifo};
use crate::place::{Place, SMALL, f32s};

/// One mistake.
struct Row {
    /// Words apart by blanks; `''` is an empty one, and `NAME=VALUE` in front are variables.
    command: String,
    code: i32,
    /// What the message says, each part.
    says: Vec<String>,
}

/// A command that may take longest waits ten seconds for the reader of a FIFO.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn four_hundred_mistakes_are_answered() {
    let p = Place::new();
    let Some(files) = prepare(&p) else { return };
    let mut rows = Rows::default();
    models(&mut rows);
    arrays(&mut rows);
    outputs(&mut rows);
    sizes_and_targets(&mut rows);
    numbers_and_words(&mut rows);
    verbs(&mut rows);
    inputs(&mut rows);
    environment(&mut rows);
    crate::quantize::mistakes(&mut rows);
    let rows = rows.0;
    assert!(rows.len() >= 400, "{} mistakes", rows.len());
    let mut unique: Vec<&str> = rows.iter().map(|r| r.command.as_str()).collect();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), rows.len(), "each is another mistake");
    // Two at a time: most of the time is the process's start.
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let halves = rows.chunks(rows.len().div_ceil(2)).map(|rows| {
            let p = &p;
            scope.spawn(move || rows.iter().filter_map(|row| row.problem(p)).collect::<Vec<_>>())
        });
        let running: Vec<_> = halves.collect();
        running.into_iter().flat_map(|h| h.join().expect("no panic")).collect()
    });
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
    assert_eq!(listing(&p), files, "something was left behind, or replaced");
}

/// The mistakes of the table.
#[derive(Default)]
pub struct Rows(Vec<Row>);

impl Rows {
    pub fn add(&mut self, command: impl Into<String>, code: i32, says: &[&str]) {
        self.0.push(Row {
            command: command.into(),
            code,
            says: says.iter().map(|s| (*s).to_owned()).collect(),
        });
    }
}

impl Row {
    /// Runs the command and returns what is wrong with the answer.
    fn problem(&self, p: &Place) -> Option<String> {
        let words: Vec<&str> = self
            .command
            .split(' ')
            .map(|w| if w == "''" { "" } else { w })
            .collect();
        let is_variable = |w: &&str| w.contains('=') && w.starts_with(|c: char| c.is_ascii_uppercase());
        let variables = words.iter().take_while(|w| is_variable(w)).count();
        let mut command = p.command(&words[variables..]);
        command.envs(words[..variables].iter().filter_map(|w| w.split_once('=')));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("graphc starts");
        let mut stderr = child.stderr.take().expect("a pipe");
        let reader = std::thread::spawn(move || {
            let mut said = String::new();
            std::io::Read::read_to_string(&mut stderr, &mut said).map(|_| said)
        });
        let start = Instant::now();
        let status = loop {
            match child.try_wait().expect("a child") {
                Some(status) => break status,
                None if start.elapsed() > LIMIT => {
                    child.kill().expect("killed");
                    child.wait().expect("gone");
                    return Some(format!("graphc {}: hangs", self.command));
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let said = reader.join().expect("no panic").unwrap_or_default();
        let missing: Vec<&String> = self.says.iter().filter(|s| !said.contains(s.as_str())).collect();
        let fine = status.code() == Some(self.code) && missing.is_empty() && !said.contains("panicked");
        (!fine).then(|| {
            format!(
                "graphc {}: {status}, expected {}; does not say {missing:?}: {}",
                self.command,
                self.code,
                said.trim_end()
            )
        })
    }
}

/// Every file of the folder with its kind and, if regular, its bytes; the cache is not looked into.
fn listing(p: &Place) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(p.path("."))
        .expect("a folder")
        .map(|e| e.expect("readable"));
    entries
        .filter(|e| e.file_name() != "cache")
        .map(|e| {
            let kind = e.file_type().expect("a kind");
            let bytes = match kind.is_file() {
                true => std::fs::read(e.path()).expect("readable"),
                false => format!("{} {} {}", kind.is_dir(), kind.is_symlink(), kind.is_fifo()).into_bytes(),
            };
            (e.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect()
}

/// Makes the folder of right and wrong files; None where no device can be made.
fn prepare(p: &Place) -> Option<BTreeMap<String, Vec<u8>>> {
    device(p, "null.onnx", 1, 3)?;
    device(p, "null.npz", 1, 3)?;
    device(p, "full.npz", 1, 7)?;
    for name in ["fifo.onnx", "fifo.npz", "lonely.npz"] {
        fifo(p, name);
    }
    for (to, name) in [
        ("nowhere", "dangling.onnx"),
        ("nowhere", "dangling.npz"),
        ("round.onnx", "round.onnx"),
        ("round.npz", "round.npz"),
    ] {
        symlink(to, p.path(name)).expect("a link");
    }
    for name in ["folder", "folder.npz"] {
        std::fs::create_dir(p.path(name)).expect("a folder");
    }
    p.write("small.gir", SMALL);
    p.write(
        "two.gir",
        "graph @two stage=import {\n  a = input \"a\" : f32[3]\n  b = input \"b\" : f32[3]\n  y = add a, b\n  return y as \"y\", a as \"z\"\n}\n",
    );
    p.write(
        "bad.gir",
        "graph @g stage=import {\n  n0 = input \"x\" : f32[2]\n  n1 = frob n0\n  return n1 as \"y\"\n}\n",
    );
    p.write(
        "types.gir",
        "graph @g stage=import {\n  n0 = input \"x\" : f32[2]\n  n1 = relu n0 : f32[3]\n  return n1 as \"y\"\n}\n",
    );
    p.write(
        "elided.gir",
        "graph @g stage=import {\n  n0 = constant elided : f32[200]\n  return n0 as \"y\"\n}\n",
    );
    p.write("empty.gir", "");
    p.write("product.gir", crate::quantize::PRODUCT);
    p.write(
        "product.onnx",
        crate::model("MatMul", &["x", "w"], vec![crate::quantize::weight()]),
    );
    p.write("recipe.json", "{\"layers\": [], \"kept\": []}");
    p.write(
        "other.json",
        r#"{"layers": [{"name": "gone", "activation": "Float", "weight": {"dtype": "I8", "axis": null, "groups": null,
            "scales": [1.0], "zeros": null, "integers": null}}], "kept": []}"#,
    );
    p.write("digits.json", r#"{"layers": [{"name": "n2", "integers": "0"}]}"#);
    let onnx = crate::model("Relu", &["x"], vec![]);
    p.write("good.onnx", &onnx);
    p.write("cut.onnx", &onnx[..onnx.len() / 2]);
    p.write("text.onnx", "this is not a model\n");
    p.write("empty.onnx", "");
    p.write("op.onnx", crate::model("Frobnicate", &["x"], vec![]));
    crate::external_weights(p);
    std::fs::remove_file(p.path("weights.bin")).expect("removed");
    p.ok(&["compile", "small.gir", "--target", "cpu", "-o", "a.graphc", "-q"]);
    let artifact = std::fs::read(p.path("a.graphc")).expect("written");
    p.write("cut.graphc", &artifact[..artifact.len() / 2]);
    let mut flipped = artifact.clone();
    flipped[artifact.len() / 2] ^= 0xff;
    p.write("flipped.graphc", flipped);
    p.write("junk.graphc", "junk");
    p.arrays("x.npz", &[("x", f32s(&[1, 3], &[1.0, -1.0, 2.0]))]);
    p.arrays("x.npy", &[("x", f32s(&[1, 3], &[1.0, -1.0, 2.0]))]);
    p.arrays("y.npz", &[("y", f32s(&[1, 3], &[1.0, 0.0, 6.0]))]);
    p.arrays("wrong.npz", &[("y", f32s(&[1, 3], &[1.0, 0.0, 7.0]))]);
    p.arrays("shape.npz", &[("x", f32s(&[1, 4], &[0.0; 4]))]);
    p.arrays("rank.npz", &[("x", f32s(&[3], &[0.0; 3]))]);
    p.arrays("large.npz", &[("x", f32s(&[65, 3], &[0.0; 195]))]);
    p.arrays("name.npz", &[("z", f32s(&[1, 3], &[0.0; 3]))]);
    p.arrays("none.npz", &[]);
    let integers = |n: usize| HostTensor::from_i64(DType::I64, [1, n], &vec![0; n]).expect("n");
    p.arrays("type.npz", &[("x", integers(3))]);
    p.arrays("labels.npz", &[("labels", integers(2))]);
    let array = |name: &str| std::fs::read(p.path(name)).expect("written");
    let (npz, npy) = (array("x.npz"), array("x.npy"));
    p.write("cut.npz", &npz[..npz.len() / 2]);
    p.write("cut.npy", &npy[..npy.len() - 5]);
    let mut big = npy.clone();
    let at = npy.windows(3).position(|w| w == b"<f4").expect("its type");
    big[at] = b'>';
    p.write("big.npy", big);
    for name in ["junk.npz", "junk.npy", "junk.safetensors", "x.txt", "noext"] {
        p.write(name, "junk");
    }
    Some(listing(p))
}

/// Every verb that takes a model, and every model that is none.
fn models(rows: &mut Rows) {
    for (file, says) in [
        ("nowhere.onnx", &["No such file"][..]),
        ("nowhere.gir", &["No such file"]),
        ("nowhere.graphc", &["No such file"]),
        ("nowhere/model.onnx", &["No such file"]),
        ("small.gir/model.onnx", &["Not a directory"]),
        ("folder", &["it is a folder"]),
        ("fifo.onnx", &["it is a FIFO"]),
        ("null.onnx", &["it is a device"]),
        ("dangling.onnx", &["No such file"]),
        ("round.onnx", &["symbolic links"]),
        ("empty.onnx", &[]),
        ("text.onnx", &[]),
        ("cut.onnx", &[]),
        ("x.npz", &[]),
        ("op.onnx", &["Frobnicate", "the_node"]),
        ("weights.onnx", &["weights.bin"]),
        ("bad.gir", &[":3:", "frob"]),
        ("types.gir", &["n1"]),
        ("elided.gir", &["left out", "--weights"]),
        ("empty.gir", &[]),
        ("cut.graphc", &[]),
        ("flipped.graphc", &[]),
        ("junk.graphc", &["not an artifact"]),
    ] {
        let says = [&[file], says].concat();
        for verb in [
            "run FILE --random",
            "compile FILE --target cpu -o out.graphc",
            "compile FILE --target cpu --emit graph",
            "inspect FILE",
            "explain FILE",
            "bench FILE --runs 1",
            "verify FILE --target gfx90a --emulate",
        ] {
            rows.add(verb.replace("FILE", file), 2, &says);
        }
        if !file.ends_with(".onnx") || matches!(file, "fifo.onnx" | "null.onnx" | "dangling.onnx" | "round.onnx") {
            rows.add(format!("opt {file}"), 2, &[file]);
        }
    }
}

/// Every option that takes arrays, and every file that has none.
fn arrays(rows: &mut Rows) {
    for (file, says) in [
        ("nowhere.npz", &["No such file"][..]),
        ("folder.npz", &["it is a folder"]),
        ("fifo.npz", &["it is a FIFO"]),
        ("null.npz", &["it is a device"]),
        ("dangling.npz", &["No such file"]),
        ("round.npz", &["symbolic links"]),
        ("junk.npz", &["not an npz"]),
        ("cut.npz", &["not an npz"]),
        ("junk.npy", &["not an npy"]),
        ("cut.npy", &[]),
        ("big.npy", &[">f4", "little-endian"]),
        ("junk.safetensors", &[]),
        ("x.txt", &[".npz", ".safetensors"]),
        ("noext", &[".npz", ".safetensors"]),
    ] {
        let says = [&[file], says].concat();
        for command in [
            "run small.gir --inputs FILE",
            "run small.gir --inputs x.npz --expect FILE",
            "run small.gir --inputs x.npz --labels FILE",
            "bench small.gir --runs 1 --inputs FILE",
            "verify small.gir --target gfx90a --emulate --inputs FILE",
        ] {
            rows.add(command.replace("FILE", file), 2, &says);
        }
    }
}

/// Every writer, and every place that cannot be written.
fn outputs(rows: &mut Rows) {
    for (file, says) in [
        ("no/such/folder/out.npz", "No such file"),
        ("folder.npz", "it is a folder"),
        ("full.npz", "No space left"),
        ("round.npz", "symbolic links"),
        ("small.gir", "which is read"),
        ("x.npz/out.npz", "Not a directory"),
        ("./small.gir", "which is read"),
    ] {
        for command in [
            "compile small.gir --target cpu -o",
            "compile small.gir --target cpu --emit plan -o",
            "run small.gir --inputs x.npz -o",
        ] {
            rows.add(format!("{command} {file}"), 2, &[file, says]);
        }
    }
    rows.add("run small.gir --inputs x.npz -o x.npz", 2, &["x.npz", "which is read"]);
    rows.add(
        "run small.gir --inputs x.npz --expect y.npz -o y.npz",
        2,
        &["y.npz", "which is read"],
    );
    rows.add(
        "run small.gir --inputs x.npz -o out.xyz",
        2,
        &["out.xyz", ".npz, .npy or .safetensors"],
    );
    rows.add(
        "run small.gir --inputs x.npz -o out",
        2,
        &["out", ".npz, .npy or .safetensors"],
    );
    rows.add(
        "run small.gir --inputs x.npz -o lonely.npz",
        2,
        &["lonely.npz", "nothing has read the FIFO"],
    );
    rows.add(
        "run two.gir --random -o out.npy",
        2,
        &["out.npy", "holds one array, not 2"],
    );
    rows.add(
        "compile small.gir --target gfx90a --emit hip -o small.gir",
        2,
        &["small.gir", "writes a folder"],
    );
    rows.add("compile small.gir --target cpu --emit hip -o out", 2, &["cpu"]);
    rows.add("compile small.gir --target cpu --emit hip", 2, &["cpu", "emit plan"]);
    rows.add("compile small.gir --target cpu --emit asm", 2, &["cpu", "emit plan"]);
    rows.add("compile small.gir --target cpu -o ''", 2, &["--output"]);
    for stage in ["graph", "dot", "core", "schedule"] {
        rows.add(
            format!("compile a.graphc --target cpu --emit {stage}"),
            2,
            &["an artifact no longer holds its graph"],
        );
    }
}

fn sizes_and_targets(rows: &mut Rows) {
    for size in [
        "n",
        "n=",
        "=3",
        "n=x",
        "n=-1",
        "n=0",
        "n=65",
        "rows=3",
        "n=5..3",
        "n=1..100",
        "n=99999999999999999999",
        "''",
    ] {
        for command in [
            "run small.gir --random --size",
            "compile small.gir --target cpu -o out.graphc --size",
            "inspect small.gir --size",
            "explain small.gir --size",
            "bench small.gir --runs 1 --size",
        ] {
            rows.add(format!("{command} {size}"), 2, &["--size"]);
        }
    }
    for shape in ["x", "x=", "x=[", "x=[1", "=[1,3]", "x=[1,-3]", "y=[1,3]"] {
        rows.add(format!("run good.onnx --random --shape {shape}"), 2, &[]);
        rows.add(format!("run small.gir --random --shape {shape}"), 2, &["--shape"]);
    }
    for option in ["--size n=3", "--shape x=[1,3]"] {
        rows.add(
            format!("run a.graphc --random {option}"),
            2,
            &["--size and --shape", "a.graphc is compiled"],
        );
    }
    for option in ["-O1", "--dtype f16", "--no-libraries", "--disable simplify"] {
        let name = &option[..option.find([' ', '1']).unwrap_or(option.len())];
        rows.add(
            format!("run a.graphc --random {option}"),
            2,
            &[name, "a.graphc is compiled already"],
        );
        rows.add(
            format!("inspect a.graphc {option}"),
            2,
            &[name, "a.graphc is compiled already"],
        );
    }
    for (target, says) in [
        ("gfx999", "gfx999"),
        ("''", "--target"),
        (",", "--target"),
        ("cpu,gfx999", "gfx999"),
        ("GFX90B", "GFX90B"),
        ("gfx90a:warp+", "warp"),
        ("gfx90a:xnack", "xnack"),
    ] {
        for command in [
            "compile small.gir -o out.graphc --target",
            "explain small.gir --target",
            "inspect small.gir --target",
            "opt small.gir --target",
            "verify small.gir --emulate --target",
            "run small.gir --random --emulate --target",
        ] {
            let says: &[&str] = if command.starts_with("run") { &[] } else { &[says] };
            rows.add(format!("{command} {target}"), 2, says);
        }
    }
    rows.add("inspect small.gir --target cpu,gfx90a", 2, &["one target at a time"]);
    rows.add(
        "inspect a.graphc --target gfx90a",
        2,
        &["no code for gfx90a", "it holds cpu"],
    );
    rows.add(
        "compile a.graphc --target gfx90a -o out.graphc",
        2,
        &["no code for gfx90a", "it holds cpu"],
    );
    rows.add(
        "run a.graphc --random --emulate --target gfx90a",
        2,
        &["no code for gfx90a", "it holds cpu"],
    );
    rows.add(
        "verify a.graphc --emulate --target gfx90a",
        2,
        &["no code for gfx90a", "it holds cpu"],
    );
}

fn numbers_and_words(rows: &mut Rows) {
    let each = |rows: &mut Rows, commands: &[&str], option: &str, values: &[&str]| {
        for command in commands {
            for value in values {
                rows.add(format!("{command} {option}={value}"), 2, &[option]);
            }
        }
    };
    let models = ["run small.gir --random", "bench small.gir --runs=1"];
    each(
        rows,
        &models,
        "--threads",
        &["0", "-1", "1025", "100000", "99999999999999999999", "many", "1.5", ""],
    );
    each(
        rows,
        &models,
        "--miopen-find",
        &["slow", "Normal", "dynamic_hybrid", "3", ""],
    );
    let modes = ["immediate", "normal", "fast", "hybrid", "dynamic-hybrid"];
    rows.add("compile small.gir -o out.graphc --miopen-find=slow", 2, &modes);
    let expect = ["run small.gir --inputs x.npz --expect y.npz"];
    for option in ["--rtol", "--atol"] {
        each(
            rows,
            &expect,
            option,
            &[
                "nan", "NaN", "inf", "-inf", "infinity", "-1", "-0.001", "1e999", "x", "",
            ],
        );
    }
    each(
        rows,
        &["bench small.gir"],
        "--runs",
        &["0", "-1", "99999999999", "x", "2.5"],
    );
    each(rows, &["run small.gir --random"], "--seed", &["-1", "x", "1.5"]);
    let verify = ["verify small.gir --target gfx90a --emulate"];
    each(rows, &verify, "--limit", &["-1", "x"]);
    each(rows, &verify, "--sample", &["0", "-1", "x"]);
    let devices = [
        "gfx90a", "abacus", "hip:x", "hip:", "hip:-1", "rocm:x", "rocm3", "cuda:", "cpu:1", "CPU", "",
    ];
    for command in models {
        for device in devices {
            rows.add(format!("{command} --device={device}"), 2, &["known: cpu"]);
        }
    }
    let builds = [
        "run small.gir --random",
        "compile small.gir --target cpu -o out.graphc",
        "inspect small.gir",
        "explain small.gir",
        "bench small.gir --runs=1",
    ];
    for command in builds {
        for level in ["7", "-1", "x"] {
            rows.add(format!("{command} -O{level}"), 2, &["-O"]);
        }
        for dtype in [
            "f31",
            "i8",
            "",
            "f16+f16",
            "int4+f16",
            "int8+int4",
            "f16+",
            "+int8",
            "INT8",
        ] {
            rows.add(format!("{command} --dtype={dtype}"), 2, &["--dtype"]);
        }
        rows.add(
            format!("{command} --disable simplfy"),
            2,
            &["simplfy", "meant \"simplify\""],
        );
        rows.add(
            format!("{command} --disable decompose"),
            2,
            &["decompose", "cannot be left out"],
        );
        if !command.starts_with("compile") {
            rows.add(format!("{command} --format xml"), 2, &["--format", "xml", "json"]);
        }
    }
    rows.add(
        "compile small.gir --target cpu --emit everything",
        2,
        &["--emit", "everything", "schedule"],
    );
    rows.add("targets --format xml", 2, &["--format", "xml", "json"]);
    rows.add("doctor --format xml", 2, &["--format", "xml", "json"]);
    for option in ["--stop-after", "--print-after"] {
        rows.add(format!("opt small.gir {option} simplyfy"), 2, &["simplyfy", "simplify"]);
    }
}

fn verbs(rows: &mut Rows) {
    for (word, says) in [
        ("frun", "run"),
        ("inspct", "inspect"),
        ("Run", "Run"),
        ("''", "Usage"),
        ("--run", "--run"),
    ] {
        rows.add(word, 2, &[says]);
    }
    for verb in [
        "run", "compile", "inspect", "explain", "opt", "bench", "profile", "quantize", "report", "tune run", "verify",
        "targets", "doctor",
    ] {
        rows.add(format!("{verb} --traget x"), 2, &["--traget"]);
        if !matches!(verb, "targets" | "doctor") {
            rows.add(verb, 2, &[if verb == "opt" { "<FILE>" } else { "<MODEL>" }]);
            rows.add(format!("{verb} small.gir more.gir"), 2, &["more.gir"]);
        } else {
            rows.add(format!("{verb} small.gir"), 2, &["small.gir"]);
        }
    }
    for (command, says) in [
        ("run small.gir", &["--inputs"][..]),
        ("run small.gir --random --emulate", &["--target"]),
        ("run small.gir --random --target gfx90a", &["--emulate"]),
        (
            "run small.gir --random --emulate --target gfx90a --device cpu",
            &["--device", "--emulate"],
        ),
        ("run small.gir --random --emulate --target cpu", &["cpu"]),
        ("compile small.gir -o out.graphc", &["--target"]),
        (
            "run small.gir --random --split layers",
            &["--split", "--ranks", "--device hip:0,1"],
        ),
        (
            "compile small.gir --target gfx90a -o out.graphc --bus 400 --halves never",
            &["--bus, --halves", "--ranks"],
        ),
        ("compile small.gir --target cpu", &["--output"]),
        ("compile small.gir --target cpu -o out.graphc --weights", &["--emit"]),
        ("inspect small.gir --emulate", &["--target"]),
        ("inspect small.gir --inputs x.npz", &["--emulate"]),
        ("inspect small.gir --seed 1", &["--emulate"]),
        ("verify small.gir --emulate", &["--target"]),
        ("verify small.gir --target gfx90a", &["say --emulate"]),
        (
            "verify small.gir --target gfx90a --emulate --sample 4 --inputs x.npz",
            &["--sample", "--inputs"],
        ),
        (
            "verify small.gir --target gfx90a --emulate --sample 4 --limit 4",
            &["--sample", "--limit"],
        ),
        ("explain a.graphc", &["an artifact no longer holds its graph"]),
        ("opt a.graphc", &["a.graphc"]),
        ("run small.gir --random --random", &["--random"]),
        ("run small.gir --random --threads 1 --threads 2", &["--threads"]),
    ] {
        rows.add(command, 2, says);
    }
}

fn inputs(rows: &mut Rows) {
    for (files, says) in [
        ("name.npz", &["no input \"z\"", "x: f32[n, 3]"][..]),
        ("shape.npz", &["\"x\"", "axis 1 is 4"]),
        ("rank.npz", &["\"x\"", "rank 1"]),
        ("large.npz", &["\"x\"", "65", "1..=64"]),
        ("type.npz", &["\"x\"", "i64", "f32"]),
        ("none.npz", &["\"x\" is missing"]),
        ("x.npz --inputs x.npz", &["x.npz", "leave one of them out"]),
        (
            "x.npz --inputs type.npz",
            &["type.npz", "x.npz holds an array \"x\" too"],
        ),
        ("x.npz --inputs name.npz", &["no input \"z\""]),
    ] {
        for model in ["small.gir", "a.graphc"] {
            rows.add(format!("run {model} --inputs {files}"), 2, says);
        }
    }
    rows.add("run two.gir --inputs x.npy", 2, &["no input \"x\""]);
    rows.add(
        "run two.gir --inputs x.npz",
        2,
        &["no input \"x\"", "a: f32[3], b: f32[3]"],
    );
    let run = "run small.gir --inputs x.npz";
    rows.add(format!("{run} --expect wrong.npz"), 1, &["1 of 1 outputs differ"]);
    rows.add(format!("{run} --expect wrong.npz --rtol 0 --atol 0.5"), 1, &["differ"]);
    rows.add(format!("{run} --expect x.npz"), 2, &["\"x\"", "\"y\""]);
    rows.add(format!("{run} --expect none.npz"), 2, &["none.npz", "no arrays"]);
    rows.add(format!("{run} --labels labels.npz"), 2, &["--labels", "2 labels"]);
    rows.add(format!("{run} --labels none.npz"), 2, &["none.npz", "labels"]);
    rows.add(format!("{run} --labels a.graphc"), 2, &["a.graphc", ".npz"]);
}

fn environment(rows: &mut Rows) {
    for setting in [
        "GRAPHC_WORKERS=many",
        "GRAPHC_WORKERS=-1",
        "GRAPHC_WORKERS=100000",
        "GRAPHC_THREADS=0",
        "GRAPHC_THREADS=100000",
        "GRAPHC_THREADS=x",
        "GRAPHC_CACHE_MIB=x",
        "GRAPHC_CACHE_MIB=-1",
        "GRAPHC_SYNCHRONOUS=yes",
        "GRAPHC_MIOPEN_FIND=slow",
    ] {
        rows.add(format!("{setting} run small.gir --random"), 2, &[setting]);
        rows.add(format!("{setting} targets"), 2, &[setting]);
    }
    for (variable, option, says) in [
        (
            "GRAPHC_ROCM",
            "compile small.gir --target gfx90a -o out.graphc",
            "hiprtc",
        ),
        ("GRAPHC_ROCM", "inspect small.gir --target gfx90a", "hiprtc"),
        (
            "GRAPHC_ROCM",
            "run small.gir --random --emulate --target gfx90a",
            "hiprtc",
        ),
        (
            "GRAPHC_NVRTC",
            "compile small.gir --target sm_90 -o out.graphc",
            "NVRTC",
        ),
        ("GRAPHC_HIP", "run small.gir --random --device hip", "HIP"),
        ("GRAPHC_HIP", "run small.gir --random --device rocm:1", "HIP"),
        ("GRAPHC_HIP", "bench small.gir --runs 1 --device hip", "HIP"),
        ("GRAPHC_CUDA", "run small.gir --random --device cuda", "CUDA"),
        ("GRAPHC_CUDA", "bench small.gir --runs 1 --device cuda:1", "CUDA"),
    ] {
        for place in ["/graphc/nowhere", "/dev/null"] {
            rows.add(format!("{variable}={place} {option}"), 2, &[place, says]);
        }
    }
    for folder in ["/graphc/nowhere", "/dev/null"] {
        rows.add(
            format!("TMPDIR={folder} compile small.gir --target gfx90a -o out.graphc"),
            2,
            &["TMPDIR", folder],
        );
    }
}
