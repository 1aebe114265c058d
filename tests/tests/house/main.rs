//! What the house is: who may depend on whom, no circles between files, bindings as the headers have them.

mod bindings;
mod circles;
mod dependencies;
mod structure;
