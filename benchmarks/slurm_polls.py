"""CPU seconds of a reading of the queue beside 20,000 waiting jobs of another partition; needs Slurm (slurm-wlm, munge).

python benchmarks/slurm_polls.py            print the table
python benchmarks/slurm_polls.py --write    and put it into benchmarks/RESULTS.md

Releases of Slurm that `python -m tests.slurm.loopback.releases` has fetched are measured, too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator

import tables

import gavel_py as gp
from gavel_py.integrations.slurm.client.commands import read_jobs
from gavel_py.integrations.slurm.client.queue import QueueReader
from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.releases import SUITES, Release

ARRAYS, TASKS, READINGS = 20, 1000, 2
PARTITIONS = {"gpu": "Nodes=v100-[0-8]", "other": "Nodes=k80-0"}
OPTIONS = {"MaxJobCount": "50000", "MaxArraySize": "1001"}


def main() -> None:
    found = [row for release in map(Release, ("", *SUITES)) if release.is_ready for row in rows(release)]
    text = tables.markdown(["Slurm", "reading", "CPU s", "s"], found)
    text += (
        f"\nmean of {READINGS} readings, with Slurm's commands; {tables.machine()}; `python benchmarks/slurm_polls.py --write`.\n"
    )
    sys.stdout.write(text)
    if "--write" in sys.argv:
        tables.write("slurm_polls", text)


def rows(release: Release) -> Iterator[list[str]]:
    with booted(Settings((Nodes("v100", 9), Nodes("k80", 1)), partitions=PARTITIONS, options=OPTIONS, release=release)) as cluster:
        crowd(cluster)
        os.environ |= cluster.environment
        commands = gp.SlurmCommands()
        reader = QueueReader(commands, ["gpu"])
        reader.whole(0.0)
        readings: dict[str, Callable[[], object]] = {
            "all jobs": lambda: read_jobs(commands),
            "between rounds, nothing changed": reader.jobs,
            "for a round": lambda: reader.whole(0.0),
        }
        for name, read in readings.items():
            yield [release.version, name, *map("{:.2f}".format, cost(read))]


def crowd(cluster: LoopbackCluster) -> None:
    """Submit jobs to the other partition that wait, and some to the managed one, of which as many run as it has nodes."""

    def submit(*words: str) -> str:
        line = ["--parsable", "--chdir=/", "--output=/dev/null", *words, "--wrap=exec sleep 3600"]
        return cluster.tell("sbatch", *line).strip()

    for _ in range(ARRAYS):
        array = submit("--partition=other", "--hold", f"--array=0-{TASKS - 1}", "--gres=gpu:1")
        # From then on, its tasks are jobs of their own.
        cluster.tell("scontrol", "update", f"JobId={array}_[1-{TASKS - 1}]", "Nice=5")
    for _ in range(20):
        submit("--partition=gpu", "--gres=gpu:4")
    time.sleep(5)  # until those that have room run


def cost(read: Callable[[], object]) -> tuple[float, float]:
    """Return CPU seconds of this process and of the commands that it runs, and seconds, of one reading."""
    read()
    before, began = sum(os.times()[:4]), time.perf_counter()
    for _ in range(READINGS):
        read()
    return (sum(os.times()[:4]) - before) / READINGS, (time.perf_counter() - began) / READINGS


if __name__ == "__main__":
    main()
