//! Patches of an image, and pixels of sums of products: the launches around a convolution by Winograd's filtering.

use ir::kernel::{Body, ExprId, Kernel, Mapping, TransformBody, TransformMatrix, TransformSide, Winograd};
use ir::op::BinaryOp;

use super::{Build, F32};

/// Patches of an image of `size` by `size + 1` pixels with padding, or pixels of a result of that size with a residual.
fn transform(name: &str, matrix: TransformMatrix, size: i64, channels: i64, vector: u32) -> Kernel {
    let mut b = Build::new(name, Mapping::Threads { block: 64, vector });
    let (winograd, sizes) = (matrix.winograd, [size, size + 1]);
    let tiles = sizes.map(|size| (size + winograd.outputs() - 1) / winograd.outputs());
    let (pixels, squares) = (sizes[0] * sizes[1], tiles[0] * tiles[1]);
    let is_image = matrix.side == TransformSide::Image;
    let (image, scratch) = (pixels * channels, winograd.products() * squares * channels);
    let x = b.read("x", F32, if is_image { image } else { scratch });
    let residual = (!is_image).then(|| b.read("residual", F32, image));
    let out = b.write("out", F32, if is_image { scratch } else { image });
    let parallel = vec![
        b.axis("down", tiles[0]),
        b.axis("across", tiles[1]),
        b.axis("channel", channels),
    ];
    let from = [b.axis("i", matrix.inputs()), b.axis("j", matrix.inputs())];
    let to = [b.axis("r", matrix.outputs()), b.axis("s", matrix.outputs())];
    let (down, across, channel) = (b.at(parallel[0]), b.at(parallel[1]), b.at(parallel[2]));
    // Where an element of a square is in scratch memory, and where a pixel is, with the condition that it is there.
    let (number, pixel) = if is_image { (to, from) } else { (from, to) };
    let (r, s) = (b.at(number[0]), b.at(number[1]));
    let in_scratch = b.linear(&[
        (r, (winograd.inputs() * squares * channels).into()),
        (s, (squares * channels).into()),
        (down, (tiles[1] * channels).into()),
        (across, channels.into()),
        (channel, 1.into()),
    ]);
    let mut inside: Option<ExprId> = None;
    let mut at = Vec::new();
    for (tile, (axis, size)) in [down, across].into_iter().zip(pixel.into_iter().zip(sizes)) {
        let element = b.at(axis);
        let mut p = b.linear(&[(tile, winograd.outputs().into()), (element, 1.into())]);
        let (first, end, last) = (b.int(0), b.int(size), b.int(size - 1));
        if is_image {
            let pad = b.int(-1);
            p = b.bin(BinaryOp::Add, p, pad);
        }
        let (above, below) = (b.bin(BinaryOp::Ge, p, first), b.bin(BinaryOp::Lt, p, end));
        let both = b.bin(BinaryOp::And, above, below);
        inside = Some(inside.map_or(both, |i| b.bin(BinaryOp::And, i, both)));
        if is_image {
            p = b.bin(BinaryOp::Max, p, first);
            p = b.bin(BinaryOp::Min, p, last);
        }
        at.push(p);
    }
    let in_image = b.linear(&[
        (at[0], (sizes[1] * channels).into()),
        (at[1], channels.into()),
        (channel, 1.into()),
    ]);
    let element = b.load(x, if is_image { in_image } else { in_scratch });
    let var = b.var(F32);
    let mut value = b.value(var);
    if let Some(residual) = residual {
        let more = b.load(residual, in_image);
        value = b.bin(BinaryOp::Add, value, more);
    }
    let stmts = vec![b.store(out, if is_image { in_scratch } else { in_image }, value, &[])];
    let (within, inside) = if is_image { (inside, None) } else { (None, inside) };
    b.done(Body::Transform(TransformBody {
        parallel,
        from,
        to,
        matrix,
        element,
        within,
        var,
        inside,
        stmts,
    }))
}

/// Both sides of both algorithms.
pub fn all() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for winograd in Winograd::ALL {
        for (side, what) in [(TransformSide::Image, "patches"), (TransformSide::Result, "pixels")] {
            for (size, channels, vector) in [(5, 3, 1), (8, 4, 2), (1, 6, 1)] {
                let name = format!("{what}_{}_{size}", winograd.outputs());
                let matrix = TransformMatrix { winograd, side };
                kernels.push(transform(&name, matrix, size, channels, vector));
            }
        }
    }
    kernels
}
