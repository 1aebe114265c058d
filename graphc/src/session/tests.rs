//! Sessions, JITs and eager tensors: right values, and no compilation that could be spared.

use std::thread;

use frontend::shape;
use frontend::tensor::{InputSpec, Tensor, trace};
use ir::{DType, HostTensor};
use runtime::RuntimeError;

use super::*;
use crate::eager::{Eager, Realize};
use crate::error::ErrorKind;

fn host(values: &[f32], shape: &[usize]) -> HostTensor {
    HostTensor::from_f32(shape, values).unwrap()
}

#[test]
fn sessions_are_shared_by_threads_and_run_every_size() {
    fn shareable<T: Send + Sync>() {}
    shareable::<Session>();
    shareable::<Jit<2, Tensor>>();
    let spec = InputSpec::new("x", DType::F32, shape!["n", 2]).bounds("n", 1..=8);
    let graph = trace("g", [spec], |[x]| [("y", (x * 2.0).sum(-1).relu())]).unwrap();
    let session = Session::compile(graph, &SessionOptions::default()).unwrap();
    thread::scope(|s| {
        for n in 1..=8usize {
            let session = &session;
            s.spawn(move || {
                let x = host(&vec![n as f32; 2 * n], &[n, 2]);
                let y = session.run(&[("x", &x)]).unwrap();
                assert_eq!(y["y"].to_f32(), vec![4.0 * n as f32; n]);
            });
        }
    });
    assert_eq!(session.runs(), 8);
}

#[test]
fn the_compiled_program_agrees_with_the_reference() {
    let graph = || {
        trace("g", [InputSpec::new("x", DType::F32, shape!["n", 16])], |[x]| {
            let w = Tensor::randn(shape![16, 8], 1);
            [("y", x.matmul(&w).gelu().softmax(-1))]
        })
        .unwrap()
    };
    let x = host(&(0..48).map(|i| (i as f32).sin()).collect::<Vec<_>>(), &[3, 16]);
    let run = |engine| {
        Session::compile(graph(), &SessionOptions::default().engine(engine))
            .unwrap()
            .run(&[("x", &x)])
            .unwrap()
    };
    let (a, b) = (run(Engine::Compiled), run(Engine::Reference));
    let difference = crate::compare::compare(&a["y"], &b["y"], 1e-4, 1e-6).unwrap();
    assert!(difference.is_within(), "{difference:?}");
}

