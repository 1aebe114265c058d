//! Calls that fail on request, one at a time: counted by function and rank, and what was made and not ended.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Code;

/// The call that fails: the function, the rank, counted from 1, and the code it gives.
struct Request {
    name: String,
    rank: usize,
    number: u64,
    code: Code,
}

struct State {
    calls: BTreeMap<(&'static CStr, usize), u64>,
    request: Option<Request>,
    /// Communicators that were made and not ended.
    live: i64,
}

static STATE: Mutex<State> = Mutex::new(State {
    calls: BTreeMap::new(),
    request: None,
    live: 0,
});

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a call of a rank, and says how it is to fail.
pub fn hit(name: &'static CStr, rank: usize) -> Option<Code> {
    let mut state = state();
    let count = state.calls.entry((name, rank)).or_default();
    *count += 1;
    let count = *count;
    let request = state.request.as_ref()?;
    let is = request.name.as_bytes() == name.to_bytes() && (request.rank, request.number) == (rank, count);
    is.then_some(request.code)
}

pub fn made() {
    state().live += 1;
}

pub fn ended() {
    state().live -= 1;
}

/// Asks for a failure: the `number`-th call of a function by a rank from now on gives a code and does nothing but end
/// what it would end. (`ncclCommInitAll` is rank 0's.) Null asks for none. Calls are counted from 0 on.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_rccl_fail(name: *const c_char, rank: usize, number: u64, code: Code) {
    let mut state = state();
    state.calls.clear();
    state.request = (!name.is_null()).then(|| {
        // SAFETY: the caller's.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        Request {
            name,
            rank,
            number,
            code,
        }
    });
}

/// How often a rank called a function since.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_rccl_calls(name: *const c_char, rank: usize) -> u64 {
    // SAFETY: the caller's.
    let name = unsafe { CStr::from_ptr(name) };
    let state = state();
    let mut calls = state.calls.iter();
    calls
        .find(|((known, of), _)| *known == name && *of == rank)
        .map_or(0, |(_, count)| *count)
}

/// How many communicators were made and not ended.
#[unsafe(no_mangle)]
pub extern "C" fn graphc_rccl_live() -> i64 {
    state().live
}
