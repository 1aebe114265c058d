//! Changes to valid things: bytes, and the fields of kernels and plans.

use graphc::ir::kernel::{
    Access, AxisId, Body, ContractBody, ConvFacts, Expr, ExprId, Exprs, Kernel, ParamId, Stmt, TransformMatrix,
    TransformSide, VarId, Weights, WindowBody, WindowFold, Winograd,
};
use graphc::ir::op::{BinaryOp, Layout, PoolKind, ReduceOp};
use graphc::ir::plan::{BufferId, KernelId, Place, Plan, StepId, Work};
use graphc::ir::{ConstId, DType, Dim, Entity, Scalar, TensorType};

use crate::random::Random;

/// Changes a few bytes, cuts the end off, or repeats a part.
pub fn bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(9) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.bits() as u8,
            2 => bytes[at] = bytes[at].wrapping_add(1),
            3 => bytes[at] = bytes[at].wrapping_sub(1),
            4 => bytes[at] = random.below(8) as u8,
            5 => bytes[at] = bytes[random.below(bytes.len())],
            6 => {
                let number = random.odd().to_le_bytes();
                let width = *random.of(&[2, 4, 8]);
                for (byte, new) in bytes[at..].iter_mut().zip(&number[..width]) {
                    *byte = *new;
                }
            }
            7 => {
                let end = (at + 1 + random.below(24)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                if random.once_in(2) {
                    bytes.splice(at..at, part);
                } else {
                    bytes.drain(at..end);
                }
            }
            _ if random.once_in(8) => bytes.truncate(at),
            _ => bytes[at] = *random.of(&[0, 1, 0x7f, 0x80, 0xff]),
        }
    }
}

/// Some size: one of the kernel's, near one, or odd.
fn size(kernel: &Kernel, random: &mut Random) -> Dim {
    let mut known: Vec<&Dim> = kernel.axes.values().map(|a| &a.extent).collect();
    known.extend(kernel.params.values().map(|p| &p.elements));
    let near = |random: &mut Random| match known.is_empty() {
        true => Dim::Const(1),
        false => (*random.of(&known)).clone(),
    };
    match random.below(8) {
        0 => Dim::Const(random.odd()),
        1 => Dim::Const(random.below(9) as i64),
        2 => near(random) + 1,
        3 => near(random) - 1,
        4 => near(random) * random.below(4),
        5 => near(random) * near(random),
        _ => near(random),
    }
}

fn pick<E: Entity>(count: usize, random: &mut Random) -> E {
    // Now and then one that is not there.
    let beyond = usize::from(random.once_in(64));
    E::new(random.below(count + beyond))
}

/// Changes one thing of a kernel.
pub fn kernel(k: &mut Kernel, random: &mut Random) {
    let (params, axes, vars, exprs) = (k.params.len(), k.axes.len(), k.vars.len(), k.exprs.len());
    match random.below(12) {
        0 if params > 0 => {
            let new = size(k, random);
            k.params[ParamId::new(random.below(params))].elements = new;
        }
        1 if axes > 0 => {
            let new = size(k, random);
            k.axes[AxisId::new(random.below(axes))].extent = new;
        }
        2 if params > 0 => {
            let p = &mut k.params[ParamId::new(random.below(params))];
            p.access = *random.of(&[Access::Read, Access::Write, Access::ReadWrite]);
        }
        3 if params > 0 => k.params[ParamId::new(random.below(params))].dtype = dtype(random),
        4 if vars > 0 => k.vars[VarId::new(random.below(vars))] = dtype(random),
        5 => {
            let mut axis = graphc::ir::kernel::Axis {
                name: format!("extra{axes}"),
                extent: size(k, random),
            };
            if random.once_in(2) {
                axis.extent = Dim::Const(0);
            }
            k.axes.push(axis);
        }
        6 | 7 => body(k, random),
        _ if exprs > 0 => {
            let at = random.below(exprs);
            let mut new = Exprs::default();
            let mut moved: Vec<ExprId> = Vec::with_capacity(exprs);
            for (id, expr) in k.exprs.iter() {
                let mut expr = expr.clone();
                each_operand(&mut expr, &mut |o| *o = moved[o.index()]);
                if id.index() == at {
                    self::expr(&mut expr, k, new.len(), random);
                }
                moved.push(new.add(expr, k.exprs.dtype(id)));
            }
            k.exprs = new;
            each_expr(&mut k.body, &mut |e| *e = moved.get(e.index()).copied().unwrap_or(*e));
        }
        _ => {}
    }
}

