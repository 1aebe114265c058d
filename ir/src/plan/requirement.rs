//! What the sizes of a run must satisfy: what inference could not decide for every size within bounds.
//!
//! `slice x {starts=[0], sizes=[4]}` of `f32[n]` reads past its operand when `n` is 3. Kernels do not check; whoever
//! binds sizes does, once, by [`Plan::check_sizes`](super::Plan::check_sizes).

use std::fmt;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::dim::{Bindings, Dim, DimError, Symbols};
use crate::graph::assume::{Assumption, AssumptionError, Unequal};
use crate::graph::op::{Gather, Op, PadMode, Scatter, View};
use crate::graph::{Graph, Node};

/// `least <= most`, or `least = most`, at the sizes of a run, unless `count` is 0 there.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Requirement {
    pub least: Dim,
    pub most: Dim,
    /// How much is asked for; of nothing, nothing is required.
    pub count: Dim,
    /// Whether both sides must be equal.
    pub equal: bool,
    /// What asks for it, and where.
    pub what: String,
}

/// Sizes that a plan does not work at.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SizesError {
    /// A requirement does not hold.
    #[error("{what} needs {least} <= {most}, but {left} is more than {right} at {bindings}")]
    Unmet {
        what: String,
        least: Dim,
        most: Dim,
        left: i64,
        right: i64,
        /// The sizes of the run as `n=3, m=4`.
        bindings: String,
    },
    /// Two sizes are not equal that the plan takes as equal.
    #[error(transparent)]
    Unequal(#[from] Box<Unequal>),
    /// A size that is not bound, or overflows.
    #[error(transparent)]
    Dim(#[from] DimError),
}

impl From<AssumptionError> for SizesError {
    fn from(error: AssumptionError) -> SizesError {
        match error {
            AssumptionError::Unequal(unequal) => SizesError::Unequal(unequal),
            AssumptionError::Dim(error) => SizesError::Dim(error),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relation = if self.equal { "=" } else { "<=" };
        write!(f, "{} {relation} {}", self.least, self.most)?;
        if !self.count.is(1) {
            write!(f, " unless {} is 0", self.count)?;
        }
        write!(f, " for {}", self.what)
    }
}

impl Requirement {
    /// Checks the requirement at some sizes.
    ///
    /// # Errors
    /// [`SizesError`] with both sides.
    pub fn check(&self, bindings: &Bindings) -> Result<(), SizesError> {
        if self.equal {
            let (left, right, what) = (self.least.clone(), self.most.clone(), self.what.clone());
            return Ok(Assumption { left, right, what }.check(bindings)?);
        }
        let (left, right) = (self.least.eval(bindings)?, self.most.eval(bindings)?);
        if left <= right || self.count.eval(bindings)? == 0 {
            return Ok(());
        }
        let sizes: Vec<String> = bindings.iter().map(|(s, n)| format!("{s}={n}")).collect();
        Err(SizesError::Unmet {
            what: self.what.clone(),
            least: self.least.clone(),
            most: self.most.clone(),
            left,
            right,
            bindings: sizes.join(", "),
        })
    }
}

impl From<&Assumption> for Requirement {
    fn from(assumption: &Assumption) -> Requirement {
        Requirement {
            least: assumption.left.clone(),
            most: assumption.right.clone(),
            count: Dim::Const(1),
            equal: true,
            what: assumption.what.clone(),
        }
    }
}

/// Collects what a graph's nodes require and what does not hold for every size within bounds, each once.
pub fn of(graph: &Graph) -> Vec<Requirement> {
    let mut found = Found {
        symbols: graph.symbols(),
        list: IndexMap::new(),
    };
    for node in graph.nodes().values() {
        found.node(graph, node);
    }
    let one = |((least, most, count), what)| Requirement {
        least,
        most,
        count,
        equal: false,
        what,
    };
    // What must be equal comes first: a slice that does not fit follows from it.
    let equal = graph.assumptions().iter().map(Requirement::from);
    equal.chain(found.list.into_iter().map(one)).collect()
}

struct Found<'a> {
    symbols: &'a Symbols,
    /// `least <= most` unless `count` is 0, and what asked for it first.
    list: IndexMap<(Dim, Dim, Dim), String>,
}

impl Found<'_> {
    fn require(&mut self, least: &Dim, most: &Dim, count: &Dim, what: impl FnOnce() -> String) {
        let holds = match (least.as_const(), most.as_const()) {
            (Some(least), Some(most)) => least <= most,
            _ => (most - least).at_least(0, self.symbols),
        };
        if !holds && !count.is(0) {
            // A number of things is always asked for.
            let count = if count.as_const().is_some() {
                Dim::Const(1)
            } else {
                count.clone()
            };
            let key = (least.clone(), most.clone(), count);
            self.list.entry(key).or_insert_with(what);
        }
    }

    fn node(&mut self, graph: &Graph, node: &Node) {
        let (zero, one) = (Dim::Const(0), Dim::Const(1));
        let name = |part: &str| format!("{part} of {} at {}", node.op.name(), node.origin);
        for ty in &node.results {
            for (axis, dim) in ty.shape.iter().enumerate() {
                self.require(&zero, dim, &one, || name(&format!("axis {axis}")));
            }
        }
        let shape = |operand: usize| &graph.ty(node.operands[operand]).shape;
        match &node.op {
            Op::View(View::Slice { starts, sizes, steps }) => {
                for (axis, start) in starts.iter().enumerate() {
                    let (size, step) = (&sizes[axis], steps[axis]);
                    let last = start.clone() + (size.clone() - one.clone()) * step;
                    let end = shape(0)[axis].clone() - one.clone();
                    let (low, high) = if step < 0 { (&last, start) } else { (start, &last) };
                    self.require(&zero, low, size, || name(&format!("the first position on axis {axis}")));
                    self.require(high, &end, size, || name(&format!("the last position on axis {axis}")));
                }
            }
            Op::View(View::Pad { low, high, mode }) => {
                for axis in 0..low.len() {
                    let size = &shape(0)[axis];
                    for amount in [&low[axis], &high[axis]] {
                        self.require(&zero, amount, &one, || name(&format!("the padding of axis {axis}")));
                        let most = match mode {
                            PadMode::Constant(_) => continue,
                            PadMode::Reflect => size.clone() - one.clone(),
                            PadMode::Edge | PadMode::Wrap => size.clone(),
                        };
                        let least = if *mode == PadMode::Reflect { amount } else { &one };
                        self.require(least, &most, amount, || name(&format!("the padding of axis {axis}")));
                    }
                }
            }
            Op::TopK { axis, k, .. } => {
                self.require(k, &shape(0)[*axis], &one, || name("k"));
            }
            Op::Gather(gather) => {
                let indices = shape(1);
                let axes = match *gather {
                    Gather::Take { axis } | Gather::Elements { axis } => axis..axis + 1,
                    Gather::Nd { batch_dims } => batch_dims..batch_dims + last(indices),
                };
                self.indexed(node, shape(0), axes, &node.results[0].shape.elements());
            }
            Op::Scatter(scatter) => {
                let axes = match *scatter {
                    Scatter::Elements { axis, .. } => axis..axis + 1,
                    Scatter::Nd { .. } => 0..last(shape(1)),
                };
                self.indexed(node, shape(0), axes, &shape(2).elements());
            }
            _ => {}
        }
    }

    /// Positions are clamped to the axis, which an empty axis has none of.
    fn indexed(&mut self, node: &Node, data: &crate::dim::Shape, axes: std::ops::Range<usize>, count: &Dim) {
        for axis in axes {
            if let Some(size) = data.get(axis) {
                self.require(&Dim::Const(1), size, count, || {
                    format!("axis {axis} of the data of {} at {}", node.op.name(), node.origin)
                });
            }
        }
    }
}

