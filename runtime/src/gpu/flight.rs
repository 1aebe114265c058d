//! A run that is under way, and its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use ir::HostTensor;
use ir::Storage;
use ir::plan::Port;
use smallvec::SmallVec;

use super::block::Block;
use super::context::Context;
use super::loaded::LoadedGpu;
use super::prepare::{OutputFrom, Prepared};
use crate::device::{Loaded, Running};
use crate::error::RuntimeError;
use crate::tensor::{DeviceTensor, Given, Value, Where};

/// What a run holds until it is done.
pub(super) struct Live {
    pub context: Context,
    pub prepared: Arc<Prepared>,
    /// The memory of the tensors that it reads and writes.
    pub blocks: SmallVec<[Arc<Block>; 8]>,
    /// Outputs that are on the device, until they are taken.
    pub outputs: Vec<Option<DeviceTensor>>,
    /// The inputs that outputs are.
    pub passed: Vec<(usize, Given)>,
    pub wanted: SmallVec<[Where; 8]>,
}

/// See the module.
pub(super) struct Flight {
    loaded: Arc<LoadedGpu>,
    state: Mutex<State>,
    done: Arc<super::handles::Event>,
    begun: Instant,
}

enum State {
    UnderWay(Box<Live>),
    Done(Result<Vec<Option<Value>>, RuntimeError>),
    Taken,
}

impl Flight {
    pub fn new(loaded: Arc<LoadedGpu>, live: Live) -> Flight {
        Flight {
            loaded,
            done: live.context.done.clone(),
            begun: Instant::now(),
            state: Mutex::new(State::UnderWay(Box::new(live))),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the run, takes its outputs to the host where they are wanted there, and gives its context back.
    pub fn finish(&self) {
        let mut state = self.state();
        if !matches!(*state, State::UnderWay(_)) {
            return;
        }
        if let State::UnderWay(live) = std::mem::replace(&mut *state, State::Taken) {
            *state = State::Done(self.loaded.finish(*live));
        }
    }
}

impl Running for Flight {
    fn is_done(&self) -> bool {
        match &*self.state() {
            // What is wrong is said by whoever waits.
            State::UnderWay(_) => {
                let gpu = self.loaded.gpu();
                // Who waits for one that takes too long finds that out.
                gpu.is_overdue(self.begun)
                    || gpu.enter("looking after a run").is_err()
                    || self.done.query() != Ok(false)
            }
            State::Done(_) | State::Taken => true,
        }
    }

    fn wait(&self) -> Result<Vec<Option<Value>>, RuntimeError> {
        self.finish();
        match std::mem::replace(&mut *self.state(), State::Taken) {
            State::Done(result) => result,
            State::UnderWay(_) | State::Taken => Err(RuntimeError::Program(
                "the outputs of a run were asked for twice".into(),
            )),
        }
    }

    fn take(&self, output: usize) -> Option<DeviceTensor> {
        match &mut *self.state() {
            State::UnderWay(live) => live.outputs.get_mut(output)?.take(),
            State::Done(Ok(values)) => match values.get_mut(output)?.take()? {
                Value::Device(tensor) => Some(tensor),
                host @ Value::Host(_) => {
                    values[output] = Some(host);
                    None
                }
            },
            State::Done(Err(_)) | State::Taken => None,
        }
    }

    fn wake(self: Arc<Self>, waker: Waker) {
        // Nothing of the run is held when its task is woken: whoever drops the program last is not the thread that
        // watches. A run that is dropped was waited for.
        let flight = Arc::downgrade(&self);
        self.loaded.watch().add(Box::new(move || {
            let done = flight.upgrade().is_none_or(|flight| flight.is_done());
            if done {
                waker.wake_by_ref();
            }
            done
        }));
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // Nothing under way outlives what it uses.
        self.finish();
    }
}

/// Where the outputs of a run that is done go.
pub(super) struct Collect<'a> {
    pub loaded: &'a LoadedGpu,
    pub live: &'a mut Live,
}

impl Collect<'_> {
    /// All of them, in the ports' order; None where one was taken already.
    pub fn values(&mut self, ports: &[Port]) -> Result<Vec<Option<Value>>, RuntimeError> {
        let mut values: Vec<Option<Value>> = Vec::with_capacity(ports.len());
        for (index, port) in ports.iter().enumerate() {
            let bytes = self.live.prepared.output_bytes[index];
            let host = |bytes: Vec<u8>| {
                Value::Host(HostTensor {
                    dtype: port.ty.dtype,
                    shape: self.live.prepared.output_shapes[index].clone(),
                    bytes: Storage::new(bytes),
                })
            };
            let value = match self.live.prepared.placed.outputs[index] {
                OutputFrom::Staging(at) => {
                    let mut to = vec![0; bytes];
                    self.live.context.read(at, &mut to);
                    Some(host(to))
                }
                OutputFrom::Device | OutputFrom::Donated(_) => self.live.outputs[index].take().map(Value::Device),
                OutputFrom::Same(first) => values[first].clone(),
                OutputFrom::Constant(id) => {
                    let constant = &self.loaded.program().constants[id].tensor.bytes;
                    Some(host(constant[..bytes].to_vec()))
                }
                OutputFrom::Input(input) => {
                    let passed = self.live.passed.iter().find(|(port, _)| *port == input);
                    passed.map(|(_, given)| match given {
                        Given::Host(tensor) => Value::Host(tensor.clone()),
                        Given::Device(tensor) | Given::Donated(tensor) => Value::Device(tensor.clone()),
                    })
                }
            };
            let value = match (value, self.live.wanted[index]) {
                (Some(Value::Host(tensor)), Where::Device) => Some(Value::Device(self.loaded.upload(&tensor)?)),
                (Some(Value::Device(tensor)), Where::Host) => Some(Value::Host(tensor.download()?)),
                (value, _) => value,
            };
            values.push(value);
        }
        Ok(values)
    }
}
