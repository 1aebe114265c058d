//! The stand-in as a program sees it: through the project's bindings, with kernels by real hiprtc.

mod common;
use common::{D2H, H2D, OK, SOURCE, compile, open};
use hip_sys::{hipError_t, hipGraph_t, hipGraphExec_t, hipStream_t, hipStreamCaptureMode};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

type E = hipError_t;

fn ramp(count: usize) -> Vec<f32> {
    (0..count).map(|i| i as f32).collect()
}

#[test]
fn a_kernel_runs_on_every_arch() {
    for arch in ["gfx90a", "gfx942", "gfx1100", "gfx1201"] {
        let Some(code) = compile(SOURCE, arch) else { return };
        let hip = open(&[("GRAPHC_EMU_ARCH", arch)]);
        let function = hip
            .function(hip.module(&code).expect("loads"), "scale")
            .expect("is there");
        let (input, out) = (hip.upload(&ramp(1000)), hip.malloc(4000));
        assert_eq!(hip.launch(function, 4, 256, null_mut(), (out, input, 2.0, 1000)), OK);
        let got = hip.download(out, 1000).expect("downloads");
        assert!(
            got.iter().enumerate().all(|(i, v)| *v == 2.0 * i as f32 + 1.0),
            "{arch}: {:?}",
            &got[..8]
        );
    }
}

/// A list that ends short of a whole scalar load, which the compiler reads past it.
#[test]
fn arguments_end_where_they_like() {
    let source = r#"
extern "C" __global__ void axpby(const float* x, const float* y, float* z, int n, float a, float b) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = a * x[i] + b * y[i];
}
"#;
    for arch in ["gfx90a", "gfx1100"] {
        let Some(code) = compile(source, arch) else { return };
        let hip = open(&[("GRAPHC_EMU_ARCH", arch)]);
        let function = hip
            .function(hip.module(&code).expect("loads"), "axpby")
            .expect("is there");
        let (x, y, z) = (hip.upload(&ramp(500)), hip.upload(&ramp(500)), hip.malloc(2000));
        let mut values = (x, y, z, 500i32, 2.0f32, 0.5f32);
        let mut params: [*mut c_void; 6] = [
            (&raw mut values.0).cast(),
            (&raw mut values.1).cast(),
            (&raw mut values.2).cast(),
            (&raw mut values.3).cast(),
            (&raw mut values.4).cast(),
            (&raw mut values.5).cast(),
        ];
        // SAFETY: one pointer for each argument, all alive during the call.
        let status = unsafe {
            hip.hipModuleLaunchKernel(
                function,
                2,
                1,
                1,
                256,
                1,
                1,
                0,
                null_mut(),
                params.as_mut_ptr(),
                null_mut(),
            )
        };
        assert_eq!(status, OK, "{arch}");
        let got = hip.download(z, 500).expect("downloads");
        assert!(
            got.iter().enumerate().all(|(i, v)| *v == 2.5 * i as f32),
            "{arch}: {:?}",
            &got[..8]
        );
    }
}

/// What the host copies back is there: bytes that nothing wrote are an error with their place, and copies carry what is
/// not written.
#[test]
fn what_nothing_wrote_is_not_copied_to_the_host() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let run = |checks: &str, count: i32, over: bool| {
        let hip = open(&[("GRAPHC_EMU_CHECKS", checks), ("GRAPHC_EMU_DEVICES", "2")]);
        let function = hip
            .function(hip.module(&code).expect("loads"), "scale")
            .expect("is there");
        let (input, out) = (hip.upload(&ramp(256)), hip.malloc(1024));
        assert_eq!(hip.launch(function, 1, 256, null_mut(), (out, input, 2.0, count)), OK);
        if !over {
            return hip.download(out, 256);
        }
        // By way of the other device.
        // SAFETY: two devices, a place for the result, live allocations of that size.
        let there = unsafe {
            assert_eq!(hip.hipSetDevice(1), OK);
            let there = hip.malloc(1024);
            assert_eq!(
                hip.hipMemcpy(there, out, 1024, hip_sys::hipMemcpyKind::hipMemcpyDeviceToDevice),
                OK
            );
            there
        };
        hip.download(there, 256)
    };
    for over in [false, true] {
        assert!(run("", 256, over).is_ok());
        assert_eq!(run("", 255, over), Err(E::hipErrorIllegalAddress));
        assert!(run("no-host-reads", 255, over).is_ok());
    }
}

