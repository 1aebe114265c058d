//! Values that a model keeps from run to run: a cache of keys and values, an optimiser's sums, a running statistic.
//!
//! A state is an input of the model whose next value is one of its outputs. It stays on the device. Each run is given
//! its value as a donated tensor, so that the plan updates it in place where it can, and what the run makes of it is
//! there for the next at once: runs that are submitted in a row come after each other on the device and not on the
//! host.
//!
//! Copies are made late: a fork, a value that somebody looks at, and the state share memory until the next run writes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use indexmap::IndexMap;
use ir::graph::BindError;
use ir::plan::{Carried, Plan};
use ir::{HostTensor, Storage};

use crate::error::{InputError, RuntimeError};
use crate::executable::Executable;
use crate::pending::Pending;
use crate::tensor::{DeviceTensor, Given, Wanted, Where};

/// The state of one session with a program; see the [module](self). Several threads may run with it: one after the
/// other.
#[derive(Debug)]
pub struct State {
    links: Arc<[Link]>,
    /// The ports of each link among the inputs and the results.
    ports: Arc<[(usize, usize)]>,
    values: Arc<Mutex<Vec<Kept>>>,
}

/// An input whose next value is an output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    pub input: String,
    pub output: String,
}

impl Link {
    /// The states that a plan was compiled with.
    pub fn of_plan(plan: &Plan) -> Vec<Link> {
        let link = |state: &Carried| Link {
            input: state.input.clone(),
            output: state.output.clone(),
        };
        plan.states.iter().map(link).collect()
    }
}

/// The value of one state.
#[derive(Clone, Debug)]
struct Kept {
    slot: Slot,
    /// How often it was set by other than a run.
    set: u64,
}

impl Kept {
    fn new(slot: Slot) -> Kept {
        Kept { slot, set: 0 }
    }

    fn set(&mut self, slot: Slot) {
        self.slot = slot;
        self.set += 1;
    }
}

#[derive(Clone, Debug)]
enum Slot {
    /// All zeros, before the first run.
    Zero,
    Value(DeviceTensor),
    /// A run that failed may have written a part.
    Lost(String),
}

impl State {
    /// Makes a state that is all zeros.
    ///
    /// # Errors
    /// A link whose ends the model does not have or whose types differ; one end in two links.
    pub fn new(executable: &Executable, links: impl Into<Arc<[Link]>>) -> Result<State, RuntimeError> {
        let links = links.into();
        let plan = executable.plan();
        let mut ports = Vec::with_capacity(links.len());
        for (index, link) in links.iter().enumerate() {
            let wrong = |problem: String| {
                executable.wrong(InputError::State {
                    input: link.input.clone(),
                    output: link.output.clone(),
                    problem,
                })
            };
            let Some(from) = plan.inputs.iter().position(|port| port.name == link.input) else {
                return Err(wrong("the model has no such input".into()));
            };
            let Some(to) = plan.results().iter().position(|port| port.name == link.output) else {
                return Err(wrong("the model has no such output".into()));
            };
            let (input, output) = (&plan.inputs[from], &plan.results()[to]);
            if input.ty != output.ty {
                return Err(wrong(format!("the input is {}, the output {}", input.ty, output.ty)));
            }
            let before = &links[..index];
            if before
                .iter()
                .any(|other| other.input == link.input || other.output == link.output)
            {
                return Err(wrong("one of them is in another state too".into()));
            }
            ports.push((from, to));
        }
        let values = links.iter().map(|_| Kept::new(Slot::Zero)).collect();
        Ok(State::with(links, ports.into(), values))
    }

    fn with(links: Arc<[Link]>, ports: Arc<[(usize, usize)]>, values: Vec<Kept>) -> State {
        let values = Arc::new(Mutex::new(values));
        State { links, ports, values }
    }

