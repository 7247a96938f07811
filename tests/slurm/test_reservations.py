"""Reservations that have yet to begin: no job is planned where Slurm would not start it, and none is surprised by one."""

from __future__ import annotations

import math
import tempfile
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gavel_py.integrations.slurm.client.records import Reservation
from gavel_py.integrations.slurm.reservations import MAX_GROUPS, beginnings, divided, reservations_in
from tests.slurm.fake_slurm import FIRST, FakeClock, FakeSlurm
from tests.slurm.support import BERT, cluster, driver

NODES = ("v100-0", "v100-1", "v100-2", "k80-0", "k80-1")

MARGIN = 10.0
"""Time that a start may take, until some have been measured."""

LINE = (
    "ReservationName={name} StartTime={start} EndTime={end} Duration=00:10:00 Nodes={nodes} NodeCnt=1 CoreCnt=16 Features=(null) "
    "PartitionName=(null) Flags=MAINT,SPEC_NODES TRES=cpu=16 Users=root Groups=(null) Accounts=(null) Licenses=(null) "
    "State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n"
)
"""As Slurm 22.05 prints it."""


def reserved(
    slurm: FakeSlurm, nodes: str, after: float, seconds: float = 600.0, *, also: bool = False, name: str = "upgrade"
) -> float:
    """Reserve nodes some seconds from now, and return when that begins; also: beside the other reservations."""
    begin = slurm.clock.now() + after
    times = {"start": datetime.fromtimestamp(begin).isoformat(), "end": datetime.fromtimestamp(begin + seconds).isoformat()}
    slurm.reservations = (slurm.reservations if also else "") + LINE.format(name=name, nodes=nodes, **times)
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


STARTS = st.dictionaries(st.sampled_from([f"n{i}" for i in range(14)]), st.integers(0, 30), max_size=14)
ENDS = st.lists(st.one_of(st.integers(0, 40), st.just(math.inf)), max_size=20)
GANGS = st.lists(st.sets(st.sampled_from([f"n{i}" for i in range(0, 14, 2)]), min_size=2, max_size=3), max_size=2)


@settings(deadline=None, max_examples=100)
@given(STARTS, ENDS, GANGS)
def test_nodes_are_divided_by_the_jobs_that_can_use_them(starts: dict[str, int], ends: list[float], gangs: list[set[str]]) -> None:
    ahead = {name: Reservation(f"r{start}", frozenset({name}), start, start + 10.0) for name, start in starts.items()}
    kinds = {f"n{i}": i % 2 for i in range(14)}
    found = divided(kinds, ahead, ends, gangs)
    linked = set().union(*gangs)
    for node, start in starts.items():
        bound = found[node].start_seconds if node in found else math.inf
        assert bound <= start or all(end <= start for end in ends), "never too late"
        if node not in linked and len({*starts.values()}) < MAX_GROUPS:
            assert all((end <= start) == (end <= bound) for end in ends), "the same jobs"
    for kind in (0, 1):
        assert len({each for node, each in found.items() if kinds[node] == kind}) < MAX_GROUPS
    for nodes in gangs:
        assert len({found.get(node) for node in nodes}) == 1


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


@pytest.mark.parametrize(("after", "node"), [(600.0 + MARGIN + 1, "v100-0"), (600.0 + MARGIN - 1, "k80-0")])
def test_the_time_that_a_start_takes_is_part_of_a_job(tmp_path: Path, after: float, node: str) -> None:
    """The faster node is reserved when a job of 10 min that starts now has just ended, or would just not have."""
    slurm = cluster()
    job(slurm, 1, 10)
    with driver(slurm, tmp_path) as driven:
        driven.look()
        reserved(slurm, "v100-0", after)
        driven.round()
        assert where(slurm) == {1: [node]}


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


def test_a_short_job_runs_before_a_reservation_beside_a_long_one(tmp_path: Path) -> None:
    """The faster node is reserved in 20 min: the job of 10 min has it, and that of 30 min the other, at once and within a round."""
    slurm = cluster()
    reserved(slurm, "v100-0", 1200.0)
    job(slurm, 1, 30)
    job(slurm, 2, 10)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        assert where(slurm) == {1: ["k80-0"], 2: ["v100-0"]}
        slurm.end(2)
        job(slurm, 3, 60)
        job(slurm, 4, 5)
        slurm.clock.sleep(50.0)
        driven.fill()
        assert where(slurm) == {1: ["k80-0"], 4: ["v100-0"]}


