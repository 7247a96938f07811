"""The documentation is true: its examples run, and its tables list what exists. `.ci/lint_pages.py` checks links and indices.

A fenced block whose info string names a file, as in ```csv jobs.csv, is written to that file before the examples of its page run.
"""

from __future__ import annotations

import doctest
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import gavel_py as gp
from gavel_py.cli import main
from tests.support.changes import changed_files
from tests.support.commands import enter_folder

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
PAGES = sorted([RESULTS, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
TABLES = runpy.run_path(str(ROOT / "docs" / "site_tables.py"))
NOT_RUN = {"docker", "eval", "git", "make", "pip", "python", "python3", "."}

ALWAYS = {ROOT / "README.md", *(ROOT / "docs").glob("for-*.md")}
"""Pages of which every run runs the examples; those of the others run under `deep`, and where the page has changed."""


def marks(page: Path) -> list[pytest.MarkDecorator]:
    changed = [pytest.mark.changed] if page.relative_to(ROOT).as_posix() in changed_files() else []
    return [pytest.mark.guard] if page in ALWAYS else [pytest.mark.deep, *changed]


def of(pages: Iterable[Path]) -> list[Any]:
    return [pytest.param(page, marks=marks(page), id=str(page.relative_to(ROOT))) for page in pages]


@dataclass(frozen=True)
class Block:
    """A fenced block: the number of its first line, its language, the rest of its info string, and its lines."""

    line: int
    language: str
    rest: str
    lines: list[str]


@dataclass(frozen=True)
class Command:
    """A command of a console block (a line that starts with "$ "): its place, expected exit code and output."""

    line: int
    words: list[str]
    code: int
    output: str


def blocks(text: str) -> Iterator[Block]:
    opened: Block | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if opened is None and (fence := re.match(r"```(\w*) *(.*)$", line)):
            opened = Block(number + 1, fence[1], fence[2].strip(), [])
        elif opened is not None and line == "```":
            yield opened
            opened = None
        elif opened is not None:
            opened.lines.append(line)
    assert opened is None, f"the block before line {opened.line} is never closed" if opened else ""


def commands(block: Block) -> Iterator[Command]:
    """Return the commands of a console block; a line that ends in a backslash is continued by the next one."""
    shown: list[tuple[int, str, list[str]]] = []
    joining = False
    for number, line in enumerate(block.lines, block.line):
        if joining:
            first, text, output = shown.pop()
            shown.append((first, text.removesuffix("\\") + line.strip(), output))
        elif line.startswith("$ "):
            shown.append((number, line.removeprefix("$ "), []))
        else:
            assert shown, f"line {number}: output of no command"
            shown[-1][2].append(line)
        joining = (joining or line.startswith("$ ")) and line.endswith("\\")
    for number, text, output in shown:
        code = re.search(r"# exit (\d+)$", text)
        words = shlex.split(text, comments=True)
        yield Command(number, words, int(code[1]) if code else 0, "\n".join(output).strip())


def run_as_user(command: Command, folder: Path) -> tuple[int, str]:
    """Run a `gavel` command in a new process, as a user would; return its exit code and its output."""
    surroundings = {"PYTHONPATH": str(Path(gp.__file__).parents[1]), "GAVEL_PY_STORE": str(folder / "store.sqlite")}
    done = subprocess.run(
        [sys.executable, "-m", "gavel_py", *command.words[1:]],
        cwd=folder,
        env=os.environ | surroundings | {"PYTHONIOENCODING": "utf-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    return done.returncode, done.stdout


def run_in_this_process(command: Command, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Run a `gavel` command in this process, which saves the time of imports; return its exit code and its output."""
    monkeypatch.setattr(sys, "argv", command.words)
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown), pytest.raises(SystemExit) as exit_:
        main()
    return int(exit_.value.code or 0), shown.getvalue()


def matches(shown: str, output: str) -> bool:
    """Return True if the output is as shown, where "..." matches any text, and white space any white space."""
    pieces = (re.escape(" ".join(piece.split())) for piece in shown.split("..."))
    return re.fullmatch(".*".join(pieces), " ".join(output.split())) is not None


def table(text: str) -> dict[str, list[str]]:
    """Return the rows of tables that start with a `name`, by that name."""
    rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines() if line.startswith("|"))
    return {row[0].strip("`"): row[1:] for row in rows if re.fullmatch(r"`[\w.]+`", row[0])}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a copy of the examples; modules that commands import from it are removed afterwards."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write_files(found: list[Block], folder: Path) -> None:
    files = [block for block in found if "." in block.rest]
    assert len({block.rest for block in files}) == len(files), "a file is shown twice"
    for block in files:
        (folder / block.rest).write_text("\n".join(block.lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("page", of(page for page in PAGES if "```console" in page.read_text(encoding="utf-8")))
def test_console_examples_show_what_happens(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_folder(folder, monkeypatch)
    found = list(blocks(page.read_text(encoding="utf-8")))
    write_files(found, folder)
    for command in (c for block in found if block.language == "console" for c in commands(block)):
        where = f"{page.relative_to(ROOT)}, line {command.line}"
        if command.words[0] in NOT_RUN:
            continue
        assert command.words[0] == "gavel", f"{where}: cannot run {command.words[0]!r}"
        code, output = run_as_user(command, folder) if page.name == "README.md" else run_in_this_process(command, monkeypatch)
        assert code == command.code, f"{where}: exit code {code}\n{output}"
        if command.output:
            assert matches(command.output, output), f"{where}: shows\n{command.output}\nbut this came out\n{output}"


@pytest.mark.parametrize("page", of(page for page in PAGES if ">>> " in page.read_text(encoding="utf-8")))
def test_python_examples_show_what_happens(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))  # as Python does where a user tries this
    write_files(list(blocks(page.read_text(encoding="utf-8"))), folder)
    assert doctest.testfile(str(page), module_relative=False, encoding="utf-8").failed == 0


def test_tables_say_what_the_code_declares() -> None:
    fields, options = TABLES["fields_table"], TABLES["options_table"]
    assert set(table(fields("Job"))) == set(gp.Job.model_fields)
    assert "| `min_gpus` | none | whole, 1 to 1,000,000 | Smallest number of GPUs, 1 by default, of" in fields("Job")
    assert "| `memory_gb` | none | GB, above 0 | Memory of one GPU; jobs that need more ([throughput-profiles](" in fields(
        "AcceleratorType"
    )
    assert "| `deadline` | `job` | none | text | " in fields("Constraint")
    assert "| `shares[].parent` | text or null | " in fields("TenantShare", "shares[].")
    assert "| `objective.gap` | number or null | \\|bound - value\\| " in fields("Allocation", "without", "jobs", "counts", "pairs")
    assert "(`new`: it has just arrived; `turn`: " in fields("DeliveryReport", "delivery.")
    assert "| `makespan_seconds` | s | makespan; from the first arrival to the end of the last job |" in fields("METRICS")
    with pytest.raises(LookupError, match="the docstring of Block does not explain line"):
        list(TABLES["_keys"](Block, ""))
    assert "| `preemptive` | true | true or false | " in options(["fifo"])
    assert "| `gandiva` | `seed` | 0 | a whole number | " in options(["fifo", "gandiva"])


def test_file_formats_has_every_key_of_an_allocation() -> None:
    page = TABLES["with_tables"]((ROOT / "docs" / "file-formats.md").read_text(encoding="utf-8"))
    named = set(re.findall(r"\b(\w+)`", "\n".join(line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `"))))
    problem = gp.AllocationProblem.from_arrays([[4, 1], [2, 1]], [1, 1], job_ids=["bert", "resnet"])
    document = gp.solve(problem, "max_min_fairness").to_dict()
    parts = (document, document["objective"], document["route"], *document["jobs"], *document["stages"])
    assert {key for part in parts for key in part} <= named


def test_the_page_on_citing_says_what_the_file_says() -> None:
    stated = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    (paper,) = stated["references"]
    page = (ROOT / "docs" / "cite.md").read_text(encoding="utf-8")
    names = [f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]]
    shown = [stated["title"], stated["version"], stated["license"], stated["authors"][0]["name"], stated["abstract"].rstrip(".")]
    shown += [paper["title"], paper["collection-title"], str(paper["year"]), paper["url"], " and ".join(names)]
    assert [each for each in shown if f"{{{each}}}" not in page] == []


@pytest.mark.deep
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_gallery_shows_what_each_script_prints(
    script: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"examples/{script.name}"
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    (shown,) = [command for block in blocks(text) for command in commands(block) if command.words == ["python", name]]
    assert f"[`{name}`](../{name})" in text
    assert re.search(r"\d", shown.output)
    assert "..." not in shown.output
    monkeypatch.chdir(folder)
    runpy.run_path(name, run_name="__main__")
    assert matches(shown.output, capsys.readouterr().out)