/// The depth of index tuples.
fn last(indices: &crate::dim::Shape) -> usize {
    indices
        .iter()
        .last()
        .and_then(Dim::as_const)
        .map_or(0, |n| n.max(0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Symbol;

    fn of_text(body: &str) -> Vec<Requirement> {
        let text =
            format!("graph @g {{\n symbol n: 1..8\n x = input \"x\" : f32[n, 6]\n{body}\n return y as \"y\"\n}}");
        of(&crate::graph::parse::parse(&text).expect("parses"))
    }

    fn at(n: i64) -> Bindings {
        Bindings::from_iter([(Symbol::new("n"), n)])
    }

    #[test]
    fn only_what_is_not_certain_is_required() {
        let cases: [(&str, &[i64], &[i64]); 7] = [
            ("y = slice x {starts=[0, 0], sizes=[1, 6], steps=[1, 1]}", &[1, 8], &[]),
            (
                "y = slice x {starts=[0, 0], sizes=[4, 6], steps=[1, 1]}",
                &[4, 8],
                &[1, 3],
            ),
            (
                "y = slice x {starts=[n - 2, 0], sizes=[2, 6], steps=[1, 1]}",
                &[2, 8],
                &[1],
            ),
            (
                "y = slice x {starts=[3, 0], sizes=[n - 4, 6], steps=[1, 1]}",
                &[4, 5, 8],
                &[1, 3],
            ),
            (
                "y = slice x {starts=[3, 0], sizes=[4, 6], steps=[-1, 1]}",
                &[4, 8],
                &[1, 3],
            ),
            ("y = top_k x {axis=0, k=3} : f32[3, 6], i64[3, 6]", &[3, 8], &[1, 2]),
            ("y = pad x {low=[3, 0], high=[0, 0], mode=reflect}", &[4, 8], &[1, 3]),
        ];
        for (body, good, bad) in cases {
            let list = of_text(body);
            assert_eq!(list.is_empty(), bad.is_empty(), "{body}: {list:?}");
            for n in good {
                for r in &list {
                    assert_eq!(r.check(&at(*n)), Ok(()), "{body} at {n}");
                }
            }
            for n in bad {
                let errors: Vec<String> = list
                    .iter()
                    .filter_map(|r| r.check(&at(*n)).err())
                    .map(|e| e.to_string())
                    .collect();
                assert!(!errors.is_empty(), "{body} at {n}");
                assert!(errors[0].contains(&format!("n={n}")), "{errors:?}");
            }
        }
    }

    #[test]
    fn what_is_always_asked_for_is_printed_without_a_condition() {
        let text = |body: &str| {
            of_text(body)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; ")
        };
        let fixed = text("y = slice x {starts=[0, 0], sizes=[4, 6], steps=[1, 1]}");
        assert!(
            fixed.starts_with("3 <= n - 1 for the last position on axis 0"),
            "{fixed}"
        );
        let open = text("y = pad x {low=[n - 3, 0], high=[0, 0], mode=edge}");
        assert!(
            open.ends_with("; 0 <= n - 3 for the padding of axis 0 of pad at unknown origin"),
            "{open}"
        );
    }
}
