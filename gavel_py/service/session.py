"""The core of the service: a scheduler that changes by events only, each logged before it is answered, so that none is lost."""

from __future__ import annotations

import json
import logging
import os
from base64 import b64decode, b64encode
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from gavel_py.errors import GavelError, InputError, faults_from, refuse
from gavel_py.io.locking import Synchronized, synchronized
from gavel_py.io.records import without_collection
from gavel_py.io.snapshots import SnapshotFormat, damage_as_fault
from gavel_py.problem.profile import Profile
from gavel_py.problem.workflows import has_dependencies
from gavel_py.scheduling import Round, RoundScheduler
from gavel_py.scheduling.nodes import cluster_to_dict
from gavel_py.service.events import CONTAINERS, DECIDED, Event, RoundEvent, SubmitEvent, event_of, fault_documents, read_lines
from gavel_py.service.log import LARGEST_FILE, SessionLog, claim_folder, file_name

logger = logging.getLogger(__name__)

SNAPSHOT = SnapshotFormat("gavel-py session", 1, "a snapshot of a session, written by gavel api or gavel step")

MAX_ROUNDS_REPLAYED, MAX_EVENTS_REPLAYED = 5, 20_000
"""Rounds, and events, after which a snapshot is due: more would make a new start slow."""

KEPT_IDS = 100_000
"""Number of the latest events whose ids are known: one of them that comes again is answered, and not applied again."""

KEPT_ROUNDS = 20
"""Number of the latest rounds that are kept in memory for pictures."""

DIGEST_BYTES = 12

CONFLICT, GONE, UNPROCESSABLE, INTERNAL, NO_ROOM = 409, 410, 422, 500, 507
"""Codes of refusals, as in HTTP: the id of another event, that of one whose answer is no longer kept, wrong fields, a fault of
gavel-py, a log that cannot be written."""


@dataclass(slots=True)
class _Request:
    """An event that was sent, and its answer, which is filled in; text: its canonical JSON, which is compared and logged."""

    fields: Any
    answer: dict[str, Any]
    event: Any = None
    text: str = ""

    def refuse(self, code: int, faults: list[dict[str, str]]) -> None:
        sent = self.fields.get("id") if isinstance(self.fields, dict) else None
        self.answer.clear()
        self.answer |= {"id": sent if isinstance(sent, str) else None, "status": "refused", "code": code, "faults": faults}


