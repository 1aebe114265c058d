//! Checks of a kernel that need the target and the bounds of sizes.

use super::access::Motions;
use super::{
    AttentionBody, AxisId, Body, ContractBody, Expr, ExprId, Fetch, FlashLanes, FlashTiling, GemvMatrix, GemvStream,
    Kernel, Mapping, Operand, ParamId, RecurrentBody, Stmt, Tiling,
};
use crate::dim::Symbols;
use crate::target::Target;
use crate::types::DType;

/// Bytes of the widest memory access of a lane.
const ACCESS_BYTES: u32 = 16;

/// Loads of a wave that are waited for one by one: AMD's counter of them has six bits.
const COUNTED_LOADS: u32 = 63;

/// What a kernel asks of a target that the target does not have, or that is not proved of its accesses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LimitError {
    #[error("kernel {kernel}: {target} has no instruction {instruction}")]
    Instruction {
        kernel: String,
        target: String,
        instruction: String,
    },
    #[error("kernel {kernel}: its workgroups take {bytes} bytes of LDS; one on {target} has {limit}")]
    Lds {
        kernel: String,
        target: String,
        bytes: u64,
        limit: u32,
    },
    #[error("kernel {kernel}: its workgroups have {threads} threads; one on {target} has {limit} at most")]
    Threads {
        kernel: String,
        target: String,
        threads: u64,
        limit: u32,
    },
    #[error(
        "kernel {kernel}: a lane holds {registers} registers of sums and elements; with {threads} threads a workgroup one \
         on {target} has {limit}"
    )]
    Registers {
        kernel: String,
        target: String,
        registers: u64,
        threads: u64,
        limit: u32,
    },
    #[error("kernel {kernel}: its waves have {lanes} lanes, and those of {target} {wave}")]
    Lanes {
        kernel: String,
        target: String,
        lanes: u32,
        wave: u32,
    },
    #[error("kernel {kernel}: {operand} is not known to lie in memory so that it can be fetched {fetch}")]
    Fetch {
        kernel: String,
        operand: &'static str,
        fetch: String,
    },
    #[error("kernel {kernel}: {operand}, fetched {fetch}, cannot go straight to LDS on {target}")]
    Direct {
        kernel: String,
        target: String,
        operand: &'static str,
        fetch: String,
    },
    #[error("kernel {kernel}: {loads} loads of a wave would be under way, of which {most} are counted")]
    Loads { kernel: String, loads: u32, most: u32 },
    #[error("kernel {kernel}: its stores are not known to be {width} neighbours")]
    Store { kernel: String, width: u32 },
    #[error("kernel {kernel}: its weights cannot be streamed with {pack} scales of a column in one access")]
    Stream { kernel: String, pack: u32 },
    #[error("kernel {kernel}: a unit of {target} has no room for two workgroups of {bytes} bytes of LDS")]
    Together { kernel: String, target: String, bytes: u32 },
    #[error("kernel {kernel}: steps of {step} along k are not known to have one scale and one zero point a column")]
    Scale { kernel: String, step: u32 },
    #[error(
        "kernel {kernel}: {workgroups} workgroups are to share a unit, which the compiler for {target} is not told"
    )]
    Residents {
        kernel: String,
        target: String,
        workgroups: u32,
    },
}

/// Checks a kernel that [`super::verify::verify`] passes against what the target has: LDS, threads and registers of
/// every mapping, and what single mappings ask for beside.
///
/// # Errors
/// Every limit that is exceeded, every wide access that is not proved.
pub fn check(kernel: &Kernel, symbols: &Symbols, target: &Target) -> Vec<LimitError> {
    let mut errors = room(kernel, target);
    errors.extend(of_mapping(kernel, symbols, target));
    errors
}

