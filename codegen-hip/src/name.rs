//! Names of things in a kernel's source: identifiers, each meaning one thing where it is seen.

use std::collections::BTreeSet;

/// Words that mean something already: C++ and what the device library puts into view.
const RESERVED: &[&str] = &[
    "alignas",
    "alignof",
    "and",
    "and_eq",
    "bitand",
    "bitor",
    "compl",
    "not_eq",
    "or_eq",
    "xor_eq",
    "asm",
    "auto",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "class",
    "const",
    "continue",
    "default",
    "delete",
    "do",
    "double",
    "else",
    "enum",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "mutable",
    "namespace",
    "new",
    "not",
    "operator",
    "or",
    "private",
    "protected",
    "public",
    "register",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "template",
    "this",
    "throw",
    "true",
    "try",
    "typedef",
    "typename",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "while",
    "xor",
    "i4",
    "u4",
    "i8",
    "u8",
    "i16",
    "u16",
    "i32",
    "u32",
    "i64",
    "u64",
    "f16",
    "bf16",
    "math",
    "cast",
    "update",
    "before",
    "attend",
    "widen",
    "truncate",
    "spread",
    "infinity",
    "lhs",
    "rhs",
    "epilogue",
    "score",
    "inside",
    "nothing",
    "first",
    "end",
    "range",
    "query",
    "key",
    "value",
    "store",
    "length",
    "main",
    "exp",
    "log",
    "sin",
    "cos",
    "min",
    "max",
    "abs",
    "floor",
    "round",
    "threadIdx",
    "blockIdx",
    "gridDim",
    "blockDim",
    "warpSize",
    "linux",
    "unix",
    "graphc",
];

/// Functions of C's library that compilers declare as C, so that no kernel can have their names.
const C_FUNCTIONS: &[&str] = &[
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "clock", "cos", "cosh", "erf", "erfc",
    "exp", "exp2", "expm1", "fabs", "floor", "fma", "fmax", "fmin", "fmod", "free", "log", "log10", "log1p", "log2",
    "malloc", "max", "min", "pow", "printf", "rint", "round", "rsqrt", "signbit", "sin", "sinh", "sqrt", "tan", "tanh",
    "trunc",
];

/// The name of a kernel's function: the kernel's own, unless the language or the library has one of that name.
pub fn entry(kernel: &str) -> String {
    if RESERVED.contains(&kernel) || C_FUNCTIONS.contains(&kernel) {
        format!("{kernel}_kernel")
    } else {
        kernel.to_owned()
    }
}

/// Hands out identifiers that are not taken.
#[derive(Clone, Default)]
pub struct Namer {
    taken: BTreeSet<String>,
}

impl Namer {
    /// Returns `wanted` made an identifier, numbered when it is taken.
    pub fn unique(&mut self, wanted: &str) -> String {
        let mut base: String = wanted
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' })
            .collect();
        if base.is_empty() || base.starts_with(|c: char| c.is_ascii_digit()) {
            base.insert(0, '_');
        }
        // Double underscores and a leading one with a capital are the compiler's.
        while base.contains("__") {
            base = base.replace("__", "_");
        }
        if base.starts_with('_') {
            base.insert(0, 'v');
        }
        if !RESERVED.contains(&base.as_str()) && self.taken.insert(base.clone()) {
            return base;
        }
        let mut n = 1;
        loop {
            let numbered = format!("{base}_{n}");
            if self.taken.insert(numbered.clone()) {
                return numbered;
            }
            n += 1;
        }
    }

    /// Returns `base_0`, `base_1`, … : the first that is free.
    pub fn numbered(&mut self, base: &str) -> String {
        let mut n = 0;
        loop {
            let name = format!("{base}_{n}");
            if self.taken.insert(name.clone()) {
                return name;
            }
            n += 1;
        }
    }
}
