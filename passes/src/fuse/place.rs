//! Concats without a kernel: each part is stored in its place by the region that makes it.
//!
//! Before: `n1 = conv …; n2 = conv …; n3 = concat n1, n2`, three regions. After: two, which store to one buffer. This
//! is done last, to concats that would only copy: a concat that a reader takes in as an index map costs nothing
//! already.

use ir::op::View;
use ir::schedule::RegionKind;
use ir::{Entity, NodeId, Op, Value};

use super::classify::takes_epilogue;
use super::{Fuser, Home};

impl Fuser<'_> {
    /// Finds the concats all of whose parts can be stored in their places, and takes their drafts away.
    pub(super) fn place_parts(&mut self) {
        if !self.options.fuse {
            return;
        }
        let mut gone = vec![false; self.drafts.len()];
        for (draft, gone) in gone.iter_mut().enumerate() {
            let concat = self.drafts[draft].chain[0];
            if self.drafts[draft].chain.len() > 1 || !self.only_gathers(concat) {
                continue;
            }
            *gone = true;
            self.home[concat.index()] = Home::Parts;
            for (operand, value) in self.graph.node(concat).operands.iter().enumerate() {
                self.placed[value.node.index()] = Some((concat, operand));
            }
        }
        self.remove_drafts(&gone);
    }

    /// Says whether a node is a concat of results that are read by nothing else, each made by a region that can store
    /// anywhere.
    fn only_gathers(&self, concat: NodeId) -> bool {
        let node = self.graph.node(concat);
        // Two kernels cannot each write a part of a byte.
        let whole_bytes = node.results[0].dtype.bits() >= 8;
        matches!(node.op, Op::View(View::Concat { .. }))
            && whole_bytes
            && node.operands.iter().all(|v| self.can_place(*v))
    }

    fn can_place(&self, part: Value) -> bool {
        let only_reader = self.user_count(part.node) == 1 && !self.is_output[part.node.index()];
        let stores_anywhere = self.draft_of(part.node).is_some_and(|d| {
            let kind = self.drafts[d].kind;
            kind == RegionKind::Pointwise || takes_epilogue(kind)
        });
        only_reader && stores_anywhere
    }

    /// Returns the values that regions store so that `value` exists: itself, or its parts.
    pub(super) fn stored_for(&self, value: Value) -> impl Iterator<Item = Value> + '_ {
        let parts: &[Value] = match self.home[value.node.index()] {
            Home::Parts => &self.graph.node(value.node).operands,
            _ => &[],
        };
        parts
            .is_empty()
            .then_some(value)
            .into_iter()
            .chain(parts.iter().copied())
    }
}
