//! B of four or eight bits an element, integers or floats, in panels as [`super::PackedB`]'s: `[panel][k]`, each row as
//! many bytes as it takes.
//!
//! A panel is made floats a block of rows at a time, in scratch that stays in the first-level cache, and multiplied
//! there: no more of a weight than that is ever there in f32. Of a few rows each integer goes to its products at once.

use super::panel_width;
use crate::cpu::kernels::isa::Isa;
use crate::cpu::kernels::simd::{Simd, simd_dispatch};
use crate::cpu::kernels::threads::Pool;
use crate::cpu::kernels::workspace::{AlignedBuf, NoRoom, SyncPtr};
pub use ir::host::product::Float8;

/// Rows of a panel that are floats at once: 32 KiB at most.
pub(crate) const EXPANDED_ROWS: usize = 256;
/// Rows of A that are multiplied by integers as they come: for more, floats are worth making once.
pub(crate) const FEW_ROWS: usize = 4;

/// Integers of a matrix as they are stored: that of row `r` and column `c` is element `base + r·row + c·col`.
#[derive(Clone, Copy, Debug)]
pub struct Integers<'a> {
    pub bytes: &'a [u8],
    /// 4, two to a byte with the first in the low bits, or 8.
    pub bits: u32,
    pub signed: bool,
    /// Set where the elements are floats of 8 bits, all of them finite.
    pub float: Option<Float8>,
    pub base: i64,
    pub row: i64,
    pub col: i64,
}

impl Integers<'_> {
    /// What is added to signed integers to make them unsigned.
    fn bias(&self) -> u8 {
        if self.signed { 1 << (self.bits - 1) } else { 0 }
    }

    /// An element as an unsigned integer; 0 outside the bytes.
    fn at(&self, row: usize, col: usize) -> u8 {
        let at = (self.base + row as i64 * self.row + col as i64 * self.col) as usize;
        let half = usize::from(self.bits == 4);
        let mask = ((1u32 << self.bits) - 1) as u8;
        let stored = self.bytes.get(at >> half).copied().unwrap_or(0) >> ((at & half) * 4);
        (stored & mask) ^ self.bias()
    }
}

/// A right operand of quantised numbers, `(integer − zero) · scale`, packed for one instruction level.
#[derive(Debug)]
pub struct QuantisedB {
    isa: Isa,
    k: usize,
    n: usize,
    bits: u32,
    float: Option<Float8>,
    group: usize,
    /// Unsigned integers. Of four bits the low half of a byte is a column of the panel's first vector, the high half of
    /// its second.
    data: AlignedBuf,
    /// For each panel and group: a scale for each column, then what a column's product of integer and scale is added
    /// to.
    scales: AlignedBuf,
}

