//! Modules one after the other, and around a shortcut.

use super::Module;
use crate::tensor::Tensor;

/// Modules applied in order.
#[derive(Default)]
pub struct Sequential {
    modules: Vec<Box<dyn Module>>,
}

impl Sequential {
    /// Makes the empty sequence, which is the identity.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Appends a module; closures `|x: &Tensor| …` are modules too.
    #[must_use]
    pub fn then(mut self, module: impl Module + 'static) -> Sequential {
        self.modules.push(Box::new(module));
        self
    }

    /// Returns the number of modules.
    pub fn len(&self) -> usize {
        self.modules.len()
    }

    /// Says whether there are no modules.
    pub fn is_empty(&self) -> bool {
        self.modules.is_empty()
    }
}

impl Module for Sequential {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let mut x = x.clone();
        for module in &self.modules {
            x = module.forward(&x);
        }
        x
    }
}

/// `x + inner(x)`.
pub struct Residual<M>(pub M);

impl<M: Module> Module for Residual<M> {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x + self.0.forward(x)
    }
}
