//! Multi-head attention, with masks, causality, and grouped keys and values.

use super::{Linear, Module, NnError, Params};
use crate::tensor::{AttentionOptions, Tensor, scaled_dot_product_attention};

/// The sizes of a [`MultiHeadAttention`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionConfig {
    /// Width of the input and the output.
    pub width: usize,
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    pub head_width: usize,
    pub causal: bool,
    /// Keys that a position sees at most, up to itself: a sliding window; see [`AttentionOptions::window`].
    pub window: Option<i64>,
    /// Whether the projections have a bias.
    pub bias: bool,
}

impl AttentionConfig {
    /// As many heads of keys and values as of queries, `width / heads` wide, with bias, not causal.
    pub fn new(width: usize, heads: usize) -> AttentionConfig {
        let head_width = width / heads.max(1);
        AttentionConfig {
            width,
            heads,
            kv_heads: heads,
            head_width,
            causal: false,
            window: None,
            bias: true,
        }
    }

    /// Each position sees only itself and those before.
    #[must_use]
    pub fn causal(mut self) -> AttentionConfig {
        self.causal = true;
        self
    }

    /// Each position sees only itself and those before that are fewer than `window` positions away.
    #[must_use]
    pub fn sliding_window(mut self, window: i64) -> AttentionConfig {
        (self.causal, self.window) = (true, Some(window));
        self
    }

    /// Sets the heads of keys and values (grouped-query attention; 1 is multi-query).
    #[must_use]
    pub fn kv_heads(mut self, heads: usize) -> AttentionConfig {
        self.kv_heads = heads;
        self
    }

    /// Leaves out the biases.
    #[must_use]
    pub fn no_bias(mut self) -> AttentionConfig {
        self.bias = false;
        self
    }
}

/// `softmax(q·kᵀ/√d + mask)·v` over several heads, between projections.
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub output: Linear,
    pub config: AttentionConfig,
    path: String,
}

impl MultiHeadAttention {
    /// Loads the projections `q_proj`, `k_proj`, `v_proj` and `o_proj`.
    ///
    /// # Errors
    /// A missing or misshapen weight; sizes that contradict each other.
    #[track_caller]
    pub fn load(params: &Params, config: AttentionConfig) -> Result<MultiHeadAttention, NnError> {
        MultiHeadAttention::load_named(params, config, ["q_proj", "k_proj", "v_proj", "o_proj"])
    }

    /// Loads projections of other names, which may be paths:
    /// `["self.query", "self.key", "self.value", "output.dense"]`.
    ///
    /// # Errors
    /// As [`MultiHeadAttention::load`].
    #[track_caller]
    pub fn load_named(
        params: &Params,
        config: AttentionConfig,
        names: [&str; 4],
    ) -> Result<MultiHeadAttention, NnError> {
        let AttentionConfig {
            width,
            heads,
            kv_heads,
            head_width,
            ..
        } = config;
        if heads == 0 || kv_heads == 0 || head_width == 0 || !heads.is_multiple_of(kv_heads) {
            let message = format!("{kv_heads} heads of keys, {head_width} wide, do not serve {heads} heads of queries");
            return Err(params.config_error(message));
        }
        let [query, key, value, output] = names.map(|n| params.sub(n));
        let load = if config.bias {
            Linear::load
        } else {
            Linear::load_no_bias
        };
        Ok(MultiHeadAttention {
            query: load(&query, width, heads * head_width)?,
            key: load(&key, width, kv_heads * head_width)?,
            value: load(&value, width, kv_heads * head_width)?,
            output: load(&output, heads * head_width, width)?,
            config,
            path: params.path().to_owned(),
        })
    }

    /// Attends from `x` `[B, S, width]` to itself. The mask broadcasts to `[B, heads, S, S]`: float is added to the
    /// scores, bool keeps where true.
    #[track_caller]
    pub fn attend(&self, x: &Tensor, mask: Option<&Tensor>) -> Tensor {
        self.attend_to(x, x, mask)
    }

    /// Attends from `x` `[B, S, width]` to `context` `[B, T, width]`.
    #[track_caller]
    pub fn attend_to(&self, x: &Tensor, context: &Tensor, mask: Option<&Tensor>) -> Tensor {
        let options = AttentionOptions {
            mask: mask.cloned(),
            ..AttentionOptions::default()
        };
        self.attend_with(x, context, options)
    }

    /// As [`MultiHeadAttention::attend_to`], of sequences of different lengths in a padded batch: `lengths` are
    /// integers `[B]`, and what is behind them in `context` is not seen.
    #[track_caller]
    pub fn attend_to_lengths(&self, x: &Tensor, context: &Tensor, lengths: &Tensor) -> Tensor {
        let options = AttentionOptions {
            lengths: Some(lengths.clone()),
            ..AttentionOptions::default()
        };
        self.attend_with(x, context, options)
    }

    #[track_caller]
    fn attend_with(&self, x: &Tensor, context: &Tensor, options: AttentionOptions) -> Tensor {
        let (heads, kv_heads) = (self.config.heads as i64, self.config.kv_heads as i64);
        let q = self.query.forward(x).split_heads(heads);
        let k = self.key.forward(context).split_heads(kv_heads);
        let v = self.value.forward(context).split_heads(kv_heads);
        let options = AttentionOptions {
            causal: self.config.causal,
            window: self.config.window,
            ..options
        };
        let y = scaled_dot_product_attention(&q, &k, &v, &options).merge_heads();
        self.output.forward(&y).in_module(&self.path, &[x, context])
    }
}

impl Module for MultiHeadAttention {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.attend(x, None)
    }
}
