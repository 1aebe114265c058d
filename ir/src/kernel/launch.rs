//! The size of a launch and what a kernel takes of a compute unit: grid, LDS, workgroups that share a unit, arguments.

use serde::{Deserialize, Serialize};

use super::{AttentionBody, AttentionOrder, AxisId, Body, Kernel, Mapping, limits};
use crate::dim::{Bindings, Dim, DimError};

/// Threads along x that a launch may have: AMD's packets carry 32 bits.
const MAX_THREADS: i64 = u32::MAX as i64;

/// Workgroups along z that a launch may have.
const MAX_BLOCKS_Z: i64 = 65535;

/// The size of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchSize {
    /// Workgroups along x, y, z.
    pub grid: [u32; 3],
    /// Threads a workgroup.
    pub block: u32,
    /// Bytes of LDS that the launch gives a workgroup, beside what the kernel declares.
    pub lds: u32,
}

/// A launch's size does not fit the hardware.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("kernel {kernel}: {error}")]
    Size { kernel: String, error: DimError },
    #[error("kernel {kernel}: {blocks} workgroups are more than a grid holds")]
    Grid { kernel: String, blocks: i64 },
}

impl Kernel {
    /// Computes the grid that the mapping asks for. A kernel with no points gives a grid of 0 and is not launched.
    ///
    /// # Errors
    /// A size that is not bound, or more tiles than a grid holds.
    pub fn launch_size(&self, bindings: &Bindings) -> Result<LaunchSize, LaunchError> {
        let size = |error| LaunchError::Size {
            kernel: self.name.clone(),
            error,
        };
        let extent = |axes: &[AxisId]| -> Result<i64, LaunchError> {
            axes.iter().try_fold(1i64, |n, a| {
                Ok(n.saturating_mul(self.axes[*a].extent.eval(bindings).map_err(size)?))
            })
        };
        let ceil = |a: i64, b: i64| a / b + i64::from(a % b > 0);
        let attention =
            |a: &AttentionBody, queries: u32, order: AttentionOrder, threads: u32| -> Result<_, LaunchError> {
                let (rows, keys, batch) = (extent(&[a.q])?, extent(&[a.k])?, extent(&a.batch)?);
                let blocks = ceil(rows, queries.into());
                self.counted(&[rows, keys, batch, blocks.saturating_mul(order.0.into())])?;
                Ok((blocks.saturating_mul(batch), 1, threads))
            };
        let (x, z, block) = match (&self.mapping, &self.body) {
            (Mapping::Host, _) => (0, 1, 0),
            (Mapping::Threads { block, vector } | Mapping::Windows { block, vector, .. }, _) => {
                let (last, outer) = match self.parallel_axes().split_last() {
                    Some((last, outer)) => (extent(&[*last])?, extent(outer)?),
                    None => (1, 1),
                };
                (
                    ceil(outer.saturating_mul(ceil(last, i64::from(*vector))), i64::from(*block)),
                    1,
                    *block,
                )
            }
            (Mapping::Strips(strips), Body::Window(w)) => {
                let mut threads = 1i64;
                for axis in &w.loops.parallel {
                    threads = threads.saturating_mul(ceil(extent(&[*axis])?, strips.along(w, *axis).into()));
                }
                (ceil(threads, i64::from(strips.block)), 1, strips.block)
            }
            (Mapping::Steps(steps), _) => {
                let rows = extent(self.parallel_axes())?;
                (ceil(rows, steps.rows.into()), 1, steps.block)
            }
            (Mapping::Stream { block, vector, unroll }, _) => {
                let (last, outer) = match self.parallel_axes().split_last() {
                    Some((last, outer)) => (extent(&[*last])?, extent(outer)?),
                    None => (1, 1),
                };
                let groups = outer.saturating_mul(ceil(last, i64::from(*vector)));
                (ceil(groups, i64::from(*block) * i64::from(*unroll)), 1, *block)
            }
            (
                Mapping::Transpose {
                    axis,
                    block,
                    along,
                    across,
                    ..
                },
                _,
            ) => {
                let (mut tiles, parallel) = (1i64, self.parallel_axes());
                for a in parallel {
                    let tile = match a {
                        a if a == axis => *across,
                        a if Some(a) == parallel.last() => *along,
                        _ => 1,
                    };
                    tiles = tiles.saturating_mul(ceil(extent(&[*a])?, i64::from(tile)));
                }
                (tiles, 1, *block)
            }
            (Mapping::Lanes { lanes, block, .. } | Mapping::Rows { lanes, block, .. }, _) => (
                ceil(
                    extent(self.parallel_axes())?.saturating_mul(i64::from(*lanes)),
                    i64::from(*block),
                ),
                1,
                *block,
            ),
            (Mapping::Block { block, .. }, _) => (extent(self.parallel_axes())?, 1, *block),
            (
                Mapping::Tile {
                    block_m,
                    block_n,
                    thread_m,
                    thread_n,
                    ..
                },
                Body::Contract(c),
            ) => {
                let (m, n) = (extent(&c.m)?, extent(&c.n)?);
                let tiles = ceil(m, i64::from(*block_m)).saturating_mul(ceil(n, i64::from(*block_n)));
                (tiles, extent(&c.batch)?, (block_m / thread_m) * (block_n / thread_n))
            }
            (Mapping::Matrix(tiling), Body::Contract(c)) => {
                let (m, n, k) = (extent(&c.m)?, extent(&c.n)?, extent(&c.k)?);
                self.counted(&[m, n, k])?;
                let tiles = ceil(m, i64::from(tiling.block[0])).saturating_mul(ceil(n, i64::from(tiling.block[1])));
                let groups = match tiling.shares {
                    Some(shares) => tiles
                        .saturating_sub(shares.tiles.into())
                        .saturating_add(shares.groups.into()),
                    None => tiles,
                };
                (groups, extent(&c.batch)?, tiling.threads())
            }
            (Mapping::Gemv(tiling), Body::Contract(c)) => {
                let (m, n, k) = (extent(&c.m)?, extent(&c.n)?, extent(&c.k)?);
                self.counted(&[m, n, k])?;
                let groups = ceil(m, i64::from(tiling.rows));
                let tiles = ceil(n, i64::from(tiling.columns()));
                (tiling.workgroups(tiles, groups), extent(&c.batch)?, tiling.threads())
            }
            (
                Mapping::Flash {
                    block_q,
                    block,
                    together,
                    ..
                },
                Body::Attention(a),
            ) => attention(a, *block_q, *together, *block)?,
            (Mapping::FlashMatrix(t), Body::Attention(a)) => attention(a, t.queries(), t.together, t.threads())?,
            (Mapping::FlashLanes(t), Body::Attention(a)) => attention(a, t.queries(), t.together, t.threads())?,
            (
                Mapping::Tile { .. }
                | Mapping::Matrix(_)
                | Mapping::Gemv(_)
                | Mapping::Strips(_)
                | Mapping::Flash { .. }
                | Mapping::FlashLanes(_)
                | Mapping::FlashMatrix(_),
                _,
            ) => (0, 0, 0),
        };
        // Loops over points, batches and blocks of queries stride over the grid; tiles do not.
        let strides = !matches!(
            self.mapping,
            Mapping::Tile { .. } | Mapping::Matrix(_) | Mapping::Gemv(_)
        );
        let most = (MAX_THREADS / i64::from(block.max(1))).min(i64::from(i32::MAX));
        if x > most && !strides {
            return Err(LaunchError::Grid {
                kernel: self.name.clone(),
                blocks: x,
            });
        }
        let (x, z) = (x.min(most), z.min(MAX_BLOCKS_Z));
        Ok(LaunchSize {
            grid: [x as u32, 1, z as u32],
            block,
            lds: self.launch_lds(),
        })
    }