#[test]
fn wrong_inputs_are_the_users_errors() {
    let graph = trace(
        "g",
        [InputSpec::new("x", DType::F32, shape!["n"]).bounds("n", 1..=2)],
        |[x]| [("y", x + 1.0)],
    );
    let session = Session::compile(graph.unwrap(), &SessionOptions::default()).unwrap();
    let (good, long) = (host(&[1.0], &[1]), host(&[1.0; 3], &[3]));
    let ints = HostTensor::from_i64(DType::I64, [1], &[1]).unwrap();
    for inputs in [&[("z", &good)][..], &[], &[("x", &long)], &[("x", &ints)]] {
        let error = session.run(inputs).unwrap_err();
        assert!(matches!(&error, Error::Runtime(RuntimeError::Input { .. })), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
    assert_eq!(session.runs(), 0);
}

#[test]
fn a_jit_compiles_once_a_signature() {
    let f = jit(|[x, w]: [Tensor; 2]| (x.matmul(&w), x.sum(..))).dynamic_within(0, 0, "rows", 1..=100);
    let w = host(&[1.0, 0.0, 0.0, 1.0], &[2, 2]);
    for rows in [1usize, 5, 100, 5] {
        let x = host(&vec![1.0; 2 * rows], &[rows, 2]);
        let (y, sum) = f.call([&x, &w]).unwrap();
        assert_eq!((y.shape, sum.to_f32()), (vec![rows, 2], vec![2.0 * rows as f32]));
    }
    assert_eq!(
        f.stats(),
        JitStats {
            traces: 1,
            compiles: 1,
            runs: 4
        }
    );
    assert!(f.call([&host(&[0.0; 202], &[101, 2]), &w]).is_err());
    assert_eq!(f.stats().compiles, 1);
    // Another static size is another signature.
    f.call([&host(&[1.0; 3], &[1, 3]), &host(&[1.0; 6], &[3, 2])]).unwrap();
    assert_eq!(
        f.stats(),
        JitStats {
            traces: 2,
            compiles: 2,
            runs: 5
        }
    );
    // Mistakes come out of the call; they are not kept, and do not disturb other signatures.
    let error = f.call([&host(&[1.0; 3], &[1, 3]), &w]).unwrap_err();
    assert!(error.to_string().contains("3 is not 2"), "{error}");
    assert!(
        f.call([&host(&[1.0], &[]), &w])
            .unwrap_err()
            .to_string()
            .contains("declared dynamic")
    );
}

#[test]
fn a_jit_keeps_the_programs_used_last() {
    let f = jit(|[x]: [Tensor; 1]| x + 1.0).capacity(2);
    let call = |n: usize| drop(f.call([&host(&vec![0.0; n], &[n])]).unwrap());
    for n in [1, 2, 1, 3, 1, 2] {
        call(n);
    }
    // 1, 2 and 3 once, and 2 again, which 3 had put out.
    assert_eq!(f.stats().compiles, 4);
    assert_eq!(f.programs.lock().unwrap().len(), 2);
}

#[test]
fn threads_that_call_a_jit_at_once_wait_for_one_compilation() {
    let f = jit(|[x]: [Tensor; 1]| [x.relu(), -&x]);
    thread::scope(|s| {
        for i in 0..8 {
            let f = &f;
            s.spawn(move || {
                let [a, b] = f.call([&host(&[i as f32], &[1])]).unwrap();
                assert_eq!((a.to_f32(), b.to_f32()), (vec![i as f32], vec![-(i as f32)]));
            });
        }
    });
    assert_eq!(
        f.stats(),
        JitStats {
            traces: 1,
            compiles: 1,
            runs: 8
        }
    );
}

#[test]
fn eager_expressions_compile_once_a_structure() {
    let eager = Eager::new(SessionOptions::default());
    let big: Vec<f32> = (0..128).map(|i| i as f32).collect();
    let weight = Tensor::parameter("w", host(&big, &[128]));
    for i in 0..5u8 {
        let x = Tensor::from_slice(&[f32::from(i); 128], [128]);
        let y = eager.compute(&[&(&x * &weight).sum(..), &(x + 1.0).max(..)]).unwrap();
        assert_eq!(
            (y[0].to_f32(), y[1].to_f32()),
            (vec![f32::from(i) * 8128.0], vec![f32::from(i) + 1.0])
        );
    }
    assert_eq!(eager.stats(), CacheStats { compiles: 1, hits: 4 });
    // Another number in the program, and another parameter, are other programs.
    let x = Tensor::from_slice(&[1.0f32; 128], [128]);
    let other = Tensor::parameter("w", host(&big, &[128]));
    let values = eager.compute(&[&(&x * &other).sum(..), &(&x + 2.0).max(..)]).unwrap();
    assert_eq!((values[0].to_f32(), values[1].to_f32()), (vec![8128.0], vec![3.0]));
    assert_eq!(eager.stats().compiles, 2);
}

#[test]
fn values_come_out_in_rust_types() {
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]);
    let y = (&x * 2.0).realize().unwrap();
    assert_eq!((&y + 1.0).to_vec::<f32>().unwrap(), [3.0, 5.0, 7.0]);
    assert_eq!(y.argmax(0).item::<i64>().unwrap(), 2);
    assert_eq!(y.gt(3.0).to_vec::<bool>().unwrap(), [false, true, true]);
    assert!(y.to_vec::<i64>().unwrap_err().to_string().contains("f32, not i64"));
    assert!(y.item::<f32>().is_err());
    let error = x.matmul(&Tensor::zeros(DType::F32, shape![4])).to_host().unwrap_err();
    assert!(matches!(error, Error::Tensor(_)), "{error}");
    assert!(Tensor::input("x", DType::F32, shape![1]).to_host().is_err());
}

#[test]
fn the_least_recently_used_program_goes_first() {
    let cache = SessionCache::new(SessionOptions::default().engine(Engine::Reference), 2);
    let graph = |v: f64| trace("g", [InputSpec::new("x", DType::F32, shape![1])], |[x]| [("y", x + v)]).unwrap();
    for v in [1.0, 2.0, 1.0, 3.0, 1.0, 2.0] {
        cache.session(graph(v)).unwrap();
    }
    assert_eq!(cache.stats(), CacheStats { compiles: 4, hits: 2 });
}

