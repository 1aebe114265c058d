//! A thread that looks after the ends of runs that futures wait for. A device's driver has no way to wake a task, so
//! the thread asks.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long the thread sleeps between rounds while runs are under way.
const PAUSE: Duration = Duration::from_micros(50);

/// Asked for whether it is done; wakes who waits when it is.
pub(super) type Watched = Box<dyn FnMut() -> bool + Send>;

/// See the module. The thread begins with the first run that is watched, and ends with this value.
#[derive(Default)]
pub(super) struct Watch {
    sender: Mutex<Option<Sender<Watched>>>,
}

impl Watch {
    /// Watches a run.
    pub fn add(&self, watched: Watched) {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = match &*sender {
            Some(thread) => match thread.send(watched) {
                Ok(()) => return,
                Err(back) => back.0,
            },
            None => watched,
        };
        let (new, receiver) = channel();
        // A thread that cannot be made leaves the task to ask by itself: it is woken at once.
        let made = std::thread::Builder::new()
            .name("graphc-watch".into())
            .spawn(move || look(&receiver));
        if made.is_ok() && new.send(watched).is_ok() {
            *sender = Some(new);
        }
    }
}

fn look(receiver: &Receiver<Watched>) {
    let mut all: Vec<Watched> = Vec::new();
    loop {
        let next = match all.is_empty() {
            true => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => receiver.recv_timeout(PAUSE),
        };
        match next {
            Ok(watched) => all.push(watched),
            Err(RecvTimeoutError::Disconnected) if all.is_empty() => return,
            Err(_) => {}
        }
        all.retain_mut(|watched| !watched());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_watched_is_asked_until_it_is_done() {
        let (done, finished) = channel();
        let watch = Watch::default();
        for rounds in [3, 1, 2] {
            let (done, mut left) = (done.clone(), rounds);
            watch.add(Box::new(move || {
                left -= 1;
                left == 0 && done.send(rounds).is_ok()
            }));
        }
        let mut all: Vec<i32> = (0..3)
            .filter_map(|_| finished.recv_timeout(Duration::from_secs(60)).ok())
            .collect();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
    }
}
