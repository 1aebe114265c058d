//! Constants on the device: one allocation, filled through two pinned chunks on a stream of its own.

use std::collections::HashMap;
use std::sync::Arc;

use ir::Program;
use ir::graph::ConstId;
use ir::plan::arena::ALIGNMENT;
use ir::plan::{Place, Plan};

use super::driver::{Direction, Priority};
use super::handles::{DeviceMemory, Event, Gpu, PinnedMemory, Stream};
use crate::error::RuntimeError;

/// Bytes of one pinned chunk: large enough that copies run at the bus's speed.
const CHUNK: usize = 8 << 20;

/// See the module.
pub(super) struct Constants {
    memory: Option<DeviceMemory>,
    offsets: HashMap<ConstId, usize>,
}

impl Constants {
    /// Copies the constants that a plan reads, and waits until they are there.
    pub fn upload(gpu: &Arc<Gpu>, program: &Program, plan: &Plan, peak: usize) -> Result<Constants, RuntimeError> {
        let mut offsets = HashMap::new();
        let mut parts: Vec<(&[u8], usize)> = Vec::new();
        let mut total = 0;
        for buffer in plan.buffers.values() {
            let Place::Constant(id) = buffer.place else { continue };
            let Some(constant) = program.constants.get(id).filter(|_| !offsets.contains_key(&id)) else {
                continue;
            };
            offsets.insert(id, total);
            parts.push((&constant.tensor.bytes, total));
            total += constant.tensor.bytes.len().next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        }
        if total == 0 {
            return Ok(Constants { memory: None, offsets });
        }
        let memory = gpu.allocate(total, "the weights", peak)?;
        let mut uploader = Uploader::new(gpu, CHUNK.min(total))?;
        let copied = parts
            .iter()
            .try_for_each(|(bytes, at)| uploader.copy(bytes, memory.address + *at as u64));
        // Also after an error: chunks and memory must not go while a copy is under way.
        let finished = gpu.at("copying the weights", uploader.stream.synchronize());
        copied.and(finished)?;
        Ok(Constants {
            memory: Some(memory),
            offsets,
        })
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
}

impl Uploader {
    fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Uploader, RuntimeError> {
        let stream = gpu.stream(Priority::Normal)?;
        let chunk = || -> Result<_, RuntimeError> {
            let memory = gpu.allocate_pinned(bytes, "copying the weights", 0)?;
            Ok((memory, gpu.event(false)?, false))
        };
        Ok(Uploader {
            gpu: gpu.clone(),
            chunks: [chunk()?, chunk()?],
            stream,
            next: 0,
        })
    }

    fn copy(&mut self, bytes: &[u8], to: u64) -> Result<(), RuntimeError> {
        const AT: &str = "copying the weights";
        for (index, part) in bytes.chunks(self.chunks[0].0.bytes.max(1)).enumerate() {
            let (chunk, done, used) = &mut self.chunks[self.next];
            if *used {
                self.gpu.at(AT, done.synchronize())?;
            }
            chunk.write(0, part);
            let at = to + (index * chunk.bytes) as u64;
            // SAFETY: the part is inside the chunk and its place inside the weights' memory; both live until the stream was
            // waited for.
            let copied = unsafe { self.stream.copy(at, chunk.address(0), part.len(), Direction::ToDevice) };
            self.gpu.at(AT, copied)?;
            self.gpu.at(AT, self.stream.record(done))?;
            *used = true;
            self.next = 1 - self.next;
        }
        Ok(())
    }
}
