//! From one launch to its report: which workgroups are sampled, how long one unit takes for its share, and what that
//! means.

use super::TimingOptions;
use super::clock::{self, MatrixShare};
use super::facts::{self, InstructionFacts, Unit};
use super::lengths::{self, Deal, Lengths};
use super::machine::Machine;
use super::memory::{self, Placement, Rates, Share};
use super::replay::{Input, Outcome, replay};
use super::report::{CLASS_NAMES, Hot, Part, Report, Stall};
use super::reuse;
use super::trace::{PIECE, Recorder};
use crate::counters::CLASSES;
use crate::error::{Fault, LaunchError};
use crate::exec::workgroup::{Launch, run_traced};
use rayon::prelude::*;
use std::sync::Arc;

/// Workgroups that a survey visits, and wave instructions of all of them.
const SURVEY_GROUPS: u64 = 320;
const SURVEY_INSTRUCTIONS: u64 = 3_000_000;

/// Workgroups of a row whose reuse of L2 is looked at, and wave instructions of all of them.
const ROW_GROUPS: u64 = 8192;
const ROW_INSTRUCTIONS: u64 = 2_500_000;

/// Traced workgroups of a unit that follow each other.
const ROW: u64 = 8;

/// Rounds of workgroups that a unit replays at most, and from how many on two replays tell what a round takes.
const MOST_ROUNDS: u64 = 24;
const MANY_ROUNDS: u64 = 8;

/// Rounds that are replayed where fewer can be traced: their workgroups' traces serve more than once.
const FEW_ROUNDS: u64 = 4;

/// Rounds after which half of the workgroups that began together have drifted apart (assumed).
const DRIFT_ROUNDS: f64 = 50.0;

/// Predicts the time of a launch of `total` workgroups. Only sampled workgroups run, and without their matrix
/// arithmetic: what they write to memory is not the kernel's result.
pub(crate) fn time(launch: &Launch<'_>, total: u64, options: &TimingOptions) -> Result<Report, LaunchError> {
    let arch = launch.arch;
    let machine = Machine::of(arch, options.part.as_deref()).ok_or_else(|| LaunchError::NotTimed {
        arch: match &options.part {
            Some(part) => format!("{} as {part}", arch.name),
            None => arch.name.to_owned(),
        },
        known: Machine::all()
            .map(|machine| format!("{} ({})", machine.arch, machine.part))
            .collect(),
    })?;
    let lanes = if launch.info.descriptor.wave32 { 32 } else { 64 };
    let facts: Arc<[InstructionFacts]> = facts::of(launch.code, arch, lanes).into();
    let mut shape = Shape::of(launch, machine, total, lanes as u64);
    let survey = trace_all(launch, &shape.survey(), shape.survey_limit(), None)?;
    let row = shape.row(&survey);
    let regions = launch.memory.regions();
    let surveyed = shares(&facts, &survey, machine, &regions);
    let shares = match row.is_empty() {
        true => surveyed.shares.clone(),
        false => {
            let row = trace_all(launch, &row, shape.survey_limit(), None)?;
            reuse::shares(&facts, &row, shape.together() as usize, machine)
        }
    };
    let first = shape.chosen(shape.mine, 1);
    // A quarter of the budget for the loops of the waves that run at one time.
    let enough = options.budget / (4 * shape.waves * shape.resident).max(1);
    // Where a SIMD serves its oldest wave first, waves run apart for longer than a short sample lasts.
    let most = if machine.slot > 1 { 30_000 } else { 100_000 };
    let enough = enough.clamp(10_000, most) as usize;
    let sampled = options.sample_loops.then_some((&facts, enough));
    let one = trace_all(launch, &first, options.budget.max(1), sampled)?;
    let mut each = one.first().map_or(1, Recorder::executed).max(1);
    if let Some(lengths) = shape.lengths(launch, &facts, options.budget)? {
        let first = lengths.of(first[0]);
        let deal = lengths.deal(total, shape.units, shape.resident);
        shape.uneven = Some((lengths, deal));
        shape.mine = shape.list().map_or(shape.mine, |list| list.len() as u64).max(1);
        shape.resident = shape.resident.min(shape.mine);
        each = (each as f64 * shape.mean() / first as f64).ceil() as u64;
    }
    let plan = shape.plan(options.budget / each);
    let groups = shape.chosen(shape.mine, plan.traces);
    let mut traces = trace_all(launch, &groups, options.budget.max(1), sampled)?;
    if !traces.iter().all(Recorder::even) {
        traces = trace_all(launch, &groups, options.budget.max(1), None)?;
    }
    let touched = touched(&regions, &facts, survey.iter().chain(&traces));
    let mut placements = memory::place(machine, touched);
    for placement in &mut placements {
        if let Ok(at) = regions.binary_search_by_key(&placement.base, |(base, _)| *base) {
            placement.share = surveyed.by_region[at];
        }
    }
    let work = Work {
        launch,
        machine,
        facts: &facts,
        traces: &traces,
        shares: &shares,
        row: !row.is_empty(),
        placements: &placements,
        shape: &shape,
        plan: &plan,
        options,
    };
    Ok(work.report())
}

