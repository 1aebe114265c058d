//! The numeric kernels under the CPU device: functions over memory that know nothing of graphs and plans.
//!
//! - [`isa`]: AVX-512, AVX2 or portable, decided at run time and forceable.
//! - [`threads`], [`workspace`]: a spinning pool; scratch memory that is allocated once.
//! - [`gemm`], [`conv`]: packed products with the epilogue applied in cache; implicit and depthwise convolution;
//!   [`conv_transposed`]: its transpose, phase by phase.
//! - [`integers`], [`depthwise_integers`]: products of 8-bit integers, by the instructions of [`dots`]; [`stages`]:
//!   what follows them; [`byte_ends`]: where that ends as bytes in registers.
//! - [`attention`], [`rows`], [`pool`]: fused attention, row and column reductions and norms, pooling.
//! - [`math`]: elementwise functions over blocks; [`convert`]: f16 and bf16 storage.
//!
//! Every kernel is one generic body over the vector trait of `simd`, compiled once per level.

pub mod attention;
pub mod byte_ends;
pub mod conv;
pub mod conv_transposed;
pub mod convert;
mod depthwise;
pub mod depthwise_integers;
mod depthwise_rows;
#[cfg(target_arch = "x86_64")]
mod depthwise_vnni;
pub mod dots;
pub mod gemm;
pub mod integers;
pub mod isa;
pub mod math;
pub mod pool;
mod pool_planes;
pub(crate) mod recurrent;
mod requantise;
mod requantised_bytes;
pub mod rows;
mod simd;
pub mod stages;
pub mod threads;
pub mod window_sums;
mod winograd;
pub mod workspace;

pub use isa::{Isa, Level};
pub use threads::Pool;
pub use workspace::Workspace;

#[cfg(test)]
mod tests;
