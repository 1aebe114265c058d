//! Pointwise bodies, rows and windows onto threads.

use ir::kernel::access::{Motions, unconditional_loads};
use ir::kernel::needs::transpose_lds;
use ir::kernel::{AxisId, Expr, ExprId, Loops, Mapping, RowBody, Stmt, TransformBody, WindowBody};
use ir::{DType, Dim, Entity};

use super::{ACCESS_BYTES, BLOCK, Mapper};

/// Registers that a thread has for what is held of its row, at most.
const MOST_HELD: i64 = 96;
/// Registers of a thread beside what it holds of its row (as compiled for sm_90).
const BESIDE_HELD: i64 = 24;
/// Registers more that it needs where some threads have nothing to do in the last step, and steps that are under way at
/// once of what is read as it is needed.
const FOR_IDLE: i64 = 8;
const PASSING: i64 = 2;
/// Registers of a thread where the most threads that there may be share a unit (sm_90: 2048 share 65,536).
const LEAST_REGISTERS: i64 = 32;
/// Elements of a row that a thread of an ordinary workgroup has, at most; longer rows have larger workgroups.
const ELEMENTS: i64 = 32;

/// Elements of squares that a thread transforms in registers, at most.
const MOST_SQUARES: i64 = 72;

/// Reads of a point from which on a thread of a small kernel has fewer points: 18 of them, as of an attention in nine
/// parts, by 1,024 threads take 2.5 us, of which one latency of memory is 0.8 (H200).
const MANY_READS: i64 = 8;

/// Taps of a window that are read at once, at most.
const UNROLLED_TAPS: i64 = 16;

/// Accesses of a thread that transposes which are under way at once, at most: the compilers begin all that they unroll,
/// and NVRTC spills from some point on (narrow accesses of bytes: 64).
const MOST_UNDER_WAY: u32 = 16;

/// Points of a transposing tile along the stored axis, at least: rows of 32 bytes or more are stored.
const LEAST_ALONG: u32 = 16;

/// Bytes of LDS that a transposing kernel may declare on any target.
const MOST_DECLARED: u32 = 48 << 10;

/// A load that may go through LDS.
#[derive(Clone, Copy)]
struct Apart {
    load: ExprId,
    index: ExprId,
    dtype: DType,
    bytes: i64,
}

