"""How long a sweep will take: from cells that have been played, or from the beginning of some."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from gavel_py.errors import GavelWarning
from gavel_py.simulator.simulation import Simulation
from gavel_py.sweeps.cells import Cell
from gavel_py.sweeps.playing import play, simulation_of
from gavel_py.sweeps.scenario import scenario_of

__all__ = ["Estimate", "estimated"]

PROBE_SECONDS = 1.0
"""How long a cell is played to see how fast it goes."""

LEAST_DONE = 1e-4
"""A probe in which less was done tells no more than that it will be long."""


@dataclass(frozen=True)
class Estimate:
    """cell_seconds: what all cells that are left take, one after the other; seconds: on so many workers; basis: from what."""

    cell_seconds: float
    workers: int
    basis: str

    @property
    def seconds(self) -> float:
        """The time until the end, if cells can be handed out evenly."""
        return self.cell_seconds / self.workers


def estimated(left: Iterable[Cell], ended: Mapping[str, list[float]], workers: int) -> Estimate:
    """Return the estimate for cells; ended: {policy: seconds} of cells of the same sweep that have been played.

    A policy of which none has been played is probed: its middle cell is played for a second of this computer's time, which then
    counts as the part of all jobs' work that was done in it.
    """
    by_policy: dict[str, list[Cell]] = {}
    for cell in left:
        by_policy.setdefault(str(cell.labels["policy"]), []).append(cell)
    known = [policy for policy in by_policy if ended.get(policy)]
    total = 0.0
    for policy, cells in by_policy.items():
        seconds = fmean(ended[policy]) if policy in known else _probed(cells[len(cells) // 2])
        total += seconds * len(cells)
    return Estimate(total, workers, _basis(len(by_policy), len(known)))


def _basis(policies: int, known: int) -> str:
    probed = (
        "one cell of each policy, in the middle of its grid, played for a second and scaled by the part of the work done by then"
    )
    played = "the mean time of the cells of each policy that have been played"
    return "nothing is left" if not policies else played if known == policies else f"{played}; else {probed}" if known else probed


def _probed(cell: Cell) -> float:
    task = cell.task_with(None)
    importlib.import_module("gavel_py.optimization.program")  # which is slow, and done once in each process
    started = time.perf_counter()
    if task.mode == "solve":
        play(task)
        return time.perf_counter() - started
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GavelWarning)  # told when the sweep was planned
        simulation, until = simulation_of(task)
    began = time.perf_counter()  # what is made once for all policies does not count for each
    more = True
    while more and simulation.now < until and time.perf_counter() - began < PROBE_SECONDS:
        try:
            more = simulation.step(until)
        except (Exception, SystemExit):  # noqa: BLE001  what goes wrong is the end of its cell only, also when it is played
            more = False
    seconds = time.perf_counter() - began
    jobs = len(scenario_of(task.source).trace) if simulation.measure_jobs is None else simulation.measure_jobs[1]
    done = 1.0 if not more or simulation.now >= until else min(1.0, _done(simulation, jobs))
    return seconds / max(done, LEAST_DONE)


def _done(simulation: Simulation, jobs: int) -> float:
    """The part of the work of all jobs of the trace that is done."""
    records = simulation.result().jobs.values()
    return sum(min(1.0, job.steps_done / job.total_steps) for job in records if job.total_steps > 0) / jobs
