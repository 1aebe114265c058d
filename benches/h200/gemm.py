#!/usr/bin/env python3
"""Times the device library's matrix products on an NVIDIA GPU, beside cuBLAS in the same run.

Run it in the repository's root on a machine with a GPU, PyTorch and NVRTC:

    python3 benches/h200/gemm.py [SIZE [TYPE ...]]   default 4096: SIZE^3, f16, bf16 and i8, several tilings and layouts

First every tiling is checked against PyTorch on sizes that cut its tiles, with NaN beyond the operands' ends. Each line is
the median of 30 launches: microseconds, TFLOP/s, ratio to cuBLAS, registers, bytes of local memory.
"""

import ctypes
import glob
import pathlib
import statistics
import sys

import torch

TILINGS = [
    # block m, n, k, waves m, n, knobs
    (128, 256, 64, 2, 4, "3"),
    (128, 256, 64, 2, 4, "3, false"),
    (128, 256, 32, 2, 4, "4"),
    (128, 256, 32, 2, 4, "5"),
    (256, 128, 64, 4, 2, "3"),
    (256, 128, 32, 4, 2, "4"),
    (128, 128, 64, 2, 2, "3"),
    (128, 128, 64, 2, 2, "3, false"),
    (128, 128, 32, 2, 2, "4"),
    (128, 128, 32, 2, 2, "4, false"),
    (128, 128, 64, 2, 4, "3"),
    (128, 128, 64, 4, 2, "4"),
    (64, 128, 64, 2, 2, "4"),
    (64, 64, 64, 2, 2, "4"),
    (32, 128, 64, 1, 4, "4"),
    (16, 128, 64, 1, 4, "6"),
]
# The same by the instructions of warp groups, which sm_90 alone has.
GROUP_TILINGS = [
    (128, 256, 64, 2, 1, "4"),
    (256, 128, 64, 2, 1, "4"),
    (128, 192, 64, 2, 1, "5"),
    (192, 128, 64, 3, 1, "4"),
    (128, 128, 64, 2, 1, "4"),
    (128, 128, 64, 2, 1, "3, false"),
    (128, 128, 64, 1, 1, "3, false"),
    (64, 256, 64, 1, 1, "4"),
    (64, 192, 64, 1, 1, "3, false"),
    (128, 64, 64, 2, 1, "4"),
    (64, 128, 64, 1, 1, "4"),
    (64, 64, 64, 1, 1, "4"),
]
LAYOUTS = {"kk": (True, True), "kr": (True, False), "rr": (False, False)}
# The type in PyTorch, that of sums and results, and elements that are fetched at once.
ELEMENTS = {
    "f16": (torch.float16, "f32", torch.float16, "f16", 8),
    "bf16": (torch.bfloat16, "f32", torch.bfloat16, "bf16", 8),
    "i8": (torch.int8, "i32", torch.int32, "i32", 16),
}

SOURCE = """
#include "graphc_gemm.hip.h"
using namespace graphc;
using Tiles = MatrixTile<{instruction}, {m}, {n}, {k}, {wm}, {wn}, {knobs}>;
extern "C" __constant__ int facts[3] = {{Tiles::THREADS, Tiles::LDS_BYTES, Tiles::DYNAMIC_LDS}};
extern "C" __global__ __launch_bounds__(Tiles::THREADS)
void product(const {element}* in0, const {element}* in1, {out}* out, int m, int n, int depth, int lhs_pitch, int rhs_pitch) {{
    const auto lhs = {lhs};
    const auto rhs = {rhs};
    gemm_tile<Tiles, 8>(m, n, depth, lhs, rhs, [&](int row, int col, const Pack<{acc}, 8>& acc) {{
        Vec<{out}, 8> values;
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = cast<{out}>(acc[i]);
        store_vector<8>(out + ((i64)row * n + col), values);
    }});
}}
"""


def operand(buffer, pitch, along_k, width):
    if along_k:
        return f"along_k<{width}>([&](int row, int k) {{ return {buffer} + ((i64)row * {pitch} + k); }})"
    return f"along_rows<{width}>([&](int row, int k) {{ return {buffer} + ((i64)k * {pitch} + row); }})"


def library(*patterns):
    for pattern in patterns:
        for path in sorted(glob.glob(pattern), reverse=True):
            return ctypes.CDLL(path)
    sys.exit(f"none of {patterns} is here")


NVRTC = library(
    "/opt/graphc-nvrtc/lib/libnvrtc.so*",
    str(pathlib.Path(torch.__file__).parents[1] / "nvidia/*/lib/libnvrtc.so.1*"),
    "/usr/local/cuda/lib64/libnvrtc.so",
    "/usr/local/lib/python3*/*-packages/nvidia/*/lib/libnvrtc.so.1*",
)
CUDA = ctypes.CDLL("libcuda.so.1")


def compile_kernel(source, arch):
    program = ctypes.c_void_p()
    NVRTC.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"product.cu", 0, None, None)
    options = [f"--gpu-architecture={arch}", "-std=c++17", "-Icodegen-hip/src/device", "--diag-suppress=39,177,179,186"]
    words = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    status = NVRTC.nvrtcCompileProgram(program, len(options), words)
    size = ctypes.c_size_t()
    if status != 0:
        NVRTC.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        NVRTC.nvrtcGetProgramLog(program, log)
        sys.exit(log.value.decode())
    NVRTC.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    NVRTC.nvrtcGetCUBIN(program, code)
    return code


def ok(status, what):
    if status != 0:
        sys.exit(f"{what}: CUDA error {status}")


