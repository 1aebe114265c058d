//! The kernels of a program, loaded from their code objects.

use std::ffi::CString;
use std::sync::Arc;

use ir::Program;
use ir::entity::Table;
use ir::plan::KernelId;

use super::driver::RawFunction;
use super::handles::{Gpu, Module};
use crate::checks::check_code;
use crate::error::RuntimeError;

/// Loads the code of each kernel.
pub(super) fn modules(
    gpu: &Arc<Gpu>,
    program: &Program,
    variant: usize,
) -> Result<(Table<KernelId, RawFunction>, Vec<Module>), RuntimeError> {
    let variant = &program.variants[variant];
    let mut functions = Table::new();
    let mut modules = Vec::new();
    for (id, kernel) in variant.plan.kernels.iter() {
        let what = || format!("kernel {}", kernel.name);
        let Some(code) = variant.code.get(id).and_then(Option::as_ref) else {
            return Err(RuntimeError::NotAvailable {
                what: format!("the code of kernel {} for {}", kernel.name, variant.plan.target),
                reason: "the program was built, but its kernels were not compiled".into(),
            });
        };
        let entry = variant.sources.get(id).map_or("", |source| source.entry.as_str());
        let entry =
            CString::new(entry).map_err(|_| RuntimeError::Program(format!("{}: a zero in its name", what())))?;
        // Whoever made the file decided what is in it, and the driver takes its word.
        check_code(code, &entry.to_string_lossy(), kernel)?;
        let module = gpu.module(code, &what())?;
        let function = gpu.at_with(what, module.function(&entry))?;
        if kernel.launch_lds() > 0 {
            gpu.at_with(what, module.allow_lds(function, kernel.launch_lds()))?;
        }
        functions.push(function);
        modules.push(module);
    }
    Ok((functions, modules))
}
