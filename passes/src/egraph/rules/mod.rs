//! The rules of the e-graph: a name, a pattern, what equals it, and the numbers that the pattern's variables must be.
//!
//! All of them also ask that both sides have the same type, so a number that would broadcast its operand never matches.

pub mod activations;
pub mod algebra;

use egg::{Applier, Id, Pattern, PatternAst, Rewrite, Subst, Symbol, Var};

use super::language::{Enode, Graph, Region};

/// A rule as data.
#[derive(Clone, Debug)]
pub struct Spec {
    pub name: &'static str,
    pub from: String,
    pub to: String,
    /// Variables and the numbers they must be (within 1e-6 of their size).
    pub numbers: Vec<(&'static str, f64)>,
}

/// Returns all rules.
pub fn all() -> Vec<Spec> {
    activations::rules().into_iter().chain(algebra::rules()).collect()
}

/// Compiles the rules that are enabled.
///
/// # Panics
/// Never for the rules of this module: a test compiles them all.
pub fn compile<'a>(enabled: impl Fn(&str) -> bool) -> Vec<Rewrite<Enode, Region<'a>>> {
    all()
        .into_iter()
        .enumerate()
        .filter(|(_, s)| enabled(s.name))
        .filter_map(|(i, s)| rewrite(i, &s).ok())
        .collect()
}

/// Compiles one rule.
///
/// # Errors
/// A pattern that does not parse, or variables on the right that the left does not bind.
pub fn rewrite<'a>(index: usize, spec: &Spec) -> Result<Rewrite<Enode, Region<'a>>, String> {
    let from: Pattern<Enode> = spec.from.parse().map_err(|e| format!("{}: {e}", spec.name))?;
    let to: Pattern<Enode> = spec.to.parse().map_err(|e| format!("{}: {e}", spec.name))?;
    let numbers: Result<Vec<(Var, f64)>, String> = spec
        .numbers
        .iter()
        .map(|(v, n)| v.parse().map(|v| (v, *n)).map_err(|e| format!("{}: {e}", spec.name)))
        .collect();
    let applier = Checked {
        name: spec.name,
        to,
        numbers: numbers?,
    };
    // Spellings of one rule share its name in reports; egg wants each to have its own.
    Rewrite::new(format!("{}.{index}", spec.name), from, applier)
}

/// Applies a pattern where the numbers and the types are right, and notes which rule joined the class.
struct Checked {
    name: &'static str,
    to: Pattern<Enode>,
    numbers: Vec<(Var, f64)>,
}

impl<'a> Applier<Enode, Region<'a>> for Checked {
    fn apply_one(
        &self,
        egraph: &mut Graph<'a>,
        class: Id,
        subst: &Subst,
        _: Option<&PatternAst<Enode>>,
        _: Symbol,
    ) -> Vec<Id> {
        let holds = self.numbers.iter().all(|(var, want)| {
            let number = subst.get(*var).and_then(|id| egraph[*id].data.number);
            number.is_some_and(|n| (n - want).abs() <= 1e-6 * want.abs())
        });
        if !holds {
            return Vec::new();
        }
        let nodes_before = egraph.total_number_of_nodes();
        let made = egraph.add_instantiation(&self.to.ast, subst);
        if egraph.find(made) == egraph.find(class) {
            return Vec::new();
        }
        // A class that the rewrite made and that has another type stays apart, unused.
        if egraph[made].data.ty.is_none() || egraph[made].data.ty != egraph[class].data.ty {
            return Vec::new();
        }
        if egraph.union_trusted(class, made, self.name) || egraph.total_number_of_nodes() > nodes_before {
            egraph.analysis.applied.entry(made).or_insert(self.name);
            return vec![class];
        }
        Vec::new()
    }

    fn vars(&self) -> Vec<Var> {
        self.to.vars()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_compiles_and_is_named_once_per_spelling() {
        for (i, spec) in all().into_iter().enumerate() {
            rewrite(i, &spec).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}
