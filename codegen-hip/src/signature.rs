//! The head of a kernel: what it computes, headers, and the `extern "C"` signature.

use ir::Entity;
use ir::kernel::{Access, Body, CopyBody, Kernel, Mapping, Stmt};

use crate::expr::Printer;
use crate::types::in_memory;

impl Printer<'_> {
    /// Writes everything up to what the body computes. Of parameters that share bytes with another one nothing else is
    /// said, nor of those that the launch before may write while a kernel reads its constants: what never changes may
    /// be read at any time.
    pub fn open_kernel(&mut self, block: u32, aliased: &[bool]) {
        let kernel = self.kernel;
        for origin in &kernel.origins {
            self.out.line(format!("// {}", origin.replace(['\n', '\r', '\\'], " ")));
        }
        for header in headers(kernel) {
            self.out.line(format!("#include \"{header}\""));
        }
        self.out.line("");
        self.out.line("using namespace graphc;");
        self.out.line("");
        let mut arguments: Vec<String> = Vec::new();
        let early: Vec<usize> = match &kernel.body {
            Body::Contract(body) if self.reads_early => {
                let loaded = kernel.loaded_by(body.rhs.value);
                loaded.iter().map(|param| param.index()).collect()
            }
            _ => (0..kernel.params.len()).collect(),
        };
        for (i, p) in kernel.params.values().enumerate() {
            let constant = if p.access == Access::Read { "const " } else { "" };
            let restrict = if aliased.get(i).is_some_and(|aliased| *aliased) || !early.contains(&i) {
                ""
            } else {
                " __restrict__"
            };
            arguments.push(format!(
                "{constant}{}*{restrict} {}",
                in_memory(p.dtype),
                self.params[i]
            ));
        }
        arguments.extend(self.size_names().map(|s| format!("const i64 {s}")));
        let name = crate::name::entry(&kernel.name);
        let resident = kernel
            .resident_workgroups()
            .map_or_else(String::new, |workgroups| format!(", {workgroups}"));
        let bounds = format!("{block}{resident}");
        self.out
            .line(format!("extern \"C\" __global__ void __launch_bounds__({bounds})"));
        self.out.open(format!("{name}({})", arguments.join(", ")));
        if self.lets_next_begin {
            self.out.line("let_next_launch_begin();");
        }
        if self.target.overlaps_launches && !self.reads_early {
            self.out.line("wait_for_launch_before();");
        }
    }
}

/// The headers that a kernel's text needs.
fn headers(kernel: &Kernel) -> Vec<&'static str> {
    let mut headers = vec!["graphc_vector.hip.h", "graphc_math.hip.h"];
    match &kernel.body {
        Body::Loops(l) | Body::Copy(CopyBody { loops: l, .. }) => {
            let reduces = l
                .stmts
                .iter()
                .any(|s| matches!(s, Stmt::Fold { .. } | Stmt::Update { .. }));
            if reduces {
                headers.push("graphc_reduce.hip.h");
            }
            if matches!(kernel.mapping, Mapping::Transpose { .. }) {
                headers.push("graphc_transpose.hip.h");
            }
        }
        Body::Window(_) if matches!(kernel.mapping, Mapping::Strips(_)) => headers.push("graphc_strip.hip.h"),
        Body::Row(_) | Body::Window(_) => headers.push("graphc_reduce.hip.h"),
        Body::Transform(_) => headers.push("graphc_winograd.hip.h"),
        Body::Contract(c) if let Mapping::Matrix(tiling) = &kernel.mapping => {
            headers.push(match tiling.loads_to_lds() {
                true => "graphc_gemm_direct.hip.h",
                false => "graphc_gemm.hip.h",
            });
            if c.rhs.unpacking().is_some() {
                headers.push("graphc_quantised.hip.h");
            }
        }
        Body::Contract(_) if let Mapping::Gemv(tiling) = &kernel.mapping => {
            headers.push(match (&tiling.matrix, &tiling.stream) {
                (_, Some(_)) => "graphc_gemv_stream.hip.h",
                (Some(_), None) => "graphc_gemv_matrix.hip.h",
                (None, None) => "graphc_gemv.hip.h",
            });
        }
        Body::Contract(_) => headers.push("graphc_tile.hip.h"),
        Body::Attention(_) if matches!(kernel.mapping, Mapping::FlashMatrix(_)) => {
            headers.push("graphc_flash.hip.h");
        }
        Body::Attention(_) if matches!(kernel.mapping, Mapping::FlashLanes(_)) => {
            headers.push("graphc_flash_lanes.hip.h");
        }
        Body::Attention(_) => headers.push("graphc_attention.hip.h"),
        Body::Scan(_) => headers.push("graphc_scan.hip.h"),
        Body::Sort(_) => headers.push("graphc_sort.hip.h"),
        Body::Recurrent(_) => headers.push("graphc_recurrent.hip.h"),
    }
    headers
}
