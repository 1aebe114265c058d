//! What the model asks of an instruction: its unit, what it costs there, which registers it reads and writes, what it
//! waits for.
//!
//! All of it is read from the instruction's text once per kernel.

use super::cost::{self, matrix_cycles};
use crate::arch::{Arch, Generation};
use crate::counters::Class;
use crate::decode::text::{self, EXEC, Flag, Kind, SGPRS, Text, VCC, number};
use crate::decode::{Code, Inst};
use crate::exec::matrix::{cost_shape, parse_shape};
use crate::exec::scoreboard::Counter;
use crate::exec::valu::canonical;

/// The registers of a wave as the model numbers them: 512 vector registers, the scalar ones, and SCC.
pub(crate) const REGISTERS: usize = 512 + SGPRS + 1;
const SCALAR: u16 = 512;
const SCC: u16 = SCALAR + SGPRS as u16;

/// Where an instruction goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Salu,
    Valu,
    /// RDNA's unit for transcendental functions.
    Transcendental,
    Matrix,
    Smem,
    /// Vector memory; whether it stores (atomics do).
    Vmem {
        store: bool,
    },
    Lds {
        write: bool,
    },
    Branch,
    /// Arrives at the workgroup's barrier and waits there.
    Barrier,
    /// Arrives only.
    Signal,
    /// Waits only.
    BarrierWait,
    /// Takes a slot of the wave and no unit: waits and hints.
    Free,
    /// Holds the wave for this many cycles.
    Nop(u32),
    /// Waves of a higher level issue before the others of their SIMD (`s_setprio`), 0 to 3.
    Priority(u8),
    End,
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct InstructionFacts {
    pub unit: Unit,
    pub class: Class,
    /// Cycles that the unit is taken.
    pub cycles: u32,
    /// Matrix instructions: the vector ALU of the SIMD does nothing else meanwhile.
    pub exclusive: bool,
    /// Matrix instructions of f64.
    pub double: bool,
    /// Vector ALU instructions that a running matrix instruction holds up (packed f32 on CDNA).
    pub shuts_out: bool,
    pub reads: Box<[u16]>,
    pub writes: Box<[u16]>,
    /// Matrix instructions: the first registers of the addend and the result.
    pub chain: Option<(u16, u16)>,
    pub waits: Box<[(Counter, usize)]>,
    pub counters: Box<[Counter]>,
    /// Bytes a lane, of memory and LDS instructions.
    pub bytes: u32,
    /// Vector memory: what is loaded goes to LDS, past the registers.
    pub to_lds: bool,
    pub address: u64,
    /// Bytes of its encoding.
    pub size: u32,
}

/// The facts of each instruction of a kernel, for waves of `lanes`.
pub(crate) fn of(code: &Code, arch: &Arch, lanes: usize) -> Vec<InstructionFacts> {
    code.insts.iter().map(|inst| read(inst, arch, lanes)).collect()
}

