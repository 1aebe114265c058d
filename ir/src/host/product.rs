//! Matrix products and convolutions, of floats and of 8-bit integers, with what follows them.
//!
//! What follows a product is taken apart: a constant factor, a bias per column, a residual and a ReLU or clip are the
//! product's own; what is left runs as a block program on each finished tile.

use std::sync::Arc;

use super::affine::Affine;
use super::block::Program;
use crate::op::{Layout, UnaryOp};
use crate::types::DType;

/// Lanes that the program behind a float product takes at once.
pub const TILE_LANES: usize = 2048;

/// Lanes that the program behind a product of integers takes at once.
pub const SUM_LANES: usize = 1024;

/// The storage type of a floating operand; arithmetic is f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elem {
    F32,
    F16,
    BF16,
}

impl Elem {
    /// All of them.
    pub const ALL: [Elem; 3] = [Elem::F32, Elem::F16, Elem::BF16];

    /// Returns the storage type that product kernels take, if they do.
    pub fn of(dtype: DType) -> Option<Elem> {
        match dtype {
            DType::F32 => Some(Elem::F32),
            DType::F16 => Some(Elem::F16),
            DType::BF16 => Some(Elem::BF16),
            _ => None,
        }
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Elem::F32 => 4,
            Elem::F16 | Elem::BF16 => 2,
        }
    }
}

/// The activation of the built-in epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Activation {
    #[default]
    None,
    /// `max(x, 0)`, NaN stays.
    Relu,
    /// `min(max(x, lo), hi)`, NaN stays.
    Clip(f32, f32),
}

/// What is done to finished values in registers: `activation(acc * scale + bias + residual)`, then a program on each
/// tile.
#[derive(Clone, Debug)]
pub struct Epilogue<R> {
    pub scale: f32,
    /// Parameter and first element: a f32 a column.
    pub bias: Option<(usize, i64)>,
    /// f32 in the result's shape.
    pub residual: Option<R>,
    pub activation: Activation,
    pub program: Option<Program>,
    /// The program reads the elements that the result replaces.
    pub reads_replaced: bool,
}

/// Where tiles are: dims of their rows and columns, if these have more than one position, and the other dims'
/// positions.
#[derive(Clone, Debug)]
pub struct Tiles {
    pub dims: TileDims,
    /// How many dims there are.
    pub space: usize,
    /// Positions on every dim, for each entry.
    pub positions: Vec<i64>,
}

/// Dims of a tile: its rows and columns, if they have more than one position.
#[derive(Clone, Copy, Debug)]
pub struct TileDims {
    pub row: Option<usize>,
    pub col: Option<usize>,
    /// A bias may differ between batch entries only as a residual.
    pub entries: bool,
}

/// Matrix products of several entries: the last of the `m`, `n` and `k` dims are the matrix, all others entries by
/// table.
#[derive(Clone, Debug)]
pub struct Gemm {
    pub entries: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: Matrix,
    pub b: Matrix,
    pub right: Right,
    /// Set where a run chooses each entry's right operand.
    pub chosen: Option<Chosen>,
    pub c: Matrix,
    pub epilogue: Epilogue<Matrix>,
    pub tiles: Tiles,
}

/// Right operands that are chosen among constants: products of one row each, with a scale and a bias as their epilogue.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The parameter of 64-bit numbers, and which of them is an entry's.
    pub param: usize,
    pub at: Vec<usize>,
    /// How many matrices there are, and elements from one to the next.
    pub count: usize,
    pub step: i64,
}

/// How the right operand of a float product is read.
#[derive(Clone, Debug)]
pub enum Right {
    /// As it lies.
    Plain,
    /// A constant, packed once: where each of its matrices begins, which entries take in turn.
    Packed(Vec<isize>),
    /// A matrix of quantised constants, packed as they are stored. Matrices that are chosen lie side by side in it.
    Quantised(Arc<QuantisedMatrix>),
}

/// A strided operand: parameter, first element, strides of rows and columns, all in elements.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub param: usize,
    pub elem: Elem,
    pub base: i64,
    pub row: i64,
    pub col: i64,
    /// By batch entry; empty where all entries are the same.
    pub table: Vec<isize>,
}

