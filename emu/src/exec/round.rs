//! Directed rounding of the basic operations, for a MODE other than round-to-nearest.

/// Which operation it is, where its rounding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arith {
    Add,
    Sub,
    SubRev,
    Mul,
    Fma,
    /// The mode does not change the result (or the instruction fixes its own rounding).
    Other,
}

/// Moves `near`, the value rounded to nearest, to the side that `mode` asks for, given the sign of
/// (exact - near). Modes: 1 up, 2 down, 3 towards zero.
fn direct32(near: f32, error: f64, mode: u8) -> f32 {
    if error == 0.0 || near.is_nan() || near.is_infinite() && error.is_nan() {
        return near;
    }
    if near.is_infinite() {
        // Overflow: directed modes stop at the largest finite value on the far side.
        let keeps = matches!((mode, near > 0.0), (1, true) | (2, false));
        return if keeps { near } else { f32::MAX.copysign(near) };
    }
    match mode {
        1 if error > 0.0 => near.next_up(),
        2 if error < 0.0 => near.next_down(),
        3 if near > 0.0 && error < 0.0 => near.next_down(),
        3 if near < 0.0 && error > 0.0 => near.next_up(),
        3 if near == 0.0 => near,
        _ => near,
    }
}

/// An operation on f32 under rounding `mode`.
pub(crate) fn arith32(kind: Arith, [a, b, c]: [f32; 3], mode: u8) -> f32 {
    let (x, y, z) = match kind {
        Arith::Add => (a, 1.0, b),
        Arith::Sub => (a, 1.0, -b),
        Arith::SubRev => (b, 1.0, -a),
        Arith::Mul => (a, b, -0.0f32),
        Arith::Fma => (a, b, c),
        Arith::Other => return a,
    };
    let near = x.mul_add(y, z);
    // x*y is exact in f64; the sum's error is exact by two-sum.
    let product = f64::from(x) * f64::from(y);
    let addend = f64::from(z);
    let sum = product + addend;
    let virtual_part = sum - product;
    let lost = (product - (sum - virtual_part)) + (addend - virtual_part);
    let error = (sum - f64::from(near)) + lost;
    if near == 0.0 && error == 0.0 && product == -addend && product != 0.0 {
        return if mode == 2 { -0.0 } else { 0.0 };
    }
    direct32(near, error, mode)
}

/// An operation on f64 under rounding `mode`.
pub(crate) fn arith64(kind: Arith, [a, b, c]: [f64; 3], mode: u8) -> f64 {
    let (near, error) = match kind {
        Arith::Add | Arith::Sub | Arith::SubRev => {
            let (x, y) = match kind {
                Arith::Add => (a, b),
                Arith::Sub => (a, -b),
                _ => (b, -a),
            };
            let sum = x + y;
            let part = sum - x;
            (sum, (x - (sum - part)) + (y - part))
        }
        Arith::Mul => {
            let product = a * b;
            (product, a.mul_add(b, -product))
        }
        Arith::Fma => {
            let near = a.mul_add(b, c);
            let product = a * b;
            let low = a.mul_add(b, -product);
            let lost = if product.abs() > c.abs() {
                c - (near - product)
            } else {
                product - (near - c)
            };
            (near, lost + low)
        }
        Arith::Other => return a,
    };
    if error == 0.0 || near.is_nan() {
        return near;
    }
    if near.is_infinite() {
        let keeps = matches!((mode, near > 0.0), (1, true) | (2, false));
        return if keeps || a.is_infinite() || b.is_infinite() {
            near
        } else {
            f64::MAX.copysign(near)
        };
    }
    match mode {
        1 if error > 0.0 => near.next_up(),
        2 if error < 0.0 => near.next_down(),
        3 if near > 0.0 && error < 0.0 => near.next_down(),
        3 if near < 0.0 && error > 0.0 => near.next_up(),
        _ => near,
    }
}
