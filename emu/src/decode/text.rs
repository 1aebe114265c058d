//! Reads one instruction's text into a mnemonic, operands and modifiers; knows nothing of their meaning.

/// The encoding that the mnemonic's suffix names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Encoding {
    /// No suffix: the only encoding there is.
    #[default]
    Plain,
    /// `_e32`.
    E32,
    /// `_e64`.
    E64,
    /// `_dpp`.
    Dpp,
    /// `_e64_dpp`.
    E64Dpp,
    /// `_sdwa`.
    Sdwa,
}

/// Index of the first accumulation register among the vector registers.
pub(crate) const ACC: u16 = 256;
pub(crate) const VCC: u16 = 106;
pub(crate) const TTMP: u16 = 108;
pub(crate) const M0: u16 = 124;
pub(crate) const EXEC: u16 = 126;
pub(crate) const FLAT_SCRATCH: u16 = 128;
const XNACK_MASK: u16 = 130;
pub(crate) const NULL: u16 = 132;
/// Scalar registers in all, the special ones included.
pub(crate) const SGPRS: usize = 136;

/// The base of the LDS aperture in the flat address space.
pub(crate) const SHARED_BASE: u64 = 0x0001_0000_0000_0000;
/// The base of the scratch aperture in the flat address space.
pub(crate) const PRIVATE_BASE: u64 = 0x0002_0000_0000_0000;

/// What an operand names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Vector registers, AccVGPRs from [`ACC`] on.
    Vector { first: u16, count: u16 },
    /// Scalar registers, special ones at their indices.
    Scalar { first: u16, count: u16 },
    /// An inline integer, as the value.
    Int(i64),
    /// A literal, as the bits.
    Bits(u64),
    /// An inline float.
    Float(f64),
    /// A 64-bit constant of the machine.
    Base(u64),
    /// SCC, VCCZ, EXECZ as a value.
    Flag(Flag),
    /// `off`.
    Off,
    /// Anything else, as text: `hwreg(…)`, `sendmsg(…)`, counters.
    Text(String),
}

/// A one-bit source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    Scc,
    Vccz,
    Execz,
}

/// One operand with the modifiers that are written on it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Operand {
    pub kind: Kind,
    pub neg: bool,
    pub abs: bool,
    pub sext: bool,
    /// `.l` or `.h` of a 16-bit operand.
    pub half: Option<bool>,
}

/// One instruction, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Text {
    pub mnemonic: String,
    pub encoding: Encoding,
    pub operands: Vec<Operand>,
    /// Modifiers in the order written: name and value (empty for a flag).
    pub modifiers: Vec<(String, String)>,
}

impl Text {
    /// Whether a flag is present.
    pub fn flag(&self, name: &str) -> bool {
        self.modifiers.iter().any(|(key, _)| key == name)
    }

    /// A modifier's value.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.modifiers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// A modifier's value as a number, 0 where absent.
    pub fn number(&self, name: &str) -> i64 {
        self.value(name).and_then(number).unwrap_or(0)
    }

    /// Element `index` of a modifier such as `op_sel:[0,1]`.
    pub fn element(&self, name: &str, index: usize, absent: bool) -> bool {
        match self.value(name) {
            None => absent,
            Some(list) => list
                .trim_matches(['[', ']'])
                .split(',')
                .nth(index)
                .map_or(absent, |bit| bit.trim() == "1"),
        }
    }

    /// A modifier's value as a list of numbers.
    pub fn list(&self, name: &str) -> Option<Vec<i64>> {
        self.value(name)?
            .trim_matches(['[', ']'])
            .split(',')
            .map(|item| number(item.trim()))
            .collect()
    }
}

/// Reads a decimal or hexadecimal integer.
pub(crate) fn number(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()? as i64,
        None => digits.parse::<i64>().ok()?,
    };
    Some(if negative { value.wrapping_neg() } else { value })
}

/// Reads an instruction (for VOPD, each half on its own).
pub(crate) fn parse(text: &str) -> Result<Vec<Text>, String> {
    text.split(" :: ").map(parse_one).collect()
}

