//! A value's elements in the order in which they lie in memory: views taken apart into the factors of their sizes.
//!
//! ```text
//! x [1, 64, 64, 320] in memory, transposed to [1, 320, 64, 64], as [1, 32, 40960]:
//! memory [1, 64, 64, 32, 10]      dimension 1 of the view is factor 3, dimension 2 is factors 4, 1, 2
//! ```

use ir::op::View;
use ir::{Dim, Graph, Op, Shape, Value};

/// The dimensions of a view as factors of what it views.
#[derive(Clone)]
pub(super) struct Factors {
    /// The size of each factor.
    sizes: Vec<Dim>,
    /// The factors from the outermost in memory to the innermost.
    memory: Vec<usize>,
    /// The factors of each dimension of the view, the outermost first. Dimensions of size 1 have none.
    view: Vec<Vec<usize>>,
}

impl Factors {
    /// Each dimension of a value is a factor of its own, and their order in memory is given.
    pub fn new(shape: &Shape, order: &[usize]) -> Factors {
        let one = |d: usize| if shape[d].is(1) { Vec::new() } else { vec![d] };
        Factors {
            sizes: shape.0.clone(),
            memory: order.iter().copied().filter(|d| !shape[*d].is(1)).collect(),
            view: (0..shape.rank()).map(one).collect(),
        }
    }

    /// Goes on through a view; `None` where its dimensions are no products of factors.
    pub fn through(mut self, op: &View, result: &Shape) -> Option<Factors> {
        match op {
            View::Transpose(order) => {
                self.view = order.iter().map(|d| self.view[*d].clone()).collect();
                Some(self)
            }
            View::Reshape(_) => self.reshaped(result),
            _ => None,
        }
    }

    /// All factors in the order of the view, handed to the new dimensions one after another; one is split where a
    /// dimension takes a part of it.
    fn reshaped(mut self, result: &Shape) -> Option<Factors> {
        let mut rest: std::collections::VecDeque<usize> = self.view.concat().into();
        let mut view = Vec::with_capacity(result.rank());
        for dim in result.iter() {
            let mut taken = Vec::new();
            if rest.front().is_some_and(|f| self.sizes[*f] == *dim) {
                taken.extend(rest.pop_front());
            } else {
                let mut wanted = dim.as_const().filter(|n| *n > 0)?;
                while wanted > 1 {
                    let factor = *rest.front()?;
                    let size = self.sizes[factor].as_const()?;
                    if wanted % size == 0 {
                        rest.pop_front();
                        taken.push(factor);
                        wanted /= size;
                        continue;
                    }
                    if size % wanted != 0 {
                        return None;
                    }
                    let inner = self.split(factor, wanted, size / wanted);
                    rest[0] = inner;
                    taken.push(factor);
                    wanted = 1;
                }
            }
            view.push(taken);
        }
        self.view = view;
        rest.is_empty().then_some(self)
    }

    /// Makes two factors of one, which stays the outer of the two; returns the inner one.
    fn split(&mut self, factor: usize, outer: i64, inner: i64) -> usize {
        let new = self.sizes.len();
        self.sizes[factor] = Dim::from(outer);
        self.sizes.push(Dim::from(inner));
        if let Some(at) = self.memory.iter().position(|f| *f == factor) {
            self.memory.insert(at + 1, new);
        }
        new
    }

    /// Says whether what lies side by side in memory is side by side in the view, too.
    pub fn ends_alike(&self) -> bool {
        self.memory.last() == self.view.iter().flatten().next_back()
    }

    /// The factors' sizes in the order of memory.
    pub fn in_memory(&self) -> Shape {
        self.memory.iter().map(|f| self.sizes[*f].clone()).collect()
    }

    /// For each factor in the order of the view, its position in the order of memory.
    pub fn memory_positions(&self) -> Vec<usize> {
        let position = |f: &usize| self.memory.iter().position(|m| m == f).unwrap_or(0);
        self.view.iter().flatten().map(position).collect()
    }

    /// Says for each factor in the order of memory whether it is of a dimension of the view from `axis` on.
    pub fn in_axes_from(&self, axis: usize) -> Vec<bool> {
        self.memory
            .iter()
            .map(|f| self.view[axis..].iter().flatten().any(|v| v == f))
            .collect()
    }
}

/// The dimensions of a value from the outermost in memory to the innermost, as far as views and elementwise operations
/// tell.
pub(super) fn order(graph: &Graph, x: Value) -> Vec<usize> {
    let node = graph.node(x.node);
    let shape = &graph.ty(x).shape;
    match &node.op {
        // Of what is broadcast there is little to read.
        Op::Elementwise(_) => match node.operands.iter().find(|v| graph.ty(**v).shape == *shape) {
            Some(operand) => order(graph, *operand),
            None => (0..shape.rank()).collect(),
        },
        Op::View(View::Transpose(from)) => {
            let below = order(graph, node.operands[0]);
            below.iter().filter_map(|d| from.iter().position(|f| f == d)).collect()
        }
        _ => (0..shape.rank()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[i64]) -> Shape {
        dims.iter().map(|d| Dim::from(*d)).collect()
    }

    #[test]
    fn groups_of_channels_that_lie_last() {
        let image = shape(&[2, 64, 64, 320]);
        let rows = shape(&[2, 32, 40960]);
        let factors = Factors::new(&image, &[0, 1, 2, 3])
            .through(&View::Transpose(vec![0, 3, 1, 2]), &shape(&[2, 320, 64, 64]))
            .and_then(|f| f.through(&View::Reshape(rows.clone()), &rows))
            .expect("factors");
        assert_eq!(factors.in_memory(), shape(&[2, 64, 64, 32, 10]));
        assert_eq!(factors.in_axes_from(2), [false, true, true, false, true]);
        assert_eq!(factors.memory_positions(), [0, 3, 4, 1, 2]);
    }

    #[test]
    fn what_is_no_product_of_factors_is_none() {
        let wide = shape(&[6, 10]);
        let other = shape(&[4, 15]);
        let factors = Factors::new(&wide, &[0, 1]);
        assert!(factors.through(&View::Reshape(other.clone()), &other).is_none());
        let same = shape(&[3, 20]);
        let factors = Factors::new(&wide, &[1, 0]).through(&View::Reshape(same.clone()), &same);
        let factors = factors.expect("factors");
        assert_eq!(factors.in_memory(), shape(&[10, 3, 2]));
        assert_eq!(factors.in_axes_from(1), [true, false, true]);
    }
}
