//! A level of memory as one compute unit sees it: a server at the unit's part of the rate, with what others leave.
//!
//! Units share a level, and their bursts come at different times: a unit that asked for little lately is served at
//! once, up to what the level has under way at a time (`window`), and only on average at its part of the rate. Reads
//! come before writes: what is to be written is owed, and paid while no read is served. But writes go out in batches,
//! and a read that meets one waits for its end: on average for as much of a batch as writes take of the time.

/// One level.
#[derive(Debug)]
pub(super) struct Queue {
    /// When what was asked for is served at the unit's part of the rate.
    free: f64,
    /// The same at the rate that the unit's own path has.
    path: f64,
    /// Cycles of writes that are not served yet.
    debt: f64,
    /// Cycles of service that may lie unused, or be owed.
    window: f64,
    /// Bytes a cycle of the unit's own path.
    peak: f64,
    /// Half of the cycles that a batch of writes takes.
    batch: f64,
    /// Cycles that a channel takes for what neighbouring addresses have of it.
    channel: f64,
    /// The parts of the time that writes and reads have lately taken, at the latest time that something was asked for.
    writing: f64,
    reading: f64,
    noted: f64,
    used: bool,
}

/// Cycles over which the part that writes take is averaged.
const LATELY: f64 = 4000.0;

impl Queue {
    pub fn new(window: f64, peak: f64, batch: f64, channel: f64) -> Queue {
        Queue {
            free: 0.0,
            path: 0.0,
            debt: 0.0,
            window,
            peak,
            batch,
            channel,
            writing: 0.0,
            reading: 0.0,
            noted: 0.0,
            used: false,
        }
    }

    /// The time until `at` is past: it pays debts, and of what is left only a window counts later.
    fn pass(&mut self, at: f64) {
        if !self.used {
            // The launch's first accesses come from all units at once.
            self.free = at;
            self.used = true;
        }
        let idle = (at - self.free).max(0.0).min(self.debt);
        self.debt -= idle;
        self.free = (self.free + idle).max(at - self.window);
        if at > self.noted {
            let left = (-(at - self.noted) / LATELY).exp();
            self.writing *= left;
            self.reading *= left;
            self.noted = at;
        }
    }

    /// When `bytes` that are asked for at `at` are served, at `rate` on average.
    pub fn read(&mut self, at: f64, bytes: f64, rate: f64) -> f64 {
        self.pass(at);
        self.free += bytes / rate;
        self.path = self.path.max(at) + bytes / self.peak;
        self.reading += bytes / rate / LATELY;
        self.free.max(self.path) + self.batch_wait() + self.channel_wait()
    }

    /// Cycles that a request waits for its channel on average, whatever the level has left: those of a queue that
    /// requests of one length come to at random (M/D/1, the formula of Pollaczek and Khinchine), never more than what a
    /// level has under way.
    fn channel_wait(&self) -> f64 {
        let taken = (self.reading + self.writing).min(1.0);
        let wait = self.channel * taken / (2.0 * (1.0 - taken)).max(1e-9);
        wait.min(self.window)
    }

    /// Cycles that a read waits for a batch of writes, on average.
    ///
    /// Batches of B cycles take the part w of the time, and reads the part r of it. A read that comes while one is
    /// written waits for its end, and behind the reads that wait already; one that comes later waits while those are
    /// served. In all that is w B / 2 / (1 - r), and B / 2 where nothing is left of the time.
    fn batch_wait(&self) -> f64 {
        self.batch * self.writing / (1.0 - self.reading).max(self.writing).max(1e-9)
    }

    /// When `bytes` that come at `at` are taken, to be written later: once their channel takes them, unless more than a
    /// window is owed.
    pub fn write(&mut self, at: f64, bytes: f64, rate: f64) -> f64 {
        self.pass(at);
        self.debt += bytes / rate;
        self.writing += bytes / rate / LATELY;
        let over = self.debt - self.window;
        if over <= 0.0 {
            return at + self.channel_wait();
        }
        self.debt = self.window;
        self.free = self.free.max(at) + over;
        self.free + self.channel_wait()
    }

    /// When all is served and written.
    pub fn owed(&self) -> f64 {
        self.free.max(self.noted) + self.debt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_after_a_rest_is_served_at_the_path_s_rate() {
        let mut queue = Queue::new(500.0, 32.0, 0.0, 0.0);
        // The first bytes come from all units at once: at the part of the rate.
        assert_eq!(queue.read(100.0, 800.0, 8.0), 200.0);
        // Half of the time was unused.
        assert_eq!(queue.read(400.0, 800.0, 8.0), 425.0);
        // Always asked for, it is served at the part of the rate.
        let last = (0..100).map(|_| queue.read(400.0, 800.0, 8.0)).last();
        assert_eq!(last, Some(10_300.0));
        // More than a window is not kept.
        assert_eq!(queue.read(20_000.0, 8000.0, 8.0), 20_500.0);
    }

    #[test]
    fn writes_are_owed_and_paid_when_reads_rest() {
        let mut queue = Queue::new(500.0, 32.0, 0.0, 0.0);
        queue.read(0.0, 8.0, 8.0);
        assert_eq!(queue.write(0.0, 3200.0, 8.0), 0.0);
        assert_eq!(queue.owed(), 401.0);
        // Reads do not wait for it.
        assert_eq!(queue.read(1.0, 80.0, 8.0), 11.0);
        // A write beyond the window waits, and reads wait with it.
        assert_eq!(queue.write(11.0, 1600.0, 8.0), 111.0);
        assert_eq!(queue.read(11.0, 80.0, 8.0), 121.0);
        // It is paid when nothing else is asked for.
        assert_eq!(queue.write(700.0, 8.0, 8.0), 700.0);
        assert_eq!(queue.owed(), 701.0);
    }

    #[test]
    fn reads_wait_for_a_part_of_a_batch_of_writes() {
        let wait = |between: f64| {
            let mut queue = Queue::new(500.0, 1e9, 800.0, 0.0);
            // Writes take a quarter of the time, reads what is asked for in between.
            for step in 0..400 {
                queue.write(f64::from(step) * 100.0, 200.0, 8.0);
                queue.read(f64::from(step) * 100.0, between, 8.0);
            }
            let wait = queue.read(40_000.0, 0.0, 8.0) - 40_000.0;
            let later = queue.read(80_000.0, 0.0, 8.0) - 80_000.0;
            assert!(later < 1.0, "{later}");
            wait
        };
        // Alone a read waits for the rest of a batch.
        assert!((wait(0.0) - 200.0).abs() < 10.0, "{}", wait(0.0));
        // Where reads take half of the time, for those of before as well.
        assert!((wait(400.0) - 400.0).abs() < 25.0, "{}", wait(400.0));
    }

    #[test]
    fn requests_meet_at_channels_the_more_the_less_is_left() {
        let wait = |bytes: f64| {
            let mut queue = Queue::new(500.0, 1e9, 0.0, 20.0);
            for step in 0..400 {
                queue.read(f64::from(step) * 100.0, bytes, 8.0);
            }
            queue.read(40_000.0, 0.0, 8.0) - 40_000.0
        };
        // Half of the time: half of a request's. Nine tenths: four and a half.
        assert!((wait(400.0) - 10.0).abs() < 1.0, "{}", wait(400.0));
        assert!((wait(720.0) - 90.0).abs() < 20.0, "{}", wait(720.0));
        assert_eq!(wait(0.0), 0.0);
        // A level that is always asked for has a queue of its own.
        assert!(wait(4000.0) >= 500.0);
    }
}
