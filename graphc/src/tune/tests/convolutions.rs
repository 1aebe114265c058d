//! Searches of convolutions: what a call leaves of one counts with it.

use super::*;

/// Convolutions with what no call does: a bias and an activation; the second has a filter for each channel, and is no
/// product.
const CONVOLUTIONS: &str = "graph @convolutions stage=import {
  x = input \"x\" : f16[2, 8, 8, 32]
  w = input \"w\" : f16[32, 3, 3, 32]
  b = input \"b\" : f16[32]
  d = input \"d\" : f16[32, 3, 3, 1]
  a = conv x, w, b {channels_last, pad_low=[1, 1], pad_high=[1, 1]}
  r = relu a
  e = conv r, d {channels_last, groups=32, pad_low=[1, 1], pad_high=[1, 1]}
  f = relu e
  v = input \"v\" : f16[32, 64]
  g = contract f, v
  return g as \"g\"
}
";

/// A clock of convolutions: their kernels, MIOpen's three solutions, and the kernels of what a call leaves.
struct Convolving {
    /// By the solution's only word; 0 where MIOpen chooses.
    call: fn(u8) -> f64,
    rest: f64,
}

impl Measure for Convolving {
    fn times(&mut self, program: Program, _: &[Bindings]) -> Result<Vec<Times>> {
        let mut after_call = false;
        let mut micros = |step: &Step| {
            let is_rest = std::mem::replace(&mut after_call, false);
            match &step.work {
                Work::Call { call, algorithm, .. } if call.name() == "miopen_conv" => {
                    after_call = true;
                    (self.call)(algorithm.as_ref().map_or(0, |a| a.words[0]))
                }
                Work::Launch { .. } if is_rest => self.rest,
                Work::Launch { .. } => 10.0,
                _ => 40.0,
            }
        };
        let steps = program.variants[0].plan.steps.iter();
        Ok(vec![steps.map(|(id, step)| (id, micros(step))).collect()])
    }

    fn algorithms(&mut self, program: &Program, _: &[Bindings]) -> Result<Vec<Algorithms>> {
        let steps = program.variants[0].plan.steps.iter();
        let convolutions = steps.filter(|(_, step)| step.calls().any(|call| call.name() == "miopen_conv"));
        Ok(vec![
            convolutions
                .map(|(id, _)| (id, (0..3).map(algorithm).collect()))
                .collect(),
        ])
    }
}

/// A call of a convolution counts with the kernel that it leaves; what was faster is in the plan, with the solution by
/// name.
#[test]
fn convolutions_are_kernels_or_calls_as_measured() {
    let graph = ir::graph::parse::parse(CONVOLUTIONS).expect("parses");
    let target: Target = "gfx90a".parse().expect("known");
    let build = BuildOptions::new(vec![target], OptLevel::O2);
    let works = |build: &BuildOptions| {
        let built = driver::build(&graph, build).expect("builds");
        let work = |step: &Step| match &step.work {
            Work::Launch { .. } => Some("kernel".to_owned()),
            Work::Call { call, algorithm, .. } => {
                Some(Engine::call(call.name(), algorithm.as_deref().cloned()).to_string())
            }
            Work::Copy { .. } => None,
        };
        let works: Vec<String> = built.program.variants[0].plan.steps.values().filter_map(work).collect();
        (works, built.reports[0].decided.len())
    };
    let kernels = (vec!["kernel".to_owned(); 3], 0);
    assert_eq!(
        works(&build),
        kernels,
        "such small products are kernels by the roofline"
    );
    let named = Engine::call("miopen_conv", Some(algorithm(2))).to_string();
    let own = Engine::call("miopen_conv", None).to_string();
    let all = |call: &str| [call, "kernel", call, "kernel", "kernel"].map(str::to_owned).to_vec();
    let clocks: [(fn(u8) -> f64, f64, Vec<String>); 4] = [
        (|word| if word == 2 { 1.0 } else { 20.0 }, 2.0, all(&named)),
        (|word| 3.0 + f64::from(word), 2.0, all(&own)),
        // Only without what it leaves is the call faster.
        (|_| 9.0, 2.0, kernels.0.clone()),
        (|_| 20.0, 2.0, kernels.0.clone()),
    ];
    for (call, rest, expected) in clocks {
        let (_folder, database) = database();
        let mut clock = Convolving { call, rest };
        let mut search = || {
            let place = (PLACE, &database);
            tune(&graph, target, &build, place, &candidates(3), &mut clock, &|_, _| ()).expect("tunes")
        };
        let found = search();
        let of_lines = |kind: &str| {
            found
                .products
                .iter()
                .filter(|p| p.product.contains(kind))
                .collect::<Vec<_>>()
        };
        let convolutions = of_lines(" conv ");
        assert_eq!(
            (convolutions.len(), of_lines(" product ").len(), found.left),
            (2, 1, 0),
            "{found:#?}"
        );
        for one in convolutions {
            let times: Vec<(&str, f64)> = one.calls.iter().map(|(name, time)| (name.as_str(), *time)).collect();
            let by = |word| Engine::call("miopen_conv", Some(algorithm(word))).to_string();
            assert_eq!(
                times,
                [
                    (own.as_str(), call(0) + rest),
                    (&by(1), call(1) + rest),
                    (&by(2), call(2) + rest)
                ]
            );
            assert_eq!(one.predicted.1, Some(10.0), "{one:?}");
        }
        // Three tilings each of a convolution and the product; of the other convolution the one kernel; seven calls.
        assert_eq!((found.measured, search().measured), (3 + 3 + 1 + 7, 0));
        let mut tuned = build.clone();
        tuned.plan.tuning.extend(database.tuning().expect("reads"));
        assert_eq!(works(&tuned), (expected, 3));
        let again = driver::build(&graph, &tuned).expect("builds").program;
        assert_eq!(again, driver::build(&graph, &tuned).expect("builds").program);
        tuned.optimize.libraries = false;
        assert_eq!(works(&tuned), kernels);
    }
}

/// A convolution of few tiles and much depth is two launches as kernels: their sum is what a call stands against.
#[test]
fn a_convolution_in_parts_is_measured_as_a_whole() {
    let text = CONVOLUTIONS
        .replace("2, 8, 8, 32", "1, 4, 4, 1024")
        .replace("32, 3, 3, 32", "32, 3, 3, 1024");
    let graph = ir::graph::parse::parse(&text).expect("parses");
    let target: Target = "gfx90a".parse().expect("known");
    let mut build = BuildOptions::new(vec![target], OptLevel::O2);
    for (micros, expected) in [(17.0f64, 1), (19.0, 0)] {
        let (_folder, database) = database();
        let call: fn(u8) -> f64 = if micros < 18.0 { |_| 17.0 } else { |_| 19.0 };
        let mut clock = Convolving { call, rest: 2.0 };
        let place = (PLACE, &database);
        let found = tune(&graph, target, &build, place, &candidates(3), &mut clock, &|_, _| ()).expect("tunes");
        let whole = found
            .products
            .iter()
            .find(|p| p.product.contains(", 9216]") && !p.calls.is_empty());
        let whole = whole.unwrap_or_else(|| panic!("{found:#?}"));
        assert_eq!((whole.predicted.1, whole.calls[0].1), (Some(20.0), micros + 2.0));
        build.plan.tuning = database.tuning().expect("reads");
        let built = driver::build(&graph, &build).expect("builds");
        let first = &built.reports[0].convolutions[0];
        assert_eq!(
            (usize::from(first.call.is_some()), first.steps.len()),
            (expected, 2),
            "{first:?}"
        );
        build.plan.tuning = Tuning::default();
    }
}
