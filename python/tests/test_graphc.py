"""What a user of the module does, right and wrong. Models are small texts, and the shipped digits."""

import asyncio
import gc
import pathlib
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import graphc

DIGITS = pathlib.Path(__file__).parents[2] / "examples" / "digits"


def model(body, symbols=""):
    return f"graph @g stage=import {{\n{symbols}{body}\n}}\n".encode()


DOUBLE = model('  x = input "x" : f32[n, m]\n  y = add x, x\n  return y as "y"')


def identity(dtype, shape="[n, m]"):
    return model(f'  x = input "x" : {dtype}{shape}\n  return x as "y"')


SUM = model(
    '  x = input "x" : f32[2]\n  s = input "s" : f32[2]\n  y = add x, s\n  z = add y, y\n  return y as "next", z as "z"'
)


@pytest.fixture(scope="module")
def double():
    return graphc.load(DOUBLE)


@pytest.fixture(scope="module")
def digits():
    return graphc.load(DIGITS / "digits.onnx", threads=2)


def test_digits_are_what_onnxruntime_gives(digits):
    images, expected = np.load(DIGITS / "test.npz")["x"], np.load(DIGITS / "expected.npz")["logits"]
    for rows in (1, 7, 360):
        outputs = digits.run({"x": images[:rows]})
        assert list(outputs) == ["logits"] and outputs["logits"].dtype == np.float32
        np.testing.assert_allclose(outputs["logits"], expected[:rows], atol=1e-4)
    assert digits.runs == 3


def test_what_a_session_says_of_itself(digits, double):
    assert digits.device == "cpu" and digits.reason is None
    assert digits.inputs == (graphc.Port("x", "f32", ("batch", 1, 8, 8)),)
    assert digits.outputs == (graphc.Port("logits", "f32", ("batch", 10)),)
    assert repr(double) == "<graphc.Session on cpu: (x: f32[n, m]) -> (y: f32[n, m])>"
    assert "<td>batch, 1, 8, 8</td>" in digits._repr_html_()
    facts = digits.inspect()
    assert facts["sizes"][0]["name"] == "batch" and facts["kernels"] and facts["weights"][0]["dtype"] == "f32"
    profile = digits.profile({"x": np.zeros((2, 1, 8, 8), np.float32)}, runs=3)
    assert profile["runs"] == 3 and len(profile["steps"]) > 3
    with pytest.raises(ValueError):
        digits.profile({"x": np.zeros((2, 1, 8, 8), np.float32)}, runs=0)


def test_models_come_as_paths_bytes_and_messages(tmp_path):
    path = DIGITS / "digits.onnx"
    x = np.zeros((1, 1, 8, 8), np.float32)
    expected = graphc.load(str(path))(x)

    class Message:
        def SerializeToString(self):
            return path.read_bytes()

    for source in (path, path.read_bytes(), bytearray(path.read_bytes()), Message()):
        np.testing.assert_array_equal(graphc.load(source)(x), expected)
    gir = tmp_path / "double.gir"
    gir.write_bytes(DOUBLE)
    assert graphc.load(gir)([[1, 2]]).tolist() == [[2, 4]]


def test_inputs_by_place_by_name_and_of_all_kinds(double):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for given in (x, x.tolist(), np.asfortranarray(x), x.astype(">f4"), memoryview(x), graphc.tensor(x)):
        np.testing.assert_array_equal(double(given), 2 * x)
        np.testing.assert_array_equal(double(x=given), 2 * x)
    wide = np.zeros((2, 6), np.float32)
    wide[:, ::2] = x
    np.testing.assert_array_equal(double(wide[:, ::2]), 2 * x)
    np.testing.assert_array_equal(double(x[::-1, ::-1]), 2 * x[::-1, ::-1])
    # At an odd address.
    raw = bytearray(25)
    odd = np.frombuffer(raw, np.uint8)[1:].view(np.float32).reshape(2, 3)
    odd[:] = x
    np.testing.assert_array_equal(double(odd), 2 * x)


