"""Services and serving profiles: the models to serve with their request rates, and the rates that one replica of a model can serve.

Requests are counted by size bucket, (prompt tokens, output tokens), since a GPU type that is best for short requests may be bad for
long ones. Both records are read from YAML, JSON and CSV files; rates can also come from built-in throughput profiles.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args

from pydantic import Field, PlainValidator, field_validator, model_validator

from gavel_py.errors import Fault, InputError, check_known, check_together, faults_among, refuse, shown
from gavel_py.io import reading
from gavel_py.io.names import repeated as repeated_names
from gavel_py.io.records import (
    Integer,
    Name,
    NotNegative,
    Positive,
    Record,
    SecondsAboveZero,
    Share,
    Whole,
    check_records,
    number_of,
    repeated,
)
from gavel_py.serving.requests import MAX_TOKENS, Attainment, Bucket, Variation, bucket_of
from gavel_py.throughput_profiles import ThroughputProfile
from gavel_py.throughput_profiles.units import Condition

if TYPE_CHECKING:
    from gavel_py.throughput_profiles.files import MeasuredRow

LIST_SEPARATOR = ";"
"""Separator between the entries of a list in a cell of a CSV file."""


def _mix(value: object) -> dict[Bucket, float]:
    """Return the share of each bucket, with sum 1, from a mapping or from text such as "128/128: 3; 1000/1000: 1"."""
    if isinstance(value, str):
        cells = [cell.rpartition(":") for cell in value.split(LIST_SEPARATOR) if cell.strip()]
        pairs: list[tuple[object, object]] = [(bucket.strip(), share.strip()) for bucket, _, share in cells]
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        raise ValueError(f"must map request sizes to shares, such as {{128/128: 0.6, 1000/1000: 0.4}}, found {value!r:.60}")
    shares = [(bucket_of(key), number_of(share), share) for key, share in pairs]
    times = Counter(bucket for bucket, _, _ in shares)
    wrong = "the share of {} must be a finite number of at least 0, found {}"
    check_together(
        *((not 0 <= number < math.inf, wrong.format(bucket, shown(share))) for bucket, number, share in shares),
        *((count > 1, f"{bucket} appears twice") for bucket, count in times.items()),
    )
    total = sum(number for _, number, _ in shares)
    check_together(
        (shares and total == 0, "at least one share must be greater than 0"), (total == math.inf, "their sum must be finite")
    )
    return {bucket: number / total for bucket, number, _ in shares if number > 0}


Mix = Annotated[dict[Bucket, float], PlainValidator(_mix)]
Tokens = Annotated[Integer, Field(ge=0, le=MAX_TOKENS)]


class Slo(Record):
    """Limits of latency (of requests, to the first token, between tokens): as a service needs, or as a rate was measured."""

    slo_seconds: SecondsAboveZero | None = None
    ttft_seconds: SecondsAboveZero | None = None
    tpot_seconds: SecondsAboveZero | None = None

    @property
    def has_slo(self) -> bool:
        """Whether requests must be served within some time."""
        return any(getattr(self, name) is not None for name in Slo.model_fields)


class Service(Slo):
    """A model with a rate of requests, or a trace of them, and what its users expect.

    >>> chat = Service("chat", model="llama-8b", rate=40, mix={(128, 128): 3, (1000, 1000): 1})
    >>> {str(bucket): share for bucket, share in chat.mix.items()}
    {'128/128': 0.75, '1000/1000': 0.25}

    Attributes:
        name: Unique among the services.
        model: Name of the model in the serving profile.
        rate: Requests per second that arrive on average. A plan over time takes rates from a demand curve instead.
        trace: File of requests, instead of a rate.
        cv: Coefficient of variation of the times between requests, from 0 (equal) over 1 (Poisson) to 20.
        slo_seconds: Time within which a request must be completed.
        ttft_seconds: Time within which a request must have its first token.
        tpot_seconds: Time within which each further token must follow, on average over a request.
        attainment: Share of requests that must meet these times.
        weight: Value of a served request relative to one of another service.
        min_replicas: Minimum number of replicas.
        max_replicas: Maximum number of replicas, None for no limit.
        tenant: Tenant whose quota of GPUs applies, None for none.
        rate_factor: Part of a rate measured without an SLO (closed_loop, offline) on which the service may rely under its SLO, at
            most 1.
        mix: {(prompt tokens, output tokens): share} of requests by size, scaled to sum 1; empty if sizes do not matter.
    """

    label: ClassVar[str] = "service"
    identifier: ClassVar[str] = "name"

    name: Name
    model: Name
    rate: Positive | None = None
    trace: Name | None = None
    cv: Variation = 1.0
    attainment: Attainment = 0.99
    weight: Positive = 1.0
    min_replicas: Annotated[Integer, Field(ge=0, le=1_000_000)] = 0
    max_replicas: Annotated[Integer, Field(ge=0, le=1_000_000)] | None = None
    tenant: Name | None = None
    rate_factor: Share | None = None
    mix: Mix = Field(default_factory=dict)

    def __init__(self, name: str | None = None, /, **fields: Any) -> None:
        own: dict[str, Any] = {} if name is None else {"name": name}
        super().__init__(**own, **fields)

    @model_validator(mode="after")
    def _check_together(self) -> Service:
        has_token_slo = self.ttft_seconds is not None or self.tpot_seconds is not None
        check_together(
            (self.rate is not None and self.trace is not None, "rate and trace both give the demand; leave out one of them"),
            (
                self.slo_seconds is not None and has_token_slo,
                "give slo_seconds for whole requests, or ttft_seconds and tpot_seconds for tokens, not both",
            ),
            (
                self.max_replicas is not None and self.max_replicas < self.min_replicas,
                f"max_replicas must be at least min_replicas, {self.min_replicas}, found {self.max_replicas}",
            ),
            (
                self.rate_factor is not None and not self.has_slo,
                "rate_factor adapts rates without SLO to an SLO; give slo_seconds, or ttft_seconds and tpot_seconds",
            ),
        )
        return self

    @property
    def buckets(self) -> tuple[Bucket | None, ...]:
        """The sizes of its requests in ascending order, or None alone if sizes do not matter."""
        return tuple(sorted(self.mix)) or (None,)


def faults_of_services(where: str, services: Sequence[Service]) -> list[Fault]:
    """Return the faults of services as a whole: there are none, a name appears twice, or one has neither a rate nor a trace."""
    faults = faults_among(where, (not services, "services", "must not be empty"))
    twice = repeated_names(service.name for service in services)
    faults += [Fault(f"service {name!r}", "name", "appears twice; names must be unique") for name in twice]
    without = [service for service in services if service.rate is None and service.trace is None]
    return faults + [Fault(service.where, "rate", "is required, or a trace") for service in without]


class ServingRate(Slo):
    """The rate of one replica of a model on GPUs of one type: a row of a serving profile.

    A row needs a rate with its condition, or the times of its stages, from which a simulation can find the rate.

    Attributes:
        model: Name of the model.
        accelerator: Accelerator type.
        num_gpus: GPUs of a replica, by default the product of the two degrees of parallelism.
        operator_parallel: GPUs over which each stage is split; tensor parallelism.
        pipeline_parallel: Number of stages.
        prompt_tokens: Prompt of the requests, None if the size of requests does not matter.
        output_tokens: Output of the requests, given together with `prompt_tokens`.
        batch: Number of requests that are computed together, None if unknown or irrelevant.
        requests_per_second: Requests per second that one replica serves.
        condition: How requests arrived when the rate was measured: closed_loop, offline, server, interactive or slo.
        slo_seconds: The SLO at which the rate was measured, as in `Service`; None if unknown. It is not used for services with a
            stricter SLO.
        ttft_seconds: The same for the time to the first token.
        tpot_seconds: The same for the time per further token.
        stage_seconds: Time of a request in each stage.
        memory_gb: Memory of the model on each of its GPUs, in GB.
        source: Origin of the figures.
    """

    label: ClassVar[str] = "serving rate"
    identifier: ClassVar[str] = "model"

    model: Name
    accelerator: Name
    num_gpus: Whole = 1
    operator_parallel: Whole = 1
    pipeline_parallel: Whole = 1
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    batch: Whole | None = None
    requests_per_second: NotNegative | None = None
    condition: Condition | None = None
    stage_seconds: tuple[SecondsAboveZero, ...] = ()
    memory_gb: NotNegative | None = None
    source: str = ""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, fields: Any) -> Any:
        """Fill in the GPUs from the degrees of parallelism, or the operator parallelism from the GPUs and the stages."""
        if isinstance(fields, dict):
            pipeline = number_of(fields.get("pipeline_parallel", 1))
            if fields.get("num_gpus") is None:
                gpus = number_of(fields.get("operator_parallel", 1)) * pipeline
                return fields | ({"num_gpus": int(gpus)} if abs(gpus) < float("inf") else {})
            if fields.get("operator_parallel") is None:
                whole = number_of(fields["num_gpus"]) / pipeline if pipeline else 0
                return fields | ({"operator_parallel": int(whole)} if 1 <= whole < float("inf") and whole == int(whole) else {})
        return fields

    @field_validator("stage_seconds", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(cell.strip() for cell in value.split(LIST_SEPARATOR) if cell.strip())
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _check_together(self) -> ServingRate:
        shape = f"operator_parallel {self.operator_parallel} x pipeline_parallel {self.pipeline_parallel}"
        stages, conditions = len(self.stage_seconds), ", ".join(CONDITIONS)
        check_together(
            (
                self.num_gpus != self.operator_parallel * self.pipeline_parallel,
                f"num_gpus must be {shape}, found {self.num_gpus}",
            ),
            (
                stages not in (0, self.pipeline_parallel),
                f"stage_seconds must have {self.pipeline_parallel} times, one per stage, found {stages}",
            ),
            (
                (self.prompt_tokens is None) != (self.output_tokens is None),
                "prompt_tokens and output_tokens must be given together",
            ),
            (
                (self.requests_per_second is None) != (self.condition is None),
                f"requests_per_second and condition belong together; a condition is one of {conditions}",
            ),
            (
                self.requests_per_second is None and not stages,
                "requests_per_second with its condition, or stage_seconds, is required",
            ),
        )
        return self

    @property
    def bucket(self) -> Bucket | None:
        """The size of the requests, None if it does not matter."""
        if self.prompt_tokens is None or self.output_tokens is None:
            return None
        return Bucket(self.prompt_tokens, self.output_tokens)

    def latency(self) -> float:
        """Return the least seconds of a request at this rate, infinite if none is served: those of all stages, or 1/rate."""
        return sum(self.stage_seconds) or (1 / self.requests_per_second if self.requests_per_second else float("inf"))


CONDITIONS: tuple[str, ...] = get_args(Condition)

_SIZES = re.compile(r"(?P<model>.+) \(input (?P<prompt>\d+), output (?P<output>\d+)\)")
"""The form of job types in throughput profiles that include the sizes of requests."""


class ServingProfile(Record):
    """The rates of replicas: a name and its rows.

    >>> profile = ServingProfile.builtin("trtllm")
    >>> row = profile.rows_of("LLaMA v3.1 8B")[0]
    >>> row.accelerator, str(row.bucket), round(row.requests_per_second, 1), row.condition
    ('h200', '128/128', 230.7, 'closed_loop')

    Attributes:
        name: Name of the profile.
        rows: The rates.

    Raises:
        InputError: Two rows have the same replica, requests and condition.
    """

    label: ClassVar[str] = "serving profile"
    identifier: ClassVar[str] = "name"
    to_use_types: ClassVar[str] = (
        "to use these GPUs, add rates of replicas on them to a serving profile (--rates FILE; see docs/serving.md), or give the "
        "type the name it has in the profile (--map-accelerator OLD=NEW, Cluster.renamed)"
    )

    name: Name
    rows: tuple[ServingRate, ...]

    def __init__(self, name: str | None = None, rows: Iterable[ServingRate] | None = None, /, **fields: Any) -> None:
        given = {"name": name, "rows": None if rows is None else tuple(rows)}
        super().__init__(**{key: value for key, value in given.items() if value is not None}, **fields)
        first: dict[object, ServingRate] = {}
        twice = [(row, first[key]) for row in self.rows for key in [_key_of(row)] if first.setdefault(key, row) is not row]
        InputError.raise_any([Fault(row.where, "", f"appears twice, first at {other.where}") for row, other in twice])

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Models in the order of their first row."""
        return tuple(dict.fromkeys(row.model for row in self.rows))

    @cached_property
    def accelerators(self) -> tuple[str, ...]:
        """Accelerators in the order of their first row."""
        return tuple(dict.fromkeys(row.accelerator for row in self.rows))

    @cached_property
    def _by_model(self) -> dict[str, tuple[ServingRate, ...]]:
        found: dict[str, list[ServingRate]] = {}
        for row in self.rows:
            found.setdefault(row.model, []).append(row)
        return {model: tuple(rows) for model, rows in found.items()}

    def rows_of(self, model: str) -> tuple[ServingRate, ...]:
        """Return the rows of a model.

        Args:
            model: Its name.

        Raises:
            UnknownNameError: The profile lacks the model.
        """
        check_known(f"serving profile {self.name!r}", "model", [model], self._by_model, "is missing")
        return self._by_model[model]

    @classmethod
    def from_file(cls, path: str | Path) -> ServingProfile:
        """Read a profile; its name is that of the file.

        Args:
            path: CSV with the fields of `ServingRate` as columns, or YAML or JSON with a list of them under `rates`.

        Raises:
            InputError: All faults of the file, each with its line.
        """
        return cls(
            Path(path).stem,
            check_records(ServingRate, reading.entries(path, "rates", ("model", "accelerator"), ServingRate.model_fields)),
        )

    @classmethod
    def builtin(cls, name: str) -> ServingProfile:
        """Return the serving rates of a built-in throughput profile, such as "trtllm".

        Args:
            name: Name of the throughput profile.

        Raises:
            UnknownNameError: There is no such profile.
            InputError: The profile has no serving rates.
        """
        return cls.from_throughputs(ThroughputProfile.builtin(name))

    @classmethod
    def from_throughputs(cls, profile: ThroughputProfile) -> ServingProfile:
        """Return the serving rates of a throughput profile.

        Rows in requests/s are used as they are, and rows in tokens/s are divided by the output tokens of a request. A job type such
        as "llama-8b (input 128, output 2048)" is the model llama-8b with requests of this size.

        Args:
            profile: A throughput profile with rows in requests/s or tokens/s.

        Raises:
            InputError: There is no such row, or one in tokens/s whose job type does not name the sizes of requests.
        """
        served = [row for row in profile.rows if row.unit in ("requests/s", "tokens/s") and row.partner_job_type is None]
        where = f"throughput profile {profile.name!r}"
        refuse(where, (not served, "unit", "has no throughputs of serving, in requests/s or tokens/s"))
        return cls(profile.name, check_records(ServingRate, ((where, _fields_of(row, where)) for row in served)))


