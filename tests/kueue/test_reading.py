"""What kubectl prints: what is read, what is named, and what is refused with all faults at once."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from tests.kueue.support import API, GPU, flavor, job_of, local_queue, profile, queue, stamp, state, two_queues, workload
from tests.support.shared_data import SHARED

REAL = SHARED / "kueue" / "real"


def small() -> list[dict[str, Any]]:
    return two_queues({"x": 4}, {"x": 4}, workload("waits", gpus=2, made=30), workload("runs", on="x", gpus=2, reserved=10))


def refused(path: Path, items: Any, **settings: Any) -> str:
    with pytest.raises(gp.InputError) as caught:
        state(path, items, **settings)
    return str(caught.value)


def test_a_small_cluster(tmp_path: Path) -> None:
    found = state(tmp_path, small())
    (waits,), (runs,) = found.pending, found.running
    assert (waits.key, waits.queue, waits.gpus, waits.flavors) == ("a/waits", "a", 2, {"x"})
    assert (runs.flavor, runs.hours, runs.done) == ("x", 1.0, pytest.approx(20 / 60))
    assert found.now == gp.integrations.kueue.objects.seconds(stamp(30))
    assert waits.owner == ("Job", "job-waits")


def test_the_older_version_says_the_same(tmp_path: Path) -> None:
    old = json.loads(json.dumps(small()).replace("v1beta2", "v1beta1").replace('"cohortName"', '"cohort"'))
    new, found = state(tmp_path, small()), state(tmp_path, old)
    assert [job.key for job in found.jobs] == [job.key for job in new.jobs]
    assert found.cohort_of("a") == new.cohort_of("a") == "all"


def test_gpus_of_amd_and_of_several_containers_and_pods_count(tmp_path: Path) -> None:
    text = json.dumps(small()).replace(GPU, "amd.com/gpu")
    items = json.loads(text)
    pods = items[-2]["spec"]["podSets"][0]
    pods["count"] = 3
    pods["template"]["spec"]["containers"] *= 2
    assert state(tmp_path, items).pending[0].gpus == 2 * 2 * 3


def test_all_faults_at_once_with_line_object_and_field(tmp_path: Path) -> None:
    items = small()
    items[0]["spec"]["nodeLabels"] = ["gpu"]
    items[1]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "eight"
    items[-1]["spec"]["podSets"][0]["count"] = -1
    items[-1]["apiVersion"] = "kueue.x-k8s.io/v1"
    del items[-2]["metadata"]["name"]
    text = refused(tmp_path, items)
    for part in (
        "ResourceFlavor x, field spec.nodeLabels: must be an object, found ['gpu']",
        "ClusterQueue a, field spec.resourceGroups[0].flavors[0].resources[0].nominalQuota: must be a quantity such as 8, 500m",
        "field spec.podSets[0].count: must not be negative, found -1",
        "field apiVersion: must be kueue.x-k8s.io/v1beta2 or kueue.x-k8s.io/v1beta1, found 'kueue.x-k8s.io/v1'",
        "field metadata.name: is missing",
    ):
        assert part in text
    assert text.count("state.json, line ") == 5


def test_half_a_dump_is_refused_with_the_right_that_may_be_missing(tmp_path: Path) -> None:
    items = [each for each in small() if each["kind"] not in ("LocalQueue", "Workload")]
    items[1]["status"] = {"pendingWorkloads": 7}
    text = refused(tmp_path, items)
    assert "has no LocalQueue, or this account may not list them (its role needs get and list of localqueues)" in text
    assert "has no Workload, although 7 are pending" in text


def test_what_leads_nowhere_is_named_with_what_is_near(tmp_path: Path) -> None:
    items = small()
    items[-3]["spec"]["clusterQueue"] = "aa"
    items[1]["spec"]["resourceGroups"][0]["flavors"][0]["name"] = "xx"
    text = refused(tmp_path, items)
    assert "leads to no ClusterQueue: there is no 'aa'" in text
    assert "there is no ResourceFlavor 'xx'" in text


def test_cohorts_in_a_circle_and_no_gpus_are_refused(tmp_path: Path) -> None:
    cohorts = [
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort", "metadata": {"name": name}, "spec": {"parentName": above}}
        for name, above in (("all", "top"), ("top", "all"))
    ]
    assert "leads back to the cohort itself" in refused(tmp_path, [*small(), *cohorts])
    text = refused(tmp_path, json.loads(json.dumps(small()).replace(GPU, "cpu")))
    assert "no ClusterQueue covers a GPU resource, nvidia.com/gpu or amd.com/gpu; they cover cpu" in text


@pytest.mark.parametrize("text", ["[]", "7", "{", '{"items": 3}', '{"items": [3, {"kind": 4}]}', ""])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "state.json"
    file.write_text(text)
    with pytest.raises(gp.InputError):
        gp.read_kueue(file)


def test_types_by_annotation_then_by_pattern_and_unknown_ones_are_equally_fast(tmp_path: Path) -> None:
    items = two_queues({"x": 4}, None, workload("one", job_type="given"), workload("two"), workload("three"))
    found = state(tmp_path, items, types=(("a/job-tw*", "by-name"), ("*", "other")))
    assert {job.key: job.job_type for job in found.jobs} == {"a/one": "given", "a/two": "by-name", "a/three": "other"}
    assert "taken as equally fast on every flavor" in found.notes[0]


def test_flavors_have_types_by_label_name_or_map(tmp_path: Path) -> None:
    items = [flavor("a100", nodeLabels={"gpu": "yes"}), flavor("big", nodeLabels={"product": "NVIDIA-H100-80GB-HBM3"})]
    items += [flavor("odd"), queue("a", {"a100": 1, "big": 1, "odd": 1}), local_queue("a"), workload("w", job_type="t")]
    speeds = profile({"t": {"h100": 4.0, "a100": 2.0, "l40s": 1.0}})
    text = refused(tmp_path, items, profile=speeds)
    assert (
        "ResourceFlavor odd: profile 'speeds' has no GPUs of its name, nor of its node labels ('odd'); say --map odd=ACCELERATOR"
        in text
    )
    (job,) = state(tmp_path, items, profile=speeds, accelerators={"odd": "l40s"}).jobs
    assert job.speeds == {"a100": 2.0, "big": 4.0, "odd": 1.0} or job.speeds == {"a100": 1.0, "big": 2.0, "odd": 0.5}


def test_a_type_that_the_profile_lacks_is_refused_and_a_flavor_without_its_speed_is_not_used(tmp_path: Path) -> None:
    items = two_queues({"x": 2, "y": 2}, None, workload("w", job_type="t"), workload("v", job_type="u"))
    speeds = profile({"t": {"x": 1.0}, "s": {"y": 1.0}})
    assert "profile 'speeds' has no job type 'u'" in refused(tmp_path, items, profile=speeds)
    (job,) = state(tmp_path, items[:-1], profile=speeds).jobs
    assert job.flavors == {"x"}


def test_length_by_the_limit_then_by_what_has_finished_then_by_hours(tmp_path: Path) -> None:
    done = workload("done", job_type="t", on="x", reserved=0)
    ended = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": stamp(90)}
    done["status"]["conditions"].append(ended)
    items = two_queues(
        {"x": 4}, None, done, *(workload(name, job_type=kind) for name, kind in (("one", "t"), ("two", "t"), ("new", "u")))
    )
    for each in items[-2:]:
        del each["spec"]["maximumExecutionTimeSeconds"]
    found = state(tmp_path, items, hours=7)
    assert {job.key: job.hours for job in found.jobs} == {"a/one": 1.0, "a/two": 1.5, "a/new": 7.0}
    assert len(found.finished) == 1


def test_stays_before_an_eviction_count_and_conditions_count_by_status(tmp_path: Path) -> None:
    items = two_queues({"x": 4}, None, workload("again", on="x", reserved=30, hours=4), workload("w", made=60))
    items[-2]["status"]["accumulatedPastExecutionTimeSeconds"] = 1800
    items[-2]["status"]["conditions"].append({**items[-2]["status"]["conditions"][0], "type": "Evicted", "status": "False"})
    job = state(tmp_path, items).running[0]
    assert job.done == pytest.approx(1.0)
    assert not job.workload.is_evicted


def test_affinity_selector_and_taints_leave_flavors(tmp_path: Path) -> None:
    rule = {"key": "gpu", "operator": "NotIn", "values": ["x"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    affine = workload("affine")
    affine["spec"]["podSets"][0]["template"]["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
    }
    tolerant = workload("tolerant")
    tolerant["spec"]["podSets"][0]["template"]["spec"]["tolerations"] = [{"key": "spot", "operator": "Exists"}]
    items = two_queues({"x": 1, "y": 1, "z": 1}, None, affine, tolerant, workload("pinned", pin="x"))
    items[2]["spec"]["nodeTaints"] = [{"key": "spot", "value": "yes", "effect": "NoSchedule"}]
    found = {job.key: (set(job.flavors), set(job.liftable)) for job in state(tmp_path, items).jobs}
    assert found == {"a/affine": ({"y"}, {"y"}), "a/tolerant": ({"x", "y", "z"},) * 2, "a/pinned": ({"x"}, {"x", "y"})}


def test_only_a_topology_that_is_asked_for_counts_as_topology_aware(tmp_path: Path) -> None:
    items = small()
    items[-1]["spec"]["podSets"][0]["topologyRequest"] = {"podIndexLabel": "batch.kubernetes.io/job-completion-index"}
    assert state(tmp_path, items).unmodelled == ()
    items[-1]["spec"]["podSets"][0]["topologyRequest"]["required"] = "rack"
    items[-2]["spec"]["podSets"][0]["minCount"] = 0
    items[1]["spec"]["admissionChecks"] = ["prov"]
    items[-2]["status"]["clusterName"] = "far"
    assert set(state(tmp_path, items).unmodelled) == {
        "ClusterQueue a: admission checks",
        "Workload a/waits: MultiKueue",
        "Workload a/waits: partial admission",
        "Workload a/runs: topology-aware scheduling",
    }


def test_what_is_held_says_by_what(tmp_path: Path) -> None:
    items = two_queues(
        {"x": 9}, {"x": 9}, workload("one", active=False), workload("two"), workload("three", "b"), workload("four", "b")
    )
    items[1]["spec"]["stopPolicy"] = "HoldAndDrain"
    items[-1]["metadata"]["annotations"] = {"kueue.x-k8s.io/admission-gated-by": "x"}
    items[2]["status"] = {
        "conditions": [{"type": "Active", "status": "False", "reason": "FlavorNotFound", "lastTransitionTime": stamp(0)}]
    }
    held = {job.key: job.held for job in state(tmp_path, items).jobs}
    assert held == {
        "a/one": "it is deactivated (spec.active: false)",
        "a/two": "ClusterQueue a is held (stopPolicy: HoldAndDrain)",
        "b/three": "ClusterQueue b is not active (FlavorNotFound)",
        "b/four": "it has an admission gate (kueue.x-k8s.io/admission-gated-by)",
    }


def test_optional_fields_may_be_absent_or_null(tmp_path: Path) -> None:
    """A ResourceFlavor without a spec is the default flavor of Kueue's own documentation."""
    items = small()
    del items[0]["spec"]
    for name in ("creationTimestamp", "uid"):
        items[-2]["metadata"][name] = None
    items[-2]["spec"]["podSets"][0]["count"] = None
    found = state(tmp_path, items)
    assert [(job.key, job.gpus, job.workload.uid) for job in found.pending] == [("a/waits", 2, "")]
    assert gp.forecast_kueue(found).starts == {"a/waits": 0.0}


