//! The errors of the public API: what went wrong, whose fault it is, and the way out.

use std::path::PathBuf;

#[cfg(feature = "emulate")]
use crate::emulate::EmulateError;

/// Any error of graphc.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// An ONNX model could not be imported.
    #[error(transparent)]
    Import(#[from] frontend::onnx::ImportError),
    /// An ONNX model was read and could not be imported.
    #[error("{}: {error}", path.display())]
    Model {
        path: PathBuf,
        error: frontend::onnx::ImportError,
    },
    /// A `.gir` text could not be parsed.
    #[error("{message}")]
    Parse { path: PathBuf, message: String },
    /// A file of measurements cannot be used.
    #[cfg(feature = "tune")]
    #[error(transparent)]
    Tuning(#[from] crate::tune::database::DatabaseError),
    /// Recorded tensors make no graph: an operation that did not fit, with its place.
    #[error(transparent)]
    Tensor(#[from] frontend::tensor::TensorError),
    /// Weights do not make the module asked for.
    #[error(transparent)]
    Nn(#[from] frontend::nn::NnError),
    /// The graph does not verify.
    #[error("{}: the graph does not verify:\n{errors}", path.display())]
    Verify { path: PathBuf, errors: String },
    /// An artifact is damaged or from another version.
    #[error("{}: {message}", path.display())]
    Artifact { path: PathBuf, message: String },
    /// A file of arrays could not be understood.
    #[error("{}: {message}", path.display())]
    Arrays { path: PathBuf, message: String },
    /// The target does not exist.
    #[error(transparent)]
    Target(#[from] ir::target::TargetError),
    /// The artifact holds no code for the target.
    #[error("the artifact holds no code for {wanted}; it holds {}: run it there (--device), or compile the model for {wanted} too",
        have.join(", "))]
    NoVariant { wanted: String, have: Vec<String> },
    /// An option makes no sense here.
    #[error("{0}")]
    Config(String),
    /// A pass failed: a bug of graphc, unless the model asks for what is not supported.
    #[error(transparent)]
    Pass(#[from] passes::PassError),
    /// A model cannot be shared among devices as asked.
    #[error(transparent)]
    Shard(#[from] passes::ShardError),
    /// The scheduler was given the wrong kind of graph: a bug of graphc.
    #[error(transparent)]
    Schedule(#[from] passes::ScheduleError),
    /// A plan cannot be made to fit a device's memory.
    #[error(transparent)]
    Stream(#[from] passes::stream::StreamError),
    /// A region has no kernel.
    #[error(transparent)]
    Lower(#[from] passes::LowerError),
    /// A kernel could not be printed: a bug of graphc.
    #[error(transparent)]
    Emit(#[from] codegen_hip::EmitError),
    /// No compiler, or it refused or died.
    #[error(transparent)]
    Compile(#[from] runtime::compile::CompileError),
    /// Several kernels were not compiled.
    #[error("{} kernels were not compiled:\n{}", .0.len(), lines(.0))]
    Kernels(Vec<runtime::compile::CompileError>),
    /// A code object could not be read.
    #[error(transparent)]
    CodeObject(#[from] runtime::code_object::CodeObjectError),
    /// The device or a run failed.
    #[error(transparent)]
    Runtime(#[from] runtime::RuntimeError),
    /// The emulated GPU refused a plan, or found a fault in it.
    #[cfg(feature = "emulate")]
    #[error(transparent)]
    Emulate(#[from] EmulateError),
    /// The reference evaluator could not evaluate the graph.
    #[error(transparent)]
    Eval(Box<ir::graph::eval::EvalError>),
    /// A model cannot be quantised as asked.
    #[error(transparent)]
    Quantize(#[from] passes::quantize::recipe::QuantizeError),
    /// A file cannot be given quantised operands.
    #[error("{}: {error}", path.display())]
    Edit {
        path: PathBuf,
        error: frontend::onnx::EditError,
    },
    /// Inputs do not have the shapes that the model declares.
    #[error(transparent)]
    Bind(#[from] ir::graph::BindError),
    /// A size could not be computed.
    #[error(transparent)]
    Size(#[from] ir::dim::DimError),
    /// A file of weights became shorter while it was in use.
    #[error(transparent)]
    Truncated(#[from] ir::mapped::Truncated),
    /// Outputs are not what was expected.
    #[error("{0}")]
    Mismatch(String),
}

/// Whose matter an error is, for doors that have their own types of errors: status codes in C, exceptions in Python.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorKind {
    /// An option, or options together, make no sense.
    Option,
    /// A file cannot be read or written.
    File,
    /// A model, an artifact or another file is damaged, or asks for what graphc does not have.
    Model,
    /// Inputs of a run are not the model's, or a condition of the model does not hold for them.
    Input,
    /// A device, a library, a compiler, or the code for a target is not there.
    NotAvailable,
    /// There is too little memory.
    Memory,
    /// A device was waited for longer than was allowed.
    Timeout,
    /// A device failed, or went away.
    Device,
    /// It is meant to work some day, and does not yet.
    Unsupported,
    /// Results are not what was expected.
    Mismatch,
    /// A bug of graphc.
    Internal,
}

impl From<ir::graph::eval::EvalError> for Error {
    fn from(error: ir::graph::eval::EvalError) -> Error {
        Error::Eval(Box::new(error))
    }
}

fn lines(errors: &[runtime::compile::CompileError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// What graphc's functions return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Wraps an IO error with what was being done to which file.
    pub fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| match source.downcast::<ir::mapped::Truncated>() {
            // Not the file that something was done to is at fault.
            Ok(truncated) => Error::Truncated(truncated),
            Err(source) => Error::Io { doing, path, source },
        }
    }

    /// Says whether sizes or numbers of the inputs may be at fault: a model that cannot be had with its sizes left
    /// open, or not at these sizes, may be had when it is compiled for them alone.
    pub fn is_of_sizes(&self) -> bool {
        use frontend::onnx::ImportError;
        use ir::graph::BindError;
        use runtime::RuntimeError;
        let of_shapes = |error: &BindError| {
            matches!(
                error,
                BindError::Size { .. } | BindError::Conflict { .. } | BindError::Bounds { .. }
            )
        };
        match self {
            Error::Model { error, .. } => matches!(
                error,
                ImportError::Node(_)
                    | ImportError::Unsettled { .. }
                    | ImportError::Unbound(_)
                    | ImportError::Input { .. }
            ),
            Error::Bind(error) => of_shapes(error),
            Error::Runtime(RuntimeError::Sizes(_) | RuntimeError::Condition(_))
            | Error::Size(_)
            | Error::Pass(_)
            | Error::Lower(_) => true,
            Error::Runtime(RuntimeError::Input { error, .. }) => {
                matches!(error, runtime::InputError::Shape(error) if of_shapes(error))
            }
            #[cfg(feature = "emulate")]
            Error::Emulate(EmulateError::Sizes(_) | EmulateError::Condition(_)) => true,
            #[cfg(feature = "emulate")]
            Error::Emulate(EmulateError::Bind(error)) => of_shapes(error),
            _ => false,
        }
    }

    /// Says whose matter the error is.
    pub fn kind(&self) -> ErrorKind {
        use frontend::onnx::{ImportError, ReadProblem};
        use passes::stream::StreamError;
        use passes::{LowerError, PassFault};
        use runtime::compile::CompileError;
        let of_compile = |error: &CompileError| match error {
            CompileError::NotAvailable { .. } => ErrorKind::NotAvailable,
            _ => ErrorKind::Internal,
        };
        let of_import = |error: &ImportError| match error {
            ImportError::Read(error) if matches!(*error.problem, ReadProblem::Open(_)) => ErrorKind::File,
            ImportError::UnknownSize { .. } | ImportError::SizeOption { .. } | ImportError::UnknownInput { .. } => {
                ErrorKind::Option
            }
            _ => ErrorKind::Model,
        };
        match self {
            Error::Io { .. } | Error::Truncated(_) => ErrorKind::File,
            Error::Config(_) | Error::Target(_) | Error::Shard(_) | Error::Stream(StreamError::TooSmall { .. }) => {
                ErrorKind::Option
            }
            Error::Import(error) | Error::Model { error, .. } => of_import(error),
            #[cfg(feature = "tune")]
            Error::Tuning(_) => ErrorKind::Model,
            Error::Parse { .. }
            | Error::Tensor(_)
            | Error::Nn(_)
            | Error::Verify { .. }
            | Error::Artifact { .. }
            | Error::Arrays { .. }
            | Error::Edit { .. } => ErrorKind::Model,
            Error::NoVariant { .. } => ErrorKind::NotAvailable,
            Error::Bind(_) | Error::Size(_) => ErrorKind::Input,
            Error::Mismatch(_) => ErrorKind::Mismatch,
            Error::Compile(error) => of_compile(error),
            Error::Kernels(all) if all.iter().all(|e| of_compile(e) == ErrorKind::NotAvailable) => {
                ErrorKind::NotAvailable
            }
            Error::Runtime(error) => of_runtime(error, of_compile),
            Error::Pass(error) => match error.fault {
                PassFault::Unsupported { .. } => ErrorKind::Unsupported,
                PassFault::Model(_) | PassFault::Precision(_) => ErrorKind::Option,
                PassFault::Infer { .. } | PassFault::Verify(_) => ErrorKind::Internal,
            },
            Error::Lower(LowerError::Unsupported { .. }) => ErrorKind::Unsupported,
            Error::Lower(LowerError::Sizes(_)) => ErrorKind::Option,
            Error::Eval(error) if error.is_memory() => ErrorKind::Memory,
            // By what the command line makes of them.
            error => match error.exit_code() {
                2 => ErrorKind::Model,
                _ => ErrorKind::Internal,
            },
        }
    }

    /// The exit code of the command line: 2 for what the user can mend (input, options, environment), 1 for our
    /// failures and for results that do not match.
    pub fn exit_code(&self) -> u8 {
        use passes::quantize::recipe::QuantizeError;
        use passes::stream::StreamError;
        use passes::{PassFault, ShardError};
        use runtime::compile::CompileError;
        match self {
            #[cfg(feature = "tune")]
            Error::Tuning(_) => 2,
            Error::Io { .. }
            | Error::Import(_)
            | Error::Bind(_)
            | Error::Model { .. }
            | Error::Parse { .. }
            | Error::Tensor(_)
            | Error::Nn(_)
            | Error::Verify { .. }
            | Error::Artifact { .. }
            | Error::Arrays { .. }
            | Error::Target(_)
            | Error::NoVariant { .. }
            | Error::Config(_)
            | Error::Edit { .. }
            | Error::Truncated(_)
            | Error::Shard(
                ShardError::Ranks { .. }
                | ShardError::Shared { .. }
                | ShardError::State { .. }
                | ShardError::Layers { .. },
            )
            | Error::Stream(StreamError::TooSmall { .. } | StreamError::Again { .. }) => 2,
            // What is wrong with a rewrite is ours, the rest is the model's or the options'.
            Error::Quantize(error) => 2 - u8::from(matches!(error, QuantizeError::Rewrite(_))),
            Error::Pass(error) if matches!(error.fault, PassFault::Model(_)) => 2,
            Error::Lower(passes::LowerError::Sizes(_)) => 2,
            Error::Eval(error) => 2 - u8::from(!error.is_memory()),
            Error::Compile(CompileError::NotAvailable { .. }) => 2,
            // What is wrong with a kernel is ours, also when another failed for want of a compiler.
            Error::Kernels(all) if all.iter().all(|e| matches!(e, CompileError::NotAvailable { .. })) => 2,
            #[cfg(feature = "emulate")]
            Error::Emulate(error) => error.exit_code(),
            Error::Runtime(
                runtime::RuntimeError::Input { .. }
                | runtime::RuntimeError::NotAvailable { .. }
                | runtime::RuntimeError::OutOfMemory { .. }
                | runtime::RuntimeError::OutOfDeviceMemory(_)
                | runtime::RuntimeError::OutOfPinnedMemory { .. }
                | runtime::RuntimeError::MiopenDatabase { .. }
                | runtime::RuntimeError::NoMemory { .. }
                | runtime::RuntimeError::Truncated(_)
                | runtime::RuntimeError::Sizes(_)
                | runtime::RuntimeError::Condition(_)
                | runtime::RuntimeError::Index(_)
                | runtime::RuntimeError::TooSmall { .. }
                | runtime::RuntimeError::TooLarge(_),
            ) => 2,
            Error::Size(error)
            | Error::Stream(StreamError::Size(error))
            | Error::Runtime(runtime::RuntimeError::Size(error)) => crate::exit::of_size(error),
            Error::Pass(_)
            | Error::Shard(_)
            | Error::Schedule(_)
            | Error::Stream(StreamError::Invalid(_))
            | Error::Lower(_)
            | Error::Emit(_)
            | Error::Compile(_)
            | Error::Kernels(_)
            | Error::CodeObject(_)
            | Error::Runtime(_)
            | Error::Mismatch(_) => 1,
        }
    }
}

/// The kind of an error of loading or running.
fn of_runtime(
    error: &runtime::RuntimeError,
    of_compile: impl Fn(&runtime::compile::CompileError) -> ErrorKind,
) -> ErrorKind {
    use runtime::RuntimeError;
    match error {
        RuntimeError::NotAvailable { .. } | RuntimeError::MiopenDatabase { .. } => ErrorKind::NotAvailable,
        RuntimeError::Device { .. } | RuntimeError::DeviceLost { .. } | RuntimeError::RanksEnded { .. } => {
            ErrorKind::Device
        }
        RuntimeError::TimedOut { .. } => ErrorKind::Timeout,
        RuntimeError::Rank { error, .. } | RuntimeError::Stage { error, .. } => of_runtime(error, of_compile),
        RuntimeError::OutOfDeviceMemory(_)
        | RuntimeError::OutOfPinnedMemory { .. }
        | RuntimeError::OutOfMemory { .. }
        | RuntimeError::NoMemory { .. } => ErrorKind::Memory,
        RuntimeError::Compile(error) => of_compile(error),
        RuntimeError::Truncated(_) => ErrorKind::File,
        RuntimeError::Input { .. }
        | RuntimeError::Condition(_)
        | RuntimeError::Index(_)
        | RuntimeError::Sizes(_)
        | RuntimeError::TooSmall { .. }
        | RuntimeError::TooLarge(_)
        | RuntimeError::Size(_) => ErrorKind::Input,
        RuntimeError::Unsupported { .. } => ErrorKind::Unsupported,
        RuntimeError::Program(_) => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use ir::Symbol;
    use ir::dim::DimError;
    use ir::kernel::LaunchError;
    use runtime::RuntimeError;

    use super::*;
    use crate::emulate::EmulateError;

    /// A model that is compiled for the inputs alone would only say it again.
    #[test]
    fn an_index_outside_its_axis_is_no_matter_of_sizes() {
        let index = || "index 8 at [0]".to_owned();
        for error in [
            Error::Runtime(RuntimeError::Index(index())),
            Error::Emulate(EmulateError::Index(index())),
        ] {
            assert!(!error.is_of_sizes() && error.exit_code() == 2, "{error}");
        }
        assert!(Error::Runtime(RuntimeError::Condition(index())).is_of_sizes());
    }

    /// What sizes bring about is for the user to mend; what nothing binds is our bug.
    #[test]
    fn sizes_that_are_too_large_are_the_users() {
        let overflow = || DimError::Overflow("12*n".to_owned());
        let grid = || LaunchError::Grid {
            kernel: "matmul".to_owned(),
            blocks: 1 << 40,
        };
        let memory = EmulateError::Memory {
            buffer: "x".to_owned(),
            error: emu::MemoryError::OutOfMemory {
                asked: 2,
                free: 1,
                capacity: 1,
            },
        };
        assert!(memory.to_string().contains("--size"), "{memory}");
        let too_large = RuntimeError::TooLarge(grid());
        let text = too_large.to_string();
        assert!(text.contains("matmul") && text.contains("1099511627776"), "{text}");
        for error in [
            Error::Size(overflow()),
            Error::Runtime(RuntimeError::Size(overflow())),
            Error::Runtime(too_large),
            Error::Emulate(EmulateError::Grid(grid())),
            Error::Emulate(EmulateError::Size(overflow())),
            Error::Emulate(memory),
        ] {
            assert_eq!(error.exit_code(), 2, "{error}");
        }
        let unbound = || DimError::Unbound(Symbol::new("n"));
        for error in [
            Error::Size(unbound()),
            Error::Runtime(RuntimeError::Size(unbound())),
            Error::Emulate(EmulateError::Size(unbound())),
        ] {
            assert_eq!(error.exit_code(), 1, "{error}");
        }
    }
}
