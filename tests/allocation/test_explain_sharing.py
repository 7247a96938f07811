"""Explanations of jobs that share GPUs: their partners, and why two given jobs do not share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.end_to_end.test_cli import Gavel, gavel
from tests.optimization.test_pairs import best_of, cases, columns_of, problem_of
from tests.support.examples import examples

__all__ = ["gavel"]

LITTLE = 1e-4

JOBS = """job_id,job_type,num_gpus,total_steps
a,LM (batch size 80),1,1000
b,ResNet-18 (batch size 64),1,1000
c,LM (batch size 80),1,1000
wide,ResNet-18 (batch size 64),2,1000
"""


@pytest.fixture
def jobs(tmp_path: Path, gavel: Gavel) -> list[str]:  # noqa: ARG001
    (tmp_path / "pairs.csv").write_text(JOBS)
    return ["pairs.csv", "--cluster", "v100:2", "--sharing"]


@settings(max_examples=examples(40, costly=True))
@given(case=cases(), policy=st.sampled_from(["max_min_fairness", "max_total_throughput"]), data=st.data())
def test_the_price_of_a_pair_is_what_the_objective_loses_at_least(case: dict[str, Any], policy: str, data: st.DataObject) -> None:
    """The program over all pairs of jobs, with a little time that the two must share, loses that much or more."""
    problem = problem_of(case)
    assume(len(problem.excluded) < problem.num_jobs)
    pairs = [(n, who, j) for n, (who, j, _) in enumerate(columns_of(problem)) if len(who) == 2]
    assume(pairs)
    n, (one, other), j = data.draw(st.sampled_from(pairs))
    told = gp.explain(problem, problem.job_ids[one], policy, partner=problem.job_ids[other]).together
    here = next((each for each in told if each.accelerator == problem.accelerator_types[j]), None)
    if here is None or here.price is None:
        return
    try:
        forced = best_of(problem, policy, (n, LITTLE))
    except TypeError:  # there is no GPU for it
        return
    value = best_of(problem, policy)
    assert forced <= value - here.price * LITTLE + 1e-7 * max(1.0, abs(value))
    assert (here.price > 0) == (here.kind == "price")


def test_what_is_worth_more_elsewhere_by_hand() -> None:
    """One GPU for three jobs, equally fast alone: two do 0.9 each together, which makes 1.8, and 0.6 beside the third, 1.2."""
    table = np.zeros((3, 3, 1))
    table[0, 1] = table[1, 0] = 0.9
    table[0, 2] = table[2, 0] = table[1, 2] = table[2, 1] = 0.6
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 3, [1], pair_kinds=[0, 1, 2], pair_throughputs=table)
    explanation = gp.explain(problem, "0", "max_total_throughput", partner="2")
    assert [each.job_id for each in explanation.partners] == ["1"]
    assert explanation.partners[0].time_fraction == pytest.approx(1.0)
    (answer,) = explanation.together
    assert (answer.kind, answer.gain) == ("price", pytest.approx(1.2))
    assert answer.price == pytest.approx(0.6)  # of the 1.8 that the GPU could give


@pytest.mark.parametrize(
    ("change", "other", "kind", "text"),
    [
        ({}, "1", "shares", "they share for 100.0% of the time, and do 1.8 times what one does alone"),
        ({"num_gpus": [1, 1, 2]}, "2", "gangs", "its gang has 1 GPU and that of 2 2, and only equal gangs share"),
        ({"num_gpus": [1, 1, 0.5], "pair_kinds": [0, 1, -1]}, "2", "gangs", "pairs are of whole GPUs, and 2 asks for 0.5 of one"),
        ({"pair_kinds": [0, 1, -1]}, "2", "unknown", "nothing is known of how fast the two are beside other jobs"),
        ({}, "2", "unmeasured", "no throughput of the two together was measured, or one of them cannot run beside the other"),
        ({"throughputs": [[1.0], [1.0], [0.0]]}, "2", "excluded", "2 gets no time: "),
    ],
)
def test_why_two_jobs_share_or_do_not(change: dict[str, Any], other: str, kind: str, text: str) -> None:
    table = np.zeros((3, 3, 1))
    table[0, 1] = table[1, 0] = 0.9
    case = {"throughputs": [[1.0]] * 3, "capacities": [2], "pair_kinds": [0, 1, 2], "pair_throughputs": table} | change
    answers = gp.explain(gp.AllocationProblem.from_arrays(**case), "0", "max_total_throughput", partner=other).together
    assert [each.kind for each in answers] == [kind]
    assert text in answers[0].text


def test_a_pair_that_gains_nothing_takes_turns() -> None:
    table = [[[0.0], [0.5]], [[0.5], [0.0]]]
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 2, [1], pair_kinds=[0, 1], pair_throughputs=table)
    (answer,) = gp.explain(problem, "0", partner="1").together
    assert (answer.kind, answer.gain) == ("no gain", 1.0)
    assert "and in turns they do as much" in answer.text


def test_memory_keeps_two_jobs_apart() -> None:
    kinds = [gp.AcceleratorType(name="v100", memory_gb=16)]
    cluster = gp.Cluster([gp.Node(name="n", accelerator="v100", num_gpus=1)], kinds)
    names = ("LM (batch size 80)", "ResNet-18 (batch size 64)")
    jobs = [gp.Job(job_id, job_type=name, gpu_memory_gb=size) for job_id, name, size in zip("ab", names, (10, 7), strict=True)]
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, gp.ThroughputProfile.builtin("gavel-osdi20"), sharing=True)
    (answer,) = gp.explain(problem, "a", partner="b").together
    assert (answer.kind, answer.text) == ("memory", "v100: together they take more memory than a GPU there has")


def test_equal_jobs_are_as_good_as_partners() -> None:
    table = [[[0.0], [0.9]], [[0.9], [0.0]]]
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 4, [2], pair_kinds=[0, 0, 1, 1], pair_throughputs=table)
    kinds = {other: gp.explain(problem, "0", partner=other).together[0].kind for other in ("2", "3")}
    assert sorted(kinds.values()) == ["others", "shares"]


def test_holders_hold_half_of_what_they_share() -> None:
    table = [[[0.0], [0.9], [0.0]], [[0.9], [0.0], [0.0]], [[0.0], [0.0], [0.0]]]
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 3, [1], pair_kinds=[0, 1, 2], pair_throughputs=table)
    explanation = gp.explain(problem, "2")
    held = {holder.job_id: holder.gpus["type-0"] for holder in explanation.holders}
    assert held["0"] == pytest.approx(held["1"])
    assert sum(held.values()) + explanation.gpus["type-0"] == pytest.approx(1.0)
    assert [binding.name for binding in explanation.bindings if binding.kind == "gpus"] == ["type-0"]


@pytest.mark.parametrize(
    ("other", "message"),
    [("0", "partner: must be another job than '0' itself"), ("7", "there is no job '7'")],
)
def test_a_wrong_partner_is_refused(other: str, message: str) -> None:
    problem = gp.AllocationProblem.from_arrays([[1.0]] * 2, [1], pair_kinds=[0, 0], pair_throughputs=[[[0.9]]])
    with pytest.raises(gp.InputError, match=message):
        gp.explain(problem, "0", partner=other)


def test_a_partner_without_pairs_is_refused() -> None:
    with pytest.raises(gp.InputError, match="partner: the problem knows no pairs of jobs that could share GPUs"):
        gp.explain(gp.AllocationProblem.from_arrays([[1.0]] * 2, [1]), "0", partner="1")


def test_the_command_shows_partners_and_reasons(gavel: Gavel, jobs: list[str]) -> None:
    outcome = gavel("explain", "a", *jobs, "--with", "wide")
    assert (outcome.code, outcome.err) == (0, "")
    assert "Jobs that share its GPUs" in outcome.out
    assert ["b", "v100"] in [line.split()[:2] for line in outcome.out.splitlines()]
    assert "Does it share GPUs with wide?" in outcome.out
    assert "- its gang has 1 GPU and that of wide 2, and only equal gangs share" in outcome.out


def test_the_document_is_read_as_it_was_written(gavel: Gavel, jobs: list[str]) -> None:
    document = json.loads(gavel("explain", "a", *jobs, "--with", "b", "--json").out)
    explanation = gp.Explanation.from_dict(document)
    assert {"schema_version": 2} | explanation.to_dict() == document
    assert explanation.together[0].kind in {"shares", "others"}
    assert explanation.partners


def test_a_matrix_of_jobs_knows_no_pairs(gavel: Gavel, jobs: list[str], tmp_path: Path) -> None:
    (tmp_path / "speeds.csv").write_text("job_id,v100\na,1\nb,1\nc,1\nwide,1\n")
    outcome = gavel("explain", "a", *jobs, "--throughputs", "speeds.csv")
    assert outcome.code == 2
    assert "has no speeds of jobs that share GPUs, which --sharing needs" in outcome.err


def test_no_partners_without_pairs(gavel: Gavel, jobs: list[str]) -> None:
    assert "It shares GPUs with no other job.\n" in gavel("explain", "wide", *jobs).out
    assert "Jobs that share" not in gavel("explain", "a", *jobs[:-1]).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--with", "b"], "--with explains whether two jobs share GPUs; add --sharing"),
        (["--sharing", "--with", "z"], "there is no job 'z'"),
        (["--sharing", "--profile", "nvidia-2023"], "profile 'nvidia-2023'"),
        (["--sharing", "-p", "fifo"], "policy fifo: solves no program, so it cannot decide which jobs share GPUs"),
    ],
)
def test_what_cannot_be_asked_is_refused(gavel: Gavel, jobs: list[str], arguments: list[str], message: str) -> None:
    outcome = gavel("explain", "a", *jobs[:-1], *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert "Traceback" not in outcome.err