def test_labels_count_within_their_resource_group(tmp_path: Path) -> None:
    """Kueue looks only at labels that flavors of the same group have: a CPU flavor without the label of GPUs suits a pinned pod."""
    job = workload("w", pin="x")
    job["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2"
    items = two_queues({"x": 1, "y": 1}, None, job)
    items.append(flavor("spot", nodeLabels={"capacity": "spot"}))
    cpus = {"name": "spot", "resources": [{"name": "cpu", "nominalQuota": "4"}]}
    queue_ = next(each for each in items if each["kind"] == "ClusterQueue")
    queue_["spec"]["resourceGroups"].append({"coveredResources": ["cpu"], "flavors": [cpus]})
    found = state(tmp_path, items)
    assert found.jobs[0].flavors == {"x"}
    assert gp.forecast_kueue(found).first_flavors == {"a/w": "x"}


def finished(name: str, job_type: str, *, on: str = "x", minutes: float = 60.0, **more: Any) -> dict[str, Any]:
    """A Workload that was admitted at the start and has finished."""
    each = workload(name, job_type=job_type, on=on, **more)
    ended = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": stamp(minutes)}
    each["status"]["conditions"].append(ended)
    return each


def test_what_has_finished_may_have_a_queue_that_is_gone_and_a_type_that_the_profile_lacks(tmp_path: Path) -> None:
    gone = finished("gone", "t")
    gone["status"]["admission"]["clusterQueue"] = "deleted"
    items = two_queues({"x": 4}, None, gone, finished("old", "u"), workload("w", job_type="t"))
    found = state(tmp_path, items, profile=profile({"t": {"x": 1.0}}))
    assert (len(found.finished), [job.job_type for job in found.jobs]) == (2, ["t"])


def test_lengths_of_finished_workloads_have_earlier_stays_and_need_a_speed(tmp_path: Path) -> None:
    evicted, elsewhere, left = finished("evicted", "t"), finished("elsewhere", "t", on="y"), finished("left", "t", minutes=1)
    evicted["status"]["accumulatedPastExecutionTimeSeconds"] = 3600
    left["status"]["conditions"][1]["status"] = "False"
    items = two_queues({"x": 4, "y": 4}, None, evicted, elsewhere, left, workload("w", job_type="t"))
    del items[-1]["spec"]["maximumExecutionTimeSeconds"]
    (job,) = state(tmp_path, items, profile=profile({"t": {"x": 1.0}, "s": {"y": 1.0}})).jobs
    assert job.hours == 2.0


def test_progress_counts_from_the_reservation_where_the_admission_does_not_hold(tmp_path: Path) -> None:
    items = small()
    admitted = items[-1]["status"]["conditions"][1]
    admitted["status"], admitted["lastTransitionTime"] = "False", stamp(25)
    assert state(tmp_path, items).running[0].done == pytest.approx(20 / 60)


def test_gpus_of_several_flavors_count_each_on_its_own(tmp_path: Path) -> None:
    both = workload("both", on="x", gpus=2)
    both["spec"]["podSets"].append({**copy.deepcopy(both["spec"]["podSets"][0]), "name": "more"})
    other = {"name": "more", "count": 1, "flavors": {GPU: "y"}, "resourceUsage": {GPU: "2"}}
    both["status"]["admission"]["podSetAssignments"].append(other)
    found = state(tmp_path, two_queues({"x": 4, "y": 4}, None, both, workload("w", pin="y", made=1, gpus=4)))
    (use,) = gp.kueue_overview(found).queues
    assert {each.flavor: each.held for each in use.flavors} == {"x": 2, "y": 2}
    explained = gp.explain_kueue(found, "a/w")
    assert [(each.flavor, each.gpus) for each in explained.holders] == [("y", 2)]
    assert "y: 4 needed, 2 idle in its cohort; its queue has a quota of 4." in explained.details


def test_pods_that_have_succeeded_hold_no_quota(tmp_path: Path) -> None:
    job = workload("w", on="x", gpus=1, job_type="t")
    job["spec"]["podSets"][0]["count"] = 4
    job["status"]["admission"]["podSetAssignments"][0] |= {"count": 4, "resourceUsage": {GPU: "4"}}
    job["status"]["reclaimablePods"] = [{"name": "main", "count": 3}]
    found = state(tmp_path, two_queues({"x": 4}, None, job), profile=profile({"t": {"x": 1.0}}, gpus=4))
    assert gp.kueue_overview(found).running == (1, 1)
    assert gp.kueue_overview(found).queues[0].flavors[0].held == 1


def test_requests_are_those_that_kueue_states(tmp_path: Path) -> None:
    """Its configuration may leave out resources (excludeResourcePrefixes), which no ClusterQueue covers then."""
    job = workload("w")
    job["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2"
    items = two_queues({"x": 1}, None, job)
    assert gp.forecast_kueue(state(tmp_path, items)).starts == {}
    job["status"]["resourceRequests"] = [{"name": "main", "resources": {GPU: "1"}}]
    assert gp.forecast_kueue(state(tmp_path, items)).starts == {"a/w": 0.0}


def test_sidecars_run_beside_the_containers(tmp_path: Path) -> None:
    job = workload("w", gpus=1)
    asked = {"resources": {"requests": {GPU: "1"}}}
    job["spec"]["podSets"][0]["template"]["spec"]["initContainers"] = [{"restartPolicy": "Always", **asked}, asked]
    assert state(tmp_path, two_queues({"x": 4}, None, job)).jobs[0].gpus == 2


@pytest.mark.parametrize(
    ("selector", "held"), [({}, ""), (None, "namespace a"), ("a", ""), ("b", "namespace a"), (("team", "a"), "")]
)
def test_a_queue_takes_the_namespaces_that_it_selects(tmp_path: Path, selector: Any, held: str) -> None:
    key, value = selector if isinstance(selector, tuple) else ("kubernetes.io/metadata.name", selector)
    labels = {"matchLabels": {key: value}} if isinstance(value, str) else selector
    found = state(tmp_path, two_queues({"x": 1}, None, workload("w"), namespaceSelector=labels))
    assert held in found.jobs[0].held
    assert bool(found.jobs[0].held) == bool(held)
    assert any("namespaceSelector of a" in note for note in found.notes) == (key == "team")


def test_amounts_are_not_negative_and_numbers_have_64_bits(tmp_path: Path) -> None:
    items = small()
    items[1]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "-4"
    items[-1]["spec"]["maximumExecutionTimeSeconds"] = 10**400
    text = refused(tmp_path, items)
    assert "nominalQuota: must not be negative, found '-4'" in text
    assert "maximumExecutionTimeSeconds: must have at most 64 bits, found 1000000" in text


def test_a_label_that_is_no_number_is_neither_less_nor_greater(tmp_path: Path) -> None:
    job = workload("w")
    rule = {"key": "gpu", "operator": "Gt", "values": ["1"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    job["spec"]["podSets"][0]["template"]["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
    }
    assert state(tmp_path, two_queues({"²": 1, "3": 1}, None, job)).jobs[0].flavors == {"3"}


def test_a_map_of_an_unknown_flavor_is_refused(tmp_path: Path) -> None:
    assert "--map xx=a100: there is no ResourceFlavor 'xx'" in refused(tmp_path, small(), accelerators={"xx": "a100"})


def rich() -> list[dict[str, Any]]:
    """A cluster in which each field that is read has a value."""
    waits, runs, pinned = (
        workload("waits", gpus=2, made=30, job_type="t"),
        workload("runs", on="x", gpus=2),
        workload("pin", pin="x"),
    )
    pod = waits["spec"]["podSets"][0]["template"]["spec"]
    tolerations = [{"key": "spot", "operator": "Exists", "value": "", "effect": "NoSchedule"}]
    rules = [{"key": "gpu", "operator": "In", "values": ["x", "y"]}, {"key": "gpu", "operator": "Gt", "values": ["1"]}]
    terms = {"nodeSelectorTerms": [{"matchExpressions": rules[:1]}, {"matchExpressions": rules}]}
    pod |= {
        "initContainers": [{"restartPolicy": "Always", "resources": {"requests": {GPU: "1"}}}],
        "overhead": {"cpu": "0"},
        "tolerations": tolerations,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
    }
    waits["metadata"]["annotations"] = {"kueue.x-k8s.io/priority-boost": "3"}
    waiting = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "m", "lastTransitionTime": stamp(31)}
    waits["status"] = {
        "conditions": [waiting],
        "schedulingStats": {"evictions": [{"reason": "Preempted", "count": 1}]},
        "resourceRequests": [{"name": "main", "resources": {GPU: "3"}}],
    }
    runs["status"] |= {"accumulatedPastExecutionTimeSeconds": 10, "reclaimablePods": [{"name": "main", "count": 0}]}
    quotas = {"x": {"nominalQuota": "4", "borrowingLimit": "2", "lendingLimit": "1"}, "y": 2}
    spec = {
        "fairSharing": {"weight": "2"},
        "flavorFungibility": {"whenCanBorrow": "Borrow"},
        "admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"},
        "namespaceSelector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "Exists"}]},
    }
    items = two_queues(quotas, {"x": 4}, waits, runs, pinned, workload("other", "b", on="x"), finished("done", "t"), **spec)
    items[0]["spec"] |= {"nodeTaints": [{"key": "spot", "value": "yes", "effect": "NoSchedule"}], "tolerations": tolerations}
    items[2]["spec"]["preemption"]["borrowWithinCohort"] = {"policy": "LowerPriority", "maxPriorityThreshold": 3}
    active = {"type": "Active", "status": "True", "reason": "Ready", "lastTransitionTime": stamp(0)}
    items[2]["status"] = {"pendingWorkloads": 1, "conditions": [active], "fairSharing": {"weightedShare": 1}}
    used = {"consumedResources": {GPU: "5"}, "lastUpdate": stamp(0)}
    items[4]["status"] = {"fairSharing": {"admissionFairSharingStatus": used}}
    cohort = {"parentName": "top", "fairSharing": {"weight": "1"}, "resourceGroups": queue("c", {"x": 1})["spec"]["resourceGroups"]}
    items.append({"apiVersion": API, "kind": "Cohort", "metadata": {"name": "all"}, "spec": cohort})
    return [*items, *map(job_of, (waits, pinned))]


WRONG = (
    None,
    -1,
    10**30,
    10**400,
    "",
    "ä" * 70,
    [],
    {},
    [None],
    {"": None},
    True,
    1.5,
    "1E",
    "2026-13-01T00:00:00Z",
    "²",
    "9" * 5000,
)


def mutated(draw: random.Random, document: Any) -> Any:
    """A copy in which a few entries are replaced, removed or repeated."""
    found = copy.deepcopy(document)
    for _ in range(draw.randint(1, 4)):
        at = found
        for _ in range(draw.randint(1, 12)):
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = draw.choice(keys)
            if not isinstance(at[key], dict | list) or draw.random() < 0.08:
                what = draw.random()
                if what < 0.2:
                    del at[key]
                elif what < 0.3 and isinstance(at, list):
                    at.append(copy.deepcopy(at[key]))
                else:
                    at[key] = copy.deepcopy(draw.choice(WRONG))
                break
            at = at[key]
    return found


def each_field_of(draw: random.Random, document: Any) -> Any:
    """A copy in which one field, each as likely as any other, is removed or replaced."""
    found = copy.deepcopy(document)
    places, pending = list[tuple[Any, Any]](), [found["items"]]
    while pending:
        at = pending.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at))
        places += [(at, key) for key in keys]
        pending += [at[key] for key in keys if isinstance(at[key], dict | list)]
    at, key = draw.choice(places)
    if draw.random() < 0.1:
        del at[key]
    else:
        at[key] = copy.deepcopy(draw.choice(WRONG))
    return found


