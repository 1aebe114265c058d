"""Exports architectures by both exporters of PyTorch with open sizes, and holds graphc's results on the CPU against onnxruntime's.

    python scripts/py/exports.py [--at-once 1] [--seconds N] [--results FILE] GRAPHC [NAME...]

A NAME is `timm/NAME`, `tv/NAME` (torchvision: classes, segmentation, detection, video, optical flow), or `tf/TYPE` (transformers: the model
of that configuration, made small); without one, all of `CASES`. Weights are random. Each is exported with its batch, and its height and width
or its length where the network takes others, open; the file runs at three sizes. A line of JSON for each exporter (`ts`: TorchScript,
`dy`: torch.export) is printed and added to FILE; a case that FILE has is left out. `result` is one of

    same          the outputs of all sizes agree (`graphc run --expect`, within 1e-3 of the largest magnitude)
    differs, refused, failed      `message` says at which size, and what graphc printed
    no peer       onnxruntime itself fails at each size; `not exported`: PyTorch does

With KEEP_FAILING=FOLDER in the environment, small files whose result is not `same` are kept there.

Needs torch, torchvision, timm, transformers, onnx, onnxscript and onnxruntime.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

CASES = """
timm/bat_resnext26ts timm/beit_base_patch16_224 timm/caformer_s18 timm/coat_lite_tiny timm/convit_tiny timm/cpubone_nano timm/csatv2
timm/cs3darknet_focus_s timm/cs3se_edgenet_x timm/cspnext_tiny timm/darknet17 timm/deit_tiny_distilled_patch16_224 timm/deit3_small_patch16_224
timm/densenetblur121d timm/dla46x_c timm/dpn48b timm/eca_halonext26ts timm/ecaresnet26t timm/edgenext_xx_small timm/efficientformerv2_s0
timm/efficientnetv2_rw_t timm/efficientvim_m1 timm/efficientvit_b0 timm/efficientvit_l1 timm/efficientvit_m0 timm/ese_vovnet19b_dw
timm/fasternet_t0 timm/fastvit_sa12 timm/fbnetc_100 timm/focalnet_tiny_lrf timm/gcresnext26ts timm/gernet_s timm/ghostnetv2_100 timm/ghostnetv3_100
timm/gmixer_12_224 timm/gmlp_ti16_224 timm/halonet26t timm/haloregnetz_b timm/hardcorenas_a timm/hgnetv2_b0 timm/hiera_small_abswin_256
timm/hrnet_w18_small_v2 timm/iformer_t timm/inception_next_atto timm/inception_resnet_v2 timm/inception_v4 timm/lambda_resnet26t
timm/lamhalobotnet50ts_256 timm/lcnetv2_small timm/legacy_seresnet18 timm/legacy_xception timm/levit_conv_128s timm/lowformer_b0
timm/mambaout_femto timm/mixnet_s timm/mobilenetv4_hybrid_medium timm/mobilevitv2_050 timm/mvitv2_tiny timm/naflexvit_base_patch16_gap
timm/nasnetalarge timm/nest_tiny timm/nextvit_small timm/nf_regnet_b0 timm/nf_seresnet26 timm/pit_ti_224 timm/pnasnet5large timm/poolformerv2_s12
timm/pvt_v2_b2_li timm/regnetv_040 timm/regnetz_b16_evos timm/repghostnet_050 timm/repvit_m0_9 timm/res2next50 timm/resmlp_12_224
timm/resnest14d timm/resnet50_gn timm/resnetblur18 timm/resnetv2_50x1_bit timm/resnetv2_50d_evos timm/resnetv2_50d_frn timm/resnetaa34d
timm/resnetrs50 timm/rexnetr_100 timm/samvit_base_patch16_224 timm/sebotnet33ts_256 timm/selecsls42 timm/semnasnet_050 timm/shvit_s1
timm/skresnext50_32x4d timm/starnet_s050 timm/swiftformer_xs timm/swin_s3_tiny_224 timm/swinv2_cr_tiny_224 timm/tf_mobilenetv3_small_minimal_100
timm/tf_efficientnet_lite0 timm/tnt_s_patch16_224 timm/tresnet_m timm/twins_pcpvt_small timm/vit_relpos_small_patch16_224
timm/vit_srelpos_small_patch16_224 timm/vit_tiny_r_s16_p8_224 timm/vit_small_patch32_224 timm/vitamin_small_224 timm/volo_d1_224 timm/xception41p
timm/xcit_nano_12_p8_224
tv/convnext_tiny tv/googlenet tv/maxvit_t tv/mnasnet0_5 tv/mobilenet_v3_small tv/regnet_y_400mf tv/swin_v2_t tv/vit_b_32
tv/deeplabv3_mobilenet_v3_large tv/fcn_resnet50 tv/lraspp_mobilenet_v3_large tv/fasterrcnn_mobilenet_v3_large_320_fpn tv/fcos_resnet50_fpn
tv/retinanet_resnet50_fpn tv/ssd300_vgg16 tv/ssdlite320_mobilenet_v3_large tv/maskrcnn_resnet50_fpn tv/keypointrcnn_resnet50_fpn tv/raft_small
tv/mc3_18 tv/r2plus1d_18 tv/s3d tv/mvit_v1_b tv/swin3d_t
""".split()

# What makes a configuration of transformers small, where it has the name.
SMALL = {
    **dict.fromkeys("vocab_size entity_vocab_size".split(), 512),
    **dict.fromkeys("hidden_size d_model n_embd dim embedding_size embed_dim emb_dim encoder_hidden_size projection_dim".split(), 64),
    **dict.fromkeys("num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers num_encoder_layers".split(), 2),
    **dict.fromkeys("num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads".split(), 4),
    **dict.fromkeys("num_key_value_heads num_kv_heads".split(), 2),
    **dict.fromkeys("intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff n_inner hidden_dim".split(), 128),
    **dict.fromkeys("d_kv head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim attention_head_size".split(), 16),
    **dict.fromkeys("q_lora_rank kv_lora_rank".split(), 32),
    **dict.fromkeys("num_experts num_local_experts n_routed_experts".split(), 4),
    **dict.fromkeys("num_experts_per_tok top_k_experts".split(), 2),
    **dict.fromkeys("moe_intermediate_size".split(), 32),
    **dict.fromkeys("max_position_embeddings n_positions".split(), 256),
    "pad_token_id": 0, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}
CASES += ["tf/" + name for name in """
albert apertus arcee arctic audio-spectrogram-transformer bamba bart beit bert bert-generation big_bird bigbird_pegasus biogpt bit bitnet
blenderbot blip bloom camembert canine chinese_clip clap clip clvp codegen cohere cohere2 convbert convnext convnextv2 ctrl cvt dab-detr dac
data2vec-audio data2vec-text data2vec-vision dbrx deberta deberta-v2 deepseek_v2 deepseek_v3 deformable_detr deit depth_anything detr
dinat dinov2 dinov2_with_registers dinov3_vit diffllama distilbert doge donut-swin dots1 dpt edgetam electra encodec ernie ernie4_5 esm
exaone4 falcon falcon_h1 falcon_mamba fastspeech2_conformer flaubert flava fnet focalnet fsmt funnel gemma gemma2 gemma3_text git glm glm4
glm4_moe glpn gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gpt_oss gptj granite granitemoe granitemoehybrid grounding-dino groupvit
helium hgnet_v2 hiera hubert hunyuan_v1_dense ibert idefics ijepa imagegpt informer jamba jetmoe kosmos-2 layoutlm layoutlmv2 layoutlmv3 led
levit lfm2 lightglue lilt llama llama4_text longformer longt5 luke lxmert m2m_100 mamba mamba2 marian markuplm mask2former maskformer mbart
megatron-bert mgp-str mimi minimax mistral mixtral mllama mobilebert mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 modernbert moonshine
moshi mpnet mpt mra mt5 musicgen mvp nemotron nystromformer olmo olmo2 olmo3 olmoe omdet-turbo oneformer openai-gpt opt owlv2 owlvit
patchtsmixer patchtst pegasus pegasus_x perceiver persimmon phi phi3 phimoe pix2struct plbart poolformer pop2piano prophetnet pvt pvt_v2
qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next recurrent_gemma reformer regnet rembert resnet roberta roberta-prelayernorm roc_bert roformer
rt_detr rt_detr_v2 rwkv sam seamless_m4t seed_oss segformer seggpt sew sew-d siglip siglip_vision_model smollm3 speech_to_text speecht5
splinter squeezebert stablelm starcoder2 superpoint swiftformer swin swin2sr swinv2 switch_transformers t5 table-transformer tapas
textnet time_series_transformer timesformer timesfm trocr tvp udop umt5 unispeech unispeech-sat univnet upernet vilt videomae vision-text-dual-encoder
visual_bert vit vit_mae vit_msn vitdet vitmatte vitpose_backbone vits vivit vjepa2 wav2vec2 wav2vec2-bert wav2vec2-conformer wavlm whisper
xglm xlm xlm-roberta xlnet xlstm xmod yolos yoso zamba zamba2 zoedepth
""".split()]
# A run that ends early has tried some of each family.
random.Random(0).shuffle(CASES)


def images(sizes):
    import torch

    return [[torch.randn(batch, 3, height, width)] for batch, height, width in sizes]


def timm_case(name):
    """A network, the names of its inputs, the dims of each that are open, and three sets of inputs of which the second is exported."""
    import timm
    import torch

    model = timm.create_model(name, pretrained=False, exportable=True).eval()
    size = model.default_cfg["input_size"][-1]
    try:
        with torch.no_grad():
            model(torch.randn(1, 3, 96, 128))
        return model, ["x"], [{0: "batch", 2: "height", 3: "width"}], images([(1, 128, 128), (2, 96, 160), (3, 64, 96)])
    except Exception:
        return model, ["x"], [{0: "batch"}], images([(1, size, size), (2, size, size), (3, size, size)])


def tv_case(name):
    import torch
    import torchvision

    options = {"weights": None}
    if "rcnn" in name or name.startswith(("fcos", "retinanet", "ssd", "deeplab", "fcn", "lraspp")):
        options["weights_backbone"] = None
    if name == "googlenet":
        options.update(aux_logits=False, init_weights=False)
    model = torchvision.models.get_model(name, **options).eval()
    randn = torch.randn
    if name == "raft_small":
        pairs = [[randn(b, 3, h, w), randn(b, 3, h, w)] for b, h, w in ((1, 128, 128), (2, 128, 160), (1, 160, 128))]
        return model, ["left", "right"], [{0: "batch", 2: "height", 3: "width"}] * 2, pairs
    if name in ("mc3_18", "r2plus1d_18", "s3d"):
        return model, ["x"], [{0: "batch", 2: "frames"}], [[randn(b, 3, f, 112, 112)] for b, f in ((1, 16), (2, 16), (1, 24))]
    if name in ("mvit_v1_b", "swin3d_t"):
        return model, ["x"], [{0: "batch"}], [[randn(b, 3, 16, 224, 224)] for b in (1, 2, 1)]
    if "rcnn" in name or name.startswith(("fcos", "retinanet", "ssd")):
        return model, ["x"], [{2: "height", 3: "width"}], images([(1, 320, 320), (1, 256, 320), (1, 320, 256)])
    if name in ("swin_v2_t", "maxvit_t", "vit_b_32"):
        return model, ["x"], [{0: "batch"}], images([(1, 224, 224), (2, 224, 224), (3, 224, 224)])
    return model, ["x"], [{0: "batch", 2: "height", 3: "width"}], images([(1, 128, 128), (2, 96, 160), (3, 64, 96)])


def shrink(config):
    import transformers

    for key, value in SMALL.items():
        if isinstance(getattr(config, key, None), (int, type(None))) and hasattr(config, key):
            try:
                setattr(config, key, value)
            except Exception:
                pass
    if isinstance(getattr(config, "layer_types", None), list):
        config.layer_types = (config.layer_types[:1] + config.layer_types[-1:])[: config.num_hidden_layers]
    for value in vars(config).values():
        if isinstance(value, transformers.PretrainedConfig):
            shrink(value)


def tf_case(name):
    import torch
    import transformers

    # The whole configuration is tried first as it is made small, then as it is.
    config = transformers.CONFIG_MAPPING[name]()
    shrink(config)
    for key in ("use_cache", "_attn_implementation"):
        try:
            setattr(config, key, {"use_cache": False}.get(key, "eager"))
        except Exception:
            pass
    try:
        model = transformers.AutoModel.from_config(config).eval()
    except Exception:
        config = transformers.CONFIG_MAPPING[name]()
        model = transformers.AutoModel.from_config(config).eval()
    main, randn = model.main_input_name, torch.randn
    words = lambda b, n: torch.randint(3, 500, (b, n))
    mask = lambda b, n: torch.ones(b, n, dtype=torch.int64)
    text = [{0: "batch", 1: "length"}] * 2
    sizes = ((1, 16), (2, 24), (3, 17))
    if main == "input_ids" and getattr(config, "is_encoder_decoder", False):
        given = [[words(b, n), mask(b, n), words(b, 9)] for b, n in sizes]
        return model, ["input_ids", "attention_mask", "decoder_input_ids"], [*text, {0: "batch"}], given
    both = hasattr(config, "vision_config") or hasattr(config, "vision_config_dict")
    edge = getattr(config, "image_size", None) or getattr(getattr(config, "vision_config", None), "image_size", None) or 224
    edge = edge[0] if isinstance(edge, (list, tuple)) else edge
    if main == "input_ids" and both:
        given = [[words(b, n), mask(b, n), randn(b, 3, edge, edge)] for b, n in sizes]
        return model, ["input_ids", "attention_mask", "pixel_values"], [*text, {0: "batch"}], given
    if main == "input_ids":
        return model, ["input_ids", "attention_mask"], text, [[words(b, n), mask(b, n)] for b, n in sizes]
    if main == "pixel_values":
        channels = getattr(config, "num_channels", 3)
        if name in ("timesformer", "videomae", "vivit"):
            frames = getattr(config, "num_frames", 8)
            return model, [main], [{0: "batch"}], [[randn(b, frames, channels, edge, edge)] for b in (1, 2, 3)]
        return model, [main], [{0: "batch"}], [[randn(b, channels, edge, edge)] for b in (1, 2, 3)]
    if main == "input_values":
        if name == "audio-spectrogram-transformer":
            return model, [main], [{0: "batch"}], [[randn(b, 1024, 128)] for b in (1, 2, 3)]
        wave = (lambda b, n: randn(b, 1, n)) if name in ("encodec", "dac", "mimi") else randn
        last = 2 if name in ("encodec", "dac", "mimi") else 1
        return model, [main], [{0: "batch", last: "length"}], [[wave(b, n)] for b, n in ((1, 8000), (2, 9600), (3, 6400))]
    if main == "input_features":
        if name in ("whisper",):
            given = [[randn(b, 80, 3000), words(b, 9)] for b in (1, 2, 3)]
            return model, [main, "decoder_input_ids"], [{0: "batch"}, {0: "batch"}], given
        if name == "wav2vec2-bert":
            return model, [main], [{0: "batch", 1: "length"}], [[randn(b, n, 160)] for b, n in ((1, 40), (2, 60), (3, 50))]
        given = [[randn(b, 96, 80), words(b, 9)] for b in (1, 2, 3)]
        return model, [main, "decoder_input_ids"], [{0: "batch"}, {0: "batch"}], given
    raise NotImplementedError(f"inputs named {main}")


def first_tensors(value):
    """The float tensors of a result, however it is nested."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    return [tensor for part in value for tensor in first_tensors(part)] if hasattr(value, "__iter__") and not isinstance(value, str) else []


