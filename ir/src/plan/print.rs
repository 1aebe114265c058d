//! The text of a plan, for people and snapshots; nothing parses it.

use std::fmt::{self, Write as _};

use super::{BufferId, Choice, Place, Plan, Port, Source, Streaming, Work};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self, true))
    }
}

/// Prints a plan: ports, buffers, steps, and with `kernels` the text of each kernel.
pub fn print(plan: &Plan, kernels: bool) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "plan target={} flops={} {{", plan.target, plan.flops);
    for (symbol, info) in &plan.symbols {
        let _ = writeln!(out, "  symbol {symbol}: {}", crate::graph::print::bounds(info));
    }
    let port = |out: &mut String, what: &str, p: &Port| {
        let _ = writeln!(out, "  {what} {:?} : {} = {}", p.name, p.ty, p.buffer);
    };
    plan.inputs.iter().for_each(|p| port(&mut out, "input", p));
    plan.outputs.iter().for_each(|p| port(&mut out, "output", p));
    for (id, b) in plan.buffers.iter() {
        let place = match &b.place {
            Place::Input => "input".to_owned(),
            Place::Output => "output".to_owned(),
            Place::Constant(c) => format!("constant {c}"),
            Place::Streamed(c) => format!("constant {c} on the host"),
            Place::Arena {
                first,
                last,
                in_place_of,
            } => {
                let of = in_place_of.map_or(String::new(), |of| format!(" in place of {of}"));
                format!("arena {first}..={last}{of}")
            }
        };
        let _ = writeln!(out, "  {id} {:?} : {} {place}", b.name, b.ty);
    }
    for requirement in &plan.requirements {
        let _ = writeln!(out, "  requires {requirement}");
    }
    if let Some(share) = &plan.share {
        let what = if share.stage.is_some() { "stage" } else { "rank" };
        let _ = writeln!(out, "  {what} {} of {}", share.rank, share.ranks);
        if let Some(stage) = &share.stage {
            for (port, source) in plan.inputs.iter().zip(&stage.inputs) {
                if let Source::Stage { stage, result } = source {
                    let _ = writeln!(out, "  input {:?} is result {result} of stage {stage}", port.name);
                }
            }
        }
        for (what, ports, cuts) in [
            ("input", &plan.inputs, &share.inputs),
            ("output", &plan.outputs, &share.outputs),
        ] {
            for (port, axis) in ports.iter().zip(cuts) {
                if let Some(axis) = axis {
                    let _ = writeln!(out, "  {what} {:?} is cut along axis {axis}", port.name);
                }
            }
        }
    }
    if let Some(Streaming { limit, distance, least }) = plan.streaming {
        let _ = writeln!(out, "  fits {limit} bytes, weights {distance} ahead, least {least}");
    }
    for (id, lane) in plan.lanes.iter() {
        let _ = writeln!(out, "  {id} = {:?}", lane.kind);
    }
    let list = |ids: &[BufferId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    for (id, step) in plan.steps.iter() {
        let text = |work: &Work| match work {
            Work::Launch { kernel, args } => {
                let name = plan.kernels.get(*kernel).map_or("?", |k| k.name.as_str());
                format!("launch {kernel} {name}({})", list(args))
            }
            Work::Call {
                call,
                operands,
                results,
                workspace,
                algorithm,
            } => {
                let workspace = workspace.map_or(String::new(), |w| format!(" workspace {w}"));
                let algorithm = (algorithm.as_ref()).map_or(String::new(), |a| format!(" algorithm {a}"));
                format!(
                    "call {}({}) -> {}{workspace}{algorithm}",
                    call.name(),
                    list(operands),
                    list(results)
                )
            }
            Work::Copy { from, to } => format!("copy {from} -> {to}"),
        };
        let mut work = text(&step.work);
        for Choice {
            size,
            from,
            work: other,
        } in &step.choices
        {
            let other = match (&step.work, other) {
                // The same with another kernel, which is all there is to say.
                (Work::Launch { args, .. }, Work::Launch { kernel, args: same }) if args == same => {
                    let name = plan.kernels.get(*kernel).map_or("?", |k| k.name.as_str());
                    format!("{kernel} {name}")
                }
                _ => text(other),
            };
            let _ = write!(work, ", from {size} = {from} on {other}");
        }
        let waits: Vec<String> = step.waits.iter().map(ToString::to_string).collect();
        let waits = if waits.is_empty() {
            String::new()
        } else {
            format!(" after {}", waits.join(", "))
        };
        let _ = writeln!(out, "  {id} {} {work}{waits}", step.lane);
    }
    out.push_str("}\n");
    if kernels {
        for kernel in plan.kernels.values() {
            out.push('\n');
            out.push_str(&crate::kernel::print::print(kernel));
        }
    }
    out
}
