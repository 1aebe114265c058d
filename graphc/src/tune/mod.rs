//! Tuning: which mapping of a model's products is the fastest where it is measured.
//!
//! Before: a graph, and a way to measure a program kernel by kernel (on a device, or predicted). After: a [`Database`] with a
//! measurement of each candidate. All products of the model are measured at once: in round `i` each takes its `i`-th candidate, and
//! the model runs as a whole, so that caches hold what they would. What the file has already is not measured again.

pub mod database;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ir::plan::{KernelId, Plan, Step, StepId};
use ir::{Graph, Program, Target};
use passes::tuning::Engine;
use passes::{Prefer, Tuning, tuning};
use runtime::compile::CompileError;

pub use database::{Database, DatabaseError, PREDICTED, Row};

use crate::driver::{self, BuildOptions};
use crate::error::{Error, Result};

/// How far tuning goes.
#[derive(Clone, Copy, Debug)]
pub struct TuneOptions {
    /// Candidates of a product, the ones that are predicted to be fastest.
    pub candidates: usize,
    /// No round is begun after this time.
    pub budget: Option<Duration>,
}

/// What tuning found.
#[derive(Clone, Debug)]
pub struct Tuned {
    pub products: Vec<Product>,
    /// Launches whose products have open sizes, which are mapped for each range of them and not tuned.
    pub open: Vec<String>,
    /// Measurements that were made.
    pub measured: usize,
    /// Measurements that are left, since the time was over.
    pub left: usize,
    /// Calls of libraries that could not be measured, and why.
    pub untimed: BTreeMap<String, String>,
}

/// A product of the model.
#[derive(Clone, Debug)]
pub struct Product {
    pub product: String,
    /// The kernels that compute it, by name.
    pub kernels: Vec<String>,
    /// The mapping that the prediction takes, and its time.
    pub predicted: (String, Option<f64>),
    /// The fastest of all.
    pub best: Option<(String, f64)>,
    /// The library's calls that compute it, and their times.
    pub calls: Vec<(String, f64)>,
}

/// What tells measurements apart: see [`Row`].
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub on: &'a str,
    pub arch: &'a str,
    pub driver: &'a str,
    pub compiler: &'a str,
    /// The versions of the libraries and of the driver, for rows of calls.
    pub libraries: &'a str,
}

impl Place<'_> {
    /// What makes the code of a row: a mapping's compiler, or a call's libraries.
    fn compiler(&self, mapping: &str) -> &str {
        match Engine::of_row(mapping) {
            Engine::Kernel => self.compiler,
            Engine::Call(_) => self.libraries,
        }
    }

    /// Whether a row was measured there, with the same code.
    fn has(&self, row: &Row) -> bool {
        let compiler = self.compiler(&row.mapping);
        row.on == self.on && row.arch == self.arch && row.driver == self.driver && row.compiler == compiler
    }
}

/// Takes a program of one target to the microseconds of its steps; steps that could not be timed are left out.
pub type Measure<'a> = dyn FnMut(Program) -> Result<BTreeMap<StepId, f64>> + 'a;

/// The products of a model, each with its candidates and what is known of them.
struct Search<'a> {
    graph: &'a Graph,
    options: BuildOptions,
    place: Place<'a>,
    database: &'a Database,
    /// Candidates of each product, the one predicted to be fastest first.
    candidates: BTreeMap<String, Vec<String>>,
    /// What was measured of each; `None` where it could not be.
    known: BTreeMap<(String, String), Option<f64>>,
    measured: usize,
    /// A program in which every product that a library takes is its call, until that was measured; and the steps of the calls.
    calls: Option<(Program, Vec<(StepId, String, String)>)>,
    /// Calls that were not measured, and why.
    untimed: BTreeMap<String, String>,
}

