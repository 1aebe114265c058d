"""graphc as a backend of torch.compile: ``torch.compile(model, backend="graphc")``.

Each graph that torch.compile captures goes through torch.onnx.export to graphc. A graph that gradients are wanted of,
or that cannot be exported or opened, runs in PyTorch, with a warning that names what was missing. Sizes that
torch.compile leaves open stay open.

>>> fast = torch.compile(model.eval(), backend="graphc", options={"device": "cpu", "threads": 4})
"""

import io
import re
import warnings

import torch

from . import errors, load


class FallbackWarning(UserWarning):
    """A graph runs in PyTorch, since graphc could not take it."""


def backend(graph, example_inputs, *, options=None, mode=None, **kwargs):
    """Compiles a graph of torch.compile's; ``options`` are those of graphc.load."""
    del mode
    settings = dict(kwargs, **(options or {}))
    if torch.is_grad_enabled() and _needs_gradients(graph, example_inputs):
        _fall_back("gradients are wanted; run it under torch.no_grad() or torch.inference_mode()")
        return graph.forward
    try:
        return _Compiled(graph, example_inputs, settings)
    except errors.OptionError:
        raise
    except errors.Error as error:
        _fall_back(str(error))
    except Exception as error:  # The exporter raises many kinds.
        _fall_back(f"it has no export to ONNX: {_root(error)}")
    return graph.forward


def _fall_back(reason):
    warnings.warn(f"graphc runs a graph in PyTorch instead: {reason}", FallbackWarning, stacklevel=3)


