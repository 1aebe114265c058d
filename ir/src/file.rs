//! Files that are written: what every `-o` and every saved artifact goes through.
//!
//! A regular file appears whole or not at all: it is written beside its place and renamed into it. It has the old
//! file's mode, or the one that the umask gives. Everything else (a device, a FIFO, this process's standard output) is
//! written through, as a shell's `>` does. Symlinks are followed, also one that leads to no file yet.
//!
//! A process that is killed while it writes leaves its temporary file. The next write to the folder removes it: who
//! writes one holds its lock, which goes with the process.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::mapped;

/// How long a FIFO may have no reader before writing it is an error.
const READER_TIMEOUT: Duration = Duration::from_secs(10);

/// Temporary files are named by this and some random characters.
const TEMPORARY: &str = ".graphc-";
const RANDOM: usize = 6;

/// Most links of a chain that are followed: Linux's own limit.
const MOST_LINKS: usize = 40;

/// Writes a file with what `fill` gives; after an error a regular file is as it was.
///
/// # Errors
/// What the system reports, what `fill` reports, a folder at `path`, and a FIFO that nothing reads for ten seconds. A
/// [`Truncated`](mapped::Truncated) where a mapped file became shorter: the bytes may be zeros in the place of its own.
pub fn write(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let checked = |out: &mut dyn Write| {
        let filled = fill(out).and_then(|()| out.flush());
        // Before an error of `fill`: the system reports missing pages as a bad address.
        mapped::check_all().map_err(io::Error::other)?;
        filled
    };
    write_checked(path, checked)
}

fn write_checked(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    match destination(path)? {
        Destination::Regular { path, mode } => {
            let mut temporary = beside(&path, mode)?;
            fill(&mut BufWriter::new(temporary.as_file_mut()))?;
            temporary.as_file().sync_all()?;
            temporary.persist(&path).map_err(|e| e.error)?;
            Ok(())
        }
        Destination::Fifo(path) => through(open_fifo(&path)?, fill),
        Destination::Special(path) => through(OpenOptions::new().write(true).open(path)?, fill),
        Destination::Standard(file) => through(file, fill),
    }
}

/// Finds out whether [`write`] could write a file, and leaves nothing behind: before long work, not after it.
///
/// # Errors
/// As [`write`]; that a FIFO has a reader is not asked.
pub fn check(path: &Path) -> io::Result<()> {
    match destination(path)? {
        Destination::Regular { path, mode } => beside(&path, mode).map(drop),
        Destination::Special(path) => OpenOptions::new().write(true).open(path).map(drop),
        Destination::Fifo(_) | Destination::Standard(_) => Ok(()),
    }
}

/// Says whether two paths name one file that is there, under one name or several.
pub fn is_same(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    identity(a).is_some_and(|a| identity(b) == Some(a))
}

/// Says whether a path leads to this process's standard output.
pub fn is_stdout(path: &Path) -> bool {
    matches!(follow(path), Ok(path) if standard(&path) == Some(1))
}

/// Checks that a file to be read whole is a regular one: a FIFO would make the reader wait, a device may have no end.
///
/// # Errors
/// What the system reports, and what the file is instead.
pub fn check_readable(path: &Path) -> io::Result<()> {
    check_kind(&fs::metadata(path)?)
}

fn check_kind(metadata: &fs::Metadata) -> io::Result<()> {
    let what = match metadata.file_type() {
        k if k.is_file() => return Ok(()),
        k if k.is_dir() => "a folder",
        k if k.is_fifo() => "a FIFO",
        k if k.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::new(
        ErrorKind::InvalidInput,
        format!("it is {what}, and a regular file is needed"),
    ))
}

/// Opens a regular file to be read; nothing else at its place makes the reader wait, also when it comes there in the
/// meantime.
///
/// # Errors
/// What the system reports, and what the file is instead.
pub fn open(path: &Path) -> io::Result<File> {
    // Before it is opened: opening a device may do something.
    check_readable(path)?;
    open_at_once(OpenOptions::new().read(true), path)
}