#[test]
fn arguments_in_a_buffer_and_variables() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let hip = open(&[]);
    let module = hip.module(&code).expect("loads");
    let function = hip.function(module, "unguarded").expect("is there");
    let (input, out) = (hip.upload(&ramp(256)), hip.malloc(1024));
    let mut kernargs = Vec::new();
    kernargs.extend((out as u64).to_le_bytes());
    kernargs.extend((input as u64).to_le_bytes());
    kernargs.extend(3f32.to_le_bytes());
    kernargs.extend(256i32.to_le_bytes());
    let launch = |size: usize| {
        let mut size = size;
        let mut extra: [*mut c_void; 5] = [
            1 as _,
            kernargs.as_ptr().cast_mut().cast(),
            2 as _,
            (&raw mut size).cast(),
            3 as _,
        ];
        // SAFETY: HIP's list of the buffer, its size and the end; all alive during the call.
        unsafe {
            hip.hipModuleLaunchKernel(
                function,
                1,
                1,
                1,
                256,
                1,
                1,
                0,
                null_mut(),
                null_mut(),
                extra.as_mut_ptr(),
            )
        }
    };
    assert_eq!(launch(kernargs.len() - 8), E::hipErrorInvalidValue, "too short");
    assert_eq!(launch(kernargs.len()), OK);
    let got = hip.download(out, 256).expect("downloads");
    assert_eq!(got[5], 3.0 * 5.0 + 2.0);
    let (mut table, mut bytes) = (null_mut(), 0);
    // SAFETY: places for the results and a C string.
    let status = unsafe { hip.hipModuleGetGlobal(&mut table, &mut bytes, module, c"table".as_ptr()) };
    assert_eq!((status, bytes), (OK, 16));
}

/// A copy on one stream, a kernel on another; `wait` says whether the kernel's stream waits for the copy's event.
fn two_streams(code: &[u8], seed: u64, wait: bool) -> Result<Vec<f32>, hipError_t> {
    let hip = open(&[("GRAPHC_EMU_SEED", &seed.to_string())]);
    let function = hip.function(hip.module(code)?, "scale")?;
    let (copies, kernels, event) = (hip.stream(), hip.stream(), hip.event(hip_sys::hipEventDisableTiming));
    let host = hip.pinned(256);
    host.copy_from_slice(&ramp(256));
    // The input has older contents, so that a kernel that is early reads wrong numbers, not unwritten ones.
    let (input, out) = (hip.upload(&[-1.0; 256]), hip.malloc(1024));
    // SAFETY: both ends have the size; the pinned memory stays.
    unsafe {
        assert_eq!(hip.hipMemcpyAsync(input, host.as_ptr().cast(), 1024, H2D, copies), OK);
        assert_eq!(hip.hipEventRecord(event, copies), OK);
        if wait {
            assert_eq!(hip.hipStreamWaitEvent(kernels, event, 0), OK);
        }
    }
    assert_eq!(hip.launch(function, 1, 256, kernels, (out, input, 2.0, 256)), OK);
    // SAFETY: no pointers.
    assert_eq!(unsafe { hip.hipDeviceSynchronize() }, OK);
    hip.download(out, 256)
}

#[test]
fn a_missing_event_wait_is_seen_under_some_seed_and_a_kept_one_under_none() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let want: Vec<f32> = ramp(256).iter().map(|v| 2.0 * v + 1.0).collect();
    let wrong = |wait| {
        (0..8)
            .filter(|seed| two_streams(&code, *seed, wait).expect("runs") != want)
            .count()
    };
    assert_eq!(wrong(true), 0);
    let seen = wrong(false);
    assert!(seen > 0, "no seed of 8 ran the kernel before the copy");
}

