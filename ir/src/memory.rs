//! Memory of this machine: how much of it may still be taken, and asking before it is.
//!
//! A request that cannot be met is an error with both numbers. Without the question a large one ends the process: in
//! the allocator where a limit is set, and by the system's hand once the pages are touched where none is.

use std::fs;
use std::path::{Path, PathBuf};

/// Requests below this many bytes are not asked for: the answer takes longer than they are worth.
const NOT_ASKED: u64 = 8 << 20;

/// More memory was asked for than there is.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} takes {asked} bytes of memory, and {}; use smaller sizes or inputs, or allow more memory", have(*available))]
pub struct NoMemory {
    /// The thing that the memory was for.
    pub what: String,
    /// In bytes.
    pub asked: u64,
    /// In bytes; None where the system does not say.
    pub available: Option<u64>,
}

fn have(available: Option<u64>) -> String {
    match available {
        Some(bytes) => format!("{bytes} bytes are available"),
        None => "the system does not give that many".to_owned(),
    }
}

/// Checks that so many bytes can be taken: of the machine's memory and swap, of what limits on the process and its
/// control groups leave, and of its address space.
///
/// # Errors
/// [`NoMemory`] with both numbers.
pub fn check(asked: u64, what: impl FnOnce() -> String) -> Result<(), NoMemory> {
    if asked < NOT_ASKED {
        return Ok(());
    }
    let available = available();
    if available.is_some_and(|available| asked > available) {
        return Err(NoMemory {
            what: what(),
            asked,
            available,
        });
    }
    Ok(())
}

/// Makes an empty vector with room for so many bytes.
///
/// # Errors
/// As [`check`]; memory that the allocator does not give.
pub fn reserve(asked: u64, what: impl Fn() -> String) -> Result<Vec<u8>, NoMemory> {
    check(asked, &what)?;
    let mut bytes = Vec::new();
    let given = usize::try_from(asked).is_ok_and(|asked| bytes.try_reserve_exact(asked).is_ok());
    match given {
        true => Ok(bytes),
        false => Err(NoMemory {
            what: what(),
            asked,
            available: available(),
        }),
    }
}

/// The bytes that this process may still take; None where the system does not say.
pub fn available() -> Option<u64> {
    let parts = [machine(), address_space(), control_groups()];
    parts.into_iter().flatten().min()
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Memory and swap that are free, or would be once caches are dropped.
fn machine() -> Option<u64> {
    of_machine(&read("/proc/meminfo")?)
}

fn of_machine(text: &str) -> Option<u64> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib << 10)
    };
    Some(field("MemAvailable:")?.saturating_add(field("SwapFree:").unwrap_or(0)))
}

/// Bytes that the limits on address space and data (`ulimit -v`, `ulimit -d`) leave.
fn address_space() -> Option<u64> {
    let limits = read("/proc/self/limits")?;
    let status = read("/proc/self/status")?;
    let left = |limit: &str, used: &str| left_of(&limits, limit, &status, used);
    let parts = [left("Max address space", "VmSize:"), left("Max data size", "VmData:")];
    parts.into_iter().flatten().min()
}

fn left_of(limits: &str, limit: &str, status: &str, used: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(limit))?;
    let soft: u64 = line.split_whitespace().next()?.parse().ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(used))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(soft.saturating_sub(kib << 10))
}

/// Bytes that the control groups of this process leave, of version 1 or 2, in which caches that can be dropped do not
/// count.
fn control_groups() -> Option<u64> {
    let groups = read("/proc/self/cgroup")?;
    let root = Path::new("/sys/fs/cgroup");
    groups.lines().filter_map(|line| of_groups(root, line)).min()
}

