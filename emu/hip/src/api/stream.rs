//! Streams.

use super::{BAD_HANDLE, INVALID, hip, stream_of, this_device};
use crate::pointer::put;
use crate::queue::{Action, Recorded, Stream};
use crate::state::{Handle, Runtime};
use crate::status::Status;
use hip_sys::{hipError_t, hipEvent_t, hipStream_t};
use std::ffi::{c_int, c_uint};

/// The range of priorities; a smaller number is more urgent.
pub const PRIORITY_LEAST: c_int = 1;
pub const PRIORITY_GREATEST: c_int = -1;

hip! {
    /// Makes a stream that keeps order with the null stream.
    fn hipStreamCreate(runtime, stream: *mut hipStream_t) {
        create(runtime, stream, 0, 0)
    }

    /// Makes a stream.
    fn hipStreamCreateWithFlags(runtime, stream: *mut hipStream_t, flags: c_uint) {
        create(runtime, stream, flags, 0)
    }

    /// Makes a stream with a priority, which is cut to the range.
    fn hipStreamCreateWithPriority(runtime, stream: *mut hipStream_t, flags: c_uint, priority: c_int) {
        create(runtime, stream, flags, priority)
    }

    /// Gives a stream's priority.
    fn hipStreamGetPriority(runtime, stream: hipStream_t, priority: *mut c_int) {
        let stream = stream_of(runtime, stream)?;
        put(priority, runtime.stream(stream)?.priority)
    }

    /// Gives a stream's flags.
    fn hipStreamGetFlags(runtime, stream: hipStream_t, flags: *mut c_uint) {
        let stream = stream_of(runtime, stream)?;
        put(flags, u32::from(!runtime.stream(stream)?.blocking))
    }

    /// Gives a stream's device.
    fn hipStreamGetDevice(runtime, stream: hipStream_t, device: *mut c_int) {
        let stream = stream_of(runtime, stream)?;
        put(device, runtime.stream(stream)?.device as c_int)
    }

    /// Ends a stream; what it holds still runs.
    fn hipStreamDestroy(runtime, stream: hipStream_t) {
        let id = stream as u64;
        let found = runtime.stream(id).ok().filter(|found| !found.destroyed).ok_or(BAD_HANDLE)?;
        if runtime.devices.iter().any(|device| device.null_stream == id) {
            return Err(BAD_HANDLE);
        }
        if let Some(capture) = found.capture {
            runtime.end(capture);
        }
        runtime.stream_mut(id)?.destroyed = true;
        Ok(())
    }

    /// Waits for a stream.
    fn hipStreamSynchronize(runtime, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        runtime.not_capturing(stream)?;
        runtime.sync_stream(stream)
    }

    /// Says whether a stream has done everything; each time that it has not, a piece of work runs.
    fn hipStreamQuery(runtime, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        runtime.not_capturing(stream)?;
        let (device, end) = (runtime.stream(stream)?.device, (stream, runtime.stream(stream)?.enqueued));
        runtime.devices[device].sticky.map_or(Ok(()), Err)?;
        if runtime.reached(end) {
            return Ok(());
        }
        runtime.step();
        Err(hipError_t::hipErrorNotReady)
    }

    /// Makes a stream's later work wait for an event.
    fn hipStreamWaitEvent(runtime, stream: hipStream_t, event: hipEvent_t, flags: c_uint) {
        if flags > 1 {
            return Err(INVALID);
        }
        let stream = stream_of(runtime, stream)?;
        let state = runtime.events.get(&(event as u64)).ok_or(BAD_HANDLE)?.state.clone();
        let capturing = runtime.stream(stream)?.capture;
        match (state, capturing) {
            (Recorded::In { capture, nodes }, joined) if joined.is_none_or(|joined| joined == capture) => {
                let frontier = &mut runtime.captures.get_mut(&capture).ok_or(hipError_t::hipErrorCapturedEvent)?.frontier;
                frontier.entry(stream).or_default().extend(nodes);
                runtime.stream_mut(stream)?.capture = Some(capture);
                Ok(())
            }
            (Recorded::In { .. }, _) => Err(hipError_t::hipErrorStreamCaptureMerge),
            (Recorded::Never, _) => Ok(()),
            (Recorded::At(_), Some(_)) => Err(hipError_t::hipErrorStreamCaptureIsolation),
            (Recorded::At(position), None) if runtime.forgets(stream, position) => Ok(()),
            (Recorded::At(position), None) => runtime.submit(stream, Action::Nothing, vec![position]),
        }
    }
}

fn create(runtime: &mut Runtime, stream: *mut hipStream_t, flags: c_uint, priority: c_int) -> Status {
    if stream.is_null() || flags > 1 {
        return Err(INVALID);
    }
    let device = this_device(runtime)?;
    let id = runtime.handle(Handle::Stream);
    let weight = runtime.weight();
    let priority = priority.clamp(PRIORITY_GREATEST, PRIORITY_LEAST);
    runtime
        .streams
        .insert(id, Stream::new(device, flags == 0, priority, weight));
    put(stream, id as hipStream_t)
}
