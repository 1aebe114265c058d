//! Contractions: strided batched GEMM with packed constants, or what leads there.
//!
//! Operands that are float loads with affine indices go to the GEMM kernel as they lie: the last of the `m`, `n` and
//! `k` dims that are left after merging are the matrix, all others batch entries by table. Any other operand is first
//! computed into a temporary, any epilogue that has no plain float store runs as a loop kernel over a temporary
//! product, and other element types are a loop kernel with a fold.

use std::sync::Arc;

use ir::entity::Entity;
use ir::host::product::{Chosen, Elem, Epilogue, Gemm, Matrix, QuantisedMatrix, Right, TileDims, Tiles};
use ir::host::{Affine, LowerError, Piece, Setting};
use ir::kernel::{AxisId, Body, ContractBody, Expr, ExprId, Kernel, Operand, Stmt};
use ir::op::{BinaryOp, ReduceOp};
use ir::types::DType;

use crate::affine::{Roots, Space, collapse};
use crate::block::compile::Source;
use crate::chosen::{self, Stack};
use crate::quantised::{Scales, Strides, matrix};
use crate::rewrite::{Rewritten, store};
use crate::tile::{self, Addend, Output, Taken};
use crate::{conv, integers, loops};

/// Lowers a contraction to pieces that run one after another.
///
/// # Errors
/// As for kernels of loops.
pub(crate) fn lower(
    rewritten: &mut Rewritten,
    body: &ContractBody,
    cx: &Setting<'_>,
    scales: &Scales,
    pieces: &mut Vec<Piece>,
) -> Result<(), LowerError> {
    let acc = rewritten.kernel.vars[body.acc];
    let float = |k: &Kernel, e: ExprId| Elem::of(k.exprs.dtype(e)).is_some();
    if integers::lower(rewritten, body, cx, pieces)? {
        return Ok(());
    }
    if acc != DType::F32 || !float(&rewritten.kernel, body.lhs.value) || !float(&rewritten.kernel, body.rhs.value) {
        return folded(rewritten, body, cx, pieces);
    }
    let mut body = body.clone();
    if let Some(facts) = body.conv.clone()
        && !is_product(&rewritten.kernel, &body, cx)?
        && conv::lower(rewritten, &body, &facts, cx, pieces)?
    {
        return Ok(());
    }
    // The operand where no product takes what is chosen, and the piece that is then not needed.
    let before = (body.rhs.clone(), pieces.len());
    let mut stack = chosen::stack(rewritten, &mut body, cx, pieces)?;
    for _ in 0..4 {
        let a = Analysis::new(&rewritten.kernel, &body, cx, stack)?;
        let lhs_axes: Vec<AxisId> = body.batch.iter().chain(&body.m).chain(&body.k).copied().collect();
        let rhs_axes: Vec<AxisId> = body.batch.iter().chain(&body.n).chain(&body.k).copied().collect();
        if !a.depth_is_one(&rewritten.kernel, body.lhs.value) {
            let value = materialise(rewritten, "lhs", body.lhs.value, &lhs_axes, cx, pieces)?;
            body.lhs = Operand::new(&rewritten.kernel.exprs, value);
            continue;
        }
        let quantised = a.quantised(&rewritten.kernel, &body, cx, scales);
        let is_taken = quantised.is_some() || a.depth_is_one(&rewritten.kernel, body.rhs.value);
        if stack.is_some() && !(is_taken && a.is_one_row()) {
            (stack, body.rhs) = (None, before.0.clone());
            pieces.remove(before.1);
            continue;
        }
        if !is_taken {
            let value = materialise(rewritten, "rhs", body.rhs.value, &rhs_axes, cx, pieces)?;
            body.rhs = Operand::new(&rewritten.kernel.exprs, value);
            continue;
        }
        if let Some(exec) = product(&rewritten.kernel, &a, &body, quantised, cx)? {
            pieces.push(Piece::Gemm(Box::new(exec)));
            return Ok(());
        }
        // The epilogue has no store that the product can make: loops over a temporary product.
        let axes: Vec<AxisId> = body.batch.iter().chain(&body.m).chain(&body.n).copied().collect();
        let epilogue = std::mem::take(&mut body.epilogue);
        let (param, index) = rewritten.temporary("product", DType::F32, &axes, cx.bindings)?;
        let sum = rewritten.kernel.exprs.add(Expr::Var(body.acc), DType::F32);
        body.epilogue = vec![store(param, index, sum)];
        let a = Analysis::new(&rewritten.kernel, &body, cx, stack)?;
        let quantised = a.quantised(&rewritten.kernel, &body, cx, scales);
        let Some(exec) = product(&rewritten.kernel, &a, &body, quantised, cx)? else {
            body.epilogue = epilogue;
            break;
        };
        pieces.push(Piece::Gemm(Box::new(exec)));
        let value = rewritten.load(param, index);
        let mut stmts = vec![Stmt::Let { var: body.acc, value }];
        stmts.extend(epilogue);
        pieces.push(loops::piece(&rewritten.kernel, &axes, &stmts, cx.bindings, true)?);
        return Ok(());
    }
    body.rhs = before.0;
    folded(rewritten, &body, cx, pieces)
}

