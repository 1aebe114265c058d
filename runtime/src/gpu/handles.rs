//! What a device gives, owned: streams, events, memory and modules that end with their value, also on the way out of an
//! error.
//!
//! Work in flight must be done before what it uses is dropped: [`super::run`] waits for its streams in every case.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::driver::{
    Direction, Driver, DriverError, FailureKind, Launch, Priority, RawEvent, RawFunction, RawGraph, RawGraphExec,
    RawModule, RawStream, Status,
};
use crate::error::{OutOfDeviceMemory, Planned, RuntimeError};

/// For so long a thread that waits with a timeout asks again and again; then it sleeps between two questions, at most
/// as long as [`SLEEP`] and an eighth of what it waited.
const SPIN: Duration = Duration::from_micros(50);
const SLEEP: Duration = Duration::from_millis(1);

/// One device of a driver.
pub(crate) struct Gpu {
    pub driver: Arc<dyn Driver>,
    pub ordinal: usize,
    /// As messages and `--device` have it: `hip:0`.
    pub name: String,
    /// What went wrong for good. Nothing is asked of the device after that.
    lost: OnceLock<String>,
    /// How long the host waits for the device before it gives it up, in nanoseconds; 0 for ever.
    timeout: AtomicU64,
    /// The ends of runs that may be under way, where there is a timeout.
    ends: Mutex<Vec<Weak<Event>>>,
    /// Whether the device was given up while something was under way there.
    hangs: AtomicBool,
    /// The devices that compute models together with this one.
    beside: OnceLock<Vec<Weak<Gpu>>>,
}

impl Gpu {
    pub fn new(driver: Arc<dyn Driver>, ordinal: usize) -> Gpu {
        Gpu {
            name: format!("{}:{ordinal}", driver.name()),
            driver,
            ordinal,
            lost: OnceLock::new(),
            timeout: AtomicU64::new(0),
            ends: Mutex::default(),
            hangs: AtomicBool::new(false),
            beside: OnceLock::new(),
        }
    }

    /// Says which devices compute models together with this one. The first word stands.
    pub fn is_beside(&self, others: Vec<Weak<Gpu>>) {
        let _ = self.beside.set(others);
    }

