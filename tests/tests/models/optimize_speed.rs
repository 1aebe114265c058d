//! Optimisation takes time linear in the graph.

use std::time::Instant;

use ir::op::{Contract, UnaryOp};
use ir::{DType, Dim, Graph, HostTensor, Op, Origin, Target, TensorType, Value};
use passes::{OptimizeOptions, optimize};

/// A chain of linear layers with decomposed GELUs: 13 nodes a layer.
fn generated(nodes: usize) -> Graph {
    let mut g = Graph::new("generated");
    let at = Origin::Unknown;
    let mut x = g.add_input(
        "x",
        TensorType::new(DType::F32, vec![Dim::symbol("batch"), Dim::from(16)]),
        at.clone(),
    );
    let add = |g: &mut Graph, op: Op, operands: &[Value]| Value::from(g.add(op, operands, Origin::Unknown).unwrap());
    let binary = |op| Op::binary(op);
    use ir::op::BinaryOp::{Add, Div, Mul};
    let mut layer = 0u32;
    while g.nodes().len() < nodes {
        layer += 1;
        let weights: Vec<f32> = (0..256).map(|i| ((i * 7 + layer) % 13) as f32 * 0.01).collect();
        let w = g.add_constant(None, HostTensor::from_f32([16, 16], &weights).unwrap(), at.clone());
        let contract = Contract {
            transpose_lhs: false,
            transpose_rhs: false,
            out: DType::F32,
        };
        let h = add(&mut g, Op::Contract(contract), &[x, w]);
        let scalar = |g: &mut Graph, v| g.add_scalar(DType::F32, ir::types::Scalar::Float(v), Origin::Unknown);
        let root = scalar(&mut g, std::f64::consts::SQRT_2);
        let one = scalar(&mut g, 1.0);
        let half = scalar(&mut g, 0.5);
        let r = add(&mut g, binary(Div), &[h, root]);
        let e = add(&mut g, Op::unary(UnaryOp::Erf), &[r]);
        let s = add(&mut g, binary(Add), &[e, one]);
        let m = add(&mut g, binary(Mul), &[h, s]);
        let y = add(&mut g, binary(Mul), &[m, half]);
        x = add(&mut g, binary(Add), &[x, y]);
    }
    g.add_output("y", x);
    g
}

#[test]
fn time_grows_no_worse_than_n_log_n() {
    let mut times = Vec::new();
    for n in [1_000usize, 3_000, 10_000, 30_000] {
        let graph = generated(n);
        let options = OptimizeOptions {
            verify: false,
            ..OptimizeOptions::default()
        };
        let start = Instant::now();
        let (out, report) = optimize(graph, &Target::cpu(), &options).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        let gelus = out
            .nodes()
            .values()
            .filter(|n| n.op == Op::unary(UnaryOp::Gelu))
            .count();
        assert_eq!(gelus, report.count("gelu_erf"), "every fired rule is in the graph");
        assert!(gelus * 13 >= n, "{n}: only {gelus} activations were recognised");
        times.push((n, seconds, report));
    }
    for window in times.windows(2) {
        let [(n0, t0, _), (n1, t1, report)] = window else {
            continue;
        };
        let log = |n: &usize| (*n as f64) * (*n as f64).ln();
        let allowed = log(n1) / log(n0) * 2.5;
        let passes: Vec<_> = report
            .passes
            .iter()
            .map(|p| format!("{} {:.3}", p.pass, p.seconds))
            .collect();
        assert!(t1 / t0 < allowed, "{n0}: {t0:.3} s, {n1}: {t1:.3} s; passes {passes:?}");
    }
    println!("{:?}", times.iter().map(|(n, t, _)| (n, t)).collect::<Vec<_>>());
}