def check_mutations(path: Path, items: Any, seeds: range, mutate: Callable[[random.Random, Any], Any] = mutated) -> int:
    """Read, explain and forecast mutated dumps; return how many were refused. Anything but a refusal is an error."""
    refusals = 0
    for seed in seeds:
        document = mutate(random.Random(seed), {"items": items})  # noqa: S311
        file = path / "mutated.json"
        file.write_text(json.dumps(document))
        try:
            found = gp.read_kueue(file)
            gp.kueue_overview(found)
            for job in found.jobs[:2]:
                gp.explain_kueue(found, job.key)
            gp.forecast_kueue(found)
        except gp.InputError:
            refusals += 1
    return refusals


def test_mutated_dumps_are_read_or_refused(tmp_path: Path) -> None:
    assert 10 < check_mutations(tmp_path, small(), range(60)) < 60


@pytest.mark.deep
def test_each_field_may_be_absent_or_wrong(tmp_path: Path) -> None:
    """Every field of a cluster that has them all is removed and replaced; what is read must be explained without an error."""
    assert 150 < check_mutations(tmp_path, rich(), range(600), each_field_of) < 570


@pytest.mark.deep
@pytest.mark.skipif(not REAL.is_dir(), reason=f"{REAL} is absent")
def test_mutated_real_dumps_are_read_or_refused(tmp_path: Path) -> None:
    items = json.loads((REAL / "running40.json").read_text())["items"]
    assert 20 < check_mutations(tmp_path, items, range(1000, 1200)) < 200