def test_a_job_of_the_reservation_is_left_to_slurm_and_others_of_its_account_are_not(tmp_path: Path) -> None:
    slurm = cluster()
    reserved(slurm, "v100-0", 1200.0)
    slurm.reservations = slurm.reservations.replace(
        "Users=root Groups=(null) Accounts=(null)", "Users=anna Groups=(null) Accounts=chem"
    )
    slurm.submit(1, per_job="gpu:4", comment=BERT, lease=FIRST, more={"resv_name": "upgrade", "account": "chem"})
    slurm.submit(2, per_job="gpu:4", comment=BERT, more={"account": "chem"})
    slurm.stuck = {1}
    with driver(slurm, tmp_path) as driven:
        decided, applied = driven.round()
        assert decided.picture.left_alone == {"1": "it runs in a reservation"}
        assert applied.given_back == ["1"], "Slurm starts it when the reservation begins"
        assert where(slurm) == {2: ["k80-0"]}


def test_what_jobs_are_owed_is_kept_when_groups_come_and_go(tmp_path: Path) -> None:
    """Twelve equal jobs on eight GPUs; those of 600 min cannot start on the node that is reserved from round 4 to 7."""
    slurm = cluster()
    slurm.nodes = {"v100-0": ("v100", 4), "v100-1": ("v100", 4)}
    slurm.states = dict.fromkeys(slurm.nodes, "IDLE")
    for number in range(1, 13):
        job(slurm, number, 30 if number % 2 else 600, gpus=1)
    with driver(slurm, tmp_path) as driven:
        for turn in range(12):
            if turn == 4:
                reserved(slurm, "v100-1", 6000.0)
                begin = slurm.clock.now()
            if turn == 8:
                slurm.reservations = ""
            driven.round()
            assert driven.state is not None
            scheduler = driven.state.scheduler
            assert len(scheduler.cluster.accelerator_names) == (2 if 4 <= turn < 8 else 1)
            assert sum(len(each) for each in where(slurm).values()) == 8
            if 4 <= turn < 8:
                new = [
                    number for number, nodes in where(slurm).items() if nodes == ["v100-1"] and slurm.jobs[number].start >= begin
                ]
                assert all(number % 2 for number in new)
            promised = [each.promised_seconds for each in scheduler.delivery().jobs.values()]
            assert sum(promised) == pytest.approx(8 * 100.0 * (turn + 1)), "nothing is lost, and nothing counted twice"
            slurm.clock.sleep(100.0)
        assert max(promised) - min(promised) < 400.0, "half a round of each of those with groups at most"
        assert max(job.running_seconds for job in driven.state.tracked.values()) <= 12 * 100.0


MINUTES = st.sampled_from([None, 5, 10, 20, 40, 90])
JOBS = st.lists(
    st.tuples(st.sampled_from(["gpu", "long", "gpu,long"]), st.sampled_from([1, 2, 4]), MINUTES, st.integers(0, 8)),
    min_size=1,
    max_size=12,
)
RESERVATIONS = st.lists(
    st.tuples(st.sets(st.sampled_from(NODES), min_size=1), st.integers(2, 30), st.integers(3, 10), st.integers(0, 8)), max_size=4
)


