//! Ranges of operands by what calibration saw: all of it, most of it, or what loses least when it is rounded to 8 bits.

use passes::quantize::recipe::Range;

/// How the range of an operand is chosen.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Method {
    /// From the smallest to the largest number.
    #[default]
    MinMax,
    /// Without this many percent of the numbers: half of them at each end.
    Percentile(f64),
    /// The range whose steps keep most of the distribution's information (the least Kullback–Leibler divergence).
    Entropy,
    /// The range with the least mean square of what rounding changes.
    Mse,
}

impl Method {
    /// Says whether the smallest and the largest number are all it needs.
    pub fn is_range(self) -> bool {
        self == Method::MinMax
    }
}

/// Bins of a histogram.
const BINS: usize = 2048;
/// Steps of the distribution that entropy compares with, for numbers on both sides of 0; those on one side have twice
/// as many.
const STEPS: usize = 128;

/// How often numbers fell into equal parts of a range.
#[derive(Clone, PartialEq, Debug)]
pub struct Histogram {
    range: Range,
    counts: Vec<u64>,
}

impl Histogram {
    /// An empty histogram of a range, which is finite.
    pub fn new(range: Range) -> Histogram {
        Histogram {
            range,
            counts: vec![0; BINS],
        }
    }

    /// Counts numbers.
    pub fn add(&mut self, numbers: impl Iterator<Item = f32>) {
        let width = (self.range.high - self.range.low) / BINS as f64;
        for number in numbers {
            let at = (f64::from(number) - self.range.low) / width;
            // A range of one number has a width of 0: it is the first bin.
            self.counts[(at as usize).min(BINS - 1)] += 1;
        }
    }

    /// Returns the middle of each bin with its count, where there is one.
    fn filled(&self) -> impl Iterator<Item = (f64, f64)> {
        let width = (self.range.high - self.range.low) / BINS as f64;
        let bins = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        bins.map(move |(i, count)| (self.range.low + (i as f64 + 0.5) * width, *count as f64))
    }

    /// Returns the range that a method chooses; `symmetric` says that it will be around 0.
    pub fn choose(&self, method: Method, symmetric: bool) -> Range {
        if self.range.low >= self.range.high {
            return self.range;
        }
        match method {
            Method::MinMax => self.range,
            Method::Percentile(percent) => self.percentile(percent),
            Method::Entropy => self.entropy(symmetric),
            Method::Mse => self.mse(symmetric),
        }
    }

    fn percentile(&self, percent: f64) -> Range {
        let total: u64 = self.counts.iter().sum();
        let outside = total as f64 * (100.0 - percent) / 200.0;
        let width = (self.range.high - self.range.low) / BINS as f64;
        let bins = |counts: &mut dyn Iterator<Item = &u64>| {
            let mut seen = 0.0;
            counts
                .take_while(|count| {
                    seen += **count as f64;
                    seen <= outside
                })
                .count() as f64
        };
        let (below, above) = (bins(&mut self.counts.iter()), bins(&mut self.counts.iter().rev()));
        let (low, high) = (self.range.low + below * width, self.range.high - above * width);
        match low < high {
            true => Range { low, high },
            false => self.range,
        }
    }

    /// Cuts at the distance from 0 at which the numbers inside, with those outside at the edge, differ least from what
    /// the steps keep of them.
    fn entropy(&self, symmetric: bool) -> Range {
        let reach = self.range.high.max(-self.range.low);
        let mut counts = vec![0.0; BINS];
        for (middle, count) in self.filled() {
            counts[((middle.abs() / reach * BINS as f64) as usize).min(BINS - 1)] += count;
        }
        // 0 is a step of every range: how many zeros there are, as behind a ReLU, says nothing of how far to reach.
        counts[0] = counts[1];
        let mut best = (f64::INFINITY, BINS);
        let one_sided = !symmetric && (self.range.low >= 0.0 || self.range.high <= 0.0);
        let steps = STEPS << u32::from(one_sided);
        for cut in (steps..=BINS).step_by(STEPS / 8) {
            let inside = &counts[..cut];
            let outside: f64 = counts[cut..].iter().sum();
            let divergence = divergence(inside, outside, steps);
            if divergence < best.0 {
                best = (divergence, cut);
            }
        }
        let reach = reach * best.1 as f64 / BINS as f64;
        Range {
            low: self.range.low.max(-reach),
            high: self.range.high.min(reach),
        }
    }

