//! Artifacts, plans and kernels.

use graphc::ir::kernel::{Access, Kernel as IrKernel};
use graphc::ir::plan::{Buffer, BufferId, Lane, Overlap, Place, Plan as IrPlan, Port, Step, Work};
use graphc::ir::program::Variant;
use graphc::ir::program::artifact::Check;
use graphc::ir::schedule::LaneKind;
use graphc::ir::{
    ConstId, Dim, HostTensor, Program, Storage, Symbols, Table, Target as IrTarget, TensorType, graph::Constant,
};

use super::execute;
use crate::random::Random;
use crate::{Outcome, Target, mutate, seeds};

/// The bytes of artifacts, their checksum made right again.
pub(super) struct Artifact;

/// Where the header begins, and what stands before it: see `ir::program::artifact`.
const PREFIX: usize = 52;

impl Target for Artifact {
    fn name(&self) -> &'static str {
        "artifact"
    }

    fn case(&self, random: &mut Random) -> Outcome {
        let seed = random.of(seeds::programs());
        let bytes = seed.to_bytes().expect("a seed is written");
        let length = u64::from_le_bytes(bytes[12..20].try_into().expect("eight bytes")) as usize;
        let (prefix, rest) = bytes.split_at(PREFIX);
        let (header, sections) = rest.split_at(length);
        let mut header = header.to_vec();
        mutate::bytes(&mut header, random);
        let mut file = prefix.to_vec();
        if header.len() == length || random.once_in(2) {
            file[12..20].copy_from_slice(&(header.len() as u64).to_le_bytes());
        }
        file[20..52].copy_from_slice(blake3::hash(&header).as_bytes());
        file.extend(&header);
        // Sections begin at multiples of 64.
        let start = (PREFIX + length).next_multiple_of(64) - PREFIX - length;
        file.resize(file.len().next_multiple_of(64), 0);
        file.extend(sections.get(start..).unwrap_or_default());
        read_and_run(file, random)
    }
}

fn read_and_run(file: Vec<u8>, random: &mut Random) -> Outcome {
    match Program::read(&Storage::new(file), Check::Code) {
        Ok(program) => execute::run(program, random),
        Err(_) => Outcome::Refused,
    }
}

/// The fields of plans, and now and then their bytes.
pub(super) struct Plan;

impl Target for Plan {
    fn name(&self) -> &'static str {
        "plan"
    }

    fn case(&self, random: &mut Random) -> Outcome {
        let mut program = random.of(seeds::programs()).clone();
        let variant = &mut program.variants[0];
        for _ in 0..=random.below(3) {
            mutate::plan(&mut variant.plan, random);
        }
        if random.once_in(4) {
            let mut bytes = postcard::to_stdvec(&variant.plan).expect("a plan is written");
            mutate::bytes(&mut bytes, random);
            match postcard::from_bytes(&bytes) {
                Ok(plan) => variant.plan = plan,
                Err(_) => return Outcome::Refused,
            }
        }
        read_and_run(program.to_bytes().expect("a program is written"), random)
    }
}

/// One kernel, each of its buffers with an end of its own.
pub(super) struct Kernel;

impl Target for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn case(&self, random: &mut Random) -> Outcome {
        let plan = &random.of(seeds::programs()).variants[0].plan;
        if plan.kernels.is_empty() {
            return Outcome::Accepted;
        }
        let mut kernel = plan
            .kernels
            .values()
            .nth(random.below(plan.kernels.len()))
            .expect("one of them")
            .clone();
        let constants: Vec<bool> = kernel.params.values().map(|_| random.once_in(2)).collect();
        for _ in 0..random.below(4) {
            mutate::kernel(&mut kernel, random);
        }
        if random.once_in(6) {
            let mut bytes = postcard::to_stdvec(&kernel).expect("a kernel is written");
            mutate::bytes(&mut bytes, random);
            match postcard::from_bytes(&bytes) {
                Ok(changed) => kernel = changed,
                Err(_) => return Outcome::Refused,
            }
        }
        let program = alone(kernel, &plan.symbols, &constants, random);
        read_and_run(program.to_bytes().expect("a program is written"), random)
    }
}

/// A program of one launch. Operands of known sizes may be constants, as `constants` has it; what is written is an
/// output, which begins as a copy of an input where the kernel reads it too.
fn alone(kernel: IrKernel, symbols: &Symbols, constants: &[bool], random: &mut Random) -> Program {
    let mut plan = IrPlan {
        target: IrTarget::cpu(),
        symbols: symbols.clone(),
        kernels: Table::new(),
        buffers: Table::new(),
        steps: Table::new(),
        lanes: Table::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        checks: Vec::new(),
        streaming: None,
        share: None,
        states: Vec::new(),
        flops: Dim::Const(0),
        requirements: Vec::new(),
        overlap: Overlap::default(),
    };
    let lane = plan.lanes.push(Lane {
        kind: LaneKind::Compute,
    });
    let mut table: Table<ConstId, Constant> = Table::new();
    let mut args: Vec<BufferId> = Vec::new();
    let step = |work| Step::new(lane, Vec::new(), work, Dim::Const(0));
    for (at, param) in kernel.params.values().enumerate() {
        let ty = TensorType::new(param.dtype, [param.elements.clone()]);
        let port = |buffer: BufferId, name: String| Port {
            name,
            ty: ty.clone(),
            buffer,
        };
        let mut buffer = |place: Place| {
            plan.buffers.push(Buffer {
                name: format!("b{at}"),
                ty: ty.clone(),
                place,
            })
        };
        let known = param.elements.as_const().filter(|n| (0..1 << 16).contains(n));
        if param.access == Access::Read {
            let constant = known.filter(|_| constants.get(at) == Some(&true));
            if let Some(elements) = constant {
                let values: Vec<f64> = (0..elements).map(|_| random.below(16) as f64 / 4.0 - 2.0).collect();
                let Ok(tensor) = HostTensor::from_f64(param.dtype, [elements as usize], &values) else {
                    continue;
                };
                let id = table.push(Constant { name: None, tensor });
                args.push(buffer(Place::Constant(id)));
            } else {
                let id = buffer(Place::Input);
                plan.inputs.push(port(id, format!("x{at}")));
                args.push(id);
            }
            continue;
        }
        let to = buffer(Place::Output);
        if param.access == Access::ReadWrite {
            let from = buffer(Place::Input);
            plan.inputs.push(port(from, format!("x{at}")));
            plan.steps.push(step(Work::Copy { from, to }));
        }
        plan.outputs.push(port(to, format!("y{at}")));
        args.push(to);
    }
    let id = plan.kernels.push(kernel);
    plan.steps.push(step(Work::launch(id, args)));
    Program {
        name: "alone".into(),
        variants: vec![Variant {
            sources: plan.kernels.values().map(|_| Default::default()).collect(),
            code: plan.kernels.values().map(|_| None).collect(),
            plan,
        }],
        constants: table,
    }
}
