#!/bin/bash
# Fuzzes everything that graphc reads: artifacts, plans and kernels with checksums recomputed, cache entries, .gir, npz, npy,
# safetensors and ONNX. The tests run a bounded part of the same cases.
#
# usage: scripts/fuzz.sh [CASES [TARGET...]]     10,000,000 cases, spread over all targets, by default
#
# Built fast, with debug assertions and overflow checks; buffers end at a page that nobody may access.
#   SEED=n     other cases (1)
#   JOBS=n     processes at once (as many as there are cores)
#   ASAN=1     with AddressSanitizer, whose runtime stable Rust ships; everything is built anew, in target/asan
#   BUILD=1    builds only, and prints the program's path; it needs nothing of this folder and runs elsewhere, too
# Prints a line for each failure, with the arguments that make the case again, and the counts of each target.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -d "$HOME/.cargo/bin" ] && PATH="$HOME/.cargo/bin:$PATH"

cases=${1:-10000000}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(kernel plan artifact cache gir npz npy safetensors onnx)
each=$(((cases + ${#targets[@]} - 1) / ${#targets[@]}))

options=(--package graphc-fuzz --profile fuzz)
program=${CARGO_TARGET_DIR:-target}/fuzz/graphc-fuzz
if [ -n "${ASAN:-}" ]; then
  host=$(rustc -vV | sed -n 's/^host: //p')
  # Naming the host keeps the sanitizer out of build scripts and procedural macros.
  export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR=target/asan
  options+=(--target "$host")
  program=target/asan/$host/fuzz/graphc-fuzz
fi
cargo build --quiet "${options[@]}"
[ -z "${BUILD:-}" ] || { echo "$program"; exit; }
if [ -n "${ASAN:-}" ] && "$program" planted --runs 1 >/dev/null 2>&1; then
  echo "fuzz.sh: AddressSanitizer does not see a planted read behind a vector" >&2
  exit 1
fi
exec "$program" --seed "${SEED:-1}" ${JOBS:+--jobs "$JOBS"} --runs "$each" "${targets[@]}"