/// Says whether a convolution is a plain product of its operands as they lie (1x1, stride 1, no padding).
fn is_product(kernel: &Kernel, body: &ContractBody, cx: &Setting<'_>) -> Result<bool, LowerError> {
    let a = Analysis::new(kernel, body, cx, None)?;
    Ok(a.depth_is_one(kernel, body.lhs.value)
        && a.depth_is_one(kernel, body.rhs.value)
        && a.m.len() <= 1
        && a.n.len() <= 1
        && a.batch.is_empty())
}

/// Computes an operand into a dense temporary.
fn materialise(
    rewritten: &mut Rewritten,
    name: &str,
    value: ExprId,
    axes: &[AxisId],
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<ExprId, LowerError> {
    let (param, index) = rewritten.temporary(name, DType::F32, axes, cx.bindings)?;
    let wide = rewritten.cast(DType::F32, value);
    let stmts = [store(param, index, wide)];
    pieces.push(loops::piece(&rewritten.kernel, axes, &stmts, cx.bindings, false)?);
    Ok(rewritten.load(param, index))
}

/// The contraction as loops with a fold: any element type, slow.
fn folded(
    rewritten: &mut Rewritten,
    body: &ContractBody,
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<(), LowerError> {
    let acc = rewritten.kernel.vars[body.acc];
    let lhs = rewritten.cast(acc, body.lhs.value);
    let rhs = rewritten.cast(acc, body.rhs.value);
    let value = rewritten.binary(BinaryOp::Mul, lhs, rhs);
    let mut stmts = vec![Stmt::Fold {
        var: body.acc,
        op: ReduceOp::Sum,
        axes: body.k.clone(),
        value,
    }];
    stmts.extend(body.epilogue.iter().cloned());
    let axes: Vec<AxisId> = body.batch.iter().chain(&body.m).chain(&body.n).copied().collect();
    pieces.push(loops::piece(&rewritten.kernel, &axes, &stmts, cx.bindings, false)?);
    Ok(())
}

/// A quantised right operand.
struct Quantised {
    param: usize,
    form: Affine,
    matrix: Arc<QuantisedMatrix>,
}

struct Analysis<'k> {
    space: Space<'k>,
    roots: Roots,
    extents: Vec<i64>,
    elements: Vec<i64>,
    batch: Vec<usize>,
    m: Vec<usize>,
    n: Vec<usize>,
    k: Vec<usize>,
    stack: Option<Stack>,
}

impl<'k> Analysis<'k> {
    fn new(
        kernel: &'k Kernel,
        body: &ContractBody,
        cx: &Setting<'_>,
        stack: Option<Stack>,
    ) -> Result<Analysis<'k>, LowerError> {
        let mut space = Space::new(kernel, cx.bindings)?;
        let mut exprs = vec![body.lhs.value, body.rhs.value];
        exprs.extend(stack.map(|stack| stack.index));
        for stmt in &body.epilogue {
            match *stmt {
                Stmt::Store { index, value, .. } | Stmt::Update { index, value, .. } => exprs.extend([index, value]),
                Stmt::Let { value, .. } | Stmt::Fold { value, .. } => exprs.push(value),
            }
        }
        let mut batch = Space::dims(&body.batch);
        let mut m = Space::dims(&body.m);
        let mut n = Space::dims(&body.n);
        let mut k = Space::dims(&body.k);
        space.split(&exprs, &mut [&mut batch, &mut m, &mut n, &mut k], &[]);
        let mut roots = space.roots(&exprs);
        let mut extents = space.extents.clone();
        collapse(&mut extents, &mut [&mut batch, &mut m, &mut n, &mut k], &mut roots);
        let elements = kernel
            .params
            .values()
            .map(|p| p.count(cx.bindings))
            .collect::<Result<_, _>>()?;
        Ok(Analysis {
            space,
            roots,
            extents,
            elements,
            batch,
            m,
            n,
            k,
            stack,
        })
    }

    /// The parameter, type and affine index of an operand that is a float load.
    fn load(&self, kernel: &Kernel, e: ExprId) -> Option<(usize, Elem, Affine)> {
        let Expr::Load { param, index } = kernel.exprs[e] else {
            return None;
        };
        let elem = Elem::of(kernel.params[param].dtype)?;
        Some((param.index(), elem, self.roots.get(&index)?.clone()))
    }

    /// The right operand as it is stored, if it is a matrix of quantised constants that all entries share.
    fn quantised(&self, kernel: &Kernel, body: &ContractBody, cx: &Setting<'_>, scales: &Scales) -> Option<Quantised> {
        let access = body.rhs.access.filter(|a| a.unpacking.is_some())?;
        let form = self.roots.get(&access.index)?.clone();
        let param = access.param.index();
        let (k, n) = (*self.k.last()?, self.n.last().copied());
        let nested = |w: &[usize]| form.get(w[0]) == form.get(w[1]).wrapping_mul(self.extents[w[1]]);
        let mut others = self.batch.iter().chain(&self.m).chain(self.n.iter().rev().skip(1));
        let is_matrix = self.k.windows(2).all(nested) && others.all(|d| form.get(*d) == 0);
        if self.reads_nothing() || !is_matrix || !inside(&form, &self.extents, self.elements[param]) {
            return None;
        }
        let strides = Strides {
            base: form.base,
            row: form.get(k),
            col: n.map_or(0, |n| form.get(n)),
        };
        let count = |dims: &[usize]| {
            dims.iter()
                .try_fold(1usize, |n, d| n.checked_mul(self.extents[*d].max(0) as usize))
        };
        let mut sizes = [count(&self.k)?, n.map_or(1, |n| self.extents[n].max(0) as usize)];
        let mut columns = body.clone();
        if let Some(stack) = self.stack {
            // Side by side, each from a panel on.
            let beside = form.get(stack.axis.index()) == strides.col.wrapping_mul(sizes[1] as i64);
            if !beside || !sizes[1].is_multiple_of(WIDEST_PANEL) {
                return None;
            }
            columns.n.insert(0, stack.axis);
            sizes[1] = sizes[1].checked_mul(stack.count)?;
        }
        // A matrix whose rows lie on one another would take more than is there.
        if i64::try_from(sizes[0].checked_mul(sizes[1])?).ok()? > self.elements[param] {
            return None;
        }
        let matrix = matrix((kernel, &self.roots), &columns, &strides, sizes, cx, scales)?;
        Some(Quantised { param, form, matrix })
    }

    /// Says whether the product of an entry has one row.
    fn is_one_row(&self) -> bool {
        self.m.iter().all(|d| self.extents[*d] == 1)
    }

    /// Where the numbers of the entries' matrices are, which begin at the places `form` has.
    fn chosen(&self, form: &Affine, positions: &[i64]) -> Option<Chosen> {
        let stack = self.stack?;
        let index = self.roots.get(&stack.index)?;
        let entries = positions.chunks_exact(self.extents.len().max(1));
        Some(Chosen {
            param: stack.numbers.index(),
            at: entries.map(|idx| index.at(idx).max(0) as usize).collect(),
            count: stack.count,
            step: form.get(stack.axis.index()),
        })
    }

    /// Says whether no point of the product reads its operands: where they would be read is then not known to be
    /// inside.
    fn reads_nothing(&self) -> bool {
        let mut dims = self.batch.iter().chain(&self.m).chain(&self.n).chain(&self.k);
        dims.any(|d| self.extents[*d] == 0)
    }

    /// Says whether the operand is a float load whose depth is one stride.
    fn depth_is_one(&self, kernel: &Kernel, e: ExprId) -> bool {
        self.load(kernel, e).is_some_and(|(param, _, form)| {
            // Indices that are provably inside; a guard's load is not the whole operand.
            (self.reads_nothing() || inside(&form, &self.extents, self.elements[param]))
                && self
                    .k
                    .windows(2)
                    .all(|w| form.get(w[0]) == form.get(w[1]).wrapping_mul(self.extents[w[1]]))
        })
    }
}