    /// What is kept, and of what.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a run with the state, and takes what it makes of it. `inputs` are the others.
    ///
    /// # Errors
    /// As [`Executable::submit`]. A run that was refused leaves the state as it is; one that failed on the device, or
    /// was waited for and found an index outside of its axis, loses it.
    pub fn submit<'a>(
        &self,
        executable: &Executable,
        inputs: impl IntoIterator<Item = (&'a str, Given)>,
        wanted: &Wanted,
    ) -> Result<Pending, RuntimeError> {
        let mut slots = self.slots();
        let mut places = executable.places(wanted)?;
        // Memory does not count as a handle, so what is given away can come back.
        let mut backups = Vec::with_capacity(slots.len());
        let set: Vec<u64> = slots.iter().map(|kept| kept.set).collect();
        let mut all = executable.by_port(inputs)?;
        if let Some(kept) = self.ports.iter().position(|(input, _)| all[*input].is_some()) {
            return Err(executable.wrong(InputError::IsState(self.links[kept].input.clone())));
        }
        for (kept, link) in slots.iter_mut().zip(self.links.iter()) {
            match &kept.slot {
                Slot::Zero => kept.slot = Slot::Value(zeros(executable, &link.input)?),
                Slot::Value(_) => {}
                Slot::Lost(reason) => {
                    return Err(executable.wrong(InputError::NoState {
                        name: link.input.clone(),
                        reason: reason.clone(),
                    }));
                }
            }
        }
        for (kept, (input, output)) in slots.iter_mut().zip(self.ports.iter()) {
            let Slot::Value(tensor) = std::mem::replace(&mut kept.slot, Slot::Zero) else {
                continue;
            };
            backups.push((
                tensor.dtype(),
                tensor.shape().to_vec(),
                tensor.start(),
                tensor.memory().clone(),
            ));
            let given = if tensor.is_only_handle() {
                Given::Donated(tensor)
            } else {
                Given::Device(tensor)
            };
            all[*input] = Some(given);
            places[*output] = Where::Device;
        }
        match executable.submit_ports(all, places) {
            Ok(mut pending) => {
                drop(backups);
                for (kept, (_, output)) in slots.iter_mut().zip(self.ports.iter()) {
                    kept.slot = match pending.take_port(*output) {
                        Some(tensor) => Slot::Value(tensor),
                        None => Slot::Lost("the run gave no new one".into()),
                    };
                }
                pending.spoils(Made {
                    values: Arc::downgrade(&self.values),
                    set,
                });
                Ok(pending)
            }
            Err(error) => {
                let may_have_written = error.may_have_written();
                for (kept, (dtype, shape, start, memory)) in slots.iter_mut().zip(backups) {
                    kept.slot = match may_have_written {
                        true => Slot::Lost(format!("a run failed: {error}")),
                        false => Slot::Value(DeviceTensor::again(dtype, shape, start, memory)),
                    };
                }
                Err(error)
            }
        }
    }

    /// Makes everything zero.
    pub fn reset(&self) {
        self.slots().iter_mut().for_each(|kept| kept.set(Slot::Zero));
    }

    /// Sets one value; a tensor of the device is shared until the next run writes.
    ///
    /// # Errors
    /// No such state, or a tensor of another type or shape than the model's input.
    pub fn set(&self, executable: &Executable, input: &str, value: impl Into<Given>) -> Result<(), RuntimeError> {
        let Some(at) = self.links.iter().position(|link| link.input == input) else {
            return Err(executable.wrong(InputError::NoState {
                name: input.to_owned(),
                reason: "it is no state of the model".into(),
            }));
        };
        let value = value.into();
        check(executable, self.ports[at].0, &value)?;
        let tensor = match value {
            Given::Host(tensor) => executable.upload(&tensor)?,
            Given::Device(tensor) | Given::Donated(tensor) => tensor,
        };
        self.slots()[at].set(Slot::Value(tensor));
        Ok(())
    }

    /// The value of one state on the device; None before the first run.
    pub fn get(&self, input: &str) -> Option<DeviceTensor> {
        let at = self.links.iter().position(|link| link.input == input)?;
        match &self.slots()[at].slot {
            Slot::Value(tensor) => Some(tensor.clone()),
            Slot::Zero | Slot::Lost(_) => None,
        }
    }

