//! What keeps the regions acyclic.

use std::collections::HashSet;

use ir::{Entity, NodeId, Value};

use super::Fuser;

/// How many nodes a reachability question may visit before the answer is taken to be "yes".
const VISIT_LIMIT: usize = 4096;

impl Fuser<'_> {
    /// Says whether `value` is computed from a result of draft `target`, each draft taken as one node.
    ///
    /// A group all of whose ids are below the draft's anchor cannot depend on it, which keeps the search short; a search that
    /// is still too long answers yes, which is the safe side.
    pub(super) fn depends_on(&self, value: Value, target: usize) -> bool {
        let floor = self.drafts[target].chain[0];
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
                Some(d) => {
                    let chain = &self.drafts[d].chain;
                    if chain.last().is_some_and(|last| *last < floor) {
                        continue;
                    }
                    for member in chain {
                        seen.insert(*member);
                        stack.extend(self.graph.node(*member).operands.iter().map(|v| v.node));
                    }
                }
                None if id < floor => {}
                None => stack.extend(self.graph.node(id).operands.iter().map(|v| v.node)),
            }
        }
        false
    }

    /// Returns the position of a node in its users' reading, for messages and tests.
    pub(super) fn user_count(&self, id: NodeId) -> usize {
        debug_assert!(id.index() < self.users.len());
        self.users[id].len()
    }
}
