"""Advice as JSON patches, each with tests of what it replaces, as a script for kubectl and its inverse.

Written are the priority and the node affinity of pending Workloads, and the flavor order and `withinClusterQueue` of ClusterQueues.
A selector is lifted only on demand, from the Job first: a Workload that loses it earlier may be admitted to a flavor that the pods
of the Job, which still select another, can never use.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gavel_py.integrations.kueue.advice import KueueTry
from gavel_py.integrations.kueue.objects import GPUS, Object, labels_of
from gavel_py.integrations.kueue.reading import KueueJob, KueueState

ABSENT: Any = object()
"""The value of a field that is not there."""

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
Change = tuple[tuple[str, ...], Any, Any]
"""(path of a field, what it is, what it is to be)."""


@dataclass(frozen=True)
class KueuePatch:
    """What is written into one object.

    Attributes:
        source: The object as it is.
        changes: (path, old value, new value) of its fields.
    """

    source: Object
    changes: tuple[Change, ...]

    def operations(self, *, undo: bool = False) -> list[dict[str, Any]]:
        """Return the JSON patch, or its inverse: tests of the uid and of each old value, then the new values."""
        found: list[dict[str, Any]] = []
        if self.source["metadata"].get("uid"):
            found.append({"op": "test", "path": "/metadata/uid", "value": self.source["metadata"]["uid"]})
        for path, old, new in self.changes:
            before, after = (new, old) if undo else (old, new)
            pointer = "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in path)
            if before is ABSENT:
                found.append({"op": "add", "path": pointer, "value": after})
                continue
            found.append({"op": "test", "path": pointer, "value": before})
            found.append(
                {"op": "remove", "path": pointer} if after is ABSENT else {"op": "replace", "path": pointer, "value": after}
            )
        return found

    def command(self, kubectl: str, *, undo: bool = False) -> str:
        """Return the line of a script that applies the patch."""
        metadata = self.source["metadata"]
        group, _, version = str(self.source["apiVersion"]).rpartition("/")
        kind = f"{str(self.source['kind']).lower()}s.{version}.{group}"
        where = f" -n {shlex.quote(metadata['namespace'])}" if metadata.get("namespace") else ""
        patch = json.dumps(self.operations(undo=undo), separators=(",", ":"))
        return f"{kubectl} patch {kind} {shlex.quote(metadata['name'])}{where} --type=json -p {shlex.quote(patch)} || failed=1"

    def replaced(self) -> dict[str, Any]:
        """Return the whole object with the changes."""
        found: dict[str, Any] = copy.deepcopy(dict(self.source))
        for path, _, new in self.changes:
            at: Any = found
            for part in path[:-1]:
                at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
            if new is ABSENT:
                at.pop(path[-1], None)
            else:
                at[path[-1]] = new
        return found


def kueue_patches(state: KueueState, chosen: KueueTry, *, lift: bool = False) -> tuple[list[KueuePatch], list[str]]:
    """Return what a change writes, in the order in which it must be written, and what it cannot write.

    Args:
        state: The cluster.
        chosen: The change.
        lift: Whether to take the node selectors of users away, too.
    """
    found: list[KueuePatch] = []
    notes: list[str] = []
    for job in state.pending:
        if lift and job.key in chosen.asks and _owner(state, job) is None:
            notes.append(f"{job.key}: its owner is not a Job in the file, so its node selector stays")
        try:
            found += _of_job(state, job, chosen, lift=lift)
        except _NoLabelError:
            notes.append(f"{job.key}: no label tells the flavors of {job.queue} apart, so its affinity cannot name them")
    for name, spec in chosen.changes.queues.items():
        source = state.objects["ClusterQueue"][name]
        changes = list(_differing(source["spec"], spec))
        found += [KueuePatch(source, tuple(changes))] if changes else []
    return found, notes


def _differing(old: Object, new: Object) -> Iterator[Change]:
    """Yield the changes of a ClusterQueue: its flavor order, and what priorities may preempt within it."""
    if old.get("resourceGroups") != new.get("resourceGroups"):
        yield ("spec", "resourceGroups"), old["resourceGroups"], new["resourceGroups"]
    preemption, within = old.get("preemption"), (new.get("preemption") or {}).get("withinClusterQueue")
    if preemption is None and within not in (None, "Never"):
        yield ("spec", "preemption"), ABSENT, {"withinClusterQueue": within}
    elif preemption is not None and within is not None and preemption.get("withinClusterQueue") != within:
        yield ("spec", "preemption", "withinClusterQueue"), preemption.get("withinClusterQueue", ABSENT), within


class _NoLabelError(Exception):
    """No label has another value on each flavor."""


def _of_job(state: KueueState, job: KueueJob, chosen: KueueTry, *, lift: bool) -> Iterator[KueuePatch]:
    """Yield the patches of a job: of its owner, if its selector goes, and of its Workload."""
    changes: list[Change] = []
    allowed = chosen.changes.flavors.get(job.key, job.flavors)
    is_lifted = bool(allowed - job.flavors)
    labels = {key for name in state.quotas(job.queue) for key in labels_of(state.objects["ResourceFlavor"][name])}
    owner = _owner(state, job)
    # Only pods with GPUs: a launcher without them may run on nodes that no GPU flavor has.
    requests = job.workload.requests
    pods = [
        (number, each)
        for number, each in enumerate(job.source["spec"]["podSets"])
        if allowed != job.flavors and any(name in GPUS for name in requests[each["name"]])
    ]
    if is_lifted and (owner is None or not lift):
        pods = []  # without its Job, the selector cannot be lifted in the safe order
    elif is_lifted and owner is not None:
        lifted = list(_lifted(owner["spec"]["template"]["spec"], ("spec", "template", "spec"), labels))
        if lifted:
            yield KueuePatch(owner, tuple(lifted))
    for number, each in pods:
        spec, way = each["template"]["spec"], ("spec", "podSets", str(number), "template", "spec")
        changes += _lifted(spec, way, labels) if is_lifted else []
        if allowed != job.liftable or not is_lifted:
            changes.append(_affinity(spec, way, *_label(state, job.queue, allowed)))
    priority, old = chosen.changes.priorities.get(job.key), job.source["spec"].get("priority", ABSENT)
    if priority is not None and priority != job.workload.priority:
        changes.append((("spec", "priority"), old, priority))
    if changes:
        yield KueuePatch(job.source, tuple(changes))


def _owner(state: KueueState, job: KueueJob) -> Object | None:
    """Return the Job of a job, None if it has another owner or its Job is not in the dump."""
    return state.jobs_of.get(f"{job.key.partition('/')[0]}/{job.owner[1]}") if job.owner[0] == "Job" else None


def _lifted(spec: Object, way: tuple[str, ...], labels: Iterable[str]) -> Iterator[Change]:
    """Yield the change that takes the labels of flavors from the node selector of pods."""
    selector = spec.get("nodeSelector") or {}
    kept = {key: value for key, value in selector.items() if key not in labels}
    if kept != selector:
        yield (*way, "nodeSelector"), selector, kept or ABSENT


def _label(state: KueueState, queue: str, allowed: Iterable[str]) -> tuple[str, list[str]]:
    """Return a label with another value on each flavor of a queue, and its values on the allowed ones."""
    flavors = {name: labels_of(state.objects["ResourceFlavor"][name]) for name in state.quotas(queue)}
    for key in sorted({key for labels in flavors.values() for key in labels}):
        values = {name: labels.get(key) for name, labels in flavors.items()}
        if None not in values.values() and len(set(values.values())) == len(values):
            return key, sorted(str(values[name]) for name in allowed)
    raise _NoLabelError


def _affinity(spec: Object, way: tuple[str, ...], key: str, values: Sequence[str]) -> Change:
    """Return the change that lets pods run on nodes with these values of a label only, beside what they require already."""
    rule = {"key": key, "operator": "In", "values": list(values)}
    old = spec.get("affinity")
    new: dict[str, Any] = copy.deepcopy(dict(old or {}))
    required = new.setdefault("nodeAffinity", {}).setdefault(REQUIRED, {})
    terms: list[Mapping[str, Any]] = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [{**term, "matchExpressions": [*(term.get("matchExpressions") or []), rule]} for term in terms]
    return (*way, "affinity"), ABSENT if old is None else old, new


def kueue_script(patches: Sequence[KueuePatch], *, kubectl: str = "kubectl", undo: bool = False) -> str:
    """Return a shell script with one kubectl patch a line; a patch whose tests fail writes nothing, and the script exits with 1.

    undo: the inverse, in the inverse order.
    """
    what = "Takes the advice back" if undo else "Advice"
    head = f"#!/bin/sh\n# {what}: a patch writes nothing if its object has changed since it was read.\nfailed=0\n"
    lines = [each.command(kubectl, undo=undo) for each in (reversed(patches) if undo else patches)]
    return head + "\n".join([*lines, "exit $failed\n"])


def kueue_queues(state: KueueState, chosen: KueueTry) -> list[dict[str, Any]]:
    """Return the same advice as a ClusterQueue and LocalQueues for each class of jobs, in a cohort for each queue there is.

    The ClusterQueue of a team keeps its quota and moves into the cohort; those of the classes have none of their own and borrow it,
    each with its flavors in the order of their speeds. Their jobs must be submitted to their LocalQueues.
    """
    found: list[dict[str, Any]] = []
    classes: dict[tuple[str, str], list[KueueJob]] = {}
    for job in state.pending:
        classes.setdefault((job.queue, job.job_type), []).append(job)
    for queue in sorted({queue for queue, _ in classes}):
        source = state.objects["ClusterQueue"][queue]
        version, cohort = source["apiVersion"], source["spec"].get("cohortName") or source["spec"].get("cohort")
        field = "cohortName" if "v1beta2" in version else "cohort"
        found.append(_object(version, "Cohort", queue, {"parentName": cohort} if cohort else {}))
        spec = {**chosen.changes.queues.get(queue, source["spec"]), field: queue}
        found.append(_object(version, "ClusterQueue", queue, spec))
        for (_, job_type), jobs in sorted(each for each in classes.items() if each[0][0] == queue):
            name = f"{queue}-{_dns(job_type)}"
            allowed = {flavor for job in jobs for flavor in chosen.changes.flavors.get(job.key, job.flavors)}
            groups = [_borrowing(group, allowed, jobs[0].speeds) for group in spec["resourceGroups"]]
            found.append(_object(version, "ClusterQueue", name, {**spec, "resourceGroups": groups}))
            for namespace in sorted({job.key.partition("/")[0] for job in jobs}):
                local = _object(version, "LocalQueue", name, {"clusterQueue": name})
                local["metadata"]["namespace"] = namespace
                found.append(local)
    return found


def _object(version: str, kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}


def _dns(name: str) -> str:
    """Return a name as Kubernetes allows it."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50] or "other"


def _borrowing(group: Object, allowed: Iterable[str], speeds: Mapping[str, float]) -> dict[str, Any]:
    """Return a resource group without quota of its own, with the allowed flavors, fastest first."""
    has_gpus = any(name in GPUS for name in group["coveredResources"])
    flavors = [each for each in group["flavors"] if not has_gpus or each["name"] in allowed]
    order = sorted(flavors, key=lambda each: -speeds.get(each["name"], 0.0)) if has_gpus else flavors
    zero = [{**each, "resources": [{"name": one["name"], "nominalQuota": "0"} for one in each["resources"]]} for each in order]
    return {**group, "flavors": zero}
