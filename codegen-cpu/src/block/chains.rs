//! Instructions of a block program that follow one another, as one.
//!
//! Before: arithmetic with one number each (what quantises: a quotient, rounded, moved, cut), integers of 8 bits that
//! are widened before they become floats, and floats that are widened integers before they are stored in 8 bits. After:
//! one instruction for a chain of arithmetic, whose values stay in registers of the processor; bytes are read as floats
//! and stored from floats.

use std::collections::HashMap;

use ir::host::block::{Chain, Class, Inst, Link, Program, Reg};
use ir::host::product::StageOp;
use ir::op::{BinaryOp, UnaryOp};
use ir::types::DType;

use super::slots::{dst_of, for_each_use};

/// Joins what can be.
pub(super) fn join(program: &mut Program) {
    let mut uses = vec![0usize; program.regs.len()];
    let mut count = |reg: Reg| uses[usize::from(reg.0)] += 1;
    for inst in &program.insts {
        for_each_use(inst, &mut count);
    }
    program.results.iter().for_each(|r| count(*r));
    for store in &program.stores {
        count(store.value);
        store.addr.dynamic.iter().for_each(|r| count(*r));
    }
    let mut insts = std::mem::take(&mut program.insts);
    store_floats(program, &mut insts, &uses);
    let joining = Joining { program, uses: &uses };
    joining.list(&mut insts);
    program.insts = insts;
}

fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::U8)
}

/// Has stores of bytes read the floats that would be cast before.
fn store_floats(program: &mut Program, insts: &mut Vec<Inst>, uses: &[usize]) {
    for store in &mut program.stores {
        let plain = is_byte(store.dtype) && !store.addr.check && store.addr.dynamic.is_none();
        let cast = insts.iter().position(|i| dst_of(i) == store.value);
        let (true, Some(at)) = (plain && uses[usize::from(store.value.0)] == 1, cast) else {
            continue;
        };
        let Inst::Cast {
            from: DType::F32,
            to,
            a,
            ..
        } = insts[at]
        else {
            continue;
        };
        // What lies in a buffer may be what the store overwrites.
        let computed = insts
            .iter()
            .any(|i| dst_of(i) == a && matches!(i, Inst::Unary { .. } | Inst::Binary { .. }));
        if to == store.dtype && computed && !program.regs[usize::from(a.0)].uniform {
            store.value = a;
            insts.remove(at);
        }
    }
}

struct Joining<'a> {
    program: &'a Program,
    uses: &'a [usize],
}

impl Joining<'_> {
    fn list(&self, insts: &mut Vec<Inst>) {
        let mut kept: Vec<Option<Inst>> = Vec::with_capacity(insts.len());
        // Where a register is defined.
        let mut defined: HashMap<Reg, usize> = HashMap::new();
        for mut inst in std::mem::take(insts) {
            match &mut inst {
                Inst::Guard(guard) => {
                    self.list(&mut guard.then);
                    self.list(&mut guard.other);
                }
                Inst::Branch(branch) => {
                    self.list(&mut branch.then);
                    self.list(&mut branch.other);
                }
                _ => {}
            }
            let before = |a: Reg| match self.uses[usize::from(a.0)] {
                1 => defined.get(&a).copied(),
                _ => None,
            };
            if let Inst::Cast {
                dst,
                from,
                to: DType::F32,
                a,
            } = inst
                && is_byte(from)
                && let Some(at) = before(a)
                && let Some(Inst::Load { dtype, addr, .. }) = &kept[at]
                && is_byte(*dtype)
                && !addr.check
                && addr.dynamic.is_none()
                && !self.uniform(dst)
            {
                if let Some(Inst::Load { dst: to, .. }) = &mut kept[at] {
                    *to = dst;
                }
                defined.insert(dst, at);
                continue;
            }
            if let Some((dst, a, link)) = self.link(&inst)
                && let Some(at) = before(a)
                && let Some(mut chain) = kept[at].as_ref().and_then(|inst| self.chain(inst))
            {
                match (link, chain.links.last().copied()) {
                    (Link::Round, Some(Link::Op(StageOp::Div, by))) => {
                        chain.links.pop();
                        chain.links.push(Link::RoundQuotient(by));
                    }
                    _ => chain.links.push(link),
                }
                chain.dst = dst;
                kept[at] = None;
                inst = Inst::Chain(Box::new(chain));
            }
            defined.insert(dst_of(&inst), kept.len());
            kept.push(Some(inst));
        }
        insts.extend(kept.into_iter().flatten());
    }

    fn uniform(&self, reg: Reg) -> bool {
        self.program.regs[usize::from(reg.0)].uniform
    }

    /// An instruction as a chain, if it is one or could begin one.
    fn chain(&self, inst: &Inst) -> Option<Chain> {
        if let Inst::Chain(chain) = inst {
            return Some((**chain).clone());
        }
        let (dst, a, link) = self.link(inst)?;
        Some(Chain {
            dst,
            a,
            links: vec![link],
        })
    }

    /// The result and the operand of arithmetic with one number.
    fn link(&self, inst: &Inst) -> Option<(Reg, Reg, Link)> {
        match *inst {
            Inst::Unary {
                dst,
                op: UnaryOp::Round,
                dtype: DType::F32,
                a,
            } if !self.uniform(dst) => Some((dst, a, Link::Round)),
            Inst::Binary {
                dst,
                op,
                dtype: DType::F32,
                a,
                b,
            } if !self.uniform(dst) => {
                let commutes = matches!(op, BinaryOp::Add | BinaryOp::Mul | BinaryOp::Max | BinaryOp::Min);
                let (x, by) = match (self.uniform(a), self.uniform(b)) {
                    (false, true) => (a, b),
                    (true, false) if commutes => (b, a),
                    _ => return None,
                };
                let op = match op {
                    BinaryOp::Add => StageOp::Add,
                    BinaryOp::Sub => StageOp::Sub,
                    BinaryOp::Mul => StageOp::Mul,
                    BinaryOp::Div => StageOp::Div,
                    BinaryOp::Max => StageOp::Max,
                    BinaryOp::Min => StageOp::Min,
                    _ => return None,
                };
                // Of NaN a stage keeps the left one.
                let number = || {
                    let known = self.program.consts.iter().find(|(reg, _)| *reg == by);
                    known.is_some_and(|(_, bits)| !f32::from_bits(*bits as u32).is_nan())
                };
                let floats = self.program.regs[usize::from(x.0)].class == Class::F32;
                let same = !matches!(op, StageOp::Max | StageOp::Min) || number();
                (floats && same).then_some((dst, x, Link::Op(op, by)))
            }
            _ => None,
        }
    }
}
