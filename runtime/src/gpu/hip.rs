//! The driver over HIP, opened by `dlopen`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use dylib::{NotFound, Search};
use hip_sys::{
    ArchError, HipLibrary, Loaded, hipError_t, hipGraphExecUpdateResult, hipMemcpyKind, hipStreamCaptureMode,
};

use super::driver::{
    Description, Direction, Driver, DriverError, FailureKind, Launch, Priority, RawEvent, RawFunction, RawGraph,
    RawGraphExec, RawModule, RawStream, Status, driver_version,
};

/// The HIP runtime.
pub struct Hip {
    api: Loaded<HipLibrary>,
}

impl Hip {
    /// Opens the HIP runtime where `search` finds it.
    ///
    /// # Errors
    /// [`NotFound`] with every place looked at.
    pub fn open(search: &Search) -> Result<Hip, NotFound> {
        Ok(Hip {
            api: hip_sys::load(search)?,
        })
    }

    fn check(&self, call: &'static str, code: hipError_t) -> Status<()> {
        if code == hipError_t::hipSuccess {
            return Ok(());
        }
        let text = |get: unsafe extern "C" fn(hipError_t) -> *const c_char| {
            // SAFETY: both functions give a static string for every number.
            let text = unsafe { get(code) };
            if text.is_null() {
                return format!("error {}", code.0);
            }
            // SAFETY: not null, and ends in a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(DriverError {
            call,
            code: text(self.api.hipGetErrorName),
            message: text(self.api.hipGetErrorString),
            kind: match code {
                hipError_t::hipErrorOutOfMemory => FailureKind::OutOfMemory,
                hipError_t::hipErrorNoDevice
                | hipError_t::hipErrorInvalidDevice
                | hipError_t::hipErrorDeinitialized
                | hipError_t::hipErrorContextIsDestroyed => FailureKind::NoDevice,
                _ => FailureKind::Other,
            },
        })
    }
}

/// Calls a function of the table and turns its code into a [`Status`].
macro_rules! hip {
    ($self:ident.$name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the bindings' signatures are the library's; results are written to locals of their types, and what is
        // handed over is valid by the contract of `Driver`.
        let code = unsafe { $self.api.$name($($argument),*) };
        $self.check(stringify!($name), code)
    }};
}

