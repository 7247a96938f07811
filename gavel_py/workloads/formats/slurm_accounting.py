"""Accounting records of Slurm: the output of `sacct --parsable2` with its header line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gavel_py.errors import InputError, refuse
from gavel_py.workloads.intake import (
    NO_GPU,
    ROUNDING_SECONDS,
    Intake,
    SkipError,
    TraceFormat,
    contradicts,
    host_requests,
    is_missing,
    known_status,
    labels_of,
    moment,
    required_moment,
    run_between,
    skip_if,
    table_rows,
    with_columns,
    wrong_cell,
)

Row = tuple[str, Mapping[str, str]]
"""Place and cells of a record."""

RESOURCES = ("AllocTRES", "ReqTRES")
"""Columns of allocated and requested resources, in order of preference."""

UNLIMITED = {"UNLIMITED", "Partition_Limit", "INVALID"}
LENGTH = re.compile(r"(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+(?:\.\d+)?)")


def gpus_of(row: Mapping[str, str]) -> tuple[int, str]:
    """Return the number and type of a job's GPUs from "billing=8,gres/gpu:a100=4,gres/gpu=4"; the type is "" if not unique.

    Raises `SkipError` if the record has only a part of a GPU, whose size Slurm does not record, or no resources at all.
    """
    known = [name for name in RESOURCES if name in row]
    refuse("", (not known, RESOURCES[0], f"column {' or '.join(RESOURCES)} is required, for the GPUs; see --format"))
    for name in known:
        found = re.findall(r"(?:^|,)gres/gpu(?::([^=,]+))?=([0-9]+)", row[name])
        if found:
            # A list has the total, the numbers by type, or both.
            parts = {accelerator: int(gpus) for accelerator, gpus in found if accelerator}
            total = max([int(gpus) for accelerator, gpus in found if not accelerator], default=sum(parts.values()))
            return total, next(iter(parts)) if len(parts) == 1 else ""
    resources = ",".join(row[name] for name in known)
    shared = re.search(r"(?:^|,)gres/(shard|mps)(?::[^=,]+)?=0*[1-9]", resources)
    skip_if(
        (shared, f"shares GPUs by gres/{shared and shared[1]}, and sacct does not record which part of one GPU that is"),
        (is_missing(resources.strip(",")), "has no recorded resources, so its number of GPUs is unknown"),
    )
    return 0, ""


def length_of(row: Mapping[str, str], name: str) -> float | None:
    """Return the seconds of a cell such as 1-02:03:04, 02:03 or 90 (seconds), or None if it is missing or unlimited."""
    text = row.get(name, "").strip()
    if is_missing(text) or text in UNLIMITED:
        return None
    if re.fullmatch(r"\d+", text):
        return float(text)
    match = LENGTH.fullmatch(text)
    if match is None:
        raise wrong_cell(name, "must be a duration such as 1-02:03:04", text)
    days, hours, minutes, seconds = (float(match[part] or 0) for part in ("days", "hours", "minutes", "seconds"))
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


COLUMNS = ("JobID", "Submit", "State")

STATUS = {
    "COMPLETED": "passed",
    "CANCELLED": "killed",
    "TIMEOUT": "killed",
    "DEADLINE": "killed",
    "PREEMPTED": "killed",
    "REVOKED": "killed",
    "FAILED": "failed",
    "NODE_FAIL": "failed",
    "BOOT_FAIL": "failed",
    "OUT_OF_MEMORY": "failed",
}

SLURM_DEPENDENCY = re.compile(r"(after\w*):([^(]+)(?:\([^)]*\))?")
"""One part of a dependency, such as afterok:12:13(unfulfilled)."""

CONDITIONS = {"afterok", "afterany", "afternotok"}
NOT_READ = "Dependencies other than afterok, afterany and afternotok of jobs that must all have ended are left out: {n}."


def dependencies_of(row: Mapping[str, str], intake: Intake) -> tuple[str, ...]:
    """Return `depends_on` from the column Dependency, as squeue and scontrol print it: afterok:12(unfulfilled),afterany:13."""
    text = row.get("Dependency", "").strip()
    if is_missing(text) or text == "(null)":
        return ()
    found: dict[str, str] = {}
    for part in text.split(","):
        match = SLURM_DEPENDENCY.fullmatch(part.strip())
        if match is None or match[1] not in CONDITIONS or "?" in text or not re.fullmatch(r"[0-9_]+(:[0-9_]+)*", match[2]):
            intake.assume(NOT_READ)
            continue
        found |= {job_id: f"{match[1]}:{job_id}" for job_id in match[2].split(":")}
    return tuple(found.values())


UNFINISHED = {"PENDING", "RUNNING", "REQUEUED", "RESIZING", "SUSPENDED", "CONFIGURING", "COMPLETING"}
KNOWN = dict.fromkeys(UNFINISHED, "") | STATUS
FAILED_BEFORE = "is an earlier attempt of a job that ran again; it counts as a failed attempt"
CONTINUED = "is an earlier record of a job that a later record continues; their running times add up"
LISTED_AGAIN = "is listed again later, with the same submission and start"
ELAPSED = "Where Elapsed differs from End - Start, as for suspended jobs, Elapsed is used: {n} (first: {first})."
CLOCK_CHANGED = "Where End is before Start + Elapsed, since the clock was set back, Elapsed is used: {n} (first: {first})."
PART = "is a part of a heterogeneous job, which is read as one gang"
SET_BACK = (1800.0, 3600.0)
"""Seconds by which clocks are set back at the end of summer time."""


class JobAttempt(NamedTuple):
    """One attempt of a job, from one record; started is None if it never started, status is "" if it had not ended."""

    submitted: float
    started: float | None
    seconds: float
    ended: float | None
    status: str


def _read(path: Path, intake: Intake) -> None:
    jobs: dict[str, dict[str, list[Row]]] = {}  # {job: {part: its records}}; only heterogeneous jobs, 12+0 and 12+1, have several
    for where, row in table_rows(path, intake, required=COLUMNS, separator="|"):
        if "." in row["JobID"]:
            intake.skip(where, "is a step of a job that has its own line")
        else:
            jobs.setdefault(_job_id(row), {}).setdefault(row["JobID"], []).append((where, row))
    for parts in jobs.values():
        rows, gang = _joined([_each_once(rows, intake) for rows in parts.values()], intake)
        *earlier, (where, last) = rows
        attempts = []
        for place, record in earlier:  # as with --duplicates
            with intake.entry(place):
                attempt = _attempt(record, intake)
                intake.skip(place, FAILED_BEFORE if attempt.status == "failed" else CONTINUED)
                attempts.append(attempt)
        with intake.entry(where):
            _read_job(last, gang, attempts, intake)


def _job_id(row: Mapping[str, str]) -> str:
    return re.sub(r"(?<=[0-9])\+[0-9]+$", "", row["JobID"])


def _joined(parts: list[list[Row]], intake: Intake) -> tuple[list[Row], list[Row]]:
    """Return the records of the part of a job with the most GPUs, and the last record of each part.

    The parts of a heterogeneous job get their resources at the same time, so they are one gang. Records of other parts are skipped.
    """
    gang = [rows[-1] for rows in parts]
    if len(parts) == 1:
        return parts[0], gang
    chosen = max(parts, key=lambda rows: _gpus_or_none(rows[-1][1]))
    for rows in parts:
        for where, _ in rows if rows is not chosen else ():
            intake.skip(where, PART)
    return chosen, gang


def _gpus_or_none(row: Mapping[str, str]) -> int:
    with suppress(SkipError, InputError):
        return gpus_of(row)[0]
    return 0


def _each_once(rows: list[Row], intake: Intake) -> list[Row]:
    """Return the records of a job without those repeated later, as in joined outputs of sacct that overlap."""
    places = {(row["Submit"], row.get("Start")): where for where, row in rows}
    for where, row in rows:
        if places[row["Submit"], row.get("Start")] != where:
            intake.skip(where, LISTED_AGAIN)
    return [(where, row) for where, row in rows if places[row["Submit"], row.get("Start")] == where]


def _gang_of(parts: list[Row]) -> tuple[int, str, int]:
    """Return the GPUs of a job, their type ("" if not unique), and the CPUs beside them. parts: the last record of each part."""
    found = [(*gpus_of(row), row.get("NCPUS", "")) for _, row in parts]
    gpus = [(count, accelerator, cpus) for count, accelerator, cpus in found if count]
    types = {accelerator for _, accelerator, _ in gpus}
    cpus = sum(int(text) for _, _, text in gpus if re.fullmatch(r"[0-9]{1,9}", text))
    return sum(count for count, _, _ in gpus), types.pop() if len(types) == 1 else "", cpus


def _read_job(row: Mapping[str, str], parts: list[Row], earlier: list[JobAttempt], intake: Intake) -> None:
    """Add a job. row: its last record, of the part with the most GPUs; parts: the last record of each part."""
    # First, since an array that waits has no GPUs yet.
    skip_if((_word(row["State"]) in UNFINISHED, f"had not ended (state {_word(row['State'])})"))
    gpus, accelerator, cpus = _gang_of(parts)
    skip_if((not gpus, NO_GPU))
    last = _attempt(row, intake)
    attempts = [*earlier, last]
    runs = [(attempt.started, attempt.seconds) for attempt in attempts if attempt.started is not None]
    skip_if((not runs, "never started"))
    submitted = attempts[0].submitted  # a requeued job gets a new submission time
    intake.job(
        {
            "job_id": _job_id(row),
            "num_gpus": gpus,
            "arrival_seconds": submitted,
            "tenant": row.get("Account", ""),
            "depends_on": dependencies_of(row, intake),
            **host_requests(gpus, cpus),
        },
        run_seconds=sum(seconds for _, seconds in runs),
        wait_seconds=intake.wait_between(submitted, runs[0][0]),
        status=last.status,
        failed_attempts=sum(attempt.status == "failed" for attempt in attempts),
        cancelled_seconds=last.ended if last.status == "killed" else None,
        estimate_seconds=length_of(row, "Timelimit"),
        accelerator=accelerator,
        labels=labels_of(row, user="User", job_name="JobName", partition="Partition", qos="QOS"),
    )


def _attempt(row: Mapping[str, str], intake: Intake) -> JobAttempt:
    status = known_status(_word(row["State"]), "State", KNOWN)
    submitted, started, ended = required_moment(row, "Submit"), moment(row, "Start"), moment(row, "End")
    elapsed = next((length_of(row, name) for name in ("ElapsedRaw", "Elapsed") if not is_missing(row.get(name))), None)
    if started is not None and ended is not None and elapsed is not None and _was_set_back(started + elapsed - ended):
        intake.assume(CLOCK_CHANGED)
        ended = started + elapsed
    between = None if started is None or ended is None else run_between(started, ended, "End")
    seconds = between if elapsed is None else elapsed
    never_allocated = seconds == 0 and row.get("AllocTRES") == ""  # cancelled in the queue; the times are those of the cancellation
    if started is None or seconds is None or never_allocated:
        return JobAttempt(submitted, None, 0.0, ended, status)
    if contradicts(seconds, started, ended):
        intake.assume(ELAPSED)
    return JobAttempt(submitted, started, seconds, ended, status)


def _was_set_back(missing: float) -> bool:
    """Return whether a job ran longer than from Start to End by what clocks are set back at the end of summer time."""
    return any(abs(missing - seconds) <= ROUNDING_SECONDS for seconds in SET_BACK)


def _word(state: str) -> str:
    """Return the state without the user in "CANCELLED by 1000" and the "+" that marks a truncated word."""
    return re.split(r"[ +]", state.strip())[0]


FORMAT = TraceFormat(
    "sacct", "Slurm, the output of sacct --parsable2", with_columns(*COLUMNS, separator="|"), _read, has_dates=True
)
