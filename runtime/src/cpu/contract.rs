//! Contractions: strided batched GEMM with packed constants, or what leads there.
//!
//! Operands that are float loads with affine indices go to the GEMM kernel as they lie: the last of the `m`, `n` and `k`
//! dims that are left after merging are the matrix, all others batch entries by table. Any other operand is first computed
//! into a temporary, any epilogue that has no plain float store runs as a loop kernel over a temporary product, and other
//! element types are a loop kernel with a fold.

use std::sync::Arc;

use ir::entity::Entity;
use ir::kernel::{AxisId, Body, ContractBody, Expr, ExprId, Kernel, Operand, Stmt};
use ir::op::{BinaryOp, ReduceOp};
use ir::types::DType;

use super::affine::{Affine, Roots, Space, collapse};
use super::block::compile::Source;
use super::env::RunMemory;
use super::exec::{Piece, Prepare};
use super::kernels::gemm::{
    Activation, Batch, Builtin, Elem, Gemm, MatMut, MatRef, PackedB, QuantisedB, Residual, Rhs, gemm,
};
use super::loops::LoopsExec;
use super::quantised::{self, Strides};
use super::rewrite::{Rewritten, store};
use super::tile::{self, Addend, Output, Taken, TileDims, TileRun, elem, tile_scratch};
use crate::error::RuntimeError;

/// A matrix product at one set of sizes.
#[derive(Debug)]
pub(crate) struct GemmExec {
    entries: usize,
    m: usize,
    n: usize,
    k: usize,
    a: GemmOperand,
    b: GemmOperand,
    packed: Option<Arc<PackedB>>,
    quantised: Option<Arc<QuantisedB>>,
    c: GemmOperand,
    scale: f32,
    bias: Option<(usize, i64)>,
    residual: Option<GemmOperand>,
    activation: Activation,
    program: Option<super::block::Program>,
    dims: TileDims,
    space: usize,
    positions: Vec<i64>,
}

#[derive(Clone, Debug)]
struct GemmOperand {
    param: usize,
    elem: Elem,
    base: i64,
    row: i64,
    col: i64,
    /// By batch entry; empty where all entries are the same.
    table: Vec<isize>,
}

impl GemmOperand {
    fn batch(&self) -> Batch<'_> {
        if self.table.is_empty() {
            Batch::Stride(0)
        } else {
            Batch::Table(&self.table)
        }
    }

    fn start(&self, params: &[*mut u8]) -> *mut u8 {
        params[self.param].wrapping_offset(self.base as isize * self.elem.size() as isize)
    }

    fn read(&self, params: &[*mut u8]) -> MatRef<'_> {
        MatRef {
            ptr: self.start(params),
            elem: self.elem,
            row_stride: self.row as isize,
            col_stride: self.col as isize,
            batch: self.batch(),
        }
    }
}

