"""The published rule, and mechanisms by name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import gavel_py as gp
from gavel_py.scheduling.mechanism.rules import choose_by_deficit, published_order, resolve_mechanism
from tests.scheduling.support import assert_feasible, demand, play
from tests.scheduling.test_mechanism import demands
from tests.support.examples import examples

choose_by_priority = gp.scheduling.choose_by_priority


def test_two_jobs_on_one_gpu_by_hand() -> None:
    """X = 3/4, 1/4; priorities X / f, clocks from half a round; a tie goes to the larger deficit.

    clocks    1/2 1/2   3/2 1/2   3/2 3/2   5/2 3/2   7/2 3/2   9/2 3/2
    priority  3/2 1/2    1   1    3/2 1/2   6/5 2/3  15/14 5/6   1   1
    """
    played = play(6, [[0.75], [0.25]], [1], mechanism=choose_by_priority)
    assert (played.line(0), played.line(1)) == ("A.AAA.", ".A...A")


def test_types_are_filled_in_the_published_order_whatever_deficits_are() -> None:
    """A job that is alone has had all of the time that was used, so its priority is X, and its first type always comes first."""
    assert published_order(("k80", "a100", "p100", "v100")) == [3, 2, 0, 1]
    played = play(8, [[0.9, 0.1]], [1, 1], mechanism=resolve_mechanism("priority", ("k80", "v100")))
    assert played.line(0) == "BBBBBBBB"
    assert play(8, [[0.9, 0.1]], [1, 1], mechanism=resolve_mechanism("priority", ("a", "b"))).line(0) == "AAAAAAAA"


def test_a_gang_that_does_not_fit_is_passed() -> None:
    asked = demand([[0.5], [0.9], [0.2]], [4], num_gpus=[1, 4, 2])
    assert choose_by_priority(asked).tolist() == [-1, 0, -1]
    assert choose_by_priority(demand([[0.9], [0.5], [0.2]], [4], num_gpus=[1, 4, 2])).tolist() == [0, -1, 0]


def test_jobs_without_a_fraction_fill_what_is_left() -> None:
    fractions = [[0.0, 0.0], [0.2, 0.0], [0.0, 0.0]]
    assert choose_by_priority(demand(fractions, [1, 1])).tolist() == [1, 0, -1]
    assert choose_by_priority(demand(fractions, [1, 1], backfill=False)).tolist() == [-1, 0, -1]


@settings(max_examples=examples(200))
@given(asked=demands())
def test_any_choice_fits_and_wastes_nothing(asked: gp.RoundDemand) -> None:
    columns = choose_by_priority(asked)
    assert_feasible(asked, columns)
    assert choose_by_priority(asked).tobytes() == columns.tobytes()
    free = [int(c - asked.num_gpus[columns == j].sum()) for j, c in enumerate(asked.capacities)]
    eligible = asked.runnable if asked.backfill else asked.runnable & (asked.fractions > 0)
    assert not (eligible & (columns < 0)[:, None] & (asked.num_gpus[:, None] <= np.array(free))).any()


def test_names() -> None:
    assert resolve_mechanism("deficit", ("v100",)) is choose_by_deficit
    assert resolve_mechanism(choose_by_priority, ("v100",)) is choose_by_priority
    with pytest.raises(gp.UnknownNameError, match="there is no mechanism 'priorities'; did you mean 'priority'"):
        resolve_mechanism("priorities", ("v100",))
    with pytest.raises(gp.InputError, match="must be a name or a function of a RoundDemand, found 3"):
        resolve_mechanism(3, ("v100",))  # type: ignore[arg-type]


def scheduler(mechanism: object) -> gp.RoundScheduler:
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 3, job_ids=["a", "b", "c"], accelerators=["v100"])
    made = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), speeds, mechanism=mechanism)  # type: ignore[arg-type]
    made.submit(gp.Job("a"))
    made.submit(gp.Job("b"))
    return made


def test_a_scheduler_takes_a_mechanism_by_name() -> None:
    made = scheduler("priority")
    assert [next(iter(made.next_round().assignments)) for _ in range(6)] == list("ababab")
    with pytest.raises(gp.UnknownNameError, match="mechanism"):
        scheduler("defict")


def test_what_was_received_counts_from_the_allocation_in_force() -> None:
    seen = []

    def watch(asked: gp.RoundDemand) -> np.ndarray:
        seen.append(asked.received.sum())
        return gp.scheduling.choose_jobs(asked)

    made = scheduler(watch)
    for _ in range(3):
        made.next_round()
    made.submit(gp.Job("c"))
    for _ in range(3):
        made.next_round()
    assert seen == [0, 1, 2, 0, 1, 2]
