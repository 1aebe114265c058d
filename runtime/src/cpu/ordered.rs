//! Scans and sorts: for each point of `parallel`, one after another along an axis.

use ir::entity::Entity;
use ir::kernel::{AxisId, Expr, ExprId, Kernel, ScanBody, SortBody, Stmt, VarId};
use ir::op::ReduceOp;
use ir::types::DType;

use super::affine::{Roots, Space};
use super::block::compile::{Source, Spec, SpecStep, compile};
use super::block::memory::{get_lane, set_lane};
use super::block::{Class, Frame, MAX_LANES, Program, Val, ops};
use super::env::Env;
use super::exec::Prepare;
use super::loops::{Nest, Strip, combine, neutral, sorts_before};
use crate::error::RuntimeError;

/// What scans and sorts have in common: points outside, a program for values, one for stores.
#[derive(Debug)]
struct Lines {
    space: usize,
    points: Nest,
    axis: Strip,
    value: Program,
    class: Class,
    stores: Program,
    tasks: usize,
}

/// A running fold.
#[derive(Debug)]
pub(crate) struct ScanExec {
    lines: Lines,
    op: ReduceOp,
    from: DType,
    dtype: DType,
    exclusive: bool,
    reverse: bool,
}

/// The first of an order.
#[derive(Debug)]
pub(crate) struct SortExec {
    lines: Lines,
    largest: bool,
    rank: Strip,
}

struct Params<'a>(&'a [*mut u8]);
// SAFETY: addresses only; each task writes its own part of what they point to.
unsafe impl Sync for Params<'_> {}

impl Lines {
    fn new(
        kernel: &Kernel,
        parallel: &[AxisId],
        (axis, along): (AxisId, AxisId),
        value: ExprId,
        stores: &[Stmt],
        vars: &[VarId],
        cx: &Prepare<'_>,
    ) -> Result<Lines, RuntimeError> {
        let mut exprs = vec![value];
        let mut spec = Spec {
            vars: vars.iter().map(|v| (*v, false)).collect(),
            ..Spec::default()
        };
        for stmt in stmts_of(stores, kernel)? {
            match stmt {
                SpecStep::Store(_, index, value) => exprs.extend([index, value]),
                SpecStep::Let(_, value) => exprs.push(value),
            }
            spec.steps.push(stmt);
        }
        let mut space = Space::new(kernel, cx.bindings)?;
        let mut points = Space::dims(parallel);
        // The axis is walked as one, and so is that of the results.
        space.split(&exprs, &mut [&mut points], &[axis.index(), along.index()]);
        let roots: Roots = space.roots(&exprs);
        let extents = space.extents.clone();
        let source = Source::new(&space, &roots, &extents, cx.bindings)?;
        let block = |extent: i64| extent.clamp(1, MAX_LANES as i64);
        let strip = Strip {
            dim: axis.index(),
            extent: extents[axis.index()],
            block: block(extents[axis.index()]),
        };
        let mut values = compile(
            &source,
            None,
            Some(strip.dim),
            &Spec {
                results: vec![value],
                ..Spec::default()
            },
            MAX_LANES,
        )?;
        values.copy_loads = cx.aliased;
        let class = values.class(0);
        let stores = compile(&source, None, Some(along.index()), &spec, MAX_LANES)?;
        let points = Nest {
            outer: points.into_iter().map(|d| (d, extents[d])).collect(),
            row: None,
            col: None,
        };
        let nibbles = kernel.params.values().any(|p| p.dtype.bits() < 8);
        let tasks = if nibbles {
            1
        } else {
            points.blocks().min(cx.threads * 4)
        };
        Ok(Lines {
            space: extents.len(),
            points,
            axis: strip,
            value: values,
            class,
            stores,
            tasks: tasks.max(1),
        })
    }

    fn head(&self) -> usize {
        (self.space * 8).next_multiple_of(64)
    }

    fn program_bytes(&self) -> usize {
        self.value.scratch.max(self.stores.scratch).next_multiple_of(64)
    }

    unsafe fn each(&self, env: &Env<'_>, params: &[*mut u8], run: &(dyn Fn(&mut [i64], &[*mut u8], *mut u8) + Sync)) {
        let points = self.points.blocks();
        let params = Params(params);
        env.parallel_for(self.tasks, &|task, scratch| {
            let params = &params;
            // SAFETY: the scratch begins with positions on every dim.
            let idx = unsafe {
                scratch.cast::<i64>().write_bytes(0, self.space);
                std::slice::from_raw_parts_mut(scratch.cast::<i64>(), self.space)
            };
            for point in points * task / self.tasks..points * (task + 1) / self.tasks {
                self.points.seek(point, idx);
                run(idx, params.0, scratch);
            }
        });
    }
}

fn stmts_of(stores: &[Stmt], kernel: &Kernel) -> Result<Vec<SpecStep>, RuntimeError> {
    stores
        .iter()
        .map(|s| match *s {
            Stmt::Let { var, value } => Ok(SpecStep::Let(var, value)),
            Stmt::Store {
                param, index, value, ..
            } => Ok(SpecStep::Store(param, index, value)),
            _ => Err(RuntimeError::Unsupported {
                what: "a fold or update in the stores of a scan or sort".into(),
                at: format!("kernel {}", kernel.name),
            }),
        })
        .collect()
}

