"""A program: four threads call one solver and one scheduler, CALLS times each, and their results must be consistent.

python -m tests.support.mixed_calls FOLDER CALLS, where files are saved in the folder.
"""

from __future__ import annotations

import random
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import gavel_py as gp

THREADS = 4
SECONDS = 360.0
GANGS = {"a": 1, "b": 2, "c": 1, "d": 4, "e": 1, "f": 2, "g": 1, "h": 1}
TOTAL_STEPS = 1e9  # no job finishes

speeds = np.random.default_rng(1).uniform(0.5, 8.0, (len(GANGS), 3))
PROFILE = gp.ThroughputProfile.from_matrix(speeds, job_ids=list(GANGS), accelerators=["v100", "p100", "k80"])


class Mixed:
    """The shared solver and scheduler, and the results of calls."""

    def __init__(self, folder: Path, calls: int) -> None:
        self.folder, self.calls = folder, calls
        chance = np.random.default_rng(2)
        rows = [chance.uniform(0.5, 8.0, (int(count), 3)) for count in chance.integers(4, 20, 12)]
        self.problems = [gp.AllocationProblem.from_arrays(each, [4, 3, 2]) for each in rows]
        self.expected = [gp.solve(each).objective_value for each in self.problems]
        self.solver = gp.Solver()
        self.scheduler = gp.RoundScheduler(gp.Cluster.from_inline("v100:4/4,p100:4/2,k80:4/1"), PROFILE, round_seconds=SECONDS)
        for job_id, gang in GANGS.items():
            self.scheduler.submit(gp.Job(job_id, num_gpus=gang, total_steps=TOTAL_STEPS))
        self.rounds: list[gp.Round] = []
        self.planned: list[gp.Round] = []
        self.reports: list[gp.DeliveryReport] = []
        self.files: list[Path] = []
        self.failures: list[str] = []

    def run(self) -> None:
        """Run the threads."""
        threads = [threading.Thread(target=self.call, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failures:
            sys.exit("\n".join(self.failures))

    def call(self, number: int) -> None:
        """Make the calls of one thread, each equally often, in a random order."""
        chance = random.Random(number)  # noqa: S311
        kinds = [self.solve, self.next_round, self.plan_next, self.update, self.report_all, self.save, self.delivery]
        calls = (kinds * (self.calls // len(kinds) + 1))[: self.calls]
        chance.shuffle(calls)
        try:
            for i, each in enumerate(calls):
                each(chance, f"{number}-{i}")
        except BaseException:  # noqa: BLE001
            self.failures.append(traceback.format_exc())

    def solve(self, chance: random.Random, _: str) -> None:
        which = chance.randrange(len(self.problems))
        allocation = self.solver.solve(self.problems[which])
        assert allocation.objective_value == pytest.approx(self.expected[which], rel=1e-9)
        allocation.verify()

    def next_round(self, _: random.Random, __: str) -> None:
        self.rounds.append(self.scheduler.next_round())

    def plan_next(self, _: random.Random, __: str) -> None:
        self.planned.append(self.scheduler.plan_next())

    def update(self, chance: random.Random, _: str) -> None:
        self.scheduler.update(chance.choice(list(GANGS)), weight=chance.choice([1.0, 2.0, 3.0]))

    def report_all(self, chance: random.Random, _: str) -> None:
        self.scheduler.report_all({job_id: chance.uniform(0, TOTAL_STEPS / 2) for job_id in GANGS})

    def save(self, _: random.Random, name: str) -> None:
        path = self.folder / f"{name}.json"
        self.scheduler.save(path)
        self.files.append(path)

    def delivery(self, _: random.Random, __: str) -> None:
        self.reports.append(self.scheduler.delivery())

    def check(self) -> None:
        """Check that the results are those of the same calls made one after the other."""
        begun = sorted(self.rounds, key=lambda each: each.index)
        assert [each.index for each in begun] == list(range(len(begun)))
        assert [each.start_seconds for each in begun] == [SECONDS * number for number in range(len(begun))]
        for each in begun:
            check_gpus(each)
        for each in self.planned:
            check_gpus(each)
            assert each.index == len(begun) or each.assignments == begun[each.index].assignments
        self.check_accounts(begun)
        assert len(self.files) > self.calls / 2
        for path in self.files:
            self.check_file(path, begun)

    def check_accounts(self, begun: list[gp.Round]) -> None:
        """The delivered time of each job at any time is that of the rounds until then."""
        had: Counter[str] = Counter()
        after = [dict(had)]
        for each in begun:
            had.update({job_id: SECONDS * len(held.gpus) for job_id, held in each.assignments.items()})
            after.append(dict(had))
        told = [*self.reports, self.scheduler.delivery()]
        for report in told:
            delivered = {i: job.num_gpus * job.delivered_seconds for i, job in report.jobs.items() if job.delivered_seconds}
            assert delivered in after
            assert report.delivered_gpu_seconds == pytest.approx(sum(delivered.values()))
            assert report.undelivered_gpu_seconds <= report.promised_gpu_seconds + 1e-6
        assert {i: job.num_gpus * job.delivered_seconds for i, job in told[-1].jobs.items()} == after[-1]

    def check_file(self, path: Path, begun: list[gp.Round]) -> None:
        """A scheduler that was saved in between continues from there."""
        again = gp.RoundScheduler.load(path, PROFILE)
        last = again.last_start_seconds
        count = 0 if last is None else round(last / SECONDS) + 1
        assert count <= len(begun)
        for number in range(count, count + 2):
            now = again.next_round()
            assert now.index == number
            check_gpus(now)


def check_gpus(each: gp.Round) -> None:
    given = [gpu for held in each.assignments.values() for gpu in held.gpus]
    assert len(given) == len(set(given)), "a GPU was given twice"
    assert all(len(held.gpus) == GANGS[job_id] for job_id, held in each.assignments.items())


if __name__ == "__main__":
    sys.setswitchinterval(1e-4)  # switch threads more often than by default
    mixed = Mixed(Path(sys.argv[1]), int(sys.argv[2]))
    mixed.run()
    mixed.check()
