"""The grid of a sweep: each policy on each trace, load, cluster, seed and length of rounds.

`build_grid` reads the axes and combines their values to cells. `check_cells` finds values that do not fit together before any cell
is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import product
from typing import Any

from gavel_py import __version__
from gavel_py.allocation.solver import check_sharing
from gavel_py.errors import Fault, InputError, refuse, relocated_faults, together
from gavel_py.policies import resolve_policy
from gavel_py.report.runs import Labels
from gavel_py.report.runs.summary import window_text
from gavel_py.scheduling.options import AllocationOptions
from gavel_py.simulator.measurements import check_enough
from gavel_py.simulator.simulation import Simulation
from gavel_py.sweeps.axes import (
    AxisValue,
    Generator,
    PackedValue,
    cluster_value,
    policy_content,
    policy_value,
    profile_value,
    trace_value,
)
from gavel_py.sweeps.cell import Cell, ScenarioSource, Task, problem_of, scenario_of
from gavel_py.sweeps.spec import CheckedSpec
from gavel_py.throughput_profiles import ThroughputProfile
from gavel_py.workloads.summary import describe_trace

_GridPoint = tuple[Labels, dict[str, Any], ScenarioSource, float | None]
"""A point of all axes but the policies: labels and content of its cells, inputs, and length of rounds.

