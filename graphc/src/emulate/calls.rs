//! Library calls on the emulated GPU: the vendor's own library runs in a process of its own, over the stand-in HIP
//! runtime, and the launches that it makes are timed there.
//!
//! Before: calls with known sizes. After: for each the reports of its kernels in order, or why there are none. Each
//! call is a program of one step; it runs twice, and what the second run launches is the call's (the first compiles and
//! chooses).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use emu::Arch;
use emu::timing::{Report, gpu_of};
use ir::dim::DimError;
use ir::graph::Stage;
use ir::library::{Algorithm, LibraryCall};
use ir::plan::{BufferId, StepId, Work};
use ir::program::Variant;
use ir::program::artifact::Check;
use ir::{Bindings, Graph, HostTensor, Op, Origin, Plan, Program, Storage, Target, TensorType};
use passes::{PlanOptions, ScheduleOptions};
use runtime::gpu::Vendor;
use runtime::{Executable, LoadOptions};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::options::{EMULATOR_REPORTS, MIOPEN_ASSEMBLY, Settings};

/// What a call's kernels took, or why that is not known.
pub type CallTimes = std::result::Result<Arc<[Arc<Report>]>, String>;

/// A call at one set of sizes, all of them known.
#[derive(Clone, Debug, PartialEq)]
pub struct SizedCall {
    pub call: LibraryCall,
    pub operands: Vec<TensorType>,
    /// The algorithm that the plan asks for.
    pub algorithm: Option<Algorithm>,
}

impl SizedCall {
    /// The calls of a plan at some sizes: each once, and which of them each step is.
    ///
    /// # Errors
    /// A size that is not bound.
    pub fn of_plan(
        plan: &Plan,
        bindings: &Bindings,
    ) -> std::result::Result<(Vec<SizedCall>, Vec<(StepId, usize)>), DimError> {
        let mut distinct: Vec<SizedCall> = Vec::new();
        let mut of = Vec::new();
        for (step, s) in plan.steps.iter() {
            let Work::Call {
                call,
                operands,
                algorithm,
                ..
            } = s.at(bindings)?
            else {
                continue;
            };
            let sized = |operand: &BufferId| {
                let ty = &plan.buffers[*operand].ty;
                Ok(TensorType::new(ty.dtype, ty.shape.eval(bindings)?))
            };
            let call = SizedCall {
                call: call.clone(),
                operands: operands
                    .iter()
                    .map(sized)
                    .collect::<std::result::Result<_, DimError>>()?,
                algorithm: algorithm.as_deref().cloned(),
            };
            let index = distinct.iter().position(|known| *known == call).unwrap_or_else(|| {
                distinct.push(call);
                distinct.len() - 1
            });
            of.push((step, index));
        }
        Ok((distinct, of))
    }
}

/// Where calls are timed.
#[derive(Clone, Debug)]
pub struct CallTimer {
    /// The program with its arguments that calls [`serve`].
    worker: Vec<OsString>,
    /// The wrapper of a sysroot with the libraries; without it they are on the loader's path.
    wrapper: Option<PathBuf>,
    stand_in: PathBuf,
    /// Where MIOpen keeps what it compiled.
    kept: Option<PathBuf>,
    /// Where its user databases are, if not there.
    user_database: Option<PathBuf>,
    /// Whether the environment says itself if MIOpen takes its kernels in assembly.
    assembly_is_set: bool,
}

/// Where the sysroot is that `scripts/rocm-sysroot.sh` makes, unless another is named.
const SYSROOT: &str = "/opt/graphc-rocm-libs";

/// What the worker is asked of each call: the first byte that it reads.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Question {
    Times = b't',
    Algorithms = b'a',
}

/// What the worker says of one call.
#[derive(Serialize, Deserialize)]
enum Answer {
    /// The stand-in's lines.
    Kernels(Vec<String>),
    /// What the library offers, the one that it would choose first.
    Algorithms(Vec<Algorithm>),
    Failed(String),
}

