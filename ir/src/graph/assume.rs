//! Sizes that nodes take as equal although algebra cannot show it: a run checks them.
//!
//! `concat up, skip` of `f32[n, 8, 2*div(h, 2)]` and `f32[n, 8, h]` fits wherever `h` is even. [`Graph::add_assuming`]
//! takes the two sizes as equal: it cuts the one operand to the other's size, which moves no element, and notes the
//! [`Assumption`]. So all that follows sees one size, and whoever binds sizes finds a run with `h = 7` out, by
//! `crate::plan::requirement`.

use smallvec::SmallVec;

use super::infer::{InferError, Reason};
use super::op::{Op, View};
use super::{Graph, NodeId, Origin, Value};
use crate::dim::{Bindings, Dim, DimError, Shape, Symbol};
use crate::types::TensorType;

/// Two sizes that are taken as equal.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Assumption {
    pub left: Dim,
    pub right: Dim,
    /// Which sizes these are, and the node that needs them to be equal.
    pub what: String,
}

/// Sizes of a run that an assumption does not hold at.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AssumptionError {
    #[error(transparent)]
    Unequal(#[from] Box<Unequal>),
    /// A size that is not bound, or overflows.
    #[error(transparent)]
    Dim(#[from] DimError),
}

/// Two sizes are not equal that are taken as equal.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{} needs {} = {}, but {left} is not {right} at {bindings}; give inputs of other sizes, or compile for these sizes alone \
     (--size NAME=SIZE, --shape INPUT=[DIMS])",
    assumption.what, assumption.left, assumption.right
)]
pub struct Unequal {
    pub assumption: Assumption,
    pub left: i64,
    pub right: i64,
    /// The sizes of the run as `n=3, m=4`.
    pub bindings: String,
}

impl Assumption {
    /// Checks the assumption at some sizes.
    ///
    /// # Errors
    /// [`Unequal`] with both sizes.
    pub fn check(&self, bindings: &Bindings) -> Result<(), AssumptionError> {
        let (left, right) = (self.left.eval(bindings)?, self.right.eval(bindings)?);
        if left == right {
            return Ok(());
        }
        let sizes: Vec<String> = bindings.iter().map(|(s, n)| format!("{s}={n}")).collect();
        Err(Box::new(Unequal {
            assumption: self.clone(),
            left,
            right,
            bindings: sizes.join(", "),
        })
        .into())
    }
}

/// How many pairs of sizes one node may take as equal.
const MOST: usize = 32;

impl Graph {
    /// Returns the sizes that are taken as equal, in the order they were met.
    pub fn assumptions(&self) -> &[Assumption] {
        &self.assumptions
    }

    /// Takes two sizes as equal from now on. Nothing is noted where they are equal anyway.
    pub fn assume_equal(&mut self, left: &Dim, right: &Dim, what: impl FnOnce() -> String) {
        if left.same_size(right) {
            return;
        }
        let same = |a: &Assumption| (&a.left, &a.right) == (left, right) || (&a.left, &a.right) == (right, left);
        if !self.assumptions.iter().any(same) {
            self.assumptions.push(Assumption {
                left: left.clone(),
                right: right.clone(),
                what: what(),
            });
        }
    }

    /// Takes the symbols and the assumptions of another graph, for passes that build a graph from one.
    pub fn set_sizes_of(&mut self, other: &Graph) {
        self.set_symbols(other.symbols().clone());
        self.assumptions = other.assumptions.clone();
    }

    /// Checks the assumptions at some sizes.
    ///
    /// # Errors
    /// The first that does not hold, with its node and both sides.
    pub fn check_assumptions(&self, bindings: &Bindings) -> Result<(), AssumptionError> {
        self.assumptions.iter().try_for_each(|a| a.check(bindings))
    }

