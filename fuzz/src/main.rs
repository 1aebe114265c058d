//! `graphc-fuzz [TARGET...]`: runs cases until they are done, and goes on after one that ended the process.

use std::io::Write;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Parser;
use graphc_fuzz::{Counts, run, targets};

/// Fuzzes what graphc reads.
#[derive(Parser)]
struct Arguments {
    /// Targets; all of them by default.
    targets: Vec<String>,
    /// Cases of each target.
    #[arg(long, default_value_t = 10_000)]
    runs: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The number of the first case.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Processes at once; as many as there are cores by default.
    #[arg(long)]
    jobs: Option<NonZeroU64>,
    /// Seconds that one case may take.
    #[arg(long, default_value_t = 60)]
    patience: u64,
    /// Where the process that runs cases says which it is at.
    #[arg(long, hide = true)]
    state: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let names: Vec<&'static str> = targets::all().iter().map(|t| t.name()).collect();
    if let Some(unknown) = arguments.targets.iter().find(|t| targets::named(t).is_none()) {
        eprintln!(
            "graphc-fuzz: there is no target {unknown:?}; there are {}",
            names.join(", ")
        );
        return ExitCode::from(2);
    }
    let wanted = match arguments.targets.as_slice() {
        [] => names,
        some => some.iter().map(String::as_str).collect(),
    };
    let mut failed = 0;
    for name in wanted {
        failed += match &arguments.state {
            Some(state) => cases(name, &arguments, state),
            None => watch(name, &arguments),
        };
    }
    ExitCode::from(u8::from(failed > 0))
}

/// What the running process has written: the case it is at, and what came of those before.
const FIELDS: usize = 5;
/// Stands where the case is, once all are done. Exit codes do not say it: AddressSanitizer's is 1, too.
const DONE: u64 = u64::MAX;
/// What children are told unless `ASAN_OPTIONS` is set: constants live as long as the process, and refused memory is an
/// error.
const SANITIZER: &str = "detect_leaks=0:allocator_may_return_null=1";

fn read_state(path: &PathBuf) -> [u64; FIELDS] {
    let bytes = std::fs::read(path).unwrap_or_default();
    let mut fields = [0; FIELDS];
    for (field, chunk) in fields.iter_mut().zip(bytes.chunks_exact(8)) {
        *field = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
    }
    fields
}

/// Runs a target's cases in several processes, each with a range of them, and prints the counts.
fn watch(name: &str, arguments: &Arguments) -> u64 {
    let start = Instant::now();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let jobs = arguments.jobs.map_or(cores, NonZeroU64::get);
    let each = arguments.runs.div_ceil(jobs).max(1);
    let end = arguments.from + arguments.runs;
    let (counts, failed) = std::thread::scope(|scope| {
        let ranges = (arguments.from..end).step_by(each as usize);
        let watchers: Vec<_> = ranges
            .map(|from| scope.spawn(move || watch_range(name, arguments, from..(from + each).min(end))))
            .collect();
        watchers
            .into_iter()
            .fold((Counts::default(), 0), |(sum, all), watcher| {
                let (counts, failed) = watcher.join().expect("a watcher does not panic");
                (sum + counts, all + failed)
            })
    });
    let Counts { refused, accepted, ran } = counts;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{name}: {} cases in {seconds:.0} s: {refused} refused, {accepted} read and not run, {ran} run to an end; {failed} failed",
        arguments.runs,
    );
    failed
}

/// Starts processes one after another, until all cases of a range have run; counts them and the failures.
fn watch_range(name: &str, arguments: &Arguments, cases: Range<u64>) -> (Counts, u64) {
    let folder = tempfile::tempdir().expect("a folder for the state");
    let state = folder.path().join("state");
    let (mut from, mut failed, mut counts) = (cases.start, 0u64, Counts::default());
    while from < cases.end {
        let _ = std::fs::remove_file(&state);
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
            .arg(name)
            .args(["--runs", &(cases.end - from).to_string(), "--from", &from.to_string()])
            .args(["--seed", &arguments.seed.to_string(), "--state"])
            .arg(&state)
            .env(
                "ASAN_OPTIONS",
                std::env::var("ASAN_OPTIONS").unwrap_or(SANITIZER.into()),
            )
            .spawn()
            .expect("this program starts again");
        let (mut at, mut since) = (DONE, Instant::now());
        let status = loop {
            if let Some(status) = child.try_wait().expect("the process can be asked") {
                break Some(status);
            }
            std::thread::sleep(Duration::from_millis(50));
            let now = read_state(&state)[0];
            if now != at {
                (at, since) = (now, Instant::now());
            } else if since.elapsed().as_secs() > arguments.patience {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        };
        let [at, refused, accepted, ran, panics] = read_state(&state);
        counts = counts + Counts { refused, accepted, ran };
        failed += panics;
        match status {
            Some(_) if at == DONE => break,
            Some(status) => println!("FAILED {name} --seed {} --from {at} --runs 1: {status}", arguments.seed),
            None => println!("FAILED {name} --seed {} --from {at} --runs 1: no end", arguments.seed),
        }
        failed += 1;
        from = at.max(from) + 1;
    }
    (counts, failed)
}

/// Runs cases in this process.
fn cases(name: &str, arguments: &Arguments, state: &PathBuf) -> u64 {
    let target = targets::named(name).expect("looked up before");
    let file = std::fs::File::create(state).expect("the state can be written");
    let (mut counts, mut failed) = (Counts::default(), 0u64);
    for number in arguments.from..arguments.from + arguments.runs {
        let fields: [u64; FIELDS] = [number, counts.refused, counts.accepted, counts.ran, failed];
        let bytes: Vec<u8> = fields.iter().flat_map(|f| f.to_le_bytes()).collect();
        let _ = file.write_all_at(&bytes, 0);
        match catch_unwind(AssertUnwindSafe(|| run(target.as_ref(), arguments.seed, number))) {
            Ok(outcome) => counts.count(outcome),
            Err(_) => {
                failed += 1;
                println!(
                    "FAILED {name} --seed {} --from {number} --runs 1: a panic",
                    arguments.seed
                );
                let _ = std::io::stdout().flush();
            }
        }
    }
    let fields: [u64; FIELDS] = [DONE, counts.refused, counts.accepted, counts.ran, failed];
    let bytes: Vec<u8> = fields.iter().flat_map(|f| f.to_le_bytes()).collect();
    let _ = file.write_all_at(&bytes, 0);
    failed
}
