//! Streams and events: what is queued, what it waits for, and which of it runs next.
//!
//! A stream is a list of work in order. A piece of work names positions of other streams that must be done before it;
//! events are such positions, and so is the order between the null stream and blocking streams. Any order that keeps
//! these is one that a device may choose.

use crate::config::FaultKind;
use crate::graph::GraphNode;
use crate::launch::Launch;
use crate::memory::{Rows, Spot};
use crate::state::{Runtime, report};
use crate::status::{Status, of_launch, of_memory};
use graphc_emu::{Gpu, LaunchError, TimingOptions};
use hip_sys::{hipError_t, hipStream_t};
use std::collections::{BTreeSet, VecDeque};
use std::ffi::c_void;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// A position in a stream: done once the stream has done this many pieces of work.
pub type Position = (u64, u64);

/// Work that a stream does.
#[derive(Clone)]
pub enum Action {
    Copy {
        to: Spot,
        from: Spot,
        size: u64,
    },
    Fill {
        to: Spot,
        pattern: Vec<u8>,
        size: u64,
    },
    /// A copy of `height` rows.
    CopyRows {
        to: Spot,
        from: Spot,
        rows: Rows,
    },
    Launch(Arc<Launch>),
    /// Calls a function of the program.
    Host(HostCall),
    /// Notes the time of an event's record number `record`.
    Record {
        event: u64,
        record: u64,
    },
    /// Frees stream-ordered memory.
    Free {
        device: usize,
        address: u64,
    },
    Graph(Arc<Vec<GraphNode>>),
    /// Only waits.
    Nothing,
}

/// A function of the program that a stream calls, with its argument.
#[derive(Clone, Copy)]
pub struct HostCall {
    function: HostFunction,
    argument: *mut c_void,
}

/// The two kinds of functions that streams call.
#[derive(Clone, Copy)]
pub enum HostFunction {
    /// `hipHostFn_t`.
    Plain(unsafe extern "C" fn(*mut c_void)),
    /// `hipStreamCallback_t`, with the stream's handle as the program has it.
    WithStream(unsafe extern "C" fn(hipStream_t, hipError_t, *mut c_void), hipStream_t),
}

// SAFETY: whoever queues the call gives a function and an argument that any thread may use: HIP's streams run them on
// threads of their own.
unsafe impl Send for HostCall {}
// SAFETY: as above.
unsafe impl Sync for HostCall {}

impl HostCall {
    pub fn new(function: HostFunction, argument: *mut c_void) -> HostCall {
        HostCall { function, argument }
    }

    fn run(self) {
        match self.function {
            // SAFETY: by HIP's contract the function can be called with this argument when the stream comes to it.
            HostFunction::Plain(function) => unsafe { function(self.argument) },
            HostFunction::WithStream(function, stream) => {
                // SAFETY: as above.
                unsafe { function(stream, hipError_t::hipSuccess, self.argument) }
            }
        }
    }
}

pub struct Work {
    sequence: u64,
    after: Vec<Position>,
    action: Action,
}

/// A stream.
pub struct Stream {
    pub device: usize,
    /// Whether it keeps order with the null stream.
    pub blocking: bool,
    pub priority: i32,
    pub destroyed: bool,
    /// The capture that takes its work.
    pub capture: Option<u64>,
    queue: VecDeque<Work>,
    pub enqueued: u64,
    pub done: u64,
    /// Whether its work never ends.
    pub stuck: bool,
    /// Whether it carried copies between devices.
    pub carries: bool,
    weight: u64,
}

/// How a piece of work ends that does not go well.
enum End {
    Failed(hipError_t),
    Never,
}

impl From<hipError_t> for End {
    fn from(code: hipError_t) -> End {
        End::Failed(code)
    }
}

impl Stream {
    pub fn new(device: usize, blocking: bool, priority: i32, weight: u64) -> Stream {
        Stream {
            device,
            blocking,
            priority,
            destroyed: false,
            capture: None,
            queue: VecDeque::new(),
            enqueued: 0,
            done: 0,
            stuck: false,
            carries: false,
            weight,
        }
    }
}

/// An event.
pub struct Event {
    pub device: usize,
    pub timing: bool,
    pub state: Recorded,
    /// How often it was recorded.
    pub records: u64,
    /// Milliseconds since the library's start at which the last record was reached.
    pub time: Option<f64>,
}

/// What an event stands for.
#[derive(Clone)]
pub enum Recorded {
    Never,
    At(Position),
    /// Nodes of a capture.
    In {
        capture: u64,
        nodes: BTreeSet<usize>,
    },
}

