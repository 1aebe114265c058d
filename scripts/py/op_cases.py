"""Packs models of one op each and what onnxruntime computes for them into tests/data/onnx_ops.bin.

    python scripts/py/op_cases.py tests/data/onnx_ops.bin

Recurrent layers (`rnn_`), sampling (`sample_`), transforms (`signal_`), windows (`window_`), resizing (`resize_`), classical learning
(`learned_`) and ops that onnxruntime's optimiser makes (`fused_`), at odd sizes and with options that ONNX's own node cases do not have. Sizes
of inputs are symbols where the ops allow it. Random numbers of fixed seeds.

File: as that of onnx_node_cases.py.
"""

import struct
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

from cases import blob, session

CASES = []
F = np.float32
rng = np.random.default_rng(3)
OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("ai.onnx.ml", 3)]


def rand(*shape, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(F)


def tensors(pairs):
    blobs = [numpy_helper.from_array(np.asarray(v, order="C"), n).SerializeToString(deterministic=True) for n, v in pairs]
    return struct.pack("<I", len(blobs)) + b"".join(map(blob, blobs))


def add(name, op, inputs, outputs=1, constants=(), domain="", symbols=None, **attributes):
    """Inputs by name; a name that is None leaves an input out, one of `constants` is an initializer."""
    code = helper.np_dtype_to_tensor_dtype
    names = [n if v is not None else "" for n, v in inputs.items()]
    results = outputs if isinstance(outputs, list) else [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    given = {n: v for n, v in inputs.items() if v is not None and n not in constants}
    graph = helper.make_graph(
        [node], name,
        [helper.make_tensor_value_info(n, code(v.dtype), (symbols or {}).get(n, v.shape)) for n, v in given.items()],
        [helper.make_empty_tensor_value_info(r) for r in results if r],
        [numpy_helper.from_array(v, n) for n, v in inputs.items() if v is not None and n in constants],
    )
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=10)
    try:
        run = session(model)
        found = [o.name for o in run.get_outputs()]
        values = run.run(found, given)
    except Exception as error:
        print("left out", name, str(error).splitlines()[0][:150])
        return
    data = blob(name.encode()) + blob(model.SerializeToString(deterministic=True))
    CASES.append((name, data + tensors(given.items()) + tensors(zip(found, values))))


def recurrent():
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}
    index = 0
    for op, g in gates.items():
        for direction in ("forward", "reverse", "bidirectional"):
            for options in range(4):
                d = 2 if direction == "bidirectional" else 1
                t, b, i, h = [(5, 3, 4, 6), (1, 1, 3, 5), (7, 2, 2, 1), (4, 5, 3, 9)][options]
                inputs = {
                    "x": rand(t, b, i), "w": rand(d, g * h, i, scale=0.5), "r": rand(d, g * h, h, scale=0.5),
                    "b": rand(d, 2 * g * h, scale=0.3) if options != 1 else None,
                    "lens": rng.integers(1, t + 1, b).astype(np.int32) if options in (0, 3) else None,
                    "h0": rand(d, b, h) if options in (0, 2) else None,
                }
                attributes = {"hidden_size": h, "direction": direction}
                if op == "LSTM":
                    inputs["c0"] = rand(d, b, h) if options in (0, 2) else None
                    inputs["p"] = rand(d, 3 * h, scale=0.4) if options in (2, 3) else None
                    attributes["input_forget"] = int(options == 3)
                if op == "GRU":
                    attributes["linear_before_reset"] = options % 2
                if options == 2:
                    attributes["clip"] = 0.6
                if options == 3:
                    names = {"RNN": ["Softsign"], "GRU": ["HardSigmoid", "Elu"], "LSTM": ["HardSigmoid", "LeakyRelu", "ScaledTanh"]}[op]
                    attributes["activations"] = names * d
                    if op == "LSTM":    # ScaledTanh has no default; those of the others.
                        attributes["activation_alpha"] = [0.2, 0.01, 1.25] * d
                        attributes["activation_beta"] = [0.5, 0.75] * d
                while list(inputs.values())[-1] is None:
                    inputs.popitem()
                symbols = {"x": ["t", "b", i], "lens": ["b"], "h0": [d, "b", h], "c0": [d, "b", h]}
                outputs = ["y", "y_h", "y_c"] if op == "LSTM" else ["y", "y_h"]
                add(f"rnn_{op.lower()}_{index:02}", op, inputs, outputs, ("w", "r", "b", "p"), symbols=symbols, **attributes)
                index += 1


