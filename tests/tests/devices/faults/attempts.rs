//! What must hold of a program when one call of the driver fails: see [`sweep`].

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use graphc::runtime::RuntimeError;
use graphc::runtime::gpu::GpuDevice;

use super::control::Control;

/// Of calls that are made more often than twice as often as this, so many are failed from the first on, as many to the
/// last, and as many between; `GRAPHC_ALL_FAULTS=1` takes all.
const SAMPLED: u64 = 2;

/// What a failed call stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// That call alone gives the code.
    Once(&'static str),
    /// It and all later ones give it: a fault on the device, which is there to stay.
    Broken,
    /// The device is gone.
    Gone,
    /// Not the call, but what it queued: the kernel or the copy fails when it runs, which is there to stay.
    Later,
}

const EFFECTS: [Effect; 4] = [
    Effect::Once("hipErrorOutOfMemory"),
    Effect::Once("hipErrorInvalidValue"),
    Effect::Broken,
    Effect::Gone,
];

impl Effect {
    /// The code that a call gives; what fails later gives that of its kind.
    fn code(self, call: &str) -> &'static str {
        match self {
            Effect::Later if call == "copy" => "hipErrorUnknown",
            Effect::Later => "hipErrorLaunchFailure",
            Effect::Once(code) => code,
            Effect::Broken => "hipErrorLaunchFailure",
            Effect::Gone => "hipErrorNoDevice",
        }
    }
}

/// One call that fails.
#[derive(Clone, Debug)]
pub struct Fault {
    pub call: String,
    pub number: u64,
    pub effect: Effect,
}

impl Fault {
    /// As `GRAPHC_EMU_FAULTS` has it.
    fn text(&self) -> String {
        let sign = match self.effect {
            Effect::Once(_) => "=",
            Effect::Broken | Effect::Gone => "!",
            Effect::Later => return format!("{}@{}", self.call, self.number),
        };
        format!("{}@{}{sign}{}", self.call, self.number, self.code())
    }

    pub fn code(&self) -> &'static str {
        self.effect.code(&self.call)
    }

    fn is_of_memory(&self) -> bool {
        self.effect == Effect::Once("hipErrorOutOfMemory")
    }

    /// Whether a failure of the call need not be anybody's error: the program goes on without what was asked for.
    fn may_be_silent(&self) -> bool {
        let ends = ["Free", "Destroy", "Unload"]
            .iter()
            .any(|part| self.call.contains(part));
        // Runs that cannot be captured are enqueued step by step.
        let captures = ["Capture", "Graph"].iter().any(|part| self.call.contains(part));
        let memory = self.is_of_memory() && self.call.contains("Malloc");
        // What a run needs to know of the device while it is looked after is asked again by who waits for it.
        // Whatever ends sends its thread to the device first, and is ended where that fails, too.
        let asks = ["hipSetDevice", "hipEventQuery", "hipMemGetInfo"].contains(&self.call.as_str());
        ends || captures || memory || asks
    }
}

/// What a program does on a device, each thing by [`Attempts::go`].
pub type Scenario<'a> = dyn Fn(&Arc<GpuDevice>, &mut Attempts<'_>) + 'a;

/// A program that meets at most one fault.
pub struct Attempts<'a> {
    control: &'a Control,
    fault: Option<Fault>,
    errors: Vec<RuntimeError>,
    lost: bool,
    /// Why a failure need not have been told: runs are enqueued step by step since, or nobody asked for the run.
    excuse: Option<&'static str>,
}

/// Takes the runtime's error out of what a program gets.
pub fn runtime_error(error: graphc::Error) -> RuntimeError {
    match error {
        graphc::Error::Runtime(error) => error,
        other => panic!("not the runtime's: {other}"),
    }
}

