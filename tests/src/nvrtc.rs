//! The real NVRTC, as tests compile with it.

use graphc::driver;
use graphc::ir::target::Platform;
use graphc::options::Settings;
use graphc::runtime::cache::CachedCompiler;

use crate::graphc_binary;

/// NVRTC behind graphc's cache, in worker processes of the binary; or a printed word on what is skipped.
///
/// # Panics
/// When the environment's settings are none.
pub fn compiler() -> Option<CachedCompiler> {
    let binary = graphc_binary();
    if !binary.is_file() {
        println!("skipped: {} is not built", binary.display());
        return None;
    }
    let settings = Settings::from_env().expect("the environment's settings");
    let worker = [binary.into(), "__compile-worker".into()];
    match driver::compiler(&settings, Some(&worker), [Platform::Cuda]) {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}
