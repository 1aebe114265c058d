//! Reading dims from files: what is nested too deep is refused while it is read, and what is read is put in canonical
//! form.

use std::cell::Cell;
use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::{Atom, Dim, MOST_DEPTH};

thread_local! {
    /// How many dims are being read inside each other on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// One level more, for as long as it lives.
struct Level;

impl Level {
    fn enter() -> Option<Level> {
        DEPTH.with(|depth| {
            depth.set(depth.get() + 1);
            let level = Level;
            (depth.get() <= MOST_DEPTH + 1).then_some(level)
        })
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

/// The form in files.
#[derive(Deserialize)]
#[serde(rename = "Dim")]
enum Stored {
    Const(i64),
    Poly(Arc<StoredPoly>),
}

#[derive(Deserialize)]
#[serde(rename = "Poly")]
struct StoredPoly {
    terms: Vec<(Vec<Atom>, i64)>,
}

impl<'de> Deserialize<'de> for Dim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Dim, D::Error> {
        let Some(_level) = Level::enter() else {
            return Err(Error::custom(format!("a size is nested more than {MOST_DEPTH} deep")));
        };
        let dim = match Stored::deserialize(deserializer)? {
            Stored::Const(value) => Dim::Const(value),
            Stored::Poly(poly) => Dim::from_terms(poly.terms.iter().map(|(monomial, coefficient)| {
                let mut monomial = monomial.clone();
                monomial.sort();
                (monomial, *coefficient)
            })),
        };
        if !dim.is_small() {
            return Err(Error::custom("a size has more terms than any model's"));
        }
        Ok(dim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Dim, String> {
        postcard::from_bytes(bytes).map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_written_is_read() {
        let (n, m) = (Dim::symbol("n"), Dim::symbol("m"));
        for dim in [
            Dim::Const(-7),
            n.clone() * &m + 3,
            (n.clone() + 5).floor_div(&Dim::Const(2)).larger(&(m.clone() * &m)),
            n.modulo(&m),
        ] {
            assert_eq!(read(&postcard::to_stdvec(&dim).unwrap()), Ok(dim));
        }
    }

    #[test]
    fn what_is_nested_without_end_is_refused() {
        // A polynomial of one term with one factor, a quotient whose dividend is the same again.
        let bytes = [1u8, 1, 1, 1].repeat(1 << 20);
        assert!(read(&bytes).is_err());
        // The thread reads on as before.
        assert_eq!(read(&[0, 4]), Ok(Dim::Const(2)));
    }

    #[test]
    fn terms_are_put_in_order() {
        // `1·n + 2·n + 0·m`, as no canonical form has it.
        let n = [1u8, 0, 1, b'n'];
        let m = [1u8, 0, 1, b'm'];
        let bytes = [&[1u8, 3][..], &n, &[2], &n, &[4], &m, &[0]].concat();
        assert_eq!(read(&bytes), Ok(Dim::symbol("n") * 3));
    }
}
