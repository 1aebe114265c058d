//! What is asked of the HIP runtime in the same folder.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::Library;

use crate::report;

type Status = c_int;
type HostFunction = unsafe extern "C" fn(*mut c_void);

/// Functions of HIP.
pub struct Hip {
    pub set_device: unsafe extern "C" fn(c_int) -> Status,
    pub get_device: unsafe extern "C" fn(*mut c_int) -> Status,
    pub stream_create: unsafe extern "C" fn(*mut *mut c_void, c_uint) -> Status,
    pub stream_destroy: unsafe extern "C" fn(*mut c_void) -> Status,
    pub stream_wait: unsafe extern "C" fn(*mut c_void, *mut c_void, c_uint) -> Status,
    pub event_create: unsafe extern "C" fn(*mut *mut c_void, c_uint) -> Status,
    pub event_record: unsafe extern "C" fn(*mut c_void, *mut c_void) -> Status,
    pub event_query: unsafe extern "C" fn(*mut c_void) -> Status,
    pub event_synchronize: unsafe extern "C" fn(*mut c_void) -> Status,
    pub event_destroy: unsafe extern "C" fn(*mut c_void) -> Status,
    pub host_malloc: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> Status,
    pub host_free: unsafe extern "C" fn(*mut c_void) -> Status,
    pub copy: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_uint, *mut c_void) -> Status,
    pub launch_host: unsafe extern "C" fn(*mut c_void, HostFunction, *mut c_void) -> Status,
    _library: Library,
}

/// The HIP runtime beside this library; None, and a report, where there is none.
pub fn hip() -> Option<&'static Hip> {
    static HIP: OnceLock<Option<Hip>> = OnceLock::new();
    HIP.get_or_init(|| open().map_err(|error| report(&error)).ok()).as_ref()
}

fn open() -> Result<Hip, String> {
    let path = beside("libamdhip64.so.7")?;
    let fail = |error: libloading::Error| format!("{}: {error}", path.display());
    // SAFETY: HIP's runtime, which the program has loaded already.
    let library = unsafe { Library::new(&path) }.map_err(fail)?;
    macro_rules! function {
        ($name:literal) => {
            // SAFETY: the types above are those of HIP's headers.
            *unsafe { library.get($name) }.map_err(fail)?
        };
    }
    Ok(Hip {
        set_device: function!(c"hipSetDevice"),
        get_device: function!(c"hipGetDevice"),
        stream_create: function!(c"hipStreamCreateWithFlags"),
        stream_destroy: function!(c"hipStreamDestroy"),
        stream_wait: function!(c"hipStreamWaitEvent"),
        event_create: function!(c"hipEventCreateWithFlags"),
        event_record: function!(c"hipEventRecord"),
        event_query: function!(c"hipEventQuery"),
        event_synchronize: function!(c"hipEventSynchronize"),
        event_destroy: function!(c"hipEventDestroy"),
        host_malloc: function!(c"hipHostMalloc"),
        host_free: function!(c"hipHostFree"),
        copy: function!(c"hipMemcpyAsync"),
        launch_host: function!(c"hipLaunchHostFunc"),
        _library: library,
    })
}

/// A file in the folder of this library.
fn beside(name: &str) -> Result<PathBuf, String> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address of this library, and a place for what is known of it.
    let found = unsafe { libc::dladdr(hip as *const () as *const c_void, info.as_mut_ptr()) };
    // SAFETY: zeroes are a value of it.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return Err("the loader does not say where this library is".into());
    }
    // SAFETY: the loader's own text.
    let own = PathBuf::from(unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned());
    Ok(own.with_file_name(name))
}
