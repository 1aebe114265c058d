//! The text of generated kernels, looked at without a compiler.

use graphc::driver::{BuildOptions, build};
use graphc::passes::OptLevel;
use graphc_tests::random_graph::{Step, case};

/// In each block of braces every local is declared once. (A compiler says so too, but only of the graphs it is given.)
#[test]
fn no_name_is_declared_twice_in_a_scope() {
    let mut state = 11u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u16
    };
    let cases = if graphc_tests::everything() { 2000 } else { 400 };
    let (mut kernels, mut locals) = (0, 0);
    let mut wrong = Vec::new();
    for number in 0..cases {
        let steps: Vec<Step> = (0..6).map(|_| std::array::from_fn(|_| random())).collect();
        let case = case(number as u16 * 5, &steps);
        for name in ["gfx90a", "gfx1100", "sm_90"] {
            let options = BuildOptions::new(vec![name.parse().expect("known")], OptLevel::O2);
            let program = build(&case.graph, &options).expect("builds").program;
            for source in program.variants[0].sources.values() {
                kernels += 1;
                match declared_twice(&source.text) {
                    Ok(found) => locals += found,
                    Err(local) => wrong.push(format!("{local} for {name}:\n{}", source.text)),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} kernels, the first:\n{}", wrong.len(), wrong[0]);
    assert!(
        locals > kernels,
        "{kernels} kernels have {locals} locals: the scan finds none"
    );
}

/// Counts the locals of a text; or names one that its scope has already.
fn declared_twice(text: &str) -> Result<usize, String> {
    let mut scopes: Vec<Vec<&str>> = vec![Vec::new()];
    let mut count = 0;
    for line in text.lines().map(str::trim) {
        let code = line.split("//").next().unwrap_or_default().trim_end();
        // A line closes at its start and opens at its end: `} else {`. What a `for` declares is of the block it opens.
        if code.starts_with('}') {
            scopes.pop();
        }
        if code.ends_with('{') {
            scopes.push(Vec::new());
        }
        if let Some(name) = declared(code) {
            let scope = scopes.last_mut().ok_or_else(|| format!("braces at {line:?}"))?;
            if scope.contains(&name) {
                return Err(name.to_owned());
            }
            scope.push(name);
            count += 1;
        }
    }
    Ok(count)
}

/// The name that a line declares: `const int at_0 = …;`, `float sum_0 = …;`, `for (int i = …) {`,
/// `Vec<float, 4> v_wide;`.
fn declared(code: &str) -> Option<&str> {
    let code = code.strip_prefix("for (").unwrap_or(code);
    let code = code.strip_prefix("__shared__ ").unwrap_or(code);
    let code = code.strip_prefix("const ").unwrap_or(code);
    let end = code.find(" = ").or_else(|| code.strip_suffix(';').map(str::len))?;
    let (kind, name) = code[..end].rsplit_once(' ')?;
    let word = |s: &str| !s.is_empty() && s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_type = word(kind) || kind.starts_with("Vec<");
    (is_type && kind != "return" && word(name)).then_some(name)
}

#[test]
fn the_scan_sees_what_it_is_for() {
    let text = "f() {\n  const int at_0 = 1;\n  for (int i = 0; i < 2; ++i) {\n    const int at_0 = 2;\n  }\n  {\n    float x;\n  }\n}";
    assert_eq!(declared_twice(text), Ok(4));
    let twice = text.replace("float x;", "float x;\n    const float x = 2.0f;");
    assert_eq!(declared_twice(&twice), Err("x".to_owned()));
    let outside = text.replace("  {\n    float x;\n  }", "  const i64 at_0 = 3;");
    assert_eq!(declared_twice(&outside), Err("at_0".to_owned()));
}
