"""Packs random blocks of every ggml type with the numbers they stand for into gguf/tests/data/blocks.bin, for gguf/tests/blocks.rs.

    python scripts/py/gguf_blocks.py gguf/tests/data

The numbers are those of PyPI's `gguf` package (`gguf.quants.dequantize`, MIT licence). The two types that it has no formula for
(`Q1_0`, `Q2_0`) are left out. Also writes writer.gguf, a small file by the package's own GGUFWriter with a value of every type.

blocks.bin: for each type, in order of ids: u32 id, u32 blocks, the blocks, then f32 numbers (little-endian).
"""

import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quants

# Where f16 scales lie in a block: random bits would be infinite now and then.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64], "MXFP4": [], "NVFP4": []}
BLOCKS = 6


def main():
    folder = Path(sys.argv[1])
    generator, out = np.random.default_rng(7), b""
    for name, places in sorted(SCALES.items(), key=lambda item: int(getattr(GGMLQuantizationType, item[0]))):
        kind = getattr(GGMLQuantizationType, name)
        elements, size = GGML_QUANT_SIZES[kind]
        raw = generator.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        for block in raw:
            for place in places:
                block[place:place + 2] = np.frombuffer(np.float16(generator.normal() * 0.05).tobytes(), np.uint8)
        if name == "MXFP4":
            raw[:, 0] = [0, 1, 2, 127, 200, 110]  # the exponents that are denormal as a scale, and others
        if name == "NVFP4":
            raw[:, :4] = generator.integers(0, 0x80, (BLOCKS, 4))
            raw[0, :4] = [0, 0x7F, 1, 7]
        numbers = quants.dequantize(raw, kind).astype("<f4")
        assert numbers.size == BLOCKS * elements
        out += struct.pack("<II", int(kind), BLOCKS) + raw.tobytes() + numbers.tobytes()
    (folder / "blocks.bin").write_bytes(out)

    writer = GGUFWriter(folder / "writer.gguf", "llama")
    writer.add_uint8("test.u8", 200)
    writer.add_int8("test.i8", -3)
    writer.add_uint16("test.u16", 60000)
    writer.add_int16("test.i16", -300)
    writer.add_uint32("llama.block_count", 2)
    writer.add_int32("test.i32", -70000)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_uint64("test.u64", 2**40)
    writer.add_int64("test.i64", -(2**40))
    writer.add_float64("test.f64", 0.1)
    writer.add_bool("test.bool", True)
    writer.add_string("general.name", "näive ▁ 中文")
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "▁a", "b"])
    writer.add_array("llama.attention.head_count", [4, 2])
    writer.add_array("tokenizer.ggml.scores", [0.0, -1.5, 2.25])
    matrix = np.arange(96, dtype=np.float32).reshape(3, 32)
    writer.add_tensor("token_embd.weight", matrix)
    writer.add_tensor("blk.0.attn_q.weight", quants.quantize(matrix - 40, GGMLQuantizationType.Q8_0), raw_dtype=GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.half.weight", matrix.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
