"""gavel solve --what-if: the same jobs on another number of GPUs, beside the cluster as it is."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

import gavel_py as gp
from gavel_py.cli.output import number, table_text, width
from gavel_py.errors import decimal_hint, nearest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Change", "WhatIf", "changes_of", "what_if_text"]

FORM = "TYPE+N, TYPE-N or TYPE=N, several with ',' between them"
MOST_JOBS = 3
"""Jobs shown of those that gain, and of those that lose; the JSON has them all."""

NOTE = "v: a job's throughput over that of an equal share of the cluster as it is, in all rows"

NOTHING = 1e-6
"""A change of v by less than this is none."""


@dataclass(frozen=True)
class Change:
    """What one --what-if asks for. text: as typed; parts: (type, "+", "-" or "=", GPUs)."""

    text: str
    parts: tuple[tuple[str, str, int], ...]

    def applied(self, problem: gp.AllocationProblem) -> gp.AllocationProblem:
        """Return the problem with the other numbers of GPUs; normalisers, and who fits where, stay as they are."""
        gpus = dict(zip(problem.accelerator_types, problem.capacities.tolist(), strict=True))
        spelled = {name.casefold(): name for name in gpus}
        for asked, sign, count in self.parts:
            name = asked if asked in gpus else spelled.get(asked.casefold(), asked)
            if name not in gpus:
                raise self._fault(f"{name!r} is not an accelerator type of this cluster{nearest(name, gpus)}")
            there = gpus[name]
            gpus[name] = {"+": there + count, "-": there - count, "=": float(count)}[sign]
            if gpus[name] < 0:
                raise self._fault(f"takes {count} GPUs of {name} away, and there are {there:g}")
        return problem.with_capacities(list(gpus.values()))

    def _fault(self, text: str) -> click.UsageError:
        return click.UsageError(f"--what-if {self.text!r}: {text}")


def changes_of(texts: Sequence[str]) -> list[Change]:
    """Return what each --what-if says."""
    return [Change(text, tuple(_parts(text))) for text in texts]


def _parts(text: str) -> Iterator[tuple[str, str, int]]:
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


@dataclass(frozen=True)
class WhatIf:
    """The answer to one --what-if."""

    change: Change
    problem: gp.AllocationProblem
    allocation: gp.Allocation

    @classmethod
    def solved(cls, change: Change, problem: gp.AllocationProblem, solver: gp.Solver) -> WhatIf:
        """Solve the other cluster; a fault that only it has is told as such."""
        try:
            return cls(change, problem, solver.solve(problem))
        except gp.InputError as error:
            raise gp.InputError(f"with --what-if {change.text}:", *error.faults) from error

    def to_dict(self, before: gp.Allocation) -> dict[str, Any]:
        """Return it as plain data: the change, the GPUs of each type then, by how much the objective changes, the allocation."""
        gpus = dict(zip(self.problem.accelerator_types, self.problem.capacities.tolist(), strict=True))
        now, then = before.objective_value, self.allocation.objective_value
        change = None if now is None or then is None else then - now
        return {"change": self.change.text, "gpus": gpus, "objective_change": change, "allocation": self.allocation.to_dict()}


def what_if_text(label: str, now: gp.Allocation, what_ifs: Iterable[WhatIf]) -> str:
    """Return tables: objective and v for each cluster, use of the GPUs, what more of them are worth, who gains and loses."""
    then = {what_if.change.text: what_if.allocation for what_if in what_ifs}
    clusters = {"as it is": now} | then
    columns, by_type = ["cluster", "objective", "total v", "least v"], ["cluster", *now.accelerator_types]
    rows = [[name, *_outcome(allocation)] for name, allocation in clusters.items()]
    used = [[name, *(f"{part:.1%}" for part in allocation.utilization)] for name, allocation in clusters.items()]
    prices = [[name, *map(number, each.shadow_prices)] for name, each in clusters.items() if each.shadow_prices is not None]
    parts = [
        table_text(f"What if, under {label}", columns, rows) + textwrap.fill(NOTE, width()) + "\n",
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
    """The jobs that gain and lose most, and those that can run nowhere any more."""
    before, after = now.normalized_throughputs, then.normalized_throughputs
    change = after - before
    gain = _largest(change)
    lose = _largest(-change)
    shown = [*gain[:MOST_JOBS].tolist(), *lose[:MOST_JOBS][::-1].tolist()]
    title = f"{name}: {len(gain)} of {len(change)} jobs gain, {len(lose)} lose"
    if not shown:
        return f"{title}\n{_left_out(now, then)}"
    rows = [[now.job_ids[i], number(before[i]), number(after[i]), f"{change[i]:+.4g}"] for i in shown]
    return table_text(f"{title}; most of all", ["job", "v now", "v then", "change"], rows) + _left_out(now, then)


def _largest(change: NDArray[np.float64]) -> NDArray[np.int64]:
    """The jobs whose v grows, most of all first."""
    order: NDArray[np.int64] = (-change).argsort(kind="stable")
    return order[change[order] > NOTHING]


def _left_out(now: gp.Allocation, then: gp.Allocation) -> str:
    fresh = {job_id: reason for job_id, reason in then.excluded.items() if job_id not in now.excluded}
    return "Left out then:\n" + "".join(f"  {job_id}: {reason}\n" for job_id, reason in fresh.items()) if fresh else ""
