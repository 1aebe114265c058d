//! The ops of one element: a row each.
//!
//! A row says what a compiler may know of an op without knowing which op it is: the types that it takes, its name in
//! text forms, what it costs, its meaning, how C spells it, and the laws that hold of it. The enums and all functions
//! of them are made from the rows. Passes and code generators match the kinds and ask for laws; a list of members
//! elsewhere is a sign that a column is missing here.
//!
//! A meaning is a function of `f64`, whatever the float type. Where integers have one of their own it follows as
//! `int`, on `i64` before it is wrapped to the type; else the float's is truncated.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The types that a unary op takes, and with them its meaning on integers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnaryKind {
    /// Arithmetic of integers and floats.
    Number,
    /// A function of truth values and of the bits of integers.
    Bits,
    /// A function of floats that leaves integers as they are.
    Rounding,
    /// A question about floats; the result is bool.
    Predicate,
    /// A function of floats alone.
    Function,
}

/// A law of a unary op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnaryLaw {
    /// `f(f(x)) = x`.
    Involution,
    /// `f(f(x)) = f(x)`.
    Idempotent,
    /// The result is `x`, `-x` or 0: it is no larger than `x`, and rounds nothing.
    PiecewiseLinear,
    /// The result is no larger than 1.
    AtMostOne,
    /// It is rounded once at most, so that every library gives the same bits.
    Exact,
}

/// The types that a binary op takes, and with them its spelling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BinaryKind {
    /// Arithmetic of integers and floats.
    Number,
    /// A function of floats alone.
    Function,
    /// A function of truth values and of the bits of integers.
    Bits,
    /// Integers; the amount is taken modulo the width.
    Shift,
    /// The result is bool.
    Comparison(Comparison),
}

/// A law of a binary op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BinaryLaw {
    /// `f(a, b) = f(b, a)`.
    Commutative,
    /// `f(a, n) = a` for this number.
    RightIdentity(i64),
    /// The op on truth values.
    Logical(Logical),
    /// The result of integers that fit a narrower type fits it too.
    Closed,
    /// The result of floats is rounded once at most, so that every library gives the same bits.
    Exact,
}

/// A function of two truth values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Logical {
    And,
    Or,
    Xor,
}

impl Logical {
    /// Applies the function.
    #[inline]
    pub const fn of(self, a: bool, b: bool) -> bool {
        match self {
            Logical::And => a & b,
            Logical::Or => a | b,
            Logical::Xor => a ^ b,
        }
    }
}

/// How strongly C's operators bind, the weakest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Conditional,
    Or,
    And,
    BitOr,
    BitXor,
    BitAnd,
    Equality,
    Relation,
    Shift,
    Sum,
    Product,
    Unary,
    Primary,
}

impl Level {
    /// The next stronger level, which the right operand of an operator of this one needs.
    pub const fn stronger(self) -> Level {
        match self {
            Level::Conditional => Level::Or,
            Level::Or => Level::And,
            Level::And => Level::BitOr,
            Level::BitOr => Level::BitXor,
            Level::BitXor => Level::BitAnd,
            Level::BitAnd => Level::Equality,
            Level::Equality => Level::Relation,
            Level::Relation => Level::Shift,
            Level::Shift => Level::Sum,
            Level::Sum => Level::Product,
            Level::Product => Level::Unary,
            Level::Unary | Level::Primary => Level::Primary,
        }
    }
}

/// A binary op in C: an operator, or a function of the op's name or of another.
#[derive(Clone, Copy, Debug)]
pub struct Spelling {
    /// The operator, as kernels' text has it too.
    pub operator: Option<(&'static str, Level)>,
    /// The function of floats, where neither the operator nor the name is one.
    pub float: Option<&'static str>,
    /// The function of integers, where neither is one: results wrap, and a zero divisor gives 0.
    pub int: Option<&'static str>,
}

impl Spelling {
    const fn float(mut self, function: &'static str) -> Spelling {
        self.float = Some(function);
        self
    }