fn dtype(random: &mut Random) -> DType {
    *random.of(&[
        DType::F32,
        DType::F16,
        DType::F64,
        DType::I64,
        DType::I32,
        DType::I8,
        DType::I4,
        DType::U8,
        DType::Bool,
        DType::BF16,
        DType::F8E4M3FN,
    ])
}

fn each_operand(expr: &mut Expr, f: &mut dyn FnMut(&mut ExprId)) {
    match expr {
        Expr::Const(..) | Expr::Size(_) | Expr::Axis(_) | Expr::Var(_) => {}
        Expr::Load { index: a, .. } | Expr::Unary(_, a) | Expr::Cast(_, a) | Expr::Philox { counter: a, .. } => f(a),
        Expr::Binary(_, a, b) => {
            f(a);
            f(b);
        }
        Expr::Select(a, b, c) => {
            f(a);
            f(b);
            f(c);
        }
    }
}

fn each_expr(body: &mut Body, f: &mut dyn FnMut(&mut ExprId)) {
    let stmts = match body {
        Body::Loops(l) => &mut l.stmts,
        Body::Row(r) => {
            r.held.iter_mut().for_each(&mut *f);
            if let Some(c) = &mut r.composite {
                f(&mut c.x);
                c.scale.iter_mut().chain(&mut c.bias).for_each(&mut *f);
            }
            &mut r.loops.stmts
        }
        Body::Copy(c) => &mut c.loops.stmts,
        Body::Window(w) => {
            w.map_exprs(&mut *f);
            &mut w.loops.stmts
        }
        Body::Transform(t) => {
            f(&mut t.element);
            t.within.iter_mut().chain(&mut t.inside).for_each(&mut *f);
            &mut t.stmts
        }
        Body::Contract(c) => {
            c.lhs.map_exprs(&mut *f);
            c.rhs.map_exprs(&mut *f);
            c.statistic.iter_mut().for_each(|statistic| f(&mut statistic.value));
            &mut c.epilogue
        }
        Body::Attention(a) => {
            for e in [&mut a.query, &mut a.key, &mut a.value, &mut a.score] {
                f(e);
            }
            if let Some(range) = &mut a.range {
                let bounds = range.first.iter_mut().chain(&mut range.end).chain(&mut range.nothing);
                bounds.chain([&mut range.inside]).for_each(&mut *f);
            }
            &mut a.epilogue
        }
        Body::Scan(s) => {
            f(&mut s.value);
            &mut s.stores
        }
        Body::Sort(s) => {
            f(&mut s.value);
            &mut s.stores
        }
        Body::Recurrent(r) => {
            for e in [&mut r.input, &mut r.weights, &mut r.first] {
                f(e);
            }
            let others = [&mut r.first_cell, &mut r.bias, &mut r.peepholes, &mut r.lengths];
            others.into_iter().flatten().for_each(&mut *f);
            &mut r.stores
        }
    };
    for stmt in stmts {
        match stmt {
            Stmt::Let { value, .. } | Stmt::Fold { value, .. } => f(value),
            Stmt::Store { index, value, .. } | Stmt::Update { index, value, .. } => {
                f(index);
                f(value);
            }
        }
    }
}

