"""The options of a round scheduler, and what its policy has to do with time: `TimedOrder`, `why_rounds`.

Times of jobs pass although nothing happens, and change the order of some policies (`OrderedPolicy.changes_at`). `TimedOrder` finds
whether they have since a decision, so that a round asks the policy again, and when they will next, for decisions at events.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gavel_py.errors import Fault, InputError
from gavel_py.optimization.solving.highs import checked_limit
from gavel_py.problem.arrays import Floats, is_finite
from gavel_py.scheduling.mechanism.demand import Mechanism

if TYPE_CHECKING:
    from gavel_py.policies import Policy
    from gavel_py.scheduling.current_allocation import PolicyInput
    from gavel_py.scheduling.state import SchedulerState


COUNTED = frozenset({"attained_gpu_seconds", "waiting_seconds", "isolated_seconds"})
"""Fields of the policy input that a scheduler measures while jobs run and wait."""


class JobTimes(NamedTuple):
    """Times of jobs at one moment, named like the fields of the policy input."""

    attained_gpu_seconds: Floats
    waiting_seconds: Floats


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions:
    """The arguments of `RoundScheduler` that determine how it plans rounds. Raises `InputError` for a number out of range.

    Decisions weigh the cost of restarts as hysteresis, `hysteresis_of` in `mechanism/demand.py`; where `direct` and
    placement preferences weigh it in other ways, and what charges it, is listed in docs/architecture.md, "Where to look".
    """

    mechanism: str | Mechanism = "deficit"
    round_seconds: float = 360.0
    restart_seconds: float = 0.0
    min_run_seconds: float = 0.0
    whole_gangs: bool = True
    sharing: bool = False
    min_gain: float = 1.0
    by_events: bool = False
    solve_seconds: float = 0.0
    time_limit_seconds: float | None = None
    retry_seconds: float = 0.0
    by_workflow: bool = True

    def __post_init__(self) -> None:
        if not (is_finite(self.round_seconds) and self.round_seconds > 0):
            raise InputError(fault("round_seconds", f"must be a finite number greater than 0, found {self.round_seconds!r}"))
        lower_bounds = {"restart_seconds": 0, "min_run_seconds": 0, "solve_seconds": 0, "retry_seconds": 0, "min_gain": 1}
        for name, bound in lower_bounds.items():
            value = getattr(self, name)
            if not (is_finite(value) and value >= bound):
                raise InputError(fault(name, f"must be a finite number of at least {bound}, found {value!r}"))
        if self.mechanism == "direct" and (self.sharing or self.by_events):
            name = "sharing" if self.sharing else "by_events"
            raise InputError(fault(name, "cannot be used with the mechanism direct, which chooses whole gangs in rounds"))
        checked: dict[str, object] = {"time_limit_seconds": checked_limit("round scheduler", self.time_limit_seconds)}
        checked |= {name: float(getattr(self, name)) for name in ("round_seconds", *lower_bounds)}
        checked |= {name: bool(getattr(self, name)) for name in ("whole_gangs", "sharing", "by_events", "by_workflow")}
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def numbers(self) -> dict[str, Any]:
        """{name: value} of all options but the mechanism, which may be a function."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "mechanism"}

    def check_policy(self, policy: Policy) -> None:
        """Raise `InputError` for a policy or a `solve_seconds` that the event-driven mode or the mechanism does not support."""
        if self.by_events and self.solve_seconds:
            text = f"must be 0 in event-driven mode, where every event leads to a decision, found {self.solve_seconds:g}"
            raise InputError(fault("solve_seconds", text))
        if self.mechanism == "direct" and policy.constraints:
            text = f"limit allocations, which the mechanism direct does not follow; remove them from {policy.name}"
            raise InputError(fault("constraints", text))
        why = why_rounds(policy) if self.by_events else ""
        if why:
            raise InputError(fault("by_events", f"cannot be used with {policy.name}, {why}"))


