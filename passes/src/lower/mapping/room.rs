//! Mappings of random kernels against what every target has room for.

use ir::kernel::{Kernel, Mapping, limits, verify};
use ir::target::TARGETS;
use ir::{Graph, Target};

use crate::options::{OptLevel, OptimizeOptions};
use crate::testing_kernels::{Random, text_of_graph};
use crate::{PlanOptions, ScheduleOptions};

/// `GRAPHC_CASES`, how many graphs are made.
fn cases() -> usize {
    let asked = std::env::var("GRAPHC_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(60)
}

/// The kernels of a graph for a target.
fn kernels(graph: Graph, target: &Target) -> Result<Vec<Kernel>, String> {
    let options = OptimizeOptions {
        libraries: false,
        ..OptimizeOptions::at(OptLevel::O2)
    };
    let (core, _) = crate::optimize(graph, target, &options).map_err(|e| e.to_string())?;
    let (schedule, _) = crate::schedule(&core, target, &ScheduleOptions::default()).map_err(|e| e.to_string())?;
    let plan = crate::plan(&core, &schedule, target, &PlanOptions::default()).map_err(|e| e.to_string())?;
    Ok(plan.kernels.values().cloned().collect())
}

#[test]
fn random_kernels_have_room_on_every_target() {
    let mut random = Random(46);
    let (mut all, mut several, mut wrong) = (0, 0, Vec::new());
    for case in 0..cases() {
        let text = text_of_graph(&mut random);
        let graph = ir::graph::parse::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        for row in TARGETS.iter().filter(|t| t.is_gpu()) {
            let target: Target = row.name.parse().expect("a target of the table");
            let kernels = match kernels(graph.clone(), &target) {
                Ok(kernels) => kernels,
                Err(error) => {
                    wrong.push(format!("case {case}, {target}: {error}\n{text}"));
                    continue;
                }
            };
            for kernel in &kernels {
                let tiles = matches!(&kernel.mapping, Mapping::Transpose { tiled, .. } if tiled.len() > 3);
                (all, several) = (all + 1, several + usize::from(tiles));
                let known =
                    verify::verify(kernel).is_ok() && limits::check(kernel, graph.symbols(), &target).is_empty();
                if !known {
                    wrong.push(format!(
                        "case {case}, {target}: {} by {}\n{text}",
                        kernel.name, kernel.mapping
                    ));
                }
            }
        }
    }
    println!("{all} kernels, {several} with four tiles or more");
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
    assert!(several > 0, "no kernel has several tiles");
}

/// A sum of upsampled images, as high-resolution networks fuse their branches: nine tiles of 8 KiB were asked for at
/// once.
#[test]
fn many_tiles_are_smaller_ones() {
    let mut text =
        "graph @fused stage=import {\n  at = iota {axis=0} : i64[56]\n  two = constant 2 : i64[]\n".to_owned();
    text += "  half = div at, two\n";
    for i in 0..9 {
        // All but the first are of half the size.
        let size = if i == 0 { 56 } else { 28 };
        text += &format!("  x{i} = input \"x{i}\" : f16[8, {size}, {size}, 64]\n");
        text += &format!("  p{i} = transpose x{i} {{perm=[0, 3, 1, 2]}}\n");
        text += &match i {
            0 => format!("  t{i} = relu p{i}\n"),
            _ => format!("  u{i} = take p{i}, half {{axis=2}}\n  t{i} = take u{i}, half {{axis=3}}\n"),
        };
    }
    text += "  s1 = add t0, t1\n";
    for i in 2..9 {
        text += &format!("  s{i} = add s{}, t{i}\n", i - 1);
    }
    text += "  y = relu s8\n  return y as \"y\"\n}\n";
    for name in ["sm_90", "gfx90a", "gfx1100"] {
        let target: Target = name.parse().expect("known");
        let graph = ir::graph::parse::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let kernels = kernels(graph, &target).unwrap_or_else(|e| panic!("{name}: {e}"));
        let [kernel] = &kernels[..] else {
            panic!("{} kernels", kernels.len())
        };
        let Mapping::Transpose { tiled, along, .. } = &kernel.mapping else {
            panic!("{name}: {}", kernel.mapping)
        };
        assert_eq!((tiled.len(), *along), (9, 16), "{name}: {}", kernel.mapping);
        assert!(
            kernel.lds_bytes(target.wave_size) <= u64::from(target.lds_bytes),
            "{name}"
        );
    }
}
