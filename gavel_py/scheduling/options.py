"""The options of a round scheduler, and what its policy has to do with time: `TimedOrder`, `why_rounds`.

Times of jobs pass although nothing happens, and change the order of some policies (`OrderedPolicy.changes_at`). `TimedOrder` finds
whether they have since a decision, so that a round asks the policy again, and when they will next, for decisions at events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self, Unpack

import numpy as np
from pydantic import Field, SkipValidation

from gavel_py.errors import refuse
from gavel_py.io.records import Flag, Multiple, Options, SecondsAboveZero, SecondsFromZero
from gavel_py.problem.arrays import Floats
from gavel_py.scheduling.mechanism.demand import Mechanism

if TYPE_CHECKING:
    from gavel_py.policies import Policy
    from gavel_py.scheduling.keywords import OptionChanges


COUNTED = frozenset({"attained_gpu_seconds", "waiting_seconds", "isolated_seconds"})
"""Fields of the policy input that a scheduler measures while jobs run and wait."""


class JobTimes(NamedTuple):
    """Times of jobs at one moment, named like the fields of the policy input."""

    attained_gpu_seconds: Floats
    waiting_seconds: Floats


def option(default: Any, help_text: str, *, commands: Iterable[str] = ("rounds", "simulate", "slurm"), negative: str = "") -> Any:
    """Declare an option by its default and its help; its type is its rule. The help of a command is the first sentence.

    commands: those with an option of the same name, by default all that play rounds; "problem" are those on a problem, "slurm"
    those of a driver. negative: the name of the flag that turns it off, by default with "no-" before the name.
    """
    return Field(default, description=help_text, json_schema_extra={"commands": list(commands), "negative": negative})


class AllocationOptions(Options):
    """What allocations take into account: arguments of `AllocationProblem.from_jobs`, as a record."""

    label: ClassVar[str] = "allocation"
    of_sharing: ClassVar[Mapping[str, str]] = {"min_gain": "selects pairs of jobs that may share GPUs"}
    """{option that has no effect without `sharing`: what it is for}."""

    whole_gangs: Flag = option(
        True, "Allocate only what whole gangs on the nodes can use; no: as published.", commands=("problem", "solve", "rounds")
    )
    by_workflow: Flag = option(
        True,
        "Whether a workflow counts as one for weights, shortest first and deadlines, or each of its jobs by itself.",
        commands=("problem", "solve", "rounds", "simulate"),
        negative="by-job",
    )
    sharing: Flag = option(
        False,
        "Allow pairs of jobs to share GPUs, where the profile has their speeds.",
        commands=("solve", "rounds", "simulate"),
    )
    min_gain: Multiple = option(
        1.0,
        "With sharing: only pairs that do more than this multiple of the work of one of them alone.",
        commands=("solve", "rounds", "simulate"),
    )


class SchedulerOptions(AllocationOptions):
    """The options of a `RoundScheduler`: how it plans rounds. Frozen, and checked when it is made.

    Every field is also a keyword argument of `RoundScheduler` and `simulate`, and an attribute of the scheduler. Decisions weigh
    the cost of restarts as hysteresis; docs/architecture.md lists where.

    Raises:
        InputError: A value is out of range, or an option is not known.

    >>> import gavel_py as gp
    >>> gp.SchedulerOptions(min_run_seconds=600).changed(sharing=True).min_run_seconds
    600.0
    """

    label: ClassVar[str] = "round scheduler"

    round_seconds: SecondsAboveZero = option(
        360.0, "Length of a round.", commands=("problem", "solve", "rounds", "simulate", "slurm")
    )
    restart_seconds: SecondsFromZero = option(
        0.0,
        "Time that a job loses when it starts. It is the cost of a restart, for jobs without `Job.restart_seconds`.",
        commands=("simulate", "slurm"),
    )
    min_run_seconds: SecondsFromZero = option(
        0.0,
        "Time that a job runs before it may be preempted. Gangs that lose their GPUs, or may no longer run there, are exceptions.",
        commands=("simulate", "slurm"),
    )
    solve_seconds: SecondsFromZero = option(
        0.0,
        "Minimum time between two allocations while only jobs change. Jobs that arrive in between run on GPUs left over, as in "
        "Gavel's published simulator (OSDI 2020).",
        commands=("simulate", "slurm"),
    )
    time_limit_seconds: SecondsAboveZero | None = option(
        None,
        "Time limit of a solve. After a solve that reaches it, the current allocation is kept and the next round tries again "
        "(`Round.notes`).",
        commands=(),
    )
    retry_seconds: SecondsFromZero = option(
        0.0,
        "Time before a failed job is tried again, doubled each time. This back-off is an hour at most, 0 for none. A job avoids "
        "the nodes on which it failed, if others can hold it.",
        commands=("simulate",),
    )
    mechanism: Annotated[str | Mechanism, SkipValidation] = option(
        "deficit",
        "How jobs are chosen for a round: deficit, priority (as published), direct, or package.module:name. It may also be a "
        "function of a `RoundDemand`, or the name of a mechanism of an installed package.",
        commands=("rounds", "simulate"),
    )
    by_events: Flag = option(
        False,
        "Decide at events and at `RoundScheduler.next_change_seconds` instead of in rounds. It is for policies that give each job "
        "either all of the time or none. Times that they read count from when they are used.",
        commands=(),
    )

    def changed(self, **changes: Unpack[OptionChanges]) -> Self:
        """Return the options with other values for some fields, checked; `model_fields_set` has those set here or there."""
        return self._with(changes)

    def check_policy(self, policy: Policy) -> None:
        """Raise `InputError` for options that exclude each other, or that the policy does not support."""
        is_direct, why = self.mechanism == "direct", why_rounds(policy) if self.by_events else ""
        in_rounds = "cannot be used with the mechanism direct, which chooses whole gangs in rounds"
        at_once = f"must be 0 in event-driven mode, where every event leads to a decision, found {self.solve_seconds:g}"
        unlimited = f"limit allocations, which the mechanism direct does not follow; remove them from {policy.name}"
        refuse(
            "round scheduler",
            (is_direct and self.sharing, "sharing", in_rounds),
            (is_direct and self.by_events, "by_events", in_rounds),
            (self.by_events and self.solve_seconds, "solve_seconds", at_once),
            (is_direct and policy.constraints, "constraints", unlimited),
            (why, "by_events", f"cannot be used with {policy.name}, {why}"),
        )


class OptionAttributes:
    """Base class of an object with `options`, which are attributes of it, too: each is read there, and set by changing them.

    Type checkers find these attributes in the stub `keywords.pyi`, which follows from the record.
    """


def _attribute(name: str) -> property:
    def read(self: Any) -> Any:
        return getattr(self.options, name)

    def write(self: Any, value: object) -> None:
        self.options = self.options.changed(**{name: value})

    return property(read, write, doc=SchedulerOptions.model_fields[name].description)


for _name in SchedulerOptions.model_fields:
    setattr(OptionAttributes, _name, _attribute(_name))

DEFAULTS = SchedulerOptions()


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

    def has_changed(self, then: Mapping[str, Floats], now: JobTimes) -> bool:
        """Return whether the order of the jobs of a decision may be another one now; then, now: their times by field."""
        if self.unlisted:
            return True
        passed = (
            np.searchsorted(values, getattr(now, name), side="right") != np.searchsorted(values, then[name], side="right")
            for name, values in self.values.items()
        )
        return any(bool(each.any()) for each in passed)

    def next_change(self, field: str, now: Floats, base: Floats | float, start: Floats | float, rate: Floats | float) -> float:
        """Return the earliest time t at which a field base + (t - start) · rate reaches its next value; infinite if none has one.

        The result is not rounded down: at this time, the sum as computed is at least the value.

        Args:
            field: Its name.
            now: (N,) the field of each job now.
            base: (N,) or one number.
            start: (N,) or one number, in seconds.
            rate: (N,) or one number, per second.
        """
        following = np.append(self.values.get(field, ()), np.inf)
        following = following[np.searchsorted(following[:-1], now, side="right")]
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
