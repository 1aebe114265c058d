//! Plans by hand that hold their invariants, and that break one.

use indexmap::IndexMap;

use super::super::*;
use super::*;
use crate::data::HostTensor;
use crate::dim::{Dim, Symbol, SymbolInfo};
use crate::kernel::eval::tests::row_kernel;
use crate::types::DType;

/// `x → b1 → y`, each step a kernel that subtracts the row's sum.
fn plan(second_lane: usize, waits: Vec<StepId>) -> Plan {
    let ty = || TensorType::new(DType::F32, vec![Dim::Const(2), Dim::symbol("n")]);
    let buffer = |name: &str, place| Buffer {
        name: name.into(),
        ty: ty(),
        place,
    };
    let step = |lane, waits, args: [usize; 2]| {
        let work = Work::launch(KernelId::new(0), args.map(BufferId::new).to_vec());
        Step::new(LaneId::new(lane), waits, work, Dim::Const(0))
    };
    let port = |name: &str, b| Port {
        name: name.into(),
        ty: ty(),
        buffer: BufferId::new(b),
    };
    let lane = || Lane {
        kind: LaneKind::Compute,
    };
    let arena = Place::Arena {
        first: StepId::new(0),
        last: StepId::new(1),
        in_place_of: None,
    };
    Plan {
        target: Target::cpu(),
        symbols: [(Symbol::new("n"), SymbolInfo::default())].into_iter().collect(),
        kernels: [row_kernel()].into_iter().collect(),
        buffers: [
            buffer("x", Place::Input),
            buffer("t", arena),
            buffer("y", Place::Output),
        ]
        .into_iter()
        .collect(),
        steps: [step(0, vec![], [0, 1]), step(second_lane, waits, [1, 2])]
            .into_iter()
            .collect(),
        lanes: [lane(), lane()].into_iter().collect(),
        inputs: vec![port("x", 0)],
        outputs: vec![port("y", 2)],
        flops: Dim::Const(0),
        checks: Vec::new(),
        streaming: None,
        share: None,
        states: Vec::new(),
        requirements: Vec::new(),
        overlap: Overlap::default(),
    }
}

#[test]
fn a_good_plan_verifies_and_runs() {
    let p = plan(0, vec![]);
    verify(&p).unwrap();
    assert!(p.to_string().contains("s1 l0 launch k0 k(b1, b2)"), "{p}");
    let x = HostTensor::from_f32(vec![2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    let out = eval::evaluate(&p, &Table::new(), &IndexMap::from([("x".to_owned(), x)])).unwrap();
    // Row [1, 2] → [-2, -1] → [1, 2].
    assert_eq!(out["y"].to_f32(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn lanes_must_wait_for_what_they_read() {
    let errors = verify(&plan(1, vec![])).unwrap_err().errors;
    assert!(matches!(errors.as_slice(), [PlanError::Unordered { .. }]), "{errors:?}");
    verify(&plan(1, vec![StepId::new(0)])).unwrap();
    let errors = verify(&plan(1, vec![StepId::new(1)])).unwrap_err().errors;
    assert!(matches!(errors[0], PlanError::Wait { .. }), "{errors:?}");
}

#[test]
fn lifetimes_and_reads_are_checked() {
    let mut p = plan(0, vec![]);
    p.buffers[BufferId::new(1)].place = Place::Arena {
        first: StepId::new(1),
        last: StepId::new(1),
        in_place_of: Some(BufferId::new(0)),
    };
    let errors = verify(&p).unwrap_err().errors;
    assert!(
        errors.iter().any(|e| matches!(e, PlanError::Lifetime { .. })),
        "{errors:?}"
    );
    assert!(
        errors.iter().any(|e| matches!(e, PlanError::InPlace { .. })),
        "{errors:?}"
    );
    let mut p = plan(0, vec![]);
    p.steps[StepId::new(0)].work = Work::Copy {
        from: BufferId::new(1),
        to: BufferId::new(0),
    };
    let errors = verify(&p).unwrap_err().errors;
    assert!(
        errors.iter().any(|e| matches!(e, PlanError::Unwritten { .. })),
        "{errors:?}"
    );
    assert!(
        errors.iter().any(|e| matches!(e, PlanError::ReadOnly { .. })),
        "{errors:?}"
    );
}