fn parse_one(text: &str) -> Result<Text, String> {
    let (full, rest) = text.split_once(' ').unwrap_or((text, ""));
    let mut out = Text::default();
    let (mnemonic, encoding) = split_suffix(full);
    out.mnemonic = mnemonic.to_string();
    out.encoding = encoding;
    // Operands are separated by commas outside brackets; after the last one, modifiers are separated by spaces.
    let mut pieces = Vec::new();
    let mut piece = String::new();
    let mut depth = 0i32;
    let mut quoted = false;
    let mut after_comma = true;
    for c in rest.chars() {
        match c {
            '"' => quoted = !quoted,
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            _ => {}
        }
        let top = depth == 0 && !quoted;
        if top && c == ',' {
            pieces.push((std::mem::take(&mut piece), true));
            after_comma = true;
        } else if top && c == ' ' {
            if !piece.is_empty() {
                pieces.push((std::mem::take(&mut piece), false));
            }
        } else {
            piece.push(c);
            after_comma = false;
        }
    }
    if !piece.is_empty() {
        pieces.push((piece, false));
    } else if after_comma && !pieces.is_empty() {
        return Err("the operand list ends in a comma".into());
    }
    // A piece is an operand as long as the one before it ended in a comma (the first always is).
    let mut operand = true;
    for (index, (piece, comma)) in pieces.into_iter().enumerate() {
        let looks_like_modifier = index == 0 && is_leading_modifier(&piece);
        if operand && !looks_like_modifier && !piece.is_empty() {
            out.operands.push(parse_operand(&piece));
        } else if !piece.is_empty() {
            let (key, value) = piece.split_once(':').unwrap_or((&piece, ""));
            out.modifiers.push((key.to_string(), value.to_string()));
        }
        operand = comma;
    }
    Ok(out)
}

fn is_leading_modifier(piece: &str) -> bool {
    piece.contains(':') && !piece.contains('[') && !piece.contains('(') || piece == "gds"
}

fn split_suffix(full: &str) -> (&str, Encoding) {
    for (suffix, encoding) in [
        ("_e64_dpp", Encoding::E64Dpp),
        ("_dpp", Encoding::Dpp),
        ("_sdwa", Encoding::Sdwa),
        ("_e32", Encoding::E32),
        ("_e64", Encoding::E64),
    ] {
        if let Some(base) = full.strip_suffix(suffix) {
            return (base, encoding);
        }
    }
    (full, Encoding::Plain)
}

fn parse_operand(text: &str) -> Operand {
    let mut operand = Operand {
        kind: Kind::Off,
        neg: false,
        abs: false,
        sext: false,
        half: None,
    };
    let mut body = text;
    loop {
        if let Some(inner) = body.strip_prefix("neg(").and_then(|rest| rest.strip_suffix(')')) {
            operand.neg = true;
            body = inner;
        } else if let Some(inner) = body.strip_prefix("abs(").and_then(|rest| rest.strip_suffix(')')) {
            operand.abs = true;
            body = inner;
        } else if let Some(inner) = body.strip_prefix("sext(").and_then(|rest| rest.strip_suffix(')')) {
            operand.sext = true;
            body = inner;
        } else if let Some(inner) = body.strip_prefix("lit(").and_then(|rest| rest.strip_suffix(')')) {
            body = inner;
        } else if let Some(inner) = body.strip_prefix("lit64(").and_then(|rest| rest.strip_suffix(')')) {
            body = inner;
        } else if let Some(inner) = body.strip_prefix('|').and_then(|rest| rest.strip_suffix('|')) {
            operand.abs = true;
            body = inner;
        } else if body.starts_with('-') && !body[1..].starts_with(|c: char| c.is_ascii_digit()) {
            operand.neg = true;
            body = &body[1..];
        } else {
            break;
        }
    }
    if let Some(base) = body.strip_suffix(".l") {
        operand.half = Some(false);
        body = base;
    } else if let Some(base) = body.strip_suffix(".h") {
        operand.half = Some(true);
        body = base;
    }
    operand.kind = parse_kind(body);
    operand
}

