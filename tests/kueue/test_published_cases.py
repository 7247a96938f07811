"""Kueue's own table tests: shares, quotas, preemption, whole cycles with their messages, and admission fair sharing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from gavel_py.integrations.kueue.cycle import STRATEGIES, HeadOutcome, Scheduler
from gavel_py.integrations.kueue.objects import is_true, name_of, queued_workload, selects
from gavel_py.integrations.kueue.preemption import FairOrder, QueuedWorkload, may_preempt, take, victim_order
from gavel_py.integrations.kueue.quota import MOST, Key, QueueNode, QuotaNode, Share, amount, quantity, quota_tree
from gavel_py.integrations.kueue.usage import UsageHistory, usage_of_queue
from tests.support.shared_data import SHARED

CASES = SHARED / "kueue" / "cases.json"

NOT_MODELLED = {
    "TestSchedule-027": "partial admission",
    "TestSchedule-029": "partial admission",
    "TestSchedule-030": "partial admission",
    "TestSchedule-008": "an error that the test injects at admission",
}

Case = Mapping[str, Any]


@cache
def document() -> dict[str, Any]:
    if not CASES.exists():
        pytest.skip(f"{CASES} is absent")
    found: dict[str, Any] = json.loads(CASES.read_text(encoding="utf-8"))
    return found


def cases(*suites: str) -> list[Any]:
    return list(_cases(suites))


def _cases(suites: tuple[str, ...]) -> Iterator[Any]:
    for case in json.loads(CASES.read_text(encoding="utf-8"))["cases"] if CASES.exists() else ():
        if case["suite"] in suites:
            marks = [pytest.mark.xfail(strict=True, reason=NOT_MODELLED[case["id"]])] if case["id"] in NOT_MODELLED else []
            yield pytest.param(case, id=case["id"], marks=marks)


def key_of(text: str) -> Key:
    flavor, _, resource = text.partition("/")
    return flavor, resource


def workload(each: Mapping[str, Any], case: Case, **given: Any) -> QueuedWorkload:
    queue = (each.get("status") or {}).get("admission", {}).get("clusterQueue", "")
    boosts = (case["input"].get("featureGates") or {}).get("PriorityBoost", False)
    found = queued_workload(each, queue, with_boost=boosts)
    for name, value in given.items():
        setattr(found, name, value)
    if not found.reserved:
        found.reserved = 1767225600.0
    return found


def tree(case: Case, admitted: Any = ()) -> dict[str, QueueNode]:
    queues = quota_tree(case["input"]["clusterQueues"], case["input"].get("cohorts") or [])
    for each in admitted or ():
        take(queues, workload(each, case))
    return queues


@pytest.mark.parametrize("case", cases("TestDominantResourceShare"))
def test_share(case: Case) -> None:
    given = case["input"]
    queues = quota_tree(
        [each for each in (given["clusterQueue"], given.get("lendingClusterQueue")) if each], given.get("cohorts") or []
    )
    for text, value in (given.get("usage") or {}).items():
        queues["cq"].add(key_of(text), value)
    more = {key_of(text): value for text, value in (given.get("flvResQ") or {}).items()}
    nodes: dict[tuple[str, bool], QuotaNode] = {(each.name, False): each for each in queues.values()}
    nodes |= {(each.name, True): each for queue in queues.values() for each in queue.path()}
    for want in case["expected"]["want"]:
        share = nodes[want["name"], want.get("nodeType", False)].share(more)
        rounded = MOST if math.isinf(share.value) else math.ceil(share.value)
        assert (rounded, share.dominant) == (want.get("drValue", 0), want.get("drName", ""))
        assert bool(share.borrowed) == want.get("borrowing", False)


@pytest.mark.parametrize("case", cases("TestIsBorrowingOn"))
def test_what_is_borrowed(case: Case) -> None:
    queues = quota_tree([plain_queue("cq", 2, 5), plain_queue("lending-cq", 8, 5)], [])
    for text, value in case["input"]["usage"].items():
        queues["cq"].add(key_of(text), value)
    share, asked = queues["cq"].share(), case["input"].get("requestedFRs") or {}
    assert bool(share.borrowed) == case["expected"]["wantBorrowing"]
    assert any(asked.get("/".join(key), 0) > 0 for key in share.borrowed) == case["expected"]["wantBorrowingOnRequested"]


def plain_queue(name: str, cpus: int, gpus: int) -> dict[str, Any]:
    quotas = [{"name": "cpu", "nominalQuota": str(cpus)}, {"name": "example.com/gpu", "nominalQuota": str(gpus)}]
    group = {"coveredResources": ["cpu", "example.com/gpu"], "flavors": [{"name": "default", "resources": quotas}]}
    return {"metadata": {"name": name}, "spec": {"cohortName": "cohort", "resourceGroups": [group]}}


@pytest.mark.parametrize("case", cases("TestPreciseWeightedShareSerialized"))
def test_share_as_text(case: Case) -> None:
    given = case["input"]["drs"]
    value = Share(given["unweightedRatio"], given["fairWeight"], "", frozenset()).value
    assert ("+Inf" if math.isinf(value) else f"{value:g}") == case["expected"]["want"]


@pytest.mark.parametrize("case", cases("TestAvailable"))
def test_available(case: Case) -> None:
    queues = tree(case)
    for name, usage in (case["input"].get("usage") or {}).items():
        for text, value in usage.items():
            queues[name].add(key_of(text), value)
    for name, wanted in case["expected"]["wantAvailable"].items():
        assert {text: max(0, queues[name].available(key_of(text))) for text in wanted} == wanted
    for name, wanted in case["expected"]["wantPotentiallyAvailable"].items():
        assert {text: queues[name].potential(key_of(text)) for text in wanted} == wanted


@pytest.mark.parametrize("case", cases("TestMakeClusterQueueOrdering"))
def test_order_of_queues_that_give(case: Case) -> None:
    given = case["input"]
    queues = tree(case, given["admitted"])
    order = FairOrder(
        queues[given["preemptorCQ"]],
        [each for name, queue in queues.items() if name in (given.get("candidateCQs") or []) for each in queue.workloads],
    )
    found = []
    for number, queue in enumerate(order):
        found.append(queue.name)
        if (given.get("actions") or [])[number : number + 1] == ["drop"]:
            order.leave(queue)
        else:
            order.next_of(queue)
    assert found == (case["expected"].get("wantOrder") or [])


@pytest.mark.parametrize("case", cases("TestFairPreemptions"))
def test_fair_preemption(case: Case) -> None:
    given = case["input"]
    queues = tree(case)
    for each in given.get("admitted") or []:
        take(queues, workload(each, case, uid=each["metadata"]["name"]))
    preemptor = workload(given["incoming"], case, queue=given["targetCQ"])
    cpus = sum(requests.get("cpu", 0) for requests in preemptor.requests.values())
    need = {(given.get("assignmentFlavor") or "default", "cpu"): cpus}
    scheduler = Scheduler(queues, is_fair=True, strategies=given.get("strategies") or STRATEGIES)
    before = {name: dict(queue.usage) for name, queue in queues.items()}
    found = scheduler.targets(preemptor, need, need)
    assert sorted(f"{each.key}:{reason}" for each, reason in found) == sorted(case["expected"].get("wantPreempted") or [])
    after = {name: dict(queue.usage) for name, queue in queues.items()}
    assert all(after[name].get(key, 0) == value for name, usage in before.items() for key, value in usage.items())


@pytest.mark.parametrize("case", cases("TestPreemption", "TestHierarchicalPreemptions"))
def test_classical_preemption(case: Case) -> None:
    given, need, lacking = case["input"], dict[Key, int](), set()
    queues = tree(case, given.get("admitted"))
    preemptor = workload(given["incoming"], case, queue=given["targetCQ"])
    pods = {each["name"]: each for each in given["incoming"]["spec"]["podSets"]}
    for each in given["assignment"]["podSets"]:
        requests = {name: value // pods[each["name"]]["count"] for name, value in preemptor.requests[each["name"]].items()}
        for resource, flavor in each["flavors"].items():
            key = flavor["name"], resource
            need[key] = need.get(key, 0) + requests.get(resource, 0) * each.get("count", 1)
            lacking |= {key} if flavor["mode"] == "Preempt" else set()
    found = Scheduler(queues).targets(preemptor, need, lacking)
    new = sorted(f"{each.key}:{reason}" for each, reason in found if not each.is_evicted)
    assert new == sorted(preempted(case, given.get("admitted") or []))


def preempted(case: Case, before: Any) -> Iterator[str]:
    """Yield what a case wants preempted that was not evicted before."""
    evicted = {name_of(each) for each in before if "Evicted" in types_of(each)}
    for each in case["expected"].get("wantWorkloads") or []:
        name = f"{each['metadata'].get('namespace', '')}/{each['metadata']['name']}"
        for condition in each.get("status", {}).get("conditions", []):
            if (condition["type"], condition["status"]) == ("Preempted", "True") and name not in evicted:
                yield f"{name}:{condition['reason']}"


def types_of(each: Any) -> set[str]:
    return {condition["type"] for condition in each.get("status", {}).get("conditions", [])}


@pytest.mark.parametrize("case", cases("TestSatisfiesPreemptionPolicy"))
def test_policy(case: Case) -> None:
    given = case["input"]
    found = may_preempt(given["policy"], workload(given["preemptor"], case), workload(given["candidate"], case))
    assert found == case["expected"]["want"]


@pytest.mark.parametrize("case", cases("TestCandidatesOrdering"))
def test_order_of_victims(case: Case) -> None:
    found = [workload(each["workload"], case, load=each.get("localQueueFSUsage")) for each in case["input"]["candidates"]]
    if not (case["input"].get("featureGates") or {}).get("AdmissionFairSharing"):
        for each in found:
            each.load = None
    names = [each.key.rpartition("/")[2] for each in sorted(found, key=victim_order("preemptor"))]
    assert names == case["expected"]["wantCandidates"]


@pytest.mark.parametrize("case", cases("TestPriorityBoost", "TestParseEffectivePriority", "TestEffectivePriority"))
def test_priority(case: Case) -> None:
    found = workload(case["input"]["workload"], case).priority
    if case["suite"] == "TestPriorityBoost":
        assert found - case["input"]["workload"]["spec"].get("priority", 0) == case["expected"]["wantBoost"]
    else:
        assert found == case["expected"]["wantPriority"]


@pytest.mark.parametrize("case", cases("TestCalculateUsageWithDRA", "TestCalculateUsageWithNonPositiveWeight"))
def test_usage_of_local_queues(case: Case) -> None:
    given = case["input"]
    consumed, penalty = (
        {name: float(quantity(value)) for name, value in (given.get(part) or {}).items()} for part in ("consumed", "penalty")
    )
    found = usage_of_queue(consumed, penalty, given.get("resWeights") or {}, given["lqWeight"])
    assert found == case["expected"].get("wantUsage", math.inf)


NAMESPACES = {f"eng-{name}": {"dep": "eng"} for name in ("alpha", "beta", "gamma")} | {
    "default": {},
    "sales": {"dep": "sales"},
    "lend": {"dep": "lend"},
}


class Cluster:
    """The state of a schedule case."""

    def __init__(self, case: Case, queues: str) -> None:
        given, fixtures = case["input"], document()["suites"][case["suite"]]["fixtures"]
        self.case = case
        self.specs = {
            each["metadata"]["name"]: each for each in [*fixtures["clusterQueues"], *(given.get("additionalClusterQueues") or [])]
        }
        self.flavors = {each["metadata"]["name"]: each for each in fixtures["resourceFlavors"]}
        self.local = {name_of(each): each["spec"] for each in [*fixtures[queues], *(given.get("additionalLocalQueues") or [])]}
        self.queues = quota_tree(self.specs.values(), given.get("cohorts") or [])
        objects = given.get("workloads") or []
        self.reserved = [each for each in objects if is_true(each, "QuotaReserved")]
        for each in self.reserved:
            found = workload(each, case)
            if found.queue in self.queues:
                take(self.queues, found)
        self.pending = [self.queued(each) for each in objects if each not in self.reserved and self.is_pending(each)]

    def is_pending(self, each: Any) -> bool:
        name = self.local.get(f"{each['metadata']['namespace']}/{each['spec'].get('queueName')}", {}).get("clusterQueue")
        groups = self.specs[name]["spec"].get("resourceGroups", []) if name in self.specs else [{"flavors": [{"name": ""}]}]
        is_active = all(flavor["name"] in self.flavors for group in groups for flavor in group["flavors"])
        return is_active and each["spec"].get("active") is not False and not is_true(each, "Finished")

    def queued(self, each: Any) -> QueuedWorkload:
        queue = self.local[f"{each['metadata']['namespace']}/{each['spec'].get('queueName')}"]["clusterQueue"]
        boosts = (self.case["input"].get("featureGates") or {}).get("PriorityBoost", False)
        groups = self.specs[queue]["spec"].get("resourceGroups", [])
        flavors = [{one["name"]: self.flavors[one["name"]] for one in group["flavors"]} for group in groups]
        return queued_workload(each, queue, flavors, with_boost=boosts)

    def heads(self) -> list[QueuedWorkload]:
        heads: dict[str, QueuedWorkload] = {}
        for each in sorted(self.pending, key=lambda each: (-each.priority, each.queued)):
            heads.setdefault(each.queue, each)
        return list(heads.values())

    def is_wanted(self, each: QueuedWorkload) -> bool:
        return selects(self.specs[each.queue]["spec"].get("namespaceSelector"), NAMESPACES[each.key.partition("/")[0]])


def admission(queue: str, pods: Any) -> tuple[str, tuple[Any, ...]]:
    return queue, tuple(sorted(pods))


def wanted_admission(found: Any) -> tuple[str, tuple[Any, ...]]:
    pods = found["podSetAssignments"]
    held = [
        (pod["name"], name, pod["flavors"].get(name), amount(name, value))
        for pod in pods
        for name, value in pod["resourceUsage"].items()
    ]
    return admission(found["clusterQueue"], held)


def made_admission(outcome: HeadOutcome) -> tuple[str, tuple[Any, ...]]:
    flavors, each = outcome.choice.flavors, outcome.workload
    held = [
        (pod, name, flavor, each.counts[pod] if name == "pods" else each.requests[pod][name])
        for pod, found in flavors.items()
        for name, flavor in found.items()
    ]
    return admission(each.queue, held)


@pytest.mark.parametrize("case", cases("TestSchedule", "TestScheduleForFairSharing"))
def test_cycle(case: Case) -> None:
    cluster = Cluster(case, "queues")
    heads = cluster.heads()
    outcomes = Scheduler(cluster.queues, is_fair=bool(case["input"].get("enableFairSharing"))).run(filter(cluster.is_wanted, heads))
    made = {name_of(each): wanted_admission(each["status"]["admission"]) for each in cluster.reserved}
    made |= {each.workload.key: made_admission(each) for each in outcomes if each.is_admitted}
    assert made == {name: wanted_admission(found) for name, found in (case["expected"].get("wantAssignments") or {}).items()}
    found = sorted(f"{each.key}:{why}" for outcome in outcomes for each, why in outcome.targets if not each.is_evicted)
    assert found == sorted(preempted(case, case["input"].get("workloads") or []))
    waits = {each.workload.key: (each.reason, each.message) for each in outcomes if not each.is_admitted}
    wrong_namespace = "Misconfigured", "workload namespace doesn't match ClusterQueue selector"
    waits |= {each.key: wrong_namespace for each in heads if not cluster.is_wanted(each)}
    for name, wanted in pending_texts(case):
        assert waits.get(name) == wanted


def pending_texts(case: Case) -> Iterator[tuple[str, tuple[str, str]]]:
    for each in case["expected"].get("wantWorkloads") or []:
        for condition in each.get("status", {}).get("conditions", []):
            if (condition["type"], condition["status"]) == ("QuotaReserved", "False"):
                yield name_of(each), (condition["reason"], condition["message"])


@pytest.mark.parametrize("case", cases("TestScheduleForAFS"))
def test_cycles_of_admission_fair_sharing(case: Case) -> None:
    cluster, given = Cluster(case, "queues"), case["input"]
    is_on = bool((given.get("featureGates") or {}).get("AdmissionFairSharing"))
    history = UsageHistory(
        half_life=10.0,
        sampling=1.0,
        weights={
            name: 1.0
            if name == f"default/{given.get('deleteQueue')}"
            else float(quantity((each.get("fairSharing") or {}).get("weight", 1)))
            for name, each in cluster.local.items()
        },
        consumed={
            f"default/{name}": {resource: float(quantity(value)) for resource, value in found.items()}
            for name, found in (given.get("initialUsage") or {}).items()
        },
    )
    made, waits = {}, {}
    scheduler = Scheduler(cluster.queues)
    for _ in given["workloads"]:
        left = [each for each in cluster.pending if each.key not in made and each.key not in waits]
        if not left:
            break
        head = min(
            left, key=lambda each: (history.usage(f"default/{each.local_queue}") if is_on else 0.0, -each.priority, each.queued)
        )
        (outcome,) = scheduler.run([head])
        if not outcome.is_admitted:
            waits[head.key] = outcome.reason, outcome.message
            continue
        made[head.key] = made_admission(outcome)
        head.usage = outcome.choice.usage
        take(cluster.queues, head)
        history.admit(f"default/{head.local_queue}", head.usage)
    wanted = case["expected"]["wantWorkloads"]
    assert made == {
        name_of(each): wanted_admission(each["status"]["admission"]) for each in wanted if is_true(each, "QuotaReserved")
    }
    for name, text in pending_texts(case):
        assert waits.get(name) == text


def test_usage_halves_and_settles_as_kueue_documents() -> None:
    """1, 1.5 and 1.75 of 2 CPUs after one, two and three half-lives of 168 h, sampled each 5 minutes."""
    history = UsageHistory(half_life=168 * 3600.0, sampling=300.0, weights={"a": 1.0}, consumed={})
    for number in range(1, 3 * 168 * 12 + 1):
        history.sample({"a": {("default", "cpu"): 2000}})
        if number % (168 * 12) == 0:
            assert history.usage("a") == pytest.approx(2 * (1 - 0.5 ** (number / (168 * 12))), abs=1e-3)
