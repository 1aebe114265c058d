"""Packs models with quantised ops and what onnxruntime computes for them into tests/data/onnx_quantised.bin.

    python scripts/py/quantised_cases.py tests/data/onnx_quantised.bin

Two kinds: each quantised op alone (names begin with `op_`), and small float networks as onnxruntime's quantiser writes
them (`static_`, `dynamic_`, `blocks_`), in each of its formats and types. Weights and inputs are random, of fixed seeds;
onnxruntime runs without its optimisations, so that every op is computed as it stands in the file.

File: as that of onnx_node_cases.py.
"""

import struct
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

from cases import blob, session

CASES = []
OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]


def add(name, model, inputs):
    run = session(model)
    names = [o.name for o in run.get_outputs()]
    outputs = run.run(names, inputs)

    def tensors(pairs):
        blobs = [numpy_helper.from_array(np.ascontiguousarray(v), n).SerializeToString(deterministic=True) for n, v in pairs]
        return struct.pack("<I", len(blobs)) + b"".join(map(blob, blobs))

    data = blob(name.encode()) + blob(model.SerializeToString(deterministic=True))
    CASES.append((name, data + tensors(inputs.items()) + tensors(zip(names, outputs))))


def one_op(name, op, feeds, constants, outputs, domain="com.microsoft", opsets=OPSETS, **attributes):
    """One node; the order of its inputs is that of `feeds` and `constants` together, "" for one left out."""
    order = attributes.pop("order")
    node = helper.make_node(op, order, [o[0] for o in outputs], domain=domain, name=op, **attributes)
    code = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [node],
        name,
        [helper.make_tensor_value_info(n, code(v.dtype), v.shape) for n, v in feeds.items()],
        [helper.make_tensor_value_info(n, ty, None) for n, ty in outputs],
        [v if isinstance(v, TensorProto) else numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )
    add("op_" + name, helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds)


def random(seed, shape, dtype):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, size=shape, endpoint=True).astype(dtype)


F = np.float32
TYPE = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8, np.uint16: TensorProto.UINT16, np.int16: TensorProto.INT16}


def zero_of(dtype, at):
    return dtype(at if np.iinfo(dtype).min == 0 else at - 128)


