#!/usr/bin/env python3
"""Times models on an NVIDIA GPU through graphc, beside PyTorch in the same run.

Run it in the repository's root on a machine with a GPU, PyTorch, ONNX and NVRTC:

    python3 benches/h200/models.py [--tune N] [--also SCHEME]... GRAPHC [CASE...]          GRAPHC is the command line's binary

Weights are random. Each model is exported in f16, its outputs are compared with those of PyTorch in f32 on the same weights, and
then it is timed: `kernels` is the sum of the device's time of each kernel, `run` a whole run with inputs and outputs on the device, waited
for. With `--also` it is timed again with its products quantised: a word of `--dtype` (`f16+int4`), or a scheme of `graphc quantize`
(`static-int8`), which is calibrated with the inputs that are timed. With `--tune` each of these is timed again with the best of N
candidates of each of its products (`graphc tune`).
PyTorch is timed by events (`device`) and with a wait after each run (`run`), eagerly and by `torch.compile`. `copy` is its copy of
the first input, which reads and writes as many bytes. Medians, milliseconds.
"""

import copy
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

import numpy
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("ignore")
torch.manual_seed(0)
RUNS = 100


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (p(x).view(batch, length, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).reshape(batch, length, width))


class EncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        x = self.first(x + self.attention(x))
        return self.second(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """BERT-base: token, position and segment embeddings, twelve layers."""

    def __init__(self, width=768, heads=12, layers=12):
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(n, width) for n in (30522, 512, 2))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))

    def forward(self, ids, kinds):
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.words(ids) + self.places(places) + self.kinds(kinds))
        for layer in self.layers:
            x = layer(x)
        return x


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class LlamaBlock(nn.Module):
    """One block of an 8B Llama: 32 heads of 128, 8 of keys and values, 14336 wide within. `past` keys are given where there are some."""

    def __init__(self, width=4096, heads=32, groups=8, within=14336):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, within, bias=False) for _ in range(2))
        self.down = nn.Linear(within, width, bias=False)
        self.first, self.second = RmsNorm(width), RmsNorm(width)

    def forward(self, x, cos, sin, keys=None, values=None):
        batch, length, width = x.shape
        h = self.first(x)
        split = lambda t, heads: t.view(batch, length, heads, self.size).transpose(1, 2)
        q, k, v = split(self.q(h), self.heads), split(self.k(h), self.groups), split(self.v(h), self.groups)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if keys is not None:
            k, v = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        spread = lambda t: t[:, :, None].expand(-1, -1, self.heads // self.groups, -1, -1).reshape(batch, self.heads, -1, self.size)
        y = F.scaled_dot_product_attention(q, spread(k), spread(v), is_causal=keys is None)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, width))
        h = self.second(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return (x, k, v) if keys is not None else x


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4096, 4096)

    def forward(self, x):
        return F.gelu(self.layer(x))


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4096)

    def forward(self, x):
        return torch.softmax(F.gelu(self.norm(x)), -1)


class Pointwise(nn.Module):
    def forward(self, x, others):
        return F.gelu(x) * others


class Gemv(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4096, 14336, bias=False)

    def forward(self, x):
        return self.layer(x)


def rope(start, length, size=128):
    angles = torch.outer(torch.arange(start, start + length).float(), 1e4 ** (-torch.arange(0, size, 2).float() / size))
    return torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()


def cases():
    image = lambda batch: {"x": torch.randn(batch, 3, 224, 224)}
    words = lambda batch: {"ids": torch.randint(0, 30522, (batch, 128)), "kinds": torch.zeros(batch, 128, dtype=torch.int64)}
    cos, sin = rope(0, 1024)
    at_cos, at_sin = rope(1024, 1)
    cache = lambda: torch.randn(1, 8, 1024, 128)
    resnet = lambda: torchvision.models.resnet50(weights=None)
    return {
        "gemm": (Mlp, {"x": torch.randn(4096, 4096)}),
        "rows": (Rows, {"x": torch.randn(16384, 4096)}),
        "pointwise": (Pointwise, {n: torch.randn(16384, 4096) for n in ("x", "others")}),
        "gemv": (Gemv, {"x": torch.randn(1, 4096)}),
        "bert b1": (Bert, words(1)),
        "bert b32": (Bert, words(32)),
        "resnet50 b1": (resnet, image(1)),
        "resnet50 b32": (resnet, image(32)),
        "llama decode": (LlamaBlock, {"x": torch.randn(1, 1, 4096), "cos": at_cos, "sin": at_sin, "keys": cache(), "values": cache()}),
        "llama prefill": (LlamaBlock, {"x": torch.randn(1, 1024, 4096), "cos": cos, "sin": sin}),
    }


def narrowed(tensor):
    return tensor.half() if tensor.is_floating_point() else tensor


