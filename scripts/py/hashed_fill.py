"""Deterministic weights by a counter-based hash: the Python twin of frontend/src/onnx/randomize.rs.

Element i of the tensor called NAME, with seed s, is

    hash  = fnv1a64(utf8(NAME)) XOR s
    z     = splitmix64(hash + (i + 1) * 0x9E3779B97F4A7C15)          (all modulo 2^64; the finalizer of splitmix64)
    u     = (z >> 40) / 2^24                                          in [0, 1)
    value = float32(low + (high - low) * u)                           computed in float64, rounded once

The range [low, high) follows from the role that the tensor's first consumer gives it (`role`, `span`).
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
PASS_THROUGH = ("Unsqueeze", "Squeeze", "Reshape", "Flatten", "Identity", "Transpose")


def fnv1a64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def uniform(name, seed, count, low, high):
    """Returns `count` float32 values in [low, high)."""
    start = np.uint64(fnv1a64(name) ^ seed)
    out = np.empty(count, np.float32)
    with np.errstate(over="ignore"):
        for first in range(0, count, 1 << 22):
            last = min(count, first + (1 << 22))
            z = start + np.arange(first + 1, last + 1, dtype=np.uint64) * GOLDEN
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
            u = (z >> np.uint64(40)).astype(np.float64) / float(1 << 24)
            out[first:last] = low + (high - low) * u
    return out


def role(graph, name):
    """Returns what the first node that reads `name` uses it as: (kind, node)."""
    for node in graph.node:
        for index, operand in enumerate(node.input):
            if operand != name:
                continue
            if node.op_type in PASS_THROUGH and index == 0:
                return role(graph, node.output[0])
            kinds = {
                "Conv": {1: "weight", 2: "bias"},
                "Gemm": {1: "weight", 2: "bias"},
                "MatMul": {1: "weight"},
                "BatchNormalization": {1: "scale", 2: "bias", 3: "bias", 4: "variance"},
                "Mul": {0: "factor", 1: "factor"},
            }
            return kinds.get(node.op_type, {}).get(index, "bias"), node
    return "bias", None


def fan_in(node, dims):
    if node.op_type == "Conv":
        return int(np.prod(dims[1:]))
    if node.op_type == "Gemm":
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        return dims[1] if transposed else dims[0]
    return dims[-2] if len(dims) >= 2 else dims[0]


def span(kind, node, dims, gain, head):
    """Returns the range of a role. He's bound keeps the variance through ReLU."""
    if kind == "weight":
        bound = float(np.sqrt(6.0 / max(1, fan_in(node, dims)))) * head
        return -bound, bound
    if kind == "scale":
        return 0.5 * gain, 1.5 * gain
    if kind in ("factor", "variance"):
        return 0.5, 1.5
    return -0.2, 0.2


def fill(model, seed=0, gain=1.0, head=1.0):
    """Replaces every float32 initializer, and every ConstantOfShape of a constant shape, by hashed weights.

    `gain` scales batch norm's scale (residual stacks double their variance per block unless each branch is damped);
    `head` scales the weights of the last Conv, Gemm or MatMul, so that a softmax after it does not saturate.
    """
    graph = model.graph
    last = [node for node in graph.node if node.op_type in ("Conv", "Gemm", "MatMul")][-1:]
    initializers = {t.name: t for t in graph.initializer}
    filled, kept, nodes = [], [], []
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            filled.append((tensor.name, list(tensor.dims)))
        else:
            kept.append(tensor)
    for node in graph.node:
        shape = initializers.get(node.input[0]) if node.op_type == "ConstantOfShape" else None
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if shape is not None and (value is None or value.data_type == onnx.TensorProto.FLOAT):
            filled.append((node.output[0], [int(d) for d in numpy_helper.to_array(shape)]))
        else:
            nodes.append(node)
    made = []
    for name, dims in filled:
        kind, node = role(graph, name)
        low, high = span(kind, node, dims, gain, head if node in last else 1.0)
        data = uniform(name, seed, int(np.prod(dims)), low, high)
        made.append(helper.make_tensor(name, onnx.TensorProto.FLOAT, dims, data.tobytes(), raw=True))
    names = {name for name, _ in filled}
    inputs = [i for i in graph.input if i.name not in names and i.name not in initializers]
    kept_nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.initializer[:], graph.node[:], graph.input[:]
    graph.initializer.extend(kept + made)
    graph.node.extend(kept_nodes)
    graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)  # from here on, initializers need not be graph inputs
    return model
