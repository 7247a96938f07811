"""gavel solve --what-if: the problem with other numbers of GPUs, its allocation, and how it compares.

The normalisers are those of the unchanged cluster in all allocations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

import gavel_py as gp
from gavel_py.cli.accounting import with_accounts
from gavel_py.cli.allocation_text import left_out_text
from gavel_py.cli.output import number
from gavel_py.cli.tables import table_text, wrapped
from gavel_py.errors import decimal_hint, nearest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORM = "TYPE+N, TYPE-N or TYPE=N, several with ',' between them"

MAX_JOBS = 3
"""Limit of the jobs listed that gain, and of those that lose; the JSON output has all of them."""

NOTE = "speed 1: always on the mix of GPUs of the cluster as it is, in all rows"

TOLERANCE = 1e-6
"""Change of speed below which it counts as unchanged."""

Parts = tuple[tuple[str, str, int], ...]
"""(accelerator type, "+", "-" or "=", GPUs) of a --what-if."""


def parts_of(text: str) -> Iterator[tuple[str, str, int]]:
    seen: set[str] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\S.*?)\s*([+=-])\s*([+-]?[^+=-]*?)\s*", part)
        if match is None:
            raise click.UsageError(f"--what-if {text!r} is not of the form {FORM}")
        name, sign, count = match[1], match[2], match[3]
        if not re.fullmatch(r"0|[1-9][0-9]{0,8}", count):
            problem = f"must be a whole number of at least 0, found {count!r}{decimal_hint(count)}"
            raise click.UsageError(f"--what-if {text!r}: the GPUs of {name} {problem}")
        if name in seen:
            raise click.UsageError(f"--what-if {text!r} names {name!r} twice")
        seen.add(name)
        yield name, sign, int(count)


def changed(problem: gp.AllocationProblem, text: str, parts: Parts) -> gp.AllocationProblem:
    """Return the problem with other numbers of GPUs, with the same normalisers and eligibility of jobs; text: the --what-if."""
    gpus = dict(zip(problem.accelerator_types, problem.capacities.tolist(), strict=True))
    spelled = {name.casefold(): name for name in gpus}
    for typed, sign, count in parts:
        name = typed if typed in gpus else spelled.get(typed.casefold(), typed)
        if name not in gpus:
            problem_text = f"{name!r} is not an accelerator type of this cluster{nearest(name, gpus)}"
            raise click.UsageError(f"--what-if {text!r}: {problem_text}")
        before = gpus[name]
        gpus[name] = {"+": before + count, "-": before - count, "=": float(count)}[sign]
        if gpus[name] < 0:
            raise click.UsageError(f"--what-if {text!r}: takes {count} GPUs of {name} away, and there are {before:g}")
    return problem.with_capacities(list(gpus.values()))


@dataclass(frozen=True)
class WhatIf:
    """The problem and the allocation of one --what-if; change: as typed."""

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
        """Return change, GPUs by type, change of the objective from the allocation `before`, and the allocation as plain data."""
        gpus = dict(zip(self.problem.accelerator_types, self.problem.capacities.tolist(), strict=True))
        now, then = before.objective_value, self.allocation.objective_value
        change = None if now is None or then is None else then - now
        return {
            "change": self.change,
            "gpus": gpus,
            "objective_change": change,
            "allocation": with_accounts(self.allocation.to_dict(), self.allocation),
        }


def what_if_text(label: str, now: gp.Allocation, what_ifs: Iterable[WhatIf]) -> str:
    """Return tables of objective and speed for each cluster, utilisation, shadow prices, and the jobs that gain and lose most."""
    then = {what_if.change: what_if.allocation for what_if in what_ifs}
    clusters = {"as it is": now} | then
    columns, by_type = ["cluster", "objective", "total speed", "least speed"], ["cluster", *now.accelerator_types]
    rows = [[name, *_outcome(allocation)] for name, allocation in clusters.items()]
    used = [[name, *(f"{part:.1%}" for part in allocation.utilization)] for name, allocation in clusters.items()]
    prices = [[name, *map(number, each.shadow_prices)] for name, each in clusters.items() if each.shadow_prices is not None]
    parts = [
        table_text(f"What if, under {label}", columns, rows) + wrapped([NOTE], indent=""),
        table_text("GPUs used", by_type, used),
        *([table_text("Objective per extra GPU", by_type, prices)] if prices else []),
        *(_jobs(name, now, allocation) for name, allocation in then.items()),
    ]
    return "\n".join(parts)


def _outcome(allocation: gp.Allocation) -> list[str]:
    served = [i for i, job_id in enumerate(allocation.job_ids) if job_id not in allocation.excluded]
    v = allocation.normalized_throughputs[served]
    return [number(allocation.objective_value), number(v.sum()), number(v.min() if len(v) else 0.0)]


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
    """Return the indices of positive changes, the largest first."""
    order: NDArray[np.int64] = (-change).argsort(kind="stable")
    return order[change[order] > TOLERANCE]
