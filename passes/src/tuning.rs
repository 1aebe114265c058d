//! What measuring has shown: which mapping a product takes, in place of the one that is predicted to be fastest.
//!
//! A row is a line that says what the product is ([`product`]) and the text of the mapping. The text must be that of a candidate of
//! today: a row of another version of graphc, whose candidates were others, says nothing. Same rows, same plan.

use std::collections::BTreeMap;

use ir::plan::KernelId;
use ir::{Kernel, Plan, Symbols, Target};

pub use crate::lower::mapping::{candidates, product};

/// The rows, by product.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tuning {
    rows: BTreeMap<String, String>,
}

impl Tuning {
    /// The rows that graphc ships, one a line: the product, ` => `, the mapping. They were found by `graphc tune --emulate`.
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
        }
    }
}

const SHIPPED: &str = include_str!("tuning/shipped.txt");

/// A kernel whose mapping a row has chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tuned {
    pub kernel: KernelId,
    pub product: String,
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
        if let Some(mapping) = row(kernel, symbols, target, tuning) {
            kernel.mapping = mapping;
        }
    }
}

/// Finds the candidate that a kernel's row names.
fn row(kernel: &Kernel, symbols: &Symbols, target: &Target, tuning: &Tuning) -> Option<ir::kernel::Mapping> {
    let text = tuning.get(&product(kernel, symbols, target)?)?;
    candidates(kernel, symbols, target)
        .into_iter()
        .find(|m| m.to_string() == text)
}

/// Lists the kernels of a plan whose mapping a row has chosen, and what the prediction would have.
pub fn tuned(plan: &Plan, tuning: &Tuning) -> Vec<Tuned> {
    let of_kernel = |(id, kernel): (KernelId, &Kernel)| {
        let product = product(kernel, &plan.symbols, &plan.target)?;
        let chosen = tuning.get(&product)? == kernel.mapping.to_string();
        let predicted = candidates(kernel, &plan.symbols, &plan.target).first()?.to_string();
        chosen.then_some(Tuned {
            kernel: id,
            product,
            predicted,
        })
    };
    plan.kernels.iter().filter_map(of_kernel).collect()
}
