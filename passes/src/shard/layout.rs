//! How a value lies over the ranks, and in which ways an op can be shared among them.
//!
//! Before: an op with its operands' types, and the number of ranks. After: every [`Way`] in which the ranks can compute
//! it, each a layout of every operand and of the result. The first way is always the one in which every rank computes
//! everything.

use ir::library::{Collective, CollectiveKind};
use ir::op::{BinaryOp, Composite, Contract, Elementwise, Gather, ReduceOp, Scatter, UnaryOp, View};
use ir::{Dim, Op, Shape, TensorType};
use smallvec::{SmallVec, smallvec};

/// How a value lies over the ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Layout {
    /// Every rank has all of it.
    Whole,
    /// Each rank has its part along an axis, in the order of the ranks.
    Split(usize),
    /// Each rank has a tensor of the whole's type; their sum is the value.
    Partial,
    /// Each rank has as many entries along the axis as are shared by its part of what reads them: rank `r` of `N` those
    /// from `⌊r · size / N⌋` on. It is how query heads that are split read keys that are not.
    Cover { axis: usize, count: i64 },
}

impl Layout {
    /// The type of one rank's part of a value.
    pub fn part(self, ty: &TensorType, ranks: i64) -> TensorType {
        let mut ty = ty.clone();
        match self {
            Layout::Whole | Layout::Partial => {}
            Layout::Split(axis) => ty.shape.0[axis] = share(&ty.shape[axis], ranks),
            Layout::Cover { axis, count } => ty.shape.0[axis] = Dim::Const(count),
        }
        ty
    }
}

/// One rank's share of a size that [`divides`].
fn share(size: &Dim, ranks: i64) -> Dim {
    match size {
        Dim::Const(n) => Dim::Const(n / ranks),
        other => other.clone(),
    }
}

/// Says whether a size is known and divides among the ranks.
pub fn divides(size: &Dim, ranks: i64) -> bool {
    matches!(size, Dim::Const(n) if *n > 0 && n % ranks == 0)
}

/// One way in which the ranks compute an op together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Way {
    pub operands: SmallVec<[Layout; 4]>,
    pub result: Layout,
}

/// Returns every way of an op, the first of which splits nothing. `result` is the op's first; one with several is not
/// split.
pub fn ways(op: &Op, operands: &[&TensorType], results: &[TensorType], ranks: i64) -> Vec<Way> {
    let whole = Way {
        operands: operands.iter().map(|_| Layout::Whole).collect(),
        result: Layout::Whole,
    };
    let mut ways = Ways {
        operands,
        ranks,
        list: vec![whole],
    };
    if let [result] = results {
        ways.of(op, result);
        // What cannot be made whole again is not shared.
        let takes = |kind| Collective { kind, ranks: 2 }.takes(result.dtype);
        ways.list.retain(|way| match way.result {
            Layout::Whole | Layout::Cover { .. } => true,
            Layout::Split(_) => takes(CollectiveKind::AllGather),
            Layout::Partial => takes(CollectiveKind::AllReduce),
        });
    }
    ways.list
}

struct Ways<'a> {
    operands: &'a [&'a TensorType],
    ranks: i64,
    list: Vec<Way>,
}