impl Runtime {
    /// Queues work, after what its stream holds and after `after`; a capturing stream takes it into its graph.
    pub fn submit(&mut self, stream: u64, action: Action, mut after: Vec<Position>) -> Status {
        if let Some(capture) = self.stream(stream)?.capture {
            return self.capture_node(capture, stream, action);
        }
        let device = self.stream(stream)?.device;
        self.devices[device].sticky.map_or(Ok(()), Err)?;
        let null = self.devices[device].null_stream;
        if stream == null {
            let blocking = self.streams.iter().filter(|(_, s)| s.device == device && s.blocking);
            after.extend(blocking.filter(|(id, _)| **id != null).map(|(id, s)| (*id, s.enqueued)));
        } else if self.stream(stream)?.blocking {
            after.push((null, self.stream(null)?.enqueued));
        }
        self.sequence += 1;
        let work = Work {
            sequence: self.sequence,
            after,
            action,
        };
        let stream = self.stream_mut(stream)?;
        stream.queue.push_back(work);
        stream.enqueued += 1;
        // A device does not wait for anybody to look: sometimes it is ahead.
        if let Some(random) = &mut self.random {
            for _ in 0..random.below(3) {
                self.step();
            }
        }
        Ok(())
    }

    pub fn stream(&self, stream: u64) -> Result<&Stream, hipError_t> {
        self.streams.get(&stream).ok_or(hipError_t::hipErrorInvalidHandle)
    }

    pub fn stream_mut(&mut self, stream: u64) -> Result<&mut Stream, hipError_t> {
        self.streams.get_mut(&stream).ok_or(hipError_t::hipErrorInvalidHandle)
    }