/// The launch against the machine.
struct Shape {
    total: u64,
    /// Units (or pairs) that workgroups go to.
    units: u64,
    dies: u64,
    /// Waves of a workgroup.
    waves: u64,
    resident: u64,
    /// Workgroups of the busiest unit.
    mine: u64,
    dispatch: f64,
    /// Where workgroups differ in length: how long they are, and what the unit gets that ends last, which then is the
    /// busiest.
    uneven: Option<(Lengths, Deal)>,
}

impl Shape {
    fn of(launch: &Launch<'_>, machine: &Machine, total: u64, lanes: u64) -> Shape {
        let items: u64 = launch.sizes.block.iter().map(|extent| u64::from(*extent)).product();
        let waves = items.div_ceil(lanes).max(1);
        let arch = launch.arch;
        let by_vgprs = u64::from(arch.waves_by_vgprs(launch.info.vgprs.max(1), lanes as u32));
        let by_waves = by_vgprs * 4 / waves;
        let lds = u64::from(launch.lds_bytes).next_multiple_of(512);
        let by_lds = u64::from(machine.lds_bytes).checked_div(lds).unwrap_or(u64::MAX);
        // A compute unit has barriers for 16 workgroups of several waves; a pair for 32.
        let by_barriers = if waves > 1 {
            16 * u64::from(machine.units_per_group)
        } else {
            u64::MAX
        };
        let resident = by_waves.min(by_lds).min(by_barriers).max(1);
        let units = u64::from(machine.groups());
        let mine = total.div_ceil(units).max(1);
        let engines = u64::from(machine.shader_engines);
        let at_once = (units as f64 / engines as f64)
            .min(total.div_ceil(engines) as f64)
            .max(1.0);
        Shape {
            total,
            units,
            dies: u64::from(machine.dies),
            waves,
            resident: resident.min(mine),
            mine,
            dispatch: at_once * machine.dispatch_cycles(waves),
            uneven: None,
        }
    }

    /// How long workgroups are, where they differ; a few are looked at, and more if those do.
    fn lengths(
        &self,
        launch: &Launch<'_>,
        facts: &Arc<[InstructionFacts]>,
        budget: u64,
    ) -> Result<Option<Lengths>, Box<Fault>> {
        let limit = (budget / (8 * self.waves)).max(1);
        let of = |from: u64, to: u64| {
            let places = (from..to.min(self.total)).into_par_iter();
            let lengths = places.map(|index| {
                let group = lengths::place(index, self.total);
                let recorder = Recorder::new(launch.arch, group, limit).sampling(Arc::clone(facts), 0);
                let (counters, _) = run_traced(launch, position(launch, group), recorder)?;
                Ok((group, counters.instructions))
            });
            lengths.collect::<Result<Vec<(u64, u64)>, Box<Fault>>>()
        };
        let mut known = of(0, lengths::PROBES)?;
        if lengths::alike(&known) {
            return Ok(None);
        }
        let each = known.iter().map(|(_, length)| *length).sum::<u64>() / known.len() as u64;
        let count = (budget / (2 * each.max(1))).clamp(lengths::PROBES, lengths::SAMPLES);
        known.extend(of(lengths::PROBES, count)?);
        if lengths::alike(&known) {
            return Ok(None);
        }
        Ok(Some(Lengths::new(known, launch.grid)))
    }

    /// The workgroups of the unit that ends last, where they are not every so-manieth.
    fn list(&self) -> Option<&[u64]> {
        self.uneven.as_ref().map(|(_, deal)| deal.groups.as_slice())
    }

