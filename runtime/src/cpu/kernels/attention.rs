//! Scaled-dot-product attention: `softmax(scale · Q Kᵀ + mask) V` for each batch entry and head.
//!
//! K and V are packed once per key/value head; a task then takes a block of query rows of one head, computes its whole
//! rows of scores into its scratch with the GEMM tiles (scale and additive mask in registers), exponentiates them
//! there, and multiplies by V. Scores never leave the cache for sequences up to some thousands. With `causal`, keys
//! behind the block's last row are not computed. Nor are keys behind the last that a mask shows to any row: a cache
//! takes the time of the keys that it holds, not of those that it has room for.
//!
//! A row whose keys are all masked with -inf (or `false`, or by causality) gives NaN, as plain softmax does; a row
//! masked with large negative finite numbers gives the softmax of `score + mask` in f32.

use super::gemm::{
    Activation, Batch, Elem, MatRef, TileArgs, gather, pack_panel, packed_len, panel_offset, panel_width, tile_fns,
};
use super::isa::Isa;
use super::workspace::{SyncPtr, Workspace};
use super::{convert, rows};

/// Query rows of one task.
const BLOCK: usize = 64;

/// A `[batch, sequence, head, d]` view: element strides of each axis, in whatever memory order.
#[derive(Clone, Copy, Debug)]
pub struct HeadView {
    pub ptr: *const u8,
    pub elem: Elem,
    pub batch_stride: isize,
    pub seq_stride: isize,
    pub head_stride: isize,
    pub d_stride: isize,
}

/// The written twin of [`HeadView`].
#[derive(Clone, Copy, Debug)]
pub struct HeadViewMut {
    pub ptr: *mut u8,
    pub elem: Elem,
    pub batch_stride: isize,
    pub seq_stride: isize,
    pub head_stride: isize,
    pub d_stride: isize,
}

/// An additive f32 mask `[batch, head, query, key]`; a stride of 0 broadcasts its axis.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    pub ptr: *const f32,
    pub strides: [isize; 4],
}

/// A mask of bytes `[batch, head, query, key]`, 0 masks the key out; a stride of 0 broadcasts its axis.
#[derive(Clone, Copy, Debug)]
pub struct BoolMask {
    pub ptr: *const u8,
    pub strides: [isize; 4],
}

/// One attention.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    pub batch: usize,
    pub heads: usize,
    /// Divides `heads`; query head `h` uses key/value head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    pub q_len: usize,
    pub kv_len: usize,
    /// Width of Q and K.
    pub d: usize,
    /// Width of V and O.
    pub d_v: usize,
    pub q: HeadView,
    pub k: HeadView,
    pub v: HeadView,
    pub o: HeadViewMut,
    pub scale: f32,
    pub mask: Option<Mask>,
    pub bool_mask: Option<BoolMask>,
    /// `Some(offset)`: query `i` sees key `j` when `j <= i + offset` (0 for equal lengths, the past's length with a
    /// cache).
    pub causal: Option<isize>,
}

// SAFETY: descriptions of memory; reading and writing it is `unsafe` at each use.
unsafe impl Send for Attention {}
// SAFETY: as above.
unsafe impl Sync for Attention {}

struct Sizes {
    /// Floats between score rows.
    ld: usize,
    block: usize,
    q_copy: usize,
    k_len: usize,
    v_len: usize,
}

fn sizes(isa: Isa, threads: usize, a: &Attention) -> Sizes {
    let ld = a.kv_len.next_multiple_of(2 * isa.lanes());
    // Scores of a block stay below about 1 MiB.
    let fits = ((1 << 18) / ld.max(1)).max(tile_fns(isa).len());
    let mut block = BLOCK.min(fits);
    if a.batch * a.heads >= 2 * threads && a.q_len <= 2 * BLOCK && a.q_len <= fits {
        block = a.q_len.max(1);
    }
    let direct_q = a.q.elem == Elem::F32 && a.q.d_stride == 1;
    Sizes {
        ld,
        block,
        q_copy: if direct_q { 0 } else { block * a.d },
        k_len: packed_len(isa, a.d, a.kv_len).next_multiple_of(16),
        v_len: packed_len(isa, a.kv_len, a.d_v).next_multiple_of(16),
    }
}

