//! Recurrent layers: what a step of one direction of a layer computes.
//!
//! The products of all inputs are made before, at once; a step adds the products of the state. Gates lie side by side,
//! in ONNX's order.
//!
//! | cell | gates of a row | a step |
//! |---|---|---|
//! | `rnn` | h | `h ← f(x + R·h)` |
//! | `gru` | z r n | `z, r = f(…)`, `n = g(xₙ + Rₙ·(r ∘ h))`, `h ← (1 − z) ∘ n + z ∘ h` |
//! | `gru_reset_after` | z r n | the same, `n = g(xₙ + r ∘ (Rₙ·h + b))` |
//! | `lstm` | i o f c | `i, f = f(… + P ∘ c)`, `c ← f ∘ c + i ∘ g(…)`, `o = f(… + Pₒ ∘ c)`, `h ← o ∘ h(c)` |

use std::fmt;

use serde::{Deserialize, Serialize};

use super::op::Number;

/// One direction of a recurrent layer.
///
/// Operands, in order: the inputs' products `[T, B, G·H]` with all biases but the one named below, the recurrent
/// weights `[G·H, H]`, the first hidden state `[B, H]`; of an LSTM the first cell state `[B, H]`; of a GRU that resets
/// after the product its bias `[H]`; with `peepholes` those of i, o and f `[3·H]`; with `lengths` the steps of each row
/// `[B]`, as `i64`. They have one type, but where it is `f32` the weights may have 16 bits. The result is the hidden
/// state of each step, `[T, B, H]`, or with `states` each hidden state followed by the cell state, `[T, B, 2·H]`. Steps
/// beyond a row's length leave its state alone, and their result is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Recurrent {
    pub cell: Cell,
    /// `f`, `g` and `h` of the table above; those that the cell does not have are left alone.
    pub activations: [Activation; 3],
    /// What the operand of each activation of a gate is limited to, on both sides of 0.
    pub clip: Option<Number>,
    /// The last step comes first.
    pub reverse: bool,
    /// Rows have lengths of their own.
    pub lengths: bool,
    /// The hidden state that weights are multiplied with is rounded to 8 bits at each step, as ONNX's
    /// `DynamicQuantizeLinear` does, each row by its own scale and zero point.
    pub rounded: bool,
}

/// What a step computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Cell {
    Rnn,
    Gru {
        /// The reset gate comes after the product of the hidden state, which has a bias of its own.
        reset_after: bool,
    },
    Lstm {
        /// The forget gate is `1 − i`.
        input_forget: bool,
        /// Gates see the cell state, too.
        peepholes: bool,
        /// The result has cell states as well.
        states: bool,
    },
}

impl Cell {
    /// Returns how many gates a row of the weights has.
    pub const fn gates(self) -> i64 {
        match self {
            Cell::Rnn => 1,
            Cell::Gru { .. } => 3,
            Cell::Lstm { .. } => 4,
        }
    }

    /// Returns how many activations it has.
    pub const fn activations(self) -> usize {
        match self {
            Cell::Rnn => 1,
            Cell::Gru { .. } => 2,
            Cell::Lstm { .. } => 3,
        }
    }

    /// Returns the name used in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            Cell::Rnn => "rnn",
            Cell::Gru { reset_after: false } => "gru",
            Cell::Gru { reset_after: true } => "gru_reset_after",
            Cell::Lstm { .. } => "lstm",
        }
    }
}

/// Where the operands that a layer may have are in its list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    pub cell: Option<usize>,
    pub bias: Option<usize>,
    pub peepholes: Option<usize>,
    pub lengths: Option<usize>,
    /// How many operands there are.
    pub count: usize,
}

impl Recurrent {
    /// Returns where each operand is.
    pub fn places(&self) -> Places {
        let mut count = 3;
        let mut place = |is: bool| {
            count += usize::from(is);
            is.then(|| count - 1)
        };
        let (cell, bias, peepholes) = match self.cell {
            Cell::Rnn => (false, false, false),
            Cell::Gru { reset_after } => (false, reset_after, false),
            Cell::Lstm { peepholes, .. } => (true, false, peepholes),
        };
        let (cell, bias, peepholes, lengths) = (place(cell), place(bias), place(peepholes), place(self.lengths));
        Places {
            cell,
            bias,
            peepholes,
            lengths,
            count,
        }
    }

    /// Returns what weights are multiplied with: a row's hidden state, rounded where the layer says so.
    pub fn multiplied(&self, hidden: &[f64]) -> Vec<f64> {
        if !self.rounded {
            return hidden.to_vec();
        }
        let low = hidden.iter().copied().fold(0.0, f64::min);
        let high = hidden.iter().copied().fold(0.0, f64::max);
        let scale = if high > low { (high - low) / 255.0 } else { 1.0 };
        let zero = (-low / scale).round_ties_even().clamp(0.0, 255.0);
        let level = |h: f64| ((h / scale).round_ties_even() + zero).clamp(0.0, 255.0);
        hidden.iter().map(|h| (level(*h) - zero) * scale).collect()
    }

