"""Whole graphs, graphs in parts, open sizes, subgraphs, unsigned integers, options that are refused, threads."""

import threading

from common import *


def mlp():
    random = np.random.default_rng(1)
    w1, w2 = (random.standard_normal(s).astype(np.float32) for s in [(8, 16), (16, 3)])
    nodes = [
        h.make_node("MatMul", ["x", "w1"], ["a"]),
        h.make_node("Relu", ["a"], ["b"]),
        h.make_node("MatMul", ["b", "w2"], ["c"]),
        h.make_node("Softmax", ["c"], ["y"], axis=-1),
    ]
    return model(nodes, [("x", T.FLOAT, ["n", 8])], [("y", T.FLOAT, ["n", 3])], {"w1": w1, "w2": w2})


def whole_graph():
    counts = Counts()
    made, s = mlp(), session(mlp())
    ours, others = assigned(s)
    assert (len(ours), others) == (1, []), (ours, others)
    assert len(ours[0]) == 4 and counts.compiled == 1
    own = reference(made)
    for n in [1, 5, 64]:
        inputs = random_inputs(s, {"n": n}, n)
        check_equal(s.run(None, inputs), own.run(None, inputs))
    # An output that is asked for alone, and memory of the caller's.
    binding = s.io_binding()
    inputs = random_inputs(s, {"n": 4})
    out = np.zeros((4, 3), np.float32)
    binding.bind_cpu_input("x", inputs["x"])
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    s.run_with_iobinding(binding)
    check_equal([out], own.run(None, inputs))
    # So too where it begins at an odd address.
    odd = np.zeros(out.nbytes + 1, np.uint8)
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, odd.ctypes.data + 1)
    s.run_with_iobinding(binding)
    check_equal([odd[1:].view(np.float32).reshape(out.shape)], own.run(None, inputs))
    assert counts.runs == 5 and counts.compiled == 1 and counts.specialised == 0


def cut_by_unsupported_nodes():
    # How many numbers Unique and NonZero give, data decide.
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["a"]),
        h.make_node("Relu", ["a"], ["b"]),
        h.make_node("NonZero", ["b"], ["c"]),
        h.make_node("Cast", ["c"], ["d"], to=T.FLOAT),
        h.make_node("Mul", ["d", "two"], ["e"]),
        h.make_node("Unique", ["e"], ["f"]),
        h.make_node("Exp", ["f"], ["g"]),
        h.make_node("Neg", ["g"], ["y"]),
    ]
    w = np.random.default_rng(2).standard_normal((4, 4)).astype(np.float32)
    outputs = [("y", T.FLOAT, None), ("e", T.FLOAT, None), ("b", T.FLOAT, None)]
    made = model(nodes, [("x", T.FLOAT, ["n", 4])], outputs, {"w": w, "two": np.float32(2)})
    s, own = session(made), reference(made)
    ours, others = assigned(s)
    assert sorted(ours) == [["Cast", "Mul"], ["Exp", "Neg"], ["MatMul", "Relu"]], ours
    assert others == ["NonZero", "Unique"], others
    for n in [1, 3]:
        inputs = random_inputs(s, {"n": n}, n)
        check_equal(s.run(None, inputs), own.run(None, inputs))
    # No region has three nodes.
    assert assigned(session(made, {"min_nodes": "3"}))[0] == []


def a_branch_around_an_unsupported_node():
    nodes = [
        h.make_node("Relu", ["x"], ["a"]),
        h.make_node("Unique", ["a"], ["u"]),
        h.make_node("ReduceSum", ["u"], ["b"], keepdims=0),
        h.make_node("Exp", ["a"], ["c"]),
        h.make_node("Add", ["b", "c"], ["y"]),
    ]
    made = model(nodes, [("x", T.FLOAT, [3, 4])], [("y", T.FLOAT, None)])
    s, own = session(made), reference(made)
    ours, _ = assigned(s)
    assert sorted(ours) == [["Add", "ReduceSum"], ["Exp", "Relu"]], ours
    inputs = random_inputs(s, {})
    check_equal(s.run(None, inputs), own.run(None, inputs))


def a_thousand_shapes():
    counts = Counts()
    made = mlp()
    s, own = session(made), reference(made)
    for n in range(1, 1001):
        inputs = random_inputs(s, {"n": n}, n)
        got = s.run(None, inputs)
        if n % 50 == 1:
            check_equal(got, own.run(None, inputs))
        assert got[0].shape == (n, 3)
    assert (counts.compiled, counts.specialised, counts.runs) == (1, 0, 1000), vars(counts)


