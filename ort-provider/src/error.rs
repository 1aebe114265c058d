//! The errors of the provider, and the codes under which ONNX Runtime hears of them.

use graphc::frontend::onnx::{ImportError, OptionError};
use ort_sys::OrtErrorCode;

/// Any error of the provider. Its text is the message of the status.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// Importing, compiling or running failed.
    #[error("graphc: {0}")]
    Graphc(#[from] graphc::Error),
    /// A provider option cannot be used.
    #[error("graphc: provider option {key:?}: {problem}")]
    Option {
        key: String,
        #[source]
        problem: OptionProblem,
    },
    /// A session option asks for what the provider does not do.
    #[error("graphc: session option {key} = {value:?}: {reason}")]
    SessionOption {
        key: String,
        value: String,
        reason: &'static str,
    },
    /// A region takes the inputs of a run neither with open sizes nor when it is compiled for them.
    #[error("{error}; and with open sizes: {open}")]
    Again { open: String, error: Box<ProviderError> },
    /// A function of ONNX Runtime's failed.
    #[error("graphc: ONNX Runtime's {function}: {message}")]
    OnnxRuntime { function: &'static str, message: String },
    /// An EPContext node cannot be used.
    #[error("graphc: EPContext node {node:?}: {reason}")]
    Context { node: String, reason: String },
    /// ONNX Runtime gave something that its documentation rules out.
    #[error("graphc: {0}")]
    Unexpected(String),
}

/// A provider option cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OptionProblem {
    #[error("there is no such option{suggestion}; there are {known}")]
    Unknown { suggestion: String, known: String },
    #[error("{value:?} is not {expected}")]
    Value { value: String, expected: &'static str },
    #[error("the model has no size {name:?}; it has {known:?}")]
    NoSize { name: String, known: Vec<String> },
    #[error("it cannot be set once the session is made: graphc has no dynamic options")]
    Dynamic,
    #[error(transparent)]
    Size(#[from] OptionError),
    #[error(transparent)]
    Device(Box<graphc::Error>),
}

/// The result of the provider's functions.
pub type Result<T> = std::result::Result<T, ProviderError>;

impl From<ImportError> for ProviderError {
    fn from(error: ImportError) -> ProviderError {
        ProviderError::Graphc(error.into())
    }
}

impl From<graphc::runtime::RuntimeError> for ProviderError {
    fn from(error: graphc::runtime::RuntimeError) -> ProviderError {
        ProviderError::Graphc(error.into())
    }
}

impl ProviderError {
    /// The code of the status.
    pub fn code(&self) -> OrtErrorCode {
        match self {
            ProviderError::Option { .. } | ProviderError::SessionOption { .. } => OrtErrorCode::ORT_INVALID_ARGUMENT,
            ProviderError::Graphc(error) if error.exit_code() == 2 => OrtErrorCode::ORT_INVALID_ARGUMENT,
            ProviderError::Graphc(_) | ProviderError::OnnxRuntime { .. } => OrtErrorCode::ORT_EP_FAIL,
            ProviderError::Again { error, .. } => error.code(),
            ProviderError::Context { .. } => OrtErrorCode::ORT_INVALID_GRAPH,
            ProviderError::Unexpected(_) => OrtErrorCode::ORT_FAIL,
        }
    }
}