/// Scratch that [`attention`] will ask of a workspace with `threads` threads, as (bytes per thread, shared bytes): for
/// plans that reserve it beforehand. Pointers in `a` are not looked at.
pub fn attention_scratch(isa: Isa, threads: usize, a: &Attention) -> (usize, usize) {
    let s = sizes(isa, threads, a);
    let floats = s.block * s.ld + s.q_copy + s.block * a.d_v;
    (
        floats * 4 + 2 * s.block * 8 + 256,
        a.batch * a.kv_heads * (s.k_len + s.v_len) * 4,
    )
}

/// Computes attention.
///
/// # Safety
/// Every element that the sizes and strides reach must be readable in Q, K, V and masks, and writable in O, exclusively
/// and disjoint from the others, for the call.
///
/// # Panics
/// When `kv_heads` does not divide `heads`.
pub unsafe fn attention(ws: &mut Workspace, a: &Attention) {
    if a.batch == 0 || a.heads == 0 || a.q_len == 0 || a.d_v == 0 {
        return;
    }
    assert!(
        a.kv_heads > 0 && a.heads.is_multiple_of(a.kv_heads),
        "{} kv heads of {} heads",
        a.kv_heads,
        a.heads
    );
    let isa = ws.isa();
    // SAFETY: the caller's contract for masks.
    let kv_len = unsafe { shown_keys(a) };
    let a = &Attention { kv_len, ..*a };
    let s = sizes(isa, ws.threads(), a);
    let out_rows = s.block * a.d_v;
    let (per_thread, shared) = attention_scratch(isa, ws.threads(), a);
    if !ws.reserve(per_thread, shared) {
        return;
    }
    let kv = a.batch * a.kv_heads;
    let packed = SyncPtr(ws.shared().cast::<f32>());
    let width = 2 * isa.lanes();
    let (k_panels, v_panels) = (a.kv_len.div_ceil(width), a.d_v.div_ceil(width));
    let one = s.k_len + s.v_len;
    ws.parallel_for(kv * 2, &|task, _, _| {
        let (entry, is_v) = (task / 2, task % 2 == 1);
        let (b, h) = (entry / a.kv_heads, entry % a.kv_heads);
        // SAFETY: the caller's contract for K and V; each task packs its own part of the scratch.
        unsafe {
            let base = packed.get().add(entry * one);
            let (view, rows, cols, row_stride, col_stride, dst) = if is_v {
                (a.v, a.kv_len, a.d_v, a.v.seq_stride, a.v.d_stride, base.add(s.k_len))
            } else {
                (a.k, a.d, a.kv_len, a.k.d_stride, a.k.seq_stride, base)
            };
            let size = view.elem.size() as isize;
            let src = view
                .ptr
                .offset((b as isize * view.batch_stride + h as isize * view.head_stride) * size);
            let mat = MatRef {
                ptr: src,
                elem: view.elem,
                row_stride,
                col_stride,
                batch: Batch::Stride(0),
            };
            for p in 0..cols.div_ceil(width) {
                pack_panel(isa, dst.add(panel_offset(isa, rows, p)), src, &mat, rows, cols, p);
            }
        }
    });
    let blocks = a.q_len.div_ceil(s.block);
    let group = a.heads / a.kv_heads;
    ws.parallel_for(a.batch * a.heads * blocks, &|task, _, scratch| {
        let (bh, block) = (task / blocks, task % blocks);
        let (b, h) = (bh / a.heads, bh % a.heads);
        let first = block * s.block;
        let count = s.block.min(a.q_len - first);
        // SAFETY: the caller's contract; scratch was reserved for these parts.
        unsafe {
            let k = packed.get().add((b * a.kv_heads + h / group) * one);
            let job = Block {
                a,
                s: &s,
                b,
                h,
                first,
                count,
                k,
                v: k.add(s.k_len),
                scores: scratch.cast(),
                q_copy: scratch.cast::<f32>().add(s.block * s.ld),
                out: scratch.cast::<f32>().add(s.block * s.ld + s.q_copy),
                table: scratch
                    .add((s.block * s.ld + s.q_copy + out_rows).next_multiple_of(2) * 4)
                    .cast(),
                k_panels,
                v_panels,
            };
            job.run(isa);
        }
    });
}

