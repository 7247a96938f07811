"""The cluster of the tests is real, and is removed completely."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.submitting import Work, stays, steps_done, submit
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]

ROOT = Path(__file__).resolve().parents[3]

# Boots a small cluster, starts a job, prints the folder of the cluster, and waits to be killed.
TO_BE_KILLED = """
import time
from tests.slurm.loopback.cluster import booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.submitting import Work, steps_done, submit
from tests.slurm.loopback.waiting import until

with booted(Settings((Nodes("v100", 1),))) as cluster:
    job = submit(cluster, Work("job"), "plain")
    until(lambda: steps_done(cluster, job), "the job to run")
    print(cluster.folder, flush=True)
    time.sleep(600)
"""


def test_it_has_27_nodes_and_108_gpus_of_three_types(cluster: LoopbackCluster) -> None:
    lines = cluster.tell("sinfo", "--noheader", "--Node", "--partition=plain", "--Format=NodeList,Gres").split()
    nodes = dict(zip(lines[::2], lines[1::2], strict=True))
    assert len(nodes) == 27
    assert sum(int(gres.partition("(")[0].split(":")[2]) for gres in nodes.values()) == 108
    assert {gres.split(":")[1] for gres in nodes.values()} == {"v100", "p100", "k80"}


def test_jobs_run_at_the_speed_of_their_type_and_resume_their_steps(cluster: LoopbackCluster) -> None:
    fast, slow = (submit(cluster, Work(name, steps=12, options=(f"--nodelist={name}-0",)), "plain") for name in ("v100", "k80"))
    until(lambda: steps_done(cluster, slow) > 1, "the slow job to have done a step")
    cluster.tell("scontrol", "requeuehold", str(slow))
    until(lambda: cluster.jobs()[slow].held, "the job to be stopped")
    done = steps_done(cluster, slow)
    cluster.tell("scontrol", "update", f"JobId={slow}", "ReqNodeList=v100-1", "NumNodes=1", "StartTime=now")
    cluster.tell("scontrol", "release", str(slow))
    until(lambda: cluster.jobs()[slow].state == "COMPLETED", "the job to end")
    (alone,) = stays(cluster, fast)
    assert alone.end is not None
    assert alone.end - alone.begin >= 12 / 4
    first, second = stays(cluster, slow)
    assert first.end is not None
    assert first.end - first.begin >= done / 1
    assert (first.placement, first.done, second.placement, second.done) == ({"k80-0": 1}, False, {"v100-1": 1}, True)
    assert second.end is not None
    assert second.end - second.begin >= (12 - done) / 4


def test_a_killed_test_leaves_no_process_and_no_file() -> None:
    with subprocess.Popen([sys.executable, "-c", TO_BE_KILLED], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert len(processes_of(folder)) >= 5, "keeper, munged, slurmctld, slurmd, job"
        process.send_signal(signal.SIGKILL)
    until(lambda: not processes_of(folder) and not folder.exists(), "everything to be gone")


def processes_of(folder: Path) -> list[str]:
    """Return the other processes with a folder on their command line or in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in text:
            found.append(process.name)
    return found
