//! Regions that go into those that read them, after fusion.

use ir::schedule::{Region, RegionId};
use ir::{Entity, Schedule, Table, Value};

use super::report::{Barrier, FusedEdge, Fusion, FusionReport, UnfusedEdge};

/// A region whose one result is computed by its readers from now on.
pub struct Absorbed {
    pub region: RegionId,
    pub value: Value,
    /// The readers' regions, with the nodes in them.
    pub readers: Vec<(RegionId, Region)>,
    /// How the result is fused with what reads it.
    pub how: Fusion,
}

/// Gives the readers their new regions, removes the regions that are theirs now, and says so in the report.
pub fn absorb(schedule: &mut Schedule, report: &mut FusionReport, absorbed: &[Absorbed]) {
    if absorbed.is_empty() {
        return;
    }
    for (reader, region) in absorbed.iter().flat_map(|a| &a.readers) {
        schedule.regions[*reader] = region.clone();
    }
    let mut regions: Table<RegionId, Region> = Table::new();
    let mut moved: Vec<Option<RegionId>> = Vec::new();
    for (id, region) in schedule.regions.iter() {
        let stays = absorbed.iter().all(|a| a.region != id);
        moved.push(stays.then(|| regions.push(region.clone())));
    }
    schedule.regions = regions;
    let at = |id: RegionId| moved[id.index()];
    // Where what was of a region is now.
    let places = |id: RegionId| -> Vec<RegionId> {
        match absorbed.iter().find(|a| a.region == id) {
            Some(a) => a.readers.iter().filter_map(|(reader, _)| at(*reader)).collect(),
            None => at(id).into_iter().collect(),
        }
    };
    let fused = std::mem::take(&mut report.fused).into_iter();
    report.fused = fused
        .flat_map(|edge| {
            let places = places(edge.region);
            places.into_iter().map(move |region| FusedEdge { region, ..edge })
        })
        .collect();
    let mut unfused = Vec::new();
    for edge in std::mem::take(&mut report.unfused) {
        let Some(producer) = at(edge.producer) else { continue };
        match at(edge.consumer) {
            Some(consumer) => unfused.push(UnfusedEdge {
                producer,
                consumer,
                ..edge
            }),
            // What made the region's operands now makes those of its readers.
            None => unfused.extend(places(edge.consumer).into_iter().map(|consumer| UnfusedEdge {
                producer,
                consumer,
                reason: Barrier::OperandReuse,
                ..edge
            })),
        }
    }
    report.unfused = unfused;
    for a in absorbed {
        for region in places(a.region) {
            report.fused.push(FusedEdge {
                producer: a.value.node,
                consumer: schedule.regions[region].anchor,
                region,
                how: a.how,
            });
        }
    }
}
