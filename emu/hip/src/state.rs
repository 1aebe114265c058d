//! The one state of the library: devices, handles, queues; and the way every call enters it.

use crate::config::{Config, FaultKind, Trace};
use crate::disassembled::Kept;
use crate::fault::Faults;
use crate::graph::{Capture, Exec, Graph};
use crate::memory::Pinned;
use crate::pool::Pool;
use crate::queue::{Event, Position, Stream};
use crate::status::{Status, describe, of_load};
use graphc_emu::memory::{ALIGNMENT, DEVICE_BASE, DEVICE_END};
use graphc_emu::{CodeObject, Comgr, Disassembler, Gpu, Kernel, KernelInfo, LoadError, Memory, Module, Worker};
use hip_sys::hipError_t;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// One emulated GPU.
pub struct Device {
    pub gpu: Gpu,
    /// The stream that a null handle means.
    pub null_stream: u64,
    /// The memory pool that it begins with, and the one that `hipMallocAsync` takes from.
    pub default_pool: u64,
    pub pool: u64,
    /// The error of a kernel that went wrong: every later call on the device gives it too.
    pub sticky: Option<hipError_t>,
}

/// A loaded code object.
pub struct LoadedModule {
    pub device: usize,
    pub module: Module,
    /// Handles by name, so that asking twice gives the same.
    pub functions: BTreeMap<String, u64>,
}

/// A kernel of a loaded code object, decoded when it is first launched.
#[derive(Clone)]
pub struct Function {
    pub device: usize,
    pub info: Arc<KernelInfo>,
    module: Module,
    kernel: Arc<OnceLock<Result<Kernel, hipError_t>>>,
}

impl Function {
    /// The kernel, ready to launch.
    pub fn kernel(&self) -> Result<Kernel, hipError_t> {
        let decode = || self.module.kernel(&self.info.name).map_err(refused);
        self.kernel.get_or_init(decode).clone()
    }
}

/// Prints why something could not be loaded, and gives the code of that.
pub fn refused(error: LoadError) -> hipError_t {
    report(&error.to_string());
    of_load(&error)
}

/// What handles there are.
#[derive(Clone, Copy)]
pub enum Handle {
    Stream = 1,
    Event,
    Module,
    Function,
    Graph,
    GraphExec,
    GraphNode,
    Capture,
    Pool,
}

/// Waits that a faulty program would lack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forgotten {
    Nothing,
    /// Of a stream for an event of another device.
    OtherDevices,
    /// For an event that was recorded behind a copy between devices.
    Copies,
}

/// Everything.
pub struct Runtime {
    pub config: Config,
    pub devices: Vec<Device>,
    pub streams: BTreeMap<u64, Stream>,
    pub events: BTreeMap<u64, Event>,
    pub modules: BTreeMap<u64, LoadedModule>,
    pub functions: BTreeMap<u64, Function>,
    /// Modules of the program's own code, by device and registration.
    pub programs: BTreeMap<(usize, u64), u64>,
    pub pools: BTreeMap<u64, Pool>,
    /// The pool of each allocation that came from one.
    pub pooled: BTreeMap<u64, u64>,
    pub captures: BTreeMap<u64, Capture>,
    pub graphs: BTreeMap<u64, Graph>,
    pub execs: BTreeMap<u64, Exec>,
    /// Host memory that devices see, by address.
    pub pinned: BTreeMap<u64, Pinned>,
    pub faults: Faults,
    pub random: Option<Random>,
    pub lost: bool,
    /// Which waits are forgotten, as tests plant it.
    pub forgotten: Forgotten,
    /// How often somebody waited for what is never done.
    pub blocked: u64,
    pub start: Instant,
    pub sequence: u64,
    handles: u64,
    disassembler: Option<Arc<dyn Disassembler>>,
}

static RUNTIME: OnceLock<Mutex<Result<Runtime, hipError_t>>> = OnceLock::new();

