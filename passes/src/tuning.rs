//! What measuring has shown: which mapping a product takes, in place of the one that is predicted to be fastest.
//!
//! A row is a line that says what the product is ([`product`]) and the text of the mapping. The text must be that of a
//! candidate of today: a row of another version of graphc, whose candidates were others, says nothing. Same rows, same
//! plan.
//!
//! A product whose rows the model leaves open has a row for each range of them ([`product_in`]):
//! `[1, 64..128, 512, 768]` is what 64 to 127 rows take.

use std::collections::BTreeMap;
use std::fmt;

use ir::kernel::Mapping;
use ir::library::Algorithm;
use ir::{Kernel, Plan, Symbols, Target};

pub(crate) use crate::lower::mapping::window_text;
pub use crate::lower::mapping::{candidates, candidates_in, open_rows, product, product_in, sharings};

/// The rows, by product.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tuning {
    rows: BTreeMap<String, String>,
    /// Of products of which a library's call was measured too.
    engines: BTreeMap<String, Engine>,
}

/// What computes a product.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Engine {
    /// A generated one, with the mapping of the product's row.
    Kernel,
    /// A library's call of this name, by one of its algorithms or as the library chooses.
    Call { name: String, algorithm: Option<Algorithm> },
}

/// The first word of a row that names a call, and what stands before its algorithm.
const CALL: &str = "call ";
const ALGORITHM: &str = " algorithm ";

impl Engine {
    /// Reads what a row of measurements names: a mapping, or a call.
    pub fn of_row(text: &str) -> Engine {
        match text.strip_prefix(CALL) {
            None => Engine::Kernel,
            Some(call) => match call.split_once(ALGORITHM).map(|(name, text)| (name, text.parse())) {
                Some((name, Ok(algorithm))) => Engine::call(name, Some(algorithm)),
                // A row that is damaged names no call that there is.
                Some((_, Err(_))) | None => Engine::call(call, None),
            },
        }
    }

    /// Makes the engine of a call.
    pub fn call(name: &str, algorithm: Option<Algorithm>) -> Engine {
        Engine::Call {
            name: name.to_owned(),
            algorithm,
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Engine::Kernel => f.write_str("kernel"),
            Engine::Call { name, algorithm: None } => write!(f, "{CALL}{name}"),
            Engine::Call {
                name,
                algorithm: Some(algorithm),
            } => write!(f, "{CALL}{name}{ALGORITHM}{algorithm}"),
        }
    }
}

impl Tuning {
    /// The rows that graphc ships, one a line: the product, ` => `, the mapping. They were found by `graphc tune run`:
    /// `--emulate` for AMD's GPUs, on an H100 for `sm_90`.
    pub fn shipped() -> Tuning {
        SHIPPED.lines().filter_map(|line| line.split_once(" => ")).collect()
    }

    /// Returns the mapping of a product, as text.
    pub fn get(&self, product: &str) -> Option<&str> {
        self.rows.get(product).map(String::as_str)
    }

    /// Adds a row, in place of what was known of the product.
    pub fn insert(&mut self, product: impl Into<String>, mapping: impl Into<String>) {
        self.rows.insert(product.into(), mapping.into());
    }

    /// Adds rows, in place of what was known of their products.
    pub fn extend(&mut self, other: Tuning) {
        self.rows.extend(other.rows);
        self.engines.extend(other.engines);
    }

    /// Returns what computes a product, where a call was measured beside its kernels.
    pub fn engine(&self, product: &str) -> Option<&Engine> {
        self.engines.get(product)
    }

    /// Says what computes a product.
    pub fn decide(&mut self, product: impl Into<String>, engine: Engine) {
        self.engines.insert(product.into(), engine);
    }

    /// Whether any product's engine was measured.
    pub fn has_engines(&self) -> bool {
        !self.engines.is_empty()
    }

    /// Returns what computes each product of which a call was measured, in the order of their lines.
    pub fn engines(&self) -> impl Iterator<Item = (&str, &Engine)> {
        self.engines.iter().map(|(product, engine)| (product.as_str(), engine))
    }

    /// Returns the rows in the order of their products' lines.
    pub fn rows(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rows
            .iter()
            .map(|(product, mapping)| (product.as_str(), mapping.as_str()))
    }
}

impl<P: Into<String>, M: Into<String>> FromIterator<(P, M)> for Tuning {
    fn from_iter<T: IntoIterator<Item = (P, M)>>(rows: T) -> Tuning {
        Tuning {
            rows: rows.into_iter().map(|(p, m)| (p.into(), m.into())).collect(),
            engines: BTreeMap::new(),
        }
    }
}

const SHIPPED: &str = include_str!("tuning/shipped.txt");

