//! Vector instructions that only a few builtins reach: sums of absolute differences, cube maps, stochastic rounding,
//! and the digits of 2/π.

use super::float::Small;
use super::lanes::{f3, i3, wide};
use super::operand::{Build, Out, Src, Ty};
use super::round::Arith;
use super::wave::{Exec, Flow};
use crate::decode::text::Kind;

pub(crate) fn build(b: &Build<'_>, name: &str) -> Option<Result<Exec, String>> {
    Some(match name {
        "v_msad_u8" => i3(b, |x, y, z| z.wrapping_add(masked_sad(x, y))),
        "v_qsad_pk_u16_u8" => quad(b, sad),
        "v_mqsad_pk_u16_u8" => quad(b, masked_sad),
        "v_mqsad_u32_u8" => quad_wide(b),
        "v_cubeid_f32" => f3(b, Arith::Other, |x, y, z| match major(x, y, z) {
            2 => {
                if z < 0.0 {
                    5.0
                } else {
                    4.0
                }
            }
            1 => {
                if y < 0.0 {
                    3.0
                } else {
                    2.0
                }
            }
            _ => {
                if x < 0.0 {
                    1.0
                } else {
                    0.0
                }
            }
        }),
        "v_cubesc_f32" => f3(b, Arith::Other, |x, y, z| match major(x, y, z) {
            2 => {
                if z < 0.0 {
                    -x
                } else {
                    x
                }
            }
            1 => x,
            _ => {
                if x < 0.0 {
                    z
                } else {
                    -z
                }
            }
        }),
        "v_cubetc_f32" => f3(b, Arith::Other, |x, y, z| match major(x, y, z) {
            1 => {
                if y < 0.0 {
                    -z
                } else {
                    z
                }
            }
            _ => -y,
        }),
        "v_cubema_f32" => f3(b, Arith::Other, |x, y, z| 2.0 * [x, y, z][major(x, y, z)]),
        "v_ashr_pk_i8_i32" => ashr_pack(b, |x| x.clamp(-128, 127) as u8),
        "v_ashr_pk_u8_i32" => ashr_pack(b, |x| x.clamp(0, 255) as u8),
        "v_cvt_sr_f16_f32" => stochastic(b, Small::F16),
        "v_cvt_sr_bf16_f32" => stochastic(b, Small::BF16),
        "v_trig_preop_f64" => wide(b, [Ty::F64, Ty::B32], Ty::F64, Arith::Other, |x, segment, _| {
            two_over_pi(x, segment as u32 & 31).to_bits()
        }),
        _ => return None,
    })
}

fn bytes_apart(x: u32, y: u32, counts: impl Fn(u8) -> bool) -> u32 {
    let pairs = x.to_le_bytes().into_iter().zip(y.to_le_bytes());
    pairs
        .filter(|(_, y)| counts(*y))
        .map(|(x, y)| u32::from(x.abs_diff(y)))
        .sum()
}

fn sad(x: u32, y: u32) -> u32 {
    bytes_apart(x, y, |_| true)
}

/// Bytes of the reference `y` that are zero do not count.
fn masked_sad(x: u32, y: u32) -> u32 {
    bytes_apart(x, y, |reference| reference != 0)
}

/// The sums of the four runs of four bytes that begin in x's lower word, added to four numbers of 16 bits.
fn quad<F: Fn(u32, u32) -> u32 + Copy + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    wide(b, [Ty::B64, Ty::B32, Ty::B64], Ty::B64, Arith::Other, move |x, y, z| {
        (0..4).fold(0, |packed, i| {
            let sum = (z >> (16 * i)) as u16;
            let sum = sum.wrapping_add(f((x >> (8 * i)) as u32, y as u32) as u16);
            packed | u64::from(sum) << (16 * i)
        })
    })
}

fn quad_wide(b: &Build<'_>) -> Result<Exec, String> {
    let register = |index: usize| match b.operand(index)?.kind {
        Kind::Vector { first, .. } => Ok(first as usize),
        ref kind => Err(format!("operand {kind:?} is not a vector register")),
    };
    let (target, x, z) = (register(0)?, register(1)?, register(3)?);
    let y = b.plain(b.operand(2)?, Ty::B32)?;
    Ok(Box::new(move |w, _| {
        let exec = w.exec();
        for lane in (0..w.lanes).filter(|lane| exec >> lane & 1 == 1) {
            let bytes = u64::from(w.v[x][lane]) | u64::from(w.v[x + 1][lane]) << 32;
            let reference = match y {
                Src::V(index) => w.v[index as usize][lane],
                other => other.uniform(w).unwrap_or(0),
            };
            let sums: [u32; 4] = std::array::from_fn(|i| {
                w.v[z + i][lane].wrapping_add(masked_sad((bytes >> (8 * i)) as u32, reference))
            });
            for (i, sum) in sums.into_iter().enumerate() {
                w.v[target + i][lane] = sum;
            }
        }
        Ok(Flow::Next)
    }))
}

