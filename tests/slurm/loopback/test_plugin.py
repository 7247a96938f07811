"""What the plugin refuses or tells at submission, and jobs that are moved before the driver has read them."""

from __future__ import annotations

import pwd
import subprocess
from dataclasses import replace

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, plugin
from tests.slurm.loopback.presence import needs_root, needs_slurm
from tests.slurm.loopback.scenes import gang, sleeper
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]

IMPOSSIBLE = (
    ("--gpus=a100:1",),
    ("--nodes=1", "--gres=gpu:v100:8"),
    ("--nodes=1", "--gres=gpu:8"),
    ("--gpus=200",),
    ("--gpus=k80:8",),
    ("--gpus-per-task=8", "--ntasks=1"),
    ("--gpus-per-task=4", "--ntasks=4"),
    ("--gpus=1", "--mem=100G"),
    ("--gpus=1", "--mem-per-cpu=100G"),
    ("--gpus=1", "--cpus-per-task=17"),
    ("--gpus=1", "--cpus-per-gpu=17"),
    ("--gres=gpu:2", "--cpus-per-gpu=9"),
    ("--gpus=4", "--nodes=1", "--cpus-per-gpu=5"),
    ("--gpus=1", "--nodes=1", "--ntasks=17"),
    ("--gpus=1", "--mincpus=17"),
    ("--gpus=2", "--ntasks-per-node=9", "--cpus-per-task=2"),
)
"""Requests that no node, or not all of them together, can meet."""


@pytest.mark.every_release
def test_impossible_requests_are_refused_by_slurm_and_odd_ones_explained(settings: Settings) -> None:
    with booted(replace(settings, nodes=(Nodes("v100", 2), Nodes("k80", 1)))) as cluster:
        waiting = gang(cluster, "--gpus=4", "--constraint=v100")
        with driving(cluster, "--round", "60") as driver:
            driver.rounds(1)
            for request in IMPOSSIBLE:
                told = submitted(cluster, *request)
                assert told.returncode != 0, request
                assert "Requested node configuration is not available" in told.stderr, told.stderr
                assert submitted(cluster, *request, "--partition=plain").stderr == told.stderr, "also without the plugin"
            told = submitted(cluster, "--gpus=1", "--partition=plain,gavel")
            assert told.returncode != 0
            assert "are managed by gavel (gavel)" in told.stderr, told.stderr
            for request in (("--gpus=4", "--cpus-per-gpu=5"), ("--gres=gpu:2", "--cpus-per-gpu=8"), ("--gpus=1", "--ntasks=16")):
                assert submitted(cluster, *request, "--hold").returncode == 0, request
            told = submitted(cluster, "--gpus=8", "--hold")  # on one node from 24.11 on, also by Slurm itself
            assert told.returncode == 0 or "has 8 GPUs; for several nodes, add --nodes=2" in told.stderr
            odd = submitted(cluster, "--nodes=1-5", "--gpus=5")
            assert odd.returncode == 0
            assert "5 GPUs run on 5 nodes with 1 each, since each node must have the same number; 8 would fit on 2" in odd.stderr
            assert submitted(cluster, "--nodes=1-5", "--gpus=6", "--hold").stderr == ""
        assert cluster.jobs()[waiting].placement


@pytest.mark.every_release
def test_without_a_lease_jobs_pass_as_without_the_plugin(settings: Settings) -> None:
    """Whatever is refused while a driver is alive, and only with a note of the time."""
    rejecting = plugin(rejects=["odd", "unplanned"])
    nodes = (Nodes("v100", 2), Nodes("k80", 1))
    with booted(replace(settings, nodes=nodes, submit_plugin=rejecting, leased=False)) as cluster:
        requests = [request for request in UNPLANNED if request != ("--gpus=v100:1,k80:1",)]  # which Slurm refuses itself
        requests += [("--nodes=1-5", "--gpus=5"), ("--gpus=1", "--no-requeue"), ("--gpus=1", "--partition=plain,gavel")]
        for request in requests:
            told = submitted(cluster, "--begin=now+1hour", *request)
            assert (told.returncode, told.stderr) == (0, ""), request
        assert not cluster.bound()
        assert not any(each.held for each in cluster.jobs().values())
        assert cluster.run("srun", "--partition=gavel", "--gpus=1", "--nodes=1", "true").returncode == 0
        job = int(submitted(cluster, "--parsable", "--gpus=1").stdout)
        until(lambda: job in cluster.running(), "Slurm to start it")
        assert cluster.jobs()[job].admin_comment.startswith("gavel:submit=")
        cluster.take_lease()
        assert submitted(cluster, "--gpus=1", "--no-requeue").returncode != 0


