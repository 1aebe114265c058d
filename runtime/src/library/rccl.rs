//! RCCL and NCCL: collectives between the GPUs of one process, one communicator for each.
//!
//! Communicators are made once for a set of devices, and are used by all programs there. Each rank's calls come in the
//! order of its plan, and the runs of all programs in one order on all ranks, which is [`crate::ranks`]' to see to.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dylib::Search;
use ir::dim::Bindings;
use ir::library::{Collective, CollectiveKind};
use ir::{DType, TensorType};
use rccl_sys::{RcclLibrary, ncclComm, ncclDataType_t, ncclRedOp_t, ncclResult_t};

use super::Opened;
use crate::error::RuntimeError;
use crate::gpu::driver::RawStream;

/// How long ending waits for calls that are being made; the library lets go of what is under way.
const LEAVING: Duration = Duration::from_millis(50);

/// The communicators of a set of devices.
pub(crate) struct Communicators {
    library: Opened<RcclLibrary>,
    /// In the order of the ranks; null once ended.
    raw: Vec<AtomicPtr<ncclComm>>,
    /// Calls that are being made.
    inside: AtomicUsize,
}

/// One rank's.
#[derive(Clone)]
pub(crate) struct Seat {
    all: Arc<Communicators>,
    rank: usize,
}

impl Communicators {
    /// Opens a library by its names and makes a communicator on each device, given by its number. The vendor's runtime
    /// must have found them.
    ///
    /// # Errors
    /// `NotAvailable` without the library, with every place looked at; what it reports.
    pub fn open(
        name: &str,
        sonames: &[&str],
        search: &Search,
        ordinals: &[usize],
        devices: &str,
    ) -> Result<Arc<Communicators>, RuntimeError> {
        let api = rccl_sys::load(name, sonames, search).map_err(|error| RuntimeError::NotAvailable {
            what: format!("{name}, by which {devices} compute one model together,"),
            reason: format!("{error}\ninstall it, say where it is (GRAPHC_RCCL), or run on one device"),
        })?;
        let all = Communicators {
            library: Opened {
                api,
                device: devices.to_owned(),
            },
            raw: ordinals.iter().map(|_| AtomicPtr::new(null_mut())).collect(),
            inside: AtomicUsize::new(0),
        };
        let numbers: Vec<c_int> = ordinals.iter().map(|n| *n as c_int).collect();
        let mut raw = vec![null_mut(); numbers.len()];
        // SAFETY: there is room for a communicator of each device, and their numbers are there.
        let status = unsafe {
            all.library
                .api
                .ncclCommInitAll(raw.as_mut_ptr(), numbers.len() as c_int, numbers.as_ptr())
        };
        all.check("ncclCommInitAll", status, || "loading the program".into())?;
        for (to, raw) in all.raw.iter().zip(raw) {
            to.store(raw, Ordering::Release);
        }
        Ok(Arc::new(all))
    }

    /// One for each rank.
    pub fn seats(self: &Arc<Communicators>) -> impl Iterator<Item = Seat> {
        (0..self.raw.len()).map(|rank| Seat {
            all: self.clone(),
            rank,
        })
    }

    fn check(&self, call: &str, status: ncclResult_t, at: impl FnOnce() -> String) -> Result<(), RuntimeError> {
        if status == ncclResult_t::ncclSuccess {
            return Ok(());
        }
        // SAFETY: the function gives a static string for every number.
        let text = unsafe { self.library.api.ncclGetErrorString(status) };
        Err(self.library.failed(call, status.0, text, at()))
    }

