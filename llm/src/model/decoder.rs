//! A decoder with its weights, and the graph that it is.

use std::collections::BTreeMap;

use graphc::frontend::tensor::{InputSpec, Tensor, TensorError, build_graph_with};
use graphc::frontend::{DType, shape};
use graphc::ir::{Dim, Graph, Shape};

use super::attention::{Scores, attend};
use super::description::{Biases, Description, Fused, HeadNorms, Norms, Pairs, Pooling};
use super::experts::Experts;
use super::rope::rotate;
use crate::error::Result;
use crate::loader::{Config, Loader, Matrix, Rows, Stored};

/// The inputs of a graph, in their order: ids of new tokens `[S]`, positions of all tokens that are seen, from 0 on,
/// `[T]`, the new ones last, and which of the new ones have their logits computed, `[R]`; all `i64`.
pub const NAMES: [&str; 3] = ["tokens", "positions", "rows"];

/// A model that was loaded.
#[derive(Clone, Debug)]
pub struct Decoder {
    pub config: Config,
    pub description: Description,
    /// Set for a model that makes embeddings.
    pub pooling: Option<Pooling>,
    /// Tokens that the caches have room for.
    pub capacity: usize,
    /// What the matrices of each stored type became.
    pub stored: BTreeMap<&'static str, Stored>,
    embedding: Matrix,
    blocks: Vec<Block>,
    norm: Norm,
    output: Matrix,
}

/// A matrix, and what is added behind it.
#[derive(Clone, Debug)]
struct Projection {
    matrix: Matrix,
    bias: Option<Tensor>,
}

impl Projection {
    #[track_caller]
    fn of(&self, x: &Tensor) -> Tensor {
        self.matrix.product(x, self.bias.as_ref())
    }
}

/// A layer's feed-forward network.
#[derive(Clone, Debug)]
enum Network {
    One {
        /// None in a network without one.
        gate: Option<Matrix>,
        up: Projection,
        down: Projection,
    },
    Mixture(Box<Experts>),
}

/// A norm's weights, and the biases of a layer norm.
#[derive(Clone, Debug)]
struct Norm {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Norm {
    fn load(loader: &mut Loader<'_>, name: &str, width: usize, norms: Norms) -> Result<Norm> {
        Ok(Norm {
            weight: loader.vector(&format!("{name}.weight"), width)?,
            bias: match norms {
                Norms::Rms => None,
                Norms::Layer => Some(loader.vector(&format!("{name}.bias"), width)?),
            },
        })
    }

