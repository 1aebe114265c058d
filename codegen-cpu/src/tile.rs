//! Epilogues of contractions and convolutions: what the product kernel does in registers, and a block program for the
//! rest.
//!
//! From the accumulator outwards, a constant factor, a bias per column, a residual in the result's own layout and a
//! ReLU or clip become the kernel's built-in epilogue. What is left runs as a block program on each finished tile, in
//! cache.

use ir::entity::Entity;
use ir::host::block::{Class, Program};
use ir::host::product::{Activation, Elem, TILE_LANES, TileDims};
use ir::host::{Affine, LowerError};
use ir::kernel::{Expr, ExprId, Kernel, ParamId, Stmt, VarId};
use ir::op::{BinaryOp, UnaryOp};
use ir::types::{DType, Scalar};

use crate::affine::{Roots, reachable};
use crate::block::compile::{Source, Spec, SpecStep, compile};

/// A strided operand of the epilogue: bias or residual.
#[derive(Clone, Debug)]
pub(crate) struct Addend {
    pub param: usize,
    pub elem: Elem,
    pub form: Affine,
}

/// The result that the product kernel writes itself.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub param: usize,
    pub elem: Elem,
    pub form: Affine,
}

/// An epilogue, taken apart.
#[derive(Debug)]
pub(crate) struct Taken {
    pub scale: f32,
    pub bias: Option<Addend>,
    pub residual: Option<Addend>,
    pub activation: Activation,
    pub result: Output,
    pub program: Option<Program>,
    /// The program reads the elements that the result replaces.
    pub reads_replaced: bool,
}

fn row_of(dims: TileDims, form: &Affine) -> i64 {
    dims.row.map_or(0, |d| form.get(d))
}

fn col_of(dims: TileDims, form: &Affine) -> i64 {
    dims.col.map_or(0, |d| form.get(d))
}

/// Says whether the form depends on nothing but rows and columns; a dim of one point decides nothing.
fn only_tile(dims: TileDims, form: &Affine, extents: &[i64]) -> bool {
    let mut coefs = form.coef.iter().enumerate();
    coefs.all(|(d, c)| *c == 0 || extents[d] <= 1 || Some(d) == dims.row || Some(d) == dims.col)
}

