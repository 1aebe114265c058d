//! Inputs as `--inputs` gives them, and made-up ones in the place of those that are not given.

use std::path::PathBuf;

use indexmap::IndexMap;
use ir::{HostTensor, Plan};

use crate::arrays::{self, Arrays};
use crate::error::{Error, Result};

/// The arrays of some files, read before anything slow is done.
#[derive(Clone, Default)]
pub struct Given {
    files: Vec<PathBuf>,
    arrays: Arrays,
}

impl Given {
    /// Reads the files of `--inputs`.
    ///
    /// # Errors
    /// As [`arrays::read_all`].
    pub fn read(files: &[PathBuf]) -> Result<Given> {
        Ok(Given {
            files: files.to_vec(),
            arrays: arrays::read_all(files)?,
        })
    }

    /// Takes a plan's inputs from the arrays and, with a seed, makes up the rest. A lone `.npy` serves a model with one input.
    ///
    /// # Errors
    /// Sizes that do not go together, or that are too large to be made up.
    pub fn inputs(self, plan: &Plan, seed: Option<u64>) -> Result<IndexMap<String, HostTensor>> {
        let names: Vec<&str> = plan.inputs.iter().map(|p| p.name.as_str()).collect();
        let mut given = arrays::name_lone(&self.files, self.arrays, &names);
        if let Some(seed) = seed {
            // Sizes that the given arrays fix hold for the made-up ones too.
            let sizes: Vec<(&str, &ir::TensorType)> = plan
                .inputs
                .iter()
                .filter(|p| given.contains_key(&p.name))
                .map(|p| (p.name.as_str(), &p.ty))
                .collect();
            let shapes = given.iter().map(|(n, t)| (n.as_str(), t.shape.as_slice())).collect();
            let mut bindings = ir::dim::hints(&plan.symbols);
            let known = ir::graph::bind_shapes(&plan.symbols, &sizes, &shapes);
            bindings.extend(known.map_err(|e| Error::Config(e.to_string()))?);
            for port in &plan.inputs {
                if !given.contains_key(&port.name) {
                    given.insert(
                        port.name.clone(),
                        crate::random::tensor(&port.name, &port.ty, &bindings, seed)?,
                    );
                }
            }
        }
        Ok(given)
    }
}
