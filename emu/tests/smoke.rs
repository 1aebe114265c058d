//! One kernel through the whole path on every arch the emulator knows.

mod common;
use common::{Arg, Device, Random};

const SOURCE: &str = r#"
extern "C" __global__ void saxpy(float* y, const float* x, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i] / x[i];
}
"#;

#[test]
fn saxpy_on_every_arch() {
    for arch in [
        "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201",
    ] {
        let Some(device) = Device::new(SOURCE, arch) else {
            return;
        };
        let mut random = Random::new(1);
        let x: Vec<f32> = (0..1000).map(|_| random.range(-3.0, 3.0) as f32).collect();
        let y: Vec<f32> = (0..1000).map(|_| random.range(-3.0, 3.0) as f32).collect();
        let (px, py) = (device.upload(&x), device.upload(&y));
        let counters = device.run(
            "saxpy",
            4,
            256,
            &[Arg::Ptr(py), Arg::Ptr(px), Arg::F32(1.5), Arg::I32(1000)],
        );
        let got: Vec<f32> = device.download(py, 1000);
        for (index, value) in got.iter().enumerate() {
            let want = 1.5f32.mul_add(x[index], y[index] / x[index]);
            assert_eq!(
                value.to_bits(),
                want.to_bits(),
                "{arch} element {index}: {value} against {want}"
            );
        }
        assert_eq!(counters.workgroups, 4, "{arch}");
        assert!(counters.instructions > 0);
        let unknown = device.kernel("saxpy");
        assert!(unknown.unknown().is_empty(), "{arch}: {:?}", unknown.unknown());
    }
}

/// Older code objects, and kernel arguments that the command processor loads into registers before the first
/// instruction, give the same numbers.
#[test]
fn code_object_versions_and_preloaded_arguments() {
    let preload = ["-mllvm", "-amdgpu-kernarg-preload-count=8"];
    let variants: [(&str, &[&str], u8, bool); 5] = [
        ("gfx90a", &["-mcode-object-version=5"], 5, false),
        ("gfx1100", &["-mcode-object-version=5"], 5, false),
        ("gfx90a", &["-mcode-object-version=6"], 6, false),
        ("gfx942", &preload, 6, true),
        ("gfx950", &preload, 6, true),
    ];
    for (arch, options, version, preloaded) in variants {
        let device = match Device::try_new(SOURCE, arch, options) {
            Ok(device) => device,
            Err(common::NoCode::Skipped(reason)) => {
                println!("skipped: {reason}");
                return;
            }
            Err(common::NoCode::Refused(log)) => panic!("{arch}: {log}"),
        };
        assert_eq!(device.module.object().version(), version, "{arch}");
        let words = device.kernel("saxpy").info().descriptor.preload_length;
        assert_eq!(words > 0, preloaded, "{arch}: {words} words are preloaded");
        let x: Vec<f32> = (0..256).map(|i| i as f32 * 0.25 + 1.0).collect();
        let (px, py) = (device.upload(&x), device.upload(&x));
        device.run(
            "saxpy",
            2,
            128,
            &[Arg::Ptr(py), Arg::Ptr(px), Arg::F32(3.0), Arg::I32(256)],
        );
        let got: Vec<f32> = device.download(py, 256);
        for (value, x) in got.iter().zip(&x) {
            assert_eq!(*value, 3.0f32.mul_add(*x, 1.0), "{arch} {options:?}");
        }
    }
}
