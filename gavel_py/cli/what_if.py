"""gavel solve --what-if: the problem with other numbers of GPUs or nodes, its allocation, and how it compares.

The normalisers are those of the unchanged cluster in all allocations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import gavel_py as gp
from gavel_py.cli.accounting import with_accounts
from gavel_py.cli.allocation_text import left_out_text, limiting_jobs
from gavel_py.cli.inputs import Inputs
from gavel_py.cli.output import SAME_VALUE, counted, money, number, price_text
from gavel_py.cli.tables import Columns, columns_text, table_text, wrapped
from gavel_py.cli.usage import refuse
from gavel_py.errors import decimal_hint, nearest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORM = "TYPE+N, TYPE-N or TYPE=N for GPUs, TYPE+Nnodes or TYPE+Nnodes/GPUS for nodes, several with ',' between them"

MAX_GPUS, MAX_NODES, MAX_NODE_GPUS = 999_999_999, 100_000, 4096
"""Limits of the numbers in a --what-if."""

MAX_JOBS = 3
"""Maximum number of jobs listed that gain, and of jobs that lose; the JSON output has all of them."""

NOTE = "speed 1: always on the mix of GPUs of the cluster as it is, in all rows"


class Change(NamedTuple):
    """A part of a --what-if: sign "+", "-" or "=", and a number of GPUs or nodes of a type.

    node_gpus: GPUs of each node, None if not given; unit: "GPUs" or "nodes".
    """

    accelerator: str
    sign: str
    number: int
    unit: str
    node_gpus: int | None

    def applied(self, before: float) -> float:
        """Return the number after the change."""
        return {"+": before + self.number, "-": before - self.number, "=": float(self.number)}[self.sign]


def changes_of(text: str) -> tuple[Change, ...]:
    """Return the parts of a --what-if."""
    return tuple(_changes(text))


def _changes(text: str) -> Iterator[Change]:
    seen: set[str] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\S.*?)\s*([+=-])\s*([+-]?[^+=-]*?)\s*(nodes?(?:\s*/\s*([^+=/-]*?))?)?\s*", part)
        if match is None:
            raise click.UsageError(f"--what-if {text!r} is not of the form {FORM}")
        name, sign, found, nodes, size = match.groups()
        unit = "nodes" if nodes else "GPUs"
        _check_number(text, f"the {unit} of {name}", found, 0, MAX_NODES if nodes else MAX_GPUS)
        if size is not None:
            _check_number(text, "the GPUs of a node", size, 1, MAX_NODE_GPUS)
        refuse((name in seen, f"--what-if {text!r} names {name!r} twice"))
        seen.add(name)
        yield Change(name, sign, int(found), unit, None if size is None else int(size))


def _check_number(text: str, what: str, typed: str, least: int, most: int) -> None:
    is_right = re.fullmatch(r"0|[1-9][0-9]{0,8}", typed) and least <= int(typed) <= most
    bound = f" and at most {most:,}" if most < MAX_GPUS else ""
    problem = f"must be a whole number of at least {least}{bound}, found {typed!r}{decimal_hint(typed)}"
    refuse((not is_right, f"--what-if {text!r}: {what} {problem}"))


def changed(
    problem: gp.AllocationProblem, loaded: Inputs, text: str, changes: Sequence[Change], **options: Any
) -> gp.AllocationProblem:
    """Return the problem of a changed cluster, with the same normalisers.

    Added nodes can hold gangs, like the nodes of the cluster. Added GPUs are not on any node, so that jobs can run where they could
    run before. text: the --what-if; options: arguments of `Inputs.problem`.
    """
    named = [each._replace(accelerator=_type_of(each.accelerator, problem.accelerator_types, text)) for each in changes]
    if any(each.unit == "nodes" for each in named):
        nodes = list(loaded.cluster.nodes)
        for each in named:
            nodes = _with_nodes(nodes, each, text) if each.unit == "nodes" else nodes
        other = gp.Cluster(nodes, loaded.cluster.accelerator_types)
        there = replace(loaded, cluster=other).problem(**options)
        problem = replace(there, share_capacities=problem.share_capacities)
    gpus = dict(zip(problem.accelerator_types, problem.capacities.tolist(), strict=True))
    for each in named:
        if each.unit == "GPUs":
            before = gpus[each.accelerator]
            gpus[each.accelerator] = each.applied(before)
            _check_enough(each, before, text)
    return problem.with_capacities(list(gpus.values())) if any(each.unit == "GPUs" for each in named) else problem


def _type_of(typed: str, types: Sequence[str], text: str) -> str:
    name = gp.same_accelerator(typed, types)
    if name is None:
        raise click.UsageError(f"--what-if {text!r}: {typed!r} is not an accelerator type of this cluster{nearest(typed, types)}")
    return name


def _check_enough(change: Change, before: float, text: str) -> None:
    removed = f"removes {counted(change.number, change.unit.removesuffix('s'))} of {change.accelerator}"
    taken = f"{removed}, but there {'is' if before == 1 else 'are'} only {before:g}"
    refuse((change.applied(before) < 0, f"--what-if {text!r}: {taken}"))


def _with_nodes(nodes: Sequence[gp.Node], change: Change, text: str) -> list[gp.Node]:
    """Return the nodes after a change. New nodes copy the first one of the type with that number of GPUs; the last are removed."""
    name = change.accelerator
    sizes = sorted({node.num_gpus for node in nodes if node.accelerator == name})
    found = f"nodes of {name} have {' or '.join(map(str, sizes))} GPUs" if sizes else f"there are no nodes of {name}"
    example = f"{name}{change.sign}{change.number}nodes/{sizes[-1] if sizes else 8}"
    is_open = change.node_gpus is None and len(sizes) != 1
    refuse((is_open, f"--what-if {text!r}: {found}; add the GPUs per node, as in {example}"))
    size = sizes[0] if change.node_gpus is None else change.node_gpus
    own = [node for node in nodes if (node.accelerator, node.num_gpus) == (name, size)]
    _check_enough(change, len(own), text)
    wanted = int(change.applied(len(own)))
    gone = {node.name for node in own[wanted:]}
    taken = {node.name for node in nodes}
    names = (new for i in count() if (new := f"{name}-new-{i}") not in taken)
    model = own[0] if own else gp.Node(name=name, accelerator=name, num_gpus=size)
    added = [model.model_copy(update={"name": next(names)}) for _ in range(wanted - len(own))]
    return [*(node for node in nodes if node.name not in gone), *added]


@dataclass(frozen=True)
class WhatIf:
    """The problem and the allocation of one --what-if; change: as written by the user."""

    change: str
    problem: gp.AllocationProblem
    allocation: gp.Allocation

    @classmethod
    def solved(cls, change: str, problem: gp.AllocationProblem, solver: gp.Solver) -> WhatIf:
        """Solve the changed problem. The message of an `InputError` names the --what-if."""
        try:
            return cls(change, problem, solver.solve(problem))
        except gp.InputError as error:
            raise gp.InputError(f"with --what-if {change}:", *error.faults) from error

    def to_dict(self, before: gp.Allocation) -> dict[str, Any]:
        """Return the change, GPUs by type, the change of the objective since `before`, and the allocation, as plain data."""
        gpus = dict(zip(self.problem.accelerator_types, self.problem.capacities.tolist(), strict=True))
        now, then = before.objective_value, self.allocation.objective_value
        change = None if now is None or then is None else then - now
        return {
            "change": self.change,
            "gpus": gpus,
            "objective_change": change,
            "allocation": with_accounts(self.allocation.to_dict(), self.allocation),
        }


class NextLevel(NamedTuple):
    """What the worst-off of the jobs that could run faster has if `water_filling` divides what `max_min_fairness` leaves open.

    value: the least of their levels, None if all jobs run as fast as they can; levels: (N,) s_i v_i / w_i of all jobs.
    """

    value: float | None
    levels: NDArray[np.float64]

    @classmethod
    def of(cls, problem: gp.AllocationProblem, solver: gp.Solver) -> NextLevel:
        """Solve the problem by water-filling."""
        options: dict[str, Any] = {"merge_tolerance": solver.merge_tolerance, "time_limit_seconds": solver.time_limit_seconds}
        filled = gp.solve(problem, "water_filling", sharing=solver.sharing, **options)
        levels = problem.num_gpus * filled.normalized_throughputs / problem.weights
        could = problem.runnable.any(axis=1) & (filled.throughputs < problem.fastest * (1 - SAME_VALUE))
        return cls(float(levels[could].min()) if could.any() else None, levels)


def next_levels(
    problem: gp.AllocationProblem, now: gp.Allocation, what_ifs: Sequence[WhatIf], solver: gp.Solver
) -> tuple[NextLevel, ...]:
    """Return the next level of the cluster as it is and of each other one, if jobs that have all they can use limit the objective.

    Such an objective stays the same whatever is added, which would read as if nothing mattered.
    """
    clusters = [(problem, now), *((each.problem, each.allocation) for each in what_ifs)]
    changed = set(now.options) - {"efficiency"}
    if not what_ifs or changed or not any(limiting_jobs(allocation, each) for each, allocation in clusters):
        return ()
    return tuple(NextLevel.of(each, solver) for each, _ in clusters)


def what_if_text(label: str, now: gp.Allocation, what_ifs: Sequence[WhatIf], levels: Sequence[NextLevel] = ()) -> str:
    """Return tables of objective and speed for each cluster, utilisation, shadow prices, and the jobs that gain and lose most.

    levels: from `next_levels`.
    """
    then = {what_if.change: what_if.allocation for what_if in what_ifs}
    clusters = {"as it is": now} | then
    found, by_type = list(clusters.values()), ["cluster", *now.accelerator_types]
    metrics, forecasts = [each.metrics() for each in found], [each.forecast() for each in found]
    has_prices, due = any(each.has_prices for each in forecasts), forecasts[0].deadlines.all

    def column(name: str) -> tuple[str, list[str]]:
        return gp.METRICS[name].title, [number(each[name]) for each in metrics]

    columns: Columns = [
        ("cluster", clusters),
        column("objective"),
        ("next level", [number(level.value) for level in levels]),
        column("total_normalized_throughput"),
        column("least_normalized_throughput"),
        ("deadlines met", [f"{each.deadlines.met} of {due}" for each in forecasts] if due else ()),
        ("cost per hour", [money(each.get("cost_per_hour")) for each in metrics] if has_prices else ()),
    ]
    used = [[name, *(f"{part:.1%}" for part in allocation.utilization)] for name, allocation in clusters.items()]
    prices = [
        [name, *(price_text(price, each.objective_value) for price in each.shadow_prices)]
        for name, each in clusters.items()
        if each.shadow_prices is not None
    ]
    at_most = ", at most" if any(each.shadow_prices_at_most for each in clusters.values()) else ""
    parts = [
        columns_text(f"What if, under {label}", columns) + wrapped([NOTE, *_next_lines(now, then, levels)], indent=""),
        table_text("GPUs used", by_type, used),
        *([table_text(f"Objective per extra GPU{at_most}", by_type, prices)] if prices else []),
        *(_jobs(name, now, allocation) for name, allocation in then.items()),
    ]
    return "\n".join(parts)


def _next_lines(now: gp.Allocation, then: Iterable[str], levels: Sequence[NextLevel]) -> Iterator[str]:
    """Yield what the next level is, and for each other cluster who gains there and by how much."""
    if not levels:
        return
    yield "next level: what the worst-off of the jobs that could run faster has if -p water_filling divides the rest"
    first, *others = levels
    for name, level in zip(then, others, strict=True):
        change = level.levels - first.levels
        gain, lose = _largest(change), _largest(-change)
        most = [f"{now.job_ids[i]} {change[i]:+.4g}" for i in (*gain[:1], *lose[:1])]
        after = "all that jobs can use" if level.value is None else number(level.value)
        text = f"{name}: {number(first.value)} to {after}; {len(gain)} of {len(change)} jobs gain, {len(lose)} lose"
        yield f"{text}{', most of all ' if most else ''}{' and '.join(most)}"


def _jobs(name: str, now: gp.Allocation, then: gp.Allocation) -> str:
    """Return a table of the jobs that gain and lose most, and the jobs that are newly excluded."""
    before, after = now.normalized_throughputs, then.normalized_throughputs
    change = after - before
    gain, lose = _largest(change), _largest(-change)
    shown = [*gain[:MAX_JOBS].tolist(), *lose[:MAX_JOBS][::-1].tolist()]
    title = f"{name}: {len(gain)} of {len(change)} jobs gain, {len(lose)} lose"
    fresh = {job_id: reason for job_id, reason in then.excluded.items() if job_id not in now.excluded}
    left_out = left_out_text("Left out then", fresh, all_of_them=False)
    if not shown:
        return f"{title}\n{left_out}"
    rows = [[now.job_ids[i], number(before[i]), number(after[i]), f"{change[i]:+.4g}"] for i in shown]
    return table_text(f"{title}; most of all", ["job", "speed now", "speed then", "change"], rows) + left_out


def _largest(change: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the indices of positive changes, the largest first; equal ones, whatever their rounding, in the order of jobs."""
    order: NDArray[np.int64] = (-change.round(9)).argsort(kind="stable")
    return order[change[order] > SAME_VALUE]
