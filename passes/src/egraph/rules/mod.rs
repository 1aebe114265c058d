//! The rules of the e-graph.
//!
//! Most are a name, a pattern, what equals it, and the numbers that the pattern's variables must be ([`Spec`]). A whole
//! of many ops with optional parts is a [`Recognizer`]: a function that reads the e-nodes of a class and answers with
//! the term that it saw and the one that equals it. Both kinds ask that the two sides have the same type, so a number
//! that would broadcast its operand never matches; both leave a proof, which egg keeps.

pub mod activations;
pub mod algebra;
pub mod attention;
pub mod epilogue;
mod library_epilogue;
pub mod merge;
pub mod norms;
pub mod softmax;

use egg::{Applier, Id, Pattern, PatternAst, Rewrite, SearchMatches, Searcher, Subst, Symbol, Var};
use half::{bf16, f16};
use ir::convert::round_to;
use ir::{DType, Op};

use super::language::{Enode, Graph, Region};
use super::term::{Found, Reader, Term};

/// The rule that swaps operands, which is no news to anybody.
pub const COMMUTE: &str = "commute";

/// The rule whose calls are hipBLASLt's.
pub const HIPBLASLT: &str = library_epilogue::HIPBLASLT.name;
/// The rule of the library that has products alone.
pub const ROCBLAS: &str = "rocblas";
/// The rule that puts a convolution of MIOpen beside a generated one.
pub const MIOPEN: &str = "miopen";

/// Says whether an op is one that every match of a rule has and that most graphs have few of. Regions without any are
/// copied as they are.
pub type Sign = fn(&Op) -> bool;

/// A rule as data.
#[derive(Clone, Debug)]
pub struct Spec {
    pub name: &'static str,
    pub sign: Sign,
    pub from: String,
    pub to: String,
    /// Variables and the numbers they must be, as far as their type can say them ([`is_about`]).
    pub numbers: Vec<(&'static str, f64)>,
}

/// A rule as a function.
#[derive(Clone, Copy)]
pub struct Recognizer {
    pub name: &'static str,
    pub sign: Sign,
    /// Returns every match whose whole is the class.
    pub find: fn(Reader<'_, '_>, Id) -> Vec<Found>,
}

/// A compiled rule.
pub type Rule<'a> = Rewrite<Enode, Region<'a>>;

/// Returns the rules with patterns.
pub fn specs() -> Vec<Spec> {
    activations::rules().into_iter().chain(algebra::rules()).collect()
}

/// Returns the recognisers.
pub fn recognizers() -> impl Iterator<Item = Recognizer> {
    [norms::RULES, softmax::RULES, attention::RULES]
        .into_iter()
        .flatten()
        .copied()
}

/// Returns the signs of the rules of recognition and choice.
pub fn signs() -> Vec<Sign> {
    let specs = specs().into_iter().map(|s| s.sign);
    specs
        .chain(recognizers().map(|r| r.sign))
        .chain([merge::SIGN])
        .collect()
}

/// Returns the signs of the rules of products and their epilogues; `asked` as for [`compile_routes`].
pub fn route_signs(asked: bool) -> Vec<Sign> {
    let asked = epilogue::ASKED.iter().filter(|_| asked);
    let all = epilogue::LIBRARIES.iter().chain(asked).chain([&epilogue::EPILOGUE]);
    all.map(|r| r.sign).collect()
}

/// Returns the names of all rules, each once.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&'static str> = recognizers().map(|r| r.name).collect();
    names.extend(specs().iter().map(|s| s.name));
    names.push(merge::NAME);
    let routes = epilogue::LIBRARIES.iter().chain(epilogue::ASKED);
    names.extend(routes.chain([&epilogue::EPILOGUE]).map(|r| r.name));
    names.dedup();
    names
}

/// Compiles the rules of products and their epilogues that are enabled; `asked` adds the calls that no roofline would
/// choose.
pub fn compile_routes<'a>(enabled: impl Fn(&str) -> bool, libraries: bool, asked: bool) -> Vec<Rule<'a>> {
    let calls = epilogue::LIBRARIES.iter().filter(|_| libraries);
    let asked = epilogue::ASKED.iter().filter(|_| libraries && asked);
    let all = calls
        .chain(asked)
        .chain([&epilogue::EPILOGUE])
        .filter(|r| enabled(r.name));
    all.filter_map(|r| whole(*r).ok()).collect()
}

/// Compiles the rules of recognition and choice that are enabled.
pub fn compile<'a>(enabled: impl Fn(&str) -> bool) -> Vec<Rule<'a>> {
    let specs = specs().into_iter().enumerate().filter(|(_, s)| enabled(s.name));
    let patterns = specs.filter_map(|(i, s)| pattern(i, &s).ok());
    let wholes = recognizers().filter(|r| enabled(r.name)).filter_map(|r| whole(r).ok());
    let merge = enabled(merge::NAME).then(|| merge::rewrite().ok()).flatten();
    patterns.chain(wholes).chain(merge).collect()
}

/// Compiles one rule with a pattern.
///
/// # Errors
/// A pattern that does not parse, or variables on the right that the left does not bind.
pub fn pattern<'a>(index: usize, spec: &Spec) -> Result<Rule<'a>, String> {
    let from: Pattern<Enode> = spec.from.parse().map_err(|e| format!("{}: {e}", spec.name))?;
    let to: Pattern<Enode> = spec.to.parse().map_err(|e| format!("{}: {e}", spec.name))?;
    let numbers: Result<Vec<(Var, f64)>, String> = spec
        .numbers
        .iter()
        .map(|(v, n)| v.parse().map(|v| (v, *n)).map_err(|e| format!("{}: {e}", spec.name)))
        .collect();
    let applier = Checked {
        name: spec.name,
        from: from.ast.clone(),
        to,
        numbers: numbers?,
    };
    // Spellings of one rule share its name in reports; egg wants each to have its own.
    Rewrite::new(format!("{}.{index}", spec.name), from, applier)
}

