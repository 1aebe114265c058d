//! What is asked of a vendor's GPU runtime: the one table of functions that everything in this folder goes through.
//!
//! [`super::hip`] fills it from HIP, [`super::cuda`] from CUDA's driver API; nothing else here knows whose GPU it
//! drives. Addresses are plain numbers and handles are opaque; [`super::handles`] owns them.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;

/// What a call gives.
pub type Status<T> = Result<T, DriverError>;

/// A call of the vendor's runtime that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriverError {
    /// The vendor's name of the function.
    pub call: &'static str,
    /// The vendor's name of the error (`hipErrorLaunchFailure`, `CUDA_ERROR_LAUNCH_FAILED`).
    pub code: String,
    /// The vendor's description.
    pub message: String,
    pub kind: FailureKind,
}

/// What follows from a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// The device has too little memory free; nothing else is wrong.
    OutOfMemory,
    /// There is no device, or there is no longer one.
    NoDevice,
    Other,
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} gave {} ({})", self.call, self.code, self.message)
    }
}

/// An opaque handle of the vendor's runtime.
macro_rules! handle {
    ($($(#[$meta:meta])* $name:ident)*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            pub struct $name(pub *mut c_void);
            // SAFETY: a handle is a name that the vendor's runtime resolves; its functions may be called from any
            // thread.
            unsafe impl Send for $name {}
            // SAFETY: as above.
            unsafe impl Sync for $name {}
        )*
    };
}

handle! {
    RawStream
    RawEvent
    RawModule
    /// A kernel of a loaded module; lives as long as that.
    RawFunction
    /// What a capture gives.
    RawGraph
    /// A graph that is ready to launch.
    RawGraphExec
}

/// How urgent a stream's work is against that of other streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Priority {
    Low,
    #[default]
    Normal,
    High,
}

/// Which way a copy goes. Host memory is pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    ToDevice,
    ToHost,
    OnDevice,
    OnHost,
}

/// A device as its driver describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// The processor with its features, as code objects name it (`gfx90a:sramecc+:xnack-`, `sm_90`).
    pub arch: String,
    /// The product's name.
    pub product: String,
    /// Bytes of memory.
    pub memory: usize,
    /// The version of the driver, and that of its part in the kernel where the system says it:
    /// `HIP 7.2.53211, amdgpu 6.14.14`.
    pub driver: String,
}

/// What a driver's version is called: what its library says, and its module of the kernel.
pub(super) fn driver_version(of_library: &str, module: &str) -> String {
    match std::fs::read_to_string(format!("/sys/module/{module}/version")) {
        Ok(version) => format!("{of_library}, {module} {}", version.trim()),
        // Not every kernel's own module has a version.
        Err(_) => of_library.to_owned(),
    }
}

/// A launch but for its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    pub function: RawFunction,
    /// Workgroups along each axis.
    pub grid: [u32; 3],
    /// Threads of a workgroup.
    pub block: u32,
    /// Bytes of LDS for each workgroup, beside what the kernel declares.
    pub lds: u32,
    /// Whether the kernel itself waits for the launch before it on its stream, and so may begin while that one ends
    /// ([`ir::target::Architecture::overlaps_launches`]). Drivers that know no such launches let it begin later.
    pub overlaps: bool,
}

/// The functions. All but the first four act on the device that the thread has entered.
///
/// # Safety
/// The unsafe ones take handles and addresses that this driver gave for that device and that were not destroyed or
/// freed, and copies and launches stay inside the memory they name until the work is done.
pub trait Driver: Send + Sync {
    /// The vendor's runtime: `hip`, `cuda`.
    fn name(&self) -> &'static str;

    /// The library's file, or its bare name where the dynamic loader found it.
    fn library(&self) -> &Path;

    /// Counts the devices; 0 where the driver says that there is none.
    fn devices(&self) -> Status<usize>;

    fn describe(&self, device: usize) -> Status<Description>;

    /// Sends the thread's later calls to a device.
    fn enter(&self, device: usize) -> Status<()>;

    /// Free and all memory in bytes.
    fn memory(&self) -> Status<(usize, usize)>;

