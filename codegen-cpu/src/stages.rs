//! What follows a product of integers: numbers of columns and rows are added to the sums, they become floats, and a
//! list of stages works on each finished tile.
//!
//! Before: the statements of an epilogue, whose indices are affine. After: [`Finish`], every place of which was shown
//! to be inside its parameter; an epilogue that is no list of stages is a block program, and one that floats do not
//! serve is nothing.

use ir::entity::Entity;
use ir::host::LowerError;
use ir::host::product::{Added, Factor, Finish, Place, SUM_LANES, StageOp, Step, Stored, TileDims};
use ir::kernel::{Expr, ExprId, ParamId, Stmt, VarId};
use ir::op::{BinaryOp, UnaryOp};
use ir::types::{DType, Scalar};

use crate::affine::{Roots, reachable};
use crate::block::compile::{Source, Spec, SpecStep, compile};
use crate::tables;

/// The expressions of an epilogue.
pub(crate) fn epilogue_exprs(epilogue: &[Stmt]) -> Vec<ExprId> {
    epilogue
        .iter()
        .flat_map(|s| match *s {
            Stmt::Let { value, .. } | Stmt::Fold { value, .. } => vec![value],
            Stmt::Store { index, value, .. } | Stmt::Update { index, value, .. } => vec![index, value],
        })
        .collect()
}

/// Takes an epilogue apart; `None` where floats do not serve it. Of several dims of columns a tile has the last.
pub(crate) fn take(
    source: &Source<'_>,
    stmts: &[Stmt],
    acc: VarId,
    dims: TileDims,
) -> Result<Option<(Added, Finish)>, LowerError> {
    let simple = |s: &Stmt| matches!(s, Stmt::Let { .. }) || matches!(s, Stmt::Store { axes, .. } if axes.is_empty());
    let bytes = |s: &Stmt| match s {
        Stmt::Store { param, .. } => source.kernel.params[*param].dtype.bits() >= 8,
        _ => true,
    };
    if !stmts.iter().all(|s| simple(s) && bytes(s)) {
        return Ok(None);
    }
    let chain = Chain::new(source, stmts, dims);
    let Some(mut at) = chain
        .live
        .iter()
        .copied()
        .find(|e| source.kernel.exprs[*e] == Expr::Var(acc))
    else {
        return Ok(None);
    };
    let mut added = Added::default();
    if let Some((user, BinaryOp::Mul, other)) = chain.binary_user(at)
        && let Some(factor) = chain.factor(other)
    {
        added.factor = Some(factor);
        at = user;
    }
    while let Some((user, BinaryOp::Add, other)) = chain.binary_user(at) {
        if added.columns.is_none()
            && let Some(place) = chain.column(other, DType::I32)
        {
            added.columns = Some(place);
        } else if added.outer.is_none()
            && let Some(places) = chain.outer(other)
        {
            added.outer = Some(places);
        } else if added.each.is_none()
            && let Some((place, DType::I32)) = chain.load(other)
        {
            added.each = Some(place);
        } else {
            break;
        }
        at = user;
    }
    if let Some(out) = chain.stored_sums(at) {
        return Ok(Some((added, Finish::Sums(out))));
    }
    let Some(number) = chain
        .only_user(at)
        .filter(|u| matches!(source.kernel.exprs[*u], Expr::Cast(DType::F32, _)))
    else {
        return Ok(None);
    };
    if let Some(finish) = chain.stages(number) {
        return Ok(Some((added, finish)));
    }
    let mut spec = Spec {
        exprs: vec![(number, false)],
        ..Spec::default()
    };
    for stmt in stmts {
        match *stmt {
            Stmt::Let { var, value } => spec.steps.push(SpecStep::Let(var, value)),
            Stmt::Store {
                param, index, value, ..
            } => spec.steps.push(SpecStep::Store(param, index, value)),
            Stmt::Fold { .. } | Stmt::Update { .. } => {}
        }
    }
    let mut program = compile(source, dims.row, dims.col, &spec, SUM_LANES)?;
    program.copy_loads = spec.steps.len() > 1;
    Ok(Some((added, Finish::Program(program))))
}

/// An epilogue that is looked at from the sum outwards.
struct Chain<'a> {
    source: &'a Source<'a>,
    stmts: &'a [Stmt],
    dims: TileDims,
    live: Vec<ExprId>,
    roots: &'a Roots,
    /// What statements name themselves.
    named: Vec<ExprId>,
}

