"""Events of a session: strict JSON, a record for each kind of event with its effect on a scheduler, and faults as plain data."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal, NoReturn, get_args

from pydantic import ConfigDict, Field, PlainValidator

from gavel_py.errors import Fault, GavelError, InputError, check_known, refuse, shown, together
from gavel_py.io.records import NotNegative, PlainName, Record, Seconds
from gavel_py.policies import Policy, policy_names, resolve_policy
from gavel_py.problem.job import Job
from gavel_py.scheduling import Round, RoundScheduler

LONGEST_ID = 128
MAX_DEPTH, MAX_PARTS = 32, 10_000
LONGEST_PLACE = 200
"""Number of characters to which the place and the field of a fault are cut, since both may repeat what a caller has sent."""


def _event_id(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(rf"[\x21-\x7e]{{1,{LONGEST_ID}}}", value):
        return value
    raise ValueError(f"must be 1 to {LONGEST_ID} visible ASCII characters, found {shown(value)}")


_ID_TEXT = Annotated[str, Field(pattern=rf"^[\x21-\x7e]{{1,{LONGEST_ID}}}$")]
EventId = Annotated[str, PlainValidator(_event_id, json_schema_input_type=_ID_TEXT)]

KEPT_JOBS = 2000
"""Number of the latest jobs that have left and are remembered after a round, so that a session does not grow with its age."""


class Event(Record):
    """One event of a session. `apply` has its effect on a scheduler and returns the answer; if it raises, it has had none.

    Attributes:
        id: Identifies the event: one to 128 visible ASCII characters that the caller has used for no other event.
        event: The kind of the event.
    """

    model_config = ConfigDict(strict=True, str_strip_whitespace=False, coerce_numbers_to_str=False)
    label: ClassVar[str] = "event"
    identifier: ClassVar[str] = "id"

    id: EventId
    event: str

    def apply(self, scheduler: RoundScheduler) -> dict[str, Any]:
        """Apply the event to a scheduler, and return what it answers beside its status. Raises what the scheduler raises."""
        raise NotImplementedError


class SubmitEvent(Event):
    """A job arrives; job: its fields (`Job`)."""

    event: Literal["submit"]
    job: dict[str, Any]

    @cached_property
    def made(self) -> Job:
        """The job. Raises `InputError` for wrong fields."""
        return Job(**self.job)

    def apply(self, scheduler: RoundScheduler) -> dict[str, Any]:
        scheduler.submit(self.made)
        return {}


class JobEvent(Event):
    """A job has left: it is done (complete), or was taken back (cancel)."""

    event: Literal["complete", "cancel"]
    job_id: PlainName

    def apply(self, scheduler: RoundScheduler) -> dict[str, Any]:
        getattr(scheduler, self.event)(self.job_id)
        return {}


class ReportEvent(Event):
    """A job has made progress; steps_done: its steps in all."""

    event: Literal["report"]
    job_id: PlainName
    steps_done: NotNegative

    def apply(self, scheduler: RoundScheduler) -> dict[str, Any]:
        scheduler.report(self.job_id, steps_done=self.steps_done)
        return {}


class FailureEvent(Event):
    """A job has stopped with an error (job_failed), or does not run although a round assigns it GPUs (interrupted)."""

    event: Literal["job_failed", "interrupted"]
    job_id: PlainName
    now_seconds: Seconds | None = None

    def apply(self, scheduler: RoundScheduler) -> dict[str, Any]:
        if self.event == "job_failed":
            return {"retried": scheduler.job_failed(self.job_id, now_seconds=self.now_seconds)}
        scheduler.interrupted(self.job_id, now_seconds=self.now_seconds)
        return {}


class UpdateEvent(Event):
    """Fields of a job change (`RoundScheduler.update`)."""

    event: Literal["update"]
    job_id: PlainName
    fields: dict[str, Any]

    def apply(self, scheduler: RoundScheduler) -> dict[str, Any]:
        scheduler.update(self.job_id, **self.fields)
        return {}


class NodeStateEvent(Event):
    """A node is lost, is back, or is to be emptied."""

    event: Literal["node_down", "node_up", "drain"]
    node: PlainName

    def apply(self, scheduler: RoundScheduler) -> dict[str, Any]:
        stopped = getattr(scheduler, self.event)(self.node)
        return {"stops": list(stopped)} if self.event == "node_down" else {}


class PolicyEvent(Event):
    """Another policy decides from the next round on, under the same constraints; options: those of the policy."""

    event: Literal["policy"]
    policy: PlainName
    options: dict[str, bool | int | float | str | None] = Field(default_factory=dict)

    def apply(self, scheduler: RoundScheduler) -> dict[str, Any]:
        kept = scheduler.policy.constraints
        scheduler.policy = named_policy(f"event {self.id!r}", self.policy, {**self.options}, constraints=kept)
        return {}


def named_policy(place: str, name: str, options: dict[str, Any], **more: Any) -> Policy:
    """Return a policy by its name. Raises `InputError` for package.module:Class and for files, which a caller may not name."""
    check_known(place, "policy", [name], policy_names(), "is not a policy here")
    refuse(
        place,
        ("constraints" in options, "options", "constraints cannot be set here; a session has those of its start"),
        (isinstance(options.get("tenants"), str), "options", "tenants must be the tree itself, and not a file"),
    )
    return resolve_policy(name, **options, **more)


class RoundEvent(Event):
    """The next round begins.

    Attributes:
        now_seconds: Its start, by default one round after the previous start.
        table: Whether the answer also has the GPUs of the gangs that keep theirs.
    """

    event: Literal["round"]
    now_seconds: Seconds | None = None
    table: bool = False

    def apply(self, scheduler: RoundScheduler) -> dict[str, Any]:
        decided = scheduler.next_round(self.now_seconds)
        scheduler.forget(*scheduler.forgettable[:-KEPT_JOBS])
        table = {"assignments": decided.to_dict()["assignments"]} if self.table else {}
        return round_changes(decided) | table | {DECIDED: decided}


def round_changes(decided: Round) -> dict[str, Any]:
    """Return a round as its changes: what starts where, what stops, and how many gangs keep their GPUs."""
    starts = {job_id: decided.assignments[job_id] for job_id in decided.started}
    changed = replace(decided, assignments=starts, kept=(), started=()).to_dict()
    changed |= {"starts": changed.pop("assignments"), "stops": changed.pop("preempted"), "kept": len(decided.kept)}
    return {name: value for name, value in changed.items() if name != "started"}


DECIDED = "decided"
"""Key of the `Round` in what the event of a round returns; it is kept for pictures, and no part of the answer."""

RECORDS: Mapping[str, type[Event]] = {
    kind: record
    for record in (SubmitEvent, JobEvent, ReportEvent, FailureEvent, UpdateEvent, NodeStateEvent, PolicyEvent, RoundEvent)
    for kind in get_args(record.model_fields["event"].annotation)
}
"""{kind of event: its record}."""


def event_of(fields: object) -> Event:
    """Return an event from its fields. Raises `InputError` with all faults of its own fields; those of a job come later."""
    if not isinstance(fields, dict):
        raise InputError(Fault("event", "", f"must be an object, found {shown(fields)}"))
    given: dict[str, Any] = fields
    place, kind = f"event {shown(given.get('id', ''))}", given.get("event")
    is_kind = isinstance(kind, str)
    refuse(
        place,
        (_is_larger(given, MAX_DEPTH), "", f"must be nested at most {MAX_DEPTH} levels deep, with {MAX_PARTS:,} values in each"),
        (not is_kind, "event", f"must be one of {', '.join(RECORDS)}"),
    )
    check_known(place, "event", [str(kind)], RECORDS)
    return RECORDS[str(kind)](**given)


CONTAINERS = (dict, list)


def _is_larger(value: Any, levels: int) -> bool:
    within = value.values() if isinstance(value, dict) else value
    is_large = levels == 0 or len(value) > MAX_PARTS  # some checks take the square of their number
    return is_large or any(_is_larger(each, levels - 1) for each in within if type(each) in CONTAINERS)


def fault_documents(error: GavelError) -> list[dict[str, str]]:
    """Return the faults of an error as plain data; of an error without faults, its text."""
    faults = error.faults if isinstance(error, InputError) else (Fault("", "", str(error)),)
    return [{"where": each.where[:LONGEST_PLACE], "field": each.field[:LONGEST_PLACE], "problem": each.problem} for each in faults]


def strict_json(where: str, text: str) -> Any:
    """Return a JSON document. Raises `InputError` also for what JSON does not have, but many readers take: NaN, repeated keys."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " * (error.lineno > 1)
        problem = f"is not valid JSON: {error.msg} ({line}column {error.colno})"
    except RecursionError:
        problem = f"must be nested at most {MAX_DEPTH} levels deep"
    except ValueError as error:
        own = re.match(r"(number|key) ", str(error))
        problem = f"is not valid JSON: {error}" if own else "is not valid JSON: it has a number with too many digits"
    raise InputError(Fault(where, "", problem))


def read_lines(where: str, text: str) -> list[Any]:
    """Return the JSON documents of the lines that are not blank. Raises one `InputError` with the faults of all lines."""
    with together() as attempt:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        return [attempt(partial(strict_json, f"{where}, line {number}", line)) for number, line in lines]


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"number {text} is not one of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"number {text[:20]} is too large")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {shown(next(name for name in names if names.count(name) > 1))} appears twice in one object")
    return made


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique_keys)
