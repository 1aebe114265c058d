//! What lanes, waves and workgroups do together: shuffles, DPP, permutes, votes, LDS, atomics, scratch, calls,
//! indirect calls, recursion, divergent control flow, globals, grids of three dimensions.

mod common;
use common::{Arg, Device, NoCode, Random, all_arches};

/// Inputs, the wave's size, and the expected outputs.
type Reference = fn(&[i32], usize) -> Vec<i32>;

struct Case {
    name: &'static str,
    /// Statements that read `x[t]` for the thread `t` of 256 and set `o[t]`.
    body: &'static str,
    want: Reference,
}

/// Each lane's value from those of its wave.
fn by_lane(x: &[i32], wave: usize, f: impl Fn(&[i32], usize) -> i32) -> Vec<i32> {
    x.chunks(wave)
        .flat_map(|values| (0..wave).map(|lane| f(values, lane)).collect::<Vec<_>>())
        .collect()
}

const N: usize = 256;

fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "shfl",
            body: "o[t] = __shfl(v, (t * 7) & 31, 32);",
            want: |x, w| {
                let all: Vec<i32> = x.to_vec();
                let _ = w;
                (0..N).map(|t| all[(t & !31) + ((t * 7) & 31)]).collect()
            },
        },
        Case {
            name: "shfl_up",
            body: "o[t] = __shfl_up(v, 3, 32);",
            want: |x, _| (0..N).map(|t| if t & 31 >= 3 { x[t - 3] } else { x[t] }).collect(),
        },
        Case {
            name: "shfl_down",
            body: "o[t] = __shfl_down(v, 5, 32);",
            want: |x, _| {
                (0..N)
                    .map(|t| if (t & 31) + 5 < 32 { x[t + 5] } else { x[t] })
                    .collect()
            },
        },
        Case {
            name: "shfl_xor1",
            body: "o[t] = __shfl_xor(v, 1);",
            want: |x, w| by_lane(x, w, |v, l| v[l ^ 1]),
        },
        Case {
            name: "shfl_xor8",
            body: "o[t] = __shfl_xor(v, 8);",
            want: |x, w| by_lane(x, w, |v, l| v[l ^ 8]),
        },
        Case {
            name: "shfl_xor16",
            body: "o[t] = __shfl_xor(v, 16);",
            want: |x, w| by_lane(x, w, |v, l| v[l ^ 16]),
        },
        Case {
            name: "wave_sum",
            body: "int s = v; for (int k = warpSize / 2; k > 0; k /= 2) s += __shfl_xor(s, k); o[t] = s;",
            want: |x, w| by_lane(x, w, |v, _| v.iter().fold(0, |a, b| a.wrapping_add(*b))),
        },
        Case {
            name: "ballot",
            body: "unsigned long long m = __ballot(v & 1); o[t] = (int)(m ^ (m >> 32));",
            want: |x, w| {
                by_lane(x, w, |v, _| {
                    let mask = v.iter().enumerate().fold(0u64, |m, (l, v)| m | ((*v & 1) as u64) << l);
                    (mask ^ (mask >> 32)) as i32
                })
            },
        },
        Case {
            name: "any_all",
            body: "o[t] = (__any(v > 100000) ? 1 : 0) + (__all(v > -2000000000) ? 2 : 0);",
            want: |x, w| {
                by_lane(x, w, |v, _| {
                    i32::from(v.iter().any(|v| *v > 100_000)) + 2 * i32::from(v.iter().all(|v| *v > -2_000_000_000))
                })
            },
        },
        Case {
            name: "lane_id",
            body: "o[t] = __lane_id() + v;",
            want: |x, w| (0..N).map(|t| x[t].wrapping_add((t % w) as i32)).collect(),
        },
        Case {
            name: "readfirstlane",
            body: "if (v & 1) o[t] = __builtin_amdgcn_readfirstlane(v); else o[t] = 7;",
            want: |x, w| {
                by_lane(x, w, |v, l| {
                    if v[l] & 1 == 1 {
                        *v.iter().find(|v| **v & 1 == 1).unwrap()
                    } else {
                        7
                    }
                })
            },
        },
        Case {
            name: "readlane",
            body: "o[t] = __builtin_amdgcn_readlane(v, 13);",
            want: |x, w| by_lane(x, w, |v, _| v[13]),
        },
        Case {
            name: "quad_perm",
            body: "o[t] = __builtin_amdgcn_update_dpp(0, v, 0x1b, 0xf, 0xf, true);",
            want: |x, w| by_lane(x, w, |v, l| v[l ^ 3]),
        },
        Case {
            name: "row_shr",
            body: "o[t] = __builtin_amdgcn_update_dpp(-5, v, 0x111, 0xf, 0xf, false);",
            want: |x, w| by_lane(x, w, |v, l| if l & 15 >= 1 { v[l - 1] } else { -5 }),
        },
        Case {
            name: "row_shl_bound",
            body: "o[t] = __builtin_amdgcn_update_dpp(-5, v, 0x102, 0xf, 0xf, true);",
            want: |x, w| by_lane(x, w, |v, l| if (l & 15) + 2 < 16 { v[l + 2] } else { 0 }),
        },
        Case {
            name: "row_ror",
            body: "o[t] = __builtin_amdgcn_update_dpp(0, v, 0x124, 0xf, 0xf, true);",
            want: |x, w| by_lane(x, w, |v, l| v[(l & !15) + ((l & 15) + 12) % 16]),
        },
        Case {
            name: "row_mirror",
            body: "o[t] = __builtin_amdgcn_update_dpp(0, v, 0x140, 0xf, 0xf, true);",
            want: |x, w| by_lane(x, w, |v, l| v[(l & !15) + 15 - (l & 15)]),
        },
        Case {
            name: "half_mirror",
            body: "o[t] = __builtin_amdgcn_update_dpp(0, v, 0x141, 0xf, 0xf, true);",
            want: |x, w| by_lane(x, w, |v, l| v[(l & !7) + 7 - (l & 7)]),
        },
        Case {
            name: "row_mask",
            body: "o[t] = __builtin_amdgcn_update_dpp(99, v, 0x111, 0x1, 0x5, true);",
            want: |x, w| {
                by_lane(x, w, |v, l| {
                    if l / 16 != 0 || (l / 4 % 4) % 2 == 1 {
                        99
                    } else if l & 15 >= 1 {
                        v[l - 1]
                    } else {
                        0
                    }
                })
            },
        },
        Case {
            name: "dpp_add",
            body: "o[t] = v + __builtin_amdgcn_update_dpp(0, v, 0xb1, 0xf, 0xf, true);",
            want: |x, w| by_lane(x, w, |v, l| v[l].wrapping_add(v[l ^ 1])),
        },
        Case {
            name: "bpermute",
            body: "o[t] = __builtin_amdgcn_ds_bpermute(((t * 5 + 3) & 31) * 4, v);",
            want: |x, w| {
                by_lane(x, w, |v, l| v[(l * 5 + 3) & 31])
                    .into_iter()
                    .enumerate()
                    .map(|(t, value)| {
                        let base = t / w * w;
                        let _ = base;
                        value
                    })
                    .collect()
            },
        },
        Case {
            name: "permute",
            body: "o[t] = __builtin_amdgcn_ds_permute(((t & 32) + ((t * 5 + 3) & 31)) * 4, v);",
            want: |x, w| {
                let mut out = vec![0; N];
                for (t, value) in x.iter().enumerate() {
                    let target =
                        t / w * w + ((t & 32) + ((t * 5 + 3) & 31)) % w.max(64).min(if w == 64 { 64 } else { 32 });
                    out[target] = *value;
                }
                out
            },
        },
        Case {
            name: "swizzle_xor",
            body: "o[t] = __builtin_amdgcn_ds_swizzle(v, 0x101f);",
            want: |x, w| by_lane(x, w, |v, l| v[l ^ 4]),
        },
        Case {
            name: "swizzle_quad",
            body: "o[t] = __builtin_amdgcn_ds_swizzle(v, 0x8000 | 0x4e);",
            want: |x, w| by_lane(x, w, |v, l| v[(l & !3) + [2, 3, 0, 1][l & 3]]),
        },
        Case {
            name: "lds_reverse",
            body: "__shared__ int s[256]; s[t] = v; __syncthreads(); o[t] = s[255 - t];",
            want: |x, _| (0..N).map(|t| x[255 - t]).collect(),
        },
        Case {
            name: "lds_reduce",
            body: "__shared__ int s[256]; s[t] = v; __syncthreads();\n\
                   for (int k = 128; k > 0; k /= 2) { if (t < k) s[t] += s[t + k]; __syncthreads(); } o[t] = s[0] + t;",
            want: |x, _| {
                let sum = x.iter().fold(0i32, |a, b| a.wrapping_add(*b));
                (0..N as i32).map(|t| sum.wrapping_add(t)).collect()
            },
        },
        Case {
            name: "lds_bytes",
            body: "__shared__ signed char s[256]; s[t] = (signed char)v; __syncthreads(); o[t] = s[t ^ 5] * 3;",
            want: |x, _| (0..N).map(|t| i32::from(x[t ^ 5] as i8) * 3).collect(),
        },
        Case {
            name: "lds_shorts",
            body: "__shared__ unsigned short s[256]; s[t] = (unsigned short)v; __syncthreads(); o[t] = s[t ^ 9] + s[t];",
            want: |x, _| {
                (0..N)
                    .map(|t| i32::from(x[t ^ 9] as u16) + i32::from(x[t] as u16))
                    .collect()
            },
        },
        Case {
            name: "lds_vec4",
            body: "__shared__ int4 s[256]; s[t] = make_int4(v, v + 1, v * 2, ~v); __syncthreads(); int4 q = s[t ^ 3]; o[t] = q.x ^ q.y ^ q.z ^ q.w;",
            want: |x, _| {
                (0..N)
                    .map(|t| {
                        let v = x[t ^ 3];
                        v ^ v.wrapping_add(1) ^ v.wrapping_mul(2) ^ !v
                    })
                    .collect()
            },
        },
        Case {
            name: "lds_two_addresses",
            body: "__shared__ int s[1024]; s[t] = v; s[t + 512] = v * 3; __syncthreads(); o[t] = s[t ^ 1] - s[(t ^ 1) + 512];",
            want: |x, _| {
                (0..N)
                    .map(|t| x[t ^ 1].wrapping_sub(x[t ^ 1].wrapping_mul(3)))
                    .collect()
            },
        },
        Case {
            name: "lds_doubles",
            body: "__shared__ double s[256]; s[t] = v * 0.5; __syncthreads(); o[t] = (int)(s[255 - t] * 2.0);",
            want: |x, _| (0..N).map(|t| x[255 - t]).collect(),
        },
        Case {
            name: "lds_atomics",
            body: "__shared__ int s[8]; if (t < 8) s[t] = t; __syncthreads(); atomicAdd(&s[0], v); atomicMax(&s[1], v); atomicMin(&s[2], v);\n\
                   atomicOr(&s[3], v & 0xff0); atomicAnd(&s[4], v | ~4); atomicXor(&s[5], v); atomicAdd((unsigned*)&s[6], 1u); atomicSub(&s[7], t);\n\
                   __syncthreads(); o[t] = s[t & 7];",
            want: |x, _| {
                let mut s = [0i32, 1, 2, 3, 4, 5, 6, 7];
                for (t, v) in x.iter().enumerate() {
                    s[0] = s[0_usize].wrapping_add(*v);
                    s[1] = s[1].max(*v);
                    s[2] = s[2].min(*v);
                    s[3] |= v & 0xff0;
                    s[4] &= v | !4;
                    s[5] ^= v;
                    s[6] += 1;
                    s[7] -= t as i32;
                }
                (0..N).map(|t| s[t & 7]).collect()
            },
        },
        Case {
            name: "lds_atomic_old",
            body: "__shared__ int s[1]; if (t == 0) s[0] = 0; __syncthreads(); int old = atomicAdd(&s[0], 2); o[old / 2] = old;",
            want: |_, _| (0..N as i32).map(|t| t * 2).collect(),
        },
        Case {
            name: "lds_cas",
            body: "__shared__ int s[256]; s[t] = v; __syncthreads(); int old = atomicCAS(&s[t], v, t); int second = atomicCAS(&s[t], v - 1, 5); int third = atomicExch(&s[t], 9); o[t] = old ^ (second * 3) ^ (third * 7) ^ s[t];",
            want: |x, _| {
                (0..N as i32)
                    .map(|t| {
                        let v = x[t as usize];
                        let second = if t == v.wrapping_sub(1) { 5 } else { t };
                        v ^ t.wrapping_mul(3) ^ second.wrapping_mul(7) ^ 9
                    })
                    .collect()
            },
        },
        Case {
            name: "lds_float_atomic",
            body: "__shared__ float s[2]; if (t < 2) s[t] = 0; __syncthreads(); atomicAdd(&s[t & 1], 0.5f * (float)(t + 1)); __syncthreads(); o[t] = (int)(s[t & 1] * 2.0f);",
            want: |_, _| {
                (0..N as i32)
                    .map(|t| (0..128).map(|k| 2 * k + (t & 1) + 1).sum())
                    .collect()
            },
        },
        Case {
            name: "scratch_array",
            body: "int a[16]; for (int k = 0; k < 16; ++k) a[(k * 5 + v) & 15] = v + k * t; int s = 0; for (int k = 0; k < 16; ++k) s = s * 3 + a[(k + t) & 15]; o[t] = s;",
            want: |x, _| {
                (0..N as i32)
                    .map(|t| {
                        let v = x[t as usize];
                        let mut a = [0i32; 16];
                        for k in 0..16 {
                            a[((k * 5i32).wrapping_add(v) & 15) as usize] = v.wrapping_add(k * t);
                        }
                        (0..16).fold(0i32, |s, k| s.wrapping_mul(3).wrapping_add(a[((k + t) & 15) as usize]))
                    })
                    .collect()
            },
        },
        Case {
            name: "scratch_bytes",
            body: "unsigned char a[32]; for (int k = 0; k < 32; ++k) a[k] = 0; for (int k = 0; k < 32; ++k) a[(v >> k) & 31] += (unsigned char)k; int s = 0; for (int k = 0; k < 32; ++k) s = s * 5 + a[k]; o[t] = s;",
            want: |x, _| {
                x.iter()
                    .map(|v| {
                        let mut a = [0u8; 32];
                        for k in 0..32 {
                            let slot = (v >> k & 31) as usize;
                            a[slot] = a[slot].wrapping_add(k as u8);
                        }
                        a.iter()
                            .fold(0i32, |s, b| s.wrapping_mul(5).wrapping_add(i32::from(*b)))
                    })
                    .collect()
            },
        },
        Case {
            name: "call",
            body: "o[t] = helper(v, t) + helper(t, v);",
            want: |x, _| {
                let helper = |a: i32, b: i32| a.wrapping_mul(b) ^ a.wrapping_add(5);
                (0..N as i32)
                    .map(|t| helper(x[t as usize], t).wrapping_add(helper(t, x[t as usize])))
                    .collect()
            },
        },
        Case {
            name: "call_stack",
            body: "o[t] = stacky(v, t);",
            want: |x, _| {
                (0..N as i32)
                    .map(|t| {
                        let v = x[t as usize];
                        let a: Vec<i32> = (0..8).map(|k| v.wrapping_add(k * t)).collect();
                        a[(v & 7) as usize].wrapping_add(a[(t & 7) as usize])
                    })
                    .collect()
            },
        },
        Case {
            name: "recursion",
            body: "o[t] = fib((v & 7) + 3);",
            want: |x, _| {
                fn fib(n: i32) -> i32 {
                    if n < 2 { n } else { fib(n - 1) + fib(n - 2) }
                }
                x.iter().map(|v| fib((v & 7) + 3)).collect()
            },
        },
        Case {
            name: "function_pointer",
            body: "int (*f)(int) = (v & 1) ? &twice : &thrice; o[t] = f(v);",
            want: |x, _| {
                x.iter()
                    .map(|v| {
                        if v & 1 == 1 {
                            v.wrapping_mul(2)
                        } else {
                            v.wrapping_mul(3)
                        }
                    })
                    .collect()
            },
        },
        Case {
            name: "global_table",
            body: "o[t] = table[v & 7] + constant_table[t & 3];",
            want: |x, _| {
                (0..N)
                    .map(|t| [3, 1, 4, 1, 5, 9, 2, 6][(x[t] & 7) as usize] + [100, 200, 300, 400][t & 3])
                    .collect()
            },
        },
        Case {
            name: "nested_divergence",
            body: "int s = 0; for (int i = 0; i < (v & 7); ++i) { if (i == (t & 3)) continue; for (int j = 0; j < (t & 7); ++j) { if (j > i) break; s += i * 8 + j; } } o[t] = s;",
            want: |x, _| {
                (0..N as i32)
                    .map(|t| {
                        let mut s = 0;
                        for i in 0..(x[t as usize] & 7) {
                            if i == t & 3 {
                                continue;
                            }
                            for j in 0..(t & 7) {
                                if j > i {
                                    break;
                                }
                                s += i * 8 + j;
                            }
                        }
                        s
                    })
                    .collect()
            },
        },
        Case {
            name: "early_return",
            body: "o[t] = -1; if (v & 2) return; if (t & 1) { o[t] = v; return; } o[t] = t;",
            want: |x, _| {
                (0..N as i32)
                    .map(|t| {
                        if x[t as usize] & 2 != 0 {
                            -1
                        } else if t & 1 == 1 {
                            x[t as usize]
                        } else {
                            t
                        }
                    })
                    .collect()
            },
        },
        Case {
            name: "clock",
            body: "long long a = clock64(); long long b = wall_clock64(); o[t] = (a >= 0) + (b >= 0) + v;",
            want: |x, _| x.iter().map(|v| v.wrapping_add(2)).collect(),
        },
        Case {
            name: "sdot4",
            body: "o[t] = DOT4(v, x[t ^ 1], t);",
            want: |x, _| {
                (0..N as i32)
                    .map(|t| {
                        let (a, b) = (x[t as usize], x[(t ^ 1) as usize]);
                        (0..4)
                            .map(|k| i32::from((a >> (8 * k)) as i8) * i32::from((b >> (8 * k)) as i8))
                            .sum::<i32>()
                            + t
                    })
                    .collect()
            },
        },
        Case {
            name: "fdot2",
            body: "typedef _Float16 h2 __attribute__((ext_vector_type(2))); h2 a = {(_Float16)(t & 15), (_Float16)3.0f}; h2 b = {(_Float16)2.0f, (_Float16)(t & 7)}; o[t] = (int)__builtin_amdgcn_fdot2(a, b, 1.0f, false);",
            want: |_, _| (0..N as i32).map(|t| 2 * (t & 15) + 3 * (t & 7) + 1).collect(),
        },
        Case {
            name: "packed_half",
            body: "typedef _Float16 h2 __attribute__((ext_vector_type(2))); h2 a = {(_Float16)(t & 15), (_Float16)(v & 7)}; h2 b = {(_Float16)(v & 3), (_Float16)-2.0f}; h2 r = __builtin_elementwise_fma(a, b, -a) + b.yx; o[t] = (int)r.x * 1000 + (int)r.y;",
            want: |x, _| {
                (0..N as i32)
                    .map(|t| {
                        let v = x[t as usize];
                        let (a, b) = ([t & 15, v & 7], [v & 3, -2]);
                        (a[0] * b[0] - a[0] + b[1]) * 1000 + (a[1] * b[1] - a[1] + b[0])
                    })
                    .collect()
            },
        },
        Case {
            name: "packed_short",
            body: "typedef short s2 __attribute__((ext_vector_type(2))); s2 a = {(short)v, (short)t}; s2 b = {(short)3, (short)(v >> 16)}; s2 r = a * b + b; r = __builtin_elementwise_max(r, a); o[t] = (int)(unsigned short)r.x | ((int)r.y << 16);",
            want: |x, _| {
                (0..N as i32)
                    .map(|t| {
                        let v = x[t as usize];
                        let one = |a: i16, b: i16| a.wrapping_mul(b).wrapping_add(b).max(a);
                        i32::from(one(v as i16, 3) as u16) | i32::from(one(t as i16, (v >> 16) as i16)) << 16
                    })
                    .collect()
            },
        },
        Case {
            name: "packed_float",
            body: "typedef float f2 __attribute__((ext_vector_type(2))); f2 a = {(float)(t & 63), (float)(v & 15)}; f2 b = {2.0f, (float)(t & 3)}; f2 r = a * b + a.yx; o[t] = (int)r.x * 4096 + (int)r.y;",
            want: |x, _| {
                (0..N as i32)
                    .map(|t| {
                        let v = x[t as usize];
                        let (a, b) = ([t & 63, v & 15], [2, t & 3]);
                        (a[0] * b[0] + a[1]) * 4096 + a[1] * b[1] + a[0]
                    })
                    .collect()
            },
        },
    ]
}

