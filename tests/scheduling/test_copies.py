"""Copies of solvers and schedulers, in memory and in other processes, continue like the original and do not change it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import gavel_py as gp
from tests.scheduling.schedulers import busy, goes_on, job, scheduler, shares


def unpickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))  # noqa: S301


WAYS: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, unpickled]
ways = pytest.mark.parametrize("copied", WAYS, ids=lambda way: way.__name__)


def problems(count: int, jobs: int = 40) -> list[gp.AllocationProblem]:
    """Problems of which each differs from the one before in a few jobs."""
    chance = np.random.default_rng(5)
    rows, found = chance.uniform(0.5, 8.0, (jobs, 3)), []
    for _ in range(count):
        rows = rows.copy()
        rows[chance.integers(0, jobs, 3)] = chance.uniform(0.5, 8.0, (3, 3))
        found.append(gp.AllocationProblem.from_arrays(rows, [8, 6, 4], steps_remaining=np.arange(1.0, jobs + 1)))
    return found


class TestSolver:
    @ways
    @pytest.mark.parametrize("name", ["max_min_fairness", "max_total_throughput", "min_makespan", "nash_welfare", "fifo"])
    def test_a_copy_goes_on_as_the_original(self, copied: Callable[[Any], Any], name: str) -> None:
        first, *others = problems(4)
        solver, fresh = gp.Solver(name), gp.Solver(name)
        solver.solve(first)
        again = copied(solver)
        kept = solver.to_dict()
        found = [again.solve(each) for each in others]
        assert solver.to_dict() == kept
        expected = [solver.solve(each) for each in others]
        for one, other in zip(found, expected, strict=True):
            assert np.array_equal(one.time_fractions, other.time_fractions)
            assert one.objective_value == other.objective_value
            one.verify()
        if expected[-1].objective_value is not None:
            assert fresh.solve(others[-1]).objective_value == pytest.approx(expected[-1].objective_value, rel=1e-9)

    @ways
    def test_it_starts_from_the_old_basis(self, copied: Callable[[Any], Any]) -> None:
        first, second = problems(2, jobs=400)
        solver = gp.Solver("max_total_throughput")
        cold = solver.solve(first).route
        warm = copied(solver).solve(second).route
        assert cold is not None
        assert warm is not None
        assert warm.iterations * 5 <= cold.iterations

    @ways
    def test_settings_are_kept(self, copied: Callable[[Any], Any]) -> None:
        solver = gp.Solver("max_min_fairness", agnostic=True, merge_tolerance=0.1, sharing=False)
        again = copied(solver)
        assert (again.policy, again.merge_tolerance, again.sharing) == (solver.policy, 0.1, False)

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_every_protocol_of_pickle(self, protocol: int) -> None:
        first, second = problems(2)
        solver = gp.Solver()
        solver.solve(first)
        again = pickle.loads(pickle.dumps(solver, protocol))  # noqa: S301
        assert again.solve(second).objective_value == solver.solve(second).objective_value


def priority_of_the_first(demand: gp.RoundDemand) -> NDArray[np.int64]:
    return gp.scheduling.choose_jobs(demand, hysteresis_rounds=2.0)


@pytest.mark.parametrize(
    "constraint",
    [
        gp.Forbid("a", "k80"),
        gp.KeepRunning(),
        gp.MaxGpus(0, job="b"),
        gp.MaxGpus(1, every_round=True),
        gp.Deadline("a", seconds=1000),
        gp.MinThroughput("a", 0.1),
        gp.Quota("t", gpus=1),
    ],
    ids=lambda constraint: constraint.kind,
)
def test_schedulers_and_allocations_under_any_constraint_can_be_pickled(constraint: gp.Constraint) -> None:
    policy = gp.resolve_policy("max_min_fairness", constraints=[constraint])
    made = scheduler("v100:2,k80:1", [job("a", total_steps=100), job("b", 2), job("c", tenant="t")], policy=policy)
    made.next_round()
    again, found = unpickled(made), made.allocation
    assert found is not None
    assert unpickled(found).constraints == found.constraints
    assert again.next_round() == made.next_round()


def planned() -> gp.RoundScheduler:
    made = scheduler("v100:2", [job(name) for name in "abc"])
    made.next_round()
    made.plan_next()
    return made


def sharing() -> gp.RoundScheduler:
    speeds = gp.ThroughputProfile.builtin("gavel-osdi20")
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:2,k80:2"), speeds, sharing=True)
    for number, name in enumerate(
        ["ResNet-18 (batch size 64)", "LM (batch size 20)", "A3C", "Recommendation (batch size 2048)"] * 2
    ):
        made.submit(gp.Job(f"j{number}", job_type=name))
    for _ in range(3):
        made.next_round()
    return made


def at_events() -> gp.RoundScheduler:
    """Return a scheduler with an allocation that is not resolved yet."""
    made = scheduler("v100:2", [job(name, total_steps=5) for name in "abcd"], policy="fifo", by_events=True)
    made.next_round(1)
    made.complete("a")
    made.next_round(2)
    return made


SCHEDULERS: dict[str, Callable[[], gp.RoundScheduler]] = {
    "new": lambda: scheduler("v100:2", [job("a"), job("b"), job("c")]),
    "busy": busy,
    "priority": lambda: busy(mechanism="priority"),
    "mechanism of its own": lambda: busy(mechanism=priority_of_the_first),
    "policy of its own": lambda: scheduler("v100:2", [job("a"), job("b")], policy=shares(a=0.5, b=0.9)),
    "constraints": lambda: busy(policy=gp.resolve_policy("max_min_fairness", constraints=[gp.SwitchCost(0.1)])),
    "water filling": lambda: busy(policy="water_filling"),
    "seldom solved": lambda: busy(solve_seconds=35),
    "planned": planned,
    "sharing": sharing,
    "at events": at_events,
}


def told(made: gp.RoundScheduler) -> list[object]:
    """Return the state of a scheduler, without wall-clock times, and in event-driven mode without what is counted in rounds."""
    document = made.to_dict()
    if made.by_events:
        del document["scheduler"]["jobs"]["histories"], document["scheduler"]["ledger"]
    if document["scheduler"]["allocation"] is not None:
        del document["scheduler"]["allocation"]["allocation"]["seconds"]
    return [document, made.delivery(), made.running, made.jobs, made.nodes, made.failed, made.lost_gpus]


def plays_on(made: gp.RoundScheduler, name: str) -> list[gp.Round]:
    if name in ("busy", "priority", "mechanism of its own", "constraints", "water filling", "seldom solved"):
        goes_on(made)
    rounds = [made.next_round() for _ in range(3)]
    made.submit(job("later") if name != "sharing" else gp.Job("later", job_type="A3C"))
    return [*rounds, made.plan_next(), *(made.next_round() for _ in range(3))]


class TestScheduler:
    @ways
    @pytest.mark.parametrize("name", SCHEDULERS)
    def test_a_copy_plays_the_same_rounds_and_leaves_the_original_alone(self, copied: Callable[[Any], Any], name: str) -> None:
        made, untouched = SCHEDULERS[name](), SCHEDULERS[name]()
        again = copied(made)
        assert told(again) == told(made)
        rounds = plays_on(again, name)
        assert told(made) == told(untouched)
        assert plays_on(made, name) == rounds
        assert told(made) == told(again)

    @ways
    def test_a_lazy_allocation_is_resolved_by_the_copy(self, copied: Callable[[Any], Any]) -> None:
        made = at_events()
        again = copied(made)
        made.complete("b")
        made.next_round(3)
        assert again.allocation is not None
        assert tuple(again.allocation.job_ids) == ("b", "c", "d")
        again.allocation.verify()

    def test_the_allocation_of_a_copy_can_be_verified(self) -> None:
        again = unpickled(busy())
        again.allocation.verify()

    def test_policy_and_mechanism_may_copy_the_scheduler(self) -> None:
        copies: list[gp.RoundScheduler] = []

        def mechanism(demand: gp.RoundDemand) -> NDArray[np.int64]:
            copies.append(copy.deepcopy(made))
            return gp.scheduling.choose_jobs(demand)

        made = scheduler("v100:1", [job("a"), job("b")], mechanism=mechanism)
        rounds = [made.next_round() for _ in range(3)]
        copies[1].mechanism = "deficit"
        assert [copies[1].next_round() for _ in range(2)] == rounds[1:]

    @pytest.mark.deep
    @pytest.mark.parametrize("method", ["spawn", "fork"])
    def test_to_another_process_and_back(self, method: str) -> None:
        made = busy()
        with ProcessPoolExecutor(1, mp_context=get_context(method)) as pool:
            again, rounds = pool.submit(elsewhere, made).result(60)
        assert goes_on(made) == rounds
        assert made.next_round() == again.next_round()


def elsewhere(made: gp.RoundScheduler) -> tuple[gp.RoundScheduler, object]:
    """Continue in another process, and send the scheduler back."""
    rounds = goes_on(made)
    return made, rounds


@pytest.mark.parametrize(
    "error",
    [
        gp.InputError("something"),
        gp.UnknownNameError(gp.Fault("job 'a'", "job_id", "is unknown"), gp.Fault("job 'b'", "", "too")),
        gp.ConflictError(["pin", "forbid"], alone=False),
        gp.ProofError("not proven"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_another_process_arrives_as_it_was_raised(error: gp.GavelError) -> None:
    again = unpickled(error)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