def timed(step):
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    device, runs = [], []
    for _ in range(RUNS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        device.append(start.elapsed_time(end))
    for _ in range(RUNS):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        runs.append((time.perf_counter() - start) * 1e3)
    return {"device": statistics.median(device), "run": statistics.median(runs)}


def by_graphc(graphc, path, folder, inputs, wanted, candidates=0, scheme="f16"):
    call = lambda *words: subprocess.run([graphc, *map(str, words)], capture_output=True, text=True, timeout=240)
    arrays = folder / "in.npz"
    numpy.savez(arrays, **{name: tensor.cpu().numpy() for name, tensor in inputs.items()})
    if "-" in scheme:
        quantised = folder / "quantised.onnx"
        made = call("quantize", "-q", path, "--scheme", scheme, "--calibrate", arrays, "-o", quantised)
        if made.returncode != 0:
            raise RuntimeError(made.stderr[-2000:])
        path, scheme = quantised, "f16"
    tuning, found = [], None
    if candidates:
        database = folder / f"{scheme}.tuned.db"
        start = time.perf_counter()
        tuned = call("tune", "run", "-q", path, "--device", "cuda", "--dtype", scheme, "--no-libraries", "--database", database, "--candidates", candidates, "--format", "json")
        if tuned.returncode != 0:
            raise RuntimeError(tuned.stderr[-2000:])
        tuned = json.loads(tuned.stdout)
        better = [p["predicted"]["us"] / p["best"]["us"] for p in tuned["products"] if p["best"] and p["predicted"]["us"]]
        found = {"measured": tuned["measured"], "seconds": time.perf_counter() - start, "faster": [round(b, 2) for b in better]}
        tuning = ["--tuning", database]
    # One file is compiled, all others read it.
    artifact = folder / "model.graphc"
    made = call("compile", "-q", path, "--target", "sm_90", "--dtype", scheme, "-o", artifact, *tuning)
    if made.returncode != 0:
        raise RuntimeError(made.stderr[-2000:])
    ran = call("run", "-q", artifact, "--inputs", arrays, "--device", "cuda", "-o", folder / "out.npz")
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr[-2000:])
    got = numpy.load(folder / "out.npz")["y"].astype(numpy.float64)
    wanted = wanted.double().cpu().numpy()
    error = float(numpy.abs(got - wanted).max() / max(numpy.abs(wanted).max(), 1e-30))
    bench = lambda *more: json.loads(call("bench", "-q", artifact, "--inputs", arrays, "--device", "cuda", "--format", "json", "--runs", RUNS, *more).stdout)
    whole, steps = bench("--resident"), bench("--profile")
    by_kernel = {}
    for step in steps["steps"]:
        if not step["step"].endswith("[copy]"):
            times = by_kernel.setdefault(step["step"].removesuffix(" [kernel]"), [0, 0.0])
            times[0], times[1] = times[0] + 1, round(times[1] + step["us"], 1)
    return {
        "run": whole["median_ms"],
        "kernels": sum(us for _, us in by_kernel.values()) / 1e3,
        "error": error,
        "steps": len(steps["steps"]),
        "by_kernel": by_kernel,
        "tuning": found,
    }


def case(name, graphc, make, inputs, candidates, schemes):
    model = make().eval().cuda()
    inputs = {n: t.cuda() for n, t in inputs.items()}
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.3, 0.9)
            module.bias.data.normal_(0, 0.1)
    given = {n: narrowed(t) for n, t in inputs.items()}
    with torch.inference_mode():
        model = model.half()
        wide = {n: t.float() if t.is_floating_point() else t for n, t in given.items()}
        wanted = copy.deepcopy(model).float()(*wide.values())
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    line = {"case": name}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        path = folder / "model.onnx"
        outputs = ["y"] if "keys" not in given else ["y", "new_keys", "new_values"]
        with torch.no_grad():
            torch.onnx.export(model, tuple(given.values()), str(path), input_names=list(given), output_names=outputs, opset_version=17, dynamo=False)
        try:
            line["graphc"] = by_graphc(graphc, path, folder, given, wanted)
            if candidates:
                line["tuned"] = by_graphc(graphc, path, folder, given, wanted, candidates)
        except Exception as error:
            line["tuned" if "graphc" in line else "graphc"] = {"failed": str(error)[-1500:]}
        for scheme in schemes:
            try:
                line[scheme] = by_graphc(graphc, path, folder, given, wanted, scheme=scheme)
                if candidates:
                    line[f"{scheme} tuned"] = by_graphc(graphc, path, folder, given, wanted, candidates, scheme)
            except Exception as error:
                line[scheme] = {"failed": str(error)[-1500:]}
    first = next(iter(given.values()))
    with torch.inference_mode():
        copied = torch.empty_like(first)
        line["copy"] = timed(lambda: copied.copy_(first))
        line["eager"] = timed(lambda: model(*given.values()))
        try:
            made = torch.compile(model, mode="reduce-overhead")
            line["compile"] = timed(lambda: made(*given.values()))
        except Exception as error:
            line["compile"] = {"failed": str(error)[-500:]}
        torch._dynamo.reset()
    return line


def main():
    words, candidates, schemes = sys.argv[1:], 0, []
    while words[0].startswith("--"):
        if words[0] == "--tune":
            candidates = int(words[1])
        elif words[0] == "--also":
            schemes.append(words[1])
        else:
            sys.exit(f"{words[0]}: not known; --tune N, --also SCHEME")
        words = words[2:]
    graphc, wanted = words[0], words[1:]
    for name, (make, inputs) in cases().items():
        if wanted and name not in wanted:
            continue
        try:
            line = case(name, graphc, make, inputs, candidates, schemes)
        except Exception:
            line = {"case": name, "failed": traceback.format_exc()[-1500:]}
        print(json.dumps(line), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