/// Errors of workgroups that take more than a compute unit has.
fn room(kernel: &Kernel, target: &Target) -> Vec<LimitError> {
    let name = || kernel.name.clone();
    let Some(threads) = super::verify::threads(&kernel.mapping) else {
        return Vec::new();
    };
    let mut errors = Vec::new();
    if threads > u64::from(target.workgroup_threads) {
        errors.push(LimitError::Threads {
            kernel: name(),
            target: target.to_string(),
            threads,
            limit: target.workgroup_threads,
        });
    }
    let bytes = kernel.lds_bytes(target.wave_size);
    let limit = match kernel.launch_lds() {
        0 => target.lds_bytes,
        _ => target.most_lds_bytes(),
    };
    if bytes > u64::from(limit) {
        errors.push(LimitError::Lds {
            kernel: name(),
            target: target.to_string(),
            bytes,
            limit,
        });
    }
    let (registers, limit) = (kernel.held_registers(), target.lane_registers(threads));
    if registers > u64::from(limit) {
        errors.push(LimitError::Registers {
            kernel: name(),
            target: target.to_string(),
            registers,
            threads,
            limit,
        });
    }
    errors
}

/// Errors of single mappings, beside those of every one.
fn of_mapping(kernel: &Kernel, symbols: &Symbols, target: &Target) -> Vec<LimitError> {
    if let Mapping::Transpose { axis, load, tiled, .. } = &kernel.mapping {
        return transposed(kernel, symbols, (*axis, *load), tiled);
    }
    if let (Mapping::FlashMatrix(tiling), Body::Attention(body)) = (&kernel.mapping, &kernel.body) {
        return flash(kernel, symbols, target, tiling, body);
    }
    if let (Mapping::FlashLanes(tiling), Body::Attention(body)) = (&kernel.mapping, &kernel.body) {
        return flash_by_lanes(kernel, symbols, target, tiling, body);
    }
    if let (Mapping::Steps(steps), Body::Recurrent(body)) = (&kernel.mapping, &kernel.body) {
        return match widest_gate(kernel, symbols, body).is_multiple_of(steps.width) {
            true => Vec::new(),
            false => vec![LimitError::Fetch {
                kernel: kernel.name.clone(),
                operand: "the recurrent weights",
                fetch: format!("{} neighbours at once", steps.width),
            }],
        };
    }
    let name = || kernel.name.clone();
    if let Mapping::Rows {
        resident: Some(workgroups),
        ..
    } = kernel.mapping
        && !target.told_residents
    {
        return vec![LimitError::Residents {
            kernel: name(),
            target: target.to_string(),
            workgroups,
        }];
    }
    if let (Mapping::Gemv(t), Body::Contract(body)) = (&kernel.mapping, &kernel.body) {
        let mut errors = accesses(kernel, symbols, body, [t.lhs, t.rhs], t.store);
        let instructions = [
            t.matrix.as_ref().map(|matrix| &matrix.instruction),
            t.stream.as_ref().map(|stream| &stream.instruction),
        ];
        let unknown = instructions
            .into_iter()
            .flatten()
            .filter(|i| !target.matrix.contains(i));
        errors.extend(unknown.map(|instruction| LimitError::Instruction {
            kernel: name(),
            target: target.to_string(),
            instruction: instruction.to_string(),
        }));
        if let Some(matrix) = &t.matrix {
            let step = GemvMatrix::step(t.rhs);
            if matrix.scaled_sums && !unpacks_alike(kernel, symbols, &body.rhs, &body.k, step) {
                errors.push(LimitError::Scale { kernel: name(), step });
            }
        }
        if let Some(stream) = &t.stream
            && !stream_pack(kernel, symbols, body).is_some_and(|pack| pack.is_multiple_of(stream.pack))
        {
            errors.push(LimitError::Stream {
                kernel: name(),
                pack: stream.pack,
            });
        }
        let bytes = kernel.gemv_lds();
        let together = t.stream.as_ref().is_some_and(|stream| stream.residents == 2);
        if together && !GemvStream::fit_together(&[bytes; 2], target.most_lds_bytes()) {
            errors.push(LimitError::Together {
                kernel: name(),
                target: target.to_string(),
                bytes,
            });
        }
        return errors;
    }
    let (Mapping::Matrix(tiling), Body::Contract(body)) = (&kernel.mapping, &kernel.body) else {
        return Vec::new();
    };
    let mut errors = Vec::new();
    if !target.matrix.contains(&tiling.instruction) {
        errors.push(LimitError::Instruction {
            kernel: name(),
            target: target.to_string(),
            instruction: tiling.instruction.to_string(),
        });
    }
    errors.extend(accesses(kernel, symbols, body, [tiling.lhs, tiling.rhs], tiling.store));
    if tiling.loads_to_lds() {
        errors.extend(direct(kernel, target, tiling));
    }
    errors
}