    #[track_caller]
    fn of(&self, x: &Tensor, epsilon: f64) -> Tensor {
        match &self.bias {
            None => x.rms_norm(Some(&self.weight), epsilon),
            Some(bias) => x.layer_norm(Some(&self.weight), Some(bias), epsilon),
        }
    }
}

#[derive(Clone, Debug)]
struct Block {
    /// Before attention, and before the feed-forward network.
    pre_norms: Option<[Norm; 2]>,
    query: Projection,
    key: Projection,
    value: Projection,
    output: Projection,
    /// A score for each head.
    sinks: Option<Tensor>,
    head_norms: Option<[Norm; 2]>,
    network: Network,
    /// Behind attention, and behind the feed-forward network.
    post_norms: Option<[Norm; 2]>,
}

impl Block {
    fn load(config: &Config, description: &Description, loader: &mut Loader<'_>, index: usize) -> Result<Block> {
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let Config {
            width,
            feed_forward,
            heads,
            kv_heads,
            key_length,
            value_length,
            ..
        } = *config;
        let ordered = |heads: usize| match description.pairs {
            Pairs::Neighbours => Rows::Halved { heads },
            Pairs::Halves => Rows::All,
        };
        let sizes = [heads * key_length, kv_heads * key_length, kv_heads * value_length];
        let whole = ["attn_q", "attn_k", "attn_v"];
        let mut projections = Vec::new();
        for (at, outputs) in sizes.into_iter().enumerate() {
            let (part, rows) = match (description.fused, at) {
                (Fused::Together, _) => {
                    let start: usize = sizes[..at].iter().sum();
                    let range = start..start + outputs;
                    let of = sizes.iter().sum();
                    ("attn_qkv", Rows::Part { of, range })
                }
                (Fused::Apart, 0) => (whole[0], ordered(heads)),
                (Fused::Apart, 1) => (whole[1], ordered(kv_heads)),
                (Fused::Apart, _) => (whole[2], Rows::All),
            };
            let bias = format!("blk.{index}.{part}.bias");
            let is_there = description.biases == Biases::Always || loader.has(&bias);
            projections.push(Projection {
                matrix: loader.matrix(&name(part), outputs, width, &rows)?,
                bias: is_there.then(|| loader.bias(&bias, outputs, &rows)).transpose()?,
            });
        }
        let with_bias = |loader: &mut Loader<'_>, matrix: Matrix, part: &str, outputs: usize| {
            let bias = format!("blk.{index}.{part}.bias");
            let bias = (loader.has(&bias)).then(|| loader.vector(&bias, outputs)).transpose()?;
            Result::Ok(Projection { matrix, bias })
        };
        let output = loader.matrix(&name("attn_output"), width, heads * value_length, &Rows::All)?;
        let output = with_bias(loader, output, "attn_output", width)?;
        let sinks = description
            .sinks
            .then(|| loader.vector(&name("attn_sinks"), heads))
            .transpose()?;
        let network = match description.mixture {
            Some(mixture) => Network::Mixture(Box::new(Experts::load(loader, config, mixture, index)?)),
            None => {
                let mut part = |part: &str, of: usize, start: usize| {
                    let range = start..start + feed_forward;
                    let rows = if of == feed_forward {
                        Rows::All
                    } else {
                        Rows::Part { of, range }
                    };
                    loader.matrix(&name(part), feed_forward, width, &rows)
                };
                let (gate, up) = match (description.fused, description.gated) {
                    (_, false) => (None, part("ffn_up", feed_forward, 0)?),
                    (Fused::Apart, true) => {
                        let gate = part("ffn_gate", feed_forward, 0)?;
                        (Some(gate), part("ffn_up", feed_forward, 0)?)
                    }
                    (Fused::Together, true) => {
                        let gate = part("ffn_up", 2 * feed_forward, 0)?;
                        (Some(gate), part("ffn_up", 2 * feed_forward, feed_forward)?)
                    }
                };
                let up = with_bias(loader, up, "ffn_up", feed_forward)?;
                let down = loader.matrix(&name("ffn_down"), width, feed_forward, &Rows::All)?;
                let down = with_bias(loader, down, "ffn_down", width)?;
                Network::One { gate, up, down }
            }
        };
        let mut pair = |is_there: bool, names: [&str; 2], lengths: [usize; 2], norms: Norms| {
            if !is_there {
                return Ok(None);
            }
            let names = names.map(|part| format!("blk.{index}.{part}"));
            let one = Norm::load(loader, &names[0], lengths[0], norms)?;
            Result::Ok(Some([one, Norm::load(loader, &names[1], lengths[1], norms)?]))
        };
        let lengths = match description.head_norms {
            HeadNorms::All => [heads * key_length, kv_heads * key_length],
            HeadNorms::Each | HeadNorms::Without => [key_length; 2],
        };
        let has_head_norms = description.head_norms != HeadNorms::Without;
        let head_norms = pair(has_head_norms, ["attn_q_norm", "attn_k_norm"], lengths, Norms::Rms)?;
        let (norms, widths) = (description.norms, [width; 2]);
        let names = ["attn_norm", description.second_norm];
        let pre_norms = pair(description.pre_norms, names, widths, norms)?;
        let names = ["post_attention_norm", "post_ffw_norm"];
        let post_norms = pair(description.post_norms, names, widths, norms)?;
        let [query, key, value] = <[Projection; 3]>::try_from(projections).expect("three were pushed");
        Ok(Block {
            pre_norms,
            query,
            key,
            value,
            output,
            sinks,
            head_norms,
            network,
            post_norms,
        })
    }
}

