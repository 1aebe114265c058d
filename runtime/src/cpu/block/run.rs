//! Runs a block program.
#![expect(
    unsafe_op_in_unsafe_fn,
    reason = "the interpreter's steps share the contract of `Program::run`"
)]

use super::gather::Places;
use super::memory::{
    copy, fill, get_lane, load_bytes, load_run, natural, read, set_lane, store_bytes, store_run, write,
};
use super::{Addr, Branch, Class, Frame, Guard, Inst, Link, Program, Reg, Store, Table, Val, ops};
use crate::cpu::kernels::convert::transpose_tile;
use crate::cpu::kernels::stages::{Across, Stage, StageOut, Stored, stages_of_floats};
use ir::host::Affine;
use smallvec::SmallVec;

/// Where some rows and columns on from `base` is; index arithmetic wraps, as it does everywhere.
#[inline(always)]
fn place(base: i64, (row, r): (i64, usize), (col, c): (i64, usize)) -> i64 {
    base.wrapping_add(row.wrapping_mul(r as i64))
        .wrapping_add(col.wrapping_mul(c as i64))
}

struct Machine<'a> {
    program: &'a Program,
    frame: &'a Frame<'a>,
    vals: *mut Val,
    direct: *mut u8,
}

/// Block programs that run.
pub(crate) trait RunBlock {
    /// Runs the block and its stores, and leaves the results' values in `results`.
    ///
    /// # Safety
    /// `frame.scratch` has the program's scratch bytes, aligned to 64; `rows * cols` is at most its lanes; parameters
    /// are valid for the elements the program was compiled for, those that it stores to for writing, and no other
    /// thread touches what it stores; externals with lanes are valid for the block's.
    unsafe fn run(&self, frame: &Frame<'_>, externals: &[Val], results: &mut [Val]);
}

impl RunBlock for Program {
    unsafe fn run(&self, frame: &Frame<'_>, externals: &[Val], results: &mut [Val]) {
        let lanes = frame.rows * frame.cols;
        assert!(lanes <= self.lanes && externals.len() == self.externals.len());
        let vals = frame.scratch.cast::<Val>();
        for (reg, bits) in &self.consts {
            let ptr = std::ptr::null_mut();
            vals.add(usize::from(reg.0)).write(Val { ptr, bits: *bits });
        }
        for (reg, value) in self.externals.iter().zip(externals) {
            vals.add(usize::from(reg.0)).write(*value);
        }
        let mut machine = Machine {
            program: self,
            frame,
            vals,
            direct: std::ptr::null_mut(),
        };
        if self.direct.is_some()
            && let [store] = self.stores.as_slice()
            && machine.dense(&store.addr)
        {
            let size = Class::of(store.dtype).bytes() as isize;
            let at = store.addr.form.at(frame.idx) as isize * size;
            machine.direct = frame.params[store.param].wrapping_offset(at);
        }
        machine.list(&self.insts, 0, lanes);
        for store in &self.stores {
            machine.store(store);
        }
        for (reg, out) in self.results.iter().zip(results) {
            *out = machine.val(*reg);
        }
    }
}

impl Machine<'_> {
    unsafe fn val(&self, reg: Reg) -> Val {
        self.vals.add(usize::from(reg.0)).read()
    }

    fn uniform(&self, reg: Reg) -> bool {
        self.program.regs[usize::from(reg.0)].uniform
    }

    fn class(&self, reg: Reg) -> Class {
        self.program.regs[usize::from(reg.0)].class
    }

    unsafe fn operand(&self, reg: Reg) -> (Val, bool) {
        (self.val(reg), self.uniform(reg))
    }

    unsafe fn set_bits(&self, reg: Reg, bits: u64) {
        let ptr = std::ptr::null_mut();
        self.vals.add(usize::from(reg.0)).write(Val { ptr, bits });
    }

    unsafe fn set_ptr(&self, reg: Reg, ptr: *mut u8) {
        self.vals.add(usize::from(reg.0)).write(Val { ptr, bits: 0 });
    }

