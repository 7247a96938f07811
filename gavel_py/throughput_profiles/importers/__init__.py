"""Published throughputs in the formats of their sources, one module for each. A new one needs a module and an entry in `FORMATS`.

`read_as` reads a file as measurements. A format recognises a file by its beginning and yields the fields of its measurements.
"""

from __future__ import annotations

from pathlib import Path

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.io import reading
from gavel_py.throughput_profiles.files import READERS, REQUIRED, Measurement, checked_rows
from gavel_py.throughput_profiles.importers import elasticflow, llm_foundry, megatron_bridge, mlperf, pollux, trtllm
from gavel_py.throughput_profiles.importers.tables import Head, ProfileFormat, head_of, with_columns

__all__ = ["FORMATS", "profile_formats", "read_as"]

CSV = "csv"
GAVEL = "gavel"

OWN = {CSV: "a CSV file with the fields of a measurement as columns", GAVEL: "the throughputs JSON of the published Gavel"}

FORMATS: tuple[ProfileFormat, ...] = (
    mlperf.TRAINING,
    mlperf.INFERENCE,
    mlperf.INFERENCE_SUMMARY,
    megatron_bridge.FORMAT,
    llm_foundry.FORMAT,
    elasticflow.FORMAT,
    trtllm.FORMAT,
    trtllm.BY_PRECISION,
    pollux.FORMAT,
)
"""The order in which formats are tried on a file."""

BY_NAME = {each.name: each for each in FORMATS}


def profile_formats() -> dict[str, str]:
    """Return {name: description} of the formats that `ThroughputProfile.from_file` reads."""
    return OWN | {each.name: each.about for each in FORMATS}


def read_as(path: str | Path, name: str | None = None) -> tuple[Measurement, ...]:
    """Return the measurements of a file in the format with the given name, by default the one that recognises it.

    Raises `UnknownNameError` for an unknown name, and `InputError` if the file cannot be read, has faults, or has no known format.
    """
    if name is not None and name not in profile_formats():
        raise UnknownNameError(Fault("profile formats", "format", f"{name!r} is not known{nearest(name, profile_formats())}"))
    if name in OWN:
        return READERS[".csv" if name == CSV else ".json"](path)
    found = _recognised(path) if name is None else BY_NAME[name]
    if found is not None:
        measurements = checked_rows(found.merged(found.read(Path(path))), [])
        if not measurements:
            raise InputError(Fault(str(path), "", f"has no throughput in the format {found.name}: {found.about}"))
        return measurements
    suffix = reading.suffix_of(path, READERS)
    return READERS[suffix](path)


def _recognised(path: str | Path) -> ProfileFormat | None:
    """Return the format of a file, None for the user's own CSV and for files that no format recognises."""
    is_folder = Path(path).is_dir()
    if not is_folder and not Path(path).is_file():  # a pipe can be read only once
        return None
    head = Head(Path(path), "") if is_folder else head_of(path)
    return None if with_columns(*REQUIRED)(head) else next((each for each in FORMATS if each.recognises(head)), None)
