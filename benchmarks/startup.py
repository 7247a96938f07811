"""CPU time of a fresh process that solves one small problem, most of which is imports.

    python benchmarks/startup.py                    print the table
    python benchmarks/startup.py OTHER_CHECKOUT     and measure another checkout beside this one
    python benchmarks/startup.py OTHER --write      and put the table into benchmarks/RESULTS.md

Each figure is the median CPU time (user and system) of 9 processes after one warm-up that compiles the modules, as installing does.
Commands and checkouts alternate, so that a drift of the machine's speed affects all of them equally.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import tables

RUNS = 9
HERE = Path(__file__).parents[1]
SOLVE = (
    "import gavel_py as gp; "
    "gp.solve(gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 1.5], [3.0, 1.0]], [2, 2]), {policy!r}).objective_value"
)
JOBS = "job_id,job_type,num_gpus,total_steps\na,ResNet-50 (batch size 64),2,100000\nb,A3C,1,100000\n"


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the commands after the interpreter, by what they do."""
    files = [str(folder / "jobs.csv"), "--cluster", "v100:4,k80:4"]
    policies = "max_min_fairness", "max_total_throughput", "fifo"
    return {
        "`python -c pass`": ["-c", "pass"],
        "`import numpy`": ["-c", "import numpy"],
        "`import gavel_py`": ["-c", "import gavel_py"],
        **{f"`gp.solve`, 3 jobs, `{name}`": ["-c", SOLVE.format(policy=name)] for name in policies},
        **{f"`gavel solve`, 2 jobs, `{name}`": ["-m", "gavel_py", "solve", *files, "--policy", name] for name in policies[:2]},
    }


def cpu_seconds(command: list[str], checkout: Path, modules: str) -> float:
    """Return the CPU time of a process in a checkout. modules: the folder of compiled modules."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONPYCACHEPREFIX": modules, "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=environment, cwd=checkout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def table(checkouts: dict[str, Path]) -> str:
    """Measure, and return the figures as a Markdown table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "jobs.csv").write_text(JOBS)
        rows = commands(folder)
        taken: dict[tuple[str, str], list[float]] = {(what, which): [] for what in rows for which in checkouts}
        for run in range(RUNS + 1):
            for what, which in taken:
                took = cpu_seconds(rows[what], checkouts[which], str(folder / "modules"))
                if run:
                    taken[what, which].append(took)
    medians = {key: statistics.median(times) for key, times in taken.items()}
    lines = []
    for what in rows:
        each = [medians[what, which] for which in checkouts]
        lines.append([what, *(f"{value:.2f}" for value in each), *([f"{each[0] / each[1]:.1f}"] if len(each) > 1 else [])])
    header = ["a fresh process", *checkouts, *(["times less"] if len(checkouts) > 1 else [])]
    source = "`python benchmarks/startup.py OTHER --write`"
    return f"{tables.markdown(header, lines)}\nMedians of {RUNS} runs, CPU seconds; {tables.machine()}; {source}.\n"


def main() -> None:
    others = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    before = {"before": Path(others[0]).resolve()} if others else {}
    text = table({**before, "now": HERE})
    print(text)
    if "--write" in sys.argv[1:]:
        tables.write("startup", text)


if __name__ == "__main__":
    main()
