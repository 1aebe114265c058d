//! The text of a graph; [`parse`](super::parse) reads it back to the same graph.
//!
//! ```text
//! graph @mlp stage=import {
//!   symbol batch: 1..64 hint 8
//!   n0 = input "x" : f32[batch, 784]
//!   n1 = constant "fc.weight" [0.5, 1.0, ...] : f32[10, 784]
//!   n2 = contract n0, n1 {transpose_rhs} : f32[batch, 10] @ "fc"
//!   return n2 as "y"
//! }
//! ```
//!
//! Attributes that have their usual value, or that the result type says already (`cast`, `reshape`, a contraction's
//! `out`), are left out. A constant is `[…]`, `splat(…)` or `hex"…"`, whichever is the shortest that keeps every bit.

use std::fmt::{self, Write as _};

use super::op::*;
use super::{Check, ConstId, Constant, Graph, Node, NodeId, Origin, Stage};
use crate::data::HostTensor;
use crate::dim::{Dim, SymbolInfo};
use crate::entity::Entity;
use crate::library::LibraryOp;
use crate::types::{DType, Scalar};

/// How a graph is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrintOptions {
    /// Constants of more elements than this, unless all are equal, print as `elided`; the parser refuses such text.
    pub elide_above: Option<usize>,
    /// Leaves origins out.
    pub hide_origins: bool,
}

/// Most elements of a constant that a graph shows to people.
pub const SHOWN_ELEMENTS: usize = 64;

/// For people: constants of more than [`SHOWN_ELEMENTS`] elements are elided. [`print`] gives all of the text.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = PrintOptions {
            elide_above: Some(SHOWN_ELEMENTS),
            ..PrintOptions::default()
        };
        f.write_str(&print(self, options))
    }
}

/// Prints a graph.
pub fn print(graph: &Graph, options: PrintOptions) -> String {
    let mut out = String::new();
    let stage = match graph.stage {
        Stage::Import => "import",
        Stage::Core => "core",
    };
    let _ = writeln!(out, "graph @{} stage={stage} {{", name(&graph.name));
    for (symbol, info) in &graph.symbols {
        let _ = writeln!(out, "  symbol {symbol}: {}", bounds(info));
    }
    for a in &graph.assumptions {
        let _ = writeln!(out, "  assume {} = {} for {:?}", a.left, a.right, a.what);
    }
    // Constants print where they are first read; if that order is not the table's, the table comes first.
    let inline = in_reading_order(graph);
    let mut shown = vec![false; graph.constants.len()];
    if !inline {
        for (id, c) in graph.constants.iter() {
            let ty = format!("{}{:?}", c.tensor.dtype, c.tensor.shape);
            let _ = writeln!(out, "  const {id} = {} : {ty}", constant(c, options));
            shown[id.index()] = true;
        }
    }
    let mut inputs = 0;
    for (id, node) in graph.nodes.iter() {
        let _ = write!(out, "  {id} = {}", node.op.name());
        match &node.op {
            Op::Input { index } => {
                let name = graph.inputs.get(*index as usize).map_or("", |i| i.name.as_str());
                let _ = write!(out, " {name:?}");
                if *index != inputs {
                    let _ = write!(out, " {{index={index}}}");
                }
                inputs += 1;
            }
            Op::Constant(c) if std::mem::replace(&mut shown[c.index()], true) => {
                let _ = write!(out, " {c}");
            }
            Op::Constant(c) => {
                let _ = write!(out, " {}", constant(&graph.constants[*c], options));
            }
            _ => {}
        }
        for (i, operand) in node.operands.iter().enumerate() {
            let _ = write!(out, "{} {operand}", if i > 0 { "," } else { "" });
        }
        let attributes = attributes(graph, id, node);
        if !attributes.is_empty() {
            let _ = write!(out, " {{{}}}", attributes.join(", "));
        }
        let types: Vec<String> = node.results.iter().map(ToString::to_string).collect();
        let _ = write!(out, " : {}", types.join(", "));
        if !options.hide_origins {
            origin(&mut out, &node.origin);
        }
        out.push('\n');
    }
    if !graph.outputs.is_empty() {
        let outputs: Vec<String> = graph
            .outputs
            .iter()
            .map(|o| match &o.check {
                None => format!("{} as {:?}", o.value, o.name),
                Some(Check::Holds) => format!("{} check {:?}", o.value, o.name),
                Some(of) => format!("{} check {:?} {of}", o.value, o.name),
            })
            .collect();
        let _ = writeln!(out, "  return {}", outputs.join(", "));
    }
    out.push_str("}\n");
    out
}

