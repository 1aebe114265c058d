//! Scans and sorts: for each point, one after another along an axis.

use ir::host::block::{Class, MAX_LANES};
use ir::host::ordered::{Lines, Scan, Sort};
use ir::op::ReduceOp;
use ir::types::DType;

use super::block::memory::{fill, get_lane, set_lane};
use super::block::{Frame, RunBlock, Val, ops};
use super::env::Env;
use super::loops::{binary_of, combine, neutral};

struct Params<'a>(&'a [*mut u8]);
// SAFETY: addresses only; each task writes its own part of what they point to.
unsafe impl Sync for Params<'_> {}

fn head(l: &Lines) -> usize {
    (l.space * 8).next_multiple_of(64)
}

fn program_bytes(l: &Lines) -> usize {
    l.value.scratch.max(l.stores.scratch).next_multiple_of(64)
}

unsafe fn each(
    l: &Lines,
    env: &Env<'_>,
    params: &[*mut u8],
    run: &(dyn Fn((&mut [i64], usize), &[*mut u8], *mut u8) + Sync),
) {
    let points = l.points.blocks();
    let most = if l.ordered { 1 } else { env.threads() * 4 };
    let tasks = points.min(most).max(1);
    let params = Params(params);
    env.parallel_for(tasks, &|task, scratch| {
        let params = &params;
        // SAFETY: the scratch begins with positions on every dim.
        let idx = unsafe {
            scratch.cast::<i64>().write_bytes(0, l.space);
            std::slice::from_raw_parts_mut(scratch.cast::<i64>(), l.space)
        };
        for point in points * task / tasks..points * (task + 1) / tasks {
            let (_, cols) = l.points.seek(point, idx);
            run((idx, cols), params.0, scratch);
        }
    });
}

const NONE: Val = Val {
    ptr: std::ptr::null_mut(),
    bits: 0,
};

/// Adds up the lanes of a block in numbers of one type; says no where it is another fold.
unsafe fn running_sum(form: &Scan, from: *const u8, to: *mut u8, n: usize, sum: &mut u64) -> bool {
    macro_rules! run {
        ($t:ty, $start:expr, |$a:ident, $b:ident| $add:expr, $bits:expr) => {{
            let (from, to) = (from.cast::<$t>(), to.cast::<$t>());
            let mut $a: $t = $start;
            for i in 0..n {
                let lane = if form.reverse { n - 1 - i } else { i };
                let $b = from.add(lane).read();
                let next = $add;
                to.add(lane).write(if form.exclusive { $a } else { next });
                $a = next;
            }
            *sum = $bits($a);
        }};
    }
    if form.op != ReduceOp::Sum || form.from != form.dtype {
        return false;
    }
    // SAFETY: the caller's lanes.
    unsafe {
        match form.dtype {
            DType::F32 => run!(f32, f32::from_bits(*sum as u32), |a, b| a + b, |v: f32| u64::from(
                v.to_bits()
            )),
            DType::F64 => run!(f64, f64::from_bits(*sum), |a, b| a + b, f64::to_bits),
            DType::I64 => run!(i64, *sum as i64, |a, b| a.wrapping_add(b), |v: i64| v as u64),
            _ => return false,
        }
    }
    true
}

pub(crate) fn scan_scratch(form: &Scan) -> usize {
    head(&form.lines) + program_bytes(&form.lines) + 2 * MAX_LANES * 8
}

