"""Files of pictures: which there can be, and whether one can be made."""

from __future__ import annotations

import os
from pathlib import Path

from gavel_py.errors import Fault, InputError

__all__ = ["FORMATS", "check_plot"]

FORMATS = {".svg": "svg", ".png": "png"}


def check_plot(path: str | Path) -> None:
    """Say beforehand whether a picture can be made and written to `path`, which takes less time than what it is to show.

    Raises `InputError` for another ending than .svg or .png, a folder that is not there or may not be written to, and where
    matplotlib is not installed.
    """
    place = Path(path)
    if place.suffix.lower() not in FORMATS:
        raise InputError(Fault(str(path), "", "a picture is drawn as .svg or .png; give the file one of these endings"))
    if not place.parent.is_dir():
        raise InputError(Fault(str(path), "", f"cannot be written: there is no folder {str(place.parent)!r}"))
    if place.is_dir():
        raise InputError(Fault(str(path), "", "cannot be written: it is a folder"))
    if not os.access(place.parent, os.W_OK):
        raise InputError(Fault(str(path), "", f"cannot be written: nothing may be put into the folder {str(place.parent)!r}"))
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(f"pictures need matplotlib ({error}); install it with: pip install 'gavel-py[plot]'") from None
