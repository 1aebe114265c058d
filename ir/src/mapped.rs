//! Files mapped into memory, which may become shorter while they are in use.
//!
//! A page of a mapping that is behind the end of its file cannot be read: the system sends SIGBUS, which ends a process
//! that does not handle it. Here the missing page is replaced by zeros and the mapping is marked as broken, so that
//! whoever reads goes on, and whoever began the work asks [`check`] when it is done, and gives an error that names the
//! file. Weights stay in the page cache that way; reading files into memory would take them twice. The rest of a file's
//! last page reads as zeros without a signal, so the checks also compare the file's length now with the mapping's.
//!
//! [`check`] is for work that knows its slices; [`check_all`] is for everything else: the command line asks it before
//! each result is printed and when a verb ends, and [`crate::file::write`] asks it before a file is replaced.
//!
//! A file that is changed in place without becoming shorter is not noticed: its bytes are what they are.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use memmap2::Mmap;

/// Mappings that are watched at once; more are mapped all the same, and end the process when their files become
/// shorter.
const WATCHED: usize = 1024;

/// A place in memory that is a mapping, for the signal handler, which takes no locks.
struct Place {
    /// 0 where there is none.
    start: AtomicUsize,
    length: AtomicUsize,
    is_broken: AtomicBool,
}

static PLACES: [Place; WATCHED] = [const {
    Place {
        start: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        is_broken: AtomicBool::new(false),
    }
}; WATCHED];
/// Whether any mapping was ever found to be broken.
static ANY_BROKEN: AtomicBool = AtomicBool::new(false);
/// The files of the places that are taken.
static WATCHED_FILES: Mutex<Vec<Watched>> = Mutex::new(Vec::new());
/// Whether a broken mapping is remembered when it is dropped; see [`remember`].
static REMEMBERS: AtomicBool = AtomicBool::new(false);
/// The file of the first broken mapping that was dropped.
static DROPPED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// A file that is mapped.
struct Watched {
    place: usize,
    path: PathBuf,
    /// Tells the file's length; None where the system had no more descriptors.
    file: Option<File>,
}

impl Watched {
    /// Says whether the file is, or was, shorter than its mapping.
    fn is_broken(&self) -> bool {
        let place = &PLACES[self.place];
        let length = place.length.load(Ordering::SeqCst);
        let metadata = self.file.as_ref().and_then(|file| file.metadata().ok());
        if metadata.is_some_and(|metadata| metadata.len() < length as u64) {
            place.is_broken.store(true, Ordering::SeqCst);
            ANY_BROKEN.store(true, Ordering::SeqCst);
        }
        place.is_broken.load(Ordering::SeqCst)
    }
}

fn watched_files() -> MutexGuard<'static, Vec<Watched>> {
    WATCHED_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file, mapped read-only.
#[derive(Debug)]
pub struct Mapped {
    map: Mmap,
    /// Its number among the places that are watched.
    place: Option<usize>,
}

impl Mapped {
    /// Maps a file, whose path is for messages.
    ///
    /// # Errors
    /// What the system reports.
    pub fn new(file: &File, path: &Path) -> io::Result<Mapped> {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(handle_signal);
        // SAFETY: the map is read-only and private to this process's view. A file that becomes shorter is handled
        // below; the bytes of one that is changed in place are read as plain bytes, and nothing relies on their staying
        // what they were.
        let map = unsafe { Mmap::map(file) }?;
        let mut files = watched_files();
        let place = (0..WATCHED).find(|at| files.iter().all(|watched| watched.place != *at));
        let place = place.filter(|_| !map.is_empty());
        if let Some(at) = place {
            files.push(Watched {
                place: at,
                path: path.to_owned(),
                file: file.try_clone().ok(),
            });
            let place = &PLACES[at];
            place.is_broken.store(false, Ordering::SeqCst);
            place.length.store(map.len(), Ordering::SeqCst);
            place.start.store(map.as_ptr() as usize, Ordering::SeqCst);
        }
        Ok(Mapped { map, place })
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Some(at) = self.place else { return };
        // The lock is held until the place is free in both tables; the memory is given back after this.
        let mut files = watched_files();
        let own = files.iter().position(|watched| watched.place == at);
        if let Some(watched) = own.map(|own| files.swap_remove(own))
            && REMEMBERS.load(Ordering::SeqCst)
            && watched.is_broken()
        {
            let mut dropped = DROPPED.lock().unwrap_or_else(PoisonError::into_inner);
            dropped.get_or_insert(watched.path);
        }
        PLACES[at].start.store(0, Ordering::SeqCst);
    }
}

/// A file became shorter while it was in use.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{} became shorter while it was in use; put the whole file back and start again", .0.display())]
pub struct Truncated(pub PathBuf);

/// Checks that the bytes of some slices were there whenever they were read.
///
/// # Errors
/// The first file of these that was found to be shorter than its mapping.
pub fn check<'a>(slices: impl IntoIterator<Item = &'a [u8]>) -> Result<(), Truncated> {
    let files = watched_files();
    // All are asked, for each says so to the places.
    files.iter().for_each(|watched| {
        watched.is_broken();
    });
    if !ANY_BROKEN.load(Ordering::SeqCst) {
        return Ok(());
    }
    let broken = slices.into_iter().find_map(|bytes| {
        let at = place_of(bytes.as_ptr() as usize)?;
        PLACES[at].is_broken.load(Ordering::SeqCst).then_some(at)
    });
    let Some(broken) = broken else { return Ok(()) };
    let file = files.iter().find(|watched| watched.place == broken);
    Err(Truncated(
        file.map_or_else(PathBuf::new, |watched| watched.path.clone()),
    ))
}