const PRELUDE: &str = r#"
__device__ __attribute__((noinline)) int helper(int a, int b) { return (a * b) ^ (a + 5); }
__device__ __attribute__((noinline)) int stacky(int v, int t) { int a[8]; for (int k = 0; k < 8; ++k) a[k] = v + k * t; asm volatile("" : : : "memory"); return a[v & 7] + a[t & 7]; }
__device__ __attribute__((noinline)) int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__device__ __attribute__((noinline)) int twice(int v) { return v * 2; }
__device__ __attribute__((noinline)) int thrice(int v) { return v * 3; }
__device__ int table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
__constant__ int constant_table[4] = {100, 200, 300, 400};
#if defined(__gfx1100__) || defined(__gfx1201__)
#define DOT4(a, b, c) __builtin_amdgcn_sudot4(true, a, true, b, c, false)
#else
#define DOT4(a, b, c) __builtin_amdgcn_sdot4(a, b, c, false)
#endif
"#;

fn source(cases: &[Case]) -> String {
    let kernels: String = cases
        .iter()
        .map(|case| {
            format!(
                "extern \"C\" __global__ void __launch_bounds__(256) k_{}(int* o, const int* x) {{\n  \
                 int t = threadIdx.x; int v = x[t];\n  {}\n}}\n",
                case.name, case.body
            )
        })
        .collect();
    format!("{PRELUDE}{kernels}")
}

