#!/usr/bin/env python3
"""Times products of one row through graphc on an NVIDIA GPU, beside PyTorch's copy in the same run.

Run it in the repository's root on a machine with a GPU, PyTorch and NVRTC:

    python3 benches/h200/gemv.py GRAPHC [COLUMNSxDEPTH ...] 2>/dev/null          GRAPHC is the command line's binary

Weights are of f16, which the exporter lays along the columns, and of i4 and u4 along the depth with a scale for each group
of 128, and for u4 a zero point. A model is a chain: each product's row is what the product before it has given, as far as it
goes, and each has constant weights of its own, all of them more than any cache holds. `alone` is the time by which a model's run grows
with each product more, so that what a run takes anyhow is not in it; products with fewer columns than rows of weights
come in pairs with one the other way round, whose time is taken off. `event` is the median of what events say around a
launch. Microseconds, and the bytes of weights and scales over that time as a share of PyTorch's copy rate (bytes read
and written). Beside it is what PyTorch's copy of as many bytes takes in a captured run, by the same difference. Errors
are of the exporter, which does not know the shapes of products by i4.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import torch
from torch import nn
from torch.nn import functional as F

SIZES = ["4096x4096", "14336x4096", "4096x14336", "28672x4096"]
GROUP = 128
warnings.filterwarnings("ignore")
RUNS = 100


def copy_rate():
    """Bytes a microsecond, of a copy of 1 GiB."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    times = []
    for _ in range(30):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return 2 * source.numel() / statistics.median(times)


def copies_us(total, count):
    """A captured run of so many copies, each of which reads and writes `total` bytes."""
    pairs = [[torch.empty(total // 2, dtype=torch.uint8, device="cuda") for _ in range(2)] for _ in range(count)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for source, target in pairs:
            target.copy_(source)
    times = []
    for _ in range(RUNS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


class Packed(torch.autograd.Function):
    """A row by weights of four bits, as ONNX Runtime's MatMulNBits has them."""

    @staticmethod
    def symbolic(g, x, columns, depth, *weights):
        sizes = {"K_i": depth, "N_i": columns, "bits_i": 4, "block_size_i": GROUP}
        return g.op("com.microsoft::MatMulNBits", x, *weights, **sizes)

    @staticmethod
    def forward(ctx, x, columns, depth, *weights):
        return x.new_zeros(x.shape[0], columns)


class Chain(nn.Module):
    """Products of `sizes`, columns and depth of each, by weights of `kind`."""

    def __init__(self, sizes, kind):
        super().__init__()
        self.sizes, self.kind = sizes, kind
        for i, (columns, depth) in enumerate(sizes):
            # A row keeps about its length.
            if kind != "f16":
                shape = (columns, depth // GROUP, GROUP // 2)
                self.register_buffer(f"w{i}", torch.randint(0, 256, shape, dtype=torch.uint8))
                self.register_buffer(f"s{i}", torch.rand(columns * depth // GROUP).half() * (0.37 / depth**0.5))
                if kind == "u4":
                    count = columns * depth // GROUP // 2
                    self.register_buffer(f"z{i}", torch.randint(0, 256, (count,), dtype=torch.uint8))
            else:
                self.register_buffer(f"w{i}", torch.randn(columns, depth).half() / depth**0.5)

    def forward(self, x):
        for i, (columns, depth) in enumerate(self.sizes):
            weight, x = getattr(self, f"w{i}"), x[:, :depth]
            if self.kind != "f16":
                beside = [getattr(self, f"{name}{i}") for name in "sz"[: 1 + (self.kind == "u4")]]
                x = Packed.apply(x, columns, depth, weight, *beside)
            else:
                x = F.linear(x, weight)
        return x


def compiled(graphc, folder, sizes, kind):
    path, artifact = folder / "chain.onnx", folder / f"{len(sizes)}.graphc"
    row = torch.randn(1, sizes[0][1]).half()
    named = {"input_names": ["x"], "output_names": ["y"]}
    torch.onnx.export(Chain(sizes, kind), (row,), str(path), **named, opset_version=17, dynamo=False)
    words = [graphc, "compile", "-q", path, "--target", "sm_90", "-o", artifact]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr[-2000:])
    path.unlink()
    return artifact


def bench(graphc, path, *more):
    words = [graphc, "bench", "-q", path, "--device", "cuda", "--runs", str(RUNS), "--format", "json", *more]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(done.stderr[-2000:])
    return json.loads(done.stdout)


def measured(graphc, of_one, few, kind):
    """Microseconds by which a run grows with each repetition of some products, and the events of `few` of them."""
    medians, events = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for count in few, 3 * few:
            path = compiled(graphc, pathlib.Path(folder), of_one * count, kind)
            medians[count] = bench(graphc, str(path), "--resident")["median_ms"] * 1e3
            if count == few:
                steps = bench(graphc, str(path), "--profile")["steps"]
                events = [s["us"] for s in steps if s["step"].endswith("[kernel]")]
    return (medians[3 * few] - medians[few]) / (2 * few), events


def main():
    graphc, sizes = sys.argv[1], sys.argv[2:] or SIZES
    rate = copy_rate()
    print(f"{torch.cuda.get_device_name()}, copy {rate / 1e6:.2f} TB/s", flush=True)
    for size in sizes:
        columns, depth = map(int, size.split("x"))
        for name in "f16", "i4", "u4":
            # Half a byte of each, a scale of two for each group, and half a byte for its zero point.
            groups = columns * depth // GROUP
            beside = {"f16": columns * depth * 3 // 2, "i4": groups * 2, "u4": groups * 5 // 2}[name]
            read = columns * depth // 2 + beside
            few = -(-200_000_000 // read)
            if columns >= depth:
                alone, events = measured(graphc, [(columns, depth)], few, name)
            else:
                pair, events = measured(graphc, [(depth, columns), (columns, depth)], few, name)
                alone, events = pair - measured(graphc, [(depth, columns)], few, name)[0], events[1::2]
            event = statistics.median(events)
            share = lambda us: f"{us:.2f} us, {read / us / rate:.0%}"
            count = f"{len(events)} kernels of {few} products"
            copied = (copies_us(read, 3 * few) - copies_us(read, few)) / (2 * few)
            text = f"{size} {name}: alone {share(alone)}; event {share(event)} ({count}); as many bytes copied"
            print(f"{text} {share(copied)}, {copied / alone:.0%} of which is reached", flush=True)


if __name__ == "__main__":
    main()
