"""Sessions: models that are ready to run."""

import asyncio
import html
import json
from collections.abc import Mapping
from dataclasses import dataclass

from . import errors
from ._arrays import as_tensor, to_numpy


@dataclass(frozen=True)
class Port:
    """An input, an output or a state of a session."""

    name: str
    #: graphc's name of the element type: "f32", "bf16", "i64".
    dtype: str
    #: Numbers, and texts for open sizes: "batch", "2*seq + 1".
    shape: tuple

    def __str__(self):
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def _ports(raw):
    return tuple(Port(name, dtype, tuple(shape)) for name, dtype, shape in raw)


class Run:
    """A run under way, awaitable. Arrays that it was given must not change before it is done."""

    def __init__(self, run, finish):
        self._run = run
        self._finish = finish
        self._outputs = None

    def done(self):
        """Says whether the run is done, well or not."""
        return self._run.done()

    def result(self):
        """Waits for the run and returns its outputs by name, as Session.run does."""
        if self._outputs is None:
            self._outputs = self._finish(self._run.wait())
        return self._outputs

    def __await__(self):
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(None, self.result).__await__()


class Session:
    """A compiled model on a device. Several threads may run it at once; Python's lock is released meanwhile.

    ``session(x, y)`` gives inputs in the model's order or by name and returns the output, or a tuple of several;
    ``session.run({"x": x})`` returns all outputs by name.
    """

    def __init__(self, session, reason=None):
        self._session = session
        #: Why the model was compiled for the inputs that it was opened for alone; None where its sizes are open.
        self.reason = reason
        self.inputs = _ports(session.inputs)
        self.outputs = _ports(session.outputs)
        self.states = _ports(session.states)
        self._dtypes = {port.name: port.dtype for port in self.inputs + self.states}

    @property
    def device(self):
        """Where it runs: "cpu", "hip:0"."""
        return self._session.device

    @property
    def runs(self):
        """How many runs have succeeded; those of run_async are not counted."""
        return self._session.runs

    def _given(self, inputs):
        if not isinstance(inputs, Mapping):
            raise errors.ArgumentError(
                f"inputs are given by name, as {{{self.inputs[0].name if self.inputs else 'x'!r}: array}}, not as "
                f"{type(inputs).__name__}; session(x, y) takes them in the model's order"
            )
        for name in inputs:
            if not isinstance(name, str):
                raise errors.ArgumentError(f"inputs are given by name, and {name!r} is none")
        return [(name, as_tensor(value, self._dtypes.get(name), self._session, name)) for name, value in inputs.items()]

    def _finish(self, output):
        if output == "numpy":
            return lambda values: {name: to_numpy(value, writable=True) for name, value in values.items()}
        if output in ("tensor", "device"):
            return dict
        raise errors.ArgumentError(f'output is "numpy", "tensor" or "device", not {output!r}')

    def run(self, inputs, *, output="numpy"):
        """Runs on inputs by name and returns the outputs by name, in the model's order.

        Inputs are NumPy arrays (contiguous ones are not copied), what has ``__dlpack__``, graphc.Tensor, or numbers.
        ``output``: "numpy" for arrays, "tensor" for graphc.Tensor on the host, "device" for tensors left on the device.
        """
        finish = self._finish(output)
        return finish(self._session.run(self._given(inputs), output == "device"))

    def run_async(self, inputs, *, output="numpy"):
        """Begins a run and returns at once a graphc.Run: await it, or ask it for its result()."""
        finish = self._finish(output)
        return Run(self._session.submit(self._given(inputs), output == "device"), finish)

    def __call__(self, *args, output="numpy", **kwargs):
        if len(args) > len(self.inputs):
            raise errors.ArgumentError(f"{len(args)} inputs are given, but the model has {len(self.inputs)}: {self}")
        inputs = {port.name: value for port, value in zip(self.inputs, args)}
        for name, value in kwargs.items():
            if name in inputs:
                raise errors.ArgumentError(f"input {name!r} is given twice")
            inputs[name] = value
        outputs = tuple(self.run(inputs, output=output).values())
        return outputs[0] if len(outputs) == 1 else outputs

    def upload(self, value, dtype=None):
        """Copies an array to the device, to be given to several runs."""
        return self._session.upload(as_tensor(value, dtype, self._session))

    def fork(self):
        """Returns another session of the same program, whose state begins as this one's is now."""
        return Session(self._session.fork(), self.reason)

    def state(self, name):
        """Returns a copy of a state, by the name of its input."""
        return to_numpy(self._session.get_state(name), writable=True)

    def set_state(self, name, value):
        """Sets a state, by the name of its input."""
        self._session.set_state(name, as_tensor(value, self._dtypes.get(name), self._session, name))

    def reset_state(self):
        """Sets all state to zeros."""
        self._session.reset_state()

    def inspect(self):
        """Returns what the program is: sizes, inputs, outputs, weights, kernels, memory."""
        return json.loads(self._session.inspect())

    def profile(self, inputs, runs=20):
        """Runs some times and returns where the time goes, step by step, in microseconds."""
        return json.loads(self._session.profile(self._given(inputs), runs))

    def __repr__(self):
        inputs, outputs = (", ".join(map(str, ports)) for ports in (self.inputs, self.outputs))
        states = f"; keeps {', '.join(map(str, self.states))}" if self.states else ""
        return f"<graphc.Session on {self.device}: ({inputs}) -> ({outputs}){states}>"

    def _repr_html_(self):
        facts = self.inspect()
        rows = (
            [("input", port) for port in self.inputs]
            + [("state", port) for port in self.states]
            + [("output", port) for port in self.outputs]
        )
        cells = "".join(
            f"<tr><td>{kind}</td><td>{html.escape(port.name)}</td><td>{port.dtype}</td>"
            f"<td>{html.escape(', '.join(map(str, port.shape)))}</td></tr>"
            for kind, port in rows
        )
        weights = sum(weight["bytes"] for weight in facts["weights"])
        return (
            f"<p><b>{html.escape(facts['name'])}</b> on {html.escape(self.device)}: "
            f"{facts.get('launches', '?')} launches, "
            f"{weights / 2**20:.2f} MiB of weights</p>"
            f"<table><tr><th></th><th>name</th><th>type</th><th>shape</th></tr>{cells}</table>"
        )
