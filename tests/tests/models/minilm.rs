//! all-MiniLM-L6-v2 in the DSL, with its real weights, against PyTorch's outputs; and how it fuses, with random ones.

use std::path::PathBuf;

use examples::models::minilm::{Config, MiniLm};
use graphc::driver::{BuildOptions, build};
use graphc::frontend::nn::Params;
use graphc::frontend::weights::Weights;
use graphc::ir::op::{Composite, Op};
use graphc::passes::OptLevel;
use graphc::session::{Session, SessionOptions};
use graphc_tests::{data, repository};

fn weights() -> Option<PathBuf> {
    let folder = std::env::var_os("GRAPHC_MINILM").map_or_else(|| repository("target/minilm"), PathBuf::from);
    let file = folder.join("model.safetensors");
    if file.is_file() {
        return Some(file);
    }
    println!(
        "skipped: no MiniLM weights in {}; scripts/fetch-minilm.sh fetches them",
        folder.display()
    );
    None
}

#[test]
fn outputs_match_pytorch_at_both_sizes_from_one_compile() {
    let Some(file) = weights() else { return };
    let params = Params::new(Weights::open(file).expect("safetensors"));
    let graph = MiniLm::load(&params, Config::default())
        .expect("MiniLM's weights")
        .graph()
        .expect("records");
    let session = Session::compile(graph, &SessionOptions::default()).expect("compiles");
    for size in ["batch", "single"] {
        let inputs = graphc::arrays::read(&data(&format!("minilm/{size}.in.npz"))).expect("inputs");
        let want = graphc::arrays::read(&data(&format!("minilm/{size}.out.npz"))).expect("outputs");
        let got = session.run_map(&inputs).expect("runs");
        // The states of padding are computed too, and compared.
        for name in ["last_hidden_state", "embeddings"] {
            let d = graphc::compare::compare(&got[name], &want[name], 0.0, 1e-4).expect("same shape");
            assert!(d.is_within(), "{size} {name}: {d:?}");
        }
    }
}

/// Attention is one region, Q/K/V are one contraction, and the whole is at most 50 launches and calls on every target.
#[test]
fn six_layers_take_at_most_fifty_launches() {
    let graph = MiniLm::load(&Params::random(1), Config::default())
        .expect("random weights")
        .graph()
        .expect("records");
    for target in ["cpu", "gfx90a", "gfx942", "gfx1100"] {
        let options = BuildOptions::new(vec![target.parse().expect("a target")], OptLevel::O2);
        let built = build(&graph, &options).expect("builds");
        // Where indices are checked (here the CPU), each of the two embeddings has one small kernel that does it.
        let plan = &built.program.variants[0].plan;
        let checks = plan.conditions().len();
        assert_eq!(checks, if target == "cpu" { 2 } else { 0 }, "{target}");
        let (launches, calls) = plan.launches();
        assert!(
            launches - checks + calls <= 50,
            "{target}: {launches} launches and {calls} calls"
        );
        let core = &built.reports[0].core;
        let count = |f: fn(&Op) -> bool| core.nodes().values().filter(|n| f(&n.op)).count();
        assert_eq!(
            count(|op| matches!(op, Op::Composite(Composite::Attention { .. }))),
            6,
            "{target}"
        );
        // Q/K/V together, the output projection, up and down.
        let products = count(|op| matches!(op, Op::Contract(_) | Op::Call(_)));
        assert_eq!(products, 6 * 4, "{target}");
    }
}
