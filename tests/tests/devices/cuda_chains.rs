//! Chains of products of one row on NVIDIA's GPU, whose launches overlap: as of `cuda_device`, skipped where there is
//! none.

use crate::cuda_device::{Cuda, cuda};
use graphc::ir::graph::eval;
use graphc::ir::{DType, Graph, HostTensor, Program, TensorType};
use graphc_tests::reference::Tensors;
use graphc_tests::{chain, quantised};

/// A launch that asks for its weights before the launch before is done reads that one's row, and no row before it: runs
/// of different inputs follow each other in the same memory, step by step and as graphs.
#[test]
fn rows_are_read_behind_early_weights() {
    let Some(cuda) = cuda() else { return };
    let mut random = quantised::Random(71);
    for (dtype, tolerance) in [(DType::F16, 4e-3), (DType::BF16, 3e-2), (DType::F32, 1e-5)] {
        let graph = chain::graph(dtype, None, &[2048, 2048, 4096, 2048, 2048, 3000, 2050], &mut random);
        let program = cuda.program(&graph, None);
        let count = program.variants[0].plan.overlap.reads_early.len();
        assert!(count >= 3, "{dtype}: {count}");
        runs(&cuda, &graph, program, tolerance, &mut random);
    }
}

/// The same of streamed weights, whose workgroups share units with those of the launch before: weights of the next
/// launch come into LDS while the one before multiplies.
#[test]
fn rows_are_read_behind_the_weights_of_shared_units() {
    let Some(cuda) = cuda() else { return };
    let mut random = quantised::Random(72);
    for (dtype, tolerance) in [(DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        for stored in [DType::I4, DType::U4] {
            let widths = [1024, 3072, 3072, 3072];
            let graph = chain::graph(dtype, Some(stored), &widths, &mut random);
            let program = cuda.program(&graph, None);
            let kernels = program.variants[0].plan.kernels.values();
            let shared = kernels
                .filter(|k| k.streams() && k.resident_workgroups() == Some(2))
                .count();
            assert!(shared >= 2, "{dtype} by {stored}: {shared}");
            runs(&cuda, &graph, program, tolerance, &mut random);
        }
    }
}

/// Runs a chain of random rows one after the other, and compares each with the reference.
fn runs(cuda: &Cuda, graph: &Graph, program: Program, tolerance: f64, random: &mut quantised::Random) {
    let TensorType { dtype, shape } = graph.ty(graph.inputs()[0].node.into());
    let width = shape[1].as_const().expect("a known width") as usize;
    let executable = cuda.load(program).expect("loads");
    for run in 0..16 {
        let x: Vec<f64> = (0..width).map(|_| random.below(2001) as f64 / 1000.0 - 1.0).collect();
        let x = HostTensor::from_f64(*dtype, vec![1, width], &x).expect("fits");
        let inputs = Tensors::from([("x".to_owned(), x)]);
        let got = executable.run(&inputs).expect("runs")["y"].to_f64();
        let want = eval::evaluate(graph, &inputs).expect("the reference evaluates")["y"].to_f64();
        let largest = want.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
        let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst <= tolerance * largest, "{dtype}, run {run}: {worst} of {largest}");
    }
}