The seed of the inputs is None if nothing of them is random.
"""

BASELINE = "isolated"
"""The policy with which all others are compared for finish-time fairness."""


def check_cells(cells: Sequence[Cell]) -> None:
    """Check a cell for each scenario, and for each policy, its settings and length of rounds in it; raises `InputError`."""
    scenarios: set[object] = set()
    policies: set[object] = set()
    with together() as attempt:
        for cell in cells:
            scenario = cell.task.source.trace, cell.task.source.cluster
            if scenario not in scenarios:
                scenarios.add(scenario)
                attempt(partial(_check_cell, cell, ("trace", "cluster"), _check_scenario))
            policy = cell.task.policy, cell.task.settings, scenario, cell.task.round_seconds
            if policy not in policies:
                policies.add(policy)
                attempt(partial(_check_cell, cell, ("policy",), _check_policy))


def _check_cell(cell: Cell, names: tuple[str, ...], check: Callable[[Cell], None]) -> None:
    """Check a cell; its labels on these axes are added to the place of each fault."""
    place = "sweep, " + ", ".join(f"{name} {cell.labels[name]!r}" for name in names)
    with relocated_faults(lambda fault: replace(fault, where=f"{place}, {fault.where}" if fault.where else place)):
        check(cell)


def _check_scenario(cell: Cell) -> None:
    problem_of(cell.task.source, AllocationOptions(whole_gangs=False))
    if cell.task.mode == "solve":
        return
    text = "is unknown, so it is not known when the job ends; give total_steps, or duration_seconds with duration_accelerator"
    jobs = [submission.job for submission in scenario_of(cell.task.source).trace]
    check_enough(len(jobs), cell.task.settings.value.get("measure_jobs"))
    lacking = [job for job in jobs if job.total_steps is None and job.duration_seconds is None]
    InputError.raise_any([Fault(job.where, "total_steps", text) for job in lacking])


def _check_policy(cell: Cell) -> None:
    """Check a policy on its scenario; for a simulation, by constructing it without jobs, which checks all settings at no cost."""
    task = cell.task
    settings: dict[str, Any] = dict(task.settings.value)
    try:
        scenario = scenario_of(task.source)
    except InputError:
        return  # reported by `_check_scenario`
    if settings.get("sharing"):
        check_sharing(task.policy.value)
        known = {name: settings[name] for name in AllocationOptions.model_fields if name in settings} | {"whole_gangs": False}
        problem_of(task.source, AllocationOptions(**known))
    if task.mode == "solve":
        task.policy.value.check(problem_of(task.source, AllocationOptions(**settings)))
        return
    for name in ("until_seconds", "measure_jobs"):  # neither a setting of `Simulation`, nor valid for an empty trace
        settings.pop(name, None)
    Simulation([], scenario.cluster, scenario.profile, task.policy.value, round_seconds=task.round_seconds, **settings)


def build_grid(checked: CheckedSpec) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """Return the cells of a spec in the order of the grid, and each distinct cell once, after the one with which it is compared.

    A cell into which no seed enters has one place in the grid, without a seed, however many seeds there are: more would be copies
    of one run, not replications. Raises `InputError` with the faults of all axes.
    """
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
    packed_settings = {sharing: _packed_settings(settings, sharing) for sharing in (None, True, False)}
    isolated = resolve_policy(BASELINE)
    baseline = AxisValue.of(BASELINE, isolated, policy_content(isolated))
    cells: list[Cell] = []
    baselines: list[Cell] = []
    for point in _grid_points(checked, traces, clusters, profile):
        if spec.fairness:
            baselines.append(_cell(point, baseline, "isolated", packed_settings[False], None))
        baseline_key = baselines[-1].key if spec.fairness else None
        cells += [_cell(point, policy, spec.mode, packed_settings[policy.sharing], baseline_key) for policy in policies]
    places = {(cell.key, *cell.labels.values()): cell for cell in cells}.values()
    by_key = {cell.key: cell for cell in (*baselines, *places)}
    in_order = dict.fromkeys(key for cell in places for key in (cell.baseline_key, cell.key) if key is not None)
    return tuple(places), tuple(by_key[key] for key in in_order)


def _check_loads(checked: CheckedSpec, traces: Sequence[AxisValue]) -> None:
    """Raise `InputError` for loads that apply to no trace, and for factors of a load that is unknown."""
    factors = [isinstance(load, str) for load in checked.spec.loads or ()]
    files = {each.label: _jobs_per_hour(each) for each in traces if not isinstance(each.packed.value, Generator)}
    at_once = [label for label, rate in files.items() if any(factors) and not rate]
    rates = "apply to generated traces, but all traces are files; write factors of their load, as in 1.5x, or remove them"
    text = "as factors apply to files, but all traces are generated; write jobs per hour, as in 12"
    refuse(
        checked.where("loads"),
        (not all(factors) and len(files) == len(traces), "loads", rates),
        (any(factors) and not files, "loads", text),
        (at_once, "loads", f"are factors, but the jobs of {', '.join(at_once)} arrive all at once; remove them"),
    )


def _jobs_per_hour(trace: AxisValue) -> float | None:
    """Return the load of a recorded trace, from the first to the last arrival."""
    return describe_trace(trace.packed.value, 1).jobs_per_hour


def _packed_settings(settings: Mapping[str, Any], sharing: bool | None) -> PackedValue:
    """Return the settings of cells; sharing: of their policy, None for that of the settings."""
    given = dict(settings) if sharing is None else {**settings, "sharing": sharing}
    if not given.get("sharing"):
        given = {name: value for name, value in given.items() if name not in ("sharing", *AllocationOptions.of_sharing)}
    return PackedValue.of(given, repr(sorted(given.items())))


def _cell(point: _GridPoint, policy: AxisValue, mode: Any, settings: PackedValue, baseline_key: str | None) -> Cell:
    labels, shared, source, round_seconds = point
    drawing = policy.packed.value
    draws = drawing.is_random and "seed" not in drawing.changed_options
    seed = labels["seed"] if draws else source.seed
    policy = _seeded(policy, seed) if draws else policy
    of_policy = {"mode": mode, "policy": policy.content, "settings": settings.identity, "needs": baseline_key}
    task = Task("", mode, policy.packed, source, round_seconds, settings)
    return Cell({"policy": policy.label, **labels, "seed": seed}, {**shared, "seed": seed, **of_policy}, task, baseline_key)


def _seeded(policy: AxisValue, seed: object) -> AxisValue:
    """Return a policy with this seed, if it has an option of that name."""
    drawing = policy.packed.value
    if all(field.name != "seed" for field in fields(drawing)):
        return policy
    drawing = replace(drawing, seed=seed)
    return replace(AxisValue.of(policy.label, drawing, policy_content(drawing)), sharing=policy.sharing)


def _read_axis(checked: CheckedSpec, key: str, read: Callable[[CheckedSpec, Any], AxisValue]) -> list[AxisValue]:
    """Return the distinct values of an axis; raises `InputError` if two of them have the same label."""
    entries: Sequence[Any] = getattr(checked.spec, key)
    with together() as attempt:
        found = [attempt(partial(_read_entry, checked, key, number, read, entry)) for number, entry in enumerate(entries)]
    values = list(dict.fromkeys(found))
    labels = [each.label for each in values]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    text = "is the name of several of them; give each its own name, as in {name: ...}"
    InputError.raise_any([Fault(checked.where(key), key, f"{label!r} {text}") for label in twice])
    return values


def _read_entry(
    checked: CheckedSpec, key: str, number: int, read: Callable[[CheckedSpec, Any], AxisValue], entry: Any
) -> AxisValue:
    """Return an entry as a value; the place of the entry is added to each fault."""

    def relocate(fault: Fault) -> Fault:
        place = checked.where(key, number)
        if fault.where:
            return replace(fault, where=f"{place}, {fault.where}")
        return Fault(place, fault.field or key, fault.problem)

    with relocated_faults(relocate):
        return read(checked, entry)


def _grid_points(
    checked: CheckedSpec, traces: Sequence[AxisValue], clusters: Sequence[AxisValue], profile: AxisValue
) -> Iterator[_GridPoint]:
    spec = checked.spec
    rounds: Sequence[float | None] = spec.round_seconds if spec.mode == "simulate" else [None]
    further = {} if spec.measure_jobs is None else {"measure_jobs": window_text(spec.measure_jobs)}
    if checked.settings.mechanism != "deficit":
        further["mechanism"] = str(checked.settings.mechanism)
    for trace in traces:
        is_generated = isinstance(trace.packed.value, Generator)
        # Speeds by job leave no job type to draw.
        draws_types = not is_generated and isinstance(profile.packed.value, ThroughputProfile)
        is_random = is_generated or checked.settings.is_random
        is_random |= draws_types and any(not submission.job.job_type for submission in trace.packed.value)
        loads: Sequence[float | str | None] = [each for each in spec.loads or () if isinstance(each, str) != is_generated] or [None]
        for given, cluster, seed, length in product(loads, clusters, spec.seeds, rounds):
            load = float(given.removesuffix("x")) if isinstance(given, str) else given
            labels = {
                "trace": trace.label,
                "load": load if load is None or is_generated else load * (_jobs_per_hour(trace) or 0.0),
                "cluster": cluster.label,
                "seed": seed,
                "round_seconds": length,
                **further,
            }
            content = {
                "gavel-py": __version__,
                "trace": trace.content,
                "load": load,
                "cluster": cluster.packed.identity,
                "profile": profile.content,
                "round_seconds": length,
                "extrapolate": spec.extrapolate,
            }
            inputs = trace.packed, cluster.packed, profile.packed
            source = ScenarioSource(*inputs, load, seed if is_random else None, spec.extrapolate, spec.allow_unknown_types)
            yield labels, content, source, length
