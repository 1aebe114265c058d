//! What the tests share: the built library opened through the project's own bindings, and code objects by real hiprtc.
#![allow(dead_code, reason = "each test binary uses its part of the helpers")]

use hip_sys::{
    HipLibrary, Loaded, Search, hipError_t, hipEvent_t, hipFunction_t, hipMemcpyKind, hipModule_t, hipStream_t,
};
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

pub const OK: hipError_t = hipError_t::hipSuccess;
pub const H2D: hipMemcpyKind = hipMemcpyKind::hipMemcpyHostToDevice;
pub const D2H: hipMemcpyKind = hipMemcpyKind::hipMemcpyDeviceToHost;

/// The command prefix under which ROCm's libraries load; None without a ROCm.
fn rocm() -> Option<Vec<String>> {
    let mut prefixes: Vec<PathBuf> = std::env::var_os("GRAPHC_ROCM").into_iter().map(PathBuf::from).collect();
    prefixes.push("/opt/graphc-rocm".into());
    let wrapper = prefixes
        .iter()
        .map(|prefix| prefix.join("rocm-run"))
        .find(|run| run.is_file());
    match wrapper {
        Some(run) => Some(vec![run.display().to_string()]),
        None => Path::new("/opt/rocm/lib/libhiprtc.so").exists().then(Vec::new),
    }
}

/// The library that cargo built beside the tests.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let deps = test.parent().expect("a test is in a folder");
    let name = "libamdhip64_emu.so";
    let places = [deps.join(name), deps.parent().expect("target/PROFILE").join(name)];
    places
        .into_iter()
        .find(|path| path.is_file())
        .expect("cargo builds the cdylib with its tests")
}

/// One library of its own: the environment is read when it is first called.
pub struct Hip {
    pub api: Loaded<HipLibrary>,
    folder: tempfile::TempDir,
}

impl Hip {
    /// The library once more, for what the project's bindings do not have.
    pub fn library(&self) -> libloading::os::unix::Library {
        // SAFETY: it is loaded already.
        unsafe { libloading::os::unix::Library::new(self.folder.path().join("libamdhip64.so.7")) }.expect("is loaded")
    }

    /// A function by its name; `T` must be its type.
    pub fn symbol<T: Copy>(&self, name: &str) -> T {
        let library = self.library();
        // SAFETY: the caller gives HIP's own signature; the library stays loaded as long as `self`.
        *unsafe { library.get::<T>(name.as_bytes()) }.expect("the library has it")
    }
}

impl std::ops::Deref for Hip {
    type Target = HipLibrary;
    fn deref(&self) -> &HipLibrary {
        &self.api
    }
}

/// Opens a copy of the library under its usual name with these variables set.
pub fn open(variables: &[(&str, &str)]) -> Hip {
    static ENVIRONMENT: Mutex<()> = Mutex::new(());
    let _guard = ENVIRONMENT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("libamdhip64.so.7");
    std::fs::copy(built(), &path).expect("copied");
    let mut all: Vec<(String, String)> = variables.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    if let Some(mut words) = rocm() {
        words.push(env!("CARGO_BIN_EXE_graphc-emu-disassembler").to_string());
        all.push(("GRAPHC_EMU_DISASSEMBLER".into(), words.join(" ")));
    }
    for (name, value) in &all {
        // SAFETY: every test of this binary that touches the environment does so here, under the lock.
        unsafe { std::env::set_var(name, value) };
    }
    let api = hip_sys::load(&Search::only(&path)).expect("the library has every entry point of the bindings");
    // SAFETY: no pointers.
    let status = unsafe { api.hipInit(0) };
    for (name, _) in &all {
        // SAFETY: as above.
        unsafe { std::env::remove_var(name) };
    }
    assert_eq!(status, OK);
    Hip { api, folder }
}

