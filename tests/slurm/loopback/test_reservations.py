"""Reservations on a real Slurm: jobs have left before one begins, and none is planned where Slurm would not start it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, log_of
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import comment

pytestmark = [needs_slurm, pytest.mark.deep]

AHEAD = 100.0


def submitted(cluster: LoopbackCluster, *words: str) -> int:
    asked = ["--parsable", "--partition=gavel", "--nodes=1", "--gres=gpu:4", "--output=/dev/null", "--chdir=/"]
    return int(cluster.tell("sbatch", *asked, *words, comment(1e7), "--wrap=exec sleep 600"))


def reserve(cluster: LoopbackCluster, node: str, after: float = AHEAD, name: str = "upgrade") -> float:
    """Reserve a node, for maintenance so that Slurm itself ignores running jobs, and return when that begins."""
    begin = time.time() + after
    when = time.strftime("%FT%T", time.localtime(begin))
    words = [
        f"reservationname={name}",
        f"starttime={when}",
        "duration=60",
        "flags=maint,ignore_jobs",
        f"nodes={node}",
        "users=root",
    ]
    cluster.tell("scontrol", "create", "reservation", *words)
    return begin


def test_jobs_leave_before_a_reservation_and_none_starts_there(settings: Settings) -> None:
    with booted(replace(settings, nodes=(Nodes("v100", 1), Nodes("k80", 1)))) as cluster:
        first = submitted(cluster, "--time=60")
        with driving(cluster, "--round", "8", "--warn-seconds", "0") as driver:
            driver.until(lambda: cluster.jobs()[first].placement == {"v100-0": 4}, "the job on the faster node")
            begin = reserve(cluster, "v100-0")
            driver.until(lambda: cluster.jobs()[first].placement == {"k80-0": 4}, "the job on the other node", within=AHEAD)
            moved = cluster.jobs()[first].started or 0.0
            assert begin - 8 - 30 - 20 < moved < begin, "in the last rounds before"
            late = [submitted(cluster), submitted(cluster, "--time=60")]
            inside = submitted(cluster, "--reservation=upgrade", "--time=1")
            driver.until(
                lambda: cluster.jobs()[inside].placement == {"v100-0": 4},
                "Slurm to start the job of the reservation",
                within=AHEAD + 60,
            )
            driver.rounds(2)
            assert {job for job, each in cluster.jobs().items() if "v100-0" in each.placement} <= {inside}
            cluster.tell("scancel", str(inside))
            cluster.tell("scontrol", "delete", "reservationname=upgrade")
            driver.until(
                lambda: any("v100-0" in cluster.jobs()[job].placement for job in [first, *late]), "the node to be used again"
            )
            assert driver.end() == 0, driver.output()
        done = [*events(log_of(cluster), "applied"), *events(log_of(cluster), "filled")]
        assert [line["waiting"] for line in done] == [{}] * len(done), "Slurm starts what is planned"
        assert [line["errors"] for line in done] == [[]] * len(done)


def test_jobs_that_end_before_reservations_run_there_beside_others_that_may_not(settings: Settings) -> None:
    """Of four nodes, three are reserved in 10, 20 and 30 min, and there are jobs of 5, 15 and 25 min and without a limit.

    Each runs where it ends in time, so all GPUs are in use; after an end, the next job that may use the node starts within the
    round. A reservation that is made meanwhile stops nobody, and then keeps the jobs that are too long off its node.
    """
    with booted(replace(settings, nodes=(Nodes("v100", 4),))) as cluster:
        for number in range(3):
            reserve(cluster, f"v100-{number}", 600.0 * (number + 1), f"r{number}")
        limits = ("--time=5", "--time=15", "--time=25", "--time=UNLIMITED")
        jobs = [submitted(cluster, limit) for limit in limits]
        waiting = [submitted(cluster, limit) for limit in limits]
        with driving(cluster, "--round", "60", "--warn-seconds", "0", "--min-run-seconds", "1000") as driver:
            driver.until(lambda: len(cluster.running()) == 4, "all nodes to be in use")
            seen = cluster.jobs()
            on = {node: job for job, each in seen.items() for node in each.placement}
            assert [job in (jobs[3], waiting[3]) for job in (on["v100-0"], on["v100-1"], on["v100-2"])] == [False] * 3
            assert on["v100-0"] in (jobs[0], waiting[0])
            assert on["v100-1"] not in (jobs[2], waiting[2])
            cluster.tell("scancel", str(on["v100-0"]))
            other = waiting[0] if on["v100-0"] == jobs[0] else jobs[0]
            driver.until(lambda: cluster.jobs()[other].placement == {"v100-0": 4}, "the other short job to start")
            reserve(cluster, "v100-3", 400.0, "r3")
            last = on["v100-3"]
            cluster.tell("scancel", str(last))
            quick = submitted(cluster, "--time=1")
            driver.until(lambda: cluster.jobs()[quick].placement == {"v100-3": 4}, "a job that ends before it", within=200)
            assert driver.end() == 0, driver.output()
        done = [*events(log_of(cluster), "applied"), *events(log_of(cluster), "filled")]
        assert [line["waiting"] for line in done] == [{}] * len(done), "Slurm starts what is planned"
