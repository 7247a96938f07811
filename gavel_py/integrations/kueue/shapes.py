"""The fields of Kueue's objects that are read, and what is wrong with objects that do not have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gavel_py.errors import Fault, InputError, shown
from gavel_py.integrations.kueue.objects import seconds
from gavel_py.integrations.kueue.quota import MOST, quantity


def _checked(check: Callable[[object], object]) -> Callable[[object], str]:
    def problem(value: object) -> str:
        try:
            check(value)
        except InputError as error:
            return error.faults[0].problem
        return ""

    return problem


def _of_type(kind: type, rule: str) -> Callable[[object], str]:
    return lambda value: "" if type(value) is kind else f"must be {rule}, found {shown(value)}"


def _all(*checks: Callable[[Any], str]) -> Callable[[object], str]:
    """Return a check that reports the first problem that these checks find."""
    return lambda value: next((problem for check in checks if (problem := check(value))), "")


TEXT, TIME = _of_type(str, "text"), _checked(seconds)
NUMBER = _all(
    _of_type(int, "a whole number"), lambda value: "" if abs(value) <= MOST else f"must have at most 64 bits, found {shown(value)}"
)
COUNT = _all(NUMBER, lambda value: "" if value >= 0 else f"must not be negative, found {value}")
QUANTITY = _all(_checked(quantity), lambda value: "" if quantity(value) >= 0 else f"must not be negative, found {shown(value)}")


LABELS = {"*": TEXT}
EXPRESSIONS = [{"key!": TEXT, "operator!": TEXT, "values": [TEXT]}]
SELECTOR = {"matchLabels": LABELS, "matchExpressions": EXPRESSIONS}
TAINTS = [{"key!": TEXT, "value": TEXT, "effect!": TEXT}]
TOLERATIONS = [{"key": TEXT, "operator": TEXT, "value": TEXT, "effect": TEXT}]
WEIGHT = {"weight": QUANTITY}
GROUPS = [
    {
        "coveredResources!": [TEXT],
        "flavors!": [
            {
                "name!": TEXT,
                "resources!": [{"name!": TEXT, "nominalQuota": QUANTITY, "borrowingLimit": QUANTITY, "lendingLimit": QUANTITY}],
            }
        ],
    }
]
CONTAINERS = [{"restartPolicy": TEXT, "resources": {"requests": {"*": QUANTITY}, "limits": {"*": QUANTITY}}}]
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": EXPRESSIONS}]},
    }
}
POD = {
    "containers": CONTAINERS,
    "initContainers": CONTAINERS,
    "overhead": {"*": QUANTITY},
    "nodeSelector": LABELS,
    "tolerations": TOLERATIONS,
    "affinity": AFFINITY,
}
TEMPLATE = {"metadata": {"annotations": LABELS}, "spec!": POD}
POD_SETS = [{"name!": TEXT, "count": COUNT, "minCount": COUNT, "template!": TEMPLATE, "topologyRequest": {}}]
CONDITIONS = [{"type!": TEXT, "status!": TEXT, "reason": TEXT, "message": TEXT, "lastTransitionTime!": TIME}]
PREEMPTION = {
    "withinClusterQueue": TEXT,
    "reclaimWithinCohort": TEXT,
    "borrowWithinCohort": {"policy": TEXT, "maxPriorityThreshold": NUMBER},
}
METADATA = {
    "name!": TEXT,
    "namespace": TEXT,
    "uid": TEXT,
    "creationTimestamp": TIME,
    "annotations": LABELS,
    "labels": LABELS,
    "ownerReferences": [{"kind!": TEXT, "name!": TEXT}],
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "ClusterQueue": {
        "spec!": {
            "cohort": TEXT,
            "cohortName": TEXT,
            "stopPolicy": TEXT,
            "resourceGroups": GROUPS,
            "preemption": PREEMPTION,
            "flavorFungibility": {"whenCanBorrow": TEXT, "whenCanPreempt": TEXT, "preference": TEXT},
            "fairSharing": WEIGHT,
            "namespaceSelector": SELECTOR,
            "admissionScope": {"admissionMode": TEXT},
        },
        "status": {"conditions": CONDITIONS, "fairSharing": {}},
    },
    "Cohort": {"spec": {"parent": TEXT, "parentName": TEXT, "resourceGroups": GROUPS, "fairSharing": WEIGHT}},
    "ResourceFlavor": {"spec": {"nodeLabels": LABELS, "nodeTaints": TAINTS, "tolerations": TOLERATIONS, "topologyName": TEXT}},
    "LocalQueue": {
        "spec!": {"clusterQueue!": TEXT, "stopPolicy": TEXT, "fairSharing": WEIGHT},
        "status": {"fairSharing": {"admissionFairSharingStatus": {"consumedResources": {"*": QUANTITY}}}},
    },
    "Workload": {
        "spec!": {"queueName": TEXT, "priority": NUMBER, "maximumExecutionTimeSeconds": COUNT, "podSets!": POD_SETS},
        "status": {
            "conditions": CONDITIONS,
            "admission": {
                "clusterQueue!": TEXT,
                "podSetAssignments": [{"name!": TEXT, "count": COUNT, "flavors": {"*": TEXT}, "resourceUsage": {"*": QUANTITY}}],
            },
            "resourceRequests": [{"name!": TEXT, "resources": {"*": QUANTITY}}],
            "reclaimablePods": [{"name!": TEXT, "count!": COUNT}],
            "accumulatedPastExecutionTimeSeconds": COUNT,
            "schedulingStats": {"evictions": [{"count": COUNT}]},
        },
    },
}
"""{kind: {field: what it holds}}; "!" marks fields that are required, "*" stands for any name."""

API = "kueue.x-k8s.io"
VERSIONS = (f"{API}/v1beta2", f"{API}/v1beta1", f"{API}/v1alpha1")


def faults_of(where: str, each: Mapping[str, Any]) -> list[Fault]:
    """Return what is wrong with an object of a kind that is read."""
    version = each.get("apiVersion")
    rule = f"must be {' or '.join(VERSIONS[:2])}, found {shown(version)}"
    found = [] if version in VERSIONS else [Fault(where, "apiVersion", rule)]
    shape = {"metadata!": METADATA, **SHAPES[each["kind"]]}
    return found + [Fault(where, way.lstrip("."), problem) for way, problem in _problems(shape, each, "")]


def _problems(shape: Any, value: Any, way: str) -> Iterator[tuple[str, str]]:
    kind: Any = list if isinstance(shape, list) else Mapping
    if callable(shape):
        yield from ((way, problem) for problem in [shape(value)] if problem)
    elif not isinstance(value, kind):
        yield way, f"must be {'a list' if kind is list else 'an object'}, found {shown(value)}"
    elif isinstance(shape, list):
        for index, each in enumerate(value):
            yield from _problems(shape[0], each, f"{way}[{index}]")
    elif "*" in shape:
        for key, each in value.items():
            yield from _problems(shape["*"], each, f"{way}.{key}")
    else:
        yield from _problems_of_fields(shape, value, way)


def _problems_of_fields(shape: Mapping[str, Any], value: Mapping[str, Any], way: str) -> Iterator[tuple[str, str]]:
    for name, inner in shape.items():
        field = name.rstrip("!")
        if value.get(field) is not None:
            yield from _problems(inner, value[field], f"{way}.{field}")
        elif name != field:
            yield f"{way}.{field}", "is missing; half an object cannot be read"