class Session(Synchronized):
    """A `RoundScheduler` in a folder: events in order, each with an id of the caller, applied once however often they are sent.

    An event is applied, logged and synced, then answered. After a kill, the scheduler is restored from the latest snapshot and the
    events after it; a round that would be decided otherwise than before is an error. A last line that is torn was never answered,
    and is cut. Answers have a `status`: `applied`, with the version of the state and what the event returns; `repeated`, with the
    answer to the same event before; `refused`, with `faults`, after which the state is unchanged and later events go on.

    Several threads may use a session, one call at a time; one process at a time may use a folder.

    Args:
        folder: Where snapshot and log are; made if there is none, for its owner only (mode 700).
        profile: Throughputs of jobs, the same for each use of the folder.
        create: Returns the scheduler of a new session. That of a session that exists must have been made like it, if it is given.

    Attributes:
        version: Number of events applied so far, which names the state.
        scheduler: The scheduler. It must be changed by events only.
        last_round: The answer of the last round, None before the first.
        rounds: The latest rounds, at most 20; after a start, only those that were played again.

    Raises:
        InputError: The folder is new and `create` is missing, the folder is in use or may be read by others, or its files are
            damaged, or belong to another profile, cluster or policy.
        GavelError: A logged round would now be decided otherwise.

    >>> import tempfile, gavel_py as gp
    >>> folder, profile = tempfile.mkdtemp(), gp.ThroughputProfile.builtin("gavel-osdi20")
    >>> session = gp.Session(folder, profile, lambda: gp.RoundScheduler(gp.Cluster.from_counts({"v100": 2}), profile))
    >>> job = {"job_id": "a", "job_type": "ResNet-50 (batch size 64)"}
    >>> [each["status"] for each in session.apply([{"id": "1", "event": "submit", "job": job}] * 2)]
    ['applied', 'repeated']
    >>> session.apply([{"id": "2", "event": "round"}])[0]["starts"]
    {'a': {'accelerator': 'v100', 'gpus': [['v100-0', 0]]}}
    """

    schema_version: ClassVar[int] = 1
    """Version of events and answers: increased when a key is removed or changes its meaning, not when one is added."""

    scheduler: RoundScheduler
    version: int
    rounds: deque[Round]
    _digest: str
    _known: OrderedDict[str, tuple[bytes, int]]
    _unwritten: list[bytes]
    _since: tuple[int, int]  # events and rounds since the snapshot

    def __init__(self, folder: str | Path, profile: Profile, create: Callable[[], RoundScheduler] | None = None) -> None:
        self.folder, self._profile = Path(folder), profile
        self.last_round: dict[str, Any] | None = None
        self._lock_file = claim_folder(self.folder)
        self._log = SessionLog(self.folder)
        try:
            if self._snapshot_file.exists():
                self._restore()
                if create is not None:
                    self._check_made(create())
            else:
                missing = "has no session; a new one needs a cluster"
                refuse(str(folder), (create is None, "", missing))
                assert create is not None  # noqa: S101
                self._begin(create())
            self._is_whole = True
        except BaseException:
            self.close()
            raise

    @property
    def _snapshot_file(self) -> Path:
        return self.folder / "snapshot.json"

    def close(self) -> None:
        """Release the folder. Nothing is written, since everything that was answered is on the disk."""
        self._log.close()
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def unchanged(self) -> AbstractContextManager[object]:
        """Return a block in which no other thread applies events, to read several things of one state."""
        return self._lock.held

    # Events

    def apply(self, events: Iterable[Any]) -> list[dict[str, Any]]:
        """Apply events in order, and return an answer for each of them.

        Args:
            events: Their fields as plain data, see docs/from-another-language.md.

        Returns:
            One answer per event, with its `id` and `status`.
        """
        return self.apply_all([events])[0]

    def apply_lines(self, text: str, where: str = "events") -> list[dict[str, Any]]:
        """Apply events that are written as JSON, one a line; `where` names the text in messages.

        Raises:
            InputError: Lines are not JSON, with a fault for each of them; then no event is applied.
        """
        return self.apply(read_lines(where, text))

    @synchronized
    def apply_all(self, batches: Iterable[Iterable[Any]]) -> list[list[dict[str, Any]]]:
        """Apply several batches as `apply` does, and wait for the disk only once."""
        if not self._is_whole:  # since an earlier call has failed halfway
            self._restore()
        self._is_whole = False
        requests = [[_Request(fields, {}) for fields in batch] for batch in batches]
        submits: dict[str, _Request] = {}
        with without_collection():
            for each in (each for batch in requests for each in batch):
                self._accept(each, submits)
            self._submit(submits)
        self._commit([each for batch in requests for each in batch])
        self._is_whole = True
        repeated = [each for batch in requests for each in batch if each.answer["status"] == "repeated"]
        stored = self._log.answers({each.answer["version"] for each in repeated})
        for each in repeated:
            if each.answer["version"] in stored:
                each.answer |= stored[each.answer["version"]]
            else:
                problem = f"was applied as number {each.answer['version']}, and its answer is no longer kept; nothing has changed"
                each.refuse(GONE, [{"where": f"event {each.event.id!r}", "field": "id", "problem": problem}])
        return [[each.answer for each in batch] for batch in requests]

    def _accept(self, request: _Request, submits: dict[str, _Request]) -> None:
        """Answer an event, or put it among the submits that are applied together, in their order, before any other event."""
        try:
            event = request.event = event_of(request.fields)
            together = isinstance(event, SubmitEvent) and not has_dependencies([event.made])  # others may name a later job
            with faults_from(f"event {event.id!r}", "must be plain data, as in JSON", TypeError, ValueError):
                request.text = json.dumps(request.fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except InputError as error:
            request.refuse(UNPROCESSABLE, fault_documents(error))
            return
        if event.id in submits:
            self._submit(submits)
        if event.id in self._known:
            self._repeat(request, event.id)
        elif together:
            submits[event.id] = request
        else:
            self._submit(submits)
            self._attempt([request])

    def _repeat(self, request: _Request, event_id: str) -> None:
        digest, version = self._known[event_id]
        if digest != _digest(request.text):
            fault = {"where": f"event {event_id!r}", "field": "id", "problem": f"was used for another event, number {version}"}
            request.refuse(CONFLICT, [fault])
            return
        request.answer |= {"id": event_id, "status": "repeated", "version": version}

    def _submit(self, submits: dict[str, _Request]) -> None:
        """Apply the collected submits, all at once if none is refused."""
        requests = list(submits.values())
        submits.clear()
        if len(requests) > 1 and self._attempt(requests):
            return
        for each in requests:
            self._attempt([each])

    def _attempt(self, requests: Sequence[_Request]) -> bool:
        """Apply a request, or several submits; return whether none is refused. If one of several is, none has an answer yet."""
        try:
            if len(requests) == 1:
                results = [requests[0].event.apply(self.scheduler)]
            else:
                self.scheduler.submit_all([each.event.made for each in requests])
                results = [{} for _ in requests]
        except GavelError as error:
            if len(requests) == 1:
                requests[0].refuse(UNPROCESSABLE, fault_documents(error))
            return False
        except Exception as error:
            # A fault of the program may have left the scheduler half changed: what is on the disk is not.
            logger.exception("event %s failed", requests[0].event.id)
            try:
                self._write_lines()
            finally:
                self._restore()
            problem = f"could not be applied, because of a fault of gavel-py: {type(error).__name__}; the state is unchanged"
            for each in requests:
                each.refuse(INTERNAL, [{"where": "event", "field": "", "problem": problem}])
            return True
        for each, result in zip(requests, results, strict=True):
            self._note(each.event, each.text, result)
            each.answer |= {"id": each.event.id, "status": "applied", "version": self.version, **result}
        return True

    def _note(self, event: Event, text: str, result: dict[str, Any]) -> None:
        """Record an event that was applied."""
        self.version += 1
        if isinstance(event, RoundEvent):
            self.rounds.append(result.pop(DECIDED))
            changes = {name: value for name, value in result.items() if name != "assignments"}
            # Of the whole history: rounds with equal digests follow from equal ones.
            self._digest = result["digest"] = _digest(self._digest + json.dumps(changes, sort_keys=True)).hex()
            self.last_round = changes | {"digest": self._digest}
        events, rounds = self._since
        self._since = events + 1, rounds + isinstance(event, RoundEvent)
        if len(self._known) >= KEPT_IDS:
            self._known.popitem(last=False)
        self._known[event.id] = (_digest(text), self.version)
        self._unwritten.append(f'{{"version":{self.version},"event":{text},"answer":{json.dumps(result)}}}\n'.encode())

    def _write_lines(self) -> None:
        """Write the lines of the events that were applied. Raises `InputError`; the scheduler then knows more than the disk."""
        if self._unwritten:
            self._log.append(self._unwritten)
            self._unwritten.clear()

    def _commit(self, requests: Iterable[_Request]) -> None:
        try:
            self._write_lines()
        except InputError as error:
            logger.error("%s; nothing was applied", error)
            self._restore()
            for each in requests:
                if each.answer.get("version", 0) > self.version:
                    each.refuse(NO_ROOM, fault_documents(error))

    @synchronized
    def events_after(self, version: int, limit: int) -> list[bytes]:
        """Return at most `limit` events after this version as lines of the log; the first is a later one if others are not kept."""
        return list(islice(self._log.lines_after(min(version, self.version)), limit))

    # Snapshots

    @synchronized
    def checkpoint(self, *, always: bool = False) -> None:
        """Write a snapshot if one is due, or if anything has changed and `always` is true; a failure is logged, and tried again."""
        events, rounds = self._since
        if self._is_whole and events and (always or events > MAX_EVENTS_REPLAYED or rounds >= MAX_ROUNDS_REPLAYED):
            try:
                self._write_snapshot()
            except InputError as error:
                logger.warning("no snapshot: %s; the log has all events", error)
            except Exception:
                logger.exception("no snapshot; the log has all events")

    def _write_snapshot(self) -> None:
        is_full = self._log.size > LARGEST_FILE
        log = (file_name(self.version + 1), 0) if is_full else (self._log.name, self._log.size)
        document = {
            "made": self._made,
            "version": self.version,
            "log": log,
            "digest": self._digest,
            "last_round": self.last_round,
            "ids": list(self._known),
            "digests": b64encode(b"".join(digest for digest, _ in self._known.values())).decode(),
            "scheduler": packed(self.scheduler.to_dict()),
        }
        SNAPSHOT.write(self._snapshot_file, document)
        self._since = 0, 0
        if is_full:
            self._log.open(log[0])

    def _begin(self, scheduler: RoundScheduler) -> None:
        """Begin a session with a scheduler that has no jobs."""
        label = scheduler.policy.label
        own = f"policy {label} is not part of gavel-py, so that a session could not restore it"
        refuse(str(self.folder), (scheduler.to_dict()["policy"]["document"] is None, "", own))
        self._made = _description(scheduler)
        self._continue(scheduler, 0, "", None, OrderedDict())
        self._log.open(file_name(1))
        self._write_snapshot()

    def _continue(
        self,
        scheduler: RoundScheduler,
        version: int,
        digest: str,
        last: dict[str, Any] | None,
        known: OrderedDict[str, tuple[bytes, int]],
    ) -> None:
        self.scheduler, self.version, self._digest = scheduler, version, digest
        self.last_round, self._known = last, known
        self.rounds, self._since, self._unwritten = deque[Round](maxlen=KEPT_ROUNDS), (0, 0), []

    def _restore(self) -> None:
        """Restore the state from the disk: the latest snapshot, and the events after it."""
        document = SNAPSHOT.read(self._snapshot_file)
        with damage_as_fault(self._snapshot_file):
            ids, version, digests = document["ids"], document["version"], b64decode(document["digests"])
            parts = (digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES))
            known = OrderedDict(zip(ids, zip(parts, range(version - len(ids) + 1, version + 1), strict=True), strict=True))
            scheduler = RoundScheduler.from_dict(unpacked(document["scheduler"]), self._profile, source=self._snapshot_file)
            self._made = document["made"]
            self._continue(scheduler, version, document["digest"], document["last_round"], known)
            name, offset = document["log"]
        with without_collection():
            for place, entry in self._log.resume(name, offset):
                self._replay(place, entry)
        self._unwritten.clear()

    def _replay(self, place: str, entry: Mapping[str, Any]) -> None:
        is_next = entry.get("version") == self.version + 1
        refuse(place, (not is_next, "", f"is damaged: it should be event {self.version + 1}"))
        fields, then = entry["event"], entry["answer"].get("digest")
        try:
            event = event_of(fields)
            result = event.apply(self.scheduler)
        except GavelError as error:
            raise GavelError(f"{place}: was applied before, and is refused now: {error}; {SAME}") from None
        self._note(event, json.dumps(fields, sort_keys=True, separators=(",", ":")), result)
        if then != result.get("digest"):
            raise GavelError(f"{place}: round {result['index']} would now be decided otherwise; {SAME}")

    def _check_made(self, other: RoundScheduler) -> None:
        """Raise `InputError` if a scheduler is made in another way than that of the session was."""
        given = _description(other)
        text = "is that of a session with another {}; leave out its options, use another folder, or send events that change it"
        refuse(str(self.folder), *((given[part] != self._made.get(part), "", text.format(part)) for part in given))


