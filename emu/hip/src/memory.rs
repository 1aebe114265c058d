//! Whose memory a pointer is, and copies between host and devices.

use crate::pointer;
use crate::queue::{Action, Position};
use crate::state::{Runtime, report};
use crate::status::{Status, of_memory};
use graphc_emu::memory::DEVICE_BASE;
use hip_sys::hipError_t;
use std::alloc::{Layout, dealloc};
use std::sync::Arc;

/// Host memory that devices see.
pub struct Pinned {
    pub size: u64,
    pub device: usize,
    pub flags: u32,
    /// Whether it was allocated as managed memory.
    pub managed: bool,
    /// The layout of what the library allocated; None for a caller's registered memory.
    pub layout: Option<Layout>,
}

impl Pinned {
    /// Gives memory back that the library allocated.
    pub fn release(self, address: u64) {
        if let Some(layout) = self.layout {
            // SAFETY: `hipHostMalloc` allocated it with this layout, and its entry was removed, so this is the only
            // time.
            unsafe { dealloc(address as *mut u8, layout) };
        }
    }
}

/// One end of a copy.
#[derive(Clone)]
pub enum Spot {
    Device {
        device: usize,
        address: u64,
    },
    /// Host memory as it will be when the copy runs.
    Host(u64),
    /// Host memory as it was at the call, from an offset on.
    Bytes(Arc<Vec<u8>>, u64),
}

impl Spot {
    /// The place `offset` bytes further.
    pub fn at(&self, offset: u64) -> Spot {
        match self {
            Spot::Device { device, address } => Spot::Device {
                device: *device,
                address: address + offset,
            },
            Spot::Host(address) => Spot::Host(address + offset),
            Spot::Bytes(bytes, start) => Spot::Bytes(bytes.clone(), start + offset),
        }
    }
}

/// The rows of a copy in two dimensions, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    pub width: u64,
    pub height: u64,
    pub to_pitch: u64,
    pub from_pitch: u64,
}

/// Whose memory a pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Device(usize),
    Pinned,
    /// Memory that HIP knows nothing of.
    Pageable,
}

impl Runtime {
    /// Whose memory `address` is, by its value alone: it may be out of every allocation.
    pub fn owner(&self, address: u64) -> Owner {
        let span = self.device_span();
        if (DEVICE_BASE..DEVICE_BASE + span * self.devices.len() as u64).contains(&address) {
            return Owner::Device(((address - DEVICE_BASE) / span) as usize);
        }
        match self.pinned.range(..=address).next_back() {
            Some((base, pinned)) if address - base < pinned.size => Owner::Pinned,
            _ => Owner::Pageable,
        }
    }

    /// Checks one end of a copy at the call: the whole range must be in one live allocation.
    fn spot(&self, address: u64, size: u64) -> Result<(Owner, Spot), hipError_t> {
        const INVALID: hipError_t = hipError_t::hipErrorInvalidValue;
        if address == 0 {
            return Err(INVALID);
        }
        let owner = self.owner(address);
        let bounds = match owner {
            Owner::Pageable => return Ok((owner, Spot::Host(address))),
            Owner::Device(device) => self.devices[device].gpu.memory().allocation(address),
            Owner::Pinned => self
                .pinned
                .range(..=address)
                .next_back()
                .map(|(base, pinned)| (*base, pinned.size)),
        };
        let fits = bounds.is_some_and(|(base, length)| size <= length - (address - base));
        if !fits {
            report(&format!("{size} bytes at {address:#x} are not inside one allocation"));
            return Err(INVALID);
        }
        let spot = match owner {
            Owner::Device(device) => Spot::Device { device, address },
            _ => Spot::Host(address),
        };
        Ok((owner, spot))
    }

    /// Queues a copy, and waits for it where `wait` says so or where pageable memory makes a device do so.
    ///
    /// `kind` is `hipMemcpyKind`'s number.
    pub fn copy(&mut self, to: u64, from: u64, size: u64, kind: u32, stream: u64, wait: bool) -> Status {
        let rows = Rows {
            width: size,
            height: 1,
            to_pitch: size,
            from_pitch: size,
        };
        self.copy_rows(to, from, rows, kind, stream, wait)
    }

