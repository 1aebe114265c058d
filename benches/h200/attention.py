#!/usr/bin/env python3
"""Times the device library's attention on an NVIDIA GPU, beside PyTorch's flash attention in the same run.

Run it in the repository's root on a machine with a GPU, PyTorch and NVRTC:

    python3 benches/h200/attention.py [CASE...]

Every tiling is first checked against PyTorch in f32 on sizes that cut its tiles. Each line is the median of 30 launches:
microseconds, TFLOP/s (of what is seen), ratio to PyTorch's time, registers, bytes of local memory.
"""

import sys

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from gemm import Kernel, median_time

# Waves, keys, split, fragments, whether queries stay in LDS; heads that go together; workgroups that a compute unit should have room for.
TILINGS = [
    (4, 16, 1, 1, 0, 64, 1), (4, 32, 1, 1, 0, 64, 1), (4, 64, 1, 1, 0, 64, 1), (4, 64, 1, 1, 1, 64, 1), (8, 64, 1, 1, 0, 64, 1), (4, 32, 1, 2, 0, 64, 1),
    (4, 32, 1, 2, 1, 64, 1), (4, 64, 1, 2, 1, 64, 1), (4, 64, 1, 1, 1, 64, 3), (4, 32, 1, 1, 0, 64, 3), (4, 32, 1, 1, 1, 64, 3), (4, 32, 1, 1, 1, 64, 4),
    (8, 32, 1, 2, 1, 64, 1), (8, 64, 1, 2, 1, 64, 1), (4, 16, 1, 2, 1, 64, 1), (4, 64, 1, 1, 0, 1, 1), (4, 64, 1, 1, 0, 8, 1), (2, 64, 1, 1, 0, 64, 1), (2, 32, 1, 2, 1, 64, 1), (2, 64, 1, 2, 1, 64, 1),
    (4, 32, 4, 1, 0, 64, 1), (4, 64, 2, 1, 0, 64, 1), (8, 32, 4, 1, 0, 64, 1), (8, 16, 8, 1, 0, 64, 1), (8, 64, 2, 1, 0, 64, 1), (4, 32, 2, 1, 0, 64, 1),
]
# Batch, heads, heads of keys, queries, keys, width, causal.
CASES = {
    "bert b1": (1, 12, 12, 128, 128, 64, False),
    "bert b32": (32, 12, 12, 128, 128, 64, False),
    "prefill 1024": (1, 32, 8, 1024, 1024, 128, True),
    "prefill 4096": (1, 32, 8, 4096, 4096, 128, True),
    "whole 4096": (1, 32, 8, 4096, 4096, 128, False),
    "whole 4096 of 64": (2, 32, 32, 4096, 4096, 64, False),
}

SOURCE = """
#include "graphc_flash.hip.h"
using namespace graphc;
using Tiles = FlashTile<MmaSync<16, 8, 16, f16, f32>, {waves}, {keys}, {width}, {width}, {split}, {fragments}, {stay}>;
extern "C" __constant__ int facts[3] = {{Tiles::THREADS, Tiles::LDS_BYTES, Tiles::DYNAMIC_LDS}};
extern "C" __global__ __launch_bounds__(Tiles::THREADS, {least})
void product(const f16* q, const f16* k, const f16* v, f16* out, int batch, int heads, int groups, int queries, int keys) {{
    const int width = {width};
    for (int n = blockIdx.x; n < query_blocks<Tiles>(batch * heads, queries); n += gridDim.x) {{
    const QueryBlock at = query_block<Tiles, {together}, {causal}>(n, batch * heads, queries);
    const int b = at.batch / heads, h = at.batch % heads, g = h / (heads / groups);
    const auto query = along_k<8>([&](int i, int d) {{ return q + ((b * queries + i) * heads + h) * width + d; }});
    const auto key = along_k<8>([&](int i, int d) {{ return k + ((b * keys + i) * groups + g) * width + d; }});
    const auto value = along_rows<8>([&](int d, int i) {{ return v + ((b * keys + i) * groups + g) * width + d; }});
    const auto score = [&](int i, int j, float dot) -> float {{
        const float scaled = dot * {scale}f;
        return {mask};
    }};
    flash<Tiles, 8, {causal}>(at.number, queries, keys, query, key, value, score, [&](int i, int d, const Pack<float, 8>& mixed, float) {{
        Vec<f16, 8> values;
#pragma unroll
        for (int n = 0; n < 8; ++n) values[n] = cast<f16>(mixed[n]);
        store_vector<8>(out + (((i64)b * queries + i) * heads + h) * width + d, values);
    }});
    }}
}}
"""