impl Attempts<'_> {
    /// Whether there is a fault that the program may have met.
    pub fn met(&self) -> bool {
        self.fault.is_some()
    }

    /// Whether the device was said to be lost.
    pub fn lost(&self) -> bool {
        self.lost
    }

    /// Says why a failure need not have been told.
    pub fn excuse(&mut self, why: &'static str) {
        self.excuse = Some(why);
    }

    /// Does something. Where it fails it must say so properly, and go well the next time, unless the device is lost:
    /// then everything says that, and nothing more is asked of the driver.
    pub fn go<T>(&mut self, what: &str, mut f: impl FnMut() -> Result<T, RuntimeError>) -> Option<T> {
        if self.lost {
            return self.stays_lost(what, f);
        }
        let error = match f() {
            Ok(done) => return Some(done),
            Err(error) => error,
        };
        let context = || format!("{what} with {:?}: {error}", self.fault);
        let fault = self
            .fault
            .clone()
            .unwrap_or_else(|| panic!("without a fault: {}", context()));
        let text = error.to_string();
        let once = matches!(fault.effect, Effect::Once(_));
        match &error {
            RuntimeError::DeviceLost { .. } => {
                assert!(!once, "{}", context());
                assert!(text.contains(fault.code()), "{}", context());
                self.lost = true;
            }
            RuntimeError::Device { call, code, .. } => {
                assert_eq!(code, fault.code(), "{}", context());
                assert!(!once || *call == fault.call, "{}", context());
            }
            RuntimeError::OutOfDeviceMemory(short) => {
                assert!(short.asked > 0 && fault.is_of_memory(), "{}", context());
            }
            RuntimeError::OutOfPinnedMemory { call, code, .. } => {
                assert!(*call == fault.call && code == fault.code(), "{}", context());
            }
            _ => panic!("no error of a device: {}", context()),
        }
        assert!(
            self.errors.is_empty(),
            "the second error: {}; {:?}",
            context(),
            self.errors
        );
        self.errors.push(error);
        if once {
            let again = f();
            return Some(again.unwrap_or_else(|again| panic!("{what}, again after {fault:?}: {again}")));
        }
        self.lost = true;
        self.stays_lost(what, f)
    }

    fn stays_lost<T>(&self, what: &str, mut f: impl FnMut() -> Result<T, RuntimeError>) -> Option<T> {
        let before = self.control.calls();
        match f() {
            Ok(_) => panic!("{what}: the device is lost by {:?}, but this went well", self.fault),
            Err(RuntimeError::DeviceLost { .. }) => {}
            Err(other) => panic!("{what}: the device is lost by {:?}, but this says {other}", self.fault),
        }
        assert_eq!(
            self.control.calls(),
            before,
            "{what}: a lost device is asked, {:?}",
            self.fault
        );
        None
    }
}

/// Runs a scenario without a fault, and says how often each function was called.
pub fn count(control: &Control, scenario: &Scenario<'_>) -> BTreeMap<String, u64> {
    run(control, scenario, None)
}

/// Runs a scenario once for each call that it makes (or some of them), which fails, with each [`Effect`]:
///
/// - an error names the call and its code, and what was asked for next goes well; or the device is said lost from then
///   on;
/// - nothing is left behind: memory, streams, events, modules, graphs, captures;
/// - a failure that nobody is told of is one that the program can do without.
///
/// Returns how many faults there were.
pub fn sweep(control: &Control, name: &str, scenario: &Scenario<'_>) -> usize {
    sweep_within(control, name, scenario, None)
}

