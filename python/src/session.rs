//! Sessions and runs.

use std::sync::{Mutex, PoisonError};

use graphc::ir::TensorType;
use graphc::runtime::{Given, Pending, Value, Wanted};
use graphc_c::{Failure, inspected, profiled, value};
use indexmap::IndexMap;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{Fault, Outcome};
use crate::tensor::{Tensor, by_name, hosts};

/// A compiled model on a device.
#[pyclass(frozen, module = "graphc")]
pub struct Session {
    inner: graphc::Session,
}

/// A run under way.
#[pyclass(frozen, module = "graphc")]
pub struct Run {
    pending: Mutex<Option<Pending>>,
}

/// An input, an output or a state: its name, element type and sizes, a number or a text each.
type Port = (String, &'static str, Vec<Size>);

#[derive(IntoPyObject)]
pub enum Size {
    Known(i64),
    Open(String),
}

fn ports(ports: IndexMap<String, TensorType>) -> Vec<Port> {
    let size = |dim: &graphc::ir::Dim| dim.as_const().map_or_else(|| Size::Open(dim.to_string()), Size::Known);
    let port = |(name, ty): (String, TensorType)| (name, ty.dtype.name(), ty.shape.iter().map(size).collect());
    ports.into_iter().map(port).collect()
}

/// Inputs by name; nothing is copied.
fn given(inputs: Vec<(String, PyRef<'_, Tensor>)>) -> Vec<(String, Given)> {
    inputs
        .into_iter()
        .map(|(name, tensor)| (name, tensor.given()))
        .collect()
}

fn borrowed(inputs: &[(String, Given)]) -> impl Iterator<Item = (&str, Given)> {
    inputs.iter().map(|(name, given)| (name.as_str(), given.clone()))
}

impl Session {
    pub fn new(inner: graphc::Session) -> Session {
        Session { inner }
    }

    pub fn inner(&self) -> &graphc::Session {
        &self.inner
    }
}

#[pymethods]
impl Session {
    #[getter]
    fn inputs(&self) -> Vec<Port> {
        ports(self.inner.inputs())
    }

    #[getter]
    fn outputs(&self) -> Vec<Port> {
        ports(self.inner.outputs())
    }

    #[getter]
    fn states(&self) -> Vec<Port> {
        ports(self.inner.states())
    }

    #[getter]
    fn device(&self) -> &str {
        self.inner.device()
    }

    #[getter]
    fn runs(&self) -> u64 {
        self.inner.runs()
    }

    /// Runs and waits; outputs by name, left on the host or on the device.
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: Vec<(String, PyRef<'py, Tensor>)>,
        on_device: bool,
    ) -> Result<Bound<'py, PyDict>, PyErr> {
        let inputs = given(inputs);
        let values = py.detach(|| -> Outcome<Vec<(String, Value)>> {
            let on_host = inputs.iter().all(|(_, given)| matches!(given, Given::Host(_)));
            if on_host && !on_device {
                let ran = self.inner.run_map(&hosts(inputs)?)?;
                return Ok(ran
                    .into_iter()
                    .map(|(name, tensor)| (name, Value::Host(tensor)))
                    .collect());
            }
            let wanted = if on_device { Wanted::device() } else { Wanted::host() };
            Ok(self.inner.values(borrowed(&inputs), &wanted)?.into_iter().collect())
        })?;
        by_name(py, values)
    }

    /// Begins a run and does not wait for it.
    fn submit(&self, py: Python<'_>, inputs: Vec<(String, PyRef<'_, Tensor>)>, on_device: bool) -> Result<Run, Fault> {
        let inputs = given(inputs);
        let wanted = if on_device { Wanted::device() } else { Wanted::host() };
        let pending = py.detach(|| self.inner.submit(borrowed(&inputs), &wanted))?;
        Ok(Run {
            pending: Mutex::new(Some(pending)),
        })
    }

    /// Copies a tensor to the device.
    fn upload(&self, py: Python<'_>, tensor: &Tensor) -> Result<Tensor, Fault> {
        let value = tensor.value().clone();
        let uploaded = py.detach(|| -> Outcome<_> { Ok(self.inner.upload(&value.into_host()?)?) })?;
        Ok(Tensor::new(Value::Device(uploaded)))
    }

    fn fork(&self) -> Session {
        Session::new(self.inner.fork())
    }

    fn get_state(&self, py: Python<'_>, name: &str) -> Result<Tensor, Fault> {
        Ok(Tensor::new(Value::Host(py.detach(|| value(&self.inner, name))?)))
    }

    fn set_state(&self, py: Python<'_>, name: &str, tensor: &Tensor) -> Result<(), Fault> {
        let given = tensor.given();
        Ok(py.detach(|| self.inner.set_state(name, given))?)
    }

    fn reset_state(&self) {
        self.inner.reset_state();
    }

    /// Says as JSON what the program is.
    fn inspect(&self, py: Python<'_>) -> Result<String, Fault> {
        Ok(py.detach(|| inspected(&self.inner))?.to_string())
    }

    /// Says as JSON where the time of runs goes.
    fn profile(&self, py: Python<'_>, inputs: Vec<(String, PyRef<'_, Tensor>)>, runs: usize) -> Result<String, Fault> {
        if runs == 0 {
            return Err(Failure::argument("runs is 0, and must be at least 1").into());
        }
        let inputs = given(inputs);
        py.detach(|| Ok(profiled(&self.inner, hosts(inputs)?, runs)?.to_string()))
    }
}

#[pymethods]
impl Run {
    /// Whether the run is done, well or not.
    fn done(&self) -> bool {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.as_ref().is_none_or(Pending::is_done)
    }

    /// Waits for the run and gives its outputs, once.
    fn wait<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>, PyErr> {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner).take();
        let pending = pending.ok_or_else(|| Fault::from(Failure::argument("the run was waited for already")))?;
        let values = py.detach(|| pending.wait()).map_err(Fault::from)?;
        by_name(py, values)
    }
}