/// The most values of an operand or a result that a product takes.
const MOST_COPIED: usize = 1 << 40;
/// Columns of the widest panel.
const WIDEST_PANEL: usize = 32;
/// The most products of one launch: each has its positions in a table.
const MOST_ENTRIES: usize = 1 << 20;

fn product(
    kernel: &Kernel,
    a: &Analysis<'_>,
    body: &ContractBody,
    quantised: Option<Quantised>,
    cx: &Setting<'_>,
) -> Result<Option<Gemm>, LowerError> {
    let rhs = match &quantised {
        // What it is stored in is the panels' affair.
        Some(q) => Some((q.param, Elem::F32, q.form.clone())),
        None => a.load(kernel, body.rhs.value),
    };
    let (Some(lhs), Some(rhs)) = (a.load(kernel, body.lhs.value), rhs) else {
        return Ok(None);
    };
    let (m_dim, n_dim, k_dim) = (a.m.last().copied(), a.n.last().copied(), a.k.last().copied());
    // Entries: dims that the right operand does not see outermost, so that packed entries repeat.
    let others: Vec<usize> = a
        .batch
        .iter()
        .chain(a.m.iter().filter(|d| Some(**d) != m_dim))
        .chain(a.n.iter().filter(|d| Some(**d) != n_dim))
        .copied()
        .collect();
    let (inner, outer): (Vec<usize>, Vec<usize>) = others.into_iter().partition(|d| rhs.2.get(*d) != 0);
    let order: Vec<usize> = outer.into_iter().chain(inner.iter().copied()).collect();
    let count = |dims: &[usize]| {
        dims.iter()
            .try_fold(1usize, |n, d| n.checked_mul(a.extents[*d].max(0) as usize))
    };
    let extent = |d: Option<usize>| d.map_or(1, |d| a.extents[d].max(0) as usize);
    let (m, n) = (extent(m_dim), extent(n_dim));
    let (Some(entries), Some(k)) = (count(&order), count(&a.k)) else {
        return Ok(None);
    };
    // Operands that are copied take an entry's size for each entry, also where they lie on one another.
    let copied = [m, n].map(|side| entries.checked_mul(side)?.checked_mul(k.max(1)));
    let result = entries.checked_mul(m).and_then(|rows| rows.checked_mul(n));
    if copied
        .iter()
        .chain([&result])
        .any(|size| size.is_none_or(|size| size > MOST_COPIED))
        || entries > MOST_ENTRIES
    {
        return Ok(None);
    }
    let dims = TileDims {
        row: m_dim,
        col: n_dim,
        entries: entries > 1,
    };
    let source = Source::new(&a.space, &a.roots, &a.extents, cx.bindings)?;
    let Some(taken) = tile::take(&source, &body.epilogue, body.acc, &a.roots, dims, &Elem::ALL)? else {
        return Ok(None);
    };
    let Taken {
        scale,
        bias,
        residual,
        activation,
        result: Output {
            param: c_param,
            elem: c_elem,
            form: c_form,
        },
        program,
        reads_replaced,
    } = taken;
    let space = a.extents.len();
    let mut positions = vec![0i64; entries * space];
    for entry in 0..entries {
        let mut rest = entry as i64;
        for d in order.iter().rev() {
            positions[entry * space + d] = rest % a.extents[*d];
            rest /= a.extents[*d];
        }
    }
    let operand = |param: usize, elem: Elem, form: &Affine, row: Option<usize>, col: Option<usize>| Matrix {
        param,
        elem,
        base: form.base,
        row: row.map_or(0, |d| form.get(d)),
        col: col.map_or(0, |d| form.get(d)),
        table: if order.iter().all(|d| form.get(*d) == 0) {
            Vec::new()
        } else {
            positions
                .chunks_exact(space.max(1))
                .map(|idx| form.at(idx).wrapping_sub(form.base) as isize)
                .collect()
        },
    };
    let reads = !a.reads_nothing();
    let read = |(param, elem, form): &(usize, Elem, Affine), row, col| {
        if reads {
            operand(*param, *elem, form, row, col)
        } else {
            operand(*param, *elem, &Affine::default(), None, None)
        }
    };
    let left = read(&lhs, m_dim, k_dim);
    let right = read(&rhs, k_dim, n_dim);
    let c = operand(c_param, c_elem, &c_form, m_dim, n_dim);
    // Another layout of the result than one stride a row is the temporary's case.
    if m > 0 && n > 0 && !inside(&c_form, &a.extents, source.elements[c_param]) {
        return Ok(None);
    }
    let chosen = a.chosen(&rhs.2, &positions);
    if chosen.is_some() && (!reads || !right.table.is_empty() || residual.is_some() || program.is_some()) {
        return Ok(None);
    }
    let how = match (quantised, cx.constant(right.param)) {
        (Some(q), _) => Right::Quantised(q.matrix),
        // Columns of 16-bit floats are read where they lie.
        (None, Some(_)) if reads && (right.elem == Elem::F32 || right.row != 1) => {
            let one: usize = inner.iter().map(|d| a.extents[*d].max(0) as usize).product();
            Right::Packed(match right.table.is_empty() {
                true => match &chosen {
                    Some(chosen) => (0..chosen.count as isize).map(|at| at * chosen.step as isize).collect(),
                    None => vec![0],
                },
                false => right.table[..one].to_vec(),
            })
        }
        _ => Right::Plain,
    };
    let residual = residual.map(|Addend { param, elem, form }| {
        let mut r = operand(param, elem, &form, m_dim, n_dim);
        r.col = 1;
        r
    });
    Ok(Some(Gemm {
        entries,
        m,
        n,
        k,
        a: left,
        b: right,
        right: how,
        chosen,
        c,
        epilogue: Epilogue {
            scale,
            bias: bias.map(|b| (b.param, b.form.base)),
            residual,
            activation,
            program,
            reads_replaced,
        },
        tiles: Tiles { dims, space, positions },
    }))
}

fn inside(form: &Affine, extents: &[i64], elements: i64) -> bool {
    let (lo, hi) = form.range(extents);
    lo >= 0 && hi < elements
}

/// The body of a contraction kernel.
pub(crate) fn body(kernel: &Kernel) -> Option<&ContractBody> {
    match &kernel.body {
        Body::Contract(body) => Some(body),
        _ => None,
    }
}
