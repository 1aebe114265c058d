//! Runs one stage on one block: programs, folds and updates.

use std::ops::Range;

use ir::entity::Entity;
use ir::host::loops::{Action, Stage};
use ir::op::ReduceOp;
use ir::types::DType;

use super::fold::{better, binary_of, combine, neutral};
use super::update::Update;
use crate::cpu::block::memory::{fill, get_lane, set_lane, spread};
use crate::cpu::block::{Class, Frame, RunBlock, Val, ops};
use crate::cpu::env::Env;
use crate::cpu::kernels::rows::{Reduce, reduce_row};

/// Stages that run.
pub(super) trait RunStage {
    /// Runs a stage on the block of `rows` and `cols` from `idx` on; its results become variables.
    ///
    /// # Safety
    /// As for `LoopsExec::run`; `externals` are what the stage reads, and offsets of `scratch` those that were laid
    /// out.
    unsafe fn run(
        &self,
        env: &Env<'_>,
        params: &[*mut u8],
        idx: &mut [i64],
        block: (usize, usize),
        externals: &[Val],
        vars: *mut Val,
        scratch: *mut u8,
    );

    /// Folds one block of values in.
    ///
    /// # Safety
    /// As for [`RunStage::run`].
    unsafe fn accumulate(&self, env: &Env<'_>, value: Val, lanes: usize, block: usize, idx: &[i64], scratch: *mut u8);

    /// Folds the rows of a block in, each in the accumulator of its own.
    ///
    /// # Safety
    /// As for [`RunStage::run`].
    unsafe fn fold_rows(&self, env: &Env<'_>, value: Val, shape: (usize, usize), scratch: *mut u8);

    /// Folds lanes of a value in `sum`.
    ///
    /// # Safety
    /// As for [`RunStage::run`].
    unsafe fn fold_lanes(
        &self,
        env: &Env<'_>,
        types: (ReduceOp, DType, DType),
        value: Val,
        lanes: Range<usize>,
        sum: u64,
    ) -> u64;
}

impl RunStage for Stage {
    unsafe fn run(
        &self,
        env: &Env<'_>,
        params: &[*mut u8],
        idx: &mut [i64],
        (rows, cols): (usize, usize),
        externals: &[Val],
        vars: *mut Val,
        scratch: *mut u8,
    ) {
        // SAFETY: the contract of `LoopsExec::run`; offsets were laid out when it was prepared.
        unsafe {
            let lanes = rows * cols;
            if let Action::Spread { from, to, class, lanes } = &self.action {
                let (points, columns) = (
                    vars.add(from.index()).read(),
                    self.along.map_or(0, |(_, extent)| extent),
                );
                let ptr = scratch.add(*lanes);
                spread(*class, ptr, points.ptr, rows * cols, columns);
                return vars.add(to.index()).write(Val { ptr, bits: 0 });
            }
            let one = self.own_blocks && self.along.is_none();
            if let Action::Fold {
                op, dtype, acc, best, ..
            } = &self.action
            {
                let n = if one { 1 } else { lanes };
                let arg = matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin);
                fill(
                    Class::of(*dtype),
                    scratch.add(*acc),
                    0,
                    n,
                    if arg { 0 } else { neutral(*op, *dtype) },
                );
                if arg {
                    scratch.add(*best).cast::<u64>().write_bytes(0xff, n);
                }
            }
            let mut results = [Val {
                ptr: std::ptr::null_mut(),
                bits: 0,
            }; 2];
            if let Some((dim, _)) = self.along {
                idx[dim] = 0;
            }
            let inner_blocks = self.inner.blocks();
            for block in 0..inner_blocks {
                let own = self.inner.seek(block, idx);
                let (rows, cols) = match self.along {
                    Some((_, extent)) => (rows * cols, extent),
                    None if self.own_blocks => own,
                    None => (rows, cols),
                };
                let frame = Frame {
                    isa: env.isa,
                    idx,
                    rows,
                    cols,
                    params,
                    scratch: scratch.add(self.at),
                };
                match &self.action {
                    Action::Lets(lets) => {
                        // Results go straight to their variables, in order.
                        self.program.run(&frame, externals, &mut []);
                        let vals = frame.scratch.cast::<Val>();
                        for (reg, var) in self.program.results.iter().zip(lets) {
                            vars.add(var.index()).write(vals.add(usize::from(reg.0)).read());
                        }
                    }
                    Action::Fold { .. } => {
                        self.program.run(&frame, externals, &mut results);
                        match self.along {
                            Some(_) => self.fold_rows(env, results[0], (rows, cols), scratch),
                            None => self.accumulate(env, results[0], rows * cols, block, idx, scratch),
                        }
                    }
                    Action::Update {
                        param,
                        dtype,
                        elements,
                        op,
                    } => {
                        self.program.run(&frame, externals, &mut results);
                        let update = Update {
                            buffer: params[*param],
                            dtype: *dtype,
                            elements: *elements,
                            op: *op,
                        };
                        let [places, values] = [0, 1].map(|i| (results[i], self.program.is_uniform(i)));
                        update.run(env, places, values, rows * cols);
                    }
                    Action::Spread { .. } => {}
                }
                let vals = scratch.add(self.at).cast::<Val>();
                let before = self.program.results.len() - self.held.len().min(self.program.results.len());
                for (reg, var) in self.program.results[before..].iter().zip(&self.held) {
                    vars.add(var.index()).write(vals.add(usize::from(reg.0)).read());
                }
            }
            for (dim, _) in &self.inner.outer {
                idx[*dim] = 0;
            }
            for strip in [self.inner.row, self.inner.col].into_iter().flatten() {
                idx[strip.dim] = 0;
            }
            if let Action::Fold { var, dtype, acc, .. } = &self.action {
                let ptr = scratch.add(*acc);
                let bits = if one { get_lane(Class::of(*dtype), ptr, 0) } else { 0 };
                vars.add(var.index()).write(Val { ptr, bits });
            }
        }
    }

    unsafe fn fold_rows(&self, env: &Env<'_>, value: Val, (rows, cols): (usize, usize), scratch: *mut u8) {
        let Action::Fold {
            op,
            value: from,
            dtype,
            acc,
            ..
        } = &self.action
        else {
            return;
        };
        // SAFETY: an accumulator a row.
        unsafe {
            let to = Class::of(*dtype);
            for row in 0..rows {
                let acc = scratch.add(*acc);
                let before = get_lane(to, acc, row);
                let folded = self.fold_lanes(env, (*op, *from, *dtype), value, row * cols..(row + 1) * cols, before);
                set_lane(to, acc, row, folded);
            }
        }
    }

    unsafe fn fold_lanes(
        &self,
        env: &Env<'_>,
        (op, from, dtype): (ReduceOp, DType, DType),
        value: Val,
        lanes: Range<usize>,
        mut sum: u64,
    ) -> u64 {
        let (class, uniform) = (self.program.class(0), self.program.is_uniform(0));
        let kind = match op {
            ReduceOp::Sum => Some(Reduce::Sum),
            ReduceOp::Prod => Some(Reduce::Prod),
            ReduceOp::Max => Some(Reduce::Max),
            ReduceOp::Min => Some(Reduce::Min),
            _ => None,
        };
        let same = from == dtype || (class == Class::F32 && Class::of(dtype) == Class::F32);
        // SAFETY: lanes of the value.
        unsafe {
            if let (Some(kind), Class::F32, true, false) = (kind, class, same, uniform) {
                let part = reduce_row(env.isa, kind, value.ptr.cast::<f32>().add(lanes.start), lanes.len());
                return combine(env, op, dtype, sum, u64::from(part.to_bits()));
            }
            if uniform && same && !lanes.is_empty() {
                let part = match (op, class) {
                    (ReduceOp::Max | ReduceOp::Min | ReduceOp::All | ReduceOp::Any, _) => Some(value.bits),
                    (ReduceOp::Sum, Class::I64) => Some((value.bits as i64).wrapping_mul(lanes.len() as i64) as u64),
                    (ReduceOp::Sum, Class::F32) => {
                        let part = f32::from_bits(value.bits as u32) * lanes.len() as f32;
                        Some(u64::from(part.to_bits()))
                    }
                    _ => None,
                };
                if let Some(part) = part {
                    return combine(env, op, dtype, sum, part);
                }
            }
            if (class, same, uniform) == (Class::I64, true, false) {
                let values = std::slice::from_raw_parts(value.ptr.cast::<i64>().add(lanes.start), lanes.len());
                let part = match op {
                    // Sums wrap to the type once as they would after each number.
                    ReduceOp::Sum => Some(values.iter().fold(0i64, |sum, v| sum.wrapping_add(*v))),
                    ReduceOp::Max => values.iter().copied().max(),
                    ReduceOp::Min => values.iter().copied().min(),
                    _ => None,
                };
                if let Some(part) = part {
                    return combine(env, op, dtype, sum, part as u64);
                }
            }
            if (class, same, uniform) == (Class::Bool, true, false) {
                let values = std::slice::from_raw_parts(value.ptr.cast::<u8>().add(lanes.start), lanes.len());
                let part = match op {
                    ReduceOp::All => Some(values.iter().all(|v| *v != 0)),
                    ReduceOp::Any => Some(values.iter().any(|v| *v != 0)),
                    _ => None,
                };
                if let Some(part) = part {
                    return combine(env, op, dtype, sum, u64::from(part));
                }
            }
            for l in lanes {
                let v = if uniform {
                    value.bits
                } else {
                    get_lane(class, value.ptr, l)
                };
                let v = if same { v } else { ops::cast_scalar(from, dtype, v) };
                sum = combine(env, op, dtype, sum, v);
            }
        }
        sum
    }

    unsafe fn accumulate(&self, env: &Env<'_>, value: Val, lanes: usize, block: usize, idx: &[i64], scratch: *mut u8) {
        let Action::Fold {
            op,
            value: from,
            dtype,
            acc,
            best,
            steps,
            ..
        } = &self.action
        else {
            return;
        };
        let (class, uniform) = (self.program.class(0), self.program.is_uniform(0));
        // SAFETY: accumulators have as many lanes as the block, one where the fold has its own blocks.
        unsafe {
            let acc = scratch.add(*acc);
            let lane = |l: usize| {
                if uniform {
                    value.bits
                } else {
                    get_lane(class, value.ptr, l)
                }
            };
            if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
                let best = scratch.add(*best).cast::<u64>();
                let position = |l: usize| match (self.own_blocks, self.inner.col) {
                    (true, Some(col)) => idx[col.dim] + l as i64,
                    (true, None) => 0,
                    (false, _) => steps.iter().fold(0, |p, (d, e)| p * e + idx[*d]),
                };
                for l in 0..lanes {
                    let slot = if self.own_blocks { 0 } else { l };
                    let first = if self.own_blocks {
                        block == 0 && l == 0
                    } else {
                        block == 0
                    };
                    let new = lane(l);
                    if first || better(*op, class, new, best.add(slot).read()) {
                        best.add(slot).write(new);
                        acc.cast::<i64>().add(slot).write(position(l));
                    }
                }
                return;
            }
            let same = *from == *dtype || (Class::of(*from) == Class::F32 && Class::of(*dtype) == Class::F32);
            if self.own_blocks {
                let before = get_lane(Class::of(*dtype), acc, 0);
                let folded = self.fold_lanes(env, (*op, *from, *dtype), value, 0..lanes, before);
                return set_lane(Class::of(*dtype), acc, 0, folded);
            }
            if same {
                let target = Val { ptr: acc, bits: 0 };
                return ops::binary(
                    env.isa,
                    binary_of(*op),
                    *dtype,
                    acc,
                    (target, false),
                    (value, uniform),
                    0,
                    lanes,
                );
            }
            for l in 0..lanes {
                let v = ops::cast_scalar(*from, *dtype, lane(l));
                let old = get_lane(Class::of(*dtype), acc, l);
                set_lane(Class::of(*dtype), acc, l, combine(env, *op, *dtype, old, v));
            }
        }
    }
}
