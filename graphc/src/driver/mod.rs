//! The driver: from a model to a program, one stage after the other.
//!
//! ```text
//! model::load -> Graph -> build (optimize, schedule, plan, emit; per target) -> Program -> compile (code objects) -> Executable
//! model::load -> Graph -> program (both, or what they made before)            -> Program with its code       -> Executable
//! ```

mod build;
mod compile;
pub mod model;
mod programs;
mod spills;

pub use build::{Build, BuildOptions, Stages, VariantReport, build, check_files, evaluator};
pub use compile::{Compilation, compile, compiler, platforms, requests};
pub use model::{Model, Source, load};
pub use programs::{Made, artifact, program};
pub use spills::mend as mend_spills;
