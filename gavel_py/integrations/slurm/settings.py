"""Settings of a site: the managed partition, the mapping of jobs and GPU types, and time limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from gavel_py.errors import Fault, InputError, UnknownNameError, decimal_hint, nearest, together
from gavel_py.integrations.slurm.client.notation import StopSignal, is_node_name, signal_in
from gavel_py.integrations.slurm.job_roles import JobComment
from gavel_py.io import reading
from gavel_py.io.records import number_of

OnExit = Literal["leave", "release"]
OnFailure = Literal["retry", "release"]
WallLimit = Literal["total", "start"]
COLUMNS = ("name", "job_type", "total_steps")


def partitions_in(text: str) -> tuple[str, ...]:
    """Return the partitions in a list such as gpu,gpu-long, each once. Raises `InputError` for an invalid name."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    invalid = [name for name in names if not is_node_name(name)]  # names of partitions follow the same rules
    InputError.raise_any([Fault("slurm", "partition", f"{name!r} is not a valid partition name") for name in invalid])
    return names


TIMES = ("poll_seconds", "stop_seconds", "start_seconds", "retry_seconds")


@dataclass(frozen=True)
class TypeRule:
    """Maps jobs to a job type by their name, or by an unknown type in their comment.

    Attributes:
        pattern: A shell pattern, such as bert*.
        job_type: The type of matching jobs in the profile.
        total_steps: Steps of matching jobs that do not give their own; None to leave them unknown.
    """

    pattern: str
    job_type: str
    total_steps: float | None = None

    @classmethod
    def from_csv(cls, path: str | Path) -> tuple[TypeRule, ...]:
        """Read rules from a CSV file.

        Args:
            path: The file, with the columns name (a pattern), job_type and optionally total_steps.

        Returns:
            The rules in the order of the file.

        Raises:
            InputError: The file cannot be read or has invalid rows; the error lists all of them.
        """
        rules, faults = [], []
        for where, row in reading.csv_rows(path, required=("name", "job_type")):
            faults += [Fault(where, name, "is required") for name in ("name", "job_type") if name not in row]
            faults += [Fault(where, name, f"is not known{nearest(name, COLUMNS)}") for name in row if name not in COLUMNS]
            steps = number_of(row["total_steps"]) if "total_steps" in row else None
            if steps is not None and not 0 < steps < math.inf:
                text = f"must be a number greater than 0, found {row['total_steps']!r}{decimal_hint(row['total_steps'])}"
                faults.append(Fault(where, "total_steps", text))
            rules.append(cls(row.get("name", ""), row.get("job_type", ""), steps))
        InputError.raise_any(faults)
        return tuple(rules)