/// Says whether the tiles of an operand can be loaded straight to LDS: whole accesses, which reads turn where they do
/// not lie along k.
pub fn goes_straight(tiling: &Tiling, fetch: Fetch, target: &Target) -> bool {
    let bits = tiling.instruction.input.bits();
    let whole = target.direct_bytes > 0 && (fetch.width * bits / 8).is_multiple_of(target.direct_bytes);
    whole && (fetch.along_k || target.turned_bits.contains(&bits))
}

/// Loads of a wave that stay under way while it waits for a tile.
fn loads_under_way(tiling: &Tiling, target: &Target) -> u32 {
    let loads = tiling.direct_loads(target.direct_bytes);
    tiling.stages.saturating_sub(2).saturating_mul(loads)
}

/// Says whether a target loads a tiling's tiles straight to LDS.
pub fn has_direct(tiling: &Tiling, target: &Target) -> bool {
    [tiling.lhs, tiling.rhs]
        .iter()
        .all(|f| goes_straight(tiling, *f, target))
        && loads_under_way(tiling, target) <= COUNTED_LOADS
}

/// What the loads of tiles straight to LDS ask of a target that it does not have.
fn direct(kernel: &Kernel, target: &Target, tiling: &Tiling) -> Vec<LimitError> {
    let mut errors = Vec::new();
    for (operand, fetch) in [("the lhs", tiling.lhs), ("the rhs", tiling.rhs)] {
        if !goes_straight(tiling, fetch, target) {
            errors.push(LimitError::Direct {
                kernel: kernel.name.clone(),
                target: target.to_string(),
                operand,
                fetch: fetch.to_string(),
            });
        }
    }
    let loads = loads_under_way(tiling, target);
    if errors.is_empty() && loads > COUNTED_LOADS {
        errors.push(LimitError::Loads {
            kernel: kernel.name.clone(),
            loads,
            most: COUNTED_LOADS,
        });
    }
    errors
}

/// The wide accesses of a contraction that are not proved.
fn accesses(
    kernel: &Kernel,
    symbols: &Symbols,
    body: &ContractBody,
    fetches: [Fetch; 2],
    store: u32,
) -> Vec<LimitError> {
    let mut errors = Vec::new();
    let name = || kernel.name.clone();
    let operands = [("the lhs", &body.lhs), ("the rhs", &body.rhs)];
    for (((place, operand), fetch), rows) in operands.into_iter().zip(fetches).zip([&body.m, &body.n]) {
        let inner = if fetch.along_k { body.k.last() } else { rows.last() };
        let proved = fetch.width == 1
            || inner.is_some_and(|axis| widest_fetch(kernel, symbols, operand, *axis).is_multiple_of(fetch.width));
        if !proved {
            errors.push(LimitError::Fetch {
                kernel: name(),
                operand: place,
                fetch: fetch.to_string(),
            });
        }
    }
    if store != 1 && !widest_store(kernel, symbols, body).is_multiple_of(store) {
        errors.push(LimitError::Store {
            kernel: name(),
            width: store,
        });
    }
    errors
}

/// The LDS that the tiles of a contraction may take.
pub fn lds_limit(tiling: &Tiling, target: &Target) -> u32 {
    if tiling.launch_lds() > 0 {
        target.most_lds_bytes()
    } else {
        target.lds_bytes
    }
}

/// The limits of an attention by matrix instructions.
fn flash(
    kernel: &Kernel,
    symbols: &Symbols,
    target: &Target,
    tiling: &FlashTiling,
    body: &AttentionBody,
) -> Vec<LimitError> {
    let mut errors = Vec::new();
    let name = || kernel.name.clone();
    if !target.matrix.contains(&tiling.instruction) {
        errors.push(LimitError::Instruction {
            kernel: name(),
            target: target.to_string(),
            instruction: tiling.instruction.to_string(),
        });
    }
    let fetches = (tiling.query, tiling.key, tiling.value);
    errors.extend(flash_accesses(
        kernel,
        symbols,
        body,
        fetches,
        [body.dv, body.k],
        tiling.store,
    ));
    errors
}

