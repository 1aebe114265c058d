//! What transforms mean, and what is wrong with damaged ones.

use super::*;
use crate::data::HostTensor;
use crate::dim::{Bindings, Dim};
use crate::entity::{Entity, Table};
use crate::graph::op::BinaryOp;
use crate::kernel::bounds::unproven;
use crate::kernel::eval::evaluate;
use crate::kernel::verify::{KernelError, verify};
use crate::kernel::{Access, Axis, Body, Expr, Exprs, Kernel, Mapping, Param, ParamId};
use crate::types::{DType, Scalar};

/// `Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A` is the sum over the window.
#[test]
fn the_three_transforms_are_a_convolution() {
    for winograd in Winograd::ALL {
        let (n, m) = (winograd.inputs() as usize, winograd.outputs() as usize);
        let number = |at: usize| ((at * 37 + 11) % 19) as f64 / 4.0 - 2.0;
        let image: Vec<f64> = (0..n * n).map(number).collect();
        let filter: Vec<f64> = (0..9).map(|at| number(at + 5)).collect();
        let of = |side| TransformMatrix { winograd, side };
        let v = both_sides(of(TransformSide::Image).rows(), n, &image);
        let u = both_sides(winograd.filter(), 3, &filter);
        assert_eq!((u.len(), v.len()), (n * n, n * n));
        let products: Vec<f64> = u.iter().zip(&v).map(|(u, v)| u * v).collect();
        let y = both_sides(of(TransformSide::Result).rows(), n, &products);
        assert_eq!(y.len(), m * m);
        for (at, got) in y.iter().enumerate() {
            let taps = (0..9).map(|tap| image[(at / m + tap / 3) * n + at % m + tap % 3] * filter[tap]);
            let want: f64 = taps.sum();
            assert!((got - want).abs() < 1e-9, "{winograd:?} {at}: {got}, not {want}");
        }
    }
}

/// The pixels of one channel of an image of `size` by `size`, each the sum of a square of 1s' transform.
fn pixels(winograd: Winograd, size: i64) -> Kernel {
    let matrix = TransformMatrix {
        winograd,
        side: TransformSide::Result,
    };
    let tiles = (size + winograd.outputs() - 1) / winograd.outputs();
    let mut axes = Table::new();
    let mut axis = |name: &str, extent: i64| {
        axes.push(Axis {
            name: name.to_owned(),
            extent: Dim::Const(extent),
        })
    };
    let parallel = vec![axis("down", tiles), axis("across", tiles)];
    let from = [axis("r", matrix.inputs()), axis("s", matrix.inputs())];
    let to = [axis("i", matrix.outputs()), axis("j", matrix.outputs())];
    let mut exprs = Exprs::default();
    let number = |exprs: &mut Exprs, v: i64| exprs.add(Expr::Const(DType::I64, Scalar::Int(v)), DType::I64);
    let at = |exprs: &mut Exprs, axis: AxisId| exprs.add(Expr::Axis(axis), DType::I64);
    let binary = |exprs: &mut Exprs, op: BinaryOp, a: ExprId, b: ExprId| {
        let dtype = if op.is_comparison() {
            DType::Bool
        } else {
            exprs.dtype(a)
        };
        exprs.add(Expr::Binary(op, a, b), dtype)
    };
    // `x[(r · n + s) · tiles² + down · tiles + across]`, by Horner's rule.
    let mut index = at(&mut exprs, from[0]);
    for (axis, extent) in [(from[1], matrix.inputs()), (parallel[0], tiles), (parallel[1], tiles)] {
        let (by, next) = (number(&mut exprs, extent), at(&mut exprs, axis));
        let scaled = binary(&mut exprs, BinaryOp::Mul, index, by);
        index = binary(&mut exprs, BinaryOp::Add, scaled, next);
    }
    let x = ParamId::new(0);
    let element = exprs.add(Expr::Load { param: x, index }, DType::F32);
    let mut pixel = Vec::new();
    let end = number(&mut exprs, size);
    let mut inside = None;
    for (tile, within) in parallel.iter().zip(to) {
        let (by, tile, within) = (
            number(&mut exprs, winograd.outputs()),
            at(&mut exprs, *tile),
            at(&mut exprs, within),
        );
        let scaled = binary(&mut exprs, BinaryOp::Mul, tile, by);
        let p = binary(&mut exprs, BinaryOp::Add, scaled, within);
        let below = binary(&mut exprs, BinaryOp::Lt, p, end);
        inside = Some(inside.map_or(below, |i| binary(&mut exprs, BinaryOp::And, i, below)));
        pixel.push(p);
    }
    let row = binary(&mut exprs, BinaryOp::Mul, pixel[0], end);
    let index = binary(&mut exprs, BinaryOp::Add, row, pixel[1]);
    let mut vars = Table::new();
    let var = vars.push(DType::F32);
    let value = exprs.add(Expr::Var(var), DType::F32);
    let param = |name: &str, elements: i64, access| Param {
        name: name.to_owned(),
        dtype: DType::F32,
        elements: Dim::Const(elements),
        access,
    };
    let mut params = Table::new();
    params.push(param("x", winograd.products() * tiles * tiles, Access::Read));
    let out = params.push(param("y", size * size, Access::Write));
    Kernel {
        name: "pixels".to_owned(),
        params,
        symbols: Vec::new(),
        axes,
        exprs,
        vars,
        body: Body::Transform(TransformBody {
            parallel,
            from,
            to,
            matrix,
            element,
            within: None,
            var,
            inside,
            stmts: vec![Stmt::Store {
                param: out,
                index,
                value,
                axes: Vec::new(),
            }],
        }),
        mapping: Mapping::Threads { block: 64, vector: 1 },
        origins: Vec::new(),
    }
}

