"""The model of Slurm's backfill: jobs that overtake, jobs that must not, and the same ends as by a second model, node by node."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel_py.integrations.slurm.monitoring.backfill import BackfilledJob, backfilled

NODES = [("v100", 4), ("v100", 4), ("k80", 4)]


def job(at: float, gpus: int, limit: float, *, nodes: int = 1, **seconds: float) -> BackfilledJob:
    return BackfilledJob(at, nodes, gpus, limit, seconds)


def test_a_job_overtakes_only_where_it_delays_none_that_came_before() -> None:
    """A gang of two nodes waits until 100; a job of 80 s fits before, one of 120 s does not, although it would end in time."""
    requests = [
        job(0, 4, 100, v100=100),
        job(1, 4, 50, nodes=2, v100=50),
        job(2, 2, 120, v100=10),
        job(3, 2, 80, v100=60),
        job(4, 1, 9, k80=5),
    ]
    assert backfilled(requests, NODES) == pytest.approx([100, 150, 160, 63, 9])


def test_a_job_that_ends_early_makes_room_early() -> None:
    requests = [job(0, 4, 1000, k80=30), job(1, 4, 100, k80=20), job(2, 4, 100, p100=20)]
    assert backfilled(requests, NODES) == pytest.approx([30, 50, math.nan], nan_ok=True)


KINDS = st.sampled_from(["v100", "k80", ""])
JOBS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 4), st.integers(1, 2), st.integers(1, 40), st.floats(0.1, 1.0), KINDS), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(JOBS)
def test_ends_are_those_of_a_model_of_single_nodes(drawn: list[tuple[int, int, int, int, float, str]]) -> None:
    requests = [
        BackfilledJob(at, nodes, gpus, float(limit), {name: limit * part for name in ("v100", "k80") if kind in ("", name)})
        for at, gpus, nodes, limit, part, kind in sorted(drawn, key=lambda each: each[0])
    ]
    assert backfilled(requests, NODES) == pytest.approx(one_by_one(requests), nan_ok=True)


def one_by_one(requests: list[BackfilledJob]) -> list[float]:
    """Return when jobs end; at each event, all waiting jobs are planned again on lists of what each node holds."""
    ends, running, waiting = [math.nan] * len(requests), dict[int, tuple[float, list[int]]](), list[int]()
    times, seen = {request.arrival_seconds for request in requests}, 0
    while times:
        now = min(times)
        times.remove(now)
        while seen < len(requests) and requests[seen].arrival_seconds <= now:
            waiting.append(seen)
            seen += 1
        running = {i: each for i, each in running.items() if ends[i] > now}
        held = {n: [(now, end, requests[i].gpus) for i, (end, places) in running.items() if n in places] for n in range(len(NODES))}
        for i in list(waiting):
            request = requests[i]
            for begin in sorted({now} | {end for each in held.values() for _, end, _ in each}):
                end = begin + request.limit_seconds
                able = [n for n, (kind, _) in enumerate(NODES) if kind in request.seconds]
                fit = [n for n in able if free(held[n], NODES[n][1], begin, end) >= request.gpus]
                if len(fit) >= request.nodes:
                    places = fit[: request.nodes]
                    for n in places:
                        held[n].append((begin, end, request.gpus))
                    if begin == now:
                        ends[i] = now + max(request.seconds[NODES[n][0]] for n in places)
                        running[i] = end, places
                        waiting.remove(i)
                        times.add(ends[i])
                    break
    return ends


def free(held: list[tuple[float, float, int]], gpus: int, begin: float, end: float) -> int:
    """Return the GPUs of a node that are free in all of this time."""
    moments = [begin, *(start for start, _, _ in held if begin < start < end)]
    return gpus - max(sum(each for start, until, each in held if start <= at < until) for at in moments)
