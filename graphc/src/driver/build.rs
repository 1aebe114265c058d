//! From a graph to a program with plans and sources; no compiler is called.

use std::sync::Arc;
use std::time::{Duration, Instant};

use indexmap::IndexMap;
use ir::dim::DimError;
use ir::plan::{Carried, Place, Share, Stage};
use ir::program::Variant;
use ir::{ConstId, DType, Entity, Graph, HostTensor, Plan, Program, Schedule, Table, Target};
use passes::lower::unpacked::{self, UnpackOnce};
use passes::lower::winograd::{self, Filtering};
use passes::options::Evaluator;
use passes::route::sized::Routes;
use passes::shard::{ShardError, ShardReport, Sharded, Split, StageReport, Staged};
use passes::tuning::Tuned;
use passes::{
    Convolution, Decided, FilteredConvolution, FusionReport, OptLevel, OptimizeOptions, OptimizeReport, PlanOptions,
    ScheduleOptions, ShardOptions, UnpackedProduct, precompute,
};
use runtime::cpu::CpuDevice;
use runtime::{Executable, LoadOptions};

use crate::error::{Error, Result};

/// How a graph is compiled.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    pub targets: Vec<Target>,
    pub optimize: OptimizeOptions,
    pub schedule: ScheduleOptions,
    pub plan: PlanOptions,
    /// Whether a run fails that is given an index outside its axis, which is clamped otherwise. None: on the CPU alone.
    pub check_indices: Option<bool>,
    /// Bytes of a GPU's memory that weights and the arena of one run may take together, at the sizes' hints; weights
    /// that have no room are streamed from the host.
    pub max_vram: Option<usize>,
    /// Shares the model among several devices: the program has a variant for each rank of each target.
    pub ranks: Option<ShardOptions>,
    /// Inputs that are kept from run to run, each with the output that is its next value.
    pub states: Vec<(String, String)>,
}

impl BuildOptions {
    /// Options for some targets at a level.
    pub fn new(targets: Vec<Target>, level: OptLevel) -> BuildOptions {
        let fuse = level > OptLevel::O0;
        BuildOptions {
            targets,
            optimize: OptimizeOptions::at(level),
            schedule: ScheduleOptions {
                fuse,
                ..ScheduleOptions::default()
            },
            plan: PlanOptions {
                in_place: fuse,
                parts: fuse,
                filtering: if fuse { Filtering::default() } else { Filtering::Never },
                unpack_once: if fuse { UnpackOnce::default() } else { UnpackOnce::Never },
                ..PlanOptions::default()
            },
            check_indices: None,
            max_vram: None,
            ranks: None,
            states: Vec::new(),
        }
    }

    /// Sets the type to compute in.
    pub fn dtype(mut self, dtype: Option<DType>) -> BuildOptions {
        self.optimize.dtype = dtype.filter(|d| *d != DType::F32);
        self
    }
}

/// A program with everything that was decided on the way.
#[derive(Debug)]
pub struct Build {
    pub program: Program,
    /// One for each variant of the program.
    pub reports: Vec<VariantReport>,
}

/// What was decided for one target.
#[derive(Debug)]
pub struct VariantReport {
    pub core: Graph,
    pub schedule: Schedule,
    pub optimize: OptimizeReport,
    pub fusion: FusionReport,
    /// Kernels whose mapping was measured and not predicted.
    pub tuned: Vec<Tuned>,
    /// Steps of which it was measured whether a kernel or a call is faster.
    pub decided: Vec<Decided>,
    /// Convolutions of which it was asked whether a kernel or a call computes them: see [`passes::Planned`].
    pub convolutions: Vec<Convolution>,
    /// Convolutions of which it was asked whether Winograd's filtering computes them: see [`passes::Planned`].
    pub filtered: Vec<FilteredConvolution>,
    /// Products whose quantised weights are stored as numbers first: see [`passes::Planned`].
    pub unpacked: Vec<UnpackedProduct>,
    pub stages: Stages,
    /// How the model lies on its devices, where it is on several.
    pub sharding: Option<Arc<ShardReport>>,
    /// Where the model was cut, where its devices have layers each.
    pub staging: Option<Arc<StageReport>>,
}

