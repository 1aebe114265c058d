//! Runs a case in every way that graphc has, and lists where they differ.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use graphc::driver::{BuildOptions, build};
use graphc::runtime::{Executable, LoadOptions};
use graphc_tests::reference::{Tensors, tolerance};
use ir::kernel::{Access, Kernel};
use ir::plan::{BufferId, Place, Plan, Work};
use ir::program::{Program, Source};
use ir::{Bindings, DType, Graph, HostTensor, Storage, Table, Target};
use passes::OptLevel;

use crate::host_shim::{self, Job};

/// A graph's text and its inputs.
pub struct Case {
    name: &'static str,
    graph: String,
    inputs: Tensors,
}

/// `body` is the graph's statements; inputs are declared from the tensors, and what is called `y` is returned.
pub fn case(name: &'static str, inputs: &[(&str, HostTensor)], body: &str) -> Case {
    let mut graph = format!("graph @{name} stage=import {{\n");
    for (name, tensor) in inputs {
        let (dtype, shape) = (tensor.dtype, &tensor.shape);
        let _ = writeln!(graph, "  {name} = input \"{name}\" : {dtype}{shape:?}");
    }
    let _ = write!(graph, "{body}\n  return y as \"y\"\n}}\n");
    let inputs = inputs.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect();
    Case { name, graph, inputs }
}

pub fn ints(dtype: DType, shape: &[usize], values: impl IntoIterator<Item = i64>) -> HostTensor {
    let n = shape.iter().product();
    let values: Vec<i64> = values.into_iter().take(n).collect();
    HostTensor::from_i64(dtype, shape.to_vec(), &values).expect("as many numbers as elements")
}

pub fn floats(dtype: DType, shape: &[usize], values: impl IntoIterator<Item = f64>) -> HostTensor {
    let n = shape.iter().product();
    let values: Vec<f64> = values.into_iter().take(n).collect();
    HostTensor::from_f64(dtype, shape.to_vec(), &values).expect("as many numbers as elements")
}

/// Numbers without end that reach from one end of a range to the other.
pub fn wild(low: i64, high: i64) -> impl Iterator<Item = i64> {
    let span = (i128::from(high) - i128::from(low) + 1) as u128;
    (0u64..).map(move |i| {
        let word = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match i % 5 {
            0 => low,
            1 => high,
            _ => (i128::from(low) + (u128::from(word) % span) as i128) as i64,
        }
    })
}

/// Numbers in `[-2, 2)` that are the same every run.
pub fn waves() -> impl Iterator<Item = f64> {
    (0u64..).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / f64::from(1 << 22) - 2.0)
}

fn differ(got: &HostTensor, want: &HostTensor) -> Option<String> {
    if (got.dtype, &got.shape) != (want.dtype, &want.shape) {
        return Some(format!(
            "{}{:?}, not {}{:?}",
            got.dtype, got.shape, want.dtype, want.shape
        ));
    }
    let (rtol, atol) = match want.dtype.is_float() {
        true => tolerance(want.dtype),
        false => (0.0, 0.0),
    };
    if !want.dtype.is_float() {
        let (got, want) = (got.to_i64(), want.to_i64());
        return (got != want).then(|| format!("{got:?}, not {want:?}"));
    }
    let (got, want) = (got.to_f64(), want.to_f64());
    let same = |g: f64, w: f64| g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= rtol * w.abs() + atol;
    let wrong = (0..want.len()).find(|i| !same(got[*i], want[*i]))?;
    Some(format!("[{wrong}] is {:e}, not {:e}", got[wrong], want[wrong]))
}

/// A launch of a plan, with the buffers it finds.
struct Launch {
    case: &'static str,
    kernel: Kernel,
    source: Source,
    buffers: Vec<HostTensor>,
    bindings: Bindings,
}

/// The launches of a plan for one run, each on the buffers that the evaluator says it finds.
fn launches(case: &Case, graph: &Graph, plan: &Plan, program: &Program) -> Vec<Launch> {
    let shapes = case.inputs.iter().map(|(n, t)| (n.as_str(), t.shape.as_slice()));
    let declared: Vec<_> = plan.inputs.iter().map(|p| (p.name.as_str(), &p.ty)).collect();
    let bindings = ir::graph::bind_shapes(graph.symbols(), &declared, &shapes.collect()).expect("inputs that fit");
    let mut buffers: Table<BufferId, Option<HostTensor>> = plan.buffers.keys().map(|_| None).collect();
    for port in &plan.inputs {
        buffers[port.buffer] = Some(case.inputs[&port.name].clone());
    }
    let mut found = Vec::new();
    let read = |buffers: &Table<BufferId, Option<HostTensor>>, mut id: BufferId| {
        let ty = &plan.buffers[id].ty;
        let shape: Vec<usize> = ty
            .shape
            .eval(&bindings)
            .expect("bound")
            .iter()
            .map(|d| *d as usize)
            .collect();
        let bytes = loop {
            let b = &plan.buffers[id];
            match (&buffers[id], &b.place) {
                (Some(tensor), _) => break tensor.bytes.clone(),
                (None, Place::Constant(c) | Place::Streamed(c)) => break program.constants[*c].tensor.bytes.clone(),
                (
                    None,
                    Place::Arena {
                        in_place_of: Some(of), ..
                    },
                ) => id = *of,
                (None, _) => break Storage::new(vec![0xff; ty.bytes().eval(&bindings).expect("bound") as usize]),
            }
        };
        HostTensor::new(ty.dtype, shape, bytes).expect("fits")
    };
    for step in plan.steps.values() {
        match &step.work {
            Work::Launch { kernel, args, .. } => {
                let (source, kernel) = (program.variants[0].sources[*kernel].clone(), &plan.kernels[*kernel]);
                let mut tensors: Vec<HostTensor> = args.iter().map(|a| read(&buffers, *a)).collect();
                found.push(Launch {
                    case: case.name,
                    kernel: kernel.clone(),
                    source,
                    buffers: tensors.clone(),
                    bindings: bindings.clone(),
                });
                ir::kernel::eval::evaluate(kernel, &mut tensors, &bindings).unwrap_or_else(|e| panic!("{e}"));
                for (arg, tensor) in args.iter().zip(tensors) {
                    buffers[*arg] = Some(tensor);
                }
            }
            Work::Copy { from, to } => buffers[*to] = Some(read(&buffers, *from)),
            Work::Call { call, .. } => panic!("{}: a call of {}", case.name, call.name()),
        }
    }
    found
}