impl Decoder {
    /// Takes a model's weights, all of them.
    ///
    /// # Errors
    /// A tensor that is missing or of another shape, or that nothing takes.
    pub fn load(
        config: Config,
        description: Description,
        pooling: Option<Pooling>,
        mut loader: Loader<'_>,
        capacity: usize,
    ) -> Result<Decoder> {
        let embedding = loader.matrix("token_embd.weight", config.vocabulary, config.width, &Rows::All)?;
        let output = match loader.has("output.weight") {
            true => loader.matrix("output.weight", config.vocabulary, config.width, &Rows::All)?,
            false => embedding.clone(),
        };
        let norm = Norm::load(&mut loader, "output_norm", config.width, description.norms)?;
        let blocks = (0..config.layers)
            .map(|index| Block::load(&config, &description, &mut loader, index))
            .collect::<Result<_>>()?;
        Ok(Decoder {
            config,
            description,
            pooling,
            capacity,
            stored: loader.finish()?,
            embedding,
            blocks,
            norm,
            output,
        })
    }

    /// The state of a graph: each cache, `[1, kv_heads, capacity, length]`, and the output that is its next value.
    pub fn links(&self) -> Vec<(String, String)> {
        let names = (0..self.config.layers).flat_map(|layer| [format!("keys{layer}"), format!("values{layer}")]);
        names.map(|name| (name.clone(), format!("{name}_next"))).collect()
    }

    /// Makes the graph: [`NAMES`] and the caches to `logits` `[R, vocabulary]` and the next caches. At most `most`
    /// tokens are new. A model of embeddings gives its `rows` `[R, width]`.
    ///
    /// # Errors
    /// An operation that does not fit, with its place.
    pub fn graph(&self, most: usize) -> std::result::Result<Graph, TensorError> {
        let (capacity, most) = (self.capacity as i64, most.min(self.capacity) as i64);
        let sizes = [(NAMES[0], "S", most), (NAMES[1], "T", capacity), (NAMES[2], "R", most)];
        let [tokens, positions, rows] = sizes.map(|(name, symbol, most)| {
            let spec = InputSpec::new(name, DType::I64, shape![symbol]).bounds(symbol, 1..=most);
            Tensor::from_spec(&spec.hint(symbol, 1))
        });
        let caches: Vec<Tensor> = self
            .links()
            .iter()
            .enumerate()
            .map(|(at, (name, _))| {
                let length = [self.config.key_length, self.config.value_length][at % 2];
                Tensor::input(name, DType::F32, shape![1, self.config.kv_heads, capacity, length])
            })
            .collect();
        let [seen] = positions.dims()?;
        let [count] = tokens.dims()?;
        // Positions of the new tokens are the last ones.
        let places = positions.narrow(0, seen.clone() - count.clone(), count.clone());
        let tables: Vec<[Tensor; 2]> = self.description.ropes.iter().map(|rope| rope.tables(&places)).collect();
        let at = |length: usize| {
            let one = places.reshape(Shape(vec![1.into(), 1.into(), count.clone(), 1.into()]));
            let heads = self.config.kv_heads;
            one.expand(Shape(vec![1.into(), heads.into(), count.clone(), length.into()]))
        };
        let places = [at(self.config.key_length), at(self.config.value_length)];
        let mut h = scaled(self.embedding.look_up(&tokens), self.description.embedding_scale);
        let mut next = Vec::new();
        for (index, block) in self.blocks.iter().enumerate() {
            let layer = self.description.layers[index];
            let caches = [&caches[2 * index], &caches[2 * index + 1]];
            let (mixed, kept) = self.attention(
                block,
                &h,
                layer.rope.map(|at| &tables[at]),
                layer.window,
                caches,
                &places,
                &seen,
            );
            next.extend(kept);
            h = &h + scaled(mixed, self.description.residual_scale);
            h = &h + scaled(self.feed_forward(block, &h), self.description.residual_scale);
        }
        let wanted = self.norm.of(&h.index_select(0, &rows), self.config.epsilon);
        if self.pooling.is_some() {
            return self.built([&tokens, &positions, &rows], &caches, &wanted, &next);
        }
        let mut logits = scaled(self.output.product(&wanted, None), self.description.logit_scale);
        if let Some(cap) = self.description.logit_cap {
            logits = (logits * (1.0 / cap)).tanh() * cap;
        }
        self.built([&tokens, &positions, &rows], &caches, &logits, &next)
    }

