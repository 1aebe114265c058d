use super::*;
use crate::dim::Symbol;
use crate::graph::op::{BinaryOp, Layout, UnaryOp, Window};
use crate::kernel::{Access, Axis, AxisId, Body, ContractBody, Exprs, Loops, Mapping, Operand, Param, Stmt};
use crate::types::{DType, Scalar};

/// Kernels by hand.
struct Make {
    kernel: Kernel,
}

impl Make {
    fn new() -> Make {
        Make {
            kernel: Kernel {
                name: "k".into(),
                params: Table::new(),
                symbols: vec![Symbol::new("n")],
                axes: Table::new(),
                exprs: Exprs::default(),
                vars: Table::new(),
                body: Body::Loops(Loops {
                    parallel: Vec::new(),
                    stmts: Vec::new(),
                }),
                mapping: Mapping::Host,
                origins: Vec::new(),
            },
        }
    }

    fn param(&mut self, name: &str, dtype: DType, elements: impl Into<Dim>, access: Access) -> ParamId {
        self.kernel.params.push(Param {
            name: name.into(),
            dtype,
            elements: elements.into(),
            access,
        })
    }

    fn axis(&mut self, name: &str, extent: impl Into<Dim>) -> (AxisId, ExprId) {
        let axis = self.kernel.axes.push(Axis {
            name: name.into(),
            extent: extent.into(),
        });
        (axis, self.kernel.exprs.add(Expr::Axis(axis), DType::I64))
    }

    fn int(&mut self, v: i64) -> ExprId {
        self.kernel
            .exprs
            .add(Expr::Const(DType::I64, Scalar::Int(v)), DType::I64)
    }

    fn size(&mut self, d: impl Into<Dim>) -> ExprId {
        self.kernel.exprs.add(Expr::Size(d.into()), DType::I64)
    }

    fn bin(&mut self, op: BinaryOp, a: ExprId, b: ExprId) -> ExprId {
        let dtype = if op.is_comparison() {
            DType::Bool
        } else {
            self.kernel.exprs.dtype(a)
        };
        self.kernel.exprs.add(Expr::Binary(op, a, b), dtype)
    }

    fn load(&mut self, param: ParamId, index: ExprId) -> ExprId {
        let dtype = self.kernel.params[param].dtype;
        self.kernel.exprs.add(Expr::Load { param, index }, dtype)
    }

    fn select(&mut self, c: ExprId, a: ExprId, b: ExprId) -> ExprId {
        let dtype = self.kernel.exprs.dtype(a);
        self.kernel.exprs.add(Expr::Select(c, a, b), dtype)
    }

    /// `low <= e < high`
    fn within(&mut self, e: ExprId, low: i64, high: impl Into<Dim>) -> ExprId {
        let (low, high) = (self.int(low), self.size(high));
        let (a, b) = (self.bin(BinaryOp::Ge, e, low), self.bin(BinaryOp::Lt, e, high));
        self.bin(BinaryOp::And, a, b)
    }

    fn loops(mut self, parallel: &[AxisId], param: ParamId, index: ExprId, value: ExprId) -> Kernel {
        self.kernel.body = Body::Loops(Loops {
            parallel: parallel.to_vec(),
            stmts: vec![Stmt::Store {
                param,
                index,
                value,
                axes: Vec::new(),
            }],
        });
        crate::kernel::verify::verify(&self.kernel).expect("a valid kernel");
        self.kernel
    }
}

fn at(n: i64) -> Bindings {
    Bindings::from_iter([(Symbol::new("n"), n)])
}

fn open(kernel: &Kernel, n: i64) -> Vec<String> {
    let found = unproven(kernel, &at(n)).expect("sizes work out");
    found.iter().map(ToString::to_string).collect()
}

/// `out[i] = x[index(i)]` over `n` points, `x` of `n` elements.
fn reads(index: impl Fn(&mut Make, ExprId) -> ExprId) -> Kernel {
    let mut m = Make::new();
    let n = || Dim::symbol("n");
    let (x, out) = (
        m.param("x", DType::F32, n(), Access::Read),
        m.param("out", DType::F32, n(), Access::Write),
    );
    let (i, here) = m.axis("i", n());
    let index = index(&mut m, here);
    let value = m.load(x, index);
    m.loops(&[i], out, here, value)
}

