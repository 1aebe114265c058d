//! The 64-byte kernel descriptor: registers asked for, float mode, which SGPRs and VGPRs are set up.

use crate::error::LoadError;

/// A kernel descriptor, its bit fields spelt out (AMDHSA kernel descriptor, code object v3 and later).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// The address of the first instruction in the image.
    pub entry: u64,
    /// Bytes of LDS, without the dynamic part.
    pub group_segment: u32,
    /// Bytes of scratch of a lane.
    pub private_segment: u32,
    /// Bytes of kernel arguments, hidden ones included.
    pub kernarg_size: u32,
    /// Where AccVGPRs begin in a unified register file; 0 where the field has no meaning.
    pub accum_offset: u32,
    /// MODE's rounding bits: f32 in 0..2, f16 and f64 in 2..4.
    pub round_mode: u8,
    /// MODE's denormal bits: f32 in 0..2, f16 and f64 in 2..4.
    pub denorm_mode: u8,
    /// Whether clamp turns a NaN into 0.
    pub dx10_clamp: bool,
    /// Whether signalling NaNs are quieted as IEEE 754 asks.
    pub ieee_mode: bool,
    /// Whether f16 overflow saturates.
    pub fp16_overflow: bool,
    /// User SGPRs in all.
    pub user_sgprs: u32,
    /// Whether scratch is used (a wave offset SGPR follows the workgroup ids where not architected).
    pub uses_scratch: bool,
    /// Which of the workgroup's ids are wanted in SGPRs.
    pub workgroup_ids: [bool; 3],
    /// Whether the workgroup info SGPR is wanted.
    pub workgroup_info: bool,
    /// How many work-item ids are set up (0: x, 1: x y, 2: x y z).
    pub work_item_ids: u8,
    /// Private segment buffer, dispatch, queue, kernarg, dispatch id, flat scratch, private size: the user SGPRs.
    pub user_fields: [bool; 7],
    /// Whether waves have 32 lanes.
    pub wave32: bool,
    /// Whether the waves of a workgroup may be on two compute units (RDNA's WGP mode; CDNA has something else in that
    /// bit).
    pub two_units: bool,
    /// Whether the stack may grow at run time.
    pub dynamic_stack: bool,
    /// Kernarg dwords preloaded into user SGPRs.
    pub preload_length: u32,
    /// The first preloaded kernarg dword.
    pub preload_offset: u32,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Descriptor {
    /// Reads the descriptor at `address` of the image.
    pub(super) fn read(image: &[u8], address: u64) -> Result<Descriptor, LoadError> {
        let bytes = image
            .get(address as usize..)
            .and_then(|rest| rest.get(..64))
            .ok_or_else(|| LoadError::Elf(format!("the kernel descriptor at {address:#x} is not in the image")))?;
        let entry_offset = (word(bytes, 16) as u64 | (word(bytes, 20) as u64) << 32) as i64;
        let (rsrc3, rsrc1, rsrc2) = (word(bytes, 44), word(bytes, 48), word(bytes, 52));
        let properties = word(bytes, 56) & 0xffff;
        let preload = word(bytes, 56) >> 16;
        let bit = |value: u32, index: u32| value >> index & 1 == 1;
        Ok(Descriptor {
            entry: address.wrapping_add_signed(entry_offset),
            group_segment: word(bytes, 0),
            private_segment: word(bytes, 4),
            kernarg_size: word(bytes, 8),
            accum_offset: ((rsrc3 & 0x3f) + 1) * 4,
            round_mode: (rsrc1 >> 12 & 15) as u8,
            denorm_mode: (rsrc1 >> 16 & 15) as u8,
            dx10_clamp: bit(rsrc1, 21),
            ieee_mode: bit(rsrc1, 23),
            fp16_overflow: bit(rsrc1, 26),
            user_sgprs: rsrc2 >> 1 & 31,
            uses_scratch: bit(rsrc2, 0),
            workgroup_ids: [bit(rsrc2, 7), bit(rsrc2, 8), bit(rsrc2, 9)],
            workgroup_info: bit(rsrc2, 10),
            work_item_ids: (rsrc2 >> 11 & 3) as u8,
            user_fields: std::array::from_fn(|index| bit(properties, index as u32)),
            wave32: bit(properties, 10),
            two_units: bit(rsrc1, 29),
            dynamic_stack: bit(properties, 11),
            preload_length: preload & 0x7f,
            preload_offset: preload >> 7,
        })
    }
}
