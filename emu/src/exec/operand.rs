//! Operands of vector instructions: fetching with modifiers, DPP and SDWA; storing with half and byte selects.

use super::float::{f16_to_f32, f32_to_f16, flush32};
use super::simd::{Lanes, Lanes64};
use super::wave::{Mode, Wave};
use crate::arch::Arch;
use crate::decode::text::{Encoding, Flag, Kind, Operand, Text};

/// The type an operand is read as; it decides what constants and modifiers mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ty {
    /// 16 bits, integer.
    B16,
    F16,
    BF16,
    /// 32 bits, integer or untyped.
    B32,
    F32,
    /// 64 bits, literals zero-extended.
    B64,
    /// 64 bits, literals sign-extended.
    I64,
    F64,
}

impl Ty {
    pub fn is_16(self) -> bool {
        matches!(self, Ty::B16 | Ty::F16 | Ty::BF16)
    }

    pub fn is_64(self) -> bool {
        matches!(self, Ty::B64 | Ty::I64 | Ty::F64)
    }

    fn sign_bit(self) -> u32 {
        if self.is_16() { 0x8000 } else { 0x8000_0000 }
    }
}

/// The bits of a constant as an operand of type `ty`.
pub(crate) fn constant(kind: &Kind, ty: Ty) -> Option<u64> {
    /// 1/(2π) in f64, f32, f16 and bf16, as the inline constant.
    const INVERSE_TAU: f64 = 0.159_154_94;
    Some(match *kind {
        Kind::Int(value) => match ty {
            _ if ty.is_64() => value as u64,
            Ty::F16 | Ty::BF16 | Ty::B16 => u64::from(value as u16),
            _ => u64::from(value as u32),
        },
        Kind::Bits(bits) => match ty {
            Ty::F64 if bits <= 0xffff_ffff => bits << 32,
            Ty::I64 if bits <= 0xffff_ffff => bits as u32 as i32 as i64 as u64,
            _ if ty.is_64() => bits,
            _ => bits & 0xffff_ffff,
        },
        Kind::Float(value) => {
            let inverse_tau = (value - INVERSE_TAU).abs() < 1e-6;
            match ty {
                Ty::F16 | Ty::B16 if inverse_tau => 0x3118,
                Ty::BF16 if inverse_tau => 0x3e22,
                Ty::F32 | Ty::B32 if inverse_tau => 0x3e22_f983,
                _ if inverse_tau => 0x3fc4_5f30_6dc9_c882,
                Ty::F16 | Ty::B16 => u64::from(f32_to_f16(value as f32)),
                Ty::BF16 => u64::from((value as f32).to_bits() >> 16),
                Ty::F32 | Ty::B32 => u64::from((value as f32).to_bits()),
                _ => value.to_bits(),
            }
        }
        Kind::Base(value) => value,
        _ => return None,
    })
}

/// Where a 32-bit source comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Src {
    V(u16),
    S(u16),
    C(u32),
    Flag(Flag),
}

impl Src {
    /// The value that all lanes share; None for a vector register.
    #[inline]
    pub fn uniform(self, w: &Wave) -> Option<u32> {
        match self {
            Src::V(_) => None,
            Src::S(index) => Some(w.s[index as usize]),
            Src::C(value) => Some(value),
            Src::Flag(flag) => Some(read_flag(w, flag)),
        }
    }
}

pub(crate) fn read_flag(w: &Wave, flag: Flag) -> u32 {
    u32::from(match flag {
        Flag::Scc => w.scc,
        Flag::Vccz => w.vcc() & w.lane_mask == 0,
        Flag::Execz => w.exec() == 0,
    })
}

/// Which part of the 32 bits is the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sel {
    Full,
    Byte(u8),
    Word(u8),
}

impl Sel {
    pub fn parse(text: &str) -> Option<Sel> {
        Some(match text {
            "DWORD" => Sel::Full,
            "WORD_0" => Sel::Word(0),
            "WORD_1" => Sel::Word(1),
            "BYTE_0" => Sel::Byte(0),
            "BYTE_1" => Sel::Byte(1),
            "BYTE_2" => Sel::Byte(2),
            "BYTE_3" => Sel::Byte(3),
            _ => return None,
        })
    }
}

