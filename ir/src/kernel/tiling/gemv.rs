//! How workgroups compute a contraction with few rows: by lanes, by matrix instructions, by a stream of weights through
//! LDS.

use serde::{Deserialize, Serialize};

use crate::kernel::Fetch;
use crate::target::{MatrixFamily, MatrixInstruction};
use crate::types::DType;

/// How workgroups compute a contraction with few rows: weights go to registers once, at the memory's speed. The left
/// operand lies along k.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct GemvTiling {
    /// Rows of a workgroup.
    pub rows: u32,
    /// Columns of a wave where lanes multiply weights along k: its lanes then share out k. Otherwise of a workgroup,
    /// whose waves do.
    pub cols: u32,
    /// Groups of each column that a lane reads before it multiplies, where the weights lie along k.
    pub unroll: u32,
    /// Waves of a workgroup.
    pub waves: u32,
    /// Lanes of a wave.
    pub lanes: u32,
    /// Steps whose weights a workgroup asks for before the launch before is done, where one row's weights are constants
    /// and lie along the columns.
    pub early: u32,
    /// What multiplies, where it is not the lanes.
    pub matrix: Option<GemvMatrix>,
    /// How the weights of one row come through LDS instead, multiplied by instructions of integers.
    pub stream: Option<GemvStream>,
    pub lhs: Fetch,
    pub rhs: Fetch,
    /// Neighbours along the columns that the epilogue takes and stores at once; divides the extent of the innermost
    /// column axis.
    pub store: u32,
}

/// Matrix instructions for a product with few rows by weights of four bits, whose conversion takes longer otherwise
/// than memory takes to bring them. Columns of the product are the instruction's rows, and rows of the product its
/// columns, of which most stay idle.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct GemvMatrix {
    pub instruction: MatrixInstruction,
    /// The weights of a column have one scale and one zero point in each step along k, and the step's sums are scaled.
    /// Otherwise each weight is multiplied by its own scale, and rounded to its type, of which the scales are then.
    pub scaled_sums: bool,
    /// As of [`Tiling`].
    pub resident: Option<u32>,
}

/// Workgroups that stay, for a product of one row by weights of four bits: waves of their own copy weights to LDS
/// without a pause, chunk after chunk of a tile's columns, while the others multiply the row's digits by integer
/// instructions, a step of a chunk each.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct GemvStream {
    /// Of signed bytes.
    pub instruction: MatrixInstruction,
    /// Workgroups of a row.
    pub workgroups: u32,
    /// Chunks that LDS has room for.
    pub stages: u32,
    /// Steps whose scales come in one access.
    pub pack: u32,
    /// Waves that copy weights, each as many of a chunk's columns; one more copies scales and zero points.
    pub copiers: u32,
    /// Workgroups that a compute unit has room for: one; or two, where the weights of a launch come while the launch
    /// before is at work.
    pub residents: u32,
    /// Bytes of LDS that a workgroup takes at least, so that no unit has room for more.
    pub least_lds: u32,
}

impl GemvStream {
    /// LDS that a unit keeps for itself of each workgroup, in bytes (CUDA C++ Programming Guide, technical
    /// specifications of compute capability 9.0).
    const RESERVED: u32 = 1 << 10;

    /// Says whether workgroups with so many bytes of LDS each fit one unit, of which a workgroup may have `most`.
    pub fn fit_together(bytes: &[u32], most: u32) -> bool {
        let all = bytes
            .iter()
            .map(|b| u64::from(*b) + u64::from(Self::RESERVED))
            .sum::<u64>();
        all <= u64::from(most) + u64::from(Self::RESERVED)
    }

    /// Returns the fewest bytes of LDS of a workgroup with which `residents` of its kind fit a unit and no more do.
    pub fn least_for(residents: u32, most: u32) -> u32 {
        // A unit gives LDS in pieces of 128 bytes.
        let share = (most + Self::RESERVED) / residents.saturating_add(1).max(1);
        ((share / 128 + 1) * 128).saturating_sub(Self::RESERVED)
    }

    /// Elements along k of a step: they share a scale.
    pub const STEP: u32 = 128;

    /// Digits that an element of the row is split into.
    const DIGITS: u32 = 3;

