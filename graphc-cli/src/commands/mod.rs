//! The command line: one file per verb.
//!
//! Exit codes: 0 done; 1 a failure of graphc, or results that do not match what was expected; 2 a mistake in what was
//! given (options, files, models, environment).

mod args;
mod bench;
mod blame;
mod compile;
mod contents;
mod doctor;
mod escape;
mod explain;
mod gguf;
mod given;
mod inspect;
mod load;
mod opt;
mod output;
mod profile;
mod quantize;
mod report;
mod run;
mod sources;
mod targets;
mod times;
mod tune;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use runtime::MiopenFind;

use self::args::Timeout;
use graphc::error::Result;
use graphc::options::{Settings, WORKER_VERB};

/// A lazy computation-graph compiler for AMD GPUs.
#[derive(Parser)]
#[command(name = "graphc", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// Print no progress.
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Give a GPU up after waiting that many seconds for it (2, 0.5), instead of waiting for ever for what does not
    /// end.
    #[arg(long, global = true, value_name = "SECONDS", value_parser = args::timeout)]
    timeout: Option<Timeout>,
    /// How MIOpen chooses the algorithm of a convolution: without timing anything (immediate, the default), or by its
    /// find stage in one of the modes normal, fast, hybrid and dynamic-hybrid.
    #[arg(long, global = true, value_name = "MODE", value_parser = args::miopen_find)]
    miopen_find: Option<MiopenFind>,
    /// Keep MIOpen's user databases, with what its find stage measured, in this folder.
    #[arg(long, global = true, value_name = "FOLDER")]
    miopen_user_db: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Verb {
    Run(run::Args),
    Compile(compile::Args),
    Inspect(inspect::Args),
    Explain(explain::Args),
    Opt(opt::Args),
    Bench(bench::Args),
    Profile(profile::Args),
    Quantize(quantize::Args),
    Report(report::Args),
    Tune(tune::Args),
    Verify(verify::Args),
    Targets(targets::Args),
    Doctor(doctor::Args),
}

impl Verb {
    /// The model that the verb reads.
    fn model(&self) -> Option<&Path> {
        let model = match self {
            Verb::Run(args) => &args.model,
            Verb::Compile(args) => &args.model,
            Verb::Inspect(args) => &args.model,
            Verb::Explain(args) => &args.model,
            Verb::Bench(args) => &args.model,
            Verb::Profile(args) => &args.model,
            Verb::Quantize(args) => &args.model,
            Verb::Report(args) => &args.model,
            Verb::Verify(args) => &args.model,
            Verb::Opt(_) | Verb::Tune(_) | Verb::Targets(_) | Verb::Doctor(_) => return None,
        };
        Some(&model.model)
    }
}

/// What every verb is given besides its own arguments.
struct Context {
    settings: Settings,
    quiet: bool,
}

/// The hidden verb under which the binary starts itself inside a ROCm sysroot to disassemble for the emulator.
const DISASSEMBLER_VERB: &str = "__disassembler";

/// The hidden verb under which the binary starts itself beside vendor libraries to time calls into them.
const CALLS_VERB: &str = "__time-calls";

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|a| a == WORKER_VERB) {
        return runtime::compile::worker_main();
    }
    if std::env::args_os().nth(1).is_some_and(|a| a == DISASSEMBLER_VERB) {
        return graphc::emulate::serve();
    }
    if std::env::args_os().nth(1).is_some_and(|a| a == CALLS_VERB) {
        return graphc::emulate::serve_calls();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let model = cli.verb.model().map(Path::to_owned);
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let error = match model {
                Some(path) => blame::blame(&path, error),
                None => error,
            };
            let text = error.to_string();
            output::say(format_args!("graphc: {}", escape::text(&escape::words(&text))));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Runs a verb. A mapped file that became shorter is the verb's error, whatever the verb made of the bytes that were
/// missing.
fn dispatch(cli: Cli) -> Result<()> {
    ir::mapped::remember();
    let done = run_verb(cli);
    ir::mapped::check_all()?;
    done
}

fn run_verb(cli: Cli) -> Result<()> {
    let mut settings = Settings::from_env()?;
    if let Some(Timeout(timeout)) = cli.timeout {
        settings.timeout = timeout;
    }
    settings.miopen.find = cli.miopen_find.unwrap_or(settings.miopen.find);
    settings.miopen.user_database = cli.miopen_user_db.or(settings.miopen.user_database);
    let context = Context {
        settings,
        quiet: cli.quiet,
    };
    // `doctor` lists them with what else it finds.
    if !matches!(cli.verb, Verb::Doctor(_)) {
        if let Some(slow) = graphc::optimised::note() {
            output::note(&context, slow);
        }
        for name in &context.settings.unknown {
            output::note(&context, &format!("warning: {name}"));
        }
    }
    match cli.verb {
        Verb::Run(args) => run::run(&args, &context),
        Verb::Compile(args) => compile::run(&args, &context),
        Verb::Inspect(args) => inspect::run(&args, &context),
        Verb::Explain(args) => explain::run(&args, &context),
        Verb::Opt(args) => opt::run(&args, &context),
        Verb::Bench(args) => bench::run(&args, &context),
        Verb::Profile(args) => profile::run(&args, &context),
        Verb::Quantize(args) => quantize::run(&args, &context),
        Verb::Report(args) => report::run(&args, &context),
        Verb::Tune(args) => tune::run(&args, &context),
        Verb::Verify(args) => verify::run(&args, &context),
        Verb::Targets(args) => targets::run(&args, &context),
        Verb::Doctor(args) => doctor::run(&args, &context),
    }
}
