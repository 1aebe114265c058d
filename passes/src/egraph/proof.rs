//! Why a class may be computed as it was chosen: egg's explanation as steps that a person can read.
//!
//! A step is one rule: the term before it and the term after it, their common operands named by letters.
//!
//! ```text
//! softmax: div(exp(sub(a, max(a))), sum(exp(sub(a, max(a))))) = softmax(a)
//! ```

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use egg::{Explanation, Symbol, TreeTerm};
use indexmap::IndexSet;
use ir::Op;
use ir::op::Composite;

use super::language::{Enode, Made, Payload, Region};
use crate::report::ProofStep;

/// Terms are cut off below this depth, and after this many ops.
const MAX_DEPTH: usize = 12;
const MAX_OPS: usize = 64;
/// A proof says no more than this many steps.
const MAX_STEPS: usize = 32;

/// Returns the steps of an explanation, first to last.
pub fn steps(region: &Region<'_>, explanation: &Explanation<Enode>) -> Vec<ProofStep> {
    let mut reader = Steps {
        terms: Terms {
            region,
            table: IndexSet::new(),
            first: HashMap::new(),
            last: HashMap::new(),
        },
        walked: HashSet::new(),
        out: Vec::new(),
    };
    reader.walk(&explanation.explanation_trees);
    reader.out
}

type Tree = TreeTerm<Enode>;

struct Steps<'r, 'a> {
    terms: Terms<'r, 'a>,
    walked: HashSet<*const Tree>,
    out: Vec<ProofStep>,
}

impl Steps<'_, '_> {
    fn walk(&mut self, trees: &[Rc<Tree>]) {
        for (i, tree) in trees.iter().enumerate() {
            let rule: Option<(Symbol, bool)> = match (tree.forward_rule, tree.backward_rule) {
                (Some(rule), _) => Some((rule, true)),
                (None, rule) => rule.map(|rule| (rule, false)),
            };
            if let (Some((rule, forward)), Some(before)) = (rule, i.checked_sub(1).map(|i| &trees[i])) {
                let (from, to) = (self.terms.of(before, false), self.terms.of(tree, true));
                let (from, to) = self.terms.write(from, to);
                self.push(ProofStep {
                    rule: rule.as_str(),
                    forward,
                    from,
                    to,
                });
            }
            if self.walked.insert(Rc::as_ptr(tree)) {
                for proof in &tree.child_proofs {
                    self.walk(proof);
                }
            }
        }
    }

    fn push(&mut self, step: ProofStep) {
        let trivial = step.rule == super::rules::COMMUTE;
        if !trivial && self.out.len() < MAX_STEPS && !self.out.contains(&step) {
            self.out.push(step);
        }
    }
}

/// Terms with equal ones at one index.
struct Terms<'r, 'a> {
    region: &'r Region<'a>,
    table: IndexSet<(Payload, Vec<usize>)>,
    /// The term that a tree starts as, and ends as.
    first: HashMap<*const Tree, usize>,
    last: HashMap<*const Tree, usize>,
}

impl Terms<'_, '_> {
    fn of(&mut self, tree: &Rc<Tree>, first: bool) -> usize {
        let key = Rc::as_ptr(tree);
        let known = if first {
            self.first.get(&key)
        } else {
            self.last.get(&key)
        };
        if let Some(known) = known {
            return *known;
        }
        let children = tree
            .child_proofs
            .iter()
            .filter_map(|proof| if first { proof.first() } else { proof.last() })
            .map(|child| self.of(child, first))
            .collect();
        let term = self.table.insert_full((tree.node.payload, children)).0;
        let memo = if first { &mut self.first } else { &mut self.last };
        memo.insert(key, term);
        term
    }

    /// Writes two terms, with a letter for each operand of the one that is a part of the other.
    fn write(&self, from: usize, to: usize) -> (String, String) {
        let (in_from, in_to) = (self.parts(from), self.parts(to));
        let (mut names, mut seen) = (HashMap::new(), HashSet::new());
        for (whole, other) in [(to, &in_from), (from, &in_to)] {
            self.name(whole, other, &mut names, &mut seen);
        }
        let text = |term| {
            let mut room = MAX_OPS;
            self.text(term, &names, 0, &mut room)
        };
        (text(from), text(to))
    }

    fn parts(&self, term: usize) -> HashSet<usize> {
        let mut parts = HashSet::new();
        let mut stack = vec![term];
        while let Some(term) = stack.pop() {
            if parts.insert(term) {
                stack.extend(&self.table[term].1);
            }
        }
        parts
    }

    /// Names the parts of a term that `other` has too, and nothing below them.
    fn name(
        &self,
        whole: usize,
        other: &HashSet<usize>,
        names: &mut HashMap<usize, String>,
        seen: &mut HashSet<usize>,
    ) {
        let mut stack: Vec<usize> = self.table[whole].1.iter().rev().copied().collect();
        while let Some(term) = stack.pop() {
            if !seen.insert(term) {
                continue;
            }
            let (_, children) = &self.table[term];
            if !other.contains(&term) {
                stack.extend(children.iter().rev());
            } else if !children.is_empty() {
                let n = names.len();
                let letter = char::from(b'a' + (n % 26) as u8);
                let round = if n < 26 { String::new() } else { (n / 26).to_string() };
                names.insert(term, format!("{letter}{round}"));
            }
        }
    }

    fn text(&self, term: usize, names: &HashMap<usize, String>, depth: usize, room: &mut usize) -> String {
        if let Some(name) = names.get(&term) {
            return name.clone();
        }
        let (payload, children) = &self.table[term];
        let label = self.label(*payload);
        if children.is_empty() {
            return label;
        }
        *room = room.saturating_sub(1);
        if depth == MAX_DEPTH || *room == 0 {
            return format!("{label}(…)");
        }
        let children: Vec<String> = children.iter().map(|c| self.text(*c, names, depth + 1, room)).collect();
        format!("{label}({})", children.join(", "))
    }

    fn label(&self, payload: Payload) -> String {
        match payload {
            Payload::Leaf(i) => {
                let (g, value) = (self.region.graph, self.region.leaves[i as usize]);
                let node = g.node(value.node);
                match (&node.op, crate::analysis::known_scalar(g, value)) {
                    (Op::Input { index }, _) => g.inputs()[*index as usize].name.clone(),
                    (_, Some(number)) => format!("{}", number.as_f64()),
                    (Op::Constant(c), _) => g.constants()[*c].name.clone().unwrap_or_else(|| "constant".to_owned()),
                    (op, _) => op.name().to_owned(),
                }
            }
            Payload::Made(i) => match self.region.made.get_index(i as usize) {
                Some(Made::Filled(_, _, bits)) => format!("{}", f64::from_bits(*bits)),
                Some(Made::Joined { parts, .. }) => format!("{} constants joined", parts.len()),
                None => "constant".to_owned(),
            },
            Payload::Fused(i) => match self.region.fused.get_index(i as usize) {
                Some(fused) => {
                    let steps = fused.steps.iter().map(|s| s.op.name());
                    let names: Vec<&str> = std::iter::once(fused.product.name()).chain(steps).collect();
                    format!("one kernel: {}", names.join(" "))
                }
                None => "one kernel".to_owned(),
            },
            payload => match self.region.op(payload) {
                Some(Op::Composite(Composite::Attention { scale, causal, .. })) => {
                    let causal = if causal { ", causal" } else { "" };
                    format!("attention[scale {:?}{causal}]", scale.as_f64())
                }
                Some(op) => op.name().to_owned(),
                None => "?".to_owned(),
            },
        }
    }
}
