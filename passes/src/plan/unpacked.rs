//! Products by quantised weights whose numbers are stored first, where rows are many.
//!
//! Before: the region of a product, with its kernel, which unpacks the weights. After: where that is predicted to take
//! less time, the launches of [`crate::lower::unpacked`], with the numbers in memory of the arena. Where the model
//! leaves the rows open, both are there: below the number of rows from which two launches pay the first has no work,
//! and the product's step chooses its kernel by size.

use ir::plan::{BufferId, Choice, StepId, Work};
use ir::{Dim, Entity, Kernel, Plan};

use super::sizes::Variants;
use super::{PlanOptions, Planner, drop_unused_params};
use crate::lower::mapping::{self, Chosen};
use crate::lower::unpacked::{ForRows, Predicted, Unpacked};
use crate::tuning;

/// A product whose weights are stored as numbers first.
#[derive(Clone, PartialEq, Debug)]
pub struct UnpackedProduct {
    /// The step that multiplies.
    pub step: StepId,
    pub from: ForRows,
    pub predicted: Predicted,
}

/// What a step does from a number of rows on, in the place of what it does for fewer.
pub struct Stored {
    size: Dim,
    least: i64,
    kernel: Kernel,
    args: Vec<BufferId>,
}

impl Stored {
    /// The buffers that are read then.
    pub(super) fn reads(&self) -> impl Iterator<Item = BufferId> {
        let args = self.args.iter().zip(self.kernel.params.values());
        args.filter(|(_, param)| param.access.reads())
            .map(|(buffer, _)| *buffer)
    }
}

impl Planner<'_> {
    /// Launches what stores the weights of a product; says whether it is there. Products of the same weights share it.
    pub(super) fn unpack(&mut self, made: &Unpacked) -> bool {
        if let Some(from) = self.unpacked_weights.get(&made.weights) {
            return *from == made.from;
        }
        let (region, kernel) = &made.unpack;
        let reads = self.reads(region);
        let writes = self.results(region);
        let flops = crate::flops::of_nodes(self.graph, region.nodes.iter().copied());
        self.launch(kernel.clone(), [&reads[..], &writes].concat(), flops);
        self.unpacked_weights.insert(made.weights, made.from.clone());
        true
    }

    /// Notes that the step which comes next multiplies by stored weights.
    pub(super) fn note_unpacked(&mut self, made: &Unpacked) {
        self.unpacked.push(UnpackedProduct {
            step: StepId::new(self.plan.steps.len()),
            from: made.from.clone(),
            predicted: made.predicted,
        });
    }

    /// Notes what a step does from the number of rows on from which its weights are stored.
    pub(super) fn multiply_stored(&mut self, step: StepId, made: &Unpacked, writes: &[BufferId]) {
        let ForRows::From { size, least } = &made.from else {
            return;
        };
        let (region, kernel) = &made.product;
        let reads = self.reads(region);
        let (mut kernel, mut args) = (kernel.clone(), [&reads[..], writes].concat());
        drop_unused_params(&mut kernel, &mut args);
        let stored = Stored {
            size: size.clone(),
            least: *least,
            kernel,
            args,
        };
        self.stored.insert(step, stored);
    }
}

/// Lets a step multiply by stored weights from their number of rows on, with a kernel for each range of them.
pub(super) fn choices(plan: &mut Plan, variants: &mut Variants, id: StepId, stored: &Stored, options: &PlanOptions) {
    let Stored {
        size,
        least,
        kernel,
        args,
    } = stored;
    let (symbols, target) = (&plan.symbols, &plan.target);
    let chosen = Chosen {
        calls: &|_, _| false,
        tuned: &|rows| tuning::in_range(kernel, symbols, target, rows, &options.tuning),
    };
    let Some((_, ranges)) = mapping::by_rows(kernel, symbols, target, &chosen) else {
        return;
    };
    let ends: Vec<i64> = ranges.iter().skip(1).map(|(from, _)| *from).chain([i64::MAX]).collect();
    let base = variants.base(plan, kernel);
    plan.steps[id].choices.retain(|choice| choice.from < *least);
    for ((from, mapping), end) in ranges.into_iter().zip(ends) {
        let Some(mapping) = mapping.filter(|_| end > *least) else {
            continue;
        };
        let from = from.max(*least);
        let kernel = variants.mapped(plan, base, from, mapping);
        plan.steps[id].choices.push(Choice {
            size: size.clone(),
            from,
            work: Work::launch(kernel, args.clone()),
        });
    }
}

#[cfg(test)]
mod tests;
