//! Speed of the CPU device's kernels by themselves:
//! `cargo run --release -p graphc-runtime --example cpu_kernels [threads [level]]`.
//!
//! Prints the least of several times and GFLOP/s for the shapes of ResNet-50, SqueezeNet, MiniLM and BERT-base. `level`
//! is `avx512`, `avx2` or `portable`; the default is the processor's best.

use std::sync::Arc;
use std::time::Instant;

use graphc_runtime::cpu::kernels::attention::{Attention, HeadView, HeadViewMut, attention};
use graphc_runtime::cpu::kernels::conv::{Conv, ConvShape, ImageStrides, PackedConv, conv2d, winograd_pays};
use graphc_runtime::cpu::kernels::gemm::{
    Activation, Batch, Builtin, Elem, Gemm, Integers, MatMut, MatRef, PackedB, QuantisedB, Rhs, gemm,
};
use graphc_runtime::cpu::kernels::math::unary;
use graphc_runtime::cpu::kernels::rows::{Rows, layer_norm, softmax};
use graphc_runtime::cpu::kernels::{Isa, Level, Pool, Workspace};
use ir::op::UnaryOp;

/// Input height, channels, outputs, kernel, stride, padding, how often in the model, groups.
type ConvRow = (usize, usize, usize, usize, usize, usize, usize, usize);

const RESNET50: &[ConvRow] = &[
    (224, 3, 64, 7, 2, 3, 1, 1),
    (56, 64, 64, 1, 1, 0, 1, 1),
    (56, 64, 64, 3, 1, 1, 3, 1),
    (56, 64, 256, 1, 1, 0, 4, 1),
    (56, 256, 64, 1, 1, 0, 2, 1),
    (56, 256, 128, 1, 1, 0, 1, 1),
    (56, 128, 128, 3, 2, 1, 1, 1),
    (28, 128, 512, 1, 1, 0, 4, 1),
    (56, 256, 512, 1, 2, 0, 1, 1),
    (28, 512, 128, 1, 1, 0, 3, 1),
    (28, 128, 128, 3, 1, 1, 3, 1),
    (28, 512, 256, 1, 1, 0, 1, 1),
    (28, 256, 256, 3, 2, 1, 1, 1),
    (14, 256, 1024, 1, 1, 0, 6, 1),
    (28, 512, 1024, 1, 2, 0, 1, 1),
    (14, 1024, 256, 1, 1, 0, 5, 1),
    (14, 256, 256, 3, 1, 1, 5, 1),
    (14, 1024, 512, 1, 1, 0, 1, 1),
    (14, 512, 512, 3, 2, 1, 1, 1),
    (7, 512, 2048, 1, 1, 0, 3, 1),
    (14, 1024, 2048, 1, 2, 0, 1, 1),
    (7, 2048, 512, 1, 1, 0, 2, 1),
    (7, 512, 512, 3, 1, 1, 2, 1),
];

const SQUEEZENET: &[ConvRow] = &[
    (224, 3, 64, 3, 2, 0, 1, 1),
    (55, 64, 16, 1, 1, 0, 1, 1),
    (55, 16, 64, 1, 1, 0, 2, 1),
    (55, 16, 64, 3, 1, 1, 2, 1),
    (55, 128, 16, 1, 1, 0, 1, 1),
    (27, 128, 32, 1, 1, 0, 1, 1),
    (27, 32, 128, 1, 1, 0, 2, 1),
    (27, 32, 128, 3, 1, 1, 2, 1),
    (27, 256, 32, 1, 1, 0, 1, 1),
    (13, 256, 48, 1, 1, 0, 1, 1),
    (13, 48, 192, 1, 1, 0, 2, 1),
    (13, 48, 192, 3, 1, 1, 2, 1),
    (13, 384, 48, 1, 1, 0, 1, 1),
    (13, 384, 64, 1, 1, 0, 1, 1),
    (13, 64, 256, 1, 1, 0, 2, 1),
    (13, 64, 256, 3, 1, 1, 2, 1),
    (13, 512, 64, 1, 1, 0, 1, 1),
    (13, 512, 1000, 1, 1, 0, 1, 1),
];

const DEPTHWISE: &[ConvRow] = &[
    (112, 32, 32, 3, 1, 1, 1, 32),
    (56, 144, 144, 3, 2, 1, 1, 144),
    (14, 512, 512, 3, 1, 1, 1, 512),
];

fn noise(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1009) as f32 / 1009.0 - 0.5).collect()
}

