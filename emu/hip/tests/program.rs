//! What a compiled HIP program and ROCm's libraries ask of the runtime beyond graphc's own calls: linked device code,
//! launches by host address, launches with partial blocks, pools, copies in two dimensions, host functions, symbol
//! versions.

mod common;
use common::{D2H, Hip, OK, compile, open};
use hip_sys::{hipError_t, hipStream_t};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

type E = hipError_t;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Dim3 {
    x: u32,
    y: u32,
    z: u32,
}

fn dim(x: u32, y: u32) -> Dim3 {
    Dim3 { x, y, z: 1 }
}

const SOURCE: &str = r#"
__device__ int table[4] = {1, 2, 3, 4};
extern "C" __global__ void shift(int* out) { out[threadIdx.x] = table[threadIdx.x & 3] + 10; }
extern "C" __global__ void sizes(int* out, int width) {
  int x = blockIdx.x * 8 + threadIdx.x, y = blockIdx.y * 4 + threadIdx.y;
  out[y * width + x] = threadIdx.x * 1000 + threadIdx.y * 100 + blockIdx.x * 10 + blockIdx.y;
}
"#;

/// An offload bundle as clang writes it, of an empty host entry and `code` for a GPU.
fn bundle(code: &[u8], arch: &str) -> Vec<u8> {
    let names = [
        "host-x86_64-unknown-linux-gnu-".to_string(),
        format!("hipv4-amdgcn-amd-amdhsa--{arch}"),
    ];
    let mut bytes = b"__CLANG_OFFLOAD_BUNDLE__".to_vec();
    bytes.extend(2u64.to_le_bytes());
    for (name, size) in names.iter().zip([0, code.len() as u64]) {
        bytes.extend(4096u64.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name.as_bytes());
    }
    bytes.resize(4096, 0);
    bytes.extend(code);
    bytes
}

#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    binary: *const u8,
    unused: *const u8,
}

type RegisterFatBinary = unsafe extern "C" fn(*const c_void) -> *mut *mut c_void;
type RegisterFunction = unsafe extern "C" fn(
    *mut *mut c_void,
    *const c_void,
    *const c_char,
    *const c_char,
    c_uint,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_int,
);
type RegisterVar =
    unsafe extern "C" fn(*mut *mut c_void, *const c_void, *const c_char, *const c_char, c_int, usize, c_int, c_int);
type Unregister = unsafe extern "C" fn(*mut *mut c_void);
type Launch = unsafe extern "C" fn(*const c_void, Dim3, Dim3, *mut *mut c_void, usize, hipStream_t) -> E;

fn launch_shift(hip: &Hip, host: *const c_void) -> Result<Vec<i32>, E> {
    let mut out = hip.malloc(64);
    let mut params: [*mut c_void; 1] = [(&raw mut out).cast()];
    let launch: Launch = hip.symbol("hipLaunchKernel");
    // SAFETY: one pointer for the kernel's one argument.
    let status = unsafe { launch(host, dim(1, 1), dim(16, 1), params.as_mut_ptr(), 0, null_mut()) };
    if status != OK {
        return Err(status);
    }
    let mut got = vec![0i32; 16];
    // SAFETY: both ends have the size.
    assert_eq!(unsafe { hip.hipMemcpy(got.as_mut_ptr().cast(), out, 64, D2H) }, OK);
    Ok(got)
}