    const fn int(mut self, function: &'static str) -> Spelling {
        self.int = Some(function);
        self
    }
}

const fn operator(symbol: &'static str, level: Level) -> Spelling {
    Spelling {
        operator: Some((symbol, level)),
        float: None,
        int: None,
    }
}

const fn function() -> Spelling {
    Spelling {
        operator: None,
        float: None,
        int: None,
    }
}

/// Makes an enum of the members, and what every such enum has.
macro_rules! names {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$about:meta])* $member:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        pub enum $name { $($(#[$about])* $member),+ }
        impl $name {
            /// All members, in declaration order.
            pub const ALL: &'static [$name] = &[$($name::$member),+];
            /// Returns the name used in text forms.
            pub const fn name(self) -> &'static str { match self { $($name::$member => $text),+ } }
            /// Finds a member by its name.
            pub fn from_name(text: &str) -> Option<$name> {
                match text { $($text => Some($name::$member),)+ _ => None }
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(self.name()) }
        }
    };
}
pub(super) use names;

macro_rules! unary_ops {
    ($(
        $(#[$about:meta])*
        $member:ident = $text:literal: $kind:ident, $cost:literal, |$x:ident| $float:expr
        $(, int |$i:ident| $int:expr)? $(, laws [$($law:ident),+])?;
    )+) => {
        names! {
            /// One operand; the result has its type, except the predicates, which give bool.
            pub enum UnaryOp { $($(#[$about])* $member = $text),+ }
        }

        impl UnaryOp {
            /// Returns the types that the op takes.
            pub const fn kind(self) -> UnaryKind {
                match self { $(UnaryOp::$member => UnaryKind::$kind),+ }
            }

            /// Returns the laws that hold of the op.
            pub const fn laws(self) -> &'static [UnaryLaw] {
                match self { $(UnaryOp::$member => &[$($(UnaryLaw::$law),+)?]),+ }
            }

            /// Returns the vector operations of one element, roughly.
            pub const fn cost(self) -> u32 {
                match self { $(UnaryOp::$member => $cost),+ }
            }

            /// Applies the op to a float; predicates give 0 or 1.
            #[inline]
            pub fn on_float(self, x: f64) -> f64 {
                match self { $(UnaryOp::$member => { let $x = x; $float })+ }
            }

            /// Applies the op to an integer, before the result is wrapped to the type.
            #[inline]
            pub fn on_int(self, x: i64) -> i64 {
                match self {
                    $($(UnaryOp::$member => { let $i = x; $int })?)+
                    other => other.on_float(x as f64) as i64,
                }
            }
        }
    };
}

macro_rules! binary_ops {
    (
        comparisons {
            $($order:ident = $order_text:literal: $symbol:tt, $level:expr $(, laws [$($order_law:expr),+])?;)+
        }
        $(
            $(#[$about:meta])*
            $member:ident = $text:literal: $kind:ident, $cost:literal, $spelling:expr, |$a:ident, $b:ident| $float:expr
            $(, int |$i:ident, $j:ident $(, $width:ident)?| $int:expr)? $(, laws [$($law:expr),+])?;
        )+
    ) => {
        names! {
            /// Two operands of one type; the result has it too, except comparisons, which give bool.
            pub enum BinaryOp { $($(#[$about])* $member = $text,)+ $($order = $order_text),+ }
        }

        /// The members that compare. NaN is unequal to everything and neither less nor greater.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Comparison { $($order),+ }

        impl Comparison {
            /// Says whether the comparison holds.
            #[inline]
            pub fn holds<T: PartialOrd>(self, a: &T, b: &T) -> bool {
                match self { $(Comparison::$order => a $symbol b),+ }
            }
        }

        impl BinaryOp {
            /// Returns the types that the op takes.
            pub const fn kind(self) -> BinaryKind {
                match self {
                    $(BinaryOp::$member => BinaryKind::$kind,)+
                    $(BinaryOp::$order => BinaryKind::Comparison(Comparison::$order)),+
                }
            }

            /// Returns the laws that hold of the op.
            pub const fn laws(self) -> &'static [BinaryLaw] {
                match self {
                    $(BinaryOp::$member => &[$($($law),+)?],)+
                    $(BinaryOp::$order => &[$($($order_law),+)?]),+
                }
            }

            /// Returns the vector operations of one element, roughly.
            pub const fn cost(self) -> u32 {
                match self { $(BinaryOp::$member => $cost,)+ $(BinaryOp::$order => 1),+ }
            }

            /// Returns the op in C.
            pub const fn spelling(self) -> Spelling {
                match self {
                    $(BinaryOp::$member => $spelling,)+
                    $(BinaryOp::$order => operator(stringify!($symbol), $level)),+
                }
            }

            /// Applies the op to floats; comparisons give 0 or 1.
            #[inline]
            pub fn on_floats(self, a: f64, b: f64) -> f64 {
                match self {
                    $(BinaryOp::$member => { let ($a, $b) = (a, b); $float })+
                    $(BinaryOp::$order => truth(a $symbol b)),+
                }
            }

            /// Applies the op to integers of so many bits, before the result is wrapped to them; comparisons give 0 or
            /// 1.
            #[inline]
            pub fn on_ints(self, bits: u32, a: i64, b: i64) -> i64 {
                match self {
                    $($(BinaryOp::$member => {
                        let ($i, $j) = (a, b);
                        $(let $width = i64::from(bits);)?
                        $int
                    })?)+
                    $(BinaryOp::$order => i64::from(a $symbol b),)+
                    other => other.on_floats(a as f64, b as f64) as i64,
                }
            }
        }
    };
}

// Columns: the member, its name in text; its kind, its cost; its meaning; integers'; laws.
unary_ops! {
    Neg = "neg": Number, 1, |x| -x, int |x| x.wrapping_neg(), laws [Exact, Involution, PiecewiseLinear];
    Abs = "abs": Number, 1, |x| x.abs(), int |x| x.wrapping_abs(), laws [Exact, Idempotent, PiecewiseLinear];
    /// Zero keeps its sign, NaN stays.
    Sign = "sign": Number, 1, |x| if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { x }, int |x| x.signum(),
        laws [Exact, Idempotent, AtMostOne];
    Floor = "floor": Rounding, 1, |x| x.floor(), int |x| x, laws [Exact, Idempotent];
    Ceil = "ceil": Rounding, 1, |x| x.ceil(), int |x| x, laws [Exact, Idempotent];
    /// To nearest, ties to even.
    Round = "round": Rounding, 1, |x| x.round_ties_even(), int |x| x, laws [Exact, Idempotent];
    Trunc = "trunc": Rounding, 1, |x| x.trunc(), int |x| x, laws [Exact, Idempotent];
    Sqrt = "sqrt": Function, 4, |x| x.sqrt(), laws [Exact];
    Rsqrt = "rsqrt": Function, 4, |x| 1.0 / x.sqrt();
    Recip = "recip": Function, 4, |x| 1.0 / x, laws [Exact];
    Exp = "exp": Function, 8, |x| x.exp();
    Expm1 = "expm1": Function, 8, |x| x.exp_m1();
    Log = "log": Function, 8, |x| x.ln();
    Log1p = "log1p": Function, 8, |x| x.ln_1p();
    Exp2 = "exp2": Function, 8, |x| x.exp2();
    Log2 = "log2": Function, 8, |x| x.log2();
    Sin = "sin": Function, 8, |x| x.sin(), laws [AtMostOne];
    Cos = "cos": Function, 8, |x| x.cos(), laws [AtMostOne];
    Tan = "tan": Function, 8, |x| x.tan();
    Asin = "asin": Function, 8, |x| x.asin();
    Acos = "acos": Function, 8, |x| x.acos();
    Atan = "atan": Function, 8, |x| x.atan();
    Sinh = "sinh": Function, 8, |x| x.sinh();
    Cosh = "cosh": Function, 8, |x| x.cosh();
    Tanh = "tanh": Function, 8, |x| x.tanh(), laws [AtMostOne];
    Asinh = "asinh": Function, 8, |x| libm::asinh(x);
    Acosh = "acosh": Function, 8, |x| libm::acosh(x);
    Atanh = "atanh": Function, 8, |x| libm::atanh(x);
    Erf = "erf": Function, 16, |x| libm::erf(x), laws [AtMostOne];
    Sigmoid = "sigmoid": Function, 8, |x| sigmoid(x), laws [AtMostOne];
    Softplus = "softplus": Function, 8, |x| softplus(x);
    /// `max(x, 0)`, NaN stays NaN.
    Relu = "relu": Number, 1, |x| if x < 0.0 { 0.0 } else { x }, int |x| x.max(0),
        laws [Exact, Idempotent, PiecewiseLinear];
    /// `x/2 · (1 + erf(x/√2))`; `erfc` keeps the digits that `1 + erf` would lose for negative x.
    Gelu = "gelu": Function, 16, |x| 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
    /// `x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
    GeluTanh = "gelu_tanh": Function, 16, |x| gelu_tanh(x);
    /// `x · sigmoid(x)`.
    Silu = "silu": Function, 8, |x| x * sigmoid(x);
    /// `x · tanh(softplus(x))`.
    Mish = "mish": Function, 16, |x| x * softplus(x).tanh();
    /// `x · clamp(x + 3, 0, 6) / 6`.
    HardSwish = "hard_swish": Function, 2, |x| x * min(max(x + 3.0, 0.0), 6.0) / 6.0;
    /// Logical for bool, bitwise for integers.
    Not = "not": Bits, 1, |x| truth(x == 0.0), int |x| !x, laws [Involution];
    IsNan = "is_nan": Predicate, 1, |x| truth(x.is_nan());
    IsInf = "is_inf": Predicate, 1, |x| truth(x.is_infinite());
}

use BinaryLaw::{Closed, Commutative, Exact, Logical as On, RightIdentity};

// Columns: the member, its name in text; its kind, its cost, its spelling; its meaning; integers'; laws.
binary_ops! {
    comparisons {
        Eq = "eq": ==, Level::Equality, laws [Commutative];
        Ne = "ne": !=, Level::Equality, laws [Commutative];
        Lt = "lt": <, Level::Relation;
        Le = "le": <=, Level::Relation;
        Gt = "gt": >, Level::Relation;
        Ge = "ge": >=, Level::Relation;
    }
    Add = "add": Number, 1, operator("+", Level::Sum).int("int_add"), |a, b| a + b, int |a, b| a.wrapping_add(b),
        laws [Exact, Commutative, RightIdentity(0), On(Logical::Or)];
    Sub = "sub": Number, 1, operator("-", Level::Sum).int("int_sub"), |a, b| a - b, int |a, b| a.wrapping_sub(b),
        laws [Exact, RightIdentity(0), On(Logical::Xor)];
    Mul = "mul": Number, 1, operator("*", Level::Product).int("int_mul"), |a, b| a * b, int |a, b| a.wrapping_mul(b),
        laws [Exact, Commutative, RightIdentity(1), On(Logical::And)];
    /// Integers: truncates towards zero; a zero divisor gives 0.
    Div = "div": Number, 4, operator("/", Level::Product).int("int_div"), |a, b| a / b,
        int |a, b| if b == 0 { 0 } else { a.wrapping_div(b) }, laws [Exact, RightIdentity(1)];
    /// Remainder with the sign of the dividend (C's `%`, `fmod`); of integers, a zero divisor gives 0.
    Rem = "rem": Number, 8, operator("%", Level::Product).float("rem").int("int_rem"), |a, b| a % b,
        int |a, b| if b == 0 { 0 } else { a.wrapping_rem(b) }, laws [Closed];
    /// Remainder with the sign of the divisor (Python's `%`); of integers, a zero divisor gives 0.
    Mod = "mod": Number, 8, function().float("floor_rem").int("int_mod"), |a, b| floor_mod(a, b),
        int |a, b| if b == 0 { 0 } else { int_floor_mod(a, b) }, laws [Closed];
    /// Integers: a negative exponent gives the truncated reciprocal, and of zero 0.
    Pow = "pow": Number, 16, function().int("int_pow"), |a, b| a.powf(b), int |a, b| int_pow(a, b),
        laws [RightIdentity(1)];
    /// NaN if either is NaN.
    Max = "max": Number, 1, function(), |a, b| max(a, b), int |a, b| a.max(b),
        laws [Exact, Commutative, Closed, On(Logical::Or)];
    /// NaN if either is NaN.
    Min = "min": Number, 1, function(), |a, b| min(a, b), int |a, b| a.min(b),
        laws [Exact, Commutative, Closed, On(Logical::And)];
    Atan2 = "atan2": Function, 16, function(), |a, b| a.atan2(b);
    /// Logical for bool, bitwise for integers.
    And = "and": Bits, 1, operator("&", Level::BitAnd), |a, b| truth(a != 0.0 && b != 0.0), int |a, b| a & b,
        laws [Commutative, Closed, RightIdentity(-1), On(Logical::And)];
    /// Logical for bool, bitwise for integers.
    Or = "or": Bits, 1, operator("|", Level::BitOr), |a, b| truth(a != 0.0 || b != 0.0), int |a, b| a | b,
        laws [Commutative, Closed, RightIdentity(0), On(Logical::Or)];
    /// Logical for bool, bitwise for integers.
    Xor = "xor": Bits, 1, operator("^", Level::BitXor), |a, b| truth((a != 0.0) != (b != 0.0)), int |a, b| a ^ b,
        laws [Commutative, Closed, RightIdentity(0), On(Logical::Xor)];
    Shl = "shl": Shift, 1, operator("<<", Level::Shift).float("shl").int("int_shl"), |a, b| a * b.exp2(),
        int |a, b, bits| a.wrapping_shl(b.rem_euclid(bits) as u32), laws [RightIdentity(0)];
    Shr = "shr": Shift, 1, operator(">>", Level::Shift).float("shr").int("int_shr"), |a, b| a / b.exp2(),
        int |a, b, bits| a.wrapping_shr(b.rem_euclid(bits) as u32), laws [Closed, RightIdentity(0)];
}

impl UnaryOp {
    /// Says whether a law holds of the op.
    pub fn is(self, law: UnaryLaw) -> bool {
        self.laws().contains(&law)
    }

    /// Says whether the result is bool whatever the operand.
    pub const fn is_predicate(self) -> bool {
        matches!(self.kind(), UnaryKind::Predicate)
    }
}

impl BinaryOp {
    /// Returns how the op compares, if it does.
    #[inline]
    pub const fn comparison(self) -> Option<Comparison> {
        match self.kind() {
            BinaryKind::Comparison(comparison) => Some(comparison),
            BinaryKind::Number | BinaryKind::Function | BinaryKind::Bits | BinaryKind::Shift => None,
        }
    }

    /// Says whether the result is bool.
    #[inline]
    pub const fn is_comparison(self) -> bool {
        self.comparison().is_some()
    }

    /// Says whether a law holds of the op.
    pub fn is(self, law: BinaryLaw) -> bool {
        self.laws().contains(&law)
    }

    /// Says whether the operands may change places.
    pub fn is_commutative(self) -> bool {
        self.is(Commutative)
    }

    /// Returns the number that leaves the left operand as it is.
    pub fn right_identity(self) -> Option<i64> {
        self.laws().iter().find_map(|law| match law {
            RightIdentity(number) => Some(*number),
            Commutative | On(_) | Closed | Exact => None,
        })
    }

    /// Returns the op on truth values, unless it is a comparison or has none.
    #[inline]
    pub fn logical(self) -> Option<Logical> {
        self.laws().iter().find_map(|law| match law {
            On(logical) => Some(*logical),
            Commutative | RightIdentity(_) | Closed | Exact => None,
        })
    }

    /// Applies the op to truth values; one that has no meaning there gives false.
    #[inline]
    pub fn on_bools(self, a: bool, b: bool) -> bool {
        match (self.logical(), self.comparison()) {
            (Some(logical), _) => logical.of(a, b),
            (None, Some(comparison)) => comparison.holds(&a, &b),
            (None, None) => false,
        }
    }
}

fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// The larger; NaN if either is.
pub fn max(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// The smaller; NaN if either is.
pub fn min(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}

fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        let e = x.exp();
        e / (1.0 + e)
    }
}

fn softplus(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else {
        x.max(0.0) + (-x.abs()).exp().ln_1p()
    }
}

/// `(1 + tanh(y)) / 2 = sigmoid(2y)`, without its cancellation.
fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    x * sigmoid(2.0 * inner)
}

fn floor_mod(a: f64, b: f64) -> f64 {
    let r = a % b;
    if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
}

fn int_floor_mod(a: i64, b: i64) -> i64 {
    let r = a.wrapping_rem(b);
    if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
}

fn int_pow(base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut result, mut square, mut left) = (1i64, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        left >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: [f64; 14] = [
        0.0,
        -0.0,
        0.3,
        -0.3,
        0.5,
        1.0,
        -1.0,
        2.5,
        -2.5,
        7.0,
        -40.0,
        1e30,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];

    fn same(a: f64, b: f64) -> bool {
        a == b || a.is_nan() && b.is_nan()
    }

    #[test]
    fn laws_of_unary_ops_hold() {
        for &op in UnaryOp::ALL {
            // Of bits, a float is a truth value.
            let of_truths = op.kind() == UnaryKind::Bits;
            for x in NUMBERS.into_iter().map(|x| if of_truths { truth(x > 0.0) } else { x }) {
                let y = op.on_float(x);
                for law in op.laws() {
                    let holds = match law {
                        UnaryLaw::Involution => same(op.on_float(y), x),
                        UnaryLaw::Idempotent => same(op.on_float(y), y),
                        UnaryLaw::PiecewiseLinear => [x, -x, 0.0].contains(&y),
                        UnaryLaw::AtMostOne => y.is_nan() || y.abs() <= 1.0,
                        UnaryLaw::Exact => op.kind() != UnaryKind::Predicate,
                    };
                    assert!(holds, "{op}: {law:?} of {x}");
                }
            }
        }
    }

    #[test]
    fn laws_of_binary_ops_hold() {
        for &op in BinaryOp::ALL {
            for (a, b) in (-9..10).flat_map(|a| (-9..10).map(move |b| (a, b))) {
                let (x, y) = (a as f64 / 2.0, b as f64 / 2.0);
                for law in op.laws() {
                    let holds = match law {
                        Commutative => {
                            same(op.on_floats(x, y), op.on_floats(y, x)) && op.on_ints(64, a, b) == op.on_ints(64, b, a)
                        }
                        RightIdentity(n) => {
                            let of_floats = !matches!(op.kind(), BinaryKind::Bits);
                            op.on_ints(64, a, *n) == a && (!of_floats || same(op.on_floats(x, *n as f64), x))
                        }
                        On(logical) => {
                            let truths = (a > 0, b > 0);
                            logical.of(truths.0, truths.1) == op.on_bools(truths.0, truths.1)
                        }
                        Exact => !op.is_comparison(),
                        Closed => {
                            let fits = |v: i64| (-8..8).contains(&v);
                            !fits(a) || !fits(b) || fits(op.on_ints(4, a, b))
                        }
                    };
                    assert!(holds, "{op}: {law:?} of {a} and {b}");
                }
            }
        }
    }

    /// A row that forgets them would be truncated from the float.
    #[test]
    fn ops_of_integers_have_a_meaning_of_their_own() {
        let large = i64::MAX - 2;
        for &op in UnaryOp::ALL {
            if matches!(op.kind(), UnaryKind::Number | UnaryKind::Rounding) {
                assert!([large, -large, 1, 0].contains(&op.on_int(large)), "{op}");
            }
        }
        for &op in BinaryOp::ALL {
            if matches!(op.kind(), BinaryKind::Number | BinaryKind::Bits) {
                let exact = [
                    large,
                    large.wrapping_add(1),
                    large - 1,
                    1,
                    0,
                    large ^ 1,
                    large & 1,
                    large | 1,
                ];
                assert!(
                    exact.contains(&op.on_ints(64, large, 1)),
                    "{op}: {}",
                    op.on_ints(64, large, 1)
                );
            }
        }
    }

    #[test]
    fn names_are_found() {
        for &op in UnaryOp::ALL {
            assert_eq!(UnaryOp::from_name(op.name()), Some(op));
        }
        for &op in BinaryOp::ALL {
            assert_eq!(BinaryOp::from_name(op.name()), Some(op));
        }
    }
}
