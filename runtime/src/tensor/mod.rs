//! Tensors that live where they are computed.
//!
//! A [`DeviceTensor`] is made by [`Device::upload`](crate::Device::upload), by a run, or of memory that something else
//! owns; it may be an input of later runs on its device, be viewed, be copied to the host, and be dropped in any order
//! from any thread. Its values never change while another handle can see them: only a [donated](Given::Donated) tensor,
//! of which there is no other handle, is written by a run.
//!
//! A tensor may be given to a run before the run that makes it is done: the device keeps the order.

mod host;

use std::fmt;
use std::sync::Arc;

use ir::{DType, HostTensor};

use crate::error::RuntimeError;
use crate::gpu::block::Block;
pub(crate) use host::{HostBlock, Reading};

/// A dense row-major tensor in the memory of a device; see the [module](self). Cloning it makes another handle on the
/// same values.
#[derive(Clone)]
pub struct DeviceTensor {
    dtype: DType,
    shape: Vec<usize>,
    /// In bytes.
    start: usize,
    owner: Arc<Owner>,
}

/// What all handles on one allocation share. Runs under way hold the memory and not this, so that they do not count as
/// handles.
struct Owner {
    memory: Memory,
}

/// Where a tensor's bytes are.
#[derive(Clone)]
pub(crate) enum Memory {
    /// The CPU device's: the host's own.
    Host(Arc<HostBlock>),
    Gpu(Arc<Block>),
    /// Of several devices that compute a model together.
    Ranks(Arc<Parts>),
}

/// A tensor on several devices.
pub(crate) struct Parts {
    /// `hip:0,1`.
    pub device: String,
    /// The axis along which it is cut; None where each device has all of it.
    pub cut: Option<usize>,
    /// The shape and the memory of each rank's part.
    pub parts: Vec<(Vec<usize>, Memory)>,
}

impl Parts {
    /// A handle of its own on each part, which counts as the only one.
    pub fn tensors(&self, dtype: DType) -> impl Iterator<Item = DeviceTensor> {
        let parts = self.parts.iter();
        parts.map(move |(shape, memory)| DeviceTensor::new(dtype, shape.clone(), memory.clone()))
    }
}

/// An input of a run.
#[derive(Clone, Debug)]
pub enum Given {
    Host(HostTensor),
    Device(DeviceTensor),
    /// The run may put an output in the tensor's place. Refused where another handle sees the memory.
    Donated(DeviceTensor),
}

/// An output of a run.
#[derive(Clone, Debug)]
pub enum Value {
    Host(HostTensor),
    Device(DeviceTensor),
}

/// Where an output is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Where {
    #[default]
    Host,
    Device,
}

/// Where the outputs of a run are wanted: all in one place, but for some.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    all: Where,
    except: Vec<(String, Where)>,
}

impl Wanted {
    /// All on the host.
    pub fn host() -> Wanted {
        Wanted::default()
    }

    /// All on the device.
    pub fn device() -> Wanted {
        Wanted {
            all: Where::Device,
            except: Vec::new(),
        }
    }

    /// And one elsewhere.
    #[must_use]
    pub fn but(mut self, output: impl Into<String>, at: Where) -> Wanted {
        self.except.push((output.into(), at));
        self
    }

    /// Where an output is wanted.
    pub fn of(&self, output: &str) -> Where {
        let found = self.except.iter().rev().find(|(name, _)| name == output);
        found.map_or(self.all, |(_, at)| *at)
    }

    /// The outputs that are named.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.except.iter().map(|(name, _)| name.as_str())
    }
}

impl From<HostTensor> for Given {
    fn from(tensor: HostTensor) -> Given {
        Given::Host(tensor)
    }
}
impl From<&HostTensor> for Given {
    fn from(tensor: &HostTensor) -> Given {
        // Bytes are shared.
        Given::Host(tensor.clone())
    }
}
impl From<DeviceTensor> for Given {
    fn from(tensor: DeviceTensor) -> Given {
        Given::Device(tensor)
    }
}
impl From<&DeviceTensor> for Given {
    fn from(tensor: &DeviceTensor) -> Given {
        Given::Device(tensor.clone())
    }
}
impl From<Value> for Given {
    fn from(value: Value) -> Given {
        match value {
            Value::Host(tensor) => Given::Host(tensor),
            Value::Device(tensor) => Given::Device(tensor),
        }
    }
}

impl Given {
    /// The element type and the shape.
    pub fn ty(&self) -> (DType, &[usize]) {
        match self {
            Given::Host(tensor) => (tensor.dtype, &tensor.shape),
            Given::Device(tensor) | Given::Donated(tensor) => (tensor.dtype, &tensor.shape),
        }
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        match self {
            Given::Host(tensor) => tensor.bytes.len(),
            Given::Device(tensor) | Given::Donated(tensor) => tensor.bytes(),
        }
    }
}

impl Value {
    /// The values on the host; those of a device are copied there.
    ///
    /// # Errors
    /// As [`DeviceTensor::download`].
    pub fn into_host(self) -> Result<HostTensor, RuntimeError> {
        match self {
            Value::Host(tensor) => Ok(tensor),
            Value::Device(tensor) => tensor.download(),
        }
    }

