//! Which convolutions are computed by Winograd's filtering, and that such plans mean the same.

use ir::graph::{Constant, Graph};
use ir::kernel::{Body, Winograd};
use ir::plan::eval;
use ir::{ConstId, Table};

use crate::lower::winograd::Filtering;
use crate::plan::{PlanOptions, Planned};
use crate::testing;

fn planned(target: &str, body: &str, filtering: Filtering) -> (Graph, Planned) {
    let options = PlanOptions {
        filtering,
        ..PlanOptions::default()
    };
    testing::planned(target, body, &options)
}

/// A convolution by constant filters of `taps` by `taps`.
fn conv(ty: &str, [n, size, channels, filters]: [i64; 4], taps: i64, attributes: &str) -> String {
    format!(
        "x = input \"x\" : {ty}[{n}, {size}, {size}, {channels}]\n \
         w = constant random(seed=3) : {ty}[{filters}, {taps}, {taps}, {channels}]\n \
         y = conv x, w {{channels_last{attributes}}}\n return y as \"y\""
    )
}

const PADDED: &str = ", pad_low=[1, 1], pad_high=[1, 1]";

fn is_filtered(planned: &Planned) -> bool {
    let is = planned
        .plan
        .kernels
        .values()
        .any(|k| matches!(k.body, Body::Transform(_)));
    assert_eq!(is, planned.filtered.iter().any(|f| f.taken));
    assert_eq!(is, !planned.constants.is_empty());
    is
}

/// Plans mean what their graphs do, but for the rounding of what is stored between the launches.
#[test]
fn plans_mean_the_same() {
    let follows = [
        "return p as \"y\"",
        "y = relu p\n return y as \"y\"",
        "r = input \"r\" : f32[N, H, W, K]\n s = add p, r\n y = relu s\n return y as \"y\"\n return p as \"p\"",
    ];
    let cases = [
        ([1, 8, 8, 4, 8], [[1, 1], [1, 1]], ""),
        ([2, 7, 5, 3, 2], [[1, 1], [1, 1]], ", b"),
        ([3, 1, 1, 2, 5], [[1, 1], [1, 1]], ", b"),
        ([1, 9, 3, 1, 1], [[0, 0], [0, 0]], ""),
        ([1, 3, 6, 5, 3], [[2, 0], [1, 3]], ", b"),
    ];
    for (number, ([n, h, w, c, k], [[top, bottom], [left, right]], bias)) in cases.into_iter().enumerate() {
        for winograd in Winograd::ALL {
            let sizes = [
                ("N", n),
                ("H", h + top + bottom - 2),
                ("W", w + left + right - 2),
                ("K", k),
            ];
            let follow = sizes.iter().fold(follows[number % 3].to_owned(), |text, (name, size)| {
                text.replace(&format!("[{name},"), &format!("[{size},"))
                    .replace(&format!(" {name},"), &format!(" {size},"))
                    .replace(&format!(" {name}]"), &format!(" {size}]"))
            });
            let body = format!(
                "x = input \"x\" : f32[{n}, {h}, {w}, {c}]\n f = constant random(seed=3) : f32[{k}, 3, 3, {c}]\n \
                 b = constant random(seed=4) : f32[{k}]\n \
                 p = conv x, f{bias} {{channels_last, pad_low=[{top}, {left}], pad_high=[{bottom}, {right}]}}\n {follow}"
            );
            let graph = testing::graph(&body);
            let inputs = testing::inputs(&graph);
            let want = ir::graph::eval::evaluate(&graph, &inputs).expect("evaluates");
            let (core, planned) = planned("gfx1100", &body, Filtering::Always(winograd));
            assert!(is_filtered(&planned), "{body}\n{}", planned.plan);
            assert_eq!(planned.plan.launches().0, 3, "{}", planned.plan);
            let mut constants: Table<ConstId, Constant> = core.constants().clone();
            planned.constants.iter().for_each(|c| {
                constants.push(c.clone());
            });
            let got = eval::evaluate(&planned.plan, &constants, &inputs).expect("evaluates");
            for (name, want) in &want {
                let (got, want) = (got[name].to_f64(), want.to_f64());
                let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-4 * (1.0 + b.abs());
                assert!(got.iter().zip(&want).all(close), "{body}\n{}", planned.plan);
            }
        }
    }
}

