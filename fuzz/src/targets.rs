//! What is fuzzed.

mod execute;
mod files;
mod planted;
mod programs;

use crate::Target;

/// The target of that name; `planted`, which is none of [`all`], shows whether a sanitizer is there.
pub fn named(name: &str) -> Option<Box<dyn Target>> {
    let planted: Box<dyn Target> = Box::new(planted::Planted);
    all().into_iter().chain([planted]).find(|target| target.name() == name)
}

/// Every target, in the order of the command line's help.
pub fn all() -> Vec<Box<dyn Target>> {
    vec![
        Box::new(programs::Artifact),
        Box::new(programs::Plan),
        Box::new(programs::Kernel),
        Box::new(files::Cache::default()),
        Box::new(files::Gir),
        Box::new(files::Arrays::new("npz")),
        Box::new(files::Arrays::new("npy")),
        Box::new(files::Arrays::new("safetensors")),
        Box::new(files::Onnx),
    ]
}