fn body(kernel: &mut Kernel) -> &mut TransformBody {
    match &mut kernel.body {
        Body::Transform(body) => body,
        _ => unreachable!("pixels are transforms"),
    }
}

#[test]
fn a_transform_stores_what_is_inside() {
    for winograd in Winograd::ALL {
        for size in [1, 3, 4, 6] {
            let kernel = pixels(winograd, size);
            verify(&kernel).unwrap();
            assert!(unproven(&kernel, &Bindings::new()).unwrap().is_empty());
            let tensor = |n: &Dim, value: f64| {
                let n = n.as_const().unwrap() as usize;
                HostTensor::from_f64(DType::F32, [n], &vec![value; n]).unwrap()
            };
            let mut buffers: Vec<HostTensor> = kernel.params.values().map(|p| tensor(&p.elements, 1.0)).collect();
            evaluate(&kernel, &mut buffers, &Bindings::new()).unwrap();
            // A row of `Aᵀ` adds up to what the 1s of a row give.
            let matrix = TransformMatrix {
                winograd,
                side: TransformSide::Result,
            };
            let sums: Vec<f64> = matrix
                .rows()
                .chunks_exact(matrix.inputs() as usize)
                .map(|row| row.iter().sum())
                .collect();
            for (at, got) in buffers[1].to_f64().iter().enumerate() {
                let (y, x) = (at / size as usize, at % size as usize);
                assert_eq!(
                    *got,
                    sums[y % sums.len()] * sums[x % sums.len()],
                    "{winograd:?} {size} {at}"
                );
            }
        }
    }
}

#[test]
fn a_transform_reads_well() {
    let text = pixels(Winograd::F2, 3).to_string();
    assert!(
        text.contains("result of F(2x2, 3x3) of x for r in 0..4, s in 0..4"),
        "{text}"
    );
    assert!(text.contains("each where "), "{text}");
}

/// Without the condition the squares at the edge reach over it.
#[test]
fn a_store_outside_is_found() {
    let mut kernel = pixels(Winograd::F4, 6);
    body(&mut kernel).inside = None;
    let found = unproven(&kernel, &Bindings::new()).unwrap();
    assert!(matches!(found.as_slice(), [one] if one.what == "store"), "{found:?}");
}

#[test]
fn damaged_transforms_are_errors() {
    let refused = |damage: &dyn Fn(&mut Kernel)| {
        let mut kernel = pixels(Winograd::F4, 6);
        damage(&mut kernel);
        verify(&kernel).expect_err("it is damaged").errors
    };
    let is_misfit = |errors: &[KernelError]| errors.iter().any(|e| matches!(e, KernelError::Transform { .. }));
    // A matrix of another size, axes that are something else's, statements that fold.
    assert!(is_misfit(&refused(&|k| body(k).matrix.winograd = Winograd::F2)));
    assert!(is_misfit(&refused(&|k| body(k).matrix.side = TransformSide::Image)));
    assert!(is_misfit(&refused(&|k| body(k).to = body(k).from)));
    assert!(is_misfit(&refused(&|k| k.vars[VarId::new(0)] = DType::F16)));
    assert!(is_misfit(&refused(&|k| {
        let Stmt::Store {
            param, index, value, ..
        } = body(k).stmts[0].clone()
        else {
            return;
        };
        let axes = Vec::new();
        body(k).stmts[0] = Stmt::Update {
            param,
            index,
            value,
            op: None,
            axes,
        };
    })));
    let bound = |errors: &[KernelError]| {
        let is = |e: &KernelError| matches!(e, KernelError::UnboundAxis { .. } | KernelError::Unassigned { .. });
        errors.iter().any(is)
    };
    // What is read does not depend on where it is stored, and a condition on neither is of another type.
    assert!(bound(&refused(&|k| body(k).within = body(k).inside)));
    assert!(bound(&refused(&|k| body(k).element = ExprId::new(k_value(k)))));
    let not_bool = refused(&|k| body(k).inside = Some(body(k).element));
    assert!(
        not_bool.iter().any(|e| matches!(e, KernelError::Type { .. })),
        "{not_bool:?}"
    );
    let dangling = refused(&|k| body(k).within = Some(ExprId::new(999)));
    assert!(
        matches!(dangling.as_slice(), [KernelError::Unknown { .. }]),
        "{dangling:?}"
    );
    for mapping in [
        Mapping::Threads { block: 64, vector: 4 },
        Mapping::Block { block: 64, vector: 1 },
    ] {
        let errors = refused(&|k| k.mapping = mapping.clone());
        assert!(
            errors.iter().any(|e| matches!(e, KernelError::Mapping { .. })),
            "{errors:?}"
        );
    }
}

/// The expression that is the variable's value.
fn k_value(kernel: &Kernel) -> usize {
    let is_var = |(_, e): &(ExprId, &Expr)| matches!(e, Expr::Var(_));
    kernel.exprs.iter().find(is_var).map_or(0, |(id, _)| id.index())
}
