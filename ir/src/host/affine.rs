//! Positions in a buffer as sums of loop positions.

use smallvec::SmallVec;

/// `base + Σ coef[d] · d`; coefficients past the end are zero.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Affine {
    pub base: i64,
    pub coef: SmallVec<[i64; 8]>,
}

impl Affine {
    pub fn constant(base: i64) -> Affine {
        Affine {
            base,
            coef: SmallVec::new(),
        }
    }

    pub fn dim(d: usize) -> Affine {
        let mut form = Affine::default();
        form.set(d, 1);
        form
    }

    pub fn get(&self, d: usize) -> i64 {
        self.coef.get(d).copied().unwrap_or(0)
    }

    pub fn set(&mut self, d: usize, value: i64) {
        if self.coef.len() <= d {
            self.coef.resize(d + 1, 0);
        }
        self.coef[d] = value;
    }

    pub fn is_constant(&self) -> bool {
        self.coef.iter().all(|c| *c == 0)
    }

    pub fn plus(&self, other: &Affine, sign: i64) -> Affine {
        let mut sum = self.clone();
        sum.base = sum.base.wrapping_add(other.base.wrapping_mul(sign));
        for (d, c) in other.coef.iter().enumerate() {
            let value = sum.get(d).wrapping_add(c.wrapping_mul(sign));
            sum.set(d, value);
        }
        sum
    }

    pub fn times(&self, factor: i64) -> Affine {
        Affine {
            base: self.base.wrapping_mul(factor),
            coef: self.coef.iter().map(|c| c.wrapping_mul(factor)).collect(),
        }
    }

    /// The value at the given dim positions.
    #[inline]
    pub fn at(&self, idx: &[i64]) -> i64 {
        let mut value = self.base;
        for (c, i) in self.coef.iter().zip(idx) {
            value = value.wrapping_add(c.wrapping_mul(*i));
        }
        value
    }

    /// The least and largest value over `0..extent` of every dim; extents of 0 count as 1.
    pub fn range(&self, extents: &[i64]) -> (i64, i64) {
        let (mut lo, mut hi) = (self.base, self.base);
        for (c, e) in self.coef.iter().zip(extents) {
            let span = c.saturating_mul((e - 1).max(0));
            if span < 0 {
                lo = lo.saturating_add(span);
            } else {
                hi = hi.saturating_add(span);
            }
        }
        (lo, hi)
    }
}