#[test]
fn streams_events_and_time() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let hip = open(&[]);
    let function = hip
        .function(hip.module(&code).expect("loads"), "scale")
        .expect("is there");
    let (stream, start, stop) = (hip.stream(), hip.event(0), hip.event(0));
    let (input, out) = (hip.upload(&ramp(256)), hip.malloc(1024));
    let mut time = -1f32;
    // SAFETY: live handles, places for results.
    unsafe {
        assert_eq!(
            hip.hipEventElapsedTime(&mut time, start, stop),
            E::hipErrorInvalidHandle,
            "never recorded"
        );
        assert_eq!(hip.hipEventRecord(start, stream), OK);
        assert_eq!(hip.launch(function, 1, 256, stream, (out, input, 1.0, 256)), OK);
        assert_eq!(hip.hipEventRecord(stop, stream), OK);
        assert_eq!(hip.hipEventElapsedTime(&mut time, start, stop), E::hipErrorNotReady);
        let mut queries = 0;
        while hip.hipStreamQuery(stream) == E::hipErrorNotReady {
            queries += 1;
            assert!(queries < 10, "a query makes progress");
        }
        assert_eq!(hip.hipEventQuery(stop), OK);
        assert_eq!(hip.hipEventElapsedTime(&mut time, start, stop), OK);
        assert!(time > 0.0, "{time}");
        assert_eq!(hip.hipEventDestroy(stop), OK);
        assert_eq!(hip.hipEventDestroy(stop), E::hipErrorInvalidHandle);
        assert_eq!(hip.hipEventRecord(stop, stream), E::hipErrorInvalidHandle);
        assert_eq!(hip.hipStreamDestroy(stream), OK);
        assert_eq!(hip.hipStreamDestroy(stream), E::hipErrorInvalidHandle);
        assert_eq!(hip.hipStreamSynchronize(stream), E::hipErrorInvalidHandle);
        assert_eq!(hip.hipStreamSynchronize(0x1234_5678 as _), E::hipErrorInvalidHandle);
    }
}

#[test]
fn mistakes_have_hips_codes() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let Some(other) = compile(SOURCE, "gfx1100") else {
        return;
    };
    let hip = open(&[("GRAPHC_EMU_MEMORY_MIB", "64")]);
    let module = hip.module(&code).expect("loads");
    assert_eq!(hip.module(&other), Err(E::hipErrorNoBinaryForGpu));
    assert_eq!(hip.module(&[0u8; 64]), Err(E::hipErrorInvalidImage));
    assert_eq!(hip.function(module, "no_such_kernel"), Err(E::hipErrorNotFound));
    let function = hip.function(module, "scale").expect("is there");
    let (input, out) = (hip.upload(&ramp(256)), hip.malloc(1024));
    let arguments = (out, input, 1.0, 256);
    assert_eq!(
        hip.launch(function, 0, 256, null_mut(), arguments),
        E::hipErrorInvalidValue,
        "a grid of zero"
    );
    assert_eq!(
        hip.launch(function, 1, 0, null_mut(), arguments),
        E::hipErrorInvalidValue,
        "a block of zero"
    );
    assert_eq!(
        hip.launch(function, 1, 512, null_mut(), arguments),
        E::hipErrorLaunchFailure,
        "launch bounds of 256"
    );
    assert_eq!(
        hip.launch(0x77 as _, 1, 256, null_mut(), arguments),
        E::hipErrorInvalidHandle
    );
    let mut pointer = null_mut();
    // SAFETY: places for results; device pointers are only passed on.
    unsafe {
        assert_eq!(hip.hipMalloc(null_mut(), 16), E::hipErrorInvalidValue);
        assert_eq!(
            hip.hipMalloc(&mut pointer, 128 << 20),
            E::hipErrorOutOfMemory,
            "more than there is"
        );
        assert_eq!(hip.hipPeekAtLastError(), E::hipErrorOutOfMemory);
        assert_eq!(
            (hip.hipGetLastError(), hip.hipGetLastError()),
            (E::hipErrorOutOfMemory, OK)
        );
        assert_eq!(hip.hipFree(out), OK);
        assert_eq!(hip.hipFree(out), E::hipErrorInvalidValue, "a double free");
        assert_eq!(
            hip.hipFree(input.wrapping_byte_add(4)),
            E::hipErrorInvalidValue,
            "not the start"
        );
        let mut host = [0f32; 512];
        assert_eq!(
            hip.hipMemcpy(host.as_mut_ptr().cast(), input, 2048, D2H),
            E::hipErrorInvalidValue,
            "too much"
        );
        assert_eq!(
            hip.hipMemcpy(host.as_mut_ptr().cast(), input, 4, H2D),
            E::hipErrorInvalidMemcpyDirection
        );
        assert_eq!(hip.hipSetDevice(1), E::hipErrorInvalidDevice);
        assert_eq!(hip.hipModuleUnload(module), OK);
        assert_eq!(hip.hipModuleUnload(module), E::hipErrorInvalidHandle);
        let name = CStr::from_ptr(hip.hipGetErrorName(E::hipErrorOutOfMemory));
        assert_eq!(name.to_str(), Ok("hipErrorOutOfMemory"));
    }
    assert_eq!(
        hip.launch(function, 1, 256, null_mut(), arguments),
        E::hipErrorInvalidHandle,
        "its module is gone"
    );
}

