//! Convolutions with a filter for each channel, by strips: rows and columns that are cut short, vectors of channels,
//! groups along rows.

use ir::kernel::{Body, ExprId, Kernel, Loops, Mapping, Stmt, Strips, WindowAxis, WindowBody, WindowFold};
use ir::op::{BinaryOp, ReduceOp};
use ir::{DType, Scalar};

use super::{Build, F32};

/// How windows move: alike along both axes.
#[derive(Clone, Copy)]
struct Moves {
    taps: i64,
    stride: i64,
    dilation: i64,
    pad: i64,
}

/// A convolution of one image of `size`, each of whose channels has a filter.
fn depthwise(
    name: &str,
    dtype: DType,
    last: bool,
    size: [i64; 2],
    channels: i64,
    moves: Moves,
    strips: Strips,
) -> Kernel {
    let mut b = Build::new(name, Mapping::Strips(strips));
    let Moves {
        taps,
        stride,
        dilation,
        pad,
    } = moves;
    let outputs = size.map(|n| (n + 2 * pad - (taps - 1) * dilation - 1) / stride + 1);
    let x = b.read("x", dtype, size[0] * size[1] * channels);
    let filter = b.read("filter", dtype, taps * taps * channels);
    let out = b.write("out", dtype, outputs[0] * outputs[1] * channels);
    let [y_axis, x_axis] = [b.axis("y", outputs[0]), b.axis("x", outputs[1])];
    let channel = b.axis("c", channels);
    let window = [b.axis("ky", taps), b.axis("kx", taps)];
    let at: Vec<ExprId> = [y_axis, x_axis, channel, window[0], window[1]]
        .map(|a| b.at(a))
        .to_vec();
    let (minus, zero) = (b.int(-pad), b.int(0));
    let (mut guard, mut positions) = (None, Vec::new());
    for s in 0..2 {
        let p = b.linear(&[(at[s], stride.into()), (at[3 + s], dilation.into())]);
        let p = b.bin(BinaryOp::Add, p, minus);
        let end = b.int(size[s]);
        let (low, high) = (b.bin(BinaryOp::Ge, p, zero), b.bin(BinaryOp::Lt, p, end));
        let both = b.bin(BinaryOp::And, low, high);
        guard = Some(guard.map_or(both, |g| b.bin(BinaryOp::And, g, both)));
        positions.push(p);
    }
    let place = |b: &mut Build, y: ExprId, x: ExprId, [height, width]: [i64; 2]| match last {
        true => b.linear(&[(y, (width * channels).into()), (x, channels.into()), (at[2], 1.into())]),
        false => b.linear(&[(at[2], (height * width).into()), (y, width.into()), (x, 1.into())]),
    };
    let index = place(&mut b, positions[0], positions[1], size);
    let element = b.load_wide(x, index);
    let sum_type = b.kernel.exprs.dtype(element).product_accumulator(dtype);
    let element = b.cast(sum_type, element);
    let of_tap = b.linear(&[
        (at[3], (taps * channels).into()),
        (at[4], channels.into()),
        (at[2], 1.into()),
    ]);
    let weight = b.load_wide(filter, of_tap);
    let weight = b.cast(sum_type, weight);
    let outside = if sum_type == F32 {
        Scalar::Float(0.0)
    } else {
        Scalar::Int(3)
    };
    let fill = b.kernel.exprs.add(ir::kernel::Expr::Const(sum_type, outside), sum_type);
    let guarded = b.select(guard.expect("two axes"), element, fill);
    let product = b.bin(BinaryOp::Mul, guarded, weight);
    let var = b.var(sum_type);
    let sum = b.value(var);
    let stored = place(&mut b, at[0], at[1], outputs);
    let stmts = vec![
        Stmt::Fold {
            var,
            op: ReduceOp::Sum,
            axes: window.to_vec(),
            value: product,
        },
        b.store(out, stored, sum, &[]),
    ];
    let parallel = match last {
        true => vec![y_axis, x_axis, channel],
        false => vec![channel, y_axis, x_axis],
    };
    let along = [(y_axis, window[0], size[0]), (x_axis, window[1], size[1])].map(|(outputs, taps, size)| WindowAxis {
        taps: Some(taps),
        outputs: Some(outputs),
        stride,
        dilation,
        pad_low: pad,
        pad_high: pad,
        size: size.into(),
        guarded: [true; 2],
        beyond: false,
    });
    b.done(Body::Window(WindowBody {
        loops: Loops { parallel, stmts },
        fold: WindowFold::Weighted { weight, outside },
        along: along.to_vec(),
        element,
        counts: false,
        images: None,
    }))
}

/// Strips of every kind.
pub fn all() -> Vec<Kernel> {
    let strips = |rows, columns, vector, read| Strips {
        block: 64,
        rows,
        columns,
        vector,
        read,
        resident: None,
    };
    let moves = |taps, stride, dilation, pad| Moves {
        taps,
        stride,
        dilation,
        pad,
    };
    vec![
        depthwise(
            "strips_last",
            DType::F16,
            true,
            [7, 9],
            8,
            moves(3, 1, 1, 1),
            strips(2, 4, 4, 1),
        ),
        depthwise(
            "strips_strided",
            F32,
            true,
            [9, 8],
            6,
            moves(3, 2, 1, 1),
            strips(3, 2, 2, 1),
        ),
        depthwise(
            "strips_dilated",
            DType::BF16,
            true,
            [10, 11],
            3,
            moves(3, 1, 2, 2),
            strips(1, 3, 1, 1),
        ),
        depthwise(
            "strips_first",
            DType::F16,
            false,
            [6, 8],
            3,
            moves(3, 1, 1, 1),
            strips(2, 8, 1, 8),
        ),
        depthwise(
            "strips_first_strided",
            F32,
            false,
            [7, 12],
            2,
            moves(5, 2, 1, 2),
            strips(1, 2, 1, 4),
        ),
        depthwise(
            "strips_bytes",
            DType::I8,
            true,
            [5, 6],
            16,
            moves(3, 1, 1, 1),
            strips(2, 2, 8, 1),
        ),
    ]
}
