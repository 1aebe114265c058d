"""Runs random models of one op each through graphc's command line, and holds the results against onnxruntime's.

    python scripts/py/random_ops.py target/release/graphc [--count 2000] [--seed 1] [--only TEXT] [--jobs 2] [--keep FOLDER]

Shapes have axes of 0 and 1 and odd sizes, broadcast, and are declared as they are or left open; element types are those that the op
takes. Cases that onnxruntime refuses are drawn again. A line says for each op how many agree, differ, are refused and fail; then
each difference, refusal and failure with its seed, by which `--seed N --count 1` makes it again. With --keep their models,
inputs and expected outputs are stored.
"""

import argparse
import collections
import concurrent.futures
import subprocess
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

FLOATS = ("float32", "float32", "float32", "float64", "float16")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = FLOATS + INTS
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)
MAKERS = {}


class Draw:
    """A generator of random attributes and tensors."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def pick(self, values):
        values = list(values)
        return values[self.rng.integers(len(values))]

    def maybe(self, chance=0.5):
        return bool(self.rng.random() < chance)

    def int(self, low, high):
        """A number of low..=high."""
        return int(self.rng.integers(low, high + 1))

    def size(self):
        return 0 if self.maybe(0.04) else self.pick(SIZES)

    def shape(self, low=0, high=4):
        rank = self.int(low, high)
        shape = [self.size() for _ in range(rank)]
        while np.prod(shape, dtype=np.int64) > 20000:
            shape[int(np.argmax(shape))] = self.pick((1, 2, 3))
        return shape

    def tensor(self, dtype, shape, low=-3.0, high=3.0):
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype.kind == "f":
            return np.asarray(self.rng.uniform(low, high, shape)).astype(dtype)
        info = np.iinfo(dtype)
        if self.maybe(0.2):
            return np.asarray(self.rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True))
        return np.asarray(self.rng.integers(max(info.min, -9), 10, shape)).astype(dtype)

    def special(self, x):
        """Puts infinities, NaN and zeros into some of a float tensor."""
        if x.dtype.kind == "f" and x.size and self.maybe(0.3):
            flat = x.reshape(-1)
            for value in (np.nan, np.inf, -np.inf, 0.0, -0.0):
                flat[self.rng.integers(x.size)] = value
        return x

    def broadcast(self, count):
        """Shapes that broadcast to one."""
        shape, found = self.shape(), []
        for _ in range(count):
            cut = self.int(0, len(shape)) if self.maybe(0.3) else 0
            found.append([1 if self.maybe(0.25) else size for size in shape[cut:]])
        return found


def makes(*names):
    def register(function):
        for name in names:
            MAKERS[name] = function
        return function
    return register


class Case:
    def __init__(self, op, inputs, constants=(), outputs=1, domain="", opset=None, **attributes):
        self.op, self.inputs, self.constants, self.outputs = op, inputs, constants, outputs
        self.domain, self.opset, self.attributes = domain, opset, attributes


UNARY = {"Abs": NUMBERS, "Neg": FLOATS + ("int8", "int32", "int64"), "Sign": NUMBERS, "Not": ("bool",), "BitwiseNot": INTS}
for name in ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish",
             "LeakyRelu", "Log", "Mish", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan",
             "Tanh", "ThresholdedRelu", "Celu", "Shrink", "Gelu", "IsNaN", "IsInf", "Identity", "Swish"):
    UNARY[name] = FLOATS


@makes(*UNARY)
def unary(d, op):
    attributes = {}
    if op in ("Elu", "LeakyRelu", "Selu", "ThresholdedRelu", "Celu", "HardSigmoid") and d.maybe():
        attributes["alpha"] = float(np.float32(d.rng.uniform(0.05, 2)))
    if op == "Gelu":
        attributes["approximate"] = d.pick(("none", "tanh"))
    if op == "IsInf" and d.maybe():
        attributes["detect_negative"] = d.int(0, 1)
    x = d.special(d.tensor(d.pick(UNARY[op]), d.shape()))
    return Case(op, {"x": x}, **attributes)


BINARY = {"Add": NUMBERS, "Sub": NUMBERS, "Mul": NUMBERS, "Div": NUMBERS, "Pow": FLOATS + ("int32", "int64"), "Mod": NUMBERS, "PRelu": FLOATS,
          "And": ("bool",), "Or": ("bool",), "Xor": ("bool",), "BitwiseAnd": INTS, "BitwiseOr": INTS, "BitwiseXor": INTS,
          "Equal": NUMBERS + ("bool",), "Greater": NUMBERS, "GreaterOrEqual": NUMBERS, "Less": NUMBERS, "LessOrEqual": NUMBERS,
          "BitShift": ("uint8", "uint16", "uint32", "uint64")}


@makes(*BINARY)
def binary(d, op):
    dtype = d.pick(BINARY[op])
    one, two = d.broadcast(2)
    a, b, attributes = d.tensor(dtype, one), d.tensor(dtype, two), {}
    if op in ("Div", "Mod") and a.dtype.kind in "iu":
        b = np.where(b == 0, np.ones_like(b), b)
        if a.dtype.kind == "i":
            a = np.maximum(a, np.iinfo(a.dtype).min + 1)
    if op == "Mod":
        attributes["fmod"] = 1 if a.dtype.kind == "f" else d.int(0, 1)
    if op == "Pow":
        b = d.tensor(d.pick((dtype, "float32", "int32", "int64")), two, 0, 3)
        b = np.abs(b) % 4 if b.dtype.kind == "i" else b
    if op == "BitShift":
        attributes["direction"] = d.pick(("LEFT", "RIGHT"))
        b = b % (8 * a.dtype.itemsize)
    if op == "PRelu":
        b = d.tensor(dtype, [1 if d.maybe(0.5) else s for s in a.shape])
    if op not in ("Div", "Mod", "Pow"):
        a = d.special(a)
    return Case(op, {"a": a, "b": b}, ("b",) if d.maybe(0.3) else (), **attributes)


@makes("Max", "Min", "Sum", "Mean")
def variadic(d, op):
    dtype = d.pick(NUMBERS if op in ("Max", "Min") else FLOATS)
    count = d.int(1, 4)
    return Case(op, {f"x{i}": d.tensor(dtype, s) for i, s in enumerate(d.broadcast(count))})


@makes("Where")
def where(d, op):
    a, b, c = d.broadcast(3)
    dtype = d.pick(NUMBERS + ("bool",))
    return Case(op, {"c": d.tensor("bool", a), "x": d.tensor(dtype, b), "y": d.tensor(dtype, c)})


@makes("Clip")
def clip(d, op):
    dtype = d.pick(NUMBERS)
    inputs = {"x": d.tensor(dtype, d.shape())}
    inputs["lo"] = d.tensor(dtype, []) if d.maybe(0.7) else None
    inputs["hi"] = d.tensor(dtype, []) if d.maybe(0.7) else None
    return Case(op, inputs, ("lo", "hi") if d.maybe(0.7) else ())


@makes("Cast")
def cast(d, op):
    source, target = d.pick(NUMBERS + ("bool",)), d.pick(NUMBERS + ("bool",))
    x = d.tensor(source, d.shape(), *((0, 100) if np.dtype(target).kind == "u" else (-100, 100)))
    return Case(op, {"x": x}, to=helper.np_dtype_to_tensor_dtype(np.dtype(target)))


REDUCE = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")


@makes(*REDUCE)
def reduce(d, op):
    shape = d.shape(0, 5)
    types = FLOATS + ("int32", "int64") + (("int8", "uint8", "bool") if op in ("ReduceMax", "ReduceMin") else ())
    low = 0.1 if op == "ReduceLogSum" else -2.0
    inputs, attributes = {"x": d.tensor(d.pick(types), shape, low, 2.0)}, {"keepdims": d.int(0, 1)}
    if d.maybe(0.8) and shape:
        axes = sorted(set(int(a) for a in d.rng.integers(0, len(shape), d.int(0, len(shape)))))
        inputs["axes"] = np.array([a - len(shape) if d.maybe(0.3) else a for a in axes], np.int64)
    if d.maybe(0.3):
        attributes["noop_with_empty_axes"] = 1
    return Case(op, inputs, ("axes",), **attributes)


@makes("ArgMax", "ArgMin")
def arg(d, op):
    shape = d.shape(1, 4)
    return Case(op, {"x": d.tensor(d.pick(FLOATS + ("int8", "int32", "int64", "uint8")), shape)}, axis=d.int(-len(shape), len(shape) - 1),
                keepdims=d.int(0, 1), select_last_index=d.int(0, 1))


@makes("TopK")
def top_k(d, op):
    shape = d.shape(1, 4)
    axis = d.int(0, len(shape) - 1)
    k = np.array([d.int(0, shape[axis])], np.int64)
    return Case(op, {"x": d.tensor(d.pick(FLOATS + ("int32", "int64")), shape), "k": k}, ("k",) if d.maybe(0.8) else (), 2, axis=axis,
                largest=d.int(0, 1), sorted=1)


@makes("CumSum")
def cum_sum(d, op):
    shape = d.shape(1, 4)
    return Case(op, {"x": d.tensor(d.pick(("float32", "float64", "int32", "int64")), shape), "axis": np.array(d.int(-len(shape), len(shape) - 1), np.int64)},
                ("axis",), exclusive=d.int(0, 1), reverse=d.int(0, 1))


@makes("Softmax", "LogSoftmax", "Hardmax")
def softmax(d, op):
    shape = d.shape(1, 4)
    return Case(op, {"x": d.tensor(d.pick(FLOATS), shape, -9, 9)}, axis=d.int(-len(shape), len(shape) - 1), opset=d.pick((11, 13, 21)))


@makes("Concat")
def concat(d, op):
    shape, dtype = d.shape(1, 4), d.pick(NUMBERS + ("bool",))
    axis, count = d.int(0, len(shape) - 1), d.int(1, 5)
    parts = {f"x{i}": d.tensor(dtype, shape[:axis] + [d.pick((0, 1, 1, 2, 5))] + shape[axis + 1:]) for i in range(count)}
    return Case(op, parts, [n for n in parts if d.maybe(0.2)], axis=axis - len(shape) if d.maybe(0.3) else axis)


@makes("Split")
def split(d, op):
    shape = d.shape(1, 4)
    axis, count = d.int(0, len(shape) - 1), d.int(1, 4)
    sizes = [d.pick((0, 1, 2, 3, 7)) for _ in range(count)]
    shape[axis] = sum(sizes)
    x = d.tensor(d.pick(NUMBERS), shape)
    if d.maybe(0.3) and shape[axis] >= count:
        return Case(op, {"x": x}, outputs=count, axis=axis, num_outputs=count)
    return Case(op, {"x": x, "sizes": np.array(sizes, np.int64)}, ("sizes",), count, axis=axis)


@makes("Slice")
def slice_(d, op):
    shape = d.shape(1, 4)
    axes = [a for a in range(len(shape)) if d.maybe(0.7)] or [0]
    far = [-(2**63) + 1, 2**63 - 1, -(2**31), 2**31 - 1]
    bound = lambda a: d.pick(far) if d.maybe(0.15) else d.int(-shape[a] - 2, shape[a] + 2)
    steps = [d.pick((1, 1, 1, 2, 3, -1, -2)) for _ in axes]
    inputs = {"x": d.tensor(d.pick(NUMBERS + ("bool",)), shape), "starts": np.array([bound(a) for a in axes], np.int64),
              "ends": np.array([bound(a) for a in axes], np.int64),
              "axes": np.array([a - len(shape) if d.maybe(0.3) else a for a in axes], np.int64), "steps": np.array(steps, np.int64)}
    return Case(op, inputs, ("starts", "ends", "axes", "steps") if d.maybe(0.8) else ("axes", "steps"))


@makes("Pad")
def pad(d, op):
    shape, dtype = d.shape(1, 4), d.pick(("float32", "float64", "int32", "int64", "uint8", "int8", "bool"))
    mode = d.pick(("constant", "constant", "reflect", "edge", "wrap"))
    low = -1 if mode == "constant" else 0
    pads = np.array([d.int(low, 2 if mode == "constant" else max(min(2, shape[i % len(shape)] - 1), 0)) for i in range(2 * len(shape))], np.int64)
    inputs = {"x": d.tensor(dtype, shape), "pads": pads}
    if mode == "constant" and d.maybe(0.6):
        inputs["value"] = d.tensor(dtype, [])
    return Case(op, inputs, ("pads", "value") if d.maybe(0.8) else ("value",), mode=mode)


@makes("Gather", "GatherElements", "GatherND")
def gather(d, op):
    shape, dtype = d.shape(1, 4), d.pick(NUMBERS + ("bool",))
    kind = d.pick(("int32", "int64")) if op != "GatherND" else "int64"
    if op == "GatherND":
        depth = d.int(1, len(shape))
        outer = d.shape(0, 2)
        index = np.stack([d.rng.integers(-max(s, 1), max(s, 1), outer) for s in shape[:depth]], -1).astype(kind)
        return Case(op, {"x": d.tensor(dtype, shape), "i": index}, ("i",) if d.maybe(0.3) else ())
    axis = d.int(0, len(shape) - 1)
    size = max(shape[axis], 1)
    outer = d.shape(0, 3) if op == "Gather" else [d.int(0, s) for s in shape[:axis]] + [d.pick(SIZES)] + [d.int(0, s) for s in shape[axis + 1:]]
    index = np.asarray(d.rng.integers(-size, size, outer)).astype(kind)
    return Case(op, {"x": d.tensor(dtype, shape), "i": index}, ("i",) if d.maybe(0.3) else (), axis=axis)


@makes("ScatterElements", "ScatterND")
def scatter(d, op):
    shape, dtype = d.shape(1, 3), d.pick(FLOATS + ("int32", "int64"))
    how = d.pick(("none", "add", "mul", "max", "min"))
    x = d.tensor(dtype, shape)
    if op == "ScatterND":
        depth = d.int(1, len(shape))
        places = int(np.prod(shape[:depth]))
        count = min(d.pick((0, 1, 3, 6)), places)
        flat = d.rng.permutation(places)[:count] if how == "none" else d.rng.integers(0, max(places, 1), count)
        index = np.stack(np.unravel_index(flat, shape[:depth]), -1).astype(np.int64) if places else np.zeros((0, depth), np.int64)
        return Case(op, {"x": x, "i": index, "u": d.tensor(dtype, [len(index)] + shape[depth:])}, reduction=how)
    axis = d.int(0, len(shape) - 1)
    part = [d.int(0, s) for s in shape]
    index = np.argsort(d.rng.random([s if i == axis else p for i, (s, p) in enumerate(zip(shape, part))]), axis)
    index = np.take(index, range(part[axis]), axis).astype(np.int64)
    if d.maybe(0.3) and shape[axis]:
        index -= shape[axis]
    return Case(op, {"x": x, "i": index, "u": d.tensor(dtype, part)}, axis=axis, reduction=how)


@makes("Transpose", "Flatten", "Squeeze", "Unsqueeze", "Shape", "Size", "Identity", "NonZero")
def shapes(d, op):
    shape = d.shape(0, 5)
    x = d.tensor(d.pick(NUMBERS + ("bool",)), shape)
    if op == "Transpose":
        return Case(op, {"x": x}, **({"perm": [int(p) for p in d.rng.permutation(len(shape))]} if d.maybe(0.8) else {}))
    if op == "Flatten":
        return Case(op, {"x": x}, axis=d.int(-len(shape), len(shape)))
    if op == "Squeeze":
        ones = [i for i, s in enumerate(shape) if s == 1]
        return Case(op, {"x": x, "axes": np.array(ones, np.int64) if d.maybe(0.8) else None}, ("axes",))
    if op == "Unsqueeze":
        extra = d.int(1, 2)
        axes = [int(a) for a in d.rng.permutation(len(shape) + extra)[:extra]]
        return Case(op, {"x": x, "axes": np.array(axes, np.int64)}, ("axes",))
    if op == "Shape":
        return Case(op, {"x": x}, start=d.int(-3, 3), **({"end": d.int(-3, 5)} if d.maybe() else {}))
    return Case(op, {"x": x})


@makes("Reshape", "Expand", "Tile", "ConstantOfShape")
def sized(d, op):
    shape, dtype = d.shape(0, 4), d.pick(NUMBERS + ("bool",))
    fixed = ("s",) if d.maybe(0.8) else ()
    if op == "ConstantOfShape":
        value = numpy_helper.from_array(d.tensor(dtype, [1]))
        return Case(op, {"s": np.array(shape, np.int64)}, fixed, value=value)
    x = d.tensor(dtype, shape)
    if op == "Reshape":
        total, new = int(np.prod(shape)), []
        while len(new) < 3 and d.maybe(0.8):
            divisors = [k for k in (1, 2, 3, 4, 5, 7, 8) if total and total % k == 0]
            new.append(d.pick(divisors or [0]))
            total //= max(new[-1], 1)
        new = new + [total] if int(np.prod(new + [1])) * total == int(np.prod(shape)) else list(shape)
        if 0 not in new and d.maybe():
            new[d.int(0, len(new) - 1)] = -1 if new else 0
        return Case(op, {"x": x, "s": np.array(new, np.int64)}, fixed, allowzero=d.int(0, 1))
    if op == "Expand":
        new = [d.size() if s == 1 and d.maybe() else d.pick((1, s)) for s in shape]
        return Case(op, {"x": x, "s": np.array(d.shape(0, 1) + new, np.int64)}, fixed)
    return Case(op, {"x": x, "s": np.array([d.pick((0, 1, 1, 2, 3)) for _ in shape], np.int64)}, fixed)


@makes("MatMul", "Gemm")
def product(d, op):
    dtype = d.pick(("float32", "float32", "float64", "float16", "int32") if op == "MatMul" else ("float32", "float64", "float16"))
    m, k, n = d.size(), d.size(), d.size()
    if op == "Gemm":
        ta, tb = d.int(0, 1), d.int(0, 1)
        inputs = {"a": d.tensor(dtype, [k, m] if ta else [m, k]), "b": d.tensor(dtype, [n, k] if tb else [k, n])}
        if d.maybe(0.7):
            inputs["c"] = d.tensor(dtype, d.pick(([m, n], [n], [1, n], [m, 1], [1], [])))
        return Case(op, inputs, ("b",) if d.maybe() else (), transA=ta, transB=tb, alpha=d.pick((1.0, 0.5)), beta=d.pick((1.0, 0.25)))
    one, two = ([1 if d.maybe(0.2) else s for s in b] for b in [d.shape(0, 2)] * 2)
    left = [k] if d.maybe(0.1) else one + [m, k]
    right = [k] if d.maybe(0.1) else two + [k, n]
    return Case(op, {"a": d.tensor(dtype, left), "b": d.tensor(dtype, right)}, ("b",) if d.maybe() else ())


@makes("MatMulInteger", "QLinearMatMul", "DynamicQuantizeLinear", "QuantizeLinear", "DequantizeLinear")
def quantised(d, op):
    small = d.pick(("uint8", "int8"))
    if op == "DynamicQuantizeLinear":
        return Case(op, {"x": d.tensor("float32", d.shape())}, outputs=3)
    if op in ("QuantizeLinear", "DequantizeLinear"):
        shape = d.shape(1, 4)
        axis = d.int(0, len(shape) - 1)
        per = [shape[axis]] if d.maybe(0.4) else []
        scale = d.tensor("float32", per, 0.01, 0.3)
        x = d.tensor("float32" if op == "QuantizeLinear" else small, shape, -20, 20)
        return Case(op, {"x": x, "scale": scale, "zero": d.tensor(small, per) if d.maybe(0.7) else None}, ("scale", "zero"), axis=axis)
    m, k, n = d.size(), d.size(), d.size()
    batch = d.shape(0, 2)
    a, b = d.tensor(small, batch + [m, k]), d.tensor(d.pick(("uint8", "int8")) if op == "MatMulInteger" else small, [k, n])
    if op == "MatMulInteger":
        zeros = {"za": d.tensor(a.dtype, []) if d.maybe() else None, "zb": d.tensor(b.dtype, d.pick(([], [n]))) if d.maybe() else None}
        return Case(op, {"a": a, "b": b, **zeros}, ("b", "za", "zb"))
    scale = lambda: d.tensor("float32", [], 0.01, 0.1)
    inputs = {"a": a, "sa": scale(), "za": d.tensor(small, []), "b": b, "sb": scale(), "zb": d.tensor(small, []), "sy": scale(), "zy": d.tensor(small, [])}
    return Case(op, inputs, ("sa", "za", "b", "sb", "zb", "sy", "zy"))


def window(d, rank, sizes):
    kernel = [d.pick((1, 2, 3, 5)) for _ in range(rank)]
    found = {"kernel_shape": kernel}
    if d.maybe(0.6):
        found["strides"] = [d.pick((1, 2, 3)) for _ in kernel]
    if d.maybe(0.4):
        found["dilations"] = [d.pick((1, 2, 3)) for _ in kernel]
    if d.maybe(0.15) and "dilations" not in found:
        found["auto_pad"] = d.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif d.maybe(0.6):
        found["pads"] = [d.int(0, k - 1) for k in kernel * 2]
    return found


@makes("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def pool(d, op):
    rank = d.int(1, 3)
    shape = [d.int(1, 2), d.int(1, 5)] + [d.int(1, 12 if rank < 3 else 6) for _ in range(rank)]
    types = ("float32", "float64", "float16", "int8", "uint8") if op == "MaxPool" else ("float32", "float64") if op == "AveragePool" else ("float32",)
    x = d.tensor(d.pick(types), shape)
    if op.startswith("Global"):
        return Case(op, {"x": x}, **({"p": d.int(1, 3)} if "Lp" in op else {}))
    attributes = window(d, rank, shape[2:])
    attributes["ceil_mode"] = d.int(0, 1)
    if op == "AveragePool":
        attributes["count_include_pad"] = d.int(0, 1)
    if op == "LpPool":
        attributes["p"] = d.int(1, 3)
    return Case(op, {"x": x}, opset=d.pick((19, 21, 22)), outputs=2 if op == "MaxPool" and d.maybe(0.3) else 1, **attributes)


@makes("Conv", "ConvTranspose", "ConvInteger")
def conv(d, op):
    rank = d.pick((1, 2, 2, 2, 3))
    groups, inner, outer = d.pick((1, 1, 2, 3)), d.pick((1, 2, 3, 8)), d.pick((1, 2, 4))
    if d.maybe(0.2):
        groups, inner = d.pick((4, 8)), 1
    shape = [d.int(1, 2), groups * inner] + [d.int(1, 12 if rank < 3 else 6) for _ in range(rank)]
    attributes = {**window(d, rank, shape[2:]), "group": groups}
    kernel = attributes["kernel_shape"]
    dtype = d.pick(("float32", "float32", "float64", "float16"))
    if op == "ConvInteger":
        inputs = {"x": d.tensor("uint8", shape), "w": d.tensor(d.pick(("uint8", "int8")), [groups * outer, inner] + kernel)}
        if d.maybe():
            inputs["zx"] = d.tensor("uint8", [])
        return Case(op, inputs, ("w", "zx"), **attributes)
    if op == "ConvTranspose":
        weights = [groups * inner, outer] + kernel
        if d.maybe(0.3) and "strides" in attributes:
            attributes["output_padding"] = [d.int(0, s - 1) for s in attributes["strides"]]
    else:
        weights = [groups * outer, inner] + kernel
    inputs = {"x": d.tensor(dtype, shape), "w": d.tensor(dtype, weights)}
    if d.maybe():
        inputs["b"] = d.tensor(dtype, [groups * outer])
    return Case(op, inputs, ("w", "b") if d.maybe(0.8) else (), **attributes)


@makes("LayerNormalization", "InstanceNormalization", "BatchNormalization", "GroupNormalization", "LpNormalization", "LRN", "MeanVarianceNormalization",
       "RMSNormalization")
def norms(d, op):
    dtype = d.pick(("float32", "float32", "float64", "float16"))
    if op in ("LayerNormalization", "RMSNormalization"):
        shape = d.shape(1, 4)
        axis = d.int(0, len(shape) - 1)
        inputs = {"x": d.tensor(dtype, shape), "s": d.tensor(dtype, shape[axis:])}
        if op[0] == "L" and d.maybe():
            inputs["b"] = d.tensor(dtype, shape[axis:])
        return Case(op, inputs, ("s", "b") if d.maybe() else (), opset=23 if op[0] == "R" else None, axis=axis, epsilon=1e-5)
    if op == "LpNormalization":
        shape = d.shape(1, 4)
        return Case(op, {"x": d.tensor(d.pick(("float32", "float64")), shape)}, axis=d.int(0, len(shape) - 1), p=d.int(1, 2))
    channels = d.pick((1, 2, 4, 6, 8))
    shape = [d.int(1, 3), channels] + [d.pick(SIZES[:8]) for _ in range(d.int(1, 3))]
    x = d.tensor(dtype, shape)
    if op == "LRN":
        return Case(op, {"x": x.astype(np.float32)}, size=d.pick((1, 3, 5)), alpha=0.02, beta=0.6, bias=1.5)
    if op == "MeanVarianceNormalization":
        return Case(op, {"x": d.tensor("float32", [2, 3, 4, 5])}, axes=d.pick(([0, 2, 3], [1], [2, 3])))
    vector = lambda low=-2: d.tensor(dtype, [channels], low, 2)
    if op == "BatchNormalization":
        return Case(op, {"x": x, "s": vector(), "b": vector(), "m": vector(), "v": vector(0.1)}, ("s", "b", "m", "v") if d.maybe() else ())
    if op == "GroupNormalization":
        return Case(op, {"x": x, "s": vector(), "b": vector()}, opset=21, num_groups=d.pick([g for g in (1, 2, 4) if channels % g == 0]))
    return Case(op, {"x": x, "s": vector(), "b": vector()}, ("s", "b"))


@makes("Resize")
def resize(d, op):
    rank = d.pick((1, 2, 2, 3))
    mode = d.pick(("nearest", "linear", "cubic") if rank == 2 else ("nearest", "linear"))
    shape = [d.int(1, 2), d.int(1, 3)] + [d.int(2 if mode == "cubic" else 1, 9) for _ in range(rank)]
    attributes = {"mode": mode, "coordinate_transformation_mode": d.pick(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))}
    if mode == "nearest":
        attributes["nearest_mode"] = d.pick(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    x = d.tensor(d.pick(("float32", "float32", "uint8") if mode != "cubic" else ("float32",)), shape, -4, 4)
    if x.dtype.kind == "u" and mode == "linear" and rank != 2:
        x = x.astype(np.float32)
    if d.maybe():
        scales = [1.0, 1.0] + [float(np.float32(d.pick((0.5, 0.6, 1.0, 1.5, 2.0, 2.7, 3.0)))) for _ in range(rank)]
        return Case(op, {"x": x, "roi": None, "scales": np.array(scales, np.float32)}, ("scales",), **attributes)
    sizes = shape[:2] + [d.int(1, 15) for _ in range(rank)]
    return Case(op, {"x": x, "roi": None, "scales": None, "sizes": np.array(sizes, np.int64)}, ("sizes",), **attributes)


@makes("DepthToSpace", "SpaceToDepth", "Trilu", "EyeLike", "OneHot", "Range", "Einsum", "ReverseSequence", "Compress", "Unique")
def others(d, op):
    dtype = d.pick(("float32", "int64", "int32"))
    if op == "DepthToSpace":
        b = d.int(1, 3)
        return Case(op, {"x": d.tensor("float32", [d.int(1, 2), b * b * d.int(1, 3), d.int(1, 5), d.int(1, 5)])}, blocksize=b, mode=d.pick(("DCR", "CRD")))
    if op == "SpaceToDepth":
        b = d.int(1, 3)
        return Case(op, {"x": d.tensor("float32", [d.int(1, 2), d.int(1, 3), b * d.int(1, 5), b * d.int(1, 5)])}, blocksize=b)
    if op == "Trilu":
        shape = d.shape(2, 4)
        return Case(op, {"x": d.tensor(dtype, shape), "k": np.array(d.int(-4, 4), np.int64)}, ("k",), upper=d.int(0, 1))
    if op == "EyeLike":
        return Case(op, {"x": d.tensor("float32", [d.size(), d.size()])}, k=d.int(-3, 3), dtype=d.pick((1, 6, 7)))
    if op == "OneHot":
        depth = d.int(1, 6)
        i = d.rng.integers(-depth - 1, depth + 1, d.shape(0, 3))
        return Case(op, {"i": np.asarray(i, np.int64), "depth": np.array(depth, np.int64), "v": np.array([0, 1], np.float32)}, ("depth", "v"), axis=d.int(-1, i.ndim))
    if op == "Range":
        kind = d.pick(("int64", "int32", "float32"))
        a, b, c = (np.array(v, kind) for v in (d.int(-5, 5), d.int(-5, 9), d.pick((1, 2, -1, 3))))
        return Case(op, {"a": a, "b": b, "c": c}, ("a", "b", "c") if d.maybe() else ())
    if op == "Einsum":
        sizes = {c: d.int(1, 6) for c in "abcde"}
        text = d.pick(("ab,bc->ac", "abc,acd->abd", "ab->ba", "abc->b", "ab,ab->", "abc,cd->abd", "a,b->ab", "abcd,abed->abce", "aa->a", "abc,ac->ab"))
        inputs = {f"x{i}": d.tensor("float32", [sizes[c] for c in part]) for i, part in enumerate(text.split("->")[0].split(","))}
        return Case(op, inputs, equation=text)
    if op == "ReverseSequence":
        t, b = d.int(1, 6), d.int(1, 4)
        return Case(op, {"x": d.tensor("float32", [t, b, d.int(1, 3)]), "l": d.rng.integers(1, t + 1, b).astype(np.int64)}, time_axis=0, batch_axis=1)
    shape = d.shape(1, 3)
    if op == "Compress":
        axis = d.int(0, len(shape) - 1)
        return Case(op, {"x": d.tensor(dtype, shape), "c": d.tensor("bool", [shape[axis]])}, ("c",) if d.maybe() else (), axis=axis)
    return Case(op, {"x": d.tensor(dtype, shape)}, outputs=4, sorted=1)


def build(case, d):
    """The model, with sizes of inputs left open at times, and its inputs."""
    given = {n: v for n, v in case.inputs.items() if v is not None and n not in case.constants}
    symbols = d.maybe(0.5)
    code = helper.np_dtype_to_tensor_dtype
    infos = [helper.make_tensor_value_info(n, code(v.dtype), [f"{n}_{i}" for i in range(v.ndim)] if symbols else v.shape) for n, v in given.items()]
    names = [n if v is not None else "" for n, v in case.inputs.items()]
    while names and not names[-1]:
        names.pop()
    results = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, results, domain=case.domain, **case.attributes)
    constants = [numpy_helper.from_array(v, n) for n, v in case.inputs.items() if v is not None and n in case.constants]
    graph = helper.make_graph([node], case.op, infos, [helper.make_empty_tensor_value_info(r) for r in results], constants)
    opsets = [helper.make_opsetid("", case.opset or 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), given


def drawn(names, seed):
    """A case that onnxruntime takes, with its results."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    for attempt in range(20):
        d = Draw([seed, attempt])
        name = names[d.rng.integers(len(names))]
        case = MAKERS[name](d, name)
        case.attributes = {key: value for key, value in case.attributes.items() if value != []}
        model, given = build(case, d)
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            outputs = session.run(None, given)
        except Exception:
            continue
        return case, model, given, dict(zip((o.name for o in session.get_outputs()), outputs))
    return None


