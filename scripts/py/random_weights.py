"""Runs models with hashed random weights in onnxruntime and keeps the outputs.

    python scripts/py/random_weights.py tests/data/light tests/data/light_random [NAME...]

Per model NAME.npz is written: the outputs under their names, and the `gain` and `head` of hashed_fill.fill. `head` is
chosen from a first run so that the logits' standard deviation is about 1: a saturated softmax would hide mistakes.
The input is not stored: it is hashed_fill.uniform("<input name>", SEED, count, -1, 1). `--save DIR` keeps the models
(VGG-19 has 575 MB).
"""

import argparse
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime as ort

import hashed_fill

SEED = 0x6772_6170_6863  # "graphc"
GAIN = {"light_resnet50": 0.6, "light_shufflenet": 0.6}


def dims_of(value):
    return [d.dim_value if d.HasField("dim_value") else 1 for d in value.type.tensor_type.shape.dim]


def run(model, data=None):
    """Returns the outputs by name for the hashed inputs."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(data or model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {
        i.name: hashed_fill.uniform(i.name, SEED, int(np.prod(dims_of(i))), -1.0, 1.0).reshape(dims_of(i))
        for i in model.graph.input
    }
    names = [o.name for o in model.graph.output]
    return dict(zip(names, session.run(names, feeds)))


def head_of(path, gain):
    """Returns the factor that brings the logits (the last layer's outputs) to a standard deviation near 1."""
    model = hashed_fill.fill(onnx.load(path), SEED, gain)
    if model.graph.node[-1].op_type == "Softmax":
        logits = model.graph.node.pop().input[0]
        del model.graph.output[:]
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(logits))
    deviation = float(next(iter(run(model).values())).std())
    return float(f"{1.0 / deviation:.2g}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("models", type=pathlib.Path)
    arguments.add_argument("out", type=pathlib.Path)
    arguments.add_argument("names", nargs="*")
    arguments.add_argument("--save", type=pathlib.Path)
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for path in sorted(options.models.glob("*.onnx")):
        if options.names and path.stem not in options.names:
            continue
        gain = GAIN.get(path.stem, 1.0)
        head = head_of(path, gain)
        model = hashed_fill.fill(onnx.load(path), SEED, gain, head)
        data = model.SerializeToString()
        if options.save:
            options.save.mkdir(parents=True, exist_ok=True)
            (options.save / path.name).write_bytes(data)
        outputs = run(model, data)
        np.savez(options.out / f"{path.stem}.npz", gain=np.float64(gain), head=np.float64(head), **outputs)
        for name, value in outputs.items():
            flat = np.sort(value.reshape(-1))[::-1]
            print(f"{path.stem:20} head {head:<8} {name:16} min {flat[-1]:.2e} median {np.median(flat):.2e} top {flat[:3]}")
            if not np.isfinite(flat).all() or flat.std() < 0.1 * abs(flat.mean()) or (flat[-1] >= 0 and flat[0] > 2000 * np.median(flat)):
                sys.exit(f"{path.stem}: the outputs are saturated or all alike; choose another gain")


if __name__ == "__main__":
    main()