/// How many keys there are up to the last that a mask shows to any row; one at least, so that rows that see none are
/// NaN.
unsafe fn shown_keys(a: &Attention) -> usize {
    if a.mask.is_none() && a.bool_mask.is_none() {
        return a.kv_len;
    }
    let strides = [a.mask.map(|m| m.strides), a.bool_mask.map(|m| m.strides)];
    // A stride of 0 has one entry for all.
    let count = |axis: usize, size: usize| match strides.iter().flatten().all(|s| s[axis] == 0) {
        true => size.min(1),
        false => size,
    };
    let (batch, heads, rows) = (count(0, a.batch), count(1, a.heads), count(2, a.q_len));
    let mut shown = 1;
    for entry in 0..batch * heads * rows {
        let at = [entry / rows / heads, entry / rows % heads, entry % rows];
        let place = |s: [isize; 4], key: usize| {
            let row: isize = at.iter().zip(s).map(|(i, stride)| *i as isize * stride).sum();
            row + key as isize * s[3]
        };
        let hidden = |key: usize| {
            // SAFETY: an element of the mask, by the caller's contract.
            unsafe {
                a.bool_mask.is_some_and(|m| *m.ptr.offset(place(m.strides, key)) == 0)
                    || a.mask
                        .is_some_and(|m| *m.ptr.offset(place(m.strides, key)) == f32::NEG_INFINITY)
            }
        };
        if let Some(last) = (shown..a.kv_len).rev().find(|key| !hidden(*key)) {
            shown = last + 1;
        }
        if shown >= a.kv_len {
            break;
        }
    }
    shown.min(a.kv_len)
}

struct Block<'a> {
    a: &'a Attention,
    s: &'a Sizes,
    b: usize,
    h: usize,
    first: usize,
    count: usize,
    k: *const f32,
    v: *const f32,
    scores: *mut f32,
    q_copy: *mut f32,
    out: *mut f32,
    table: *mut *const f32,
    k_panels: usize,
    v_panels: usize,
}