def test_contiguous_arrays_are_shared_and_kept():
    x = np.arange(6, dtype=np.float32)
    kept = weakref.ref(x)
    tensor = graphc.tensor(x)
    assert tensor.address() == x.__array_interface__["data"][0]
    view = np.asarray(tensor)
    assert not view.flags.writeable and view.tolist() == [0, 1, 2, 3, 4, 5]
    x[0] = 9
    assert view[0] == 9
    del x, tensor
    gc.collect()
    assert kept() is not None
    del view
    gc.collect()
    graphc.tensor(np.zeros(1))
    assert kept() is None


def test_outputs_share_the_runs_memory_and_outlive_the_session():
    session = graphc.load(DOUBLE)
    y = session(np.ones((64, 64), np.float32))
    tensor = session.run({"x": y}, output="tensor")["y"]
    del session
    gc.collect()
    y += 1
    assert y[0, 0] == 3 and np.asarray(tensor)[5, 5] == 4
    assert np.array(tensor, dtype=np.float64)[0, 0] == 4.0
    with pytest.raises(ValueError):
        np.asarray(tensor, dtype=np.float64, copy=False)
    assert repr(tensor) == "<graphc.Tensor f32[64, 64] on cpu>"


def test_what_passes_through_unchanged_is_no_alias():
    session = graphc.load(identity("f32"))
    x = np.ones((2, 2), np.float32)
    for y in (session(x), session.run_async({"x": x}).result()["y"]):
        y[:] = 5
        assert x.tolist() == [[1, 1], [1, 1]]


def test_open_sizes_and_sizes_that_are_given():
    session = graphc.load(DOUBLE, sizes={"n": (2, 4), "m": 3})
    with pytest.raises(graphc.InputError, match="m"):
        session(np.ones((2, 2), np.float32))
    for rows in (2, 4):
        assert session(np.ones((rows, 3), np.float32)).shape == (rows, 3)
    with pytest.raises(graphc.InputError, match="n"):
        session(np.ones((5, 3), np.float32))
    with pytest.raises(graphc.OptionError, match="no such symbol"):
        graphc.load(DOUBLE, sizes={"rows": 2})
    with pytest.raises(graphc.OptionError, match="size"):
        graphc.load(DOUBLE, sizes={"n": "many"})
    assert graphc.load(DOUBLE, sizes={"n": range(1, 3)}).inputs[0].shape == ("n", "m")
    digits = graphc.load(DIGITS / "digits.onnx", shapes={"x": ["rows", 1, 8, 8]})
    assert digits.inputs[0].shape == ("rows", 1, 8, 8)


