"""graphc behind onnx's interface of backends: the tests of nodes that the onnx package has."""

import re
import unittest

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("ml_dtypes")

import graphc.backend  # noqa: E402

# What graphc does not have, or what has no one answer.
OUTSIDE = re.compile(
    "|".join(
        [
            "str|string|regex|label_encoder|tf_?idf",
            "sequence|optional|_seq|_opt",
            "INT2|int2|FLOAT4E2M1|float4e2m1|e8m0",
            # Bits of floats that are computed.
            "bitcast",
            "adagrad|adam|momentum|gradient|training_dropout",
            "bernoulli|random",
            "image_decoder|scan_sum",
            # Numbers out of range saturate.
            "_(to|TO)_U?INT4",
            # A zero is 4e-6, and the reference takes a length before it is rounded.
            "dft_inverse|resize_downsample_scales_(cubic|linear)_align_corners",
        ]
    )
)


def test_nodes():
    import onnx.backend.test as suite_of_onnx

    cases = suite_of_onnx.BackendTest(graphc.backend, __name__).test_cases["OnnxBackendNodeModelTest"]
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(cases)
    tests = [test for test in tests if str(test).split()[0].endswith("_cpu")]
    result = unittest.TestResult()
    unittest.TestSuite(tests).run(result)
    wrong = [(str(test).split()[0], text.strip().splitlines()[-1]) for test, text in result.errors + result.failures]
    surprises = [(name, text) for name, text in wrong if not OUTSIDE.search(name)]
    assert surprises == []
    passed = result.testsRun - len(wrong) - len(result.skipped)
    print(f"{passed} of {result.testsRun} tests of nodes pass")
    assert passed > 1000


def test_models_and_nodes_in_a_row():
    helper, types = onnx.helper, onnx.TensorProto
    node = helper.make_node("Add", ["a", "b"], ["c"])
    a, b = np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32)
    assert graphc.backend.run_node(node, [a, b])[0].tolist() == [[1, 2, 3], [1, 2, 3]]
    wide = np.array([[1, 2]], np.uint32)
    summed = graphc.backend.run_node(node, [wide, wide])[0]
    assert summed.dtype == np.uint32 and summed.tolist() == [[2, 4]]
    graph = helper.make_graph(
        [node],
        "add",
        [
            helper.make_tensor_value_info("a", types.FLOAT, ["n", 3]),
            helper.make_tensor_value_info("b", types.FLOAT, [3]),
        ],
        [helper.make_tensor_value_info("c", types.FLOAT, ["n", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    prepared = graphc.backend.prepare(model, "CPU", threads=1)
    for rows in (1, 4):
        outputs = prepared.run([np.ones((rows, 3), np.float32), b])
        assert outputs.c.shape == (rows, 3) and outputs[0][0].tolist() == [1, 2, 3]
    assert prepared.run({"a": a, "b": b})[0].shape == (2, 3)
    with pytest.raises(graphc.InputError, match="3 inputs"):
        prepared.run([a, b, b])
    with pytest.raises(graphc.OptionError, match="threads"):
        graphc.backend.prepare(model, "CPU", thread=1)
    assert graphc.backend.supports_device("CPU") and graphc.backend.is_compatible(model)
    node.op_type = "Addition"
    with pytest.raises(Exception, match="Addition"):
        graphc.backend.run_node(node, [a, b])
