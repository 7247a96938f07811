"""The contract check of round mechanisms, on random demands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gavel_py as gp
from gavel_py.testing.trial import ContractReport, report_of

Mechanism = Callable[[gp.RoundDemand], NDArray[np.int64]]

RULES = {
    "returns": "returns a whole number for each job, a column of a type or -1",
    "valid": "selects jobs only where they may run, and no more gangs than there are GPUs",
    "promises": "without backfilling, selects only jobs that are promised time, have a claim, or run",
    "busy": "selects some job if one can run that is promised time and has a claim",
    "repeatable": "returns the same for the same demand",
    "unchanged": "leaves the demand as it is",
}
"""The checks, in the order in which they run on one demand. After a failed check, the later ones are skipped."""

ARRAYS = ("deficits", "fractions", "runnable", "throughputs", "num_gpus", "capacities", "running_on", "new", "promised")


def check_mechanism(mechanism: Mechanism, *, seed: int = 0, demands: int = 200) -> ContractReport:
    """Check that a round mechanism keeps the contract of mechanisms, on random demands of up to 12 jobs and 3 GPU types.

    >>> from gavel_py.testing import check_mechanism
    >>> def nothing_runs(demand):
    ...     return [-1] * len(demand.num_gpus)
    >>> try:
    ...     check_mechanism(nothing_runs)
    ... except AssertionError as error:
    ...     print(str(error).splitlines()[0])
    mechanism nothing_runs violates 1 of 6 rules of the contract

    Args:
        mechanism: A function of a `RoundDemand`, as for `RoundScheduler`.
        seed: Seed of the demands.
        demands: Number of demands.

    Returns:
        The result of each check, none of which failed.

    Raises:
        PolicyContractError: Checks failed; the message has the smallest demand found for each.
    """
    found = (
        (rule, fault and (*fault, _code(demand)))
        for demand in sorted(_demands(seed, demands), key=lambda each: each.fractions.size)
        for rule, fault in _faults(mechanism, demand)
    )
    return report_of("mechanism", getattr(mechanism, "__name__", repr(mechanism)), RULES, found)


def _demands(seed: int, count: int) -> Iterator[gp.RoundDemand]:
    random = np.random.default_rng(seed)
    for number in range(count):
        n, k = int(random.integers(0 if number % 10 == 0 else 1, 13)), int(random.integers(1, 4))
        capacities = random.choice([0, 1, 2, 4, 8, 16], k)
        num_gpus = random.choice([1, 1, 2, 4, 8], n)
        runnable = random.random((n, k)) < 0.8
        fractions = np.where(runnable, random.choice([0.0, 0.25, 0.5, 1.0], (n, k)), 0.0)
        fractions /= np.maximum(1.0, fractions.sum(axis=1, keepdims=True))
        running_on, left = np.full(n, -1), capacities.copy()
        for job in range(n):
            fits = np.flatnonzero(runnable[job] & (left >= num_gpus[job]))
            if len(fits) and random.random() < 0.5:
                running_on[job] = column = int(random.choice(fits))
                left[column] -= num_gpus[job]
        yield gp.RoundDemand(
            deficits=np.where(runnable, random.choice([-1.0, 0.0, 0.25, 2.0, 7.0], (n, k)), 0.0),
            fractions=fractions,
            runnable=runnable,
            throughputs=np.where(runnable, random.uniform(0.5, 8.0, (n, k)), 0.0),
            num_gpus=num_gpus,
            capacities=capacities,
            running_on=running_on,
            backfill=bool(random.random() < 0.5),
            received=random.choice([0.0, 3.0], (n, k)),
            restart_rounds=random.choice([0.0, 0.3, 2.0], n),
            new=(running_on < 0) & (random.random(n) < 0.5),
            promised=random.choice([0.0, 5.0, np.inf], n),
        )


def _faults(mechanism: Mechanism, demand: gp.RoundDemand) -> Iterator[tuple[str, tuple[str, str] | None]]:
    """Yield the name of each check that applies to a demand, and (expected, found) if it fails."""
    given, (n, k) = demand.copy(), demand.fractions.shape
    try:
        answer: Any = mechanism(given)
        selected = np.asarray(answer)
    except Exception as error:  # noqa: BLE001  a user's mechanism may raise anything
        yield "returns", (f"{n} numbers", f"{type(error).__name__}: {error}")
        return
    numbers = selected.dtype.kind == "i" or not n
    fine = selected.shape == (n,) and numbers and bool(((selected >= -1) & (selected < k)).all())
    yield "returns", None if fine else (f"{n} whole numbers from -1 to {k - 1}", repr(answer))
    if not fine:
        return
    rows = np.flatnonzero(selected >= 0)
    columns = selected[rows].astype(np.int64)
    used = np.bincount(columns, weights=demand.num_gpus[rows], minlength=k)
    wrong = rows[~demand.runnable[rows, columns]]
    yield "valid", None if not len(wrong) else ("each job where it may run", f"job {wrong[0]} on type {selected[wrong[0]]}")
    over = np.flatnonzero(used > demand.capacities)
    yield "valid", None if not len(over) else (f"at most {demand.capacities[over[0]]} GPUs", f"{used[over[0]]:g} of type {over[0]}")
    due = (demand.claims > 0) | (demand.shares > 0) | demand.running
    if not demand.backfill:
        extra = rows[~due[rows, columns]]
        yield "promises", None if not len(extra) else ("only such jobs", f"job {extra[0]}")
    if (demand.possible & (demand.claims > 0) & (demand.shares > 0)).any():
        yield "busy", None if len(rows) else ("a job", "none")
    yield (
        "repeatable",
        None if np.array_equal(mechanism(demand.copy()), selected) else (str(selected.tolist()), "another selection"),
    )
    changed = [name for name in ARRAYS if not np.array_equal(getattr(given, name), getattr(demand, name))]
    yield "unchanged", None if not changed else (f"{changed[0]} as given", "other numbers")


def _code(demand: gp.RoundDemand) -> str:
    """Return Python code that builds the demand and calls the mechanism."""
    lines = ["import numpy as np", "import gavel_py as gp", "demand = gp.RoundDemand("]
    for name in ARRAYS:
        values, kind = getattr(demand, name), getattr(demand, name).dtype
        text = repr(values.tolist()).replace("inf", "np.inf")
        lines.append(f"    {name}=np.array({text}, dtype={kind.name!r}).reshape({values.shape}),")
    return "\n".join([*lines, f"    backfill={demand.backfill},", ")", "mechanism(demand)"])
