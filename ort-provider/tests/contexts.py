"""Models compiled ahead of time: EPContext nodes, embedded and in files, and what is refused of them."""

import shutil

from common import *

FOLDER = os.path.join(FOLDER, "contexts")
shutil.rmtree(FOLDER, ignore_errors=True)
os.makedirs(FOLDER)


def path(name):
    return os.path.join(FOLDER, name)


def cut():
    """A model of two regions, around a node that stays with ONNX Runtime."""
    w = np.random.default_rng(3).standard_normal((4, 4)).astype(np.float32)
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["a"]),
        h.make_node("Relu", ["a"], ["b"]),
        h.make_node("NonZero", ["b"], ["c"]),
        h.make_node("Cast", ["c"], ["d"], to=T.FLOAT),
        h.make_node("Mul", ["d", "two"], ["y"]),
    ]
    constants = {"w": w, "two": np.float32(2)}
    return model(nodes, [("x", T.FLOAT, ["n", 4])], [("y", T.FLOAT, None), ("b", T.FLOAT, None)], constants)


def compiled(source, name, embed, from_bytes=False):
    """Compiles a model into another, which is read back."""
    target = path(name)
    entries = {"ep.context_enable": "1", "ep.context_file_path": target, "ep.context_embed_mode": embed}
    session(source if from_bytes else saved(source), entries=entries)
    return target, onnx.load(target)


def saved(made):
    onnx.save(made, path("source.onnx"))
    return path("source.onnx")


def attribute(node, name):
    return h.get_attribute_value(next(a for a in node.attribute if a.name == name))


def round_trip():
    made = cut()
    own = reference(made)
    for embed, from_bytes in [("1", False), ("0", False), ("1", True)]:
        target, written = compiled(made, f"ctx{embed}{from_bytes}.onnx", embed, from_bytes)
        nodes = [node for node in written.graph.node if node.op_type == "EPContext"]
        assert len(nodes) == 2 and [attribute(node, "source") for node in nodes] == [NAME.encode()] * 2
        assert all(attribute(node, "embed_mode") == int(embed) for node in nodes)
        assert not any(tensor.name == "w" for tensor in written.graph.initializer)
        if embed == "0":
            files = [attribute(node, "ep_cache_context").decode() for node in nodes]
            assert len(set(files)) == 2 and all(os.path.isfile(path(file)) for file in files), files
        counts = Counts()
        s = session(target)
        assert (counts.loaded, counts.compiled) == (2, 0)
        for n in [1, 3, 8]:
            inputs = random_inputs(s, {"n": n}, n)
            check_equal(s.run(None, inputs), own.run(None, inputs))
        assert (counts.compiled, counts.specialised) == (0, 0)


def by_the_compile_interface():
    made = cut()
    so = ort.SessionOptions()
    so.add_provider_for_devices(DEVICES[:1], {})
    compiler = ort.ModelCompiler(so, made.SerializeToString(), embed_compiled_data_into_model=True)
    written = onnx.ModelProto.FromString(compiler.compile_to_bytes())
    assert [node.op_type for node in written.graph.node].count("EPContext") == 2
    counts, s = Counts(), session(written)
    inputs = random_inputs(s, {"n": 3})
    check_equal(s.run(None, inputs), reference(made).run(None, inputs))
    assert counts.compiled == 0


def refusals():
    prefix = {"ep.context_enable": "1", "ep.context_node_name_prefix": "a_"}
    refused(lambda: session(cut(), entries=prefix), "ep.context_node_name_prefix")
    target, written = compiled(cut(), "again.onnx", "1")
    refused(lambda: session(target, entries={"ep.context_enable": "1", "ep.context_file_path": path("twice.onnx")}))
    for change, word in [(b"!!!", "damaged"), (b"AAAA", "graphc")]:
        broken = onnx.ModelProto.FromString(written.SerializeToString())
        node = next(node for node in broken.graph.node if node.op_type == "EPContext")
        next(a for a in node.attribute if a.name == "ep_cache_context").s = change
        refused(lambda: session(broken), "EPContext", word)
    target, written = compiled(cut(), "files.onnx", "0")
    node = next(node for node in written.graph.node if node.op_type == "EPContext")
    content = next(a for a in node.attribute if a.name == "ep_cache_context")
    for file, word in [(b"../x.graphc", "folder"), (b"missing.graphc", "missing.graphc")]:
        content.s = file
        onnx.save(written, path("moved.onnx"))
        refused(lambda: session(path("moved.onnx")), "EPContext", word)
    # Without a path ONNX Runtime writes beside the model, and so does the provider.
    source = saved(cut())
    session(source, entries={"ep.context_enable": "1"})
    session(path("source_ctx.onnx"))


for test in [round_trip, by_the_compile_interface, refusals]:
    test()
    print("ok", test.__name__, flush=True)
