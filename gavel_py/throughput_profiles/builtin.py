"""The profiles that come with gavel_py: published measurements, four significant digits."""

from __future__ import annotations

import csv
import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TypedDict

from gavel_py.errors import Fault, UnknownNameError, nearest
from gavel_py.throughput_profiles.measurement import Row

__all__ = ["About", "builtin_names", "read_builtin"]


class About(TypedDict):
    """What is known of a profile as a whole."""

    description: str
    licence: str
    notice: str
    url: str


def builtin_names() -> tuple[str, ...]:
    """The names of the built-in profiles."""
    return tuple(_catalogue())


def read_builtin(name: str) -> tuple[tuple[Row, ...], About]:
    """Return the rows of a built-in profile, as they were checked when made, and what is known of it.

    Raises `UnknownNameError`.
    """
    catalogue = _catalogue()
    if name not in catalogue:
        raise UnknownNameError(Fault("built-in throughput profiles", "name", f"{name!r} is not one{nearest(name, catalogue)}"))
    with (_data() / f"{name}.csv").open(encoding="utf-8") as file:
        _header, *lines = csv.reader(file)
    return tuple(_row(*line) for line in lines), catalogue[name]


def _row(job_type: str, gpus: str, accelerator: str, placement: str, speed: str, partner: str, its_speed: str, source: str) -> Row:
    partner_speed = float(its_speed) if partner else None
    return Row(job_type, int(gpus), accelerator, placement, float(speed), partner or None, partner_speed, source)


def _catalogue() -> dict[str, About]:
    catalogue: dict[str, About] = json.loads((_data() / "profiles.json").read_text(encoding="utf-8"))
    return catalogue


def _data() -> Traversable:
    return files(__package__) / "data"