def source(waves, keys, split, fragments, stay, together, least, width, causal):
    mask = "j <= i + keys - queries ? scaled : -infinity<float>()" if causal else "scaled"
    return SOURCE.format(
        waves=waves, keys=keys, split=split, fragments=fragments, stay="true" if stay else "false", together=together, least=least, width=width, mask=mask,
        causal="true" if causal else "false", scale=width**-0.5,
    )


def operands(batch, heads, groups, queries, keys, width):
    made = lambda n, length: torch.randn(batch, length, n, width, device="cuda", dtype=torch.float16)
    return made(heads, queries), made(groups, keys), made(groups, keys)


def attention(q, k, v, causal):
    """What is computed, in the operands' type and layout; a causal mask is aligned at the last query and key."""
    turned = [t.transpose(1, 2) for t in (q, k, v)]
    mask = None
    if causal and q.shape[1] != k.shape[1]:
        mask, causal = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device="cuda").tril(k.shape[1] - q.shape[1]), False
    return F.scaled_dot_product_attention(*turned, attn_mask=mask, is_causal=causal, enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)


class Attention(Kernel):
    def __init__(self, tiling, width, causal, arch):
        super().__init__(source(*tiling, width, causal), arch)
        waves, _, split, fragments, *_ = tiling
        self.queries = waves // split * fragments * 16

    def __call__(self, q, k, v, out):
        batch, queries, heads, _ = q.shape
        grid = -(-queries // self.queries) * batch * heads
        self.launch(grid, (q, k, v, out), (batch, heads, k.shape[2], queries, k.shape[1]))


def time_of(run):
    """Median microseconds of a launch among twenty in a graph: a launch of its own takes the host longer than short kernels run."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            run()
    return median_time(graph.replay) / 20


def check(kernel, tiling, width, causal):
    for batch, heads, groups, queries, keys in [(1, 2, 1, 1, 1), (2, 4, 2, 77, 131), (1, 2, 2, 130, 130), (1, 3, 1, 257, 300), (1, 1, 1, 16, 513)]:
        q, k, v = operands(batch, heads, groups, queries, keys, width)
        out = torch.full_like(q, float("nan"))
        kernel(q, k, v, out)
        error = (out.float() - attention(q.float(), k.float(), v.float(), causal)).abs().max().item()
        if not error < 3e-3:
            sys.exit(f"{tiling}, width {width}, causal {causal}: {queries} queries of {keys} keys are {error} off")


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.zeros(1, device="cuda")
    arch = "sm_%d%d" % torch.cuda.get_device_capability()
    print(torch.cuda.get_device_name(), arch, torch.__version__)
    for name, (batch, heads, groups, queries, keys, width, causal) in CASES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        q, k, v = operands(batch, heads, groups, queries, keys, width)
        flops = 4 * batch * heads * queries * keys * width * (0.5 if causal else 1)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            torch_us = time_of(lambda: attention(q, k, v, causal))
        print(f"{name}, PyTorch: {torch_us:.1f} us, {flops / torch_us / 1e6:.0f} TFLOP/s")
        out = torch.empty_like(q)
        for tiling in TILINGS:
            waves, _, split, *_ = tiling
            if split > 1 and name != "bert b1":
                continue
            try:
                kernel = Attention(tiling, width, causal, arch)
            except SystemExit as error:
                print(f"{name} {tiling}: {str(error)[-300:]}", flush=True)
                continue
            check(kernel, tiling, width, causal)
            us = time_of(lambda: kernel(q, k, v, out))
            print(
                f"{name} {tiling}: {us:.1f} us, {flops / us / 1e6:.0f} TFLOP/s, {us / torch_us:.2f} of PyTorch's time, "
                f"{kernel.registers} registers, {kernel.local} local",
                flush=True,
            )


if __name__ == "__main__":
    main()