/// Measures the candidates of each product of a graph and keeps what they take.
///
/// `progress` is told how many measurements are done, and of how many.
///
/// # Errors
/// As the driver and `measure`, where no candidate is to blame; a database that cannot be written.
pub fn tune(
    graph: &Graph,
    target: Target,
    build: &BuildOptions,
    (place, database): (Place<'_>, &Database),
    options: &TuneOptions,
    measure: &mut Measure<'_>,
    progress: &dyn Fn(usize, usize),
) -> Result<Tuned> {
    let start = Instant::now();
    let mut base = build.clone();
    base.targets = vec![target];
    base.plan.tuning = Tuning::default();
    // Calls are candidates too, one program of them all.
    base.plan.prefer = Prefer::Kernels;
    let program = driver::build(graph, &base)?.program;
    let plan = &program.variants[0].plan;
    let open = open_kernels(plan);
    let mut products: BTreeMap<String, Product> = BTreeMap::new();
    let mut search = Search {
        graph,
        options: base,
        place,
        database,
        candidates: BTreeMap::new(),
        known: BTreeMap::new(),
        measured: 0,
        calls: None,
        untimed: BTreeMap::new(),
    };
    for (product, id) in of_plan(plan, &open) {
        let kernel = &plan.kernels[id];
        let mut all = tuning::candidates(kernel, &plan.symbols, &plan.target);
        all.truncate(options.candidates.max(1));
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        let predicted = (all.first().cloned().unwrap_or_default(), None);
        let entry = products.entry(product.clone()).or_insert_with(|| Product {
            product: product.clone(),
            kernels: Vec::new(),
            predicted,
            best: None,
            calls: Vec::new(),
        });
        entry.kernels.push(kernel.name.clone());
        search.candidates.insert(product, all);
    }
    for row in database.rows()? {
        if place.has(&row) {
            search.known.insert((row.product, row.mapping), row.micros);
        }
    }
    let of_kernel: BTreeMap<KernelId, String> = of_plan(plan, &open).map(|(product, id)| (id, product)).collect();
    search.find_calls(plan, &of_kernel)?;
    let all = search.left().len();
    loop {
        let left = search.left();
        progress(all - left.len(), all);
        if left.is_empty() || options.budget.is_some_and(|budget| start.elapsed() >= budget) {
            break;
        }
        if search.calls.is_some() {
            search.measure_calls(measure)?;
            continue;
        }
        // One candidate of each product that has some left.
        let mut round: Vec<(String, String)> = Vec::new();
        for (product, mapping) in left {
            if round.last().is_none_or(|(last, _)| *last != product) {
                round.push((product, mapping));
            }
        }
        search.round(&round, measure)?;
    }
    for product in products.values_mut() {
        let time = |mapping: &String| *search.known.get(&(product.product.clone(), mapping.clone()))?;
        product.predicted.1 = time(&product.predicted.0);
        let timed = search.candidates[&product.product]
            .iter()
            .filter_map(|m| Some((m.clone(), time(m)?)));
        let is_call = |(text, _): &(String, f64)| Engine::of_row(text) != Engine::Kernel;
        product.calls = timed.clone().filter(is_call).collect();
        product.best = timed.min_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    }
    Ok(Tuned {
        products: products.into_values().collect(),
        open: open.iter().map(|id| plan.kernels[*id].name.clone()).collect(),
        measured: search.measured,
        left: search.left().len(),
        untimed: search.untimed,
    })
}

impl Search<'_> {
    /// Makes calls candidates of the products that libraries take.
    fn find_calls(&mut self, kernels: &Plan, products: &BTreeMap<KernelId, String>) -> Result<()> {
        let mut options = self.options.clone();
        options.plan.prefer = Prefer::Calls;
        let program = driver::build(self.graph, &options)?.program;
        // The plans are step by step the same, but for what does the step.
        let pairs = kernels.steps.iter().zip(program.variants[0].plan.steps.values());
        let of_pair = |((id, kernel), call): ((StepId, &Step), &Step)| {
            let product = products.get(&kernel.work.kernel()?)?;
            let name = call.work.library_call()?.name();
            Some((id, product.clone(), Engine::Call(name.to_owned()).to_string()))
        };
        let found: Vec<(StepId, String, String)> = pairs.filter_map(of_pair).collect();
        for (_, product, call) in &found {
            let all = self.candidates.entry(product.clone()).or_default();
            if !all.contains(call) {
                all.push(call.clone());
            }
        }
        self.calls = (!found.is_empty()).then_some((program, found));
        Ok(())
    }

    /// Measures the calls of all products at once, unless all of them are known.
    fn measure_calls(&mut self, measure: &mut Measure<'_>) -> Result<()> {
        let Some((program, found)) = self.calls.take() else {
            return Ok(());
        };
        let is_known =
            |(_, product, call): &(StepId, String, String)| self.known.contains_key(&(product.clone(), call.clone()));
        if found.iter().all(is_known) {
            return Ok(());
        }
        let times = measure(program);
        let reason = times.as_ref().err().map(ToString::to_string);
        let times = times.unwrap_or_default();
        for (_, product, call) in &found {
            let same = found.iter().filter(|(_, p, c)| p == product && c == call);
            match same.filter_map(|(step, ..)| times.get(step).copied()).reduce(f64::min) {
                Some(time) => self.keep(product, call, Some(time))?,
                // A library that is not there today may be tomorrow: nothing is kept.
                None => {
                    let all = self.candidates.entry(product.clone()).or_default();
                    all.retain(|candidate| candidate != call);
                    let reason = reason.clone().unwrap_or_else(|| "it could not be timed".to_owned());
                    self.untimed.insert(call.clone(), reason);
                }
            }
        }
        Ok(())
    }

    /// Lists what is not measured yet, by product.
    fn left(&self) -> Vec<(String, String)> {
        let of_product = |(product, all): (&String, &Vec<String>)| -> Vec<(String, String)> {
            all.iter().map(|mapping| (product.clone(), mapping.clone())).collect()
        };
        let all = self.candidates.iter().flat_map(of_product);
        all.filter(|pair| !self.known.contains_key(pair)).collect()
    }

    /// Measures one candidate of each of some products. Where that fails, halves are tried, until the candidate that is to blame
    /// stands alone: the compiler may not take it.
    fn round(&mut self, pairs: &[(String, String)], measure: &mut Measure<'_>) -> Result<()> {
        let tuning: Tuning = pairs.iter().cloned().collect();
        self.options.plan.tuning = tuning;
        let program = driver::build(self.graph, &self.options)?.program;
        let plan = &program.variants[0].plan;
        let of_kernel: BTreeMap<KernelId, String> = of_plan(plan, &open_kernels(plan))
            .map(|(product, id)| (id, product))
            .collect();
        let steps: Vec<(StepId, String)> = (plan.steps.iter())
            .filter_map(|(id, step)| Some((id, of_kernel.get(&step.work.kernel()?)?.clone())))
            .collect();
        match measure(program) {
            Ok(times) => {
                for (product, mapping) in pairs {
                    let launches = steps.iter().filter(|(_, p)| p == product);
                    let time = launches
                        .filter_map(|(step, _)| times.get(step).copied())
                        .reduce(f64::min);
                    self.keep(product, mapping, time)?;
                }
                Ok(())
            }
            // What is no kernel's fault is no candidate's: it would be kept for ever.
            Err(error) if !is_of_a_kernel(&error) => Err(error),
            Err(_) if pairs.len() > 1 => {
                let (first, second) = pairs.split_at(pairs.len() / 2);
                self.round(first, measure)?;
                self.round(second, measure)
            }
            // The candidate that every plan of today has must work.
            Err(error) => match pairs.first() {
                Some((product, mapping)) if self.candidates[product].first() != Some(mapping) => {
                    self.keep(product, mapping, None)
                }
                _ => Err(error),
            },
        }
    }

    fn keep(&mut self, product: &str, mapping: &str, micros: Option<f64>) -> Result<()> {
        self.measured += 1;
        self.known.insert((product.into(), mapping.into()), micros);
        self.database.keep(&Row {
            product: product.into(),
            mapping: mapping.into(),
            on: self.place.on.into(),
            arch: self.place.arch.into(),
            driver: self.place.driver.into(),
            compiler: self.place.compiler(mapping).into(),
            micros,
        })?;
        Ok(())
    }
}

