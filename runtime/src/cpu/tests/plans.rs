//! Whole plans (below).
