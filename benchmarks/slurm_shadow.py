"""What a shadow promises beside the plays of slurm_plays.jsonl under Slurm alone, and what the drivers then did with the same jobs.

python benchmarks/slurm_shadow.py            the table; needs no Slurm, and about ten minutes
python benchmarks/slurm_shadow.py --write    and put it into docs/slurm-driver.md

A shadow reads what Slurm would have listed in the play of users who name no types, by a clock that does not wait.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, cast

import tables
from slurm_comparison import PAGE, PLAYED_SEED, PLAYS, Plays, played, workloads
from slurm_play import NODES
from slurm_systems import KNOWING, OTHERS, POLICIES, RESTART_SECONDS, ROUND_SECONDS
from slurm_workload import GPUS_PER_NODE, Workload, limit_minutes, measured, speeds_of

import gavel_py as gp
from tests.slurm.fake_slurm import START, FakeClock, FakeSlurm

POLL_SECONDS = 1.0


class RecordedSlurm(FakeSlurm):
    """Lists the jobs of a play as Slurm would have at the time of its clock."""

    def __init__(self, workload: Workload, rows: Sequence[Sequence[Any]]) -> None:
        super().__init__(FakeClock(), {name: (kind.accelerator, kind.gpus) for kind in NODES for name in kind.names})
        self.leases = {}
        self._rows = [row[:4] for row in rows]
        self._jobs = workload.trace()
        self._loading = workload.loading_seconds
        self.clock.on_sleep = self._play

    def _play(self, now: float) -> None:
        for number, (job, (arrived, end, begin, place)) in enumerate(zip(self._jobs, self._rows, strict=True), 1):
            if number not in self.jobs and START + arrived <= now:
                nodes = math.ceil(job.num_gpus / GPUS_PER_NODE)
                limit = limit_minutes(job, self._loading)
                more = {
                    "node_count": nodes,
                    "submit_time": START + arrived,
                    "time_limit": limit,
                    "features": "|".join(speeds_of(job)),
                }
                comment = f'gavel: type="{job.job_type}" steps={job.total_steps}'
                request = {"per_node": f"gpu:{int(job.num_gpus) // nodes}", "nodes": nodes, "reason": "Resources"}
                self.submit(number, comment=comment, admin_comment="", more=more, **request)
            if number in self.jobs and self.jobs[number].state == "PENDING" and START + begin <= now:
                found = self.jobs[number]
                found.state, found.held, found.start = "RUNNING", dict(place), math.floor(START + begin)
            if number in self.jobs and self.jobs[number].state == "RUNNING" and START + end <= now:
                self.end(number)
                self.jobs[number].end = math.floor(START + end)

    def _schedule(self) -> None:
        """Start nothing: the play tells what starts."""


def promised(workload: Workload, rows: Sequence[Sequence[Any]], name: str) -> gp.SlurmComparison:
    """Return the comparison of a shadow. Where turns depend on it, it is told the cost of a restart, as the driver was."""
    slurm, setting = RecordedSlurm(workload, rows), POLICIES[name]
    slurm.clock.stops_at = START + max(row[1] for row in rows) + 10 * ROUND_SECONDS
    options = gp.SchedulerOptions(round_seconds=ROUND_SECONDS)
    if setting.has_turns:
        options = options.changed(restart_seconds=workload.loading_seconds + RESTART_SECONDS)
    else:
        options = options.changed(min_run_seconds=0.0)
    settings = gp.SlurmSettings("gpu", too_slow=setting.too_slow, poll_seconds=POLL_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        shadow = gp.SlurmShadow(
            settings,
            measured(),
            setting.policy,
            directory=folder,
            options=options,
            commands=cast("gp.SlurmCommands", slurm),
            clock=cast("gp.WallClock", slurm.clock),
        )
        with shadow:
            shadow.run()
        found = gp.slurm_comparison(folder)
    assert found is not None
    assert found.both == len(rows), f"{len(rows) - found.both} jobs have not ended in both"
    return found


def row_of(plays: Plays, workload: Workload, name: str) -> list[object]:
    """Return what a shadow promises beside the play of other users, and what the driver did."""
    real, knew = mean_jct(plays[name, workload]), mean_jct(plays[KNOWING, workload])
    found = promised(workload, plays[OTHERS, workload]["jobs"], name)
    assert found.change is not None
    assert found.knowing is not None
    means = [each["mean_jct_seconds"] or math.nan for each in (found.slurm.metrics, found.shadow.metrics, found.knowing)]
    change = "{:+.0%} ± {:.0%}".format(*found.change)
    off = [f"{means[1] / real - 1:+.1%}", f"{means[2] / knew - 1:+.1%}"]
    return [f"{workload.length}, {workload.load}", name, means[0], change, means[1], real, *off]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    plays, rows = played(PLAYS), list[list[object]]()
    for workload in workloads(PLAYED_SEED):
        for name in POLICIES:
            if {(KNOWING, workload), (OTHERS, workload), (name, workload)} <= plays.keys():
                rows.append(row_of(plays, workload, name))
                print(rows[-1], file=sys.stderr, flush=True)
    header = ["jobs, load", "driver", "Slurm: mean, s", "shadow's change", "shadow: mean, s", "driver then: mean, s"]
    header += ["shadow is off by", "knowing users' column is off by"]
    text = tables.markdown(header, rows) + "\n`python benchmarks/slurm_shadow.py --write`.\n"
    sys.stdout.write(text)
    if asked.write:
        tables.write("slurm_shadow", text, PAGE)


def mean_jct(play: Mapping[str, Any]) -> float:
    return mean(float(end - arrived) for arrived, end, *_ in play["jobs"])


if __name__ == "__main__":
    main()
