"""The throughputs in use: a profile, what was measured here, and estimates of gang sizes that nobody measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gavel_py.throughput_profiles import Measurement, ThroughputProfile
from gavel_py.throughput_profiles.extrapolation import extend_profile

__all__ = ["Speeds"]

Measured = Mapping[tuple[str, float, str], float]


class Speeds:
    """base: the profile of the site; measured: {(job type, GPUs, accelerator): steps/s}, which come before it."""

    def __init__(self, base: ThroughputProfile, measured: Measured | None = None, sizes: Iterable[int] = ()) -> None:
        # Nobody shares GPUs here, and nobody is spread on purpose: Slurm cannot be told the splits that come of it.
        alone = [row for row in base.measurements if row.partner_job_type is None and row.placement == "consolidated"]
        self.base, self.measured, self.sizes = ThroughputProfile(base.name, alone), dict(measured or {}), set(sizes)
        self.profile = self._made()

    def with_measured(self, measured: Measured) -> Speeds:
        """Return these speeds with new measurements."""
        return Speeds(self.base, self.measured | dict(measured), self.sizes)

    def need(self, sizes: Iterable[int]) -> None:
        """See to it that these gang sizes are known as far as they can be."""
        new = set(sizes) - self.sizes
        if new:
            self.sizes |= new
            self.profile = self._made()

    def known_on(self, job_type: str, num_gpus: int, accelerators: Iterable[str]) -> tuple[str, ...]:
        """Return the accelerators on which the speed of such a gang is known, and is not 0."""
        has, speed = self.profile.has, self.profile.throughput
        return tuple(name for name in accelerators if has(job_type, num_gpus, name) and speed(job_type, num_gpus, name) > 0)

    def speed(self, job_type: str, num_gpus: int, accelerator: str) -> float:
        """Return the steps/s of such a gang, 0 where they are not known."""
        known = self.profile.has(job_type, num_gpus, accelerator)
        return self.profile.throughput(job_type, num_gpus, accelerator) if known else 0.0

    def _made(self) -> ThroughputProfile:
        rows = [row for row in self.base.measurements if not self._replaces(row)]
        ours = [
            Measurement(job_type=job_type, num_gpus=gpus, accelerator=name, steps_per_second=speed, source="slurm")
            for (job_type, gpus, name), speed in self.measured.items()
        ]
        return extend_profile(ThroughputProfile(self.base.name, [*rows, *ours]), self.sizes)

    def _replaces(self, row: Measurement) -> bool:
        return row.placement == "consolidated" and (row.job_type, row.num_gpus, row.accelerator) in self.measured
