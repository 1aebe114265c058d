//! The kernel under construction: axes, parameters, expressions.

use std::collections::{BTreeMap, HashMap};

use indexmap::IndexMap;
use ir::graph::eval::scalar::identity;
use ir::kernel::{Access, Axis, AxisId, Expr, ExprId, Exprs, Param, ParamId, Stmt, VarId, Winograd};
use ir::op::{BinaryKind, BinaryLaw, BinaryOp, Elementwise, ReduceOp, UnaryOp};
use ir::schedule::Region;
use ir::{DType, Dim, Graph, NodeId, Scalar, Shape, Table, Value};

use super::LowerError;
use super::index::{Atom, Linear, Space, linearize};
use super::views::part_to_whole;

/// For each call of [`Builder::iterate`], which neighbouring dims share one axis: `joins[call][i]` joins dims `i` and
/// `i + 1`.
pub type Joins = Vec<Vec<bool>>;

/// Axes that are made as several: of the `i`-th axis that a builder makes otherwise, the extents, outermost first.
pub type Splits = BTreeMap<usize, Vec<i64>>;

/// What one call of [`Builder::iterate`] made, for [`super::collapse`].
pub struct Iterated {
    /// The axis of each dim; `None` for dims of size 1.
    pub axes: Vec<Option<AxisId>>,
    pub dims: Vec<Dim>,
}

/// The positions along an axis of a pointwise region's result that a kernel stores.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    pub axis: usize,
    pub from: Dim,
    pub to: Dim,
}

/// A kernel under construction.
pub struct Builder<'a> {
    pub graph: &'a Graph,
    pub region: &'a Region,
    pub exprs: Exprs,
    pub axes: Table<AxisId, Axis>,
    pub extents: Table<AxisId, Dim>,
    pub vars: Table<VarId, DType>,
    pub params: Table<ParamId, Param>,
    pub param_of: IndexMap<Value, ParamId>,
    /// Values computed by the body so far: the expression and the coordinates it is for.
    pub computed: IndexMap<Value, (ExprId, Vec<Linear>)>,
    memo: HashMap<(Value, Vec<Linear>), ExprId>,
    joins: &'a Joins,
    pub iterated: Vec<Iterated>,
    pub indices: Vec<Linear>,
    /// What each index expression was made of.
    pub linear: HashMap<ExprId, Linear>,
    /// Parameters whose positions are clamped to their buffers: some are inside for reasons that intervals do not show.
    pub clamped: Vec<ParamId>,
    /// What of its region the kernel does.
    pub share: Share,
    /// The buffer of partial sums, where launches share a contraction.
    pub partials: Option<ParamId>,
    /// The part of a pointwise region's result that the kernel stores; `None` for all of it.
    pub range: Option<&'a Range>,
    pub splits: Splits,
    /// Which axis each was made for, counted as [`Splits`] counts.
    pub made_for: Table<AxisId, usize>,
}

/// What a kernel does of its region: all, or one of the launches that share it: a contraction whose depth, or an
/// attention whose keys, are cut into so many parts, or a convolution whose image is cut into patches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    Whole,
    /// Sums each part and stores that in scratch memory.
    Partials(i64),
    /// Adds the parts' sums; computes what follows, and stores it.
    Total(i64),
    /// Transforms the patches of a convolution's image, and stores them in scratch memory.
    Patches(Winograd),
    /// Transforms the sums of products of patches; computes what follows, and stores it.
    Pixels(Winograd),
    /// Folds rows of what follows the contraction, and adds the parts' sums where it reads them.
    Rows {
        parts: i64,
        of: NodeId,
    },
}

/// The type in which arithmetic on `dtype` is done.
pub fn arithmetic(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => {
            DType::F32
        }
        DType::I4 => DType::I8,
        DType::U4 => DType::U8,
        other => other,
    }
}

/// The result of an operation on two index numbers, where it is one that index arithmetic uses and does not overflow.
fn fold_index(op: BinaryOp, x: i64, y: i64) -> Option<Scalar> {
    if let Some(order) = op.comparison() {
        return Some(Scalar::Bool(order.holds(&x, &y)));
    }
    Some(Scalar::Int(match op {
        BinaryOp::Add => x.checked_add(y)?,
        BinaryOp::Sub => x.checked_sub(y)?,
        BinaryOp::Mul => x.checked_mul(y)?,
        BinaryOp::Max => x.max(y),
        BinaryOp::Min => x.min(y),
        _ => return None,
    }))
}

