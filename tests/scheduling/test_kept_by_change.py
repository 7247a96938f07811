"""State that event-driven decisions keep and update equals the same state computed from scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.io.names import natural_key
from gavel_py.problem.job_table import SortedRows
from gavel_py.scheduling.event_driven import EventDrivenPlanner
from gavel_py.scheduling.event_driven.queue import JobQueue
from gavel_py.scheduling.event_driven.queued_jobs import JobProfile, JobProfiler, QueuedJob
from gavel_py.scheduling.jobs.history import ScheduledJobs
from gavel_py.scheduling.state import SchedulerState
from tests.scheduling.test_event_driven import CLUSTERS, POLICIES, TYPES, policy_of, traces
from tests.support.examples import examples
from tests.support.profiles import OSDI


@contextmanager
def counted_anew() -> Iterator[None]:
    """Compare kept state with computed state at each decision."""
    follow_selection, follow_queue, follow_decision = JobQueue.select, JobQueue.update, EventDrivenPlanner.decide

    def select(self: JobQueue) -> list[QueuedJob]:
        before = {each: each.column for each in self.by_row.values()}
        running_on = {each: each.runs_on for each in self.by_row.values()}
        moved = follow_selection(self)
        check_selection(self, self._policy, running_on)
        assert {each for each in self.by_row.values() if each.column != before[each]} == set(moved)
        return moved

    def update(self: JobQueue) -> bool:
        table = copy(self._table)
        anew = JobQueue(self._policy, table, self._profiler, self._capacities, self._look_up_workflows)
        table.changed, table.progressed, table.has_progress = set(table.by_id.values()), table.progressed.copy(), False
        found = follow_queue(self)
        assert found == follow_queue(anew)
        positions, expected = ({row: queue._position(each) for row, each in queue.by_row.items()} for queue in (self, anew))
        assert positions == expected
        assert list(self.excluded.items()) == list(anew.excluded.items())
        return found

    def decided(self: EventDrivenPlanner, state: SchedulerState) -> Any:
        found = follow_decision(self, state)
        if found is not None:
            entries = self._queue.by_row.values()
            running = {each.job_id: self._place_of(each) for each in entries if each.runs_on >= 0}
            assert all(each.column == each.runs_on for each in entries)
            assert list(found.assignments) == sorted(running)
            layout, held = state.layout, found.assignments.held
            for i, (job_id, assignment) in enumerate(found.assignments.items()):
                column, gpus = running[job_id]
                assert assignment == gp.Assignment(layout.types[column], layout.named(gpus))
                assert (held.types[i], held.list_of(i)) == (column, gpus)
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EventDrivenPlanner, "decide", decided)
        patched.setattr(JobQueue, "update", update)
        patched.setattr(JobQueue, "select", select)
        yield


def check_selection(queue: JobQueue, policy: gp.OrderedPolicy, running_on: dict[QueuedJob, int]) -> None:
    """Compare the types of all jobs and the free GPUs with those that the policy selects."""
    order, left = sorted(queue.by_row.values(), key=queue._position), list(map(float, queue._capacities))
    may_stay = [running_on[each] if running_on[each] in each.profile.types else -1 for each in order]
    seats, _ = policy.seats([list(each.profile.types) for each in order], [each.size for each in order], may_stay, left)
    assert [each.column for each in order] == seats
    assert queue._free == left
    selected = [each for each in order if each.column >= 0]
    assert (queue._selected.jobs, queue._selected.keys) == (selected, [queue._position(each)[0] for each in selected])
    assert sorted(entry for waiting in queue._waiting.values() for entry in waiting) == [
        (queue._position(each), each) for each in order if each.column < 0
    ]


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
    simulation = gp.Simulation(trace, gp.Cluster.from_inline(gpus), OSDI, policy_of(policy), round_seconds=None, **options)
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
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:8/4,k80:8/4"), OSDI, policy_of(policy), by_events=True)
    with counted_anew():
        for number, (call, pick) in enumerate(calls):
            tell(made, call, number, pick)
        made = gp.RoundScheduler.from_dict(made.to_dict(), OSDI, policy=policy_of(policy))
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
    sizes=st.lists(st.sampled_from([1, 1, 2, 3]), min_size=25, max_size=25),
    wishes=st.lists(st.sampled_from([(0, 1, 2), (1, 0, 2), (2,), (0,)]), min_size=25, max_size=25),
    lives=st.lists(st.tuples(st.permutations(range(25)), st.integers(0, 25), st.integers(0, 24)), max_size=8),
    moves=st.booleans(),
)
def test_the_incremental_selection_equals_a_full_one(
    policy: str, sizes: list[int], wishes: list[tuple[int, ...]], lives: list[Any], moves: bool
) -> None:
    """Jobs arrive, leave, change and get other sort keys."""
    chosen = policy_of(policy)
    assert isinstance(chosen, gp.OrderedPolicy)
    table = ScheduledJobs()
    profiles = [
        JobProfile(size, True, types, 1.0, 0, [0, 0, 0], [1, 1, 1], None) for size, types in zip(sizes, wishes, strict=True)
    ]
    profiler = cast("JobProfiler", lambda row: profiles[row])
    queue = JobQueue(chosen, table, profiler, [6, 4, 3], lambda: np.zeros(table.capacity))
    jobs = [gp.Job(f"j{i}", num_gpus=size, total_steps=1) for i, size in enumerate(sizes)]
    table.add(jobs, table.requests_of(jobs))
    table.track()
    places = dict.fromkeys(range(25), 0.0)
    queue._keys_of = lambda rows: np.array([places[row] for row in rows.tolist()])  # type: ignore[method-assign]
    present = set(range(25))
    for order, count, renewed in lives:
        now = set(order[:count])
        places |= {row: float(place) for place, row in enumerate(order)} if moves else {}
        table.columns["left"][sorted(present - now)], table.columns["left"][sorted(now)] = 0, -1
        table.changed |= (present ^ now) | {renewed}
        present = now
        queue.update()
        queue._move(queue._is_queued)
        running_on = {each: each.column for each in queue.by_row.values()}
        queue.select()
        check_selection(queue, chosen, running_on)
        for each in queue.by_row.values():
            each.runs_on = each.column


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=6), st.integers(0, 10**6))
@settings(max_examples=examples(40))
def test_rows_stay_in_the_order_of_ids_however_many_come_and_go(changes: list[tuple[int, int]], seed: int) -> None:
    chance, present, count = np.random.default_rng(seed), dict[int, str](), 0
    found = SortedRows(natural_key)
    for leaving, coming in changes:
        for row in chance.permutation(list(present))[:leaving].tolist():
            found.discard(present.pop(row), row)
        free = [row for row in range(300) if row not in present][:coming]  # rows are given out again
        present |= {row: f"j{chance.integers(30)}-{count + n}" for n, row in enumerate(free)}
        count += coming
        found.add([present[row] for row in free], free)
        if chance.random() < 0.7:
            assert found.rows.tolist() == sorted(present, key=lambda row: natural_key(present[row]))
    assert found.rows.tolist() == sorted(present, key=lambda row: natural_key(present[row]))
