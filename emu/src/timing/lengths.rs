//! Workgroups of one launch that differ much in length (causal attention): which of them one unit gets, and how much
//! that is.
//!
//! The dispatcher gives workgroups out in order, each to the first place that is free. Where all take about as long,
//! every unit gets every so-manieth, and nothing here is needed. Where they do not, the unit that ends last decides: it
//! may hold the longest workgroup, or one that was given out late. Lengths are counted in wave instructions, of a
//! sample of workgroups that no regularity of the grid meets. Each of the others stands for the nearest of the sample,
//! by whatever tells lengths best in the sample itself: the number, a coordinate of the grid, or the number in a
//! period.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Workgroups that tell whether lengths differ.
pub(super) const PROBES: u64 = 5;

/// Workgroups whose length is known at most, where they differ.
pub(super) const SAMPLES: u64 = 64;

/// Lengths are alike where their mean is nearer to the longest than this part of it: few that are short change nothing.
const ALIKE: f64 = 0.1;

/// The part of a length by which the sample may tell another on average, or else nothing is known of what lies between.
const TOLD: f64 = 0.1;

/// Workgroups that are dealt out one by one at most; of a longer launch its last ones decide, and each unit has its
/// part of the others.
const DEALT: u64 = 1 << 18;

/// The `index`-th of the workgroups that are looked at: a sequence that comes evenly through the grid, whatever the
/// period of what lies there (multiples of the golden ratio).
pub(super) fn place(index: u64, total: u64) -> u64 {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    // The begin is no simple part of the grid: edges lie there.
    let part = (0.37 + index as f64 * GOLDEN).fract();
    ((part * total as f64) as u64).min(total.saturating_sub(1))
}

/// Whether workgroups of so many instructions end together, as far as the model is concerned.
pub(super) fn alike(known: &[(u64, u64)]) -> bool {
    let longest = known.iter().map(|(_, length)| *length).max().unwrap_or(0);
    let all: u64 = known.iter().map(|(_, length)| *length).sum();
    all as f64 >= (1.0 - ALIKE) * longest as f64 * known.len() as f64
}

/// What of a workgroup's number tells its length.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Key {
    divisor: u64,
    modulus: u64,
}

impl Key {
    fn of(self, group: u64) -> u64 {
        group / self.divisor % self.modulus
    }

    /// How far a workgroup is from another: by the key, then by the number.
    fn distance(self, group: u64, other: u64) -> (u64, u64) {
        (self.of(group).abs_diff(self.of(other)), group.abs_diff(other))
    }
}

/// The lengths of a launch's workgroups.
#[derive(Clone, Debug)]
pub(super) struct Lengths {
    /// Workgroup and length, in order of the workgroups.
    known: Vec<(u64, u64)>,
    key: Key,
    /// Whether the key tells the lengths of workgroups that are not known.
    told: bool,
}

/// What the unit that ends last gets.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Deal {
    /// Its workgroups in the order in which they come; where their lengths are not told, those of the sample that they
    /// are taken for.
    pub groups: Vec<u64>,
    /// Their part of the launch's work.
    pub part: f64,
}

impl Lengths {
    /// From workgroups of a grid and their lengths, at least one.
    pub fn new(mut known: Vec<(u64, u64)>, grid: [u32; 3]) -> Lengths {
        known.sort_unstable();
        known.dedup_by_key(|(group, _)| *group);
        let [x, y, z] = grid.map(|extent| u64::from(extent.max(1)));
        let axes = [(1, x * y * z), (1, x), (x, y), (x * y, z)].into_iter();
        let periods = (1..7).map(|bits| (1, 1 << bits));
        let keys = axes.chain(periods).map(|(divisor, modulus)| Key { divisor, modulus });
        // The first of those by which the rest of the sample tells each of it best.
        let miss = |key: &Key| -> u64 {
            let others = |group: u64| known.iter().filter(move |(other, _)| *other != group);
            let nearest = |group| others(group).min_by_key(|(other, _)| key.distance(group, *other));
            let misses = known
                .iter()
                .filter_map(|(group, length)| Some(nearest(*group)?.1.abs_diff(*length)));
            misses.sum()
        };
        let best = keys.map(|key| (miss(&key), key)).min_by_key(|(miss, _)| *miss);
        let (missed, key) = best.unwrap_or((
            0,
            Key {
                divisor: 1,
                modulus: u64::MAX,
            },
        ));
        let all: u64 = known.iter().map(|(_, length)| *length).sum();
        let told = missed as f64 <= TOLD * all as f64;
        Lengths { known, key, told }
    }

    /// The workgroup of the sample that this one stands for, and its length.
    fn nearest(&self, group: u64) -> (u64, u64) {
        let nearest = self
            .known
            .iter()
            .min_by_key(|(known, _)| self.key.distance(group, *known));
        nearest.map_or((group, 1), |(known, length)| (*known, (*length).max(1)))
    }

    /// The length of a workgroup.
    pub fn of(&self, group: u64) -> u64 {
        self.nearest(group).1
    }