TOLERANCE = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-9}


def difference(wanted, found):
    """The first difference, in words."""
    for name, want in wanted.items():
        got = found[name]
        if want.dtype.kind == "u" and got.dtype.kind == "i":
            # Unsigned numbers are computed, and stored, in a wider type; 64 bits wrap.
            got = got.astype(want.dtype)
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"{name} is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
        if want.dtype.kind != "f":
            wrong = got != want
        else:
            bound = TOLERANCE[str(want.dtype)]
            with np.errstate(all="ignore"):
                w, g = want.astype(np.float64), got.astype(np.float64)
                finite = w[np.isfinite(w)]
                near = np.abs(w - g) <= bound * (np.abs(w) + max(1.0, np.abs(finite).max() if finite.size else 0.0))
            wrong = ~(near | (w == g) | (np.isnan(w) & np.isnan(g)))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return f"{name}{list(want.shape)}: {int(wrong.sum())} wrong, at {at} {got[at]} instead of {want[at]}"
    return None


def try_one(binary, names, seed, keep):
    made = drawn(names, seed)
    if made is None:
        return seed, "?", "no peer", ""
    case, model, given, wanted = made
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        onnx.save(model, folder / "case.onnx")
        np.savez(folder / "in.npz", **given)
        command = [binary, "run", str(folder / "case.onnx"), "-o", str(folder / "out.npz"), "--threads", "1"]
        command += ["--inputs", str(folder / "in.npz")] if given else ["--random"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            return seed, case.op, "failed", "no end within two minutes"
        attributes = {k: v if not isinstance(v, onnx.TensorProto) else "..." for k, v in case.attributes.items()}
        about = f"{ {n: f'{v.dtype}{list(v.shape)}' for n, v in case.inputs.items() if v is not None} } {attributes}"
        if done.returncode == 0:
            with np.load(folder / "out.npz") as found:
                said = difference(wanted, found)
            verdict = "differs" if said else "same"
        else:
            verdict = "refused" if done.returncode == 2 else "failed"
            said = " ".join(line for line in (done.stderr or done.stdout).splitlines() if "given (their sizes" not in line)[:400]
        if verdict != "same" and keep:
            stem = Path(keep) / f"{case.op}_{seed}"
            stem.parent.mkdir(parents=True, exist_ok=True)
            onnx.save(model, f"{stem}.onnx")
            np.savez(f"{stem}.in.npz", **given)
            np.savez(f"{stem}.out.npz", **wanted)
        return seed, case.op, verdict, "" if verdict == "same" else f"{said} | {about}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    np.seterr(all="ignore")
    names = [name for name in MAKERS if args.only in name]
    by_op, lines = collections.defaultdict(collections.Counter), []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for seed, op, verdict, said in pool.map(lambda s: try_one(args.binary, names, s, args.keep), range(args.seed, args.seed + args.count)):
            by_op[op][verdict] += 1
            if said:
                lines.append(f"{verdict} {op} seed {seed}: {said}")
    for op, counts in sorted(by_op.items()):
        print(op, dict(counts))
    print("\n".join(sorted(lines)))
    print(dict(sum(by_op.values(), collections.Counter())))


if __name__ == "__main__":
    main()