/// A name that is an identifier stands as it is, others are quoted.
fn name(text: &str) -> String {
    if is_identifier(text) {
        text.to_owned()
    } else {
        format!("{text:?}")
    }
}

/// Says whether a text is `[A-Za-z_][A-Za-z0-9_]*`.
pub fn is_identifier(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

pub(crate) fn bounds(info: &SymbolInfo) -> String {
    let max = info.max.map_or(String::new(), |m| m.to_string());
    format!("{}..{max} hint {}", info.min, info.hint)
}

fn in_reading_order(graph: &Graph) -> bool {
    let mut next = 0;
    for node in graph.nodes.values() {
        if let Op::Constant(c) = node.op {
            if c.index() > next {
                return false;
            }
            let declared = node.results.first();
            let tensor = &graph.constants[c].tensor;
            if c.index() == next {
                // The inline form takes the tensor's type from the node.
                let same = declared.is_some_and(|t| {
                    t.dtype == tensor.dtype
                        && t.shape
                            .iter()
                            .map(Dim::as_const)
                            .eq(tensor.shape.iter().map(|d| i64::try_from(*d).ok()))
                });
                if !same {
                    return false;
                }
                next += 1;
            }
        }
    }
    next == graph.constants.len()
}

fn constant(c: &Constant, options: PrintOptions) -> String {
    let label = c.name.as_ref().map_or(String::new(), |n| format!("{n:?} "));
    let elide = options.elide_above.is_some_and(|n| c.tensor.elements() > n) && c.tensor.splat().is_none();
    let data = if elide { "elided".to_owned() } else { data(&c.tensor) };
    label + &data
}

/// A list or a splat when reading it back gives the same bytes, else `hex"…"`.
fn data(tensor: &HostTensor) -> String {
    let n = tensor.elements();
    let same = |values: &[Scalar]| {
        let parsed: Option<Vec<Scalar>> = values.iter().map(|v| reread(tensor.dtype, *v)).collect();
        parsed.is_some_and(|p| encode(tensor.dtype, &p) == *tensor.bytes)
    };
    if n > 1
        && let Some(v) = tensor.splat()
        && same(&vec![v; n])
    {
        return format!("splat({})", number(tensor.dtype, v));
    }
    if n <= 256 {
        let values = scalars(tensor);
        if same(&values) {
            let texts: Vec<String> = values.iter().map(|v| number(tensor.dtype, *v)).collect();
            return match (tensor.shape.is_empty(), texts.as_slice()) {
                (true, [one]) => one.clone(),
                _ => format!("[{}]", texts.join(", ")),
            };
        }
    }
    let mut hex = String::with_capacity(tensor.bytes.len() * 2 + 5);
    hex.push_str("hex\"");
    tensor.bytes.iter().for_each(|b| {
        let _ = write!(hex, "{b:02x}");
    });
    hex.push('"');
    hex
}

fn scalars(tensor: &HostTensor) -> Vec<Scalar> {
    match tensor.dtype {
        DType::Bool => tensor.to_i64().into_iter().map(|v| Scalar::Bool(v != 0)).collect(),
        d if d.is_int() => tensor.to_i64().into_iter().map(Scalar::Int).collect(),
        _ => tensor.to_f64().into_iter().map(Scalar::Float).collect(),
    }
}

/// Encodes numbers as a constant of a type.
pub(super) fn encode(dtype: DType, values: &[Scalar]) -> Vec<u8> {
    if dtype.is_float() {
        crate::convert::encode_f64(dtype, &values.iter().map(|v| v.as_f64()).collect::<Vec<_>>())
    } else {
        crate::convert::encode_i64(dtype, &values.iter().map(|v| v.as_i64()).collect::<Vec<_>>())
    }
}

fn reread(dtype: DType, value: Scalar) -> Option<Scalar> {
    match value {
        Scalar::Float(_) => number(dtype, value).parse().ok().map(Scalar::Float),
        other => Some(other),
    }
}

/// The shortest text that reads back to the same element.
fn number(dtype: DType, value: Scalar) -> String {
    match value {
        Scalar::Float(v) if dtype != DType::F64 => format!("{:?}", v as f32),
        other => other.to_string(),
    }
}

fn origin(out: &mut String, origin: &Origin) {
    let _ = match origin {
        Origin::Unknown => Ok(()),
        Origin::Onnx { name, op } => write!(out, " @ onnx {name:?} {op:?}"),
        Origin::Source { file, line } => write!(out, " @ {file:?}:{line}"),
        Origin::Named(name) => write!(out, " @ {name:?}"),
    };
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    let texts: Vec<String> = items.iter().map(ToString::to_string).collect();
    format!("[{}]", texts.join(", "))
}

/// The attributes of a node, without those that the parser fills in.
fn attributes(graph: &Graph, id: NodeId, node: &Node) -> Vec<String> {
    let mut a: Vec<String> = Vec::new();
    let declared = node.results.first();
    let is_dtype = |d: DType| declared.is_some_and(|t| t.dtype == d);
    let is_shape = |s: &[Dim]| declared.is_some_and(|t| *t.shape == *s);
    let rank = node.operands.first().and_then(|v| {
        (v.node < id)
            .then(|| graph.nodes.get(v.node)?.results.get(v.index as usize))
            .flatten()
    });
    let spatial = rank.map_or(0, |t| t.rank().saturating_sub(2));
    match &node.op {
        Op::Input { .. } | Op::Constant(_) => {}
        Op::Iota { shape, axis, dtype } => {
            a.push(format!("axis={axis}"));
            if !is_shape(shape) {
                a.push(format!("shape={shape}"));
            }
            if !is_dtype(*dtype) {
                a.push(format!("dtype={dtype}"));
            }
        }
        Op::DimValue(d) => a.push(format!("size={d}")),
        Op::Elementwise(Elementwise::Cast(to)) if !is_dtype(*to) => a.push(format!("to={to}")),
        Op::Elementwise(_) => {}
        Op::Reduce { op, axes, keep_dims } => {
            a.push(format!("op={op}"));
            a.push(format!("axes={}", list(axes)));
            flag(&mut a, "keep_dims", *keep_dims);
        }
        Op::View(v) => view(&mut a, v, is_shape),
        Op::Contract(c) => contract(&mut a, c, is_dtype(c.out)),
        Op::Conv(c) => conv(&mut a, c, spatial, is_dtype(c.out)),
        Op::Pool(p) => pool(&mut a, p, spatial),
        Op::Gather(Gather::Take { axis } | Gather::Elements { axis }) => a.push(format!("axis={axis}")),
        Op::Gather(Gather::Nd { batch_dims }) => {
            if *batch_dims != 0 {
                a.push(format!("batch_dims={batch_dims}"));
            }
        }
        Op::Scatter(Scatter::Elements { axis, reduce }) => {
            a.push(format!("axis={axis}"));
            a.extend(reduce.map(|r| format!("reduce={r}")));
        }
        Op::Scatter(Scatter::Nd { reduce }) => a.extend(reduce.map(|r| format!("reduce={r}"))),
        Op::Scan {
            op,
            axis,
            exclusive,
            reverse,
        } => {
            a.push(format!("op={op}"));
            a.push(format!("axis={axis}"));
            flag(&mut a, "exclusive", *exclusive);
            flag(&mut a, "reverse", *reverse);
        }
        Op::TopK { axis, k, largest } => {
            a.push(format!("axis={axis}"));
            a.push(format!("k={k}"));
            flag(&mut a, "smallest", !*largest);
        }
        Op::Random {
            kind,
            shape,
            seed,
            dtype,
        } => {
            a.push(match kind {
                RandomKind::Uniform { low, high } => format!("kind=uniform({low}, {high})"),
                RandomKind::Normal { mean, deviation } => format!("kind=normal({mean}, {deviation})"),
            });
            a.push(format!("seed={seed}"));
            if !is_shape(shape) {
                a.push(format!("shape={shape}"));
            }
            if !is_dtype(*dtype) {
                a.push(format!("dtype={dtype}"));
            }
        }
        Op::Composite(c) => composite(&mut a, c),
        Op::Call(call) => match &call.op {
            LibraryOp::Gemm {
                contract: c,
                scale,
                epilogue,
            } => {
                contract(&mut a, c, is_dtype(c.out));
                if *scale != crate::library::GemmScale::None {
                    a.push(format!("scale={}", scale.name()));
                }
                if *epilogue != crate::library::GemmEpilogue::None {
                    a.push(format!("epilogue={}", epilogue.name()));
                }
            }
            LibraryOp::Conv(c) => conv(&mut a, c, spatial, is_dtype(c.out)),
            LibraryOp::Pool(p) => pool(&mut a, p, spatial),
            LibraryOp::Softmax { axis } => a.push(format!("axis={axis}")),
            LibraryOp::Collective(c) => a.push(format!("ranks={}", c.ranks)),
        },
    }
    a
}

fn flag(a: &mut Vec<String>, name: &str, set: bool) {
    if set {
        a.push(name.to_owned());
    }
}

fn view(a: &mut Vec<String>, v: &View, is_shape: impl Fn(&[Dim]) -> bool) {
    match v {
        View::Reshape(shape) | View::Broadcast(shape) => {
            if !is_shape(shape) {
                a.push(format!("shape={shape}"));
            }
        }
        View::Transpose(perm) => a.push(format!("perm={}", list(perm))),
        View::Slice { starts, sizes, steps } => {
            a.push(format!("starts={}", list(starts)));
            if !is_shape(sizes) {
                a.push(format!("sizes={}", list(sizes)));
            }
            if steps.len() != starts.len() || steps.iter().any(|s| *s != 1) {
                a.push(format!("steps={}", list(steps)));
            }
        }
        View::Pad { low, high, mode } => {
            a.push(format!("low={}", list(low)));
            a.push(format!("high={}", list(high)));
            a.push(match mode {
                PadMode::Constant(v) => format!("mode=constant({v})"),
                PadMode::Reflect => "mode=reflect".to_owned(),
                PadMode::Edge => "mode=edge".to_owned(),
                PadMode::Wrap => "mode=wrap".to_owned(),
            });
        }
        View::Concat { axis } => a.push(format!("axis={axis}")),
    }
}

fn contract(a: &mut Vec<String>, c: &Contract, is_declared: bool) {
    flag(a, "transpose_lhs", c.transpose_lhs);
    flag(a, "transpose_rhs", c.transpose_rhs);
    if !is_declared {
        a.push(format!("out={}", c.out));
    }
}

fn window(a: &mut Vec<String>, w: &Window, spatial: usize) {
    for (name, values, usual) in [
        ("strides", &w.strides, 1),
        ("pad_low", &w.pad_low, 0),
        ("pad_high", &w.pad_high, 0),
        ("dilations", &w.dilations, 1),
    ] {
        if values.len() != spatial || values.iter().any(|v| *v != usual) {
            a.push(format!("{name}={}", list(values)));
        }
    }
}

fn layout(a: &mut Vec<String>, layout: Layout) {
    flag(a, "channels_last", layout == Layout::ChannelsLast);
}

fn conv(a: &mut Vec<String>, c: &Conv, spatial: usize, is_declared: bool) {
    window(a, &c.window, spatial);
    if c.groups != 1 {
        a.push(format!("groups={}", c.groups));
    }
    layout(a, c.layout);
    if let Some(extra) = &c.transposed {
        a.push(format!("transposed={}", list(extra)));
    }
    if c.pad_value != 0 {
        a.push(format!("pad_value={}", c.pad_value));
    }
    if !is_declared {
        a.push(format!("out={}", c.out));
    }
}

fn pool(a: &mut Vec<String>, p: &Pool, spatial: usize) {
    a.push(match p.kind {
        PoolKind::Max => "kind=max".to_owned(),
        PoolKind::Average { count_padding: false } => "kind=average".to_owned(),
        PoolKind::Average { count_padding: true } => "kind=average_padded".to_owned(),
    });
    a.push(format!("size={}", list(&p.size)));
    window(a, &p.window, spatial);
    flag(a, "ceil", p.ceil);
    layout(a, p.layout);
}

fn composite(a: &mut Vec<String>, c: &Composite) {
    match c {
        Composite::Softmax { axis } | Composite::LogSoftmax { axis } => a.push(format!("axis={axis}")),
        Composite::LayerNorm { axis, epsilon } | Composite::RmsNorm { axis, epsilon } => {
            a.push(format!("axis={axis}"));
            a.push(format!("epsilon={epsilon}"));
        }
        Composite::BatchNorm { epsilon, layout: l } => {
            a.push(format!("epsilon={epsilon}"));
            layout(a, *l);
        }
        Composite::GroupNorm { groups, epsilon } => {
            a.push(format!("groups={groups}"));
            a.push(format!("epsilon={epsilon}"));
        }
        Composite::Attention {
            scale,
            causal,
            mask,
            scales,
        } => {
            a.push(format!("scale={scale}"));
            flag(a, "causal", *causal);
            flag(a, "mask", *mask);
            flag(a, "scales", *scales);
        }
        Composite::Dequantize { groups, out } => {
            if let Some(groups) = groups {
                a.push(format!("axis={}", groups.axis));
                a.push(format!("group={}", groups.size));
            }
            a.push(format!("out={out}"));
        }
        Composite::Quantize { out } => a.push(format!("out={out}")),
        Composite::LocalResponseNorm {
            size,
            alpha,
            beta,
            bias,
        } => {
            a.push(format!("size={size}"));
            a.push(format!("alpha={alpha}"));
            a.push(format!("beta={beta}"));
            a.push(format!("bias={bias}"));
        }
        Composite::Recurrent(layer) => recurrent(a, layer),
    }
}

fn recurrent(a: &mut Vec<String>, layer: &Recurrent) {
    a.push(format!("cell={}", layer.cell.name()));
    if let Cell::Lstm {
        input_forget,
        peepholes,
        states,
    } = layer.cell
    {
        flag(a, "input_forget", input_forget);
        flag(a, "peepholes", peepholes);
        flag(a, "states", states);
    }
    let names = [
        ["f", "f_alpha", "f_beta"],
        ["g", "g_alpha", "g_beta"],
        ["h", "h_alpha", "h_beta"],
    ];
    for (activation, [name, alpha, beta]) in layer.activations.iter().zip(names).take(layer.cell.activations()) {
        a.push(format!("{name}={}", activation.kind));
        let usual = Activation::of(activation.kind);
        if *activation != usual {
            a.push(format!("{alpha}={}", activation.alpha));
            a.push(format!("{beta}={}", activation.beta));
        }
    }
    if let Some(clip) = layer.clip {
        a.push(format!("clip={clip}"));
    }
    flag(a, "reverse", layer.reverse);
    flag(a, "lengths", layer.lengths);
    flag(a, "rounded", layer.rounded);
}

/// Names a constant for messages: its own name, or its id.
pub fn constant_name(graph: &Graph, id: ConstId) -> String {
    graph.constants[id].name.clone().unwrap_or_else(|| id.to_string())
}
