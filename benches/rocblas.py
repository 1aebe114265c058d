#!/usr/bin/env python3
"""Compares graphc's products with the kernels that the unmodified rocBLAS picks, both predicted by the emulator's timing model.

    LIBS=1 KEEP="gfx90a gfx1100" scripts/rocm-sysroot.sh /opt/graphc-rocm-libs
    cargo build --release -p graphc-cli -p graphc-runtime -p graphc-emu -p graphc-emu-hip --bins --lib
    python3 benches/rocblas.py --arch gfx90a,gfx1100 > benches/rocblas.txt

A line has shape, type, microseconds of both, the ratio, and which unit bounds each. `y[m, n] = x[m, k] w[k, n]`, row by row in
memory; rocBLAS gets the same matrices as the columns that it wants. Several launches of one product are added up. The last lines
give the geometric mean and the worst ratio of each type. With `--tuning tuned.db --candidates 16` each product is tuned first;
`graphc tune show tuned.db` prints what was found as the rows of `passes/src/tuning/shipped.txt`.

    python3 benches/rocblas.py --gelu --arch gfx90a,gfx1100,gfx1201 --types f16 > benches/gelu.txt

With `--gelu` graphc's kernel also adds a bias to the product and applies GELU, and rocBLAS's kernel has one of graphc's behind it
that does both, as a pointwise kernel would. Each of the two launches takes what a launch takes; nothing is added between them.
"""

import argparse
import ctypes
import json
import math
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBS = os.environ.get("GRAPHC_ROCM_LIBS", "/opt/graphc-rocm-libs")

# m, n, k and what has it.
SHAPES = (
    [(n, n, n, "square") for n in (512, 1024, 2048, 4096, 8192)]
    + [(128, n, k, "BERT b1") for n, k in ((768, 768), (3072, 768), (768, 3072))]
    + [(4096, n, k, "BERT b32") for n, k in ((768, 768), (3072, 768), (768, 3072))]
    + [(1024, n, k, "Llama prefill") for n, k in ((4096, 4096), (28672, 4096), (4096, 14336))]
    + [(1, n, k, "Llama decode") for n, k in ((4096, 4096), (28672, 4096), (4096, 14336))]
    + [(m, 4096, 4096, "few rows") for m in (8, 16)]
    + [(3136, 64, 256, "ResNet-50 1x1"), (3136, 256, 64, "ResNet-50 1x1"), (784, 512, 128, "ResNet-50 1x1"),
       (196, 1024, 256, "ResNet-50 1x1"), (49, 2048, 512, "ResNet-50 1x1")]
)

# rocBLAS's numbers of the types: of the matrices, of the result, of the sums; bytes of an element, and graphc's result.
TYPES = {
    "f16": (150, 150, 151, 2, 2, "f16"),
    "bf16": (168, 168, 151, 2, 2, "bf16"),
    "f32": (151, 151, 151, 4, 4, "f32"),
    "i8": (160, 162, 162, 1, 4, "i32"),
}


