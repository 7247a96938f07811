"""A driver that is dead holds nothing: its unit's hooks release what it held, and the plugin lets new jobs pass."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, gavel, plugin
from tests.slurm.loopback.faults import hooks
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import gang
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.slow]

DEAD_SECONDS = 60.0
"""Three times as long as a driver is silent at most."""


@pytest.fixture
def small(settings: Settings) -> Settings:
    return replace(settings, nodes=(Nodes("v100", 1), Nodes("k80", 1)), submit_plugin=plugin(dead_seconds=DEAD_SECONDS))


def waits_on_hold(cluster: LoopbackCluster, job: int) -> bool:
    return cluster.jobs()[job].held


def test_jobs_pass_without_a_driver_and_those_of_a_dead_one_are_released(small: Settings) -> None:
    with booted(small) as cluster:
        early = gang(cluster, "--gpus=4")
        assert not waits_on_hold(cluster, early), "no driver has run yet"
        interactive = cluster.run("srun", "--partition=gavel", "--gpus=1", "true")
        assert interactive.returncode == 0, interactive.stderr
        with driving(cluster, "--round", "5") as driver:
            driver.rounds(1)
            jobs = [gang(cluster, "--gpus=4") for _ in range(3)]
            assert all(";plugin" in cluster.jobs()[job].admin_comment for job in jobs), "the plugin has held them"
            refused = gavel(cluster, "run", "--once", "--state", str(cluster.folder / "other"))
            assert refused.returncode == 2
            assert f"another driver manages it (process {driver.process.pid} on" in " ".join(refused.stderr.split())
            driver.within_rounds(lambda: sum(waits_on_hold(cluster, job) for job in jobs) == 2, 3, "two jobs to wait")
            driver.end(signal.SIGKILL)
            assert driver.process.returncode == -signal.SIGKILL
        hooks(cluster)
        assert not any(waits_on_hold(cluster, job) for job in jobs)
        late = gang(cluster, "--gpus=4")
        assert not waits_on_hold(cluster, late), "the hook has removed the sign of life"
        assert gavel(cluster, "release", timeout_only=True).stdout == "0 jobs released.\n"


@pytest.mark.deep
def test_the_silence_of_a_driver_on_another_host_is_noticed(small: Settings) -> None:
    """Nothing of the driver is left but its job in Slurm."""
    with booted(small) as cluster:
        with driving(cluster, "--round", "5") as driver:
            driver.rounds(1)
            first = gang(cluster, "--gpus=4", "--constraint=v100")
            held = [gang(cluster, "--gpus=4", "--constraint=v100") for _ in range(2)]
            driver.until(lambda: cluster.jobs()[first].placement, 20, "the first job")
            driver.process.kill()
        assert any(waits_on_hold(cluster, job) for job in held)
        time.sleep(DEAD_SECONDS + 1)
        assert not waits_on_hold(cluster, gang(cluster, "--gpus=4"))
        done = gavel(cluster, "release", timeout_only=True)
        assert (done.returncode, done.stderr) == (0, "")
        until(lambda: not any(waits_on_hold(cluster, job) for job in held), 10, "the jobs to be released")
        with driving(cluster, "--round", "5", "--on-exit", "release") as driver:
            driver.rounds(1)
            assert driver.end() == 0, driver.output()
        assert not any(waits_on_hold(cluster, job) for job in held), "no trace is left"
        assert cluster.tell("squeue", "--noheader", "--name=gavel-driver") == ""
