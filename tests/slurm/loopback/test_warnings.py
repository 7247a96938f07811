"""Signals before stops on a real Slurm, sent by an operator: jobs have their time, and a driver killed in it loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, log_of, plugin
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.presence import needs_accounting, needs_root, needs_slurm
from tests.slurm.loopback.scenes import comment
from tests.slurm.loopback.test_rights import OPERATOR, SOMEBODY, known_as
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, needs_accounting, needs_root, pytest.mark.deep]

GRACE = 6.0
LIMIT = 30
SCRIPT = """
say() {{ echo "$(date +%s.%N) $1" >> {record}.$SLURM_JOB_ID; }}
trap 'say USR2; {reaction}' USR2
trap 'say TERM; exit 1' TERM
say start
while :; do sleep 0.2; done
"""


@pytest.fixture
def cluster() -> Iterator[LoopbackCluster]:
    """Two nodes of four GPUs, with accounts."""
    with booted(Settings((Nodes("v100", 1), Nodes("k80", 1)), plugin(OPERATOR), accounting=True)) as made:
        made.tell("sacctmgr", "-i", "add", "user", OPERATOR, "account=root", "adminlevel=operator")
        known_as(made, OPERATOR, "Operator")
        yield made


def submitted(cluster: LoopbackCluster, reaction: str) -> int:
    """Submit a job of another user that fills a node and reacts to the signal with a command of the shell."""
    script = SCRIPT.format(record=cluster.folder / "progress" / "signals", reaction=reaction)
    words = ["--parsable", "--partition=gavel", "--nodes=1", "--gres=gpu:4", f"--time={LIMIT}", "--output=/dev/null", "--chdir=/"]
    return int(cluster.tell("sbatch", *words, comment(1e7), f"--wrap={script}", user=SOMEBODY))


def record(cluster: LoopbackCluster, job: int) -> list[tuple[str, float]]:
    path = Path(cluster.folder / "progress" / f"signals.{job}")
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(what, float(when)) for when, what in lines]


@pytest.mark.every_release
def test_jobs_have_their_time_and_a_killed_driver_loses_nothing(cluster: LoopbackCluster) -> None:
    jobs = {submitted(cluster, "true"): "waits", submitted(cluster, "exit 3"): "fails"}
    jobs |= {submitted(cluster, "scontrol requeue $SLURM_JOB_ID; sleep 9"): "requeues"}
    words = ("--round", "12", "--warn-signal", "B:USR2", "--warn-seconds", str(GRACE))
    with driving(cluster, *words, user=OPERATOR) as driver:
        driver.until(lambda: events(log_of(cluster), "warned"), "a warning", within=90)
    with driving(cluster, *words, user=OPERATOR) as driver:  # the first one was killed

        def all_have_been_stopped() -> bool:
            return all([what for what, _ in record(cluster, job)].count("start") >= 2 for job in jobs)

        driver.until(all_have_been_stopped, "each job to have been stopped and started", within=240)
        assert driver.end() == 0, driver.output()
    seen = cluster.jobs()
    assert {seen[job].state for job in jobs} <= {"RUNNING", "PENDING", "COMPLETING"}
    for job, how in jobs.items():
        told = record(cluster, job)
        for (what, when), (then, later) in pairwise(told):
            if (what, then) == ("USR2", "TERM") and how == "waits":
                assert GRACE - 1 <= later - when <= GRACE + 6
        kinds = [what for what, _ in told]
        assert "USR2" in kinds
        assert ("TERM" in kinds) == (how != "fails"), "who exits by itself is not told to"
    assert [line["errors"] for line in events(log_of(cluster), "applied")] == [[]] * len(events(log_of(cluster), "applied"))


def test_time_limits_count_over_all_starts(cluster: LoopbackCluster) -> None:
    jobs = [submitted(cluster, "true") for _ in range(3)]
    with driving(cluster, "--round", "23", user=OPERATOR) as driver:

        def lowered() -> list[int]:
            return [job for job in jobs if limit_of(cluster, job) < LIMIT and cluster.jobs()[job].placement]

        driver.until(lowered, "a job that has run for a minute to start again", within=240)
        (job, *_) = lowered()
        assert driver.end() == 0, driver.output()
    stays = [line.split("|") for line in cluster.tell("sacct", "-DXnP", f"-j{job}", "--format=State,ElapsedRaw").split()]
    ran = sum(int(seconds) for state, seconds in stays if state == "REQUEUED")
    assert ran >= 60
    # The driver counts whole seconds of what it has seen, up to the stop.
    assert LIMIT - ran // 60 <= limit_of(cluster, job) <= LIMIT - (ran - 10 * len(stays)) // 60


def limit_of(cluster: LoopbackCluster, job: int) -> int:
    """Return the time limit of a job in minutes."""
    return int(until(lambda: cluster.tell("squeue", "-h", f"-j{job}", "-o%l"), "the limit").strip().partition(":")[0])
