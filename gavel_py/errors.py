"""The exception classes of gavel_py.

All derive from `GavelError`, and each also from the builtin exception that a caller would expect. A message states the place, the
value found and what would be valid. `InputError` and its subclasses are errors that the user can correct (exit code 2 of the
command line); all others are failures at run time (exit code 1).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from types import UnionType
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

MANY = 4
"""Faults of one field and kind are one line each, up to this number; the first of more of them has their count."""

MIN_START = 3
"""Number of characters from which the beginning of a name suggests the whole name."""

MAX_DIGITS = 100
"""Length up to which text is converted to decimal form for a hint, in characters."""


class GavelError(Exception):
    """Base class of all errors of gavel_py."""


class GavelWarning(UserWarning):
    """Warning that an input was accepted, but its meaning may differ from what the user intended."""


class NameWarning(GavelWarning):
    """Warning that accelerators of a cluster were found in a profile under other names; the message lists them.

    Attributes:
        count: The number of these accelerators.
    """

    def __init__(self, message: str, count: int = 1) -> None:
        super().__init__(message)
        self.count = count


@dataclass(frozen=True)
class Fault:
    """One defect of the input.

    Attributes:
        where: File and line, or job; may be empty.
        field: Field of the record; empty if the fault does not concern a single field.
        problem: What is wrong and what would be valid.
    """

    where: str
    field: str
    problem: str

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.where, f"field {self.field}" if self.field else "") if part)
        return f"{place}: {self.problem}" if place else self.problem


class InputError(GavelError, ValueError):
    """The input is invalid.

    Args:
        *faults: All faults found, or plain texts, which become faults without place and field.

    Attributes:
        faults: The faults, in order. The message counts more than 4 alike of one field, and shows the first 20.
    """

    def __init__(self, *faults: Fault | str) -> None:
        self.faults: tuple[Fault, ...] = tuple(Fault("", "", f) if isinstance(f, str) else f for f in faults)
        super().__init__(self.faults)

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses have other constructor arguments, so unpickling restores `args` and `__dict__` without calling `__init__`.
        return type(self).__new__, (type(self), *self.args), vars(self)

    def __str__(self) -> str:
        kinds = [(fault.field, fault.problem.partition(", found ")[0]) if fault.field else fault for fault in self.faults]
        alike = {kind: faults for kind, faults in grouped(zip(kinds, self.faults, strict=True)).items() if len(faults) > MANY}
        lines = []
        for kind, fault in zip(kinds, self.faults, strict=True):
            same = alike.get(kind, [fault])
            more = f"; so in {len(same) - 1:,} more, the last {same[-1].where}" if len(same) > 1 else ""
            lines += [f"{fault}{more}"] if fault is same[0] else []
        if len(lines) > SHOWN_FAULTS:
            lines[SHOWN_FAULTS:] = [f"... and {len(lines) - SHOWN_FAULTS} more faults of this kind"]
        return "\n".join(lines)

    @classmethod
    def raise_any(cls, faults: Sequence[Fault]) -> None:
        """Raise an error of this class with all `faults`; do nothing if there are none.

        Args:
            faults: The faults found.

        Raises:
            InputError: An error of the class on which the method is called, if `faults` is not empty.
        """
        if faults:
            raise cls(*faults)


class UnknownNameError(InputError, LookupError):
    """A name of a policy, option, profile, accelerator type, job or the like does not exist."""


def grouped(pairs: Iterable[tuple[Any, Fault]]) -> dict[Any, list[Fault]]:
    """Return {kind: its faults}, in order."""
    found: dict[Any, list[Fault]] = {}
    for kind, fault in pairs:
        found.setdefault(kind, []).append(fault)
    return found


def faults_among(where: str, *cases: tuple[object, str, str]) -> list[Fault]:
    """Return a fault for each of the cases (is it wrong, field, problem) that is wrong."""
    return [Fault(where, field, problem) for is_wrong, field, problem in cases if is_wrong]


def refuse(where: str, *cases: tuple[object, str, str]) -> None:
    """Raise one `InputError` with the faults of the cases that are wrong (`faults_among`).

    All problems are written out first, so none may contain data as long as the input.
    """
    InputError.raise_any(faults_among(where, *cases))


def wrong_types(where: str, field: str, values: Iterable[object], kind: type | UnionType, rule: str) -> list[Fault]:
    """Return a fault for each of the values that is no instance of a class; rule: "must be ..."."""
    return [Fault(where, field, f"{rule}, found {shown(value)}") for value in values if not isinstance(value, kind)]


def check_type(where: str, field: str, value: object, kind: type | UnionType, rule: str) -> None:
    """Raise `InputError` for a value that is no instance of a class (`wrong_types`)."""
    InputError.raise_any(wrong_types(where, field, [value], kind, rule))


def check_together(*cases: tuple[object, str]) -> None:
    """Raise one `InputError` with all problems of (is it wrong, problem) that are wrong; a `Record` adds the place."""
    refuse("", *((is_wrong, "", problem) for is_wrong, problem in cases))


def shown(value: object) -> str:
    """Return a value as in messages: as Python writes it, cut at 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def unknown_names(
    where: str | Callable[[str], str],
    field: str | None,
    names: Iterable[str],
    known: Collection[str],
    problem: str = "is not known",
    *,
    noun: str = "",
) -> list[Fault]:
    """Return a fault for each of the names that is not known, with the known names that are nearest to it.

    where: the place, or what returns that of a name; field: None if the names are fields themselves; noun: what a name is, or the
    text before it, such as "column" or "there is no option".
    """
    wrong = [name for name in names if name not in known]
    texts = {name: problem if field is None else " ".join(filter(None, (noun, repr(name), problem))) for name in wrong}
    return [
        Fault(where(name) if callable(where) else where, name if field is None else field, text + nearest(name, known))
        for name, text in texts.items()
    ]


