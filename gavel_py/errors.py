"""Every error that gavel_py raises on purpose.

One root, `GavelError`. Each class also derives from the builtin that a caller would expect, and its text says who, what was
found and what would be right. `InputError` and its children are the user's to mend (exit code 2 of the command);
everything else is a failure at run time (exit code 1).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

__all__ = [
    "ConflictError",
    "Fault",
    "GavelError",
    "GavelWarning",
    "InputError",
    "MissingThroughputError",
    "PolicyContractError",
    "PolicyError",
    "ProofError",
    "SlurmError",
    "SolverError",
    "UnboundedError",
    "UnknownNameError",
    "decimal_hint",
    "nearest",
    "together",
]

SHOWN_FAULTS = 20

MOST_DIGITS = 100
"""Characters of a number that is written in another than decimal form."""


class GavelError(Exception):
    """The root of all errors raised by gavel_py."""


class GavelWarning(UserWarning):
    """Something that was read, but not as the user may think."""


@dataclass(frozen=True)
class Fault:
    """One thing wrong with the input: where it stands, in which field, and what would be right.

    `where` names the file and line, or the job; `field` may be empty when the fault is not about one field.
    """

    where: str
    field: str
    problem: str

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.where, f"field {self.field}" if self.field else "") if part)
        return f"{place}: {self.problem}" if place else self.problem


class InputError(GavelError, ValueError):
    """The input is wrong. `faults` holds every fault found, not only the first."""

    def __init__(self, *faults: Fault | str) -> None:
        self.faults: tuple[Fault, ...] = tuple(Fault("", "", f) if isinstance(f, str) else f for f in faults)
        super().__init__(self.faults)

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by the arguments of the class, which are others for some: so an error of another process arrives as it was raised.
        return type(self).__new__, (type(self), *self.args), vars(self)

    def __str__(self) -> str:
        lines = [str(fault) for fault in self.faults[:SHOWN_FAULTS]]
        if len(self.faults) > SHOWN_FAULTS:
            lines.append(f"... and {len(self.faults) - SHOWN_FAULTS} more faults of this kind")
        return "\n".join(lines)

    @classmethod
    def raise_any(cls, faults: Sequence[Fault]) -> None:
        """Raise one error with all `faults`; return quietly when there are none."""
        if faults:
            raise cls(*faults)


class UnknownNameError(InputError, LookupError):
    """A name (policy, option, profile, accelerator, job, ...) that nothing bears."""


class MissingThroughputError(InputError, LookupError):
    """A throughput that was never measured. Missing is not zero: zero means "cannot run there"."""


class ConflictError(InputError):
    """Constraints that cannot all hold. constraints: their names, a set from which none can be left out without the others holding.

    alone: whether each of them cannot hold by itself.
    """

    def __init__(self, constraints: Sequence[str], *, alone: bool) -> None:
        self.constraints: tuple[str, ...] = tuple(constraints)
        many = "these constraints cannot all hold, and would if any one of them were left out or made soft:"
        single = "no allocation can keep this, whatever the other jobs get:" if len(constraints) == 1 else ""
        head = single or ("no allocation can keep any of these, whatever the other jobs get:" if alone else many)
        super().__init__(head, *(f"  {name}" for name in constraints))


class PolicyError(InputError):
    """A policy is written wrongly, whatever the problem. check: the check of `gavel_py.testing.check_policy` that it fails."""

    def __init__(self, *faults: Fault | str, check: str = "solved") -> None:
        self.check = check
        super().__init__(*faults)


class SolverError(GavelError, RuntimeError):
    """The solver did not end with an optimal answer; there is no allocation."""


class UnboundedError(SolverError):
    """There is no optimal answer, since the objective can be made as good as one likes."""


class ProofError(SolverError):
    """The solver reported an optimum, but its answer is not feasible or its bound does not meet its value."""


class SlurmError(GavelError, RuntimeError):
    """Slurm does not answer, or refuses what it was asked."""


class PolicyContractError(GavelError, AssertionError):
    """A policy breaks the contract of policies; `report` is the `ContractReport` of `gavel_py.testing.check_policy`."""

    def __init__(self, report: Any) -> None:
        self.report = report
        super().__init__(report)

    def __str__(self) -> str:
        return str(self.report)


@contextmanager
def together() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Run several checks and raise the faults of all that fail as one error.

    >>> with together() as attempt:
    ...     number = attempt(lambda: 1)
    >>> number
    1
    """
    faults: list[Fault] = []

    def attempt(check: Callable[[], Any]) -> Any:
        try:
            return check()
        except InputError as error:
            faults.extend(error.faults)
            return None

    yield attempt
    InputError.raise_any(faults)


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return "; did you mean ..." for the known names closest to `name`, or list the known ones when none is close.

    >>> nearest("max_min_fairnes", ["fifo", "max_min_fairness"])
    "; did you mean 'max_min_fairness'?"
    """
    names = list(dict.fromkeys(known))
    close = get_close_matches(str(name), names, n=count, cutoff=0.6)
    if close:
        return "; did you mean " + " or ".join(repr(c) for c in close) + "?"
    if not names:
        return "; there are none"
    listed = ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")
    return f"; known: {listed}"


_DECIMAL = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BASES = {"x": 16, "o": 8, "b": 2}


def decimal_hint(text: str) -> str:
    """Return "; write ..." with the decimal form of a number that is written in another form, empty for all other text.

    YAML 1.1, YAML 1.2, Python and spreadsheets disagree on leading zeros, underscores, prefixes and sexagesimal numbers.

    >>> decimal_hint("1_000"), decimal_hint("1:30"), decimal_hint("010"), decimal_hint("1e3")
    ('; write 1000', '; write 90', '; write 10, or 8 if it is octal', '')
    """
    text = text.strip()
    if len(text) > MOST_DIGITS:  # a number of any meaning has fewer
        return "; write fewer digits" if re.fullmatch(r"[-+.:_0-9]*_[-+.:_0-9]*|[-+]?0[0-9]+", text) else ""
    form = "" if _DECIMAL.fullmatch(text) else _decimal_form(text)
    if not form:
        return ""
    octal = re.fullmatch(r"[+-]?0[0-7]+", text.replace("_", ""))
    other = f", or {int(octal[0], 8)} if it is octal" if octal and int(octal[0], 8) != int(form) else ""
    return f"; write {form}{other}"


def _decimal_form(text: str) -> str:
    sign, digits = ("-" if text.startswith("-") else ""), text.lstrip("+-").replace("_", "")
    if based := re.fullmatch(r"0([xob])([0-9a-f]+)", digits.lower()):
        with suppress(ValueError):  # a digit that the base does not have
            return f"{sign}{int(based[2], _BASES[based[1]])}"
    elif re.fullmatch(r"[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?", digits):
        *larger, last = digits.split(":")
        return f"{sign}{60 * functools.reduce(lambda total, part: 60 * total + int(part), larger, 0) + float(last):.15g}"
    elif _DECIMAL.fullmatch(plain := re.sub(r"^0+(?=[0-9])", "", digits)):
        return sign + plain
    return ""