/// # Safety
/// As for `LoopsExec::run`.
pub(crate) unsafe fn scan(form: &Scan, env: &Env<'_>, params: &[*mut u8]) {
    if form.across {
        // SAFETY: the caller's contract.
        return unsafe { scan_across(form, env, params) };
    }
    let l = &form.lines;
    let class = Class::of(form.dtype);
    let blocks = (l.axis.extent + l.axis.block - 1) / l.axis.block;
    let line = |(idx, _): (&mut [i64], usize), params: &[*mut u8], scratch: *mut u8| {
        let mut sum = neutral(form.op, form.dtype);
        for step in 0..blocks {
            let block = if form.reverse { blocks - 1 - step } else { step };
            let start = block * l.axis.block;
            idx[l.axis.dim] = start;
            let n = l.axis.block.min(l.axis.extent - start) as usize;
            // SAFETY: the scratch was laid out by `scratch`.
            unsafe {
                let at = scratch.add(head(l));
                let out = at.add(program_bytes(l));
                let frame = Frame {
                    isa: env.isa,
                    idx,
                    rows: 1,
                    cols: n,
                    params,
                    scratch: at,
                };
                let mut values = [NONE];
                l.value.run(&frame, &[], &mut values);
                if !l.value.is_uniform(0) && running_sum(form, values[0].ptr, out, n, &mut sum) {
                    l.stores.run(&frame, &[Val { ptr: out, bits: 0 }], &mut []);
                    continue;
                }
                for i in 0..n {
                    let lane = if form.reverse { n - 1 - i } else { i };
                    let bits = if l.value.is_uniform(0) {
                        values[0].bits
                    } else {
                        get_lane(l.class, values[0].ptr, lane)
                    };
                    let bits = ops::cast_scalar(form.from, form.dtype, bits);
                    let next = combine(env, form.op, form.dtype, sum, bits);
                    set_lane(class, out, lane, if form.exclusive { sum } else { next });
                    sum = next;
                }
                l.stores.run(&frame, &[Val { ptr: out, bits: 0 }], &mut []);
            }
        }
    };
    // SAFETY: the caller's contract.
    unsafe { each(l, env, params, &line) }
}

/// A number's place among those of its class, as an integer: NaN comes last, and both zeros are the same.
fn ascending(class: Class, bits: u64) -> u64 {
    match class {
        Class::F32 => {
            let value = f32::from_bits(bits as u32);
            if value.is_nan() {
                return u64::MAX;
            }
            let bits = (value + 0.0).to_bits();
            u64::from(if bits >> 31 == 0 { bits | 1 << 31 } else { !bits })
        }
        Class::F64 => {
            let value = f64::from_bits(bits);
            if value.is_nan() {
                return u64::MAX;
            }
            let bits = (value + 0.0).to_bits();
            if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
        }
        Class::I64 => bits ^ 1 << 63,
        Class::Bool => bits,
    }
}

/// The first `k` of keys with their positions, both ascending.
struct First<'a> {
    room: &'a mut [(u64, u64)],
    held: usize,
    k: usize,
    /// Keys from here on are not among the first: so many are before them.
    limit: Option<u64>,
}

impl<'a> First<'a> {
    fn new(room: &'a mut [(u64, u64)], k: usize) -> First<'a> {
        let (held, limit) = (0, None);
        First { room, held, k, limit }
    }

    /// Takes a key, whose position is above those before it.
    #[inline(always)]
    fn offer(&mut self, key: u64, position: u64) {
        if self.limit.is_some_and(|limit| key >= limit) {
            return;
        }
        if let Some(slot) = self.room.get_mut(self.held) {
            *slot = (key, position);
            self.held += 1;
        }
        // Those that are left of four times as many are worth a look.
        if self.held >= self.k.saturating_mul(4).max(64) {
            self.narrow();
        }
    }

    fn narrow(&mut self) {
        if self.k > 0 && self.k < self.held {
            let (_, last, _) = self.room[..self.held].select_nth_unstable(self.k - 1);
            self.limit = Some(last.0);
        }
        self.held = self.held.min(self.k);
    }

    fn sorted(mut self) -> &'a [(u64, u64)] {
        self.narrow();
        let found = &mut self.room[..self.held];
        found.sort_unstable();
        found
    }
}

