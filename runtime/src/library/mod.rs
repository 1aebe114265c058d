//! Vendor libraries: what carries out the calls that `passes::route` put into a plan. One file a library.
//!
//! Opening comes with loading, and only for the libraries that the plan calls; a GPU must have been found before, since
//! some of them end the process where there is none. A call is prepared once for each set of sizes; a run enqueues it.

mod hipblaslt;
mod miopen;
mod miopen_plain;
pub(crate) mod rccl;
mod rocblas;

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use dylib::{Loaded, NotFound, Search};
use ir::dim::Bindings;
use ir::library::{Algorithm, GemmEpilogue, GemmScale, Library, LibraryCall, LibraryOp};
use ir::plan::{Plan, Step};
use ir::{Program, TensorType};

use crate::checks::check_ranks;
use crate::error::RuntimeError;
use crate::gpu::driver::RawStream;
use crate::gpu::handles::{DeviceMemory, Gpu};
use crate::miopen::MiopenOptions;

/// Takes memory of the device, so many bytes, for as long as the value is there.
pub(crate) type Allocate<'a> = dyn FnMut(usize, Content) -> Result<DeviceMemory, RuntimeError> + 'a;

/// What memory holds at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    Any,
    Zeros,
}

/// A vendor's library that was opened for a device.
struct Opened<T> {
    api: Loaded<T>,
    device: String,
}

impl<T> Opened<T> {
    /// Takes what `load` found, or says what is missing: the library that the step at `at` calls, without which `work`
    /// can be generated kernels.
    fn new(
        loaded: Result<Loaded<T>, NotFound>,
        name: &str,
        work: &str,
        at: &str,
        device: &str,
    ) -> Result<Opened<T>, RuntimeError> {
        match loaded {
            Ok(api) => Ok(Opened {
                api,
                device: device.to_owned(),
            }),
            Err(error) => Err(RuntimeError::NotAvailable {
                what: format!("{name}, which {at} calls,"),
                reason: format!(
                    "{error}\ninstall it, or compile with --no-libraries, and its {work} are generated kernels"
                ),
            }),
        }
    }

    /// The error of a call that failed, by the library's own static text for its status, or null.
    fn failed(&self, call: &str, status: u32, text: *const c_char, at: String) -> RuntimeError {
        let code = if text.is_null() {
            format!("status {status}")
        } else {
            // SAFETY: not null, and the libraries' texts are static and end in a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        RuntimeError::Device {
            device: self.device.clone(),
            call: call.to_owned(),
            code,
            message: format!("from {}", self.api.path.display()),
            at,
        }
    }
}

/// The libraries that one plan calls.
#[derive(Default)]
pub(crate) struct Libraries {
    rocblas: Option<Arc<rocblas::Rocblas>>,
    hipblaslt: Option<Arc<hipblaslt::Hipblaslt>>,
    miopen: Option<Arc<miopen::Miopen>>,
    /// Of a program that is one rank's part of a model.
    rccl: Option<rccl::Seat>,
}

/// What a run has to itself of them.
#[derive(Default)]
pub(crate) struct Handles {
    rocblas: Option<rocblas::Handle>,
    hipblaslt: Option<hipblaslt::Handle>,
    miopen: Option<miopen::Handle>,
    /// What is described for MIOpen's handle.
    described: miopen_plain::Described,
    rccl: Option<rccl::Seat>,
}

/// A call at one set of sizes.
#[derive(Debug)]
pub(crate) enum Call {
    Gemm(rocblas::Gemm),
    Matmul(hipblaslt::Matmul),
    Conv(miopen::Conv),
    Plain(miopen_plain::Plain),
    Collective(rccl::Call),
}

impl Libraries {
    /// Opens what a variant's plan calls. The device must be there, and entered. `seat` is the rank's among the devices
    /// of a model.
    ///
    /// Where a library is not there, and kernels do what its calls do at other sizes, the program that is returned has
    /// them in their place.
    pub fn open(
        program: Arc<Program>,
        variant: usize,
        (search, miopen): (&Search, &MiopenOptions),
        gpu: &Gpu,
        seat: Option<rccl::Seat>,
    ) -> Result<(Libraries, Arc<Program>), RuntimeError> {
        let mut libraries = Libraries {
            rccl: seat,
            ..Libraries::default()
        };
        let mut program = program;
        loop {
            let plan = &program.variants[variant].plan;
            let opened = libraries.open_all(plan, (search, miopen), gpu);
            let Err(error @ RuntimeError::NotAvailable { .. }) = opened else {
                return opened.map(|()| (libraries, program));
            };
            // They are opened in the order of the steps: the first that is not open is the one that is not there.
            let missing = {
                let mut called = plan.steps.values().flat_map(Step::calls).map(|call| call.library);
                called.find(|library| !libraries.has(*library))
            };
            let Some(missing) = missing else { return Err(error) };
            let mut without = Program::clone(&program);
            let Plan { steps, buffers, .. } = &mut without.variants[variant].plan;
            let steps = steps.values_mut();
            let mut calling = steps.filter(|step| step.calls().any(|call| call.library == missing));
            if !calling.all(|step| step.without_calls(missing, buffers)) {
                return Err(error);
            }
            program = Arc::new(without);
        }
    }

