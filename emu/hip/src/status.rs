//! HIP's error codes: their names, and which one each of the emulator's errors is.

use graphc_emu::{FaultKind, LaunchError, LoadError, MemoryError};
use hip_sys::hipError_t;
use std::ffi::CStr;

/// What a call gives inside: the code of a failure, or nothing.
pub type Status = Result<(), hipError_t>;

macro_rules! names {
    ($($name:ident: $text:literal,)*) => {
        /// A code's name and its description; None for a code that HIP does not have.
        pub fn describe(code: hipError_t) -> Option<(&'static CStr, &'static CStr)> {
            const fn c(text: &'static str) -> &'static CStr {
                match CStr::from_bytes_with_nul(text.as_bytes()) {
                    Ok(text) => text,
                    Err(_) => c"",
                }
            }
            match code {
                $(hipError_t::$name => Some((c(concat!(stringify!($name), "\0")), c(concat!($text, "\0")))),)*
                _ => None,
            }
        }

        /// The code of a name, `hipErrorOutOfMemory`.
        pub fn by_name(name: &str) -> Option<hipError_t> {
            match name {
                $(stringify!($name) => Some(hipError_t::$name),)*
                _ => None,
            }
        }
    };
}

names! {
    hipSuccess: "no error",
    hipErrorInvalidValue: "invalid argument",
    hipErrorOutOfMemory: "out of memory",
    hipErrorNotInitialized: "initialization error",
    hipErrorDeinitialized: "driver shutting down",
    hipErrorProfilerDisabled: "profiler disabled while using external profiling tool",
    hipErrorProfilerNotInitialized: "profiler is not initialized",
    hipErrorProfilerAlreadyStarted: "profiler already started",
    hipErrorProfilerAlreadyStopped: "profiler already stopped",
    hipErrorInvalidConfiguration: "invalid configuration argument",
    hipErrorInvalidPitchValue: "invalid pitch argument",
    hipErrorInvalidSymbol: "invalid device symbol",
    hipErrorInvalidDevicePointer: "invalid device pointer",
    hipErrorInvalidMemcpyDirection: "invalid copy direction for memcpy",
    hipErrorInsufficientDriver: "driver version is insufficient for runtime version",
    hipErrorMissingConfiguration: "__global__ function call is not configured",
    hipErrorPriorLaunchFailure: "unspecified launch failure in prior launch",
    hipErrorInvalidDeviceFunction: "invalid device function",
    hipErrorNoDevice: "no ROCm-capable device is detected",
    hipErrorInvalidDevice: "invalid device ordinal",
    hipErrorInvalidImage: "device kernel image is invalid",
    hipErrorInvalidContext: "invalid device context",
    hipErrorContextAlreadyCurrent: "context is already current context",
    hipErrorMapFailed: "mapping of buffer object failed",
    hipErrorUnmapFailed: "unmapping of buffer object failed",
    hipErrorArrayIsMapped: "array is mapped",
    hipErrorAlreadyMapped: "resource already mapped",
    hipErrorNoBinaryForGpu: "no kernel image is available for execution on the device",
    hipErrorAlreadyAcquired: "resource already acquired",
    hipErrorNotMapped: "resource not mapped",
    hipErrorNotMappedAsArray: "resource not mapped as array",
    hipErrorNotMappedAsPointer: "resource not mapped as pointer",
    hipErrorECCNotCorrectable: "uncorrectable ECC error encountered",
    hipErrorUnsupportedLimit: "limit is not supported on this architecture",
    hipErrorContextAlreadyInUse: "exclusive-thread device already in use by a different thread",
    hipErrorPeerAccessUnsupported: "peer access is not supported between these two devices",
    hipErrorInvalidKernelFile: "invalid kernel file",
    hipErrorInvalidGraphicsContext: "invalid OpenGL or DirectX context",
    hipErrorInvalidSource: "device kernel image is invalid",
    hipErrorFileNotFound: "file not found",
    hipErrorSharedObjectSymbolNotFound: "shared object symbol not found",
    hipErrorSharedObjectInitFailed: "shared object initialization failed",
    hipErrorOperatingSystem: "OS call failed or operation not supported on this OS",
    hipErrorInvalidHandle: "invalid resource handle",
    hipErrorIllegalState: "the operation cannot be performed in the present state",
    hipErrorNotFound: "named symbol not found",
    hipErrorNotReady: "device not ready",
    hipErrorIllegalAddress: "an illegal memory access was encountered",
    hipErrorLaunchOutOfResources: "too many resources requested for launch",
    hipErrorLaunchTimeOut: "the launch timed out and was terminated",
    hipErrorPeerAccessAlreadyEnabled: "peer access is already enabled",
    hipErrorPeerAccessNotEnabled: "peer access has not been enabled",
    hipErrorSetOnActiveProcess: "cannot set while device is active in this process",
    hipErrorContextIsDestroyed: "context is destroyed",
    hipErrorAssert: "device-side assert triggered",
    hipErrorHostMemoryAlreadyRegistered: "part or all of the requested memory range is already mapped",
    hipErrorHostMemoryNotRegistered: "pointer does not correspond to a registered memory region",
    hipErrorLaunchFailure: "unspecified launch failure",
    hipErrorCooperativeLaunchTooLarge: "too many blocks in cooperative launch",
    hipErrorNotSupported: "operation not supported",
    hipErrorStreamCaptureUnsupported: "operation not permitted when stream is capturing",
    hipErrorStreamCaptureInvalidated: "operation failed due to a previous error during capture",
    hipErrorStreamCaptureMerge: "operation would result in a merge of separate capture sequences",
    hipErrorStreamCaptureUnmatched: "capture was not ended in the same stream as it began",
    hipErrorStreamCaptureUnjoined: "capturing stream has unjoined work",
    hipErrorStreamCaptureIsolation: "dependency created on uncaptured work in another stream",
    hipErrorStreamCaptureImplicit: "operation would make the legacy stream depend on a capturing blocking stream",
    hipErrorCapturedEvent: "operation not permitted on an event last recorded in a capturing stream",
    hipErrorStreamCaptureWrongThread: "attempt to terminate a thread-local capture sequence from another thread",
    hipErrorGraphExecUpdateFailure: "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update",
    hipErrorInvalidChannelDescriptor: "invalid channel descriptor",
    hipErrorInvalidTexture: "invalid texture reference",
    hipErrorUnknown: "unknown error",
    hipErrorRuntimeMemory: "runtime memory call returned error",
    hipErrorRuntimeOther: "runtime call other than memory returned error",
}

/// The code of a module that cannot be loaded or a kernel that is not in it.
pub fn of_load(error: &LoadError) -> hipError_t {
    match error {
        LoadError::WrongArch { .. } | LoadError::NotInBundle { .. } | LoadError::UnknownArch(_) => {
            hipError_t::hipErrorNoBinaryForGpu
        }
        LoadError::NoSuchKernel { .. } => hipError_t::hipErrorNotFound,
        LoadError::Memory(error) => of_memory(error),
        LoadError::Disassembly(_) => hipError_t::hipErrorSharedObjectInitFailed,
        _ => hipError_t::hipErrorInvalidImage,
    }
}

/// The code of a host call on device memory that failed.
pub fn of_memory(error: &MemoryError) -> hipError_t {
    match error {
        MemoryError::OutOfMemory { .. } | MemoryError::HostMemory { .. } => hipError_t::hipErrorOutOfMemory,
        _ => hipError_t::hipErrorInvalidValue,
    }
}

/// The code of a launch that failed while it ran.
pub fn of_launch(error: &LaunchError) -> hipError_t {
    match error {
        LaunchError::Fault(fault) => match fault.kind {
            FaultKind::OutOfBounds { .. } | FaultKind::UseAfterFree { .. } | FaultKind::Misaligned { .. } => {
                hipError_t::hipErrorIllegalAddress
            }
            FaultKind::InstructionLimit(_) | FaultKind::Deadlock => hipError_t::hipErrorLaunchTimeOut,
            FaultKind::Trap(_) => hipError_t::hipErrorAssert,
            _ => hipError_t::hipErrorLaunchFailure,
        },
        LaunchError::LdsTooLarge { .. } => hipError_t::hipErrorLaunchOutOfResources,
        LaunchError::Unsupported { .. } | LaunchError::NotTimed { .. } => hipError_t::hipErrorNotSupported,
        LaunchError::EmptyGrid { .. }
        | LaunchError::GridTooLarge { .. }
        | LaunchError::GridTooDeep { .. }
        | LaunchError::KernargsTooShort { .. } => hipError_t::hipErrorInvalidValue,
        LaunchError::BlockTooLarge { .. } => hipError_t::hipErrorLaunchFailure,
    }
}