impl<'a> Chain<'a> {
    fn new(source: &'a Source<'a>, stmts: &'a [Stmt], dims: TileDims) -> Chain<'a> {
        let named = epilogue_exprs(stmts);
        Chain {
            source,
            stmts,
            dims,
            live: reachable(source.kernel, &named),
            roots: source.roots,
            named,
        }
    }

    /// The expressions that read another, each as often as it does.
    fn users(&self, e: ExprId) -> Vec<ExprId> {
        let mut users = Vec::new();
        for user in &self.live {
            self.source.kernel.exprs[*user].for_each_operand(|o| {
                if o == e {
                    users.push(*user);
                }
            });
        }
        users
    }

    /// The one expression that reads another, which no statement names.
    fn only_user(&self, e: ExprId) -> Option<ExprId> {
        match self.users(e)[..] {
            [user] if !self.named.contains(&e) => Some(user),
            _ => None,
        }
    }

    /// The only user with its operation and its other operand; of what does not commute, `e` is the left one.
    fn binary_user(&self, e: ExprId) -> Option<(ExprId, BinaryOp, ExprId)> {
        let user = self.only_user(e)?;
        match self.source.kernel.exprs[user] {
            Expr::Binary(op, a, b) if a == e => Some((user, op, b)),
            Expr::Binary(op, a, b) if b == e && op.is_commutative() => Some((user, op, a)),
            _ => None,
        }
    }

    fn number(&self, e: ExprId) -> Option<f64> {
        match self.source.kernel.exprs[e] {
            Expr::Const(_, v @ (Scalar::Float(_) | Scalar::Int(_))) => Some(v.as_f64()),
            _ => None,
        }
    }

    /// Where a load is, if it is inside its parameter and its columns are neighbours.
    fn load(&self, e: ExprId) -> Option<(Place, DType)> {
        let (place, dtype) = self.place(e)?;
        let neighbours = self.dims.col.is_none_or(|d| place.form.get(d) == 1);
        neighbours.then_some((place, dtype))
    }

    /// Where a load is, if it is inside its parameter.
    fn place(&self, e: ExprId) -> Option<(Place, DType)> {
        let Expr::Load { param, index } = self.source.kernel.exprs[e] else {
            return None;
        };
        let dtype = self.source.kernel.params[param].dtype;
        let form = self.roots.get(&index)?;
        let (lo, hi) = form.range(self.source.extents);
        let place = Place {
            param: param.index(),
            bytes: dtype.bits() as usize / 8,
            form: form.clone(),
        };
        (lo >= 0 && hi < self.source.elements[param.index()]).then_some((place, dtype))
    }

    /// A load of one number a column.
    fn column(&self, e: ExprId, dtype: DType) -> Option<Place> {
        let (place, of) = self.load(e)?;
        // Entries may have columns of their own.
        let fixed = self.dims.row.is_none_or(|d| place.form.get(d) == 0);
        (of == dtype && fixed).then_some(place)
    }

    /// A load of one number a row: runs of columns, those of the innermost dim, may have rows of their own.
    fn row(&self, e: ExprId, dtype: DType) -> Option<Place> {
        let (place, of) = self.place(e)?;
        let fixed = self.dims.col.is_none_or(|d| place.form.get(d) == 0);
        (of == dtype && fixed).then_some(place)
    }

    /// A number, or a load of one a column.
    fn factor(&self, e: ExprId) -> Option<Factor> {
        match self.source.kernel.exprs[e] {
            Expr::Const(DType::I32, v) => i32::try_from(v.as_i64()).ok().map(Factor::Number),
            _ => self.column(e, DType::I32).map(Factor::Columns),
        }
    }

    /// A number a row, perhaps times others.
    fn outer(&self, e: ExprId) -> Option<(Place, Option<Factor>)> {
        if let Some(row) = self.row(e, DType::I32) {
            return Some((row, None));
        }
        let Expr::Binary(BinaryOp::Mul, a, b) = self.source.kernel.exprs[e] else {
            return None;
        };
        let places = |row, col| Some((self.row(row, DType::I32)?, Some(self.factor(col)?)));
        places(a, b).or_else(|| places(b, a))
    }

    /// Where sums are stored, if that is the only statement.
    fn stored_sums(&self, e: ExprId) -> Option<Place> {
        let [
            Stmt::Store {
                param, index, value, ..
            },
        ] = self.stmts
        else {
            return None;
        };
        let (place, stored) = self.store(*param, *index, DType::I32)?;
        (*value == e && stored == Stored::I32).then_some(place)
    }

    /// A store of elements of a type that tiles are stored in, if it is inside its parameter.
    fn store(&self, param: ParamId, index: ExprId, dtype: DType) -> Option<(Place, Stored)> {
        let form = self.roots.get(&index)?;
        let (lo, hi) = form.range(self.source.extents);
        let inside = lo >= 0 && hi < self.source.elements[param.index()];
        let place = Place {
            param: param.index(),
            bytes: dtype.bits() as usize / 8,
            form: form.clone(),
        };
        (inside && self.source.kernel.params[param].dtype == dtype).then_some((place, stored(dtype)?))
    }

    /// The stages from a float to the only store.
    fn stages(&self, mut at: ExprId) -> Option<Finish> {
        let kernel = self.source.kernel;
        let mut stages = Vec::new();
        // What the number is known to be inside of, and whether it is whole.
        let (mut low, mut high, mut whole) = (f64::NEG_INFINITY, f64::INFINITY, false);
        let mut stores = 0;
        loop {
            for stmt in self.stmts {
                let Stmt::Store {
                    param, index, value, ..
                } = stmt
                else {
                    return None;
                };
                if *value == at {
                    let (out, stored) = self.store(*param, *index, kernel.exprs.dtype(at))?;
                    stages.push(Step::Store(out, stored));
                    stores += 1;
                }
            }
            if let Some(function) = tables::function(kernel, &self.live, &self.named, at) {
                at = function.end;
                let values = || function.values.iter().map(|v| f64::from(*v));
                whole = values().all(|v| v.fract() == 0.0);
                (low, high) = match values().any(f64::is_nan) {
                    true => (f64::NEG_INFINITY, f64::INFINITY),
                    false => (
                        values().fold(f64::INFINITY, f64::min),
                        values().fold(f64::NEG_INFINITY, f64::max),
                    ),
                };
                stages.push(Step::Table(function.values.into()));
                continue;
            }
            let user = match self.users(at)[..] {
                [user] => user,
                [] if stores == self.stmts.len() => {
                    rescale(&mut stages);
                    return Some(Finish::Stages(stages));
                }
                _ => return None,
            };
            match kernel.exprs[user] {
                Expr::Unary(UnaryOp::Relu, _) => {
                    stages.push(Step::Number(StageOp::Max, 0.0));
                    low = f64::max(low, 0.0);
                    high = high.max(0.0);
                }
                Expr::Unary(UnaryOp::Round, _) => {
                    match stages.last() {
                        Some(Step::Number(StageOp::Div, by)) => {
                            let by = *by;
                            stages.pop();
                            stages.push(Step::RoundQuotient(by));
                        }
                        _ => stages.push(Step::Round),
                    }
                    whole = true;
                    (low, high) = (low.round_ties_even(), high.round_ties_even());
                }
                Expr::Unary(op, _) if kernel.exprs.dtype(at) == DType::F32 && !op.is_predicate() => {
                    stages.push(Step::Function(op));
                    (low, high, whole) = (f64::NEG_INFINITY, f64::INFINITY, false);
                }
                Expr::Cast(to @ (DType::I8 | DType::U8), _) => {
                    let (least, most) = to.int_range()?;
                    if !whole || low < least as f64 || high > most as f64 {
                        return None;
                    }
                }
                Expr::Cast(DType::F32, _) => {}
                Expr::Binary(op, ..) => {
                    let (op, other) = match kernel.exprs[user] {
                        Expr::Binary(_, a, b) if a == at => (op, b),
                        Expr::Binary(_, a, b) if b == at && op.is_commutative() => (op, a),
                        _ => return None,
                    };
                    let number = self.number(other);
                    let op = match op {
                        BinaryOp::Add => StageOp::Add,
                        BinaryOp::Sub => StageOp::Sub,
                        BinaryOp::Mul => StageOp::Mul,
                        BinaryOp::Div => StageOp::Div,
                        BinaryOp::Max => StageOp::Max,
                        BinaryOp::Min => StageOp::Min,
                        _ => return None,
                    };
                    let float = kernel.exprs.dtype(at) == DType::F32;
                    match (op, number) {
                        (StageOp::Max, Some(v)) => (low, high) = (low.max(v), high.max(v)),
                        (StageOp::Min, Some(v)) => (low, high) = (low.min(v), high.min(v)),
                        // Integers of 8 bits wrap.
                        _ if !float => return None,
                        (StageOp::Add | StageOp::Sub, Some(v)) if v.fract() == 0.0 => {
                            (low, high) = (f64::NEG_INFINITY, f64::INFINITY);
                        }
                        _ => (low, high, whole) = (f64::NEG_INFINITY, f64::INFINITY, false),
                    }
                    if let Some(v) = number {
                        whole &= v.fract() == 0.0;
                    }
                    stages.push(match number {
                        Some(v) => Step::Number(op, v as f32),
                        None => match (self.column(other, DType::F32), self.row(other, DType::F32)) {
                            (Some(place), _) => Step::Columns(op, place),
                            (None, Some(place)) => Step::Rows(op, place),
                            (None, None) if op == StageOp::Add => self.residual(other)?,
                            (None, None) => return None,
                        },
                    });
                }
                _ => return None,
            }
            at = user;
        }
    }

    /// `(x − zero) · scale` of a load in the result's shape, or what is positive of it.
    fn residual(&self, mut e: ExprId) -> Option<Step> {
        let kernel = self.source.kernel;
        let (mut zero, mut scale) = (0.0, 1.0);
        let mut positive = false;
        if let Expr::Unary(UnaryOp::Relu, a) = kernel.exprs[e] {
            (e, positive) = (a, kernel.exprs.dtype(a) == DType::F32);
            if !positive {
                return None;
            }
        }
        if let Expr::Binary(BinaryOp::Mul, a, b) = kernel.exprs[e] {
            (e, scale) = (a, self.number(b)?);
        }
        if let Expr::Binary(BinaryOp::Sub, a, b) = kernel.exprs[e] {
            (e, zero) = (a, self.number(b)?);
        }
        if let Expr::Cast(DType::F32, inner) = kernel.exprs[e] {
            e = inner;
        }
        let (from, dtype) = self.load(e)?;
        let stored = stored(dtype)?;
        Some(Step::Residual {
            from,
            stored,
            zero: zero as f32,
            scale: scale as f32,
            positive,
        })
    }
}

/// Makes products of what a byte may be, of which the quotients are rounded, one product that is rounded.
///
/// ```text
/// round(..) max -128 min 127 - zero · scale round(/ by)   =>   round(..) max -128 min 127 - zero · (scale / by) round
/// ```
///
/// Every integer of the range is computed both ways: that is done only where all of them are the same.
fn rescale(steps: &mut [Step]) {
    let number = |step: &Step, of: StageOp| match step {
        Step::Number(op, v) if *op == of => Some(*v),
        _ => None,
    };
    let moves = |step: &Step| number(step, StageOp::Add).or_else(|| number(step, StageOp::Sub).map(|v| -v));
    let is_whole = |step: &Step| matches!(step, Step::Round | Step::RoundQuotient(_));
    let mut at = 1;
    while at + 4 < steps.len() {
        at += 1;
        let [low, high, moved, times, quotient] = &steps[at - 1..at + 4] else {
            return;
        };
        let before = &steps[..at - 1];
        let whole = match before {
            [.., round, step] if is_whole(round) => moves(step).is_some_and(|v| v.fract() == 0.0),
            [.., round] => is_whole(round),
            [] => false,
        };
        let ends = number(low, StageOp::Max).zip(number(high, StageOp::Min));
        let (Some((low, high)), Some(moved), Some(times)) = (ends, moves(moved), number(times, StageOp::Mul)) else {
            continue;
        };
        let Step::RoundQuotient(by) = *quotient else { continue };
        let is_byte = |v: f32| v.fract() == 0.0 && v.abs() <= 256.0;
        if !(whole && is_byte(low) && is_byte(high) && is_byte(moved)) {
            continue;
        }
        let factor = times / by;
        let same = |factor: f32| {
            let mut all = (low as i32..=high as i32).map(|v| v as f32 + moved);
            all.all(|v| (v * times / by).round_ties_even() == (v * factor).round_ties_even())
        };
        let factors = [factor, factor.next_up(), factor.next_down()];
        if let Some(factor) = factors.into_iter().find(|factor| same(*factor)) {
            steps[at + 2] = Step::Number(StageOp::Mul, factor);
            steps[at + 3] = Step::Round;
        }
    }
}

/// How elements of a type are stored, if tiles are.
fn stored(dtype: DType) -> Option<Stored> {
    match dtype {
        DType::F32 => Some(Stored::F32),
        DType::I32 => Some(Stored::I32),
        DType::I8 => Some(Stored::I8),
        DType::U8 => Some(Stored::U8),
        _ => None,
    }
}