    /// The busiest unit's part of the launch's work.
    fn part(&self) -> f64 {
        match &self.uneven {
            Some((_, deal)) => deal.part,
            None => self.mine as f64 / self.total as f64,
        }
    }

    /// The work of a workgroup: its length where they differ.
    fn work(&self, group: u64) -> f64 {
        self.uneven
            .as_ref()
            .map_or(1.0, |(lengths, _)| lengths.of(group) as f64)
    }

    /// The mean work of the busiest unit's workgroups.
    fn mean(&self) -> f64 {
        let own = |list: &[u64]| list.iter().map(|group| self.work(*group)).sum::<f64>() / self.mine as f64;
        self.list().map_or(1.0, own)
    }

    /// How many workgroups run at the same time, of all dies.
    fn together(&self) -> u64 {
        self.total.min(self.units * self.resident)
    }

    /// Workgroups that run at the same time; from the middle of a launch of many rounds, whose first and last may have
    /// less to do.
    fn survey(&self) -> Vec<u64> {
        let count = self.together().min(SURVEY_GROUPS);
        let first = self.middle(count);
        (first..first + count).collect()
    }

    /// The first of `count` workgroups in the middle of the launch, where that has more than two rounds.
    fn middle(&self, count: u64) -> u64 {
        match self.total > 2 * self.together() {
            true => (self.total - count) / 2,
            false => 0,
        }
    }

    /// A row of workgroups that is long enough to show what they find of earlier ones in L2; none where those of a
    /// survey did not end within its limit, or a row would be too long to look at.
    fn row(&self, survey: &[Recorder]) -> Vec<u64> {
        let limit = self.survey_limit() as usize;
        let waves = || survey.iter().flat_map(|recorder| &recorder.waves);
        let whole = waves().all(|wave| wave.events.len() < limit);
        let events: usize = waves().map(|wave| wave.events.len()).sum();
        let each = (events as u64 / survey.len().max(1) as u64).max(1);
        let count = self.total.min(ROW_GROUPS).min(ROW_INSTRUCTIONS / each);
        if !whole || count < 2 * self.together() {
            return Vec::new();
        }
        let first = self.middle(count);
        (first..first + count).collect()
    }

    fn survey_limit(&self) -> u64 {
        let waves = self.survey().len() as u64 * self.waves;
        (SURVEY_INSTRUCTIONS / waves.max(1)).clamp(300, 6000)
    }

    /// `count` workgroups of the `mine` that one unit gets, evenly spread; many are rows of such as follow each other.
    /// Workgroups go to units in turn, and this unit lies in the middle of those that have the most.
    fn chosen(&self, mine: u64, count: u64) -> Vec<u64> {
        if let Some(list) = self.list() {
            let count = count.clamp(1, mine);
            return (0..count).map(|index| list[(index * mine / count) as usize]).collect();
        }
        let most = self.total - (mine - 1) * self.units;
        let offset = most.min(self.units) / 2;
        let count = count.clamp(1, mine);
        // Of many, some follow each other as they do on the unit: what one leaves in its caches is not what one far
        // away would.
        let rows = count.div_ceil(ROW);
        let place = |index: u64| match count >= 2 * ROW && mine >= 2 * count {
            true => index / ROW * mine / rows + index % ROW,
            false => index * mine / count,
        };
        (0..count)
            .map(|index| (place(index) * self.units + offset).min(self.total - 1))
            .collect()
    }

    /// How many workgroups are replayed, given how many the budget allows to trace.
    fn plan(&self, affordable: u64) -> Plan {
        let (mine, resident) = (self.mine, self.resident);
        let rounds = (affordable / (4 * resident)).min(MOST_ROUNDS);
        // The last round holds as many workgroups as in the whole launch.
        let last = mine % resident;
        let replay = match rounds {
            rounds if mine <= (rounds.max(FEW_ROUNDS) + 1) * resident => Replay::All,
            rounds if rounds < MANY_ROUNDS => Replay::Paced(FEW_ROUNDS * resident + last),
            rounds => {
                let short = rounds / 2 * resident + last;
                let more = rounds - rounds / 2;
                Replay::Rounds {
                    short,
                    long: short + more * resident,
                    times: ((mine - short) / resident) as f64 / more as f64,
                }
            }
        };
        let groups = match replay {
            Replay::All => mine,
            Replay::Paced(groups) | Replay::Rounds { long: groups, .. } => groups,
        };
        Plan {
            traces: groups.min(affordable.max(1)),
            replay,
        }
    }
}

