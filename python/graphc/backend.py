"""graphc as a backend of the onnx package: what its backend tests, and tools that take such backends, call.

>>> import onnx, graphc.backend
>>> outputs = graphc.backend.prepare(onnx.load("model.onnx")).run([x])
"""

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from . import errors, load
from ._arrays import OF_NUMPY, numpy_dtype


def _device(device):
    """graphc's name of an onnx device: "CPU", "CUDA:1" (an NVIDIA GPU), "HIP" or "ROCM" (an AMD GPU)."""
    name, _, number = str(device).partition(":")
    name = name.lower()
    return name if name == "cpu" or not number else f"{name}:{number}"


class GraphcRep(BackendRep):
    """A model that is prepared: with its sizes open where that works, else for the inputs of each new kind."""

    def __init__(self, model, device, options):
        self._model = model.SerializeToString()
        self._device = device
        self._options = options
        initializers = {tensor.name for tensor in model.graph.initializer}
        self._inputs = [value.name for value in model.graph.input if value.name not in initializers]
        self._outputs = [(value.name, _numpy_type(value)) for value in model.graph.output]
        self._session = None
        try:
            self._session = load(self._model, device, **options)
        except (errors.ModelError, errors.UnsupportedError, errors.InputError):
            # Data may decide what the model leaves open.
            if not self._inputs:
                raise

    def run(self, inputs, **kwargs):
        """Runs on inputs in the model's order, or by name, and returns the outputs in the model's order."""
        if isinstance(inputs, dict):
            given = dict(inputs)
        elif isinstance(inputs, (list, tuple)):
            if len(inputs) > len(self._inputs):
                raise errors.InputError(f"{len(inputs)} inputs are given, but the model has {len(self._inputs)}")
            given = dict(zip(self._inputs, inputs))
        else:
            given = {self._inputs[0]: inputs}
        for name, value in given.items():
            if isinstance(value, (list, dict)) or value is None or np.asarray(value).dtype.kind in "OSU":
                raise errors.UnsupportedError(f"input {name!r}: sequences, optionals and texts are not supported")
        given = {name: np.asarray(value) for name, value in given.items()}
        outputs = self._run(given)
        names = [name for name, _ in self._outputs]
        arrays = [_as(outputs[name], dtype) for name, dtype in self._outputs]
        return namedtupledict("Outputs", names)(*arrays)

    def _run(self, given):
        if self._session is not None:
            try:
                return self._session.run(_narrowed(given, self._session))
            except errors.InputError:
                if self._session.reason is None and not self._options.get("sizes"):
                    pass
                else:
                    raise
        session = load(self._model, self._device, inputs=_known(given), **self._options)
        outputs = session.run(_narrowed(given, session))
        if self._session is None and session.reason is None:
            self._session = session
        return outputs


def _numpy_type(value):
    """The NumPy type of a tensor that a model declares; None for what is none, or has no type in NumPy."""
    if value.type.WhichOneof("value") != "tensor_type":
        return None
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    except (KeyError, TypeError):
        return None


def _as(array, dtype):
    """An output as the model declares it: graphc computes unsigned integers of 16 and more bits in wider types."""
    return array if dtype is None or array.dtype == dtype else array.astype(dtype)


# The types that graphc's importer reads the others as.
_WIDER = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}


def _known(given):
    """Inputs in types that graphc has."""
    return {name: value.astype(_WIDER.get(value.dtype.name, value.dtype)) for name, value in given.items()}


def _narrowed(given, session):
    """Inputs as the session declares them."""
    dtypes = {port.name: port.dtype for port in session.inputs}
    narrowed = {}
    for name, value in given.items():
        wanted = dtypes.get(name)
        if wanted is not None and OF_NUMPY.get(value.dtype.name) != wanted and value.dtype.kind == "u":
            value = value.astype(numpy_dtype(wanted))
        narrowed[name] = value
    return narrowed


class GraphcBackend(Backend):
    """graphc behind onnx's interface of backends."""

    @classmethod
    def is_compatible(cls, model, device="CPU", **kwargs):
        """Says whether graphc opens a model with its sizes left open."""
        try:
            load(model, _device(device), **kwargs)
        except errors.Error:
            return False
        return True

    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        """Opens a model; further arguments are options of graphc.load."""
        onnx.checker.check_model(model)
        return GraphcRep(model, _device(device), kwargs)

    @classmethod
    def run_model(cls, model, inputs, device="CPU", **kwargs):
        """Opens a model and runs it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(cls, node, inputs, device="CPU", outputs_info=None, **kwargs):
        """Runs one node on inputs in its order; types and shapes of outputs are inferred."""
        arrays = [np.asarray(value) for value in inputs]
        helper = onnx.helper
        names = [name for name in node.input if name]
        values = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(names, arrays)
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        graph = helper.make_graph([node], "node", values, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])
        inferred = onnx.shape_inference.infer_shapes(model)
        return GraphcRep(inferred, _device(device), kwargs).run(arrays)

    @classmethod
    def supports_device(cls, device):
        """Says whether there is such a device."""
        if Device(str(device).upper().replace("HIP", "CUDA").replace("ROCM", "CUDA")).type == DeviceType.CPU:
            return True
        probe = b'graph @probe stage=import {\n  x = input "x" : f32[1]\n  return x as "y"\n}\n'
        try:
            load(probe, _device(device))
        except errors.Error:
            return False
        return True


is_compatible = GraphcBackend.is_compatible
prepare = GraphcBackend.prepare
run_model = GraphcBackend.run_model
run_node = GraphcBackend.run_node
supports_device = GraphcBackend.supports_device