/// Where the time went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stages {
    pub optimize: Duration,
    pub schedule: Duration,
    pub plan: Duration,
    pub emit: Duration,
}

/// Compiles a graph for every target of the options.
///
/// # Errors
/// No target, a tensor beyond what can be addressed at the sizes' hints, or what [`passes`] and [`codegen_hip`] report.
pub fn build(graph: &Graph, options: &BuildOptions) -> Result<Build> {
    if options.targets.is_empty() {
        return Err(Error::Config("no target was given".to_owned()));
    }
    check_sizes(graph)?;
    let wanted = match &options.ranks {
        Some(ranks) if options.states.is_empty() => &ranks.states,
        _ => &options.states,
    };
    passes::shard::check_states(graph, wanted)?;
    let carried = |(input, output): &(String, String)| Carried {
        input: input.clone(),
        output: output.clone(),
    };
    let states: Vec<Carried> = wanted.iter().map(carried).collect();
    let mut merged = Constants::default();
    let (mut variants, mut reports) = (Vec::new(), Vec::new());
    for target in &options.targets {
        let mut optimize = OptimizeOptions {
            check_indices: options.check_indices.unwrap_or(!target.is_gpu()),
            states: match options.check_indices {
                Some(false) => Vec::new(),
                _ => states.iter().map(|state| state.output.clone()).collect(),
            },
            evaluator: Some(options.optimize.evaluator.clone().unwrap_or_else(evaluator)),
            ..options.optimize.clone()
        };
        let ranks = options.ranks.clone().map(|ranks| ShardOptions {
            memory: ranks.memory.or(options.max_vram.filter(|_| target.is_gpu())),
            states: wanted.clone(),
            ..ranks
        });
        let Some(ranks) = &ranks else {
            let whole = Whole {
                options,
                optimize: &optimize,
                target,
            };
            let (mut variant, report) = whole.variant(graph.clone(), &mut merged, Stages::default())?;
            variant.plan.states.clone_from(&states);
            variants.push(variant);
            reports.push(report);
            continue;
        };
        let mut stages = Stages::default();
        let (parts, prepared) = timed(&mut stages.optimize, || -> Result<_> {
            let (prepared, report) = passes::shard::prepare(graph.clone(), target, &optimize)?;
            Ok((Parts::new(&prepared, target, ranks)?, report))
        })?;
        optimize = passes::shard::after(&optimize);
        let count = parts.graphs.len() as u32;
        for (rank, (graph, mut share)) in parts.graphs.into_iter().zip(parts.shares).enumerate() {
            let whole = Whole {
                options,
                optimize: &optimize,
                target,
            };
            let (mut variant, mut report) = whole.variant(graph, &mut merged, std::mem::take(&mut stages))?;
            // Conditions, which the passes add, are whole.
            share.outputs.resize(variant.plan.outputs.len(), None);
            (share.rank, share.ranks) = (rank as u32, count);
            variant.plan.share = Some(share);
            variant.plan.states.clone_from(&states);
            report.optimize.follow(&prepared);
            report.sharding = parts.sharding.clone();
            report.staging = parts.staging.clone();
            variants.push(variant);
            reports.push(report);
        }
    }
    let program = Program {
        name: graph.name.clone(),
        variants,
        constants: merged.table,
    };
    check_files(graph)?;
    Ok(Build { program, reports })
}

/// Returns the evaluator that [`build`] gives to the passes: it compiles a graph for the CPU and runs it once, on all
/// cores.
pub fn evaluator() -> Evaluator {
    let evaluate = |graph: &Graph, inputs: &IndexMap<String, HostTensor>| -> Result<Vec<HostTensor>> {
        let mut options = BuildOptions::new(vec![Target::cpu()], OptLevel::O2);
        // The graph's own constants are small, and evaluating it is this run.
        options.optimize.disable.insert(precompute::NAME.to_owned());
        let program = Arc::new(build(graph, &options)?.program);
        let device = CpuDevice::new(codegen_cpu::lowering);
        let executable = Executable::load_on(&device, program, 0, &LoadOptions::default())?;
        Ok(executable.run(inputs)?.into_values().collect())
    };
    Arc::new(move |graph, inputs| evaluate(&graph, inputs).map_err(|error| error.to_string()))
}