impl Driver for Hip {
    fn name(&self) -> &'static str {
        "hip"
    }

    fn library(&self) -> &Path {
        &self.api.path
    }

    fn devices(&self) -> Status<usize> {
        let mut count: c_int = 0;
        match hip!(self.hipGetDeviceCount(&mut count)) {
            Ok(()) => Ok(usize::try_from(count).unwrap_or(0)),
            Err(error) if error.kind == FailureKind::NoDevice => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn describe(&self, device: usize) -> Status<Description> {
        let number = device as c_int;
        let mut name = [0u8; 256];
        hip!(self.hipDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int - 1, number))?;
        let product = CStr::from_bytes_until_nul(&name).map_or_else(|_| String::new(), |n| n.to_string_lossy().into());
        let mut memory = 0;
        hip!(self.hipDeviceTotalMem(&mut memory, number))?;
        let arch = match hip_sys::arch(&self.api.path, number) {
            Ok(arch) => arch,
            Err(ArchError::Call(code)) => {
                self.check("hipGetDevicePropertiesR0600", code)?;
                String::new()
            }
            Err(ArchError::NoEntryPoint(message)) => {
                return Err(DriverError {
                    call: "hipGetDevicePropertiesR0600",
                    code: "not in this library".into(),
                    message: format!("ROCm 6 or later is needed: {message}"),
                    kind: FailureKind::Other,
                });
            }
        };
        let mut version = 0;
        hip!(self.hipDriverGetVersion(&mut version))?;
        let (major, minor, patch) = (version / 10_000_000, version / 100_000 % 100, version % 100_000);
        Ok(Description {
            arch,
            product,
            memory,
            driver: driver_version(&format!("HIP {major}.{minor}.{patch}"), "amdgpu"),
        })
    }

    fn enter(&self, device: usize) -> Status<()> {
        hip!(self.hipSetDevice(device as c_int))
    }

    fn memory(&self) -> Status<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        hip!(self.hipMemGetInfo(&mut free, &mut total))?;
        Ok((free, total))
    }

    fn synchronize(&self) -> Status<()> {
        hip!(self.hipDeviceSynchronize())
    }

    fn allocate(&self, bytes: usize) -> Status<u64> {
        let mut pointer = null_mut();
        hip!(self.hipMalloc(&mut pointer, bytes))?;
        Ok(pointer as u64)
    }

    unsafe fn free(&self, address: u64) -> Status<()> {
        hip!(self.hipFree(address as *mut c_void))
    }

    fn allocate_pinned(&self, bytes: usize) -> Status<NonNull<u8>> {
        let mut pointer = null_mut();
        hip!(self.hipHostMalloc(&mut pointer, bytes, hip_sys::hipHostMallocDefault))?;
        NonNull::new(pointer.cast()).ok_or_else(|| DriverError {
            call: "hipHostMalloc",
            code: "a null pointer".into(),
            message: format!("for {bytes} bytes"),
            kind: FailureKind::OutOfMemory,
        })
    }

    unsafe fn free_pinned(&self, pointer: NonNull<u8>) -> Status<()> {
        hip!(self.hipHostFree(pointer.as_ptr().cast()))
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: usize, direction: Direction, stream: RawStream) -> Status<()> {
        let kind = match direction {
            Direction::ToDevice => hipMemcpyKind::hipMemcpyHostToDevice,
            Direction::ToHost => hipMemcpyKind::hipMemcpyDeviceToHost,
            Direction::OnDevice => hipMemcpyKind::hipMemcpyDeviceToDevice,
            Direction::OnHost => hipMemcpyKind::hipMemcpyHostToHost,
        };
        hip!(self.hipMemcpyAsync(to as *mut c_void, from as *const c_void, bytes, kind, stream.0.cast()))
    }

    fn allow_peer(&self, device: usize, peer: usize) -> Status<bool> {
        let mut can = 0;
        hip!(self.hipDeviceCanAccessPeer(&mut can, device as c_int, peer as c_int))?;
        if can == 0 {
            return Ok(false);
        }
        match hip!(self.hipDeviceEnablePeerAccess(peer as c_int, 0)) {
            Err(error) if error.code == "hipErrorPeerAccessAlreadyEnabled" => Ok(true),
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
        let (to, from) = (to as *mut c_void, from as *const c_void);
        hip!(self.hipMemcpyPeerAsync(
            to,
            to_device as c_int,
            from,
            from_device as c_int,
            bytes,
            stream.0.cast()
        ))
    }

    fn create_stream(&self, priority: Priority) -> Status<RawStream> {
        let mut stream = null_mut();
        let flags = hip_sys::hipStreamNonBlocking;
        if priority == Priority::Normal {
            hip!(self.hipStreamCreateWithFlags(&mut stream, flags))?;
            return Ok(RawStream(stream.cast()));
        }
        let (mut least, mut greatest) = (0, 0);
        hip!(self.hipDeviceGetStreamPriorityRange(&mut least, &mut greatest))?;
        let number = if priority == Priority::High { greatest } else { least };
        hip!(self.hipStreamCreateWithPriority(&mut stream, flags, number))?;
        Ok(RawStream(stream.cast()))
    }

    unsafe fn destroy_stream(&self, stream: RawStream) -> Status<()> {
        hip!(self.hipStreamDestroy(stream.0.cast()))
    }

    unsafe fn synchronize_stream(&self, stream: RawStream) -> Status<()> {
        hip!(self.hipStreamSynchronize(stream.0.cast()))
    }

    unsafe fn wait_event(&self, stream: RawStream, event: RawEvent) -> Status<()> {
        hip!(self.hipStreamWaitEvent(stream.0.cast(), event.0.cast(), 0))
    }

    fn create_event(&self, timing: bool) -> Status<RawEvent> {
        let flags = if timing {
            hip_sys::hipEventDefault
        } else {
            hip_sys::hipEventDisableTiming
        };
        let mut event = null_mut();
        hip!(self.hipEventCreateWithFlags(&mut event, flags))?;
        Ok(RawEvent(event.cast()))
    }

    unsafe fn destroy_event(&self, event: RawEvent) -> Status<()> {
        hip!(self.hipEventDestroy(event.0.cast()))
    }

    unsafe fn record_event(&self, event: RawEvent, stream: RawStream) -> Status<()> {
        hip!(self.hipEventRecord(event.0.cast(), stream.0.cast()))
    }

    unsafe fn synchronize_event(&self, event: RawEvent) -> Status<()> {
        hip!(self.hipEventSynchronize(event.0.cast()))
    }

    unsafe fn query_event(&self, event: RawEvent) -> Status<bool> {
        // Not ready is an answer, no failure.
        // SAFETY: the event is alive by the contract of `Driver`.
        match unsafe { self.api.hipEventQuery(event.0.cast()) } {
            hipError_t::hipErrorNotReady => Ok(false),
            code => self.check("hipEventQuery", code).map(|()| true),
        }
    }

    unsafe fn elapsed(&self, start: RawEvent, stop: RawEvent) -> Status<f32> {
        let mut milliseconds = 0.0;
        hip!(self.hipEventElapsedTime(&mut milliseconds, start.0.cast(), stop.0.cast()))?;
        Ok(milliseconds)
    }

    fn load_module(&self, image: &[u8]) -> Status<RawModule> {
        let mut module = null_mut();
        hip!(self.hipModuleLoadData(&mut module, image.as_ptr().cast()))?;
        Ok(RawModule(module.cast()))
    }

    unsafe fn unload_module(&self, module: RawModule) -> Status<()> {
        hip!(self.hipModuleUnload(module.0.cast()))
    }

    unsafe fn function(&self, module: RawModule, name: &CStr) -> Status<RawFunction> {
        let mut function = null_mut();
        hip!(self.hipModuleGetFunction(&mut function, module.0.cast(), name.as_ptr()))?;
        Ok(RawFunction(function.cast()))
    }

    unsafe fn allow_lds(&self, _function: RawFunction, _bytes: u32) -> Status<()> {
        // AMD's kernels may have all the LDS that there is without asking.
        Ok(())
    }

    unsafe fn launch(&self, launch: Launch, arguments: &mut [*mut c_void], stream: RawStream) -> Status<()> {
        let [x, y, z] = launch.grid;
        hip!(self.hipModuleLaunchKernel(
            launch.function.0.cast(),
            x,
            y,
            z,
            launch.block,
            1,
            1,
            launch.lds,
            stream.0.cast(),
            arguments.as_mut_ptr(),
            null_mut()
        ))
    }

    unsafe fn begin_capture(&self, stream: RawStream) -> Status<()> {
        // Relaxed: other threads may allocate meanwhile. What is captured makes no call that waits.
        hip!(self.hipStreamBeginCapture(stream.0.cast(), hipStreamCaptureMode::hipStreamCaptureModeRelaxed))
    }

    unsafe fn end_capture(&self, stream: RawStream) -> Status<RawGraph> {
        let mut graph = null_mut();
        hip!(self.hipStreamEndCapture(stream.0.cast(), &mut graph))?;
        Ok(RawGraph(graph.cast()))
    }

    unsafe fn instantiate(&self, graph: RawGraph) -> Status<RawGraphExec> {
        let mut exec = null_mut();
        hip!(self.hipGraphInstantiate(&mut exec, graph.0.cast(), null_mut(), null_mut(), 0))?;
        Ok(RawGraphExec(exec.cast()))
    }

    unsafe fn update_graph(&self, exec: RawGraphExec, graph: RawGraph) -> Status<bool> {
        let mut node = null_mut();
        let mut verdict = hipGraphExecUpdateResult::hipGraphExecUpdateSuccess;
        // SAFETY: both are alive by the contract of `Driver`, and the results go to locals.
        let code = unsafe {
            self.api
                .hipGraphExecUpdate(exec.0.cast(), graph.0.cast(), &mut node, &mut verdict)
        };
        match code {
            hipError_t::hipErrorGraphExecUpdateFailure => Ok(false),
            code => self.check("hipGraphExecUpdate", code).map(|()| true),
        }
    }

    unsafe fn launch_graph(&self, exec: RawGraphExec, stream: RawStream) -> Status<()> {
        hip!(self.hipGraphLaunch(exec.0.cast(), stream.0.cast()))
    }

    unsafe fn destroy_graph(&self, graph: RawGraph) -> Status<()> {
        hip!(self.hipGraphDestroy(graph.0.cast()))
    }

    unsafe fn destroy_graph_exec(&self, exec: RawGraphExec) -> Status<()> {
        hip!(self.hipGraphExecDestroy(exec.0.cast()))
    }
}
