"""Time of a round on a real Slurm of 27 nodes: 60 jobs take turns on 108 GPUs; needs Slurm (slurm-wlm, munge).

python benchmarks/slurm_rounds.py            print the table
python benchmarks/slurm_rounds.py --write    and put it into benchmarks/RESULTS.md
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from statistics import median

import tables

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import ALL, Settings
from tests.slurm.loopback.driving import driving, log_of, plugin
from tests.slurm.loopback.logbook import Decision, decisions
from tests.slurm.loopback.scenes import gang

ROUNDS, READINGS = 10, 10
REQUESTS = (("--nodes=1", "--gres=gpu:1"), ("--gpus=2",), ("--gpus=4",), ("--nodes=2", "--gres=gpu:4"))


def main() -> None:
    with booted(Settings(ALL, plugin())) as cluster:
        for _ in range(15):
            for request in REQUESTS:
                gang(cluster, *request)
        with driving(cluster, "--round", "5") as driver:
            driver.rounds(ROUNDS)
            driver.end()
        read = [seconds_to_read(cluster) for _ in range(READINGS)]
        played = [each for each in decisions(log_of(cluster)) if each.applied is not None]
    text = tables.markdown(["step", "median, s", "least to most, s", "jobs, median"], rows(read, played))
    text += f"\n{len(played)} rounds; {tables.machine()}; `python benchmarks/slurm_rounds.py --write`.\n"
    sys.stdout.write(text)
    if "--write" in sys.argv:
        tables.write("slurm_rounds", text)


def seconds_to_read(cluster: LoopbackCluster) -> float:
    begin = time.perf_counter()
    cluster.tell("sinfo", "--all", "--json")
    cluster.tell("squeue", "--all", "--json")
    return time.perf_counter() - begin


def rows(read: Sequence[float], played: Sequence[Decision]) -> list[list[object]]:
    applied = [(each, each.applied) for each in played if each.applied]
    stop = [(told["stop_seconds"], len(each.stop)) for each, told in applied if each.stop]
    start = [(told["start_seconds"], len(each.start)) for each, told in applied if each.start]
    return [row("read nodes and jobs", [(seconds, 60) for seconds in read]), row("stop", stop), row("start", start)]


def row(name: str, measured: Sequence[tuple[float, int]]) -> list[object]:
    seconds = [each for each, _ in measured]
    return [name, median(seconds), f"{min(seconds):.2f} to {max(seconds):.2f}", median(count for _, count in measured)]


if __name__ == "__main__":
    main()
