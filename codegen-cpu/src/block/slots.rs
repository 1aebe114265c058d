//! Where registers live: a scratch slot each from its definition to its last use.

use ir::host::block::{Inst, Link, Reg, RegInfo};

/// The register that an instruction defines.
pub(super) fn dst_of(inst: &Inst) -> Reg {
    match inst {
        Inst::Load { dst, .. }
        | Inst::Index { dst, .. }
        | Inst::Unary { dst, .. }
        | Inst::Binary { dst, .. }
        | Inst::Cast { dst, .. }
        | Inst::Blend { dst, .. }
        | Inst::Philox { dst, .. } => *dst,
        Inst::Chain(c) => c.dst,
        Inst::Guard(g) => g.dst,
        Inst::Branch(b) => b.dst,
    }
}

/// Calls `f` with every register that an instruction reads, those inside of branches included, as often as it does.
pub(super) fn for_each_use(inst: &Inst, f: &mut impl FnMut(Reg)) {
    match inst {
        Inst::Load { addr, .. } => addr.dynamic.iter().for_each(|r| f(*r)),
        Inst::Index { .. } => {}
        Inst::Unary { a, .. } | Inst::Cast { a, .. } | Inst::Philox { counter: a, .. } => f(*a),
        Inst::Binary { a, b, .. } => [a, b].into_iter().for_each(|r| f(*r)),
        Inst::Blend { cond, a, b, .. } => [cond, a, b].into_iter().for_each(|r| f(*r)),
        Inst::Chain(c) => {
            f(c.a);
            for link in &c.links {
                if let Link::Op(_, r) | Link::RoundQuotient(r) = link {
                    f(*r);
                }
            }
        }
        Inst::Guard(g) => {
            g.then.iter().chain(&g.other).for_each(|i| for_each_use(i, f));
            [g.a, g.b].into_iter().for_each(f);
        }
        Inst::Branch(b) => {
            b.then.iter().chain(&b.other).for_each(|i| for_each_use(i, f));
            [b.cond, b.a, b.b].into_iter().for_each(f);
        }
    }
}

/// Positions in the flattened order, and where each register is last used.
pub(super) struct Life {
    pub at: usize,
    pub last: Vec<usize>,
    pub defined: Vec<bool>,
}

impl Life {
    fn touch(&mut self, reg: Reg, at: usize) {
        let last = &mut self.last[usize::from(reg.0)];
        *last = (*last).max(at);
    }

    pub(super) fn list(&mut self, insts: &[Inst]) {
        for inst in insts {
            self.at += 1;
            match inst {
                Inst::Guard(g) => self.nested(&[&g.then, &g.other], &[g.a, g.b]),
                Inst::Branch(b) => self.nested(&[&b.then, &b.other], &[b.cond, b.a, b.b]),
                plain => {
                    let at = self.at;
                    for_each_use(plain, &mut |r| self.touch(r, at));
                }
            }
            let dst = dst_of(inst);
            self.touch(dst, self.at);
            self.defined[usize::from(dst.0)] = true;
        }
    }

    /// Branches may run several times (once a row): what they use from outside must live to their end.
    fn nested(&mut self, lists: &[&Vec<Inst>], uses: &[Reg]) {
        let before = self.defined.clone();
        let snapshot = self.last.clone();
        for list in lists {
            self.list(list);
        }
        self.at += 1;
        for i in 0..self.last.len() {
            if before[i] && self.last[i] != snapshot[i] {
                self.last[i] = self.at;
            }
        }
        for r in uses {
            self.touch(*r, self.at);
        }
    }

    /// A select's result may be the very lanes of a branch's value: that lives as long.
    pub(super) fn alias(&mut self, insts: &[Inst]) {
        for inst in insts.iter().rev() {
            let (dst, a, b, lists) = match inst {
                Inst::Guard(g) => (g.dst, g.a, g.b, [&g.then, &g.other]),
                Inst::Branch(g) => (g.dst, g.a, g.b, [&g.then, &g.other]),
                _ => continue,
            };
            let last = self.last[usize::from(dst.0)];
            self.touch(a, last);
            self.touch(b, last);
            for list in lists {
                self.alias(list);
            }
        }
    }
}

pub(super) struct Slots<'a> {
    pub free: [Vec<u32>; 4],
    pub top: usize,
    pub lanes: usize,
    /// `(last use, class, slot)` of registers in use.
    pub expiry: Vec<(usize, usize, u32)>,
    pub at: usize,
    pub last: &'a [usize],
}

impl Slots<'_> {
    pub(super) fn list(&mut self, insts: &[Inst], regs: &mut [RegInfo]) {
        for inst in insts {
            self.at += 1;
            match inst {
                Inst::Guard(g) => {
                    // The result is written while branches run: it is there before them.
                    self.give(g.dst, regs);
                    self.list(&g.then, regs);
                    self.list(&g.other, regs);
                    self.at += 1;
                }
                Inst::Branch(b) => {
                    self.give(b.dst, regs);
                    self.list(&b.then, regs);
                    self.list(&b.other, regs);
                    self.at += 1;
                }
                _ => self.give(dst_of(inst), regs),
            }
            let (at, free) = (self.at, &mut self.free);
            self.expiry.retain(|(last, class, slot)| {
                if *last <= at {
                    free[*class].push(*slot);
                }
                *last > at
            });
        }
    }

    fn give(&mut self, reg: Reg, regs: &mut [RegInfo]) {
        let info = &mut regs[usize::from(reg.0)];
        if info.uniform {
            return;
        }
        let class = info.class as usize;
        let slot = self.free[class].pop().unwrap_or_else(|| {
            let slot = self.top as u32;
            self.top += (self.lanes * info.class.bytes()).next_multiple_of(64);
            slot
        });
        info.slot = Some(slot);
        self.expiry.push((self.last[usize::from(reg.0)], class, slot));
    }
}
