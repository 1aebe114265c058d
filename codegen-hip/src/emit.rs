//! Plans to sources.

use ir::kernel::{Body, Kernel, Mapping, Stmt};
use ir::plan::{BufferId, KernelId, Place, Plan, Step, Work};
use ir::program::Source;
use ir::target::{MatrixFamily, Platform};
use ir::{Entity, Symbols, Table, Target};

use crate::expr::Printer;
use crate::types::is_nibble;

/// A kernel that cannot be printed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EmitError {
    /// What the kernel asks for has no HIP form.
    #[error("kernel {kernel}: no HIP form for {what}")]
    Unsupported { kernel: String, what: String },
    /// A bug of graphc: the mapping does not go with the body.
    #[error("internal error: kernel {kernel}: its body cannot be spread as {mapping}")]
    Mapping { kernel: String, mapping: String },
}

/// Prints every kernel of a plan; on a target that compiles nothing, none.
///
/// # Errors
/// As [`emit_kernel`], of the first kernel that fails.
pub fn emit(plan: &Plan) -> Result<Table<KernelId, Source>, EmitError> {
    if !plan.target.is_gpu() {
        return Ok(Table::new());
    }
    let aliased = aliased_params(plan);
    plan.kernels
        .iter()
        .map(|(id, kernel)| print_kernel(kernel, &plan.symbols, &plan.target, &aliased[id], beside(plan, id)))
        .collect()
}

/// Prints one kernel of a plan by another mapping than it has.
///
/// # Errors
/// As [`emit`].
pub fn emit_by(plan: &Plan, id: KernelId, mapping: Mapping) -> Result<Source, EmitError> {
    let kernel = Kernel {
        mapping,
        ..plan.kernels[id].clone()
    };
    let aliased = aliased_params(plan);
    print_kernel(&kernel, &plan.symbols, &plan.target, &aliased[id], beside(plan, id))
}

/// What tells AMD's compiler to keep loops. Those that the device library asks to unroll are unrolled all the same.
const KEEP_LOOPS: &str = "-fno-unroll-loops";

/// Has AMD's compiler keep loops whose number of turns it knows: where it unrolls a product's few steps along k, it
/// moves the reads of all of them to the front, and what they bring spills.
pub fn keep_loops(mut source: Source) -> Source {
    source.options.push(KEEP_LOOPS.to_owned());
    source
}

/// What a kernel of a plan does about the launches beside its own.
fn beside(plan: &Plan, id: KernelId) -> Beside {
    Beside {
        lets_next_begin: plan.overlap.lets_next_begin.contains(&id),
        reads_early: plan.overlap.reads_early.contains(&id),
    }
}

/// What a kernel does about the launches beside its own.
#[derive(Clone, Copy, Default)]
struct Beside {
    lets_next_begin: bool,
    reads_early: bool,
}

/// Prints one kernel. `aliased` says of each parameter whether some launch gives its bytes to another parameter too;
/// one that it does not list has its bytes alone.
///
/// # Errors
/// A body with no HIP form, or a mapping that does not go with the body.
pub fn emit_kernel(kernel: &Kernel, symbols: &Symbols, target: &Target, aliased: &[bool]) -> Result<Source, EmitError> {
    print_kernel(kernel, symbols, target, aliased, Beside::default())
}