@dataclass(frozen=True)
class SlurmSettings:
    """Settings of a driver.

    Attributes:
        partition: The partition whose jobs are managed, or several, separated by commas; no other job is touched.
        accelerators: {GPU type in Slurm: name in the profile}, where they differ.
        prices_per_hour: {name in the profile: price of a GPU-hour}.
        type_rules: Rules for job types, of which the first match applies.
        default_type: Job type of jobs whose type is unknown; None for the type with measurements of the most gang sizes.
        default_steps: Steps of jobs that specify none; None for the number that the time limit allows on the slowest type.
        trust: Largest factor between the speeds of the profile and those implied by progress files or steps in comments; reports
            beyond it are not believed.
        trusted: {user: factor for the jobs of this user, instead of `trust`}.
        poll_seconds: Interval between readings of the queue within a round.
        stop_seconds: Time limit for jobs to stop.
        start_seconds: Time limit for jobs to start.
        warn_signal: Signal to jobs before they are stopped, as in sbatch --signal: "USR1", or "B:USR1" to the batch script only;
            "" for none. The comment of a job takes precedence.
        warn_seconds: Time from this signal to the stop, and the longest time that a job may request; 0 for no signals.
        tenants_from_slurm: Whether the tenants of the policy are Slurm's accounts and their users, weighted by fairshare.
        wall_limit: Whether the time limit of a job counts over all of its starts ("total"), or for each start as in Slurm
            ("start").
        elastic: Whether jobs with a range of nodes, or with several numbers of GPUs in their comment, may run on any of these
            numbers that the profile covers; otherwise they run on the fewest nodes of their request.
        retry_seconds: First delay before a retry, when the controller does not answer or a job did not start.
        on_failure: What to do when no round is possible, for instance with a full disk or an unreadable state: "retry", or
            "release" to release the jobs on hold to Slurm as well.
        beacon: Whether the driver gives a sign of life in Slurm, which the plugin needs to hold jobs.
        metrics: File to which metrics for Prometheus are written after each round; None for no file.
        metrics_port: The port of 127.0.0.1 on which GET /metrics returns them; None for none.
        on_exit: Whether held jobs stay on hold ("leave") or are released to Slurm ("release") when the driver ends.

    Raises:
        InputError: A value is invalid.
    """

    partition: str
    accelerators: Mapping[str, str] = field(default_factory=dict)
    prices_per_hour: Mapping[str, float] = field(default_factory=dict)
    type_rules: tuple[TypeRule, ...] = ()
    default_type: str | None = None
    default_steps: float | None = None
    trust: float = 10.0
    trusted: Mapping[str, float] = field(default_factory=dict)
    poll_seconds: float = 5.0
    stop_seconds: float = 120.0
    start_seconds: float = 60.0
    warn_signal: str = ""
    warn_seconds: float = 60.0
    wall_limit: WallLimit = "total"
    tenants_from_slurm: bool = False
    elastic: bool = True
    retry_seconds: float = 5.0
    on_exit: OnExit = "leave"
    on_failure: OnFailure = "retry"
    beacon: bool = True
    metrics: Path | None = None
    metrics_port: int | None = None

    @cached_property
    def partitions(self) -> tuple[str, ...]:
        """The partitions whose jobs are managed."""
        return partitions_in(self.partition)

    def trust_in(self, user: str) -> float:
        """Return the factor from the speeds of the profile up to which reports of a user's jobs are believed."""
        return self.trusted.get(user, self.trust)

    def stop_signal(self, comment: JobComment) -> StopSignal | None:
        """Return the signal, with its time, that warns a job with this comment before a stop; None for no signal."""
        signal = comment.warn or (None if comment.is_unwarned else signal_in(self.warn_signal))
        if signal is None or not self.warn_seconds:
            return None
        seconds = self.warn_seconds if signal.seconds is None else min(signal.seconds, self.warn_seconds)
        return signal._replace(seconds=seconds)

    def __post_init__(self) -> None:
        named: dict[str, object] = {name: getattr(self, name) for name in TIMES}
        if self.default_steps is not None:
            named["default_steps"] = self.default_steps
        named |= {f"price of {name!r}": price for name, price in self.prices_per_hour.items() if price != 0}
        faults = [
            Fault("slurm", name, f"must be a finite number greater than 0, found {value!r}")
            for name, value in named.items()
            if not (isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf)
        ]
        factors = {"trust": self.trust} | {f"trust in {user!r}": factor for user, factor in self.trusted.items()}
        faults += [
            Fault("slurm", name, f"must be a finite number of at least 1, found {factor!r}")
            for name, factor in factors.items()
            if not 1 <= factor < math.inf
        ]
        if not 0 <= self.warn_seconds < math.inf:
            faults.append(Fault("slurm", "warn_seconds", f"must be a finite number of at least 0, found {self.warn_seconds!r}"))
        if self.metrics_port is not None and not 0 < self.metrics_port < 65_536:
            faults.append(Fault("slurm", "metrics_port", f"must be a port from 1 to 65535, found {self.metrics_port!r}"))
        if self.warn_signal and signal_in(self.warn_signal) is None:
            faults.append(Fault("slurm", "warn_signal", f"{self.warn_signal!r} is not a signal such as USR1 or B:USR1"))
        with together() as attempt:
            attempt(lambda: InputError.raise_any(faults))
            attempt(lambda: partitions_in(self.partition))
        for name, kind in (("on_exit", OnExit), ("on_failure", OnFailure), ("wall_limit", WallLimit)):
            value = getattr(self, name)
            if value not in get_args(kind):
                raise UnknownNameError(Fault("slurm", name, f"{value!r} is not known{nearest(value, get_args(kind))}"))
