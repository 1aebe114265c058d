"""Checks the Markdown files that git tracks: every relative link and its anchor, the width of lines, the size of pages.

usage: links.py [ROOT]

A line may have 120 columns, but for tables.
"""

import re
import subprocess
import sys
from pathlib import Path

COLUMNS = 120
# Bytes that a page may have at most.
LIMITS = {"README.md": 9_216, "ARCHITECTURE.md": 15_360, "CHANGELOG.md": 4_096}
# The pages of the book that the summary need not name.
NOT_CHAPTERS = {"SUMMARY.md"}

LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)")
REFERENCE = re.compile(r"^\[[^\]]+\]:\s+(\S+)")


def without_code(text):
    """The text with blocks of code, and code within lines, blanked; line numbers stay."""
    lines, fence = [], None
    for line in text.splitlines():
        mark = re.match(r"\s*(`{3,}|~{3,})", line)
        if fence is None and mark:
            fence = mark.group(1)
            lines.append("")
        elif fence is not None:
            if mark and line.strip() == fence:
                fence = None
            lines.append("")
        else:
            lines.append(re.sub(r"(`+)(?!`).+?\1(?!`)", lambda code: "`" * len(code.group()), line))
    return lines


def anchor(heading):
    """The anchor of a heading, as GitHub and mdBook make it."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading))


def anchors(path):
    seen, found, inside = {}, set(), False
    for line in path.read_text().splitlines():
        if re.match(r"\s*(```|~~~)", line):
            inside = not inside
        elif not inside and (match := re.match(r"#{1,6}\s+(.*?)\s*#*$", line)):
            name = anchor(match.group(1))
            count = seen.get(name, 0)
            seen[name] = count + 1
            found.add(name if count == 0 else f"{name}-{count}")
    return found


def wrong_links(root, page):
    text = (root / page).read_text()
    for number, line in enumerate(without_code(text), 1):
        reference = REFERENCE.match(line)
        targets = [match.group(1) for match in LINK.finditer(line)] + ([reference.group(1)] if reference else [])
        for target in targets:
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            place, _, name = target.partition("#")
            path = (root / page).parent / place if place else root / page
            if not path.resolve().is_relative_to(root):
                yield f"{page}:{number}: {target} leads out of the repository"
            elif not path.exists():
                yield f"{page}:{number}: {target}: there is no such file"
            elif name and path.suffix == ".md" and name not in anchors(path):
                yield f"{page}:{number}: {target}: there is no such heading"


def wide_lines(root, page):
    for number, line in enumerate((root / page).read_text().splitlines(), 1):
        is_table = line.lstrip().startswith("|")
        if len(line) > COLUMNS and not is_table:
            yield f"{page}:{number}: {len(line)} columns; {COLUMNS} are the most"


def large_pages(root):
    for page, most in LIMITS.items():
        size = (root / page).stat().st_size
        if size > most:
            yield f"{page} has {size} bytes; {most} are the most: move details to docs/"


def forgotten_chapters(root):
    book = root / "docs/src"
    summary = (book / "SUMMARY.md").read_text()
    named = {(book / match.group(1)).resolve() for match in LINK.finditer(summary)}
    pages = [*book.rglob("*.md"), *(root / "docs/design").glob("*.md")]
    for page in pages:
        if page.name not in NOT_CHAPTERS and page.resolve() not in named:
            yield f"docs/src/SUMMARY.md does not name {page.relative_to(root)}"
    index = root / "docs/design/README.md"
    listed = {(index.parent / match.group(1)).resolve() for match in LINK.finditer(index.read_text())}
    for page in index.parent.glob("*.md"):
        if page != index and page.resolve() not in listed:
            yield f"docs/design/README.md does not name {page.relative_to(root)}"


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    files = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    pages = sorted({page for page in files.stdout.split("\0") if page and (root / page).is_file()})
    wrong = [*large_pages(root), *forgotten_chapters(root)]
    for page in pages:
        wrong += wrong_links(root, page)
        wrong += wide_lines(root, page)
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"links.py: {len(pages)} pages, {len(wrong)} faults")
    sys.exit(1 if wrong else 0)


main()
