//! What the tests that run hand-written kernels share: operands with the edges of their types, and how far results may
//! be off.

use ir::kernel::{Access, Body, Kernel};
use ir::{Bindings, DType, HostTensor, Symbol, SymbolInfo, Symbols};

/// Numbers that are the same every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Numbers of a type: small ones mostly, and now and then the ends of the range, which only casts and members are
    /// given.
    pub fn tensor(&mut self, dtype: DType, n: usize, wild: bool) -> HostTensor {
        let edges = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1e9,
            -1e9,
            500.0,
            0.5,
            -2.5,
            1e-7,
        ];
        if dtype.is_float() {
            let values: Vec<f64> = (0..n)
                .map(|i| match wild && i % 3 == 0 {
                    true => edges[(self.next() % edges.len() as u64) as usize],
                    false => (self.next() % 4001) as f64 / 1000.0 - 2.0,
                })
                .collect();
            return HostTensor::from_f64(dtype, [n], &values).unwrap();
        }
        let values: Vec<i64> = (0..n)
            .map(|i| match (dtype, wild && i % 3 == 0) {
                (DType::Bool, _) => (self.next() & 1) as i64,
                (_, true) => [i64::MIN, i64::MAX, 0, -1, 1, 127, -128][(self.next() % 7) as usize],
                _ => (self.next() % 11) as i64 - 5,
            })
            .collect();
        HostTensor::from_i64(dtype, [n], &values).unwrap()
    }
}

pub fn symbols() -> Symbols {
    [("rows", 3), ("seq", 45)]
        .map(|(name, hint)| {
            (
                Symbol::new(name),
                SymbolInfo {
                    min: 1,
                    max: None,
                    hint,
                },
            )
        })
        .into_iter()
        .collect()
}

/// How far results may be from exact: by the type stored, and by what the kernel accumulates in.
pub fn tolerance(kernel: &Kernel, dtype: DType) -> f64 {
    let name = kernel.name.as_str();
    match dtype {
        DType::F64 if !name.contains("f64") && !name.ends_with("float_1") => 1e-5,
        DType::F64 => 1e-6,
        DType::F32 => 2e-5,
        DType::F16 => 2e-3,
        DType::BF16 => 1e-2,
        DType::F8E4M3FN | DType::F8E4M3FNUZ => 0.13,
        DType::F8E5M2 | DType::F8E5M2FNUZ => 0.26,
        _ => 0.0,
    }
}

pub fn differ(kernel: &Kernel, param: &str, got: &HostTensor, want: &HostTensor) -> Option<String> {
    let describe = |i: usize, g: f64, w: f64| Some(format!("kernel {} {param}[{i}]: got {g}, want {w}", kernel.name));
    if !want.dtype.is_float() {
        let (got, want) = (got.to_i64(), want.to_i64());
        return (0..want.len())
            .find(|i| got[*i] != want[*i])
            .and_then(|i| describe(i, got[i] as f64, want[i] as f64));
    }
    let tolerance = tolerance(kernel, want.dtype);
    let (got, want) = (got.to_f64(), want.to_f64());
    let scale = scale(kernel, &want);
    (0..want.len())
        .find(|i| {
            let (g, w) = (got[*i], want[*i]);
            let same = g == w || (g.is_nan() && w.is_nan());
            // A NaN difference is one too.
            !same && ((g - w).abs().is_nan() || (g - w).abs() > tolerance * w.abs().max(scale))
        })
        .and_then(|i| describe(i, got[i], want[i]))
}

/// What errors are measured against, besides the result itself: sums are as exact as their largest terms.
pub fn scale(kernel: &Kernel, want: &[f64]) -> f64 {
    match &kernel.body {
        Body::Loops(_) | Body::Row(_) | Body::Window(_) | Body::Copy(_) if !kernel.name.starts_with("layer_norm") => {
            1e-3
        }
        _ => want.iter().filter(|w| w.is_finite()).fold(1e-3, |m, w| m.max(w.abs())),
    }
}

/// The operands of a kernel, in the order of its parameters.
pub fn operands(kernel: &Kernel, bindings: &Bindings, random: &mut Random) -> Vec<HostTensor> {
    let wild = ["cast", "unary", "binary", "folds"]
        .iter()
        .any(|n| kernel.name.starts_with(n));
    kernel
        .params
        .values()
        .map(|p| {
            let n = usize::try_from(p.elements.eval(bindings).unwrap()).unwrap();
            let tensor = random.tensor(p.dtype, n, wild && p.access == Access::Read);
            if !kernel.name.starts_with("folds") || !p.dtype.is_float() {
                return tensor;
            }
            // What is added between two numbers that cancel depends on the order.
            let values = tensor.to_f64().into_iter();
            let values: Vec<f64> = values
                .map(|v| if v <= -1e9 && v.is_finite() { -1.0 } else { v })
                .collect();
            HostTensor::from_f64(p.dtype, [n], &values).unwrap()
        })
        .collect()
}