    /// Bytes of LDS for chunks of `cols` columns and a step for each of `waves`, with `scale` bits of a scale and a
    /// zero point, and for a row of `depth` elements.
    fn lds_bytes(&self, cols: u32, waves: u32, depth: i64, scale: u32) -> u32 {
        let weights = waves.saturating_mul(Self::STEP / 2).saturating_add(64);
        let scales = waves.saturating_mul(scale).div_ceil(8);
        let chunk = cols.saturating_mul(weights.saturating_add(scales));
        let steps = u32::try_from(depth).unwrap_or(u32::MAX) / Self::STEP;
        // Digits, and of each step their sums and a power of two.
        let row = steps.saturating_mul(Self::STEP * Self::DIGITS + 20);
        chunk
            .saturating_mul(self.stages)
            .saturating_add(row)
            .max(self.least_lds)
    }
}

impl GemvMatrix {
    /// Lanes that have the same columns and share out a step along k.
    const LANES_ALONG_K: u32 = 4;

    /// Elements along k of a step: a group of the weights from each lane that shares it.
    pub fn step(rhs: Fetch) -> u32 {
        Self::LANES_ALONG_K.saturating_mul(rhs.width)
    }
}

impl GemvTiling {
    /// Threads of a workgroup.
    pub fn threads(&self) -> u32 {
        let copying = self
            .stream
            .as_ref()
            .map_or(0, |stream| stream.copiers.saturating_add(1));
        self.waves.saturating_add(copying).saturating_mul(self.lanes)
    }

    /// The same tiling with so much LDS for a workgroup that stays that `residents` of them fit a unit, of which a
    /// workgroup may have `most` bytes, and no more do.
    #[must_use]
    pub fn with_residents(&self, residents: u32, most: u32) -> GemvTiling {
        let mut tiling = self.clone();
        if let Some(stream) = &mut tiling.stream {
            stream.residents = residents;
            stream.least_lds = GemvStream::least_for(residents, most);
        }
        tiling
    }

    /// Says whether each workgroup that stays has some of so many columns.
    pub fn all_have_some(&self, columns: i64) -> bool {
        let stay = self.stream.as_ref().map_or(1, |stream| i64::from(stream.workgroups));
        columns > i64::from(self.cols).saturating_mul(stay - 1)
    }

    /// Workgroups for `tiles` of the columns of each of some groups of rows.
    pub fn workgroups(&self, tiles: i64, groups: i64) -> i64 {
        let stay = self.stream.as_ref().map(|stream| stream.workgroups.into());
        stay.unwrap_or(tiles).saturating_mul(groups)
    }

    /// Bytes of LDS that a launch gives a workgroup, for a row of `depth` elements and `scale` bits of a scale and a
    /// zero point.
    pub fn launch_lds(&self, depth: i64, scale: u32) -> u32 {
        let stream = self.stream.as_ref();
        stream.map_or(0, |s| s.lds_bytes(self.cols, self.waves, depth, scale))
    }

    /// Elements along k that a workgroup takes at once of weights along the columns.
    pub fn step(&self) -> i64 {
        let along = (self.cols / self.rhs.width.max(1)).max(1);
        i64::from(self.threads() / along) * i64::from(self.lhs.width)
    }

    /// Columns of a workgroup, of a tile where it stays.
    pub fn columns(&self) -> u32 {
        if self.has_own_columns() {
            self.cols.saturating_mul(self.waves)
        } else {
            self.cols
        }
    }

    /// Says whether each wave has columns of its own, and all of k; otherwise the waves of a workgroup share out k.
    fn has_own_columns(&self) -> bool {
        self.rhs.along_k && self.matrix.is_none() && self.stream.is_none()
    }

    /// Bytes of LDS: a workgroup's sums, one set a wave, where its waves share out k; else what lanes exchange of a
    /// row, of which they take four or eight groups of 16 bytes for one of the weights. With a `statistic` of rows,
    /// each wave has its part of that beside its sums.
    pub fn lds_bytes(&self, acc: DType, statistic: bool) -> u32 {
        if self.has_own_columns() {
            let groups = self.rhs.width / self.lhs.width.max(1);
            return match groups {
                4 | 8 => self.threads().saturating_mul(16 * groups),
                _ => 0,
            };
        }
        let each = self.cols.saturating_add(u32::from(statistic));
        let sums = self.waves.saturating_mul(self.rows).saturating_mul(each);
        // Sums of two tiles take turns, and each chunk has two barriers.
        let (turns, barriers) = self
            .stream
            .as_ref()
            .map_or((1, 0), |s| (2, s.stages.saturating_mul(16)));
        let bytes = sums.saturating_mul(turns).saturating_mul(acc.bits().div_ceil(8));
        bytes.saturating_add(barriers)
    }

