//! Random inputs for `--random`: the same numbers for the same names, shapes and seed, on every machine.

use ir::{Bindings, DType, HostTensor, Symbols, TensorType};

use crate::error::{Error, Result};

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
    let mut values: Vec<f64> = Vec::new();
    let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    // Asked for before it is filled: what is not to be had is an error, not the end of the process.
    let Some(elements) = elements.filter(|n| values.try_reserve_exact(*n).is_ok()) else {
        return Err(Error::Config(format!(
            "input {name:?} of type {ty} would be {shape:?}, which is more than memory holds; give smaller sizes"
        )));
    };
    // The numbers, and then their bytes beside them.
    let bytes = elements as u64 * 8 + ty.dtype.bytes_for(elements) as u64;
    ir::memory::check(bytes, || format!("making up input {name:?}, {}{shape:?},", ty.dtype))
        .map_err(|error| Error::Config(error.to_string()))?;
    let mut state = name
        .bytes()
        .fold(seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    values.extend((0..elements).map(|_| {
        let bits = splitmix(&mut state);
        let unit = (bits >> 11) as f64 / (1u64 << 53) as f64;
        if ty.dtype.is_float() {
            unit * 2.0 - 1.0
        } else {
            f64::from(u8::from(unit >= 0.25 || ty.dtype == DType::I4))
        }
    }));
    HostTensor::from_f64(ty.dtype, shape, &values).map_err(|e| Error::Config(e.to_string()))
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
