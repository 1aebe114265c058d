//! Chooses one e-node a class, counting what is shared once.
//!
//! First greedily: each class keeps the cheapest set of classes that computes it, found from its children's sets; a
//! set's cost is the sum over its members, so sharing within it is counted once. Then what a class cannot see by itself
//! is tried, and kept where all that the region's roots need gets cheaper: choices that pay only together ([`Group`]),
//! and for each class its other e-nodes, whose parts somebody else may have paid for. Sets and trials are bounded by
//! the region, which makes all of it linear in the graph. (Optimal DAG extraction is NP-hard; a tree extractor would
//! count shared operands many times.)

use std::collections::HashMap;

use egg::{Id, Language};

use super::language::{Enode, Graph, Group};

/// The e-node chosen for each class, by canonical id.
pub type Choices = HashMap<Id, Enode>;

/// A class's cheapest set so far.
struct Candidate {
    enode: Enode,
    total: f64,
    /// `(class, its own e-node's cost)`, sorted by class.
    set: Vec<(Id, f64)>,
}

/// What an e-node costs over the choices made for its children; infinite where it must not be chosen.
pub trait Cost {
    fn of(&self, enode: &Enode, chosen: &dyn Fn(Id) -> Option<Enode>) -> f64;
}

/// Chooses an e-node for every class that has one. Returns the choices and the groups taken.
pub fn extract<'e>(egraph: &'e Graph<'_>, roots: &[Id], cost: &dyn Cost) -> (Choices, Vec<&'e Group>) {
    let mut best = greedy(egraph, cost);
    let mut taken: Vec<&Group> = Vec::new();
    let mut current = total(egraph, roots, &best, cost);
    for group in &egraph.analysis.groups {
        let changed = |c: &&(Id, Enode)| taken.iter().any(|t| t.members.iter().any(|m| same(egraph, m.0, c.0)));
        if group.members.iter().any(|m| changed(&m)) {
            continue;
        }
        let mut trial = best.clone();
        for (class, enode) in &group.members {
            trial.insert(egraph.find(*class), enode.clone());
        }
        let with = total(egraph, roots, &trial, cost);
        if with < current - 1e-9 {
            (best, current) = (trial, with);
            taken.push(group);
        }
    }
    single_changes(egraph, roots, &mut best, current, cost);
    (best, taken)
}

/// Tries the other e-nodes of each class that the roots need.
fn single_changes(egraph: &Graph<'_>, roots: &[Id], best: &mut Choices, mut current: f64, cost: &dyn Cost) {
    let mut order: Vec<Id> = egraph.classes().map(|c| c.id).collect();
    order.sort_unstable_by(|a, b| b.cmp(a));
    let Some((_, needed)) = reach(egraph, roots, best, cost) else {
        return;
    };
    for class in order {
        let Some(chosen) = best.get(&class).cloned() else {
            continue;
        };
        if !needed.contains_key(&class) {
            continue;
        }
        // Another order of the same operands is no other choice, and what nobody has paid for was compared before.
        let paid = |n: &&Enode| n.children.iter().all(|c| needed.contains_key(&egraph.find(*c)));
        let others = egraph[class].nodes.iter().filter(|n| n.payload != chosen.payload);
        for other in others.filter(paid) {
            let before = best.insert(class, other.clone());
            let with = total(egraph, roots, best, cost);
            if with < current - 1e-9 {
                current = with;
            } else if let Some(before) = before {
                best.insert(class, before);
            }
        }
    }
}

fn same(egraph: &Graph<'_>, a: Id, b: Id) -> bool {
    egraph.find(a) == egraph.find(b)
}

fn greedy(egraph: &Graph<'_>, cost: &dyn Cost) -> Choices {
    let mut order: Vec<Id> = egraph.classes().map(|c| c.id).collect();
    order.sort_unstable();
    let mut best: HashMap<Id, Candidate> = HashMap::with_capacity(order.len());
    // Children mostly have smaller ids, so few rounds settle; cycles cannot lower a cost for ever.
    for _ in 0..12 {
        let mut changed = false;
        for class in &order {
            let mut enodes: Vec<&Enode> = egraph[*class].nodes.iter().collect();
            enodes.sort_unstable();
            for enode in enodes {
                let Some(choice) = candidate(egraph, &best, *class, enode, cost) else {
                    continue;
                };
                let better = best.get(class).is_none_or(|b| choice.total < b.total - 1e-9);
                if better {
                    best.insert(*class, choice);
                    changed = true;
                }
            }
        }
        if !changed {
            break;
        }
    }
    best.into_iter().map(|(class, c)| (class, c.enode)).collect()
}

/// The cost of all that the roots need, each class once; infinite if something has no choice or needs itself.
pub fn total(egraph: &Graph<'_>, roots: &[Id], best: &Choices, cost: &dyn Cost) -> f64 {
    reach(egraph, roots, best, cost).map_or(f64::INFINITY, |(sum, _)| sum)
}

/// The cost, and the classes needed.
fn reach(egraph: &Graph<'_>, roots: &[Id], best: &Choices, cost: &dyn Cost) -> Option<(f64, HashMap<Id, bool>)> {
    let chosen = |id: Id| best.get(&egraph.find(id)).cloned();
    // Entered, and left when all below has been.
    let mut done: HashMap<Id, bool> = HashMap::new();
    let mut stack: Vec<(Id, bool)> = roots.iter().rev().map(|r| (egraph.find(*r), false)).collect();
    let mut sum = 0.0;
    while let Some((class, leaves)) = stack.pop() {
        if leaves {
            done.insert(class, true);
            continue;
        }
        match done.get(&class) {
            Some(true) => continue,
            Some(false) => return None,
            None => done.insert(class, false),
        };
        let enode = best.get(&class)?;
        sum += cost.of(enode, &chosen);
        stack.push((class, true));
        stack.extend(enode.children().iter().map(|c| (egraph.find(*c), false)));
    }
    Some((sum, done))
}

fn candidate(
    egraph: &Graph<'_>,
    best: &HashMap<Id, Candidate>,
    class: Id,
    enode: &Enode,
    cost: &dyn Cost,
) -> Option<Candidate> {
    let chosen = |id: Id| best.get(&egraph.find(id)).map(|c| c.enode.clone());
    let own = cost.of(enode, &chosen);
    if !own.is_finite() {
        return None;
    }
    let mut set: Vec<(Id, f64)> = vec![(class, own)];
    for child in enode.children() {
        let child = best.get(&egraph.find(*child))?;
        if child.set.binary_search_by_key(&class, |e| e.0).is_ok() {
            return None;
        }
        set = union(&set, &child.set);
    }
    let total = set.iter().map(|e| e.1).sum();
    Some(Candidate {
        enode: enode.clone(),
        total,
        set,
    })
}

fn union(a: &[(Id, f64)], b: &[(Id, f64)]) -> Vec<(Id, f64)> {
    let mut out = Vec::with_capacity(a.len() + b.len());
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        match a[i].0.cmp(&b[j].0) {
            std::cmp::Ordering::Less => {
                out.push(a[i]);
                i += 1;
            }
            std::cmp::Ordering::Greater => {
                out.push(b[j]);
                j += 1;
            }
            std::cmp::Ordering::Equal => {
                out.push(a[i]);
                i += 1;
                j += 1;
            }
        }
    }
    out.extend_from_slice(&a[i..]);
    out.extend_from_slice(&b[j..]);
    out
}
