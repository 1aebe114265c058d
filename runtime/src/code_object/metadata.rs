//! The msgpack map in the metadata note, as far as graphc reads it; keys it does not know are skipped.

use serde::Deserialize;

use super::{CodeObject, CodeObjectError, KernelArg, KernelResources};

#[derive(Deserialize)]
struct Metadata {
    #[serde(rename = "amdhsa.target")]
    target: String,
    #[serde(rename = "amdhsa.kernels", default)]
    kernels: Vec<Kernel>,
}

#[derive(Deserialize)]
struct Kernel {
    #[serde(rename = ".name")]
    name: String,
    #[serde(rename = ".vgpr_count")]
    vgpr: u32,
    #[serde(rename = ".agpr_count", default)]
    agpr: u32,
    #[serde(rename = ".sgpr_count")]
    sgpr: u32,
    #[serde(rename = ".vgpr_spill_count", default)]
    vgpr_spills: u32,
    #[serde(rename = ".sgpr_spill_count", default)]
    sgpr_spills: u32,
    #[serde(rename = ".group_segment_fixed_size")]
    lds_bytes: u32,
    #[serde(rename = ".private_segment_fixed_size")]
    scratch_bytes: u32,
    #[serde(rename = ".wavefront_size")]
    wave_size: u32,
    #[serde(rename = ".kernarg_segment_size")]
    kernarg_bytes: u32,
    #[serde(rename = ".max_flat_workgroup_size", default)]
    max_workgroup_size: u32,
    #[serde(rename = ".args", default)]
    args: Vec<Arg>,
}

#[derive(Deserialize)]
struct Arg {
    #[serde(rename = ".name", default)]
    name: Option<String>,
    #[serde(rename = ".offset")]
    offset: u32,
    #[serde(rename = ".size")]
    size: u32,
    #[serde(rename = ".value_kind")]
    kind: String,
}

/// Decodes a note; `code_bytes` is left 0 for the caller, who has the ELF file.
pub(super) fn decode(note: &[u8]) -> Result<CodeObject, CodeObjectError> {
    let metadata: Metadata = rmp_serde::from_slice(note).map_err(|error| CodeObjectError::Metadata {
        reason: error.to_string(),
    })?;
    // `amdgcn-amd-amdhsa--gfx90a:xnack-`; code objects before V5 may have `unknown` between the dashes.
    let target = metadata.target.rsplit_once("-gfx").map(|(_, gfx)| format!("gfx{gfx}"));
    let target = target.ok_or_else(|| CodeObjectError::Metadata {
        reason: format!("no gfx target in {:?}", metadata.target),
    })?;
    let kernels = metadata.kernels.into_iter().map(|kernel| KernelResources {
        name: kernel.name,
        vgpr: kernel.vgpr,
        agpr: kernel.agpr,
        sgpr: kernel.sgpr,
        vgpr_spills: kernel.vgpr_spills,
        sgpr_spills: kernel.sgpr_spills,
        lds_bytes: kernel.lds_bytes,
        scratch_bytes: kernel.scratch_bytes,
        wave_size: kernel.wave_size,
        kernarg_bytes: kernel.kernarg_bytes,
        max_workgroup_size: kernel.max_workgroup_size,
        code_bytes: 0,
        args: kernel
            .args
            .into_iter()
            .map(|arg| KernelArg {
                name: arg.name,
                offset: arg.offset,
                size: arg.size,
                kind: arg.kind,
            })
            .collect(),
    });
    Ok(CodeObject {
        target,
        kernels: kernels.collect(),
    })
}