#[test]
fn sums_quotients_and_clamps_are_proved() {
    let reversed = reads(|m, i| {
        let last = m.size(Dim::symbol("n") - 1);
        m.bin(BinaryOp::Sub, last, i)
    });
    let transposed = reads(|m, i| {
        let (three, rows) = (m.int(3), m.size(Dim::symbol("n").floor_div(&Dim::Const(3))));
        let (high, low) = (m.bin(BinaryOp::Div, i, three), m.bin(BinaryOp::Rem, i, three));
        let low = m.bin(BinaryOp::Mul, low, rows);
        m.bin(BinaryOp::Add, high, low)
    });
    let clamped = reads(|m, i| {
        let (far, zero, last) = (m.int(1 << 40), m.int(0), m.size(Dim::symbol("n") - 1));
        let e = m.bin(BinaryOp::Mul, i, far);
        let e = m.bin(BinaryOp::Min, e, last);
        m.bin(BinaryOp::Max, e, zero)
    });
    for kernel in [&reversed, &transposed, &clamped] {
        assert_eq!(open(kernel, 12), [""; 0]);
        assert_eq!(open(kernel, 0), [""; 0], "nothing runs");
    }
    // 13 is no multiple of 3: the quotient goes up to 4, and the remainder's rows are 4 apart.
    assert_eq!(open(&transposed, 13), [""; 0]);
    assert_eq!(open(&transposed, 2), [""; 0], "rows of nothing lie on one another");
}

#[test]
fn what_may_leave_its_buffer_is_named() {
    let ahead = reads(|m, i| {
        let one = m.int(1);
        m.bin(BinaryOp::Add, i, one)
    });
    assert_eq!(
        open(&ahead, 5),
        ["the load of x[i + 1] may be at 1..=5, but x has 5 elements"]
    );
    let wraps = reads(|m, i| {
        let (far, four) = (m.int(i64::MAX / 4), m.int(16));
        let e = m.bin(BinaryOp::Mul, i, far);
        m.bin(BinaryOp::Mul, e, four)
    });
    assert_eq!(open(&wraps, 5).len(), 1);
    let by_data = {
        let mut m = Make::new();
        let x = m.param("x", DType::I64, 8, Access::Read);
        let out = m.param("out", DType::I64, 8, Access::Write);
        let (i, here) = m.axis("i", 8);
        let position = m.load(x, here);
        let value = m.load(x, position);
        m.loops(&[i], out, here, value)
    };
    assert_eq!(open(&by_data, 1).len(), 1);
}

#[test]
fn positions_that_data_decides_are_proved_where_they_are_tested() {
    // x[3·p + 1] where 0 <= p < 8: the product may wrap, but not there.
    let by_data = |high: i64| {
        let mut m = Make::new();
        let at = m.param("at", DType::I64, 4, Access::Read);
        let x = m.param("x", DType::F32, 24, Access::Read);
        let out = m.param("out", DType::F32, 4, Access::Write);
        let (i, here) = m.axis("i", 4);
        let position = m.load(at, here);
        let inside = m.within(position, 0, high);
        let (three, one) = (m.int(3), m.int(1));
        let index = m.bin(BinaryOp::Mul, position, three);
        let index = m.bin(BinaryOp::Add, index, one);
        let value = m.load(x, index);
        let zero = m
            .kernel
            .exprs
            .add(Expr::Const(DType::F32, Scalar::Float(0.0)), DType::F32);
        let value = m.select(inside, value, zero);
        m.loops(&[i], out, here, value)
    };
    assert_eq!(open(&by_data(8), 1), [""; 0]);
    assert_eq!(open(&by_data(9), 1).len(), 1);
    // A test of what has wrapped says nothing of what it was.
    let wrapped = {
        let mut m = Make::new();
        let at = m.param("at", DType::I64, 4, Access::Read);
        let x = m.param("x", DType::F32, 24, Access::Read);
        let out = m.param("out", DType::F32, 4, Access::Write);
        let (i, here) = m.axis("i", 4);
        let position = m.load(at, here);
        let three = m.int(3);
        let thrice = m.bin(BinaryOp::Mul, position, three);
        let inside = m.within(thrice, 0, 24);
        let value = m.load(x, position);
        let zero = m
            .kernel
            .exprs
            .add(Expr::Const(DType::F32, Scalar::Float(0.0)), DType::F32);
        let value = m.select(inside, value, zero);
        m.loops(&[i], out, here, value)
    };
    assert_eq!(open(&wrapped, 1).len(), 1);
}

