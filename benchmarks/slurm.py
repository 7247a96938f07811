"""Time of the Slurm driver to read, reconcile and decide: 5,000 jobs and 2,000 GPUs in the JSON of Slurm 22.05.

python benchmarks/slurm.py            print the table
python benchmarks/slurm.py --write    and put it into benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from typing import Any

import tables

import gavel_py as gp
from gavel_py.integrations.slurm.client.commands import CommandResult, SlurmCommands, WallClock

JOBS, NODES, GPUS = 5_000, 500, 4
ROUNDS = 3
KINDS = ("ResNet-18 (batch size 64)", "ResNet-50 (batch size 64)", "Transformer (batch size 64)", "LM (batch size 10)")
START = 1_700_000_000.0


class Replies(SlurmCommands):
    """Simulates the commands of a cluster of this size; jobs run where they were started last."""

    def __init__(self) -> None:
        chance = random.Random(0)  # noqa: S311
        self.held: dict[int, dict[str, int]] = {}
        self.nodes = [(f"{kind}-{n}", kind) for n in range(NODES) for kind in [("v100", "p100", "k80")[n % 3]]]
        self.jobs = [(1_000 + n, chance.choice([1, 1, 1, 2, 4]), chance.choice(KINDS)) for n in range(JOBS)]

    def run(self, arguments: Sequence[str], text: str = "") -> CommandResult:  # noqa: ARG002
        document = {"nodes": [self._node(*node) for node in self.nodes]} if arguments[0] == "sinfo" else {"jobs": self._jobs()}
        return CommandResult(0, json.dumps(document), "")

    def _node(self, name: str, kind: str) -> dict[str, Any]:
        empty = dict.fromkeys([f"field_{n}" for n in range(35)], "")
        gres = f"gpu:{kind}:{GPUS}(S:0-1)"
        return empty | {
            "name": name,
            "gres": gres,
            "state": "mixed",
            "state_flags": [],
            "partitions": ["gpu"],
            "cpus": 64,
            "features": kind,
        }

    def _jobs(self) -> list[dict[str, Any]]:
        # Slurm prints about a hundred fields of each job.
        empty = dict.fromkeys([f"a_field_like_others_{n}" for n in range(80)], "")
        return [empty | self._job(*job) for job in self.jobs]

    def _job(self, number: int, gpus: int, kind: str) -> dict[str, Any]:
        held = self.held.get(number, {})
        return {
            "job_id": number,
            "job_state": "RUNNING" if held else "PENDING",
            "partition": "gpu",
            "user_name": "anna",
            "name": "train",
            "comment": f'gavel: type="{kind}" steps=1000000',
            "admin_comment": "gavel:submit=1700000000;plugin",
            "tres_per_node": f"gres:gpu:{gpus}",
            "node_count": max(1, len(held)),
            "nodes": ",".join(held),
            "gres_detail": [f"gpu:v100:{count}(IDX:0-3)" for count in held.values()],
            "priority": 1_000 if held else 0,
            "state_reason": "None" if held else "JobHeldUser",
            "cpus": gpus,
            "start_time": START,
            "submit_time": START,
        }


class Clock(WallClock):
    """A clock that advances on request."""

    seconds = START + 10.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> bool:
        self.seconds += seconds
        return True


def measured() -> list[list[object]]:
    replies, clock = Replies(), Clock()
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    driver = gp.SlurmDriver(gp.SlurmSettings("gpu"), profile, "max_min_fairness", commands=replies, clock=clock)
    warm_up(profile)
    rows: list[list[object]] = []
    for number in range(1 + ROUNDS):
        printed = time.process_time()
        for command in ("sinfo", "squeue"):
            replies.run([command])
        printing = time.process_time() - printed  # the time of Slurm, not of the driver
        began = time.process_time()
        decided = driver.plan()
        took = time.process_time() - began - printing
        replies.held = {int(job_id): dict(target) for job_id, target in decided.moves.start.items()} | {
            int(job_id): replies.held[int(job_id)] for job_id in decided.moves.keep
        }
        clock.seconds += 360.0
        what = "first round: all jobs are new" if number == 0 else f"round {number + 1}"
        rows.append([what, took, 2, len(decided.moves.start), len(decided.moves.stop), len(decided.moves.keep)])
    return rows


def warm_up(profile: gp.ThroughputProfile) -> None:
    """Import the modules of linear programs."""
    gp.simulate([gp.Job("a", job_type=KINDS[0], total_steps=10)], gp.Cluster.from_counts({"v100": 1}), profile, "max_min_fairness")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    header = [f"{JOBS:,} jobs, {NODES * GPUS:,} GPUs", "CPU time, s", "target, s", "started", "stopped", "kept"]
    text = tables.markdown(header, measured()) + f"\n{tables.machine()}; `python benchmarks/slurm.py --write`.\n"
    print(text)
    if arguments.write:
        tables.write("slurm", text)


if __name__ == "__main__":
    main()
