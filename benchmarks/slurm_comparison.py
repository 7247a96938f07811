"""The same jobs on a real Slurm: scheduled by Slurm itself, and driven by `gavel slurm run`.

python benchmarks/slurm_comparison.py                     the table; an hour or two, and needs Slurm (slurm-wlm, munge)
python benchmarks/slurm_comparison.py --seeds 0 --at-once 1
python benchmarks/slurm_comparison.py --kept FILE         interrupted: runs in the file are not played again
python benchmarks/slurm_comparison.py --write             and put it into docs/slurm-driver.md

Jobs sleep: they do steps at the measured speed of their GPU type. Each run has its own cluster.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median, stdev

import tables
from scipy.stats import t
from slurm_play import Played, System, play
from slurm_systems import MIN_RUN_SECONDS, ROUND_SECONDS, systems
from slurm_workload import workload

PAGE = Path(__file__).parents[1] / "docs" / "slurm-driver.md"
CONFIDENCE = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--at-once", type=int, default=3, help="runs side by side [3]")
    parser.add_argument("--kept", type=Path, help="a file of runs: those in it are not played again, new ones are added")
    parser.add_argument("--logs", type=Path, help="a directory for the logs of the drivers")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    runs, compared = Runs(asked.kept), systems()
    wanted = [(system, seed) for seed in asked.seeds for system in compared if (system.name, seed) not in runs.played]

    def played(each: tuple[System, int]) -> None:
        system, seed = each
        log = None if asked.logs is None else asked.logs / f"{system.name.strip('`')}-{seed}.jsonl"
        runs.add(system, seed, play(system, workload(seed), log))

    with ThreadPoolExecutor(asked.at_once) as pool:
        list(pool.map(played, wanted))
    text = table(runs, [system.name for system in compared], asked.seeds)
    sys.stdout.write(text)
    if asked.write:
        tables.write("slurm_comparison", text, PAGE)


class Runs:
    """Runs by name of the system and seed, stored in a file if one is given."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.played: dict[tuple[str, int], dict[str, float]] = {(run["system"], run["seed"]): run for run in map(json.loads, lines)}

    def add(self, system: System, seed: int, played: Played) -> None:
        """Add a run."""
        figures = played.figures()
        self.played[system.name, seed] = figures
        line = json.dumps({"system": system.name, "seed": seed, **figures})
        print(line, file=sys.stderr, flush=True)
        if self._path is not None:
            with open(self._path, "a") as file:
                file.write(line + "\n")


def table(runs: Runs, names: Sequence[str], seeds: Sequence[int]) -> str:
    """Return the table; the first system is the one that the others are compared with."""
    header = ["scheduler", "mean completion, s", "of knowing users'", "makespan, s", "of knowing users' ", "starts of a job"]
    rows = [row(runs, name, names[0], seeds) for name in names]
    costs = [cost for each in runs.played.values() if (cost := each["restart_seconds"])]
    return tables.markdown(header, rows) + f"\n{note(median(costs))}\n" if costs else tables.markdown(header, rows)


def note(restart_seconds: float) -> str:
    """Return the line below the table."""
    times = (
        f"rounds of {ROUND_SECONDS} s, shortest run {MIN_RUN_SECONDS} s, a stop and a start took {restart_seconds:.1f} s (median)"
    )
    return f"{times}; {tables.machine()}; `python benchmarks/slurm_comparison.py --write`."


def row(runs: Runs, name: str, base: str, seeds: Sequence[int]) -> list[object]:
    """Return the means of a system, and how they relate to those of the base for the same jobs."""
    mine, others = ([runs.played[each, seed] for seed in seeds] for each in (name, base))
    cells: list[object] = [name]
    for what in ("mean_jct_seconds", "makespan_seconds"):
        ratios = [one[what] / other[what] for one, other in zip(mine, others, strict=True)]
        cells += [mean(run[what] for run in mine), "1" if name == base else interval(ratios)]
    return [*cells, mean(run["starts"] for run in mine)]


def interval(ratios: Sequence[float]) -> str:
    """Return the mean of paired ratios, and the half width of its confidence interval by Student's t."""
    if len(ratios) < 2:
        return f"{mean(ratios):.2f}"
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(ratios) - 1)) * stdev(ratios) / len(ratios) ** 0.5
    return f"{mean(ratios):.2f} ± {half:.2f}"


if __name__ == "__main__":
    main()
