"""Which placement a gang should have this round, and the account of what it has had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.scheduling.ledger import DeliveryLedger
from gavel_py.scheduling.placement.gangs import PlacementPreference, Spans, preferences_of
from tests.optimization.test_placement_kinds import gangs, measured, nodes_of


def preference(
    fraction: float,
    spread: float,
    *,
    deficit: float = 0,
    owed: float = 0,
    stands: int = 0,
    faster: bool = False,
    restart: float = 0,
) -> PlacementPreference:
    """The placement of one job on one type."""
    tables = [np.array([[value]], dtype=float) for value in (fraction, spread)]
    rest = [np.array([[value]], dtype=float) for value in (deficit, owed, stands)]
    return PlacementPreference(preferences_of(*tables, np.array([[faster]]), *rest, np.array([restart]))[0, 0])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"fraction": 0.5, "spread": np.nan}, PlacementPreference.ANY),
        ({"fraction": 0.5, "spread": 0.0}, PlacementPreference.CONSOLIDATED),
        ({"fraction": 0.5, "spread": 0.5}, PlacementPreference.SPREAD),
        ({"fraction": 0.0, "spread": 0.0, "faster": True}, PlacementPreference.SPREAD),  # nothing is promised: the faster one
        ({"fraction": 0.0, "spread": 0.0}, PlacementPreference.CONSOLIDATED),
        ({"fraction": 1.0, "spread": 0.75}, PlacementPreference.SPREAD),  # 0.75 against 0.25 rounds
        ({"fraction": 1.0, "spread": 0.25}, PlacementPreference.CONSOLIDATED),
        ({"fraction": 1.0, "spread": 0.25, "deficit": 0.5, "owed": 1.0}, PlacementPreference.SPREAD),  # 1.25 against 0.25
        (
            {"fraction": 1.0, "spread": 0.75, "stands": -1},
            PlacementPreference.CONSOLIDATED,
        ),  # it stays: half a round more is not enough
        ({"fraction": 1.0, "spread": 0.75, "stands": -1, "owed": 1.0, "deficit": 1.0}, PlacementPreference.SPREAD),
        (
            {"fraction": 1.0, "spread": 0.75, "stands": -1, "owed": 1.0, "deficit": 1.0, "restart": 1.0},
            PlacementPreference.CONSOLIDATED,
        ),
    ],
)
def test_a_gang_gets_the_placement_with_the_larger_claim(given: dict[str, float], found: PlacementPreference) -> None:
    assert preference(**given) is found  # type: ignore[arg-type]


def test_the_account_of_placements() -> None:
    ledger = DeliveryLedger(["v100"])
    fractions, spread, columns = np.array([[1.0], [1.0]]), np.array([[0.25], [0.0]]), np.zeros(2, dtype=np.int64)
    everywhere, is_spread = np.ones((2, 1), dtype=bool), np.array([True, True])
    ledger.begin_round(100.0)
    ledger.record(np.arange(2), np.array([2, 2]), everywhere, fractions, columns)
    ledger.record_placement(np.arange(2), fractions, spread, columns, is_spread, 100.0)
    assert ledger.spread_deficits.tolist() == [[-0.75], [0.0]]
    assert ledger.misplaced.tolist() == [0.0, 100.0]  # a is promised both placements


def test_a_round_that_is_lost_was_in_no_placement() -> None:
    ledger = DeliveryLedger(["v100"])
    fractions, spread, columns = np.array([[1.0], [1.0]]), np.array([[0.25], [0.0]]), np.zeros(2, dtype=np.int64)
    ledger.begin_round(100.0)
    ledger.record(np.arange(2), np.array([2, 2]), np.ones((2, 1), dtype=bool), fractions, columns)
    ledger.record_placement(np.arange(2), fractions, spread, columns, np.array([True, True]), 100.0)
    for row in range(2):
        ledger.take_back(row, 0, 2, 100.0, is_spread=True)
    assert ledger.spread_deficits.tolist() == [[0.25], [0.0]]
    assert ledger.misplaced.tolist() == [0.0, 0.0]


def test_the_account_of_placements_has_a_bound_too() -> None:
    """Job a is promised spread placements and gets none; then each round that it gets is lost."""
    ledger, one = DeliveryLedger(["v100"]), np.zeros(1, dtype=np.int64)
    ledger.fit(1)
    for _ in range(30):
        ledger.record_placement(one, np.array([[1.0]]), np.array([[1.0]]), one, np.array([False]), 100.0)
    assert ledger.spread_deficits.tolist() == [[10.0]]
    ledger.take_back(0, 0, 2, 100.0, is_spread=True)
    assert ledger.spread_deficits.tolist() == [[10.0]]


@pytest.mark.parametrize("after", [1, 2, 3, 7])
def test_a_saved_scheduler_goes_on_with_the_same_placements(after: int, tmp_path: Path) -> None:
    profile = measured(("t", 2, 1.0, 0.5))
    scheduler = gp.RoundScheduler(nodes_of(3, 3), profile)
    for job in gangs(2, 2, 2):
        scheduler.submit(job)
    for _ in range(after):
        scheduler.next_round()
    scheduler.save(tmp_path / "state.json")
    loaded = gp.RoundScheduler.load(tmp_path / "state.json", profile)
    for number in range(12):
        if number == 5:  # a new allocation, from the same past
            scheduler.report("j0", steps_done=1.0)
            loaded.report("j0", steps_done=1.0)
        assert loaded.next_round() == scheduler.next_round()
    assert loaded.delivery() == scheduler.delivery()


def test_the_fewest_nodes_of_a_gang() -> None:
    spans = Spans(nodes_of(4, 2, 2))
    assert [spans.min_nodes("v100", size) for size in (1, 4, 5, 6, 7, 8)] == [1, 1, 2, 2, 3, 3]
    on = [[(name, k) for name in names for k in range(2)] for names in (["n0"], ["n1", "n2"])]
    assert [spans.is_spread("v100", [node for node, _ in gpus]) for gpus in on] == [False, True]  # 4 GPUs have room on n0
    assert spans.is_spread("v100", ["n1", "n2"])


def test_gangs_take_turns_in_the_slower_placement() -> None:
    """Of three gangs of 2 on two nodes of 3 one is always spread, each of them in a third of the rounds."""
    scheduler = gp.RoundScheduler(nodes_of(3, 3), measured(("t", 2, 1.0, 0.5)))
    for job in gangs(2, 2, 2):
        scheduler.submit(job)
    rounds = [scheduler.next_round().assignments for _ in range(60)]
    spans = Spans(scheduler.cluster)
    spread = [sum(spans.is_spread("v100", [node for node, _ in round_[f"j{i}"].gpus]) for round_ in rounds) for i in range(3)]
    assert sum(spread) == 60
    assert max(spread) - min(spread) <= 4
    assert scheduler.delivery().undelivered_share == 0


def test_a_gang_that_is_faster_spread_is_spread() -> None:
    scheduler = gp.RoundScheduler(nodes_of(4, 4), measured(("t", 2, 1.0, 1.5)))
    scheduler.submit(gangs(2)[0])
    (held,) = scheduler.next_round().assignments.values()
    assert len({node for node, _ in held.gpus}) == 2
    assert scheduler.delivery().misplaced_gpu_seconds == 0
