"""The grid of a sweep: each policy on each trace, load, cluster, seed and length of rounds.

`check_cells` finds what does not go together before the first cell is played.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from gavel_py import __version__
from gavel_py.errors import Fault, InputError, together
from gavel_py.policies import resolve_policy
from gavel_py.report.runs import Labels
from gavel_py.simulator.measurements import check_enough, window_text
from gavel_py.simulator.simulation import Simulation
from gavel_py.sweeps.axes import (
    AxisValue,
    Generator,
    PackedValue,
    cluster_value,
    lacks_type,
    policy_content,
    policy_value,
    profile_value,
    trace_value,
)
from gavel_py.sweeps.cell import Cell, ScenarioSource, Task, problem_of, scenario_of
from gavel_py.sweeps.spec import CheckedSpec


def check_cells(cells: Sequence[Cell]) -> None:
    """Set up one cell for each trace and cluster, and for each policy there and length of rounds; raises `InputError`."""
    scenes: set[object] = set()
    pairs: set[object] = set()
    with together() as attempt:
        for cell in cells:
            scene = cell.task.source.trace, cell.task.source.cluster
            if scene not in scenes:
                scenes.add(scene)
                attempt(partial(_check_cell, cell, ("trace", "cluster"), _check_scene))
            pair = cell.task.policy, scene, cell.task.round_seconds
            if pair not in pairs:
                pairs.add(pair)
                attempt(partial(_check_cell, cell, ("policy",), _check_policy))


def _check_cell(cell: Cell, names: tuple[str, ...], check: Callable[[Cell], None]) -> None:
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


YARDSTICK = "isolated"


@dataclass(frozen=True, eq=False)
class Grid:
    """cells: in the order of the grid; yardsticks: played besides, once for each scenario, for the cells to be compared with."""

    cells: tuple[Cell, ...]
    yardsticks: tuple[Cell, ...]

    @property
    def in_order(self) -> list[Cell]:
        """All cells that are to be played, each once, those first that others need."""
        by_key = {cell.key: cell for cell in (*self.yardsticks, *self.cells)}
        wanted: dict[str, Cell] = {}
        for cell in self.cells:
            for key in filter(None, (cell.yardstick_key, cell.key)):
                wanted.setdefault(key, by_key[key])
        return list(wanted.values())


@dataclass(frozen=True, eq=False)
class _GridPoint:
    """What all policies have in common at one point of the other axes."""

    labels: Labels
    content: dict[str, Any]
    source: ScenarioSource
    round_seconds: float | None


def build_grid(checked: CheckedSpec) -> Grid:
    """Return the grid; raises `InputError` with the faults of all axes."""
    spec = checked.spec
    with together() as attempt:
        policies = attempt(partial(_read_axis, checked, "policies", policy_value))
        traces = attempt(partial(_read_axis, checked, "traces", trace_value))
        clusters = attempt(partial(_read_axis, checked, "clusters", cluster_value))
        profile = attempt(partial(profile_value, checked))
        settings = attempt(lambda: checked.settings.arguments(checked.path, checked.where))
    _check_loads(checked, traces)
    if spec.measure_jobs is not None:
        settings["measure_jobs"] = spec.measure_jobs
    shared = PackedValue.of(settings, repr(sorted(settings.items())))
    cells, yardsticks = [], {}
    isolated = resolve_policy(YARDSTICK)
    content = policy_content(isolated)
    yardstick = AxisValue(YARDSTICK, content, PackedValue.of(isolated, content))
    for place in _grid_points(checked, traces, clusters, profile):
        yardstick_key = None
        if spec.fairness:
            compared = _cell(place, yardstick, "isolated", shared, None)
            yardstick_key = compared.key
            yardsticks[yardstick_key] = compared
        cells += [_cell(place, policy, spec.mode, shared, yardstick_key) for policy in policies]
    return Grid(tuple(cells), tuple(yardsticks.values()))


def _read_axis(checked: CheckedSpec, key: str, read: Callable[[CheckedSpec, Any], AxisValue]) -> list[AxisValue]:
    """Return the choices of an axis, those that stand twice once; two different ones must not have one name."""
    entries: Sequence[Any] = getattr(checked.spec, key)
    with together() as attempt:
        found = [attempt(partial(_read_entry, checked, key, number, read, entry)) for number, entry in enumerate(entries)]
    values = list(dict.fromkeys(found))
    labels = [each.label for each in values]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    text = "is what several of them are called; give each a name of its own, as in {name: ...}"
    InputError.raise_any([Fault(checked.where(key), key, f"{label!r} {text}") for label in twice])
    return values


def _read_entry(
    checked: CheckedSpec, key: str, number: int, read: Callable[[CheckedSpec, Any], AxisValue], entry: Any
) -> AxisValue:
    """Make a choice, and say where the entry stands if that fails."""
    try:
        return read(checked, entry)
    except InputError as error:
        place = checked.where(key, number)
        faults = [
            dataclasses.replace(fault, where=f"{place}, {fault.where}")
            if fault.where
            else Fault(place, fault.field or key, fault.problem)
            for fault in error.faults
        ]
        raise type(error)(*faults) from None


def _check_loads(checked: CheckedSpec, traces: Iterable[AxisValue]) -> None:
    if checked.spec.loads is not None and not any("generate" in trace.content for trace in traces):
        text = "are jobs per hour of generated traces, and all traces are files; leave them out"
        raise InputError(Fault(checked.where("loads"), "loads", text))


def _grid_points(
    checked: CheckedSpec, traces: Sequence[AxisValue], clusters: Sequence[AxisValue], profile: AxisValue
) -> Iterator[_GridPoint]:
    spec = checked.spec
    rounds: Sequence[float | None] = spec.round_seconds if spec.mode == "simulate" else [None]
    measured = {} if spec.measure_jobs is None else {"measure_jobs": window_text(spec.measure_jobs)}
    for trace in traces:
        is_drawn = isinstance(trace.packed.value, Generator)
        draws = is_drawn or checked.settings.is_random or any(map(lacks_type, trace.packed.value))
        loads: Sequence[float | None] = spec.loads if is_drawn and spec.loads is not None else [None]
        for load, cluster, seed, length in product(loads, clusters, spec.seeds, rounds):
            labels = {
                "trace": trace.label,
                "load": load,
                "cluster": cluster.label,
                "seed": seed,
                "round_seconds": length,
                **measured,
            }
            content = {
                "gavel-py": __version__,
                "trace": trace.content,
                "load": load,
                "cluster": cluster.packed.identity,
                "profile": profile.content,
                "seed": seed if draws else None,
                "round_seconds": length,
                "extrapolate": spec.extrapolate,
            }
            drawn = seed if draws else None
            source = ScenarioSource(
                trace.packed, cluster.packed, profile.packed, load, drawn, spec.extrapolate, spec.allow_unknown_types
            )
            yield _GridPoint(labels, content, source, length)


def _cell(place: _GridPoint, policy: AxisValue, mode: Any, settings: PackedValue, yardstick_key: str | None) -> Cell:
    content = place.content | {"mode": mode, "policy": policy.content, "settings": settings.identity, "needs": yardstick_key}
    task = Task("", mode, policy.packed, place.source, place.round_seconds, settings)
    return Cell({"policy": policy.label, **place.labels}, content, task, yardstick_key)
