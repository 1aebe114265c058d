//! Sessions: models that are ready to run, and what their inputs and outputs are.

use std::ffi::{CString, c_char};

use graphc::Session;
use graphc::ir::TensorType;
use graphc::runtime::profile::ProfileOptions;
use indexmap::IndexMap;

use crate::dtype::{graphc_dtype, number};
use crate::model::graphc_model;
use crate::options::{graphc_options, read};
use crate::run::{collect, hosts};
use crate::status::{Failure, Outcome, c_text, free, given, graphc_status, guard, hand_out, place};
use crate::tensor::{graphc_tensor, of_device};
use crate::text::hand_out_text;

/// A compiled model on a device. Several threads may run it at once. One with state runs one after the other.
pub struct graphc_session {
    pub(crate) session: Session,
    pub(crate) inputs: Vec<Port>,
    outputs: Vec<Port>,
    states: Vec<Port>,
    device: CString,
}

/// An input or output, with texts that live as long as the session.
pub(crate) struct Port {
    pub(crate) name: CString,
    dtype: graphc_dtype,
    sizes: Vec<i64>,
    /// Keeps the texts that `labels` points to.
    _texts: Vec<CString>,
    labels: Vec<*const c_char>,
}

// SAFETY: the pointers are to texts that the value owns and nobody changes.
unsafe impl Send for Port {}
// SAFETY: as above.
unsafe impl Sync for Port {}

/// An input, an output or a state of a session. Pointers live as long as the session.
#[repr(C)]
pub struct graphc_port {
    pub name: *const c_char,
    pub dtype: graphc_dtype,
    /// How many sizes the shape has; 0 for a scalar.
    pub rank: usize,
    /// The sizes; -1 for those that are open.
    pub sizes: *const i64,
    /// The sizes as texts: a number, the name of an open size, or arithmetic over names as "2*seq + 1".
    pub labels: *const *const c_char,
}

impl graphc_session {
    fn new(session: Session) -> graphc_session {
        let ports = |ports: IndexMap<String, TensorType>| ports.iter().map(|(name, ty)| Port::new(name, ty)).collect();
        graphc_session {
            inputs: ports(session.inputs()),
            outputs: ports(session.outputs()),
            states: ports(session.states()),
            device: c_text(session.device()),
            session,
        }
    }
}

impl Port {
    fn new(name: &str, ty: &TensorType) -> Port {
        let texts: Vec<CString> = ty.shape.iter().map(|dim| c_text(dim.to_string())).collect();
        Port {
            name: c_text(name),
            dtype: number(ty.dtype),
            sizes: ty.shape.iter().map(|dim| dim.as_const().unwrap_or(-1)).collect(),
            labels: texts.iter().map(|text| text.as_ptr()).collect(),
            _texts: texts,
        }
    }

    fn describe(&self) -> graphc_port {
        graphc_port {
            name: self.name.as_ptr(),
            dtype: self.dtype,
            rank: self.sizes.len(),
            sizes: self.sizes.as_ptr(),
            labels: self.labels.as_ptr(),
        }
    }
}

/// Opens a model: reads it, compiles it for the options' device, and loads it there. `options` may be null. Sizes
/// that the model leaves open stay open: the session runs all of them.
///
/// # Safety
/// Handles are live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_new(
    model: *const graphc_model,
    options: *const graphc_options,
    out: *mut *mut graphc_session,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, model, options) = unsafe { (place(out, "out")?, given(model, "model")?, read(options)) };
        let session = options.open(&model.source(&options))?;
        hand_out(out, graphc_session::new(session));
        Ok(())
    })
}

