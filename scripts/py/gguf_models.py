"""Writes small random language models as GGUF files, with their logits by plain NumPy in f64, and cases of tokenizers and chat templates.

    python scripts/py/gguf_models.py tests/data/llm

Needs numpy, gguf, tokenizers, sentencepiece and jinja2 of PyPI. Files are by the gguf package's own GGUFWriter. The decoder here knows
nothing of graphc: weights are in the order of Hugging Face's models, whose pairs of rotary embedding are halves; rows of queries and
keys are permuted for the architecture "llama" as llama.cpp's converter does it. cases.json has what the tests compare with.
"""

import json
import math
import sys
import tempfile
from pathlib import Path

import gguf
import jinja2
import numpy as np
import sentencepiece
from gguf import GGMLQuantizationType as Kind
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = """The quick brown fox jumps over the lazy dog. Computation graphs are compiled to kernels; kernels read and write tensors.
Numbers like 3, 42, 1999 and 123456789 are split by rule. It's what they'd say: we're sure you'll see, I'm certain they've come.
Über große Äpfel läßt sich streiten. Le café est très bon à Noël. Ελληνικά γράμματα. Русский текст. 日本語の文章です。中文句子。 한국어
def attend(query, key, value):\n    scores = query @ key.T / sqrt(width)\n    return softmax(scores) @ value\n\n\n\tindented   spaces
The model that reads the text writes the next token, and the next one, and the one after that, until the text has come to its end.
"""

CASES = ["Hello world", " Hello  world ", "It's we'RE they'LL I'm", "3 42 1999 123456789 1,234.5", "", " ", "   three\n\n\nlines \r\n end\t\t.",
         "Über große Äpfel", "日本語の文章です。中文", "emoji 🦀🎉 joined 👩‍👩‍👧", "def f(x):\n    return x**2  # note", "naïve café — “quoted”…",
         "a\u00a0b\u3000c", "مرحبا بالعالم", "x" * 40, "<s>not a token</s> <|im_start|>", "mixed123abc456 7x"]


def bpe_vocabulary(merges, special):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=256 + merges, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    tokenizer.train_from_iterator(TEXT.split("\n"), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return tokens + special, pairs, [1] * len(tokens) + [3] * len(special)


def sentencepiece_vocabulary(size):
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text")
        text.write_text(TEXT)
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=f"{folder}/m", vocab_size=size, model_type="bpe", byte_fallback=True, character_coverage=0.98,
            normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2)
        model = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/m.model")
    tokens = [model.id_to_piece(i) for i in range(len(model))]
    types = [2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1 for i in range(len(model))]
    return model, tokens, [model.get_score(i) for i in range(len(model))], types


