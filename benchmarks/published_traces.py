"""CPU time of `gp.simulate` on the traces that Gavel's code ships, on their clusters, with an earlier checkout beside this one.

    python benchmarks/published_traces.py FOLDER                  print the table; FOLDER: its scheduler/traces/physical_cluster
    python benchmarks/published_traces.py FOLDER --before TREE    and play each in turns with an earlier checkout
    python benchmarks/published_traces.py FOLDER --write          and put the table into benchmarks/RESULTS.md

A process plays one trace under one policy once for warming up and twice. "needed": how many times longer this one took at d029f474
than the published simulator (commit c4fa400, cvxpy with ECOS, CPU time without imports), both on the same busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import tables

import gavel_py as gp

HERE = Path(__file__).parents[1]
TYPES = ("v100", "p100", "k80")
CLUSTERS = {
    "small_test": (4, 4, 4),
    "medium_test": (4, 4, 4),
    "max_min_fairness": (8, 16, 24),
    "minimize_makespan": (8, 16, 24),
}
POLICIES = ("max_min_fairness", "finish_time_fairness", "min_makespan", "max_total_throughput")
PROCESSES, RUNS = 3, 2

THEN: dict[tuple[str, str], tuple[float, float]] = {
    ("small_test", "max_min_fairness"): (0.15, 0.085),
    ("small_test", "min_makespan"): (0.45, 0.062),
    ("medium_test", "max_min_fairness"): (0.33, 0.39),
    ("medium_test", "min_makespan"): (0.52, 0.82),
    ("max_min_fairness", "max_min_fairness"): (1.3, 3.9),
    ("max_min_fairness", "min_makespan"): (3.9, 5.0),
    ("minimize_makespan", "max_min_fairness"): (1.45, 3.1),
    ("minimize_makespan", "min_makespan"): (1.8, 3.3),
}
"""{trace, policy: CPU seconds of the published simulator, and of this one at d029f474}."""


def played(path: Path, policy: str) -> list[float]:
    """Return the CPU seconds of each simulation, the last entry the mean completion time."""
    cluster = gp.Cluster.from_counts(dict(zip(TYPES, CLUSTERS[path.stem], strict=True)))
    jobs, profile = gp.JobSet.from_file(path), gp.ThroughputProfile.builtin("gavel-osdi20")
    took = []
    for _ in range(RUNS + 1):
        started = time.process_time()
        result = gp.simulate(jobs, cluster, profile, policy)
        took.append(time.process_time() - started)
    return [*took[1:], result.summary.jct.mean or 0.0]


def measured(tree: Path, path: Path, policy: str) -> list[float]:
    """Return the figures of `played` in a fresh process of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(path), "--play", policy]
    printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: list[float] = json.loads(printed)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, metavar="FOLDER")
    parser.add_argument("--before", type=Path, metavar="TREE", help="a checkout to compare with")
    parser.add_argument("--play", choices=POLICIES, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    asked = parser.parse_args()
    if asked.play:
        print(json.dumps(played(asked.traces, asked.play)))
        return
    trees = {"before": asked.before.resolve(), "now": HERE} if asked.before else {"now": HERE}
    rows = []
    for path in (asked.traces / f"{name}.trace" for name in CLUSTERS):
        for policy in POLICIES:
            took: dict[str, list[float]] = {name: [] for name in trees}
            means = {}
            for _ in range(PROCESSES):
                for name, tree in trees.items():
                    *seconds, means[name] = measured(tree, path, policy)
                    took[name] += seconds
            now, then = median(took["now"]), THEN.get((path.stem, policy))
            row: list[object] = [f"{path.stem}, {sum(CLUSTERS[path.stem])} GPUs, `{policy}`", now, means["now"]]
            if asked.before:
                row += [median(took["before"]), means["before"], median(took["before"]) / now]
            rows.append([*row, None if then is None else max(1.0, then[1] / then[0])])
    compared = ["before", "mean completion, s, before", "times less"] if asked.before else []
    header = ["simulation, CPU s", "now", "mean completion, s", *compared, "needed"]
    command = "`python benchmarks/published_traces.py FOLDER --before TREE --write`"
    text = f"{tables.markdown(header, rows)}\nMedians of {PROCESSES * RUNS} runs, in turns; {tables.machine()}; {command}.\n"
    print(text)
    if asked.write:
        tables.write("published traces", text)


if __name__ == "__main__":
    main()
