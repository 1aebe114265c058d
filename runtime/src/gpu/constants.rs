//! Constants on the device: one allocation, filled through two pinned chunks on a stream of its own. Weights that a
//! plan streams stay in one allocation of pinned memory, from which its copies read them.

use std::collections::HashMap;
use std::sync::Arc;

use ir::Program;
use ir::graph::ConstId;
use ir::plan::arena::room;
use ir::plan::{Place, Plan};

use super::driver::{Direction, Priority};
use super::handles::{DeviceMemory, Event, Gpu, PinnedMemory, Stream};
use crate::error::{Planned, RuntimeError};

/// Bytes of one pinned chunk: large enough that copies run at the bus's speed.
const CHUNK: usize = 8 << 20;

/// Allocates device memory and fills it with zeros, which are there when this returns.
pub(super) fn zeroed(
    gpu: &Arc<Gpu>,
    bytes: usize,
    what: &str,
    planned: Option<Planned>,
) -> Result<DeviceMemory, RuntimeError> {
    let memory = gpu.allocate(bytes, what, planned)?;
    if bytes > 0 {
        let zeros = vec![0; CHUNK.min(bytes)];
        let mut uploader = Uploader::new(gpu, zeros.len(), "filling memory with zeros")?;
        let copied = (0..bytes)
            .step_by(zeros.len())
            .try_for_each(|at| uploader.copy(&zeros[..zeros.len().min(bytes - at)], memory.address + at as u64));
        let finished = uploader.wait();
        copied.and(finished)?;
    }
    Ok(memory)
}

/// See the module.
pub(super) struct Constants {
    memory: Option<DeviceMemory>,
    offsets: HashMap<ConstId, usize>,
    pinned: Option<PinnedMemory>,
    pinned_offsets: HashMap<ConstId, usize>,
}

/// Constants one after the other: where each begins, and the bytes of all.
#[derive(Default)]
struct Row<'a> {
    offsets: HashMap<ConstId, usize>,
    parts: Vec<(&'a [u8], usize)>,
    total: usize,
}

impl<'a> Row<'a> {
    /// The constants of a program that a plan has in places of a kind.
    fn of(program: &'a Program, plan: &Plan, kind: impl Fn(&Place) -> Option<ConstId>) -> Row<'a> {
        let mut row = Row::default();
        for id in plan.buffers.values().filter_map(|buffer| kind(&buffer.place)) {
            let Some(constant) = program.constants.get(id).filter(|_| !row.offsets.contains_key(&id)) else {
                continue;
            };
            row.offsets.insert(id, row.total);
            row.parts.push((&constant.tensor.bytes, row.total));
            row.total += room(constant.tensor.bytes.len());
        }
        row
    }
}

impl Constants {
    /// Copies the constants that a plan reads, and waits until they are there.
    pub fn upload(gpu: &Arc<Gpu>, program: &Program, plan: &Plan, peak: usize) -> Result<Constants, RuntimeError> {
        let on_device = |place: &Place| match place {
            Place::Constant(id) => Some(*id),
            _ => None,
        };
        let on_host = |place: &Place| match place {
            Place::Streamed(id) => Some(*id),
            _ => None,
        };
        let streamed = Row::of(program, plan, on_host);
        let pinned = match streamed.total {
            0 => None,
            total => {
                let mut memory = gpu.allocate_pinned(total, "the weights that are streamed")?;
                streamed.parts.iter().for_each(|(bytes, at)| memory.write(*at, bytes));
                Some(memory)
            }
        };
        let Row { offsets, parts, total } = Row::of(program, plan, on_device);
        let mut constants = Constants {
            memory: None,
            offsets,
            pinned,
            pinned_offsets: streamed.offsets,
        };
        if total == 0 {
            return Ok(constants);
        }
        let memory = gpu.allocate(total, "the weights", Some(Planned { peak, weights: total }))?;
        let mut uploader = Uploader::new(gpu, CHUNK.min(total), "copying the weights")?;
        let copied = parts
            .iter()
            .try_for_each(|(bytes, at)| uploader.copy(bytes, memory.address + *at as u64));
        // Also after an error: chunks and memory must not go while a copy is under way.
        let finished = uploader.wait();
        copied.and(finished)?;
        constants.memory = Some(memory);
        Ok(constants)
    }

    /// Bytes in pinned memory.
    pub fn pinned_bytes(&self) -> usize {
        self.pinned.as_ref().map_or(0, |memory| memory.bytes)
    }

    /// The address in pinned memory of a constant that the plan streams.
    pub fn pinned_address(&self, id: ConstId) -> Option<u64> {
        let memory = self.pinned.as_ref()?;
        self.pinned_offsets.get(&id).map(|at| memory.address(*at))
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.bytes)
    }

    /// The address of a constant that the plan reads.
    pub fn address(&self, id: ConstId) -> Option<u64> {
        let base = self.memory.as_ref()?.address;
        self.offsets.get(&id).map(|at| base + *at as u64)
    }
}

/// Copies to the device in chunks: one is filled while the other is under way.
struct Uploader {
    gpu: Arc<Gpu>,
    stream: Stream,
    chunks: [(PinnedMemory, Event, bool); 2],
    next: usize,
    /// What errors say is done.
    at: &'static str,
}

impl Uploader {
    fn new(gpu: &Arc<Gpu>, bytes: usize, at: &'static str) -> Result<Uploader, RuntimeError> {
        let stream = gpu.stream(Priority::Normal)?;
        let chunk = || -> Result<_, RuntimeError> {
            let memory = gpu.allocate_pinned(bytes, at)?;
            Ok((memory, gpu.event(false)?, false))
        };
        Ok(Uploader {
            gpu: gpu.clone(),
            chunks: [chunk()?, chunk()?],
            stream,
            next: 0,
            at,
        })
    }

    /// Waits for all copies.
    fn wait(&self) -> Result<(), RuntimeError> {
        // A chunk's event says nothing that this does not.
        self.gpu
            .wait_for_stream(&self.stream, &self.chunks[0].1, || self.at.to_owned())
    }

    fn copy(&mut self, bytes: &[u8], to: u64) -> Result<(), RuntimeError> {
        for (index, part) in bytes.chunks(self.chunks[0].0.bytes.max(1)).enumerate() {
            let (chunk, done, used) = &mut self.chunks[self.next];
            if *used {
                self.gpu.wait(done, || self.at.to_owned())?;
            }
            chunk.write(0, part);
            let at = to + (index * chunk.bytes) as u64;
            // SAFETY: the part is inside the chunk and its place inside the memory; both live until the stream was
            // waited for.
            let copied = unsafe { self.stream.copy(at, chunk.address(0), part.len(), Direction::ToDevice) };
            self.gpu.at(self.at, copied)?;
            self.gpu.at(self.at, self.stream.record(done))?;
            *used = true;
            self.next = 1 - self.next;
        }
        Ok(())
    }
}
