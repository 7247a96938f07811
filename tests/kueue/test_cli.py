"""gavel kueue show, explain and advise."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from tests.kueue.fake_apiserver import FakeApiServer, patched
from tests.kueue.support import flavor, job_of, profile, queue, state, two_queues, workload, written
from tests.support.commands import Gavel, enter_folder, runner

SPEEDS = {"train": {"a100": 1.0, "h100": 2.0}, "gen": {"a100": 1.0, "h100": 4.0}}


def backlog(hours: tuple[int, ...] = (16, 1, 8, 2)) -> list[dict[str, Any]]:
    """Two queues with two GPUs of each flavor; short and long jobs, all pinned to the faster flavor."""
    jobs = [
        workload(f"{team}{number}", team, job_type=("train", "gen")[number % 2], hours=hours[number % 4], pin="h100", made=number)
        for team in "ab"
        for number in range(8)
    ]
    return [*two_queues({"h100": 2, "a100": 2}, {"h100": 2, "a100": 2}, *jobs), *map(job_of, jobs)]


@pytest.fixture
def gavel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    profile(SPEEDS).to_csv(tmp_path / "speeds.csv")
    written(tmp_path, backlog())
    return runner(capsys, "kueue")


def test_show_has_at_most_40_lines_of_80_columns(gavel: Gavel) -> None:
    found = gavel("show", "state.json", "--profile", "speeds.csv")
    assert found.code == 0
    lines = found.out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert "0 workloads with 0 GPUs, 16 waiting for 16." in lines[0]
    assert "gen (1)" in found.out
    document = json.loads(gavel("show", "state.json", "--profile", "speeds.csv", "--json").out)
    assert document["worth"]["gen (1)"] == {"a100": 1.0, "h100": 4.0}
    assert sum(each["count"] for each in document["waiting"]) == 16


def test_show_of_a_large_cluster_stays_short(gavel: Gavel, tmp_path: Path) -> None:
    items = backlog() + [queue(f"q{number}", {"h100": 1}, cohort=f"c{number}") for number in range(40)]
    written(tmp_path, items)
    found = gavel("show", "state.json")
    assert len(found.out.splitlines()) <= 40
    assert "and 32 more queues" in found.out


def test_show_reads_a_pipe(gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (tmp_path / "state.json").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert "16 waiting for 16" in gavel("show", "-").out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{")))
    found = gavel("show", "-")
    assert (found.code, found.err) == (
        2,
        "Error: standard input, line 1: is not valid JSON: Expecting property name enclosed in double quotes (column 2)\n",
    )


def test_a_context_runs_kubectl_and_names_what_may_not_be_listed(
    gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "kubectl"
    fake.write_text(
        "#!/bin/sh\n"
        'case "$4" in *cohorts*) echo "error: the server doesn\'t have a resource type \\"cohorts\\"" >&2; exit 1;; esac\n'
        'echo \'Error from server (Forbidden): jobs.batch is forbidden: User "u" cannot list resource "jobs" in API group\' >&2\n'
        f"cat {tmp_path}/state.json; exit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = gavel("show", "--context", "prod")
    assert found.code == 0
    assert "the cluster has no cohorts" in found.out
    assert "may not list jobs" in found.out
    monkeypatch.setenv("PATH", "/nowhere")
    assert "kubectl: cannot be run" in gavel("show", "--context", "prod").err


def test_explain_tells_reason_holders_start_and_the_least_change(gavel: Gavel, tmp_path: Path) -> None:
    jobs = [workload("big", on="h100", gpus=3, hours=2), workload("w", pin="h100", gpus=2, hours=1, made=1)]
    words = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "pending evaluation"}
    jobs[1]["status"]["conditions"] = [{**words, "lastTransitionTime": "2026-01-01T00:01:00Z"}]
    written(tmp_path, two_queues({"h100": 4, "a100": 2}, None, *jobs))
    out = gavel("explain", "state.json", "a/job-w").out
    for part in (
        "Waits: WaitingForQuota.",
        "h100: 2 needed, 1 idle in its cohort; its queue has a quota of 4.",
        "a100: not allowed, its nodeSelector is gpu=h100.",
        'Kueue says: "pending evaluation"',
        "a/big (a): 3 h100, ends in 2.0 h",
        "it starts in 2.0 h on h100",
        "it ends in 3.0 h",
        "allow a100 too (speed 1): it is admitted at once",
        "1 more GPU of h100 in the quota of a: it is admitted at once",
    ):
        assert part in out
    assert gavel("explain", "state.json", "a/nobody").code == 2
    assert "It holds 3 GPUs of h100." in gavel("explain", "state.json", "a/big").out


def test_explain_goes_on_without_a_forecast(gavel: Gavel, tmp_path: Path) -> None:
    items = two_queues({"h100": 1}, None, workload("w", gpus=1, made=1), workload("big", on="h100"))
    items[0]["spec"]["topologyName"] = "racks"
    written(tmp_path, items)
    out = gavel("explain", "state.json", "a/w").out
    assert "No forecast: ResourceFlavor h100: topology-aware scheduling is not modelled." in out
    assert "a/big (a): 1 h100" in out
    found = gavel("advise", "state.json")
    assert (found.code, "there is no forecast" in found.err) == (2, True)


def test_places_in_the_queue_do_not_count_on_preemption(gavel: Gavel, tmp_path: Path) -> None:
    jobs = [workload("runs", on="h100", hours=5), *(workload(f"w{n}", made=n, hours=n) for n in (1, 2))]
    written(tmp_path, two_queues({"h100": 1}, None, *jobs))
    out = gavel("explain", "state.json", "a/w2").out
    assert "1 workload of its queue has a turn before it." in out
    assert "1 place in its queue: it starts in 5.0 h instead of in 6.0 h" in out


def test_advise_writes_patches_that_ask_nobody_and_their_inverse(gavel: Gavel, tmp_path: Path) -> None:
    found = gavel("advise", "state.json", "--profile", "speeds.csv", "--steps", "4", "--out", "advice.sh")
    assert found.code == 0
    assert "Advice that asks nobody" in found.out
    advice, undo = ((tmp_path / name).read_text() for name in ("advice.sh", "undo.sh"))
    lines = [line for line in advice.splitlines() if line.startswith("kubectl patch")]
    assert lines
    assert len(lines) == undo.count("kubectl patch")
    assert all(
        line.startswith(("kubectl patch workloads.v1beta2.kueue.x-k8s.io", "kubectl patch clusterqueues.v1beta2")) for line in lines
    )
    assert "nodeSelector" not in advice
    assert all('{"op":"test","path":"/metadata/uid"' in line for line in lines)
    assert not stat.S_IXUSR & (tmp_path / "advice.sh").stat().st_mode


def applied(path: Path, script: str, objects: dict[tuple[str, str], Any]) -> int:
    """Apply the patches of a script to objects as an API server would; return how many were refused."""
    fake = path / "bin" / "kubectl"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text(f'#!/bin/sh\nprintf \'%s\\n\' "$@" >> {path}/calls; echo "--" >> {path}/calls\n')
    fake.chmod(0o755)
    (path / "calls").write_text("")
    subprocess.run(["sh", script], cwd=path, env={"PATH": f"{fake.parent}:/usr/bin:/bin"}, check=True)
    refused = 0
    for call in (path / "calls").read_text().split("--\n")[:-1]:
        words = call.splitlines()
        kind, name = words[1].partition(".")[0], words[2]
        namespace = words[4] if words[3] == "-n" else ""
        patch = json.loads(words[-1])
        new = patched(objects[kind, f"{namespace}/{name}"], patch)
        refused += new is None
        objects[kind, f"{namespace}/{name}"] = new or objects[kind, f"{namespace}/{name}"]
    return refused


def by_key(items: Any) -> dict[tuple[str, str], Any]:
    return {
        (f"{each['kind'].lower()}s", f"{each['metadata'].get('namespace', '')}/{each['metadata']['name']}"): each
        for each in json.loads(json.dumps(items))
    }


@pytest.mark.parametrize("lift", [False, True])
def test_advice_and_undo_leave_the_objects_as_they_were(gavel: Gavel, tmp_path: Path, lift: bool) -> None:
    items = backlog((8, 8, 8, 8)) if lift else backlog()
    written(tmp_path, items)
    options = ["--lift"] if lift else []
    assert gavel("advise", "state.json", "--profile", "speeds.csv", "--steps", "4", "--out", "advice.sh", *options).code == 0
    objects, before = by_key(items), by_key(items)
    assert applied(tmp_path, "advice.sh", objects) == 0
    changed = [key for key, each in objects.items() if each != before[key]]
    assert changed
    selectors = [objects[key]["spec"]["template"]["spec"].get("nodeSelector") for key in objects if key[0] == "jobs"]
    assert (None in selectors) == lift
    if lift:
        text = (tmp_path / "advice.sh").read_text()
        job = next(line for line in text.splitlines() if "patch jobs.v1.batch" in line)
        name = job.split()[3].removeprefix("job-")
        assert text.index(job) < text.index(f"patch workloads.v1beta2.kueue.x-k8s.io {name} ")
    assert applied(tmp_path, "undo.sh", objects) == 0
    assert objects == before


def test_a_stale_test_writes_nothing(gavel: Gavel, tmp_path: Path) -> None:
    gavel("advise", "state.json", "--profile", "speeds.csv", "--steps", "4", "--out", "advice.sh")
    objects = by_key(backlog())
    for key, each in objects.items():
        if key[0] == "workloads":
            each["metadata"]["uid"] += "-made-again"
    before = json.loads(json.dumps({str(key): each for key, each in objects.items() if key[0] == "workloads"}))
    assert applied(tmp_path, "advice.sh", objects) > 0
    assert {str(key): each for key, each in objects.items() if key[0] == "workloads"} == before


def test_nothing_to_write_is_said(gavel: Gavel, tmp_path: Path) -> None:
    written(tmp_path, two_queues({"h100": 4}, None, workload("w"), workload("v")))
    found = gavel("advise", "state.json")
    assert "Nothing to write" in found.out
    found = gavel("advise", "state.json", "--out", "advice.sh")
    assert (found.code, (tmp_path / "advice.sh").exists()) == (2, False)


def test_a_try_of_the_user_is_rated_and_a_wrong_one_refused(gavel: Gavel) -> None:
    found = gavel("advise", "state.json", "--profile", "speeds.csv", "--steps", "0", "--try", "a: a100")
    assert "your try, a: a100" in found.out
    found = gavel("advise", "state.json", "--try", "c: a100")
    assert (found.code, "no ClusterQueue 'c'" in found.err) == (2, True)
    assert "a has no flavor 'v100'" in gavel("advise", "state.json", "--try", "a: v100").err
    err = gavel("advise", "state.json", "--try", "a", "--try", "b: h100,", "--try", "c: x").err
    assert err.count("must be of the form `queue: flavor,flavor`") == 2
    assert "no ClusterQueue 'c'" in err
    assert "no ClusterQueue 'a'" not in err


def test_other_forms_of_the_advice(gavel: Gavel, tmp_path: Path) -> None:
    common = ("advise", "state.json", "--profile", "speeds.csv", "--steps", "0")
    assert gavel(*common, "--as", "replace", "--out", "new.json").code == 0
    found = json.loads((tmp_path / "new.json").read_text())["items"]
    old = by_key(backlog())
    assert all(each["metadata"] == old[key]["metadata"] for key, each in by_key(found).items())
    assert any(each != old[key] for key, each in by_key(found).items())
    assert gavel(*common, "--as", "queues", "--out", "queues.json").code == 0
    kinds = [each["kind"] for each in json.loads((tmp_path / "queues.json").read_text())["items"]]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"Cohort": 2, "ClusterQueue": 6, "LocalQueue": 4}


def test_explain_of_a_selector_that_no_flavor_has_and_the_flavor_that_would_do(gavel: Gavel, tmp_path: Path) -> None:
    written(tmp_path, two_queues({"h100": 1}, None, workload("w", pin="b200")))
    out = gavel("explain", "state.json", "a/w").out
    assert "Waits: NoMatchingFlavor." in out
    assert "h100: not allowed, its nodeSelector is gpu=b200." in out
    assert "allow h100 too (speed 1): it is admitted at once" in out
    assert "it never starts" in out


def test_explain_names_the_taint_where_the_selector_suits(gavel: Gavel, tmp_path: Path) -> None:
    items = two_queues({"h100": 1}, None, workload("w", pin="h100"))
    items[0]["spec"]["nodeTaints"] = [{"key": "spot", "value": "yes", "effect": "NoSchedule"}]
    written(tmp_path, items)
    out = gavel("explain", "state.json", "a/w").out
    assert "h100: not allowed, untolerated taint {spot yes NoSchedule" in out
    assert "nodeSelector" not in out


def test_the_least_quota_counts_what_a_queue_keeps_from_its_cohort(gavel: Gavel, tmp_path: Path) -> None:
    own = {"h100": {"nominalQuota": "3", "lendingLimit": "2"}}
    written(tmp_path, two_queues(own, {"h100": 0}, workload("runs", on="h100", gpus=3, hours=2), workload("w", made=1)))
    assert "1 more GPU of h100 in the quota of a: it is admitted at once" in gavel("explain", "state.json", "a/w").out


def lifted_patches(path: Path, items: Any) -> tuple[dict[str, Any], list[str]]:
    """The objects that advice on flavor y writes, {kind: object as changed}, and the notes."""
    found = state(path, items)
    changes = gp.KueueChanges(flavors={"a/w": frozenset({"y"})})
    chosen = gp.KueueTry("", changes, (gp.forecast_kueue(found),), (), ("a/w",))
    patches, notes = gp.kueue_patches(found, chosen, lift=True)
    return {each.source["kind"]: each.replaced() for each in patches}, notes


def test_advice_leaves_pods_without_gpus_and_labels_of_other_flavors_alone(tmp_path: Path) -> None:
    job = workload("w", pin="x")
    launcher = {"name": "launcher", "count": 1, "template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}}}
    job["spec"]["podSets"].append(json.loads(json.dumps(launcher)))
    job["spec"]["podSets"][0]["template"]["spec"]["nodeSelector"]["zone"] = "north"
    items = [*two_queues({"x": 1, "y": 1, "z": 1}, None, job), flavor("other", nodeLabels={"zone": "north"}), job_of(job)]
    cpus = {"name": "other", "resources": [{"name": "cpu", "nominalQuota": "4"}]}
    next(each for each in items if each["kind"] == "ClusterQueue")["spec"]["resourceGroups"].append(
        {"coveredResources": ["cpu"], "flavors": [cpus]}
    )
    changed, notes = lifted_patches(tmp_path, items)
    worker, other = changed["Workload"]["spec"]["podSets"]
    assert other == launcher
    assert worker["template"]["spec"]["nodeSelector"] == {"zone": "north"}
    assert "affinity" in worker["template"]["spec"]
    assert notes == []


def test_a_selector_that_cannot_be_lifted_is_named(tmp_path: Path) -> None:
    job = workload("w", pin="x")
    job["metadata"]["ownerReferences"] = [{"kind": "RayJob", "name": "ray"}]
    changed, notes = lifted_patches(tmp_path, two_queues({"x": 1, "y": 1}, None, job))
    assert changed == {}
    assert notes == ["a/w: its owner is not a Job in the file, so its node selector stays"]


def test_queues_of_classes_have_local_queues_of_their_own_name(tmp_path: Path) -> None:
    items = two_queues({"x": 1}, {"x": 1}, workload("one", "a"), workload("two", "b"))
    items[-1]["metadata"]["namespace"], items[-3]["metadata"]["namespace"] = "a", "a"
    items[-3]["metadata"]["name"] = items[-1]["spec"]["queueName"] = "second"
    found = state(tmp_path, items)
    chosen = gp.KueueTry("", gp.KueueChanges(), (gp.forecast_kueue(found),), ())
    local = [each["metadata"] for each in gp.kueue_queues(found, chosen) if each["kind"] == "LocalQueue"]
    assert local == [{"name": "a-other", "namespace": "a"}, {"name": "b-other", "namespace": "a"}]


def test_what_kubectl_reports_is_noted_and_a_context_is_quoted(
    gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "kubectl"
    fake.write_text(f"#!/bin/sh\necho 'error: unable to list jobs: timeout' >&2\ncat {tmp_path}/state.json; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert "kubectl: error: unable to list jobs: timeout" in gavel("show", "--context", "prod").out
    options = ("--profile", "speeds.csv", "--steps", "0", "--out", "advice.sh")
    assert gavel("advise", "--context", "my cluster", *options).code == 0
    assert "kubectl --context 'my cluster' patch" in (tmp_path / "advice.sh").read_text()


def test_wrong_usage(gavel: Gavel) -> None:
    assert gavel("show").code == 2
    assert gavel("show", "state.json", "--context", "prod").code == 2
    assert gavel("show", "state.json", "--now", "today").code == 2
    assert gavel("explain", "state.json").code == 2


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is absent (package kubernetes-client)")
@pytest.mark.parametrize("lift", [False, True])
def test_kubectl_applies_the_advice_and_takes_it_back(gavel: Gavel, tmp_path: Path, lift: bool) -> None:
    items = backlog((8, 8, 8, 8)) if lift else backlog()
    server = FakeApiServer(items)
    settings = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": server.url}}
    context = {"name": "prod", "context": {"cluster": "c", "user": "u"}}
    known = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "contexts": [context],
        "users": [{"name": "u", "user": {}}],
    }
    settings.write_text(json.dumps({**known, "current-context": "prod"}))
    environment = {**os.environ, "KUBECONFIG": str(settings), "HOME": str(tmp_path)}
    gets = ["kubectl", "get", "clusterqueues,resourceflavors,localqueues,workloads,jobs", "-A", "-o", "json"]
    try:
        text = subprocess.run(gets, env=environment, capture_output=True, check=True, encoding="utf-8").stdout
        (tmp_path / "state.json").write_text(text)
        options = ["--lift"] if lift else []
        assert gavel("advise", "state.json", "--profile", "speeds.csv", "--steps", "4", "--out", "advice.sh", *options).code == 0
        before = json.loads(json.dumps(server.objects))
        for script in ("advice.sh", "undo.sh"):
            done = subprocess.run(["sh", script], cwd=tmp_path, env=environment, capture_output=True, check=False, encoding="utf-8")
            assert done.returncode == 0, done.stderr
            assert (server.objects == before) is False
        assert server.writes == 2 * (tmp_path / "advice.sh").read_text().count("kubectl patch")
        for each in server.objects.values():
            each["metadata"].pop("resourceVersion", None)
        assert server.objects == before
        for each in server.objects.values():
            each["metadata"]["uid"] = "made-again"
        writes = server.writes
        done = subprocess.run(
            ["sh", "advice.sh"], cwd=tmp_path, env=environment, capture_output=True, check=False, encoding="utf-8"
        )
        assert (done.returncode, server.writes) == (1, writes)
    finally:
        server.close()
