"""Slurm's JSON as plain records, of all versions from 22.05 on: jobs, nodes, and the notations inside their fields.

Jobs come from `squeue --json` (`jobs_from`), tasks of an array as jobs of their own; nodes from `sinfo --json` (`nodes_from`), with
one entry per node in 22.05, and from 23.02 on one entry for nodes that are alike. The notations: numbers with or without a wrapper,
one state or a list of them; --constraint, as far as it is names joined by & or by |; lists of generic resources, gpu:v100:4(S:0-1),
gres:gpu:2, gres/gpu=4; shortened lists of nodes, rack1-[0-3,07]-gpu,login.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

from gavel_py.integrations.slurm.records import Phase, SlurmJob, SlurmNode
from gavel_py.io.records import CONTROL

PLAIN = re.compile(r"[A-Za-z0-9_.:=-]+(?:[&|][A-Za-z0-9_.:=-]+)*")


def is_plain(asked: str) -> bool:
    """Say whether an expression is empty, or names joined by & and |, which are read from left to right."""
    return not asked or PLAIN.fullmatch(asked) is not None


def satisfies(features: Set[str], asked: str) -> bool:
    """Say whether a node with these features is what a plain expression asks for.

    >>> satisfies({"v100", "ib"}, "v100&ib"), satisfies({"v100"}, "a100|v100"), satisfies({"k80"}, "v100")
    (True, True, False)
    """
    if not asked:
        return True
    first, *rest = re.split(r"([&|])", asked)
    holds = first in features
    for joint, name in zip(rest[::2], rest[1::2], strict=True):
        holds = (holds and name in features) if joint == "&" else (holds or name in features)
    return holds


AFTER = re.compile(r"\([^()]*\)")
"""Which sockets and which numbers, as in (S:0-1) and (IDX:0,2)."""

GPU = re.compile(r"(?:^|,)\s*(?:gres[:/])?gpu(?:[:=]([^:=,()]*?))?(?:[:=](\d+))?\s*(?=,|$)")


def gpus_in(text: str) -> dict[str, int]:
    """Return {type: GPUs}, the type "" where none is named; what is no GPU does not count.

    >>> gpus_in("gpu:v100:4(S:0-1),nic:1"), gpus_in("gres:gpu:2"), gpus_in("gpu"), gpus_in("gpu:a100")
    ({'v100': 4}, {'': 2}, {'': 1}, {'a100': 1})
    """
    found: dict[str, int] = {}
    for name, count in GPU.findall(AFTER.sub("", text)):
        if name.isdecimal() and not count:
            name, count = "", name
        found[name] = found.get(name, 0) + int(count or 1)
    return found


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")

PART = re.compile(r"((?:[^,\[\]]|\[[^\[\]]*\])+)(?:,|$)")

MOST = 100_000
"""Nodes of one list; the largest clusters have less, and a broken list must not fill the memory."""


def is_node_name(text: str) -> bool:
    """Say whether this can be the name of a node; nothing else goes into a command."""
    return NAME.fullmatch(text) is not None


def expand(text: str) -> list[str]:
    """Return the names of a list in its order; raises `ValueError` for what is none.

    >>> expand("a[0-2,10]-[x,y],b")
    ['a0-x', 'a0-y', 'a1-x', 'a1-y', 'a2-x', 'a2-y', 'a10-x', 'a10-y', 'b']
    """
    if not text:
        return []
    if "[" not in text:
        return _checked(text.split(","), text)
    names: list[str] = []
    at = 0
    while at < len(text):
        part = PART.match(text, at)
        if part is None:
            raise ValueError(f"is not a list of nodes: {text[:80]!r}")
        names += _expanded(part[1])
        at = part.end()
    return _checked(names, text)


def _checked(names: list[str], text: str) -> list[str]:
    if not all(map(is_node_name, names)):
        raise ValueError(f"is not a list of nodes: {text[:80]!r}")
    return names


def _expanded(part: str) -> Iterator[str]:
    """The names of one element, each range of which stands for several."""
    pieces = re.split(r"\[([^\]]*)\]", part)
    choices = [[piece] if n % 2 == 0 else list(_range(piece)) for n, piece in enumerate(pieces)]
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > MOST:
        raise ValueError(f"names more than {MOST:,} nodes: {part[:80]!r}")
    return ("".join(words) for words in product(*choices))


def _range(text: str) -> Iterator[str]:
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        if not (dash and first.isdecimal() and last.isdecimal()):
            yield piece
            continue
        if int(last) - int(first) >= MOST:
            raise ValueError(f"names more than {MOST:,} nodes: {text[:80]!r}")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


LONGEST = 200
"""Characters of a text that is shown; names and comments are whatever their users wrote."""

INFINITE = 4_294_967_294
"""From here on up, 32-bit numbers of Slurm mean "none" or "no limit"."""


def as_number(value: Any) -> float | None:
    """Return a number, None where there is none or no limit: 3, {"set": true, "infinite": false, "number": 3}, null.

    >>> as_number(3), as_number({"set": True, "infinite": False, "number": 4}), as_number({"set": False, "number": 0})
    (3.0, 4.0, None)
    """
    if isinstance(value, Mapping):
        if not value.get("set") or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if value >= INFINITE and value <= INFINITE + 1 else float(value)


def as_words(value: Any) -> frozenset[str]:
    """Return the words of a state, in upper case: "RUNNING", "idle+drain", ["RUNNING", "COMPLETING"].

    >>> sorted(as_words(["RUNNING", "COMPLETING"])), sorted(as_words("idle"))
    (['COMPLETING', 'RUNNING'], ['IDLE'])
    """
    texts = value if isinstance(value, list) else [value]
    return frozenset(word.upper() for text in texts if isinstance(text, str) for word in re.findall(r"[A-Za-z_]+", text))


def as_text(value: Any) -> str:
    """Return a text, empty where there is none; some versions wrap it in a list, as they do with nodes that are asked for."""
    if isinstance(value, list):
        return ",".join(each for each in value if isinstance(each, str))
    return value if isinstance(value, str) else ""


def printable(text: str) -> str:
    """Return a user's text as it may stand in a terminal, a message or a file: no control characters, and not too long."""
    clean = re.sub(f"[{CONTROL}\\u200b-\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ufeff\\ud800-\\udfff]", " ", text).strip()
    return clean if len(clean) <= LONGEST else clean[: LONGEST - 3] + "..."


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
    unreadable: list[str] = []
    for entry in document.get("jobs") or []:
        try:
            for job_id in list(_ids(entry)):
                jobs[job_id] = _job(job_id, entry)
        except READING_ERRORS as error:
            why = printable(str(error))
            unreadable.append(f"job {printable(str(entry.get('job_id')))}: {why}")
            with suppress(*READING_ERRORS):
                jobs |= _unplanned(entry, why)
    return jobs, tuple(unreadable)


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
        max_tasks=_whole(entry.get("array_max_tasks")),
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


