"""Checks that every relative link, anchor, picture and {{#include}} in the guide and the READMEs leads somewhere,
that every page of the guide is in its table of contents, that the guide links to nothing outside the book, and
READMEs of crates to nothing outside their crate. Needs nothing but Python."""

import re
import sys
import unicodedata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
INCLUDE = re.compile(r"\{\{#(?:rustdoc_)?include\s+([^\s:}]+)(?::([^}\s]*))?\s*\}\}")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.M | re.S)


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("crates/*/*.md")]
    found += [*ROOT.glob("benches/**/*.md"), *ROOT.glob("assets/**/*.md"), *ROOT.glob("examples/**/*.md")]
    return sorted(p for p in found if "target" not in p.relative_to(ROOT).parts)


def prose(text: str) -> str:
    """The text without code, in which brackets and parentheses are no links."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def anchors(path: Path) -> set[str]:
    """The names that headings get."""
    names: set[str] = set()
    for line in FENCE.sub("", path.read_text()).splitlines():
        if heading := re.match(r"#{1,6}\s+(.*)", line):
            words = re.sub(r"[`*_\[\]]|\([^)]*\)(?=\s*$)", lambda m: m[0] if m[0].startswith("(") else "", heading[1])
            kept = (c for c in words.strip().lower() if c in " -_" or unicodedata.category(c)[0] in "LN")
            names.add("".join(kept).replace(" ", "-"))
    return names


def wrong(page: Path) -> list[str]:
    text = page.read_text()
    name = page.relative_to(ROOT)
    problems = []
    for target in LINK.findall(prose(text)):
        # Addresses elsewhere, and items of the crate that rustdoc looks up (and CI has it do so).
        if re.match(r"[a-z]+:/|[\w<>]+(::[\w<>]+)+(\(\))?$", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists():
            problems.append(f"{name}: {target} does not exist")
        elif ROOT not in (path, *path.parents):
            problems.append(f"{name}: {target} leaves the repository")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            problems.append(f"{name}: {target}: no such heading; there are {', '.join(sorted(anchors(path)))}")
        # A book knows its pages only.
        if name.parts[0] == "docs" and ROOT / "docs" not in path.parents:
            problems.append(f"{name}: {target} leaves the book")
        crate = name.parts[0] == "crates" and page.parent
        if crate and crate not in (path, *path.parents):
            problems.append(f"{name}: {target} is not in the crate's package")
    for file, part in INCLUDE.findall(text):
        path = (page.parent / file).resolve()
        if not path.is_file():
            problems.append(f"{name}: the included {file} does not exist")
        elif part and re.match(r"[a-z]", part) and f"ANCHOR: {part}" not in path.read_text():
            problems.append(f"{name}: {file} has no part {part}")
    return problems


def main() -> None:
    problems = [problem for page in pages() for problem in wrong(page)]
    summary = ROOT / "docs" / "SUMMARY.md"
    listed = {(summary.parent / link).resolve() for link in LINK.findall(summary.read_text())}
    for page in (ROOT / "docs").glob("**/*.md"):
        if page != summary and page not in listed:
            problems.append(f"docs/SUMMARY.md does not name {page.relative_to(ROOT / 'docs')}")
    if problems:
        sys.exit("\n".join(problems))
    print(f"links: {len(pages())} pages, all links, pictures and included files are there")


if __name__ == "__main__":
    main()
