//! Scans and sorts: for each point, one after another along an axis.

use ir::host::block::{Class, MAX_LANES};
use ir::host::ordered::{Lines, Scan, Sort};

use super::block::memory::{get_lane, set_lane};
use super::block::{Frame, RunBlock, Val, ops};
use super::env::Env;
use super::loops::{combine, neutral, sorts_before};

struct Params<'a>(&'a [*mut u8]);
// SAFETY: addresses only; each task writes its own part of what they point to.
unsafe impl Sync for Params<'_> {}

fn head(l: &Lines) -> usize {
    (l.space * 8).next_multiple_of(64)
}

fn program_bytes(l: &Lines) -> usize {
    l.value.scratch.max(l.stores.scratch).next_multiple_of(64)
}

unsafe fn each(l: &Lines, env: &Env<'_>, params: &[*mut u8], run: &(dyn Fn(&mut [i64], &[*mut u8], *mut u8) + Sync)) {
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
            l.points.seek(point, idx);
            run(idx, params.0, scratch);
        }
    });
}

const NONE: Val = Val {
    ptr: std::ptr::null_mut(),
    bits: 0,
};

pub(crate) fn scan_scratch(form: &Scan) -> usize {
    head(&form.lines) + program_bytes(&form.lines) + MAX_LANES * 8
}

/// # Safety
/// As for `LoopsExec::run`.
pub(crate) unsafe fn scan(form: &Scan, env: &Env<'_>, params: &[*mut u8]) {
    let l = &form.lines;
    let class = Class::of(form.dtype);
    let blocks = (l.axis.extent + l.axis.block - 1) / l.axis.block;
    let line = |idx: &mut [i64], params: &[*mut u8], scratch: *mut u8| {
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

pub(crate) fn sort_scratch(form: &Sort) -> usize {
    let line = form.lines.axis.extent.max(1) as usize;
    head(&form.lines) + program_bytes(&form.lines) + 2 * MAX_LANES * 8 + line * 16
}

/// # Safety
/// As for `LoopsExec::run`.
pub(crate) unsafe fn sort(form: &Sort, env: &Env<'_>, params: &[*mut u8]) {
    let l = &form.lines;
    let len = l.axis.extent.max(0) as usize;
    let line = |idx: &mut [i64], params: &[*mut u8], scratch: *mut u8| {
        // SAFETY: the scratch was laid out by `scratch`: positions, program, two registers, the line.
        unsafe {
            let at = scratch.add(head(l));
            let (value_lanes, index_lanes) = {
                let first = at.add(program_bytes(l));
                (first, first.add(MAX_LANES * 8))
            };
            let pairs = index_lanes.add(MAX_LANES * 8).cast::<(u64, i64)>();
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
                    pairs.add(start + i).write((bits, (start + i) as i64));
                }
                start += n;
            }
            idx[l.axis.dim] = 0;
            let pairs = std::slice::from_raw_parts_mut(pairs, len);
            let order = |a: &(u64, i64), b: &(u64, i64)| {
                if sorts_before(form.largest, l.class, a.0, b.0) {
                    std::cmp::Ordering::Less
                } else if sorts_before(form.largest, l.class, b.0, a.0) {
                    std::cmp::Ordering::Greater
                } else {
                    a.1.cmp(&b.1)
                }
            };
            let k = form.rank.extent.max(0) as usize;
            if k < len && k > 0 {
                pairs.select_nth_unstable_by(k - 1, order);
                pairs[..k].sort_unstable_by(order);
            } else {
                pairs.sort_unstable_by(order);
            }
            let mut start = 0;
            while start < k {
                let n = (form.rank.block as usize).min(k - start);
                idx[form.rank.dim] = start as i64;
                for i in 0..n {
                    let (bits, position) = pairs.get(start + i).copied().unwrap_or((0, 0));
                    set_lane(l.class, value_lanes, i, bits);
                    set_lane(Class::I64, index_lanes, i, position as u64);
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