    /// Whether a library is open, or is none that has to be.
    fn has(&self, library: Library) -> bool {
        match library {
            Library::RocBlas => self.rocblas.is_some(),
            Library::HipBlasLt => self.hipblaslt.is_some(),
            Library::MiOpen => self.miopen.is_some(),
            Library::Rccl => true,
        }
    }

    fn open_all(
        &mut self,
        plan: &Plan,
        (search, miopen): (&Search, &MiopenOptions),
        gpu: &Gpu,
    ) -> Result<(), RuntimeError> {
        let (libraries, device) = (self, gpu.name.as_str());
        let calls = plan
            .steps
            .iter()
            .flat_map(|(id, step)| step.calls().map(move |call| (id, call)));
        for (id, call) in calls {
            let at = format!("step {id}");
            match (call.library, &call.op) {
                (
                    Library::RocBlas,
                    LibraryOp::Gemm {
                        scale: GemmScale::None,
                        epilogue: GemmEpilogue::None,
                        ..
                    },
                ) => {
                    if libraries.rocblas.is_none() {
                        libraries.rocblas = Some(Arc::new(rocblas::Rocblas::open(search, &at, device)?));
                    }
                }
                (Library::HipBlasLt, LibraryOp::Gemm { .. }) => {
                    if libraries.hipblaslt.is_none() {
                        libraries.hipblaslt = Some(Arc::new(hipblaslt::Hipblaslt::open(search, &at, gpu)?));
                    }
                }
                (Library::MiOpen, LibraryOp::Conv(_) | LibraryOp::Pool(_) | LibraryOp::Softmax { .. }) => {
                    if libraries.miopen.is_none() {
                        libraries.miopen = Some(Arc::new(miopen::Miopen::open(search, miopen, &at, gpu)?));
                    }
                }
                (Library::Rccl, LibraryOp::Collective(of)) => {
                    let ranks = libraries.rccl.as_ref().map_or(1, rccl::Seat::ranks);
                    check_ranks(*of, ranks, &at)?;
                }
                _ => return Err(unsupported(call, &at)),
            }
        }
        Ok(())
    }

    /// Makes the handles of one run context.
    pub fn handles(&self) -> Result<Handles, RuntimeError> {
        Ok(Handles {
            rocblas: self.rocblas.as_ref().map(rocblas::Handle::new).transpose()?,
            hipblaslt: self.hipblaslt.as_ref().map(hipblaslt::Handle::new).transpose()?,
            miopen: self.miopen.as_ref().map(miopen::Handle::new).transpose()?,
            described: miopen_plain::Described::default(),
            rccl: self.rccl.clone(),
        })
    }