/// Compiles with real hiprtc, or takes an earlier result; None (and a printed line) without a ROCm.
pub fn compile(source: &str, arch: &str) -> Option<Vec<u8>> {
    let Some(mut words) = rocm() else {
        println!("skipped: no ROCm found; set GRAPHC_ROCM to a prefix with rocm-run");
        return None;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emu-hip-cache");
    std::fs::create_dir_all(&folder).expect("a folder");
    let key = blake3::hash(format!("{arch}\n{source}").as_bytes()).to_hex();
    let cached = folder.join(format!("{key}.co"));
    if let Ok(code) = std::fs::read(&cached) {
        return Some(code);
    }
    let scratch = folder.join(format!(
        "{key}-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let text = scratch.with_extension("hip");
    std::fs::write(&text, source).expect("written");
    words.push(env!("CARGO_BIN_EXE_emu-hip-hiprtc-worker").to_string());
    words.extend([
        text.display().to_string(),
        arch.to_string(),
        scratch.display().to_string(),
        "-O3".into(),
    ]);
    let output = Command::new(&words[0])
        .args(&words[1..])
        .output()
        .expect("the worker starts");
    let _ = std::fs::remove_file(&text);
    if output.status.code() == Some(3) {
        println!("skipped: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(format!("{}.co", scratch.display()), &cached).expect("moved");
    let _ = std::fs::remove_file(format!("{}.lst", scratch.display()));
    Some(std::fs::read(&cached).expect("read"))
}

impl Hip {
    pub fn malloc(&self, bytes: usize) -> *mut c_void {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: a place for the result.
        assert_eq!(unsafe { self.hipMalloc(&mut pointer, bytes) }, OK);
        pointer
    }

    /// Pinned host memory as words.
    pub fn pinned(&self, words: usize) -> &'static mut [f32] {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: a place for the result.
        assert_eq!(unsafe { self.hipHostMalloc(&mut pointer, words * 4, 0) }, OK);
        // SAFETY: the library gave that many zeroed bytes, which the tests never free.
        unsafe { std::slice::from_raw_parts_mut(pointer.cast(), words) }
    }

    pub fn upload(&self, values: &[f32]) -> *mut c_void {
        let pointer = self.malloc(size_of_val(values));
        // SAFETY: both ends have the size.
        let status = unsafe { self.hipMemcpy(pointer, values.as_ptr().cast(), size_of_val(values), H2D) };
        assert_eq!(status, OK);
        pointer
    }

    pub fn download(&self, pointer: *mut c_void, count: usize) -> Result<Vec<f32>, hipError_t> {
        let mut values = vec![0f32; count];
        // SAFETY: both ends have the size.
        let status = unsafe { self.hipMemcpy(values.as_mut_ptr().cast(), pointer, count * 4, D2H) };
        if status == OK { Ok(values) } else { Err(status) }
    }

    pub fn module(&self, code: &[u8]) -> Result<hipModule_t, hipError_t> {
        let mut module = std::ptr::null_mut();
        // SAFETY: a place for the result and a whole code object.
        let status = unsafe { self.hipModuleLoadData(&mut module, code.as_ptr().cast()) };
        if status == OK { Ok(module) } else { Err(status) }
    }

    pub fn function(&self, module: hipModule_t, name: &str) -> Result<hipFunction_t, hipError_t> {
        let name = CString::new(name).expect("no zero");
        let mut function = std::ptr::null_mut();
        // SAFETY: a place for the result and a C string.
        let status = unsafe { self.hipModuleGetFunction(&mut function, module, name.as_ptr()) };
        if status == OK { Ok(function) } else { Err(status) }
    }

    pub fn stream(&self) -> hipStream_t {
        let mut stream = std::ptr::null_mut();
        // SAFETY: a place for the result.
        assert_eq!(
            // SAFETY: the handle is written to a local of its type.
            unsafe { self.hipStreamCreateWithFlags(&mut stream, hip_sys::hipStreamNonBlocking) },
            OK
        );
        stream
    }

    pub fn event(&self, flags: u32) -> hipEvent_t {
        let mut event = std::ptr::null_mut();
        // SAFETY: a place for the result.
        assert_eq!(unsafe { self.hipEventCreateWithFlags(&mut event, flags) }, OK);
        event
    }

    /// Launches `name(out, in, scale, count)`.
    pub fn launch(
        &self,
        function: hipFunction_t,
        grid: u32,
        block: u32,
        stream: hipStream_t,
        (mut out, mut input, mut scale, mut count): (*mut c_void, *mut c_void, f32, i32),
    ) -> hipError_t {
        let mut params: [*mut c_void; 4] = [
            (&raw mut out).cast(),
            (&raw mut input).cast(),
            (&raw mut scale).cast(),
            (&raw mut count).cast(),
        ];
        let none = std::ptr::null_mut();
        // SAFETY: one pointer for each of the kernel's four arguments, alive during the call.
        unsafe { self.hipModuleLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, params.as_mut_ptr(), none) }
    }
}

/// `out[i] = in[i] * scale + 1`, guarded, and the same without the guard.
pub const SOURCE: &str = r#"
__device__ int table[4] = {1, 2, 3, 4};
extern "C" __global__ void __launch_bounds__(256) scale(float* out, const float* in, float scale, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] * scale + 1.0f;
}
extern "C" __global__ void unguarded(float* out, const float* in, float scale, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = in[i] * scale + (float)table[i & 3];
}
"#;
