//! Whose fault an error is that graphc reports of a program: of one that it compiled just now it is graphc's, of one
//! that was read from an artifact it is the file's.

use std::path::Path;

use ir::dim::DimError;
use ir::program::artifact::MAGIC;
use passes::stream::StreamError;
use runtime::RuntimeError;

use graphc::driver::model::begins_with;
use graphc::emulate::EmulateError;
use graphc::error::Error;

/// Lays an error that graphc alone would be at fault for to the file, where the program is one that was read from an
/// artifact: whoever made the file decided what is in it.
pub fn blame(path: &Path, error: Error) -> Error {
    let damaged = match &error {
        Error::Runtime(error) => is_damage(error),
        Error::CodeObject(_) | Error::Stream(StreamError::Invalid(_)) => true,
        Error::Size(DimError::Unbound(_)) | Error::Stream(StreamError::Size(DimError::Unbound(_))) => true,
        Error::Emulate(error) => matches!(
            error,
            EmulateError::Load { .. }
                | EmulateError::NotCompiled { .. }
                | EmulateError::Bytes { .. }
                | EmulateError::Size(_)
                | EmulateError::Grid(_)
                | EmulateError::Memory { .. }
                | EmulateError::Launch { .. }
        ),
        _ => false,
    };
    if !damaged || error.exit_code() == 2 || !begins_with(path, &MAGIC).unwrap_or(false) {
        return error;
    }
    Error::Artifact {
        path: path.to_owned(),
        message: format!("{error}; the artifact does not hold together: compile the model again"),
    }
}

/// Whether an error says that a program does not hold together.
fn is_damage(error: &RuntimeError) -> bool {
    match error {
        RuntimeError::Program(_) | RuntimeError::Unsupported { .. } | RuntimeError::Size(_) => true,
        RuntimeError::Rank { error, .. } | RuntimeError::Stage { error, .. } => is_damage(error),
        // The driver does not take the code, or finds no kernel in it.
        RuntimeError::Device { call, .. } => call.contains("Module"),
        _ => false,
    }
}