/// The limits of an attention by the lanes.
fn flash_by_lanes(
    kernel: &Kernel,
    symbols: &Symbols,
    target: &Target,
    tiling: &FlashLanes,
    body: &AttentionBody,
) -> Vec<LimitError> {
    let mut errors = Vec::new();
    if tiling.lanes != target.wave_size {
        errors.push(LimitError::Lanes {
            kernel: kernel.name.clone(),
            target: target.to_string(),
            lanes: tiling.lanes,
            wave: target.wave_size,
        });
    }
    let fetches = (tiling.query, tiling.key, tiling.value);
    errors.extend(flash_accesses(
        kernel,
        symbols,
        body,
        fetches,
        [body.k, body.dv],
        tiling.store,
    ));
    errors
}

/// The loads of a transposing kernel whose groups of neighbours along an axis are not proved.
fn transposed(kernel: &Kernel, symbols: &Symbols, (axis, width): (AxisId, u32), tiled: &[ExprId]) -> Vec<LimitError> {
    let mut motions = Motions::new(kernel, symbols, axis, width.into());
    let mut errors = Vec::new();
    for load in tiled {
        let proved = match kernel.exprs[*load] {
            Expr::Load { param, index } => {
                let bits = kernel.params[param].dtype.bits();
                bits >= 8
                    && bits.saturating_mul(width) <= ACCESS_BYTES * 8
                    && motions.of(index).is_some_and(|m| m.is_wide(width.into()))
            }
            _ => false,
        };
        if !proved {
            errors.push(LimitError::Fetch {
                kernel: kernel.name.clone(),
                operand: "what goes through LDS",
                fetch: format!("{width} neighbours at once along {}", kernel.axes[axis].name),
            });
        }
    }
    errors
}

/// The wide accesses of an attention that are not proved: of queries, keys and values, whose rows and depth are
/// `value`, and of the results.
fn flash_accesses(
    kernel: &Kernel,
    symbols: &Symbols,
    body: &AttentionBody,
    (query, key, of_value): (u32, Fetch, Fetch),
    value: [AxisId; 2],
    store: u32,
) -> Vec<LimitError> {
    let mut errors = Vec::new();
    let name = || kernel.name.clone();
    let along_k = |width| Fetch { along_k: true, width };
    let operands = [
        ("the query", body.query, along_k(query), [body.q, body.d]),
        ("the key", body.key, key, [body.k, body.d]),
        ("the value", body.value, of_value, value),
    ];
    for (operand, value, fetch, [rows, k]) in operands {
        let axis = if fetch.along_k { k } else { rows };
        let widest = widest_fetch(kernel, symbols, &Operand::new(&kernel.exprs, value), axis);
        if fetch.width != 1 && !widest.is_multiple_of(fetch.width) {
            errors.push(LimitError::Fetch {
                kernel: name(),
                operand,
                fetch: fetch.to_string(),
            });
        }
    }
    if store != 1 && !widest_group(kernel, symbols, &body.epilogue, body.dv).is_multiple_of(store) {
        errors.push(LimitError::Store {
            kernel: name(),
            width: store,
        });
    }
    errors
}

