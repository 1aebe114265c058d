#!/usr/bin/env python3
"""Makes benches/tilings.txt: what hiprtc makes of the device library's tilings at 4096^3, from its own figures. No GPU is needed.

    cargo build -p graphc-emu --bins && python3 benches/tilings.py [arch] > benches/tilings.txt

It compiles each tiling with the left operand along k and the right one along the columns, reads registers and spills from the
code object, and the main loop from its disassembly. `share` is the part of a wave's time that its matrix instructions take when
memory never stalls it: on CDNA other instructions run behind a matrix instruction (4 cycles each) and count where they do not
fit, on RDNA each counts as a cycle. Tiles of `direct` go straight to LDS. Cycles of the matrix instructions are AMD's
(amd_matrix_instruction_calculator).
"""

import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORKER = os.path.join(ROOT, "target/debug/emu-hiprtc-worker")
RUN = [p for p in [os.environ.get("GRAPHC_ROCM", ""), "/opt/graphc-rocm"] if os.path.exists(p + "/rocm-run")][:1]

CDNA = {"gfx908": {32: 64, 16: 32}, "gfx90a": {32: 64, 16: 32}, "gfx942": {32: 32, 16: 16}, "gfx950": {32: 32, 16: 16}}
WMMA = {"gfx1100": 32, "gfx1151": 32, "gfx1201": 16}
SIZES = {"f16": 2, "bf16": 2, "f32": 4, "i8": 1}

TILINGS = [
    ("gfx908 gfx90a", "Mfma<32, 32, 8, f16, f32>", ["256, 128, 32, 2, 2, 2", "128, 128, 64, 2, 2, 1", "128, 128, 32, 2, 2, 2", "64, 128, 64, 2, 2, 2", "64, 64, 64, 2, 2, 2"]),
    ("gfx90a", "Mfma<32, 32, 8, bf16, f32>", ["256, 128, 32, 2, 2, 2", "128, 128, 32, 2, 2, 2"]),
    ("gfx908 gfx90a", "Mfma<32, 32, 2, f32, f32>", ["128, 128, 16, 2, 2, 2", "256, 128, 16, 2, 2, 2"]),
    ("gfx908 gfx90a", "Mfma<32, 32, 8, i8, i32>", ["256, 128, 64, 2, 2, 2", "128, 128, 64, 2, 2, 2"]),
    ("gfx942", "Mfma<16, 16, 16, f16, f32>", ["256, 128, 64, 2, 2, 1", "128, 128, 64, 2, 2, 2", "128, 128, 64, 2, 2, 1", "64, 128, 64, 2, 2, 2", "64, 64, 64, 2, 2, 2"]),
    ("gfx942", "Mfma<32, 32, 8, f16, f32>", ["256, 128, 32, 2, 2, 2", "256, 128, 32, 4, 2, 2"]),
    ("gfx942", "Mfma<16, 16, 16, bf16, f32>", ["256, 128, 64, 2, 2, 1", "128, 128, 64, 2, 2, 2"]),
    ("gfx942", "Mfma<32, 32, 2, f32, f32>", ["128, 128, 16, 2, 2, 2"]),
    ("gfx942", "Mfma<16, 16, 32, i8, i32>", ["256, 128, 128, 2, 2, 1", "128, 128, 64, 2, 2, 2"]),
    ("gfx950", "Mfma<16, 16, 32, f16, f32>", ["256, 128, 32, 2, 2, 2", "128, 128, 64, 2, 2, 2", "128, 128, 64, 2, 2, 1"]),
    ("gfx950", "Mfma<32, 32, 16, f16, f32>", ["256, 128, 32, 2, 2, 2", "128, 128, 64, 2, 2, 2"]),
    ("gfx950", "Mfma<16, 16, 32, f16, f32>", ["256, 256, 64, 2, 4, 2, false, direct"]),
    ("gfx950", "Mfma<32, 32, 16, f16, f32>", ["256, 256, 64, 2, 4, 2, true, direct", "256, 256, 32, 2, 4, 3, true, direct", "128, 128, 64, 4, 2, 3, true, direct"]),
    ("gfx950", "Mfma<16, 16, 64, i8, i32>", ["256, 256, 128, 2, 4, 2, false, direct"]),
    ("gfx1100 gfx1201", "Wmma<16, 16, 16, f16, f32>", ["128, 256, 32, 2, 4, 1, false", "128, 128, 32, 2, 4, 2, false", "128, 64, 32, 2, 2, 2, false", "64, 64, 32, 2, 2, 2, false"]),
    ("gfx1100 gfx1201", "Wmma<16, 16, 16, bf16, f32>", ["128, 128, 32, 2, 4, 2, false"]),
    ("gfx1100 gfx1201", "Wmma<16, 16, 16, i8, i32>", ["128, 128, 64, 2, 4, 2, false", "128, 128, 64, 2, 4, 1, false"]),
    ("gfx90a gfx942", "Mfma<32, 32, 8, f16, f32>", ["192, 128, 32, 2, 2, 2", "128, 192, 32, 2, 2, 2"]),
    ("gfx942 gfx950", "Mfma<16, 16, 16, f16, f32>", ["192, 128, 32, 2, 2, 2", "128, 192, 32, 2, 2, 2"]),
    ("gfx90a gfx942", "Mfma<16, 16, 16, f16, f32>", ["160, 128, 32, 2, 2, 1", "160, 128, 32, 1, 4, 1", "96, 128, 64, 2, 2, 1", "96, 128, 64, 1, 4, 1", "80, 128, 64, 1, 4, 1"]),
    ("gfx906", "Dot<2, f16, f32>", ["128, 128, 32, 2, 2, 2, false", "64, 64, 32, 2, 2, 2, false"]),
    ("gfx1030", "Dot<2, f16, f32>", ["128, 128, 32, 2, 4, 2, false", "64, 64, 32, 2, 2, 2, false"]),
    ("gfx906", "Fma<f32>", ["128, 128, 16, 2, 2, 2, false", "64, 128, 16, 2, 2, 2, false"]),
    ("gfx1030 gfx1100 gfx1201", "Fma<f32>", ["128, 128, 16, 2, 4, 2, false", "64, 128, 16, 2, 4, 2, false"]),
]

