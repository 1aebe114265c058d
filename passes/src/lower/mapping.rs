//! How a kernel's points are spread over a GPU's threads.
//!
//! Before: a kernel whose body is complete. After: its [`Mapping`], from the kernel's sizes (symbols at their hints), the
//! strides of its accesses and the target's facts. The printer follows it and decides nothing.
//!
//! | body | mapping |
//! |---|---|
//! | loops without folds | `Threads`, 16 bytes a thread where the innermost axis is contiguous and aligned |
//! | loops with folds along contiguous rows | `Lanes` up to 16 accesses a lane of a wave, `Block` beyond |
//! | other folds (windows, columns) | `Threads`; `Block` when points are too few to fill the device |
//! | contraction | `Tile`: the cheapest of a list by waste, rounds of workgroups and LDS traffic; operands fetched as they lie |
//! | attention | `Flash`: tiles halved until queries, keys, values and scores fit LDS |
//! | scan | `Threads` a row, or `Block` for few long rows |
//! | sort | `Threads` a row when short, `Block` otherwise; see [`Mapping`] |

use ir::kernel::access::Motions;
use ir::kernel::{
    AttentionBody, AxisId, Body, ContractBody, Expr, ExprId, Fetch, Kernel, Loops, Mapping, ScanBody, SortBody, Stmt,
};
use ir::target::Platform;
use ir::{DType, Entity, Symbols, Target};

/// Threads of an ordinary workgroup.
const BLOCK: u32 = 256;
/// Bytes of the widest memory access of a lane.
const ACCESS_BYTES: i64 = 16;
/// Candidates that a top-k keeps in LDS at most: 8 to 12 bytes each.
const SORT_CANDIDATES: i64 = 4096;

/// Chooses the mapping of a kernel.
pub fn choose(kernel: &Kernel, symbols: &Symbols, target: &Target) -> Mapping {
    if target.platform == Platform::Cpu {
        return Mapping::Host;
    }
    let facts = Facts {
        kernel,
        symbols,
        target,
    };
    match &kernel.body {
        Body::Loops(loops) => facts.loops(loops),
        Body::Contract(body) => facts.contract(body),
        Body::Attention(body) => facts.attention(body),
        Body::Scan(body) => facts.scan(body),
        Body::Sort(body) => facts.sort(body),
    }
}

struct Facts<'a> {
    kernel: &'a Kernel,
    symbols: &'a Symbols,
    target: &'a Target,
}

