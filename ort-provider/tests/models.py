"""The model files of this repository through the provider, against ONNX Runtime's own kernels."""

from common import *

# Sizes of each file's open axes, and where there are several runs, of each.
FILES = {
    "exports/bert.dy.onnx": [{None: 3}, {None: 7}],
    "exports/bert.ts.onnx": [{None: 4}],
    "exports/gpt2.dy.onnx": [{None: 5}, {None: 9}],
    "exports/llama.dy.onnx": [{None: 5}],
    "exports/mobilenet.dy.onnx": [{None: 2}],
    "exports/mobilenet.ts.onnx": [{None: 1}],
    "exports/vit.dy.onnx": [{None: 2}],
    "exports/vit.ts.onnx": [{None: 1}],
    "light/light_squeezenet.onnx": [{}],
    "light/light_shufflenet.onnx": [{}],
    "../../examples/digits/digits.onnx": [{None: 1}, {None: 5}],
}


root = os.path.join(REPOSITORY, "tests", "data")
for file, runs in FILES.items():
    path = os.path.join(root, file)
    counts = Counts()
    s, own = session(path), reference(path)
    ours, others = assigned(s)
    for turn, sizes in enumerate(runs):
        inputs = random_inputs(s, sizes, turn)
        check_equal(s.run(None, inputs), own.run(None, inputs), rtol=2e-3, atol=2e-4)
    assert ours and counts.specialised == 0, counts.specialised
    print("ok", file, f"{len(ours)} regions of {sum(map(len, ours))} nodes, {len(others)} others", flush=True)
