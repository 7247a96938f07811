"""What the rule of a round chooses from, and the form of such a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["Mechanism", "RoundDemand", "rounded"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundDemand:
    """What one round chooses from: N jobs, K accelerator types. Ties go to the job that stands first.

    deficits: (N, K) D_ij, rounds owed from before, negative when ahead; fractions: (N, K) X_ij;
    runnable: (N, K) bool, may job i run on type j this round; throughputs: (N, K) steps/s, 0 where it can never run;
    num_gpus: (N,) s_i; capacities: (K,) GPUs to give; running_on: (N,) column of the previous round or -1;
    backfill: may GPUs that nobody is owed be given to other jobs;
    received: (N, K) rounds received since the allocation in force began;
    restart_rounds: (N,) what a restart costs the job, in rounds;
    locked: (N,) bool, jobs that run now and must stay on their type;
    new: (N,) bool, jobs that have never run;
    kinds: (N, K) the `Kind` of placement that each job should have on each type. These five are 0 unless given;
    promised: (N,) rounds promised so far, on all types together, since the job came; without limit unless given.
    """

    deficits: Floats
    fractions: Floats
    runnable: NDArray[np.bool_]
    throughputs: Floats
    num_gpus: NDArray[np.int64]
    capacities: NDArray[np.int64]
    running_on: NDArray[np.int64]
    backfill: bool
    received: Floats = field(default_factory=lambda: np.zeros(()))
    restart_rounds: Floats = field(default_factory=lambda: np.zeros(()))
    locked: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((), dtype=bool))
    new: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((), dtype=bool))
    promised: Floats = field(default_factory=lambda: np.full((), np.inf))
    kinds: NDArray[np.int8] = field(default_factory=lambda: np.zeros((), dtype=np.int8))

    def __post_init__(self) -> None:
        """Give what was left out its full shape."""
        jobs, pairs = self.num_gpus.shape, self.fractions.shape
        shapes = {"received": pairs, "restart_rounds": jobs, "locked": jobs, "new": jobs, "promised": jobs, "kinds": pairs}
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                object.__setattr__(self, name, np.broadcast_to(getattr(self, name), shape))

    @cached_property
    def claims(self) -> Floats:
        """(N, K) D_ij + X_ij, the rounds that job i would be owed on type j at the end of this round if it did not run there."""
        return rounded(self.deficits + self.fractions)

    @cached_property
    def shares(self) -> Floats:
        """(N, K) X_ij, rounded."""
        return rounded(self.fractions)

    @cached_property
    def running(self) -> NDArray[np.bool_]:
        """(N, K) bool, ran job i on type j in the previous round."""
        running: NDArray[np.bool_] = self.running_on[:, None] == np.arange(len(self.capacities))
        return running

    @cached_property
    def possible(self) -> NDArray[np.bool_]:
        """(N, K) bool, may job i run on type j, and does its gang fit there if nobody else does."""
        possible: NDArray[np.bool_] = self.runnable & (self.num_gpus[:, None] <= self.capacities)
        return possible


Mechanism = Callable[[RoundDemand], NDArray[np.int64]]


def rounded(rounds: Floats) -> Floats:
    """Without the noise of solvers and sums, so that what is meant to be tied is tied."""
    result: Floats = np.round(rounds, 6)
    return result