def _root(error):
    """What an error comes from, in a few lines: the exporter wraps it in advice for its own developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    return f"{type(error).__name__}: " + "\n".join(text.splitlines()[:6])


def _needs_gradients(graph, inputs):
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    return any(value.requires_grad for value in [*tensors, *graph.parameters()])


class _Compiled:
    """A graph behind a session: called as torch.compile calls what it captured."""

    def __init__(self, graph, example_inputs, settings):
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        # Where sizes are open, the graph's own examples have them as symbols.
        examples = [_example(node, value) for node, value in zip(placeholders, example_inputs)]
        # Parameters of the model are given as inputs; they become constants, so that graphc packs them once.
        self._constants = {
            at: value
            for at, value in enumerate(example_inputs)
            if isinstance(value, torch.nn.Parameter) or _is_static(placeholders[at])
        }
        # Sizes that are open come as numbers beside the tensors that have them.
        self._tensors = [
            at
            for at, value in enumerate(example_inputs)
            if at not in self._constants and isinstance(value, torch.Tensor)
        ]
        self._graph = graph
        self._names = [f"x{number}" for number in range(len(self._tensors))]
        if not self._tensors:
            raise errors.UnsupportedError("the graph has no inputs that are tensors")
        program = self._export(example_inputs, examples)
        settings.setdefault("device", _device(example_inputs, self._tensors))
        self._session = load(program, **settings)
        outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        self._outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        if any(not isinstance(output, torch.fx.Node) for output in self._outputs):
            raise errors.UnsupportedError("the graph has outputs that are no tensors")
        if any(not isinstance(_value(output), torch.Tensor) for output in self._outputs):
            raise errors.UnsupportedError("the graph gives sizes beside tensors")

    def _export(self, example_inputs, examples):
        """Returns the graph as an ONNX model."""
        wrapped = _Bound(self._graph, example_inputs, examples, self._tensors)
        tensors = tuple(_concrete(example_inputs[at]) for at in self._tensors)
        dynamic = []
        for at in self._tensors:
            open_axes = [axis for axis, size in enumerate(examples[at].shape) if isinstance(size, torch.SymInt)]
            dynamic.append({axis: torch.export.Dim.DYNAMIC for axis in open_axes})
        shapes = {"tensors": tuple(dynamic)} if any(dynamic) else None
        # What is noted while a graph is exported is no condition of the one that torch.compile is about to make.
        with torch.no_grad(), torch._guards.tracing(None), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(wrapped, tensors, dynamic_shapes=shapes, strict=False)
            exported = torch.onnx.export(program, input_names=self._names, dynamo=True, optimize=True, verbose=False)
        buffer = io.BytesIO()
        exported.save(buffer)
        return buffer.getvalue()

    def __call__(self, *args):
        given = {name: args[at].detach() for name, at in zip(self._names, self._tensors)}
        wanted = {port.name for port in self._session.inputs}
        given = {name: value for name, value in given.items() if name in wanted}
        device = args[self._tensors[0]].device
        on_gpu = self._session.device != "cpu"
        if device.type == "cuda":
            # graphc has streams of its own.
            torch.cuda.current_stream(device).synchronize()
            if not on_gpu:
                given = {name: value.cpu() for name, value in given.items()}
        outputs = self._session.run(given, output="device" if on_gpu else "tensor").values()
        tensors = [torch.from_dlpack(output) for output in outputs]
        return [tensor if tensor.device == device else tensor.to(device) for tensor in tensors]


def _device(inputs, tensors):
    """graphc's name of the device that a graph's inputs are on."""
    device = inputs[tensors[0]].device
    if device.type != "cuda":
        return "cpu"
    vendor = "cuda" if torch.version.hip is None else "hip"
    return f"{vendor}:{device.index or 0}"


def _example(node, value):
    """What torch.compile knows of an input."""
    known = node.meta.get("example_value", node.meta.get("val"))
    return value if known is None else known


def _value(node):
    return node.meta.get("example_value", node.meta.get("val"))


def _is_static(node):
    """Says whether an input is a parameter or a buffer of the model that torch.compile captured."""
    kept = node.meta.get("tensor_dict") or {}
    return "_dynamo_static_input_type" in kept


def _concrete(value):
    """A tensor as an example for the exporter, where torch.compile has one without elements and with open sizes."""
    if not any(isinstance(size, torch.SymInt) for size in value.shape) and type(value) is torch.Tensor:
        return value
    shape = [size.node.hint if isinstance(size, torch.SymInt) else size for size in value.shape]
    return torch.zeros(shape, dtype=value.dtype, device=value.device)


class _Bound(torch.nn.Module):
    """A graph as a function of its tensors alone: parameters are bound, and open sizes are read from the tensors."""

    def __init__(self, graph, example_inputs, examples, tensors):
        super().__init__()
        self._graph = graph
        self._positions = tensors
        self._count = len(example_inputs)
        bound = {}
        for at, value in enumerate(example_inputs):
            if at in tensors:
                continue
            if isinstance(value, torch.Tensor):
                self.register_buffer(f"constant{at}", value.detach(), persistent=True)
                bound[at] = f"constant{at}"
        self._bound = bound
        # Where each open size can be read: a tensor and its axis.
        self._sizes = {}
        for at, value in enumerate(example_inputs):
            if at in tensors or at in bound:
                continue
            place = _find_size(examples[at], examples, tensors)
            if place is None and isinstance(examples[at], torch.SymInt):
                raise errors.UnsupportedError(
                    f"input {at} of the graph is the size {examples[at]}, which no tensor has"
                )
            self._sizes[at] = place if place is not None else value

    def forward(self, *tensors):
        values = []
        given = iter(tensors)
        for at in range(self._count):
            if at in self._positions:
                values.append(next(given))
            elif at in self._bound:
                values.append(getattr(self, self._bound[at]))
            else:
                place = self._sizes[at]
                values.append(tensors[place[0]].shape[place[1]] if isinstance(place, tuple) else place)
        return self._graph(*values)


def _find_size(value, examples, tensors):
    """A tensor that has an open size, and at which axis; None for other numbers."""
    if not isinstance(value, torch.SymInt):
        return None
    for number, at in enumerate(tensors):
        for axis, size in enumerate(examples[at].shape):
            if isinstance(size, torch.SymInt) and str(size) == str(value):
                return number, axis
    return None
