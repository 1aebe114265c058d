//! Inputs as `--inputs` gives them, and made-up ones in the place of those that are not given.

use std::path::PathBuf;

use frontend::onnx::GivenInput;
use indexmap::IndexMap;
use ir::graph::BindError;
use ir::plan::Port;
use ir::{Dim, HostTensor, Plan, Storage, TensorType};
use runtime::RuntimeError;
use runtime::error::InputError;

use super::args::ModelArgs;
use super::{Context, output};
use graphc::arrays::{self, ArrayFile, Described};
use graphc::error::{Error, Result};

/// Files of arrays, opened before anything slow is done. Their arrays are read once they are known to fit the model.
#[derive(Default)]
pub struct Given {
    files: Vec<ArrayFile>,
}

impl Given {
    /// Opens the files of `--inputs`.
    ///
    /// # Errors
    /// As [`arrays::open_all`].
    pub fn read(files: &[PathBuf]) -> Result<Given> {
        Ok(Given {
            files: arrays::open_all(files)?,
        })
    }

    /// The inputs by name, as an importer may be told of them.
    ///
    /// # Errors
    /// As the reader of the files: small integer inputs are read.
    fn described(&self) -> Result<IndexMap<String, GivenInput>> {
        let mut described = IndexMap::new();
        for file in &self.files {
            for (name, array) in file.arrays() {
                let mut given = GivenInput {
                    shape: array.shape.clone(),
                    integers: None,
                    data: None,
                };
                if given.may_be_known(array.dtype) {
                    given = GivenInput::of(&file.read(name)?);
                }
                described.insert(name.clone(), given);
            }
        }
        Ok(described)
    }

    /// The inputs by name, with their data.
    ///
    /// # Errors
    /// As the reader of the files.
    fn data(&self) -> Result<IndexMap<String, GivenInput>> {
        let arrays = self
            .files
            .iter()
            .flat_map(|file| file.arrays().keys().map(move |name| (file, name)));
        arrays
            .map(|(file, name)| Ok((name.clone(), GivenInput::of(&file.read(name)?))))
            .collect()
    }

    /// Does something with a model that is read with its sizes left open and, where sizes are why that fails, once more
    /// with a model that is compiled for the sizes of these inputs; a line says so.
    ///
    /// # Errors
    /// What is done; of the second try where there is one.
    pub fn with_model<T>(
        &self,
        model: &ModelArgs,
        context: &Context,
        mut act: impl FnMut(&ModelArgs) -> Result<T>,
    ) -> Result<T> {
        let described = self.described()?;
        let mut model = model.clone();
        model.overridden = described.keys().cloned().collect();
        let error = match act(&model) {
            Err(Error::Runtime(RuntimeError::Input { error, inputs })) if model.is_artifact() => {
                return Err(in_artifact(error, inputs));
            }
            Err(error) if !described.is_empty() && model.is_onnx() && error.is_of_sizes() => error,
            done => return done,
        };
        self.check_declared(&model)?;
        model.given = self.data()?;
        let done = act(&model);
        let reason = error.to_string();
        // What fails for these inputs, too, says it.
        if !done.as_ref().is_err_and(|again| again.to_string() == reason) {
            output::note(
                context,
                &format!(
                    "compiled for the inputs that are given (their sizes, small integers, and what their data decide), since else: {}",
                    reason.lines().next().unwrap_or_default()
                ),
            );
        }
        done
    }

    /// Holds what the files say of their arrays against the shapes that an ONNX model declares, before elements are
    /// read that may be many: sizes that the model fixes stay what they are, whatever is given.
    ///
    /// # Errors
    /// An array that is no input, or has another rank or other fixed sizes than the model declares.
    fn check_declared(&self, model: &ModelArgs) -> Result<()> {
        let declared = frontend::onnx::declared_shapes(&model.model, &model.import()?)?;
        let names: Vec<&str> = declared.keys().map(String::as_str).collect();
        let lone = arrays::lone_name(&self.files, &names);
        for (own, array) in self.files.iter().flat_map(|file| file.arrays()) {
            let name = lone.unwrap_or(own);
            let wrong = |error| {
                let inputs = declared
                    .iter()
                    .map(|(name, shape)| format!("{name}: {shape}"))
                    .collect();
                Err(Error::Runtime(RuntimeError::Input { error, inputs }))
            };
            let Some(shape) = declared.get(name) else {
                return wrong(InputError::Unknown(name.to_owned()));
            };
            if shape.rank() != array.shape.len() {
                return wrong(InputError::Shape(BindError::Rank {
                    input: name.to_owned(),
                    got: array.shape.len(),
                    declared: shape.to_string(),
                }));
            }
            let differs = |(dim, got): (&Dim, &usize)| dim.as_const().is_some_and(|size| size != *got as i64);
            if let Some(axis) = shape.iter().zip(&array.shape).position(differs) {
                return wrong(InputError::Shape(BindError::Size {
                    input: name.to_owned(),
                    axis,
                    got: array.shape[axis],
                    declared: shape[axis].to_string(),
                }));
            }
        }
        Ok(())
    }

