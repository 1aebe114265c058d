#!/bin/sh
# Errors of quantised models against f32, as the table of benches/quantised.md: scales are chosen by one sample, errors measured by another.
#
#   benches/quantised.sh GRAPHC MODEL.onnx CALIBRATION.npz OTHER.npz
set -eu
graphc=$1 model=$2 calibration=$3 other=$4
recipe=$(mktemp)
trap 'rm -f "$recipe"' EXIT
row() {
    "$graphc" -q quantize "$model" --calibrate "$calibration" --save-recipe "$recipe" "$@" >/dev/null
    "$graphc" -q quantize "$model" --recipe "$recipe" --calibrate "$other" --format json | python3 -c '
import json, sys
report = json.load(sys.stdin)
errors = [o["relative"] for o in report["outputs"]]
same, rows = sum(o["same_first"] for o in report["outputs"]), sum(o["rows"] for o in report["outputs"])
worst = min((l["decibels"] for l in report["layers"] if l["decibels"] is not None), default=0)
layers = len(report["layers"])
before, after = report["bytes_before"], report["bytes_after"]
print(f"| {sys.argv[1]} | {layers} | {before / after:.2f} | {max(errors):.2e} | {same} of {rows} | {worst:.1f} |")
' "$*"
}
row --scheme weights-int8
row --scheme weights-int4
row --scheme weights-int4 --rounding gptq
row --scheme static-int8
row --scheme static-int8 --method mse
row --scheme dynamic-int8
