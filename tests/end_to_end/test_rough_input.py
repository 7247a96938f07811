"""Malformed input that is easily overlooked is refused with a clear message, or has the documented effect."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from gavel_py import AllocationProblem, Cluster, Job, JobSet
from gavel_py.io import reading
from tests.support.fakes import FakeProfile, refusal

NAN = math.nan
from_arrays, from_jobs = AllocationProblem.from_arrays, AllocationProblem.from_jobs
CLUSTER = Cluster.from_counts({"v100": 8, "p100": 8})
ROOT = str(Path(reading.__file__).parents[2])
PROFILE = FakeProfile({"t": {"v100": 4.0, "p100": 2.0, "k80": 1.0}})


@pytest.fixture(autouse=True)
def _cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def file(name, content):
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


def csv(c, required=()):
    return list(reading.csv_rows(file("t.csv", c), required))


def job(job_id="a", **f):
    return Job(job_id, **{"job_type": "t"} | f)


@pytest.mark.parametrize("gang", [2.0**63, 1e300])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_gang_beyond_all_reason_is_not_runnable(gang: Any) -> None:
    try:
        problem = from_arrays([[1.0]], [4], num_gpus=[gang])
    except gp.InputError:
        return
    assert not problem.runnable.any()


@pytest.mark.parametrize(
    ("read", "name", "content"),
    [
        (JobSet.from_file, "t.json", '[{"job_id": "a", "self": 1}]'),
        (JobSet.from_file, "t.jsonl", '{"job_id": "a", "self": 1}'),
        (JobSet.from_file, "t.csv", "job_id,self\na,1\n"),
        (Cluster.from_file, "t.yaml", "nodes:\n- {name: a, accelerator: v, num_gpus: 1, self: 1}\n"),
    ],
)
def test_a_field_named_self_is_as_unknown_as_any_other(read: Any, name: Any, content: Any) -> None:
    assert "field self: is not known" in refusal(read, file(name, content))


def test_deep_yaml_nesting_is_a_fault_and_no_crash() -> None:
    code = (
        "from gavel_py.io import reading\nfrom gavel_py.errors import InputError\n"
        "try: reading.yaml_document('t.yaml')\nexcept InputError as e: print(e)\n"
    )
    file("t.yaml", "[" * 50_000 + "]" * 50_000)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ROOT})
    assert (done.returncode, done.stdout) == (0, "t.yaml, line 1: is nested too deeply for a job set, cluster or profile\n")


def test_yaml_repeated_key_place_stands_once() -> None:
    assert (
        refusal(reading.yaml_document, file("t.yaml", "a: 1\nb: 2\na: 3\n"))
        == "t.yaml, line 3: key 'a' appears twice in one mapping"
    )


def test_json_repeated_key_line() -> None:
    m = refusal(reading.json_document, file("t.json", '{"a": 1,\n"b": 2,\n"a": 3}'))
    assert "line 1:" not in m


@pytest.mark.parametrize("content", ['{"a": 1}\n{"a":\n', '{"a": 1}\n[1,\n{"b": 1}\n'])
def test_json_lines_incomplete(content: Any) -> None:
    assert refusal(lambda: list(reading.json_lines(file("t.jsonl", content)))).startswith("t.jsonl, line 2: ")


def test_open_quote_line() -> None:
    assert refusal(csv, 'a,b\n1,"2\n3,4\n5,6\n').startswith("t.csv, line 2: ")


def test_cluster_yaml_unknown_key_line() -> None:
    assert refusal(Cluster.from_file, file("t.yaml", "node:\n  - a\nnodes: []\n")).startswith("t.yaml, line 1: key 'node'")


def test_cluster_yaml_number_as_type_name_line() -> None:
    assert refusal(Cluster.from_file, file("t.yaml", "nodes: []\naccelerator_types:\n  100: {memory_gb: -1}\n")).startswith(
        "t.yaml, line 3 "
    )


def test_from_counts_numpy() -> None:
    assert Cluster.from_counts({"v100": np.int64(12)}) == Cluster.from_counts({"v100": 12})


@pytest.mark.parametrize("count", [(8,), (8, 4, 2), ()])
def test_from_counts_tuple(count: Any) -> None:
    assert "accelerator type 'v100'" in refusal(Cluster.from_counts, {"v100": count})


def test_capacities_frozen() -> None:
    cluster = Cluster.from_counts({"v100": 8})
    with pytest.raises(ValueError, match="read-only"):
        cluster.capacities[0] = 99


def test_allowed_in_cluster_only() -> None:
    cluster = Cluster.from_counts({"v100": 8, "mi300": 8})
    with pytest.warns(gp.GavelWarning):
        problem = from_jobs([job(allowed_accelerators="v100|mi300")], cluster, PROFILE, allow_unknown_types=True)
    assert problem.runnable.tolist() == [[True]]


@pytest.mark.parametrize("now", [NAN, "noon", None])
def test_now_seconds(now: Any) -> None:
    assert "now_seconds" in refusal(from_jobs, [job(deadline_seconds=3)], CLUSTER, PROFILE, now_seconds=now)


@pytest.mark.parametrize("value", [NAN, -1.0, math.inf])
def test_profile_numbers_checked(value: Any) -> None:
    bad = FakeProfile({"t": {"v100": value, "p100": 2.0}})
    assert "job 'a', accelerator type 'v100', field throughputs" in refusal(from_jobs, [job()], CLUSTER, bad)


def test_profiles_array_not_frozen() -> None:
    kept = np.array([[4.0, 2.0]])

    class Kept(FakeProfile):
        def matrix(self, jobs: Any, accelerators: Any) -> Any:  # noqa: ARG002
            return kept

    from_jobs([job()], CLUSTER, Kept({"t": {"v100": 1.0, "p100": 1.0}}))
    assert kept.flags.writeable


@pytest.mark.parametrize(
    "read",
    [
        lambda: csv("a\n1,2\n3\n"),
        lambda: list(reading.json_lines(file("t.jsonl", "{\n1\n"))),
        lambda: JobSet.from_file(file("t.trace", "x\ny\n")),
    ],
    ids=["csv", "jsonl", "trace"],
)
def test_file_closed_after_fault(read: Any) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(gp.InputError) as error:  # noqa: F841, the kept traceback keeps the readers alive
        read()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_renamed_checks_names() -> None:
    assert "must not be empty" in refusal(CLUSTER.renamed, {"v100": ""})


def test_duplicate_nodes_in_file_place() -> None:
    content = "nodes:\n- {name: a, accelerator: v, num_gpus: 1}\n- {name: a, accelerator: v, num_gpus: 1}\n"
    m = refusal(Cluster.from_file, file("t.yaml", content))
    assert "t.yaml, line 3" in m
    assert "line 2" in m


def test_node_and_type_faults_together() -> None:
    content = "accelerator_types:\n  v: {memory_gb: -1}\n  w: 3\nnodes:\n- {name: a, accelerator: v, num_gpus: -1}\n- b\n"
    assert len(refusal(Cluster.from_file, file("t.yaml", content)).splitlines()) == 4


@pytest.mark.parametrize(
    "content", ["nodes: 0\n", "nodes: false\n", "nodes: ''\n", "accelerator_types: 0\n", "accelerator_types: {v: 0}\n"]
)
def test_falsy(content: Any) -> None:
    refusal(Cluster.from_file, file("t.yaml", content))


def test_type_name_key() -> None:
    assert "v100" in refusal(Cluster.from_file, file("t.yaml", "accelerator_types:\n  v100: {name: k80}\n"))


def test_json_extra_key() -> None:
    assert "jbos" in refusal(JobSet.from_file, file("t.json", '{"jobs": [], "jbos": [{"job_id": "a"}]}'))


def test_nameless_column() -> None:
    m = refusal(JobSet.from_file, file("t.csv", "job_id,\na,3\n"))
    assert "column 2 has no name" in m


def test_limit_wording() -> None:
    assert refusal(Job, "a", num_gpus=10**6 + 1) == "job 'a', field num_gpus: must be at most 1,000,000, found 1000001"


@pytest.mark.parametrize(
    "call",
    [
        lambda: Job("a", num_gpus=True),
        lambda: Job("a", weight=True),
        lambda: Cluster.from_counts({"v": True}),
        lambda: from_arrays([[1.0]], [1], running_on=[False]),
        lambda: Cluster.from_file(file("t.yaml", "nodes:\n- {name: a, accelerator: v, num_gpus: yes}\n")),
    ],
)
def test_bools(call: Any) -> None:
    refusal(call)


@pytest.mark.parametrize(
    "values", [{"job_ids": 3}, {"tenants": 3}, {"running_on": 3}, {"running_on": [["a"]]}, {"running_on": np.zeros((1, 2))}]
)
def test_wrong_kind(values: Any) -> None:
    assert f"field {next(iter(values))}" in refusal(from_arrays, [[1.0]], [1], **values)


def test_locality_typo() -> None:
    with pytest.raises(gp.InputError):
        CLUSTER.largest_gang("v100", "Node")


def test_alias_cycle() -> None:
    assert refusal(reading.yaml_document, file("t.yaml", "b: 1\na: &a [*a]\n")).startswith("t.yaml, line 2: ")


def test_yaml_control() -> None:
    m = refusal(reading.yaml_document, file("t.yaml", "a: 1\nb: \x07\n"))
    assert m.startswith("t.yaml, line 2: ")
    assert "unicode string" not in m


def test_json_huge_int() -> None:
    assert "sys.set_int" not in refusal(reading.json_document, file("t.json", "[\n" + "9" * 5000 + "]"))


def test_warning_punctuation() -> None:
    with pytest.warns(gp.GavelWarning) as caught:
        from_jobs([job()], Cluster.from_counts({"v100": 8, "v10": 8}), PROFILE, allow_unknown_types=True)
    assert "?;" not in str(caught[0].message)


@pytest.mark.parametrize(
    "fields",
    [{"job_id": "a\x85b"}, {"job_id": "a\u2028b"}, {"job_id": "a", "tenant": "x\x1b[2J"}, {"job_id": "a", "job_type": "x\ny"}],
)
def test_control(fields: Any) -> None:
    refusal(Job, **fields)


def test_long_id_in_message() -> None:
    assert len(refusal(Job, "x" * 100_000, weight=0)) < 300


def test_surrogate() -> None:
    assert "Input should be" not in refusal(Job, "\ud800")


@pytest.mark.parametrize("text", ["v100:999999999"])
def test_too_many_nodes(text: Any) -> None:
    code = (
        "import resource, gavel_py as gp\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        f"try: gp.Cluster.from_inline({text!r})\nexcept gp.InputError: print('refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": ROOT}
    )
    assert done.stdout == "refused\n", done.stderr[-300:]


def test_previous_fractions_above_1() -> None:
    refusal(from_arrays, [[1.0]], [1], previous_fractions=[[7.0]])


def test_bool_mask_select() -> None:
    assert from_arrays([[1.0], [2.0]], [1]).select(np.array([False, True])).job_ids == ("1",)


def test_jobset_eq() -> None:
    assert JobSet([Job("a")]) == JobSet([Job("a")])


def test_not_jobs() -> None:
    refusal(from_jobs, ["a"], CLUSTER, PROFILE)


def test_arabic_digits() -> None:
    refusal(Cluster.from_inline, "v100:٣")