@pytest.mark.every_release
def test_jobs_that_are_moved_before_the_driver_has_read_them_are_released(settings: Settings) -> None:
    with booted(replace(settings, nodes=(Nodes("v100", 2),))) as cluster, driving(cluster, "--round", "10") as driver:
        driver.rounds(1)
        moved = gang(cluster, "--gpus=4", "--begin=now+1hour")
        move = ["scontrol", "update", f"JobId={moved}", "Partition=plain", "StartTime=now"]
        until(lambda: cluster.run(*move).returncode == 0, "the job to move")
        driver.until(lambda: cluster.jobs()[moved].placement, "a job that has been moved away to run")


UNPLANNED = {
    ("--gpus=1", "--exclude=k80-0"): "--exclude",
    ("--gpus=1", "--nodelist=v100-0"): "--nodelist",
    ("--gpus=1", "--exclusive"): "--exclusive",
    ("--gpus=1", "--exclusive=user"): "--exclusive",
    ("--gpus=v100:1,k80:1",): "GPUs of several types",
    ("--gpus=1", "--constraint=[v100|k80]"): "--constraint other than names joined by & or |",
    ("--gpus=1", ":", "--partition=gavel", "--gpus=1"): "heterogeneous jobs",
}


@pytest.mark.every_release
def test_requests_that_take_no_turns_are_refused_on_demand(settings: Settings) -> None:
    rejecting = plugin(rejects=["odd", "unplanned"])
    with booted(replace(settings, nodes=(Nodes("v100", 2), Nodes("k80", 1)), submit_plugin=rejecting)) as cluster:
        for request, why in UNPLANNED.items():
            told = submitted(cluster, *request)
            assert told.returncode != 0, request
            text = f"jobs of partition gavel take turns on its nodes, which is not possible with {why}"
            assert text in told.stderr, told.stderr
        assert submitted(cluster, "--gpus=1", "--oversubscribe", "--constraint=v100|k80").returncode == 0
        assert submitted(cluster, "--nodes=1-5", "--gpus=5").returncode == 0, "before the driver has said what the partition has"
        with driving(cluster, "--round", "60") as driver:
            driver.rounds(1)
            odd = submitted(cluster, "--nodes=1-5", "--gpus=5")
            assert odd.returncode != 0
            assert "5 GPUs run on 5 nodes with 1 each" in odd.stderr
            assert submitted(cluster, "--nodes=1-5", "--gpus=6", "--hold").returncode == 0


@needs_root
def test_users_cannot_change_jobs_into_what_is_refused_at_submission(settings: Settings) -> None:
    nobody, rejecting = pwd.getpwnam("nobody").pw_uid, plugin(rejects=["unplanned"])
    with booted(replace(settings, nodes=(Nodes("v100", 1),), submit_plugin=rejecting)) as cluster:
        job = sleeper(cluster, nobody)
        words = ["--parsable", "--gpus=1", "--begin=now+1hour", "--output=/dev/null", "--chdir=/", "--wrap=true"]
        beside = int(cluster.tell("sbatch", "--partition=plain", *words, user=nobody))

        def changed(number: int, *fields: str, user: int = nobody) -> str:
            return cluster.run("scontrol", "update", f"JobId={number}", *fields, user=user).stderr

        for number in (job, beside):
            for user in (nobody, 0):
                assert "Invalid partition name" in changed(number, "Partition=gavel,plain", user=user)
        for field in ("ReqNodeList=v100-0", "ExcNodeList=v100-0", "OverSubscribe=no", "Features=[v100|k80]"):
            assert "Requested node configuration is not available" in changed(job, field), field
        assert changed(job, "Comment=gavel: steps=7", "TimeLimit=5") == ""
        assert changed(job, "Features=v100") == ""
        assert changed(job, "ReqNodeList=v100-0", user=0) == "", "an administrator may"
        cluster.tell("scontrol", "release", str(job), user=nobody)
        cluster.tell("scontrol", "update", f"JobId={job}", "Dependency=", user=nobody)
        assert cluster.jobs()[job].bound
        assert changed(job, "Partition=plain") == ""


def submitted(cluster: LoopbackCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return cluster.run("sbatch", "--partition=gavel", *words, "--output=/dev/null", "--chdir=/", "--wrap=sleep 60")
