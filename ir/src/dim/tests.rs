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
        deep = (deep.clone() + 1).floor_div(&Dim::Const(2));
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
}
