//! Runs one workgroup: sets up its waves as the descriptor asks and steps them until all have ended.

use super::access::SCRATCH_WINDOW;
use super::late::Late;
use super::ledger::Ledger;
use super::order::Order;
use super::scoreboard::{Counter, Scoreboard};
use super::undefined;
use super::wave::{Env, Flow, Mode, State, Step, Touch, Trap, Wave};
use crate::arch::{Arch, Generation};
use crate::counters::{Class, Counters};
use crate::decode::text::{EXEC, FLAT_SCRATCH, SGPRS, TTMP};
use crate::decode::{Code, Inst};
use crate::error::{Fault, FaultKind};
use crate::gpu::{LaunchOptions, Sizes};
use crate::loader::KernelInfo;
use crate::memory::{Memory, View};
use crate::timing::trace::Recorder;

/// What all workgroups of a launch share.
pub(crate) struct Launch<'a> {
    pub arch: &'static Arch,
    pub info: &'a KernelInfo,
    pub code: &'a Code,
    pub image_base: u64,
    pub memory: &'a Memory,
    pub view: &'a View,
    pub options: &'a LaunchOptions,
    pub grid: [u32; 3],
    pub sizes: Sizes,
    pub lds_bytes: u32,
    pub kernarg_address: u64,
    pub dispatch_address: u64,
    pub kernargs: &'a [u8],
    pub scratch_size: u32,
    /// Where races between workgroups are looked for.
    pub ledger: Option<&'a Ledger>,
}

/// Instructions that a wave executes before others get a turn.
const SLICE: u64 = 50_000;

/// Runs the workgroup at `position`.
pub(crate) fn run(launch: &Launch<'_>, position: [u32; 3]) -> Result<Counters, Box<Fault>> {
    execute::<false>(launch, position, None).map(|(counters, _)| counters)
}

/// Runs a workgroup and returns what it left in the trace; its waves are left where the recorder's limit says.
pub(crate) fn run_traced(
    launch: &Launch<'_>,
    position: [u32; 3],
    recorder: Recorder,
) -> Result<(Counters, Recorder), Box<Fault>> {
    let (arch, group) = (launch.arch, recorder.group);
    let (counters, trace) = execute::<true>(launch, position, Some(recorder))?;
    Ok((counters, trace.unwrap_or_else(|| Recorder::new(arch, group, 0))))
}

fn execute<const TRACED: bool>(
    launch: &Launch<'_>,
    position: [u32; 3],
    trace: Option<Recorder>,
) -> Result<(Counters, Option<Recorder>), Box<Fault>> {
    let mut counters = Counters {
        workgroups: 1,
        ..Counters::default()
    };
    let lds = launch.lds_bytes as usize;
    let [x, y, z] = position.map(u64::from);
    let number = x + u64::from(launch.grid[0]) * (y + u64::from(launch.grid[1]) * z);
    let options = launch.options;
    let mut env = Env {
        arch: launch.arch,
        memory: launch.memory,
        view: launch.view,
        options,
        counters: &mut counters,
        hand_written: launch.info.hand_written,
        lds: vec![0; lds],
        lds_written: if options.uninitialized {
            vec![0; lds]
        } else {
            Vec::new()
        },
        order: Order::default(),
        watches_order: false,
        whole_waves: !options.races && !options.alignment && launch.ledger.is_none() && trace.is_none(),
        lds_touch: if options.races {
            vec![Touch::default(); lds]
        } else {
            Vec::new()
        },
        global_touch: std::collections::HashMap::new(),
        late: (options.races && options.waits).then(Late::default),
        waits_for_global: launch.arch.at_least(Generation::Gfx10) && launch.info.descriptor.two_units,
        ledger: launch.ledger.map(|ledger| (ledger, number)),
        grid: launch.grid,
        phase: 0,
        clock: 0,
        image_base: launch.image_base,
        trace,
    };
    let mut waves = waves(launch, position);
    env.counters.waves = waves.len() as u64;
    env.watches_order = options.waits && lds > 0 && waves.len() > 1;
    loop {
        let mut ran = false;
        for wave in &mut waves {
            if wave.state != State::Ready {
                continue;
            }
            ran = true;
            if (options.instruction_limit).is_some_and(|limit| env.clock > limit) {
                let kind = FaultKind::InstructionLimit(options.instruction_limit.unwrap_or(0));
                return Err(fault(launch, position, wave, wave.pc, *Trap::new(kind)));
            }
            let first = wave.executed;
            if let Err((pc, trap)) = step_until_blocked::<TRACED>(launch.code, wave, &mut env) {
                return Err(fault(launch, position, wave, pc, *trap));
            }
            env.clock += wave.executed - first;
        }
        if waves.iter().all(|wave| wave.state == State::Done) {
            break;
        }
        if !ran || waves.iter().all(|wave| wave.state != State::Ready) {
            // Every wave that lives is at the barrier: it opens.
            for wave in &mut waves {
                if wave.state == State::AtBarrier {
                    wave.state = State::Ready;
                    wave.signalled = false;
                }
            }
            env.phase += 1;
            env.counters.barriers += 1;
        }
    }
    let trace = env.trace.take();
    Ok((counters, trace))
}

