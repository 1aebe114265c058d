//! Random graphs of ops whose results the standards give to the last bit, as texts with inputs: whatever the order of
//! the passes, the fusion and the device, every bit is the same.
//!
//! There is no sum of floats and no function that is only approximated. Numbers are what tells rewrites apart: zeros of
//! both signs, infinities, NaN, subnormals, the ends of the integers, and values that are computed twice.

use std::fmt::Write;

use graphc::ir::graph::eval::scalar::int_range;
use graphc::ir::{DType, HostTensor};

use crate::quantised::Random;
use crate::reference::Tensors;

/// The rules of "simplify" that are documented to round otherwise, or to lose a zero's sign.
pub const DOCUMENTED: [&str; 3] = ["divide_by_constant", "identity_element", "max_with_zero"];

/// A graph's text and its inputs.
pub struct Case {
    pub text: String,
    pub inputs: Tensors,
}

/// A number below 1.
fn unit(random: &mut Random) -> f64 {
    random.below(1 << 20) as f64 / f64::from(1 << 20)
}

#[derive(Clone)]
struct Known {
    name: String,
    dtype: DType,
    shape: [usize; 2],
    /// The op that made it, to be made again.
    op: String,
}

struct Generator {
    random: Random,
    lines: String,
    known: Vec<Known>,
    inputs: Tensors,
    /// The type of floats here.
    float: DType,
}

const UNARY: [&str; 10] = [
    "neg", "abs", "sign", "floor", "ceil", "round", "trunc", "sqrt", "recip", "relu",
];
const BINARY: [&str; 14] = [
    "add", "add", "sub", "sub", "sub", "mul", "mul", "mul", "div", "div", "max", "min", "rem", "mod",
];
const WHOLE: [&str; 13] = [
    "add", "sub", "mul", "div", "rem", "mod", "max", "min", "and", "or", "xor", "shl", "shr",
];
const ORDERS: [&str; 6] = ["eq", "ne", "lt", "le", "gt", "ge"];
const INTEGERS: [DType; 5] = [DType::I32, DType::I64, DType::I8, DType::U8, DType::I16];

/// Says where two results have other bits; a NaN is like any other.
pub fn first_difference(got: &Tensors, want: &Tensors) -> Option<String> {
    let bits = |value: f64| if value.is_nan() { u64::MAX } else { value.to_bits() };
    want.iter().find_map(|(name, want)| {
        let got = &got[name];
        if (got.dtype, &got.shape) != (want.dtype, &want.shape) {
            return Some(format!("{name} is {}{:?}", got.dtype, got.shape));
        }
        if want.dtype.is_int() {
            let (got, want) = (got.to_i64(), want.to_i64());
            let at = (0..want.len()).find(|at| got[*at] != want[*at])?;
            return Some(format!("{name}[{at}] is {}, not {}", got[at], want[at]));
        }
        let (got, want) = (got.to_f64(), want.to_f64());
        let at = (0..want.len()).find(|at| bits(got[*at]) != bits(want[*at]))?;
        Some(format!("{name}[{at}] is {:e}, not {:e}", got[at], want[at]))
    })
}

/// Makes the case of a seed.
///
/// # Panics
/// When made-up inputs do not fit their shapes: a bug of this file.
pub fn case(seed: u64) -> Case {
    let mut random = Random((seed + 1).wrapping_mul(0xd134_2543_de82_ef95));
    let float = random.of(&[DType::F32, DType::F32, DType::F32, DType::F32, DType::F64]);
    let mut g = Generator {
        random,
        lines: String::new(),
        known: Vec::new(),
        inputs: Tensors::new(),
        float,
    };
    let [rows, columns] = [g.random.of(&[1, 3, 8, 40]), g.random.of(&[2, 5, 16, 33])];
    for shape in [[rows, columns], [rows, columns], [1, columns], [rows, 1]] {
        g.input(float, shape);
    }
    let dtype = g.random.of(&INTEGERS);
    g.input(dtype, [rows, columns]);
    for _ in 0..3 + g.random.below(18) {
        g.step();
    }
    // The newest value of each type, and any other.
    let mut results: Vec<usize> = Vec::new();
    for i in (5..g.known.len()).rev() {
        let newest = !results.iter().any(|r| g.known[*r].dtype == g.known[i].dtype);
        if newest || g.random.below(9) == 0 {
            results.push(i);
        }
    }
    if results.is_empty() {
        results.push(0);
    }
    let results: Vec<String> = results
        .iter()
        .enumerate()
        .map(|(at, i)| format!("{} as \"y{at}\"", g.known[*i].name))
        .collect();
    Case {
        text: format!(
            "graph @exact stage=import {{\n{}  return {}\n}}\n",
            g.lines,
            results.join(", ")
        ),
        inputs: g.inputs,
    }
}

