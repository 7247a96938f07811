"""What was promised, what was delivered, and what is still owed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel_py.rounds.ledger import DeliveryLedger

GANGS = np.array([2, 1])
ANYWHERE = np.ones((2, 2), dtype=bool)


def ledger_after(*rounds: tuple[list[list[float]], list[int]], runnable: np.ndarray = ANYWHERE) -> DeliveryLedger:
    """Jobs a (2 GPUs) and b (1 GPU) on fast and slow, after rounds of 100 s given as (fractions, columns)."""
    ledger = DeliveryLedger(["fast", "slow"])
    for fractions, columns in rounds:
        ledger.record(["a", "b"], GANGS, runnable, np.array(fractions), np.array(columns), 100.0)
    return ledger


def test_a_shortfall_on_one_type_is_not_made_up_for_on_another() -> None:
    report = ledger_after(([[0.5, 0.0], [0.5, 0.5]], [1, 0]), ([[0.5, 0.0], [0.5, 0.5]], [1, 0])).report()
    a, b = report.jobs["a"], report.jobs["b"]
    assert (a.promised_by_type, a.delivered_by_type) == ({"fast": 100, "slow": 0}, {"fast": 0, "slow": 200})
    assert (a.promised_seconds, a.delivered_seconds, a.shortfall_seconds) == (100, 200, 100)
    assert (b.promised_seconds, b.delivered_seconds, b.shortfall_seconds) == (200, 200, 100)


def test_totals_are_weighted_by_gpus() -> None:
    report = ledger_after(([[1.0, 0.0], [0.0, 0.5]], [-1, 1])).report()
    assert report.promised_gpu_seconds == 2 * 100 + 50
    assert report.delivered_gpu_seconds == 100
    assert report.shortfall_gpu_seconds == 200
    assert report.undelivered_share == pytest.approx(200 / 250)


def test_nothing_promised_is_nothing_undelivered() -> None:
    assert DeliveryLedger(["fast"]).report().undelivered_share == 0
    assert ledger_after(([[0.0, 0.0], [0.0, 0.0]], [0, -1])).report().undelivered_share == 0


def test_the_report_as_plain_data() -> None:
    document = ledger_after(([[1.0, 0.0], [0.0, 0.5]], [-1, 1])).report().to_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["undelivered_share"] == pytest.approx(0.8)
    assert document["jobs"][0] == {
        "job_id": "a",
        "num_gpus": 2,
        "promised_seconds": 100,
        "delivered_seconds": 0,
        "shortfall_seconds": 100,
        "misplaced_seconds": 0,
        "waits": {},
        "promised_by_type": {"fast": 100, "slow": 0},
        "delivered_by_type": {"fast": 0, "slow": 0},
    }


def test_deficits_outlive_an_allocation_and_follow_the_job() -> None:
    ledger = ledger_after(([[0.5, 0.25], [0.0, 1.0]], [-1, 1]), ([[0.75, 0.0], [0.0, 1.0]], [1, -1]))
    assert ledger.deficits(["b", "new", "a"]).tolist() == [[0, 1], [0, 0], [1.25, -0.75]]


def test_deficits_stay_between_one_round_ahead_and_ten_owed() -> None:
    ledger = ledger_after(*[([[1.0, 0.0], [0.0, 0.1]], [-1, 1])] * 30)
    assert ledger.deficits(["a", "b"]).tolist() == [[10, 0], [0, -1]]
    assert ledger.report().jobs["a"].shortfall_seconds == 3000


def test_deficits_are_dropped_where_a_job_can_no_longer_run() -> None:
    ledger = ledger_after(([[0.5, 0.5], [0.0, 0.0]], [-1, -1]))
    ledger.record(["a"], GANGS[:1], np.array([[False, True]]), np.array([[0.0, 0.5]]), np.array([-1]), 100.0)
    assert ledger.deficits(["a"]).tolist() == [[0, 1]]


def test_being_ahead_is_forgotten_beyond_what_ten_rounds_pay_back() -> None:
    """Job a is promised a tenth: one round ahead takes it ten rounds; job b half of the time: five rounds take it ten."""
    ledger = ledger_after(*[([[0.1, 0.0], [0.0, 0.5]], [0, 1])] * 20)
    assert ledger.deficits(["a", "b"])[[0, 1], [0, 1]].tolist() == [-1.0, -5.0]


def test_rounds_received_are_counted_from_the_allocation_on() -> None:
    ledger = ledger_after(*[([[0.5, 0.0], [0.0, 0.5]], [0, 1])] * 3)
    assert ledger.received(["b", "a", "new"]).tolist() == [[0, 3], [3, 0], [0, 0]]
    ledger.begin_allocation()
    ledger.record(["a", "b"], GANGS, ANYWHERE, np.full((2, 2), 0.5), np.array([-1, 0]), 100.0)
    assert ledger.received(["a", "b"]).tolist() == [[0, 0], [1, 0]]
    ledger.take_back("b", "fast", 1, 100.0)
    assert ledger.received(["b"]).tolist() == [[0, 0]]


@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from("abcdef"), min_size=1), st.sets(st.sampled_from("abcdef")), st.booleans()), max_size=12
    )
)
def test_who_is_forgotten_changes_no_account_of_others(lives: list[tuple[set[str], set[str], bool]]) -> None:
    """Jobs run in rounds, some are forgotten after each and come back as new ones; each has a ledger of its own beside."""
    ledger = DeliveryLedger(["fast", "slow"])
    alone: dict[str, DeliveryLedger] = {}
    for number, (there, forgotten, close) in enumerate(lives):
        ids, fractions = sorted(there), np.array([[0.25 * (number % 3), 0.5]])
        columns = np.array([ord(job_id) % 3 - 1 for job_id in ids])
        everywhere = np.ones((len(ids), 2), dtype=bool)
        ledger.record(ids, np.full(len(ids), 2), everywhere, np.repeat(fractions, len(ids), axis=0), columns, 100.0)
        for job_id, column in zip(ids, columns, strict=True):
            own = alone.setdefault(job_id, DeliveryLedger(["fast", "slow"]))
            own.record([job_id], np.array([2]), np.ones((1, 2), dtype=bool), fractions, np.array([column]), 100.0)
        ledger.forget(forgotten)
        alone = {job_id: own for job_id, own in alone.items() if job_id not in forgotten}
        if close:
            ledger.close_gaps()
        assert ledger.report().jobs == {job_id: own.account(job_id) for job_id, own in sorted(alone.items())}
        assert ledger.owes_any_of("abcdef") == any(own.owes_any_of("abcdef") for own in alone.values())
        expected = [alone[job_id].deficits([job_id])[0].tolist() if job_id in alone else [0.0, 0.0] for job_id in "abcdef"]
        assert ledger.deficits("abcdef").tolist() == expected
