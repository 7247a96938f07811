"""What kubectl prints: what is read, what is named, and what is refused with all faults at once."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from tests.kueue.support import GPU, flavor, local_queue, profile, queue, stamp, state, two_queues, workload
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


WRONG = (None, -1, 10**30, "", "ä" * 70, [], {}, [None], {"": None}, True, 1.5, "1E", "2026-13-01T00:00:00Z")


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
                    at[key] = draw.choice(WRONG)
                break
            at = at[key]
    return found


def check_mutations(path: Path, items: Any, seeds: range) -> int:
    """Read, explain and forecast mutated dumps; return how many were refused. Anything but a refusal is an error."""
    refusals = 0
    for seed in seeds:
        document = mutated(random.Random(seed), {"items": items})  # noqa: S311
        file = path / "mutated.json"
        file.write_text(json.dumps(document))
        try:
            found = gp.read_kueue(file)
            gp.kueue_overview(found)
            for job in found.jobs[:1]:
                gp.explain_kueue(found, job.key)
            gp.forecast_kueue(found)
        except gp.InputError:
            refusals += 1
    return refusals


def test_mutated_dumps_are_read_or_refused(tmp_path: Path) -> None:
    assert 10 < check_mutations(tmp_path, small(), range(60)) < 60


@pytest.mark.deep
@pytest.mark.skipif(not REAL.is_dir(), reason=f"{REAL} is absent")
def test_mutated_real_dumps_are_read_or_refused(tmp_path: Path) -> None:
    items = json.loads((REAL / "running40.json").read_text())["items"]
    assert 20 < check_mutations(tmp_path, items, range(1000, 1200)) < 200
