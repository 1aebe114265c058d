//! Tuning: which mapping of a model's products is the fastest where it is measured.
//!
//! Before: a graph, and a way to measure a program kernel by kernel (on a device, or predicted). After: a [`Database`]
//! with a measurement of each candidate. All products of the model are measured at once: in round `i` each takes its
//! `i`-th candidate, and the model runs as a whole, so that caches hold what they would. What the file has already is
//! not measured again.
//!
//! A product whose rows the model leaves open is searched for each range of rows, at sizes within the range: see
//! [`products`].

pub mod database;
mod products;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ir::library::Algorithm;
use ir::plan::{Plan, StepId, Work};
use ir::{Bindings, Graph, Program, Target};
use passes::tuning::Engine;
use passes::{Convolution, Prefer, Tuning};
use runtime::compile::CompileError;

pub use database::{Database, DatabaseError, PREDICTED, Row};
use products::{Computed, OfStep};

use crate::driver::{self, Build, BuildOptions};
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
    /// The sizes of the model at which it was measured; a time is their mean.
    pub sizes: Vec<Bindings>,
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
            Engine::Call { .. } => self.libraries,
        }
    }

    /// Whether a row was measured there, with the same code.
    fn has(&self, row: &Row) -> bool {
        let compiler = self.compiler(&row.mapping);
        row.on == self.on && row.arch == self.arch && row.driver == self.driver && row.compiler == compiler
    }
}

/// Microseconds of steps; those that could not be timed are left out.
pub type Times = BTreeMap<StepId, f64>;

/// The algorithms that libraries offer for steps, the one first that the library would choose.
pub type Algorithms = BTreeMap<StepId, Vec<Algorithm>>;

/// What programs are measured on.
pub trait Measure {
    /// Takes a program of one target to the times of its steps at each of some sizes of the model.
    ///
    /// # Errors
    /// What the compiler or the device reports.
    fn times(&mut self, program: Program, sizes: &[Bindings]) -> Result<Vec<Times>>;

    /// Lists the algorithms of a program's calls at each of some sizes of the model.
    ///
    /// # Errors
    /// As [`Measure::times`].
    fn algorithms(&mut self, program: &Program, sizes: &[Bindings]) -> Result<Vec<Algorithms>>;
}

/// A clock alone, whose libraries can be asked for no algorithm.
impl<F: FnMut(Program, &[Bindings]) -> Result<Vec<Times>>> Measure for F {
    fn times(&mut self, program: Program, sizes: &[Bindings]) -> Result<Vec<Times>> {
        self(program, sizes)
    }

    fn algorithms(&mut self, _: &Program, sizes: &[Bindings]) -> Result<Vec<Algorithms>> {
        Ok(vec![Algorithms::new(); sizes.len()])
    }
}

/// A product that is searched.
struct Line {
    /// The one predicted to be fastest first.
    candidates: Vec<String>,
    /// The sizes at which it is measured.
    sizes: Vec<Bindings>,
}

/// The products of a model, each with its candidates and what is known of them.
struct Search<'a> {
    graph: &'a Graph,
    options: BuildOptions,
    place: Place<'a>,
    database: &'a Database,
    lines: BTreeMap<String, Line>,
    /// What was measured of each; `None` where it could not be.
    known: BTreeMap<(String, String), Option<f64>>,
    measured: usize,
    /// The calls that compute products, until all of them were measured.
    calls: Option<Calls>,
    /// Calls that were not measured, and why.
    untimed: BTreeMap<String, String>,
}

/// The libraries' calls that compute a model's products.
struct Calls {
    /// Every product that a library takes is its call.
    program: Program,
    found: Vec<Called>,
    /// Whether the libraries' own choices were measured, and their other algorithms are candidates.
    asked: bool,
}

