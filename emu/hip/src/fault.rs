//! Faults on request: which call of a kind is to fail; and how often each function was called.

use crate::config::{FaultKind, FaultRequest};
use hip_sys::hipError_t;
use std::collections::BTreeMap;

/// Counts the calls of each kind.
#[derive(Default)]
pub struct Faults {
    requests: Vec<FaultRequest>,
    counts: Vec<u64>,
    /// How often each function was called.
    pub calls: BTreeMap<&'static str, u64>,
}

/// What a call gives that is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: hipError_t,
    /// Whether it is the device that failed.
    pub breaks: bool,
}

impl Faults {
    pub fn new(requests: Vec<FaultRequest>) -> Faults {
        Faults {
            counts: vec![0; requests.len()],
            requests,
            calls: BTreeMap::new(),
        }
    }

    /// Counts one more of a kind and says whether it is to fail.
    pub fn hit(&mut self, kind: &FaultKind) -> bool {
        self.failure(|wanted| wanted == kind).is_some()
    }

    /// Counts one more call of a function, and says how it is to fail.
    pub fn call(&mut self, name: &'static str) -> Option<Failure> {
        *self.calls.entry(name).or_default() += 1;
        // What failed to be freed could not be told from what was forgotten: such calls fail by their name only.
        let ends = ["Free", "Destroy", "Unload"].iter().any(|part| name.contains(part));
        self.failure(|wanted| match wanted {
            FaultKind::Function(wanted) => wanted == name,
            FaultKind::Call => !ends,
            _ => false,
        })
    }

    fn failure(&mut self, of: impl Fn(&FaultKind) -> bool) -> Option<Failure> {
        let mut failure = None;
        for (request, count) in self.requests.iter().zip(&mut self.counts) {
            if !of(&request.kind) {
                continue;
            }
            *count += 1;
            let fails = *count == request.at
                || request.onwards && *count > request.at
                || request.multiples && count.is_multiple_of(request.at);
            if fails {
                failure = Some(Failure {
                    code: request.code.unwrap_or(hipError_t::hipErrorUnknown),
                    breaks: request.breaks,
                });
            }
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_fails_and_with_plus_every_later_one() {
        let request = |kind, at, onwards| FaultRequest {
            kind,
            at,
            onwards,
            multiples: false,
            code: None,
            breaks: false,
        };
        let mut faults = Faults::new(vec![
            request(FaultKind::Malloc, 2, false),
            request(FaultKind::Launch, 2, true),
        ]);
        let mallocs: Vec<bool> = (0..4).map(|_| faults.hit(&FaultKind::Malloc)).collect();
        let launches: Vec<bool> = (0..4).map(|_| faults.hit(&FaultKind::Launch)).collect();
        assert_eq!(mallocs, [false, true, false, false]);
        assert_eq!(launches, [false, true, true, true]);
        assert!(!faults.hit(&FaultKind::Copy));
        let every = FaultRequest {
            multiples: true,
            ..request(FaultKind::Call, 2, false)
        };
        let mut faults = Faults::new(vec![every]);
        let calls: Vec<bool> = (0..5).map(|_| faults.call("hipMalloc").is_some()).collect();
        assert_eq!(calls, [false, true, false, true, false]);
        assert!(faults.call("hipFree").is_none(), "what frees fails by its name only");
        let by_name = FaultRequest {
            code: Some(hipError_t::hipErrorOutOfMemory),
            breaks: true,
            ..request(FaultKind::Function("hipFree".into()), 2, false)
        };
        let mut faults = Faults::new(vec![by_name]);
        let failures = ["hipFree", "hipMalloc", "hipFree", "hipFree"].map(|name| faults.call(name));
        let failure = Failure {
            code: hipError_t::hipErrorOutOfMemory,
            breaks: true,
        };
        assert_eq!(failures, [None, None, Some(failure), None]);
        assert_eq!(faults.calls, BTreeMap::from([("hipFree", 3), ("hipMalloc", 1)]));
    }
}
