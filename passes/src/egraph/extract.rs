//! Chooses one e-node a class, counting what is shared once.
//!
//! Greedy: each class keeps the cheapest set of classes that computes it, found from its children's sets; a set's cost is
//! the sum over its members, so sharing within it is counted once. Sets are bounded by the region, which makes the whole
//! linear in the graph. (Optimal DAG extraction is NP-hard; a tree extractor would count shared operands many times.)

use std::collections::HashMap;

use egg::{Id, Language};

use super::language::{Enode, Graph};

/// The choice for one class.
#[derive(Clone, Debug)]
pub struct Choice {
    pub enode: Enode,
    pub total: f64,
    /// `(class, its own e-node's cost)`, sorted by class.
    set: Vec<(Id, f64)>,
}

/// Chooses an e-node for every class that has one; `cost` is infinite for an e-node that must not be chosen.
pub fn extract(egraph: &Graph<'_>, cost: impl Fn(&Enode) -> f64) -> HashMap<Id, Choice> {
    let mut order: Vec<Id> = egraph.classes().map(|c| c.id).collect();
    order.sort_unstable();
    let mut best: HashMap<Id, Choice> = HashMap::with_capacity(order.len());
    // Children mostly have smaller ids, so few rounds settle; cycles cannot lower a cost for ever.
    for _ in 0..12 {
        let mut changed = false;
        for class in &order {
            let mut enodes: Vec<&Enode> = egraph[*class].nodes.iter().collect();
            enodes.sort_unstable();
            for enode in enodes {
                let Some(choice) = candidate(egraph, &best, *class, enode, &cost) else {
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
    best
}

fn candidate(
    egraph: &Graph<'_>,
    best: &HashMap<Id, Choice>,
    class: Id,
    enode: &Enode,
    cost: &impl Fn(&Enode) -> f64,
) -> Option<Choice> {
    let own = cost(enode);
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
    Some(Choice {
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
