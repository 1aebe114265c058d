//! Whether a mapping suits its body.

use super::{KernelError, Verifier};
use crate::dim::Dim;
use crate::kernel::{
    Access, AttentionBody, AxisId, Body, ContractBody, ExprId, Fetch, FlashLanes, FlashTiling, GemvMatrix, GemvStream,
    GemvTiling, Loops, Mapping, Operand, Param, Shares, Steps, Stmt, Strips, Tiling, Travel, Weights, WindowBody,
    access, limits,
};
use crate::target::{MatrixFamily, MatrixInstruction, TARGETS};
use crate::types::DType;

/// Taps of a window that a mapping may unroll.
const MOST_UNROLLED: i64 = 64;

impl Verifier<'_> {
    /// Says whether an operand can be fetched that way: no group is cut short.
    fn comes_whole(&self, fetch: Fetch, rows: &[AxisId], k: &[AxisId]) -> bool {
        let width = i64::from(fetch.width);
        let inner = if fetch.along_k { k.last() } else { rows.last() };
        let divides = |a: &AxisId| self.kernel.axes[*a].extent.known_divisor() % width.max(1) == 0;
        width == 1 || (fetch.width.is_power_of_two() && inner.is_some_and(divides))
    }

    /// Says why matrix instructions cannot compute a contraction that way.
    fn matrix(&self, tiling: &Tiling, c: &ContractBody) -> Option<&'static str> {
        let exprs = &self.kernel.exprs;
        let instruction = &tiling.instruction;
        if tiling.misfit().is_some() {
            return tiling.misfit();
        }
        if !instruction.takes(c.lhs.element(exprs), c.rhs.element(exprs)) {
            return Some("the instruction takes other operands");
        }
        if self.kernel.vars[c.acc] != instruction.acc {
            return Some("the instruction has other sums");
        }
        let stored = |o: &Operand| o.is_as_stored(self.kernel);
        // What mma.sync's copies do not take goes through registers.
        let copied = tiling.travel == Travel::Direct && instruction.family != MatrixFamily::MmaSync;
        if copied && !(stored(&c.lhs) && stored(&c.rhs)) {
            return Some("tiles go past the registers of operands as they lie in memory");
        }
        if let Some(shares) = tiling.shares
            && let Some(problem) = self.shares(tiling, shares, c)
        {
            return Some(problem);
        }
        self.wide_accesses(c, tiling.lhs, tiling.rhs, tiling.store)
    }

    /// Says why workgroups cannot share a contraction's tiles that way.
    fn shares(&self, tiling: &Tiling, shares: Shares, c: &ContractBody) -> Option<&'static str> {
        let k = self.kernel;
        let extent = |axes: &[AxisId]| {
            let extents = axes.iter().map(|a| k.axes[*a].extent.as_const());
            extents.into_iter().try_fold(1i64, |n, extent| n.checked_mul(extent?))
        };
        let (Some(m), Some(n), Some(depth), true) = (extent(&c.m), extent(&c.n), extent(&c.k), c.batch.is_empty())
        else {
            return Some("tiles are shared of one product of known sizes");
        };
        let [block_m, block_n, block_k] = tiling.block.map(i64::from);
        let ceil = |a: i64, b: i64| a / b + i64::from(a % b > 0);
        let tiles = ceil(m, block_m).saturating_mul(ceil(n, block_n));
        if i64::from(shares.tiles) > tiles {
            return Some("more tiles are shared than there are");
        }
        if ceil(depth, block_k).saturating_mul(shares.tiles.into()) < i64::from(shares.groups) {
            return Some("workgroups that share tiles have a step each at least");
        }
        let fits = |p: &Param, access: Access, dtype: DType, elements: i64| {
            p.access == access && p.dtype == dtype && p.elements.as_const().is_some_and(|n| n >= elements)
        };
        let mut own = k.params.values().rev();
        let (Some(tickets), Some(sums)) = (own.next(), own.next()) else {
            return Some("workgroups that share tiles have scratch memory and tickets");
        };
        let own_fit = fits(tickets, Access::Tickets, DType::I32, shares.tiles.into())
            && fits(sums, Access::Scratch, k.vars[c.acc], shares.scratch(tiling.block));
        if !own_fit || own.any(|p| !p.access.is_of_body()) {
            return Some("the last two parameters are the scratch memory of those that share tiles, and their tickets");
        }
        None
    }

    /// Says why a contraction cannot be computed row by row that way.
    fn gemv(&self, tiling: &GemvTiling, c: &ContractBody) -> Option<&'static str> {
        let exprs = &self.kernel.exprs;
        if tiling.misfit().is_some() {
            return tiling.misfit();
        }
        let (left, right) = (c.lhs.element(exprs), c.rhs.element(exprs));
        if left != right && !(left.is_f8() && right.is_f8()) {
            return Some("both operands have one type, or are 8-bit floats");
        }
        if tiling.rhs.along_k && tiling.lhs.width != tiling.rhs.width && c.rhs.unpacking().is_none() {
            return Some("both operands come in the same groups, unless the weights are unpacked");
        }
        if !tiling.rhs.along_k && c.rhs.unpacking().is_some() {
            return Some("quantised weights lie along k");
        }
        let early = tiling.step().saturating_mul(tiling.early.into());
        if tiling.early > 0 && limits::early_depth(self.kernel, c, tiling.rhs.width).is_none_or(|depth| early > depth) {
            return Some(
                "weights are asked for early as they are, 16 bytes at once, in as many steps of one product as there are",
            );
        }
        if let Some(matrix) = &tiling.matrix
            && let Some(problem) = self.gemv_matrix(matrix, c)
        {
            return Some(problem);
        }
        if let Some(stream) = &tiling.stream
            && let Some(problem) = self.gemv_stream(stream, c)
        {
            return Some(problem);
        }
        self.wide_accesses(c, tiling.lhs, tiling.rhs, tiling.store)
    }

    /// Says why the weights of a contraction cannot be streamed.
    fn gemv_stream(&self, stream: &GemvStream, c: &ContractBody) -> Option<&'static str> {
        let k = self.kernel;
        if !matches!(c.lhs.element(&k.exprs), DType::F16 | DType::BF16) || k.vars[c.acc] != DType::F32 {
            return Some("a streamed row has elements of 16 bits, and sums in f32");
        }
        let depth = match c.k[..] {
            [axis] => k.axes[axis].extent.as_const(),
            _ => None,
        };
        let whole = i64::from(GemvStream::STEP * stream.pack.max(1));
        if !c.batch.is_empty() || !depth.is_some_and(|depth| depth > 0 && depth % whole == 0) {
            return Some("weights are streamed of one product, along one axis of whole packs of steps");
        }
        if limits::scales(k, &c.rhs).is_none() {
            return Some("scales and zero points of streamed weights are loaded as they are");
        }
        None
    }

    /// Says why matrix instructions cannot compute a contraction with few rows.
    fn gemv_matrix(&self, matrix: &GemvMatrix, c: &ContractBody) -> Option<&'static str> {
        let (k, exprs) = (self.kernel, &self.kernel.exprs);
        let i = &matrix.instruction;
        if !i.takes(c.lhs.element(exprs), c.rhs.element(exprs)) || k.vars[c.acc] != i.acc {
            return Some("the instruction takes other operands, or has other sums");
        }
        let Some(unpacking) = c.rhs.unpacking() else {
            return Some("weights that are not unpacked are multiplied by lanes");
        };
        if c.rhs.stored_bits(k) != 4 || c.rhs.access.is_none_or(|a| k.params[a.param].dtype.is_float()) {
            return Some("weights are integers of four bits");
        }
        if !unpacking.has_nibble_zero(exprs) {
            return Some("zero points are integers of four bits");
        }
        if !matrix.scaled_sums && !unpacking.has_scale_of(exprs, i.input) {
            return Some("weights are scaled in their type, of which the scales must be");
        }
        None
    }

    /// Says why a contraction's operands and results do not come in groups of these widths.
    fn wide_accesses(&self, c: &ContractBody, lhs: Fetch, rhs: Fetch, store: u32) -> Option<&'static str> {
        if !self.comes_whole(lhs, &c.m, &c.k) || !self.comes_whole(rhs, &c.n, &c.k) {
            return Some("the width of a fetch must be a power of two that divides the axis it goes along");
        }
        if !store.is_multiple_of(c.sums()) {
            return Some("the width of the stores must be whole pairs");
        }
        if store != 1 && !self.is_divided(c.n.last(), store) {
            return Some("the width of the stores must divide the columns");
        }
        None
    }

    /// Says why matrix instructions cannot compute an attention that way.
    fn flash(&self, tiling: &FlashTiling, a: &AttentionBody) -> Option<&'static str> {
        let k = self.kernel;
        let width = |axis: AxisId| k.axes[axis].extent.as_const();
        let (Some(d), Some(dv)) = (width(a.d), width(a.dv)) else {
            return Some("the widths of keys and values must be constants");
        };
        if tiling.misfit().is_some() {
            return tiling.misfit();
        }
        let input = tiling.instruction.input;
        let others = [a.query, a.key, a.value].iter().any(|e| k.exprs.dtype(*e) != input);
        if others || tiling.instruction.rhs != input {
            return Some("the instruction takes other operands");
        }
        if tiling.instruction.acc != DType::F32 {
            return Some("the instruction has other sums");
        }
        let key = self.comes_whole(tiling.key, &[a.k], &[a.d]);
        let value = self.comes_whole(tiling.value, &[a.dv], &[a.k]);
        if !key || !value || d % i64::from(tiling.query) != 0 {
            return Some("the width of a fetch must be a power of two that divides the axis it goes along");
        }
        if !tiling.stores_fit(dv) {
            return Some("the width of the stores needs more columns a wave");
        }
        None
    }

    fn flash_by_lanes(&self, tiling: &FlashLanes, a: &AttentionBody) -> Option<&'static str> {
        let k = self.kernel;
        let width = |axis: AxisId| k.axes[axis].extent.as_const();
        let (Some(d), Some(dv)) = (width(a.d), width(a.dv)) else {
            return Some("the widths of keys and values must be constants");
        };
        if tiling.misfit().is_some() {
            return tiling.misfit();
        }
        let bits = [a.query, a.key, a.value].map(|e| k.exprs.dtype(e).bits());
        if d.max(dv) > FlashLanes::WIDEST || bits.iter().any(|b| *b < 8 || *b > 64) {
            return Some("heads are too wide, or of elements that are no bytes");
        }
        let key = self.comes_whole(tiling.key, &[a.k], &[a.d]);
        let value = self.comes_whole(tiling.value, &[a.k], &[a.dv]);
        let query = d % i64::from(tiling.query) == 0 && (128 / bits[1]).is_multiple_of(tiling.query);
        if !key || !value || !query {
            return Some("the width of a fetch must be a power of two that divides the axis it goes along");
        }
        if dv % i64::from(tiling.store) != 0 || !(128 / bits[2]).is_multiple_of(tiling.store) {
            return Some("the width of the stores must divide what a lane has");
        }
        None
    }

    /// Says whether expressions are loads, none of them twice, that happen wherever some statements do.
    fn are_unconditional(&self, loads: &[ExprId], stmts: &[Stmt]) -> bool {
        let always = access::unconditional_loads(self.kernel, stmts);
        let once = |(i, load): (usize, &ExprId)| !loads[..i].contains(load);
        loads.iter().all(|load| always.contains(load)) && loads.iter().enumerate().all(once)
    }

    /// Says whether a window has a known number of taps that are not too many to be unrolled.
    fn has_few_taps(&self, window: &WindowBody) -> bool {
        let taps: Dim = window
            .taps()
            .iter()
            .map(|a| self.kernel.axes[*a].extent.clone())
            .product();
        taps.as_const().is_some_and(|taps| taps <= MOST_UNROLLED)
    }

    /// Says whether a width divides an axis's extent at every size.
    pub(super) fn is_divided(&self, axis: Option<&AxisId>, width: u32) -> bool {
        axis.map_or(width == 1, |a| {
            self.kernel.axes[*a].extent.known_divisor() % i64::from(width.max(1)) == 0
        })
    }

    pub(super) fn mapping(&mut self) {
        let problem = match (&self.kernel.mapping, &self.kernel.body) {
            // First, so that what is computed from the numbers below fits its type.
            (mapping, _) if numbers(mapping).iter().any(|n| *n > MOST) => {
                Some("a number is larger than any workgroup's")
            }
            (mapping, _) if instruction(mapping).is_some_and(|i| !TARGETS.iter().any(|t| t.matrix.contains(i))) => {
                Some("no target has its instruction")
            }
            (mapping, _) if threads(mapping).is_some_and(|n| n > MOST_THREADS) => {
                Some("a workgroup has at most 1024 threads")
            }
            (mapping, _) if !shares_tiles(mapping) && self.kernel.params.values().any(|p| !p.access.is_of_body()) => {
                Some("only workgroups that share tiles have scratch memory")
            }
            (Mapping::Tile { .. }, b) if !matches!(b, Body::Contract(_)) => Some("tiles are for contractions"),
            (Mapping::Flash { .. }, b) if !matches!(b, Body::Attention(_)) => Some("it is for attention"),
            (mapping, Body::Attention(a))
                if a.row_weights.is_some() && !matches!(mapping, Mapping::FlashMatrix(_) | Mapping::FlashLanes(_)) =>
            {
                Some("it does not give the sum of an attention's weights")
            }
            (mapping, Body::Attention(a))
                if a.weights == Weights::Scores
                    && (!matches!(mapping, Mapping::FlashMatrix(_))
                        || a.row_weights.is_some()
                        || a.range.is_some()) =>
            {
                Some("two products are chained on matrix units alone, whole")
            }
            (mapping, Body::Contract(c)) if c.statistic.is_some() && !folds_rows(mapping) => {
                Some("it folds nothing of the rows of a product")
            }
            (mapping, Body::Transform(t)) if self.spreads(t, mapping).is_some() => self.spreads(t, mapping),
            (Mapping::Rows { .. }, b) if !matches!(b, Body::Row(_)) => Some("it is for rows"),
            (Mapping::Windows { .. }, b) if !matches!(b, Body::Window(_)) => Some("it is for windows"),
            (Mapping::Windows { block: 0, .. } | Mapping::Windows { vector: 0, .. }, _) => Some("a size is 0"),
            (Mapping::Windows { .. }, Body::Window(w)) if w.pool().is_none() => {
                Some("a convolution takes strips, or a thread for each point")
            }
            (Mapping::Windows { unroll: true, .. }, Body::Window(w)) if !self.has_few_taps(w) => {
                Some("only windows of a known number of taps are unrolled, 64 at most")
            }
            (Mapping::Windows { vector, .. }, Body::Window(w))
                if *vector > 1
                    && (!self.is_divided(w.loops.parallel.last(), *vector)
                        || w.along.iter().any(|a| a.outputs.as_ref() == w.loops.parallel.last())) =>
            {
                Some("the vector must divide the innermost axis, along which windows do not move")
            }
            (Mapping::Strips(strips), Body::Window(w)) => w.misfit(self.kernel, strips),
            (Mapping::Strips(_), _) => Some("it is for windows"),
            (Mapping::Steps(steps), Body::Recurrent(r)) => steps.misfit(r, self.kernel),
            (Mapping::Steps(_), _) => Some("it is for recurrent layers"),
            (mapping, Body::Recurrent(_)) if *mapping != Mapping::Host => {
                Some("a recurrent layer goes through its steps in order")
            }
            (Mapping::Stream { .. } | Mapping::Transpose { .. }, b) if !is_pointwise(b) => {
                Some("it is for pointwise bodies")
            }
            (
                Mapping::Rows {
                    lanes, block, vector, ..
                },
                _,
            ) if *vector == 0
                || *lanes == 0
                || *block == 0
                || block % lanes != 0
                || (lanes != block && !lanes.is_power_of_two()) =>
            {
                Some("lanes must be the block or a power of two that divides it")
            }
            (Mapping::Rows { resident: Some(n), .. }, _) if !(1..=32).contains(n) => {
                Some("from 1 to 32 workgroups are resident")
            }
            (Mapping::Rows { vector, .. }, Body::Row(r)) if !self.is_divided(r.row.last(), *vector) => {
                Some("the vector must divide the innermost axis of the row")
            }
            (Mapping::Stream { block, vector, unroll }, _) if *block == 0 || *vector == 0 || *unroll == 0 => {
                Some("a size is 0")
            }
            (
                Mapping::Transpose {
                    block,
                    along,
                    across,
                    load,
                    store,
                    unroll,
                    ..
                },
                _,
            ) if [block, along, across, load, store, unroll].iter().any(|v| **v == 0) => Some("a size is 0"),
            (
                Mapping::Transpose {
                    block,
                    along,
                    across,
                    load,
                    store,
                    ..
                },
                _,
            ) if !has_whole_steps([*along, *across], [*load, *store], *block) => {
                Some("a workgroup's threads go through a tile in whole steps, each with whole groups of a row")
            }
            (Mapping::Transpose { tiled, .. }, Body::Loops(Loops { stmts, .. }))
                if !self.are_unconditional(tiled, stmts) =>
            {
                Some("only loads that happen at every point go through LDS, each once")
            }
            (Mapping::Transpose { axis, load, store, .. }, Body::Loops(Loops { parallel, .. }))
                if parallel.last() == Some(axis)
                    || !parallel.contains(axis)
                    || !self.is_divided(Some(axis), *load)
                    || !self.is_divided(parallel.last(), *store) =>
            {
                Some("it goes along two axes, whose extents the widths of the accesses divide")
            }
            (
                Mapping::Tile {
                    block_m,
                    block_n,
                    block_k,
                    thread_m,
                    thread_n,
                    ..
                },
                _,
            ) if [block_m, block_n, block_k, thread_m, thread_n].iter().any(|v| **v == 0)
                || block_m % thread_m != 0
                || block_n % thread_n != 0 =>
            {
                Some("threads' tiles must divide the workgroup's")
            }
            (Mapping::Tile { lhs, rhs, .. }, Body::Contract(c))
                if !self.comes_whole(*lhs, &c.m, &c.k) || !self.comes_whole(*rhs, &c.n, &c.k) =>
            {
                Some("the width of a fetch must be a power of two that divides the axis it goes along")
            }
            (Mapping::Tile { thread_n, .. }, Body::Contract(c)) if !thread_n.is_multiple_of(c.sums()) => {
                Some("a thread's columns must be whole pairs")
            }
            (Mapping::Matrix(tiling), Body::Contract(c)) => self.matrix(tiling, c),
            (Mapping::Matrix(_), _) => Some("matrix instructions are for contractions"),
            (Mapping::Gemv(tiling), Body::Contract(c)) => self.gemv(tiling, c),
            (Mapping::Gemv(_), _) => Some("it is for contractions"),
            (Mapping::FlashMatrix(tiling), Body::Attention(a)) => self.flash(tiling, a),
            (Mapping::FlashLanes(tiling), Body::Attention(a)) => self.flash_by_lanes(tiling, a),
            (Mapping::FlashMatrix(_) | Mapping::FlashLanes(_), _) => Some("it is for attention"),
            (Mapping::Threads { block, vector } | Mapping::Block { block, vector }, _)
                if *block == 0 || *vector == 0 =>
            {
                Some("a size is 0")
            }
            (Mapping::Lanes { lanes, block, vector }, _)
                if *vector == 0 || !lanes.is_power_of_two() || *block == 0 || block % lanes != 0 =>
            {
                Some("lanes must be a power of two that divides the block")
            }
            (
                Mapping::Flash {
                    block_q,
                    block_k,
                    block,
                    ..
                },
                _,
            ) if *block_q == 0 || *block_k == 0 || *block == 0 => Some("a size is 0"),
            (Mapping::Flash { together, .. }, _) => together.misfit(),
            _ => None,
        };
        if let Some(problem) = problem {
            self.errors.push(KernelError::Mapping {
                mapping: self.kernel.mapping.to_string(),
                problem,
            });
        }
    }
}