#[test]
fn a_wild_access_is_an_illegal_address_and_stays_one() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let hip = open(&[]);
    let function = hip
        .function(hip.module(&code).expect("loads"), "unguarded")
        .expect("is there");
    let (input, out) = (hip.upload(&ramp(256)), hip.malloc(1000));
    assert_eq!(
        hip.launch(function, 1, 256, null_mut(), (out, input, 1.0, 256)),
        OK,
        "queued"
    );
    // SAFETY: no pointers, then a place for the result.
    unsafe {
        assert_eq!(
            hip.hipDeviceSynchronize(),
            E::hipErrorIllegalAddress,
            "six floats past the end"
        );
        let mut pointer = null_mut();
        assert_eq!(hip.hipMalloc(&mut pointer, 16), E::hipErrorIllegalAddress);
        assert_eq!(hip.hipDeviceReset(), OK);
        assert_eq!(hip.hipMalloc(&mut pointer, 16), OK);
    }
}

#[test]
fn faults_come_when_asked_for() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let hip = open(&[("GRAPHC_EMU_FAULTS", "malloc@3, launch@2")]);
    let (input, out) = (hip.upload(&ramp(256)), hip.malloc(1024));
    let mut pointer = null_mut();
    // SAFETY: a place for the result.
    assert_eq!(
        // SAFETY: the address is written to a local of its type.
        unsafe { hip.hipMalloc(&mut pointer, 16) },
        E::hipErrorOutOfMemory,
        "the third"
    );
    hip.malloc(16);
    let function = hip
        .function(hip.module(&code).expect("loads"), "scale")
        .expect("is there");
    assert_eq!(hip.launch(function, 1, 256, null_mut(), (out, input, 1.0, 256)), OK);
    assert!(hip.download(out, 256).is_ok());
    assert_eq!(
        hip.launch(function, 1, 256, null_mut(), (out, input, 1.0, 256)),
        OK,
        "fails only when it runs"
    );
    assert_eq!(hip.download(out, 256), Err(E::hipErrorLaunchFailure));
    let hip = open(&[("GRAPHC_EMU_FAULTS", "lost@4")]);
    hip.malloc(16);
    hip.malloc(16);
    // SAFETY: no pointers.
    unsafe {
        assert_eq!(
            hip.hipDeviceSynchronize(),
            E::hipErrorNoDevice,
            "the fourth call, hipInit among them"
        );
        assert_eq!(hip.hipDeviceSynchronize(), E::hipErrorNoDevice);
    }
}

