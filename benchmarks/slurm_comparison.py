"""The same jobs on a real Slurm, scheduled by Slurm itself and driven by `gavel slurm run`, and more of them by the simulator.

python benchmarks/slurm_comparison.py                     play what is missing in slurm_plays.jsonl, then print the table
python benchmarks/slurm_comparison.py --write             and put it into docs/slurm-driver.md
python benchmarks/slurm_comparison.py --only fifo --at-once 1
python benchmarks/slurm_comparison.py --only none         play nothing

Plays need Slurm (slurm-wlm, munge), and 80 minutes in all; each has its own cluster. Jobs sleep: they do steps at the measured
speed of their GPU type.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from statistics import mean, median, stdev
from threading import Lock
from typing import Any

import tables
from scipy.stats import t
from slurm_play import play
from slurm_simulated import Outcome, Times, by_driver, by_slurm
from slurm_systems import KNOWING, OTHERS, POLICIES, systems
from slurm_workload import LENGTHS, LOADS, USERS, Workload, speeds_of

PAGE = Path(__file__).parents[1] / "docs" / "slurm-driver.md"
PLAYS = Path(__file__).with_name("slurm_plays.jsonl")
PLAYED_SEED, SEEDS = 3, range(5)
CONFIDENCE = 0.95
SCALE = 60.0
"""A second here stands for so many, so GPU-seconds / SCALE are GPU-hours there."""

Plays = Mapping[tuple[str, Workload], Mapping[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=3, help="plays side by side [3]")
    parser.add_argument("--only", default="", help="play only systems whose name contains this")
    parser.add_argument("--logs", type=Path, help="a directory for the logs of the drivers")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    plays, lock = played(PLAYS), Lock()

    def add(name: str, workload: Workload) -> None:
        log = None if asked.logs is None else asked.logs / f"{name.strip('`')}-{workload.load}-{workload.length}.jsonl"
        found = play(compared[name], workload, log)
        with lock, open(PLAYS, "a") as file:
            file.write(json.dumps({"system": name, **vars(workload), **found}, separators=(",", ":")) + "\n")
        print(name, workload, file=sys.stderr, flush=True)

    compared = {name: each for name, each in systems().items() if asked.only in name}
    wanted = [(name, each) for name in compared for each in workloads(PLAYED_SEED)]
    with ThreadPoolExecutor(asked.at_once) as pool:
        list(pool.map(lambda each: add(*each), [each for each in wanted if each not in plays]))
    text = table(played(PLAYS))
    sys.stdout.write(text)
    if asked.write:
        tables.write("slurm_comparison", text, PAGE)


def workloads(seed: int) -> list[Workload]:
    """Return one of each load and length, the longest first."""
    return [Workload(load, length, seed) for length in reversed(LENGTHS) for load in LOADS]


def played(path: Path) -> dict[tuple[str, Workload], dict[str, Any]]:
    """Return the plays in a file by system and workload."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(line["system"], Workload(line["load"], line["length"], line["seed"])): line for line in lines}


def outcome_of(play: Mapping[str, Any]) -> Outcome:
    arrivals, ends, _, _, starts, lost = zip(*play["jobs"], strict=True)
    return Outcome([end - at for at, end in zip(arrivals, ends, strict=True)], starts, sum(lost))


@dataclass(frozen=True)
class Figures:
    """Beside knowing users with the same jobs: ratios of the means, of the worst slowdowns, and the largest one of a user's means;
    starts of a job, and GPU-hours without steps.
    """

    mean_jct: float
    slowdown: float
    user: float
    starts: float
    lost_hours: float

    @classmethod
    def of(cls, workload: Workload, found: Outcome, knowing: Outcome) -> Figures:
        jobs, loading = workload.trace(), workload.loading_seconds
        least = [loading + (job.total_steps or 0.0) / max(speeds_of(job).values()) for job in jobs]
        worst = [max(jct / best for jct, best in zip(each.jct_seconds, least, strict=True)) for each in (found, knowing)]
        users = [[i for i, job in enumerate(jobs) if job.tenant == f"user-{user}"] for user in range(USERS)]
        theirs = [mean(found.jct_seconds[i] for i in each) / mean(knowing.jct_seconds[i] for i in each) for each in users if each]
        ratio = mean(found.jct_seconds) / mean(knowing.jct_seconds)
        return cls(ratio, worst[0] / worst[1], max(theirs), mean(found.starts), found.lost_gpu_seconds / SCALE)