impl Ways<'_> {
    fn add(&mut self, operands: impl IntoIterator<Item = Layout>, result: Layout) {
        let way = Way {
            operands: operands.into_iter().collect(),
            result,
        };
        if !self.list.contains(&way) {
            self.list.push(way);
        }
    }

    fn splits(&self, operand: usize, axis: usize) -> bool {
        self.operands[operand]
            .shape
            .get(axis)
            .is_some_and(|d| divides(d, self.ranks))
    }

    /// The axes of a shape that can be split.
    fn axes(&self, shape: &Shape) -> Vec<usize> {
        (0..shape.rank()).filter(|a| divides(&shape[*a], self.ranks)).collect()
    }

    fn of(&mut self, op: &Op, result: &TensorType) {
        match op {
            Op::Elementwise(e) => self.elementwise(*e, result),
            Op::View(view) => self.view(view, result),
            Op::Contract(c) => self.contract(c, result),
            Op::Reduce { op, axes, keep_dims } => self.reduce(*op, axes, *keep_dims),
            Op::Gather(g) => self.gather(*g),
            Op::Scatter(s) => self.scatter(*s, result),
            Op::Scan { axis, .. } => self.along_all_but(&[*axis], result),
            Op::Composite(c) => self.composite(c, result),
            // Leaves are the same everywhere, and convolutions and pooling stay whole.
            Op::Input { .. }
            | Op::Constant(_)
            | Op::Iota { .. }
            | Op::DimValue(_)
            | Op::Random { .. }
            | Op::Conv(_)
            | Op::Pool(_)
            | Op::TopK { .. }
            | Op::Call(_) => {}
        }
    }

    /// What an operand that broadcasts to a result is asked for, where that is split along `axis`; None where it cannot
    /// be.
    fn broadcast(&self, operand: usize, result: &Shape, axis: usize) -> Option<Layout> {
        let shape = &self.operands[operand].shape;
        let Some(own) = (axis + shape.rank()).checked_sub(result.rank()) else {
            return Some(Layout::Whole);
        };
        if shape[own].is(1) {
            return Some(Layout::Whole);
        }
        self.splits(operand, own).then_some(Layout::Split(own))
    }

    fn elementwise(&mut self, op: Elementwise, result: &TensorType) {
        for axis in self.axes(&result.shape) {
            let operands: Option<SmallVec<[Layout; 4]>> = (0..self.operands.len())
                .map(|operand| self.broadcast(operand, &result.shape, axis))
                .collect();
            if let Some(operands) = operands {
                self.add(operands, Layout::Split(axis));
            }
        }
        // Sums of sums are sums; of other ops some are linear in one operand.
        if !result.dtype.is_float() {
            return;
        }
        let full = |operand: usize| self.operands[operand].shape == result.shape;
        match op {
            Elementwise::Unary(UnaryOp::Neg) => self.add([Layout::Partial], Layout::Partial),
            Elementwise::Binary(BinaryOp::Add | BinaryOp::Sub) if full(0) && full(1) => {
                self.add([Layout::Partial, Layout::Partial], Layout::Partial);
            }
            Elementwise::Binary(BinaryOp::Mul) => {
                self.add([Layout::Partial, Layout::Whole], Layout::Partial);
                self.add([Layout::Whole, Layout::Partial], Layout::Partial);
            }
            Elementwise::Binary(BinaryOp::Div) => self.add([Layout::Partial, Layout::Whole], Layout::Partial),
            _ => {}
        }
    }

    fn view(&mut self, view: &View, result: &TensorType) {
        let shape = &self.operands[0].shape.clone();
        match view {
            View::Reshape(to) => {
                for (from, axis) in regrouped(shape, to, self.ranks) {
                    self.add([Layout::Split(from)], Layout::Split(axis));
                }
            }
            View::Transpose(perm) => {
                for (axis, from) in perm.iter().enumerate() {
                    if self.splits(0, *from) {
                        self.add([Layout::Split(*from)], Layout::Split(axis));
                    }
                }
            }
            View::Broadcast(to) => {
                for axis in self.axes(to) {
                    if let Some(operand) = self.broadcast(0, to, axis) {
                        self.add([operand], Layout::Split(axis));
                    }
                }
            }
            View::Slice { starts, sizes, steps } => {
                for axis in self.axes(shape) {
                    if starts[axis].is(0) && sizes[axis] == shape[axis] && steps[axis] == 1 {
                        self.add([Layout::Split(axis)], Layout::Split(axis));
                    }
                }
            }
            View::Pad { low, high, .. } => {
                for axis in self.axes(shape) {
                    if low[axis].is(0) && high[axis].is(0) {
                        self.add([Layout::Split(axis)], Layout::Split(axis));
                    }
                }
                // What it fills with would be added once for each rank.
                return;
            }
            View::Concat { axis: joined } => {
                for axis in self.axes(&result.shape) {
                    if axis != *joined {
                        let all = self.operands.iter().map(|_| Layout::Split(axis));
                        self.add(all.collect::<Vec<_>>(), Layout::Split(axis));
                    }
                }
            }
        }
        let all = self.operands.iter().map(|_| Layout::Partial);
        self.add(all.collect::<Vec<_>>(), Layout::Partial);
    }

    fn contract(&mut self, c: &Contract, result: &TensorType) {
        let (l, r, rank) = (
            self.operands[0].shape.rank(),
            self.operands[1].shape.rank(),
            result.shape.rank(),
        );
        let (m, k_left) = if c.transpose_lhs {
            (l - 1, l - 2)
        } else {
            (l - 2, l - 1)
        };
        let (k_right, n) = if c.transpose_rhs {
            (r - 1, r - 2)
        } else {
            (r - 2, r - 1)
        };
        if self.splits(1, n) {
            self.add([Layout::Whole, Layout::Split(n)], Layout::Split(rank - 1));
        }
        if self.splits(0, k_left) && self.splits(1, k_right) {
            self.add([Layout::Split(k_left), Layout::Split(k_right)], Layout::Partial);
        }
        if self.splits(0, m) {
            self.add([Layout::Split(m), Layout::Whole], Layout::Split(rank - 2));
        }
        for axis in 0..rank - 2 {
            if !divides(&result.shape[axis], self.ranks) {
                continue;
            }
            // The batch dims of either operand broadcast.
            let batch = |operand: usize, own: usize| {
                let Some(at) = (axis + own).checked_sub(rank) else {
                    return Some(Layout::Whole);
                };
                match self.operands[operand].shape[at].is(1) {
                    true => Some(Layout::Whole),
                    false => self.splits(operand, at).then_some(Layout::Split(at)),
                }
            };
            if let (Some(left), Some(right)) = (batch(0, l), batch(1, r)) {
                self.add([left, right], Layout::Split(axis));
            }
        }
        // A product is linear in either operand.
        if result.dtype.is_float() {
            self.add([Layout::Partial, Layout::Whole], Layout::Partial);
        }
    }

    fn reduce(&mut self, op: ReduceOp, axes: &[usize], keep_dims: bool) {
        for axis in self.axes(&self.operands[0].shape.clone()) {
            if axes.contains(&axis) {
                if op == ReduceOp::Sum {
                    self.add([Layout::Split(axis)], Layout::Partial);
                }
                continue;
            }
            let before = axes.iter().filter(|a| **a < axis).count();
            let to = if keep_dims { axis } else { axis - before };
            self.add([Layout::Split(axis)], Layout::Split(to));
        }
        if op == ReduceOp::Sum {
            self.add([Layout::Partial], Layout::Partial);
        }
    }

    fn gather(&mut self, gather: Gather) {
        let (data, indices) = (self.operands[0].shape.clone(), self.operands[1].shape.clone());
        match gather {
            Gather::Take { axis: taken } => {
                for axis in self.axes(&data) {
                    let to = match axis.cmp(&taken) {
                        std::cmp::Ordering::Less => axis,
                        std::cmp::Ordering::Equal => continue,
                        std::cmp::Ordering::Greater => axis + indices.rank() - 1,
                    };
                    self.add([Layout::Split(axis), Layout::Whole], Layout::Split(to));
                }
                for axis in self.axes(&indices) {
                    self.add([Layout::Whole, Layout::Split(axis)], Layout::Split(taken + axis));
                }
                self.add([Layout::Partial, Layout::Whole], Layout::Partial);
            }
            Gather::Elements { axis: taken } => {
                for axis in self.axes(&data) {
                    if axis != taken && data[axis] == indices[axis] {
                        self.add([Layout::Split(axis); 2], Layout::Split(axis));
                    }
                }
            }
            Gather::Nd { .. } => {}
        }
    }

    fn scatter(&mut self, scatter: Scatter, result: &TensorType) {
        let (indices, updates) = (self.operands[1].shape.clone(), self.operands[2].shape.clone());
        for axis in self.axes(&result.shape) {
            match scatter {
                Scatter::Elements { axis: along, .. } => {
                    // Rows that are not updated would have to be told from those of other ranks.
                    if axis != along && result.shape[axis] == indices[axis] && result.shape[axis] == updates[axis] {
                        self.add([Layout::Split(axis); 3], Layout::Split(axis));
                    }
                }
                Scatter::Nd { .. } => {
                    // An index names the first axes; what follows them is moved whole.
                    let Some(Dim::Const(depth)) = indices.last() else {
                        continue;
                    };
                    let Some(inside) = axis.checked_sub(usize::try_from(*depth).unwrap_or(usize::MAX)) else {
                        continue;
                    };
                    let update = indices.rank() - 1 + inside;
                    let operands = [Layout::Split(axis), Layout::Whole, Layout::Split(update)];
                    self.add(operands, Layout::Split(axis));
                }
            }
        }
    }

    /// One operand, of which some axes belong together; the others are vectors along those.
    fn along_all_but(&mut self, together: &[usize], result: &TensorType) {
        for axis in self.axes(&result.shape) {
            if !together.contains(&axis) {
                let others = self.operands.iter().skip(1).map(|_| Layout::Whole);
                let all: Vec<Layout> = std::iter::once(Layout::Split(axis)).chain(others).collect();
                self.add(all, Layout::Split(axis));
            }
        }
    }

    fn composite(&mut self, composite: &Composite, result: &TensorType) {
        match composite {
            Composite::Softmax { axis } | Composite::LogSoftmax { axis } => self.along_all_but(&[*axis], result),
            Composite::LayerNorm { axis, .. } | Composite::RmsNorm { axis, .. } => {
                let together: Vec<usize> = (*axis..result.shape.rank()).collect();
                self.along_all_but(&together, result);
            }
            Composite::Attention { .. } => self.attention(),
            Composite::Dequantize { groups, .. } => {
                for axis in self.axes(&result.shape) {
                    let beside = |operand: usize| {
                        let size = &self.operands[operand].shape[axis];
                        match (size.is(1), groups) {
                            (true, _) => Some(Layout::Whole),
                            // A rank's part is whole groups.
                            (false, Some(groups)) if groups.axis == axis => {
                                let part = share(&result.shape[axis], self.ranks);
                                let whole = matches!(part, Dim::Const(n) if n % groups.size == 0);
                                (whole && divides(size, self.ranks)).then_some(Layout::Split(axis))
                            }
                            (false, _) => divides(size, self.ranks).then_some(Layout::Split(axis)),
                        }
                    };
                    let others: Option<Vec<Layout>> = (1..self.operands.len()).map(beside).collect();
                    if let Some(others) = others {
                        let all: Vec<Layout> = std::iter::once(Layout::Split(axis)).chain(others).collect();
                        self.add(all, Layout::Split(axis));
                    }
                }
            }
            Composite::BatchNorm { .. }
            | Composite::GroupNorm { .. }
            | Composite::Quantize { .. }
            | Composite::Recurrent(_)
            | Composite::LocalResponseNorm { .. } => {}
        }
    }

    fn attention(&mut self) {
        let (query, key) = (self.operands[0].shape.clone(), self.operands[1].shape.clone());
        let push = |mut operands: SmallVec<[Layout; 4]>, axis: usize| {
            // A mask, scales.
            for at in 3..self.operands.len() {
                operands.push(self.broadcast(at, &query, axis)?);
            }
            Some(operands)
        };
        let mut found = Vec::new();
        if self.splits(0, 0) && self.splits(1, 0) && self.splits(2, 0) {
            found.push((push(smallvec![Layout::Split(0); 3], 0), 0));
        }
        if let (Dim::Const(heads), Dim::Const(shared)) = (&query[1], &key[1])
            && heads % self.ranks == 0
        {
            let (local, group) = (heads / self.ranks, heads / shared.max(&1));
            if shared % self.ranks == 0 {
                found.push((push(smallvec![Layout::Split(1); 3], 1), 1));
            } else if group % local == 0 || local % group == 0 {
                // Keys that do not divide stay whole; each rank reads those that its queries share.
                let count = (local / group).max(1);
                let cover = Layout::Cover { axis: 1, count };
                found.push((push(smallvec![Layout::Split(1), cover, cover], 1), 1));
            }
        }
        for (operands, axis) in found {
            if let Some(operands) = operands {
                self.add(operands, Layout::Split(axis));
            }
        }
    }
}