/// Changes one expression; `before` expressions are there that it may use.
fn expr(expr: &mut Expr, k: &Kernel, before: usize, random: &mut Random) {
    let operand = |random: &mut Random| ExprId::new(random.below(before));
    match expr {
        Expr::Const(_, v) => {
            *v = match v {
                Scalar::Int(i) if random.once_in(2) => Scalar::Int(i.wrapping_add(*random.of(&[-1, 1, 2, 64]))),
                Scalar::Int(_) => Scalar::Int(random.odd()),
                _ => Scalar::Float(random.odd() as f64),
            }
        }
        Expr::Size(d) => *d = size(k, random),
        Expr::Axis(a) => *a = pick(k.axes.len(), random),
        Expr::Var(v) => *v = pick(k.vars.len(), random),
        Expr::Load { param, index } => {
            if random.once_in(2) {
                *param = pick(k.params.len(), random);
            } else if before > 0 {
                *index = operand(random);
            }
        }
        Expr::Binary(op, a, b) => match random.below(3) {
            0 => *op = *random.of(BinaryOp::ALL),
            1 => std::mem::swap(a, b),
            _ if before > 0 => *a = operand(random),
            _ => {}
        },
        Expr::Select(c, a, b) => match random.below(4) {
            0 => std::mem::swap(a, b),
            1 if before > 0 => *c = operand(random),
            2 => *expr = Expr::Select(*c, *a, *a),
            _ if before > 0 => *b = operand(random),
            _ => {}
        },
        Expr::Unary(..) | Expr::Cast(..) | Expr::Philox { .. } => {
            if before > 0 {
                let new = operand(random);
                each_operand(expr, &mut |o| *o = new);
            }
        }
    }
}

