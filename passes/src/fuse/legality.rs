//! What keeps the regions acyclic.

use std::collections::HashSet;

use ir::{Entity, NodeId, Value};

use super::Fuser;

/// How many nodes a reachability question may visit before the answer is taken to be "yes".
const VISIT_LIMIT: usize = 4096;

impl Fuser<'_> {
    /// Says whether `value` is computed from a result of draft `target`, each draft taken as one node.
    ///
    /// What lies before the draft's [stretch](Fuser::stretch) cannot depend on it, which keeps the search short; a
    /// search that is still too long answers yes, which is the safe side.
    pub(super) fn depends_on(&self, value: Value, target: usize) -> bool {
        let anchor = self.drafts[target].chain[0];
        let floor = match self.stretch {
            Some((first, last)) if anchor <= last => first,
            _ => anchor,
        };
        let mut seen: HashSet<NodeId> = HashSet::new();
        let mut stack = vec![value.node];
        while let Some(id) = stack.pop() {
            if !seen.insert(id) {
                continue;
            }
            if seen.len() > VISIT_LIMIT {
                return true;
            }
            match self.draft_of(id) {
                Some(d) if d == target => return true,
                _ if id < floor => {}
                Some(d) => {
                    for member in &self.drafts[d].chain {
                        seen.insert(*member);
                        stack.extend(self.graph.node(*member).operands.iter().map(|v| v.node));
                    }
                }
                None => stack.extend(self.graph.node(id).operands.iter().map(|v| v.node)),
            }
        }
        false
    }

    /// Joins a draft that has stopped growing to the stretch that it reaches into, or begins a new one.
    pub(super) fn extend_stretch(&mut self, draft: usize) {
        let chain = &self.drafts[draft].chain;
        let (Some(first), Some(last)) = (chain.iter().min(), chain.iter().max()) else {
            return;
        };
        self.stretch = match self.stretch {
            Some((start, end)) if *first <= end => Some((start, end.max(*last))),
            _ => Some((*first, *last)),
        };
    }

    /// Returns the position of a node in its users' reading, for messages and tests.
    pub(super) fn user_count(&self, id: NodeId) -> usize {
        debug_assert!(id.index() < self.users.len());
        self.users[id].len()
    }
}
