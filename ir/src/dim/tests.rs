//! Canonical form, bounds and evaluation of sizes.

use super::*;

fn sym(name: &str) -> Dim {
    Dim::symbol(name)
}

#[test]
fn algebra_is_canonical() {
    let (b, s) = (sym("b"), sym("s"));
    assert_eq!(
        (b.clone() + 1) * (s.clone() + 2),
        s.clone() + b.clone() * s.clone() + b.clone() * 2 + 2
    );
    assert_eq!((b.clone() * &s * 64).exact_div(&(b.clone() * 8)), Some(s.clone() * 8));
    assert_eq!((b.clone() * &s + &b).exact_div(&(s.clone() + 1)), Some(b.clone()));
    assert_eq!((b.clone() + 1).exact_div(&b), None);
    assert_eq!(b.clone() - &b, Dim::Const(0));
    assert_eq!((b.clone() * 4 + 3).floor_div(&Dim::Const(4)), b.clone());
    assert_eq!((b.clone() * &s * 64 + 3).to_string(), "64*b*s + 3");
}

#[test]
fn quotients_are_canonical() {
    let n = sym("n");
    let by = |d: &Dim, k: i64| d.floor_div(&Dim::Const(k));
    // ⌊(n − 1)/2⌋ + 1 = ⌈n/2⌉, five strides of two are one of 32, and a half of a double is the whole.
    assert_eq!(by(&(n.clone() - 1), 2) + 1, n.ceil_div(&Dim::Const(2)));
    let strided = (0..5).fold(n.clone(), |d, _| by(&(d - 1), 2) + 1);
    assert_eq!(strided, n.ceil_div(&Dim::Const(32)));
    assert_eq!(by(&(by(&n, 2) * 2), 2), by(&n, 2));
    assert_eq!(by(&(n.clone() * 6 + 4), 4), n.clone() + by(&n, 2) + 1);
    assert_eq!(by(&-n.clone(), 2), -n.ceil_div(&Dim::Const(2)));
    let (h, w) = (sym("h"), sym("w"));
    assert_eq!((n.clone() * &h * &w).floor_div(&(n.clone() * &w * 2)), by(&h, 2));
    assert_eq!((n.clone() * &w + &h).floor_div(&w), n.clone() + h.floor_div(&w));
    assert_eq!(
        (n.clone() * 5 + 7).modulo(&Dim::Const(4)),
        (n.clone() + 3).modulo(&Dim::Const(4))
    );
    // A remainder is what a quotient leaves.
    assert!((n.clone() - by(&n, 4) * 4).same_size(&n.modulo(&Dim::Const(4))));
    assert_eq!((-n.clone()).larger(&Dim::Const(0)), n.larger(&Dim::Const(0)) - &n);
    assert_eq!(
        n.larger(&Dim::Const(3)).larger(&Dim::Const(5)),
        n.larger(&Dim::Const(5))
    );
    let square = (n.clone() + 1) * (n.clone() + 1);
    assert_eq!(square.exact_sqrt(), Some(n.clone() + 1));
    assert_eq!((n.clone() * 2).exact_sqrt(), None);
}

/// Whatever form a size takes, its value is that of the arithmetic it was made by.
#[test]
fn canonical_forms_keep_the_value() {
    let mut state = 7u64;
    let mut next = |below: i64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as i64 % below
    };
    let symbols = Symbols::from_iter([
        (Symbol::new("a"), SymbolInfo::default()),
        (Symbol::new("b"), SymbolInfo::default()),
    ]);
    for _ in 0..2000 {
        let points: Vec<(i64, i64)> = (0..4).map(|_| (1 + next(30), 1 + next(30))).collect();
        let mut dims = vec![(sym("a"), points.iter().map(|p| p.0).collect::<Vec<_>>())];
        dims.push((sym("b"), points.iter().map(|p| p.1).collect()));
        for _ in 0..5 {
            let (x, xs) = dims[next(dims.len() as i64) as usize].clone();
            let (y, ys) = dims[next(dims.len() as i64) as usize].clone();
            let (c, k) = (next(9) - 4, 1 + next(6));
            let of = |f: &dyn Fn(i64, i64) -> i64| xs.iter().zip(&ys).map(|(x, y)| f(*x, *y)).collect::<Vec<i64>>();
            dims.push(match next(8) {
                0 => (x + &y, of(&|x, y| x + y)),
                1 => (x - &y, of(&|x, y| x - y)),
                2 => (x * c + k, of(&|x, _| x * c + k)),
                3 => (x.floor_div(&Dim::Const(k)), of(&|x, _| x.div_euclid(k))),
                4 => (x.modulo(&Dim::Const(k)), of(&|x, _| x.rem_euclid(k))),
                5 => (x.larger(&y), of(&|x, y| x.max(y))),
                6 => (x.smaller(&y), of(&|x, y| x.min(y))),
                _ => (x.floor_sqrt(), of(&|x, _| x.max(0).isqrt())),
            });
        }
        for (dim, values) in &dims {
            let (low, high) = dim.bounds(&symbols);
            for ((a, b), value) in points.iter().zip(values) {
                let bindings = Bindings::from_iter([(Symbol::new("a"), *a), (Symbol::new("b"), *b)]);
                assert_eq!(dim.eval(&bindings), Ok(*value), "{dim} at {a}, {b}");
                assert_eq!(dim.spelled(8).eval(&bindings), Ok(*value), "{dim} at {a}, {b}");
                assert!(low.is_none_or(|low| low <= *value), "{dim} at {a}, {b}: {low:?}");
                assert!(high.is_none_or(|high| high >= *value), "{dim} at {a}, {b}: {high:?}");
            }
        }
    }
}

