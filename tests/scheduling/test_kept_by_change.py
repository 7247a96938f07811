"""State that event-driven decisions keep and update equals the same state computed from scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.policies import OrderedPolicy
from gavel_py.scheduling.event_driven import EventDrivenPlanner, PlacementCache
from gavel_py.scheduling.event_driven.queue import IncrementalSelection, JobProfile, JobQueue, QueuedJob
from gavel_py.scheduling.jobs import JobTable
from gavel_py.scheduling.state import SchedulerState
from tests.scheduling.test_event_driven import CLUSTERS, POLICIES, PROFILE, TYPES, policy_of, traces
from tests.support.examples import examples


@contextmanager
def counted_anew() -> Iterator[None]:
    """Compare kept state with computed state at each decision."""
    follow_seats, follow_gpus, follow_line = IncrementalSelection.update, PlacementCache.update, JobQueue.update
    follow_decision = EventDrivenPlanner.decide

    def seats(self: IncrementalSelection, order: Sequence[QueuedJob], changed: Any, runs: Any) -> set[str]:
        before = {each.job_id: self.column_of(each) for each in self._selected.values()}
        moved = follow_seats(self, order, changed, runs)
        expected, free = seats_anew(self._policy, order, self._capacities, runs(order))
        assert [self.column_of(each) for each in order] == expected
        assert self._free == free
        now = {each.job_id: seat for each, seat in zip(order, expected, strict=True) if seat >= 0}
        assert {job_id for job_id, _ in before.items() ^ now.items()} <= moved
        return moved

    def gpus(self: PlacementCache, running: Any, among: Any, changed: Any) -> None:
        follow_gpus(self, running, among, changed)
        assert all((job_id in self._held) == (job_id in running) == (job_id in self.type_of) for job_id in among)
        assert all(self._gpus_of(*self._held[job_id]) == gpus for job_id, gpus in running.items())

    def line(self: JobQueue, table: JobTable) -> bool:
        anew, all_of_them = JobQueue(self._policy, self._profiler), copy(table)
        all_of_them.changed, all_of_them.progressed = set(table.by_id), set()
        found = follow_line(self, table)
        assert found == follow_line(anew, all_of_them)
        assert [each.position for each in self.order] == [each.position for each in anew.order]
        assert self.by_id.keys() == anew.by_id.keys() == {each.job_id for each in self.order}
        assert list(self.excluded.items()) == list(anew.excluded.items())
        return found

    def decided(self: EventDrivenPlanner, state: SchedulerState) -> Any:
        found = follow_decision(self, state)
        assert found is None or self._gpus.type_of == dict(
            zip(state.table.ids[found.rows].tolist(), found.held.types.tolist(), strict=True)
        )
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EventDrivenPlanner, "decide", decided)
        patched.setattr(JobQueue, "update", line)
        patched.setattr(IncrementalSelection, "update", seats)
        patched.setattr(PlacementCache, "update", gpus)
        yield


def seats_anew(
    policy: OrderedPolicy, order: Sequence[QueuedJob], capacities: Sequence[float], runs: list[int]
) -> tuple[list[int], list[float]]:
    """Return the types that the policy selects for these jobs, and the free GPUs."""
    left = list(capacities)
    seats, _ = policy.seats([each.job_profile.types for each in order], [each.job_profile.size for each in order], runs, left)
    return seats, left


@settings(max_examples=examples(40, costly=True))
@given(
    trace=traces(),
    policy=st.sampled_from(POLICIES),
    gpus=st.sampled_from(CLUSTERS),
    options=st.fixed_dictionaries(
        {
            "restart_seconds": st.sampled_from([0.0, 40.0]),
            "estimates": st.sampled_from(["exact", "recorded"]),
            "job_failures": st.sampled_from([0.0, 0.3, "recorded"]),
            "node_failures": st.sampled_from([None, None, gp.NodeFailures(9000, 900)]),
        }
    ),
)
def test_in_a_simulation(trace: list[gp.Submission], policy: str, gpus: str, options: dict[str, Any]) -> None:
    simulation = gp.Simulation(trace, gp.Cluster.from_inline(gpus), PROFILE, policy_of(policy), round_seconds=None, **options)
    with counted_anew():
        while simulation.now < 2e4 and simulation.step(2e4):
            pass


TOLD: dict[str, Callable[[gp.RoundScheduler, str, int], object]] = {
    "complete": lambda made, job_id, _: made.complete(job_id),
    "fail": lambda made, job_id, _: made.job_failed(job_id),
    "interrupt": lambda made, job_id, _: made.interrupted(job_id),
    "report": lambda made, job_id, pick: made.report(job_id, steps_done=float(pick % 9_000)),
    "update": lambda made, job_id, pick: made.update(job_id, num_gpus=1 + pick % 2, priority=float(pick % 3)),
}
CALLS = (*("submit",) * 4, *("next",) * 4, "plan", "down", "up", *TOLD)


@settings(max_examples=examples(60))
@given(
    policy=st.sampled_from(POLICIES),
    calls=st.lists(st.tuples(st.sampled_from(CALLS), st.integers(0, 10**6)), max_size=80),
)
def test_any_sequence_of_events(policy: str, calls: list[tuple[str, int]]) -> None:
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:8/4,k80:8/4"), PROFILE, policy_of(policy), by_events=True)
    with counted_anew():
        for number, (call, pick) in enumerate(calls):
            tell(made, call, number, pick)
        made = gp.RoundScheduler.from_dict(made.to_dict(), PROFILE, policy=policy_of(policy))
        for _ in range(2):
            made.next_round()


def tell(made: gp.RoundScheduler, call: str, number: int, pick: int) -> None:
    ids = [job.job_id for job in made.jobs]
    if call in TOLD and ids:
        TOLD[call](made, ids[pick % len(ids)], pick)
    elif call == "submit":
        kind, size = TYPES[pick % len(TYPES)], (1, 1, 2, 4)[pick % 4]
        job = gp.Job(f"j{number}", job_type=kind, num_gpus=size, total_steps=1e4, arrival_seconds=number, max_retries=pick % 2)
        made.submit(job)
    elif call in ("plan", "next"):
        made.plan_next() if call == "plan" else made.next_round()
    elif call in ("down", "up"):
        made.node_down("v100-0") if call == "down" else made.node_up("v100-0")


@settings(max_examples=examples(200))
@given(
    policy=st.sampled_from(POLICIES),
    sizes=st.lists(st.sampled_from([1, 1, 2, 3]), min_size=1, max_size=25),
    wishes=st.lists(st.sampled_from([[0, 1, 2], [1, 0, 2], [2], [0]]), min_size=25, max_size=25),
    lives=st.lists(st.tuples(st.permutations(range(25)), st.integers(0, 25), st.integers(0, 24)), max_size=8),
    moves=st.booleans(),
)
def test_the_incremental_selection_equals_a_full_one(
    policy: str, sizes: list[int], wishes: list[list[int]], lives: list[Any], moves: bool
) -> None:
    """Jobs arrive, leave and change positions; a new job of the same id is another object, as in `JobQueue`."""
    chosen = policy_of(policy)
    assert isinstance(chosen, OrderedPolicy)
    capacities = [6.0, 4.0, 3.0]
    kept, there = IncrementalSelection(chosen, capacities), {i: entry(i, size, wishes[i]) for i, size in enumerate(sizes)}
    present: set[int] = set()
    for order, count, renewed in lives:
        some = [i for i in order if i in there][:count]
        now = some if moves else sorted(some)
        changed = present ^ set(now) | {renewed}
        for i in changed & set(now):
            there[i] = entry(i, sizes[i], wishes[i])
        line, present = [there[i] for i in now], set(now)
        kept.update(line, {f"j{i}" for i in changed}, lambda some: [each.job_profile.types[-1] for each in some])
        runs = [each.job_profile.types[-1] for each in line]
        assert [kept.column_of(each) for each in line] == seats_anew(chosen, line, capacities, runs)[0]


def entry(number: int, size: int, wishes: list[int]) -> QueuedJob:
    job_profile = JobProfile(size, True, wishes, 1.0, 0, [0, 0, 0], [1, 1, 1], None)
    return QueuedJob(gp.Job(f"j{number}", num_gpus=size, total_steps=1), 1.0, job_profile, ())
