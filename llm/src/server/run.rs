//! The server's life: it listens, serves, and drains.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::connections::Connections;
use super::routes::router;
use super::state::{State, now};
use crate::app::say;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::scheduler::Scheduler;
use crate::template::Template;
use crate::tokenizer::Tokenizer;

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// What requests must have as their bearer token.
    pub key: Option<String>,
    /// Sequences at once, each with a cache.
    pub slots: usize,
    /// Jobs that may wait at most.
    pub queue: usize,
    /// Bytes of a body at most.
    pub body: usize,
    /// The time in which a head is to be there, and a body.
    pub body_time: Duration,
    /// How long requests that are under way may take after the server was told to end.
    pub drain: Duration,
}

/// A model to serve.
pub struct Served {
    pub engine: Engine,
    pub tokenizer: Tokenizer,
    pub template: Option<Template>,
    pub name: String,
    pub architecture: String,
}

/// Listens at an address, or a name of this machine; the port 0 takes one that is free. Clients that come before
/// [`serve`] wait.
///
/// # Errors
/// An address that is not this machine's, or that is taken.
pub fn listen(host: &str, port: u16) -> Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind((host, port));
    listener.map_err(|error| {
        let way = "give another --host or --port (0 takes a free port)";
        Error::Usage(format!("cannot listen at {host}:{port}: {error}; {way}"))
    })
}

/// Serves until a signal: SIGTERM or SIGINT. Then no connection is accepted any more, and requests that are under way
/// are answered; a second signal, or the end of [`ServeOptions::drain`], cancels them. `ready` is told the address.
///
/// # Errors
/// What the system refuses.
pub fn serve(
    model: Served,
    listener: std::net::TcpListener,
    options: &ServeOptions,
    ready: impl FnOnce(SocketAddr),
) -> Result<()> {
    let failed = |what: &str, error: std::io::Error| Error::Usage(format!("{what}: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed("the system gives no way to wait for connections", error))?;
    let vocabulary = model.engine.decoder().config.vocabulary;
    let decoder = model.engine.decoder();
    let embedding = decoder.pooling.map(|_| decoder.result_width());
    let tokenizer = Arc::new(model.tokenizer);
    let address = listener
        .local_addr()
        .map_err(|error| failed("the address is not known", error))?;
    let state = Arc::new(State {
        scheduler: Scheduler::start(model.engine, tokenizer.clone(), options.slots, options.queue)?,
        tokenizer,
        template: model.template,
        name: model.name,
        architecture: model.architecture,
        vocabulary,
        embedding,
        started: now(),
        key: options.key.clone(),
        body: options.body,
        body_time: options.body_time,
        ids: AtomicU64::new(0),
        answers: Mutex::new(BTreeMap::new()),
    });
    let listener = {
        let _inside = runtime.enter();
        (listener.set_nonblocking(true))
            .and_then(|()| TcpListener::from_std(listener))
            .map_err(|error| failed("the system gives no way to wait for connections", error))?
    };
    let served = runtime.block_on(until_drained(listener, state.clone(), options, || ready(address)));
    // Connections that are left end here, and with them their jobs.
    drop(runtime);
    state.scheduler.finish();
    served.map_err(|error| failed("the server has ended", error))
}

async fn until_drained(
    listener: TcpListener,
    state: Arc<State>,
    options: &ServeOptions,
    ready: impl FnOnce(),
) -> std::io::Result<()> {
    let mut signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let connections = Connections::new(router(state.clone()), options.body_time);
    ready();
    tokio::select! {
        () = connections.accept(&listener) => {}
        () = any(&mut signals) => {}
    }
    // Clients that come now are refused.
    drop(listener);
    let counts = state.scheduler.counts();
    say(format_args!(
        "ending: {} requests run and {} wait; a second signal cancels them",
        counts.running.load(Ordering::Relaxed),
        counts.waiting.load(Ordering::Relaxed)
    ));
    tokio::select! {
        () = connections.finish() => {}
        () = tokio::time::sleep(options.drain) => {}
        () = any(&mut signals) => {}
    }
    Ok(())
}

/// Waits for a signal.
async fn any([one, other]: &mut [Signal; 2]) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}
