//! Programs in C against the library: the example, and one that calls everything, plainly, under AddressSanitizer and
//! valgrind.

use std::ffi::{CStr, CString, OsStr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use graphc::arrays;
use graphc::frontend::onnx::proto::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto, TypeProto, ValueInfoProto,
    tensor_shape_proto::{Dimension, dimension},
    type_proto,
};
use graphc::ir::HostTensor;
use graphc_c::{
    graphc_model_compile, graphc_model_free, graphc_model_from_bytes, graphc_options_free, graphc_options_new,
    graphc_options_set, graphc_status, graphc_status_free, graphc_status_message,
};
use prost::Message;
use tempfile::TempDir;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn digits() -> PathBuf {
    folder().join("../examples/digits")
}

/// Where cargo leaves the libraries that it builds with these tests.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.parent().expect("a test is in a folder").to_owned();
    assert!(
        folder.join("libgraphc_c.so").is_file(),
        "cargo builds the library with its tests"
    );
    folder
}

/// A command that loads the library of these tests, whatever else cargo has on the loader's path.
fn with_library(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", libraries());
    command
}

fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn is_there(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Compiles a program of this crate, as strictly as C11 has it.
fn compile(source: &str, out: &Path, more: &[&str]) -> bool {
    if !is_there("cc") {
        println!("skipped: optional: there is no C compiler");
        return false;
    }
    let libraries = libraries();
    succeeds(
        Command::new("cc")
            .args([
                "-std=c11",
                "-D_POSIX_C_SOURCE=200809L",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-g",
            ])
            .arg("-I")
            .arg(folder().join("include"))
            .arg(folder().join(source))
            .arg("-o")
            .arg(out)
            .args(more)
            .arg("-L")
            .arg(&libraries)
            .args(["-lgraphc_c", "-lpthread"])
            .arg(format!("-Wl,-rpath,{}", libraries.display())),
    );
    true
}

fn array(file: &str, name: &str) -> HostTensor {
    let arrays = arrays::read(&digits().join(file)).expect("a file of arrays");
    arrays[name].clone()
}

/// Runs the example on some images and compares its numbers with onnxruntime's.
fn compare(program: &Path, folder: &Path, rows: usize) {
    let images = array("test.npz", "x").part(0, 0, rows).expect("so many images");
    let file = folder.join("images.f32");
    std::fs::write(&file, &images.bytes[..]).expect("written");
    let output = succeeds(
        with_library(program)
            .arg(digits().join("digits.onnx"))
            .arg(&file)
            .arg(rows.to_string()),
    );
    let text = String::from_utf8(output.stdout).expect("a text");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("on cpu"));
    assert_eq!(lines.next(), Some("input x: dtype 0 [batch, 1, 8, 8]"));
    assert_eq!(lines.next(), Some("output logits: dtype 0 [batch, 10]"));
    let got: Vec<f32> = lines
        .flat_map(str::split_whitespace)
        .map(|n| n.parse().expect("a number"))
        .collect();
    let expected = array("expected.npz", "logits").to_f32();
    assert_eq!(got.len(), rows * 10);
    for (got, expected) in got.iter().zip(&expected) {
        assert!((got - expected).abs() < 1e-4, "{got} and {expected}");
    }
}

#[test]
fn the_example_runs_at_two_sizes() {
    let place = tempfile::tempdir().expect("a folder");
    let program = place.path().join("classify");
    if compile("examples/classify.c", &program, &[]) {
        compare(&program, place.path(), 1);
        compare(&program, place.path(), 360);
        let wrong = with_library(&program)
            .args(["/no/such.onnx", "x", "1"])
            .output()
            .expect("it starts");
        assert_eq!(wrong.status.code(), Some(1));
        let text = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert!(text.contains("/no/such.onnx") && text.contains("(code 3)"), "{text}");
    }
}

#[test]
fn the_example_runs_with_the_library_inside() {
    let place = tempfile::tempdir().expect("a folder");
    let program = place.path().join("classify");
    if !is_there("cc") {
        println!("skipped: optional: there is no C compiler");
        return;
    }
    succeeds(
        Command::new("cc")
            .args(["-std=c11", "-I"])
            .arg(folder().join("include"))
            .arg(folder().join("examples/classify.c"))
            .arg(libraries().join("libgraphc_c.a"))
            .args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-o"])
            .arg(&program),
    );
    compare(&program, place.path(), 3);
}

