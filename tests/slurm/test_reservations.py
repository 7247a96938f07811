"""Reservations that have yet to begin: no job is planned where Slurm would not start it, and none is surprised by one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel_py.integrations.slurm.client.records import Reservation
from gavel_py.integrations.slurm.reservations import beginnings, reservations_in
from tests.slurm.fake_slurm import FakeSlurm
from tests.slurm.support import BERT, cluster, driver

LINE = (
    "ReservationName={name} StartTime={start} EndTime={end} Duration=00:10:00 Nodes={nodes} NodeCnt=1 CoreCnt=16 Features=(null) "
    "PartitionName=(null) Flags=MAINT,SPEC_NODES TRES=cpu=16 Users=root Groups=(null) Accounts=(null) Licenses=(null) "
    "State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n"
)
"""As Slurm 22.05 prints it."""


def reserved(slurm: FakeSlurm, nodes: str, after: float, seconds: float = 600.0) -> float:
    """Reserve nodes some seconds from now, and return when that begins."""
    begin = slurm.clock.now() + after
    times = {"start": datetime.fromtimestamp(begin).isoformat(), "end": datetime.fromtimestamp(begin + seconds).isoformat()}
    slurm.reservations = LINE.format(name="upgrade", nodes=nodes, **times)
    return begin


def job(slurm: FakeSlurm, number: int, minutes: int | None, gpus: int = 4) -> None:
    slurm.submit(number, per_job=f"gpu:{gpus}", comment=BERT, more={} if minutes is None else {"time_limit": minutes})


def where(slurm: FakeSlurm) -> dict[int, list[str]]:
    return {number: list(each.held) for number, each in slurm.jobs.items() if each.held}


def test_reservations_are_read() -> None:
    text = LINE.format(name="a", start="2026-11-23T21:48:30", end="2026-11-23T21:58:30", nodes="v100-[0-1],k80-0")
    text += LINE.format(name="licences", start="2026-11-23T21:48:30", end="2026-11-23T21:58:30", nodes="(null)")
    (found,) = reservations_in(
        text + LINE.format(name="odd", start="Unknown", end="x", nodes="b") + "No reservations in the system\n"
    )
    assert (found.name, found.nodes, found.end_seconds - found.start_seconds) == ("a", {"v100-0", "v100-1", "k80-0"}, 600.0)


@given(st.lists(st.tuples(st.sets(st.sampled_from("abc"), min_size=1), st.integers(0, 50), st.integers(1, 50)), max_size=5))
@settings(deadline=None, max_examples=50)
def test_the_next_reservation_of_each_node_counts(rows: list[tuple[set[str], int, int]]) -> None:
    found = beginnings([Reservation(str(n), frozenset(names), a, a + b) for n, (names, a, b) in enumerate(rows)], 25.0)
    for node in "abc":
        starts = [a for names, a, b in rows if node in names and a + b > 25]
        assert (found[node].start_seconds if node in found else None) == min(starts, default=None)


@pytest.mark.parametrize("minutes", [30, None])
def test_no_job_starts_where_its_limit_reaches_into_a_reservation(tmp_path: Path, minutes: int | None) -> None:
    """Of two nodes, the faster one is reserved in 20 min: jobs of 30 min and jobs without limit run on the other."""
    slurm = cluster()
    reserved(slurm, "v100-0", 1200.0)
    for number in (1, 2):
        job(slurm, number, minutes)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        assert list(where(slurm).values()) == [["k80-0"]]
        slurm.reservations = ""
        slurm.clock.sleep(100.0)
        driven.round()
        assert sorted(where(slurm).values()) == [["k80-0"], ["v100-0"]]


def test_jobs_that_end_before_it_start_there(tmp_path: Path) -> None:
    """With all nodes reserved, those of 30 min are set aside, and those of 10 min run."""
    slurm = cluster()
    begin = reserved(slurm, "v100-0,k80-0", 1200.0)
    for number, minutes in ((1, 30), (2, None), (3, 10), (4, 10)):
        job(slurm, number, minutes)
    with driver(slurm, tmp_path) as driven:
        decided, applied = driven.round()
        assert where(slurm).keys() == {3, 4}
        assert applied.waiting == {}
        why = "its time limit reaches into reservation upgrade of its nodes"
        assert {decided.picture.left_alone[job_id] for job_id in ("1", "2")} == {why}
        slurm.end(3)
        slurm.end(4)
        slurm.clock.seconds = begin + 600.0
        driven.round()
        assert where(slurm).keys() == {1, 2}, "it is over"


def test_jobs_move_away_before_it_begins_unless_they_end_in_time(tmp_path: Path) -> None:
    slurm = cluster()
    job(slurm, 1, 120)
    with driver(slurm, tmp_path, stop_seconds=30.0) as driven:
        driven.round()
        assert where(slurm) == {1: ["v100-0"]}
        begin = reserved(slurm, "v100-0", 1000.0)
        moved = 0.0
        while slurm.clock.now() < begin:
            slurm.clock.sleep(100.0)
            driven.round()
            moved = moved or (slurm.clock.now() if where(slurm) == {1: ["k80-0"]} else 0.0)
        assert 0 < begin - moved <= 100.0 + 30.0 + 60.0 + 100.0, "not long before"
        slurm.reservations = ""
        slurm.end(1)
        job(slurm, 2, 10)
        driven.round()
        assert where(slurm) == {2: ["v100-0"]}
        reserved(slurm, "v100-0,k80-0", 700.0)
        for _ in range(5):
            slurm.clock.sleep(100.0)
            driven.round()
        assert slurm.jobs[2].restarts == 0, "its limit ends before"
