//! Exit codes that several kinds of errors share.

/// Returns the exit code of sizes that do not work out: they come from what the user gave (2), but one that nothing
/// binds comes from us (1).
pub(crate) fn of_size(error: &ir::dim::DimError) -> u8 {
    match error {
        ir::dim::DimError::Overflow(_) | ir::dim::DimError::DivideByZero(_) => 2,
        ir::dim::DimError::Unbound(_) => 1,
    }
}
