"""What the provider's tests share: sessions of both kinds, and the provider's counters."""

import ctypes
import os
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

NAME = "GraphcExecutionProvider"
# The provider's library, a folder for files, the repository, and what a script takes itself.
LIBRARY, FOLDER, REPOSITORY, *ARGUMENTS = sys.argv[1:]

ort.set_default_logger_severity(4)
ort.register_execution_provider_library("graphc", LIBRARY)
DEVICES = [device for device in ort.get_ep_devices() if device.ep_name == NAME]
DEVICES.sort(key=lambda device: device.ep_options["device"] != "cpu")
_library = ctypes.CDLL(LIBRARY)


class Counts:
    """The provider's counts since this was made."""

    def __init__(self):
        self.start = self._read()

    @staticmethod
    def _read():
        numbers = (ctypes.c_uint64 * 4)()
        assert _library.GraphcProviderCounters(numbers, ctypes.c_size_t(4)) == 4
        return list(numbers)

    def __getattr__(self, name):
        at = ["compiled", "specialised", "loaded", "runs"].index(name)
        return self._read()[at] - self.start[at]


def session(model, options=None, entries=None):
    """A session on the provider, with ONNX Runtime's own provider for the rest."""
    so = ort.SessionOptions()
    so.log_severity_level = 4
    so.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in (entries or {}).items():
        so.add_session_config_entry(key, value)
    so.add_provider_for_devices(DEVICES[:1], options or {})
    # Else Python hides errors: it makes a session on ONNX Runtime's own provider instead.
    return ort.InferenceSession(serialised(model), so, enable_fallback=False)


def reference(model):
    """A session on ONNX Runtime's own provider alone."""
    so = ort.SessionOptions()
    so.log_severity_level = 4
    return ort.InferenceSession(serialised(model), so, providers=["CPUExecutionProvider"])


def serialised(model):
    return model if isinstance(model, str) else model.SerializeToString()


def assigned(session):
    """The op types of each region that the provider has, and of the nodes that it has not."""
    ours, others = [], []
    for subgraph in session.get_provider_graph_assignment_info():
        nodes = sorted(node.op_type for node in subgraph.get_nodes())
        (ours if subgraph.ep_name == NAME else others).append(nodes)
    return ours, sorted(op for nodes in others for op in nodes)


def model(nodes, inputs, outputs, constants=None, opset=18, **more):
    """A model of nodes; inputs and outputs are (name, type, shape)."""
    value = lambda v: h.make_tensor_value_info(*v)
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = h.make_graph(nodes, "graph", [value(v) for v in inputs], [value(v) for v in outputs], tensors, **more)
    made = h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=9)
    return made


def random_inputs(session, sizes, seed=0):
    """Inputs for a session: open sizes by name, or by a default."""
    random = np.random.default_rng(seed)
    inputs = {}
    for port in session.get_inputs():
        shape = [d if isinstance(d, int) else sizes.get(d, sizes.get(None, 2)) for d in port.shape]
        if port.type == "tensor(float)":
            inputs[port.name] = random.standard_normal(shape).astype(np.float32)
        elif port.type == "tensor(int64)":
            inputs[port.name] = random.integers(0, 2, shape)
        elif port.type == "tensor(bool)":
            inputs[port.name] = random.integers(0, 2, shape).astype(bool)
        else:
            raise AssertionError(f"an input of type {port.type}")
    return inputs


def check_equal(got, want, rtol=1e-4, atol=1e-5):
    assert len(got) == len(want)
    for a, b in zip(got, want):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, a.shape, b.dtype, b.shape)
        if a.dtype.kind in "fV" or a.dtype.kind == "c":
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(a, b)


def refused(make, *words):
    """What a call that must fail says; it names all the words."""
    try:
        make()
    except Exception as error:  # onnxruntime has a class for each code
        text = str(error)
        for word in words:
            assert word in text, f"{word!r} is not in: {text}"
        return text
    raise AssertionError("it was not refused")
