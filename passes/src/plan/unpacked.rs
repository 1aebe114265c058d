//! Products by quantised weights whose numbers are stored first, where rows are many.
//!
//! Before: the region of a product, with its kernel, which unpacks the weights. After: where that is predicted to take
//! less time, the launches of [`crate::lower::unpacked`], with the numbers in memory of the arena. Where the model
//! leaves the rows open, both are there: below the number of rows from which two launches pay the first has no work,
//! and the product's step chooses its kernel by size.

use ir::plan::{BufferId, StepId};
use ir::{Dim, Kernel};

use super::{Planner, drop_unused_params};
use crate::lower::unpacked::{ForRows, Predicted, Unpacked};

/// A product whose weights are stored as numbers first.
#[derive(Clone, PartialEq, Debug)]
pub struct UnpackedProduct {
    /// The step that multiplies.
    pub step: StepId,
    pub from: ForRows,
    pub predicted: Predicted,
}

/// What a step does from a number of rows on, in the place of what it does for fewer.
pub(super) struct Stored {
    pub size: Dim,
    pub least: i64,
    pub kernel: Kernel,
    pub args: Vec<BufferId>,
}

impl Stored {
    /// The buffers that are read then.
    pub fn reads(&self) -> impl Iterator<Item = BufferId> {
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

    /// Notes that a step multiplies by stored weights, where it does.
    pub(super) fn note_unpacked(&mut self, step: StepId, made: Option<&Unpacked>) {
        self.unpacked.extend(made.map(|made| UnpackedProduct {
            step,
            from: made.from.clone(),
            predicted: made.predicted,
        }));
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

#[cfg(test)]
mod tests;