/// The least time of `run` in seconds, over about `flops / 1e11` and at least 20 runs.
fn least(flops: f64, mut run: impl FnMut()) -> f64 {
    let runs = (4e10 / flops.max(1.0)).clamp(20.0, 2000.0) as usize;
    (0..runs).fold(f64::MAX, |best, _| {
        let start = Instant::now();
        run();
        best.min(start.elapsed().as_secs_f64())
    })
}

fn report(name: &str, flops: f64, seconds: f64) {
    println!(
        "{name:<44} {:>10.1} us {:>8.0} GFLOP/s",
        seconds * 1e6,
        flops / seconds / 1e9
    );
}

fn gemms(ws: &mut Workspace) {
    for (m, k, n) in [
        (128, 768, 768),
        (128, 768, 3072),
        (128, 3072, 768),
        (128, 384, 384),
        (128, 384, 1536),
        (128, 1536, 384),
        (1024, 1024, 1024),
        (512, 49, 4608),
        (49, 4608, 512),
        (1, 2048, 1000),
        (1, 4096, 4096),
        (4, 4096, 4096),
        (64, 4096, 4096),
    ] {
        let (a, b) = (noise(m * k), noise(k * n));
        let mut c = vec![0.0f32; m * n];
        let packed = PackedB::dense(ws.isa(), k, n, &b).expect("memory");
        let bytes: Vec<u8> = (0..n * k).map(|i| (i * 31 % 251) as u8).collect();
        let quantised = |bits: u32| {
            let integers = Integers {
                bytes: &bytes,
                bits,
                signed: true,
                float: None,
                base: 0,
                row: 1,
                col: k as i64,
            };
            QuantisedB::new(None, ws.isa(), [k, n, 128], &integers, |_, _| (0.01, 0.0)).expect("memory")
        };
        let (nibbles, words) = (quantised(4), quantised(8));
        let flops = 2.0 * (m * n * k) as f64;
        for (how, b) in [
            ("packed", Rhs::Packed(&packed)),
            ("plain B", Rhs::Strided(MatRef::dense(&b, n))),
            ("int8 in 128s", Rhs::Quantised(&words)),
            ("int4 in 128s", Rhs::Quantised(&nibbles)),
        ] {
            let product = Gemm {
                batch: 1,
                m,
                n,
                k,
                a: MatRef::dense(&a, k),
                b,
                c: MatMut {
                    ptr: c.as_mut_ptr().cast(),
                    elem: Elem::F32,
                    row_stride: n as isize,
                    col_stride: 1,
                    batch: Batch::Stride(0),
                },
                builtin: Builtin::default(),
                epilogue: None,
            };
            // SAFETY: the operands are vectors of these sizes.
            let seconds = least(flops, || unsafe { gemm(ws, &product) });
            report(&format!("gemm {m}x{k}x{n} {how}"), flops, seconds);
        }
    }
}

fn convs(ws: &mut Workspace, model: &str, rows: &[ConvRow]) {
    let (mut all_flops, mut all_seconds) = (0.0, 0.0);
    for &(h, c, o, k, stride, pad, times, groups) in rows {
        let shape = ConvShape::new([1, h, h, c], o, [k, k], [stride; 2], [pad; 4], [1, 1], groups);
        let (x, w, bias) = (noise(h * h * c), noise(o * c / groups * k * k), noise(o));
        let mut y = vec![0.0f32; shape.out_h * shape.out_w * o];
        let direct = PackedConv::new(ws.isa(), &w, o, c / groups, [k, k], groups).expect("memory");
        let winograd = winograd_pays(&shape).then(|| PackedConv::winograd(ws.isa(), &w, o, c).expect("memory"));
        let conv = Conv {
            shape,
            input: x.as_ptr().cast(),
            input_elem: Elem::F32,
            // A model's image arrives as NCHW.
            input_strides: if c == 3 {
                ImageStrides::nchw(h, h, c)
            } else {
                ImageStrides::nhwc(h, h, c)
            },
            weights: &direct,
            output: y.as_mut_ptr().cast(),
            output_elem: Elem::F32,
            output_strides: ImageStrides::nhwc(shape.out_h, shape.out_w, o),
            output_group: None,
            builtin: Builtin {
                bias: Some(&bias),
                activation: Activation::Relu,
                ..Default::default()
            },
            epilogue: None,
        };
        let flops = 2.0 * (shape.out_h * shape.out_w * o * (c / groups) * k * k) as f64;
        let name = format!("conv {h}x{h} {c}->{o} k{k} s{stride} g{groups} x{times}");
        // SAFETY: the operands are vectors of the shape's sizes.
        let mut seconds = least(flops, || unsafe { conv2d(ws, &conv) });
        report(&name, flops, seconds);
        if let Some(weights) = &winograd {
            let conv = Conv { weights, ..conv };
            // SAFETY: as above.
            let other = least(flops, || unsafe { conv2d(ws, &conv) });
            report(&format!("{name} Winograd"), flops, other);
            seconds = seconds.min(other);
        }
        all_flops += flops * times as f64;
        all_seconds += seconds * times as f64;
    }
    report(
        &format!("{model}: all convolutions, the faster way each"),
        all_flops,
        all_seconds,
    );
}

