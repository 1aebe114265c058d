//! Good kernels, and every kind of error.

use super::*;
use crate::kernel::eval::tests::row_kernel;
use crate::kernel::print::print;
use crate::types::Scalar;

#[test]
fn a_good_kernel_verifies_and_reads_well() {
    let kernel = row_kernel();
    verify(&kernel).unwrap();
    assert_eq!(
        print(&kernel),
        "kernel k(x: f32[2*n] read, y: f32[2*n] write) sizes(n) host {\n  for row in 0..2 {\n    v0 = sum over col in \
         0..n of x[row * n + col]\n    store y[row * n + col] = x[row * n + col] - v0  for col in 0..n\n  }\n}\n"
    );
}

#[test]
fn errors_are_collected() {
    let mut kernel = row_kernel();
    kernel.symbols.clear();
    kernel.params[ParamId::new(1)].access = Access::Read;
    let Body::Loops(l) = &mut kernel.body else {
        unreachable!("rows are loops")
    };
    // The fold goes: its variable is unassigned, and the store's own axis stays fine.
    l.stmts.remove(0);
    let errors = verify(&kernel).unwrap_err().errors;
    assert!(
        errors.iter().any(|e| matches!(e, KernelError::Symbol { .. })),
        "{errors:?}"
    );
    assert!(
        errors.iter().any(|e| matches!(e, KernelError::Access { .. })),
        "{errors:?}"
    );
    assert!(
        errors.iter().any(|e| matches!(e, KernelError::Unassigned { .. })),
        "{errors:?}"
    );
}

#[test]
fn all_that_is_written_is_stored() {
    let mut kernel = row_kernel();
    let mut other = kernel.params[ParamId::new(1)].clone();
    other.name = "z".to_owned();
    kernel.params.push(other);
    let errors = verify(&kernel).unwrap_err().errors;
    assert!(
        matches!(&errors[..], [KernelError::NotStored { param }] if param == "z"),
        "{errors:?}"
    );
}

#[test]
fn narrow_arithmetic_and_dangling_ids_are_refused() {
    let mut kernel = row_kernel();
    let half = kernel
        .exprs
        .add(Expr::Const(DType::F16, Scalar::Float(1.0)), DType::F16);
    let op = crate::graph::op::BinaryOp::Add;
    kernel.exprs.add(Expr::Binary(op, half, half), DType::F16);
    let errors = verify(&kernel).unwrap_err().errors;
    assert!(
        matches!(errors.as_slice(), [KernelError::Narrow { dtype: DType::F16, .. }]),
        "{errors:?}"
    );
    kernel.exprs.add(Expr::Var(VarId::new(77)), DType::F32);
    let errors = verify(&kernel).unwrap_err().errors;
    assert!(matches!(errors.as_slice(), [KernelError::Unknown { .. }]), "{errors:?}");
}