/// A kernel whose mapping a row has chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tuned {
    /// The kernel's name.
    pub kernel: String,
    pub product: String,
    pub mapping: String,
    /// The mapping that the prediction would have chosen.
    pub predicted: String,
}

/// Gives the kernels of a plan the mappings of their rows.
pub(crate) fn apply(plan: &mut Plan, tuning: &Tuning) {
    if tuning.rows.is_empty() {
        return;
    }
    let (symbols, target) = (&plan.symbols, &plan.target);
    for kernel in plan.kernels.values_mut() {
        apply_to(kernel, symbols, target, tuning);
    }
}

/// Gives a kernel the mapping of its row, where it has one.
pub(crate) fn apply_to(kernel: &mut Kernel, symbols: &Symbols, target: &Target, tuning: &Tuning) {
    if let Some(mapping) = row(kernel, symbols, target, tuning) {
        kernel.mapping = mapping;
    }
}

/// Finds the candidate that a kernel's row names.
fn row(kernel: &Kernel, symbols: &Symbols, target: &Target, tuning: &Tuning) -> Option<Mapping> {
    let text = tuning.get(&product(kernel, symbols, target)?)?;
    candidates(kernel, symbols, target)
        .into_iter()
        .find(|m| m.to_string() == text)
}

/// Finds the mapping with shared tiles that a product's row names.
pub(crate) fn sharing(kernel: &Kernel, symbols: &Symbols, target: &Target, tuning: &Tuning) -> Option<Mapping> {
    let text = tuning.get(&product(kernel, symbols, target)?)?;
    sharings(kernel, symbols, target)
        .into_iter()
        .find(|m| m.to_string() == text)
}

/// Finds the mapping that a row gives a product with at least `from` rows and less than twice as many.
pub(crate) fn in_range(
    kernel: &Kernel,
    symbols: &Symbols,
    target: &Target,
    from: i64,
    tuning: &Tuning,
) -> Option<Mapping> {
    let text = tuning.get(&product_in(kernel, symbols, target, from)?)?;
    let mut all = candidates_in(kernel, symbols, target, from).into_iter();
    all.find(|m| m.to_string() == text)
}

