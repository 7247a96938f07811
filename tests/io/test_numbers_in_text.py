"""Numbers in files, options and text are decimal or refused with their decimal form; names stay as written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.commands import Gavel, enter_folder, runner, written
from tests.support.examples import CHARACTERS
from tests.support.fakes import refusal

decimal_hint = gp.errors.decimal_hint

FORMS = {
    "010": "10, or 8 if it is octal",
    "1:30": "90",
    "1_0": "10",
    "1_000": "1000",
    "0x10": "16",
    "0o17": "15",
    "0b11": "3",
    "007": "7",
    "08": "8",
    "+0_1": "1",
}
"""Numbers that YAML 1.1, YAML 1.2, Python and spreadsheets read differently, and their decimal form."""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_folder(tmp_path, monkeypatch)


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str]) -> Gavel:
    return runner(capsys)


NODES = "nodes:\n  - {name: a, accelerator: v100, num_gpus: %s}\n"
FILES: dict[str, tuple[Callable[[str], Any], str, str, str]] = {
    "YAML cluster": (gp.Cluster.from_file, "c.yaml", NODES, "line 2 (node 'a'), field num_gpus: must be a decimal number, found"),
    "YAML price": (
        gp.Cluster.from_file,
        "c.yaml",
        "accelerator_types: {v100: {price_per_hour: %s}}\n",
        "line 1 (accelerator type 'v100'), field price_per_hour: must be a decimal number, found",
    ),
    "text in JSON": (
        gp.Cluster.from_file,
        "c.json",
        '{"nodes": [\n{"name": "a", "accelerator": "v100", "num_gpus": "%s"}]}',
        "line 2, nodes[0] (node 'a'), field num_gpus: must be a decimal number, found",
    ),
    "openb nodes": (
        gp.Cluster.from_file,
        "c.csv",
        "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,%s,P100\n",
        "line 2 (node 'a'), field gpu: must be a decimal number, found",
    ),
    "CSV jobs": (gp.JobSet.from_file, "j.csv", "job_id,num_gpus\na,%s\n", "line 2 (job 'a'), field num_gpus: must be a decimal"),
    "CSV steps": (
        gp.JobSet.from_file,
        "j.csv",
        "job_id,total_steps\na,%s\n",
        "line 2 (job 'a'), field total_steps: must be a decimal",
    ),
    "JSON Lines": (
        gp.JobSet.from_file,
        "j.jsonl",
        '{"job_id": "a", "weight": "%s"}\n',
        "line 1 (job 'a'), field weight: must be a deci",
    ),
    "Gavel trace": (
        gp.JobSet.from_file,
        "j.trace",
        "A3C\tx\tx\tx\t0\t%s\t1\t1\t-1\t0\n",
        "line 1 (job '0'), field total_steps: must be a decimal",
    ),
    "tenants": (
        gp.TenantTree.from_file,
        "t.yaml",
        "tenants:\n  a: {weight: %s}\n",
        "line 2 (tenant 'a'), field weight: must be a decimal number, found",
    ),
    "constraints": (
        gp.read_constraints,
        "k.yaml",
        "constraints:\n- {kind: max_gpus, gpus: %s}\n",
        "line 2 (constraint max_gpus), field gpus: must be a decimal number, found",
    ),
    "maintenance": (
        gp.read_maintenance,
        "m.csv",
        "node,start_seconds,end_seconds\na,0,%s\n",
        "line 2 (node 'a'), field end_seconds: must be a decimal number, found",
    ),
    "matrix": (
        gp.ThroughputProfile.from_matrix,
        "s.csv",
        "job_id,v100\na,%s\n",
        "line 2, field v100: must be a finite number of steps/s",
    ),
    "profile": (
        gp.ThroughputProfile.from_file,
        "p.csv",
        "job_type,num_gpus,accelerator,steps_per_second\nx,1,v100,%s\n",
        "line 2 (measurement 'x'), field steps_per_second: must be a decimal number, found",
    ),
    "sweep": (
        gp.plan_sweep,
        "w.yaml",
        "policies: [fifo]\ntraces: [{generate: {jobs: 3}}]\nclusters: ['v100:4']\nloads:\n- %s\n",
        "line 5, field loads.0: must be a decimal number, found",
    ),
    "sweep settings": (
        gp.plan_sweep,
        "w.yaml",
        "policies: [fifo]\ntraces: [{generate: {jobs: 3}}]\nclusters: ['v100:4']\nsettings:\n  restart_seconds: %s\n",
        "line 5, field settings.restart_seconds: must be a decimal number, found",
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", FILES)
def test_numbers_in_files_are_decimal(kind: str, form: str) -> None:
    read, name, content, problem = FILES[kind]
    told = refusal(read, written(name, content % form))
    assert told.startswith(f"{name}, {problem}")
    assert told.endswith(f"found '{form}'" + f"; write {FORMS[form]}")


@pytest.mark.parametrize("form", FORMS)
def test_a_line_of_a_trace_with_another_number_is_broken(form: str) -> None:
    header = "job_id,user,num_gpu,num_inst,submit_time,duration"
    trace = gp.read_trace(written("t.csv", f"{header}\na,u,1,1,0,60\nb,u,1,1,0,{form}\n"), "pai-csv")
    assert [submission.job.job_id for submission in trace] == ["a"]
    assert str(trace.report.faults[0]).endswith(f"found '{form}'; write {FORMS[form]}")


@pytest.mark.parametrize("column", ["recorded_run_seconds", "recorded_cancelled_seconds", "recorded_failed_attempts"])
def test_what_was_recorded_of_a_job_is_decimal(column: str) -> None:
    path = written("t.csv", f"job_id,{column}\na,1_0\n")
    assert f"line 2, field {column}: must be a finite number" in refusal(gp.read_trace, path, strict=True)


@pytest.mark.parametrize("form", ["010", "1_0", "0x10", "0o17"])
def test_a_cluster_in_text(form: str) -> None:
    assert f"found '{form}'; write {FORMS[form]}" in refusal(gp.Cluster.from_inline, f"v100:{form}")
    assert f"found '{form}'; write {FORMS[form]}" in refusal(gp.Cluster.from_inline, f"v100:16/{form}")


@pytest.mark.parametrize("form", ["010", "1_0", "0x10", "1:30"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["rounds", "jobs.csv", "-c", "v100:2", "--rounds"],
        ["solve", "jobs.csv", "-c", "v100:2", "--round-seconds"],
        ["simulate", "jobs.csv", "-c", "v100:2", "--job-failures"],
        ["simulate", "jobs.csv", "-c", "v100:2", "--seed"],
        ["trace", "sample", "jobs.csv", "--jobs"],
        ["slurm", "plan", "--partition", "gpu", "--round"],
        ["slurm", "plan", "--partition", "gpu", "--default-steps"],
        ["sweep", "--load"],
        ["solve", "jobs.csv", "-c", "v100:2", "-p", "gandiva", "--set", "seed=%s"],
        ["solve", "jobs.csv", "-c", "v100:2", "--what-if", "v100+%s"],
    ],
)
def test_numbers_on_the_command_line(gavel: Gavel, arguments: list[str], form: str) -> None:
    written("jobs.csv", "job_id,job_type,total_steps\na,A3C,9\n")
    whole = [*arguments[:-1], arguments[-1] % form] if "%s" in arguments[-1] else [*arguments, form]
    outcome = gavel(*whole)
    assert outcome.code == 2
    assert f"'{form}'" in outcome.err
    assert f"; write {FORMS[form]}" in outcome.err


@pytest.mark.parametrize("text", ["010", "010s", "01h"])
def test_times_on_the_command_line(gavel: Gavel, text: str) -> None:
    written("jobs.csv", "job_id,job_type,total_steps\na,A3C,9\n")
    assert gavel("simulate", "jobs.csv", "-c", "v100:2", "--until", text).code == 2


@pytest.mark.parametrize(
    "name", ["on", "off", "yes", "no", "none", "010", "1_0", "1:30", "1.10", "1e5", "2024-01-01", "0x1F", "+7"]
)
def test_names_in_yaml_are_as_they_are_written(name: str) -> None:
    cluster = gp.Cluster.from_file(
        written(
            "c.yaml",
            f"accelerator_types: {{{name}: {{memory_gb: 16}}}}\n"
            f"nodes: [{{name: {name}, accelerator: {name}, num_gpus: 4, rack: {name}}}]\n",
        )
    )
    (node,) = cluster.nodes
    assert (node.name, node.accelerator, node.rack, cluster.accelerator_names) == (name, name, name, (name,))
    (quota, pin) = gp.read_constraints(
        written(
            "k.yaml",
            f"constraints:\n- {{kind: quota, tenant: {name}, gpus: 1}}\n- {{kind: pin, job: {name}, accelerators: [{name}]}}\n",
        )
    )
    assert (quota, pin) == (gp.Quota(name, gpus=1), gp.Pin(name, [name]))
    tenants = gp.TenantTree.from_file(written("t.yaml", f"tenants:\n  {name}: {{}}\n  x: {{parent: {name}}}\n")).tenants
    assert {(each.name, each.parent) for each in tenants} == {(name, None), ("x", name)}


def test_a_name_that_is_null_is_missing() -> None:
    assert "line 1 (node), field name: must be text, found None" in refusal(
        gp.Cluster.from_file, written("c.yaml", "nodes: [{name: null, accelerator: v100, num_gpus: 1}]")
    )
    cluster = gp.Cluster.from_file(written("c.yaml", "nodes: [{name: 'null', accelerator: v100, num_gpus: 1, rack: null}]"))
    assert (cluster.nodes[0].name, cluster.nodes[0].rack) == ("null", None)


@pytest.mark.parametrize("word", ["true", "yes", "on", "1"])
def test_words_for_true_in_yaml_are_accepted_for_booleans(word: str) -> None:
    text = f"constraints: [{{kind: quota, tenant: a, gpus: 1, borrowable: {word}}}]"
    assert gp.read_constraints(written("k.yaml", text)) == (gp.Quota("a", gpus=1, borrowable=True),)


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)), st.sampled_from(["", "+", " "]))
def test_numbers_as_they_are_printed_are_decimal(number: float, sign: str) -> None:
    for text in (repr(number), f"{number:g}", f"{number:.3f}", f"{number:E}", f"{number:.0f}."):
        assert decimal_hint(text if text.startswith("-") else sign + text) == ""


@given(st.integers(0, 10**9), st.integers(1, 3))
def test_the_decimal_form_is_the_number_that_was_written(number: int, zeros: int) -> None:
    assert decimal_hint(f"{'0' * zeros}{number}").split(", ")[0] == f"; write {number}"
    assert decimal_hint(f"{number:#x}") == decimal_hint(f"{number:#o}") == decimal_hint(f"{number:#b}") == f"; write {number}"
    if number >= 1000:
        assert decimal_hint(f"{number:_}") == f"; write {number}"
    assert decimal_hint(f"{number // 3600}:{number // 60 % 60:02}:{number % 60:02}") == f"; write {number}"


@pytest.mark.parametrize("text", ["0" * 5000, "1_" * 3000, "1:" * 3000 + "1_0", "1" * 5000, "0x" + "f" * 5000])
def test_numbers_of_too_many_digits(text: str) -> None:
    assert len(refusal(gp.Job, "a", num_gpus=text)) < 250
    assert len(refusal(gp.Job, "a", max_retries=text)) < 250


def test_slashes_and_colons_in_the_names_of_types() -> None:
    assert gp.Cluster.from_inline("a/010:4/2").accelerator_names == ("a/010",)


def test_counts_of_a_sweep(tmp_path: Path) -> None:
    text = "policies: [fifo]\ntraces: [{generate: {jobs: 3}}]\nclusters:\n- {v100: 1_6, k80: [8, 010]}\n"
    path = written(str(tmp_path / "w.yaml"), text)
    where = f"{path}, line 4, cluster, accelerator"
    assert refusal(gp.plan_sweep, path).splitlines() == [
        f"{where} type 'v100', field GPUs: must be a whole number of at least 0, found '1_6'; write 16",
        f"{where} type 'k80', field GPUs per node: must be a whole number of at least 1, found '010'; write 10, "
        "or 8 if it is octal",
    ]


@given(st.text(CHARACTERS))
def test_any_text_has_a_hint_or_none(text: str) -> None:
    assert decimal_hint(text) == "" or decimal_hint(text).startswith("; write ")
