//! Each call of RCCL failed once, on each rank: an error says which call of which rank it was, no rank waits for ever,
//! and nothing is left of what was made; devices that are opened again compute the right thing.

use std::ffi::{CStr, CString, c_char, c_int};

use graphc::passes::ShardOptions;
use graphc_tests::emulated_hip::options_of;

use super::*;

/// The stand-in for RCCL, steered.
struct Rccl(libloading::Library);

impl Rccl {
    fn of(hip: &EmulatedHip) -> Rccl {
        // SAFETY: the stand-in, which the runtime opens by the same name.
        Rccl(unsafe { libloading::Library::new(hip.folder().join("librccl.so.1")) }.expect("it is there"))
    }

    fn fail(&self, fault: Option<(&CStr, usize, u64, u32)>) {
        type Fail = unsafe extern "C" fn(*const c_char, usize, u64, u32);
        // SAFETY: the function's own signature, and a C string.
        unsafe {
            let fail: libloading::Symbol<'_, Fail> = self.0.get(c"graphc_rccl_fail").expect("it has it");
            match fault {
                None => fail(std::ptr::null(), 0, 0, 0),
                Some((name, rank, number, code)) => fail(name.as_ptr(), rank, number, code),
            }
        }
    }

    fn calls(&self, name: &CStr, rank: usize) -> u64 {
        // SAFETY: as above.
        unsafe {
            let calls: libloading::Symbol<'_, unsafe extern "C" fn(*const c_char, usize) -> u64> =
                self.0.get(c"graphc_rccl_calls").expect("it has it");
            calls(name.as_ptr(), rank)
        }
    }

    /// Refuses every sum and join of rank 1, or none.
    fn refuse(&self, refuse: bool) {
        // SAFETY: as above.
        unsafe {
            let plant: libloading::Symbol<'_, unsafe extern "C" fn(c_int)> =
                self.0.get(c"graphc_rccl_plant").expect("it has it");
            plant(if refuse { 3 } else { 0 });
        }
    }

    fn live(&self) -> i64 {
        // SAFETY: as above.
        unsafe {
            let live: libloading::Symbol<'_, unsafe extern "C" fn() -> i64> =
                self.0.get(c"graphc_rccl_live").expect("it has it");
            live()
        }
    }
}

/// A sum, and parts that are joined.
fn model() -> Graph {
    let weight = |seed: u32, rows: usize, columns: usize| {
        let values: Vec<f32> = numbers(rows * columns, seed).iter().map(|v| v * 0.2).collect();
        Tensor::from_slice(&values, [rows, columns])
    };
    let x = InputSpec::new("x", DType::F32, shape![2, 16]);
    trace("model", [x], |[x]| {
        let h = x.matmul(&weight(1, 16, 32)).relu().matmul(&weight(2, 32, 16));
        [("y", h.layer_norm(None, None, 1e-5).matmul(&weight(3, 16, 96)))]
    })
    .expect("records")
}

/// Everything that divides is shared.
fn sharing() -> ShardOptions {
    ShardOptions {
        bus_gbps: 1e6,
        latency_us: 0.02,
        ..ShardOptions::new(2)
    }
}

/// The functions that the runtime calls, as its source has them.
fn table() -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository("runtime/src/library/rccl.rs")).expect("the calls");
    let words: String = text.split_whitespace().collect();
    let name = |at: usize| {
        words[at..]
            .split(|c: char| !c.is_alphanumeric())
            .next()
            .unwrap_or("")
            .to_owned()
    };
    let found = words.match_indices(".api.nccl").map(|(at, _)| name(at + ".api.".len()));
    // A text that is asked for.
    found.filter(|name| name != "ncclGetErrorString").collect()
}