/// How DPP moves a source between lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dpp {
    /// The lane each lane reads, or 64 where there is none.
    from: [u8; 64],
    /// Lanes that the row and bank masks let write.
    write: u64,
    /// Whether a missing source reads as zero (otherwise the lane is not written).
    bound_ctrl: bool,
    /// Whether lanes that are off may be read.
    fetch_inactive: bool,
}

impl Dpp {
    fn parse(text: &Text, lanes: usize) -> Result<Option<Dpp>, String> {
        let mut from = [64u8; 64];
        let amount = |value: &str| value.parse::<usize>().map_err(|_| format!("bad DPP amount {value:?}"));
        let mut found = false;
        for (key, value) in &text.modifiers {
            let row = |lane: usize| (lane & !15, lane & 15);
            let lane_of: Box<dyn Fn(usize) -> Option<usize>> = match key.as_str() {
                "quad_perm" => {
                    let list = text.list(key).filter(|list| list.len() == 4).ok_or("bad quad_perm")?;
                    Box::new(move |lane| Some((lane & !3) + list[lane & 3] as usize))
                }
                "dpp8" => {
                    let list = text.list(key).filter(|list| list.len() == 8).ok_or("bad dpp8")?;
                    Box::new(move |lane| Some((lane & !7) + list[lane & 7] as usize))
                }
                "row_shl" => {
                    let by = amount(value)?;
                    Box::new(move |lane| (row(lane).1 + by < 16).then_some(lane + by))
                }
                "row_shr" => {
                    let by = amount(value)?;
                    Box::new(move |lane| (row(lane).1 >= by).then(|| lane - by))
                }
                "row_ror" => {
                    let by = amount(value)?;
                    Box::new(move |lane| Some(row(lane).0 + (row(lane).1 + 16 - by % 16) % 16))
                }
                "wave_shl" => Box::new(move |lane| (lane + 1 < lanes).then_some(lane + 1)),
                "wave_rol" => Box::new(move |lane| Some((lane + 1) % lanes)),
                "wave_shr" => Box::new(|lane| lane.checked_sub(1)),
                "wave_ror" => Box::new(move |lane| Some((lane + lanes - 1) % lanes)),
                "row_mirror" => Box::new(move |lane| Some(row(lane).0 + 15 - row(lane).1)),
                "row_half_mirror" => Box::new(|lane| Some((lane & !7) + 7 - (lane & 7))),
                "row_bcast" if value == "15" => Box::new(move |lane| row(lane).0.checked_sub(1)),
                "row_bcast" if value == "31" => Box::new(|lane| (lane >= 32).then_some(31)),
                "row_share" | "row_newbcast" => {
                    let source = amount(value)?;
                    Box::new(move |lane| Some(row(lane).0 + source))
                }
                "row_xmask" => {
                    let mask = amount(value)?;
                    Box::new(move |lane| Some(lane ^ mask))
                }
                _ => continue,
            };
            for (lane, slot) in from.iter_mut().enumerate().take(lanes) {
                *slot = lane_of(lane).map_or(64, |source| source as u8);
            }
            found = true;
        }
        if !found {
            return Ok(None);
        }
        let row_mask = text.value("row_mask").map_or(15, |_| text.number("row_mask") as u64);
        let bank_mask = text.value("bank_mask").map_or(15, |_| text.number("bank_mask") as u64);
        let write = (0..64u64)
            .filter(|lane| row_mask >> (lane / 16) & 1 == 1 && bank_mask >> (lane / 4 % 4) & 1 == 1)
            .fold(0, |mask, lane| mask | 1 << lane);
        // Every form of the modifier's text (`bound_ctrl:0`, `bound_ctrl:1`) stands for the bit being set.
        let bound_ctrl = text.value("bound_ctrl").is_some() || text.value("dpp8").is_some();
        let fetch_inactive = text.number("fi") == 1;
        Ok(Some(Dpp {
            from,
            write,
            bound_ctrl,
            fetch_inactive,
        }))
    }

