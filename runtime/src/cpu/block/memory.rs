//! Buffers to registers and back: element types, strides, indices that data decides.
#![expect(unsafe_op_in_unsafe_fn, reason = "lane loops under the contract of `Program::run`")]

use std::sync::OnceLock;

use half::{bf16, f16};
use ir::types::DType;

use super::Class;
use crate::cpu::kernels::Isa;
use crate::cpu::kernels::convert;
use crate::cpu::kernels::gemm::Elem;

/// Says whether a register holds the type as memory does.
pub(crate) fn natural(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::I64 | DType::Bool)
}

/// The values of every byte of an 8-bit float.
fn f8_table(dtype: DType) -> &'static [f32; 256] {
    static TABLES: [OnceLock<[f32; 256]>; 4] = [const { OnceLock::new() }; 4];
    let which = match dtype {
        DType::F8E4M3FN => 0,
        DType::F8E4M3FNUZ => 1,
        DType::F8E5M2 => 2,
        _ => 3,
    };
    TABLES[which].get_or_init(|| std::array::from_fn(|byte| ir::convert::decode_f64(dtype, &[byte as u8], 1)[0] as f32))
}

/// Reads element `index` of a buffer as register bits.
///
/// # Safety
/// The element is inside the buffer.
pub(crate) unsafe fn read(dtype: DType, base: *const u8, index: i64) -> u64 {
    let i = index as isize;
    match dtype {
        DType::F32 => u64::from(base.cast::<u32>().offset(i).read()),
        DType::F64 | DType::I64 => base.cast::<u64>().offset(i).read(),
        DType::F16 => float(f16::from_bits(base.cast::<u16>().offset(i).read()).to_f32()),
        DType::BF16 => float(bf16::from_bits(base.cast::<u16>().offset(i).read()).to_f32()),
        DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => {
            float(f8_table(dtype)[usize::from(base.offset(i).read())])
        }
        DType::I32 => i64::from(base.cast::<i32>().offset(i).read()) as u64,
        DType::I16 => i64::from(base.cast::<i16>().offset(i).read()) as u64,
        DType::I8 => i64::from(base.cast::<i8>().offset(i).read()) as u64,
        DType::U8 => u64::from(base.offset(i).read()),
        DType::Bool => u64::from(base.offset(i).read() != 0),
        DType::I4 | DType::U4 => {
            let byte = base.offset(i >> 1).read();
            let nibble = if i & 1 == 0 { byte & 15 } else { byte >> 4 };
            if dtype == DType::U4 {
                u64::from(nibble)
            } else {
                i64::from((nibble << 4) as i8 >> 4) as u64
            }
        }
    }
}

fn float(v: f32) -> u64 {
    u64::from(v.to_bits())
}

/// Writes register bits to element `index`.
///
/// # Safety
/// The element is inside the buffer, and of 4-bit types no other thread writes its neighbour.
pub(crate) unsafe fn write(dtype: DType, base: *mut u8, index: i64, bits: u64) {
    let i = index as isize;
    let value = f32::from_bits(bits as u32);
    match dtype {
        DType::F32 => base.cast::<u32>().offset(i).write(bits as u32),
        DType::F64 | DType::I64 => base.cast::<u64>().offset(i).write(bits),
        DType::F16 => base.cast::<u16>().offset(i).write(f16::from_f32(value).to_bits()),
        DType::BF16 => base.cast::<u16>().offset(i).write(bf16::from_f32(value).to_bits()),
        DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => {
            base.offset(i)
                .write(ir::convert::encode_f8(dtype, f64::from(value)).unwrap_or(0));
        }
        DType::I32 => base.cast::<i32>().offset(i).write(bits as i32),
        DType::I16 => base.cast::<i16>().offset(i).write(bits as i16),
        DType::I8 | DType::U8 => base.offset(i).write(bits as u8),
        DType::Bool => base.offset(i).write(u8::from(bits != 0)),
        DType::I4 | DType::U4 => {
            let at = base.offset(i >> 1);
            let nibble = (bits & 15) as u8;
            let old = at.read();
            at.write(if i & 1 == 0 {
                old & 0xf0 | nibble
            } else {
                old & 0x0f | nibble << 4
            });
        }
    }
}

