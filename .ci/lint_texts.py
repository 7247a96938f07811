"""Part of `make lint`: words of the pages, entries of CHANGELOG.md, and subjects of commits that the main branch lacks."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST_MENU, ALL_PAGES = 40_000, 95_000
GROUPS = ("Operators", "Python", "Files", "Slurm")
LONGEST_ENTRY, LONGEST_SUBJECT = 160, 72
SUBJECT = re.compile(r"[\w.][\w./, -]*: \S")


def main() -> None:
    """Count the words of the first menu and of all pages, as `wc -w` does, and check the changelog and the subjects."""
    menus = re.split(r"^  - ", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2], flags=re.MULTILINE)
    first = [ROOT / "docs" / name for name in re.findall(r"[\w/-]+\.md", menus[1]) if name != "README.md"]
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    counted = [
        ("the first menu of mkdocs.yml with README.md", words([ROOT / "README.md", *first]), FIRST_MENU),
        ("all pages with README.md and CHANGELOG.md", words(pages), ALL_PAGES),
    ]
    for what, count, limit in counted:
        sys.stdout.write(f"{count:,} words of at most {limit:,}: {what}\n")
    faults = [f"CHANGELOG.md: {fault}" for fault in of_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))]
    faults += [f"commit {fault}" for fault in of_subjects(new_subjects(ROOT))]
    if any(count > limit for _, count, limit in counted):
        faults.append("too many words: shorten a page, or move one behind the first menu")
    sys.exit("\n".join(faults) or 0)


def words(pages: list[Path]) -> int:
    """Return how many words the pages have."""
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def of_changelog(text: str) -> Iterator[str]:
    """Yield what is wrong with the text of a changelog."""
    releases = re.findall(r"^## (.*)$", text, re.MULTILINE)
    if releases[:1] != ["Unreleased"] or not all(re.fullmatch(r"\d+\.\d+\.\d+.*", name) for name in releases[1:]):
        yield f"has the sections {', '.join(releases)}; Unreleased comes first, then the releases"
    group, released = "", False
    for number, line in enumerate(text.splitlines(), 1):
        released = released or re.match(r"## \d", line) is not None
        group = line.removeprefix("### ") if line.startswith("### ") else group
        if line.startswith("- ") and len(line) > LONGEST_ENTRY:
            yield f"line {number} has {len(line)} characters; an entry is one line of at most {LONGEST_ENTRY}"
        elif line.startswith("- ") and line in text.splitlines()[: number - 1]:
            yield f"line {number} repeats an entry"
        elif line.startswith("### ") and group not in GROUPS:
            yield f"line {number} is {line!r}; entries are grouped by those concerned: {', '.join(GROUPS)}"
        elif line.startswith("- ") and not (released or group):
            yield f"line {number} is an entry of no group; these are {', '.join(GROUPS)}"
        elif line.startswith(" "):
            yield f"line {number} continues an entry; an entry is one line"


def of_subjects(subjects: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong with subjects of commits."""
    for subject in subjects:
        if len(subject) > LONGEST_SUBJECT:
            yield f"{subject!r} has {len(subject)} characters; a subject has at most {LONGEST_SUBJECT}"
        if not SUBJECT.match(subject):
            yield f"{subject!r} does not say where; a subject is `area: what changes`"


def new_subjects(folder: Path) -> list[str]:
    """Return the subjects of commits that the main branch lacks, none where there is no such branch or no git."""
    command = ["git", "-C", str(folder), "log", "--no-merges", "--format=%s"]
    for main in ("origin/main", "main"):
        found = subprocess.run([*command, f"{main}..HEAD", "--"], capture_output=True, encoding="utf-8", check=False)
        if found.returncode == 0:
            return found.stdout.splitlines()
    return []


if __name__ == "__main__":
    main()
