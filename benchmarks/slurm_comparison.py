"""The same jobs on a real Slurm: scheduled by Slurm itself, and driven by `gavel slurm run`.

python benchmarks/slurm_comparison.py                     the table; an hour, and needs Slurm (slurm-wlm, munge)
python benchmarks/slurm_comparison.py --seeds 0 --at-once 1
python benchmarks/slurm_comparison.py --write             and put it into docs/slurm.md

Jobs sleep: they do steps at the measured speed of their GPU type. Each run has its own cluster.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

import tables
from slurm_play import Played, System, play
from slurm_systems import systems
from slurm_workload import workload

PAGE = Path(__file__).parents[1] / "docs" / "slurm.md"
BASELINE = "Slurm, backfill"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--at-once", type=int, default=5, help="runs side by side; the schedulers of one seed, unless said otherwise"
    )
    parser.add_argument("--kept", type=Path, help="a file of runs: those in it are not played again, new ones are added")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    runs, compared = Runs(asked.kept), systems()
    wanted = [(system, seed) for seed in asked.seeds for system in compared if (system.name, seed) not in runs.played]
    with ThreadPoolExecutor(asked.at_once) as pool:
        for (system, seed), played in zip(wanted, pool.map(lambda each: play(each[0], workload(each[1])), wanted), strict=True):
            runs.add(system, seed, played)
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
        figures = played.figures()
        self.played[system.name, seed] = figures
        run = {"system": system.name, "seed": seed, **figures}
        print(json.dumps(run), file=sys.stderr, flush=True)
        if self._path is not None:
            with open(self._path, "a") as file:
                file.write(json.dumps(run) + "\n")


def table(runs: Runs, names: list[str], seeds: list[int]) -> str:
    header = [
        "scheduler",
        "mean completion, s",
        "of backfill's",
        "seeds, least to most",
        "makespan, s",
        "of backfill's ",
        "starts of a job",
    ]
    return tables.markdown(header, [row(runs, name, seeds) for name in names])


def row(runs: Runs, name: str, seeds: list[int]) -> list[object]:
    mine, base = ([runs.played[each, seed] for seed in seeds] for each in (name, BASELINE))
    ratios = {
        what: [one[what] / other[what] for one, other in zip(mine, base, strict=True)]
        for what in ("mean_jct_seconds", "makespan_seconds")
    }
    jct = ratios["mean_jct_seconds"]
    return [
        name,
        mean(run["mean_jct_seconds"] for run in mine),
        mean(jct),
        f"{min(jct):.2f} to {max(jct):.2f}",
        mean(run["makespan_seconds"] for run in mine),
        mean(ratios["makespan_seconds"]),
        mean(run["starts"] for run in mine),
    ]


if __name__ == "__main__":
    main()
