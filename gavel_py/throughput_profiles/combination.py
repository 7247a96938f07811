"""Several throughput profiles as one, such as public figures and your own."""

from __future__ import annotations

from collections.abc import Sequence

from gavel_py.errors import Fault, InputError
from gavel_py.problem.accelerators import same_accelerator
from gavel_py.throughput_profiles.files import Entry, Measurement
from gavel_py.throughput_profiles.profile import ThroughputProfile

ABOUT = ("description", "licence", "notice", "url")
"""Texts about a profile."""


def combine_profiles(profiles: Sequence[ThroughputProfile], name: str | None = None) -> ThroughputProfile:
    """Return one profile with the measurements of several; of two for the same entry, that of the earlier profile is kept.

    Accelerators of later profiles get the names that earlier ones have for them (`gavel_py.AcceleratorTable`).

    Args:
        profiles: The profiles, the most trusted first.
        name: Name of the result; by default their names, joined by "+".

    Raises:
        InputError: There is no profile, or a job type has different units in two of them.
    """
    if not profiles:
        raise InputError("there is no profile to combine")
    name = "+".join(profile.name for profile in profiles) if name is None else name
    kept: dict[Entry, Measurement] = {}
    accelerators: list[str] = []
    origins: dict[str, ThroughputProfile] = {}
    faults = []
    for profile in profiles:
        names = {each: same_accelerator(each, accelerators) or each for each in profile.accelerators}
        accelerators += [each for each in names.values() if each not in accelerators]
        for job_type in profile.job_types:
            first = origins.setdefault(job_type, profile)
            if first.unit_of(job_type) != profile.unit_of(job_type):
                units = " and ".join(f"{each.unit_of(job_type)} in {each.name!r}" for each in (first, profile))
                problem = f"of job type {job_type!r} is {units}; convert one of them, or rename the job type"
                faults.append(Fault(f"throughput profile {name!r}", "unit", problem))
        for measurement in profile.measurements:
            renamed = measurement.model_copy(update={"accelerator": names[measurement.accelerator]})
            kept.setdefault(renamed.entry, renamed)
    InputError.raise_any(faults)
    return ThroughputProfile(name, kept.values(), **{field: _joined(profiles, field) for field in ABOUT})


def _joined(profiles: Sequence[ThroughputProfile], field: str) -> str:
    return "; ".join(dict.fromkeys(text for profile in profiles if (text := getattr(profile, field))))
