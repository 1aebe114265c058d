//! Kernels that have a shape of their own: rows, pools, copies, attention.

use super::product::{Elem, ImageStrides};
use crate::kernel::RowKind;

/// Softmax, log-softmax, layer norm or RMS norm over contiguous f32 rows. Places are a parameter and its first element.
#[derive(Clone, Copy, Debug)]
pub struct RowComposite {
    pub kind: RowKind,
    pub shape: Rows,
    pub src: (usize, i64),
    pub dst: (usize, i64),
    pub gamma: Option<(usize, i64)>,
    pub beta: Option<(usize, i64)>,
}

/// Rows of `cols` values, each `stride` after the one before, in source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    pub rows: usize,
    pub cols: usize,
    pub src_stride: usize,
    pub dst_stride: usize,
}

impl Rows {
    /// Dense rows.
    pub fn dense(rows: usize, cols: usize) -> Rows {
        Rows {
            rows,
            cols,
            src_stride: cols,
            dst_stride: cols,
        }
    }
}

/// A pooling of images.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    /// Elements are signed bytes, else f32.
    pub bytes: bool,
    pub kind: PoolKind,
    pub shape: PoolShape,
    pub src: usize,
    pub src_base: i64,
    pub src_strides: ImageStrides,
    pub dst: usize,
    pub dst_base: i64,
    pub dst_strides: ImageStrides,
}

/// Which pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolKind {
    /// A window that lies in padding only gives -inf.
    Max,
    /// Divides by the number of elements in the window; `include_pad` counts those in padding (not those that rounding
    /// up adds past the padding) too.
    Average { include_pad: bool },
    /// The sum of the elements in the window; 0 in padding only.
    Sum,
}

/// Sizes of a pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolShape {
    pub n: usize,
    pub h: usize,
    pub w: usize,
    pub c: usize,
    pub kh: usize,
    pub kw: usize,
    pub stride: [usize; 2],
    /// Top, left, bottom, right.
    pub pad: [usize; 4],
    pub dilation: [usize; 2],
    pub out_h: usize,
    pub out_w: usize,
}

impl PoolShape {
    /// The window that is the whole of each of `n` images.
    pub const fn whole([n, h, w, c]: [usize; 4]) -> PoolShape {
        PoolShape {
            n,
            h,
            w,
            c,
            kh: h,
            kw: w,
            stride: [1, 1],
            pad: [0; 4],
            dilation: [1, 1],
            out_h: 1,
            out_w: 1,
        }
    }
}

/// A strided copy: concatenations, slices and transposes that are one load and one store.
#[derive(Clone, Debug)]
pub struct Copy {
    /// Parameter and first element.
    pub src: (usize, i64),
    pub dst: (usize, i64),
    /// Bytes of an element.
    pub unit: usize,
    /// Loops around the runs, outermost first.
    pub outer: Vec<Step>,
    pub inner: Inner,
}

/// A loop of a copy: its extent, and strides in elements.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub extent: usize,
    pub src: isize,
    pub dst: isize,
}

/// The innermost part of a copy.
#[derive(Clone, Copy, Debug)]
pub enum Inner {
    /// Elements side by side in both.
    Run(usize),
    /// Rows are dense in the destination, columns in the source: `(along destination, along source)`.
    Tile(Step, Step),
}

/// A fused attention: one launch for each entry of the dims that the kernel does not take.
#[derive(Clone, Debug)]
pub struct Attention {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub q_len: usize,
    pub kv_len: usize,
    pub d: usize,
    pub d_v: usize,
    pub q: Heads,
    pub k: Heads,
    pub v: Heads,
    pub o: Heads,
    pub scale: f32,
    /// Added to the scores, or keeps them where it is true.
    pub mask: Option<ScoreMask>,
    /// Keys are seen up to the query's position and so many more.
    pub causal: Option<isize>,
}

/// Where the heads of an operand are: the first element of its parameter, and strides in elements.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub param: usize,
    pub elem: Elem,
    pub base: i64,
    pub batch: isize,
    pub seq: isize,
    pub head: isize,
    pub d: isize,
}

/// A mask of scores: strides by batch, head, query and key.
#[derive(Clone, Copy, Debug)]
pub struct ScoreMask {
    pub param: usize,
    pub base: i64,
    pub strides: [isize; 4],
    /// Booleans that keep a score; else f32 that are added.
    pub keeps: bool,
}
