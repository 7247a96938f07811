"""Unplannable jobs run under Slurm's own scheduling beside managed ones; they are not stopped and do not wait for the driver."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Settings
from tests.slurm.loopback.driving import driving, gavel, log_of
from tests.slurm.loopback.logbook import decisions, events
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import crowd, gang
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]

PLANNED = (
    ("--nodes=1-2", "--gpus=4", "--cpus-per-gpu=8"),  # from 24.11 on, one without --nodes is for one node
    ("--gpus=4", "--cpus-per-gpu=4"),
    ("--ntasks=4", "--cpus-per-task=8", "--gpus=4"),
    ("--ntasks=40", "--gpus=4"),
    ("--ntasks=32", "--gpus=2"),
    ("--gpus=2", "--mincpus=12"),
    ("--nodes=1-2", "--gpus=4", "--mem-per-gpu=20G"),
    ("--gpus=2", "--mem-per-cpu=10G", "--cpus-per-task=4"),
    ("--ntasks=4", "--gpus-per-task=1"),
    ("--nodes=1-3", "--gpus=4"),
    ("--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4"),
    ("--gpus=2", "--contiguous"),
    ("--gpus=2", "--spread-job"),
)
"""Requests that nodes with 16 CPUs, 4 GPUs and 62.5 GB can meet with equal splits."""

LEFT = (
    ("--ntasks=64", "--gpus=2"),
    ("--ntasks=8", "--ntasks-per-node=4", "--gpus=2"),
    ("--gpus=2", "--exclusive"),
    ("--gpus=2", "--exclusive=user"),
    ("--gpus=2", "--nodelist=k80-8"),
    ("--gpus=2", "--exclude=v100-0"),
    ("--gpus-per-socket=2", "--sockets-per-node=1"),
    ("--gpus=2", "--constraint=[v100|p100]"),
    ("--gpus=2", ":", "--partition=gavel", "--gpus=1"),
)
"""Requests that only Slurm can meet."""


@pytest.mark.every_release
def test_all_kinds_of_requests_run(cluster: LoopbackCluster) -> None:
    """There is room for all jobs: managed ones run as planned, and Slurm starts the others."""
    requests = [each for each in PLANNED if "--spread-job" not in each or not cluster.settings.release.version.startswith("24.11")]
    planned = {gang(cluster, *request): request for request in requests}  # slurmctld 24.11.5 ends at the other, plugin or not
    left = {gang(cluster, *request): request for request in LEFT}
    ran: dict[int, list[int]] = {}

    def all_have_run() -> bool:
        ran.update({job: sorted(each.values()) for job, each in running(cluster).items()})
        return ran.keys() >= {*planned, *left}

    def as_decided() -> bool:
        """False while a round is being applied; so this is read before a signal ends the driver, perhaps in the midst of one."""
        latest = [decision for decision in decisions(log_of(cluster)) if decision.applied][-1]
        return {job: each for job, each in running(cluster).items() if job in planned} == latest.targets

    with driving(cluster, "--round", "2") as driver:
        driver.rounds(1)
        driver.until(all_have_run, "each job to run", within=120)
        undisturbed = driver.applied() + 1
        driver.rounds(3)
        driver.within_rounds(as_decided, 3, "jobs to run as the latest applied round has decided")
        assert driver.end() == 0, driver.output()
    played = [(decision, decision.applied) for decision in decisions(log_of(cluster)) if decision.applied]
    assert {job for decision, _ in played for job in decision.start} == set(planned)
    assert [line["elsewhere"] or dict.fromkeys(line["errors"]) for _, line in played] == [{}] * len(played)
    # Before, Slurm may start an unmanaged job on a node between a decision to use this node and the start there.
    refused = [why for _, line in played[undisturbed:] for why in line["waiting"].values() if why.startswith("Slurm")]
    assert not refused, "nothing is decided that Slurm cannot start"
    shapes = {planned[job]: ran[job] for job in planned}
    assert all(len(set(shape)) == 1 for shape in shapes.values()), "split evenly"
    assert max(shapes[PLANNED[0]]) <= 2, "two of these have their CPUs on a node"
    assert {left[job]: each.restarts for job, each in cluster.jobs().items() if job in left and each.restarts} == {}
    given = {int(job): why for line in events(log_of(cluster), "let_go") for job, why in line["jobs"].items()}
    assert given.keys() == {job for job, request in left.items() if ":" not in request}, "a part of such a job is never bound"
    standings = status(cluster)
    for job, request in left.items():
        role, _, why = standings[job].partition(": ")
        assert role in {"left to Slurm", "not managed"}, request
        assert why, request
        assert given.get(job, why) == why, request


def test_running_unplannable_jobs_continue(settings: Settings) -> None:
    """Without the plugin, Slurm has started jobs anywhere, and more arrive than there is room for."""
    with booted(replace(settings, submit_plugin="")) as cluster:
        requests = [
            ("--ntasks=64", "--gpus=2"),
            ("--gpus=4", "--cpus-per-gpu=8"),
            ("--ntasks=8", "--ntasks-per-node=4", "--gpus=2"),
        ]
        wide, spread, narrow = (gang(cluster, *request) for request in requests)
        until(lambda: {wide, spread, narrow} <= running(cluster).keys(), "Slurm to start these jobs")
        before = running(cluster)
        assert sorted(before[spread].values()) == [2, 2]
        crowd(cluster, 40)
        # Otherwise Slurm may start some between the first reading and change of the driver, elsewhere than it has planned.
        until(lambda: "idle" not in cluster.node_states().values(), "Slurm to fill the nodes")
        with driving(cluster, "--round", "4") as driver:
            driver.rounds(4)
            assert driver.end() == 0, driver.output()
        seen = cluster.jobs()
        assert {job: (seen[job].placement, seen[job].restarts) for job in (wide, narrow)} == {
            job: (before[job], 0) for job in (wide, narrow)
        }
        assert seen[spread].placement or seen[spread].restarts, "it takes turns with the others"
        reasons = {int(line["job"]): line["why"] for line in events(log_of(cluster), "unplanned")}
        assert set(reasons) == {wide, narrow}
        assert reasons[wide].startswith("its 2 GPUs need 32 CPUs each")
        assert status(cluster)[wide] == f"left to Slurm: {reasons[wide]}"
        applied = [line for decision in decisions(log_of(cluster)) if (line := decision.applied)]
        assert [line["elsewhere"] for line in applied] == [{}] * len(applied)
        assert not [why for line in applied for why in line["waiting"].values() if why.startswith("Slurm")]


def test_a_job_waiting_for_the_whole_cluster_blocks_no_start(cluster: LoopbackCluster) -> None:
    """Slurm would soon reserve all nodes for the large job."""
    where = ("--partition=plain", "--nodelist=k80-0", "--gres=gpu:4", "--time=5")
    busy = cluster.tell("sbatch", "--parsable", *where, "--output=/dev/null", "--wrap=sleep 280").strip()
    wide = gang(cluster, "--nodes=27", "--exclusive", "--gres=gpu:4")
    with driving(cluster, "--round", "4") as driver:
        driver.until(lambda: not cluster.jobs()[wide].bound, "the job to be given back")
        driver.until(lambda: cluster.jobs()[wide].reason == "Resources", "Slurm to look at it")
        jobs = crowd(cluster, 8)
        driver.within_rounds(lambda: set(jobs) <= running(cluster).keys(), 3, "the others to run")
        assert not cluster.jobs()[wide].placement
        cluster.tell("scancel", busy, *map(str, jobs))
        driver.until(lambda: cluster.jobs()[wide].placement, "it to run")
        driver.rounds(2)
        assert driver.end() == 0, driver.output()
    assert (cluster.jobs()[wide].state, cluster.jobs()[wide].restarts) == ("RUNNING", 0)


def test_jobs_in_several_partitions_are_left_to_slurm(settings: Settings) -> None:
    """Such jobs are submitted while no driver runs; otherwise the plugin refuses them."""
    with booted(replace(settings, leased=False)) as cluster:
        job = gang(cluster, "--gpus=2", "--begin=now+1hour", "--partition=gavel,plain")
        with driving(cluster, "--round", "4") as driver:
            driver.rounds(1)
            others = crowd(cluster, 30)
            refused = cluster.run("scontrol", "update", f"JobId={others[-1]}", "Partition=gavel,plain")
            assert "Invalid partition" in refused.stderr + refused.stdout
            driver.until(lambda: len(running(cluster)) >= 27, "the nodes to be full")
            cluster.tell("scontrol", "update", f"JobId={job}", "StartTime=now")
            cluster.tell("scancel", *map(str, others[:5]))
            driver.until(lambda: cluster.jobs()[job].placement, "Slurm to start it")
            driver.rounds(3)
            assert driver.end() == 0, driver.output()
        assert (cluster.jobs()[job].state, cluster.jobs()[job].restarts) == ("RUNNING", 0)
        assert status(cluster)[job] == "not managed: it may run in partitions that are not managed, too (--partition=a,b)"


def running(cluster: LoopbackCluster) -> dict[int, dict[str, int]]:
    return {job: each.placement for job, each in cluster.jobs().items() if each.placement}


def status(cluster: LoopbackCluster) -> dict[int, str]:
    """Return {job: role and reason} from the driver."""
    done = gavel(cluster, "status", "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return {int(job["job"]): job["role"] for job in document["jobs"]}
