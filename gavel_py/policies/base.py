"""The interface of policies: stored options, a view of the throughput matrix, and a decision for job classes."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from gavel_py.errors import Fault, InputError, check_known, refuse
from gavel_py.optimization.checking.certificates import Certificate, Prices
from gavel_py.optimization.checking.time_shares import Pairs
from gavel_py.optimization.formulation.linear_rows import Rules
from gavel_py.optimization.job_classes import JobClasses, separate_jobs
from gavel_py.problem.arrays import Floats

if TYPE_CHECKING:  # constraints and tenants are records of pydantic, which most solves do not need
    from gavel_py.optimization.solving.free_times import FreeTimes
    from gavel_py.optimization.solving.highs import LinearSolver
    from gavel_py.policies.constraints.base import Constraint
    from gavel_py.problem.problem import AllocationProblem
    from gavel_py.problem.tenants import TenantTree
else:
    Constraint = object  # the options of a policy are found by the types of its fields


class AllocationStatus(StrEnum):
    """How an allocation was computed. With an objective, every status but `TIME_LIMIT` and `KEPT` means proven optimal."""

    OPTIMAL = "optimal"
    """From a linear or concave program, solved to a proven optimum."""
    ORDERED = "ordered"
    """By serving jobs in an order; there is no objective."""
    FORMULA = "formula"
    """By a formula, as a baseline; there is no objective."""
    EMPTY = "empty"
    """No job can run."""
    DIRECT = "direct"
    """Rounds decide without an allocation, so no time is promised."""
    TIME_LIMIT = "time_limit"
    """The solve reached its time limit. The allocation is valid, and its gap bounds the distance from the optimum."""
    KEPT = "kept"
    """The solve failed. Jobs have the times of an earlier allocation, or isolated shares of what it leaves; nothing is proven."""


def option(default: Any, text: str, *, in_label: bool = True) -> Any:
    """Return a dataclass field for an option of a policy.

    Args:
        default: Value of the option if it is not given.
        text: One line of explanation, which `gavel policies show` prints.
        in_label: Whether the label of a policy has it; not one that follows from other inputs.
    """
    return dataclasses.field(default=default, metadata={"help": text, "in_label": in_label})


@dataclass(frozen=True)
class Decision:
    """The answer of a policy.

    Attributes:
        time_fractions: (G, K) time fractions of one job of each class.
        certificate: The proof of optimality, None without a program.
        shadow_prices: Gain in the objective per GPU of each accelerator type, None without a program.
        algorithm: Name of the algorithm if it was not the given solver.
        notes: Sentences for the user.
        pairs: Co-located pairs if the policy chose them, else None.
    """

    time_fractions: Floats
    certificate: Certificate | None = None
    shadow_prices: Floats | None = None
    algorithm: str | None = None
    notes: tuple[str, ...] = ()
    pairs: Pairs | None = None


@dataclass(frozen=True, kw_only=True)
class Policy(ABC):
    """A rule that turns an `AllocationProblem` into time fractions. It has options and no state between calls.

    Subclass one of the families `OrderedPolicy`, `SumPolicy` and `DemandPolicy`, or `FormulaPolicy` for a baseline. The name of a
    policy is the name of its class in lower case with underscores.

    Attributes:
        agnostic: Whether the policy treats all accelerator types as equally fast.
        reference: The type whose throughput counts for all types, for policies whose agnostic view needs one.
        constraints: Constraints that its allocations keep; any iterable of them is accepted.
        reduces: Whether equal jobs are aggregated to classes; False gives each job a separate row.
    """

    agnostic: bool = option(False, "treat all accelerator types as equally fast (the baseline of the Gavel paper)")
    reference: str | None = option(None, "with agnostic: the accelerator type whose speeds are used for all types")

    constraints: tuple[Constraint, ...] = ()

    family: ClassVar[str] = "own"
    agnostic_view: ClassVar[Literal["ones", "reference"]] = "ones"
    empty_objective: ClassVar[float | None] = 0.0
    is_random: ClassVar[bool] = False
    """Whether it draws random numbers: a sweep runs it with each seed, which becomes its option `seed` if it has one."""

    def __post_init__(self) -> None:
        direction = getattr(self, "direction", "max")
        if self.empty_objective is not None and direction not in ("max", "min"):
            text = f"must be 'max' or 'min' in class {type(self).__name__}, found {direction!r}"
            raise InputError(Fault(f"policy {self.name}", "direction", text))
        if self.constraints != ():
            from gavel_py.policies.constraints.compiling import given_constraints

            object.__setattr__(self, "constraints", given_constraints(self.constraints, f"policy {self.name}"))

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the job arrays of `AllocationProblem` that the policy reads, such as ("weights",).

        Throughputs, gang sizes and eligible types are always read. Jobs that agree in all of these form one class, which is one
        row of the program. Subclasses set `reads = (...)` as a class attribute. If steps are read, every job must have them.
        """
        return ()

    reduces: ClassVar[bool] = True

    @abstractmethod
    def decide(self, jobs: JobClasses, solver: LinearSolver) -> Decision:
        """Return the decision for G classes of jobs, each of which can run on some type.

        Args:
            jobs: The classes as this policy sees them (`view`).
            solver: Solves linear programs, from its last basis.
        """

    def guess(self, jobs: JobClasses) -> Floats | None:  # noqa: ARG002
        """Return (G, K) time fractions of a good allocation, computed without a solver; None if none is known.

        They may break rules. They are one of the candidates for `best_of` when a solve reaches its time limit.
        """
        return None

    def best_of(self, jobs: JobClasses, candidates: Sequence[Floats], prices: Sequence[Prices]) -> Decision:  # noqa: ARG002
        """Return the best of several allocations, with the tightest bound that follows from given prices by weak duality.

        The allocations and prices need not be optimal for these jobs: they may come from a solve that reached its time limit, or
        from slightly different throughputs.

        Args:
            jobs: The classes as this policy sees them.
            candidates: Valid allocations, each (G, K).
            prices: Prices of GPUs and limits, possibly none.

        Returns:
            A decision, without a certificate if the policy has no objective or cannot bound it.
        """
        return Decision(candidates[-1])

    @property
    def name(self) -> str:
        """The name of the policy, from its class: max_min_fairness."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def status(self) -> AllocationStatus:
        """The status of its allocations."""
        return AllocationStatus.ORDERED if self.empty_objective is None else AllocationStatus.OPTIMAL

    @property
    def changed_options(self) -> dict[str, Any]:
        """The options that differ from their defaults, as plain data for JSON."""
        return self._changed()

    @property
    def label(self) -> str:
        """The name with the options that differ from their defaults, in the syntax of the command line: fifo,backfill=true."""
        hidden = {field.name for field in dataclasses.fields(self) if not field.metadata.get("in_label", True)}
        options = (f"{name}={_text(value)}" for name, value in self._changed().items() if name not in hidden)
        return ",".join([self.name, *options])

    def _changed(self) -> dict[str, Any]:
        values = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        values.pop("constraints")
        return {name: value for name, (value, default) in values.items() if value != default}

    @property
    def needs_isolated_share(self) -> bool:
        """Whether it compares throughputs with `isolated_throughput`, which is not defined for elastic jobs."""
        return "isolated_seconds" in self.reads

    @property
    def adds_raw_throughputs(self) -> bool:
        """Whether the objective adds throughputs of different jobs as they are, so that they need the same unit."""
        return False

    @property
    def counts_gangs_whole(self) -> bool:
        """Whether the objective counts a gang as one unit, but each GPU of an elastic job as one, as `equal_share` does."""
        return False

    @property
    def equates_speeds(self) -> bool:
        """Whether nearly equal speeds of a job count as equal (`JobClasses.with_equal_speeds`), which its optimum may depend on."""
        return False

    @property
    def tenant_tree(self) -> TenantTree:
        """The tree of tenants among which the policy divides the cluster; without tenants for policies that know none."""
        from gavel_py.problem.tenants import TenantTree

        return TenantTree()

    @property
    def backfills(self) -> bool:
        """Whether a round may give GPUs that the allocation leaves idle to other jobs."""
        return True

    def check(self, problem: AllocationProblem) -> None:
        """Check that the problem has all data that this policy reads.

        Raises:
            InputError: A job that can run lacks such data.
        """
        self.view(separate_jobs(problem, self.name, self.reads))

    def check_rules(self, jobs: JobClasses, solver: LinearSolver) -> Floats | None:
        """Check that the constraints can hold together.

        Returns:
            (G, K) time fractions that keep all constraints, None if the constraints cannot conflict.

        Raises:
            InputError: The constraints conflict, or this policy does not support them.
        """
        if self.agnostic and jobs.rules.floors:
            text = "ignores throughputs with agnostic, so it cannot guarantee any: remove constraints on throughputs and deadlines"
            raise InputError(Fault(f"policy {self.name}", "constraints", text))
        if self.empty_objective is None:
            if jobs.rules.has_penalties:
                text = "has no objective to weigh against soft constraints and the cost of change; make them hard or remove them"
                raise InputError(Fault(f"policy {self.name}", "constraints", text))
        elif jobs.rules.can_conflict:
            from gavel_py.optimization.checking.infeasibility import check_rules

            return check_rules(jobs, solver)
        return None

    def keep(self, jobs: JobClasses, decision: Decision, tolerance: float) -> Rules:  # noqa: ARG002
        """Return rules under which another policy preserves the objective of this decision, for lexicographic stages.

        Args:
            jobs: The classes as this policy sees them.
            decision: An optimal decision of this policy.
            tolerance: The relative loss of the objective that the rules allow.

        Raises:
            InputError: The policy has no objective, or none that linear rules can preserve.
        """
        raise InputError(Fault(f"policy {self.name}", "", "has no objective that a second policy could preserve"))

    def final_stage(self, jobs: JobClasses, solver: LinearSolver) -> tuple[Policy, JobClasses]:  # noqa: ARG002
        """Return the policy that optimises last, and the jobs as it sees them, with rules that keep the objectives before it.

        A policy with one objective is its own final stage.

        Args:
            jobs: The classes as this policy sees them.
            solver: Solves the programs of earlier stages.
        """
        return self, jobs

    @property
    def is_agnostic(self) -> bool:
        """Whether the policy sees all types as equally fast, so that its program leaves open on which types jobs run."""
        return self.agnostic

    def _uses_prices(self, jobs: JobClasses, rows: int, solver: LinearSolver) -> bool:
        """Return whether to solve a program with this number of rows by prices.

        A solver with an algorithm other than the default is used after prices have failed.
        """
        return jobs.is_suited_to_prices(rows) and not self.is_agnostic and solver.algorithm is type(solver).algorithm

    def leaves_free(self, jobs: JobClasses, decision: Decision) -> FreeTimes | None:  # noqa: ARG002
        """Return the ranges of total times of jobs with the same objective as a decision; None if unknown.

        It is used for agnostic policies, whose time is then split evenly over types.
        """
        return None

    def view(self, jobs: JobClasses) -> JobClasses:
        """Return the jobs as this policy sees them.

        agnostic: T_ij := 1 (view "ones") or T_ij := T_i,reference (view "reference"). Jobs still get no time where they cannot
        run. Normalisers are computed from the whole matrix, before any masking. Otherwise, `equates_speeds` says what changes.

        Raises:
            InputError: An attribute of jobs or types that the policy requires is missing or out of range.
        """
        if not self.agnostic:
            return jobs.with_equal_speeds() if self.equates_speeds else jobs
        speed = np.ones(len(jobs)) if self.agnostic_view == "ones" else self._reference_speed(jobs)
        return jobs.with_throughputs(np.repeat(speed[:, None], len(jobs.capacities), axis=1))

    def _reference_speed(self, jobs: JobClasses) -> Floats:
        types, where, reference = jobs.accelerator_types, f"policy {self.name}", self.reference or ""
        refuse(where, (self.reference is None, "reference", f"is required with agnostic; one of {', '.join(types)}"))
        check_known(where, "reference", [reference], types, "is not an accelerator type of this problem")
        speed: Floats = jobs.throughputs[:, types.index(reference)]
        text = f"cannot run on the reference accelerator {self.reference!r}, so its speed there cannot be used for the other types"
        InputError.raise_any([Fault(f"job {job!r}", "", text) for job in jobs.names(speed <= 0)])
        return speed


def _text(value: object) -> str:
    """Return the value of an option in the syntax of the command line."""
    if isinstance(value, tuple):
        return ":".join(map(_text, value)) or "none"
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