/// Writes register bits to lane `lane`.
///
/// # Safety
/// The lane is inside the register.
#[inline(always)]
pub(crate) unsafe fn set_lane(class: Class, ptr: *mut u8, lane: usize, bits: u64) {
    match class {
        Class::F32 => ptr.cast::<u32>().add(lane).write(bits as u32),
        Class::F64 | Class::I64 => ptr.cast::<u64>().add(lane).write(bits),
        Class::Bool => ptr.add(lane).write(bits as u8),
    }
}

/// Reads lane `lane` as register bits.
///
/// # Safety
/// The lane is inside the register.
#[inline(always)]
pub(crate) unsafe fn get_lane(class: Class, ptr: *const u8, lane: usize) -> u64 {
    match class {
        Class::F32 => u64::from(ptr.cast::<u32>().add(lane).read()),
        Class::F64 | Class::I64 => ptr.cast::<u64>().add(lane).read(),
        Class::Bool => u64::from(ptr.add(lane).read() != 0),
    }
}

/// Sets lanes `l0..l1` to one value.
///
/// # Safety
/// The lanes are inside the register.
pub(crate) unsafe fn fill(class: Class, ptr: *mut u8, l0: usize, l1: usize, bits: u64) {
    match class {
        Class::F32 => (l0..l1).for_each(|l| ptr.cast::<u32>().add(l).write(bits as u32)),
        Class::F64 | Class::I64 => (l0..l1).for_each(|l| ptr.cast::<u64>().add(l).write(bits)),
        Class::Bool => ptr.add(l0).write_bytes(bits as u8, l1 - l0),
    }
}

/// Gives each of `rows` lanes to a row of `cols` lanes.
///
/// # Safety
/// The lanes are inside both registers, which do not overlap.
pub(crate) unsafe fn spread(class: Class, dst: *mut u8, src: *const u8, rows: usize, cols: usize) {
    for row in 0..rows {
        fill(class, dst, row * cols, (row + 1) * cols, get_lane(class, src, row));
    }
}

/// Copies lanes `l0..l1` from one register to another.
///
/// # Safety
/// The lanes are inside both.
pub(crate) unsafe fn copy(class: Class, dst: *mut u8, src: *const u8, l0: usize, l1: usize) {
    let size = class.bytes();
    std::ptr::copy(src.add(l0 * size), dst.add(l0 * size), (l1 - l0) * size);
}

fn elem(dtype: DType) -> Elem {
    match dtype {
        DType::F16 => Elem::F16,
        DType::BF16 => Elem::BF16,
        _ => Elem::F32,
    }
}

/// Copies `n` elements, of which there are few or which are the same memory.
///
/// # Safety
/// The elements are valid; both are the same ones, or do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_lanes<T: Copy>(from: *const T, to: *mut T, n: usize) {
    /// A call to copy fewer takes longer than copying them.
    const MANY: usize = 96;
    const PIECE: usize = 8;
    if n > MANY {
        return std::ptr::copy(from, to, n);
    }
    let mut at = 0;
    while at + PIECE <= n {
        std::ptr::copy(from.add(at), to.add(at), PIECE);
        at += PIECE;
    }
    while at < n {
        to.add(at).write(from.add(at).read());
        at += 1;
    }
}

/// Loads `n` elements from `index`, `stride` apart, to lanes `at..at + n`.
///
/// # Safety
/// Elements and lanes are inside.
pub(crate) unsafe fn load_run(
    isa: Isa,
    dtype: DType,
    dst: *mut u8,
    at: usize,
    base: *const u8,
    index: i64,
    stride: i64,
    n: usize,
) {
    let class = Class::of(dtype);
    if stride == 0 {
        return fill(class, dst, at, at + n, read(dtype, base, index));
    }
    match dtype {
        DType::F32 if stride == 1 => {
            copy_lanes(base.cast::<u32>().offset(index as isize), dst.cast::<u32>().add(at), n)
        }
        DType::F64 | DType::I64 if stride == 1 => {
            copy_lanes(base.cast::<u64>().offset(index as isize), dst.cast::<u64>().add(at), n);
        }
        DType::F32 => {
            let from = base.cast::<u32>().offset(index as isize);
            let to = dst.cast::<u32>().add(at);
            (0..n).for_each(|i| to.add(i).write(from.offset(i as isize * stride as isize).read()));
        }
        DType::F64 | DType::I64 => {
            let from = base.cast::<u64>().offset(index as isize);
            let to = dst.cast::<u64>().add(at);
            (0..n).for_each(|i| to.add(i).write(from.offset(i as isize * stride as isize).read()));
        }
        DType::F16 | DType::BF16 if stride == 1 => {
            let from = base.offset(index as isize * 2);
            convert::load_ptr(isa, dst.cast::<f32>().add(at), from, elem(dtype), n);
        }
        DType::I8 | DType::U8 => {
            let from = base.offset(index as isize);
            let to = dst.cast::<i64>().add(at);
            let byte = |i: usize| from.offset(i as isize * stride as isize);
            match dtype {
                DType::I8 => (0..n).for_each(|i| to.add(i).write(i64::from(byte(i).cast::<i8>().read()))),
                _ => (0..n).for_each(|i| to.add(i).write(i64::from(byte(i).read()))),
            }
        }
        DType::I32 => {
            let from = base.cast::<i32>().offset(index as isize);
            let to = dst.cast::<i64>().add(at);
            (0..n).for_each(|i| {
                to.add(i)
                    .write(i64::from(from.offset(i as isize * stride as isize).read()))
            });
        }
        _ => (0..n).for_each(|i| set_lane(class, dst, at + i, read(dtype, base, index + i as i64 * stride))),
    }
}

