//! Steps with choices by size: a product whose rows the model leaves open is mapped for several numbers of rows, and
//! may be a library's call at some of them.
//!
//! Before: one kernel or call a step, chosen at the symbols' hints. After: a step whose best kernel changes with its
//! rows, or for which the cost model puts a call before a kernel at some numbers of rows and not at others, has a work
//! for each range, all kernels of them compiled ahead; who binds sizes picks one. At the hints it is what the e-graph
//! chose. Ranges of rows with a row of the [tuning](crate::tuning) have what was the fastest there.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use indexmap::IndexMap;
use ir::kernel::{Kernel, Mapping};
use ir::library::{Algorithm, LibraryCall};
use ir::plan::{Buffer, BufferId, Choice, KernelId, Place, StepId, Work};
use ir::{DType, Dim, Entity, Plan, Table, TensorType};

use super::PlanOptions;
use super::engines::{Decided, Prefer};
use super::unpacked::Stored;
use crate::lower::mapping::{self, Chosen};
use crate::route::sized::Product;
use crate::tuning::{self, Engine};

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
    /// Kernels beside a step's own work, which are not in the plan before one is chosen.
    of_calls: HashMap<Kernel, KernelId>,
    /// Ranges whose engine measuring has decided.
    decided: Vec<Decided>,
}