fn attentions(ws: &mut Workspace) {
    for (heads, s, d) in [(12, 128, 64), (12, 128, 32), (12, 1024, 64)] {
        let len = heads * s * d;
        let (q, k, v) = (noise(len), noise(len), noise(len));
        let mut o = vec![0.0f32; len];
        let view = |x: &[f32]| HeadView {
            ptr: x.as_ptr().cast(),
            elem: Elem::F32,
            batch_stride: len as isize,
            seq_stride: (heads * d) as isize,
            head_stride: d as isize,
            d_stride: 1,
        };
        let a = Attention {
            batch: 1,
            heads,
            kv_heads: heads,
            q_len: s,
            kv_len: s,
            d,
            d_v: d,
            q: view(&q),
            k: view(&k),
            v: view(&v),
            o: HeadViewMut {
                ptr: o.as_mut_ptr().cast(),
                elem: Elem::F32,
                batch_stride: len as isize,
                seq_stride: (heads * d) as isize,
                head_stride: d as isize,
                d_stride: 1,
            },
            scale: 1.0 / (d as f32).sqrt(),
            mask: None,
            bool_mask: None,
            causal: None,
        };
        let flops = 4.0 * (heads * s * s * d) as f64;
        // SAFETY: the views are of the vectors' sizes.
        let seconds = least(flops, || unsafe { attention(ws, &a) });
        report(&format!("attention {heads}x{s}x{d}"), flops, seconds);
    }
}

fn elementwise(ws: &mut Workspace) {
    let src = noise(1024);
    let mut dst = vec![0.0f32; 1024];
    for op in [
        UnaryOp::Exp,
        UnaryOp::Log,
        UnaryOp::Tanh,
        UnaryOp::Sigmoid,
        UnaryOp::Erf,
        UnaryOp::Gelu,
        UnaryOp::GeluTanh,
        UnaryOp::Silu,
        UnaryOp::Sin,
    ] {
        let seconds = least(1024.0, || unary(ws.isa(), op, &mut dst, &src));
        println!(
            "{:<44} {:>10.3} ns/value",
            format!("{op:?}, block of 1024"),
            seconds * 1e9 / 1024.0
        );
    }
    let (rows, cols) = (128, 768);
    let src = noise(rows * cols);
    let mut dst = vec![0.0f32; rows * cols];
    let (gamma, beta) = (noise(cols), noise(cols));
    let shape = Rows::dense(rows, cols);
    let (to, from) = (dst.as_mut_ptr(), src.as_ptr());
    // SAFETY: dense rows.
    let norm = least(1e6, || unsafe {
        layer_norm(ws, to, from, shape, Some(&gamma), Some(&beta), 1e-5)
    });
    // SAFETY: dense rows.
    let soft = least(1e6, || unsafe { softmax(ws, to, from, shape) });
    println!("{:<44} {:>10.1} us", "layer norm 128x768", norm * 1e6);
    println!("{:<44} {:>10.1} us", "softmax 128x768", soft * 1e6);
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let isa = match args.next().as_deref() {
        Some("portable") => Isa::at_most(Level::Portable),
        Some("avx2") => Isa::at_most(Level::Avx2),
        _ => Isa::detect(),
    };
    let mut ws = Workspace::with_isa(Arc::new(Pool::new(threads)), isa);
    println!("{:?}, {} threads", isa.level(), ws.threads());
    gemms(&mut ws);
    attentions(&mut ws);
    elementwise(&mut ws);
    convs(&mut ws, "ResNet-50", RESNET50);
    convs(&mut ws, "SqueezeNet", SQUEEZENET);
    convs(&mut ws, "depthwise", DEPTHWISE);
}
