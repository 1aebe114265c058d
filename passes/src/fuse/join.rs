//! Readers that join the pointwise region whose result they read, element for element.
//!
//! ```text
//! n3 = concat n1, n2; n4 = cast n3; return n3, n4
//! ```
//!
//! `n3` is stored, for somebody else reads it. A kernel for `n4` would read it again: instead `n4` is computed from the
//! element at hand, and the region stores both. What else the reader reads is there before the region begins, so that
//! regions stay acyclic. GPUs only: there a launch costs more than a second store, and the CPU has direct forms of what
//! copies.
//!
//! ```text
//! n3 = add n1, n2; n4 = rms_norm n3, scale; …; n9 = add n3, n8
//! ```
//!
//! What folds rows takes in the region whose result it folds: a residual stream is added to, stored and normalised by
//! one kernel, which has each row in registers anyway.
//!
//! ```text
//! n3 = concat keys, n1; n4 = concat values, n2; return n3, n4
//! ```
//!
//! Neighbours that read slices of one result, and give results of one shape, are one launch where they are small.

use indexmap::IndexMap;
use ir::schedule::RegionKind;
use ir::{NodeId, Op, Value};

use super::classify::Role;
use super::rows::Row;
use super::{Draft, Fuser, Home};

/// The most values that a pointwise region stores.
const MOST_STORES: usize = 4;
/// The most nodes that make the rows of a region that folds them, and the longest rows: each thread has its part of one
/// in registers.
const MOST_BEFORE: usize = 16;
const LONGEST: i64 = 1 << 14;
/// The most elements of a result whose region takes in a neighbour: with more, a launch is nothing to save.
const SMALL: i64 = 1 << 22;
/// How many of the regions that read the same result are looked at for one to be taken in by.
const NEAR: usize = 8;

