//! Runs a model on calibration data, on the CPU, with more outputs than it has: what layers are given, or sums over it.

use std::collections::HashMap;
use std::sync::Arc;

use indexmap::IndexMap;
use ir::op::{Contract, ReduceOp, UnaryOp, View};
use ir::{DType, Dim, Graph, HostTensor, Op, Origin, Value};
use passes::OptLevel;
use passes::quantize::recipe::{Layers, Moments, Range};
use runtime::{Executable, LoadOptions};

use super::histogram::{Histogram, Method};
use super::{Inputs, Progress};
use crate::driver::{self, BuildOptions};
use crate::error::{Error, Result};
use crate::session::cpu_device;

/// Names of outputs that are added; no model's own begins so.
pub(super) const PREFIX: &str = "\u{1}quantize.";

/// What calibration runs share.
pub(super) struct Calibration<'a> {
    pub graph: &'a Graph,
    pub samples: &'a [Inputs],
    pub threads: usize,
    /// Bytes of the values that one run gives out besides the model's own outputs.
    pub memory: usize,
    pub progress: &'a dyn Progress,
}

/// Makes a graph ready to run on the CPU.
pub(super) fn executable(graph: &Graph, threads: usize) -> Result<Executable> {
    let options = BuildOptions::new(vec![ir::Target::cpu()], OptLevel::O2);
    let program = driver::build(graph, &options)?.program;
    let load = LoadOptions {
        threads,
        ..LoadOptions::default()
    };
    Ok(Executable::load_on(&cpu_device(), Arc::new(program), 0, &load)?)
}

