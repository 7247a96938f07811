"""gavel solve --what-if: the problem with other numbers of GPUs or nodes, its allocation, and how it compares.

The normalisers are those of the unchanged cluster in all allocations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import click

import gavel_py as gp
from gavel_py.cli import estimates
from gavel_py.cli.accounting import MAX_TENANTS, with_accounts
from gavel_py.cli.allocation_text import left_out_text
from gavel_py.cli.inputs import Inputs, detailed
from gavel_py.cli.output import FORMS, SAME_VALUE, number, price_text, unit_of
from gavel_py.cli.tables import Column, line_width, listed, table_text, wrapped
from gavel_py.cli.usage import refuse
from gavel_py.errors import decimal_hint, nearest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Changes = tuple[gp.GpuChange | gp.NodesDown, ...]

FORM = (
    "TYPE+N, TYPE-N or TYPE=N for GPUs, TYPE+Nnodes or TYPE+Nnodes/GPUS for nodes, down:NODE+NODE for nodes that are down, several "
    "with ',' between them"
)

DOWN = "down:"
"""Begins the names of nodes that are down."""

MAX_GPUS, MAX_NODES, MAX_NODE_GPUS = 999_999_999, 100_000, 4096
"""Limits of the numbers in a --what-if."""

MAX_JOBS = 3
"""Maximum number of jobs listed that gain, and of jobs that lose; the JSON output has all of them."""


def changes_of(text: str) -> Changes:
    """Return the parts of a --what-if."""
    return tuple(_changes(text))


def _changes(text: str) -> Iterator[gp.GpuChange | gp.NodesDown]:
    seen: set[str] = set()
    for part in map(str.strip, text.split(",")):
        match = re.fullmatch(r"(\S.*?)\s*([+=-])\s*([+-]?[^+=-]*?)\s*(nodes?(?:\s*/\s*([^+=/-]*?))?)?", part)
        down = tuple(map(str.strip, part.removeprefix(DOWN).split("+"))) if part.startswith(DOWN) else ()
        if not all(down) or not (match or down):
            raise click.UsageError(f"--what-if {text!r} is not of the form {FORM}")
        for name in down or (match[1],):  # type: ignore[index]
            refuse((name in seen, f"--what-if {text!r} names {name!r} twice"))
            seen.add(name)
        yield gp.NodesDown(down) if down else _change(text, match)  # type: ignore[arg-type]


def _change(text: str, match: re.Match[str]) -> gp.GpuChange:
    name, sign, found, nodes, size = match.groups()
    unit: Literal["nodes", "GPUs"] = "nodes" if nodes else "GPUs"
    _check_number(text, f"the {unit} of {name}", found, 0, MAX_NODES if nodes else MAX_GPUS)
    if size is not None:
        _check_number(text, "the GPUs of a node", size, 1, MAX_NODE_GPUS)
    return gp.GpuChange(name, sign, int(found), unit, None if size is None else int(size))


def _check_number(text: str, what: str, typed: str, least: int, most: int) -> None:
    is_right = re.fullmatch(r"0|[1-9][0-9]{0,8}", typed) and least <= int(typed) <= most
    bound = f" and at most {most:,}" if most < MAX_GPUS else ""
    problem = f"must be a whole number of at least {least}{bound}, found {typed!r}{decimal_hint(typed)}"
    refuse((not is_right, f"--what-if {text!r}: {what} {problem}"))


def priced(
    loaded: Inputs, changes: Mapping[str, Changes], prices: Iterable[str]
) -> tuple[Inputs, Mapping[str, gp.AcceleratorType]]:
    """Return the inputs with the prices of --price, and the types that changes add to the cluster, {name: type}.

    changes: {--what-if: its parts}.
    """
    cluster = loaded.cluster
    types = list(cluster.accelerator_types)
    for text, change in ((text, each) for text, parts in changes.items() for each in parts):
        if isinstance(change, gp.NodesDown):
            # h100-3 is also a change, so that down:h100-0,h100-3 would remove 3 GPUs instead of a node.
            other = next((part for part in map(str.strip, text.split(",")) if part in {node.name for node in cluster.nodes}), "")
            refuse((other, f"--what-if {text!r}: {other!r} is also the name of a node; write down:NODE+{other} if it is down, too"))
        elif gp.same_accelerator(change.accelerator, [each.name for each in types]) is None:
            types.append(gp.AcceleratorType(name=_new_type(change.accelerator, loaded, text)))
    every = detailed(gp.Cluster(cluster.nodes, types), prices, "--price", "TYPE=PRICE", "price_per_hour").accelerator_types
    count = len(cluster.accelerator_types)
    here = gp.Cluster(cluster.nodes, every[:count])
    here.left_out = cluster.left_out
    return replace(loaded, cluster=here), {each.name: each for each in every[count:]}


def _new_type(typed: str, loaded: Inputs, text: str) -> str:
    """Return the name that the profile has for a type that the cluster lacks."""
    profile, measured = loaded.profile, getattr(loaded.profile, "measured", loaded.profile)
    name = gp.same_accelerator(typed, profile.accelerators)
    if name is None:
        has = f"profile {profile.name!r} has {listed(measured.accelerators, 2 * line_width())}"
        remedy = "add its speeds to it" if estimates.BY_JOB in click.get_current_context().meta else estimates.HINT
        if measured is not profile:
            remedy = "an estimate needs its specifications (GAVEL_PY_ACCELERATORS) or a measurement on it"
        lacks = f"{typed!r} is not an accelerator type of this cluster{nearest(typed, loaded.cluster.accelerator_names)}"
        raise click.UsageError(f"--what-if {text!r}: {lacks}\nA new type needs speeds: {has}; {remedy}")
    return name


def changed(
    problem: gp.AllocationProblem,
    loaded: Inputs,
    text: str,
    changes: Changes,
    new: Mapping[str, gp.AcceleratorType],
    build: Callable[[Inputs], gp.AllocationProblem],
) -> gp.AllocationProblem:
    """Return the problem of a changed cluster, with the same normalisers.

    text: the --what-if; new: from `priced`; build: returns the problem of inputs with another cluster.
    """
    here = loaded.cluster
    types = {each.name: each for each in (*here.accelerator_types, *new.values())}
    named = [
        each if isinstance(each, gp.NodesDown) else each._replace(accelerator=gp.same_accelerator(each.accelerator, types) or "")
        for each in changes
    ]
    added = {each.accelerator for each in named if isinstance(each, gp.GpuChange)} & new.keys()
    cluster = gp.Cluster(here.nodes, [*here.accelerator_types, *(new[name] for name in new if name in added)])
    with in_what_if(text):
        return gp.changed_problem(problem, cluster, named, lambda each: build(replace(loaded, cluster=each)))


@dataclass(frozen=True)
class WhatIf:
    """The problem and the allocation of one --what-if.

    change: as written by the user; estimates: {estimate of a speed on a type that the cluster lacks: GPUs held at this speed}.
    """

    change: str
    problem: gp.AllocationProblem
    allocation: gp.Allocation
    estimates: Mapping[gp.Estimate, float]

    @classmethod
    def solved(cls, change: str, problem: gp.AllocationProblem, solver: gp.Solver, loaded: Inputs) -> WhatIf:
        """Solve the changed problem. The message of an `InputError` names the --what-if."""
        with in_what_if(change):
            allocation = solver.solve(problem)
        here = loaded.cluster.accelerator_names
        found = () if {*problem.accelerator_types} <= {*here} else loaded.estimates(problem) or ()
        new = [each for each in found if each.entry.accelerator not in here]
        return cls(change, problem, allocation, estimates.held_gpus(new, loaded.jobs, allocation))

    def to_dict(self, before: gp.Allocation) -> dict[str, Any]:
        """Return the change, GPUs by type, the change of the objective since `before`, and the allocation, as plain data."""
        gpus = dict(zip(self.problem.accelerator_types, self.problem.capacities.tolist(), strict=True))
        now, then = before.objective_value, self.allocation.objective_value
        change = self.allocation.normalized_throughputs - before.normalized_throughputs
        return {
            "change": self.change,
            "gpus": gpus,
            "objective_change": None if now is None or then is None else then - now,
            "gain": [before.job_ids[i] for i in _largest(change)],
            "lose": [before.job_ids[i] for i in _largest(-change)],
            "allocation": with_accounts(self.allocation.to_dict(), self.allocation),
            **estimates.json_entry(self.estimates or None),
        }


@contextmanager
def in_what_if(change: str) -> Iterator[None]:
    """Let an `InputError` of the block name the --what-if."""
    try:
        yield
    except gp.InputError as error:
        raise gp.InputError(f"with --what-if {change}:", *error.faults) from error


def compared(
    problem: gp.AllocationProblem, now: gp.Allocation, what_ifs: Sequence[WhatIf], solver: gp.Solver
) -> gp.ClusterComparison | None:
    """Return the figures of the cluster as it is and of the others, None if there are no others."""
    clusters = {"as it is": (problem, now)} | {each.change: (each.problem, each.allocation) for each in what_ifs}
    return gp.ClusterComparison.of(clusters, solver) if what_ifs else None


def what_if_text(label: str, now: gp.Allocation, what_ifs: Sequence[WhatIf], comparison: gp.ClusterComparison) -> str:
    """Return tables of figures by cluster, utilisation, shadow prices, and the jobs that gain and lose most, and estimates."""
    clusters = dict(zip(comparison.clusters, (now, *(each.allocation for each in what_ifs)), strict=True))
    types = list(dict.fromkeys(name for each in clusters.values() for name in each.accelerator_types))

    def by_type(title: str, rows: Mapping[str, Iterable[str]]) -> str:
        cells = {name: dict(zip(clusters[name].accelerator_types, row, strict=True)) for name, row in rows.items()}
        return table_text(
            title, ["cluster", *types], [[name, *(row.get(each, "-") for each in types)] for name, row in cells.items()]
        )

    used = {name: [f"{part:.1%}" for part in each.utilization] for name, each in clusters.items()}
    prices = {
        name: [price_text(price, each.objective_value) for price in each.shadow_prices]
        for name, each in clusters.items()
        if each.shadow_prices is not None
    }
    at_most = ", at most" if any(each.shadow_prices_at_most for each in clusters.values()) else ""
    parts = [
        _measures_text(f"What if, under {label}", comparison) + wrapped(_next_lines(now, comparison), indent=""),
        by_type("GPUs used", used),
        *([by_type(f"Objective per extra GPU{at_most}", prices)] if prices else []),
        *(_jobs(each, now) for each in what_ifs),
    ]
    return "\n".join(parts)


def _measures_text(title: str, comparison: gp.ClusterComparison) -> str:
    """Return a table with a row for each figure and a column for each cluster, and what the figures mean."""
    tenants = [each for each in comparison.measures if each.tenant is not None]
    shown = [each for each in comparison.measures if each not in tenants[MAX_TENANTS:]]
    lines = comparison.notes + ([f"{len(tenants) - MAX_TENANTS} more tenants: --json"] if len(tenants) > MAX_TENANTS else [])
    for name, types in comparison.unpriced.items():
        lines.append(f"{name}: cost unknown, since the price of {' and '.join(types)} is; --price {types[0]}=PRICE gives it")
    heads = [Column("", "prose"), *map(Column, comparison.clusters)]
    return table_text(title, heads, map(measure_cells, shown)) + wrapped(lines, indent="")


def measure_cells(measure: gp.ClusterMeasure) -> list[str]:
    """Return the title of a figure and its values as text, with their changes in per cent."""
    title, values = measure.title, measure.values
    form, unknown = FORMS[measure.quantity], "unknown" if measure.quantity == "money" else "-"
    if measure.quantity == "time":
        unit, length = unit_of(values)
        title, form = f"{title}, {unit}", lambda seconds: number(seconds / length)
    texts = [unknown if value is None else form(value) for value in values]
    if measure.of is not None:
        texts = [f"{text} of {measure.of}" for text in texts]
    _, *changes = (f"{change:+.1%}" if change is not None else "" for change in measure.changes)
    return [title, texts[0], *(f"{text} {change:>8}" for text, change in zip(texts[1:], changes, strict=True))]


def _next_lines(now: gp.Allocation, comparison: gp.ClusterComparison) -> Iterator[str]:
    """Yield for each other cluster by how much its next level changes, and who gains most."""
    for name, level in zip(comparison.clusters[1:], comparison.next_levels[1:], strict=False):
        first = comparison.next_levels[0]
        change = level.levels - first.levels
        gain, lose = _largest(change), _largest(-change)
        most = [f"{now.job_ids[i]} {change[i]:+.4g}" for i in (*gain[:1], *lose[:1])]
        after = "all that jobs can use" if level.value is None else number(level.value)
        text = f"{name}: {number(first.value)} to {after}; {len(gain)} of {len(change)} jobs gain, {len(lose)} lose"
        yield f"{text}{', most of all ' if most else ''}{' and '.join(most)}"


def _jobs(what_if: WhatIf, now: gp.Allocation) -> str:
    """Return a table of the jobs that gain and lose most, the jobs that are newly excluded, and the estimates of new types."""
    name, then = what_if.change, what_if.allocation
    before, after = now.normalized_throughputs, then.normalized_throughputs
    change = after - before
    gain, lose = _largest(change), _largest(-change)
    shown = [*gain[:MAX_JOBS].tolist(), *lose[:MAX_JOBS][::-1].tolist()]
    title = f"{name}: {len(gain)} of {len(change)} jobs gain, {len(lose)} lose"
    fresh = {job_id: reason for job_id, reason in then.excluded.items() if job_id not in now.excluded}
    rest = left_out_text("Left out then", fresh, all_of_them=False)
    rest += f"\n{estimates.estimates_text(what_if.estimates, of=f'{name}: ')}" if what_if.estimates else ""
    if not shown:
        return f"{title}\n{rest}"
    rows = [[now.job_ids[i], number(before[i]), number(after[i]), f"{change[i]:+.4g}"] for i in shown]
    return table_text(f"{title}; most of all", ["job", "speed now", "speed then", "change"], rows) + rest


def _largest(change: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the indices of positive changes, the largest first; equal ones, whatever their rounding, in the order of jobs."""
    order: NDArray[np.int64] = (-change.round(9)).argsort(kind="stable")
    return order[change[order] > SAME_VALUE]
