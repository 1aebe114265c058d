"""Writes all-MiniLM-L6-v2's outputs for a few sentences, computed by PyTorch in f32.

    python scripts/py/minilm_reference.py FOLDER tests/data/minilm         (torch, transformers, numpy)

FOLDER is what scripts/fetch-minilm.sh prints. Two sizes: `batch` is four sentences padded to the longest, `single` one
longer sentence alone.

    sentences.txt        the sentences: four, then the single one
    batch.in.npz         input_ids, attention_mask, token_type_ids: i64 [4, seq]
    batch.out.npz        last_hidden_state: f32 [4, seq, 384]; embeddings: f32 [4, 384], mean-pooled over the mask and
                         normalised to length 1, as sentence-transformers does
    single.in.npz, single.out.npz     the same with batch 1
"""

import pathlib
import sys

import numpy as np
import torch
import transformers

SENTENCES = [
    "A man is playing a guitar on the stage.",
    "Someone performs music with a string instrument.",
    "The stock market fell sharply on Monday.",
    "Rust compiles to fast native code, without a garbage collector.",
]
SINGLE = (
    "A lazy computation graph is recorded first and compiled later, so that the compiler sees the whole program, fuses "
    "neighbouring operations into one kernel, plans its memory ahead of time, and launches as little as it can."
)


def main():
    source, out = sys.argv[1], pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModel.from_pretrained(source, attn_implementation="eager").eval().float()
    for name, sentences in (("batch", SENTENCES), ("single", [SINGLE])):
        tokens = tokenizer(sentences, padding=True, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None].float()
        pooled = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)
        names = ("input_ids", "attention_mask", "token_type_ids")
        np.savez(out / f"{name}.in.npz", **{n: tokens[n].numpy() for n in names})
        np.savez(out / f"{name}.out.npz", last_hidden_state=hidden.numpy(), embeddings=pooled.numpy())
        print(name, list(hidden.shape), "similarity", (pooled @ pooled.T).numpy().round(3).tolist())
    (out / "sentences.txt").write_text("\n".join([*SENTENCES, SINGLE]) + "\n")


if __name__ == "__main__":
    main()
