//! A product as a generated kernel and as a library's call, for steps that choose between them by size.
//!
//! Before: a scheduled region, which is a product with what follows it, or a call that the e-graph chose at the sizes'
//! hints. After: the other of the two, and what the cost model says of both at a number of rows. There is a call only
//! where it does all that the region does: nothing, or scales, a bias and an activation that hipBLASLt has. What else
//! follows a product is its kernel's alone.
//!
//! A convolution is a product too, whose rows are the points of its result: those of one image, which must be known,
//! for each image.

use ir::library::{GemmEpilogue, GemmScale, Library, LibraryCall, LibraryOp};
use ir::op::{BinaryOp, Contract, Elementwise, Layout, UnaryOp, View};
use ir::schedule::{Region, RegionKind};
use ir::{DType, Dim, Graph, Kernel, NodeId, Op, Stage, Symbols, Target, TensorType, Value};

use super::{hipblaslt, miopen, rocblas};
use crate::cost::CostModel;
use crate::egraph::rules;
use crate::fuse::ScheduleOptions;
use crate::lower::{LowerError, lower};
use crate::options::{OptLevel, OptimizeOptions};

/// The libraries whose calls a plan may choose by size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Routes {
    pub rocblas: bool,
    pub hipblaslt: bool,
    pub miopen: bool,
}

impl Routes {
    /// The libraries that the e-graph may route to under these options: a step chooses among no others.
    pub fn of(options: &OptimizeOptions, target: &Target) -> Routes {
        let routes = options.level >= OptLevel::O2
            && options.libraries
            && target.libraries
            && options.enabled(crate::egraph::ROUTE.name);
        Routes {
            rocblas: routes && options.enabled(rules::ROCBLAS),
            hipblaslt: routes && options.enabled(rules::HIPBLASLT) && target.hipblaslt,
            miopen: routes && options.enabled(rules::MIOPEN),
        }
    }

    const fn has(self, library: Library) -> bool {
        match library {
            Library::RocBlas => self.rocblas,
            Library::HipBlasLt => self.hipblaslt,
            Library::MiOpen => self.miopen,
            Library::Rccl => false,
        }
    }
}

/// A product that a library may compute, and its types.
#[derive(Clone, PartialEq, Debug)]
pub struct Product {
    pub call: LibraryCall,
    /// The contraction or the convolution alone.
    op: Op,
    scale: GemmScale,
    epilogue: GemmEpilogue,
    /// Of lhs, rhs, and the scale and the bias where there are such.
    operands: Vec<TensorType>,
    /// What the call stores.
    result: TensorType,
}

impl Product {
    fn new(call: LibraryCall, operands: Vec<TensorType>, result: TensorType) -> Option<Product> {
        let (scale, epilogue) = match &call.op {
            LibraryOp::Gemm { scale, epilogue, .. } => (*scale, *epilogue),
            LibraryOp::Conv(_) => (GemmScale::None, GemmEpilogue::None),
            LibraryOp::Pool(_) | LibraryOp::Softmax { .. } | LibraryOp::Collective(_) => return None,
        };
        // What is scaled are sums in f32.
        let op = match call.product()? {
            Op::Contract(contract) if scale != GemmScale::None => Op::Contract(Contract {
                out: DType::F32,
                ..contract
            }),
            op => op,
        };
        let product = Product {
            op,
            call,
            scale,
            epilogue,
            operands,
            result,
        };
        let is_known = !matches!(product.op, Op::Conv(_)) || product.points().is_some();
        (product.operands.len() >= 2 && is_known).then_some(product)
    }

    /// Points of the result of a convolution for each image, where they are known.
    fn points(&self) -> Option<i64> {
        let Op::Conv(conv) = &self.op else { return None };
        let shape = &self.result.shape;
        let spatial = match conv.layout {
            Layout::ChannelsFirst => shape.get(2..)?,
            Layout::ChannelsLast => shape.get(1..shape.rank().checked_sub(1)?)?,
        };
        let points: Dim = spatial.iter().cloned().product();
        points.as_const().filter(|points| *points > 0)
    }

