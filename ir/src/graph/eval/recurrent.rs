//! Recurrent layers, step by step from their definition.

use super::array::Array;
use crate::graph::recurrent::{Activation, Cell, Recurrent};

/// One row's state and the numbers that steps need.
struct Row<'a> {
    layer: &'a Recurrent,
    /// `[G·H, H]`
    weights: &'a [f64],
    bias: Option<&'a [f64]>,
    peepholes: Option<&'a [f64]>,
    hidden: Vec<f64>,
    cell: Vec<f64>,
}

impl Row<'_> {
    fn clipped(&self, x: f64) -> f64 {
        match self.layer.clip {
            // NaN stays NaN.
            Some(clip) if !x.is_nan() => x.max(-clip.as_f64()).min(clip.as_f64()),
            _ => x,
        }
    }

    fn gate(&self, f: &Activation, x: f64) -> f64 {
        f.at(self.clipped(x))
    }

    /// `Σ R[gate·H + j, k] · state[k]`
    fn product(&self, gate: usize, j: usize, state: &[f64]) -> f64 {
        let n = state.len();
        let row = &self.weights[(gate * n + j) * n..][..n];
        row.iter().zip(state).map(|(w, s)| w * s).sum()
    }

    fn peephole(&self, part: usize, j: usize, cell: f64) -> f64 {
        self.peepholes.map_or(0.0, |p| p[part * self.hidden.len() + j] * cell)
    }

    fn step(&mut self, x: &[f64]) {
        let n = self.hidden.len();
        let [f, g, h] = &self.layer.activations;
        let old = self.hidden.clone();
        let seen = self.layer.multiplied(&old);
        match self.layer.cell {
            Cell::Rnn => {
                for (j, &x) in x.iter().enumerate().take(n) {
                    self.hidden[j] = self.gate(f, x + self.product(0, j, &seen));
                }
            }
            Cell::Gru { reset_after } => {
                let reset: Vec<f64> = (0..n)
                    .map(|j| self.gate(f, x[n + j] + self.product(1, j, &seen)))
                    .collect();
                let kept: Vec<f64> = old.iter().zip(&reset).map(|(h, r)| h * r).collect();
                let kept = self.layer.multiplied(&kept);
                for j in 0..n {
                    let update = self.gate(f, x[j] + self.product(0, j, &seen));
                    let own = match reset_after {
                        true => reset[j] * (self.product(2, j, &seen) + self.bias.map_or(0.0, |b| b[j])),
                        false => self.product(2, j, &kept),
                    };
                    let new = self.gate(g, x[2 * n + j] + own);
                    self.hidden[j] = (1.0 - update) * new + update * old[j];
                }
            }
            Cell::Lstm { input_forget, .. } => {
                for j in 0..n {
                    let cell = self.cell[j];
                    let sum = |gate: usize| x[gate * n + j] + self.product(gate, j, &seen);
                    let input = self.gate(f, sum(0) + self.peephole(0, j, cell));
                    let forget = match input_forget {
                        true => 1.0 - input,
                        false => self.gate(f, sum(2) + self.peephole(2, j, cell)),
                    };
                    let new = forget * cell + input * self.gate(g, sum(3));
                    let output = self.gate(f, sum(1) + self.peephole(1, j, new));
                    self.cell[j] = new;
                    self.hidden[j] = output * h.at(new);
                }
            }
        }
    }
}

pub(super) fn recurrent(layer: &Recurrent, operands: &[&Array]) -> Array {
    let x = operands[0];
    let wide = operands[2].shape[1] * layer.states() as usize;
    let mut out = Vec::with_capacity(x.shape[0] * x.shape[1] * wide);
    for (hidden, cell) in states(layer, operands) {
        out.extend(hidden);
        if layer.states() == 2 {
            out.extend(cell);
        }
    }
    Array::float(x.dtype, vec![x.shape[0], x.shape[1], wide], out)
}

/// The hidden and the cell state of each row at each step, steps outermost; zeros beyond a row's length.
pub(crate) fn states(layer: &Recurrent, operands: &[&Array]) -> Vec<(Vec<f64>, Vec<f64>)> {
    let places = layer.places();
    let x = operands[0];
    let [steps, batch, width] = [x.shape[0], x.shape[1], x.shape[2]];
    let n = operands[2].shape[1];
    let inputs = x.to_f64();
    let (weights, first) = (operands[1].to_f64(), operands[2].to_f64());
    let other = |place: Option<usize>| place.map(|at| operands[at].to_f64());
    let (cell, bias, peepholes) = (other(places.cell), other(places.bias), other(places.peepholes));
    let lengths = places.lengths.map(|at| operands[at].to_i64());
    let mut out = vec![(vec![0.0; n], vec![0.0; n]); steps * batch];
    for b in 0..batch {
        let mut row = Row {
            layer,
            weights: &weights,
            bias: bias.as_deref(),
            peepholes: peepholes.as_deref(),
            hidden: first[b * n..][..n].to_vec(),
            cell: cell.as_ref().map(|c| c[b * n..][..n].to_vec()).unwrap_or_default(),
        };
        let length = lengths.as_ref().map_or(steps as i64, |l| l[b]);
        for at in 0..steps {
            let t = if layer.reverse { steps - 1 - at } else { at };
            if t as i64 >= length {
                continue;
            }
            row.step(&inputs[(t * batch + b) * width..][..width]);
            out[t * batch + b] = (row.hidden.clone(), row.cell.clone());
        }
    }
    out
}
