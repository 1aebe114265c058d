//! Expressions: what is named, what stands in line, and how each member is spelled.
//!
//! A [`Printer`] holds what is in view: names of variables, of axes and of expressions that have been computed.
//! Expressions used more than once become locals. A `Select` stays lazy: what is loaded only in a branch is spelled
//! inside that branch, as `?:`, or as `if`/`else` when the branch has locals of its own.

use ir::kernel::{AxisId, Expr, ExprId, Kernel, VarId};
use ir::op::{BinaryKind, BinaryOp, Level, Logical, Spelling, UnaryKind, UnaryOp};
use ir::target::Target;
use ir::{DType, Dim, Entity, Scalar, Symbols, dim};

use crate::device::has_short_form;
use crate::index::{self, ExprFacts};
use crate::name::Namer;
use crate::source::Writer;
use crate::types::{is_nibble, literal, spelling};

/// An operand longer than this gets a line and a name of its own.
const LONG: usize = 72;

/// Text and how strongly it binds.
struct Spelled {
    text: String,
    level: Level,
}

impl Spelled {
    fn primary(text: impl Into<String>) -> Spelled {
        Spelled {
            text: text.into(),
            level: Level::Primary,
        }
    }

    fn at(self, least: Level) -> String {
        if self.level >= least {
            self.text
        } else {
            format!("({})", self.text)
        }
    }
}

/// The names in view.
#[derive(Clone)]
struct View {
    exprs: Vec<Option<String>>,
    axes: Vec<String>,
    namer: Namer,
}

/// Prints the body of one kernel.
pub struct Printer<'a> {
    pub kernel: &'a Kernel,
    pub symbols: &'a Symbols,
    pub target: &'a Target,
    pub facts: ExprFacts,
    pub out: Writer,
    pub params: Vec<String>,
    /// Whether the kernel reads constants before it waits for the launch before it.
    pub reads_early: bool,
    /// Whether the kernel lets the next launch begin as soon as all of its workgroups are at work.
    pub lets_next_begin: bool,
    /// A variable whose multiple and what is added to that are one operation. In the score of an attention, which is
    /// one op of the model, it is the sum of products of a query and a key.
    pub fused: Option<VarId>,
    sizes: Vec<(ir::Symbol, String)>,
    vars: Vec<String>,
    view: View,
}

