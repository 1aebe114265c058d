//! Data that is not on the host: what a tensor holds once it was computed on a device.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use ir::{HostTensor, Origin, TensorType};

use super::Tensor;
use super::node::Node;

/// Values on a device. The frontend knows of them what they are; whoever computes knows where.
pub trait Remote: Any + Debug + Send + Sync {
    /// The element type and the shape; no size is symbolic.
    fn ty(&self) -> TensorType;

    /// Copies the values to the host: for a graph that needs them as a constant.
    ///
    /// # Errors
    /// What the device reports.
    fn to_host(&self) -> Result<HostTensor, String>;

    /// The value itself, for whoever made it.
    fn as_any(&self) -> &dyn Any;
}

/// Data that became an argument of a graph.
#[derive(Clone, Debug)]
pub enum Argument {
    Host(HostTensor),
    Remote(Arc<dyn Remote>),
}

impl Tensor {
    /// Makes a tensor from data on a device, without copying it.
    #[track_caller]
    pub fn from_remote(data: Arc<dyn Remote>) -> Tensor {
        Node::remote(data, Origin::caller())
    }
}
