"""Parsing of recordings from Slurm 22.05, and of the same cluster in the format of 24.05."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.integrations.slurm.client.notation import StopSignal, as_number, as_words, expand, gpus_in, is_node_name, printable
from gavel_py.integrations.slurm.client.parsing import jobs_from, nodes_from, phase_of
from gavel_py.integrations.slurm.job_roles import JobComment, NodeRange, annotated, parse_annotation, parse_comment
from tests.slurm.support import RECORDED
from tests.support.examples import CHARACTERS

both_shapes = pytest.mark.parametrize("version", ["22.05", "24.05"])


def recorded(command: str, version: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RECORDED / f"{command}-{version}.json").read_text())
    return document


@both_shapes
def test_nodes(version: str) -> None:
    nodes = nodes_from(recorded("sinfo", version))
    assert {name: dict(node.gpus) for name, node in nodes.items()} == {
        "k80-1": {"k80": 4},
        "v100-0": {"v100": 4},
        "v100-1": {"v100": 4},
    }
    assert {node.partitions for node in nodes.values()} == {frozenset({"opt", "free"})}
    assert {(node.cpus, node.memory_mb) for node in nodes.values()} == {(16, 64000.0)}
    assert "DRAIN" in nodes["k80-1"].states
    assert "DRAIN" not in nodes["v100-0"].states


@both_shapes
def test_jobs(version: str) -> None:
    jobs, unreadable = jobs_from(recorded("squeue", version))
    assert unreadable == ()
    assert {job_id: str(job.phase) for job_id, job in jobs.items()} == {
        "101": "waiting",
        "102": "waiting",
        **dict.fromkeys(["103_0", "103_1", "103_2", "103_3", "103_7"], "waiting"),
        "104": "running",
        "105": "cancelled",
    }
    requeued, typed, task, running = (jobs[job_id] for job_id in ("101", "102", "103_7", "104"))
    assert (requeued.num_gpus, requeued.restarts, requeued.is_held) == (3, 1, True)
    assert (requeued.required_nodes, requeued.comment) == (("v100-0",), "gavel: type=bert steps=200000")
    assert (typed.requested, typed.nodes, typed.one_node, typed.time_limit_seconds) == ({"v100": 4}, 2, False, 3600.0)
    assert (task.num_gpus, task.array, task.max_tasks) == (1, "103", 2)
    assert sum(running.held.values()) == 6
    assert set(running.held) == {"p100-0", "p100-1"}
    assert all(not job.obstacles for job in jobs.values())


def test_both_json_formats_describe_the_same_cluster() -> None:
    assert nodes_from(recorded("sinfo", "22.05")) == nodes_from(recorded("sinfo", "24.05"))
    assert jobs_from(recorded("squeue", "22.05")) == jobs_from(recorded("squeue", "24.05"))


def test_an_unreadable_job_is_reported_and_the_others_are_read() -> None:
    document = recorded("squeue", "22.05")
    document["jobs"][0]["required_nodes"] = "a[1-"
    document["jobs"][3] = {"job_id": "nonsense"}
    document["jobs"][4] |= {"job_id": 106, "array_job_id": 106, "array_task_string": "0-99999", "job_state": "PENDING", "nodes": ""}
    jobs, unreadable = jobs_from(document)
    assert set(jobs) == {"101", "102", "103_0", "103_1", "103_2", "103_3", "103_7", "106"}
    assert unreadable == (
        "job 101: is not a list of nodes: 'a[1-'",
        "job nonsense: has no number",
        "job 106: its array has more than 10,000 waiting tasks",
    )
    assert jobs["101"].obstacles == ("it cannot be read: is not a list of nodes: 'a[1-'",)
    assert jobs["106"].obstacles == ("it cannot be read: its array has more than 10,000 waiting tasks",)


@pytest.mark.parametrize("entry", [None, "x", 7, [], {"job_id": math.inf}, {"job_id": 5, "cpus": 10**400}])
def test_a_job_of_unexpected_structure_is_reported_and_the_others_are_read(entry: Any) -> None:
    document = recorded("squeue", "22.05")
    jobs, unreadable = jobs_from({"jobs": [entry, *document["jobs"]]})
    assert jobs == jobs_from(document)[0]
    assert len(unreadable) == 1


junk = st.sampled_from([None, "", "x", "gpu:", "v100-[0-", [], {}, [None], -1, math.inf, math.nan, 10**400, True, {"set": True}])


@both_shapes
@pytest.mark.parametrize("command", ["squeue", "sinfo"])
@given(data=st.data())
def test_json_of_unexpected_structure_is_read_or_an_error_of_slurm(command: str, version: str, data: st.DataObject) -> None:
    """The driver waits after errors of Slurm, and would end after any other."""
    document = recorded(command, version)
    (entries,) = [document[name] for name in ("jobs", "nodes", "sinfo") if name in document]
    at = data.draw(st.integers(0, len(entries) - 1))
    if data.draw(st.booleans()):
        entries[at] |= data.draw(st.dictionaries(st.sampled_from(sorted(entries[at])), junk, min_size=1, max_size=3))
    else:
        entries[at] = data.draw(junk)
    with suppress(gp.SlurmError):
        (jobs_from if command == "squeue" else nodes_from)(document)


@pytest.mark.parametrize(
    ("words", "phase"),
    [
        ("PENDING", "waiting"),
        ("CONFIGURING", "running"),
        ("COMPLETING", "stopping"),
        (["COMPLETED", "COMPLETING"], "finished"),
        (["RUNNING", "COMPLETING"], "stopping"),
        (["PENDING", "REQUEUED"], "stopping"),
        ("SPECIAL_EXIT", "waiting"),
        (["PENDING", "SPECIAL_EXIT"], "waiting"),
        (["COMPLETING", "SPECIAL_EXIT"], "stopping"),
        ("TIMEOUT", "failed"),
        ("NODE_FAIL", "failed"),
        ("SUSPENDED", "running"),
    ],
)
def test_phases(words: Any, phase: str) -> None:
    assert phase_of(as_words(words)) == phase


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("", {}),
        ("gpu:4", {"": 4}),
        ("gpu:v100:4(S:0-1)", {"v100": 4}),
        ("gres:gpu:nvidia_a100-sxm4-40gb:8", {"nvidia_a100-sxm4-40gb": 8}),
        ("gpu:v100:2(IDX:0,2),gpu:k80:1(IDX:0),mps:100", {"v100": 2, "k80": 1}),
        ("gres/gpu=2", {"": 2}),
        ("gres/gpu:v100=2", {"v100": 2}),
        ("shard:4,gpu:0", {"": 0}),
        ("N/A", {}),
        ("(null)", {}),
    ],
)
def test_gpus(text: str, gpus: dict[str, int]) -> None:
    assert gpus_in(text) == gpus


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("a", ["a"]),
        ("a,b-1", ["a", "b-1"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[3,5]x,z", ["r1n3x", "r1n5x", "r2n3x", "r2n5x", "z"]),
    ],
)
def test_lists_of_nodes(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["a b", "a;b", "-a", "a[0-999999999]", "a[1-9]x[1-99999]", "a[", "a\n", "$(x)"])
def test_invalid_node_lists(text: str) -> None:
    with pytest.raises(ValueError, match=r"list of nodes|more than"):
        expand(text)


@given(st.text(CHARACTERS))
def test_node_names_are_safe(text: str) -> None:
    try:
        names = expand(text)
    except ValueError:
        return
    assert all(map(is_node_name, names))


@given(st.text(CHARACTERS))
def test_any_comment_can_be_read(text: str) -> None:
    parsed = parse_comment(text)
    assert parsed.total_steps is None or parsed.total_steps > 0
    assert not any(ord(letter) < 32 for letter in parsed.job_type + parsed.problem + printable(text))


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("", JobComment()),
        ("my thesis", JobComment()),
        ("gavel: type=bert steps=10", JobComment("bert", 10.0)),
        ("thesis; gavel: steps=1e3, type='a b'", JobComment("a b", 1000.0)),
        ("gavel: type=bert gavel-hold", JobComment("bert", is_held=True)),
        ("gavel-hold", JobComment(is_held=True)),
        ("gavel: warn=B:SIGUSR1@60", JobComment(warn=StopSignal("USR1", 60.0, to_script=True))),
        ("gavel: warn=10", JobComment(warn=StopSignal("USR1"))),
        ("gavel: gpus=4,1,2 steps=10", JobComment(total_steps=10.0, gpu_counts=(1, 2, 4))),
        ("gavel: gpus='8, 4'; type=bert", JobComment("bert", gpu_counts=(4, 8))),
        ("gavel: gpus=8", JobComment(gpu_counts=(8,))),
        ("gavel: gpus=1,two", JobComment(problem="gpus=1,two is not a list of whole numbers such as 1,2,4")),
        ("gavel: gpus=0,1", JobComment(problem="gpus=0,1 is not a list of whole numbers such as 1,2,4")),
        ("gavel: warn=no", JobComment(is_unwarned=True)),
        ("gavel: warn=KILL", JobComment(problem="warn=KILL is not a signal such as USR1@60 or B:USR1@60, or no")),
        ("gavel: steps=nan", JobComment(problem="steps=nan is not a number greater than 0")),
        ("gavel: weight=9", JobComment(problem="weight= is not known in a comment; known: type, steps, warn, gpus")),
    ],
)
def test_comments(comment: str, expected: JobComment) -> None:
    assert parse_comment(comment) == expected


ranges_drawn = st.none() | st.builds(NodeRange, st.integers(1, 999_999), st.integers(0, 999_999), st.integers(1, 999_999))


@given(st.text(st.characters(max_codepoint=127)), st.integers(0, 10**11), st.sampled_from(["any", "node"]), ranges_drawn)
def test_annotations_survive_a_round_trip_and_are_safe_in_a_command(
    text: str, seconds: int, place: Any, nodes: NodeRange | None
) -> None:
    written = annotated(text, float(seconds), place, nodes)
    if written is None:
        return
    mark = parse_annotation(written)
    assert mark is not None
    assert (mark.submit_seconds, mark.place, mark.nodes) == (seconds, place, nodes)
    assert not set(written) & set(" \"'\\\n;") - {";"}
    assert annotated(written, float(seconds), place, nodes) == written


def test_numbers() -> None:
    assert as_number(None) is None
    assert as_number({"set": True, "infinite": True, "number": 0}) is None
    assert as_number(4294967294) is None
    assert as_number(True) is None


def test_rules_from_a_file(tmp_path: Any) -> None:
    path = tmp_path / "types.csv"
    path.write_text("name,job_type,total_steps\nbert*,bert,100\nlstm,lstm,\n")
    assert gp.TypeRule.from_csv(path) == (gp.TypeRule("bert*", "bert", 100.0), gp.TypeRule("lstm", "lstm"))
    path.write_text("name,job_type,total_steps\nbert*,bert,many\n")
    with pytest.raises(gp.InputError, match=r"line 2, field total_steps: must be a number greater than 0, found 'many'"):
        gp.TypeRule.from_csv(path)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"partition": "a b"}, "'a b' is not a valid partition name"),
        ({"partition": "gpu", "poll_seconds": 0}, "field poll_seconds: must be a finite number greater than 0, found 0"),
        ({"partition": "gpu", "on_exit": "leav"}, "'leav' is not known; did you mean 'leave'"),
    ],
)
def test_wrong_settings(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(gp.InputError, match=text):
        gp.SlurmSettings(**fields)
