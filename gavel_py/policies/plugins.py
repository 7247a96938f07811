"""Users' own policies: classes that are named package.module:Class, and what is told of one that cannot be used.

Policies that installed packages offer, as entry points of the group `gavel_py.policies`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import traceback
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from gavel_py.errors import Fault, GavelWarning, InputError, UnknownNameError, nearest
from gavel_py.policies.base import Policy

if TYPE_CHECKING:
    from importlib.metadata import Distribution

__all__ = ["GROUP", "Offer", "imported_policy", "offers", "told"]


def imported_policy(target: str, where: str) -> type[Policy]:
    """Return the class that `target`, package.module:Class, names; `where` says in messages who asked for it.

    Raises `UnknownNameError` for a module or class that there is not, and `InputError` for a module that fails on import and
    for what is no policy or an abstract one.
    """
    module_name, _, path = target.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise InputError(Fault(where, "", f"must be of the form package.module:Class, found {target!r}"))
    thing = _attribute(_module(module_name, where), path, where)
    if not (inspect.isclass(thing) and issubclass(thing, Policy)):
        raise InputError(Fault(where, "", _not_a_policy(thing, target)))
    if inspect.isabstract(thing):
        methods = ", ".join(f"`{name}`" for name in sorted(thing.__abstractmethods__))
        raise InputError(Fault(where, "", f"is abstract: it does not say what {methods} is"))
    return thing


def _module(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not (error.name and f"{name}.".startswith(f"{error.name}.")):  # a module that the named one imports
            raise _failure(name, where, error) from error
        hint = ", which is named without its ending .py" if name.endswith(".py") else ""
        raise UnknownNameError(Fault(where, "", f"Python finds no module {error.name!r}{hint}")) from None
    except (Exception, SystemExit) as error:  # other people's code may raise anything
        raise _failure(name, where, error) from error


def _failure(module: str, where: str, error: BaseException) -> InputError:
    return InputError(Fault(where, "", f"importing {module} failed with {told(error)}"))


def told(error: BaseException) -> str:
    """Return an error of other people's code in one line: its type, its message, and where in their modules it arose."""
    message, file, line = str(error), "", None
    if isinstance(error, SyntaxError):
        message, file, line = error.msg, error.filename or "", error.lineno
    elif frames := traceback.extract_tb(error.__traceback__):
        # What a module does as it is imported tells more than the depths of the libraries that it calls.
        last = [frame for frame in frames if frame.name == "<module>"] or frames
        file, line = last[-1].filename, last[-1].lineno
    text = f"{type(error).__name__}: {' '.join(message.split())}".removesuffix(": ")
    return f"{text} ({file}, line {line})" if file else text


def _attribute(module: ModuleType, path: str, where: str) -> object:
    thing: object = module
    for part in path.split("."):
        thing = getattr(thing, part, None)
        if thing is None:
            known = [name for name, value in vars(module).items() if _is_complete(value)]
            place = getattr(module, "__file__", None)
            text = f"module {module.__name__}{f' ({place})' if place else ''} has no class {path!r}"
            raise UnknownNameError(Fault(where, "", text + (nearest(path, known) if known else ", and no other policy either")))
    return thing


def _is_complete(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Policy) and not inspect.isabstract(value)


def _not_a_policy(thing: object, target: str) -> str:
    bases = "a policy is a subclass of gavel_py.SumPolicy, DemandPolicy, OrderedPolicy or Policy"
    if isinstance(thing, Policy):
        module = target.partition(":")[0]
        return f"is a policy object; name its class, as in {module}:{type(thing).__name__}"
    return f"is a class, but no policy; {bases}" if inspect.isclass(thing) else f"is no class (it is {thing!r}); {bases}"


GROUP = "gavel_py.policies"


@dataclass(frozen=True)
class Offer:
    """A policy of an installed package. target: package.module:Class; package: its name and version."""

    name: str
    target: str
    package: str


def offers(built_in: Collection[str]) -> dict[str, list[Offer]]:
    """Return the policies that installed packages offer, by name in alphabetical order; several offers of a name compete.

    Nothing is imported. A built-in name stays what it is: an offer of it is left out with a `GavelWarning`, and so is one whose
    name cannot be typed on a command line.
    """
    found: dict[str, list[Offer]] = {}
    for offer in _declared():
        who = f"package {offer.package} offers a policy {offer.name!r}"
        if offer.name in built_in:
            _warn(f"{who}, which is the name of a built-in one; its own is known as {offer.target} only")
        elif not re.fullmatch(r"[\w-]+", offer.name):
            _warn(f"{who}, a name with other signs than letters, digits, _ and -; it is known as {offer.target} only")
        else:
            found.setdefault(offer.name, []).append(offer)
    return dict(sorted(found.items()))


def _declared() -> Iterator[Offer]:
    """All that is declared, package by package, so that one that is broken is told and does not hide the others."""
    from importlib import metadata  # takes 20 ms

    packages: dict[str, Distribution] = {}
    for package in metadata.distributions():
        if GROUP in _entry_points(package):
            name = _metadata(package, "Name") or "without a name"
            packages.setdefault(name, package)  # the first one on the path is the one that is imported
    for name, package in sorted(packages.items()):
        try:
            points = package.entry_points.select(group=GROUP)
        except (TypeError, ValueError) as error:
            _warn(f"the entry points of package {name} cannot be read, so its policies are not known: {error}")
            continue
        for point in points:
            yield Offer(point.name, re.sub(r"\s|\[.*", "", point.value), f"{name} {_metadata(package, 'Version')}".strip())


def _entry_points(package: Distribution) -> str:
    try:
        return package.read_text("entry_points.txt") or ""
    except (OSError, UnicodeError):
        return ""


def _metadata(package: Distribution, key: str) -> str:
    """The name or version of a package, empty where its metadata are damaged, as after an installation that broke off."""
    try:
        known = package.metadata
        if key in known:
            return known[key]
    except (OSError, UnicodeError, TypeError, KeyError, AttributeError):
        pass
    return ""


def _warn(text: str) -> None:
    warnings.warn(GavelWarning(text), stacklevel=2)
