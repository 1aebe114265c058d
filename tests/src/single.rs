//! One kernel as a program of its own, so that a device runs it on given bytes.

use std::sync::Arc;

use graphc::ir::kernel::{Access, Kernel};
use graphc::ir::plan::{Buffer, BufferId, KernelId, Lane, LaneId, Overlap, Place, Plan, Port, Step, StepId, Work};
use graphc::ir::program::{Source, Variant};
use graphc::ir::schedule::LaneKind;
use graphc::ir::{Bindings, Dim, Entity, HostTensor, Program, Storage, Symbols, Table, Target, TensorType};
use graphc::runtime::device::Device;
use graphc::runtime::{LoadOptions, RuntimeError};

/// A kernel with its source, whose code is yet to be compiled: every buffer goes up, the kernel runs, what it wrote
/// comes back.
pub fn program(kernel: &Kernel, symbols: &Symbols, target: Target, source: &Source) -> Program {
    let mut plan = Plan {
        target,
        symbols: symbols.clone(),
        kernels: Table::new(),
        buffers: Table::new(),
        steps: Table::new(),
        lanes: Table::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        flops: Dim::from(0),
        checks: Vec::new(),
        streaming: None,
        share: None,
        states: Vec::new(),
        requirements: Vec::new(),
        overlap: Overlap::default(),
    };
    let lane = plan.lanes.push(Lane {
        kind: LaneKind::Compute,
    });
    let id = plan.kernels.push(kernel.clone());
    let params: Vec<_> = kernel.params.values().collect();
    let launch = StepId::new(params.len());
    let mut last = launch.index();
    let mut args: Vec<BufferId> = Vec::new();
    for (first, param) in params.iter().enumerate() {
        let ty = TensorType::new(param.dtype, [param.elements.clone()]);
        let written = param.access != Access::Read;
        last += usize::from(written);
        let mut buffer = |place: Place| {
            plan.buffers.push(Buffer {
                name: param.name.clone(),
                ty: ty.clone(),
                place,
            })
        };
        let from = buffer(Place::Input);
        let to = buffer(Place::Arena {
            first: StepId::new(first),
            last: if written { StepId::new(last) } else { launch },
            in_place_of: None,
        });
        plan.inputs.push(Port {
            name: param.name.clone(),
            ty: ty.clone(),
            buffer: from,
        });
        plan.steps.push(step(lane, Work::Copy { from, to }));
        args.push(to);
    }
    let work = Work::launch(id, args.clone());
    plan.steps.push(step(lane, work));
    for (param, from) in params.iter().zip(args) {
        if param.access != Access::Read {
            let ty = plan.buffers[from].ty.clone();
            let to = plan.buffers.push(Buffer {
                name: param.name.clone(),
                ty: ty.clone(),
                place: Place::Output,
            });
            plan.steps.push(step(lane, Work::Copy { from, to }));
            plan.outputs.push(Port {
                name: param.name.clone(),
                ty,
                buffer: to,
            });
        }
    }
    let sources: Table<KernelId, Source> = std::iter::once(source.clone()).collect();
    let code: Table<KernelId, Option<Vec<u8>>> = std::iter::once(None).collect();
    Program {
        name: kernel.name.clone(),
        variants: vec![Variant { plan, sources, code }],
        constants: Table::new(),
    }
}

fn step(lane: LaneId, work: Work) -> Step {
    Step::new(lane, Vec::new(), work, Dim::from(0))
}

/// Runs such a program on the contents of its buffers; gives what the kernel left in those that it writes.
///
/// # Errors
/// What the device reports.
pub fn run(
    device: &dyn Device,
    program: Program,
    buffers: &[HostTensor],
    bindings: &Bindings,
) -> Result<Vec<HostTensor>, RuntimeError> {
    let program = Arc::new(program);
    let kernel = &program.variants[0].plan.kernels[KernelId::new(0)];
    let written = kernel.params.values().zip(buffers);
    let written: Vec<&HostTensor> = written
        .filter(|(p, _)| p.access != Access::Read)
        .map(|(_, b)| b)
        .collect();
    let loaded = device.load(program.clone(), 0, &LoadOptions::default())?;
    let inputs: Vec<&[u8]> = buffers.iter().map(|b| &b.bytes[..]).collect();
    let mut outputs: Vec<Vec<u8>> = written.iter().map(|b| vec![0xff; b.bytes.len()]).collect();
    let mut places: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    loaded.run(bindings, &inputs, &mut places, None)?;
    let tensors = outputs.into_iter().zip(written).map(|(bytes, like)| {
        let made = HostTensor::new(like.dtype, like.shape.clone(), Storage::new(bytes));
        made.map_err(|error| RuntimeError::Program(error.to_string()))
    });
    tensors.collect()
}