impl<'a> Builder<'a> {
    /// Makes a builder with a parameter for each input and output of the region.
    pub fn new(graph: &'a Graph, region: &'a Region, joins: &'a Joins, share: Share) -> Builder<'a> {
        let mut b = Builder {
            graph,
            region,
            exprs: Exprs::default(),
            axes: Table::new(),
            extents: Table::new(),
            vars: Table::new(),
            params: Table::new(),
            param_of: IndexMap::new(),
            computed: IndexMap::new(),
            memo: HashMap::new(),
            joins,
            iterated: Vec::new(),
            indices: Vec::new(),
            linear: HashMap::new(),
            clamped: Vec::new(),
            share,
            partials: None,
            range: None,
            splits: Splits::new(),
            made_for: Table::new(),
        };
        for (i, value) in region.inputs.iter().enumerate() {
            b.add_param(format!("in{i}"), *value, Access::Read);
        }
        if share != Share::Whole {
            b.partials = Some(b.params.push(Param {
                name: "partials".to_owned(),
                // The body says what it stores there.
                dtype: DType::F32,
                elements: Dim::Const(0),
                access: match share {
                    Share::Total(_) | Share::Pixels(_) | Share::Rows { .. } => Access::Read,
                    _ => Access::Write,
                },
            }));
        }
        if matches!(share, Share::Partials(_) | Share::Patches(_)) {
            return b;
        }
        for (i, value) in region.outputs.iter().enumerate() {
            let name = if region.outputs.len() == 1 {
                "out".to_owned()
            } else {
                format!("out{i}")
            };
            b.add_param(name, *value, Access::Write);
        }
        b
    }

    fn add_param(&mut self, name: String, value: Value, access: Access) {
        let stored = match self.region.part(value) {
            Some(part) if access == Access::Write => part.whole,
            _ => value,
        };
        let ty = self.graph.ty(stored);
        let param = self.params.push(Param {
            name,
            dtype: ty.dtype,
            elements: ty.elements(),
            access,
        });
        self.param_of.insert(value, param);
    }

    /// What is known while simplifying indices.
    pub fn space(&self) -> Space<'_> {
        Space {
            extents: &self.extents,
            symbols: self.graph.symbols(),
        }
    }

