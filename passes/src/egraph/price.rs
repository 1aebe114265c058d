//! The price of an attention: what its kernel is predicted to take, however the attention is spelled.
//!
//! A whole is worth choosing by what the kernel will take that it becomes, so that kernel is made, at the sizes' hints,
//! and asked.

use ir::graph::Stage;
use ir::op::Composite;
use ir::schedule::{LaneKind, Region, RegionKind};
use ir::{Dim, Graph, Op, Origin, Shape, TensorType, Value};

use crate::cost::CostModel;
use crate::lower::{lower, mapping};

/// The share of its time that a whole is rated at: the scores of its spelling take memory, which no time shows, and a
/// whole that takes as long is better.
const WORTH: f64 = 0.85;

/// Returns the microseconds of an attention over operands of these types; `None` for other ops, off GPUs, and where its
/// kernel is one of which nothing is predicted.
pub fn attention(model: &CostModel<'_>, op: &Op, operands: &[&TensorType], result: &TensorType) -> Option<f64> {
    if !model.target.is_gpu() || !matches!(op, Op::Composite(Composite::Attention { .. })) {
        return None;
    }
    let mut graph = Graph::new("attention");
    let mut inputs: Vec<Value> = Vec::new();
    for (i, ty) in operands.iter().enumerate() {
        inputs.push(graph.add_input(format!("x{i}"), at_hints(model, ty), Origin::default()));
    }
    let whole = graph.add(op.clone(), &inputs, Origin::default()).ok()?;
    graph.add_output("y", whole.into());
    graph.stage = Stage::Core;
    let mut read = inputs;
    read.dedup();
    let region = Region {
        kind: RegionKind::Attention,
        anchor: whole,
        nodes: vec![whole],
        inputs: read,
        outputs: vec![whole.into()],
        parts: Vec::new(),
        lane: LaneKind::Compute,
    };
    let kernel = lower(&graph, &region, model.target).ok()?;
    let work = mapping::attention_us(&kernel, graph.symbols(), model.target)?;
    let bytes: f64 = operands.iter().map(|ty| model.bytes(ty)).sum::<f64>() + model.bytes(result);
    Some(model.target.launch_us + WORTH * work.max(model.transfer(bytes)))
}

/// The type as it will be computed in, of known sizes.
fn at_hints(model: &CostModel<'_>, ty: &TensorType) -> TensorType {
    let sizes = ty.shape.iter().map(|dim| Dim::Const(dim.hint(model.symbols).max(1)));
    TensorType {
        dtype: model.computed(ty.dtype),
        shape: sizes.collect::<Shape>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{OptLevel, OptimizeOptions};
    use crate::testing::graph;
    use ir::{DType, Target};

    /// The microseconds of `[heads, length, width]`, with whether each query sees earlier keys alone.
    fn price(target: &str, [heads, length, width]: [i64; 3], causal: bool) -> f64 {
        let target: Target = target.parse().expect("known");
        let symbols = ir::Symbols::new();
        let model = CostModel {
            target: &target,
            symbols: &symbols,
            computed_in: None,
        };
        let ty = TensorType::new(DType::F16, vec![1, heads as usize, length as usize, width as usize]);
        let op = Op::Composite(Composite::Attention {
            scale: ir::Scalar::Float(1.0),
            causal,
            mask: false,
            scales: false,
        });
        attention(&model, &op, &[&ty, &ty, &ty], &ty).expect("a kernel with a prediction")
    }

    /// Prices beside the emulator's predictions for the kernels, within what a roofline may be off.
    #[test]
    fn the_price_is_near_to_what_the_timing_model_predicts() {
        for (target, shape, us) in [
            ("gfx90a", [16, 4096, 40], 499.0),
            ("gfx90a", [32, 2048, 64], 273.0),
            ("gfx90a", [32, 4096, 64], 1076.0),
            ("gfx90a", [32, 2048, 128], 531.0),
            ("gfx942", [16, 4096, 64], 196.0),
            ("gfx942", [16, 4096, 80], 259.0),
            ("gfx942", [32, 4096, 128], 620.0),
            ("gfx1100", [16, 4096, 40], 657.0),
            ("gfx1100", [16, 4096, 64], 825.0),
            ("gfx1100", [32, 2048, 128], 771.0),
        ] {
            let found = price(target, shape, false);
            assert!(
                (us / 2.0..us * 1.5).contains(&found),
                "{target} {shape:?}: {found} for {us}"
            );
            let half = price(target, shape, true);
            assert!(
                half < 0.6 * found,
                "{target} {shape:?}: {half} with a causal mask, {found} without"
            );
        }
    }

    /// Long attentions are chosen whole, spelled out or not.
    #[test]
    fn spelled_out_attention_is_whole_wherever_its_kernel_takes_less_time() {
        for target in ["gfx90a", "gfx942", "gfx1100", "gfx1201", "sm_90"] {
            for [heads, length, width] in [
                [16, 4096, 40],
                [16, 4096, 64],
                [32, 4096, 64],
                [16, 4096, 80],
                [32, 512, 128],
                [32, 2048, 128],
                [32, 4096, 128],
                [12, 197, 64],
            ] {
                let body = format!(
                    "q = input \"q\" : f16[1, {heads}, {length}, {width}]\nk = input \"k\" : f16[1, {heads}, {length}, {width}]\n\
                     v = input \"v\" : f16[1, {heads}, {length}, {width}]\na = contract q, k {{transpose_rhs}}\n\
                     h = constant 0.125 : f16[]\nc = mul a, h\nw = softmax c {{axis=3}}\ny = contract w, v\nreturn y as \"y\""
                );
                let options = OptimizeOptions {
                    libraries: false,
                    ..OptimizeOptions::at(OptLevel::O2)
                };
                let known: Target = target.parse().expect("known");
                let (core, _) = crate::optimize(graph(&body), &known, &options).expect("optimises");
                let whole = |op: &Op| matches!(op, Op::Composite(Composite::Attention { .. }));
                assert!(
                    core.nodes().values().any(|n| whole(&n.op)),
                    "{target}: {heads} heads of {width}, {length} keys\n{core}"
                );
            }
        }
    }
}
