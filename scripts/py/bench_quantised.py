"""Times files of onnxruntime's quantiser on the CPU, graphc and onnxruntime in turns, and compares their outputs.

    python scripts/py/bench_quantised.py GRAPHC OUT_DIR [--threads 2] [--only squeezenet]...

Five models with random seeded weights (torchvision's SqueezeNet 1.1, ShuffleNet v2, MobileNet v2 and ResNet-50 with an
image of 224 x 224; a BERT of 4 layers, hidden 512, with 128 tokens), each as float, QDQ with signed or unsigned
activations (`pc`: weights by channel), QOperator and dynamic; BERT's weights also in blocks of four bits. Files are
made where OUT_DIR lacks them. Times are the best of three turns. Errors are of the largest output, beside onnxruntime
without its optimisations; `scatter` is how far its optimised outputs are from those. Needs torch, torchvision,
transformers, onnx and onnxruntime, and a quiet machine.
"""

import argparse
import json
import logging
import pathlib
import subprocess
import sys
import warnings

import numpy as np
import onnx
import onnxruntime as ort
import torch
import torchvision
import transformers
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process

from bench_models import Encoder, settled

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
FORMS = {
    "qdq-s8s8": (QuantFormat.QDQ, QuantType.QInt8, False),
    "qdq-u8s8": (QuantFormat.QDQ, QuantType.QUInt8, False),
    "qdq-u8s8-pc": (QuantFormat.QDQ, QuantType.QUInt8, True),
    "qop-u8s8": (QuantFormat.QOperator, QuantType.QUInt8, False),
    "qop-s8s8": (QuantFormat.QOperator, QuantType.QInt8, False),
}


def bert():
    config = dict(num_hidden_layers=4, hidden_size=512, num_attention_heads=8, intermediate_size=2048)
    return Encoder(settled(transformers.BertModel(transformers.BertConfig(attn_implementation="eager", **config))))


def models():
    vision = torchvision.models
    image = {"x": torch.randn(1, 3, 224, 224)}
    tokens = {"input_ids": torch.randint(1, 500, (1, 128)), "attention_mask": torch.ones((1, 128), dtype=torch.long)}
    return {
        "squeezenet": (lambda: settled(vision.squeezenet1_1(weights=None)), image),
        "shufflenet": (lambda: settled(vision.shufflenet_v2_x1_0(weights=None)), image),
        "mobilenet": (lambda: settled(vision.mobilenet_v2(weights=None)), image),
        "resnet50": (lambda: settled(vision.resnet50(weights=None)), image),
        "bert": (bert, tokens),
    }


class Reader(CalibrationDataReader):
    """Four random inputs like a given one."""

    def __init__(self, given):
        generator = torch.Generator().manual_seed(5)

        def like(name, x):
            if x.dtype == torch.float32:
                return torch.randn(x.shape, generator=generator).numpy()
            if "mask" in name:
                return np.ones(x.shape, np.int64)
            return torch.randint(1, 500, x.shape, generator=generator).numpy()

        self.rest = iter([{name: like(name, x) for name, x in given.items()} for _ in range(4)])

    def get_next(self):
        return next(self.rest, None)


def write(out, name, make, given):
    """Exports a model and quantises it in every form."""
    torch.manual_seed(1)
    plain, prepared = out / f"{name}.onnx", out / f"{name}.prepared"
    options = dict(input_names=list(given), output_names=["y"], opset_version=17, dynamo=False)
    with torch.no_grad():
        torch.onnx.export(make().eval(), tuple(given.values()), str(plain), **options)
    quant_pre_process(str(plain), str(prepared))
    np.savez(out / f"{name}.npz", **{n: x.numpy() for n, x in given.items()})
    for form, (layout, activations, per_channel) in FORMS.items():
        types = dict(activation_type=activations, weight_type=QuantType.QInt8, per_channel=per_channel)
        quantize_static(str(prepared), str(out / f"{name}.{form}.onnx"), Reader(given), quant_format=layout, **types)
    quantize_dynamic(str(prepared), str(out / f"{name}.dynamic.onnx"), weight_type=QuantType.QUInt8)
    if name == "bert":
        for form, symmetric in (("int4", True), ("int4-zeros", False)):
            blocks = MatMulNBitsQuantizer(onnx.load(prepared), block_size=32, is_symmetric=symmetric)
            blocks.process()
            blocks.model.save_model_to_file(str(out / f"{name}.{form}.onnx"))


def outputs(path, inputs, threads, level):
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})[0].astype(np.float64)


def best(words):
    run = subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True)
    return json.loads(run.stdout)["min_ms"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("graphc", type=pathlib.Path)
    arguments.add_argument("out", type=pathlib.Path)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--only", action="append", default=[])
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    script = pathlib.Path(__file__).parent / "bench_ort.py"
    levels = ort.GraphOptimizationLevel
    print("| file | graphc, ms | onnxruntime, ms | ratio | error | scatter |\n|---|---|---|---|---|---|", flush=True)
    for name, (make, given) in models().items():
        if options.only and name not in options.only:
            continue
        npz = options.out / f"{name}.npz"
        if not npz.exists():
            write(options.out, name, make, given)
        inputs = dict(np.load(npz))
        runs = 20 if name in ("resnet50", "bert") else 60
        for path in sorted(options.out.glob(f"{name}.*onnx")):
            result = options.out / "result.npz"
            command = [options.graphc, "-q", "run", path, "--inputs", npz, "-o", result]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            mine = list(np.load(result).values())[0].astype(np.float64)
            plain = outputs(path, inputs, options.threads, levels.ORT_DISABLE_ALL)
            fast = outputs(path, inputs, options.threads, levels.ORT_ENABLE_ALL)
            most = np.abs(plain).max()
            common = ["--inputs", npz, "--threads", options.threads, "--runs", runs]
            theirs, ours = [], []
            for _ in range(3):
                theirs.append(best([sys.executable, script, path, "--warmup", 5, *common]))
                ours.append(best([options.graphc, "-q", "bench", path, "--format", "json", *common]))
            error, scatter = np.abs(mine - plain).max() / most, np.abs(fast - plain).max() / most
            print(
                f"| {path.stem} | {min(ours):.2f} | {min(theirs):.2f} | {min(ours) / min(theirs):.2f} "
                f"| {error:.1e} | {scatter:.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
