//! An elementwise op is five places, and each of them is named by the compiler or by a test.
//!
//! The row in `ir` makes everything that neutral code asks for. The compiler names the CPU's vector form and the
//! tensor's method, the printer's tests the header's function, and the last test here the filetest.
//! `scripts/probe-op.sh` adds a row to a copy of the sources and looks that the compiler names those files and no
//! others; the tests here see that no list of members grows beside the table, which a compiler would not name where it
//! has a `_` arm.

use std::path::{Path, PathBuf};

use graphc_tests::repository;
use ir::op::{BinaryOp, UnaryOp};

/// The places, as `ADDING.md` has them.
const PLACES: [&str; 5] = [
    "ir/src/graph/elementwise.rs",
    "codegen-hip/src/device/graphc_math.hip.h",
    "runtime/src/cpu/kernels/math/ops.rs",
    "frontend/src/tensor/elementwise.rs",
    "tests/filetests/optimize/every_elementwise_op.gir",
];

/// Where code is that is no test.
const SOURCES: [&str; 8] = [
    "ir/src",
    "frontend/src",
    "passes/src",
    "codegen-hip/src",
    "codegen-cpu/src",
    "runtime/src",
    "graphc/src",
    "llm/src",
];

/// Members that a pattern may list: what index arithmetic and a fusion are made of.
const LISTED: usize = 4;

fn read(relative: &str) -> String {
    let path = repository(relative);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn files(folder: &Path, ends: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder)
        .expect("a folder")
        .map(|e| e.expect("an entry").path())
    {
        if entry.is_dir() {
            files(&entry, ends, found);
        } else if entry.to_string_lossy().ends_with(ends) {
            found.push(entry);
        }
    }
}

/// The most members in one alternation of a source text.
fn longest_alternation(text: &str) -> usize {
    let is_member = |word: &str| {
        let path = word.rsplit("::").collect::<Vec<_>>();
        matches!(path[..], [_, "UnaryOp" | "BinaryOp", ..])
    };
    let parts: Vec<&str> = text.split('|').collect();
    let (mut most, mut run) = (0, 0);
    for pair in parts.windows(2) {
        let before = pair[0].trim_end().rsplit([' ', '\n', '(', ',']).next().unwrap_or("");
        let after = pair[1].trim_start().split([' ', '\n', ')', ',']).next().unwrap_or("");
        let alone = pair[0].trim() == before;
        run = match (is_member(before) && is_member(after), alone) {
            (true, true) => run.max(1) + 1,
            (true, false) => 2,
            (false, _) => 0,
        };
        most = most.max(run);
    }
    most
}

#[test]
fn alternations_are_counted() {
    assert_eq!(longest_alternation("BinaryOp::Add => 1, a | b"), 0);
    assert_eq!(longest_alternation("x(op @ (BinaryOp::Add | BinaryOp::Sub), a)"), 2);
    assert_eq!(
        longest_alternation("{ BinaryOp::Add\n | BinaryOp::Sub\n | BinaryOp::Mul => 1 }"),
        3
    );
    assert_eq!(
        longest_alternation("|a| ir::op::UnaryOp::Exp | ir::op::UnaryOp::Log => |b| b"),
        2
    );
}

/// A pattern that lists many members is a column that the table lacks.
#[test]
fn no_list_of_members_stands_beside_the_table() {
    let mut sources = Vec::new();
    for folder in SOURCES {
        files(&repository(folder), ".rs", &mut sources);
    }
    assert!(sources.len() > 300, "{} files", sources.len());
    let mut wrong = Vec::new();
    for path in sources {
        let text = std::fs::read_to_string(&path).expect("text");
        // A method's file says which ops are operators.
        let most = longest_alternation(&text);
        if most > LISTED && !PLACES.iter().any(|place| path.ends_with(place)) {
            wrong.push(format!("{}: {most} members in one pattern", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_guide_names_the_places() {
    let guide = read("ADDING.md");
    let section = guide
        .split("\n## ")
        .find(|s| s.starts_with("An elementwise op"))
        .expect("a section");
    let steps = section
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    let named: Vec<&str> = steps.map(|line| line.split('`').nth(1).expect("a path")).collect();
    assert_eq!(named, PLACES);
    PLACES.iter().for_each(|place| drop(read(place)));
}

#[test]
fn every_op_has_a_filetest() {
    let text = read(PLACES[4]);
    let names = UnaryOp::ALL.iter().map(|op| op.name());
    for name in names.chain(BinaryOp::ALL.iter().map(|op| op.name())) {
        let used = text.lines().filter(|line| !line.starts_with("//")).any(|line| {
            let op = line.split(" = ").nth(1).unwrap_or("");
            op.split(' ').next() == Some(name)
        });
        assert!(used, "{} has no {name}", PLACES[4]);
    }
}
