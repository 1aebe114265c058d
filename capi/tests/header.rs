//! The header says what the sources export.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header() -> String {
    std::fs::read_to_string(folder().join("include/graphc.h")).expect("the header is there")
}

/// The text of a type as C has it, with what it points to.
fn in_c(ty: &syn::Type) -> String {
    match ty {
        syn::Type::Ptr(pointer) => {
            let to = in_c(&pointer.elem);
            match (pointer.const_token.is_some(), to.ends_with('*')) {
                (true, true) => format!("{to}const *"),
                (true, false) => format!("const {to} *"),
                (false, true) => format!("{to}*"),
                (false, false) => format!("{to} *"),
            }
        }
        syn::Type::Path(path) => {
            let name = path.path.segments.last().expect("a name").ident.to_string();
            let known = match name.as_str() {
                "c_char" => "char",
                "c_void" => "void",
                "usize" => "size_t",
                "i32" => "int32_t",
                "i64" => "int64_t",
                "u32" => "uint32_t",
                _ => "",
            };
            match known {
                "" => name,
                known => known.to_owned(),
            }
        }
        _ => panic!("the interface has pointers and names only"),
    }
}

/// Exported functions and constants of the sources, as C declares them.
fn exported() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder().join("src")).expect("sources") {
        let path = entry.expect("readable").path();
        let file = syn::parse_file(&std::fs::read_to_string(&path).expect("a source")).expect("Rust");
        for item in file.items {
            match item {
                syn::Item::Fn(function)
                    if function.sig.abi.is_some() && function.sig.ident.to_string().starts_with("graphc_") =>
                {
                    let arguments = function.sig.inputs.iter().map(|argument| match argument {
                        syn::FnArg::Typed(typed) => {
                            let syn::Pat::Ident(name) = &*typed.pat else {
                                panic!("a name")
                            };
                            let ty = in_c(&typed.ty);
                            let gap = if ty.ends_with('*') { "" } else { " " };
                            format!("{ty}{gap}{}", name.ident)
                        }
                        syn::FnArg::Receiver(_) => panic!("no method"),
                    });
                    let mut arguments = arguments.collect::<Vec<_>>().join(", ");
                    if arguments.is_empty() {
                        arguments = "void".to_owned();
                    }
                    let result = match &function.sig.output {
                        syn::ReturnType::Default => "void ".to_owned(),
                        syn::ReturnType::Type(_, ty) => {
                            let ty = in_c(ty);
                            if ty.ends_with('*') { ty } else { ty + " " }
                        }
                    };
                    let name = function.sig.ident.to_string();
                    found.insert(name.clone(), format!("{result}{name}({arguments});"));
                }
                syn::Item::Const(constant) if constant.ident.to_string().starts_with("GRAPHC_") => {
                    let syn::Expr::Lit(syn::ExprLit {
                        lit: syn::Lit::Int(value),
                        ..
                    }) = *constant.expr
                    else {
                        panic!("{} is a number", constant.ident);
                    };
                    let name = constant.ident.to_string();
                    found.insert(name.clone(), format!("#define {name} {}", value.base10_digits()));
                }
                _ => {}
            }
        }
    }
    found
}

/// Declarations with a blank where there is any space.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_function_and_constant_is_declared_as_it_is() {
    let text = plain(&header().replace("struct ", ""));
    let exported = exported();
    assert!(exported.len() > 60, "{} are exported", exported.len());
    let missing: Vec<&String> = exported.values().filter(|declared| !text.contains(*declared)).collect();
    assert!(
        missing.is_empty(),
        "run scripts/header.sh; the header lacks {missing:#?}"
    );
    let code: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let calls = header()
        .lines()
        .filter(|line| !line.starts_with("//") && line.contains('('))
        .count();
    let functions = exported.keys().filter(|name| name.starts_with("graphc_")).count();
    // Beside them there is the type of the function that lets memory go.
    assert_eq!(calls, functions + 1, "the header declares what there is not");
    assert!(code.contains(&"GRAPHC_H"));
}

#[test]
fn the_header_is_as_cbindgen_makes_it() {
    if Command::new("cbindgen").arg("--version").output().is_err() {
        println!("skipped: optional: cbindgen is not installed");
        return;
    }
    let made: PathBuf = tempfile::tempdir().expect("a folder").keep().join("graphc.h");
    let status = Command::new(folder().join("../scripts/header.sh"))
        .arg(&made)
        .status()
        .expect("it starts");
    assert!(status.success());
    let same = std::fs::read_to_string(&made).expect("made") == header();
    std::fs::remove_dir_all(made.parent().expect("a folder")).expect("removed");
    assert!(same, "run scripts/header.sh");
}
