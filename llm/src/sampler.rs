//! From logits to a token.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// How tokens are chosen. The steps are in this order: biases and penalties, then top-k, typical-p, top-p and min-p of
/// the probabilities, then the temperature.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits before a token is drawn; 0 takes the most probable one always.
    pub temperature: f32,
    /// Only so many of the most probable tokens are left; 0 leaves all.
    pub top_k: usize,
    /// Only the tokens are left whose surprise is nearest to the one to expect, as many as have this probability
    /// (Meister et al., 2022); 1 leaves all.
    pub typical_p: f32,
    /// Only the most probable tokens are left whose probabilities add up to this (Holtzman et al., 2020); 1 leaves all.
    pub top_p: f32,
    /// Only tokens are left that are at least that many times as probable as the most probable one; 0 leaves all.
    pub min_p: f32,
    /// Divides the positive logits, and multiplies the negative ones, of tokens that were there lately (Keskar et al.,
    /// 2019); 1 leaves them.
    pub repeat_penalty: f32,
    /// How many of the last tokens the penalty is for.
    pub repeat_last: usize,
    /// Is taken off the logits of tokens that were chosen before.
    pub presence_penalty: f32,
    /// Is taken off the logits of tokens that were chosen before, once for each time.
    pub frequency_penalty: f32,
    /// Is added to the logits of these tokens.
    pub biases: Vec<(u32, f32)>,
    /// The seed of what is drawn. Equal seeds give equal tokens, with one version of graphc.
    pub seed: u64,
}

impl Default for Sampling {
    /// The most probable token, always.
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            typical_p: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_last: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            biases: Vec::new(),
            seed: 0,
        }
    }
}

/// Tokens that are drawn before all are looked at.
const GUESSES: usize = 16;

/// Chooses tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: Sampling,
    random: StdRng,
    /// How often each token was chosen.
    chosen: BTreeMap<u32, u32>,
}

impl Sampler {
    pub fn new(options: Sampling) -> Sampler {
        let random = StdRng::seed_from_u64(options.seed);
        Sampler {
            options,
            random,
            chosen: BTreeMap::new(),
        }
    }

    /// Chooses a token by its logits, one for each token of the vocabulary; `before` are the tokens so far. NaN is
    /// never chosen while there is a number; of no logits, token 0 is.
    pub fn choose(&mut self, logits: &[f32], before: &[u32]) -> u32 {
        let mut logits = logits.to_vec();
        self.penalise(&mut logits, before);
        let token = self.draw(&logits);
        *self.chosen.entry(token).or_default() += 1;
        token
    }

    /// As [`Sampler::choose`], among tokens that are allowed; `None` where no token is.
    pub fn choose_allowed(
        &mut self,
        logits: &[f32],
        before: &[u32],
        mut is_allowed: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        let mut logits = logits.to_vec();
        self.penalise(&mut logits, before);
        // A model that follows its prompt mostly wants what is allowed: all tokens are looked at where it does not.
        for tries in 0..=GUESSES {
            let token = self.draw(&logits);
            let logit = logits
                .get_mut(token as usize)
                .filter(|logit| **logit > f32::NEG_INFINITY)?;
            if is_allowed(token) {
                *self.chosen.entry(token).or_default() += 1;
                return Some(token);
            }
            *logit = f32::NEG_INFINITY;
            if tries + 1 == GUESSES {
                for (token, logit) in (0..).zip(&mut logits) {
                    if *logit > f32::NEG_INFINITY && !is_allowed(token) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
        None
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let candidates = self.candidates(logits);
        if self.options.temperature <= 0.0 || candidates.len() <= 1 {
            return candidates.first().map_or(0, |(token, _)| *token);
        }
        let weights = softmax(&candidates, self.options.temperature);
        let mut left = self.random.random::<f64>() * weights.iter().sum::<f64>();
        for ((token, _), weight) in candidates.iter().zip(&weights) {
            left -= weight;
            if left < 0.0 {
                return *token;
            }
        }
        // Rounding has left a little: the first candidate has more than that.
        candidates[0].0
    }

    fn penalise(&self, logits: &mut [f32], before: &[u32]) {
        for (token, bias) in &self.options.biases {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        for (token, count) in &self.chosen {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit -= self.options.presence_penalty + *count as f32 * self.options.frequency_penalty;
            }
        }
        let penalty = self.options.repeat_penalty;
        if penalty == 1.0 {
            return;
        }
        let mut recent = before[before.len().saturating_sub(self.options.repeat_last)..].to_vec();
        recent.sort_unstable();
        recent.dedup();
        for token in recent {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit > 0.0 {
                    *logit / penalty
                } else {
                    *logit * penalty
                };
            }
        }
    }

    /// The tokens that may be drawn, the most probable first. There is at least one where there are logits.
    fn candidates(&self, logits: &[f32]) -> Vec<(u32, f32)> {
        let number = |logit: f32| if logit.is_nan() { f32::NEG_INFINITY } else { logit };
        let mut all: Vec<(u32, f32)> = (0u32..).zip(logits.iter().map(|logit| number(*logit))).collect();
        let order = |one: &(u32, f32), other: &(u32, f32)| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0));
        let kept = match (self.options.temperature <= 0.0, self.options.top_k) {
            (true, _) => 1,
            (false, 0) => all.len(),
            (false, k) => k.min(all.len()),
        };
        if kept > 0 && kept < all.len() {
            all.select_nth_unstable_by(kept - 1, order);
            all.truncate(kept);
        }
        all.sort_unstable_by(order);
        if self.options.typical_p < 1.0 && all.len() > 1 {
            typical(&mut all, self.options.typical_p);
            all.sort_unstable_by(order);
        }
        if self.options.top_p < 1.0 && all.len() > 1 {
            let weights = softmax(&all, 1.0);
            let wanted = f64::from(self.options.top_p) * weights.iter().sum::<f64>();
            let mut sum = 0.0;
            // The one that reaches the sum is in.
            let count = weights.iter().take_while(|weight| {
                let goes_on = sum < wanted;
                sum += **weight;
                goes_on
            });
            let count = count.count().max(1);
            all.truncate(count);
        }
        if self.options.min_p > 0.0 && !all.is_empty() {
            let least = all[0].1 + self.options.min_p.ln();
            let count = all.partition_point(|(_, logit)| *logit >= least).max(1);
            all.truncate(count);
        }
        all
    }
}

