//! Recurrent layers with PyTorch's weights.

use ir::graph::op::Composite;
use ir::graph::recurrent::{Activation, ActivationKind, Cell, Recurrent};
use ir::{Op, Shape};

use super::{Init, Module, NnError, Params};
use crate::tensor::{Tensor, cat};

/// Of what a recurrent layer is made.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentConfig {
    pub inputs: usize,
    pub hidden: usize,
    pub layers: usize,
    pub bidirectional: bool,
    /// Tensors are `[B, T, …]`, not `[T, B, …]`.
    pub batch_first: bool,
}

/// One direction of one layer, its gates in the composite's order.
#[derive(Clone, Debug)]
struct Direction {
    /// `[G·H, I]`
    input: Tensor,
    /// `[G·H, H]`
    state: Tensor,
    /// `[G·H]`
    input_bias: Tensor,
    state_bias: Tensor,
}

/// What LSTMs and GRUs have in common.
#[derive(Clone, Debug)]
struct Stack {
    config: RecurrentConfig,
    cell: Cell,
    layers: Vec<Vec<Direction>>,
    path: String,
}

/// Puts blocks of rows into another order.
fn reordered(weight: &Tensor, order: &[i64], hidden: i64) -> Tensor {
    let parts: Vec<Tensor> = order
        .iter()
        .map(|gate| weight.narrow(0, gate * hidden, hidden))
        .collect();
    cat(&parts.iter().collect::<Vec<_>>(), 0)
}

impl Stack {
    #[track_caller]
    fn load(params: &Params, config: RecurrentConfig, cell: Cell, order: &[i64]) -> Result<Stack, NnError> {
        let (hidden, gates) = (config.hidden, order.len());
        let names: &[&str] = if config.bidirectional { &["", "_reverse"] } else { &[""] };
        let mut layers = Vec::with_capacity(config.layers);
        for layer in 0..config.layers {
            let inputs = match layer {
                0 => config.inputs,
                _ => hidden * names.len(),
            };
            let mut directions = Vec::with_capacity(names.len());
            for name in names {
                let one = |kind: &str, shape: &[usize]| -> Result<Tensor, NnError> {
                    let stored = params.tensor(&format!("{kind}_l{layer}{name}"), shape, Init::Uniform(-0.1, 0.1))?;
                    Ok(reordered(&stored, order, hidden as i64))
                };
                directions.push(Direction {
                    input: one("weight_ih", &[gates * hidden, inputs])?,
                    state: one("weight_hh", &[gates * hidden, hidden])?,
                    input_bias: one("bias_ih", &[gates * hidden])?,
                    state_bias: one("bias_hh", &[gates * hidden])?,
                });
            }
            layers.push(directions);
        }
        Ok(Stack {
            config,
            cell,
            layers,
            path: params.path().to_owned(),
        })
    }

    /// The hidden states of one direction, `[T, B, H]`.
    #[track_caller]
    fn direction(&self, x: &Tensor, of: &Direction, reverse: bool) -> Tensor {
        let hidden = self.config.hidden as i64;
        let batch = x.shape().get(1).cloned().unwrap_or_else(|| 1.into());
        let zeros = Tensor::zeros(x.dtype(), Shape(vec![batch, hidden.into()]));
        let mut operands = Vec::new();
        match self.cell {
            Cell::Gru { .. } => {
                // The last gate's own bias is reset along with its product.
                let sum = &of.input_bias.narrow(0, 0, 2 * hidden) + &of.state_bias.narrow(0, 0, 2 * hidden);
                let bias = cat(&[&sum, &of.input_bias.narrow(0, 2 * hidden, hidden)], 0);
                operands.push(x.linear(&of.input, Some(&bias)));
                operands.extend([of.state.clone(), zeros, of.state_bias.narrow(0, 2 * hidden, hidden)]);
            }
            Cell::Rnn | Cell::Lstm { .. } => {
                let bias = &of.input_bias + &of.state_bias;
                operands.push(x.linear(&of.input, Some(&bias)));
                operands.extend([of.state.clone(), zeros.clone(), zeros]);
            }
        }
        let usual = [ActivationKind::Sigmoid, ActivationKind::Tanh, ActivationKind::Tanh];
        let layer = Recurrent {
            cell: self.cell,
            activations: usual.map(Activation::of),
            clip: None,
            reverse,
            lengths: false,
            rounded: false,
        };
        let operands: Vec<&Tensor> = operands.iter().collect();
        Tensor::op(Op::Composite(Composite::Recurrent(layer)), &operands)
    }

    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let mut y = match self.config.batch_first {
            true => x.transpose(0, 1),
            false => x.clone(),
        };
        for layer in &self.layers {
            let both = layer.iter().zip([false, true]);
            let states: Vec<Tensor> = both.map(|(of, reverse)| self.direction(&y, of, reverse)).collect();
            y = match states.as_slice() {
                [one] => one.clone(),
                many => cat(&many.iter().collect::<Vec<_>>(), 2),
            };
        }
        if self.config.batch_first {
            y = y.transpose(0, 1);
        }
        y.in_module(&self.path, &[x])
    }
}

/// A long short-term memory: PyTorch's `nn.LSTM` from a state of zeros.
#[derive(Clone, Debug)]
pub struct Lstm(Stack);

impl Lstm {
    /// Loads `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0` and those of further layers and directions.
    ///
    /// # Errors
    /// A missing or misshapen weight.
    #[track_caller]
    pub fn load(params: &Params, config: RecurrentConfig) -> Result<Lstm, NnError> {
        let cell = Cell::Lstm {
            input_forget: false,
            peepholes: false,
            states: false,
        };
        // PyTorch has i f g o.
        Ok(Lstm(Stack::load(params, config, cell, &[0, 3, 1, 2])?))
    }
}

impl Module for Lstm {
    /// The hidden state of each step, of a bidirectional layer both, one after the other.
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.0.forward(x)
    }
}

/// A gated recurrent unit: PyTorch's `nn.GRU` from a state of zeros.
#[derive(Clone, Debug)]
pub struct Gru(Stack);

impl Gru {
    /// Loads the weights as [`Lstm::load`] does.
    ///
    /// # Errors
    /// A missing or misshapen weight.
    #[track_caller]
    pub fn load(params: &Params, config: RecurrentConfig) -> Result<Gru, NnError> {
        // PyTorch has r z n.
        let cell = Cell::Gru { reset_after: true };
        Ok(Gru(Stack::load(params, config, cell, &[1, 0, 2])?))
    }
}

impl Module for Gru {
    /// As [`Lstm`]'s.
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.0.forward(x)
    }
}
