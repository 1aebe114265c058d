//! Runs: waited for or not, and their outputs.

use std::ffi::{CString, c_char};
use std::sync::{Mutex, PoisonError};

use graphc::ir::HostTensor;
use graphc::runtime::{Given, Pending, Value, Wanted};
use indexmap::IndexMap;

use crate::session::{Port, graphc_session};
use crate::status::{Failure, Outcome, c_text, free, given, graphc_status, guard, hand_out, place};
use crate::tensor::graphc_tensor;
use crate::text::text;

/// A run under way. Several threads may ask whether it is done; one waits for it.
pub struct graphc_run {
    pending: Mutex<Option<Pending>>,
}

/// The outputs of a run. They never change: several threads may read them.
pub struct graphc_outputs {
    outputs: Vec<(CString, Value)>,
}

/// Where a run leaves its outputs: one of the GRAPHC_PLACE_ constants.
pub type graphc_place = i32;

/// In memory of the host.
pub const GRAPHC_PLACE_HOST: graphc_place = 0;
/// In memory of the session's device, for other runs there.
pub const GRAPHC_PLACE_DEVICE: graphc_place = 1;

impl graphc_outputs {
    fn new(values: impl IntoIterator<Item = (String, Value)>) -> graphc_outputs {
        let outputs = values.into_iter().map(|(name, value)| (c_text(name), value));
        graphc_outputs {
            outputs: outputs.collect(),
        }
    }
}

/// Reads the inputs of a run; without names they are in the order of the session's inputs.
///
/// # Safety
/// `count` names and tensors are there; names may be null as a whole.
pub(crate) unsafe fn collect(
    names: *const *const c_char,
    tensors: *const *const graphc_tensor,
    count: usize,
    ports: &[Port],
) -> Outcome<Vec<(&str, Given)>> {
    if tensors.is_null() && count > 0 {
        return Err(Failure::argument("tensors is null"));
    }
    if names.is_null() && count > ports.len() {
        let inputs = ports.len();
        return Err(Failure::argument(format!(
            "{count} tensors are given, but the session has {inputs} inputs"
        )));
    }
    let mut inputs: Vec<(&str, Given)> = Vec::with_capacity(count);
    let tensors = match count {
        0 => &[],
        // SAFETY: as the caller says.
        _ => unsafe { std::slice::from_raw_parts(tensors, count) },
    };
    for (index, tensor) in tensors.iter().enumerate() {
        // SAFETY: as the caller says.
        let tensor = unsafe { given(*tensor, &format!("tensor {index}")) }?;
        let name = match names.is_null() {
            true => ports[index].name.to_str().unwrap_or_default(),
            // SAFETY: as the caller says.
            false => unsafe { text(*names.add(index), &format!("name {index}")) }?,
        };
        if inputs.iter().any(|(other, _)| *other == name) {
            return Err(Failure::argument(format!("input {name:?} is given twice")));
        }
        inputs.push((name, tensor.given()));
    }
    Ok(inputs)
}

/// Brings inputs to the host.
pub(crate) fn hosts(inputs: Vec<(&str, Given)>) -> Outcome<IndexMap<String, HostTensor>> {
    let host = |given: Given| match given {
        Given::Host(tensor) => Ok(tensor),
        Given::Device(tensor) | Given::Donated(tensor) => tensor.download(),
    };
    inputs
        .into_iter()
        .map(|(name, given)| Ok((name.to_owned(), host(given)?)))
        .collect()
}

/// Runs a session and waits. `names` may be null: tensors are then in the order of the session's inputs. Tensors may
/// be of the host or of the session's device; outputs come to the host. Nothing of the inputs is kept.
///
/// # Safety
/// Handles are live, `count` names and tensors are there, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_run(
    session: *const graphc_session,
    names: *const *const c_char,
    tensors: *const *const graphc_tensor,
    count: usize,
    out: *mut *mut graphc_outputs,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, session) = unsafe { (place(out, "out")?, given(session, "session")?) };
        // SAFETY: as the caller says.
        let inputs = unsafe { collect(names, tensors, count, &session.inputs) }?;
        let outputs = match inputs.iter().all(|(_, given)| matches!(given, Given::Host(_))) {
            true => {
                let ran = session.session.run_map(&hosts(inputs)?)?;
                graphc_outputs::new(ran.into_iter().map(|(name, tensor)| (name, Value::Host(tensor))))
            }
            false => graphc_outputs::new(session.session.values(inputs, &Wanted::host())?),
        };
        hand_out(out, outputs);
        Ok(())
    })
}

