"""What a site decides: which partition is managed, what jobs are taken for, and how long things may take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from gavel_py.errors import Fault, InputError, UnknownNameError, decimal_hint, nearest
from gavel_py.integrations.slurm.parsing import is_node_name
from gavel_py.io import reading
from gavel_py.io.records import number_of

OnExit = Literal["leave", "release"]

COLUMNS = ("name", "job_type", "total_steps")
TIMES = ("poll_seconds", "stop_seconds", "start_seconds", "retry_seconds")


@dataclass(frozen=True)
class TypeRule:
    """Jobs whose name (or whose type, if it is none of the profile) fits the pattern, as in bert*, are of this type.

    total_steps: what such a job does that does not say it.
    """

    pattern: str
    job_type: str
    total_steps: float | None = None

    @classmethod
    def from_csv(cls, path: str | Path) -> tuple[TypeRule, ...]:
        """Read rules from CSV with the columns name (a pattern), job_type and, if wanted, total_steps. Raises `InputError`."""
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
    """partition: the only one whose jobs are touched; accelerators: {name of a GPU type in Slurm: its name in the profile}, for
    those that differ; prices_per_hour: {name in the profile: price}; type_rules: the first that fits counts; default_type: what a
    job is taken for of which nothing is known, None: that with most gang sizes; default_steps: of jobs that tell none, None: what
    their time limit allows on the slowest type; poll_seconds: how often the queue is read within a round; stop_seconds,
    start_seconds: how long jobs may take to stop and to start; retry_seconds: the first wait for a controller that does not answer;
    on_exit: whether jobs that wait on hold are left so, or released to Slurm.

    Raises `InputError` for a wrong value.
    """

    partition: str
    accelerators: Mapping[str, str] = field(default_factory=dict)
    prices_per_hour: Mapping[str, float] = field(default_factory=dict)
    type_rules: tuple[TypeRule, ...] = ()
    default_type: str | None = None
    default_steps: float | None = None
    poll_seconds: float = 30.0
    stop_seconds: float = 120.0
    start_seconds: float = 60.0
    retry_seconds: float = 5.0
    on_exit: OnExit = "leave"

    def __post_init__(self) -> None:
        InputError.raise_any([*self._time_faults(), *self._name_faults()])
        if self.on_exit not in get_args(OnExit):
            raise UnknownNameError(
                Fault("slurm", "on_exit", f"{self.on_exit!r} is not known{nearest(self.on_exit, get_args(OnExit))}")
            )

    def _time_faults(self) -> list[Fault]:
        named: dict[str, object] = {name: getattr(self, name) for name in TIMES}
        if self.default_steps is not None:
            named["default_steps"] = self.default_steps
        named |= {f"price of {name!r}": price for name, price in self.prices_per_hour.items() if price != 0}
        return [
            Fault("slurm", name, f"must be a finite number greater than 0, found {value!r}")
            for name, value in named.items()
            if not (isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf)
        ]

    def _name_faults(self) -> list[Fault]:
        # Partitions are named by the rules of nodes; nothing else can stand in slurm.conf.
        if is_node_name(self.partition):
            return []
        return [Fault("slurm", "partition", f"{self.partition!r} cannot be the name of a partition")]
