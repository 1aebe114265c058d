//! What the tests of the command line share: a folder with its own cache, and the binary run in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use graphc::arrays::{self, Arrays};
use graphc::ir::HostTensor;
use serde_json::Value;

/// A folder for one test, with its own cache.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place {
            dir: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.path(name), bytes).expect("writable");
        self.path(name)
    }

    pub fn arrays(&self, name: &str, arrays: &[(&str, HostTensor)]) -> PathBuf {
        let arrays: Arrays = arrays.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect();
        arrays::write(&self.path(name), &arrays).expect("writable");
        self.path(name)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_graphc"));
        command
            .args(args)
            .current_dir(self.dir.path())
            .env("GRAPHC_CACHE", self.path("cache"));
        command.env("GRAPHC_WORKERS", "2");
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("graphc starts")
    }

    /// Runs, expects success, and returns what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text")
    }

    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).expect("JSON")
    }

    /// Runs, expects the exit code, and that the message says all of `says`.
    pub fn fails(&self, args: &[&str], code: i32, says: &[&str]) -> String {
        refused(args, &self.run(args), code, says)
    }
}

pub fn refused(args: &[&str], output: &Output, code: i32, says: &[&str]) -> String {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {message}");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    for part in says {
        assert!(message.contains(part), "{args:?}: {part:?} is not in: {message}");
    }
    message
}

pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

pub fn digits() -> String {
    text(&repository("examples/digits/digits.onnx")).to_owned()
}

pub fn digits_file(name: &str) -> String {
    text(&repository("examples/digits").join(name)).to_owned()
}

pub const SMALL: &str = "graph @small stage=import {
  symbol n: 1..64 hint 4
  n0 = input \"x\" : f32[n, 3]
  n1 = constant [1.0, 2.0, 3.0] : f32[3]
  n2 = mul n0, n1
  n3 = relu n2
  return n3 as \"y\"
}
";

pub fn f32s(shape: &[usize], values: &[f32]) -> HostTensor {
    HostTensor::from_f32(shape, values).expect("the shape's count")
}

/// Says whether the compiler is here; a test that needs it says so where it is not.
pub fn compiler(place: &Place) -> bool {
    let model = place.write("probe.gir", SMALL);
    let output = place.run(&[
        "compile",
        text(&model),
        "--target",
        "gfx90a",
        "-o",
        text(&place.path("probe.graphc")),
    ]);
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains("hiprtc"), "{message}");
        println!(
            "skipped: no hiprtc is here: {}",
            message.lines().next().unwrap_or_default()
        );
    }
    output.status.success()
}
