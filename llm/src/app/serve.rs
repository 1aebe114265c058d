//! `graphc-llm serve MODEL.gguf`: the model over HTTP.

use std::time::Duration;

use super::{ModelArgs, print};
use crate::error::{Error, Result};
use crate::server::{ServeOptions, Served, serve};
use crate::template::Template;

/// Serve a model over HTTP, as OpenAI's API has it.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The address to listen at; others than loopback are open to the network.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// The port to listen at; 0 takes a free one.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Requests must have this key: Authorization: Bearer KEY.
    #[arg(long, value_name = "KEY", env = "GRAPHC_LLM_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// What requests call the model; by default its own name, or the file's.
    #[arg(long)]
    name: Option<String>,
    /// Requests that run at once; each takes the memory of a cache.
    #[arg(long, default_value_t = 4, value_name = "REQUESTS")]
    parallel: usize,
    /// Requests that may wait; more are refused.
    #[arg(long, default_value_t = 256, value_name = "REQUESTS")]
    queue: usize,
    /// Bytes of a request at most.
    #[arg(long, default_value_t = 8 << 20, value_name = "BYTES")]
    max_body: usize,
    /// Seconds in which a request is to be there.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    body_timeout: u64,
    /// Seconds that requests may still take when the server is told to end.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    drain: u64,
}

/// Tokens of a prompt that a step computes: what one request waits for while another's prompt is read.
const BATCH: usize = 128;
/// Sequences at once at most.
const PARALLEL: usize = 1024;

pub fn run(args: &Args) -> Result<()> {
    if !(1..=PARALLEL).contains(&args.parallel) {
        let message = format!("--parallel {}: a number from 1 to {PARALLEL} is wanted", args.parallel);
        return Err(Error::Usage(message));
    }
    if args.api_key.as_ref().is_some_and(|key| key.trim().is_empty()) {
        return Err(Error::Usage(
            "--api-key is empty; give a key, or leave it out".to_owned(),
        ));
    }
    let ready = args.model.load(BATCH)?;
    let named = ready.file.metadata.get("general.name").and_then(|name| name.as_str());
    let stem = args
        .model
        .model
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned());
    let name = (args.name.clone())
        .or(named.filter(|name| !name.is_empty()).map(str::to_owned))
        .or(stem)
        .unwrap_or_else(|| "model".to_owned());
    let template = match ready.file.metadata.contains_key("tokenizer.chat_template") {
        true => Some(Template::read(&ready.file)?),
        false => None,
    };
    let options = ServeOptions {
        host: args.host.clone(),
        port: args.port,
        key: args.api_key.clone(),
        slots: args.parallel,
        queue: args.queue,
        body: args.max_body,
        body_time: Duration::from_secs(args.body_timeout),
        drain: Duration::from_secs(args.drain),
    };
    let model = Served {
        architecture: ready.file.architecture()?.to_owned(),
        engine: ready.engine,
        tokenizer: ready.tokenizer,
        template,
        name: name.clone(),
    };
    serve(model, &options, |address| {
        if !address.ip().is_loopback() && options.key.is_none() {
            eprintln!("warning: {address} can be reached from the network, and no --api-key is asked for");
        }
        // A closed output is no reason to stop.
        print(&format!("serving {name:?} at http://{address}\n")).ok();
    })
}