/// Adds the choices of every step; returns the ranges of rows for which measuring has decided between a kernel and a
/// call.
pub fn choices(
    plan: &mut Plan,
    (others, stored): (&IndexMap<StepId, Other>, &IndexMap<StepId, Stored>),
    options: &PlanOptions,
) -> Vec<Decided> {
    let mut variants = Variants::default();
    let steps: Vec<StepId> = plan.steps.keys().collect();
    for id in steps {
        let other = others.get(&id);
        match (plan.steps[id].work.clone(), other.map(|other| &other.work)) {
            (Work::Launch { kernel, args }, Some(OtherWork::Call { operands, results }))
                if operands.iter().chain(results).all(|b| args.contains(b)) =>
            {
                let call = other.map(|other| (&other.product, &operands[..], &results[..]));
                of_step(plan, &mut variants, id, (Base::Known(kernel), args), call, options);
            }
            (Work::Launch { kernel, args }, _) => {
                of_step(plan, &mut variants, id, (Base::Known(kernel), args), None, options);
            }
            (Work::Call { operands, results, .. }, Some(OtherWork::Kernel { kernel, args })) => {
                let call = other.map(|other| (&other.product, &operands[..], &results[..]));
                of_step(
                    plan,
                    &mut variants,
                    id,
                    (Base::New(kernel), args.clone()),
                    call,
                    options,
                );
            }
            _ => {}
        }
        if let Some(stored) = stored.get(&id) {
            of_stored(plan, &mut variants, id, stored, options);
        }
    }
    drop_unused(plan);
    variants.decided
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
    options: &PlanOptions,
) {
    let is_call = plan.steps[id].work.library_call().is_some();
    let decided = RefCell::new(Vec::new());
    let is_tuned = Cell::new(false);
    // Of the ranges in which the call is made.
    let algorithms: RefCell<BTreeMap<i64, Option<Algorithm>>> = RefCell::default();
    let ranges = {
        let (symbols, target) = (&plan.symbols, &plan.target);
        let kernel = match base {
            Base::Known(id) => &plan.kernels[id],
            Base::New(kernel) => kernel,
        };
        let calls = |size: &Dim, rows: i64| {
            let Some((product, ..)) = call.filter(|(product, ..)| product.rows() == *size) else {
                return false;
            };
            let made = |algorithm: Option<Algorithm>| {
                is_tuned.set(is_tuned.get() || algorithm.is_some());
                algorithms.borrow_mut().insert(rows, algorithm);
                true
            };
            match options.prefer {
                Prefer::Kernels => return false,
                Prefer::Calls => return made(None),
                Prefer::Fastest => {}
            }
            // The e-graph has seen what is around the product too.
            let at_hint = (rows..rows.saturating_mul(2)).contains(&size.hint(symbols));
            let predicted = match at_hint {
                true => is_call,
                false => product.call_wins(rows, symbols, target),
            };
            let line = (options.tuning.has_engines())
                .then(|| tuning::product_in(kernel, symbols, target, rows))
                .flatten();
            let row = line.and_then(|line| Some((options.tuning.engine(&line)?.clone(), line)));
            // A row of another version may name a call that is no choice today.
            let is_choice = |engine: &Engine| match engine {
                Engine::Kernel => true,
                Engine::Call { name, .. } => name == product.call.name(),
            };
            let Some((engine, line)) = row.filter(|(engine, _)| is_choice(engine)) else {
                return predicted && made(None);
            };
            let wanted = engine != Engine::Kernel;
            decided.borrow_mut().push(Decided {
                step: id,
                product: line,
                engine: engine.to_string(),
                changed: wanted != predicted,
            });
            match engine {
                Engine::Kernel => false,
                Engine::Call { algorithm, .. } => made(algorithm.filter(|_| product.call.has_algorithms())),
            }
        };
        let tuned = |rows: i64| {
            let found = tuning::in_range(kernel, symbols, target, rows, &options.tuning);
            is_tuned.set(is_tuned.get() || found.is_some());
            found
        };
        let chosen = Chosen {
            calls: &calls,
            tuned: &tuned,
        };
        mapping::by_rows(kernel, symbols, target, &chosen)
    };
    let Some((size, ranges)) = ranges else { return };
    // A call whose rows are not the kernel's was compared with it at no number of them: it stays.
    if is_call && call.is_none_or(|(product, ..)| product.rows() != size) {
        return;
    }
    variants.decided.extend(decided.into_inner());
    // One mapping serves all sizes, or the call does: that is what there is.
    let is_call_at_all = matches!(ranges[..], [(_, None)]);
    if ranges.len() == 1 && !is_tuned.get() && is_call == is_call_at_all {
        return;
    }
    let base = match base {
        Base::Known(id) => id,
        Base::New(kernel) => variants.base(plan, kernel),
    };
    let algorithms = algorithms.into_inner();
    let ends: Vec<i64> = ranges.iter().skip(1).map(|(from, _)| *from).chain([i64::MAX]).collect();
    let mut works: Vec<(i64, Work)> = Vec::with_capacity(ranges.len());
    for ((from, mapping), end) in ranges.into_iter().zip(ends) {
        match (mapping, call) {
            (Some(mapping), _) => {
                let kernel = variants.mapped(plan, base, from, mapping);
                works.push((from, Work::launch(kernel, args.clone())));
            }
            // One call for neighbours with the same algorithm.
            (None, Some((product, operands, results))) => {
                let mut last = None;
                for (rows, algorithm) in algorithms.range(from..end) {
                    if last == Some(algorithm) {
                        continue;
                    }
                    let first = if last.is_none() { from } else { *rows };
                    last = Some(algorithm);
                    let made = Work::Call {
                        call: product.call.clone(),
                        operands: operands.to_vec(),
                        results: results.to_vec(),
                        workspace: None,
                        algorithm: algorithm.clone().map(Box::new),
                    };
                    works.push((first, made));
                }
            }
            (None, None) => {}
        }
    }
    let works = works.into_iter().map(|(from, work)| Choice {
        size: size.clone(),
        from,
        work,
    });
    let step = &mut plan.steps[id];
    let mut works = works.collect::<Vec<_>>().into_iter();
    if let Some(first) = works.next() {
        (step.work, step.choices) = (first.work, works.collect());
    }
}

