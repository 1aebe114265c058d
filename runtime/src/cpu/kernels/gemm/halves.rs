//! B of 16-bit floats, which become `f32` in registers: weights are read at the speed of memory, and take no more of it
//! than they have bits.
//!
//! ```text
//! columns    column c begins at c · stride, its depth lies together: weights of x · Wᵀ, read in place
//! panels     [panel][k][width], as `PackedB` has floats: all other layouts, packed once
//! ```
//!
//! For a few rows of A each number goes to its products at once. For more, a block of a panel becomes floats in scratch
//! that stays in the first-level cache.

use super::quantised::{FEW_ROWS, Sums};
use super::{Elem, panel_width};
use crate::cpu::kernels::convert::{Bf16, F16, Half};
use crate::cpu::kernels::isa::Isa;
use crate::cpu::kernels::simd::{Simd, simd_dispatch};

/// A right operand of 16-bit floats. Where it begins differs from entry to entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Halves {
    pub isa: Isa,
    pub elem: Elem,
    pub k: usize,
    pub n: usize,
    /// Elements from one column to the next; `None` for panels.
    pub columns: Option<isize>,
}

/// Rows of a panel.
#[derive(Clone, Copy)]
struct Part {
    src: *const u16,
    columns: Option<isize>,
    width: usize,
    cols: usize,
    rows: usize,
}

impl Halves {
    /// Rows from `k0` on of a panel of the matrix at `src`.
    ///
    /// # Safety
    /// The matrix is there, the rows and the panel are some of it.
    unsafe fn part(&self, src: *const u8, panel: usize, [k0, rows]: [usize; 2]) -> Part {
        let wide = 2 * self.isa.lanes();
        let width = panel_width(self.isa, self.n, panel);
        let at = match self.columns {
            Some(stride) => (panel * wide) as isize * stride + k0 as isize,
            None => (panel * wide * self.k + k0 * width) as isize,
        };
        Part {
            // SAFETY: the caller's contract.
            src: unsafe { src.cast::<u16>().offset(at) },
            columns: self.columns,
            width,
            cols: width.min(self.n - panel * wide),
            rows,
        }
    }

    /// Makes floats of rows `k0..k0 + rows` of a panel, `panel_width` of them a row.
    ///
    /// # Safety
    /// As for [`Self::part`]; `dst` is valid for as many floats.
    pub(crate) unsafe fn expand(&self, src: *const u8, dst: *mut f32, panel: usize, rows: [usize; 2]) {
        // SAFETY: the caller's contract.
        unsafe {
            let part = self.part(src, panel, rows);
            match self.elem {
                Elem::F16 => expand::<F16>(self.isa, dst, part),
                _ => expand::<Bf16>(self.isa, dst, part),
            }
        }
    }

    /// Writes the products of up to [`FEW_ROWS`] rows by a panel.
    ///
    /// # Safety
    /// As for [`Self::part`]; each of the rows is valid for `k` floats, `to` for the numbers.
    pub(crate) unsafe fn multiply(&self, src: *const u8, panel: usize, to: Sums) {
        // SAFETY: the caller's contract.
        unsafe {
            let part = self.part(src, panel, [0, self.k]);
            match self.elem {
                Elem::F16 => multiply::<F16>(self.isa, to, part),
                _ => multiply::<Bf16>(self.isa, to, part),
            }
        }
    }
}

simd_dispatch! {
    /// Floats of a part of a panel.
    unsafe fn expand<H: Half>(dst: *mut f32, part: Part) = expand_body
}
simd_dispatch! {
    /// Products by a panel.
    unsafe fn multiply<H: Half>(to: Sums, part: Part) = multiply_body
}

/// The number at `p` alone.
#[inline(always)]
unsafe fn one<S: Simd, H: Half>(p: *const u16) -> f32 {
    // SAFETY: the caller's contract; the vector is loaded from a copy.
    unsafe {
        let mut lanes = [0u16; 16];
        lanes[0] = *p;
        let mut numbers = [0f32; 16];
        S::store(numbers.as_mut_ptr(), H::load::<S>(lanes.as_ptr()));
        numbers[0]
    }
}

