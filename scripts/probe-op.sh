#!/bin/bash
# Adds a unary and a binary op to a copy of the table of elementwise ops, and asks that the compiler names exactly the files of
# ADDING.md ("An elementwise op") that a compiler can name: any other file would be one more place, and one that is not named a place
# that can be forgotten. Dependencies are those that `cargo check` has built before, in the same folder.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
# The same folder each time: what is built of it replaces what was.
copy=$root/target/probe-op
rm -rf "$copy"
mkdir -p "$copy"
ln -s "$root"/* "$copy"
rm "$copy/ir" "$copy/target"
cp -r ir "$copy/ir"
table=$copy/ir/src/graph/elementwise.rs
sed -i 's|^    IsNan = .*|    ProbeOne = "probe_one": Function, 1, \|x\| x - x.floor();\n&|' "$table"
sed -i 's|^    Atan2 = .*|&\n    ProbeTwo = "probe_two": Number, 1, function(), \|a, b\| a.hypot(b), int \|a, b\| a + b;|' "$table"
[ "$(grep -c '^    Probe' "$table")" = 2 ] || { echo "the table of $table has another form" >&2; exit 1; }

cd "$copy"
crates=(-p graphc-frontend -p graphc-passes -p graphc-codegen-hip -p graphc-codegen-cpu -p graphc-runtime)
named=$(CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target} CARGO_INCREMENTAL=0 \
  cargo check --quiet --offline --keep-going --message-format short "${crates[@]}" 2>&1 || true)
got=$(sed -n 's|^\([a-z][^:]*\.rs\):[0-9:]* error.*Probe.*|\1|p' <<<"$named" | sort -u)
want=$(printf '%s\n' frontend/src/tensor/elementwise.rs runtime/src/cpu/kernels/math/ops.rs)
other=$(grep -E '(^|: )error' <<<"$named" | grep -v Probe | grep -v 'could not compile' || true)
if [ "$got" != "$want" ] || [ -n "$other" ]; then
  printf 'The compiler names for a new op:\n%s\nand not:\n%s\n%s\n' "$got" "$want" "$other" >&2
  exit 1
fi
echo "the compiler names for a new op: $(tr '\n' ' ' <<<"$got")"
