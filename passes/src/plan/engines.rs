//! What computes a product whose sizes are known: its kernel or a library's call, where measuring or the caller has
//! decided.
//!
//! Before: the step is what the e-graph chose. After: of products with a row of the [tuning](crate::tuning) it is what
//! was the fastest where it was measured; of all others what the caller prefers, if anything.

use std::collections::HashMap;

use indexmap::IndexMap;
use ir::kernel::Kernel;
use ir::plan::{KernelId, StepId, Work};
use ir::{Dim, Plan};

use super::PlanOptions;
use super::sizes::{Other, OtherWork};
use crate::tuning::{self, Engine};

/// Which of a kernel and a library's call a step takes where either does the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Prefer {
    /// The fastest as measured; else the cheapest by the roofline.
    #[default]
    Fastest,
    Kernels,
    Calls,
}

/// A product whose engine measuring has decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decided {
    pub step: StepId,
    pub product: String,
    /// `kernel`, or `call` and the call's name.
    pub engine: String,
    /// Whether the roofline would have taken the other.
    pub changed: bool,
}

/// Gives steps the engines of their products' rows, or those that the caller prefers.
pub fn choose(plan: &mut Plan, others: &IndexMap<StepId, Other>, options: &PlanOptions) -> Vec<Decided> {
    let mut decided = Vec::new();
    let mut made: HashMap<Kernel, KernelId> = HashMap::new();
    for (id, other) in others.iter().filter(|(_, other)| is_known(&other.product.rows())) {
        let (is_call, line) = match (&plan.steps[*id].work, &other.work) {
            (Work::Launch { kernel, args }, OtherWork::Call { operands, results })
                if operands.iter().chain(results).all(|b| args.contains(b)) =>
            {
                (
                    false,
                    tuning::product(&plan.kernels[*kernel], &plan.symbols, &plan.target),
                )
            }
            (Work::Call { .. }, OtherWork::Kernel { kernel, .. }) => {
                (true, tuning::product(kernel, &plan.symbols, &plan.target))
            }
            _ => continue,
        };
        let call = &other.product.call;
        let row = line.as_deref().and_then(|line| options.tuning.engine(line));
        let by_row = row.and_then(|engine| match engine {
            Engine::Kernel => Some((false, None)),
            // A row of another version may name a call that is no choice today.
            Engine::Call { name, algorithm } => {
                (name == call.name()).then(|| (true, algorithm.clone().filter(|_| call.has_algorithms())))
            }
        });
        let wanted = match options.prefer {
            Prefer::Kernels => false,
            Prefer::Calls => true,
            Prefer::Fastest => by_row.as_ref().map_or(is_call, |(wanted, _)| *wanted),
        };
        let algorithm = match options.prefer {
            Prefer::Fastest => by_row.as_ref().and_then(|(_, algorithm)| algorithm.clone()),
            Prefer::Kernels | Prefer::Calls => None,
        };
        if let (Prefer::Fastest, Some(_), Some(line)) = (options.prefer, by_row, line) {
            decided.push(Decided {
                step: *id,
                product: line,
                engine: match wanted {
                    true => Engine::call(call.name(), algorithm.clone()).to_string(),
                    false => Engine::Kernel.to_string(),
                },
                changed: wanted != is_call,
            });
        }
        if wanted == is_call {
            if let Work::Call { algorithm: of_call, .. } = &mut plan.steps[*id].work {
                *of_call = algorithm.map(Box::new);
            }
            continue;
        }
        plan.steps[*id].work = match &other.work {
            OtherWork::Call { operands, results } => Work::Call {
                call: call.clone(),
                operands: operands.clone(),
                results: results.clone(),
                workspace: None,
                algorithm: algorithm.map(Box::new),
            },
            OtherWork::Kernel { kernel, args } => {
                let mut kernel = Kernel::clone(kernel);
                tuning::apply_to(&mut kernel, &plan.symbols, &plan.target, &options.tuning);
                let id = *made.entry(kernel.clone()).or_insert_with(|| plan.kernels.push(kernel));
                Work::launch(id, args.clone())
            }
        };
    }
    decided
}

/// Whether a number of rows is one number at all sizes.
pub fn is_known(rows: &Dim) -> bool {
    rows.as_const().is_some()
}
