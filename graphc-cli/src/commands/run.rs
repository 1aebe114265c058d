//! `graphc run`: a model on some inputs, its outputs saved, compared or scored.

use std::path::PathBuf;
use std::sync::Arc;

use ir::{HostTensor, Program, Target};
use runtime::{Executable, Given, Link, LoadOptions, RuntimeError, State, Value, Wanted};
use serde_json::json;

use super::args::{self, BuildArgs, Format, ModelArgs};
use super::given;
use super::{Context, escape, load, output};
use graphc::arrays::{self, ArrayFile, Arrays};
use graphc::compare::compare;
use graphc::emulate::{self, Emulator};
use graphc::error::{Error, Result};
use graphc::session::{OpenDevice, with_least};

/// Run a model.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    build: BuildArgs,
    /// Inputs by name: an .npz, .npy, .safetensors or .pb (ONNX's tensors) file. May be given several times.
    #[arg(long, value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// Make up the inputs that no file gives; the same every time.
    #[arg(long)]
    random: bool,
    /// The seed of made-up inputs.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Compare the outputs with these arrays and fail (exit code 1) where they differ. May be given several times.
    #[arg(long, value_name = "FILE")]
    expect: Vec<PathBuf>,
    /// Relative tolerance of --expect.
    #[arg(long, default_value_t = 1e-3, value_parser = args::tolerance)]
    rtol: f64,
    /// Absolute tolerance of --expect.
    #[arg(long, default_value_t = 1e-4, value_parser = args::tolerance)]
    atol: f64,
    /// Score the first output (class scores along its last axis) against the array `labels` of this file.
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Where to run: cpu, hip or hip:N (an AMD GPU; rocm means the same), cuda or cuda:N (an NVIDIA GPU), or auto (the
    /// first GPU, or else the CPU). Several share the model: hip:0,1, cuda:0,1, or cpu,cpu to try that out.
    #[arg(long, default_value = "cpu", conflicts_with = "emulate")]
    device: String,
    /// Run on an emulated GPU: the code compiled for --target, instruction by instruction. Slow.
    #[arg(long, requires = "target")]
    emulate: bool,
    /// The GPU to emulate: gfx90a, gfx942, gfx1100, …
    #[arg(long, requires = "emulate")]
    target: Option<Target>,
    /// Threads of the CPU device, 1 to 1024; by default one a core.
    #[arg(long, value_parser = args::threads)]
    threads: Option<usize>,
    /// Write the outputs to this .npz or .safetensors (or, a single one, .npy) file.
    #[arg(short, long, value_name = "FILE", value_parser = args::output())]
    output: Option<PathBuf>,
    /// Deflate the arrays of an .npz, which takes much longer than storing them.
    #[arg(long, requires = "output")]
    compress: bool,
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Opens `--device`: what is not here is said, and only `auto` puts the CPU in its place, and says so.
pub fn open(name: &str, context: &Context) -> Result<OpenDevice> {
    let opened = OpenDevice::open(name.parse()?, &context.settings)?;
    if let Some(fallback) = &opened.fallback {
        output::note(context, fallback);
    }
    Ok(opened)
}

/// How a model is built for a device: of several, a part for each.
fn for_device(model: &ModelArgs, build: &BuildArgs, device: &OpenDevice) -> Result<BuildArgs> {
    let ranks = device.ranks();
    match build.ranks {
        Some(asked) if asked != ranks => Err(Error::Config(format!(
            "--ranks {asked}: --device {} is {ranks} device(s); {} is shared among as many as are named there",
            device.device.name(),
            model.model.display()
        ))),
        _ => Ok(BuildArgs {
            ranks: (ranks > 1).then_some(ranks),
            ..build.clone()
        }),
    }
}

/// Builds a model for a device, with the code of its kernels, and finds the variant that runs there.
pub fn program(
    model: &ModelArgs,
    build: &BuildArgs,
    device: &OpenDevice,
    context: &Context,
) -> Result<(Arc<Program>, usize)> {
    let build = for_device(model, build, device)?;
    let mut program = load::load_ready(model, &build, device.target, context)?;
    let variant = device.variant(&program)?;
    if device.target.is_gpu() {
        // Of an artifact that has none.
        load::compile_kernels(&mut program, context)?;
    }
    Ok((Arc::new(program), variant))
}

fn on_device(args: &Args, model: &ModelArgs, given: &given::Given, context: &Context) -> Result<Arrays> {
    let device = open(&args.device, context)?;
    let (program, variant) = program(model, &args.build, &device, context)?;
    let plan = runtime::device::whole_plan(&program, variant)?;
    check_names(args, &plan)?;
    let inputs = given.inputs(&plan, args.random.then_some(args.seed))?;
    let options = context.settings.loading(LoadOptions {
        threads: args.threads.unwrap_or_default(),
        ..LoadOptions::default()
    });
    let busy = output::spinner(context, "running");
    let executable = device.load(program, variant, &options)?;
    let outputs = once(&executable, inputs);
    let outputs = outputs.map_err(|error| with_least(error, executable.plan()))?;
    busy.finish_and_clear();
    Ok(outputs)
}

/// Runs once. States begin with what is given for them, or with zeros, and their next values are among the outputs.
fn once(executable: &Executable, mut inputs: Arrays) -> std::result::Result<Arrays, RuntimeError> {
    let links = Link::of_plan(executable.plan());
    if links.is_empty() {
        return executable.run(&inputs);
    }
    let state = State::new(executable, links)?;
    for link in state.links() {
        if let Some(tensor) = inputs.shift_remove(&link.input) {
            state.set(executable, &link.input, &tensor)?;
        }
    }
    let given = inputs.iter().map(|(name, tensor)| (name.as_str(), Given::from(tensor)));
    let mut values = state.submit(executable, given, &Wanted::host())?.wait()?;
    let mut kept = state.save()?;
    let mut outputs = Arrays::new();
    for port in executable.plan().results() {
        let link = state.links().iter().find(|link| link.output == port.name);
        let tensor = match link {
            Some(link) => kept.shift_remove(&link.input),
            None => values.shift_remove(&port.name).map(Value::into_host).transpose()?,
        };
        outputs.extend(tensor.map(|tensor| (port.name.clone(), tensor)));
    }
    Ok(outputs)
}

/// Finds out before the run whether the file of `-o` can hold outputs of these names.
fn check_names(args: &Args, plan: &ir::Plan) -> Result<()> {
    let names = plan.results().iter().map(|port| port.name.as_str());
    args.output
        .as_ref()
        .map_or(Ok(()), |path| arrays::check_names(path, names))
}

fn emulated(args: &Args, model: &ModelArgs, target: Target, given: &given::Given, context: &Context) -> Result<Arrays> {
    let mut program = load::load(model, &args.build, vec![target], context)?.program;
    let variant = load::variant(&program, &target)?;
    check_names(args, &program.variants[variant].plan)?;
    load::compile_kernels(&mut program, context)?;
    let inputs = given.inputs(&program.variants[variant].plan, args.random.then_some(args.seed))?;
    let busy = output::spinner(context, "running on the emulated GPU");
    let disassembler = emulate::disassembler(&context.settings, load::emulator_worker().as_deref())?;
    let emulator = Emulator::load(
        &program,
        variant,
        &disassembler,
        emulate::Options::of(&context.settings),
    )?;
    let outputs = emulator.run(&inputs)?.outputs;
    busy.finish_and_clear();
    Ok(outputs)
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    if let Some(path) = &args.output {
        let others = args.inputs.iter().chain(&args.expect).chain(&args.labels);
        output::check(path, &args.model.model, others)?;
        arrays::check_writable(path, args.compress)?;
    }
    let given = given::Given::read(&args.inputs)?;
    let expected = args
        .expect
        .iter()
        .map(|path| open_expected(path))
        .collect::<Result<Vec<_>>>()?;
    let labels = args.labels.as_deref().map(Labels::open).transpose()?;
    let outputs = given.with_model(&args.model, context, |model| {
        match args.target.filter(|_| args.emulate) {
            Some(target) => emulated(args, model, target, &given, context),
            None => on_device(args, model, &given, context),
        }
    })?;
    if let Some(path) = &args.output {
        arrays::write_with(path, &outputs, args.compress)?;
    }
    let mut report = Report::default();
    for (name, tensor) in &outputs {
        report.output(name, tensor);
    }
    let differing = match expected.is_empty() {
        true => 0,
        false => report.compare(&outputs, &expected, args.rtol, args.atol)?,
    };
    if let Some(labels) = labels {
        report.score(&outputs, &labels)?;
    }
    // What is written to standard output is not mixed with what is said of it.
    let stdout_is_taken = args.output.as_deref().is_some_and(ir::file::is_stdout);
    match args.format {
        Format::Text if stdout_is_taken => output::note(context, report.text.trim_end()),
        Format::Json if stdout_is_taken => {}
        Format::Text => output::print(&report.text)?,
        Format::Json => output::print_json(&json!({ "outputs": report.outputs, "accuracy": report.accuracy }))?,
    }
    match differing {
        0 => Ok(()),
        _ => Err(Error::Mismatch(format!(
            "{differing} of {} outputs differ from what was expected",
            outputs.len()
        ))),
    }
}

fn open_expected(path: &std::path::Path) -> Result<ArrayFile> {
    let expected = ArrayFile::open(path)?;
    if expected.arrays().is_empty() {
        return Err(Error::Arrays {
            path: path.to_owned(),
            message: "--expect: it holds no arrays to compare the outputs with".to_owned(),
        });
    }
    Ok(expected)
}

/// The labels of `--labels`, which are read once it is known how many there should be.
struct Labels {
    file: ArrayFile,
    name: String,
}

impl Labels {
    fn open(path: &std::path::Path) -> Result<Labels> {
        let file = ArrayFile::open(path)?;
        let arrays = file.arrays();
        let lone = arrays.keys().next().filter(|_| arrays.len() == 1);
        let name = arrays.get_key_value("labels").map(|(name, _)| name).or(lone).cloned();
        match name {
            Some(name) => Ok(Labels { file, name }),
            None => Err(Error::Arrays {
                path: path.to_owned(),
                message: format!(
                    "holds no array \"labels\"; its arrays are {:?}",
                    arrays.keys().collect::<Vec<_>>()
                ),
            }),
        }
    }

    fn count(&self) -> usize {
        let shape = self.file.arrays().get(&self.name).map(|array| &array.shape[..]);
        // More than memory holds is refused when the file is opened.
        shape.unwrap_or(&[0]).iter().product()
    }
}

#[derive(Default)]
struct Report {
    text: String,
    outputs: serde_json::Map<String, serde_json::Value>,
    accuracy: Option<f64>,
}

impl Report {
    fn output(&mut self, name: &str, tensor: &HostTensor) {
        let values = tensor.to_f64();
        let finite = values.iter().filter(|v| v.is_finite());
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
        self.text += &format!("{}: {}{:?}", escape::name(name), tensor.dtype, tensor.shape);
        if low <= high {
            self.text += &format!(" in [{low:.6}, {high:.6}]");
        }
        let odd = values.iter().filter(|v| !v.is_finite()).count();
        if odd > 0 {
            self.text += &format!(", {odd} not finite");
        }
        self.text += "\n";
        self.outputs.insert(
            name.to_owned(),
            json!({ "dtype": tensor.dtype.name(), "shape": tensor.shape, "min": low, "max": high, "not_finite": odd }),
        );
    }

    /// Compares what is expected, which is some array, and returns how many outputs differ.
    fn compare(&mut self, got: &Arrays, want: &[ArrayFile], rtol: f64, atol: f64) -> Result<usize> {
        let mut bad = 0;
        let names: Vec<&str> = got.keys().map(String::as_str).collect();
        let lone = arrays::lone_name(want, &names);
        let wanted = want.iter().flat_map(|file| {
            let arrays = file.arrays().iter();
            arrays.map(move |(own, array)| (lone.unwrap_or(own), own, (file, array)))
        });
        let wanted: Vec<_> = wanted.collect();
        if let Some((name, ..)) = (wanted.iter().enumerate())
            .find(|(at, (name, ..))| wanted[..*at].iter().any(|(before, ..)| before == name))
            .map(|(_, found)| found)
        {
            return Err(Error::Config(format!("--expect holds {name:?} twice")));
        }
        for (name, own, (file, array)) in &wanted {
            let name = *name;
            let shown = escape::name(name);
            let Some(got) = got.get(name) else {
                return Err(Error::Config(format!(
                    "--expect holds {name:?}, but the model's outputs are {names:?}"
                )));
            };
            // Of another shape its elements need not be read.
            let difference = match array.shape == got.shape {
                true => compare(got, &file.read(own)?, rtol, atol),
                false => Err(graphc::compare::shapes(&got.shape, &array.shape)),
            };
            match difference {
                Ok(d) => {
                    let verdict = if d.is_within() { "ok" } else { "DIFFERS" };
                    self.text += &format!(
                        "{shown}: {verdict}: worst error {:.3e} absolute, {:.3e} relative",
                        d.max_abs, d.max_rel
                    );
                    if !d.is_within() {
                        bad += 1;
                        self.text += &format!(
                            "; {} of {} elements outside rtol {rtol:e}, atol {atol:e}; worst at {}: got {}, expected {}",
                            d.mismatches, d.elements, d.worst, d.got, d.want
                        );
                    }
                    self.text += "\n";
                    if let Some(serde_json::Value::Object(o)) = self.outputs.get_mut(name) {
                        o.insert("difference".to_owned(), json!(d));
                    }
                }
                Err(shapes) => {
                    bad += 1;
                    self.text += &format!("{shown}: DIFFERS: {shapes}\n");
                }
            }
        }
        for name in names
            .iter()
            .filter(|name| !wanted.iter().any(|(wanted, ..)| wanted == *name))
        {
            let shown = escape::name(name);
            self.text += &format!("{shown}: not compared: --expect holds no array of this name\n");
            if let Some(serde_json::Value::Object(o)) = self.outputs.get_mut(*name) {
                o.insert("difference".to_owned(), serde_json::Value::Null);
            }
        }
        Ok(bad)
    }

    fn score(&mut self, outputs: &Arrays, labels: &Labels) -> Result<()> {
        let Some((name, scores)) = outputs.first() else {
            return Err(Error::Config("--labels: the model has no outputs".to_owned()));
        };
        let count = labels.count();
        if count == 0 {
            return Err(Error::Config("--labels: there are no labels to score".to_owned()));
        }
        let classes = scores.shape.last().copied().unwrap_or(0);
        if classes == 0 || scores.elements() / classes != count {
            return Err(Error::Config(format!(
                "--labels: output {name:?} of shape {:?} does not score {count} labels",
                scores.shape
            )));
        }
        let labels = labels.file.read(&labels.name)?.to_i64();
        let values = scores.to_f64();
        let right = values
            .chunks_exact(classes)
            .zip(&labels)
            .filter(|(row, label)| {
                let best = row
                    .iter()
                    .enumerate()
                    .fold(0, |best, (i, v)| if *v > row[best] { i } else { best });
                best as i64 == **label
            })
            .count();
        let accuracy = right as f64 / labels.len() as f64;
        self.accuracy = Some(accuracy);
        self.text += &format!(
            "accuracy: {right} of {} right ({:.2} %)\n",
            labels.len(),
            accuracy * 100.0
        );
        Ok(())
    }
}