#[test]
fn random_numbers_are_the_references() {
    let tensors = [
        Tensor::randn(shape![500], 1),
        Tensor::uniform(shape![20, 30], -2.0, 3.0, 1 << 40),
    ];
    for t in tensors {
        let compute = |engine| {
            Eager::new(SessionOptions::default().engine(engine))
                .compute(&[&t])
                .unwrap()
                .remove(0)
        };
        let difference = crate::compare::compare(&compute(Engine::Compiled), &compute(Engine::Reference), 1e-5, 1e-5);
        assert!(difference.clone().unwrap().is_within(), "{difference:?}");
    }
}

#[test]
fn what_the_options_leave_open_is_as_the_settings_say() {
    let settings = Settings::read(|name| match name {
        "GRAPHC_THREADS" => Some("3".into()),
        "GRAPHC_SYNCHRONOUS" => Some("1".into()),
        "GRAPHC_HIP" => Some("/graphc/no/such/hip".into()),
        _ => None,
    });
    let settings = Arc::new(settings.unwrap());
    let mut options = SessionOptions {
        settings: Some(settings.clone()),
        ..SessionOptions::default()
    };
    let load = settings.loading(options.load.clone());
    assert_eq!((load.threads, load.synchronous), (3, true));
    assert_eq!(settings.loading(options.clone().threads(2).load).threads, 2);
    // The GPU's runtime, too, is where the settings say.
    options.target = "gfx90a".parse().unwrap();
    let graph = trace("g", [InputSpec::new("x", DType::F32, shape![4])], |[x]| {
        [("y", x + 1.0)]
    })
    .unwrap();
    let build = BuildOptions::new(vec![options.target], options.level);
    let program = driver::build(&graph, &build).unwrap().program;
    let error = Session::load(Arc::new(program), 0, &options).unwrap_err().to_string();
    assert!(error.contains("/graphc/no/such/hip"), "{error}");
}

/// What a function of tensors was called with comes from the caller's line, not from graphc's.
#[test]
fn a_jits_arguments_name_the_users_line() {
    let options = SessionOptions::default().engine(Engine::Reference);
    let f = jit(|[x]: [Tensor; 1]| x + 1.0).options(options);
    let x = HostTensor::from_f32([2], &[1.0, 2.0]).unwrap();
    let line = line!() + 1;
    f.call([&x]).unwrap();
    let programs = f.programs.lock().unwrap();
    let slot = programs[0].lock().unwrap();
    let Some(Loaded::Reference(graph)) = slot.as_ref().map(|s| s.inner.model.as_ref()) else {
        panic!("the reference evaluator has the graph")
    };
    let input = graph.nodes().values().find(|n| matches!(n.op, ir::Op::Input { .. }));
    let mine = ir::Origin::Source {
        file: file!().into(),
        line,
    };
    assert_eq!(input.map(|n| &n.origin), Some(&mine));
}