    /// Whether the left operand is transposed, and whether its batch is more rows of one product.
    fn left(&self) -> (bool, bool) {
        let transposed = matches!(&self.op, Op::Contract(contract) if contract.transpose_lhs);
        (transposed, self.operands[1].rank() == 2 && !transposed)
    }

    /// The rows of the product, which the model may leave open.
    pub fn rows(&self) -> Dim {
        let lhs = &self.operands[0].shape;
        if let Some(points) = self.points() {
            return lhs[0].clone() * points;
        }
        let (transposed, folds) = self.left();
        let at = lhs.rank() - if transposed { 1 } else { 2 };
        match folds {
            true => lhs[..=at].iter().cloned().product(),
            false => lhs[at].clone(),
        }
    }

    /// The types of the left operand and of the result at a number of rows.
    fn at_rows(&self, rows: i64) -> (TensorType, TensorType) {
        if let Some(points) = self.points() {
            let with_images = |ty: &TensorType| {
                let mut shape = ty.shape.0.clone();
                shape[0] = Dim::Const((rows / points).max(1));
                TensorType::new(ty.dtype, shape)
            };
            return (with_images(&self.operands[0]), with_images(&self.result));
        }
        let (transposed, folds) = self.left();
        let with_rows = |ty: &TensorType, from_last: usize| {
            let mut shape = ty.shape.0.clone();
            let at = shape.len() - from_last;
            shape[at] = Dim::Const(rows);
            let first = if folds { at } else { 0 };
            TensorType::new(ty.dtype, shape[first..].to_vec())
        };
        (
            with_rows(&self.operands[0], if transposed { 1 } else { 2 }),
            with_rows(&self.result, 2),
        )
    }

    /// Whether the call takes less time than one generated kernel at a number of rows, by the roofline that the e-graph
    /// decides by.
    pub fn call_wins(&self, rows: i64, symbols: &Symbols, target: &Target) -> bool {
        let model = CostModel {
            target,
            symbols,
            computed_in: None,
        };
        let (lhs, result) = self.at_rows(rows);
        let result = [result];
        let mut operands = vec![&lhs];
        operands.extend(&self.operands[1..]);
        let call = model.op(&Op::Call(self.call.clone()), &operands, &result);
        let mut kernel = model.op(&self.op, &operands[..2], &result);
        for (step, other) in self.steps() {
            let others: Vec<&TensorType> = other.map(|at| operands[at]).into_iter().collect();
            kernel += model.as_epilogue(&Op::Elementwise(step), &others, &result[0]);
        }
        call < kernel
    }

    /// What follows the product, in order, each with the number of the call's operand that is its other one.
    fn steps(&self) -> Vec<(Elementwise, Option<usize>)> {
        let mut steps = Vec::new();
        if self.scale != GemmScale::None {
            steps.push((Elementwise::Binary(BinaryOp::Mul), Some(2)));
        }
        let bias = self.epilogue.has_bias().then(|| self.operands.len() - 1);
        let narrows = matches!(&self.op, Op::Contract(c) if c.out != self.result.dtype);
        let cast = narrows.then_some((Elementwise::Cast(self.result.dtype), None));
        // A bias has the type of what it is added to.
        let is_late = bias.is_some_and(|at| self.operands[at].dtype != self.result.dtype);
        steps.extend(cast.filter(|_| !is_late));
        if bias.is_some() {
            steps.push((Elementwise::Binary(BinaryOp::Add), bias));
        }
        let activation = match self.epilogue {
            GemmEpilogue::None | GemmEpilogue::Bias => None,
            GemmEpilogue::Relu | GemmEpilogue::BiasRelu => Some(UnaryOp::Relu),
            GemmEpilogue::GeluTanh | GemmEpilogue::BiasGeluTanh => Some(UnaryOp::GeluTanh),
        };
        steps.extend(activation.map(|kind| (Elementwise::Unary(kind), None)));
        steps.extend(cast.filter(|_| is_late));
        steps
    }
}