#[test]
fn captured_work_runs_when_the_graph_is_launched() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    for seed in 0..4 {
        let hip = open(&[("GRAPHC_EMU_SEED", &seed.to_string())]);
        let function = hip
            .function(hip.module(&code).expect("loads"), "scale")
            .expect("is there");
        let (main, side, fork, join) = (hip.stream(), hip.stream(), hip.event(2), hip.event(2));
        let host = hip.pinned(256);
        let (a, b, c) = (hip.malloc(1024), hip.malloc(1024), hip.malloc(1024));
        let (mut graph, mut exec): (hipGraph_t, hipGraphExec_t) = (null_mut(), null_mut());
        // SAFETY: live handles, places for results, pinned memory that stays.
        unsafe {
            assert_eq!(
                hip.hipStreamBeginCapture(main, hipStreamCaptureMode::hipStreamCaptureModeGlobal),
                OK
            );
            assert_eq!(hip.hipMemcpyAsync(a, host.as_ptr().cast(), 1024, H2D, main), OK);
            assert_eq!(hip.hipEventRecord(fork, main), OK);
            assert_eq!(hip.hipStreamWaitEvent(side, fork, 0), OK);
            assert_eq!(hip.launch(function, 1, 256, side, (b, a, 2.0, 256)), OK);
            assert_eq!(hip.hipMemsetAsync(c, 0, 1024, main), OK);
            assert_eq!(hip.hipEventRecord(join, side), OK);
            assert_eq!(hip.hipStreamWaitEvent(main, join, 0), OK);
            assert_eq!(hip.launch(function, 1, 256, main, (c, b, 10.0, 256)), OK);
            assert_eq!(hip.hipStreamEndCapture(main, &mut graph), OK);
            assert_eq!(hip.hipGraphInstantiate(&mut exec, graph, null_mut(), null_mut(), 0), OK);
            let mut count = 0;
            assert_eq!(hip.hipGraphGetNodes(graph, null_mut(), &mut count), OK);
            assert_eq!(count, 4);
            assert_eq!(hip.hipGraphDestroy(graph), OK);
            for round in 1..3 {
                host.fill(round as f32);
                assert_eq!(hip.hipGraphLaunch(exec, main), OK);
                assert_eq!(hip.hipStreamSynchronize(main), OK);
                let got = hip.download(c, 256).expect("downloads");
                assert_eq!(got, vec![(round as f32 * 2.0 + 1.0) * 10.0 + 1.0; 256], "seed {seed}");
            }
            // A side stream that is never joined, and a wait in the middle, spoil a capture.
            assert_eq!(
                hip.hipStreamBeginCapture(main, hipStreamCaptureMode::hipStreamCaptureModeGlobal),
                OK
            );
            assert_eq!(hip.hipEventRecord(fork, main), OK);
            assert_eq!(hip.hipStreamWaitEvent(side, fork, 0), OK);
            assert_eq!(hip.launch(function, 1, 256, side, (b, a, 2.0, 256)), OK);
            assert_eq!(
                hip.hipStreamEndCapture(main, &mut graph),
                E::hipErrorStreamCaptureUnjoined
            );
            assert_eq!(
                hip.hipStreamBeginCapture(main, hipStreamCaptureMode::hipStreamCaptureModeGlobal),
                OK
            );
            assert_eq!(hip.hipStreamSynchronize(main), E::hipErrorStreamCaptureUnsupported);
            assert_eq!(
                hip.hipStreamEndCapture(main, &mut graph),
                E::hipErrorStreamCaptureInvalidated
            );
            assert_eq!(hip.hipGraphExecDestroy(exec), OK);
            assert_eq!(hip.hipGraphLaunch(exec, main), E::hipErrorInvalidValue);
        }
    }
}

#[test]
fn devices_memory_and_facts() {
    let hip = open(&[("GRAPHC_EMU_ARCH", "gfx90a,gfx1100"), ("GRAPHC_EMU_MEMORY_MIB", "32")]);
    let (mut count, mut wave, mut name) = (0, 0, [0 as c_char; 64]);
    let (mut free, mut total) = (0usize, 0usize);
    // SAFETY: places for results; the peer copy's ends have the size.
    unsafe {
        assert_eq!(hip.hipGetDeviceCount(&mut count), OK);
        assert_eq!(count, 2);
        for (device, want) in [(0, 64), (1, 32)] {
            let attribute = hip_sys::hipDeviceAttribute_t::hipDeviceAttributeWarpSize;
            assert_eq!(hip.hipDeviceGetAttribute(&mut wave, attribute, device), OK);
            assert_eq!(wave, want);
        }
        assert_eq!(hip.hipDeviceGetName(name.as_mut_ptr(), 64, 1), OK);
        assert_eq!(CStr::from_ptr(name.as_ptr()).to_str(), Ok("graphc emulated gfx1100"));
        let first = hip.upload(&ramp(256));
        assert_eq!(hip.hipMemGetInfo(&mut free, &mut total), OK);
        assert_eq!((total, total - free), (32 << 20, 1024));
        assert_eq!(hip.hipSetDevice(1), OK);
        let second = hip.malloc(1024);
        assert_eq!(hip.hipMemcpyPeerAsync(second, 1, first, 0, 1024, null_mut()), OK);
        assert_eq!(hip.download(second, 256).expect("downloads"), ramp(256));
        let mut kind = 0u32;
        let attribute = hip_sys::hipPointer_attribute::HIP_POINTER_ATTRIBUTE_MEMORY_TYPE;
        assert_eq!(
            hip.hipPointerGetAttribute((&raw mut kind).cast(), attribute, second),
            OK
        );
        assert_eq!(kind, 2);
        let mut stack = 0u32;
        let pageable = (&raw mut stack).cast();
        assert_eq!(
            hip.hipPointerGetAttribute((&raw mut kind).cast(), attribute, pageable),
            E::hipErrorInvalidValue
        );
        assert_eq!(hip.hipMemsetD32Async(second, 0x3f80_0000, 256, null_mut()), OK);
        assert_eq!(hip.download(second, 256).expect("downloads"), vec![1.0; 256]);
        assert_eq!(hip.hipModuleLoadData(&mut null_mut(), null()), E::hipErrorInvalidValue);
        hip.hipSetDevice(0);
    }
}

