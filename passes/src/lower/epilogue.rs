//! Pushing: what follows the anchor, applied to its element at hand, and the stores.

use ir::kernel::{AxisId, ExprId, Stmt};
use ir::{NodeId, Op, Value};

use super::LowerError;
use super::builder::Builder;
use super::index::Linear;
use super::views::{broadcast, to_result};

impl Builder<'_> {
    /// Applies the region's epilogue to the anchor's result `e` at `coords` and returns the stores, each for every
    /// point of `axes`.
    pub fn epilogue(
        &mut self,
        result: Value,
        e: ExprId,
        coords: Vec<Linear>,
        axes: &[AxisId],
    ) -> Result<Vec<Stmt>, LowerError> {
        self.epilogue_of(vec![(result, e, coords)], axes)
    }

    /// As [`Self::epilogue`], of several values at hand.
    pub fn epilogue_of(
        &mut self,
        results: Vec<(Value, ExprId, Vec<Linear>)>,
        axes: &[AxisId],
    ) -> Result<Vec<Stmt>, LowerError> {
        let mut stores = Vec::new();
        let anchor = self.region.anchor;
        let after: Vec<NodeId> = self.region.nodes.iter().copied().filter(|n| *n > anchor).collect();
        for (result, e, coords) in results {
            self.keep(result, e, coords, axes, &mut stores);
        }
        for id in after {
            if self.computed.contains_key(&Value::from(id)) {
                continue;
            }
            let node = self.graph.node(id);
            if !node.operands.iter().any(|v| self.computed.contains_key(v)) {
                continue;
            }
            match &node.op {
                Op::Elementwise(op) => {
                    let at = self.coords_of_operand(id)?;
                    let mut operands = Vec::with_capacity(node.operands.len());
                    for v in &node.operands {
                        let there = broadcast(&at, self.shape(*v));
                        operands.push(self.pull(*v, &there)?);
                    }
                    let e = self.elementwise(*op, node.results[0].dtype, &operands);
                    self.keep(id.into(), e, at, axes, &mut stores);
                }
                Op::View(view) => {
                    let operand = node.operands[0];
                    let Some((e, at)) = self.computed.get(&operand).cloned() else {
                        continue;
                    };
                    let (from, to) = (self.shape(operand), &node.results[0].shape);
                    let at = to_result(view, &at, from, to, self.space()).ok_or_else(|| self.not_in_region(operand))?;
                    self.keep(id.into(), e, at, axes, &mut stores);
                }
                _ => return Err(self.not_in_region(id.into())),
            }
        }
        Ok(stores)
    }

    /// The coordinates at which a node of the epilogue is being computed: those of the operand in its own shape that
    /// was computed last.
    fn coords_of_operand(&self, id: NodeId) -> Result<Vec<Linear>, LowerError> {
        let node = self.graph.node(id);
        node.operands
            .iter()
            .filter(|v| self.shape(**v) == &node.results[0].shape)
            .filter_map(|v| self.computed.get_full(v))
            .max_by_key(|(position, ..)| *position)
            .map(|(_, _, (_, at))| at.clone())
            .ok_or_else(|| self.not_in_region(id.into()))
    }

    /// Remembers a computed value. Along dims of size 1 its coordinate is 0, also where the body has an axis for them:
    /// readers ask for it that way.
    fn keep(&mut self, value: Value, e: ExprId, coords: Vec<Linear>, axes: &[AxisId], stores: &mut Vec<Stmt>) {
        let coords = broadcast(&coords, self.shape(value));
        if self.region.outputs.contains(&value) {
            stores.extend(self.store(value, e, &coords, axes));
        }
        self.computed.insert(value, (e, coords));
    }
}
