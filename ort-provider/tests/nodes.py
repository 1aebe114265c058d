"""The onnx package's node cases: the provider's results against the expected ones, where ONNX Runtime has the ops too."""

import warnings

from common import *
from onnx.backend.test.case.node import collect_testcases


def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sorted(collect_testcases(None), key=lambda case: case.name)


def run(case):
    """What came of a case: whole, part, none, or skipped."""
    made = case.model
    if any(not port.type.HasField("tensor_type") for port in [*made.graph.input, *made.graph.output]):
        return "skipped"
    inputs, outputs = case.data_sets[0]
    inputs = [np.asarray(value) for value in inputs]
    if any(value.dtype == object or value.dtype.kind in "SU" for value in inputs):
        return "skipped"
    named = {port.name: value for port, value in zip(made.graph.input, inputs)}
    try:
        reference(made).run(None, named)
    except Exception:
        # Ops, or types of them, that ONNX Runtime does not have.
        return "skipped"
    s = session(made)
    ours, others = assigned(s)
    got = s.run(None, named)
    if not ours:
        return "none"
    check_equal(got, outputs, rtol=max(case.rtol, 1e-3), atol=max(case.atol, 1e-5))
    return "part" if others else "whole"


results = {"whole": 0, "part": 0, "none": 0, "skipped": 0}
failures = {}
pattern = ARGUMENTS[0] if ARGUMENTS else ""
for case in cases():
    name = case.name
    if pattern not in name:
        continue
    try:
        results[run(case)] += 1
    except Exception as error:
        failures[name] = f"{type(error).__name__}: {error}"
print(results)
for name, text in failures.items():
    print(f"{name}: {text[:600]}")
assert not failures, f"{len(failures)} cases"
if not pattern:
    assert results["whole"] >= 800, results
print("ok nodes")
