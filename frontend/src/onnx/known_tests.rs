use ir::dim::{Symbol, SymbolInfo};

use super::*;

fn sizes() -> Sizes {
    let info = SymbolInfo {
        min: 1,
        max: Some(512),
        hint: 8,
    };
    Sizes {
        symbols: ["b", "s"].iter().map(|n| (Symbol::new(n), info)).collect(),
        ..Sizes::default()
    }
}

fn dim(text: &str) -> Dim {
    text.parse::<i64>().map_or_else(|_| Dim::symbol(text), Dim::Const)
}

fn vector(texts: &[&str]) -> Known {
    Known::vector(texts.iter().map(|t| dim(t)).collect())
}

fn show(known: &Known) -> Vec<String> {
    known.dims().unwrap().iter().map(ToString::to_string).collect()
}

/// The TorchScript exporter's idiom for `expand(-1, …)`: `Where(Equal(shape, Mul(ones, -1)), ones, shape)`.
#[test]
fn a_shape_with_minus_one_is_replaced_by_ones() {
    let sizes = sizes();
    let shape = vector(&["b", "-1", "s"]);
    let ones = vector(&["1"]).broadcast(&[3]).unwrap();
    let minus = Known::binary(BinaryOp::Mul, &ones, &Known::scalar(Dim::Const(-1)), &sizes).unwrap();
    let equal = Known::binary(BinaryOp::Eq, &shape, &minus, &sizes).unwrap();
    assert_eq!((equal.dtype, equal.ints().unwrap()), (DType::Bool, vec![0, 1, 0]));
    assert_eq!(show(&Known::choose(&equal, &ones, &shape).unwrap()), ["b", "1", "s"]);
}

#[test]
fn comparisons_are_decided_by_bounds_or_not_at_all() {
    let sizes = sizes();
    let (s, b) = (dim("s"), dim("b"));
    assert_eq!(decide(Comparison::Gt, &s, &Dim::Const(0), &sizes), Some(true));
    assert_eq!(decide(Comparison::Lt, &s, &Dim::Const(513), &sizes), Some(true));
    assert_eq!(decide(Comparison::Ge, &s, &Dim::Const(2), &sizes), None);
    assert_eq!(decide(Comparison::Eq, &s, &b, &sizes), None);
    assert_eq!(decide(Comparison::Le, &s, &(s.clone() + 1), &sizes), Some(true));
    assert_eq!(
        decide(Comparison::Ne, &Dim::Const(i64::MAX), &Dim::Const(i64::MIN), &sizes),
        Some(true)
    );
}

#[test]
fn division_of_sizes_floors_and_keeps_exact_quotients() {
    let sizes = sizes();
    let div = |a: Dim, b: i64| binary_dim(BinaryOp::Div, &a, &Dim::Const(b), DType::I64, &sizes);
    assert_eq!(div(dim("s") * 64, 4), Some(dim("s") * 16));
    assert_eq!(div(dim("s") + 1, 2).unwrap().to_string(), "div(s + 1, 2)");
    assert_eq!(div(Dim::Const(-7), 2), Some(Dim::Const(-3)), "integers truncate");
    assert_eq!(div(Dim::Const(7), 0), None);
    // Where the sign is not known, both ways of rounding are in the quotient.
    let quotient = div(dim("s") - 5, 2).unwrap();
    for s in 1..20 {
        let at = ir::dim::Bindings::from_iter([(Symbol::new("s"), s)]);
        assert_eq!(quotient.eval(&at), Ok((s - 5) / 2), "{quotient} at {s}");
    }
    assert_eq!(div(dim("s"), 0), None);
    assert_eq!(div(Dim::Const(i64::MIN), -1), None);
}

