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
from tests.slurm.loopback.presence import needs_root, needs_slurm
from tests.slurm.loopback.scenes import gang
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]

SOMEBODY = 65_534

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


def test_the_silence_of_a_driver_on_another_host_is_noticed(small: Settings) -> None:
    """Nothing of the driver is left but its job in Slurm."""
    with booted(small) as cluster:
        with driving(cluster, "--round", "5") as driver:
            driver.rounds(1)
            first = gang(cluster, "--gpus=4", "--constraint=v100")
            held = [gang(cluster, "--gpus=4", "--constraint=v100") for _ in range(2)]
            driver.until(lambda: cluster.jobs()[first].placement, "the first job")
            driver.process.kill()
        assert any(waits_on_hold(cluster, job) for job in held)
        time.sleep(DEAD_SECONDS + 1)
        assert not waits_on_hold(cluster, gang(cluster, "--gpus=4"))
        done = gavel(cluster, "release", timeout_only=True)
        assert (done.returncode, done.stderr) == (0, "")
        until(lambda: not any(waits_on_hold(cluster, job) for job in held), "the jobs to be released")
        with driving(cluster, "--round", "5", "--on-exit", "release") as driver:
            driver.rounds(1)
            assert driver.end() == 0, driver.output()
        assert not any(waits_on_hold(cluster, job) for job in held), "no trace is left"
        assert cluster.tell("squeue", "--noheader", "--name=gavel-driver") == ""


@needs_root
def test_slurm_user_writes_reasons_and_leaves_nothing_in_released_jobs(small: Settings) -> None:
    """A user sees in Slurm why a job waits; after a release, no mark and no priority of the driver is left."""
    with booted(small) as cluster:
        words = ["--parsable", "--partition=gavel", "--nodes=1", "--gres=gpu:4", "--output=/dev/null", "--chdir=/"]
        with driving(cluster, "--round", "5", "--min-run-seconds", "300", "--on-exit", "release") as driver:
            driver.rounds(1)
            jobs = [int(cluster.tell("sbatch", *words, "--wrap=exec sleep 600", user=SOMEBODY)) for _ in range(3)]
            driver.until(lambda: len(cluster.running()) == 2, "two jobs to run")
            (waiting,) = set(jobs) - cluster.running()
            driver.until(lambda: ";gavel-why=" in cluster.jobs()[waiting].admin_comment, "the reason")
            assert not any("gavel-why" in cluster.jobs()[job].admin_comment for job in cluster.running())
            cluster.tell("scontrol", "hold", str(waiting), user=SOMEBODY)
            driver.until(lambda: "gavel-why=its_user_holds_it" in cluster.jobs()[waiting].admin_comment, "the hold as the reason")
            cluster.tell("scontrol", "release", str(waiting), user=SOMEBODY)
            driver.rounds(2)
            assert cluster.jobs()[waiting].held
            assert driver.end() == 0, driver.output()
        seen = cluster.jobs()
        assert (seen[waiting].held, seen[waiting].admin_comment, seen[waiting].comment) == (False, "", "")
        assert len(cluster.running()) == 2, "a release of their priority does not touch them"
        assert "4294967293" not in cluster.tell("squeue", "--noheader", "--format=%Q")
        assert cluster.tell("squeue", "--noheader", "--name=gavel-driver") == ""
        cluster.tell("scancel", str(next(iter(cluster.running()))))
        until(lambda: waiting in cluster.running(), "Slurm to start it")
