#!/usr/bin/env python3
"""Times what runs take besides the GPU's work, beside PyTorch in the same run, and holds it against what is asked.

Run it in the repository's root on a machine with a GPU, PyTorch and NVRTC:

    python3 benches/h200/runtime.py GPU_RUNS [CASE...]          GPU_RUNS is the binary of benches/src/bin/gpu_runs

Prints the lines of both as they come, and a table at the end: measured, asked, and whether that is met. Bus rates are PyTorch's, of
pinned memory.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch


def timed(step, runs, warm=30):
    """The median time of `step`, each waited for."""
    times = []
    for run in range(runs + warm):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if run >= warm:
            times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def mlp(runs):
    layers = [torch.nn.Linear(a, b) for a, b in [(784, 512), (512, 512), (512, 10)]]
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2]).cuda().eval()
    x = torch.rand(32, 784, device="cuda")
    for name, made in [
        ("eager", model),
        ("torch.compile", torch.compile(model)),
        ("torch.compile reduce-overhead", torch.compile(model, mode="reduce-overhead")),
    ]:
        with torch.inference_mode():
            yield {"case": "mlp", "by": name, "run_us": timed(lambda: made(x), runs)}


class Decoder(torch.nn.Module):
    def __init__(self, layers, heads, width, capacity):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(5)) for _ in range(layers)
        )
        for layer in range(layers):
            for name in ("keys", "values"):
                self.register_buffer(f"{name}{layer}", torch.zeros(1, heads, capacity, self.size))
        self.register_buffer("places", torch.arange(capacity).view(1, 1, 1, capacity))

    def forward(self, x, position):
        seen = self.places <= position
        for index, (q, k, v, o, f) in enumerate(self.layers):
            def split(t):
                return t.view(1, 1, self.heads, self.size).transpose(1, 2)

            keys, values = getattr(self, f"keys{index}"), getattr(self, f"values{index}")
            keys.index_copy_(2, position, split(k(x)))
            values.index_copy_(2, position, split(v(x)))
            y = torch.nn.functional.scaled_dot_product_attention(split(q(x)), keys, values, attn_mask=seen)
            x = x + o(y.transpose(1, 2).reshape(1, 1, -1))
            x = torch.nn.functional.layer_norm(x + torch.nn.functional.gelu(f(x)), x.shape[-1:])
        return x


def decode(layers, tokens):
    capacity = 1 << max(tokens - 1, 0).bit_length()
    model = Decoder(layers, 12, 768, capacity).cuda().eval()
    for name, made in [("eager", model), ("torch.compile reduce-overhead", torch.compile(model, mode="reduce-overhead"))]:
        times = []
        with torch.inference_mode():
            for token in range(tokens):
                x = torch.rand(1, 1, 768, device="cuda")
                position = torch.tensor([token], device="cuda")
                torch.cuda.synchronize()
                start = time.perf_counter()
                made(x, position)
                torch.cuda.synchronize()
                if token >= tokens // 10:
                    times.append((time.perf_counter() - start) * 1e6)
        yield {"case": "decode", "by": name, "step_us": statistics.median(times)}


def bus():
    """The rate of copies to the device from pinned memory, in GB/s."""
    host = torch.empty(256 << 20, dtype=torch.uint8).pin_memory()
    device = torch.empty_like(host, device="cuda")
    time_us = timed(lambda: device.copy_(host, non_blocking=True), 20, warm=5)
    yield {"case": "bus", "by": "pinned copies", "gb_s": host.numel() / time_us / 1e3}


def lines(path, words):
    run = subprocess.run([path, *words], capture_output=True, text=True)
    sys.stderr.write(run.stderr)
    for line in run.stdout.splitlines():
        yield {"by": "graphc", **json.loads(line)}
    if run.returncode:
        yield {"by": "graphc", "case": "failed", "status": run.returncode}


def judged(found):
    """What is asked: a name, the measured figure, the limit, and whether more is better."""
    ours = lambda case, **which: [
        f for f in found if f["by"] == "graphc" and f.get("case") == case and all(f.get(k) == v for k, v in which.items())
    ]
    compiled = [f for f in found if "compile" in f["by"]]
    torchs = lambda case, key: min((f[key] for f in compiled if f["case"] == case), default=None)
    rate = next((f["gb_s"] for f in found if f["case"] == "bus"), None)
    for f in ours("launches"):
        how, limit = ("captured", 15) if f["capture"] else ("plain", 60)
        yield f"host time of {f['launches']} launches, us, {how}", f["submit_us"], limit, False
        if not f["capture"] and f["bare_us"] is not None:
            yield "the same launches in a bare loop, us", f["bare_us"], None, False
            yield "graphc's own part of the run, us", f["submit_us"] - f["bare_us"], None, False
    for f in ours("mlp"):
        if other := torchs("mlp", "run_us"):
            yield "MLP b32 over torch.compile", f["run_us"] / other, 0.15, False
    for f in ours("decode"):
        name = f"decoder of {f['layers']} layers, {'captured' if f['capture'] else 'plain'}"
        yield f"{name}: host over step", f["submit_us"] / f["step_us"], 0.1, False
        again = sum(f["statistics"][key] - f["after_two"][key] for key in ("placed", "sized"))
        yield f"{name}: preparations after two tokens", again, 0, False
        if other := torchs("decode", "step_us"):
            yield f"{name}: step over torch.compile", f["step_us"] / other, None, False
    for f in ours("uploads"):
        yield "uploads beside products over the longer", f["both_over_longer"], 1.05, False
        if rate:
            yield "uploads from pageable memory, of the bus", f["upload_gb_s"] / rate, None, True
    for f in ours("images"):
        yield f"images a second of device-bound, {f['dtype']}", f["of_device_bound"], 0.95, True
    for f in ours("streamed"):
        if rate and f["bytes_a_run"]:
            yield "streamed weights: time over bytes by the bus", f["run_ms"] * rate * 1e6 / f["bytes_a_run"], 1.1, False
    for f in ours("first_result"):
        for way in ("file", "graph"):
            # What is beyond copying the weights' bytes at the bus's rate.
            upload = f["file_bytes"] / rate / 1e6 if rate else 0.0
            yield f"first result from a {way}, ms beyond the upload", f[f"from_{way}_ms"] - upload, 50, False
        yield "kernels compiled on the way", f["kernels_compiled"], 0, False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gpu_runs")
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()
    own = ["--device", "cuda", "--runs", args.runs, "--tokens", args.tokens, "--layers", args.layers, *args.cases]
    wanted = lambda case: not args.cases or case in args.cases
    found = []
    for source in (
        bus(),
        lines(args.gpu_runs, map(str, own)),
        mlp(args.runs) if wanted("mlp") else (),
        decode(args.layers, args.tokens) if wanted("decode") else (),
    ):
        for line in source:
            print(json.dumps(line), flush=True)
            found.append(line)
    print()
    for name, figure, limit, more in judged(found):
        asked = "" if limit is None else f"{'>=' if more else '<='} {limit}"
        met = "" if limit is None else "met" if (figure >= limit if more else figure <= limit) else "NOT MET"
        print(f"{name:60} {figure:10.3f}  {asked:9} {met}")


if __name__ == "__main__":
    main()