    /// Lets nothing wait for the device longer than that; None for ever.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        let nanoseconds = timeout.map_or(0, |timeout| {
            u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).max(1)
        });
        self.timeout.store(nanoseconds, Ordering::Relaxed);
    }

    fn timeout(&self) -> Option<Duration> {
        let nanoseconds = self.timeout.load(Ordering::Relaxed);
        (nanoseconds > 0).then(|| Duration::from_nanos(nanoseconds))
    }

    /// Whether what began then is under way for longer than the host would wait.
    pub fn is_overdue(&self, since: Instant) -> bool {
        self.timeout().is_some_and(|timeout| since.elapsed() > timeout)
    }

    /// Whether nothing is asked of the device any more.
    pub fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Waits for an event. With a timeout it is asked for again and again, and the device is given up when the time is
    /// over.
    pub fn wait(&self, event: &Event, at: impl Fn() -> String) -> Result<(), RuntimeError> {
        let Some(timeout) = self.timeout() else {
            return self.at_with(at, event.synchronize());
        };
        let start = Instant::now();
        loop {
            if let Some(reason) = self.lost.get() {
                return Err(self.lost_because(reason));
            }
            if self.at_with(&at, event.query())? {
                return Ok(());
            }
            let waited = start.elapsed();
            if waited >= timeout {
                let at = at();
                let _ = self
                    .lost
                    .set(format!("{at} was not done after {} s", timeout.as_secs_f64()));
                self.hangs.store(true, Ordering::Relaxed);
                return Err(RuntimeError::TimedOut {
                    device: self.name.clone(),
                    at,
                    after: timeout,
                });
            }
            match waited < SPIN {
                true => std::thread::yield_now(),
                false => std::thread::sleep((waited / 8).min(SLEEP).min(timeout - waited)),
            }
        }
    }

    /// Waits for everything in a stream, as [`Gpu::wait`] does; `end` is an event that nobody else uses now.
    pub fn wait_for_stream(&self, stream: &Stream, end: &Event, at: impl Fn() -> String) -> Result<(), RuntimeError> {
        if self.timeout().is_none() {
            return self.at_with(at, stream.synchronize());
        }
        self.at_with(&at, stream.record(end))?;
        self.wait(end, at)
    }

    /// Writes down the end of a run that is under way.
    pub fn begun(&self, end: &Arc<Event>) {
        if self.timeout().is_none() {
            return;
        }
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.retain(|known| known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), Arc::as_ptr(end)));
        ends.push(Arc::downgrade(end));
    }

    /// Waits for all runs under way, where there is a timeout: what comes next waits for them without one.
    pub fn settle(&self, at: &str) -> Result<(), RuntimeError> {
        if self.timeout().is_none() {
            return Ok(());
        }
        let ends = std::mem::take(&mut *self.ends.lock().unwrap_or_else(PoisonError::into_inner));
        let ends = ends.iter().filter_map(Weak::upgrade);
        ends.into_iter().try_for_each(|end| self.wait(&end, || at.to_owned()))
    }

    /// Whether the device does not come back from an error. Waits for it, but where there is a timeout.
    fn is_broken(&self) -> bool {
        if self.timeout().is_none() {
            return self.driver.synchronize().is_err();
        }
        match self.driver.create_event(false) {
            // SAFETY: it was made just now, and nobody else has it.
            Ok(event) => unsafe { self.driver.destroy_event(event) }.is_err(),
            Err(error) => error.kind != FailureKind::OutOfMemory,
        }
    }

    /// Finds out whether the device is lost, after an error that is not its driver's: one of a library.
    pub fn examine(&self, error: &RuntimeError) {
        if let RuntimeError::Device { .. } = error
            && !self.is_lost()
            && self.is_broken()
        {
            let _ = self.lost.set(error.to_string());
        }
    }

    /// Sends this thread's calls to the device, if it is still there.
    pub fn enter(&self, at: &str) -> Result<(), RuntimeError> {
        if let Some(reason) = self.lost.get() {
            return Err(self.lost_because(reason));
        }
        self.driver.enter(self.ordinal).map_err(|error| self.error(error, at))
    }

    fn lost_because(&self, reason: &str) -> RuntimeError {
        RuntimeError::DeviceLost {
            device: self.name.clone(),
            reason: reason.to_owned(),
        }
    }

    /// The error of a call that was made for `at`: a step, an input, a kernel. Finds out whether the device is lost by
    /// it.
    pub fn error(&self, error: DriverError, at: &str) -> RuntimeError {
        let reason = || format!("{at}: {error}");
        if error.kind == FailureKind::NoDevice {
            let reason = self.lost.get_or_init(reason);
            return self.lost_because(reason);
        }
        // A device that cannot even be waited for any more stays so.
        if error.kind == FailureKind::Other && self.is_broken() {
            let _ = self.lost.set(reason());
        }
        RuntimeError::Device {
            device: self.name.clone(),
            call: error.call.to_owned(),
            code: error.code,
            message: error.message,
            at: at.to_owned(),
        }
    }

    /// A device works behind the host's back: a fault of one step may be told by the call of a later one. Makes the
    /// place of an error say so, unless the steps before were waited for.
    pub fn or_earlier(&self, mut error: RuntimeError) -> RuntimeError {
        if let RuntimeError::Device { at, .. } | RuntimeError::TimedOut { at, .. } = &mut error
            && self.lost.get().is_some()
        {
            at.push_str(" or an earlier step (with GRAPHC_SYNCHRONOUS=1 each is waited for, and errors name theirs)");
        }
        error
    }

    /// Makes the error of a call into one that says where it was made.
    pub fn at<T>(&self, at: &str, status: Status<T>) -> Result<T, RuntimeError> {
        status.map_err(|error| self.error(error, at))
    }

    /// As [`Gpu::at`], where the place takes work to name.
    pub fn at_with<T>(&self, at: impl FnOnce() -> String, status: Status<T>) -> Result<T, RuntimeError> {
        status.map_err(|error| self.error(error, &at()))
    }

    fn out_of_memory(&self, error: DriverError, asked: usize, what: &str, planned: Option<Planned>) -> RuntimeError {
        if error.kind != FailureKind::OutOfMemory {
            return self.error(error, what);
        }
        RuntimeError::from(Box::new(OutOfDeviceMemory {
            device: self.name.clone(),
            what: what.to_owned(),
            asked,
            free: self.driver.memory().ok().map(|(free, _)| free),
            planned,
            least: None,
        }))
    }

    /// Allocates device memory for `what`; what the program takes is for the error.
    pub fn allocate(
        self: &Arc<Gpu>,
        bytes: usize,
        what: &str,
        planned: Option<Planned>,
    ) -> Result<DeviceMemory, RuntimeError> {
        let address = self.driver.allocate(bytes.max(1));
        let address = address.map_err(|error| self.out_of_memory(error, bytes, what, planned))?;
        Ok(DeviceMemory {
            gpu: self.clone(),
            address,
            bytes,
        })
    }

    /// Allocates pinned host memory for `what`.
    pub fn allocate_pinned(self: &Arc<Gpu>, bytes: usize, what: &str) -> Result<PinnedMemory, RuntimeError> {
        let pointer = self.driver.allocate_pinned(bytes.max(1));
        let pointer = pointer.map_err(|error| match error.kind {
            FailureKind::OutOfMemory => RuntimeError::OutOfPinnedMemory {
                device: self.name.clone(),
                what: what.to_owned(),
                asked: bytes,
                call: error.call.to_owned(),
                code: error.code,
            },
            _ => self.error(error, what),
        })?;
        Ok(PinnedMemory {
            gpu: self.clone(),
            pointer,
            bytes,
        })
    }

    pub fn stream(self: &Arc<Gpu>, priority: Priority) -> Result<Stream, RuntimeError> {
        let raw = self.at("a stream", self.driver.create_stream(priority))?;
        Ok(Stream { gpu: self.clone(), raw })
    }

    pub fn event(self: &Arc<Gpu>, timing: bool) -> Result<Event, RuntimeError> {
        let raw = self.at("an event", self.driver.create_event(timing))?;
        Ok(Event { gpu: self.clone(), raw })
    }

    /// Loads a code object; `what` names its kernel.
    pub fn module(self: &Arc<Gpu>, image: &[u8], what: &str) -> Result<Module, RuntimeError> {
        let raw = self.driver.load_module(image);
        let raw = raw.map_err(|error| self.out_of_memory(error, image.len(), what, None))?;
        Ok(Module { gpu: self.clone(), raw })
    }

    /// Ends something as [`Gpu::end`] does, by a call that waits for all work on the device.
    fn end_after_all(&self, what: &'static str, f: impl FnOnce(&dyn Driver) -> Status<()>) {
        if let Err(error) = self.settle(what) {
            tracing::warn!("{}: {what}: {error}", self.name);
        }
        self.end(what, f);
    }

    /// Ends something: the thread is sent to the device first, and a failure changes nothing that anybody still uses.
    fn end(&self, what: &'static str, f: impl FnOnce(&dyn Driver) -> Status<()>) {
        if self.lost.get().is_some() {
            // What a lost device held went with it.
            return;
        }
        // Also where the thread cannot be sent there: runtimes find what a handle belongs to by itself.
        let entered = self.driver.enter(self.ordinal);
        let ended = f(&*self.driver);
        if let Err(error) = entered.and(ended) {
            tracing::warn!("{}: {what} was not released: {error}", self.name);
        }
    }
}