fn read(inst: &Inst, arch: &Arch, lanes: usize) -> InstructionFacts {
    let parts = text::parse(&inst.text).unwrap_or_default();
    let empty = Text::default();
    let first = parts.first().unwrap_or(&empty);
    let name = canonical(&first.mnemonic).to_string();
    let mut facts = InstructionFacts {
        unit: Unit::Free,
        class: inst.class,
        cycles: 1,
        exclusive: false,
        double: false,
        shuts_out: false,
        reads: Box::default(),
        writes: Box::default(),
        chain: None,
        waits: Box::default(),
        counters: inst.issues.clone().into_boxed_slice(),
        bytes: 0,
        to_lds: false,
        address: inst.address,
        size: inst.size,
    };
    match inst.class {
        Class::Salu => facts.unit = Unit::Salu,
        Class::Valu => {
            let mut cycles = 0;
            for part in &parts {
                let cost = cost::vector(arch, canonical(&part.mnemonic), lanes);
                cycles = cycles.max(cost.cycles);
                facts.unit = if cost.apart { Unit::Transcendental } else { Unit::Valu };
            }
            facts.cycles = cycles;
            facts.shuts_out = name.starts_with("v_pk_") && name.ends_with("f32") && !arch.at_least(Generation::Gfx10);
        }
        Class::Matrix => {
            facts.unit = Unit::Matrix;
            facts.cycles = matrix(first, arch);
            facts.chain = chain(first);
            let double = name.contains("f64");
            let single = matches!(types(&name), Some("f32"));
            facts.double = double;
            facts.exclusive = arch.at_least(Generation::Gfx10) || double || single && arch.name != "gfx90a";
        }
        Class::Smem => facts.unit = Unit::Smem,
        Class::Vmem => {
            let store = name.contains("_store") || name.contains("_atomic");
            facts.unit = if inst.issues.is_empty() {
                Unit::Free
            } else {
                Unit::Vmem { store }
            };
            facts.bytes = bytes(&name);
            facts.to_lds = first.flag("lds") || name.contains("_load_lds");
        }
        Class::Lds => {
            let write = inst.loads == Default::default() && name != "ds_nop";
            facts.unit = if name == "ds_nop" {
                Unit::Free
            } else {
                Unit::Lds { write }
            };
            facts.bytes = bytes(&name)
                * if name.contains("read2") || name.contains("write2") || name.contains("2addr") {
                    2
                } else {
                    1
                };
        }
        Class::Branch => facts.unit = Unit::Branch,
        Class::Control => control(&mut facts, first, &name, arch),
    }
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for part in &parts {
        registers(part, inst.class, &mut reads, &mut writes);
    }
    if matches!(inst.class, Class::Valu | Class::Matrix | Class::Vmem | Class::Lds) {
        reads.push(SCALAR + EXEC);
    }
    facts.reads = reads.into();
    facts.writes = writes.into();
    facts
}

fn types(name: &str) -> Option<&str> {
    let rest = ["v_mfma_scale_", "v_mfma_", "v_wmma_", "v_smfmac_", "v_swmmac_"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))?;
    parse_shape(rest).map(|(.., types)| types)
}