def add_bpe(writer, tokens, merges, types, pre):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_token_types(types)
    writer.add_bos_token_id(tokens.index("<|begin|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))


def add_sentencepiece(writer, tokens, scores, types):
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


# ---- The decoder ------------------------------------------------------------------------------------------------------------------

def rms(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotate(x, positions, frequencies, magnitude):
    angles = positions[:, None] * frequencies[None, :]
    cos, sin = np.cos(angles)[:, None, :] * magnitude, np.sin(angles)[:, None, :] * magnitude
    half = len(frequencies)
    a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)


def activation(name, x):
    if name == "silu":
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def decode(m, w, tokens, rows=False):
    """Logits of every position, in f64, or the rows that these are made of."""
    positions = np.arange(len(tokens), dtype=np.float64)
    distance = positions[:, None] - positions[None, :]
    x = w["token_embd"][tokens] * m.get("embedding_scale", 1.0)

    def pre_norm(y, name):
        if name not in w:
            return y
        if m.get("layer_norms"):
            y = y - y.mean(-1, keepdims=True)
        return rms(y, w[name], m["epsilon"]) + w.get(name + ".bias", 0.0)

    residual = m.get("residual_scale", 1.0)
    cap = lambda y, c: y if c is None else c * np.tanh(y / c)
    for i in range(m["layers"]):
        get = lambda name: w[f"blk.{i}.{name}"]
        layer = m["layer"](i)
        h = pre_norm(x, f"blk.{i}.attn_norm")
        q, k, v = (h @ get(f"attn_{n}").T + w.get(f"blk.{i}.attn_{n}.bias", 0.0) for n in "qkv")
        if m.get("head_norms") == "all":
            q, k = rms(q, get("attn_q_norm"), m["epsilon"]), rms(k, get("attn_k_norm"), m["epsilon"])
        q = q.reshape(len(tokens), m["heads"], -1)
        k, v = (t.reshape(len(tokens), m["kv_heads"], -1) for t in (k, v))
        if m.get("head_norms") == "each":
            q, k = rms(q, get("attn_q_norm"), m["epsilon"]), rms(k, get("attn_k_norm"), m["epsilon"])
        if layer["rope"] is not None:
            q, k = (rotate(t, positions, *layer["rope"]) for t in (q, k))
        out = np.zeros((len(tokens), m["heads"], v.shape[-1]))
        hidden = (distance < 0) | (distance >= layer["window"])
        for head in range(m["heads"]):
            group = head // (m["heads"] // m["kv_heads"])
            scores = cap(q[:, head] @ k[:, group].T * m["scale"], m.get("score_cap"))
            scores = np.where(hidden, -np.inf, scores)
            # A sink is one more score, of a key that has no value.
            sink = np.full((len(tokens), 1), get("attn_sinks")[head] if m.get("sinks") else -np.inf)
            scores = np.concatenate([scores, sink], -1)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = (weights / weights.sum(-1, keepdims=True))[:, :-1] @ v[:, group]
        mixed = out.reshape(len(tokens), -1) @ get("attn_output").T + w.get(f"blk.{i}.attn_output.bias", 0.0)
        x = x + residual * (rms(mixed, get("post_attention_norm"), m["epsilon"]) if m.get("post_norms") else mixed)
        h = pre_norm(x, f"blk.{i}.{m.get('second_norm', 'ffn_norm')}")
        mixed = mixture(m, w, i, h) if m.get("experts") else network(m, w, f"blk.{i}.ffn_", "", h)
        x = x + residual * (rms(mixed, get("post_ffw_norm"), m["epsilon"]) if m.get("post_norms") else mixed)
    if rows:
        return pre_norm(x, "output_norm")
    logits = pre_norm(x, "output_norm") @ w.get("output", w["token_embd"]).T / m.get("logit_scale", 1.0)
    return cap(logits, m.get("logit_cap"))


def network(m, w, before, after, h):
    up = h @ w[f"{before}up{after}"].T + w.get(f"{before}up{after}.bias", 0.0)
    gate = h @ w[f"{before}gate{after}"].T + w.get(f"{before}gate{after}.bias", 0.0) if m.get("gated", True) else None
    if m["activation"] == "clamped":
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        gated = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
    else:
        gated = activation(m["activation"], up) if gate is None else activation(m["activation"], gate) * up
    return gated @ w[f"{before}down{after}"].T + w.get(f"{before}down{after}.bias", 0.0)


def mixture(m, w, layer, h):
    """Each token by itself, with the experts that it chooses."""
    e, before = m["experts"], f"blk.{layer}.ffn_"
    scores = h @ w[before + "gate_inp"].T + w.get(before + "gate_inp.bias", 0.0)
    chances = np.exp(scores - scores.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    out = np.zeros_like(h)
    for t in range(len(h)):
        chosen = np.argsort(-chances[t])[:e["used"]]
        weights = chances[t][chosen] / (chances[t][chosen].sum() if e["normalised"] else 1.0)
        for expert, weight in zip(chosen, weights):
            out[t] += weight * network(m, w, before, f"_exps.{expert}", h[t])
    if e.get("shared"):
        out += network(m, w, before, "_shexp", h) / (1 + np.exp(-h @ w[before + "gate_inp_shexp"]))[:, None]
    return out


def frequencies(rotated, base, factor=1.0):
    return base ** (-np.arange(0, rotated, 2) / rotated) / factor


def permuted(rows, heads):
    """The order in which llama.cpp's converter writes rows of queries and keys: halves of each head become neighbours."""
    return np.arange(rows).reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).reshape(-1)


# Types that the gguf package reads and does not write: where their f16 numbers are, and the mean size of what these are multiplied with.
SCALES = {Kind.Q2_K: ([80, 82], 15), Kind.Q3_K: ([108], 40), Kind.Q4_K: ([0, 2], 280), Kind.Q5_K: ([0, 2], 560), Kind.Q6_K: ([208], 1400),
          Kind.IQ4_NL: ([0], 66), Kind.IQ4_XS: ([0], 1200)}


def random_blocks(random, kind, rows, columns):
    """Random bits with scales for numbers as large as those of other matrices."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    places, typical = SCALES[kind]
    raw = random.integers(0, 256, (rows * columns // block, size), dtype=np.uint8)
    for at in places:
        scales = random.uniform(0.8, 1.2, len(raw)) * 1.6 / math.sqrt(columns) / typical
        raw[:, at:at + 2] = scales.astype(np.float16)[:, None].view(np.uint8)
    return raw.reshape(rows, -1)


class Model:
    """Random weights, and the file that they are in."""

    def __init__(self, path, arch, tokenizer, kinds, m, seed):
        self.m, self.arch, self.kinds = m, arch, kinds
        self.weights, self.random = {}, np.random.default_rng(seed)
        self.writer = gguf.GGUFWriter(path, arch)
        tokenizer(self.writer)
        w = self.writer
        w.add_context_length(m["context"])
        w.add_embedding_length(m["width"])
        w.add_block_count(m["layers"])
        w.add_feed_forward_length(m["ff"])
        w.add_head_count(m["heads"])
        if m["kv_heads"] != m["heads"]:
            w.add_head_count_kv(m["kv_heads"])
        if m.get("layer_norms"):
            w.add_layer_norm_eps(m["epsilon"])
        else:
            w.add_layer_norm_rms_eps(m["epsilon"])
        w.add_rope_freq_base(m["base"])
        if m["length"] * m["heads"] != m["width"]:
            w.add_key_length(m["length"])
            w.add_value_length(m["length"])
        if m.get("experts"):
            w.add_expert_count(m["experts"]["count"])
            w.add_expert_used_count(m["experts"]["used"])
            if m["experts"]["inner"] != m["ff"]:
                w.add_expert_feed_forward_length(m["experts"]["inner"])
            if m["experts"].get("shared"):
                w.add_expert_shared_feed_forward_length(m["experts"]["shared"])

    def matrix(self, name, rows, columns, order=None, stored=None):
        data = self.random.normal(0, 1.6 / math.sqrt(columns), (rows, columns)).astype(np.float32)
        if name == "token_embd":
            data = self.random.normal(0, 0.25, (rows, columns)).astype(np.float32)
        kind = self.kinds(name)
        raw = gguf.quants.quantize(data, kind) if kind not in SCALES else random_blocks(self.random, kind, rows, columns)
        self.weights[name] = gguf.quants.dequantize(raw, kind).astype(np.float64)
        if order is not None:
            raw = raw[order]
        if stored is None:
            self.writer.add_tensor(f"{name}.weight", raw, raw_dtype=kind)
        else:
            stored.append((raw, kind))

    def vector(self, name, length, low, high, suffix=".weight", order=None):
        data = self.random.uniform(low, high, length).astype(np.float32)
        self.weights[name if suffix == ".weight" else name + suffix] = data.astype(np.float64)
        self.writer.add_tensor(name + suffix, data if order is None else data[order])

    def fill(self, vocabulary, tied, biases=False, fused=False):
        m = self.m
        width, length = m["width"], m["length"]
        self.matrix("token_embd", vocabulary, width)
        self.vector("output_norm", width, 0.5, 1.5)
        if not tied:
            self.matrix("output", vocabulary, width)
        for i in range(m["layers"]):
            name = lambda part: f"blk.{i}.{part}"
            if m.get("pre_norms", True):
                self.vector(name("attn_norm"), width, 0.5, 1.5)
                self.vector(name(m.get("second_norm", "ffn_norm")), width, 0.5, 1.5)
            together = [] if fused else None
            for part, heads in (("q", m["heads"]), ("k", m["kv_heads"]), ("v", m["kv_heads"])):
                order = permuted(heads * length, heads) if self.arch in ("llama", "smollm3", "granite") and part != "v" else None
                self.matrix(name(f"attn_{part}"), heads * length, width, order, together)
                if biases:
                    self.vector(name(f"attn_{part}"), heads * length, -0.5, 0.5, ".bias", order)
            if fused:
                self.writer.add_tensor(name("attn_qkv.weight"), np.concatenate([raw for raw, _ in together]), raw_dtype=together[0][1])
            self.matrix(name("attn_output"), width, m["heads"] * length)
            if m.get("sinks"):
                self.vector(name("attn_output"), width, -0.5, 0.5, ".bias")
                self.vector(name("attn_sinks"), m["heads"], -1.0, 3.0)
            if m.get("experts"):
                self.experts(name, m["experts"])
                self.head_norms(name)
                continue
            together = [] if fused else None
            if m.get("gated", True):
                self.matrix(name("ffn_gate"), m["ff"], width, None, together)
            self.matrix(name("ffn_up"), m["ff"], width, None, together)
            if fused:
                self.writer.add_tensor(name("ffn_up.weight"), np.concatenate([raw for raw, _ in together]), raw_dtype=together[0][1])
            self.matrix(name("ffn_down"), width, m["ff"])
            self.head_norms(name)
            if m.get("post_norms"):
                self.vector(name("post_attention_norm"), width, 1.0, 2.0)
                self.vector(name("post_ffw_norm"), width, 1.0, 2.0)

    def head_norms(self, name):
        m, length = self.m, self.m["length"]
        if m.get("head_norms"):
            each = m["head_norms"] == "each"
            self.vector(name("attn_q_norm"), length if each else length * m["heads"], 0.5, 1.5)
            self.vector(name("attn_k_norm"), length if each else length * m["kv_heads"], 0.5, 1.5)

    def experts(self, name, e):
        width = self.m["width"]
        self.matrix(name("ffn_gate_inp"), e["count"], width)
        if e.get("biases"):
            self.vector(name("ffn_gate_inp"), e["count"], -0.5, 0.5, ".bias")
        for part, rows, columns in (("gate", e["inner"], width), ("up", e["inner"], width), ("down", width, e["inner"])):
            together = []
            for expert in range(e["count"]):
                self.matrix(name(f"ffn_{part}_exps.{expert}"), rows, columns, None, together)
            self.writer.add_tensor(name(f"ffn_{part}_exps.weight"), np.stack([raw for raw, _ in together]), raw_dtype=together[0][1])
            if e.get("biases"):
                data = self.random.uniform(-0.5, 0.5, (e["count"], rows)).astype(np.float32)
                self.weights.update({name(f"ffn_{part}_exps.{expert}.bias"): one.astype(np.float64) for expert, one in enumerate(data)})
                self.writer.add_tensor(name(f"ffn_{part}_exps.bias"), data)
        if e.get("shared"):
            self.vector(name("ffn_gate_inp_shexp"), width, -0.5, 0.5)
            self.matrix(name("ffn_gate_shexp"), e["shared"], width)
            self.matrix(name("ffn_up_shexp"), e["shared"], width)
            self.matrix(name("ffn_down_shexp"), width, e["shared"])

    def close(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()

    def embed(self, pooling):
        """Writes the file, and gives the embedding of some tokens."""
        self.writer.add_pooling_type(pooling)
        self.close()
        tokens = [int(t) for t in np.random.default_rng(6).integers(3, len(self.weights["token_embd"]), 11)]
        rows = decode(self.m, self.weights, tokens, rows=True)
        row = rows[-1] if pooling == gguf.PoolingType.LAST else rows.mean(0)
        return {"tokens": tokens, "embedding": [float(f"{x:.6g}") for x in row / np.linalg.norm(row)]}

    def finish(self):
        self.close()
        tokens = [int(t) for t in np.random.default_rng(5).integers(3, len(self.weights["token_embd"]), 14)]
        logits = decode(self.m, self.weights, tokens)
        # The greedy text, each token by the whole sequence so far.
        text = list(tokens)
        for _ in range(8):
            text.append(int(decode(self.m, self.weights, text)[-1].argmax()))
        rows = [[float(f"{x:.6g}") for x in row] for row in logits[[0, 6, 13]]]
        return {"tokens": tokens, "rows": [0, 6, 13], "logits": rows, "greedy": text[len(tokens):]}


def sizes(**more):
    m = dict(width=32, layers=2, ff=64, heads=4, kv_heads=2, length=8, context=64, epsilon=1e-5, base=10000.0, activation="silu")
    m.update(more)
    m.setdefault("scale", 1 / math.sqrt(m["length"]))
    plain = (frequencies(m.get("rotated", m["length"]), m["base"], m.get("factor", 1.0)), m.get("magnitude", 1.0))
    m.setdefault("layer", lambda i: {"rope": plain, "window": np.inf})
    return m


def write_models(folder, cases):
    special = ["<|begin|>", "<|im_start|>", "<|im_end|>"]
    tokens, merges, types = bpe_vocabulary(45, special)
    _, pieces, scores, piece_types = sentencepiece_vocabulary(360)
    bpe = lambda pre: lambda writer: add_bpe(writer, tokens, merges, types, pre)
    spm = lambda writer: add_sentencepiece(writer, pieces, scores, piece_types)
    f32, f16, bf16 = (lambda name, kind=kind: kind for kind in (Kind.F32, Kind.F16, Kind.BF16))
    done = {}

    model = Model(folder / "llama.gguf", "llama", spm, f32, sizes(context=256), 1)
    model.writer.add_rope_dimension_count(8)
    model.writer.add_chat_template(TEMPLATES["chatml"])
    model.fill(len(pieces), tied=False)
    done["llama"] = model.finish()

    # Llama 3.1's factors: as they are for fast pairs, 8 for slow ones.
    factors = np.array([1.0, 1.0, 3.5, 8.0], np.float32)
    m = sizes(base=500000.0, factor=factors.astype(np.float64))
    model = Model(folder / "llama3.gguf", "llama", bpe("llama-bpe"), f16, m, 2)
    model.writer.add_tensor("rope_freqs.weight", factors)
    model.fill(len(tokens), tied=True)
    done["llama3"] = model.finish()

    m = sizes(factor=4.0, kv_heads=4)
    model = Model(folder / "linear.gguf", "llama", spm, f16, m, 3)
    model.writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    model.writer.add_rope_scaling_factor(4.0)
    model.fill(len(pieces), tied=True)
    done["linear"] = model.finish()

    mixture = {"output": Kind.Q8_0, "ffn_gate": Kind.Q5_0, "ffn_up": Kind.Q4_1, "ffn_down": Kind.Q5_1}
    quantised = lambda name: mixture.get(name.split(".")[-1], Kind.Q4_0)
    model = Model(folder / "quantised.gguf", "llama", spm, quantised, sizes(width=64, length=16), 4)
    model.fill(len(pieces), tied=False)
    done["quantised"] = model.finish()

    model = Model(folder / "bytes.gguf", "llama", spm, lambda name: Kind.Q8_0, sizes(), 10)
    model.fill(len(pieces), tied=True)
    done["bytes"] = model.finish()

    # Blocks of 256 elements: every type that is read, in matrices that it fits.
    mixture = {"output": Kind.IQ4_XS, "attn_q": Kind.Q2_K, "attn_k": Kind.Q3_K, "attn_v": Kind.Q6_K, "attn_output": Kind.MXFP4,
               "ffn_gate": Kind.Q5_K, "ffn_up": Kind.IQ4_NL, "ffn_down": Kind.Q6_K}
    superblocks = lambda name: mixture.get(name.split(".")[-1], Kind.Q4_K)
    model = Model(folder / "superblocks.gguf", "llama", spm, superblocks, sizes(width=256, ff=256, layers=1), 11)
    model.fill(len(pieces), tied=False)
    done["superblocks"] = model.finish()

    model = Model(folder / "qwen2.gguf", "qwen2", bpe("qwen2"), bf16, sizes(kv_heads=1, base=1e6), 5)
    model.fill(len(tokens), tied=True, biases=True)
    done["qwen2"] = model.finish()

    model = Model(folder / "qwen3.gguf", "qwen3", bpe("qwen2"), f16, sizes(length=16, head_norms="each", base=1e6), 6)
    model.fill(len(tokens), tied=True)
    done["qwen3"] = model.finish()

    rope = (frequencies(8, 10000.0), 1.0)
    m = sizes(activation="gelu", post_norms=True, embedding_scale=math.sqrt(32), score_cap=50.0, logit_cap=30.0, epsilon=1e-6)
    m["layer"] = lambda i: {"rope": rope, "window": 5 if i % 2 == 0 else np.inf}
    model = Model(folder / "gemma2.gguf", "gemma2", spm, f16, m, 7)
    model.writer.add_sliding_window(5)
    model.writer.add_attn_logit_softcapping(50.0)
    model.writer.add_final_logit_softcapping(30.0)
    model.fill(len(pieces), tied=True)
    done["gemma2"] = model.finish()

    ropes = [(frequencies(8, 10000.0), 1.0), (frequencies(8, 1e6, 8.0), 1.0)]
    m = sizes(activation="gelu", post_norms=True, head_norms="each", embedding_scale=math.sqrt(32), layers=6, kv_heads=1, base=1e6, epsilon=1e-6)
    m["layer"] = lambda i: {"rope": ropes[i % 6 == 5], "window": np.inf if i % 6 == 5 else 4}
    model = Model(folder / "gemma3.gguf", "gemma3", spm, f16, m, 8)
    model.writer.add_sliding_window(4)
    model.writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    model.writer.add_rope_scaling_factor(8.0)
    model.fill(len(pieces), tied=True)
    done["gemma3"] = model.finish()

    # Three quarters of a head are rotated, by the factors of long contexts.
    long, short = np.array([1.5, 2.0, 4.0], np.float32), np.ones(3, np.float32)
    m = sizes(rotated=6, factor=long.astype(np.float64), magnitude=1.19)
    model = Model(folder / "phi3.gguf", "phi3", spm, f16, m, 9)
    model.writer.add_rope_dimension_count(6)
    model.writer.add_rope_scaling_orig_ctx_len(32)
    model.writer.add_rope_scaling_attn_factors(1.19)
    model.writer.add_tensor("rope_factors_long.weight", long)
    model.writer.add_tensor("rope_factors_short.weight", short)
    model.fill(len(pieces), tied=False, fused=True)
    done["phi3"] = model.finish()

    m = sizes(layers=4, base=5e6)
    plain = m["layer"]
    m["layer"] = lambda i: {**plain(i), "rope": plain(i)["rope"] if (i + 1) % 4 else None}
    model = Model(folder / "smollm3.gguf", "smollm3", bpe("smollm"), f16, m, 12)
    model.writer.add_rope_dimension_count(8)
    model.fill(len(tokens), tied=True)
    done["smollm3"] = model.finish()

    m = sizes(embedding_scale=12.0, residual_scale=0.22, scale=0.0625, logit_scale=8.0)
    model = Model(folder / "granite.gguf", "granite", bpe("refact"), f16, m, 13)
    model.writer.add_rope_dimension_count(8)
    model.writer.add_embedding_scale(12.0)
    model.writer.add_residual_scale(0.22)
    model.writer.add_attention_scale(0.0625)
    model.writer.add_logit_scale(8.0)
    model.fill(len(tokens), tied=True)
    done["granite"] = model.finish()

    m = sizes(layer_norms=True, gated=False, activation="gelu", base=1e5)
    model = Model(folder / "starcoder2.gguf", "starcoder2", bpe("starcoder"), f16, m, 15)
    model.writer.add_rope_dimension_count(8)
    model.fill(len(tokens), tied=True, biases=True)
    model.vector("output_norm", 32, -0.5, 0.5, ".bias")
    for i in range(m["layers"]):
        for part, length in (("attn_norm", 32), ("ffn_norm", 32), ("attn_output", 32), ("ffn_up", 64), ("ffn_down", 32)):
            model.vector(f"blk.{i}.{part}", length, -0.5, 0.5, ".bias")
    done["starcoder2"] = model.finish()

    m = sizes(pre_norms=False, post_norms=True, head_norms="all", base=5e5, epsilon=1e-6)
    model = Model(folder / "olmo2.gguf", "olmo2", bpe("dbrx"), f16, m, 14)
    model.writer.add_rope_dimension_count(8)
    model.fill(len(tokens), tied=False)
    done["olmo2"] = model.finish()

    routed = lambda kind: lambda name: Kind.F32 if name.endswith("ffn_gate_inp") else kind
    m = sizes(ff=32, experts=dict(count=4, used=2, inner=32, normalised=True))
    model = Model(folder / "mixtral.gguf", "llama", spm, routed(Kind.Q8_0), m, 16)
    model.writer.add_rope_dimension_count(8)
    model.fill(len(pieces), tied=True)
    done["mixtral"] = model.finish()

    m = sizes(base=1e6, experts=dict(count=4, used=2, inner=16, normalised=False, shared=48))
    model = Model(folder / "qwen2moe.gguf", "qwen2moe", bpe("qwen2"), routed(Kind.F16), m, 17)
    model.fill(len(tokens), tied=False, biases=True)
    done["qwen2moe"] = model.finish()

    m = sizes(base=1e6, length=16, head_norms="each", experts=dict(count=6, used=3, inner=16, normalised=True))
    model = Model(folder / "qwen3moe.gguf", "qwen3moe", bpe("qwen2"), routed(Kind.F16), m, 18)
    model.fill(len(tokens), tied=True)
    done["qwen3moe"] = model.finish()

    # YaRN by 4 from 16 positions on; every other layer has a window; the experts' rows are as wide as a block.
    def yarn(rotated, base, stretch, original):
        pair_at = lambda turns: rotated * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
        low, high = max(math.floor(pair_at(32.0)), 0), min(math.ceil(pair_at(1.0)), rotated - 1)
        kept = 1 - np.clip((np.arange(rotated // 2) - low) / max(0.001, high - low), 0, 1)
        return frequencies(rotated, base) * ((1 - kept) / stretch + kept), 1 + 0.1 * math.log(stretch)

    m = sizes(base=150000.0, length=16, sinks=True, second_norm="post_attention_norm", activation="clamped",
              experts=dict(count=5, used=2, inner=32, normalised=True, biases=True))
    m["layer"] = lambda i: {"rope": yarn(16, 150000.0, 4.0, 16), "window": 5 if i % 2 == 0 else np.inf}
    experts = lambda name: Kind.F32 if name.endswith("ffn_gate_inp") else Kind.MXFP4 if "_exps" in name else Kind.Q8_0
    model = Model(folder / "gptoss.gguf", "gpt-oss", bpe("gpt-4o"), experts, m, 19)
    model.writer.add_sliding_window(5)
    model.writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    model.writer.add_rope_scaling_factor(4.0)
    model.writer.add_rope_scaling_orig_ctx_len(16)
    model.fill(len(tokens), tied=False, biases=True)
    done["gptoss"] = model.finish()
    cases["models"] = done

    embedded = {}
    for name, pooling, seed in (("lastrow", gguf.PoolingType.LAST, 20), ("meanrow", gguf.PoolingType.MEAN, 21)):
        m = sizes(length=16, head_norms="each", base=1e6, layers=1)
        model = Model(folder / f"{name}.gguf", "qwen3", bpe("qwen2"), f16, m, seed)
        model.writer.add_add_eos_token(True)
        model.fill(len(tokens), tied=True)
        embedded[name] = model.embed(pooling)
    cases["embeddings"] = embedded


# ---- Tokenizers -------------------------------------------------------------------------------------------------------------------

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def write_tokenizers(folder, cases):
    special = ["<|begin|>", "<|im_start|>", "<|im_end|>"]
    tokens, merges, types = bpe_vocabulary(700, special)
    writer = gguf.GGUFWriter(folder / "bpe.gguf", "llama")
    add_bpe(writer, tokens, merges, types, "llama-bpe")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    # As the models' own tokenizer.json have it.
    split = lambda regex: pre_tokenizers.Split(Regex(regex), "isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    rules = {
        "llama-bpe": (pre_tokenizers.Sequence([split(LLAMA3), plain]), True),
        "qwen2": (pre_tokenizers.Sequence([split(LLAMA3.replace("{1,3}", "")), plain]), False),
        "gpt-2": (gpt2, False),
        "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]), False),
    }
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    done = {}
    for name, (rule, whole) in rules.items():
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=whole))
        tokenizer.pre_tokenizer, tokenizer.decoder = rule, decoders.ByteLevel()
        done[name] = [tokenizer.encode(text, add_special_tokens=False).ids for text in CASES]
        assert all(tokenizer.decode(ids) == text for text, ids in zip(CASES, done[name]))

    model, pieces, scores, piece_types = sentencepiece_vocabulary(700)
    writer = gguf.GGUFWriter(folder / "sentencepiece.gguf", "llama")
    add_sentencepiece(writer, pieces, scores, piece_types)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    # SentencePiece puts no space before an empty text; nor does anything else.
    done["sentencepiece"] = [model.encode(text) for text in CASES]
    cases["texts"], cases["tokenizers"] = CASES, done


# ---- Templates --------------------------------------------------------------------------------------------------------------------

TEMPLATES = {
    # Qwen 1.5 and many others.
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    # Llama 3.
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "
              "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content "
              "%}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
              "{% endif %}",
    # Gemma.
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message "
             "in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate "
             "user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set "
             "role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor "
             "%}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
    # Zephyr: lines of blocks, whose ends and indents go.
    "zephyr": "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n"
              "{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
              "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
              "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
}


def write_templates(cases):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    environment.globals["raise_exception"] = refuse
    user, system = {"role": "user", "content": " Hi, \"<you>\" & co! "}, {"role": "system", "content": "Be brief."}
    answer, again = {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Wie geht's?\n"}
    done = []
    for name, text in TEMPLATES.items():
        for messages in ([user], [system, user], [user, answer, again], [user, again]):
            for add in (True, False):
                try:
                    rendered = environment.from_string(text).render(
                        messages=messages, add_generation_prompt=add, bos_token="<s>", eos_token="</s>")
                except jinja2.exceptions.TemplateError as error:
                    rendered = {"refused": str(error)}
                done.append({"name": name, "template": text, "messages": messages, "add_generation_prompt": add, "text": rendered})
    cases["templates"] = done


def main():
    folder, cases = Path(sys.argv[1]), {}
    folder.mkdir(parents=True, exist_ok=True)
    write_models(folder, cases)
    write_tokenizers(folder, cases)
    write_templates(cases)
    (folder / "cases.json").write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n")


main()
