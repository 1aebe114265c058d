//! Tensors that go from one device to another.
//!
//! A copy is queued on a stream of the device that it goes to, behind the run that makes the tensor, and whoever reads
//! the new tensor waits for the copy on its own stream: the host waits for nothing. No library takes part and no rank
//! waits for another to come, so runs may be in any order and a device that fails holds up nobody; the copy engines
//! carry it, beside the kernels of other runs.

use std::sync::Arc;

use super::GpuDevice;
use super::block::Block;
use super::driver::Priority;
use super::handles::{Event, Stream};
use super::heap::Heap;
use crate::error::RuntimeError;
use crate::tensor::{DeviceTensor, Memory};

/// Where tensors come in at a device.
pub(crate) struct Entrance {
    stream: Stream,
    heap: Arc<Heap>,
}

/// A copy that may be under way. It is waited for where this ends, so that nothing of it is given back before.
pub(crate) struct Sent {
    from: Arc<Block>,
    to: Arc<Block>,
    done: Arc<Event>,
}

impl Entrance {
    /// Makes one, and lets the device read the others' memory where it can.
    pub fn new(device: &GpuDevice, others: &[Arc<GpuDevice>]) -> Result<Entrance, RuntimeError> {
        const AT: &str = "preparing copies between devices";
        let gpu = &device.gpu;
        for other in others.iter().filter(|other| other.ordinal() != gpu.ordinal) {
            // Its context must be there before it is named.
            other.gpu.enter(AT)?;
            gpu.enter(AT)?;
            gpu.at(AT, gpu.driver.allow_peer(gpu.ordinal, other.ordinal()))?;
        }
        gpu.enter(AT)?;
        Ok(Entrance {
            stream: gpu.stream(Priority::Normal)?,
            heap: device.heap.clone(),
        })
    }

    /// Whether memory is on this device.
    pub fn has(&self, block: &Block) -> bool {
        let (own, theirs) = (&self.heap.gpu, &block.heap().gpu);
        Arc::ptr_eq(own, theirs) || own.name == theirs.name && own.driver.library() == theirs.driver.library()
    }

    /// Queues a copy of a tensor that is on another device of the same runtime.
    ///
    /// # Errors
    /// Memory that is not there, or what either device reports.
    pub fn receive(&self, tensor: &DeviceTensor, what: &str) -> Result<(DeviceTensor, Option<Sent>), RuntimeError> {
        let Memory::Gpu(from) = tensor.memory() else {
            return Err(RuntimeError::Program(format!("{what} is on no device to be sent from")));
        };
        let gpu = &self.heap.gpu;
        gpu.enter(what)?;
        let bytes = tensor.bytes();
        let to = Block::allocate(&self.heap, bytes, what)?;
        let received = DeviceTensor::new(tensor.dtype(), tensor.shape().to_vec(), Memory::Gpu(to.clone()));
        if bytes == 0 {
            return Ok((received, None));
        }
        let done = Arc::new(gpu.event(false)?);
        from.before(false, |event| gpu.at(what, self.stream.wait(event)))?;
        // SAFETY: both ranges are inside of their blocks, which `Sent` keeps until the copy is done; who writes the one
        // is waited for above, and nothing else knows of the other.
        let queued = unsafe {
            self.stream
                .copy_from(to.address(), (&from.heap().gpu, tensor.address()), bytes)
        };
        gpu.at(what, queued)?;
        if let Err(error) = gpu.at(what, self.stream.record(&done)) {
            // The copy is under way and nothing would say when it is done.
            let _ = self.stream.synchronize();
            return Err(error);
        }
        from.used(false, &done);
        to.used(true, &done);
        gpu.begun(&done);
        let from = from.clone();
        Ok((received, Some(Sent { from, to, done })))
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        let _ = self.heap.gpu.enter("ending copies between devices");
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let gpu = &self.to.heap().gpu;
        if let Err(error) = gpu
            .enter("a copy between devices")
            .and_then(|()| gpu.wait(&self.done, || "a copy between devices".into()))
        {
            tracing::warn!("{}: {error}", gpu.name);
        }
        self.from.unused(&self.done);
        self.to.unused(&self.done);
    }
}