    /// Deals `total` workgroups out to units with `resident` places each.
    pub fn deal(&self, total: u64, units: u64, resident: u64) -> Deal {
        // Whole rounds before those that are dealt one by one fall to all units alike.
        let round = units * resident;
        let before = total.saturating_sub(DEALT) / round * round;
        let mut places: BinaryHeap<Reverse<(u64, u64)>> =
            (0..round.min(total)).map(|place| Reverse((0, place))).collect();
        let mut dealt: Vec<u32> = Vec::with_capacity((total - before) as usize);
        // Of units that end at the same time the one with more work takes longer: its workgroups share it.
        let mut ends = vec![(0u64, 0u64); units as usize];
        let mut work = 0u64;
        for group in before..total {
            let Some(Reverse((at, place))) = places.pop() else {
                break;
            };
            let length = self.of(group);
            let unit = place % units;
            let end = at + length;
            work += length;
            dealt.push(unit as u32);
            let (last, own) = &mut ends[unit as usize];
            (*last, *own) = ((*last).max(end), *own + length);
            places.push(Reverse((end, place)));
        }
        let last = (0..units)
            .max_by_key(|unit| (ends[*unit as usize], Reverse(*unit)))
            .unwrap_or(0);
        let of_last = dealt.iter().enumerate().filter(|(_, unit)| u64::from(**unit) == last);
        let late: Vec<u64> = of_last.map(|(index, _)| before + index as u64).collect();
        let early = (0..before / units).map(|round| round * units + last);
        let earlier: u64 = early.clone().map(|group| self.of(group)).sum();
        let own = earlier + late.iter().map(|group| self.of(*group)).sum::<u64>();
        let all = work as f64 + (earlier * units) as f64;
        Deal {
            groups: early
                .chain(late)
                .map(|group| if self.told { group } else { self.nearest(group).0 })
                .collect(),
            part: own as f64 / all.max(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_evenly_through_the_grid() {
        for total in [1, 7, 96, 104 * 8, 304 * 16, 100_003] {
            let mut of_period = [0u32; 8];
            let mut of_part = [0u32; 8];
            for index in 0..SAMPLES {
                let place = place(index, total);
                assert!(place < total);
                of_period[(place % 8) as usize] += 1;
                of_part[(place * 8 / total) as usize] += 1;
            }
            if total >= 96 {
                assert!(
                    of_period.iter().chain(&of_part).all(|count| (4..=12).contains(count)),
                    "{total}"
                );
            }
        }
    }

    #[test]
    fn equal_workgroups_give_every_unit_its_part() {
        let lengths = Lengths::new(vec![(3, 100), (50, 100)], [624, 1, 1]);
        let deal = lengths.deal(2 * 104 * 3, 104, 2);
        assert_eq!(deal.groups.len(), 6);
        assert!((deal.part * 104.0 - 1.0).abs() < 1e-9);
        let long = Lengths::new(vec![(0, 7)], [3 << 20, 1, 1]).deal(3 << 20, 104, 2);
        assert!((long.part * 104.0 - 1.0).abs() < 1e-3, "{}", long.part);
        assert_eq!(long.groups.len() as u64, (3u64 << 20).div_ceil(104));
    }

    #[test]
    fn few_short_workgroups_change_nothing() {
        let mut known = vec![(0, 4)];
        known.extend((1..30).map(|group| (group, 1000)));
        assert!(alike(&known));
        known.extend((30..60).map(|group| (group, 500)));
        assert!(!alike(&known));
    }

    #[test]
    fn lengths_that_nothing_tells_are_those_of_the_sample() {
        // Bits of a product: no coordinate and no period says them.
        let length = |group: u64| 10 + (group.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57);
        let known = (0..SAMPLES)
            .map(|index| place(index, 5000))
            .map(|group| (group, length(group)));
        let lengths = Lengths::new(known.clone().collect(), [5000, 1, 1]);
        let deal = lengths.deal(5000, 104, 1);
        assert!(
            deal.groups
                .iter()
                .all(|group| known.clone().any(|(known, _)| known == *group))
        );
    }

    #[test]
    fn the_sample_says_what_lengths_depend_on() {
        let grid = [24, 20, 3];
        let sample = |length: &dyn Fn(u64) -> u64| {
            let known = (0..SAMPLES)
                .map(|index| place(index, 1440))
                .map(|group| (group, length(group)));
            Lengths::new(known.collect(), grid)
        };
        let cases: [&dyn Fn(u64) -> u64; 4] = [
            &|group| 100 + 10 * (group % 24),
            &|group| 100 + 10 * (group / 24 % 20),
            &|group| 100 + group,
            &|group| 100 * (group % 8 + 1),
        ];
        for (case, length) in cases.into_iter().enumerate() {
            let lengths = sample(length);
            let off: u64 = (0..1440).map(|group| lengths.of(group).abs_diff(length(group))).sum();
            let all: u64 = (0..1440).map(length).sum();
            assert!(
                (off as f64) < 0.05 * all as f64,
                "{case}: {:?}, {off} of {all}",
                lengths.key
            );
        }
    }

    #[test]
    fn the_longest_decides_a_launch_of_one_round() {
        // Every eighth workgroup is eight times as long as the shortest.
        let lengths = Lengths::new((0..96).map(|group| (group, 10 * (group % 8 + 1))).collect(), [96, 1, 1]);
        let deal = lengths.deal(96, 104, 1);
        assert_eq!((deal.groups.len(), deal.groups[0] % 8), (1, 7));
        assert!((deal.part - 80.0 / 4320.0).abs() < 1e-9);
    }

    #[test]
    fn the_unit_that_ends_last_has_a_long_one_late() {
        // Ascending lengths: the last ones begin when the others are nearly done.
        let lengths = Lengths::new((0..400).map(|group| (group, group + 1)).collect(), [400, 1, 1]);
        let deal = lengths.deal(400, 100, 1);
        assert_eq!(deal.groups.last(), Some(&399));
        // Descending ones fill up what is left: no unit has more than its part by much.
        let lengths = Lengths::new((0..400).map(|group| (group, 400 - group)).collect(), [400, 1, 1]);
        let even = lengths.deal(400, 100, 1);
        assert!(
            even.part < 0.0105 && deal.part > even.part,
            "{} {}",
            even.part,
            deal.part
        );
    }
}
