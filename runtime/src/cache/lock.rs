//! One compile a key, however many threads and processes want it: they wait for each other at a file beside the entry.
//!
//! The lock is the system's (`flock`) and goes with the process that holds it, however that ends. Its file is removed
//! by whoever holds it; who waited at a file that was removed in the meantime starts again with a new one.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::trust;

/// The ending of lock files.
pub(super) const EXTENSION: &str = "lock";

/// A lock that is held until the value is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    /// Closing it gives the lock back.
    _file: File,
}

impl Lock {
    /// Waits for the lock at a path; None where the folder or its file system has none to give.
    pub(super) fn wait(path: &Path) -> Option<Lock> {
        trust::make_folder(path.parent()?).ok()?;
        loop {
            let mut options = File::options();
            // A FIFO of this name would be waited for, and is no lock.
            let file = ir::file::open_at_once(options.write(true).create(true).truncate(false), path).ok()?;
            file.lock().ok()?;
            let locked = file.metadata().ok()?;
            // Removed while this waited for it: then nobody else would find it.
            if fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (locked.dev(), locked.ino())) {
                let path = path.to_owned();
                return Some(Lock { path, _file: file });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Before it is given back, so that nobody can hold it under this name and have it removed.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn threads_hold_it_one_at_a_time_and_leave_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ab").join("key.lock");
        let inside = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _lock = Lock::wait(&path).unwrap();
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(!path.exists());
    }

    #[test]
    fn a_process_that_is_killed_keeps_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.lock");
        let mut holder = Command::new("flock");
        // `-o`: its child does not hold the lock too.
        holder.arg("-o").arg(&path).args(["sh", "-c", "echo held; exec cat"]);
        let Ok(mut holder) = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
            println!("skipped: no flock(1) here");
            return;
        };
        let mut said = [0; 4];
        std::io::Read::read_exact(&mut holder.stdout.take().unwrap(), &mut said).unwrap();
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || Lock::wait(&path).map(|_| Instant::now())
        });
        std::thread::sleep(Duration::from_millis(200));
        assert!(!waiting.is_finished(), "it is held");
        let killed = Instant::now();
        // Its child lives on, until this end of its pipe is closed.
        let _child = holder.stdin.take();
        holder.kill().unwrap();
        holder.wait().unwrap();
        let had = waiting.join().unwrap().unwrap();
        assert!(
            had - killed < Duration::from_secs(3),
            "it was given back with the process"
        );
    }

    #[test]
    fn a_fifo_is_no_lock_and_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.lock");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(Lock::wait(&path).is_none());
    }

    #[test]
    fn where_there_can_be_no_file_there_is_no_lock() {
        assert!(Lock::wait(Path::new("/dev/null/ab/key.lock")).is_none());
    }
}