fn body(k: &mut Kernel, random: &mut Random) {
    let (axes, exprs, vars) = (k.axes.len(), k.exprs.len(), k.vars.len());
    let copy = k.clone();
    if random.once_in(3) {
        let (at, mut seen) = (random.below(6), 0);
        let new = pick(exprs, random);
        each_expr(&mut k.body, &mut |e| {
            if seen == at {
                *e = new;
            }
            seen += 1;
        });
        return;
    }
    let list = |axes_of: &mut Vec<AxisId>, random: &mut Random| match random.below(3) {
        0 => axes_of.push(pick(axes, random)),
        1 => {
            axes_of.pop();
        }
        _ if !axes_of.is_empty() => {
            let at = random.below(axes_of.len());
            axes_of[at] = pick(axes, random);
        }
        _ => {}
    };
    let stmts = match &mut k.body {
        Body::Loops(l) => {
            if random.once_in(3) {
                return list(&mut l.parallel, random);
            }
            &mut l.stmts
        }
        Body::Row(r) => {
            match random.below(4) {
                0 => return list(&mut r.loops.parallel, random),
                1 => return list(&mut r.row, random),
                _ => {}
            }
            &mut r.loops.stmts
        }
        Body::Copy(c) => {
            let step = c.steps.len().checked_sub(1 + random.below(3));
            match random.below(8) {
                0 => return list(&mut c.loops.parallel, random),
                1 => return c.source = pick(copy.params.len(), random),
                2 => return c.target = pick(copy.params.len(), random),
                3 => return c.from = size(&copy, random),
                4 => return c.to = size(&copy, random),
                5 | 6 => {
                    if let Some(at) = step {
                        let both = &mut c.steps[at];
                        *(if random.once_in(2) {
                            &mut both.source
                        } else {
                            &mut both.target
                        }) = size(&copy, random);
                    }
                    return;
                }
                _ => {}
            }
            &mut c.loops.stmts
        }
        Body::Window(w) => {
            match random.below(3) {
                0 => return list(&mut w.loops.parallel, random),
                1 => return window(w, &copy, random),
                _ => {}
            }
            &mut w.loops.stmts
        }
        Body::Transform(t) => {
            match random.below(5) {
                0 => return list(&mut t.parallel, random),
                1 => {
                    let [[a, b], [c, d]] = [&mut t.from, &mut t.to];
                    let which = random.below(4);
                    *[a, b, c, d].into_iter().nth(which).expect("one of four") = pick(axes, random);
                    return;
                }
                2 => {
                    let sides = [TransformSide::Image, TransformSide::Result];
                    t.matrix = TransformMatrix {
                        winograd: Winograd::ALL[random.below(2)],
                        side: sides[random.below(2)],
                    };
                    return;
                }
                3 => {
                    let condition = if random.once_in(2) {
                        &mut t.within
                    } else {
                        &mut t.inside
                    };
                    *condition = None;
                    return;
                }
                _ => {}
            }
            &mut t.stmts
        }
        Body::Contract(c) => match random.below(3) {
            0 => return contract(c, &copy, random),
            1 => {
                let lists = [&mut c.batch, &mut c.m, &mut c.n, &mut c.k];
                let which = random.below(4);
                return list(lists.into_iter().nth(which).expect("one of four"), random);
            }
            _ => &mut c.epilogue,
        },
        Body::Attention(a) => match random.below(5) {
            0 => {
                let which = random.below(4);
                let axes_of = [&mut a.q, &mut a.k, &mut a.d, &mut a.dv];
                *axes_of.into_iter().nth(which).expect("one of four") = pick(axes, random);
                return;
            }
            1 => return list(&mut a.batch, random),
            2 => {
                a.weights = match a.weights {
                    Weights::Softmax => Weights::Scores,
                    Weights::Scores => Weights::Softmax,
                };
                return;
            }
            3 => {
                let which = random.once_in(2);
                *(if which { &mut a.acc } else { &mut a.out }) = pick(vars, random);
                return;
            }
            _ => &mut a.epilogue,
        },
        Body::Scan(s) => match random.below(3) {
            0 => {
                s.axis = pick(axes, random);
                s.reverse ^= true;
                return;
            }
            1 => return list(&mut s.parallel, random),
            _ => &mut s.stores,
        },
        Body::Sort(s) => match random.below(4) {
            0 => {
                s.rank = pick(axes, random);
                return;
            }
            1 => {
                s.axis = pick(axes, random);
                return;
            }
            2 => return list(&mut s.parallel, random),
            _ => &mut s.stores,
        },
        Body::Recurrent(r) => match random.below(4) {
            0 => {
                let which = [&mut r.batch, &mut r.time, &mut r.gates, &mut r.hidden, &mut r.inner];
                for (at, axis) in which.into_iter().enumerate() {
                    if at == random.below(5) {
                        *axis = pick(axes, random);
                    }
                }
                return;
            }
            1 => {
                r.layer.reverse ^= true;
                r.layer.lengths ^= random.once_in(2);
                r.layer.rounded ^= random.once_in(2);
                return;
            }
            2 => {
                r.hidden_var = pick(vars, random);
                return;
            }
            _ => &mut r.stores,
        },
    };
    if stmts.is_empty() {
        return;
    }
    let at = random.below(stmts.len());
    match random.below(5) {
        0 => {
            let again = stmts[at].clone();
            stmts.push(again);
        }
        1 => {
            stmts.remove(at);
        }
        2 => {
            let other = random.below(stmts.len());
            stmts.swap(at, other);
        }
        _ => match &mut stmts[at] {
            Stmt::Let { var, .. } => *var = pick(vars, random),
            Stmt::Fold { var, op, axes, .. } => match random.below(3) {
                0 => *var = pick(vars, random),
                1 => {
                    *op = *random.of(&[
                        ReduceOp::Sum,
                        ReduceOp::Max,
                        ReduceOp::Prod,
                        ReduceOp::ArgMax,
                        ReduceOp::Any,
                    ])
                }
                _ => list(axes, random),
            },
            Stmt::Store { param, axes, .. } | Stmt::Update { param, axes, .. } => {
                if random.once_in(2) {
                    *param = pick(copy.params.len(), random);
                } else {
                    list(axes, random);
                }
            }
        },
    }
}