    /// Takes a plan's inputs from the arrays and, with a seed, makes up the rest. A lone `.npy` serves a model with one
    /// input. States begin as zeros, as in a session.
    ///
    /// # Errors
    /// Arrays that are not the model's inputs, of which none is read then; sizes that do not go together, or that are
    /// too large to be made up.
    pub fn inputs(&self, plan: &Plan, seed: Option<u64>) -> Result<IndexMap<String, HostTensor>> {
        let names: Vec<&str> = plan.inputs.iter().map(|p| p.name.as_str()).collect();
        let lone = arrays::lone_name(&self.files, &names);
        let arrays = self.files.iter().flat_map(|file| {
            let described = file.arrays().iter();
            described.map(move |(name, array)| (lone.unwrap_or(name), (file, name, array)))
        });
        let arrays: IndexMap<&str, (&ArrayFile, &String, &Described)> = arrays.collect();
        let described = arrays.iter().map(|(name, (_, _, array))| (*name, *array));
        let mut bindings = ir::dim::hints(&plan.symbols);
        bindings.extend(fit(plan, &described.collect(), seed.is_some())?);
        check_room(plan, &bindings)?;
        let mut given = IndexMap::new();
        for (name, (file, own, _)) in &arrays {
            given.insert((*name).to_owned(), file.read(own)?);
        }
        for port in &plan.inputs {
            let is_state = plan.states.iter().any(|state| state.input == port.name);
            if is_state && !given.contains_key(&port.name) {
                given.extend(zeros(port)?.map(|tensor| (port.name.clone(), tensor)));
            }
        }
        if let Some(seed) = seed {
            for port in &plan.inputs {
                if !given.contains_key(&port.name) {
                    // Sizes that the given arrays fix hold for the made-up ones too.
                    let made = graphc::random::tensor(&port.name, &port.ty, &bindings, seed)?;
                    given.insert(port.name.clone(), made);
                }
            }
        }
        Ok(given)
    }
}

/// The error of an artifact's inputs. It no longer knows which of its constants could have been given.
fn in_artifact(error: InputError, inputs: Vec<String>) -> Error {
    let name = match &error {
        InputError::Unknown(name) => Some(name.clone()),
        _ => None,
    };
    let error = Error::Runtime(RuntimeError::Input { error, inputs });
    match name {
        Some(name) => Error::Config(format!(
            "{error}; a value that the model has itself (an initializer) is a constant of an artifact: to give it at each run, run the \
             .onnx file, or compile that with --shape '{name}=[DIMS]', which makes it an input"
        )),
        None => error,
    }
}

/// Checks that the machine has the memory that a run is planned to take, before its inputs take their part: inputs,
/// outputs and, on the CPU, the buffers between steps.
fn check_room(plan: &Plan, bindings: &ir::Bindings) -> Result<()> {
    let ports = plan.inputs.iter().chain(&plan.outputs);
    let sizes = ports.filter_map(|port| port.ty.bytes().eval(bindings).ok());
    let ports = sizes.fold(0u64, |sum, bytes| sum.saturating_add(u64::try_from(bytes).unwrap_or(0)));
    let between = match plan.target.is_gpu() {
        true => None,
        // Sizes that do not work out are refused by whoever runs.
        false => ir::plan::arena::place(plan, bindings).ok(),
    };
    let planned = ports.saturating_add(between.map_or(0, |placement| placement.total as u64));
    let sizes: Vec<String> = bindings
        .iter()
        .map(|(symbol, size)| format!("{symbol}={size}"))
        .collect();
    let what = || match sizes.is_empty() {
        true => "a run".to_owned(),
        false => format!("a run with {}", sizes.join(", ")),
    };
    ir::memory::check(planned, what).map_err(|error| Error::Config(error.to_string()))
}

/// Zeros of a port whose size the model fixes; None where it does not.
fn zeros(port: &Port) -> Result<Option<HostTensor>> {
    let Some(sizes) = port.ty.shape.as_consts() else {
        return Ok(None);
    };
    let shape: Vec<usize> = sizes.into_iter().map(|d| usize::try_from(d).unwrap_or(0)).collect();
    let bytes = port.ty.dtype.bytes_for(shape.iter().product());
    let room = ir::memory::reserve(bytes as u64, || format!("state {:?}", port.name));
    let mut zeros = room.map_err(|error| Error::Config(error.to_string()))?;
    zeros.resize(bytes, 0);
    let tensor = HostTensor::new(port.ty.dtype, shape, Storage::new(zeros));
    tensor.map(Some).map_err(|error| Error::Config(error.to_string()))
}

/// Holds what files say of their arrays against the inputs of a plan, and returns the sizes that they imply. Without
/// `some`, all inputs must be there.
fn fit(plan: &Plan, arrays: &IndexMap<&str, &Described>, some: bool) -> Result<ir::Bindings> {
    let wrong = |error| {
        let inputs = plan.inputs.iter().map(|p| format!("{}: {}", p.name, p.ty)).collect();
        Error::Runtime(RuntimeError::Input { error, inputs })
    };
    let port = |name: &str| plan.inputs.iter().find(|port: &&Port| port.name == name);
    for (name, array) in arrays {
        let Some(port) = port(name) else {
            return Err(wrong(InputError::Unknown((*name).to_owned())));
        };
        if array.dtype != port.ty.dtype {
            return Err(wrong(InputError::DType {
                name: port.name.clone(),
                got: array.dtype,
                declared: port.ty.dtype,
            }));
        }
    }
    let is_given = |port: &&Port| arrays.contains_key(port.name.as_str());
    let is_needed = |port: &&Port| plan.states.iter().all(|state| state.input != port.name);
    let missing = plan.inputs.iter().find(|port| !is_given(port) && is_needed(port));
    if let Some(missing) = missing.filter(|_| !some) {
        return Err(wrong(InputError::Missing(missing.name.clone())));
    }
    let given = plan.inputs.iter().filter(is_given);
    let declared: Vec<(&str, &TensorType)> = given.map(|p| (p.name.as_str(), &p.ty)).collect();
    let shapes = arrays
        .iter()
        .map(|(name, array)| (*name, array.shape.as_slice()))
        .collect();
    let bound = ir::graph::bind_shapes(&plan.symbols, &declared, &shapes);
    bound.map_err(|error| wrong(InputError::Shape(error)))
}