/// Returns the call that does all that a product's region does, with the stored values that are its operands.
pub fn call_of(g: &Graph, region: &Region, routes: Routes, target: &Target) -> Option<(Product, Vec<Value>)> {
    let [output] = region.outputs[..] else { return None };
    if region.part(output).is_some() {
        return None;
    }
    let anchor = region.anchor;
    let plain = match region.kind {
        RegionKind::Contract => rocblas::call(g, anchor),
        // The library takes sizes from the result's buffer, whose axes are the convolution's.
        RegionKind::Conv if output == Value::from(anchor) => Some(miopen::call(g, anchor)?),
        _ => return None,
    };
    // Down the one way from the product to the result.
    let (mut scale, mut epilogue, mut at) = (GemmScale::None, GemmEpilogue::None, Value::from(anchor));
    let mut others = Vec::new();
    let mut seen = vec![anchor];
    while at != output {
        let readers = region.nodes.iter().filter(|id| g.node(**id).operands.contains(&at));
        let [next] = readers.copied().collect::<Vec<NodeId>>()[..] else {
            return None;
        };
        let node = g.node(next);
        match &node.op {
            Op::View(View::Reshape(_)) => {}
            Op::Elementwise(Elementwise::Binary(kind @ (BinaryOp::Mul | BinaryOp::Add)))
                if epilogue == GemmEpilogue::None =>
            {
                let [a, b] = node.operands[..] else { return None };
                let other = if a == at { b } else { a };
                let columns = g.ty(at).shape.iter().last();
                let fits = a != b
                    && g.ty(anchor.into()).shape.iter().last() == columns
                    && g.ty(at).shape == node.results[0].shape;
                match kind {
                    BinaryOp::Mul if fits && scale == GemmScale::None => {
                        let operand = g.node(anchor).operands[0];
                        scale = hipblaslt::scale(g.ty(other), g.ty(operand), &node.results[0])?;
                    }
                    BinaryOp::Add if fits && hipblaslt::is_bias(g.ty(other), &node.results[0]) => {
                        epilogue = GemmEpilogue::Bias;
                    }
                    _ => return None,
                }
                others.push(other);
            }
            Op::Elementwise(Elementwise::Cast(to))
                if scale != GemmScale::None
                    && g.ty(at).dtype == DType::F32
                    && hipblaslt::narrows(g.ty(g.node(anchor).operands[0]), *to) => {}
            Op::Elementwise(Elementwise::Unary(kind)) => epilogue = hipblaslt::activated(epilogue, *kind)?,
            _ => return None,
        }
        seen.push(next);
        at = next.into();
    }
    // What is left of the region may only give operands other shapes.
    let is_shape = |id: &NodeId| matches!(g.node(*id).op, Op::View(View::Reshape(_)));
    if !region.nodes.iter().all(|id| seen.contains(id) || is_shape(id)) {
        return None;
    }
    let call = match (scale, epilogue) {
        (GemmScale::None, GemmEpilogue::None) => plain?,
        _ => {
            let contract = hipblaslt::product(g, anchor, target)?;
            let out = match scale {
                GemmScale::None => contract.out,
                _ => g.ty(output).dtype,
            };
            hipblaslt::call(Contract { out, ..contract }, scale, epilogue)
        }
    };
    let wanted: Vec<Value> = g.node(anchor).operands.iter().copied().chain(others).collect();
    let stored: Vec<Value> = wanted.iter().map(|v| root(g, *v)).collect();
    if !routes.has(call.library) || !stored.iter().all(|v| region.inputs.contains(v)) {
        return None;
    }
    // The library takes sizes from the buffers' types, so a buffer must have the shape that the product sees.
    let same = wanted.iter().zip(&stored).all(|(v, stored)| g.ty(*v) == g.ty(*stored));
    let types = wanted.iter().map(|v| g.ty(*v).clone()).collect();
    let stores = match &call.op {
        LibraryOp::Gemm { contract, .. } => contract.out,
        _ => g.ty(anchor.into()).dtype,
    };
    let result = TensorType::new(stores, g.ty(anchor.into()).shape.clone());
    let product = Product::new(call, types, result)?;
    debug_assert_eq!(product.op, g.node(anchor).op);
    (same && g.ty(output).dtype == stores).then_some((product, stored))
}