/// An ordered queue of work.
pub(crate) struct Stream {
    gpu: Arc<Gpu>,
    raw: RawStream,
}

impl Stream {
    pub fn raw(&self) -> RawStream {
        self.raw
    }

    /// Waits for everything in it.
    pub fn synchronize(&self) -> Status<()> {
        // SAFETY: the stream is this value's own.
        unsafe { self.gpu.driver.synchronize_stream(self.raw) }
    }

    /// Lets what is queued later wait for an event.
    pub fn wait(&self, event: &Event) -> Status<()> {
        // SAFETY: both are alive, and of one runtime: the event may be another device's.
        unsafe { self.gpu.driver.wait_event(self.raw, event.raw) }
    }

    /// Lets an event stand for what is queued up to here.
    pub fn record(&self, event: &Event) -> Status<()> {
        // SAFETY: both are alive and of one device.
        unsafe { self.gpu.driver.record_event(event.raw, self.raw) }
    }

    /// Queues a copy.
    ///
    /// # Safety
    /// Both ranges are in memory of the device or pinned memory, as `direction` says, and stay so until the work is
    /// done.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize, direction: Direction) -> Status<()> {
        // SAFETY: the caller's.
        unsafe { self.gpu.driver.copy(to, from, bytes, direction, self.raw) }
    }

    /// Queues a copy from the memory of another device of the same runtime.
    ///
    /// # Safety
    /// Both ranges are in memory of those devices, and stay so until the work is done.
    pub unsafe fn copy_from(&self, to: u64, from: (&Gpu, u64), bytes: usize) -> Status<()> {
        let (own, other) = (self.gpu.ordinal, from.0.ordinal);
        // SAFETY: the caller's.
        unsafe {
            self.gpu
                .driver
                .copy_between((own, to), (other, from.1), bytes, self.raw)
        }
    }

    /// Queues a launch.
    ///
    /// # Safety
    /// `arguments` are those of the kernel: addresses of memory as large as it takes them to be, until the work is
    /// done.
    pub unsafe fn launch(&self, launch: Launch, arguments: &mut [*mut c_void]) -> Status<()> {
        // SAFETY: the caller's.
        unsafe { self.gpu.driver.launch(launch, arguments, self.raw) }
    }

    /// Takes what is queued from now on into a graph, until [`Stream::end_capture`].
    pub fn begin_capture(&self) -> Status<()> {
        // SAFETY: the stream is alive.
        unsafe { self.gpu.driver.begin_capture(self.raw) }
    }

    /// Ends a capture; where a call spoilt it, gives that call's error and takes work as before.
    pub fn end_capture(&self) -> Status<Graph> {
        // SAFETY: the stream is alive.
        let raw = unsafe { self.gpu.driver.end_capture(self.raw) }?;
        Ok(Graph {
            gpu: self.gpu.clone(),
            raw,
        })
    }

    /// Queues a graph.
    ///
    /// # Safety
    /// What it was captured with is as it was: memory, kernels, handles; and stays so until the work is done.
    pub unsafe fn launch_graph(&self, graph: &GraphExec) -> Status<()> {
        // SAFETY: both are alive; the rest is the caller's.
        unsafe { self.gpu.driver.launch_graph(graph.raw, self.raw) }
    }
}

