//! What a session keeps from run to run.

use std::ffi::c_char;

use graphc::Session;
use graphc::ir::{HostTensor, Storage};
use graphc::runtime::Value;

use crate::session::graphc_session;
use crate::status::{Failure, Outcome, given, graphc_status, guard, hand_out, place};
use crate::tensor::graphc_tensor;
use crate::text::text;

/// The value of a state on the host: zeros before the first run.
///
/// # Errors
/// No such state; sizes that no run has decided yet; what the device reports.
pub fn value(session: &Session, name: &str) -> Outcome<HostTensor> {
    let states = session.states();
    let Some(ty) = states.get(name) else {
        let known: Vec<&str> = states.keys().map(String::as_str).collect();
        let known = if known.is_empty() {
            "none".to_owned()
        } else {
            known.join(", ")
        };
        return Err(Failure::argument(format!(
            "the session has no state {name:?}; it has {known}"
        )));
    };
    if let Some(tensor) = session.save_state()?.swap_remove(name) {
        return Ok(tensor);
    }
    let shape = ty.shape.as_consts().ok_or_else(|| {
        Failure::argument(format!(
            "state {name:?} is all zeros, and no run has decided yet how large it is: {ty}"
        ))
    })?;
    let shape: Vec<usize> = shape.iter().map(|size| usize::try_from(*size).unwrap_or(0)).collect();
    let bytes = Storage::new(vec![0u8; ty.dtype.bytes_for(shape.iter().product())]);
    HostTensor::new(ty.dtype, shape, bytes).map_err(|error| Failure::argument(error.to_string()))
}

/// Copies a state to the host, by the name of its input.
///
/// # Safety
/// `session` is live, `name` ends with a zero byte, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_state_get(
    session: *const graphc_session,
    name: *const c_char,
    out: *mut *mut graphc_tensor,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, session, name) = unsafe { (place(out, "out")?, given(session, "session")?, text(name, "name")?) };
        let tensor = value(&session.session, name)?;
        hand_out(out, graphc_tensor::new(Value::Host(tensor)));
        Ok(())
    })
}

/// Sets a state, by the name of its input. The tensor may be of the host or of the session's device.
///
/// # Safety
/// Handles are live, `name` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_state_set(
    session: *const graphc_session,
    name: *const c_char,
    tensor: *const graphc_tensor,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (session, name, tensor) = unsafe {
            (
                given(session, "session")?,
                text(name, "name")?,
                given(tensor, "tensor")?,
            )
        };
        Ok(session.session.set_state(name, tensor.given())?)
    })
}

/// Sets all state to zeros.
///
/// # Safety
/// `session` is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_state_reset(session: *const graphc_session) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        unsafe { given(session, "session") }?.session.reset_state();
        Ok(())
    })
}