    /// The memory of a register's lanes; its value points there from now on.
    unsafe fn dst(&self, reg: Reg) -> *mut u8 {
        let ptr = if !self.direct.is_null() && self.program.direct == Some(reg) {
            self.direct
        } else {
            let slot = self.program.regs[usize::from(reg.0)].slot.unwrap_or(0);
            self.frame.scratch.add(slot as usize)
        };
        self.set_ptr(reg, ptr);
        ptr
    }

    /// Says whether the block's lanes lie one after another.
    fn dense(&self, addr: &Addr) -> bool {
        addr.dynamic.is_none()
            && (addr.col == 1 || self.frame.cols == 1)
            && (self.frame.rows == 1 || addr.row == self.frame.cols as i64)
            && (addr.col == 1 || self.frame.rows == 1 || addr.row == 1)
    }

    unsafe fn list(&self, insts: &[Inst], l0: usize, l1: usize) {
        let isa = self.frame.isa;
        for inst in insts {
            match inst {
                Inst::Load {
                    dst,
                    param,
                    dtype,
                    addr,
                } => self.load(*dst, *param, *dtype, addr, l0, l1),
                Inst::Index { dst, form, row, col } => {
                    let base = form.at(self.frame.idx);
                    if self.uniform(*dst) {
                        self.set_bits(*dst, base as u64);
                    } else {
                        let to = self.dst(*dst).cast::<i64>();
                        self.segments(l0, l1, |r, c, lane, n| {
                            let start = place(base, (*row, r), (*col, c));
                            (0..n).for_each(|i| to.add(lane + i).write(place(start, (*col, i), (0, 0))));
                        });
                    }
                }
                Inst::Unary { dst, op, dtype, a } => {
                    let (value, uniform) = self.operand(*a);
                    if uniform {
                        self.set_bits(*dst, ops::unary_scalar(isa, *op, *dtype, value.bits));
                    } else {
                        ops::unary(isa, *op, *dtype, self.dst(*dst), value.ptr, l0, l1);
                    }
                }
                Inst::Binary { dst, op, dtype, a, b } => {
                    let (a, b) = (self.operand(*a), self.operand(*b));
                    if a.1 && b.1 {
                        self.set_bits(*dst, ops::binary_scalar(isa, *op, *dtype, a.0.bits, b.0.bits));
                    } else {
                        ops::binary(isa, *op, *dtype, self.dst(*dst), a, b, l0, l1);
                    }
                }
                Inst::Cast { dst, from, to, a } => {
                    let (value, uniform) = self.operand(*a);
                    if uniform {
                        self.set_bits(*dst, ops::cast_scalar(*from, *to, value.bits));
                    } else {
                        ops::cast(isa, *from, *to, self.dst(*dst), value.ptr, l0, l1);
                    }
                }
                Inst::Chain(chain) => {
                    let number = |reg: &Reg| f32::from_bits(self.val(*reg).bits as u32);
                    let stage = |link: &Link| match link {
                        Link::Op(op, by) => Stage::Number(*op, number(by)),
                        Link::Round => Stage::Round,
                        Link::RoundQuotient(by) => Stage::RoundQuotient(number(by)),
                    };
                    let from = self.val(chain.a).ptr.cast::<f32>().add(l0).cast_const();
                    let out = StageOut {
                        to: self.dst(chain.dst).cast::<f32>().add(l0).cast(),
                        stored: Stored::F32,
                        row: 2 * isa.lanes() as isize,
                        cols: Across::Apart(1),
                    };
                    let stages = chain.links.iter().map(stage).chain([Stage::Store(out)]);
                    let stages: SmallVec<[Stage; 8]> = stages.collect();
                    stages_of_floats(isa, from, l1 - l0, &stages);
                }
                Inst::Blend { dst, cond, a, b } => {
                    let (cond, a, b) = (self.operand(*cond), self.operand(*a), self.operand(*b));
                    if self.uniform(*dst) {
                        self.set_bits(*dst, if cond.0.bits != 0 { a.0.bits } else { b.0.bits });
                    } else {
                        ops::blend(self.class(*dst), self.dst(*dst), cond, a, b, l0, l1);
                    }
                }
                Inst::Guard(guard) => self.guard(guard, l0, l1),
                Inst::Branch(branch) => self.branch(branch, l0, l1),
                Inst::Philox {
                    dst,
                    seed,
                    lane,
                    counter,
                } => {
                    let (value, uniform) = self.operand(*counter);
                    if uniform {
                        self.set_bits(*dst, i64::from(ops::philox(*seed, value.bits, *lane)) as u64);
                    } else {
                        let to = self.dst(*dst).cast::<i64>();
                        for l in l0..l1 {
                            let counter = value.ptr.cast::<u64>().add(l).read();
                            to.add(l).write(i64::from(ops::philox(*seed, counter, *lane)));
                        }
                    }
                }
            }
        }
    }

