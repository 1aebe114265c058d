//! Texts of options that the command line and embedding apps share: each reader says what it takes where a text is
//! something else.

use ir::DType;
use passes::WeightType;
use passes::shard::Split;

/// Reads `f16`, `int4` or `f16+fp8`: what is computed in, and how weights are stored.
pub fn types(text: &str) -> Result<(Option<DType>, Option<WeightType>), String> {
    let computed = |text: &str| {
        text.parse()
            .ok()
            .filter(|d| matches!(d, DType::F32 | DType::F16 | DType::BF16))
    };
    let stored = |text: &str| match text {
        "int8" => Some(WeightType::Int8),
        "int4" => Some(WeightType::Int4),
        "fp8" => Some(WeightType::Fp8),
        _ => None,
    };
    let found = match text.split_once('+') {
        Some((first, second)) => computed(first).map(Some).zip(stored(second).map(Some)),
        None => match (computed(text), stored(text)) {
            (None, None) => None,
            found => Some(found),
        },
    };
    found.ok_or_else(|| {
        "models are computed in f32, f16 or bf16, and their weights stored as int8, int4 or fp8: f16, int4 or f16+fp8"
            .to_owned()
    })
}

/// Reads a number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    whole(text, 1..=runtime::MOST_THREADS)
}

/// Reads an amount of memory: bytes, or a number with a unit of 1024.
pub fn bytes(text: &str) -> Result<usize, String> {
    const UNITS: [(&str, u32); 4] = [("kib", 10), ("mib", 20), ("gib", 30), ("tib", 40)];
    let lower = text.trim().to_ascii_lowercase();
    let unit = UNITS
        .iter()
        .find_map(|(name, bits)| Some((lower.strip_suffix(name)?, *bits)));
    let (number, bits) = unit.unwrap_or((&lower, 0));
    let wrong =
        || "an amount of memory is a number of bytes, or one with KiB, MiB, GiB or TiB: 512MiB, 1.5GiB".to_owned();
    let number = number.trim();
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(wrong());
    }
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * f64::from(bits).exp2();
    // Up to there every whole number is an f64.
    if !(1.0..=(1u64 << 53) as f64).contains(&bytes) {
        return Err(wrong());
    }
    Ok(bytes as usize)
}

/// Reads how a model is split.
pub fn split(text: &str) -> Result<Split, String> {
    text.trim().parse()
}

/// Reads a state.
pub fn state(text: &str) -> Result<(String, String), String> {
    let pair = text
        .split_once('=')
        .map(|(input, output)| (input.to_owned(), output.to_owned()));
    pair.ok_or_else(|| "a state is an input and its next value: keys=keys_next".to_owned())
}

/// Reads a whole number within bounds.
pub fn whole(text: &str, range: std::ops::RangeInclusive<usize>) -> Result<usize, String> {
    let number = text.trim().parse().ok().filter(|n| range.contains(n));
    number.ok_or_else(|| format!("it is a whole number from {} to {}", range.start(), range.end()))
}