/// Says whether `block` threads go through a tile of `along` rows of `across` elements in whole steps, `load` and then
/// `store` elements each at once, and whether rows are a power of two of groups, whose order is an exclusive or.
fn has_whole_steps([along, across]: [u32; 2], [load, store]: [u32; 2], block: u32) -> bool {
    let elements = u64::from(along) * u64::from(across);
    let whole = |width: u32| elements.is_multiple_of(u64::from(block) * u64::from(width));
    let group = load.max(store);
    whole(load)
        && whole(store)
        && across.is_multiple_of(group)
        && along.is_multiple_of(group)
        && (across / group).is_power_of_two()
        && (along / store).is_multiple_of((along / store).min(8))
}

/// The largest number that a mapping has a use for.
const MOST: u32 = 4096;

/// All numbers of a mapping, but for those of its instruction.
fn numbers(mapping: &Mapping) -> Vec<u32> {
    match *mapping {
        Mapping::Host => Vec::new(),
        Mapping::Threads { block, vector }
        | Mapping::Windows { block, vector, .. }
        | Mapping::Block { block, vector } => {
            vec![block, vector]
        }
        Mapping::Strips(s) => vec![s.block, s.rows, s.columns, s.vector, s.read],
        Mapping::Steps(s) => vec![s.block, s.rows, s.lanes, s.width],
        Mapping::Lanes { lanes, block, vector } => vec![lanes, block, vector],
        Mapping::Rows {
            lanes,
            block,
            vector,
            steps,
            ..
        } => vec![lanes, block, vector, steps],
        Mapping::Stream { block, vector, unroll } => vec![block, vector, unroll],
        Mapping::Transpose {
            axis: _,
            block,
            along,
            across,
            load,
            store,
            unroll,
            tiled: _,
        } => vec![block, along, across, load, store, unroll],
        Mapping::Tile {
            block_m,
            block_n,
            block_k,
            thread_m,
            thread_n,
            lhs,
            rhs,
        } => vec![block_m, block_n, block_k, thread_m, thread_n, lhs.width, rhs.width],
        Mapping::Matrix(ref t) => {
            let sizes = [t.parts, t.stages, t.store, t.group, t.dies, t.lhs.width, t.rhs.width];
            let shares = t.shares.map_or([0; 2], |s| [s.groups, s.tiles]);
            [&t.block[..], &t.waves[..], &sizes[..], &shares[..]].concat()
        }
        Mapping::Gemv(ref t) => {
            let sizes = [t.rows, t.cols, t.unroll, t.waves, t.lanes];
            let stream = t.stream.as_ref().map_or([1; 3], |s| [s.workgroups, s.stages, s.pack]);
            [&sizes[..], &[t.lhs.width, t.rhs.width, t.store], &stream[..]].concat()
        }
        Mapping::FlashMatrix(ref t) => {
            let sizes = [
                t.waves,
                t.split,
                t.fragments,
                t.keys,
                t.query,
                t.key.width,
                t.value.width,
            ];
            [&sizes[..], &[t.store, t.together.0]].concat()
        }
        Mapping::FlashLanes(ref t) => {
            let sizes = [t.waves, t.lanes, t.group, t.rows, t.split, t.keys, t.query];
            [&sizes[..], &[t.key.width, t.value.width, t.store, t.together.0]].concat()
        }
        Mapping::Flash {
            block_q,
            block_k,
            block,
            together,
        } => vec![block_q, block_k, block, together.0],
    }
}

