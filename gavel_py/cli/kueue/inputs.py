"""Options of all `gavel kueue` commands, and the cluster that they read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click

import gavel_py as gp
from gavel_py.cli.files import InputFile
from gavel_py.cli.inputs import INPUT, PROFILE, argument, assignments, date, find_profile, main_option, option
from gavel_py.cli.usage import refuse


@dataclass(frozen=True)
class KueueInput:
    """What to read, and how, as typed."""

    state: Path | None = argument("[STATE]", required=False, type=InputFile(suffix=".json"))
    context: str | None = main_option("Input", metavar="NAME", help="Run kubectl get in this context instead of reading a file.")
    profile: str | None = main_option(
        "Input", **PROFILE, help="Speeds by job type; of several profiles, earlier ones take precedence [all equally fast]."
    )
    maps: tuple[str, ...] = main_option(
        "Input", "--map", metavar="FLAVOR=TYPE", help="The accelerator of the profile that a flavor has; by default by its labels."
    )
    types: Path | None = main_option(
        "Input", type=INPUT, metavar="FILE", help="Lines of `pattern: job type`, on namespace/name of jobs; the first match wins."
    )
    hours: float = main_option(
        "Input",
        type=click.FloatRange(0, 10**6, min_open=True),
        default=4.0,
        show_default=True,
        metavar="H",
        help="Length of jobs that state none and of whose type none has finished.",
    )
    now: datetime | None = option(
        "Input", type=date, metavar="TIME", help="Time of the file, as 2026-01-01T12:00:00Z [the newest stamp in it]."
    )
    released: bool = option("Input", help="Read queues that are held as if they were released.")

    def read(self) -> gp.KueueState:
        """Return the cluster."""
        refuse(
            (self.state is None and self.context is None, "give the file that kubectl has written, or - or --context NAME"),
            (self.state is not None and self.context is not None, "give a file or --context, not both"),
        )
        settings = gp.KueueSettings(
            profile=find_profile(self.profile, None) if self.profile else None,
            accelerators=assignments(self.maps, "--map", "FLAVOR=TYPE"),
            types=tuple(_types(self.types)) if self.types else (),
            hours=self.hours,
            now=None if self.now is None else self.now.timestamp(),
            released=self.released,
        )
        return gp.read_kueue_of(self.context, settings) if self.context else gp.read_kueue(self.state, settings)  # type: ignore[arg-type]


def _types(path: Path) -> list[tuple[str, str]]:
    """Return the (pattern, job type) of a file with one per line; lines that begin with # are comments."""
    found, faults = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        pattern, colon, job_type = line.partition(":")
        if colon and pattern.strip() and job_type.strip():
            found.append((pattern.strip(), job_type.strip()))
        elif line.strip() and not line.lstrip().startswith("#"):
            faults.append(gp.Fault(f"{path}, line {number}", "", f"must be `pattern: job type`, found {line.strip()!r}"))
    gp.InputError.raise_any(faults)
    return found
