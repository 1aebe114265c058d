#!/usr/bin/env python3
"""Times one model on one GPU and on several that share it, through graphc.

Run it in the repository's root on a machine with NVIDIA GPUs, PyTorch (which makes the models and has NCCL), ONNX and NVRTC; it needs no
network:

    python3 benches/h200/gpus.py GRAPHC [--gpus 2] [--split tensors|layers|both] [--layers 4] [--halves auto|never|always] [CASE...]

GRAPHC is the command line's binary. `--split` (default both) says what each GPU has: a part of each layer, or some of the layers. `--halves`
says which sums over the GPUs are made in halves, of which one travels while the other is computed.

Weights are random, of an 8B Llama's blocks (`models.py`), computed in f16: one block where each layer is shared, and `--layers` blocks where
each GPU has some. For each case and split a line of JSON: `device` is what the device took
from a run's beginning to its end and `kernels` the sum of its steps, both on rank 0, with the time of collectives (which have the waiting for
the other ranks in them) apart in `collectives`; `run` is a whole run with inputs and outputs on the devices, waited for. Medians,
milliseconds. `error` is the largest difference from PyTorch in f32, over the largest number; `apart` that of several GPUs from one.
`captured` is `run` with collectives in captured graphs (GRAPHC_CAPTURE_COLLECTIVES=1), which is off by default.

By layers what crosses is copied from GPU to GPU, and no NCCL takes part. One run alone takes what it takes on one GPU, and the copies:
`run` of `several` is not expected to be shorter. `overlapped` is the time of a run where 8 are begun before the first is waited for, as its
share of the time of all, which is what stages are for: at best that of one GPU divided by how many there are. `device` is the sum of the
stages, run one after the other. `sharing` says where the model was cut, the bytes of each stage, and how many cross.
"""

import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback

import numpy
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from models import LlamaBlock, rope  # noqa: E402

RUNS = 100
OVERLAP = 8


class Blocks(torch.nn.Module):
    """Blocks that follow each other, each with weights of its own."""

    def __init__(self, count):
        super().__init__()
        self.blocks = torch.nn.ModuleList(LlamaBlock() for _ in range(count))

    def forward(self, x, cos, sin):
        for block in self.blocks:
            x = block(x, cos, sin)
        return x


def cases():
    cos, sin = rope(0, 1)
    long_cos, long_sin = rope(0, 128)
    return {
        "block b32": {"x": torch.randn(32, 1, 4096), "cos": cos, "sin": sin},
        "block b1": {"x": torch.randn(1, 1, 4096), "cos": cos, "sin": sin},
        "block b32 s128": {"x": torch.randn(32, 128, 4096), "cos": long_cos, "sin": long_sin},
    }


def nccl():
    """The NCCL that came with PyTorch, unless GRAPHC_RCCL names another."""
    if "GRAPHC_RCCL" in os.environ:
        return {}
    try:
        import nvidia.nccl

        found = sorted(pathlib.Path(list(nvidia.nccl.__path__)[0]).rglob("libnccl.so*"))
        return {"GRAPHC_RCCL": str(found[0])} if found else {}
    except ImportError:
        return {}