    /// Calls `f(row, col, lane, count)` for each stretch of lanes within a row.
    unsafe fn segments(&self, l0: usize, l1: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
        let cols = self.frame.cols.max(1);
        let mut lane = l0;
        while lane < l1 {
            let (row, col) = (lane / cols, lane % cols);
            let n = (cols - col).min(l1 - lane);
            f(row, col, lane, n);
            lane += n;
        }
    }

    unsafe fn load(&self, dst: Reg, param: usize, dtype: ir::DType, addr: &Addr, l0: usize, l1: usize) {
        let buffer = self.frame.params[param];
        let mut base = addr.form.at(self.frame.idx);
        let mut vector: Option<*const i64> = None;
        if let Some(reg) = addr.dynamic {
            let (value, uniform) = self.operand(reg);
            if uniform {
                base = base.wrapping_add(value.bits as i64);
            } else {
                vector = Some(value.ptr.cast::<i64>().cast_const());
            }
        }
        for table in addr.tables.iter().filter(|t| t.row == 0 && t.col == 0) {
            base = base.wrapping_add(self.table(table).read());
        }
        let last = (addr.elements - 1).max(0);
        if self.uniform(dst) {
            if addr.elements == 0 {
                return self.set_bits(dst, 0);
            }
            let at = if addr.check { base.clamp(0, last) } else { base };
            return self.set_bits(dst, read(dtype, buffer, at));
        }
        let class = self.class(dst);
        if addr.elements == 0 {
            return fill(class, self.dst(dst), l0, l1, 0);
        }
        if addr.tables.iter().any(|t| t.row != 0 || t.col != 0) {
            return self.load_places((class, dtype), self.dst(dst), buffer, (addr, base), l0, l1);
        }
        if let Some(vector) = vector {
            let to = self.dst(dst);
            return self.segments(l0, l1, |r, c, lane, n| {
                let start = place(base, (addr.row, r), (addr.col, c));
                // What data adds is often one number a row.
                let first = vector.add(lane).read();
                let (from, last_col) = (start.wrapping_add(first), addr.col.wrapping_mul(n as i64 - 1));
                let inside = |at: i64| (0..=last).contains(&at);
                if inside(from)
                    && from.checked_add(last_col).is_some_and(inside)
                    && (0..n).all(|i| vector.add(lane + i).read() == first)
                {
                    return self.run_of(class, dtype, to, lane, buffer, from, addr.col, n);
                }
                let places = Places::new(vector.add(lane), addr.col, n);
                places.load(self.frame.isa, (class, dtype), to, lane, buffer, start, addr.elements);
            });
        }
        if addr.check && !self.inside(addr, base, l0, l1) {
            let to = self.dst(dst);
            return self.segments(l0, l1, |r, c, lane, n| {
                let start = place(base, (addr.row, r), (addr.col, c));
                for i in 0..n {
                    let at = place(start, (addr.col, i), (0, 0)).clamp(0, last);
                    set_lane(class, to, lane + i, read(dtype, buffer, at));
                }
            });
        }
        let in_place = natural(dtype) && !self.program.copy_loads;
        let cols = self.frame.cols;
        if in_place && addr.col == 1 && (self.frame.rows == 1 || addr.row == cols as i64) {
            let at = base as isize * class.bytes() as isize;
            return self.set_ptr(dst, buffer.wrapping_offset(at));
        }
        let to = self.dst(dst);
        if dtype == ir::DType::F32
            && self.frame.rows > 1
            && addr.row == 1
            && addr.col != 1
            && l1 - l0 == self.frame.rows * cols
        {
            // A transposed tile: along the contiguous axis of memory.
            let (to, from) = (to.cast::<f32>(), buffer.cast::<f32>().offset(base as isize));
            transpose_tile(self.frame.isa, to, cols, from, addr.col as isize, self.frame.rows, cols);
            return;
        }
        self.segments(l0, l1, |r, c, lane, n| {
            let start = place(base, (addr.row, r), (addr.col, c));
            self.run_of(class, dtype, to, lane, buffer, start, addr.col, n);
        });
    }