def check_known(where: str, field: str, names: Iterable[str], known: Collection[str], problem: str = "is not known") -> None:
    """Raise `UnknownNameError` with a fault for each of the names that is not known (`unknown_names`)."""
    UnknownNameError.raise_any(unknown_names(where, field, names, known, problem))


class MissingThroughputError(InputError, LookupError):
    """A required throughput is missing from the profile. A throughput of zero is not missing: the job cannot run there."""


class ConflictError(InputError):
    """No allocation satisfies all constraints.

    Args:
        constraints: Names of an irreducible infeasible subset (IIS): the others are satisfiable if any one of them is dropped.
        alone: True if each of these constraints is unsatisfiable on its own.
        can_be_soft: False if constraints of this kind have no soft form.
        factor: The part of all GPUs and limits that the constraints need. It is stated if they need hardly more than all of it.

    Attributes:
        constraints: The names, as a tuple.
    """

    def __init__(self, constraints: Sequence[str], *, alone: bool, can_be_soft: bool = True, factor: float = math.inf) -> None:
        self.constraints: tuple[str, ...] = tuple(constraints)
        remedy = "removed or made soft" if can_be_soft else "removed"
        many = f"these constraints cannot all hold, but would if any one of them were {remedy}:"
        single = "no allocation can satisfy this, whatever the others get:" if len(constraints) == 1 else ""
        head = single or ("no allocation can satisfy any of these, whatever the others get:" if alone else many)
        over = [f"  together, they need {apart(factor, 1)[0]} times what there is"] if factor < HARDLY_MORE else []
        super().__init__(head, *(f"  {name}" for name in constraints), *over)


HARDLY_MORE = 1.0001
"""Factor up to which numbers with six digits may look equal to each other."""


def apart(one: float, other: float) -> tuple[str, str]:
    """Return two different numbers with six digits, or as many as tell them apart."""
    texts = ((f"{one:.{digits}g}", f"{other:.{digits}g}") for digits in range(6, 18))
    return next((pair for pair in texts if pair[0] != pair[1]), (repr(one), repr(other)))


class PolicyError(InputError):
    """A policy is implemented incorrectly; the problem is not the cause.

    Args:
        *faults: What is wrong with the policy.
        check: Name of the check of `gavel_py.testing.check_policy` that the policy fails.
    """

    def __init__(self, *faults: Fault | str, check: str = "solved") -> None:
        self.check = check
        super().__init__(*faults)


class SolverError(GavelError, RuntimeError):
    """The solver returned no optimal solution, so there is no allocation."""


class UnboundedError(SolverError):
    """The objective is unbounded, so there is no optimal solution."""


class ProofError(SolverError):
    """The reported optimum is infeasible, or its dual bound differs from its objective value."""


class SlurmError(GavelError, RuntimeError):
    """A Slurm command failed, was rejected or timed out."""


