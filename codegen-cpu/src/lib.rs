//! Kernels to what the CPU runs ([`ir::host`]): a sibling of the code generator for GPUs.
//!
//! ```text
//! Kernel + sizes + constants --lower--> pieces: gemm, conv, integers, attention, rows, pool, copy, scan, sort, recurrent; loops over block programs
//! ```
//!
//! [`affine`] finds the indices that are sums of loop positions, [`places`] computes others once a run, [`block`]
//! compiles expressions to programs over blocks of points, [`loops`] shapes the blocks. A body that says what it is (a
//! product, a convolution, a row, a window, a copy) goes to its numeric kernel where the places of its operands are of
//! the kind which that takes; [`rewrite`] puts what is not into temporaries.
//!
//! Invariant: every place of a piece was shown to be inside its buffer at the sizes given, or says that it is to be
//! looked at.

mod affine;
mod attention;
mod block;
mod chosen;
mod contract;
mod conv;
mod copying;
mod folding;
mod hoist;
mod integers;
mod loops;
mod ordered;
mod places;
mod pooling;
mod quantised;
mod recurrent;
mod rewrite;
mod rows;
mod stages;
mod strided;
mod tables;
mod tile;

use ir::entity::Entity;
use ir::host::product::{IntegerWeights, Right};
use ir::host::{HostKernel, LowerError, Lowering, Piece, Setting};
use ir::kernel::{Body, CopyBody, Expr, Kernel, RowBody, WindowBody};

use affine::reachable;
use quantised::Scales;
use rewrite::Rewritten;
use stages::epilogue_exprs;

/// Returns the lowering of one program.
pub fn lowering() -> Box<dyn Lowering> {
    Box::<CpuLowering>::default()
}

/// The lowering of one program, with what it read of the program's constants.
#[derive(Default)]
struct CpuLowering {
    scales: Scales,
}

impl Lowering for CpuLowering {
    fn lower(&self, kernel: &Kernel, setting: &Setting<'_>) -> Result<HostKernel, LowerError> {
        let cx = setting;
        let mut rewritten = Rewritten::new(kernel);
        let mut pieces = Vec::new();
        let mut raw = vec![true; kernel.params.len()];
        match &kernel.body {
            Body::Loops(loops)
            | Body::Row(RowBody { loops, .. })
            | Body::Window(WindowBody { loops, .. })
            | Body::Copy(CopyBody { loops, .. }) => {
                let direct = match &kernel.body {
                    Body::Row(body) => rows::direct(kernel, body, cx)?.map(|r| Piece::Rows(Box::new(r))),
                    Body::Window(body) if pooling::lower(&mut rewritten, body, cx, &mut pieces)? => {
                        return Ok(lowered(rewritten, pieces, raw));
                    }
                    Body::Copy(body) => copying::lower(kernel, body, cx)?.map(|c| Piece::Copy(Box::new(c))),
                    _ => None,
                };
                match direct {
                    Some(direct) => pieces.push(direct),
                    None if folding::lower(&mut rewritten, &loops.parallel, &loops.stmts, cx, &mut pieces)?
                        || strided::lower(&mut rewritten, &loops.parallel, &loops.stmts, cx, &mut pieces)?
                        || made_dense(&mut rewritten, &kernel.body, cx, &mut pieces)? =>
                    {
                        return Ok(lowered(rewritten, pieces, raw));
                    }
                    None => {
                        places::lower(&mut rewritten, &loops.parallel, &loops.stmts, cx, &mut pieces)?;
                    }
                }
            }
            // Only plans for GPUs have them; the CPU's own kernels know when Winograd's transform pays.
            Body::Transform(_) => {
                return Err(LowerError::Unsupported {
                    what: "a transform of patches".to_owned(),
                    at: format!("kernel {}; compile for cpu", kernel.name),
                });
            }
            // Only plans for GPUs have them.
            Body::Contract(body) if body.pair.is_some() => {
                return Err(LowerError::Unsupported {
                    what: "a product whose epilogue has two columns at a time".to_owned(),
                    at: format!("kernel {}; compile for cpu", kernel.name),
                });
            }
            Body::Contract(body) if body.statistic.is_some() => {
                return Err(LowerError::Unsupported {
                    what: "a product that folds its rows beside their sums".to_owned(),
                    at: format!("kernel {}; compile for cpu", kernel.name),
                });
            }
            Body::Contract(body) => {
                contract::lower(&mut rewritten, body, cx, &self.scales, &mut pieces)?;
                if let [piece] = pieces.as_slice() {
                    for (param, raw) in raw.iter_mut().enumerate() {
                        *raw = !is_packed(piece, param, cx) || epilogue_reads(kernel, param);
                    }
                }
            }
            Body::Attention(body) => attention::lower(&mut rewritten, body, cx, &self.scales, &mut pieces)?,
            Body::Scan(body) => pieces.push(Piece::Scan(Box::new(ordered::scan(kernel, body, cx)?))),
            Body::Sort(body) => pieces.push(Piece::Sort(Box::new(ordered::sort(kernel, body, cx)?))),
            Body::Recurrent(body) => recurrent::lower(&mut rewritten, body, cx, &mut pieces)?,
        }
        Ok(lowered(rewritten, pieces, raw))
    }
}

/// Takes a row's composite by [`rows::made_dense`]; says no to all other bodies.
fn made_dense(
    rewritten: &mut Rewritten,
    body: &Body,
    cx: &Setting<'_>,
    pieces: &mut Vec<Piece>,
) -> Result<bool, LowerError> {
    match body {
        Body::Row(body) => rows::made_dense(rewritten, body, cx, pieces),
        _ => Ok(false),
    }
}

fn lowered(rewritten: Rewritten, pieces: Vec<Piece>, raw: Vec<bool>) -> HostKernel {
    HostKernel {
        pieces,
        temporaries: rewritten.temps,
        raw,
    }
}

/// Says whether a product reads a parameter as packed panels only.
fn is_packed(piece: &Piece, param: usize, cx: &Setting<'_>) -> bool {
    match piece {
        Piece::Gemm(p) => {
            let reads = p.a.param == param
                || p.epilogue.bias.is_some_and(|b| b.0 == param)
                || p.epilogue.residual.as_ref().is_some_and(|r| r.param == param);
            let packed = match &p.right {
                Right::Plain => false,
                Right::Packed(_) => p.b.param == param,
                // The scales and zero points of what is packed quantised are in the panels.
                Right::Quantised(_) => cx.constant(param).is_some(),
            };
            packed && !reads
        }
        Piece::Conv(p) => p.filter == param && p.input != param,
        Piece::Integers(p) => {
            let given = matches!(p.right, IntegerWeights::Given { .. });
            p.filter == param && p.input != param && !given
        }
        _ => false,
    }
}

/// Says whether a contraction's epilogue reads the parameter too.
fn epilogue_reads(kernel: &Kernel, param: usize) -> bool {
    let Some(body) = contract::body(kernel) else {
        return true;
    };
    let mut exprs = epilogue_exprs(&body.epilogue);
    exprs.push(body.lhs.value);
    reachable(kernel, &exprs)
        .into_iter()
        .any(|e| matches!(kernel.exprs[e], Expr::Load { param: p, .. } if p.index() == param))
}