/// Lists the kernels of a plan whose mapping a row has chosen, and what the prediction would have: first those that
/// have one at all sizes, then those of ranges of rows.
pub fn tuned(plan: &Plan, tuning: &Tuning) -> Vec<Tuned> {
    let (symbols, target) = (&plan.symbols, &plan.target);
    let row = |kernel: &Kernel, product: String, all: Vec<Mapping>| {
        let mapping = kernel.mapping.to_string();
        let predicted = all.first()?.to_string();
        (tuning.get(&product)? == mapping).then(|| Tuned {
            kernel: kernel.name.clone(),
            product,
            mapping,
            predicted,
        })
    };
    let whole = plan.kernels.values().filter_map(|kernel| {
        let product = product(kernel, symbols, target)?;
        tuning.get(&product)?;
        row(kernel, product, candidates(kernel, symbols, target))
    });
    let mut found: Vec<Tuned> = whole.collect();
    for step in plan.steps.values() {
        let kernels: Vec<&Kernel> = step.kernels().map(|id| &plan.kernels[id]).collect();
        let Some((_, firsts)) = kernels.first().and_then(|kernel| open_rows(kernel, symbols, target)) else {
            continue;
        };
        for from in firsts {
            let Some(kernel) = step.in_range(from).kernel().map(|id| &plan.kernels[id]) else {
                continue;
            };
            let of_range = product_in(kernel, symbols, target, from)
                .filter(|line| tuning.get(line).is_some())
                .and_then(|line| row(kernel, line, candidates_in(kernel, symbols, target, from)));
            found.extend(of_range.filter(|tuned| !found.contains(tuned)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OptimizeOptions, PlanOptions, ScheduleOptions, testing};

    fn planned(tuning: Tuning) -> Plan {
        let body = "x = input \"x\" : f16[128, 768]\n w = input \"w\" : f16[768, 512]\n y = contract x, w\n z = relu y\n return z as \"z\"";
        plan_of(body, "gfx90a", tuning)
    }

    fn plan_of(body: &str, target: &str, tuning: Tuning) -> Plan {
        let target: Target = target.parse().expect("known");
        let options = OptimizeOptions {
            libraries: false,
            ..OptimizeOptions::default()
        };
        let (graph, _) = crate::optimize(testing::graph(body), &target, &options).expect("optimises");
        let (schedule, _) = crate::schedule(&graph, &target, &ScheduleOptions::default()).expect("schedules");
        let options = PlanOptions {
            tuning,
            ..PlanOptions::default()
        };
        crate::plan(&graph, &schedule, &target, &options).expect("plans")
    }

    fn kernel(plan: &Plan) -> &Kernel {
        plan.kernels.values().next().expect("a kernel")
    }

    #[test]
    fn a_row_takes_the_place_of_the_prediction() {
        let plan = planned(Tuning::default());
        let product = product(kernel(&plan), &plan.symbols, &plan.target).expect("a product");
        let all = candidates(kernel(&plan), &plan.symbols, &plan.target);
        assert!(all.len() > 20, "{}", all.len());
        assert_eq!(kernel(&plan).mapping, all[0]);
        for mapping in [&all[7], &all[all.len() - 1]] {
            let tuning: Tuning = [(product.clone(), mapping.to_string())].into_iter().collect();
            let other = planned(tuning.clone());
            assert_eq!(kernel(&other).mapping, *mapping);
            let [row] = tuned(&other, &tuning).try_into().expect("one kernel");
            assert_eq!((row.mapping, row.predicted), (mapping.to_string(), all[0].to_string()));
        }
        // A row of another version, whose candidates were others.
        let stale: Tuning = [(product.as_str(), "matrix(of another version)")].into_iter().collect();
        assert_eq!(planned(stale.clone()), plan);
        assert_eq!(tuned(&plan, &stale), []);
    }

    #[test]
    fn an_engine_is_read_as_it_is_printed() {
        let algorithm: Algorithm = "2a00 of hipBLASLt 1 on HIP 7".parse().expect("an algorithm");
        for engine in [
            Engine::Kernel,
            Engine::call("rocblas_gemm", None),
            Engine::call("hipblaslt_matmul", Some(algorithm)),
        ] {
            assert_eq!(Engine::of_row(&engine.to_string()), engine);
        }
        let damaged = Engine::of_row("call hipblaslt_matmul algorithm 2a0");
        assert_eq!(damaged, Engine::call("hipblaslt_matmul algorithm 2a0", None));
    }

    /// What tells products apart that one mapping may not serve.
    #[test]
    fn a_product_says_what_the_choice_depends_on() {
        let plan = planned(Tuning::default());
        let text = product(kernel(&plan), &plan.symbols, &plan.target).expect("a product");
        assert_eq!(
            text,
            "gfx90a product f16 x f16 -> f32 [1, 128, 512, 768] lhs by 8 along k rhs by 8 along rows store 8 then f16 relu"
        );
    }

    /// A row whose mapping is no candidate any more says nothing: such rows are to be made again.
    #[test]
    fn shipped_rows_name_candidates_of_today() {
        let shipped = Tuning::shipped();
        assert_eq!(
            shipped.rows().count(),
            SHIPPED.lines().count(),
            "a product has two rows"
        );
        for (product, mapping) in shipped.rows() {
            // Weights of four bits, with a scale and a zero point for each 128.
            const PACKED: &str = " of 4.16 bits";
            let plain = product.replace(PACKED, "");
            let words: Vec<&str> = plain.split([' ', '[', ']', ',']).filter(|w| !w.is_empty()).collect();
            // `gfx90a product f16 x f16 -> f32 [1, 128, 768, 768] …`: one product of two matrices, row by row.
            let [target, "product", lhs, "x", rhs, "->", _, "1", m, n, k, ..] = words[..] else {
                panic!("{product}: the test makes no such product")
            };
            let rows = format!("x = input \"x\" : {lhs}[{m}, {k}]\n");
            let groups = k.parse::<usize>().expect("a number") / 128;
            let body = match product.contains(PACKED) {
                false => format!("{rows} w = input \"w\" : {rhs}[{k}, {n}]\n y = contract x, w\n return y as \"y\""),
                true => format!(
                    "{rows} w = input \"w\" : u4[{n}, {k}]\n s = input \"s\" : {rhs}[{n}, {groups}]\n \
                     z = input \"z\" : u4[{n}, {groups}]\n q = dequantize w, s, z {{axis=1, group=128, out={rhs}}}\n \
                     y = contract x, q {{transpose_rhs}}\n return y as \"y\""
                ),
            };
            let plan = plan_of(&body, target, shipped.clone());
            let found = tuned(&plan, &shipped);
            let of_row = |row: &&Tuned| row.product == product && row.mapping == mapping;
            // What follows a product changes no mapping that it can have.
            let follows = product.contains(" then ") && !product.ends_with(&format!(" then {lhs}"));
            let is_candidate =
                || (candidates(kernel(&plan), &plan.symbols, &plan.target).iter()).any(|m| m.to_string() == mapping);
            assert!(
                found.iter().any(|row| of_row(&row)) || follows && is_candidate(),
                "{product} => {mapping}: {found:?}"
            );
        }
    }
}