/// Says whether an error is what the compiler thinks of a kernel, and not of the machine it runs on.
fn is_of_a_kernel(error: &Error) -> bool {
    let of_kernel = |error: &CompileError| {
        matches!(
            error,
            CompileError::Rejected(_) | CompileError::WorkerDied { .. } | CompileError::TimedOut { .. }
        )
    };
    match error {
        Error::Compile(error) => of_kernel(error),
        Error::Kernels(errors) => errors.iter().all(of_kernel),
        _ => false,
    }
}

/// The kernels of launches that have a mapping for each range of sizes.
fn open_kernels(plan: &Plan) -> BTreeSet<KernelId> {
    let open = plan.steps.values().filter(|step| !step.choices.is_empty());
    open.flat_map(Step::kernels).collect()
}

/// The products that a plan's kernels compute, those of open sizes left out.
fn of_plan<'a>(plan: &'a Plan, open: &'a BTreeSet<KernelId>) -> impl Iterator<Item = (String, KernelId)> + 'a {
    let kernels = plan.kernels.iter().filter(|(id, _)| !open.contains(id));
    kernels.filter_map(|(id, kernel)| Some((tuning::product(kernel, &plan.symbols, &plan.target)?, id)))
}

#[cfg(test)]
mod tests {
    use passes::OptLevel;
    use runtime::compile::Failure;

