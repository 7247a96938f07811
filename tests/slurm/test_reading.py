"""Parsing of what several releases of Slurm printed of the same scene (`tests/slurm/loopback/record.py`)."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.integrations.slurm.client.commands import RECORDED as RELEASES
from gavel_py.integrations.slurm.client.notation import StopSignal, as_number, as_words, expand, gpus_in, is_node_name, printable
from gavel_py.integrations.slurm.client.parsing import jobs_from, nodes_from, phase_of
from gavel_py.integrations.slurm.job_roles import (
    JobComment,
    NodeRange,
    annotated,
    eligibility_of,
    parse_annotation,
    parse_comment,
)
from gavel_py.integrations.slurm.partitions import partition_of
from tests.slurm.support import RECORDED
from tests.support.examples import CHARACTERS

every_release = pytest.mark.parametrize("version", RELEASES)


def recorded(command: str, version: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RECORDED / f"{command}-{version}.json").read_text())
    return document


def test_there_is_a_recording_of_each_release_that_the_driver_takes_without_a_warning() -> None:
    for command in ("squeue", "sinfo"):
        assert sorted(path.name for path in RECORDED.glob(f"{command}-*.json")) == [f"{command}-{name}.json" for name in RELEASES]


@every_release
def test_nodes(version: str) -> None:
    nodes = nodes_from(recorded("sinfo", version))
    assert {name: dict(node.gpus) for name, node in nodes.items()} == {
        f"{kind}-{number}": {kind: 4} for kind in ("k80", "p100", "v100") for number in (0, 1)
    }
    assert {node.partitions for node in nodes.values()} == {frozenset({"opt", "free"})}
    assert {(node.cpus, node.memory_mb) for node in nodes.values()} == {(16, 64000.0)}
    assert {name for name, node in nodes.items() if "DRAIN" in node.states} == {"k80-1"}
    # Equal nodes whose jobs have different numbers of CPUs are told apart.
    assert {name: (node.used.gpus, node.used.cpus) for name, node in nodes.items()} == {
        "k80-0": (1, 12),
        "k80-1": (0, 0),
        "p100-0": (4, 1),
        "p100-1": (2, 1),
        "v100-0": (1, 8),
        "v100-1": (1, 4),
    }


@every_release
def test_jobs(version: str) -> None:
    jobs, unreadable = jobs_from(recorded("squeue", version))
    assert unreadable == ()
    assert {job_id: str(job.phase) for job_id, job in jobs.items()} == {
        **dict.fromkeys(["101", "102", "103_0", "103_1", "103_2", "103_3", "103_7", "108", "111"], "waiting"),
        **dict.fromkeys(["104", "106", "107"], "running"),
        "105": "cancelled",
        "109": "finished",
        "110": "failed",
    }
    requeued, typed, task, running, uneven, alone = (jobs[job_id] for job_id in ("101", "102", "103_7", "104", "106", "108"))
    assert (requeued.num_gpus, requeued.restarts, requeued.is_held) == (3, 1, False)
    bound = {job_id for job_id, job in jobs.items() if job.leases == ("111",)}
    assert bound == {"101", "102", "103_0", "103_1", "103_2", "103_3", "103_7", "108"}
    assert not any(job.dependency for job in jobs.values())
    assert (requeued.required_nodes, requeued.comment) == (("v100-0",), "gavel: type=bert steps=200000")
    assert (typed.requested, typed.nodes, typed.one_node, typed.time_limit_seconds) == ({"v100": 4}, 2, False, 3600.0)
    assert (task.num_gpus, task.array, task.max_tasks) == (1, "103", 2)
    assert running.held == {"p100-0": 4, "p100-1": 2}
    assert {node: usage.cpus for node, usage in uneven.used.items()} == {"v100-0": 8, "v100-1": 4}
    assert {job_id for job_id, job in jobs.items() if job.obstacles} == ({"108"} if alone.tells_sharing else set())


@pytest.mark.parametrize(
    ("version", "annotation", "why"),
    [
        ("24.11", "", "it requests whole nodes (--exclusive)"),
        ("26.05", "gavel:submit=1700000000;alone;place=any", "it requests whole nodes (--exclusive)"),
        ("26.05", "", "neither this release of Slurm nor the plugin says whether it requests whole nodes (--exclusive)"),
        ("26.05", "gavel:submit=1700000000;shared;place=any", ""),
    ],
)
def test_jobs_that_request_whole_nodes_are_left_to_slurm(version: str, annotation: str, why: str) -> None:
    job = replace(jobs_from(recorded("squeue", version))[0]["108"], admin_comment=annotation, priority=1.0)
    assert eligibility_of(job, ["opt"], job.submit_seconds).why == why
    kept = parse_annotation(annotated(annotation, 1.0, "any") or "")
    assert kept is not None
    assert kept.is_alone == {"alone": True, "shared": False}.get(annotation.split(";")[-2] if annotation else "")


def test_nodes_that_share_their_gpus_are_left_out_with_the_reason() -> None:
    document = recorded("sinfo", "24.11")
    for entry in document["sinfo"]:
        if entry["nodes"]["nodes"] == ["v100-0"]:
            entry["gres"]["total"] += ",shard:v100:16"
    managed = partition_of(nodes_from(document).values(), gp.SlurmSettings("opt"), ("v100", "p100", "k80"), {})
    assert "v100-0" not in {node.name for node in managed.cluster.nodes}
    assert managed.notes == ("node v100-0 gives jobs parts of GPUs (shard) and is ignored",)


def test_an_unreadable_job_is_reported_and_the_others_are_read() -> None:
    document = recorded("squeue", "22.05")
    document["jobs"][0]["required_nodes"] = "a[1-"
    document["jobs"][3] = {"job_id": "nonsense"}
    document["jobs"][4] |= {"job_id": 206, "array_job_id": 206, "array_task_string": "0-99999", "job_state": "PENDING", "nodes": ""}
    jobs, unreadable = jobs_from(document)
    assert {"101", "102", "103_0", "103_1", "103_2", "103_3", "103_7", "206"} <= set(jobs)
    assert unreadable == (
        "job 101: is not a list of nodes: 'a[1-'",
        "job nonsense: has no number",
        "job 206: its array has more than 10,000 waiting tasks",
    )
    assert jobs["101"].obstacles == ("it cannot be read: is not a list of nodes: 'a[1-'",)
    assert jobs["206"].obstacles == ("it cannot be read: its array has more than 10,000 waiting tasks",)


@pytest.mark.parametrize("entry", [None, "x", 7, [], {"job_id": math.inf}, {"job_id": 5, "cpus": 10**400}])
def test_a_job_of_unexpected_structure_is_reported_and_the_others_are_read(entry: Any) -> None:
    document = recorded("squeue", "22.05")
    jobs, unreadable = jobs_from({"jobs": [entry, *document["jobs"]]})
    assert jobs == jobs_from(document)[0]
    assert len(unreadable) == 1


junk = st.sampled_from([None, "", "x", "gpu:", "v100-[0-", [], {}, [None], -1, math.inf, math.nan, 10**400, True, {"set": True}])


@every_release
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


@pytest.mark.parametrize("begin", [0.0, 1_800_000_000.0])
def test_the_begin_that_a_user_requested_stays_in_an_annotation(begin: float) -> None:
    noted = f"gavel:submit=1700000000;shared;begin={begin:.0f};place=any"
    mark = parse_annotation(annotated(noted, 1_700_000_000.0, "node") or "")
    assert mark is not None
    assert (mark.begin_seconds, mark.is_alone, mark.place) == (begin, False, "node")


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


@pytest.mark.parametrize(
    ("listed", "dependency", "leases"),
    [
        ("", "", ()),
        ("afterany:9(unfulfilled)", "", ("9",)),
        ("afterany:7(unfulfilled)", "afterany:7", ()),
        ("afterok:9(unfulfilled)", "afterok:9", ()),
        ("afterok:7_*(unfulfilled),singleton(unfulfilled),afterany:9(unfulfilled)", "afterok:7_*,singleton", ("9",)),
        ("afterany:9(unfulfilled),afterany:8(unfulfilled)", "afterany:8", ("9",)),
        ("afterok:7(unfulfilled)?afterany:8(failed)", "afterok:7?afterany:8", ()),
    ],
)
def test_leases_are_told_from_what_users_want_jobs_to_wait_for(listed: str, dependency: str, leases: tuple[str, ...]) -> None:
    entries = [
        {"job_id": 1, "job_state": "PENDING", "dependency": listed},
        {"job_id": 9, "job_state": "PENDING", "name": "gavel-driver"},
    ]
    jobs, unreadable = jobs_from({"jobs": entries})
    assert unreadable == ()
    assert (jobs["1"].dependency, jobs["1"].leases) == (dependency, leases)


def test_a_dependency_that_could_not_be_written_back_makes_a_job_unreadable() -> None:
    jobs, unreadable = jobs_from({"jobs": [{"job_id": 1, "job_state": "PENDING", "dependency": "afterok:7 Priority=9"}]})
    assert unreadable == ("job 1: has the dependency afterok:7 Priority=9",)
    assert jobs["1"].obstacles == ("it cannot be read: has the dependency afterok:7 Priority=9",), "its GPUs still count"


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
        ({"partition": "gpu", "poll_seconds": 0}, "field poll_seconds: must be greater than 0, found 0"),
        ({"partition": "gpu", "lease": -1}, "field lease: must be greater than 0, found -1"),
        ({"partition": "gpu", "on_exit": "leav"}, "field on_exit: must be one of 'leave' or 'release', found 'leav'"),
    ],
)
def test_wrong_settings(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(gp.InputError, match=text):
        gp.SlurmSettings(**fields)