    /// Copies the values to the host, by the names of the inputs. Those before the first run are not among them.
    ///
    /// # Errors
    /// What the device reports.
    pub fn save(&self) -> Result<IndexMap<String, HostTensor>, RuntimeError> {
        let slots = self.slots().clone();
        let mut saved = IndexMap::new();
        for (kept, link) in slots.into_iter().zip(self.links.iter()) {
            if let Slot::Value(tensor) = kept.slot {
                let host = tensor.download()?;
                // On the CPU device the bytes are the state's own, which would keep it from being written in place.
                let bytes = Storage::new(host.bytes.to_vec());
                saved.insert(link.input.clone(), HostTensor { bytes, ..host });
            }
        }
        Ok(saved)
    }

    /// Sets what was saved, and makes the rest zero.
    ///
    /// # Errors
    /// As [`State::set`].
    pub fn load(&self, executable: &Executable, saved: &IndexMap<String, HostTensor>) -> Result<(), RuntimeError> {
        self.reset();
        saved
            .iter()
            .try_for_each(|(name, tensor)| self.set(executable, name, tensor))
    }

    /// Another state that begins with these values.
    pub fn fork(&self) -> State {
        State::with(self.links.clone(), self.ports.clone(), self.slots().clone())
    }
}

/// What a run made of a state. Whether the values mean anything is known when the run is done, and later runs may have
/// used them.
#[derive(Debug)]
pub(crate) struct Made {
    values: Weak<Mutex<Vec<Kept>>>,
    /// How often each value had been set when the run began.
    set: Vec<u64>,
}

impl Made {
    /// The run's values are not to be used, and neither is what later runs made of them.
    pub fn lose(&self, reason: &str) {
        let Some(values) = self.values.upgrade() else { return };
        let mut values = values.lock().unwrap_or_else(PoisonError::into_inner);
        for (kept, set) in values.iter_mut().zip(&self.set) {
            if kept.set == *set {
                kept.slot = Slot::Lost(format!("a run failed: {reason}"));
            }
        }
    }
}

/// Holds a value against the input that it is for: now, and not when a run is refused for it.
fn check(executable: &Executable, input: usize, value: &Given) -> Result<(), RuntimeError> {
    let plan = executable.plan();
    let port = &plan.inputs[input];
    let (dtype, shape) = value.ty();
    executable.check_input(&port.name, &port.ty, (dtype, shape), value.bytes())?;
    let wrong = |error| Err(executable.wrong(InputError::Shape(error)));
    if shape.len() != port.ty.rank() {
        return wrong(BindError::Rank {
            input: port.name.clone(),
            got: shape.len(),
            declared: port.ty.to_string(),
        });
    }
    for (axis, (got, dim)) in shape.iter().zip(port.ty.shape.iter()).enumerate() {
        let bounds = dim
            .as_symbol()
            .and_then(|symbol| Some((symbol, plan.symbols.get(symbol)?)));
        if dim.as_const().is_some_and(|size| size != *got as i64) {
            return wrong(BindError::Size {
                input: port.name.clone(),
                axis,
                got: *got,
                declared: dim.to_string(),
            });
        }
        if let Some((symbol, info)) = bounds
            && ((*got as i64) < info.min || info.max.is_some_and(|max| *got as i64 > max))
        {
            return wrong(BindError::Bounds {
                input: port.name.clone(),
                axis,
                symbol: symbol.clone(),
                got: *got as i64,
                min: info.min,
                max: info.max,
            });
        }
    }
    Ok(())
}

/// Zeros of an input's type.
fn zeros(executable: &Executable, input: &str) -> Result<DeviceTensor, RuntimeError> {
    let port = executable.plan().inputs.iter().find(|port| port.name == input);
    let sizes = port.and_then(|port| Some((port.ty.dtype, port.ty.shape.as_consts()?)));
    let Some((dtype, sizes)) = sizes else {
        return Err(executable.wrong(InputError::NoState {
            name: input.to_owned(),
            reason: "its size is not fixed by the model, so it cannot begin as zeros".into(),
        }));
    };
    let shape: Vec<usize> = sizes.into_iter().map(|d| usize::try_from(d).unwrap_or(0)).collect();
    let bytes = vec![0; dtype.bytes_for(shape.iter().product())];
    executable.upload(&HostTensor {
        dtype,
        shape,
        bytes: Storage::new(bytes),
    })
}