def wrap(model, names, by_name):
    import torch

    class Flat(torch.nn.Module):
        """Takes tensors by place and gives a tuple of tensors."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *a):
            given = self.model(**dict(zip(names, a))) if by_name else self.model(*a)
            if isinstance(given, list) and given and isinstance(given[0], dict):
                given = given[0]
            tensors = first_tensors(given if by_name is False else given.to_tuple() if hasattr(given, "to_tuple") else given)
            return tuple(tensors[:4])

    return Flat()


def message(ran):
    return (ran.stderr.strip() or ran.stdout.strip())[-700:]


def check(path, names, inputs, graphc, folder):
    """How the runs of one file end: its result and what is to be said about it."""
    import numpy
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return "no peer", str(error)[:300]
    taken, tried, said = {i.name for i in session.get_inputs()}, 0, ""
    for values in inputs:
        given = {name: value.numpy() for name, value in zip(names, values) if name in taken}
        try:
            outputs = session.run(None, given)
        except Exception as error:
            said = str(error)[:300]
            continue
        tried += 1
        numpy.savez(folder / "in.npz", **given)
        numpy.savez(folder / "out.npz", **dict(zip((o.name for o in session.get_outputs()), outputs)))
        words = [graphc, "run", path, "--inputs", str(folder / "in.npz"), "--expect", str(folder / "out.npz"), "--threads", "1", "--rtol", "1e-3", "--atol", "1e-3"]
        shapes = " ".join(f"{name}:{list(value.shape)}" for name, value in given.items())
        try:
            ran = subprocess.run(words, capture_output=True, text=True, timeout=240)
        except subprocess.TimeoutExpired:
            return "failed", f"{shapes}: no end within 240 s"
        if ran.returncode != 0:
            kind = {1: "differs", 2: "refused"}.get(ran.returncode, "failed")
            return kind, f"{shapes}: {ran.returncode}: {message(ran)}"
    return ("same", "") if tried else ("no peer", said)


def one(case, graphc):
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    family, _, name = case.partition("/")
    lines = []
    try:
        model, names, dims, inputs = {"timm": timm_case, "tv": tv_case, "tf": tf_case}[family](name)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d) and module.running_mean is not None:
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
        flat = wrap(model, names, family == "tf").eval()
        with torch.no_grad():
            flat(*inputs[1])
    except Exception:
        return [{"case": case, "exporter": "-", "result": "not exported", "message": traceback.format_exc()[-500:]}]
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        for kind in ("ts", "dy"):
            path, began = str(folder / f"{kind}.onnx"), time.perf_counter()
            if kind == "ts":
                options = {"dynamo": False, "opset_version": 17, "dynamic_axes": dict(zip(names, dims))}
            else:
                open_dims = tuple({k: torch.export.Dim.DYNAMIC for k in dim} for dim in dims)
                options = {"dynamo": True, "external_data": False, "dynamic_shapes": {"a": open_dims}}
            line = {"case": case, "exporter": kind}
            try:
                with torch.no_grad():
                    torch.onnx.export(flat, tuple(inputs[1]), path, input_names=names, **options)
                line["result"], line["message"] = check(path, names, inputs, graphc, folder)
                keep = os.environ.get("KEEP_FAILING")
                if keep and line["result"] not in ("same", "no peer") and os.path.getsize(path) < 12 << 20:
                    pathlib.Path(keep, f"{case.replace('/', '-')}.{kind}.onnx").write_bytes(pathlib.Path(path).read_bytes())
            except Exception as error:
                line["result"], line["message"] = "not exported", repr(error)[-300:]
            line["s"] = round(time.perf_counter() - began, 1)
            lines.append(line)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphc")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        real, sys.stdout = sys.stdout, sys.stderr
        for line in one(options.alone, options.graphc):
            print(json.dumps(line), file=real)
        return
    there, began = set(), time.perf_counter()
    if options.results and options.results.exists():
        there = {json.loads(line)["case"] for line in options.results.read_text().splitlines()}

    def run(case):
        left = options.seconds - (time.perf_counter() - began)
        if left < 20:
            return
        words = [sys.executable, __file__, options.graphc, "--alone", case]
        try:
            ran = subprocess.run(words, capture_output=True, text=True, timeout=min(left, 400))
            lines = [line for line in ran.stdout.splitlines() if line.startswith('{"case"')]
            lines = lines or [json.dumps({"case": case, "exporter": "-", "result": "not exported", "message": ran.stderr[-500:]})]
        except subprocess.TimeoutExpired:
            lines = [json.dumps({"case": case, "exporter": "-", "result": "not exported", "message": "no end"})]
        for line in lines:
            print(line, flush=True)
            if options.results:
                with options.results.open("a") as file:
                    file.write(line + "\n")

    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(run, [case for case in options.names or CASES if case not in there]))


if __name__ == "__main__":
    main()
