//! Buffers of a launch.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dim::{Bindings, Dim, DimError};
use crate::types::DType;

/// A buffer that a kernel reads or writes.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Param {
    /// An identifier.
    pub name: String,
    pub dtype: DType,
    /// How many elements the buffer has.
    pub elements: Dim,
    pub access: Access,
}

impl Param {
    /// How many elements there are at these sizes; none where the size is below 0.
    ///
    /// # Errors
    /// As [`Dim::eval`].
    pub fn count(&self, bindings: &Bindings) -> Result<i64, DimError> {
        Ok(self.elements.eval(bindings)?.max(0))
    }
}

/// What a kernel does with a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Access {
    Read,
    Write,
    /// Reads and writes the same buffer: scatter's destination, or a pointwise kernel working in place.
    ReadWrite,
    /// Memory of the launch's own, which the mapping alone uses; what it holds afterwards nobody reads.
    Scratch,
    /// As `Scratch`, but it holds zeros before the launch, and again after it.
    Tickets,
}

impl Access {
    /// Whether what the buffer held before the launch counts.
    pub fn reads(self) -> bool {
        matches!(self, Access::Read | Access::ReadWrite | Access::Tickets)
    }

    /// Whether the launch changes the buffer.
    pub fn writes(self) -> bool {
        self != Access::Read
    }

    /// Whether what the buffer holds after the launch counts, besides what it held before.
    pub fn leaves(self) -> bool {
        self.writes() && self != Access::Scratch
    }

    /// Whether the body, and not the mapping alone, says what the buffer is for.
    pub fn is_of_body(self) -> bool {
        !matches!(self, Access::Scratch | Access::Tickets)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::ReadWrite => "read_write",
            Access::Scratch => "scratch",
            Access::Tickets => "tickets",
        })
    }
}