def rocblas(arch, dtype, shapes):
    """Times rocBLAS on each shape: its predicted launches, or None where it refuses the type."""
    folder = tempfile.mkdtemp(prefix="graphc-rocblas-")
    profile = next(p for p in ("release", "debug") if os.path.exists(f"{ROOT}/target/{p}/libamdhip64_emu.so"))
    for name in ("libamdhip64.so.7", "libamdhip64.so"):
        os.symlink(f"{ROOT}/target/{profile}/libamdhip64_emu.so", f"{folder}/{name}")
    times = f"{folder}/times.jsonl"
    command = [f"{LIBS}/rocm-run", "env", f"LD_LIBRARY_PATH={folder}", f"GRAPHC_EMU_ARCH={arch}", f"GRAPHC_EMU_TIME={times}"]
    command += [sys.executable, os.path.abspath(__file__), "--inside", json.dumps([dtype, shapes, times])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"# rocBLAS, {arch} {dtype}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return found + [None] * (len(shapes) - len(found))


def inside(dtype, shapes, times):
    """Runs in the libraries' sysroot: one JSON list of launches for each shape."""
    # The interpreter itself may have been built without a path to the libraries' own folder.
    blas, hip = ctypes.CDLL("librocblas.so.5"), ctypes.CDLL("libamdhip64.so.7")
    handle = ctypes.c_void_p()
    assert blas.rocblas_create_handle(ctypes.byref(handle)) == 0
    ty, out, sums, size, out_size, _ = TYPES[dtype]
    one, zero = (ctypes.c_int(1), ctypes.c_int(0)) if dtype == "i8" else (ctypes.c_float(1), ctypes.c_float(0))
    i, p = ctypes.c_int, ctypes.c_void_p

    def memory(count):
        at = p()
        assert hip.hipMalloc(ctypes.byref(at), ctypes.c_size_t(count)) == 0
        return at

    for m, n, k in shapes:
        x, w, y = memory(m * k * size), memory(k * n * size), memory(m * n * out_size)
        if os.path.exists(times):
            os.remove(times)
        none = i(111)
        status = blas.rocblas_gemm_ex(
            handle, none, none, i(n), i(m), i(k), ctypes.byref(one), w, i(ty), i(n), x, i(ty), i(k),
            ctypes.byref(zero), y, i(out), i(n), y, i(out), i(n), i(sums), i(0), ctypes.c_int32(0), ctypes.c_uint32(0))
        hip.hipDeviceSynchronize()
        lines = open(times).read().splitlines() if status == 0 and os.path.exists(times) else []
        print(json.dumps([json.loads(line) for line in lines]), flush=True)
        for at in (x, w, y):
            hip.hipFree(at)


def product_text(dtype, m, n, k):
    """The graph of a product alone."""
    out = TYPES[dtype][5]
    attribute = "" if out == dtype else f" {{out={out}}}"
    return (f"graph @product stage=import {{\n  x = input \"x\" : {dtype}[{m}, {k}]\n  w = input \"w\" : {dtype}[{k}, {n}]\n"
            f"  y = contract x, w{attribute}\n  return y as \"y\"\n}}\n")


def gelu_text(dtype, m, n, k=None):
    """The graph of a bias and GELU, behind a product of the depth `k` if it is given."""
    inputs = (f"  x = input \"x\" : {dtype}[{m}, {k}]\n  w = input \"w\" : {dtype}[{k}, {n}]\n  y = contract x, w\n"
              if k else f"  y = input \"y\" : {dtype}[{m}, {n}]\n")
    return (f"graph @gelu stage=import {{\n{inputs}  b = input \"b\" : {dtype}[{n}]\n  z = add y, b\n  g = gelu z\n"
            f"  return g as \"y\"\n}}\n")


def graphc(binary, arch, text, tuning=None, candidates=0):
    """The predicted launches of graphc's plan of a graph, tuned first where candidates are asked for; None where it fails."""
    with tempfile.NamedTemporaryFile("w", suffix=".gir") as file:
        file.write(text)
        file.flush()
        if candidates:
            tune = [binary, "tune", "run", "-q", "--emulate", "--no-libraries", "--target", arch, "--database", tuning]
            subprocess.run(tune + ["--candidates", str(candidates), file.name], check=True, stdout=subprocess.DEVNULL)
        command = [binary, "bench", "-q", "--emulate", "--no-libraries", "--format", "json", "--target", arch, file.name]
        command += ["--tuning", tuning] if tuning else []
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"# graphc, {arch}: {done.stderr.strip()}\n# of: {text.splitlines()}", flush=True)
        return None
    return [dict(k["report"], name=k["name"], micros=k["total_micros"]) for k in json.loads(done.stdout)["kernels"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="gfx90a")
    parser.add_argument("--types", default="f16,bf16,f32,i8")
    parser.add_argument("--graphc", default=f"{ROOT}/target/release/graphc")
    parser.add_argument("--only", default="", help="shapes whose text has this, for instance 4096x4096x4096")
    parser.add_argument("--tuning", help="a file of `graphc tune`, whose mappings are taken")
    parser.add_argument("--candidates", type=int, default=0, help="tune each product first: how many candidates are measured into that file")
    parser.add_argument("--gelu", action="store_true", help="with a bias and GELU, which rocBLAS leaves to a kernel behind it")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.candidates and not args.tuning:
        parser.error("--candidates needs --tuning")
    if args.gelu and "i8" in args.types.split(","):
        parser.error("--gelu needs --types without i8, whose products are integers")
    if args.inside:
        return inside(*json.loads(args.inside))
    shapes = [s for s in SHAPES if args.only in "x".join(map(str, s[:3])) + " " + s[3]]
    print("# Made by benches/rocblas.py: predicted by the emulator's timing model, on no GPU. Microseconds; ratio is graphc / rocBLAS.")
    print("# With a bias and GELU: graphc in one kernel, rocBLAS with a pointwise kernel behind it." if args.gelu else
          "# With the rows of passes/src/tuning/shipped.txt. Debian's rocBLAS has no kernels with matrix instructions for gfx1201.")
    print(f"# {'m x n x k':17} {'what':14} {'type':5} {'arch':8} {'graphc':>9} {'rocBLAS':>9} {'ratio':>6}  bound by", flush=True)
    for arch in args.arch.split(","):
        for dtype in args.types.split(","):
            theirs = rocblas(arch, dtype, [s[:3] for s in shapes])
            ratios = []
            for (m, n, k, what), their in zip(shapes, theirs):
                text = gelu_text(dtype, m, n, k) if args.gelu else product_text(dtype, m, n, k)
                ours = graphc(args.graphc, arch, text, args.tuning, args.candidates)
                if args.gelu and their:
                    behind = graphc(args.graphc, arch, gelu_text(dtype, m, n))
                    their = their + behind if behind else None
                if not ours or not their:
                    print(f"{f'{m} x {n} x {k}':19} {what:14} {dtype:5} {arch:8} {'not timed' if ours else '-':>9} {'-':>9}", flush=True)
                    continue
                a, b = (sum(launch["micros"] for launch in side) for side in (ours, their))
                ratios.append(a / b)
                bounds = " / ".join(max(side, key=lambda l: l["micros"])["bound"] for side in (ours, their))
                launches = "" if len(ours) == len(their) == 1 else f" ({len(ours)} and {len(their)} launches)"
                print(f"{f'{m} x {n} x {k}':19} {what:14} {dtype:5} {arch:8} {a:9.1f} {b:9.1f} {a / b:6.2f}  {bounds}{launches}", flush=True)
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                print(f"# {arch} {dtype}: geometric mean {mean:.2f}, worst {max(ratios):.2f}, of {len(ratios)} shapes", flush=True)


if __name__ == "__main__":
    main()
