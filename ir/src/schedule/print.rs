//! The text of a schedule, for people and snapshots; nothing parses it.

use std::fmt::{self, Write as _};

use super::{LaneKind, Schedule};

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self))
    }
}

/// Prints a schedule: one region a line.
pub fn print(schedule: &Schedule) -> String {
    fn list<T: fmt::Display>(items: &[T]) -> String {
        items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
    let mut out = String::from("schedule {\n");
    for (id, r) in schedule.regions.iter() {
        let lane = match r.lane {
            LaneKind::Compute => "",
            LaneKind::Upload => " upload",
            LaneKind::Download => " download",
            LaneKind::Collective => " collective",
        };
        let _ = writeln!(
            out,
            "  {id} {}{lane} anchor {} {{{}}} ({}) -> {}",
            r.kind.name(),
            r.anchor,
            list(&r.nodes),
            list(&r.inputs),
            r.stored()
        );
    }
    out.push_str("}\n");
    out
}
