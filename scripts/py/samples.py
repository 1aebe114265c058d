"""Runs the commands that the documents show, and compares what they print with what is shown.

usage: samples.py BINARIES_FOLDER PAGE...

A block ```console has commands behind `$ ` and, below each, what it prints on its standard output:

- ```console: each command that begins with `graphc` or `graphc-llm` is run, must succeed, and prints the lines that are
  shown, in their order. A line `…` stands for any lines. Numbers with a point are not compared, since times and errors
  differ, nor are those of a row of a table (four whole numbers or more). Other whole numbers must agree.
- ```console,ignore-output: each such command is run and must succeed.
- ```console,no_run: nothing is run, because it wants a network, minutes or a file that is not there.
- ```console,hip: run by tests/tests/devices/samples.rs, on an emulated GPU behind HIP's functions.
- ```console,cuda: run where an NVIDIA GPU is.

Other commands (cargo, scripts) are not run. The commands of one block run in one copy of the repository's sample files.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# What the commands may read, of the repository.
COPIED = ["examples/digits", "tests/data/llm"]
SECONDS = 300


class Command:
    def __init__(self, place, text):
        self.place, self.text, self.shown = place, text, []

    def is_ours(self):
        words = [word for word in self.text.split() if not re.fullmatch(r"[A-Z_]+=\S*", word)]
        return bool(words) and words[0] in ("graphc", "graphc-llm")


def blocks(page):
    """Yields the words behind ``` and the commands of each block of console."""
    kinds = commands = None
    for number, line in enumerate(Path(page).read_text().splitlines(), 1):
        if kinds is None:
            if line.startswith("```console"):
                kinds, commands = line[3:].split(","), []
            continue
        if line == "```":
            yield kinds, commands
            kinds = None
        elif line.startswith("$ "):
            commands.append(Command(f"{page}:{number}", line[2:]))
        elif commands and commands[-1].text.endswith("\\") and not commands[-1].shown:
            commands[-1].text += f"\n{line}"
        elif commands:
            commands[-1].shown.append(line)
        else:
            sys.exit(f"{page}:{number}: this is shown before the first command")
    if kinds is not None:
        sys.exit(f"{page}: a block has no end")


# Numbers that are no part of a name (`gfx90a`, `f32`): measured ones, which have a point or a unit's letter, and whole
# ones.
MEASURED = re.compile(r"(?<![A-Za-z_0-9.])[-+]?\d+(?:\.\d+(?:e[-+]?\d+)?[kMG]?|e[-+]?\d+|[kMG])(?![A-Za-z_0-9])")
WHOLE = re.compile(r"(?<![A-Za-z_0-9.#])\d+(?![A-Za-z_0-9])")
# A line with so many whole numbers is a row of a table of measurements: registers and counters, which compilers change.
ROW = 4


def masked(line):
    """The line with `#` for each number that may differ, and one blank for several."""
    line = MEASURED.sub("#", line)
    if len(WHOLE.findall(line)) >= ROW:
        line = WHOLE.sub("#", line)
    return " ".join(line.split())


def not_printed(shown, printed):
    """Returns the lines that are shown and are not printed behind those before them."""
    lines = [masked(line) for line in printed.splitlines()]
    missing, start, any_lines = [], 0, True
    for line in shown:
        if line.strip() in ("…", ""):
            any_lines = True
            continue
        wanted = masked(line)
        try:
            at = next(i for i in range(start, len(lines)) if lines[i] == wanted or not lines[i] and not wanted)
        except StopIteration:
            missing.append(line)
            continue
        between = [text for text in lines[start:at] if text]
        if between and not any_lines:
            missing.append(f"{line}   (printed behind lines that are not shown: write … there)")
        start, any_lines = at + 1, False
    return missing


def found(binaries):
    """What `graphc doctor` finds: the names of libraries, and cuda where an NVIDIA GPU is."""
    command = [binaries / "graphc", "doctor", "--format", "json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads(result.stdout)
    names = {library["name"] for library in report["libraries"] if library["found"]}
    devices = subprocess.run([binaries / "graphc", "targets", "--devices"], capture_output=True, text=True, check=False)
    return names | ({"cuda"} if "cuda:0" in devices.stdout else set())


def wanted(kinds, command):
    """What a command needs that may not be there: a compiler, a GPU."""
    if "cuda" in kinds:
        return "cuda"
    return "hiprtc" if re.search(r"gfx\d", command.text) else None


def main():
    binaries = Path(sys.argv[1]).resolve()
    here, ran, skipped, wrong = found(binaries), 0, 0, []
    for page in sys.argv[2:]:
        for kinds, commands in blocks(page):
            if {"no_run", "hip"} & set(kinds):
                continue
            with tempfile.TemporaryDirectory() as folder:
                for name in COPIED:
                    shutil.copytree(name, Path(folder) / name)
                environment = {k: v for k, v in os.environ.items() if not k.startswith("GRAPHC_") or k == "GRAPHC_ROCM"}
                environment["PATH"] = f"{binaries}:{environment['PATH']}"
                for command in filter(Command.is_ours, commands):
                    need = wanted(kinds, command)
                    if need and need not in here:
                        skipped += 1
                        print(f"skipped: no {need} here: {command.place}: {command.text}")
                        continue
                    ran += 1
                    try:
                        result = subprocess.run(
                            ["bash", "-c", command.text], cwd=folder, env=environment, capture_output=True,
                            timeout=SECONDS, stdin=subprocess.DEVNULL, check=False,
                        )  # fmt: skip
                    except subprocess.TimeoutExpired:
                        wrong.append(f"{command.place}: {command.text}: took more than {SECONDS} s")
                        continue
                    out, err = (text.decode(errors="replace") for text in (result.stdout, result.stderr))
                    missing = [] if "ignore-output" in kinds else not_printed(command.shown, out)
                    if result.returncode != 0 or missing:
                        wrong.append(
                            f"{command.place}: {command.text}: exit code {result.returncode}; not printed:\n"
                            + "\n".join(f"  {line}" for line in missing)
                            + f"\n{out[-3000:]}{err[-1000:]}"
                        )
    for text in wrong:
        print(text, file=sys.stderr)
    print(f"samples.py: {ran} commands run, {skipped} skipped, {len(wrong)} wrong")
    sys.exit(1 if wrong else 0)


main()