fn matrix(text: &Text, arch: &Arch) -> u32 {
    let name = text.mnemonic.as_str();
    let sparse = name.starts_with("v_smfmac_") || name.starts_with("v_swmmac_");
    let rest = ["v_mfma_scale_", "v_mfma_", "v_wmma_", "v_smfmac_", "v_swmmac_"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .and_then(parse_shape);
    rest.map_or(32, |(_, m, _, k, types)| {
        matrix_cycles(arch, cost_shape(text, m, k, types, sparse))
    })
}

fn chain(text: &Text) -> Option<(u16, u16)> {
    let first = |index: usize| match text.operands.get(index).map(|operand| &operand.kind) {
        Some(Kind::Vector { first, .. }) => Some(*first),
        _ => None,
    };
    let sparse = text.mnemonic.starts_with("v_smfmac_") || text.mnemonic.starts_with("v_swmmac_");
    let result = first(0)?;
    Some((if sparse { result } else { first(3)? }, result))
}

/// Bytes a lane, by the mnemonic's end.
fn bytes(name: &str) -> u32 {
    for (ends, bytes) in [
        (["x16", "b512"], 64),
        (["x8", "b256"], 32),
        (["x4", "b128"], 16),
        (["x3", "b96"], 12),
        (["x2", "64"], 8),
    ] {
        if ends.iter().any(|end| name.ends_with(end)) {
            return bytes;
        }
    }
    if name.contains("_b64_tr") {
        8
    } else if name.contains("byte") || name.ends_with("u8") || name.ends_with("i8") || name.ends_with("b8") {
        1
    } else if name.contains("short") || name.ends_with("16") {
        2
    } else {
        4
    }
}

fn control(facts: &mut InstructionFacts, text: &Text, name: &str, arch: &Arch) {
    let immediate = match text.operands.last().map(|operand| &operand.kind) {
        Some(Kind::Int(value)) => *value as u64 & 0xffff,
        Some(Kind::Bits(value)) => *value & 0xffff,
        _ => 0,
    };
    let slot = if arch.at_least(Generation::Gfx10) { 1 } else { 4 };
    facts.unit = match name {
        "s_endpgm" | "s_endpgm_saved" => Unit::End,
        "s_barrier" => Unit::Barrier,
        "s_barrier_signal" | "s_barrier_signal_isfirst" => Unit::Signal,
        "s_barrier_wait" => Unit::BarrierWait,
        "s_setprio" => Unit::Priority(immediate as u8 & 3),
        "s_nop" => Unit::Nop((immediate as u32 + 1) * slot),
        // Units of 64 cycles.
        "s_sleep" => Unit::Nop((immediate as u32 & 127) * 64),
        _ => Unit::Free,
    };
    facts.waits = waits(text, name, immediate as usize).into();
}

/// The counters that a wait names, each with the operations that may be left.
fn waits(text: &Text, name: &str, immediate: usize) -> Vec<(Counter, usize)> {
    match name {
        "s_waitcnt" => {
            let mut found = Vec::new();
            let operands = text.operands.iter().map(|operand| &operand.kind);
            for kind in operands {
                match kind {
                    Kind::Text(word) => found.extend(word_wait(word)),
                    Kind::Int(0) | Kind::Bits(0) => found.extend([(Counter::Vector, 0), (Counter::Local, 0)]),
                    _ => {}
                }
            }
            found.extend(text.modifiers.iter().filter_map(|(word, _)| word_wait(word)));
            found
        }
        "s_waitcnt_vscnt" | "s_wait_storecnt" => vec![(Counter::Store, immediate)],
        "s_waitcnt_vmcnt" | "s_wait_loadcnt" => vec![(Counter::Vector, immediate)],
        "s_waitcnt_lgkmcnt" | "s_wait_dscnt" => vec![(Counter::Local, immediate)],
        "s_wait_kmcnt" => vec![(Counter::Scalar, immediate)],
        "s_wait_idle" => [Counter::Vector, Counter::Store, Counter::Local, Counter::Scalar]
            .map(|counter| (counter, 0))
            .to_vec(),
        "s_wait_loadcnt_dscnt" => vec![(Counter::Vector, immediate >> 8 & 63), (Counter::Local, immediate & 63)],
        "s_wait_storecnt_dscnt" => vec![(Counter::Store, immediate >> 8 & 63), (Counter::Local, immediate & 63)],
        _ => Vec::new(),
    }
}

fn word_wait(word: &str) -> Option<(Counter, usize)> {
    let (name, rest) = word.split_once('(')?;
    let left = number(rest.strip_suffix(')')?)? as usize;
    match name {
        "vmcnt" => Some((Counter::Vector, left)),
        "lgkmcnt" => Some((Counter::Local, left)),
        _ => None,
    }
}

/// Adds the registers that one instruction (or half of a pair) reads and writes.
fn registers(text: &Text, class: Class, reads: &mut Vec<u16>, writes: &mut Vec<u16>) {
    let name = canonical(&text.mnemonic);
    let compares = name.starts_with("v_cmp");
    let stores = class == Class::Vmem && name.contains("_store")
        || class == Class::Lds && (name.contains("write") || name.contains("store"));
    let no_result = stores
        || matches!(class, Class::Branch | Class::Control)
        || name.starts_with("s_cmp")
        || name.starts_with("s_bitcmp")
        || name.starts_with("s_setreg");
    let carries = name.contains("_co_")
        || name.starts_with("v_div_scale")
        || name.starts_with("v_mad_u64")
        || name.starts_with("v_mad_i64");
    let keeps = name.contains("fmac")
        || name.contains("_mac_")
        || name.starts_with("v_dot2c")
        || name.contains("writelane")
        || name.starts_with("v_smfmac")
        || name.starts_with("v_swmmac")
        || name.starts_with("v_swap");
    for (index, operand) in text.operands.iter().enumerate() {
        let list: &mut Vec<u16> = match (index, &operand.kind) {
            (0, _) if !(no_result || name.starts_with("v_cmpx") && matches!(operand.kind, Kind::Vector { .. })) => {
                writes
            }
            (1, Kind::Scalar { .. }) if carries => writes,
            (1, _) if name.starts_with("v_swap") => writes,
            _ => reads,
        };
        match operand.kind {
            Kind::Vector { first, count } => list.extend(first..first + count),
            Kind::Scalar { first, count } => list.extend((first..first + count).map(|index| SCALAR + index)),
            Kind::Flag(Flag::Scc) => list.push(SCC),
            _ => {}
        }
        if index == 0
            && keeps
            && let Kind::Vector { first, count } = operand.kind
        {
            reads.extend(first..first + count);
        }
    }
    if name.starts_with("v_dual_cndmask") && text.operands.len() == 3 {
        reads.push(SCALAR + VCC);
    }
    if compares && name.starts_with("v_cmpx") || name.contains("saveexec") {
        writes.push(SCALAR + EXEC);
    }
    let flagless = [
        "s_mov",
        "s_mul",
        "s_cselect",
        "s_getpc",
        "s_pack",
        "s_brev",
        "s_ff",
        "s_bfm",
        "s_sext",
        "s_cmov",
    ];
    if class == Class::Salu && !flagless.iter().any(|prefix| name.starts_with(prefix)) {
        writes.push(SCC);
    }
    if name.starts_with("s_cselect")
        || name.starts_with("s_addc")
        || name.starts_with("s_subb")
        || name.contains("_scc")
    {
        reads.push(SCC);
    }
    if name.contains("_vcc") && class == Class::Branch {
        reads.push(SCALAR + VCC);
    }
    if name.contains("_exec") && class == Class::Branch {
        reads.push(SCALAR + EXEC);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, class: Class) -> (Vec<u16>, Vec<u16>) {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for part in text::parse(text).expect("reads") {
            registers(&part, class, &mut reads, &mut writes);
        }
        (reads, writes)
    }

    #[test]
    fn results_and_operands() {
        let (reads, writes) = split("v_fmac_f32_e32 v3, s1, v2", Class::Valu);
        assert_eq!((reads, writes), (vec![3, SCALAR + 1, 2], vec![3]));
        let (reads, writes) = split("v_add_co_u32_e32 v0, vcc, v1, v2", Class::Valu);
        assert_eq!((reads, writes), (vec![1, 2], vec![0, SCALAR + VCC, SCALAR + VCC + 1]));
        let (reads, writes) = split("global_store_dwordx2 v4, v[6:7], s[2:3]", Class::Vmem);
        assert_eq!((reads, writes), (vec![4, 6, 7, SCALAR + 2, SCALAR + 3], vec![]));
        let (reads, writes) = split("s_cmp_lt_i32 s4, 7", Class::Salu);
        assert_eq!((reads, writes), (vec![SCALAR + 4], vec![SCC]));
        let (reads, writes) = split("v_dual_mul_f32 v3, 0, v0 :: v_dual_and_b32 v2, 7, v1", Class::Valu);
        assert_eq!((reads, writes), (vec![0, 1], vec![3, 2]));
    }

    #[test]
    fn waits_name_their_counters() {
        let of = |line: &str| {
            let text = &text::parse(line).expect("reads")[0];
            waits(text, &text.mnemonic, 0x203)
        };
        assert_eq!(
            of("s_waitcnt vmcnt(3) lgkmcnt(0)"),
            [(Counter::Vector, 3), (Counter::Local, 0)]
        );
        assert_eq!(
            of("s_wait_loadcnt_dscnt 0x203"),
            [(Counter::Vector, 2), (Counter::Local, 3)]
        );
    }

    #[test]
    fn bytes_of_accesses() {
        for (name, expected) in [
            ("global_load_dwordx4", 16),
            ("ds_read_b64", 8),
            ("ds_read_b64_tr_b16", 8),
            ("buffer_load_ushort", 2),
            ("global_load_b32", 4),
            ("ds_write2_b64", 8),
            ("flat_load_ubyte", 1),
        ] {
            assert_eq!(bytes(name), expected, "{name}");
        }
    }
}
