//! Published measurements that nothing of the model was fitted to, as kernels of ours written from their descriptions:
//! rows 21 and 24.

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
// The same with ROWS points a lane along y, in the order of their addresses: what one row has read, the next one uses.
#ifndef ROWS
#define ROWS 1
#endif
#ifdef PASSING
#define PUT(place, value) __builtin_nontemporal_store(value, &(place))
#else
#define PUT(place, value) (place) = (value)
#endif
extern "C" __global__ __launch_bounds__(256) void laplace_rows(double* out, const double* in, int nx, int ny, int nz, double wx,
    double wy, double wz, double centre) {
  int x = threadIdx.x + blockIdx.x * blockDim.x, y = ROWS * blockIdx.y, z = blockIdx.z;
  if (x == 0 || z == 0 || x >= nx - 1 || z >= nz - 1) return;
  const int plane = nx * ny;
  size_t at = x + nx * y + plane * z;
  double sum[ROWS] = {0};
  for (int r = 0; r < ROWS; ++r) sum[r] += in[at - plane + r * nx] * wz;
  sum[0] += y > 0 ? in[at - nx] * wy : 0;
  for (int r = 0; r < ROWS; ++r) {
    sum[r] += in[at - 1 + r * nx] * wx;
    double here = in[at + r * nx];
    sum[r] += here * centre;
    sum[r] += in[at + 1 + r * nx] * wx;
    if (r > 0) sum[r - 1] += here * wy;
    if (r < ROWS - 1) sum[r + 1] += here * wy;
  }
  sum[ROWS - 1] += y < ny - ROWS ? in[at + ROWS * nx] * wy : 0;
  for (int r = 0; r < ROWS; ++r) sum[r] += in[at + plane + r * nx] * wz;
  for (int r = 0; r < ROWS; ++r)
    if (r + y > 0 && r + y < ny - 1) PUT(out[at + r * nx], sum[r]);
}
// A mask of `size` by `size` over integers, one lane a point.
extern "C" __global__ void convolve(const unsigned* in, const float* mask, int* out, unsigned width, unsigned height, unsigned size,
    unsigned pitch) {
  unsigned at = threadIdx.x + blockIdx.x * blockDim.x, x = at % width, y = at / width;
  if (y >= height) return;
  float sum = 0;
  for (unsigned j = 0; j < size; ++j)
    for (unsigned i = 0; i < size; ++i) sum += (float)in[(y + j) * pitch + x + i] * mask[j * size + i];
  out[at] = (int)(sum + 0.5f);
}
extern "C" __global__ void filter(float* out, const float* taps, const float* in, const float* before, unsigned count) {
  unsigned at = threadIdx.x + blockIdx.x * blockDim.x;
  float sum = 0;
  for (unsigned i = 0; i < count; ++i) sum += taps[i] * (at >= i ? in[at - i] : before[count - (i - at)]);
  out[at] = sum;
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
// Blocks of 16 x 16 lanes with four by four elements each, by way of LDS; neighbouring blocks go along the diagonal.
// `width` is in f4.
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

/// Row 21: a Laplacian of 512 x 512 x 512 in f64, with so many points a lane where they are in order; milliseconds.
fn laplace(in_order: Option<u32>, options: &[&str]) -> Option<f64> {
    let device = Device::try_new(SOURCE, "gfx90a", options).ok()?;
    let bytes = 512 * 512 * 512 * 8;
    let mut args = vec![Arg::Ptr(device.alloc(bytes)), Arg::Ptr(device.alloc(bytes))];
    args.extend([Arg::I32(512), Arg::I32(512), Arg::I32(512)]);
    args.extend([1.0, 2.0, 3.0, -12.0].map(Arg::F64));
    let (name, rows) = in_order.map_or(("laplace", 1), |rows| ("laplace_rows", rows));
    let grid = [2, 512 / rows, 512];
    let report = timed(&device, "MI250X GCD", name, grid, [256, 1, 1], &args, 1.7);
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

/// Row 24: a convolution of `n` x `n` points with a mask of `size` x `size`, launched as [`alone`] is.
fn convolve(n: u32, size: u32) -> Option<f64> {
    let device = Device::new(SOURCE, "gfx942")?;
    let cycles = |n: u32, size: u32| {
        let pitch = n + size - 1;
        let [input, mask, out] =
            [pitch * pitch, size * size, n * n].map(|count| Arg::Ptr(device.alloc(count as usize * 4)));
        let [width, size, pitch] = [n, size, pitch].map(|extent| Arg::I32(extent as i32));
        let args = [input, mask, out, width, width, size, pitch];
        timed(
            &device,
            "MI300A",
            "convolve",
            [n * n / 64, 1, 1],
            [64, 1, 1],
            &args,
            2.1,
        )
        .cycles as f64
    };
    Some(ALONE + (cycles(n, size) - cycles(8, 1)) / 2.1e3)
}

/// Row 24: a filter of `taps` over `n` points, launched as [`alone`] is.
fn filter(n: u32, taps: u32) -> Option<f64> {
    let device = Device::new(SOURCE, "gfx942")?;
    let cycles = |n: u32, taps: u32| {
        let [out, weights, input, before] = [n, taps, n, taps].map(|count| Arg::Ptr(device.alloc(count as usize * 4)));
        let args = [out, weights, input, before, Arg::I32(taps as i32)];
        timed(&device, "MI300A", "filter", [n / 256, 1, 1], [256, 1, 1], &args, 2.1).cycles as f64
    };
    Some(ALONE + (cycles(n, taps) - cycles(256, 1)) / 2.1e3)
}

/// Every row.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut stencil = |what: &str, published: f64, predict: Box<dyn Fn() -> Option<f64>>| {
        rows.push(Row {
            number: "21",
            gpu: "MI250X",
            what: format!("Laplacian f64 512 x 512 x 512, one die{what}"),
            unit: "ms",
            published,
            predict,
        });
    };
    stencil("", 2.642, Box::new(|| laplace(None, &[])));
    for (count, option, speed) in [
        (1, "-DROWS=1", 1.20),
        (2, "-DROWS=2", 1.28),
        (4, "-DROWS=4", 1.34),
        (8, "-DROWS=8", 1.39),
    ] {
        let what = format!(", in order, points a lane: {count}");
        stencil(&what, 2.642 / speed, Box::new(move || laplace(Some(count), &[option])));
    }
    let passing = || laplace(Some(8), &["-DROWS=8", "-DPASSING"]);
    stencil(
        ", in order, points a lane: 8, stores past L2",
        2.642 / 1.44,
        Box::new(passing),
    );
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
    for (what, published, predict) in [
        (
            "convolution of 1024 x 1024, mask of 3 x 3",
            14.2,
            Box::new(|| convolve(1024, 3)) as Box<dyn Fn() -> Option<f64>>,
        ),
        (
            "convolution of 1024 x 1024, mask of 9 x 9",
            39.6,
            Box::new(|| convolve(1024, 9)),
        ),
        (
            "convolution of 4096 x 4096, mask of 3 x 3",
            134.5,
            Box::new(|| convolve(4096, 3)),
        ),
        (
            "convolution of 4096 x 4096, mask of 9 x 9",
            546.2,
            Box::new(|| convolve(4096, 9)),
        ),
        ("filter of 2^16, 16 taps", 5.7, Box::new(|| filter(1 << 16, 16))),
        ("filter of 2^18, 64 taps", 12.1, Box::new(|| filter(1 << 18, 64))),
    ] {
        rows.push(Row {
            number: "24",
            gpu: "MI300A",
            what: format!("{what}, launched alone"),
            unit: "us",
            published,
            predict,
        });
    }
    rows
}