    use super::*;

    const PRODUCTS: &str = "graph @products stage=import {
  x = input \"x\" : f16[48, 64]
  v = input \"v\" : f16[64, 96]
  w = input \"w\" : f16[96, 40]
  a = contract x, v
  b = contract a, w
  return b as \"b\"
}
";
    const PLACE: Place<'_> = Place {
        on: "a test",
        arch: "gfx90a:xnack-",
        driver: "HIP 7.2.0",
        compiler: "none",
        libraries: "none",
    };

    /// Tunes with three candidates a product.
    fn tuned(database: &Database, measure: &mut Measure<'_>) -> Result<Tuned> {
        tuned_at(PLACE, database, measure)
    }

    fn tuned_at(place: Place<'_>, database: &Database, measure: &mut Measure<'_>) -> Result<Tuned> {
        let graph = ir::graph::parse::parse(PRODUCTS).expect("parses");
        let target: Target = "gfx90a".parse().expect("known");
        let mut build = BuildOptions::new(vec![target], OptLevel::O2);
        build.optimize.libraries = false;
        let options = TuneOptions {
            candidates: 3,
            budget: None,
        };
        tune(&graph, target, &build, (place, database), &options, measure, &|_, _| ())
    }

    /// Times by a kernel's text: any number, the same for the same kernel.
    fn times(program: &Program) -> BTreeMap<StepId, f64> {
        let plan = &program.variants[0].plan;
        let micros = |step: &Step| match step.work.kernel() {
            Some(kernel) => 1.0 + (plan.kernels[kernel].mapping.to_string().len() % 7) as f64,
            None => CALL_MICROS,
        };
        plan.steps.iter().map(|(id, step)| (id, micros(step))).collect()
    }

    /// What the test's clock says of a call, unless told otherwise: faster than every kernel.
    const CALL_MICROS: f64 = 0.5;

    /// What measured times depend on is what rows are found by: another driver, feature flag or compiler is another measurement.
    #[test]
    fn another_driver_or_feature_flag_is_measured_again() {
        let (_folder, database) = database();
        let mut clock = |program: Program| Ok(times(&program));
        for (round, place) in [
            PLACE,
            Place {
                driver: "HIP 7.3.0",
                ..PLACE
            },
            Place {
                arch: "gfx90a:xnack+",
                ..PLACE
            },
            Place {
                compiler: "another",
                ..PLACE
            },
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(tuned_at(place, &database, &mut clock).expect("tunes").measured, 6);
            assert_eq!(tuned_at(place, &database, &mut clock).expect("tunes").measured, 0);
            assert_eq!(database.rows().expect("reads").len(), 6 * (round + 1));
        }
    }

    #[test]
    fn calls_are_measured_beside_tilings_and_decide_what_a_plan_has() {
        let graph = ir::graph::parse::parse(PRODUCTS).expect("parses");
        let target: Target = "gfx90a".parse().expect("known");
        let build = BuildOptions::new(vec![target], OptLevel::O2);
        let options = TuneOptions {
            candidates: 3,
            budget: None,
        };
        let calls = |build: &BuildOptions| {
            let built = driver::build(&graph, build).expect("builds");
            let names = built.program.variants[0].plan.steps.values().flat_map(Step::calls);
            (
                names.map(ir::library::LibraryCall::name).count(),
                built.reports[0].decided.len(),
            )
        };
        assert_eq!(calls(&build), (0, 0), "such small products are kernels by the roofline");
        // A call that is faster than every kernel, then one that is slower than all.
        for (micros, expected) in [(CALL_MICROS, 2), (100.0, 0)] {
            let (_folder, database) = database();
            let mut clock = |program: Program| {
                let mut all = times(&program);
                let plan = &program.variants[0].plan;
                let of_calls = plan.steps.iter().filter(|(_, step)| step.calls().count() > 0);
                of_calls.for_each(|(id, _)| {
                    all.insert(id, micros);
                });
                Ok(all)
            };
            let mut tune = || {
                let place = (PLACE, &database);
                tune(&graph, target, &build, place, &options, &mut clock, &|_, _| ()).expect("tunes")
            };
            let found = tune();
            assert_eq!(
                (found.measured, found.left),
                (8, 0),
                "three tilings and a call of each product"
            );
            assert_eq!(tune().measured, 0, "the file has all of it");
            let rows = database.rows().expect("reads");
            assert_eq!(rows.iter().filter(|row| row.mapping == "call rocblas_gemm").count(), 2);
            let mut tuned = build.clone();
            tuned.plan.tuning.extend(database.tuning().expect("reads"));
            assert_eq!(calls(&tuned), (expected, 2));
            let again = driver::build(&graph, &tuned).expect("builds").program;
            assert_eq!(again, driver::build(&graph, &tuned).expect("builds").program);
            // What measuring has found holds for those who may call libraries.
            tuned.optimize.libraries = false;
            assert_eq!(calls(&tuned), (0, 0));
        }
    }

    #[test]
    fn a_call_that_cannot_be_measured_is_said_and_nothing_is_kept_of_it() {
        let graph = ir::graph::parse::parse(PRODUCTS).expect("parses");
        let target: Target = "gfx90a".parse().expect("known");
        let build = BuildOptions::new(vec![target], OptLevel::O2);
        let options = TuneOptions {
            candidates: 2,
            budget: None,
        };
        let (_folder, database) = database();
        let mut clock = |program: Program| {
            let plan = &program.variants[0].plan;
            match plan.steps.values().any(|step| step.calls().count() > 0) {
                true => Err(Error::Config("no rocBLAS here".into())),
                false => Ok(times(&program)),
            }
        };
        let place = (PLACE, &database);
        let found = tune(&graph, target, &build, place, &options, &mut clock, &|_, _| ()).expect("tunes");
        assert_eq!((found.measured, found.left), (4, 0));
        assert_eq!(found.untimed["call rocblas_gemm"], "no rocBLAS here");
        let rows = database.rows().expect("reads");
        assert!(rows.iter().all(|row| !row.mapping.starts_with("call")), "{rows:?}");
        assert!(!database.tuning().expect("reads").has_engines());
    }

    /// Attention is measured like a product: by matrix instructions and by lanes.
    #[test]
    fn attention_takes_the_tiling_that_was_fastest() {
        let text = "graph @attention stage=import {
  q = input \"q\" : f16[2, 4, 512, 64]
  k = input \"k\" : f16[2, 4, 512, 64]
  v = input \"v\" : f16[2, 4, 512, 64]
  a = attention q, k, v {scale=0.125, causal}
  return a as \"a\"
}
";
        let graph = ir::graph::parse::parse(text).expect("parses");
        for target in ["gfx90a", "gfx1100", "sm_90"] {
            let target: Target = target.parse().expect("known");
            let build = BuildOptions::new(vec![target], OptLevel::O2);
            let options = TuneOptions {
                candidates: 6,
                budget: None,
            };
            let mapping = |build: &BuildOptions| {
                let program = driver::build(&graph, build).expect("builds").program;
                let plan = &program.variants[0].plan;
                let kernel = plan
                    .kernels
                    .values()
                    .find(|k| matches!(k.body, ir::kernel::Body::Attention(_)));
                kernel.expect("an attention").mapping.to_string()
            };
            let predicted = mapping(&build);
            let (_folder, database) = database();
            // Each candidate is faster than the ones before.
            let (mut seen, mut micros) = (Vec::new(), 100.0);
            let mut clock = |program: Program| {
                let plan = &program.variants[0].plan;
                micros -= 1.0;
                seen.extend(plan.kernels.values().map(|k| k.mapping.to_string()));
                Ok(plan.steps.keys().map(|id| (id, micros)).collect())
            };
            let place = (PLACE, &database);
            let found = tune(&graph, target, &build, place, &options, &mut clock, &|_, _| ()).expect("tunes");
            assert_eq!((found.products.len(), found.left), (1, 0));
            assert_eq!(found.measured, seen.len());
            assert!(seen.len() > 2 && seen[0] == predicted, "{target}: {seen:?}");
            let best = seen.last().expect("some");
            assert!(
                seen.iter().filter(|mapping| *mapping == best).count() == 1,
                "each is another: {seen:?}"
            );
            let mut tuned = build.clone();
            tuned.plan.tuning.extend(database.tuning().expect("reads"));
            assert_eq!(mapping(&tuned), *best, "{target}");
            assert_eq!(mapping(&build), predicted);
        }
    }

    fn rejected() -> Error {
        CompileError::Rejected(Box::new(Failure {
            kernel: "k".into(),
            arch: "gfx90a".into(),
            log: "a test's".into(),
            at: None,
            source_path: None,
        }))
        .into()
    }

    fn database() -> (tempfile::TempDir, Database) {
        let folder = tempfile::tempdir().expect("a folder");
        let database = Database::open(&folder.path().join("t.db")).expect("opens");
        (folder, database)
    }

    #[test]
    fn a_candidate_that_does_not_compile_is_alone_to_blame() {
        let (_folder, all) = database();
        tuned(&all, &mut |program| Ok(times(&program))).expect("tunes");
        let rows = all.rows().expect("reads");
        assert_eq!(rows.len(), 6);
        // Each candidate but those that the prediction takes, one after another.
        for bad in &rows {
            let (_folder, database) = database();
            let result = tuned(&database, &mut |program| {
                let plan = &program.variants[0].plan;
                let is_bad = |k: &ir::Kernel| {
                    let product = tuning::product(k, &plan.symbols, &plan.target);
                    product.as_ref() == Some(&bad.product) && k.mapping.to_string() == bad.mapping
                };
                match plan.kernels.values().any(is_bad) {
                    true => Err(rejected()),
                    false => Ok(times(&program)),
                }
            });
            match result {
                Ok(found) => {
                    assert_eq!((found.measured, found.left), (6, 0));
                    let kept = database.rows().expect("reads");
                    let broken: Vec<_> = kept.iter().filter(|row| row.micros.is_none()).collect();
                    assert!(broken.len() == 1 && broken[0].mapping == bad.mapping, "{broken:?}");
                    assert_eq!(broken[0].product, bad.product);
                }
                // A plan without tuning has it, so it must work.
                Err(error) => assert!(matches!(error, Error::Compile(CompileError::Rejected(_))), "{error}"),
            }
        }
    }

    /// A disk that is full, a device that is lost: nothing is kept of candidates that were not measured.
    #[test]
    fn what_is_no_kernels_fault_ends_the_search() {
        let (_folder, database) = database();
        let mut rounds = 0;
        let result = tuned(&database, &mut |program| {
            rounds += 1;
            match rounds {
                1 => Ok(times(&program)),
                _ => Err(Error::Config("the device is lost".into())),
            }
        });
        assert!(result.is_err_and(|e| e.to_string().contains("the device is lost")));
        let rows = database.rows().expect("reads");
        assert!(
            rows.len() == 2 && rows.iter().all(|row| row.micros.is_some()),
            "{rows:?}"
        );
        // It goes on where it was.
        let found = tuned(&database, &mut |program| Ok(times(&program))).expect("tunes");
        assert_eq!((found.measured, found.left), (4, 0));
    }
}
