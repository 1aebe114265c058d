//! Calibration data: files of arrays, each the inputs of one run.

use std::path::{Path, PathBuf};

use ir::Graph;

use super::Inputs;
use crate::arrays;
use crate::error::{Error, Result};

/// Reads the samples of a file, or of each file of a folder in the order of their names.
///
/// # Errors
/// A path that is not there, a folder without arrays, files that cannot be read, and inputs of the graph that a file
/// does not have.
pub fn read(path: &Path, graph: &Graph) -> Result<Vec<Inputs>> {
    let mut files: Vec<PathBuf> = Vec::new();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).map_err(Error::io("read", path))? {
            let file = entry.map_err(Error::io("read", path))?.path();
            let extension = file.extension().and_then(|e| e.to_str());
            if matches!(extension, Some("npz" | "npy" | "safetensors")) {
                files.push(file);
            }
        }
        files.sort();
        if files.is_empty() {
            return Err(Error::Arrays {
                path: path.to_owned(),
                message: "the folder has no .npz, .npy or .safetensors file to calibrate with".to_owned(),
            });
        }
    } else {
        files.push(path.to_owned());
    }
    files.iter().map(|file| sample(file, graph)).collect()
}

fn sample(file: &Path, graph: &Graph) -> Result<Inputs> {
    let names: Vec<&str> = graph.inputs().iter().map(|i| i.name.as_str()).collect();
    let files = arrays::open_all(&[file])?;
    let lone = arrays::lone_name(&files, &names);
    let mut inputs = Inputs::new();
    for (input, name) in graph.inputs().iter().zip(&names) {
        let found = files.iter().find_map(|file| match lone {
            Some(_) => Some((file, file.arrays().first()?)),
            None => Some((file, file.arrays().get_key_value(*name)?)),
        });
        let Some((open, (own, described))) = found else {
            let have: Vec<&String> = files.iter().flat_map(|file| file.arrays().keys()).collect();
            return Err(Error::Arrays {
                path: file.to_owned(),
                message: format!("it has no array {name:?}, an input of the model; it has {have:?}"),
            });
        };
        // Before its elements are read, which may be many more than the model's.
        let declared = &graph.node(input.node).results[0];
        if described.dtype != declared.dtype || described.shape.len() != declared.rank() {
            return Err(Error::Arrays {
                path: file.to_owned(),
                message: format!(
                    "array {name:?} is {}{:?}, but the model's input is {declared}",
                    described.dtype, described.shape
                ),
            });
        }
        let tensor = open.read(own)?;
        if tensor.elements() == 0 {
            return Err(Error::Arrays {
                path: file.to_owned(),
                message: format!(
                    "array {name:?} of shape {:?} is empty; calibration needs numbers",
                    tensor.shape
                ),
            });
        }
        inputs.insert((*name).to_owned(), tensor);
    }
    Ok(inputs)
}

/// Makes up samples, the same every time. Ranges by them say nothing of real data: they are for timing alone.
///
/// # Errors
/// Sizes that are too large.
pub fn random(graph: &Graph, count: usize) -> Result<Vec<Inputs>> {
    let bindings = ir::dim::hints(graph.symbols());
    let one = |seed: usize| {
        let made = graph.inputs().iter().map(|input| {
            let ty = &graph.node(input.node).results[0];
            Ok((
                input.name.clone(),
                crate::random::tensor(&input.name, ty, &bindings, seed as u64)?,
            ))
        });
        made.collect()
    };
    (0..count).map(one).collect()
}
