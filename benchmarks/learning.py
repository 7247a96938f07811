"""What it costs to learn throughputs instead of knowing them, with the published matrix as the truth.

    python benchmarks/learning.py              print the tables (some minutes)
    python benchmarks/learning.py --write      and put them into benchmarks/RESULTS.md

- online: single-GPU jobs of 26 job types on 12 k80, 12 p100 and 12 v100, Poisson arrivals at a load of 0.95, log-uniform sizes of
  0.2 to 20 hours on a v100, 400 rounds of 360 s under `max_min_fairness`. Nothing is known at first, or 13 job types; each
  observed rate has an error of 5 %. Mean completion time over that with known throughputs; jobs that arrive in the last 15 % of
  the time do not count, and those that are unfinished count until its end. All rows have the same traces.
- passes: 120 jobs with 1 to 8 GPUs on 36 of each type. Half of the job types are new: each of their gangs was measured on one
  accelerator. Solve, observe every entry that the answer uses for 20 rounds, and solve again; the loss of each answer with the true
  throughputs, against the best answer.
- update: seconds of processor time for a snapshot after 10 new observations, at the 555 rows of nvidia-2023.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tables

import gavel_py as gp

TYPES = ("k80", "p100", "v100")
OSDI = gp.ThroughputProfile.builtin("gavel-osdi20")
ALONE = [m for m in OSDI.measurements if m.partner_job_type is None and m.placement == "consolidated"]
SINGLE = gp.ThroughputProfile("single", [m for m in ALONE if m.num_gpus == 1])
ROUND, NOISE = 360.0, 0.05
MEASURED_PART, FIRST_PART = 0.85, 0.2
"""Parts of the time whose arrivals count in the mean, and in that of the first jobs."""

KNOWN, AGNOSTIC = "known", "agnostic"
BELIEFS: dict[str, Any] = {KNOWN: None, AGNOSTIC: None, "optimistic": "optimistic", "median": "median", "5 % of the GPUs": 0.05}


class NoisyLearner(gp.ThroughputLearner):
    """A learner of rates with an error."""

    chance = np.random.default_rng(0)

    def observe(self, observed: Any, accelerator: str | None = None, *, steps: float, seconds: float, **rest: Any) -> None:
        """Take in the rate with an error of 5 %."""
        error = float(np.exp(NOISE * self.chance.standard_normal()))
        super().observe(observed, accelerator, steps=steps * error, seconds=seconds, **rest)


def arrivals(seed: int, rounds: int, load: float) -> list[gp.Job]:
    """Return a trace; the load is that of GPUs with the mean speed of the three types."""
    chance, types = np.random.default_rng(seed), sorted(SINGLE.job_types)

    def hours(count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.asarray(10 ** chance.uniform(-0.7, 1.3, count))

    per_round = load * 36 / 1.75 * (ROUND / 3600) / hours(20_000).mean()
    jobs: list[gp.Job] = []
    for number in range(rounds):
        for size in hours(chance.poisson(per_round)):
            job_type = types[chance.integers(len(types))]
            steps = size * 3600 * SINGLE.throughput(job_type, 1, "v100")
            jobs.append(gp.Job(f"job-{len(jobs)}", job_type=job_type, arrival_seconds=number * ROUND, total_steps=steps))
    return jobs


def learner_of(explore: Any, known: int, seed: int) -> gp.ThroughputLearner:
    """Return a learner that knows some of the job types, chosen at random."""
    NoisyLearner.chance = np.random.default_rng(seed + 10_000)
    types = np.random.default_rng(seed).permutation(sorted(SINGLE.job_types))[:known]
    return NoisyLearner(gp.ThroughputProfile("known", [m for m in SINGLE.measurements if m.job_type in types]), explore)


def completion_hours(jobs: Sequence[gp.Job], rounds: int, belief: str, known: int, seed: int) -> tuple[float, float, int]:
    """Return the mean completion time in hours, that of the first jobs, and the number of entries observed."""
    policy = gp.policy_class("max_min_fairness")(agnostic=belief == AGNOSTIC)
    learner = None if belief in (KNOWN, AGNOSTIC) else learner_of(BELIEFS[belief], known, seed)
    cluster, end = gp.Cluster.from_counts(dict.fromkeys(TYPES, 12)), rounds * ROUND
    result = gp.simulate(jobs, cluster, SINGLE, policy, learn=learner, until_seconds=end)
    means = []
    for part in (MEASURED_PART, FIRST_PART):
        counted = [record for record in result.jobs.values() if record.arrival_seconds < end * part]
        hours = [
            ((end if record.end_seconds is None else record.end_seconds) - record.arrival_seconds) / 3600 for record in counted
        ]
        means.append(float(np.mean(hours)))
    return means[0], means[1], 0 if learner is None else len(learner.observations)


def online(rounds: int, seeds: int, load: float, known: int, beliefs: Sequence[str] = tuple(BELIEFS)) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table: how much longer jobs take than with known throughputs."""
    traces = [arrivals(seed, rounds, load) for seed in range(seeds)]
    found = {b: np.array([completion_hours(jobs, rounds, b, known, seed) for seed, jobs in enumerate(traces)]) for b in beliefs}
    for belief in beliefs:
        change = 100 * (found[belief][:, :2] / found[KNOWN][:, :2] - 1)
        mean, first = change.mean(axis=0)
        count = "" if belief in (KNOWN, AGNOSTIC) else f"{found[belief][:, 2].mean():.0f}"
        yield belief, f"{mean:.1f}", f"{change[:, 0].min():.1f} to {change[:, 0].max():.1f}", f"{first:.1f}", count


