//! Attention: the fused kernel where operands are strided and the score is a scale with an optional mask; else two
//! contractions with a softmax between them, through temporaries.

use ir::entity::Entity;
use ir::host::product::Elem;
use ir::host::shapes::{Attention, Heads, ScoreMask};
use ir::host::{Affine, LowerError, Piece, Setting};
use ir::kernel::{AttentionBody, AxisId, ContractBody, Expr, ExprId, Kernel, Operand, ParamId, Stmt};
use ir::op::{BinaryOp, ReduceOp, UnaryOp};
use ir::types::DType;

use crate::affine::{Roots, Space, collapse};
use crate::quantised::Scales;
use crate::rewrite::{Rewritten, store};
use crate::tile::float_constant;
use crate::{contract, loops};

/// Lowers an attention.
///
/// # Errors
/// As for kernels of loops.
pub(crate) fn lower(
    rewritten: &mut Rewritten,
    body: &AttentionBody,
    cx: &Setting<'_>,
    scales: &Scales,
    pieces: &mut Vec<Piece>,
) -> Result<(), LowerError> {
    if let Some(exec) = fused(&rewritten.kernel, body, cx)? {
        pieces.push(Piece::Attention(Box::new(exec)));
        return Ok(());
    }
    composed(rewritten, body, cx, scales, pieces)
}

/// The score's parts: `acc · scale`, then an additive or a keeping mask.
#[derive(Default)]
struct Score {
    scale: f32,
    mask: Option<(ExprId, bool)>,
    causal: bool,
}

fn score(kernel: &Kernel, body: &AttentionBody, roots: &Roots, q: usize, k: usize, shift: i64) -> Option<Score> {
    let exprs = &kernel.exprs;
    let low = |e: ExprId| float_constant(kernel, e) == Some(f64::NEG_INFINITY);
    let mut out = Score {
        scale: 1.0,
        ..Score::default()
    };
    let mut at = body.score;
    if let Expr::Select(c, t, e) = exprs[at]
        && low(e)
        && let Expr::Binary(BinaryOp::Le, a, b) = exprs[c]
        && let (Some(a), Some(b)) = (roots.get(&a), roots.get(&b))
    {
        // key <= query + (keys - queries)
        let mut want = Affine::dim(q).plus(&Affine::dim(k), -1);
        want.base = shift;
        let got = b.plus(a, -1);
        let n = want.coef.len().max(got.coef.len());
        if got.base != want.base || (0..n).any(|d| got.get(d) != want.get(d)) {
            return None;
        }
        out.causal = true;
        at = t;
    }
    loop {
        match exprs[at] {
            Expr::Var(v) if v == body.acc => return Some(out),
            Expr::Binary(BinaryOp::Mul, a, b) => {
                let (inner, factor) = match (float_constant(kernel, a), float_constant(kernel, b)) {
                    (None, Some(f)) => (a, f),
                    (Some(f), None) => (b, f),
                    _ => return None,
                };
                // The scale is the innermost.
                if exprs[inner] != Expr::Var(body.acc) {
                    return None;
                }
                out.scale = factor as f32;
                at = inner;
            }
            Expr::Binary(BinaryOp::Add, a, b) if out.mask.is_none() => {
                let f32_load = |e: ExprId| {
                    matches!(exprs[e], Expr::Load { param, index }
                        if kernel.params[param].dtype == DType::F32 && roots.contains_key(&index))
                };
                let (inner, mask) = match (f32_load(a), f32_load(b)) {
                    (false, true) => (a, b),
                    (true, false) => (b, a),
                    _ => return None,
                };
                out.mask = Some((mask, false));
                at = inner;
            }
            Expr::Select(c, t, e) if out.mask.is_none() && low(e) => {
                let bool_load = matches!(exprs[c], Expr::Load { param, index }
                    if kernel.params[param].dtype == DType::Bool && roots.contains_key(&index));
                if !bool_load {
                    return None;
                }
                out.mask = Some((c, true));
                at = t;
            }
            _ => return None,
        }
    }
}