impl QuantisedB {
    /// Packs a matrix of `k` rows and `n` columns; `scale(column, group)` gives the scale and the zero point of `group`
    /// rows.
    ///
    /// # Errors
    /// There is no memory for it.
    ///
    /// # Panics
    /// When `group` is 0, or integers have other than 4 or 8 bits.
    pub fn new(
        pool: Option<&Pool>,
        isa: Isa,
        [k, n, group]: [usize; 3],
        integers: &Integers<'_>,
        scale: impl Fn(usize, usize) -> (f32, f32) + Sync,
    ) -> Result<QuantisedB, NoRoom> {
        assert!(group > 0 && matches!(integers.bits, 4 | 8), "groups of 4 or 8 bits");
        let (lanes, groups) = (isa.lanes(), k.div_ceil(group));
        let wide = 2 * lanes;
        let panels = n.div_ceil(wide);
        let mut packed = QuantisedB {
            isa,
            k,
            n,
            bits: integers.bits,
            float: integers.float,
            group,
            data: AlignedBuf::new(0),
            scales: AlignedBuf::floats(panels * groups * 2 * wide)?,
        };
        let row_bytes = packed.row_bytes(wide);
        packed.data = AlignedBuf::asked(panels * k * row_bytes)?;
        let (to, scales) = (
            SyncPtr(packed.data.as_ptr()),
            SyncPtr(packed.scales.as_ptr().cast::<f32>()),
        );
        let pack = |panel: usize| {
            let width = panel_width(isa, n, panel);
            for (g, j) in (0..groups).flat_map(|g| (0..width).map(move |j| (g, j))) {
                let col = panel * wide + j;
                let (scale, zero) = if col < n { scale(col, g) } else { (0.0, 0.0) };
                let offset = -(zero + f32::from(integers.bias())) * scale;
                // SAFETY: inside what was allocated: two numbers a column, group and panel.
                unsafe {
                    let at = scales.get().add((panel * groups + g) * 2 * wide);
                    at.add(j).write(scale);
                    at.add(width + j).write(offset);
                }
            }
            for row in 0..k {
                for byte in 0..packed.row_bytes(width) {
                    let at = |j: usize| match panel * wide + j {
                        col if j < width && col < n => integers.at(row, col),
                        _ => 0,
                    };
                    let value = match integers.bits {
                        4 => at(byte) | at(byte + lanes) << 4,
                        _ => at(byte),
                    };
                    // SAFETY: inside what was allocated; each panel has its own part.
                    unsafe { to.get().add((panel * k + row) * row_bytes).add(byte).write(value) };
                }
            }
        };
        match pool {
            Some(pool) => pool.parallel_for(panels, &|panel, _| pack(panel)),
            None => (0..panels).for_each(pack),
        }
        Ok(packed)
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }
    pub fn k(&self) -> usize {
        self.k
    }
    pub fn n(&self) -> usize {
        self.n
    }
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len() + self.scales.len()
    }

    /// Bytes of a row of a panel of this width.
    fn row_bytes(&self, width: usize) -> usize {
        if self.bits == 4 { self.isa.lanes() } else { width }
    }

    /// Makes floats of rows `k0..k0 + rows` of a panel, `panel_width` of them a row.
    ///
    /// # Safety
    /// `dst` is valid for as many floats, the rows and the panel are some of the matrix.
    pub(crate) unsafe fn expand(&self, dst: *mut f32, panel: usize, k0: usize, rows: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let part = self.part(panel, k0, rows);
            if self.bits == 4 {
                expand_nibbles(self.isa, dst, part);
            } else if self.float.is_some() {
                expand_floats(self.isa, dst, part);
            } else {
                expand_bytes(self.isa, dst, part);
            }
        }
    }

    /// Writes the products of up to [`FEW_ROWS`] rows by a panel.
    ///
    /// # Safety
    /// Each of the rows is valid for `k` floats, `to` for the numbers, the panel is one of the matrix.
    pub(crate) unsafe fn multiply(&self, panel: usize, to: Sums) {
        // SAFETY: the caller's contract.
        unsafe {
            let part = self.part(panel, 0, self.k);
            if self.bits == 4 {
                multiply_nibbles(self.isa, to, part);
            } else if self.float.is_some() {
                multiply_floats(self.isa, to, part);
            } else {
                multiply_bytes(self.isa, to, part);
            }
        }
    }

    /// # Safety
    /// The rows and the panel are some of the matrix.
    unsafe fn part(&self, panel: usize, k0: usize, rows: usize) -> Part {
        let (wide, groups) = (2 * self.isa.lanes(), self.k.div_ceil(self.group));
        // All rows of the matrix are as far apart as those of its whole panels.
        let row_bytes = self.row_bytes(wide);
        // SAFETY: what was packed for the panel, by the caller's contract.
        let (src, scales) = unsafe {
            (
                self.data.as_ptr().cast_const().add(panel * self.k * row_bytes),
                self.scales
                    .as_ptr()
                    .cast::<f32>()
                    .cast_const()
                    .add(panel * groups * 2 * wide),
            )
        };
        Part {
            src,
            row_bytes,
            scales,
            scales_step: 2 * wide,
            width: panel_width(self.isa, self.n, panel),
            group: self.group,
            narrow: self.float.is_some_and(|f| f.mantissa == 2),
            exponent: self.float.map_or(0, |f| (127 - f.bias as i32) << 23),
            smallest: self
                .float
                .map_or(0.0, |f| 2f32.powi(1 - f.bias as i32 - f.mantissa as i32)),
            k0,
            rows,
        }
    }
}

/// A few rows of A, and where their products go: `cols` numbers at each of the rows of `c`, `ldc` apart.
#[derive(Clone, Copy)]
pub(crate) struct Sums {
    pub rows: [*const f32; FEW_ROWS],
    pub count: usize,
    pub c: *mut f32,
    pub ldc: usize,
    pub cols: usize,
}

impl Sums {
    /// Stores the products of row `i` by a panel of two vectors.
    ///
    /// # Safety
    /// The numbers have their places, and the processor has the level's instructions.
    #[inline(always)]
    pub(crate) unsafe fn store<S: Simd>(&self, i: usize, sums: [S::V; 2]) {
        // SAFETY: the caller's contract.
        unsafe {
            let c = self.c.add(i * self.ldc);
            S::store_part(c, sums[0], self.cols.min(S::LANES));
            if self.cols > S::LANES {
                S::store_part(c.add(S::LANES), sums[1], self.cols - S::LANES);
            }
        }
    }
}