    /// As [`Runtime::copy`], for rows that lie apart by a pitch on either side.
    pub fn copy_rows(&mut self, to: u64, from: u64, rows: Rows, kind: u32, stream: u64, wait: bool) -> Status {
        const DIRECTION: hipError_t = hipError_t::hipErrorInvalidMemcpyDirection;
        let device = self.stream(stream)?.device;
        if wait {
            self.no_capture()?;
        }
        if rows.width == 0 || rows.height == 0 {
            return if wait { self.sync_stream(stream) } else { Ok(()) };
        }
        if rows.height > 1 && (rows.to_pitch < rows.width || rows.from_pitch < rows.width) {
            return Err(hipError_t::hipErrorInvalidPitchValue);
        }
        // From the first byte of the first row to the last of the last.
        let span = |pitch: u64| {
            let before = pitch.checked_mul(rows.height - 1);
            before
                .and_then(|before| before.checked_add(rows.width))
                .ok_or(hipError_t::hipErrorInvalidValue)
        };
        let (to_span, from_span) = (span(rows.to_pitch)?, span(rows.from_pitch)?);
        let (to_owner, to) = self.spot(to, to_span)?;
        let (from_owner, mut from) = self.spot(from, from_span)?;
        // Pinned memory is seen by both sides.
        let on_device = |owner: Owner| owner != Owner::Pageable;
        let on_host = |owner: Owner| !matches!(owner, Owner::Device(_));
        let fits = match kind {
            0 => on_host(to_owner) && on_host(from_owner),
            1 => on_device(to_owner) && on_host(from_owner),
            2 => on_host(to_owner) && on_device(from_owner),
            3 | 1024 => on_device(to_owner) && on_device(from_owner),
            4 => true,
            _ => return Err(DIRECTION),
        };
        if !fits {
            report(&format!(
                "a copy of kind {kind} from {from_owner:?} to {to_owner:?} memory"
            ));
            return Err(DIRECTION);
        }
        let captured = self.stream(stream)?.capture.is_some();
        if let (Owner::Pageable, Spot::Host(address), false) = (from_owner, &from, captured) {
            // A pageable source is staged before the call returns. Between its rows nothing need be readable.
            let mut bytes = vec![0; from_span as usize];
            for row in 0..rows.height {
                let start = (row * rows.from_pitch) as usize;
                let source = pointer::read_bytes(address + start as u64, rows.width as usize);
                bytes[start..start + rows.width as usize].copy_from_slice(&source);
            }
            from = Spot::Bytes(Arc::new(bytes), 0);
        }
        let action = match rows.height {
            1 => Action::Copy {
                to,
                from,
                size: rows.width,
            },
            _ => Action::CopyRows { to, from, rows },
        };
        self.submit(stream, action, Vec::new())?;
        if wait || to_owner == Owner::Pageable && !captured {
            let position = (stream, self.stream(stream)?.enqueued);
            return self.wait(device, &[position]);
        }
        Ok(())
    }

    /// Queues a fill with a repeated pattern.
    pub fn fill(&mut self, to: u64, pattern: Vec<u8>, size: u64, stream: u64, wait: bool) -> Status {
        if wait {
            self.no_capture()?;
        }
        if size > 0 {
            let (owner, to) = self.spot(to, size)?;
            if owner == Owner::Pageable {
                return Err(hipError_t::hipErrorInvalidValue);
            }
            self.submit(stream, Action::Fill { to, pattern, size }, Vec::new())?;
        }
        if wait { self.sync_stream(stream) } else { Ok(()) }
    }

    /// Waits for what a stream holds now.
    pub fn sync_stream(&mut self, stream: u64) -> Status {
        let s = self.stream(stream)?;
        let (device, mut positions): (usize, Vec<Position>) = (s.device, vec![(stream, s.enqueued)]);
        if stream == self.devices[device].null_stream {
            let blocking = self.streams.iter().filter(|(_, s)| s.device == device && s.blocking);
            positions.extend(blocking.map(|(id, s)| (*id, s.enqueued)));
        }
        self.wait(device, &positions)
    }

    /// Copies now.
    pub fn copy_now(&mut self, to: &Spot, from: &Spot, size: u64) -> Status {
        let failed = |error| {
            report(&format!("copy: {error}"));
            match of_memory(&error) {
                // What was right at the call is gone now.
                hipError_t::hipErrorInvalidValue => hipError_t::hipErrorIllegalAddress,
                other => other,
            }
        };
        if let (
            Spot::Device { device: a, address: to },
            Spot::Device {
                device: b,
                address: from,
            },
        ) = (to, from)
        {
            let memory = |device: usize| self.devices[device].gpu.memory();
            return memory(*a).copy_from(*to, memory(*b), *from, size).map_err(failed);
        }
        if let (Spot::Host(_), Spot::Device { device, address }) = (to, from)
            && self.config.host_reads
            && let Some(at) = self.devices[*device]
                .gpu
                .memory()
                .unwritten(*address, size)
                .map_err(failed)?
        {
            report(&format!(
                "copy to the host: of {size} bytes at {address:#x} nothing wrote the one at {at:#x} (byte {}); \
                 GRAPHC_EMU_CHECKS=no-host-reads allows it",
                at - address
            ));
            return Err(hipError_t::hipErrorIllegalAddress);
        }
        let bytes = match from {
            Spot::Bytes(bytes, start) => bytes[*start as usize..(start + size) as usize].to_vec(),
            Spot::Host(address) => pointer::read_bytes(*address, size as usize),
            Spot::Device { device, address } => {
                let mut bytes = vec![0u8; size as usize];
                self.devices[*device]
                    .gpu
                    .memory()
                    .read(*address, &mut bytes)
                    .map_err(failed)?;
                bytes
            }
        };
        match to {
            Spot::Device { device, address } => self.devices[*device]
                .gpu
                .memory()
                .write(*address, &bytes)
                .map_err(failed),
            Spot::Host(address) => {
                pointer::write_bytes(*address, &bytes);
                Ok(())
            }
            Spot::Bytes(..) => Err(hipError_t::hipErrorInvalidValue),
        }
    }

    /// Fills now.
    pub fn fill_now(&mut self, to: &Spot, pattern: &[u8], size: u64) -> Status {
        match to {
            Spot::Device { device, address } => self.devices[*device]
                .gpu
                .memory()
                .fill(*address, pattern, size)
                .map_err(|error| {
                    report(&format!("fill: {error}"));
                    hipError_t::hipErrorIllegalAddress
                }),
            Spot::Host(address) => {
                let bytes: Vec<u8> = pattern.iter().copied().cycle().take(size as usize).collect();
                pointer::write_bytes(*address, &bytes);
                Ok(())
            }
            Spot::Bytes(..) => Err(hipError_t::hipErrorInvalidValue),
        }
    }
}