/// A product that is a call.
#[derive(Clone)]
struct Called {
    /// The call, and the kernel of what it leaves of a convolution.
    steps: Vec<StepId>,
    product: String,
    /// The call's name.
    name: String,
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
    measure: &mut dyn Measure,
    progress: &dyn Fn(usize, usize),
) -> Result<Tuned> {
    let start = Instant::now();
    let mut base = build.clone();
    base.targets = vec![target];
    base.plan.tuning = Tuning::default();
    // Calls are candidates too, one program of them all.
    base.plan.prefer = Prefer::Kernels;
    // A convolution's line is of one kernel's time, not of three launches.
    base.plan.filtering = passes::lower::winograd::Filtering::Never;
    let built = driver::build(graph, &base)?;
    let (plan, convolutions) = parts_of(&built);
    let of_steps = products::of_plan(plan, convolutions);
    let mut products: BTreeMap<String, Product> = BTreeMap::new();
    let mut search = Search {
        graph,
        options: base,
        place,
        database,
        lines: BTreeMap::new(),
        known: BTreeMap::new(),
        measured: 0,
        calls: None,
        untimed: BTreeMap::new(),
    };
    for found in &of_steps {
        let mut candidates = found.candidates.clone();
        candidates.truncate(options.candidates.max(1));
        let predicted = (candidates.first().cloned().unwrap_or_default(), None);
        let entry = products.entry(found.line.clone()).or_insert_with(|| Product {
            product: found.line.clone(),
            kernels: Vec::new(),
            sizes: found.sizes.clone(),
            predicted,
            best: None,
            calls: Vec::new(),
        });
        if !entry.kernels.contains(&found.kernel) {
            entry.kernels.push(found.kernel.clone());
        }
        let line = || Line {
            candidates,
            sizes: found.sizes.clone(),
        };
        search.lines.entry(found.line.clone()).or_insert_with(line);
    }
    for row in database.rows()? {
        if place.has(&row) {
            search.known.insert((row.product, row.mapping), row.micros);
        }
    }
    search.find_calls((plan, convolutions), &of_steps)?;
    loop {
        let left = search.left();
        progress(search.measured, search.measured + left.len());
        if options.budget.is_some_and(|budget| start.elapsed() >= budget) {
            break;
        }
        if let Some(calls) = search.calls.take() {
            search.calls = search.round_of_calls(calls, options.candidates, measure)?;
            continue;
        }
        if left.is_empty() {
            break;
        }
        // One candidate of each product that has some left, of those that are measured at the same sizes.
        let sizes = search.lines[&left[0].0].sizes.clone();
        let mut round: Vec<(String, String)> = Vec::new();
        for (product, mapping) in left {
            if search.lines[&product].sizes == sizes && round.last().is_none_or(|(last, _)| *last != product) {
                round.push((product, mapping));
            }
        }
        search.round(&round, &sizes, measure)?;
    }
    for product in products.values_mut() {
        let time = |mapping: &String| *search.known.get(&(product.product.clone(), mapping.clone()))?;
        product.predicted.1 = time(&product.predicted.0);
        let timed = (search.lines[&product.product].candidates.iter()).filter_map(|m| Some((m.clone(), time(m)?)));
        let is_call = |(text, _): &(String, f64)| Engine::of_row(text) != Engine::Kernel;
        product.calls = timed.clone().filter(is_call).collect();
        product.best = timed.min_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    }
    Ok(Tuned {
        products: products.into_values().collect(),
        measured: search.measured,
        left: search.left().len(),
        untimed: search.untimed,
    })
}

