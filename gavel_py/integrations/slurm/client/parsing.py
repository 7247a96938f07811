"""Parsing of Slurm's JSON, from version 22.05 on.

`jobs_from` reads `squeue --json`, `nodes_from` reads `sinfo --json`, and `partitions_from` and `tiers_from` what scontrol
shows. Numbers may be wrapped in an object, states may be a string or a list, and from 23.02 on sinfo groups equal nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

from gavel_py.errors import SlurmError
from gavel_py.integrations.slurm.client.notation import (
    as_number,
    as_text,
    as_words,
    expand,
    gpus_in,
    is_node_name,
    printable,
    seconds_in,
)
from gavel_py.integrations.slurm.client.records import (
    LEASE,
    REQUESTS_WHOLE_NODES,
    NodeUsage,
    PartitionLimits,
    Phase,
    SlurmJob,
    SlurmNode,
)

MAX_TASKS = 10_000
"""Maximum number of waiting tasks of an array; Slurm's own limit (MaxArraySize) is 1,001 by default."""

READING_ERRORS = (ValueError, TypeError, AttributeError, KeyError, OverflowError)

LISTS = ({"required_nodes", "nodes", "array_task_string"}, {"required_nodes", "nodes", "array_task_string", "dependency"})
"""Fields that contain lists. An entry that is unreadable because of one of them still identifies a job.

Without its dependency, a job cannot be released from a lease, so that dependencies are kept if other lists are at fault.
"""

