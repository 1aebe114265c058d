//! Models whose sizes or branches data decide, made for the inputs of one run; the graph checks that another run
//! decides the same.

use graphc_frontend::onnx::proto::attribute_proto::AttributeType;
use graphc_frontend::onnx::proto::tensor_proto::DataType;
use graphc_frontend::onnx::proto::{AttributeProto, GraphProto, NodeProto, ValueInfoProto};
use graphc_frontend::onnx::{GivenInput, ImportError, ImportOptions};
use indexmap::IndexMap;
use ir::{Graph, HostTensor};

use super::build::{Build, int, node, output_type};

type Tensors = IndexMap<String, HostTensor>;

fn floats(shape: &[usize], values: &[f32]) -> HostTensor {
    HostTensor::from_f32(shape.to_vec(), values).unwrap()
}

fn tensors<const N: usize>(pairs: [(&str, HostTensor); N]) -> Tensors {
    pairs
        .into_iter()
        .map(|(name, tensor)| (name.to_owned(), tensor))
        .collect()
}

/// Imports a model for inputs.
fn import_for(model: &Build, inputs: &Tensors) -> Result<Graph, ImportError> {
    let mut options = ImportOptions::default();
    for (name, tensor) in inputs {
        options.given.insert(name.clone(), GivenInput::of(tensor));
    }
    model.import_with(&options)
}

/// Evaluates a graph: what it gives, and the conditions that do not hold.
fn run(graph: &Graph, inputs: &Tensors) -> (Tensors, Vec<String>) {
    let values = ir::graph::eval::evaluate_values(graph, inputs).unwrap();
    let mut results = Tensors::new();
    let mut failed = Vec::new();
    for output in graph.outputs() {
        let array = &values[output.value.node][output.value.index as usize];
        let value = array.to_tensor().unwrap();
        match output.check {
            None => drop(results.insert(output.name.clone(), value)),
            Some(_) if value.to_i64() == [0] => failed.push(output.name.clone()),
            Some(_) => {}
        }
    }
    (results, failed)
}

#[test]
fn how_many_elements_are_not_zero_is_computed_and_checked() {
    let model = Build::new(17)
        .input("x", &["n", "3"])
        .node("Relu x -> r", vec![])
        .node("NonZero r -> y", vec![])
        .output("y");
    assert!(model.import().unwrap_err().to_string().contains("depends on data"));
    let x = |values: &[f32]| tensors([("x", floats(&[2, 3], values))]);
    let given = x(&[0.5, -1.0, 2.0, -3.0, 0.0, 4.0]);
    let graph = import_for(&model, &given).unwrap();
    assert_eq!(output_type(&graph), "i64[2, 3]");
    let (results, failed) = run(&graph, &given);
    assert_eq!(results["y"].to_i64(), [0, 0, 1, 0, 2, 2]);
    assert!(failed.is_empty(), "{failed:?}");
    // Other positions, as many of them: the graph computes them, it does not remember any.
    let (results, failed) = run(&graph, &x(&[-0.5, 1.0, -2.0, 3.0, 5.0, -4.0]));
    assert_eq!(results["y"].to_i64(), [0, 1, 1, 1, 0, 1]);
    assert!(failed.is_empty(), "{failed:?}");
    let (_, failed) = run(&graph, &x(&[1.0; 6]));
    assert_eq!(failed.len(), 1);
    assert!(
        failed[0].contains("number of elements that are kept") && failed[0].contains("NonZero"),
        "{failed:?}"
    );
}

