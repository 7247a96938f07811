"""Kueue's API objects, v1beta2 and v1beta1, as records of its scheduler."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from gavel_py.errors import InputError
from gavel_py.integrations.kueue.preemption import QueuedWorkload
from gavel_py.integrations.kueue.quota import Key, amount

BOOST = "kueue.x-k8s.io/priority-boost"
GPUS = ("nvidia.com/gpu", "amd.com/gpu")
NUMBER = re.compile(r"-?[0-9]{1,18}")

Object = Mapping[str, Any]


def seconds(stamp: object) -> float:
    """Return the Unix time of a stamp such as 2026-01-01T00:00:00Z, in UTC if it has no zone; `InputError` for anything else."""
    try:
        found = datetime.fromisoformat(str(stamp))
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        raise InputError(f"must be a time such as 2026-01-01T00:00:00Z, found {stamp!r}") from None


def name_of(each: Object) -> str:
    """Return namespace/name, or the name of an object without a namespace."""
    metadata = each["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") is not None else f"{metadata['name']}"


def conditions(each: Object) -> dict[str, Object]:
    """Return {type: condition} of an object."""
    return {condition["type"]: condition for condition in (each.get("status") or {}).get("conditions") or []}


def is_true(each: Object, condition: str) -> bool:
    """Return whether a condition of an object holds: its status counts, not its presence."""
    return conditions(each).get(condition, {}).get("status") == "True"


def boost_of(each: Object) -> int:
    """Return the priority boost of a Workload, 0 if it has none or no whole number."""
    text = (each["metadata"].get("annotations") or {}).get(BOOST, "")
    try:
        return int(text) if -(2**31) <= int(text) < 2**31 else 0
    except ValueError:
        return 0


def pods_of(each: Object) -> dict[str, int]:
    """Return {pod set: pods}, without those that have succeeded and whose quota Kueue has taken back (`reclaimablePods`)."""
    done = {one["name"]: one["count"] for one in (each.get("status") or {}).get("reclaimablePods") or []}
    return {pod_set["name"]: max(0, _count(pod_set) - done.get(pod_set["name"], 0)) for pod_set in each["spec"]["podSets"]}


def _count(pod_set: Object) -> int:
    return 1 if pod_set.get("count") is None else int(pod_set["count"])


def gang_of(each: Object) -> int:
    """Return the GPUs of all pods of a Workload, by which its speed is known."""
    pod_sets = [(_of_pod(pod_set["template"]["spec"]), _count(pod_set)) for pod_set in each["spec"]["podSets"]]
    return sum(asked.get(name, 0) * count for asked, count in pod_sets for name in GPUS)


def _of_pod(spec: Object) -> dict[str, int]:
    """Return what a pod requests: containers with sidecars, or an init container beside earlier sidecars, and overhead."""

    def of_container(container: Object) -> dict[str, int]:
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        return {name: amount(name, value) for name, value in asked.items()}

    needed, sidecars, most = (defaultdict[str, int](int) for _ in range(3))
    for container in spec.get("initContainers") or []:
        for name, value in of_container(container).items():
            sidecars[name] += value if container.get("restartPolicy") == "Always" else 0
            most[name] = max(most[name], sidecars[name] + (0 if container.get("restartPolicy") == "Always" else value))
    for asked in map(of_container, spec.get("containers") or []):
        for name, value in asked.items():
            needed[name] += value
    overhead = {name: amount(name, value) for name, value in (spec.get("overhead") or {}).items()}
    names = {**needed, **most, **overhead}
    return {name: max(needed[name] + sidecars[name], most[name]) + overhead.get(name, 0) for name in names}


def requests_of(each: Object) -> dict[str, dict[str, int]]:
    """Return {pod set: {resource: amount}} that the pods of a Workload request.

    What Kueue states goes before the sum over containers, since its configuration may leave out or replace resources.
    """
    counts = pods_of(each)
    found = {
        pod_set["name"]: {name: value * counts[pod_set["name"]] for name, value in _of_pod(pod_set["template"]["spec"]).items()}
        for pod_set in each["spec"]["podSets"]
    }
    for one in (each.get("status") or {}).get("resourceRequests") or []:
        if one["name"] in found:
            found[one["name"]] = {name: amount(name, value) for name, value in (one.get("resources") or {}).items()}
    return found | {name: held for name, _, held in _assigned(each) if name in found and held}


def gpus_by_flavor(usage: Mapping[Key, int]) -> dict[str, int]:
    """Return {flavor: GPUs} of what a workload holds."""
    found: dict[str, int] = {}
    for (flavor, resource), value in usage.items():
        if resource in GPUS:
            found[flavor] = found.get(flavor, 0) + value
    return found


def usage_of(each: Object) -> dict[Key, int]:
    """Return {(flavor, resource): amount} that a Workload holds, for the pods that it still has."""
    usage = defaultdict[Key, int](int)
    for _, flavors, held in _assigned(each):
        for resource, value in held.items():
            usage[flavors[resource], resource] += value
    return usage


def _assigned(each: Object) -> Iterator[tuple[str, Mapping[str, str], dict[str, int]]]:
    """Yield (pod set, {resource: flavor}, {resource: amount held by the pods that are left}) of an admitted Workload."""
    counts = pods_of(each)
    for one in ((each.get("status") or {}).get("admission") or {}).get("podSetAssignments") or []:
        admitted = one.get("count") or 1
        left = min(admitted, counts.get(one["name"], admitted))
        held = {name: amount(name, value) * left // admitted for name, value in (one.get("resourceUsage") or {}).items()}
        yield one["name"], one.get("flavors") or {}, held


def queued_workload(
    each: Object, queue: str, groups: Iterable[Mapping[str, Object]] = (), *, with_boost: bool = False
) -> QueuedWorkload:
    """Return a Workload as the scheduler of a ClusterQueue sees it, waiting or admitted.

    groups: {name: ResourceFlavor} of each resource group of the ClusterQueue, from which it follows which flavors a pod set cannot
    use.
    """
    metadata, spec, found = each["metadata"], each["spec"], conditions(each)
    evicted, reserved = found.get("Evicted", {}), found.get("QuotaReserved", {})
    is_evicted = evicted.get("status") == "True"
    created = seconds(metadata["creationTimestamp"]) if metadata.get("creationTimestamp") else 0.0
    waits_again = is_evicted and evicted.get("reason") == "PodsReadyTimeout"
    return QueuedWorkload(
        key=name_of(each),
        queue=queue,
        uid=str(metadata.get("uid") or ""),
        priority=int(spec.get("priority") or 0) + (boost_of(each) if with_boost else 0),
        queued=seconds(evicted["lastTransitionTime"]) if waits_again else created,
        reserved=seconds(reserved["lastTransitionTime"]) if reserved.get("status") == "True" else 0.0,
        is_evicted=is_evicted,
        is_gated=bool(spec.get("preemptionGates")),
        requests=requests_of(each),
        counts=pods_of(each),
        usage=usage_of(each),
        excluded={pod_set["name"]: excluded_flavors(pod_set["template"]["spec"], groups) for pod_set in spec["podSets"]},
        local_queue=str(spec.get("queueName") or ""),
    )


def excluded_flavors(pod: Object, groups: Iterable[Mapping[str, Object]]) -> dict[str, str]:
    """Return {flavor: why not} of those that pods cannot use, in Kueue's words: by taints, node selector and node affinity.

    groups: {name: ResourceFlavor} of each resource group; only labels that flavors of the same group have count.
    """
    return {name: why for flavors in groups for name, why in _excluded(pod, flavors).items()}


def _excluded(pod: Object, flavors: Mapping[str, Object]) -> dict[str, str]:
    labels = {key for each in flavors.values() for key in labels_of(each)}
    found = {}
    for name, each in flavors.items():
        spec = each.get("spec") or {}
        tolerations = [*(pod.get("tolerations") or []), *(spec.get("tolerations") or [])]
        taint = next((taint for taint in spec.get("nodeTaints") or [] if not _is_tolerated(taint, tolerations)), None)
        if taint is not None:
            text = " ".join([taint["key"], taint.get("value", ""), taint["effect"], "<nil>"])
            found[name] = f"untolerated taint {{{text}}} in flavor {name}"
        elif not matches_nodes(pod, labels_of(each), labels):
            found[name] = f"flavor {name} doesn't match node affinity"
    return found


def labels_of(flavor: Object) -> Mapping[str, str]:
    """Return the node labels of a ResourceFlavor."""
    return (flavor.get("spec") or {}).get("nodeLabels") or {}


def _is_tolerated(taint: Object, tolerations: Iterable[Object]) -> bool:
    return taint.get("effect") not in ("NoSchedule", "NoExecute") or any(
        each.get("effect") in (None, "", taint["effect"])
        and each.get("key") in (None, "", taint["key"])
        and (each.get("operator") == "Exists" or (each.get("key") and each.get("value", "") == taint.get("value", "")))
        for each in tolerations
    )


def matches_nodes(pod: Object, node_labels: Mapping[str, str], known: Iterable[str]) -> bool:
    """Return whether pods may run on nodes with these labels; only labels that some flavor has are looked at."""
    selector = {key: value for key, value in (pod.get("nodeSelector") or {}).items() if key in known}
    if any(node_labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = affinity.get("nodeSelectorTerms") or []
    rules = [[rule for rule in term.get("matchExpressions") or [] if rule["key"] in known] for term in terms]
    # A term of which no rule is on a label of a flavor says nothing about flavors.
    return not rules or any(all(_meets(rule, node_labels) for rule in term) for term in rules)


def _meets(rule: Object, labels: Mapping[str, str]) -> bool:
    value, operator, wanted = labels.get(rule["key"]), rule["operator"], rule.get("values") or []
    if operator in ("In", "NotIn"):
        return bool((value in wanted) == (operator == "In"))
    if operator in ("Exists", "DoesNotExist"):
        return bool((value is not None) == (operator == "Exists"))
    number, limit = ((int(text) if text and NUMBER.fullmatch(text) else None) for text in (value, next(iter(wanted), None)))
    return number is not None and limit is not None and (number > limit if operator == "Gt" else number < limit)


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector of the API selects these labels; no selector selects nothing, an empty one everything."""
    if selector is None:
        return False
    rules = [{"key": key, "operator": "In", "values": [value]} for key, value in (selector.get("matchLabels") or {}).items()]
    return all(_meets(rule, labels) for rule in [*rules, *(selector.get("matchExpressions") or [])])