/// Leaves the candidates whose surprise is nearest to the entropy, until their probabilities add up to `wanted`.
fn typical(all: &mut Vec<(u32, f32)>, wanted: f32) {
    let weights = softmax(all, 1.0);
    let sum: f64 = weights.iter().sum();
    let surprise = |weight: f64| {
        if weight > 0.0 {
            -(weight / sum).ln()
        } else {
            f64::INFINITY
        }
    };
    let entropy: f64 = (weights.iter().filter(|weight| **weight > 0.0))
        .map(|weight| weight / sum * surprise(*weight))
        .sum();
    let mut places: Vec<usize> = (0..all.len()).collect();
    let distance = |place: usize| (surprise(weights[place]) - entropy).abs();
    places.sort_by(|one, other| distance(*one).total_cmp(&distance(*other)));
    let mut reached = 0.0;
    places.retain(|place| {
        let goes_on = reached < f64::from(wanted) * sum;
        reached += weights[*place];
        goes_on
    });
    *all = places.iter().map(|place| all[*place]).collect();
}

/// The logarithm of a token's probability, and the most probable tokens with theirs, by logits as they are.
pub fn log_probabilities(logits: &[f32], token: u32, most: usize) -> (f32, Vec<(u32, f32)>) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let log = |logit: f32| (f64::from(logit - largest) - sum.ln()) as f32;
    let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().map(|logit| log(*logit))).collect();
    let own = all.get(token as usize).map_or(f32::NEG_INFINITY, |(_, log)| *log);
    let order = |one: &(u32, f32), other: &(u32, f32)| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0));
    if most < all.len() {
        all.select_nth_unstable_by(most, order);
        all.truncate(most);
    }
    all.sort_unstable_by(order);
    (own, all)
}