/// Walks along the axis with a block of points at a time.
unsafe fn scan_across(form: &Scan, env: &Env<'_>, params: &[*mut u8]) {
    let l = &form.lines;
    let class = Class::of(form.dtype);
    let line = |(idx, cols): (&mut [i64], usize), params: &[*mut u8], scratch: *mut u8| {
        // SAFETY: the scratch was laid out by `scan_scratch`: positions, program, two registers.
        unsafe {
            let at = scratch.add(head(l));
            let sums = at.add(program_bytes(l));
            let converted = sums.add(MAX_LANES * 8);
            fill(class, sums, 0, cols, neutral(form.op, form.dtype));
            for step in 0..l.axis.extent {
                idx[l.axis.dim] = if form.reverse { l.axis.extent - 1 - step } else { step };
                let frame = Frame {
                    isa: env.isa,
                    idx,
                    rows: 1,
                    cols,
                    params,
                    scratch: at,
                };
                let mut values = [NONE];
                l.value.run(&frame, &[], &mut values);
                let uniform = l.value.is_uniform(0);
                let mut next = values[0];
                if form.from != form.dtype && uniform {
                    next.bits = ops::cast_scalar(form.from, form.dtype, next.bits);
                } else if form.from != form.dtype || form.exclusive && !uniform {
                    // The store may overwrite what is yet to be added.
                    ops::cast(env.isa, form.from, form.dtype, converted, next.ptr, 0, cols);
                    next.ptr = converted;
                }
                let sum = Val { ptr: sums, bits: 0 };
                let store = |frame: &Frame<'_>, sum: Val| l.stores.run(frame, &[sum], &mut []);
                if form.exclusive {
                    // The program of stores may have the values' registers.
                    store(&frame, sum);
                }
                let op = binary_of(form.op);
                ops::binary(env.isa, op, form.dtype, sums, (sum, false), (next, uniform), 0, cols);
                if !form.exclusive {
                    store(&frame, sum);
                }
            }
            idx[l.axis.dim] = 0;
        }
    };
    // SAFETY: the caller's contract.
    unsafe { each(l, env, params, &line) }
}

pub(crate) fn sort_scratch(form: &Sort) -> usize {
    let line = form.lines.axis.extent.max(1) as usize;
    head(&form.lines) + program_bytes(&form.lines) + 2 * MAX_LANES * 8 + line * 24
}

/// # Safety
/// As for `LoopsExec::run`.
pub(crate) unsafe fn sort(form: &Sort, env: &Env<'_>, params: &[*mut u8]) {
    let l = &form.lines;
    let len = l.axis.extent.max(0) as usize;
    let line = |(idx, _): (&mut [i64], usize), params: &[*mut u8], scratch: *mut u8| {
        // SAFETY: the scratch was laid out by `scratch`: positions, program, two registers, the line.
        unsafe {
            let at = scratch.add(head(l));
            let (value_lanes, index_lanes) = {
                let first = at.add(program_bytes(l));
                (first, first.add(MAX_LANES * 8))
            };
            let line = index_lanes.add(MAX_LANES * 8).cast::<u64>();
            let mut first = First::new(
                std::slice::from_raw_parts_mut(line.add(len).cast::<(u64, u64)>(), len),
                form.rank.extent.max(0) as usize,
            );
            let mut start = 0;
            while start < len {
                let n = (l.axis.block as usize).min(len - start);
                idx[l.axis.dim] = start as i64;
                let frame = Frame {
                    isa: env.isa,
                    idx,
                    rows: 1,
                    cols: n,
                    params,
                    scratch: at,
                };
                let mut values = [NONE];
                l.value.run(&frame, &[], &mut values);
                for i in 0..n {
                    let bits = if l.value.is_uniform(0) {
                        values[0].bits
                    } else {
                        get_lane(l.class, values[0].ptr, i)
                    };
                    line.add(start + i).write(bits);
                    let key = ascending(l.class, bits);
                    first.offer(if form.largest { !key } else { key }, (start + i) as u64);
                }
                start += n;
            }
            idx[l.axis.dim] = 0;
            let k = form.rank.extent.max(0) as usize;
            let found = first.sorted();
            let mut start = 0;
            while start < k {
                let n = (form.rank.block as usize).min(k - start);
                idx[form.rank.dim] = start as i64;
                for i in 0..n {
                    let position = found.get(start + i).map_or(0, |(_, position)| *position);
                    let bits = if len > 0 { line.add(position as usize).read() } else { 0 };
                    set_lane(l.class, value_lanes, i, bits);
                    set_lane(Class::I64, index_lanes, i, position);
                }
                let frame = Frame {
                    isa: env.isa,
                    idx,
                    rows: 1,
                    cols: n,
                    params,
                    scratch: at,
                };
                let given = [
                    Val {
                        ptr: value_lanes,
                        bits: 0,
                    },
                    Val {
                        ptr: index_lanes,
                        bits: 0,
                    },
                ];
                l.stores.run(&frame, &given, &mut []);
                start += n;
            }
            idx[form.rank.dim] = 0;
        }
    };
    // SAFETY: the caller's contract.
    unsafe { each(l, env, params, &line) }
}