#[inline(always)]
unsafe fn expand_body<S: Simd, H: Half>(dst: *mut f32, part: Part) {
    let Part {
        src, width, cols, rows, ..
    } = part;
    // SAFETY: the caller's contract: `cols` columns of `rows` numbers, places for `rows · width` floats.
    unsafe {
        let Some(stride) = part.columns else {
            let mut at = 0;
            while at < rows * width {
                S::store(dst.add(at), H::load::<S>(src.add(at)));
                at += S::LANES;
            }
            return;
        };
        let mut block = [0f32; 256];
        for first in (0..width).step_by(S::LANES) {
            let whole = first + S::LANES <= cols;
            let mut row = 0;
            while whole && row + S::LANES <= rows {
                for j in 0..S::LANES {
                    let from = src.offset((first + j) as isize * stride).add(row);
                    S::store(block.as_mut_ptr().add(j * S::LANES), H::load::<S>(from));
                }
                S::transpose(dst.add(row * width + first), width, block.as_ptr(), S::LANES as isize);
                row += S::LANES;
            }
            for row in row..rows {
                for j in first..first + S::LANES {
                    let x = if j < cols {
                        one::<S, H>(src.offset(j as isize * stride).add(row))
                    } else {
                        0.0
                    };
                    dst.add(row * width + j).write(x);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn multiply_body<S: Simd, H: Half>(to: Sums, part: Part) {
    // SAFETY: the caller's contract.
    unsafe {
        match (to.count, part.columns) {
            (0, _) => {}
            (1, Some(stride)) => columns::<S, H, 1, 4>(to, part, stride),
            (2, Some(stride)) => columns::<S, H, 2, 4>(to, part, stride),
            (3, Some(stride)) => columns::<S, H, 3, 2>(to, part, stride),
            (_, Some(stride)) => columns::<S, H, FEW_ROWS, 2>(to, part, stride),
            (1, None) => panel::<S, H, 1>(to, part),
            (2, None) => panel::<S, H, 2>(to, part),
            (3, None) => panel::<S, H, 3>(to, part),
            (_, None) => panel::<S, H, FEW_ROWS>(to, part),
        }
    }
}

/// Products of `M` rows by columns, `C` of them at a time.
#[inline(always)]
unsafe fn columns<S: Simd, H: Half, const M: usize, const C: usize>(to: Sums, part: Part, stride: isize) {
    let mut col = 0;
    // SAFETY: the caller's contract.
    unsafe {
        while col + C <= part.cols {
            dots::<S, H, M, C>(to, part, stride, col);
            col += C;
        }
        while col < part.cols {
            dots::<S, H, M, 1>(to, part, stride, col);
            col += 1;
        }
    }
}

#[inline(always)]
unsafe fn dots<S: Simd, H: Half, const M: usize, const C: usize>(to: Sums, part: Part, stride: isize, col: usize) {
    // SAFETY: the caller's contract: columns and rows of A have `part.rows` numbers.
    unsafe {
        let from = part.src.offset(col as isize * stride);
        // Two vectors at a time, so that sums do not wait for each other.
        let mut sums = [[[S::zero(); 2]; C]; M];
        let mut at = 0;
        while at + 2 * S::LANES <= part.rows {
            for u in 0..2 {
                let at = at + u * S::LANES;
                let mut a = [S::zero(); M];
                for (a, row) in a.iter_mut().zip(&to.rows) {
                    *a = S::load(row.add(at));
                }
                for j in 0..C {
                    let b = H::load::<S>(from.offset(j as isize * stride).add(at));
                    for (sums, a) in sums.iter_mut().zip(a) {
                        sums[j][u] = S::fma(a, b, sums[j][u]);
                    }
                }
            }
            at += 2 * S::LANES;
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, sums) in sums.iter().enumerate() {
                let mut sum = S::reduce_add(S::add(sums[0], sums[1]));
                for at in at..part.rows {
                    sum += *to.rows[i].add(at) * one::<S, H>(from.offset(j as isize * stride).add(at));
                }
                to.c.add(i * to.ldc + col + j).write(sum);
            }
        }
    }
}

/// Products of `M` rows by a panel that is stored as one.
#[inline(always)]
unsafe fn panel<S: Simd, H: Half, const M: usize>(to: Sums, part: Part) {
    let second = if part.width > S::LANES { S::LANES } else { 0 };
    // SAFETY: the caller's contract; a narrow panel's second vector is its first again, and is not stored.
    unsafe {
        let mut sums = [[[S::zero(); 2]; M]; 2];
        for row in 0..part.rows {
            let from = part.src.add(row * part.width);
            let [a, b] = [H::load::<S>(from), H::load::<S>(from.add(second))];
            for (i, sums) in sums[row % 2].iter_mut().enumerate() {
                let factor = S::splat(*to.rows[i].add(row));
                *sums = [S::fma(factor, a, sums[0]), S::fma(factor, b, sums[1])];
            }
        }
        let [even, odd] = sums;
        for (i, (even, odd)) in even.iter().zip(&odd).enumerate() {
            to.store::<S>(i, [S::add(even[0], odd[0]), S::add(even[1], odd[1])]);
        }
    }
}
