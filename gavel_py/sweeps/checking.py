"""What does not go together in a grid, told before the first cell is played."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gavel_py.errors import Fault, InputError, together
from gavel_py.simulator.measuring import check_enough
from gavel_py.simulator.simulation import Simulation
from gavel_py.sweeps.cells import Cell
from gavel_py.sweeps.scenario import problem_of, scenario_of

__all__ = ["check_cells"]


def check_cells(cells: Sequence[Cell]) -> None:
    """Set up one cell for each trace and cluster, and for each policy there and length of rounds; raises `InputError`."""
    scenes: set[object] = set()
    pairs: set[object] = set()
    with together() as attempt:
        for cell in cells:
            scene = cell.task.source.trace, cell.task.source.cluster
            if scene not in scenes:
                scenes.add(scene)
                attempt(partial(_named, cell, ("trace", "cluster"), _check_scene))
            pair = cell.task.policy, scene, cell.task.round_seconds
            if pair not in pairs:
                pairs.add(pair)
                attempt(partial(_named, cell, ("policy",), _check_policy))


def _named(cell: Cell, names: tuple[str, ...], check: Callable[[Cell], None]) -> None:
    """Check a cell, and say which one it is."""
    try:
        check(cell)
    except InputError as error:
        who = ", ".join(f"{name} {cell.labels[name]!r}" for name in names)
        faults = [
            dataclasses.replace(fault, where=f"sweep, {who}" + f", {fault.where}" * bool(fault.where)) for fault in error.faults
        ]
        raise InputError(*faults) from None


def _check_scene(cell: Cell) -> None:
    problem_of(cell.task.source, whole_gangs=False)
    if cell.task.mode == "solve":
        return
    text = "is unknown, and so is when the job ends: give total_steps, or duration_seconds with duration_accelerator"
    jobs = [submission.job for submission in scenario_of(cell.task.source).trace]
    check_enough(len(jobs), cell.task.settings.value.get("measure_jobs"))
    lacking = [job for job in jobs if job.total_steps is None and job.duration_seconds is None]
    InputError.raise_any([Fault(job.where, "total_steps", text) for job in lacking])


def _check_policy(cell: Cell) -> None:
    task = cell.task
    of_play = {"until_seconds", "measure_jobs"}  # which an empty trace cannot be asked for
    settings: dict[str, Any] = {name: value for name, value in task.settings.value.items() if name not in of_play}
    try:
        scenario = scenario_of(task.source)
    except InputError:
        return  # that has been told
    if task.mode == "solve":
        task.policy.value.check(problem_of(task.source, whole_gangs=settings.get("whole_gangs", True)))
    else:
        Simulation([], scenario.cluster, scenario.profile, task.policy.value, round_seconds=task.round_seconds, **settings)