impl Fuser<'_> {
    /// Lets each pointwise region take in the regions that only go on with its elements.
    pub(super) fn join_readers(&mut self) {
        if !self.options.fuse || !self.target.is_gpu() {
            return;
        }
        let mut gone = vec![false; self.drafts.len()];
        // In the order of the nodes, so that what has joined a region is not looked at as one of its own.
        for id in self.graph.nodes().keys() {
            let Some(draft) = self.pointwise_root(id) else { continue };
            let mut next = 0;
            while let Some(current) = self.drafts[draft].chain.get(next).copied() {
                next += 1;
                let users: Vec<NodeId> = self.users[current].iter().map(|(user, _)| *user).collect();
                for user in users {
                    if let Some(reader) = self.may_join(draft, user) {
                        let size = self.drafts[reader].size;
                        self.take(draft, &[user]);
                        self.drafts[draft].size += size - 1;
                        gone[reader] = true;
                    }
                }
            }
            self.drafts[draft].chain.sort_unstable();
        }
        self.remove_drafts(&gone);
    }

    /// Lets each region that folds rows take in the pointwise region that makes them, which is stored for others too.
    pub(super) fn join_rows(&mut self) {
        if !self.options.fuse || !self.target.is_gpu() {
            return;
        }
        let mut gone = vec![false; self.drafts.len()];
        for id in self.graph.nodes().keys() {
            let Some(made) = self.pointwise_root(id) else { continue };
            let rows = self.users[id]
                .iter()
                .find_map(|(user, _)| self.may_fold(made, id, *user));
            if let Some(rows) = rows {
                let size = self.drafts[made].size;
                self.take(rows, &[id]);
                self.drafts[rows].size += size - 1;
                gone[made] = true;
            }
        }
        self.remove_drafts(&gone);
    }

    /// Lets each small pointwise region take in those that read nothing else than it does, and have results of its
    /// shape.
    pub(super) fn join_neighbours(&mut self) {
        if !self.options.fuse || !self.target.is_gpu() {
            return;
        }
        let mut gone = vec![false; self.drafts.len()];
        // The small regions that read a result, in the order of the nodes.
        let mut readers: IndexMap<Value, Vec<usize>> = IndexMap::new();
        for id in self.graph.nodes().keys() {
            let Some(draft) = self.pointwise_root(id).filter(|_| self.is_small(id)) else {
                continue;
            };
            let mut inputs = self.contents(draft).inputs;
            inputs.retain(|v| self.role(v.node) != Role::Leaf);
            let before = inputs.first().and_then(|v| readers.get(v));
            let mut near = before.into_iter().flat_map(|all| all.iter().rev().take(NEAR));
            let neighbour = near.find(|of| self.may_be_one(**of, draft, id, &inputs));
            if let Some(&neighbour) = neighbour {
                let size = self.drafts[draft].size;
                self.take(neighbour, &[id]);
                self.drafts[neighbour].size += size - 1;
                self.drafts[neighbour].chain.sort_unstable();
                gone[draft] = true;
                continue;
            }
            for input in inputs {
                readers.entry(input).or_default().push(draft);
            }
        }
        self.remove_drafts(&gone);
    }

    fn is_small(&self, id: NodeId) -> bool {
        let shape = &self.graph.ty(Value::from(id)).shape;
        shape.elements().hint(self.graph.symbols()) <= SMALL
    }

    /// Says whether the region `before` can compute another one's root as well: both have results of one shape, and the
    /// other one's `inputs`, beside the graph's own, are among its own.
    fn may_be_one(&self, before: usize, draft: usize, root: NodeId, inputs: &[Value]) -> bool {
        let chain = &self.drafts[before].chain;
        let shape = |id: NodeId| &self.graph.ty(Value::from(id)).shape;
        let full = self.drafts[before].size + self.drafts[draft].size > self.options.region_limit;
        if chain.len() >= MOST_STORES || full || shape(chain[0]) != shape(root) {
            return false;
        }
        let own = self.contents(before).inputs;
        inputs.iter().all(|v| own.contains(v))
    }

    /// Returns the region that folds the rows of a pointwise region's result, where it can make them itself: nothing
    /// else that it reads depends on them.
    fn may_fold(&self, made: usize, id: NodeId, anchor: NodeId) -> Option<usize> {
        let rows = self.draft_of(anchor)?;
        let node = self.graph.node(anchor);
        let is_anchor = self.drafts[rows].chain.first() == Some(&anchor);
        if !is_anchor || !matches!(node.op, Op::Composite(_)) || node.operands.first() != Some(&Value::from(id)) {
            return None;
        }
        // Two such results in one region would be two rows.
        let is_first = self.drafts[rows].chain.iter().all(|other| *other >= anchor);
        let row = Row::of(self.graph, anchor)?;
        let symbols = self.graph.symbols();
        let rows_count = row.folded.elements().hint(symbols).max(1);
        let length = row.shape.elements().hint(symbols) / rows_count;
        let size = self.drafts[made].size;
        let is_full = size > MOST_BEFORE || size + self.drafts[rows].size > self.options.region_limit;
        if !is_first || is_full || length > LONGEST {
            return None;
        }
        let depends = |value: &Value| value.node != id && self.reaches(*value, &[id]);
        let theirs = self.contents(rows);
        (!theirs.inputs.iter().any(depends)).then_some(rows)
    }

    /// Returns the pointwise region that has the node as its one root.
    fn pointwise_root(&self, id: NodeId) -> Option<usize> {
        let draft = self.draft_of(id)?;
        let Draft { kind, chain, .. } = &self.drafts[draft];
        (*kind == RegionKind::Pointwise && chain[..] == [id]).then_some(draft)
    }

    /// Returns the region of a reader that can be computed from the elements of a region: it is elementwise in the same
    /// shape, and all else that it reads is an input, a constant or what the region reads too.
    fn may_join(&self, draft: usize, user: NodeId) -> Option<usize> {
        let reader = self.pointwise_root(user).filter(|reader| *reader != draft)?;
        let chain = &self.drafts[draft].chain;
        let node = self.graph.node(user);
        let shape = &self.graph.ty(Value::from(chain[0])).shape;
        let full = self.drafts[draft].size + self.drafts[reader].size > self.options.region_limit;
        if !matches!(node.op, Op::Elementwise(_)) || node.results[0].shape != *shape || full {
            return None;
        }
        if chain.len() >= MOST_STORES {
            return None;
        }
        let (own, theirs) = (self.contents(draft), self.contents(reader));
        let at_hand = |v: &Value| chain.contains(&v.node);
        let is_there = |v: &Value| at_hand(v) || self.role(v.node) == Role::Leaf || own.inputs.contains(v);
        // What it makes on the way in of the region's result would be other elements than the one at hand.
        let moved = |id: &NodeId| *id != user && self.graph.node(*id).operands.iter().any(at_hand);
        let joins = theirs.inputs.iter().all(is_there) && !theirs.nodes.iter().any(moved);
        joins.then_some(reader)
    }

    /// Takes drafts that are empty away, and numbers the others anew.
    pub(super) fn remove_drafts(&mut self, gone: &[bool]) {
        if !gone.contains(&true) {
            return;
        }
        let mut left = 0;
        let renumbered: Vec<usize> = gone
            .iter()
            .map(|gone| {
                left += usize::from(!gone);
                left.saturating_sub(1)
            })
            .collect();
        let mut kept = gone.iter().map(|gone| !gone);
        self.drafts.retain(|_| kept.next().unwrap_or(true));
        for home in &mut self.home {
            if let Home::Draft(draft) = home {
                *draft = renumbered[*draft];
            }
        }
    }
}