    /// Checks rows, columns and depth, which are counted by an `int` each, a tile beyond the last included.
    fn counted(&self, sizes: &[i64]) -> Result<(), LaunchError> {
        match sizes.iter().find(|v| **v > i64::from(i32::MAX / 2)) {
            Some(too_many) => Err(LaunchError::Grid {
                kernel: self.name.clone(),
                blocks: *too_many,
            }),
            None => Ok(()),
        }
    }

    /// How many workgroups a compute unit should have room for at least, by which a compiler shares out registers;
    /// `None` leaves that to it.
    pub fn resident_workgroups(&self) -> Option<u32> {
        match (&self.mapping, &self.body) {
            (Mapping::Matrix(tiling), _) => tiling.resident,
            (Mapping::Gemv(tiling), _) => match &tiling.stream {
                Some(stream) => Some(stream.residents),
                None => tiling.matrix.as_ref().and_then(|matrix| matrix.resident),
            },
            (Mapping::Rows { resident, .. }, _) => *resident,
            (Mapping::Strips(strips), _) => strips.resident,
            // A thread has whole squares in registers. Asked for nothing, ptxas takes 32 of them and spills some
            // conditions of a square.
            (_, Body::Transform(_)) => Some(1),
            _ => None,
        }
    }

    /// Says whether workgroups stay on their units, with chunks of weights in LDS.
    pub fn streams(&self) -> bool {
        matches!(&self.mapping, Mapping::Gemv(tiling) if tiling.stream.is_some())
    }

