//! A compiler with a cache in front: the one that the driver uses.

use std::sync::Arc;

use ir::target::Platform;

use super::{Cache, CacheKey};
use crate::compile::{CompileError, CompileRequest, CompiledObject, Compiler, Listing};

/// Answers from the cache where it can, and keeps what it compiles. Errors are not kept.
pub struct CachedCompiler {
    inner: Box<dyn Compiler>,
    cache: Arc<Cache>,
}

impl CachedCompiler {
    /// Puts `cache` in front of `inner`.
    pub fn new(inner: Box<dyn Compiler>, cache: Arc<Cache>) -> CachedCompiler {
        CachedCompiler { inner, cache }
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }
}

impl Compiler for CachedCompiler {
    fn identity(&self, platform: Platform) -> Result<String, CompileError> {
        self.inner.identity(platform)
    }

    fn parallelism(&self) -> usize {
        self.inner.parallelism()
    }

    fn compile(&self, request: &CompileRequest) -> Result<CompiledObject, CompileError> {
        let key = CacheKey::new(request, &self.inner.identity(request.platform())?);
        self.cache.get_or(key, || self.inner.compile(request))
    }

    fn disassemble(&self, code: &[u8]) -> Result<Vec<Listing>, CompileError> {
        self.inner.disassemble(code)
    }

    fn assembly(&self, request: &CompileRequest) -> Result<String, CompileError> {
        self.inner.assembly(request)
    }
}