#[test]
fn conditions_around_a_load_bound_it() {
    // A window over an image of 6 by n: rows and columns are tested apart, the position is expanded.
    let window = |test_rows: bool| {
        let mut m = Make::new();
        let n = Dim::symbol("n");
        let x = m.param("x", DType::F32, n.clone() * 6, Access::Read);
        let out = m.param("out", DType::F32, n.clone() * 6 * 9, Access::Write);
        let ((y, ye), (z, ze)) = (m.axis("y", 6), m.axis("z", n.clone()));
        let ((a, ae), (b, be)) = (m.axis("a", 3), m.axis("b", 3));
        let one = m.int(1);
        let row = m.bin(BinaryOp::Add, ye, ae);
        let row = m.bin(BinaryOp::Sub, row, one);
        let col = m.bin(BinaryOp::Add, ze, be);
        let col = m.bin(BinaryOp::Sub, col, one);
        let mut inside = m.within(col, 0, n.clone());
        if test_rows {
            let rows = m.within(row, 0, 6);
            inside = m.bin(BinaryOp::And, rows, inside);
        }
        // y·n + a·n + z + b − (n + 1)
        let width = m.size(n.clone());
        let (p, q) = (m.bin(BinaryOp::Mul, ye, width), m.bin(BinaryOp::Mul, ae, width));
        let shift = m.size(n + 1);
        let sum = m.bin(BinaryOp::Add, p, q);
        let sum = m.bin(BinaryOp::Add, sum, ze);
        let sum = m.bin(BinaryOp::Add, sum, be);
        let index = m.bin(BinaryOp::Sub, sum, shift);
        let zero = m
            .kernel
            .exprs
            .add(Expr::Const(DType::F32, Scalar::Float(0.0)), DType::F32);
        let value = m.load(x, index);
        let value = m.select(inside, value, zero);
        let mut to = ye;
        for (axis, extent) in [(ze, Dim::symbol("n")), (ae, 3.into()), (be, 3.into())] {
            let extent = m.size(extent);
            to = m.bin(BinaryOp::Mul, to, extent);
            to = m.bin(BinaryOp::Add, to, axis);
        }
        m.loops(&[y, z, a, b], out, to, value)
    };
    for n in [1, 2, 7] {
        assert_eq!(open(&window(true), n), [""; 0]);
        assert_eq!(open(&window(false), n).len(), 1, "rows are not tested at {n}");
    }
    // A branch that no point takes reads nothing.
    let mut m = Make::new();
    let x = m.param("x", DType::F32, 4, Access::Read);
    let out = m.param("out", DType::F32, 4, Access::Write);
    let (i, here) = m.axis("i", 4);
    let (nine, far) = (m.int(9), m.int(100));
    let (good, bad) = (m.load(x, here), m.load(x, far));
    let never = m.bin(BinaryOp::Gt, here, nine);
    let value = m.select(never, bad, good);
    assert_eq!(open(&m.loops(&[i], out, here, value), 1), [""; 0]);
}

#[test]
fn sizes_beyond_all_memory_are_errors() {
    let mut kernel = reads(|_, i| i);
    kernel.params[ParamId::new(0)].elements = Dim::Const(1 << 62);
    assert!(matches!(unproven(&kernel, &at(4)), Err(BoundsError::Elements { .. })));
    let mut kernel = reads(|_, i| i);
    kernel.axes.values_mut().for_each(|a| a.extent = Dim::Const(1 << 60));
    assert!(matches!(unproven(&kernel, &at(4)), Err(BoundsError::Points { .. })));
}

/// `out[m, f] = Σ x[m + t] · f[f, t]` with facts.
fn convolution() -> Kernel {
    let mut m = Make::new();
    let x = m.param("x", DType::F32, 10, Access::Read);
    let f = m.param("f", DType::F32, 3 * 2, Access::Read);
    let out = m.param("out", DType::F32, 8 * 2, Access::Write);
    let ((p, pe), (o, oe), (t, te)) = (m.axis("p", 8), m.axis("o", 2), m.axis("t", 3));
    let at = m.bin(BinaryOp::Add, pe, te);
    let three = m.int(3);
    let tap = m.bin(BinaryOp::Mul, oe, three);
    let tap = m.bin(BinaryOp::Add, tap, te);
    let (lhs, rhs) = (m.load(x, at), m.load(f, tap));
    let acc = m.kernel.vars.push(DType::F32);
    let value = m.kernel.exprs.add(Expr::Var(acc), DType::F32);
    let two = m.int(2);
    let to = m.bin(BinaryOp::Mul, pe, two);
    let to = m.bin(BinaryOp::Add, to, oe);
    let (lhs, rhs) = (Operand::new(&m.kernel.exprs, lhs), Operand::new(&m.kernel.exprs, rhs));
    m.kernel.body = Body::Contract(ContractBody {
        batch: vec![],
        m: vec![p],
        n: vec![o],
        k: vec![t],
        lhs,
        rhs,
        acc,
        pair: None,
        statistic: None,
        epilogue: vec![Stmt::Store {
            param: out,
            index: to,
            value,
            axes: vec![],
        }],
        conv: Some(ConvFacts {
            input: x,
            filter: f,
            layout: Layout::ChannelsFirst,
            window: Window::unit(1),
            groups: 1,
            batch: 1.into(),
            channels: 1.into(),
            filters: 2.into(),
            input_size: vec![10.into()],
            kernel_size: vec![3],
            output_size: vec![8.into()],
            pad_value: 0,
            transposed: false,
        }),
    });
    m.kernel
}

