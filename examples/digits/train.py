"""Trains the digits model, exports it to ONNX, and writes the test set beside it.

    python examples/digits/train.py examples/digits        (torch, scikit-learn, onnx, onnxruntime; about 20 s)

A small convolutional network on scikit-learn's handwritten digits (8x8 grey images, 1,797 of them; every fifth of a
seeded shuffle, 360, is held out). Convolutions and batch norms are exported unfused, and the batch is symbolic, so that
the compiler has the folding and the dynamic size to do.
"""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime as ort
import torch
from sklearn.datasets import load_digits
from torch import nn

SEED = 7


def model():
    def block(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(1, 16),
        *block(16, 32),
        nn.MaxPool2d(2),
        *block(32, 32),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def main():
    out = pathlib.Path(sys.argv[1])
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(SEED).permutation(len(images))
    held_out = np.zeros(len(images), bool)
    held_out[order[::5]] = True
    train_x, train_y = torch.from_numpy(images[~held_out]), torch.from_numpy(labels[~held_out])
    test_x, test_y = images[held_out], labels[held_out]

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    network = model()
    epochs, batch = 30, 64
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-2)
    steps = epochs * -(-len(train_x) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    for _ in range(epochs):
        network.train()
        for index in torch.randperm(len(train_x)).split(batch):
            loss = nn.functional.cross_entropy(network(train_x[index]), train_y[index], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()

    network.eval()
    path = out / "digits.onnx"
    torch.onnx.export(
        network,
        (torch.from_numpy(test_x[:2]),),
        str(path),
        dynamo=False,
        opset_version=17,
        input_names=["x"],
        output_names=["logits"],
        dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}},
        training=torch.onnx.TrainingMode.PRESERVE,  # eval mode, but batch norms are not folded into the convolutions
        do_constant_folding=False,
    )
    ops = [node.op_type for node in onnx.load(path).graph.node]
    assert ops.count("BatchNormalization") == 3, ops
    logits = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(["logits"], {"x": test_x})[0]
    np.savez(out / "test.npz", x=test_x)
    np.savez(out / "expected.npz", logits=logits)
    np.savez(out / "labels.npz", labels=test_y)
    right = int((logits.argmax(1) == test_y).sum())
    margin = np.sort(logits, axis=1)
    print(ops)
    print(f"{right} of {len(test_y)} right ({right / len(test_y):.2%}); {path.stat().st_size} bytes")
    print(f"the closest call is decided by {float((margin[:, -1] - margin[:, -2]).min()):.4f}")


if __name__ == "__main__":
    main()