SOURCE = """#include "graphc_{call}.hip.h"
using namespace graphc;
using Tiles = MatrixTile<{instruction}, {tile}>;
extern "C" __global__ __launch_bounds__(Tiles::THREADS) void product(const {t}* in0, const {t}* in1, {out}* out) {{
    const auto lhs = along_k<{chunk}>([&](int row, int k) {{ return in0 + ((i64)row * 4096 + k); }});
    const auto rhs = along_rows<{chunk}>([&](int row, int k) {{ return in1 + ((i64)k * 4096 + row); }});
    {function}<Tiles, {w}>(4096, 4096, 4096, lhs, rhs, [&](int row, int col, const Pack<{sum}, {w}>& acc) {{
        Vec<{out}, {w}> values;
#pragma unroll
        for (int i = 0; i < {w}; ++i) values[i] = cast<{out}>(acc[i]);
        store_vector<{w}>(out + ((i64)row * 4096 + col), values);
    }});
}}
"""


def number(code, key):
    """A count from the code object's metadata, which is msgpack: the key's text, then the value."""
    name = key.encode()
    at = code.find((bytes([0xA0 | len(name)]) if len(name) < 32 else bytes([0xD9, len(name)])) + name)
    if at < 0:
        return 0
    at += len(name) + (1 if len(name) < 32 else 2)
    wide = {0xCC: 1, 0xCD: 2, 0xCE: 4}.get(code[at], 0)
    return int.from_bytes(code[at + 1 : at + 1 + wide], "big") if wide else code[at]


def kind(text):
    op = text.split()[0]
    patterns = [("matrix", "mfma|wmma"), ("dot", "^v_(dot|fma|dual_fma|pk_fma)"), ("read", "^ds_(read|load)"), ("write", "^ds_(write|store)"),
                ("load", "^(global|flat|buffer)_load"), ("scratch", "^scratch"), ("free", "^s_(nop|delay)")]
    return next((name for name, pattern in patterns if re.search(pattern, op)), "other")