    /// Moves `values`; lanes that get nothing are taken out of `mask`.
    fn apply(&self, values: &Lanes, out: &mut Lanes, exec: u64, mask: &mut u64, lanes: usize) {
        let readable = if self.fetch_inactive { u64::MAX } else { exec };
        for lane in 0..lanes {
            let source = self.from[lane];
            if source < 64 && readable >> source & 1 == 1 {
                out[lane] = values[source as usize];
            } else {
                out[lane] = 0;
                if !self.bound_ctrl {
                    *mask &= !(1 << lane);
                }
            }
        }
        *mask &= self.write;
    }
}

/// A source operand of a vector instruction.
#[derive(Clone, Debug)]
pub(crate) struct In {
    pub src: Src,
    /// The upper word of a 64-bit operand.
    high: Src,
    ty: Ty,
    abs: bool,
    neg: bool,
    sext: bool,
    sel: Sel,
    dpp: Option<Box<Dpp>>,
    /// Nothing but the register: no copy is made.
    plain: bool,
}

impl In {
    /// The source's 32-bit values. `mask` loses the lanes that DPP leaves unwritten.
    #[inline]
    pub fn fetch<'a>(&self, w: &'a Wave, buffer: &'a mut Lanes, mask: &mut u64) -> &'a Lanes {
        if self.plain {
            return match self.src {
                Src::V(index) => &w.v[index as usize],
                other => {
                    buffer.fill(other.uniform(w).unwrap_or(0));
                    buffer
                }
            };
        }
        self.fetch_modified(w, buffer, mask);
        buffer
    }

    fn fetch_modified(&self, w: &Wave, buffer: &mut Lanes, mask: &mut u64) {
        match self.src {
            Src::V(index) => match &self.dpp {
                Some(dpp) => dpp.apply(&w.v[index as usize], buffer, w.exec(), mask, w.lanes),
                None => *buffer = w.v[index as usize],
            },
            other => buffer.fill(other.uniform(w).unwrap_or(0)),
        }
        match (self.sel, self.sext) {
            (Sel::Full, _) => {}
            (Sel::Byte(index), false) => buffer.iter_mut().for_each(|x| *x = *x >> (8 * u32::from(index)) & 0xff),
            (Sel::Byte(index), true) => {
                buffer
                    .iter_mut()
                    .for_each(|x| *x = (*x >> (8 * u32::from(index))) as u8 as i8 as i32 as u32);
            }
            (Sel::Word(index), false) => buffer
                .iter_mut()
                .for_each(|x| *x = *x >> (16 * u32::from(index)) & 0xffff),
            (Sel::Word(index), true) => {
                buffer
                    .iter_mut()
                    .for_each(|x| *x = (*x >> (16 * u32::from(index))) as u16 as i16 as i32 as u32);
            }
        }
        if self.abs || self.neg {
            let sign = self.ty.sign_bit();
            let (keep, flip) = (if self.abs { !sign } else { u32::MAX }, if self.neg { sign } else { 0 });
            buffer.iter_mut().for_each(|x| *x = (*x & keep) ^ flip);
        }
    }

