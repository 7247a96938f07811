"""Jobs from `squeue --json`, in the shapes of 22.05 and from 23.02 on; tasks of an array are jobs of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gavel_py.integrations.slurm.gres import gpus_in
from gavel_py.integrations.slurm.hostlists import expand
from gavel_py.integrations.slurm.records import Phase, SlurmJob
from gavel_py.integrations.slurm.values import as_number, as_text, as_words, printable

__all__ = ["jobs_from"]

MOST_TASKS = 10_000
"""Tasks of one array that are told apart; Slurm's own limit (MaxArraySize) is 1,001 unless it is changed."""

READING_ERRORS = (ValueError, TypeError, AttributeError, KeyError)
LISTS = frozenset({"required_nodes", "nodes", "array_task_string"})
"""Fields in which whole lists are written down; what else is wrong with an entry is that it is none of a job."""

WELL = frozenset({"COMPLETED"})
CANCELLED = frozenset({"CANCELLED", "REVOKED"})
BADLY = frozenset({"FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "LAUNCH_FAILED"})
ON_THE_WAY = frozenset({"COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "STAGE_OUT"})
HOLDING = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "RESIZING", "STOPPED", "SIGNALING"})
ALONE, AMONG_ITS_LIKE = frozenset({"EXCLUSIVE", "NONE", "TRUE"}), frozenset({"USER", "MCS", "TOPO"})
SECONDS_PER_MINUTE = 60.0
NONE_16 = 65_534


def jobs_from(document: Mapping[str, Any]) -> tuple[dict[str, SlurmJob], tuple[str, ...]]:
    """Return the jobs by id, those that have ended included as long as Slurm knows them, and what could not be read."""
    jobs: dict[str, SlurmJob] = {}
    unread: list[str] = []
    for entry in document.get("jobs") or []:
        try:
            for job_id in list(_ids(entry)):
                jobs[job_id] = _job(job_id, entry)
        except READING_ERRORS as error:
            why = printable(str(error))
            unread.append(f"job {printable(str(entry.get('job_id')))}: {why}")
            with suppress(*READING_ERRORS):
                jobs |= _unplanned(entry, why)
    return jobs, tuple(unread)


def _unplanned(entry: Mapping[str, Any], why: str) -> dict[str, SlurmJob]:
    """What can be read of an entry without its lists: enough to know that it is there, and that Slurm must have it back."""
    rest = {name: value for name, value in entry.items() if name not in LISTS}
    return {job_id: replace(_job(job_id, rest), obstacles=(f"it cannot be read: {why}",)) for job_id in _ids(rest)}


def _ids(entry: Mapping[str, Any]) -> Iterator[str]:
    """How commands call it: 37, or 37_1 for a task; an array that waits as one entry has several."""
    number, array = _whole(entry["job_id"]), _whole(entry.get("array_job_id"))
    if not number:
        raise ValueError("has no number")
    task = as_number(entry.get("array_task_id"))
    waiting = as_text(entry.get("array_task_string"))
    if task is not None and array:
        yield f"{array}_{int(task)}"
    elif waiting:
        yield from (f"{array or number}_{each}" for each in _tasks(waiting))
    else:
        yield str(number)


def _tasks(text: str) -> Iterator[int]:
    """The tasks in 0-3,7,10-20:5%4; after the % stands how many may run at a time."""
    count = 0
    for first, last, step in re.findall(r"(\d+)(?:-(\d+))?(?::(\d+))?", text.partition("%")[0]):
        for task in range(int(first), int(last or first) + 1, max(1, int(step or 1))):
            count += 1
            if count > MOST_TASKS:
                raise ValueError(f"its array has more than {MOST_TASKS:,} tasks that wait")
            yield task


def _job(job_id: str, entry: Mapping[str, Any]) -> SlurmJob:
    words = as_words(entry.get("job_state"))
    phase = phase_of(words)
    nodes = _nodes(entry, phase)
    each = gpus_in(as_text(entry.get("tres_per_node")))
    requested, by_node = _requested(entry, nodes, each)
    used_nodes = tuple(expand(as_text(entry.get("nodes")))) if phase in {Phase.RUNNING, Phase.STOPPING} else ()
    return SlurmJob(
        job_id=job_id,
        phase=phase,
        words=words,
        name=as_text(entry.get("name")),
        user=as_text(entry.get("user_name")),
        account=as_text(entry.get("account")),
        partition=as_text(entry.get("partition")),
        comment=as_text(entry.get("comment")),
        admin_comment=as_text(entry.get("admin_comment")),
        requested=requested,
        nodes=nodes,
        fewest_nodes=_asked_nodes(entry) or nodes,
        most_nodes=_whole(entry.get("max_nodes")),
        one_node=(by_node and nodes == 1) or as_number(entry.get("max_nodes")) == 1,
        per_node=sum(each.values()) > 0,
        held=_held(entry, used_nodes),
        used_nodes=used_nodes,
        required_nodes=tuple(expand(as_text(entry.get("required_nodes")))),
        features=as_text(entry.get("features")),
        priority=as_number(entry.get("priority")),
        reason=as_text(entry.get("state_reason")),
        description=as_text(entry.get("state_description")),
        dependency=as_text(entry.get("dependency")),
        cpus=_whole(entry.get("cpus")),
        cpus_per_gpu=_by_gpu(entry.get("cpus_per_tres")),
        cpus_per_node=_small(entry.get("minimum_cpus_per_node")),
        memory_mb_per_node=as_number(entry.get("memory_per_node")) or 0.0,
        memory_mb_per_gpu=_by_gpu(entry.get("memory_per_tres")),
        memory_mb_per_cpu=as_number(entry.get("memory_per_cpu")) or 0.0,
        tasks=_whole(entry.get("tasks")),
        tasks_per_node=_small(entry.get("tasks_per_node")),
        submit_seconds=_moment(entry.get("submit_time")),
        eligible_seconds=_moment(entry.get("eligible_time")),
        start_seconds=_moment(entry.get("start_time")),
        end_seconds=_moment(entry.get("end_time")),
        deadline_seconds=_moment(entry.get("deadline")),
        time_limit_seconds=_minutes(entry.get("time_limit")),
        restarts=_whole(entry.get("restart_cnt")),
        most_tasks=_whole(entry.get("array_max_tasks")),
        obstacles=tuple(_obstacles(entry)),
    )


def phase_of(words: frozenset[str]) -> Phase:
    """Return where a job is with these states; one that is still cleaned up counts as ended if Slurm says how."""
    for ended, phase in ((WELL, Phase.FINISHED), (CANCELLED, Phase.CANCELLED), (BADLY, Phase.FAILED)):
        if words & ended:
            return phase
    if words & ON_THE_WAY:
        return Phase.STOPPING
    return Phase.RUNNING if words & HOLDING else Phase.WAITING


def _nodes(entry: Mapping[str, Any], phase: Phase) -> int:
    """How many nodes it has, or is to have; for a job that has run before, node_count is what it had then."""
    asked = _asked_nodes(entry) if phase is Phase.WAITING else 0
    if asked:
        return asked
    sent = len(expand(as_text(entry.get("required_nodes")))) if phase is Phase.WAITING and _whole(entry.get("restart_cnt")) else 0
    return max(1, sent or _whole(entry.get("node_count")))


def _asked_nodes(entry: Mapping[str, Any]) -> int:
    """On how many nodes it must be at least, 0 where that is not told."""
    asked = re.search(r"(?:^|,)node=(\d+)", as_text(entry.get("tres_req_str")))
    return 0 if asked is None else max(1, int(asked[1]))


def _requested(entry: Mapping[str, Any], nodes: int, each: Mapping[str, int]) -> tuple[dict[str, int], bool]:
    """GPUs of the whole job by type, and whether that follows from those of each node."""
    whole = gpus_in(as_text(entry.get("tres_per_job")))
    if sum(whole.values()):
        return whole, False
    if sum(each.values()):
        return {name: count * nodes for name, count in each.items()}, True
    tasks = gpus_in(as_text(entry.get("tres_per_task")))
    if sum(tasks.values()):
        return {name: count * max(1, _whole(entry.get("tasks"))) for name, count in tasks.items()}, False
    return gpus_in(as_text(entry.get("tres_per_socket"))), False  # of how many sockets, Slurm does not tell


def _by_gpu(value: Any) -> int:
    """The number in gres:gpu:8, or gres/gpu:8 from 23.02 on, where entries may be separated by semicolons."""
    return sum(gpus_in(as_text(value).replace(";", ",")).values())


def _held(entry: Mapping[str, Any], used_nodes: Iterable[str]) -> dict[str, int]:
    """{node: GPUs}; the list of what it holds is in the order of the list of its nodes."""
    details = [sum(gpus_in(text).values()) for text in entry.get("gres_detail") or []]
    return {node: gpus for node, gpus in zip(used_nodes, details, strict=False) if gpus}


def _obstacles(entry: Mapping[str, Any]) -> Iterator[str]:
    """Why it cannot be stopped and started elsewhere."""
    if entry.get("batch_flag") is False:
        yield "it is interactive (srun or salloc), and cannot be started again"
    elif entry.get("requeue") is False:
        yield "it may not be requeued (--no-requeue)"
    if _whole(entry.get("het_job_id")):
        yield "it is part of a heterogeneous job"
    if as_text(entry.get("excluded_nodes")):
        yield "it excludes nodes (--exclude)"
    if as_text(entry.get("resv_name")):
        yield "it runs in a reservation"
    alone = as_words(entry.get("exclusive")) | as_words(entry.get("shared"))
    if alone & ALONE:
        yield "it wants whole nodes for itself (--exclusive)"
    elif alone & AMONG_ITS_LIKE:
        yield "it shares its nodes with certain jobs only (--exclusive=user, mcs or topo)"
    if as_text(entry.get("tres_per_socket")):
        yield "it asks for GPUs by socket"


def _whole(value: Any) -> int:
    number = as_number(value)
    if number is None:
        number = float(value) if isinstance(value, str) and value.isdecimal() else 0.0
    return int(number)


def _small(value: Any) -> int:
    """A number of 16 bits, the largest of which mean that there is none."""
    number = _whole(value)
    return number if number < NONE_16 else 0


def _moment(value: Any) -> float | None:
    return as_number(value) or None  # 0 means that it has not happened


def _minutes(value: Any) -> float | None:
    minutes = as_number(value)
    return None if minutes is None else minutes * SECONDS_PER_MINUTE
