//! Whether a kernel's accesses stay inside its buffers, at one set of sizes.
//!
//! Sizes are numbers here, so that a proof is interval arithmetic: an index is a sum of `coefficient · atom`
//! ([`form`]), an atom (an axis, a quotient, a clamp) has an interval, and the conditions of the selects around a load
//! bound sums of atoms further. Whoever binds sizes asks once for each kernel. What cannot be proved (positions that
//! data decides and nothing clamps) is listed: an engine that does not look at each index when it runs must refuse such
//! a kernel.
//!
//! Nothing that a plan's file says of itself is relied on but the kernel's own text: facts that restate it are compared
//! with it.

mod form;
mod roots;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use self::form::{Form, Forms};
use self::roots::{Root, roots};
use super::{ConvFacts, Expr, ExprId, Kernel, ParamId};
use crate::dim::{Bindings, Dim, DimError};
use crate::entity::{Entity, Table};

/// The most points that loops may have together: index arithmetic on their number must not overflow.
const MOST_POINTS: i64 = 1 << 56;

/// Most pairs of an expression and the conditions around it that are looked at.
const MOST_VISITS: usize = 1 << 18;

/// An access that is not shown to be inside its buffer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the {what} of {param}[{index}] may be at {low}..={high}, but {param} has {elements} elements")]
pub struct Unproven {
    /// `load` or `store`.
    pub what: &'static str,
    pub param: String,
    pub index: String,
    /// The least and greatest position, as far as is known.
    pub low: i128,
    pub high: i128,
    pub elements: i64,
}

/// A kernel that does not fit any buffers at these sizes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BoundsError {
    #[error("kernel {kernel}: {error}")]
    Size { kernel: String, error: DimError },
    #[error("kernel {kernel}: parameter {param} has {elements} elements, which no memory holds")]
    Elements {
        kernel: String,
        param: String,
        elements: i64,
    },
    #[error("kernel {kernel}: its loops have more than {MOST_POINTS} points")]
    Points { kernel: String },
    #[error("kernel {kernel}: its convolution {what}")]
    Conv { kernel: String, what: String },
}

/// Lists the accesses that are not shown to be inside their buffers at these sizes; the kernel is a verified one.
///
/// # Errors
/// Sizes that do not work out, or a convolution whose facts are not those of its operands.
pub fn unproven(kernel: &Kernel, bindings: &Bindings) -> Result<Vec<Unproven>, BoundsError> {
    let size = |error| BoundsError::Size {
        kernel: kernel.name.clone(),
        error,
    };
    let extents = kernel
        .axes
        .values()
        .map(|a| Ok(a.extent.eval(bindings).map_err(size)?.max(0)))
        .collect::<Result<Table<super::AxisId, i64>, BoundsError>>()?;
    let mut elements: Table<ParamId, i64> = Table::with_capacity(kernel.params.len());
    for p in kernel.params.values() {
        let count = p.count(bindings).map_err(size)?;
        if usize::try_from(count)
            .ok()
            .and_then(|n| p.dtype.checked_bytes_for(n))
            .is_none()
        {
            return Err(BoundsError::Elements {
                kernel: kernel.name.clone(),
                param: p.name.clone(),
                elements: count,
            });
        }
        elements.push(count);
    }
    let roots = roots(kernel);
    let mut running = Vec::with_capacity(roots.len());
    for root in roots {
        let mut extents = root.axes.iter().map(|a| extents[*a]);
        let runs = extents.clone().all(|e| e > 0);
        let points = extents.try_fold(1i64, |n, e| n.checked_mul(e.max(1)).filter(|n| *n <= MOST_POINTS));
        if points.is_none() {
            return Err(BoundsError::Points {
                kernel: kernel.name.clone(),
            });
        }
        if runs {
            running.push(root);
        }
    }
    if let Some(facts) = kernel.conv_facts() {
        conv(kernel, facts, &elements, bindings)?;
    }
    let forms = Forms::new(kernel, &extents, bindings).map_err(size)?;
    let mut walk = Walk {
        kernel,
        elements,
        forms,
        contexts: vec![Vec::new()],
        known: HashMap::new(),
        seen: HashSet::new(),
        found: Vec::new(),
    };
    for root in &running {
        walk.root(root);
    }
    Ok(walk.found)
}

struct Walk<'k> {
    kernel: &'k Kernel,
    elements: Table<ParamId, i64>,
    forms: Forms<'k>,
    /// Forms that are at least 0, for each nesting of selects; the first is none.
    contexts: Vec<Vec<Form>>,
    /// The context inside a branch: of which context, condition and answer.
    known: HashMap<(usize, ExprId, bool), Option<usize>>,
    seen: HashSet<(ExprId, usize)>,
    found: Vec<Unproven>,
}

