//! Which buffers are accessed at positions that are not shown to be inside them.
//!
//! A GPU looks at no index, so its runtime refuses a kernel with an access that `ir::kernel::bounds` does not prove.
//! Positions that the graph's meaning keeps inside, but no interval shows to be there, are clamped
//! ([`super::builder::Builder::clamped`]).

use ir::dim::{Bindings, Symbols};
use ir::kernel::bounds::unproven;
use ir::kernel::{Kernel, Param, ParamId};
use ir::plan::requirement;
use ir::{Graph, SymbolInfo};

/// Lists the parameters with an access that is not shown to be inside, at the hints or near the ends of the symbols'
/// ranges.
pub fn open_params(kernel: &Kernel, graph: &Graph) -> Vec<ParamId> {
    let mut open = Vec::new();
    for sizes in sizes(kernel, graph.symbols()) {
        // Sizes that do not work out are an error of the run that has them.
        let found = unproven(kernel, &sizes).unwrap_or_default();
        // So are those that the graph excludes.
        if !found.is_empty() && requirement::of(graph).iter().all(|r| r.check(&sizes).is_ok()) {
            open.extend(found.into_iter().map(|access| access.param));
        }
    }
    let named = |p: &Param| open.contains(&p.name);
    kernel
        .params
        .iter()
        .filter(|(_, p)| named(p))
        .map(|(id, _)| id)
        .collect()
}

/// Returns the sizes that are looked at: one set where the kernel names no symbol. Small sizes are where guards and
/// reflections meet, so each of the least is asked.
fn sizes(kernel: &Kernel, symbols: &Symbols) -> Vec<Bindings> {
    let at = |size: &dyn Fn(&SymbolInfo) -> i64| -> Bindings {
        let most = |info: &SymbolInfo| info.max.unwrap_or(i64::MAX);
        symbols
            .iter()
            .map(|(s, info)| (s.clone(), size(info).min(most(info))))
            .collect()
    };
    let mut sizes = vec![at(&|info| info.hint)];
    if !kernel.symbols.is_empty() {
        sizes.extend((0..4).map(|more| at(&|info| info.min + more)));
        // Odd, and no multiple of the hint.
        sizes.push(at(&|info| info.hint.saturating_mul(4).saturating_add(1)));
        sizes.push(at(&|info| info.max.unwrap_or(info.hint)));
        sizes.dedup();
    }
    sizes
}

#[cfg(test)]
mod tests {
    use ir::kernel::bounds::unproven;

    use crate::schedule::{ScheduleOptions, schedule};
    use crate::testing;

    /// A window over a reflected axis: the guard keeps positions inside for which the reflection is one, and no
    /// interval of the reflection alone shows it.
    const WINDOW: &str = r#"
        symbol b: 0..9 hint 3
        x = input "x" : f32[b, 3]
        p = pad x {low=[0, 0], high=[0, 2], mode=reflect} : f32[b, 5]
        r = reshape p : f32[1, 1, b, 5]
        y = pool r {kind=max, size=[3, 1], strides=[1, 3], pad_low=[1, 0], pad_high=[2, 0], dilations=[2, 1], ceil} : f32[1, 1, b - 1, 2]
        return y as "y""#;

    /// The kernels for a target of what is fused for a GPU, where the pool computes what it reads.
    fn windows(target: &str) -> (Vec<ir::kernel::Kernel>, Vec<String>) {
        let [target, fused]: [ir::Target; 2] = [target, "gfx90a"].map(|t| t.parse().expect("known"));
        let (graph, _) = testing::optimized(&testing::graph(WINDOW), "gfx90a", Default::default());
        let (schedule, _) = schedule(&graph, &fused, &ScheduleOptions::default()).expect("schedules");
        let mut open = Vec::new();
        let kernels: Vec<_> = schedule
            .regions
            .values()
            .map(|region| super::super::lower(&graph, region, &target).expect("lowers"))
            .collect();
        for kernel in &kernels {
            for b in 1..10 {
                let sizes = [(ir::Symbol::new("b"), b)].into_iter().collect();
                open.extend(
                    unproven(kernel, &sizes)
                        .expect("sizes work out")
                        .iter()
                        .map(|u| format!("{b}: {u}")),
                );
            }
        }
        (kernels, open)
    }

    #[test]
    fn a_gpu_gets_clamps_where_nothing_shows_a_position_to_be_inside() {
        let (_, open) = windows("cpu");
        assert!(!open.is_empty(), "the case is proved by now: find another");
        let (kernels, open) = windows("gfx90a");
        assert_eq!(open, [""; 0]);
        let text: Vec<String> = kernels.iter().map(ToString::to_string).collect();
        assert!(text.iter().any(|k| k.contains("min(max(")), "{text:?}");
    }
}