/// Checks that the bytes of all mapped files were there whenever they were read: of those that are mapped now and,
/// after [`remember`], also of those that were mapped before.
///
/// # Errors
/// A file that was found to be shorter than its mapping.
pub fn check_all() -> Result<(), Truncated> {
    let broken = watched_files()
        .iter()
        .find(|watched| watched.is_broken())
        .map(|watched| watched.path.clone());
    let dropped = || DROPPED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    broken.or_else(dropped).map_or(Ok(()), |path| Err(Truncated(path)))
}

/// Makes [`check_all`] remember broken mappings that are dropped, for the rest of the process: for programs that do one
/// thing and end. A server that drops a broken model and goes on must not call it.
pub fn remember() {
    REMEMBERS.store(true, Ordering::SeqCst);
}

/// The number of the mapping that an address is in.
fn place_of(address: usize) -> Option<usize> {
    PLACES.iter().position(|place| {
        let start = place.start.load(Ordering::SeqCst);
        start != 0 && address.wrapping_sub(start) < place.length.load(Ordering::SeqCst)
    })
}

/// The action for SIGBUS before this one; written once, before the handler can run.
static BEFORE: Mutex<Option<libc::sigaction>> = Mutex::new(None);

fn handle_signal() {
    // SAFETY: an action of zeros is a valid one of default flags and an empty mask, and the handler has the signature
    // that SA_SIGINFO asks for. It runs on the alternate stack where there is one, as the handlers of the standard
    // library do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) == 0 {
            *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        }
    }
}

/// Replaces the page of a mapping that is not there by zeros. Does nothing that a signal handler may not: it reads
/// atomics and makes system calls.
extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system gives the handler the signal's information, which for SIGBUS has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    if let Some(at) = place_of(address) {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let start = address / page * page;
        let (read, flags) = (
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
        );
        // SAFETY: the page is one of a mapping of ours, which is read-only and alive while somebody reads it.
        let made = unsafe { libc::mmap(start as *mut libc::c_void, page, read, flags, -1, 0) };
        if made != libc::MAP_FAILED {
            PLACES[at].is_broken.store(true, Ordering::SeqCst);
            ANY_BROKEN.store(true, Ordering::SeqCst);
            return;
        }
    }
    // Not ours: what was there before handles it when the access is made again.
    let before = BEFORE.try_lock().ok().and_then(|before| *before);
    // SAFETY: an action that the system gave, or one of zeros, which is the default.
    unsafe {
        let before = before.unwrap_or_else(|| std::mem::zeroed());
        libc::sigaction(libc::SIGBUS, &raw const before, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_becomes_shorter_is_named_and_ends_no_process() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["whole", "cut"].map(|name| dir.path().join(name));
        let [whole, cut] = [0, 1].map(|i| {
            fs::write(&paths[i], vec![7; 100_000]).unwrap();
            Mapped::new(&File::open(&paths[i]).unwrap(), &paths[i]).unwrap()
        });
        check([whole.as_ref(), cut.as_ref()]).unwrap();
        File::options()
            .write(true)
            .open(&paths[1])
            .unwrap()
            .set_len(10)
            .unwrap();
        let sum: usize = cut.as_ref().iter().map(|byte| usize::from(*byte)).sum();
        assert_eq!(sum, 70, "zeros in the place of what is missing");
        let error = check([whole.as_ref(), &cut.as_ref()[50_000..]]).unwrap_err();
        assert_eq!(error, Truncated(paths[1].clone()));
        check([whole.as_ref(), &[1, 2, 3]]).unwrap();
        assert!(whole.as_ref().iter().all(|byte| *byte == 7));
        drop(cut);
        // Its place may be another file's then, which is whole.
        fs::write(&paths[1], vec![7; 100_000]).unwrap();
        let again = Mapped::new(&File::open(&paths[1]).unwrap(), &paths[1]).unwrap();
        check([again.as_ref()]).unwrap();
    }

    /// No signal tells of it: the rest of the page is zeros.
    #[test]
    fn a_file_that_becomes_shorter_within_a_page_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("small");
        fs::write(&path, [7; 100]).unwrap();
        let small = Mapped::new(&File::open(&path).unwrap(), &path).unwrap();
        check([small.as_ref()]).unwrap();
        check_all().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
        assert_eq!(small.as_ref()[50], 0, "silently");
        assert_eq!(check([small.as_ref()]).unwrap_err(), Truncated(path.clone()));
        assert_eq!(check_all().unwrap_err(), Truncated(path.clone()));
        drop(small);
        check_all().unwrap();
        // A program that does one thing and ends remembers it.
        remember();
        fs::write(&path, [7; 100]).unwrap();
        let small = Mapped::new(&File::open(&path).unwrap(), &path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
        drop(small);
        assert_eq!(check_all().unwrap_err(), Truncated(path));
    }
}
