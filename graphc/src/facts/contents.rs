//! What a model or an artifact holds, for people and scripts that have not made it: targets, sizes, inputs, outputs,
//! weights.

use std::path::Path;

use indexmap::IndexMap;
use ir::plan::Port;
use ir::program::artifact::{self, Versions};
use ir::{DType, Program};
use serde::Serialize;

use crate::driver::model::artifact_error;
use crate::error::Result;

/// The facts that all targets of a program share.
#[derive(Serialize)]
pub struct Contents {
    pub name: String,
    /// What wrote the file, where it is an artifact.
    pub artifact: Option<Versions>,
    pub targets: Vec<String>,
    /// The sizes that are open.
    pub sizes: Vec<Size>,
    pub inputs: Vec<PortFacts>,
    pub outputs: Vec<PortFacts>,
    pub weights: Vec<Weights>,
}

/// A size that a run decides, within bounds.
#[derive(Serialize)]
pub struct Size {
    pub name: String,
    pub min: i64,
    /// `null`: there is none.
    pub max: Option<i64>,
    pub hint: i64,
}

/// An input or output.
#[derive(Serialize)]
pub struct PortFacts {
    pub name: String,
    pub dtype: String,
    /// Numbers, and the names of open sizes.
    pub shape: Vec<String>,
}

/// The constants of one element type.
#[derive(Serialize)]
pub struct Weights {
    pub dtype: String,
    pub count: usize,
    pub bytes: usize,
}

impl Contents {
    /// Collects what a program holds; `path` is the file that it was read from or made of.
    ///
    /// # Errors
    /// An artifact that cannot be read any more.
    pub fn of(program: &Program, path: &Path, is_artifact: bool) -> Result<Contents> {
        let versions = is_artifact.then(|| artifact::versions(path).map_err(|e| artifact_error(path, e)));
        let first = program.variants.first().map(|v| &v.plan);
        let ports = |ports: &[Port]| ports.iter().map(PortFacts::of).collect();
        let mut weights: IndexMap<DType, (usize, usize)> = IndexMap::new();
        for constant in program.constants.values() {
            let (count, bytes) = weights.entry(constant.tensor.dtype).or_default();
            *count += 1;
            *bytes += constant.tensor.bytes.len();
        }
        Ok(Contents {
            name: program.name.clone(),
            artifact: versions.transpose()?,
            targets: program.variants.iter().map(|v| v.plan.target.to_string()).collect(),
            sizes: first.map_or(Vec::new(), |plan| {
                let sizes = plan.symbols.iter().map(|(symbol, info)| Size {
                    name: symbol.to_string(),
                    min: info.min,
                    max: info.max,
                    hint: info.hint,
                });
                sizes.collect()
            }),
            inputs: first.map_or(Vec::new(), |plan| ports(&plan.inputs)),
            outputs: first.map_or(Vec::new(), |plan| ports(plan.results())),
            weights: weights
                .into_iter()
                .map(|(dtype, (count, bytes))| Weights {
                    dtype: dtype.to_string(),
                    count,
                    bytes,
                })
                .collect(),
        })
    }
}

impl PortFacts {
    fn of(port: &Port) -> PortFacts {
        PortFacts {
            name: port.name.clone(),
            dtype: port.ty.dtype.to_string(),
            shape: port.ty.shape.iter().map(ToString::to_string).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{BuildOptions, build};

    /// The conditions of a plan (here that of the indices) are among its outputs, but are no outputs of the model.
    #[test]
    fn outputs_are_those_of_the_model() {
        let text = "graph @take stage=import {\n  t = input \"t\" : f32[3]\n  i = input \"i\" : i64[2]\n  y = take t, i {axis=0}\n  \
                    return y as \"y\"\n}\n";
        let graph = ir::graph::parse::parse(text).unwrap();
        let options = BuildOptions::new(vec![ir::Target::cpu()], passes::OptLevel::O2);
        let program = build(&graph, &options).unwrap().program;
        assert_eq!(program.variants[0].plan.conditions().len(), 1);
        let contents = Contents::of(&program, Path::new("take.gir"), false).unwrap();
        assert_eq!(contents.outputs.iter().map(|p| &p.name[..]).collect::<Vec<_>>(), ["y"]);
    }
}