/// What is traced and replayed.
struct Plan {
    /// Workgroups with a trace of their own.
    traces: u64,
    replay: Replay,
}

/// How the time of a unit's workgroups is found.
enum Replay {
    /// All of them are replayed.
    All,
    /// So many are, and the others follow at the pace at which those followed each other. Two replays of few rounds
    /// differ by how their last workgroups happen to meet, too.
    Paced(u64),
    /// Those of `short` are taken whole; what `long` has more, in rounds, is added so many times.
    Rounds { short: u64, long: u64, times: f64 },
}

/// Where the workgroup of a number lies in the grid.
fn position(launch: &Launch<'_>, group: u64) -> [u32; 3] {
    let [x, y, _] = launch.grid.map(u64::from);
    [(group % x) as u32, (group / x % y) as u32, (group / (x * y)) as u32]
}

/// Traces workgroups, in order; of long loops only as many iterations as have so many instructions, where `sampling`
/// says so.
fn trace_all(
    launch: &Launch<'_>,
    groups: &[u64],
    limit: u64,
    sampling: Option<(&Arc<[InstructionFacts]>, usize)>,
) -> Result<Vec<Recorder>, Box<Fault>> {
    groups
        .par_iter()
        .map(|group| {
            let mut recorder = Recorder::new(launch.arch, *group, limit);
            if let Some((facts, enough)) = sampling {
                recorder = recorder.sampling(Arc::clone(facts), enough);
            }
            run_traced(launch, position(launch, *group), recorder).map(|(_, recorder)| recorder)
        })
        .collect()
}

/// By instruction: how many units fetch what it loads together, as the survey saw it; and the same by allocation, which
/// stands for the instructions that the survey did not come to.
///
/// Of all pieces that the surveyed workgroups touch, those that several of a die touch come once from behind its L2,
/// and those that several dies touch once from behind all of them (a memory-side cache, or DRAM's open requests).
fn shares(facts: &[InstructionFacts], survey: &[Recorder], machine: &Machine, regions: &[(u64, u64)]) -> Surveyed {
    let dies = u64::from(machine.dies);
    // Piece, die, instruction: one entry for each workgroup that touches it.
    let mut touches: Vec<(u64, u32, u32)> = Vec::new();
    for recorder in survey {
        let die = (recorder.group % dies) as u32;
        let mut mine: Vec<(u64, u32, u32)> = Vec::new();
        for wave in &recorder.waves {
            for event in &wave.events {
                if !matches!(facts[event.inst as usize].unit, Unit::Vmem { store: false }) {
                    continue;
                }
                for run in wave.access(event).map_or(&[][..], |(_, runs)| runs) {
                    mine.extend((run.piece..run.piece + u64::from(run.count)).map(|piece| (piece, die, event.inst)));
                }
            }
        }
        mine.sort_unstable();
        mine.dedup_by_key(|touch| (touch.0, touch.1));
        touches.extend(mine);
    }
    touches.sort_unstable();
    let mut sums = vec![(0u64, 0.0f64, 0.0f64); facts.len()];
    let mut regional = vec![(0u64, 0.0f64, 0.0f64); regions.len()];
    for same in touches.chunk_by(|a, b| a.0 == b.0) {
        let region = region_of(regions, same[0].0);
        for on_die in same.chunk_by(|a, b| a.1 == b.1) {
            let add = |sum: &mut (u64, f64, f64)| {
                sum.0 += 1;
                sum.1 += 1.0 / on_die.len() as f64;
                sum.2 += 1.0 / same.len() as f64;
            };
            for (_, _, inst) in on_die {
                add(&mut sums[*inst as usize]);
                if let Some(region) = region {
                    add(&mut regional[region]);
                }
            }
        }
    }
    let shares = |sums: Vec<(u64, f64, f64)>| {
        let shares = sums.into_iter().map(|(count, die, all)| Share::of(count, die, all));
        shares.collect()
    };
    Surveyed {
        shares: shares(sums),
        by_region: shares(regional),
    }
}

/// What a survey saw.
struct Surveyed {
    /// By instruction and by allocation.
    shares: Vec<Share>,
    by_region: Vec<Share>,
}

/// The allocation that a piece lies in, of those in order of address. Arguments and scratch lie behind them, in none.
fn region_of(regions: &[(u64, u64)], piece: u64) -> Option<usize> {
    let address = piece * PIECE + PIECE - 1;
    let at = regions.partition_point(|(base, _)| *base <= address).checked_sub(1)?;
    let (base, size) = regions[at];
    (address < base + size.next_multiple_of(PIECE)).then_some(at)
}

