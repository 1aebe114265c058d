//! Models as they come, and compiling them to files.

use std::ffi::{c_char, c_void};
use std::path::PathBuf;

use graphc::driver::{Source, model::artifact_error};
use graphc::ir::Storage;
use graphc::session::NamedOptions;

use crate::options::{graphc_options, read};
use crate::status::{Failure, Outcome, free, given, graphc_status, guard, hand_out, place};
use crate::text::{hand_out_text, text};

/// A model that is yet to be opened: a file, or the bytes of one. It never changes: several threads may open it.
pub struct graphc_model {
    from: From,
}

enum From {
    File(PathBuf),
    Memory(Storage),
}

impl graphc_model {
    pub(crate) fn source(&self, options: &NamedOptions) -> Source {
        match &self.from {
            From::File(path) => Source::File(path.clone()),
            From::Memory(bytes) => options.in_memory(bytes.clone()),
        }
    }
}

/// Names a model's file: ONNX, a .gir text, or an artifact (.graphc). It is read when a session is opened, and then
/// stays mapped: it should not change while the session lives.
///
/// # Safety
/// `path` ends with a zero byte, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_model_from_file(
    path: *const c_char,
    out: *mut *mut graphc_model,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (out, path) = unsafe { (place(out, "out")?, text(path, "path")?) };
        let from = From::File(path.into());
        hand_out(out, graphc_model { from });
        Ok(())
    })
}

/// Takes a model from memory: the bytes of a file of any kind, which are copied once; sessions share the copy. ONNX's
/// external data are looked for in the option "folder".
///
/// # Safety
/// `size` bytes are at `bytes`, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_model_from_bytes(
    bytes: *const c_void,
    size: usize,
    out: *mut *mut graphc_model,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let out = unsafe { place(out, "out") }?;
        if bytes.is_null() {
            return Err(Failure::argument("bytes is null"));
        }
        // SAFETY: as the caller says.
        let copied = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size) }.to_vec();
        let from = From::Memory(Storage::new(copied));
        hand_out(out, graphc_model { from });
        Ok(())
    })
}

/// Frees a model; sessions that were opened from it stay. Null is nothing.
///
/// # Safety
/// `model` is null or live, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_model_free(model: *mut graphc_model) {
    // SAFETY: as the caller says.
    unsafe { free(model) };
}

/// Compiles a model for targets, separated by commas ("cpu", "gfx90a,gfx942"), and writes an artifact that
/// graphc_model_from_file opens. No GPU is needed; for GPUs the compiler is hiprtc or NVRTC, in this process, or in
/// processes of the option "worker". `options` may be null.
///
/// # Safety
/// Handles are live, texts end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_model_compile(
    model: *const graphc_model,
    targets: *const c_char,
    options: *const graphc_options,
    path: *const c_char,
) -> *mut graphc_status {
    guard(|| {
        // SAFETY: as the caller says.
        let (model, targets, options, path) = unsafe {
            (
                given(model, "model")?,
                text(targets, "targets")?,
                read(options),
                text(path, "path")?,
            )
        };
        let program = options.compile(&model.source(&options), targets)?;
        program
            .save(path)
            .map_err(|error| artifact_error(path.as_ref(), error))?;
        Ok(())
    })
}

/// Says as JSON what `graphc explain` does: which rules fired, what is fused for a target, and why the rest is not.
/// graphc_text_free frees the text. `options` may be null.
///
/// # Safety
/// Handles are live, texts end with a zero byte, `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphc_model_explain(
    model: *const graphc_model,
    targets: *const c_char,
    options: *const graphc_options,
    out: *mut *mut c_char,
) -> *mut graphc_status {
    guard(|| -> Outcome<()> {
        // SAFETY: as the caller says.
        let (out, model, targets, options) = unsafe {
            (
                place(out, "out")?,
                given(model, "model")?,
                text(targets, "targets")?,
                read(options),
            )
        };
        let build = options.build(&model.source(&options), targets)?;
        hand_out_text(out, graphc::facts::explained(&build, true).to_string());
        Ok(())
    })
}
