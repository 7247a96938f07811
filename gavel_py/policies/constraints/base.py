"""The interface of constraints: validated records that define the places, rows and throughputs required in a problem."""

from __future__ import annotations

import re
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from pydantic_core import ErrorDetails

from gavel_py.errors import Fault, GavelWarning, nearest, refuse, unknown_names
from gavel_py.io.records import Positive, Record
from gavel_py.optimization.formulation.linear_rows import Need, Place, Row
from gavel_py.problem.accelerators import same_accelerator

if TYPE_CHECKING:
    from gavel_py.problem.arrays import Indices, Mask
    from gavel_py.problem.problem import AllocationProblem


class Scope:
    """The problem to which constraints apply, with lookup of jobs, tenants and types by name.

    original: the problem before constraints ruled out types; warns: whether to warn of what constraints do not apply to.
    """

    def __init__(self, problem: AllocationProblem, *, warns: bool = True) -> None:
        self.problem = self.original = problem
        self._warns, self._warned = warns, set[str]()

    @property
    def num_jobs(self) -> int:
        """N."""
        return self.problem.num_jobs

    @cached_property
    def unfinished(self) -> Mask:
        """(N,) the jobs with steps left, or with an unknown number of them."""
        unfinished: Mask = self.problem.steps_remaining != 0
        return unfinished

    def jobs(self, job_id: str, constraint: Constraint) -> Indices:
        """Return the row of an unfinished job as an array; empty, with a warning, if there is no such job."""
        row = self._rows.get(job_id)
        if row is None:
            self.warn(constraint, f"there is no job {job_id!r}{nearest(job_id, list(self._rows)[:10_000])}")
        elif not self.unfinished[row]:
            self.warn(constraint, f"job {job_id!r} has finished")
        return np.array([row] if row is not None and self.unfinished[row] else [], dtype=np.int64)

    def tenant(self, name: str, constraint: Constraint) -> Mask:
        """Return (N,) the jobs of a tenant; all False, with a warning, if the tenant has no jobs."""
        rows = self._tenants.get(name)
        if rows is None:
            self.warn(constraint, f"tenant {name!r} has no jobs{nearest(name, self._tenants)}")
        return self.mask([] if rows is None else rows)

    def mask(self, rows: list[int] | Indices) -> Mask:
        """Return (N,) True for the jobs in these rows."""
        mask = np.zeros(self.num_jobs, dtype=bool)
        mask[rows] = True
        return mask

    def column(self, accelerator: str) -> int | None:
        """Return the column of an accelerator type, None if there is none; the name is case-insensitive."""
        types = self.problem.accelerator_types
        name = same_accelerator(accelerator, types)
        return None if name is None else types.index(name)

    def columns(self, accelerators: Iterable[str]) -> Mask:
        """Return (K,) True for the types of these names."""
        named = {self.column(accelerator) for accelerator in accelerators}
        return np.array([column in named for column in range(len(self.problem.accelerator_types))], dtype=bool)

    def warn(self, constraint: Constraint, text: str) -> None:
        """Warn, once, that a constraint or a part of it applies to no job."""
        if self._warns and text not in self._warned:
            self._warned.add(text)
            warnings.warn(f"{constraint.where}: {text}", GavelWarning, stacklevel=2)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {job_id: i for i, job_id in enumerate(self.problem.job_ids)}

    @cached_property
    def _tenants(self) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for i, name in enumerate(self.problem.tenants):
            if name:
                rows.setdefault(name, []).append(i)
        return rows


