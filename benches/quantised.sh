#!/bin/sh
# Errors of quantised models against f32, as the table of benches/quantised.md: scales are chosen by one sample, errors measured by another.
#
#   benches/quantised.sh GRAPHC MODEL.onnx CALIBRATION.npz OTHER.npz
#
# PYTHON names a Python that has NumPy, which the rows of f16 and bf16 ask for.
set -eu
graphc=$1 model=$2 calibration=$3 other=$4
recipe=$(mktemp)
folder=$(mktemp -d)
trap 'rm -rf "$recipe" "$folder"' EXIT
python=${PYTHON:-python3}
# A model that is computed in another type: no layer is quantised, and none has an error of its own.
computed() {
    for dtype in f32 "$1"; do
        "$graphc" -q run "$model" --inputs "$other" --device cpu --dtype "$dtype" -o "$folder/$dtype.npz" >/dev/null
    done
    "$python" - "$folder/f32.npz" "$folder/$1.npz" "$1" <<'END'
import sys
import numpy
wanted, got = (numpy.load(path) for path in sys.argv[1:3])
errors, same, rows = [], 0, 0
for name in wanted.files:
    a, b = wanted[name].astype(numpy.float64), got[name].astype(numpy.float64)
    errors.append(numpy.sqrt(((a - b) ** 2).mean() / (a**2).mean()))
    if a.ndim:
        first = lambda x: x.reshape(-1, x.shape[-1]).argmax(1)
        same, rows = same + (first(a) == first(b)).sum(), rows + first(a).size
print(f"| --dtype {sys.argv[3]} | - | - | {max(errors):.2e} | {same} of {rows} | - |")
END
}
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
computed f16
computed bf16
row --scheme weights-int8
row --scheme weights-int4
row --scheme weights-int4 --rounding gptq
row --scheme static-int8
row --scheme static-int8 --method mse
row --scheme dynamic-int8
row --scheme weights-fp8
row --scheme static-fp8
row --scheme dynamic-fp8