    /// Prepares a call, by an algorithm where the library has it; None where there is nothing to compute. Its buffers
    /// are the operands, then the results; `workspace` is how many bytes the plan has for it.
    pub fn prepare(
        &self,
        (call, algorithm): (&LibraryCall, Option<&Algorithm>),
        (operands, results): (&[&TensorType], &[&TensorType]),
        workspace: usize,
        bindings: &Bindings,
        at: &str,
    ) -> Result<Option<Call>, RuntimeError> {
        match (&call.op, operands, results) {
            (
                LibraryOp::Gemm {
                    contract,
                    scale,
                    epilogue,
                },
                [lhs, rhs, ..],
                [result],
            ) => {
                let gemm = rocblas::Gemm::new(call, contract, [lhs, rhs, result], bindings, at)?;
                Ok(gemm.map(|gemm| match call.library {
                    Library::HipBlasLt => Call::Matmul(hipblaslt::Matmul {
                        gemm,
                        scale: *scale,
                        epilogue: *epilogue,
                        bias: operands.last().filter(|_| epilogue.has_bias()).map(|bias| bias.dtype),
                        most_workspace: workspace as u64,
                        algorithm: algorithm.cloned(),
                    }),
                    _ => Call::Gemm(gemm),
                }))
            }
            (LibraryOp::Conv(conv), [input, filter], [result]) => {
                let conv = miopen::Conv::new(conv, input, filter, result, bindings, at)?;
                Ok(conv.map(|conv| Call::Conv(conv.by(algorithm))))
            }
            (LibraryOp::Pool(pool), [input], [result]) => {
                Ok(miopen_plain::Plain::pool(pool, input, result, bindings, at)?.map(Call::Plain))
            }
            (LibraryOp::Softmax { axis }, [input], [_]) => {
                Ok(miopen_plain::Plain::softmax(*axis, input, bindings, at)?.map(Call::Plain))
            }
            (LibraryOp::Collective(of), [part], [_]) => Ok(rccl::Call::new(*of, part, bindings)?.map(Call::Collective)),
            _ => Err(unsupported(call, at)),
        }
    }
}

impl Handles {
    /// Lets go of handles whose device is lost, without ending them: rocBLAS ends the process where it cannot free what
    /// they hold.
    pub fn abandon(&mut self) {
        std::mem::forget(std::mem::take(self));
    }

    /// Does what a call needs done once on these handles, with memory for as long as that takes; returns the bytes of
    /// workspace that the call takes.
    pub fn ready(
        &mut self,
        call: &Call,
        stream: RawStream,
        allocate: &mut Allocate<'_>,
        at: &str,
    ) -> Result<usize, RuntimeError> {
        match (call, &mut self.miopen, &mut self.hipblaslt) {
            (Call::Conv(conv), Some(handle), _) => handle.ready(conv, stream, allocate, at),
            (Call::Plain(plain), Some(handle), _) => self.described.ready(handle, plain, at).map(|()| 0),
            (Call::Matmul(matmul), _, Some(handle)) => handle.ready(matmul, at),
            // rocBLAS has memory of its own for each handle.
            _ => Ok(0),
        }
    }

    /// Lists the algorithms that a library offers for a call, the one that it would choose first; none where it cannot
    /// be asked for one.
    pub fn algorithms(&mut self, call: &Call, at: &str) -> Result<Vec<Algorithm>, RuntimeError> {
        match (call, &mut self.hipblaslt, &mut self.miopen) {
            (Call::Matmul(matmul), Some(handle), _) => handle.algorithms(matmul, at),
            (Call::Conv(conv), _, Some(handle)) => handle.algorithms(conv, at),
            _ => Ok(Vec::new()),
        }
    }

    /// Enqueues a call that was made [`ready`](Handles::ready) on a stream. `buffers` are addresses in the order of
    /// [`Libraries::prepare`]; the workspace has the bytes that the call takes.
    pub fn enqueue(
        &self,
        call: &Call,
        buffers: &[u64],
        workspace: u64,
        stream: RawStream,
        at: impl Fn() -> String,
    ) -> Result<(), RuntimeError> {
        match (call, buffers) {
            (Call::Gemm(gemm), &[lhs, rhs, result, ..]) => {
                if let Some(handle) = &self.rocblas {
                    return handle.gemm(gemm, lhs, rhs, result, stream, at);
                }
            }
            (Call::Matmul(matmul), buffers) => {
                if let Some(handle) = &self.hipblaslt {
                    return handle.matmul(matmul, buffers, workspace, stream, &at());
                }
            }
            (Call::Conv(conv), &[input, filter, result, ..]) => {
                if let Some(handle) = &self.miopen {
                    return handle.conv(conv, [input, filter, result], workspace, stream, &at());
                }
            }
            (Call::Plain(plain), &[input, result]) => {
                if let Some(handle) = &self.miopen {
                    return self.described.enqueue(handle, plain, [input, result], stream, &at());
                }
            }
            (Call::Collective(call), &[part, result, ..]) => {
                if let Some(seat) = &self.rccl {
                    return seat.enqueue(call, part, result, stream, at);
                }
            }
            _ => {}
        }
        Err(RuntimeError::Program(format!("{}: a call without its library", at())))
    }
}

fn unsupported(call: &LibraryCall, at: &str) -> RuntimeError {
    RuntimeError::Unsupported {
        what: format!("the library call {}", call.name()),
        at: format!("{at}; compile with --no-libraries, and the kernel is generated instead"),
    }
}
