//! Which events a run records and waits for: the fewest that keep what the plan says.
//!
//! A plan's step waits for steps of other lanes. Where a step enqueues nothing (its copy is in place, it has no
//! points), nobody has to wait for it, but for what it would have waited for; and where a lane has waited for a step,
//! it has waited for all that came before that step. Each event that is left out is a call of the driver less in every
//! run.
//!
//! ```text
//! upload: s0 (nothing)                 compute: s1 waits s0, s2     download: s3 waits s2 (nothing)
//! ->                                   compute: s1, s2              no event at all
//! ```

use ir::entity::{Entity, Table};
use ir::plan::{LaneId, StepId};
use smallvec::SmallVec;

/// Of each lane, how many steps of the plan are done for certain, counted up to the last one of that lane; 0 for none.
type Clock = SmallVec<[u32; 4]>;

/// See the module.
#[derive(Default)]
pub(super) struct Order {
    /// Steps of other lanes that each step waits for.
    pub waits: Table<StepId, SmallVec<[StepId; 2]>>,
    /// Whether another lane waits for the step.
    pub awaited: Table<StepId, bool>,
    /// Lanes that enqueue something.
    pub used: Table<LaneId, bool>,
    /// Lanes that the first one has not waited for when the last step is enqueued.
    pub open: Table<LaneId, bool>,
}

/// A step as the plan has it.
pub(super) struct Ordered<'a> {
    pub lane: LaneId,
    /// Earlier steps.
    pub waits: &'a [StepId],
    /// Whether it enqueues nothing.
    pub idle: bool,
}

fn merge(to: &mut Clock, from: &Clock) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = (*to).max(*from);
    }
}

