//! Elements that the lanes of a block update, each after the one before it.

use ir::op::ReduceOp;
use ir::types::DType;

use super::fold::{binary_of, combine};
use crate::cpu::block::memory::{fill, get_lane, read, write};
use crate::cpu::block::{Class, Val, copy_lanes, ops};
use crate::cpu::env::Env;

/// Fewer neighbours are updated one by one.
const FEWEST: usize = 8;

/// A buffer of `elements`, and what becomes of an element and a lane's value: the value, or a reduction of both.
pub(super) struct Update {
    pub buffer: *mut u8,
    pub dtype: DType,
    pub elements: i64,
    pub op: Option<ReduceOp>,
}

impl Update {
    /// Updates the elements at `places` with `values`, each one number for all lanes or one a lane; lanes whose places
    /// are outside of the buffer do nothing. Lanes that go through neighbours do so at once.
    ///
    /// # Safety
    /// The buffer has its elements, which no other thread touches; what has lanes has so many.
    pub(super) unsafe fn run(&self, env: &Env<'_>, places: (Val, bool), values: (Val, bool), lanes: usize) {
        let class = Class::of(self.dtype);
        let size = match self.dtype {
            DType::F32 => 4,
            DType::F64 | DType::I64 => 8,
            _ => 0,
        };
        // SAFETY: the caller's contract.
        unsafe {
            let place = |lane: usize| match places.1 {
                true => places.0.bits as i64,
                false => get_lane(Class::I64, places.0.ptr, lane) as i64,
            };
            let mut lane = 0;
            while lane < lanes {
                let at = place(lane);
                let mut n = 1;
                while size > 0 && lane + n < lanes && at.checked_add(n as i64) == Some(place(lane + n)) {
                    n += 1;
                }
                let inside = at >= 0 && at.checked_add(n as i64).is_some_and(|end| end <= self.elements);
                if n >= FEWEST && inside {
                    self.neighbours(env, at as usize * size, values, (lane, n), size);
                } else {
                    for i in 0..n {
                        let bits = match values.1 {
                            true => values.0.bits,
                            false => get_lane(class, values.0.ptr, lane + i),
                        };
                        self.one(env, at.wrapping_add(i as i64), bits);
                    }
                }
                lane += n;
            }
        }
    }

    /// # Safety
    /// As for [`Update::run`].
    unsafe fn one(&self, env: &Env<'_>, at: i64, new: u64) {
        if at < 0 || at >= self.elements {
            return;
        }
        // SAFETY: the element is inside.
        unsafe {
            let value = match self.op {
                None => new,
                Some(op) => combine(env, op, self.dtype, read(self.dtype, self.buffer, at), new),
            };
            write(self.dtype, self.buffer, at, value);
        }
    }

    /// The elements from `at` bytes on, by so many lanes, in a type that registers hold as memory does.
    ///
    /// # Safety
    /// As for [`Update::run`]; the elements are inside.
    unsafe fn neighbours(
        &self,
        env: &Env<'_>,
        at: usize,
        (value, uniform): (Val, bool),
        (lane, n): (usize, usize),
        size: usize,
    ) {
        let to = self.buffer.wrapping_add(at);
        let new = Val {
            ptr: value.ptr.wrapping_add(lane * size),
            ..value
        };
        let old = Val { ptr: to, bits: 0 };
        // SAFETY: the caller's contract.
        unsafe {
            match (self.op, uniform) {
                (Some(op), _) => ops::binary(
                    env.isa,
                    binary_of(op),
                    self.dtype,
                    to,
                    (old, false),
                    (new, uniform),
                    0,
                    n,
                ),
                (None, false) => copy_lanes(new.ptr, to, n * size),
                (None, true) => fill(Class::of(self.dtype), to, 0, n, value.bits),
            }
        }
    }
}