#[test]
fn stream_ordered_memory_is_freed_in_order() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let hip = open(&[]);
    let function = hip
        .function(hip.module(&code).expect("loads"), "scale")
        .expect("is there");
    let stream = hip.stream();
    let (out, mut scratch) = (hip.malloc(1024), null_mut());
    // SAFETY: live handles, a place for the result.
    unsafe {
        assert_eq!(hip.hipMallocAsync(&mut scratch, 1024, stream), OK);
        assert_eq!(hip.hipMemsetAsync(scratch, 0, 1024, stream), OK);
        assert_eq!(hip.launch(function, 1, 256, stream, (out, scratch, 1.0, 256)), OK);
        assert_eq!(hip.hipFreeAsync(scratch, stream), OK);
        assert_eq!(hip.hipStreamSynchronize(stream), OK);
        // A kernel after the free is a use after free.
        assert_eq!(hip.launch(function, 1, 256, stream, (out, scratch, 1.0, 256)), OK);
        assert_eq!(hip.hipStreamSynchronize(stream), E::hipErrorIllegalAddress);
    }
}

#[test]
fn a_ready_graph_takes_the_arguments_of_one_of_the_same_shape() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let hip = open(&[]);
    let function = hip
        .function(hip.module(&code).expect("loads"), "scale")
        .expect("is there");
    let stream = hip.stream();
    let (input, out) = (hip.upload(&ramp(256)), hip.malloc(1024));
    let captured = |scale: f32, launches: usize| {
        let mut graph: hipGraph_t = null_mut();
        // SAFETY: live handles and a place for the result.
        unsafe {
            assert_eq!(
                hip.hipStreamBeginCapture(stream, hipStreamCaptureMode::hipStreamCaptureModeGlobal),
                OK
            );
            for _ in 0..launches {
                assert_eq!(hip.launch(function, 1, 256, stream, (out, input, scale, 256)), OK);
            }
            assert_eq!(hip.hipStreamEndCapture(stream, &mut graph), OK);
        }
        graph
    };
    let run = |exec: hipGraphExec_t| {
        // SAFETY: a live graph and stream.
        unsafe {
            assert_eq!(hip.hipGraphLaunch(exec, stream), OK);
            assert_eq!(hip.hipStreamSynchronize(stream), OK);
        }
        hip.download(out, 256).expect("downloads")[7]
    };
    let (first, second, longer) = (captured(2.0, 1), captured(3.0, 1), captured(4.0, 2));
    let mut exec: hipGraphExec_t = null_mut();
    let mut node: hip_sys::hipGraphNode_t = null_mut();
    let mut verdict = hip_sys::hipGraphExecUpdateResult::hipGraphExecUpdateError;
    // SAFETY: live graphs and places for the results.
    unsafe {
        assert_eq!(hip.hipGraphInstantiate(&mut exec, first, null_mut(), null_mut(), 0), OK);
        assert_eq!(run(exec), 15.0);
        assert_eq!(hip.hipGraphExecUpdate(exec, second, &mut node, &mut verdict), OK);
        assert_eq!(verdict, hip_sys::hipGraphExecUpdateResult::hipGraphExecUpdateSuccess);
        assert_eq!(run(exec), 22.0);
        assert_eq!(
            hip.hipGraphExecUpdate(exec, longer, &mut node, &mut verdict),
            E::hipErrorGraphExecUpdateFailure
        );
        assert_eq!(
            verdict,
            hip_sys::hipGraphExecUpdateResult::hipGraphExecUpdateErrorTopologyChanged
        );
    }
    assert_eq!(run(exec), 22.0, "a refused update changes nothing");
}