impl CallTimer {
    /// Finds the libraries and the stand-in runtime. `worker` is a program with its arguments that calls [`serve`].
    ///
    /// # Errors
    /// What is missing, every place looked at, and how to get it.
    pub fn find(settings: &Settings, worker: &[OsString]) -> std::result::Result<CallTimer, String> {
        let named = settings.stand_in.clone();
        let beside = std::env::current_exe()
            .ok()
            .and_then(|exe| Some(exe.parent()?.to_owned()));
        let name = "libamdhip64_emu.so";
        let built = beside
            .iter()
            .flat_map(|folder| [folder.join(name), folder.join("deps").join(name)]);
        let places: Vec<PathBuf> = match named {
            Some(file) => vec![file],
            None => built.collect(),
        };
        let Some(stand_in) = places.iter().find(|place| place.is_file()) else {
            let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
            return Err(format!(
                "the stand-in HIP runtime is at none of {}; `cargo build -p graphc-emu-hip` makes it, GRAPHC_EMU_HIP names its file",
                places.join(", ")
            ));
        };
        let root = settings.libraries.clone();
        let wrapper = root.clone().unwrap_or_else(|| SYSROOT.into()).join("rocm-run");
        if root.is_some() && !wrapper.is_file() {
            return Err(format!("GRAPHC_ROCM_LIBS: there is no {}", wrapper.display()));
        }
        Ok(CallTimer {
            worker: worker.to_vec(),
            wrapper: Some(wrapper).filter(|file| file.is_file()),
            stand_in: std::path::absolute(stand_in).map_err(|error| format!("{}: {error}", stand_in.display()))?,
            kept: settings.cache_dir.as_ref().map(|folder| folder.join("miopen")),
            user_database: settings.miopen.user_database.clone(),
            assembly_is_set: settings.miopen_assembly_is_set,
        })
    }

    /// Where the libraries are that the process of their own loads, if that is a sysroot.
    pub fn libraries(settings: &Settings) -> Option<PathBuf> {
        let root = settings.libraries.clone().unwrap_or_else(|| SYSROOT.into());
        Some(root.join("usr/lib/x86_64-linux-gnu")).filter(|folder| folder.is_dir())
    }

    /// Times calls on a target: one answer for each, in their order. `memory` is what the emulated GPU has, in bytes;
    /// `ghz` is the shader clock, where it is asked for.
    pub fn time(&self, target: &Target, calls: &[SizedCall], memory: u64, ghz: Option<f64>) -> Vec<CallTimes> {
        let answers = self.answers(Question::Times, target, calls, (memory, ghz));
        let of_answer = |answer| match answer? {
            Answer::Kernels(lines) => lines.iter().map(|line| Report::from_json(line).map(Arc::new)).collect(),
            Answer::Algorithms(_) => Err("the process that times calls answers another question".to_owned()),
            Answer::Failed(reason) => Err(reason),
        };
        answers.into_iter().map(of_answer).collect()
    }

    /// Lists the algorithms that libraries offer for a plan's calls at some sizes, by step.
    ///
    /// # Errors
    /// A size that is not bound; what a library says of a call.
    pub fn algorithms(&self, plan: &Plan, sizes: &Bindings) -> Result<BTreeMap<StepId, Vec<Algorithm>>> {
        let (mut calls, of) = SizedCall::of_plan(plan, sizes)?;
        calls.iter_mut().for_each(|call| call.algorithm = None);
        let memory = super::Options::default().memory;
        let answers = self.answers(Question::Algorithms, &plan.target, &calls, (memory, None));
        let mut found = BTreeMap::new();
        for (step, index) in of {
            match &answers[index] {
                Ok(Answer::Algorithms(all)) if all.is_empty() => {}
                Ok(Answer::Algorithms(all)) => {
                    found.insert(step, all.clone());
                }
                Ok(Answer::Kernels(_)) => {}
                Ok(Answer::Failed(reason)) | Err(reason) => return Err(Error::Config(reason.clone())),
            }
        }
        Ok(found)
    }

    /// The worker's answers, one for each call in their order; a reason where there is none.
    fn answers(
        &self,
        question: Question,
        target: &Target,
        calls: &[SizedCall],
        (memory, ghz): (u64, Option<f64>),
    ) -> Vec<std::result::Result<Answer, String>> {
        let mut variants = Vec::new();
        let mut reasons: Vec<Option<String>> = Vec::new();
        for call in calls {
            match alone(call, target) {
                Ok(variant) => {
                    variants.push(variant);
                    reasons.push(None);
                }
                Err(reason) => reasons.push(Some(reason)),
            }
        }
        let (answers, end) = match self.ask(question, target, variants, (memory, ghz)) {
            Ok((answers, end)) => (answers, end),
            Err(reason) => (Vec::new(), reason),
        };
        let mut answers = answers.into_iter();
        let of_call = |reason: Option<String>| match reason {
            Some(reason) => Err(reason),
            None => answers.next().ok_or_else(|| end.clone()),
        };
        reasons.into_iter().map(of_call).collect()
    }

