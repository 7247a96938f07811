"""Mechanisms: rules that select the jobs of a round and their accelerator types, as pure functions of a `RoundDemand`.

`demand` defines demands, selections and scores; scores include the cost of a restart (`hysteresis_of`). `rules` has the default
rule, improved by `local_search`, and Gavel's published rule; `elastic` also chooses numbers of GPUs. Installed packages offer
mechanisms as entry points of the group `gavel_py.mechanisms`; a user's own mechanism is named package.module:name.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.io.plugins import Plugins
from gavel_py.scheduling.mechanism.demand import GangSelection, Mechanism, RoundDemand, SizingMechanism, is_sizing
from gavel_py.scheduling.mechanism.elastic import choose_by_goodput, choose_promised
from gavel_py.scheduling.mechanism.rules import choose_by_priority, choose_jobs, published_order

__all__ = ["NAMES", "SIZING", "chooses_gpus", "resolve_mechanism"]

NAMES = ("deficit", "priority", "direct")

SIZING = ("deficit", "direct")
"""The built-in mechanisms that choose the numbers of GPUs of elastic jobs."""

PLUGINS = Plugins("gavel_py.mechanisms", "mechanism", "mechanisms", "function", NAMES, inspect.isfunction)


def resolve_mechanism(mechanism: str | Mechanism, accelerator_types: Sequence[str]) -> SizingMechanism:
    """Return the mechanism of a name, or a function unchanged.

    `choose_by_deficit` is called `deficit`, `choose_by_priority` `priority`, and `choose_by_goodput` `direct`.

    Args:
        mechanism: The name of a built-in mechanism or of one from an installed package; package.module:name of a function; or a
            function of a `RoundDemand`.
        accelerator_types: Columns of the demands.

    Raises:
        UnknownNameError: There is no mechanism of this name.
        InputError: It is neither a name nor a function.
    """
    if mechanism == "deficit":
        return choose_by_deficit
    if mechanism == "direct":
        return choose_by_goodput
    if mechanism == "priority":
        return partial(choose_by_priority, type_order=published_order(accelerator_types))
    if isinstance(mechanism, str):
        return _named(mechanism)
    if not callable(mechanism):
        problem = f"must be a name or a function of a RoundDemand, found {mechanism!r}"
        raise InputError(Fault("round scheduler", "mechanism", problem))
    return mechanism


def chooses_gpus(mechanism: str | Mechanism, accelerator_types: Sequence[str]) -> bool:
    """Return whether a mechanism chooses the numbers of GPUs of elastic jobs: it is in `SIZING`, or a function marked as such."""
    return mechanism in SIZING or is_sizing(resolve_mechanism(mechanism, accelerator_types))


def choose_by_deficit(demand: RoundDemand) -> NDArray[np.int64] | GangSelection:
    """Return the jobs that `choose_jobs` selects, or `choose_promised` where it also chooses numbers of GPUs."""
    return choose_jobs(demand) if demand.sizes is None else choose_promised(demand)


@cache
def _named(name: str) -> Mechanism:
    """Return a mechanism of a user or of a package; cached, since every round needs it."""
    if ":" not in name and name not in (known := [*NAMES, *PLUGINS.offers()]):
        hint = f"; to use your own, write {PLUGINS.form}" if "." in name else nearest(name, known)
        raise UnknownNameError(Fault("round scheduler", "mechanism", f"there is no mechanism {name!r}{hint}"))
    found, where = PLUGINS.loaded(name)
    if not callable(found) or inspect.isclass(found):
        raise InputError(Fault(where, "", f"must be a function of a RoundDemand, found {found!r}"))
    mechanism: Mechanism = found
    return mechanism
