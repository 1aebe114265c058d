//! Loads from where tables of integers say: rows of a gather, columns of a padded or resized image.
//!
//! What a table has for neighbouring lanes are often neighbours in memory, and the same for each row of a block: it is
//! looked through once, and each row then copies a few runs. Where there are none, elements are gathered one by one.
#![expect(unsafe_op_in_unsafe_fn, reason = "lane loops under the contract of `Program::run`")]

use ir::types::DType;
use smallvec::SmallVec;

use super::Class;
use super::memory::{load_run, read, set_lane};
use crate::cpu::kernels::Isa;

/// Shorter runs on average are not worth a copy each.
const SHORTEST: usize = 8;

/// Lanes whose places follow one another.
struct Run {
    lane: usize,
    lanes: usize,
    from: i64,
}

/// The places of some lanes, from a start that is another for each row.
pub(super) struct Places {
    from: *const i64,
    /// Added for each lane.
    step: i64,
    lanes: usize,
    /// None where runs are short.
    runs: SmallVec<[Run; 16]>,
    least: i64,
    most: i64,
}

impl Places {
    /// Looks through a table: the place of lane `i` is `from[i] + step * i`.
    ///
    /// # Safety
    /// There are as many numbers as lanes, for as long as this is used.
    pub(super) unsafe fn new(from: *const i64, step: i64, lanes: usize) -> Places {
        let mut places = Places {
            from,
            step,
            lanes,
            runs: SmallVec::new(),
            least: i64::MAX,
            most: i64::MIN,
        };
        let most_runs = (lanes / SHORTEST).max(1);
        let mut next = None;
        for lane in 0..lanes {
            let place = places.at(lane);
            places.least = places.least.min(place);
            places.most = places.most.max(place);
            if next != Some(place) && places.runs.len() <= most_runs {
                places.runs.push(Run {
                    lane,
                    lanes: 0,
                    from: place,
                });
            }
            if let Some(run) = places.runs.last_mut() {
                run.lanes = lane + 1 - run.lane;
            }
            next = place.checked_add(1);
        }
        if places.runs.len() > most_runs {
            places.runs.clear();
        }
        places
    }

    #[inline(always)]
    unsafe fn at(&self, lane: usize) -> i64 {
        self.from
            .add(lane)
            .read()
            .wrapping_add(self.step.wrapping_mul(lane as i64))
    }

    /// Loads the lanes to `lane` and those after it; places outside of the buffer's elements, of which there is one at
    /// least, are clamped.
    ///
    /// # Safety
    /// Lanes are inside the register, and the buffer has the elements.
    pub(super) unsafe fn load(
        &self,
        isa: Isa,
        (class, dtype): (Class, DType),
        to: *mut u8,
        lane: usize,
        buffer: *const u8,
        start: i64,
        elements: i64,
    ) {
        let inside = |place: i64| start.checked_add(place).is_some_and(|at| (0..elements).contains(&at));
        if !inside(self.least) || !inside(self.most) {
            for i in 0..self.lanes {
                let at = start.wrapping_add(self.at(i)).clamp(0, elements - 1);
                set_lane(class, to, lane + i, read(dtype, buffer, at));
            }
            return;
        }
        if !self.runs.is_empty() {
            for run in &self.runs {
                load_run(isa, dtype, to, lane + run.lane, buffer, start + run.from, 1, run.lanes);
            }
            return;
        }
        match dtype {
            DType::F32 => self.gather::<u32>(to.cast::<u32>().add(lane), buffer.cast(), start),
            DType::F64 | DType::I64 => self.gather::<u64>(to.cast::<u64>().add(lane), buffer.cast(), start),
            _ => {
                for i in 0..self.lanes {
                    set_lane(class, to, lane + i, read(dtype, buffer, start + self.at(i)));
                }
            }
        }
    }

    /// Copies elements one by one.
    unsafe fn gather<T: Copy>(&self, to: *mut T, buffer: *const T, start: i64) {
        let buffer = buffer.wrapping_offset(start as isize);
        if self.step == 0 {
            for i in 0..self.lanes {
                to.add(i)
                    .write(buffer.wrapping_offset(self.from.add(i).read() as isize).read());
            }
        } else {
            for i in 0..self.lanes {
                to.add(i).write(buffer.wrapping_offset(self.at(i) as isize).read());
            }
        }
    }
}
