//! RCCL's C interface between emulated GPUs: a stand-in for `librccl.so.1` over `emu/hip`, which lies in the same
//! folder.
//!
//! A collective waits on the host until every rank of its communicator has come, for at most a deadline; a rank that
//! never comes is said. What it does then is queued: it waits on a stream of its own for what each rank's stream holds,
//! takes the parts to the host, sums them there in the order of the ranks, and takes the result to every rank, whose
//! stream waits for that. So a program that forgets to wait sees what a real device may show it. Ranks whose calls
//! differ in kind, count or type are refused, all of them.
//!
//! Like `emu/hip` this library reads the environment and writes reports to standard error: its callers are programs
//! that know nothing of it. Tests read [`graphc_rccl_counts`], plant a fault by [`graphc_rccl_plant`], and fail single
//! calls by [`fail::graphc_rccl_fail`].
//!
//! | variable | what it sets | default |
//! |---|---|---|
//! | `GRAPHC_EMU_RCCL_DEADLINE` | milliseconds for which a rank waits for the others | 20000 |

mod fail;
mod hip;
mod sum;
mod world;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use world::{Collective, Comm, Kind, PLANTED, Planted, World};

/// `ncclResult_t`.
type Code = c_uint;

const SUCCESS: Code = 0;
const UNHANDLED_CUDA_ERROR: Code = 1;
const SYSTEM_ERROR: Code = 2;
const INVALID_ARGUMENT: Code = 4;
const INVALID_USAGE: Code = 5;
const REMOTE_ERROR: Code = 6;

/// `ncclSum`, the only fold that there is.
const SUM: c_uint = 0;

/// Writes a line to standard error: callers see only a code.
fn report(text: &str) {
    eprintln!("graphc-emu-rccl: {text}");
}

/// Gives the version: that of ROCm 7.2.
///
/// # Safety
/// `version` is null or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> Code {
    if version.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's.
    unsafe { version.write(22707) };
    SUCCESS
}

/// Describes a code.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: Code) -> *const c_char {
    let text = match code {
        SUCCESS => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error",
        SYSTEM_ERROR => c"unhandled system error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// Makes a communicator for each device.
///
/// # Safety
/// `comms` has room for `count`, and `devices` is null or has as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitAll(comms: *mut *mut Comm, count: c_int, devices: *const c_int) -> Code {
    let Some(count) = usize::try_from(count).ok().filter(|n| *n > 0 && !comms.is_null()) else {
        return INVALID_ARGUMENT;
    };
    if let Some(code) = fail::hit(c"ncclCommInitAll", 0) {
        return code;
    }
    let devices: Vec<c_int> = match devices.is_null() {
        true => (0..count as c_int).collect(),
        // SAFETY: the caller's.
        false => unsafe { std::slice::from_raw_parts(devices, count) }.to_vec(),
    };
    let world = match World::new(devices) {
        Ok(world) => world,
        Err(code) => return code,
    };
    for rank in 0..count {
        // SAFETY: there is room for each.
        unsafe { comms.add(rank).write(Box::into_raw(Box::new(Comm::new(&world, rank)))) };
        fail::made();
    }
    SUCCESS
}

/// Ends a communicator.
///
/// # Safety
/// It is one that was made and not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: *mut Comm) -> Code {
    if comm.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's.
    let comm = unsafe { Box::from_raw(comm) };
    fail::ended();
    // One that fails to be ended is none any more either.
    fail::hit(c"ncclCommDestroy", comm.rank).unwrap_or(SUCCESS)
}

/// Ends a communicator and lets go of every rank that waits.
///
/// # Safety
/// As of [`ncclCommDestroy`]; calls that use it may be under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: *mut Comm) -> Code {
    if comm.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's. It is not freed, since a call may still be looking at it.
    let comm = unsafe { &*comm };
    comm.world.leave();
    fail::ended();
    fail::hit(c"ncclCommAbort", comm.rank).unwrap_or(SUCCESS)
}

/// Gives what went wrong after a call had returned.
///
/// # Safety
/// The communicator was made and not ended, and `code` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: *mut Comm, code: *mut Code) -> Code {
    if comm.is_null() || code.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's.
    unsafe {
        code.write(if (*comm).world.has_ended() {
            REMOTE_ERROR
        } else {
            SUCCESS
        })
    };
    SUCCESS
}

/// Sums the ranks' parts.
///
/// # Safety
/// The communicator was made and not ended; buffers lie on its device with room for `count` numbers until the stream
/// came past this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    part: *const c_void,
    result: *mut c_void,
    count: usize,
    dtype: c_uint,
    fold: c_uint,
    comm: *mut Comm,
    stream: *mut c_void,
) -> Code {
    if fold != SUM {
        report(&format!(
            "ncclAllReduce: fold {fold} is no sum; there are no others here"
        ));
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's.
    unsafe { collective(Kind::AllReduce, part, result, count, dtype, comm, stream) }
}

/// Joins the ranks' parts.
///
/// # Safety
/// As of [`ncclAllReduce`]; the result has room for all parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    part: *const c_void,
    result: *mut c_void,
    count: usize,
    dtype: c_uint,
    comm: *mut Comm,
    stream: *mut c_void,
) -> Code {
    // SAFETY: the caller's.
    unsafe { collective(Kind::AllGather, part, result, count, dtype, comm, stream) }
}

/// # Safety
/// As of [`ncclAllReduce`].
unsafe fn collective(
    kind: Kind,
    part: *const c_void,
    result: *mut c_void,
    count: usize,
    dtype: c_uint,
    comm: *mut Comm,
    stream: *mut c_void,
) -> Code {
    // SAFETY: the caller's.
    let Some(comm) = (unsafe { comm.as_ref() }) else {
        return INVALID_ARGUMENT;
    };
    let Some(width) = sum::width(dtype).filter(|_| !part.is_null() && !result.is_null()) else {
        return INVALID_ARGUMENT;
    };
    let asked = Collective {
        kind,
        bytes: count * width,
        dtype,
    };
    let name = match kind {
        Kind::AllReduce => c"ncclAllReduce",
        Kind::AllGather => c"ncclAllGather",
    };
    if let Some(code) = fail::hit(name, comm.rank) {
        return code;
    }
    let planted = PLANTED.load(Ordering::Acquire);
    if comm.rank == 1 && planted == Planted::Refused as u8 {
        return SYSTEM_ERROR;
    }
    if comm.rank == 1 && planted == Planted::Missing as u8 {
        return SUCCESS;
    }
    match comm.world.meet(comm.rank, asked, part as u64, result as u64, stream) {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}

/// Gives how many collectives a rank took part in, and how many bytes it gave to them, in all communicators since the
/// library was loaded.
///
/// # Safety
/// `calls` and `bytes` are places for a number each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_rccl_counts(rank: usize, calls: *mut u64, bytes: *mut u64) {
    let (of_calls, of_bytes) = world::counts(rank);
    // SAFETY: the caller's.
    unsafe {
        calls.write(of_calls);
        bytes.write(of_bytes);
    }
}

/// Plants a fault in every later collective: 1, no stream waits for the result; 2, no stream is waited for; 3, rank 1
/// is refused; 4, rank 1 does not come and is told that all is well; 0, none.
#[unsafe(no_mangle)]
pub extern "C" fn graphc_rccl_plant(fault: c_int) {
    let planted = match fault {
        1 => Planted::ResultNotAwaited,
        2 => Planted::PartNotAwaited,
        3 => Planted::Refused,
        4 => Planted::Missing,
        _ => Planted::Nothing,
    };
    PLANTED.store(planted as u8, Ordering::Release);
}
