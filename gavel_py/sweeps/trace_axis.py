"""The traces of a sweep: read from files, or drawn for each load and seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from gavel_py.errors import Fault, InputError
from gavel_py.io.records import GangSize, NotNegative, Positive, Record, Text, Whole
from gavel_py.sweeps.parts import Choice, Part
from gavel_py.sweeps.spec import Asked
from gavel_py.throughput_profiles import ThroughputProfile
from gavel_py.workloads import Empirical, LogUniform, Submission, Trace, generate_trace, read_trace, trace_text

__all__ = ["Generator", "lacks_type", "trace_choice"]


class TraceEntry(Record):
    """An entry of `traces` that is a mapping; file: a trace that is there already may stand for one."""

    label: ClassVar[str] = "trace"

    file: Any = None
    format: Text | None = None
    generate: Any = None
    name: Text | None = None


class Generator(Record):
    """What `generate` says: arguments of `generate_trace`, but for load and seed, which have axes of their own."""

    label: ClassVar[str] = "generate"

    jobs: Whole
    gangs: dict[GangSize, Positive] | None = None
    durations: list[tuple[Positive, Positive, Positive]] | Text | None = None
    burstiness: NotNegative = 1.0
    heavy_share: NotNegative = 0.0
    heavy_weight: Positive = 5.0
    reference: Text = "v100"
    seconds: tuple[Positive, ...] = ()

    def draw(self, profile: ThroughputProfile, load: float | None, seed: int) -> Trace:
        """Return the trace for so many jobs per hour, None: all at time 0."""
        pieces = self.durations if isinstance(self.durations, list) else None
        return generate_trace(
            self.jobs,
            profile,
            jobs_per_hour=load,
            burstiness=self.burstiness,
            gang_mix=self.gangs,
            durations=Empirical(self.seconds) if self.seconds else LogUniform(tuple(pieces)) if pieces else None,
            heavy_share=self.heavy_share,
            heavy_weight=self.heavy_weight,
            reference=self.reference,
            seed=seed,
        )


def trace_choice(asked: Asked, entry: Any) -> Choice:
    """Return a trace of the spec; raises `InputError`."""
    given = {"file": entry} if isinstance(entry, str | Trace) else entry
    if not isinstance(given, Mapping):
        raise InputError(Fault("", "", f"must be a file, or a mapping with file or generate, found {entry!r}"))
    checked = TraceEntry(**{str(key): value for key, value in given.items()})
    if (checked.file is None) == (checked.generate is None):
        raise InputError(Fault("", "", "must have either file or generate"))
    if isinstance(checked.file, Trace):
        return _read(checked.name or "trace", checked.file)
    if isinstance(checked.file, str):
        return _read(checked.name or Path(checked.file).name, read_trace(asked.path(checked.file), checked.format))
    if checked.file is not None:
        raise InputError(Fault("", "file", f"must be the name of a file, found {checked.file!r}"))
    return _drawn(asked, checked)


def _drawn(asked: Asked, entry: TraceEntry) -> Choice:
    if not isinstance(entry.generate, Mapping):
        raise InputError(Fault("", "generate", f"must be a mapping such as {{jobs: 500}}, found {entry.generate!r}"))
    generator = Generator(**{str(key): value for key, value in entry.generate.items()})
    if isinstance(generator.durations, str):  # drawn from those of a trace
        found = (submission.run_seconds for submission in read_trace(asked.path(generator.durations)))
        generator = generator.model_copy(update={"seconds": Empirical(s for s in found if s).seconds, "durations": None})
    content = {"generate": generator.model_dump(mode="json")}
    return Choice(entry.name or f"{generator.jobs} generated jobs", content, Part.of(generator, content))


def _read(label: str, trace: Trace) -> Choice:
    content = {"sha256": hashlib.sha256(trace_text(trace).encode()).hexdigest()}
    return Choice(label, content, Part.of(trace, content))


def lacks_type(submission: Submission) -> bool:
    """Say whether a job gets its type or its steps only by a draw."""
    job = submission.job
    return not job.job_type or (job.total_steps is None and job.duration_seconds is None)
