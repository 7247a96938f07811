"""Settings of a site: the managed partition, the mapping of jobs and GPU types, and time limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, Unpack

from pydantic import Field, field_validator

from gavel_py.errors import Fault, InputError, decimal_hint, nearest
from gavel_py.integrations.slurm.client.notation import StopSignal, is_node_name, signal_in
from gavel_py.integrations.slurm.job_roles import JobComment
from gavel_py.io import reading
from gavel_py.io.records import Multiple, NotNegative, Options, Port, Positive, SecondsAboveZero, SecondsFromZero, number_of

if TYPE_CHECKING:
    from gavel_py.integrations.slurm.keywords import SettingKeywords

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


def setting(default: Any, help_text: str, group: str = "", *names: str, metavar: str | None = None) -> Any:
    """Declare a setting by its default and its help, of which the first sentence is that of its option of the commands.

    group: the heading of this option in the help; without one, there is none. names: its name, if it differs. metavar: its value.
    """
    flag: dict[str, Any] = {"group": group, "names": list(names), "metavar": metavar}
    return Field(default, description=help_text, json_schema_extra={"flag": flag} if group else None)


class SlurmSettings(Options):
    """The settings of a driver. Frozen, and checked when they are made; the commands have most of them as options.

    Raises:
        InputError: A value is invalid, or a setting is not known.
    """

    label: ClassVar[str] = "slurm"

    partition: str = setting(
        ..., "Partition whose jobs are managed, or several, separated by commas, as in gpu,gpu-long. No other job is touched."
    )
    measured: str = setting(
        "slurm", "Name of the profile of measured speeds. It is a profile in the store of the driver.", "Input", metavar="NAME"
    )
    accelerators: Mapping[str, str] = setting(
        {},
        "Name of a GPU type in Slurm, and in the profile. It is needed where they differ.",
        "Input",
        "--map-accelerator",
        metavar="OLD=NEW",
    )
    prices_per_hour: Mapping[str, NotNegative] = setting(
        {}, "Price of a GPU-hour of a type. The type has the name of the profile.", "Input", "--price", metavar="TYPE=PRICE"
    )
    type_rules: tuple[TypeRule, ...] = setting((), "Rules for job types, of which the first match applies.")
    default_type: str | None = setting(
        None, "Job type of all other jobs. By default, the type with measurements of the most gang sizes.", "Jobs", metavar="TYPE"
    )
    default_steps: Positive | None = setting(
        None,
        "Steps of jobs that specify none. By default, the number that the time limit allows on the slowest type.",
        "Jobs",
        metavar="N",
    )
    trust: Multiple = setting(
        10.0,
        "Factor by which steps and progress that jobs report may differ from the profile. More is not believed.",
        "Jobs",
        metavar="X",
    )
    trusted: Mapping[str, Multiple] = setting(
        {}, "The same for the jobs of one user. It takes the place of `trust`.", "Jobs", "--trust-user", metavar="NAME=X"
    )
    too_slow: Multiple | None = setting(
        None,
        "Keep jobs off GPU types on which they are slower by more than this factor than on their fastest. A job that runs on one "
        "stays there.",
        "Jobs",
        metavar="X",
    )
    progress: Path | None = setting(
        None, "Directory where each job writes its steps to a file named after its id.", "Jobs", metavar="DIR"
    )
    warn_signal: str = setting(
        "",
        "Signal to jobs before a stop, as USR1, or B:USR1 for the script. The comment of a job takes precedence.",
        "Jobs",
        metavar="SIGNAL",
    )
    warn_seconds: SecondsFromZero = setting(
        60.0, "Time from this signal to the stop; jobs may ask for less. 0 for no signals.", "Jobs", metavar="S"
    )
    wall_limit: WallLimit = setting("total", "Count the time limits of jobs over all starts, or for each start.", "Jobs")
    poll_seconds: SecondsAboveZero = setting(5.0, "Time between two readings of the queue.", "Run", "--poll", metavar="S")
    stop_seconds: SecondsAboveZero = setting(120.0, "Time that jobs may take to stop.", "Run", metavar="S")
    start_seconds: SecondsAboveZero = setting(60.0, "Time that jobs may take to start.", "Run", metavar="S")
    retry_seconds: SecondsAboveZero = setting(
        5.0, "First delay before a retry, when the controller does not answer or a job did not start."
    )
    on_exit: OnExit = setting("leave", "At the end, Slurm starts waiting jobs when the lease ends, or at once [release].", "Run")
    on_failure: OnFailure = setting(
        "retry",
        "If no round is possible, as with a full disk, try again until the lease ends, or let Slurm start waiting jobs at once.",
        "Run",
    )
    lease: Positive = setting(
        600.0,
        "Time after which Slurm starts waiting jobs itself if the driver is dead.",
        "Run",
        metavar="S",
    )
    history: Path | None = setting(
        None, "State of a driver whose stops and starts a shadow assumes [those of the documentation].", "Run", metavar="DIR"
    )
    tenants_from_slurm: bool = setting(
        False, "Share by Slurm's accounts and users, weighted by fairshare (hierarchical).", "Policy"
    )
    elastic: bool = setting(
        True,
        "Choose the number of nodes of jobs with a range [yes], or plan the minimum. So it is with several numbers of GPUs in the "
        "comment of a job; the profile must cover these numbers.",
        "Policy",
    )
    metrics: Path | None = setting(
        None, "Write figures for Prometheus here (node_exporter reads *.prom in its directory).", "Output", metavar="FILE"
    )
    metrics_port: Port | None = setting(None, "Serve these figures at http://127.0.0.1:PORT/metrics.", "Output", metavar="PORT")

    def __init__(self, partition: str | None = None, /, **settings: Unpack[SettingKeywords]) -> None:
        super().__init__(**({} if partition is None else {"partition": partition}), **dict[str, Any](settings))

    def changed(self, **changes: Unpack[SettingKeywords]) -> Self:
        """Return the settings with other values for some, checked."""
        return self._with(changes)

    @field_validator("partition")
    @classmethod
    def _valid(cls, partition: str) -> str:
        partitions_in(partition)  # raises
        return partition

    @field_validator("warn_signal")
    @classmethod
    def _known(cls, signal: str) -> str:
        if signal and signal_in(signal) is None:
            raise ValueError(f"{signal!r} is not a signal such as USR1 or B:USR1")
        return signal

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
