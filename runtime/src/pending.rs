//! A run that its caller did not wait for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use indexmap::IndexMap;
use ir::{Bindings, Program};

use crate::checks::check_files;
use crate::device::Running;
use crate::error::RuntimeError;
use crate::state::Made;
use crate::tensor::{DeviceTensor, Value};

/// The outputs of a run, by name, in the model's order.
pub type Values = IndexMap<String, Value>;

/// A run under way: its outputs come from [`Pending::wait`], or from the value itself, which is a future. Dropped, the
/// run still comes to its end, and its outputs are lost.
pub struct Pending {
    program: Arc<Program>,
    variant: usize,
    /// The run's sizes.
    sizes: Arc<Bindings>,
    running: Arc<dyn Running>,
    /// A state that is not to be used where an index was outside of its axis.
    state: Option<Made>,
}

impl Pending {
    pub(crate) fn new(
        program: Arc<Program>,
        variant: usize,
        sizes: Arc<Bindings>,
        running: Arc<dyn Running>,
    ) -> Pending {
        Pending {
            program,
            variant,
            sizes,
            running,
            state: None,
        }
    }

    /// The run makes new values of a state.
    pub(crate) fn spoils(&mut self, state: Made) {
        self.state = Some(state);
    }

    /// Whether the run is done, well or not.
    pub fn is_done(&self) -> bool {
        self.running.is_done()
    }

    /// Waits for the run and gives its outputs, but for those that were taken.
    ///
    /// # Errors
    /// What the device reports; `Index` where an index was outside its axis.
    pub fn wait(self) -> Result<Values, RuntimeError> {
        self.named()
    }

    /// Takes an output that is wanted on the device, before the run is done: it may be given to other runs, which come
    /// after this one. None for an output on the host, one that was taken, or a name that is no output's.
    pub fn take(&mut self, output: &str) -> Option<DeviceTensor> {
        let ports = self.program.variants[self.variant].plan.results();
        let port = ports.iter().position(|port| port.name == output)?;
        self.take_port(port)
    }

    /// The same by the number of the result.
    pub(crate) fn take_port(&mut self, port: usize) -> Option<DeviceTensor> {
        self.running.take(port)
    }

    fn named(&self) -> Result<Values, RuntimeError> {
        let plan = &self.program.variants[self.variant].plan;
        let mut values = self.running.wait()?;
        check_files(&self.program, &[])?;
        let conditions = values.split_off(plan.results().len().min(values.len()));
        let on_host = conditions.iter().map(|value| match value {
            Some(Value::Host(value)) => Some(&value.bytes[..]),
            _ => None,
        });
        if let Some(failed) = plan.failed_condition(on_host, &self.sizes) {
            let error = RuntimeError::of_condition(failed);
            if let Some(state) = &self.state {
                state.lose(&error.to_string());
            }
            return Err(error);
        }
        let values = plan.results().iter().zip(values);
        Ok(values
            .filter_map(|(port, value)| Some((port.name.clone(), value?)))
            .collect())
    }
}

impl Future for Pending {
    type Output = Result<Values, RuntimeError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.running.is_done() {
            return Poll::Ready(self.named());
        }
        self.running.clone().wake(context.waker().clone());
        Poll::Pending
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending")
            .field("program", &self.program.name)
            .finish_non_exhaustive()
    }
}