impl Order {
    /// Works out the waits of steps in the plan's order. Lanes are fewer than `lanes`, and steps wait for earlier ones.
    pub fn new<'a>(steps: impl Iterator<Item = Ordered<'a>>, lanes: usize) -> Order {
        let nothing: Clock = SmallVec::from_elem(0, lanes);
        // Of each lane: what its next step must come after, and what it does come after.
        let (mut must, mut does) = (vec![nothing.clone(); lanes], vec![nothing; lanes]);
        // What is done when a step is.
        let mut ends: Vec<Clock> = Vec::new();
        let mut order = Order {
            used: (0..lanes).map(|_| false).collect(),
            ..Order::default()
        };
        for (index, step) in steps.enumerate() {
            let lane = step.lane.index();
            for wait in step.waits {
                merge(&mut must[lane], &ends[wait.index()]);
            }
            let mut waits: SmallVec<[StepId; 2]> = SmallVec::new();
            if step.idle {
                let mut end = must[lane].clone();
                merge(&mut end, &does[lane]);
                ends.push(end);
            } else {
                let mut left: SmallVec<[(u32, usize); 4]> = must[lane].iter().copied().zip(0..).collect();
                // What a later step waited for need not be waited for again.
                left.sort_unstable_by(|a, b| b.cmp(a));
                for (until, of) in left {
                    if until > does[lane][of] {
                        let step = StepId::new(until as usize - 1);
                        merge(&mut does[lane], &ends[step.index()]);
                        order.awaited[step] = true;
                        waits.push(step);
                    }
                }
                does[lane][lane] = index as u32 + 1;
                order.used[step.lane] = true;
                ends.push(does[lane].clone());
            }
            order.waits.push(waits);
            order.awaited.push(false);
        }
        order.open = (0..lanes)
            .map(|lane| lane > 0 && does[lane][lane] > does[0][lane])
            .collect();
        order
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A lane, earlier steps by how far back they are, and whether it is idle.
    type Row = (usize, Vec<usize>, bool);

    fn waits_of(rows: &[Row]) -> Vec<Vec<StepId>> {
        let of = |(index, (lane, back, _)): (usize, &Row)| {
            let steps = back.iter().filter_map(|back| index.checked_sub(back + 1));
            steps.filter(|step| rows[*step].0 != *lane).map(StepId::new).collect()
        };
        rows.iter().enumerate().map(of).collect()
    }

    fn order_of(rows: &[Row], waits: &[Vec<StepId>], lanes: usize) -> Order {
        let steps = rows.iter().zip(waits).map(|((lane, _, idle), waits)| Ordered {
            lane: LaneId::new(*lane),
            waits,
            idle: *idle,
        });
        Order::new(steps, lanes)
    }

    /// Of each step, which steps come before it by lanes and waits.
    fn before(rows: &[Row], waits: impl Fn(usize) -> Vec<usize>, counts: impl Fn(usize) -> bool) -> Vec<Vec<bool>> {
        let mut all: Vec<Vec<bool>> = Vec::new();
        for index in 0..rows.len() {
            let same = (0..index).filter(|step| rows[*step].0 == rows[index].0 && counts(*step));
            let mut mine = vec![false; rows.len()];
            for earlier in same.chain(waits(index)) {
                mine[earlier] = true;
                for (mine, theirs) in mine.iter_mut().zip(&all[earlier]) {
                    *mine |= *theirs;
                }
            }
            all.push(mine);
        }
        all
    }

    #[test]
    fn idle_copies_leave_no_event() {
        let rows = [
            (1, vec![], true),
            (0, vec![0], false),
            (0, vec![], false),
            (2, vec![0], true),
        ];
        let order = order_of(&rows, &waits_of(&rows), 3);
        assert!(order.waits.values().all(SmallVec::is_empty));
        assert!(order.awaited.values().all(|awaited| !awaited));
        assert_eq!(order.used.values().copied().collect::<Vec<_>>(), [true, false, false]);
        assert!(order.open.values().all(|open| !open));
    }

    #[test]
    fn an_idle_step_hands_on_what_it_waits_for() {
        // The copy in lane 1 is in place: who waits for it waits for the kernel that it waits for.
        let rows = [(0, vec![], false), (1, vec![0], true), (2, vec![0], false)];
        let order = order_of(&rows, &waits_of(&rows), 3);
        assert_eq!(order.waits[StepId::new(2)].as_slice(), [StepId::new(0)]);
        assert!(order.open[LaneId::new(2)] && !order.open[LaneId::new(1)]);
    }

    proptest! {
        #[test]
        fn steps_that_work_come_in_the_order_of_the_plan(
            rows in proptest::collection::vec(
                (0usize..4, proptest::collection::vec(0usize..8, 0..4), proptest::bool::weighted(0.4)),
                1..40,
            ),
        ) {
            let waits = waits_of(&rows);
            let order = order_of(&rows, &waits, 4);
            let asked = before(&rows, |index| waits[index].iter().map(|step| step.index()).collect(), |_| true);
            let kept = |index: usize| {
                let waits = &order.waits[StepId::new(index)];
                waits.iter().map(|step| step.index()).collect::<Vec<_>>()
            };
            let got = before(&rows, kept, |step| !rows[step].2);
            for (index, (_, _, idle)) in rows.iter().enumerate() {
                prop_assert!(!idle || kept(index).is_empty(), "an idle step waits for nothing");
                for earlier in 0..index {
                    if !idle && !rows[earlier].2 {
                        prop_assert_eq!(got[index][earlier], asked[index][earlier], "steps {} and {}", earlier, index);
                    }
                }
                for wait in kept(index) {
                    prop_assert!(order.awaited[StepId::new(wait)] && !rows[wait].2);
                    // None is there for nothing.
                    let others = kept(index).into_iter().filter(|other| *other != wait);
                    let same = (0..index).filter(|step| rows[*step].0 == rows[index].0 && !rows[*step].2);
                    for other in others.chain(same) {
                        prop_assert!(!got[other][wait], "step {} waits for {} twice", index, wait);
                    }
                }
            }
            // The first lane has all that is not open.
            let reached = |step: usize| (0..rows.len()).any(|last| {
                rows[last].0 == 0 && !rows[last].2 && (last == step || got[last][step])
            });
            for lane in 0..4 {
                let last = (0..rows.len()).rev().find(|step| rows[*step].0 == lane && !rows[*step].2);
                prop_assert_eq!(order.used[LaneId::new(lane)], last.is_some());
                let open = lane > 0 && last.is_some_and(|last| !reached(last));
                prop_assert_eq!(order.open[LaneId::new(lane)], open);
            }
        }
    }
}