/// Weights of candidates, the first of which is the largest; that one's is 1.
fn softmax(candidates: &[(u32, f32)], temperature: f32) -> Vec<f64> {
    let largest = candidates.first().map_or(0.0, |(_, logit)| f64::from(*logit));
    let weight = |(_, logit): &(u32, f32)| {
        let below = f64::from(*logit) - largest;
        // Two infinities are equal.
        if below.is_nan() {
            1.0
        } else {
            (below / f64::from(temperature)).exp()
        }
    };
    candidates.iter().map(weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The logits of probabilities 0.5, 0.3, 0.15 and 0.05, out of order.
    fn logits() -> Vec<f32> {
        [0.15f32, 0.5, 0.05, 0.3].iter().map(|p| p.ln() + 3.0).collect()
    }

    fn warm() -> Sampling {
        Sampling {
            temperature: 1.0,
            ..Sampling::default()
        }
    }

    #[test]
    fn what_is_not_allowed_is_never_chosen() {
        let mut sampler = Sampler::new(warm());
        for _ in 0..100 {
            assert_eq!(sampler.choose_allowed(&logits(), &[], |token| token == 2), Some(2));
        }
        let many: Vec<f32> = (0..1000u16).map(f32::from).collect();
        let mut greedy = Sampler::new(Sampling::default());
        assert_eq!(greedy.choose_allowed(&many, &[], |token| token < 7), Some(6));
        assert_eq!(greedy.choose_allowed(&many, &[], |token| token == 998), Some(998));
        assert_eq!(greedy.choose_allowed(&many, &[], |_| false), None);
        assert_eq!(sampler.choose_allowed(&logits(), &[], |_| false), None);
        assert_eq!(sampler.choose_allowed(&[], &[], |_| true), None);
    }

    /// How often each token comes in 4000 draws.
    fn shares(options: Sampling) -> Vec<f64> {
        let mut sampler = Sampler::new(options);
        let mut counts = vec![0.0; 4];
        for _ in 0..4000 {
            counts[sampler.choose(&logits(), &[]) as usize] += 1.0 / 4000.0;
        }
        counts
    }

    fn near(found: &[f64], wanted: &[f64]) {
        let is_near = found
            .iter()
            .zip(wanted)
            .all(|(a, b)| (a - b).abs() < 0.03 && (*b > 0.0 || *a == 0.0));
        assert!(is_near, "{found:?} {wanted:?}");
    }

    #[test]
    fn greedy_takes_the_largest_and_the_first_of_equal_ones() {
        let mut sampler = Sampler::new(Sampling::default());
        assert_eq!(sampler.choose(&logits(), &[]), 1);
        assert_eq!(sampler.choose(&[1.0, 2.0, 2.0], &[]), 1);
        assert_eq!(sampler.choose(&[f32::NAN, -1.0], &[]), 1);
        assert_eq!(sampler.choose(&[], &[]), 0);
    }

    #[test]
    fn draws_have_the_probabilities_of_the_logits() {
        near(&shares(warm()), &[0.15, 0.5, 0.05, 0.3]);
        // At half the temperature, probabilities are squared.
        let cold = Sampling {
            temperature: 0.5,
            ..warm()
        };
        let sum = 0.25 + 0.09 + 0.0225 + 0.0025;
        near(&shares(cold), &[0.0225 / sum, 0.25 / sum, 0.0025 / sum, 0.09 / sum]);
    }

    #[test]
    fn each_limit_leaves_the_tokens_that_it_says() {
        let two = [0.0, 0.5 / 0.8, 0.0, 0.3 / 0.8];
        near(&shares(Sampling { top_k: 2, ..warm() }), &two);
        // 0.5 alone is too little, 0.8 is enough.
        near(&shares(Sampling { top_p: 0.7, ..warm() }), &two);
        near(&shares(Sampling { top_p: 0.4, ..warm() }), &[0.0, 1.0, 0.0, 0.0]);
        // 0.3 is 0.6 times as probable as 0.5, 0.15 is 0.3 times.
        near(&shares(Sampling { min_p: 0.4, ..warm() }), &two);
    }

    #[test]
    fn the_penalty_is_for_the_last_tokens_alone() {
        let options = Sampling {
            repeat_penalty: 2.0,
            repeat_last: 2,
            ..Sampling::default()
        };
        let mut sampler = Sampler::new(options);
        assert_eq!(sampler.choose(&[3.0, 2.0, -1.0], &[0, 0]), 1);
        assert_eq!(sampler.choose(&[3.0, 2.0, -1.0], &[0, 2, 2]), 0);
        // A negative logit becomes smaller.
        assert_eq!(sampler.choose(&[-1.0, -1.5], &[0]), 1);
    }

    #[test]
    fn typical_tokens_are_those_of_the_expected_surprise() {
        // The entropy is 1.14: 0.3 (1.20) is nearest, then 0.5 (0.69) and 0.15 (1.90).
        near(
            &shares(Sampling {
                typical_p: 0.2,
                ..warm()
            }),
            &[0.0, 0.0, 0.0, 1.0],
        );
        near(
            &shares(Sampling {
                typical_p: 0.6,
                ..warm()
            }),
            &[0.0, 0.5 / 0.8, 0.0, 0.3 / 0.8],
        );
    }

    #[test]
    fn what_was_chosen_becomes_less_probable() {
        let draw = |options: Sampling| {
            let mut sampler = Sampler::new(options);
            (0..4)
                .map(|_| sampler.choose(&[3.0, 2.5, -1.0], &[]))
                .collect::<Vec<_>>()
        };
        let presence = Sampling {
            presence_penalty: 1.0,
            ..Sampling::default()
        };
        assert_eq!(draw(presence), [0, 1, 0, 0]);
        let frequency = Sampling {
            frequency_penalty: 1.0,
            ..Sampling::default()
        };
        assert_eq!(draw(frequency), [0, 1, 0, 1]);
        let biases = Sampling {
            biases: vec![(2, 10.0), (70, 1.0)],
            ..Sampling::default()
        };
        assert_eq!(draw(biases), [2, 2, 2, 2]);
    }

    #[test]
    fn log_probabilities_are_those_of_the_logits() {
        let (own, most) = log_probabilities(&logits(), 0, 2);
        assert!((own - 0.15f32.ln()).abs() < 1e-5, "{own}");
        assert_eq!(most.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 3]);
        assert!((most[1].1 - 0.3f32.ln()).abs() < 1e-5, "{most:?}");
        assert_eq!(log_probabilities(&logits(), 0, 9).1.len(), 4);
    }

    #[test]
    fn equal_seeds_give_equal_tokens() {
        let draw = |seed| {
            let mut sampler = Sampler::new(Sampling { seed, ..warm() });
            (0..50).map(|_| sampler.choose(&logits(), &[])).collect::<Vec<_>>()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }
}
