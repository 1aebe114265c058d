"""Networks of the zoo that classify no images: speech, text, generation, volumes, recommendation, graphs.

`OTHERS` has, by name, what makes a network and, for a batch, its inputs by name. Weights are random; shapes are those of published networks of
the kind, with fewer layers where these repeat.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Vocoder(nn.Module):
    """A generator as HiFi-GAN's V1 (Kong et al., 2020): transposed convolutions, each followed by dilated residual blocks."""

    def __init__(self, width=512):
        super().__init__()
        self.first, self.ups, self.blocks = nn.Conv1d(80, width, 7, padding=3), nn.ModuleList(), nn.ModuleList()
        for rate, size in ((8, 16), (8, 16), (2, 4), (2, 4)):
            self.ups.append(nn.ConvTranspose1d(width, width // 2, size, rate, (size - rate) // 2))
            width //= 2
            one = lambda k, d: nn.Conv1d(width, width, k, dilation=d, padding=(k - 1) * d // 2)
            self.blocks.append(nn.ModuleList(nn.ModuleList(nn.ModuleList((one(k, d), one(k, 1))) for d in (1, 3, 5)) for k in (3, 7, 11)))
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, x):
        x = self.first(x)
        for up, blocks in zip(self.ups, self.blocks):
            x = up(F.leaky_relu(x, 0.1))
            total = 0
            for block in blocks:
                y = x
                for dilated, plain in block:
                    y = y + plain(F.leaky_relu(dilated(F.leaky_relu(y, 0.1)), 0.1))
                total = total + y
            x = total / len(blocks)
        return torch.tanh(self.last(F.leaky_relu(x)))


class SuperResolution(nn.Module):
    """EDSR's baseline (Lim et al., 2017): residual blocks of 64 channels, and pixels shuffled."""

    def __init__(self, width=64, blocks=16):
        super().__init__()
        conv = lambda a, b: nn.Conv2d(a, b, 3, padding=1)
        self.head, self.blocks = conv(3, width), nn.ModuleList(nn.Sequential(conv(width, width), nn.ReLU(), conv(width, width)) for _ in range(blocks))
        self.tail, self.up, self.last = conv(width, width), conv(width, 4 * width), conv(width, 3)

    def forward(self, x):
        x = self.head(x)
        y = x
        for block in self.blocks:
            y = y + block(y)
        return self.last(F.pixel_shuffle(self.up(x + self.tail(y)), 2))


class UNet(nn.Module):
    """U-Net (Ronneberger et al., 2015), in two or three dimensions."""

    def __init__(self, spatial, base, norm):
        super().__init__()
        conv, turned = (nn.Conv2d, nn.ConvTranspose2d) if spatial == 2 else (nn.Conv3d, nn.ConvTranspose3d)
        step = lambda a, b: nn.Sequential(conv(a, b, 3, padding=1), norm(b), nn.ReLU())
        double = lambda a, b: nn.Sequential(step(a, b), step(b, b))
        widths = [base * 2**i for i in range(4)]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([1] + widths, widths))
        self.bottom = double(widths[-1], 2 * widths[-1])
        self.turned = nn.ModuleList(turned(2 * w, w, 2, 2) for w in reversed(widths))
        self.up = nn.ModuleList(double(2 * w, w) for w in reversed(widths))
        self.last, self.pool = conv(base, 2, 1), F.max_pool2d if spatial == 2 else F.max_pool3d

    def forward(self, x):
        kept = []
        for block in self.down:
            kept.append(block(x))
            x = self.pool(kept[-1], 2)
        x = self.bottom(x)
        for turned, block in zip(self.turned, self.up):
            x = block(torch.cat((kept.pop(), turned(x)), 1))
        return self.last(x)


class Cross(nn.Module):
    def __init__(self, width, context, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(width, width, bias=False), nn.Linear(context, width, bias=False), nn.Linear(context, width, bias=False)
        self.o = nn.Linear(width, width)

    def forward(self, x, context):
        split = lambda t: t.view(t.shape[0], t.shape[1], self.heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(split(self.q(x)), split(self.k(context)), split(self.v(context)))
        return self.o(y.transpose(1, 2).reshape(x.shape))


class Diffusion(nn.Module):
    """A level of Stable Diffusion 1's U-Net: residual blocks with GroupNorm and SiLU, transformers with cross-attention, heads of 40."""

    def __init__(self, width=320, context=768, heads=8):
        super().__init__()
        self.first, self.second = nn.ModuleList(nn.GroupNorm(32, width) for _ in range(2)), nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm, self.enter, self.leave = nn.GroupNorm(32, width), nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Cross(width, width, heads), Cross(width, context, heads)
        self.gate, self.out = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x, context):
        y = x
        for norm, conv in zip(self.first, self.second):
            y = conv(F.silu(norm(y)))
        x = x + y
        batch, width, height, length = x.shape
        y = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        h = self.norms[0](y)
        y = y + self.own(h, h)
        y = y + self.cross(self.norms[1](y), context)
        h, gate = self.gate(self.norms[2](y)).chunk(2, -1)
        y = y + self.out(h * F.gelu(gate))
        return x + self.leave(y.transpose(1, 2).reshape(batch, width, height, length))


class ImageDecoder(nn.Module):
    """The upper half of an image decoder as latent diffusion has it: GroupNorm, SiLU, nearest neighbours, convolutions."""

    def __init__(self, widths=(256, 256, 128)):
        super().__init__()
        self.first = nn.Conv2d(4, widths[0], 3, padding=1)
        pairs = list(zip(widths, widths[1:] + widths[-1:]))
        self.norms = nn.ModuleList(nn.GroupNorm(32, a) for a, _ in pairs)
        self.convs = nn.ModuleList(nn.Conv2d(a, a, 3, padding=1) for a, _ in pairs)
        self.ups = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairs)
        self.norm, self.last = nn.GroupNorm(32, widths[-1]), nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, x):
        x = self.first(x)
        for norm, conv, up in zip(self.norms, self.convs, self.ups):
            x = x + conv(F.silu(norm(x)))
            x = up(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.last(F.silu(self.norm(x)))


class Recurrent(nn.Module):
    """A tagger: an embedding, recurrent layers in both directions, a layer of tags."""

    def __init__(self, kind, width=256):
        super().__init__()
        self.words = nn.Embedding(10000, width)
        self.layers, self.last = kind(width, width, 2, batch_first=True, bidirectional=True), nn.Linear(2 * width, 20)

    def forward(self, ids):
        return self.last(self.layers(self.words(ids))[0])


class Recommender(nn.Module):
    """DLRM (Naumov et al., 2019): tables looked up, products of all pairs, two networks."""

    def __init__(self, tables=26, width=64):
        super().__init__()
        mlp = lambda *w: nn.Sequential(*(layer for a, b in zip(w, w[1:]) for layer in (nn.Linear(a, b), nn.ReLU())))
        self.tables = nn.ModuleList(nn.Embedding(20000, width) for _ in range(tables))
        self.bottom, pairs = mlp(13, 512, 256, width), (tables + 1) * tables // 2
        self.top, self.last = mlp(width + pairs, 512, 256), nn.Linear(256, 1)
        rows, columns = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("at", rows * (tables + 1) + columns)

    def forward(self, x, ids):
        x = self.bottom(x)
        all = torch.stack([x] + [table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        pairs = (all @ all.transpose(1, 2)).flatten(1).index_select(1, self.at)
        return torch.sigmoid(self.last(self.top(torch.cat((x, pairs), 1))))


class RelativeEncoder(nn.Module):
    """T5's encoder (Raffel et al., 2019): a bias by distance that all layers share, RMS norms, no scale of scores."""

    def __init__(self, width=512, heads=8, layers=6, length=256):
        super().__init__()
        self.heads, self.words, self.bias = heads, nn.Embedding(32128, width), nn.Embedding(32, heads)
        make = lambda a, b: nn.ModuleList(nn.Linear(a, b, bias=False) for _ in range(layers))
        self.q, self.k, self.v, self.o, self.up, self.down = (make(*w) for w in [(width, width)] * 4 + [(width, 4 * width), (4 * width, width)])
        self.gains = nn.ParameterList(nn.Parameter(torch.rand(width) + 0.5) for _ in range(2 * layers))
        far = torch.arange(length)[None] - torch.arange(length)[:, None]
        self.register_buffer("bucket", (far.clamp(-15, 15) + 15))

    def norm(self, x, gain):
        wide = x.float()
        return gain * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    def forward(self, ids):
        x = self.words(ids)
        bias = self.bias(self.bucket).permute(2, 0, 1)[None]
        split = lambda t: t.view(t.shape[0], t.shape[1], self.heads, -1).transpose(1, 2)
        for i in range(len(self.q)):
            h = self.norm(x, self.gains[2 * i])
            scores = split(self.q[i](h)) @ split(self.k[i](h)).transpose(2, 3) * 0.125 + bias
            y = torch.softmax(scores.float(), -1).to(x.dtype) @ split(self.v[i](h))
            x = x + self.o[i](y.transpose(1, 2).reshape(x.shape))
            x = x + self.down[i](F.relu(self.up[i](self.norm(x, self.gains[2 * i + 1]))))
        return x


class Conformer(nn.Module):
    """Conformer's layers (Gulati et al., 2020) without relative positions: two half networks, attention, a depthwise convolution."""

    def __init__(self, width=256, heads=4, layers=4):
        super().__init__()
        half = lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
        self.first, self.second = nn.ModuleList(half() for _ in range(layers)), nn.ModuleList(half() for _ in range(layers))
        self.attention, self.norms = nn.ModuleList(Cross(width, width, heads) for _ in range(layers)), nn.ModuleList(nn.LayerNorm(width) for _ in range(3 * layers))
        self.enter, self.leave = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers)), nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.depth, self.batch = nn.ModuleList(nn.Conv1d(width, width, 31, padding=15, groups=width) for _ in range(layers)), nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))

    def forward(self, x):
        for i in range(len(self.first)):
            x = x + 0.5 * self.first[i](x)
            h = self.norms[3 * i](x)
            x = x + self.attention[i](h, h)
            h = F.glu(self.enter[i](self.norms[3 * i + 1](x).transpose(1, 2)), 1)
            x = x + self.leave[i](F.silu(self.batch[i](self.depth[i](h)))).transpose(1, 2)
            x = self.norms[3 * i + 2](x + 0.5 * self.second[i](x))
        return x