/// Numbers of a matrix that is stored quantised: that of row `r` and column `c` is element `base + r·row + c·col` of
/// the constant.
#[derive(Clone, Debug)]
pub struct QuantisedMatrix {
    /// 4, two to a byte with the first in the low bits, or 8.
    pub bits: u32,
    pub signed: bool,
    /// Set where the elements are floats of 8 bits, all of them finite.
    pub float: Option<Float8>,
    pub base: i64,
    pub row: i64,
    pub col: i64,
    /// Rows that share a scale and a zero point.
    pub group: usize,
    /// Scale and zero point: for each column those of its groups.
    pub scales: Arc<Vec<(f32, f32)>>,
}

/// A float of 8 bits: a sign, an exponent, a mantissa of 3 or 2 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Float8 {
    pub mantissa: u32,
    /// Of the exponent.
    pub bias: u32,
}

/// A convolution with constant filters.
#[derive(Clone, Debug)]
pub struct Conv {
    pub shape: ConvShape,
    pub input: usize,
    pub input_elem: Elem,
    pub input_strides: ImageStrides,
    pub filter: usize,
    /// How the filters lie.
    pub layout: Layout,
    /// Transposed: filters are `[c, o / groups, window]`, and the epilogue has neither a residual nor a program.
    pub transposed: bool,
    pub output: usize,
    pub output_elem: Elem,
    pub output_base: i64,
    pub output_strides: ImageStrides,
    /// Elements from a group's first filter to the next group's.
    pub output_group: isize,
    pub epilogue: Epilogue<PixelRows>,
    pub tiles: Tiles,
}

/// A residual of pixels: parameter, first element, and strides from pixel to pixel and image to image.
#[derive(Clone, Copy, Debug)]
pub struct PixelRows {
    pub param: usize,
    pub base: i64,
    pub pixel: usize,
    pub image: isize,
}

/// Sizes of a convolution, as ONNX has them. Channel counts `c` and `o` are totals over groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvShape {
    pub n: usize,
    pub h: usize,
    pub w: usize,
    pub c: usize,
    pub o: usize,
    pub kh: usize,
    pub kw: usize,
    pub stride: [usize; 2],
    /// Top, left, bottom, right.
    pub pad: [usize; 4],
    pub dilation: [usize; 2],
    pub groups: usize,
    pub out_h: usize,
    pub out_w: usize,
}

impl ConvShape {
    /// The shape with output sizes by ONNX's formula; zero where the kernel does not fit.
    pub fn new(
        [n, h, w, c]: [usize; 4],
        o: usize,
        [kh, kw]: [usize; 2],
        stride: [usize; 2],
        pad: [usize; 4],
        dilation: [usize; 2],
        groups: usize,
    ) -> ConvShape {
        let out = |size: usize, k: usize, s: usize, d: usize, p: usize| {
            (size + p)
                .checked_sub(d * (k.max(1) - 1) + 1)
                .map_or(0, |room| room / s.max(1) + 1)
        };
        ConvShape {
            n,
            h,
            w,
            c,
            o,
            kh,
            kw,
            stride,
            pad,
            dilation,
            groups,
            out_h: out(h, kh, stride[0], dilation[0], pad[0] + pad[2]),
            out_w: out(w, kw, stride[1], dilation[1], pad[1] + pad[3]),
        }
    }

    /// The transposed shape: output sizes by ONNX's ConvTranspose formula.
    pub fn transposed(
        [n, h, w, c]: [usize; 4],
        o: usize,
        [kh, kw]: [usize; 2],
        stride: [usize; 2],
        pad: [usize; 4],
        dilation: [usize; 2],
        output_padding: [usize; 2],
        groups: usize,
    ) -> ConvShape {
        let out = |size: usize, k: usize, s: usize, d: usize, p: usize, extra: usize| {
            (s * size.saturating_sub(1) + extra + d * (k.max(1) - 1) + 1).saturating_sub(p)
        };
        ConvShape {
            n,
            h,
            w,
            c,
            o,
            kh,
            kw,
            stride,
            pad,
            dilation,
            groups,
            out_h: out(h, kh, stride[0], dilation[0], pad[0] + pad[2], output_padding[0]),
            out_w: out(w, kw, stride[1], dilation[1], pad[1] + pad[3], output_padding[1]),
        }
    }
}

/// Element strides of an image by axis, whatever the memory order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageStrides {
    pub n: isize,
    pub h: isize,
    pub w: isize,
    pub c: isize,
}

impl ImageStrides {
    pub fn nhwc(h: usize, w: usize, c: usize) -> ImageStrides {
        ImageStrides {
            n: (h * w * c) as isize,
            h: (w * c) as isize,
            w: c as isize,
            c: 1,
        }
    }

