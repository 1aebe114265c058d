//! A small pool that spins before it sleeps: launches of about 10 µs cannot pay for a futex wake each.
//!
//! Workers spin for about [`SPIN_NANOS`] after a job, then sleep until the next. The caller is thread 0 and takes tasks
//! too. Each thread has a run of neighbouring tasks, and helps with the others' when it is through with its own. The
//! caller waits only for workers that have entered the job, so a worker that the system has not scheduled costs
//! nothing. A pool that is busy with another caller's job, or called from inside a task, runs the job inline.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an idle worker spins before it sleeps.
pub const SPIN_NANOS: u64 = 200_000;

/// A fixed number of threads, the caller's included, that run one parallel loop at a time.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    busy: Mutex<()>,
}

struct Shared {
    job: AtomicPtr<Job<'static>>,
    epoch: AtomicU32,
    /// Workers that may hold the job pointer.
    active: AtomicUsize,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
}

struct Job<'f> {
    run: &'f (dyn Fn(usize, usize) + Sync),
    /// Runs of tasks: one for each thread, or for some where there are many.
    shares: [Share; MOST_SHARES],
    count: usize,
    tasks: usize,
    threads: usize,
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

/// The most runs that tasks are cut into.
const MOST_SHARES: usize = 16;

/// How many tasks of a run were taken. Each has a cache line of its own.
#[repr(align(64))]
struct Share(AtomicUsize);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Job<'_> {
    /// Takes the tasks of a thread's own run, then what is left of the others: what a thread wrote in one loop it reads
    /// in the next, out of a cache of its own.
    fn work(&self, thread: usize) {
        let own = thread * self.count / self.threads;
        for at in 0..self.count {
            let share = (own + at) % self.count;
            let first = self.tasks * share / self.count;
            let size = self.tasks * (share + 1) / self.count - first;
            let taken = &self.shares[share].0;
            while taken.load(Relaxed) < size {
                let task = taken.fetch_add(1, SeqCst);
                if task >= size {
                    break;
                }
                (self.run)(first + task, thread);
            }
        }
    }
}

impl Pool {
    /// Starts `threads - 1` workers (`0` counts as `1`: everything runs on the caller).
    pub fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            job: AtomicPtr::new(std::ptr::null_mut()),
            epoch: AtomicU32::new(0),
            active: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        // A worker that the system refuses to start is one thread less, not an error.
        let (ready, started) = std::sync::mpsc::channel();
        let workers: Vec<_> = (1..threads.max(1))
            .map_while(|index| {
                let (shared, ready) = (shared.clone(), ready.clone());
                std::thread::Builder::new()
                    .name(format!("graphc-cpu-{index}"))
                    .spawn(move || {
                        let _ = ready.send(());
                        drop(ready);
                        shared.serve(index);
                    })
                    .ok()
            })
            .collect();
        // Starting threads is part of making the pool, not of the first runs on it.
        started.iter().take(workers.len()).for_each(drop);
        Pool {
            shared,
            workers,
            busy: Mutex::new(()),
        }
    }

    /// How many threads take tasks, the caller's included: thread indices are below it.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `run(task, thread)` for every task below `tasks` and returns when all are done.
    ///
    /// No two calls with one `thread` run at the same time *within this loop*. A panic of a task is raised here.
    pub fn parallel_for(&self, tasks: usize, run: &(dyn Fn(usize, usize) + Sync)) {
        let inline = || (0..tasks).for_each(|task| run(task, 0));
        if tasks <= 1 || self.workers.is_empty() || INSIDE.get() {
            return inline();
        }
        let _busy = match self.busy.try_lock() {
            Ok(guard) => guard,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return inline(),
        };
        let job = Job {
            run,
            shares: [const { Share(AtomicUsize::new(0)) }; MOST_SHARES],
            count: self.threads().min(tasks).min(MOST_SHARES),
            tasks,
            threads: self.threads(),
            panic: Mutex::new(None),
        };
        let shared = &*self.shared;
        {
            // Leaves the job, also when a task of this thread panics, only when no worker can see it any more.
            let _close = CloseOnDrop(shared);
            shared.job.store(std::ptr::from_ref(&job).cast_mut().cast(), SeqCst);
            shared.epoch.fetch_add(1, SeqCst);
            if shared.sleepers.load(SeqCst) > 0 {
                let _lock = shared.sleep.lock().unwrap_or_else(PoisonError::into_inner);
                shared.wake.notify_all();
            }
            INSIDE.set(true);
            job.work(0);
        }
        let panic = job.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.epoch.fetch_add(1, SeqCst);
        {
            let _lock = self.shared.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker catches every panic of a task, so it always joins.
            let _ = worker.join();
        }
    }
}