    /// Whether a position is reached.
    pub fn reached(&self, (stream, position): Position) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.done >= position)
    }

    /// Runs work until the positions are reached, and gives the error of the device's kernels if there is one.
    pub fn wait(&mut self, device: usize, positions: &[Position]) -> Status {
        while !positions.iter().all(|position| self.reached(*position)) {
            if !self.step() {
                if self.streams.values().any(|stream| stream.stuck) {
                    // A real call would be there still.
                    report("a call waits for work that is never done");
                    self.blocked += 1;
                    return Err(hipError_t::hipErrorUnknown);
                }
                // Waits name only what was queued before, so some work can always run.
                report("no queued work can run");
                return Err(hipError_t::hipErrorUnknown);
            }
        }
        self.devices[device].sticky.map_or(Ok(()), Err)
    }

    /// Waits for all work of a device.
    pub fn drain(&mut self, device: usize) -> Status {
        let positions: Vec<Position> = self
            .streams
            .iter()
            .filter(|(_, s)| s.device == device)
            .map(|(id, s)| (*id, s.enqueued))
            .collect();
        let result = self.wait(device, &positions);
        self.streams
            .retain(|_, stream| !(stream.destroyed && stream.queue.is_empty()));
        result
    }

    /// Runs one piece of work that may run now; false when there is none.
    pub fn step(&mut self) -> bool {
        let ready: Vec<(u64, u64, u64)> = self
            .streams
            .iter()
            .filter(|(_, stream)| !stream.stuck)
            .filter_map(|(id, stream)| {
                let head = stream.queue.front()?;
                head.after
                    .iter()
                    .all(|position| self.reached(*position))
                    .then_some((head.sequence, *id, stream.weight))
            })
            .collect();
        let chosen = match &mut self.random {
            None => ready.iter().min().map(|(_, id, _)| *id),
            Some(_) if ready.is_empty() => None,
            Some(random) => {
                let total: u64 = ready.iter().map(|(_, _, weight)| weight).sum();
                let mut at = random.below(total as usize) as u64;
                ready.iter().find_map(|(_, id, weight)| {
                    let here = at < *weight;
                    at = at.saturating_sub(*weight);
                    here.then_some(*id)
                })
            }
        };
        let Some(stream) = chosen.and_then(|id| self.streams.get_mut(&id)) else {
            return false;
        };
        let Some(work) = stream.queue.pop_front() else {
            return false;
        };
        stream.done += 1;
        let device = stream.device;
        // After a fault nothing more runs; waiters must still come to their end.
        if self.devices[device].sticky.is_some() {
            return true;
        }
        match self.act(device, &work.action) {
            Ok(()) => {}
            Err(End::Failed(code)) => self.devices[device].sticky = Some(code),
            Err(End::Never) => {
                if let Some(stream) = chosen.and_then(|id| self.streams.get_mut(&id)) {
                    stream.done -= 1;
                    stream.stuck = true;
                }
            }
        }
        true
    }

    fn act(&mut self, device: usize, action: &Action) -> Result<(), End> {
        match action {
            Action::Nothing => Ok(()),
            Action::Copy { to, from, size } => {
                if self.faults.hit(&FaultKind::Copy) {
                    return Err(hipError_t::hipErrorUnknown.into());
                }
                Ok(self.copy_now(to, from, *size)?)
            }
            Action::Fill { to, pattern, size } => {
                if self.faults.hit(&FaultKind::Copy) {
                    return Err(hipError_t::hipErrorUnknown.into());
                }
                Ok(self.fill_now(to, pattern, *size)?)
            }
            Action::CopyRows { to, from, rows } => {
                if self.faults.hit(&FaultKind::Copy) {
                    return Err(hipError_t::hipErrorUnknown.into());
                }
                for row in 0..rows.height {
                    let (to, from) = (to.at(row * rows.to_pitch), from.at(row * rows.from_pitch));
                    self.copy_now(&to, &from, rows.width)?;
                }
                Ok(())
            }
            Action::Host(call) => {
                call.run();
                Ok(())
            }
            Action::Launch(launch) => {
                if self.faults.hit(&FaultKind::Launch) {
                    return Err(hipError_t::hipErrorLaunchFailure.into());
                }
                if self.faults.hit(&FaultKind::Hang) {
                    return Err(End::Never);
                }
                let gpu = &self.devices[device].gpu;
                let Launch {
                    kernel,
                    size,
                    kernargs,
                    lds,
                } = &**launch;
                let done = match &self.config.time {
                    Some(file) => time(gpu, launch, file, self.config.clock),
                    None => gpu
                        .launch_items(kernel, size.items, size.block, kernargs, *lds, &self.config.launch)
                        .map(|_| ()),
                };
                match done {
                    Ok(()) => Ok(()),
                    Err(LaunchError::Fault(fault)) if self.config.hangs && is_endless(&fault.kind) => Err(End::Never),
                    Err(error) => {
                        report(&error.to_string());
                        Err(of_launch(&error).into())
                    }
                }
            }
            Action::Record { event, record } => {
                let now = self.start.elapsed().as_secs_f64() * 1e3;
                if let Some(event) = self.events.get_mut(event)
                    && event.records == *record
                {
                    event.time = Some(now);
                }
                Ok(())
            }
            Action::Free { device, address } => {
                let size = self.devices[*device].gpu.memory().allocation(*address);
                self.pool_gets_back(*address, size.map_or(0, |(_, size)| size));
                let freed = self.devices[*device].gpu.memory().free(*address);
                freed.map_err(|error| {
                    report(&format!("hipFreeAsync: {error}"));
                    End::Failed(of_memory(&error))
                })
            }
            Action::Graph(nodes) => self.act_graph(device, nodes),
        }
    }

    /// Runs a graph's nodes in an order that their edges allow.
    fn act_graph(&mut self, device: usize, nodes: &[GraphNode]) -> Result<(), End> {
        let mut done = vec![false; nodes.len()];
        for _ in 0..nodes.len() {
            let ready: Vec<usize> = (0..nodes.len())
                .filter(|index| !done[*index] && nodes[*index].after.iter().all(|before| done[*before]))
                .collect();
            // Edges lead from earlier nodes to later ones, so one is always ready.
            let Some(first) = ready.first() else {
                return Err(hipError_t::hipErrorUnknown.into());
            };
            let index = self
                .random
                .as_mut()
                .map_or(*first, |random| ready[random.below(ready.len())]);
            self.act(device, &nodes[index].action)?;
            done[index] = true;
        }
        Ok(())
    }
}

/// Whether a kernel was stopped because it would not have ended by itself.
fn is_endless(kind: &graphc_emu::FaultKind) -> bool {
    use graphc_emu::FaultKind::{Deadlock, InstructionLimit};
    matches!(kind, InstructionLimit(_) | Deadlock)
}

/// Predicts a launch's time and adds the report to a file.
fn time(gpu: &Gpu, launch: &Launch, file: &Path, ghz: Option<f64>) -> Result<(), LaunchError> {
    let Launch {
        kernel,
        size,
        kernargs,
        lds,
    } = launch;
    let options = TimingOptions {
        ghz,
        ..TimingOptions::default()
    };
    let timed = gpu.time(kernel, size.items, size.block, kernargs, *lds, &options)?;
    let opened = OpenOptions::new().append(true).create(true).open(file);
    if let Err(error) = opened.and_then(|mut file| writeln!(file, "{}", timed.json())) {
        report(&format!("GRAPHC_EMU_TIME: {}: {error}", file.display()));
    }
    Ok(())
}
