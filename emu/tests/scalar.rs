//! Scalar instructions that kernels reach by a single path: gfx12's scalar transcendentals and the literals of
//! 64-bit operations.

mod common;
use common::{Arg, Device, F16, F32, close};

/// The listing of the kernel's code has each of the names.
fn has(device: &Device, kernel: &str, names: &[&str]) {
    let kernel = device.kernel(kernel);
    for name in names {
        assert!(
            kernel.instructions().any(|(_, text)| text.starts_with(name)),
            "{}: the compiler does not emit {name}",
            device.arch()
        );
    }
}

#[test]
fn transcendentals_of_scalar_registers() {
    let source = r#"
typedef _Float16 h;
extern "C" __global__ void full(float* o, float x) {
  o[0] = __builtin_amdgcn_rcpf(x); o[1] = __builtin_amdgcn_rsqf(x); o[2] = __builtin_amdgcn_sqrtf(x);
  o[3] = __builtin_amdgcn_exp2f(x); o[4] = __builtin_amdgcn_logf(x); o[5] = __builtin_amdgcn_rcpf(-x);
}
extern "C" __global__ void narrow(h* o, float y) {
  h x = (h)y;
  o[0] = __builtin_amdgcn_rcph(x); o[1] = __builtin_amdgcn_rsqh(x); o[2] = __builtin_amdgcn_sqrth(x);
  o[3] = __builtin_elementwise_exp2(x); o[4] = __builtin_elementwise_log2(x);
}
"#;
    let Some(device) = Device::new(source, "gfx1201") else {
        return;
    };
    let names = ["v_s_rcp_f", "v_s_rsq_f", "v_s_sqrt_f", "v_s_exp_f", "v_s_log_f"];
    has(
        &device,
        "full",
        &names.map(|name| format!("{name}32")).each_ref().map(String::as_str),
    );
    has(
        &device,
        "narrow",
        &names.map(|name| format!("{name}16")).each_ref().map(String::as_str),
    );
    let exact = |x: f64| [1.0 / x, 1.0 / x.sqrt(), x.sqrt(), x.exp2(), x.log2(), -1.0 / x];
    for x in [1.0f32, 0.75, 3.1, 9.5, 0.001, 17.0] {
        let out = device.alloc(24);
        device.run("full", 1, 32, &[Arg::Ptr(out), Arg::F32(x)]);
        let got: Vec<f32> = device.download(out, 6);
        for (index, (value, want)) in got.iter().zip(exact(x.into())).enumerate() {
            assert!(
                close((*value).into(), want, F32, 1.0),
                "f32 {index} of {x}: {value}, not {want}"
            );
        }
        let x = half::f16::from_f32(x.min(15.0));
        let out = device.alloc(12);
        device.run("narrow", 1, 32, &[Arg::Ptr(out), Arg::F32(x.to_f32())]);
        let got: Vec<u16> = device.download(out, 5);
        for (index, (bits, want)) in got.iter().zip(exact(x.to_f64())).enumerate() {
            let value = half::f16::from_bits(*bits).to_f64();
            assert!(close(value, want, F16, 1.0), "f16 {index} of {x}: {value}, not {want}");
        }
    }
}

/// A literal of 32 bits is zero-extended where the operation is on bits or unsigned numbers, and sign-extended where
/// it is on signed ones. Compilers avoid the literals that tell the two apart, so assembly has them.
#[test]
fn literals_of_64_bit_operations() {
    let common: &[(&str, fn(u64) -> u64)] = &[
        ("s_and_b64", |x| x & 0x9000_1234),
        ("s_or_b64", |x| x | 0x9000_1234),
        ("s_xor_b64", |x| x ^ 0x9000_1234),
        ("s_ashr_i64 literal", |x| {
            (0xffff_ffff_9000_1234u64 as i64 >> (x & 63)) as u64
        }),
        ("s_lshr_b64 literal", |x| 0x9000_1234 >> (x & 63)),
        ("s_lshl_b64 literal", |x| 0x9000_1234 << (x & 63)),
    ];
    let gfx12: &[(&str, fn(u64) -> u64)] = &[
        ("s_add_nc_u64", |x| x.wrapping_add(0x9000_1234)),
        ("s_sub_nc_u64", |x| x.wrapping_sub(0x9000_1234)),
        ("s_mul_u64", |x| x.wrapping_mul(0x9000_1234)),
    ];
    for arch in common::all_arches() {
        let cases: Vec<_> = if arch == "gfx1201" {
            [common, gfx12].concat()
        } else {
            common.to_vec()
        };
        let mut body = String::new();
        for (index, (name, _)) in cases.iter().enumerate() {
            let line = match name.strip_suffix(" literal") {
                Some(name) => {
                    format!("asm volatile(\"{name} %0, 0x90001234, %1\" : \"=s\"(r) : \"s\"((int)x) : \"scc\");")
                }
                None => format!("asm volatile(\"{name} %0, %1, 0x90001234\" : \"=s\"(r) : \"s\"(x) : \"scc\");"),
            };
            body += &format!("  {line} o[{index}] = r;\n");
        }
        body += &format!(
            "  asm volatile(\"s_mov_b64 %0, 0x90001234\" : \"=s\"(r)); o[{}] = r;\n",
            cases.len()
        );
        let source = format!("extern \"C\" __global__ void run(long* o, long x) {{ long r;\n{body}}}\n");
        let Some(device) = Device::new(&source, arch) else {
            return;
        };
        let x = 0xfedc_ba98_7654_3203u64;
        let out = device.alloc(80);
        device.run("run", 1, 32, &[Arg::Ptr(out), Arg::I64(x as i64)]);
        let got: Vec<u64> = device.download(out, cases.len() + 1);
        for (value, (name, f)) in got.iter().zip(&cases) {
            assert_eq!(*value, f(x), "{arch} {name}: {value:#x}, not {:#x}", f(x));
        }
        assert_eq!(got[cases.len()], 0x9000_1234, "{arch} s_mov_b64");
    }
}
