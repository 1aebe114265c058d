//! The msgpack metadata: each kernel's name, arguments, registers and limits.

use super::Descriptor;
use crate::error::LoadError;
use rmpv::Value;

/// One kernel argument as the metadata describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arg {
    /// The name in the source, where the compiler kept it.
    pub name: Option<String>,
    /// Bytes from the start of the argument block.
    pub offset: u32,
    /// Bytes.
    pub size: u32,
    /// `by_value`, `global_buffer`, `hidden_block_count_x`, …
    pub kind: String,
}

impl Arg {
    /// Whether the runtime fills it in, not the caller.
    pub fn hidden(&self) -> bool {
        self.kind.starts_with("hidden_")
    }
}

/// What is known of a kernel before it is decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelInfo {
    /// The name (mangled where the source is C++).
    pub name: String,
    /// The descriptor's symbol.
    pub symbol: String,
    /// The descriptor.
    pub descriptor: Descriptor,
    /// Whether it was written by hand: the function's symbol has no size, which compilers always give.
    pub hand_written: bool,
    /// The arguments in order of their offsets.
    pub args: Vec<Arg>,
    /// Bytes of all arguments.
    pub kernarg_size: u32,
    /// Bytes of LDS without the dynamic part.
    pub group_segment: u32,
    /// Bytes of scratch of a lane.
    pub private_segment: u32,
    /// Vector registers (AccVGPRs included where the file is unified).
    pub vgprs: u32,
    /// Accumulation registers.
    pub agprs: u32,
    /// Scalar registers.
    pub sgprs: u32,
    /// Vector registers spilled to scratch.
    pub vgpr_spills: u32,
    /// Scalar registers spilled.
    pub sgpr_spills: u32,
    /// Lanes of a wave.
    pub wave_size: u32,
    /// The most work-items of a block.
    pub max_block: u32,
}

impl KernelInfo {
    /// The bytes that a caller must give: up to the end of the last explicit argument.
    pub fn explicit_size(&self) -> u32 {
        self.args
            .iter()
            .filter(|arg| !arg.hidden())
            .map(|arg| arg.offset + arg.size)
            .max()
            .unwrap_or(0)
    }
}

#[derive(Default)]
pub(super) struct Metadata {
    /// The target, where the document names it (older ones do not).
    pub target: Option<String>,
    pub kernels: Vec<KernelInfo>,
}

fn field<'a>(map: &'a Value, key: &str) -> Option<&'a Value> {
    map.as_map()?
        .iter()
        .find(|(name, _)| name.as_str() == Some(key))
        .map(|(_, value)| value)
}

fn number(map: &Value, key: &str) -> u32 {
    field(map, key).and_then(Value::as_u64).unwrap_or(0) as u32
}

fn text(map: &Value, key: &str) -> Option<String> {
    field(map, key).and_then(Value::as_str).map(str::to_string)
}

pub(super) fn read(note: &[u8]) -> Result<Metadata, LoadError> {
    let root = rmpv::decode::read_value(&mut &note[..])
        .map_err(|error| LoadError::Metadata(format!("the msgpack document is damaged: {error}")))?;
    let target = text(&root, "amdhsa.target");
    let list = field(&root, "amdhsa.kernels").and_then(Value::as_array);
    let mut kernels = Vec::new();
    for entry in list.into_iter().flatten() {
        let required =
            |key: &str| text(entry, key).ok_or_else(|| LoadError::Metadata(format!("a kernel has no {key}")));
        let mut args: Vec<Arg> = field(entry, ".args")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|arg| Arg {
                name: text(arg, ".name"),
                offset: number(arg, ".offset"),
                size: number(arg, ".size"),
                kind: text(arg, ".value_kind").unwrap_or_default(),
            })
            .collect();
        args.sort_by_key(|arg| arg.offset);
        kernels.push(KernelInfo {
            name: required(".name")?,
            symbol: required(".symbol")?,
            descriptor: Descriptor::default(),
            hand_written: false,
            args,
            kernarg_size: number(entry, ".kernarg_segment_size"),
            group_segment: number(entry, ".group_segment_fixed_size"),
            private_segment: number(entry, ".private_segment_fixed_size"),
            vgprs: number(entry, ".vgpr_count"),
            agprs: number(entry, ".agpr_count"),
            sgprs: number(entry, ".sgpr_count"),
            vgpr_spills: number(entry, ".vgpr_spill_count"),
            sgpr_spills: number(entry, ".sgpr_spill_count"),
            wave_size: number(entry, ".wavefront_size"),
            max_block: number(entry, ".max_flat_workgroup_size"),
        });
    }
    Ok(Metadata { target, kernels })
}