impl Mapper<'_> {
    pub(super) fn loops(&self, loops: &Loops) -> Mapping {
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
            return self.columns(points, length);
        }
        // Every window of the kernel must allow the width, since one width serves them all.
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
        Mapping::Block { block: BLOCK, vector }
    }

    /// A window a thread, of as many neighbouring channels as an access holds, while that leaves threads enough.
    pub(super) fn window(&self, body: &WindowBody) -> Mapping {
        let loops = &body.loops;
        let points = self.points(&loops.parallel);
        let device = i64::from(self.target.compute_units) * i64::from(BLOCK);
        if points < device / 4 {
            return match self.loops(loops) {
                Mapping::Threads { vector: 1, .. } => self.windows(body, points, 1),
                shared => shared,
            };
        }
        let Some(&last) = loops.parallel.last() else {
            return self.windows(body, points, 1);
        };
        // Neighbours share their windows' bounds.
        let moves = body.along.iter().any(|a| a.outputs == Some(last));
        if moves && let strips @ Mapping::Strips(_) = self.strips(body) {
            return strips;
        }
        let vector = [16, 8, 4, 2].into_iter().find(|w| {
            !moves
                && self.kernel.axes[last].extent.known_divisor() % w == 0
                && self.stores_allow(&loops.stmts, last, *w)
                && self.widest(&loops.stmts, last) * w <= ACCESS_BYTES
                && points / w >= device / 2
        });
        self.windows(body, points, vector.unwrap_or(1) as u32)
    }

    /// A thread for the windows of `vector` neighbours.
    fn windows(&self, body: &WindowBody, points: i64, vector: u32) -> Mapping {
        let taps: Dim = body
            .taps()
            .iter()
            .map(|a| self.kernel.axes[*a].extent.clone())
            .product();
        Mapping::Windows {
            block: self.block(points / i64::from(vector)),
            vector,
            unroll: taps.as_const().is_some_and(|taps| taps <= UNROLLED_TAPS),
        }
    }

    /// A square a thread, or those of two neighbouring channels while that leaves threads enough: more would spill.
    pub(super) fn transform(&self, body: &TransformBody) -> Mapping {
        let points = self.points(&body.parallel);
        let device = i64::from(self.target.compute_units) * i64::from(BLOCK);
        let vector = [4, 2].into_iter().find(|w| {
            let Some(&last) = body.parallel.last() else {
                return false;
            };
            body.matrix.inputs() * body.matrix.inputs() * w <= MOST_SQUARES
                && self.kernel.axes[last].extent.known_divisor() % w == 0
                && self.stores_allow(&body.stmts, last, *w)
                && points / w >= device
        });
        let vector = vector.unwrap_or(1);
        Mapping::Threads {
            block: self.block(points / vector),
            vector: vector as u32,
        }
    }

    /// Folds whose elements are apart in memory: neighbouring points are what is contiguous.
    fn columns(&self, points: i64, length: i64) -> Mapping {
        let device = i64::from(self.target.compute_units) * i64::from(BLOCK);
        if points < device / 4 && length >= 8 * i64::from(self.target.wave_size) {
            return Mapping::Block {
                block: BLOCK,
                vector: 1,
            };
        }
        self.threads(points, 1)
    }

    /// Rows, read once where they fit the registers.
    pub(super) fn row(&self, body: &RowBody) -> Mapping {
        let loops = &body.loops;
        let extents: Dim = body.row.iter().map(|a| self.kernel.axes[*a].extent.clone()).product();
        let (points, mut length) = (self.points(&loops.parallel), self.points(&body.row));
        let contiguous = body
            .row
            .last()
            .is_some_and(|axis| self.reads_along(&loops.stmts, *axis));
        if !contiguous {
            return self.columns(points, length);
        }
        let vector = [16, 8, 4, 2]
            .into_iter()
            .find(|w| self.row_allows(loops, *w))
            .unwrap_or(1);
        let wave = i64::from(self.target.wave_size);
        if extents.as_const().is_none() {
            // The hint may be far from what comes: a wave's rows are served well at every length below.
            let longest = extents.bounds(self.symbols).1.unwrap_or(i64::MAX);
            length = length.max(4 * wave * vector).min(longest.max(1));
        }
        let accesses = (length + vector - 1) / vector;
        let units = i64::from(self.target.compute_units);
        if accesses < 4 && points >= units * i64::from(BLOCK) {
            return self.threads(points, 1);
        }
        // Registers that what is held takes a step, and how many steps a workgroup's threads can afford.
        let bits: i64 = body
            .held
            .iter()
            .map(|e| i64::from(self.kernel.exprs.dtype(*e).bits().max(8)))
            .sum();
        let file = i64::from(self.target.vector_registers) * 256;
        let affordable = |threads: i64| match bits {
            0 => 0,
            _ => (file / 2 / threads).min(MOST_HELD) * 32 / (bits * vector),
        };
        let steps = |threads: i64| (accesses + threads - 1) / threads;
        let (held, passing) = self.held_bits(body);
        let room = |threads: i64, steps: i64, idle: bool| {
            let registers = (held * steps + passing * steps.min(PASSING)) * vector / 32;
            self.room(threads, registers + i64::from(idle) * FOR_IDLE)
        };
        let rows = |lanes: i64, block: i64, steps: i64| {
            let room = room(block, steps, steps * lanes != accesses);
            let is_crowded = steps > 0 && points * lanes / block >= units * room;
            Mapping::Rows {
                lanes: lanes as u32,
                block: block as u32,
                vector: vector as u32,
                steps: steps as u32,
                as_needed: is_crowded,
                resident: (is_crowded && self.target.told_residents).then_some(room as u32),
            }
        };
        let block = i64::from(BLOCK);
        // A wave a row asks for no barrier; while rows are few, each gets more threads.
        let alone = if bits == 0 { 16 } else { 4 };
        let waves = if points >= units * 8 { alone } else { 1 };
        if accesses <= wave * waves {
            let lanes = (accesses as u64).next_power_of_two().min(wave as u64) as i64;
            let fits = steps(lanes) <= affordable(block);
            return rows(lanes, block, if fits { steps(lanes) } else { 0 });
        }
        if bits == 0 {
            let threads = match accesses {
                16_384.. => 1024,
                2048.. => 512,
                _ => block,
            };
            return rows(threads, threads, 0);
        }
        // Few elements a thread while the workgroup is small; the fewest threads that stand idle in the last step.
        let fits = |threads: &i64| {
            let most = if *threads <= block { ELEMENTS / vector } else { i64::MAX };
            steps(*threads) <= affordable(*threads).min(most)
        };
        let idle = |threads: &i64| (steps(*threads) * threads - accesses, -threads);
        let small = (1..=block / wave)
            .map(|w| w * wave)
            .filter(|t| 2 * t >= block.min(accesses));
        if let Some(threads) = small.filter(fits).min_by_key(idle) {
            // Where units are full, memory is: what counts is how much is under way.
            let room = |t: &i64| room(*t, steps(*t), idle(t).0 > 0);
            let under_way = |t: &i64| room(t) * steps(*t) * t;
            let several = (1..=threads / wave).map(|w| w * wave).filter(fits);
            let crowded = several.filter(|t| points >= units * room(t) && idle(t).0 <= idle(&threads).0);
            let crowded = crowded.filter(|_| self.target.told_residents);
            let threads = crowded.max_by_key(|t| (under_way(t), *t)).unwrap_or(threads);
            return rows(threads, threads, steps(threads));
        }
        let threads = [512, 1024].into_iter().find(fits);
        threads.map_or(rows(512, 512, 0), |t| rows(t, t, steps(t)))
    }

    /// Bits of a thread's registers that an element of a row takes (as compiled for sm_90): from the first step that
    /// reads it to the last, and while the steps of the stores are at it.
    fn held_bits(&self, body: &RowBody) -> (i64, i64) {
        let exprs = &self.kernel.exprs;
        let mut folded = vec![false; exprs.len()];
        for s in &body.loops.stmts {
            if let Stmt::Fold { value, .. } = s {
                folded[value.index()] = true;
            }
        }
        for (id, e) in exprs.iter().rev() {
            if folded[id.index()] {
                e.for_each_operand(|o| folded[o.index()] = true);
            }
        }
        let is_load = |e: ExprId| matches!(exprs[e], Expr::Load { .. });
        let is_computed_from = body.held.iter().any(|e| !is_load(*e));
        let (mut held, mut passing) = (0, 0);
        for &e in &body.held {
            let dtype = exprs.dtype(e);
            let bits = i64::from(dtype.bits().max(8));
            match (is_load(e), folded[e.index()]) {
                // Read as it is needed, by the stores alone. What is converted by a shift or not at all is read ahead.
                (true, false) if dtype == DType::F16 => passing += bits,
                // What several folds and stores read stays converted, unless they read what is computed from it.
                (true, true) if !is_computed_from => held += bits.max(32),
                _ => held += bits,
            }
        }
        (held, passing)
    }

    /// Workgroups that a unit has registers for, each thread of which holds `held` of them beside what it computes
    /// with.
    fn room(&self, threads: i64, held: i64) -> i64 {
        let waves = threads / i64::from(self.target.wave_size);
        let registers = ((held + BESIDE_HELD + 7) / 8 * 8).max(LEAST_REGISTERS);
        let beside_each_other = i64::from(self.target.simds) * (i64::from(self.target.vector_registers) / registers);
        (beside_each_other / waves.max(1)).clamp(1, 32)
    }

    /// A thread a point.
    pub(super) fn threads(&self, points: i64, vector: u32) -> Mapping {
        Mapping::Threads {
            block: self.block(points / i64::from(vector)),
            vector,
        }
    }

    /// Threads of a workgroup: small kernels use small workgroups, so that more compute units take part.
    fn block(&self, threads: i64) -> u32 {
        if threads < i64::from(self.target.compute_units) * i64::from(BLOCK) {
            128
        } else {
            BLOCK
        }
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
        if let Some(transpose) = self.transpose(loops, last) {
            return transpose;
        }
        let vector = [16, 8, 4, 2].into_iter().find(|w| {
            // Without outer axes a tail is peeled; with them every row must start aligned.
            let rows_align = loops.parallel.len() == 1 || self.kernel.axes[last].extent.known_divisor() % w == 0;
            rows_align
                && self.stores_allow(&loops.stmts, last, *w)
                && self.widest(&loops.stmts, last) * w <= ACCESS_BYTES
        });
        let Some(vector) = vector else {
            return self.threads(points, 1);
        };
        // Up to four accesses on their way from each thread, while there are threads enough.
        let (mut reads, mut motions) = (0i64, self.motions(last, 1));
        self.for_each_access(&loops.stmts, |_, index, is_store| {
            reads += i64::from(!is_store && motions.of(index).is_some_and(|m| m.stride.is(1)));
        });
        // While units stand idle, what a thread does takes the kernel's time.
        let enough = i64::from(self.target.compute_units) * i64::from(self.target.wave_size);
        let mut vector = vector;
        while reads >= MANY_READS && vector > 1 && points / vector < enough {
            vector /= 2;
        }
        let device = i64::from(self.target.compute_units) * i64::from(BLOCK) * 4;
        let unroll = [4, 2]
            .into_iter()
            .find(|u| u * reads.max(1) <= 4 && points / vector / u >= device);
        match unroll {
            Some(unroll) => Mapping::Stream {
                block: BLOCK,
                vector: vector as u32,
                unroll: unroll as u32,
            },
            None => self.threads(points, vector as u32),
        }
    }

    /// Tiles through LDS, for a body that stores neighbours along the last axis and reads neighbours along another one.
    fn transpose(&self, loops: &Loops, last: AxisId) -> Option<Mapping> {
        let stored = self.store_bytes(&loops.stmts);
        let mut to_last = self.motions(last, 1);
        let contiguous = |s: &Stmt, m: &mut Motions<'_>| match s {
            Stmt::Store { index, .. } => m.of(*index).is_some_and(|m| m.stride.is(1)),
            _ => true,
        };
        if !loops.stmts.iter().all(|s| contiguous(s, &mut to_last)) {
            return None;
        }
        let loads = self.bytes_loaded(unconditional_loads(self.kernel, &loops.stmts));
        for &axis in loops.parallel.iter().rev().skip(1) {
            let mut along = self.motions(axis, 1);
            let apart: Vec<Apart> = loads
                .iter()
                .filter(|load| along.of(load.index).is_some_and(|m| m.stride.is(1)))
                .filter(|load| to_last.of(load.index).is_some_and(|m| !m.is_fixed() && !m.stride.is(1)))
                .copied()
                .collect();
            let read = apart.iter().map(|load| load.bytes).max().unwrap_or(0);
            if read == 0 {
                continue;
            }
            let (down, right) = (self.points(&[axis]), self.points(&[last]));
            let vector = ACCESS_BYTES / read.max(stored);
            if down < 2 * vector || right < 2 * vector || self.points(&loops.parallel) < 4096 {
                continue;
            }
            let divides = |a: AxisId| self.kernel.axes[a].extent.known_divisor() % vector == 0;
            let mut wide = self.motions(axis, vector);
            let whole = |load: &Apart, wide: &mut Motions<'_>| wide.of(load.index).is_some_and(|m| m.is_wide(vector));
            let is_wide = divides(axis) && apart.iter().all(|load| whole(load, &mut wide));
            let width = |wide: bool| if wide { vector } else { 1 };
            let (load, store) = (
                width(is_wide),
                width(divides(last) && self.stores_allow(&loops.stmts, last, vector)),
            );
            // Loads along this axis from places along the last one that a division or memory gives go through LDS too;
            // those that all points of the last axis share do not.
            let mut grouped = self.motions(axis, load);
            let mut tiled = apart.clone();
            tiled.extend(loads.iter().copied().filter(|l| {
                let known = apart.iter().any(|a| a.load == l.load);
                let apart = !to_last.is_fixed(l.index) && to_last.of(l.index).is_none_or(|m| !m.stride.is(1));
                let neighbours = grouped.of(l.index).is_some_and(|m| m.is_wide(load));
                !known && apart && neighbours && l.bytes * load <= ACCESS_BYTES
            }));
            let (across, along) = self.tile_in_lds(vector, &mut tiled);
            return Some(Mapping::Transpose {
                axis,
                // Each thread has something to do in both directions.
                block: BLOCK.min(across * along / vector as u32),
                along,
                across,
                load: load as u32,
                store: store as u32,
                unroll: MOST_UNDER_WAY,
                tiled: tiled.iter().map(|load| load.load).collect(),
            });
        }
        None
    }

    /// The points of a tile across and along, where `vector` elements are an access, so that the tiles of all loads
    /// fit: fewer along where loads are many. Loads that do not fit by then are left out, and read from memory as they
    /// lie.
    fn tile_in_lds(&self, vector: i64, loads: &mut Vec<Apart>) -> (u32, u32) {
        // Two workgroups or more share a unit.
        let budget = u64::from(self.target.lds_bytes.min(MOST_DECLARED) / 2);
        let (across, most) = (8 * vector as u32, (8 * vector as u32).max(64));
        let least = LEAST_ALONG.max(vector as u32);
        let lds = |along: u32, loads: &[Apart]| transpose_lds(across * along, loads.iter().map(|l| l.dtype));
        let mut along = most;
        while along > least && lds(along, loads) > budget {
            along /= 2;
        }
        while loads.len() > 1 && lds(along, loads) > budget {
            loads.pop();
        }
        (across, along)
    }

    /// Loads of whole bytes.
    fn bytes_loaded(&self, loads: Vec<ExprId>) -> Vec<Apart> {
        let exprs = &self.kernel.exprs;
        let found = loads.into_iter().filter_map(|load| match exprs[load] {
            Expr::Load { param, index } => {
                let dtype = self.kernel.params[param].dtype;
                let bytes = i64::from(dtype.bits() / 8);
                Some(Apart {
                    load,
                    index,
                    dtype,
                    bytes,
                })
            }
            _ => None,
        });
        found.filter(|load| load.bytes > 0).collect()
    }

    /// Bytes of the widest element that is stored.
    pub(super) fn store_bytes(&self, stmts: &[Stmt]) -> i64 {
        let stored = stmts.iter().filter_map(|s| match s {
            Stmt::Store { param, .. } => Some(i64::from(self.kernel.params[*param].dtype.bits().max(8)) / 8),
            _ => None,
        });
        stored.max().unwrap_or(1)
    }

    /// Says whether every store is contiguous and aligned along `axis` in groups of `width`.
    pub(super) fn stores_allow(&self, stmts: &[Stmt], axis: AxisId, width: i64) -> bool {
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

    /// Bytes of the widest element that is read or written contiguously along `axis` and differs between points: what
    /// all points share stays in caches, and is read by several accesses where it is wider.
    fn widest_moving(&self, loops: &Loops, stmts: &[Stmt], axis: AxisId) -> i64 {
        let (mut widest, mut shared) = (1, 1);
        let mut motions = self.motions(axis, 1);
        let mut outer: Vec<Motions<'_>> = loops.parallel.iter().map(|a| self.motions(*a, 1)).collect();
        self.for_each_access(stmts, |dtype, index, _| {
            if motions.of(index).is_some_and(|m| m.stride.is(1)) {
                let bytes = i64::from(dtype.bits()).div_euclid(8);
                if outer.iter_mut().all(|m| m.is_fixed(index)) {
                    shared = shared.max(bytes);
                } else {
                    widest = widest.max(bytes);
                }
            }
        });
        widest.max(shared.div_euclid(4))
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

    /// Says whether all folds and row stores may go `width` elements at a time along their innermost axis: no tails,
    /// and what is contiguous is aligned and no wider than an access.
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
            wide && self.widest_moving(loops, one, inner) * width <= ACCESS_BYTES
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
}
