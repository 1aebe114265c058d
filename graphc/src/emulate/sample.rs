//! Each kernel of a plan alone, on made-up operands, by some of its workgroups: what a plan too large to be emulated
//! whole is checked by.

use std::sync::Arc;

use emu::{Disassembler, LaunchOptions};
use ir::dim::Bindings;
use ir::graph::Constant;
use ir::kernel::Kernel;
use ir::plan::{KernelId, Plan, Step, Work};
use ir::{ConstId, HostTensor, Program, Shape, Table, TensorType};

use super::EmulateError;
use super::check::{Subject, check_kernel};
use super::run::Outcome;
use crate::error::Result;

/// Checks every kernel of a variant by about `sample` of its workgroups, at the hints of symbolic sizes.
///
/// Integer operands that are weights (indices, masks) are the model's own; all others are random, made from `seed`:
/// weights of one value would hide mistakes.
///
/// # Errors
/// As [`check_kernel`], and kernels without code.
pub fn check_samples(
    program: &Program,
    variant: usize,
    disassembler: &Arc<dyn Disassembler>,
    options: &LaunchOptions,
    sample: u64,
    seed: u64,
) -> Result<Outcome> {
    let variant = &program.variants[variant];
    let plan = &variant.plan;
    let bindings = ir::dim::hints(&plan.symbols);
    plan.check_sizes(&bindings).map_err(EmulateError::from)?;
    let target = plan.target.name.to_string();
    let mut outcome = Outcome::default();
    for (id, kernel) in plan.kernels.iter() {
        let Some(code) = &variant.code[id] else {
            let kernel = kernel.name.clone();
            return Err(EmulateError::NotCompiled { kernel }.into());
        };
        let buffers = operands(plan, id, kernel, &program.constants, &bindings, seed)?;
        let subject = Subject {
            kernel,
            target: &target,
            source: &variant.sources[id],
            code,
            buffers: &buffers,
            bindings: &bindings,
        };
        outcome
            .verdicts
            .push(check_kernel(&subject, disassembler, options, Some(sample))?.verdict);
    }
    Ok(outcome)
}

/// The operands of a kernel's first launch.
fn operands(
    plan: &Plan,
    id: KernelId,
    kernel: &Kernel,
    constants: &Table<ConstId, Constant>,
    bindings: &Bindings,
    seed: u64,
) -> Result<Vec<HostTensor>> {
    let args = plan.steps.values().flat_map(Step::works).find_map(|work| match work {
        Work::Launch { kernel, args } if *kernel == id => Some(args.as_slice()),
        _ => None,
    });
    let mut tensors = Vec::new();
    for (i, param) in kernel.params.values().enumerate() {
        let buffer = args.and_then(|a| a.get(i)).map(|b| &plan.buffers[*b]);
        if let Some(constant) = buffer.and_then(|b| b.place.constant())
            && !param.dtype.is_float()
        {
            tensors.push(constants[constant].tensor.clone());
            continue;
        }
        let ty = TensorType {
            dtype: param.dtype,
            shape: Shape::from_iter([param.elements.clone()]),
        };
        let name = format!("{}.{}", kernel.name, param.name);
        tensors.push(crate::random::tensor(&name, &ty, bindings, seed)?);
    }
    Ok(tensors)
}