def main_loop(listing):
    """The first innermost loop that multiplies, as the texts of its instructions."""
    lines = [line.split(" ", 2) for line in listing.splitlines() if line.count(" ") >= 2]
    code = [(int(a, 16), text) for a, _, text in lines]
    index = {address: i for i, (address, _) in enumerate(code)}
    loops = []
    for i, (address, text) in enumerate(code):
        found = re.match(r"s_c?branch\S*\s+(\d+)", text)
        if found:
            offset = int(found.group(1))
            to = index.get(address + 4 + 4 * (offset - 65536 if offset > 32767 else offset))
            if to is not None and to <= i:
                loops.append((to, i))
    inner = [l for l in loops if not any(o != l and o[0] >= l[0] and o[1] <= l[1] for o in loops)]
    bodies = [[text for _, text in code[a : b + 1]] for a, b in sorted(inner)]
    return next((b for b in bodies if any(kind(t) in ("matrix", "dot") for t in b)), [])


def share(body, arch, instruction):
    kinds = [kind(text) for text in body]
    shape = re.match(r"(\w+)<(\d*)", instruction)
    if shape.group(1) == "Mfma":
        each = CDNA[arch][int(shape.group(2))]
        at = [i for i, k in enumerate(kinds) if k == "matrix"]
        gaps = [[kinds[i % len(kinds)] for i in range(a + 1, b)] for a, b in zip(at, at[1:] + [at[0] + len(kinds)])]
        time = sum(max(each, 4 + 4 * sum(k != "free" for k in gap)) for gap in gaps)
        return each * len(at) / time
    own, each = ("matrix", WMMA[arch]) if shape.group(1) == "Wmma" else ("dot", 1)
    busy = each * kinds.count(own)
    return busy / (busy + sum(k not in (own, "free") for k in kinds))


def main():
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    print("# Made by benches/tilings.py with hiprtc; compiled, not run. MatrixTile<instruction, m, n, k, waves m, n, stages, ahead>, or gemm_direct")
    print(f"# {'arch':8} {'instruction':28} {'tile':37} vgpr agpr spills lds_KiB share loop matrix read write load narrow")
    with tempfile.TemporaryDirectory() as folder:
        for archs, instruction, tiles in TILINGS:
            for arch in archs.split():
                for tile in tiles if only in arch else []:
                    types = re.search(r"<(.*)>", instruction).group(1).split(", ")
                    t, total = (types[-2], types[-1]) if len(types) > 1 else (types[0], types[0])
                    out = total if t == "i8" else t
                    chunk, w = 16 // SIZES[t], 4 if out in ("f32", "i32") or instruction[0] in "DF" else 8
                    base = os.path.join(folder, "product")
                    with open(base + ".hip", "w") as file:
                        direct = tile.endswith(", direct")
                        call, function = ("gemm_direct", "gemm_direct") if direct else ("gemm", "gemm_tile")
                        sizes = tile.removesuffix(", direct")
                        file.write(SOURCE.format(call=call, function=function, instruction=instruction, tile=sizes, t=t, sum=total, out=out, chunk=chunk, w=w))
                    words = [WORKER, base + ".hip", arch, base, "-O3", "-std=c++17", f"-I{ROOT}/codegen-hip/src/device"]
                    subprocess.run([p + "/rocm-run" for p in RUN] + words, check=True)
                    code, listing = open(base + ".co", "rb").read(), open(base + ".lst").read()
                    body = main_loop(listing)
                    count = lambda k: sum(kind(text) == k for text in body)
                    moves = [text for text in body if kind(text) in ("read", "write", "load")]
                    narrow = sum(not re.search("b128|dwordx4", text.split()[0]) for text in moves)
                    print(f"{arch:10} {instruction:28} {tile:37} {number(code, '.vgpr_count'):4} {number(code, '.agpr_count'):4} "
                          f"{number(code, '.vgpr_spill_count'):6} {number(code, '.group_segment_fixed_size') // 1024:7} "
                          f"{share(body, arch, instruction):5.2f} {len(body):4} {count('matrix') + count('dot'):6} {count('read'):4} {count('write'):5} "
                          f"{count('load'):4} {narrow:6}", flush=True)


if __name__ == "__main__":
    main()