#[test]
fn every_call_of_rccl_on_every_rank() {
    const SYSTEM_ERROR: u32 = 2;
    let Some(control) = Control::new(&[("GRAPHC_EMU_DEVICES", "2")]) else {
        return;
    };
    let (hip, rccl) = (&control.hip, Rccl::of(&control.hip));
    let x = host(&numbers(32, 9), &[2, 16]);
    // Compiled once: what is compiled is no call of RCCL's.
    let program = {
        let mut options = BuildOptions::new(vec!["gfx90a".parse().expect("a target")], OptLevel::O2);
        options.ranks = Some(sharing());
        let mut program = build(&model(), &options).expect("builds").program;
        compile(&mut program);
        Arc::new(program)
    };
    let open = || {
        let options = options_of(hip.open_ranks(2).expect("they are there"));
        Session::of_program(program.clone(), &options).map_err(runtime_error)
    };
    let whole = Session::compile(model(), &SessionOptions::default()).expect("it compiles");
    let want = whole.run(&[("x", &x)]).expect("it runs")["y"].to_f32();
    let right = |session: &Session| -> Result<(), RuntimeError> {
        let outputs = session.run(&[("x", &x)]).map_err(runtime_error)?;
        close(&outputs["y"].to_f32(), &want);
        Ok(())
    };
    // What a program of two runs calls.
    rccl.fail(None);
    {
        let session = open().expect("it compiles");
        (0..2).for_each(|_| right(&session).expect("it runs"));
    }
    let names = table();
    let mut faults: Vec<(CString, usize, u64)> = Vec::new();
    for name in &names {
        let name = CString::new(name.as_str()).expect("no zero");
        for rank in 0..2 {
            faults.extend((1..=rccl.calls(&name, rank)).map(|number| (name.clone(), rank, number)));
        }
    }
    let met: BTreeSet<&str> = faults.iter().map(|(name, ..)| name.to_str().expect("a name")).collect();
    // Communicators are aborted only after a failure: those calls are failed with the first sum.
    let all: BTreeSet<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| *name != "ncclCommAbort")
        .collect();
    assert_eq!(met, all, "every function is met");
    assert!(control.live().is_empty() && rccl.live() == 0, "{:?}", control.live());
    for (name, rank, number) in &faults {
        let what = format!("{name:?} of rank {rank}, call {number}");
        rccl.fail(Some((name, *rank, *number, SYSTEM_ERROR)));
        let ran = open().and_then(|session| {
            let ran = (0..2).try_for_each(|_| right(&session));
            if let Err(error) = &ran {
                assert!(
                    matches!(error, RuntimeError::Rank { rank: of, .. } if of == rank),
                    "{what}: {error}"
                );
                let later = right(&session).expect_err("they do not compute together");
                assert!(matches!(later, RuntimeError::RanksEnded { .. }), "{what}: {later}");
                // The other rank was let go, and both left.
                assert_eq!(
                    (rccl.calls(c"ncclCommAbort", 0), rccl.calls(c"ncclCommAbort", 1)),
                    (1, 1),
                    "{what}"
                );
            }
            ran
        });
        match ran {
            Ok(()) => assert_eq!(name.as_c_str(), c"ncclCommDestroy", "{what}: nobody was told"),
            Err(error) => {
                let said = error.to_string();
                assert!(
                    said.contains(name.to_str().expect("a name")) && said.contains("system error"),
                    "{what}: {said}"
                );
            }
        }
        rccl.fail(None);
        assert!(
            control.live().is_empty() && rccl.live() == 0,
            "{what} left {:?}, {}",
            control.live(),
            rccl.live()
        );
        open()
            .and_then(|session| right(&session))
            .unwrap_or_else(|error| panic!("after {what}: {error}"));
    }
    // An end that fails is still the end, and what is said is the failure before it.
    for rank in 0..2 {
        rccl.refuse(true);
        rccl.fail(Some((c"ncclCommAbort", rank, 1, SYSTEM_ERROR)));
        let error = open()
            .and_then(|session| right(&session))
            .expect_err("rank 1 is refused");
        assert!(matches!(error, RuntimeError::Rank { rank: 1, .. }), "{error}");
        assert!(error.to_string().contains("nccl"), "{error}");
        rccl.refuse(false);
        rccl.fail(None);
        assert!(control.live().is_empty() && rccl.live() == 0, "{:?}", control.live());
        open().and_then(|session| right(&session)).expect("it runs");
    }
}
