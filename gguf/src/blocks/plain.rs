//! Types that hold each element as it is.

pub(super) fn f32(bytes: &[u8], numbers: &mut [f32]) {
    numbers[0] = f32::from_le_bytes(first(bytes));
}

pub(super) fn f16(bytes: &[u8], numbers: &mut [f32]) {
    numbers[0] = half::f16::from_le_bytes(first(bytes)).to_f32();
}

pub(super) fn bf16(bytes: &[u8], numbers: &mut [f32]) {
    numbers[0] = half::bf16::from_le_bytes(first(bytes)).to_f32();
}

pub(super) fn f64(bytes: &[u8], numbers: &mut [f32]) {
    numbers[0] = f64::from_le_bytes(first(bytes)) as f32;
}

pub(super) fn i8(bytes: &[u8], numbers: &mut [f32]) {
    numbers[0] = i8::from_le_bytes(first(bytes)).into();
}

pub(super) fn i16(bytes: &[u8], numbers: &mut [f32]) {
    numbers[0] = i16::from_le_bytes(first(bytes)).into();
}

pub(super) fn i32(bytes: &[u8], numbers: &mut [f32]) {
    numbers[0] = i32::from_le_bytes(first(bytes)) as f32;
}

pub(super) fn i64(bytes: &[u8], numbers: &mut [f32]) {
    numbers[0] = i64::from_le_bytes(first(bytes)) as f32;
}

fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}
