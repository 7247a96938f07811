"""Kueue's API objects, v1beta2 and v1beta1, as records of its scheduler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from gavel_py.errors import InputError
from gavel_py.integrations.kueue.preemption import QueuedWorkload
from gavel_py.integrations.kueue.quota import Key, amount

BOOST = "kueue.x-k8s.io/priority-boost"

Object = Mapping[str, Any]


def seconds(stamp: object) -> float:
    """Return the Unix time of a stamp such as 2026-01-01T00:00:00Z. Raises `InputError` for anything else."""
    try:
        return datetime.fromisoformat(str(stamp)).timestamp()
    except ValueError:
        raise InputError(f"must be a time such as 2026-01-01T00:00:00Z, found {stamp!r}") from None


def name_of(each: Object) -> str:
    """Return namespace/name, or the name of an object without a namespace."""
    metadata = each["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else f"{metadata['name']}"


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


def requests_of(pod_set: Object) -> dict[str, int]:
    """Return what all pods of a pod set request: containers, or one init container if it needs more, and overhead."""
    spec = pod_set["template"]["spec"]

    def total(containers: Iterable[Object]) -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for container in containers:
            resources = container.get("resources") or {}
            for name, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
                found[name] += amount(name, value)
        return found

    needed = total(spec.get("containers") or [])
    for container in spec.get("initContainers") or []:
        for name, value in total([container]).items():
            needed[name] = max(needed[name], value)
    for name, value in (spec.get("overhead") or {}).items():
        needed[name] += amount(name, value)
    return {name: value * int(pod_set.get("count", 1)) for name, value in needed.items()}


def usage_of(each: Object) -> dict[Key, int]:
    """Return {(flavor, resource): amount} that a Workload holds."""
    usage: dict[Key, int] = defaultdict(int)
    for pod_set in ((each.get("status") or {}).get("admission") or {}).get("podSetAssignments") or []:
        for resource, value in (pod_set.get("resourceUsage") or {}).items():
            usage[pod_set["flavors"][resource], resource] += amount(resource, value)
    return usage


def queued_workload(each: Object, queue: str, flavors: Mapping[str, Object], *, with_boost: bool = False) -> QueuedWorkload:
    """Return a Workload as the scheduler of a ClusterQueue sees it, waiting or admitted.

    flavors: {name: ResourceFlavor} of the ClusterQueue, of which it learns which pod sets cannot use which.
    """
    metadata, spec, found = each["metadata"], each["spec"], conditions(each)
    evicted, reserved = found.get("Evicted", {}), found.get("QuotaReserved", {})
    is_evicted = evicted.get("status") == "True"
    created = seconds(metadata["creationTimestamp"]) if "creationTimestamp" in metadata else 0.0
    waits_again = is_evicted and evicted.get("reason") == "PodsReadyTimeout"
    return QueuedWorkload(
        key=name_of(each),
        queue=queue,
        uid=str(metadata.get("uid", "")),
        priority=int(spec.get("priority") or 0) + (boost_of(each) if with_boost else 0),
        queued=seconds(evicted["lastTransitionTime"]) if waits_again else created,
        reserved=seconds(reserved["lastTransitionTime"]) if reserved.get("status") == "True" else 0.0,
        is_evicted=is_evicted,
        is_gated=bool(spec.get("preemptionGates")),
        requests={pod_set["name"]: requests_of(pod_set) for pod_set in spec["podSets"]},
        counts={pod_set["name"]: int(pod_set.get("count", 1)) for pod_set in spec["podSets"]},
        usage=usage_of(each),
        excluded={pod_set["name"]: excluded_flavors(pod_set["template"]["spec"], flavors) for pod_set in spec["podSets"]},
        local_queue=str(spec.get("queueName", "")),
    )


def excluded_flavors(pod: Object, flavors: Mapping[str, Object]) -> dict[str, str]:
    """Return {flavor: why not} of those that pods cannot use, in Kueue's words: by taints, node selector and node affinity."""
    labels = {key for each in flavors.values() for key in each["spec"].get("nodeLabels") or {}}
    found = {}
    for name, each in flavors.items():
        spec = each["spec"]
        tolerations = [*(pod.get("tolerations") or []), *(spec.get("tolerations") or [])]
        taint = next((taint for taint in spec.get("nodeTaints") or [] if not _is_tolerated(taint, tolerations)), None)
        if taint is not None:
            text = " ".join([taint["key"], taint.get("value", ""), taint["effect"], "<nil>"])
            found[name] = f"untolerated taint {{{text}}} in flavor {name}"
        elif not matches_nodes(pod, spec.get("nodeLabels") or {}, labels):
            found[name] = f"flavor {name} doesn't match node affinity"
    return found


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
    number, limit = ((int(text) if text is not None and text.isdigit() else None) for text in (value, next(iter(wanted), None)))
    return number is not None and limit is not None and (number > limit if operator == "Gt" else number < limit)


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector of the API selects these labels; no selector selects nothing, an empty one everything."""
    if selector is None:
        return False
    rules = [{"key": key, "operator": "In", "values": [value]} for key, value in (selector.get("matchLabels") or {}).items()]
    return all(_meets(rule, labels) for rule in [*rules, *(selector.get("matchExpressions") or [])])