fn instruction(mapping: &Mapping) -> Option<&MatrixInstruction> {
    match mapping {
        Mapping::Matrix(t) => Some(&t.instruction),
        Mapping::FlashMatrix(t) => Some(&t.instruction),
        Mapping::Gemv(t) => match &t.stream {
            Some(stream) => Some(&stream.instruction),
            None => t.matrix.as_ref().map(|m| &m.instruction),
        },
        _ => None,
    }
}

/// Threads that a workgroup may have on any target.
const MOST_THREADS: u64 = 1024;

/// Says whether workgroups share tiles.
fn shares_tiles(mapping: &Mapping) -> bool {
    matches!(mapping, Mapping::Matrix(t) if t.shares.is_some())
}

/// Says whether a mapping of a product folds a statistic of its rows. The CPU's lowering says itself that it does not.
fn folds_rows(mapping: &Mapping) -> bool {
    matches!(mapping, Mapping::Gemv(_) | Mapping::Host)
}

/// The threads of a workgroup; `None` where the sizes make none.
pub(in crate::kernel) fn threads(mapping: &Mapping) -> Option<u64> {
    match *mapping {
        Mapping::Matrix(ref t) => {
            let waves = u64::from(t.waves[0]).saturating_mul(u64::from(t.waves[1]));
            let waves = waves.saturating_mul(u64::from(t.parts));
            Some(waves.saturating_mul(u64::from(t.instruction.lanes())))
        }
        Mapping::Gemv(ref t) => {
            let waves = u64::from(t.waves) + u64::from(t.stream.is_some());
            Some(waves.saturating_mul(u64::from(t.lanes)))
        }
        Mapping::FlashMatrix(ref t) => Some(u64::from(t.waves).saturating_mul(u64::from(t.instruction.lanes()))),
        Mapping::FlashLanes(ref t) => Some(u64::from(t.waves).saturating_mul(u64::from(t.lanes))),
        Mapping::Host => None,
        Mapping::Threads { block, .. }
        | Mapping::Windows { block, .. }
        | Mapping::Lanes { block, .. }
        | Mapping::Block { block, .. }
        | Mapping::Rows { block, .. }
        | Mapping::Stream { block, .. }
        | Mapping::Transpose { block, .. }
        | Mapping::Strips(Strips { block, .. })
        | Mapping::Steps(Steps { block, .. })
        | Mapping::Flash { block, .. } => Some(u64::from(block)),
        Mapping::Tile {
            block_m,
            block_n,
            thread_m,
            thread_n,
            ..
        } => Some(u64::from(block_m.checked_div(thread_m)?) * u64::from(block_n.checked_div(thread_n)?)),
    }
}

/// Says whether a body is stores to one element each.
fn is_pointwise(body: &Body) -> bool {
    let straight = |s: &Stmt| matches!(s, Stmt::Let { .. }) || matches!(s, Stmt::Store { axes, .. } if axes.is_empty());
    matches!(body, Body::Loops(l) if !l.parallel.is_empty() && l.stmts.iter().all(straight))
}
