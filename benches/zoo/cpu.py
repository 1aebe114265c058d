#!/usr/bin/env python3
"""Times a zoo of architectures on the CPU through graphc, beside onnxruntime on the same file and cores.

Run it in the repository's root on a machine with PyTorch, torchvision, timm, ONNX and onnxruntime:

    python3 benches/zoo/cpu.py [--threads 2] [--at-once 1] [--seconds N] [--results FILE] GRAPHC [NAME...]

A NAME is that of `gpu.py`: `efficientnet_b0:1`, and so on; without one, all of `CPU_ZOO`. Each is exported in f32 with random weights.
What graphc computes is held against onnxruntime's outputs. Both have as many threads, on the same cores: each case is a process of its own
that is bound to `--threads` cores, and `--at-once` of these run side by side. A time is the shortest of whole runs, in milliseconds;
the two take turns. Lines of JSON are printed, and added to FILE: a case that FILE has is left out.
With --seconds no case is begun later than that.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "h200"))
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "scripts" / "py"))

CPU_ZOO = """
efficientnet_b0:1 convnext_tiny:1 mobilenetv3_large_100:1 mobilenetv3_large_100:8 convmixer_768_32:1 mobilenetv4_conv_medium:1 mobilevit_s:1
coatnet_0_rw_224:1 poolformer_s12:1 maxvit_tiny_tf_224:1 ghostnet_100:1 fastvit_t8:1 resnext50_32x4d:1 regnety_032:1
eva02_tiny_patch14_224:1 levit_192:1 hrnet_w18_small:1 vit_small_patch16_224:1 tv/swin_t:1 tv/densenet121:1 tv/resnet50:1
tv/shufflenet_v2_x1_0:1 tv/mnasnet1_0:1 edgenext_small:1 repvgg_a2:1 nfnet_f0:1 mixer_b16_224:1 cait_xxs24_224:1 crossvit_9_240:1
efficientformer_l1:1 pvt_v2_b1:1 dla34:1 vovnet39a:1 mobileone_s1:1 davit_tiny:1 xcit_tiny_12_p16_224:1 skresnet18:1 botnet26t_256:1
own/vocoder:1 own/edsr:1 own/unet2d:1 own/lstm:8 own/gru:1 own/dlrm:128 own/t5_encoder:1 own/conformer:1 own/wavenet:1 own/graph:1
own/field:16 own/lraspp:1 own/r3d:1 tv/vgg11:1 tv/squeezenet1_1:1 tv/alexnet:1
""".split()


def one(case, graphc, threads):
    """Exports, compares and times one case, in this process."""
    import numpy
    import onnxruntime
    import torch

    import gpu
    from public_models import shortest

    torch.set_num_threads(threads)
    name, _, batch = case.partition(":")
    torch.manual_seed(0)
    model, inputs = gpu.model_of(name, int(batch or 1))
    model = model.eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    line = {"case": case}
    with tempfile.TemporaryDirectory() as folder:
        path, given, wanted = (str(pathlib.Path(folder, name)) for name in ("model.onnx", "in.npz", "out.npz"))
        with torch.no_grad():
            torch.onnx.export(model, tuple(inputs.values()), path, input_names=list(inputs), opset_version=17, dynamo=False)
        values = {name: tensor.numpy() for name, tensor in inputs.items()}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, values)
        numpy.savez(given, **values)
        numpy.savez(wanted, **dict(zip((o.name for o in session.get_outputs()), outputs)))
        words = [graphc, "run", path, "--inputs", given, "--expect", wanted, "--threads", str(threads)]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=300)
        if ran.returncode != 0:
            line["wrong"] = (ran.stderr.strip() or ran.stdout.strip())[-400:]
        words = [graphc, "bench", path, "--inputs", given, "--threads", str(threads), "--format", "json"]
        own, other = float("inf"), float("inf")
        for _ in range(2):
            other = min(other, shortest(lambda: session.run(None, values), 1.0))
            ran = subprocess.run(words, capture_output=True, text=True, timeout=300)
            if ran.returncode != 0:
                line["failed"] = ran.stderr[-800:]
                return line
            own = min(own, json.loads(ran.stdout)["min_ms"])
        line.update(graphc=round(own, 3), onnxruntime=round(other, 3), ratio=round(own / other, 3))
        if line["ratio"] > 0.9:
            ran = subprocess.run([*words, "--profile"], capture_output=True, text=True, timeout=300)
            if ran.returncode == 0:
                steps = sorted(json.loads(ran.stdout).get("steps", []), key=lambda s: -s["us"])[:8]
                line["longest"] = [[s["step"], round(s["us"], 1)] for s in steps]
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphc")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        try:
            line = one(options.alone, options.graphc, options.threads)
        except Exception:
            line = {"case": options.alone, "failed": traceback.format_exc()[-1200:]}
        print(json.dumps(line))
        return
    there, began, cores = set(), time.perf_counter(), sorted(os.sched_getaffinity(0))
    if options.results and options.results.exists():
        there = {json.loads(line)["case"] for line in options.results.read_text().splitlines()}
    free = [set(cores[at * options.threads : (at + 1) * options.threads]) for at in range(options.at_once)]

    def run(case):
        if time.perf_counter() - began > options.seconds:
            return
        own = free.pop()
        words = [sys.executable, __file__, options.graphc, "--threads", str(options.threads), "--alone", case]
        try:
            ran = subprocess.run(words, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, own))
        finally:
            free.append(own)
        lines = [line for line in ran.stdout.splitlines() if line.startswith('{"case"')]
        line = lines[-1] if lines else json.dumps({"case": case, "failed": ran.stderr[-800:]})
        print(line, flush=True)
        if options.results:
            with options.results.open("a") as file:
                file.write(line + "\n")

    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(run, [case for case in options.names or CPU_ZOO if case not in there]))


if __name__ == "__main__":
    main()