fn print_kernel(
    kernel: &Kernel,
    symbols: &Symbols,
    target: &Target,
    aliased: &[bool],
    beside: Beside,
) -> Result<Source, EmitError> {
    let block = match &kernel.mapping {
        Mapping::Host => {
            return Err(EmitError::Mapping {
                kernel: kernel.name.clone(),
                mapping: "Host".to_owned(),
            });
        }
        Mapping::Threads { block, .. }
        | Mapping::Windows { block, .. }
        | Mapping::Lanes { block, .. }
        | Mapping::Block { block, .. }
        | Mapping::Rows { block, .. }
        | Mapping::Stream { block, .. }
        | Mapping::Transpose { block, .. }
        | Mapping::Flash { block, .. } => *block,
        Mapping::Tile {
            block_m,
            block_n,
            thread_m,
            thread_n,
            ..
        } => (block_m / thread_m) * (block_n / thread_n),
        Mapping::Strips(strips) => strips.block,
        Mapping::Steps(steps) => steps.block,
        Mapping::Matrix(tiling) => tiling.threads(),
        Mapping::Gemv(tiling) => tiling.threads(),
        Mapping::FlashMatrix(tiling) => tiling.threads(),
        Mapping::FlashLanes(tiling) => tiling.threads(),
    };
    updates_are_possible(kernel)?;
    let mut printer = Printer::new(kernel, symbols, target);
    printer.reads_early = beside.reads_early;
    printer.lets_next_begin = beside.lets_next_begin;
    printer.open_kernel(block, aliased);
    printer.body()?;
    printer.out.close("");
    Ok(Source {
        text: printer.out.finish(),
        entry: crate::name::entry(&kernel.name),
        options: options(kernel, target),
    })
}

/// How a platform's compiler is asked for optimised C++17 that rounds each result, as the ops of a model do:
/// `x * x - y * y` is 0 where x is y. Sums of products are fused by name (`math::multiply_add`). NVRTC optimises unless
/// it is told not to and has no `-O3`; unasked it warns of names that are not used (177), as an index of a row may be,
/// of unsigned elements below zero (186), and of divisions by an extent of zero (39, 179) in kernels that are never
/// launched. Instructions of warp groups are no part of what later architectures have too: NVRTC takes them for the
/// architecture with an `a` behind its name alone.
fn options(kernel: &Kernel, target: &Target) -> Vec<String> {
    let options: &[&str] = match target.platform {
        Platform::Cuda => &["-std=c++17", "--fmad=false", "--diag-suppress=39,177,179,186"],
        Platform::Hip | Platform::Cpu => &["-O3", "-std=c++17", "-ffp-contract=off"],
    };
    let own = match &kernel.mapping {
        Mapping::Matrix(tiling) if tiling.instruction.family == MatrixFamily::Wgmma => {
            Some(format!("--gpu-architecture={}a", target.name))
        }
        _ => None,
    };
    options.iter().map(|option| (*option).to_owned()).chain(own).collect()
}

/// Atomic updates work on whole bytes.
fn updates_are_possible(kernel: &Kernel) -> Result<(), EmitError> {
    let Body::Loops(loops) = &kernel.body else {
        return Ok(());
    };
    for s in &loops.stmts {
        if let Stmt::Update {
            param, op: Some(op), ..
        } = s
            && is_nibble(kernel.params[*param].dtype)
        {
            let what = format!("combining {} elements by {op} in place", kernel.params[*param].dtype);
            return Err(EmitError::Unsupported {
                kernel: kernel.name.clone(),
                what,
            });
        }
    }
    Ok(())
}

/// For each kernel and parameter, whether some launch gives it bytes that another parameter of the launch has too.
fn aliased_params(plan: &Plan) -> Table<KernelId, Vec<bool>> {
    // Buffers that work in place of another share its bytes.
    let mut root: Table<BufferId, BufferId> = plan.buffers.keys().collect();
    for (id, buffer) in plan.buffers.iter() {
        if let Place::Arena {
            in_place_of: Some(of), ..
        } = buffer.place
        {
            let (a, b) = (find(&root, id), find(&root, of));
            root[a] = b;
        }
    }
    let own = |kernel: &Kernel| vec![false; kernel.params.len()];
    let mut aliased: Table<KernelId, Vec<bool>> = plan.kernels.values().map(own).collect();
    for work in plan.steps.values().flat_map(Step::works) {
        let Work::Launch { kernel, args } = work else {
            continue;
        };
        for (i, a) in args.iter().enumerate() {
            let shared = args
                .iter()
                .enumerate()
                .any(|(j, b)| i != j && find(&root, *a) == find(&root, *b));
            if let Some(aliased) = aliased[*kernel].get_mut(i) {
                *aliased |= shared;
            }
        }
    }
    aliased
}

fn find(root: &Table<BufferId, BufferId>, mut id: BufferId) -> BufferId {
    while root[id].index() != id.index() {
        id = root[id];
    }
    id
}
