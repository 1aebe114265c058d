//! From disassembled text to compiled instructions: the registers each uses, its class, and its closure.
//!
//! An instruction that is not understood becomes one that faults when it is reached and prints its text, so that a
//! kernel that never executes it still runs; nothing is guessed.

pub(crate) mod text;

use crate::arch::{Arch, Generation};
use crate::counters::Class;
use crate::disasm::Line;
use crate::error::{DecodeError, FaultKind};
use crate::exec::operand::{Build, Ty, constant};
use crate::exec::scoreboard::{Counter, Set};
use crate::exec::wave::{Exec, Flow, Trap, Wave};
use crate::exec::{cross, lds, matrix, mx, packed, rare, salu, smem, valu, vmem};
use std::sync::Arc;
use text::{EXEC, Kind, SGPRS, Text, VCC};

/// One compiled instruction.
pub(crate) struct Inst {
    /// The offset in the image.
    pub address: u64,
    pub size: u32,
    pub text: String,
    pub class: Class,
    pub exec: Exec,
    /// Registers that must not be outstanding.
    pub uses: Set,
    /// A load's destination: may be outstanding under the load's own counter, which returns in order.
    pub loads: Set,
    /// Counters that the instruction raises.
    pub issues: Vec<Counter>,
    /// Whether its results return in any order.
    pub unordered: bool,
    /// Whether it works on registers alone: running it again does nothing else.
    pub registers_only: bool,
    /// Whether it reaches registers that its text does not name.
    pub indexed: bool,
    /// The sources of a comparison; empty for other instructions.
    pub compared: Vec<Source>,
}

/// A source of a comparison: its first register, or its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Vector(u16),
    Scalar(u16),
    Constant(u64),
}

/// The compiled instructions of a stretch of code, in order: what the kernels of a module share.
#[derive(Default)]
pub(crate) struct Part {
    insts: Vec<Arc<Inst>>,
    /// The highest vector register used, plus one.
    vectors: usize,
    /// Instructions that were not understood.
    unknown: Vec<DecodeError>,
    /// Whether functions are called.
    pub calls: bool,
}

/// The compiled code of a kernel: instructions in order, found by address.
pub(crate) struct Code {
    pub insts: Vec<Arc<Inst>>,
    start: u64,
    index: Vec<u32>,
    /// The highest vector register used, plus one.
    pub vectors: usize,
    /// Instructions that were not understood.
    pub unknown: Vec<DecodeError>,
    /// Whether functions are called.
    pub calls: bool,
}

impl Code {
    /// The code of these parts; an instruction that several have is taken once.
    pub fn join(parts: &[&Part]) -> Code {
        let mut insts: Vec<Arc<Inst>> = parts.iter().flat_map(|part| &part.insts).cloned().collect();
        insts.sort_by_key(|inst| inst.address);
        insts.dedup_by_key(|inst| inst.address);
        let mut unknown: Vec<DecodeError> = parts.iter().flat_map(|part| &part.unknown).cloned().collect();
        unknown.sort_by_key(|error| error.address);
        unknown.dedup_by_key(|error| error.address);
        let start = insts.first().map_or(0, |inst| inst.address);
        let end = insts.last().map_or(0, |inst| inst.address + u64::from(inst.size));
        let mut index = vec![u32::MAX; ((end - start) / 4) as usize + 1];
        for (number, inst) in insts.iter().enumerate() {
            index[((inst.address - start) / 4) as usize] = number as u32;
        }
        Code {
            insts,
            start,
            index,
            vectors: parts.iter().map(|part| part.vectors).fold(1, usize::max),
            unknown,
            calls: parts.iter().any(|part| part.calls),
        }
    }

    /// The instruction at an image offset.
    #[inline]
    pub fn at(&self, address: u64) -> Option<usize> {
        let slot = address.checked_sub(self.start)? / 4;
        let index = *self.index.get(slot as usize)?;
        (index != u32::MAX && address.is_multiple_of(4)).then_some(index as usize)
    }
}

/// Compiles disassembled lines, which lie in order; `image` is what they were disassembled from.
pub(crate) fn compile(lines: &[Line], image: &[u8], arch: &'static Arch, lanes: usize, image_base: u64) -> Part {
    let mut part = Part::default();
    for line in lines {
        let raw = image.get(line.address as usize..).unwrap_or(&[]);
        let raw = &raw[..raw.len().min(line.size as usize)];
        let inst = compile_line(line, raw, arch, lanes, image_base).unwrap_or_else(|reason| {
            part.unknown.push(DecodeError {
                address: line.address,
                text: line.text.clone(),
                reason: reason.clone(),
            });
            let what = if line.text.is_empty() {
                format!("bytes {raw:02x?}: {reason}")
            } else {
                reason
            };
            Inst {
                address: line.address,
                size: line.size,
                text: line.text.clone(),
                class: Class::Control,
                exec: Box::new(move |_, _| Err(Trap::new(FaultKind::Unknown(what.clone())))),
                uses: Set::default(),
                loads: Set::default(),
                issues: Vec::new(),
                unordered: false,
                registers_only: false,
                indexed: false,
                compared: Vec::new(),
            }
        });
        for (word, bits) in inst.uses.v.iter().zip(inst.loads.v).map(|(a, b)| a | b).enumerate() {
            if bits != 0 {
                part.vectors = part.vectors.max(word * 64 + 64 - bits.leading_zeros() as usize);
            }
        }
        part.calls |= line.text.starts_with("s_swappc") || line.text.starts_with("s_call");
        part.insts.push(Arc::new(inst));
    }
    part
}