/// Opens a regular file as the options say, and waits for nobody at the other end of what is none.
///
/// # Errors
/// What the system reports, and what the file is instead.
pub fn open_at_once(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // For a regular file the flag means nothing.
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    check_kind(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file whole.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let mut bytes = Vec::with_capacity(usize::try_from(file.metadata()?.len()).unwrap_or_default());
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a regular file of text whole.
///
/// # Errors
/// As [`open`]; what is no UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is no text in UTF-8"))
}

/// Where the bytes go.
enum Destination {
    /// To a file that is replaced, or made.
    Regular {
        path: PathBuf,
        mode: Option<u32>,
    },
    Fifo(PathBuf),
    Special(PathBuf),
    /// To a stream that this process has open already.
    Standard(File),
}

fn destination(path: &Path) -> io::Result<Destination> {
    let path = follow(path)?;
    match standard(&path) {
        Some(1) => return Ok(Destination::Standard(io::stdout().as_fd().try_clone_to_owned()?.into())),
        Some(2) => return Ok(Destination::Standard(io::stderr().as_fd().try_clone_to_owned()?.into())),
        _ => {}
    }
    match fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => Err(io::Error::new(ErrorKind::IsADirectory, "it is a folder")),
        Ok(meta) if meta.is_file() => {
            // A file that may not be written is not replaced either, though its folder would let it.
            OpenOptions::new().write(true).open(&path)?;
            let mode = Some(meta.mode() & 0o777);
            Ok(Destination::Regular { path, mode })
        }
        Ok(meta) if meta.file_type().is_fifo() => Ok(Destination::Fifo(path)),
        Ok(_) => Ok(Destination::Special(path)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Destination::Regular { path, mode: None }),
        Err(error) => Err(error),
    }
}

/// Follows symlinks to the last name: a file, or where one would be made.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        // The links of `/proc/PID/fd` stand for open files, their text need not be a path.
        let is_link = fs::symlink_metadata(&path).is_ok_and(|m| m.is_symlink());
        if !is_link || standard(&path).is_some() {
            return Ok(path);
        }
        if fs::metadata(&path).is_ok_and(|m| !m.is_file()) && fs::canonicalize(&path).is_err() {
            return Ok(path);
        }
        let target = fs::read_link(&path)?;
        path = folder(&path).join(target);
    }
    Err(io::Error::other("too many levels of symbolic links"))
}

