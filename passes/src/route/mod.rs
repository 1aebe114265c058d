//! Which contractions and convolutions a library can take, one file a library.
//!
//! The choice is the e-graph's ([`crate::egraph::ROUTE`]): a call, with kernels of their own for what follows, stands
//! against one generated kernel that takes its epilogue in. It decides at the sizes' hints; where a product's rows are
//! open, a plan has both and chooses when sizes are bound ([`sized`]).

pub mod hipblaslt;
pub mod miopen;
pub mod rocblas;
pub mod sized;

use ir::library::LibraryCall;

/// What a route makes of a node, where it can take it.
type Routed = Option<LibraryCall>;
