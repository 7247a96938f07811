"""What caution keeps of a plan that is based on estimates, and what a quantile keeps of a makespan.

    python benchmarks/caution.py               print the tables (under a minute)
    python benchmarks/caution.py --write       and put them into benchmarks/RESULTS.md
    python benchmarks/caution.py --quick       one seed, to see that all of it works

120 jobs of the gangs of `gavel-osdi20` (70, 10, 15 and 5 % of 1, 2, 4 and 8 GPUs) on 36 GPUs of each of three types. A part of the
measurements is hidden and estimated, the answer is found with the estimates, and judged by the measurements: speeds relative to
those of the optimum under the measurements. Kept: jobs that get the level that the plan promised.

- hide: the first part of a permutation of all gangs on all types.
- half new, all new: of half of the job types, or of all, each gang is measured on one type only.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tables
from numpy.typing import NDArray

import gavel_py as gp

Floats = NDArray[np.float64]

TYPES, CAPACITIES = ("k80", "p100", "v100"), np.array([36.0, 36.0, 36.0])
SHARES = CAPACITIES / CAPACITIES.sum()
SCENARIOS = ("hide 0.2", "hide 0.5", "half new", "all new")
CAUTIONS = (0.0, 0.84, 1.64)
SEEDS, JOBS = 5, 120


class Jobs(NamedTuple):
    """rows: (N,) indices of gangs; gangs: all (job type, GPUs) of the profile; steps: (N,) of each job."""

    rows: NDArray[np.int64]
    gangs: list[tuple[str, int]]
    steps: Floats

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.array([self.gangs[row][1] for row in self.rows])

    def table(self, profile: gp.ThroughputProfile) -> Floats:
        """(N, K) throughputs, 0 where a gang cannot run."""
        jobs = [gp.Job(f"gang {n}", job_type=name, num_gpus=size) for n, (name, size) in enumerate(self.gangs)]
        found: Floats = profile.matrix(jobs, TYPES)[self.rows]
        return found

    def uncertainty(self, profile: gp.EstimatedProfile) -> Floats:
        jobs = [gp.Job(f"gang {n}", job_type=name, num_gpus=size) for n, (name, size) in enumerate(self.gangs)]
        found = profile.uncertainty_matrix(jobs, TYPES, SHARES)
        return np.zeros((len(self.rows), len(TYPES))) if found is None else found[self.rows]

    def solve(self, throughputs: Floats, policy: str, **more: Any) -> gp.Allocation:
        arrays: dict[str, Any] = {"num_gpus": self.sizes, "steps_remaining": self.steps}
        if "uncertainty" in more:
            arrays["uncertainty"] = more.pop("uncertainty")
        return gp.solve(gp.AllocationProblem.from_arrays(throughputs, CAPACITIES, **arrays), policy, **more)


def gangs_of(profile: gp.ThroughputProfile) -> list[gp.Measurement]:
    """Return the measurements of gangs alone, consolidated, that run."""
    alone = (m for m in profile.measurements if m.partner_job_type is None and m.placement == "consolidated")
    return [m for m in alone if m.steps_per_second > 0 and m.accelerator in TYPES]


def draw(measured: list[gp.Measurement], true: gp.ThroughputProfile, seed: int) -> Jobs:
    random = np.random.default_rng(seed)
    gangs = sorted({(m.job_type, int(m.num_gpus)) for m in measured})
    sizes = np.array([size for _, size in gangs])
    rows = np.array(
        [random.choice(np.flatnonzero(sizes == size)) for size in random.choice([1, 2, 4, 8], JOBS, p=[0.7, 0.1, 0.15, 0.05])]
    )
    short = random.uniform(size=JOBS) < 0.8
    seconds = 60 * 10 ** np.where(short, random.uniform(1.5, 3, JOBS), random.uniform(3, 4, JOBS))
    jobs = Jobs(rows, gangs, np.ones(JOBS))
    return jobs._replace(steps=seconds * jobs.table(true).max(axis=1))


def known_in(scenario: str, measured: list[gp.Measurement], seed: int) -> list[gp.Measurement]:
    """Return the measurements that are not hidden."""
    random = np.random.default_rng(1000 + seed)
    if scenario.startswith("hide"):
        order = random.permutation(len(measured))
        return [measured[row] for row in sorted(order[int(float(scenario.split()[1]) * len(measured)) :])]
    types = sorted({m.job_type for m in measured})
    count = len(types) // 2 if scenario == "half new" else len(types)
    new = set(random.permutation(types)[:count].tolist())
    by_gang: dict[tuple[str, float], list[gp.Measurement]] = {}
    for m in measured:
        by_gang.setdefault((m.job_type, m.num_gpus), []).append(m)
    found = []
    for (job_type, _), several in by_gang.items():
        found += [several[random.integers(len(several))]] if job_type in new else several
    return found


def all_zeros(true: gp.ThroughputProfile) -> list[gp.Measurement]:
    """Return where gangs cannot run, which is known from their memory."""
    alone = (m for m in true.measurements if m.partner_job_type is None and m.placement == "consolidated")
    return [m for m in alone if m.steps_per_second == 0 and m.accelerator in TYPES]


def estimated(scenario: str, true: gp.ThroughputProfile, seed: int) -> gp.EstimatedProfile:
    known = [*known_in(scenario, gangs_of(true), seed), *all_zeros(true)]
    return gp.ThroughputProfile("known", known).with_estimates()


def speeds(jobs: Jobs, throughputs: Floats, times: Floats) -> Floats:
    """s_i v_i of each job."""
    found: Floats = jobs.sizes * (throughputs * times).sum(axis=1) / (throughputs @ SHARES)
    return found


def plans(seeds: int) -> Iterator[tuple[object, ...]]:
    """Yield the figures of max-min fairness by scenario and caution, means over the seeds."""
    true = gp.ThroughputProfile.builtin("gavel-osdi20")
    for scenario in SCENARIOS:
        found: dict[float, list[tuple[float, ...]]] = {kappa: [] for kappa in CAUTIONS}
        for seed in range(seeds):
            jobs, profile = draw(gangs_of(true), true, seed), estimated(scenario, true, seed)
            truth, guess, doubt = jobs.table(true), jobs.table(profile), jobs.uncertainty(profile)
            best = jobs.solve(truth, "max_min_fairness")
            ideal = speeds(jobs, truth, best.time_fractions)
            for kappa in CAUTIONS:
                plan = jobs.solve(guess, "max_min_fairness", caution=kappa, uncertainty=doubt)
                got, level = speeds(jobs, truth, plan.time_fractions), plan.objective_value or 0.0
                tenth = float(np.quantile(got, 0.1) / np.quantile(ideal, 0.1))
                kept = float((got >= 0.999 * level).mean())
                found[kappa].append((level / ideal.min(), got.min() / ideal.min(), tenth, got.mean() / ideal.mean(), kept))
        for kappa, rows in found.items():
            name = "nominal" if kappa == 0 else f"caution {kappa}"
            yield scenario, name, *(f"{value:.2f}" for value in np.mean(rows, axis=0))


QUANTILES: tuple[float | None, ...] = (None, 0.8, 0.95)


def makespans(seeds: int) -> Iterator[tuple[object, ...]]:
    """Yield the makespan under the measurements over the best one, by the value of estimates that is used; means over the seeds."""
    true = gp.ThroughputProfile.builtin("gavel-osdi20")
    for scenario in SCENARIOS:
        losses: dict[float | None, list[float]] = {confidence: [] for confidence in QUANTILES}
        for seed in range(seeds):
            jobs, profile = draw(gangs_of(true), true, seed), estimated(scenario, true, seed)
            truth = jobs.table(true)
            best = jobs.solve(truth, "min_makespan").objective_value or np.nan
            for confidence in QUANTILES:
                guess = jobs.table(profile.with_confidence(confidence))
                times = jobs.solve(guess, "min_makespan").time_fractions
                losses[confidence].append(float((jobs.steps / (truth * times).sum(axis=1)).max() / best))
        yield scenario, *(f"{np.mean(losses[confidence]):.2f}" for confidence in QUANTILES)


def printed(rows: Iterable[tuple[object, ...]]) -> list[tuple[object, ...]]:
    found = []
    for row in rows:
        found.append(row)
        print(*row, sep=" | ", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into benchmarks/RESULTS.md")
    parser.add_argument("--quick", action="store_true", help="one seed")
    arguments = parser.parse_args()
    seeds = 1 if arguments.quick else SEEDS
    header = ("", "plan", "promised", "worst-off", "10 % quantile", "mean", "kept")
    fair, makespan = printed(plans(seeds)), printed(makespans(seeds))
    if arguments.write:
        below = f"\n{seeds} seeds; {tables.machine()}; `python benchmarks/caution.py --write`.\n"
        tables.write("caution", tables.markdown(header, fair) + below)
        columns = ("makespan over the best one", "median", "confidence=0.8", "confidence=0.95")
        tables.write("quantiles", tables.markdown(columns, makespan) + below)


if __name__ == "__main__":
    main()
