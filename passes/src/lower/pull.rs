//! Pulling: a value at coordinates, as an expression over what the region reads.

use ir::kernel::{Expr, ExprId};
use ir::op::{BinaryOp, Composite, Gather, Groups, PadMode, RandomKind, UnaryOp, View};
use ir::{DType, Dim, Op, Scalar, Value};

use super::builder::{Builder, Share, arithmetic};
use super::index::{Atom, Linear, linearize};
use super::views::{broadcast, to_operand};
use super::{LowerError, parts};

impl Builder<'_> {
    /// Returns the element of `value` at `coords`, in the type arithmetic is done in.
    pub fn pull(&mut self, value: Value, coords: &[Linear]) -> Result<ExprId, LowerError> {
        if let Some(param) = self.param_of.get(&value).copied()
            && self.region.inputs.contains(&value)
        {
            return Ok(self.load(param, value, coords));
        }
        if let Some((e, at)) = self.computed.get(&value)
            && at == coords
        {
            return Ok(*e);
        }
        self.memoized(value, coords, |b| b.pull_node(value, coords))
    }

    fn pull_node(&mut self, value: Value, coords: &[Linear]) -> Result<ExprId, LowerError> {
        let graph = self.graph;
        let node = graph.node(value.node);
        let ty = &node.results[value.index as usize];
        match &node.op {
            Op::Constant(_) => {
                let scalar = graph.as_scalar(value).ok_or_else(|| self.not_in_region(value))?;
                let dtype = arithmetic(ty.dtype);
                Ok(self.exprs.add(Expr::Const(dtype, scalar), dtype))
            }
            Op::Iota { axis, .. } => {
                let position = self.index(&coords[*axis]);
                let typed = self.cast(ty.dtype, position);
                Ok(self.widen(typed))
            }
            Op::DimValue(dim) => Ok(self.size(dim)),
            Op::Elementwise(op) => {
                let operands = node
                    .operands
                    .iter()
                    .map(|v| {
                        let at = broadcast(coords, self.shape(*v));
                        self.pull(*v, &at)
                    })
                    .collect::<Result<Vec<_>, _>>()?;
                Ok(self.elementwise(*op, ty.dtype, &operands))
            }
            Op::Contract(_) => match self.share {
                Share::Rows { parts, of } if of == value.node => Ok(parts::sum(self, of, parts, coords)),
                _ => Err(self.not_in_region(value)),
            },
            Op::Composite(Composite::Dequantize { groups, out }) => {
                self.pull_dequantized(&node.operands, groups.as_ref(), *out, coords)
            }
            Op::View(View::Pad { low, mode, .. }) => self.pull_pad(node.operands[0], coords, low, *mode),
            Op::View(View::Concat { axis }) => self.pull_concat(&node.operands, coords, *axis),
            Op::View(view) => {
                let operand = node.operands[0];
                let at = to_operand(view, coords, self.shape(operand), &ty.shape, self.space())
                    .ok_or_else(|| self.not_in_region(value))?;
                self.pull(operand, &at)
            }
            Op::Gather(gather) => self.pull_gather(*gather, node.operands[0], node.operands[1], coords),
            Op::Random { kind, shape, seed, .. } => {
                let position = linearize(coords, shape);
                let counter = self.index(&position);
                let real = if ty.dtype == DType::F64 { DType::F64 } else { DType::F32 };
                let e = self.random(*kind, *seed, counter, real);
                let e = self.cast(ty.dtype, e);
                Ok(self.widen(e))
            }
            _ => Err(self.not_in_region(value)),
        }
    }

    /// `(x − zero) · scale` in f32, then rounded: the form that `ir::kernel::OperandAccess` reads.
    fn pull_dequantized(
        &mut self,
        operands: &[Value],
        groups: Option<&Groups>,
        out: DType,
        coords: &[Linear],
    ) -> Result<ExprId, LowerError> {
        let computed = if out == DType::F64 { DType::F64 } else { DType::F32 };
        let mut numbers = Vec::with_capacity(operands.len());
        for (i, operand) in operands.iter().enumerate() {
            let mut at = coords.to_vec();
            if let (Some(groups), true) = (groups, i > 0) {
                at[groups.axis] = at[groups.axis].div(&Dim::Const(groups.size), self.space());
            }
            let at = broadcast(&at, self.shape(*operand));
            let e = self.pull(*operand, &at)?;
            numbers.push(self.cast(computed, e));
        }
        let mut value = numbers[0];
        if let Some(zero) = numbers.get(2) {
            value = self.binary(BinaryOp::Sub, value, *zero);
        }
        // What is stored may be the number already.
        let is_one = self
            .graph
            .as_scalar(operands[1])
            .is_some_and(|scale| scale.as_f64() == 1.0);
        if !is_one {
            value = self.binary(BinaryOp::Mul, value, numbers[1]);
        }
        let rounded = self.cast(out, value);
        Ok(self.widen(rounded))
    }

    /// The condition that every coordinate is inside its size; `None` where that always holds.
    pub fn in_range(&mut self, coords: &[Linear], sizes: &[Dim]) -> Option<ExprId> {
        let mut all: Option<ExprId> = None;
        for (c, size) in coords.iter().zip(sizes) {
            let mut checks = Vec::new();
            if !c.is_nonnegative(self.space()) {
                let (c, zero) = (self.index(c), self.integer(0));
                checks.push(self.binary(BinaryOp::Ge, c, zero));
            }
            if !c.is_below(size, self.space()) {
                let (c, size) = (self.index(c), self.size(size));
                checks.push(self.binary(BinaryOp::Lt, c, size));
            }
            for check in checks {
                all = Some(match all {
                    Some(a) => self.binary(BinaryOp::And, a, check),
                    None => check,
                });
            }
        }
        all
    }

    fn pull_pad(
        &mut self,
        operand: Value,
        coords: &[Linear],
        low: &[Dim],
        mode: PadMode,
    ) -> Result<ExprId, LowerError> {
        let shape = self.shape(operand);
        let inner: Vec<Linear> = coords
            .iter()
            .zip(low)
            .map(|(c, l)| c.clone().offset(&-l.clone()))
            .collect();
        if let PadMode::Constant(fill) = mode {
            let guard = self.in_range(&inner, shape);
            let element = self.pull(operand, &inner)?;
            let Some(guard) = guard else { return Ok(element) };
            let dtype = self.exprs.dtype(element);
            let fill = self.exprs.add(Expr::Const(dtype, fill), dtype);
            return Ok(self.select(guard, element, fill));
        }
        let mut at = Vec::with_capacity(inner.len());
        for (i, c) in inner.iter().enumerate() {
            if low[i].is(0) && c.is_within(&shape[i], self.space()) {
                at.push(c.clone());
                continue;
            }
            let (position, size) = (self.index(c), self.size(&shape[i]));
            let (zero, one) = (self.integer(0), self.integer(1));
            let last = self.binary(BinaryOp::Sub, size, one);
            let e = match mode {
                PadMode::Edge => {
                    let e = self.binary(BinaryOp::Max, position, zero);
                    self.binary(BinaryOp::Min, e, last)
                }
                PadMode::Wrap => self.binary(BinaryOp::Mod, position, size),
                // Mirrors about both ends: |p| folded at `last`.
                PadMode::Reflect | PadMode::Constant(_) => {
                    let left = self.unary(UnaryOp::Abs, position);
                    let over = self.binary(BinaryOp::Sub, last, left);
                    let over = self.unary(UnaryOp::Abs, over);
                    self.binary(BinaryOp::Sub, last, over)
                }
            };
            at.push(Linear::atom(Atom::Expr(e)));
        }
        self.pull(operand, &at)
    }

    fn pull_concat(&mut self, operands: &[Value], coords: &[Linear], axis: usize) -> Result<ExprId, LowerError> {
        let mut starts = Vec::with_capacity(operands.len());
        let mut end = Dim::Const(0);
        for v in operands {
            starts.push(end.clone());
            end = end + &self.shape(*v)[axis];
        }
        let mut chosen: Option<ExprId> = None;
        for (v, start) in operands.iter().zip(&starts).rev() {
            let stop = start.clone() + &self.shape(*v)[axis];
            // A part that the position is never in is not read.
            let before = coords[axis].is_below(start, self.space());
            let behind = coords[axis].clone().offset(&-stop.clone()).is_nonnegative(self.space());
            if self.shape(*v)[axis].is(0) || before || behind {
                continue;
            }
            let mut at = coords.to_vec();
            at[axis] = at[axis].clone().offset(&-start.clone());
            let element = self.pull(*v, &at)?;
            chosen = Some(match chosen {
                None => element,
                Some(rest) => {
                    let (c, stop) = (self.index(&coords[axis]), self.size(&stop));
                    let before = self.binary(BinaryOp::Lt, c, stop);
                    self.select(before, element, rest)
                }
            });
        }
        match chosen {
            Some(e) => Ok(e),
            // All parts are empty, or all positions elsewhere: nothing is ever read.
            None => {
                let dtype = arithmetic(self.graph.ty(operands[0]).dtype);
                Ok(self.number(dtype, 0.0))
            }
        }
    }

    /// Turns an index read from memory into a coordinate: negative counts from the end, out of range is clamped.
    pub fn checked_index(&mut self, index: ExprId, size: &Dim) -> Linear {
        let index = self.cast(DType::I64, index);
        let (zero, size) = (self.integer(0), self.size(size));
        let negative = self.binary(BinaryOp::Lt, index, zero);
        let wrapped = self.binary(BinaryOp::Add, index, size);
        let index = self.select(negative, wrapped, index);
        let one = self.integer(1);
        let last = self.binary(BinaryOp::Sub, size, one);
        let index = self.binary(BinaryOp::Max, index, zero);
        Linear::atom(Atom::Expr(self.binary(BinaryOp::Min, index, last)))
    }

    fn pull_gather(
        &mut self,
        gather: Gather,
        data: Value,
        indices: Value,
        coords: &[Linear],
    ) -> Result<ExprId, LowerError> {
        let (data_shape, index_shape) = (self.shape(data), self.shape(indices));
        let at = match gather {
            Gather::Take { axis } => {
                let span = index_shape.rank();
                let index = self.pull(indices, &coords[axis..axis + span])?;
                let picked = self.checked_index(index, &data_shape[axis]);
                let mut at = coords[..axis].to_vec();
                at.push(picked);
                at.extend_from_slice(&coords[axis + span..]);
                at
            }
            Gather::Elements { axis } => {
                let index = self.pull(indices, coords)?;
                let mut at = coords.to_vec();
                at[axis] = self.checked_index(index, &data_shape[axis]);
                at
            }
            Gather::Nd { batch_dims } => {
                let outer = index_shape.rank() - 1;
                let depth = index_shape[outer].as_const().unwrap_or(0) as usize;
                let mut at = coords[..batch_dims].to_vec();
                for d in 0..depth {
                    let mut where_ = coords[..outer].to_vec();
                    where_.push(Linear::constant(d as i64));
                    let index = self.pull(indices, &where_)?;
                    at.push(self.checked_index(index, &data_shape[batch_dims + d]));
                }
                at.extend_from_slice(&coords[outer..]);
                at
            }
        };
        self.pull(data, &at)
    }

    /// Random numbers in f32 or f64, by the formulas of `ir::graph::eval::random`: the upper 24 bits of a word;
    /// Box–Muller of two.
    fn random(&mut self, kind: RandomKind, seed: u64, counter: ExprId, real: DType) -> ExprId {
        let uniform = |b: &mut Self, lane: u8| {
            let bits = b.exprs.add(Expr::Philox { seed, counter, lane }, DType::I32);
            let bits = b.cast(DType::I64, bits);
            let (eight, mask) = (b.integer(8), b.integer(0xff_ffff));
            let bits = b.binary(BinaryOp::Shr, bits, eight);
            let bits = b.binary(BinaryOp::And, bits, mask);
            let unit = b.cast(real, bits);
            let scale = b.number(real, 1.0 / f64::from(1 << 24));
            b.binary(BinaryOp::Mul, unit, scale)
        };
        let float = |b: &mut Self, s: Scalar| b.number(real, s.as_f64());
        match kind {
            RandomKind::Uniform { low, high } => {
                let u = uniform(self, 0);
                let (low, span) = (float(self, low), self.number(real, high.as_f64() - low.as_f64()));
                let scaled = self.binary(BinaryOp::Mul, u, span);
                self.binary(BinaryOp::Add, scaled, low)
            }
            RandomKind::Normal { mean, deviation } => {
                let (u, v) = (uniform(self, 0), uniform(self, 1));
                // u + 2^-24 is in (0, 1], so that the logarithm is finite.
                let step = self.number(real, 1.0 / f64::from(1 << 24));
                let u = self.binary(BinaryOp::Add, u, step);
                let log = self.unary(UnaryOp::Log, u);
                let minus_two = self.number(real, -2.0);
                let r2 = self.binary(BinaryOp::Mul, log, minus_two);
                let r = self.unary(UnaryOp::Sqrt, r2);
                let turn = self.number(real, std::f64::consts::TAU);
                let angle = self.binary(BinaryOp::Mul, v, turn);
                let cos = self.unary(UnaryOp::Cos, angle);
                let z = self.binary(BinaryOp::Mul, r, cos);
                let (mean, deviation) = (float(self, mean), float(self, deviation));
                let z = self.binary(BinaryOp::Mul, z, deviation);
                self.binary(BinaryOp::Add, z, mean)
            }
        }
    }
}
