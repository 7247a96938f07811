"""Cells as Slurm writes them: lists of trackable resources, and lengths of time."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gavel_py.errors import Fault, InputError
from gavel_py.workloads.cells import is_missing

__all__ = ["gpus_of", "length_of"]

RESOURCES = ("AllocTRES", "ReqTRES")
"""What the job got, or else asked for."""

UNLIMITED = {"UNLIMITED", "Partition_Limit", "INVALID"}
LENGTH = re.compile(r"(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+(?:\.\d+)?)")


def gpus_of(row: Mapping[str, str]) -> tuple[int, str]:
    """Return how many GPUs a job has, and of which type if it says so, as in "billing=8,gres/gpu:a100=4,gres/gpu=4"."""
    known = [name for name in RESOURCES if name in row]
    if not known:
        raise InputError(Fault("", RESOURCES[0], f"column {' or '.join(RESOURCES)} is needed, which tells the GPUs; see --format"))
    for name in known:
        found = re.findall(r"(?:^|,)gres/gpu(?::([^=,]+))?=([0-9]+)", row[name])
        if found:
            # The total stands beside the parts by type, or alone, or not at all.
            parts = {kind: int(gpus) for kind, gpus in found if kind}
            total = max([int(gpus) for kind, gpus in found if not kind], default=sum(parts.values()))
            return total, next(iter(parts)) if len(parts) == 1 else ""
    return 0, ""


def length_of(row: Mapping[str, str], name: str) -> float | None:
    """Return the seconds in a cell such as 1-02:03:04, 02:03 or 90 (seconds); None where it is missing or unlimited."""
    text = row.get(name, "").strip()
    if is_missing(text) or text in UNLIMITED:
        return None
    if re.fullmatch(r"\d+", text):
        return float(text)
    match = LENGTH.fullmatch(text)
    if match is None:
        raise InputError(Fault("", name, f"must be a length of time as in 1-02:03:04, found {text!r}"))
    days, hours, minutes, seconds = (float(match[part] or 0) for part in ("days", "hours", "minutes", "seconds"))
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