    /// The source's 64-bit values; narrower types are zero-extended.
    pub fn fetch64(&self, w: &Wave, out: &mut Lanes64, mask: &mut u64) {
        let mut buffer = [0; 64];
        if !self.ty.is_64() {
            let low = self.fetch(w, &mut buffer, mask);
            for (wide, low) in out.iter_mut().zip(low) {
                *wide = u64::from(*low);
            }
            return;
        }
        match (self.src, self.high, &self.dpp) {
            (Src::V(low), Src::V(high), None) => {
                let halves = w.v[low as usize].iter().zip(&w.v[high as usize]);
                for (wide, (low, high)) in out.iter_mut().zip(halves) {
                    *wide = u64::from(*low) | u64::from(*high) << 32;
                }
            }
            (Src::V(low), Src::V(high), Some(dpp)) => {
                let mut second = [0; 64];
                dpp.apply(&w.v[low as usize], &mut buffer, w.exec(), mask, w.lanes);
                dpp.apply(&w.v[high as usize], &mut second, w.exec(), mask, w.lanes);
                for (wide, (low, high)) in out.iter_mut().zip(buffer.iter().zip(&second)) {
                    *wide = u64::from(*low) | u64::from(*high) << 32;
                }
            }
            (low, high, _) => {
                let part = |src: Src| u64::from(src.uniform(w).unwrap_or(0));
                out.fill(part(low) | part(high) << 32);
            }
        }
        if self.abs {
            out.iter_mut().for_each(|x| *x &= !(1 << 63));
        }
        if self.neg {
            out.iter_mut().for_each(|x| *x ^= 1 << 63);
        }
    }
}

/// How a result goes into its register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Full,
    /// The low half; the other half is kept.
    Low,
    /// The low half; the other half becomes zero.
    LowZero,
    /// The high half; the other half is kept.
    High,
    /// SDWA.
    Part {
        sel: Sel,
        unused: Unused,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unused {
    Pad,
    Sext,
    Preserve,
}

/// The destination of a vector instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub register: u16,
    put: Put,
}

impl Out {
    pub fn full(register: u16) -> Out {
        Out {
            register,
            put: Put::Full,
        }
    }

    /// One half of a register, the other kept.
    pub fn half(register: u16, high: bool) -> Out {
        Out {
            register,
            put: if high { Put::High } else { Put::Low },
        }
    }

    /// Stores the lanes of `mask`.
    #[inline]
    pub fn store(&self, w: &mut Wave, values: &Lanes, mask: u64) {
        let lane_mask = w.lane_mask;
        let target = &mut w.v[self.register as usize];
        if self.put == Put::Full && mask == u64::MAX {
            *target = *values;
            return;
        }
        if self.put == Put::Full && mask & lane_mask == lane_mask {
            target[..32].copy_from_slice(&values[..32]);
            return;
        }
        if self.put == Put::Full {
            for (lane, (slot, value)) in target.iter_mut().zip(values).enumerate() {
                let on = 0u32.wrapping_sub((mask >> lane) as u32 & 1);
                *slot = *slot & !on | value & on;
            }
            return;
        }
        for (lane, (slot, value)) in target.iter_mut().zip(values).enumerate() {
            if mask >> lane & 1 == 1 {
                *slot = self.merge(*slot, *value);
            }
        }
    }

    #[inline]
    fn merge(&self, old: u32, value: u32) -> u32 {
        match self.put {
            Put::Full => value,
            Put::Low => (old & 0xffff_0000) | (value & 0xffff),
            Put::LowZero => value & 0xffff,
            Put::High => (old & 0xffff) | value << 16,
            Put::Part { sel, unused } => {
                let (shift, width) = match sel {
                    Sel::Full => return value,
                    Sel::Byte(index) => (8 * u32::from(index), 8),
                    Sel::Word(index) => (16 * u32::from(index), 16),
                };
                let mask = ((1u32 << width) - 1) << shift;
                let placed = value << shift & mask;
                match unused {
                    Unused::Preserve => (old & !mask) | placed,
                    Unused::Pad => placed,
                    Unused::Sext => {
                        let extended = ((value << (32 - width)) as i32 >> (32 - width)) as u32;
                        extended << shift
                    }
                }
            }
        }
    }

    /// Stores 64-bit lanes into two registers.
    pub fn store64(&self, w: &mut Wave, values: &Lanes64, mask: u64) {
        let (first, lanes, lane_mask) = (self.register as usize, w.lanes, w.lane_mask);
        for (register, shift) in [(first, 0), (first + 1, 32)] {
            let target = &mut w.v[register];
            if mask & lane_mask == lane_mask {
                for (slot, value) in target.iter_mut().zip(values).take(lanes) {
                    *slot = (*value >> shift) as u32;
                }
                continue;
            }
            for (lane, (slot, value)) in target.iter_mut().zip(values).enumerate() {
                let on = 0u32.wrapping_sub((mask >> lane) as u32 & 1);
                *slot = *slot & !on | (*value >> shift) as u32 & on;
            }
        }
    }
}

