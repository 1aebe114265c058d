//! Scans and sorts: for each point, one after another along an axis.

use super::block::{Class, Program};
use super::loops::{Nest, Strip};
use crate::op::ReduceOp;
use crate::types::DType;

/// What scans and sorts have in common: points outside, a program for values, one for stores.
#[derive(Clone, Debug)]
pub struct Lines {
    /// How many dims there are.
    pub space: usize,
    pub points: Nest,
    pub axis: Strip,
    pub value: Program,
    pub class: Class,
    pub stores: Program,
    /// Points run one after another: several share a byte.
    pub ordered: bool,
}

/// A running fold.
#[derive(Clone, Debug)]
pub struct Scan {
    pub lines: Lines,
    pub op: ReduceOp,
    pub from: DType,
    pub dtype: DType,
    pub exclusive: bool,
    pub reverse: bool,
    /// Blocks are some of the points beside each other, which are walked along the axis together: the columns of
    /// `points`.
    pub across: bool,
}

/// The first of an order.
#[derive(Clone, Debug)]
pub struct Sort {
    pub lines: Lines,
    pub largest: bool,
    pub rank: Strip,
}
