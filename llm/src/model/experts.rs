//! Mixtures of experts: a router gives each token to a few of many feed-forward networks (Shazeer et al., 2017).
//!
//! On the CPU the experts of a layer are stacked: a token's row is multiplied by those that it chose, and reads no
//! other. Elsewhere all are computed for all tokens, and those that a token did not choose count nothing: the numbers
//! are those of the mixture, but a token reads the weights of all experts.

use graphc::frontend::tensor::Tensor;
use graphc::ir::{DType, Shape};

use super::description::Activation;
use crate::error::Result;
use crate::loader::{Config, Keys, Loader, Matrix, Rows};

/// The sizes of a mixture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mixture {
    pub count: usize,
    /// Experts that a token chooses.
    pub used: usize,
    /// Inner width of an expert.
    pub inner: usize,
    /// Whether the weights of a token's experts add up to 1; else they are their probabilities among all.
    pub normalised: bool,
    /// Whether the router and the experts have biases.
    pub biases: bool,
    pub activation: Activation,
    /// Inner width of an expert that all tokens have besides, weighted by a sigmoid.
    pub shared: Option<usize>,
}

impl Mixture {
    /// Reads `expert_count`, `expert_used_count` and `expert_feed_forward_length`; the last one's default is `inner`.
    ///
    /// # Errors
    /// Keys that are missing or of another type; more chosen experts than there are; ways to choose that are not known.
    pub fn read(keys: &Keys<'_>, inner: usize, normalised: bool) -> Result<Mixture> {
        let (count, used) = (keys.size("expert_count")?, keys.size("expert_used_count")?);
        if used > count {
            let wanted = format!("there are {count} experts");
            return Err(keys.refuse("expert_used_count", used, &wanted));
        }
        for (name, wanted) in [
            ("expert_gating_func", "a softmax, 1 or 3, is supported"),
            ("expert_shared_count", "shared experts of this kind are not supported"),
            (
                "leading_dense_block_count",
                "layers without experts are not supported in a mixture",
            ),
        ] {
            let nothing: &[u64] = if name == "expert_gating_func" { &[1, 3] } else { &[0] };
            if keys.has(name) && !nothing.contains(&keys.count(name)?) {
                return Err(keys.refuse(name, keys.count(name)?, wanted));
            }
        }
        Ok(Mixture {
            count,
            used,
            inner: keys.size_or("expert_feed_forward_length", inner)?,
            // A softmax over the chosen is their share of one over all.
            normalised: normalised || (keys.has("expert_gating_func") && keys.count("expert_gating_func")? == 3),
            biases: false,
            activation: Activation::Silu,
            shared: None,
        })
    }
}

/// Gates, ups and downs.
#[derive(Clone, Debug)]
enum Networks {
    Stacked([Matrix; 3]),
    /// Those of each expert.
    Apart(Vec<[Matrix; 3]>),
}

/// The experts of a layer.
#[derive(Clone, Debug)]
pub struct Experts {
    mixture: Mixture,
    router: Matrix,
    router_bias: Option<Tensor>,
    /// Biases of gates, ups and downs, `[count, outputs]`.
    biases: Option<[Matrix; 3]>,
    experts: Networks,
    /// The weights of the sigmoid, `[1, width]`, and the expert's own.
    shared: Option<(Tensor, [Matrix; 3])>,
}

impl Experts {
    pub fn load(loader: &mut Loader<'_>, config: &Config, mixture: Mixture, layer: usize) -> Result<Experts> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let Mixture { count, inner, .. } = mixture;
        let width = config.width;
        let router = loader.matrix(&name("ffn_gate_inp"), count, width, &Rows::All)?;
        let parts = ["gate", "up", "down"].map(|part| name(&format!("ffn_{part}_exps")));
        let shapes = [[count, inner, width], [count, inner, width], [count, width, inner]];
        let is_chosen = |(part, [_, outputs, _]): (&String, [usize; 3])| loader.chooses(part, outputs);
        let experts = if parts.iter().zip(shapes).all(is_chosen) {
            let mut stack = |at: usize| loader.stack(&parts[at], shapes[at]);
            Networks::Stacked([stack(0)?, stack(1)?, stack(2)?])
        } else {
            let mut all = |at: usize| loader.matrices(&parts[at], shapes[at]);
            let each = all(0)?.into_iter().zip(all(1)?).zip(all(2)?);
            Networks::Apart(each.map(|((gate, up), down)| [gate, up, down]).collect())
        };
        let bias = |part: &str| format!("blk.{layer}.{part}.bias");
        let (router_bias, biases) = match mixture.biases {
            false => (None, None),
            true => {
                let mut all = |part: &str, outputs| loader.matrix(&bias(part), count, outputs, &Rows::All);
                let biases = [
                    all("ffn_gate_exps", inner)?,
                    all("ffn_up_exps", inner)?,
                    all("ffn_down_exps", width)?,
                ];
                (Some(loader.vector(&bias("ffn_gate_inp"), count)?), Some(biases))
            }
        };
        let shared = match mixture.shared {
            None => None,
            Some(inner) => {
                let sigmoid = loader.vector(&name("ffn_gate_inp_shexp"), width)?.unsqueeze(0);
                let gate = loader.matrix(&name("ffn_gate_shexp"), inner, width, &Rows::All)?;
                let up = loader.matrix(&name("ffn_up_shexp"), inner, width, &Rows::All)?;
                let down = loader.matrix(&name("ffn_down_shexp"), width, inner, &Rows::All)?;
                Some((sigmoid, [gate, up, down]))
            }
        };
        Ok(Experts {
            mixture,
            router,
            router_bias,
            biases,
            experts,
            shared,
        })
    }

