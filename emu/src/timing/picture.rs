//! The waves of one compute unit as a picture: a file for Perfetto (ui.perfetto.dev) or Chrome's tracing page.

use super::report::Report;
use crate::gpu::Kernel;

/// The issues that a report kept, in the trace-event format: a row for each wave's place, a box for each issue with the
/// instruction's text, and one for what held the wave before it. A microsecond of the picture is a cycle.
pub fn perfetto(kernel: &Kernel, report: &Report) -> String {
    let texts: Vec<&str> = kernel.instructions().map(|(_, text)| text).collect();
    let mut events = Vec::new();
    let mut named: Vec<(u32, u32)> = Vec::new();
    for issue in &report.issues {
        let row = issue.simd * 64 + issue.slot;
        if !named.contains(&(issue.simd, issue.slot)) {
            named.push((issue.simd, issue.slot));
            events.push(
                serde_json::json!({ "ph": "M", "pid": 0, "tid": row, "name": "thread_name",
                "args": { "name": format!("SIMD {} wave {}", issue.simd, issue.slot) } }),
            );
        }
        if issue.at > issue.from {
            events.push(
                serde_json::json!({ "ph": "X", "pid": 0, "tid": row, "ts": issue.from, "dur": issue.at - issue.from,
                "name": issue.stall.name(), "cat": "stall" }),
            );
        }
        let text = texts.get(issue.inst as usize).copied().unwrap_or("");
        events.push(
            serde_json::json!({ "ph": "X", "pid": 0, "tid": row, "ts": issue.at, "dur": issue.cycles,
            "name": text, "cat": "issue", "args": { "workgroup": issue.group, "wave": issue.wave } }),
        );
    }
    serde_json::json!({ "displayTimeUnit": "ns", "traceEvents": events }).to_string()
}
