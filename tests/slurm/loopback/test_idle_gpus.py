"""No job waits beside idle GPUs: not for CPUs that others have elsewhere, and not for the next round."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.slurm.loopback.cluster import booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, log_of
from tests.slurm.loopback.logbook import decisions
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import finish, gang
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]

ROUND_SECONDS = 90.0


def test_jobs_start_where_there_is_room_and_newcomers_within_seconds(settings: Settings) -> None:
    """Jobs of another partition have all CPUs of one fast node, and most of the other; a round lasts for 90 s."""
    with booted(replace(settings, nodes=(Nodes("v100", 2), Nodes("k80", 2)))) as cluster:
        for node, cpus in (("v100-0", 16), ("v100-1", 13)):
            words = ("--partition=plain", f"--nodelist={node}", f"--cpus-per-task={cpus}", "--output=/dev/null", "--chdir=/")
            cluster.tell("sbatch", *words, "--wrap=sleep 300")
        until(lambda: len(cluster.running()) == 2, "the jobs of the other partition")
        first = [gang(cluster, "--gpus=1", "--cpus-per-gpu=4") for _ in range(6)]
        with driving(cluster, "--round", f"{ROUND_SECONDS:g}") as driver:
            driver.until(lambda: cluster.running() >= set(first), "all six jobs to run on slow GPUs")
            nodes = {node for job in first for node in cluster.jobs()[job].placement}
            assert nodes == {"k80-0", "k80-1"}
            newcomer = gang(cluster, "--gpus=1", "--cpus-per-gpu=4")
            driver.until(lambda: newcomer in cluster.running(), "the newcomer to run", within=2 * ROUND_SECONDS)
            assert cluster.jobs()[newcomer].waited < ROUND_SECONDS, "not only with the next round"
            late = [gang(cluster, "--gpus=1", "--cpus-per-gpu=4") for _ in range(2)]
            driver.until(lambda: len(cluster.running() & set(late)) == 1, "the last GPU to be in use")
            finish(cluster, first[0])
            driver.until(lambda: cluster.running() >= set(late), "the GPU of the job that has ended to be in use")
            assert driver.end() == 0, driver.output()
        assert {each.restarts for each in cluster.jobs().values()} == {0}
        assert len([decision for decision in decisions(log_of(cluster)) if not decision.within]) == 1


@pytest.mark.every_release
def test_equal_nodes_with_different_jobs_are_told_apart(settings: Settings) -> None:
    """One node has 4 CPUs left, the other 11: from 23.02 on, sinfo adds such nodes up unless it is asked for each."""
    with booted(replace(settings, nodes=(Nodes("v100", 2),))) as cluster, driving(cluster, "--round", "60") as driver:
        first = [gang(cluster, "--nodes=1", "--gpus=1", f"--cpus-per-task={cpus}") for cpus in (12, 5)]
        driver.until(lambda: cluster.running() >= set(first), "both jobs to run")
        third = gang(cluster, "--nodes=1", "--gpus=1", "--cpus-per-task=11")
        driver.until(lambda: third in cluster.running(), "the third to run beside the second")
        assert cluster.jobs()[third].waited < 10
        assert {each.restarts for each in cluster.jobs().values()} == {0}
        assert driver.end() == 0, driver.output()