    /// The mixture of `x` `[S, width]`.
    #[track_caller]
    pub fn of(&self, x: &Tensor) -> Tensor {
        let all = self.router.product(x, self.router_bias.as_ref()).softmax(-1);
        let (mut chosen, places) = all.topk(-1, self.mixture.used as i64);
        if self.mixture.normalised {
            // llama.cpp's least sum: that of the smallest normal number in f16.
            chosen = &chosen / chosen.sum_keep([-1]).maximum(6.103_515_625e-5);
        }
        let sum = match &self.experts {
            Networks::Stacked(stacks) => self.of_chosen(stacks, x, &chosen, &places),
            Networks::Apart(each) => self.of_all(each, x, &chosen, &places),
        };
        let shared = self.shared.as_ref().map(|(sigmoid, expert)| {
            let weight = x.linear(sigmoid, None).sigmoid();
            network(expert, x) * weight
        });
        match shared {
            Some(shared) => sum + shared,
            None => sum,
        }
    }

    /// The sum over the experts that a token chose.
    #[track_caller]
    fn of_chosen(&self, stacks: &[Matrix; 3], x: &Tensor, chosen: &Tensor, places: &Tensor) -> Tensor {
        // A row [S, 1, 1, width] meets the matrices of its experts, [S, used, …].
        let product = |part: usize, x: &Tensor| {
            let product = stacks[part].product_of_chosen(x, places);
            match &self.biases {
                None => product,
                Some(biases) => product + biases[part].look_up(places).unsqueeze(2),
            }
        };
        let row = x.unsqueeze(1).unsqueeze(1);
        let inner = self.mixture.activation.gated(&product(0, &row), &product(1, &row));
        let each = product(2, &inner).squeeze(2);
        (each * chosen.unsqueeze(-1)).sum([1])
    }

    /// The sum over all experts, of which those count nothing that a token did not choose.
    #[track_caller]
    fn of_all(&self, each: &[[Matrix; 3]], x: &Tensor, chosen: &Tensor, places: &Tensor) -> Tensor {
        let Ok([tokens, _]) = x.dims::<2>() else {
            return x.clone();
        };
        let shape = Shape(vec![tokens, (self.mixture.count as i64).into()]);
        let weights = Tensor::zeros(DType::F32, shape).scatter(-1, places, chosen);
        let mut sum: Option<Tensor> = None;
        for (at, [gate, up, down]) in each.iter().enumerate() {
            let bias = |part: usize| self.biases.as_ref().map(|biases| biases[part].row(at));
            let [gate_bias, up_bias, down_bias] = [0, 1, 2].map(bias);
            let (gate, up) = (gate.product(x, gate_bias.as_ref()), up.product(x, up_bias.as_ref()));
            let inner = self.mixture.activation.gated(&gate, &up);
            let part = down.product(&inner, down_bias.as_ref()) * weights.narrow(-1, at as i64, 1);
            sum = Some(match sum {
                Some(sum) => sum + part,
                None => part,
            });
        }
        // There is an expert: counts are 1 or more.
        sum.unwrap_or_else(|| x.clone())
    }
}

/// `down(silu(gate · x) ⊙ up · x)`.
#[track_caller]
fn network([gate, up, down]: &[Matrix; 3], x: &Tensor) -> Tensor {
    let inner = gate.product(x, None).silu() * up.product(x, None);
    down.product(&inner, None)
}
