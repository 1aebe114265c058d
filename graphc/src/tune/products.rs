//! Which products a plan has, and at which sizes of the model each is measured.
//!
//! A product whose rows are known is one line of [`tuning::product`], measured at the symbols' hints. One whose rows
//! the model leaves open is a line for each range of rows ([`tuning::product_in`]), measured at sizes that give its
//! first number of rows and that in the middle. A convolution that is no product (each channel with a filter of its
//! own), or two launches, has a line and one candidate, beside which there may be calls.

use std::collections::BTreeMap;

use indexmap::IndexSet;
use ir::kernel::Mapping;
use ir::plan::{Step, StepId};
use ir::{Bindings, Dim, Entity, Kernel, Plan};
use passes::{Convolution, tuning};

/// How many times its hint a size is at most, where the model declares no largest one.
const OVER_HINT: i64 = 4;

/// How many sizes are tried from one on until the plan works at one.
const TRIES: i64 = 64;

/// Of so many candidates one shares out the depth of tiles, while there are such.
const SHARED_EVERY: usize = 4;

/// A product that a step of a plan computes.
#[derive(Clone, Debug)]
pub struct OfStep {
    pub step: StepId,
    /// What rows of measurements know it by.
    pub line: String,
    pub kernel: String,
    /// The mappings that it can have, the one predicted to be fastest first. Those that share out the depth of tiles
    /// ([`tuning::sharings`]) are among the others: by prediction alone they would be first too often.
    pub candidates: Vec<String>,
    /// The sizes at which it is measured.
    pub sizes: Vec<Bindings>,
}

/// Lists the products of a plan by their steps, and the convolutions. Ranges of rows that no sizes of the model give
/// are left out.
pub fn of_plan(plan: &Plan, convolutions: &[Convolution]) -> Vec<OfStep> {
    let mut found = Vec::new();
    let (symbols, target) = (&plan.symbols, &plan.target);
    // Two tilings of a target may print as one, since they are one for these operands.
    let texts = |all: Vec<Mapping>| -> Vec<String> {
        let all: IndexSet<String> = all.iter().map(ToString::to_string).collect();
        all.into_iter().collect()
    };
    let of_known = |kernel: &Kernel| -> Vec<String> {
        let mut all = texts(tuning::candidates(kernel, symbols, target));
        for (nth, shared) in texts(tuning::sharings(kernel, symbols, target)).into_iter().enumerate() {
            all.insert(all.len().min((nth + 1) * SHARED_EVERY - 1), shared);
        }
        all
    };
    for (step, work) in plan.steps.iter() {
        let Some(kernel) = work.kernels().next().map(|id| &plan.kernels[id]) else {
            continue;
        };
        let Some((rows, firsts)) = tuning::open_rows(kernel, symbols, target) else {
            if let Some(line) = tuning::product(kernel, symbols, target) {
                found.push(OfStep {
                    step,
                    line,
                    kernel: kernel.name.clone(),
                    candidates: of_known(kernel),
                    sizes: vec![ir::dim::hints(symbols)],
                });
            }
            continue;
        };
        for from in firsts {
            let sizes = sizes_in(plan, &rows, from);
            let line = tuning::product_in(kernel, symbols, target, from).filter(|_| !sizes.is_empty());
            found.extend(line.map(|line| OfStep {
                step,
                line,
                kernel: kernel.name.clone(),
                candidates: texts(tuning::candidates_in(kernel, symbols, target, from)),
                sizes,
            }));
        }
    }
    for one in convolutions {
        let step = one
            .steps
            .first()
            .filter(|_| !found.iter().any(|of| of.line == one.product));
        found.extend(step.map(|step| OfStep {
            step: *step,
            line: one.product.clone(),
            kernel: one.kernel.clone(),
            candidates: vec![one.mapping.clone()],
            sizes: vec![ir::dim::hints(symbols)],
        }));
    }
    found
}

/// Steps that compute a product together, one after the other, by a mapping.
pub struct Computed {
    pub steps: Vec<StepId>,
    pub line: String,
    pub mapping: String,
}

/// Lists what computes the products of a plan at some sizes.
pub fn computed(plan: &Plan, convolutions: &[Convolution], sizes: &Bindings) -> Vec<Computed> {
    let of_step = |(id, step)| {
        let (kernel, line) = at(plan, step, sizes)?;
        Some(Computed {
            steps: vec![id],
            line,
            mapping: kernel.mapping.to_string(),
        })
    };
    let mut all: Vec<Computed> = plan.steps.iter().filter_map(of_step).collect();
    for one in convolutions.iter().filter(|one| one.call.is_none()) {
        if !all.iter().any(|known| known.line == one.product) {
            all.push(Computed {
                steps: one.steps.clone(),
                line: one.product.clone(),
                mapping: one.mapping.clone(),
            });
        }
    }
    all
}

/// Finds for each step of a plan the same step of another plan that differs in its convolutions alone: one may take
/// more steps in the one plan than in the other. The steps of convolutions are left out.
pub fn aligned(steps: usize, [ours, theirs]: [&[Convolution]; 2]) -> BTreeMap<StepId, StepId> {
    let mut same = BTreeMap::new();
    let mut convolutions = ours.iter().zip(theirs).peekable();
    let (mut from, mut to) = (0, 0);
    while from < steps {
        let id = StepId::new(from);
        if let Some((our, their)) = convolutions.next_if(|(our, _)| our.steps.first() == Some(&id)) {
            (from, to) = (from + our.steps.len(), to + their.steps.len());
            continue;
        }
        same.insert(id, StepId::new(to));
        (from, to) = (from + 1, to + 1);
    }
    same
}