#[test]
fn linked_device_code_runs_by_host_address() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let hip = open(&[]);
    let bytes = bundle(&code, "gfx90a");
    let wrapper = Wrapper {
        magic: 0x4849_5046,
        version: 1,
        binary: bytes.as_ptr(),
        unused: null(),
    };
    // Any address that is the program's own may stand for a kernel.
    let (kernel, variable) = (
        (&raw const wrapper.version).cast::<c_void>(),
        (&raw const wrapper.unused).cast::<c_void>(),
    );
    let handle = {
        let register: RegisterFatBinary = hip.symbol("__hipRegisterFatBinary");
        let function: RegisterFunction = hip.symbol("__hipRegisterFunction");
        let var: RegisterVar = hip.symbol("__hipRegisterVar");
        let (name, table) = (c"shift".as_ptr(), c"table".as_ptr());
        let none = null_mut();
        // SAFETY: the wrapper, the bundle and the names live until the end of the test.
        unsafe {
            let handle = register((&raw const wrapper).cast());
            function(handle, kernel, name, name, u32::MAX, none, none, none, none, null_mut());
            var(handle, variable, table, table, 0, 16, 0, 0);
            handle
        }
    };
    assert_eq!(launch_shift(&hip, kernel).expect("runs")[..5], [11, 12, 13, 14, 11]);

    let size: unsafe extern "C" fn(*mut usize, *const c_void) -> E = hip.symbol("hipGetSymbolSize");
    let to: unsafe extern "C" fn(*const c_void, *const c_void, usize, usize, c_int) -> E =
        hip.symbol("hipMemcpyToSymbol");
    let from: unsafe extern "C" fn(*mut c_void, *const c_void, usize, usize, c_int) -> E =
        hip.symbol("hipMemcpyFromSymbol");
    let (mut bytes, mut back) = (0usize, [0i32; 4]);
    // SAFETY: places for the results, of the sizes given.
    unsafe {
        assert_eq!((size(&mut bytes, variable), bytes), (OK, 16));
        assert_eq!(to(variable, [7i32, 8].as_ptr().cast(), 8, 4, 1), OK);
        assert_eq!(
            to(variable, [7i32, 8].as_ptr().cast(), 8, 12, 1),
            E::hipErrorInvalidValue,
            "past the end"
        );
        assert_eq!(from(back.as_mut_ptr().cast(), variable, 16, 0, 2), OK);
    }
    assert_eq!(back, [1, 7, 8, 4]);
    assert_eq!(launch_shift(&hip, kernel).expect("runs")[..4], [11, 17, 18, 14]);
    assert_eq!(launch_shift(&hip, variable), Err(E::hipErrorInvalidDeviceFunction));

    let unregister: Unregister = hip.symbol("__hipUnregisterFatBinary");
    // SAFETY: the handle is the one that was given.
    unsafe { unregister(handle) };
    assert_eq!(launch_shift(&hip, kernel), Err(E::hipErrorInvalidDeviceFunction));
}

#[test]
fn code_for_another_gpu_is_refused_when_it_is_launched() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let hip = open(&[("GRAPHC_EMU_ARCH", "gfx1100")]);
    let bytes = bundle(&code, "gfx90a");
    let wrapper = Wrapper {
        magic: 0x4849_5046,
        version: 1,
        binary: bytes.as_ptr(),
        unused: null(),
    };
    let kernel = (&raw const wrapper).cast::<c_void>();
    let register: RegisterFatBinary = hip.symbol("__hipRegisterFatBinary");
    let function: RegisterFunction = hip.symbol("__hipRegisterFunction");
    let name = c"shift".as_ptr();
    let none = null_mut();
    // SAFETY: the wrapper, the bundle and the names live until the end of the test.
    unsafe {
        let handle = register(kernel);
        function(handle, kernel, name, name, u32::MAX, none, none, none, none, null_mut());
    }
    assert_eq!(launch_shift(&hip, kernel), Err(E::hipErrorNoBinaryForGpu));
}

#[test]
fn configurations_are_a_stack() {
    let hip = open(&[]);
    type Push = unsafe extern "C" fn(Dim3, Dim3, usize, hipStream_t) -> E;
    type Pop = unsafe extern "C" fn(*mut Dim3, *mut Dim3, *mut usize, *mut hipStream_t) -> E;
    let (push, pop): (Push, Pop) = (
        hip.symbol("__hipPushCallConfiguration"),
        hip.symbol("__hipPopCallConfiguration"),
    );
    let (mut grid, mut block, mut shared, mut stream) = (dim(0, 0), dim(0, 0), 0usize, null_mut());
    // SAFETY: places for the results.
    unsafe {
        assert_eq!(push(dim(1, 2), dim(3, 4), 5, 6 as _), OK);
        assert_eq!(push(dim(7, 8), dim(9, 10), 11, null_mut()), OK);
        assert_eq!(pop(&mut grid, &mut block, &mut shared, &mut stream), OK);
        assert_eq!((grid, block, shared, stream), (dim(7, 8), dim(9, 10), 11, null_mut()));
        assert_eq!(pop(&mut grid, &mut block, &mut shared, &mut stream), OK);
        assert_eq!((grid, block, shared, stream), (dim(1, 2), dim(3, 4), 5, 6 as _));
        assert_eq!(
            pop(&mut grid, &mut block, &mut shared, &mut stream),
            E::hipErrorMissingConfiguration
        );
    }
}

