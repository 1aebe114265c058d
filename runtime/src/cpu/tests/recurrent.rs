//! Kernels of recurrent layers.

use ir::kernel::{Body, RecurrentBody};
use ir::op::{Activation, ActivationKind, Cell, Recurrent};
use ir::{DType, HostTensor, Scalar, Symbol};

use super::build::{Build, Random, c, sym};
use super::{buffers, check_with, sizes};

/// A layer over `[t, b]` rows of `h` hidden numbers, from given states or from zeros.
fn kernel(layer: Recurrent, zeros: bool) -> ir::Kernel {
    let mut b = Build::new("recurrent");
    b.kernel.symbols = ["t", "b", "h"].map(Symbol::new).to_vec();
    let (t, rows, h) = (sym("t"), sym("b"), sym("h"));
    let all = h.clone() * layer.cell.gates();
    let (time, batch) = (b.axis("t", t.clone()), b.axis("b", rows.clone()));
    let (gates, hidden, inner) = (b.axis("g", all.clone()), b.axis("j", h.clone()), b.axis("k", h.clone()));
    let places = layer.places();
    let seen = places.peepholes.map(|_| b.axis("seen", h.clone() * 3));
    let zero = b.num(0.0);
    let mut operand = |name: &str, dtype: DType, size: ir::Dim, at: &[(ir::kernel::AxisId, ir::Dim)]| {
        let param = b.read(name, dtype, size);
        let index = b.index(0, at);
        b.load(param, index)
    };
    let f32 = DType::F32;
    let input = operand(
        "x",
        f32,
        t.clone() * rows.clone() * all.clone(),
        &[(time, rows.clone() * all.clone()), (batch, all.clone()), (gates, c(1))],
    );
    let weights = operand("r", f32, all * h.clone(), &[(gates, h.clone()), (inner, c(1))]);
    let row = [(batch, h.clone()), (hidden, c(1))];
    let first = match zeros {
        true => zero,
        false => operand("h0", f32, rows.clone() * h.clone(), &row),
    };
    let first_cell = places.cell.map(|_| operand("c0", f32, rows.clone() * h.clone(), &row));
    let bias = places.bias.map(|_| operand("bias", f32, h.clone(), &[(hidden, c(1))]));
    let peepholes = seen.map(|seen| operand("p", f32, h.clone() * 3, &[(seen, c(1))]));
    let lengths = places
        .lengths
        .map(|_| operand("lengths", DType::I64, rows.clone(), &[(batch, c(1))]));
    let states = layer.states();
    let out = b.write("out", f32, t * rows.clone() * h.clone() * states);
    let (hidden_var, cell_var) = (b.var(f32), b.var(f32));
    let mut stores = Vec::new();
    for (state, var) in [hidden_var, cell_var].into_iter().take(states as usize).enumerate() {
        let wide = h.clone() * states;
        let place = b.index(0, &[(time, rows.clone() * wide.clone()), (batch, wide), (hidden, c(1))]);
        let place = match state {
            0 => place,
            _ => {
                let size = b.size(h.clone());
                b.add(place, size)
            }
        };
        let value = b.value(var);
        stores.push(b.store(out, place, value, &[]));
    }
    b.kernel.body = Body::Recurrent(RecurrentBody {
        layer,
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
    });
    b.kernel
}

fn layer(cell: Cell, kinds: [ActivationKind; 3], reverse: bool, lengths: bool) -> Recurrent {
    Recurrent {
        cell,
        activations: kinds.map(Activation::of),
        clip: None,
        reverse,
        lengths,
        rounded: false,
    }
}

#[test]
fn layers_agree_with_the_interpreter_at_all_sizes() {
    use ActivationKind::{
        Affine, Elu, HardSigmoid, LeakyRelu, Relu, ScaledTanh, Sigmoid, Softplus, Softsign, Tanh, ThresholdedRelu,
    };
    let lstm = |input_forget, peepholes, states| Cell::Lstm {
        input_forget,
        peepholes,
        states,
    };
    let layers = [
        layer(Cell::Rnn, [Tanh; 3], false, false),
        layer(Cell::Rnn, [Softplus; 3], true, true),
        layer(Cell::Gru { reset_after: false }, [Sigmoid, Tanh, Tanh], true, false),
        layer(Cell::Gru { reset_after: true }, [HardSigmoid, Elu, Tanh], false, true),
        layer(lstm(false, false, true), [Sigmoid, Tanh, Tanh], false, false),
        layer(lstm(false, true, false), [Sigmoid, Softsign, ScaledTanh], true, true),
        layer(
            lstm(true, false, true),
            [HardSigmoid, LeakyRelu, ThresholdedRelu],
            false,
            true,
        ),
        Recurrent {
            rounded: true,
            ..layer(Cell::Gru { reset_after: false }, [Sigmoid, Tanh, Tanh], false, true)
        },
        Recurrent {
            rounded: true,
            ..layer(lstm(false, false, true), [Sigmoid, Tanh, Tanh], true, false)
        },
        Recurrent {
            clip: Some(Scalar::Float(0.25)),
            ..layer(lstm(false, true, true), [Affine, Relu, Affine], true, false)
        },
    ];
    for (at, layer) in layers.into_iter().enumerate() {
        let zeros = at % 2 == 1;
        let kernel = kernel(layer, zeros);
        ir::kernel::verify::verify(&kernel).unwrap();
        for (t, b, h) in [
            (1, 1, 1),
            (3, 2, 5),
            (0, 3, 8),
            (4, 19, 16),
            (2, 1, 33),
            (3, 2, 130),
            (2, 7, 70),
        ] {
            let at = sizes(&[("t", t), ("b", b), ("h", h)]);
            let mut given = buffers(&kernel, &at, 7);
            let mut random = Random(5);
            for (param, tensor) in kernel.params.values().zip(&mut given) {
                let count = tensor.elements();
                *tensor = match param.name.as_str() {
                    // From no step to all of them.
                    "lengths" => HostTensor::from_i64(
                        DType::I64,
                        tensor.shape.clone(),
                        &(0..count as i64).map(|row| row % (t + 1)).collect::<Vec<_>>(),
                    ),
                    _ => HostTensor::from_f64(
                        DType::F32,
                        tensor.shape.clone(),
                        &(0..count).map(|_| 0.5 * random.float()).collect::<Vec<_>>(),
                    ),
                }
                .unwrap();
            }
            // Weights that the run gives, and those that are packed at load.
            for constants in [&[][..], &[1]] {
                let pieces = check_with(&kernel, &at, given.clone(), constants, 2e-5);
                assert_eq!(pieces.last(), Some(&"recurrent"));
                assert_eq!(pieces.len(), if zeros { 2 } else { 1 });
            }
        }
    }
}
