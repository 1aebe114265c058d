"""Copies ONNX's light models and their stored outputs out of the `onnx` PyPI package.

    python scripts/py/light_outputs.py tests/data/light

NAME.onnx is copied as it is; NAME_output_0.pb becomes NAME.npz with the output under its name. The input that belongs
to the stored output is `arange(n) / n` in float64, rounded to float32, in the input's shape (onnx.backend.test.runner).
"""

import pathlib
import shutil
import sys

import numpy as np
import onnx
from onnx import numpy_helper

out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
source = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
for path in sorted(source.glob("*.onnx")):
    shutil.copyfile(path, out / path.name)
    name = onnx.load(path).graph.output[0].name
    tensor = onnx.TensorProto.FromString((source / f"{path.stem}_output_0.pb").read_bytes())
    np.savez(out / f"{path.stem}.npz", **{name: numpy_helper.to_array(tensor)})
    print(path.stem, name, list(tensor.dims))
