"""Several partitions in one driver: jobs stay on the nodes of theirs, and no GPU idles beside a job that could use it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, gavel, log_of, plugin
from tests.slurm.loopback.logbook import decisions
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import comment, finish
from tests.slurm.loopback.seen import JobSeen, names_in
from tests.slurm.loopback.submitting import Work, submit
from tests.slurm.loopback.test_reservations import reserve
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]

MANAGED = "gpu,long,own"
PARTITIONS = {"gpu": "v100-[0-1]", "long": "v100-[1-2]", "own": "k80-0", "plain": "ALL"}
NODES = {name: set(names_in(nodes)) for name, nodes in PARTITIONS.items() if name != "plain"}
NODES["plain"] = set().union(*NODES.values())


@pytest.fixture
def site() -> Iterator[LoopbackCluster]:
    """Two partitions that overlap on a node, one with a node of its own, and one that is not managed."""
    partitions = {name: f"Nodes={nodes}" for name, nodes in PARTITIONS.items()}
    with booted(Settings((Nodes("v100", 3), Nodes("k80", 1)), plugin(partition=MANAGED), partitions=partitions)) as made:
        yield made


def job_in(cluster: LoopbackCluster, partition: str, gpus: int, nodes: int = 1, *options: str) -> int:
    return submit(cluster, Work("job", (f"--nodes={nodes}", f"--gres=gpu:{gpus}"), options=(comment(1e7), *options)), partition)


def misplaced(seen: Mapping[int, JobSeen], asked: Mapping[int, str]) -> dict[int, JobSeen]:
    """Return the running jobs that are outside of all partitions that they asked for."""
    return {
        job: seen[job]
        for job, names in asked.items()
        if not any(seen[job].placement.keys() <= NODES[name] for name in names.split(","))
    }


def oversubscribed(seen: Mapping[int, JobSeen]) -> set[str]:
    return {node for node in NODES["plain"] if sum(each.placement.get(node, 0) for each in seen.values()) > 4}


def waiting_beside_room(seen: Mapping[int, JobSeen], asked: Mapping[int, str], gpus: Mapping[int, int]) -> set[int]:
    """Return the waiting jobs of one node for which a node of their partitions has room."""
    used = {node: sum(each.placement.get(node, 0) for each in seen.values()) for node in NODES["plain"]}
    return {
        job
        for job, names in asked.items()
        if seen[job].state == "PENDING" and any(used[node] + gpus[job] <= 4 for name in names.split(",") for node in NODES[name])
    }


def is_settled(cluster: LoopbackCluster, asked: Mapping[int, str], gpus: Mapping[int, int]) -> bool:
    seen = cluster.jobs()
    assert not misplaced(seen, asked)
    assert not oversubscribed(seen)
    return not waiting_beside_room(seen, asked, gpus)


def test_jobs_of_overlapping_partitions_share_nodes_and_stay_within_theirs(site: LoopbackCluster) -> None:
    refused = site.run("sbatch", "--partition=gpu,plain", "--gpus=1", "--chdir=/", "--output=/dev/null", "--wrap=true")
    assert "not all of partitions gpu,plain are managed by gavel (gpu,long,own)" in refused.stderr
    lists = ("gpu", "gpu", "gpu", "gpu", "gpu", "long", "long", "long", "gpu,long", "own", "own", "own")
    # One node is reserved for later: the jobs of its partition end before, those of the others may run for ever.
    reserve(site, "k80-0", 3600.0)
    asked = {job_in(site, names, 2, 1, *(("--time=20",) if names == "own" else ())): names for names in lists}
    gpus = dict.fromkeys(asked, 2)
    with driving(site, "--partition", MANAGED, "--round", "60") as driver:
        driver.until(lambda: len(site.running()) == 8, "all GPUs to be in use")
        seen = site.jobs()
        assert (misplaced(seen, asked), oversubscribed(seen), waiting_beside_room(seen, asked, gpus)) == ({}, set(), set())
        own = next(job for job in asked if asked[job] == "own" and seen[job].placement)
        finish(site, own)
        driver.until(lambda: len(site.running()) == 8, "the third job of its partition to have its GPUs")
        second = gavel(site, "run", "--once", "--partition", "long", "--state", str(site.folder / "second"))
        assert "partition long: another driver manages it" in second.stderr
        assert driver.end() == 0, driver.output()
    for left in ({"long", "gpu,long"}, set[str]()):
        released = gavel(site, "release", "--partition", "own,gpu" if left else "long", timeout_only=True)
        assert released.returncode == 0, released.stderr
        until(lambda at=left: {asked[job] for job, each in site.jobs().items() if each.bound} <= at, "Slurm to notice it")


def test_partitions_are_played(site: LoopbackCluster) -> None:
    """Jobs come and go, are moved to other partitions, and a partition is down for a while."""
    rng = random.Random(7)  # noqa: S311
    lists = ("gpu", "long", "own", "gpu,long", "long,own", "gpu,long,own")
    asked: dict[int, str] = {}
    gpus: dict[int, int] = {}

    def come(count: int) -> None:
        for _ in range(count):
            size, names = rng.choice((1, 1, 2, 4)), rng.choice(lists)
            job = job_in(site, names, size)
            asked[job], gpus[job] = names, size

    come(14)
    with driving(site, "--partition", MANAGED, "--round", "6") as driver:
        for turn in range(8):
            # A job that is moved while it is being started fails to start, and is tried again some rounds later.
            driver.until(lambda: is_settled(site, asked, gpus), "no job to wait beside GPUs", within=120)
            seen = site.jobs()
            running = [job for job in asked if seen[job].placement]
            over = rng.sample(running, 3)
            site.tell("scancel", *map(str, over))
            driver.until(lambda over=over: all(site.jobs()[job].is_over for job in over), "some to end")
            for job in over:
                del asked[job]
            waiting = [job for job in asked if seen[job].state == "PENDING"]
            for job in rng.sample(waiting, min(2, len(waiting))):
                names = rng.choice(lists)
                if site.run("scontrol", "update", f"JobId={job}", f"Partition={names}").returncode == 0:
                    asked[job] = site.jobs()[job].partition if site.jobs()[job].state == "PENDING" else names
            come(3)
            if turn == 3:
                site.tell("scontrol", "update", "PartitionName=own", "State=DOWN")
                stays = {job for job in asked if site.jobs()[job].placement.keys() == NODES["own"]}
                driver.rounds(2)
                assert stays <= site.running(), "they could not start again"
                site.tell("scontrol", "update", "PartitionName=own", "State=UP")
            time.sleep(1)
        assert driver.end() == 0, driver.output()
    assert not [made.applied["elsewhere"] for made in decisions(log_of(site)) if made.applied and made.applied["elsewhere"]]
