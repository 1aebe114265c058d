//! Where `-o` goes: regular files are replaced whole, everything else is written through, and no input is written over.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use graphc::arrays;

use crate::place::{Place, SMALL, f32s, text};

/// Makes a device like `/dev/null` (1, 3) or `/dev/full` (1, 7) in the test's own folder; None where that is not
/// allowed.
pub fn device(place: &Place, name: &str, major: u32, minor: u32) -> Option<PathBuf> {
    let path = place.path(name);
    let (major, minor) = (major.to_string(), minor.to_string());
    let mut mknod = Command::new("mknod");
    let made = mknod.arg(&path).args(["c", &major, &minor]).output();
    if !made.is_ok_and(|o| o.status.success()) || std::fs::OpenOptions::new().write(true).open(&path).is_err() {
        println!("skipped: device nodes cannot be made here");
        return None;
    }
    Some(path)
}

pub fn fifo(place: &Place, name: &str) -> PathBuf {
    let path = place.path(name);
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.is_ok_and(|s| s.success()), "mkfifo");
    path
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("there").mode() & 0o777
}

/// The command lines that write a file, each without its `-o FILE`.
fn writers(p: &Place) -> [Vec<String>; 3] {
    let m = p.write("small.gir", SMALL);
    p.arrays("x.npz", &[("x", f32s(&[1, 3], &[1.0, -1.0, 2.0]))]);
    let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect();
    [
        words(&["compile", text(&m), "--target", "cpu"]),
        words(&["compile", text(&m), "--target", "cpu", "--emit", "plan"]),
        words(&["run", text(&m), "--inputs", "x.npz"]),
    ]
}

fn with<'a>(words: &'a [String], output: &'a str) -> Vec<&'a str> {
    words.iter().map(String::as_str).chain(["-o", output]).collect()
}

#[test]
fn devices_and_fifos_are_written_through() {
    let p = Place::new();
    let Some(null) = device(&p, "null.npz", 1, 3) else {
        return;
    };
    let Some(full) = device(&p, "full.npz", 1, 7) else {
        return;
    };
    let link = p.path("link.npz");
    symlink(&null, &link).expect("a link");
    for words in writers(&p) {
        p.ok(&with(&words, "null.npz"));
        p.ok(&with(&words, "link.npz"));
        let said = p.fails(
            &with(&words, "full.npz"),
            2,
            &["cannot write full.npz", "No space left"],
        );
        assert!(!said.contains("ZipWriter"), "{said}");
        for path in [&null, &full] {
            let kind = std::fs::symlink_metadata(path).expect("there").file_type();
            assert!(kind.is_char_device(), "{}: {words:?}", path.display());
        }
        assert!(std::fs::symlink_metadata(&link).expect("there").is_symlink());
        let pipe = fifo(&p, "pipe.npz");
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read(pipe).expect("readable")
        });
        p.ok(&with(&words, "pipe.npz"));
        assert!(!reader.join().expect("read").is_empty(), "{words:?}");
        assert!(std::fs::symlink_metadata(&pipe).expect("there").file_type().is_fifo());
        std::fs::remove_file(pipe).expect("removed");
    }
}

