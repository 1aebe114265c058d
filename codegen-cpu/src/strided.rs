//! Folds whose elements lie apart while few points stand beside each other, as passes over memory in its order.
//!
//! ```text
//! v[i, j] = sum over c, p of x[i, p, j, c];   out[i, p, j, c] = x[i, p, j, c] - v[i, j]
//! =>  partial[i, s, j, c] = sum over q of x[i, s * Q + q, j, c]        neighbours in lanes, pieces of p for threads
//!     row[i, j, c] = sum over s, c' of partial[i, s, j, c']
//!     out[i, s, q, j, c] = x[i, s * Q + q, j, c] - row[i, j, c]
//! ```
//!
//! Before: group and instance norms of images whose channels come last, means over positions. Walked a point at a time
//! they read a few bytes of each line of memory, and there are as many tasks as points. After: each pass reads memory
//! once from end to end. A fold's sum has another order than the row's.

use std::collections::HashMap;

use ir::dim::Dim;
use ir::host::{Affine, LowerError, Piece, Setting};
use ir::kernel::{Access, Axis, AxisId, Expr, ExprId, Kernel, ParamId, Stmt, VarId};
use ir::op::{BinaryOp, ReduceOp};
use ir::types::{DType, Scalar};

use crate::affine::{Roots, Space, reachable};
use crate::hoist::replaced;
use crate::loops;
use crate::rewrite::{Rewritten, store};

/// Fewer elements are not worth the pieces.
const FEWEST_ELEMENTS: i64 = 32 * 1024;
/// A fold of fewer elements lies in caches as it is.
const SHORTEST: i64 = 256;
/// So many points are enough for lanes and threads as they are.
const MOST_POINTS: i64 = 2048;
/// So many neighbours are a vector.
const NEIGHBOURS: i64 = 16;
/// The most pieces of a fold.
const MOST_PIECES: i64 = 32;

/// A dim of the points or of the folds.
struct Dimension {
    /// Its number in the analysis.
    dim: usize,
    extent: i64,
    folded: bool,
    /// One of the neighbours in memory.
    near: bool,
    /// The axes that stand for it: two where it is cut into pieces.
    axes: Vec<AxisId>,
}

