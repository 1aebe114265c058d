//! The chosen e-nodes as graph nodes again.

use std::collections::{HashMap, HashSet};

use egg::{Id, Language};
use ir::entity::Entity;
use ir::op::Elementwise;
use ir::{HostTensor, NodeId, Op, Value};
use smallvec::SmallVec;

use super::extract::Choices;
use super::language::{Enode, Fused, Made, Payload};
use super::load::Loaded;
use crate::error::PassFault;
use crate::fold::native;
use crate::rewrite::Builder;

/// Chosen terms nested deeper than this keep what the graph had.
const MAX_DEPTH: usize = 2048;

/// Emits classes, each once.
pub struct Emitter<'e, 'a> {
    pub loaded: &'e Loaded<'a>,
    pub best: &'e Choices,
    /// The first old node of each class.
    pub origins: HashMap<Id, NodeId>,
    values: HashMap<Id, Value>,
    /// Classes in the order in which they were emitted.
    pub emitted: Vec<Id>,
}

impl<'e, 'a> Emitter<'e, 'a> {
    /// Nothing is emitted yet.
    pub fn new(loaded: &'e Loaded<'a>, best: &'e Choices) -> Emitter<'e, 'a> {
        let mut origins = HashMap::new();
        for id in &loaded.embedded {
            if let Some(class) = loaded.class((*id).into()) {
                origins.entry(class).or_insert(*id);
            }
        }
        Emitter {
            loaded,
            best,
            origins,
            values: HashMap::new(),
            emitted: Vec::new(),
        }
    }

    fn children(&self, enode: &Enode) -> SmallVec<[Id; 3]> {
        enode.children().iter().map(|c| self.loaded.egraph.find(*c)).collect()
    }

    /// Says whether anything below a class was chosen otherwise than it stands in the graph.
    pub fn differs(&self, class: Id) -> bool {
        let mut stack = vec![class];
        let mut seen = HashSet::new();
        while let Some(class) = stack.pop() {
            if !seen.insert(class) {
                continue;
            }
            let (Some(enode), Some(id)) = (self.best.get(&class), self.origins.get(&class)) else {
                continue;
            };
            if !self.is_original(enode, *id) {
                return true;
            }
            stack.extend(self.children(enode));
        }
        false
    }

    /// Says whether an e-node is the old node, its operands perhaps in the other order.
    pub fn is_original(&self, enode: &Enode, id: NodeId) -> bool {
        let node = self.loaded.egraph.analysis.graph.node(id);
        let same_op = self.loaded.egraph.analysis.op(enode.payload).as_ref() == Some(&node.op);
        let mut have = self.children(enode);
        let mut want: SmallVec<[Id; 3]> = node.operands.iter().filter_map(|v| self.loaded.class(*v)).collect();
        if let Op::Elementwise(Elementwise::Binary(op)) = node.op
            && op.is_commutative()
        {
            have.sort_unstable();
            want.sort_unstable();
        }
        same_op && have == want
    }

    /// Emits a class; `None` where its choice cannot be spelled out.
    ///
    /// # Errors
    /// When operands do not type, which would be a mistake of a rule.
    pub fn emit(&mut self, b: &mut Builder<'a>, class: Id, depth: usize) -> Result<Option<Value>, PassFault> {
        let class = self.loaded.egraph.find(class);
        if let Some(value) = self.values.get(&class) {
            return Ok(Some(*value));
        }
        if let Some(id) = self.origins.get(&class) {
            // What stands before the region has been chosen with the region before.
            if id.index() < self.loaded.egraph.analysis.start {
                b.copy_deep(*id)?;
                return Ok(Some(b.value((*id).into())));
            }
        }
        let Some(enode) = self.best.get(&class).filter(|_| depth <= MAX_DEPTH) else {
            return Ok(None);
        };
        let region = &self.loaded.egraph.analysis;
        let value = match enode.payload {
            Payload::Leaf(i) => {
                let old = region.leaves[i as usize];
                b.copy_deep(old.node)?;
                Some(b.value(old))
            }
            Payload::Made(i) => region.made.get_index(i as usize).and_then(|made| constant(b, made)),
            payload => {
                let mut operands = Vec::new();
                for child in self.children(enode) {
                    let Some(value) = self.emit(b, child, depth + 1)? else {
                        return Ok(None);
                    };
                    operands.push(value);
                }
                if let Some(id) = self.origins.get(&class) {
                    b.origin = b.old.node(*id).origin.clone();
                }
                self.emitted.push(class);
                let fused = match payload {
                    Payload::Fused(i) => region.fused.get_index(i as usize),
                    _ => None,
                };
                match (fused, region.op(payload)) {
                    (Some(fused), _) => Some(emit_fused(b, fused, &operands)?),
                    (None, Some(op)) => Some(b.emit(op, &operands)?),
                    (None, None) => None,
                }
            }
        };
        if let Some(value) = value {
            self.values.insert(class, value);
        }
        Ok(value)
    }
}

/// The product and then its steps, which scheduling puts into one kernel.
fn emit_fused(b: &mut Builder<'_>, fused: &Fused, operands: &[Value]) -> Result<Value, PassFault> {
    let (first, rest) = operands.split_at(fused.operands.min(operands.len()));
    let mut rest = rest.iter().copied();
    let mut running = b.emit(fused.product.clone(), first)?;
    for step in &fused.steps {
        let mut operands: Vec<Value> = rest.by_ref().take(step.operands - 1).collect();
        operands.insert(step.running.min(operands.len()), running);
        running = b.emit(step.op.clone(), &operands)?;
    }
    Ok(running)
}

/// The tensor that a rule asked for.
fn constant(b: &mut Builder<'_>, made: &Made) -> Option<Value> {
    let tensor = match made {
        Made::Filled(dtype, shape, bits) => {
            let values = vec![f64::from_bits(*bits); shape.iter().product()];
            HostTensor::from_f64(*dtype, shape.clone(), &values).ok()?
        }
        Made::Joined { parts, axis } => {
            let old = b.old;
            let parts: Option<Vec<&HostTensor>> = parts.iter().map(|v| old.as_constant(*v)).collect();
            native::concat(&parts?, *axis)?
        }
    };
    Some(b.constant(tensor))
}