impl<'a> Printer<'a> {
    /// Makes a printer with names for the parameters, sizes and axes.
    pub fn new(kernel: &'a Kernel, symbols: &'a Symbols, target: &'a Target) -> Printer<'a> {
        let mut namer = Namer::default();
        let params = kernel.params.values().map(|p| namer.unique(&p.name)).collect();
        let sizes = kernel
            .symbols
            .iter()
            .map(|s| (s.clone(), namer.unique(s.name())))
            .collect();
        let axes = kernel.axes.values().map(|a| namer.unique(&a.name)).collect();
        let exprs = vec![None; kernel.exprs.len()];
        Printer {
            kernel,
            symbols,
            target,
            facts: ExprFacts::new(kernel, symbols),
            out: Writer::default(),
            params,
            reads_early: false,
            lets_next_begin: false,
            fused: None,
            sizes,
            vars: vec![String::new(); kernel.vars.len()],
            view: View { exprs, axes, namer },
        }
    }

    /// The names of the sizes, in the order of the arguments.
    pub fn size_names(&self) -> impl Iterator<Item = &str> {
        self.sizes.iter().map(|(_, name)| name.as_str())
    }

    /// Prints with names that are forgotten after.
    pub fn scope<R>(&mut self, print: impl FnOnce(&mut Self) -> R) -> R {
        let outer = self.view.clone();
        let result = print(self);
        self.view = outer;
        result
    }

    /// A name that nothing in view has.
    pub fn fresh(&mut self, base: &str) -> String {
        self.view.namer.unique(base)
    }

    /// Names a variable for its whole scope, after what it is.
    pub fn name_var(&mut self, var: VarId, base: &str) -> String {
        let name = self.view.namer.numbered(base);
        self.vars[var.index()] = name.clone();
        name
    }

    /// Gives a variable a name that exists.
    pub fn bind_var(&mut self, var: VarId, name: &str) {
        self.vars[var.index()] = name.to_owned();
    }

    /// The name of an axis.
    pub fn axis(&self, axis: AxisId) -> &str {
        &self.view.axes[axis.index()]
    }

    /// Calls an axis something else in this scope.
    pub fn bind_axis(&mut self, axis: AxisId, name: &str) {
        self.view.axes[axis.index()] = name.to_owned();
    }

    /// Gives an expression a spelling in this scope.
    pub fn bind_expr(&mut self, e: ExprId, spelled: &str) {
        self.view.exprs[e.index()] = Some(spelled.to_owned());
    }

    /// Forgets the names of expressions that move along an axis; those of this scope that do not stay.
    pub fn forget_locals_along(&mut self, axis: AxisId) {
        for i in 0..self.view.exprs.len() {
            let e = ExprId::new(i);
            if self.view.exprs[i].is_some() && self.mentions_axis(e, axis) {
                self.view.exprs[i] = None;
            }
        }
    }

    fn mentions_axis(&self, e: ExprId, axis: AxisId) -> bool {
        let mut seen = vec![false; self.kernel.exprs.len()];
        let mut stack = vec![e];
        while let Some(e) = stack.pop() {
            if std::mem::replace(&mut seen[e.index()], true) {
                continue;
            }
            if self.kernel.exprs[e] == Expr::Axis(axis) {
                return true;
            }
            self.kernel.exprs[e].for_each_operand(|o| stack.push(o));
        }
        false
    }

    /// `int` or `i64`: what counts an axis.
    pub fn axis_type(&self, axis: AxisId) -> &'static str {
        if self.facts.axis_is_int(axis) { "int" } else { "i64" }
    }

    /// The number of points of some axes, and the type that counts them.
    pub fn points(&self, axes: &[AxisId]) -> (Dim, &'static str) {
        let n: Dim = axes.iter().map(|a| self.kernel.axes[*a].extent.clone()).product();
        let counts = if index::fits(&n, self.symbols) { "int" } else { "i64" };
        (n, counts)
    }