SAME = "use the version of gavel-py and the profile with which the log was written"


def _description(scheduler: RoundScheduler) -> dict[str, Any]:
    """Return with what a scheduler was made, as plain data."""
    options = scheduler.options.model_dump()
    cluster = json.dumps(cluster_to_dict(scheduler.cluster), sort_keys=True)
    return {
        "cluster": _digest(cluster).hex(),
        "policy": scheduler.policy.label,
        "options": json.loads(json.dumps(options, default=str)),
    }


LEAST_PACKED = 1024
"""Size in bytes from which arrays are packed."""

FACTORS = np.random.default_rng(0).integers(1, 1 << 63, 256, dtype=np.uint64) | np.uint64(1)
"""Of the columns of an array, for sums that differ if rows do, with few exceptions."""


def packed(data: Any) -> Any:
    """Return plain data of `encode` in which arrays have equal rows once, as equal jobs have, and the number of each row."""
    if isinstance(data, list):
        return [packed(each) for each in data] if data and isinstance(data[0], CONTAINERS) else data
    if not isinstance(data, dict):
        return data
    if not isinstance(data.get("array"), str):
        return {name: packed(value) for name, value in data.items()}
    content, count = b64decode(data["array"]), (*data["shape"], 1)[0]
    if len(content) < LEAST_PACKED or len(content) % (8 * count) or len(content) > 8 * count * len(FACTORS):
        return data
    rows = np.frombuffer(content, np.uint64).reshape(count, -1)
    mixed = (rows ^ rows >> np.uint64(32)) * FACTORS[: rows.shape[1]]  # numbers with few digits end in zeros
    _, first, numbers = np.unique(mixed.sum(axis=1), return_index=True, return_inverse=True)
    if 2 * len(first) > count or not np.array_equal(rows[first][numbers], rows):
        return data
    small = numbers.astype(np.min_scalar_type(len(first)))
    return data | {"array": b64encode(rows[first].tobytes()).decode(), "rows": b64encode(small.tobytes()).decode()}


def unpacked(data: Any) -> Any:
    """Return the plain data that `packed` has made smaller."""
    if isinstance(data, list):
        return [unpacked(each) for each in data] if data and isinstance(data[0], CONTAINERS) else data
    if not isinstance(data, dict):
        return data
    if "rows" not in data or not isinstance(data["rows"], str):
        return {name: unpacked(value) for name, value in data.items()}
    count, numbers = data["shape"][0], b64decode(data["rows"])
    number_of = np.frombuffer(numbers, f"u{len(numbers) // count}")
    rows = np.frombuffer(b64decode(data["array"]), np.uint64).reshape(int(number_of.max()) + 1, -1)
    whole = {name: value for name, value in data.items() if name != "rows"}
    return whole | {"array": b64encode(rows[number_of].tobytes()).decode()}


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()