    /// Bytes of LDS that a workgroup of a product of few rows has: what the kernel declares, and what the launch gives.
    pub fn gemv_lds(&self) -> u32 {
        match (&self.mapping, &self.body) {
            (Mapping::Gemv(tiling), Body::Contract(c)) => {
                let own = tiling.lds_bytes(self.vars[c.acc], c.statistic.is_some());
                own.saturating_add(self.launch_lds())
            }
            _ => 0,
        }
    }

    /// Bytes of LDS that every launch must give a workgroup: tiles that are too large to be declared.
    pub fn launch_lds(&self) -> u32 {
        match (&self.mapping, &self.body) {
            (Mapping::Matrix(tiling), _) => tiling.launch_lds(),
            (Mapping::Gemv(tiling), Body::Contract(c)) => {
                let depth = c.k.iter().map(|axis| self.axes[*axis].extent.clone()).product::<Dim>();
                match (depth.as_const(), limits::scales(self, &c.rhs)) {
                    (Some(depth), Some(scales)) => tiling.launch_lds(depth, scales.bits),
                    _ => 0,
                }
            }
            (Mapping::FlashMatrix(tiling), Body::Attention(a)) => {
                let width = |axis: AxisId| self.axes[axis].extent.as_const();
                let (d, dv) = (width(a.d), width(a.dv));
                d.zip(dv).map_or(0, |(d, dv)| tiling.launch_lds(d, dv))
            }
            _ => 0,
        }
    }

    /// The arguments of a launch, each 8 bytes: the address of every parameter's buffer, then the value of every size
    /// that is an argument. This is the order of the signature that `codegen_hip` prints.
    ///
    /// # Errors
    /// A size that is not bound.
    pub fn launch_arguments<'a>(
        &'a self,
        addresses: impl IntoIterator<Item = u64> + 'a,
        bindings: &'a Bindings,
    ) -> impl Iterator<Item = Result<u64, DimError>> + 'a {
        let sizes = self.symbols.iter().map(|symbol| {
            let value = Dim::symbol(symbol.name()).eval(bindings)?;
            Ok(value as u64)
        });
        addresses.into_iter().map(Ok).chain(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Symbol;
    use crate::entity::Entity;
    use crate::kernel::eval;

    #[test]
    fn a_launch_without_its_sizes_is_an_error() {
        let mut kernel = eval::tests::row_kernel();
        kernel.mapping = Mapping::Threads { block: 64, vector: 2 };
        let Body::Loops(loops) = &mut kernel.body else {
            unreachable!("rows are loops")
        };
        loops.parallel = vec![AxisId::new(0), AxisId::new(1)];
        let bound = Bindings::from([(Symbol::new("n"), 300)]);
        assert_eq!(kernel.launch_size(&bound).map(|s| s.grid), Ok([5, 1, 1]));
        assert!(matches!(
            kernel.launch_size(&Bindings::new()),
            Err(LaunchError::Size { .. })
        ));
    }
}
