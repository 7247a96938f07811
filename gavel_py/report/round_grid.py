"""Who has which GPU in which round, as one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.report.lanes import Lanes
from gavel_py.scheduling.round import Round

__all__ = ["IDLE", "RoundGrid", "grid_of"]

IDLE = -1


@dataclass(frozen=True)
class RoundGrid:
    """L lanes, R rounds. job_ids: in the order of their first appearance, which numbers them.

    jobs: (L, R) the number of the job that has the GPU, `IDLE` for none; started: (L, R) whether it started in this round.
    """

    job_ids: Sequence[str]
    jobs: NDArray[np.int64]
    started: NDArray[np.bool_]

    @property
    def used_share(self) -> float:
        """The part of all GPU time that jobs had."""
        return float(np.mean(self.jobs != IDLE))


def grid_of(rounds: Sequence[Round], lanes: Lanes) -> RoundGrid:
    """Return the grid of these rounds.

    Raises `InputError` for no rounds, rounds that do not follow one another, a GPU that the cluster does not have, and one that two
    jobs have.
    """
    _check_order(rounds)
    numbers: dict[str, int] = {}
    jobs = np.full((len(lanes.gpus), len(rounds)), IDLE, dtype=np.int64)
    started = np.zeros(jobs.shape, dtype=bool)
    faults: list[Fault] = []
    for position, round_ in enumerate(rounds):
        fresh = set(round_.started)
        for job_id, held in round_.assignments.items():
            number = numbers.setdefault(job_id, len(numbers))
            for node, index in held.gpus:
                where = f"round {round_.index}, job {job_id!r}"
                lane = lanes.number.get((node, index))
                if lane is None:
                    faults.append(Fault(where, "", f"has GPU {index} of node {node!r}, which the cluster does not have"))
                elif jobs[lane, position] != IDLE:
                    faults.append(Fault(where, "", f"has GPU {index} of node {node!r}, which another job has too"))
                else:
                    jobs[lane, position], started[lane, position] = number, job_id in fresh
    InputError.raise_any(faults)
    return RoundGrid(list(numbers), jobs, started)


def _check_order(rounds: Sequence[Round]) -> None:
    if not rounds:
        raise InputError("there is nothing to draw: no rounds")
    for before, after in pairwise(rounds):
        if after.index != before.index + 1:
            raise InputError(f"rounds must follow one another: after round {before.index} comes round {after.index}")
