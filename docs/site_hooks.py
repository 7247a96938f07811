"""Hooks of MkDocs and Griffe: pages that are written for a code host become pages of the site. Used by mkdocs.yml only.

- A fenced block that names a file, as in ```csv jobs.csv, gets the name as its title.
- Links to files beside docs/ lead to copies in the site.
- In the gallery, the code of each example stands below the link to it.
- Doctests in docstrings become code blocks, and names of pages become links.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
BESIDE = re.compile(r"\]\(((?:\.\./)+)(examples/[\w./-]+|NOTICE|LICENSE|CHANGELOG\.md)\)")
DOCTEST = re.compile(r"^>>> .*?(?=\n[ \t]*\n|\Z)", re.MULTILINE | re.DOTALL)
PAGE = re.compile(r"\bdocs/([\w/-]+)\.md")
SOURCE = re.compile(r"^\[`(examples/\w+\.py)`\]\([^)]+\)$", re.MULTILINE)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the files beside docs/ to which pages link."""
    for path in [*sorted((ROOT / "examples").iterdir()), ROOT / "NOTICE"]:
        if path.is_file():
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite titles of blocks and links to files beside docs/, and insert the code of examples."""
    markdown = SOURCE.sub(_with_code, markdown)
    markdown = re.sub(r"^```(\w+) ([\w.-]+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)
    return BESIDE.sub(lambda link: f"]({link[1].removeprefix('../')}{link[2]})", markdown)


def _with_code(link: re.Match[str]) -> str:
    code = (ROOT / link[1]).read_text(encoding="utf-8").rstrip()
    block = "\n".join(["```python", *code.splitlines(), "```"])
    return f'{link[0]}\n\n??? example "The script"\n\n' + "\n".join(f"    {line}".rstrip() for line in block.splitlines())


class Docstrings(Extension):
    """Puts doctests of docstrings between fences, so that they are not read as quotations, and makes links of names of pages."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of an object before its sections are parsed."""
        if obj.docstring is not None:
            text = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
            obj.docstring.value = PAGE.sub(
                r"[\g<0>](../\1.html)", text
            )  # what MkDocs inserts into a page is not searched for links