def sampling():
    for mode in ("linear", "nearest", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            for align in (0, 1):
                inputs = {"x": rand(2, 3, 5, 7), "grid": rand(2, 4, 3, 2, scale=0.9)}
                add(f"sample_grid_{mode}_{padding}_{align}", "GridSample", inputs, mode=mode, padding_mode=padding, align_corners=align,
                    symbols={"x": ["n", 3, "h", "w"], "grid": ["n", "p", "q", 2]})
    add("sample_grid_3d", "GridSample", {"x": rand(1, 2, 3, 4, 5), "grid": rand(1, 2, 3, 2, 3, scale=0.8)}, mode="linear", padding_mode="border")
    rois = np.sort(rng.uniform(0, 12, (5, 2, 2)).astype(F), axis=1).reshape(5, 4)
    for mode in ("avg", "max"):
        for kind in ("half_pixel", "output_half_pixel"):
            inputs = {"x": rand(2, 3, 9, 8), "rois": rois, "batch": np.array([0, 1, 1, 0, 1], np.int64)}
            add(f"sample_roi_{mode}_{kind}", "RoiAlign", inputs, mode=mode, coordinate_transformation_mode=kind, output_height=3, output_width=2,
                sampling_ratio=2, spatial_scale=0.7)
    for groups, shares in ((1, 1), (2, 2), (1, 2)):
        inputs = {"x": rand(2, 4, 6, 5), "w": rand(6, 4 // groups, 3, 2), "off": rand(2, shares * 12, 6, 4, scale=0.7), "b": rand(6),
                  "m": rand(2, shares * 6, 6, 4)}
        add(f"sample_deform_{groups}_{shares}", "DeformConv", inputs, kernel_shape=[3, 2], pads=[1, 0, 1, 0], group=groups, offset_group=shares)
    for align in (0, 1):
        for size in ([2, 3, 4, 5], [2, 1, 3, 2, 4]):
            d = len(size) - 2
            add(f"sample_affine_{align}_{d}", "AffineGrid", {"theta": rand(2, d, d + 1), "size": np.array(size, np.int64)}, constants=("size",),
                align_corners=align)


def signals():
    for shape, axis in (((2, 9, 1), 1), ((2, 8, 2), 1), ((1, 6, 5, 2), 2)):
        for inverse, half in ((0, 0), (0, 1), (1, 0)):
            if half and shape[-1] == 2:
                continue
            for length in (None, shape[axis] + 3, shape[axis] - 2):
                inputs = {"x": rand(*shape), "n": None if length is None else np.array(length, np.int64), "axis": np.array(axis, np.int64)}
                add(f"signal_dft_{len(shape)}_{shape[-1]}_{inverse}_{half}_{length or 0}", "DFT", inputs, constants=("n", "axis"), inverse=inverse, onesided=half)
    for parts, half, step in ((1, 1, 3), (1, 0, 4), (2, 0, 2)):
        inputs = {"x": rand(2, 30, parts), "step": np.array(step, np.int64), "window": rand(8), "length": np.array(8, np.int64)}
        add(f"signal_stft_{parts}_{half}", "STFT", inputs, constants=("step", "length", "window"), onesided=half, symbols={"x": ["b", "l", parts]})
    for bands, size, rate in ((8, 64, 16000), (40, 512, 8000)):
        inputs = {"bands": np.array(bands, np.int64), "size": np.array(size, np.int64), "rate": np.array(rate, np.int64),
                  "low": np.array(20.0, F), "high": np.array(3800.0, F)}
        add(f"signal_mel_{bands}", "MelWeightMatrix", inputs, constants=tuple(inputs))


def windows():
    x = rand(2, 3, 9, 8)
    for i, options in enumerate((dict(kernel_shape=[3, 2]), dict(kernel_shape=[2, 2], strides=[2, 2]), dict(kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
                                 dict(kernel_shape=[3, 2], strides=[2, 3], ceil_mode=1), dict(kernel_shape=[2, 3], dilations=[2, 2]),
                                 dict(kernel_shape=[2, 2], strides=[2, 2], storage_order=1))):
        add(f"window_max_{i}", "MaxPool", {"x": x}, 2, symbols={"x": ["n", 3, "h", "w"]}, **options)
    add("window_max_1d", "MaxPool", {"x": rand(2, 3, 11)}, 2, kernel_shape=[3], strides=[2])
    for p in (1, 2, 3):
        add(f"window_lp_{p}", "LpPool", {"x": x}, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], p=p, ceil_mode=p % 2)
    # Without a stated shape: there, positions are of the smaller tensor to ONNX and of the stated one to onnxruntime.
    taken = rng.permutation(2 * 3 * 8 * 6).astype(np.int64)[:72].reshape(2, 3, 4, 3)
    add("window_unpool", "MaxUnpool", {"x": rand(2, 3, 4, 3), "i": taken}, kernel_shape=[2, 2], strides=[2, 2])
    for i, (image, block, options) in enumerate((((5, 7), (2, 3), {}), ((6, 6), (3, 2), dict(strides=[2, 1], pads=[1, 1, 0, 1])), ((9, 8), (2, 2), dict(dilations=[2, 3])))):
        strides, pads, dil = options.get("strides", [1, 1]), options.get("pads", [0] * 4), options.get("dilations", [1, 1])
        count = int(np.prod([(image[k] + pads[k] + pads[2 + k] - dil[k] * (block[k] - 1) - 1) // strides[k] + 1 for k in (0, 1)]))
        inputs = {"x": rand(2, 3 * int(np.prod(block)), count), "image": np.array(image, np.int64), "block": np.array(block, np.int64)}
        add(f"window_col2im_{i}", "Col2Im", inputs, constants=("image", "block"), **options)
    add("window_det", "Det", {"x": rand(3, 2, 6, 6)})
    add("window_det_1", "Det", {"x": rand(4, 1, 1)})


def resizing():
    x = rand(1, 2, 11, 9)
    for mode in ("linear", "cubic"):
        for sizes in ((5, 4), (3, 14)):
            for outside in (0, 1) if mode == "cubic" else (0,):
                add(f"resize_antialias_{mode}_{sizes[0]}_{outside}", "Resize",
                    {"x": x, "roi": None, "scales": None, "sizes": np.array([1, 2, *sizes], np.int64)}, constants=("sizes",), mode=mode, antialias=1,
                    exclude_outside=outside)
    for mode in ("nearest", "linear", "cubic"):
        for policy in ("not_larger", "not_smaller"):
            add(f"resize_{policy}_{mode}", "Resize", {"x": x, "roi": None, "scales": None, "sizes": np.array([6, 17], np.int64)},
                constants=("sizes",), mode=mode, axes=[2, 3], keep_aspect_ratio_policy=policy)
    for mode in ("nearest", "linear"):
        roi = np.array([0, 0, 0.2, -0.1, 1, 1, 0.9, 1.1], F)
        add(f"resize_crop_{mode}", "Resize", {"x": x, "roi": roi, "scales": None, "sizes": np.array([1, 2, 6, 7], np.int64)},
            constants=("roi", "sizes"), mode=mode, coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=3.5)


def trees(count, depth, features, results):
    """Random full trees as lists of nodes and of weights."""
    lists = {k: [] for k in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids", "missing_value_tracks_true")}
    targets = {k: [] for k in ("treeids", "nodeids", "ids", "weights")}
    inner = 2**depth - 1
    for tree in range(count):
        for node in range(2 * inner + 1):
            leaf = node >= inner
            lists["treeids"].append(tree)
            lists["nodeids"].append(node)
            lists["featureids"].append(0 if leaf else int(rng.integers(features)))
            lists["values"].append(0.0 if leaf else float(F(rng.standard_normal())))
            lists["modes"].append("LEAF" if leaf else "BRANCH_LEQ")
            lists["truenodeids"].append(0 if leaf else 2 * node + 1)
            lists["falsenodeids"].append(0 if leaf else 2 * node + 2)
            lists["missing_value_tracks_true"].append(int(rng.integers(2)) if not leaf else 0)
            if leaf:
                for r in range(results):
                    targets["treeids"].append(tree)
                    targets["nodeids"].append(node)
                    targets["ids"].append(r)
                    targets["weights"].append(float(F(rng.standard_normal())))
    return {f"nodes_{k}": v for k, v in lists.items()}, targets


def learned():
    x = rand(7, 5)
    x[2, 1] = np.nan
    for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
        nodes, targets = trees(3, 3, 5, 2)
        add(f"learned_regressor_{aggregate}", "TreeEnsembleRegressor", {"x": x}, domain="ai.onnx.ml", n_targets=2, aggregate_function=aggregate,
            base_values=[0.5, -0.25], symbols={"x": ["n", 5]}, **nodes, **{f"target_{k}": v for k, v in targets.items()})
    for post in ("NONE", "SOFTMAX", "LOGISTIC"):
        nodes, targets = trees(4, 2, 5, 3)
        add(f"learned_classifier_{post}", "TreeEnsembleClassifier", {"x": x}, 2, domain="ai.onnx.ml", classlabels_int64s=[4, 7, 9], post_transform=post,
            **nodes, **{f"class_{k}": v for k, v in targets.items()})
    for post in ("NONE", "LOGISTIC"):
        nodes, targets = trees(4, 2, 5, 1)
        add(f"learned_binary_{post}", "TreeEnsembleClassifier", {"x": x}, 2, domain="ai.onnx.ml", classlabels_int64s=[0, 1], post_transform=post,
            **nodes, **{f"class_{k}": v for k, v in targets.items()})
    clean = rand(6, 4)
    add("learned_linear", "LinearRegressor", {"x": clean}, domain="ai.onnx.ml", targets=3, coefficients=rand(12).tolist(), intercepts=rand(3).tolist())
    for post in ("NONE", "SOFTMAX", "LOGISTIC"):
        add(f"learned_classes_{post}", "LinearClassifier", {"x": clean}, 2, domain="ai.onnx.ml", classlabels_ints=[1, 5, 8], coefficients=rand(12).tolist(),
            intercepts=rand(3).tolist(), post_transform=post)
    for norm in ("MAX", "L1", "L2"):
        add(f"learned_normalizer_{norm}", "Normalizer", {"x": clean}, domain="ai.onnx.ml", norm=norm)
    add("learned_scaler", "Scaler", {"x": clean}, domain="ai.onnx.ml", offset=rand(4).tolist(), scale=rand(4).tolist())
    for kernel in ("LINEAR", "RBF", "POLY", "SIGMOID"):
        add(f"learned_svm_{kernel}", "SVMRegressor", {"x": clean}, domain="ai.onnx.ml", kernel_type=kernel, kernel_params=[0.3, 0.2, 3.0], n_supports=5,
            support_vectors=rand(20).tolist(), coefficients=rand(5).tolist(), rho=[0.4])
    add("learned_imputer", "Imputer", {"x": x}, domain="ai.onnx.ml", imputed_value_floats=[1.0, 2.0, 3.0, 4.0, 5.0], replaced_value_float=float("nan"))


def fused():
    ms = dict(domain="com.microsoft")
    x, w, b = rand(2, 4, 6, 5), rand(6, 2, 3, 3), rand(6)
    for name, numbers in (("Relu", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.7]), ("HardSigmoid", [0.3, 0.4]), ("Tanh", [])):
        more = dict(activation_params=numbers) if numbers else {}
        add(f"fused_conv_{name}", "FusedConv", {"x": x, "w": w, "b": b}, group=2, pads=[1, 1, 1, 1], activation=name, constants=("w", "b"), **more, **ms)
    add("fused_gemm", "FusedGemm", {"a": rand(3, 5), "b": rand(4, 5), "c": rand(4)}, transB=1, alpha=0.5, beta=2.0, activation="LeakyRelu",
        activation_alpha=0.1, **ms)
    add("fused_matmul", "FusedMatMul", {"a": rand(5, 2, 3), "b": rand(2, 5, 4)}, transBatchA=1, transA=1, alpha=0.5, **ms)
    add("fused_matmul_batch", "FusedMatMul", {"a": rand(3, 2, 5), "b": rand(4, 2, 5)}, transBatchA=1, transBatchB=1, transB=1, **ms)
    add("fused_inverse", "Inverse", {"x": rand(2, 5, 5) + 2 * np.eye(5, dtype=F)}, **ms)
    ids = rng.integers(0, 9, (2, 6)).astype(np.int32)
    add("fused_embed", "EmbedLayerNormalization",
        {"ids": ids, "seg": rng.integers(0, 2, (2, 6)).astype(np.int32), "word": rand(9, 8), "pos": rand(7, 8), "segs": rand(2, 8), "g": rand(8), "b": rand(8),
         "mask": np.array([[1] * 6, [1, 1, 1, 0, 0, 0]], np.int32)}, 2, constants=("word", "pos", "segs", "g", "b"), epsilon=1e-5, **ms)
    add("fused_trilu", "Trilu", {"x": rand(3, 4, 5), "k": np.array(1, np.int64)}, constants=("k",), upper=0, **ms)
    for op in ("QuickGelu", "BiasGelu", "FastGelu"):
        inputs = {"x": rand(3, 8)} if op == "QuickGelu" else {"x": rand(3, 8), "b": rand(8)}
        add(f"fused_{op}", op, inputs, **ms)


def main():
    for group in (recurrent, sampling, signals, windows, resizing, learned, fused):
        group()
    CASES.sort()
    Path(sys.argv[1]).write_bytes(b"".join(data for _, data in CASES))
    print(f"{len(CASES)} cases, {sum(len(d) for _, d in CASES)} bytes, onnxruntime {ort.__version__}")


main()