class Waves(nn.Module):
    """WaveNet's residual layers (van den Oord et al., 2016): causal dilated convolutions with a gate."""

    def __init__(self, width=64, layers=20):
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2 ** (i % 10)) for i in range(layers))
        self.mixed, self.last = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers)), nn.Conv1d(width, 256, 1)

    def forward(self, x):
        x, total = self.first(x), 0
        for i, (dilated, mixed) in enumerate(zip(self.dilated, self.mixed)):
            y = dilated(F.pad(x, (2 ** (i % 10), 0)))
            a, b = y.chunk(2, 1)
            y, skip = mixed(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            x, total = x + y, total + skip
        return self.last(F.relu(total))


class Graph(nn.Module):
    """A graph network of three layers: sources are gathered, messages are summed at their ends."""

    def __init__(self, width=128):
        super().__init__()
        self.own, self.others = (nn.ModuleList(nn.Linear(width, width) for _ in range(3)) for _ in range(2))

    def forward(self, x, edges):
        for own, others in zip(self.own, self.others):
            messages = others(x)[edges[0]]
            sums = (x * 0).scatter_add(0, edges[1][:, None].expand_as(messages), messages)
            x = F.relu(own(x) + sums)
        return x


class Field(nn.Module):
    """A radiance field (Mildenhall et al., 2020): sines of positions, eight layers of 256."""

    def __init__(self, width=256):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(60 if i == 0 else width + 60 * (i == 5), width) for i in range(8))
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        angles = torch.cat([x * (2.0**i) for i in range(10)], -1)
        start = torch.cat((torch.sin(angles), torch.cos(angles)), -1)
        y = start
        for i, layer in enumerate(self.layers):
            y = F.relu(layer(torch.cat((y, start), -1) if i == 5 else y))
        return self.last(y)


