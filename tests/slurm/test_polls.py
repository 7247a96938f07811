"""Readings between rounds: as little as suffices, and what jobs of other partitions hold counts all the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.client.queue import QueueReader
from tests.slurm.fake_slurm import FakeSlurm, no_answer
from tests.slurm.support import BERT, bound, cluster, cluster_with, driver, events
from tests.slurm.test_accounts import with_accounts

both_shapes = pytest.mark.parametrize("new", [False, True], ids=["22.05", "24.05"])


def with_others(slurm: FakeSlurm, count: int = 50) -> FakeSlurm:
    """Add jobs that wait in another partition, without need for GPUs."""
    for number in range(1000, 1000 + count):
        slurm.submit(number, partition="free", per_job="", reason="Resources")
    return slurm


def queried(slurm: FakeSlurm, seconds: float, folder: Path) -> list[tuple[str, ...]]:
    """Run one round and then polls for this time; return the queries of the queue, without those for the lease."""
    queries: list[tuple[str, ...]] = []

    def note(arguments: Sequence[str]) -> None:
        if arguments[0] == "squeue" and "--name=gavel-driver" not in arguments:
            queries.append(tuple(arguments))

    slurm.fails, slurm.clock.stops_at = note, slurm.clock.now() + seconds
    with driver(slurm, folder, round_seconds=10_000.0) as driven:
        driven.run()
    return queries


def test_up_to_23_11_polls_read_text_while_nothing_changes(tmp_path: Path) -> None:
    slurm, begin = with_others(cluster_with(1, 4)), 0.0
    begin = slurm.clock.now()
    before = len(queried(slurm, 20.0, tmp_path))

    def arrive(now: float) -> None:
        if now > begin + 300 and 1200 not in slurm.jobs:
            slurm.submit(1200, partition="free", per_job="", reason="Resources")

    slurm.clock.on_sleep = arrive
    later = queried(slurm, 600.0, tmp_path)
    assert sum("--json" in words for words in later) <= before, "those of a round"
    polls = [words for words in later if "--json" not in words]
    assert len(polls) > 100
    assert {word for words in polls for word in words if word.startswith(("--part", "--node"))} == {
        "--partition=gpu",
        "--nodelist=k80-0,v100-0",
    }


def test_from_24_05_on_polls_read_the_jobs_of_the_partition(tmp_path: Path) -> None:
    slurm = cluster_with(3, 4)  # one waits, so that it is tried every 30 s to start it
    slurm.new, slurm.members = True, {name: ["gpu"] for name in slurm.nodes}
    later = queried(with_others(slurm), 600.0, tmp_path)[8:]
    assert all("--json" in words for words in later)
    assert all(words[-1] == "--partition=gpu" or words[-1].startswith("--states=RUNNING,") for words in later)
    assert 15 <= sum(words[-1] != "--partition=gpu" for words in later) <= 25


def test_from_24_05_on_only_the_first_round_reads_all_jobs() -> None:
    slurm = with_others(cluster_with(2, 4))
    slurm.new = True
    reader = QueueReader(slurm, ["gpu"])
    assert len(reader.whole(0.0).jobs) == 52
    assert reader.whole(0.0).jobs.keys() == {"1", "2"}
    slurm.jobs[1].partition = "free"
    slurm.submit(3, per_job="gpu:1")
    for reading in (reader.whole, reader.latest, reader.whole):
        snapshot = reading(0.0)
        assert {job_id: job.partition for job_id, job in snapshot.jobs.items()} == {"1": "free", "2": "gpu", "3": "gpu"}


def test_a_reading_that_fails_is_repeated() -> None:
    slurm = cluster_with(2, 4)
    reader = QueueReader(slurm, ["gpu"])
    reader.whole(0.0)
    for reading in (reader.jobs, lambda: reader.whole(0.0)):
        slurm.submit(len(slurm.jobs) + 1, per_job="gpu:1")

        def no_json(arguments: Sequence[str]) -> None:
            if "--json" in arguments:
                no_answer()

        slurm.fails = no_json
        with pytest.raises(gp.SlurmError):
            reading()
        slurm.fails = None
        assert len(reader.jobs()) == len(slurm.jobs)


@both_shapes
def test_a_job_that_moves_before_it_was_read_is_given_back(tmp_path: Path, new: bool) -> None:
    """The plugin has made it wait for the lease, but it is in none of the partitions that the driver reads."""
    slurm = cluster(new=new)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        slurm.submit(1, per_job="gpu:1")
        slurm.jobs[1].partition = "free"
        assert bound(slurm) == {1}
        for _ in range(2):
            slurm.clock.seconds += 100
            driven.round()
    assert bound(slurm) == set()
    (line,) = events(tmp_path, "let_go")
    assert list(line["jobs"]) == ["1"]


def counted(new: bool, kind: str, gpus: int) -> dict[str, Any]:
    """Return how sinfo counts these GPUs of a node as used."""
    used = f"gpu:{kind}:{gpus}(IDX:0-{gpus - 1})"
    return {"gres": {"total": f"gpu:{kind}:4", "used": used}} if new else {"gres_used": used}


@both_shapes
def test_gpus_that_another_partition_frees_between_rounds_are_used(tmp_path: Path, new: bool) -> None:
    slurm = cluster(new=new)
    slurm.nodes["v100-1"], slurm.states["v100-1"] = ("v100", 4), "IDLE"
    slurm.submit(1, partition="free", per_job="gpu:4", wanted=["v100-1"], priority=1000)
    slurm.run(["squeue", "--json"])  # Slurm starts it
    slurm.counted["v100-1"] = counted(new, "v100", 4)
    for number in (2, 3, 4):
        slurm.submit(number, per_job="gpu:4", comment=BERT)
    begin = slurm.clock.now()

    def end(now: float) -> None:
        if now > begin + 40 and slurm.jobs[1].held:
            slurm.end(1)
            slurm.counted.clear()

    slurm.clock.on_sleep, slurm.clock.stops_at = end, begin + 80
    with driver(slurm, tmp_path, round_seconds=300.0) as driven:
        driven.run()
    (filled,) = events(tmp_path, "filled")
    assert filled["seconds"] == begin + 45
    assert {node for number in (2, 3, 4) for node in slurm.jobs[number].held} == {"v100-0", "v100-1", "k80-0"}


@both_shapes
def test_gpus_that_another_partition_takes_between_rounds_are_not_planned(tmp_path: Path, new: bool) -> None:
    slurm = cluster(new=new)
    slurm.submit(1, per_job="gpu:2", comment=BERT)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        assert slurm.jobs[1].held == {"v100-0": 2}
        slurm.clock.seconds += 5
        slurm.submit(2, partition="free", per_job="gpu:2", wanted=["v100-0"], priority=1000)
        slurm.run(["squeue", "--json"])  # Slurm starts it
        slurm.counted["v100-0"] = counted(new, "v100", 4)
        slurm.submit(3, per_job="gpu:2", comment=BERT)
        driven.fill()
        assert slurm.jobs[3].held == {"k80-0": 2}
        slurm.end(2)
        slurm.counted.clear()
        slurm.submit(4, per_job="gpu:2", comment=BERT)
        driven.fill()
        assert slurm.jobs[4].held == {"v100-0": 2}


@both_shapes
def test_gpus_elsewhere_count_towards_limits_between_rounds(tmp_path: Path, new: bool) -> None:
    """Account chem may use 4 GPUs: within a round, 4 on nodes of their own are used and free again."""
    of_chem = {"account": "chem", "user_name": "games", "qos": "normal"}
    slurm = with_accounts(cluster(new=new))
    slurm.nodes["k80-9"], slurm.states["k80-9"], slurm.members["k80-9"] = ("k80", 4), "IDLE", ["free"]
    with driver(slurm, tmp_path) as driven:
        slurm.submit(1, per_job="gpu:1", comment=BERT, more={"account": "physics", "user_name": "nobody", "qos": "normal"})
        driven.round()
        slurm.submit(2, partition="free", per_job="gpu:4", wanted=["k80-9"], priority=1000, more=of_chem)
        slurm.run(["squeue", "--json"])
        slurm.submit(3, per_job="gpu:2", comment=BERT, more=of_chem)
        driven.fill()
        assert not slurm.jobs[3].held
        slurm.end(2)
        slurm.submit(4, per_job="gpu:2", comment=BERT, more=of_chem)
        driven.fill()
        assert slurm.jobs[3].held
        assert slurm.jobs[4].held


@both_shapes
def test_a_job_that_moves_to_another_partition_between_rounds_has_not_left(tmp_path: Path, new: bool) -> None:
    slurm = cluster_with(3, 4)
    slurm.new, begin = new, slurm.clock.now()
    waiting: list[int] = []

    def move(now: float) -> None:
        if now > begin + 40 and not waiting:
            waiting.extend(number for number, job in slurm.jobs.items() if not job.held)
            slurm.jobs[waiting[0]].partition = "free"

    slurm.clock.on_sleep, slurm.clock.stops_at = move, begin + 190
    with driver(slurm, tmp_path) as driven:
        driven.run()
        assert driven.state is not None
        assert len(driven.state.tracked) == 2
    assert events(tmp_path, "left") == []
    assert slurm.jobs[waiting[0]].priority, "it is given back to Slurm"