/// Runs every case on an arch; false where there is no ROCm.
fn run_cases(arch: &str, options: &[&str], wave: usize, failures: &mut Vec<String>) -> bool {
    let cases = cases();
    let mut device = match Device::try_new(&source(&cases), arch, options) {
        Ok(device) => device,
        Err(NoCode::Skipped(reason)) => {
            println!("skipped: {reason}");
            return false;
        }
        Err(NoCode::Refused(log)) => panic!("{arch}: the compiler refused the source:\n{log}"),
    };
    device.options.races = true;
    let mut random = Random::new(5);
    let x: Vec<i32> = (0..N).map(|_| random.bits() as i32).collect();
    let input = device.upload(&x);
    for case in &cases {
        // In waves of 64, ds_bpermute of gfx10 and gfx11 reaches only the lane's own half.
        let half_reach = wave == 64 && (arch.starts_with("gfx10") || arch.starts_with("gfx11"));
        if half_reach && ["wave_sum", "bpermute"].contains(&case.name) {
            continue;
        }
        let out = device.alloc(N * 4);
        let args = [Arg::Ptr(out), Arg::Ptr(input)];
        if let Err(error) = device.try_run(&format!("k_{}", case.name), 1, N as u32, &args) {
            failures.push(format!("{arch} {options:?} {}: {error}", case.name));
            continue;
        }
        let got: Vec<i32> = device.download(out, N);
        let want = (case.want)(&x, wave);
        if let Some(lane) = (0..N).find(|lane| got[*lane] != want[*lane]) {
            let (got, want) = (got[lane], want[lane]);
            failures.push(format!(
                "{arch} {options:?} {} lane {lane}: {got:#x}, not {want:#x}",
                case.name
            ));
        }
    }
    true
}