class PolicyContractError(GavelError, AssertionError):
    """A policy, mechanism or trace format violates the contract of its kind.

    Args:
        report: The `ContractReport` of a check in `gavel_py.testing`; its text is the message.
    """

    def __init__(self, report: Any) -> None:
        self.report = report
        super().__init__(report)

    def __str__(self) -> str:
        return str(self.report)


@contextmanager
def together() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Collect the faults of several checks and raise them as one `InputError` on exit, each once.

    The context value is a function that calls a check and returns its result, or None if the check raised an `InputError`.

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
    InputError.raise_any(list(dict.fromkeys(faults)))


@contextmanager
def faults_from(where: str, problem: str, *kinds: type[BaseException], named: bool = False) -> Iterator[None]:
    """Raise errors of these kinds in the block as an `InputError` with one fault: the problem, and what the error says.

    Errors of gavel_py pass unchanged.

    Args:
        where: The file or thing that the block reads or writes.
        problem: What then is wrong with it, such as "cannot be read".
        *kinds: Classes of errors.
        named: Whether the text states the class of the error, whose message alone says little ("'jobs'").
    """
    try:
        yield
    except GavelError:
        raise
    except kinds as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(Fault(where, "", f"{problem}: {f'{type(error).__name__} ' * named}{reason}")) from None


@contextmanager
def relocated_faults(relocate: Callable[[Fault], Fault]) -> Iterator[None]:
    """Replace each fault of an `InputError` that the block raises.

    Args:
        relocate: Returns the fault to raise instead, usually the same one with another place.
    """
    try:
        yield
    except InputError as error:
        raise type(error)(*map(relocate, error.faults)) from None


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return "; did you mean ..." with the known names closest to `name`, or a list of the known names if none is close.

    A known name that begins with `name`, whatever its case and signs between letters, is close to it, unless `name` is shorter than
    `MIN_START`.

    Args:
        name: The misspelt name.
        known: Valid names; duplicates are ignored.
        count: Maximum number of suggestions.

    >>> nearest("max_min_fairnes", ["fifo", "max_min_fairness"])
    "; did you mean 'max_min_fairness'?"
    """
    text, names = str(name), list(dict.fromkeys(known))
    begun = [each for each in names if len(text) >= MIN_START and _letters(each).startswith(_letters(text) or text)]
    close = get_close_matches(text, names, n=count, cutoff=0.6) or begun[:count]
    if close:
        return "; did you mean " + " or ".join(repr(c) for c in close) + "?"
    if not names:
        return "; there are none"
    listed = ", ".join(names[:12]) + (f", ... ({len(names)} in total)" if len(names) > 12 else "")
    return f"; known: {listed}"


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower()


_DECIMAL = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BASES = {"x": 16, "o": 8, "b": 2}


def decimal_hint(text: object) -> str:
    """Return "; write ..." with the decimal form of a number in another notation, or an empty string for any other text or value.

    YAML 1.1, YAML 1.2, Python and spreadsheets disagree on leading zeros, underscores, prefixes and sexagesimal numbers.

    >>> decimal_hint("1_000"), decimal_hint("1:30"), decimal_hint("010"), decimal_hint("1e3")
    ('; write 1000', '; write 90', '; write 10, or 8 if it is octal', '')
    """
    if not isinstance(text, str):
        return ""
    text = text.strip()
    if len(text) > MAX_DIGITS:
        return "; write fewer digits" if re.fullmatch(r"[-+.:_0-9]*_[-+.:_0-9]*|[-+]?0[0-9]+", text) else ""
    if _DECIMAL.fullmatch(text) or not (form := _decimal_form(text)):
        return ""
    octal = re.fullmatch(r"[+-]?0[0-7]+", text.replace("_", ""))
    other = f", or {int(octal[0], 8)} if it is octal" if octal and int(octal[0], 8) != int(form) else ""
    return f"; write {form}{other}"


def _decimal_form(text: str) -> str:
    sign, digits = ("-" if text.startswith("-") else ""), text.lstrip("+-").replace("_", "")
    if based := re.fullmatch(r"0([xob])([0-9a-f]+)", digits.lower()):
        with suppress(ValueError):  # a digit outside the base
            return f"{sign}{int(based[2], _BASES[based[1]])}"
    elif re.fullmatch(r"[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?", digits):
        *larger, last = digits.split(":")
        return f"{sign}{60 * functools.reduce(lambda total, part: 60 * total + int(part), larger, 0) + float(last):.15g}"
    elif _DECIMAL.fullmatch(plain := re.sub(r"^0+(?=[0-9])", "", digits)):
        return sign + plain
    return ""
