"""The rows that bind one job: those with a price in the proof, and those of its own that just hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gavel_py.allocation.allocation import Allocation
from gavel_py.allocation.explain.duals import JUST, Duals
from gavel_py.allocation.explain.own_time import could_use, is_all, time_binding
from gavel_py.allocation.explain.records import Binding
from gavel_py.allocation.explain.types import Types
from gavel_py.optimization.certificates import Evidence
from gavel_py.optimization.shadow_prices import limit_prices

__all__ = ["bindings_of", "scarce_limits", "scarce_types"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def bindings_of(duals: Duals, types: Types, allocation: Allocation, evidence: Evidence, i: int, times: Floats) -> Iterator[Binding]:
    """Yield what binds job i of an allocation with a proof; times: (K',) its time in all columns."""
    times = times / duals.kept
    shadow_prices = allocation.shadow_prices if duals.told else None
    worths = limit_prices(evidence.certificate, evidence.rules) if duals.told else None
    yield from _level(duals)
    yield from _floors(duals, float(allocation.throughputs[i]), i)
    yield from (_limit(duals, r, worths) for r in scarce_limits(duals, types))
    yield from (_type(types, j, shadow_prices) for j in np.flatnonzero(scarce_types(duals, types, times)).tolist())
    yield from _partners(duals, types, times)
    yield from _time(duals, types, times)
    yield from _discount(duals)


def scarce_types(duals: Duals, types: Types, times: Floats) -> Mask:
    """Return (K,) the types that have a price and could make the job faster."""
    useful = could_use(duals.jobs.throughputs[duals.at], duals.jobs.runnable[duals.at], times)
    return types.any_of(useful) & types.scarce(duals.prices)


def scarce_limits(duals: Duals, types: Types) -> list[int]:
    """Return the limits that have a price and in which the job counts, by their place in `Rules.hard_rows`."""
    return [r for r in np.flatnonzero(duals.prices.limits).tolist() if types.is_limit(r) and _costs(duals, r).any()]


def _costs(duals: Duals, r: int) -> Floats:
    """(K,) what the job's time counts in a limit where it can run."""
    jobs, one = duals.jobs, slice(duals.at, duals.at + 1)
    return np.where(jobs.runnable[duals.at], jobs.rules.hard_rows[r].costs(jobs.rows[one], jobs.num_gpus[one])[0], 0.0)


def _level(duals: Duals) -> Iterator[Binding]:
    if duals.level is not None:
        which = f", {duals.stage}" if duals.stage else ""
        text = f"it has just what the level asks for ({duals.level:.4g}{which}), and no allocation reaches a better one"
        yield Binding("level", duals.stage or "level", None, text)


def _floors(duals: Duals, throughput: float, i: int) -> Iterator[Binding]:
    """The throughputs that rules promise the job, if it has no more."""
    for floor in duals.jobs.rules.floors:
        least = float(floor.throughputs[i])
        if least > 0 and throughput <= least * (1 + JUST):
            name, missed = floor.name_of(i), 1 - throughput / least
            just = "it has just that much" if missed <= JUST else f"soft, and missed by {missed:.2%}"
            yield Binding("floor", name, None, f"{name}: {just}")


def _limit(duals: Duals, r: int, worths: Floats | None) -> Binding:
    name = duals.jobs.rules.hard_rows[r].name
    price = None if worths is None or r >= len(worths) else float(worths[r])
    text = f"{name} is just met, at the cost of others" if _costs(duals, r).min() < 0 else f"{name} is used up"
    worth = "" if price is None else f"; each unit less strict is worth up to {price:.4g} to the objective"
    return Binding("limit", name, price, text + worth)


def _type(types: Types, j: int, shadow_prices: Floats | None) -> Binding:
    name, gpus = types.names[j], float(types.gpus[j])
    price = None if shadow_prices is None else float(shadow_prices[j])
    text = f"{name} is scarce: all of it is needed ({gpus:g} {'GPU' if gpus == 1 else 'GPUs'})"
    if price is None:
        return Binding("gpus", name, None, text)
    gain = f"one more is worth up to {price:.4g} to the objective" if price > 0 else "one more alone gains nothing"
    return Binding("gpus", name, price, f"{text}; {gain}")


def _partners(duals: Duals, types: Types, times: Floats) -> Iterator[Binding]:
    """That a job that waits would share, but for its partners: rows with a price in which its own time counts."""
    rows = [] if is_all(times) else [r for r in types.partners if duals.prices.limits[r] > 0 and _costs(duals, r).max() > 0]
    if rows:
        text = "it would share GPUs for longer, and the time of those who could be its partners is worth more elsewhere"
        yield Binding("partners", "partners", None, text)


def _time(duals: Duals, types: Types, times: Floats) -> Iterator[Binding]:
    """That it runs all of its time: from its slack, since a price would not be unique where its types are full too."""
    time = time_binding(duals.jobs, duals.at, times, [types.names[j] for j in types.source.tolist()])
    if time is not None:
        yield time


def _discount(duals: Duals) -> Iterator[Binding]:
    if duals.kept < 1:
        text = f"it keeps {duals.kept:.1%} of its time, so that nobody gains by stating wrong throughputs"
        yield Binding("discount", "discount", None, text)