impl Facts<'_> {
    /// The number of points of some axes, symbols at their hints; at least 1.
    fn points(&self, axes: &[AxisId]) -> i64 {
        axes.iter().fold(1i64, |n, a| {
            n.saturating_mul(self.kernel.axes[*a].extent.hint(self.symbols).max(1))
        })
    }

    fn motions(&self, axis: AxisId, width: i64) -> Motions<'_> {
        Motions::new(self.kernel, self.symbols, axis, width)
    }

    fn loops(&self, loops: &Loops) -> Mapping {
        let folds: Vec<&[AxisId]> = loops
            .stmts
            .iter()
            .filter_map(|s| match s {
                Stmt::Fold { axes, .. } => Some(axes.as_slice()),
                _ => None,
            })
            .collect();
        let Some(row) = folds.iter().copied().max_by_key(|axes| self.points(axes)) else {
            return self.pointwise(loops);
        };
        let (points, length) = (self.points(&loops.parallel), self.points(row));
        let device = i64::from(self.target.compute_units) * i64::from(BLOCK);
        let wave = i64::from(self.target.wave_size);
        let contiguous = row.last().is_some_and(|axis| self.reads_along(&loops.stmts, *axis));
        if !contiguous {
            let few = points < device / 4 && length >= 8 * wave;
            return if few {
                Mapping::Block {
                    block: BLOCK,
                    vector: 1,
                }
            } else {
                self.threads(points, 1)
            };
        }
        // Every row of the kernel must allow the width, since one width serves them all.
        let vector = [16, 8, 4, 2]
            .into_iter()
            .find(|w| self.row_allows(loops, *w))
            .unwrap_or(1);
        let accesses = (length + vector - 1) / vector;
        let vector = vector as u32;
        if accesses < 4 && points >= device {
            return self.threads(points, 1);
        }
        let fills_device = points >= i64::from(self.target.compute_units) * 8;
        if accesses <= wave * if fills_device { 16 } else { 4 } {
            let lanes = (accesses as u64).next_power_of_two().min(wave as u64) as u32;
            return Mapping::Lanes {
                lanes,
                block: BLOCK.max(lanes),
                vector,
            };
        }
        let block = if accesses >= 16 * 1024 {
            1024
        } else if accesses >= 2048 {
            512
        } else {
            BLOCK
        };
        Mapping::Block { block, vector }
    }

    /// A thread a point.
    fn threads(&self, points: i64, vector: u32) -> Mapping {
        let threads = points / i64::from(vector);
        // Small kernels use small workgroups, so that more compute units take part.
        let block = if threads < i64::from(self.target.compute_units) * i64::from(BLOCK) {
            128
        } else {
            BLOCK
        };
        Mapping::Threads { block, vector }
    }

    fn pointwise(&self, loops: &Loops) -> Mapping {
        let points = self.points(&loops.parallel);
        let Some(&last) = loops.parallel.last() else {
            return self.threads(points, 1);
        };
        if loops
            .stmts
            .iter()
            .any(|s| !matches!(s, Stmt::Store { .. } | Stmt::Let { .. }))
        {
            return self.threads(points, 1);
        }
        let vector = [8, 4, 2].into_iter().find(|w| {
            // Without outer axes a tail is peeled; with them every row must start aligned.
            let rows_align = loops.parallel.len() == 1 || self.kernel.axes[last].extent.known_divisor() % w == 0;
            rows_align
                && self.stores_allow(&loops.stmts, last, *w)
                && self.widest(&loops.stmts, last) * w <= ACCESS_BYTES
        });
        self.threads(points, vector.unwrap_or(1) as u32)
    }

    /// Says whether every store is contiguous and aligned along `axis` in groups of `width`.
    fn stores_allow(&self, stmts: &[Stmt], axis: AxisId, width: i64) -> bool {
        let mut motions = self.motions(axis, width);
        stmts.iter().all(|s| match s {
            Stmt::Store { index, .. } => motions.of(*index).is_some_and(|m| m.is_wide(width)),
            _ => true,
        })
    }

    /// Bytes of the widest element that is read or written contiguously along `axis`.
    fn widest(&self, stmts: &[Stmt], axis: AxisId) -> i64 {
        let mut widest = 1;
        let mut motions = self.motions(axis, 1);
        self.for_each_access(stmts, |dtype, index, _| {
            if motions.of(index).is_some_and(|m| m.stride.is(1)) {
                widest = widest.max(i64::from(dtype.bits()).div_euclid(8));
            }
        });
        widest
    }

    /// Says whether anything is read contiguously along `axis`, or nothing that is read moves along it.
    fn reads_along(&self, stmts: &[Stmt], axis: AxisId) -> bool {
        let (mut any, mut moving) = (false, false);
        let mut motions = self.motions(axis, 1);
        self.for_each_access(stmts, |_, index, is_store| {
            if !is_store && !motions.is_fixed(index) {
                moving = true;
                any |= motions.of(index).is_some_and(|m| m.stride.is(1));
            }
        });
        any || !moving
    }

    /// Says whether all folds and row stores may go `width` elements at a time along their innermost axis: no tails, and
    /// what is contiguous is aligned and no wider than an access.
    fn row_allows(&self, loops: &Loops, width: i64) -> bool {
        loops.stmts.iter().all(|s| {
            let axes = match s {
                Stmt::Fold { axes, .. } | Stmt::Store { axes, .. } => axes,
                Stmt::Let { .. } => return true,
                Stmt::Update { .. } => return false,
            };
            let Some(&inner) = axes.last() else { return true };
            if self.kernel.axes[inner].extent.known_divisor() % width != 0 {
                return false;
            }
            let one = std::slice::from_ref(s);
            let mut wide = true;
            let (mut single, mut grouped) = (self.motions(inner, 1), self.motions(inner, width));
            self.for_each_access(one, |_, index, _| {
                if single.of(index).is_some_and(|m| m.stride.is(1)) {
                    wide &= grouped.of(index).is_some_and(|m| m.is_wide(width));
                }
            });
            wide && self.widest(one, inner) * width <= ACCESS_BYTES
        })
    }

    /// Calls `f(type, index, is a store)` for each load and store below the statements.
    fn for_each_access(&self, stmts: &[Stmt], mut f: impl FnMut(DType, ExprId, bool)) {
        let mut stack = Vec::new();
        for s in stmts {
            match s {
                Stmt::Let { value, .. } | Stmt::Fold { value, .. } => stack.push(*value),
                Stmt::Store {
                    param, index, value, ..
                }
                | Stmt::Update {
                    param, index, value, ..
                } => {
                    f(self.kernel.params[*param].dtype, *index, true);
                    stack.extend([*index, *value]);
                }
            }
        }
        self.for_each_load(stack, |dtype, index| f(dtype, index, false));
    }

    /// Calls `f(type, index)` for each load below some expressions.
    fn for_each_load(&self, roots: Vec<ExprId>, mut f: impl FnMut(DType, ExprId)) {
        let mut seen = vec![false; self.kernel.exprs.len()];
        let mut stack = roots;
        while let Some(e) = stack.pop() {
            if std::mem::replace(&mut seen[e.index()], true) {
                continue;
            }
            let expr = &self.kernel.exprs[e];
            if let Expr::Load { param, index } = expr {
                f(self.kernel.params[*param].dtype, *index);
            }
            expr.for_each_operand(|o| stack.push(o));
        }
    }

    fn contract(&self, body: &ContractBody) -> Mapping {
        let (batch, m, n, k) = (
            self.points(&body.batch),
            self.points(&body.m),
            self.points(&body.n),
            self.points(&body.k),
        );
        let wide = matches!(self.kernel.vars[body.acc], DType::F64 | DType::I64);
        let ceil = |a: i64, b: i64| (a + b - 1) / b;
        let cost = |t: &[u32; 5]| {
            let [bm, bn, bk, tm, tn] = t.map(i64::from);
            let tiles = ceil(m, bm).saturating_mul(ceil(n, bn)).saturating_mul(batch);
            // Two workgroups share a compute unit; while there are fewer, each gets more of it.
            let rounds = (tiles as f64 / (2.0 * f64::from(self.target.compute_units)))
                .max(0.5)
                .ceil();
            // Per multiply-add: one unit, and what its two operands cost to fetch from LDS.
            let multiply_add = 1.0 + 0.75 * (1.0 / tm as f64 + 1.0 / tn as f64);
            let fetch = 4.0 * (1.0 / bm as f64 + 1.0 / bn as f64);
            let work = (bm * bn) as f64 * (multiply_add + fetch) * (ceil(k, bk) * bk) as f64;
            // Workgroups of few waves do not fill the compute unit's SIMDs.
            let threads = (bm / tm * (bn / tn)) as f64;
            rounds * work * (f64::from(BLOCK) / threads).max(1.0).sqrt()
        };
        let best = TILES
            .iter()
            .filter(|t| !wide || t[3] * t[4] <= 16)
            .min_by(|a, b| cost(a).total_cmp(&cost(b)))
            .unwrap_or(&TILES[TILES.len() - 1]);
        let [block_m, block_n, block_k, thread_m, thread_n] = *best;
        let threads = i64::from((block_m / thread_m) * (block_n / thread_n));
        let held = |block: u32| i64::from(block) * i64::from(block_k) / threads;
        Mapping::Tile {
            block_m,
            block_n,
            block_k,
            thread_m,
            thread_n,
            lhs: self.fetch(body.lhs, &body.m, &body.k, held(block_m)),
            rhs: self.fetch(body.rhs, &body.n, &body.k, held(block_n)),
        }
    }

    /// How an operand is fetched: along the axis on which its elements are neighbours in memory (`k` where both are), as many at
    /// once as always come whole, fill an access and keep every thread busy, which holds `held` elements of the tile.
    fn fetch(&self, value: ExprId, rows: &[AxisId], k: &[AxisId], held: i64) -> Fetch {
        let width = |axes: &[AxisId]| {
            let inner = *axes.last()?;
            let mut motions = self.motions(inner, 1);
            let mut widest: Option<i64> = None;
            self.for_each_load(vec![value], |dtype, index| {
                if motions.of(index).is_some_and(|m| m.stride.is(1)) {
                    let fills = ACCESS_BYTES / i64::from(dtype.bits().div_ceil(8));
                    widest = Some(widest.map_or(fills, |w| w.min(fills)));
                }
            });
            let most = widest?.min(held).min(8);
            let divides = self.kernel.axes[inner].extent.known_divisor();
            let mut width = 1;
            while width * 2 <= most && divides % (width * 2) == 0 {
                width *= 2;
            }
            Some(width as u32)
        };
        match (width(k), width(rows)) {
            (Some(width), _) => Fetch { along_k: true, width },
            (None, Some(width)) => Fetch { along_k: false, width },
            (None, None) => Fetch {
                along_k: true,
                width: 1,
            },
        }
    }

    fn attention(&self, body: &AttentionBody) -> Mapping {
        let (d, dv) = (self.points(&[body.d]), self.points(&[body.dv]));
        let queries = self.points(&[body.q]);
        // Two workgroups should fit a compute unit's LDS.
        let budget = i64::from(self.target.lds_bytes.min(64 << 10)) / 2;
        let bytes = |q: i64, k: i64| 4 * (q * (d + 1) + k * (d + 1) + k * dv + q * (k + 1) + 3 * q);
        let (mut block_q, mut block_k) = (32i64, 32i64);
        while block_q > 4 && block_q / 2 >= queries {
            block_q /= 2;
        }
        // Heads too wide for half of LDS may have all of it.
        let limit = if bytes(8, 8) <= budget {
            budget
        } else {
            i64::from(self.target.lds_bytes.min(64 << 10))
        };
        while bytes(block_q, block_k) > limit && (block_q > 1 || block_k > 1) {
            if block_k >= block_q {
                block_k = (block_k / 2).max(1);
            } else {
                block_q /= 2;
            }
        }
        Mapping::Flash {
            block_q: block_q as u32,
            block_k: block_k as u32,
            block: if block_q >= 16 { BLOCK } else { 128 },
        }
    }

    fn scan(&self, body: &ScanBody) -> Mapping {
        let (points, length) = (self.points(&body.parallel), self.points(&[body.axis]));
        let few = points < i64::from(self.target.compute_units) * i64::from(self.target.wave_size);
        if few && length > 2 * i64::from(self.target.wave_size) {
            Mapping::Block {
                block: BLOCK,
                vector: 1,
            }
        } else {
            Mapping::Threads { block: 64, vector: 1 }
        }
    }

    fn sort(&self, body: &SortBody) -> Mapping {
        let length = self.points(&[body.axis]);
        let ranks = self.kernel.axes[body.rank].extent.bounds(self.symbols).1;
        if length <= 32 || (length <= 256 && self.points(&[body.rank]) <= 2) {
            return Mapping::Threads { block: 64, vector: 1 };
        }
        // Candidates in LDS: twice the largest k, or the whole row where it is shorter; none where k has no such bound.
        let vector = match ranks {
            Some(k) if k <= SORT_CANDIDATES / 2 => {
                let row = self.kernel.axes[body.axis]
                    .extent
                    .bounds(self.symbols)
                    .1
                    .unwrap_or(i64::MAX);
                let wanted = (4 * k.max(1))
                    .min(row)
                    .max(2 * k.max(1))
                    .clamp(2 * i64::from(BLOCK), SORT_CANDIDATES);
                ((wanted as u64).next_power_of_two() / u64::from(BLOCK)) as u32
            }
            _ => 1,
        };
        Mapping::Block { block: BLOCK, vector }
    }
}

/// Tiles to choose from: `block_m, block_n, block_k, thread_m, thread_n`.
const TILES: [[u32; 5]; 12] = [
    [128, 128, 8, 8, 8],
    [128, 64, 16, 8, 4],
    [64, 128, 16, 4, 8],
    [64, 64, 16, 4, 4],
    [128, 32, 16, 4, 4],
    [32, 128, 16, 4, 4],
    [64, 32, 32, 4, 2],
    [32, 64, 32, 2, 4],
    [32, 32, 32, 2, 2],
    [16, 64, 32, 1, 4],
    [64, 16, 32, 4, 1],
    [4, 64, 64, 1, 1],
];
