"""Policies that installed packages offer, as entry points of the group `gavel_py.policies`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gavel_py.errors import GavelWarning

if TYPE_CHECKING:
    from importlib.metadata import Distribution

__all__ = ["GROUP", "Offer", "offers"]

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
