//! Weights for which there is no memory are an error that names their bytes, before any of them is read.

use crate::cpu::kernels::Isa;
use crate::cpu::kernels::conv::PackedConv;
use crate::cpu::kernels::dots::Dots;
use crate::cpu::kernels::gemm::{Integers, MatRef, PackedB, QuantisedB};
use crate::cpu::kernels::integers::PackedIntegers;
use crate::cpu::kernels::workspace::NoRoom;
use crate::error::RuntimeError;

/// More rows than any machine has bytes.
const DEPTH: usize = 1 << 44;

#[test]
fn packed_weights_beyond_all_memory_are_refused() {
    let isa = Isa::detect();
    // SAFETY: nothing of the operand is read where there is no memory for it.
    let floats = unsafe { PackedB::new(isa, 1, DEPTH, 64, &MatRef::dense(&[], 64)) };
    assert_eq!(floats.unwrap_err(), NoRoom(DEPTH * 64 * 4));
    let integers = Integers {
        bytes: &[],
        bits: 8,
        signed: true,
        float: None,
        base: 0,
        row: 64,
        col: 1,
    };
    let quantised = QuantisedB::new(None, isa, [DEPTH, 64, DEPTH], &integers, |_, _| (1.0, 0.0));
    assert_eq!(quantised.unwrap_err(), NoRoom(DEPTH * 64));
    let NoRoom(asked) = PackedIntegers::new(Dots::of(isa), DEPTH, 64, |_, _| 1).unwrap_err();
    assert!(asked >= DEPTH * 64, "{asked}");
    match RuntimeError::from(NoRoom(asked)) {
        RuntimeError::NoMemory { asked: said, .. } => assert_eq!(said, asked),
        other => panic!("{other}"),
    }
    // There is room for these.
    assert!(PackedConv::new(isa, &[1.0; 36], 4, 1, [3, 3], 4).is_ok());
}