    /// Where a table's element of the block's first lane is.
    unsafe fn table(&self, table: &Table) -> *const i64 {
        let buffer = self.frame.params[table.param].cast::<i64>().cast_const();
        buffer.offset(table.form.at(self.frame.idx) as isize)
    }

    /// Loads lanes whose places tables say, `base` being what is the same for all.
    unsafe fn load_places(
        &self,
        types: (Class, ir::DType),
        to: *mut u8,
        buffer: *const u8,
        (addr, base): (&Addr, i64),
        l0: usize,
        l1: usize,
    ) {
        let of_rows: SmallVec<[(*const i64, isize); 4]> = (addr.tables.iter())
            .filter(|t| t.row != 0 && t.col == 0)
            .map(|t| (self.table(t), t.row as isize))
            .collect();
        let columns = addr.tables.iter().find(|t| t.col != 0);
        let mut places: Option<(usize, usize, Places)> = None;
        let isa = self.frame.isa;
        self.segments(l0, l1, |r, c, lane, n| {
            let mut start = place(base, (addr.row, r), (addr.col, c));
            for (table, step) in &of_rows {
                start = start.wrapping_add(table.offset(r as isize * step).read());
            }
            let Some(columns) = columns else {
                let last = start.checked_add(addr.col.wrapping_mul(n as i64 - 1));
                let inside = |at: i64| (0..addr.elements).contains(&at);
                if inside(start) && last.is_some_and(inside) {
                    return self.run_of(types.0, types.1, to, lane, buffer, start, addr.col, n);
                }
                for i in 0..n {
                    let at = place(start, (addr.col, i), (0, 0)).clamp(0, addr.elements - 1);
                    set_lane(types.0, to, lane + i, read(types.1, buffer, at));
                }
                return;
            };
            // Rows of the same columns have the same places.
            let known = places
                .take()
                .filter(|(at, count, _)| columns.row == 0 && (*at, *count) == (c, n));
            let (_, _, row) = places.insert(known.unwrap_or_else(|| {
                let from = self.table(columns).offset(r as isize * columns.row as isize).add(c);
                (c, n, Places::new(from, addr.col, n))
            }));
            row.load(isa, types, to, lane, buffer, start, addr.elements);
        });
    }

    /// Loads elements one stride apart, which are inside.
    unsafe fn run_of(
        &self,
        class: Class,
        dtype: ir::DType,
        to: *mut u8,
        lane: usize,
        buffer: *const u8,
        start: i64,
        step: i64,
        n: usize,
    ) {
        match class == Class::F32 && matches!(dtype, ir::DType::I8 | ir::DType::U8) {
            true => load_bytes(dtype, to, lane, buffer, start, step, n),
            false => load_run(self.frame.isa, dtype, to, lane, buffer, start, step, n),
        }
    }

    /// Says whether the lanes' elements are all inside the buffer.
    fn inside(&self, addr: &Addr, base: i64, l0: usize, l1: usize) -> bool {
        if l0 >= l1 {
            return true;
        }
        let cols = self.frame.cols.max(1);
        let (r0, r1) = ((l0 / cols) as i64, ((l1 - 1) / cols) as i64);
        let (c0, c1) = if r0 == r1 {
            ((l0 % cols) as i64, ((l1 - 1) % cols) as i64)
        } else {
            (0, cols as i64 - 1)
        };
        let span = |step: i64, a: i64, b: i64| {
            let (x, y) = (step.saturating_mul(a), step.saturating_mul(b));
            (x.min(y), x.max(y))
        };
        let (rl, rh) = span(addr.row, r0, r1);
        let (cl, ch) = span(addr.col, c0, c1);
        base.saturating_add(rl).saturating_add(cl) >= 0 && base.saturating_add(rh).saturating_add(ch) < addr.elements
    }

