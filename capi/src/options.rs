//! Options of opening and compiling models, as keys and values.

use std::ffi::c_char;

use graphc::session::NamedOptions;

use crate::status::{Failure, Outcome, free, graphc_status, guard, hand_out, place};
use crate::text::{hand_out_text, text};

/// Options. One thread at a time may set them; once set, several may read them.
pub struct graphc_options {
    pub(crate) named: NamedOptions,
}

/// The options of a handle; the defaults for null.
///
/// # Safety
/// It is null or live.
pub(crate) unsafe fn read(options: *const graphc_options) -> NamedOptions {
    // SAFETY: as the caller says.
    unsafe { options.as_ref() }.map_or_else(NamedOptions::default, |options| options.named.clone())
}

/// Makes options that are all defaults: on the CPU, optimised, with a thread a core.
///
/// # Safety
/// `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_options_new(out: *mut *mut graphc_options) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let out = unsafe { place(out, "out") }?;
        hand_out(
            out,
            graphc_options {
                named: NamedOptions::default(),
            },
        );
        Ok(())
    })
}

/// Sets an option by its key: "device" to "cpu", "threads" to "4", "size" to "batch=1..64". "size", "shape" and
/// "state" may be set several times, once for each name. A key that is none is a failure whose text names the nearest
/// one.
///
/// # Safety
/// `options` is live; texts end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_options_set(
    options: *mut graphc_options,
    key: *const c_char,
    value: *const c_char,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (key, value) = unsafe { (text(key, "key")?, text(value, "value")?) };
        // SAFETY: as above, and one thread sets options at a time.
        let options = unsafe { options.as_mut() };
        let options = options.ok_or_else(|| Failure::argument("options is null"))?;
        Ok(options.named.set(key, value)?)
    })
}

/// Lists all keys, a line each: the key, a tab, and what it sets. graphc_text_free frees the text.
///
/// # Safety
/// `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_options_keys(out: *mut *mut c_char) -> *mut graphc_status {
    guard(|| -> Outcome<()> {
        // SAFETY: as the caller says.
        let out = unsafe { place(out, "out") }?;
        let lines = NamedOptions::keys().map(|(name, about)| format!("{name}\t{about}\n"));
        hand_out_text(out, lines.collect());
        Ok(())
    })
}

/// Frees options. Sessions that were opened with them stay. Null is nothing.
///
/// # Safety
/// `options` is null or live, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_options_free(options: *mut graphc_options) {
    // SAFETY: as the caller says.
    unsafe { free(options) };
}