/// Output modifiers of a float result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Post {
    /// 2, 4, or -2 for a division by two; 0 for none.
    pub omod: i8,
    pub clamp: bool,
}

impl Post {
    pub fn none(self) -> bool {
        self == Post::default()
    }

    /// What holds under `mode` for a result of type `ty`: the hardware ignores omod in IEEE mode and where the type's
    /// output denormals are on ("output modifiers" in the instruction set manuals from Vega to RDNA 4).
    #[inline]
    pub fn under(self, mode: Mode, ty: Ty) -> Post {
        let denormals = if matches!(ty, Ty::F16 | Ty::F64) {
            mode.denorm16_64
        } else {
            mode.denorm32
        };
        if self.omod != 0 && (mode.ieee || denormals & 2 != 0) {
            return Post { omod: 0, ..self };
        }
        self
    }

    /// The result of an f32 (or narrower) instruction. omod gives neither denormals nor -0.
    #[inline]
    pub fn f32(self, value: f32) -> f32 {
        let value = match self.omod {
            2 => flush32(value * 2.0) + 0.0,
            4 => flush32(value * 4.0) + 0.0,
            -2 => flush32(value * 0.5) + 0.0,
            _ => value,
        };
        if self.clamp {
            if value.is_nan() {
                0.0
            } else {
                value.clamp(0.0, 1.0) + 0.0
            }
        } else {
            value
        }
    }

    /// The bits of an f16 instruction's result.
    #[inline]
    pub fn f16(self, bits: u32) -> u32 {
        let bits = f32_to_f16(self.f32(f16_to_f32(bits)));
        if self.omod != 0 && bits & 0x7c00 == 0 { 0 } else { bits }
    }

    pub fn f64(self, value: f64) -> f64 {
        let flush = |value: f64| if value.abs() < f64::MIN_POSITIVE { 0.0 } else { value };
        let value = match self.omod {
            2 => flush(value * 2.0),
            4 => flush(value * 4.0),
            -2 => flush(value * 0.5),
            _ => value,
        };
        if self.clamp {
            if value.is_nan() {
                0.0
            } else {
                value.clamp(0.0, 1.0) + 0.0
            }
        } else {
            value
        }
    }
}

/// Reads an instruction's operands for the builders.
pub(crate) struct Build<'a> {
    pub text: &'a Text,
    pub arch: &'static Arch,
    /// Lanes of a wave.
    pub lanes: usize,
    /// The first source's index among the operands.
    pub base: usize,
    /// The device address of the image's first byte.
    pub image_base: u64,
    /// The instruction's offset in the image.
    pub address: u64,
    pub size: u32,
    /// The instruction's bytes.
    pub raw: &'a [u8],
}