    /// Waits for everything on the device; gives the error of what went wrong on it, if it is there to stay.
    fn synchronize(&self) -> Status<()>;

    /// Allocates device memory; `bytes` is not 0.
    fn allocate(&self, bytes: usize) -> Status<u64>;
    unsafe fn free(&self, address: u64) -> Status<()>;

    /// Allocates pinned host memory; `bytes` is not 0.
    fn allocate_pinned(&self, bytes: usize) -> Status<NonNull<u8>>;
    unsafe fn free_pinned(&self, pointer: NonNull<u8>) -> Status<()>;

    /// Queues a copy.
    unsafe fn copy(&self, to: u64, from: u64, bytes: usize, direction: Direction, stream: RawStream) -> Status<()>;

    /// Lets the device that the thread has entered read another's memory, where the two can; without it copies between
    /// them are by way of the host. `false` where they cannot.
    fn allow_peer(&self, device: usize, peer: usize) -> Status<bool>;

    /// Queues a copy from one device's memory to another's, on a stream of the device that is entered. Both were
    /// entered before.
    unsafe fn copy_between(&self, to: (usize, u64), from: (usize, u64), bytes: usize, stream: RawStream) -> Status<()>;

    /// Makes a stream that keeps no order with any other. A device without priorities ignores that one.
    fn create_stream(&self, priority: Priority) -> Status<RawStream>;
    unsafe fn destroy_stream(&self, stream: RawStream) -> Status<()>;
    unsafe fn synchronize_stream(&self, stream: RawStream) -> Status<()>;
    /// Makes a stream's later work wait for an event.
    unsafe fn wait_event(&self, stream: RawStream, event: RawEvent) -> Status<()>;

    fn create_event(&self, timing: bool) -> Status<RawEvent>;
    unsafe fn destroy_event(&self, event: RawEvent) -> Status<()>;
    unsafe fn record_event(&self, event: RawEvent, stream: RawStream) -> Status<()>;
    unsafe fn synchronize_event(&self, event: RawEvent) -> Status<()>;
    /// Says whether an event is reached, without waiting.
    unsafe fn query_event(&self, event: RawEvent) -> Status<bool>;
    /// Milliseconds between two events with timing that were reached.
    unsafe fn elapsed(&self, start: RawEvent, stop: RawEvent) -> Status<f32>;

    /// Loads a code object.
    fn load_module(&self, image: &[u8]) -> Status<RawModule>;
    unsafe fn unload_module(&self, module: RawModule) -> Status<()>;
    unsafe fn function(&self, module: RawModule, name: &CStr) -> Status<RawFunction>;

    /// Lets launches of a function provide `bytes` of LDS.
    unsafe fn allow_lds(&self, function: RawFunction, bytes: u32) -> Status<()>;

    /// Queues a launch. `arguments` has the address of each of the kernel's arguments, which are 8 bytes each and are
    /// read before this returns.
    unsafe fn launch(&self, launch: Launch, arguments: &mut [*mut c_void], stream: RawStream) -> Status<()>;

    /// Takes what is queued on a stream from now on into a graph, and on streams that come to wait for it. Calls of
    /// other threads and other streams go on as before.
    unsafe fn begin_capture(&self, stream: RawStream) -> Status<()>;
    /// Ends a capture, also one that a failed call spoilt; every stream that joined it must have been waited for by
    /// this one.
    unsafe fn end_capture(&self, stream: RawStream) -> Status<RawGraph>;
    unsafe fn instantiate(&self, graph: RawGraph) -> Status<RawGraphExec>;
    /// Gives a graph that is ready another one's arguments; `false` where they differ in more than those.
    unsafe fn update_graph(&self, exec: RawGraphExec, graph: RawGraph) -> Status<bool>;
    unsafe fn launch_graph(&self, exec: RawGraphExec, stream: RawStream) -> Status<()>;
    unsafe fn destroy_graph(&self, graph: RawGraph) -> Status<()>;
    unsafe fn destroy_graph_exec(&self, exec: RawGraphExec) -> Status<()>;
}