/// What the model has of the filters is read by nothing, and is no constant of the plan.
#[test]
fn filters_are_stored_once() {
    let (_, planned) = planned(
        "gfx1100",
        &conv("f32", [1, 8, 16, 16], 3, PADDED),
        Filtering::Always(Winograd::F4),
    );
    let constants = planned.plan.buffers.values().filter(|b| b.place.constant().is_some());
    let names: Vec<&str> = constants.map(|b| b.name.as_str()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    let filters = &planned.constants[0].tensor;
    assert_eq!(filters.shape, [36, 16, 16]);
}

#[test]
fn many_channels_are_filtered_where_multiply_adds_bound_them() {
    for (target, sizes) in [
        ("gfx1100", [8, 14, 512, 512]),
        ("gfx1100", [32, 28, 128, 128]),
        ("gfx1201", [32, 14, 256, 256]),
        ("gfx90a", [32, 14, 256, 256]),
    ] {
        let (_, planned) = planned(target, &conv("f32", sizes, 3, PADDED), Filtering::Fastest);
        assert!(is_filtered(&planned), "{target} {sizes:?}: {:?}", planned.filtered);
    }
}

/// As exporters write it: the layout pass brings the channels last, and the filters with them.
#[test]
fn convolutions_with_channels_first_are_filtered_too() {
    let body = "x = input \"x\" : f32[8, 512, 14, 14]\n w = constant random(seed=3) : f32[512, 512, 3, 3]\n \
                b = constant random(seed=4) : f32[512]\n c = conv x, w, b {pad_low=[1, 1], pad_high=[1, 1]}\n \
                y = relu c\n return y as \"y\"";
    for target in ["gfx90a", "gfx1100"] {
        let (_, planned) = planned(target, body, Filtering::Fastest);
        assert!(is_filtered(&planned), "{target}: {}", planned.plan);
    }
}

/// Memory for patches has a bound, whatever would be faster.
#[test]
fn patches_of_huge_images_have_no_memory() {
    let (_, planned) = planned(
        "gfx1100",
        &conv("f32", [64, 112, 128, 128], 3, PADDED),
        Filtering::Fastest,
    );
    assert!(!is_filtered(&planned), "{:?}", planned.filtered);
}

#[test]
fn other_convolutions_are_not_filtered() {
    let many = [8, 14, 512, 512];
    let cases = [
        ("one tap", conv("f32", many, 1, "")),
        ("strides", conv("f32", many, 3, ", strides=[2, 2]")),
        ("dilations", conv("f32", many, 3, ", dilations=[2, 2]")),
        (
            "groups",
            conv("f32", many, 3, ", groups=8").replace("3, 3, 512]", "3, 3, 64]"),
        ),
        ("f16", conv("f16", many, 3, PADDED)),
        ("bf16", conv("bf16", many, 3, PADDED)),
        (
            "filters that the run gives",
            conv("f32", many, 3, PADDED).replace("constant random(seed=3)", "input \"w\""),
        ),
    ];
    for filtering in [Filtering::Fastest, Filtering::Always(Winograd::F4)] {
        for (what, body) in &cases {
            let (_, planned) = planned("gfx1100", body, filtering);
            assert!(!is_filtered(&planned), "{what}: {}", planned.plan);
        }
    }
    // What could be, but does not pay.
    for (what, sizes) in [
        ("few channels", [8, 56, 16, 16]),
        ("few filters", [8, 56, 512, 8]),
        ("a small image", [1, 4, 128, 128]),
    ] {
        let (_, planned) = planned("gfx1100", &conv("f32", sizes, 3, PADDED), Filtering::Fastest);
        assert!(!is_filtered(&planned), "{what}: {:?}", planned.filtered);
    }
    // The CPU has kernels of its own.
    let (_, planned) = planned("cpu", &conv("f32", many, 3, PADDED), Filtering::Always(Winograd::F4));
    assert!(!is_filtered(&planned));
    let (_, planned) = planned_never();
    assert!(!is_filtered(&planned) && planned.filtered.is_empty());
}

fn planned_never() -> (Graph, Planned) {
    planned("gfx1100", &conv("f32", [8, 14, 512, 512], 3, PADDED), Filtering::Never)
}
