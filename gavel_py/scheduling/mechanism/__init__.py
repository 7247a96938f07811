"""Mechanisms: rules that select the jobs of a round and their accelerator types, as pure functions of a `RoundDemand`.

`demand` defines the demand, scores and selections; `rules` has the default rule, improved by `local_search`, and Gavel's published
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.scheduling.mechanism.rules import choose_by_priority, choose_jobs, published_order

__all__ = ["MechanismName", "resolve_mechanism"]

MechanismName = Literal["deficit", "priority"]


def resolve_mechanism(mechanism: str | Mechanism, accelerator_types: Sequence[str]) -> Mechanism:
    """Return the mechanism of a name, `choose_jobs` for `deficit` and `choose_by_priority` for `priority`, or a function unchanged.

    Args:
        mechanism: A name or a function of a `RoundDemand`.
        accelerator_types: Columns of the demands.

    Raises:
        UnknownNameError: There is no mechanism of this name.
        InputError: It is neither a name nor a function.
    """
    if mechanism == "deficit":
        return choose_jobs
    if mechanism == "priority":
        return partial(choose_by_priority, type_order=published_order(accelerator_types))
    if isinstance(mechanism, str):
        hint = nearest(mechanism, get_args(MechanismName))
        raise UnknownNameError(Fault("round scheduler", "mechanism", f"there is no mechanism {mechanism!r}{hint}"))
    if not callable(mechanism):
        problem = f"must be a name or a function of a RoundDemand, found {mechanism!r}"
        raise InputError(Fault("round scheduler", "mechanism", problem))
    return mechanism