    /// The type that counts the threads of teams of `lanes`, one for each point.
    pub fn threads(&self, points: &Dim, lanes: u32) -> &'static str {
        let threads = points.clone() * i64::from(lanes);
        if index::fits(&threads, self.symbols) {
            "int"
        } else {
            "i64"
        }
    }

    /// The C++ type of an expression's value.
    pub fn type_of(&self, e: ExprId) -> &'static str {
        match self.kernel.exprs.dtype(e) {
            DType::I64 if self.facts.is_int[e.index()] => "int",
            dtype => spelling(dtype),
        }
    }

    /// A size; an `int` where it is known to fit.
    pub fn size(&self, dim: &Dim) -> String {
        self.spell_size(dim, false).text
    }

    /// A size as an operand of `*`, `/` or `%`.
    pub fn size_factor(&self, dim: &Dim) -> String {
        self.spell_size(dim, false).at(Level::Unary)
    }

    fn spell_size(&self, d: &Dim, narrow: bool) -> Spelled {
        let poly = match d {
            Dim::Const(v) => return self.constant(DType::I64, Scalar::Int(*v)),
            Dim::Poly(p) => p,
        };
        let mut sum = String::new();
        let mut level = Level::Sum;
        for (i, (monomial, coefficient)) in poly.terms.iter().enumerate() {
            let mut factors = Vec::new();
            if coefficient.unsigned_abs() != 1 || monomial.is_empty() {
                factors.push(literal(DType::I64, Scalar::Int(coefficient.saturating_abs())));
            }
            factors.extend(monomial.iter().map(|a| self.atom(a)));
            let product = factors.join(" * ");
            match (i, *coefficient < 0) {
                (0, false) => sum = product,
                (0, true) => sum = format!("-{product}"),
                (_, minus) => sum = format!("{sum} {} {product}", if minus { '-' } else { '+' }),
            }
            if poly.terms.len() == 1 {
                level = match (factors.len(), *coefficient < 0) {
                    (1, false) => Level::Primary,
                    (1, true) => Level::Unary,
                    _ => Level::Product,
                };
            }
        }
        if narrow {
            return Spelled::primary(format!("int({sum})"));
        }
        Spelled { text: sum, level }
    }

    fn atom(&self, atom: &dim::Atom) -> String {
        let call = |f: &str, a: &Dim, b: &Dim| format!("math::{f}<i64>({}, {})", self.size(a), self.size(b));
        match atom {
            dim::Atom::Symbol(s) => self
                .sizes
                .iter()
                .find(|(symbol, _)| symbol == s)
                .map_or_else(|| s.name().to_owned(), |(_, name)| name.clone()),
            dim::Atom::FloorDiv(a, b) => call("floor_div", a, b),
            dim::Atom::Mod(a, b) => call("int_mod", a, b),
            dim::Atom::Max(a, b) => call("max", a, b),
            dim::Atom::Min(a, b) => call("min", a, b),
            dim::Atom::Sqrt(a) => format!("math::int_sqrt({})", self.size(a)),
        }
    }

    /// Writes locals for what `roots` share, and spells each root.
    pub fn values(&mut self, roots: &[ExprId]) -> Vec<String> {
        self.locals(roots);
        roots.iter().map(|e| self.spell(*e).text).collect()
    }

    /// Writes locals, and spells one expression.
    pub fn value(&mut self, root: ExprId) -> String {
        self.locals(&[root]);
        self.spell(root).text
    }

    /// Returns the loads that are not named yet and happen on one set of conditions alone, with these: each with
    /// whether it holds. Loads that happen in any case have none. Neither conditions nor positions of a conditional
    /// load are read from memory.
    pub fn loads_by_conditions(&self, roots: &[ExprId]) -> Vec<(ExprId, Vec<(ExprId, bool)>)> {
        #[derive(Clone, PartialEq)]
        enum When {
            Never,
            On(Vec<(ExprId, bool)>),
            Several,
        }
        let n = self.kernel.exprs.len();
        let mut when = vec![When::Never; n];
        let meet = |there: &mut When, here: When| match there {
            When::Never => *there = here,
            // What happens in any case happens on every condition.
            When::On(conditions) if conditions.is_empty() => {}
            _ if here == When::On(Vec::new()) => *there = here,
            there if *there == here => {}
            _ => *there = When::Several,
        };
        for root in roots {
            meet(&mut when[root.index()], When::On(Vec::new()));
        }
        // Operands precede their users: one sweep from the end sees every user before its operands.
        let mut found = Vec::new();
        for i in (0..n).rev() {
            let id = ExprId::new(i);
            if when[i] == When::Never || self.view.exprs[i].is_some() {
                continue;
            }
            let here = when[i].clone();
            match &self.kernel.exprs[id] {
                Expr::Select(condition, yes, no) => {
                    let branch = |holds: bool| match &here {
                        When::On(conditions) => When::On([&conditions[..], &[(*condition, holds)]].concat()),
                        other => other.clone(),
                    };
                    let (then, otherwise) = (branch(true), branch(false));
                    meet(&mut when[condition.index()], here);
                    meet(&mut when[yes.index()], then);
                    meet(&mut when[no.index()], otherwise);
                }
                e => {
                    if let (Expr::Load { index, .. }, When::On(conditions)) = (e, &here) {
                        let reads = |e: ExprId| self.facts.loads[e.index()];
                        let computed = !reads(*index) && !conditions.iter().any(|(c, _)| reads(*c));
                        if conditions.is_empty() || computed {
                            found.push((id, conditions.clone()));
                        }
                    }
                    e.for_each_operand(|o| meet(&mut when[o.index()], here.clone()));
                }
            }
        }
        found.reverse();
        found
    }

    /// Says whether an expression that is not named yet is computed whenever the roots are.
    pub fn is_always(&self, roots: &[ExprId], e: ExprId) -> bool {
        self.cone(roots).always[e.index()]
    }

    fn cone(&self, roots: &[ExprId]) -> Cone {
        let n = self.kernel.exprs.len();
        let mut cone = Cone {
            always: vec![false; n],
            reached: vec![false; n],
            uses: vec![0; n],
        };
        for r in roots {
            cone.uses[r.index()] += 1;
            cone.always[r.index()] = true;
            cone.reached[r.index()] = true;
        }
        // Operands precede their users: one sweep from the end sees every user before its operands.
        for i in (0..n).rev() {
            if !cone.reached[i] || self.view.exprs[i].is_some() {
                cone.reached[i] = false;
                cone.always[i] = false;
                continue;
            }
            let e = &self.kernel.exprs[ExprId::new(i)];
            let mut first = true;
            let lazy = matches!(e, Expr::Select(..));
            e.for_each_operand(|o| {
                cone.reached[o.index()] = true;
                cone.uses[o.index()] += 1;
                cone.always[o.index()] |= cone.always[i] && (first || !lazy);
                first = false;
            });
        }
        cone
    }

    /// Writes locals for what is used more than once, in order.
    fn locals(&mut self, roots: &[ExprId]) {
        let cone = self.cone(roots);
        // Loads that are only in branches, shared there: the branch needs locals of its own.
        let n = cone.uses.len();
        let mut needs_block = vec![false; n];
        let mut length = vec![0usize; n];
        for i in 0..n {
            if !cone.reached[i] {
                length[i] = 8;
                continue;
            }
            let id = ExprId::new(i);
            let e = &self.kernel.exprs[id];
            let trivial = matches!(e, Expr::Const(..) | Expr::Axis(_) | Expr::Var(_));
            let mut below = false;
            let mut total = 6;
            e.for_each_operand(|o| {
                below |= needs_block[o.index()];
                total += length[o.index()] + 3;
            });
            if let Expr::Size(d) = e {
                total = self.size(d).len();
            }
            length[i] = total;
            let shared = cone.uses[i] > 1 && !trivial && !(matches!(e, Expr::Size(_)) && total < 16);
            let conditional = !cone.always[i] && self.facts.loads[i];
            if conditional {
                // A branch below that wants a block makes every enclosing branch one.
                needs_block[i] = below || shared || total > 3 * LONG;
                continue;
            }
            let block = below && matches!(e, Expr::Select(..));
            let long = cone.always[i] && total > LONG && !trivial && !roots.contains(&id);
            if block || shared || long {
                self.name_local(id, block);
                length[i] = 8;
            }
        }
    }

    fn name_local(&mut self, e: ExprId, block: bool) {
        let base = self.base_name(e);
        let kind = self.type_of(e);
        if let (Expr::Select(c, a, b), true) = (&self.kernel.exprs[e], block) {
            let (c, a, b) = (*c, *a, *b);
            let condition = self.spell(c).text;
            let name = self.local(&base);
            self.out.line(format!("{kind} {name};"));
            self.out.open(format!("if ({condition})"));
            self.scope(|p| {
                let then = p.value(a);
                p.out.line(format!("{name} = {then};"));
            });
            self.out.close_open("else");
            self.scope(|p| {
                let otherwise = p.value(b);
                p.out.line(format!("{name} = {otherwise};"));
            });
            self.out.close("");
            self.bind_expr(e, &name);
            return;
        }
        let spelled = self.spell(e).text;
        let name = self.local(&base);
        self.out.line(format!("const {kind} {name} = {spelled};"));
        self.bind_expr(e, &name);
    }

    /// A name that nothing in view has, nor a local of the open block.
    fn local(&mut self, base: &str) -> String {
        loop {
            let name = self.view.namer.numbered(base);
            if self.out.declares(&name) {
                return name;
            }
        }
    }

    /// What a local is called, before its number.
    fn base_name(&self, e: ExprId) -> String {
        let index = self.kernel.exprs.dtype(e) == DType::I64;
        match &self.kernel.exprs[e] {
            Expr::Load { param, .. } => format!("{}_at", self.params[param.index()]),
            Expr::Cast(_, a) if matches!(self.kernel.exprs[*a], Expr::Load { .. }) => self.base_name(*a),
            Expr::Select(..) if index => "at".to_owned(),
            Expr::Binary(BinaryOp::And | BinaryOp::Or, ..) if self.kernel.exprs.dtype(e) == DType::Bool => {
                "inside".to_owned()
            }
            _ if index => "at".to_owned(),
            Expr::Unary(op, _) => op.name().to_owned(),
            Expr::Binary(op, ..) => op.name().to_owned(),
            Expr::Select(..) => "chosen".to_owned(),
            Expr::Cast(to, _) => format!("as_{to}"),
            Expr::Philox { .. } => "bits".to_owned(),
            Expr::Const(..) | Expr::Size(_) | Expr::Axis(_) | Expr::Var(_) => "v".to_owned(),
        }
    }

    fn constant(&self, dtype: DType, value: Scalar) -> Spelled {
        let text = literal(dtype, value);
        let level = if text.starts_with('-') {
            Level::Unary
        } else {
            Level::Primary
        };
        Spelled { text, level }
    }

    fn spell(&self, e: ExprId) -> Spelled {
        if let Some(name) = &self.view.exprs[e.index()] {
            return Spelled::primary(name.clone());
        }
        let dtype = self.kernel.exprs.dtype(e);
        match &self.kernel.exprs[e] {
            Expr::Const(t, value) => self.constant(*t, *value),
            Expr::Size(d) => self.spell_size(d, self.facts.is_int[e.index()]),
            Expr::Axis(a) => Spelled::primary(self.axis(*a)),
            Expr::Var(v) => Spelled::primary(self.vars[v.index()].clone()),
            Expr::Load { param, index } => {
                let (name, index) = (&self.params[param.index()], self.spell(*index).text);
                Spelled::primary(if is_nibble(dtype) {
                    format!("load_nibble<{}>({name}, {index})", spelling(dtype))
                } else {
                    format!("{name}[{index}]")
                })
            }
            Expr::Unary(op, a) => self.unary(*op, *a),
            Expr::Binary(op, a, b) => self.binary(*op, e, *a, *b),
            Expr::Select(c, a, b) => {
                let (c, a, b) = (self.spell(*c).at(Level::Or), self.branch(*a), self.branch(*b));
                Spelled {
                    text: format!("{c} ? {a} : {b}"),
                    level: Level::Conditional,
                }
            }
            Expr::Cast(to @ (DType::F16 | DType::BF16), a) if let Some((op, x)) = self.shortened(*a) => {
                Spelled::primary(format!(
                    "math::{}_as<{}>({})",
                    op.name(),
                    spelling(*to),
                    self.spell(x).text
                ))
            }
            Expr::Cast(to, a) => Spelled::primary(format!("cast<{}>({})", spelling(*to), self.spell(*a).text)),
            Expr::Philox { seed, counter, lane } => {
                Spelled::primary(format!("math::philox<{lane}>({seed}ul, {})", self.spell(*counter).text))
            }
        }
    }

    /// A function of f32 with a short form and what it is taken of, where nothing but the expression that is being
    /// spelled reads it.
    fn shortened(&self, e: ExprId) -> Option<(UnaryOp, ExprId)> {
        match self.kernel.exprs[e] {
            Expr::Unary(op, x) if has_short_form(op) && self.view.exprs[e.index()].is_none() => {
                (self.kernel.exprs.dtype(x) == DType::F32).then_some((op, x))
            }
            _ => None,
        }
    }

    fn branch(&self, e: ExprId) -> String {
        self.spell(e).at(Level::Or)
    }

    fn unary(&self, op: UnaryOp, a: ExprId) -> Spelled {
        let dtype = self.kernel.exprs.dtype(a);
        let t = self.type_of(a);
        let typed = |f: &str| Spelled::primary(format!("math::{f}<{t}>({})", self.spell(a).text));
        match (dtype, op.kind()) {
            (DType::Bool, UnaryKind::Bits) => Spelled {
                text: format!("!{}", self.spell(a).at(Level::Unary)),
                level: Level::Unary,
            },
            (DType::Bool, _) => self.spell(a),
            _ if !dtype.is_int() => self.unary_float(op, a),
            (_, UnaryKind::Number) => typed(match op {
                UnaryOp::Neg => "int_neg",
                UnaryOp::Abs => "int_abs",
                other => other.name(),
            }),
            (_, UnaryKind::Bits) => Spelled::primary(format!("{t}(~{})", self.spell(a).at(Level::Unary))),
            (_, UnaryKind::Rounding) => self.spell(a),
            (_, UnaryKind::Predicate) => Spelled::primary("false"),
            // What integers have not is done in double, and truncated to 64 bits, of which the type's stay.
            (_, UnaryKind::Function) => Spelled::primary(format!(
                "cast<{t}>(cast<i64>(math::{}(cast<double>({}))))",
                op.name(),
                self.spell(a).text
            )),
        }
    }

    /// Floats have a function of the op's name for all that C++ has no operator for.
    fn unary_float(&self, op: UnaryOp, a: ExprId) -> Spelled {
        if op == UnaryOp::Neg {
            let operand = self.spell(a).at(Level::Unary);
            // `- -x`, never the decrement.
            let gap = if operand.starts_with('-') { " " } else { "" };
            return Spelled {
                text: format!("-{gap}{operand}"),
                level: Level::Unary,
            };
        }
        if op == UnaryOp::Not {
            let t = self.type_of(a);
            return Spelled::primary(format!("{t}({} == 0)", self.spell(a).at(Level::Sum)));
        }
        Spelled::primary(format!("math::{}({})", op.name(), self.spell(a).text))
    }

    fn binary(&self, op: BinaryOp, e: ExprId, a: ExprId, b: ExprId) -> Spelled {
        let dtype = self.kernel.exprs.dtype(a);
        if dtype.is_int() && !op.is_comparison() {
            return self.binary_int(op, e, a, b);
        }
        let infix = |(symbol, level): (&str, Level)| {
            let (x, y) = (self.spell(a).at(level), self.spell(b).at(level.stronger()));
            Spelled {
                text: format!("{x} {symbol} {y}"),
                level,
            }
        };
        let logical = op.logical().map(|logical| match logical {
            Logical::And => ("&&", Level::And),
            Logical::Or => ("||", Level::Or),
            Logical::Xor => ("!=", Level::Equality),
        });
        let Spelling { operator, float, .. } = op.spelling();
        match (op.kind(), operator, float) {
            (BinaryKind::Comparison(_), Some(operator), _) => infix(operator),
            // Verified kernels have no others of bools.
            _ if dtype == DType::Bool => logical.map_or_else(|| Spelled::primary("false"), infix),
            (BinaryKind::Bits, ..) => {
                let zero = if dtype == DType::F64 { "0.0" } else { "0.0f" };
                let (x, y) = (self.spell(a).at(Level::Sum), self.spell(b).at(Level::Sum));
                let (joint, t) = (logical.map_or("!=", |(symbol, _)| symbol), spelling(dtype));
                Spelled::primary(format!("{t}(({x} != {zero}) {joint} ({y} != {zero}))"))
            }
            (_, Some(operator), None) => {
                let fused = (op == BinaryOp::Add).then(|| self.multiply_add(a, b)).flatten();
                fused.unwrap_or_else(|| infix(operator))
            }
            (_, _, float) => {
                let (f, x, y) = (float.unwrap_or(op.name()), self.spell(a).text, self.spell(b).text);
                Spelled::primary(format!("math::{f}({x}, {y})"))
            }
        }
    }

    /// A multiple of the variable that is fused, and what is added to it, unless the multiple has a name.
    fn multiply_add(&self, product: ExprId, addend: ExprId) -> Option<Spelled> {
        let sum = Expr::Var(self.fused?);
        match self.kernel.exprs[product] {
            Expr::Binary(BinaryOp::Mul, x, y)
                if self.view.exprs[product.index()].is_none() && self.kernel.exprs.occurs(x, |e| *e == sum) =>
            {
                let [x, y, z] = [x, y, addend].map(|e| self.spell(e).text);
                Some(Spelled::primary(format!("math::multiply_add({x}, {y}, {z})")))
            }
            _ => None,
        }
    }

    fn binary_int(&self, op: BinaryOp, e: ExprId, a: ExprId, b: ExprId) -> Spelled {
        let dtype = self.kernel.exprs.dtype(a);
        // Index arithmetic does not overflow: plain operators, which compilers know how to strength-reduce.
        let index = dtype == DType::I64;
        let both_int = self.facts.is_int[a.index()] && self.facts.is_int[b.index()];
        let result_int = self.facts.is_int[e.index()];
        let t = match (index, result_int) {
            (true, true) => "int",
            _ => spelling(dtype),
        };
        let infix = |(symbol, level): (&str, Level)| {
            let (mut x, y) = (self.spell(a).at(level), self.spell(b).at(level.stronger()));
            let constants = matches!(self.kernel.exprs[a], Expr::Const(..));
            if index && !result_int && (both_int || constants) {
                x = format!("i64({x})");
            }
            Spelled {
                text: format!("{x} {symbol} {y}"),
                level,
            }
        };
        let positive_divisor = || match &self.kernel.exprs[b] {
            Expr::Const(_, s) => s.as_i64() > 0,
            Expr::Size(d) => d.at_least(1, self.symbols),
            _ => false,
        };
        let nonnegative = || ir::kernel::access::is_nonnegative(self.kernel, self.symbols, a);
        if index && op == BinaryOp::Mod && positive_divisor() && nonnegative() {
            return infix(("%", Level::Product));
        }
        let exact = matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul) && self.facts.is_exact[e.index()];
        let plain = index && (exact || matches!(op, BinaryOp::Div | BinaryOp::Rem) && positive_divisor());
        let Spelling { operator, int, .. } = op.spelling();
        match (op.kind(), operator) {
            (kind, Some(operator)) if plain || kind == BinaryKind::Bits => infix(operator),
            // What integers have not is done in double, and truncated to 64 bits, of which the type's stay.
            (BinaryKind::Function, _) => {
                let (f, x, y) = (op.name(), self.spell(a).text, self.spell(b).text);
                Spelled::primary(format!(
                    "cast<{t}>(cast<i64>(math::{f}(cast<double>({x}), cast<double>({y}))))"
                ))
            }
            _ => {
                let (f, x, y) = (int.unwrap_or(op.name()), self.spell(a).text, self.spell(b).text);
                Spelled::primary(format!("math::{f}<{t}>({x}, {y})"))
            }
        }
    }
}

/// What some roots need.
struct Cone {
    /// Computed whenever the roots are.
    always: Vec<bool>,
    /// Needed, perhaps only in a branch; not named yet.
    reached: Vec<bool>,
    uses: Vec<u32>,
}
