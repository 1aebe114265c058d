//! Block programs: expressions compiled to instructions over up to a thousand points at a time.
//!
//! A block is `rows × cols` points of two loop dims (row-major lanes); all other dims are fixed while it runs. A
//! register holds one value for the whole block (*uniform*) or one a lane, in one of four classes: f32 (all narrow
//! floats too), f64, i64 (all integers, wrapped to their width) and bool. Loads with unit stride and the register's own
//! type are used in place; the rest is gathered. `Select` keeps its laziness: where the condition is an affine range,
//! each branch runs on the lanes that take it; else both run with indices clamped to the buffer, and the lanes are
//! blended.

use super::affine::Affine;
use super::product::StageOp;
use crate::op::{BinaryOp, UnaryOp};
use crate::types::{DType, Scalar};

/// Bytes of scratch that a register takes besides its lanes: where they are, or its one value.
pub const VALUE_BYTES: usize = 16;

/// Most lanes of a block.
pub const MAX_LANES: usize = 1024;

/// How a register's values are held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    F32,
    F64,
    I64,
    Bool,
}

impl Class {
    /// The class that holds every value of a type.
    pub fn of(dtype: DType) -> Class {
        match dtype {
            DType::F64 => Class::F64,
            DType::Bool => Class::Bool,
            d if d.is_int() => Class::I64,
            _ => Class::F32,
        }
    }

    /// Bytes of a lane.
    pub fn bytes(self) -> usize {
        match self {
            Class::F32 => 4,
            Class::F64 | Class::I64 => 8,
            Class::Bool => 1,
        }
    }
}

/// A register of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reg(pub u16);

/// What is known of a register before the program runs.
#[derive(Clone, Debug)]
pub struct RegInfo {
    pub class: Class,
    pub uniform: bool,
    /// Byte offset of its lanes in the program's scratch.
    pub slot: Option<u32>,
}

/// Where element `index` of a buffer is for each lane.
#[derive(Clone, Debug)]
pub struct Addr {
    /// The affine part, rows and columns of the block included.
    pub form: Affine,
    /// Steps to the next row and the next column.
    pub row: i64,
    pub col: i64,
    /// Added: the part that data decides.
    pub dynamic: Option<Reg>,
    /// Added: integers of buffers, of loads alone.
    pub tables: Vec<Table>,
    pub elements: i64,
    /// Not proven to be inside for all points: looked at when it runs.
    pub check: bool,
}

/// A term of an address that lies in a buffer of `i64`: of some loop positions alone, the same for all columns or one a
/// column.
#[derive(Clone, Debug)]
pub struct Table {
    pub param: usize,
    /// The element, which is inside at every point.
    pub form: Affine,
    /// Steps to the element of the next row and the next column. A step of columns is 0 or 1, and 1 of one table at
    /// most.
    pub row: i64,
    pub col: i64,
}

/// An instruction.
#[derive(Clone, Debug)]
pub enum Inst {
    /// Integers of 8 bits may be loaded as f32.
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
    /// Arithmetic of f32 with one number after the other.
    Chain(Box<Chain>),
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

/// What is done to each lane of `a`, in order.
#[derive(Clone, Debug)]
pub struct Chain {
    pub dst: Reg,
    pub a: Reg,
    pub links: Vec<Link>,
}

/// One operation of a [`Chain`]; registers are uniform.
#[derive(Clone, Copy, Debug)]
pub enum Link {
    /// The lane is the left operand. Of NaN, `Max` and `Min` keep it.
    Op(StageOp, Reg),
    /// To whole numbers, ties to even.
    Round,
    /// The quotient by a number, to whole numbers.
    RoundQuotient(Reg),
}

#[derive(Clone, Debug)]
pub struct Guard {
    pub dst: Reg,
    /// With the row and column steps.
    pub conditions: Vec<(Affine, i64, i64)>,
    pub then: Vec<Inst>,
    pub a: Reg,
    pub other: Vec<Inst>,
    pub b: Reg,
}

#[derive(Clone, Debug)]
pub struct Branch {
    pub dst: Reg,
    pub cond: Reg,
    pub then: Vec<Inst>,
    pub a: Reg,
    pub other: Vec<Inst>,
    pub b: Reg,
}

/// A store at the end of a program. Integers of 8 bits may be stored from f32: cut to what fits, 0 of NaN.
#[derive(Clone, Debug)]
pub struct Store {
    pub param: usize,
    pub dtype: DType,
    pub addr: Addr,
    pub value: Reg,
}

/// A compiled group of expressions.
#[derive(Clone, Debug, Default)]
pub struct Program {
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

impl Program {
    /// Says whether a result has one value for the whole block.
    pub fn is_uniform(&self, result: usize) -> bool {
        self.regs[usize::from(self.results[result].0)].uniform
    }

    /// Returns the class of a result.
    pub fn class(&self, result: usize) -> Class {
        self.regs[usize::from(self.results[result].0)].class
    }
}

/// The bits of a scalar as a register of its class holds it.
pub fn scalar_bits(dtype: DType, value: Scalar) -> u64 {
    match Class::of(dtype) {
        Class::F32 => {
            let rounded = if dtype == DType::F32 {
                value.as_f64()
            } else {
                crate::convert::round_to(dtype, value.as_f64())
            };
            u64::from((rounded as f32).to_bits())
        }
        Class::F64 => value.as_f64().to_bits(),
        Class::I64 => value.as_i64() as u64,
        Class::Bool => u64::from(value.as_bool()),
    }
}
