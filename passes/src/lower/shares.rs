//! The memory that workgroups need which share out the depth of a product's tiles.
//!
//! Before: a product whose tiles are a workgroup's each. After: the same product with scratch memory for the sums of
//! pieces of tiles and with a ticket for each shared tile. Tickets are zeros before each launch and put back by it, so
//! that one kernel, which puts zeros there before the first, serves all products of a plan.

use ir::kernel::{Access, Axis, Body, Expr, Exprs, Kernel, Loops, Mapping, Param, Shares, Stmt};
use ir::{DType, Dim, Scalar, Shape, Table, Target, TensorType};

use super::mapping;

/// A product with shared tiles, whose last two parameters are its own memory.
pub struct Shared {
    pub kernel: Kernel,
    /// The sums of pieces of tiles.
    pub sums: TensorType,
}

/// Gives a product a mapping that shares tiles, and its memory; `None` for every other body or mapping.
pub fn shared(mut kernel: Kernel, mapping: Mapping) -> Option<Shared> {
    let (Mapping::Matrix(tiling), Body::Contract(body)) = (&mapping, &kernel.body) else {
        return None;
    };
    let sums = TensorType::new(
        kernel.vars[body.acc],
        Shape(vec![Dim::Const(tiling.shares?.scratch(tiling.block))]),
    );
    for (name, ty, access) in [
        ("sums", &sums, Access::Scratch),
        ("tickets", &tickets(), Access::Tickets),
    ] {
        kernel.params.push(Param {
            name: name.to_owned(),
            dtype: ty.dtype,
            elements: ty.elements(),
            access,
        });
    }
    kernel.mapping = mapping;
    Some(Shared { kernel, sums })
}

/// The tickets of a plan: as many as any product has.
pub fn tickets() -> TensorType {
    TensorType::new(DType::I32, Shape(vec![Dim::Const(Shares::MOST.into())]))
}

/// The kernel that puts zeros into the tickets.
pub fn zero_tickets(target: &Target) -> Kernel {
    let elements = tickets().elements();
    let (mut params, mut axes, mut exprs) = (Table::new(), Table::new(), Exprs::default());
    let param = params.push(Param {
        name: "tickets".to_owned(),
        dtype: DType::I32,
        elements: elements.clone(),
        access: Access::Write,
    });
    let axis = axes.push(Axis {
        name: "ticket".to_owned(),
        extent: elements,
    });
    let value = exprs.add(Expr::Const(DType::I32, Scalar::Int(0)), DType::I32);
    let index = exprs.add(Expr::Axis(axis), DType::I64);
    let mut kernel = Kernel {
        name: "zero_tickets".to_owned(),
        params,
        symbols: Vec::new(),
        axes,
        exprs,
        vars: Table::new(),
        body: Body::Loops(Loops {
            parallel: vec![axis],
            stmts: vec![Stmt::Store {
                param,
                index,
                value,
                axes: Vec::new(),
            }],
        }),
        mapping: Mapping::Host,
        origins: Vec::new(),
    };
    kernel.mapping = mapping::choose(&kernel, &ir::Symbols::new(), target);
    kernel
}
