//! Right operands of products that are quantised constants: read as they are stored.
//!
//! Before: a contraction's operand with an unpacking, at one set of sizes. After: where its integers are, with a scale
//! and an offset for each column and group, if the operand is a matrix along whose depth groups of one size share their
//! scale. Anything else is a temporary's case.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use ir::convert::decode_f8;
use ir::dim::Symbols;
use ir::entity::Entity;
use ir::graph::ConstId;
use ir::graph::eval::scalar;
use ir::host::Setting;
use ir::host::product::{Float8, QuantisedMatrix};
use ir::kernel::access::Motions;
use ir::kernel::{AxisId, ContractBody, Expr, ExprId, Kernel, ParamId, Unpacking};
use ir::types::{DType, Scalar};

use crate::affine::{Roots, reachable};

/// Scales of a program's quantised weights, which are read once: by kernel, the constants behind its parameters, rows
/// and columns.
#[derive(Default)]
pub(crate) struct Scales(Mutex<HashMap<Key, Option<Known>>>);

type Key = (String, Vec<Option<ConstId>>, [usize; 2]);

/// Rows that share a scale, and the scales and zero points of each column's groups.
type Known = (usize, Arc<Vec<(f32, f32)>>);

impl Scales {
    fn of(
        &self,
        kernel: &Kernel,
        cx: &Setting<'_>,
        sizes: [usize; 2],
        read: impl FnOnce() -> Option<Known>,
    ) -> Option<Known> {
        let constants = cx.constants.iter().map(|c| c.map(|(id, _)| id)).collect();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kernel.name.clone(), constants, sizes);
        known.entry(key).or_insert_with(read).clone()
    }
}

/// Where the integers of an operand are, in elements of its parameter.
pub(crate) struct Strides {
    pub base: i64,
    /// Along the depth and along the columns.
    pub row: i64,
    pub col: i64,
}

/// Describes a product's right operand of `k` rows and `n` columns; `None` where it is no such matrix. `roots` are the
/// kernel's affine expressions.
pub(crate) fn matrix(
    (kernel, roots): (&Kernel, &Roots),
    body: &ContractBody,
    strides: &Strides,
    [k, n]: [usize; 2],
    cx: &Setting<'_>,
    known: &Scales,
) -> Option<Arc<QuantisedMatrix>> {
    let access = body.rhs.access?;
    let unpacking = access.unpacking?;
    let (_, tensor) = cx.constant(access.param.index())?;
    let float = |mantissa, bias| (8, false, Some(Float8 { mantissa, bias }));
    let (bits, signed, float) = match tensor.dtype {
        DType::I4 => (4, true, None),
        DType::U4 => (4, false, None),
        DType::I8 => (8, true, None),
        DType::U8 => (8, false, None),
        DType::F8E4M3FN => float(3, 7),
        DType::F8E4M3FNUZ => float(3, 8),
        DType::F8E5M2 => float(2, 15),
        DType::F8E5M2FNUZ => float(2, 16),
        _ => return None,
    };
    // Infinities and NaN have no place in a panel.
    let finite = |byte: &u8| decode_f8(tensor.dtype, *byte).is_none_or(f64::is_finite);
    if float.is_some() && !tensor.bytes.iter().all(finite) {
        return None;
    }
    if tensor.dtype != kernel.params[access.param].dtype {
        return None;
    }
    let (group, scales) = known.of(kernel, cx, [k, n], || {
        let mut numbers = Numbers::new(kernel, cx);
        let group = group(kernel, body, &unpacking, k, &mut numbers)?;
        let groups = k.div_ceil(group);
        let mut of = |part: ExprId| match numbers.of_columns(roots, body, part, [n, groups, group]) {
            Some(found) => Some(found),
            None => numbers.one_by_one(body, part, [n, groups, group]),
        };
        let scales = of(unpacking.scale)?;
        let zeros = match unpacking.zero {
            Some(zero) => of(zero)?,
            None => vec![0.0; scales.len()],
        };
        let scales = scales.into_iter().zip(zeros).collect();
        Some((group, Arc::new(scales)))
    })?;
    Some(Arc::new(QuantisedMatrix {
        bits,
        signed,
        float,
        base: strides.base,
        row: strides.row,
        col: strides.col,
        group,
        scales,
    }))
}

/// How many neighbours along the depth share a scale and a zero point: all, or as many as the first do, if that is
/// shown to hold for the others.
fn group(
    kernel: &Kernel,
    body: &ContractBody,
    unpacking: &Unpacking,
    k: usize,
    numbers: &mut Numbers<'_>,
) -> Option<usize> {
    let &[axis] = body.k.as_slice() else { return None };
    let read: Vec<ExprId> = [Some(unpacking.scale), unpacking.zero].into_iter().flatten().collect();
    let loads = reachable(kernel, &read).into_iter();
    let positions: Vec<ExprId> = loads
        .filter_map(|e| match kernel.exprs[e] {
            Expr::Load { index, .. } => Some(index),
            _ => None,
        })
        .collect();
    let at = |numbers: &mut Numbers<'_>, depth: usize| -> Option<Vec<i64>> {
        numbers.place(&body.k, depth)?;
        positions.iter().map(|e| Some(numbers.of(*e)?.as_i64())).collect()
    };
    let first = at(numbers, 0)?;
    let mut size = k.max(1);
    for depth in 1..k {
        if at(numbers, depth)? != first {
            size = depth;
            break;
        }
    }
    let symbols = Symbols::default();
    let mut motions = Motions::new(kernel, &symbols, axis, i64::try_from(size).ok()?);
    (size >= k || read.iter().all(|e| motions.is_shared(*e))).then_some(size)
}

