"""Faults of the spec of a sweep are reported before any cell runs, with file, line and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from tests.sweeps.support import simulations, solves

SINGLE = gp.ThroughputProfile(
    "single", [gp.Measurement(job_type="A3C", accelerator=name, num_gpus=1, steps_per_second=1.0) for name in ("v100", "k80")]
)

WHOLE = """\
mode: simulate
policies: [fifo]
traces:
  - generate: {jobs: 3}
clusters: ["v100:4"]
"""


def test_the_mechanism_is_a_label_unless_it_is_the_default() -> None:
    for settings, label in ({}, None), ({"mechanism": "direct"}, "direct"), ({"mechanism": "priority"}, "priority"):
        plan = gp.plan_sweep(simulations("fifo", seeds=1, settings=settings))
        assert [each.get("mechanism") for each in plan.labels] == [label]


def told(tmp_path: Path, text: str) -> str:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(gp.InputError) as caught:
        gp.plan_sweep(path)
    return str(caught.value).replace(str(tmp_path) + "/", "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("mode: simulate", "mode: play"), "sweep.yaml, line 1, field mode: must be one of 'simulate' or 'solve', found 'play'"),
        (("policies", "polices"), "sweep.yaml, line 2, field polices: is not known; did you mean 'policies'?"),
        (("[fifo]", "[]"), "sweep.yaml, line 2, field policies: is empty, so the grid is empty; give at least one"),
        (("[fifo]", "[fifo, fifoo]"), "sweep.yaml, line 2, field policies: there is no policy 'fifoo'; did you mean 'fifo'?"),
        (("[fifo]", "['fifo,backfil=true']"), "line 2, policy fifo: there is no option 'backfil'; did you mean"),
        (
            ("[fifo]", "['fifo,backfill']"),
            "sweep.yaml, line 2, field policies: 'fifo,backfill' is not of the form NAME,OPTION=VALUE",
        ),
        (("[fifo]", "['fifo,backfill,backfill=true']"), "'fifo,backfill,backfill=true' is not of the form NAME,OPTION=VALUE"),
        (
            ("generate: {jobs: 3}", "generate: {jobs: 3, burstiness: -1}"),
            "generate, field burstiness: must be at least 0, found -1",
        ),
        (("[fifo]", "[3]"), "field policies: must be a name such as fifo or fifo,backfill=true, or a mapping with policy, found 3"),
        (("[fifo]", "[{policy: fifo, option: {}}]"), "field option: is not known; did you mean 'options'?"),
        (("[fifo]", "[fifo, {policy: isolated, name: fifo}]"), "line 2, field policies: 'fifo' is the name of several of them"),
        (("generate: {jobs: 3}", "generate: {jobs: 3, gang: {1: 1}}"), "line 4, generate, field gang: is not known; did you mean"),
        (("generate: {jobs: 3}", "generate: {jobs: 0}"), "sweep.yaml, line 4, generate, field jobs: must be at least 1, found 0"),
        (("generate: {jobs: 3}", "file: absent.csv"), "sweep.yaml, line 4, absent.csv: cannot be read: No such file"),
        (("generate: {jobs: 3}", "name: x"), "sweep.yaml, line 4, field traces: must have either file or generate"),
        (('["v100:4"]', '["v10:4"]'), "field accelerator 'v10': is not in profile 'gavel-osdi20', which has k80, p100, v100"),
        (('["v100:4"]', "[{v100: -1}]"), "accelerator type 'v100', field GPUs: must be a whole number of at least 0, found -1"),
        (('["v100:4"]', "[absent.yaml]"), "line 5, absent.yaml: cannot be read: No such file"),
        (('["v100:4"]', '["v100:4"]\nloads: [0]'), "sweep.yaml, line 6, field loads.0: must be greater than 0, found 0"),
        (('["v100:4"]', '["v100:4"]\nseeds: [-1]'), "sweep.yaml, line 6, field seeds.0: must be at least 0, found -1"),
        (('["v100:4"]', '["v100:4"]\nseeds: []'), "sweep.yaml, line 6, field seeds: is empty, so the grid is empty"),
        (('["v100:4"]', '["v100:4"]\nsettings: {restart: 3}'), "line 6, field settings.restart: is not known; did you mean"),
        (
            ('["v100:4"]', '["v100:4"]\nsettings: {node_mtbf_hours: 3}'),
            "field settings.node_mtbf_hours: and node_repair_hours must be given together",
        ),
        (('["v100:4"]', '["v100:4"]\nprofile: gavel'), "profile 'gavel'"),
        (
            ('["v100:4"]', '["v100:4"]\nround_seconds: null\npolicies2: 1'),
            "field policies2: is not known; did you mean 'policies'?",
        ),
        (
            ('["v100:4"]', '["v100:4"]\nsettings: {min_gain: 1.2}'),
            "line 6, field settings.min_gain: selects pairs of jobs that may share GPUs, but no policy shares them",
        ),
        (
            ('["v100:4"]', '["v100:4"]\nsettings: {sharing: true, min_gain: 0.9}'),
            "line 6, field settings.min_gain: must be at least 1, found 0.9",
        ),
        (
            ('["v100:4"]', '["v100:4"]\nestimate: true\nconfidence: 2'),
            "line 7, field confidence: must be greater than 0 and below 1, or optimistic, found 2",
        ),
        (
            ('["v100:4"]', '["v100:4"]\nestimate: true\nconfidence: pess'),
            "line 7, field confidence: must be greater than 0 and below 1, or optimistic, found 'pess'",
        ),
        (
            ('["v100:4"]', '["v100:4"]\nsettings: {job_failures: 1}'),
            "field settings.job_failures: must be at least 0 and below 1, or recorded, found 1",
        ),
        (
            ("policies: [fifo]", "settings: {mechanism: direct}\npolicies: [fifo, isolated]"),
            "field settings.mechanism: direct chooses jobs without a policy, so all policies give the same results",
        ),
        (
            ('["v100:4"]', '["v100:4"]\nsettings: {mechanism: 3}'),
            "field settings.mechanism: must be the name of a mechanism, found 3",
        ),
        (('["v100:4"]', '["v100:4"]\nsettings: {interference: 1}'), "field settings.interference: must be less than 1, found 1"),
        (
            ("mode: simulate", "mode: solve\nsettings: {interference: 0.1}"),
            "line 2, field settings.interference: concerns time",
        ),
        (
            ('["v100:4"]', '["v100:4"]\nsettings: {sharing: true}'),
            "policy 'fifo', policy fifo: solves no program, so it cannot decide",
        ),
        (
            ("[fifo]", "[fifo, {policy: gandiva, sharing: 3}]"),
            "line 2, policy 'gandiva', field sharing: must be true or false, found 3",
        ),
        (
            ("mode: simulate", "mode: solve\nloads: [1]"),
            "sweep.yaml, line 2, field loads: concerns time, so it does not apply to a static solve",
        ),
        (("mode: simulate", "mode: solve\nsettings: {until_seconds: 1}"), "line 2, field settings.until_seconds: concerns time"),
        (("mode: simulate", "mode: solve\nmeasure_jobs: [0, 2]"), "sweep.yaml, line 2, field measure_jobs: concerns time"),
        (
            ("mode: simulate", "measure_jobs: [2]"),
            "sweep.yaml, line 1, field measure_jobs: must be two whole numbers, the first job by arrival (from 0)",
        ),
        (("mode: simulate", "measure_jobs: 1:2"), "sweep.yaml, line 1, field measure_jobs: must be two whole numbers"),
        (("mode: simulate", "measure_jobs: [1, 4]"), "field measure_jobs: must end within the trace, which has 3 jobs, found 1:4"),
        ((WHOLE, "[1]"), "sweep.yaml, line 1: must be a mapping with the keys policies, traces and clusters"),
        ((WHOLE, "a: [\n"), "is not valid YAML"),
    ],
)
def test_faults_name_their_line(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    assert change[0] in WHOLE
    assert said in told(tmp_path, WHOLE.replace(*change))


def test_all_faults_come_together(tmp_path: Path) -> None:
    text = WHOLE.replace("[fifo]", "[fifoo]").replace("jobs: 3", "jbs: 3").replace("v100:4", "v100")
    assert len(told(tmp_path, text).splitlines()) == 4


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            simulations("max_min_fairness", round_seconds=None),
            "policy 'max_min_fairness', simulation, field round_seconds: must be given",
        ),
        (
            solves("shortest_job_first") | {"traces": [gp.Trace([gp.Submission(gp.Job("a", job_type="A3C"))])]},
            "sweep, policy 'shortest_job_first', job 'a'",
        ),
        (simulations(traces=[gp.Trace([])]), "loads: apply to generated traces, but all traces are files"),
        (
            simulations(traces=[gp.Trace([gp.Submission(gp.Job("a", job_type="A3C"))])], loads=None),
            "total_steps: is unknown, so it is not known when the job ends",
        ),
        (
            simulations(traces=[gp.Trace([gp.Submission(gp.Job("a", job_type="none", total_steps=1))])], loads=None),
            "'none'",
        ),
        (
            simulations(
                "max_min_fairness", profile=SINGLE, settings={"sharing": True}, traces=[{"generate": {"jobs": 3, "gangs": {1: 1}}}]
            ),
            "sharing: needs the speeds of pairs of jobs, but profile 'single' has none",
        ),
        (simulations(throughputs="x.csv", profile="gavel-osdi20"), "throughputs: and profile both define the speeds of jobs"),
    ],
)
def test_values_that_do_not_fit_together_are_refused_before_any_cell_runs(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(gp.InputError) as caught:
        gp.plan_sweep(spec)
    assert said in str(caught.value)


def spec_and_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folder of a spec, and another one as the working directory."""
    folder, here = tmp_path / "specs", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    return folder, here


