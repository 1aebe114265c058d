"""Times onnxruntime on the CPU for one model and prints JSON.

    python scripts/py/bench_ort.py MODEL.onnx [--threads 2] [--runs 20] [--warmup 3] [--dim batch=1 --dim seq=128]
                                              [--inputs in.npz] [--save PREFIX]

    {"model", "onnxruntime", "threads", "runs", "median_ms", "min_ms", "load_ms", "inputs": {name: shape}}

Symbolic dims take the value of --dim, else 1. Without --inputs, floats are seeded uniform in [-1, 1), masks (names with
`mask`) are ones, and other integers are seeded in [1, 500), below every vocabulary.
--save writes PREFIX.in.npz and PREFIX.out.npz, so that another runtime can be checked on the same run.
"""

import argparse
import json
import statistics
import time

import numpy as np
import onnxruntime as ort

TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


def random_input(value, dims, generator):
    shape = [d if isinstance(d, int) else dims.get(d, 1) for d in value.shape]
    dtype = TYPES[value.type]
    if dtype is np.bool_ or "mask" in value.name:
        return np.ones(shape, dtype)
    if np.issubdtype(dtype, np.integer):
        return generator.integers(1, 500, shape, dtype)
    return generator.uniform(-1, 1, shape).astype(dtype)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--runs", type=int, default=20)
    arguments.add_argument("--warmup", type=int, default=3)
    arguments.add_argument("--dim", action="append", default=[], metavar="NAME=VALUE")
    arguments.add_argument("--inputs")
    arguments.add_argument("--save", metavar="PREFIX")
    options = arguments.parse_args()
    dims = {name: int(value) for name, value in (d.split("=", 1) for d in options.dim)}

    session_options = ort.SessionOptions()
    session_options.intra_op_num_threads = options.threads
    session_options.inter_op_num_threads = 1
    session_options.log_severity_level = 3
    start = time.perf_counter()
    session = ort.InferenceSession(options.model, session_options, providers=["CPUExecutionProvider"])
    load_ms = (time.perf_counter() - start) * 1e3
    if options.inputs:
        given = np.load(options.inputs)
        feeds = {value.name: given[value.name] for value in session.get_inputs()}
    else:
        generator = np.random.default_rng(0)
        feeds = {value.name: random_input(value, dims, generator) for value in session.get_inputs()}
    if options.save:
        names = [value.name for value in session.get_outputs()]
        np.savez(f"{options.save}.in.npz", **feeds)
        np.savez(f"{options.save}.out.npz", **dict(zip(names, session.run(names, feeds))))
    times = []
    for run in range(options.warmup + options.runs):
        start = time.perf_counter()
        session.run(None, feeds)
        if run >= options.warmup:
            times.append((time.perf_counter() - start) * 1e3)
    print(
        json.dumps(
            {
                "model": options.model,
                "onnxruntime": ort.__version__,
                "threads": options.threads,
                "runs": options.runs,
                "median_ms": round(statistics.median(times), 4),
                "min_ms": round(min(times), 4),
                "load_ms": round(load_ms, 1),
                "inputs": {name: list(value.shape) for name, value in feeds.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
