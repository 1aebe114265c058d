//! Runs on the CPU that are not waited for: one after the other on a thread of the program's own.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use ir::HostTensor;
use ir::dim::Bindings;
use smallvec::SmallVec;

use super::kernels::workspace::AlignedBuf;
use super::loaded::{LoadedCpu, RawPort};
use crate::device::Running;
use crate::error::{InputError, RuntimeError};
use crate::tensor::{DeviceTensor, Given, HostBlock, Memory, Reading, Value, Where};

type Job = Box<dyn FnOnce() + Send>;

/// The thread that runs. It begins with the first run and ends with this value, after the runs that were begun.
#[derive(Default)]
pub(super) struct Queue {
    sender: Mutex<Option<Sender<Job>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    /// Puts a run at the end; where there is no thread to be had it runs here.
    fn add(&self, job: Job) {
        let mut sender = lock(&self.sender);
        let job = match &*sender {
            Some(thread) => match thread.send(job) {
                Ok(()) => return,
                Err(back) => back.0,
            },
            None => job,
        };
        let (new, receiver) = channel::<Job>();
        let made = std::thread::Builder::new().name("graphc-runs".into()).spawn(move || {
            for job in receiver {
                job();
            }
        });
        if made.is_err() {
            drop(sender);
            return job();
        }
        if let Err(back) = new.send(job) {
            drop(sender);
            return back.0();
        }
        *sender = Some(new);
    }
}

/// An input while its run is under way.
enum Input {
    Host(HostTensor),
    Block(Reading, usize, usize),
    /// Given away whole.
    Donated(Arc<HostBlock>),
    /// Is where this output is, and there once the block is filled.
    InPlace(usize, Arc<HostBlock>),
}

/// See the module.
struct CpuRun {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Outputs until they are taken.
    outputs: Vec<Option<DeviceTensor>>,
    wanted: SmallVec<[Where; 8]>,
    ended: Option<Result<(), RuntimeError>>,
    wakers: Vec<Waker>,
}

