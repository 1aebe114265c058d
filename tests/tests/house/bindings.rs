//! The tables of functions that the runtime calls in ROCm's libraries, held against the headers of ROCm 7.2: names, arity, and the
//! size of each argument and result; and against the versions that the HIP runtime gives its symbols, for older ROCms.
//!
//! The headers are those of the sysroot that `scripts/rocm-sysroot.sh` makes (or of `GRAPHC_ROCM_LIBS`, or `/opt/rocm`). They
//! are read as plain text. Without them the test prints `skipped: …` and passes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use graphc_tests::repository;

/// A crate of bindings with its headers.
const TABLES: [(&str, &[&str]); 7] = [
    ("hip-sys", &["hip/hip_runtime_api.h", "hip/driver_types.h"]),
    ("hiprtc-sys", &["hip/hiprtc.h"]),
    (
        "rocblas-sys",
        &[
            "rocblas/internal/rocblas-types.h",
            "rocblas/internal/rocblas-auxiliary.h",
            "rocblas/internal/rocblas-functions.h",
        ],
    ),
    (
        "hipblaslt-sys",
        &[
            "hip/library_types.h",
            "hipblas-common/hipblas-common.h",
            "hipblaslt/hipblaslt.h",
        ],
    ),
    ("miopen-sys", &["miopen/miopen.h"]),
    ("rccl-sys", &["rccl/rccl.h"]),
    ("comgr-sys", &["amd_comgr/amd_comgr.h"]),
];

const POINTER: usize = 8;

/// C's own types on 64-bit Linux, in bytes.
const BUILT_IN: [(&str, usize); 18] = [
    ("void", 0),
    ("bool", 1),
    ("char", 1),
    ("int8_t", 1),
    ("uint8_t", 1),
    ("short", 2),
    ("int16_t", 2),
    ("uint16_t", 2),
    ("int", 4),
    ("unsigned", 4),
    ("int32_t", 4),
    ("uint32_t", 4),
    ("float", 4),
    ("long", 8),
    ("int64_t", 8),
    ("uint64_t", 8),
    ("size_t", 8),
    ("double", 8),
];

/// What a function takes and gives, in bytes each.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Signature {
    arguments: Vec<usize>,
    result: usize,
}

/// The words of a C text, without comments and lines for the preprocessor.
fn words(text: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("/*") {
        plain += &rest[..at];
        plain.push(' ');
        rest = rest[at..].find("*/").map_or("", |end| &rest[at + end + 2..]);
    }
    plain += rest;
    let plain = plain.replace("\\\n", " ");
    let mut words = Vec::new();
    for line in plain.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let line = line.split("//").next().unwrap_or("");
        let mut word = String::new();
        for c in line.chars() {
            if c.is_alphanumeric() || c == '_' {
                word.push(c);
                continue;
            }
            if !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            if !c.is_whitespace() {
                words.push(c.to_string());
            }
        }
        if !word.is_empty() {
            words.push(word);
        }
    }
    words
}

/// The place after the bracket that closes the one at `open`.
fn closed(words: &[String], open: usize) -> usize {
    let (opening, closing) = match words[open].as_str() {
        "(" => ("(", ")"),
        _ => ("{", "}"),
    };
    let mut depth = 0;
    for (at, word) in words.iter().enumerate().skip(open) {
        depth += usize::from(word == opening);
        depth -= usize::from(word == closing);
        if depth == 0 {
            return at + 1;
        }
    }
    words.len()
}

/// Headers: their types' sizes and where their functions are declared.
struct Header {
    words: Vec<String>,
    types: BTreeMap<String, usize>,
}