fn wave_of(arch: &str) -> usize {
    if arch.starts_with("gfx9") { 64 } else { 32 }
}

#[test]
fn lanes_waves_and_workgroups() {
    let mut failures = Vec::new();
    for arch in all_arches() {
        if !run_cases(arch, &[], wave_of(arch), &mut failures) {
            return;
        }
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Unoptimised code keeps everything in scratch and calls what would be inlined.
#[test]
fn unoptimised() {
    let mut failures = Vec::new();
    for arch in all_arches() {
        if !run_cases(arch, &["-O0"], wave_of(arch), &mut failures) {
            return;
        }
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// RDNA parts run waves of 64 lanes too.
#[test]
fn wave64_on_rdna() {
    let mut failures = Vec::new();
    for arch in ["gfx1030", "gfx1100", "gfx1201"] {
        if !run_cases(arch, &["-mwavefrontsize64"], 64, &mut failures) {
            return;
        }
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn global_atomics() {
    let source = r#"
extern "C" __global__ void ints(int* s, unsigned* u, int* old, const int* x) {
  int t = blockIdx.x * blockDim.x + threadIdx.x; int v = x[t];
  atomicAdd(&s[0], v); atomicMax(&s[1], v); atomicMin(&s[2], v); atomicOr(&s[3], v & 0xff00); atomicAnd(&s[4], v | ~8); atomicXor(&s[5], v);
  atomicSub(&s[6], v); atomicMax(&u[0], (unsigned)v); atomicMin(&u[1], (unsigned)v); atomicInc(&u[2], 100u); atomicDec(&u[3], 100u);
  old[atomicAdd(&u[4], 1u)] = t;
}
extern "C" __global__ void longs(unsigned long long* s, const int* x) {
  int t = blockIdx.x * blockDim.x + threadIdx.x; long long v = x[t];
  atomicAdd(&s[0], (unsigned long long)v * 1000003ull); atomicMax(&s[1], (unsigned long long)v); atomicXor(&s[2], (unsigned long long)v << 17); atomicExch(&s[3], 77ull);
}
extern "C" __global__ void floats(float* s, double* d) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&s[t & 3], 0.25f * (t + 1)); atomicAdd(&d[t & 1], 0.125 * t); unsafeAtomicAdd(&s[4], 1.0f); unsafeAtomicAdd(&d[2], 2.0);
}
extern "C" __global__ void spin(int* lock, int* value) {
  for (int k = 0; k < 3; ++k) {
    if (threadIdx.x % warpSize == 0) {
      while (atomicCAS(lock, 0, 1) != 0) __builtin_amdgcn_s_sleep(1);
      __threadfence(); *(volatile int*)value = *(volatile int*)value + 1; __threadfence();
      atomicExch(lock, 0);
    }
  }
}
"#;
    for arch in all_arches() {
        let Some(device) = Device::new(source, arch) else {
            return;
        };
        let mut random = Random::new(9);
        let x: Vec<i32> = (0..1024).map(|_| random.bits() as i32).collect();
        let input = device.upload(&x);
        let start = [1i32, 2, 3, 4, 5, 6, 7];
        let (s, u) = (device.upload(&start), device.upload(&[5u32, 6, 7, 8, 0]));
        let old = device.alloc(4096);
        device.run("ints", 4, 256, &[s, u, old, input].map(Arg::Ptr));
        let got: Vec<i32> = device.download(s, 7);
        let want = [
            x.iter().fold(1i32, |a, b| a.wrapping_add(*b)),
            *x.iter().chain(&[2]).max().unwrap(),
            *x.iter().chain(&[3]).min().unwrap(),
            x.iter().fold(4, |a, b| a | (b & 0xff00)),
            x.iter().fold(5, |a, b| a & (b | !8)),
            x.iter().fold(6, |a, b| a ^ b),
            x.iter().fold(7i32, |a, b| a.wrapping_sub(*b)),
        ];
        assert_eq!(got, want, "{arch}");
        let got: Vec<u32> = device.download(u, 5);
        let wrap = |start: u32, f: fn(u32) -> u32| (0..1024).fold(start, |a, _| f(a));
        let want = [
            x.iter().map(|v| *v as u32).chain([5]).max().unwrap(),
            x.iter().map(|v| *v as u32).chain([6]).min().unwrap(),
            wrap(7, |a| if a >= 100 { 0 } else { a + 1 }),
            wrap(8, |a| if a == 0 || a > 100 { 100 } else { a - 1 }),
            1024,
        ];
        assert_eq!(got, want, "{arch}");
        let mut seen: Vec<i32> = device.download(old, 1024);
        seen.sort_unstable();
        assert_eq!(
            seen,
            (0..1024).collect::<Vec<i32>>(),
            "{arch}: every ticket is handed out once"
        );

        let longs = device.upload(&[1u64, 2, 3, 4]);
        device.run("longs", 4, 256, &[longs, input].map(Arg::Ptr));
        let got: Vec<u64> = device.download(longs, 4);
        let want = [
            x.iter().fold(1u64, |a, b| {
                a.wrapping_add((i64::from(*b) as u64).wrapping_mul(1_000_003))
            }),
            x.iter().map(|b| i64::from(*b) as u64).chain([2]).max().unwrap(),
            x.iter().fold(3u64, |a, b| a ^ (i64::from(*b) as u64) << 17),
            77,
        ];
        assert_eq!(got, want, "{arch}");

        let (floats, doubles) = (device.upload(&[0f32; 5]), device.upload(&[0f64; 3]));
        device.run("floats", 4, 256, &[floats, doubles].map(Arg::Ptr));
        let got: Vec<f32> = device.download(floats, 5);
        for (index, value) in got.iter().take(4).enumerate() {
            let want: f32 = (0..1024)
                .filter(|t| t & 3 == index)
                .map(|t| 0.25 * (t + 1) as f32)
                .sum();
            assert_eq!(*value, want, "{arch}");
        }
        assert_eq!(got[4], 1024.0, "{arch}");
        let got: Vec<f64> = device.download(doubles, 3);
        assert_eq!(got[2], 2048.0, "{arch}");
        assert_eq!(
            got[0],
            (0..1024)
                .filter(|t| t & 1 == 0)
                .map(|t| 0.125 * f64::from(t))
                .sum::<f64>(),
            "{arch}"
        );

        let (lock, value) = (device.upload(&[0i32]), device.upload(&[0i32]));
        device.run("spin", 1, 256, &[lock, value].map(Arg::Ptr));
        let waves = if arch.starts_with("gfx9") { 4 } else { 8 };
        assert_eq!(device.download::<i32>(value, 1), [3 * waves], "{arch}");
    }
}

#[test]
fn grids_blocks_and_dynamic_lds() {
    let source = r#"
extern "C" __global__ void ids(int* o) {
  int bx = blockIdx.x, by = blockIdx.y, bz = blockIdx.z, tx = threadIdx.x, ty = threadIdx.y, tz = threadIdx.z;
  int linear = ((bz * gridDim.y + by) * gridDim.x + bx) * (blockDim.x * blockDim.y * blockDim.z) + (tz * blockDim.y + ty) * blockDim.x + tx;
  o[linear] = bx + 10 * by + 100 * bz + 1000 * tx + 20000 * ty + 300000 * tz + 10000000 * (int)(gridDim.z);
}
extern "C" __global__ void dynamic(int* o, int n) {
  extern __shared__ int s[];
  int t = threadIdx.x;
  for (int i = t; i < n; i += blockDim.x) s[i] = i * 3;
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += s[i];
  o[t] = sum + t;
}
"#;
    for arch in all_arches() {
        let Some(device) = Device::new(source, arch) else {
            return;
        };
        let (grid, block) = ([3u32, 4, 2], [5u32, 3, 7]);
        let total = (24 * 105) as usize;
        let out = device.alloc(total * 4);
        device
            .try_run3("ids", grid, block, &[Arg::Ptr(out)], 0)
            .unwrap_or_else(|error| panic!("{arch}: {error}"));
        let got: Vec<i32> = device.download(out, total);
        for (linear, value) in got.iter().enumerate() {
            let (b, t) = (linear / 105, linear % 105);
            let (bx, by, bz) = (b % 3, b / 3 % 4, b / 12);
            let (tx, ty, tz) = (t % 5, t / 5 % 3, t / 15);
            let want = bx + 10 * by + 100 * bz + 1000 * tx + 20000 * ty + 300_000 * tz + 20_000_000;
            assert_eq!(*value, want as i32, "{arch} {linear}");
        }
        let out = device.alloc(400);
        device
            .try_run3("dynamic", [1; 3], [100, 1, 1], &[Arg::Ptr(out), Arg::I32(500)], 2000)
            .unwrap_or_else(|error| panic!("{arch}: {error}"));
        let sum: i32 = (0..500).map(|i| i * 3).sum();
        assert_eq!(
            device.download::<i32>(out, 100),
            (0..100).map(|t| sum + t).collect::<Vec<_>>(),
            "{arch}"
        );
    }
}
