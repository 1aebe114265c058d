//! Products of single rows by matrices that a run chooses among stacked constants, through the whole compiler: stored
//! types, odd sizes, matrices that nobody chooses.
//!
//! Each result is compared with the reference evaluator at every level. Where products take what is stored, a plan has
//! no copy of the chosen matrices.

use frontend::tensor::{Tensor, build_graph};
use graphc_tests::quantised::Random;
use graphc_tests::reference::{Tensors, check_all_levels, compile_cpu};
use ir::op::Groups;
use ir::{Bindings, DType, Dim, Graph, HostTensor, Shape};
use passes::OptLevel;

/// Rows of tokens, each of which chooses `used` of `count` matrices `[n, k]`.
#[derive(Clone, Copy, Debug)]
struct Case {
    stored: DType,
    tokens: usize,
    used: usize,
    count: usize,
    n: usize,
    k: usize,
    /// Rows lie apart in the input.
    apart: bool,
    bias: bool,
}

fn shape(sizes: &[usize]) -> Shape {
    Shape(sizes.iter().map(|size| Dim::Const(*size as i64)).collect())
}

fn numbers(random: &mut Random, dtype: DType, sizes: &[usize]) -> HostTensor {
    let count = sizes.iter().product();
    let values: Vec<f64> = (0..count).map(|_| random.below(2001) as f64 / 1000.0 - 1.0).collect();
    HostTensor::from_f64(dtype, sizes, &values).expect("as many")
}

impl Case {
    fn weight(&self, random: &mut Random, ids: &Tensor) -> Tensor {
        let sizes = [self.count, self.n, self.k];
        if matches!(self.stored, DType::F32 | DType::F16 | DType::BF16) {
            let stack = Tensor::parameter("w", numbers(random, self.stored, &sizes));
            return stack.take(0, ids).cast(DType::F32);
        }
        let integers: Vec<i64> = (0..sizes.iter().product()).map(|_| random.below(16) as i64).collect();
        let low = if self.stored == DType::I4 { 8 } else { 0 };
        let integers: Vec<i64> = integers.iter().map(|number| number - low).collect();
        let stored = HostTensor::from_i64(self.stored, sizes, &integers).expect("as many");
        let size = if self.k.is_multiple_of(16) { 16 } else { self.k };
        let groups = [self.count, self.n, self.k / size];
        let scales = Tensor::parameter("scales", numbers(random, DType::F16, &groups)).take(0, ids);
        let zeros = Tensor::parameter("zeros", numbers(random, DType::F32, &groups)).take(0, ids);
        let zeros = (self.stored != DType::I4).then_some(&zeros);
        let groups = Some(Groups {
            axis: 3,
            size: size as i64,
        });
        let taken = Tensor::parameter("w", stored).take(0, ids);
        taken.dequantize_groups(&scales, zeros, groups, DType::F32)
    }

    fn graph(&self, random: &mut Random) -> (Graph, Tensors) {
        let sizes = match self.apart {
            true => [self.k, self.tokens],
            false => [self.tokens, self.k],
        };
        let x = Tensor::input("x", DType::F32, shape(&sizes));
        let ids = Tensor::input("ids", DType::I64, shape(&[self.tokens, self.used]));
        let row = if self.apart { x.transpose(0, 1) } else { x.clone() };
        let row = row.unsqueeze(1).unsqueeze(1);
        let mut y = row.matmul_t(&self.weight(random, &ids));
        if self.bias {
            let biases = Tensor::parameter("biases", numbers(random, DType::F32, &[self.count, self.n]));
            y = y + biases.take(0, &ids).unsqueeze(2);
        }
        let y = y.silu();
        let graph = build_graph("chosen", &[("y", &y)]).unwrap_or_else(|error| panic!("{self:?}: {error}"));
        let chosen: Vec<i64> = (0..self.tokens * self.used)
            // Nobody chooses the first, if there are others.
            .map(|_| (1 + random.below(self.count.max(2) - 1) as i64).min(self.count as i64 - 1))
            .collect();
        let ids = HostTensor::from_i64(DType::I64, [self.tokens, self.used], &chosen).expect("as many");
        let x = numbers(random, DType::F32, &sizes);
        (
            graph,
            Tensors::from_iter([("x".to_owned(), x), ("ids".to_owned(), ids)]),
        )
    }
}

const STORED: [DType; 7] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I4,
    DType::U4,
    DType::I8,
    DType::U8,
];

#[test]
fn chosen_matrices_multiply_as_the_evaluator_says() {
    let mut random = Random(91);
    let mut check = |case: Case| {
        let (graph, inputs) = case.graph(&mut random);
        check_all_levels(&graph, &inputs, &format!("{case:?}"));
    };
    let plain = Case {
        stored: DType::F32,
        tokens: 5,
        used: 2,
        count: 4,
        n: 32,
        k: 48,
        apart: false,
        bias: false,
    };
    for (at, stored) in STORED.into_iter().enumerate() {
        let plain = Case { stored, ..plain };
        check(plain);
        let sizes = [
            // tokens, used, count, n, k
            [1, 1, 1, 1, 16],
            [1, 3, 5, 64, 32],
            [7, 1, 3, 33, 16],
            [33, 2, 4, 24, 80],
            [2, 2, 6, 96, 34],
        ];
        for (way, [tokens, used, count, n, k]) in sizes.into_iter().enumerate() {
            check(Case {
                stored,
                tokens,
                used,
                count,
                n,
                k,
                apart: (way + at) % 2 == 0,
                bias: (way + at) % 3 == 0,
            });
        }
        // Both operands are copied: panels do not begin where matrices do.
        check(Case {
            n: 24,
            apart: true,
            bias: true,
            ..plain
        });
    }
}

/// The arena has no room for the matrices that 64 tokens choose, and stored weights are not copied as floats.
#[test]
fn chosen_matrices_are_read_where_they_are() {
    let mut random = Random(92);
    for stored in STORED {
        let case = Case {
            stored,
            tokens: 64,
            used: 2,
            count: 4,
            n: 96,
            k: 64,
            apart: false,
            bias: true,
        };
        let (graph, _) = case.graph(&mut random);
        let executable = compile_cpu(&graph, OptLevel::O2, None);
        let memory = executable.memory(&Bindings::new()).expect("it is placed");
        let copy = case.tokens * case.used * case.n * case.k * 4;
        assert!(
            memory.arena < copy / 8,
            "{stored}: an arena of {} bytes, where a copy has {copy}",
            memory.arena
        );
        let floats = case.count * case.n * case.k * 4;
        assert!(
            stored == DType::F32 || memory.packed_weights < floats * 3 / 4,
            "{stored}: {} bytes are packed",
            memory.packed_weights
        );
    }
}