/// The allocations that traces touch, each once: base and size.
fn touched<'a>(
    regions: &[(u64, u64)],
    facts: &[InstructionFacts],
    traces: impl Iterator<Item = &'a Recorder>,
) -> Vec<(u64, u64)> {
    let mut seen = vec![false; regions.len()];
    for wave in traces.flat_map(|recorder| &recorder.waves) {
        for event in &wave.events {
            if !matches!(facts[event.inst as usize].unit, Unit::Vmem { .. } | Unit::Smem) {
                continue;
            }
            for run in wave.access(event).map_or(&[][..], |(_, runs)| runs) {
                if let Some(at) = region_of(regions, run.piece) {
                    seen[at] = true;
                }
            }
        }
    }
    let pairs = regions.iter().zip(seen);
    pairs.filter_map(|(region, seen)| seen.then_some(*region)).collect()
}

/// Everything that replays and the report are made from.
struct Work<'a> {
    launch: &'a Launch<'a>,
    machine: &'static Machine,
    facts: &'a [InstructionFacts],
    traces: &'a [Recorder],
    shares: &'a [Share],
    /// Whether they are of a row of workgroups.
    row: bool,
    placements: &'a [Placement],
    shape: &'a Shape,
    plan: &'a Plan,
    options: &'a TimingOptions,
}

/// A launch at one clock.
struct Timed {
    ghz: f64,
    cycles: f64,
    /// Of the replay that says where cycles went.
    outcome: Outcome,
    /// The workgroups of that replay.
    replayed: u64,
}