impl Generator {
    fn add(&mut self, op: String, dtype: DType, shape: [usize; 2]) {
        let name = format!("v{}", self.known.len());
        // The larger of two zeros may have either sign: a sum with zero takes the sign off.
        let larger = ["max ", "min ", "reduce "].iter().any(|start| op.starts_with(start));
        if larger && dtype.is_float() {
            let _ = writeln!(self.lines, "  m{name} = {op}\n  z{name} = constant 0.0 : {dtype}[]");
            let _ = writeln!(self.lines, "  {name} = add m{name}, z{name}");
        } else {
            let _ = writeln!(self.lines, "  {name} = {op}");
        }
        self.known.push(Known { name, dtype, shape, op });
    }

    fn input(&mut self, dtype: DType, shape: [usize; 2]) {
        let name = format!("x{}", self.inputs.len());
        let n = shape[0] * shape[1];
        let odd = self.random.of(&[0.0, 0.2, 0.6]);
        let whole = self.random.below(3) == 0;
        let tensor = if dtype.is_int() {
            let (least, most) = int_range(dtype);
            let ends = [least, most, least + 1, most - 1, 0, 1, 2, 7, 31];
            let number = |r: &mut Random| match unit(r) < odd {
                true => r.of(&ends),
                false => (r.below(23) as i64 - 11).clamp(least, most),
            };
            let numbers: Vec<i64> = (0..n).map(|_| number(&mut self.random)).collect();
            HostTensor::from_i64(dtype, shape, &numbers)
        } else {
            let odds = [
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                -0.0,
                0.0,
                1e-40,
                -3e-42,
                1e38,
                -3e38,
                0.5,
                2.5,
                -1.5,
            ];
            let number = |r: &mut Random| match unit(r) < odd {
                true => r.of(&odds),
                false if whole => r.below(9) as f64 - 4.0,
                false => (unit(r) * 4.0 - 2.0) * 2f64.powi(r.below(5) as i32 - 2),
            };
            let numbers: Vec<f64> = (0..n).map(|_| number(&mut self.random)).collect();
            HostTensor::from_f64(dtype, shape, &numbers)
        };
        self.inputs
            .insert(name.clone(), tensor.expect("as many numbers as elements"));
        let op = format!("input \"{name}\" : {dtype}{shape:?}");
        self.add(op, dtype, shape);
    }

    /// One of the values that fit, new ones more often.
    fn choose(&mut self, fits: impl Fn(&Known) -> bool) -> Option<Known> {
        let fitting: Vec<&Known> = self.known.iter().rev().filter(|k| fits(k)).collect();
        if fitting.is_empty() {
            return None;
        }
        let i = match self.random.below(2) {
            0 => self.random.below(fitting.len().min(2)),
            _ => self.random.below(fitting.len()),
        };
        fitting.get(i).map(|k| (*k).clone())
    }

    /// Another operand of a value's type whose shape goes with it, or a number; and the shape of both.
    fn with(&mut self, a: &Known) -> Option<(String, [usize; 2])> {
        if self.random.below(4) == 0 {
            let number = match a.dtype {
                DType::Bool => self.random.of(&["true", "false"]),
                d if d.is_int() => self.random.of(&["0", "1", "2", "3", "7", "64", "100"]),
                _ => self
                    .random
                    .of(&["0.0", "1.0", "-1.0", "2.0", "0.5", "-0.0", "3.0", "inf", "1e-39"]),
            };
            let name = format!("c{}", self.lines.len());
            let _ = writeln!(self.lines, "  {name} = constant {number} : {}[]", a.dtype);
            return Some((name, a.shape));
        }
        let (dtype, shape) = (a.dtype, a.shape);
        let goes = |k: &Known| k.shape.iter().zip(shape).all(|(k, a)| *k == a || *k == 1 || a == 1);
        let b = self.choose(|k| k.dtype == dtype && goes(k))?;
        let both = [0, 1].map(|axis| shape[axis].max(b.shape[axis]));
        Some((b.name, both))
    }

    fn binary(&mut self, ops: &[&str], fits: impl Fn(&Known) -> bool, to: Option<DType>) -> Option<()> {
        let a = self.choose(fits)?;
        let (b, shape) = self.with(&a)?;
        let op = self.random.of(ops);
        let op = match self.random.below(2) {
            0 => format!("{op} {}, {b}", a.name),
            _ => format!("{op} {b}, {}", a.name),
        };
        self.add(op, to.unwrap_or(a.dtype), shape);
        Some(())
    }

