//! Transforms: a thread has a square, or those of neighbouring channels, in registers.
//!
//! ```text
//! float square[6][6][2];
//! for (int i = 0; i < 6; ++i) for (int j = 0; j < 6; ++j) square[i][j][..] = within ? x[..] : 0;
//! winograd_image(square);
//! for (int a = 0; a < 6; ++a) for (int b = 0; b < 6; ++b) v[..] = square[a][b][..];
//! ```
//!
//! All of these loops are unrolled. What is outside of the image is read at its edge, so that no read waits for a
//! branch.

use ir::kernel::{AxisId, Mapping, TransformBody, TransformSide};

use crate::emit::EmitError;
use crate::expr::Printer;

/// The neighbours that a thread has the squares of.
struct Neighbours {
    axis: AxisId,
    name: String,
    start: String,
    vector: u32,
}

impl Printer<'_> {
    pub(super) fn transform(&mut self, body: &TransformBody) -> Result<(), EmitError> {
        let neighbours = match (&self.kernel.mapping, body.parallel.last()) {
            (Mapping::Threads { vector: 1, .. }, _) => {
                self.open_thread_points(&body.parallel);
                None
            }
            (&Mapping::Threads { vector, .. }, Some(&axis)) => {
                let groups = self.groups_along(&body.parallel, vector)?;
                if !groups.whole {
                    return Err(self.mismatch());
                }
                let start = self.open_groups(&groups);
                let name = self.axis(axis).to_owned();
                Some(Neighbours {
                    axis,
                    name,
                    start,
                    vector,
                })
            }
            _ => return Err(self.mismatch()),
        };
        let (square, inputs) = (self.fresh("square"), body.matrix.inputs());
        let vector = neighbours.as_ref().map_or(1, |n| n.vector);
        self.out.line(format!("float {square}[{inputs}][{inputs}][{vector}];"));
        self.unrolled(body.from, |p, at| {
            p.take(body, neighbours.as_ref(), &format!("{square}{at}"))
        });
        let transform = match body.matrix.side {
            TransformSide::Image => "winograd_image",
            TransformSide::Result => "winograd_result",
        };
        self.out.line(format!("{transform}({square});"));
        self.unrolled(body.to, |p, at| {
            p.give(body, neighbours.as_ref(), &format!("{square}{at}"))
        });
        self.out.close("");
        Ok(())
    }

    /// Unrolled loops over the rows and the columns of a square around `inside`, which is given the place of an
    /// element.
    fn unrolled(&mut self, axes: [AxisId; 2], inside: impl FnOnce(&mut Self, &str)) {
        self.scope(|p| {
            let mut at = String::new();
            for axis in axes {
                let (kind, name) = (p.axis_type(axis), p.axis(axis).to_owned());
                let extent = p.size(&p.kernel.axes[axis].extent);
                p.out.line("#pragma unroll");
                p.out
                    .open(format!("for ({kind} {name} = 0; {name} < {extent}; ++{name})"));
                at += &format!("[{name}]");
            }
            inside(p, &at);
            axes.iter().for_each(|_| p.out.close(""));
        });
    }

    /// Reads an element of each square.
    fn take(&mut self, body: &TransformBody, neighbours: Option<&Neighbours>, into: &str) {
        let within = body.within.map(|condition| {
            let (spelled, name) = (self.value(condition), self.fresh("within"));
            self.out.line(format!("const bool {name} = {spelled};"));
            name
        });
        let taken = |value: String| match &within {
            Some(within) => format!("{within} ? {value} : 0.0f"),
            None => value,
        };
        let Some(n) = neighbours else {
            let element = self.value(body.element);
            self.out.line(format!("{into}[0] = {};", taken(element)));
            return;
        };
        let lane = self.fresh("lane");
        let wide = self.wide_loads(&[body.element], n.axis, &n.name, &n.start, n.vector, &lane);
        self.out.line("#pragma unroll");
        self.out
            .open(format!("for (int {lane} = 0; {lane} < {}; ++{lane})", n.vector));
        self.scope(|p| {
            let kind = p.axis_type(n.axis);
            p.out.line(format!("const {kind} {} = {} + {lane};", n.name, n.start));
            wide.iter().for_each(|(e, text)| p.bind_expr(*e, text));
            let element = p.value(body.element);
            p.out.line(format!("{into}[{lane}] = {};", taken(element)));
        });
        self.out.close("");
    }

    /// Does the statements of an element of each square's transform.
    fn give(&mut self, body: &TransformBody, neighbours: Option<&Neighbours>, from: &str) {
        if let Some(inside) = body.inside {
            let inside = self.value(inside);
            self.out.open(format!("if ({inside})"));
        }
        self.scope(|p| match neighbours {
            None => {
                p.bind_var(body.var, &format!("{from}[0]"));
                p.straight(&body.stmts);
            }
            Some(n) => {
                let given = [(body.var, format!("{from}[{{j}}]"))];
                p.one_group(&body.stmts, n.axis, &n.name, &n.start, n.vector, &given);
            }
        });
        if body.inside.is_some() {
            self.out.close("");
        }
    }
}
