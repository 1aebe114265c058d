//! Random inputs for `--random`: the same numbers for the same names, shapes and seed, on every machine.

use ir::{Bindings, DType, HostTensor, Storage, Symbols, TensorType};

use crate::error::{Error, Result};

/// Numbers that are made before they become bytes; even, so that pairs of 4-bit numbers stay together.
const AT_ONCE: usize = 1 << 12;

/// One step of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Makes a tensor of the declared type: floats in [−1, 1), integers 0 or 1, so that they serve as masks and as indices.
///
/// # Errors
/// A size that the bindings do not give, or more elements than memory holds.
pub fn tensor(name: &str, ty: &TensorType, bindings: &Bindings, seed: u64) -> Result<HostTensor> {
    let shape: Vec<usize> = ty
        .shape
        .eval(bindings)?
        .into_iter()
        .map(|d| d.max(0) as usize)
        .collect();
    let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let bytes = elements
        .and_then(|n| n.checked_mul(ty.dtype.bits() as usize))
        .map(|bits| bits.div_ceil(8));
    let (Some(elements), Some(bytes)) = (elements, bytes) else {
        return Err(Error::Config(format!(
            "input {name:?} of type {ty} would be {shape:?}, which is more than memory holds; give smaller sizes"
        )));
    };
    // Asked for before it is filled: what is not to be had is an error, not the end of the process.
    let room = ir::memory::reserve(bytes as u64, || format!("input {name:?}, {}{shape:?},", ty.dtype));
    let mut made = room.map_err(|error| Error::Config(error.to_string()))?;
    let mut state = name
        .bytes()
        .fold(seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let mut values = Vec::with_capacity(AT_ONCE);
    for start in (0..elements).step_by(AT_ONCE) {
        values.clear();
        values.extend((start..elements.min(start + AT_ONCE)).map(|_| {
            let bits = splitmix(&mut state);
            let unit = (bits >> 11) as f64 / (1u64 << 53) as f64;
            if ty.dtype.is_float() {
                unit * 2.0 - 1.0
            } else {
                f64::from(u8::from(unit >= 0.25 || ty.dtype == DType::I4))
            }
        }));
        made.extend(ir::convert::encode_f64(ty.dtype, &values));
    }
    HostTensor::new(ty.dtype, shape, Storage::new(made)).map_err(|e| Error::Config(e.to_string()))
}

/// Binds the symbols of a plan: what the user set, then hints.
///
/// # Errors
/// A name that no symbol has, or a size outside its bounds.
pub fn bindings(symbols: &Symbols, sizes: &[(String, i64)]) -> Result<Bindings> {
    let mut bindings = ir::dim::hints(symbols);
    for (name, size) in sizes {
        let symbol = ir::Symbol::new(name);
        let Some(info) = symbols.get(&symbol) else {
            let known: Vec<&str> = symbols.keys().map(ir::Symbol::name).collect();
            return Err(Error::Config(format!(
                "the model has no size {name:?}; its sizes are {known:?}"
            )));
        };
        if *size < info.min || info.max.is_some_and(|m| *size > m) {
            let max = info.max.map_or("∞".to_owned(), |m| m.to_string());
            return Err(Error::Config(format!(
                "{name} = {size} is outside its bounds {}..={max}",
                info.min
            )));
        }
        bindings.insert(symbol, *size);
    }
    Ok(bindings)
}
