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
