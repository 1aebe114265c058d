//! The commands that the documents show and that need HIP's functions run here, on the emulated GPU; the options and
//! targets that documents name exist.
//!
//! Commands are the lines `$ …` of ````
//! ```console,hip ```` blocks, each block one shell. Numbers in what is shown are not compared, and `…` stands for lines
//! that are left out. `scripts/docs.sh` runs the other blocks. The documents' Rust samples are doc tests of the crates.

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use graphc::ir::HostTensor;
use graphc::ir::target::TARGETS;
use graphc_tests::emulated_hip::EmulatedHip;
use graphc_tests::{graphc_binary, repository};

/// The documents beside the book.
const DOCUMENTS: &[&str] = &[
    "README.md",
    "ADDING.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "emu/README.md",
    "emu/hip/README.md",
    "examples/digits/README.md",
    "ort-provider/README.md",
    "python/README.md",
    "tests/data/README.md",
];

/// All documents: those above, the book's pages and the design decisions.
fn documents() -> Vec<String> {
    let mut names: Vec<String> = DOCUMENTS.iter().map(|&name| name.to_owned()).collect();
    for folder in ["docs/src", "docs/design"] {
        for entry in std::fs::read_dir(repository(folder)).expect("a folder").flatten() {
            let name = entry.file_name().into_string().expect("text");
            if name.ends_with(".md") {
                names.push(format!("{folder}/{name}"));
            }
        }
    }
    names.sort();
    names
}

/// A block of commands with what is shown behind each.
struct Block {
    place: String,
    commands: Vec<(String, Vec<String>)>,
}

fn document(name: &str) -> String {
    std::fs::read_to_string(repository(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn blocks(name: &str) -> Vec<Block> {
    let text = document(name);
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        match (&mut open, line) {
            (None, "```console,hip") => {
                let place = format!("{name}:{}", number + 1);
                open = Some(Block {
                    place,
                    commands: Vec::new(),
                });
            }
            (Some(_), "```") => blocks.extend(open.take()),
            (Some(block), line) => match (line.strip_prefix("$ "), block.commands.last_mut()) {
                (Some(command), _) => block.commands.push((command.to_owned(), Vec::new())),
                (None, Some((_, shown))) => shown.push(line.to_owned()),
                (None, None) => panic!("{name}:{}: what is shown before the first command?", number + 1),
            },
            (None, _) => {}
        }
    }
    assert!(open.is_none(), "{name}: a block without an end");
    blocks
}

/// A folder like the repository's, in which commands may write. Its cargo is a stand-in that succeeds.
struct Sandbox {
    dir: tempfile::TempDir,
}

impl Sandbox {
    /// With `rows`, the test images are so many: on an emulated GPU all of them take minutes.
    fn new(hip: &EmulatedHip, rows: Option<usize>) -> Sandbox {
        let sandbox = Sandbox {
            dir: tempfile::tempdir().expect("a folder"),
        };
        let at = |name: &str| sandbox.dir.path().join(name);
        for folder in ["bin", "target/debug", "examples/digits"] {
            std::fs::create_dir_all(at(folder)).expect("a folder");
        }
        for entry in std::fs::read_dir(repository("examples/digits"))
            .expect("a folder")
            .flatten()
        {
            let to = at("examples/digits").join(entry.file_name());
            match rows.filter(|_| entry.file_name() == "test.npz") {
                Some(rows) => head(&entry.path(), &to, rows),
                None => symlink(entry.path().canonicalize().expect("there"), to).expect("a link"),
            }
        }
        let binary = graphc_binary().canonicalize().expect("built");
        for place in ["bin/graphc", "target/debug/graphc"] {
            symlink(&binary, at(place)).expect("a link");
        }
        let library = hip.folder().join("libamdhip64.so.7");
        symlink(library, at("target/debug/libamdhip64_emu.so")).expect("a link");
        // A build takes minutes.
        let cargo = at("bin/cargo");
        std::fs::write(&cargo, "#!/bin/sh\nexit 0\n").expect("written");
        std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).expect("mine");
        sandbox
    }

    /// Runs a block's first commands as one shell; what the last prints is the output.
    fn run(&self, commands: &[String], variables: &[(&str, &Path)]) -> Output {
        let (last, before) = commands.split_last().expect("a command");
        let mut script = String::from("set -e\n");
        before
            .iter()
            .for_each(|c| script += &format!("{{ {c}\n}} >/dev/null 2>&1\n"));
        script += last;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let bin = self.dir.path().join("bin");
        let paths = std::iter::once(bin).chain(std::env::split_paths(&path));
        let mut command = Command::new("sh");
        command
            .args(["-c", &script])
            .current_dir(self.dir.path())
            .env("PATH", std::env::join_paths(paths).expect("a path"));
        for (name, value) in variables {
            command.env(name, value);
        }
        command.output().expect("sh")
    }
}

/// The first rows of an array file.
fn head(from: &Path, to: &Path, rows: usize) {
    let arrays = graphc::arrays::read(from)
        .expect("readable")
        .into_iter()
        .map(|(name, tensor)| {
            let bytes = tensor.bytes.len() / tensor.shape[0] * rows;
            let shape = [&[rows], &tensor.shape[1..]].concat();
            let bytes = tensor.bytes.slice(0, bytes).expect("inside");
            (name, HostTensor::new(tensor.dtype, shape, bytes).expect("fits"))
        });
    graphc::arrays::write(to, &arrays.collect()).expect("writable");
}

/// Numbers become `#` and blanks one blank: what may differ from one version or machine to the next.
fn masked(line: &str) -> String {
    let mut out = String::new();
    for word in line.split_whitespace() {
        let mut rest = word;
        while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
            // Digits within a name (gfx90a, f32) are part of it.
            let within = rest[..start].ends_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            let number = |c: char| c.is_ascii_digit() || (!within && ".e-+kMG".contains(c));
            let end = rest[start..]
                .find(|c: char| !number(c))
                .map_or(rest.len(), |n| start + n);
            out += &rest[..start];
            out += if within { &rest[start..end] } else { "#" };
            rest = &rest[end..];
        }
        out += rest;
        out.push(' ');
    }
    out.trim_end().to_owned()
}

