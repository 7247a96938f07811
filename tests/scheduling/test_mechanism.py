"""Selection of jobs: timelines on a few GPUs, and properties of any demand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import gavel_py as gp
from gavel_py.scheduling.mechanism.demand import TypeSelection
from gavel_py.scheduling.mechanism.local_search import displace, exchange, improve, replace_one
from gavel_py.scheduling.mechanism.rules import select_in_order
from tests.scheduling.support import assert_feasible, demand, play
from tests.support.examples import examples

choose_jobs = gp.scheduling.choose_jobs

at_once = partial(choose_jobs, hysteresis_rounds=0.0, urgent_rounds=1.0)
Floats = NDArray[np.float64]


def chosen(asked: gp.RoundDemand) -> list[int]:
    columns: list[int] = choose_jobs(asked).tolist()
    return columns


def test_two_jobs_share_a_gpu_turn_by_turn() -> None:
    played = play(8, [[0.5], [0.5]], [1], mechanism=at_once)
    assert (played.line(0), played.line(1)) == ("A.A.A.A.", ".A.A.A.A")


def test_turns_are_as_long_as_the_fractions_say() -> None:
    played = play(8, [[0.75], [0.25]], [1], mechanism=at_once)
    assert (played.line(0), played.line(1)) == ("AA.AAA.A", "..A...A.")


def test_hysteresis_makes_turns_longer_and_keeps_the_shares() -> None:
    played = play(120, [[0.5], [0.5]], [1])
    assert played.line(0).startswith("AAA......AAAAAA......AAAAAA......")
    assert played.share[0, 0] == pytest.approx(0.5, abs=0.02)


def test_hysteresis_is_shorter_for_larger_gangs() -> None:
    small = play(60, [[0.5], [0.5]], [1])
    large = play(60, [[0.5], [0.5]], [8], num_gpus=[8, 8])
    assert max(map(len, small.line(0).split("."))) > max(map(len, large.line(0).split(".")))


def test_an_urgent_job_displaces_a_running_one() -> None:
    patient = partial(choose_jobs, hysteresis_rounds=3.0, urgent_rounds=3.0)
    asked = demand([[0.5], [0.5]], [1], deficits=[[0.0], [2.6]], running_on=[0, -1])
    assert patient(asked).tolist() == [-1, 0]
    assert patient(demand([[0.5], [0.5]], [1], deficits=[[0.0], [2.4]], running_on=[0, -1])).tolist() == [0, -1]


def test_the_job_with_the_larger_claim_runs() -> None:
    assert chosen(demand([[0.5], [0.5]], [1], deficits=[[0.0], [0.1]])) == [-1, 0]


def test_ties_go_to_the_larger_fraction_and_then_to_the_first() -> None:
    assert chosen(demand([[0.3], [0.5]], [1], deficits=[[0.1], [0.0]])) == [-1, 0]
    assert chosen(demand([[0.5], [0.5]], [1])) == [0, -1]


def test_what_differs_by_rounding_errors_only_is_tied() -> None:
    assert chosen(demand([[0.1], [0.1]], [1], deficits=[[0.2], [0.1 + 0.2 - 0.1 + 1e-15]])) == [0, -1]
    assert chosen(demand([[0.5 - 1e-12], [0.5 + 1e-12]], [1])) == [0, -1]


def test_a_gang_runs_whole_or_not_at_all() -> None:
    played = play(6, [[0.75], [0.75]], [3], num_gpus=[2, 2], mechanism=at_once)
    assert (played.line(0), played.line(1)) == ("A.A.A.", ".A.A.A")


def test_a_debt_that_no_round_can_pay_stays_within_limits() -> None:
    played = play(200, [[0.75], [0.75]], [3], num_gpus=[2, 2])
    assert played.share[:, 0].tolist() == pytest.approx([0.5, 0.5], abs=0.05)
    assert played.deficits.max() == 10.0


def test_a_job_with_a_claim_elsewhere_makes_room() -> None:
    """Job 0 is owed most on A, job 1 is owed nothing but A: the sum is larger when 0 goes to B."""
    asked = demand([[0.5, 0.5], [0.5, 0.0]], [1, 1], deficits=[[0.5, 0.4], [0.0, 0.0]])
    assert chosen(asked) == [1, 0]


def test_places_change_in_a_chain_over_all_types() -> None:
    """The job that stands last gets in on A when each of the others moves one type on."""
    fractions = np.array([[0.5, 0.4, 0, 0], [0, 0.5, 0.4, 0], [0, 0, 0.5, 0.4], [0.4, 0, 0, 0]])
    assert chosen(demand(fractions, [1, 1, 1, 1])) == [1, 2, 3, 0]


def test_small_jobs_make_room_for_a_gang_with_a_larger_claim() -> None:
    asked = demand([[0.3]] * 3 + [[0.5]], [3], num_gpus=[1, 1, 1, 3], deficits=[[0.7], [0.0], [0.0], [0.0]])
    assert chosen(asked) == [-1, -1, -1, 0]


def test_displaced_jobs_go_where_there_is_room() -> None:
    fractions = [[0.5, 0.1], [0.45, 0.0]]
    assert chosen(demand(fractions, [3, 2], num_gpus=[2, 3], deficits=[[0.4, 0.0], [0.0, 0.0]])) == [1, 0]


def test_a_job_moves_to_free_gpus_with_a_larger_claim_and_no_other_moves() -> None:
    selection = TypeSelection(np.array([2]), np.array([2, 2]))
    selection.move(0, 0)
    exchange(selection, np.array([[0.1, 0.5]]))
    assert (selection.columns.tolist(), selection.free) == ([1], [2, 0])


def test_a_displaced_job_that_still_fits_stays() -> None:
    """For the gang of 2 the single job, worth least, would leave first and the pair next; then the single job can stay."""
    scores = np.array([[0.1], [0.2], [0.23]])
    selection = TypeSelection(np.array([1, 2, 2]), np.array([3]))
    selection.move(0, 0)
    selection.move(1, 0)
    assert displace(selection, scores)
    assert selection.columns.tolist() == [0, -1, 0]


def test_unclaimed_gpus_go_to_the_jobs_that_use_them_best() -> None:
    asked = demand([[0, 0]] * 2, [1, 0], throughputs=[[4.0, 8.0], [3.0, 3.0]])
    assert chosen(asked) == [-1, 0]
    assert chosen(demand([[0, 0]] * 2, [1, 0], throughputs=[[4.0, 8.0], [3.0, 3.0]], backfill=False)) == [-1, -1]


def test_without_backfilling_no_job_gets_ahead_of_its_fraction() -> None:
    played = play(200, [[0.1], [0.3]], [2], backfill=False)
    assert played.share[:, 0].tolist() == pytest.approx([0.1, 0.3], abs=0.01)


def test_backfilled_time_is_not_held_against_a_job_for_long() -> None:
    """Alone for 50 rounds at a fraction of 0.1, then in competition: its turn comes after some 10 rounds, not after 450."""
    alone = play(50, [[0.1]], [1])
    assert alone.share[0, 0] == 1.0
    deficits = [[alone.deficits[-1, 0, 0]], [0.0]]
    waits = 0
    while choose_jobs(demand([[0.1], [0.9]], [1], deficits=deficits)).tolist() == [-1, 0]:
        deficits = [[deficits[0][0] + 0.1], [deficits[1][0] - 0.1]]
        waits += 1
    assert waits <= 11


def test_nothing_to_choose_from() -> None:
    assert chosen(demand(np.zeros((0, 2)), [1, 1])) == []
    assert chosen(demand(np.zeros((2, 0)), [])) == [-1, -1]
    assert chosen(demand([[1.0]], [0])) == [-1]


@st.composite
def demands(draw: st.DrawFn) -> gp.RoundDemand:
    n, k = draw(st.integers(0, 12)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tenths = rng.integers(0, 11, size=(n, k)) / 10
    return demand(
        tenths * (rng.random((n, k)) < 0.6),
        rng.integers(0, 12, size=k).tolist(),
        deficits=rng.integers(-10, 40, size=(n, k)) / 10,
        num_gpus=rng.choice([1, 1, 2, 3, 4, 8], size=n),
        throughputs=rng.integers(0, 4, size=(n, k)),
        running_on=rng.integers(-1, k, size=n).tolist(),
        backfill=draw(st.booleans()),
        restart_rounds=rng.integers(0, 20, size=n) / 10,
    )


@settings(max_examples=examples(300))
@given(asked=demands(), hysteresis=st.sampled_from([0.0, 2.4]))
def test_any_choice_fits_wastes_nothing_and_can_be_repeated(asked: gp.RoundDemand, hysteresis: float) -> None:
    columns = choose_jobs(asked, hysteresis_rounds=hysteresis)
    assert_feasible(asked, columns)
    assert choose_jobs(asked, hysteresis_rounds=hysteresis).tobytes() == columns.tobytes()
    used = [int(asked.num_gpus[columns == j].sum()) for j in range(len(asked.capacities))]
    eligible = asked.runnable if asked.backfill else asked.runnable & (asked.claims > 0)
    for i in np.flatnonzero(columns < 0):
        for j in np.flatnonzero(eligible[i]):
            assert asked.num_gpus[i] > asked.capacities[j] - used[j], "a job waits although it fits"
    if not asked.backfill:
        running = np.flatnonzero(columns >= 0)
        assert (asked.claims[running, columns[running]] > 0).all()


@settings(max_examples=examples(200))
@given(asked=demands(), seed=st.integers(0, 2**32 - 1))
def test_locked_jobs_stay_whatever_other_claims_are(asked: gp.RoundDemand, seed: int) -> None:
    """Those that ran together may all be locked; a job that may not run any more on its type cannot be."""
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero(asked.running_on >= 0)
    rows = rows[asked.runnable[rows, asked.running_on[rows]]]
    locked = np.zeros(len(asked.num_gpus), dtype=bool)
    free = asked.capacities.copy()
    for row in rng.permutation(rows).tolist():
        if asked.num_gpus[row] <= free[asked.running_on[row]]:
            free[asked.running_on[row]] -= asked.num_gpus[row]
            locked[row] = rng.random() < 0.7
    asked = replace(asked, locked=locked)
    columns = choose_jobs(asked)
    assert_feasible(asked, columns)
    assert (columns == asked.running_on)[locked].all()
    assert choose_jobs(asked).tobytes() == columns.tobytes()


def test_hysteresis_grows_with_the_cost_of_a_restart() -> None:
    asked = demand([[0.5], [0.5]], [1], deficits=[[-1.0], [1.9]], running_on=[0, -1])
    assert chosen(asked) == [-1, 0]
    assert chosen(replace(asked, restart_rounds=np.array([1.0, 1.0]))) == [0, -1]


def test_a_turn_of_14_restarts_is_over() -> None:
    """Claims differ by 3.4: until then, 14 · 0.5 · (1 − X) = 3.5 are needed, and then the mean of that and 2.6 + 0.5."""
    asked = demand([[0.5], [0.5]], [1], deficits=[[-1.7], [1.7]], running_on=[0, -1], restart_rounds=[0.5, 0.5])
    assert [chosen(replace(asked, turn_rounds=np.array([rounds, 0.0]))) for rounds in (6.0, 7.0)] == [[0, -1], [-1, 0]]


@pytest.mark.parametrize("restart_seconds", [120, 180])
def test_no_turn_is_half_as_long_again_as_14_restarts_while_jobs_wait(restart_seconds: float) -> None:
    jobs = [gp.Job(f"j{i:02d}") for i in range(20)]
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 20, job_ids=[job.job_id for job in jobs], accelerators=["g"])
    made = gp.RoundScheduler(gp.Cluster.from_inline("g:1"), speeds, round_seconds=360, restart_seconds=restart_seconds)
    made.submit_all(jobs)
    turns = [len(list(same)) for _, same in itertools.groupby(tuple(made.next_round().assignments) for _ in range(240))]
    assert max(turns) <= 1.5 * 14 * restart_seconds / 360


def test_a_job_that_is_promised_every_round_goes_before_one_that_can_make_good() -> None:
    asked = demand([[0.6, 0.4], [0.8, 0.0]], [1, 0])
    assert chosen(asked) == [0, -1]


@pytest.mark.deep
def test_on_few_gpus_the_choice_is_mostly_the_best_there_is() -> None:
    found = np.array([part_of_the_best(np.random.default_rng(seed)) for seed in range(150)])
    assert (found > 1 - 1e-9).mean() > 0.9
    assert found.mean() > 0.99


def part_of_the_best(rng: np.random.Generator) -> float:
    """What seating six jobs in order and improving comes to, over the best of all choices there are."""
    sizes, capacities = rng.choice([1, 1, 2, 4], size=6), rng.integers(2, 6, size=2)
    scores = np.where(rng.random((6, 2)) < 0.7, rng.integers(10, 40, size=(6, 2)) / 10, -np.inf)
    scores[sizes[:, None] > capacities] = -np.inf
    selection = TypeSelection(sizes, capacities)
    select_in_order(selection, np.isfinite(scores), -scores)
    improve(selection, scores)
    best = 1e-9
    for choice in itertools.product((-1, 0, 1), repeat=6):
        rows = [row for row in range(6) if choice[row] >= 0]
        used = [sum(int(sizes[row]) for row in rows if choice[row] == column) for column in (0, 1)]
        if (used <= capacities).all():
            best = max(best, sum(float(sizes[row] * scores[row, choice[row]]) for row in rows))
    return max(1e-9, served(selection, scores)) / best


@settings(max_examples=examples(200))
@given(seed=st.integers(0, 2**32 - 1))
def test_for_single_gpu_jobs_exchange_finds_the_best_choice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, capacities = int(rng.integers(1, 15)), rng.integers(0, 5, size=rng.integers(1, 5))
    scores = np.where(rng.random((n, len(capacities))) < 0.7, rng.integers(1, 30, size=(n, len(capacities))) / 10, -np.inf)
    selection = TypeSelection(np.ones(n, dtype=np.int64), capacities)
    exchange(selection, scores)
    assert served(selection, scores) == pytest.approx(best_assignment(scores, capacities))


@settings(max_examples=examples(200))
@given(seed=st.integers(0, 2**32 - 1))
def test_greedy_selection_equals_one_pair_after_the_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, capacities = int(rng.integers(1, 15)), rng.integers(0, 12, size=rng.integers(1, 5))
    sizes, scores = rng.choice([1, 2, 3, 4, 8], size=n), rng.integers(1, 9, size=(n, len(capacities))).astype(float)
    selection = TypeSelection(sizes, capacities)
    select_in_order(selection, scores > 2, -scores)
    columns, free = np.full(n, -1), capacities.tolist()
    for i, j in sorted(zip(*np.nonzero(scores > 2), strict=True), key=lambda pair: (-scores[pair], *pair)):
        if columns[i] < 0 and sizes[i] <= free[j]:
            columns[i], free[j] = j, free[j] - sizes[i]
    assert (selection.columns.tolist(), selection.free) == (columns.tolist(), free)


@settings(max_examples=examples(200))
@given(seed=st.integers(0, 2**32 - 1))
def test_replacing_a_gang_by_smaller_ones_always_gains_and_always_fits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, capacities = int(rng.integers(1, 15)), rng.integers(0, 12, size=rng.integers(1, 5))
    sizes = rng.choice([1, 2, 3, 4, 8], size=n)
    scores = np.where(rng.random((n, len(capacities))) < 0.7, rng.integers(1, 30, size=(n, len(capacities))) / 10, -np.inf)
    selection = TypeSelection(sizes, capacities)
    select_in_order(selection, np.isfinite(scores), -scores * np.sqrt(sizes)[:, None])
    value = served(selection, scores)
    while replace_one(selection, scores):
        assert served(selection, scores) > value
        value = served(selection, scores)
        assert min(selection.free) >= 0


@settings(max_examples=examples(200))
@given(seed=st.integers(0, 2**32 - 1))
def test_a_displacement_always_gains_and_always_fits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, capacities = int(rng.integers(1, 15)), rng.integers(0, 12, size=rng.integers(1, 5))
    sizes = rng.choice([1, 2, 3, 4, 8], size=n)
    scores = np.where(rng.random((n, len(capacities))) < 0.7, rng.integers(1, 30, size=(n, len(capacities))) / 10, -np.inf)
    scores[sizes[:, None] > capacities] = -np.inf
    selection = TypeSelection(sizes, capacities)
    value = 0.0
    while displace(selection, scores):
        assert served(selection, scores) > value
        value = served(selection, scores)
        assert min(selection.free) >= 0
    waiting = selection.columns < 0
    assert not (np.isfinite(scores) & waiting[:, None] & (sizes[:, None] <= np.array(selection.free))).any()


def served(selection: TypeSelection, scores: Floats) -> float:
    rows = np.flatnonzero(selection.columns >= 0)
    return float((selection.num_gpus[rows] * scores[rows, selection.columns[rows]]).sum())


def best_assignment(scores: Floats, capacities: NDArray[np.int64]) -> float:
    """The largest sum of scores with one column per GPU and one per job for staying idle."""
    by_gpu = np.repeat(np.where(np.isfinite(scores), scores, 0.0), capacities, axis=1)
    rows, columns = linear_sum_assignment(np.hstack([by_gpu, np.zeros((len(scores), len(scores)))]), maximize=True)
    return float(sum(by_gpu[i, j] for i, j in zip(rows, columns, strict=True) if j < by_gpu.shape[1]))