@dataclass(frozen=True)
class TimedOrder:
    """The order of a policy as far as it depends on the times of jobs.

    Attributes:
        values: {field: (V,) ascending values}: the order changes when the field of a job reaches one of them, or falls below it.
        unlisted: The fields whose values are not known, so that the order may change at any time; sorted.
    """

    values: Mapping[str, Floats]
    unlisted: tuple[str, ...]

    @classmethod
    def of(cls, policy: Policy) -> TimedOrder | None:
        """Return how the order of a policy depends on time; None if it does not, or if the policy serves jobs in no order."""
        counted = COUNTED.intersection(policy.reads)
        if policy.family != "ordered" or not counted:
            return None
        listed = getattr(policy, "changes_at", {}) if _declares_changes(policy) else {}
        values = {name: np.array(listed[name], dtype=float) for name in JobTimes._fields if name in counted and name in listed}
        return cls(values, tuple(sorted(counted - values.keys())))

    def has_changed(self, then: PolicyInput, now: JobTimes) -> bool:
        """Return whether the order of the jobs of a decision may be another one now; now: their times."""
        if self.unlisted:
            return True
        passed = (
            np.searchsorted(values, getattr(now, name), side="right") != np.searchsorted(values, getattr(then, name), side="right")
            for name, values in self.values.items()
        )
        return any(bool(each.any()) for each in passed)

    def next_change(self, state: SchedulerState, *, by_events: bool) -> float:
        """Return the earliest time at which the order changes, infinite if it does not, as long as nothing happens.

        From the latest round on, gangs with GPUs then continue to run, and all other jobs continue to wait.
        """
        table, last, found = state.table, state.last, math.inf
        decided = -math.inf if last is None else last.start_seconds
        gpus = np.zeros(table.capacity)
        gpus[state.gangs.rows] = state.gangs.of(state.gangs.rows).shares
        runs = gpus > 0
        if "attained_gpu_seconds" in self.values and last is not None:
            attained, start = table.columns["attained_gpu_seconds"][runs], decided if by_events else last.end_seconds
            found = _first(self.values["attained_gpu_seconds"], attained, attained, start, gpus[runs])
        if "waiting_seconds" in self.values:
            since = table.columns["waiting_since_seconds"][table.is_present & ~runs]
            found = min(found, _first(self.values["waiting_seconds"], decided - since, 0.0, since, 1.0))
        return found


def _first(values: Floats, now: Floats, base: Floats | float, start: Floats | float, rate: Floats | float) -> float:
    """Return the earliest time t at which a field base + (t - start) · rate reaches its next value; infinite if none has one.

    The result is not rounded down: at this time, the sum as computed is at least the value.

    Args:
        values: (V,) ascending.
        now: (N,) the field of each job now.
        base: (N,) or one number.
        start: (N,) or one number, in seconds.
        rate: (N,) or one number, per second.
    """
    following = np.append(values, np.inf)[np.searchsorted(values, now, side="right")]
    times = start + (following - base) / rate
    while (early := np.isfinite(times) & (base + (times - start) * rate < following)).any():
        times = np.where(early, np.nextafter(times, np.inf), times)
    return float(times.min(initial=np.inf))


def _declares_changes(policy: Policy) -> bool:
    """Return whether `changes_at` is about the policy's own order: a subclass that overrides `sort_key` does not inherit it."""
    declaring = (vars(each) for each in type(policy).__mro__ if {"changes_at", "sort_key"} & vars(each).keys())
    return "changes_at" in next(declaring, ())


def why_rounds(policy: Policy) -> str:
    """Return why a policy needs rounds, as a clause that follows its name; empty if it does not need them."""
    if policy.family != "ordered" or getattr(policy, "fractional", False):
        return "which gives jobs fractions of their time; these need rounds"
    order = TimedOrder.of(policy)
    unlisted = () if order is None else order.unlisted
    return f"whose order may change at any time ({', '.join(unlisted)})" if unlisted else ""


def fault(field: str, problem: str) -> Fault:
    """Return a fault in an argument of a round scheduler."""
    return Fault("round scheduler", field, problem)