/// Bytes that a line of `/proc/self/cgroup` and the groups above it leave.
fn of_groups(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let (root, limit, usage, cache) = match controllers {
        "" => (root.to_owned(), "memory.max", "memory.current", "inactive_file"),
        list if list.split(',').any(|c| c == "memory") => {
            let usage = "memory.usage_in_bytes";
            (
                root.join("memory"),
                "memory.limit_in_bytes",
                usage,
                "total_inactive_file",
            )
        }
        _ => return None,
    };
    // In a container the path may be the host's, and the group itself is what is mounted as the root.
    let inside = root.join(path.trim_start_matches('/'));
    let start: &Path = if inside.is_dir() { &inside } else { &root };
    let groups = start.ancestors().take_while(|group| group.starts_with(&root));
    groups.filter_map(|group| of_group(group, limit, usage, cache)).min()
}

fn of_group(group: &Path, limit: &str, usage: &str, cache: &str) -> Option<u64> {
    let number = |file: &str| read(group.join(file))?.trim().parse::<u64>().ok();
    // `max` is no number; version 1 says so by a number near that of all addresses.
    let limit = number(limit).filter(|limit| *limit < 1 << 60)?;
    let stat = read(PathBuf::from(group).join("memory.stat")).unwrap_or_default();
    let mut fields = stat.lines().filter_map(|line| line.split_once(' '));
    let cache = fields.find_map(|(name, value)| (name == cache).then(|| value.parse::<u64>().ok())?);
    let used = number(usage)?.saturating_sub(cache.unwrap_or(0));
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_refused_with_both_numbers_and_little_is_not_asked_for() {
        let error = check(1 << 60, || "a tensor".to_owned()).unwrap_err();
        assert_eq!(error.asked, 1 << 60);
        let text = error.to_string();
        let available = error.available.unwrap().to_string();
        assert!(text.contains("a tensor takes 1152921504606846976 bytes"), "{text}");
        assert!(text.contains(&available), "{text}");
        assert!(check(NOT_ASKED - 1, String::new).is_ok());
        assert!(reserve(1 << 60, || "a tensor".to_owned()).is_err());
        assert_eq!(reserve(100, String::new).unwrap().capacity(), 100);
    }

    #[test]
    fn memory_of_the_machine_is_what_can_be_had_and_free_swap() {
        let text = "MemTotal:  100 kB\nMemFree:  10 kB\nMemAvailable:    20 kB\nSwapTotal: 9 kB\nSwapFree:  5 kB\n";
        assert_eq!(of_machine(text), Some(25 << 10));
        assert_eq!(of_machine("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn a_limit_leaves_what_is_not_used() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax address space         10240     unlimited      bytes\n\
                      Max data size             unlimited unlimited bytes\n";
        let status = "Name:\tx\nVmSize:\t       4 kB\nVmData:\t 1 kB\n";
        assert_eq!(left_of(limits, "Max address space", status, "VmSize:"), Some(6144));
        assert_eq!(left_of(limits, "Max data size", status, "VmData:"), None);
    }

    #[test]
    fn the_narrowest_group_counts_without_caches() {
        let dir = tempfile::tempdir().unwrap();
        let (outer, inner) = (dir.path().join("a"), dir.path().join("a/b"));
        fs::create_dir_all(&inner).unwrap();
        let group = |folder: &Path, limit: &str, used: &str, cache: &str| {
            fs::write(folder.join("memory.max"), limit).unwrap();
            fs::write(folder.join("memory.current"), used).unwrap();
            fs::write(folder.join("memory.stat"), format!("anon 1\ninactive_file {cache}\n")).unwrap();
        };
        group(&outer, "1000\n", "600\n", "100");
        group(&inner, "max\n", "300\n", "0");
        assert_eq!(of_groups(dir.path(), "0::/a/b"), Some(500));
        group(&inner, "350\n", "300\n", "50");
        assert_eq!(of_groups(dir.path(), "0::/a/b"), Some(100));
        assert_eq!(of_groups(dir.path(), "0::/elsewhere"), None);
        assert_eq!(of_groups(dir.path(), "4:cpu,cpuacct:/a"), None);
        let old = dir.path().join("memory/c");
        fs::create_dir_all(&old).unwrap();
        fs::write(old.join("memory.limit_in_bytes"), "700").unwrap();
        fs::write(old.join("memory.usage_in_bytes"), "200").unwrap();
        assert_eq!(of_groups(dir.path(), "3:memory:/c"), Some(500));
    }
}
