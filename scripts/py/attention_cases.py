"""Packs models with attention ops and what onnxruntime computes for them into tests/data/onnx_attention.bin.

    python scripts/py/attention_cases.py tests/data/onnx_attention.bin

Each form of GroupQueryAttention (`gqa_`), MultiHeadAttention (`mha_`), Attention (`attention_`) and RotaryEmbedding (`rotary_`) of
onnxruntime's domain and of ONNX's own Attention (`onnx_`), as exporters write them, and a small language model as onnxruntime-genai writes
it (`decoder_`): a prompt and three steps, the caches of each being those that the one before gave. Weights and inputs are random, of
fixed seeds; sizes that exporters leave open are symbols; onnxruntime runs without its optimisations.

What an op leaves unspecified (rows of padding, the cache behind the last position) is not compared: where a sequence has fewer
positions than others, the model multiplies its outputs by 0 there.

File: as that of onnx_node_cases.py.
"""

import struct
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from cases import blob, session

CASES = []
F = np.float32
node = helper.make_node


def tensors(pairs):
    blobs = [numpy_helper.from_array(np.asarray(v, order="C"), n).SerializeToString(deterministic=True) for n, v in pairs]
    return struct.pack("<I", len(blobs)) + b"".join(map(blob, blobs))


def add(name, model, inputs, reference=None, stored=True):
    """`reference` is a model of the same meaning for onnxruntime, where its CPU does not have the op's form. A model that is not stored is
    that of the case before."""
    run = session(reference or model)
    names = [o.name for o in run.get_outputs()]
    outputs = run.run(names, inputs)
    assert all(np.isfinite(o).all() for o in outputs), name
    data = blob(name.encode()) + blob(model.SerializeToString(deterministic=True) if stored else b"")
    CASES.append((name, data + tensors(inputs.items()) + tensors(zip(names, outputs))))
    return dict(zip(names, outputs))


def model_of(name, nodes, inputs, dims, outputs, constants=(), opset=21):
    """Inputs have the symbols of `dims`, where they are there; outputs are names, in the first input's type."""
    code = helper.np_dtype_to_tensor_dtype
    first = code(next(iter(inputs.values())).dtype)
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(n, code(v.dtype), dims.get(n, v.shape)) for n, v in inputs.items()],
        [helper.make_tensor_value_info(n, first, None) for n in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in dict(constants).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


class Random:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape, dtype=F):
        return self.rng.normal(size=shape).astype(dtype)


def tables(positions, half, dtype=F):
    angles = np.arange(positions)[:, None] * (10000.0 ** (-np.arange(half) / half))[None]
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def valid(nodes, output, lengths, axis, rows, rank):
    """Multiplies an output by whether its row along `axis` is one of the sequence's first `lengths` rows."""
    batch = len(lengths)
    shape = [batch] + [1] * (rank - 1)
    shape[axis] = rows
    keep = (np.arange(rows)[None] < np.asarray(lengths)[:, None]).reshape(shape)
    nodes.append(node("Mul", [output + "_all", output + "_rows"], [output], name=output + "_valid"))
    return {output + "_rows": keep}


# GroupQueryAttention.


