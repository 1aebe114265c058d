//! What the benches share: generated graphs, predicted times, memory of the process, medians.

pub mod predict;

use graphc::ir::op::{BinaryOp, Composite, Contract, UnaryOp};
use graphc::ir::{DType, Graph, HostTensor, Op, Origin, Scalar, TensorType, Value};

/// Returns the median; the mean of the middle two of an even number.
pub fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    let n = times.len();
    match n {
        0 => f64::NAN,
        _ if n % 2 == 1 => times[n / 2],
        _ => (times[n / 2 - 1] + times[n / 2]) / 2.0,
    }
}

/// Returns the most memory the process has had, in bytes (Linux); 0 where that cannot be read.
pub fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// Makes a graph of about `nodes` nodes: transformer-like layers in decomposed spelling (LayerNorm and GELU from their
/// parts), so that recognition, fusion and planning all have work in every layer.
///
/// # Panics
/// Never: every node is well typed.
pub fn layers(nodes: usize) -> Graph {
    const WIDTH: usize = 16;
    let mut g = Graph::new("layers");
    let at = || Origin::Named("layer".into());
    let mut x = g.add_input("x", TensorType::new(DType::F32, [8i64, WIDTH as i64]), at());
    let mut layer = 0u32;
    while g.nodes().len() < nodes {
        layer += 1;
        let constant = |g: &mut Graph, shape: &[usize]| {
            let n: usize = shape.iter().product();
            let values: Vec<f32> = (0..n)
                .map(|i| ((i as u32 * 31 + layer * 17) % 97) as f32 / 97.0 - 0.5)
                .collect();
            let tensor = HostTensor::from_f32(shape, &values).expect("as many values as the shape has");
            g.add_constant(None, tensor, at())
        };
        let scalar = |g: &mut Graph, v: f64| g.add_scalar(DType::F32, Scalar::Float(v), at());
        let add = |g: &mut Graph, op: Op, operands: &[Value]| -> Value {
            g.add(op, operands, at()).expect("well typed").into()
        };
        // (x − mean) / √(mean((x − mean)²) + ε) · scale + bias
        let mean = Op::Reduce {
            op: graphc::ir::op::ReduceOp::Mean,
            axes: vec![1],
            keep_dims: true,
        };
        let m = add(&mut g, mean.clone(), &[x]);
        let centred = add(&mut g, Op::binary(BinaryOp::Sub), &[x, m]);
        let square = add(&mut g, Op::binary(BinaryOp::Mul), &[centred, centred]);
        let variance = add(&mut g, mean, &[square]);
        let epsilon = scalar(&mut g, 1e-5);
        let shifted = add(&mut g, Op::binary(BinaryOp::Add), &[variance, epsilon]);
        let deviation = add(&mut g, Op::unary(UnaryOp::Sqrt), &[shifted]);
        let normal = add(&mut g, Op::binary(BinaryOp::Div), &[centred, deviation]);
        let (scale, bias) = (constant(&mut g, &[WIDTH]), constant(&mut g, &[WIDTH]));
        let scaled = add(&mut g, Op::binary(BinaryOp::Mul), &[normal, scale]);
        let h = add(&mut g, Op::binary(BinaryOp::Add), &[scaled, bias]);
        let contract = Op::Contract(Contract {
            transpose_lhs: false,
            transpose_rhs: false,
            out: DType::F32,
        });
        let (w, b) = (constant(&mut g, &[WIDTH, WIDTH]), constant(&mut g, &[WIDTH]));
        let h = add(&mut g, contract.clone(), &[h, w]);
        let h = add(&mut g, Op::binary(BinaryOp::Add), &[h, b]);
        // h/2 · (1 + erf(h/√2))
        let root = scalar(&mut g, std::f64::consts::SQRT_2);
        let e = add(&mut g, Op::binary(BinaryOp::Div), &[h, root]);
        let e = add(&mut g, Op::unary(UnaryOp::Erf), &[e]);
        let one = scalar(&mut g, 1.0);
        let e = add(&mut g, Op::binary(BinaryOp::Add), &[e, one]);
        let e = add(&mut g, Op::binary(BinaryOp::Mul), &[h, e]);
        let half = scalar(&mut g, 0.5);
        let e = add(&mut g, Op::binary(BinaryOp::Mul), &[e, half]);
        let w = constant(&mut g, &[WIDTH, WIDTH]);
        let e = add(&mut g, contract, &[e, w]);
        let s = add(&mut g, Op::Composite(Composite::Softmax { axis: 1 }), &[e]);
        x = add(&mut g, Op::binary(BinaryOp::Add), &[x, s]);
    }
    g.add_output("y", x);
    g
}
