//! What the house is: who may depend on whom, no circles between files, one table of elementwise ops, bindings as the
//! headers have them, one reader of the environment.

mod bindings;
mod circles;
mod dependencies;
mod elementwise;
mod environment;
mod structure;
