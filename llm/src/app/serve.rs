//! `graphc-llm serve MODEL.gguf`: the model over HTTP.

use std::path::PathBuf;
use std::time::Duration;

use super::{ModelArgs, print, say};
use crate::error::{Error, Result};
use crate::server::{ServeOptions, Served, listen, serve};
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
    /// Requests must have this key: Authorization: Bearer KEY. Other users of this machine may see it here.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// A file whose first line is the key.
    #[arg(long, value_name = "FILE", conflicts_with = "api_key")]
    api_key_file: Option<PathBuf>,
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
    /// Seconds in which the head of a request is to be there, and its body.
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

impl Args {
    /// The key, if one is asked for.
    fn key(&self) -> Result<Option<String>> {
        let key = match (&self.api_key, &self.api_key_file) {
            (Some(key), _) => key.clone(),
            (None, Some(path)) => {
                let text = std::fs::read_to_string(path).map_err(|source| Error::Io {
                    doing: "read",
                    path: path.clone(),
                    source,
                })?;
                text.lines().next().unwrap_or_default().trim().to_owned()
            }
            (None, None) => return Ok(None),
        };
        if key.trim().is_empty() {
            let message = "the key of --api-key or --api-key-file is empty; give one, or leave both out";
            return Err(Error::Usage(message.to_owned()));
        }
        Ok(Some(key))
    }
}

pub fn run(args: &Args) -> Result<()> {
    if !(1..=PARALLEL).contains(&args.parallel) {
        let message = format!("--parallel {}: a number from 1 to {PARALLEL} is wanted", args.parallel);
        return Err(Error::Usage(message));
    }
    let key = args.key()?;
    // A port that is taken is not worth loading for.
    let listener = listen(&args.host, args.port)?;
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
        key,
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
    serve(model, listener, &options, |address| {
        if !address.ip().is_loopback() && options.key.is_none() {
            say(format_args!(
                "warning: {address} can be reached from the network, and no --api-key is asked for"
            ));
        }
        // A closed output is no reason to stop.
        print(&format!("serving {name:?} at http://{address}\n")).ok();
    })
}