/// Checks that the files of a graph's weights were whole while they were read.
///
/// # Errors
/// The file that became shorter.
pub fn check_files(graph: &Graph) -> Result<()> {
    let bytes = graph.constants().values().map(|c| &c.tensor.bytes[..]);
    Ok(ir::mapped::check(bytes)?)
}

/// The graphs of all ranks of a target.
struct Parts {
    graphs: Vec<Graph>,
    /// Of each, but for its rank and for conditions.
    shares: Vec<Share>,
    sharding: Option<Arc<ShardReport>>,
    staging: Option<Arc<StageReport>>,
}

impl Parts {
    /// Splits a prepared graph as the options say.
    fn new(graph: &Graph, target: &Target, options: &ShardOptions) -> Result<Parts> {
        let tensors = || passes::shard::shard(graph, target, options);
        let layers = || passes::shard::stages::stages(graph, target, options);
        Ok(match options.split {
            Split::Tensors => Parts::of_tensors(tensors()?),
            Split::Layers => Parts::of_layers(layers()?),
            Split::Auto => {
                let tensors = tensors()?;
                let fits = |bytes: &usize| options.memory.is_none_or(|limit| *bytes <= limit);
                match layers() {
                    Ok(layers)
                        if !tensors.report.rank_bytes.iter().all(fits) || layers.report.us < tensors.report.us =>
                    {
                        Parts::of_layers(layers)
                    }
                    // A model with too few layers has tensors.
                    Ok(_) | Err(ShardError::Layers { .. }) => Parts::of_tensors(tensors),
                    Err(error) => return Err(error.into()),
                }
            }
        })
    }

    fn of_tensors(sharded: Sharded) -> Parts {
        let share = |_: &Graph| Share {
            rank: 0,
            ranks: 0,
            inputs: sharded.inputs.clone(),
            outputs: sharded.outputs.clone(),
            stage: None,
        };
        Parts {
            shares: sharded.graphs.iter().map(share).collect(),
            graphs: sharded.graphs,
            sharding: Some(Arc::new(sharded.report)),
            staging: None,
        }
    }

    fn of_layers(staged: Staged) -> Parts {
        let share = |(graph, stage): (&Graph, Stage)| Share {
            rank: 0,
            ranks: 0,
            inputs: vec![None; graph.inputs().len()],
            outputs: Vec::new(),
            stage: Some(stage),
        };
        Parts {
            shares: staged.graphs.iter().zip(staged.stages).map(share).collect(),
            graphs: staged.graphs,
            sharding: None,
            staging: Some(Arc::new(staged.report)),
        }
    }
}

/// A graph that becomes one variant.
struct Whole<'a> {
    options: &'a BuildOptions,
    optimize: &'a OptimizeOptions,
    target: &'a Target,
}

impl Whole<'_> {
    fn variant(&self, graph: Graph, merged: &mut Constants, mut stages: Stages) -> Result<(Variant, VariantReport)> {
        let Whole {
            options,
            optimize,
            target,
        } = *self;
        let mut plan_options = PlanOptions {
            routes: Routes::of(optimize, target),
            // Transformed filters are up to four times as large, and patches take memory: not where that is short.
            filtering: match optimize.enabled(winograd::RULE) && options.max_vram.is_none() {
                true => options.plan.filtering,
                false => Filtering::Never,
            },
            // So do weights' numbers.
            unpack_once: match optimize.enabled(unpacked::RULE) && options.max_vram.is_none() {
                true => options.plan.unpack_once,
                false => UnpackOnce::Never,
            },
            ..options.plan.clone()
        };
        let prefers_calls = optimize.prefer_calls;
        let (mut core, optimize) = timed(&mut stages.optimize, || passes::optimize(graph, target, optimize))?;
        // Calls that were asked for stay.
        if !prefers_calls {
            (core, plan_options.called) = timed(&mut stages.plan, || {
                passes::reopen(core, target, &options.schedule, &plan_options)
            })?;
        }
        let (schedule, fusion) = timed(&mut stages.schedule, || {
            passes::schedule(&core, target, &options.schedule)
        })?;
        let passes::Planned {
            mut plan,
            decided,
            convolutions,
            filtered,
            unpacked,
            constants,
        } = timed(&mut stages.plan, || {
            passes::plan_and_decided(&core, &schedule, target, &plan_options)
        })?;
        let tuned = passes::tuning::tuned(&plan, &options.plan.tuning);
        merged.adopt(&mut plan, &core, &constants);
        if let Some(limit) = options.max_vram.filter(|_| target.is_gpu()) {
            plan = passes::stream::stream(&plan, limit)?;
        }
        let sources = if target.is_gpu() {
            timed(&mut stages.emit, || codegen_hip::emit(&plan))?
        } else {
            plan.kernels.keys().map(|_| ir::program::Source::default()).collect()
        };
        let code = plan.kernels.keys().map(|_| None).collect();
        let report = VariantReport {
            core,
            schedule,
            optimize,
            fusion,
            tuned,
            decided,
            convolutions,
            filtered,
            unpacked,
            stages,
            sharding: None,
            staging: None,
        };
        Ok((Variant { plan, sources, code }, report))
    }
}