    /// Returns how many states of a row the result has side by side.
    pub const fn states(&self) -> i64 {
        match self.cell {
            Cell::Lstm { states: true, .. } => 2,
            _ => 1,
        }
    }
}

/// A function of gates and states, with its numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Activation {
    pub kind: ActivationKind,
    pub alpha: Number,
    pub beta: Number,
}

/// The functions that ONNX has for recurrent layers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ActivationKind {
    /// `α·x + β`
    Affine,
    Relu,
    /// `x < 0 ? α·x : x`
    LeakyRelu,
    /// `x ≥ α ? x : 0`
    ThresholdedRelu,
    /// `α·tanh(β·x)`
    ScaledTanh,
    /// `min(max(α·x + β, 0), 1)`
    HardSigmoid,
    Sigmoid,
    Tanh,
    /// `x < 0 ? α·(eˣ − 1) : x`
    Elu,
    /// `x / (1 + |x|)`
    Softsign,
    Softplus,
}

impl ActivationKind {
    /// All members, in declaration order.
    pub const ALL: [ActivationKind; 11] = [
        ActivationKind::Affine,
        ActivationKind::Relu,
        ActivationKind::LeakyRelu,
        ActivationKind::ThresholdedRelu,
        ActivationKind::ScaledTanh,
        ActivationKind::HardSigmoid,
        ActivationKind::Sigmoid,
        ActivationKind::Tanh,
        ActivationKind::Elu,
        ActivationKind::Softsign,
        ActivationKind::Softplus,
    ];

    /// Returns the name used in text forms.
    pub const fn name(self) -> &'static str {
        match self {
            ActivationKind::Affine => "affine",
            ActivationKind::Relu => "relu",
            ActivationKind::LeakyRelu => "leaky_relu",
            ActivationKind::ThresholdedRelu => "thresholded_relu",
            ActivationKind::ScaledTanh => "scaled_tanh",
            ActivationKind::HardSigmoid => "hard_sigmoid",
            ActivationKind::Sigmoid => "sigmoid",
            ActivationKind::Tanh => "tanh",
            ActivationKind::Elu => "elu",
            ActivationKind::Softsign => "softsign",
            ActivationKind::Softplus => "softplus",
        }
    }

    /// Finds a member by its name.
    pub fn from_name(text: &str) -> Option<ActivationKind> {
        ActivationKind::ALL.into_iter().find(|kind| kind.name() == text)
    }

    /// Returns α and β where nobody says otherwise, as ONNX has them.
    pub const fn defaults(self) -> (f64, f64) {
        match self {
            ActivationKind::LeakyRelu => (0.01f32 as f64, 0.0),
            ActivationKind::HardSigmoid => (0.2f32 as f64, 0.5),
            ActivationKind::Affine | ActivationKind::Elu | ActivationKind::ThresholdedRelu => (1.0, 0.0),
            ActivationKind::ScaledTanh => (1.0, 1.0),
            _ => (0.0, 0.0),
        }
    }
}

impl fmt::Display for ActivationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Activation {
    /// The function with ONNX's numbers.
    pub const fn of(kind: ActivationKind) -> Activation {
        let (alpha, beta) = kind.defaults();
        Activation {
            kind,
            alpha: Number::Float(alpha),
            beta: Number::Float(beta),
        }
    }

    /// The value at `x`.
    pub fn at(&self, x: f64) -> f64 {
        let (alpha, beta) = (self.alpha.as_f64(), self.beta.as_f64());
        match self.kind {
            ActivationKind::Affine => alpha * x + beta,
            ActivationKind::Relu if x < 0.0 => 0.0,
            ActivationKind::LeakyRelu if x < 0.0 => alpha * x,
            ActivationKind::Relu | ActivationKind::LeakyRelu => x,
            ActivationKind::ThresholdedRelu if x < alpha => 0.0,
            ActivationKind::ThresholdedRelu => x,
            ActivationKind::ScaledTanh => alpha * (beta * x).tanh(),
            ActivationKind::HardSigmoid => (alpha * x + beta).clamp(0.0, 1.0),
            ActivationKind::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            ActivationKind::Tanh => x.tanh(),
            ActivationKind::Elu if x < 0.0 => alpha * x.exp_m1(),
            ActivationKind::Elu => x,
            ActivationKind::Softsign => x / (1.0 + x.abs()),
            ActivationKind::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        }
    }
}
