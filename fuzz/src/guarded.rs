//! Memory whose end is a page that nobody may access: what is read or written past it ends the process.

use std::ptr::NonNull;

/// Bytes that end where the last page of the mapping begins, but for what alignment takes.
pub struct Guarded {
    map: NonNull<libc::c_void>,
    mapped: usize,
    start: usize,
    len: usize,
}

// SAFETY: the mapping is the value's own, as a vector's memory is.
unsafe impl Send for Guarded {}
// SAFETY: as above.
unsafe impl Sync for Guarded {}

const PAGE: usize = 4096;

impl Guarded {
    /// Maps `len` zero bytes at an address that is a multiple of `align` (a power of two).
    ///
    /// # Panics
    /// Where the system gives no memory.
    pub fn new(len: usize, align: usize) -> Guarded {
        let body = len.next_multiple_of(PAGE);
        let mapped = body + 2 * PAGE;
        // SAFETY: a fresh anonymous mapping; nothing is at risk but the address space.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert!(map != libc::MAP_FAILED, "no address space for {len} bytes");
        let map = NonNull::new(map).expect("a mapping is nowhere but at null");
        if body > 0 {
            // SAFETY: the pages between the first and the last of the mapping.
            let opened =
                unsafe { libc::mprotect(map.as_ptr().byte_add(PAGE), body, libc::PROT_READ | libc::PROT_WRITE) };
            assert_eq!(opened, 0, "no memory for {len} bytes");
        }
        let start = PAGE + (body - len) / align * align;
        Guarded {
            map,
            mapped,
            start,
            len,
        }
    }

    /// Maps a copy of bytes.
    ///
    /// # Panics
    /// As [`Guarded::new`].
    pub fn of(bytes: &[u8], align: usize) -> Guarded {
        let mut copy = Guarded::new(bytes.len(), align);
        copy.as_mut().copy_from_slice(bytes);
        copy
    }
}

impl AsRef<[u8]> for Guarded {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: readable for `len` bytes from `start`, which are zeros or what was written.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().byte_add(self.start).cast(), self.len) }
    }
}

impl AsMut<[u8]> for Guarded {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and lent to one at a time.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_ptr().byte_add(self.start).cast(), self.len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size.
        unsafe { libc::munmap(self.map.as_ptr(), self.mapped) };
    }
}