const NONE: Val = Val {
    ptr: std::ptr::null_mut(),
    bits: 0,
};

impl ScanExec {
    pub(crate) fn new(kernel: &Kernel, body: &ScanBody, cx: &Prepare<'_>) -> Result<ScanExec, RuntimeError> {
        let lines = Lines::new(
            kernel,
            &body.parallel,
            (body.axis, body.axis),
            body.value,
            &body.stores,
            &[body.var],
            cx,
        )?;
        Ok(ScanExec {
            lines,
            op: body.op,
            from: kernel.exprs.dtype(body.value),
            dtype: kernel.vars[body.var],
            exclusive: body.exclusive,
            reverse: body.reverse,
        })
    }

    pub(crate) fn scratch(&self) -> usize {
        self.lines.head() + self.lines.program_bytes() + MAX_LANES * 8
    }

    /// # Safety
    /// As for `LoopsExec::run`.
    pub(crate) unsafe fn run(&self, env: &Env<'_>, params: &[*mut u8]) {
        let l = &self.lines;
        let class = Class::of(self.dtype);
        let blocks = (l.axis.extent + l.axis.block - 1) / l.axis.block;
        let line = |idx: &mut [i64], params: &[*mut u8], scratch: *mut u8| {
            let mut sum = neutral(self.op, self.dtype);
            for step in 0..blocks {
                let block = if self.reverse { blocks - 1 - step } else { step };
                let start = block * l.axis.block;
                idx[l.axis.dim] = start;
                let n = l.axis.block.min(l.axis.extent - start) as usize;
                // SAFETY: the scratch was laid out by `scratch`.
                unsafe {
                    let at = scratch.add(l.head());
                    let out = at.add(l.program_bytes());
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
                        let lane = if self.reverse { n - 1 - i } else { i };
                        let bits = if l.value.is_uniform(0) {
                            values[0].bits
                        } else {
                            get_lane(l.class, values[0].ptr, lane)
                        };
                        let bits = ops::cast_scalar(self.from, self.dtype, bits);
                        let next = combine(env, self.op, self.dtype, sum, bits);
                        set_lane(class, out, lane, if self.exclusive { sum } else { next });
                        sum = next;
                    }
                    l.stores.run(&frame, &[Val { ptr: out, bits: 0 }], &mut []);
                }
            }
        };
        // SAFETY: the caller's contract.
        unsafe { l.each(env, params, &line) }
    }
}

impl SortExec {
    pub(crate) fn new(kernel: &Kernel, body: &SortBody, cx: &Prepare<'_>) -> Result<SortExec, RuntimeError> {
        let lines = Lines::new(
            kernel,
            &body.parallel,
            (body.axis, body.rank),
            body.value,
            &body.stores,
            &[body.value_var, body.index_var],
            cx,
        )?;
        let extent = kernel.axes[body.rank].extent.eval(cx.bindings)?;
        let uses_vars = kernel
            .exprs
            .iter()
            .any(|(_, e)| matches!(e, Expr::Var(v) if *v == body.value_var || *v == body.index_var));
        if extent > lines.axis.extent && uses_vars {
            return Err(RuntimeError::TooSmall {
                what: format!("the first {extent} of {} values", lines.axis.extent),
                at: format!("kernel {}", kernel.name),
            });
        }
        Ok(SortExec {
            rank: Strip {
                dim: body.rank.index(),
                extent,
                block: extent.clamp(1, MAX_LANES as i64),
            },
            lines,
            largest: body.largest,
        })
    }

    pub(crate) fn scratch(&self) -> usize {
        let line = self.lines.axis.extent.max(1) as usize;
        self.lines.head() + self.lines.program_bytes() + 2 * MAX_LANES * 8 + line * 16
    }

    /// # Safety
    /// As for `LoopsExec::run`.
    pub(crate) unsafe fn run(&self, env: &Env<'_>, params: &[*mut u8]) {
        let l = &self.lines;
        let len = l.axis.extent.max(0) as usize;
        let line = |idx: &mut [i64], params: &[*mut u8], scratch: *mut u8| {
            // SAFETY: the scratch was laid out by `scratch`: positions, program, two registers, the line.
            unsafe {
                let at = scratch.add(l.head());
                let (value_lanes, index_lanes) = {
                    let first = at.add(l.program_bytes());
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
                    if sorts_before(self.largest, l.class, a.0, b.0) {
                        std::cmp::Ordering::Less
                    } else if sorts_before(self.largest, l.class, b.0, a.0) {
                        std::cmp::Ordering::Greater
                    } else {
                        a.1.cmp(&b.1)
                    }
                };
                let k = self.rank.extent.max(0) as usize;
                if k < len && k > 0 {
                    pairs.select_nth_unstable_by(k - 1, order);
                    pairs[..k].sort_unstable_by(order);
                } else {
                    pairs.sort_unstable_by(order);
                }
                let mut start = 0;
                while start < k {
                    let n = (self.rank.block as usize).min(k - start);
                    idx[self.rank.dim] = start as i64;
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
                idx[self.rank.dim] = 0;
            }
        };
        // SAFETY: the caller's contract.
        unsafe { l.each(env, params, &line) }
    }
}