    /// Leaves out the assumptions about symbols that the graph does not have: another part of the model has them.
    pub fn retain_assumptions<'s>(&mut self, symbols: impl Fn(&Symbol) -> bool + 's) {
        self.assumptions.retain(|a| {
            let mut used = Vec::new();
            a.left.collect_symbols(&mut used);
            a.right.collect_symbols(&mut used);
            used.iter().all(&symbols)
        });
    }

    /// As [`Graph::add`]; where sizes must be equal that are not known to be, they are taken as equal.
    ///
    /// # Errors
    /// [`InferError`] when the op does not fit its operands at any size.
    pub fn add_assuming(&mut self, op: Op, operands: &[Value], origin: Origin) -> Result<NodeId, InferError> {
        let mut operands: SmallVec<[Value; 3]> = operands.into();
        let mut error = match self.infer(&op, &operands) {
            Ok(types) => return Ok(self.push(op, &operands, types, origin)),
            Err(error) => error,
        };
        for _ in 0..MOST {
            if !self.reconcile(&op, &mut operands, &error.reason, &origin) {
                break;
            }
            error = match self.infer(&op, &operands) {
                Ok(types) => return Ok(self.push(op, &operands, types, origin)),
                Err(error) => error,
            };
        }
        Err(error.at(origin))
    }

    /// Cuts operands so that the sizes of `reason` become one. Says whether anything changed.
    fn reconcile(&mut self, op: &Op, operands: &mut [Value], reason: &Reason, origin: &Origin) -> bool {
        let place = || format!("{} at {origin}", op.name());
        match reason {
            Reason::Dims {
                what,
                left,
                right,
                known: false,
            } => {
                let changed = self.rename_either(op, operands, left, right, origin);
                if changed {
                    self.assume_equal(left, right, || format!("{what}, of {}", place()));
                }
                changed
            }
            Reason::Broadcast {
                left_dim,
                right_dim,
                known: false,
                ..
            } => {
                let changed = self.rename_either(op, operands, left_dim, right_dim, origin);
                if changed {
                    self.assume_equal(left_dim, right_dim, || {
                        format!(
                            "{} (two open sizes are broadcast as equal, also where one of them is 1)",
                            place()
                        )
                    });
                }
                changed
            }
            Reason::Elements {
                from, to, known: false, ..
            } => {
                let Some(value) = self.regroup(operands[0], from, to, origin) else {
                    return false;
                };
                self.assume_equal(&from.elements(), &to.elements(), || {
                    format!("the number of elements before and after {}", place())
                });
                operands[0] = value;
                true
            }
            _ => false,
        }
    }

    /// Renames one of two sizes in all operands: the simpler one stays, unless it is the op that has it.
    fn rename_either(&mut self, op: &Op, operands: &mut [Value], left: &Dim, right: &Dim, origin: &Origin) -> bool {
        let keep_left = matches!(op, Op::View(View::Broadcast(_))) || weight(left) <= weight(right);
        let (kept, other) = if keep_left { (left, right) } else { (right, left) };
        self.rename(operands, other, kept, origin) || self.rename(operands, kept, other, origin)
    }

    fn rename(&mut self, operands: &mut [Value], from: &Dim, to: &Dim, origin: &Origin) -> bool {
        let mut changed = false;
        for operand in operands {
            let shape = self.ty(*operand).shape.clone();
            if shape.iter().any(|d| d == from) {
                let renamed = shape.iter().map(|d| if d == from { to.clone() } else { d.clone() });
                *operand = self.cut(*operand, renamed.collect(), origin);
                changed = true;
            }
        }
        changed
    }

    /// The first elements along each axis; as many as there are, where the assumption holds.
    fn cut(&mut self, value: Value, to: Shape, origin: &Origin) -> Value {
        let ty = TensorType::new(self.ty(value).dtype, to.clone());
        let slice = View::Slice {
            starts: vec![Dim::Const(0); to.rank()],
            steps: vec![1; to.rank()],
            sizes: to.0,
        };
        self.push(Op::View(slice), &[value], [ty], origin.clone()).into()
    }

    /// Gives a tensor as many elements as another shape has: the axes that both begin and end with stay, those between
    /// are joined and cut.
    fn regroup(&mut self, value: Value, from: &Shape, to: &Shape, origin: &Origin) -> Option<Value> {
        let least = from.rank().min(to.rank());
        let first = (0..least).take_while(|i| from[*i] == to[*i]).count();
        let ends = |i: &usize| from[from.rank() - 1 - i] == to[to.rank() - 1 - i];
        let last = (0..least - first).take_while(ends).count();
        let around = |shape: &Shape| -> Option<Shape> {
            let inner = Shape(shape[first..shape.rank() - last].to_vec()).checked_elements()?;
            let before = shape[..first].iter().cloned();
            Some(
                before
                    .chain([inner])
                    .chain(shape[shape.rank() - last..].iter().cloned())
                    .collect(),
            )
        };
        let (joined, cut) = (around(from)?, around(to)?);
        let value = if joined == *from {
            value
        } else {
            let ty = TensorType::new(self.ty(value).dtype, joined.clone());
            let op = Op::View(View::Reshape(joined));
            self.push(op, &[value], [ty], origin.clone()).into()
        };
        Some(self.cut(value, cut, origin))
    }
}

