#!/bin/bash
# Writes docs/src/reference.md: the flags as the built binaries print them, the variables as graphc/src/options.rs has
# them, the options of sessions as graphc/src/session/named.rs has them, and the operators of frontend/src/onnx/ops.
#
# usage: scripts/reference.sh [--check] [FOLDER]
#
# FOLDER has the binaries `graphc` and `graphc-llm`; by default cargo's debug folder, then its release folder.
# --check writes nothing, and fails where the page is not what would be written.
set -euo pipefail
cd "$(dirname "$0")/.."
check=0
[ "${1:-}" = --check ] && { check=1; shift; }
built=${CARGO_TARGET_DIR:-target}
folder=${1:-}
for place in "$built/debug" "$built/release"; do
  [ -z "$folder" ] && [ -x "$place/graphc" ] && [ -x "$place/graphc-llm" ] && folder=$place
done
[ -n "$folder" ] || { echo "reference.sh: build graphc first: cargo build -p graphc-cli -p graphc-llm" >&2; exit 2; }
page=docs/src/reference.md
made=$(mktemp)
trap 'rm -f "$made"' EXIT
sources=(graphc/src/options.rs graphc/src/session/named.rs frontend/src/onnx/ops)
python3 scripts/py/reference.py "$folder" "${sources[@]}" >"$made"
if [ "$check" = 1 ]; then
  diff -u "$page" "$made" || { echo "reference.sh: $page is stale: run scripts/reference.sh" >&2; exit 1; }
else
  cat "$made" >"$page"
fi