/// Costs and the planned peak are computed at the sizes' hints: there the bytes of every tensor must be a number, with
/// room for sums of some.
fn check_sizes(graph: &Graph) -> Result<()> {
    const MOST: i64 = 1 << 56;
    let hints = ir::dim::hints(graph.symbols());
    for node in graph.nodes().values() {
        for ty in &node.results {
            let reason = match ty.bytes().eval(&hints) {
                Ok(bytes) if bytes <= MOST => continue,
                Ok(bytes) => format!("{bytes} bytes"),
                Err(DimError::Overflow(dim)) => format!("{dim} bytes, which does not fit 64 bits"),
                // Others may be right at other sizes.
                Err(_) => continue,
            };
            let sizes: Vec<String> = hints.iter().map(|(symbol, size)| format!("{symbol}={size}")).collect();
            return Err(Error::Config(format!(
                "{}: a tensor of type {ty} would be {reason}; give smaller sizes{}",
                node.origin,
                match sizes.is_empty() {
                    true => String::new(),
                    false => format!(" (now {})", sizes.join(", ")),
                }
            )));
        }
    }
    Ok(())
}

impl VariantReport {
    /// The schedule as text, each region with what it reads, stores and computes.
    pub fn schedule_text(&self) -> String {
        let list = |values: &[ir::Value]| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let mut text = String::new();
        for (id, r) in self.schedule.regions.iter() {
            let nodes: Vec<String> = r
                .nodes
                .iter()
                .map(|n| format!("{n} {}", self.core.node(*n).op.name()))
                .collect();
            let (kind, reads, writes) = (r.kind.name(), list(&r.inputs), r.stored());
            text += &format!("{id} {kind}({reads}) -> {writes}: {}\n", nodes.join(", "));
        }
        text
    }
}

fn timed<T>(total: &mut Duration, f: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let out = f();
    *total += start.elapsed();
    out
}

/// The constants of all variants; bytes that variants share are kept once.
#[derive(Default)]
struct Constants {
    table: Table<ConstId, ir::graph::Constant>,
    /// By where the bytes are: variants are made from one graph and share what no pass has changed.
    seen: IndexMap<(usize, usize, DType, Vec<usize>), ConstId>,
}

impl Constants {
    /// Takes over the constants that a plan uses and renumbers them in it: those of its graph, and `more` that go on
    /// where those end.
    fn adopt(&mut self, plan: &mut Plan, core: &Graph, more: &[ir::graph::Constant]) {
        for buffer in plan.buffers.values_mut() {
            let (Place::Constant(id) | Place::Streamed(id)) = &mut buffer.place else {
                continue;
            };
            let constants = core.constants();
            let constant = match constants.get(*id) {
                Some(constant) => constant,
                None => &more[id.index() - constants.len()],
            };
            let t = &constant.tensor;
            let key = (t.bytes.as_ptr() as usize, t.bytes.len(), t.dtype, t.shape.clone());
            *id = *self
                .seen
                .entry(key)
                .or_insert_with(|| self.table.push(constant.clone()));
        }
    }
}
