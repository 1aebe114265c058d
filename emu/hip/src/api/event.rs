//! Events.

use super::{BAD_HANDLE, INVALID, hip, stream_of, this_device};
use crate::pointer::put;
use crate::queue::{Action, Event, Recorded};
use crate::state::{Handle, Runtime};
use crate::status::Status;
use hip_sys::{hipError_t, hipEvent_t, hipEventDisableTiming, hipStream_t};
use std::ffi::c_uint;

hip! {
    /// Makes an event with timing.
    fn hipEventCreate(runtime, event: *mut hipEvent_t) {
        create(runtime, event, 0)
    }

    /// Makes an event.
    fn hipEventCreateWithFlags(runtime, event: *mut hipEvent_t, flags: c_uint) {
        create(runtime, event, flags)
    }

    /// Lets an event stand for what a stream holds now.
    fn hipEventRecord(runtime, event: hipEvent_t, stream: hipStream_t) {
        record(runtime, event as u64, stream)
    }

    /// Ends an event.
    fn hipEventDestroy(runtime, event: hipEvent_t) {
        runtime.events.remove(&(event as u64)).map(|_| ()).ok_or(BAD_HANDLE)
    }

    /// Waits for an event; one that was never recorded is reached.
    fn hipEventSynchronize(runtime, event: hipEvent_t) {
        let event = runtime.events.get(&(event as u64)).ok_or(BAD_HANDLE)?;
        let device = event.device;
        match event.state.clone() {
            Recorded::Never => Ok(()),
            Recorded::At(position) => runtime.wait(device, &[position]),
            Recorded::In { .. } => Err(hipError_t::hipErrorCapturedEvent),
        }
    }

    /// Says whether an event is reached; each time that it is not, a piece of work runs.
    fn hipEventQuery(runtime, event: hipEvent_t) {
        let event = runtime.events.get(&(event as u64)).ok_or(BAD_HANDLE)?;
        let device = event.device;
        let Recorded::At(position) = event.state else {
            return if matches!(event.state, Recorded::Never) { Ok(()) } else { Err(hipError_t::hipErrorCapturedEvent) };
        };
        runtime.devices[device].sticky.map_or(Ok(()), Err)?;
        if runtime.reached(position) {
            return Ok(());
        }
        runtime.step();
        Err(hipError_t::hipErrorNotReady)
    }

    /// Gives the milliseconds between two events: of this machine, not of a GPU.
    fn hipEventElapsedTime(runtime, milliseconds: *mut f32, start: hipEvent_t, stop: hipEvent_t) {
        if milliseconds.is_null() {
            return Err(INVALID);
        }
        let mut times = [0.0; 2];
        for (slot, event) in times.iter_mut().zip([start, stop]) {
            let event = runtime.events.get(&(event as u64)).ok_or(BAD_HANDLE)?;
            let Recorded::At(position) = event.state else { return Err(BAD_HANDLE) };
            if !event.timing {
                return Err(BAD_HANDLE);
            }
            if !runtime.reached(position) {
                return Err(hipError_t::hipErrorNotReady);
            }
            *slot = event.time.ok_or(hipError_t::hipErrorUnknown)?;
        }
        put(milliseconds, (times[1] - times[0]) as f32)
    }
}

fn create(runtime: &mut Runtime, event: *mut hipEvent_t, flags: c_uint) -> Status {
    const KNOWN: c_uint = hip_sys::hipEventBlockingSync
        | hipEventDisableTiming
        | hip_sys::hipEventDisableSystemFence
        | hip_sys::hipEventReleaseToDevice
        | hip_sys::hipEventReleaseToSystem;
    if event.is_null() || flags & !KNOWN != 0 {
        return Err(INVALID);
    }
    let device = this_device(runtime)?;
    let id = runtime.handle(Handle::Event);
    let timing = flags & hipEventDisableTiming == 0;
    runtime.events.insert(
        id,
        Event {
            device,
            timing,
            state: Recorded::Never,
            records: 0,
            time: None,
        },
    );
    put(event, id as hipEvent_t)
}

/// Lets an event stand for what a stream holds now.
pub(super) fn record(runtime: &mut Runtime, event: u64, stream: hipStream_t) -> Status {
    if !runtime.events.contains_key(&event) {
        return Err(BAD_HANDLE);
    }
    let stream = stream_of(runtime, stream)?;
    if let Some(capture) = runtime.stream(stream)?.capture {
        let nodes = runtime
            .captures
            .get(&capture)
            .and_then(|c| c.frontier.get(&stream))
            .cloned()
            .unwrap_or_default();
        let event = runtime.events.get_mut(&event).ok_or(BAD_HANDLE)?;
        event.state = Recorded::In { capture, nodes };
        return Ok(());
    }
    let position = (stream, runtime.stream(stream)?.enqueued + 1);
    let entry = runtime.events.get_mut(&event).ok_or(BAD_HANDLE)?;
    if entry.device != runtime.streams[&stream].device {
        return Err(BAD_HANDLE);
    }
    entry.records += 1;
    entry.state = Recorded::At(position);
    entry.time = None;
    let record = entry.records;
    runtime.submit(stream, Action::Record { event, record }, Vec::new())
}