/// The values of expressions of constants.
struct Numbers<'a> {
    kernel: &'a Kernel,
    cx: &'a Setting<'a>,
    axes: Vec<i64>,
    tensors: HashMap<ParamId, Vec<f64>>,
    /// What is below an expression and it itself, operands first.
    cones: HashMap<ExprId, Vec<ExprId>>,
    values: Vec<Scalar>,
}

impl<'a> Numbers<'a> {
    fn new(kernel: &'a Kernel, cx: &'a Setting<'a>) -> Numbers<'a> {
        Numbers {
            kernel,
            cx,
            axes: vec![0; kernel.axes.len()],
            tensors: HashMap::new(),
            cones: HashMap::new(),
            values: vec![Scalar::Int(0); kernel.exprs.len()],
        }
    }

    /// Puts axes, of which the last is the innermost, at a position.
    fn place(&mut self, axes: &[AxisId], mut at: usize) -> Option<()> {
        for axis in axes.iter().rev() {
            let extent = self.kernel.axes[*axis].extent.eval(self.cx.bindings).ok()?;
            let extent = usize::try_from(extent).ok().filter(|e| *e > 0)?;
            self.axes[axis.index()] = (at % extent) as i64;
            at /= extent;
        }
        Some(())
    }

    /// An expression's value of each column and group, the groups of a column together.
    fn one_by_one(&mut self, body: &ContractBody, e: ExprId, [n, groups, group]: [usize; 3]) -> Option<Vec<f32>> {
        let mut values = Vec::with_capacity(n * groups);
        for col in 0..n {
            self.place(&body.n, col)?;
            for g in 0..groups {
                self.place(&body.k, g * group)?;
                values.push(self.of(e)?.as_f64() as f32);
            }
        }
        Some(values)
    }

    /// As [`Self::one_by_one`], of numbers that lie in a constant where columns and groups decide apart: a model has
    /// millions of them.
    fn of_columns(
        &mut self,
        roots: &Roots,
        body: &ContractBody,
        mut e: ExprId,
        [n, groups, group]: [usize; 3],
    ) -> Option<Vec<f32>> {
        while let Expr::Cast(DType::F32, inner) = self.kernel.exprs[e] {
            e = inner;
        }
        let Expr::Load { param, index } = self.kernel.exprs[e] else {
            return None;
        };
        let (_, tensor) = self.cx.constant(param.index())?;
        let is_short = tensor.dtype.bits() <= 16 || tensor.dtype == DType::F32;
        if !is_short || tensor.dtype != self.kernel.params[param].dtype || !roots.contains_key(&index) {
            return None;
        }
        let mut places = |axes: &[AxisId], other: &[AxisId], step: usize, count: usize| -> Option<Vec<i64>> {
            self.place(other, 0)?;
            let at = |i| {
                self.place(axes, i * step)?;
                Some(self.of(index)?.as_i64())
            };
            (0..count).map(at).collect()
        };
        let columns = places(&body.n, &body.k, 1, n)?;
        let downs = places(&body.k, &body.n, group, groups)?;
        let (numbers, first) = (tensor.to_f32(), *downs.first()?);
        let mut values = Vec::with_capacity(n * groups);
        for column in columns {
            for down in &downs {
                values.push(*numbers.get(usize::try_from(column + down - first).ok()?)?);
            }
        }
        Some(values)
    }

    /// The value of an expression; `None` for one that something else than constants and axes decides.
    fn of(&mut self, e: ExprId) -> Option<Scalar> {
        let cone = self.cones.remove(&e).unwrap_or_else(|| reachable(self.kernel, &[e]));
        let known = cone.iter().try_for_each(|e| {
            self.values[e.index()] = self.one(*e)?;
            Some(())
        });
        self.cones.insert(e, cone);
        known.map(|()| self.values[e.index()])
    }

    /// The value of an expression whose operands have theirs.
    fn one(&mut self, e: ExprId) -> Option<Scalar> {
        let (kernel, of) = (self.kernel, |e: &ExprId| self.values[e.index()]);
        Some(match &kernel.exprs[e] {
            Expr::Const(_, value) => *value,
            Expr::Size(dim) => Scalar::Int(dim.eval(self.cx.bindings).ok()?),
            Expr::Axis(axis) => Scalar::Int(self.axes[axis.index()]),
            Expr::Load { param, index } => {
                let at = usize::try_from(of(index).as_i64()).ok()?;
                let values = match self.tensors.entry(*param) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        let (_, tensor) = self.cx.constant(param.index())?;
                        new.insert(tensor.to_f64())
                    }
                };
                let value = *values.get(at)?;
                match kernel.params[*param].dtype.is_int() {
                    true => Scalar::Int(value as i64),
                    false => Scalar::Float(value),
                }
            }
            Expr::Unary(op, a) => scalar::unary(*op, kernel.exprs.dtype(*a), of(a)),
            Expr::Binary(op, a, b) => scalar::binary(*op, kernel.exprs.dtype(*a), of(a), of(b)),
            Expr::Cast(to, a) => scalar::cast(*to, of(a)),
            Expr::Select(..) | Expr::Var(_) | Expr::Philox { .. } => return None,
        })
    }
}