/// Stores lanes `at..at + n` to elements from `index`, `stride` apart.
///
/// # Safety
/// Elements and lanes are inside.
pub(crate) unsafe fn store_run(
    isa: Isa,
    dtype: DType,
    src: *const u8,
    at: usize,
    base: *mut u8,
    index: i64,
    stride: i64,
    n: usize,
) {
    let class = Class::of(dtype);
    match dtype {
        // The value may have been computed right there.
        DType::F32 if stride == 1 => {
            copy_lanes(src.cast::<u32>().add(at), base.cast::<u32>().offset(index as isize), n)
        }
        DType::F64 | DType::I64 if stride == 1 => {
            copy_lanes(src.cast::<u64>().add(at), base.cast::<u64>().offset(index as isize), n);
        }
        DType::F16 | DType::BF16 if stride == 1 => {
            convert::store_ptr(
                isa,
                base.offset(index as isize * 2),
                src.cast::<f32>().add(at),
                elem(dtype),
                n,
            );
        }
        DType::F32 => {
            let to = base.cast::<u32>().offset(index as isize);
            let from = src.cast::<u32>().add(at);
            (0..n).for_each(|i| to.offset(i as isize * stride as isize).write(from.add(i).read()));
        }
        DType::I8 | DType::U8 => {
            let to = base.offset(index as isize);
            let from = src.cast::<i64>().add(at);
            (0..n).for_each(|i| to.offset(i as isize * stride as isize).write(from.add(i).read() as u8));
        }
        _ => (0..n).for_each(|i| write(dtype, base, index + i as i64 * stride, get_lane(class, src, at + i))),
    }
}

/// Loads `n` integers of 8 bits from `index`, `stride` apart, to lanes `at..at + n` of floats.
///
/// # Safety
/// Elements and lanes are inside.
pub(crate) unsafe fn load_bytes(
    dtype: DType,
    dst: *mut u8,
    at: usize,
    base: *const u8,
    index: i64,
    stride: i64,
    n: usize,
) {
    let (from, to) = (base.offset(index as isize), dst.cast::<f32>().add(at));
    let bytes = |i: usize| from.offset(i as isize * stride as isize);
    match (dtype, stride) {
        (DType::I8, 1) => (0..n).for_each(|i| to.add(i).write(f32::from(from.add(i).cast::<i8>().read()))),
        (DType::I8, _) => (0..n).for_each(|i| to.add(i).write(f32::from(bytes(i).cast::<i8>().read()))),
        (_, 1) => (0..n).for_each(|i| to.add(i).write(f32::from(from.add(i).read()))),
        _ => (0..n).for_each(|i| to.add(i).write(f32::from(bytes(i).read()))),
    }
}

/// Stores lanes `at..at + n` of floats to integers of 8 bits from `index`, `stride` apart: cut to what fits, 0 of NaN.
///
/// # Safety
/// Elements and lanes are inside.
pub(crate) unsafe fn store_bytes(
    isa: Isa,
    dtype: DType,
    src: *const u8,
    at: usize,
    base: *mut u8,
    index: i64,
    stride: i64,
    n: usize,
) {
    let range = match dtype {
        DType::I8 => [i8::MIN.into(), i8::MAX.into()],
        _ => [0, u8::MAX.into()],
    };
    let (from, to) = (src.cast::<f32>().add(at), base.offset(index as isize));
    convert::floats_to_bytes(isa, from, to, n, range, stride as isize);
}
