//! Capture of streams into graphs, and graphs that are ready to launch.

use crate::queue::Action;
use crate::state::Runtime;
use crate::status::Status;
use hip_sys::hipError_t;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Work of a graph and the nodes before it; their indices are smaller than its own.
#[derive(Clone)]
pub struct GraphNode {
    pub action: Action,
    pub after: Vec<usize>,
    pub handle: u64,
}

/// A capture that goes on.
pub struct Capture {
    pub origin: u64,
    pub nodes: Vec<GraphNode>,
    /// For each stream in the capture, the nodes that its next one comes after.
    pub frontier: BTreeMap<u64, BTreeSet<usize>>,
    /// Whether calls that may wait are allowed meanwhile (the relaxed mode).
    pub relaxed: bool,
    pub invalid: bool,
}

/// A captured graph.
pub struct Graph {
    pub nodes: Arc<Vec<GraphNode>>,
}

/// A graph ready to launch.
pub struct Exec {
    pub device: usize,
    pub nodes: Arc<Vec<GraphNode>>,
}

impl Capture {
    /// Whether every node comes before the origin's next one.
    pub fn joined(&self) -> bool {
        let mut reached: BTreeSet<usize> = self.frontier.get(&self.origin).cloned().unwrap_or_default();
        let mut stack: Vec<usize> = reached.iter().copied().collect();
        while let Some(node) = stack.pop() {
            for before in &self.nodes[node].after {
                if reached.insert(*before) {
                    stack.push(*before);
                }
            }
        }
        reached.len() == self.nodes.len()
    }
}

impl Runtime {
    /// Takes work of a capturing stream into the capture.
    pub fn capture_node(&mut self, capture: u64, stream: u64, action: Action) -> Status {
        let handle = self.handle(crate::state::Handle::GraphNode);
        let capture = self
            .captures
            .get_mut(&capture)
            .ok_or(hipError_t::hipErrorIllegalState)?;
        if capture.invalid {
            return Err(hipError_t::hipErrorStreamCaptureInvalidated);
        }
        let frontier = capture.frontier.entry(stream).or_default();
        let after = frontier.iter().copied().collect();
        frontier.clear();
        frontier.insert(capture.nodes.len());
        capture.nodes.push(GraphNode { action, after, handle });
        Ok(())
    }

    /// Refuses a call that may wait while a stream is captured; the capture is spoilt by it.
    pub fn no_capture(&mut self) -> Status {
        let mut spoilt = false;
        for capture in self.captures.values_mut().filter(|capture| !capture.relaxed) {
            capture.invalid = true;
            spoilt = true;
        }
        if spoilt {
            Err(hipError_t::hipErrorStreamCaptureUnsupported)
        } else {
            Ok(())
        }
    }

    /// Refuses a call that waits for a stream that is captured.
    pub fn not_capturing(&mut self, stream: u64) -> Status {
        let Some(capture) = self.stream(stream)?.capture else {
            return Ok(());
        };
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.invalid = true;
        }
        Err(hipError_t::hipErrorStreamCaptureUnsupported)
    }
}
