//! How attention is spread over a GPU: the order of its blocks of queries, fragments a wave, LDS that a launch gives.

use graphc::driver::{BuildOptions, build};
use graphc::passes::OptLevel;
use ir::dim::Bindings;
use ir::graph::parse::parse;
use ir::kernel::{FlashTiling, LaunchSize, Mapping, QueryPlace};

/// The tiling and the launch of an attention of `heads` by `[queries, keys, width]`.
fn attention(target: &str, heads: i64, [queries, keys, width]: [i64; 3], causal: bool) -> (FlashTiling, LaunchSize) {
    let causal = if causal { ", causal" } else { "" };
    let text = format!(
        "graph @g stage=import {{\n q = input \"q\" : f16[1, {heads}, {queries}, {width}]\n k = input \"k\" : f16[1, {heads}, {keys}, {width}]\n \
         v = input \"v\" : f16[1, {heads}, {keys}, {width}]\n y = attention q, k, v {{scale=0.125{causal}}}\n return y as \"y\"\n}}\n"
    );
    let graph = parse(&text).expect("parses");
    let options = BuildOptions::new(vec![target.parse().expect("known")], OptLevel::O2);
    let program = build(&graph, &options).expect("builds").program;
    let kernel = program.variants[0].plan.kernels.values().next().expect("a kernel");
    let Mapping::FlashMatrix(tiling) = &kernel.mapping else {
        panic!("{target} maps by {}", kernel.mapping)
    };
    let launch = kernel.launch_size(&Bindings::new()).expect("its sizes are known");
    (tiling.clone(), launch)
}

#[test]
fn blocks_of_causal_heads_come_together_while_the_cache_holds_their_keys() {
    let together = |target, heads, sizes, causal| attention(target, heads, sizes, causal).0.together.0;
    // Half a MiB of keys and values a head, two at 4096 keys.
    assert_eq!(together("gfx942", 32, [1024, 1024, 128], true), 32);
    assert_eq!(together("gfx90a", 32, [1024, 1024, 128], true), 8);
    assert_eq!(together("gfx90a", 32, [4096, 4096, 128], true), 2);
    assert_eq!(together("sm_90", 32, [4096, 4096, 128], true), 12);
    assert_eq!(together("gfx942", 256, [1024, 1024, 64], true), 64);
    // Without a mask a head's keys belong to a die.
    assert_eq!(together("gfx942", 32, [1024, 1024, 128], false), 8);
    assert_eq!(together("gfx90a", 32, [1024, 1024, 128], false), 1);
    assert_eq!(together("gfx942", 3, [1024, 1024, 128], false), 3);
}

#[test]
fn a_grid_is_the_blocks_of_all_heads() {
    for target in ["gfx90a", "gfx1100", "sm_90"] {
        let (tiling, launch) = attention(target, 12, [130, 70, 64], true);
        let blocks = 130_u32.div_ceil(tiling.queries());
        assert_eq!(launch.grid, [12 * blocks, 1, 1], "{target}");
    }
}

#[test]
fn long_sequences_take_two_fragments_a_wave_on_nvidia() {
    let (few, _) = attention("sm_90", 32, [128, 128, 64], false);
    assert_eq!(
        (few.fragments, few.queries_in, few.queries()),
        (1, QueryPlace::Registers, 64)
    );
    let (many, _) = attention("sm_90", 64, [4096, 4096, 64], false);
    assert_eq!(
        (many.fragments, many.queries_in, many.queries()),
        (2, QueryPlace::Lds, 128)
    );
    // Wide heads would spill, and have more LDS than a kernel declares.
    let (wide, launch) = attention("sm_90", 64, [4096, 4096, 128], false);
    assert_eq!((wide.fragments, wide.keys), (1, 64));
    assert_eq!(launch.lds, 2 * 64 * 2 * (128 + 128));
    let (wider, _) = attention("sm_90", 8, [512, 512, 192], true);
    assert_eq!((wider.queries_in, wider.keys), (QueryPlace::Lds, 32));
    let (other, launch) = attention("gfx90a", 64, [4096, 4096, 128], false);
    assert_eq!((other.fragments, launch.lds), (1, 0));
}
