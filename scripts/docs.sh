#!/bin/bash
# Checks the documents: links, sizes and widths of pages, the reference of flags, the commands that are shown, the book.
#
# usage: scripts/docs.sh [FOLDER]
#
# FOLDER has the binaries `graphc` and `graphc-llm`; by default it is cargo's debug or release folder. Where they
# are not built, the checks that need them are skipped. The book is made where mdbook is installed (`cargo install
# mdbook`), into target/book.
set -uo pipefail
cd "$(dirname "$0")/.."
[ -d "$HOME/.cargo/bin" ] && PATH="$HOME/.cargo/bin:$PATH"
command -v python3 >/dev/null || { echo "skipped: optional: no python3: the documents are not checked"; exit 0; }
built=${CARGO_TARGET_DIR:-target}
folder=${1:-}
for place in "$built/debug" "$built/release"; do
  [ -z "$folder" ] && [ -x "$place/graphc" ] && [ -x "$place/graphc-llm" ] && folder=$place
done
failed=0
python3 scripts/py/links.py || failed=1
if [ -n "$folder" ]; then
  scripts/reference.sh --check "$folder" || failed=1
  python3 scripts/py/samples.py "$folder" README.md docs/src/*.md || failed=1
else
  echo "skipped: graphc is not built: the reference and the samples are not checked"
fi
if command -v mdbook >/dev/null; then
  log=$(mdbook build docs 2>&1) || failed=1
  grep -E 'ERROR|WARN' <<<"$log" && failed=1
else
  echo "skipped: optional: no mdbook: the book is not made"
fi
[ "$failed" = 0 ] && echo "docs.sh: all right"
exit "$failed"
