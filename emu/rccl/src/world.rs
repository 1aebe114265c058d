//! The ranks of one set of communicators: where they meet, and what is queued once all are there.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::hip::{Hip, hip};
use crate::{Code, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SYSTEM_ERROR, UNHANDLED_CUDA_ERROR, report, sum};

/// `hipStreamNonBlocking`, `hipEventDisableTiming`, and copies whose direction the addresses say.
const NON_BLOCKING: c_uint = 1;
const NO_TIMING: c_uint = 2;
const DEFAULT: c_uint = 4;

/// Faults that tests plant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    Nothing,
    ResultNotAwaited,
    PartNotAwaited,
    Refused,
    Missing,
}

/// What is planted now, as a number.
pub static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Calls and bytes of each rank.
static COUNTS: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// What a rank gave so far: collectives and bytes.
pub fn counts(rank: usize) -> (u64, u64) {
    let counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    counts.get(rank).copied().unwrap_or_default()
}

/// What the ranks compute together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    AllReduce,
    AllGather,
}

/// What one rank asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Collective {
    pub kind: Kind,
    /// Of one rank's part.
    pub bytes: usize,
    pub dtype: c_uint,
}

/// One rank's handle.
pub struct Comm {
    pub world: Arc<World>,
    pub rank: usize,
}

impl Comm {
    pub fn new(world: &Arc<World>, rank: usize) -> Comm {
        Comm {
            world: world.clone(),
            rank,
        }
    }
}

/// See the module.
pub struct World {
    hip: &'static Hip,
    devices: Vec<c_int>,
    deadline: Duration,
    state: Mutex<State>,
    changed: Condvar,
    /// How many ranks left by being aborted.
    left: AtomicUsize,
}

struct State {
    arrived: Vec<Option<Arrival>>,
    /// How many collectives all came to.
    met: u64,
    /// How the last one ended.
    last: Result<(), Code>,
    ended: bool,
    /// The stream of rank 0's device on which parts are summed.
    stream: *mut c_void,
    jobs: Vec<Job>,
}

// SAFETY: handles and addresses of HIP, whose functions any thread may call.
unsafe impl Send for State {}

#[derive(Clone, Copy)]
struct Arrival {
    asked: Collective,
    part: u64,
    result: u64,
    stream: *mut c_void,
    /// Reached once the part is there.
    ready: *mut c_void,
}

/// A sum that is queued: memory that devices see, and what it is of.
struct Job {
    work: Box<Work>,
    room: usize,
    done: *mut c_void,
}

struct Work {
    dtype: c_uint,
    ranks: usize,
    bytes: usize,
    /// The parts, then the sum.
    memory: *mut u8,
}

/// Sums the parts of a piece of work.
unsafe extern "C" fn add(work: *mut c_void) {
    // SAFETY: whoever queued this keeps the work and its memory until it is done.
    let work = unsafe { &*work.cast::<Work>() };
    let all = work.ranks * work.bytes;
    // SAFETY: as above; the two do not overlap.
    let (parts, to) = unsafe {
        (
            std::slice::from_raw_parts(work.memory, all),
            std::slice::from_raw_parts_mut(work.memory.add(all), work.bytes),
        )
    };
    sum::sum(work.dtype, parts, work.ranks, to);
}

fn checked(call: &str, status: c_int) -> Result<(), Code> {
    if status == 0 {
        return Ok(());
    }
    report(&format!("{call} gave {status}"));
    Err(UNHANDLED_CUDA_ERROR)
}

/// Calls a function of HIP and makes its status a code.
macro_rules! call {
    ($hip:expr, $function:ident($($argument:expr),*)) => {
        // SAFETY: handles are alive, and addresses those that the ranks gave or that HIP did.
        checked(stringify!($function), unsafe { ($hip.$function)($($argument),*) })
    };
}