/// Says what is shown and was not printed, in order.
fn not_printed<'a>(shown: &'a [String], printed: &str) -> Vec<&'a str> {
    let lines: Vec<String> = printed.lines().map(masked).collect();
    let mut from = 0;
    let mut missing = Vec::new();
    for line in shown.iter().filter(|l| !l.trim().is_empty() && l.trim() != "…") {
        let wanted = masked(line);
        match lines[from..].iter().position(|l| *l == wanted) {
            Some(at) => from += at + 1,
            None => missing.push(line.as_str()),
        }
    }
    missing
}

#[test]
fn every_command_that_needs_hip_runs_and_prints_what_is_shown() {
    let Some(hip) = EmulatedHip::new(&[]) else { return };
    let mut ran = 0;
    let mut wrong = Vec::new();
    for block in documents().iter().flat_map(|name| blocks(name)) {
        let sandbox = Sandbox::new(
            &hip,
            block
                .commands
                .iter()
                .any(|(c, _)| c.contains("--device hip"))
                .then_some(8),
        );
        let mut commands: Vec<String> = Vec::new();
        for (command, shown) in &block.commands {
            commands.push(command.clone());
            let mut variables: Vec<(&str, &Path)> = Vec::new();
            if !block.commands.iter().any(|(c, _)| c.contains("GRAPHC_HIP=")) {
                variables.push(("GRAPHC_HIP", hip.folder()));
            }
            let disassembler = hip.disassembler();
            if let Some(words) = &disassembler {
                variables.push(("GRAPHC_EMU_DISASSEMBLER", Path::new(words)));
            }
            let output = sandbox.run(&commands, &variables);
            let out = String::from_utf8_lossy(&output.stdout).into_owned();
            ran += 1;
            let missing = not_printed(shown, &out);
            if !output.status.success() || !missing.is_empty() {
                let err = String::from_utf8_lossy(&output.stderr);
                wrong.push(format!(
                    "{}: {command}: {}; not printed: {missing:#?}\n{out}{err}",
                    block.place, output.status
                ));
            }
        }
    }
    assert!(ran >= 6, "{ran} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Blocks of the documents say what they are: commands, Rust, another language or plain text.
#[test]
fn every_block_says_what_it_is() {
    for name in documents() {
        let text = document(&name);
        let mut inside = false;
        for (number, line) in text.lines().enumerate().filter(|(_, l)| l.starts_with("```")) {
            let kind = line.trim_start_matches('`');
            let known = [
                "console",
                "console,cuda",
                "console,hip",
                "console,ignore-output",
                "console,no_run",
                "rust",
                "rust,no_run",
                "text",
                "toml",
                "c",
                "cpp",
                "python",
            ]
            .contains(&kind);
            assert!(inside || known, "{name}:{}: a block of {kind:?}", number + 1);
            inside = !inside;
        }
    }
}

/// Verbs and options that prose names are ones that there are: in the documents and in rustdoc.
#[test]
fn every_option_that_is_named_is_there() {
    let help = |words: &[&str]| {
        let output = Command::new(graphc_binary())
            .args(words)
            .arg("--help")
            .output()
            .expect("graphc starts");
        String::from_utf8(output.stdout).expect("text")
    };
    let verbs = [
        "run", "compile", "inspect", "explain", "opt", "bench", "profile", "quantize", "report", "tune", "verify",
        "targets", "doctor",
    ];
    // The options of `tune` are those of the verbs behind it.
    let helps = verbs.map(|verb| match verb {
        "tune" => ["run", "merge", "show"].map(|behind| help(&["tune", behind])).concat(),
        _ => help(&[verb]),
    });
    let mut files: Vec<PathBuf> = documents().iter().map(|name| repository(name)).collect();
    let mut folders: Vec<PathBuf> = ["ir", "frontend", "passes", "codegen-hip", "runtime", "graphc", "emu"]
        .map(|c| repository(c).join("src"))
        .into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path if path.extension().is_some_and(|e| e == "rs") => files.push(path),
                _ => {}
            }
        }
    }
    let (mut named, mut wrong) = (0, Vec::new());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("readable");
        for line in text
            .lines()
            .filter(|l| file.extension().is_some_and(|e| e == "md") || l.trim_start().starts_with("//"))
        {
            let in_ticks = line.split('`').skip(1).step_by(2);
            for command in in_ticks.filter_map(|t| t.strip_prefix("graphc ")) {
                let words: Vec<&str> = command
                    .split([' ', '[', ']', '|', '\\', ',', '='])
                    .filter(|w| !w.is_empty())
                    .collect();
                let used: BTreeSet<usize> = verbs
                    .iter()
                    .enumerate()
                    .filter(|(_, verb)| match words.first() {
                        Some(&"tune") => **verb == "tune",
                        _ => words.iter().take_while(|w| !w.starts_with('-')).any(|w| *w == **verb),
                    })
                    .map(|(index, _)| index)
                    .collect();
                let is_hidden = words.first().is_some_and(|w| w.starts_with("__"));
                if used.is_empty() && !is_hidden {
                    wrong.push(format!("{}: no verb in `graphc {command}`", file.display()));
                }
                for option in words.iter().filter(|w| w.starts_with("--") && w.len() > 2) {
                    named += 1;
                    if !used.iter().all(|v| {
                        helps[*v].contains(&format!("{option} ")) || helps[*v].contains(&format!("{option}\n"))
                    }) {
                        wrong.push(format!("{}: no {option} in `graphc {command}`", file.display()));
                    }
                }
            }
        }
    }
    assert!(named >= 15, "{named} options were found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The reference's table names every target, and no other.
#[test]
fn the_reference_lists_the_targets() {
    let page = document("docs/src/reference.md");
    let (_, table) = page.split_once("\n## Targets\n").expect("a table of targets");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let listed: BTreeSet<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    let known: BTreeSet<&str> = TARGETS.iter().map(|t| t.name).collect();
    assert_eq!(listed, known);
}
