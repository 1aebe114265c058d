//! What HIP does not have: tests steer the stand-in by these, in the process that it is loaded in. They are no calls:
//! nothing is counted by them, and none fails on request.

use super::{INVALID, export};
use crate::config::faults;
use crate::fault::Faults;
use crate::pointer::{put_text, text};
use crate::state::{Forgotten, control, report};
use crate::status::Status;
use hip_sys::hipError_t;
use std::ffi::{c_char, c_int};

/// Replaces the faults that are asked for, in the form of `GRAPHC_EMU_FAULTS`, and counts calls from 0 on; null for
/// none.
///
/// # Safety
/// `list` is null or a C string.
pub unsafe extern "C" fn graphcEmuSetFaults(list: *const c_char) -> hipError_t {
    control(|runtime| {
        let list = if list.is_null() { None } else { Some(text(list)?) };
        let requests = faults(list).map_err(|message| {
            report(&message);
            INVALID
        })?;
        runtime.faults = Faults::new(requests);
        Ok(())
    })
}

/// Writes how often each function was called since the faults were set: `hipFree 3`, a line each, by name. Where `room`
/// is too small nothing is written, and the code is `hipErrorInvalidValue`.
///
/// # Safety
/// `to` has `room` bytes.
pub unsafe extern "C" fn graphcEmuCalls(to: *mut c_char, room: c_int) -> hipError_t {
    control(|runtime| {
        put_lines(
            to,
            room,
            runtime.faults.calls.iter().map(|(name, count)| (*name, *count)),
        )
    })
}

/// Writes how many there are of what was made and not freed or destroyed, on all devices, a line each as
/// [`graphcEmuCalls`] does: bytes of device memory (loaded code included), allocations of pinned memory, streams beside
/// those that are always there, events, modules, graphs, graphs that are ready to launch, captures that go on; and how
/// often a call waited for work that is never done, where a real one would be still.
///
/// # Safety
/// `to` has `room` bytes.
pub unsafe extern "C" fn graphcEmuLive(to: *mut c_char, room: c_int) -> hipError_t {
    control(|runtime| {
        let own = |id: &u64| runtime.devices.iter().any(|device| device.null_stream == *id);
        let streams = runtime
            .streams
            .iter()
            .filter(|(id, stream)| !stream.destroyed && !own(id));
        let live = [
            (
                "device_bytes",
                runtime.devices.iter().map(|device| device.gpu.memory().used()).sum(),
            ),
            (
                "pinned",
                runtime.pinned.values().filter(|pinned| pinned.layout.is_some()).count() as u64,
            ),
            ("streams", streams.count() as u64),
            ("events", runtime.events.len() as u64),
            ("modules", runtime.modules.len() as u64),
            ("graphs", runtime.graphs.len() as u64),
            ("execs", runtime.execs.len() as u64),
            ("captures", runtime.captures.len() as u64),
            ("blocked", runtime.blocked),
        ];
        put_lines(to, room, live.into_iter())
    })
}

fn put_lines(to: *mut c_char, room: c_int, lines: impl Iterator<Item = (&'static str, u64)>) -> Status {
    let text: String = lines.map(|(name, count)| format!("{name} {count}\n")).collect();
    let room = usize::try_from(room).unwrap_or(0);
    if text.len() >= room {
        Err(INVALID)
    } else {
        put_text(to, room, &text)
    }
}

/// Begins again as in a new process: no handle is valid any more, devices are empty and whole, and the faults are those
/// of the environment.
///
/// # Safety
/// Nothing that was allocated is used any more, pinned memory included.
pub unsafe extern "C" fn graphcEmuRestart() -> hipError_t {
    control(|runtime| {
        runtime.restart();
        Ok(())
    })
}

/// Forgets waits from now on: 1, those of a stream for an event of another device; 2, those for an event that was
/// recorded behind a copy between devices; 0, none.
pub extern "C" fn graphcEmuForget(waits: c_int) -> hipError_t {
    control(|runtime| {
        runtime.forgotten = match waits {
            0 => Forgotten::Nothing,
            1 => Forgotten::OtherDevices,
            2 => Forgotten::Copies,
            _ => return Err(INVALID),
        };
        Ok(())
    })
}

export!(graphcEmuSetFaults);
export!(graphcEmuCalls);
export!(graphcEmuLive);
export!(graphcEmuRestart);
export!(graphcEmuForget);
