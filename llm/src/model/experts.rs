//! Mixtures of experts: a router gives each token to a few of many feed-forward networks (Shazeer et al., 2017).
//!
//! The experts of a layer are stacked. A token's row is multiplied by those that it chose, and reads no other.

use graphc::frontend::tensor::Tensor;

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
            ("expert_gating_func", "1, a softmax over all experts, is supported"),
            ("expert_shared_count", "shared experts of this kind are not supported"),
            (
                "leading_dense_block_count",
                "layers without experts are not supported in a mixture",
            ),
        ] {
            let nothing = u64::from(name == "expert_gating_func");
            if keys.has(name) && keys.count(name)? != nothing {
                return Err(keys.refuse(name, keys.count(name)?, wanted));
            }
        }
        Ok(Mixture {
            count,
            used,
            inner: keys.size_or("expert_feed_forward_length", inner)?,
            normalised,
            shared: None,
        })
    }
}

/// The experts of a layer.
#[derive(Clone, Debug)]
pub struct Experts {
    mixture: Mixture,
    router: Matrix,
    /// Gates, ups and downs, stacked.
    experts: [Matrix; 3],
    /// The weights of the sigmoid, `[1, width]`, and the expert's own.
    shared: Option<(Tensor, [Matrix; 3])>,
}

impl Experts {
    pub fn load(loader: &mut Loader<'_>, config: &Config, mixture: Mixture, layer: usize) -> Result<Experts> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let Mixture { count, inner, .. } = mixture;
        let width = config.width;
        let router = loader.matrix(&name("ffn_gate_inp"), count, width, &Rows::All)?;
        let gates = loader.stack(&name("ffn_gate_exps"), [count, inner, width])?;
        let ups = loader.stack(&name("ffn_up_exps"), [count, inner, width])?;
        let downs = loader.stack(&name("ffn_down_exps"), [count, width, inner])?;
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
            experts: [gates, ups, downs],
            shared,
        })
    }

    /// The mixture of `x` `[S, width]`.
    #[track_caller]
    pub fn of(&self, x: &Tensor) -> Tensor {
        let all = self.router.product(x, None).softmax(-1);
        let (mut chosen, places) = all.topk(-1, self.mixture.used as i64);
        if self.mixture.normalised {
            // llama.cpp's least sum: that of the smallest normal number in f16.
            chosen = &chosen / chosen.sum_keep([-1]).maximum(6.103_515_625e-5);
        }
        // A row [S, 1, 1, width] meets the matrices of its experts, [S, used, …].
        let [gates, ups, downs] = &self.experts;
        let row = x.unsqueeze(1).unsqueeze(1);
        let inner = gates.product_of_chosen(&row, &places).silu() * ups.product_of_chosen(&row, &places);
        let each = downs.product_of_chosen(&inner, &places).squeeze(2);
        let sum = (each * chosen.unsqueeze(-1)).sum([1]);
        let shared = self.shared.as_ref().map(|(sigmoid, expert)| {
            let weight = x.linear(sigmoid, None).sigmoid();
            network(expert, x) * weight
        });
        match shared {
            Some(shared) => sum + shared,
            None => sum,
        }
    }
}

/// `down(silu(gate · x) ⊙ up · x)`.
#[track_caller]
fn network([gate, up, down]: &[Matrix; 3], x: &Tensor) -> Tensor {
    let inner = gate.product(x, None).silu() * up.product(x, None);
    down.product(&inner, None)
}
