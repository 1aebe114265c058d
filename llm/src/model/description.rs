//! What tells one architecture from another.

use graphc::frontend::tensor::Tensor;

use super::experts::Mixture;
use super::rope::Rope;
use crate::error::Result;
use crate::loader::{Config, Keys};

/// An architecture, at the sizes of one file.
#[derive(Clone, Debug)]
pub struct Description {
    /// Which elements of a head the file has as pairs of rotary embedding.
    pub pairs: Pairs,
    pub biases: Biases,
    pub fused: Fused,
    pub norms: Norms,
    /// Whether what goes into attention and the feed-forward network is normalised.
    pub pre_norms: bool,
    /// The name that the file has for the norm before the feed-forward network.
    pub second_norm: &'static str,
    /// Whether each head has one more score, of a key without a value (Xiao et al., 2023).
    pub sinks: bool,
    /// Whether queries and keys are normalised before they are rotated.
    pub head_norms: HeadNorms,
    /// Whether what attention and the feed-forward network give is normalised before it is added.
    pub post_norms: bool,
    pub activation: Activation,
    /// Whether the feed-forward network is `down(act(gate · x) ⊙ up · x)`; else `down(act(up · x))`.
    pub gated: bool,
    /// The experts that the feed-forward networks are.
    pub mixture: Option<Mixture>,
    /// Factor of the embeddings.
    pub embedding_scale: f64,
    /// Factor of what attention and the feed-forward network give, before it is added.
    pub residual_scale: f64,
    /// Factor of the logits.
    pub logit_scale: f64,
    /// Factor of the scores of attention.
    pub score_scale: f64,
    /// `cap · tanh(x / cap)` of the scores.
    pub score_cap: Option<f64>,
    /// The same of the logits.
    pub logit_cap: Option<f64>,
    pub ropes: Vec<Rope>,
    /// One for each layer.
    pub layers: Vec<Layer>,
}

/// What layers of one model differ by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layer {
    /// The number of tokens that one sees, itself included; None for all before it.
    pub window: Option<i64>,
    /// The place of its rotary embedding in [`Description::ropes`]; None for a layer that has none.
    pub rope: Option<usize>,
}

/// How the rows of a text become its embedding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pooling {
    Mean,
    First,
    Last,
}

impl Pooling {
    /// Reads `pooling_type`, which models have that make embeddings and write no texts.
    ///
    /// # Errors
    /// A key of another type, or a way that is not known.
    pub fn read(keys: &Keys<'_>) -> Result<Option<Pooling>> {
        if !keys.has("pooling_type") {
            return Ok(None);
        }
        match keys.count("pooling_type")? {
            0 => Ok(None),
            1 => Ok(Some(Pooling::Mean)),
            2 => Ok(Some(Pooling::First)),
            3 => Ok(Some(Pooling::Last)),
            other => Err(keys.refuse("pooling_type", other, "1 (mean), 2 (first) and 3 (last) are supported")),
        }
    }
}

/// Norms of the residual stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Norms {
    /// `x / √(mean(x²) + ε)`, with weights.
    Rms,
    /// `(x − mean) / √(variance + ε)`, with weights and biases.
    Layer,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadNorms {
    Without,
    /// Each head by itself, all with the same weights.
    Each,
    /// All heads together.
    All,
}

/// Pairs of elements that rotary embedding turns. Graphs have halves; rows of files that have neighbours are reordered
/// when loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pairs {
    /// `(2i, 2i + 1)`.
    Neighbours,
    /// `(i, i + n/2)`.
    Halves,
}

/// Biases of the projections to queries, keys and values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Biases {
    /// As the file has them: none, or all three. The projection back may have one too.
    AsStored,
    /// All three are there.
    Always,
}

/// Whether the file has matrices as one: queries, keys and values; gate and up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fused {
    Apart,
    Together,
}

/// The activation of the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    Silu,
    /// By its tanh approximation.
    Gelu,
    /// gpt-oss: a steeper SiLU of at most 7, times one more than a number from -7 to 7.
    Clamped,
}

impl Activation {
    /// The activation alone.
    #[track_caller]
    pub fn of(self, x: &Tensor) -> Tensor {
        match self {
            Activation::Silu => x.silu(),
            Activation::Gelu => x.gelu_tanh(),
            Activation::Clamped => x * (x * 1.702).sigmoid(),
        }
    }

    /// What goes through the gate.
    #[track_caller]
    pub fn gated(self, gate: &Tensor, up: &Tensor) -> Tensor {
        match self {
            Activation::Silu | Activation::Gelu => self.of(gate) * up,
            Activation::Clamped => self.of(&gate.minimum(7.0)) * (up.clamp(-7.0, 7.0) + 1.0),
        }
    }
}

impl Description {
    /// A decoder of RMS norms, gated SiLU and full attention, with pairs in halves and nothing else.
    pub fn plain(config: &Config, rope: Rope) -> Description {
        Description {
            pairs: Pairs::Halves,
            biases: Biases::AsStored,
            fused: Fused::Apart,
            norms: Norms::Rms,
            pre_norms: true,
            second_norm: "ffn_norm",
            sinks: false,
            head_norms: HeadNorms::Without,
            post_norms: false,
            activation: Activation::Silu,
            gated: true,
            mixture: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            score_scale: 1.0 / (config.key_length as f64).sqrt(),
            score_cap: None,
            logit_cap: None,
            ropes: vec![rope],
            layers: vec![
                Layer {
                    window: None,
                    rope: Some(0)
                };
                config.layers
            ],
        }
    }
}
