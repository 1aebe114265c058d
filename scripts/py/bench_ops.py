"""Times single operators beside onnxruntime on the CPU, and compares their results.

    python scripts/py/bench_ops.py GRAPHC [--threads 2] [--runs 20] [--only WORD] [--check] [--folder DIR]

Each case is an ONNX model of one node on f32 of a size that takes a few milliseconds at most. The table has the medians of both in
milliseconds and their quotient, worst first. --only takes the cases whose names have a word; --check also compares the outputs.
Needs onnx, onnxruntime and numpy.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
GENERATOR = np.random.default_rng(7)


def floats(*shape):
    return GENERATOR.uniform(-1, 1, shape).astype(np.float32)


def case(name, op, inputs, constants=(), outputs=1, domain="", opset=18, **attributes):
    """A model of one node; `constants` follow the inputs, and an empty name stands for None."""
    names = [f"x{i}" for i in range(len(inputs))]
    given = ["" if c is None else f"c{i}" for i, c in enumerate(constants)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names + given, results, domain=domain, **attributes)
    kind = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64, np.dtype(np.int32): INT32}
    kind[np.dtype(np.float16)] = TensorProto.FLOAT16
    infos = [helper.make_tensor_value_info(n, kind[x.dtype], x.shape) for n, x in zip(names, inputs)]
    initializers = [numpy_helper.from_array(c, n) for c, n in zip(constants, given) if n]
    graph = helper.make_graph([node], "case", infos, [onnx.ValueInfoProto(name=r) for r in results], initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    try:
        model = onnx.shape_inference.infer_shapes(model)
    except Exception:  # Contributed operators have no inference here.
        pass
    return name, model, dict(zip(names, inputs))


def ints(values, dtype=np.int64):
    return np.array(values, dtype)


def cases():
    image = floats(1, 64, 56, 56)
    large = floats(1, 32, 112, 112)
    yield case("conv_transpose_k2s2", "ConvTranspose", [floats(1, 128, 28, 28)], [floats(128, 64, 2, 2)], strides=[2, 2])
    yield case("conv_transpose_k4s2", "ConvTranspose", [floats(1, 128, 28, 28)], [floats(128, 64, 4, 4)], strides=[2, 2], pads=[1] * 4)
    yield case("conv_transpose_k3s1", "ConvTranspose", [floats(1, 64, 28, 28)], [floats(64, 64, 3, 3)], pads=[1] * 4)
    yield case("conv_transpose_k3s2_op", "ConvTranspose", [floats(1, 64, 28, 28)], [floats(64, 32, 3, 3), floats(32)], strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
    yield case("conv_transpose_1d", "ConvTranspose", [floats(1, 128, 400)], [floats(128, 64, 16)], strides=[8], pads=[4, 4])
    yield case("conv_transpose_grouped", "ConvTranspose", [floats(1, 64, 28, 28)], [floats(64, 1, 4, 4)], strides=[2, 2], pads=[1] * 4, group=64)
    yield case("conv_transpose_3d", "ConvTranspose", [floats(1, 32, 8, 14, 14)], [floats(32, 16, 2, 2, 2)], strides=[2, 2, 2])
    yield embedding()
    yield case("gather_axis1", "Gather", [floats(64, 512, 64)], [ints(GENERATOR.integers(0, 512, 256))], axis=1)
    yield case("gather_last", "Gather", [floats(512, 1024)], [ints(GENERATOR.integers(0, 1024, 256))], axis=1)
    yield case("gather_elements", "GatherElements", [floats(256, 1024), ints(GENERATOR.integers(0, 1024, (256, 512)))], axis=1)
    yield case("resize_nearest_x2", "Resize", [image], [None, ints([1, 1, 2, 2], np.float32)], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    yield case("resize_nearest_odd", "Resize", [image], [None, None, ints([1, 64, 80, 100])], mode="nearest")
    yield case("resize_linear_x2", "Resize", [image], [None, ints([1, 1, 2, 2], np.float32)], mode="linear")
    yield case("resize_linear_align", "Resize", [image], [None, None, ints([1, 64, 100, 100])], mode="linear", coordinate_transformation_mode="align_corners")
    yield case("resize_cubic", "Resize", [image], [None, ints([1, 1, 2, 2], np.float32)], mode="cubic")
    yield case("pad_reflect", "Pad", [large], [ints([0, 0, 3, 3, 0, 0, 3, 3])], mode="reflect")
    yield case("pad_edge", "Pad", [large], [ints([0, 0, 3, 3, 0, 0, 3, 3])], mode="edge")
    yield case("pad_constant", "Pad", [large], [ints([0, 0, 3, 3, 0, 0, 3, 3])])
    yield case("pad_reflect_1d", "Pad", [floats(1, 160000)], [ints([0, 200, 0, 200])], mode="reflect")
    yield case("max_pool_3s2", "MaxPool", [large], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    yield case("max_pool_2s2", "MaxPool", [large], kernel_shape=[2, 2], strides=[2, 2])
    yield case("max_pool_5s1", "MaxPool", [floats(1, 256, 20, 20)], kernel_shape=[5, 5], pads=[2] * 4)
    yield case("max_pool_13s1", "MaxPool", [floats(1, 128, 20, 20)], kernel_shape=[13, 13], pads=[6] * 4)
    yield case("max_pool_1d", "MaxPool", [floats(8, 64, 1000)], kernel_shape=[3], strides=[2])
    yield case("max_pool_3d", "MaxPool", [floats(1, 32, 16, 28, 28)], kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    yield case("avg_pool_3s1", "AveragePool", [image], kernel_shape=[3, 3], pads=[1] * 4)
    yield case("avg_pool_2s2", "AveragePool", [large], kernel_shape=[2, 2], strides=[2, 2])
    yield case("avg_pool_1d", "AveragePool", [floats(8, 64, 1000)], kernel_shape=[4], strides=[4])
    yield case("avg_pool_3d", "AveragePool", [floats(1, 32, 16, 28, 28)], kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    yield case("global_avg_pool", "GlobalAveragePool", [floats(4, 512, 14, 14)])
    yield case("depthwise_3s1", "Conv", [large], [floats(32, 1, 3, 3), floats(32)], group=32, pads=[1] * 4)
    yield case("depthwise_3s2", "Conv", [large], [floats(32, 1, 3, 3), floats(32)], group=32, pads=[1] * 4, strides=[2, 2])
    yield case("depthwise_5s1", "Conv", [floats(1, 240, 28, 28)], [floats(240, 1, 5, 5), floats(240)], group=240, pads=[2] * 4)
    yield case("depthwise_7s1", "Conv", [floats(1, 96, 56, 56)], [floats(96, 1, 7, 7), floats(96)], group=96, pads=[3] * 4)
    yield case("depthwise_3_small", "Conv", [floats(1, 576, 14, 14)], [floats(576, 1, 3, 3), floats(576)], group=576, pads=[1] * 4)
    yield case("depthwise_1d", "Conv", [floats(1, 256, 1000)], [floats(256, 1, 31), floats(256)], group=256, pads=[15, 15])
    yield case("grouped_conv", "Conv", [floats(1, 128, 28, 28)], [floats(128, 4, 3, 3)], group=32, pads=[1] * 4)
    yield case("conv_3s1", "Conv", [image], [floats(64, 64, 3, 3), floats(64)], pads=[1] * 4)
    yield case("conv_1d", "Conv", [floats(1, 80, 1500)], [floats(256, 80, 3)], pads=[1, 1])
    yield case("conv_3d", "Conv", [floats(1, 16, 16, 28, 28)], [floats(32, 16, 3, 3, 3)], pads=[1] * 6)
    yield case("top_k", "TopK", [floats(64, 4096)], [ints([10])], outputs=2)
    yield case("top_k_vocabulary", "TopK", [floats(1, 50257)], [ints([50])], outputs=2)
    yield case("arg_max", "ArgMax", [floats(64, 4096)], axis=1)
    yield case("arg_max_channels", "ArgMax", [floats(1, 21, 128, 128)], axis=1)
    yield case("cum_sum", "CumSum", [floats(64, 4096)], [ints(1)])
    yield case("cum_sum_outer", "CumSum", [floats(256, 1024)], [ints(0)])
    yield case("instance_norm", "InstanceNormalization", [image], [floats(64), floats(64)])
    yield case("layer_norm", "LayerNormalization", [floats(512, 768)], [floats(768), floats(768)])
    yield case("group_norm", "GroupNormalization", [image], [floats(64), floats(64)], num_groups=32, opset=21)
    yield case("batch_norm", "BatchNormalization", [large], [floats(32), floats(32), floats(32), np.abs(floats(32))])
    yield case("softmax", "Softmax", [floats(12, 128, 128)])
    yield case("softmax_channels", "Softmax", [floats(1, 21, 128, 128)], axis=1)
    yield case("transpose_nchw_nhwc", "Transpose", [large], perm=[0, 2, 3, 1])
    yield case("transpose_nhwc_nchw", "Transpose", [floats(1, 112, 112, 32)], perm=[0, 3, 1, 2])
    yield case("transpose_heads", "Transpose", [floats(4, 128, 12, 64)], perm=[0, 2, 1, 3])
    yield case("transpose_2d", "Transpose", [floats(1024, 1024)], perm=[1, 0])
    yield case("depth_to_space", "DepthToSpace", [image], blocksize=2)
    yield case("space_to_depth", "SpaceToDepth", [large], blocksize=2)
    yield case("slice_step2", "Slice", [large], [ints([0]), ints([112]), ints([3]), ints([2])])
    yield case("concat", "Concat", [image, image], axis=1)
    yield case("tile", "Tile", [floats(64, 256)], [ints([8, 4])])
    yield case("expand", "Expand", [floats(1, 64, 1, 256)], [ints([8, 64, 16, 256])])
    yield case("reduce_mean_last", "ReduceMean", [floats(512, 1024)], [ints([1])])
    yield case("reduce_mean_first", "ReduceMean", [floats(512, 1024)], [ints([0])])
    yield case("reduce_max_middle", "ReduceMax", [floats(16, 256, 128)], [ints([1])])
    yield where()
    yield case("gelu_erf", "Erf", [floats(512, 1024)])
    yield case("sigmoid", "Sigmoid", [floats(512, 1024)])
    yield case("add_f16", "Add", [floats(512, 1024).astype(np.float16), floats(512, 1024).astype(np.float16)])
    yield case("relu_f16", "Relu", [floats(1024, 1024).astype(np.float16)])
    yield case("scatter_nd", "ScatterND", [floats(4096, 64), ints(GENERATOR.permutation(4096)[:256].reshape(256, 1)), floats(256, 64)])


def embedding():
    ids = ints(GENERATOR.integers(0, 30000, (8, 128)))
    name, model, feeds = case("embedding", "Gather", [ids], [floats(30000, 384)], axis=0)
    node = model.graph.node[0]
    node.input[0], node.input[1] = node.input[1], node.input[0]
    del model.graph.value_info[:]
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0", FLOAT, [8, 128, 384]))
    return name, model, feeds


def where():
    name, model, feeds = case("where", "Where", [floats(512, 1024), floats(512, 1024), floats(512, 1024)])
    graph = model.graph
    graph.node[0].input[0] = "condition"
    graph.node.insert(0, helper.make_node("Greater", ["x0", "x1"], ["condition"]))
    return name, model, feeds


def time_ort(path, feeds, threads, runs):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    results = session.run(None, feeds)
    times = []
    for run in range(runs + 3):
        start = time.perf_counter()
        session.run(None, feeds)
        if run >= 3:
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times), dict(zip([o.name for o in session.get_outputs()], results))


def time_graphc(graphc, path, inputs, threads, runs):
    command = [graphc, "bench", path, "--inputs", inputs, "--threads", str(threads), "--runs", str(runs), "--format", "json", "-q"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        return None, result.stderr.strip().splitlines()[0] if result.stderr.strip() else "failed"
    report = json.loads(result.stdout)
    return report["median_ms"] if "median_ms" in report else report["median_us"] / 1e3, ""


def differs(graphc, path, inputs, expected, folder):
    np.savez(folder / "out.npz", **expected)
    command = [graphc, "run", path, "--inputs", inputs, "--expect", str(folder / "out.npz"), "-q"]
    result = subprocess.run(command, capture_output=True, text=True)
    return "" if result.returncode == 0 else "DIFFERS " + (result.stderr + result.stdout).strip().splitlines()[0]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("graphc")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--runs", type=int, default=20)
    arguments.add_argument("--only", action="append", default=[])
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--folder", type=pathlib.Path)
    options = arguments.parse_args()
    folder = options.folder or pathlib.Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, model, feeds in cases():
        if options.only and not any(word in name for word in options.only):
            continue
        path, inputs = str(folder / f"{name}.onnx"), str(folder / f"{name}.in.npz")
        onnx.save(model, path)
        np.savez(inputs, **feeds)
        theirs, expected = time_ort(path, feeds, options.threads, options.runs)
        ours, note = time_graphc(options.graphc, path, inputs, options.threads, options.runs)
        if options.check and ours is not None:
            note = differs(options.graphc, path, inputs, expected, folder)
        rows.append((ours / theirs if ours is not None else float("inf"), name, ours, theirs, note))
        print(".", end="", flush=True)
    print()
    for ratio, name, ours, theirs, note in sorted(rows, reverse=True):
        print(f"{name:26} {ours if ours is not None else float('nan'):9.3f} {theirs:9.3f} {ratio:7.2f}  {note}")


if __name__ == "__main__":
    main()
