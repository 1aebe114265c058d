#!/bin/bash
# Makes capi/include/graphc.h of the sources of capi/ by cbindgen (`cargo install cbindgen`).
#
# usage: scripts/header.sh [FILE]      FILE instead of the header, to compare
set -euo pipefail
cd "$(dirname "$0")/../capi"
out=${1:-include/graphc.h}
# Sections on safety are for Rust's callers.
cbindgen --quiet --config cbindgen.toml --lockfile ../Cargo.lock --crate graphc-capi |
  awk '
    /^\/\/ # Safety$/ { skip = 1; held = 0; next }
    skip && /^\/\//   { next }
    { skip = 0 }
    /^\/\/$/          { held = 1; next }
    held              { print "//"; held = 0 }
    { print }' > "$out.new"
mv "$out.new" "$out"