fn fault(launch: &Launch<'_>, workgroup: [u32; 3], wave: &Wave, pc: usize, trap: Trap) -> Box<Fault> {
    let inst = launch.code.insts.get(pc);
    Box::new(Fault {
        kernel: launch.info.name.clone(),
        address: inst.map_or(0, |inst| inst.address),
        instruction: inst.map_or_else(String::new, |inst| inst.text.clone()),
        workgroup,
        wave: wave.index,
        lane: trap.lane,
        kind: trap.kind,
    })
}

/// Runs a wave until it ends, waits, yields, or has used its slice.
fn step_until_blocked<const TRACED: bool>(
    code: &Code,
    w: &mut Wave,
    env: &mut Env<'_>,
) -> Result<(), (usize, Box<Trap>)> {
    let limit = match &env.trace {
        Some(trace) if TRACED => trace.limit,
        _ => u64::MAX,
    };
    let slice = SLICE.min(env.options.instruction_limit.unwrap_or(SLICE).max(1));
    let stop = (w.executed + slice).min(limit);
    while w.executed < stop {
        let pc = w.pc;
        let Some(inst) = code.insts.get(pc) else {
            return Err((pc, Trap::new(FaultKind::BadPc(w.next_address))));
        };
        w.executed += 1;
        w.pc = pc + 1;
        w.next_address = env.image_base + inst.address + u64::from(inst.size);
        if w.board.any && env.options.waits {
            check_waits(inst, w).map_err(|trap| (pc, trap))?;
        }
        env.counters.instructions += 1;
        env.counters.by_class[inst.class as usize] += 1;
        if matches!(inst.class, Class::Valu | Class::Vmem | Class::Lds | Class::Matrix) {
            env.counters.lane_instructions += u64::from(w.exec().count_ones());
        }
        let light = TRACED && {
            let lanes = w.exec().count_ones();
            env.trace.as_mut().is_some_and(|trace| trace.step(w.index, pc, lanes))
        };
        let concerned = (w.undefined.as_ref()).is_some_and(|marks| w.gpr_index.is_some() || marks.concerns(inst));
        // A trace needs where matrix instructions are, not what they make; of iterations that it leaves out only what
        // leads on.
        let left_out = light && matches!(inst.class, Class::Vmem | Class::Lds | Class::Smem);
        let flow = if TRACED && (inst.class == Class::Matrix || left_out) {
            Ok(Flow::Next)
        } else if concerned {
            with_undefined(inst, w, env)
        } else {
            (inst.exec)(w, env)
        }
        .map_err(|trap| (pc, trap))?;
        for counter in inst.issues.iter().filter(|_| !left_out) {
            w.board.issue(*counter, &inst.loads, inst.unordered);
        }
        match flow {
            Flow::Next => {}
            Flow::Jump(target) => {
                let address = target.wrapping_sub(env.image_base);
                w.pc = code
                    .at(address)
                    .ok_or_else(|| (pc, Trap::new(FaultKind::BadPc(address))))?;
            }
            Flow::Barrier => {
                w.state = State::AtBarrier;
                return Ok(());
            }
            Flow::Yield => return Ok(()),
            Flow::End => {
                w.state = State::Done;
                return Ok(());
            }
        }
    }
    if TRACED && w.executed >= limit {
        w.state = State::Done;
    }
    Ok(())
}

/// Runs an instruction that meets undefined bits; those of memory know of them themselves.
#[cold]
fn with_undefined(inst: &Inst, w: &mut Wave, env: &mut Env<'_>) -> Step {
    if inst.registers_only {
        return undefined::step(inst, w, env);
    }
    if inst.class == Class::Control {
        undefined::check_control(inst, w)?;
    }
    (inst.exec)(w, env)
}

fn check_waits(inst: &Inst, w: &Wave) -> Result<(), Box<Trap>> {
    let own: Option<Counter> = inst.issues.first().copied();
    let conflict = w
        .board
        .conflict(&inst.uses, None)
        .or_else(|| w.board.conflict(&inst.loads, own));
    match conflict {
        None => Ok(()),
        Some((register, counter)) => Err(Trap::new(FaultKind::MissingWait { register, counter })),
    }
}

