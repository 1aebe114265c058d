//! The driver over CUDA's driver API, opened by `dlopen`.
//!
//! A device is entered through its primary context, which is made on the first visit and kept until the process ends:
//! contexts are shared with whatever else the process does with CUDA. Pinned memory and device memory share one address
//! space, so a copy needs no direction.

use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Mutex, PoisonError};

use cuda_sys::{
    CUcontext, CUctx_st, CUdevice_attribute_enum as Attribute, CUevent_flags_enum as EventFlags,
    CUfunction_attribute_enum as FunctionAttribute, CUgraphExecUpdateResult_enum, CUgraphExecUpdateResultInfo,
    CUlaunchAttribute, CUlaunchAttributeID_enum as LaunchAttribute,
    CUlaunchAttributeValue_union as CUlaunchAttributeValue, CUlaunchConfig_st as CUlaunchConfig,
    CUstream_flags_enum as StreamFlags, CUstreamCaptureMode_enum as CaptureMode, CudaLibrary, Loaded, cudaError_enum,
};
use dylib::{NotFound, Search};

use super::driver::{
    Description, Direction, Driver, DriverError, FailureKind, Launch, Priority, RawEvent, RawFunction, RawGraph,
    RawGraphExec, RawModule, RawStream, Status, driver_version,
};

/// The CUDA driver.
pub struct Cuda {
    api: Loaded<CudaLibrary>,
    /// The primary context of each device that was entered, by its number.
    contexts: Mutex<Vec<Context>>,
    /// Whether launches that overlap may be captured too, which CUDA 12.3 began with.
    overlaps: bool,
}

/// A context's handle.
#[derive(Clone, Copy)]
struct Context(CUcontext);

// SAFETY: a handle is a name that the driver resolves; a context may be current in any number of threads.
unsafe impl Send for Context {}

impl Cuda {
    /// Opens the CUDA driver where `search` finds it.
    ///
    /// # Errors
    /// [`NotFound`] with every place looked at.
    pub fn open(search: &Search) -> Result<Cuda, NotFound> {
        let api = cuda_sys::load(search)?;
        let mut version = 0;
        // SAFETY: `version` is a live integer.
        let code = unsafe { api.cuDriverGetVersion(&mut version) };
        Ok(Cuda {
            overlaps: code == cudaError_enum::CUDA_SUCCESS && version >= 12_030,
            api,
            contexts: Mutex::default(),
        })
    }

    fn check(&self, call: &'static str, code: cudaError_enum) -> Status<()> {
        if code == cudaError_enum::CUDA_SUCCESS {
            return Ok(());
        }
        let text = |get: unsafe extern "C" fn(cudaError_enum, *mut *const std::ffi::c_char) -> cudaError_enum| {
            let mut text = null();
            // SAFETY: both functions write a static string, or null for a number that they do not know.
            let found = unsafe { get(code, &mut text) };
            if found != cudaError_enum::CUDA_SUCCESS || text.is_null() {
                return format!("error {}", code.0);
            }
            // SAFETY: not null, and ends in a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(DriverError {
            call,
            code: text(self.api.cuGetErrorName),
            message: text(self.api.cuGetErrorString),
            kind: match code {
                cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY => FailureKind::OutOfMemory,
                cudaError_enum::CUDA_ERROR_NO_DEVICE
                | cudaError_enum::CUDA_ERROR_INVALID_DEVICE
                | cudaError_enum::CUDA_ERROR_DEVICE_UNAVAILABLE
                | cudaError_enum::CUDA_ERROR_DEINITIALIZED
                | cudaError_enum::CUDA_ERROR_CONTEXT_IS_DESTROYED => FailureKind::NoDevice,
                _ => FailureKind::Other,
            },
        })
    }

    fn device(&self, number: usize) -> Status<c_int> {
        let mut device = 0;
        self.check("cuDeviceGet", {
            // SAFETY: `device` is a live integer.
            unsafe { (self.api.cuDeviceGet)(&mut device, number as c_int) }
        })?;
        Ok(device)
    }
}

/// Calls a function of the table and turns its code into a [`Status`].
macro_rules! cuda {
    ($self:ident.$name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the bindings' signatures are the library's; results are written to locals of their types, and what is
        // handed over is valid by the contract of `Driver`.
        let code = unsafe { $self.api.$name($($argument),*) };
        $self.check(stringify!($name), code)
    }};
}

impl Cuda {
    /// The context of a device, which the driver's own runtime has too.
    fn context(&self, number: usize) -> Status<*mut CUctx_st> {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if contexts.len() <= number {
            contexts.resize(number + 1, Context(null_mut()));
        }
        if contexts[number].0.is_null() {
            let device = self.device(number)?;
            let mut context: *mut CUctx_st = null_mut();
            cuda!(self.cuDevicePrimaryCtxRetain(&mut context, device))?;
            contexts[number] = Context(context);
        }
        Ok(contexts[number].0)
    }
}