impl Calibration<'_> {
    /// Runs a graph on each sample and hands the outputs on.
    pub fn run(
        &self,
        what: &'static str,
        graph: &Graph,
        mut each: impl FnMut(IndexMap<String, HostTensor>) -> Result<()>,
    ) -> Result<()> {
        self.progress.step(what, 0, self.samples.len());
        let executable = executable(graph, self.threads)?;
        for (done, sample) in self.samples.iter().enumerate() {
            each(executable.run(sample)?)?;
            self.progress.step(what, done + 1, self.samples.len());
        }
        Ok(())
    }

    /// Returns the range of each layer's operand, by the layer's name.
    pub fn ranges(&self, layers: &Layers, method: Method, symmetric: bool) -> Result<IndexMap<String, Range>> {
        let operands = self.operands(layers);
        let mut graph = self.graph.clone();
        for (index, value) in operands.values().enumerate() {
            for (op, end) in [(ReduceOp::Min, "low"), (ReduceOp::Max, "high")] {
                let axes = (0..graph.ty(*value).rank()).collect();
                let fold = Op::Reduce {
                    op,
                    axes,
                    keep_dims: false,
                };
                let folded = add(&mut graph, fold, &[*value])?;
                graph.add_output(format!("{PREFIX}{index}.{end}"), folded);
            }
        }
        let mut ranges = vec![(f64::INFINITY, f64::NEG_INFINITY); operands.len()];
        self.run("ranges of operands", &graph, |outputs| {
            for (index, (low, high)) in ranges.iter_mut().enumerate() {
                // NaN stays: a minimum would leave it out.
                for (end, at) in [("low", &mut *low), ("high", &mut *high)] {
                    let number = outputs.get(&format!("{PREFIX}{index}.{end}")).map(HostTensor::to_f64);
                    let number = number.and_then(|n| n.first().copied()).unwrap_or(f64::NAN);
                    let further = if end == "low" { number < *at } else { number > *at };
                    if number.is_nan() || further {
                        *at = number;
                    }
                }
            }
            Ok(())
        })?;
        let mut found: Vec<Range> = ranges.into_iter().map(|(low, high)| Range { low, high }).collect();
        let finite = |r: &Range| r.low.is_finite() && r.high.is_finite();
        // What is not finite is an error of the layer, which is made where scales are.
        if !method.is_range() && found.iter().all(finite) {
            self.choose(&operands, &mut found, method, symmetric)?;
        }
        let at = |value: &Value| operands.values().position(|v| v == value).unwrap_or_default();
        let named = layers.found.iter().map(|layer| {
            let operand = self.graph.node(layer.node).operands[0];
            (layer.name.clone(), found[at(&operand)])
        });
        Ok(named.collect())
    }

    /// Narrows the ranges by histograms.
    fn choose(
        &self,
        operands: &IndexMap<Value, Value>,
        ranges: &mut [Range],
        method: Method,
        symmetric: bool,
    ) -> Result<()> {
        let values: Vec<Value> = operands.values().copied().collect();
        for chunk in self.chunks(&values, |value| self.bytes(value))? {
            let mut graph = self.graph.clone();
            for index in &chunk {
                graph.add_output(format!("{PREFIX}{index}"), values[*index]);
            }
            let mut histograms: Vec<Histogram> = chunk.iter().map(|index| Histogram::new(ranges[*index])).collect();
            self.run("histograms of operands", &graph, |outputs| {
                for (index, histogram) in chunk.iter().zip(&mut histograms) {
                    if let Some(tensor) = outputs.get(&format!("{PREFIX}{index}")) {
                        histogram.add(tensor.to_f32().into_iter());
                    }
                }
                Ok(())
            })?;
            for (index, histogram) in chunk.iter().zip(&histograms) {
                ranges[*index] = histogram.choose(method, symmetric);
            }
        }
        Ok(())
    }

    /// Calls `each` with `Σ xᵀx` of each operand of products, a matrix of the depth squared, and `Σ |x|`; and with the
    /// names of the products that share the operand.
    pub fn moments(&self, layers: &Layers, mut each: impl FnMut(&[&str], Moments<'_>) -> Result<()>) -> Result<()> {
        let products: Vec<(&str, Value, usize)> = layers
            .found
            .iter()
            .filter_map(|layer| {
                let node = self.graph.node(layer.node);
                let straight = matches!(&node.op, Op::Contract(c) if !c.transpose_lhs);
                straight.then(|| (layer.name.as_str(), node.operands[0], layer.summed()))
            })
            .collect();
        // Layers that read one operand, such as queries, keys and values, share a matrix.
        let mut depths: IndexMap<Value, usize> = IndexMap::new();
        for (_, value, depth) in &products {
            depths.insert(*value, *depth);
        }
        let values: Vec<Value> = depths.keys().copied().collect();
        for chunk in self.chunks(&values, |value| Ok(depths[&value].saturating_pow(2) * 12))? {
            let mut graph = self.graph.clone();
            for index in &chunk {
                let rows = rows(&mut graph, values[*index])?;
                let product = Op::Contract(Contract {
                    transpose_lhs: true,
                    transpose_rhs: false,
                    out: DType::F32,
                });
                let product = add(&mut graph, product, &[rows, rows])?;
                graph.add_output(format!("{PREFIX}{index}"), product);
                let magnitudes = add(&mut graph, Op::unary(UnaryOp::Abs), &[rows])?;
                let fold = Op::Reduce {
                    op: ReduceOp::Sum,
                    axes: vec![0],
                    keep_dims: false,
                };
                let magnitudes = add(&mut graph, fold, &[magnitudes])?;
                graph.add_output(format!("{PREFIX}{index}.magnitudes"), magnitudes);
            }
            let mut sums: HashMap<(usize, &str), Vec<f64>> = HashMap::new();
            self.run("products of operands", &graph, |outputs| {
                for (index, what) in chunk.iter().flat_map(|i| [(*i, ""), (*i, ".magnitudes")]) {
                    let Some(tensor) = outputs.get(&format!("{PREFIX}{index}{what}")) else {
                        continue;
                    };
                    let sum = sums
                        .entry((index, what))
                        .or_insert_with(|| vec![0.0; tensor.elements()]);
                    sum.iter_mut()
                        .zip(tensor.to_f32())
                        .for_each(|(s, v)| *s += f64::from(v));
                }
                Ok(())
            })?;
            for index in &chunk {
                let value = values[*index];
                let own = products.iter().filter(|(_, other, _)| *other == value);
                let names: Vec<&str> = own.map(|(name, ..)| *name).collect();
                if let (Some(sums), Some(magnitudes)) = (sums.get(&(*index, "")), sums.get(&(*index, ".magnitudes"))) {
                    let rows = self.elements(value)? / depths[&value].max(1);
                    let moments = Moments { sums, magnitudes, rows };
                    each(&names, moments)?;
                }
            }
        }
        Ok(())
    }

    /// The operands of layers, each once.
    fn operands(&self, layers: &Layers) -> IndexMap<Value, Value> {
        let operands = layers.found.iter().map(|layer| self.graph.node(layer.node).operands[0]);
        operands.map(|value| (value, value)).collect()
    }

    /// The bytes of a value at the sizes of the largest sample.
    fn bytes(&self, value: Value) -> Result<usize> {
        let most = self.each(&self.graph.ty(value).bytes())?.into_iter().max();
        Ok(most.unwrap_or(0))
    }

    /// The elements that a value has in all samples.
    fn elements(&self, value: Value) -> Result<usize> {
        Ok(self.each(&self.graph.ty(value).elements())?.into_iter().sum())
    }

    /// A size in each sample.
    fn each(&self, dim: &Dim) -> Result<Vec<usize>> {
        let one = |sample: &Inputs| {
            let shapes = sample
                .iter()
                .map(|(name, t)| (name.as_str(), t.shape.as_slice()))
                .collect();
            let bindings = self.graph.bind(&shapes);
            let bindings = bindings.map_err(|e| Error::Config(format!("--calibrate: {e}")))?;
            Ok(dim.eval(&bindings)?.max(0) as usize)
        };
        self.samples.iter().map(one).collect()
    }

    /// Splits values in runs whose bytes fit the memory, each with one value at least.
    fn chunks(&self, values: &[Value], bytes: impl Fn(Value) -> Result<usize>) -> Result<Vec<Vec<usize>>> {
        let (mut chunks, mut current, mut taken) = (Vec::new(), Vec::new(), 0usize);
        for (index, value) in values.iter().enumerate() {
            let bytes = bytes(*value)?;
            if !current.is_empty() && taken.saturating_add(bytes) > self.memory {
                chunks.push(std::mem::take(&mut current));
                taken = 0;
            }
            taken = taken.saturating_add(bytes);
            current.push(index);
        }
        chunks.extend((!current.is_empty()).then_some(current));
        Ok(chunks)
    }
}

fn add(graph: &mut Graph, op: Op, operands: &[Value]) -> Result<Value> {
    let added = graph.add(op, operands, Origin::Named("calibration".into()));
    added.map(Value::from).map_err(|error| {
        let origin = Origin::Named("calibration".into());
        let fault = passes::PassFault::Infer {
            origin,
            error: Box::new(error),
        };
        passes::quantize::recipe::QuantizeError::Rewrite(fault).into()
    })
}

/// A value as a matrix of f32 with its last axis as columns.
fn rows(graph: &mut Graph, value: Value) -> Result<Value> {
    let shape = graph.ty(value).shape.clone();
    let mut value = value;
    if shape.rank() != 2 {
        let (last, lead) = (shape[shape.rank() - 1].clone(), &shape[..shape.rank() - 1]);
        let count = lead.iter().fold(Dim::Const(1), |count, dim| count * dim.clone());
        value = add(graph, Op::View(View::Reshape(vec![count, last].into())), &[value])?;
    }
    match graph.ty(value).dtype {
        DType::F32 => Ok(value),
        _ => add(graph, Op::cast(DType::F32), &[value]),
    }
}
