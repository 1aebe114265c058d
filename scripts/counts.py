#!/usr/bin/env python3
"""Counts what should become fewer, and fails when a count has risen above its limit.

usage: scripts/counts.py [--list NAME]

Limits are the numbers of `LIMITS`: a change that lowers a count lowers its limit in the same commit. `--list` prints the
places behind a count, one a line. Files that git ignores do not count; tests are files and folders named so, and modules
under `#[cfg(test)]` at a file's end.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 120

# name -> (limit, what it counts)
LIMITS = {
    "affine analyses": (11, "analyses of where an element lies, beside `Access`"),
    "kernel-or-library choices": (6, "files that decide between a kernel and a library's call, beside `choose`"),
    "fuse callers": (4, "calls of `fuse::fuse` outside scheduling"),
    "long functions": (61, "functions of more than 100 lines"),
    "many parameters": (22, "functions of 8 parameters or more"),
    "long files": (56, "Rust files of more than 600 lines"),
    "long lines": (26, f"lines of more than {COLUMNS} columns in Rust, but for text tables and string literals"),
    "middle lines": (79246, "lines of code (no comments) of ir, passes, codegen-* and runtime/src/cpu"),
}

# Where an element lies is worked out in each of these: a pattern, and the file where it is defined.
AFFINE = [
    ("passes/src/lower/index", r"struct Linear\b"),
    ("passes/src/analysis/index", r"struct Affine\b"),
    ("ir/src/kernel/access", r"struct Motions\b"),
    ("ir/src/kernel/bounds/form", r"struct Form\b"),
    ("ir/src/kernel/verify/form", r"struct Form\b"),
    ("ir/src/kernel/traffic", r"fn "),
    ("ir/src/kernel/operand", r"struct OperandAccess\b"),
    ("ir/src/kernel/mod", r"struct ConvFacts\b"),
    ("ir/src/host/affine", r"struct Affine\b"),
    ("codegen-cpu/src/affine", r"fn "),
    ("codegen-hip/src/index", r"fn "),
]
CHOICES = [
    ("passes/src", r"fn call_wins\b"),
    ("passes/src", r"fn reopen\b"),
    ("passes/src/plan/engines", r"fn "),
    ("passes/src/route/sized", r"pub(?:\([a-z]+\))? fn "),
    ("passes/src/egraph/rules/epilogue", r"Spec|Recognizer"),
    ("passes/src/plan/convolutions", r"fuse::"),
]


def tracked():
    """The files that a commit of everything would have: new ones count before they are added."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.rs"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    return sorted({Path(p) for p in out.decode().split("\0") if p and (ROOT / p).exists()})


def is_test(path):
    return any(p in ("tests", "testing", "benches", "fuzz", "examples", "fixtures") for p in path.parts) or re.search(
        r"(^|[_/])(tests?|testing\w*)\.rs$", path.as_posix()
    )


def is_generated(path):
    return path.name.endswith("bindings.rs") and "sys" in path.as_posix()


def production(lines):
    """The lines before the module of tests at a file's end."""
    for at, line in enumerate(lines):
        if line.startswith("#[cfg(test)]") and at + 1 < len(lines) and re.match(r"(pub )?mod \w+ \{", lines[at + 1]):
            return lines[:at]
    return lines


def functions(lines):
    """(first line, number of lines, number of parameters) of each function, as rustfmt lays them out."""
    words = r"(?:default )?(?:const )?(?:async )?(?:unsafe )?(?:extern \"[^\"]*\" )?"
    start = re.compile(r"^(\s*)(?:pub(?:\([^)]*\))? )?" + words + r"fn \w+")
    for at, line in enumerate(lines):
        m = start.match(line)
        if not m:
            continue
        close = m.group(1) + "}"
        text, end = line, at
        while not text.rstrip().endswith((";", "{", "}")) and end + 1 < len(lines):
            end += 1
            text += " " + lines[end].strip()
        count = parameters(text)
        if text.rstrip().endswith("{"):
            end = next((i for i in range(end, len(lines)) if lines[i] == close), at)
        yield at + 1, end - at + 1, count


def parameters(signature):
    depth, count, some, opened = 0, 0, False, False
    text = signature.replace("->", "  ").replace("=>", "  ")
    # The parameters' parenthesis is the first one outside of angle brackets.
    i = re.search(r"fn \w+", text).end()
    while i < len(text):
        c = text[i]
        if c in "(<[":
            if c == "(" and depth == 0 and not opened:
                opened = True
                depth, some = 1, False
                i += 1
                continue
            depth += 1
        elif c in ")>]":
            depth -= 1
            if opened and depth == 0:
                return count + (1 if some else 0)
        elif opened and depth == 1 and c == ",":
            count += 1 if some else 0
            some = False
            i += 1
            continue
        if opened and not c.isspace():
            some = True
        i += 1
    return count


def places():
    found = {name: [] for name in LIMITS}
    for path in tracked():
        lines = (ROOT / path).read_text(encoding="utf-8").split("\n")
        if is_generated(path):
            continue
        name = path.as_posix()
        if len(lines) - 1 > 600:
            found["long files"].append(f"{name}: {len(lines) - 1}")
        for at, line in enumerate(lines):
            if len(line) > COLUMNS and re.match(r"\s*//", line) and not re.match(r"\s*//[/!]? \|", line):
                found["long lines"].append(f"{name}:{at + 1}")
        if is_test(path):
            continue
        code = production(lines)
        for at, length, count in functions(code):
            if length > 100:
                found["long functions"].append(f"{name}:{at}: {length} lines")
            # The stand-in's functions have the parameters of HIP's own.
            if count >= 8 and not name.startswith("emu/hip/src/api/"):
                found["many parameters"].append(f"{name}:{at}: {count} parameters")
        top = path.parts[0]
        if top in ("ir", "passes", "codegen-hip", "codegen-cpu") or name.startswith("runtime/src/cpu/"):
            found["middle lines"].extend([name] * sum(1 for line in code if re.match(r"\s*(?!//)\S", line)))
        if top == "passes" and "fuse" not in path.parts and name != "passes/src/schedule.rs":
            for at, line in enumerate(code):
                if re.search(r"\bfuse::fuse\w*\(", line):
                    found["fuse callers"].append(f"{name}:{at + 1}")
        for kind, table in (("affine analyses", AFFINE), ("kernel-or-library choices", CHOICES)):
            for under, pattern in table:
                if name.startswith(under) and any(re.search(pattern, line) for line in code):
                    found[kind].append(f"{name}: {pattern}")
    return found


def main():
    found = places()
    if sys.argv[1:2] == ["--list"]:
        print("\n".join(found[sys.argv[2]]))
        return 0
    risen = False
    for name, (limit, meaning) in LIMITS.items():
        count = len(found[name])
        note = ""
        if count > limit:
            note, risen = f"   RISEN above {limit}: scripts/counts.py --list {name!r}", True
        elif count < limit:
            note = f"   (limit {limit}: lower it)"
        print(f"{count:7}  {name:26} {meaning}{note}")
    return 1 if risen else 0


sys.exit(main())