fn parse_kind(body: &str) -> Kind {
    let scalar = |first, count| Kind::Scalar { first, count };
    match body {
        "vcc" => return scalar(VCC, 2),
        "vcc_lo" => return scalar(VCC, 1),
        "vcc_hi" => return scalar(VCC + 1, 1),
        "exec" => return scalar(EXEC, 2),
        "exec_lo" => return scalar(EXEC, 1),
        "exec_hi" => return scalar(EXEC + 1, 1),
        "m0" => return scalar(M0, 1),
        "null" => return scalar(NULL, 2),
        "flat_scratch" => return scalar(FLAT_SCRATCH, 2),
        "flat_scratch_lo" => return scalar(FLAT_SCRATCH, 1),
        "flat_scratch_hi" => return scalar(FLAT_SCRATCH + 1, 1),
        "xnack_mask" => return scalar(XNACK_MASK, 2),
        "xnack_mask_lo" => return scalar(XNACK_MASK, 1),
        "xnack_mask_hi" => return scalar(XNACK_MASK + 1, 1),
        "off" => return Kind::Off,
        "scc" | "src_scc" => return Kind::Flag(Flag::Scc),
        "vccz" | "src_vccz" => return Kind::Flag(Flag::Vccz),
        "execz" | "src_execz" => return Kind::Flag(Flag::Execz),
        "src_shared_base" => return Kind::Base(SHARED_BASE),
        "src_private_base" => return Kind::Base(PRIVATE_BASE),
        "src_shared_limit" => return Kind::Base(SHARED_BASE | 0xffff_ffff),
        "src_private_limit" => return Kind::Base(PRIVATE_BASE | 0xffff_ffff),
        _ => {}
    }
    for (prefix, offset, is_vector) in [("v", 0, true), ("a", ACC, true), ("s", 0, false), ("ttmp", TTMP, false)] {
        if let Some((first, count)) = body.strip_prefix(prefix).and_then(register_range) {
            let first = first + offset;
            return if is_vector {
                Kind::Vector { first, count }
            } else {
                Kind::Scalar { first, count }
            };
        }
    }
    if body.starts_with("0x") || body.starts_with("-0x") {
        if let Some(value) = number(body) {
            return Kind::Bits(value as u64);
        }
    } else if let Ok(value) = body.parse::<i64>() {
        return Kind::Int(value);
    } else if body.starts_with(|c: char| c.is_ascii_digit() || c == '-')
        && let Ok(value) = body.parse::<f64>()
    {
        return Kind::Float(value);
    }
    Kind::Text(body.to_string())
}

/// `7` or `[4:7]`.
fn register_range(text: &str) -> Option<(u16, u16)> {
    if let Some(range) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let (first, last) = match range.split_once(':') {
            Some((first, last)) => (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?),
            None => (range.parse().ok()?, range.parse().ok()?),
        };
        return (last >= first && last < 256).then(|| (first, last - first + 1));
    }
    let index = text.parse::<u16>().ok()?;
    (index < 256).then_some((index, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_and_modifiers() {
        let text = &parse("v_fma_f32 v0, -v1, |v[2:3]|, 1.0 clamp mul:2").unwrap()[0];
        assert_eq!(text.operands.len(), 4);
        assert!(text.operands[1].neg && text.operands[2].abs);
        assert_eq!(text.operands[3].kind, Kind::Float(1.0));
        assert!(text.flag("clamp"));
        assert_eq!(text.number("mul"), 2);
        let text = &parse("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 3").unwrap()[0];
        assert_eq!(text.operands.len(), 2);
        let text = &parse("global_load_dword v1, v2, s[0:1] offset:-16 glc").unwrap()[0];
        assert_eq!(text.number("offset"), -16);
        let text = &parse("v_add_f16_e32 v0.l, 1.0, v3.h").unwrap()[0];
        assert_eq!(text.operands[2].half, Some(true));
        assert_eq!(
            parse("v_dual_mul_f32 v3, 0, v0 :: v_dual_and_b32 v2, 7, v1")
                .unwrap()
                .len(),
            2
        );
        let text = &parse("s_addc_u32 s5, s5, lit(0xffffffff)").unwrap()[0];
        assert_eq!(text.operands[2].kind, Kind::Bits(0xffff_ffff));
    }
}