    /// Ends every communicator: what waits on a device for ranks that do not come is let go.
    pub fn end(&self) {
        let raw: Vec<_> = self
            .raw
            .iter()
            .map(|raw| raw.swap(null_mut(), Ordering::AcqRel))
            .collect();
        let start = Instant::now();
        while self.inside.load(Ordering::Acquire) > 0 && start.elapsed() < LEAVING {
            std::thread::sleep(Duration::from_millis(1));
        }
        // One rank's end may wait for that of the others.
        std::thread::scope(|scope| {
            for raw in raw.into_iter().filter(|raw| !raw.is_null()) {
                let raw = AtomicPtr::new(raw);
                scope.spawn(move || {
                    // SAFETY: it was taken out above, so nobody else has it; calls that still use it are what this
                    // function is for.
                    let _ = unsafe { self.library.api.ncclCommAbort(raw.into_inner()) };
                });
            }
        });
    }
}

impl Drop for Communicators {
    fn drop(&mut self) {
        // Every run was waited for.
        for raw in &mut self.raw {
            if !raw.get_mut().is_null() {
                // SAFETY: it is this value's own, and this is its end. A failure leaves nothing to do.
                let _ = unsafe { self.library.api.ncclCommDestroy(*raw.get_mut()) };
            }
        }
    }
}

/// A collective at one set of sizes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Call {
    kind: CollectiveKind,
    dtype: DType,
    /// Elements of one rank's part.
    count: usize,
}

impl Call {
    /// Restates a collective; None where there is nothing to give.
    pub fn new(of: Collective, part: &TensorType, bindings: &Bindings) -> Result<Option<Call>, RuntimeError> {
        let count = part.elements().eval(bindings)?;
        Ok(usize::try_from(count)
            .ok()
            .filter(|count| *count > 0)
            .map(|count| Call {
                kind: of.kind,
                dtype: part.dtype,
                count,
            }))
    }
}

impl Seat {
    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.all.raw.len()
    }

    /// Enqueues a collective on a stream of this rank's device, which the thread has entered.
    pub fn enqueue(
        &self,
        call: &Call,
        part: u64,
        result: u64,
        stream: RawStream,
        at: impl Fn() -> String,
    ) -> Result<(), RuntimeError> {
        let all = &*self.all;
        all.inside.fetch_add(1, Ordering::AcqRel);
        let raw = all.raw[self.rank].load(Ordering::Acquire);
        if raw.is_null() {
            all.inside.fetch_sub(1, Ordering::AcqRel);
            return Err(RuntimeError::RanksEnded {
                devices: all.library.device.clone(),
                reason: format!("{}: another rank failed", at()),
            });
        }
        let (part, result, stream) = (part as *const c_void, result as *mut c_void, stream.0.cast());
        let (name, status) = match call.kind {
            // SAFETY: the communicator is of this device, part and result lie in its memory with the sizes that the
            // call was prepared with, and stay until the run was waited for.
            CollectiveKind::AllReduce => ("ncclAllReduce", unsafe {
                let (dtype, sum) = (number(call.dtype), ncclRedOp_t::ncclSum);
                all.library
                    .api
                    .ncclAllReduce(part, result, call.count, dtype, sum, raw, stream)
            }),
            // SAFETY: as above; the result has room for all parts.
            CollectiveKind::AllGather => ("ncclAllGather", unsafe {
                // What bytes mean is no matter.
                let (bytes, byte) = (call.dtype.bytes_for(call.count), ncclDataType_t::ncclUint8);
                all.library.api.ncclAllGather(part, result, bytes, byte, raw, stream)
            }),
        };
        all.inside.fetch_sub(1, Ordering::AcqRel);
        all.check(name, status, at)
    }
}

/// The type of numbers that are summed; others are refused before.
fn number(dtype: DType) -> ncclDataType_t {
    match dtype {
        DType::F16 => ncclDataType_t::ncclFloat16,
        DType::BF16 => ncclDataType_t::ncclBfloat16,
        DType::F64 => ncclDataType_t::ncclFloat64,
        DType::I64 => ncclDataType_t::ncclInt64,
        DType::I32 => ncclDataType_t::ncclInt32,
        DType::I8 => ncclDataType_t::ncclInt8,
        DType::U8 => ncclDataType_t::ncclUint8,
        _ => ncclDataType_t::ncclFloat32,
    }
}