#[test]
fn the_header_is_for_cpp_too() {
    if !is_there("g++") {
        println!("skipped: optional: there is no C++ compiler");
        return;
    }
    let place = tempfile::tempdir().expect("a folder");
    let source = place.path().join("version.cpp");
    let text = "#include <graphc.h>\nint main() { return graphc_api_version() == GRAPHC_API_VERSION ? 0 : 1; }\n";
    std::fs::write(&source, text).expect("written");
    let program = place.path().join("version");
    let libraries = libraries();
    succeeds(
        Command::new("g++")
            .args(["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
            .arg(folder().join("include"))
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(&libraries)
            .arg("-lgraphc_c")
            .arg(format!("-Wl,-rpath,{}", libraries.display())),
    );
    succeeds(&mut with_library(program));
}

#[test]
fn pkg_config_names_the_library() {
    if !is_there("pkg-config") {
        println!("skipped: optional: pkg-config is not installed");
        return;
    }
    let place = tempfile::tempdir().expect("a folder");
    let template = std::fs::read_to_string(folder().join("graphc.pc.in")).expect("the template");
    let filled = template
        .replace("@PREFIX@", "/opt/graphc")
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    std::fs::write(place.path().join("graphc.pc"), filled).expect("written");
    let ask = |arguments: &[&str]| {
        let output = succeeds(
            Command::new("pkg-config")
                .args(arguments)
                .arg("graphc")
                .env("PKG_CONFIG_PATH", place.path()),
        );
        String::from_utf8(output.stdout).expect("a text").trim().to_owned()
    };
    assert_eq!(
        ask(&["--cflags", "--libs"]),
        "-I/opt/graphc/include -L/opt/graphc/lib -lgraphc_c"
    );
    assert_eq!(ask(&["--modversion"]), env!("CARGO_PKG_VERSION"));
}

/// The text of a status, which is freed; empty where there is none.
fn said(status: *mut graphc_status) -> String {
    // SAFETY: it is null or live, and not used again.
    unsafe {
        let text = CStr::from_ptr(graphc_status_message(status))
            .to_string_lossy()
            .into_owned();
        graphc_status_free(status);
        text
    }
}

/// The program that compiles kernels in processes of its own, where it is built and there is something to compile with.
fn worker() -> Option<PathBuf> {
    let rocm = ["/opt/rocm/lib/libhiprtc.so", "/opt/graphc-rocm/rocm-run"].map(|path| Path::new(path).exists());
    if !rocm.contains(&true) {
        println!("skipped: no ROCm here; scripts/rocm-sysroot.sh sets one up");
        return None;
    }
    let worker = libraries().parent().expect("target/PROFILE").join("graphc");
    if !worker.is_file() {
        println!("skipped: {} is not built", worker.display());
        return None;
    }
    Some(worker)
}

#[test]
fn artifacts_for_gpus_are_compiled_with_no_gpu() {
    let Some(worker) = worker() else { return };
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().join("double.graphc");
    let c = |text: &str| CString::new(text).expect("no zero bytes");
    let text = "graph @g stage=import {\n  x = input \"x\" : f32[n]\n  y = add x, x\n  return y as \"y\"\n}\n";
    let (mut options, mut model) = (std::ptr::null_mut(), std::ptr::null_mut());
    let pairs = [
        ("worker", worker.to_str().expect("UTF-8")),
        ("workers", "1"),
        ("cache", "off"),
    ];
    // SAFETY: pointers are to live values, and handles are freed once.
    unsafe {
        assert_eq!(said(graphc_options_new(&mut options)), "");
        for (key, value) in pairs {
            assert_eq!(
                said(graphc_options_set(options, c(key).as_ptr(), c(value).as_ptr())),
                ""
            );
        }
        assert_eq!(
            said(graphc_model_from_bytes(text.as_ptr().cast(), text.len(), &mut model)),
            ""
        );
        let targets = c("gfx90a,gfx1100");
        let to = c(path.to_str().expect("UTF-8"));
        assert_eq!(
            said(graphc_model_compile(model, targets.as_ptr(), options, to.as_ptr())),
            ""
        );
        graphc_model_free(model);
        graphc_options_free(options);
    }
    let program = graphc::ir::Program::load(&path).expect("an artifact");
    let targets: Vec<String> = program.variants.iter().map(|v| v.plan.target.to_string()).collect();
    assert_eq!(targets, ["gfx90a", "gfx1100"]);
    for variant in &program.variants {
        assert!(
            variant
                .code
                .values()
                .all(|code| code.as_ref().is_some_and(|code| code.starts_with(b"\x7fELF")))
        );
    }
}

/// A model whose output has as many columns as its input has elements other than 0.
fn nonzero() -> Vec<u8> {
    let value = |name: &str, elem_type: i32, dims: Vec<dimension::Value>| ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::TensorType(type_proto::Tensor {
                elem_type,
                shape: Some(TensorShapeProto {
                    dim: dims
                        .into_iter()
                        .map(|value| Dimension {
                            value: Some(value),
                            ..Default::default()
                        })
                        .collect(),
                }),
            })),
            ..Default::default()
        }),
        ..Default::default()
    };
    let named = |name: &str| dimension::Value::DimParam(name.into());
    let graph = GraphProto {
        name: "nonzero".into(),
        node: vec![NodeProto {
            op_type: "NonZero".into(),
            input: vec!["x".into()],
            output: vec!["y".into()],
            ..Default::default()
        }],
        input: vec![value("x", 1, vec![named("n")])],
        output: vec![value("y", 7, vec![dimension::Value::DimValue(1), named("k")])],
        ..Default::default()
    };
    let model = ModelProto {
        ir_version: 8,
        opset_import: vec![OperatorSetIdProto {
            version: 17,
            ..Default::default()
        }],
        graph: Some(graph),
        ..Default::default()
    };
    model.encode_to_vec()
}