#[test]
fn a_convolutions_facts_are_those_of_its_operands() {
    let good = convolution();
    crate::kernel::verify::verify(&good).expect("valid");
    assert_eq!(open(&good, 1), [""; 0]);
    let wrong = |change: fn(&mut ConvFacts)| {
        let mut kernel = convolution();
        let Body::Contract(c) = &mut kernel.body else {
            unreachable!("a contraction")
        };
        change(c.conv.as_mut().expect("facts"));
        let verified = crate::kernel::verify::verify(&kernel).map_err(|e| e.to_string());
        let sized = verified.and_then(|()| unproven(&kernel, &at(1)).map_err(|e| e.to_string()));
        sized.expect_err("facts that are not so")
    };
    for (error, says) in [
        (
            wrong(|f| f.input = ParamId::new(1)),
            "name f, which the lhs does not load",
        ),
        (
            wrong(|f| f.filter = ParamId::new(0)),
            "name x, which the rhs does not load",
        ),
        (wrong(|f| f.groups = 0), "below 1"),
        (wrong(|f| f.window.strides = vec![]), "1 sizes of the input"),
        (wrong(|f| f.batch = 3.into()), "takes 30 elements of x, which has 10"),
        (wrong(|f| f.filters = 4.into()), "takes 12 elements of f, which has 6"),
        (wrong(|f| f.output_size = vec![9.into()]), "reaches element 10 of 10"),
        (wrong(|f| f.channels = Dim::Const(i64::MAX)), "too many elements"),
    ] {
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn reflections_and_remainders_are_proved() {
    let reflected = |by: i64| {
        reads(|m, i| {
            let (last, by) = (m.size(Dim::symbol("n") - 1), m.int(by));
            let moved = m.bin(BinaryOp::Mul, i, by);
            let moved = m.bin(BinaryOp::Sub, last, moved);
            m.kernel.exprs.add(Expr::Unary(UnaryOp::Abs, moved), DType::I64)
        })
    };
    for n in 0..9 {
        assert_eq!(open(&reflected(2), n), [""; 0], "{n}");
    }
    // From 2 - 0 to 2 - 6.
    let found = open(&reflected(3), 3);
    assert!(found.len() == 1 && found[0].contains("0..=4"), "{found:?}");

    let remainder = |least: i64| {
        reads(|m, i| {
            let (shift, three) = (m.int(least), m.int(3));
            let moved = m.bin(BinaryOp::Sub, i, shift);
            let rest = m.bin(BinaryOp::Rem, moved, three);
            let two = m.int(2);
            m.bin(BinaryOp::Add, rest, two)
        })
    };
    assert_eq!(open(&remainder(7), 5), [""; 0]);
    let found = open(&remainder(7), 2);
    assert!(found.len() == 1 && found[0].contains("0..=2"), "{found:?}");
}

/// `(e - mod(e, d)) / d` is the floor of `e / d`, also below 0.
#[test]
fn floors_of_quotients_are_proved() {
    let floored = |by: i64, shift: i64| {
        reads(move |m, i| {
            let (three, by) = (m.int(3), m.int(by));
            let moved = m.bin(BinaryOp::Sub, i, three);
            let rest = m.bin(BinaryOp::Mod, moved, by);
            let whole = m.bin(BinaryOp::Sub, moved, rest);
            let quotient = m.bin(BinaryOp::Div, whole, by);
            let shift = m.int(shift);
            m.bin(BinaryOp::Add, quotient, shift)
        })
    };
    // From floor(-3 / 2) = -2 to floor(5 / 2) = 2.
    assert_eq!(open(&floored(2, 2), 9), [""; 0]);
    let found = open(&floored(2, 1), 9);
    assert!(found.len() == 1 && found[0].contains("-1..=3"), "{found:?}");
}

/// Of an empty axis no position is inside: conditions that exclude each other guard everything.
#[test]
fn conditions_that_exclude_each_other_let_nothing_through() {
    let mut m = Make::new();
    let (x, out) = (
        m.param("x", DType::F32, Dim::symbol("n"), Access::Read),
        m.param("out", DType::F32, 4, Access::Write),
    );
    let (axis, i) = m.axis("i", 4);
    let two = m.int(2);
    let moved = m.bin(BinaryOp::Sub, i, two);
    let guard = m.within(moved, 0, Dim::symbol("n"));
    let (first, last) = (m.int(0), m.size(Dim::symbol("n") - 1));
    let inside = m.bin(BinaryOp::Max, moved, first);
    let inside = m.bin(BinaryOp::Min, inside, last);
    let value = m.load(x, inside);
    let zero = m
        .kernel
        .exprs
        .add(Expr::Const(DType::F32, Scalar::Float(0.0)), DType::F32);
    let value = m.select(guard, value, zero);
    let kernel = m.loops(&[axis], out, i, value);
    for n in 0..6 {
        assert_eq!(open(&kernel, n), [""; 0], "{n}");
    }
}
