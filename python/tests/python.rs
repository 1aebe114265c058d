//! Python's tests of the module, run by pytest on the extension that cargo built.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the tests import, beside torch, which they do without.
const PACKAGES: [&str; 4] = ["numpy", "pytest", "onnx", "ml_dtypes"];

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The extension that cargo builds with this test.
fn extension() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let library = test.parent().expect("a test is in a folder").join("lib_graphc.so");
    assert!(library.is_file(), "cargo builds {} with its tests", library.display());
    library
}

fn python() -> Command {
    let mut python = Command::new("python3");
    python.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("PYTHONHOME");
    python
}

/// The folders that Python needs on its path for the packages: none where it has them itself, one that pip fills
/// otherwise. None where they cannot be had.
fn packages() -> Option<Vec<PathBuf>> {
    let imports = |path: &Path| {
        let program = format!(
            "import sys; assert sys.version_info >= (3, 10); import {}",
            PACKAGES.join(", ")
        );
        let output = python().args(["-c", &program]).env("PYTHONPATH", path).output();
        output.is_ok_and(|output| output.status.success())
    };
    if imports(Path::new("")) {
        return Some(Vec::new());
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-packages");
    if !imports(&place) {
        let pip = python()
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--target",
            ])
            .arg(&place)
            .args(PACKAGES)
            .output();
        if !pip.is_ok_and(|output| output.status.success()) || !imports(&place) {
            return None;
        }
    }
    Some(vec![place])
}

/// Makes the package as a wheel has it: Python's files, with the extension among them.
fn package(place: &Path) {
    let package = place.join("graphc");
    std::fs::create_dir_all(&package).expect("a folder");
    for entry in std::fs::read_dir(folder().join("graphc")).expect("Python's files") {
        let file = entry.expect("readable").path();
        if file.is_file() {
            std::fs::copy(&file, package.join(file.file_name().expect("a name"))).expect("copied");
        }
    }
    std::os::unix::fs::symlink(extension(), package.join("_graphc.abi3.so")).expect("linked");
}

#[test]
fn pytest_passes() {
    let Some(mut paths) = packages() else {
        println!(
            "skipped: optional: no python3 of 3.10 or later with {}, and pip does not get them",
            PACKAGES.join(", ")
        );
        return;
    };
    let place = tempfile::tempdir().expect("a folder");
    package(place.path());
    paths.insert(0, place.path().to_owned());
    let output = python()
        .current_dir(place.path())
        .env("PYTHONPATH", std::env::join_paths(&paths).expect("no colons in paths"))
        // The command, unlike the module, leaves the current folder out of the path.
        .args(["-c", "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"])
        .args([
            "-q",
            "-rs",
            "-p",
            "no:cacheprovider",
            "--import-mode=importlib",
            "--rootdir",
        ])
        .arg(folder())
        .arg(folder().join("tests"))
        .output()
        .expect("Python starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for line in text.lines().filter(|line| line.starts_with("SKIPPED")) {
        println!("skipped: optional: {line}");
    }
}

/// A type checker finds the stubs, and the wheel has the names that other packages look for.
#[test]
fn the_package_is_whole() {
    for file in [
        "py.typed",
        "__init__.pyi",
        "_graphc.pyi",
        "_session.pyi",
        "torch.py",
        "backend.py",
        "errors.py",
    ] {
        assert!(folder().join("graphc").join(file).is_file(), "{file}");
    }
    let project = std::fs::read_to_string(folder().join("pyproject.toml")).expect("pyproject.toml");
    assert!(project.contains("[project.entry-points.\"torch_dynamo_backends\"]\ngraphc = \"graphc.torch:backend\"\n"));
    assert!(project.contains("module-name = \"graphc._graphc\""));
}
