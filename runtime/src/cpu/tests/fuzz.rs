//! Random trees (below).