/// The axis of a cube map's face: the largest magnitude, z before y before x.
fn major(x: f32, y: f32, z: f32) -> usize {
    if z.abs() >= x.abs() && z.abs() >= y.abs() {
        2
    } else {
        usize::from(y.abs() >= x.abs())
    }
}

fn ashr_pack<F: Fn(i32) -> u8 + Copy + Send + Sync + 'static>(b: &Build<'_>, f: F) -> Result<Exec, String> {
    let out = Out::half(b.out(Ty::B32, 3)?.register, b.text.element("op_sel", 3, false));
    let ins = [0, 1, 2].map(|index| b.source(index, Ty::B32));
    let [Ok(x), Ok(y), Ok(shift)] = ins else {
        return Err("a source is not understood".into());
    };
    Ok(Box::new(move |w, _| {
        let mut mask = w.exec();
        let mut buffers = [[0; 64]; 3];
        let [bx, by, bz] = &mut buffers;
        let x = x.fetch(w, bx, &mut mask);
        let y = y.fetch(w, by, &mut mask);
        let shift = shift.fetch(w, bz, &mut mask);
        let part = |value: u32, by: u32| u32::from(f(value as i32 >> (by & 31)));
        let result = std::array::from_fn(|lane| part(x[lane], shift[lane]) | part(y[lane], shift[lane]) << 8);
        out.store(w, &result, mask);
        Ok(Flow::Next)
    }))
}

/// Rounds to 16 bits at random; op_sel's third bit names the half that is written.
fn stochastic(b: &Build<'_>, format: Small) -> Result<Exec, String> {
    let out = Out::half(b.out(Ty::B32, 2)?.register, b.text.element("op_sel", 2, false));
    let (x, random) = (b.source(0, Ty::F32)?, b.source(1, Ty::B32)?);
    Ok(Box::new(move |w, _| {
        let mut mask = w.exec();
        let (mut bx, mut by) = ([0; 64], [0; 64]);
        let x = x.fetch(w, &mut bx, &mut mask);
        let random = random.fetch(w, &mut by, &mut mask);
        let result = std::array::from_fn(|lane| format.encode(f32::from_bits(x[lane]), Some(random[lane]), false));
        out.store(w, &result, mask);
        Ok(Flow::Next)
    }))
}

/// The binary digits of 2/π after the point, most significant first. (Computed by Machin's formula; the hardware has
/// 1201 of them.)
const TWO_OVER_PI: [u64; 19] = [
    0xa2f9_836e_4e44_1529,
    0xfc27_57d1_f534_ddc0,
    0xdb62_9599_3c43_9041,
    0xfe51_63ab_debb_c561,
    0xb724_6e3a_424d_d2e0,
    0x0649_2eea_09d1_921c,
    0xfe1d_eb1c_b129_a73e,
    0xe882_35f5_2ebb_4484,
    0xe99c_7026_b45f_7e41,
    0x3991_d639_8353_39f4,
    0x9c84_5f8b_bdf9_283b,
    0x1ff8_97ff_de05_980f,
    0xef2f_118b_5a0a_6d1f,
    0x6d36_7ecf_27cb_09b7,
    0x4f46_3f66_9e5f_ea2d,
    0x7527_bac7_ebe5_f17b,
    0x3d07_39f7_8a52_92ea,
    0x6bfb_5fb1_1f8d_5d08,
    0x5603_3046_fc7b_6bab,
];

/// The 53 digits of 2/π that the reduction of `x` needs as its segment-th piece, at their place.
fn two_over_pi(x: u64, segment: u32) -> f64 {
    let exponent = (x >> 52 & 0x7ff) as i32;
    let shift = segment as i32 * 53 + (exponent - 1077).max(0);
    let digit = |index: i32| -> u64 {
        match TWO_OVER_PI.get(index as usize / 64) {
            Some(word) if index <= 1200 => word >> (63 - index % 64) & 1,
            _ => 0,
        }
    };
    let digits = (shift..shift + 53).fold(0u64, |digits, index| digits << 1 | digit(index));
    let scale = -53 - shift + if exponent >= 1968 { 128 } else { 0 };
    super::float::ldexp64(digits as f64, scale)
}