def sizes_that_are_not_as_declared():
    # The two sizes are taken as equal until a run says that one is broadcast.
    nodes = [h.make_node("Add", ["a", "b"], ["y"])]
    made = model(nodes, [("a", T.FLOAT, ["n", 2]), ("b", T.FLOAT, ["m", 2])], [("y", T.FLOAT, None)])
    counts = Counts()
    s, own = session(made), reference(made)
    assert assigned(s)[1] == []
    for n, m in [(3, 3), (1, 3), (3, 1), (5, 5), (1, 3)]:
        a, b = np.ones((n, 2), np.float32), np.full((m, 2), 2, np.float32)
        check_equal(s.run(None, {"a": a, "b": b}), own.run(None, {"a": a, "b": b}))
    assert counts.compiled == 1 and counts.specialised <= 2, counts.specialised
    # Without that, the run says what is wrong.
    s = session(made, {"specialize": "0"})
    if counts.specialised:
        bad = {"a": np.ones((1, 2), np.float32), "b": np.ones((3, 2), np.float32)}
        refused(lambda: s.run(None, bad), "graphc")


def subgraphs():
    def branch(name, op):
        out = h.make_tensor_value_info(name, T.FLOAT, None)
        return h.make_graph([h.make_node(op, ["a", "w"], [name])], name, [], [out])

    # Which branch is taken, data decide: the If stays, and its branches are the provider's.
    nodes = [
        h.make_node("Relu", ["x"], ["a"]),
        h.make_node("If", ["c"], ["y"], then_branch=branch("t", "Add"), else_branch=branch("e", "Mul")),
    ]
    inputs = [("x", T.FLOAT, ["n", 2]), ("c", T.BOOL, [])]
    made = model(nodes, inputs, [("y", T.FLOAT, None)], {"w": np.float32([3, 5])})
    s, own = session(made), reference(made)
    for c in [True, False]:
        given = {"x": np.float32([[1, -2], [3, 4]]), "c": np.array(c)}
        check_equal(s.run(None, given), own.run(None, given))
    # A loop stays with ONNX Runtime, and its body is the provider's.
    ports = [("i", T.INT64, []), ("q", T.BOOL, []), ("v", T.FLOAT, ["n", 2])]
    i, cond, v = (h.make_tensor_value_info(*port) for port in ports)
    outs = [h.make_tensor_value_info("q2", T.BOOL, []), h.make_tensor_value_info("v2", T.FLOAT, ["n", 2])]
    body = h.make_graph(
        [h.make_node("Identity", ["q"], ["q2"]), h.make_node("Mul", ["v", "w"], ["v2"])], "body", [i, cond, v], outs
    )
    nodes = [h.make_node("Loop", ["count", "", "x"], ["y"], body=body)]
    ports = [("x", T.FLOAT, ["n", 2]), ("count", T.INT64, [])]
    made = model(nodes, ports, [("y", T.FLOAT, ["n", 2])], {"w": np.float32([3, 5])})
    s, own = session(made), reference(made)
    ours, others = assigned(s)
    assert others == ["Loop"] and ours == [["Identity", "Mul"]], (ours, others)
    given = {"x": np.float32([[1, -2]]), "count": np.array(3)}
    check_equal(s.run(None, given), own.run(None, given))
    # A scan is taken whole, with what is in it.
    v, x = h.make_tensor_value_info("v", T.FLOAT, [2]), h.make_tensor_value_info("r", T.FLOAT, [2])
    outs = [h.make_tensor_value_info(name, T.FLOAT, [2]) for name in ["v2", "t"]]
    body = h.make_graph(
        [h.make_node("Add", ["v", "r"], ["v2"]), h.make_node("Mul", ["v2", "w"], ["t"])], "body", [v, x], outs
    )
    scan = h.make_node("Scan", ["z", "a"], ["y", "s"], body=body, num_scan_inputs=1)
    nodes = [h.make_node("Relu", ["x"], ["a"]), scan]
    outputs = [("y", T.FLOAT, [2]), ("s", T.FLOAT, [5, 2])]
    constants = {"w": np.float32([3, 5]), "z": np.zeros(2, np.float32)}
    made = model(nodes, [("x", T.FLOAT, [5, 2])], outputs, constants)
    s, own = session(made), reference(made)
    ours, others = assigned(s)
    assert others == [] and ours == [["Relu", "Scan"]], (ours, others)
    given = random_inputs(s, {})
    check_equal(s.run(None, given), own.run(None, given))


def unsigned_integers():
    for code, dtype in [(T.UINT16, np.uint16), (T.UINT32, np.uint32), (T.UINT64, np.uint64)]:
        nodes = [h.make_node("Concat", ["a", "b"], ["c"], axis=0), h.make_node("Gather", ["c", "i"], ["y"])]
        ports = [("a", code, ["n"]), ("b", code, ["m"])]
        made = model(nodes, ports, [("y", code, None)], {"i": np.int64([0, -1, 1])})
        s, own = session(made), reference(made)
        assert assigned(s)[1] == [], dtype
        top = np.iinfo(dtype).max if dtype != np.uint64 else 2**63 - 1
        given = {"a": np.array([top, 1], dtype), "b": np.array([2, top - 1], dtype)}
        check_equal(s.run(None, given), own.run(None, given))


