"""Runs ONNX's own node cases through graphc's command line, as they are given, and says by op what becomes of them.

    python scripts/py/onnx_cases.py target/debug/graphc [--only PREFIX] [--jobs 2] [-- --emulate --target gfx90a]

What stands after `--` goes to `graphc run`. Cases of strings, sequences and optionals as inputs or outputs are not dense and
are left out. The last lines list passes, wrong results and refusals; each refusal with its reason.
"""

import argparse
import collections
import concurrent.futures
import pathlib
import subprocess
import tempfile
import warnings

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

# Types that .npz files have. Arrays of others are tensor messages of ONNX, a file each.
PLAIN = {"float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"}
# Relative tolerances of types whose rounding is coarser than graphc's own tolerance.
COARSE = {"bfloat16": 2e-2, "float16": 2e-3}


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
    """Writes arrays, and gives the files."""
    if {str(a.dtype) for a in arrays.values()} <= PLAIN:
        path = folder / f"{name}.npz"
        np.savez(path, **arrays)
        return [path]
    paths = []
    for index, (key, array) in enumerate(arrays.items()):
        paths.append(folder / f"{name}_{index}.pb")
        paths[-1].write_bytes(numpy_helper.from_array(array, key).SerializeToString())
    return paths


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
        command = [binary, "run", str(folder / "case.onnx"), *extra]
        command += [word for path in expected for word in ("--expect", str(path))]
        command += [word for path in given for word in ("--inputs", str(path))] if inputs else ["--random"]
        tolerance = max((COARSE.get(str(a.dtype), 0.0) for a in outputs.values()), default=0.0)
        command += ["--rtol", str(tolerance), "--atol", str(tolerance)] if tolerance else []
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