/// Takes the epilogue apart, with a residual of one of some types; `None` when no store can be the product's own (then
/// the product goes to a temporary).
///
/// # Errors
/// As compiling a program.
pub(crate) fn take(
    source: &Source<'_>,
    stmts: &[Stmt],
    acc: VarId,
    roots: &Roots,
    dims: TileDims,
    residuals: &[Elem],
) -> Result<Option<Taken>, LowerError> {
    let kernel = source.kernel;
    if stmts.iter().any(|s| {
        matches!(s, Stmt::Fold { .. } | Stmt::Update { .. })
            || matches!(s, Stmt::Store { axes, .. } if !axes.is_empty())
    }) {
        return Ok(None);
    }
    // The last float store with columns in steps of one, else the last float store.
    let candidate = |unit: bool| {
        stmts.iter().rposition(|s| match s {
            Stmt::Store { param, index, .. } => {
                Elem::of(kernel.params[*param].dtype).is_some()
                    && roots
                        .get(index)
                        .is_some_and(|f| !unit || dims.col.is_none() || col_of(dims, f) == 1)
            }
            _ => false,
        })
    };
    let Some(chosen) = candidate(true).or_else(|| candidate(false)) else {
        return Ok(None);
    };
    let Stmt::Store {
        param, index, value, ..
    } = stmts[chosen]
    else {
        return Ok(None);
    };
    let out = kernel.params[param].dtype;
    let (Some(out_elem), Some(form)) = (Elem::of(out), roots.get(&index)) else {
        return Ok(None);
    };
    let result = Output {
        param: param.index(),
        elem: out_elem,
        form: form.clone(),
    };
    let all: Vec<ExprId> = stmts
        .iter()
        .flat_map(|s| match *s {
            Stmt::Store { index, value, .. } => vec![index, value],
            Stmt::Let { value, .. } => vec![value],
            _ => Vec::new(),
        })
        .collect();
    let lets = stmts.iter().any(|s| matches!(s, Stmt::Let { .. }));
    let live = reachable(kernel, &all);
    let Some(mut at) = live.iter().copied().find(|e| kernel.exprs[*e] == Expr::Var(acc)) else {
        return Ok(None);
    };
    let mut taken = Taken {
        scale: 1.0,
        bias: None,
        residual: None,
        activation: Activation::None,
        result,
        program: None,
        reads_replaced: false,
    };
    let uses = |e: ExprId| -> Vec<ExprId> {
        let mut users = Vec::new();
        for u in &live {
            kernel.exprs[*u].for_each_operand(|o| {
                if o == e {
                    users.push(*u);
                }
            });
        }
        users
    };
    let stored = |e: ExprId| all.contains(&e);
    // A row of another operand, and where it is.
    let widened = |e: ExprId| match kernel.exprs[e] {
        Expr::Cast(DType::F32, inner) => inner,
        _ => e,
    };
    let addend = |e: ExprId| match kernel.exprs[widened(e)] {
        Expr::Load { param, index } => {
            let elem = Elem::of(kernel.params[param].dtype)?;
            let form = roots.get(&index)?;
            let (lo, hi) = form.range(source.extents);
            if lo < 0 || hi >= source.elements[param.index()] {
                return None;
            }
            (dims.col.is_none() || col_of(dims, form) == 1).then(|| Addend {
                param: param.index(),
                elem,
                form: form.clone(),
            })
        }
        _ => None,
    };
    let number = |e: ExprId| match kernel.exprs[e] {
        Expr::Const(DType::F32, v) => Some(v.as_f64() as f32),
        _ => None,
    };
    let mut first = true;
    // One use each: what another expression needs too must stay visible.
    while !stored(at) && !lets {
        let [user] = uses(at)[..] else { break };
        let other = |a: ExprId, b: ExprId| if a == at { b } else { a };
        match kernel.exprs[user] {
            Expr::Binary(BinaryOp::Mul, a, b) if first && number(other(a, b)).is_some() => {
                taken.scale = number(other(a, b)).unwrap_or(1.0);
            }
            // A bias of zeros: it makes a zero of -0, and no product says which zero its sum is.
            Expr::Binary(BinaryOp::Add, a, b) if first && number(other(a, b)) == Some(0.0) => {}
            Expr::Binary(BinaryOp::Add, a, b) if taken.activation == Activation::None => {
                let Some(found) = addend(other(a, b)) else { break };
                let per_column = row_of(dims, &found.form) == 0;
                let narrow = found.elem != Elem::F32;
                if narrow && !residuals.contains(&found.elem) {
                    break;
                }
                if per_column
                    && !narrow
                    && taken.bias.is_none()
                    && (!dims.entries || only_tile(dims, &found.form, source.extents))
                {
                    taken.bias = Some(found);
                } else if taken.residual.is_none() && row_of(dims, &found.form) >= 0 {
                    taken.residual = Some(found);
                } else {
                    break;
                }
            }
            Expr::Unary(UnaryOp::Relu, _) if taken.activation == Activation::None => {
                taken.activation = Activation::Relu
            }
            Expr::Binary(op @ (BinaryOp::Max | BinaryOp::Min), a, b) => {
                let Some(v) = number(other(a, b)) else { break };
                taken.activation = match (op, taken.activation) {
                    (BinaryOp::Max, Activation::None) => Activation::Clip(v, f32::INFINITY),
                    (BinaryOp::Min, Activation::None) => Activation::Clip(f32::NEG_INFINITY, v),
                    (BinaryOp::Min, Activation::Relu) => Activation::Clip(0.0, v),
                    (BinaryOp::Min, Activation::Clip(lo, f32::INFINITY)) if lo <= v => Activation::Clip(lo, v),
                    _ => break,
                };
            }
            _ => break,
        }
        first = false;
        at = user;
    }
    // A rounding to the stored type is the store's own.
    let plain = value == at || matches!(kernel.exprs[value], Expr::Cast(to, inner) if inner == at && to == out);
    let stores = stmts.iter().filter(|s| matches!(s, Stmt::Store { .. })).count();
    if plain && stores == 1 && !lets {
        return Ok(Some(taken));
    }
    // A result in place of an operand still has that operand where tiles go: each may read what it replaces. (A
    // residual that the kernel adds itself is read in time.)
    let replaced = read_from(kernel, &all, at, param);
    let beside = out != DType::F32 || dims.col.is_none() || col_of(dims, form) == 1;
    if !replaced.iter().all(|place| beside && roots.get(place) == Some(form)) {
        return Ok(None);
    }
    taken.reads_replaced = !replaced.is_empty();
    let mut spec = Spec {
        exprs: vec![(at, false)],
        results: vec![value],
        ..Spec::default()
    };
    for (i, stmt) in stmts.iter().enumerate() {
        match *stmt {
            Stmt::Let { var, value } => spec.steps.push(SpecStep::Let(var, value)),
            Stmt::Store {
                param, index, value, ..
            } if i != chosen => spec.steps.push(SpecStep::Store(param, index, value)),
            _ => {}
        }
    }
    // Stores to 4-bit types of neighbouring tiles would race.
    if stmts
        .iter()
        .any(|s| matches!(s, Stmt::Store { param, .. } if kernel.params[*param].dtype.bits() < 8))
    {
        return Ok(None);
    }
    let mut program = compile(source, dims.row, dims.col, &spec, TILE_LANES)?;
    if program.class(0) != Class::F32 {
        return Ok(None);
    }
    program.copy_loads = stores > 1;
    taken.program = Some(program);
    Ok(Some(taken))
}

/// Where computing `roots` from `at` loads from `param`.
fn read_from(kernel: &Kernel, roots: &[ExprId], at: ExprId, param: ParamId) -> Vec<ExprId> {
    let mut places = Vec::new();
    let mut seen = vec![false; kernel.exprs.len()];
    let mut stack = roots.to_vec();
    while let Some(e) = stack.pop() {
        if e == at || std::mem::replace(&mut seen[e.index()], true) {
            continue;
        }
        if let Expr::Load { param: p, index } = kernel.exprs[e]
            && p == param
        {
            places.push(index);
        }
        kernel.exprs[e].for_each_operand(|o| stack.push(o));
    }
    places
}

/// A float constant, for patterns.
pub(crate) fn float_constant(kernel: &Kernel, e: ExprId) -> Option<f64> {
    match kernel.exprs[e] {
        Expr::Const(_, Scalar::Float(v)) => Some(v),
        _ => None,
    }
}