/// The waves of a workgroup, each at the kernel's entry.
fn waves(launch: &Launch<'_>, position: [u32; 3]) -> Vec<Wave> {
    let info = launch.info;
    let descriptor = &info.descriptor;
    let lanes = if descriptor.wave32 { 32 } else { 64 };
    let block = launch.sizes.block_at(position);
    let items = block.iter().product::<u32>();
    let mode = Mode {
        round32: descriptor.round_mode & 3,
        round16_64: descriptor.round_mode >> 2,
        denorm32: descriptor.denorm_mode & 3,
        denorm16_64: descriptor.denorm_mode >> 2,
        dx10_clamp: descriptor.dx10_clamp,
        // RDNA 4 has no IEEE mode; the descriptor's bit means something else there.
        ieee: descriptor.ieee_mode && !launch.arch.at_least(Generation::Gfx12),
        fp16_overflow: descriptor.fp16_overflow,
    };
    // A kernel that has its arguments preloaded starts behind the code that would load them.
    let entry = descriptor.entry + if descriptor.preload_length > 0 { 256 } else { 0 };
    let pc = launch.code.at(entry).unwrap_or(usize::MAX);
    let scratch_words = launch.scratch_size.div_ceil(4) as usize * lanes;
    let count = items.div_ceil(lanes as u32);
    (0..count)
        .map(|index| {
            let first = index * lanes as u32;
            let active = (items - first).min(lanes as u32);
            let mask = if active == 64 { u64::MAX } else { (1u64 << active) - 1 };
            let mut wave = Wave {
                v: vec![[0; 64]; launch.code.vectors.max(3) + 1],
                s: [0; SGPRS],
                scc: false,
                pc,
                next_address: 0,
                lanes,
                lane_mask: if lanes == 64 { u64::MAX } else { 0xffff_ffff },
                mode,
                index,
                state: State::Ready,
                board: Scoreboard::new(launch.arch),
                stores: Vec::new(),
                undefined: None,
                scratch: vec![0; scratch_words],
                scratch_written: vec![0; if launch.options.uninitialized { scratch_words } else { 0 }],
                scratch_size: launch.scratch_size,
                executed: 0,
                hint: 0,
                signalled: false,
                gpr_index: None,
            };
            wave.s[EXEC as usize] = mask as u32;
            wave.s[EXEC as usize + 1] = (mask >> 32) as u32;
            work_item_ids(launch, &mut wave, block, first);
            scalar_inputs(launch, &mut wave, position, index);
            wave
        })
        .collect()
}

fn work_item_ids(launch: &Launch<'_>, wave: &mut Wave, block: [u32; 3], first: u32) {
    let [x_size, y_size, _] = block;
    let wanted = launch.info.descriptor.work_item_ids;
    for lane in 0..wave.lanes {
        let item = first + lane as u32;
        let (x, y, z) = (item % x_size, item / x_size % y_size, item / (x_size * y_size));
        if launch.arch.packed_work_item_ids {
            wave.v[0][lane] = x | y << 10 | z << 20;
        } else {
            wave.v[0][lane] = x;
            if wanted >= 1 {
                wave.v[1][lane] = y;
            }
            if wanted >= 2 {
                wave.v[2][lane] = z;
            }
        }
    }
}

fn scalar_inputs(launch: &Launch<'_>, wave: &mut Wave, position: [u32; 3], index: u32) {
    let descriptor = &launch.info.descriptor;
    let mut next = 0usize;
    let mut put = |wave: &mut Wave, words: &[u32]| {
        for word in words {
            wave.s[next] = *word;
            next += 1;
        }
        next
    };
    let two = |value: u64| [value as u32, (value >> 32) as u32];
    let [
        buffer,
        dispatch,
        queue,
        kernarg,
        dispatch_id,
        flat_scratch,
        private_size,
    ] = descriptor.user_fields;
    if buffer {
        let base = two(SCRATCH_WINDOW);
        // Swizzled by lane, four-byte elements, an index stride of a wave.
        put(
            wave,
            &[
                base[0],
                base[1] | 1 << 31,
                u32::MAX,
                1 << 23 | 3 << 21 | 1 << 19 | 0x27000,
            ],
        );
    }
    if dispatch {
        put(wave, &two(launch.dispatch_address));
    }
    if queue {
        put(wave, &two(launch.dispatch_address));
    }
    if kernarg {
        put(wave, &two(launch.kernarg_address));
    }
    if dispatch_id {
        put(wave, &[0, 0]);
    }
    if flat_scratch {
        put(wave, &two(SCRATCH_WINDOW));
    }
    if private_size {
        put(wave, &[launch.scratch_size]);
    }
    for word in 0..descriptor.preload_length {
        let at = (descriptor.preload_offset + word) as usize * 4;
        let bytes = launch.kernargs.get(at..at + 4).unwrap_or(&[0; 4]);
        put(wave, &[u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])]);
    }
    // System SGPRs follow the user SGPRs that the descriptor counts.
    let mut next = descriptor.user_sgprs as usize;
    if launch.arch.ttmp_work_group_ids {
        wave.s[TTMP as usize + 9] = position[0];
        wave.s[TTMP as usize + 7] = position[1] | position[2] << 16;
        wave.s[TTMP as usize + 8] = index << 25;
    } else {
        for (wanted, id) in descriptor.workgroup_ids.iter().zip(position) {
            if *wanted {
                wave.s[next] = id;
                next += 1;
            }
        }
        if descriptor.workgroup_info {
            next += 1;
        }
        if descriptor.uses_scratch && !launch.arch.architected_flat_scratch {
            // The wave's offset in the scratch window: each wave has a window of its own.
            wave.s[next] = 0;
        }
    }
    if launch.arch.architected_flat_scratch {
        let base = two(SCRATCH_WINDOW);
        wave.s[FLAT_SCRATCH as usize] = base[0];
        wave.s[FLAT_SCRATCH as usize + 1] = base[1];
    }
}
