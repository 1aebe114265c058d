//! Recurrent layers: a body of their own, whose operands and result are stored tensors.

use ir::kernel::{Axis, AxisId, Body, RecurrentBody};
use ir::op::Recurrent;
use ir::{DType, Dim, Value};

use super::LowerError;
use super::builder::Builder;
use super::index::Linear;

fn axis(b: &mut Builder<'_>, name: &str, extent: &Dim) -> AxisId {
    let axis = b.axes.push(Axis {
        name: name.to_owned(),
        extent: extent.clone(),
    });
    b.extents.push(extent.clone());
    axis
}

/// The steps of a layer.
pub fn recurrent(b: &mut Builder<'_>, layer: &Recurrent) -> Result<Body, LowerError> {
    let anchor = b.region.anchor;
    let operands = b.graph.node(anchor).operands.clone();
    let (x, row) = (b.shape(operands[0]).clone(), b.shape(operands[2]).clone());
    let size = row[1].clone();
    let time = axis(b, "step", &x[0]);
    let batch = axis(b, "row", &x[1]);
    let gates = axis(b, "gate", &x[2]);
    let hidden = axis(b, "j", &size);
    let inner = axis(b, "k", &size);
    let places = layer.places();
    let seen = places.peepholes.map(|_| axis(b, "seen", &(size.clone() * 3)));
    let at = |axes: &[AxisId]| axes.iter().map(|a| Linear::axis(*a)).collect::<Vec<_>>();
    let input = b.pull(operands[0], &at(&[time, batch, gates]))?;
    let weights = b.pull(operands[1], &at(&[gates, inner]))?;
    let weights = b.widen(weights);
    let first = b.pull(operands[2], &at(&[batch, hidden]))?;
    let other = |b: &mut Builder<'_>, place: Option<usize>, axes: Vec<AxisId>| {
        place.map(|place| b.pull(operands[place], &at(&axes))).transpose()
    };
    let first_cell = other(b, places.cell, vec![batch, hidden])?;
    let bias = other(b, places.bias, vec![hidden])?;
    let peepholes = other(b, places.peepholes, seen.into_iter().collect())?;
    let lengths = other(b, places.lengths, vec![batch])?;
    let (hidden_var, cell_var) = (b.var(DType::F32), b.var(DType::F32));
    let result = Value::new(anchor, 0);
    let mut stores = Vec::new();
    for state in 0..layer.states() {
        let e = b.read(if state == 0 { hidden_var } else { cell_var });
        let column = Linear::axis(hidden).offset(&(size.clone() * state));
        let coords = vec![Linear::axis(time), Linear::axis(batch), column];
        stores.extend(b.store(result, e, &coords, &[]));
    }
    Ok(Body::Recurrent(RecurrentBody {
        layer: *layer,
        batch,
        time,
        gates,
        hidden,
        inner,
        seen,
        input,
        weights,
        first,
        first_cell,
        bias,
        peepholes,
        lengths,
        hidden_var,
        cell_var,
        stores,
    }))
}
