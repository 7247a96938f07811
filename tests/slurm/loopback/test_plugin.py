"""What the plugin refuses or tells at submission, and jobs that are moved before the driver has read them."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import gang

pytestmark = [needs_slurm, pytest.mark.slow]

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
            driver.until(lambda: not cluster.jobs()[moved].held, 10, "a job that has been moved away to be released")
        assert cluster.jobs()[waiting].placement


def submitted(cluster: LoopbackCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return cluster.run("sbatch", "--partition=gavel", *words, "--output=/dev/null", "--chdir=/", "--wrap=sleep 60")