    fn mse(&self, symmetric: bool) -> Range {
        let bins: Vec<(f64, f64)> = self.filled().collect();
        let whole = Range {
            low: self.range.low.min(0.0),
            high: self.range.high.max(0.0),
        };
        let loss = |range: Range| -> f64 {
            let (scale, zero, low) = match symmetric {
                true => (range.high.max(-range.low) / 127.0, 0.0, -127.0),
                false => {
                    let scale = (range.high - range.low) / 255.0;
                    (scale, (-128.0 - range.low / scale).round_ties_even(), -128.0)
                }
            };
            if scale <= 0.0 {
                return f64::INFINITY;
            }
            let off = |x: f64| {
                let whole = ((x / scale).round_ties_even() + zero).clamp(low, 127.0);
                x - (whole - zero) * scale
            };
            bins.iter().map(|(x, count)| off(*x).powi(2) * count).sum()
        };
        let part = |low: f64, high: f64| Range {
            low: whole.low * low,
            high: whole.high * high,
        };
        let shares = || (1..=100).rev().map(|i| f64::from(i) / 100.0);
        let best = |candidates: &mut dyn Iterator<Item = (f64, f64)>| {
            let judged = candidates.map(|(low, high)| (loss(part(low, high)), low, high));
            let least = judged.reduce(|a, b| if b.0 < a.0 { b } else { a });
            least.map_or((1.0, 1.0), |(_, low, high)| (low, high))
        };
        // Both ends together, then each alone.
        let (low, high) = best(&mut shares().map(|share| (share, share)));
        let (low, high) = best(&mut shares().map(|share| (share, high)).chain([(low, high)]));
        let (low, high) = best(&mut shares().map(|share| (low, share)).chain([(low, high)]));
        part(low, high)
    }
}

/// `Σ p · ln(p / q)` of a distribution and of what stays of it in some steps, in each of which the bins that are not
/// empty share evenly.
fn divergence(inside: &[f64], outside: f64, steps: usize) -> f64 {
    let last = inside.len() - 1;
    let total: f64 = inside.iter().sum::<f64>() + outside;
    let kept: f64 = inside.iter().sum();
    if kept == 0.0 {
        return f64::INFINITY;
    }
    let mut sum = 0.0;
    for step in 0..steps {
        let (from, to) = (step * inside.len() / steps, (step + 1) * inside.len() / steps);
        let filled = inside[from..to].iter().filter(|c| **c > 0.0).count();
        let share = inside[from..to].iter().sum::<f64>() / filled.max(1) as f64;
        for (at, count) in inside.iter().enumerate().take(to).skip(from) {
            let p = count + if at == last { outside } else { 0.0 };
            if p > 0.0 {
                // A bin that only what is outside fills has nothing of its own in the step.
                let q = if *count > 0.0 { share } else { 1e-4 * kept / total };
                let (p, q) = (p / total, q / kept);
                sum += p * (p / q).ln();
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bell around 0 with two numbers far away.
    fn outliers() -> Histogram {
        let mut histogram = Histogram::new(Range {
            low: -40.0,
            high: 100.0,
        });
        let bell = (0..20_000).map(|i| {
            let unit = |seed: u64| {
                let bits = (i as u64 + 1).wrapping_mul(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                bits as f64 / (1u64 << 24) as f64
            };
            ([3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41]
                .map(unit)
                .iter()
                .sum::<f64>()
                - 6.0) as f32
        });
        histogram.add(bell.chain([-40.0, 100.0]));
        histogram
    }

    #[test]
    fn all_numbers_are_counted_and_the_ends_are_inside() {
        let histogram = outliers();
        assert_eq!(histogram.counts.iter().sum::<u64>(), 20_002);
        assert_eq!((histogram.counts[0], histogram.counts[BINS - 1]), (1, 1));
        assert_eq!(
            histogram.choose(Method::MinMax, false),
            Range {
                low: -40.0,
                high: 100.0
            }
        );
    }

    #[test]
    fn each_method_leaves_the_outliers_outside() {
        let histogram = outliers();
        for method in [Method::Percentile(99.9), Method::Entropy] {
            for symmetric in [false, true] {
                let range = histogram.choose(method, symmetric);
                assert!(range.low < -1.0 && range.low > -20.0, "{method:?}: {range:?}");
                assert!(range.high > 1.0 && range.high < 20.0, "{method:?}: {range:?}");
            }
        }
        // One number in ten thousand that is a hundred times as far costs more than all others: it stays nearer than at
        // the end.
        let range = histogram.choose(Method::Mse, false);
        assert!(range.low >= -40.0 && range.high < 100.0, "{range:?}");
    }

    #[test]
    fn the_least_mean_square_is_no_more_than_that_of_the_whole_range() {
        let histogram = outliers();
        let loss = |range: Range| -> f64 {
            let scale = (range.high - range.low) / 255.0;
            let zero = (-128.0 - range.low / scale).round_ties_even();
            let off = |x: f64| x - (((x / scale).round_ties_even() + zero).clamp(-128.0, 127.0) - zero) * scale;
            histogram.filled().map(|(x, count)| off(x).powi(2) * count).sum()
        };
        let (whole, chosen) = (loss(histogram.range), loss(histogram.choose(Method::Mse, false)));
        assert!(chosen < whole, "{chosen} and {whole}");
    }

    #[test]
    fn one_number_is_a_range() {
        let mut histogram = Histogram::new(Range { low: 2.0, high: 2.0 });
        histogram.add([2.0f32; 3].into_iter());
        for method in [Method::Percentile(99.0), Method::Entropy, Method::Mse] {
            assert_eq!(histogram.choose(method, false), Range { low: 2.0, high: 2.0 });
        }
    }
}
