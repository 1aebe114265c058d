//! A program on a GPU: modules, constants, libraries, recent sets of sizes, and contexts for concurrent runs.

use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dylib::Search;
use ir::Program;
use ir::dim::{Bindings, hints};
use ir::entity::Table;
use ir::plan::arena::place;
use ir::plan::{KernelId, Plan};

use super::constants::Constants;
use super::context::Context;
use super::driver::RawFunction;
use super::handles::{Gpu, Module};
use super::prepare::{Prepared, prepare};
use super::run;
use crate::checks::{check, check_ports};
use crate::device::{LoadOptions, Loaded, MemoryReport, Profile};
use crate::error::RuntimeError;
use crate::library::Libraries;

const PREPARED_SIZES: usize = 8;

/// See the module. Fields end in this order: contexts before what their work uses.
pub(super) struct LoadedGpu {
    /// Free ones; a run takes one or makes one.
    contexts: Mutex<Vec<Context>>,
    /// Most recently used last.
    prepared: Mutex<Vec<(Bindings, Arc<Prepared>)>>,
    functions: Table<KernelId, RawFunction>,
    _modules: Vec<Module>,
    constants: Constants,
    libraries: Libraries,
    gpu: Arc<Gpu>,
    program: Arc<Program>,
    variant: usize,
    most_prepared: usize,
    memory_limit: Option<usize>,
    synchronous: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LoadedGpu {
    pub fn new(
        gpu: Arc<Gpu>,
        libraries: &Search,
        program: Arc<Program>,
        variant: usize,
        options: &LoadOptions,
    ) -> Result<LoadedGpu, RuntimeError> {
        let plan = &program.variants[variant].plan;
        check(plan, &program)?;
        gpu.enter("loading the program")?;
        let expected = hints(&plan.symbols);
        // Hints are estimates: a size that does not work out there may where it is run.
        let peak = place(plan, &expected).map_or(0, |placement| placement.total);
        let (functions, modules) = modules(&gpu, &program, variant)?;
        let constants = Constants::upload(&gpu, &program, plan, peak)?;
        let libraries = Libraries::open(plan, libraries, &gpu.name)?;
        let loaded = LoadedGpu {
            contexts: Mutex::default(),
            prepared: Mutex::default(),
            functions,
            _modules: modules,
            constants,
            libraries,
            gpu,
            variant,
            most_prepared: options.prepared_sizes.unwrap_or(PREPARED_SIZES).max(1),
            memory_limit: options.memory_limit,
            synchronous: options.synchronous,
            program,
        };
        match loaded.prepared(&expected) {
            Ok(prepared) => {
                let context = loaded.context(&prepared)?;
                lock(&loaded.contexts).push(context);
            }
            Err(RuntimeError::Size(_)) if !loaded.plan().symbols.is_empty() => {}
            Err(error) => return Err(error),
        }
        Ok(loaded)
    }

    fn plan(&self) -> &Plan {
        &self.program.variants[self.variant].plan
    }

    /// The plan at these sizes, prepared now or kept.
    fn prepared(&self, bindings: &Bindings) -> Result<Arc<Prepared>, RuntimeError> {
        let mut kept = lock(&self.prepared);
        if let Some(at) = kept.iter().position(|(known, _)| known == bindings) {
            let found = kept.remove(at);
            let prepared = found.1.clone();
            kept.push(found);
            return Ok(prepared);
        }
        drop(kept);
        let made = Arc::new(prepare(
            self.plan(),
            bindings,
            &self.functions,
            &self.constants,
            &self.libraries,
        )?);
        let mut kept = lock(&self.prepared);
        if kept.len() >= self.most_prepared {
            kept.remove(0);
        }
        kept.push((bindings.clone(), made.clone()));
        Ok(made)
    }

    /// A context with enough memory: a free one, or a new one.
    fn context(&self, prepared: &Prepared) -> Result<Context, RuntimeError> {
        let asked = prepared.placement.total + self.constants.bytes();
        if let Some(limit) = self.memory_limit
            && asked > limit
        {
            return Err(RuntimeError::OutOfMemory {
                asked,
                limit,
                planned_peak: prepared.placement.total,
            });
        }
        let free = lock(&self.contexts).pop();
        let mut context = match free {
            Some(context) => context,
            None => Context::new(&self.gpu, self.plan(), &self.libraries)?,
        };
        match context.fit(&self.gpu, prepared) {
            Err(RuntimeError::OutOfDeviceMemory { .. }) if !lock(&self.contexts).is_empty() => {
                // Arenas of contexts that nobody uses are in the way.
                let idle = std::mem::take(&mut *lock(&self.contexts));
                drop(idle);
                context.fit(&self.gpu, prepared)?;
            }
            other => other?,
        }
        Ok(context)
    }
}

/// Loads the code of each kernel.
fn modules(
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
        let module = gpu.module(code, &what())?;
        functions.push(gpu.at_with(what, module.function(&entry))?);
        modules.push(module);
    }
    Ok((functions, modules))
}

impl Loaded for LoadedGpu {
    fn run(
        &self,
        bindings: &Bindings,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        profile: Option<&mut Profile>,
    ) -> Result<(), RuntimeError> {
        let prepared = self.prepared(bindings)?;
        check_ports(self.plan(), &prepared.placement, inputs, outputs)?;
        self.gpu.enter("beginning a run")?;
        let mut context = self.context(&prepared)?;
        let ran = run::run(&self.gpu, &prepared, &mut context, inputs, profile, self.synchronous);
        if let Err(error) = ran {
            context.quiesce();
            return Err(if self.synchronous {
                error
            } else {
                self.gpu.or_earlier(error)
            });
        }
        run::collect(&self.program, &prepared, &context, inputs, outputs);
        lock(&self.contexts).push(context);
        Ok(())
    }

    fn memory(&self, bindings: &Bindings) -> Result<MemoryReport, RuntimeError> {
        let placement = place(self.plan(), bindings)?;
        Ok(MemoryReport {
            arena: placement.total,
            live_peak: placement.live_peak,
            packed_weights: self.constants.bytes(),
            scratch: lock(&self.contexts).iter().map(Context::staging_bytes).sum(),
        })
    }
}

impl Drop for LoadedGpu {
    fn drop(&mut self) {
        // Whatever thread this is, what follows ends on this device; where that is lost, nothing has to.
        let _ = self.gpu.enter("ending a program");
    }
}
