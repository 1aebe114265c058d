//! graphc's Python module, `graphc._graphc`: what the Python files beside it build on.
//!
//! Texts, numbers and tensors go through; what a person calls, with its defaults and its conversions, is in
//! `graphc/`. Python's lock is released while a model is read, compiled or run.

mod error;
mod model;
mod session;
mod tensor;

use pyo3::prelude::*;

#[pymodule]
fn _graphc(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<session::Session>()?;
    module.add_class::<session::Run>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_function(wrap_pyfunction!(model::open, module)?)?;
    module.add_function(wrap_pyfunction!(model::compile, module)?)?;
    module.add_function(wrap_pyfunction!(model::explain, module)?)?;
    module.add_function(wrap_pyfunction!(model::option_keys, module)?)?;
    Ok(())
}