fn fused(kernel: &Kernel, body: &AttentionBody, cx: &Setting<'_>) -> Result<Option<Attention>, LowerError> {
    let [
        Stmt::Store {
            param,
            index,
            value,
            ref axes,
        },
    ] = body.epilogue[..]
    else {
        return Ok(None);
    };
    let out_type = kernel.params[param].dtype;
    let rounded = matches!(kernel.exprs[value], Expr::Cast(to, inner)
        if to == out_type && kernel.exprs[inner] == Expr::Var(body.out));
    if !axes.is_empty() || !(kernel.exprs[value] == Expr::Var(body.out) || rounded) {
        return Ok(None);
    }
    let mut space = Space::new(kernel, cx.bindings)?;
    let exprs = [body.query, body.key, body.value, body.score, index];
    let mut batch = Space::dims(&body.batch);
    space.split(&exprs, &mut [&mut batch], &[]);
    let (q, k, d, dv) = (body.q.index(), body.k.index(), body.d.index(), body.dv.index());
    // A split query, key or depth axis is not what the kernel takes, nor is a softmax of nothing.
    let sizes: Vec<i64> = [q, k, d, dv].iter().map(|a| space.extents[*a]).collect();
    if sizes[1] == 0 {
        return Ok(None);
    }
    for (axis, size) in [body.q, body.k, body.d, body.dv].iter().zip(&sizes) {
        if kernel.axes[*axis].extent.eval(cx.bindings)? != *size {
            return Ok(None);
        }
    }
    let mut roots = space.roots(&exprs);
    let mut extents = space.extents.clone();
    collapse(&mut extents, &mut [&mut batch], &mut roots);
    let load = |e: ExprId| -> Option<(usize, Elem, Affine)> {
        let Expr::Load { param, index } = kernel.exprs[e] else {
            return None;
        };
        Some((
            param.index(),
            Elem::of(kernel.params[param].dtype)?,
            roots.get(&index)?.clone(),
        ))
    };
    let (Some(query), Some(key), Some(val)) = (load(body.query), load(body.key), load(body.value)) else {
        return Ok(None);
    };
    let (Some(out_elem), Some(out)) = (Elem::of(out_type), roots.get(&index)) else {
        return Ok(None);
    };
    let Some(score) = score(kernel, body, &roots, q, k, sizes[1] - sizes[0]) else {
        return Ok(None);
    };
    // What no point of the loops reaches may lie anywhere.
    let empty = |dims: [i64; 2]| dims.contains(&0) || batch.iter().any(|d| extents[*d] == 0);
    for (param, form, none) in [
        (query.0, &query.2, empty([sizes[0], sizes[2]])),
        (key.0, &key.2, empty([sizes[1], sizes[2]])),
        (val.0, &val.2, empty([sizes[1], sizes[3]])),
        (param.index(), out, empty([sizes[0], sizes[3]])),
    ] {
        let elements = kernel.params[ParamId::new(param)].elements.eval(cx.bindings)?;
        let (lo, hi) = form.range(&extents);
        if !none && (lo < 0 || hi >= elements) {
            return Ok(None);
        }
    }
    // Batch dims: at most (batch, head), or (batch, key head, share) with grouped queries.
    let (b_dim, h_dim, share) = match *batch.as_slice() {
        [] => (None, None, None),
        [h] => (None, Some(h), None),
        [b, h]
            if key.2.get(h) == 0 && val.2.get(h) == 0 && query.2.get(b) == extents[h].wrapping_mul(query.2.get(h)) =>
        {
            (None, Some(h), Some(b))
        }
        [b, h] => (Some(b), Some(h), None),
        [b, g, h] if key.2.get(h) == 0 && val.2.get(h) == 0 => (Some(b), Some(h), Some(g)),
        _ => return Ok(None),
    };
    // With grouped queries the query head is `group · share + h`.
    if let (Some(g), Some(h)) = (share, h_dim) {
        let joined = |f: &Affine| f.get(g) == f.get(h).wrapping_mul(extents[h]);
        if !joined(&query.2) || !joined(out) {
            return Ok(None);
        }
    }
    let at = |f: &Affine, d: Option<usize>| d.map_or(0, |d| f.get(d)) as isize;
    let own = |(param, elem, f): (usize, Elem, &Affine), seq: usize, depth: usize| Heads {
        param,
        elem,
        base: f.base,
        batch: at(f, b_dim),
        seq: f.get(seq) as isize,
        head: at(f, h_dim),
        d: f.get(depth) as isize,
    };
    let shared = |(param, elem, f): (usize, Elem, &Affine), seq: usize, depth: usize| Heads {
        head: if share.is_some() { at(f, share) } else { at(f, h_dim) },
        ..own((param, elem, f), seq, depth)
    };
    let extent = |d: Option<usize>| d.map_or(1, |d| extents[d].max(0) as usize);
    let heads = extent(h_dim) * extent(share);
    let mask = match score.mask {
        None => None,
        Some((e, keep)) => {
            let Expr::Load { param, index } = kernel.exprs[e] else {
                return Ok(None);
            };
            let Some(f) = roots.get(&index) else { return Ok(None) };
            let elements = kernel.params[param].count(cx.bindings)?;
            let (lo, hi) = f.range(&extents);
            if !empty([sizes[0], sizes[1]]) && (lo < 0 || hi >= elements) {
                return Ok(None);
            }
            if let (Some(g), Some(h)) = (share, h_dim)
                && f.get(g) != f.get(h).wrapping_mul(extents[h])
            {
                return Ok(None);
            }
            let strides = [at(f, b_dim), at(f, h_dim), f.get(q) as isize, f.get(k) as isize];
            Some(ScoreMask {
                param: param.index(),
                base: f.base,
                strides,
                keeps: keep,
            })
        }
    };
    Ok(Some(Attention {
        batch: extent(b_dim),
        heads,
        kv_heads: if share.is_some() { extent(share) } else { heads },
        q_len: sizes[0].max(0) as usize,
        kv_len: sizes[1].max(0) as usize,
        d: sizes[2].max(0) as usize,
        d_v: sizes[3].max(0) as usize,
        q: own((query.0, query.1, &query.2), q, d),
        k: shared((key.0, key.1, &key.2), k, d),
        v: shared((val.0, val.1, &val.2), k, dv),
        o: own((param.index(), out_elem, out), q, dv),
        scale: score.scale,
        mask,
        causal: score.causal.then_some((sizes[1] - sizes[0]) as isize),
    }))
}

