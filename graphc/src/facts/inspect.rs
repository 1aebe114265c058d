//! The facts of a compiled program: kernels, registers, memory and work.

use ir::plan::{Place, Work, arena};
use ir::target::Platform;
use runtime::code_object::KernelResources;
use serde::Serialize;
use serde_json::json;

use super::contents::Contents;
#[cfg(feature = "emulate")]
use crate::emulate::{Counted, TimedKernel, Untimed};
use crate::error::Result;

/// The facts of a program on one target; sizes at the hints of symbolic dims.
#[derive(Serialize)]
pub struct VariantFacts {
    pub target: String,
    pub launches: usize,
    pub library_calls: usize,
    pub planned_peak_bytes: usize,
    /// The largest sum of buffers alive at one step.
    pub live_peak_bytes: usize,
    pub weight_bytes: usize,
    /// Which weights are streamed from the host, of a plan that was made to fit a GPU's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streaming: Option<StreamingFacts>,
    pub flops: i64,
    /// What one emulated run counted in all, with `--emulate`.
    #[cfg(feature = "emulate")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulated: Option<Counted>,
    /// The predicted times, longest first, with `--time`.
    #[cfg(feature = "emulate")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timed: Vec<TimedKernel>,
    /// Library calls that could not be.
    #[cfg(feature = "emulate")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub untimed: Vec<Untimed>,
    pub kernels: Vec<KernelFacts>,
}

/// How a plan fits a GPU's memory.
#[derive(Serialize)]
pub struct StreamingFacts {
    pub limit_bytes: usize,
    /// The least limit for which there would be a plan.
    pub least_bytes: usize,
    /// How many uses of streamed weights a copy is ahead of its own.
    pub distance: usize,
    /// What weights on the device and the arena take.
    pub device_bytes: usize,
    /// Bytes that one run copies.
    pub bytes_a_run: usize,
    /// The copies, in order.
    pub copies: Vec<StreamedWeight>,
}

/// One copy of a weight to the device.
#[derive(Serialize)]
pub struct StreamedWeight {
    pub weight: String,
    pub bytes: usize,
    /// The step that copies it, and the first that waits for that.
    pub step: String,
    pub used_by: Option<String>,
}

/// The facts of one kernel; registers are `null` where nothing is compiled (cpu), spills also where the code does not
/// tell them from arrays (NVIDIA, a kernel with scratch).
#[derive(Serialize)]
pub struct KernelFacts {
    pub name: String,
    pub source: String,
    /// How often it is launched in one run.
    pub launches: usize,
    pub vgpr: Option<u32>,
    pub agpr: Option<u32>,
    pub sgpr: Option<u32>,
    pub lds_bytes: Option<u32>,
    pub scratch_bytes: Option<u32>,
    pub vgpr_spills: Option<u32>,
    pub sgpr_spills: Option<u32>,
    pub wave_size: Option<u32>,
    /// What its launches counted in one emulated run, with `--emulate`.
    #[cfg(feature = "emulate")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulated: Option<Counted>,
    /// The graph nodes it computes.
    pub nodes: Vec<String>,
}

/// What the file holds, and the facts of the one target that is shown, or of each under `variants`.
pub fn as_json(contents: &Contents, all: &[VariantFacts]) -> serde_json::Value {
    let mut value = serde_json::to_value(contents).unwrap_or_default();
    let shown = match all {
        [one] => serde_json::to_value(one),
        all => Ok(json!({ "variants": all })),
    };
    if let (Some(value), Ok(serde_json::Value::Object(shown))) = (value.as_object_mut(), shown) {
        value.extend(shown);
    }
    value
}

