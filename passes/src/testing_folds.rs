//! Rules that fold what is known into convolutions, pools, views and positions: where they fire, and near misses.

use crate::testing::check_rules;

#[test]
fn windows_pad_themselves() {
    const X: &str = "x = input \"x\" : f32[1, 2, 7, 7]\nw = constant random(seed=1) : f32[4, 2, 3, 3]\n";
    let conv = |pad: &str| {
        format!(
            "{X}p = pad x {{low=[0, 0, 0, 1], high=[0, 0, 1, 1]{pad}}}\ny = conv p, w {{strides=[2, 2]}}\nreturn y as \"y\""
        )
    };
    let pool = |pad: &str, pool: &str| {
        format!(
            "{X}p = pad x {{low=[0, 0, 1, 0], high=[0, 0, 1, 2]{pad}}}\ny = pool p {{{pool}, size=[3, 3]}}\nreturn y as \"y\""
        )
    };
    check_rules(&[
        ("pad_into_window", &conv(""), &conv(", mode=constant(1.0)")),
        ("pad_into_window", &conv(""), &conv(", mode=edge")),
        (
            "pad_into_window",
            &pool(", mode=constant(-inf)", "kind=max"),
            &pool("", "kind=max"),
        ),
        (
            "pad_into_window",
            &pool("", "kind=average"),
            &pool("", "kind=average, pad_low=[1, 1], pad_high=[0, 0]"),
        ),
    ]);
}

#[test]
fn branches_are_one_convolution() {
    let with = |groups: usize, other: &str| {
        let inner = 4 / groups;
        format!(
            "x = input \"x\" : f32[2, 4, 7, 6]\nw = constant random(seed=1) : f32[4, {inner}, 3, 3]\n\
             c = constant random(seed=2) : f32[4]\nd = constant [0.5, 1.0, 2.0, 3.0] : f32[4]\n\
             v = constant random(seed=3) : f32[4, {inner}, 1, 1]\nq = constant random(seed=4) : f32[4, 4, 1, 3]\n\
             a = conv x, w, c {{pad_low=[1, 1], pad_high=[1, 1], groups={groups}}}\n{other}\nreturn y as \"y\""
        )
    };
    let rule = "parallel_convs";
    let point = |groups: usize| format!("b = conv x, v {{groups={groups}}}\ny = add a, b");
    let row = "b = conv x, q, d {pad_low=[0, 1], pad_high=[0, 1]}\ny = add b, a";
    let norm = "b = batch_norm x, c, c, c, d {epsilon=0.001}\ny = add a, b";
    check_rules(&[
        // A convolution of another input; one whose taps lie outside; one that is read elsewhere.
        (
            rule,
            &with(1, &point(1)),
            &with(1, "e = exp x\nb = conv e, v\ny = add a, b"),
        ),
        (
            rule,
            &with(4, &point(4)),
            &with(4, "b = conv x, v {groups=4}\ny0 = add a, b\ny = mul y0, b"),
        ),
        (
            rule,
            &with(2, &format!("{}\nz = add y, x", norm)),
            &with(
                2,
                "b = conv x, w {pad_low=[2, 0], pad_high=[0, 2], groups=2}\ny = add a, b",
            ),
        ),
        // Groups of the one within those of the other, and a channel by itself.
        (rule, &with(1, row), &with(2, row)),
        (rule, &with(1, norm), &with(1, "y = add a, x")),
        (rule, &with(4, "y = add a, x"), &with(2, "y = add x, a")),
    ]);
}

