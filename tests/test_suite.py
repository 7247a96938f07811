"""The suite itself: it draws the same examples everywhere, and says why it skips."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.faults.play import Fault, played, read_faults
from tests.support import costs
from tests.support.changes import packages_of
from tests.support.skips import lines_of_skips

ROOT = Path(__file__).resolve().parents[1]

DRAWN = """
import sys
from hypothesis import given, settings, strategies as st
from tests.support.examples import CHARACTERS, fix_constants, register_profiles

register_profiles()
if sys.argv[1:] == ["product"]:
    import gavel_py
    gavel_py.RoundScheduler  # of which Hypothesis would draw the constants
fix_constants()
drawn = []

@given(st.tuples(st.integers(), st.floats(), st.text(CHARACTERS)))
def draw(values):
    drawn.append(values)

draw()
print(len(drawn), drawn)
"""


def drawn(*words: str, ci: bool) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | ({"CI": "true"} if ci else {})
    command = [sys.executable, "-c", DRAWN, *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.deep
def test_everybody_draws_the_same_examples() -> None:
    here = drawn(ci=False)
    assert here.startswith("20 ")
    assert drawn(ci=True) == here
    assert drawn("product", ci=False) == here


def test_texts_are_drawn_from_characters_that_are_named() -> None:
    """Else hypothesis looks for them (`CHARACTERS`), which made one small test the largest process of all."""
    unnamed = re.compile(r"\bst\.text\((\w+=|\))")
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    assert [str(path) for path, text in sources.items() if "hypothesis" in text and re.search(unnamed, text)] == []


def test_the_closing_lines_say_why_tests_were_skipped() -> None:
    skipped = [("a.py", 1, "Skipped: no Slurm"), ("b.py", 2, "Skipped: no data"), ("c.py", 7, "Skipped: no Slurm")]
    assert lines_of_skips(skipped) == ["3 skipped:", "     2  no Slurm", "     1  no data"]
    assert lines_of_skips([]) == []


@pytest.mark.deep
def test_seeded_faults_are_noticed_or_named(tmp_path: Path) -> None:
    """Of a module with one test: what the test notices, what it does not, what no longer applies, and what is not tested at all."""
    (tmp_path / "halves.py").write_text("def half(x):\n    return x / 2\n")
    (tmp_path / "test_halves.py").write_text("from halves import half\n\ndef test_two():\n    assert half(4) == 2\n")
    made = {
        "name": "it",
        "wrong": "",
        "file": "halves.py",
        "before": "x / 2",
        "after": "x / 3",
        "tests": ["test_halves.py::test_two"],
    }
    assert played(tmp_path, Fault(**made)) == "noticed"
    assert played(tmp_path, Fault(**made | {"after": "x - 2"})) == "NOT NOTICED"
    moved = played(tmp_path, Fault(**made | {"before": "x / 4"}))
    assert moved == "NO LONGER APPLIES: its text is 0 times in halves.py; make the same fault in the code of today"
    assert played(tmp_path, Fault(**made | {"tests": ["test_halves.py::test_three"]})).startswith("NO TEST RAN: ")
    assert (tmp_path / "halves.py").read_text() == "def half(x):\n    return x / 2\n"


def test_every_seeded_fault_can_be_played() -> None:
    """Its name is its own, its text stands once in its file, and the tests that have to notice it exist."""
    faults = read_faults()
    assert len({fault.name for fault in faults}) == len(faults) > 50
    problems = {fault.name: problem for fault in faults if (problem := fault.problem(ROOT))}
    for fault in faults:
        for test in fault.tests:
            file, *names = test.partition("[")[0].split("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            if not all(re.search(rf"(def|class) {name}\b", text) for name in names):
                problems[fault.name] = f"there is no test {test}"
    assert not problems


def test_packages_that_differ_are_those_of_their_files() -> None:
    packages = {"policies", "slurm", "io", "end_to_end"}
    files = ["gavel_py/policies/fifo.py", "gavel_py/integrations/slurm/turns.py", "docs/io.md", "tests/end_to_end/test_cli.py"]
    assert packages_of(files, packages) == {"policies", "slurm", "end_to_end"}
    assert packages_of(["README.md"], packages) == set()
    assert packages_of(["requirements/dev.txt"], packages) == packages


class Reporter:
    """What a budget needs of pytest's plugins: the lines that it prints."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def get_plugin(self, _: str) -> Reporter:
        return self

    def write_line(self, line: str) -> None:
        self.lines.append(line)


def finished(test: str, seconds: float, *marks: str) -> Any:
    return SimpleNamespace(
        nodeid=test, when="teardown", failed=False, keywords=dict.fromkeys(marks), user_properties=[("cost", (seconds, 0))]
    )


@pytest.mark.parametrize(("alone", "code"), [(1.9, pytest.ExitCode.OK), (2.1, pytest.ExitCode.TESTS_FAILED)])
def test_a_budget_counts_units_and_fails_for_a_test_that_is_too_long_twice(
    alone: float, code: pytest.ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "cost_alone", lambda _: 0.5 * alone)
    reporter = Reporter()
    budget = costs.Budget(reporter, deep=False, enforced=True)  # type: ignore[arg-type]
    budget.budgets = {"policies": 5.0, "io": 4.0}
    budget.outputs = [{"unit": 0.4, "peak": 300}, {"unit": 0.6, "peak": 200}]
    tests = {"tests/policies/a.py::test_1": 1.5, "tests/policies/a.py::test_2": 1.0, "tests/io/b.py::test_3": 0.5}
    budget.begin([*tests, "tests/io/b.py::test_4"], 2)
    for test, seconds in tests.items():
        budget.pytest_runtest_logreport(finished(test, seconds))
    budget.pytest_runtest_logreport(finished("tests/io/b.py::test_4", 9.0, "deep"))
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    budget.pytest_sessionfinish(session)  # type: ignore[arg-type]
    assert session.exitstatus == code
    assert reporter.lines == ["4 tests, about 1 minute on 2 cores"]
    first, packages, *rest = budget.lines()
    assert first == "6 of 9 units of 0.50 CPU seconds: 12 CPU seconds; largest process 300 MiB"
    assert packages.strip() == "io 1 of 4; policies 5 of 5"
    assert rest == (["neither deep nor guard, but 2.1 units (at most 2): tests/policies/a.py::test_1"] if alone > 2 else [])
    budget.budgets["policies"] = 4.5
    assert budget.over() == ["policies"]


@pytest.mark.deep
def test_a_deep_run_is_measured_by_the_budgets_of_deep_runs() -> None:
    words = ["-q", "-p", "no:xdist", "--budget", "--hypothesis-profile=deep", "tests/io/test_writing.py"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    budgets = tomllib.loads(costs.BUDGETS.read_text())
    assert re.search(rf"^ *io \d+ of {budgets['deep']['io']:g}$", found.stdout, re.MULTILINE), found.stdout
