"""What is read between rounds is what a whole reading has, as far as it matters to the managed partition."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gavel_py.integrations.slurm.client.commands import SlurmCommands, read_jobs
from gavel_py.integrations.slurm.client.queue import QueueReader
from gavel_py.integrations.slurm.client.records import SlurmJob
from tests.slurm.loopback.cluster import booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, pytest.mark.deep]

PARTITIONS = {"gpu": "Nodes=v100-[0-1]", "beside": "Nodes=v100-0", "far": "Nodes=k80-0"}
WAITING, PHASES = 20, ("running", "stopping")


def of_interest(jobs: Mapping[str, SlurmJob], *, holding: bool) -> Mapping[str, SlurmJob]:
    """Return the jobs of the managed partition and on its nodes, and those that hold GPUs anywhere."""
    here = {i for i, job in jobs.items() if job.partition == "gpu" or "v100-0" in job.used}
    return {i: job for i, job in jobs.items() if i in here or (holding and job.phase in PHASES)}


@pytest.mark.every_release
def test_readings_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    with booted(Settings((Nodes("v100", 2), Nodes("k80", 1)), partitions=PARTITIONS)) as cluster:
        for name in ("PATH", "SLURM_CONF"):
            monkeypatch.setenv(name, cluster.environment[name])

        def submit(partition: str, *words: str) -> str:
            line = ["--parsable", "--chdir=/", "--output=/dev/null", f"--partition={partition}", "--gres=gpu:1", *words]
            return cluster.tell("sbatch", *line, "--wrap=exec sleep 600").strip()

        commands = SlurmCommands()
        reader = QueueReader(commands, ["gpu"])
        for _ in range(WAITING):
            submit("far", "--hold")
        assert len(reader.whole(0.0).jobs) == WAITING

        def agree() -> None:
            polled, latest, whole = reader.jobs(), reader.latest(0.0).jobs, read_jobs(commands)
            assert of_interest(polled, holding=False) == of_interest(whole, holding=False)
            assert of_interest(latest, holding=reader_is_exact) == of_interest(whole, holding=reader_is_exact)

        reader_is_exact = cluster.settings.release.version >= "24.05"
        waits, runs, beside, far = submit("gpu", "--hold"), submit("gpu"), submit("beside"), submit("far")
        until(lambda: {int(runs), int(beside), int(far)} <= cluster.running(), "jobs to run")
        agree()
        cluster.tell("scontrol", "update", f"JobId={waits}", "Comment=gavel: steps=7")
        agree()
        cluster.tell("scancel", runs, beside, far)
        until(lambda: not any(job.held or "COMPLETING" in job.states for job in read_jobs(commands).values()), "jobs to have ended")
        agree()
        until(lambda: cluster.run("scontrol", "update", f"JobId={waits}", "Partition=far").returncode == 0, "the job to move")
        assert reader.jobs()[waits].partition == "far"
        agree()
