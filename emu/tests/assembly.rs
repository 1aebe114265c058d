//! What hand-written kernels rely on and compilers do not.

mod common;
use common::{Arg, Device};

const D16: &str = r#"
extern "C" __global__ void halves(unsigned* out, const unsigned short* in) {
  __shared__ unsigned short box[64];
  box[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  unsigned low = 0x11112222, high = 0x33334444, box_low = 0x55556666, box_high = 0x77778888;
  const unsigned short* from = in + threadIdx.x;
  auto at = (__attribute__((address_space(3))) unsigned short*)(box + threadIdx.x);
  asm volatile(LOADS "s_waitcnt vmcnt(0) lgkmcnt(0)"
               : "+v"(low), "+v"(high), "+v"(box_low), "+v"(box_high) : "v"(from), "v"(at) : "memory");
  unsigned* to = out + threadIdx.x * 4;
  to[0] = low; to[1] = high; to[2] = box_low; to[3] = box_high;
}
"#;

/// The loads as each generation spells them.
const GFX9: &str = r#"#define LOADS "global_load_short_d16 %0, %4, off\n global_load_short_d16_hi %1, %4, off\n" \
  "ds_read_u16_d16 %2, %5\n ds_read_u16_d16_hi %3, %5\n"
"#;
const GFX11: &str = r#"#define LOADS "global_load_d16_b16 %0, %4, off\n global_load_d16_hi_b16 %1, %4, off\n" \
  "ds_load_u16_d16 %2, %5\n ds_load_u16_d16_hi %3, %5\n"
"#;

#[test]
fn d16_loads_clear_the_other_half_where_memory_corrects_errors() {
    for (arch, loads, clears) in [
        ("gfx908", GFX9, true),
        ("gfx90a", GFX9, true),
        ("gfx942", GFX9, true),
        ("gfx1030", GFX9, false),
        ("gfx1100", GFX11, false),
    ] {
        let Some(device) = Device::new(&format!("{loads}{D16}"), arch) else {
            return;
        };
        let values: Vec<u16> = (0..64).map(|i| 0x9000 + i).collect();
        let (input, out) = (device.upload(&values), device.alloc(64 * 16));
        device.run("halves", 1, 64, &[Arg::Ptr(out), Arg::Ptr(input)]);
        let got: Vec<u32> = device.download(out, 256);
        for (lane, words) in got.chunks(4).enumerate() {
            let value = 0x9000 + lane as u32;
            let kept = |word: u32| if clears { 0 } else { word };
            let want = [
                kept(0x1111_0000) | value,
                kept(0x4444) | value << 16,
                kept(0x5555_0000) | value,
                kept(0x8888) | value << 16,
            ];
            assert_eq!(words, want, "{arch}, lane {lane}");
        }
    }
}