    /// Says why the numbers of workgroups that stay do not fit each other.
    fn stream_misfit(&self, stream: &GemvStream) -> Option<&'static str> {
        let i = &stream.instruction;
        if i.family != MatrixFamily::MmaSync
            || [i.m, i.n, i.k] != [16, 8, 32]
            || i.input != DType::I8
            || i.rhs != DType::I8
        {
            return Some("a streamed row is multiplied by mma.sync of 16 x 8 x 32 bytes");
        }
        if self.matrix.is_some() || self.rows != 1 || self.unroll != 1 || self.lanes != i.lanes() {
            return Some("workgroups that stay take one row, and a step at a time");
        }
        if !self.cols.is_multiple_of(i.m) || self.cols > self.lanes {
            return Some("a tile's columns are whole instructions, and a lane copies each");
        }
        if !self.rhs.along_k || self.rhs.width != 32 || self.lhs.width != 8 {
            return Some("weights come by 32, and a row by 8");
        }
        if !(1..=1 << 20).contains(&stream.workgroups) || !(1..=64).contains(&stream.stages) {
            return Some("from 1 to 64 chunks, of workgroups that can be launched");
        }
        if ![2, 4, 8].contains(&stream.pack) || !self.waves.is_multiple_of(stream.pack) {
            return Some("a chunk is whole packs of 2, 4 or 8 steps");
        }
        if ![1, 2, 4].contains(&stream.copiers) {
            return Some("1, 2 or 4 waves copy weights");
        }
        if ![1, 2].contains(&stream.residents) {
            return Some("a unit has room for one workgroup that stays, or two");
        }
        None
    }

    /// The same of the numbers of matrix instructions.
    fn matrix_misfit(&self, matrix: &GemvMatrix) -> Option<&'static str> {
        let i = &matrix.instruction;
        if i.family != MatrixFamily::MmaSync || [i.m, i.n, i.k] != [16, 8, 16] {
            return Some("few rows are multiplied by mma.sync of 16 x 8 x 16 or by lanes");
        }
        if self.lanes != i.lanes() || self.rows != i.n || !self.cols.is_multiple_of(i.m) {
            return Some("rows and columns are not the instruction's");
        }
        if self.cols * self.unroll > 64 || !self.unroll.is_power_of_two() {
            return Some("more than a lane's registers hold, or steps that lanes do not share out");
        }
        let words = self.rhs.along_k && self.rhs.width.is_multiple_of(8);
        if !words || ![4, 8].contains(&self.lhs.width) {
            return Some("weights come in whole words, and rows in the elements of one or in half of them");
        }
        if matrix.resident.is_some_and(|n| !(1..=32).contains(&n)) {
            return Some("from 1 to 32 workgroups are resident");
        }
        None
    }

    /// Says why the numbers do not fit each other, if they do not.
    pub fn misfit(&self) -> Option<&'static str> {
        let numbers = [self.rows, self.cols, self.unroll, self.waves, self.lanes, self.store];
        let widths = [self.lhs.width, self.rhs.width];
        if numbers.contains(&0) || widths.contains(&0) {
            return Some("a tiling of nothing");
        }
        if numbers.iter().chain(&widths).any(|n| *n > 4096) || self.threads() > 1024 {
            return Some("a tiling too large for any workgroup");
        }
        if self.rows > 16 || self.unroll > 8 {
            return Some("more than a lane's registers hold");
        }
        if !self.lanes.is_power_of_two() || !(32..=64).contains(&self.lanes) {
            return Some("a wave has 32 or 64 lanes");
        }
        if !self.lhs.along_k {
            return Some("the left operand lies along k");
        }
        if !self.cols.is_multiple_of(self.store) {
            return Some("the width of the stores must divide the columns of a workgroup");
        }
        let plain = self.matrix.is_none() && self.stream.is_none() && !self.rhs.along_k;
        if self.early > 0 && !(plain && self.rows == 1 && self.early.saturating_mul(self.lhs.width) <= 16) {
            return Some("of one row's weights along the columns, 16 groups of a lane at most are asked for early");
        }
        if let Some(stream) = &self.stream {
            return self.stream_misfit(stream);
        }
        if let Some(matrix) = &self.matrix {
            return self.matrix_misfit(matrix);
        }
        if self.rhs.along_k {
            if !self.rhs.width.is_multiple_of(self.lhs.width) {
                return Some("a group of the weights is whole groups of a row");
            }
            if self.cols > 16 {
                return Some("more than a lane's registers hold");
            }
        } else if !self.cols.is_multiple_of(self.rhs.width)
            || !(self.cols / self.rhs.width).is_power_of_two()
            || self.cols / self.rhs.width > self.lanes
        {
            return Some("a power of two of a wave's lanes goes along the columns");
        }
        None
    }
}
