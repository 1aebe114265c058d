//! The arguments of all launches of a run, laid out once: addresses are filled in for a context's memory, and again
//! only for ports whose tensors are elsewhere than in the run before.

use std::ffi::c_void;
use std::sync::Arc;

use smallvec::SmallVec;

use super::form::PortRef;
use super::handles::GraphExec;
use super::prepare::{Base, Prepared, Spot};

/// Sets of addresses whose graphs are kept: inputs and outputs that come and go alternate between a few.
const VARIANTS: usize = 8;

/// Where the tensors of the ports are that are on the device; 0 for the others.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Ports {
    pub inputs: SmallVec<[u64; 8]>,
    pub outputs: SmallVec<[u64; 8]>,
}

impl Ports {
    pub fn address(&self, port: PortRef) -> u64 {
        match port {
            PortRef::Input(index) => self.inputs[index as usize],
            PortRef::Output(index) => self.outputs[index as usize],
        }
    }
}

/// See the module.
pub(super) struct Bound {
    prepared: Arc<Prepared>,
    words: Vec<u64>,
    /// The address of each word. The words stay where they are.
    pointers: Vec<*mut c_void>,
    arena: u64,
    staging: u64,
    ports: Ports,
    /// Most recently used last.
    variants: Vec<Variant>,
    /// The graph of a set of addresses that was given up.
    spare: Option<GraphExec>,
}

// SAFETY: the pointers are into the value's own words, on the heap, and are used through `&mut` only.
unsafe impl Send for Bound {}

/// One set of addresses.
pub(super) struct Variant {
    ports: Ports,
    /// How often it ran.
    pub runs: u32,
    pub graph: Option<GraphExec>,
}

impl Bound {
    /// Lays the arguments out for a context's memory.
    pub fn new(prepared: Arc<Prepared>, arena: u64, staging: u64) -> Bound {
        let mut words = prepared.words.clone();
        for (word, base) in &prepared.bases {
            if *base == Base::Arena {
                words[*word as usize] += arena;
            }
        }
        let pointers = words.iter_mut().map(|word| (&raw mut *word).cast()).collect();
        Bound {
            prepared,
            words,
            pointers,
            arena,
            staging,
            ports: Ports::default(),
            variants: Vec::new(),
            spare: None,
        }
    }

    /// Whether it is for these steps.
    pub fn is_of(&self, prepared: &Arc<Prepared>) -> bool {
        Arc::ptr_eq(&self.prepared, prepared)
    }

    /// Fills in where the ports' tensors are, and counts the run.
    pub fn at(&mut self, ports: Ports) {
        if self.ports != ports {
            for (word, base) in &self.prepared.bases {
                if let Base::Port(port) = base {
                    let at = *word as usize;
                    self.words[at] = self.prepared.words[at] + ports.address(*port);
                }
            }
            self.ports = ports;
        }
        let variant = match self.variants.iter().position(|known| known.ports == self.ports) {
            Some(at) => self.variants.remove(at),
            None => {
                if self.variants.len() >= VARIANTS {
                    self.spare = self.variants.remove(0).graph.or(self.spare.take());
                }
                Variant {
                    ports: self.ports.clone(),
                    runs: 0,
                    graph: None,
                }
            }
        };
        self.variants.push(variant);
        if let Some(variant) = self.variants.last_mut() {
            variant.runs += 1;
        }
    }

    /// The set of addresses that [`Bound::at`] filled in last.
    pub fn variant(&mut self) -> Option<&mut Variant> {
        self.variants.last_mut()
    }

    /// A graph of a set of addresses that was given up, to be given these: making one anew takes longer. One whose
    /// addresses may come again is better kept.
    pub fn spare(&mut self) -> Option<GraphExec> {
        self.spare.take()
    }

    /// The addresses of a launch's arguments.
    pub fn arguments(&mut self, first: u32, count: u32) -> &mut [*mut c_void] {
        &mut self.pointers[first as usize..(first + count) as usize]
    }

    /// Where a buffer is in this run.
    pub fn address(&self, spot: Spot) -> u64 {
        match spot {
            Spot::Arena(offset) => self.arena + offset as u64,
            Spot::Address(address) | Spot::Pinned(address) => address,
            Spot::Staging(offset) => self.staging + offset as u64,
            Spot::Port(port) => self.ports.address(port),
        }
    }
}
