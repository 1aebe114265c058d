//! Many requests on one model: a thread that gives each sequence a step in turn.
//!
//! ```text
//! handlers -> queue, in the order of arrival -> slots (a cache each, one program and its weights for all) -> events
//! ```
//!
//! A step is a batch of a prompt or one token, so a long prompt holds others up for one batch, and a job that nobody
//! listens to any more ends before its next step. Sequences do not touch each other, and what a cache gives to a new
//! job was computed in whole batches: an answer is the one that the request gets alone.

mod job;
mod slot;
mod stops;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use job::{End, Event, Job, Logprobs, News, Piece, Reason};
pub use stops::Stops;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
use slot::{Outcome, Slot, Step};

/// Counts since the start, and what is there now.
#[derive(Debug, Default)]
pub struct Counts {
    pub waiting: AtomicUsize,
    pub running: AtomicUsize,
    pub completed: AtomicU64,
    pub cancelled: AtomicU64,
    pub failed: AtomicU64,
    pub prompt_tokens: AtomicU64,
    pub reused_tokens: AtomicU64,
    pub written_tokens: AtomicU64,
    /// Microseconds of steps of prompts, of steps of texts, and from arrivals to first tokens.
    pub prompt_time: AtomicU64,
    pub text_time: AtomicU64,
    pub first_time: AtomicU64,
    /// How many first tokens there were.
    pub first: AtomicU64,
}

/// The queue's end that requests come in at. The thread ends when all jobs have ended behind the last of these.
pub struct Scheduler {
    queue: Mutex<Option<Sender<Job>>>,
    counts: Arc<Counts>,
    thread: Mutex<Option<JoinHandle<()>>>,
    capacity: usize,
    most_waiting: usize,
    slots: usize,
}

impl Scheduler {
    /// Starts the thread, with `slots` sequences at once.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn start(engine: Engine, tokenizer: Arc<Tokenizer>, slots: usize, most_waiting: usize) -> Result<Scheduler> {
        let slots = slots.max(1);
        let (capacity, counts) = (engine.capacity(), Arc::new(Counts::default()));
        let (queue, jobs) = channel();
        let mut all: Vec<Slot> = (1..slots).map(|_| Slot::new(engine.another())).collect();
        all.push(Slot::new(engine));
        let worker = Worker {
            slots: all,
            tokenizer,
            counts: counts.clone(),
            jobs,
            queue: VecDeque::new(),
            begun: 0,
        };
        let thread = std::thread::Builder::new()
            .name("scheduler".to_owned())
            .spawn(move || worker.run())
            .map_err(|error| Error::Usage(format!("the system gives no thread to compute in: {error}")))?;
        Ok(Scheduler {
            queue: Mutex::new(Some(queue)),
            counts,
            thread: Mutex::new(Some(thread)),
            capacity,
            most_waiting,
            slots,
        })
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Tokens that a sequence has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sequences at once.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Puts a request's jobs at the end of the queue, all or none.
    ///
    /// # Errors
    /// `Context` for a prompt that leaves no room for a token; `Busy` where too many wait; `Usage` after
    /// [`Scheduler::finish`].
    pub fn submit(&self, jobs: Vec<Job>) -> Result<()> {
        if let Some(job) = jobs.iter().find(|job| job.prompt.len() >= self.capacity) {
            return Err(Error::Context {
                needed: job.prompt.len() + 1,
                capacity: self.capacity,
            });
        }
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = &*queue else { return Err(ended()) };
        let [waiting, running] =
            [&self.counts.waiting, &self.counts.running].map(|count| count.load(Ordering::Relaxed));
        if waiting + running + jobs.len() > self.most_waiting + self.slots {
            return Err(Error::Busy {
                waiting,
                most: self.most_waiting,
            });
        }
        for job in jobs {
            self.counts.waiting.fetch_add(1, Ordering::Relaxed);
            queue.send(job).map_err(|_| ended())?;
        }
        Ok(())
    }

    /// Takes no more jobs, and waits until those that are there have ended.
    pub fn finish(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic there was printed there.
            thread.join().ok();
        }
    }
}