SUCCEEDED = frozenset({"COMPLETED"})
CANCELLED = frozenset({"CANCELLED", "REVOKED"})
UNSUCCESSFUL = frozenset({"FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "LAUNCH_FAILED"})
ENDING = frozenset({"COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "STAGE_OUT"})
ALLOCATED = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "RESIZING", "STOPPED", "SIGNALING"})
WHOLE_NODES, RESTRICTED_SHARING = frozenset({"EXCLUSIVE", "NONE", "TRUE"}), frozenset({"USER", "MCS", "TOPO"})
SHARED_GRES = re.compile(r"(?:^|,)(shard|mps)\b")
NO_VALUE_16 = 65_534
ANY_END = "afterany:"
STATE_OF_DEPENDENCY = re.compile(r"\((unfulfilled|failed|fulfilled)\)")
DEPENDENCY = re.compile(r"[A-Za-z0-9_:+*,?]*")
"""Dependencies that can be written back with scontrol."""

SHARING_IS_UNKNOWN = (26, 5)
"""Release from which Slurm does not say whether a job requests whole nodes (--exclusive)."""


def entries_in(document: Mapping[str, Any], name: str) -> list[Any]:
    """Return the list of this name in a document. Raises `SlurmError` if Slurm reports errors with it, or there is no such list.

    While slurmctld is down, squeue and sinfo end with code 0 and list nothing. With errors, a list that is not empty may be
    incomplete too: from 23.02 on, it ends at the first entry that Slurm cannot write.
    """
    errors, entries = document.get("errors"), document.get(name)
    if errors:
        listed = [_error_text(error) for error in (errors if isinstance(errors, list) else [errors])]
        raise SlurmError(f"Slurm does not list its {name}: {printable('; '.join(listed))}; is slurmctld up?")
    if not isinstance(entries, list):
        raise SlurmError(f"Slurm does not list its {name}: it printed JSON without them")
    return entries


def _error_text(error: Any) -> str:
    """Return an error in a document, such as: Failed while looking for jobs (Unspecified error)."""
    if not isinstance(error, Mapping):
        return str(error)
    what, why = as_text(error.get("description")), as_text(error.get("error"))
    return f"{what} ({why})" if what and why else what or why or "an error without a text"


def jobs_from(document: Mapping[str, Any]) -> tuple[dict[str, SlurmJob], tuple[str, ...]]:
    """Return the jobs by id, including ended ones that Slurm still lists, and descriptions of unreadable entries.

    Raises `SlurmError` if the document has no list of jobs, or Slurm reports errors in it.
    """
    jobs: dict[str, SlurmJob] = {}
    unreadable: list[str] = []
    tells_sharing, entries = release_of(document) < SHARING_IS_UNKNOWN, entries_in(document, "jobs")
    leases = {str(entry.get("job_id")) for entry in entries if isinstance(entry, Mapping) and entry.get("name") == LEASE}
    for entry in entries:
        try:
            for job_id in list(_ids(entry)):
                jobs[job_id] = _job(job_id, entry, leases, tells_sharing)
        except READING_ERRORS as error:
            why = printable(str(error))
            number = entry.get("job_id") if isinstance(entry, Mapping) else entry
            unreadable.append(f"job {printable(str(number))}: {why}")
            # Without its lists the entry is readable, and the driver can leave the job to Slurm.
            for lists in LISTS:
                with suppress(*READING_ERRORS):
                    rest = {name: value for name, value in entry.items() if name not in lists}
                    obstacles = (f"it cannot be read: {why}",)
                    found = {job_id: _job(job_id, rest, leases, tells_sharing) for job_id in _ids(rest)}
                    jobs |= {job_id: replace(job, obstacles=obstacles) for job_id, job in found.items()}
                    break
    return jobs, tuple(unreadable)


def release_of(document: Mapping[str, Any]) -> tuple[int, int]:
    """Return the release of Slurm that printed a document, such as (24, 11), or (0, 0) if it does not say."""
    meta = document.get("meta")
    named = meta.get("slurm") if isinstance(meta, Mapping) else None
    version = named.get("version") if isinstance(named, Mapping) else None
    if not isinstance(version, Mapping):  # early releases name it in another way
        return 0, 0
    return _whole(version.get("major")), _whole(version.get("minor"))


def _ids(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ids of an entry: 37, 37_1 for a task, or one for each waiting task of an array."""
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
    """Yield the tasks in a list such as 0-3,7,10-20:5%4; the number after % limits the running tasks."""
    count = 0
    for first, last, step in re.findall(r"(\d+)(?:-(\d+))?(?::(\d+))?", text.partition("%")[0]):
        for task in range(int(first), int(last or first) + 1, max(1, int(step or 1))):
            count += 1
            if count > MAX_TASKS:
                raise ValueError(f"its array has more than {MAX_TASKS:,} waiting tasks")
            yield task


def _job(job_id: str, entry: Mapping[str, Any], leases: Container[str], tells_sharing: bool) -> SlurmJob:
    states = as_words(entry.get("job_state"))
    phase = phase_of(states)
    nodes = _nodes(entry, phase)
    per_node = gpus_in(as_text(entry.get("tres_per_node")))
    requested, is_by_node = _requested(entry, nodes, per_node)
    used = _used(entry) if phase in {Phase.RUNNING, Phase.STOPPING} else {}
    dependency, bound_to = _dependency(as_text(entry.get("dependency")), leases)
    plain = {name: convert(entry.get(key)) for convert, keys in PLAIN_FIELDS for name, key in keys.items()}
    return SlurmJob(
        job_id=job_id,
        phase=phase,
        states=states,
        requested=requested,
        nodes=nodes,
        min_nodes=_requested_nodes(entry) or nodes,
        one_node=(is_by_node and nodes == 1) or as_number(entry.get("max_nodes")) == 1,
        per_node=sum(per_node.values()) > 0,
        held={node: int(each.gpus) for node, each in used.items() if each.gpus},
        used=used,
        required_nodes=tuple(expand(as_text(entry.get("required_nodes")))),
        memory_mb_per_node=as_number(entry.get("memory_per_node")) or 0.0,
        memory_mb_per_cpu=as_number(entry.get("memory_per_cpu")) or 0.0,
        time_limit_seconds=None if (minutes := as_number(entry.get("time_limit"))) is None else minutes * 60.0,
        obstacles=tuple(_obstacles(entry)),
        dependency=dependency,
        leases=bound_to,
        tells_sharing=tells_sharing,
        part=f"{leader}+{_whole(entry.get('het_job_offset'))}" if (leader := _whole(entry.get("het_job_id"))) else "",
        **plain,
    )


def _dependency(text: str, leases: Container[str]) -> tuple[str, tuple[str, ...]]:
    """Return the dependencies of a job other than leases as scontrol reads them, and these leases.

    >>> _dependency("afterok:7_*(unfulfilled),singleton(unfulfilled),afterany:9(unfulfilled)", {"9"})
    ('afterok:7_*,singleton', ('9',))
    """
    joined = "?" if "?" in text else ","
    parts = STATE_OF_DEPENDENCY.sub("", text).split(joined)
    bound_to = [part for part in parts if part.startswith(ANY_END) and part.removeprefix(ANY_END) in leases]
    rest = joined.join(part for part in parts if part not in bound_to)
    if not DEPENDENCY.fullmatch(rest):
        raise ValueError(f"has the dependency {rest}")
    return rest, tuple(part.removeprefix(ANY_END) for part in bound_to)


def phase_of(states: frozenset[str]) -> Phase:
    """Return the phase of a job; a completing job counts as ended if its outcome is known."""
    for ended, phase in ((SUCCEEDED, Phase.FINISHED), (CANCELLED, Phase.CANCELLED), (UNSUCCESSFUL, Phase.FAILED)):
        if states & ended:
            return phase
    return Phase.STOPPING if states & ENDING else Phase.RUNNING if states & ALLOCATED else Phase.WAITING


def _used(entry: Mapping[str, Any]) -> dict[str, NodeUsage]:
    """Return {node: what a job has there}. If Slurm does not list CPUs by node, the CPUs of the job are divided evenly."""
    names = expand(as_text(entry.get("nodes")))
    gpus = [sum(gpus_in(text).values()) for text in entry.get("gres_detail") or []]  # in the order of the nodes
    cores, memory = _listed(entry.get("job_resources"))
    cpus, listed = _whole(entry.get("cpus")), sum(cores.get(name, 0) for name in names)
    shares = {name: cores.get(name, 0) / listed if listed else 1.0 / len(names) for name in names}
    return {
        name: NodeUsage(count, cpus * shares[name], memory.get(name, 0.0))
        for name, count in zip(names, chain(gpus, repeat(0)), strict=False)
    }


def _listed(resources: Any) -> tuple[dict[str, int], dict[str, float]]:
    """Return {node: allocated cores} and {node: allocated memory (MB)} as far as Slurm lists them."""
    if not isinstance(resources, Mapping):
        return {}, {}
    nodes = resources.get("nodes")
    entries = nodes.get("allocation") if isinstance(nodes, Mapping) else resources.get("allocated_nodes")
    cores: dict[str, int] = {}
    memory: dict[str, float] = {}
    for entry in entries if isinstance(entries, list) else []:
        name, sockets = as_text(entry.get("nodename") or entry.get("name")), entry.get("sockets") or {}
        each, cpus = sockets.values() if isinstance(sockets, Mapping) else sockets, entry.get("cpus")
        # From 24.05 on, all cores of a socket are listed, and the number of CPUs beside them.
        count = as_number(cpus.get("count")) if isinstance(cpus, Mapping) else None
        cores[name] = sum(len(socket.get("cores") or ()) for socket in each) if count is None else int(count)
        within = entry.get("memory")
        total = within.get("allocated") if isinstance(within, Mapping) else entry.get("memory_allocated")
        memory[name] = as_number(total) or 0.0
    return cores, memory


def _nodes(entry: Mapping[str, Any], phase: Phase) -> int:
    """Return the number of nodes that a job has or requests.

    The node_count of a requeued job is that of its last run; for such a job, the nodes that the driver requested count instead.
    """
    listed = 0
    if phase is Phase.WAITING:
        requested = _requested_nodes(entry)
        if requested:
            return requested
        if _whole(entry.get("restart_cnt")):
            listed = len(expand(as_text(entry.get("required_nodes"))))
    return max(1, listed or _whole(entry.get("node_count")))


def _requested_nodes(entry: Mapping[str, Any]) -> int:
    """Return the minimum number of nodes, or 0 if it is not given."""
    found = re.search(r"(?:^|,)node=(\d+)", as_text(entry.get("tres_req_str")))
    return 0 if found is None else max(1, int(found[1]))


def _requested(entry: Mapping[str, Any], nodes: int, per_node: Mapping[str, int]) -> tuple[dict[str, int], bool]:
    """Return {type: GPUs} of the whole job, and whether it is computed from a request per node."""
    whole = gpus_in(as_text(entry.get("tres_per_job")))
    if sum(whole.values()):
        return whole, False
    if sum(per_node.values()):
        return {name: count * nodes for name, count in per_node.items()}, True
    per_task = gpus_in(as_text(entry.get("tres_per_task")))
    if sum(per_task.values()):
        return {name: count * max(1, _whole(entry.get("tasks"))) for name, count in per_task.items()}, False
    return gpus_in(as_text(entry.get("tres_per_socket"))), False  # squeue does not report the number of sockets


def _by_gpu(value: Any) -> int:
    """Return the number in gres:gpu:8, or gres/gpu:8 from 23.02 on, where entries may be separated by semicolons."""
    return sum(gpus_in(as_text(value).replace(";", ",")).values())


def _obstacles(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield reasons why a job cannot be preempted and restarted elsewhere."""
    if entry.get("batch_flag") is False:
        yield "it is interactive (srun or salloc), so it cannot be restarted"
    elif entry.get("requeue") is False:
        yield "it may not be requeued (--no-requeue)"
    if _whole(entry.get("het_job_id")):
        yield "it is part of a heterogeneous job"
    if as_text(entry.get("excluded_nodes")):
        yield "it excludes nodes (--exclude)"
    if as_text(entry.get("resv_name")):
        yield "it runs in a reservation"
    exclusive = as_words(entry.get("exclusive")) | as_words(entry.get("shared"))
    if exclusive & WHOLE_NODES:
        yield REQUESTS_WHOLE_NODES
    elif exclusive & RESTRICTED_SHARING:
        yield "it shares its nodes only with certain jobs (--exclusive=user, mcs or topo)"
    if as_text(entry.get("tres_per_socket")):
        yield "it asks for GPUs per socket"


def _whole(value: Any) -> int:
    number = as_number(value)
    if number is None:
        number = float(value) if isinstance(value, str) and value.isdecimal() else 0.0
    return int(number)


def _small(value: Any) -> int:
    """Return a 16-bit number, whose two largest values stand for no value and no limit."""
    number = _whole(value)
    return number if number < NO_VALUE_16 else 0


def _time(value: Any) -> float | None:
    return as_number(value) or None  # 0 stands for no time


PLAIN_FIELDS: tuple[tuple[Callable[[Any], Any], Mapping[str, str]], ...] = (
    (
        as_text,
        {name: name for name in ("name", "account", "partition", "qos", "comment", "admin_comment", "features")},
    ),
    (as_text, {"user": "user_name", "reason": "state_reason", "description": "state_description"}),
    (as_number, {"priority": "priority"}),
    (_whole, {"cpus": "cpus", "tasks": "tasks", "max_nodes": "max_nodes"}),
    (_whole, {"restarts": "restart_cnt", "max_tasks": "array_max_tasks"}),
    (_small, {"cpus_per_node": "minimum_cpus_per_node", "tasks_per_node": "tasks_per_node"}),
    (_by_gpu, {"cpus_per_gpu": "cpus_per_tres", "memory_mb_per_gpu": "memory_per_tres"}),
    (_time, {f"{name}_seconds": f"{name}_time" for name in ("submit", "eligible", "start", "end")}),
    (_time, {"deadline_seconds": "deadline"}),
)
"""(converter, {field of `SlurmJob`: key of squeue}) of the fields that are one entry each."""


def nodes_from(document: Mapping[str, Any]) -> dict[str, SlurmNode]:
    """Return the nodes by name; a node may have an entry for each of its partitions.

    Raises `SlurmError` if the document has no list of nodes, Slurm reports errors in it, or an entry is unreadable: without it,
    GPUs that jobs use would be missing.
    """
    nodes: dict[str, SlurmNode] = {}
    groups = document.get("sinfo")
    listed, read = (document, _plain) if groups is None else ({**document, "nodes": groups}, _grouped)
    entries = entries_in(listed, "nodes")
    try:
        found = [node for entry in entries for node in read(entry)]
    except READING_ERRORS as error:
        raise SlurmError(f"Slurm lists a node that cannot be read: {printable(str(error))}") from None
    for node in found:
        before = nodes.get(node.name)
        if before is not None:
            sets = {name: getattr(before, name) | getattr(node, name) for name in ("partitions", "states", "features")}
            node = replace(before, **sets)
        nodes[node.name] = node
    return nodes


def _plain(entry: Mapping[str, Any]) -> Iterator[SlurmNode]:
    if is_node_name(name := as_text(entry.get("name"))):
        yield SlurmNode(
            name=name,
            gpus=gpus_in(as_text(entry.get("gres"))),
            states=as_words(entry.get("state")) | as_words(entry.get("state_flags")),
            partitions=_names(entry.get("partitions")),
            features=_names(entry.get("active_features") or entry.get("features")),
            shared_gres=_shared(entry.get("gres")),
            cpus=int(as_number(entry.get("cpus")) or 0),
            memory_mb=as_number(entry.get("real_memory")) or 0.0,
            used=NodeUsage(
                sum(gpus_in(as_text(entry.get("gres_used"))).values()),
                as_number(entry.get("alloc_cpus")) or 0.0,
                as_number(entry.get("alloc_memory")) or 0.0,
            ),
        )


def _shared(gres: Any) -> tuple[str, ...]:
    """Return the resources, of shard and mps, through which jobs may have parts of GPUs."""
    return tuple(sorted(set(SHARED_GRES.findall(as_text(gres)))))


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
                shared_gres=_shared((entry.get("gres") or {}).get("total")),
                # `minimum` is that of each node, `total` the sum over all nodes of the entry.
                cpus=int(as_number(cpus.get("minimum")) or (as_number(cpus.get("total")) or 0) / len(names)),
                memory_mb=as_number(memory.get("minimum")) or 0.0,
                used=NodeUsage(
                    sum(gpus_in(as_text((entry.get("gres") or {}).get("used"))).values()),
                    (as_number(cpus.get("allocated")) or 0.0) / len(names),
                    (as_number(memory.get("allocated")) or 0.0) / len(names),
                ),
            )


def partitions_from(text: str) -> dict[str, PartitionLimits]:
    """Return the partitions by name in what `scontrol show partition --oneliner` prints."""
    found = dict[str, PartitionLimits]()
    for line in text.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        nodes = words.get("MaxNodes", "")
        limits = PartitionLimits(
            words.get("State", "UP").upper(), seconds_in(words.get("MaxTime", "")), int(nodes) if nodes.isdecimal() else None
        )
        if "PartitionName" in words:
            found[words["PartitionName"]] = limits
    return found


def tiers_from(text: str) -> dict[str, tuple[int, frozenset[str]]]:
    """Return {partition: (PriorityTier, nodes)} in what `scontrol show partition --oneliner` prints."""
    found = {}
    for line in text.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        tier = words.get("PriorityTier", "")
        if "PartitionName" in words and tier.isdecimal():
            with suppress(*READING_ERRORS):
                found[words["PartitionName"]] = int(tier), frozenset(expand(words.get("Nodes", "")))
    return found


def _names(value: Any) -> frozenset[str]:
    return frozenset(name for name in as_text(value).split(",") if name)