/// A file of a few nodes could ask for a size of gigabytes.
#[test]
fn sizes_that_multiply_too_often_are_not_known() {
    let sizes = sizes();
    let mut t = dim("b") + &dim("s");
    let squares = (0..30).take_while(|_| match binary_dim(BinaryOp::Mul, &t, &t, DType::I64, &sizes) {
        Some(next) => {
            t = next;
            true
        }
        None => false,
    });
    assert_eq!(squares.count(), 4);
    let mut t = dim("b");
    let nested = (0..90i64).take_while(|i| {
        let part = binary_dim(BinaryOp::Div, &(t.clone() + *i), &dim("s"), DType::I64, &sizes);
        match part.and_then(|p| binary_dim(BinaryOp::Max, &t, &(p + "b"), DType::I64, &sizes)) {
            Some(next) => {
                t = next;
                true
            }
            None => false,
        }
    });
    assert!(nested.count() < 90);
    let row = vector(&["b", "s", "b", "s"]);
    let row = Known::binary(BinaryOp::Add, &row, &Known::scalar(dim("b") + &dim("s") + 1), &sizes).unwrap();
    assert!(row.reduce(ReduceOp::Prod, &[0], false, &sizes).is_some());
}

#[test]
fn arithmetic_that_would_wrap_is_not_folded() {
    let sizes = sizes();
    let byte = Known {
        dtype: DType::U8,
        shape: vec![],
        elements: vec![Element::Dim(Dim::Const(200))],
    };
    assert_eq!(Known::binary(BinaryOp::Add, &byte, &byte, &sizes), None);
    let big = Known::scalar(Dim::Const(i64::MAX));
    assert_eq!(Known::binary(BinaryOp::Add, &big, &big, &sizes), None);
    assert_eq!(big.cast(DType::I32, &sizes), None);
}

#[test]
fn a_scale_through_floating_point_is_rounded_at_each_step() {
    let sizes = sizes();
    let f32s = |k: Known| k.floats().unwrap()[0];
    let size = Known::scalar(Dim::Const(48)).cast(DType::F32, &sizes).unwrap();
    let root = size.unary(UnaryOp::Sqrt, &sizes).unwrap();
    assert_eq!(f32s(root.clone()), f64::from(48f32.sqrt()));
    assert_eq!(
        f32s(root.unary(UnaryOp::Recip, &sizes).unwrap()),
        f64::from(1.0 / 48f32.sqrt())
    );
    // An open size stays one, in a type that holds it; half types would round it.
    let open = Known::scalar(dim("s"));
    let back = open.cast(DType::F32, &sizes).and_then(|f| f.cast(DType::I64, &sizes));
    assert_eq!(back, Some(open.clone()));
    assert_eq!(open.cast(DType::F16, &sizes), None);
}

#[test]
fn views_of_known_tensors() {
    let m = Known {
        shape: vec![2, 3],
        ..vector(&["1", "2", "3", "4", "5", "s"])
    };
    assert_eq!(show(&m.transpose(&[1, 0]).unwrap()), ["1", "4", "2", "5", "3", "s"]);
    assert_eq!(show(&m.slice(&[1, 2], &[1, 3], &[1, -1]).unwrap()), ["s", "5", "4"]);
    assert_eq!(m.slice(&[1, 3], &[1, 1], &[1, 1]), None, "outside");
    let picks = vector(&["-1", "0"]);
    assert_eq!(show(&m.take(1, &picks).unwrap()), ["3", "1", "s", "4"]);
    assert_eq!(m.take(0, &vector(&["2"])), None);
    assert_eq!(
        show(&Known::concat(&[&m, &m], 1).unwrap())[..6],
        ["1", "2", "3", "1", "2", "3"]
    );
    let sizes = sizes();
    assert_eq!(
        show(&m.reduce(ReduceOp::Prod, &[1], false, &sizes).unwrap()),
        ["6", "20*s"]
    );
    assert_eq!(m.reduce(ReduceOp::Prod, &[1], true, &sizes).unwrap().shape, [2, 1]);
    assert_eq!(m.broadcast(&[1 << 20, 2, 3]), None, "beyond the limit");
    let empty = vector(&[]);
    assert_eq!(show(&empty.reduce(ReduceOp::Prod, &[0], false, &sizes).unwrap()), ["1"]);
    assert_eq!(show(&Known::concat(&[&empty, &picks], 0).unwrap()), ["-1", "0"]);
}
