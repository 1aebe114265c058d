//! Epilogues: an anchor grows over what follows it.
//!
//! Before: `n5 = contract n1, n2; n6 = add n5, n3; n7 = relu n6`. After: one region `{n5, n6, n7}` anchored at `n5`.
//! The two halves of a product whose columns are in turns are in its region too, and what they meet in.

use ir::{Entity, NodeId, Op, Value};
use smallvec::SmallVec;

use super::classify::{OperandNeed, Role, is_free, is_invertible_view, operand_need, takes_epilogue};
use super::{Barrier, Draft, Fuser, Home};
use crate::lower::views::is_strided;
use crate::pairs;

/// The most nodes of one epilogue of a GPU's kernel, which has registers for so many.
const CHAIN_LIMIT: usize = 48;
/// The most nodes of one epilogue on the CPU, where a function of an integer of 8 bits is one lookup.
const CPU_CHAIN_LIMIT: usize = 128;
/// The most nodes of the arms of one diamond.
const ARM_LIMIT: usize = 16;

impl Fuser<'_> {
    /// Makes a draft of every live anchor and grows its epilogue.
    pub(super) fn grow_chains(&mut self) {
        for id in self.graph.nodes().keys() {
            let Role::Anchor(kind) = self.role(id) else { continue };
            // A fold may be in the region of another one.
            if !self.live[id.index()] || self.home[id.index()] != Home::Nowhere {
                continue;
            }
            let draft = self.new_draft(kind, id);
            if !self.options.fuse {
                continue;
            }
            if takes_epilogue(kind) {
                if !self.grow_along_row(draft, id) {
                    self.grow(draft, id);
                }
            } else {
                self.barrier[id.index()] = Some(Barrier::NoEpilogue);
            }
            self.extend_stretch(draft);
            self.leave_widened(draft);
        }
    }

    /// Gives back a last node that only widens many numbers: those who read it widen what is stored, which is fewer
    /// bytes both ways.
    fn leave_widened(&mut self, draft: usize) {
        let [.., last] = self.drafts[draft].chain[..] else {
            return;
        };
        let is_read_anyhow = |(user, position): &(NodeId, u32)| {
            self.home[user.index()] == Home::Nowhere
                && matches!(self.op(*user), Op::Elementwise(_) | Op::View(_) | Op::Reduce { .. })
                && self.need(*user, *position as usize) == OperandNeed::Any
        };
        let is_left = self.drafts[draft].chain.len() > 1
            && !self.is_output[last.index()]
            && self.widens_many(last)
            && self.users[last].iter().all(is_read_anyhow);
        if is_left {
            self.drafts[draft].chain.pop();
            self.drafts[draft].size -= 1;
            self.home[last.index()] = Home::Nowhere;
            self.regions[last.index()].clear();
        }
    }

    /// Takes a node that was given back into the draft again, because its readers cannot compute it. Says whether it
    /// was one.
    pub(super) fn take_widened(&mut self, id: NodeId) -> bool {
        let operand = self.graph.node(id).operands.first().map(|v| v.node);
        let Some((operand, draft)) = operand.and_then(|node| Some((node, self.draft_of(node)?))) else {
            return false;
        };
        let Draft { chain, kind, .. } = &self.drafts[draft];
        let is_one = takes_epilogue(*kind) && chain.last() == Some(&operand) && self.widens_many(id);
        if is_one {
            self.take(draft, &[id]);
        }
        is_one
    }

    /// Takes what follows the anchor into its draft, node by node.
    fn grow(&mut self, draft: usize, anchor: NodeId) {
        let mut current = anchor;
        if let Some(halves) = self.interleaved_halves(anchor) {
            self.take(draft, &halves);
            current = halves[1];
        }
        let limit = match self.target.is_gpu() {
            true => CHAIN_LIMIT,
            false => CPU_CHAIN_LIMIT,
        };
        while self.drafts[draft].chain.len() < limit {
            let Some(next) = self.next_in_chain(draft, current) else {
                break;
            };
            self.take(draft, &next);
            current = *next.last().unwrap_or(&current);
        }
    }

    /// Takes nodes into a draft.
    pub(super) fn take(&mut self, draft: usize, nodes: &[NodeId]) {
        for node in nodes {
            self.home[node.index()] = Home::Draft(draft);
            self.regions[node.index()] = SmallVec::from_slice(&[draft as u32]);
            self.drafts[draft].chain.push(*node);
            self.drafts[draft].size += 1;
        }
    }

    /// The halves of a product whose columns are in turns: one epilogue has the sums of both.
    fn interleaved_halves(&self, anchor: NodeId) -> Option<[NodeId; 2]> {
        matches!(self.op(anchor), Op::Contract(_))
            .then(|| pairs::interleaved_halves(self.graph, &self.users[anchor], anchor))
            .flatten()
    }

    /// Finds a user of `current` that can be applied to its elements one by one; before it, the nodes between the
    /// region and its other operands that must come along.
    fn next_in_chain(&mut self, draft: usize, current: NodeId) -> Option<Vec<NodeId>> {
        let mut users: SmallVec<[NodeId; 4]> = self.users[current].iter().map(|(u, _)| *u).collect();
        users.dedup();
        let only = users.len() == 1 && !self.is_output[current.index()];
        let mut why = None;
        for user in users {
            match self.may_follow(draft, current, user, only) {
                Ok(nodes) => return Some(nodes),
                Err(b) => why = why.or(b),
            }
        }
        self.barrier[current.index()] = self.barrier[current.index()].or(why);
        None
    }

    fn may_follow(
        &self,
        draft: usize,
        current: NodeId,
        user: NodeId,
        only: bool,
    ) -> Result<Vec<NodeId>, Option<Barrier>> {
        if self.home[user.index()] != Home::Nowhere {
            return Err(None);
        }
        let node = self.graph.node(user);
        match &node.op {
            // Integers that are stored anyway are made numbers where those are read, as are those that others go on
            // with.
            Op::Elementwise(_)
                if self.dequantised[user.index()]
                    && !self.dequantised[current.index()]
                    && (!only || self.goes_on_elsewhere(draft, user)) =>
            {
                Err(None)
            }
            Op::Elementwise(_) => {
                if node.results[0].shape != self.graph.ty(Value::from(current)).shape {
                    return Err(Some(Barrier::ShapeDiffers));
                }
                let mut along = Vec::new();
                self.bring_along(draft, user, &mut along)?;
                along.sort();
                Ok(along)
            }
            op if is_invertible_view(op) && only && self.store_through(user, &mut vec![Value::from(user)]) => {
                Ok(vec![user])
            }
            _ => Err(None),
        }
    }

    /// Says whether what is made of a stored integer, from `id` on, is read point by point in other regions and nowhere
    /// else.
    fn goes_on_elsewhere(&self, draft: usize, id: NodeId) -> bool {
        let mut last = id;
        loop {
            let mut users = self.users[last].iter().map(|(user, _)| *user);
            match (users.next(), users.next()) {
                (Some(next), None)
                    if self.dequantised[next.index()]
                        && self.home[next.index()] == Home::Nowhere
                        && !self.is_output[last.index()] =>
                {
                    last = next;
                }
                _ => break,
            }
        }
        let elsewhere = |user: NodeId| {
            matches!(self.op(user), Op::Elementwise(_))
                && matches!(self.home[user.index()], Home::Draft(other) if other != draft)
        };
        !self.is_output[last.index()]
            && !self.users[last].is_empty()
            && self.users[last].iter().all(|(user, _)| elsewhere(*user))
    }

    /// Adds `id` to `along`, and before it those of its operands that are computed from the region itself (the two arms
    /// of a diamond such as `x · sigmoid(x)`). All must be elementwise in one shape.
    fn bring_along(&self, draft: usize, id: NodeId, along: &mut Vec<NodeId>) -> Result<(), Option<Barrier>> {
        if along.contains(&id) {
            return Ok(());
        }
        if along.len() >= ARM_LIMIT {
            return Err(Some(Barrier::RegionFull));
        }
        let node = self.graph.node(id);
        let shape = &node.results[0].shape;
        for operand in &node.operands {
            if self.draft_of(operand.node) == Some(draft) {
                // The region holds it as the element at hand, unless a view has moved the elements since.
                if self.moved_since(draft, operand.node) || self.graph.ty(*operand).shape != *shape {
                    return Err(Some(Barrier::Cycle));
                }
            } else if self.depends_on(*operand, draft) {
                let inner = self.graph.node(operand.node);
                let same = inner.results[0].shape == *shape;
                if !matches!(inner.op, Op::Elementwise(_)) || !same || self.home[operand.node.index()] != Home::Nowhere
                {
                    return Err(Some(Barrier::Cycle));
                }
                self.bring_along(draft, operand.node, along)?;
            }
        }
        along.push(id);
        Ok(())
    }

    /// Says whether a view stands in the chain after `id`.
    fn moved_since(&self, draft: usize, id: NodeId) -> bool {
        self.drafts[draft]
            .chain
            .iter()
            .rev()
            .take_while(|n| **n != id)
            .any(|n| matches!(self.op(*n), Op::View(_)) && pairs::interleaved_half(self.graph, *n).is_none())
    }

    /// Says whether storing through the view is better than reading through it: some reader behind it needs the dense
    /// tensor, would not get a strided access, or goes on elementwise in the view's shape.
    fn store_through(&self, view: NodeId, path: &mut Vec<Value>) -> bool {
        if self.is_output[view.index()] {
            return true;
        }
        if path.len() > 8 {
            return false;
        }
        let single = self.user_count(view) == 1;
        self.users[view].iter().any(|(user, position)| {
            let node = self.graph.node(*user);
            match operand_need(&node.op, *position as usize) {
                OperandNeed::Dense => true,
                OperandNeed::Strided => !is_strided(self.graph, path),
                OperandNeed::Any => match &node.op {
                    Op::Elementwise(_) => single && node.results[0].shape == self.graph.node(view).results[0].shape,
                    op if is_free(op) => {
                        // Nearest the reader first.
                        path.insert(0, Value::from(*user));
                        let yes = self.store_through(*user, path);
                        path.remove(0);
                        yes
                    }
                    _ => false,
                },
            }
        })
    }

    /// Says whether the node computes something (a view does not).
    pub(super) fn computes(&self, id: NodeId) -> bool {
        !is_free(self.op(id))
    }
}