/// `/dev/stdout` is the process's own output, and nothing else is mixed into it.
#[test]
fn standard_output_is_a_place_to_write_to() {
    let p = Place::new();
    symlink("/dev/stdout", p.path("out.npz")).expect("a link");
    let [compile, _, run] = writers(&p);
    for words in [
        with(&compile, "/dev/stdout"),
        with(&compile, "-"),
        with(&run, "out.npz"),
        with(&run, "/dev/stdout"),
        with(&run, "-"),
    ] {
        let output = p.run(&words);
        assert!(
            output.status.success(),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        if words[0] == "run" {
            p.write("copy.npz", &output.stdout);
            let y = arrays::read(&p.path("copy.npz")).expect("an archive and nothing else");
            assert_eq!(y["y"].to_f32(), [1.0, 0.0, 6.0]);
            continue;
        }
        p.write("copy.graphc", &output.stdout);
        p.ok(&["run", "copy.graphc", "--inputs", "x.npz"]);
    }
    assert!(std::fs::symlink_metadata("/dev/stdout").expect("there").is_symlink());
    assert!(!p.path("-").exists(), "`-o -` made a file of that name");
}

#[test]
fn a_file_keeps_its_mode_and_a_new_one_has_the_umasks() {
    let p = Place::new();
    for (words, name) in writers(&p).iter().zip(["a.graphc", "a.plan", "a.npz"]) {
        let path = p.path(name);
        for (umask, made) in [("022", 0o644), ("027", 0o640)] {
            let binary = env!("CARGO_BIN_EXE_graphc");
            let status = Command::new("sh")
                .args(["-c", &format!("umask {umask}; exec \"$@\""), "sh", binary])
                .args(with(words, name))
                .current_dir(p.path("."))
                .env("GRAPHC_CACHE", "off")
                .output();
            assert!(status.expect("sh").status.success(), "{words:?}");
            assert_eq!(mode(&path), made, "{words:?}");
            std::fs::remove_file(&path).expect("removed");
        }
        p.ok(&with(words, name));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).expect("mine");
        let old = std::fs::metadata(&path).expect("there").ino();
        symlink(name, p.path("link.npz")).expect("a link");
        p.ok(&with(words, "link.npz"));
        let new = std::fs::metadata(&path).expect("there").ino();
        assert!(
            mode(&path) == 0o604 && new != old,
            "{words:?}: replaced in one step, through the link"
        );
        std::fs::remove_file(p.path("link.npz")).expect("removed");
    }
}

#[test]
fn an_input_is_not_written_over() {
    let p = Place::new();
    let [compile, emit, run] = writers(&p);
    std::fs::hard_link(p.path("x.npz"), p.path("same.npz")).expect("a link");
    symlink("small.gir", p.path("model.npz")).expect("a link");
    for (words, output) in [
        (&compile, "small.gir"),
        (&emit, "model.npz"),
        (&run, "x.npz"),
        (&run, "same.npz"),
        (&run, "model.npz"),
    ] {
        let before = std::fs::read(p.path(output)).expect("there");
        p.fails(&with(words, output), 2, &[output, "which is read"]);
        assert_eq!(std::fs::read(p.path(output)).expect("there"), before);
    }
    for option in ["--expect", "--labels"] {
        let words = [&run[..], &[option.to_owned(), "x.npz".to_owned()]].concat();
        p.fails(&with(&words, "same.npz"), 2, &["same.npz", "which is read"]);
    }
    // Weights beside a model are read too.
    let model = crate::external_weights(&p);
    let words = ["compile".to_owned(), model, "--target".to_owned(), "cpu".to_owned()];
    p.fails(&with(&words, "weights.bin"), 2, &["weights.bin", "which is read"]);
    assert_eq!(std::fs::read(p.path("weights.bin")).expect("there").len(), 24);
}

/// Nothing waits for ever: neither for a reader of what is written nor for a writer of what is read.
#[test]
fn a_fifo_that_nothing_reads_is_an_error() {
    let p = Place::new();
    fifo(&p, "pipe.npz");
    let [_, _, run] = writers(&p);
    p.fails(&with(&run, "pipe.npz"), 2, &["pipe.npz", "nothing has read the FIFO"]);
    p.fails(&["run", "pipe.npz", "--random"], 2, &["pipe.npz", "it is a FIFO"]);
    p.fails(
        &["run", "small.gir", "--inputs", "pipe.npz"],
        2,
        &["pipe.npz", "it is a FIFO"],
    );
}

/// A note or an error that nobody reads is no reason to stop.
#[test]
fn work_goes_on_where_stderr_cannot_be_written() {
    let p = Place::new();
    let model = p.write("small.gir", SMALL);
    p.arrays("x.npz", &[("x", f32s(&[1, 3], &[1.0, -1.0, 2.0]))]);
    let run = |words: &[&str]| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = p.command(words);
        command.env("GRAPHC_NOT_A_SETTING", "1").stderr(writer);
        command.status().expect("runs").code()
    };
    assert_eq!(run(&["run", text(&model), "--inputs", "x.npz", "-o", "y.npz"]), Some(0));
    assert!(p.path("y.npz").exists());
    assert_eq!(run(&["run", "not-there.gir"]), Some(2));
}