def alone():
    for dtype, tag in [(np.uint8, "u8"), (np.int8, "s8")]:
        z = lambda at: zero_of(dtype, at)  # noqa: B023, E731
        a, b = random(1, (3, 5, 7), dtype), random(2, (5, 1), dtype)
        scales = {"as": F(0.03), "az": z(120), "bs": F(0.011), "bz": z(7), "cs": F(0.034), "cz": z(131)}
        names = ["a", "as", "az", "b", "bs", "bz", "cs", "cz"]
        for op in ["QLinearAdd", "QLinearMul"]:
            one_op(f"{op}_{tag}", op, {"a": a, "b": b}, scales, [("c", TYPE[dtype])], order=names)
        x = random(3, (2, 3, 9, 8), dtype)
        xy = {"xs": F(0.04), "xz": z(100), "ys": F(0.021), "yz": z(90)}
        names = ["x", "xs", "xz", "ys", "yz"]
        out = [("y", TYPE[dtype])]
        pool = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
        one_op(f"QLinearAveragePool_{tag}", "QLinearAveragePool", {"x": x}, xy, out, order=names, **pool)
        one_op(f"QLinearAveragePool_{tag}_padding", "QLinearAveragePool", {"x": x}, xy, out, order=names,
               count_include_pad=1, **pool)
        for last in [0, 1]:
            one_op(f"QLinearGlobalAveragePool_{tag}_{last}", "QLinearGlobalAveragePool", {"x": x}, xy, out, order=names,
                   channels_last=last)
        one_op(f"QLinearLeakyRelu_{tag}", "QLinearLeakyRelu", {"x": x}, xy, out, order=names, alpha=0.2)
        unit = xy | {"ys": F(1 / 256), "yz": z(0)}
        one_op(f"QLinearSigmoid_{tag}", "QLinearSigmoid", {"x": x}, unit, out, order=names)
        for opset, axis in [(13, -1), (13, 1), (11, 2)]:
            one_op(f"QLinearSoftmax_{tag}_{opset}_{axis % 4}", "QLinearSoftmax", {"x": x}, unit, out, order=names,
                   opset=opset, axis=axis)
        parts = {"ys": F(0.05), "yz": z(128), "as": F(0.05), "az": z(128), "bs": F(0.02), "bz": z(40)}
        one_op(f"QLinearConcat_{tag}", "QLinearConcat", {"a": random(4, (2, 3), dtype), "b": random(5, (2, 4), dtype)},
               parts, out, order=["ys", "yz", "a", "as", "az", "b", "bs", "bz"], axis=1)
        where = {"xs": F(0.05), "xz": z(128), "zs": F(0.04), "zz": z(120), "ys": F(0.02), "yz": z(40)}
        one_op(f"QLinearWhere_{tag}", "QLinearWhere",
               {"c": random(6, (4, 5), np.float32) > 0, "x": random(4, (4, 5), dtype), "y": random(5, (5,), dtype)},
               where, [("z", TYPE[dtype])], order=["c", "x", "xs", "xz", "y", "ys", "yz", "zs", "zz"])
        m, w = random(7, (5, 12), dtype), random(8, (12, 6), np.int8)
        columns = np.linspace(0.01, 0.03, 6, dtype=np.float32)
        bias = random(9, (6,), np.float32)
        gemm = {"as": F(0.02), "az": z(110), "w": w, "ws": columns, "wz": np.arange(6, dtype=np.int8) - 3,
                "c": (bias * 500).astype(np.int32), "ys": F(0.3), "yz": z(120)}
        names = ["m", "as", "az", "w", "ws", "wz", "c", "ys", "yz"]
        one_op(f"QGemm_{tag}", "QGemm", {"m": m}, gemm, out, order=names, alpha=0.5)
        flat = {"ws": F(0.013), "wz": np.int8(0)}
        one_op(f"QGemm_{tag}_transposed", "QGemm", {"m": m.T.copy()}, gemm | flat | {"w": w.T.copy()}, out,
               order=names, transA=1, transB=1)
        one_op(f"QGemm_{tag}_float", "QGemm", {"m": m}, gemm, [("y", 1)], order=names[:7])
        to_float = {"w": w, "as": F(0.02), "ws": columns, "az": z(110), "wz": np.zeros(6, np.int8), "bias": bias}
        one_op(f"MatMulIntegerToFloat_{tag}", "MatMulIntegerToFloat", {"m": random(7, (2, 5, 12), dtype)}, to_float,
               [("y", 1)], order=["m", "w", "as", "ws", "az", "wz", "bias"])
        one_op(f"QuantizeLinear_{tag}", "QuantizeLinear", {"x": random(10, (3, 20), np.float32) * 3}, {"s": F(0.1), "z": z(128)},
               [("y", TYPE[dtype])], domain="", order=["x", "s", "z"])
    for dtype, tag in [(np.uint16, "u16"), (np.int16, "s16")]:
        x, zero = random(11, (4, 6), np.float32) * 2, dtype(3000 if dtype == np.uint16 else -12)
        one_op(f"contrib_QuantizeLinear_{tag}", "QuantizeLinear", {"x": x}, {"s": F(0.00017), "z": zero},
               [("y", TYPE[dtype])], order=["x", "s", "z"])
        vector = {"s": np.array([0.1, 0.2, 0.3, 0.4], np.float32), "z": np.array([1, 2, 3, 4], dtype)}
        one_op(f"contrib_DequantizeLinear_{tag}", "DequantizeLinear", {"x": random(12, (4, 6), dtype)}, vector,
               [("y", 1)], order=["x", "s", "z"], axis=0)
    w = random(13, (16, 6), np.int8)
    feed = {"a": random(14, (2, 3, 16), np.float32)}
    one_op("DynamicQuantizeMatMul", "DynamicQuantizeMatMul", feed,
           {"w": w, "ws": np.linspace(0.01, 0.02, 6, dtype=np.float32), "wz": np.zeros(6, np.int8), "bias": random(15, (6,), np.float32)},
           [("y", 1)], order=["a", "w", "ws", "wz", "bias"])
    x, w = random(16, (2, 5, 8), np.uint8), random(17, (8, 24), np.int8)
    project = {"w": w, "b": random(18, (24,), np.float32), "xs": F(0.01), "ws": F(0.01), "xz": np.uint8(120), "wz": np.int8(0)}
    names = ["x", "w", "b", "xs", "ws", "", "xz", "wz"]
    one_op("QAttention", "QAttention", {"x": x}, project, [("y", 1)], order=names, num_heads=2)
    one_op("QAttention_causal", "QAttention", {"x": x}, project, [("y", 1)], order=names, num_heads=2, unidirectional=1)
    past = random(19, (2, 2, 2, 3, 4), np.float32)
    one_op("QAttention_past", "QAttention", {"x": x, "past": past}, project, [("y", 1), ("present", 1)],
           order=[*names, "past"], num_heads=2, unidirectional=1)
    lengths, positions = np.array([5, 3], np.int32), np.array([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]], np.int32)
    for label, mask in [("lengths", lengths), ("positions", positions)]:
        one_op(f"QAttention_{label}", "QAttention", {"x": x, "mask": mask}, project, [("y", 1)],
               order=[*names[:5], "mask", *names[6:]], num_heads=2)
    rng = np.random.default_rng(20)
    for bits, k in [(4, 40), (4, 64), (8, 40), (2, 48)]:
        n, block = 6, 16
        blocks = -(-k // block)
        packed = rng.integers(0, 256, size=(n, blocks, block * bits // 8)).astype(np.uint8)
        zeros = rng.integers(0, 256, size=(n, -(-blocks * bits // 8))).astype(np.uint8)
        constants = {"b": packed, "s": rng.random((n, blocks), np.float32) * F(0.1) + F(0.01), "z": zeros}
        sizes = {"K": k, "N": n, "bits": bits, "block_size": block}
        a = {"a": random(21, (3, k), np.float32)}
        one_op(f"MatMulNBits_{bits}_{k}", "MatMulNBits", a, constants, [("y", 1)], order=["a", "b", "s"], **sizes)
        one_op(f"MatMulNBits_{bits}_{k}_zeros", "MatMulNBits", a, constants, [("y", 1)], order=["a", "b", "s", "z"], **sizes)
        if bits == 8:
            continue  # onnxruntime's CPU has it only with packed zero points
        one_op(f"MatMulNBits_{bits}_{k}_bias", "MatMulNBits", a,
               constants | {"z": rng.random((n, blocks), np.float32) * F(8), "bias": random(22, (n,), np.float32)},
               [("y", 1)], order=["a", "b", "s", "z", "", "bias"], **sizes)
    indices = {"i": np.array([[3, 0], [6, -1]], np.int64)}
    scales = rng.random((7, 2), np.float32) + F(0.1)
    for bits in [4, 8]:
        data = rng.integers(0, 256, size=(7, 32 * bits // 8)).astype(np.uint8)
        zeros = rng.integers(0, 256, size=(7, -(-2 * bits // 8))).astype(np.uint8)
        for label, more in [("", []), ("_zeros", ["z"])]:
            one_op(f"GatherBlockQuantized_u8_{bits}{label}", "GatherBlockQuantized", indices,
                   {"d": data, "s": scales, "z": zeros}, [("y", 1)], order=["d", "i", "s", *more],
                   bits=bits, block_size=16, gather_axis=0, quantize_axis=1)
    for code, tag, low in [(TensorProto.UINT4, "u4", 0), (TensorProto.INT4, "s4", -8)]:
        def four(name, shape):
            numbers = rng.integers(low, low + 16, size=shape)  # noqa: B023
            return helper.make_tensor(name, code, shape, numbers.flatten().tolist())  # noqa: B023

        constants = {"d": four("d", (7, 32)), "s": scales, "z": four("z", (7, 2))}
        for axis, order in [(0, ["d", "i", "s", "z"]), (0, ["d", "i", "s"]), (1, ["d", "i", "s", "z"])]:
            one_op(f"GatherBlockQuantized_{tag}_{axis}_{len(order)}", "GatherBlockQuantized", indices, constants, [("y", 1)],
                   order=order, block_size=16, gather_axis=axis, quantize_axis=1)
        one_op(f"DequantizeLinear_blocks_{tag}", "DequantizeLinear", {}, constants, [("y", 1)], domain="",
               order=["d", "s", "z"], axis=1, block_size=16)


def network():
    """A convolution net with a residual, then a product, a softmax: what the quantiser has ops for."""
    rng = np.random.default_rng(30)
    weights = {
        "w1": rng.normal(size=(8, 3, 3, 3)) * 0.3, "b1": rng.normal(size=8) * 0.1, "w2": rng.normal(size=(8, 8, 3, 3)) * 0.15,
        "b2": rng.normal(size=8) * 0.1, "w3": rng.normal(size=(16, 10)) * 0.3, "b3": rng.normal(size=10) * 0.1,
        "w4": rng.normal(size=(10, 12)) * 0.4,
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"], name="relu1"),
        node("Conv", ["r1", "w2", "b2"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        node("LeakyRelu", ["c2"], ["r2"], name="leaky", alpha=0.1),
        node("Add", ["r1", "r2"], ["sum"], name="add"),
        node("MaxPool", ["sum"], ["m"], name="max", kernel_shape=[2, 2], strides=[2, 2]),
        node("AveragePool", ["m"], ["p"], name="average", kernel_shape=[2, 2], strides=[1, 1]),
        node("Sigmoid", ["p"], ["s"], name="sigmoid"),
        node("Mul", ["p", "s"], ["g"], name="mul"),
        node("Concat", ["p", "g"], ["j"], name="concat", axis=1),
        node("GlobalAveragePool", ["j"], ["a"], name="global"),
        node("Flatten", ["a"], ["f"], name="flatten"),
        node("Gemm", ["f", "w3", "b3"], ["l"], name="gemm"),
        node("MatMul", ["l", "w4"], ["t"], name="matmul"),
        node("Softmax", ["t"], ["y"], name="softmax", axis=-1),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "network", [value("x", 1, ["n", 3, 8, 8])], [value("y", 1, ["n", 12]), value("t", 1, ["n", 12])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


class Calibration(CalibrationDataReader):
    def __init__(self):
        self.left = iter([{"x": random(40 + i, (2, 3, 8, 8), np.float32)} for i in range(4)])

    def get_next(self):
        return next(self.left, None)


def quantised():
    model, x = network(), {"x": random(31, (2, 3, 8, 8), np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "a.onnx", Path(folder) / "b.onnx"
        onnx.save(model, source)
        types = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8, "u16": QuantType.QUInt16, "s16": QuantType.QInt16}
        for form, name in [(QuantFormat.QOperator, "qoperator"), (QuantFormat.QDQ, "qdq")]:
            for activations, weights in [("u8", "u8"), ("u8", "s8"), ("s8", "s8"), ("u16", "s8"), ("s16", "s8")]:
                for per_channel in [False, True]:
                    wide = activations.endswith("16")
                    if wide and (form == QuantFormat.QOperator or per_channel) or per_channel and weights == "u8":
                        continue
                    quantize_static(source, target, Calibration(), quant_format=form, per_channel=per_channel,
                                    activation_type=types[activations], weight_type=types[weights])
                    channel = "_channels" if per_channel else ""
                    add(f"static_{name}_{activations}_{weights}{channel}", onnx.load(target), x)
        for weights in ["u8", "s8"]:
            quantize_dynamic(source, target, weight_type=types[weights])
            add(f"dynamic_{weights}", onnx.load(target), x)
        rng = np.random.default_rng(32)
        tables = {"w1": rng.normal(size=(64, 32)) * 0.2, "w2": rng.normal(size=(32, 48)) * 0.2, "table": rng.normal(size=(9, 64))}
        node, value = helper.make_node, helper.make_tensor_value_info
        graph = helper.make_graph(
            [node("Gather", ["table", "i"], ["e"], name="gather"), node("MatMul", ["e", "w1"], ["h"], name="first"),
             node("Relu", ["h"], ["r"], name="relu"), node("MatMul", ["r", "w2"], ["y"], name="second")],
            "blocks", [value("i", 7, ["n"])], [value("y", 1, ["n", 48])],
            [numpy_helper.from_array(v.astype(np.float32), k) for k, v in tables.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        for form, name in [(QuantFormat.QOperator, "qoperator"), (QuantFormat.QDQ, "qdq")]:
            for symmetric in [True, False]:
                ops = ("MatMul", "Gather") if form == QuantFormat.QOperator else ("MatMul",)
                config = DefaultWeightOnlyQuantConfig(
                    block_size=32, is_symmetric=symmetric, quant_format=form, op_types_to_quantize=ops)
                quantiser = MatMulNBitsQuantizer(onnx.ModelProto.FromString(model.SerializeToString()), algo_config=config)
                quantiser.process()
                add(f"blocks_{name}_{'symmetric' if symmetric else 'zeros'}", quantiser.model.model,
                    {"i": np.array([0, 8, 3], np.int64)})


def main():
    warnings.filterwarnings("ignore")
    alone()
    quantised()
    CASES.sort()
    Path(sys.argv[1]).write_bytes(b"".join(data for _, data in CASES))
    print(f"{len(CASES)} cases, {sum(len(d) for _, d in CASES)} bytes, onnxruntime {ort.__version__}")


main()
