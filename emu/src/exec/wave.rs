//! The state of one wave, of its workgroup, and what an instruction's execution may report.

use super::late::Late;
use super::ledger::Ledger;
use super::order::{LdsStore, Order};
use super::scoreboard::Scoreboard;
use super::simd::Lanes;
use super::undefined::Undefined;
use crate::arch::Arch;
use crate::counters::Counters;
use crate::decode::text::{EXEC, NULL, SGPRS, VCC};
use crate::error::FaultKind;
use crate::gpu::LaunchOptions;
use crate::memory::{Memory, View};
use crate::timing::trace::Recorder;

/// What follows an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The next instruction.
    Next,
    /// The instruction at this device address.
    Jump(u64),
    /// The wave waits until the workgroup's barrier opens.
    Barrier,
    /// The wave lets others run.
    Yield,
    /// The wave ends.
    End,
}

/// An error at the current instruction.
#[derive(Debug)]
pub(crate) struct Trap {
    pub lane: Option<u32>,
    pub kind: FaultKind,
}

impl Trap {
    pub fn new(kind: FaultKind) -> Box<Trap> {
        Box::new(Trap { lane: None, kind })
    }

    pub fn at(lane: usize, kind: FaultKind) -> Box<Trap> {
        Box::new(Trap {
            lane: Some(lane as u32),
            kind,
        })
    }

    pub fn not_modelled(what: impl Into<String>) -> Box<Trap> {
        Trap::new(FaultKind::NotModelled(what.into()))
    }
}

pub(crate) type Step = Result<Flow, Box<Trap>>;

/// An instruction, compiled: its operands are captured.
pub(crate) type Exec = Box<dyn Fn(&mut Wave, &mut Env<'_>) -> Step + Send + Sync>;

/// The float mode: rounding and denormals, as the MODE register holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    pub round32: u8,
    pub round16_64: u8,
    pub denorm32: u8,
    pub denorm16_64: u8,
    pub dx10_clamp: bool,
    pub ieee: bool,
    pub fp16_overflow: bool,
}

impl Mode {
    /// Whether f32 rounds to nearest and keeps denormals.
    #[inline]
    pub fn plain32(&self) -> bool {
        self.round32 == 0 && self.denorm32 == 3
    }

    /// The register's low bits.
    pub fn bits(&self) -> u32 {
        u32::from(self.round32)
            | u32::from(self.round16_64) << 2
            | u32::from(self.denorm32) << 4
            | u32::from(self.denorm16_64) << 6
            | u32::from(self.dx10_clamp) << 8
            | u32::from(self.ieee) << 9
            | u32::from(self.fp16_overflow) << 23
    }

    /// Sets all from the register's bits.
    pub fn set_bits(&mut self, bits: u32) {
        self.round32 = (bits & 3) as u8;
        self.round16_64 = (bits >> 2 & 3) as u8;
        self.denorm32 = (bits >> 4 & 3) as u8;
        self.denorm16_64 = (bits >> 6 & 3) as u8;
        self.dx10_clamp = bits >> 8 & 1 == 1;
        self.ieee = bits >> 9 & 1 == 1;
        self.fp16_overflow = bits >> 23 & 1 == 1;
    }
}

/// Why a wave is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    AtBarrier,
    Done,
}

/// One wave.
pub(crate) struct Wave {
    /// Vector registers; AccVGPRs from 256 on.
    pub v: Vec<Lanes>,
    pub s: [u32; SGPRS],
    pub scc: bool,
    /// Index of the next instruction.
    pub pc: usize,
    /// Device address of the next instruction, kept by the loop for s_getpc and calls.
    pub next_address: u64,
    /// Lanes: 32 or 64.
    pub lanes: usize,
    pub lane_mask: u64,
    pub mode: Mode,
    /// Position in the workgroup.
    pub index: u32,
    pub state: State,
    pub board: Scoreboard,
    /// LDS stores since the last barrier, as far as no wait has covered them.
    pub stores: Vec<LdsStore>,
    /// Register bits that come from memory that nothing wrote; None where there are none.
    pub undefined: Option<Box<Undefined>>,
    /// Scratch, a dword of each lane beside that of the next.
    pub scratch: Vec<u32>,
    /// For each word of it a bit for each byte that was written; empty where nobody wants to know.
    pub scratch_written: Vec<u8>,
    /// Bytes of scratch of a lane.
    pub scratch_size: u32,
    pub executed: u64,
    /// The region that the last global access found.
    pub hint: usize,
    /// Split barriers: whether this wave has signalled the current phase.
    pub signalled: bool,
    /// `s_set_gpr_idx` state of gfx9: source and destination enables and the offset.
    pub gpr_index: Option<(u8, u32)>,
}

