"""Which job types of a profile a job may have, by the size of its gang."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from gavel_py.errors import Fault, InputError
from gavel_py.throughput_profiles import ThroughputProfile

__all__ = ["Models", "known_accelerators", "reference_of"]


class Models:
    """The job types of a profile that are known, running alone and consolidated, on all of some accelerators."""

    def __init__(self, profile: ThroughputProfile, reference: str, accelerators: tuple[str, ...]) -> None:
        self.profile, self.reference, self.accelerators = profile, reference, accelerators
        self.at = cache(self._at)

    def reference_of(self, accelerator: str) -> str:
        """Return the accelerator on which steps are counted for a job that ran there."""
        return accelerator if accelerator in self.profile.accelerators else self.reference

    def have(self, num_gpus: float) -> bool:
        """Say whether any type is known for this gang."""
        return bool(self.at(num_gpus, self.reference))

    def _at(self, num_gpus: float, reference: str) -> tuple[str, ...]:
        """The types of this gang size that run on the reference; a type must be known, be it as 0, on every other accelerator."""
        profile = self.profile
        return tuple(
            job_type
            for job_type in profile.job_types
            if all(profile.has(job_type, num_gpus, accelerator) for accelerator in {*self.accelerators, reference})
            and profile.throughput(job_type, num_gpus, reference) > 0
        )


def reference_of(profile: ThroughputProfile, reference: str | None) -> str:
    """Return the accelerator on which durations hold: the one named, or else v100, or else the first of the profile."""
    if reference is None:
        return "v100" if "v100" in profile.accelerators else profile.accelerators[0]
    return known_accelerators(profile, [reference])[0]


def known_accelerators(profile: ThroughputProfile, accelerators: Sequence[str] | None) -> tuple[str, ...]:
    """Return these accelerators, all of the profile for None; raises `InputError` for one that it does not know."""
    chosen = profile.accelerators if accelerators is None else tuple(accelerators)
    known = ", ".join(profile.accelerators)
    strange = [
        Fault(f"throughput profile {profile.name!r}", "accelerator", f"{name!r} is not in it; known: {known}")
        for name in chosen
        if name not in profile.accelerators
    ]
    InputError.raise_any(strange)
    return chosen