/// Changes one fact of a window.
fn window(w: &mut WindowBody, k: &Kernel, random: &mut Random) {
    let number = |random: &mut Random| match random.once_in(3) {
        true => random.odd(),
        false => random.below(6) as i64,
    };
    let axis = |random: &mut Random| (!random.once_in(3)).then(|| pick(k.axes.len(), random));
    let at = random.below(w.along.len().max(1));
    if let (true, WindowFold::Weighted { outside, .. }) = (random.once_in(8), &mut w.fold) {
        *outside = Scalar::Int(number(random));
        return;
    }
    let which = random.below(18);
    if let (10.., Some(images)) = (which, &mut w.images) {
        let which = match random.once_in(6) {
            true => 18 + random.below(2),
            false => which,
        };
        let (pooled, image, channel) = (&mut images.pooled, &mut images.image, &mut images.channel);
        let access = match (&mut images.target, which) {
            (target, 18) => return *target = None,
            (Some(target), 11) => return target.param = pick(k.params.len(), random),
            (Some(target), _) if random.once_in(2) => &mut target.at,
            _ => &mut images.from,
        };
        match which {
            10 => images.source = pick(k.params.len(), random),
            19 => *pooled = pick(k.exprs.len(), random),
            12 => *image = axis(random),
            13 => *channel = axis(random),
            14 => access.base = size(k, random),
            15 => access.image = size(k, random),
            16 => access.channel = size(k, random),
            _ => match access.along.get_mut(at) {
                Some(step) => *step = size(k, random),
                None => access.along.push(size(k, random)),
            },
        }
        return;
    }
    let Some(along) = w.along.get_mut(at) else { return };
    match which {
        0 => along.taps = axis(random),
        1 => along.outputs = axis(random),
        2 => along.stride = number(random),
        3 => along.dilation = number(random),
        4 => along.pad_low = number(random),
        5 => along.pad_high = number(random),
        6 => along.size = size(k, random),
        7 => along.guarded[random.below(2)] ^= true,
        8 => along.beyond ^= true,
        9 => w.counts ^= true,
        10 => w.images = None,
        11 => {
            w.along.pop();
        }
        _ => {
            let count_padding = random.once_in(2);
            w.fold = WindowFold::Pool(match w.pool() {
                Some(PoolKind::Max) | None => PoolKind::Average { count_padding },
                Some(PoolKind::Average { .. }) => PoolKind::Max,
            });
        }
    }
}

fn contract(c: &mut ContractBody, k: &Kernel, random: &mut Random) {
    let Some(facts) = &mut c.conv else {
        std::mem::swap(&mut c.lhs, &mut c.rhs);
        return;
    };
    let ConvFacts {
        input,
        filter,
        layout,
        window,
        groups,
        batch,
        channels,
        filters,
        input_size,
        kernel_size,
        output_size,
        pad_value,
        transposed,
    } = facts;
    let number = |random: &mut Random| match random.once_in(3) {
        true => random.odd(),
        false => random.below(6) as i64,
    };
    let one = |list: &mut Vec<i64>, random: &mut Random| {
        if let Some(at) = list.len().checked_sub(1 + random.below(2)) {
            list[at] = number(random);
        }
    };
    match random.below(16) {
        0 => *input = pick(k.params.len(), random),
        1 => *filter = pick(k.params.len(), random),
        2 => {
            *layout = match layout {
                Layout::ChannelsFirst => Layout::ChannelsLast,
                Layout::ChannelsLast => Layout::ChannelsFirst,
            }
        }
        3 => one(&mut window.strides, random),
        4 => one(&mut window.dilations, random),
        5 => one(&mut window.pad_low, random),
        6 => one(&mut window.pad_high, random),
        7 => *groups = number(random),
        8 => *batch = size(k, random),
        9 => *channels = size(k, random),
        10 => *filters = size(k, random),
        11 => one(kernel_size, random),
        12 => *pad_value = number(random),
        14 => *transposed = !*transposed,
        13 => {
            let at = random.below(input_size.len());
            if let Some(d) = input_size.get_mut(at) {
                *d = size(k, random);
            }
        }
        _ => {
            let at = random.below(output_size.len());
            if let Some(d) = output_size.get_mut(at) {
                *d = size(k, random);
            }
        }
    }
}

