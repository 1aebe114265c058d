"""graphc compiles inference graphs (ONNX) for AMD GPUs, and runs them there or on the CPU with nothing installed.

>>> import graphc, numpy as np
>>> session = graphc.load("model.onnx")
>>> y = session(np.ones((1, 3), np.float32))
"""

import json as _json
import os as _os

from . import errors
from ._arrays import as_tensor as _as_tensor
from ._graphc import Tensor, __version__
from ._graphc import compile as _compile
from ._graphc import explain as _explain
from ._graphc import open as _open
from ._graphc import option_keys as _option_keys
from ._session import Port, Run, Session
from .errors import (
    ArgumentError,
    DeviceError,
    Error,
    FileError,
    InputError,
    InternalError,
    ModelError,
    NotAvailableError,
    OptionError,
    OutOfMemoryError,
    TimeoutError,
    UnsupportedError,
    UserError,
)

__all__ = [
    "ArgumentError",
    "DeviceError",
    "Error",
    "FileError",
    "InputError",
    "InternalError",
    "ModelError",
    "NotAvailableError",
    "OptionError",
    "OutOfMemoryError",
    "Port",
    "Run",
    "Session",
    "Tensor",
    "TimeoutError",
    "UnsupportedError",
    "UserError",
    "__version__",
    "compile",
    "explain",
    "inspect",
    "load",
    "options",
    "tensor",
]


def load(
    model, device="cpu", *, threads=None, sizes=None, shapes=None, states=None, dtype=None, inputs=None, **options
):
    """Opens a model and makes it ready to run.

    ``model``: a path (ONNX, .gir, or an artifact of ``graphc.compile``), bytes of such a file, or an onnx.ModelProto.
    ``device``: "cpu", "hip", "hip:1", "cuda", "auto"; "hip:0,1" for one model on several.
    ``sizes``: open sizes by name: ``{"batch": 8}``, ``{"seq": (1, 512)}``, ``{"seq": "1..512 hint 128"}``.
    ``shapes``: shapes of inputs by name, with names for open sizes: ``{"x": ["batch", 3, 224, 224]}``.
    ``states``: inputs that are kept from run to run, with the outputs that are their next values:
    ``{"keys": "new_keys"}``.
    ``dtype``: "f16" or "bf16" to compute in, "int8", "int4" or "fp8" for the weights, "f16+int4" for both.
    ``inputs``: arrays by name that the model is for: one whose sizes or branches depend on data is compiled for them.
    Further options are those that ``graphc.options()`` lists, with ``_`` for ``-``.
    """
    pairs = _pairs(device, threads, sizes, shapes, states, dtype, options)
    given = None if inputs is None else [(name, _as_tensor(value, name=name)) for name, value in inputs.items()]
    return Session(*_open(_model(model), pairs, given))


def compile(model, targets, output, *, sizes=None, shapes=None, states=None, dtype=None, **options):
    """Compiles a model for targets ("gfx90a", ["gfx942", "gfx1100"]) and writes an artifact; no GPU is needed."""
    pairs = _pairs(None, None, sizes, shapes, states, dtype, options)
    _compile(_model(model), _targets(targets), _os.fspath(output), pairs)


def explain(model, target="cpu", *, proofs=False, sizes=None, shapes=None, states=None, dtype=None, **options):
    """Returns which rules fired for a target, what is fused, and why the rest is not."""
    pairs = _pairs(None, None, sizes, shapes, states, dtype, options)
    return _json.loads(_explain(_model(model), _targets(target), proofs, pairs))


def inspect(model, **options):
    """Returns what a model's program is on the CPU, or on ``device``: kernels, memory, weights, inputs and outputs."""
    return load(model, **options).inspect()


def tensor(value, dtype=None):
    """Makes a graphc.Tensor, which shares the memory of a contiguous array."""
    return _as_tensor(value, dtype)


def options():
    """Returns the options of load and compile, each with what it sets."""
    return dict(_option_keys())


def _model(model):
    if isinstance(model, (str, _os.PathLike)):
        return _os.fspath(model)
    if isinstance(model, bytes):
        return model
    if isinstance(model, (bytearray, memoryview)):
        return bytes(model)
    if hasattr(model, "SerializeToString"):
        return model.SerializeToString()
    raise errors.ArgumentError(f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}")


def _targets(targets):
    return targets if isinstance(targets, str) else ",".join(targets)


def _size(size):
    if isinstance(size, range):
        size = (size.start, size.stop - 1)
    if isinstance(size, (tuple, list)):
        low, high = size
        return f"{1 if low is None else low}..{'' if high is None else high}"
    return str(size)


def _pairs(device, threads, sizes, shapes, states, dtype, options):
    pairs = [] if device is None else [("device", str(device))]
    if threads is not None:
        pairs.append(("threads", str(threads)))
    if dtype is not None:
        pairs.append(("dtype", str(dtype)))
    for name, size in (sizes or {}).items():
        pairs.append(("size", f"{name}={_size(size)}"))
    for name, shape in (shapes or {}).items():
        pairs.append(("shape", f"{name}=[{', '.join(map(str, shape))}]"))
    for name, output in (states or {}).items():
        pairs.append(("state", f"{name}={output}"))
    for key, value in options.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        pairs.append((key, text))
    return pairs
