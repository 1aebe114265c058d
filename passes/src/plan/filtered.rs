//! Convolutions by Winograd's filtering: three launches, the memory between them, and the transformed filters.
//!
//! Before: the region of a convolution, with its kernel. After: the launches of [`crate::lower::winograd`], where that
//! is what the options ask for or what is predicted to be faster. The transformed filters are a constant of the plan
//! ([`super::Planned::constants`]), which takes the place of the model's: no kernel reads those any more.

use ir::graph::Constant;
use ir::kernel::{Expr, ParamId, Winograd};
use ir::plan::{BufferId, Place, StepId};
use ir::schedule::Region;
use ir::{ConstId, Dim, Entity, Kernel, Value};

use super::{PlanOptions, Planner};
use crate::lower::LowerError;
use crate::lower::winograd::{Choice, Filtered, Predicted, choose, transform_filters};

/// A convolution of which it was asked whether Winograd's filtering computes it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FilteredConvolution {
    /// Its first step.
    pub step: StepId,
    /// Whether it is computed so, in three steps.
    pub taken: bool,
    /// The best algorithm for it.
    pub winograd: Winograd,
    pub predicted: Predicted,
}

impl Planner<'_> {
    /// Launches a convolution in three, where that is asked for or pays; says whether it was.
    pub(super) fn filter(
        &mut self,
        region: &Region,
        direct: &Kernel,
        options: &PlanOptions,
    ) -> Result<bool, LowerError> {
        let target = self.plan.target;
        let made = match choose(self.graph, region, direct, options.filtering, &target)? {
            None => return Ok(false),
            Some(Choice::Direct(winograd, predicted)) => {
                self.note(false, winograd, predicted);
                return Ok(false);
            }
            Some(Choice::Filtered(made)) => made,
        };
        let Some(filters) = self.transformed(&made) else {
            return Ok(false);
        };
        self.note(true, made.winograd, made.predicted);
        let anchor = Value::from(region.anchor);
        let [taken, sums] = [("patches", &made.taken), ("sums", &made.sums)]
            .map(|(what, ty)| self.arena(format!("{anchor}_{what}"), ty.clone()));
        let per_element = || Dim::Const(2 * made.winograd.inputs());
        let [patches, pixels] = [&made.taken, &made.sums].map(|ty| ty.elements() * per_element());
        let multiplied = made.sums.elements() * &made.taken.shape[2] * 2;
        let reads = self.read_by(&made.patches, region, made.filter, taken);
        self.launch(made.patches, [&reads[..], &[taken]].concat(), patches);
        self.launch_or_share(made.product, vec![taken, filters, sums], multiplied, options);
        let reads = self.read_by(&made.pixels, region, made.filter, sums);
        let writes = self.results(region);
        self.launch(made.pixels, [&reads[..], &[sums], &writes].concat(), pixels);
        Ok(true)
    }

    fn note(&mut self, taken: bool, winograd: Winograd, predicted: Predicted) {
        self.filtered.push(FilteredConvolution {
            step: StepId::new(self.plan.steps.len()),
            taken,
            winograd,
            predicted,
        });
    }

    /// The buffers of a region's inputs. A kernel that does not read the filters has `instead` for them, which is
    /// dropped with the parameter: filters that nothing reads have no buffer.
    fn read_by(&mut self, kernel: &Kernel, region: &Region, filter: Value, instead: BufferId) -> Vec<BufferId> {
        let mut reads = Vec::with_capacity(region.inputs.len());
        for (at, value) in region.inputs.iter().enumerate() {
            let of = ParamId::new(at);
            let is_read = |(_, e): (_, &Expr)| matches!(e, Expr::Load { param, .. } if *param == of);
            let is_dropped = *value == filter && !kernel.exprs.iter().any(is_read);
            reads.push(if is_dropped { instead } else { self.buffer(*value) });
        }
        reads
    }

    /// The buffer of transformed filters, which convolutions of the same ones share.
    fn transformed(&mut self, made: &Filtered) -> Option<BufferId> {
        if let Some(buffer) = self.transformed_filters.get(&(made.filter, made.winograd)) {
            return Some(*buffer);
        }
        let filters = self.graph.as_constant(made.filter)?;
        let tensor = transform_filters(made.winograd, filters)?;
        let id = ConstId::new(self.graph.constants().len() + self.constants.len());
        let name = format!("{}_transformed", made.filter);
        self.constants.push(Constant {
            name: Some(name.clone()),
            tensor,
        });
        let buffer = self.add_buffer(name, made.filters.clone(), Place::Constant(id));
        self.transformed_filters.insert((made.filter, made.winograd), buffer);
        Some(buffer)
    }
}

#[cfg(test)]
mod tests;
