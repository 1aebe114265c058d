//! The provider inside of ONNX Runtime: scripts that register the library as a user does, and hold its results
//! against ONNX Runtime's.
//!
//! They need a Python with `onnxruntime` (1.24 or later), `onnx` and `numpy`: the one on the path, or else one that
//! installs them below `target`. Without either a test says `skipped`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A Python that has what the scripts import.
struct Python {
    program: &'static str,
    /// Where the packages are, if not where Python looks.
    packages: Option<PathBuf>,
}

impl Python {
    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        if let Some(packages) = &self.packages {
            command.env("PYTHONPATH", packages);
        }
        command
    }

    /// Says what is missing.
    fn check(&self) -> Result<(), String> {
        const IMPORTS: &str = "import numpy, onnx, onnxruntime as ort\n\
            version = tuple(int(part) for part in ort.__version__.split('.')[:2])\n\
            assert version >= (1, 24), f'onnxruntime is {ort.__version__}'\n\
            from onnx.backend.test.case.node import collect_testcases";
        output(self.command().args(["-c", IMPORTS]))
    }
}

fn output(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(text.lines().last().unwrap_or("it failed").to_owned())
        }
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ort-provider").join(name);
    std::fs::create_dir_all(&folder).expect("a folder below target");
    folder
}

/// The Python for all tests, or why there is none.
fn python() -> &'static Result<Python, String> {
    static PYTHON: OnceLock<Result<Python, String>> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let own = Python {
            program: "python3",
            packages: None,
        };
        if own.check().is_ok() {
            return Ok(own);
        }
        let packages = folder("packages");
        // Tests may be processes of their own: one installs.
        let lock = std::fs::File::create(packages.join(".lock")).map_err(|error| error.to_string())?;
        lock.lock().map_err(|error| error.to_string())?;
        let installed = Python {
            program: "python3",
            packages: Some(packages.clone()),
        };
        if installed.check().is_err() {
            let pip = ["-m", "pip", "install", "--quiet", "--upgrade", "--target"];
            let mut install = Command::new("python3");
            install
                .args(pip)
                .arg(&packages)
                .args(["onnxruntime>=1.24", "onnx", "numpy"]);
            output(&mut install).map_err(|why| format!("pip install: {why}"))?;
        }
        installed.check().map(|()| installed)
    })
}

/// The library that cargo built with this test, which is beside it.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    let built = test.parent().expect("a test is in a folder");
    let library = built.join(format!(
        "{}graphc_ort_provider{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    ));
    assert!(library.is_file(), "{} is not there", library.display());
    library
}

fn run(script: &str) {
    let python = match python() {
        Ok(python) => python,
        Err(why) => {
            println!("skipped: optional: no Python with onnxruntime: {why}");
            return;
        }
    };
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let repository = own.parent().expect("the repository");
    let output = python
        .command()
        .arg(own.join("tests").join(script))
        .arg(library())
        .arg(folder(script))
        .arg(repository)
        .output()
        .expect("Python starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, wrong) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success() && said.contains("ok "),
        "{script}: {}\n{said}\n{wrong}",
        output.status
    );
}

#[test]
fn regions() {
    run("regions.py");
}

#[test]
fn node_cases() {
    run("nodes.py");
}

#[test]
fn context_models() {
    run("contexts.py");
}

#[test]
fn model_files() {
    run("models.py");
}