/// What the program that calls everything is given.
struct Every {
    place: TempDir,
}

impl Every {
    fn new(more: &[&str]) -> Option<Every> {
        let place = tempfile::tempdir().expect("a folder");
        std::fs::write(place.path().join("nonzero.onnx"), nonzero()).expect("written");
        compile("tests/every_call.c", &place.path().join("every_call"), more).then_some(Every { place })
    }

    fn run(&self, before: &[&str]) -> Output {
        let program = self.place.path().join("every_call");
        let mut command = match before {
            [] => with_library(&program),
            [first, rest @ ..] => {
                let mut command = with_library(first);
                command.args(rest).arg(&program);
                command
            }
        };
        command.env("ASAN_OPTIONS", "detect_leaks=1");
        let place = self.place.path();
        succeeds(
            command
                .arg(digits().join("digits.onnx"))
                .arg(place.join("nonzero.onnx"))
                .arg(place),
        )
    }
}

#[test]
fn every_call_does_as_it_says() {
    if let Some(every) = Every::new(&[]) {
        let output = every.run(&[]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "every call did as it says\n");
    }
}

#[test]
fn every_call_under_address_sanitizer() {
    let place = tempfile::tempdir().expect("a folder");
    let probe = place.path().join("probe.c");
    std::fs::write(&probe, "int main(void) { return 0; }\n").expect("written");
    let works = Command::new("cc")
        .arg("-fsanitize=address")
        .arg(&probe)
        .arg("-o")
        .arg(place.path().join("probe"))
        .output()
        .is_ok_and(|output| output.status.success());
    if !works {
        println!("skipped: optional: the C compiler has no AddressSanitizer");
        return;
    }
    if let Some(every) = Every::new(&["-fsanitize=address", "-fno-omit-frame-pointer"]) {
        every.run(&[]);
    }
}

#[test]
fn every_call_under_valgrind() {
    if !is_there("valgrind") {
        println!("skipped: optional: valgrind is not installed");
        return;
    }
    if let Some(every) = Every::new(&[]) {
        // Bytes that are compared before it is known whether they count, as optimised Rust does, are no faults. What
        // threads of the process's pool have at its end is no leak.
        let only = [
            "--undef-value-errors=no",
            "--leak-check=full",
            "--show-leak-kinds=definite",
        ];
        let fails = ["--quiet", "--error-exitcode=9", "--errors-for-leak-kinds=definite"];
        every.run(&[&["valgrind"][..], &only, &fails].concat());
    }
}