fn class_of(name: &str) -> Class {
    if name.starts_with("v_mfma")
        || name.starts_with("v_wmma")
        || name.starts_with("v_smfmac")
        || name.starts_with("v_swmmac")
    {
        Class::Matrix
    } else if name.starts_with("v_") {
        Class::Valu
    } else if name.starts_with("s_load")
        || name.starts_with("s_buffer_load")
        || name.starts_with("s_mem")
        || name.starts_with("s_store_")
        || name.starts_with("s_atomic_")
    {
        Class::Smem
    } else if name.starts_with("ds_") {
        Class::Lds
    } else if ["global_", "flat_", "scratch_", "buffer_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
    {
        Class::Vmem
    } else if ["s_branch", "s_cbranch", "s_setpc", "s_swappc", "s_call"]
        .iter()
        .any(|p| name.starts_with(p))
    {
        Class::Branch
    } else if [
        "s_wait",
        "s_nop",
        "s_barrier",
        "s_endpgm",
        "s_delay",
        "s_clause",
        "s_sleep",
        "s_sendmsg",
        "s_set",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
    {
        Class::Control
    } else {
        Class::Salu
    }
}

fn compile_line(line: &Line, raw: &[u8], arch: &'static Arch, lanes: usize, base: u64) -> Result<Inst, String> {
    if line.text.is_empty() || raw.len() < 4 {
        return Err("not an instruction".into());
    }
    let mut parts = text::parse(&line.text)?;
    if lanes == 64 {
        parts.iter_mut().for_each(|part| narrow_wmma(part, arch));
    }
    let build = |part: &Text| {
        let mut b = Build {
            text: part,
            arch,
            lanes,
            base: 1,
            image_base: base,
            address: line.address,
            size: line.size,
            raw,
        };
        build_one(&mut b)
    };
    let first = &parts[0];
    let class = class_of(&first.mnemonic);
    let (mut uses, mut loads) = (Set::default(), Set::default());
    let issues = issues(first, class, arch);
    for (number, part) in parts.iter().enumerate() {
        let destination = loads_into(part, class, &issues);
        for (index, operand) in part.operands.iter().enumerate() {
            let set = if number == 0 && destination == Some(index) {
                &mut loads
            } else {
                &mut uses
            };
            match operand.kind {
                Kind::Vector { first, count } => set.add_vector(first, count),
                Kind::Scalar { first, count } => set.add_scalar(first, count),
                _ => {}
            }
        }
        if part.mnemonic.starts_with("v_dual_cndmask") && part.operands.len() == 3 {
            uses.add_scalar(VCC, 2);
        }
    }
    if class == Class::Valu && line.text.contains("exec") {
        uses.add_scalar(EXEC, 2);
    }
    let exec = match parts.as_slice() {
        [one] => build(one)?,
        [x, y] => pair(build(x)?, build(y)?, x, y)?,
        _ => return Err("more than two halves".into()),
    };
    let unordered = class == Class::Smem;
    let name = first.mnemonic.as_str();
    let lane_moves = ["ds_permute", "ds_bpermute", "ds_swizzle"];
    let registers_only = matches!(class, Class::Salu | Class::Valu | Class::Matrix | Class::Branch)
        || lane_moves.iter().any(|prefix| name.starts_with(prefix));
    Ok(Inst {
        address: line.address,
        size: line.size,
        text: line.text.clone(),
        class,
        exec,
        uses,
        loads,
        issues,
        unordered,
        registers_only,
        indexed: name.contains("movrel"),
        compared: compared(first),
    })
}

/// The sources of a comparison.
fn compared(text: &Text) -> Vec<Source> {
    if !["v_cmp", "s_cmp", "s_bitcmp"]
        .iter()
        .any(|prefix| text.mnemonic.starts_with(prefix))
    {
        return Vec::new();
    }
    let ty = if text.mnemonic.ends_with("f64") {
        Ty::F64
    } else if text.mnemonic.ends_with("f16") {
        Ty::F16
    } else {
        Ty::F32
    };
    let sources = text.operands.iter().filter_map(|operand| match operand.kind {
        Kind::Vector { first, .. } => Some(Source::Vector(first)),
        Kind::Scalar { first, .. } => Some(Source::Scalar(first)),
        ref kind => constant(kind, ty).map(Source::Constant),
    });
    sources.collect()
}

/// The disassembler is not told the wave size and prints WMMA's operands as those of a wave of 32 lanes. In one of 64
/// the tiles take half the registers (gfx11: the sums alone, since its A and B are repeated).
fn narrow_wmma(part: &mut Text, arch: &Arch) {
    if !part.mnemonic.starts_with("v_wmma_") && !part.mnemonic.starts_with("v_swmmac_") {
        return;
    }
    let all = arch.at_least(Generation::Gfx12);
    for (index, operand) in part.operands.iter_mut().enumerate() {
        if let Kind::Vector { count, .. } = &mut operand.kind
            && (all || matches!(index, 0 | 3))
        {
            *count = count.div_ceil(2);
        }
    }
}

fn build_one(b: &mut Build<'_>) -> Result<Exec, String> {
    let name = valu::canonical(&b.text.mnemonic).to_string();
    let found = if name.starts_with("v_") {
        cross::build(b, &name)
            .or_else(|| valu::build(b, &name))
            .or_else(|| packed::build(b, &name))
            .or_else(|| matrix::build(b, &name))
            .or_else(|| mx::build(b, &name))
            .or_else(|| rare::build(b, &name))
    } else if name.starts_with("ds_") {
        lds::build(b, &name)
    } else {
        smem::build(b, &name)
            .or_else(|| salu::build(b, &name))
            .or_else(|| vmem::build(b, &name))
    };
    found.unwrap_or_else(|| Err(format!("instruction {name} is not known")))
}

/// VOPD: both halves read their sources before either writes.
fn pair(x: Exec, y: Exec, x_text: &Text, y_text: &Text) -> Result<Exec, String> {
    let register = |text: &Text| match text.operands.first().map(|operand| &operand.kind) {
        Some(Kind::Vector { first, .. }) => Ok(*first as usize),
        other => Err(format!("VOPD destination {other:?}")),
    };
    let written = register(x_text)?;
    let reads = y_text.operands.iter().any(|operand| {
        matches!(operand.kind, Kind::Vector { first, count }
            if (first as usize..(first + count) as usize).contains(&written))
    });
    if register(y_text)? == written {
        return Err("both halves of a VOPD write one register".into());
    }
    Ok(Box::new(move |w: &mut Wave, env| {
        if !reads {
            x(w, env)?;
            return y(w, env);
        }
        let old = w.v[written];
        x(w, env)?;
        let new = std::mem::replace(&mut w.v[written], old);
        y(w, env)?;
        w.v[written] = new;
        Ok(Flow::Next)
    }))
}

/// Which counters an instruction raises.
fn issues(text: &Text, class: Class, arch: &Arch) -> Vec<Counter> {
    let name = text.mnemonic.as_str();
    let gfx12 = arch.at_least(Generation::Gfx12);
    match class {
        Class::Smem => vec![if gfx12 { Counter::Scalar } else { Counter::Local }],
        Class::Lds => vec![Counter::Local],
        Class::Vmem => {
            let is_cache = ["inv", "wb", "gl0", "gl1"]
                .iter()
                .any(|word| name.split('_').nth(1) == Some(word));
            if is_cache || name.contains("_wbinv") || name.contains("_wbl2") || name.contains("_invl2") {
                return Vec::new();
            }
            let returns = name.contains("_load") || (name.contains("_atomic") && returns_value(text));
            let vector = if returns || !arch.at_least(Generation::Gfx10) {
                Counter::Vector
            } else {
                Counter::Store
            };
            if name.starts_with("flat_") {
                vec![vector, Counter::Local]
            } else {
                vec![vector]
            }
        }
        _ if name.starts_with("s_sendmsg_rtn") => vec![if gfx12 { Counter::Scalar } else { Counter::Local }],
        _ => Vec::new(),
    }
}

fn returns_value(text: &Text) -> bool {
    text.flag("glc") || text.flag("sc0") || text.value("th").is_some_and(|hint| hint.contains("RETURN"))
}

/// The operand that a memory instruction writes when it returns.
fn loads_into(text: &Text, class: Class, issues: &[Counter]) -> Option<usize> {
    if issues.is_empty() {
        return None;
    }
    let name = text.mnemonic.as_str();
    match class {
        Class::Smem if name.starts_with("s_store_") => None,
        Class::Smem => Some(0),
        Class::Lds => {
            let reads = ["_read", "_load", "_rtn", "permute", "swizzle", "_append", "_consume"];
            reads.iter().any(|word| name.contains(word)).then_some(0)
        }
        Class::Vmem if name.contains("_load_lds") || text.flag("lds") => None,
        Class::Vmem => (name.contains("_load") || name.contains("_atomic") && returns_value(text)).then_some(0),
        _ => Some(0),
    }
}

/// Scalar registers exist up to this index.
const _: () = assert!(SGPRS <= 192);