impl Header {
    fn read(folder: &Path, files: &[&str]) -> Header {
        let text = |file: &&str| std::fs::read_to_string(folder.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let mut header = Header {
            words: words(&files.iter().map(text).collect::<Vec<_>>().join("\n")),
            types: BUILT_IN
                .iter()
                .map(|(name, size)| ((*name).to_owned(), *size))
                .collect(),
        };
        // What is declared elsewhere, and only handed on.
        header.types.insert("hipStream_t".into(), POINTER);
        header.find_types();
        header
    }

    fn find_types(&mut self) {
        let mut at = 0;
        while at < self.words.len() {
            match self.words[at].as_str() {
                "typedef" => {
                    let end = self.end(at);
                    self.typedef(at + 1, end);
                    at = end;
                }
                "enum" if self.words.get(at + 2).is_some_and(|word| word == "{") => {
                    let name = self.words[at + 1].clone();
                    self.types.insert(name, 4);
                    at += 2;
                }
                // Declares a handle.
                "MIOPEN_DECLARE_OBJECT" => {
                    let name = format!("{}_t", self.words[at + 2]);
                    self.types.insert(name, POINTER);
                    at += 3;
                }
                _ => at += 1,
            }
        }
    }

    /// The semicolon that ends a declaration.
    fn end(&self, mut at: usize) -> usize {
        while at < self.words.len() && self.words[at] != ";" {
            at = if self.words[at] == "{" {
                closed(&self.words, at)
            } else {
                at + 1
            };
        }
        at
    }

    fn typedef(&mut self, start: usize, end: usize) {
        let Some(name) = self.words[start..end].last().cloned() else {
            return;
        };
        let open = self.words[start..end].iter().position(|word| word == "{");
        let size = match (open, self.words[start].as_str()) {
            (Some(_), "enum") => Some(4),
            (Some(open), _) => {
                let close = closed(&self.words, start + open) - 1;
                self.fields(start + open + 1, close)
            }
            (None, _) => self.size(&self.words[start..end - 1]),
        };
        // A type of no known size is missed where a function takes it.
        if let Some(size) = size {
            self.types.insert(name, size);
        }
    }

    /// The bytes of a struct's fields, which lie at multiples of their own sizes.
    fn fields(&self, start: usize, end: usize) -> Option<usize> {
        let (mut bytes, mut widest) = (0usize, 1);
        for field in self.words[start..end]
            .split(|word| word == ";")
            .filter(|field| !field.is_empty())
        {
            let size = self.size(&field[..field.len() - 1])?.max(1);
            bytes = bytes.next_multiple_of(size) + size;
            widest = widest.max(size);
        }
        Some(bytes.next_multiple_of(widest))
    }

    /// The size of a type; None where a word of it is not known.
    fn size(&self, words: &[String]) -> Option<usize> {
        if words.iter().any(|word| word == "*" || word == "[") {
            return Some(POINTER);
        }
        let skipped = ["const", "struct", "enum", "signed", "extern", "static", "inline"];
        let words: Vec<&str> = words
            .iter()
            .map(String::as_str)
            .filter(|word| !skipped.contains(word))
            .collect();
        match words[..] {
            ["unsigned" | "long", other] => BUILT_IN.iter().find(|(name, _)| *name == other).map(|(_, size)| *size),
            ["unsigned", "long", "long"] => Some(8),
            [one] => self.types.get(one).copied(),
            _ => None,
        }
    }

    /// The size of an argument, with or without its name.
    fn argument(&self, words: &[String]) -> Option<usize> {
        let default = words.iter().position(|word| word == "__dparm" || word == "=");
        let words = &words[..default.unwrap_or(words.len())];
        let named = words.len().checked_sub(1).and_then(|last| self.size(&words[..last]));
        named.filter(|_| words.len() > 1).or_else(|| self.size(words))
    }

    /// The signature of a function as it is declared.
    fn function(&self, name: &str) -> Result<Signature, String> {
        for at in 1..self.words.len() {
            if self.words[at] != name || self.words.get(at + 1).is_none_or(|word| word != "(") {
                continue;
            }
            let close = closed(&self.words, at + 1);
            // Attributes may follow; a body, or a use, is no declaration.
            let after: Vec<&str> = self.words[close..].iter().take(2).map(String::as_str).collect();
            if !after.contains(&";") {
                continue;
            }
            let start = self.words[..at]
                .iter()
                .rposition(|word| ";{})\"".contains(word.as_str()));
            let result = &self.words[start.map_or(0, |start| start + 1)..at];
            if result.iter().any(|word| word == "return" || word == "=") {
                continue;
            }
            let result: Vec<String> = result.iter().filter(|word| !is_attribute(word)).cloned().collect();
            let result = self.size(&result).ok_or(format!("{name}: gives {result:?}"))?;
            let inside = &self.words[at + 2..close - 1];
            let mut arguments = Vec::new();
            if !matches!(inside, [only] if only == "void") && !inside.is_empty() {
                for argument in split(inside) {
                    arguments.push(self.argument(argument).ok_or(format!("{name}: takes {argument:?}"))?);
                }
            }
            return Ok(Signature { arguments, result });
        }
        Err(format!("{name} is not declared"))
    }
}

/// What stands before a declaration and is no part of its type.
fn is_attribute(word: &str) -> bool {
    word.ends_with("_EXPORT") || word.ends_with("_API") || ["extern", "C", "DEPRECATED_MSG"].contains(&word)
}

/// Arguments, which commas part outside of brackets.
fn split(words: &[String]) -> Vec<&[String]> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, word) in words.iter().enumerate() {
        match word.as_str() {
            "(" | "<" => depth += 1,
            ")" | ">" => depth -= 1,
            "," if depth == 0 => {
                parts.push(&words[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&words[start..]);
    parts
}

/// The table of a crate of bindings: each function's signature.
fn table(of: &str) -> BTreeMap<String, Result<Signature, String>> {
    let mut text = std::fs::read_to_string(repository(&format!("runtime/sys/{of}/src/bindings.rs"))).expect("bindings");
    // What came later has a table of its own.
    let later = repository(&format!("runtime/sys/{of}/src/find_bindings.rs"));
    if later.is_file() {
        text += &std::fs::read_to_string(later).expect("bindings");
    }
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut functions = BTreeMap::new();
    for part in flat
        .split("pub ")
        .filter(|part| part.contains(": unsafe extern \"C\" fn("))
    {
        let (name, rest) = part.split_once(": unsafe extern \"C\" fn(").expect("it has it");
        let (arguments, rest) = rest.split_at(outside(rest, ')').unwrap_or(rest.len()));
        // Fields end by a comma.
        let result = rest
            .trim_start_matches(')')
            .trim_start()
            .strip_prefix("-> ")
            .unwrap_or("()");
        let result = result.split([',', '}']).next().unwrap_or("").trim();
        let mut left = arguments;
        let mut arguments = Vec::new();
        while !left.trim().is_empty() {
            let (argument, rest) = left.split_at(outside(left, ',').unwrap_or(left.len()));
            arguments.push(argument.trim());
            left = rest.trim_start_matches(',');
        }
        let size = |ty: &str| rust_size(&flat, ty).ok_or(format!("{name}: no size of {ty:?}"));
        let arguments: Result<Vec<usize>, String> = arguments
            .iter()
            .map(|argument| size(argument.split_once(": ").map_or(argument, |(_, ty)| ty)))
            .collect();
        let signature = arguments.and_then(|arguments| {
            let result = if result == "()" { 0 } else { size(result)? };
            Ok(Signature { arguments, result })
        });
        functions.insert(name.to_owned(), signature);
    }
    functions
}

/// The first place of a character outside of brackets.
fn outside(text: &str, wanted: char) -> Option<usize> {
    let (mut depth, mut before) = (0, ' ');
    for (at, c) in text.char_indices() {
        if depth == 0 && c == wanted {
            return Some(at);
        }
        // An arrow closes nothing.
        let closes = c == ')' || c == '>' && before != '-';
        depth += i32::from(c == '(' || c == '<') - i32::from(closes);
        before = c;
    }
    None
}

/// The size of a type of the bindings in bytes.
fn rust_size(flat: &str, ty: &str) -> Option<usize> {
    if ["*mut ", "*const ", "::std::option::Option< unsafe extern"]
        .iter()
        .any(|mark| ty.starts_with(mark))
    {
        return Some(POINTER);
    }
    let known = match ty.trim_start_matches("::std::os::raw::") {
        "c_char" | "u8" | "i8" | "bool" => 1,
        "c_int" | "c_uint" | "u32" | "i32" | "f32" => 4,
        "c_long" | "c_ulong" | "c_longlong" | "c_ulonglong" | "u64" | "i64" | "usize" | "isize" | "f64" => 8,
        _ => 0,
    };
    if known > 0 {
        return Some(known);
    }
    let after = |mark: String| flat.find(&mark).map(|at| &flat[at + mark.len()..]);
    let inner = after(format!("pub type {ty} = "))
        .and_then(|rest| rest.split(';').next())
        .or_else(|| after(format!("pub struct {ty}(pub ")).and_then(|rest| rest.split(')').next()))
        .or_else(|| flat[..flat.find(&format!(" as {ty};"))?].rsplit("self::").next());
    if let Some(inner) = inner {
        return rust_size(flat, inner);
    }
    let fields = after(format!("pub struct {ty} {{"))?.split('}').next()?;
    let (mut bytes, mut widest) = (0usize, 1);
    for field in fields.split(',').filter_map(|field| field.split_once(": ")) {
        let size = rust_size(flat, field.1.trim())?;
        bytes = bytes.next_multiple_of(size) + size;
        widest = widest.max(size);
    }
    Some(bytes.next_multiple_of(widest))
}

fn headers() -> Option<PathBuf> {
    let named = std::env::var_os("GRAPHC_ROCM_LIBS").map(|root| PathBuf::from(root).join("usr/include"));
    let usual = ["/opt/graphc-rocm-libs/usr/include", "/opt/rocm/include"].map(PathBuf::from);
    named
        .into_iter()
        .chain(usual)
        .find(|folder| folder.join("rocblas").is_dir())
}

#[test]
fn every_function_is_declared_as_it_is_bound() {
    let Some(folder) = headers() else {
        println!("skipped: no headers of ROCm; LIBS=1 scripts/rocm-sysroot.sh /opt/graphc-rocm-libs sets them up");
        return;
    };
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (of, files) in TABLES {
        let header = Header::read(&folder, files);
        let table = table(of);
        assert!(!table.is_empty(), "{of}");
        seen += table.len();
        for (name, bound) in &table {
            match (bound, header.function(name)) {
                (Ok(bound), Ok(declared)) if *bound == declared => {}
                (bound, declared) => wrong.push(format!("{of}: {name}: bound {bound:?}, declared {declared:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {seen}:\n{}", wrong.len(), wrong.join("\n"));
    println!("{seen} functions");
    assert!(seen > 130, "{seen}");
}

/// The reader of headers sees what it must: a changed argument, one more, another result.
#[test]
fn a_signature_that_differs_is_seen() {
    let text = "
        /* a comment */ #define SKIPPED(x) x
        typedef enum kind { A, B } kind; typedef struct thing* thing_t; typedef struct pair { int a; size_t b; } pair;
        extern \"C\" LIB_EXPORT kind f(thing_t t, const pair* p, unsigned long long n __dparm(0), void (*call)(int, int));
        template <class T> int g(T t) { return h(t); }
        int h(pair, unsigned int flags, float) DEPRECATED;
        char g(void);";
    let mut header = Header {
        words: words(text),
        types: BUILT_IN
            .iter()
            .map(|(name, size)| ((*name).to_owned(), *size))
            .collect(),
    };
    header.find_types();
    let signature = |arguments: &[usize], result| {
        Ok(Signature {
            arguments: arguments.to_vec(),
            result,
        })
    };
    assert_eq!(header.function("f"), signature(&[8, 8, 8, 8], 4));
    assert_eq!(header.function("h"), signature(&[16, 4, 4], 4));
    assert_eq!(header.function("g"), signature(&[], 1));
    assert!(header.function("other").is_err());
    let flat =
        "pub type id = u64; pub struct code(pub ::std::os::raw::c_uint); pub struct both { pub a: code, pub b: id, }";
    let sizes = ["id", "code", "both", "*mut both", "nothing"].map(|ty| rust_size(flat, ty));
    assert_eq!(sizes, [Some(8), Some(4), Some(16), Some(8), None]);
}

/// The HIP runtime says with each symbol since when it has it. What the table asks for when it is opened is in ROCm 5.7 already; what
/// came later is looked up by itself. (rocBLAS, MIOpen, hiprtc and comgr give their symbols no such versions.)
#[test]
fn the_hip_runtime_is_opened_from_rocm_5_7_on() {
    let text = std::fs::read_to_string(repository("emu/hip/symbols.txt")).expect("the list of symbols");
    let mut since: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("hip_")) {
        let (version, name) = line
            .trim_end_matches(" -")
            .split_once(' ')
            .expect("a version and a name");
        let (major, minor) = version.trim_start_matches("hip_").split_once('.').expect("two numbers");
        since.insert(
            name,
            (major.parse().expect("a number"), minor.parse().expect("a number")),
        );
    }
    let table: BTreeSet<String> = table("hip-sys").into_keys().collect();
    assert!(table.len() > 40, "{table:?}");
    for name in &table {
        let version = since
            .get(name.as_str())
            .unwrap_or_else(|| panic!("{name} is no symbol of ROCm 7.2's"));
        assert!(*version <= (5, 7), "{name} came with {version:?}");
    }
    assert_eq!(
        since["hipGetDevicePropertiesR0600"],
        (6, 0),
        "looked up by itself: see hip_sys::arch"
    );
    assert!(!table.contains("hipGetDevicePropertiesR0600"));
}
