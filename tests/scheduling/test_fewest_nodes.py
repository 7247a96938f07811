"""Gangs are on as few nodes as an exact program can have them on, seldom fewer of them."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.deep
@pytest.mark.parametrize(("odd", "least"), [(False, 1.0), (True, 0.99)], ids=["powers of two", "odd sizes"])
def test_gangs_are_on_the_fewest_nodes_where_a_packing_exists(odd: bool, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from round_nodes import compared

    found = [compared(seed, odd=odd) for seed in range(100)]
    possible = [each for each in found if each.exactly == each.gangs]
    assert sum(each.gangs for each in possible) > 250
    assert sum(each.placed for each in possible) >= least * sum(each.gangs for each in possible)