impl Search<'_> {
    /// Makes calls candidates of the products that libraries take.
    fn find_calls(&mut self, (plan, convolutions): (&Plan, &[Convolution]), of_steps: &[OfStep]) -> Result<()> {
        let mut options = self.options.clone();
        options.plan.prefer = Prefer::Calls;
        let built = driver::build(self.graph, &options)?;
        let (calls, as_calls) = parts_of(&built);
        // But for what does a step, and how many a convolution is, the plans are the same.
        let same = products::aligned(plan.steps.len(), [convolutions, as_calls]);
        let of_step = |found: &OfStep| {
            let step = *same.get(&found.step)?;
            let name = calls.steps.get(step)?.work.library_call()?.name();
            Some(Called {
                steps: vec![step],
                product: found.line.clone(),
                name: name.to_owned(),
            })
        };
        let of_convolution = |one: &Convolution| {
            Some(Called {
                steps: one.steps.clone(),
                product: one.product.clone(),
                name: one.call?.to_owned(),
            })
        };
        let found = of_steps.iter().filter_map(of_step);
        let mut found: Vec<Called> = found.chain(as_calls.iter().filter_map(of_convolution)).collect();
        found.retain(|called| self.lines.contains_key(&called.product));
        for called in &found {
            self.add(&called.product, &Engine::call(&called.name, None));
        }
        self.calls = (!found.is_empty()).then_some(Calls {
            program: built.program,
            found,
            asked: false,
        });
        Ok(())
    }

    /// Makes an engine a candidate of a product.
    fn add(&mut self, product: &str, engine: &Engine) {
        let row = engine.to_string();
        let all = self.lines.get_mut(product).map(|line| &mut line.candidates);
        if let Some(all) = all.filter(|all| !all.contains(&row)) {
            all.push(row);
        }
    }

    /// Measures the calls of all products at once and asks for other algorithms; later one algorithm of each product.
    /// Returns the calls while there may be more.
    fn round_of_calls(&mut self, calls: Calls, most: usize, measure: &mut dyn Measure) -> Result<Option<Calls>> {
        if !calls.asked {
            self.measure_calls(&calls, measure)?;
            self.find_algorithms(&calls, most, measure);
            return Ok(Some(Calls { asked: true, ..calls }));
        }
        let is_algorithm =
            |row: &str| matches!(Engine::of_row(row), Engine::Call { algorithm, .. } if algorithm.is_some());
        let mut left = self.left();
        left.retain(|(_, row)| is_algorithm(row));
        let Some(sizes) = left.first().map(|(product, _)| self.lines[product].sizes.clone()) else {
            return Ok(None);
        };
        let mut round: BTreeMap<String, String> = BTreeMap::new();
        for (product, row) in left {
            if self.lines[&product].sizes == sizes {
                round.entry(product).or_insert(row);
            }
        }
        let mut program = calls.program.clone();
        for called in &calls.found {
            let row = round.get(&called.product).map(|row| Engine::of_row(row));
            let (Some(Engine::Call { algorithm: asked, .. }), Some(variant)) = (row, program.variants.first_mut())
            else {
                continue;
            };
            for step in &called.steps {
                for work in variant.plan.steps[*step].works_mut() {
                    if let Work::Call { algorithm, .. } = work {
                        *algorithm = asked.clone().map(Box::new);
                    }
                }
            }
        }
        let times = measure.times(program, &sizes);
        for (product, row) in &round {
            self.keep_call(&calls, (product, row), &sizes, &times)?;
        }
        Ok(Some(calls))
    }

    /// Measures the calls of all products at once, each by the algorithm that its library chooses, unless all of them
    /// are known.
    fn measure_calls(&mut self, calls: &Calls, measure: &mut dyn Measure) -> Result<()> {
        let found: Vec<(&String, String)> = (calls.found.iter())
            .map(|called| (&called.product, Engine::call(&called.name, None).to_string()))
            .collect();
        if found
            .iter()
            .all(|(product, row)| self.known.contains_key(&((*product).clone(), row.clone())))
        {
            return Ok(());
        }
        let sizes = self.sizes_of(calls);
        let times = measure.times(calls.program.clone(), &sizes);
        for (product, row) in found {
            self.keep_call(calls, (product, &row), &sizes, &times)?;
        }
        Ok(())
    }

    /// Keeps the time of a product's call, of the times of all steps at some sizes; where there is none, says why.
    fn keep_call(
        &mut self,
        calls: &Calls,
        (product, row): (&str, &str),
        sizes: &[Bindings],
        times: &Result<Vec<Times>>,
    ) -> Result<()> {
        let at = |one: &Bindings| {
            let times = times.as_ref().ok()?.get(sizes.iter().position(|s| s == one)?)?;
            let of_product = calls.found.iter().filter(|called| called.product == product);
            fastest(of_product.filter_map(|called| together(&called.steps, times)))
        };
        match mean(self.lines[product].sizes.iter().map(at)) {
            Some(time) => self.keep(product, row, Some(time)),
            // A library that is not there today may be tomorrow: nothing is kept.
            None => {
                if let Some(line) = self.lines.get_mut(product) {
                    line.candidates.retain(|candidate| candidate != row);
                }
                let reason = times.as_ref().err().map(ToString::to_string);
                let reason = reason.unwrap_or_else(|| "it could not be timed".to_owned());
                self.untimed.insert(row.to_owned(), reason);
                Ok(())
            }
        }
    }

    /// The sizes at which products with calls are measured.
    fn sizes_of(&self, calls: &Calls) -> Vec<Bindings> {
        let mut sizes: Vec<Bindings> = Vec::new();
        for called in &calls.found {
            let of_line = self.lines[&called.product].sizes.iter();
            sizes.extend(of_line.filter(|one| !sizes.contains(one)).cloned().collect::<Vec<_>>());
        }
        sizes
    }

    /// Makes the algorithms candidates that a library offers at all sizes of a product beside the one that it chooses,
    /// at most so many of each product.
    fn find_algorithms(&mut self, calls: &Calls, most: usize, measure: &mut dyn Measure) {
        let is_timed = |called: &&Called| {
            let row = Engine::call(&called.name, None).to_string();
            matches!(self.known.get(&(called.product.clone(), row)), Some(Some(_)))
        };
        let timed: Vec<Called> = calls.found.iter().filter(is_timed).cloned().collect();
        if timed.is_empty() {
            return;
        }
        let sizes = self.sizes_of(calls);
        let offered = match measure.algorithms(&calls.program, &sizes) {
            Ok(offered) => offered,
            Err(error) => {
                for Called { name, .. } in timed {
                    let what = format!("{} by another algorithm", Engine::call(&name, None));
                    self.untimed.insert(what, error.to_string());
                }
                return;
            }
        };
        for Called { steps, product, name } in timed {
            let at = |one: &Bindings| {
                let offered = offered.get(sizes.iter().position(|s| s == one)?)?;
                steps.iter().find_map(|step| offered.get(step))
            };
            let lists: Option<Vec<&Vec<Algorithm>>> = self.lines[&product].sizes.iter().map(at).collect();
            let Some([first, others @ ..]) = lists.as_deref() else {
                continue;
            };
            let is_chosen = |one: &Algorithm| [first].into_iter().chain(others).all(|all| all.first() == Some(one));
            let serves = |one: &&Algorithm| !is_chosen(one) && others.iter().all(|all| all.contains(one));
            let found: Vec<Algorithm> = first.iter().filter(serves).take(most).cloned().collect();
            for algorithm in found {
                self.add(&product, &Engine::call(&name, Some(algorithm)));
            }
        }
    }

    /// Lists what is not measured yet, by product.
    fn left(&self) -> Vec<(String, String)> {
        let of_product = |(product, line): (&String, &Line)| -> Vec<(String, String)> {
            let all = line.candidates.iter();
            all.map(|mapping| (product.clone(), mapping.clone())).collect()
        };
        let all = self.lines.iter().flat_map(of_product);
        all.filter(|pair| !self.known.contains_key(pair)).collect()
    }

    /// Measures one candidate of each of some products at their sizes. Where that fails, halves are tried, until the
    /// candidate that is to blame stands alone: the compiler may not take it.
    fn round(&mut self, pairs: &[(String, String)], sizes: &[Bindings], measure: &mut dyn Measure) -> Result<()> {
        let tuning: Tuning = pairs.iter().cloned().collect();
        self.options.plan.tuning = tuning;
        let built = driver::build(self.graph, &self.options)?;
        let (plan, convolutions) = parts_of(&built);
        let of_sizes = sizes.iter().map(|one| products::computed(plan, convolutions, one));
        let of_sizes: Vec<Vec<Computed>> = of_sizes.collect();
        match measure.times(built.program, sizes) {
            Ok(times) => {
                for (product, mapping) in pairs {
                    let at = |(times, computed): (&Times, &Vec<Computed>)| {
                        let is_it = |one: &&Computed| one.line == *product && one.mapping == *mapping;
                        let all = computed.iter().filter(is_it);
                        fastest(all.filter_map(|one| together(&one.steps, times)))
                    };
                    let time = mean(times.iter().zip(&of_sizes).map(at));
                    self.keep(product, mapping, time)?;
                }
                Ok(())
            }
            // What is no kernel's fault is no candidate's: it would be kept for ever.
            Err(error) if !is_of_a_kernel(&error) => Err(error),
            Err(_) if pairs.len() > 1 => {
                let (first, second) = pairs.split_at(pairs.len() / 2);
                self.round(first, sizes, measure)?;
                self.round(second, sizes, measure)
            }
            // The candidate that every plan of today has must work.
            Err(error) => match pairs.first() {
                Some((product, mapping)) if self.lines[product].candidates.first() != Some(mapping) => {
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

/// The plan of a build for one target, and its convolutions.
fn parts_of(built: &Build) -> (&Plan, &[Convolution]) {
    (&built.program.variants[0].plan, &built.reports[0].convolutions)
}

/// The time of steps that run one after the other, where it is known of all.
fn together(steps: &[StepId], times: &Times) -> Option<f64> {
    steps.iter().map(|step| times.get(step).copied()).sum()
}

fn fastest(times: impl Iterator<Item = f64>) -> Option<f64> {
    times.reduce(f64::min)
}

/// The mean of times that are all known.
fn mean(times: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let all: Option<Vec<f64>> = times.collect();
    let all = all.filter(|all| !all.is_empty())?;
    Some(all.iter().sum::<f64>() / all.len() as f64)
}

#[cfg(test)]
mod tests;