fn ended() -> Error {
    Error::Usage("the server takes no more requests".to_owned())
}

struct Worker {
    slots: Vec<Slot>,
    tokenizer: Arc<Tokenizer>,
    counts: Arc<Counts>,
    jobs: Receiver<Job>,
    queue: VecDeque<Job>,
    begun: u64,
}

impl Worker {
    fn run(mut self) {
        let mut is_open = true;
        while is_open || !self.queue.is_empty() || self.is_busy() {
            is_open = self.receive() && is_open;
            self.fill();
            for slot in &mut self.slots {
                if slot.work.is_some() {
                    let step = slot.step(&self.tokenizer);
                    count(&self.counts, slot, &step);
                    // Who is told of the end may ask again at once, and is to find the place free.
                    let ended = slot.work.take_if(|_| step.ended.is_some());
                    if let (Some(work), Some(news)) = (ended, step.last) {
                        work.tell(news);
                    }
                }
            }
        }
    }

    fn is_busy(&self) -> bool {
        self.slots.iter().any(|slot| slot.work.is_some())
    }

    /// Takes in what has come, and waits where there is nothing to do. False when no more will come.
    fn receive(&mut self) -> bool {
        let is_open = loop {
            let job = match self.queue.is_empty() && !self.is_busy() {
                true => self.jobs.recv().map_err(|_| TryRecvError::Disconnected),
                false => self.jobs.try_recv(),
            };
            match job {
                Ok(job) => self.queue.push_back(job),
                Err(TryRecvError::Empty) => break true,
                Err(TryRecvError::Disconnected) => break false,
            }
        };
        let before = self.queue.len();
        self.queue.retain(|job| !job.events.is_closed());
        let gone = before - self.queue.len();
        self.counts.waiting.fetch_sub(gone, Ordering::Relaxed);
        self.counts.cancelled.fetch_add(gone as u64, Ordering::Relaxed);
        is_open
    }

    /// Gives free slots the jobs that came first.
    fn fill(&mut self) {
        while self.slots.iter().any(|slot| slot.work.is_none()) {
            let Some(job) = self.queue.pop_front() else { return };
            let Some(place) = self.place(&job) else { return };
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            self.counts.running.fetch_add(1, Ordering::Relaxed);
            self.begun += 1;
            let slot = &mut self.slots[place];
            slot.begin(job, &self.tokenizer);
            slot.used = self.begun;
            let reused = slot.engine.tokens().len() as u64;
            self.counts.reused_tokens.fetch_add(reused, Ordering::Relaxed);
        }
    }

    /// The free slot that knows most of a job's prompt; of equals, the one that was used longest ago.
    fn place(&self, job: &Job) -> Option<usize> {
        let free = (0..self.slots.len()).filter(|place| self.slots[*place].work.is_none());
        free.max_by_key(|place| {
            let slot = &self.slots[*place];
            (slot.engine.known_in_batches(&job.prompt), std::cmp::Reverse(slot.used))
        })
    }
}

fn count(counts: &Counts, slot: &Slot, step: &Step) {
    let micros = |time: Duration| time.as_micros() as u64;
    counts.prompt_tokens.fetch_add(step.prompt as u64, Ordering::Relaxed);
    counts.written_tokens.fetch_add(step.written as u64, Ordering::Relaxed);
    let time = if step.prompt > 0 {
        &counts.prompt_time
    } else {
        &counts.text_time
    };
    time.fetch_add(micros(step.time), Ordering::Relaxed);
    let Some(work) = &slot.work else { return };
    if let (Some(first), true) = (work.first, step.prompt > 0) {
        counts.first.fetch_add(1, Ordering::Relaxed);
        let waited = first.duration_since(work.job.arrived);
        counts.first_time.fetch_add(micros(waited), Ordering::Relaxed);
    }
    let Some(outcome) = step.ended else { return };
    counts.running.fetch_sub(1, Ordering::Relaxed);
    let ended = match outcome {
        Outcome::Completed => &counts.completed,
        Outcome::Cancelled => &counts.cancelled,
        Outcome::Failed => &counts.failed,
    };
    ended.fetch_add(1, Ordering::Relaxed);
}