def gqa(name, seed, lengths, rows, past=0, room=None, heads=4, kv_heads=2, size=16, packed=False, rotary=None, bias=False,
        sink=False, norm=False, positions=False, chunk=None, no_past=False, known_total=True, dtype=F, **attributes):
    """Sequences have `lengths` positions after a step of `rows`; before it the cache has `past`, or room for `room`."""
    random = Random(seed)
    batch, total = len(lengths), max(lengths)
    wide, kv_wide = heads * size, kv_heads * size
    inputs, dims = {}, {}
    if packed:
        inputs["query"] = random(batch, rows, wide + 2 * kv_wide, dtype=dtype)
        dims["query"] = ["batch", "sequence", wide + 2 * kv_wide]
        order = ["query", "", ""]
    else:
        for part, width in [("query", wide), ("key", kv_wide), ("value", kv_wide)]:
            inputs[part] = random(batch, rows, width, dtype=dtype)
            dims[part] = ["batch", "sequence", width]
        order = ["query", "key", "value"]
    length = room or past
    if no_past:
        order += ["", ""]
    else:
        before = [max(n - rows, 0) if chunk is None else n - c for n, c in zip(lengths, chunk or lengths)]
        for part in ["past_key", "past_value"]:
            cache = random(batch, kv_heads, length, size, dtype=dtype)
            for b, n in enumerate(before):
                cache[b, :, n:] = 0
            inputs[part] = cache
            dims[part] = ["batch", kv_heads, room or "past", size]
            order.append(part)
    nodes, constants = [], {}
    if known_total:
        # As onnxruntime-genai makes them of the mask.
        inputs["mask"] = (np.arange(total)[None] < np.asarray(lengths)[:, None]).astype(np.int64)
        dims["mask"] = ["batch", "total"]
        constants |= {"one": np.array([1], np.int64), "second": np.array(1, np.int64)}
        nodes += [
            node("ReduceSum", ["mask", "one"], ["counts"], name="counts"),
            node("Sub", ["counts", "one"], ["last"], name="last"),
            node("Cast", ["last"], ["seqlens"], name="seqlens", to=TensorProto.INT32),
            node("Shape", ["mask"], ["mask_shape"], name="mask_shape"),
            node("Gather", ["mask_shape", "second"], ["total_wide"], name="total_wide", axis=0),
            node("Cast", ["total_wide"], ["total_length"], name="total_length", to=TensorProto.INT32),
        ]
    else:
        inputs["seqlens"] = np.array(lengths, np.int32) - 1
        inputs["total_length"] = np.array(total, np.int32)
        dims["seqlens"] = ["batch"]
    order += ["seqlens", "total_length"]
    if rotary:
        constants["cos"], constants["sin"] = tables(32, rotary // 2, dtype)
        attributes["do_rotary"] = 1
        order += ["cos", "sin"]
    else:
        order += ["", ""]
    more = {}
    if positions:
        inputs["positions"] = np.array([np.arange(rows) + max(n - rows, 0) for n in lengths], np.int64)
        more[9] = "positions"
    if bias:
        inputs["bias"] = random(batch if bias == "batch" else 1, heads, rows, total, dtype=dtype)
        dims["bias"] = ["batch" if bias == "batch" else 1, heads, "sequence", "total" if known_total else total]
        more[10] = "bias"
    if sink:
        constants["sink"] = random(heads, dtype=dtype)
        more[11] = "sink"
    if norm:
        constants |= {"q_gain": random(size, dtype=dtype), "k_gain": random(size, dtype=dtype)}
        more |= {14: "q_gain", 15: "k_gain"}
    if chunk is not None:
        inputs["chunk"] = np.array(chunk, np.int32)
        more[16] = "chunk"
    order += [more.get(i, "") for i in range(9, max(more, default=8) + 1)]
    cache = max(length, total)
    attributes |= {"num_heads": heads, "kv_num_heads": kv_heads}
    nodes.append(node("GroupQueryAttention", order, ["y_all", "present_key_all", "present_value_all"], name="attention",
                      domain="com.microsoft", **attributes))
    ends = chunk if chunk is not None else [min(n, rows) for n in lengths]
    keeps = valid(nodes, "y", ends, 1, rows, 3)
    for part in ["present_key", "present_value"]:
        keeps |= valid(nodes, part, lengths, 2, rows if no_past else cache, 4)
    for n, v in keeps.items():
        inputs[n] = v.astype(dtype)
        dims[n] = ["batch", "sequence", 1] if n == "y_rows" else ["batch", 1, n, 1]
    outputs = ["y", "present_key", "present_value"]
    model = model_of("gqa", nodes, inputs, dims, outputs, constants)
    reference = None
    if norm:
        # onnxruntime's CPU has no norms inside the op: they come before it.
        first, split = [], node("SimplifiedLayerNormalization", [], [], axis=-1, epsilon=1e-6)
        for part, count in [("query", heads), ("key", kv_heads)]:
            constants |= {part + "_heads": np.array([0, 0, count, size]), part + "_flat": np.array([0, 0, count * size])}
            split = [part[0] + "_gain"]
            first += [
                node("Reshape", [part, part + "_heads"], [part + "_split"]),
                node("SimplifiedLayerNormalization", [part + "_split", *split], [part + "_norm"], axis=-1, epsilon=1e-6),
                node("Reshape", [part + "_norm", part + "_flat"], [part + "_new"]),
            ]
        at = [n.op_type for n in nodes].index("GroupQueryAttention")
        again = list(nodes)
        order = ["query_new", "key_new", *order[2:14]]
        again[at] = node("GroupQueryAttention", order, ["y_all", "present_key_all", "present_value_all"], name="attention",
                         domain="com.microsoft", **attributes)
        reference = model_of("gqa", first + again, inputs, dims, outputs, constants)
    add("gqa_" + name, model, inputs, reference)


def group_query():
    gqa("prompt", 1, [5, 5], 5, packed=True, rotary=16)
    gqa("prompt_padded", 2, [6, 2, 5], 6, rotary=16)
    gqa("prompt_no_past", 3, [5, 4], 5, no_past=True, rotary=16)
    gqa("prompt_unknown_total", 4, [6], 6, room=9, known_total=False, rotary=16)
    gqa("token", 5, [8, 5, 6], 1, past=7, rotary=16)
    gqa("token_even", 6, [8, 8], 1, past=7, packed=True, rotary=16, size=32)
    gqa("token_interleaved", 7, [9, 2], 1, past=8, rotary=16, rotary_interleaved=1)
    gqa("token_positions", 8, [6, 6], 1, past=5, rotary=16, positions=True)
    gqa("token_room", 9, [8, 5, 11], 1, room=11, rotary=16)
    gqa("token_room_packed", 10, [3, 5], 1, room=9, rotary=16, packed=True, known_total=False)
    gqa("token_unknown_total", 11, [8, 8], 1, past=7, known_total=False)
    gqa("rows_after_past", 12, [9], 4, past=5, rotary=16)
    gqa("rows_padded", 13, [9, 6], 4, room=12, chunk=[3, 4], rotary=16)
    gqa("window", 14, [9, 6], 9, rotary=16, local_window_size=3)
    gqa("window_token", 15, [12, 6, 2], 1, past=11, rotary=16, local_window_size=4)
    gqa("scale_softcap", 16, [7, 5], 7, rotary=16, scale=0.31, softcap=1.7)
    gqa("bias", 17, [6, 4], 6, bias="batch", rotary=16)
    gqa("bias_room", 18, [7, 5], 1, room=10, bias=True)
    gqa("smooth", 19, [6, 4], 6, smooth_softmax=1)
    gqa("sink_token", 20, [6, 4], 1, past=5, sink=True, local_window_size=3)
    gqa("norm", 21, [6, 4], 6, norm=True, rotary=16)
    gqa("both_ways", 22, [6, 4], 6, causal=0)
    gqa("multi_query", 23, [7, 2], 1, past=6, heads=3, kv_heads=1, size=48, rotary=32)
    gqa("f16", 24, [8, 5], 1, past=7, rotary=16, dtype=np.float16)


# MultiHeadAttention.


def mask_dims(mask, batch):
    """Only a count of lengths has a name that says so."""
    if mask.ndim == 1:
        return ["batch"] if len(mask) == batch else mask.shape
    return ["batch", "sequence", "total"] if mask.ndim == 3 else ["batch", "total"]


def mha(name, seed, queries=5, keys=None, past=None, form="separate", heads=3, size=8, v_size=None, bias=False, mask=None,
        added=None, weights=False, dtype=F, **attributes):
    random, batch, keys = Random(seed), 2, keys or queries
    v_size = v_size or size
    wide, v_wide = heads * size, heads * v_size
    inputs, dims, constants = {}, {}, {}
    cross = "sequence" if keys == queries else "keys"
    if form == "packed":
        inputs["query"] = random(batch, queries, heads, 3, size, dtype=dtype)
        dims["query"] = ["batch", "sequence", heads, 3, size]
        order = ["query", "", ""]
    else:
        inputs["query"] = random(batch, queries, wide, dtype=dtype)
        dims["query"] = ["batch", "sequence", wide]
        order = ["query", "key", "value"]
        if form == "pairs":
            inputs["key"] = random(batch, keys, heads, 2, size, dtype=dtype)
            dims["key"] = ["batch", cross, heads, 2, size]
            order[2] = ""
        elif form == "heads":
            for part in ["key", "value"]:
                inputs[part] = random(batch, heads, keys, size, dtype=dtype)
                dims[part] = ["batch", heads, cross, size]
        else:
            inputs["key"], inputs["value"] = random(batch, keys, wide, dtype=dtype), random(batch, keys, v_wide, dtype=dtype)
            dims["key"], dims["value"] = ["batch", cross, wide], ["batch", cross, v_wide]
    total = keys + (past or 0)
    more = {}
    if bias:
        constants["projected"] = random(2 * wide + v_wide, dtype=dtype)
        more[3] = "projected"
    if mask is not None:
        inputs["mask"] = np.asarray(mask, np.int32)
        dims["mask"] = mask_dims(inputs["mask"], batch)
        more[4] = "mask"
    if added:
        inputs["added"] = random(*added, queries, total, dtype=dtype)
        dims["added"] = ["batch" if added[0] > 1 else 1, added[1], "sequence", "scores"]
        more[5] = "added"
    if past is not None:
        for i, part in enumerate(["past_key", "past_value"]):
            inputs[part] = random(batch, heads, past, size if i == 0 else v_size, dtype=dtype)
            dims[part] = ["batch", heads, "past", size if i == 0 else v_size]
            more[6 + i] = part
    order += [more.get(i, "") for i in range(3, max(more, default=2) + 1)]
    outputs = ["y"] + (["present_key", "present_value"] if past is not None or weights else []) + (["qk"] if weights else [])
    if mask is not None and inputs["mask"].ndim == 1 and len(mask) != batch:
        dims = {n: [batch if d == "batch" else d for d in dim] for n, dim in dims.items()}
    one = node("MultiHeadAttention", order, outputs, name="attention", domain="com.microsoft", num_heads=heads, **attributes)
    reference = None
    if form in ("packed", "pairs"):
        # onnxruntime's CPU takes no packed values: they are taken apart before the op.
        source, parts = ("query", ["query", "key", "value"]) if form == "packed" else ("key", ["key", "value"])
        apart, flat = [], {"flat": np.array([0, 0, wide])}
        for i, part in enumerate(parts):
            flat[f"at{i}"] = np.array(i)
            apart += [
                node("Gather", [source, f"at{i}"], [part + "_heads"], axis=3),
                node("Reshape", [part + "_heads", "flat"], [part + "_flat"]),
            ]
        names = [part + "_flat" if part in parts else part for part in ["query", "key", "value"]]
        again = node("MultiHeadAttention", [*names, *order[3:]], outputs, domain="com.microsoft", num_heads=heads, **attributes)
        reference = model_of("mha", [*apart, again], inputs, dims, outputs, constants | flat)
    add("mha_" + name, model_of("mha", [one], inputs, dims, outputs, constants), inputs, reference)


def ones(*lengths, total):
    return (np.arange(total)[None] < np.array(lengths)[:, None]).astype(np.int32)


def multi_head():
    mha("plain", 30)
    mha("bias", 31, bias=True, v_size=6)
    mha("packed", 32, form="packed")
    mha("packed_bias", 33, form="packed", bias=True)
    mha("packed_keys", 34, form="pairs", keys=7)
    mha("cross", 35, form="heads", keys=7)
    mha("cross_bias", 36, form="heads", keys=7, bias=True)
    mha("causal", 37, unidirectional=1, scale=0.4)
    mha("causal_past", 38, queries=2, past=5, unidirectional=1, bias=True)
    mha("past", 39, queries=1, past=6)
    mha("past_empty", 40, queries=4, past=0, unidirectional=1)
    mha("lengths", 41, mask=[5, 3])
    mha("lengths_long", 42, mask=[5, 3, 0, 5, 10, 0, 5, 10])
    mha("positions", 43, keys=6, mask=ones(6, 4, total=6))
    mha("positions_left", 44, mask=ones(5, 3, total=5)[:, ::-1], mask_filter_value=-3000.0)
    mha("positions_past", 45, queries=2, past=4, mask=ones(6, 5, total=6), unidirectional=1)
    mha("pairs_of_positions", 46, mask=np.tril(np.ones((2, 5, 5)), 1))
    mha("added", 47, added=(2, 3))
    mha("added_shared", 48, added=(1, 1), mask=ones(5, 4, total=5))
    mha("weights", 49, weights=True, keys=6, mask=ones(6, 4, total=6))
    mha("f16", 50, bias=True, mask=ones(5, 3, total=5), dtype=np.float16)


# Attention.


def attention(name, seed, rows=5, past=None, widths=None, heads=2, mask=None, added=None, bias=True, **attributes):
    random, batch, wide = Random(seed), 2, 12
    q, k, v = widths or (16, 16, 16)
    inputs, dims = {"x": random(batch, rows, wide)}, {"x": ["batch", "sequence", wide]}
    constants = {"w": random(wide, q + k + v) * F(0.4), "b": random(q + k + v)}
    more = {2: "b"} if bias else {}
    total = rows + (past or 0)
    if mask is not None:
        inputs["mask"] = np.asarray(mask, np.int32)
        dims["mask"] = mask_dims(inputs["mask"], batch)
        more[3] = "mask"
    outputs = ["y"]
    if past is not None:
        inputs["past"] = random(2, batch, heads, past, q // heads)
        dims["past"] = [2, "batch", heads, "past", q // heads]
        more[4], outputs = "past", ["y", "present"]
    if added:
        inputs["added"] = random(*added, rows, total)
        dims["added"] = ["batch" if added[0] > 1 else 1, added[1], "sequence", "scores"]
        more[5] = "added"
    if widths:
        attributes["qkv_hidden_sizes"] = widths
    order = ["x", "w"] + [more.get(i, "") for i in range(2, max(more, default=1) + 1)]
    if mask is not None and inputs["mask"].ndim == 1 and len(mask) != batch:
        dims = {n: [batch if d == "batch" else d for d in dim] for n, dim in dims.items()}
    one = node("Attention", order, outputs, name="attention", domain="com.microsoft", num_heads=heads, **attributes)
    add("attention_" + name, model_of("attention", [one], inputs, dims, outputs, constants), inputs)


def self_attention():
    attention("plain", 60)
    attention("no_bias", 61, bias=False, scale=0.3)
    attention("widths", 62, widths=[16, 16, 24])
    attention("lengths", 63, mask=[5, 3])
    attention("ends_and_starts", 64, mask=[5, 4, 1, 0])
    attention("positions", 65, mask=ones(5, 2, total=5))
    attention("pairs", 66, mask=np.tril(np.ones((2, 5, 5)), 1), mask_filter_value=-2000.0)
    attention("causal", 67, unidirectional=1)
    attention("past", 68, rows=1, past=4, unidirectional=1)
    attention("past_empty", 69, past=0, unidirectional=1)
    attention("past_positions", 70, rows=2, past=3, unidirectional=1, mask=ones(5, 5, total=5)[:, ::-1])
    attention("added", 71, added=(1, 2))


# RotaryEmbedding.


def rotary(name, seed, shape, positions, half, **attributes):
    random = Random(seed)
    inputs = {"x": random(*shape), "positions": np.asarray(positions, np.int64)}
    dims = {"x": ["batch", *shape[1:]], "positions": list(inputs["positions"].shape)}
    constants = dict(zip(["cos", "sin"], tables(20, half)))
    one = node("RotaryEmbedding", ["x", "positions", "cos", "sin"], ["y"], name="rotary", domain="com.microsoft", **attributes)
    add("rotary_" + name, model_of("rotary", [one], inputs, dims, ["y"], constants), inputs)


def rotations():
    each = [[0, 1, 2], [4, 7, 5]]
    rotary("offset", 80, (2, 3, 24), [6], 4)
    rotary("each", 81, (2, 3, 24), each, 4)
    rotary("interleaved", 82, (2, 3, 24), each, 4, interleaved=1)
    rotary("part", 83, (2, 3, 24), each, 2, num_heads=3, rotary_embedding_dim=4)
    rotary("part_interleaved", 84, (2, 3, 24), [3], 2, num_heads=3, rotary_embedding_dim=4, interleaved=1)
    rotary("heads_first", 85, (2, 4, 3, 8), each, 4)


# ONNX's Attention.


def onnx_attention(name, seed, queries=3, past=4, flat=True, heads=4, kv_heads=2, size=8, mask=None, **attributes):
    random, batch = Random(seed), 2
    inputs, dims = {}, {}
    for part, count in [("query", heads), ("key", kv_heads), ("value", kv_heads)]:
        flat_shape, shape = (batch, queries, count * size), (batch, count, queries, size)
        inputs[part] = random(*(flat_shape if flat else shape))
        dims[part] = ["batch", "sequence", count * size] if flat else ["batch", count, "sequence", size]
    order, total = ["query", "key", "value"], queries + past
    if mask is not None:
        inputs["mask"] = mask(random, total)
        dims["mask"] = ["sequence", "scores"] if inputs["mask"].ndim == 2 else [heads, "sequence", "scores"]
    order += ["mask" if mask is not None else "", "past_key", "past_value"]
    for part in ["past_key", "past_value"]:
        inputs[part] = random(batch, kv_heads, past, size)
        dims[part] = ["batch", kv_heads, "past", size]
    if flat:
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    outputs = ["y", "present_key", "present_value"]
    one = node("Attention", order, outputs, name="attention", **attributes)
    add("onnx_" + name, model_of("onnx", [one], inputs, dims, outputs, opset=23), inputs)


def standard():
    onnx_attention("past", 90)
    onnx_attention("past_causal", 91, is_causal=1)
    onnx_attention("past_heads_first", 92, flat=False, is_causal=1, scale=0.2)
    onnx_attention("past_empty", 93, past=0, is_causal=1)
    onnx_attention("past_softcap", 94, is_causal=1, softcap=1.3)
    onnx_attention("past_bool", 95, mask=lambda r, total: np.arange(3)[:, None] + np.arange(total)[None] > 2)
    onnx_attention("past_added", 96, mask=lambda r, total: r(4, 3, total), is_causal=1)


# A language model.


def quantised(random, rows, depth, block):
    """A weight of 4 bits in blocks, as MatMulNBits has it."""
    blocks = depth // block
    packed = random.rng.integers(0, 256, size=(rows, blocks, block // 2)).astype(np.uint8)
    scales = (random.rng.random((rows, blocks)) * 0.02 + 0.01).astype(F)
    return packed, scales


def decoder():
    """Two layers of Llama's architecture with weights in 4 bits, named and wired as onnxruntime-genai's model builder does it."""
    layers, wide, heads, kv_heads, size, hidden, words, block = 2, 64, 4, 2, 16, 96, 80, 32
    random = Random(100)
    nodes, constants = [], {"cos_cache": None, "sin_cache": None}
    constants["cos_cache"], constants["sin_cache"] = tables(64, size // 2)

    def product(name, x, rows, depth):
        constants[name + ".qweight"], constants[name + ".scales"] = quantised(random, rows, depth, block)
        nodes.append(node("MatMulNBits", [x, name + ".qweight", name + ".scales"], [name + "/output"], name=name,
                          domain="com.microsoft", K=depth, N=rows, bits=4, block_size=block, accuracy_level=1))
        return name + "/output"

    def gain(name):
        constants[name] = (random(wide) * 0.1 + 1).astype(F)
        return name

    mask = "/model/attn_mask_reformat/attn_mask_subgraph/"
    constants |= {"/constants/INT64/[1]": np.array([1], np.int64), "/constants/INT64/1": np.array(1, np.int64)}
    nodes += [
        node("ReduceSum", ["attention_mask", "/constants/INT64/[1]"], [mask + "ReduceSum/output_0"], name=mask + "ReduceSum"),
        node("Sub", [mask + "ReduceSum/output_0", "/constants/INT64/[1]"], [mask + "Sub/output_0"], name=mask + "Sub"),
        node("Cast", [mask + "Sub/output_0"], [mask + "Sub/Cast/output_0"], name=mask + "Sub/Cast", to=TensorProto.INT32),
        node("Shape", ["attention_mask"], [mask + "Shape/output_0"], name=mask + "Shape"),
        node("Gather", [mask + "Shape/output_0", "/constants/INT64/1"], [mask + "Gather/output_0"], name=mask + "Gather", axis=0),
        node("Cast", [mask + "Gather/output_0"], [mask + "Gather/Cast/output_0"], name=mask + "Gather/Cast", to=TensorProto.INT32),
    ]
    embedding = random.rng.integers(0, 256, size=(words, wide // 2)).astype(np.uint8)
    scales = (random.rng.random((words, wide // block)) * 0.1 + 0.05).astype(F)
    constants |= {"model.embed_tokens.qweight": embedding, "model.embed_tokens.scales": scales}
    nodes.append(node("GatherBlockQuantized", ["model.embed_tokens.qweight", "input_ids", "model.embed_tokens.scales"], ["embedded"],
                      name="/model/embed_tokens/Gather", domain="com.microsoft", bits=4, block_size=block, gather_axis=0,
                      quantize_axis=1))
    skip, x, more = "embedded", None, []
    for i in range(layers):
        at = f"/model/layers.{i}/"
        if i == 0:
            nodes.append(node("SimplifiedLayerNormalization", ["embedded", gain("model.layers.0.input_layernorm.weight")], [at + "n"],
                              name=at + "input_layernorm/LayerNorm", axis=-1, epsilon=1e-5, stash_type=1))
        else:
            nodes.append(node("SkipSimplifiedLayerNormalization", [skip, x, gain(f"model.layers.{i}.input_layernorm.weight")],
                              [at + "n", "", "", at + "skip"], name=at + "input_layernorm/SkipLayerNorm", domain="com.microsoft",
                              epsilon=1e-5))
            skip = at + "skip"
        packed = product(at + "attn/qkv_proj/MatMulNBits", at + "n", (heads + 2 * kv_heads) * size, wide)
        present = [f"present.{i}.key", f"present.{i}.value"]
        more += present
        nodes.append(node(
            "GroupQueryAttention",
            [packed, "", "", f"past_key_values.{i}.key", f"past_key_values.{i}.value", mask + "Sub/Cast/output_0",
             mask + "Gather/Cast/output_0", "cos_cache", "sin_cache"],
            [at + "a", *present], name=at + "attn/GroupQueryAttention", domain="com.microsoft", num_heads=heads,
            kv_num_heads=kv_heads, scale=size**-0.5, local_window_size=-1, softcap=0.0, do_rotary=1, rotary_interleaved=0,
        ))
        out = product(at + "attn/o_proj/MatMulNBits", at + "a", wide, heads * size)
        nodes.append(node("SkipSimplifiedLayerNormalization", [skip, out, gain(f"model.layers.{i}.post_attention_layernorm.weight")],
                          [at + "m", "", "", at + "skip2"], name=at + "post_attention_layernorm/SkipLayerNorm",
                          domain="com.microsoft", epsilon=1e-5))
        skip = at + "skip2"
        gate, up = (product(at + f"mlp/{p}_proj/MatMulNBits", at + "m", hidden, wide) for p in ["gate", "up"])
        nodes += [
            node("Sigmoid", [gate], [at + "sigmoid"], name=at + "mlp/act_fn/Sigmoid"),
            node("Mul", [gate, at + "sigmoid"], [at + "silu"], name=at + "mlp/act_fn/Mul"),
            node("Mul", [at + "silu", up], [at + "gated"], name=at + "mlp/Mul"),
        ]
        x = product(at + "mlp/down_proj/MatMulNBits", at + "gated", wide, hidden)
    nodes.append(node("SkipSimplifiedLayerNormalization", [skip, x, gain("model.norm.weight")], ["normed"],
                      name=f"/model/layers.{layers}/final_norm_layernorm/SkipLayerNorm", domain="com.microsoft", epsilon=1e-5))
    logits = product("lm_head/MatMulNBits", "normed", words, wide)
    nodes.append(node("Identity", [logits], ["logits"], name="logits"))
    value = helper.make_tensor_value_info
    caches = [f"past_key_values.{i}.{p}" for i in range(layers) for p in ["key", "value"]]
    graph = helper.make_graph(
        nodes,
        "decoder",
        [value("input_ids", 7, ["batch_size", "sequence_length"]), value("attention_mask", 7, ["batch_size", "total_sequence_length"])]
        + [value(n, 1, ["batch_size", kv_heads, "past_sequence_length", size]) for n in caches],
        [value("logits", 1, ["batch_size", "sequence_length", words])]
        + [value(n, 1, ["batch_size", kv_heads, "total_sequence_length", size]) for n in more],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    batch, prompt = 2, 6
    past = {n: np.zeros((batch, kv_heads, 0, size), F) for n in caches}
    for step in range(4):
        rows = prompt if step == 0 else 1
        total = prompt + step
        ids = random.rng.integers(0, words, size=(batch, rows)).astype(np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones((batch, total), np.int64), **past}
        found = add(f"decoder_{step}", model, inputs, stored=step == 0)
        past = {n: found[n.replace("past_key_values", "present")] for n in caches}


def main():
    group_query()
    multi_head()
    self_attention()
    rotations()
    standard()
    decoder()
    CASES.sort()
    Path(sys.argv[1]).write_bytes(b"".join(data for _, data in CASES))
    print(f"{len(CASES)} cases, {sum(len(d) for _, d in CASES)} bytes, onnxruntime {ort.__version__}")


main()
