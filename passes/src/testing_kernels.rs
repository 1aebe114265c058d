//! Random graphs whose kernels are pointwise ones, transposes, rows and windows, as texts; tests of other crates make
//! the same.

use std::fmt::Write;

/// Numbers that are the same every run.
pub struct Random(pub u64);

impl Random {
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    /// One of several.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A graph's text as it grows.
struct Text {
    lines: String,
    values: usize,
    inputs: usize,
}

impl Text {
    fn add(&mut self, op: &str) -> String {
        self.values += 1;
        let name = format!("v{}", self.values);
        let _ = writeln!(self.lines, "  {name} = {op}");
        name
    }

    fn input(&mut self, dtype: &str, shape: [usize; 4]) -> String {
        self.inputs += 1;
        let [a, b, c, d] = shape;
        let name = self.inputs;
        self.add(&format!("input \"in{name}\" : {dtype}[{a}, {b}, {c}, {d}]"))
    }
}

/// Orders in which an image's axes may lie in memory, each with the transpose that gives
/// `[image, channel, row, column]`.
const ORDERS: [([usize; 4], &str); 4] = [
    ([0, 1, 2, 3], ""),
    ([0, 2, 3, 1], "0, 3, 1, 2"),
    ([1, 2, 3, 0], "3, 0, 1, 2"),
    ([0, 3, 2, 1], "0, 3, 2, 1"),
];

/// An image of so many channels, rows and columns, perhaps a nearest neighbour's upsampling along some axes, from
/// memory in any order.
fn image(text: &mut Text, random: &mut Random, dtype: &str, shape: [usize; 4]) -> String {
    let mut stored = shape;
    let mut scaled = Vec::new();
    for axis in [2, 3] {
        let factor = random.of(&[1, 1, 2, 4, 8]);
        if shape[axis].is_multiple_of(factor) && factor > 1 {
            stored[axis] /= factor;
            scaled.push((axis, factor));
        }
    }
    let (order, back) = random.of(&ORDERS);
    let mut value = text.input(dtype, order.map(|axis| stored[axis]));
    if !back.is_empty() {
        value = text.add(&format!("transpose {value} {{perm=[{back}]}}"));
    }
    for (axis, factor) in scaled {
        // By positions that are computed, or that the run gives.
        let at = if random.below(3) == 0 {
            text.inputs += 1;
            let name = text.inputs;
            text.add(&format!("input \"at{name}\" : i64[{}]", shape[axis]))
        } else {
            let iota = text.add(&format!("iota {{axis=0}} : i64[{}]", shape[axis]));
            let by = text.add(&format!("constant {factor} : i64[]"));
            text.add(&format!("div {iota}, {by}"))
        };
        value = text.add(&format!("take {value}, {at} {{axis={axis}}}"));
    }
    value
}

/// A graph of many images that are added, compared and folded, and perhaps a window over what they make.
pub fn text_of_graph(random: &mut Random) -> String {
    let dtype = random.of(&["f16", "f16", "f16", "f32", "bf16", "i8", "f64", "i64", "f8e4m3fn"]);
    let computed = if dtype == "f8e4m3fn" { "f32" } else { dtype };
    let shape = [
        random.of(&[1, 2, 8]),
        random.of(&[16, 18, 32, 33, 64, 144]),
        random.of(&[8, 16, 28, 56]),
        random.of(&[7, 8, 16, 56]),
    ];
    let mut text = Text {
        lines: String::new(),
        values: 0,
        inputs: 0,
    };
    let cast = |text: &mut Text, value: String| match dtype == computed {
        true => value,
        false => text.add(&format!("cast {value} {{to={computed}}}")),
    };
    let first = image(&mut text, random, dtype, shape);
    let mut sum = cast(&mut text, first);
    for _ in 0..random.below(14) {
        let other = image(&mut text, random, dtype, shape);
        let other = cast(&mut text, other);
        let op = random.of(&["add", "add", "mul", "max", "sub"]);
        sum = text.add(&format!("{op} {sum}, {other}"));
        if random.below(3) == 0 {
            sum = text.add(&format!("relu {sum}"));
        }
    }
    let (_, order) = random.of(&ORDERS);
    let turned = |text: &mut Text, value: String| match order.is_empty() {
        true => value,
        false => text.add(&format!("transpose {value} {{perm=[{order}]}}")),
    };
    let axis = random.below(4);
    let float = computed.starts_with(['f', 'b']);
    let result = match random.below(9) {
        0 | 1 => {
            let (size, stride) = (random.of(&[2, 3]), random.of(&[1, 2]));
            let kind = if float { random.of(&["max", "average"]) } else { "max" };
            let last = if random.below(2) == 0 { "" } else { ", channels_last" };
            text.add(&format!(
                "pool {sum} {{kind={kind}, size=[{size}, {size}], strides=[{stride}, {stride}]{last}}}"
            ))
        }
        2 => {
            let op = random.of(&["sum", "max", "min", "arg_max"]);
            text.add(&format!("reduce {sum} {{op={op}, axes=[{axis}]}}"))
        }
        3 if float => {
            let turned = turned(&mut text, sum);
            text.add(&format!("softmax {turned} {{axis={axis}}}"))
        }
        4 => text.add(&format!("scan {sum} {{op=sum, axis={axis}}}")),
        5 => {
            let turned = turned(&mut text, sum.clone());
            let _ = writeln!(text.lines, "  return {sum} as \"plain\", {turned} as \"y\"");
            return format!("graph @random stage=import {{\n{}}}\n", text.lines);
        }
        _ => turned(&mut text, sum),
    };
    let _ = writeln!(text.lines, "  return {result} as \"y\"");
    format!("graph @random stage=import {{\n{}}}\n", text.lines)
}