#[test]
fn positions_fold() {
    check_rules(&[
        (
            "uniform_index",
            "symbol s: 1.. hint 5\nx = input \"x\" : f32[s]\ni = iota {axis=0} : i64[s]\nz = constant [0] : i64[]\nc = ge i, z\nn = neg x\ny = select c, x, n\nreturn y as \"y\"",
            "symbol s: 1.. hint 5\nx = input \"x\" : f32[s]\ni = iota {axis=0} : i64[s]\nz = constant [1] : i64[]\nc = ge i, z\nn = neg x\ny = select c, x, n\nreturn y as \"y\"",
        ),
        (
            "gather_by_position",
            "symbol s: 1..8 hint 5\nb = input \"b\" : f32[s]\nt = input \"t\" : f32[8, 3]\ni = iota {axis=0} : i64[s]\ny = take t, i {axis=0}\nreturn y as \"y\"",
            // Beyond the table an index is clamped, which a slice would not do.
            "symbol s: 1..9 hint 5\nb = input \"b\" : f32[s]\nt = input \"t\" : f32[8, 3]\ni = iota {axis=0} : i64[s]\ny = take t, i {axis=0}\nreturn y as \"y\"",
        ),
        (
            "scatter_by_position",
            // An open block of rows, one column of which is kept; two of three neighbours.
            "symbol s: 2..8 hint 5\nx = input \"x\" : f32[s, 3]\nu = input \"u\" : f32[s, 2]\none = constant [1] : i64[]\ni = iota {axis=0} : i64[s, 2, 1]\nj0 = iota {axis=1} : i64[s, 2, 1]\nj = add j0, one\nij = concat i, j {axis=2}\ny = scatter_nd x, ij, u\nreturn y as \"y\"",
            // The last index is outside.
            "symbol s: 2..8 hint 5\nx = input \"x\" : f32[s, 3]\nu = input \"u\" : f32[s, 3]\none = constant [1] : i64[]\ni = iota {axis=0} : i64[s, 3, 1]\nj0 = iota {axis=1} : i64[s, 3, 1]\nj = add j0, one\nij = concat i, j {axis=2}\ny = scatter_nd x, ij, u\nreturn y as \"y\"",
        ),
        (
            "scatter_by_position",
            "x = input \"x\" : f32[7, 4]\nu = input \"u\" : f32[3, 4]\ntwo = constant [2] : i64[]\ni0 = iota {axis=0} : i64[3, 1]\ni = mul i0, two\ny = scatter_nd x, i, u {reduce=max}\nreturn y as \"y\"",
            "x = input \"x\" : f32[7, 4]\nu = input \"u\" : f32[3, 4]\ni = constant [0, 4, 2] : i64[3, 1]\ny = scatter_nd x, i, u {reduce=max}\nreturn y as \"y\"",
        ),
        (
            "scatter_by_position",
            // One of two neighbours: the last, of one at least, is cut short.
            "symbol s: 1..3 hint 2\nx = input \"x\" : f32[5]\nu = input \"u\" : f32[s]\ntwo = constant [2] : i64[]\ni0 = iota {axis=0} : i64[s, 1]\ni = mul i0, two\ny = scatter_nd x, i, u\nreturn y as \"y\"",
            "symbol s: 0..3 hint 2\nx = input \"x\" : f32[5]\nu = input \"u\" : f32[s]\ntwo = constant [2] : i64[]\ni0 = iota {axis=0} : i64[s, 1]\ni = mul i0, two\ny = scatter_nd x, i, u\nreturn y as \"y\"",
        ),
        (
            "scatter_by_position",
            // Counted from the end, two a group of which the last is cut short, in the other order of axes.
            "x = input \"x\" : f32[5, 6]\nu = input \"u\" : f32[5, 3]\nu1 = transpose u {perm=[1, 0]}\ni = iota {axis=1} : i64[3, 5, 1]\nj0 = iota {axis=0} : i64[3, 5, 1]\ntwo = constant [2] : i64[]\nfive = constant [5] : i64[]\nj1 = mul j0, two\nj = sub j1, five\nij = concat i, j {axis=2}\ny = scatter_nd x, ij, u1\nreturn y as \"y\"",
            "x = input \"x\" : f32[5, 6]\nu = input \"u\" : f32[5]\ni = iota {axis=0} : i64[5, 1]\nij = concat i, i {axis=1}\ny = scatter_nd x, ij, u\nreturn y as \"y\"",
        ),
    ]);
}