/// Rows of a panel to be made floats.
#[derive(Clone, Copy)]
struct Part {
    src: *const u8,
    row_bytes: usize,
    scales: *const f32,
    scales_step: usize,
    width: usize,
    group: usize,
    /// Of floats: whether their mantissa has 2 bits, what makes their exponent's bias that of f32, and the smallest
    /// above 0.
    narrow: bool,
    exponent: i32,
    smallest: f32,
    k0: usize,
    rows: usize,
}

simd_dispatch! {
    /// Floats of four-bit integers.
    unsafe fn expand_nibbles(dst: *mut f32, part: Part) = expand_nibbles_body
}
simd_dispatch! {
    /// Floats of eight-bit integers.
    unsafe fn expand_bytes(dst: *mut f32, part: Part) = expand_bytes_body
}

simd_dispatch! {
    /// Floats of eight-bit floats.
    unsafe fn expand_floats(dst: *mut f32, part: Part) = expand_floats_body
}

/// How numbers are stored. Methods of a trait and not closures: what is not inlined into the code of a level calls its
/// instructions.
trait Stored {
    /// Two vectors of numbers: those at `from`, and those `second` bytes behind it.
    ///
    /// # Safety
    /// The bytes are there, and the processor has the level's instructions.
    unsafe fn numbers<S: Simd>(part: &Part, from: *const u8, second: usize) -> [S::V; 2];
}

/// Integers of four bits: those of the second vector in the high halves of the bytes.
struct Nibbles;
/// Integers of eight bits.
struct Bytes;
/// Floats of eight bits.
struct Floats;

impl Stored for Nibbles {
    #[inline(always)]
    unsafe fn numbers<S: Simd>(_: &Part, from: *const u8, _: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let both = S::load_u8(from);
            [
                S::to_float(S::iand(both, S::isplat(15))),
                S::to_float(S::sar::<4>(both)),
            ]
        }
    }
}

impl Stored for Bytes {
    #[inline(always)]
    unsafe fn numbers<S: Simd>(_: &Part, from: *const u8, second: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe { [S::to_float(S::load_u8(from)), S::to_float(S::load_u8(from.add(second)))] }
    }
}

impl Stored for Floats {
    #[inline(always)]
    unsafe fn numbers<S: Simd>(part: &Part, from: *const u8, second: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            [
                float::<S>(part, S::load_u8(from)),
                float::<S>(part, S::load_u8(from.add(second))),
            ]
        }
    }
}

/// Eight-bit floats as numbers: exponent and mantissa go where f32 has them, the exponent with the bias of f32. Those
/// with an exponent of 0 are multiples of the smallest; as f32 with an exponent of 0 they would be subnormal, which
/// takes processors a hundred times as long.
#[inline(always)]
unsafe fn float<S: Simd>(part: &Part, bytes: S::I) -> S::V {
    // SAFETY: the level's instructions, by the contract of the callers.
    unsafe {
        let magnitude = S::iand(bytes, S::isplat(0x7f));
        let (placed, least) = match part.narrow {
            true => (S::shl::<21>(magnitude), 4.0),
            false => (S::shl::<20>(magnitude), 8.0),
        };
        let normal = S::from_bits(S::iadd(placed, S::isplat(part.exponent)));
        let whole = S::to_float(magnitude);
        let small = S::mul(whole, S::splat(part.smallest));
        let value = S::select(S::lt(whole, S::splat(least)), small, normal);
        let sign = S::shl::<24>(S::iand(bytes, S::isplat(0x80)));
        S::from_bits(S::ior(S::bits(value), sign))
    }
}

#[inline(always)]
unsafe fn expand_floats_body<S: Simd>(dst: *mut f32, part: Part) {
    // SAFETY: the caller's contract: the rows' bytes are there, and the floats' places.
    unsafe { expand_body::<S, Floats>(dst, part) }
}

#[inline(always)]
unsafe fn multiply_floats_body<S: Simd>(to: Sums, part: Part) {
    // SAFETY: the caller's contract: the rows' bytes are there.
    unsafe { multiply_body::<S, Floats>(to, part) }
}

#[inline(always)]
unsafe fn expand_nibbles_body<S: Simd>(dst: *mut f32, part: Part) {
    // SAFETY: as for `expand_floats_body`.
    unsafe { expand_body::<S, Nibbles>(dst, part) }
}

#[inline(always)]
unsafe fn expand_bytes_body<S: Simd>(dst: *mut f32, part: Part) {
    // SAFETY: as above; a narrow panel's second vector is its first again, and is not stored.
    unsafe { expand_body::<S, Bytes>(dst, part) }
}