/// The number of the stream when a path is this process's own standard output or error.
fn standard(path: &Path) -> Option<u32> {
    let number: u32 = path
        .file_name()?
        .to_str()?
        .parse()
        .ok()
        .filter(|n| [1, 2].contains(n))?;
    let folder = fs::canonicalize(path.parent()?).ok()?;
    let own = PathBuf::from(format!("/proc/{}/fd", std::process::id()));
    (folder == own).then_some(number)
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Makes a temporary file beside a file that is to be replaced.
fn beside(path: &Path, mode: Option<u32>) -> io::Result<tempfile::NamedTempFile> {
    let folder = folder(path);
    fs::metadata(folder)?;
    remove_left(folder);
    let file = loop {
        // The umask takes its part of the mode when the file is made; an old file's mode is given as it is.
        let made = tempfile::Builder::new()
            .prefix(TEMPORARY)
            .rand_bytes(RANDOM)
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder);
        // The temporary name in the error is nothing to the user.
        let file = made.map_err(|error| io::Error::from(error.kind()))?;
        // A file system without locks has none to remove by either.
        let is_locked = file.as_file().lock().is_ok();
        // Another process may have removed it before it was locked.
        if !is_locked || is_there(file.as_file(), file.path()) {
            break file;
        }
    };
    if let Some(mode) = mode {
        file.as_file().set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(file)
}

/// Removes temporary files of processes that were killed: nobody holds their locks.
fn remove_left(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(TEMPORARY));
        let is_ours = random.is_some_and(|r| r.len() == RANDOM && r.bytes().all(|b| b.is_ascii_alphanumeric()));
        if !is_ours || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(entry.path());
        // The lock is held until the file is gone, so that whoever made it and waits for the lock makes another.
        if let Ok(file) = file
            && file.try_lock().is_ok()
            && is_there(&file, &entry.path())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether a file is still the one that a path names.
fn is_there(file: &File, path: &Path) -> bool {
    let identity = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let (open, named) = (file.metadata().map(identity), fs::symlink_metadata(path).map(identity));
    matches!((open, named), (Ok(open), Ok(named)) if open == named)
}

fn through(file: File, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    fill(&mut BufWriter::new(file))
}

/// Opens a FIFO for writing once something reads it.
fn open_fifo(path: &Path) -> io::Result<File> {
    let start = Instant::now();
    loop {
        // Without a reader this fails at once, and an ordinary open would wait for ever.
        match OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path) {
            // Opened again, for writes that wait; the reader is kept by the first.
            Ok(first) => return OpenOptions::new().write(true).open(path).inspect(|_| drop(first)),
            Err(error) if error.raw_os_error() != Some(libc::ENXIO) => return Err(error),
            Err(_) if start.elapsed() > READER_TIMEOUT => {
                let seconds = READER_TIMEOUT.as_secs();
                return Err(io::Error::new(
                    ErrorKind::TimedOut,
                    format!("nothing has read the FIFO for {seconds} s"),
                ));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    fn put(path: &Path, text: &str) -> io::Result<()> {
        write(path, |out| out.write_all(text.as_bytes()))
    }

    #[test]
    fn nothing_is_written_of_a_file_that_became_shorter() {
        let dir = tempfile::tempdir().unwrap();
        let [source, out] = ["source", "out"].map(|name| dir.path().join(name));
        put(&out, "old").unwrap();
        for (bytes, left) in [(100_000, 10), (100, 10)] {
            fs::write(&source, vec![7; bytes]).unwrap();
            let map = mapped::Mapped::new(&File::open(&source).unwrap(), &source).unwrap();
            File::options()
                .write(true)
                .open(&source)
                .unwrap()
                .set_len(left)
                .unwrap();
            // The system reads a large slice itself, and reports a bad address.
            let error = write(&out, |out| out.write_all(map.as_ref())).unwrap_err();
            let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
            assert_eq!(cause, Some(&mapped::Truncated(source.clone())), "{bytes}: {error}");
            assert_eq!(fs::read(&out).unwrap(), b"old");
        }
        put(&out, "new").unwrap();
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            2,
            "no temporary file is left"
        );
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_regular_file_is_replaced_whole_and_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let (path, plain) = (dir.path().join("a"), dir.path().join("plain"));
        fs::write(&plain, "").unwrap();
        put(&path, "one").unwrap();
        assert_eq!(mode(&path), mode(&plain), "by the umask, as any new file");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let before = fs::metadata(&path).unwrap().ino();
        let failed = write(&path, |out| {
            out.write_all(b"half")?;
            Err(io::Error::other("no more"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no more");
        assert_eq!(fs::read_to_string(&path).unwrap(), "one", "as it was");
        put(&path, "two").unwrap();
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), mode(&path)),
            ("two", 0o640)
        );
        assert_ne!(fs::metadata(&path).unwrap().ino(), before, "replaced, not written over");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn links_are_followed_to_files_that_are_there_or_not_yet() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("folder")).unwrap();
        symlink("folder/new", at("first")).unwrap();
        symlink("first", at("second")).unwrap();
        for text in ["made", "replaced"] {
            put(&at("second"), text).unwrap();
            assert_eq!(fs::read_to_string(at("folder/new")).unwrap(), text);
            assert!(fs::symlink_metadata(at("second")).unwrap().is_symlink());
        }
        symlink("round", at("round")).unwrap();
        assert!(put(&at("round"), "").is_err());
        assert!(is_same(&at("first"), &at("folder/new")) && !is_same(&at("round"), &at("round")));
    }

    #[test]
    fn what_is_no_regular_file_is_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        check(&fifo).unwrap();
        let reader = std::thread::spawn({
            let fifo = fifo.clone();
            move || fs::read_to_string(fifo).unwrap()
        });
        put(&fifo, "through").unwrap();
        assert_eq!(reader.join().unwrap(), "through");
        assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
        let link = dir.path().join("null");
        symlink("/dev/null", &link).unwrap();
        put(&link, "gone").unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        if Path::new("/dev/full").exists() {
            assert_eq!(
                put(Path::new("/dev/full"), "x").unwrap_err().kind(),
                ErrorKind::StorageFull
            );
        }
        assert_eq!(put(dir.path(), "").unwrap_err().to_string(), "it is a folder");
        let error = check(&dir.path().join("no/such/file")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(!error.to_string().contains(".graphc-"), "{error}");
    }

    #[test]
    fn what_killed_writers_left_is_removed_and_what_is_being_written_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in [".graphc-left01", ".graphc-mine", ".graphc-.hidden", "graphc-abcdef"] {
            fs::write(at(name), "half").unwrap();
        }
        symlink("graphc-abcdef", at(".graphc-link01")).unwrap();
        let held = File::create(at(".graphc-held01")).unwrap();
        held.lock().unwrap();
        write(&at("out"), |out| {
            put(&at("inner"), "written while another is")?;
            out.write_all(b"whole")
        })
        .unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .flatten()
            .map(|f| f.file_name())
            .collect();
        left.sort();
        let kept = [
            ".graphc-.hidden",
            ".graphc-held01",
            ".graphc-link01",
            ".graphc-mine",
            "graphc-abcdef",
            "inner",
            "out",
        ];
        assert_eq!(left, kept);
        drop(held);
        put(&at("out"), "again").unwrap();
        assert!(!at(".graphc-held01").exists());
    }

    #[test]
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        for (path, what) in [(dir.path(), "a folder"), (Path::new("/dev/null"), "a device")] {
            let error = check_readable(path).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
