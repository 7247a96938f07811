"""Plug-ins of users, imported from package.module:name, and of installed packages, offered as entry points of a group."""

from __future__ import annotations

import importlib
import re
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from gavel_py.errors import Fault, GavelWarning, InputError, UnknownNameError, nearest, refuse

if TYPE_CHECKING:
    from importlib.metadata import Distribution


@dataclass(frozen=True)
class PlugIn:
    """A plug-in of an installed package. target: package.module:name; package: name and version of the package."""

    name: str
    target: str
    package: str


@dataclass(frozen=True)
class Plugins:
    """A kind of plug-in.

    group: group of the entry points; word, plural: words for one and several of them in messages; noun: what a target is, "class"
    or "object"; built_in: names that packages cannot use; is_one: returns whether an attribute of a module is a plug-in of this
    kind.
    """

    group: str
    word: str
    plural: str
    noun: str
    built_in: Collection[str]
    is_one: Callable[[object], bool]

    @property
    def form(self) -> str:
        """The form of a target, for messages."""
        return f"package.module:{'Class' if self.noun == 'class' else 'name'}"

    def imported(self, target: str, where: str) -> object:
        """Import the object that `target`, package.module:name, names; `where` is the source of the name in messages.

        Raises `UnknownNameError` if there is no such module or attribute, and `InputError` if the import fails.
        """
        module_name, _, path = target.partition(":")
        is_target = all(part.isidentifier() for part in (*module_name.split("."), *path.split(".")))
        refuse(where, (not is_target, "", f"must be of the form {self.form}, found {target!r}"))
        module = _module(module_name, where)
        thing: object = module
        for part in path.split("."):
            thing = getattr(thing, part, None)
            if thing is None:
                known = [name for name, value in vars(module).items() if self.is_one(value)]
                place = getattr(module, "__file__", None)
                text = f"module {module.__name__}{f' ({place})' if place else ''} has no {self.noun} {path!r}"
                others = nearest(path, known) if known else f", nor any other {self.word}"
                raise UnknownNameError(Fault(where, "", text + others))
        return thing

    def offers(self) -> dict[str, list[PlugIn]]:
        """Return {name: offers} of installed packages, in alphabetical order. Nothing is imported.

        Offers with built-in names, or with names that cannot be used on a command line, are left out with a `GavelWarning`.
        """
        found: dict[str, list[PlugIn]] = {}
        for offer in self._declared():
            claim = f"package {offer.package} offers a {self.word} {offer.name!r}"
            if offer.name in self.built_in:
                _warn(f"{claim}, but a built-in one has this name; use {offer.target} for the one of the package")
            elif not re.fullmatch(r"[\w-]+", offer.name):
                _warn(f"{claim}, but names may contain only letters, digits, _ and -; use {offer.target} for it")
            else:
                found.setdefault(offer.name, []).append(offer)
        return dict(sorted(found.items()))

    def offered(self, name: str) -> PlugIn:
        """Return the only offer of a name by installed packages.

        Raises `UnknownNameError` if there is none, `InputError` if there are several.
        """
        known = self.offers()
        if name not in known:
            hint = f"; to use your own {self.noun}, write {self.form}" if "." in name else nearest(name, (*self.built_in, *known))
            raise UnknownNameError(f"there is no {self.word} {name!r}{hint}")
        first, *others = known[name]
        ways = " or ".join(f"{offer.target} (of {offer.package})" for offer in known[name])
        text = f"is offered by several packages; select one by its {self.noun}: {ways}"
        refuse(f"{self.word} {name}", (others, "", text))
        return first

    def loaded(self, name: str) -> tuple[object, str]:
        """Import the object named by package.module:name or by the name of an offer; return it with a description for messages."""
        if ":" in name:
            where = f"{self.word} {name}"
            return self.imported(name, where), where
        offer = self.offered(name)
        where = f"{self.word} {name} of package {offer.package}"
        return self.imported(offer.target, where), where

    def _declared(self) -> Iterator[PlugIn]:
        """Yield the offers that packages declare; a package with unreadable entry points is skipped with a warning."""
        from importlib import metadata  # takes 20 ms

        packages: dict[str, Distribution] = {}
        for package in metadata.distributions():
            if self.group in _entry_points(package):
                name = _metadata(package, "Name") or "without a name"
                packages.setdefault(name, package)  # imports use the first one on the path
        for name, package in sorted(packages.items()):
            try:
                points = package.entry_points.select(group=self.group)
            except (TypeError, ValueError) as error:
                _warn(f"the entry points of package {name} cannot be read, so its {self.plural} are not known: {error}")
                continue
            for point in points:
                yield PlugIn(point.name, re.sub(r"\s|\[.*", "", point.value), f"{name} {_metadata(package, 'Version')}".strip())


def _module(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # importing runs code of the user, which may raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):  # else the named module exists, but one of its imports does not
            hint = "; give the module without the ending .py" if name.endswith(".py") else ""
            raise UnknownNameError(Fault(where, "", f"Python finds no module {missing!r}{hint}")) from None
        raise InputError(Fault(where, "", f"importing {name} failed with {one_line(error)}")) from error


def one_line(error: BaseException) -> str:
    """Return the type and message of an error in a user's module, with file and line, in one line."""
    message, file, line = str(error), "", None
    if isinstance(error, SyntaxError):
        message, file, line = error.msg, error.filename or "", error.lineno
    elif frames := traceback.extract_tb(error.__traceback__):
        # The line at module level is more helpful than the libraries called from there.
        last = [frame for frame in frames if frame.name == "<module>"] or frames
        file, line = last[-1].filename, last[-1].lineno
    text = f"{type(error).__name__}: {' '.join(message.split())}".removesuffix(": ")
    return f"{text} ({file}, line {line})" if file else text


def _entry_points(package: Distribution) -> str:
    with suppress(OSError, UnicodeError):
        return package.read_text("entry_points.txt") or ""
    return ""


def _metadata(package: Distribution, key: str) -> str:
    """Return the name or version of a package, empty if its metadata are damaged, as after an aborted installation."""
    with suppress(OSError, UnicodeError, TypeError, KeyError, AttributeError):
        if key in (known := package.metadata):
            return known[key]
    return ""


def _warn(text: str) -> None:
    warnings.warn(GavelWarning(text), stacklevel=2)