def test_scalars_and_no_elements():
    scalar = graphc.load(model('  x = input "x" : f32[]\n  y = add x, x\n  return y as "y"'))
    for given in (3, 3.0, np.float32(3), np.array(3, np.float32)):
        y = scalar(given)
        assert y.shape == () and y == 6
    empty = graphc.load(
        model('  x = input "x" : f32[n, 3]\n  y = add x, x\n  return y as "y"', "  symbol n: 0.. hint 2\n")
    )
    assert empty(np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert empty(np.ones((2, 3), np.float32)).sum() == 12


PLAIN = ["float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"]


@pytest.mark.parametrize("name", PLAIN)
def test_types_of_numpy(name):
    from graphc._arrays import OF_NUMPY

    session = graphc.load(identity(OF_NUMPY[name]))
    x = np.array([[0, 1, 1], [1, 0, 1]]).astype(name)
    y = session(x)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int4", "uint4"]
)
def test_types_of_ml_dtypes(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from graphc._arrays import OF_NUMPY

    low = -2 if name == "int4" else 0
    x = np.arange(low, low + 5).astype(getattr(ml_dtypes, name))
    tensor = graphc.tensor(x)
    assert tensor.dtype == OF_NUMPY[name] and tensor.nbytes == (3 if "int4" in name else x.nbytes)
    back = tensor.numpy()
    assert back.dtype == x.dtype and back.tolist() == x.tolist()
    if "int4" not in name:
        y = graphc.load(identity(OF_NUMPY[name], "[n]"))(x)
        assert y.dtype == x.dtype and y.tolist() == x.tolist()


def test_types_that_graphc_lacks_are_named(double):
    with pytest.raises(graphc.InputError, match="input 'x'.*uint32.*float32, float16"):
        double(np.zeros((1, 1), np.uint32))
    with pytest.raises(graphc.InputError, match="complex64"):
        graphc.tensor(np.zeros(1, np.complex64))
    with pytest.raises(graphc.InputError):
        double([[1, 2], [3]])
    with pytest.raises(graphc.InputError):
        double("text")


def test_dlpack_goes_both_ways(double):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    class Foreign:
        """What another framework gives."""

        def __init__(self, array, old=False):
            self.array, self.old = array, old

        def __dlpack__(self, **options):
            if self.old and options:
                raise TypeError("no such option")
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    np.testing.assert_array_equal(double(Foreign(x)), 2 * x)
    np.testing.assert_array_equal(double(Foreign(x, old=True)), 2 * x)
    np.testing.assert_array_equal(double(Foreign(x.T)), 2 * x.T)
    tensor = graphc.tensor(Foreign(x))
    assert tensor.address() == x.__array_interface__["data"][0]
    assert tensor.__dlpack_device__() == (1, 0)
    back = np.from_dlpack(tensor)
    assert back.__array_interface__["data"][0] == x.__array_interface__["data"][0]
    np.testing.assert_array_equal(back, x)
    y = double.run({"x": x}, output="device")["y"]
    np.testing.assert_array_equal(np.from_dlpack(y), 2 * x)
    # Capsules are used once, and end what they hold when nobody takes them.
    capsule = tensor.__dlpack__(max_version=(1, 0))
    assert "dltensor_versioned" in repr(capsule)
    graphc.Tensor.from_capsule(capsule, None)
    with pytest.raises(graphc.ArgumentError, match="used already"):
        graphc.Tensor.from_capsule(capsule, None)
    with pytest.raises(TypeError):
        graphc.Tensor.from_capsule(object(), None)
    array = np.ones(3, np.float32)
    kept = weakref.ref(array)
    capsule = graphc.tensor(array).__dlpack__()
    del array
    gc.collect()
    assert kept() is not None
    del capsule
    gc.collect()
    graphc.tensor(np.zeros(1))
    assert kept() is None
    with pytest.raises(BufferError):
        tensor.__dlpack__(dl_device=(2, 0))
    copied = np.from_dlpack(tensor, copy=True) if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else None
    if copied is not None:
        copied[:] = 0
        assert x[1, 2] == 5


def test_states_are_kept_set_and_forked():
    session = graphc.load(SUM, states={"s": "next"})
    assert [port.name for port in session.inputs] == ["x"] and [port.name for port in session.outputs] == ["z"]
    assert session.states == (graphc.Port("s", "f32", (2,)),)
    assert session.state("s").tolist() == [0, 0]
    assert [session([1, 2]).tolist() for _ in range(3)] == [[2, 4], [4, 8], [6, 12]]
    fork = session.fork()
    session.set_state("s", [10, 20])
    assert session([1, 2]).tolist() == [22, 44] and fork([1, 2]).tolist() == [8, 16]
    saved = session.state("s")
    saved[:] = 0
    assert session.state("s").tolist() == [11, 22]
    session.reset_state()
    assert session.run_async({"x": [1, 1]}).result()["z"].tolist() == [2, 2]
    with pytest.raises(graphc.ArgumentError, match="it has s"):
        session.state("t")
    with pytest.raises(graphc.InputError, match="is a state"):
        session.run({"x": [1, 2], "s": [0, 0]})
    with pytest.raises(graphc.InputError):
        session.set_state("s", np.zeros(3, np.float32))
    with pytest.raises(graphc.UserError, match="no such"):
        graphc.load(SUM, states={"s": "z_next"})


def test_runs_that_are_not_waited_for(double):
    x = np.ones((2, 2), np.float32)

    async def several():
        runs = [double.run_async({"x": i * x}) for i in range(8)]
        return [(await run)["y"][0, 0] for run in runs]

    assert asyncio.run(several()) == [2 * i for i in range(8)]
    run = double.run_async({"x": x}, output="device")
    tensor = run.result()["y"]
    assert run.done() and run.result()["y"] is tensor
    assert double(double.run({"x": tensor}, output="device")["y"])[0, 0] == 8
    assert double(double.upload(x))[1, 1] == 2
    with pytest.raises(graphc.InputError):
        double.run_async({"z": x})


def test_sixteen_threads_on_one_session(double):
    wrong = []

    def work(number):
        for turn in range(25):
            x = np.full((1 + number % 5, 1 + turn % 7), number, np.float32)
            if not (double(x) == 2 * number).all():
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_pythons_lock_is_free_during_a_run():
    body = '  x = input "x" : f32[n, 1024]\n  w = constant random(seed=1, scale=0.01) : f32[1024, 1024]\n'
    for layer in range(8):
        body += f"  y{layer} = contract {'x' if layer == 0 else f'y{layer - 1}'}, w\n"
    session = graphc.load(model(body + '  return y7 as "y"'), threads=1)
    x = np.ones((256, 1024), np.float32)
    session(x)
    done, beside = threading.Event(), []

    def count():
        while not done.is_set():
            beside.append(None)
            time.sleep(0.0001)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    try:
        # From now on a thread that does not let go of the lock keeps it.
        sys.setswitchinterval(60)
        thread.start()
        before = len(beside)
        session(x)
        after = len(beside)
    finally:
        sys.setswitchinterval(interval)
        done.set()
        thread.join()
    assert after > before + 3


def test_wrong_inputs_say_what_the_model_has(double):
    x = np.zeros((2, 2), np.float32)
    with pytest.raises(graphc.InputError, match=r'no input "z".*the model\'s inputs are x: f32\[n, m\]'):
        double.run({"z": x})
    with pytest.raises(graphc.InputError, match='input "x" is missing'):
        double()
    with pytest.raises(graphc.InputError, match="is f64, but the model declares f32"):
        double(x.astype(np.float64))
    with pytest.raises(graphc.InputError, match="rank 1"):
        double(np.zeros(2, np.float32))
    with pytest.raises(graphc.ArgumentError, match="2 inputs are given, but the model has 1"):
        double(x, x)
    with pytest.raises(graphc.ArgumentError, match="given twice"):
        double(x, x=x)
    with pytest.raises(graphc.ArgumentError, match=r"session\(x, y\)"):
        double.run([x])
    with pytest.raises(graphc.ArgumentError, match="by name, and 1 is none"):
        double.run({1: x})
    with pytest.raises(graphc.ArgumentError, match="no element type 'f8e4m3'; known: f32"):
        graphc.tensor([1, 2], "f8e4m3")
    with pytest.raises(graphc.ArgumentError, match='output is "numpy"'):
        double.run({"x": x}, output="list")


def test_wrong_options_and_models(tmp_path):
    with pytest.raises(graphc.OptionError, match='did you mean "threads"'):
        graphc.load(DOUBLE, thread=2)
    with pytest.raises(graphc.OptionError, match="known: cpu, hip"):
        graphc.load(DOUBLE, "abacus")
    with pytest.raises(graphc.OptionError, match="f16"):
        graphc.load(DOUBLE, dtype="f17")
    with pytest.raises(OSError, match="/no/such.onnx"):
        graphc.load("/no/such.onnx")
    with pytest.raises(graphc.NotAvailableError, match="/no/such/hip"):
        graphc.load(DOUBLE, "hip", hip="/no/such/hip")
    with pytest.raises(graphc.ModelError, match="the model in memory"):
        graphc.load(b"rubbish")
    with pytest.raises(graphc.ModelError):
        graphc.load(b"")
    with pytest.raises(graphc.ArgumentError, match="not int"):
        graphc.load(3)
    with pytest.raises(graphc.ModelError, match="unknown op|softmux"):
        graphc.load(model('  x = input "x" : f32[2]\n  y = softmux x\n  return y as "y"'))
    for error in (graphc.OptionError, graphc.InputError, graphc.ModelError):
        assert issubclass(error, graphc.UserError) and issubclass(error, ValueError)
    assert issubclass(graphc.InternalError, graphc.Error) and not issubclass(graphc.InternalError, graphc.UserError)
    assert "device" in graphc.options() and "threads" in graphc.options()


def test_artifacts_are_compiled_opened_and_refused_when_damaged(tmp_path):
    path = tmp_path / "digits.graphc"
    graphc.compile(DIGITS / "digits.onnx", ["cpu"], path)
    x = np.load(DIGITS / "test.npz")["x"][:3]
    expected = graphc.load(DIGITS / "digits.onnx")(x)
    np.testing.assert_array_equal(graphc.load(path)(x), expected)
    contents = path.read_bytes()
    np.testing.assert_array_equal(graphc.load(contents)(x), expected)
    for damaged in (contents[:-7], contents[: len(contents) // 2], contents[:-5] + b"xxxxx"):
        with pytest.raises(graphc.ModelError, match="damaged|ends at byte"):
            graphc.load(damaged)
        path.write_bytes(damaged)
        with pytest.raises(graphc.ModelError, match="digits.graphc"):
            graphc.load(path)
    with pytest.raises(graphc.OptionError, match="option dtype.*is compiled already"):
        graphc.load(contents, dtype="f16")
    with pytest.raises(graphc.OptionError, match="is compiled already"):
        graphc.load(contents, sizes={"batch": 1})
    with pytest.raises(graphc.OptionError, match="gfx1"):
        graphc.compile(DOUBLE, "gfx1", path)
    with pytest.raises(graphc.FileError, match="/no/such"):
        graphc.compile(DOUBLE, "cpu", "/no/such/folder/x.graphc")
    facts = graphc.inspect(DIGITS / "digits.onnx")
    assert facts["outputs"][0]["shape"] == ["batch", "10"]
    explained = graphc.explain(DIGITS / "digits.onnx", "gfx90a", proofs=True)
    assert explained["target"] == "gfx90a" and explained["rules"]
    both = graphc.explain(DOUBLE, ["gfx90a", "gfx942"])
    assert [one["target"] for one in both] == ["gfx90a", "gfx942"]


def test_computing_in_half_types_keeps_the_declared_ones(digits):
    x = np.load(DIGITS / "test.npz")["x"][:9]
    half = graphc.load(DIGITS / "digits.onnx", dtype="f16")
    assert half.outputs[0].dtype == "f32"
    np.testing.assert_allclose(half(x), digits(x), atol=0.05)
    reference = graphc.load(DIGITS / "digits.onnx", engine="reference")
    np.testing.assert_allclose(reference(x), digits(x), atol=1e-4)
    with pytest.raises(graphc.UnsupportedError):
        reference.inspect()


def test_models_whose_sizes_depend_on_data():
    onnx = pytest.importorskip("onnx")
    helper, types = onnx.helper, onnx.TensorProto
    node = helper.make_node("NonZero", ["x"], ["y"])
    graph = helper.make_graph(
        [node],
        "nonzero",
        [helper.make_tensor_value_info("x", types.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", types.INT64, [1, "k"])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(graphc.ModelError, match="NonZero"):
        graphc.load(proto)
    x = np.array([5, 0, 7, 0], np.float32)
    session = graphc.load(proto, inputs={"x": x})
    assert "NonZero" in session.reason
    assert session(x).tolist() == [[0, 2]]
    with pytest.raises(graphc.InputError):
        session(np.array([5, 5, 7, 0], np.float32))
