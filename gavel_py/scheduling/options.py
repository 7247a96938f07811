"""The options of a round scheduler: validated values, and the policies that the event-driven mode supports."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from gavel_py.errors import Fault, InputError
from gavel_py.optimization.solving.highs import checked_limit
from gavel_py.problem.arrays import is_finite
from gavel_py.scheduling.mechanism.demand import Mechanism

if TYPE_CHECKING:
    from gavel_py.policies import Policy

COUNTED_IN_ROUNDS = frozenset({"attained_gpu_seconds", "waiting_seconds", "isolated_seconds"})
"""Fields of the policy input that a scheduler measures in rounds of a fixed length."""


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


def why_rounds(policy: Policy) -> str:
    """Return why a policy needs rounds, as a clause that follows its name; empty if it does not need them."""
    if policy.family != "ordered" or getattr(policy, "fractional", False):
        return "which gives jobs fractions of their time; these need rounds"
    counted = sorted(COUNTED_IN_ROUNDS.intersection(policy.reads))
    return f"which reads values that are counted in rounds ({', '.join(counted)})" if counted else ""


def fault(field: str, problem: str) -> Fault:
    """Return a fault in an argument of a round scheduler."""
    return Fault("round scheduler", field, problem)
