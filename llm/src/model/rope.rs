//! Rotary position embedding: the frequencies, with every way of stretching them that files name.

use graphc::frontend::tensor::{Tensor, apply_rotary, cat};
use graphc::ir::DType;

use crate::error::Result;
use crate::loader::{Config, Keys};

/// The frequencies of a rotary embedding, and the factor of its cosines and sines.
#[derive(Clone, PartialEq, Debug)]
pub struct Rope {
    /// Radians from one position to the next, of each pair.
    pub frequencies: Vec<f32>,
    pub magnitude: f64,
}

impl Rope {
    /// `base^(−2i/n)`, divided by a factor for each pair.
    pub fn new(rotated: usize, base: f64, factor: impl Fn(usize) -> f64) -> Rope {
        let exponent = |pair: usize| -2.0 * pair as f64 / rotated as f64;
        Rope {
            frequencies: (0..rotated / 2)
                .map(|i| (base.powf(exponent(i)) / factor(i)) as f32)
                .collect(),
            magnitude: 1.0,
        }
    }

    /// The embedding that the keys `rope.*` ask for: without scaling, linear, or YaRN (Peng et al., 2023). `factors`
    /// divide the frequencies as they are.
    ///
    /// # Errors
    /// Keys of other types; a kind of scaling that is not known.
    pub fn read(keys: &Keys<'_>, config: &Config, factors: Option<&[f32]>) -> Result<Rope> {
        let base = keys.number_or("rope.freq_base", 10_000.0)?;
        if base <= 0.0 {
            return Err(keys.refuse("rope.freq_base", base, "a number above 0 is wanted"));
        }
        let kind = keys.text("rope.scaling.type")?.unwrap_or("linear");
        let stretch = match keys.has("rope.scaling.factor") {
            true => keys.number("rope.scaling.factor")?,
            false => keys.number_or("rope.scale_linear", 1.0)?,
        };
        // Converters write 0 for none.
        let stretch = if stretch == 0.0 { 1.0 } else { stretch };
        let own = |pair: usize| factors.map_or(1.0, |factors| f64::from(factors[pair]));
        match kind {
            "none" => Ok(Rope::new(config.rotated, base, own)),
            "linear" => Ok(Rope::new(config.rotated, base, |pair| own(pair) * stretch)),
            "yarn" => Rope::yarn(keys, config, base, stretch),
            // Its factors are tensors, which the architecture reads.
            "longrope" if factors.is_some() => {
                let rope = Rope::new(config.rotated, base, own);
                let magnitude = keys.number_or("rope.scaling.attn_factor", 1.0)?;
                Ok(Rope { magnitude, ..rope })
            }
            other => {
                let wanted =
                    "scaling by none, linear and yarn is supported, and longrope where the file has its factors";
                Err(keys.refuse("rope.scaling.type", other, wanted))
            }
        }
    }

    fn yarn(keys: &Keys<'_>, config: &Config, base: f64, stretch: f64) -> Result<Rope> {
        let original = keys.size_or("rope.scaling.original_context_length", config.context)? as f64;
        let fast = keys.number_or("rope.scaling.yarn_beta_fast", 32.0)?;
        let slow = keys.number_or("rope.scaling.yarn_beta_slow", 1.0)?;
        let mix = keys.number_or("rope.scaling.yarn_ext_factor", 1.0)?;
        let rotated = config.rotated as f64;
        let pair_at = |turns: f64| rotated * (original / (turns * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln());
        let low = pair_at(fast).floor().max(0.0);
        let high = pair_at(slow).ceil().min(rotated - 1.0);
        let factor = |pair: usize| {
            let ramp = 1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            // Of the frequency: as it is where it turns often, stretched where it does not.
            let kept = ramp * mix;
            1.0 / ((1.0 - kept) / stretch + kept)
        };
        let rope = Rope::new(config.rotated, base, factor);
        let magnitude = keys.number_or("rope.scaling.attn_factor", 1.0)? * (1.0 + 0.1 * stretch.max(1.0).ln());
        Ok(Rope { magnitude, ..rope })
    }

    /// Cosines and sines of integer positions `[n]`: each `[n, rotated]`, in `f32`, both halves alike.
    #[track_caller]
    pub fn tables(&self, positions: &Tensor) -> [Tensor; 2] {
        let frequencies = Tensor::from_slice(&self.frequencies, [self.frequencies.len()]);
        let angles = positions.cast(DType::F32).unsqueeze(-1) * frequencies;
        let angles = cat(&[&angles, &angles], -1);
        [angles.cos(), angles.sin()].map(|table| {
            if self.magnitude == 1.0 {
                table
            } else {
                table * self.magnitude
            }
        })
    }
}

/// Turns the first elements of heads `[…, n, width]`, as many as the tables have.
#[track_caller]
pub fn rotate(x: &Tensor, [cos, sin]: &[Tensor; 2], rotated: usize, width: usize) -> Tensor {
    if rotated == width {
        return apply_rotary(x, cos, sin);
    }
    let [turned, rest] = x.split(-1, [rotated as i64, (width - rotated) as i64]);
    cat(&[&apply_rotary(&turned, cos, sin), &rest], -1)
}