    fn built(
        &self,
        inputs: [&Tensor; 3],
        caches: &[Tensor],
        result: &Tensor,
        next: &[Tensor],
    ) -> std::result::Result<Graph, TensorError> {
        let links = self.links();
        let mut outputs = vec![(self.result(), result)];
        outputs.extend(links.iter().map(|(_, name)| name.as_str()).zip(next));
        let inputs: Vec<&Tensor> = inputs.into_iter().chain(caches).collect();
        build_graph_with("decoder", &inputs, &outputs)
    }

    /// The name of the first output: `logits`, or `rows` that become embeddings.
    pub fn result(&self) -> &'static str {
        if self.pooling.is_some() { "rows" } else { "logits" }
    }

    /// Numbers that a row of the first output has.
    pub fn result_width(&self) -> usize {
        if self.pooling.is_some() {
            self.config.width
        } else {
            self.config.vocabulary
        }
    }

    /// Attention of new tokens `[S, width]`, and both caches with them.
    #[track_caller]
    fn attention(
        &self,
        block: &Block,
        h: &Tensor,
        tables: Option<&[Tensor; 2]>,
        window: Option<i64>,
        caches: [&Tensor; 2],
        places: &[Tensor; 2],
        seen: &Dim,
    ) -> (Tensor, [Tensor; 2]) {
        let config = &self.config;
        let x = self.normed(h, block.pre_norms.as_ref().map(|norms| &norms[0]));
        // [S, heads · length] to [1, heads, S, length], with each head normalised and turned where that is asked for.
        let heads = |projection: &Projection, count: usize, norm: Option<&Norm>| {
            let (all, each) = match self.description.head_norms {
                HeadNorms::All => (norm, None),
                HeadNorms::Each | HeadNorms::Without => (None, norm),
            };
            let together = self.normed(&projection.of(&x), all);
            let apart = self.normed(&together.unflatten(-1, shape![count, -1]), each);
            apart.transpose(0, 1).unsqueeze(0)
        };
        let turn = |x: &Tensor| match tables {
            Some(tables) => rotate(x, tables, config.rotated, config.key_length),
            None => x.clone(),
        };
        let [query_norm, key_norm] = [0, 1].map(|at| block.head_norms.as_ref().map(|norms| &norms[at]));
        let q = turn(&heads(&block.query, config.heads, query_norm));
        let k = turn(&heads(&block.key, config.kv_heads, key_norm));
        let v = heads(&block.value, config.kv_heads, None);
        let kept = [
            caches[0].scatter(2, &places[0], &k),
            caches[1].scatter(2, &places[1], &v),
        ];
        let [keys, values] = [&kept[0], &kept[1]].map(|cache| cache.narrow(2, 0, seen.clone()));
        let scores = Scores {
            scale: self.description.score_scale,
            cap: self.description.score_cap,
            window,
            sinks: block.sinks.as_ref(),
        };
        let mixed = attend(&q, &keys, &values, scores)
            .squeeze(0)
            .transpose(0, 1)
            .flatten(-2, -1);
        let out = block.output.of(&mixed);
        let out = self.normed(&out, block.post_norms.as_ref().map(|norms| &norms[0]));
        (out, kept)
    }

    /// A norm, where there is one.
    #[track_caller]
    fn normed(&self, x: &Tensor, norm: Option<&Norm>) -> Tensor {
        match norm {
            Some(norm) => norm.of(x, self.config.epsilon),
            None => x.clone(),
        }
    }

    /// `down(act(gate · x) ⊙ up · x)` of a norm of `h`, or without a gate `down(act(up · x))`.
    #[track_caller]
    fn feed_forward(&self, block: &Block, h: &Tensor) -> Tensor {
        let x = self.normed(h, block.pre_norms.as_ref().map(|norms| &norms[1]));
        let activation = self.description.activation;
        let out = match &block.network {
            Network::Mixture(experts) => experts.of(&x),
            Network::One {
                gate: Some(gate),
                up,
                down,
            } => down.of(&activation.gated(&gate.product(&x, None), &up.of(&x))),
            Network::One { gate: None, up, down } => down.of(&activation.of(&up.of(&x))),
        };
        self.normed(&out, block.post_norms.as_ref().map(|norms| &norms[1]))
    }
}

/// A factor, where there is one.
#[track_caller]
fn scaled(x: Tensor, factor: f64) -> Tensor {
    if factor == 1.0 { x } else { x * factor }
}