/// Changes one thing of a plan.
pub fn plan(p: &mut Plan, random: &mut Random) {
    let (buffers, steps, kernels) = (p.buffers.len(), p.steps.len(), p.kernels.len());
    let dims: Vec<Dim> = p.buffers.values().flat_map(|b| b.ty.shape.0.clone()).collect();
    let dim = |random: &mut Random| match dims.is_empty() || random.once_in(4) {
        true => Dim::Const(random.odd()),
        false => random.of(&dims).clone() + *random.of(&[0, 0, 1, -1]),
    };
    match random.below(10) {
        0 | 1 if kernels > 0 => kernel(&mut p.kernels[KernelId::new(random.below(kernels))], random),
        2 if buffers > 0 => {
            let ty = &mut p.buffers[BufferId::new(random.below(buffers))].ty;
            retype(ty, &dim, random);
        }
        3 if buffers > 0 => {
            let step = |random: &mut Random| pick::<StepId>(steps, random);
            p.buffers[BufferId::new(random.below(buffers))].place = match random.below(4) {
                0 => Place::Input,
                1 => Place::Output,
                2 if random.below(2) == 0 => Place::Streamed(ConstId::new(random.below(3))),
                2 => Place::Constant(ConstId::new(random.below(3))),
                _ => Place::Arena {
                    first: step(random),
                    last: step(random),
                    in_place_of: random.once_in(2).then(|| pick(buffers, random)),
                },
            };
        }
        4 | 5 if steps > 0 => {
            let step = &mut p.steps[StepId::new(random.below(steps))];
            let at = random.below(1 + step.choices.len());
            let Some(work) = step.works_mut().nth(at) else { return };
            match work {
                Work::Launch { kernel, args } => {
                    if args.is_empty() || random.once_in(3) {
                        *kernel = pick(kernels, random);
                    } else {
                        let at = random.below(args.len());
                        args[at] = pick(buffers, random);
                    }
                }
                Work::Copy { from, to } => {
                    *(if random.once_in(2) { from } else { to }) = pick(buffers, random);
                }
                Work::Call { operands, .. } => operands.truncate(1),
            }
        }
        6 => {
            let ports = if random.once_in(2) {
                &mut p.inputs
            } else {
                &mut p.outputs
            };
            if ports.is_empty() {
                return;
            }
            let at = random.below(ports.len());
            match random.below(3) {
                0 => ports[at].buffer = pick(buffers, random),
                1 => retype(&mut ports[at].ty, &dim, random),
                _ => {
                    ports.remove(at);
                }
            }
        }
        7 => {
            let info = p.symbols.values_mut().next();
            if let Some(info) = info {
                match random.below(3) {
                    0 => info.min = random.odd(),
                    1 => info.max = Some(random.odd()),
                    _ => info.hint = random.odd(),
                }
            }
        }
        8 => p.requirements.clear(),
        _ if steps > 1 => {
            let (a, b) = (StepId::new(random.below(steps)), StepId::new(random.below(steps)));
            let work = p.steps[a].work.clone();
            p.steps[a].work = std::mem::replace(&mut p.steps[b].work, work);
        }
        _ => {}
    }
}

fn retype(ty: &mut TensorType, dim: &dyn Fn(&mut Random) -> Dim, random: &mut Random) {
    if random.once_in(4) {
        ty.dtype = dtype(random);
    }
    let rank = ty.shape.0.len();
    match random.below(3) {
        0 => ty.shape.0.push(dim(random)),
        1 => {
            ty.shape.0.pop();
        }
        _ if rank > 0 => ty.shape.0[random.below(rank)] = dim(random),
        _ => {}
    }
}
