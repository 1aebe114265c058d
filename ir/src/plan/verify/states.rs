//! What is kept from run to run: an input and an output each.

use super::{Plan, PlanError};

/// Checks that each state is an input and a result of one type, and that no port is in two.
pub(super) fn check(plan: &Plan, errors: &mut Vec<PlanError>) {
    // A stage has some of the model's ports.
    if plan.share.as_ref().is_some_and(|share| share.stage.is_some()) {
        return;
    }
    for (index, state) in plan.states.iter().enumerate() {
        let input = plan.inputs.iter().find(|port| port.name == state.input);
        let output = plan.results().iter().find(|port| port.name == state.output);
        let same = matches!((input, output), (Some(input), Some(output)) if input.ty == output.ty);
        let before = &plan.states[..index];
        if !same
            || before
                .iter()
                .any(|s| s.input == state.input || s.output == state.output)
        {
            errors.push(PlanError::State {
                input: state.input.clone(),
                output: state.output.clone(),
            });
        }
    }
}
