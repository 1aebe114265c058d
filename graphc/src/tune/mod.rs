//! Tuning: which mapping of a model's products is the fastest where it is measured.
//!
//! Before: a graph, and a way to measure a program kernel by kernel (on a device, or predicted). After: a [`Database`] with a
//! measurement of each candidate. All products of the model are measured at once: in round `i` each takes its `i`-th candidate, and
//! the model runs as a whole, so that caches hold what they would. What the file has already is not measured again.

pub mod database;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ir::plan::{KernelId, Plan, Work};
use ir::{Graph, Program, Target};
use passes::{Tuning, tuning};

pub use database::{Database, DatabaseError, PREDICTED, Row};

use crate::driver::{self, BuildOptions};
use crate::error::Result;

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
}

/// What tells measurements apart: see [`Row`].
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub on: &'a str,
    pub compiler: &'a str,
}

/// Takes a compiled program of one target to the microseconds of one launch of each of its kernels, by name.
pub type Measure<'a> = dyn FnMut(Program) -> Result<BTreeMap<String, f64>> + 'a;

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
        });
        entry.kernels.push(kernel.name.clone());
        search.candidates.insert(product, all);
    }
    for row in database.rows()? {
        if row.on == place.on && row.compiler == place.compiler {
            search.known.insert((row.product, row.mapping), row.micros);
        }
    }
    let all = search.left().len();
    loop {
        let left = search.left();
        progress(all - left.len(), all);
        if left.is_empty() || options.budget.is_some_and(|budget| start.elapsed() >= budget) {
            break;
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
        product.best = timed.min_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    }
    Ok(Tuned {
        products: products.into_values().collect(),
        open: open.iter().map(|id| plan.kernels[*id].name.clone()).collect(),
        measured: search.measured,
        left: search.left().len(),
    })
}

impl Search<'_> {
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
        let names: Vec<(String, String)> = of_plan(plan, &open_kernels(plan))
            .map(|(product, id)| (product, plan.kernels[id].name.clone()))
            .collect();
        match measure(program) {
            Ok(times) => {
                for (product, mapping) in pairs {
                    let kernels = names.iter().filter(|(p, _)| p == product);
                    let time = kernels
                        .filter_map(|(_, name)| times.get(name).copied())
                        .reduce(f64::min);
                    self.keep(product, mapping, time)?;
                }
                Ok(())
            }
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
            compiler: self.place.compiler.into(),
            micros,
        })?;
        Ok(())
    }
}

/// The kernels of launches that have a mapping for each range of sizes.
fn open_kernels(plan: &Plan) -> BTreeSet<KernelId> {
    let launches = plan.steps.values().filter(|step| match &step.work {
        Work::Launch { choices, .. } => !choices.is_empty(),
        _ => false,
    });
    launches.flat_map(|step| step.work.kernels()).collect()
}

/// The products that a plan's kernels compute, those of open sizes left out.
fn of_plan<'a>(plan: &'a Plan, open: &'a BTreeSet<KernelId>) -> impl Iterator<Item = (String, KernelId)> + 'a {
    let kernels = plan.kernels.iter().filter(|(id, _)| !open.contains(id));
    kernels.filter_map(|(id, kernel)| Some((tuning::product(kernel, &plan.symbols, &plan.target)?, id)))
}