#[test]
fn slices_are_kept_by_a_condition_of_data() {
    let model = Build::new(17)
        .input("x", &["n", "2"])
        .input("c", &["4"])
        .floats("half", &[], &[0.5])
        .node("Greater c half -> keep", vec![])
        .node("Compress x keep -> y", vec![int("axis", 0)])
        .output("y");
    let inputs = tensors([
        (
            "x",
            floats(&[5, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]),
        ),
        ("c", floats(&[4], &[0.0, 1.0, 0.2, 0.9])),
    ]);
    let (results, failed) = run(&import_for(&model, &inputs).unwrap(), &inputs);
    assert_eq!(
        (results["y"].shape.clone(), results["y"].to_f32()),
        (vec![2, 2], vec![2.0, 3.0, 6.0, 7.0])
    );
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn distinct_integers_are_found_whatever_makes_them() {
    let model = Build::new(17)
        .typed_input("x", DataType::Int64, &["n"])
        .node("Add x x -> twice", vec![])
        .node("Unique twice -> y first which often", vec![])
        .output("y")
        .output("first")
        .output("which")
        .output("often");
    // Too many to be known by themselves.
    let values: Vec<i64> = (0..100).map(|i| [7, -2, 7, 30][i % 4]).collect();
    let inputs = tensors([("x", HostTensor::from_i64(ir::DType::I64, [100], &values).unwrap())]);
    let (results, failed) = run(&import_for(&model, &inputs).unwrap(), &inputs);
    assert_eq!(results["y"].to_i64(), [-4, 14, 60]);
    assert_eq!(results["first"].to_i64(), [1, 0, 3]);
    assert_eq!(results["which"].to_i64()[..5], [1, 0, 1, 2, 1]);
    assert_eq!(results["often"].to_i64(), [25, 50, 25]);
    assert!(failed.is_empty(), "{failed:?}");
}

fn graph_of(name: &str, inputs: &[&str], nodes: Vec<NodeProto>, outputs: &[&str]) -> AttributeProto {
    let named = |name: &&str| ValueInfoProto {
        name: (*name).to_owned(),
        ..ValueInfoProto::default()
    };
    AttributeProto {
        name: name.into(),
        r#type: AttributeType::Graph as i32,
        g: Some(GraphProto {
            input: inputs.iter().map(named).collect(),
            node: nodes,
            output: outputs.iter().map(named).collect(),
            ..GraphProto::default()
        }),
        ..AttributeProto::default()
    }
}

#[test]
fn a_branch_of_another_rank_is_taken_as_the_given_data_say() {
    let model = Build::new(17)
        .input("x", &["1", "3"])
        .floats("zero", &[], &[0.0])
        .ints("axes", &[1], &[0])
        .node("ReduceSum x -> sum", vec![int("keepdims", 0)])
        .node("Greater sum zero -> more", vec![])
        .node(
            "If more -> y",
            vec![
                graph_of("then_branch", &[], vec![node("Squeeze x axes -> t", vec![])], &["t"]),
                graph_of("else_branch", &[], vec![node("Neg x -> e", vec![])], &["e"]),
            ],
        )
        .output("y");
    assert!(model.import().is_err());
    let x = |first: f32| tensors([("x", floats(&[1, 3], &[first, 1.0, 2.0]))]);
    for (first, ty) in [(5.0, "f32[3]"), (-5.0, "f32[1, 3]")] {
        let graph = import_for(&model, &x(first)).unwrap();
        assert_eq!(output_type(&graph), ty);
        let (_, failed) = run(&graph, &x(first));
        assert!(failed.is_empty(), "{failed:?}");
        let (_, failed) = run(&graph, &x(-first));
        assert!(
            failed[0].contains("condition") && failed[0].contains("If"),
            "{failed:?}"
        );
    }
}

#[test]
fn data_may_end_a_loop_whose_results_grow() {
    let body = graph_of(
        "body",
        &["i", "go", "v"],
        vec![
            node("Add v v -> w", vec![]),
            node("ReduceMax w -> top", vec![int("keepdims", 0)]),
            node("Less top limit -> on", vec![]),
            node("Identity w -> seen", vec![]),
        ],
        &["on", "w", "seen"],
    );
    let model = Build::new(17)
        .input("x", &["2"])
        .input("limit", &[])
        .node("Loop _ _ x -> last all", vec![body])
        .output("last")
        .output("all");
    let inputs = |limit: f32| tensors([("x", floats(&[2], &[1.0, -3.0])), ("limit", floats(&[], &[limit]))]);
    let graph = import_for(&model, &inputs(7.0)).unwrap();
    let (results, failed) = run(&graph, &inputs(7.0));
    assert_eq!(results["all"].shape, [3, 2]);
    assert_eq!(results["all"].to_f32(), [2.0, -6.0, 4.0, -12.0, 8.0, -24.0]);
    assert_eq!(results["last"].to_f32(), [8.0, -24.0]);
    assert!(failed.is_empty(), "{failed:?}");
    let (_, failed) = run(&graph, &inputs(100.0));
    assert!(!failed.is_empty());
}

/// Sums, differences and products of `u64` are computed in `i64`; a run whose result has no room there fails.
#[test]
fn long_unsigned_results_that_have_no_room_fail_the_run() {
    let cases: [(&str, [i64; 2], bool); 7] = [
        ("Add", [5, 3], true),
        ("Add", [i64::MAX, 1], false),
        ("Sub", [5, 3], true),
        ("Sub", [3, 5], false),
        ("Mul", [1 << 40, 1 << 20], true),
        ("Mul", [1 << 40, 1 << 30], false),
        ("Mul", [0, i64::MAX], true),
    ];
    for (op, [a, b], fits) in cases {
        let graph = Build::new(18)
            .typed_input("a", DataType::Uint64, &["1"])
            .typed_input("b", DataType::Uint64, &["1"])
            .node(&format!("{op} a b -> y"), vec![])
            .output("y")
            .import()
            .unwrap();
        let tensor = |value| HostTensor::from_i64(ir::DType::I64, [1], &[value]).unwrap();
        let (_, failed) = run(&graph, &tensors([("a", tensor(a)), ("b", tensor(b))]));
        assert_eq!(failed.is_empty(), fits, "{op} {a} {b}: {failed:?}");
    }
}

/// A float that becomes a `u64` is in the room of `i64` once its fraction is cut off, or the run fails.
#[test]
fn floats_that_are_no_long_unsigned_numbers_fail_the_run() {
    let graph = Build::new(18)
        .input("x", &["2"])
        .node("Cast x -> y", vec![int("to", DataType::Uint64 as i64)])
        .output("y")
        .import()
        .unwrap();
    let one = |x: f32| run(&graph, &tensors([("x", floats(&[2], &[x, 3.0]))]));
    for (x, whole) in [(0.0, 0), (7.9, 7), (-0.5, 0), (9e18, 9_000_000_202_358_128_640)] {
        let (results, failed) = one(x);
        assert_eq!(
            (results["y"].to_i64(), failed.len()),
            (vec![whole, 3], 0),
            "{x}: {failed:?}"
        );
    }
    for x in [-1.0, -7.5, 9.3e18, 1.8e19, f32::INFINITY, f32::NAN] {
        let (_, failed) = one(x);
        assert!(failed.len() == 1 && failed[0].contains("u64"), "{x}: {failed:?}");
    }
}

/// What a branch requires holds only where it is taken: both are computed where data decide.
#[test]
fn a_branch_that_is_not_taken_fails_no_run() {
    let twice = |name: &str, op: &str| {
        graph_of(
            name,
            &[],
            vec![node(&format!("{op} x x -> {name}_y"), vec![])],
            &[&format!("{name}_y")],
        )
    };
    let graph = Build::new(18)
        .typed_input("x", DataType::Uint64, &["1"])
        .input("c", &[])
        .floats("zero", &[], &[0.0])
        .node("Greater c zero -> more", vec![])
        .node(
            "If more -> y",
            vec![twice("then_branch", "Mul"), twice("else_branch", "Sub")],
        )
        .output("y")
        .import()
        .unwrap();
    // The square has no room in `i64`; the difference is 0.
    let inputs = |c: f32| {
        let x = HostTensor::from_i64(ir::DType::I64, [1], &[1 << 40]).unwrap();
        tensors([("x", x), ("c", floats(&[], &[c]))])
    };
    let (results, failed) = run(&graph, &inputs(-1.0));
    assert_eq!((results["y"].to_i64(), failed.len()), (vec![0], 0), "{failed:?}");
    let (_, failed) = run(&graph, &inputs(1.0));
    assert!(failed.len() == 1 && failed[0].contains("Mul"), "{failed:?}");
}

/// A list of boxes and what is kept of it.
struct Detection {
    batches: usize,
    classes: usize,
    size: usize,
    most: i64,
    overlap: f32,
    threshold: Option<f32>,
    centred: bool,
}

/// What the standard says: of each class the best box that overlaps none that is kept, until there are enough.
fn suppressed(case: &Detection, boxes: &[f32], scores: &[f32]) -> Vec<i64> {
    let corners = |batch: usize, at: usize| -> [f32; 4] {
        let b = &boxes[(batch * case.size + at) * 4..][..4];
        match case.centred {
            true => [
                b[0] - b[2] / 2.0,
                b[1] - b[3] / 2.0,
                b[0] + b[2] / 2.0,
                b[1] + b[3] / 2.0,
            ],
            false => [b[0].min(b[2]), b[1].min(b[3]), b[0].max(b[2]), b[1].max(b[3])],
        }
    };
    let overlaps = |a: [f32; 4], b: [f32; 4]| {
        let common = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0) * (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
        let area = |c: [f32; 4]| (c[2] - c[0]) * (c[3] - c[1]);
        common > 0.0 && common / (area(a) + area(b) - common) > case.overlap
    };
    let mut kept = Vec::new();
    for batch in 0..case.batches {
        for class in 0..case.classes {
            let score = |at: usize| scores[(batch * case.classes + class) * case.size + at];
            let mut order: Vec<usize> = (0..case.size)
                .filter(|at| case.threshold.is_none_or(|threshold| score(*at) > threshold))
                .collect();
            order.sort_by(|a, b| score(*b).total_cmp(&score(*a)).then(a.cmp(b)));
            let mut own: Vec<usize> = Vec::new();
            for at in order {
                let free = own.iter().all(|k| !overlaps(corners(batch, *k), corners(batch, at)));
                if free && (own.len() as i64) < case.most {
                    own.push(at);
                    kept.extend([batch as i64, class as i64, at as i64]);
                }
            }
        }
    }
    kept
}

#[test]
fn boxes_that_overlap_a_better_one_are_left_out() {
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut most_kept = 0;
    for case in 0..60 {
        let detection = Detection {
            batches: 1 + random(2) as usize,
            classes: 1 + random(3) as usize,
            // Chains of overlaps that need more rounds than are tried at first, at times.
            size: if case % 5 == 0 { 40 } else { 1 + random(12) as usize },
            most: [0, 1, 3, 100][random(4) as usize],
            overlap: [0.0, 0.1, 0.3, 0.5][random(4) as usize],
            threshold: [None, Some(0.0), Some(0.4), Some(2.0)][random(4) as usize],
            centred: random(2) == 1,
        };
        let Detection {
            batches, classes, size, ..
        } = detection;
        let mut boxes = Vec::new();
        for at in 0..batches * size {
            // A chain along one direction, or anywhere.
            let place = if case % 5 == 0 {
                at as f32 * 3.0
            } else {
                random(20) as f32
            };
            let (x, y) = (place, if case % 5 == 0 { 0.0 } else { random(20) as f32 });
            let (w, h) = (1.0 + random(8) as f32, 1.0 + random(8) as f32);
            match (detection.centred, random(2)) {
                (true, _) => boxes.extend([x, y, w, h]),
                (false, 0) => boxes.extend([x, y, x + w, y + h]),
                _ => boxes.extend([x + w, y + h, x, y]),
            }
        }
        // Some scores are alike.
        let scores: Vec<f32> = (0..batches * classes * size)
            .map(|_| random(16) as f32 / 16.0)
            .collect();
        let mut model = Build::new(17)
            .input("boxes", &[&batches.to_string(), "n", "4"])
            .input("scores", &[&batches.to_string(), &classes.to_string(), "n"])
            .ints("most", &[1], &[detection.most])
            .floats("overlap", &[1], &[detection.overlap]);
        let mut text = "NonMaxSuppression boxes scores most overlap".to_owned();
        if let Some(threshold) = detection.threshold {
            model = model.floats("threshold", &[1], &[threshold]);
            text += " threshold";
        }
        let model = model
            .node(
                &format!("{text} -> y"),
                vec![int("center_point_box", i64::from(detection.centred))],
            )
            .output("y");
        let inputs = tensors([
            ("boxes", floats(&[batches, size, 4], &boxes)),
            ("scores", floats(&[batches, classes, size], &scores)),
        ]);
        let (results, failed) = run(&import_for(&model, &inputs).unwrap(), &inputs);
        let want = suppressed(&detection, &boxes, &scores);
        assert_eq!(results["y"].shape, [want.len() / 3, 3], "case {case}");
        assert_eq!(results["y"].to_i64(), want, "case {case}");
        assert!(failed.is_empty(), "case {case}: {failed:?}");
        most_kept = most_kept.max(want.len() / 3);
    }
    assert!(most_kept > 40, "{most_kept}");
}

#[test]
fn regions_are_sampled_once_a_pixel() {
    let model = Build::new(16)
        .input("x", &["1", "1", "16", "16"])
        .input("r", &["n", "4"])
        .typed_input("b", DataType::Int64, &["n"])
        .node(
            "RoiAlign x r b -> y",
            vec![int("output_height", 2), int("output_width", 2)],
        )
        .output("y");
    // The mean of samples of a plane is its height in the middle of the bin.
    let plane: Vec<f32> = (0..256).map(|i| (i % 16) as f32 + 10.0 * (i / 16) as f32).collect();
    let regions = [[0.5f32, 0.5, 8.5, 8.5], [1.5, 2.5, 4.0, 12.5], [3.0, 3.0, 3.0, 3.0]];
    let mut wanted = Vec::new();
    for [left, top, right, bottom] in regions {
        for (down, across) in [(0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75)] {
            let (x, y) = (left + (right - left) * across - 0.5, top + (bottom - top) * down - 0.5);
            // The last region has no size, so its bins have no samples.
            wanted.push(if left == right { 0.0 } else { x + 10.0 * y });
        }
    }
    let inputs = tensors([
        ("x", floats(&[1, 1, 16, 16], &plane)),
        ("r", floats(&[3, 4], regions.as_flattened())),
        ("b", HostTensor::from_i64(ir::DType::I64, [3], &[0; 3]).unwrap()),
    ]);
    let graph = import_for(&model, &inputs).unwrap();
    let (results, failed) = run(&graph, &inputs);
    assert_eq!(failed, Vec::<String>::new());
    for (value, wanted) in results["y"].to_f32().iter().zip(&wanted) {
        assert!(
            (value - wanted).abs() < 1e-4,
            "{:?} is not {wanted:?}",
            results["y"].to_f32()
        );
    }
    // Larger regions would need more samples than the graph has.
    let larger = tensors([
        ("x", floats(&[1, 1, 16, 16], &plane)),
        ("r", floats(&[3, 4], &[0.0, 0.0, 16.0, 16.0].repeat(3))),
        ("b", HostTensor::from_i64(ir::DType::I64, [3], &[0; 3]).unwrap()),
    ]);
    assert_ne!(run(&graph, &larger).1, Vec::<String>::new());
}

#[test]
fn integers_become_u64_where_they_are_not_below_0() {
    let model = Build::new(21)
        .typed_input("x", DataType::Int64, &["3"])
        .node("Cast x -> y", vec![int("to", DataType::Uint64 as i64)])
        .output("y");
    let graph = model.import().unwrap();
    for (numbers, fits) in [([0, 5, i64::MAX], true), ([0, -1, 5], false)] {
        let x = HostTensor::from_i64(ir::DType::I64, [3], &numbers).unwrap();
        let (_, failed) = run(&graph, &tensors([("x", x)]));
        assert_eq!(failed.is_empty(), fits, "{numbers:?}: {failed:?}");
    }
}