impl Work<'_> {
    fn report(&self) -> Report {
        let machine = self.machine;
        let (reason, timed) = match self.options.ghz {
            Some(ghz) => ("as asked", self.at(ghz)),
            None => match clock::settle(machine, |ghz| self.at(ghz), |timed| self.matrix_share(&timed.outcome)) {
                (ghz, timed) if ghz < machine.boost_ghz => ("lowered by matrix work", timed),
                (_, timed) => ("boost", timed),
            },
        };
        self.describe(reason, timed)
    }

    /// What the matrix units of the whole GPU do, of which units with fewer workgroups than the busiest are idle for a
    /// part.
    fn matrix_share(&self, outcome: &Outcome) -> MatrixShare {
        let share = |busy: u64| self.used() * busy as f64 / (4 * outcome.cycles.max(1)) as f64;
        MatrixShare {
            other: share(outcome.matrix_busy.saturating_sub(outcome.double_busy)),
            double: share(outcome.double_busy),
        }
    }

    /// The work of all units over what they would have if each had as much as the busiest.
    fn used(&self) -> f64 {
        (1.0 / (self.shape.part() * self.shape.units as f64)).min(1.0)
    }

    /// The trace of each of so many workgroups that are replayed; those without a trace of their own replay another's.
    fn order(&self, groups: u64) -> Vec<usize> {
        let traces = self.traces.len() as u64;
        (0..groups)
            .map(|index| match groups <= traces {
                true => (index * traces / groups) as usize,
                false => (index % traces) as usize,
            })
            .collect()
    }

    /// How many times the work of so many replayed workgroups the launch's is.
    fn whole(&self, groups: u64) -> f64 {
        let shape = self.shape;
        let work = |trace: usize| shape.work(self.traces[trace].group);
        let replayed: f64 = self.order(groups).into_iter().map(work).sum();
        shape.mean() * shape.mine as f64 / shape.part() / replayed.max(1.0)
    }

    fn rates(&self, ghz: f64) -> Rates {
        let machine = self.machine;
        // This unit's part of the launch is its part of what the launch moves.
        let part = self.shape.part();
        let most = machine.unit_share * f64::from(machine.units_per_group);
        let of = |rate: f64, part: f64| Machine::bytes_a_cycle(rate, ghz) * part;
        let rounds = self.shape.mine as f64 / self.shape.resident as f64;
        let l2_peak = machine.l2_unit_bytes * f64::from(machine.units_per_group);
        // L2 has the shader's clock.
        let l2 = |rate: f64| (Machine::bytes_a_cycle(rate, machine.boost_ghz) * part).min(l2_peak);
        let active = (self.shape.total as f64 / self.shape.units as f64).min(1.0);
        let mean = Share::mean(self.shares);
        let units = self.shape.units as f64 / self.shape.dies as f64 * active;
        Rates {
            l2_read: l2(machine.l2_read),
            l2_write: l2(machine.l2_write),
            side_read: of(machine.side_read, part.min(most)).max(1e-3),
            side_write: of(machine.side_write, part.min(most)).max(1e-3),
            dram_read: of(machine.dram_read, part.min(most)),
            dram_write: of(machine.dram_write, part.min(most)),
            // A row says what is found of earlier workgroups, in whatever order they run.
            drift: if self.row {
                0.0
            } else {
                rounds / (rounds + DRIFT_ROUNDS)
            },
            l2_peak,
            side_peak: of(machine.side_read, most).max(1e-3),
            dram_peak: of(machine.dram_read, most),
            clock: ghz / machine.boost_ghz,
            l2_lines: (machine.l2_bytes as f64 / 128.0 / (units * mean).max(1.0)) as usize,
        }
    }

    fn replayed(&self, groups: u64, ghz: f64) -> Outcome {
        let order = self.order(groups);
        let run = |shorter: bool| {
            replay(&Input {
                machine: self.machine,
                facts: self.facts,
                traces: self.traces,
                order: &order,
                resident: self.shape.resident as usize,
                rates: self.rates(ghz),
                placements: self.placements,
                shares: self.shares,
                dispatch: self.shape.dispatch,
                cold_code: self.options.cold_code,
                keep: self.options.issues,
                shorter,
            })
        };
        let skips = || {
            order
                .iter()
                .flat_map(|index| &self.traces[*index].waves)
                .flat_map(|wave| &wave.skips)
        };
        let left_out: u64 = skips().map(|skip| skip.instructions).sum();
        if left_out == 0 {
            return run(false);
        }
        let dropped: u64 = skips().map(|skip| (skip.last - skip.first) as u64).sum();
        let (long, short) = rayon::join(|| run(false), || run(true));
        long.with_more(&short, left_out as f64 / dropped as f64)
    }

    /// The part of the replayed workgroups' instructions that iterations stand for which were not replayed.
    fn left_out(&self) -> f64 {
        let waves = || self.traces.iter().flat_map(|trace| &trace.waves);
        let left_out: u64 = waves().flat_map(|wave| &wave.skips).map(|skip| skip.instructions).sum();
        let recorded: u64 = waves().map(|wave| wave.events.len() as u64).sum();
        left_out as f64 / (left_out + recorded).max(1) as f64
    }

    fn at(&self, ghz: f64) -> Timed {
        let mine = self.shape.mine;
        let (replayed, cycles, outcome) = match self.plan.replay {
            Replay::All => {
                let outcome = self.replayed(mine, ghz);
                (mine, outcome.cycles as f64, outcome)
            }
            Replay::Paced(groups) => {
                let outcome = self.replayed(groups, ghz);
                let cycles = outcome.cycles as f64;
                let pace = outcome.pace.unwrap_or(cycles / groups as f64);
                (groups, cycles + (mine - groups) as f64 * pace, outcome)
            }
            Replay::Rounds { short, long, times } => {
                let (shorter, longer) = (self.replayed(short, ghz), self.replayed(long, ghz));
                let more = (longer.cycles as f64 - shorter.cycles as f64).max(1.0);
                (long, shorter.cycles as f64 + times * more, longer)
            }
        };
        Timed {
            ghz,
            cycles,
            outcome,
            replayed,
        }
    }

    fn describe(&self, reason: &'static str, timed: Timed) -> Report {
        let (machine, shape) = (self.machine, self.shape);
        let out = &timed.outcome;
        let simd_cycles = (4 * out.cycles).max(1) as f64;
        // What the replay moved and did stands for a part of the launch.
        let whole = self.whole(timed.replayed);
        // Units that got fewer workgroups than the busiest one wait for it.
        let used = self.used();
        let per_cycle = |count: u64, width: f64| used * count as f64 / width / out.cycles.max(1) as f64;
        let rates = self.rates(timed.ghz);
        let dram_fraction = (out.moved.dram / rates.dram_read / out.cycles.max(1) as f64).min(1.0);
        let l2_fraction = (out.moved.l2 / rates.l2_read / out.cycles.max(1) as f64).min(1.0);
        let side_fraction = (out.moved.side / rates.side_read / out.cycles.max(1) as f64).min(1.0);
        let busy = sorted(vec![
            ("matrix unit", per_cycle(out.matrix_busy, 4.0)),
            ("vector ALU", per_cycle(out.valu_busy, 4.0)),
            ("LDS", per_cycle(out.lds_busy, f64::from(machine.lds_arrays))),
            (
                "addresser",
                per_cycle(out.addresser_busy, f64::from(machine.units_per_group)),
            ),
            ("L2", l2_fraction),
            ("memory-side cache", side_fraction),
            ("DRAM", dram_fraction),
        ]);
        let mut stalls: Vec<(&'static str, f64)> = (Stall::ALL.into_iter())
            .map(|stall| (stall.name(), used * out.stalls[stall as usize] as f64 / simd_cycles))
            .collect();
        stalls.push(("tail", 1.0 - used));
        let stalls = sorted(stalls);
        let issue = sorted(
            (0..CLASSES)
                .map(|class| (CLASS_NAMES[class], used * out.issued[class] as f64 / simd_cycles))
                .collect(),
        );
        let bound = match (busy.first(), stalls.first()) {
            (Some(unit), _) if unit.share >= 0.5 => unit.name.clone(),
            (_, Some(stall)) => stall.name.clone(),
            _ => "nothing".into(),
        };
        let seconds = timed.cycles / timed.ghz / 1e9;
        let dram_bytes = out.moved.dram * whole;
        // Matrix work at the clock that nothing but matrix work would have, or the one that is asked for.
        let densest = self.options.ghz.unwrap_or_else(|| clock::ghz(machine, out.densest()));
        let matrix_cycles = out.matrix_busy as f64 * whole / (4.0 * f64::from(machine.groups()));
        let least = (dram_bytes / (machine.dram_read * 1e12)).max(matrix_cycles / densest / 1e9);
        Report {
            kernel: self.launch.info.name.clone(),
            arch: machine.arch.into(),
            part: machine.part.into(),
            cycles: timed.cycles.round() as u64,
            ghz: timed.ghz,
            clock: reason.into(),
            micros: seconds * 1e6 + machine.launch_us,
            launch_micros: machine.launch_us,
            workgroups: shape.total,
            resident: shape.resident as u32,
            waves_per_simd: (shape.resident * shape.waves) as f64 / 4.0,
            rounds: shape.mine as f64 / shape.resident as f64,
            sampled: self.traces.len() as u32,
            extrapolated: !matches!(self.plan.replay, Replay::All) || (self.traces.len() as u64) < shape.mine,
            loops_left_out: self.left_out(),
            issue,
            stalls,
            hot: self.hot(out, simd_cycles),
            busy,
            bound,
            dram_bytes,
            dram_fraction,
            roofline: (least / (seconds + machine.launch_us * 1e-6)).min(1.0),
            vector_cache_hits: out.moved.hits as f64 / out.moved.lookups.max(1) as f64,
            instructions: out.instructions as f64 * whole,
            issues: timed.outcome.issues.clone(),
        }
    }

    fn hot(&self, out: &Outcome, simd_cycles: f64) -> Vec<Hot> {
        let mut lost: Vec<(u64, usize)> = (out.lost.iter().enumerate())
            .map(|(inst, causes)| (causes.iter().sum(), inst))
            .filter(|(sum, _)| *sum > 0)
            .collect();
        lost.sort_unstable_by_key(|(sum, inst)| (std::cmp::Reverse(*sum), *inst));
        lost.truncate(self.options.hot);
        lost.into_iter()
            .map(|(sum, inst)| {
                let causes = &out.lost[inst];
                let most = Stall::ALL.into_iter().max_by_key(|stall| causes[*stall as usize]);
                Hot {
                    address: self.facts[inst].address,
                    text: self.launch.code.insts[inst].text.clone(),
                    cause: most.map_or("", Stall::name).into(),
                    share: sum as f64 / simd_cycles,
                }
            })
            .collect()
    }
}

/// The parts that are not nothing, largest first.
fn sorted(parts: Vec<(&'static str, f64)>) -> Vec<Part> {
    let mut parts: Vec<Part> = parts
        .into_iter()
        .filter(|(_, share)| *share > 0.0005)
        .map(|(name, share)| Part {
            name: name.into(),
            share,
        })
        .collect();
    parts.sort_by(|a, b| b.share.total_cmp(&a.share));
    parts
}