    /// Sends the calls to a process; returns its answers, and what is to be said of calls that it left unanswered.
    fn ask(
        &self,
        question: Question,
        target: &Target,
        variants: Vec<Variant>,
        (memory, ghz): (u64, Option<f64>),
    ) -> std::result::Result<(Vec<Answer>, String), String> {
        if variants.is_empty() {
            return Ok((Vec::new(), String::new()));
        }
        let program = Program {
            name: "calls".to_owned(),
            variants,
            constants: Default::default(),
        };
        let mut bytes = vec![question as u8];
        program.write(&mut bytes).map_err(|error| error.to_string())?;
        let folder = tempfile::tempdir().map_err(|error| format!("a folder for the stand-in: {error}"))?;
        // hiprtc asks the runtime for the current GPU and looks for it without a version.
        for name in ["libamdhip64.so.7", "libamdhip64.so"] {
            let link = folder.path().join(name);
            std::os::unix::fs::symlink(&self.stand_in, &link)
                .map_err(|error| format!("{}: {error}", link.display()))?;
        }
        let said = folder.path().join("said");
        let errors = std::fs::File::create(&said).map_err(|error| format!("{}: {error}", said.display()))?;
        let mut child = self
            .command(folder.path(), target, memory, ghz)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("the process that times calls does not start: {error}"))?;
        let input = child.stdin.take();
        let sender = std::thread::spawn(move || input.map(|mut input| input.write_all(&bytes)));
        let mut answers = Vec::new();
        for line in child
            .stdout
            .take()
            .into_iter()
            .flat_map(|out| BufReader::new(out).lines())
        {
            let Ok(line) = line else { break };
            // What a library prints is none.
            if let Some(Ok(answer)) = line.strip_prefix(ANSWER).map(serde_json::from_str) {
                answers.push(answer);
            }
        }
        let status = child.wait().map_err(|error| error.to_string())?;
        // A process that ended early took not all of it; how it ended is said below.
        let _ = sender.join();
        let said = std::fs::read_to_string(&said).unwrap_or_default();
        // What a library says before it gives up begins with the reason.
        let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
        let (errors, first): (Vec<&str>, Vec<&str>) = (
            lines().filter(|line| line.contains("rror")).take(2).collect(),
            lines().take(3).collect(),
        );
        for answer in &mut answers {
            if let Answer::Failed(reason) = answer
                && !errors.is_empty()
            {
                *reason += &format!("; it said: {}", errors.join("; "));
            }
        }
        Ok((
            answers,
            format!("the process with the library ended ({status}): {}", first.join("; ")),
        ))
    }

    fn command(&self, folder: &Path, target: &Target, memory: u64, ghz: Option<f64>) -> Command {
        let mut words: Vec<OsString> = self.wrapper.iter().map(|wrapper| wrapper.into()).collect();
        // The wrapper takes the loader's path away from what it starts.
        let mut path = OsString::from("LD_LIBRARY_PATH=");
        path.push(folder);
        words.extend(["env".into(), path]);
        words.extend(self.worker.iter().cloned());
        let mut words = words.into_iter();
        let gpu = Arch::by_name(target.name).map_or(target.name, |arch| gpu_of(arch).name);
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .env("GRAPHC_EMU_ARCH", gpu)
            .env("GRAPHC_EMU_MEMORY_MIB", (memory >> 20).to_string())
            .env("GRAPHC_HIP", folder)
            .env(EMULATOR_REPORTS, folder.join("reports"));
        let other = [
            "GRAPHC_ROCM",
            "HIP_VISIBLE_DEVICES",
            "GRAPHC_EMU_DEVICES",
            "GRAPHC_EMU_SEED",
            "GRAPHC_EMU_FAULTS",
            "GRAPHC_EMU_CHECKS",
            "GRAPHC_EMU_TRACE",
            "GRAPHC_EMU_CLOCK",
        ];
        for name in other {
            command.env_remove(name);
        }
        if let Some(ghz) = ghz {
            command.env("GRAPHC_EMU_CLOCK", ghz.to_string());
        }
        // Debian builds MIOpen without its kernels in assembly but with the solvers that use them, which then all fail.
        if self.wrapper.is_some() && !self.assembly_is_set {
            command.env(MIOPEN_ASSEMBLY, "0");
        }
        let kept = self.kept.as_deref().unwrap_or(folder);
        command.env("MIOPEN_USER_DB_PATH", self.user_database.as_deref().unwrap_or(kept));
        command.env("MIOPEN_CUSTOM_CACHE_DIR", kept);
        command
    }
}

