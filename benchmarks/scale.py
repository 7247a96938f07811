"""Time of large problems: a million jobs; 10,000 jobs against one row per job, against POP, and from round to round.

    python benchmarks/scale.py            print the tables (several minutes)
    python benchmarks/scale.py --write    and put them into benchmarks/RESULTS.md
    python benchmarks/scale.py --quick    a tenth of the jobs and one run, to see that all of it works

Each figure is the median of 5 runs after one warm-up; compared programs alternate, so that a drift of the machine's speed affects
all of them equally. A program of more than 20 s runs once, and its table says so. Peak memory is read from /proc (Linux).
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tables
from numpy.typing import NDArray

import gavel_py as gp

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Sample = dict[str, Any]  # seconds by step, and results

SLOW = 20.0
GANGS, GANG_PARTS = [1, 2, 4, 8], [0.7, 0.1, 0.15, 0.05]
TYPE_SPEEDS, TYPE_PARTS = np.array([1.0, 0.6, 0.35, 0.8]), np.array([0.2, 0.3, 0.4, 0.1])
STEPS, TIMES = ("steps_remaining",), ("steps_remaining", "elapsed_seconds", "isolated_seconds")
POLICIES = {"max_total_throughput": (), "max_min_fairness": (), "min_makespan": STEPS, "finish_time_fairness": TIMES}
# Cases of a million jobs: policy, what differs between jobs of one class, targets in seconds and in passes.
WORKS: dict[str, tuple[str, tuple[str, ...], float, float | None]] = {
    "`max_total_throughput`": ("max_total_throughput", (), 0.3, 25),
    "`max_min_fairness`": ("max_min_fairness", (), 0.3, 25),
    "`max_min_fairness`, weights": ("max_min_fairness", ("weights",), 3, None),
    "`min_makespan`, steps": ("min_makespan", STEPS, 3, None),
    "`finish_time_fairness`, steps and times": ("finish_time_fairness", TIMES, 3, None),
}
IMPORTS, ARRAYS = "imports alone", ", from_arrays"
INTERIOR_POINT = {"solver": "ipm", "run_crossover": "off", "presolve": "off"}
WITHOUT = "interior point, no crossover, no presolve"


@dataclass(frozen=True)
class Jobs:
    """N jobs, job i with the throughputs in row types[i] of the table; the cluster has a fifth of the GPUs they request."""

    table: Floats
    types: Indices
    gangs: Indices
    columns: dict[str, Floats]
    capacities: Floats

    @property
    def throughputs(self) -> Floats:
        return self.table[self.types]

    def picked(self, rows: Indices) -> Jobs:
        by_job = {name: column[rows] for name, column in self.columns.items()}
        return Jobs(self.table, self.types[rows], self.gangs[rows], by_job, self.capacities)

    def problem(self, names: tuple[str, ...] = (), throughputs: Floats | None = None) -> gp.AllocationProblem:
        """Return the problem with these columns, by `from_types` unless (N, K) throughputs are given."""
        arrays: Any = {name: self.columns[name] for name in names} | {"num_gpus": self.gangs}
        if throughputs is None:
            return gp.AllocationProblem.from_types(self.table, self.types, self.capacities, **arrays)
        return gp.AllocationProblem.from_arrays(throughputs, self.capacities, **arrays)


def speeds(chance: np.random.Generator, rows: int) -> Floats:
    """Return random throughputs of job types, with different speedups between GPU types."""
    result: Floats = chance.lognormal(0, 1, (rows, 1)) * TYPE_SPEEDS * chance.lognormal(0, 0.4, (rows, len(TYPE_SPEEDS)))
    return result


def drawn(chance: np.random.Generator, table: Floats, types: Indices, gangs: Indices, count: int) -> Jobs:
    """Draw the individual columns of jobs, and capacities that fit the first `count` of these jobs."""
    elapsed = chance.uniform(0, 1e5, len(types))
    columns = {
        "weights": chance.uniform(0.5, 2, len(types)),
        "steps_remaining": chance.lognormal(np.log(1e5), 1, len(types)),
        "elapsed_seconds": elapsed,
        "isolated_seconds": elapsed * chance.uniform(0, 1, len(types)),
    }
    return Jobs(table, types, gangs, columns, np.round(0.2 * gangs[:count].sum() * TYPE_PARTS))


def of_classes(count: int) -> Jobs:
    """Return jobs of 83 classes, each with its throughputs and gang size."""
    chance = np.random.default_rng(0)
    table, gangs, types = speeds(chance, 83), chance.choice(GANGS, 83, p=GANG_PARTS), chance.integers(0, 83, count)
    return drawn(chance, table, types, gangs[types], count)


def all_different(count: int) -> tuple[Jobs, Jobs]:
    """Jobs of 26 base rows with noise of 5 %, no two rows equal; and the same with 1 % of the jobs replaced by new ones."""
    chance, new = np.random.default_rng(1), count // 100
    table = speeds(chance, 26)[chance.integers(0, 26, count + new)] * chance.lognormal(0, 0.05, (count + new, len(TYPE_SPEEDS)))
    jobs = drawn(chance, table, np.arange(count + new), chance.choice(GANGS, count + new, p=GANG_PARTS), count)
    later = np.arange(count)
    later[chance.choice(count, new, replace=False)] = np.arange(count, count + new)
    return jobs.picked(np.arange(count)), jobs.picked(later)


@dataclass
class Trial:
    """The number of timed runs, and for each of our allocations its problem, gap, violation and failed routes."""

    runs: int
    found: list[tuple[str, float, float, tuple[str, ...]]] = field(default_factory=list)

    def take_turns(self, works: Mapping[str, Callable[[], Sample]]) -> dict[str, list[Sample]]:
        taken: dict[str, list[Sample]] = {name: [] for name in works}
        for run in range(self.runs + 1):
            for name, work in works.items():
                if not run or taken[name][0]["seconds"] <= SLOW:
                    taken[name].append(work())
        return {name: samples if samples[0]["seconds"] > SLOW else samples[1:] for name, samples in taken.items()}

    def ours(self, what: str, build: Callable[[], gp.AllocationProblem], solve: Callable[..., gp.Allocation]) -> Sample:
        """Time building and solving a problem, and verify the allocation, untimed."""
        started = time.perf_counter()
        problem = build()
        built = time.perf_counter()
        answer = solve(problem)
        ended = time.perf_counter()
        assert answer.gap is not None
        assert answer.route is not None
        self.found.append((what, answer.gap, answer.verify().violation, answer.route.failed))
        spent = {"build": built - started, "solve": ended - built, "seconds": ended - started}
        return spent | {"value": answer.objective_value, "gap": answer.gap, "status": "proven"}


def timed(work: Callable[[], object]) -> Sample:
    """Time a function of milliseconds, as the mean of 20 calls."""
    started = time.perf_counter()
    for _ in range(20):
        work()
    return {"seconds": (time.perf_counter() - started) / 20}


def plain(throughputs: Floats, gangs: Indices, capacities: Floats, options: dict[str, str]) -> Sample:
    """Solve max-min fairness with one row per job in cvxpy, from the arrays to X (0 without a solution)."""
    import cvxpy as cp

    started = time.perf_counter()
    worth = gangs[:, None] * throughputs / (throughputs @ (capacities / capacities.sum()))[:, None]
    x, level = cp.Variable(throughputs.shape, nonneg=True), cp.Variable()
    enough = cp.sum(cp.multiply(worth, x), axis=1) >= level
    program = cp.Problem(cp.Maximize(level), [cp.sum(x, axis=1) <= 1, gangs @ x <= capacities, enough])
    try:
        program.solve(solver=cp.HIGHS, highs_options=options)
        status = str(program.status)
    except cp.SolverError as error:
        status = f"SolverError: {error}"
    fractions = np.zeros(throughputs.shape) if x.value is None else x.value
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "value": float((worth * fractions).sum(axis=1).min()), "status": status}


def pop(jobs: Jobs, parts: int) -> Sample:
    """Solve by POP: jobs in random parts with an equal share of all GPUs each; the slowest part counts."""
    order, throughputs, share = np.random.default_rng(2).permutation(len(jobs.types)), jobs.throughputs, jobs.capacities / parts
    solved = [plain(throughputs[rows], jobs.gangs[rows], share, INTERIOR_POINT) for rows in np.array_split(order, parts)]
    seconds, statuses = [one["seconds"] for one in solved], sorted({one["status"] for one in solved})
    return {
        "seconds": max(seconds),
        "all": sum(seconds),
        "value": min(one["value"] for one in solved),
        "status": ", ".join(statuses),
    }


def mid(samples: list[Sample], key: str = "seconds") -> float:
    return float(median(sample[key] for sample in samples))


def figures(samples: list[Sample]) -> tuple[float, str]:
    """Return two cells: the median and the range."""
    times = [sample["seconds"] for sample in samples]
    return median(times), f"{min(times):.3g} to {max(times):.3g}" if len(times) > 1 else "one run"


def a_million(trial: Trial, count: int) -> Iterator[str]:
    jobs = of_classes(count)
    throughputs, fractions = jobs.throughputs, gp.solve(jobs.problem()).time_fractions
    one_pass, one_copy = "one pass: `einsum('ij,ij->i', T, X)`", "one copy: `T.copy()`"
    works = {one_pass: partial(timed, partial(np.einsum, "ij,ij->i", throughputs, fractions))}
    works[one_copy] = partial(timed, throughputs.copy)
    for name, (policy, reads, *_) in WORKS.items():
        for how, table in (("", None), (ARRAYS, throughputs)):
            works[name + how] = partial(
                trial.ours, name + how, partial(jobs.problem, reads, table), partial(gp.solve, policy=policy)
            )
    taken = trial.take_turns(works)

    def row(name: str) -> list[object]:
        parts = [mid(taken[name], key) for key in ("build", "solve")] if name in WORKS else [None, None]
        in_seconds, in_passes = WORKS[name][2:] if name in WORKS else (None, None)
        passes, copies = (mid(taken[name]) / mid(taken[scale]) for scale in (one_pass, one_copy))
        return [name, *parts, *figures(taken[name]), in_seconds, passes, in_passes, copies]

    yield f"### {count:,} jobs of 83 classes\n\n" + tables.markdown(
        ["work", "`from_types`, s", "`solve`, s", "both, s", "least to most, s", "target, s", "in passes", "target", "in copies"],
        [row(name) for name in (one_pass, one_copy, *WORKS)],
    )
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # each in a fresh process
        cases = [IMPORTS, *(name + how for name in WORKS for how in ("", ARRAYS))]
        peaks = dict(zip(cases, pool.starmap(peak, [(case, count) for case in cases], chunksize=1), strict=True))

    def others(name: str) -> list[object]:
        both = zip(taken[name + ARRAYS], taken[name], strict=True)
        more = figures([{"seconds": arrays["seconds"] - types["seconds"]} for arrays, types in both])
        return [name, *more, 1.5, peaks[name], peaks[name + ARRAYS], 1000, f"{max(sample['gap'] for sample in taken[name]):.0e}"]

    yield tables.markdown(
        [
            "work",
            "`from_arrays` instead: s more",
            "least to most, s",
            "target, s",
            "peak, MB",
            "same, `from_arrays`",
            "target",
            "gap",
        ],
        [[IMPORTS, None, None, None, peaks[IMPORTS], None, None, None], *(others(name) for name in WORKS)],
    )


def peak(work: str, count: int) -> float:
    """Run this program and return the peak memory of the process in MB."""
    import cvxpy  # noqa: F401
    import highspy  # noqa: F401

    if work != IMPORTS:
        policy, reads, *_ = WORKS[work.removesuffix(ARRAYS)]
        jobs = of_classes(count)
        throughputs = jobs.throughputs if work.endswith(ARRAYS) else None  # kept during the solve, as a caller would
        gp.solve(jobs.problem(reads, throughputs), policy)
    # Not getrusage, which may return the peak of the parent for a new process.
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def one_row_per_job(trial: Trial, count: int) -> Iterator[str]:
    """Compare with one row per job, and with POP."""
    jobs, fair = of_classes(count), partial(gp.solve, policy="max_min_fairness")
    rows = partial(plain, jobs.throughputs, jobs.gangs, jobs.capacities)
    ours, level = "`from_types` and `solve`", "the same with `efficiency=False`"
    simplex, interior = "one row per job, cvxpy and HiGHS", f"one row per job, cvxpy and HiGHS by {WITHOUT}"
    split = {f"POP, slowest of {parts} parts, each by {WITHOUT}": partial(pop, jobs, parts) for parts in (4, 16, 64)}
    works = {ours: partial(trial.ours, ours, jobs.problem, fair)}
    works |= {level: partial(trial.ours, level, jobs.problem, partial(fair, efficiency=False))}
    taken = trial.take_turns(works | {simplex: partial(rows, {}), interior: partial(rows, INTERIOR_POINT)} | split)

    def row(name: str) -> list[object]:
        seconds, value, target = mid(taken[name]), mid(taken[name], "value"), {simplex: 1000, interior: 30}.get(name)
        ratios = [
            seconds / mid(taken[ours]),
            target,
            seconds / mid(taken[level]),
            mid(taken[name], "all") if name in split else None,
        ]
        loss = 100 * (1 - value / mid(taken[ours], "value"))
        return [name, *figures(taken[name]), *ratios, f"{value:.9f}", loss, taken[name][0]["status"]]

    header = ["work", "median, s", "least to most, s", "ratio", "target", "ratio to `efficiency=False`", "all parts, s"]
    for other, names in (("one row per job", [ours, level, simplex, interior]), ("POP", [ours, level, *split])):
        yield f"### {count:,} jobs of 83 classes, max-min fairness, against {other}\n\n" + tables.markdown(
            [*header, "objective", "loss, %", "status"], [row(name) for name in names]
        )


def from_round_to_round(trial: Trial, count: int) -> Iterator[str]:
    """Time cold and warm solves of distinct jobs, 1 % of which have been replaced."""
    first, later = all_different(count)

    def solved(policy: str, kept: bool) -> Sample:
        solver = gp.Solver(policy)
        if kept:
            trial.ours(f"{policy}, before", partial(first.problem, POLICIES[policy], first.throughputs), solver.solve)
        build = partial(later.problem, POLICIES[policy], later.throughputs)
        return trial.ours(f"{policy}, {'warm' if kept else 'cold'}", build, solver.solve)

    name = f"`max_min_fairness`, one row per job, cvxpy and HiGHS by {WITHOUT}"
    works = {name: partial(plain, later.throughputs, later.gangs, later.capacities, INTERIOR_POINT)}
    for policy in POLICIES:
        works |= {f"`{policy}`": partial(solved, policy, False), policy: partial(solved, policy, True)}
    taken = trial.take_turns(works)

    def row(name: str, cold: list[Sample], warm: list[Sample]) -> list[object]:
        gap, target = (f"{max(s['gap'] for s in cold + warm):.0e}", 10) if "gap" in cold[0] else (None, None)
        apart = mid(warm, "value") / mid(cold, "value") - 1
        return [name, *figures(cold), *figures(warm), mid(cold) / mid(warm), target, f"{apart:+.0e}", gap]

    rows = [(f"`{policy}`", policy) for policy in POLICIES] + [(name, "max_min_fairness")]
    yield f"### {count:,} jobs that all differ, 1 % of them replaced\n\n" + tables.markdown(
        ["work", "cold, s", "least to most, s", "warm, s", "least to most, s", "ratio", "target", "objectives differ by", "gap"],
        [row(name, taken[name], taken[policy]) for name, policy in rows],
    )


def proofs(trial: Trial) -> str:
    what, gaps, violations, failures = zip(*trial.found, strict=True)
    failed = sorted({f"{name}: {text}" for name, texts in zip(what, failures, strict=True) for text in texts})
    rows = [
        ["largest gap", f"{max(gaps):.1e} ({what[int(np.argmax(gaps))]})", "1e-6"],
        ["allocations with a gap above 1e-9", sum(gap > 1e-9 for gap in gaps), "few"],
        ["largest violation of a rule", f"{max(violations):.1e}", "1e-9"],
        ["routes that failed", "; ".join(failed) or 0, 0],
    ]
    return f"### Proofs of the {len(gaps)} allocations above\n\n" + tables.markdown(["what", "found", "target"], rows)


def measured(runs: int, part: int) -> Iterator[str]:
    trial = Trial(runs)
    yield from a_million(trial, 10**6 // part)
    yield from one_row_per_job(trial, 10**4 // part)
    yield from from_round_to_round(trial, 10**4 // part)
    yield proofs(trial)
    yield f"Medians of {runs} runs; {tables.machine()}; `python benchmarks/scale.py --write`.\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="put the tables into benchmarks/RESULTS.md")
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs and one run")
    options = parser.parse_args()
    texts = []
    for text in measured(*((1, 10) if options.quick else (5, 1))):
        print(text, flush=True)
        texts.append(text)
    if options.write:
        tables.write("scale", "\n".join(texts))


if __name__ == "__main__":
    main()