class Causal(nn.Module):
    """A decoder as GPT-2's, with its vocabulary, at one length; the mask is a constant that is read."""

    def __init__(self, width=768, heads=12, layers=6, length=512):
        super().__init__()
        self.heads, self.words, self.places = heads, nn.Embedding(50257, width), nn.Embedding(length, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        make = lambda a, b: nn.ModuleList(nn.Linear(a, b) for _ in range(layers))
        self.qkv, self.o, self.up, self.down = make(width, 3 * width), make(width, width), make(width, 4 * width), make(4 * width, width)
        self.register_buffer("mask", torch.tril(torch.ones(length, length, dtype=torch.bool))[None, None])

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[None]
        for i in range(len(self.qkv)):
            split = lambda t: t.view(t.shape[0], t.shape[1], self.heads, -1).transpose(1, 2)
            q, k, v = map(split, self.qkv[i](self.norms[2 * i](x)).chunk(3, -1))
            scores = (q @ k.transpose(2, 3)) * 0.125
            scores = torch.where(self.mask, scores, torch.finfo(scores.dtype).min)
            y = torch.softmax(scores, -1) @ v
            x = x + self.o[i](y.transpose(1, 2).reshape(x.shape))
            x = x + self.down[i](F.gelu(self.up[i](self.norms[2 * i + 1](x)), approximate="tanh"))
        return self.norms[-1](x) @ self.words.weight.T


class Dictionary(nn.Module):
    """A network of torchvision that gives a dictionary: its first entry."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return next(iter(self.model(x).values()))


def segmentation(name):
    import torchvision

    return Dictionary(torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=21))


def video(name):
    import torchvision

    return torchvision.models.get_model(name, weights=None)


randn, words = torch.randn, lambda limit, *shape: torch.randint(0, limit, shape)
batch_norm, group_norm = (nn.BatchNorm2d, lambda c: nn.GroupNorm(min(8, c), c))
OTHERS = {
    "vocoder": (Vocoder, lambda b: {"x": randn(b, 80, 200)}),
    "edsr": (SuperResolution, lambda b: {"x": randn(b, 3, 192, 192)}),
    "unet2d": (lambda: UNet(2, 32, batch_norm), lambda b: {"x": randn(b, 1, 256, 256)}),
    "unet3d": (lambda: UNet(3, 16, group_norm), lambda b: {"x": randn(b, 1, 64, 64, 64)}),
    "diffusion": (Diffusion, lambda b: {"x": randn(b, 320, 64, 64), "context": randn(b, 77, 768)}),
    "image_decoder": (ImageDecoder, lambda b: {"x": randn(b, 4, 64, 64)}),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda b: {"ids": words(10000, b, 64)}),
    "gru": (lambda: Recurrent(nn.GRU), lambda b: {"ids": words(10000, b, 64)}),
    "dlrm": (Recommender, lambda b: {"x": randn(b, 13), "ids": words(20000, b, 26)}),
    "t5_encoder": (RelativeEncoder, lambda b: {"ids": words(32128, b, 256)}),
    "conformer": (Conformer, lambda b: {"x": randn(b, 400, 256)}),
    "wavenet": (Waves, lambda b: {"x": randn(b, 1, 16000)}),
    "graph": (Graph, lambda b: {"x": randn(4096 * b, 128), "edges": words(4096 * b, 2, 32768 * b)}),
    "field": (Field, lambda b: {"x": randn(b * 1024, 3)}),
    "causal": (Causal, lambda b: {"ids": words(50257, b, 512)}),
    "deeplabv3": (lambda: segmentation("deeplabv3_mobilenet_v3_large"), lambda b: {"x": randn(b, 3, 512, 512)}),
    "lraspp": (lambda: segmentation("lraspp_mobilenet_v3_large"), lambda b: {"x": randn(b, 3, 512, 512)}),
    "r3d": (lambda: video("r3d_18"), lambda b: {"x": randn(b, 3, 16, 112, 112)}),
    "s3d": (lambda: video("s3d"), lambda b: {"x": randn(b, 3, 16, 224, 224)}),
}