/// As [`sweep`], with a timeout that is never over: the device is asked for what it would be waited for else.
pub fn sweep_within(control: &Control, name: &str, scenario: &Scenario<'_>, timeout: Option<Duration>) -> usize {
    let all = std::env::var_os("GRAPHC_ALL_FAULTS").is_some();
    let calls = run(control, scenario, timeout);
    let (mut faults, mut told, mut lost) = (0, 0, 0);
    let mut wrong = Vec::new();
    for (call, count) in &calls {
        for number in 1..=*count {
            let between = *count > 3 * SAMPLED && (number - 1) % (count / SAMPLED) == 0;
            if !all && number > SAMPLED && number + SAMPLED <= *count && !between {
                continue;
            }
            for effect in EFFECTS {
                let fault = Fault {
                    call: call.clone(),
                    number,
                    effect,
                };
                faults += 1;
                // Each finding is its own, and all are told.
                match catch_unwind(AssertUnwindSafe(|| run_with(control, scenario, fault.clone(), timeout))) {
                    Ok((errors, gone)) => {
                        told += usize::from(errors > 0);
                        lost += usize::from(gone);
                    }
                    Err(_) => wrong.push(fault.text()),
                }
            }
        }
    }
    // What runs on the device and fails there: all of it, or Fibonacci's numbers as far as there are launches and
    // copies.
    for kind in ["launch", "copy"] {
        let mut numbers = (1, 2);
        loop {
            let fault = Fault {
                call: kind.to_owned(),
                number: numbers.0,
                effect: Effect::Later,
            };
            match catch_unwind(AssertUnwindSafe(|| run_with(control, scenario, fault.clone(), timeout))) {
                Ok((0, false)) => break,
                Ok(_) => (told, lost) = (told + 1, lost + 1),
                Err(_) => wrong.push(fault.text()),
            }
            faults += 1;
            numbers = match all {
                true => (numbers.1, numbers.1 + 1),
                false => (numbers.1, numbers.0 + numbers.1),
            };
        }
        assert!(numbers.0 > 2, "{name}: no {kind}");
    }
    assert!(
        wrong.is_empty(),
        "{name}: {} of {faults} faults: {wrong:#?}",
        wrong.len()
    );
    println!(
        "{name}: {faults} faults in {} functions, {told} told, {lost} devices lost",
        calls.len()
    );
    faults
}

fn run(control: &Control, scenario: &Scenario<'_>, timeout: Option<Duration>) -> BTreeMap<String, u64> {
    control.restart();
    let device = Arc::new(control.hip.open(0).expect("a device"));
    device.set_timeout(timeout);
    control.set_faults("");
    let mut attempts = Attempts {
        control,
        fault: None,
        errors: Vec::new(),
        lost: false,
        excuse: None,
    };
    scenario(&device, &mut attempts);
    drop(device);
    assert_eq!(control.live(), BTreeMap::new(), "kept without a fault");
    control.calls()
}

/// How many errors there were, and whether the device was lost.
fn run_with(control: &Control, scenario: &Scenario<'_>, fault: Fault, timeout: Option<Duration>) -> (usize, bool) {
    control.restart();
    let device = Arc::new(control.hip.open(0).expect("a device"));
    device.set_timeout(timeout);
    control.set_faults(&fault.text());
    let mut attempts = Attempts {
        control,
        fault: Some(fault.clone()),
        errors: Vec::new(),
        lost: false,
        excuse: None,
    };
    scenario(&device, &mut attempts);
    drop(device);
    let called = control.calls().get(&fault.call).copied().unwrap_or(0);
    assert!(
        called >= fault.number || fault.effect == Effect::Later,
        "{fault:?} was never met"
    );
    if attempts.errors.is_empty() && fault.effect != Effect::Later {
        let broken = !matches!(fault.effect, Effect::Once(_));
        // A device that breaks at the very end is nobody's concern.
        assert!(
            fault.may_be_silent() || attempts.excuse.is_some() || broken && called == fault.number,
            "{fault:?} was told nobody"
        );
    }
    let mut live = control.live();
    assert!(!live.contains_key("blocked"), "{fault:?}: waited for ever");
    if matches!(fault.effect, Effect::Once(_)) {
        // What could not be ended is there still, and nothing else is. Modules and graphs hold their kernels' code.
        let kept = match fault.call.as_str() {
            "hipFree" => "device_bytes",
            "hipHostFree" => "pinned",
            "hipStreamDestroy" => "streams",
            "hipEventDestroy" => "events",
            "hipModuleUnload" => "modules",
            "hipGraphDestroy" => "graphs",
            "hipGraphExecDestroy" => "execs",
            _ => "nothing",
        };
        let left = live.remove(kept);
        assert!(
            kept == "device_bytes" || left.is_none_or(|left| left == 1),
            "{fault:?}: {left:?} {kept}"
        );
        if ["modules", "graphs", "execs"].contains(&kept) {
            live.remove("device_bytes");
        }
        assert_eq!(live, BTreeMap::new(), "{fault:?}: kept");
    }
    (attempts.errors.len(), attempts.lost)
}