def empty_tensors_and_scalars():
    nodes = [h.make_node("Mul", ["x", "s"], ["y"]), h.make_node("ReduceSum", ["y"], ["z"], keepdims=0)]
    made = model(nodes, [("x", T.FLOAT, ["n"]), ("s", T.FLOAT, [])], [("y", T.FLOAT, ["n"]), ("z", T.FLOAT, [])])
    s, own = session(made), reference(made)
    for n in [0, 1, 3]:
        given = {"x": np.arange(n, dtype=np.float32), "s": np.array(2, np.float32)}
        check_equal(s.run(None, given), own.run(None, given))


def an_initializer_that_a_run_overrides():
    nodes = [h.make_node("Add", ["x", "w"], ["y"])]
    made = model(nodes, [("x", T.FLOAT, [2]), ("w", T.FLOAT, [2])], [("y", T.FLOAT, [2])], {"w": np.float32([1, 2])})
    s = session(made)
    x = np.float32([10, 20])
    check_equal(s.run(None, {"x": x}), [np.float32([11, 22])])
    check_equal(s.run(None, {"x": x, "w": np.float32([5, 5])}), [np.float32([15, 25])])


def bad_options():
    made = mlp()
    refused(lambda: session(made, {"thread": "2"}), "thread", "did you mean", "threads")
    for key, value in {
        "device": "cp",
        "threads": "many",
        "opt_level": "7",
        "dtype": "float",
        "weights": "int3",
        "sizes": "n=x",
        "max_vram_mib": "-1",
        "min_nodes": "0",
        "specialize": "maybe",
    }.items():
        refused(lambda: session(made, {key: value}), key, value)
    refused(lambda: session(made, {"sizes": "batch=4"}), "sizes", "batch")
    refused(lambda: session(made, entries={"ep.share_ep_contexts": "1"}), "ep.share_ep_contexts")
    refused(lambda: session(made, {"device": "hip:77"}), "graphc")
    # Good ones: a size outside its bounds is refused by the run.
    s = session(made, {"threads": "1", "opt_level": "1", "sizes": "n=1..4", "specialize": "0"})
    s.run(None, random_inputs(s, {"n": 4}))
    refused(lambda: s.run(None, random_inputs(s, {"n": 5})), "graphc", "5")
    fixed = session(made, {"sizes": "n=2"})
    check_equal(fixed.run(None, random_inputs(s, {"n": 2})), reference(made).run(None, random_inputs(s, {"n": 2})))


def weights_in_a_file():
    made = mlp()
    path = os.path.join(FOLDER, "external.onnx")
    for old in [path, path + ".data"]:
        if os.path.exists(old):
            os.remove(old)
    onnx.save(made, path, save_as_external_data=True, location="external.onnx.data", size_threshold=0)
    s, own = session(path), reference(mlp())
    assert assigned(s)[1] == []
    with open("/proc/self/maps") as maps:
        assert any("external.onnx.data" in line for line in maps), "the file is not mapped"
    inputs = random_inputs(s, {"n": 3})
    check_equal(s.run(None, inputs), own.run(None, inputs))


def registered_twice():
    ort.register_execution_provider_library("again", LIBRARY)
    ort.unregister_execution_provider_library("again")
    s = session(mlp())
    inputs = random_inputs(s, {"n": 3})
    check_equal(s.run(None, inputs), reference(mlp()).run(None, inputs))


def sixteen_threads():
    made = mlp()
    s, own = session(made), reference(made)
    cases = [random_inputs(s, {"n": n}, n) for n in range(1, 17)]
    wanted = [own.run(None, case) for case in cases]
    failures = []

    def work(at):
        try:
            for turn in range(40):
                k = (at + turn) % len(cases)
                check_equal(s.run(None, cases[k]), wanted[k])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(16)]
    counts = Counts()
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures, failures[0]
    assert counts.runs == 16 * 40 and counts.compiled == 0
    # Threads that need one compilation for their inputs get one.
    nodes = [h.make_node("Add", ["a", "b"], ["y"])]
    made = model(nodes, [("a", T.FLOAT, ["n", 2]), ("b", T.FLOAT, ["m", 2])], [("y", T.FLOAT, None)])
    s, counts = session(made), Counts()
    a, b = np.ones((1, 2), np.float32), np.full((3, 2), 2, np.float32)

    def work(at):
        try:
            check_equal(s.run(None, {"a": a, "b": b}), [a + b])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(16)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures, failures[0]
    assert counts.specialised == 1, counts.specialised


for test in [
    whole_graph,
    cut_by_unsupported_nodes,
    a_branch_around_an_unsupported_node,
    a_thousand_shapes,
    sizes_that_are_not_as_declared,
    subgraphs,
    unsigned_integers,
    empty_tensors_and_scalars,
    an_initializer_that_a_run_overrides,
    bad_options,
    weights_in_a_file,
    registered_twice,
    sixteen_threads,
]:
    test()
    print("ok", test.__name__, flush=True)
