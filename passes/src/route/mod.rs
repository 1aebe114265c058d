//! Which contractions and convolutions a library can take, one file a library.
//!
//! The choice is the e-graph's ([`crate::egraph::ROUTE`]): a call, with kernels of their own for what follows, stands
//! against one generated kernel that takes its epilogue in.

pub mod hipblaslt;
pub mod miopen;
pub mod rocblas;

use ir::library::LibraryCall;

/// What a route makes of a node, where it can take it.
type Routed = Option<LibraryCall>;