#[test]
fn occupancy_is_what_registers_and_lds_allow() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let hip = open(&[("GRAPHC_EMU_ARCH", "gfx90a")]);
    let function = hip
        .function(hip.module(&code).expect("loads"), "scale")
        .expect("is there");
    let blocks = |block: i32, shared: usize| {
        let mut blocks = -1;
        // SAFETY: a live function and a place for the result.
        let status =
            unsafe { hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, block, shared) };
        (status, blocks)
    };
    // A compute unit of gfx90a: 4 SIMDs of 8 waves of 64, and 64 KiB of LDS. The kernel needs few registers.
    assert_eq!(blocks(256, 0), (OK, 8));
    assert_eq!(blocks(64, 0), (OK, 32));
    assert_eq!(blocks(65, 0), (OK, 16), "a part of a wave is a wave");
    assert_eq!(blocks(256, 16 << 10), (OK, 4));
    assert_eq!(blocks(256, (64 << 10) + 1), (OK, 0));
    assert_eq!(blocks(0, 0).0, E::hipErrorInvalidValue);
    let (mut grid, mut block) = (0, 0);
    // SAFETY: as above.
    let status = unsafe { hip.hipModuleOccupancyMaxPotentialBlockSize(&mut grid, &mut block, function, 0, 0) };
    let mut units = 0;
    let attribute = hip_sys::hipDeviceAttribute_t::hipDeviceAttributeMultiprocessorCount;
    // SAFETY: a place for the result.
    assert_eq!(unsafe { hip.hipDeviceGetAttribute(&mut units, attribute, 0) }, OK);
    // The kernel's launch bounds allow 256; 8 such blocks fill a compute unit.
    assert_eq!((status, block, grid), (OK, 256, 8 * units));
}

/// A loop without an end, and grids that no dispatch can hold.
#[test]
fn endless_loops_and_deep_grids_are_refused() {
    let source = r#"
extern "C" __global__ void endless(volatile int* p) { while (*p == 0) ; }
extern "C" __global__ void sleeping(volatile int* p) { while (*p == 0) __builtin_amdgcn_s_sleep(1); }
"#;
    let Some(code) = compile(source, "gfx90a") else { return };
    for kernel in ["endless", "sleeping"] {
        let hip = open(&[("GRAPHC_EMU_INSTRUCTION_LIMIT", "60000")]);
        let module = hip.module(&code).expect("loads");
        let function = hip.function(module, kernel).expect("is there");
        let mut flag = hip.upload(&[0.0]);
        let mut params: [*mut c_void; 1] = [(&raw mut flag).cast()];
        let none = null_mut();
        for grid in [[1, 65_536, 1], [1, 1, 65_536]] {
            let [x, y, z] = grid;
            // SAFETY: a pointer for the kernel's one argument, alive during the call.
            let status = unsafe {
                hip.hipModuleLaunchKernel(function, x, y, z, 64, 1, 1, 0, none, params.as_mut_ptr(), null_mut())
            };
            assert_eq!(status, E::hipErrorInvalidValue, "{grid:?}");
        }
        // SAFETY: as above.
        unsafe {
            let status =
                hip.hipModuleLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, none, params.as_mut_ptr(), null_mut());
            assert_eq!(status, E::hipSuccess);
            assert_eq!(hip.hipDeviceSynchronize(), E::hipErrorLaunchTimeOut, "{kernel}");
        }
    }
}