/// Lets a step multiply by stored weights from their number of rows on, with a kernel for each range of them.
fn of_stored(plan: &mut Plan, variants: &mut Variants, id: StepId, stored: &Stored, options: &PlanOptions) {
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

impl Variants {
    /// The kernel that a step may launch besides its own work.
    fn base(&mut self, plan: &mut Plan, kernel: &Kernel) -> KernelId {
        let added = || plan.kernels.push(kernel.clone());
        *self.of_calls.entry(kernel.clone()).or_insert_with(added)
    }

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

/// Gives the calls that take one their workspace; those of one step share it.
pub fn workspaces(plan: &mut Plan) {
    let steps: Vec<StepId> = plan.steps.keys().collect();
    for id in steps {
        let step = &mut plan.steps[id];
        let Some(bytes) = step.calls().filter_map(LibraryCall::workspace).max() else {
            continue;
        };
        let elements = Dim::Const(i64::try_from(bytes).unwrap_or(i64::MAX));
        let room = plan.buffers.push(Buffer {
            name: format!("{id}_workspace"),
            ty: TensorType::new(DType::U8, vec![elements]),
            place: Place::Arena {
                first: id,
                last: id,
                in_place_of: None,
            },
        });
        for work in step.works_mut() {
            if let Work::Call { call, workspace, .. } = work
                && call.workspace().is_some()
            {
                *workspace = Some(room);
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use ir::{Bindings, Symbol, Target};

    use super::*;
    use crate::route::sized::Routes;
    use crate::{OptimizeOptions, PlanOptions, ScheduleOptions, testing};

    /// A product of `[n, 2048]` by `[2048, 2048]` with what follows it, planned for gfx90a.
    fn planned(hint: i64, after: &str, change: impl FnOnce(&mut OptimizeOptions)) -> Plan {
        let text = format!(
            "symbol n: 1..8192 hint {hint}\n x = input \"x\" : f16[n, 2048]\n w = input \"w\" : f16[2048, 2048]\n \
             b = input \"b\" : f16[2048]\n s = input \"s\" : f16[n, 2048]\n y = contract x, w\n {after}\n return z as \"z\""
        );
        let target: Target = "gfx90a".parse().expect("known");
        let mut options = OptimizeOptions::default();
        change(&mut options);
        let (graph, _) = crate::optimize(testing::graph(&text), &target, &options).expect("optimises");
        let (schedule, _) = crate::schedule(&graph, &target, &ScheduleOptions::default()).expect("schedules");
        let options = PlanOptions {
            routes: Routes::of(&options, &target),
            ..PlanOptions::default()
        };
        crate::plan(&graph, &schedule, &target, &options).expect("plans")
    }

    fn at(n: i64) -> Bindings {
        [(Symbol::new("n"), n)].into_iter().collect()
    }

    /// The names of what runs at a number of rows, without copies.
    fn runs(plan: &Plan, n: i64) -> Vec<String> {
        let name = |work: &Work| match work {
            Work::Launch { kernel, .. } => Some(
                plan.kernels[*kernel]
                    .name
                    .split("_from_")
                    .next()
                    .unwrap_or("")
                    .to_owned(),
            ),
            Work::Call { call, .. } => Some(call.name().to_owned()),
            Work::Copy { .. } => None,
        };
        let works = plan.steps.values().map(|step| step.at(&at(n)).expect("bound"));
        works.filter_map(name).collect()
    }

    #[test]
    fn the_same_step_is_a_kernel_and_a_call_whatever_the_hint_chose() {
        for (after, kernel, call) in [
            ("z = reshape y {shape=[n, 2048]}", "contract", "rocblas_gemm"),
            ("z = relu y", "contract_relu", "hipblaslt_matmul"),
            ("z = add y, b", "contract_add", "hipblaslt_matmul"),
            (
                "a = add y, b\n z = gelu_tanh a",
                "contract_add_gelu_tanh",
                "hipblaslt_matmul",
            ),
        ] {
            for hint in [2, 4096] {
                let plan = planned(hint, after, |_| ());
                assert_eq!(runs(&plan, 1), [kernel], "{after}, hint {hint}: {plan}");
                assert_eq!(runs(&plan, 8192), [call], "{after}, hint {hint}: {plan}");
                // Every kernel is launched at some size.
                let launched: Vec<KernelId> = plan.steps.values().flat_map(ir::plan::Step::kernels).collect();
                assert!(plan.kernels.keys().all(|id| launched.contains(&id)), "{plan}");
            }
        }
    }

    #[test]
    fn what_no_library_does_or_may_do_is_a_kernel_at_all_sizes() {
        let at_most = |plan: &Plan| runs(plan, 8192);
        let free = planned(2, "z = relu y", |_| ());
        assert_eq!(at_most(&free), ["hipblaslt_matmul"]);
        type Change = fn(&mut OptimizeOptions);
        let closed: [(&str, Change); 5] = [
            ("z = add y, s", |_| ()),
            ("z = tanh y", |_| ()),
            ("z = relu y", |options| options.libraries = false),
            ("z = relu y", |options| {
                options.disable = ["hipblaslt".to_owned()].into()
            }),
            ("z = relu y", |options| options.disable = ["route".to_owned()].into()),
        ];
        for (after, change) in closed {
            let plan = planned(2, after, change);
            assert!(
                plan.steps.values().all(|step| step.calls().count() == 0),
                "{after}: {plan}"
            );
        }
    }

    /// A convolution over an open number of images, channels last, planned for a GPU.
    fn convolution(
        target: &str,
        symbols: &str,
        shape: &str,
        after: &str,
        change: impl FnOnce(&mut PlanOptions),
    ) -> Plan {
        let text = format!(
            "{symbols}\n x = input \"x\" : f16[{shape}]\n w = input \"w\" : f16[64, 3, 3, 64]\n \
             y = conv x, w {{channels_last, pad_low=[1, 1], pad_high=[1, 1]}}\n {after}\n return z as \"z\""
        );
        let target: Target = target.parse().expect("known");
        let optimize = OptimizeOptions::default();
        let (graph, _) = crate::optimize(testing::graph(&text), &target, &optimize).expect("optimises");
        let (schedule, _) = crate::schedule(&graph, &target, &ScheduleOptions::default()).expect("schedules");
        let mut options = PlanOptions {
            routes: Routes::of(&optimize, &target),
            ..PlanOptions::default()
        };
        change(&mut options);
        crate::plan(&graph, &schedule, &target, &options).expect("plans")
    }

    /// What runs a convolution at a number of images: `call`, or `kernel`.
    fn engine(plan: &Plan, images: i64) -> Vec<&'static str> {
        let works = plan.steps.values().map(|step| step.at(&at(images)).expect("bound"));
        let engine = |work: &Work| match work {
            Work::Call { call, .. } => {
                assert_eq!(call.name(), "miopen_conv");
                Some("call")
            }
            Work::Launch { kernel, .. } => match plan.kernels[*kernel].body {
                ir::kernel::Body::Contract(_) => Some("kernel"),
                _ => None,
            },
            Work::Copy { .. } => None,
        };
        works.filter_map(engine).collect()
    }

    #[test]
    fn a_convolution_of_open_images_is_a_kernel_and_a_call_of_miopen() {
        let as_it_is = "z = reshape y {shape=[n, 7, 7, 64]}";
        for hint in [1, 4096] {
            let symbols = format!("symbol n: 1..4096 hint {hint}");
            let plan = convolution("gfx90a", &symbols, "n, 7, 7, 64", as_it_is, |_| ());
            assert_eq!(engine(&plan, 1), ["kernel"], "hint {hint}: {plan}");
            assert_eq!(engine(&plan, 4096), ["call"], "hint {hint}: {plan}");
            let forced = |prefer| {
                let plan = convolution("gfx90a", &symbols, "n, 7, 7, 64", as_it_is, |o| o.prefer = prefer);
                [1, 64, 4096].map(|images| engine(&plan, images))
            };
            assert_eq!(forced(Prefer::Kernels), ["kernel"; 3].map(|engine| vec![engine]));
            assert_eq!(forced(Prefer::Calls), ["call"; 3].map(|engine| vec![engine]));
        }
    }

    #[test]
    fn what_miopen_does_not_do_alone_is_a_kernel_for_all_images() {
        let symbols = "symbol n: 1..4096 hint 1";
        // What follows is the kernel's; points of an image that are open say too little of the images.
        let followed = convolution("gfx90a", symbols, "n, 7, 7, 64", "z = relu y", |_| ());
        let open = convolution(
            "gfx90a",
            "symbol n: 1..4096 hint 1\n symbol s: 4..64 hint 28",
            "n, s, s, 64",
            "z = relu y",
            |_| (),
        );
        let other = convolution(
            "sm_90",
            symbols,
            "n, 7, 7, 64",
            "z = reshape y {shape=[n, 7, 7, 64]}",
            |_| (),
        );
        for plan in [&followed, &open, &other] {
            assert!(plan.steps.values().all(|step| step.calls().count() == 0), "{plan}");
        }
    }

    #[test]
    fn a_workspace_has_room_only_where_its_call_is_made() {
        let plan = planned(2, "z = relu y", |_| ());
        let bytes = |n: i64| ir::plan::arena::place(&plan, &at(n)).expect("places").total;
        let workspaces: Vec<BufferId> = plan.idle_workspaces(&at(1)).expect("bound");
        assert_eq!(workspaces.len(), 1, "{plan}");
        assert_eq!(plan.idle_workspaces(&at(8192)).expect("bound"), []);
        // x, w, s, b, and the result; a workspace besides only where the call is made.
        let tensors = |n: i64| 2048 * 2 * (2048 + 1 + 3 * n) as usize;
        assert!(bytes(1) <= tensors(1) + 8 * 256, "{}", bytes(1));
        assert!(bytes(8192) >= 32 << 20 && bytes(8192) <= tensors(8192) + (32 << 20) + 8 * 256);
    }
}
