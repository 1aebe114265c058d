//! What a session keeps from run to run.

use std::ffi::c_char;

use graphc::runtime::Value;

use crate::session::graphc_session;
use crate::status::{Failure, given, graphc_status, guard, hand_out, place};
use crate::tensor::graphc_tensor;
use crate::text::text;

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
        let mut states = session.session.save_state()?;
        let Some(tensor) = states.swap_remove(name) else {
            let known: Vec<String> = session.session.states().into_keys().collect();
            let known = if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            };
            return Err(Failure::argument(format!(
                "the session has no state {name:?}; it has {known}"
            )));
        };
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
