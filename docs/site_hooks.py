"""Hooks of MkDocs and Griffe: pages that are written for a code host become pages of the site. Used by mkdocs.yml only.

- The home page is the README beside docs/; docs/README.md lists the pages for readers on a code host, where there is no menu.
- The tables that docs/site_tables.py has written stand where their markers are.
- A fenced block that names a file, as in ```csv jobs.csv, gets the name as its title.
- Links to files beside docs/ lead to copies in the site.
- In the gallery, the code of each example stands below the link to it.
- Doctests in docstrings become code blocks, and names of pages become links.
- Links of the built pages are followed: MkDocs checks those that it finds in Markdown, but not those that themes and hooks insert.
"""

from __future__ import annotations

import json
import logging
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from griffe import Extension, Object
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
FILES = ("NOTICE", "CITATION.cff", "Containerfile")
BESIDE = re.compile(rf"\]\(((?:\.\./)+)(examples/[\w./-]+|{'|'.join(map(re.escape, FILES))})\)")
MARKER = re.compile(r"^<!-- (?:table|options): .+ -->$", re.MULTILINE)
DOCTEST = re.compile(r"^>>> .*?(?=\n[ \t]*\n|\Z)", re.MULTILINE | re.DOTALL)
PAGE = re.compile(r"\bdocs/([\w/-]+)\.md(#[\w-]+)?")
SOURCE = re.compile(r"^\[`(examples/\w+\.py)`\]\([^)]+\)$", re.MULTILINE)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the files beside docs/ to which pages link."""
    for path in [*sorted((ROOT / "examples").iterdir()), *(ROOT / name for name in FILES)]:
        if path.is_file():
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Take the home page from the README, insert tables and examples, rewrite titles and links to files beside docs/."""
    if page.file.src_uri == "README.md":
        markdown = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
        markdown = re.sub(r"\[([^]]+)\]\(README\.md\)", r"\1", markdown)  # the list of pages, which is the menu here
    markdown = MARKER.sub(_table, markdown)
    markdown = SOURCE.sub(_with_code, markdown)
    markdown = re.sub(r"^```(\w+) ([\w.-]+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)
    return BESIDE.sub(lambda link: f"]({link[1].removeprefix('../')}{link[2]})", markdown)


def _table(marker: re.Match[str]) -> str:
    file = ROOT / "build" / "tables.json"  # read for each marker, so that `mkdocs serve` shows new ones
    tables = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if marker[0] not in tables:
        raise PluginError(f"there is no table for {marker[0]}; `make docs` and `python docs/site_tables.py` write it")
    return str(tables[marker[0]])


def _with_code(link: re.Match[str]) -> str:
    code = (ROOT / link[1]).read_text(encoding="utf-8").rstrip()
    block = "\n".join(["```python", *code.splitlines(), "```"])
    return f'{link[0]}\n\n??? example "The script"\n\n' + "\n".join(f"    {line}".rstrip() for line in block.splitlines())


def on_post_build(*, config: Any) -> None:
    """Warn of each link from a built page to a file or an anchor that is not there; with --strict, a warning is an error."""
    site = Path(config["site_dir"]).resolve()
    pages = {path: _Links(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for link in page.links:
            target = urlsplit(link)
            there = (site if target.path.startswith("/") else path.parent) / unquote(target.path).lstrip("/")
            there = (path if not target.path else there / "index.html" if there.is_dir() else there).resolve()
            if not there.exists() or (target.fragment and there in pages and unquote(target.fragment) not in pages[there].anchors):
                logging.getLogger("mkdocs.hooks").warning("%s: %s leads nowhere", path.relative_to(site), link)


class _Links(HTMLParser):
    """The links of a page to files of the site, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, _: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the anchor of an element, and where it leads."""
        named = {name: value for name, value in attrs if value}
        self.anchors |= {named[name] for name in ("id", "name") if name in named}
        self.links |= {named[name] for name in ("href", "src") if name in named and not re.match(r"\w+:|//", named[name])}


class Docstrings(Extension):
    """Puts doctests of docstrings between fences, so that they are not read as quotations, and makes links of names of pages."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of an object before its sections are parsed."""
        if obj.docstring is not None:
            text = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
            obj.docstring.value = PAGE.sub(
                r"[docs/\1.md](../\1.html\2)", text
            )  # what MkDocs inserts into a page is not searched for links
