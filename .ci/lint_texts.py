"""Part of `make lint`: the documentation stays short enough to be read. Counts words as `wc -w` does, of the sources."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST_MENU, ALL_PAGES = 40_000, 95_000


def main() -> None:
    """Count the words of the first menu, and of all pages."""
    menus = re.split(r"^  - ", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2], flags=re.MULTILINE)
    first = [ROOT / "docs" / name for name in re.findall(r"[\w/-]+\.md", menus[1]) if name != "README.md"]
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    counted = [
        ("the first menu of mkdocs.yml with README.md", words([ROOT / "README.md", *first]), FIRST_MENU),
        ("all pages with README.md and CHANGELOG.md", words(pages), ALL_PAGES),
    ]
    for what, count, limit in counted:
        sys.stdout.write(f"{count:,} words of at most {limit:,}: {what}\n")
    if any(count > limit for _, count, limit in counted):
        sys.exit("too many words: shorten a page, or move one behind the first menu")


def words(pages: list[Path]) -> int:
    """Return how many words the pages have."""
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


if __name__ == "__main__":
    main()
