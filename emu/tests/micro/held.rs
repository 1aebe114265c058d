//! Published measurements that nothing of the model was fitted to, as kernels of ours written from their descriptions: rows 21 and 24.

use super::Row;
use crate::common::{Arg, Device};
use graphc_emu::TimingOptions;
use graphc_emu::timing::Report;

const SOURCE: &str = r#"
typedef float f4 __attribute__((ext_vector_type(4)));
// Seven points in double precision; one lane a point, blocks along x.
extern "C" __global__ __launch_bounds__(256) void laplace(double* out, const double* in, int nx, int ny, int nz, double wx, double wy,
    double wz, double centre) {
  int x = threadIdx.x + blockIdx.x * blockDim.x, y = blockIdx.y, z = blockIdx.z;
  if (x == 0 || y == 0 || z == 0 || x >= nx - 1 || y >= ny - 1 || z >= nz - 1) return;
  const int plane = nx * ny;
  size_t at = x + nx * y + plane * z;
  out[at] = centre * in[at] + wx * (in[at - 1] + in[at + 1]) + wy * (in[at - nx] + in[at + nx]) + wz * (in[at - plane] + in[at + plane]);
}
extern "C" __global__ __launch_bounds__(256) void add(float* __restrict__ out, const float* __restrict__ a, const float* __restrict__ b,
    int width, int height) {
  int x = threadIdx.x + blockIdx.x * blockDim.x, y = threadIdx.y + blockIdx.y * blockDim.y, at = y * width + x;
  if (at < width * height) out[at] = a[at] + b[at];
}
extern "C" __global__ __launch_bounds__(256) void relu(int n, const float* in, float* out) {
  int at = threadIdx.x + blockIdx.x * blockDim.x;
  if (at < n) out[at] = in[at] > 0 ? in[at] : 0;
}
// Blocks of 16 x 16 lanes with four by four elements each, by way of LDS; neighbouring blocks go along the diagonal. `width` is in f4.
extern "C" __global__ __launch_bounds__(256) void transpose(f4* __restrict__ out, const f4* __restrict__ in, unsigned width, unsigned blocks) {
  __shared__ f4 tile[1024];
  const unsigned tx = threadIdx.x, ty = threadIdx.y, column = (blockIdx.x + blockIdx.y) % blocks, row = blockIdx.x;
  const f4* from = in + column * 16 + tx + (row * 16 + ty) * width * 4;
  f4* mine = tile + ty * 64 + tx;
  #pragma unroll
  for (int k = 0; k < 4; ++k) mine[16 * k] = from[width * k];
  __syncthreads();
  f4* to = out + row * 16 + tx + (column * 16 + ty) * width * 4;
  const f4* theirs = tile + tx * 64 + ty;
  f4 a = theirs[0], b = theirs[16], c = theirs[32], d = theirs[48];
  #pragma unroll
  for (int k = 0; k < 4; ++k) to[width * k] = f4{a[k], b[k], c[k], d[k]};
}
"#;

fn timed(device: &Device, part: &str, name: &str, grid: [u32; 3], block: [u32; 3], args: &[Arg], ghz: f64) -> Report {
    let timing = TimingOptions {
        ghz: Some(ghz),
        part: Some(part.to_owned()),
        ..TimingOptions::default()
    };
    device.time3(name, grid, block, 0, args, &timing)
}

/// Row 21: a Laplacian of 512 x 512 x 512 in f64; milliseconds.
fn laplace() -> Option<f64> {
    let device = Device::new(SOURCE, "gfx90a")?;
    let bytes = 512 * 512 * 512 * 8;
    let mut args = vec![Arg::Ptr(device.alloc(bytes)), Arg::Ptr(device.alloc(bytes))];
    args.extend([Arg::I32(512), Arg::I32(512), Arg::I32(512)]);
    args.extend([1.0, 2.0, 3.0, -12.0].map(Arg::F64));
    let report = timed(&device, "MI250X GCD", "laplace", [2, 512, 512], [256, 1, 1], &args, 1.7);
    Some(report.micros / 1e3)
}

/// The published time of the smallest launch of row 24's source, which holds the launch, its events and almost no work.
const ALONE: f64 = 4.2;

/// Row 24: launches on MI300A, each waited for before the next; microseconds.
fn alone(name: &'static str, n: u32) -> Option<f64> {
    let device = Device::new(SOURCE, "gfx942")?;
    let run = |n: u32| {
        let bytes = match name {
            "transpose" => n as usize * n as usize * 4,
            _ => n as usize * 4,
        };
        let [a, b, c] = std::array::from_fn(|_| Arg::Ptr(device.alloc(bytes)));
        let (grid, block, args) = match name {
            "add" => (
                [n / 256, 1, 1],
                [256, 1, 1],
                vec![a, b, c, Arg::I32(n as i32), Arg::I32(1)],
            ),
            "relu" => ([n / 256, 1, 1], [256, 1, 1], vec![Arg::I32(n as i32), a, b]),
            _ => {
                let args = vec![a, b, Arg::I32(n as i32 / 4), Arg::I32(n as i32 / 64)];
                ([n / 64, n / 64, 1], [16, 16, 1], args)
            }
        };
        timed(&device, "MI300A", name, grid, block, &args, 2.1).cycles as f64
    };
    let least = if name == "transpose" { 64 } else { 1024 };
    Some(ALONE + (run(n) - run(least)) / 2.1e3)
}

/// Every row.
pub fn rows() -> Vec<Row> {
    let mut rows = vec![Row {
        number: "21",
        gpu: "MI250X",
        what: "Laplacian f64 512 x 512 x 512, one die".into(),
        unit: "ms",
        published: 2.642,
        predict: Box::new(laplace),
    }];
    for (name, n, published) in [
        ("add", 1 << 20, 6.3),
        ("add", 1 << 24, 51.5),
        ("add", 1 << 28, 1302.0),
        ("relu", 1 << 20, 6.2),
        ("relu", 1 << 24, 37.1),
        ("relu", 1 << 28, 722.9),
        ("transpose", 2048, 10.6),
        ("transpose", 4096, 36.5),
        ("transpose", 8192, 155.5),
    ] {
        let size = match name {
            "transpose" => format!("{n} x {n}"),
            _ => format!("2^{}", f64::from(n).log2()),
        };
        rows.push(Row {
            number: "24",
            gpu: "MI300A",
            what: format!("{name} of {size} f32, launched alone"),
            unit: "us",
            published,
            predict: Box::new(move || alone(name, n)),
        });
    }
    rows
}
