"""The rules for which jobs run in a round, by name.

demand: what a rule chooses from, and what a place is worth; deficit: by what is owed, greedily, improved by local_search; priority:
the published rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, get_args

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.scheduling.mechanism.deficit import choose_jobs
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.scheduling.mechanism.priority import choose_by_priority, published_order

__all__ = ["MechanismName", "resolve_mechanism"]

MechanismName = Literal["deficit", "priority"]


def resolve_mechanism(mechanism: str | Mechanism, accelerator_types: Sequence[str]) -> Mechanism:
    """Return the mechanism of a name, or a function as it is; accelerator_types: the columns of its demands.

    `deficit`: `choose_jobs`; `priority`: the published rule, `choose_by_priority`.
    Raises `UnknownNameError` for another name, `InputError` for what is no function.
    """
    if isinstance(mechanism, str):
        by_name: dict[str, Callable[[], Mechanism]] = {
            "deficit": lambda: choose_jobs,
            "priority": lambda: partial(choose_by_priority, type_order=published_order(accelerator_types)),
        }
        if mechanism not in by_name:
            hint = nearest(mechanism, get_args(MechanismName))
            raise UnknownNameError(Fault("round scheduler", "mechanism", f"there is no mechanism {mechanism!r}{hint}"))
        return by_name[mechanism]()
    if not callable(mechanism):
        problem = f"must be a name or a function of a RoundDemand, found {mechanism!r}"
        raise InputError(Fault("round scheduler", "mechanism", problem))
    return mechanism