    fn unary(&mut self, ops: &[&str], fits: impl Fn(&Known) -> bool, to: Option<DType>) -> Option<()> {
        let a = self.choose(fits)?;
        let op = self.random.of(ops);
        self.add(format!("{op} {}", a.name), to.unwrap_or(a.dtype), a.shape);
        Some(())
    }

    fn step(&mut self) -> Option<()> {
        let float = self.float;
        let is_float = move |k: &Known| k.dtype == float;
        match self.random.below(24) {
            0..=3 => self.unary(&UNARY, is_float, None),
            4..=10 => self.binary(&BINARY, is_float, None),
            11 => self.binary(&ORDERS, |k| k.dtype != DType::Bool, Some(DType::Bool)),
            12 => self.unary(&["is_nan", "is_inf"], is_float, Some(DType::Bool)),
            13 => self.binary(&["and", "or", "xor"], |k| k.dtype == DType::Bool, None),
            14 => self.select(),
            15 | 16 => self.cast(),
            17 | 18 => self.binary(&WHOLE, |k| k.dtype.is_int(), None),
            19 => self.unary(&["neg", "abs", "sign", "not"], |k| k.dtype.is_int(), None),
            20 => self.reduce(),
            21 => self.again(),
            _ => self.moved(),
        }
    }

    fn select(&mut self) -> Option<()> {
        let c = self.choose(|k| k.dtype == DType::Bool)?;
        let a = self.choose(|k| k.dtype != DType::Bool && k.shape == c.shape)?;
        let (b, shape) = self.with(&a)?;
        let (x, y) = match self.random.below(2) {
            0 => (a.name, b),
            _ => (b, a.name),
        };
        self.add(format!("select {}, {x}, {y}", c.name), a.dtype, shape);
        Some(())
    }

    fn cast(&mut self) -> Option<()> {
        let a = self.choose(|_| true)?;
        let to = match self.random.below(3) {
            0 => self.float,
            1 => DType::Bool,
            _ => self.random.of(&INTEGERS),
        };
        self.add(format!("cast {} {{to={to}}}", a.name), to, a.shape);
        Some(())
    }

    fn reduce(&mut self) -> Option<()> {
        let a = self.choose(|k| k.dtype != DType::Bool)?;
        let op = match a.dtype.is_int() {
            true => self.random.of(&["sum", "prod", "max", "min"]),
            false => self.random.of(&["max", "min"]),
        };
        let axis = self.random.below(2);
        let mut shape = a.shape;
        shape[axis] = 1;
        self.add(
            format!("reduce {} {{op={op}, axes=[{axis}], keep_dims}}", a.name),
            a.dtype,
            shape,
        );
        Some(())
    }

    /// A value once more, which `cse` finds, and its difference from itself.
    fn again(&mut self) -> Option<()> {
        let a = self.choose(|k| !k.op.starts_with("input") && k.dtype != DType::Bool)?;
        self.add(a.op.clone(), a.dtype, a.shape);
        let twin = self.known.last()?.name.clone();
        let op = self.random.of(&["sub", "div", "mul", "max", "add"]);
        self.add(format!("{op} {}, {twin}", a.name), a.dtype, a.shape);
        Some(())
    }

    fn moved(&mut self) -> Option<()> {
        let a = self.choose(|_| true)?;
        let ([rows, columns], name, dtype) = (a.shape, &a.name, a.dtype);
        match self.random.below(5) {
            0 => {
                let turned = format!("transpose {name} {{perm=[1, 0]}}");
                self.add(turned, dtype, [columns, rows]);
                let turned = self.known.last()?.name.clone();
                // And back, so that it goes with the others.
                if self.random.below(2) == 0 {
                    self.add(format!("transpose {turned} {{perm=[1, 0]}}"), dtype, [rows, columns]);
                }
            }
            1 => {
                let first = self.random.below(columns);
                let size = 1 + self.random.below(columns - first);
                let op = format!("slice {name} {{starts=[0, {first}], sizes=[{rows}, {size}]}}");
                self.add(op, dtype, [rows, size]);
            }
            2 => {
                let (flat, n) = (format!("v{}", self.known.len()), rows * columns);
                self.add(format!("reshape {name} : {dtype}[1, {n}]"), dtype, [1, n]);
                self.add(format!("reshape {flat} : {dtype}[{rows}, {columns}]"), dtype, a.shape);
            }
            3 => {
                let b = self.choose(|k| k.dtype == dtype && k.shape[0] == rows)?;
                let shape = [rows, columns + b.shape[1]];
                self.add(format!("concat {name}, {} {{axis=1}}", b.name), dtype, shape);
            }
            _ => {
                let shape = [rows, columns].map(|d| if d == 1 { 1 + self.random.below(4) } else { d });
                self.add(format!("broadcast {name} : {dtype}{shape:?}"), dtype, shape);
            }
        }
        Some(())
    }
}
