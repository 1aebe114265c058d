//! No circle of files ties two of a crate's modules: what one and another need of each other lies in a third.
//!
//! Files are read by `syn`: every path that starts at `crate`, `super`, `self` or a module in sight is followed,
//! through re-exports, to the file that it ends in. Tests and what macros expand to are not read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use graphc_tests::repository;
use syn::visit::Visit;

/// What a graph's ops and a library's calls say of each other is one definition in two files: an op may be a call, and
/// a call carries out an op.
const MUTUAL: [[&str; 2]; 1] = [["graph/op", "library"]];

type Module = Vec<String>;

/// A file's paths as written, and those that it hands on under a name.
#[derive(Default)]
struct Paths {
    uses: BTreeSet<Vec<String>>,
    exports: Vec<(String, Vec<String>)>,
    defines: BTreeSet<String>,
}

impl Paths {
    fn tree(&mut self, prefix: &[String], tree: &syn::UseTree, exported: bool) {
        let with = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
        let (path, name) = match tree {
            syn::UseTree::Path(path) => return self.tree(&with(&path.ident), &path.tree, exported),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.tree(prefix, tree, exported));
                return;
            }
            syn::UseTree::Glob(_) => (prefix.to_vec(), "*".to_owned()),
            syn::UseTree::Name(name) if name.ident == "self" => {
                (prefix.to_vec(), prefix.last().cloned().unwrap_or_default())
            }
            syn::UseTree::Name(name) => (with(&name.ident), name.ident.to_string()),
            syn::UseTree::Rename(rename) => (with(&rename.ident), rename.rename.to_string()),
        };
        if exported {
            self.exports.push((name, path));
        } else {
            self.uses.insert(path);
        }
    }
}

impl<'a> Visit<'a> for Paths {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if let Some(name) = match item {
            syn::Item::Struct(i) => Some(&i.ident),
            syn::Item::Enum(i) => Some(&i.ident),
            syn::Item::Trait(i) => Some(&i.ident),
            syn::Item::Type(i) => Some(&i.ident),
            syn::Item::Const(i) => Some(&i.ident),
            syn::Item::Static(i) => Some(&i.ident),
            syn::Item::Fn(i) => Some(&i.sig.ident),
            _ => None,
        } {
            self.defines.insert(name.to_string());
        }
        let of_tests = |attributes: &[syn::Attribute]| {
            let cfg = attributes.iter().filter(|a| a.path().is_ident("cfg"));
            cfg.filter_map(|a| a.meta.require_list().ok())
                .any(|list| list.tokens.to_string().starts_with("test"))
        };
        match item {
            syn::Item::Mod(module) if of_tests(&module.attrs) => {}
            syn::Item::Use(item) if of_tests(&item.attrs) => {}
            syn::Item::Use(item) => self.tree(&[], &item.tree, !matches!(item.vis, syn::Visibility::Inherited)),
            item => syn::visit::visit_item(self, item),
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.segments.len() > 1 {
            self.uses
                .insert(path.segments.iter().map(|s| s.ident.to_string()).collect());
        }
        syn::visit::visit_path(self, path);
    }
}

/// Reads the files of a crate, by module.
fn read(source: &Path) -> BTreeMap<Module, Paths> {
    let mut files = BTreeMap::new();
    let mut folders = vec![(source.to_owned(), Module::new())];
    while let Some((folder, module)) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("readable").path();
            let stem = path
                .file_stem()
                .and_then(|s| s.to_str())
                .expect("a name in UTF-8")
                .to_owned();
            let inner = [&module[..], std::slice::from_ref(&stem)].concat();
            if stem.contains("test") {
                continue;
            } else if path.is_dir() {
                folders.push((path, inner));
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).expect("readable");
                let file = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                let mut paths = Paths::default();
                paths.visit_file(&file);
                let own = ["mod", "lib", "main"].contains(&stem.as_str());
                files.insert(if own { module.clone() } else { inner }, paths);
            }
        }
    }
    files
}