/// What tests steer the library by: calls that fail by name and code, devices that break, counts, and a new beginning.
#[test]
fn tests_steer_it() {
    type List = unsafe extern "C" fn(*const c_char) -> c_int;
    type Lines = unsafe extern "C" fn(*mut c_char, c_int) -> c_int;
    let hip = open(&[]);
    let (set, restart): (List, unsafe extern "C" fn() -> c_int) =
        (hip.symbol("graphcEmuSetFaults"), hip.symbol("graphcEmuRestart"));
    // SAFETY: a C string.
    let set = |list: &str| unsafe { set(CString::new(list).expect("no zero").as_ptr()) };
    let lines = |name: &str| {
        let write: Lines = hip.symbol(name);
        let mut text = vec![0u8; 4096];
        // SAFETY: room as is said.
        assert_eq!(unsafe { write(text.as_mut_ptr().cast(), 4096) }, 0);
        // SAFETY: as above; one byte has no room for a line.
        assert_ne!(unsafe { write(text.clone().as_mut_ptr().cast(), 1) }, 0);
        CStr::from_bytes_until_nul(&text)
            .expect("a zero")
            .to_str()
            .expect("text")
            .to_owned()
    };
    assert_eq!(
        set("hipMalloc@2=hipErrorInvalidValue, hipStreamCreate@1!hipErrorLaunchFailure"),
        0
    );
    assert_ne!(set("hipMalloc@2=EINVAL"), 0);
    let mut pointer = null_mut();
    let mut stream = null_mut();
    // SAFETY: places for the results; the pointer was given by the library.
    unsafe {
        assert_eq!(hip.hipMalloc(&mut pointer, 16), OK);
        assert_eq!(hip.hipMalloc(&mut pointer, 16), E::hipErrorInvalidValue, "the second");
        assert_eq!(hip.hipFree(pointer), OK);
        assert_eq!(hip.hipMalloc(&mut pointer, 16), OK, "the third");
        assert!(
            lines("graphcEmuCalls").contains("hipMalloc 3\n"),
            "{}",
            lines("graphcEmuCalls")
        );
        assert!(
            lines("graphcEmuLive").contains("device_bytes 16\n"),
            "{}",
            lines("graphcEmuLive")
        );
        assert_eq!(hip.hipStreamCreateWithFlags(&mut stream, 0), OK, "another function");
        let create: unsafe extern "C" fn(*mut hipStream_t) -> hipError_t = hip.symbol("hipStreamCreate");
        assert_eq!(create(&mut stream), E::hipErrorLaunchFailure);
        assert_eq!(
            hip.hipMalloc(&mut pointer, 16),
            E::hipErrorLaunchFailure,
            "the device broke"
        );
        assert_eq!(restart(), 0);
        let live = lines("graphcEmuLive");
        assert!(live.lines().all(|line| line.ends_with(" 0")), "{live}");
        assert_eq!(
            hip.hipStreamDestroy(stream),
            E::hipErrorInvalidHandle,
            "handles of before are none"
        );
        assert_eq!(hip.hipMalloc(&mut pointer, 16), OK);
        assert_eq!(set("hipMalloc@1!hipErrorNoDevice"), 0);
        assert_eq!(hip.hipMalloc(&mut pointer, 16), E::hipErrorNoDevice);
        assert_eq!(hip.hipDeviceSynchronize(), E::hipErrorNoDevice, "it is gone");
    }
}

/// A kernel that is never done: queries say so for ever, and what waits for it is counted.
#[test]
fn work_that_hangs_is_never_done() {
    let Some(code) = compile(SOURCE, "gfx90a") else { return };
    let hip = open(&[("GRAPHC_EMU_FAULTS", "hang@1")]);
    let (input, out) = (hip.upload(&ramp(256)), hip.malloc(1024));
    let function = hip
        .function(hip.module(&code).expect("loads"), "scale")
        .expect("is there");
    let mut stream = null_mut();
    // SAFETY: places for the results; the handles are the library's own.
    unsafe {
        assert_eq!(hip.hipStreamCreateWithFlags(&mut stream, 1), OK);
        assert_eq!(hip.launch(function, 1, 256, stream, (out, input, 1.0, 256)), OK);
        for _ in 0..100 {
            assert_eq!(hip.hipStreamQuery(stream), E::hipErrorNotReady);
        }
        // Other streams go on.
        assert_eq!(hip.launch(function, 1, 256, null_mut(), (out, input, 2.0, 256)), OK);
        assert_eq!(hip.hipStreamSynchronize(null_mut()), OK);
        assert_eq!(hip.hipStreamSynchronize(stream), E::hipErrorUnknown);
    }
    let write: unsafe extern "C" fn(*mut c_char, c_int) -> c_int = hip.symbol("graphcEmuLive");
    let mut text = vec![0u8; 4096];
    // SAFETY: room as is said.
    assert_eq!(unsafe { write(text.as_mut_ptr().cast(), 4096) }, 0);
    assert!(String::from_utf8_lossy(&text).contains("blocked 1\n"));
}