/// Begins a run and does not wait for it; as graphc_session_run otherwise. `place` says where outputs are left. The
/// tensors may be freed at once; memory that they borrow stays borrowed until the run is done.
///
/// # Safety
/// As graphc_session_run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_session_submit(
    session: *const graphc_session,
    names: *const *const c_char,
    tensors: *const *const graphc_tensor,
    count: usize,
    place: graphc_place,
    out: *mut *mut graphc_run,
) -> *mut graphc_status {
    guard(|| {
        let wanted = match place {
            GRAPHC_PLACE_HOST => Wanted::host(),
            GRAPHC_PLACE_DEVICE => Wanted::device(),
            other => {
                return Err(Failure::argument(format!(
                    "place {other} is none of the GRAPHC_PLACE_ constants"
                )));
            }
        };
        // SAFETY: as the caller says.
        let (out, session) = unsafe { (crate::status::place(out, "out")?, given(session, "session")?) };
        // SAFETY: as the caller says.
        let inputs = unsafe { collect(names, tensors, count, &session.inputs) }?;
        let pending = session.session.submit(inputs, &wanted)?;
        hand_out(
            out,
            graphc_run {
                pending: Mutex::new(Some(pending)),
            },
        );
        Ok(())
    })
}

/// Returns 1 where a run is done, well or not, or its outputs were taken, and 0 where it is under way.
///
/// # Safety
/// `run` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_run_is_done(run: *const graphc_run) -> i32 {
    // SAFETY: as the caller says.
    let run = unsafe { run.as_ref() };
    let done = run.is_none_or(|run| {
        let pending = run.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.as_ref().is_none_or(Pending::is_done)
    });
    i32::from(done)
}

/// Waits for a run and takes its outputs, once.
///
/// # Safety
/// `run` is live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_run_wait(run: *const graphc_run, out: *mut *mut graphc_outputs) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, run) = unsafe { (place(out, "out")?, given(run, "run")?) };
        let pending = run.pending.lock().unwrap_or_else(PoisonError::into_inner).take();
        let pending = pending.ok_or_else(|| Failure::argument("the run was waited for already"))?;
        hand_out(out, graphc_outputs::new(pending.wait()?));
        Ok(())
    })
}

/// Frees a run. One that was not waited for comes to its end, and its outputs are lost. Null is nothing.
///
/// # Safety
/// `run` is null or live, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_run_free(run: *mut graphc_run) {
    // SAFETY: as the caller says.
    unsafe { free(run) };
}

/// Returns how many outputs there are. 0 for null.
///
/// # Safety
/// `outputs` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_outputs_count(outputs: *const graphc_outputs) -> usize {
    // SAFETY: as the caller says.
    unsafe { outputs.as_ref() }.map_or(0, |outputs| outputs.outputs.len())
}

/// Returns the name of an output, by its number from 0 in the order of the session's; it lives as long as the
/// outputs. Null for a number that is none.
///
/// # Safety
/// `outputs` is null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_outputs_name(outputs: *const graphc_outputs, index: usize) -> *const c_char {
    // SAFETY: as the caller says.
    let output = unsafe { outputs.as_ref() }.and_then(|outputs| outputs.outputs.get(index));
    output.map_or(std::ptr::null(), |(name, _)| name.as_ptr())
}

/// Gives an output by its number from 0, as a tensor of its own that shares the values.
///
/// # Safety
/// `outputs` is live, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_outputs_get(
    outputs: *const graphc_outputs,
    index: usize,
    out: *mut *mut graphc_tensor,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, outputs) = unsafe { (place(out, "out")?, given(outputs, "outputs")?) };
        let (_, value) = outputs.outputs.get(index).ok_or_else(|| {
            let count = outputs.outputs.len();
            Failure::argument(format!("there is no output {index}: there are {count}, counted from 0"))
        })?;
        hand_out(out, graphc_tensor::new(value.clone()));
        Ok(())
    })
}

/// Gives an output by its name, as a tensor of its own that shares the values.
///
/// # Safety
/// `outputs` is live, `name` ends with a zero byte, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_outputs_find(
    outputs: *const graphc_outputs,
    name: *const c_char,
    out: *mut *mut graphc_tensor,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, outputs, name) = unsafe { (place(out, "out")?, given(outputs, "outputs")?, text(name, "name")?) };
        let found = outputs
            .outputs
            .iter()
            .find(|(known, _)| known.to_bytes() == name.as_bytes());
        let (_, value) = found.ok_or_else(|| {
            let known: Vec<_> = outputs.outputs.iter().map(|(name, _)| name.to_string_lossy()).collect();
            Failure::argument(format!("there is no output {name:?}; there are {}", known.join(", ")))
        })?;
        hand_out(out, graphc_tensor::new(value.clone()));
        Ok(())
    })
}

/// Frees outputs; tensors that were taken from them stay. Null is nothing.
///
/// # Safety
/// `outputs` is null or live, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_outputs_free(outputs: *mut graphc_outputs) {
    // SAFETY: as the caller says.
    unsafe { free(outputs) };
}
