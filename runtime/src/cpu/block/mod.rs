//! Block programs: expressions compiled to instructions over up to a thousand points at a time.
//!
//! A block is `rows × cols` points of two loop dims (row-major lanes); all other dims are fixed while it runs. A register
//! holds one value for the whole block (*uniform*) or one a lane, in one of four classes: f32 (all narrow floats too),
//! f64, i64 (all integers, wrapped to their width) and bool. Loads with unit stride and the register's own type are used in
//! place; the rest is gathered. `Select` keeps its laziness: where the condition is an affine range, each branch runs on the
//! lanes that take it; else both run with indices clamped to the buffer, and the lanes are blended.

pub(crate) mod compile;
pub(crate) mod memory;
pub(crate) mod ops;
pub(crate) mod run;
mod slots;

use ir::op::{BinaryOp, UnaryOp};
use ir::types::DType;

use super::affine::Affine;

/// Most lanes of a block.
pub(crate) const MAX_LANES: usize = 1024;

/// How a register's values are held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    F32,
    F64,
    I64,
    Bool,
}

impl Class {
    /// The class that holds every value of a type.
    pub(crate) fn of(dtype: DType) -> Class {
        match dtype {
            DType::F64 => Class::F64,
            DType::Bool => Class::Bool,
            d if d.is_int() => Class::I64,
            _ => Class::F32,
        }
    }

    /// Bytes of a lane.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Class::F32 => 4,
            Class::F64 | Class::I64 => 8,
            Class::Bool => 1,
        }
    }
}

/// A register of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reg(pub u16);

/// What is known of a register before the program runs.
#[derive(Clone, Debug)]
pub(crate) struct RegInfo {
    pub class: Class,
    pub uniform: bool,
    /// Byte offset of its lanes in the program's scratch.
    pub slot: Option<u32>,
}

/// Where element `index` of a buffer is for each lane.
#[derive(Clone, Debug)]
pub(crate) struct Addr {
    /// The affine part, rows and columns of the block included.
    pub form: Affine,
    /// Steps to the next row and the next column.
    pub row: i64,
    pub col: i64,
    /// Added: the part that data decides.
    pub dynamic: Option<Reg>,
    pub elements: i64,
    /// Not proven to be inside for all points: looked at when it runs.
    pub check: bool,
}

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) enum Inst {
    Load {
        dst: Reg,
        param: usize,
        dtype: DType,
        addr: Addr,
    },
    /// The affine form itself.
    Index {
        dst: Reg,
        form: Affine,
        row: i64,
        col: i64,
    },
    Unary {
        dst: Reg,
        op: UnaryOp,
        dtype: DType,
        a: Reg,
    },
    Binary {
        dst: Reg,
        op: BinaryOp,
        dtype: DType,
        a: Reg,
        b: Reg,
    },
    Cast {
        dst: Reg,
        from: DType,
        to: DType,
        a: Reg,
    },
    /// Both sides are there: lane by lane.
    Blend {
        dst: Reg,
        cond: Reg,
        a: Reg,
        b: Reg,
    },
    /// Lanes where every form is at least 0 run `then`, the rest `other`.
    Guard(Box<Guard>),
    /// Lanes where `cond` holds take `then`.
    Branch(Box<Branch>),
    Philox {
        dst: Reg,
        seed: u64,
        lane: u8,
        counter: Reg,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Guard {
    pub dst: Reg,
    /// With the row and column steps.
    pub conditions: Vec<(Affine, i64, i64)>,
    pub then: Vec<Inst>,
    pub a: Reg,
    pub other: Vec<Inst>,
    pub b: Reg,
}

#[derive(Clone, Debug)]
pub(crate) struct Branch {
    pub dst: Reg,
    pub cond: Reg,
    pub then: Vec<Inst>,
    pub a: Reg,
    pub other: Vec<Inst>,
    pub b: Reg,
}

/// A store at the end of a program.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub param: usize,
    pub dtype: DType,
    pub addr: Addr,
    pub value: Reg,
}

/// A compiled group of expressions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    pub insts: Vec<Inst>,
    pub regs: Vec<RegInfo>,
    /// Registers with a value that never changes.
    pub consts: Vec<(Reg, u64)>,
    /// Registers that the caller sets before each run.
    pub externals: Vec<Reg>,
    /// Registers that the caller reads after each run.
    pub results: Vec<Reg>,
    pub stores: Vec<Store>,
    /// Computed in the stored buffer where the block is dense there.
    pub direct: Option<Reg>,
    /// Loads are copied: a store may overwrite what a later one still reads.
    pub copy_loads: bool,
    /// Lanes that slots have room for.
    pub lanes: usize,
    /// Bytes of scratch: values, then slots.
    pub scratch: usize,
    /// About how many vector operations a lane costs.
    pub cost: usize,
}

/// What a register holds while a program runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Val {
    /// Lane 0, for a register with lanes.
    pub ptr: *mut u8,
    /// The value, for a uniform register: f32 and f64 by their bits, integers, 0 and 1.
    pub bits: u64,
}

/// The point that a block starts at, and its memory.
pub(crate) struct Frame<'a> {
    pub isa: super::kernels::Isa,
    /// Position on each dim; those of rows and columns are the block's first.
    pub idx: &'a [i64],
    pub rows: usize,
    pub cols: usize,
    /// Buffers by parameter.
    pub params: &'a [*mut u8],
    /// The thread's scratch for this program.
    pub scratch: *mut u8,
}
