//! `/metrics`, in Prometheus' text format.

use std::fmt::{Display, Write};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::state::State;

pub fn text(state: &State) -> String {
    let counts = state.scheduler.counts();
    let mut out = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, &dyn Display)]| {
        // A String takes all that is written to it.
        let _ = writeln!(out, "# HELP graphc_llm_{name} {help}\n# TYPE graphc_llm_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(out, "graphc_llm_{name}{labels} {value}");
        }
    };
    let none = String::new;
    let label = |name: &str, value: &dyn Display| format!("{{{name}=\"{value}\"}}");
    for (name, help, value) in [
        ("requests_waiting", "Jobs in the queue.", &counts.waiting),
        ("requests_running", "Jobs that have a sequence.", &counts.running),
    ] {
        metric(name, "gauge", help, &[(none(), &value.load(Ordering::Relaxed))]);
    }
    metric(
        "sequences",
        "gauge",
        "Sequences that can run at once.",
        &[(none(), &state.scheduler.slots())],
    );
    let [completed, cancelled, failed] =
        [&counts.completed, &counts.cancelled, &counts.failed].map(|count| count.load(Ordering::Relaxed));
    let jobs: [(String, &dyn Display); 3] = [
        (label("outcome", &"completed"), &completed),
        (label("outcome", &"cancelled"), &cancelled),
        (label("outcome", &"failed"), &failed),
    ];
    metric("jobs_total", "counter", "Jobs that have ended.", &jobs);
    for (name, help, value) in [
        (
            "prompt_tokens_total",
            "Tokens of prompts that were computed.",
            &counts.prompt_tokens,
        ),
        (
            "reused_tokens_total",
            "Tokens of prompts that a cache had.",
            &counts.reused_tokens,
        ),
        (
            "written_tokens_total",
            "Tokens that were written.",
            &counts.written_tokens,
        ),
        ("first_tokens_total", "Answers that have begun.", &counts.first),
    ] {
        metric(name, "counter", help, &[(none(), &value.load(Ordering::Relaxed))]);
    }
    for (name, help, value) in [
        ("prompt_seconds_total", "Time of steps of prompts.", &counts.prompt_time),
        ("text_seconds_total", "Time of steps of texts.", &counts.text_time),
        (
            "first_token_seconds_total",
            "Time from arrivals to first tokens.",
            &counts.first_time,
        ),
    ] {
        let seconds = value.load(Ordering::Relaxed) as f64 / 1e6;
        metric(name, "counter", help, &[(none(), &seconds)]);
    }
    let answers = state.answers.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let values: Vec<(String, &dyn Display)> = answers
        .iter()
        .map(|(status, count)| (label("status", status), count as &dyn Display))
        .collect();
    metric("http_answers_total", "counter", "Answers by their status.", &values);
    if let Some(bytes) = resident() {
        metric("resident_bytes", "gauge", "Memory of the process.", &[(none(), &bytes)]);
    }
    out
}

/// The process' memory, where the system tells it.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
