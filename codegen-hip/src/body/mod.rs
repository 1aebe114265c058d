//! One file for each kind of body.

mod attention;
mod contract;
mod loops;
mod matrix;
mod recurrent;
mod rows;
mod scan;
mod sort;
mod stream;
mod strips;
mod team;
mod transform;
mod transpose;
mod window;

use ir::kernel::{AxisId, Body};

use crate::emit::EmitError;
use crate::expr::Printer;

impl Printer<'_> {
    /// Prints the kernel's body as its mapping says.
    pub fn body(&mut self) -> Result<(), EmitError> {
        match &self.kernel.body {
            Body::Loops(b) => self.loops(b),
            Body::Row(b) => self.row(b),
            // Where elements are, its loops' indices say too.
            Body::Copy(b) => self.loops(&b.loops),
            Body::Window(b) => self.window(b),
            Body::Transform(b) => self.transform(b),
            Body::Contract(b) => self.contract(b),
            Body::Attention(b) => self.attention(b),
            Body::Scan(b) => self.scan(b),
            Body::Sort(b) => self.sort(b),
            Body::Recurrent(b) => self.recurrent(b),
        }
    }

    fn mismatch(&self) -> EmitError {
        EmitError::Mapping {
            kernel: self.kernel.name.clone(),
            mapping: format!("{:?}", self.kernel.mapping),
        }
    }

    /// Opens the loop of a thread over its points of `axes`, and declares the axes.
    fn open_thread_points(&mut self, axes: &[AxisId]) {
        let (n, kind) = self.points(axes);
        let name = self.flat_name(axes, "point");
        let n = self.size(&n);
        self.out.open(format!(
            "for ({kind} {name} = global_thread<{kind}>(); {name} < {n}; {name} += grid_threads<{kind}>())"
        ));
        self.split(&name, kind, axes);
    }

    /// Opens the loop of a workgroup over its points of `axes`, and declares the axes.
    fn open_block_points(&mut self, axes: &[AxisId]) {
        let (n, kind) = self.points(axes);
        let name = self.flat_name(axes, "point");
        let n = self.size(&n);
        self.out.open(format!(
            "for ({kind} {name} = blockIdx.x; {name} < {n}; {name} += gridDim.x)"
        ));
        self.split(&name, kind, axes);
    }

    /// Opens the loop of a group of lanes over its points of `axes`, and declares the axes.
    fn open_lane_points(&mut self, axes: &[AxisId], lanes: u32) {
        let points = self.points(axes).0;
        let kind = self.threads(&points, lanes);
        let (name, n) = (self.flat_name(axes, "point"), self.size(&points));
        self.out.open(format!(
            "for ({kind} {name} = global_thread<{kind}>() / {lanes}; {name} < {n}; {name} += grid_threads<{kind}>() / {lanes})"
        ));
        self.split(&name, kind, axes);
    }

    /// The name of a flat position: the axis's own where there is just one.
    fn flat_name(&mut self, axes: &[AxisId], base: &str) -> String {
        match axes {
            [only] => self.axis(*only).to_owned(),
            _ => self.fresh(base),
        }
    }

    /// Opens the loop over the batches of the z dimension of the grid; says whether there was anything to loop over.
    fn open_batch(&mut self, batch: &[AxisId]) -> bool {
        if batch.is_empty() {
            return false;
        }
        let (n, kind) = self.points(batch);
        let name = self.flat_name(batch, "batch_point");
        let n = self.size(&n);
        self.out.open(format!(
            "for ({kind} {name} = blockIdx.z; {name} < {n}; {name} += gridDim.z)"
        ));
        self.split(&name, kind, batch);
        true
    }

    /// A lambda's parameter for a flat position over `axes`; the caller declares the axes inside.
    fn lambda_position(&mut self, axes: &[AxisId], base: &str) -> String {
        self.flat_name(axes, base)
    }
}

/// An operand of a sum in brackets, where it is more than a name.
fn parenthesised(text: &str) -> String {
    if text.contains(' ') {
        format!("({text})")
    } else {
        text.to_owned()
    }
}
