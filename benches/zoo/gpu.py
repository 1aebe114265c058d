#!/usr/bin/env python3
"""Times a zoo of architectures on an NVIDIA GPU through graphc, beside torch.compile in the same run.

Run it in the repository's root on a machine with a GPU, PyTorch, torchvision, timm, ONNX and NVRTC:

    python3 benches/zoo/gpu.py [--seconds N] [--results FILE] GRAPHC [NAME...]          GRAPHC is the command line's binary

A NAME is `efficientnet_b0:32`: a model of timm, of torchvision as `tv/NAME`, or of `others.py` as `own/NAME`, and its batch; without one, all
of `ZOO`. Weights are random.
Each is exported in f16; what graphc computes is compared with PyTorch in f32 on the same weights. Times are those of whole runs with values
on the device, as `benches/h200/models.py` takes them. Lines of JSON are printed, and added to FILE: a case that FILE has is left out, so that
a run that was stopped goes on. With --seconds no case is begun later than that.
"""

import json
import pathlib
import sys
import time
import traceback

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "h200"))
import models
import others

# By kind: depthwise, grouped, attention with convolutions, pools and norms over channels, plain.
ZOO = """
efficientnet_b0:32 efficientnet_b0:1 convnext_tiny:8 mobilenetv3_large_100:8 convmixer_768_32:8 mobilenetv4_conv_medium:8 mobilevit_s:8
coatnet_0_rw_224:8 poolformer_s12:8 maxvit_tiny_tf_224:8 ghostnet_100:8 fastvit_t8:8 resnext50_32x4d:8 regnety_032:8 eva02_tiny_patch14_224:8
levit_192:8 hrnet_w18_small:8 vit_large_patch16_224:8 tv/swin_t:8 tv/densenet121:8 tv/resnet50:8 tv/inception_v3:8 tv/shufflenet_v2_x1_0:8
tv/mnasnet1_0:8 xception41:8 res2net50_26w_4s:8 edgenext_small:8 repvgg_a2:8 nfnet_f0:8 mixer_b16_224:8 cait_xxs24_224:8 crossvit_9_240:8
efficientformer_l1:8 pvt_v2_b1:8 twins_svt_small:8 dla34:8 vovnet39a:8 mobileone_s1:8 tinynet_a:8 davit_tiny:8
own/vocoder:1 own/edsr:1 own/unet2d:4 own/unet3d:1 own/diffusion:2 own/image_decoder:1 own/lstm:32 own/gru:1 own/dlrm:128 own/t5_encoder:8
own/conformer:8 own/wavenet:1 own/graph:4 own/field:64 own/causal:4 own/deeplabv3:4 own/lraspp:8 own/r3d:2 own/s3d:2
""".split()


def model_of(name, batch):
    """A network and its inputs by name."""
    if name.startswith("own/"):
        make, inputs = others.OTHERS[name[4:]]
        return make(), inputs(batch)
    model, size = image_model(name)
    return model, {"x": torch.randn(batch, 3, size, size)}


def image_model(name):
    if name.startswith("tv/"):
        import torchvision

        options = {"aux_logits": False, "init_weights": False} if name == "tv/inception_v3" else {}
        return torchvision.models.get_model(name[3:], weights=None, **options), 299 if name == "tv/inception_v3" else 224
    import timm

    model = timm.create_model(name, pretrained=False, exportable=True)
    return model, model.default_cfg["input_size"][-1]


def main():
    words, seconds, results = sys.argv[1:], float("inf"), None
    while words and words[0].startswith("--"):
        if words[0] == "--seconds":
            seconds = float(words[1])
        elif words[0] == "--results":
            results = pathlib.Path(words[1])
        else:
            sys.exit(f"{words[0]}: not known; --seconds N, --results FILE")
        words = words[2:]
    if not words:
        sys.exit(__doc__)
    began = time.perf_counter()
    there = set()
    if results and results.exists():
        there = {json.loads(line)["case"] for line in results.read_text().splitlines()}
    for case in words[1:] or ZOO:
        if case in there or time.perf_counter() - began > seconds:
            continue
        name, _, batch = case.partition(":")
        try:
            torch.manual_seed(0)
            model, inputs = model_of(name, int(batch or 1))
            line = models.case(case, words[0], lambda: model, inputs, 0, [])
            if "run" in line.get("graphc", {}) and "run" in line.get("compile", {}):
                peer = min(line[kind][what] for kind in ("compile", "eager") for what in ("run", "device"))
                line["ratio"] = round(line["graphc"]["run"] / peer, 3)
        except Exception:
            line = {"case": case, "failed": traceback.format_exc()[-1500:]}
        line["device"] = torch.cuda.get_device_name()
        print(json.dumps(line), flush=True)
        if results:
            with results.open("a") as file:
                file.write(json.dumps(line) + "\n")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
