#!/bin/sh
# Regenerates frontend/src/onnx/proto.rs from the schema beside it. Needs protoc (Debian: protobuf-compiler).
#
#   scripts/gen-onnx-proto.sh                 from the schema in the repository
#   scripts/gen-onnx-proto.sh ONNX_ML_PROTO   first takes a new schema: onnx/onnx-ml.proto of the `onnx` PyPI package.
#                                             It is written as proto3 (the `optional` labels dropped), as ONNX's own
#                                             build does for its onnx-ml.proto3.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
schema="$root/frontend/src/onnx/onnx-ml.proto3"
command -v protoc >/dev/null || { echo "protoc is missing: apt-get install protobuf-compiler" >&2; exit 1; }
if [ $# -ge 1 ]; then
    sed -e 's/^syntax = "proto2";/syntax = "proto3";/' -e 's/^\( *\)optional /\1/' "$1" >"$schema"
fi
cargo run --quiet --manifest-path "$root/scripts/gen-onnx-proto/Cargo.toml" --target-dir "$root/target/gen-onnx-proto" -- \
    "$schema" "$root/frontend/src/onnx/proto.rs"
rustfmt --edition 2024 --config-path "$root" "$root/frontend/src/onnx/proto.rs"