impl Block<'_> {
    unsafe fn run(&self, isa: Isa) {
        let (a, ld, count) = (self.a, self.s.ld, self.count);
        // Keys any row of this block may see; all of them when some row sees none, so that it becomes NaN.
        let visible = match a.causal {
            Some(offset) if self.first as isize + offset >= 0 => {
                a.kv_len.min((self.first + count).saturating_add_signed(offset))
            }
            _ => a.kv_len,
        };
        let q_size = a.q.elem.size() as isize;
        let head =
            |batch_stride: isize, head_stride: isize| self.b as isize * batch_stride + self.h as isize * head_stride;
        // SAFETY: the contract of `attention`, row by row.
        unsafe {
            for i in 0..count {
                let at = head(a.q.batch_stride, a.q.head_stride) + (self.first + i) as isize * a.q.seq_stride;
                let row = a.q.ptr.offset(at * q_size);
                let pointer = if self.s.q_copy == 0 {
                    row.cast::<f32>()
                } else {
                    let copy = self.q_copy.add(i * a.d);
                    gather(isa, copy, row, a.q.elem, a.q.d_stride, a.d);
                    copy.cast_const()
                };
                self.table.add(i).write(pointer);
                self.table.add(count + i).write(self.scores.add(i * ld).cast_const());
            }
            let mask = a.mask.map(|m| {
                let at = head(m.strides[0], m.strides[1]) + self.first as isize * m.strides[2];
                (m.ptr.offset(at), m.strides[2], m.strides[3])
            });
            let in_tile = mask.filter(|(_, row, col)| *col == 1 && *row >= 0);
            self.tiles(
                isa,
                self.table,
                (a.d, visible, self.k_panels),
                (self.k, a.d, a.kv_len),
                (self.scores, ld),
                a.scale,
                in_tile,
            );
            for i in 0..count {
                let row = std::slice::from_raw_parts_mut(self.scores.add(i * ld), visible);
                if let (Some((ptr, row_stride, col_stride)), None) = (mask, in_tile) {
                    let ptr = ptr.offset(i as isize * row_stride);
                    for (j, x) in row.iter_mut().enumerate() {
                        *x += *ptr.offset(j as isize * col_stride);
                    }
                }
                if let Some(m) = a.bool_mask {
                    let at = head(m.strides[0], m.strides[1]) + (self.first + i) as isize * m.strides[2];
                    let ptr = m.ptr.offset(at);
                    for (j, x) in row.iter_mut().enumerate() {
                        if *ptr.offset(j as isize * m.strides[3]) == 0 {
                            *x = f32::NEG_INFINITY;
                        }
                    }
                }
                if let Some(offset) = a.causal {
                    let seen = (self.first + i + 1)
                        .checked_add_signed(offset)
                        .unwrap_or(0)
                        .min(visible);
                    row[seen..].fill(f32::NEG_INFINITY);
                }
                let sum = rows::exp_row(isa, row.as_mut_ptr(), visible);
                rows::scale_row(isa, row.as_mut_ptr(), visible, 1.0 / sum);
            }
            let o_base = head(a.o.batch_stride, a.o.head_stride) + self.first as isize * a.o.seq_stride;
            let o_size = a.o.elem.size() as isize;
            let direct = a.o.elem == Elem::F32 && a.o.d_stride == 1 && a.o.seq_stride >= 0;
            let (dst, ld_out) = if direct {
                (a.o.ptr.cast::<f32>().offset(o_base), a.o.seq_stride as usize)
            } else {
                (self.out, a.d_v)
            };
            self.tiles(
                isa,
                self.table.add(count),
                (visible, a.d_v, self.v_panels),
                (self.v, a.kv_len, a.d_v),
                (dst, ld_out),
                1.0,
                None,
            );
            if !direct {
                for i in 0..count {
                    let to = a.o.ptr.offset((o_base + i as isize * a.o.seq_stride) * o_size);
                    convert::scatter(isa, to, self.out.add(i * a.d_v), a.o.elem, a.o.d_stride, a.d_v);
                }
            }
        }
    }

    /// `c = a · b * scale (+ mask)` for the block's rows: `k` deep, `n` columns. Panels were packed for all of their
    /// depth.
    unsafe fn tiles(
        &self,
        isa: Isa,
        table: *const *const f32,
        (k, n, panels): (usize, usize, usize),
        (b, depth, all): (*const f32, usize, usize),
        (c, ldc): (*mut f32, usize),
        scale: f32,
        mask: Option<(*const f32, isize, isize)>,
    ) {
        let fns = tile_fns(isa);
        let lanes = isa.lanes();
        let heights = self.count.div_ceil(fns.len());
        for p in 0..panels {
            let col = p * 2 * lanes;
            if col >= n {
                break;
            }
            let width = panel_width(isa, all, p);
            for t in 0..heights {
                let (r0, r1) = (self.count * t / heights, self.count * (t + 1) / heights);
                // SAFETY: rows and columns of the block, per the contract of `attention`.
                unsafe {
                    let args = TileArgs {
                        rows: table.add(r0),
                        table_stride: r1 - r0,
                        a_offset: 0,
                        segs: 1,
                        seg_len: k,
                        b: b.add(panel_offset(isa, depth, p)),
                        b_stride: width,
                        c: c.add(r0 * ldc + col),
                        ldc,
                        n: width.min(n - col),
                        accumulate: false,
                        finish: true,
                        scale,
                        bias: std::ptr::null(),
                        residual: mask.map_or(std::ptr::null(), |(m, row, _)| m.offset(r0 as isize * row).add(col)),
                        ld_residual: mask.map_or(0, |(_, row, _)| row as usize),
                        activation: Activation::None,
                        ahead: b,
                        ahead_step: 0,
                    };
                    fns[r1 - r0 - 1][width / lanes - 1](&args);
                }
            }
        }
    }
}