    /// Returns the shape of a value.
    pub fn shape(&self, value: Value) -> &'a Shape {
        &self.graph.ty(value).shape
    }

    /// Makes axes over `dims` (outermost first) and returns them with the coordinate of each dim. Dims of size 1 get no
    /// axis; neighbours that [`Joins`] names share one.
    pub fn iterate(&mut self, names: &[&str], dims: &[Dim]) -> (Vec<AxisId>, Vec<Linear>) {
        let call = self.iterated.len();
        let empty = Vec::new();
        let joins = self.joins.get(call).unwrap_or(&empty);
        let mut record = Iterated {
            axes: vec![None; dims.len()],
            dims: dims.to_vec(),
        };
        let (mut axes, mut coords) = (Vec::new(), Vec::new());
        let mut start = 0;
        while start < dims.len() {
            let mut end = start + 1;
            while end < dims.len() && joins.get(end - 1).copied().unwrap_or(false) {
                end += 1;
            }
            let run = &dims[start..end];
            let extent: Dim = run.iter().cloned().product();
            if extent.is(1) {
                coords.extend(run.iter().map(|_| Linear::constant(0)));
            } else {
                let name = names.get(start).or(names.last()).copied().unwrap_or("i");
                let number = self.made_for.values().next_back().map_or(0, |last| last + 1);
                let parts = self.splits.get(&number).cloned();
                let parts: Vec<Dim> = parts.map_or_else(|| vec![extent], |p| p.into_iter().map(Dim::Const).collect());
                let mut flat = Linear::constant(0);
                for part in parts {
                    let name = self.unique_axis(name);
                    let axis = self.axes.push(Axis {
                        name,
                        extent: part.clone(),
                    });
                    self.made_for.push(number);
                    flat = flat.scale(&part).plus(&Linear::axis(axis));
                    self.extents.push(part);
                    axes.push(axis);
                    record.axes[start] = (run.len() == 1).then_some(axis);
                }
                match run {
                    [_] => coords.push(flat),
                    run => coords.extend(super::index::delinearize(&flat, run, self.space())),
                }
            }
            start = end;
        }
        self.iterated.push(record);
        (axes, coords)
    }

    fn unique_axis(&self, name: &str) -> String {
        let taken = |n: &str| self.axes.values().any(|a| a.name == n);
        if !taken(name) {
            return name.to_owned();
        }
        (1..)
            .map(|i| format!("{name}{i}"))
            .find(|n| !taken(n))
            .unwrap_or_default()
    }

    /// Adds a variable.
    pub fn var(&mut self, dtype: DType) -> VarId {
        self.vars.push(dtype)
    }

    /// The value of a variable.
    pub fn read(&mut self, var: VarId) -> ExprId {
        let dtype = self.vars[var];
        self.exprs.add(Expr::Var(var), dtype)
    }

    /// A number of the given type.
    pub fn number(&mut self, dtype: DType, value: f64) -> ExprId {
        let scalar = match dtype {
            DType::Bool => Scalar::Bool(value != 0.0),
            d if d.is_int() => Scalar::Int(value as i64),
            _ => Scalar::Float(value),
        };
        self.exprs.add(Expr::Const(dtype, scalar), dtype)
    }

    /// An integer for index arithmetic.
    pub fn integer(&mut self, value: i64) -> ExprId {
        self.exprs.add(Expr::Const(DType::I64, Scalar::Int(value)), DType::I64)
    }

    /// A size.
    pub fn size(&mut self, dim: &Dim) -> ExprId {
        match dim.as_const() {
            Some(v) => self.integer(v),
            None => self.exprs.add(Expr::Size(dim.clone()), DType::I64),
        }
    }

    /// Applies a binary operation to two expressions of one type.
    ///
    /// Index arithmetic on numbers is done here, so that guards which always hold disappear.
    pub fn binary(&mut self, op: BinaryOp, a: ExprId, b: ExprId) -> ExprId {
        if let (Expr::Const(DType::I64, x), Expr::Const(DType::I64, y)) = (&self.exprs[a], &self.exprs[b])
            && let Some(e) = fold_index(op, x.as_i64(), y.as_i64())
        {
            return match e {
                Scalar::Bool(v) => self.exprs.add(Expr::Const(DType::Bool, Scalar::Bool(v)), DType::Bool),
                v => self.integer(v.as_i64()),
            };
        }
        let dtype = if op.is_comparison() {
            DType::Bool
        } else {
            self.exprs.dtype(a)
        };
        self.exprs.add(Expr::Binary(op, a, b), dtype)
    }

    /// Applies a unary operation.
    pub fn unary(&mut self, op: UnaryOp, a: ExprId) -> ExprId {
        let dtype = if op.is_predicate() {
            DType::Bool
        } else {
            self.exprs.dtype(a)
        };
        self.exprs.add(Expr::Unary(op, a), dtype)
    }

    /// Chooses lazily.
    pub fn select(&mut self, condition: ExprId, yes: ExprId, no: ExprId) -> ExprId {
        if let Expr::Const(_, c) = self.exprs[condition] {
            return if c.as_bool() { yes } else { no };
        }
        let dtype = self.exprs.dtype(yes);
        self.exprs.add(Expr::Select(condition, yes, no), dtype)
    }

    /// Converts, unless the type is right already.
    pub fn cast(&mut self, dtype: DType, e: ExprId) -> ExprId {
        if self.exprs.dtype(e) == dtype {
            return e;
        }
        self.exprs.add(Expr::Cast(dtype, e), dtype)
    }

    /// Converts to the type arithmetic is done in.
    pub fn widen(&mut self, e: ExprId) -> ExprId {
        let to = arithmetic(self.exprs.dtype(e));
        self.cast(to, e)
    }

    /// Brings the fold of no elements into the range of a 4-bit type, whose arithmetic is done in 8 bits; other folds
    /// of it are inside already.
    pub fn within_range(&mut self, op: ReduceOp, dtype: DType, e: ExprId) -> ExprId {
        let bound = match (op, dtype) {
            (ReduceOp::Max, DType::I4 | DType::U4) => BinaryOp::Max,
            (ReduceOp::Min, DType::I4 | DType::U4) => BinaryOp::Min,
            _ => return e,
        };
        let in_8_bits = self.exprs.dtype(e);
        let end = self.exprs.add(Expr::Const(in_8_bits, identity(op, dtype)), in_8_bits);
        self.binary(bound, e, end)
    }

    /// Applies an elementwise op to operands in arithmetic types; `dtype` is the result's. What is computed in more
    /// bits than the type has is wrapped to it at once, since what follows need not be a ring's operation.
    pub fn elementwise(&mut self, op: Elementwise, dtype: DType, operands: &[ExprId]) -> ExprId {
        let nibble = matches!(dtype, DType::I4 | DType::U4);
        match op {
            Elementwise::Unary(op) => {
                let e = self.unary(op, operands[0]);
                if nibble { self.round_trip(dtype, e) } else { e }
            }
            Elementwise::Binary(op) if nibble => {
                let mut amount = operands[1];
                if op.kind() == BinaryKind::Shift {
                    // Amounts count modulo the width, which is 4 and not the 8 of the arithmetic.
                    let mask = self.number(self.exprs.dtype(amount), 3.0);
                    amount = self.binary(BinaryOp::And, amount, mask);
                }
                let e = self.binary(op, operands[0], amount);
                if op.is(BinaryLaw::Closed) {
                    e
                } else {
                    self.round_trip(dtype, e)
                }
            }
            Elementwise::Binary(op) => self.binary(op, operands[0], operands[1]),
            Elementwise::Select => self.select(operands[0], operands[1], operands[2]),
            Elementwise::Cast(to) => self.round_trip(to, operands[0]),
        }
    }

    /// Converts to an element type and back to the type arithmetic on it is done in.
    fn round_trip(&mut self, dtype: DType, e: ExprId) -> ExprId {
        let typed = self.cast(dtype, e);
        self.widen(typed)
    }

    /// Turns an index into an expression.
    pub fn index(&mut self, linear: &Linear) -> ExprId {
        self.indices.push(linear.clone());
        let index = self.index_expr(linear);
        self.linear.entry(index).or_insert_with(|| linear.clone());
        index
    }

    fn index_expr(&mut self, linear: &Linear) -> ExprId {
        let mut sum: Option<ExprId> = None;
        // Axes in the order they were made: outer strides first, as one would write it.
        for (atom, coefficient) in &linear.terms {
            let factor = match atom {
                Atom::Axis(a) => self.exprs.add(Expr::Axis(*a), DType::I64),
                Atom::Expr(e) => *e,
                // The machine's division truncates; behind a pad the index may be negative, and then the floor is
                // meant.
                Atom::Div(x, d) => {
                    let floored = !x.is_nonnegative(self.space());
                    let (mut x, d) = (self.index_expr(x), self.size(d));
                    if floored {
                        let rest = self.binary(BinaryOp::Mod, x, d);
                        x = self.binary(BinaryOp::Sub, x, rest);
                    }
                    self.binary(BinaryOp::Div, x, d)
                }
                Atom::Mod(x, d) => {
                    let op = match x.is_nonnegative(self.space()) {
                        true => BinaryOp::Rem,
                        false => BinaryOp::Mod,
                    };
                    let (x, d) = (self.index_expr(x), self.size(d));
                    self.binary(op, x, d)
                }
            };
            let term = if coefficient.is(1) {
                factor
            } else {
                let c = self.size(coefficient);
                self.binary(BinaryOp::Mul, factor, c)
            };
            sum = Some(match sum {
                Some(s) => self.binary(BinaryOp::Add, s, term),
                None => term,
            });
        }
        match sum {
            None => self.size(&linear.constant),
            Some(s) if linear.constant.is(0) => s,
            Some(s) => {
                let c = self.size(&linear.constant);
                self.binary(BinaryOp::Add, s, c)
            }
        }
    }

    /// Turns an index into a parameter's position.
    fn position(&mut self, param: ParamId, linear: &Linear) -> ExprId {
        let index = self.index(linear);
        if !self.clamped.contains(&param) {
            return index;
        }
        let (first, last) = (self.integer(0), self.size(&(self.params[param].elements.clone() - 1)));
        let index = self.binary(BinaryOp::Max, index, first);
        self.binary(BinaryOp::Min, index, last)
    }

    /// Reads an element of a stored value, in the type arithmetic is done in.
    pub fn load(&mut self, param: ParamId, value: Value, coords: &[Linear]) -> ExprId {
        let position = linearize(coords, self.shape(value));
        let index = self.position(param, &position);
        let dtype = self.params[param].dtype;
        let raw = self.exprs.add(Expr::Load { param, index }, dtype);
        self.widen(raw)
    }

    /// Makes the store of a value at coordinates, for each point of `axes`.
    pub fn store(&mut self, value: Value, e: ExprId, coords: &[Linear], axes: &[AxisId]) -> Option<Stmt> {
        let param = *self.param_of.get(&value)?;
        let position = match self.region.part(value) {
            Some(part) => linearize(&part_to_whole(self.graph, part, coords), self.shape(part.whole)),
            None => linearize(coords, self.shape(value)),
        };
        let index = self.position(param, &position);
        let e = self.cast(self.params[param].dtype, e);
        Some(Stmt::Store {
            param,
            index,
            value: e,
            axes: axes.to_vec(),
        })
    }

    /// The expression of a value at coordinates, made once.
    pub fn memoized(
        &mut self,
        value: Value,
        coords: &[Linear],
        make: impl FnOnce(&mut Self) -> Result<ExprId, LowerError>,
    ) -> Result<ExprId, LowerError> {
        let key = (value, coords.to_vec());
        if let Some(e) = self.memo.get(&key) {
            return Ok(*e);
        }
        let e = make(self)?;
        self.memo.insert(key, e);
        Ok(e)
    }

    /// An error for a value that the schedule should have given.
    pub fn not_in_region(&self, value: Value) -> LowerError {
        LowerError::NotInRegion {
            anchor: crate::fuse::classify::label(self.graph, self.region.anchor),
            value,
        }
    }
}