class Kernel:
    def __init__(self, source, arch):
        self.code = compile_kernel(source, arch)
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        ok(CUDA.cuModuleLoadData(ctypes.byref(module), self.code), "cuModuleLoadData")
        ok(CUDA.cuModuleGetFunction(ctypes.byref(self.function), module, b"product"), "cuModuleGetFunction")
        address, size, facts = ctypes.c_uint64(), ctypes.c_size_t(), (ctypes.c_int * 3)()
        ok(CUDA.cuModuleGetGlobal_v2(ctypes.byref(address), ctypes.byref(size), module, b"facts"), "cuModuleGetGlobal")
        ok(CUDA.cuMemcpyDtoH_v2(facts, address, size), "cuMemcpyDtoH")
        self.threads, lds, dynamic = facts
        self.lds = lds if dynamic else 0
        if self.lds:
            ok(CUDA.cuFuncSetAttribute(self.function, 8, self.lds), "cuFuncSetAttribute")
        self.registers, self.local = self.attribute(4), self.attribute(3)

    def attribute(self, number):
        value = ctypes.c_int()
        CUDA.cuFuncGetAttribute(ctypes.byref(value), number, self.function)
        return value.value

    def launch(self, grid, tensors, sizes):
        values = [ctypes.c_uint64(t.data_ptr()) for t in tensors] + [ctypes.c_int(s) for s in sizes]
        words = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        ok(CUDA.cuLaunchKernel(self.function, grid, 1, 1, self.threads, 1, 1, self.lds, stream, words, None), "cuLaunchKernel")


def matrix(rows, depth, along_k, dtype):
    """A matrix and the memory it is in, which has NaN (integers: the largest) beyond every line's end."""
    lines, along = (rows, depth) if along_k else (depth, rows)
    pitch = (along + 15) // 16 * 16 + 16
    beyond = float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max
    memory = torch.full((lines, pitch), beyond, dtype=dtype, device="cuda")
    least, most = (-4, 4) if dtype.is_floating_point else (-128, 127)
    memory[:, :along] = torch.randint(least, most + 1, (lines, along), device="cuda").to(dtype)
    meaning = memory[:, :along] if along_k else memory[:, :along].t()
    return memory, meaning, pitch


def median_time(run):
    for _ in range(5):
        run()
    times = []
    for _ in range(30):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def main():
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 4096
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    arch = "sm_%d%d" % torch.cuda.get_device_capability()
    print(torch.cuda.get_device_name(), arch, torch.__version__)
    flops = 2 * size**3
    only = sys.argv[2:] or list(ELEMENTS)
    for element, (dtype, acc, result, out_name, width) in ELEMENTS.items():
        if element not in only:
            continue
        for name, (lhs_along, rhs_along) in LAYOUTS.items():
            if element == "i8" and name != "kk":
                continue
            a = (torch.randn(size, size, device="cuda") * 20).to(dtype)
            b = (torch.randn(size, size, device="cuda") * 20).to(dtype)
            left, right = a if lhs_along else a.t(), b.t() if rhs_along else b
            blas = median_time(lambda: torch._int_mm(left, right) if element == "i8" else left @ right)
            print(f"{element} {name} cuBLAS: {blas:.1f} us, {flops / blas / 1e6:.0f} TFLOP/s")
            # Tiles are as many bytes deep, whatever their elements.
            step = 32 // dtype.itemsize
            deeper = lambda tiling: (*tiling[:2], tiling[2] * 2 // dtype.itemsize, *tiling[3:])
            tilings = [(deeper(t), f"MmaSync<16, 8, {step}, {element}, {acc}>", arch) for t in TILINGS]
            if arch == "sm_90":
                groups = ((deeper(t), f"Wgmma<64, {t[1]}, {step}, {element}, {acc}>") for t in GROUP_TILINGS)
                tilings += [(tiling, instruction, "sm_90a") for tiling, instruction in groups]
            for (m, n, k, wm, wn, knobs), instruction, of in tilings:
                if element == "bf16" and (name != "kr" or k != 64):
                    continue
                source = SOURCE.format(
                    instruction=instruction, element=element, acc=acc, out=out_name,
                    m=m, n=n, k=k, wm=wm, wn=wn, knobs=knobs,
                    lhs=operand("in0", "lhs_pitch", lhs_along, width), rhs=operand("in1", "rhs_pitch", rhs_along, width),
                )
                kernel = Kernel(source, of)
                tiling = f"{instruction.split('<')[0]} {m}x{n}x{k} {wm}x{wn} {knobs}"
                for rows, cols, depth in [(m + 8, n + 8, 2 * k + 8), (8, 8, 8), (m - 8, 2 * n, 5 * k + 24), (24, 40, 3 * k + 3)]:
                    if depth % 8 and not (lhs_along and rhs_along):
                        continue
                    (x, xm, xp), (y, ym, yp) = matrix(rows, depth, lhs_along, dtype), matrix(cols, depth, rhs_along, dtype)
                    out = torch.full((rows, cols), 99, dtype=result, device="cuda")
                    kernel.launch(-(-rows // m) * -(-cols // n), (x, y, out), (rows, cols, depth, xp, yp))
                    want = (xm.float() @ ym.float().t()).to(result)
                    if not torch.equal(out, want):
                        bad = (out != want).nonzero()
                        sys.exit(f"{element} {name} {tiling}: {rows}x{cols}x{depth} is wrong at {bad[:4].tolist()} ({len(bad)})")
                out = torch.empty(size, size, dtype=result, device="cuda")
                grid = -(-size // m) * -(-size // n)
                time = median_time(lambda: kernel.launch(grid, (a, b, out), (size, size, size, size, size)))
                print(
                    f"{element} {name} {tiling}: {time:.1f} us, {flops / time / 1e6:.0f} TFLOP/s, {blas / time:.2f} of cuBLAS, "
                    f"{kernel.registers} registers, {kernel.local} local",
                    flush=True,
                )


if __name__ == "__main__":
    main()