class Runner:
    def __init__(self, graphc, folder, halves="auto"):
        self.graphc, self.folder, self.halves = graphc, folder, halves
        self.environment = {**os.environ, **nccl()}

    def call(self, *words, **more):
        environment = {**self.environment, **more}
        done = subprocess.run([self.graphc, *map(str, words)], capture_output=True, text=True, timeout=400, env=environment)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr[-2000:]}")
        return done.stdout

    def measure(self, model, arrays, gpus, split):
        device = "cuda:" + ",".join(map(str, range(gpus)))
        artifact = self.folder / f"model{gpus}.graphc"
        shared = ["--ranks", gpus, "--bus", 450, "--split", split, "--halves", self.halves] if gpus > 1 else []
        self.call("compile", "-q", model, "--target", "sm_90", "--dtype", "f16", "-o", artifact, *shared)
        outputs = self.folder / f"out{gpus}.npz"
        self.call("run", "-q", artifact, "--inputs", arrays, "--device", device, "-o", outputs)
        bench = lambda *words, **more: json.loads(
            self.call("bench", "-q", artifact, "--inputs", arrays, "--device", device, "--format", "json", "--runs", RUNS, *words, **more)
        )
        profile = json.loads(self.call("profile", "-q", artifact, "--inputs", arrays, "--device", device, "--format", "json", "--runs", RUNS))
        steps = [s for s in bench("--profile")["steps"] if not s["step"].endswith("[copy]")]
        collectives = [s for s in steps if s["step"].startswith("rccl_")]
        line = {
            "device": profile["run"]["device_us"] / 1e3,
            "kernels": sum(s["us"] for s in steps) / 1e3,
            "collectives": sum(s["us"] for s in collectives) / 1e3,
            "steps": len(steps),
            "run": bench("--resident")["median_ms"],
        }
        if split == "layers":
            line["overlapped"] = bench("--resident", "--overlap", OVERLAP)["median_ms"]
        elif gpus > 1:
            try:
                line["captured"] = bench("--resident", GRAPHC_CAPTURE_COLLECTIVES="1")["median_ms"]
            except Exception as error:
                line["captured"] = {"failed": str(error)[-500:]}
        return line, numpy.load(outputs)["y"].astype(numpy.float64)


def case(name, graphc, inputs, gpus, split, layers, halves):
    model = (Blocks(layers) if split == "layers" else LlamaBlock()).eval().half()
    given = {n: t.half() for n, t in inputs.items()}
    with torch.inference_mode():
        wanted = copy.deepcopy(model).float().cuda()(*(t.float().cuda() for t in given.values())).double().cpu().numpy()
    line = {"case": name, "gpus": gpus, "split": split, "blocks": layers if split == "layers" else 1}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        path, arrays = folder / "model.onnx", folder / "in.npz"
        with torch.no_grad():
            on_gpu = model.cuda()
            values = tuple(t.cuda() for t in given.values())
            torch.onnx.export(on_gpu, values, str(path), input_names=list(given), output_names=["y"], opset_version=17, dynamo=False)
        del on_gpu, values, model
        torch.cuda.empty_cache()
        numpy.savez(arrays, **{n: t.numpy() for n, t in given.items()})
        runner = Runner(graphc, folder, halves)
        how = ("--ranks", gpus, "--bus", 450, "--split", split, "--halves", halves)
        explained = runner.call("explain", path, "--target", "sm_90", "--dtype", "f16", *how)
        line["sharing"] = [row.strip() for row in explained.split("\n\n")[1].splitlines()]
        one, first = runner.measure(path, arrays, 1, split)
        several, second = runner.measure(path, arrays, gpus, split)
    largest = max(numpy.abs(wanted).max(), 1e-30)
    one["error"], several["error"] = (float(numpy.abs(got - wanted).max() / largest) for got in (first, second))
    several["apart"] = float(numpy.abs(first - second).max() / largest)
    line["one"], line["several"] = one, several
    line["faster"] = {key: round(one[key] / several[key], 3) for key in ("kernels", "device", "run", "overlapped") if several.get(key)}
    return line


def main():
    words = sys.argv[1:]

    def option(name, default):
        if name not in words:
            return default
        at = words.index(name)
        value = words[at + 1]
        del words[at : at + 2]
        return value

    gpus, split, layers = int(option("--gpus", 2)), option("--split", "both"), int(option("--layers", 4))
    halves = option("--halves", "auto")
    if split not in ("tensors", "layers", "both") or not words:
        sys.exit(__doc__)
    splits = ("tensors", "layers") if split == "both" else (split,)
    graphc, wanted = words[0], words[1:]
    for name, inputs in cases().items():
        if wanted and name not in wanted:
            continue
        for split in splits:
            try:
                line = case(name, graphc, inputs, gpus, split, layers, halves)
            except Exception:
                line = {"case": name, "split": split, "failed": traceback.format_exc()[-2500:]}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
