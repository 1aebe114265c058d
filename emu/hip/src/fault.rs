//! Faults on request: which call of a kind is to fail.

use crate::config::{FaultKind, FaultRequest};

/// Counts the calls of each kind.
#[derive(Default)]
pub struct Faults {
    requests: Vec<FaultRequest>,
    counts: Vec<u64>,
}

impl Faults {
    pub fn new(requests: Vec<FaultRequest>) -> Faults {
        Faults {
            counts: vec![0; requests.len()],
            requests,
        }
    }

    /// Counts one more of a kind and says whether it is to fail.
    pub fn hit(&mut self, kind: FaultKind) -> bool {
        let mut fails = false;
        for (request, count) in self.requests.iter().zip(&mut self.counts) {
            if request.kind == kind {
                *count += 1;
                fails |= *count == request.at || request.onwards && *count > request.at;
                fails |= request.multiples && count.is_multiple_of(request.at);
            }
        }
        fails
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
        };
        let mut faults = Faults::new(vec![
            request(FaultKind::Malloc, 2, false),
            request(FaultKind::Launch, 2, true),
        ]);
        let mallocs: Vec<bool> = (0..4).map(|_| faults.hit(FaultKind::Malloc)).collect();
        let launches: Vec<bool> = (0..4).map(|_| faults.hit(FaultKind::Launch)).collect();
        assert_eq!(mallocs, [false, true, false, false]);
        assert_eq!(launches, [false, true, true, true]);
        assert!(!faults.hit(FaultKind::Copy));
        let every = FaultRequest {
            multiples: true,
            ..request(FaultKind::Call, 2, false)
        };
        let mut faults = Faults::new(vec![every]);
        let calls: Vec<bool> = (0..5).map(|_| faults.hit(FaultKind::Call)).collect();
        assert_eq!(calls, [false, true, false, true, false]);
    }
}
