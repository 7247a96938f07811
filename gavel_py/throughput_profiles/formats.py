"""The formats in which throughputs are read, by name: CSV, the JSON of the published Gavel, and the tables of Pollux and Sia."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gavel_py.errors import check_known
from gavel_py.io import reading
from gavel_py.throughput_profiles import pollux
from gavel_py.throughput_profiles.files import Measurement, checked_rows, read_csv, read_gavel_json

FORMATS: dict[str, tuple[str, Callable[[str | Path], tuple[Measurement, ...]]]] = {
    "csv": ("a CSV file with the fields of a measurement as columns", read_csv),
    "gavel": ("the throughputs JSON of the published Gavel", read_gavel_json),
    "pollux": (
        "the tables of Pollux and Sia: a folder of step times and gradient statistics",
        lambda path: checked_rows(pollux.rows(Path(path)), []),
    ),
}
"""{name: (description, reader)}."""

OF_SUFFIX = {".csv": "csv", ".json": "gavel"}


def profile_formats() -> dict[str, str]:
    """Return {name: description} of the formats that `ThroughputProfile.from_file` reads."""
    return {name: about for name, (about, _) in FORMATS.items()}


def read_as(path: str | Path, name: str | None = None) -> tuple[Measurement, ...]:
    """Return the measurements of a file in the format with the given name; by default by its suffix, of a folder as `pollux`.

    Raises `UnknownNameError` for an unknown name, and `InputError` if the file cannot be read or has faults.
    """
    if name is None:
        name = "pollux" if Path(path).is_dir() else OF_SUFFIX[reading.suffix_of(path, OF_SUFFIX)]
    check_known("profile formats", "format", [name], FORMATS)
    return FORMATS[name][1](path)