thread_local! {
    static DEVICE: Cell<usize> = const { Cell::new(0) };
    static LAST_ERROR: Cell<hipError_t> = const { Cell::new(hipError_t::hipSuccess) };
    static LAST_CALL: Cell<hipError_t> = const { Cell::new(hipError_t::hipSuccess) };
    /// Whether the thread is inside a call: a host function that a stream runs must not call the library.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The device that the thread's calls go to.
pub fn current_device() -> usize {
    DEVICE.get()
}

/// Sends the thread's later calls to a device, which must exist.
pub fn set_current_device(device: usize) {
    DEVICE.set(device);
}

/// The last call of this thread that failed; asking with `reset` forgets it.
pub fn last_error(reset: bool) -> hipError_t {
    let error = LAST_ERROR.get();
    if reset {
        LAST_ERROR.set(hipError_t::hipSuccess);
    }
    error
}

/// The code of this thread's last call, which is forgotten.
pub fn last_call() -> hipError_t {
    LAST_CALL.replace(hipError_t::hipSuccess)
}

/// Remembers a code for the thread, and gives it.
pub fn fail(code: hipError_t) -> hipError_t {
    LAST_CALL.set(code);
    // Not ready is an answer, no failure.
    if !matches!(code, hipError_t::hipSuccess | hipError_t::hipErrorNotReady) {
        LAST_ERROR.set(code);
    }
    code
}

/// Runs one call on the state: with the lock held, errors remembered for the thread, panics kept from the caller.
pub fn enter(name: &'static str, body: impl FnOnce(&mut Runtime) -> Status) -> hipError_t {
    if INSIDE.replace(true) {
        report(&format!(
            "{name} was called by a host function that a stream runs; HIP forbids that"
        ));
        return hipError_t::hipErrorNotSupported;
    }
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut state = RUNTIME
            .get_or_init(|| Mutex::new(create()))
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let runtime = state.as_mut().map_err(|error| *error)?;
        let failure = runtime.faults.call(name);
        if runtime.faults.hit(&FaultKind::Lost) {
            runtime.lost = true;
        }
        if runtime.lost {
            return Err(hipError_t::hipErrorNoDevice);
        }
        let result = match failure {
            Some(failure) => {
                if failure.breaks {
                    runtime.break_device(failure.code);
                }
                Err(failure.code)
            }
            None => body(runtime),
        };
        let shown = match runtime.config.trace {
            Trace::Nothing => false,
            Trace::Errors => result.is_err_and(|code| code != hipError_t::hipErrorNotReady),
            Trace::Calls => true,
        };
        if shown {
            let code = result.err().unwrap_or(hipError_t::hipSuccess);
            let text = describe(code).map_or("an unknown code".into(), |(name, _)| name.to_string_lossy());
            report(&format!("{name}: {text}"));
        }
        result
    }));
    INSIDE.set(false);
    let code = match result {
        Ok(Ok(())) => hipError_t::hipSuccess,
        Ok(Err(code)) => code,
        Err(_) => {
            report(&format!("{name}: an internal error of the emulator"));
            hipError_t::hipErrorUnknown
        }
    };
    fail(code)
}

/// Runs `body` on the state, which is made where it is not there, outside of every call: nothing is counted, and
/// nothing fails.
pub fn control(body: impl FnOnce(&mut Runtime) -> Status) -> hipError_t {
    let mut state = RUNTIME
        .get_or_init(|| Mutex::new(create()))
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    match state.as_mut().map_err(|error| *error).and_then(body) {
        Ok(()) => hipError_t::hipSuccess,
        Err(code) => code,
    }
}

/// The state, if a call made it already.
pub fn existing(body: impl FnOnce(&mut Runtime)) {
    let Some(state) = RUNTIME.get() else { return };
    if let Ok(runtime) = state.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        body(runtime);
    }
}

/// Writes a line to standard error: callers see only a code.
pub fn report(text: &str) {
    eprintln!("graphc-emu: {text}");
}

fn create() -> Result<Runtime, hipError_t> {
    let config = Config::read(|name| std::env::var(name).ok()).map_err(|message| {
        report(&message);
        hipError_t::hipErrorInvalidValue
    })?;
    Ok(Runtime::new(config))
}

impl Runtime {
    /// As a process finds it.
    fn new(config: Config) -> Runtime {
        let mut runtime = Runtime {
            devices: Vec::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            programs: BTreeMap::new(),
            pools: BTreeMap::new(),
            pooled: BTreeMap::new(),
            captures: BTreeMap::new(),
            graphs: BTreeMap::new(),
            execs: BTreeMap::new(),
            pinned: BTreeMap::new(),
            faults: Faults::new(config.faults.clone()),
            random: config.seed.map(Random::new),
            lost: false,
            forgotten: Forgotten::Nothing,
            blocked: 0,
            start: Instant::now(),
            sequence: 0,
            handles: 0,
            disassembler: None,
            config,
        };
        for index in 0..runtime.config.archs.len() {
            let device = runtime.new_device(index);
            runtime.devices.push(device);
        }
        runtime
    }

    /// Begins again as in a new process, but for the settings: every handle is invalid, and devices are empty and
    /// whole.
    pub fn restart(&mut self) {
        let mut fresh = Runtime::new(self.config.clone());
        // No handle is given twice.
        fresh.handles += self.handles;
        fresh.disassembler = self.disassembler.take();
        let old = std::mem::replace(self, fresh);
        for (address, pinned) in old.pinned {
            pinned.release(address);
        }
    }

    /// Whether a stream's wait for a position is one that is forgotten.
    pub fn forgets(&self, stream: u64, position: Position) -> bool {
        let ends = (self.streams.get(&stream), self.streams.get(&position.0));
        let (Some(waits), Some(awaited)) = ends else {
            return false;
        };
        match self.forgotten {
            Forgotten::Nothing => false,
            Forgotten::OtherDevices => waits.device != awaited.device,
            Forgotten::Copies => awaited.carries,
        }
    }

