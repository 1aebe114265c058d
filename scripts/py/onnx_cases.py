"""Runs ONNX's own node cases through graphc's command line, as they are given, and says by op what becomes of them.

    python scripts/py/onnx_cases.py target/debug/graphc [--only PREFIX] [--jobs 2] [-- --emulate --target gfx90a]

What stands after `--` goes to `graphc run`. Cases of strings, sequences and optionals as inputs or outputs are not dense and
are left out. The last lines list passes, wrong results and refusals; each refusal with its reason.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import struct
import subprocess
import tempfile
import warnings

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

# Types that .npz files lack, by the names that .safetensors files have for them.
WIDE = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"}
NAMES = {
    "float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL", **WIDE,
}


def dense(infos, values):
    """The arrays by name, or None where one is no tensor of numbers."""
    found = {}
    for info, value in zip(infos, values):
        if isinstance(value, onnx.TensorProto):
            value = numpy_helper.to_array(value)
        if not isinstance(value, (np.ndarray, np.generic)) or np.asarray(value).dtype.kind in "OUSc":
            return None
        found[info.name] = np.ascontiguousarray(value).reshape(np.shape(value))
    return found


def write(folder, name, arrays):
    """Writes arrays in a format that has their types; None where there is none."""
    kinds = {str(a.dtype) for a in arrays.values()}
    if kinds <= set(NAMES) - set(WIDE):
        path = folder / f"{name}.npz"
        np.savez(path, **arrays)
        return path
    if not kinds <= set(NAMES):
        return None
    header, data = {}, b""
    for key, array in arrays.items():
        raw = array.tobytes()
        header[key] = {"dtype": NAMES[str(array.dtype)], "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path = folder / f"{name}.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def run(binary, extra, case):
    model = case.model
    inputs, outputs = case.data_sets[0]
    inputs, outputs = dense(model.graph.input, inputs), dense(model.graph.output, outputs)
    if inputs is None or outputs is None:
        return case.name, "not dense", ""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        onnx.save(model, folder / "case.onnx")
        given, expected = write(folder, "given", inputs), write(folder, "expected", outputs)
        if given is None or expected is None:
            return case.name, "refused", "no file of arrays has its types"
        command = [binary, "run", str(folder / "case.onnx"), "--expect", str(expected), *extra]
        command += ["--inputs", str(given)] if inputs else ["--random"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            return case.name, "wrong", "it does not end"
    if done.returncode == 0:
        return case.name, "pass", ""
    text = (done.stderr or done.stdout).strip().splitlines()
    reason = " ".join(text)[:400]
    wrong = done.returncode == 1 and "differ" in (done.stdout + done.stderr) or done.returncode > 2 or done.returncode < 0
    return case.name, "wrong" if wrong else "refused", reason


def main():
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("extra", nargs="*")
    args = parser.parse_args()
    np.random.seed(0)
    cases = [c for c in collect_testcases(None) if c.model is not None and c.name.startswith(f"test_{args.only}")]
    cases.sort(key=lambda c: c.name)
    found = collections.defaultdict(list)
    by_op = collections.defaultdict(collections.Counter)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for case, (name, what, reason) in zip(cases, pool.map(lambda c: run(args.binary, args.extra, c), cases)):
            found[what].append((name, reason))
            by_op[case.model.graph.node[0].op_type if case.model.graph.node else "?"][what] += 1
    for op, counts in sorted(by_op.items()):
        print(op, dict(counts))
    for what in ("wrong", "refused"):
        for name, reason in found[what]:
            print(f"{what}: {name}: {reason}")
    print({what: len(names) for what, names in found.items()})


main()