/// Returns the file that a path ends in, seen from a module; `None` where it leaves the crate.
fn resolve(files: &BTreeMap<Module, Paths>, from: &Module, path: &[String], depth: usize) -> Option<Module> {
    let mut at = from.clone();
    let mut rest = path;
    let mut rooted = false;
    while let [first, more @ ..] = rest {
        match first.as_str() {
            "crate" => at.clear(),
            "super" => drop(at.pop()),
            "self" => {}
            _ => break,
        }
        (rest, rooted) = (more, true);
    }
    while let [first, more @ ..] = rest {
        let inner = [&at[..], std::slice::from_ref(first)].concat();
        if !files.contains_key(&inner) {
            break;
        }
        (at, rest, rooted) = (inner, more, true);
    }
    let [first, more @ ..] = rest else {
        return rooted.then_some(at);
    };
    let file = files.get(&at)?;
    if depth < 8 && (rooted || at == *from) {
        for (name, to) in &file.exports {
            let to = if name == first {
                [to, more].concat()
            } else if name == "*" {
                [to, rest].concat()
            } else {
                continue;
            };
            if let Some(found) = resolve(files, &at, &to, depth + 1)
                && (name != "*" || files[&found].defines.contains(first))
            {
                return Some(found);
            }
        }
    }
    rooted.then_some(at)
}

/// Returns the circles that tie two modules, each with what ties it.
fn circles(files: &BTreeMap<Module, Paths>) -> Vec<String> {
    let mut edges: BTreeMap<&Module, BTreeMap<Module, String>> = BTreeMap::new();
    for (module, paths) in files {
        for path in &paths.uses {
            // A crate's root only names its modules.
            if let Some(to) = resolve(files, module, path, 0)
                && to != *module
                && !to.is_empty()
                && !module.is_empty()
                && !MUTUAL.contains(&[&*module.join("/"), &*to.join("/")])
            {
                edges
                    .entry(module)
                    .or_default()
                    .entry(to)
                    .or_insert_with(|| path.join("::"));
            }
        }
    }
    let reach = |from: &Module| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            for to in edges.get(at).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(to) {
                    open.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = files.keys().map(|m| (m, reach(m))).collect();
    let mut told = BTreeSet::new();
    let mut found = Vec::new();
    for (module, reaches) in &reached {
        let circle: Vec<&Module> = reaches
            .iter()
            .copied()
            .filter(|m| reached[m].contains(module))
            .collect();
        if circle.is_empty() || !told.insert(circle.clone()) {
            continue;
        }
        // Within one of the crate's modules, or among the files beside its root.
        let one = circle.iter().all(|m| m[0] == module[0]);
        let beside = circle.iter().all(|m| m.len() == 1);
        if !one && !beside {
            let ties = circle.iter().flat_map(|a| {
                let ties = edges.get(a).into_iter().flatten();
                ties.filter(|(to, _)| circle.contains(to))
                    .map(|(to, path)| format!("  {} -> {}: {path}", a.join("/"), to.join("/")))
            });
            found.push(ties.collect::<Vec<_>>().join("\n"));
        }
    }
    found
}

#[test]
fn no_circle_of_files_ties_two_modules() {
    let mut found = Vec::new();
    for member in ["ir", "frontend", "passes", "codegen-hip", "runtime", "graphc"] {
        let files = read(&repository(member).join("src"));
        assert!(files.len() > 10 || member == "codegen-hip", "{member} is read");
        found.extend(circles(&files).into_iter().map(|circle| format!("{member}:\n{circle}")));
    }
    assert!(found.is_empty(), "circles of files:\n{}", found.join("\n"));
}

/// A planted circle through a re-export is seen, one within a folder is not.
#[test]
fn a_circle_is_seen() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    write("lib.rs", "mod a; mod b; pub use a::part::Named;");
    write("a/mod.rs", "pub mod part; pub mod other;");
    write("a/part.rs", "use super::other::Other; pub struct Named(Other);");
    write("a/other.rs", "use super::part::Named; pub struct Other(Box<Named>);");
    write("b/mod.rs", "pub mod inner;");
    write("b/inner.rs", "pub fn f() {}");
    assert_eq!(circles(&read(folder.path())), Vec::<String>::new());
    write("a/other.rs", "pub fn g() { crate::b::inner::f() }");
    write("b/inner.rs", "use crate::Named; pub fn f() {}");
    let found = circles(&read(folder.path()));
    assert_eq!(
        found,
        [
            "  a/other -> b/inner: crate::b::inner::f\n  a/part -> a/other: super::other::Other\n  b/inner -> a/part: crate::Named"
        ]
    );
}
