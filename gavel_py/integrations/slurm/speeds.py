"""The throughputs that a driver uses: those of the site with what it has measured, or of a `ThroughputLearner`."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gavel_py.errors import refuse
from gavel_py.integrations.slurm.records import Tracked
from gavel_py.problem.profile import Profile
from gavel_py.throughput_profiles import Measurement, ThroughputProfile
from gavel_py.throughput_profiles.extrapolation import extend_profile
from gavel_py.throughput_profiles.files import Entry
from gavel_py.throughput_profiles.units import UnitOf

if TYPE_CHECKING:
    from gavel_py import ThroughputLearner
    from gavel_py.scheduling import RoundScheduler

Gang = tuple[str, float, str]
"""Job type, GPUs and accelerator."""

Sums = dict[tuple[str, int, str], list[float]]
"""{gang: [steps, seconds]} summed over measured stays."""

NO_JOB = "-"
"""Job type that stands for no job."""

MAX_PROGRESS_BYTES = 64


@dataclass(frozen=True)
class ProgressFiles:
    """A directory in which jobs write their steps done to files named by job id, 37 or 37_1; None for no directory."""

    directory: Path | None = None

    def __post_init__(self) -> None:
        is_wrong = self.directory is not None and not self.directory.is_dir()
        refuse(str(self.directory), (is_wrong, "", "is not a directory of progress files"))

    def steps(self, job_id: str) -> float | None:
        """Return the steps that a job reports, or None without a valid file.

        Users control these files, so only the beginning of a regular file is read, and links are not followed.
        """
        if self.directory is None:
            return None
        try:
            descriptor = os.open(self.directory / job_id, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            words = os.read(descriptor, MAX_PROGRESS_BYTES).split()
            steps = float(words[0]) if words else math.nan
        except (OSError, ValueError):
            return None
        finally:
            os.close(descriptor)
        return steps if math.isfinite(steps) and steps >= 0 else None


class Speeds:
    """The throughputs in use, in steps/s.

    Measurements come first, then the profile of the site, then estimates: those of the profile, or estimates for other gang sizes.
    With a learner, all throughputs come from its profile, which has estimates of all job types and gang sizes.

    base: the profile of the site; measured: {gang: steps/s}; sizes: gang sizes to estimate; learner: None without a learner.
    """

    def __init__(
        self, base: ThroughputProfile | ThroughputLearner, measured: Mapping[Gang, float] | None = None, sizes: Iterable[int] = ()
    ) -> None:
        self.learner = None if isinstance(base, ThroughputProfile) else base
        profile = base if isinstance(base, ThroughputProfile) else base.measured
        # Slurm cannot place co-located gangs, nor spread gangs on purpose.
        usable = [row for row in profile.measurements if row.partner_job_type is None and row.placement == "consolidated"]
        self.base, self.measured, self.sizes = ThroughputProfile(profile.name, usable), dict(measured or {}), set(sizes)
        self._refitted: Callable[[ThroughputProfile], ThroughputProfile] | None = getattr(profile, "refitted", None)
        self._profile = self._combined()

    @property
    def profile(self) -> ThroughputProfile:
        """The throughputs as a profile; a new object after they have changed."""
        return self._profile if self.learner is None else self.learner.profile

    @property
    def job_types(self) -> frozenset[str]:
        """The job types with a measured or observed throughput."""
        observed = () if self.learner is None else self.learner.observations
        return frozenset(self.base.job_types).union(entry.job_type for entry in observed)

    def use_in(self, scheduler: RoundScheduler) -> None:
        """Make a scheduler use these throughputs; a scheduler with a learner replaces its profile itself."""
        if self.learner is None:
            if scheduler.profile is not self._profile:
                scheduler.profile = self._profile
        elif scheduler.learner is not self.learner:
            scheduler.profile = self.learner

    @property
    def has_estimates(self) -> bool:
        """Whether throughputs of GPU types or job types that were not measured are estimated."""
        return self.learner is not None or self._refitted is not None

    def cover(self, sizes: Iterable[int]) -> None:
        """Add estimates for further gang sizes."""
        new = set(sizes) - self.sizes
        if new:
            self.sizes |= new
            self._profile = self._combined()

    def speed(self, job_type: str, num_gpus: int, accelerator: str) -> float:
        """Return the throughput of a gang in steps/s, 0 if unknown."""
        profile = self.profile
        return profile.throughput(job_type, num_gpus, accelerator) if profile.has(job_type, num_gpus, accelerator) else 0.0

    def speed_as_held(self, job: Tracked) -> float:
        """Return the throughput of a job on the GPUs that it holds, in steps/s, 0 if unknown.

        Slurm itself may start a job with a range of nodes on any of them. A number of GPUs that the profile lacks is estimated; if
        the profile has only one number, each GPU counts as there.
        """
        self.cover([job.gpus])
        found = self.speed(job.job_type, job.gpus, job.accelerator)
        return found or self.speed(job.job_type, job.num_gpus, job.accelerator) * job.gpus / job.num_gpus

    def is_measured(self, job_type: str, num_gpus: int, accelerator: str) -> bool:
        """Return whether the throughput of a gang is measured or in the profile of the site, not an estimate for its size."""
        return (job_type, num_gpus, accelerator) in self.measured or self.base.has(job_type, num_gpus, accelerator)

    def fastest(self, job_type: str, num_gpus: int) -> float:
        """Return the largest throughput of a gang on any type, in steps/s, 0 if none is known.

        It is infinite if a learner can only estimate it from specifications, since no bound is known then.
        """
        names = self.profile.accelerators
        if self.learner is not None and not any(self.learner.knows(Entry(job_type, num_gpus, name)) for name in names):
            return float("inf")
        return max((self.speed(job_type, num_gpus, name) for name in names), default=0.0)

    def _combined(self) -> ThroughputProfile:
        if self.learner is not None:
            return self.base
        rows = [row for row in self.base.measurements if (row.job_type, row.num_gpus, row.accelerator) not in self.measured]
        new = (measurement(each, self.base.unit_of(each[0][0])) for each in self.measured.items())
        known = ThroughputProfile(self.base.name, [*rows, *new])
        return extend_profile(known, self.sizes) if self._refitted is None else self._refitted(known)


def measurement(measured: tuple[Gang, float], counts: UnitOf | None = None) -> Measurement:
    """Return the measured speed of a gang as a row of a profile; counts: what its job type counts."""
    (job_type, gpus, name), speed = measured
    row: dict[str, Any] = {"job_type": job_type, "num_gpus": gpus, "accelerator": name, "steps_per_second": speed}
    return Measurement(**row, **(counts or UnitOf())._asdict(), source="slurm")


def estimates_in(profile: Profile, accelerators: Collection[str]) -> dict[Gang, float]:
    """Return {gang: steps/s} of the estimates that a profile has made for these accelerators; empty for one without estimates.

    Each accelerator is in the result, also if no job has asked for it yet.
    """
    found = getattr(profile, "found", None)
    if found is None:
        return {}
    made = {each.entry[:3]: each.steps_per_second for each in found.values() if each.entry.accelerator in accelerators}
    return {**{(NO_JOB, 1, name): 0.0 for name in accelerators}, **made}


def saved_learner(
    scheduler: Mapping[str, Any], base: ThroughputProfile, given: ThroughputLearner | None
) -> ThroughputLearner | None:
    """Return the learner for a saved scheduler, or None if it was saved without one.

    This is the given learner, or a new one if the given one lacks GPU types of the saved scheduler. base: the profile with which
    the scheduler began.
    """
    from gavel_py import ThroughputLearner as Learner  # imports scipy

    if "learner" not in scheduler:
        return None
    kinds = scheduler["scheduler"]["cluster"]["accelerator_types"]
    types = [kind.get("profile_name") or kind["name"] for kind in kinds]
    if given is not None:
        given.add_accelerators(types)
        if set(types) <= set(given.profile.accelerators):
            return given
        given.resume(scheduler["learner"]["learned"])
    return Learner(base)