    pub fn nchw(h: usize, w: usize, c: usize) -> ImageStrides {
        ImageStrides {
            n: (h * w * c) as isize,
            h: w as isize,
            w: 1,
            c: (h * w) as isize,
        }
    }
}

/// A product of 8-bit integers in 32 bits.
#[derive(Clone, Debug)]
pub struct Integers {
    pub entries: usize,
    pub m: usize,
    pub k: usize,
    pub left: IntegerRows,
    pub input: usize,
    pub filter: usize,
    pub right: IntegerWeights,
    /// Columns of one right operand, and how many of them share the columns of the result: those of groups.
    pub columns: usize,
    pub groups: usize,
    pub added: Added,
    pub finish: Finish,
    pub tiles: Tiles,
    /// Dims of the columns with their extents, the innermost last.
    pub across: Vec<(usize, usize)>,
}

/// Where rows of the left operand come from.
#[derive(Clone, Debug)]
pub enum IntegerRows {
    /// A matrix for each entry: the first element, strides of rows and elements, where each entry begins from there.
    Matrix {
        base: i64,
        row: i64,
        step: i64,
        table: Vec<i64>,
    },
    Image(Image),
    /// As an image, of which each channel has a filter of its own.
    Depthwise(Image),
}

/// Images that a product of integers takes windows of.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    pub shape: ConvShape,
    pub strides: ImageStrides,
    /// What stands outside.
    pub padding: i8,
}

/// The right operand of a product of integers.
#[derive(Clone, Debug)]
pub enum IntegerWeights {
    /// Constant filters of the image's groups.
    Filters(Layout),
    /// A constant matrix of `n` columns that all entries share: the first element, and strides of rows and columns.
    Matrix {
        n: usize,
        base: i64,
        down: i64,
        across: i64,
    },
    /// What a run gives, packed in each.
    Given {
        matrix: GivenMatrix,
        /// Where each matrix begins, in elements of the parameter.
        starts: Vec<i64>,
        /// The number of each entry's matrix.
        of: Vec<usize>,
        /// The temporary of what is packed.
        to: usize,
    },
}

/// A right operand that is packed when it is known: `k` rows `down` bytes apart, `n` columns `across` bytes apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GivenMatrix {
    pub k: usize,
    pub n: usize,
    pub down: isize,
    pub across: isize,
}

/// What is done to sums of integers.
#[derive(Clone, Debug)]
pub enum Finish {
    /// They are stored.
    Sums(Place),
    Stages(Vec<Step>),
    Program(Program),
}

/// A parameter at an affine place, which was shown to be inside it.
#[derive(Clone, Debug)]
pub struct Place {
    pub param: usize,
    /// Of an element.
    pub bytes: usize,
    pub form: Affine,
}

/// What is done to sums as they are, in 32 bits: they are multiplied, then the rest is added.
#[derive(Clone, Debug, Default)]
pub struct Added {
    pub factor: Option<Factor>,
    /// A number an element.
    pub each: Option<Place>,
    /// A number a column.
    pub columns: Option<Place>,
    /// A number a row, perhaps times others.
    pub outer: Option<(Place, Option<Factor>)>,
}

/// What integers are multiplied by.
#[derive(Clone, Debug)]
pub enum Factor {
    Number(i32),
    /// A number a column.
    Columns(Place),
}

/// One step of what is done to sums that have become floats, each value by itself.
#[derive(Clone, Debug)]
pub enum Step {
    /// With one number.
    Number(StageOp, f32),
    /// With one number a column, or a row.
    Columns(StageOp, Place),
    Rows(StageOp, Place),
    /// Adds `(x − zero) · scale` of numbers in the tile's shape, or where it is positive alone.
    Residual {
        from: Place,
        stored: Stored,
        zero: f32,
        scale: f32,
        positive: bool,
    },
    /// A function of each; the result is a number.
    Function(UnaryOp),
    /// To whole numbers, ties to even.
    Round,
    /// The quotient by a number, to whole numbers.
    RoundQuotient(f32),
    /// What a table has for an integer of 8 bits, by its bits.
    Table(Arc<[f32; 256]>),
    /// Stores the values as they are now; integers are whole already and inside their type.
    Store(Place, Stored),
}

/// Arithmetic of a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageOp {
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
}

/// How numbers that a step reads or writes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    F32,
    I32,
    I8,
    U8,
}