/// Opens a model for inputs like these: as graphc_session_new where that works for them, or else for their sizes and
/// for the sizes and branches that their data decide, which each run checks. `reason`, if it is not null, is then set
/// to a text that says why, and to null otherwise; graphc_text_free frees it.
///
/// # Safety
/// Handles are live, `count` names and tensors are there, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_new_for(
    model: *const graphc_model,
    options: *const graphc_options,
    names: *const *const c_char,
    tensors: *const *const graphc_tensor,
    count: usize,
    reason: *mut *mut c_char,
    out: *mut *mut graphc_session,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, model, options) = unsafe { (place(out, "out")?, given(model, "model")?, read(options)) };
        if names.is_null() && count > 0 {
            return Err(Failure::argument("names is null"));
        }
        // SAFETY: as the caller says.
        let inputs = hosts(unsafe { collect(names, tensors, count, &[]) }?)?;
        let (session, why) = options.open_for(&model.source(&options), &inputs)?;
        // SAFETY: as the caller says.
        if let Some(reason) = unsafe { reason.as_mut() } {
            *reason = std::ptr::null_mut();
            if let Some(why) = why {
                hand_out_text(reason, why);
            }
        }
        hand_out(out, graphc_session::new(session));
        Ok(())
    })
}

/// Makes another session of the same program, whose state begins as this one's is now. Memory is shared until one of
/// them writes.
///
/// # Safety
/// `session` is live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_fork(
    session: *const graphc_session,
    out: *mut *mut graphc_session,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, session) = unsafe { (place(out, "out")?, given(session, "session")?) };
        hand_out(out, graphc_session::new(session.session.fork()));
        Ok(())
    })
}

/// Frees a session; runs under way come to their end, and tensors stay. Null is nothing.
///
/// # Safety
/// `session` is null or live, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_free(session: *mut graphc_session) {
    // SAFETY: as the caller says.
    unsafe { free(session) };
}

/// Returns the name of the device that a session is on: "cpu", "hip:0". It lives as long as the session; null for a
/// null session.
///
/// # Safety
/// `session` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_device(session: *const graphc_session) -> *const c_char {
    // SAFETY: as the caller says.
    unsafe { session.as_ref() }.map_or(std::ptr::null(), |session| session.device.as_ptr())
}

/// Returns how many inputs a run is given; state is not among them. 0 for a null session.
///
/// # Safety
/// `session` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_input_count(session: *const graphc_session) -> usize {
    // SAFETY: as the caller says.
    unsafe { session.as_ref() }.map_or(0, |session| session.inputs.len())
}

/// Returns how many outputs a run gives. 0 for a null session.
///
/// # Safety
/// `session` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_output_count(session: *const graphc_session) -> usize {
    // SAFETY: as the caller says.
    unsafe { session.as_ref() }.map_or(0, |session| session.outputs.len())
}

/// Returns how many inputs are kept from run to run. 0 for a null session.
///
/// # Safety
/// `session` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_state_count(session: *const graphc_session) -> usize {
    // SAFETY: as the caller says.
    unsafe { session.as_ref() }.map_or(0, |session| session.states.len())
}

unsafe fn describe(
    session: *const graphc_session,
    ports: impl Fn(&graphc_session) -> &[Port],
    index: usize,
    what: &str,
    out: *mut graphc_port,
) -> Outcome<()> {
    // SAFETY: as the caller says.
    let (session, out) = unsafe { (given(session, "session")?, out.as_mut()) };
    let out = out.ok_or_else(|| Failure::argument("out is null"))?;
    let ports = ports(session);
    let port = ports.get(index).ok_or_else(|| {
        let count = ports.len();
        Failure::argument(format!(
            "there is no {what} {index}: the session has {count}, counted from 0"
        ))
    })?;
    *out = port.describe();
    Ok(())
}

/// Describes an input, by its number from 0.
///
/// # Safety
/// `session` is live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_input(
    session: *const graphc_session,
    index: usize,
    out: *mut graphc_port,
) -> *mut graphc_status {
    // SAFETY: as the caller says.
    guard(|| unsafe { describe(session, |session| &session.inputs, index, "input", out) })
}

