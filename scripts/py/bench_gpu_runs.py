"""The cases of `benches/src/bin/gpu_runs.rs` in PyTorch: a line of JSON each, times as medians in microseconds."""

import argparse
import json
import statistics
import time

import torch


def timed(step, runs, warm=30):
    """The median time of `step`, each waited for."""
    times = []
    for run in range(runs + warm):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if run >= warm:
            times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def mlp(runs):
    layers = [torch.nn.Linear(a, b) for a, b in [(784, 512), (512, 512), (512, 10)]]
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2]).cuda().eval()
    x = torch.rand(32, 784, device="cuda")
    for name, made in [
        ("eager", model),
        ("torch.compile", torch.compile(model)),
        ("torch.compile reduce-overhead", torch.compile(model, mode="reduce-overhead")),
    ]:
        with torch.inference_mode():
            print(json.dumps({"case": "mlp", "by": name, "run_us": timed(lambda: made(x), runs)}), flush=True)


class Decoder(torch.nn.Module):
    def __init__(self, layers, heads, width, capacity):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(5)) for _ in range(layers)
        )
        for layer in range(layers):
            for name in ("keys", "values"):
                self.register_buffer(f"{name}{layer}", torch.zeros(1, heads, capacity, self.size))
        self.register_buffer("places", torch.arange(capacity).view(1, 1, 1, capacity))

    def forward(self, x, position):
        seen = self.places <= position
        for index, (q, k, v, o, f) in enumerate(self.layers):
            def split(t):
                return t.view(1, 1, self.heads, self.size).transpose(1, 2)

            keys, values = getattr(self, f"keys{index}"), getattr(self, f"values{index}")
            keys.index_copy_(2, position, split(k(x)))
            values.index_copy_(2, position, split(v(x)))
            y = torch.nn.functional.scaled_dot_product_attention(split(q(x)), keys, values, attn_mask=seen)
            x = x + o(y.transpose(1, 2).reshape(1, 1, -1))
            x = torch.nn.functional.layer_norm(x + torch.nn.functional.gelu(f(x)), x.shape[-1:])
        return x


def decode(layers, tokens):
    capacity = 1 << max(tokens - 1, 0).bit_length()
    model = Decoder(layers, 12, 768, capacity).cuda().eval()
    for name, made in [("eager", model), ("torch.compile reduce-overhead", torch.compile(model, mode="reduce-overhead"))]:
        times = []
        with torch.inference_mode():
            for token in range(tokens):
                x = torch.rand(1, 1, 768, device="cuda")
                position = torch.tensor([token], device="cuda")
                torch.cuda.synchronize()
                start = time.perf_counter()
                made(x, position)
                torch.cuda.synchronize()
                if token >= tokens // 10:
                    times.append((time.perf_counter() - start) * 1e6)
        print(json.dumps({"case": "decode", "by": name, "step_us": statistics.median(times)}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()
    mlp(args.runs)
    decode(args.layers, args.tokens)


if __name__ == "__main__":
    main()