/// Returns the call that computes the sums of a region's convolution, with the stored values that are its operands.
/// What follows the sums, a bias and all, is left.
pub fn convolution_of(g: &Graph, region: &Region, routes: Routes, target: &Target) -> Option<(Product, Vec<Value>)> {
    let [output] = region.outputs[..] else { return None };
    if region.kind != RegionKind::Conv || region.part(output).is_some() || !target.libraries {
        return None;
    }
    let call = miopen::sums(g, region.anchor)?;
    let operands: Vec<Value> = g.node(region.anchor).operands.iter().take(2).copied().collect();
    // The library takes sizes from the buffers' types, and other shapes of a tensor share its buffer.
    let is_stored = |v: &Value| region.inputs.contains(v) && !matches!(g.node(v.node).op, Op::View(View::Reshape(_)));
    if !routes.has(call.library) || !operands.iter().all(is_stored) {
        return None;
    }
    let types = operands.iter().map(|v| g.ty(*v).clone()).collect();
    let product = Product::new(call, types, g.ty(region.anchor.into()).clone())?;
    Some((product, operands))
}

/// Returns the value that a value is another shape of.
fn root(g: &Graph, value: Value) -> Value {
    match &g.node(value.node).op {
        Op::View(View::Reshape(_)) => root(g, g.node(value.node).operands[0]),
        _ => value,
    }
}

/// Returns the generated kernel of a product that the e-graph made a call of, where its rows are open or also where
/// they are known. Its parameters are the call's operands by their numbers, then the result.
///
/// # Errors
/// A product that cannot be lowered.
pub fn kernel_of(
    g: &Graph,
    id: NodeId,
    (routes, known): (Routes, bool),
    target: &Target,
) -> Result<Option<(Product, Kernel, Vec<usize>)>, LowerError> {
    let node = g.node(id);
    let Op::Call(call) = &node.op else { return Ok(None) };
    let types: Vec<TensorType> = node.operands.iter().map(|v| g.ty(*v).clone()).collect();
    let product = Product::new(call.clone(), types, node.results[0].clone());
    let open = |p: &Product| (known || p.rows().as_const().is_none()) && routes.has(p.call.library);
    let Some(product) = product.filter(open) else {
        return Ok(None);
    };
    let Some(graph) = spelled(g, id, &product) else {
        return Ok(None);
    };
    let (schedule, _) = crate::fuse::fuse(&graph, target, &ScheduleOptions::default());
    let regions: Vec<&Region> = schedule.regions.values().collect();
    let [region] = regions[..] else { return Ok(None) };
    let input = |value: &Value| {
        graph
            .inputs()
            .iter()
            .position(|input| Value::from(input.node) == *value)
    };
    let Some(inputs) = region.inputs.iter().map(input).collect::<Option<Vec<usize>>>() else {
        return Ok(None);
    };
    if region.outputs.len() != 1 || !matches!(region.kind, RegionKind::Contract | RegionKind::Conv) {
        return Ok(None);
    }
    let kernel = lower(&graph, region, target)?;
    Ok(Some((product, kernel, inputs)))
}

/// A call's product and what follows it, alone.
fn spelled(g: &Graph, id: NodeId, product: &Product) -> Option<Graph> {
    let origin = || g.node(id).origin.clone();
    let mut graph = Graph::new(product.call.name());
    graph.stage = Stage::Core;
    graph.set_sizes_of(g);
    let operands: Vec<Value> = (product.operands.iter().enumerate())
        .map(|(index, ty)| graph.add_input(format!("x{index}"), ty.clone(), origin()))
        .collect();
    let mut at: Value = graph.add(product.op.clone(), &operands[..2], origin()).ok()?.into();
    for (step, other) in product.steps() {
        let all: Vec<Value> = std::iter::once(at).chain(other.map(|at| operands[at])).collect();
        at = graph.add(Op::Elementwise(step), &all, origin()).ok()?.into();
    }
    graph.add_output("y", at);
    Some(graph)
}
