"""Records what releases of Slurm print of one scene, for the tests that read recordings.

    python -m tests.slurm.loopback.record

writes squeue-VERSION.json and sinfo-VERSION.json into tests/slurm/recorded for the Slurm of this machine and each release that
`releases` has fetched, as these print them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from gavel_py.integrations.slurm.client.commands import JOBS
from gavel_py.integrations.slurm.client.queue import NODES
from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.releases import SUITES, Release
from tests.slurm.loopback.waiting import until

RECORDED = Path(__file__).parents[1] / "recorded"
KINDS = (Nodes("v100", 2), Nodes("p100", 2), Nodes("k80", 2))
USER = 65534
"""nobody"""


SETTINGS = Settings(KINDS, options={"FirstJobId": "101"}, partitions={"opt": "Nodes=ALL", "free": "Nodes=ALL"})


def play(cluster: LoopbackCluster) -> None:
    """Bring jobs 101 to 110 into all phases; 106 has other numbers of CPUs on its two nodes, and 107 most CPUs of one."""

    def submit(name: str, *words: str, command: str = "sleep 600", partition: str = "opt") -> str:
        line = ["--parsable", "--chdir=/", "--output=/dev/null", f"--partition={partition}", f"--job-name={name}"]
        return cluster.tell("sbatch", *line, *words, f"--wrap={command}", user=USER).strip()

    def reaches(job: str, *states: str) -> None:
        until(lambda: cluster.jobs()[int(job)].state in states, f"job {job} to be {' or '.join(states)}")

    first = submit("bert-1", "--gres=gpu:3", "--constraint=v100", "--comment=gavel: type=bert steps=200000", "--requeue")
    reaches(first, "RUNNING")
    cluster.tell("scontrol", "requeuehold", first)
    typed = submit("typed", "--hold", "--nodes=2", "--gres=gpu:v100:2", "--time=60")
    array = submit("arr", "--hold", "--array=0-3,7%2", "--gpus=1")
    other = submit("other", "--nodes=2", "--gpus=6", "--nodelist=p100-[0-1]", partition="free")
    ended = submit("ended", "--hold", "--gpus=1")
    cluster.tell("scancel", ended)
    uneven = submit("uneven", "--nodes=2", "--ntasks=3", "--cpus-per-task=4", "--gres=gpu:1", "--constraint=v100", partition="free")
    packed = submit("packed", "--nodes=1", "--gpus=1", "--cpus-per-task=12", "--nodelist=k80-0", partition="free")
    alone = submit("alone", "--hold", "--nodes=1", "--gpus=2", "--exclusive")
    done = submit("done", "--nodes=1", "--gpus=1", "--constraint=k80", command="true", partition="free")
    failed = submit("failing", "--nodes=1", "--gpus=1", "--constraint=k80", command="exit 3", partition="free")
    reaches(first, "PENDING")
    words = ["--parsable", "--job-name=gavel-driver", "--begin=now+1hour", "--partition=opt", "--chdir=/", "--output=/dev/null"]
    lease = cluster.tell("sbatch", *words, "--wrap=true").strip()
    cluster.tell("scontrol", "update", f"JobId={first}", "ReqNodeList=v100-0", "AdminComment=gavel:submit=1700000000;place=node")
    for job in (first, typed, array, alone):  # as the plugin does
        noted = [] if job in (first, alone) else ["AdminComment=gavel:submit=1700000000;shared"]
        cluster.tell("scontrol", "update", f"JobId={job}", f"Dependency=afterany:{lease}", *noted)
        cluster.tell("scontrol", "release", job)
    for job in (other, uneven, packed):
        reaches(job, "RUNNING")
    reaches(done, "COMPLETED")
    reaches(failed, "FAILED")
    cluster.tell("scontrol", "update", "NodeName=k80-1", "State=DRAIN", "Reason=fan")


def main() -> None:
    RECORDED.mkdir(exist_ok=True)
    for release in filter(lambda each: each.is_ready, map(Release, ("", *SUITES))):
        version = ".".join(release.version.split(".")[:2])
        with booted(replace(SETTINGS, release=release)) as cluster:
            play(cluster)
            for words in (JOBS, NODES):
                path = RECORDED / f"{words[0]}-{version}.json"
                path.write_text(cluster.tell(*words))
                click.echo(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
