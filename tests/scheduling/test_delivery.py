"""What was promised, what was delivered, and what is still owed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.scheduling.delivery import WAITS
from gavel_py.scheduling.ledger import DeliveryLedger
from tests.scheduling.support import Fixed
from tests.support.examples import examples

GANGS = np.array([2, 1])
ANYWHERE = np.ones((2, 2), dtype=bool)
AB = np.arange(2)
ROWS = {"a": 0, "b": 1}


def ledger_after(*rounds: tuple[list[list[float]], list[int]], runnable: np.ndarray = ANYWHERE) -> DeliveryLedger:
    """Jobs a (2 GPUs) and b (1 GPU) on fast and slow, after rounds of 100 s given as (fractions, columns)."""
    ledger = DeliveryLedger(["fast", "slow"])
    for fractions, columns in rounds:
        ledger.begin_round(100.0)
        ledger.record(AB, GANGS, runnable, np.array(fractions), np.array(columns))
    return ledger


def test_a_shortfall_on_one_type_is_not_made_up_for_on_another() -> None:
    report = ledger_after(([[0.5, 0.0], [0.5, 0.5]], [1, 0]), ([[0.5, 0.0], [0.5, 0.5]], [1, 0])).report(ROWS)
    a, b = report.jobs["a"], report.jobs["b"]
    assert (a.promised_by_type, a.delivered_by_type) == ({"fast": 100, "slow": 0}, {"fast": 0, "slow": 200})
    assert (a.promised_seconds, a.delivered_seconds, a.undelivered_seconds) == (100, 200, 100)
    assert (b.promised_seconds, b.delivered_seconds, b.undelivered_seconds) == (200, 200, 100)


def test_totals_are_weighted_by_gpus() -> None:
    report = ledger_after(([[1.0, 0.0], [0.0, 0.5]], [-1, 1])).report(ROWS)
    assert report.promised_gpu_seconds == 2 * 100 + 50
    assert report.delivered_gpu_seconds == 100
    assert report.undelivered_gpu_seconds == 200
    assert report.undelivered_share == pytest.approx(200 / 250)


def test_nothing_promised_is_nothing_undelivered() -> None:
    assert DeliveryLedger(["fast"]).report({}).undelivered_share == 0
    assert ledger_after(([[0.0, 0.0], [0.0, 0.0]], [0, -1])).report(ROWS).undelivered_share == 0


def test_the_report_as_plain_data() -> None:
    document = ledger_after(([[1.0, 0.0], [0.0, 0.5]], [-1, 1])).report(ROWS).to_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["undelivered_share"] == pytest.approx(0.8)
    assert document["jobs"][0] == {
        "job_id": "a",
        "num_gpus": 2,
        "promised_seconds": 100,
        "delivered_seconds": 0,
        "undelivered_seconds": 100,
        "undelivered_by_reason": {"turn": 100},
        "rounds_behind": 1,
        "misplaced_seconds": 0,
        "waits": {},
        "promised_by_type": {"fast": 100, "slow": 0},
        "delivered_by_type": {"fast": 0, "slow": 0},
    }


def test_deficits_outlive_an_allocation_and_follow_the_job() -> None:
    ledger = ledger_after(([[0.5, 0.25], [0.0, 1.0]], [-1, 1]), ([[0.75, 0.0], [0.0, 1.0]], [1, -1]))
    assert ledger.deficits.tolist() == [[1.25, -0.75], [0, 1]]


def test_deficits_stay_within_their_bounds() -> None:
    ledger = ledger_after(*[([[1.0, 0.0], [0.0, 0.1]], [-1, 1])] * 30)
    assert ledger.deficits.tolist() == [[10, 0], [0, -1]]
    assert ledger.report(ROWS).jobs["a"].undelivered_seconds == 3000


def test_deficits_are_dropped_where_a_job_can_no_longer_run() -> None:
    ledger = ledger_after(([[0.5, 0.5], [0.0, 0.0]], [-1, -1]))
    ledger.begin_round(100.0)
    ledger.record(AB[:1], GANGS[:1], np.array([[False, True]]), np.array([[0.0, 0.5]]), np.array([-1]))
    assert ledger.deficits[:1].tolist() == [[0, 1]]


def test_being_ahead_is_forgotten_beyond_what_ten_rounds_pay_back() -> None:
    """Job a is promised a tenth: one round ahead takes it ten rounds; job b half of the time: five rounds take it ten."""
    ledger = ledger_after(*[([[0.1, 0.0], [0.0, 0.5]], [0, 1])] * 20)
    assert ledger.deficits[[0, 1], [0, 1]].tolist() == [-1.0, -5.0]


def test_deficits_stay_within_their_bounds_whatever_happens_within_rounds() -> None:
    """Job a, promised a tenth, starts within many rounds; job b, promised half, too, and then loses its node many times."""
    ledger = ledger_after(([[0.0, 0.0], [0.0, 0.0]], [-1, -1]))
    for _ in range(20):
        ledger.receive(AB, GANGS, np.array([0.1, 0.5]), np.array([0, 1]), 50.0, 0.5)
    assert ledger.deficits.tolist() == [[-1, 0], [0, -5]]
    for _ in range(40):
        ledger.take_back(1, 1, 1, 50.0, rounds=0.5)
    assert ledger.deficits.tolist() == [[-1, 0], [0, 10]]


def test_a_job_that_is_forgotten_leaves_no_reason_to_the_next_in_its_row() -> None:
    ledger = ledger_after()
    waits = np.array([WAITS.index(gp.Wait.NODE), -1])
    ledger.begin_round(100.0)
    ledger.record(AB, GANGS, ANYWHERE, np.full((2, 2), 0.5), np.array([-1, 0]), waits)
    assert [ledger.wait_of(row) for row in AB] == [gp.Wait.NODE, None]
    ledger.forget([0])
    assert ledger.wait_of(0) is None


def test_rounds_received_are_counted_from_the_allocation_on() -> None:
    ledger = ledger_after(*[([[0.5, 0.0], [0.0, 0.5]], [0, 1])] * 3)
    assert ledger.received.tolist() == [[3, 0], [0, 3]]
    ledger.begin_allocation()
    ledger.begin_round(100.0)
    ledger.record(AB, GANGS, ANYWHERE, np.full((2, 2), 0.5), np.array([-1, 0]))
    assert ledger.received.tolist() == [[0, 0], [1, 0]]
    ledger.take_back(1, 0, 1, 100.0)
    assert ledger.received[1].tolist() == [0, 0]


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 5), min_size=1), st.sets(st.integers(0, 5))), max_size=12),
)
def test_forgetting_a_job_changes_no_other_account(lives: list[tuple[set[int], set[int]]]) -> None:
    """The rows of forgotten jobs are used again; expected are the accounts of one ledger per job."""
    ledger, ids = DeliveryLedger(["fast", "slow"]), {name: row for row, name in enumerate("abcdef")}
    ledger.fit(6)
    alone: dict[int, DeliveryLedger] = {}
    for number, (there, forgotten) in enumerate(lives):
        rows, fractions = np.array(sorted(there)), np.array([[0.25 * (number % 3), 0.5]])
        columns = rows % 3 - 1
        everywhere = np.ones((len(rows), 2), dtype=bool)
        ledger.begin_round(100.0)
        ledger.record(rows, np.full(len(rows), 2.0), everywhere, np.repeat(fractions, len(rows), axis=0), columns)
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            own = alone.setdefault(row, DeliveryLedger(["fast", "slow"]))
            own.begin_round(100.0)
            own.record(np.zeros(1, dtype=int), np.array([2.0]), everywhere[:1], fractions, np.array([column]))
        ledger.forget(sorted(forgotten))
        alone = {row: own for row, own in alone.items() if row not in forgotten}
        names = {row: name for name, row in ids.items()}
        assert ledger.report(ids).jobs == {names[row]: own.account(names[row], 0) for row, own in sorted(alone.items())}
        assert ledger.deficits.tolist() == [alone[row].deficits[0].tolist() if row in alone else [0, 0] for row in range(6)]


def accounts_add_up(report: gp.DeliveryReport) -> None:
    """What every report must keep, whatever has happened."""
    for job in report.jobs.values():
        assert sum(job.undelivered_by_reason.values()) == pytest.approx(job.undelivered_seconds, abs=1e-6)
        assert all(seconds > 0 for seconds in job.undelivered_by_reason.values())
    assert sum(report.undelivered_by_reason.values()) == pytest.approx(report.undelivered_gpu_seconds, abs=1e-6)
    beyond = report.ahead_gpu_seconds + report.backfilled_gpu_seconds
    on_time = report.promised_gpu_seconds - report.undelivered_gpu_seconds
    assert report.delivered_gpu_seconds == pytest.approx(on_time + beyond, abs=1e-5)
    assert min(report.ahead_gpu_seconds, report.backfilled_gpu_seconds) >= 0
    assert 0 <= report.least_undelivered_gpu_seconds <= report.undelivered_gpu_seconds + 1e-6


ROUND = st.fixed_dictionaries(
    {
        "there": st.sets(st.sampled_from("abcd"), min_size=1),
        "gangs": st.lists(st.sampled_from([1, 1, 2, 4]), min_size=4, max_size=4),
        "tenths": st.lists(st.integers(0, 10), min_size=8, max_size=8),
        "columns": st.lists(st.integers(-1, 1), min_size=4, max_size=4),
        "waits": st.lists(st.integers(-1, len(WAITS) - 2), min_size=4, max_size=4),
        "runnable": st.lists(st.booleans(), min_size=8, max_size=8),
        "lost": st.booleans(),
        "forgotten": st.sets(st.sampled_from("abcd"), max_size=1),
        "seconds": st.sampled_from([100.0, 100.0, 100.0, 40.0]),
    }
)


@pytest.mark.deep
@settings(max_examples=examples(200))
@given(st.lists(ROUND, max_size=15))
def test_reasons_add_up_to_the_shortfall_whatever_happens(rounds: list[dict[str, list[int]]]) -> None:
    """Fractions and gangs change, jobs run where they are owed nothing, lose their GPUs, and are forgotten."""
    ledger, known = DeliveryLedger(["fast", "slow"]), {name: row for row, name in enumerate("abcd")}
    for each in rounds:
        rows = [ord(job_id) - ord("a") for job_id in sorted(each["there"])]
        gangs, columns = np.array(each["gangs"])[rows], np.array(each["columns"])[rows]
        fractions = np.array(each["tenths"]).reshape(4, 2)[rows] / 10
        fractions /= np.maximum(1.0, fractions.sum(axis=1, keepdims=True))
        runnable = np.array(each["runnable"]).reshape(4, 2)[rows]
        used = np.array([gangs[columns == column].sum() for column in (0, 1)], dtype=float)
        seconds = float(each["seconds"])  # type: ignore[arg-type]
        waits, offered = np.array(each["waits"])[rows], np.maximum(used, 8.0)
        ledger.begin_round(seconds, offered)
        ledger.record(np.array(rows), gangs, runnable, fractions, columns, waits)
        if each["lost"] and columns[0] >= 0:
            ledger.take_back(rows[0], int(columns[0]), int(gangs[0]), seconds)
        accounts_add_up(ledger.report(known))
        ledger.forget([ord(job_id) - ord("a") for job_id in each["forgotten"]])  # type: ignore[attr-defined]
        accounts_add_up(ledger.report(known))


def test_the_reason_other_type() -> None:
    job = ledger_after(([[0.5, 0.5], [0.0, 0.0]], [1, -1])).report(ROWS).jobs["a"]
    assert job.undelivered_by_reason == {gp.Wait.OTHER_TYPE: 50}
    assert job.why is gp.Wait.OTHER_TYPE
    assert job.waits == {}


def test_a_shortfall_that_falls_reduces_all_reasons() -> None:
    """Half a round is owed since a job had just arrived, half since it ran elsewhere; two rounds pay both."""
    ledger = DeliveryLedger(["fast", "slow"])

    def enter(fractions: list[float], column: int, wait: int = -1) -> dict[gp.Wait, float]:
        ledger.begin_round(100.0)
        ledger.record(AB[:1], GANGS[:1], ANYWHERE[:1], np.array([fractions]), np.array([column]), np.array([wait]))
        return ledger.report(ROWS).jobs["a"].undelivered_by_reason

    assert enter([0.5, 0.5], -1, WAITS.index(gp.Wait.NEW)) == {gp.Wait.NEW: 100}
    assert enter([0.5, 0.0], 1) == {gp.Wait.NEW: 50, gp.Wait.OTHER_TYPE: 50}
    assert enter([0.5, 0.0], 0) == {gp.Wait.NEW: 25, gp.Wait.OTHER_TYPE: 25}
    assert enter([0.5, 0.0], 0) == {}


def test_time_ahead_of_the_fraction_is_not_backfilled_time() -> None:
    """Two jobs are promised half of one GPU each: the one that runs is ahead, and no GPU would have idled."""
    ledger = DeliveryLedger(["fast"])
    ledger.begin_round(100.0)
    ledger.record(AB, np.ones(2), np.ones((2, 1), dtype=bool), np.array([[0.5], [0.5]]), np.array([0, -1]))
    report = ledger.report(ROWS)
    assert (report.undelivered_gpu_seconds, report.ahead_gpu_seconds, report.backfilled_gpu_seconds) == (50, 50, 0)


def test_idle_gpus_given_to_waiting_jobs_are_backfilled_time() -> None:
    """One GPU of two is not promised, and b, which is promised nothing, has it in all rounds."""
    policy = Fixed(shares={"a": {"v100": 1.0}})
    speeds = gp.ThroughputProfile.from_matrix([[1.0], [1.0]], job_ids=["a", "b"], accelerators=["v100"])
    made = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 2}), speeds, policy, 100.0)
    made.submit_all([gp.Job("a"), gp.Job("b")])
    for _ in range(3):
        made.next_round()
    report = made.delivery()
    assert (report.ahead_gpu_seconds, report.backfilled_gpu_seconds) == (0, 300)


def test_gpus_that_no_gang_fits_are_idle_though_they_were_promised() -> None:
    """Two gangs of 2 are promised all of 3 GPUs, and take turns on two of them; a single job has the third."""
    policy = Fixed(shares={"a": {"v100": 0.75}, "b": {"v100": 0.75}})
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 3, job_ids=["a", "b", "single"], accelerators=["v100"])
    made = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 3}), speeds, policy, 100.0, whole_gangs=False)
    made.submit_all([gp.Job("a", num_gpus=2), gp.Job("b", num_gpus=2), gp.Job("single")])
    for _ in range(4):
        made.next_round()
    assert made.delivery().backfilled_gpu_seconds == 400


Course = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]


@st.composite
def courses(draw: st.DrawFn) -> Course:
    """Gangs, what jobs were promised, the rounds in which they were there, the GPU-rounds offered, and the number of types."""
    jobs, types = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    sizes = np.array(draw(st.lists(st.sampled_from([1, 2, 3]), min_size=jobs, max_size=jobs)))
    there = np.array(draw(st.lists(st.integers(1, 3), min_size=jobs, max_size=jobs)))
    parts = np.array(draw(st.lists(st.integers(0, 10), min_size=jobs * types, max_size=jobs * types)), dtype=float)
    fractions = parts.reshape(jobs, types) / 10
    fractions /= np.maximum(1.0, fractions.sum(axis=1, keepdims=True))
    offered = np.array(draw(st.lists(st.integers(0, 12), min_size=types, max_size=types)))
    return sizes, fractions * there[:, None], there, offered, types


@settings(max_examples=examples(300))
@given(courses())
def test_no_choice_of_whole_rounds_leaves_less_than_the_least(course: Course) -> None:
    """Against all choices: any number of whole rounds of each job on each type, as far as rounds and GPUs go."""
    sizes, promised, there, offered, types = course
    options = [[r for r in itertools.product(range(n + 1), repeat=types) if sum(r) <= n] for n in there.tolist()]
    exact = min(
        (sizes @ np.maximum(0.0, promised - np.array(rounds))).sum()
        for rounds in itertools.product(*options)
        if (sizes @ np.array(rounds) <= offered).all()
    )
    assert least(sizes, promised, there.tolist(), offered) <= exact + 1e-9


def least(sizes: Sequence[int], promised: np.ndarray, there: Sequence[int | None], offered: Sequence[float]) -> float:
    """Return the least shortfall of a report, in GPU-rounds of 7 s."""
    names, none = ["fast", "slow"][: promised.shape[1]], dict.fromkeys(["fast", "slow"], 0.0)
    jobs = {
        f"j{i}": gp.scheduling.JobDelivery(
            f"j{i}", size, dict(zip(names, (7.0 * promised[i]).tolist(), strict=True)), none, round_seconds=7.0, rounds=n
        )
        for i, (size, n) in enumerate(zip(sizes, there, strict=True))
    }
    report = gp.DeliveryReport(jobs, {name: 7.0 * float(gpus) for name, gpus in zip(names, offered, strict=True)})
    return report.least_undelivered_gpu_seconds / 7.0


def test_the_least_that_whole_rounds_allow() -> None:
    """Two halves of one GPU, after one round and after two; half a round on each of two types; rounds that differ in length."""
    one, two = np.array([[0.5], [0.5]]), np.array([[0.5, 0.5]])
    assert least([1, 1], one, [1, 1], [1]) == 0.5
    assert least([1], two, [1], [1, 1]) == 0.5
    assert least([1, 1], 2 * one, [2, 2], [2]) == 0.0
    assert least([1, 1], one, [None, None], [1]) == 0.0
    assert least([2, 1], np.array([[0.9], [0.6]]), [1, 1], [2]) == pytest.approx(0.6)
    assert least([4], np.array([[3.0]]), [3], [8]) == pytest.approx(4.0)