/// NumPy, PyTorch and ONNX Runtime refuse such an index too.
#[test]
fn indices_outside_their_axis_fail_the_run() {
    let inputs = || {
        [
            InputSpec::new("table", DType::F32, shape!["n", 2]).bounds("n", 1..=9),
            InputSpec::new("i", DType::I64, shape!["m"]),
        ]
    };
    let table = host(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2]);
    let at = |indices: &[i64]| HostTensor::from_i64(DType::I64, [indices.len()], indices).unwrap();
    for level in [OptLevel::O0, OptLevel::O1, OptLevel::O2] {
        let options = SessionOptions::default().level(level);
        let take = trace("take", inputs(), |[table, i]| [("y", table.embedding(&(i * 2)) + 1.0)]).unwrap();
        let session = Session::compile(take, &options).unwrap();
        let run = |indices: &[i64]| session.run(&[("table", &table), ("i", &at(indices))]);
        let y = run(&[0, 1, -1]).unwrap();
        assert_eq!(y.keys().collect::<Vec<_>>(), ["y"]);
        assert_eq!(y["y"].to_f32(), [2.0, 3.0, 6.0, 7.0, 4.0, 5.0]);
        // Twice the index is 4 and -4, of three rows.
        for wrong in [[0, 2, 0], [0, 0, -2]] {
            let error = run(&wrong).unwrap_err().to_string();
            for part in ["take at", "session/tests.rs", "axis 0 of f32[n, 2]"] {
                assert!(error.contains(part), "{error}");
            }
        }
        let tuples = trace("tuples", inputs(), |[table, i]| {
            let pairs = i.unsqueeze(-1).expand(shape!["m", 2]);
            [("y", table.scatter_nd(&pairs, &i.cast(DType::F32)))]
        })
        .unwrap();
        let session = Session::compile(tuples, &options).unwrap();
        let run = |indices: &[i64]| session.run(&[("table", &table), ("i", &at(indices))]);
        assert_eq!(run(&[1, -2]).unwrap()["y"].to_f32(), [1.0, 2.0, -2.0, 1.0, 5.0, 6.0]);
        // There are three rows, but only two columns.
        let error = run(&[0, 2]).unwrap_err().to_string();
        assert!(error.contains("scatter_nd") && error.contains("axis 0, 1"), "{error}");
    }
}

const SUM: &str = "graph @sum stage=import {\n  x = input \"x\" : f32[n]\n  s = input \"s\" : f32[n]\n  y = add x, s\n  \
                   z = add y, y\n  return y as \"next\", z as \"z\"\n}\n";

fn in_memory(text: impl Into<Vec<u8>>) -> Source {
    Source::Memory {
        bytes: ir::Storage::new(text.into()),
        folder: None,
    }
}

/// Each kind of file is told by its first bytes, and errors name what has no path.
#[test]
fn models_in_memory_open_as_files_do() {
    let open = |source: &Source| Session::of_source(source, &ImportOptions::default(), &SessionOptions::default());
    let x = host(&[1.0, 2.0], &[2]);
    let run = |session: &Session| session.run(&[("x", &x), ("s", &x)]).unwrap()["z"].to_f32();
    let text = open(&in_memory(format!("  // a comment\n{SUM}"))).unwrap();
    assert_eq!(run(&text), [4.0, 8.0]);
    let program = text.executable().unwrap().program().to_bytes().unwrap();
    assert_eq!(run(&open(&in_memory(program.clone())).unwrap()), [4.0, 8.0]);
    for (damaged, kind) in [
        (program[..program.len() - 9].to_vec(), ErrorKind::Model),
        (b"graph @g { x = y }".to_vec(), ErrorKind::Model),
        (b"graph \xff".to_vec(), ErrorKind::Model),
        (b"nothing".to_vec(), ErrorKind::Model),
        (b"GGUF".to_vec(), ErrorKind::Option),
    ] {
        let error = open(&in_memory(damaged)).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("the model in memory"), "{error}");
    }
    assert_eq!(
        open(&Source::File("/no/such.onnx".into())).unwrap_err().kind(),
        ErrorKind::File
    );
}

#[test]
fn a_session_says_what_it_takes_gives_and_keeps() {
    let names = |ports: IndexMap<String, TensorType>| {
        let texts = ports.iter().map(|(name, ty)| format!("{name}: {ty}"));
        texts.collect::<Vec<_>>()
    };
    let open =
        |options: &SessionOptions| Session::of_source(&in_memory(SUM), &ImportOptions::default(), options).unwrap();
    for engine in [Engine::Compiled, Engine::Reference] {
        let session = open(&SessionOptions::default().engine(engine));
        assert_eq!(names(session.inputs()), ["x: f32[n]", "s: f32[n]"]);
        assert_eq!(names(session.outputs()), ["next: f32[n]", "z: f32[n]"]);
        assert!(session.states().is_empty() && session.device() == "cpu");
    }
    let session = open(&SessionOptions::default().state("s", "next"));
    assert_eq!(names(session.inputs()), ["x: f32[n]"]);
    assert_eq!(names(session.outputs()), ["z: f32[n]"]);
    assert_eq!(names(session.states()), ["s: f32[n]"]);
    // SAFETY: the CPU takes no such memory, wherever it is.
    let error = unsafe { session.borrow(0, DType::F32, [1], Box::new(())) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