#[inline(always)]
unsafe fn expand_body<S: Simd, N: Stored>(dst: *mut f32, part: Part) {
    let (width, two, end) = (part.width, part.width > S::LANES, part.k0 + part.rows);
    let mut row = part.k0;
    while row < end {
        let group = row / part.group;
        let stop = ((group + 1) * part.group).min(end);
        // SAFETY: the caller's contract: a group has `2 · width` numbers, a row its bytes and `width` places.
        unsafe {
            let scales = part.scales.add(group * part.scales_step);
            let (scale, offset) = (S::load(scales), S::load(scales.add(width)));
            let second = if two { S::LANES } else { 0 };
            let (scale2, offset2) = (S::load(scales.add(second)), S::load(scales.add(width + second)));
            while row < stop {
                let [a, b] = N::numbers::<S>(&part, part.src.add(row * part.row_bytes), second);
                let to = dst.add((row - part.k0) * width);
                S::store(to, S::fma(a, scale, offset));
                if two {
                    S::store(to.add(S::LANES), S::fma(b, scale2, offset2));
                }
                row += 1;
            }
        }
    }
}

simd_dispatch! {
    /// Products by four-bit integers.
    unsafe fn multiply_nibbles(to: Sums, part: Part) = multiply_nibbles_body
}
simd_dispatch! {
    /// Products by eight-bit integers.
    unsafe fn multiply_bytes(to: Sums, part: Part) = multiply_bytes_body
}
simd_dispatch! {
    /// Products by eight-bit floats.
    unsafe fn multiply_floats(to: Sums, part: Part) = multiply_floats_body
}

#[inline(always)]
unsafe fn multiply_nibbles_body<S: Simd>(to: Sums, part: Part) {
    // SAFETY: the caller's contract: the rows' bytes are there.
    unsafe { multiply_body::<S, Nibbles>(to, part) }
}

#[inline(always)]
unsafe fn multiply_bytes_body<S: Simd>(to: Sums, part: Part) {
    // SAFETY: as for `expand_bytes_body`.
    unsafe { multiply_body::<S, Bytes>(to, part) }
}

#[inline(always)]
unsafe fn multiply_body<S: Simd, N: Stored>(to: Sums, part: Part) {
    // SAFETY: the caller's contract.
    unsafe {
        match to.count {
            0 => {}
            1 => multiply_rows::<S, N, 1>(to, part),
            2 => multiply_rows::<S, N, 2>(to, part),
            3 => multiply_rows::<S, N, 3>(to, part),
            _ => multiply_rows::<S, N, 4>(to, part),
        }
    }
}

/// `Σ a·(i·scale + offset)` as `scale·Σ a·i + offset·Σ a` of each group.
#[inline(always)]
unsafe fn multiply_rows<S: Simd, N: Stored, const M: usize>(to: Sums, part: Part) {
    let (width, two) = (part.width, part.width > S::LANES);
    let second = if two { S::LANES } else { 0 };
    // SAFETY: the caller's contract: a group has `2 · width` numbers, a row its bytes, rows of A a float for each row
    // here.
    unsafe {
        let mut sums = [[S::zero(); 2]; M];
        let (mut row, mut scales) = (0, part.scales);
        while row < part.rows {
            let stop = (row + part.group).min(part.rows);
            // Two rows at a time, so that sums do not wait for each other.
            let mut products = [[[S::zero(); 2]; M]; 2];
            let mut factors = [0.0f32; M];
            while row < stop {
                let count = (stop - row).min(2);
                for (u, products) in products.iter_mut().enumerate().take(count) {
                    let [a, b] = N::numbers::<S>(&part, part.src.add((row + u) * part.row_bytes), second);
                    for (i, products) in products.iter_mut().enumerate() {
                        let factor = *to.rows[i].add(row + u);
                        factors[i] += factor;
                        let factor = S::splat(factor);
                        products[0] = S::fma(factor, a, products[0]);
                        products[1] = S::fma(factor, b, products[1]);
                    }
                }
                row += count;
            }
            for i in 0..M {
                let factor = S::splat(factors[i]);
                for (j, at) in [0, second].into_iter().enumerate() {
                    let (scale, offset) = (S::load(scales.add(at)), S::load(scales.add(width + at)));
                    let product = S::add(products[0][i][j], products[1][i][j]);
                    sums[i][j] = S::fma(product, scale, S::fma(factor, offset, sums[i][j]));
                }
            }
            scales = scales.add(part.scales_step);
        }
        for (i, sums) in sums.iter().enumerate() {
            to.store::<S>(i, *sums);
        }
    }
}