def table(plays: Plays) -> str:
    """Return the rows of all loads, lengths and systems, and what the plays have measured."""
    times = times_of(plays)
    header = ["jobs, load", "scheduler", "played: mean, s", "of knowing", "worst slowdown", "worst user", "starts", "GPU-h lost"]
    header += ["simulated: off by", "of knowing ", "worst slowdown ", "worst user ", "starts ", "GPU-h lost "]
    rows, off = list[list[object]](), list[float]()
    for workload in workloads(PLAYED_SEED):
        seeds = [Workload(workload.load, workload.length, seed) for seed in SEEDS]
        knowing = {each: simulated(KNOWING, each, times) for each in {*seeds, workload}}
        for name in (KNOWING, OTHERS, *POLICIES):
            row: list[object] = [f"{workload.length}, {workload.load}", name]
            if (name, workload) in plays and (KNOWING, workload) in plays:
                real = outcome_of(plays[name, workload])
                figures = Figures.of(workload, real, outcome_of(plays[KNOWING, workload]))
                off.append(mean(simulated(name, workload, times).jct_seconds) / mean(real.jct_seconds) - 1)
                row += [mean(real.jct_seconds), *shown(figures), f"{off[-1]:+.0%}"]
            else:
                row += ["not played", *repeat("", 6)]
            found = [Figures.of(each, simulated(name, each, times), knowing[each]) for each in seeds]
            row += ["1", "1", "1"] if name == KNOWING else over_seeds(found)
            rows.append([*row, f"{mean(each.starts for each in found):.2f}", f"{mean(each.lost_hours for each in found):.0f}"])
    errors = [abs(each) for each in off]
    notes = [
        f"Medians: {times.slurm_start:.1f} s to a start on idle GPUs by Slurm, {times.driver_start:.1f} s by a driver, and",
        f"{times.restart:.1f} s for a stop and a start. The simulator is off by {mean(errors):.0%} in the mean, at most",
        f"{max(errors):.0%}; {tables.machine()}; `python benchmarks/slurm_comparison.py --write`.",
    ]
    return tables.markdown(header, rows) + f"\n{' '.join(notes)}\n"


def shown(figures: Figures) -> list[object]:
    """Return the cells of a play."""
    ratios = [f"{each:.2f}" for each in (figures.mean_jct, figures.slowdown, figures.user)]
    return [*ratios, f"{figures.starts:.2f}", f"{figures.lost_hours:.0f}"]


def over_seeds(found: Sequence[Figures]) -> list[str]:
    """Return the mean of the ratio with its interval, and the means and the largest of the others."""
    others = ([each.slowdown for each in found], [each.user for each in found])
    return [interval([each.mean_jct for each in found]), *(f"{mean(each):.2f}, {max(each):.2f}" for each in others)]


def times_of(plays: Plays) -> Times:
    """Return the medians of the times of all plays."""
    by_slurm = [each["start_seconds"] for (name, _), each in plays.items() if name not in POLICIES]
    driven = [each for (name, _), each in plays.items() if name in POLICIES]
    restarts = [each["restart_seconds"] for each in driven if each["stop_seconds"] is not None]
    return Times(median(by_slurm), median(each["start_seconds"] for each in driven), median(restarts))


def simulated(name: str, workload: Workload, times: Times) -> Outcome:
    """Return the outcome of a workload without Slurm."""
    if name not in POLICIES:
        return by_slurm(workload, times, is_known=name == KNOWING)
    return by_driver(workload, times, POLICIES[name])


def interval(ratios: Sequence[float]) -> str:
    """Return the mean of paired ratios, and the half width of its confidence interval by Student's t."""
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(ratios) - 1)) * stdev(ratios) / len(ratios) ** 0.5
    return f"{mean(ratios):.2f} ± {half:.2f}"


if __name__ == "__main__":
    main()
