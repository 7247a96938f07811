"""Files that take long to make, such as pictures and reports: which there can be, and whether one can be written."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from gavel_py.errors import Fault, InputError

__all__ = ["FORMATS", "check_folder", "check_place", "check_plot", "check_report"]

FORMATS = {".svg": "svg", ".png": "png"}
PAGES = (".html", ".htm")


def check_plot(path: str | Path) -> None:
    """Say beforehand whether a picture can be made and written to `path`, which takes less time than what it is to show.

    Raises `InputError` for another ending than .svg or .png, a folder that is not there or may not be written to, and where
    matplotlib is not installed.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(Fault(str(path), "", "a picture is drawn as .svg or .png; give the file one of these endings"))
    check_place(Path(path))
    _check_libraries("pictures", ["matplotlib"])


def check_report(path: str | Path) -> None:
    """Say beforehand whether a report can be made and written to `path`.

    Raises `InputError` for another ending than .html, a folder that is not there or may not be written to, and where matplotlib or
    jinja2 is not installed.
    """
    if Path(path).suffix.lower() not in PAGES and not _is_stream(Path(path)):
        raise InputError(Fault(str(path), "", "a report is written as .html; give the file this ending"))
    check_place(Path(path))
    _check_libraries("reports", ["matplotlib", "jinja2"])


def check_folder(path: str | Path) -> None:
    """Raise `InputError` unless files can be written into this folder, which is made if its own folder is there."""
    place = Path(path)
    if place.exists() and not place.is_dir():
        raise InputError(Fault(str(path), "", "is a file, where a folder is to be"))
    check_place(place / "file" if place.is_dir() else place)


def check_place(place: Path) -> None:
    """Raise `InputError` unless a file can be put there: a folder that is not there, or may not be written to, holds none."""
    if not place.parent.is_dir():
        raise InputError(Fault(str(place), "", f"cannot be written: there is no folder {str(place.parent)!r}"))
    if place.is_dir():
        raise InputError(Fault(str(place), "", "cannot be written: it is a folder"))
    if not _is_stream(place) and not os.access(place.parent, os.W_OK):
        raise InputError(Fault(str(place), "", f"cannot be written: nothing may be put into the folder {str(place.parent)!r}"))


def _is_stream(place: Path) -> bool:
    """A pipe or a device, into which no folder puts anything."""
    return place.exists() and not place.is_file() and not place.is_dir()


def _check_libraries(what: str, names: list[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise InputError(f"{what} need {name} ({error}); install it with: pip install 'gavel-py[plot]'") from None