/// Lowers such folds and what is computed of them, and says whether these statements are some.
///
/// # Errors
/// As for kernels of loops.
pub(crate) fn lower(
    rewritten: &mut Rewritten,
    parallel: &[AxisId],
    stmts: &[Stmt],
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<bool, LowerError> {
    let Some(row) = common_row(stmts) else {
        return Ok(false);
    };
    let kernel = &rewritten.kernel;
    let mut space = Space::new(kernel, cx.bindings)?;
    let exprs = loops::stmt_exprs(stmts);
    let (mut points, mut own) = (Space::dims(parallel), Space::dims(&row));
    space.split(&exprs, &mut [&mut points, &mut own], &[]);
    let roots = space.roots(&exprs);
    let extents = space.extents.clone();
    let Some(dims) = in_memory(kernel, stmts, &roots, &extents, [&points, &own], cx.aliased) else {
        return Ok(false);
    };
    let mut passes = Passes {
        rewritten,
        cx,
        pieces,
        dims,
        instead: HashMap::new(),
    };
    passes.name_axes(&extents, [(parallel, &points), (&row, &own)])?;
    for stmt in stmts {
        match stmt {
            Stmt::Fold { var, op, value, axes } if !axes.is_empty() => passes.fold(*var, *op, *value)?,
            Stmt::Fold { var, value, .. } | Stmt::Let { var, value } => passes.once(*var, *value)?,
            Stmt::Store {
                param,
                index,
                value,
                axes,
            } => passes.store(*param, *index, *value, axes.is_empty())?,
            Stmt::Update { .. } => {}
        }
    }
    Ok(true)
}

/// The axes that all folds and stores of a row share; `None` where the statements are other than such a row's.
fn common_row(stmts: &[Stmt]) -> Option<Vec<AxisId>> {
    let mut row: Option<&Vec<AxisId>> = None;
    let mut folds = false;
    for stmt in stmts {
        let axes = match stmt {
            Stmt::Let { .. } => continue,
            Stmt::Fold { op, axes, .. } => {
                folds |= !axes.is_empty();
                if !matches!(op, ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min) {
                    return None;
                }
                axes
            }
            Stmt::Store { axes, .. } => axes,
            Stmt::Update { .. } => return None,
        };
        if !axes.is_empty() && **row.get_or_insert(axes) != *axes {
            return None;
        }
    }
    row.filter(|_| folds).cloned()
}

/// The dims of points and folds in the order of memory, the farthest first, where walking so is worth it.
fn in_memory(
    kernel: &Kernel,
    stmts: &[Stmt],
    roots: &Roots,
    extents: &[i64],
    [points, own]: [&[usize]; 2],
    aliased: bool,
) -> Option<Vec<Dimension>> {
    let product = |dims: &[usize]| dims.iter().map(|d| extents[*d]).fold(1i64, i64::saturating_mul);
    let (count, length) = (product(points), product(own));
    let worth = count.saturating_mul(length) >= FEWEST_ELEMENTS && length >= SHORTEST && count <= MOST_POINTS;
    let long = |dims: &[usize]| dims.iter().copied().filter(|d| extents[*d] != 1).collect::<Vec<_>>();
    let (points, own) = (long(points), long(own));
    if !worth || points.iter().chain(&own).any(|d| extents[*d] <= 0) {
        return None;
    }
    // Every load and store that goes through the whole row does so in one order.
    let whole = |form: &Affine| own.iter().all(|d| form.get(*d) != 0);
    let mut main: Option<&Affine> = None;
    let mut agrees = |index: ExprId| {
        let Some(form) = roots.get(&index) else { return false };
        let same = |of: &Affine| match aliased {
            true => of == form,
            false => points.iter().chain(&own).all(|d| of.get(*d) == form.get(*d)),
        };
        !whole(form) || same(main.get_or_insert(form))
    };
    for e in reachable(kernel, &loops::stmt_exprs(stmts)) {
        match kernel.exprs[e] {
            Expr::Load { index, .. } if !agrees(index) => return None,
            Expr::Philox { .. } => return None,
            _ => {}
        }
    }
    for stmt in stmts {
        if let Stmt::Store { index, axes, .. } = stmt
            && !axes.is_empty()
            && !agrees(*index)
        {
            return None;
        }
    }
    let main = main?;
    let mut dims: Vec<Dimension> = points
        .iter()
        .map(|d| (*d, false))
        .chain(own.iter().map(|d| (*d, true)))
        .map(|(dim, folded)| Dimension {
            dim,
            extent: extents[dim],
            folded,
            near: false,
            axes: Vec::new(),
        })
        .collect();
    dims.sort_by_key(|d| std::cmp::Reverse(main.get(d.dim).unsigned_abs()));
    let mut run = 1i64;
    for d in dims.iter_mut().rev() {
        if run >= NEIGHBOURS || main.get(d.dim) != run || d.folded && d.extent >= NEIGHBOURS {
            break;
        }
        d.near = true;
        run *= d.extent;
    }
    let beside = dims.iter().any(|d| d.near && !d.folded);
    let apart: i64 = dims.iter().filter(|d| d.folded && !d.near).map(|d| d.extent).product();
    (beside && run >= NEIGHBOURS / 2 && apart >= SHORTEST / 4).then_some(dims)
}

struct Passes<'a, 'b> {
    rewritten: &'a mut Rewritten,
    cx: &'a Setting<'b>,
    pieces: &'a mut Vec<Piece>,
    /// The farthest in memory first.
    dims: Vec<Dimension>,
    /// What stands for axes and variables.
    instead: HashMap<ExprId, ExprId>,
}

impl Passes<'_, '_> {
    fn number(&mut self, n: i64) -> ExprId {
        let exprs = &mut self.rewritten.kernel.exprs;
        exprs.add(Expr::Const(DType::I64, Scalar::Int(n)), DType::I64)
    }

    fn axis(&mut self, name: &str, extent: i64) -> AxisId {
        self.rewritten.kernel.axes.push(Axis {
            name: name.to_owned(),
            extent: Dim::Const(extent),
        })
    }

    fn at(&mut self, axis: AxisId) -> ExprId {
        self.rewritten.kernel.exprs.add(Expr::Axis(axis), DType::I64)
    }

    fn op(&mut self, op: BinaryOp, a: ExprId, by: i64) -> ExprId {
        let by = self.number(by);
        self.rewritten.binary(op, a, by)
    }

    /// Makes an axis of each dim, two of the farthest that is folded, and says what the kernel's own axes are of these.
    fn name_axes(&mut self, extents: &[i64], groups: [(&[AxisId], &[usize]); 2]) -> Result<(), LowerError> {
        let cut = self.dims.iter().position(|d| d.folded && !d.near);
        let mut places = HashMap::new();
        for i in 0..self.dims.len() {
            let (dim, extent) = (self.dims[i].dim, self.dims[i].extent);
            let pieces = match cut == Some(i) {
                true => (1..=MOST_PIECES).rev().find(|n| extent % n == 0).unwrap_or(1),
                false => 1,
            };
            let inner = self.axis("at", extent / pieces);
            let mut place = self.at(inner);
            self.dims[i].axes = vec![inner];
            if cut == Some(i) {
                let outer = self.axis("piece", pieces);
                let piece = self.at(outer);
                let start = self.op(BinaryOp::Mul, piece, extent / pieces);
                place = self.rewritten.binary(BinaryOp::Add, start, place);
                self.dims[i].axes.insert(0, outer);
            }
            places.insert(dim, place);
        }
        for (axes, dims) in groups {
            let mut linear = self.number(0);
            let mut size = 1;
            for dim in dims.iter().rev() {
                if let Some(place) = places.get(dim) {
                    let far = self.op(BinaryOp::Mul, *place, size);
                    linear = self.rewritten.binary(BinaryOp::Add, linear, far);
                }
                size *= extents[*dim];
            }
            let mut inner = 1;
            for (i, axis) in axes.iter().enumerate().rev() {
                let extent = self.rewritten.kernel.axes[*axis].extent.eval(self.cx.bindings)?;
                let mut place = self.op(BinaryOp::Div, linear, inner);
                if i > 0 {
                    place = self.op(BinaryOp::Mod, place, extent);
                }
                inner *= extent;
                let from = self.at(*axis);
                self.instead.insert(from, place);
            }
        }
        Ok(())
    }

    /// Axes of some dims, in the order of memory.
    fn axes(&self, of: impl Fn(&Dimension) -> bool) -> Vec<AxisId> {
        let chosen = self.dims.iter().filter(|d| of(d));
        chosen.flat_map(|d| d.axes.iter().copied()).collect()
    }

    fn points(&self) -> Vec<AxisId> {
        self.axes(|d| !d.folded)
    }

    /// The points, with the near dims of the fold: numbers of a row are kept for each of these, so that all that is
    /// near is read side by side.
    fn kept(&self) -> Vec<AxisId> {
        self.axes(|d| !d.folded || d.near)
    }

    fn variable(&mut self, var: VarId) -> (ExprId, DType) {
        let dtype = self.rewritten.kernel.vars[var];
        (self.rewritten.kernel.exprs.add(Expr::Var(var), dtype), dtype)
    }

    fn piece(&mut self, axes: &[AxisId], stmts: &[Stmt]) -> Result<(), LowerError> {
        let piece = loops::piece(&self.rewritten.kernel, axes, stmts, self.cx.bindings, self.cx.aliased)?;
        self.pieces.push(piece);
        Ok(())
    }

    /// A temporary over axes that `stmts` fill, and nothing writes later.
    fn filled(
        &mut self,
        axes: &[AxisId],
        dtype: DType,
        parallel: &[AxisId],
        stmts: impl FnOnce(ParamId, ExprId) -> Vec<Stmt>,
    ) -> Result<(ParamId, ExprId), LowerError> {
        let (param, index) = self.rewritten.temporary("row", dtype, axes, self.cx.bindings)?;
        self.piece(parallel, &stmts(param, index))?;
        self.rewritten.kernel.params[param].access = Access::Read;
        Ok((param, index))
    }

    fn fold(&mut self, var: VarId, op: ReduceOp, value: ExprId) -> Result<(), LowerError> {
        let value = replaced(self.rewritten, value, &mut self.instead);
        let (result, dtype) = self.variable(var);
        // The pieces of the fold, and what each goes through.
        let pieces: Vec<AxisId> = self
            .dims
            .iter()
            .filter(|d| d.axes.len() == 2)
            .map(|d| d.axes[0])
            .collect();
        let through: Vec<AxisId> = self.axes(|d| d.folded && !d.near);
        let through: Vec<AxisId> = through.into_iter().filter(|a| !pieces.contains(a)).collect();
        let near = self.axes(|d| d.near);
        let far = self.axes(|d| !d.folded && !d.near);
        let across: Vec<AxisId> = far.iter().chain(&pieces).chain(&near).copied().collect();
        let (partial, index) = self.filled(&across, dtype, &across, |param, index| {
            let axes = through;
            vec![Stmt::Fold { var, op, axes, value }, store(param, index, result)]
        })?;
        // The same again over what was left.
        let mut other = HashMap::new();
        let mut rest = Vec::new();
        for axis in pieces.into_iter().chain(self.axes(|d| d.folded && d.near)) {
            let extent = self.rewritten.kernel.axes[axis].extent.eval(self.cx.bindings)?;
            let again = self.axis("part", extent);
            let (from, to) = (self.at(axis), self.at(again));
            other.insert(from, to);
            rest.push(again);
        }
        let index = replaced(self.rewritten, index, &mut other);
        let value = self.rewritten.load(partial, index);
        let (kept, points, near) = (self.kept(), self.points(), self.axes(|d| d.folded && d.near));
        let (param, index) = self.filled(&kept, dtype, &points, |param, index| {
            let all = Stmt::Fold {
                var,
                op,
                axes: rest,
                value,
            };
            let spread = Stmt::Store {
                param,
                index,
                value: result,
                axes: near,
            };
            vec![all, spread]
        })?;
        let load = self.rewritten.load(param, index);
        self.instead.insert(result, load);
        Ok(())
    }

    /// A number of each row that is computed of others.
    fn once(&mut self, var: VarId, value: ExprId) -> Result<(), LowerError> {
        let value = replaced(self.rewritten, value, &mut self.instead);
        let (result, dtype) = self.variable(var);
        let kept = self.kept();
        let (param, index) = self.filled(&kept, dtype, &kept, |param, index| vec![store(param, index, value)])?;
        let load = self.rewritten.load(param, index);
        self.instead.insert(result, load);
        Ok(())
    }

    fn store(&mut self, param: ParamId, index: ExprId, value: ExprId, a_row: bool) -> Result<(), LowerError> {
        let mut index = replaced(self.rewritten, index, &mut self.instead);
        let mut value = replaced(self.rewritten, value, &mut self.instead);
        if !a_row {
            let all = self.axes(|_| true);
            return self.piece(&all, &[store(param, index, value)]);
        }
        // The numbers of a row are the same along its near dims.
        let mut first = HashMap::new();
        for axis in self.axes(|d| d.folded && d.near) {
            let (from, to) = (self.at(axis), self.number(0));
            first.insert(from, to);
        }
        index = replaced(self.rewritten, index, &mut first);
        value = replaced(self.rewritten, value, &mut first);
        let points = self.points();
        self.piece(&points, &[store(param, index, value)])
    }
}
