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
    Choice,
    Generator,
    Part,
    cluster_choice,
    lacks_type,
    policy_choice,
    policy_content,
    profile_choice,
    trace_choice,
)
from gavel_py.sweeps.cell import Cell, Source, Task, problem_of, scenario_of
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
            for key in filter(None, (cell.needs, cell.key)):
                wanted.setdefault(key, by_key[key])
        return list(wanted.values())


@dataclass(frozen=True, eq=False)
class _Place:
    """What all policies have in common at one point of the other axes."""

    labels: Labels
    content: dict[str, Any]
    source: Source
    round_seconds: float | None


def grid_of(asked: CheckedSpec) -> Grid:
    """Return the grid; raises `InputError` with the faults of all axes."""
    spec = asked.spec
    with together() as attempt:
        policies = attempt(partial(_axis, asked, "policies", policy_choice))
        traces = attempt(partial(_axis, asked, "traces", trace_choice))
        clusters = attempt(partial(_axis, asked, "clusters", cluster_choice))
        profile = attempt(partial(profile_choice, asked))
        settings = attempt(lambda: asked.settings.arguments(asked.path, asked.where))
    _check_loads(asked, traces)
    if spec.measure_jobs is not None:
        settings["measure_jobs"] = spec.measure_jobs
    shared = Part.of(settings, repr(sorted(settings.items())))
    cells, yardsticks = [], {}
    isolated = resolve_policy(YARDSTICK)
    content = policy_content(isolated)
    yardstick = Choice(YARDSTICK, content, Part.of(isolated, content))
    for place in _places(asked, traces, clusters, profile):
        needs = None
        if spec.fairness:
            compared = _cell(place, yardstick, "isolated", shared, None)
            needs = compared.key
            yardsticks[needs] = compared
        cells += [_cell(place, policy, spec.mode, shared, needs) for policy in policies]
    return Grid(tuple(cells), tuple(yardsticks.values()))


def _axis(asked: CheckedSpec, key: str, choice: Callable[[CheckedSpec, Any], Choice]) -> list[Choice]:
    """Return the choices of an axis, those that stand twice once; two different ones must not have one name."""
    entries: Sequence[Any] = getattr(asked.spec, key)
    with together() as attempt:
        found = [attempt(partial(_placed, asked, key, number, choice, entry)) for number, entry in enumerate(entries)]
    choices = list(dict.fromkeys(found))
    labels = [each.label for each in choices]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    text = "is what several of them are called; give each a name of its own, as in {name: ...}"
    InputError.raise_any([Fault(asked.where(key), key, f"{label!r} {text}") for label in twice])
    return choices


def _placed(asked: CheckedSpec, key: str, number: int, choice: Callable[[CheckedSpec, Any], Choice], entry: Any) -> Choice:
    """Make a choice, and say where the entry stands if that fails."""
    try:
        return choice(asked, entry)
    except InputError as error:
        place = asked.where(key, number)
        faults = [
            dataclasses.replace(fault, where=f"{place}, {fault.where}")
            if fault.where
            else Fault(place, fault.field or key, fault.problem)
            for fault in error.faults
        ]
        raise type(error)(*faults) from None


def _check_loads(asked: CheckedSpec, traces: Iterable[Choice]) -> None:
    if asked.spec.loads is not None and not any("generate" in trace.content for trace in traces):
        text = "are jobs per hour of generated traces, and all traces are files; leave them out"
        raise InputError(Fault(asked.where("loads"), "loads", text))


def _places(asked: CheckedSpec, traces: Sequence[Choice], clusters: Sequence[Choice], profile: Choice) -> Iterator[_Place]:
    spec = asked.spec
    rounds: Sequence[float | None] = spec.round_seconds if spec.mode == "simulate" else [None]
    measured = {} if spec.measure_jobs is None else {"measure_jobs": window_text(spec.measure_jobs)}
    for trace in traces:
        is_drawn = isinstance(trace.part.value, Generator)
        draws = is_drawn or asked.settings.is_random or any(map(lacks_type, trace.part.value))
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
                "cluster": cluster.part.identity,
                "profile": profile.content,
                "seed": seed if draws else None,
                "round_seconds": length,
                "extrapolate": spec.extrapolate,
            }
            drawn = seed if draws else None
            source = Source(trace.part, cluster.part, profile.part, load, drawn, spec.extrapolate, spec.allow_unknown_types)
            yield _Place(labels, content, source, length)


def _cell(place: _Place, policy: Choice, mode: Any, settings: Part, needs: str | None) -> Cell:
    content = place.content | {"mode": mode, "policy": policy.content, "settings": settings.identity, "needs": needs}
    task = Task("", mode, policy.part, place.source, place.round_seconds, settings)
    return Cell({"policy": policy.label, **place.labels}, content, task, needs)