/// Compiles one recogniser.
///
/// # Errors
/// None that egg has today.
pub fn whole<'a>(recognizer: Recognizer) -> Result<Rule<'a>, String> {
    Rewrite::new(recognizer.name, Whole(recognizer), Whole(recognizer))
}

/// Joins a class with an equal term, if their types agree, with a proof from the term that was seen. Says whether the
/// two were apart.
fn join(egraph: &mut Graph<'_>, class: Id, seen: &Term, equal: &Term, rule: &'static str) -> bool {
    let made = equal.add(egraph);
    if egraph.find(made) == egraph.find(class) || egraph[made].data.ty.is_none() {
        return false;
    }
    // A class that the rewrite made and that has another type stays apart, unused.
    if egraph[made].data.ty != egraph[class].data.ty {
        return false;
    }
    let seen = seen.add(egraph);
    egraph.analysis.joined = true;
    egraph.union_trusted(seen, made, rule)
}

/// Says whether a number of a type is meant to be `want`: within 1e-6 of its size, or in a half type within the type's
/// epsilon (it may be the inverse of a rounded number). A number that a half type has exactly it must be.
fn is_about(number: f64, want: f64, dtype: DType) -> bool {
    let unit = match dtype {
        DType::F16 => f64::from(f16::EPSILON),
        DType::BF16 => f64::from(bf16::EPSILON),
        _ => return (number - want).abs() <= 1e-6 * want.abs(),
    };
    let nearest = round_to(dtype, want);
    number == nearest || (nearest != want && (number - want).abs() <= unit * want.abs())
}

/// Applies a pattern where the numbers and the types are right.
struct Checked {
    name: &'static str,
    from: PatternAst<Enode>,
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
            let data = subst.get(*var).map(|id| &egraph[*id].data);
            let typed = data.and_then(|data| data.number.zip(data.ty.as_ref()));
            typed.is_some_and(|(number, ty)| is_about(number, *want, ty.dtype))
        });
        if !holds {
            return Vec::new();
        }
        let nodes_before = egraph.total_number_of_nodes();
        let made = egraph.add_instantiation(&self.to.ast, subst);
        if egraph.find(made) == egraph.find(class) {
            return Vec::new();
        }
        // As in `join`.
        if egraph[made].data.ty.is_none() || egraph[made].data.ty != egraph[class].data.ty {
            return Vec::new();
        }
        let (_, apart) = egraph.union_instantiations(&self.from, &self.to.ast, subst, self.name);
        egraph.analysis.joined |= self.name != COMMUTE;
        match apart || egraph.total_number_of_nodes() > nodes_before {
            true => vec![class],
            false => Vec::new(),
        }
    }

    fn vars(&self) -> Vec<Var> {
        self.to.vars()
    }
}

/// A recogniser as both halves of an egg rule: the search only says where there is something.
struct Whole(Recognizer);

impl<'a> Searcher<Enode, Region<'a>> for Whole {
    fn search_eclass_with_limit(&self, egraph: &Graph<'a>, class: Id, _: usize) -> Option<SearchMatches<'_, Enode>> {
        let found = (self.0.find)(Reader { egraph }, class);
        (!found.is_empty()).then(|| SearchMatches {
            eclass: class,
            substs: vec![Subst::default()],
            ast: None,
        })
    }

    fn search_with_limit(&self, egraph: &Graph<'a>, limit: usize) -> Vec<SearchMatches<'_, Enode>> {
        let mut classes: Vec<Id> = egraph.classes().map(|c| c.id).collect();
        classes.sort_unstable();
        let found = classes
            .into_iter()
            .filter_map(|class| self.search_eclass_with_limit(egraph, class, limit));
        found.collect()
    }

    fn vars(&self) -> Vec<Var> {
        Vec::new()
    }
}

impl<'a> Applier<Enode, Region<'a>> for Whole {
    fn apply_one(
        &self,
        egraph: &mut Graph<'a>,
        class: Id,
        _: &Subst,
        _: Option<&PatternAst<Enode>>,
        _: Symbol,
    ) -> Vec<Id> {
        let found = (self.0.find)(Reader { egraph }, class);
        let joined = found
            .iter()
            .filter(|f| join(egraph, class, &f.seen, &f.equal, self.0.name))
            .count();
        if joined > 0 { vec![class] } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use ir::op::{BinaryOp, Contract, UnaryOp};

    use super::*;

    #[test]
    fn every_rule_compiles() {
        for (i, spec) in specs().into_iter().enumerate() {
            pattern(i, &spec).unwrap_or_else(|e| panic!("{e}"));
        }
        let all = specs().len() + recognizers().count() + 1;
        assert_eq!(all, compile(|_| true).len());
    }

    /// A pattern whose sign is not in it would never be looked for.
    #[test]
    fn every_pattern_has_its_sign() {
        let unary = UnaryOp::ALL.iter().map(|op| (op.name(), Op::unary(*op)));
        let binary = BinaryOp::ALL.iter().map(|op| (op.name(), Op::binary(*op)));
        let product = Op::Contract(Contract {
            transpose_lhs: false,
            transpose_rhs: false,
            out: DType::F32,
        });
        let ops: Vec<(&str, Op)> = unary.chain(binary).chain([("matmul.", product)]).collect();
        for spec in specs().into_iter().filter(|spec| spec.name != COMMUTE) {
            let (name, _) = ops.iter().find(|(_, op)| (spec.sign)(op)).expect("an op");
            assert!(spec.from.contains(&format!("({name}")), "{}: {}", spec.name, spec.from);
        }
    }
}