    /// The lanes' share of a row for which all conditions hold.
    fn range(&self, guard: &Guard, bases: &[i64], row: i64, c0: i64, c1: i64) -> (i64, i64) {
        let (mut lo, mut hi) = (c0, c1);
        for ((_, step_row, step_col), base) in guard.conditions.iter().zip(bases) {
            let rest = base.wrapping_add(step_row.wrapping_mul(row));
            match *step_col {
                0 if rest < 0 => return (c0, c0),
                0 => {}
                // rest + s·c >= 0
                s if s > 0 => {
                    let from = rest.wrapping_neg();
                    lo = lo.max(from.div_euclid(s).saturating_add(i64::from(from.rem_euclid(s) != 0)));
                }
                s => hi = hi.min(rest.div_euclid(s.wrapping_neg()).saturating_add(1)),
            }
        }
        if lo >= hi { (c0, c0) } else { (lo, hi) }
    }

    unsafe fn guard(&self, guard: &Guard, l0: usize, l1: usize) {
        // A handful of comparisons: concat and padding have two to four.
        let mut bases = [0i64; 32];
        let count = guard.conditions.len().min(bases.len());
        for (base, (form, _, _)) in bases.iter_mut().zip(&guard.conditions) {
            *base = Affine::at(form, self.frame.idx);
        }
        let cols = self.frame.cols.max(1);
        // Conditions past the table are looked at again, a lane at a time, in `range_many`.
        let range = |row: usize, c0: usize, c1: usize| {
            if guard.conditions.len() <= count {
                self.range(guard, &bases, row as i64, c0 as i64, c1 as i64)
            } else {
                self.range_many(guard, row as i64, c0 as i64, c1 as i64)
            }
        };
        let (mut all, mut none) = (true, true);
        self.segments(l0, l1, |row, col, _, n| {
            let (lo, hi) = range(row, col, col + n);
            all &= hi - lo == n as i64;
            none &= hi <= lo;
        });
        if all {
            self.list(&guard.then, l0, l1);
            return self.take(guard.dst, guard.a, l0, l1);
        }
        if none {
            self.list(&guard.other, l0, l1);
            return self.take(guard.dst, guard.b, l0, l1);
        }
        let class = self.class(guard.dst);
        let own = {
            let slot = self.program.regs[usize::from(guard.dst.0)].slot.unwrap_or(0);
            self.frame.scratch.add(slot as usize)
        };
        let piece = |insts: &[Inst], value: Reg, a: usize, b: usize| {
            if a < b {
                self.list(insts, a, b);
                let (v, uniform) = self.operand(value);
                if uniform {
                    fill(class, own, a, b, v.bits);
                } else {
                    copy(class, own, v.ptr, a, b);
                }
            }
        };
        // Lanes of one kind that follow one another, over the ends of rows, are one piece.
        let (mut open, mut then, mut lane) = (l0, false, l0);
        let mut until = |end: usize, kind: bool| {
            if lane < end && kind != then {
                match then {
                    true => piece(&guard.then, guard.a, open, lane),
                    false => piece(&guard.other, guard.b, open, lane),
                }
                (open, then) = (lane, kind);
            }
            lane = lane.max(end);
        };
        let mut at = l0;
        while at < l1 {
            let (row, col) = (at / cols, at % cols);
            let n = (cols - col).min(l1 - at);
            let (lo, hi) = range(row, col, col + n);
            let start = row * cols;
            if lo < hi {
                until(start + lo as usize, false);
                until(start + hi as usize, true);
            }
            until(at + n, false);
            at += n;
        }
        match then {
            true => piece(&guard.then, guard.a, open, l1),
            false => piece(&guard.other, guard.b, open, l1),
        }
        self.set_ptr(guard.dst, own);
    }

    fn range_many(&self, guard: &Guard, row: i64, c0: i64, c1: i64) -> (i64, i64) {
        let (mut lo, mut hi) = (c0, c1);
        for chunk in guard.conditions.chunks(1) {
            let one = Guard {
                dst: guard.dst,
                conditions: chunk.to_vec(),
                then: Vec::new(),
                a: guard.a,
                other: Vec::new(),
                b: guard.b,
            };
            let (l, h) = self.range(&one, &[chunk[0].0.at(self.frame.idx)], row, c0, c1);
            lo = lo.max(l);
            hi = hi.min(h);
        }
        if lo >= hi { (c0, c0) } else { (lo, hi) }
    }

