//! Searches with clocks that the tests make up.

use ir::kernel::Mapping;
use ir::plan::Step;
use passes::{OptLevel, tuning};
use runtime::compile::Failure;

use super::*;

mod convolutions;

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

/// A search with so many candidates a product, and all the time that it takes.
fn candidates(candidates: usize) -> TuneOptions {
    TuneOptions {
        candidates,
        budget: None,
    }
}

/// Tunes with three candidates a product.
fn tuned(database: &Database, measure: &mut impl FnMut(Program, &[Bindings]) -> Result<Vec<Times>>) -> Result<Tuned> {
    tuned_at(PLACE, database, measure)
}

fn tuned_at(
    place: Place<'_>,
    database: &Database,
    measure: &mut impl FnMut(Program, &[Bindings]) -> Result<Vec<Times>>,
) -> Result<Tuned> {
    let graph = ir::graph::parse::parse(PRODUCTS).expect("parses");
    let target: Target = "gfx90a".parse().expect("known");
    let mut build = BuildOptions::new(vec![target], OptLevel::O2);
    build.optimize.libraries = false;
    let options = candidates(3);
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

/// What measured times depend on is what rows are found by: another driver, feature flag or compiler is another
/// measurement.
#[test]
fn another_driver_or_feature_flag_is_measured_again() {
    let (_folder, database) = database();
    let mut clock = |program: Program, _: &[Bindings]| Ok(vec![times(&program)]);
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

/// A product whose tiles leave compute units without work in their last round: mappings that share out tiles are
/// measured beside the others, and the fastest is what the next plan has, its own memory and all.
#[test]
fn shared_tiles_are_measured_beside_plain_ones() {
    let text = "graph @product stage=import {
  x = input \"x\" : f16[2048, 4096]
  w = input \"w\" : f16[4096, 2048]
  y = contract x, w
  return y as \"y\"
}
";
    let graph = ir::graph::parse::parse(text).expect("parses");
    let target: Target = "gfx90a".parse().expect("known");
    let mut build = BuildOptions::new(vec![target], OptLevel::O2);
    build.optimize.libraries = false;
    let options = candidates(8);
    let is_shared = |plan: &Plan, step: &Step| {
        let kernel = step.work.kernel().map(|id| &plan.kernels[id]);
        kernel.is_some_and(|kernel| matches!(&kernel.mapping, Mapping::Matrix(tiling) if tiling.shares.is_some()))
    };
    let (_folder, database) = database();
    let mut timed = 0;
    let mut clock = |program: Program, _: &[Bindings]| {
        let plan = &program.variants[0].plan;
        let micros = |step: &Step| if is_shared(plan, step) { 10.0 } else { 20.0 };
        timed += plan.steps.values().filter(|step| is_shared(plan, step)).count();
        Ok(vec![plan.steps.iter().map(|(id, step)| (id, micros(step))).collect()])
    };
    let found = tune(
        &graph,
        target,
        &build,
        (PLACE, &database),
        &options,
        &mut clock,
        &|_, _| (),
    )
    .expect("tunes");
    assert_eq!((found.measured, timed), (8, 2));
    let best = found.products[0].best.as_ref().expect("measured");
    assert_eq!(best.1, 10.0, "{best:?}");
    build.plan.tuning = database.tuning().expect("reads");
    let plan = &driver::build(&graph, &build).expect("builds").program.variants[0].plan;
    assert!(plan.steps.values().any(|step| is_shared(plan, step)), "{plan}");
    let said = tuning::tuned(plan, &build.plan.tuning);
    assert!(
        said.len() == 1 && said[0].mapping == best.0 && said[0].predicted != best.0,
        "{said:?}"
    );
}

#[test]
fn calls_are_measured_beside_tilings_and_decide_what_a_plan_has() {
    let graph = ir::graph::parse::parse(PRODUCTS).expect("parses");
    let target: Target = "gfx90a".parse().expect("known");
    let build = BuildOptions::new(vec![target], OptLevel::O2);
    let options = candidates(3);
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
        let mut clock = |program: Program, _: &[Bindings]| {
            let mut all = times(&program);
            let plan = &program.variants[0].plan;
            let of_calls = plan.steps.iter().filter(|(_, step)| step.calls().count() > 0);
            of_calls.for_each(|(id, _)| {
                all.insert(id, micros);
            });
            Ok(vec![all])
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

/// Calls of hipBLASLt whose library offers algorithms; one of them is the fastest.
struct Offering {
    /// By the algorithm's only word.
    micros: fn(u8) -> f64,
    /// Rounds whose program names algorithms.
    rounds: usize,
    asked: usize,
}

/// The algorithm of a word, as the library of the test names it.
fn algorithm(word: u8) -> Algorithm {
    Algorithm {
        of: "a library on a driver".to_owned(),
        words: vec![word],
    }
}

impl Measure for Offering {
    fn times(&mut self, program: Program, sizes: &[Bindings]) -> Result<Vec<Times>> {
        let mut names_one = false;
        let at = |sizes: &Bindings| {
            let mut micros = |step: &Step| match step.at(sizes).expect("bound") {
                Work::Call { algorithm: Some(a), .. } => {
                    names_one = true;
                    (self.micros)(a.words[0])
                }
                Work::Call { .. } => (self.micros)(0),
                _ => 50.0,
            };
            program.variants[0]
                .plan
                .steps
                .iter()
                .map(|(id, step)| (id, micros(step)))
                .collect()
        };
        let times = sizes.iter().map(at).collect::<Vec<Times>>();
        self.rounds += usize::from(names_one);
        Ok(times)
    }

    fn algorithms(&mut self, program: &Program, sizes: &[Bindings]) -> Result<Vec<Algorithms>> {
        self.asked += 1;
        // At an odd size the library has one fewer.
        let of = |sizes: &Bindings| {
            let most = if sizes.values().any(|size| size % 2 == 1) { 3 } else { 4 };
            let steps = program.variants[0].plan.steps.iter();
            let calls = steps.filter(|(_, step)| step.calls().count() > 0);
            calls.map(|(id, _)| (id, (0..most).map(algorithm).collect())).collect()
        };
        Ok(sizes.iter().map(of).collect())
    }
}

/// A product with a bias and an activation, which hipBLASLt takes.
fn activated(rows: &str, symbols: &str) -> Graph {
    let text = format!(
        "graph @activated stage=import {{\n {symbols}\n x = input \"x\" : f16[{rows}, 96]\n w = input \"w\" : f16[96, 64]\n \
         b = input \"b\" : f16[64]\n c = contract x, w\n d = add c, b\n y = relu d\n return y as \"y\"\n}}\n"
    );
    ir::graph::parse::parse(&text).expect("parses")
}

#[test]
fn the_fastest_algorithm_of_a_call_is_what_a_plan_names() {
    let graph = activated("48", "");
    let target: Target = "gfx90a".parse().expect("known");
    let build = BuildOptions::new(vec![target], OptLevel::O2);
    let options = candidates(3);
    let named = |build: &BuildOptions| {
        let built = driver::build(&graph, build).expect("builds");
        let plan = &built.program.variants[0].plan;
        let of_step = |step: &Step| match &step.work {
            Work::Call { call, algorithm, .. } => Some((call.name(), algorithm.as_deref().cloned())),
            _ => None,
        };
        let found: Vec<_> = plan.steps.values().filter_map(of_step).collect();
        (found, built.reports[0].decided.clone())
    };
    // The third is the fastest; then what the library would choose itself is.
    let clocks: [(fn(u8) -> f64, Option<Algorithm>); 2] = [
        (|word| if word == 2 { 1.0 } else { 9.0 }, Some(algorithm(2))),
        (|word| 1.0 + f64::from(word), None),
    ];
    for (micros, expected) in clocks {
        let (_folder, database) = database();
        let mut clock = Offering {
            micros,
            rounds: 0,
            asked: 0,
        };
        let mut search = || {
            let place = (PLACE, &database);
            tune(&graph, target, &build, place, &options, &mut clock, &|_, _| ()).expect("tunes")
        };
        let found = search();
        // Three tilings, the library's choice, and the three other algorithms.
        assert_eq!((found.measured, found.left), (7, 0), "{found:#?}");
        assert_eq!(found.products[0].calls.len(), 4);
        assert_eq!(search().measured, 0, "the file has all of it");
        assert_eq!((clock.rounds, clock.asked), (3, 2));
        let mut tuned = build.clone();
        tuned.plan.tuning = database.tuning().expect("reads");
        let (calls, decided) = named(&tuned);
        assert_eq!(calls, [("hipblaslt_matmul", expected.clone())]);
        assert_eq!(
            decided[0].engine,
            Engine::call("hipblaslt_matmul", expected).to_string()
        );
        let text = driver::build(&graph, &tuned).expect("builds").program.variants[0]
            .plan
            .to_string();
        assert_eq!(
            text.contains(" algorithm 02 of a library on a driver"),
            decided[0].engine.contains("algorithm")
        );
        // Whoever prefers calls without measuring has the library's choice.
        tuned.plan.prefer = Prefer::Calls;
        assert_eq!(named(&tuned).0, [("hipblaslt_matmul", None)]);
    }
}

/// Ranges of rows have algorithms of their own, of those that the library offers at all of a range's sizes.
#[test]
fn ranges_of_rows_have_algorithms_of_their_own() {
    let graph = activated("n", "symbol n: 1..16 hint 8");
    let target: Target = "gfx90a".parse().expect("known");
    let mut build = BuildOptions::new(vec![target], OptLevel::O2);
    let options = candidates(8);
    let (_folder, database) = database();
    // The last one is the fastest, where there is one.
    let mut clock = Offering {
        micros: |word| 10.0 - f64::from(word),
        rounds: 0,
        asked: 0,
    };
    let place = (PLACE, &database);
    tune(&graph, target, &build, place, &options, &mut clock, &|_, _| ()).expect("tunes");
    build.plan.tuning = database.tuning().expect("reads");
    let program = driver::build(&graph, &build).expect("builds").program;
    let plan = &program.variants[0].plan;
    let step = plan
        .steps
        .values()
        .find(|step| step.calls().count() > 0)
        .expect("a call");
    // One row and 2 to 3 are measured at an odd size; 4 to 7 at 4 and 6.
    for (rows, word) in [(1, 2), (2, 2), (3, 2), (4, 3), (7, 3), (8, 3), (16, 3)] {
        let Work::Call { algorithm: asked, .. } = step.in_range(rows) else {
            panic!("{rows} rows: {plan}")
        };
        assert_eq!(asked.as_deref(), Some(&algorithm(word)), "{rows} rows");
    }
    assert_eq!(
        step.choices.len(),
        1,
        "neighbours with one algorithm are one choice: {plan}"
    );
}

#[test]
fn a_call_that_cannot_be_measured_is_said_and_nothing_is_kept_of_it() {
    let graph = ir::graph::parse::parse(PRODUCTS).expect("parses");
    let target: Target = "gfx90a".parse().expect("known");
    let build = BuildOptions::new(vec![target], OptLevel::O2);
    let options = candidates(2);
    let (_folder, database) = database();
    let mut clock = |program: Program, _: &[Bindings]| {
        let plan = &program.variants[0].plan;
        match plan.steps.values().any(|step| step.calls().count() > 0) {
            true => Err(Error::Config("no rocBLAS here".into())),
            false => Ok(vec![times(&program)]),
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
        let options = candidates(6);
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
        let mut clock = |program: Program, _: &[Bindings]| {
            let plan = &program.variants[0].plan;
            micros -= 1.0;
            seen.extend(plan.kernels.values().map(|k| k.mapping.to_string()));
            Ok(vec![plan.steps.keys().map(|id| (id, micros)).collect()])
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
    tuned(&all, &mut |program, _| Ok(vec![times(&program)])).expect("tunes");
    let rows = all.rows().expect("reads");
    assert_eq!(rows.len(), 6);
    // Each candidate but those that the prediction takes, one after another.
    for bad in &rows {
        let (_folder, database) = database();
        let result = tuned(&database, &mut |program, _| {
            let plan = &program.variants[0].plan;
            let is_bad = |k: &ir::Kernel| {
                let product = tuning::product(k, &plan.symbols, &plan.target);
                product.as_ref() == Some(&bad.product) && k.mapping.to_string() == bad.mapping
            };
            match plan.kernels.values().any(is_bad) {
                true => Err(rejected()),
                false => Ok(vec![times(&program)]),
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
    let result = tuned(&database, &mut |program, _| {
        rounds += 1;
        match rounds {
            1 => Ok(vec![times(&program)]),
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
    let found = tuned(&database, &mut |program, _| Ok(vec![times(&program)])).expect("tunes");
    assert_eq!((found.measured, found.left), (4, 0));
}

const OPEN: &str = "graph @open stage=import {
  symbol n: 1..300 hint 100
  x = input \"x\" : f16[n, 512]
  w = input \"w\" : f16[512, 512]
  y = contract x, w
  z = relu y
  return z as \"z\"
}
";

/// The rows of a run at some sizes.
fn rows_of(sizes: &Bindings) -> i64 {
    sizes[0]
}

/// A product of open rows is searched range by range; the mapping that was the fastest in a range is what the plan has
/// there, the call where it was faster, and the same file gives the same plan.
#[test]
fn open_rows_are_tuned_by_ranges() {
    let graph = ir::graph::parse::parse(OPEN).expect("parses");
    for target in ["gfx90a", "gfx1100", "gfx1030", "sm_90"] {
        let target: Target = target.parse().expect("known");
        let build = BuildOptions::new(vec![target], OptLevel::O2);
        let options = candidates(3);
        let (_folder, database) = database();
        // In each range of rows another text is the fastest; the call wins from 128 rows on.
        let micros = |mapping: &str, rows: i64| {
            let seed = mapping.bytes().map(u64::from).sum::<u64>() + u64::from(rows.unsigned_abs().ilog2());
            1.0 + (seed % 11) as f64 + rows as f64 / 1000.0
        };
        let mut seen: Vec<i64> = Vec::new();
        let mut clock = |program: Program, sizes: &[Bindings]| {
            let plan = &program.variants[0].plan;
            let at = |sizes: &Bindings| {
                let of_step = |(id, step): (StepId, &Step)| {
                    let time = match step.at(sizes).expect("bound") {
                        Work::Launch { kernel, .. } => {
                            micros(&plan.kernels[*kernel].mapping.to_string(), rows_of(sizes))
                        }
                        Work::Call { .. } if rows_of(sizes) < 128 => 100.0,
                        _ => CALL_MICROS,
                    };
                    (id, time)
                };
                plan.steps.iter().map(of_step).collect()
            };
            seen.extend(sizes.iter().map(rows_of));
            Ok(sizes.iter().map(at).collect())
        };
        let mut search = || {
            let place = (PLACE, &database);
            tune(&graph, target, &build, place, &options, &mut clock, &|_, _| ()).expect("tunes")
        };
        let found = search();
        // 1, 2, 4 to 256.
        assert_eq!((found.products.len(), found.left), (9, 0), "{target}: {found:#?}");
        assert_eq!(search().measured, 0, "{target}: the file has all of it");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]);

        let mut tuned = build.clone();
        tuned.plan.tuning = database.tuning().expect("reads");
        let built = driver::build(&graph, &tuned).expect("builds");
        assert_eq!(built.program, driver::build(&graph, &tuned).expect("builds").program);
        let plan = &built.program.variants[0].plan;
        let step = plan
            .steps
            .values()
            .find(|step| step.works().any(|w| !matches!(w, Work::Copy { .. })));
        let step = step.expect("a product");
        let has_calls = found.products.iter().any(|p| !p.calls.is_empty());
        assert_eq!(has_calls, target.libraries && target.hipblaslt, "{target}");
        for rows in [1, 3, 7, 31, 64, 100, 127, 128, 200, 300] {
            let line = |p: &&Product| p.sizes.iter().any(|s| rows_of(s).ilog2() == i64::ilog2(rows));
            let product = found.products.iter().find(line).expect("its range");
            let (best, _) = product.best.as_ref().expect("measured");
            let takes = match step.in_range(rows) {
                Work::Launch { kernel, .. } => plan.kernels[*kernel].mapping.to_string(),
                Work::Call { call, .. } => format!("call {}", call.name()),
                Work::Copy { .. } => panic!("a copy"),
            };
            assert_eq!(takes, *best, "{target} at {rows} rows: {}", product.product);
            assert_eq!(takes.starts_with("call "), has_calls && rows >= 128);
        }
        // What was measured is said, range by range.
        let report = &built.reports[0];
        let kernels = found
            .products
            .iter()
            .filter(|p| p.best.as_ref().is_some_and(|(m, _)| !m.starts_with("call ")));
        assert_eq!(report.tuned.len(), kernels.count(), "{:#?}", report.tuned);
        assert_eq!(report.decided.len(), if has_calls { 9 } else { 0 });
        let by_call = |line: &str| ["128..", "256.."].iter().any(|from| line.contains(from));
        let is_right = |d: &passes::Decided| (d.engine != "kernel") == by_call(&d.product);
        assert!(report.decided.iter().all(is_right), "{:?}", report.decided);
    }
}

/// A search that ends between two measurements goes on with the next one.
#[test]
fn a_search_of_open_rows_is_resumed() {
    let graph = ir::graph::parse::parse(OPEN).expect("parses");
    let target: Target = "gfx90a".parse().expect("known");
    let mut build = BuildOptions::new(vec![target], OptLevel::O2);
    build.optimize.libraries = false;
    let options = candidates(2);
    let (_folder, database) = database();
    let (mut rounds, mut measured) = (0, 0);
    loop {
        let mut left = 3;
        let mut clock = |program: Program, sizes: &[Bindings]| {
            left -= 1;
            rounds += 1;
            match left {
                0 => Err(Error::Config("the device is lost".into())),
                _ => Ok(sizes.iter().map(|_| times(&program)).collect()),
            }
        };
        match tune(
            &graph,
            target,
            &build,
            (PLACE, &database),
            &options,
            &mut clock,
            &|_, _| (),
        ) {
            Ok(found) => {
                assert_eq!(found.left, 0);
                break;
            }
            Err(_) => {
                measured += 2;
                assert_eq!(database.rows().expect("reads").len(), measured);
            }
        }
    }
    // Nine ranges with two candidates each, and one lost measurement for two that were kept.
    assert_eq!(database.rows().expect("reads").len(), 18);
    assert_eq!(rounds, 18 + measured / 2);
}