/// Scores, softmax and the weighted sum as kernels of their own.
fn composed(
    rewritten: &mut Rewritten,
    body: &AttentionBody,
    cx: &Setting<'_>,
    scales: &Scales,
    pieces: &mut Vec<Piece>,
) -> Result<(), LowerError> {
    let rows: Vec<AxisId> = body.batch.iter().copied().chain([body.q]).collect();
    let all: Vec<AxisId> = rows.iter().copied().chain([body.k]).collect();
    let (param, index) = rewritten.temporary("scores", DType::F32, &all, cx.bindings)?;
    let scores = ContractBody {
        batch: body.batch.clone(),
        m: vec![body.q],
        n: vec![body.k],
        k: vec![body.d],
        lhs: Operand::new(&rewritten.kernel.exprs, body.query),
        rhs: Operand::new(&rewritten.kernel.exprs, body.key),
        acc: body.acc,
        pair: None,
        statistic: None,
        epilogue: vec![store(param, index, body.score)],
        conv: None,
    };
    contract::lower(rewritten, &scores, cx, scales, pieces)?;
    let x = rewritten.load(param, index);
    let (max, sum) = (
        rewritten.kernel.vars.push(DType::F32),
        rewritten.kernel.vars.push(DType::F32),
    );
    let exprs = &mut rewritten.kernel.exprs;
    let max_value = exprs.add(Expr::Var(max), DType::F32);
    let shifted = exprs.add(Expr::Binary(BinaryOp::Sub, x, max_value), DType::F32);
    let exp = exprs.add(Expr::Unary(UnaryOp::Exp, shifted), DType::F32);
    let sum_value = exprs.add(Expr::Var(sum), DType::F32);
    let weight = exprs.add(Expr::Binary(BinaryOp::Div, exp, sum_value), DType::F32);
    let fold = |var, op, value| Stmt::Fold {
        var,
        op,
        axes: vec![body.k],
        value,
    };
    let stmts = [
        fold(max, ReduceOp::Max, x),
        fold(sum, ReduceOp::Sum, exp),
        Stmt::Store {
            param,
            index,
            value: weight,
            axes: vec![body.k],
        },
    ];
    pieces.push(loops::piece(&rewritten.kernel, &rows, &stmts, cx.bindings, true)?);
    let weighted = ContractBody {
        batch: body.batch.clone(),
        m: vec![body.q],
        n: vec![body.dv],
        k: vec![body.k],
        lhs: Operand::new(&rewritten.kernel.exprs, x),
        rhs: Operand::new(&rewritten.kernel.exprs, body.value),
        acc: body.out,
        pair: None,
        statistic: None,
        epilogue: body.epilogue.clone(),
        conv: None,
    };
    contract::lower(rewritten, &weighted, cx, scales, pieces)
}