/// How much there is to read in a size.
fn weight(dim: &Dim) -> usize {
    match dim {
        Dim::Const(_) => 0,
        Dim::Poly(p) => {
            let factors = p.terms.iter().flat_map(|(monomial, _)| monomial);
            p.terms.len()
                + factors
                    .map(|atom| 1 + atom.operands().map(weight).sum::<usize>())
                    .sum::<usize>()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op::{BinaryOp, Contract};
    use crate::types::DType;

    fn input(g: &mut Graph, name: &str, dims: Vec<Dim>) -> Value {
        g.add_input(name, TensorType::new(DType::F32, dims), Origin::Unknown)
    }

    #[test]
    fn an_open_size_is_cut_to_the_simpler_one() {
        let mut g = Graph::new("t");
        let h = Dim::symbol("h");
        let even = h.floor_div(&Dim::Const(2)) * 2;
        let up = input(&mut g, "up", vec![Dim::Const(3), even.clone()]);
        let skip = input(&mut g, "skip", vec![Dim::Const(3), h.clone()]);
        let op = Op::View(View::Concat { axis: 0 });
        assert!(g.add(op.clone(), &[up, skip], Origin::Unknown).is_err());
        let node = g.add_assuming(op, &[up, skip], Origin::Unknown).unwrap();
        assert_eq!(g.node(node).results[0].shape, Shape(vec![Dim::Const(6), h.clone()]));
        assert_eq!(g.assumptions().len(), 1);
        g.verify().unwrap();
        let text = crate::graph::print::print(&g, crate::graph::print::PrintOptions::default());
        assert!(text.contains("assume"), "{text}");
        assert_eq!(crate::graph::parse::parse(&text).unwrap(), g);
        // The same pair is noted once; a sum of both is no new fact.
        let sum = g
            .add_assuming(Op::binary(BinaryOp::Add), &[skip, up], Origin::Unknown)
            .unwrap();
        assert_eq!(g.node(sum).results[0].shape, Shape(vec![Dim::Const(3), h]));
        assert_eq!(g.assumptions().len(), 1);
    }

    #[test]
    fn depths_and_elements_are_taken_as_equal_and_what_never_is_is_refused() {
        let mut g = Graph::new("t");
        let (n, m) = (Dim::symbol("n"), Dim::symbol("m"));
        let a = input(&mut g, "a", vec![Dim::Const(2), n.clone()]);
        let b = input(&mut g, "b", vec![m.clone(), Dim::Const(5)]);
        let product = Op::Contract(Contract {
            transpose_lhs: false,
            transpose_rhs: false,
            out: DType::F32,
        });
        g.add_assuming(product.clone(), &[a, b], Origin::Unknown).unwrap();
        let rows = n.floor_div(&Dim::Const(4));
        let to = Shape(vec![Dim::Const(2), rows, Dim::Const(4)]);
        let split = g
            .add_assuming(Op::View(View::Reshape(to.clone())), &[a], Origin::Unknown)
            .unwrap();
        assert_eq!(g.node(split).results[0].shape, to);
        g.verify().unwrap();
        assert_eq!(g.assumptions().len(), 2, "{:?}", g.assumptions());
        let c = input(&mut g, "c", vec![n.clone() + 1, Dim::Const(5)]);
        let never = g.add_assuming(product, &[a, c], Origin::Unknown).unwrap_err();
        assert!(matches!(&*never.reason, Reason::Dims { known: true, .. }), "{never}");
    }
}
