//! Launches with choices by size: a kernel whose rows the model leaves open is mapped for several numbers of rows.
//!
//! Before: one kernel a launch, mapped for the symbols' hints. After: a launch whose best mapping changes with its rows has a
//! kernel for each range, all of them compiled ahead; who binds sizes picks one.

use std::collections::HashMap;

use ir::Plan;
use ir::plan::{Choice, KernelId, StepId, Work};

use crate::lower::mapping;

/// Adds the choices of every launch.
pub fn choices(plan: &mut Plan) {
    let mut made: HashMap<KernelId, Vec<Choice>> = HashMap::new();
    let steps: Vec<StepId> = plan.steps.keys().collect();
    for id in steps {
        let Work::Launch { kernel, .. } = plan.steps[id].work else {
            continue;
        };
        made.entry(kernel).or_insert_with(|| for_kernel(plan, kernel));
        if let Work::Launch { choices, .. } = &mut plan.steps[id].work {
            choices.clone_from(&made[&kernel]);
        }
    }
}

/// Maps a kernel for the least of its rows, and returns the choices for more.
fn for_kernel(plan: &mut Plan, id: KernelId) -> Vec<Choice> {
    let Some((size, ranges)) = mapping::by_rows(&plan.kernels[id], &plan.symbols, &plan.target) else {
        return Vec::new();
    };
    let mut choices = Vec::new();
    for (i, (from, mapping)) in ranges.into_iter().enumerate() {
        if i == 0 {
            plan.kernels[id].mapping = mapping;
            continue;
        }
        let mut kernel = plan.kernels[id].clone();
        kernel.name = format!("{}_from_{from}", kernel.name);
        kernel.mapping = mapping;
        let kernel = plan.kernels.push(kernel);
        choices.push(Choice {
            size: size.clone(),
            from,
            kernel,
        });
    }
    choices
}
