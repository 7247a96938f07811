"""Answers of an earlier version, which later ones must give again: policies, rounds, a simulation and a sweep.

The file is renewed by `python benchmarks/same_answers.py --keep tests/properties/known_answers.json`, only where answers are
meant to change.
"""

from __future__ import annotations

import json
import re
import runpy
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

KEPT = Path(__file__).with_name("known_answers.json")

NUMBER = re.compile(r"(-?\d+\.?\d*(?:e[-+]?\d+)?)")


@pytest.mark.guard
@pytest.mark.parametrize("count", [14, pytest.param(20, marks=pytest.mark.deep)])  # problems, then rounds, a simulation and a sweep
def test_earlier_answers_are_given_again(count: int) -> None:
    expected = [json.loads(line) for line in KEPT.read_text().splitlines()]
    assert len(expected) == 20
    script = Path(__file__).parents[2] / "benchmarks" / "same_answers.py"
    found = [json.loads(json.dumps(document)) for document in islice(runpy.run_path(str(script))["kept"](), count)]
    assert [document["name"] for document in found] == [document["name"] for document in expected[:count]]
    for before, now in zip(expected[:count], found, strict=True):
        (text, numbers), (text_now, numbers_now) = split(before), split(now)
        assert text_now == text
        assert numbers_now == pytest.approx(numbers, rel=1e-9, abs=1e-9), before["name"]


def split(document: Any) -> tuple[list[str], list[float]]:
    """Return a document's text between its numbers, and its numbers."""
    parts = NUMBER.split(json.dumps(document))
    return parts[::2], [float(number) for number in parts[1::2]]
