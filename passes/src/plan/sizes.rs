//! Steps with choices by size: a product whose rows the model leaves open is mapped for several numbers of rows, and may be a library's
//! call at some of them.
//!
//! Before: one kernel or call a step, chosen at the symbols' hints. After: a step whose best kernel changes with its rows, or for which
//! the cost model puts a call before a kernel at some numbers of rows and not at others, has a work for each range, all kernels of them
//! compiled ahead; who binds sizes picks one. At the hints it is what the e-graph chose.

use std::collections::HashMap;

use indexmap::IndexMap;
use ir::kernel::{Kernel, Mapping};
use ir::library::LibraryCall;
use ir::plan::{Buffer, BufferId, Choice, KernelId, Place, StepId, Work};
use ir::{DType, Dim, Entity, Plan, Table, TensorType};

use crate::lower::mapping;
use crate::route::sized::Product;

/// What may take a step's place at other sizes than the hints.
pub struct Other {
    pub product: Product,
    pub work: OtherWork,
}

/// See [`Other`].
pub enum OtherWork {
    /// Of a launch.
    Call {
        operands: Vec<BufferId>,
        results: Vec<BufferId>,
    },
    /// Of a call.
    Kernel { kernel: Box<Kernel>, args: Vec<BufferId> },
}

/// Kernels of one body that differ in their mapping.
#[derive(Default)]
struct Variants {
    /// Kernels whose own mapping a step has taken.
    settled: Vec<KernelId>,
    made: HashMap<(KernelId, Mapping), KernelId>,
    /// Kernels of calls, which are not in the plan before one is chosen.
    of_calls: HashMap<Kernel, KernelId>,
}

/// Adds the choices of every step.
pub fn choices(plan: &mut Plan, others: &IndexMap<StepId, Other>) {
    let mut variants = Variants::default();
    let steps: Vec<StepId> = plan.steps.keys().collect();
    for id in steps {
        let other = others.get(&id);
        match (plan.steps[id].work.clone(), other.map(|other| &other.work)) {
            (Work::Launch { kernel, args }, Some(OtherWork::Call { operands, results }))
                if operands.iter().chain(results).all(|b| args.contains(b)) =>
            {
                let call = other.map(|other| (&other.product, &operands[..], &results[..]));
                of_step(plan, &mut variants, id, (Base::Known(kernel), args), call);
            }
            (Work::Launch { kernel, args }, _) => of_step(plan, &mut variants, id, (Base::Known(kernel), args), None),
            (Work::Call { operands, results, .. }, Some(OtherWork::Kernel { kernel, args })) => {
                let call = other.map(|other| (&other.product, &operands[..], &results[..]));
                of_step(plan, &mut variants, id, (Base::New(kernel), args.clone()), call);
            }
            _ => {}
        }
    }
    drop_unused(plan);
}

/// The kernel of a step.
enum Base<'a> {
    Known(KernelId),
    New(&'a Kernel),
}

fn of_step(
    plan: &mut Plan,
    variants: &mut Variants,
    id: StepId,
    (base, args): (Base<'_>, Vec<BufferId>),
    call: Option<(&Product, &[BufferId], &[BufferId])>,
) {
    let is_call = plan.steps[id].work.library_call().is_some();
    let ranges = {
        let kernel = match base {
            Base::Known(id) => &plan.kernels[id],
            Base::New(kernel) => kernel,
        };
        let hint = |size: &Dim| size.hint(&plan.symbols);
        let calls = |size: &Dim, rows: i64| match call {
            Some((product, ..)) if product.rows() == *size => {
                // The e-graph has seen what is around the product too.
                let at_hint = (rows..rows.saturating_mul(2)).contains(&hint(size));
                if at_hint {
                    is_call
                } else {
                    product.call_wins(rows, &plan.symbols, &plan.target)
                }
            }
            _ => false,
        };
        mapping::by_rows(kernel, &plan.symbols, &plan.target, &calls)
    };
    let Some((size, ranges)) = ranges else { return };
    // The call at all sizes is what there is.
    if is_call && ranges.len() == 1 {
        return;
    }
    let base = match base {
        Base::Known(id) => id,
        Base::New(kernel) => *variants
            .of_calls
            .entry(kernel.clone())
            .or_insert_with(|| plan.kernels.push(kernel.clone())),
    };
    let room = match call {
        Some((product, ..)) if ranges.iter().any(|(_, mapping)| mapping.is_none()) => {
            workspace(plan, id, &product.call)
        }
        _ => None,
    };
    let mut works = Vec::with_capacity(ranges.len());
    for (from, mapping) in ranges {
        let work = match (mapping, call) {
            (Some(mapping), _) => Work::launch(variants.mapped(plan, base, from, mapping), args.clone()),
            (None, Some((product, operands, results))) => Work::Call {
                call: product.call.clone(),
                operands: operands.to_vec(),
                results: results.to_vec(),
                workspace: room,
            },
            (None, None) => continue,
        };
        works.push(Choice {
            size: size.clone(),
            from,
            work,
        });
    }
    let step = &mut plan.steps[id];
    let mut works = works.into_iter();
    if let Some(first) = works.next() {
        (step.work, step.choices) = (first.work, works.collect());
    }
}

impl Variants {
    /// The kernel of a body with a mapping; the body's own where no other step has given it another.
    fn mapped(&mut self, plan: &mut Plan, base: KernelId, from: i64, mapping: Mapping) -> KernelId {
        if !self.settled.contains(&base) {
            self.settled.push(base);
            plan.kernels[base].mapping = mapping;
            return base;
        }
        if plan.kernels[base].mapping == mapping {
            return base;
        }
        *self.made.entry((base, mapping.clone())).or_insert_with(|| {
            let mut kernel = plan.kernels[base].clone();
            kernel.name = format!("{}_from_{from}", kernel.name);
            kernel.mapping = mapping;
            plan.kernels.push(kernel)
        })
    }
}

/// The workspace of a step's calls, which share one.
fn workspace(plan: &mut Plan, id: StepId, call: &LibraryCall) -> Option<BufferId> {
    let bytes = call.workspace()?;
    let known = plan.steps[id].works().find_map(|work| match work {
        Work::Call { workspace, .. } => *workspace,
        Work::Launch { .. } | Work::Copy { .. } => None,
    });
    Some(known.unwrap_or_else(|| {
        plan.buffers.push(Buffer {
            name: format!("{id}_workspace"),
            ty: workspace_type(bytes),
            place: Place::Arena {
                first: id,
                last: id,
                in_place_of: None,
            },
        })
    }))
}

/// The type of a workspace.
pub fn workspace_type(bytes: usize) -> TensorType {
    TensorType::new(DType::U8, vec![Dim::Const(i64::try_from(bytes).unwrap_or(i64::MAX))])
}

/// Removes kernels that no step launches any more: at all sizes a call takes their place.
fn drop_unused(plan: &mut Plan) {
    let mut used: Table<KernelId, bool> = plan.kernels.keys().map(|_| false).collect();
    for kernel in plan.steps.values().flat_map(ir::plan::Step::kernels) {
        used[kernel] = true;
    }
    if used.values().all(|used| *used) {
        return;
    }
    let mut kept = Table::new();
    let renumbered: Table<KernelId, KernelId> = (plan.kernels.iter())
        .map(|(id, kernel)| match used[id] {
            true => kept.push(kernel.clone()),
            false => KernelId::new(0),
        })
        .collect();
    for work in plan.steps.values_mut().flat_map(ir::plan::Step::works_mut) {
        if let Work::Launch { kernel, .. } = work {
            *kernel = renumbered[*kernel];
        }
    }
    plan.kernels = kept;
}