def nodes_from(document: Mapping[str, Any]) -> dict[str, SlurmNode]:
    """Return the nodes by name; a node that stands in several entries, one for each partition, is put together."""
    nodes: dict[str, SlurmNode] = {}
    for node in _entries(document):
        before = nodes.get(node.name)
        if before is not None:
            node = _joined(before, node)
        nodes[node.name] = node
    return nodes


def _entries(document: Mapping[str, Any]) -> Iterator[SlurmNode]:
    for entry in document.get("nodes") or []:
        yield from _plain(entry)
    for entry in document.get("sinfo") or []:
        yield from _grouped(entry)


def _plain(entry: Mapping[str, Any]) -> Iterator[SlurmNode]:
    name = as_text(entry.get("name"))
    if is_node_name(name):
        yield SlurmNode(
            name=name,
            gpus=gpus_in(as_text(entry.get("gres"))),
            states=as_words(entry.get("state")) | as_words(entry.get("state_flags")),
            partitions=_names(entry.get("partitions")),
            features=_names(entry.get("active_features") or entry.get("features")),
            cpus=int(as_number(entry.get("cpus")) or 0),
            memory_mb=as_number(entry.get("real_memory")) or 0.0,
        )


def _grouped(entry: Mapping[str, Any]) -> Iterator[SlurmNode]:
    names = (entry.get("nodes") or {}).get("nodes") or []
    partition = entry.get("partition") or {}
    cpus, memory = entry.get("cpus") or {}, entry.get("memory") or {}
    for name in names:
        if isinstance(name, str) and is_node_name(name):
            yield SlurmNode(
                name=name,
                gpus=gpus_in(as_text((entry.get("gres") or {}).get("total"))),
                states=as_words((entry.get("node") or {}).get("state")),
                partitions=_names(partition.get("name") if isinstance(partition, Mapping) else partition),
                features=_names((entry.get("features") or {}).get("active")),
                # `total` is that of all nodes of the entry; the least of them is what each has.
                cpus=int(as_number(cpus.get("minimum")) or (as_number(cpus.get("total")) or 0) / len(names)),
                memory_mb=as_number(memory.get("minimum")) or 0.0,
            )


def _names(value: Any) -> frozenset[str]:
    return frozenset(name for name in as_text(value).split(",") if name)


def _joined(one: SlurmNode, other: SlurmNode) -> SlurmNode:
    joined = one.__dict__ | {
        "partitions": one.partitions | other.partitions,
        "states": one.states | other.states,
        "features": one.features | other.features,
    }
    return SlurmNode(**joined)