/// Captured work.
pub(crate) struct Graph {
    gpu: Arc<Gpu>,
    raw: RawGraph,
}

impl Graph {
    /// Makes it ready to launch.
    pub fn instantiate(&self) -> Status<GraphExec> {
        // SAFETY: the graph is alive.
        let raw = unsafe { self.gpu.driver.instantiate(self.raw) }?;
        Ok(GraphExec {
            gpu: self.gpu.clone(),
            raw,
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is this value's own, and this is its end.
        self.gpu
            .end("a graph", |driver| unsafe { driver.destroy_graph(self.raw) });
    }
}

/// A graph that is ready to launch.
pub(crate) struct GraphExec {
    gpu: Arc<Gpu>,
    raw: RawGraphExec,
}

impl GraphExec {
    /// Takes another graph's arguments; `false` where the two differ in more. No launch of it may be under way.
    pub fn update(&mut self, graph: &Graph) -> Status<bool> {
        // SAFETY: both are alive.
        unsafe { self.gpu.driver.update_graph(self.raw, graph.raw) }
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: it is this value's own, and this is its end.
        self.gpu
            .end("a graph", |driver| unsafe { driver.destroy_graph_exec(self.raw) });
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is this value's own, and this is its end.
        self.gpu
            .end("a stream", |driver| unsafe { driver.destroy_stream(self.raw) });
    }
}

/// A point in a stream.
pub(crate) struct Event {
    gpu: Arc<Gpu>,
    raw: RawEvent,
}

impl Event {
    /// Waits for it.
    pub fn synchronize(&self) -> Status<()> {
        // SAFETY: the event is this value's own.
        unsafe { self.gpu.driver.synchronize_event(self.raw) }
    }

    /// Says whether it is reached.
    pub fn query(&self) -> Status<bool> {
        // SAFETY: the event is this value's own.
        unsafe { self.gpu.driver.query_event(self.raw) }
    }

    /// Milliseconds from another event to this one; both with timing and reached.
    pub fn since(&self, start: &Event) -> Status<f32> {
        // SAFETY: both are alive.
        unsafe { self.gpu.driver.elapsed(start.raw, self.raw) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is this value's own, and this is its end.
        self.gpu
            .end("an event", |driver| unsafe { driver.destroy_event(self.raw) });
    }
}

/// Memory of the device.
pub(crate) struct DeviceMemory {
    gpu: Arc<Gpu>,
    pub address: u64,
    pub bytes: usize,
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: the memory is this value's own, and this is its end.
        self.gpu
            .end_after_all("device memory", |driver| unsafe { driver.free(self.address) });
    }
}

/// Memory of the host that the device copies from and to by itself.
pub(crate) struct PinnedMemory {
    gpu: Arc<Gpu>,
    pub pointer: NonNull<u8>,
    pub bytes: usize,
}

// SAFETY: the memory is the value's own; it is reached through whoever holds the value.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above; writing needs `&mut`, or the caller's word.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub fn address(&self, at: usize) -> u64 {
        self.pointer.as_ptr() as u64 + at as u64
    }