/// Returns how many neighbours of an operand along `axis` can be read by one access: a power of two that divides the
/// axis, whose groups lie side by side in memory from a multiple of their width, and are guarded and unpacked alike. 1
/// where nothing more is known.
pub fn widest_fetch(kernel: &Kernel, symbols: &Symbols, operand: &Operand, axis: AxisId) -> u32 {
    let Some(access) = operand.access else { return 1 };
    let dtype = kernel.params[access.param].dtype;
    let element = operand.element(&kernel.exprs);
    // Elements of four bits share a byte; a converted element has another width than the stored one, unless it has 8
    // bits.
    if access.unpacking.is_none() && (dtype.bits() < 8 || dtype != element && !dtype.is_byte_number()) {
        return 1;
    }
    let shared: Vec<ExprId> = access
        .unpacking
        .iter()
        .flat_map(|u| [Some(u.scale), u.zero])
        .flatten()
        .collect();
    let mut width = match access.unpacking {
        Some(_) => ACCESS_BYTES * 8 / dtype.bits(),
        // As many as are an access once they are converted.
        None => ACCESS_BYTES * 8 / dtype.bits().max(element.bits()),
    };
    while width > 1 {
        let mut motions = Motions::new(kernel, symbols, axis, i64::from(width));
        let divides = kernel.axes[axis].extent.known_divisor() % i64::from(width) == 0;
        let wide = motions.of(access.index).is_some_and(|m| m.is_wide(i64::from(width)));
        let alike = access.guard.is_none_or(|g| motions.is_uniform(g)) && shared.iter().all(|e| motions.is_shared(*e));
        if divides && wide && alike {
            break;
        }
        width /= 2;
    }
    width
}

/// Returns how many neighbouring recurrent weights of a gate can be read by one access, as [`widest_fetch`] does.
pub fn widest_gate(kernel: &Kernel, symbols: &Symbols, body: &RecurrentBody) -> u32 {
    let stored = body.stored_weights(&kernel.exprs);
    match kernel.exprs[stored] {
        Expr::Load { .. } => widest_fetch(kernel, symbols, &Operand::new(&kernel.exprs, stored), body.inner),
        _ => 1,
    }
}

/// Says whether the elements of each step of `width` along `k`, from the first on, are unpacked by one scale and one
/// zero point: the axes are walked as one, of which the last moves fastest.
pub fn unpacks_alike(kernel: &Kernel, symbols: &Symbols, operand: &Operand, k: &[AxisId], width: u32) -> bool {
    let (Some(unpacking), Some(&axis)) = (operand.unpacking(), k.last()) else {
        return false;
    };
    // Of several axes no step may begin in one row of the last and end in the next.
    let divides = kernel.axes[axis].extent.known_divisor() % i64::from(width.max(1)) == 0;
    let mut motions = Motions::new(kernel, symbols, axis, i64::from(width));
    let shared = [Some(unpacking.scale), unpacking.zero];
    (k.len() == 1 || divides) && shared.into_iter().flatten().all(|e| motions.is_shared(e))
}

/// Where the scales of a quantised operand are loaded from, and its zero points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scales {
    pub scale: (ParamId, ExprId),
    pub zero: Option<(ParamId, ExprId)>,
    /// Bits of a scale and of a zero point.
    pub bits: u32,
}

/// Returns where an operand's scales lie, if they are floats that are loaded as they are, and its zero points, if it
/// has some, integers of its own type of four bits.
pub fn scales(kernel: &Kernel, operand: &Operand) -> Option<Scales> {
    let (access, unpacking) = (operand.access?, operand.unpacking()?);
    let loaded = |e: ExprId| match kernel.exprs[e] {
        Expr::Load { param, index } => Some((param, index)),
        _ => None,
    };
    let inner = match kernel.exprs[unpacking.scale] {
        Expr::Cast(DType::F32, inner) => inner,
        _ => unpacking.scale,
    };
    let scale = loaded(inner)?;
    let of_scale = kernel.params[scale.0].dtype;
    if !matches!(of_scale, DType::F16 | DType::BF16 | DType::F32) {
        return None;
    }
    let Some(mut zero) = unpacking.zero else {
        let bits = of_scale.bits();
        return Some(Scales {
            scale,
            zero: None,
            bits,
        });
    };
    while let Expr::Cast(_, inner) = kernel.exprs[zero] {
        zero = inner;
    }
    let zero = loaded(zero)?;
    let of_zero = kernel.params[zero.0].dtype;
    let alike = of_zero == kernel.params[access.param].dtype && of_zero.bits() == 4;
    alike.then_some(Scales {
        scale,
        zero: Some(zero),
        bits: of_scale.bits() + of_zero.bits(),
    })
}