# Solve, observe what the answer uses, and solve again


class Setting:
    """120 jobs on 36 GPUs of each type, and what is known of their throughputs at first."""

    def __init__(self, seed: int, jobs: int = 120) -> None:
        chance = np.random.default_rng(seed)
        gangs = sorted({(m.job_type, int(m.num_gpus)) for m in ALONE if m.steps_per_second > 0})
        self.models = [gp.Job(f"gang-{n}", job_type=name, num_gpus=size) for n, (name, size) in enumerate(gangs)]
        self.true = OSDI.matrix(self.models, TYPES)
        sizes = np.array([size for _, size in gangs])
        drawn = chance.choice([1, 2, 4, 8], jobs, p=[0.7, 0.1, 0.15, 0.05])
        self.rows = np.array([chance.choice(np.flatnonzero(sizes == size)) for size in drawn])
        short = chance.uniform(size=jobs) < 0.8
        minutes = 10 ** np.where(short, chance.uniform(1.5, 3, jobs), chance.uniform(3, 4, jobs))
        self.num_gpus, self.steps = drawn, 60 * minutes * self.true[self.rows, 2]
        self.capacities = np.array([36.0, 36.0, 36.0])
        names, chance = sorted({name for name, _ in gangs}), np.random.default_rng(1000 + seed)
        new = {names[place] for place in chance.permutation(len(names))[: len(names) // 2]}
        accelerators: dict[tuple[str, int], list[str]] = {gang: [] for gang in gangs if gang[0] in new}
        for m in ALONE:
            if m.steps_per_second > 0 and m.job_type in new:
                accelerators[m.job_type, int(m.num_gpus)].append(m.accelerator)
        measured = {gang: chance.choice(found) for gang, found in accelerators.items()}

        def is_known(m: gp.Measurement) -> bool:
            return not m.steps_per_second or measured.get((m.job_type, int(m.num_gpus)), m.accelerator) == m.accelerator

        self.known = gp.ThroughputProfile("known", filter(is_known, ALONE))

    def fractions(self, policy: str, throughputs: Any) -> Any:
        """Return the time fractions of a policy with these throughputs."""
        problem = gp.AllocationProblem.from_types(
            throughputs, self.rows, self.capacities, num_gpus=self.num_gpus, steps_remaining=self.steps
        )
        return gp.solve(problem, policy).time_fractions

    def value(self, policy: str, fractions: Any) -> float:
        """Return what fractions are worth with the true throughputs; of a makespan its inverse."""
        true = self.true[self.rows]
        reached = (fractions * true).sum(axis=1)
        shares = reached / (true @ self.capacities / self.capacities.sum())
        if policy == "max_min_fairness":
            return float((self.num_gpus * shares).min())
        return float(1 / (self.steps / reached).max() if policy == "min_makespan" else shares.sum())

    def losses(self, policy: str, explore: Any, passes: int) -> list[float]:
        """Return the loss of each pass."""
        best, learner, found = self.value(policy, self.fractions(policy, self.true)), gp.ThroughputLearner(self.known, explore), []
        for _ in range(passes):
            throughputs = learner.profile.matrix(self.models, TYPES)
            fractions = self.fractions(policy, throughputs)
            ratio = self.value(policy, fractions) / best
            found.append(1 / ratio - 1 if policy == "min_makespan" else 1 - ratio)
            for row, column in {(int(self.rows[job]), int(column)) for job, column in np.argwhere(fractions > 1e-3)}:
                for _ in range(20):
                    learner.observe(self.models[row], TYPES[column], steps=self.true[row, column] * ROUND, seconds=ROUND)
        return found


CASES = (
    ("min_makespan", "median"),
    ("max_total_throughput", "median"),
    ("max_min_fairness", "optimistic"),
    ("max_min_fairness", "median"),
)


def solve_and_observe(seeds: int, passes: int = 6, cases: Sequence[tuple[str, Any]] = CASES) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table: the mean loss of each pass."""
    settings = [Setting(seed) for seed in range(seeds)]
    for policy, explore in cases:
        losses = np.mean([setting.losses(policy, explore, passes) for setting in settings], axis=0)
        yield policy, str(explore), *(f"{100 * loss:.1f}" for loss in losses)


def update_seconds(repeats: int = 11) -> float:
    """Return the median time of a snapshot after 10 new observations, with the matrix of all job types."""
    profile = gp.ThroughputProfile.builtin("nvidia-2023")
    learner, chance = gp.ThroughputLearner(profile), np.random.default_rng(0)
    jobs = [gp.Job(job_type, job_type=job_type) for job_type in profile.job_types]
    start = learner.profile
    start.matrix(jobs, profile.accelerators)
    entries, seconds = list(start.found), []
    for _ in range(repeats):
        for number in chance.integers(len(entries), size=10):
            rate = start.throughput(*entries[number][:3]) * np.exp(NOISE * chance.standard_normal())
            learner.observe(entries[number], steps=rate * ROUND, seconds=ROUND)
        began = time.process_time()
        learner.profile.matrix(jobs, profile.accelerators)
        seconds.append(time.process_time() - began)
    return float(np.median(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into benchmarks/RESULTS.md")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", gp.GavelWarning)
    found: dict[str, list[tuple[str, ...]]] = {}
    for name, rows in (("nothing", online(400, 4, 0.95, 0)), ("half", online(400, 4, 0.95, 13)), ("passes", solve_and_observe(12))):
        found[name] = []
        for row in rows:
            found[name].append(row)
            print(name, *row, sep=" | ", flush=True)
    update = f"A snapshot after 10 new observations, with the matrix of all job types: {update_seconds():.2f} s of processor time."
    print(update)
    if arguments.write:
        header = ("throughputs are", "completion time, + %", "range over seeds", "first fifth of jobs, + %", "observed of 78")
        tables.write("learning", tables.markdown(header, found["nothing"]))
        tables.write("learning-half", tables.markdown(header, found["half"]))
        passes = tuple(f"pass {number}" for number in range(1, 7))
        tables.write("learning-passes", tables.markdown(("loss, %", "explore", *passes), found["passes"]))
        tables.write("learning-update", f"{update}\n")


if __name__ == "__main__":
    main()