struct CloseOnDrop<'a>(&'a Shared);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        INSIDE.set(false);
        self.0.job.store(std::ptr::null_mut(), SeqCst);
        let mut spins = 0u32;
        while self.0.active.load(SeqCst) != 0 {
            spins += 1;
            if spins < 2000 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl Shared {
    fn serve(&self, thread: usize) {
        INSIDE.set(true);
        let mut seen = 0;
        loop {
            seen = self.wait(seen);
            if self.stop.load(SeqCst) {
                return;
            }
            // Announce first, look second: the caller takes the job away first and counts second.
            self.active.fetch_add(1, SeqCst);
            let job = self.job.load(SeqCst);
            if !job.is_null() {
                // SAFETY: the pointer was read after `active` was raised, and the caller keeps the job alive until
                // it has cleared the pointer and then seen `active` at zero.
                let job = unsafe { &*job };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job.work(thread))) {
                    *job.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
                }
            }
            self.active.fetch_sub(1, SeqCst);
        }
    }

    /// Waits for an epoch other than `seen` and returns it.
    fn wait(&self, seen: u32) -> u32 {
        let mut start = None;
        loop {
            for _ in 0..64 {
                let epoch = self.epoch.load(SeqCst);
                if epoch != seen {
                    return epoch;
                }
                std::hint::spin_loop();
            }
            let since = start.get_or_insert_with(Instant::now);
            if since.elapsed() > Duration::from_nanos(SPIN_NANOS) {
                break;
            }
        }
        let mut lock = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, SeqCst);
        while self.epoch.load(SeqCst) == seen {
            lock = self.wake.wait(lock).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, SeqCst);
        drop(lock);
        self.epoch.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [0, 1, 2, 5, 21] {
            let pool = Pool::new(threads);
            for tasks in [0usize, 1, 2, 7, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                for _ in 0..50 {
                    pool.parallel_for(tasks, &|task, thread| {
                        assert!(thread < pool.threads());
                        counts[task].fetch_add(1, SeqCst);
                    });
                }
                assert!(counts.iter().all(|c| c.load(SeqCst) == 50));
            }
        }
    }

    #[test]
    fn threads_begin_with_tasks_of_their_own() {
        let pool = Pool::new(2);
        let all = std::sync::Barrier::new(2);
        for _ in 0..20 {
            pool.parallel_for(8, &|task, thread| {
                if task % 4 == 0 {
                    // Nobody is through with its own before both have begun.
                    all.wait();
                    assert_eq!(task / 4, thread);
                }
            });
        }
    }

    #[test]
    fn wakes_after_sleep() {
        let pool = Pool::new(2);
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(3));
            let sum = AtomicUsize::new(0);
            pool.parallel_for(100, &|task, _| {
                sum.fetch_add(task, SeqCst);
            });
            assert_eq!(sum.load(SeqCst), 4950);
        }
    }

    #[test]
    fn nested_and_concurrent_calls_finish() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.parallel_for(8, &|_, _| {
                            pool.parallel_for(4, &|_, _| {
                                sum.fetch_add(1, SeqCst);
                            })
                        });
                    }
                });
            }
        });
        assert_eq!(sum.load(SeqCst), 3 * 200 * 32);
    }

    #[test]
    fn a_panic_is_raised_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        for _ in 0..20 {
            let got = catch_unwind(AssertUnwindSafe(|| {
                pool.parallel_for(64, &|task, _| assert!(task != 33, "task 33"));
            }));
            assert!(got.is_err());
            let sum = AtomicUsize::new(0);
            pool.parallel_for(64, &|_, _| {
                sum.fetch_add(1, SeqCst);
            });
            assert_eq!(sum.load(SeqCst), 64);
        }
    }
}