impl World {
    pub fn new(devices: Vec<c_int>) -> Result<Arc<World>, Code> {
        let Some(hip) = hip() else { return Err(SYSTEM_ERROR) };
        if let Some(at) = (1..devices.len()).find(|at| devices[..*at].contains(&devices[*at])) {
            report(&format!("ncclCommInitAll: device {} is there twice", devices[at]));
            return Err(INVALID_USAGE);
        }
        let mut before = 0;
        call!(hip, get_device(&mut before))?;
        for device in &devices {
            if call!(hip, set_device(*device)).is_err() {
                report(&format!("ncclCommInitAll: there is no device {device}"));
                return Err(INVALID_ARGUMENT);
            }
        }
        let mut stream = null_mut();
        call!(hip, set_device(devices[0]))?;
        call!(hip, stream_create(&mut stream, NON_BLOCKING))?;
        call!(hip, set_device(before))?;
        let text = std::env::var("GRAPHC_EMU_RCCL_DEADLINE").unwrap_or_default();
        Ok(Arc::new(World {
            hip,
            deadline: Duration::from_millis(text.trim().parse().unwrap_or(20_000)),
            state: Mutex::new(State {
                arrived: vec![None; devices.len()],
                met: 0,
                last: Ok(()),
                ended: false,
                stream,
                jobs: Vec::new(),
            }),
            changed: Condvar::new(),
            left: AtomicUsize::new(0),
            devices,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets everybody go who waits, and refuses who comes later.
    pub fn end(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }

    /// One rank leaves, and ends what all do together. The last one gives back what the ranks had.
    pub fn leave(&self) {
        self.end();
        if self.left.fetch_add(1, Ordering::AcqRel) + 1 == self.devices.len() {
            self.state().release(self.hip);
        }
    }

    pub fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// One rank's part of a collective; the last one to come queues the work of all.
    pub fn meet(
        &self,
        rank: usize,
        asked: Collective,
        part: u64,
        result: u64,
        stream: *mut c_void,
    ) -> Result<(), Code> {
        let hip = self.hip;
        let (mut device, mut ready) = (0, null_mut());
        call!(hip, get_device(&mut device))?;
        if device != self.devices[rank] {
            let own = self.devices[rank];
            report(&format!(
                "rank {rank} is on device {own}, but the thread is on device {device}"
            ));
            return Err(INVALID_USAGE);
        }
        let mut state = self.state();
        if state.ended {
            return Err(REMOTE_ERROR);
        }
        if state.arrived[rank].is_some() {
            report(&format!("rank {rank} comes twice to one collective"));
            return Err(INVALID_USAGE);
        }
        call!(hip, event_create(&mut ready, NO_TIMING))?;
        call!(hip, event_record(ready, stream))?;
        state.arrived[rank] = Some(Arrival {
            asked,
            part,
            result,
            stream,
            ready,
        });
        if let Some(all) = state.arrived.iter().copied().collect::<Option<Vec<Arrival>>>() {
            state.last = self.queue(&mut state, &all);
            let given = call!(hip, set_device(device));
            for arrival in &all {
                let _ = call!(hip, event_destroy(arrival.ready));
            }
            state.arrived.fill(None);
            state.met += 1;
            self.changed.notify_all();
            return state.last.and(given);
        }
        let (turn, start) = (state.met, Instant::now());
        while state.met == turn {
            if state.ended {
                return Err(REMOTE_ERROR);
            }
            let left = self.deadline.saturating_sub(start.elapsed());
            if left.is_zero() {
                let missing: Vec<usize> = (0..state.arrived.len())
                    .filter(|r| state.arrived[*r].is_none())
                    .collect();
                report(&format!(
                    "rank {rank} waited {} ms for ranks {missing:?}, which did not come to {asked:?}",
                    self.deadline.as_millis()
                ));
                state.ended = true;
                self.changed.notify_all();
                return Err(SYSTEM_ERROR);
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.last
    }

    /// Queues the work of all ranks.
    fn queue(&self, state: &mut State, all: &[Arrival]) -> Result<(), Code> {
        let (hip, ranks) = (self.hip, all.len());
        let asked = all[0].asked;
        if let Some(rank) = all.iter().position(|other| other.asked != asked) {
            report(&format!(
                "rank {rank} asks for {:?}, but rank 0 for {asked:?}; nothing is done",
                all[rank].asked
            ));
            return Err(INVALID_ARGUMENT);
        }
        let planted = PLANTED.load(Ordering::Acquire);
        call!(hip, set_device(self.devices[0]))?;
        let stream = state.stream;
        let (bytes, whole) = (asked.bytes, ranks * asked.bytes);
        let job = self.job(state, whole + bytes)?;
        let memory = job.work.memory;
        (job.work.dtype, job.work.ranks, job.work.bytes) = (asked.dtype, ranks, bytes);
        for (rank, arrival) in all.iter().enumerate() {
            if planted != Planted::PartNotAwaited as u8 {
                call!(hip, stream_wait(stream, arrival.ready, 0))?;
            }
            let to = memory.wrapping_add(rank * bytes).cast();
            call!(hip, copy(to, arrival.part as *const c_void, bytes, DEFAULT, stream))?;
        }
        let (from, size) = match asked.kind {
            Kind::AllReduce => {
                let work: *mut Work = &mut *job.work;
                call!(hip, launch_host(stream, add, work.cast()))?;
                (memory.wrapping_add(whole), bytes)
            }
            Kind::AllGather => (memory, whole),
        };
        for arrival in all {
            let (to, from) = (arrival.result as *mut c_void, from.cast_const().cast());
            call!(hip, copy(to, from, size, DEFAULT, stream))?;
        }
        call!(hip, event_record(job.done, stream))?;
        let done = job.done;
        let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
        let room = counts.len().max(ranks);
        counts.resize(room, (0, 0));
        for (rank, arrival) in all.iter().enumerate() {
            counts[rank].0 += 1;
            counts[rank].1 += bytes as u64;
            if planted != Planted::ResultNotAwaited as u8 {
                call!(hip, set_device(self.devices[rank]))?;
                call!(hip, stream_wait(arrival.stream, done, 0))?;
            }
        }
        Ok(())
    }

    /// Memory for a sum: of one that is done, or new.
    fn job<'a>(&self, state: &'a mut State, room: usize) -> Result<&'a mut Job, Code> {
        let hip = self.hip;
        // SAFETY: the events are the jobs' own.
        let free = |job: &Job| job.room >= room && unsafe { (hip.event_query)(job.done) } == 0;
        let at = match state.jobs.iter().position(free) {
            Some(at) => at,
            None => {
                let (mut memory, mut done) = (null_mut(), null_mut());
                call!(hip, host_malloc(&mut memory, room.max(1), 0))?;
                call!(hip, event_create(&mut done, NO_TIMING))?;
                state.jobs.push(Job {
                    work: Box::new(Work {
                        dtype: 0,
                        ranks: 0,
                        bytes: 0,
                        memory: memory.cast(),
                    }),
                    room,
                    done,
                });
                state.jobs.len() - 1
            }
        };
        Ok(&mut state.jobs[at])
    }
}

impl State {
    /// Gives everything of HIP's back. Nobody comes any more.
    fn release(&mut self, hip: &Hip) {
        for job in self.jobs.drain(..) {
            let _ = call!(hip, event_synchronize(job.done));
            let _ = call!(hip, event_destroy(job.done));
            let _ = call!(hip, host_free(job.work.memory.cast()));
        }
        // Of ranks that came, and whose others did not.
        for arrival in self.arrived.iter_mut().filter_map(Option::take) {
            let _ = call!(hip, event_destroy(arrival.ready));
        }
        let stream = std::mem::replace(&mut self.stream, null_mut());
        if !stream.is_null() {
            let _ = call!(hip, stream_destroy(stream));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.state
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .release(self.hip);
    }
}