#[test]
fn the_last_block_may_be_partial() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let hip = open(&[]);
    let function = hip
        .function(hip.module(&code).expect("loads"), "sizes")
        .expect("is there");
    let (width, height) = (19u32, 9u32);
    let mut out = hip.malloc((width * height * 4) as usize);
    let mut stride = width as i32;
    let mut params: [*mut c_void; 2] = [(&raw mut out).cast(), (&raw mut stride).cast()];
    type LaunchItems = unsafe extern "C" fn(
        hip_sys::hipFunction_t,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        usize,
        hipStream_t,
        *mut *mut c_void,
        *mut *mut c_void,
        *mut c_void,
        *mut c_void,
        u32,
    ) -> E;
    let launch: LaunchItems = hip.symbol("hipExtModuleLaunchKernel");
    let none = null_mut();
    // SAFETY: one pointer for each argument.
    let status = unsafe {
        launch(
            function,
            width,
            height,
            1,
            8,
            4,
            1,
            0,
            null_mut(),
            params.as_mut_ptr(),
            none as _,
            none,
            none,
            0,
        )
    };
    assert_eq!(status, OK);
    let mut got = vec![0i32; (width * height) as usize];
    // SAFETY: both ends have the size.
    let status = unsafe { hip.hipMemcpy(got.as_mut_ptr().cast(), out, got.len() * 4, D2H) };
    assert_eq!(status, OK);
    for y in 0..height as usize {
        for x in 0..width as usize {
            // A work-item past an edge would be past the end of the memory or write another row's.
            let want = x % 8 * 1000 + y % 4 * 100 + x / 8 * 10 + y / 4;
            assert_eq!(got[y * width as usize + x], want as i32, "({x}, {y})");
        }
    }
}

#[test]
fn pools_count_what_is_in_use() {
    let hip = open(&[]);
    let pool_of: unsafe extern "C" fn(*mut *mut c_void, c_int) -> E = hip.symbol("hipDeviceGetDefaultMemPool");
    let attribute: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> E = hip.symbol("hipMemPoolGetAttribute");
    let set: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> E = hip.symbol("hipMemPoolSetAttribute");
    let trim: unsafe extern "C" fn(*mut c_void, usize) -> E = hip.symbol("hipMemPoolTrimTo");
    let destroy: unsafe extern "C" fn(*mut c_void) -> E = hip.symbol("hipMemPoolDestroy");
    let mut pool = null_mut();
    // SAFETY: places for the results.
    unsafe {
        assert_eq!(pool_of(&mut pool, 0), OK);
        assert_eq!(pool_of(&mut pool, 5), E::hipErrorInvalidDevice);
    }
    let used = |which: c_int| {
        let mut bytes = 0u64;
        // SAFETY: a place for 64 bits.
        assert_eq!(unsafe { attribute(pool, which, (&raw mut bytes).cast()) }, OK);
        bytes
    };
    let (mut a, mut b) = (null_mut(), null_mut());
    // SAFETY: places for the results; what is freed was allocated.
    unsafe {
        assert_eq!(hip.hipMallocAsync(&mut a, 1000, null_mut()), OK);
        assert_eq!(hip.hipMallocAsync(&mut b, 24, null_mut()), OK);
        assert_eq!((used(7), used(8)), (1024, 1024));
        assert_eq!(hip.hipFreeAsync(a, null_mut()), OK);
        assert_eq!(hip.hipStreamSynchronize(null_mut()), OK);
        assert_eq!((used(7), used(8)), (24, 1024));
        let mut zero = 0u64;
        assert_eq!(set(pool, 8, (&raw mut zero).cast()), OK);
        assert_eq!(used(8), 24);
        assert_eq!(trim(pool, 0), OK);
        assert_eq!(hip.hipFree(b), OK);
        assert_eq!(used(7), 0);
        assert_eq!(trim(1 as _, 0), E::hipErrorInvalidValue, "a handle that was made up");
        assert_eq!(destroy(pool), E::hipErrorInvalidValue, "the device's own pool stays");
    }
}

#[test]
fn rows_are_copied_and_what_lies_between_them_is_not() {
    let hip = open(&[]);
    type Copy2d = unsafe extern "C" fn(*mut c_void, usize, *const c_void, usize, usize, usize, c_int) -> E;
    let copy: Copy2d = hip.symbol("hipMemcpy2D");
    let device = hip.malloc(64);
    let source: Vec<u8> = (0..40).collect();
    let mut back = [0xeeu8; 32];
    // SAFETY: three rows of 5 bytes, 10 apart on the host and 16 on the device, then 8 apart.
    unsafe {
        assert_eq!(hip.hipMemset(device, 0x55, 64), OK);
        assert_eq!(copy(device, 16, source.as_ptr().cast(), 10, 5, 3, 1), OK);
        assert_eq!(
            copy(device, 4, source.as_ptr().cast(), 10, 5, 3, 1),
            E::hipErrorInvalidPitchValue
        );
        assert_eq!(
            copy(device, 30, source.as_ptr().cast(), 10, 5, 3, 1),
            E::hipErrorInvalidValue,
            "past the end"
        );
        assert_eq!(copy(back.as_mut_ptr().cast(), 8, device, 16, 5, 3, 2), OK);
    }
    for row in 0..3u8 {
        let at = usize::from(row) * 8;
        assert_eq!(
            back[at..at + 5],
            std::array::from_fn::<u8, 5, _>(|i| row * 10 + i as u8)
        );
        assert_eq!(back[at + 5..at + 8], [0xee; 3]);
    }
    let mut whole = [0u8; 64];
    // SAFETY: both ends have the size.
    assert_eq!(unsafe { hip.hipMemcpy(whole.as_mut_ptr().cast(), device, 64, D2H) }, OK);
    assert_eq!(whole[5..16], [0x55; 11]);
}