/// A plan of one call, whose operands are its inputs.
fn alone(call: &SizedCall, target: &Target) -> std::result::Result<Variant, String> {
    let at = || Origin::Named(call.call.name().into());
    let mut graph = Graph::new(call.call.name());
    graph.stage = Stage::Core;
    let operands: Vec<_> = (call.operands.iter().enumerate())
        .map(|(index, ty)| graph.add_input(format!("x{index}"), ty.clone(), at()))
        .collect();
    let node = graph
        .add(Op::Call(call.call.clone()), &operands, at())
        .map_err(|error| error.to_string())?;
    graph.add_output("y", node.into());
    let (schedule, _) =
        passes::schedule(&graph, target, &ScheduleOptions::default()).map_err(|error| error.to_string())?;
    let mut plan = passes::plan(
        &graph,
        &schedule,
        target,
        &PlanOptions {
            in_place: false,
            ..PlanOptions::default()
        },
    )
    .map_err(|error| error.to_string())?;
    for work in plan.steps.values_mut().flat_map(ir::plan::Step::works_mut) {
        if let Work::Call { algorithm, .. } = work {
            *algorithm = call.algorithm.clone().map(Box::new);
        }
    }
    Ok(Variant {
        plan,
        sources: Default::default(),
        code: Default::default(),
    })
}

/// What begins the worker's lines.
const ANSWER: &str = "graphc-call ";

/// The worker's side: reads a program of calls from the standard input, runs each, and says what was launched.
pub fn serve() -> ExitCode {
    match answer_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("graphc: {error}");
            ExitCode::FAILURE
        }
    }
}

fn answer_all() -> Result<()> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(Error::io("read", "the standard input"))?;
    let asks_for_algorithms = bytes.first() == Some(&(Question::Algorithms as u8));
    bytes.drain(..bytes.len().min(1));
    let program = Program::read(&Storage::new(bytes), Check::All);
    let program = Arc::new(program.map_err(|error| Error::Config(format!("the standard input: {error}")))?);
    let settings = Settings::from_env()?;
    let device = runtime::gpu::GpuDevice::open(&settings.gpu_search(), Vendor::Hip, 0)?;
    let Some(reports) = &settings.emulator_reports else {
        return Err(Error::Config(format!("{EMULATOR_REPORTS} is not set")));
    };
    // MIOpen chooses without timing here, whatever the settings say: its find stage would run kernels, which are only
    // timed.
    let load = LoadOptions::default();
    for variant in 0..program.variants.len() {
        let answer = match asks_for_algorithms {
            true => algorithms(&device, &program, variant, &load).map(Answer::Algorithms),
            false => kernels(&device, &program, variant, &load, reports).map(Answer::Kernels),
        };
        let answer = answer.unwrap_or_else(|error| Answer::Failed(error.to_string()));
        // Texts: serialising cannot fail.
        let line = serde_json::to_string(&answer).unwrap_or_default();
        println!("\n{ANSWER}{line}");
    }
    Ok(())
}

/// The algorithms of a program's one call.
fn algorithms(
    device: &runtime::gpu::GpuDevice,
    program: &Arc<Program>,
    variant: usize,
    load: &LoadOptions,
) -> Result<Vec<Algorithm>> {
    let executable = Executable::load_on(device, program.clone(), variant, load)?;
    let of_steps = executable.algorithms(&Bindings::new())?;
    Ok(of_steps.into_iter().flat_map(|(_, all)| all).collect())
}

/// What the stand-in reports of the launches of a program's second run.
fn kernels(
    device: &runtime::gpu::GpuDevice,
    program: &Arc<Program>,
    variant: usize,
    load: &LoadOptions,
    reports: &Path,
) -> Result<Vec<String>> {
    let executable = Executable::load_on(device, program.clone(), variant, load)?;
    let plan = &program.variants[variant].plan;
    let nothing = Bindings::new();
    let mut inputs = indexmap::IndexMap::new();
    for port in &plan.inputs {
        let shape: Vec<usize> = port
            .ty
            .shape
            .eval(&nothing)?
            .into_iter()
            .map(|size| size.max(0) as usize)
            .collect();
        let bytes = port.ty.dtype.bytes_for(shape.iter().product());
        let tensor = HostTensor::new(port.ty.dtype, shape, Storage::new(vec![0; bytes]));
        let tensor = tensor.map_err(|error| Error::Config(error.to_string()))?;
        inputs.insert(port.name.clone(), tensor);
    }
    executable.run(&inputs)?;
    match std::fs::remove_file(reports) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(Error::io("remove", reports)(error)),
        _ => {}
    }
    executable.run(&inputs)?;
    let text = std::fs::read_to_string(reports).map_err(Error::io("read", reports))?;
    Ok(text.lines().map(str::to_owned).collect())
}
