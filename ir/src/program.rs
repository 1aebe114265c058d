//! The program: plan, sources, code objects and weights; plain data that can be saved and loaded.
//!
//! One program may hold several targets; weights are shared between them.

pub mod artifact;

use std::collections::HashMap;
use std::fmt;

use crate::entity::Table;
use crate::graph::{ConstId, Constant};
use crate::plan::{KernelId, Place, Plan};

/// A compiled model.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    /// The model's name.
    pub name: String,
    /// One for each target, in the order asked for. Never empty.
    pub variants: Vec<Variant>,
    /// Weights and folded constants of all variants.
    pub constants: Table<ConstId, Constant>,
}

/// A model compiled for one target.
#[derive(Clone, PartialEq, Debug)]
pub struct Variant {
    pub plan: Plan,
    /// HIP C++ of each kernel; empty for `cpu`.
    pub sources: Table<KernelId, Source>,
    /// The compiled object of each kernel; `None` until it is compiled.
    pub code: Table<KernelId, Option<Vec<u8>>>,
}

/// The text of one kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Source {
    /// HIP C++; includes the headers of the device library by name.
    pub text: String,
    /// The name of the `extern "C" __global__` function.
    pub entry: String,
    /// Options for the compiler besides the architecture, which is the target's unless one of them names it.
    pub options: Vec<String>,
}

impl Program {
    /// Keeps the variants of these indices, in this order, and the constants that they use. An index that is none of
    /// the program's is passed over.
    #[must_use]
    pub fn select(&self, variants: &[usize]) -> Program {
        let mut constants: Table<ConstId, Constant> = Table::new();
        let mut moved: HashMap<ConstId, ConstId> = HashMap::new();
        let mut kept = Vec::with_capacity(variants.len());
        for variant in variants.iter().filter_map(|v| self.variants.get(*v)) {
            let mut variant = variant.clone();
            for buffer in variant.plan.buffers.values_mut() {
                if let Place::Constant(id) | Place::Streamed(id) = &mut buffer.place
                    && let Some(constant) = self.constants.get(*id)
                {
                    *id = *moved.entry(*id).or_insert_with(|| constants.push(constant.clone()));
                }
            }
            kept.push(variant);
        }
        Program {
            name: self.name.clone(),
            variants: kept,
            constants,
        }
    }
}

impl fmt::Display for Program {
    /// One line a fact; for people. [`artifact`] has the file format.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {:?}", self.name)?;
        let bytes: usize = self.constants.values().map(|c| c.tensor.bytes.len()).sum();
        writeln!(f, "  constants: {} ({bytes} bytes)", self.constants.len())?;
        for v in &self.variants {
            let (launches, calls) = v.plan.launches();
            let compiled = v.code.values().filter(|c| c.is_some()).count();
            let (target, kernels) = (v.plan.target, v.plan.kernels.len());
            writeln!(
                f,
                "  {target}: {launches} launches, {calls} calls, {kernels} kernels, {compiled} compiled"
            )?;
        }
        Ok(())
    }
}