#[test]
fn what_multiplies_too_often_is_not_small() {
    // Squares: after 4 the factors are too many, and the product is not even made.
    let mut t = sym("a") + &sym("b");
    let squares = std::iter::from_fn(|| t.checked_mul(&t).inspect(|next| t = next.clone())).count();
    assert_eq!(squares, 4);
    assert_eq!(t.terms().len(), 17);
    // Terms: 5 symbols in 16 factors would be 4845.
    let sum: Dim = ["a", "b", "c", "d", "e"].into_iter().map(sym).sum();
    let mut power = sum.clone();
    let powers = std::iter::from_fn(|| power.checked_mul(&sum).inspect(|next| power = next.clone())).count();
    assert!((3..15).contains(&powers) && power.is_small(), "{powers}");
    // Nested operations that repeat their operand, and those that do not.
    let mut nested = sym("a");
    let doubled = std::iter::from_fn(|| {
        nested = nested.larger(&(nested.floor_div(&Dim::Const(3)) + "b"));
        nested.is_small().then_some(())
    });
    assert!((4..16).contains(&doubled.take(100).count()));
    let mut deep = sym("a");
    let levels = std::iter::from_fn(|| {
        deep = (deep.clone() + 1).floor_div(&sym("b"));
        deep.is_small().then_some(())
    });
    assert_eq!(levels.take(100).count(), MOST_DEPTH);
    // A shape whose dims are small may have too many elements.
    assert!(Shape(vec![power.clone(); 2]).checked_elements().is_none());
    assert_eq!(Shape::from(["a", "b"]).checked_elements(), Some(sym("a") * sym("b")));
}

#[test]
fn evaluates_with_floor_semantics() {
    let d = (sym("n") - 1).floor_div(&Dim::Const(2)) + 1;
    for n in -5i64..9 {
        let bindings = Bindings::from_iter([(Symbol::new("n"), n)]);
        assert_eq!(d.eval(&bindings), Ok((n - 1).div_euclid(2) + 1));
    }
    assert_eq!(d.eval(&Bindings::new()), Err(DimError::Unbound(Symbol::new("n"))));
}

#[test]
fn bounds_hold() {
    let symbols = Symbols::from_iter([(
        Symbol::new("n"),
        SymbolInfo {
            min: 1,
            max: Some(16),
            hint: 4,
        },
    )]);
    assert_eq!((sym("n") * 3 + 1).bounds(&symbols), (Some(4), Some(49)));
    assert_eq!((Dim::Const(20) - sym("n")).bounds(&symbols), (Some(4), Some(19)));
    assert_eq!((sym("n") * sym("m")).bounds(&symbols), (None, None));
    // Operations are bounded together with what they are of.
    let half = sym("n").floor_div(&Dim::Const(2));
    assert_eq!((sym("n") - &half).bounds(&symbols).0, Some(1));
    assert!((sym("n") - sym("n").smaller(&Dim::Const(5))).at_least(0, &symbols));
    assert!((sym("n").larger(&sym("m")) - sym("m")).at_least(0, &symbols));
    assert_eq!((sym("n") - half * 2).bounds(&symbols), (Some(0), Some(1)));
}
