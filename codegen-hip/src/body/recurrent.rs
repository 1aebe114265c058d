//! Recurrent layers: lambdas for the operands, the activations and the stores around a workgroup's steps.

use ir::kernel::{AxisId, Expr, ExprId, Mapping, RecurrentBody, Steps};
use ir::op::{Activation, ActivationKind, Cell};
use ir::{DType, Entity, Scalar};

use crate::emit::EmitError;
use crate::expr::Printer;
use crate::types::{literal, spelling};

/// What the device library calls an operand or a function that a layer does not have.
const NOTHING: &str = "Nothing{}";

impl Printer<'_> {
    pub(super) fn recurrent(&mut self, body: &RecurrentBody) -> Result<(), EmitError> {
        let (Mapping::Steps(steps), Some(hidden)) = (
            self.kernel.mapping.clone(),
            self.kernel.axes[body.hidden].extent.as_const(),
        ) else {
            return Err(self.mismatch());
        };
        let layer = &body.layer;
        let (cell, input_forget, peepholes) = match layer.cell {
            Cell::Rnn => ("Rnn", false, false),
            Cell::Gru { reset_after: false } => ("Gru", false, false),
            Cell::Gru { reset_after: true } => ("GruResetAfter", false, false),
            Cell::Lstm {
                input_forget,
                peepholes,
                states: _,
            } => ("Lstm", input_forget, peepholes),
        };
        let Steps {
            block,
            rows,
            lanes,
            width,
            held,
        } = steps;
        let wave = self.target.wave_size;
        let stored = spelling(self.kernel.exprs.dtype(body.stored_weights(&self.kernel.exprs)));
        self.out.line(format!(
            "using Tile = RecurrentTile<RecurrentCell::{cell}, {stored}, {hidden}, {block}, {wave}, {rows}, {lanes}, {width}, {held}>;"
        ));
        let (reverse, rounded) = (layer.reverse, layer.rounded);
        self.out.line(format!(
            "using Options = RecurrentOptions<{reverse}, {input_forget}, {peepholes}, {rounded}>;"
        ));
        let kind = self.axis_type(body.batch);
        let [batch, time] = [body.batch, body.time].map(|axis| self.size(&self.kernel.axes[axis].extent));
        let first_row = self.fresh("first_row");
        self.out.open(format!(
            "for ({kind} {first_row} = {kind}(blockIdx.x) * {rows}; {first_row} < {batch}; {first_row} += {kind}(gridDim.x) * {rows})"
        ));
        let row = [body.batch, body.hidden];
        let input = self.element("input", &[body.time, body.batch, body.gates], body.input);
        let weights = self.gate_weights(body, width);
        let first = self.element("first_state", &row, body.first);
        let optional = |p: &mut Self, name: &str, axes: &[AxisId], value: Option<ExprId>| match value {
            Some(value) => p.element(name, axes, value),
            None => NOTHING.to_owned(),
        };
        let first_cell = optional(self, "first_cell", &row, body.first_cell);
        let bias = optional(self, "bias", &[body.hidden], body.bias);
        let seen: Vec<AxisId> = body.seen.into_iter().collect();
        let peephole = optional(self, "peephole", &seen, body.peepholes);
        let length = match body.lengths {
            Some(lengths) => self.element("row_length", &[body.batch], lengths),
            None => {
                let name = self.fresh("row_length");
                self.out
                    .line(format!("const auto {name} = [&]({kind}) -> i64 {{ return {time}; }};"));
                name
            }
        };
        let names = ["gate", "candidate", "output"];
        let functions: Vec<String> = (0..3)
            .map(|which| match which < layer.cell.activations() {
                true => {
                    let clip = layer.clip.filter(|_| which < 2);
                    self.activation(names[which], &layer.activations[which], clip.map(|clip| clip.as_f64()))
                }
                false => NOTHING.to_owned(),
            })
            .collect();
        let store = self.store_states(body);
        let arguments = [
            first_row, batch, time, input, weights, first, first_cell, bias, peephole, length,
        ];
        let arguments = [&arguments[..], &functions[..], &[store]].concat().join(", ");
        let counts = format!("{kind}, {}", self.axis_type(body.time));
        self.out
            .line(format!("recurrent<Tile, Options, {counts}>({arguments});"));
        self.out.close("");
        Ok(())
    }

    /// Declares an operand's element over axes; returns the lambda's name.
    fn element(&mut self, name: &str, axes: &[AxisId], value: ExprId) -> String {
        let name = self.fresh(name);
        let kind = match self.kernel.exprs.dtype(value) {
            DType::I64 => "i64",
            _ => "float",
        };
        let parameters = self.parameters(axes);
        self.scope(|p| {
            p.out.open(format!("const auto {name} = [&]({parameters}) -> {kind}"));
            let spelled = p.value(value);
            p.out.line(format!("return {spelled};"));
            p.out.close(";");
        });
        name
    }

    /// Declares neighbouring weights of a gate; returns the lambda's name.
    fn gate_weights(&mut self, body: &RecurrentBody, width: u32) -> String {
        let name = self.fresh("weights");
        let parameters = self.parameters(&[body.gates, body.inner]);
        self.scope(|p| {
            let stored = body.stored_weights(&p.kernel.exprs);
            let kind = spelling(p.kernel.exprs.dtype(stored));
            p.out
                .open(format!("const auto {name} = [&]({parameters}) -> Vec<{kind}, {width}>"));
            match p.kernel.exprs[stored] {
                Expr::Load { param, index } if width > 1 => {
                    let index = p.value(index);
                    let base = p.params[param.index()].clone();
                    p.out.line(format!("return load_whole<{width}>({base} + ({index}));"));
                }
                _ => {
                    let spelled = p.value(stored);
                    p.out.line(format!("return {{{{{spelled}}}}};"));
                }
            }
            p.out.close(";");
        });
        name
    }

    /// Declares an activation, its operand limited to `clip` on both sides of 0; returns the lambda's name.
    fn activation(&mut self, name: &str, of: &Activation, clip: Option<f64>) -> String {
        let name = self.fresh(name);
        let number = |x: f64| literal(DType::F32, Scalar::Float(x));
        let (alpha, beta) = (number(of.alpha.as_f64()), number(of.beta.as_f64()));
        let value = match of.kind {
            ActivationKind::Affine => format!("{alpha} * x + {beta}"),
            ActivationKind::Relu => "math::relu(x)".to_owned(),
            ActivationKind::LeakyRelu => format!("x < 0.0f ? {alpha} * x : x"),
            ActivationKind::ThresholdedRelu => format!("x < {alpha} ? 0.0f : x"),
            ActivationKind::ScaledTanh => format!("{alpha} * math::tanh({beta} * x)"),
            ActivationKind::HardSigmoid => format!("math::min(math::max({alpha} * x + {beta}, 0.0f), 1.0f)"),
            ActivationKind::Sigmoid => "math::sigmoid(x)".to_owned(),
            ActivationKind::Tanh => "math::tanh(x)".to_owned(),
            ActivationKind::Elu => format!("x < 0.0f ? {alpha} * math::expm1(x) : x"),
            ActivationKind::Softsign => "x / (1.0f + math::abs(x))".to_owned(),
            ActivationKind::Softplus => "math::softplus(x)".to_owned(),
        };
        self.out.open(format!("const auto {name} = [](float x) -> float"));
        if let Some(clip) = clip {
            self.out.line(format!(
                "x = math::min(math::max(x, {}), {});",
                number(-clip),
                number(clip)
            ));
        }
        self.out.line(format!("return {value};"));
        self.out.close(";");
        name
    }

    /// Declares what takes the states of a step; returns the lambda's name.
    fn store_states(&mut self, body: &RecurrentBody) -> String {
        let name = self.fresh("store_states");
        let parameters = self.parameters(&body.cells());
        self.scope(|p| {
            let (hidden, cell) = (p.name_var(body.hidden_var, "hidden"), p.name_var(body.cell_var, "cell"));
            p.out.open(format!(
                "const auto {name} = [&]({parameters}, float {hidden}, float {cell})"
            ));
            p.straight(&body.stores);
            p.out.close(";");
        });
        name
    }

    /// A lambda's parameters for positions along axes.
    fn parameters(&self, axes: &[AxisId]) -> String {
        let each: Vec<String> = axes
            .iter()
            .map(|axis| format!("{} {}", self.axis_type(*axis), self.axis(*axis)))
            .collect();
        each.join(", ")
    }
}