    /// The tensor on the device, if it is there.
    pub fn into_device(self) -> Option<DeviceTensor> {
        match self {
            Value::Host(_) => None,
            Value::Device(tensor) => Some(tensor),
        }
    }
}

impl DeviceTensor {
    pub(crate) fn new(dtype: DType, shape: Vec<usize>, memory: Memory) -> DeviceTensor {
        DeviceTensor {
            dtype,
            shape,
            start: 0,
            owner: Arc::new(Owner { memory }),
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.dtype.bytes_for(self.shape.iter().product())
    }

    /// The device's name, as messages and `--device` have it: `cpu`, `hip:0`.
    pub fn device(&self) -> &str {
        match &self.owner.memory {
            Memory::Host(_) => "cpu",
            Memory::Gpu(block) => block.device(),
            Memory::Ranks(parts) => &parts.device,
        }
    }

    /// The device's address of the first byte, for an app's own kernels. [`DeviceTensor::wait`] first: what makes the
    /// values may be under way. The address is good for as long as a handle on the tensor is kept. A tensor on several
    /// devices has none: 0.
    pub fn address(&self) -> u64 {
        let base = match &self.owner.memory {
            Memory::Host(block) => block.address(),
            Memory::Gpu(block) => block.address(),
            Memory::Ranks(_) => return 0,
        };
        base + self.start as u64
    }

    /// Waits until the values are there.
    ///
    /// # Errors
    /// What went wrong on the device meanwhile.
    pub fn wait(&self) -> Result<(), RuntimeError> {
        match &self.owner.memory {
            Memory::Host(block) => block.wait(),
            Memory::Gpu(block) => block.wait(),
            Memory::Ranks(parts) => parts.tensors(self.dtype).try_for_each(|part| part.wait()),
        }
    }

    /// Copies the values to the host. (On the CPU device nothing is copied.)
    ///
    /// # Errors
    /// What the device reports.
    pub fn download(&self) -> Result<HostTensor, RuntimeError> {
        let bytes = match &self.owner.memory {
            Memory::Host(block) => {
                block.wait()?;
                ir::Storage::new(Kept(self.owner.clone())).slice(self.start, self.bytes())
            }
            Memory::Gpu(block) => Some(ir::Storage::new(block.read(self.start, self.bytes())?)),
            Memory::Ranks(parts) => {
                let mut tensors = parts.tensors(self.dtype);
                match parts.cut {
                    None => tensors
                        .next()
                        .map(|first| first.download())
                        .transpose()?
                        .map(|first| first.bytes),
                    Some(axis) => {
                        let hosts: Vec<HostTensor> = tensors.map(|part| part.download()).collect::<Result<_, _>>()?;
                        HostTensor::join(&hosts, axis).map(|whole| whole.bytes)
                    }
                }
            }
        };
        // Views stay inside their allocation.
        let bytes = bytes.ok_or_else(|| RuntimeError::Program("a tensor outside of its memory".into()))?;
        Ok(HostTensor {
            dtype: self.dtype,
            shape: self.shape.clone(),
            bytes,
        })
    }

    /// The same elements under another shape; nothing is copied. None where the numbers of elements differ, and on
    /// several devices.
    pub fn reshape(&self, shape: impl Into<Vec<usize>>) -> Option<DeviceTensor> {
        let shape = shape.into();
        let same = shape.iter().try_fold(1usize, |a, b| a.checked_mul(*b)) == Some(self.shape.iter().product());
        (same && !self.is_of_ranks()).then(|| DeviceTensor { shape, ..self.clone() })
    }

    /// Rows `start..start + rows` of the first axis; nothing is copied. None where they are not inside, or where the
    /// first of them does not begin a byte, and on several devices.
    pub fn rows(&self, start: usize, rows: usize) -> Option<DeviceTensor> {
        let (first, rest) = self.shape.split_first()?;
        let bits = rest.iter().product::<usize>() * self.dtype.bits() as usize;
        if self.is_of_ranks() || start.checked_add(rows)? > *first || !(start * bits).is_multiple_of(8) {
            return None;
        }
        let mut view = self.clone();
        view.shape[0] = rows;
        view.start += start * bits / 8;
        Some(view)
    }

    /// Another handle on memory that had one before: for a tensor that was given away in vain.
    pub(crate) fn again(dtype: DType, shape: Vec<usize>, start: usize, memory: Memory) -> DeviceTensor {
        DeviceTensor {
            start,
            ..DeviceTensor::new(dtype, shape, memory)
        }
    }

    fn is_of_ranks(&self) -> bool {
        matches!(self.owner.memory, Memory::Ranks(_))
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.owner.memory
    }

    /// Where in its allocation the tensor begins, in bytes.
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Whether this is the only handle on the memory.
    pub(crate) fn is_only_handle(&self) -> bool {
        Arc::strong_count(&self.owner) == 1
    }
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?} on {}", self.dtype, self.shape, self.device())
    }
}

/// A tensor's memory as bytes that the host shares.
struct Kept(Arc<Owner>);

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        match &self.0.memory {
            Memory::Host(block) => block.bytes(),
            Memory::Gpu(_) | Memory::Ranks(_) => &[],
        }
    }
}
