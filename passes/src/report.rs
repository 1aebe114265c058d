//! What [`optimize`](crate::optimize) did: for `graphc explain` and for tests.

use ir::Origin;

/// One application of a rule.
#[derive(Clone, PartialEq, Debug)]
pub struct Fired {
    /// The pass that the rule belongs to.
    pub pass: &'static str,
    pub rule: &'static str,
    /// Where the nodes that matched came from, the one that was replaced first.
    pub origins: Vec<Origin>,
    /// Estimated microseconds before and after, where a cost decided.
    pub cost: Option<(f64, f64)>,
    /// Why, where there is more to say than the rule's name.
    pub note: Option<String>,
    /// Why the two are equal, step by step, where the e-graph chose; empty for directional rules, which are one step.
    pub proof: Vec<ProofStep>,
}

impl Fired {
    /// Says whether this is an application of the rule, or one whose proof needs it.
    pub fn used(&self, rule: &str) -> bool {
        self.rule == rule || self.proof.iter().any(|step| step.rule == rule)
    }
}

/// One step of a proof that two terms are equal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProofStep {
    pub rule: &'static str,
    /// Whether the rule was read from its left side to its right.
    pub forward: bool,
    pub from: String,
    pub to: String,
}

/// One run of a pass.
#[derive(Clone, PartialEq, Debug)]
pub struct PassRun {
    pub pass: &'static str,
    pub seconds: f64,
    pub changed: bool,
    /// Nodes that the pass left.
    pub nodes: usize,
}

/// What happened, in order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct OptimizeReport {
    pub passes: Vec<PassRun>,
    pub fired: Vec<Fired>,
}

impl OptimizeReport {
    /// Puts what earlier passes did before what these did.
    pub fn follow(&mut self, before: &OptimizeReport) {
        self.passes.splice(0..0, before.passes.iter().cloned());
        self.fired.splice(0..0, before.fired.iter().cloned());
    }

    /// Returns how often a rule fired, alone or as a step of a proof.
    pub fn count(&self, rule: &str) -> usize {
        self.fired.iter().filter(|f| f.used(rule)).count()
    }

    /// Returns the time of all passes, in seconds.
    pub fn seconds(&self) -> f64 {
        self.passes.iter().map(|p| p.seconds).sum()
    }
}
