//! all-MiniLM-L6-v2: a six-layer BERT encoder (Devlin et al.) whose mean-pooled states are sentence embeddings.

use graphc::frontend::nn::{
    AttentionConfig, Embedding, LayerNorm, Linear, Module, MultiHeadAttention, NnError, Params,
};
use graphc::frontend::tensor::{InputSpec, Tensor, TensorError, trace};
use graphc::frontend::{DType, shape};
use graphc::ir::{Dim, Graph};

/// The sizes of a BERT encoder; the default is all-MiniLM-L6-v2's.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub vocabulary: usize,
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    pub intermediate: usize,
    /// The longest sequence, in tokens.
    pub positions: usize,
    pub epsilon: f64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            vocabulary: 30522,
            width: 384,
            layers: 6,
            heads: 12,
            intermediate: 1536,
            positions: 512,
            epsilon: 1e-12,
        }
    }
}

/// The encoder.
pub struct MiniLm {
    words: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
    layers: Vec<Layer>,
    config: Config,
}

struct Layer {
    attention: MultiHeadAttention,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
}

impl MiniLm {
    /// Loads the encoder, under the names that Hugging Face's `BertModel` gives its weights.
    ///
    /// # Errors
    /// A missing or misshapen weight.
    pub fn load(params: &Params, config: Config) -> Result<MiniLm, NnError> {
        let Config {
            width,
            heads,
            intermediate,
            epsilon,
            ..
        } = config;
        let embeddings = params.sub("embeddings");
        let layer = |i: usize| {
            let params = params.sub("encoder.layer").sub(i);
            let names = ["self.query", "self.key", "self.value", "output.dense"];
            Ok(Layer {
                attention: MultiHeadAttention::load_named(
                    &params.sub("attention"),
                    AttentionConfig::new(width, heads),
                    names,
                )?,
                attention_norm: LayerNorm::load(&params.sub("attention.output.LayerNorm"), width, epsilon)?,
                up: Linear::load(&params.sub("intermediate.dense"), width, intermediate)?,
                down: Linear::load(&params.sub("output.dense"), intermediate, width)?,
                norm: LayerNorm::load(&params.sub("output.LayerNorm"), width, epsilon)?,
            })
        };
        Ok(MiniLm {
            words: Embedding::load(&embeddings.sub("word_embeddings"), config.vocabulary, width)?,
            positions: Embedding::load(&embeddings.sub("position_embeddings"), config.positions, width)?,
            types: Embedding::load(&embeddings.sub("token_type_embeddings"), 2, width)?,
            norm: LayerNorm::load(&embeddings.sub("LayerNorm"), width, epsilon)?,
            layers: (0..config.layers).map(layer).collect::<Result<_, NnError>>()?,
            config,
        })
    }

    /// Returns the last hidden state, `[batch, seq, width]`, of ids, mask (1 for tokens, 0 for padding) and token
    /// types, each i64 `[batch, seq]`.
    pub fn hidden_state(&self, ids: &Tensor, mask: &Tensor, types: &Tensor) -> Tensor {
        let seq = ids.shape().last().cloned().unwrap_or(Dim::Const(1));
        let x = self.words.forward(ids) + self.types.forward(types) + self.positions.weight.narrow(0, 0, seq);
        let mut x = self.norm.forward(&x);
        // [batch, seq] to [batch, head, query, key]: every query of every head sees the tokens.
        let visible = mask.ne(0).unsqueeze(1).unsqueeze(1);
        for layer in &self.layers {
            let attended = layer.attention.attend(&x, Some(&visible));
            x = layer.attention_norm.forward(&(x + attended));
            let expanded = layer.up.forward(&x).gelu();
            x = layer.norm.forward(&(&x + layer.down.forward(&expanded)));
        }
        x
    }

    /// Makes the graph: i64 `input_ids`, `attention_mask` and `token_type_ids` `[batch, seq]` to `last_hidden_state`
    /// `[batch, seq, width]` and `embeddings` `[batch, width]`, mean-pooled over the tokens and of length 1.
    ///
    /// # Errors
    /// An operation that does not fit, with its place.
    pub fn graph(&self) -> Result<Graph, TensorError> {
        let longest = self.config.positions as i64;
        let spec = |name: &str| {
            InputSpec::new(name, DType::I64, shape!["batch", "seq"])
                .bounds("seq", 1..=longest)
                .hint("seq", 128)
                .hint("batch", 1)
        };
        trace(
            "minilm",
            [spec("input_ids"), spec("attention_mask"), spec("token_type_ids")],
            |[ids, mask, types]| {
                let hidden = self.hidden_state(&ids, &mask, &types);
                let weights = mask.cast(DType::F32).unsqueeze(-1);
                let mean = (&hidden * &weights).sum(1) / weights.sum(1);
                [("last_hidden_state", hidden), ("embeddings", mean.normalize(-1, 1e-12))]
            },
        )
    }
}