/// Everything but the execution of the generated HIP, whose launches are returned.
fn check(case: &Case, wrong: &mut Vec<String>) -> Vec<Launch> {
    let graph = ir::graph::parse::parse(&case.graph).unwrap_or_else(|e| panic!("{}: {e}", case.graph));
    ir::graph::verify::verify(&graph).unwrap_or_else(|e| panic!("{}: {e}", case.graph));
    let want = ir::graph::eval::evaluate(&graph, &case.inputs).expect("the reference evaluates");
    let mut judge = |context: &str, got: &Tensors| {
        for (name, want) in &want {
            if let Some(what) = differ(&got[name], want) {
                wrong.push(format!("{}: {context}: {what}", case.name));
            }
        }
    };
    let mut found = Vec::new();
    for level in [OptLevel::O0, OptLevel::O2] {
        for target in ["cpu", "gfx906", "gfx1030"] {
            let target: Target = target.parse().expect("a target of the table");
            let mut options = BuildOptions::new(vec![target], level);
            options.optimize.verify = true;
            // Indices outside their axes are clamped alike everywhere.
            options.check_indices = Some(false);
            let built = build(&graph, &options).unwrap_or_else(|e| panic!("{}: {e}", case.graph));
            let context = |what: &str| format!("{what} for {target} at {level:?}");
            let core = ir::graph::eval::evaluate(&built.reports[0].core, &case.inputs).expect("evaluates");
            judge(&context("optimised graph"), &core);
            let plan = &built.program.variants[0].plan;
            let planned = ir::plan::eval::evaluate(plan, &built.program.constants, &case.inputs).expect("evaluates");
            judge(&context("plan"), &planned);
            if target.is_gpu() {
                found.extend(launches(case, &graph, plan, &built.program));
                continue;
            }
            let exe = Executable::load_on(
                &graphc::cpu_device(),
                Arc::new(built.program),
                0,
                &LoadOptions::default(),
            )
            .expect("loads");
            let ran = exe.run(&case.inputs).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            judge(&context("CPU"), &ran);
        }
    }
    found
}

pub fn check_all(cases: &[Case]) {
    let mut wrong = Vec::new();
    let found: Vec<Launch> = cases.iter().flat_map(|c| check(c, &mut wrong)).collect();
    if host_shim::is_available() {
        // Levels and targets often give the same kernel on the same numbers.
        let mut seen = HashSet::new();
        let found: Vec<&Launch> = found
            .iter()
            .filter(|l| !l.kernel.launch_size(&l.bindings).expect("fits").grid.contains(&0))
            .filter(|l| {
                let bytes: Vec<&[u8]> = l.buffers.iter().map(|b| &b.bytes[..]).collect();
                seen.insert((&l.source.text, bytes))
            })
            .collect();
        let jobs: Vec<Job<'_>> = found
            .iter()
            .map(|l| Job {
                kernel: &l.kernel,
                source: &l.source,
                buffers: l.buffers.clone(),
                bindings: l.bindings.clone(),
            })
            .collect();
        let results = host_shim::run(&jobs).unwrap_or_else(|e| panic!("{e}"));
        for (launch, got) in found.iter().zip(&results) {
            let mut want = launch.buffers.clone();
            ir::kernel::eval::evaluate(&launch.kernel, &mut want, &launch.bindings).unwrap_or_else(|e| panic!("{e}"));
            for ((param, got), want) in launch.kernel.params.values().zip(got).zip(&want) {
                if param.access != Access::Read
                    && let Some(what) = differ(got, want)
                {
                    let text = &launch.source.text;
                    wrong.push(format!(
                        "{}: HIP of {}: {what}\n{text}",
                        launch.case, launch.kernel.name
                    ));
                }
            }
        }
        println!("{} launches executed", jobs.len());
    } else {
        println!("generated code was not executed: no g++ on this machine");
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}
