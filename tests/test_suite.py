"""The suite itself: it draws the same examples everywhere, and says why it skips."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults.play import Fault, played, read_faults
from tests.support.skips import lines_of_skips

ROOT = Path(__file__).resolve().parents[1]

DRAWN = """
import sys
from hypothesis import given, settings, strategies as st
from tests.support.examples import fix_constants, register_profiles

register_profiles()
if sys.argv[1:] == ["product"]:
    import gavel_py
    gavel_py.RoundScheduler  # of which Hypothesis would draw the constants
fix_constants()
drawn = []

@given(st.tuples(st.integers(), st.floats(), st.text()))
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


def test_the_names_of_seeded_faults_are_unique() -> None:
    names = [fault.name for fault in read_faults()]
    assert len(names) == len(set(names)) > 50