unsafe extern "C" fn append(argument: *mut c_void) {
    // SAFETY: the test gives a vector that lives as long as the stream's work.
    unsafe { &mut *argument.cast::<Vec<i32>>() }.push(1);
}

#[test]
fn host_functions_run_in_the_stream_s_order() {
    let hip = open(&[]);
    type HostFunction = unsafe extern "C" fn(hipStream_t, unsafe extern "C" fn(*mut c_void), *mut c_void) -> E;
    let host: HostFunction = hip.symbol("hipLaunchHostFunc");
    let stream = hip.stream();
    let mut log: Vec<i32> = Vec::new();
    // SAFETY: the vector is not touched until the stream was waited for.
    unsafe {
        assert_eq!(host(stream, append, (&raw mut log).cast()), OK);
        assert_eq!(host(stream, append, (&raw mut log).cast()), OK);
        assert_eq!(hip.hipStreamSynchronize(stream), OK);
    }
    assert_eq!(log, [1, 1]);
}

#[test]
fn managed_memory_is_seen_from_both_sides() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let hip = open(&[]);
    let managed: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> E = hip.symbol("hipMallocManaged");
    let mut memory = null_mut();
    // SAFETY: a place for the result.
    assert_eq!(unsafe { managed(&mut memory, 64, 1) }, OK);
    let function = hip
        .function(hip.module(&code).expect("loads"), "shift")
        .expect("is there");
    let mut params: [*mut c_void; 1] = [(&raw mut memory).cast()];
    let none = null_mut();
    // SAFETY: one pointer for the kernel's argument; the memory has 64 bytes.
    unsafe {
        assert_eq!(
            hip.hipModuleLaunchKernel(function, 1, 1, 1, 16, 1, 1, 0, null_mut(), params.as_mut_ptr(), none),
            OK
        );
        assert_eq!(hip.hipDeviceSynchronize(), OK);
        assert_eq!(*memory.cast::<[i32; 4]>(), [11, 12, 13, 14]);
        assert_eq!(hip.hipFree(memory), OK);
    }
}

#[test]
fn the_last_call_s_code_is_apart_from_the_last_failure() {
    let hip = open(&[]);
    let last: unsafe extern "C" fn() -> E = hip.symbol("hipExtGetLastError");
    let failure: unsafe extern "C" fn() -> E = hip.symbol("hipGetLastError");
    // SAFETY: null is refused.
    unsafe {
        assert_eq!(hip.hipMalloc(null_mut(), 16), E::hipErrorInvalidValue);
        assert_eq!(hip.hipDeviceSynchronize(), OK);
        assert_eq!(last(), OK);
        assert_eq!(failure(), E::hipErrorInvalidValue);
        assert_eq!(failure(), OK);
    }
}

#[test]
fn every_function_of_rocm_s_runtime_is_there_under_its_version() {
    unsafe extern "C" {
        fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
    }
    let hip = open(&[]);
    let library = hip.library().into_raw();
    let table = include_str!("../symbols.txt");
    let mut emulated = 0;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let (version, name) = (
            CString::new(words[0]).expect("text"),
            CString::new(words[1]).expect("text"),
        );
        // SAFETY: a library's handle and C strings.
        let (found, other) = unsafe {
            (
                dlvsym(library, name.as_ptr(), version.as_ptr()),
                dlvsym(library, name.as_ptr(), c"hip_9.9".as_ptr()),
            )
        };
        assert!(!found.is_null() && other.is_null(), "{line}");
        emulated += usize::from(words.len() == 2);
    }
    assert!(emulated >= 140, "{emulated} functions are emulated");
    // The others say that they are not.
    let missing: unsafe extern "C" fn() -> E = hip.symbol("hipMallocArray");
    // SAFETY: the stub looks at no argument.
    assert_eq!(unsafe { missing() }, E::hipErrorNotSupported);
    let text: unsafe extern "C" fn(u32) -> *const c_char = hip.symbol("hipApiName");
    // SAFETY: as above.
    assert!(unsafe { text(1) }.is_null());
}