/// The pairs of axes of a reshape that are cut alike: those with the same number of elements before them, so that both
/// are the outermost of what they are regrouped with.
fn regrouped(from: &Shape, to: &Shape, ranks: i64) -> Vec<(usize, usize)> {
    let before = |shape: &Shape, axis: usize| -> Dim { shape[..axis].iter().cloned().product() };
    let mut pairs = Vec::new();
    for a in (0..from.rank()).filter(|a| divides(&from[*a], ranks)) {
        let same = |b: &usize| divides(&to[*b], ranks) && before(from, a) == before(to, *b);
        pairs.extend((0..to.rank()).find(same).map(|b| (a, b)));
    }
    pairs
}

#[cfg(test)]
mod tests {
    use ir::DType;

    use super::*;

    fn ty(shape: &[i64]) -> TensorType {
        TensorType::new(DType::F32, Shape(shape.iter().map(|d| Dim::Const(*d)).collect()))
    }

    #[test]
    fn reshapes_cut_only_what_is_outermost() {
        let pairs = |from: &[i64], to: &[i64], ranks| regrouped(&ty(from).shape, &ty(to).shape, ranks);
        assert_eq!(pairs(&[2, 5, 64], &[2, 5, 4, 16], 4), [(2, 2)]);
        assert_eq!(
            pairs(&[3, 5, 4, 16], &[3, 5, 64], 4),
            [(2, 2)],
            "heads, and not what is inside of one"
        );
        assert_eq!(pairs(&[3, 6], &[18], 3), [(0, 0)]);
        assert_eq!(
            pairs(&[3, 2, 16], &[3, 32], 4),
            [],
            "two heads do not divide among four"
        );
    }

    #[test]
    fn heads_divide_or_are_covered() {
        let attention = |heads: i64, shared: i64, ranks: i64| {
            let op = Op::Composite(Composite::Attention {
                scale: ir::types::Scalar::Float(1.0),
                causal: false,
                mask: false,
                scales: false,
            });
            let (query, key) = (ty(&[1, heads, 3, 8]), ty(&[1, shared, 7, 8]));
            let ways = ways(&op, &[&query, &key, &key], std::slice::from_ref(&query), ranks);
            ways.into_iter().skip(1).map(|way| way.operands[1]).collect::<Vec<_>>()
        };
        assert_eq!(attention(8, 4, 2), [Layout::Split(1)]);
        assert_eq!(attention(8, 2, 4), [Layout::Cover { axis: 1, count: 1 }]);
        assert_eq!(attention(6, 3, 2), [], "three heads a rank share one key and a half");
        assert_eq!(attention(6, 3, 4), []);
    }
}