def _key_of(row: ServingRate) -> tuple[object, ...]:
    shape = row.model, row.accelerator, row.num_gpus, row.pipeline_parallel
    return (*shape, row.bucket, row.batch, row.condition, row.slo_seconds, row.ttft_seconds, row.tpot_seconds)


def _fields_of(row: MeasuredRow, where: str) -> dict[str, Any]:
    """Return the fields of a `ServingRate` from a row of a throughput profile in tokens/s or requests/s."""
    match = _SIZES.fullmatch(row.job_type)
    sizes = {"prompt_tokens": int(match["prompt"]), "output_tokens": int(match["output"])} if match else {}
    divisor = sizes.get("output_tokens", 0) if row.unit == "tokens/s" else 1
    problem = f"{row.job_type!r} is in tokens/s and must end in sizes, such as (input 128, output 2048)"
    refuse(where, (not divisor, "job_type", problem))
    return {
        "model": match["model"] if match else row.job_type,
        "accelerator": row.accelerator,
        "num_gpus": row.num_gpus,
        "requests_per_second": row.steps_per_second / divisor,
        "condition": row.condition or "closed_loop",
        "source": row.source,
        **sizes,
    }


def read_services(path: str | Path) -> tuple[Service, ...]:
    """Read services from a file.

    Args:
        path: YAML or JSON with a list of services under `services`, or CSV with the fields of `Service` as columns, where a mix is
            written as "128/128: 0.6; 1000/1000: 0.4".

    Returns:
        The services, in the order of the file.

    Raises:
        InputError: All faults of the file, each with its line, and names that appear twice.
    """
    rows = list(reading.entries(path, "services", ("name", "model"), Service.model_fields))
    services = check_records(Service, rows)
    names = ((where, service.name) for (where, _), service in zip(rows, services, strict=True))
    InputError.raise_any(repeated("service", "name", names))
    refuse(str(path), (not services, "services", "has no services"))
    return tuple(services)