    /// What a code stands for that a device gives from now on.
    fn break_device(&mut self, code: hipError_t) {
        if code == hipError_t::hipErrorNoDevice {
            self.lost = true;
        } else if let Some(device) = self.devices.get_mut(current_device()) {
            device.sticky = Some(code);
        }
    }

    /// How many addresses each device has: device `i`'s begin at `DEVICE_BASE + i · device_span()`.
    pub fn device_span(&self) -> u64 {
        let devices = self.config.archs.len().max(1) as u64;
        (DEVICE_END - DEVICE_BASE) / devices / ALIGNMENT * ALIGNMENT
    }

    /// A device with empty memory and its null stream.
    pub fn new_device(&mut self, index: usize) -> Device {
        let base = DEVICE_BASE + index as u64 * self.device_span();
        let addresses = base..base + self.device_span();
        let memory = Arc::new(Memory::with_addresses(self.config.memory_bytes, addresses));
        let null_stream = self.handle(Handle::Stream);
        let weight = self.weight();
        self.streams.insert(null_stream, Stream::new(index, true, 0, weight));
        let pool = self.new_pool(index);
        Device {
            gpu: Gpu::with_memory(self.config.archs[index], memory),
            null_stream,
            default_pool: pool,
            pool,
            sticky: None,
        }
    }

    /// A handle that was never given before; following it as a pointer ends the program.
    pub fn handle(&mut self, kind: Handle) -> u64 {
        self.handles += 1;
        0x0e00_0000_0000_0000 | (kind as u64) << 48 | self.handles << 4
    }

    /// The thread's device.
    pub fn current(&mut self) -> Result<&mut Device, hipError_t> {
        self.devices
            .get_mut(current_device())
            .ok_or(hipError_t::hipErrorNoDevice)
    }

    /// The thread's device, unless a kernel went wrong on it.
    pub fn healthy(&mut self) -> Result<&mut Device, hipError_t> {
        let device = self.current()?;
        device.sticky.map_or(Ok(()), Err)?;
        Ok(device)
    }

    /// Loads a code object, or the one in a bundle that is for the device, and gives its handle.
    pub fn load_module(&mut self, device: usize, bytes: &[u8]) -> Result<u64, hipError_t> {
        let disassembler = self.disassembler()?;
        let gpu = &self.devices[device].gpu;
        let object = CodeObject::load_for(bytes, gpu.arch()).map_err(refused)?;
        let module = gpu.load(object, disassembler).map_err(refused)?;
        let id = self.handle(Handle::Module);
        let functions = BTreeMap::new();
        self.modules.insert(
            id,
            LoadedModule {
                device,
                module,
                functions,
            },
        );
        Ok(id)
    }

    /// The handle of a module's kernel; it is not decoded yet.
    pub fn function_of(&mut self, module: u64, name: &str) -> Result<u64, hipError_t> {
        let id = self.handle(Handle::Function);
        let loaded = self.modules.get_mut(&module).ok_or(hipError_t::hipErrorInvalidHandle)?;
        if let Some(known) = loaded.functions.get(name) {
            return Ok(*known);
        }
        // Not reported: libraries look for a kernel in one module after another.
        let info = loaded.module.object().kernel(name).map_err(|error| of_load(&error))?;
        let function = Function {
            device: loaded.device,
            info: Arc::new(info.clone()),
            module: loaded.module.clone(),
            kernel: Arc::default(),
        };
        loaded.functions.insert(name.to_string(), id);
        self.functions.insert(id, function);
        Ok(id)
    }

    /// Takes a module and its kernels away; launches that are queued keep what they need.
    pub fn unload(&mut self, module: u64) {
        for function in self
            .modules
            .remove(&module)
            .iter()
            .flat_map(|module| module.functions.values())
        {
            self.functions.remove(function);
        }
    }

    /// The source of disassembly, opened when first needed.
    pub fn disassembler(&mut self) -> Result<Arc<dyn Disassembler>, hipError_t> {
        if let Some(disassembler) = &self.disassembler {
            return Ok(disassembler.clone());
        }
        let found: Arc<dyn Disassembler> = match &self.config.disassembler {
            Some(words) => Arc::new(Worker::new(words.iter().map(Into::into).collect())),
            None => Arc::new(Comgr::open().map_err(|error| {
                report(&format!("{error}; GRAPHC_EMU_DISASSEMBLER can name a worker's command"));
                hipError_t::hipErrorSharedObjectInitFailed
            })?),
        };
        let kept: Arc<dyn Disassembler> = Arc::new(Kept::new(found));
        Ok(self.disassembler.insert(kept).clone())
    }

    /// How much more often than others a stream is chosen: some lag far behind.
    pub fn weight(&mut self) -> u64 {
        self.random.as_mut().map_or(1, |random| [1, 8, 64][random.below(3)])
    }
}

/// A small generator (xorshift64*), the same on each run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Splitmix's finaliser, so that neighbouring seeds differ from the first number on.
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((z ^ (z >> 31)) | 1)
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as usize) % limit
    }
}