/// Returns the kernel that a step launches at some sizes and the line of its product there.
pub fn at<'p>(plan: &'p Plan, step: &Step, sizes: &Bindings) -> Option<(&'p Kernel, String)> {
    let (symbols, target) = (&plan.symbols, &plan.target);
    let kernel = &plan.kernels[step.at(sizes).ok()?.kernel()?];
    let line = match tuning::open_rows(kernel, symbols, target) {
        None => tuning::product(kernel, symbols, target),
        Some((rows, firsts)) => {
            let rows = rows.eval(sizes).ok()?;
            let from = firsts.iter().rfind(|from| **from <= rows).or(firsts.first())?;
            tuning::product_in(kernel, symbols, target, *from)
        }
    };
    Some((kernel, line?))
}

/// Finds sizes of a model at which `rows` is `from` and one and a half times as much, or the next that the model has
/// below twice `from`.
fn sizes_in(plan: &Plan, rows: &Dim, from: i64) -> Vec<Bindings> {
    let mut found: Vec<Bindings> = Vec::new();
    for least in [from, from + from / 2] {
        let sizes = sizes_for(plan, rows, least, from.saturating_mul(2));
        found.extend(sizes.filter(|sizes| !found.contains(sizes)));
    }
    found
}

/// Finds sizes at which `rows` is at least `least` and below `end`: symbol by symbol, from the hints on. A symbol that
/// alone cannot give so few rows, or so many, is at its bound, and the next one is looked at.
fn sizes_for(plan: &Plan, rows: &Dim, least: i64, end: i64) -> Option<Bindings> {
    let mut sizes = ir::dim::hints(&plan.symbols);
    let mut mentioned = Vec::new();
    rows.collect_symbols(&mut mentioned);
    for (symbol, info) in plan.symbols.iter().filter(|(symbol, _)| mentioned.contains(symbol)) {
        let rows_at = |sizes: &mut Bindings, size: i64| {
            sizes.insert(symbol.clone(), size);
            rows.eval(sizes).unwrap_or(i64::MAX)
        };
        let first = info.min.max(1);
        let most = info
            .max
            .unwrap_or_else(|| info.hint.saturating_mul(OVER_HINT))
            .max(first);
        // Rows grow with every size: the first that gives enough, or the bound.
        let (mut low, mut high) = (first, most);
        while low < high {
            let middle = low + (high - low) / 2;
            match rows_at(&mut sizes, middle) >= least {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        // Where the plan works at multiples alone, the next one is near.
        for size in low..=low.saturating_add(TRIES).min(most) {
            let given = rows_at(&mut sizes, size);
            if (least..end).contains(&given) && plan.check_sizes(&sizes).is_ok() {
                return Some(sizes);
            }
            if given >= end {
                break;
            }
        }
        sizes.insert(symbol.clone(), low);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(symbols: &str, shape: &str) -> Plan {
        let text = format!(
            "graph @g stage=import {{\n {symbols}\n x = input \"x\" : f16[{shape}, 64]\n w = input \"w\" : f16[64, 64]\n y = contract x, w\n \
             return y as \"y\"\n}}\n"
        );
        let graph = ir::graph::parse::parse(&text).expect("parses");
        let target: ir::Target = "gfx90a".parse().expect("known");
        let options = crate::driver::BuildOptions::new(vec![target], passes::OptLevel::O2);
        let program = crate::driver::build(&graph, &options).expect("builds").program;
        program.variants[0].plan.clone()
    }

    /// The sizes of each range, as text.
    fn sizes(symbols: &str, shape: &str) -> Vec<String> {
        let of_step = |found: OfStep| {
            let sizes = found.sizes.iter().map(|sizes| {
                let each: Vec<String> = sizes.iter().map(|(symbol, size)| format!("{symbol}={size}")).collect();
                each.join(" ")
            });
            let range = found.line.split(['[', ']']).nth(1).unwrap_or_default().to_owned();
            format!("{range}: {}", sizes.collect::<Vec<_>>().join(", "))
        };
        of_plan(&plan(symbols, shape), &[]).into_iter().map(of_step).collect()
    }

    #[test]
    fn ranges_are_measured_at_their_first_size_and_in_the_middle() {
        assert_eq!(
            sizes("symbol n: 1..9 hint 4", "n"),
            [
                "1, 1..2, 64, 64: n=1",
                "1, 2..4, 64, 64: n=2, n=3",
                "1, 4..8, 64, 64: n=4, n=6",
                "1, 8..16, 64, 64: n=8"
            ]
        );
        // Without a declared maximum, to four times the hint.
        assert_eq!(
            sizes("symbol n: 3.. hint 4", "n").last().map(String::as_str),
            Some("1, 16..32, 64, 64: n=16")
        );
    }

    #[test]
    fn rows_of_several_symbols_take_them_in_turn() {
        assert_eq!(
            sizes("symbol b: 1..4 hint 2\n symbol s: 4..8 hint 8", "b, s"),
            [
                "1, 4..8, 64, 64: b=1 s=4, b=1 s=6",
                "1, 8..16, 64, 64: b=1 s=8, b=2 s=6",
                "1, 16..32, 64, 64: b=2 s=8, b=3 s=8",
                "1, 32..64, 64, 64: b=4 s=8"
            ]
        );
    }
}