impl Driver for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn library(&self) -> &Path {
        &self.api.path
    }

    fn devices(&self) -> Status<usize> {
        let mut count: c_int = 0;
        // Every other call wants the driver initialised; doing it again changes nothing.
        match cuda!(self.cuInit(0)).and_then(|()| cuda!(self.cuDeviceGetCount(&mut count))) {
            Ok(()) => Ok(usize::try_from(count).unwrap_or(0)),
            Err(error) if error.kind == FailureKind::NoDevice => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn describe(&self, number: usize) -> Status<Description> {
        let device = self.device(number)?;
        let mut name = [0u8; 256];
        cuda!(self.cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int - 1, device))?;
        let product = CStr::from_bytes_until_nul(&name).map_or_else(|_| String::new(), |n| n.to_string_lossy().into());
        let mut memory = 0;
        cuda!(self.cuDeviceTotalMem_v2(&mut memory, device))?;
        let (mut major, mut minor) = (0, 0);
        let capability = [
            (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &mut major),
            (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &mut minor),
        ];
        for (attribute, value) in capability {
            cuda!(self.cuDeviceGetAttribute(value, attribute, device))?;
        }
        let mut version = 0;
        cuda!(self.cuDriverGetVersion(&mut version))?;
        let library = format!("CUDA {}.{}", version / 1000, version / 10 % 100);
        Ok(Description {
            arch: format!("sm_{major}{minor}"),
            product,
            memory,
            driver: driver_version(&library, "nvidia"),
        })
    }

    fn enter(&self, number: usize) -> Status<()> {
        cuda!(self.cuCtxSetCurrent(self.context(number)?))
    }

    fn memory(&self) -> Status<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        cuda!(self.cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok((free, total))
    }

    fn synchronize(&self) -> Status<()> {
        cuda!(self.cuCtxSynchronize())
    }

    fn allocate(&self, bytes: usize) -> Status<u64> {
        let mut address = 0;
        cuda!(self.cuMemAlloc_v2(&mut address, bytes))?;
        Ok(address)
    }

    unsafe fn free(&self, address: u64) -> Status<()> {
        cuda!(self.cuMemFree_v2(address))
    }

    fn allocate_pinned(&self, bytes: usize) -> Status<NonNull<u8>> {
        let mut pointer = null_mut();
        cuda!(self.cuMemHostAlloc(&mut pointer, bytes, 0))?;
        NonNull::new(pointer.cast()).ok_or_else(|| DriverError {
            call: "cuMemHostAlloc",
            code: "a null pointer".into(),
            message: format!("for {bytes} bytes"),
            kind: FailureKind::OutOfMemory,
        })
    }

    unsafe fn free_pinned(&self, pointer: NonNull<u8>) -> Status<()> {
        cuda!(self.cuMemFreeHost(pointer.as_ptr().cast()))
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize, _direction: Direction, stream: RawStream) -> Status<()> {
        cuda!(self.cuMemcpyAsync(to, from, bytes, stream.0.cast()))
    }

    fn allow_peer(&self, device: usize, peer: usize) -> Status<bool> {
        let mut can = 0;
        let (own, other) = (self.device(device)?, self.device(peer)?);
        cuda!(self.cuDeviceCanAccessPeer(&mut can, own, other))?;
        if can == 0 {
            return Ok(false);
        }
        match cuda!(self.cuCtxEnablePeerAccess(self.context(peer)?, 0)) {
            Err(error) if error.code == "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED" => Ok(true),
            other => other.map(|()| true),
        }
    }

    unsafe fn copy_between(
        &self,
        (to_device, to): (usize, u64),
        (from_device, from): (usize, u64),
        bytes: usize,
        stream: RawStream,
    ) -> Status<()> {
        let (into, out_of) = (self.context(to_device)?, self.context(from_device)?);
        cuda!(self.cuMemcpyPeerAsync(to, into, from, out_of, bytes, stream.0.cast()))
    }

    fn create_stream(&self, priority: Priority) -> Status<RawStream> {
        let mut stream = null_mut();
        let flags = StreamFlags::CU_STREAM_NON_BLOCKING.0;
        if priority == Priority::Normal {
            cuda!(self.cuStreamCreate(&mut stream, flags))?;
            return Ok(RawStream(stream.cast()));
        }
        let (mut least, mut greatest) = (0, 0);
        cuda!(self.cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
        let number = if priority == Priority::High { greatest } else { least };
        cuda!(self.cuStreamCreateWithPriority(&mut stream, flags, number))?;
        Ok(RawStream(stream.cast()))
    }

    unsafe fn destroy_stream(&self, stream: RawStream) -> Status<()> {
        cuda!(self.cuStreamDestroy_v2(stream.0.cast()))
    }

    unsafe fn synchronize_stream(&self, stream: RawStream) -> Status<()> {
        cuda!(self.cuStreamSynchronize(stream.0.cast()))
    }

    unsafe fn wait_event(&self, stream: RawStream, event: RawEvent) -> Status<()> {
        cuda!(self.cuStreamWaitEvent(stream.0.cast(), event.0.cast(), 0))
    }

    fn create_event(&self, timing: bool) -> Status<RawEvent> {
        let flags = if timing {
            EventFlags::CU_EVENT_DEFAULT
        } else {
            EventFlags::CU_EVENT_DISABLE_TIMING
        };
        let mut event = null_mut();
        cuda!(self.cuEventCreate(&mut event, flags.0))?;
        Ok(RawEvent(event.cast()))
    }

    unsafe fn destroy_event(&self, event: RawEvent) -> Status<()> {
        cuda!(self.cuEventDestroy_v2(event.0.cast()))
    }

    unsafe fn record_event(&self, event: RawEvent, stream: RawStream) -> Status<()> {
        cuda!(self.cuEventRecord(event.0.cast(), stream.0.cast()))
    }

    unsafe fn synchronize_event(&self, event: RawEvent) -> Status<()> {
        cuda!(self.cuEventSynchronize(event.0.cast()))
    }

    unsafe fn query_event(&self, event: RawEvent) -> Status<bool> {
        // Not ready is an answer, no failure.
        // SAFETY: the event is alive by the contract of `Driver`.
        match unsafe { self.api.cuEventQuery(event.0.cast()) } {
            cudaError_enum::CUDA_ERROR_NOT_READY => Ok(false),
            code => self.check("cuEventQuery", code).map(|()| true),
        }
    }

    unsafe fn elapsed(&self, start: RawEvent, stop: RawEvent) -> Status<f32> {
        let mut milliseconds = 0.0;
        cuda!(self.cuEventElapsedTime(&mut milliseconds, start.0.cast(), stop.0.cast()))?;
        Ok(milliseconds)
    }

    fn load_module(&self, image: &[u8]) -> Status<RawModule> {
        let mut module = null_mut();
        cuda!(self.cuModuleLoadData(&mut module, image.as_ptr().cast()))?;
        Ok(RawModule(module.cast()))
    }

    unsafe fn unload_module(&self, module: RawModule) -> Status<()> {
        cuda!(self.cuModuleUnload(module.0.cast()))
    }

    unsafe fn function(&self, module: RawModule, name: &CStr) -> Status<RawFunction> {
        let mut function = null_mut();
        cuda!(self.cuModuleGetFunction(&mut function, module.0.cast(), name.as_ptr()))?;
        Ok(RawFunction(function.cast()))
    }

    unsafe fn allow_lds(&self, function: RawFunction, bytes: u32) -> Status<()> {
        let most = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        cuda!(self.cuFuncSetAttribute(function.0.cast(), most, bytes as c_int))
    }

    unsafe fn launch(&self, launch: Launch, arguments: &mut [*mut c_void], stream: RawStream) -> Status<()> {
        // "Programmatic dependent launch": the launch is not held back by the end of the one before it on its stream.
        let mut overlaps = CUlaunchAttribute {
            id: LaunchAttribute::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: 1,
            },
        };
        let [x, y, z] = launch.grid;
        let config = CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.lds,
            hStream: stream.0.cast(),
            attrs: &mut overlaps,
            numAttrs: u32::from(launch.overlaps && self.overlaps),
        };
        cuda!(self.cuLaunchKernelEx(&config, launch.function.0.cast(), arguments.as_mut_ptr(), null_mut()))
    }

    unsafe fn begin_capture(&self, stream: RawStream) -> Status<()> {
        // Relaxed: other threads may allocate meanwhile. What is captured makes no call that waits.
        let mode = CaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        cuda!(self.cuStreamBeginCapture_v2(stream.0.cast(), mode))
    }

    unsafe fn end_capture(&self, stream: RawStream) -> Status<RawGraph> {
        let mut graph = null_mut();
        cuda!(self.cuStreamEndCapture(stream.0.cast(), &mut graph))?;
        Ok(RawGraph(graph.cast()))
    }

    unsafe fn instantiate(&self, graph: RawGraph) -> Status<RawGraphExec> {
        let mut exec = null_mut();
        cuda!(self.cuGraphInstantiateWithFlags(&mut exec, graph.0.cast(), 0))?;
        Ok(RawGraphExec(exec.cast()))
    }

    unsafe fn update_graph(&self, exec: RawGraphExec, graph: RawGraph) -> Status<bool> {
        let mut verdict = CUgraphExecUpdateResultInfo {
            result: CUgraphExecUpdateResult_enum(0),
            errorNode: null_mut(),
            errorFromNode: null_mut(),
        };
        // SAFETY: both are alive by the contract of `Driver`, and the results go to a local.
        let code = unsafe {
            self.api
                .cuGraphExecUpdate_v2(exec.0.cast(), graph.0.cast(), &mut verdict)
        };
        match code {
            cudaError_enum::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE => Ok(false),
            code => self.check("cuGraphExecUpdate_v2", code).map(|()| true),
        }
    }

    unsafe fn launch_graph(&self, exec: RawGraphExec, stream: RawStream) -> Status<()> {
        cuda!(self.cuGraphLaunch(exec.0.cast(), stream.0.cast()))
    }

    unsafe fn destroy_graph(&self, graph: RawGraph) -> Status<()> {
        cuda!(self.cuGraphDestroy(graph.0.cast()))
    }

    unsafe fn destroy_graph_exec(&self, exec: RawGraphExec) -> Status<()> {
        cuda!(self.cuGraphExecDestroy(exec.0.cast()))
    }
}