impl CpuRun {
    fn end(&self, result: Result<(), RuntimeError>) {
        let mut state = lock(&self.state);
        state.ended = Some(result);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.changed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Opens latches and wakes who waits, also where a kernel panicked.
struct Ending {
    run: Arc<CpuRun>,
    blocks: Vec<Arc<HostBlock>>,
    result: Option<Result<(), RuntimeError>>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let panicked = || Err(RuntimeError::Program("a kernel of the CPU device panicked".into()));
        let result = self.result.take().unwrap_or_else(panicked);
        for block in self.blocks.drain(..) {
            block.ready().set(result.is_ok());
        }
        self.run.end(result);
    }
}

/// Begins a run.
pub(super) fn submit(
    loaded: Arc<LoadedCpu>,
    bindings: &Bindings,
    inputs: Vec<Given>,
    wanted: &[Where],
) -> Result<Arc<dyn Running>, RuntimeError> {
    let prepared = loaded.checked(bindings, inputs.iter().map(Given::bytes), None)?;
    let wrong = |error| RuntimeError::input(error, loaded.inputs());
    let mut given = Vec::with_capacity(inputs.len());
    for (port, input) in loaded.inputs().iter().zip(inputs) {
        let is_donated = matches!(input, Given::Donated(_));
        let tensor = match input {
            Given::Host(tensor) => {
                given.push(Input::Host(tensor));
                continue;
            }
            Given::Device(tensor) | Given::Donated(tensor) => tensor,
        };
        let Memory::Host(block) = tensor.memory().clone() else {
            return Err(wrong(InputError::Elsewhere {
                name: port.name.clone(),
                on: tensor.device().to_owned(),
                device: "cpu".into(),
            }));
        };
        if is_donated && !tensor.is_only_handle() {
            return Err(wrong(InputError::Shared(port.name.clone())));
        }
        let (start, bytes) = (tensor.start(), tensor.bytes());
        // Without a handle nobody can begin to read the block any more.
        drop(tensor);
        let whole = start == 0 && bytes == block.len();
        given.push(if is_donated && whole {
            Input::Donated(block)
        } else {
            Input::Block(block.read(), start, bytes)
        });
    }
    let mut blocks = Vec::with_capacity(wanted.len());
    let mut outputs = Vec::with_capacity(wanted.len());
    for (index, port) in loaded.outputs().iter().enumerate() {
        let shape: Vec<usize> = port
            .ty
            .shape
            .eval(bindings)?
            .into_iter()
            .map(|d| usize::try_from(d).unwrap_or(0))
            .collect();
        let asked = port.ty.dtype.bytes_for(shape.iter().product());
        let successor = loaded.in_place(index).and_then(|input| {
            let Input::Donated(block) = &given[input] else {
                return None;
            };
            let successor = block.successor().filter(|successor| successor.len() == asked)?;
            given[input] = Input::InPlace(index, block.clone());
            Some(successor)
        });
        let block = match successor {
            Some(block) => block,
            None => HostBlock::to_fill(AlignedBuf::try_new(asked).ok_or_else(|| RuntimeError::no_memory(asked))?),
        };
        let block = Arc::new(block);
        outputs.push(Some(DeviceTensor::new(
            port.ty.dtype,
            shape,
            Memory::Host(block.clone()),
        )));
        blocks.push(block);
    }
    let run = Arc::new(CpuRun {
        state: Mutex::new(State {
            outputs,
            wanted: wanted.into(),
            ..State::default()
        }),
        changed: Condvar::new(),
    });
    let mut ending = Ending {
        run: run.clone(),
        blocks: blocks.clone(),
        result: None,
    };
    let worker = loaded.clone();
    loaded.queue().add(Box::new(move || {
        let loaded = worker;
        let raw = |block: &HostBlock, len| RawPort {
            ptr: block.address() as *mut u8,
            len,
        };
        let room: SmallVec<[RawPort; 8]> = blocks.iter().map(|block| raw(block, block.len())).collect();
        let ready = given.iter().try_for_each(|input| match input {
            Input::Block(block, ..) => block.block().wait(),
            Input::Donated(block) | Input::InPlace(_, block) => block.wait(),
            Input::Host(_) => Ok(()),
        });
        let ports: SmallVec<[RawPort; 8]> = given
            .iter()
            .map(|input| match input {
                Input::Host(tensor) => RawPort {
                    ptr: tensor.bytes.as_ptr().cast_mut(),
                    len: tensor.bytes.len(),
                },
                Input::Block(block, start, len) => RawPort {
                    ptr: (block.block().address() as *mut u8).wrapping_add(*start),
                    len: *len,
                },
                Input::Donated(block) => raw(block, block.len()),
                Input::InPlace(output, _) => room[*output],
            })
            .collect();
        // SAFETY: inputs are there and held until the run is done; outputs are new, or a donated input's that nothing
        // else reads, and nobody reads them before the latch is open.
        ending.result = Some(ready.and_then(|()| unsafe { loaded.execute(&prepared, &ports, &room, None) }));
        drop(given);
        drop(ending);
    }));
    Ok(run)
}

impl Running for CpuRun {
    fn is_done(&self) -> bool {
        lock(&self.state).ended.is_some()
    }

    fn wait(&self) -> Result<Vec<Option<Value>>, RuntimeError> {
        let mut state = lock(&self.state);
        while state.ended.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let twice = || {
            Err(RuntimeError::Program(
                "the outputs of a run were asked for twice".into(),
            ))
        };
        state.ended.replace(twice()).unwrap_or_else(twice)?;
        let wanted = std::mem::take(&mut state.wanted);
        let outputs = std::mem::take(&mut state.outputs);
        let values = outputs.into_iter().zip(wanted).map(|(tensor, at)| match (tensor, at) {
            (None, _) => Ok(None),
            (Some(tensor), Where::Device) => Ok(Some(Value::Device(tensor))),
            (Some(tensor), Where::Host) => tensor.download().map(|tensor| Some(Value::Host(tensor))),
        });
        values.collect()
    }

    fn take(&self, output: usize) -> Option<DeviceTensor> {
        let mut state = lock(&self.state);
        let at = *state.wanted.get(output)?;
        if at == Where::Host {
            return None;
        }
        state.outputs.get_mut(output)?.take()
    }

    fn wake(self: Arc<Self>, waker: Waker) {
        let mut state = lock(&self.state);
        if state.ended.is_some() {
            drop(state);
            return waker.wake();
        }
        state.wakers.push(waker);
    }
}