def test_paths_are_relative_to_the_spec_and_those_of_changes_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, here = spec_and_here(tmp_path, monkeypatch)
    (folder / "t.csv").write_text("job_id,job_type,total_steps\na,A3C,1\n")
    (here / "u.csv").write_text("job_id,job_type,total_steps\na,A3C,1\n")
    (folder / "c.yaml").write_text("nodes:\n  - {name: a, accelerator: v100, num_gpus: 8}\n")
    (folder / "s.yaml").write_text("policies: fifo\ntraces: t.csv\nclusters: c.yaml\nresults: r.sqlite\n")
    plan = gp.plan_sweep("../specs/s.yaml")
    assert plan.results is not None
    assert plan.results.resolve() == folder / "r.sqlite"
    assert [labels["trace"] for labels in plan.labels] == ["t.csv"]
    changed = gp.plan_sweep("../specs/s.yaml", traces=["u.csv"], results="mine.sqlite")
    assert changed.results == here / "mine.sqlite"
    assert [labels["trace"] for labels in changed.labels] == ["u.csv"]


@pytest.mark.parametrize(
    "changes",
    [
        {"traces": [{"file": "u.csv", "name": "mine"}]},
        {"traces": [{"generate": {"jobs": 2, "durations": "w.csv"}}]},
        {"clusters": {"cluster": "d.yaml", "name": "mine"}},
        {"policies": [{"policy": "fifo", "constraints": ["k.yaml"]}]},
        {"settings": {"maintenance": "m.csv"}},
        {"policies": "fifo"},
    ],
)
def test_nested_paths_of_changes_are_relative_to_the_working_directory(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, here = spec_and_here(tmp_path, monkeypatch)
    (here / "u.csv").write_text("job_id,job_type,total_steps\na,A3C,1\n")
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    (here / "w.csv").write_text(gp.trace_text(gp.generate_trace(2, profile, jobs_per_hour=4)))
    (here / "d.yaml").write_text("nodes:\n  - {name: a, accelerator: v100, num_gpus: 8}\n")
    (here / "k.yaml").write_text("constraints:\n  - {kind: quota, tenant: a, share: 0.5}\n")
    (here / "m.csv").write_text("node,start_seconds,end_seconds\nn,0,10\n")
    (here / "fifo").write_text("a file of the name of a policy")
    (folder / "c.yaml").write_text("nodes:\n  - {name: n, accelerator: v100, num_gpus: 8}\n")
    (folder / "s.yaml").write_text("policies: fifo\ntraces: [{generate: {jobs: 3}}]\nclusters: c.yaml\n")
    assert len(gp.plan_sweep("../specs/s.yaml", **changes)) == 1


def test_objects_with_the_same_label_need_names() -> None:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    traces = [gp.generate_trace(2, profile, jobs_per_hour=4, seed=seed) for seed in range(2)]
    policies = [gp.resolve_policy("fifo"), gp.resolve_policy("fifo", constraints=[gp.Quota(tenant="a", share=0.5)])]
    spec = solves(*policies, seeds=1) | {"traces": traces}
    with pytest.raises(gp.InputError, match="is the name of several of them; give each its own name"):
        gp.plan_sweep(spec)
    spec["policies"] = [{"policy": policies[0]}, {"policy": policies[1], "name": "fifo with a quota"}]
    spec["traces"] = [{"file": trace, "name": name} for trace, name in zip(traces, "ab", strict=True)]
    plan = gp.plan_sweep(spec)
    assert [(each["policy"], each["trace"]) for each in plan.labels] == [
        (policy, trace) for trace in "ab" for policy in ("fifo", "fifo with a quota")
    ]
    assert len(plan) == 4


def test_the_grid_is_the_product_with_policies_side_by_side() -> None:
    spec = simulations("fifo", "isolated", seeds=2, clusters=["v100:4", "k80:4/2"], round_seconds=[360, 60]) | {"loads": [1, 2, 3]}
    labels = gp.plan_sweep(spec).labels
    assert len(labels) == 2 * 2 * 2 * 3 * 2
    assert [each["policy"] for each in labels[:4]] == ["fifo", "isolated"] * 2
    assert len({tuple(each.values()) for each in labels}) == len(labels)


def test_repeated_values_count_once() -> None:
    spec = {"policies": "fifo", "traces": {"generate": {"jobs": 3}}, "clusters": "v100:4"}
    plan = gp.plan_sweep({**spec, "loads": [4, 4.0], "seeds": [0, 0], "round_seconds": [360, 360.0]})
    assert len(plan.labels) == 1