impl Walk<'_> {
    fn root(&mut self, root: &Root) {
        let around = match root.given {
            None => Some(0),
            Some(condition) => self.inside(0, condition, true),
        };
        // What no point has is not evaluated.
        let Some(around) = around else { return };
        if let Some(param) = root.store {
            self.access("store", param, root.expr, around);
        }
        let mut stack = vec![(root.expr, around)];
        while let Some((id, context)) = stack.pop() {
            if !self.seen.insert((id, context)) {
                continue;
            }
            if self.seen.len() > MOST_VISITS {
                self.found.push(Unproven {
                    what: "expression",
                    param: self.kernel.name.clone(),
                    index: id.to_string(),
                    low: i128::MIN,
                    high: i128::MAX,
                    elements: 0,
                });
                return;
            }
            match self.kernel.exprs[id] {
                Expr::Select(c, a, b) => {
                    stack.push((c, context));
                    for (branch, answer) in [(a, true), (b, false)] {
                        // A branch that no point takes accesses nothing.
                        if let Some(inside) = self.inside(context, c, answer) {
                            stack.push((branch, inside));
                        }
                    }
                }
                Expr::Load { param, index } => {
                    self.access("load", param, index, context);
                    stack.push((index, context));
                }
                ref other => other.for_each_operand(|o| stack.push((o, context))),
            }
        }
    }

    /// The context where `condition` has this answer; `None` where it never has.
    fn inside(&mut self, context: usize, condition: ExprId, answer: bool) -> Option<usize> {
        if let Some(known) = self.known.get(&(context, condition, answer)) {
            return *known;
        }
        let mut more = Vec::new();
        self.forms.conditions(condition, !answer, &mut more);
        let inside = if more.is_empty() {
            Some(context)
        } else {
            more.extend(self.contexts[context].iter().cloned());
            // Conditions may exclude each other: of an empty axis no position is inside.
            let never = more.iter().any(|f| self.forms.upper(f, &more) < 0);
            self.contexts.push(more);
            (!never).then(|| self.contexts.len() - 1)
        };
        self.known.insert((context, condition, answer), inside);
        inside
    }

    fn access(&mut self, what: &'static str, param: ParamId, index: ExprId, context: usize) {
        let form = self.forms.of(index);
        let given = &self.contexts[context];
        let (low, high) = (self.forms.lower(&form, given), self.forms.upper(&form, given));
        let elements = self.elements[param];
        if low >= 0 && high < i128::from(elements) {
            return;
        }
        self.found.push(Unproven {
            what,
            param: self.kernel.params[param].name.clone(),
            index: super::print::expr(self.kernel, index),
            low,
            high,
            elements,
        });
    }
}

/// Checks that a convolution's input and filter are as large as its facts say, and that the window gives its output.
fn conv(
    kernel: &Kernel,
    facts: &ConvFacts,
    elements: &Table<ParamId, i64>,
    bindings: &Bindings,
) -> Result<(), BoundsError> {
    let wrong = |what: String| BoundsError::Conv {
        kernel: kernel.name.clone(),
        what,
    };
    let size = |d: &Dim| {
        d.eval(bindings).map_err(|error| BoundsError::Size {
            kernel: kernel.name.clone(),
            error,
        })
    };
    let sizes = |dims: &[Dim]| dims.iter().map(size).collect::<Result<Vec<i64>, BoundsError>>();
    let (input, output) = (sizes(&facts.input_size)?, sizes(&facts.output_size)?);
    let (batch, channels, filters) = (size(&facts.batch)?, size(&facts.channels)?, size(&facts.filters)?);
    if input
        .iter()
        .chain(&output)
        .chain([&batch, &channels, &filters])
        .any(|s| *s < 0)
    {
        return Err(wrong("has a size below 0".to_owned()));
    }
    if channels % facts.groups != 0 || filters % facts.groups != 0 {
        return Err(wrong(format!(
            "splits {channels} channels and {filters} filters into {} groups",
            facts.groups
        )));
    }
    let product = |sizes: &[i64], others: [i64; 2]| {
        let mut all = sizes.iter().copied().chain(others);
        all.try_fold(1i64, i64::checked_mul)
    };
    let image = product(&input, [batch, channels]);
    let window = product(&facts.kernel_size, [channels / facts.groups, filters]);
    for (param, need) in [(facts.input, image), (facts.filter, window)] {
        if need != Some(elements[param]) {
            return Err(wrong(format!(
                "takes {} elements of {}, which has {}",
                need.map_or("too many".to_owned(), |n| n.to_string()),
                kernel.params[param].name,
                elements[param]
            )));
        }
    }
    if facts.transposed {
        // Outputs that no pixel reaches are sums of nothing.
        return Ok(());
    }
    for axis in 0..input.len() {
        let w = &facts.window;
        let wide = |v: i64| i128::from(v);
        let padded = wide(input[axis]) + wide(w.pad_low[axis]) + wide(w.pad_high[axis]);
        let reach = (wide(output[axis]) - 1) * wide(w.strides[axis])
            + (wide(facts.kernel_size[axis]) - 1) * wide(w.dilations[axis]);
        if output[axis] > 0 && reach >= padded {
            return Err(wrong(format!(
                "reaches element {reach} of {padded} along axis {axis}, padding included"
            )));
        }
    }
    Ok(())
}

impl Kernel {
    fn conv_facts(&self) -> Option<&ConvFacts> {
        match &self.body {
            super::Body::Contract(c) => c.conv.as_ref(),
            _ => None,
        }
    }
}

/// Every expression below these, each once, operands first.
fn below(kernel: &Kernel, of: &[ExprId]) -> Vec<ExprId> {
    let mut seen = vec![false; kernel.exprs.len()];
    let mut stack = of.to_vec();
    while let Some(id) = stack.pop() {
        if !std::mem::replace(&mut seen[id.index()], true) {
            kernel.exprs[id].for_each_operand(|o| stack.push(o));
        }
    }
    (0..seen.len()).filter(|i| seen[*i]).map(ExprId::new).collect()
}
