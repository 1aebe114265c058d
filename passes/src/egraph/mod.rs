pub use crate::dce::PASS;
pub use crate::dce::PASS as PASS_LONG;