impl Build<'_> {
    pub fn operand(&self, index: usize) -> Result<&Operand, String> {
        self.text
            .operands
            .get(index)
            .ok_or_else(|| format!("operand {index} is missing"))
    }

    /// The output modifiers.
    pub fn post(&self) -> Post {
        let omod = match (self.text.value("mul"), self.text.value("div")) {
            (Some("2"), _) => 2,
            (Some("4"), _) => 4,
            (_, Some("2")) => -2,
            _ => 0,
        };
        Post {
            omod,
            clamp: self.text.flag("clamp"),
        }
    }

    /// A source as 32 bits, where it is not a vector register with modifiers.
    pub fn plain(&self, operand: &Operand, ty: Ty) -> Result<Src, String> {
        Ok(match &operand.kind {
            Kind::Vector { first, .. } => Src::V(*first),
            Kind::Scalar { first, .. } => Src::S(*first),
            Kind::Flag(flag) => Src::Flag(*flag),
            kind => {
                let value = constant(kind, ty).ok_or_else(|| format!("operand {kind:?} is not a value"))?;
                Src::C(value as u32)
            }
        })
    }

    /// Source `index` (0 is the first source) as type `ty`.
    pub fn source(&self, index: usize, ty: Ty) -> Result<In, String> {
        self.input(self.operand(self.base + index)?, index, ty)
    }

    /// `operand` as source `index` of type `ty`.
    pub fn input(&self, operand: &Operand, index: usize, ty: Ty) -> Result<In, String> {
        let (mut src, mut high) = (self.plain(operand, ty)?, Src::C(0));
        if ty.is_64() {
            high = match (&operand.kind, src) {
                (_, Src::V(first)) => Src::V(first + 1),
                (_, Src::S(first)) => Src::S(first + 1),
                (kind, Src::C(_)) => {
                    let value = constant(kind, ty).unwrap_or(0);
                    src = Src::C(value as u32);
                    Src::C((value >> 32) as u32)
                }
                (_, Src::Flag(_)) => Src::C(0),
            };
        }
        let mut sel = Sel::Full;
        if self.text.encoding == Encoding::Sdwa {
            if let Some(text) = self.text.value(&format!("src{index}_sel")) {
                sel = Sel::parse(text).ok_or_else(|| format!("bad select {text}"))?;
            }
        } else if let Some(high) = operand.half {
            sel = Sel::Word(u8::from(high));
        } else if ty.is_16() && self.text.element("op_sel", index, false) {
            sel = Sel::Word(1);
        }
        if ty.is_16() && matches!(src, Src::C(_)) {
            sel = Sel::Full;
        }
        let dpp = if index == 0 && matches!(self.text.encoding, Encoding::Dpp | Encoding::E64Dpp) {
            Dpp::parse(self.text, self.lanes)?.map(Box::new)
        } else {
            None
        };
        let plain = !operand.abs && !operand.neg && !operand.sext && sel == Sel::Full && dpp.is_none();
        let (abs, neg, sext) = (operand.abs, operand.neg, operand.sext);
        Ok(In {
            src,
            high,
            ty,
            abs,
            neg,
            sext,
            sel,
            dpp,
            plain,
        })
    }

    /// The destination (operand 0), for a result of type `ty`; `sources` finds op_sel's destination bit.
    pub fn out(&self, ty: Ty, sources: usize) -> Result<Out, String> {
        let operand = self.operand(0)?;
        let Kind::Vector { first, .. } = operand.kind else {
            return Err(format!("destination {:?} is not a vector register", operand.kind));
        };
        let put = if self.text.encoding == Encoding::Sdwa {
            let sel = self.text.value("dst_sel").and_then(Sel::parse).unwrap_or(Sel::Full);
            let unused = match self.text.value("dst_unused") {
                Some("UNUSED_SEXT") => Unused::Sext,
                Some("UNUSED_PRESERVE") => Unused::Preserve,
                _ => Unused::Pad,
            };
            Put::Part { sel, unused }
        } else if !ty.is_16() {
            Put::Full
        } else if let Some(high) = operand.half {
            if high { Put::High } else { Put::Low }
        } else if self.text.element("op_sel", sources, false) {
            Put::High
        } else if self.arch.zero_high_16 && !self.keeps_high() {
            Put::LowZero
        } else {
            Put::Low
        };
        Ok(Out { register: first, put })
    }

    /// Whether a gfx9 instruction keeps the upper half where its siblings clear it.
    fn keeps_high(&self) -> bool {
        matches!(
            self.text.mnemonic.as_str(),
            "v_mad_mixlo_f16"
                | "v_fma_mixlo_f16"
                | "v_mad_f16"
                | "v_fma_f16"
                | "v_mad_u16"
                | "v_mad_i16"
                | "v_div_fixup_f16"
        )
    }

    /// The scalar destination at operand `index` that holds a lane mask.
    pub fn mask_out(&self, index: usize) -> Result<u16, String> {
        match self.operand(index)?.kind {
            Kind::Scalar { first, .. } => Ok(first),
            ref kind => Err(format!("destination {kind:?} is not a scalar register")),
        }
    }
}