impl Wave {
    /// The lanes that are on.
    #[inline]
    pub fn exec(&self) -> u64 {
        (u64::from(self.s[EXEC as usize]) | u64::from(self.s[EXEC as usize + 1]) << 32) & self.lane_mask
    }

    pub fn set_exec(&mut self, mask: u64) {
        self.s[EXEC as usize] = mask as u32;
        if self.lanes == 64 {
            self.s[EXEC as usize + 1] = (mask >> 32) as u32;
        }
    }

    /// VCC as a lane mask.
    #[inline]
    pub fn vcc(&self) -> u64 {
        self.mask_at(VCC)
    }

    /// A lane mask held in one (wave32) or two scalar registers.
    #[inline]
    pub fn mask_at(&self, first: u16) -> u64 {
        let low = u64::from(self.s[first as usize]);
        if self.lanes == 64 {
            low | u64::from(self.s[first as usize + 1]) << 32
        } else {
            low
        }
    }

    #[inline]
    pub fn set_mask_at(&mut self, first: u16, mask: u64) {
        self.write_s(first, mask as u32);
        if self.lanes == 64 {
            self.write_s(first + 1, (mask >> 32) as u32);
        }
    }

    /// Writes a scalar register; writes to null vanish.
    #[inline]
    pub fn write_s(&mut self, index: u16, value: u32) {
        if index < NULL {
            self.s[index as usize] = value;
        }
    }

    #[inline]
    pub fn write_s64(&mut self, index: u16, value: u64) {
        self.write_s(index, value as u32);
        self.write_s(index + 1, (value >> 32) as u32);
    }

    #[inline]
    pub fn read_s64(&self, index: u16) -> u64 {
        u64::from(self.s[index as usize]) | u64::from(self.s[index as usize + 1]) << 32
    }
}

/// A byte of LDS since the last barrier: who wrote it and who read it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Touch {
    /// The barrier phase in which the entry holds.
    pub phase: u32,
    /// 1 + the wave that wrote, 0 for none.
    pub writer: u16,
    /// 1 + a wave that read, 0 for none, u16::MAX for several.
    pub reader: u16,
    /// 1 + a wave that changed it by an atomic, 0 for none, u16::MAX for several.
    pub atomic: u16,
    /// The same of atomics that compare.
    pub compared: u16,
}

/// What the waves of a workgroup share.
pub(crate) struct Env<'a> {
    pub arch: &'static Arch,
    pub memory: &'a Memory,
    pub view: &'a View,
    pub options: &'a LaunchOptions,
    pub counters: &'a mut Counters,
    pub lds: Vec<u8>,
    /// Whether the kernel's author wrote its instructions.
    pub hand_written: bool,
    /// One byte for each of LDS: 1 where it was written. Empty where not checked.
    pub lds_written: Vec<u8>,
    /// What is on its way into LDS.
    pub order: Order,
    /// Whether several waves share the LDS and waits are checked.
    pub watches_order: bool,
    /// Whether nothing is asked for that looks at each lane's access by itself.
    pub whole_waves: bool,
    /// Empty where races are not asked for.
    pub lds_touch: Vec<Touch>,
    pub global_touch: std::collections::HashMap<u64, Touch>,
    /// What waves left under way at barriers; None where races or waits are not asked for.
    pub late: Option<Late>,
    /// Whether waves that meet in global memory have to wait before the barrier between.
    pub waits_for_global: bool,
    /// Where races with other workgroups are looked for, and this workgroup's number.
    pub ledger: Option<(&'a Ledger, u64)>,
    pub grid: [u32; 3],
    /// Counts the barriers that opened.
    pub phase: u32,
    /// A clock for s_memtime: instructions executed by the workgroup.
    pub clock: u64,
    /// Device address of the image's first byte.
    pub image_base: u64,
    /// Where a sampled workgroup leaves what the timing model replays.
    pub trace: Option<Recorder>,
}