class Constraint(Record):
    """A rule that allocations of any policy must keep, or may break at a penalty (`soft`).

    Fields may be positional, except those in `by_keyword`.

    Attributes:
        penalty: Loss of the policy's objective if the constraint is missed completely; a partial miss costs the same part of it.
            None: the constraint must hold.
    """

    label: ClassVar[str] = "constraint"
    kind: ClassVar[str] = "constraint"
    never_soft: ClassVar[str] = ""
    """Why constraints of this class cannot be soft, empty if they can."""
    by_keyword: ClassVar[tuple[str, ...]] = ("penalty",)
    """Fields that are not positional."""

    penalty: Positive | None = None

    def __init__(self, /, *values: Any, **fields: Any) -> None:
        names = [name for name in type(self).model_fields if name not in self.by_keyword]
        if len(values) > len(names):
            raise TypeError(f"{type(self).__name__} takes at most {len(names)} values: {', '.join(names)}")
        super().__init__(**dict(zip(names, values, strict=False)), **fields)
        is_soft = self.penalty is not None and self.never_soft
        refuse(self.label, (is_soft, "penalty", f"cannot be used with {self.text}, which {self.never_soft}"))

    @classmethod
    def __pydantic_init_subclass__(cls, **rest: Any) -> None:
        """Set `kind`, the name in files, from the class name: min_throughput."""
        super().__pydantic_init_subclass__(**rest)
        cls.kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
        cls.label = f"constraint {cls.kind}"

    @classmethod
    def _wording(cls, error: ErrorDetails) -> str:
        return f"must be true or false, found {error['input']!r}" if error["type"].startswith("bool_") else super()._wording(error)

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Yield the fields that differ from their defaults, the positional ones first."""
        fields = type(self).model_fields
        for name in sorted(fields, key=(*(name for name in fields if name not in self.by_keyword), *self.by_keyword).index):
            if getattr(self, name) != fields[name].default:
                yield name, getattr(self, name)

    def soft(self, penalty: float) -> Self:
        """Return the soft form of this constraint.

        Args:
            penalty: Loss of the policy's objective, above 0, if the constraint is missed completely; a partial miss costs the same
                part of it.

        Raises:
            InputError: Constraints of this class cannot be soft.
        """
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**(fields | {"penalty": penalty}))

    @property
    @abstractmethod
    def text(self) -> str:
        """The constraint as text for messages."""

    @property
    def where(self) -> str:
        """The constraint as text, after the place in the file where it was read, for messages."""
        return f"{self.place} ({self.text})" if self.place else self.text

    def faults(self, scope: Scope) -> list[Fault]:  # noqa: ARG002
        """Return the faults of this constraint for the problem, such as unknown names."""
        return []

    def places(self, scope: Scope) -> list[Place]:  # noqa: ARG002
        """Return the types to which the constraint restricts jobs."""
        return []

    def rows(self, scope: Scope) -> list[Row]:  # noqa: ARG002
        """Return the limits on the sum over several jobs. `scope.problem` is already restricted by all `places`."""
        return []

    def needs(self, scope: Scope) -> list[Need]:  # noqa: ARG002
        """Return the throughputs required of single jobs. `scope.problem` is already restricted by all `places`."""
        return []

    def _fault(self, field: str, text: str) -> Fault:
        return Fault(self.where, field, text)

    def _unknown_types(self, scope: Scope, field: str, names: tuple[str, ...]) -> list[Fault]:
        unknown = [name for name in names if scope.column(name) is None]
        text = "is not an accelerator type of this problem"
        return unknown_names(self.where, field, unknown, scope.problem.accelerator_types, text)


def same_name(name: str) -> Callable[[int], str]:
    """Return a `name_of` that is the same for all jobs; it can be pickled, as allocations are."""
    return partial(_same, name)


def _same(name: str, i: int) -> str:  # noqa: ARG001
    return name


def uniform_place(name: str, rows: Indices, types: Mask, *, insists: bool = False, shared: bool = False) -> Place:
    """Return the restriction of jobs to the same (K,) types."""
    return Place(same_name(name), rows, np.tile(types, (len(rows), 1)), insists, shared)


def listed(value: object) -> object:
    """Return a single name as a tuple, other values unchanged; a validator of fields that take several names."""
    return (value,) if isinstance(value, str) else value