    /// Part of the memory; the device must not be writing it.
    ///
    /// # Panics
    /// A range that is not inside.
    pub fn bytes(&self, at: usize, bytes: usize) -> &[u8] {
        assert!(
            at <= self.bytes && bytes <= self.bytes - at,
            "a range inside the allocation"
        );
        // SAFETY: the range is inside the pages that the driver gave; what is read was written by a run that is done.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr().add(at), bytes) }
    }

    /// Writes bytes; the device must not be reading them.
    ///
    /// # Panics
    /// A range that is not inside.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(
            at <= self.bytes && bytes.len() <= self.bytes - at,
            "a range inside the allocation"
        );
        // SAFETY: the range is inside, and this value is borrowed for writing, so that nobody else has it.
        let to = unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr().add(at), bytes.len()) };
        copy_by_all_cores(to, bytes);
    }
}

/// Copies as many bytes, of many by all cores: one alone has a sixth of the bus's rate.
pub(super) fn copy_by_all_cores(to: &mut [u8], from: &[u8]) {
    const PIECE: usize = 256 << 10;
    match to.len() < 4 * PIECE {
        true => to.copy_from_slice(from),
        false => to
            .par_chunks_mut(PIECE)
            .zip(from.par_chunks(PIECE))
            .for_each(|(to, from)| to.copy_from_slice(from)),
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // All devices see it, so a runtime may wait for all of them: of one that hangs that would be for ever.
        for other in self.gpu.beside.get().into_iter().flatten().filter_map(Weak::upgrade) {
            let settled = other.settle("pinned memory");
            if other.hangs.load(Ordering::Relaxed) {
                return;
            }
            if let Err(error) = settled {
                tracing::warn!("{}: pinned memory: {error}", other.name);
            }
        }
        // SAFETY: the memory is this value's own, and this is its end.
        self.gpu
            .end_after_all("pinned memory", |driver| unsafe { driver.free_pinned(self.pointer) });
    }
}

/// A loaded code object.
pub(crate) struct Module {
    gpu: Arc<Gpu>,
    raw: RawModule,
}

impl Module {
    /// Finds a kernel; it lives as long as the module.
    pub fn function(&self, name: &CStr) -> Status<RawFunction> {
        // SAFETY: the module is alive.
        unsafe { self.gpu.driver.function(self.raw, name) }
    }

    /// Lets launches of a kernel of this module provide `bytes` of LDS.
    pub fn allow_lds(&self, function: RawFunction, bytes: u32) -> Status<()> {
        // SAFETY: the function lives as long as the module, which is alive.
        unsafe { self.gpu.driver.allow_lds(function, bytes) }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the module is this value's own, and this is its end.
        self.gpu
            .end_after_all("a module", |driver| unsafe { driver.unload_module(self.raw) });
    }
}