/// Prepares a contraction as pieces that run one after another.
///
/// # Errors
/// As for kernels of loops.
pub(crate) fn prepare(
    rewritten: &mut Rewritten,
    body: &ContractBody,
    cx: &Prepare<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<(), RuntimeError> {
    let acc = rewritten.kernel.vars[body.acc];
    let float = |k: &Kernel, e: ExprId| elem(k.exprs.dtype(e)).is_some();
    if super::integers::prepare(rewritten, body, cx, pieces)? {
        return Ok(());
    }
    if acc != DType::F32 || !float(&rewritten.kernel, body.lhs.value) || !float(&rewritten.kernel, body.rhs.value) {
        return folded(rewritten, body, cx, pieces);
    }
    let mut body = body.clone();
    if let Some(facts) = body.conv.clone()
        && !is_product(&rewritten.kernel, &body, cx)?
        && super::conv::prepare(rewritten, &body, &facts, cx, pieces)?
    {
        return Ok(());
    }
    for _ in 0..3 {
        let a = Analysis::new(&rewritten.kernel, &body, cx)?;
        let lhs_axes: Vec<AxisId> = body.batch.iter().chain(&body.m).chain(&body.k).copied().collect();
        let rhs_axes: Vec<AxisId> = body.batch.iter().chain(&body.n).chain(&body.k).copied().collect();
        if !a.depth_is_one(&rewritten.kernel, body.lhs.value) {
            let value = materialise(rewritten, "lhs", body.lhs.value, &lhs_axes, cx, pieces)?;
            body.lhs = Operand::new(&rewritten.kernel.exprs, value);
            continue;
        }
        let quantised = a.quantised(&rewritten.kernel, &body, cx);
        if quantised.is_none() && !a.depth_is_one(&rewritten.kernel, body.rhs.value) {
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
        let a = Analysis::new(&rewritten.kernel, &body, cx)?;
        let quantised = a.quantised(&rewritten.kernel, &body, cx);
        let Some(exec) = product(&rewritten.kernel, &a, &body, quantised, cx)? else {
            break;
        };
        pieces.push(Piece::Gemm(Box::new(exec)));
        let value = rewritten.load(param, index);
        let mut stmts = vec![Stmt::Let { var: body.acc, value }];
        stmts.extend(epilogue);
        let loops = LoopsExec::from_parts(&rewritten.kernel, &axes, &stmts, cx.bindings, cx.threads, true)?;
        pieces.push(Piece::Loops(Box::new(loops)));
        return Ok(());
    }
    folded(rewritten, &body, cx, pieces)
}

/// Says whether a convolution is a plain product of its operands as they lie (1x1, stride 1, no padding).
fn is_product(kernel: &Kernel, body: &ContractBody, cx: &Prepare<'_>) -> Result<bool, RuntimeError> {
    let a = Analysis::new(kernel, body, cx)?;
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
    cx: &Prepare<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<ExprId, RuntimeError> {
    let (param, index) = rewritten.temporary(name, DType::F32, axes, cx.bindings)?;
    let wide = rewritten.cast(DType::F32, value);
    let stmts = [store(param, index, wide)];
    let loops = LoopsExec::from_parts(&rewritten.kernel, axes, &stmts, cx.bindings, cx.threads, false)?;
    pieces.push(Piece::Loops(Box::new(loops)));
    Ok(rewritten.load(param, index))
}

/// The contraction as loops with a fold: any element type, slow.
fn folded(
    rewritten: &mut Rewritten,
    body: &ContractBody,
    cx: &Prepare<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<(), RuntimeError> {
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
    let loops = LoopsExec::from_parts(&rewritten.kernel, &axes, &stmts, cx.bindings, cx.threads, false)?;
    pieces.push(Piece::Loops(Box::new(loops)));
    Ok(())
}

/// A quantised right operand.
struct Quantised {
    param: usize,
    form: Affine,
    packed: Arc<QuantisedB>,
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
}

impl<'k> Analysis<'k> {
    fn new(kernel: &'k Kernel, body: &ContractBody, cx: &Prepare<'_>) -> Result<Analysis<'k>, RuntimeError> {
        let mut space = Space::new(kernel, cx.bindings)?;
        let mut exprs = vec![body.lhs.value, body.rhs.value];
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
        })
    }

    /// The parameter, type and affine index of an operand that is a float load.
    fn load(&self, kernel: &Kernel, e: ExprId) -> Option<(usize, Elem, Affine)> {
        let Expr::Load { param, index } = kernel.exprs[e] else {
            return None;
        };
        let elem = elem(kernel.params[param].dtype)?;
        Some((param.index(), elem, self.roots.get(&index)?.clone()))
    }

    /// The right operand as it is stored, if it is a matrix of quantised constants that all entries share.
    fn quantised(&self, kernel: &Kernel, body: &ContractBody, cx: &Prepare<'_>) -> Option<Quantised> {
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
        let sizes = [count(&self.k)?, n.map_or(1, |n| self.extents[n].max(0) as usize)];
        // A matrix whose rows lie on one another would take more than is there.
        if i64::try_from(sizes[0].checked_mul(sizes[1])?).ok()? > self.elements[param] {
            return None;
        }
        let packed = quantised::pack(kernel, body, &strides, sizes, cx)?;
        Some(Quantised { param, form, packed })
    }

    /// Says whether no point of the product reads its operands: where they would be read is then not known to be inside.
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
/// The most products of one launch: each has its positions in a table.
const MOST_ENTRIES: usize = 1 << 20;

fn product(
    kernel: &Kernel,
    a: &Analysis<'_>,
    body: &ContractBody,
    quantised: Option<Quantised>,
    cx: &Prepare<'_>,
) -> Result<Option<GemmExec>, RuntimeError> {
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
    let Some(taken) = tile::take(&source, &body.epilogue, body.acc, &a.roots, dims)? else {
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
    let operand = |param: usize, elem: Elem, form: &Affine, row: Option<usize>, col: Option<usize>| GemmOperand {
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
    let packed = match cx.constant(right.param) {
        Some((id, tensor)) if reads && quantised.is_none() => {
            let one: usize = inner.iter().map(|d| a.extents[*d].max(0) as usize).product();
            let table: Vec<isize> = if right.table.is_empty() {
                vec![0]
            } else {
                right.table[..one].to_vec()
            };
            Some(cx.pack(id, tensor, right.elem, [right.base, right.row, right.col], table, k, n)?)
        }
        _ => None,
    };
    let residual = residual.map(|Addend { param, form }| {
        let mut r = operand(param, Elem::F32, &form, m_dim, n_dim);
        r.col = 1;
        r
    });
    Ok(Some(GemmExec {
        entries,
        m,
        n,
        k,
        a: left,
        b: right,
        packed,
        quantised: quantised.map(|q| q.packed),
        c,
        scale,
        bias: bias.map(|b| (b.param, b.form.base)),
        residual,
        activation,
        program,
        dims,
        space,
        positions,
    }))
}

fn inside(form: &Affine, extents: &[i64], elements: i64) -> bool {
    let (lo, hi) = form.range(extents);
    lo >= 0 && hi < elements
}

impl GemmExec {
    /// The parameter that is read only as packed panels.
    pub(crate) fn packed_param(&self) -> Option<usize> {
        (self.packed.is_some() || self.is_quantised()).then_some(self.b.param)
    }

    /// Says whether the right operand is packed as the integers that are stored.
    pub(crate) fn is_quantised(&self) -> bool {
        self.quantised.is_some()
    }

    /// Says whether the parameter is read as it lies.
    pub(crate) fn reads(&self, param: usize) -> bool {
        self.a.param == param
            || (self.packed.is_none() && self.quantised.is_none() && self.b.param == param)
            || self.bias.is_some_and(|b| b.0 == param)
            || self.residual.as_ref().is_some_and(|r| r.param == param)
    }

    pub(crate) fn scratch(&self) -> usize {
        self.program.as_ref().map_or(0, |p| tile_scratch(p, self.space))
    }

    /// # Safety
    /// `params` are the kernel's buffers, temporaries included, at the sizes it was prepared for.
    pub(crate) unsafe fn run(&self, memory: &mut RunMemory, params: &[*mut u8]) {
        let isa = memory.workspace.isa();
        let RunMemory { workspace, threads, .. } = memory;
        let run = self.program.as_ref().map(|program| TileRun {
            program,
            dims: self.dims,
            space: self.space,
            entries: &self.positions,
            params,
            scratch: threads,
            isa,
        });
        let bias = self.bias.map(|(param, base)| {
            // SAFETY: the bias was proven to be inside its buffer for every column.
            unsafe { std::slice::from_raw_parts(params[param].cast::<f32>().offset(base as isize), self.n) }
        });
        let residual = self.residual.as_ref().map(|r| Residual {
            ptr: r.start(params).cast::<f32>().cast_const(),
            row_stride: r.row as usize,
            batch: r.batch(),
        });
        let c = MatMut {
            ptr: self.c.start(params),
            elem: self.c.elem,
            row_stride: self.c.row as isize,
            col_stride: self.c.col as isize,
            batch: self.c.batch(),
        };
        let product = Gemm {
            batch: self.entries,
            m: self.m,
            n: self.n,
            k: self.k,
            a: self.a.read(params),
            b: match (&self.packed, &self.quantised) {
                (_, Some(quantised)) => Rhs::Quantised(quantised),
                (Some(packed), None) => Rhs::Packed(packed),
                (None, None) => Rhs::Strided(self.b.read(params)),
            },
            c,
            builtin: Builtin {
                scale: self.scale,
                bias,
                residual,
                activation: self.activation,
            },
            epilogue: run.as_ref().map(|r| r as &dyn super::kernels::gemm::Epilogue),
        };
        // SAFETY: operands were proven to be inside their buffers; the plan keeps the result apart from the operands.
        unsafe { gemm(workspace, &product) }
    }
}

/// The body of a contraction kernel.
pub(crate) fn body(kernel: &Kernel) -> Option<&ContractBody> {
    match &kernel.body {
        Body::Contract(body) => Some(body),
        _ => None,
    }
}