/// Describes an output, by its number from 0.
///
/// # Safety
/// `session` is live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_output(
    session: *const graphc_session,
    index: usize,
    out: *mut graphc_port,
) -> *mut graphc_status {
    // SAFETY: as the caller says.
    guard(|| unsafe { describe(session, |session| &session.outputs, index, "output", out) })
}

/// Describes a state, by its number from 0; its name is the input's.
///
/// # Safety
/// `session` is live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_state(
    session: *const graphc_session,
    index: usize,
    out: *mut graphc_port,
) -> *mut graphc_status {
    // SAFETY: as the caller says.
    guard(|| unsafe { describe(session, |session| &session.states, index, "state", out) })
}

/// Copies a tensor to the session's device, to be given to several runs.
///
/// # Safety
/// Handles are live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_upload(
    session: *const graphc_session,
    tensor: *const graphc_tensor,
    out: *mut *mut graphc_tensor,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, session, tensor) =
            unsafe { (place(out, "out")?, given(session, "session")?, given(tensor, "tensor")?) };
        hand_out(out, of_device(session.session.upload(&tensor.host()?)?));
        Ok(())
    })
}

/// Says as JSON what `graphc inspect` does: sizes, inputs, outputs, weights, kernels, memory. graphc_text_free frees
/// the text.
///
/// # Safety
/// `session` is live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_inspect(
    session: *const graphc_session,
    out: *mut *mut c_char,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, session) = unsafe { (place(out, "out")?, given(session, "session")?) };
        hand_out_text(out, inspected(&session.session)?.to_string());
        Ok(())
    })
}

/// What a session's program is, for the target that it runs on.
///
/// # Errors
/// The reference evaluator, which has no program.
pub fn inspected(session: &Session) -> Outcome<serde_json::Value> {
    let executable = session
        .executable()
        .ok_or_else(|| Failure::unsupported("the reference evaluator has no program to inspect"))?;
    let program = executable.program();
    let here = |plan: &graphc::ir::Plan| plan.target == executable.plan().target;
    let variants = (0..program.variants.len()).filter(|variant| here(&program.variants[*variant].plan));
    Ok(graphc::facts::inspected(program, variants)?)
}

/// Runs a session some times on inputs and says as JSON where the time goes, step by step. Names may be null, as for
/// graphc_session_run. graphc_text_free frees the text.
///
/// # Safety
/// Handles are live, `count` names and tensors are there, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_profile(
    session: *const graphc_session,
    names: *const *const c_char,
    tensors: *const *const graphc_tensor,
    count: usize,
    runs: usize,
    out: *mut *mut c_char,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, session) = unsafe { (place(out, "out")?, given(session, "session")?) };
        if !(1..=1_000_000).contains(&runs) {
            return Err(Failure::argument(format!(
                "runs is {runs}, and must be from 1 to 1000000"
            )));
        }
        // SAFETY: as the caller says.
        let inputs = hosts(unsafe { collect(names, tensors, count, &session.inputs) }?)?;
        hand_out_text(out, profiled(&session.session, inputs, runs)?.to_string());
        Ok(())
    })
}

/// Where the time of a session's runs goes. States have their values of now in all of them.
///
/// # Errors
/// As a run; the reference evaluator.
pub fn profiled(
    session: &Session,
    mut inputs: IndexMap<String, graphc::ir::HostTensor>,
    runs: usize,
) -> Outcome<serde_json::Value> {
    let executable = session
        .executable()
        .ok_or_else(|| Failure::unsupported("the reference evaluator has no steps to profile"))?;
    for name in session.states().into_keys() {
        let value = crate::state::value(session, &name)?;
        inputs.insert(name, value);
    }
    let warm_up = (runs / 5).max(2);
    let profile = executable.profile(&inputs, &ProfileOptions { runs, warm_up })?;
    serde_json::to_value(&profile).map_err(|error| Failure {
        code: crate::status::GRAPHC_CODE_INTERNAL,
        message: error.to_string(),
    })
}