    /// Makes `dst` the value of a branch.
    unsafe fn take(&self, dst: Reg, from: Reg, l0: usize, l1: usize) {
        let (value, uniform) = self.operand(from);
        match (self.uniform(dst), uniform) {
            (true, _) => self.set_bits(dst, value.bits),
            (false, true) => fill(self.class(dst), self.dst(dst), l0, l1, value.bits),
            (false, false) => self.set_ptr(dst, value.ptr),
        }
    }

    unsafe fn branch(&self, branch: &Branch, l0: usize, l1: usize) {
        let (cond, uniform) = self.operand(branch.cond);
        let (mut all, mut none) = (true, true);
        if uniform {
            all = cond.bits != 0;
            none = !all;
        } else {
            for l in l0..l1 {
                let yes = get_lane(Class::Bool, cond.ptr, l) != 0;
                all &= yes;
                none &= !yes;
            }
        }
        if all {
            self.list(&branch.then, l0, l1);
            return self.take(branch.dst, branch.a, l0, l1);
        }
        if none {
            self.list(&branch.other, l0, l1);
            return self.take(branch.dst, branch.b, l0, l1);
        }
        // Both run on all lanes: loads clamp what the guard would have kept out.
        self.list(&branch.then, l0, l1);
        self.list(&branch.other, l0, l1);
        let slot = self.program.regs[usize::from(branch.dst.0)].slot.unwrap_or(0);
        let own = self.frame.scratch.add(slot as usize);
        let (a, b) = (self.operand(branch.a), self.operand(branch.b));
        ops::blend(self.class(branch.dst), own, (cond, false), a, b, l0, l1);
        self.set_ptr(branch.dst, own);
    }

    unsafe fn store(&self, store: &Store) {
        let (rows, cols) = (self.frame.rows, self.frame.cols);
        let (value, uniform) = self.operand(store.value);
        if !self.direct.is_null() && value.ptr == self.direct {
            return;
        }
        let buffer = self.frame.params[store.param];
        let class = self.class(store.value);
        let mut base = store.addr.form.at(self.frame.idx);
        let mut vector: Option<*const i64> = None;
        if let Some(reg) = store.addr.dynamic {
            let (v, uniform) = self.operand(reg);
            if uniform {
                base = base.wrapping_add(v.bits as i64);
            } else {
                vector = Some(v.ptr.cast::<i64>().cast_const());
            }
        }
        if uniform && vector.is_none() && !store.addr.check && natural(store.dtype) && self.dense(&store.addr) {
            let to = buffer.offset(base as isize * class.bytes() as isize);
            return fill(class, to, 0, rows * cols, value.bits);
        }
        if store.addr.check || uniform || vector.is_some() {
            for lane in 0..rows * cols {
                let at = place(base, (store.addr.row, lane / cols), (store.addr.col, lane % cols))
                    .wrapping_add(vector.map_or(0, |v| v.add(lane).read()));
                // What data sends outside is dropped.
                if at >= 0 && at < store.addr.elements {
                    let bits = if uniform {
                        value.bits
                    } else {
                        get_lane(class, value.ptr, lane)
                    };
                    write(store.dtype, buffer, at, bits);
                }
            }
            return;
        }
        let isa = self.frame.isa;
        let run = |at: usize, start: i64, step: i64, n: usize| match (class, store.dtype) {
            (Class::F32, dtype @ (ir::DType::I8 | ir::DType::U8)) => {
                store_bytes(isa, dtype, value.ptr, at, buffer, start, step, n);
            }
            (_, dtype) => store_run(isa, dtype, value.ptr, at, buffer, start, step, n),
        };
        if self.dense(&store.addr) {
            return run(0, base, 1, rows * cols);
        }
        for r in 0..rows {
            let start = place(base, (store.addr.row, r), (0, 0));
            run(r * cols, start, store.addr.col, cols);
        }
    }
}