class Play:
    """Jobs and reservations that come to a cluster of two partitions, and what is seen there."""

    def __init__(self, members: list[list[str]]) -> None:
        kinds = zip(NODES, ("v100", "v100", "v100", "k80", "k80"), strict=True)
        self.slurm = FakeSlurm(FakeClock(), {name: (kind, 4) for name, kind in kinds})
        self.slurm.members = dict(zip(NODES, members, strict=True))
        self.gpus: dict[int, int] = {}

    def submit(self, number: int, partition: str, gpus: int, minutes: int | None) -> None:
        more, self.gpus[number] = {} if minutes is None else {"time_limit": minutes}, gpus
        self.slurm.submit(number, per_job=f"gpu:{gpus}", partition=partition, comment=BERT, more=more)

    def reserve(self, names: set[str], after: int, minutes: int) -> None:
        """Reserve nodes that no other reservation has then."""
        slurm, begin = self.slurm, self.slurm.clock.now() + 60.0 * after
        others = {each for nodes, start, end in slurm.booked() if start < begin + 60.0 * minutes and begin < end for each in nodes}
        if names - others:
            reserved(slurm, ",".join(sorted(names - others)), 60.0 * after, 60.0 * minutes, also=True, name=f"r{begin:.0f}")

    def sleep(self, seconds: float) -> None:
        """Pass the time, with the states of reserved nodes."""
        slurm = self.slurm
        slurm.clock.sleep(seconds)
        now = slurm.clock.now()
        busy = {name for names, begin, end in slurm.booked() if begin <= now < end for name in names}
        slurm.states |= {name: "IDLE+RESERVED" if name in busy else "IDLE" for name in NODES}
        for number, job in slurm.jobs.items():
            if job.held and job.start + 60.0 * job.more.get("time_limit", math.inf) <= now:
                slurm.end(number, "TIMEOUT")
            assert not busy & job.held.keys(), "it has left in time"

    def waits_beside_room(self, number: int, leaving: set[str]) -> bool:
        """Return whether a job waits although a node has room for it until its reservation."""
        slurm, job = self.slurm, self.slurm.jobs[number]
        gpus = self.gpus[number]
        mine = {name for name in NODES if set(slurm.members[name]) & set(job.partition.split(",")) and slurm.states[name] == "IDLE"}
        usable = (name for name in mine - leaving if slurm.ends_in_time(job, name, MARGIN))
        return job.state == "PENDING" and any(slurm.free(name) >= gpus for name in usable)

    def leaving(self) -> set[str]:
        """Return the nodes that jobs have to leave in the next rounds."""
        soon = self.slurm.clock.now() + 100.0 + 120.0 + 60.0
        return {name for names, begin, _ in self.slurm.booked() if begin <= soon for name in names}


PLAYS = (st.lists(st.sampled_from([["gpu"], ["long"], ["gpu", "long"]]), min_size=3, max_size=3), JOBS, RESERVATIONS)


def played(
    members: list[list[str]],
    jobs: list[tuple[str, int, int | None, int]],
    reservations: list[tuple[set[str], int, int, int]],
    turns: int,
) -> None:
    """Check that no job is planned across a reservation, and that no GPU idles beside a job that could use it."""
    play = Play([["gpu"], ["long"], *members])
    slurm = play.slurm
    with tempfile.TemporaryDirectory() as folder, driver(slurm, Path(folder), partition="gpu,long") as driven:
        for turn in range(turns):
            for names, after, minutes, when in reservations:
                if when == turn:
                    play.reserve(names, after, minutes)
            for number, (partition, gpus, limit, when) in enumerate(jobs, 1):
                if when == turn:
                    play.submit(number, partition, gpus, limit)
            for decide in (lambda: driven.round()[1], driven.fill):
                applied = decide()
                assert applied is None or applied.waiting == {}, "Slurm starts what is planned"
                assert all(slurm.free(name) >= 0 for name in NODES)
                leaving = play.leaving()
                assert not [number for number in slurm.jobs if play.waits_beside_room(number, leaving)]
                play.sleep(50.0)


@settings(deadline=None, max_examples=5)
@given(*PLAYS)
@example([["gpu"]] * 3, [("gpu", 1, None, 0)], [({"v100-0", "v100-1", "v100-2"}, 2, 3, 1)])
@example([["gpu"]] * 3, [("gpu", 1, None, 0)] * 5, [(set(NODES), 2, 3, 3)])
def test_no_job_is_planned_across_a_reservation_and_no_gpu_idles(
    members: list[list[str]], jobs: list[tuple[str, int, int | None, int]], reservations: list[tuple[set[str], int, int, int]]
) -> None:
    played(members, jobs, reservations, turns=6)


@pytest.mark.deep
@settings(deadline=None, max_examples=150)
@given(*PLAYS)
def test_reservations_are_played_at_length(
    members: list[list[str]], jobs: list[tuple[str, int, int | None, int]], reservations: list[tuple[set[str], int, int, int]]
) -> None:
    played(members, jobs, reservations, turns=12)
