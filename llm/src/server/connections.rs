//! Connections: each has a task, a time for the heads of its requests, and an end behind the request that is under way.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// All connections of a server.
pub struct Connections {
    router: Router,
    head_time: Duration,
    /// Set to true, it tells connections to end.
    ends: watch::Sender<bool>,
    /// Connections have a sender each and send nothing: when the last one is gone, so are they.
    open: mpsc::Sender<Infallible>,
    closed: mpsc::Receiver<Infallible>,
}

/// How long accepting pauses after a failure, as where the system has no more files.
const PAUSE: Duration = Duration::from_millis(100);

impl Connections {
    /// Requests go to `router`; a head that is not there after `head_time` ends its connection.
    pub fn new(router: Router, head_time: Duration) -> Connections {
        let (open, closed) = mpsc::channel(1);
        Connections {
            router,
            head_time,
            ends: watch::Sender::new(false),
            open,
            closed,
        }
    }

    /// Accepts connections, without an end.
    pub async fn accept(&self, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.serve(stream),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn serve(&self, stream: TcpStream) {
        // Parts of a stream are sent when they are there; where that cannot be asked for, they come later.
        stream.set_nodelay(true).ok();
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(self.head_time);
        let service = TowerToHyperService::new(self.router.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let (open, mut ends) = (self.open.clone(), self.ends.subscribe());
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            // An error is a client that is gone, or that speaks no HTTP and was told so.
            let is_over = tokio::select! {
                _ = connection.as_mut() => true,
                () = ended(&mut ends) => false,
            };
            if !is_over {
                connection.as_mut().graceful_shutdown();
                connection.await.ok();
            }
            drop(open);
        });
    }

    /// Ends all connections, each behind the request that is under way.
    pub async fn finish(self) {
        let Connections {
            ends, open, mut closed, ..
        } = self;
        ends.send_replace(true);
        drop(open);
        closed.recv().await;
    }
}

/// Waits until connections are to end; so they are where nobody can say so any more.
async fn ended(ends: &mut watch::Receiver<bool>) {
    ends.wait_for(|ends| *ends).await.ok();
}