/// Returns how many steps' scales of a column are one access where a row's weights can be streamed ([`GemvStream`]):
/// they are integers of four bits and lie along the whole depth, each step has one scale (and zero point), and those of
/// neighbouring steps are neighbours in memory.
pub fn stream_pack(kernel: &Kernel, symbols: &Symbols, body: &ContractBody) -> Option<u32> {
    let access = body.rhs.access?;
    let Scales { scale, zero, .. } = scales(kernel, &body.rhs)?;
    let (&[axis], step) = (&body.k[..], GemvStream::STEP) else {
        return None;
    };
    let depth = kernel.axes[axis].extent.as_const()?;
    let stored = kernel.params[access.param].dtype;
    let packed = matches!(stored, DType::I4 | DType::U4) && access.guard.is_none();
    let mut whole = Motions::new(kernel, symbols, axis, depth);
    let lies_along = whole.of(access.index).is_some_and(|m| m.is_wide(32));
    if !packed || !lies_along || !unpacks_alike(kernel, symbols, &body.rhs, &body.k, step) {
        return None;
    }
    // Zero points of fewer steps are less than the least access.
    let packs: &[u32] = if zero.is_some() { &[8] } else { &[8, 4, 2] };
    packs.iter().copied().find(|&pack| {
        let mut motions = Motions::in_steps(kernel, symbols, axis, pack.into(), step.into());
        let mut neighbours = |index| motions.of(index).is_some_and(|m| m.is_wide(pack.into()));
        let all = neighbours(scale.1) && zero.is_none_or(|zero| neighbours(zero.1));
        all && depth % i64::from(pack * step) == 0
    })
}

/// Returns the depth of a contraction whose weights can be asked for before the launch before is done
/// ([`GemvTiling::early`]): they are read as they are, `width` neighbours in one access, of one product along one axis
/// of known size.
///
/// [`GemvTiling::early`]: super::GemvTiling::early
pub fn early_depth(kernel: &Kernel, body: &ContractBody, width: u32) -> Option<i64> {
    let access = body.rhs.access?;
    let (stored, &[axis]) = (kernel.params[access.param].dtype, &body.k[..]) else {
        return None;
    };
    let is_plain = access.guard.is_none() && access.unpacking.is_none() && stored == body.rhs.element(&kernel.exprs);
    let is_access = stored.bits().saturating_mul(width) == ACCESS_BYTES * 8;
    if is_plain && is_access && body.batch.is_empty() {
        kernel.axes[axis].extent.as_const()
    } else {
        None
    }
}

/// Returns how many neighbouring sums an epilogue can take to store its results at once: at most 16 bytes of every
/// stored type.
pub fn widest_store(kernel: &Kernel, symbols: &Symbols, body: &ContractBody) -> u32 {
    let stored = body
        .columns()
        .last()
        .map_or(1, |axis| widest_group(kernel, symbols, &body.epilogue, *axis));
    stored * body.sums()
}

/// The same for an epilogue along one axis.
pub fn widest_group(kernel: &Kernel, symbols: &Symbols, epilogue: &[Stmt], axis: AxisId) -> u32 {
    let stores = || {
        epilogue.iter().filter_map(|s| match s {
            Stmt::Store { param, index, .. } => Some((kernel.params[*param].dtype, *index)),
            _ => None,
        })
    };
    if !epilogue
        .iter()
        .all(|s| matches!(s, Stmt::Store { axes, .. } if axes.is_empty()) || matches!(s, Stmt::Let { .. }))
    {
        return 1;
    }
    let bits = stores().map(|(dtype, _)| dtype.bits()).max().unwrap_or(0);
    if bits == 0 || stores().any(|(dtype, _)| dtype.bits() < 8 || dtype == DType::Bool) {
        return 1;
    }
    let mut width = ACCESS_BYTES * 8 / bits;
    while width > 1 {
        let mut motions = Motions::new(kernel, symbols, axis, i64::from(width));
        let divides = kernel.axes[axis].extent.known_divisor() % i64::from(width) == 0;
        if divides && stores().all(|(_, index)| motions.of(index).is_some_and(|m| m.is_wide(i64::from(width)))) {
            break;
        }
        width /= 2;
    }
    width
}

impl Fetch {
    /// One element at a time: always possible.
    pub const SINGLE: Fetch = Fetch {
        along_k: true,
        width: 1,
    };
}
