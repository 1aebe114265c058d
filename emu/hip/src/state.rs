//! The one state of the library: devices, handles, queues; and the way every call enters it.

use crate::config::{Config, FaultKind};
use crate::fault::Faults;
use crate::graph::{Capture, Exec, Graph};
use crate::memory::Pinned;
use crate::queue::{Event, Stream};
use crate::status::Status;
use graphc_emu::memory::DEVICE_BASE;
use graphc_emu::{Comgr, Disassembler, Gpu, Kernel, Memory, Module, Worker};
use hip_sys::hipError_t;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// Device `i`'s addresses begin at `DEVICE_BASE + i · DEVICE_SPAN`.
pub const DEVICE_SPAN: u64 = 1 << 40;

/// One emulated GPU.
pub struct Device {
    pub gpu: Gpu,
    /// The stream that a null handle means.
    pub null_stream: u64,
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

/// A kernel of a loaded code object.
#[derive(Clone)]
pub struct Function {
    pub device: usize,
    pub kernel: Kernel,
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
}

/// Everything.
pub struct Runtime {
    pub config: Config,
    pub devices: Vec<Device>,
    pub streams: BTreeMap<u64, Stream>,
    pub events: BTreeMap<u64, Event>,
    pub modules: BTreeMap<u64, LoadedModule>,
    pub functions: BTreeMap<u64, Function>,
    pub captures: BTreeMap<u64, Capture>,
    pub graphs: BTreeMap<u64, Graph>,
    pub execs: BTreeMap<u64, Exec>,
    /// Host memory that devices see, by address.
    pub pinned: BTreeMap<u64, Pinned>,
    pub faults: Faults,
    pub random: Option<Random>,
    pub lost: bool,
    pub start: Instant,
    pub sequence: u64,
    handles: u64,
    disassembler: Option<Arc<dyn Disassembler>>,
}

static RUNTIME: OnceLock<Mutex<Result<Runtime, hipError_t>>> = OnceLock::new();

thread_local! {
    static DEVICE: Cell<usize> = const { Cell::new(0) };
    static LAST_ERROR: Cell<hipError_t> = const { Cell::new(hipError_t::hipSuccess) };
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

/// Runs one call on the state: with the lock held, errors remembered for the thread, panics kept from the caller.
pub fn enter(name: &'static str, body: impl FnOnce(&mut Runtime) -> Status) -> hipError_t {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut state = RUNTIME
            .get_or_init(|| Mutex::new(create()))
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let runtime = state.as_mut().map_err(|error| *error)?;
        if runtime.faults.hit(FaultKind::Lost) {
            runtime.lost = true;
        }
        if runtime.lost {
            return Err(hipError_t::hipErrorNoDevice);
        }
        body(runtime)
    }));
    let code = match result {
        Ok(Ok(())) => return hipError_t::hipSuccess,
        Ok(Err(code)) => code,
        Err(_) => {
            report(&format!("{name}: an internal error of the emulator"));
            hipError_t::hipErrorUnknown
        }
    };
    if code != hipError_t::hipErrorNotReady {
        LAST_ERROR.set(code);
    }
    code
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
    let mut runtime = Runtime {
        devices: Vec::new(),
        streams: BTreeMap::new(),
        events: BTreeMap::new(),
        modules: BTreeMap::new(),
        functions: BTreeMap::new(),
        captures: BTreeMap::new(),
        graphs: BTreeMap::new(),
        execs: BTreeMap::new(),
        pinned: BTreeMap::new(),
        faults: Faults::new(config.faults.clone()),
        random: config.seed.map(Random::new),
        lost: false,
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
    Ok(runtime)
}

impl Runtime {
    /// A device with empty memory and its null stream.
    pub fn new_device(&mut self, index: usize) -> Device {
        let base = DEVICE_BASE + index as u64 * DEVICE_SPAN;
        let memory = Arc::new(Memory::with_base(self.config.memory_bytes, base));
        let null_stream = self.handle(Handle::Stream);
        let weight = self.weight();
        self.streams.insert(null_stream, Stream::new(index, true, 0, weight));
        Device {
            gpu: Gpu::with_memory(self.config.archs[index], memory),
            null_stream,
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
        Ok(self.disassembler.insert(found).clone())
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
