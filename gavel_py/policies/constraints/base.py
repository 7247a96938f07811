"""What every constraint is: a checked record that says what it asks of the jobs of a problem."""

from __future__ import annotations

import re
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic_core import ErrorDetails

from gavel_py.errors import Fault, GavelWarning, InputError, nearest
from gavel_py.io.names import same_name
from gavel_py.io.records import Positive, Record
from gavel_py.optimization.formulation.linear_rows import Need, Place, Row
from gavel_py.problem.arrays import Mask
from gavel_py.problem.problem import AllocationProblem


class Scope:
    """The problem that constraints are about, with quick ways to its jobs by name.

    original: the problem before constraints kept jobs off types.
    """

    def __init__(self, problem: AllocationProblem) -> None:
        self.problem = self.original = problem
        self._said: set[str] = set()

    @property
    def num_jobs(self) -> int:
        """N."""
        return self.problem.num_jobs

    @cached_property
    def unfinished(self) -> Mask:
        """(N,) the jobs with steps left, as far as is known."""
        unfinished: Mask = self.problem.steps_remaining != 0
        return unfinished

    def jobs(self, job_id: str, who: Constraint) -> NDArray[np.int64]:
        """Return the row of a job; none, with a warning, where there is no such job (now)."""
        row = self._rows.get(job_id)
        if row is None:
            self.warn(who, f"there is no job {job_id!r}{nearest(job_id, list(self._rows)[:10_000])}")
        elif not self.unfinished[row]:
            self.warn(who, f"job {job_id!r} has finished")
        return np.array([row] if row is not None and self.unfinished[row] else [], dtype=np.int64)

    def tenant(self, name: str, who: Constraint) -> Mask:
        """Return (N,) the jobs of a tenant; none, with a warning, where the tenant has no jobs (now)."""
        rows = self._tenants.get(name)
        if rows is None:
            self.warn(who, f"tenant {name!r} has no jobs{nearest(name, self._tenants)}")
        return self.mask([] if rows is None else rows)

    def mask(self, rows: list[int] | NDArray[np.int64]) -> Mask:
        """Return (N,) where True stands for the jobs in these rows."""
        mask = np.zeros(self.num_jobs, dtype=bool)
        mask[rows] = True
        return mask

    def column(self, accelerator: str) -> int | None:
        """Return the column of an accelerator type, whose name may be in another case; None where there is none of this name."""
        types = self.problem.accelerator_types
        name = same_name(accelerator, types)
        return None if name is None else types.index(name)

    def columns(self, accelerators: Iterable[str]) -> Mask:
        """Return (K,) the types of these names."""
        named = {self.column(accelerator) for accelerator in accelerators}
        return np.array([column in named for column in range(len(self.problem.accelerator_types))], dtype=bool)

    def warn(self, who: Constraint, text: str) -> None:
        """Say, once, that a constraint, or a part of it, is about nothing."""
        if text not in self._said:
            self._said.add(text)
            warnings.warn(f"{who.where}: {text}", GavelWarning, stacklevel=2)

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
    """Something that an allocation must keep, whatever the policy, or may break at a price (`soft`).

    penalty: what the policy's objective loses where the constraint is missed by all that it asks for, in proportion for a part of
    it; None: it must hold. The other fields may be given in their order.
    """

    label: ClassVar[str] = "constraint"
    kind: ClassVar[str] = "constraint"
    never_soft: ClassVar[str] = ""
    """Why it cannot be soft, if it cannot."""

    penalty: Positive | None = None

    def __init__(self, /, *values: Any, **fields: Any) -> None:
        names = [name for name in type(self).model_fields if name != "penalty"]
        if len(values) > len(names):
            raise TypeError(f"{type(self).__name__} takes at most {len(names)} values: {', '.join(names)}")
        super().__init__(**dict(zip(names, values, strict=False)), **fields)
        if self.penalty is not None and self.never_soft:
            raise InputError(Fault(self.label, "penalty", f"is not for {self.text}, which {self.never_soft}"))

    @classmethod
    def __pydantic_init_subclass__(cls, **rest: Any) -> None:
        """Name the kind after the class, as files name it: min_throughput."""
        super().__pydantic_init_subclass__(**rest)
        cls.kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
        cls.label = f"constraint {cls.kind}"

    @classmethod
    def _wording(cls, error: ErrorDetails) -> str:
        return f"must be true or false, found {error['input']!r}" if error["type"].startswith("bool_") else super()._wording(error)

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Show what was given, the penalty last."""
        fields = type(self).model_fields
        for name in sorted(fields, key=lambda name: name == "penalty"):
            if getattr(self, name) != fields[name].default:
                yield name, getattr(self, name)

    def soft(self, penalty: float) -> Self:
        """Return the same constraint, which may be broken for `penalty` times the part by which it is missed."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**(fields | {"penalty": penalty}))

    @property
    @abstractmethod
    def text(self) -> str:
        """The constraint in the user's words."""

    @property
    def where(self) -> str:
        """What messages call it: the constraint in words, after the place where it was read."""
        return f"{self.place} ({self.text})" if self.place else self.text

    def faults(self, scope: Scope) -> list[Fault]:  # noqa: ARG002
        """Return what is wrong with it for this problem."""
        return []

    def places(self, scope: Scope) -> list[Place]:  # noqa: ARG002
        """Return where jobs may be given time at most."""
        return []

    def rows(self, scope: Scope) -> list[Row]:  # noqa: ARG002
        """Return the limits that several jobs keep together, where jobs may be given time as `places` say."""
        return []

    def needs(self, scope: Scope) -> list[Need]:  # noqa: ARG002
        """Return the throughputs that single jobs must have, where jobs may be given time as `places` say."""
        return []

    def _fault(self, field: str, text: str) -> Fault:
        return Fault(self.where, field, text)

    def _unknown_types(self, scope: Scope, field: str, names: tuple[str, ...]) -> list[Fault]:
        types = scope.problem.accelerator_types
        text = "is not an accelerator type of this problem"
        return [self._fault(field, f"{name!r} {text}{nearest(name, types)}") for name in names if scope.column(name) is None]


def listed(value: object) -> object:
    """Return one name as a list of one, for fields that take several."""
    return (value,) if isinstance(value, str) else value
