"""Constraints on the command line: reading them from files, and telling what became of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import gavel_py as gp
from gavel_py.cli.output import number, table_text
from gavel_py.errors import together

__all__ = ["constrained", "constraints_text"]

MOST_SHOWN = 5
"""Jobs listed of those that miss a constraint; the JSON has them all."""


def constrained(policies: list[gp.Policy], files: Iterable[Path]) -> list[gp.Policy]:
    """Return the policies with the constraints of all these files beside their own; faults of all files come together."""
    with together() as attempt:
        read = [attempt(partial(gp.read_constraints, file)) for file in files]
    constraints = [constraint for found in read for constraint in found]
    return [dataclasses.replace(each, constraints=(*each.constraints, *constraints)) for each in policies] if read else policies


def constraints_text(allocations: Iterable[tuple[str, gp.Allocation]]) -> str:
    """Return a table of what became of the constraints, with the policy before each where there are several; nothing for none."""
    told = [(label, each) for label, allocation in allocations for each in allocation.constraints]
    if not told:
        return ""
    columns = ["constraint", "kept", "missed by", "loses", "worth of a unit"]
    rows = [[each.constraint, *_cells(each)] for _, each in told]
    notes = [f"{each.constraint}: {_jobs(each)}\n" for _, each in told if each.jobs]
    if len({label for label, _ in told}) > 1:
        columns.insert(0, "policy")
        rows = [[label, *row] for (label, _), row in zip(told, rows, strict=True)]
        notes = [f"{label}: {each.constraint}: {_jobs(each)}\n" for label, each in told if each.jobs]
    return table_text("Constraints", columns, rows, text_columns=len(columns) - 3) + "".join(notes)


def _cells(outcome: gp.ConstraintOutcome) -> list[str]:
    """Whether it is kept, by how much it is missed, what the objective loses by that, and the price of a limit."""
    lost = None if outcome.kept else (outcome.penalty or 0.0) * outcome.missed_by
    missed = None if outcome.kept else outcome.missed_by
    return ["yes" if outcome.kept else "no", number(missed), number(lost), number(outcome.price)]


def _jobs(outcome: gp.ConstraintOutcome) -> str:
    """The jobs that miss it most."""
    worst = sorted(outcome.jobs.items(), key=lambda item: -item[1])
    more = f" and {len(worst) - MOST_SHOWN} more" if len(worst) > MOST_SHOWN else ""
    return "missed by " + ", ".join(f"{job} ({part:.1%})" for job, part in worst[:MOST_SHOWN]) + more
