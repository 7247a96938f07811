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

pytestmark = [needs_slurm, pytest.mark.deep]

REFUSED = {
    ("--gpus=a100:1",): "no node of partition gavel has GPUs of type a100; there are k80,v100",
    ("--nodes=1", "--gres=gpu:v100:8"): "no node of partition gavel has 8 GPUs of type v100; the largest have 4",
    ("--nodes=1", "--gres=gpu:8"): "no node of partition gavel has 8 GPUs; the largest have 4",
    ("--gpus=200",): "200 GPUs are more than partition gavel has (12)",
    ("--gpus=k80:8",): "8 GPUs of type k80 are more than partition gavel has (4)",
    ("--gpus-per-task=8", "--ntasks=1"): "no node of partition gavel has 8 GPUs; the largest have 4",
    ("--gpus-per-task=4", "--ntasks=4"): "16 GPUs are more than partition gavel has (12)",
    ("--gpus=1", "--mem=100G"): "no node of partition gavel has 102400 MB; the largest have 64000",
    ("--gpus=1", "--mem-per-cpu=100G"): "no node of partition gavel has 102400 MB for a CPU; the largest have 64000",
    ("--gpus=1", "--cpus-per-task=17"): "no node of partition gavel has 17 CPUs; the largest have 16",
    ("--gpus=1", "--cpus-per-gpu=17"): "has 17 CPUs",
    ("--gres=gpu:2", "--cpus-per-gpu=9"): "has 18 CPUs",
    ("--gpus=4", "--nodes=1", "--cpus-per-gpu=5"): "has 20 CPUs",
    ("--gpus=1", "--nodes=1", "--ntasks=17"): "has 17 CPUs",
    ("--gpus=1", "--mincpus=17"): "has 17 CPUs",
    ("--gpus=2", "--ntasks-per-node=9", "--cpus-per-task=2"): "has 18 CPUs",
    ("--gpus=1", "--partition=plain,gavel"): "are managed by gavel (gavel)",
}


def test_impossible_requests_are_refused_and_odd_ones_explained(settings: Settings) -> None:
    with booted(replace(settings, nodes=(Nodes("v100", 2), Nodes("k80", 1)))) as cluster:
        waiting = gang(cluster, "--gpus=4", "--constraint=v100")
        with driving(cluster, "--round", "60") as driver:
            driver.rounds(1)
            for request, why in REFUSED.items():
                told = submitted(cluster, *request)
                assert told.returncode != 0, request
                assert why in told.stderr, told.stderr
                beside = submitted(cluster, *request, "--partition=plain")
                assert beside.returncode != 0 or "--partition=plain,gavel" in request, "Slurm alone accepts it"
            assert "node configuration is not available" in submitted(cluster, "--gpus=a100:1").stderr
            for request in (("--gpus=4", "--cpus-per-gpu=5"), ("--gres=gpu:2", "--cpus-per-gpu=8"), ("--gpus=1", "--ntasks=16")):
                assert submitted(cluster, *request, "--hold").returncode == 0, request
            odd = submitted(cluster, "--gpus=5")
            assert odd.returncode == 0
            assert "5 GPUs run on 5 nodes with 1 each, since each node must have the same number; 8 would fit on 2" in odd.stderr
            assert submitted(cluster, "--gpus=6", "--hold").stderr == ""
            moved = gang(cluster, "--gpus=4", "--constraint=v100", "--begin=now+1hour")
            cluster.tell("scontrol", "update", f"JobId={moved}", "Partition=plain", "StartTime=now")
            assert cluster.jobs()[moved].held
            driver.until(lambda: not cluster.jobs()[moved].held, "a job that has been moved away to be released")
        assert cluster.jobs()[waiting].placement


UNPLANNED = {
    ("--gpus=1", "--exclude=k80-0"): "--exclude",
    ("--gpus=1", "--nodelist=v100-0"): "--nodelist",
    ("--gpus=1", "--exclusive"): "--exclusive",
    ("--gpus=1", "--exclusive=user"): "--exclusive",
    ("--gpus=v100:1,k80:1",): "GPUs of several types",
    ("--gpus=1", "--constraint=[v100|k80]"): "--constraint other than names joined by & or |",
    ("--gpus=1", ":", "--gpus=1"): "heterogeneous jobs",
}


def test_requests_that_take_no_turns_are_refused_on_demand(settings: Settings) -> None:
    rejecting = plugin(rejects=["odd", "unplanned"])
    with booted(replace(settings, nodes=(Nodes("v100", 2), Nodes("k80", 1)), submit_plugin=rejecting)) as cluster:
        for request, why in UNPLANNED.items():
            told = submitted(cluster, *request)
            assert told.returncode != 0, request
            text = f"jobs of partition gavel take turns on its nodes, which is not possible with {why}"
            assert text in told.stderr, told.stderr
        assert submitted(cluster, "--gpus=1", "--oversubscribe", "--constraint=v100|k80").returncode == 0
        assert submitted(cluster, "--gpus=5").returncode == 0, "before the driver has said what the partition has"
        with driving(cluster, "--round", "60") as driver:
            driver.rounds(1)
            odd = submitted(cluster, "--gpus=5")
            assert odd.returncode != 0
            assert "5 GPUs run on 5 nodes with 1 each" in odd.stderr
            assert submitted(cluster, "--gpus=6", "--hold").returncode == 0


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
        assert "Access/permission denied" in cluster.run("scontrol", "release", str(job), user=nobody).stderr
        assert cluster.jobs()[job].held
        assert changed(job, "Partition=plain") == ""


def submitted(cluster: LoopbackCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return cluster.run("sbatch", "--partition=gavel", *words, "--output=/dev/null", "--chdir=/", "--wrap=sleep 60")