/// What a plan streams; none of one that was not made to fit.
fn streaming(program: &ir::Program, plan: &ir::Plan, arena: usize) -> Result<Option<StreamingFacts>> {
    let Some(streaming) = plan.streaming else {
        return Ok(None);
    };
    let bindings = ir::dim::hints(&plan.symbols);
    let mut copies = Vec::new();
    for (id, step) in plan.steps.iter() {
        if let Work::Copy { from, .. } = step.work
            && matches!(plan.buffers[from].place, Place::Streamed(_))
        {
            let used_by = plan.steps.iter().find(|(_, later)| later.waits.contains(&id));
            copies.push(StreamedWeight {
                weight: plan.buffers[from].name.clone(),
                bytes: usize::try_from(plan.buffers[from].ty.bytes().eval(&bindings)?).unwrap_or(0),
                step: id.to_string(),
                used_by: used_by.map(|(step, _)| step.to_string()),
            });
        }
    }
    let mut resident: Vec<ir::ConstId> = Vec::new();
    for buffer in plan.buffers.values() {
        if let Place::Constant(id) = buffer.place
            && !resident.contains(&id)
        {
            resident.push(id);
        }
    }
    let room = |id: &ir::ConstId| arena::room(program.constants[*id].tensor.bytes.len());
    Ok(Some(StreamingFacts {
        limit_bytes: streaming.limit,
        least_bytes: streaming.least,
        distance: streaming.distance,
        device_bytes: arena + resident.iter().map(room).sum::<usize>(),
        bytes_a_run: copies.iter().map(|copy| copy.bytes).sum(),
        copies,
    }))
}

/// Collects the facts of a variant.
pub fn facts(program: &ir::Program, variant: usize) -> Result<VariantFacts> {
    let v = &program.variants[variant];
    let bindings = ir::dim::hints(&v.plan.symbols);
    let placement = arena::place(&v.plan, &bindings)?;
    let (launches, library_calls) = v.plan.launches();
    let mut weights: Vec<ir::ConstId> = Vec::new();
    for b in v.plan.buffers.values() {
        if let Some(id) = b.place.constant()
            && !weights.contains(&id)
        {
            weights.push(id);
        }
    }
    let mut times: ir::Table<ir::plan::KernelId, usize> = v.plan.kernels.keys().map(|_| 0).collect();
    for step in v.plan.steps.values() {
        if let Some(kernel) = step.at(&bindings)?.kernel() {
            times[kernel] += 1;
        }
    }
    let mut kernels = Vec::new();
    for (id, kernel) in v.plan.kernels.iter() {
        let code = match &v.code[id] {
            Some(bytes) => {
                let object = runtime::code_object::read(bytes)?;
                object.kernels.into_iter().find(|k| k.name == v.sources[id].entry)
            }
            None => None,
        };
        // NVIDIA's local memory is arrays and spills together: where there is some, the code does not say which.
        let spills_told = |c: &KernelResources| v.plan.target.platform == Platform::Hip || c.scratch_bytes == 0;
        kernels.push(KernelFacts {
            name: kernel.name.clone(),
            source: v.sources[id].text.clone(),
            launches: times[id],
            vgpr: code.as_ref().map(|c| c.vgpr),
            agpr: code.as_ref().map(|c| c.agpr),
            sgpr: code.as_ref().map(|c| c.sgpr),
            lds_bytes: code.as_ref().map(|c| c.lds_bytes),
            scratch_bytes: code.as_ref().map(|c| c.scratch_bytes),
            vgpr_spills: code.as_ref().filter(|c| spills_told(c)).map(|c| c.vgpr_spills),
            sgpr_spills: code.as_ref().filter(|c| spills_told(c)).map(|c| c.sgpr_spills),
            wave_size: code.as_ref().map(|c| c.wave_size),
            #[cfg(feature = "emulate")]
            emulated: None,
            nodes: kernel.origins.clone(),
        });
    }
    Ok(VariantFacts {
        target: v.plan.target.to_string(),
        launches,
        library_calls,
        planned_peak_bytes: placement.total,
        live_peak_bytes: placement.live_peak,
        weight_bytes: weights.iter().map(|c| program.constants[*c].tensor.bytes.len()).sum(),
        streaming: streaming(program, &v.plan, placement.total)?,
        flops: v.plan.flops.eval(&bindings)?,
        #[cfg(feature = "emulate")]
        emulated: None,
        #[cfg(feature = "emulate")]
        timed: Vec::new(),
        #[cfg(feature = "emulate")]
        untimed: Vec::new(),
        kernels,
    })
}
