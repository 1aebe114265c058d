//! Makes equal nodes one: same op, same operands, and constants of equal bytes, wherever they are and however many.
//!
//! ```text
//! a = exp x; b = exp x; add a, b      becomes      a = exp x; add a, a
//! ```

use crate::rewrite::Builder;
use crate::runner::Pass;

/// The pass.
pub const PASS: Pass = Pass {
    name: "cse",
    run: |graph, context| {
        // The builder interns every node that it is given.
        let mut builder = Builder::new(graph, "cse");
        builder.copy_rest()?;
        Ok(builder.finish(&mut context.fired))
    },
    required: false,
};
