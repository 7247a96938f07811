"""Part of `make lint`, by pytest: links of the pages have targets, and indices name what there is."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py import testing
from gavel_py.policies.constraints.compiling import KINDS
from gavel_py.testing.checks import CHECKS

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
PAGES = sorted([RESULTS, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TABLES = runpy.run_path(str(ROOT / "docs" / "site_tables.py"))


def sections(page: Path) -> dict[str, str]:
    """Return {heading: text}, without fenced blocks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"^#+ +(.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def anchor(heading: str) -> str:
    """Return the anchor of a heading on a forge."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    whole: str = TABLES["with_tables"](page.read_text(encoding="utf-8"))
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", whole, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        path, _, heading = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target} leads nowhere"
        if heading:
            assert heading in {anchor(title) for title in sections(there)}, f"{target}: there is no such heading"


@pytest.mark.parametrize("name", gp.policy_names())
def test_every_policy_has_its_section_and_its_row_of_the_table(name: str) -> None:
    policy, pages = gp.resolve_policy(name), ROOT / "docs" / "policies"
    page = {"sum": "sums.md"}.get(policy.family, f"{policy.family}.md")
    index = (pages / "README.md").read_text(encoding="utf-8")
    (needs,) = re.findall(rf"^\| \[`{name}`\]\({page}#{name}\) \| .+ \| .+ \| (.*)\|$", index, re.MULTILINE)
    assert ("steps" in needs) == ("steps_remaining" in policy.reads)
    assert (policy.agnostic_view == "reference") == ("steps" in needs or "prices" in needs)
    section = sections(pages / page)[name]
    assert "\nSource: " in section
    own = set(gp.policy_options(type(policy))) - set(gp.policy_options(gp.Policy))
    assert section.count(f"\n<!-- options: {name} -->\n") == bool(own)


def test_each_figure_on_performance_has_a_benchmark_with_results() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    results = RESULTS.read_text(encoding="utf-8")
    measured = re.findall(r"<!-- ([\w -]+): begin -->\n(.*?)<!-- \1: end -->", results, flags=re.DOTALL)
    assert [name for name, text in measured if not re.search(r"\d", text)] == []
    assert len(measured) == results.count(": begin -->")
    named = set(re.findall(r"`(\w+\.py)\b", page))
    assert len(named) >= 12
    assert named <= {path.name for path in RESULTS.parent.glob("*.py")}
    assert [name for name in sorted(named) if f"benchmarks/{name}" not in results] == []


def menu() -> str:
    return (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2].partition("\ntheme:")[0]


def test_the_index_of_pages_is_the_menu_of_the_site() -> None:
    index = re.findall(r"^- \[([^]]+)\]\(([\w/-]+\.md)\)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    shown = re.findall(r"^ *- ([^:\n]+): ([\w-]+\.md)$", menu(), re.MULTILINE)
    assert [(title, page) for title, page in index if "/" not in page] == shown
    assert sorted(page for _, page in index if "/" in page) == ["policies/README.md", "reference/README.md"]


def test_the_site_has_every_page_once() -> None:
    listed = re.findall(r"[\w/-]+\.md", menu())
    assert sorted(listed) == sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))


def test_the_reference_has_every_public_name_once() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md")]
    named = re.findall(r"^::: gavel_py\.([\w.]+)$", "\n".join(pages), re.MULTILINE)
    assert sorted(named) == sorted([*gp.__all__, *(f"testing.{name}" for name in testing.__all__)])


def test_every_constraint_is_explained() -> None:
    overview = sections(ROOT / "docs" / "constraints.md")["Constraints"]
    shown = dict(re.findall(r"^\| \[`(\w+)`\]\(#[\w-]+\) \| `(\w+)` \|", overview, flags=re.MULTILINE))
    assert shown == {cls.__name__: kind for kind, cls in KINDS.items()}


def test_the_page_on_architecture_names_existing_paths() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:gavel_py|tests)/[^`\s]*)`", text)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    modules = [path.as_posix() for folder in ("gavel_py", "tests") for path in (ROOT / folder).rglob("*.py")]
    shortened = set(re.findall(r"[\w/]+\.py\b", text))
    assert [name for name in sorted(shortened) if not any(module.endswith(f"/{name}") for module in modules)] == []


def test_the_page_on_architecture_says_which_file_to_open() -> None:
    text = sections(ROOT / "docs" / "architecture.md")["Where to look"]
    rows = re.findall(r"^\| (\w.*) \| (.*) \|$", text, flags=re.MULTILINE)[1:]
    assert len(rows) == 19
    assert [task for task, places in rows if "`gavel_py/" not in places] == []


def test_the_page_on_writing_policies_lists_every_check() -> None:
    text = sections(ROOT / "docs" / "writing-a-policy.md")["Checking it"]
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [check.name for check in CHECKS]
