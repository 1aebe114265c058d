"""Prints docs/src/reference.md: every flag, variable and target, as the binaries and the code have them.

usage: reference.py BINARIES_FOLDER OPTIONS_RS NAMED_RS OPS_FOLDER
"""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

# A verb that stands behind another one is two words.
VERBS = [
    "run", "compile", "inspect", "explain", "opt", "bench", "profile", "quantize", "report",
    "tune run", "tune merge", "tune show", "verify", "targets", "doctor",
]  # fmt: skip
LLM_VERBS = ["generate", "chat", "serve", "bench", "perplexity", "inspect"]

# Columns of a line of prose.
WIDTH = 118

# An option that so many verbs have with the same text is listed once, in a table of its own.
SHARED = 4

HEAD = """# Reference of flags and variables

<!-- Made by scripts/reference.sh of the binaries' --help and graphc/src/options.rs. Change those, and run it again. -->

Every verb prints the same with `--help`. A flag goes before a variable, and a variable before a default.
"""


def printed(binary, words):
    """Returns the output of a command that must succeed."""
    result = subprocess.run([binary, *words], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"reference.py: {' '.join([str(binary), *words])} failed:\n{result.stderr}")
    return result.stdout


class Help:
    """The parts of one `--help`: what the verb does, its usage, and its arguments and options with their texts."""

    def __init__(self, text):
        head, _, rest = text.partition("\nUsage: ")
        paragraphs = [" ".join(paragraph.split()) for paragraph in head.strip().split("\n\n") if paragraph]
        self.about = [textwrap.fill(text, WIDTH, break_long_words=False) for text in paragraphs]
        self.usage = rest.splitlines()[0]
        self.arguments = entries(section(rest, "Arguments"))
        # Options may stand under headings of their own.
        names = [name for name in headings(rest) if name not in ("Arguments", "Commands")]
        self.options = [entry for name in names for entry in entries(section(rest, name))]

    def without_help(self):
        return [(spec, text) for spec, text in self.options if not spec.startswith(("-h", "-V"))]


def headings(text):
    return re.findall(r"^([A-Z][\w ]*):$", text, re.MULTILINE)


def section(text, name):
    """Returns the lines of `name:` up to the next line that is not indented."""
    lines, inside = [], False
    for line in text.splitlines():
        if line and not line.startswith(" "):
            inside = line == f"{name}:"
        elif inside:
            lines.append(line)
    return lines


def entries(lines):
    """Reads both of clap's layouts: texts beside the options, and texts below them."""
    found = []
    for line in lines:
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if stripped and indent < 8 and stripped[0] in "-<[":
            spec, _, text = re.sub(r" {2,}", "\0", stripped).partition("\0")
            found.append([spec, text])
        elif stripped and found:
            found[-1][1] = f"{found[-1][1]} {stripped}".strip()
    return [(spec, tidy(text)) for spec, text in found]


def tidy(text):
    text = re.sub(r"\s+", " ", text).replace("|", "\\|")
    # A list of values that have texts of their own.
    text = re.sub(r"\.? Possible values: - ", ". Possible values: ", text)
    text = re.sub(r" - (\S+:) ", r"; \1 ", text)
    text = re.sub(r"<([A-Za-z_=.]+)>", r"`<\1>`", text)
    return text


def table(rows, head):
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def verbs(binary, names, title, heading):
    """One tool's part of the page."""
    helps = {name: Help(printed(binary, [*name.split(), "--help"])) for name in names}
    users = {}
    for name, one in helps.items():
        for entry in one.without_help():
            users.setdefault(entry, []).append(name)
    shared = {entry: by for entry, by in users.items() if len(by) >= SHARED}
    parts = [f"## {heading}"]
    for name, one in helps.items():
        parts.append(f"### {title} {name}")
        parts += one.about
        wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        usage = wrapper.fill(one.usage)
        parts.append(f"```text\n{usage}\n```")
        own = [(f"`{spec}`", text) for spec, text in one.arguments]
        own += [(f"`{spec}`", text) for spec, text in one.without_help() if (spec, text) not in shared]
        if own:
            parts.append(table(own, ["argument or option", "meaning"]))
    parts.append(f"### Options that several verbs of {title} share")
    every = len(helps)
    rows = [
        (f"`{spec}`", text, "all" if len(by) == every else ", ".join(f"`{name}`" for name in by))
        for (spec, text), by in shared.items()
    ]
    parts.append(table(rows, ["option", "meaning", "verbs"]))
    return parts


def variables(source):
    """The table in the documentation of options.rs."""
    lines = [line[4:] for line in source.splitlines() if line.startswith("//! |")]
    return "\n".join(lines)


def keys(source):
    """The options of sessions that C, Python and files of settings name by texts: graphc/src/session/named.rs."""
    pattern = r'(?:key|setting!)\(\s*"([^"]+)",\s*(?:"GRAPHC_[A-Z_]+",\s*)?"([^"]+)"'
    return table([(f"`{name}`", about) for name, about in re.findall(pattern, source)], ["option", "meaning"])


def operators(folder):
    """The rows of the importer's tables, by domain: frontend/src/onnx/ops."""
    text = "\n".join(path.read_text() for path in sorted(folder.glob("*.rs")) if path.stem != "tests")
    domains = [("op|withdrawn", "ONNX"), ("microsoft", "`com.microsoft`"), ("learned", "`ai.onnx.ml`")]
    rows = []
    for words, domain in domains:
        names = sorted(set(re.findall(rf'\b(?:{words})\(\s*"(\w+)"', text)))
        rows.append((domain, ", ".join(names)))
    return table(rows, ["domain", "operators"])


def targets(binary):
    rows = []
    for target in json.loads(printed(binary, ["targets", "--format", "json"])):
        also = ", ".join(target["aliases"]) or (f"code for {', '.join(target['serves'])}" if target["serves"] else "")
        rows.append((f"`{target['name']}`", target["product"], also))
    return table(rows, ["target", "product", "also called, or serves"])


def main():
    binaries, options, named, operator_tables = map(Path, sys.argv[1:5])
    graphc = binaries / "graphc"
    parts = [HEAD.rstrip()]
    parts += verbs(graphc, VERBS, "graphc", "Verbs of graphc")
    parts += verbs(binaries / "graphc-llm", LLM_VERBS, "graphc-llm", "Verbs of graphc-llm")
    parts += ["## Variables", variables(options.read_text())]
    parts.append(
        "graphc names any other variable that begins with `GRAPHC_` in a warning, unless the stand-in HIP runtime\n"
        "(`emu/hip/README.md`) or graphc's own tests read it."
    )
    parts += ["## Options of sessions in C and Python", keys(named.read_text())]
    parts.append(
        "## ONNX operators\n\n"
        "The importer also runs `If`, `Loop`, `Scan` and `SequenceMap`, and a model's own functions. It refuses any\n"
        "other operator by its name, with those that are near."
    )
    parts.append(operators(operator_tables))
    parts.append("## Targets\n\n`--target` takes a target's name, or a product's: `--target rx7800xt,mi300x`.")
    parts.append(targets(graphc))
    print("\n\n".join(parts))


main()
