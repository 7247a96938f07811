"""Rounds whose solve fails: throughputs are rounded, or times kept; whatever the jobs are, rounds stay valid."""

from __future__ import annotations

import copy
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.optimization.job_classes import rounded
from tests.optimization.test_placement_kinds import measured, nodes_of
from tests.scheduling.schedulers import PROFILE, job, scheduler
from tests.scheduling.test_elastic_rounds import PROFILE as ELASTIC
from tests.support.commands import enter_folder, runner, written
from tests.support.profiles import OSDI

SECONDS = 10.0


@dataclass
class Breaks:
    """Which solves fail: none, those at throughputs that are not rounded, or all."""

    which: Literal["none", "exact", "all"] = "none"
    error: type[Exception] = gp.ProofError
    solves: int = 0


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Breaks:
    solve, found = gp.Solver.solve, Breaks()

    def solve_or_fail(solver: gp.Solver, problem: gp.AllocationProblem) -> gp.Allocation:
        found.solves += 1
        is_exact = not np.array_equal(problem.throughputs, rounded(problem).throughputs)
        if found.which == "all" or (found.which == "exact" and is_exact):
            raise found.error("no solution route led to a proven answer\n  none, simplex: it was broken on purpose")
        return solve(solver, problem)

    monkeypatch.setattr(gp.Solver, "solve", solve_or_fail)
    return found


@dataclass(frozen=True)
class Case:
    """A cluster with jobs at first and later."""

    cluster: str | gp.Cluster
    profile: Any
    jobs: Sequence[gp.Job]
    later: Sequence[gp.Job]
    options: dict[str, Any]

    def scheduler(self) -> gp.RoundScheduler:
        cluster = gp.Cluster.from_inline(self.cluster) if isinstance(self.cluster, str) else self.cluster
        made = gp.RoundScheduler(cluster, self.profile, round_seconds=SECONDS, **self.options)
        made.submit_all(self.jobs)
        return made


def shared_job(job_id: str, kind: int, **fields: Any) -> gp.Job:
    return gp.Job(job_id, job_type=("LM (batch size 80)", "ResNet-18 (batch size 64)")[kind % 2], total_steps=1e7, **fields)


def elastic_job(job_id: str, kind: int) -> gp.Job:
    return gp.Job(job_id, job_type=("resnet", "bert", "lm")[kind % 3], gpu_counts=(1, 2, 4, 8), total_steps=1e7)


CASES = {
    "gangs": Case("v100:8/4,k80:4/2", PROFILE, [job(f"a{i}", 1 + i % 4) for i in range(7)], [job("b0", 4), job("b1", 1)], {}),
    "types": Case(
        "v100:4/2,k80:4/2",
        PROFILE,
        [job(f"a{i}", 2, allowed_accelerators=("k80",) if i % 2 else None) for i in range(5)],
        [job("b0", 2, allowed_accelerators=("v100",)), job("b1", 1, "stuck", allowed_accelerators=("v100",))],
        {"policy": "max_total_throughput"},
    ),
    "pairs": Case(
        "v100:2/1,k80:1",
        OSDI,
        [shared_job(f"a{i}", i) for i in range(6)],
        [shared_job("b0", 0), shared_job("b1", 1)],
        {"sharing": True},
    ),
    "elastic": Case(
        "v100:16/8,k80:8/4",
        ELASTIC,
        [*(elastic_job(f"a{i}", i) for i in range(4)), gp.Job("fixed", job_type="resnet", num_gpus=2, total_steps=1e7)],
        [elastic_job("b0", 1), elastic_job("b1", 2)],
        {},
    ),
    "placements": Case(
        nodes_of(3, 3, 3),
        measured(("t0", 2, 4.0, 3.0), ("t1", 2, 2.0, 2.5), ("t2", 4, 5.0, 4.0)),
        [gp.Job(f"a{i}", job_type=f"t{i % 3}", num_gpus=(2, 2, 4)[i % 3], total_steps=1e7) for i in range(4)],
        [gp.Job("b0", job_type="t0", num_gpus=2, total_steps=1e7)],
        {},
    ),
    "fractions": Case("v100:2/1", PROFILE, [job(f"a{i}", (0.5, 0.25, 1)[i % 3]) for i in range(7)], [job("b0", 0.5)], {}),
    "workflows": Case(
        "v100:3/1",
        PROFILE,
        [job("a0", workflow="w"), job("a1", workflow="w", depends_on=("a0",)), job("a2"), job("a3", 2)],
        [job("b0", workflow="w", depends_on=("a0",)), job("b1")],
        {},
    ),
}


def check(round_: gp.Round, made: gp.RoundScheduler, jobs: Sequence[gp.Job]) -> None:
    """Assert that gangs are whole, on one allowed type, and that no GPU has more jobs than it may."""
    by_id = {each.job_id: each for each in jobs}
    used: Counter[tuple[str, int]] = Counter()
    for job_id, held in round_.assignments.items():
        asked = by_id[job_id]
        assert len(set(held.gpus)) == len(held.gpus)
        assert len(held.gpus) in (asked.gpu_counts or (int(np.ceil(asked.num_gpus)),))
        assert asked.allowed_accelerators is None or held.accelerator in asked.allowed_accelerators
        used.update(dict.fromkeys(held.gpus, held.gpu_part / (1 + len(held.shared_with))))
    assert max(used.values(), default=0.0) <= 1 + 1e-9
    if made.allocation is not None and made.allocation.evidence is not None:
        made.allocation.verify()  # also of pairs, numbers of GPUs, and room for whole gangs


@pytest.mark.parametrize("name", CASES)
def test_times_are_kept_and_the_others_share_what_is_free_until_the_next_change(name: str, breaks: Breaks, tmp_path: Path) -> None:
    case = CASES[name]
    made, everyone = case.scheduler(), [*case.jobs, *case.later]
    for _ in range(2):
        check(made.next_round(), made, everyone)
    before = made.allocation
    assert before is not None
    breaks.which = "all"
    made.submit_all(case.later)
    broken = made.next_round()
    check(broken, made, everyone)
    assert broken.fallback == gp.Fallback(made.policy.label, "kept")
    assert "it was broken on purpose" in broken.notes[0]
    after = made.allocation
    assert after is not None
    assert (after.status, after.objective_value, after.gap) == (gp.AllocationStatus.KEPT, None, None)
    for job_id in before.job_ids:
        assert after[job_id]["time_fractions"] == pytest.approx(before[job_id]["time_fractions"], abs=1e-9)
    solves = breaks.solves
    assert made.next_round().fallback == broken.fallback
    assert breaks.solves == solves, "nothing has changed"
    made.save(tmp_path / "scheduler.json")
    three = [made, copy.deepcopy(made), gp.RoundScheduler.load(tmp_path / "scheduler.json", case.profile)]
    node = made.cluster.nodes[0].name
    for each in three:
        each.cancel("a0")
    assert_alike(three, everyone, fails=True)
    for each in three:
        each.node_down(node)
    assert_alike(three, everyone, fails=True)
    breaks.which = "none"
    for each in three:
        each.node_up(node)
    assert_alike(three, everyone, fails=False)
    assert {str(each.fallback_rounds) for each in three} == {str({made.policy.label: {"kept": 4}})}
    assert made.allocation is not None
    assert made.allocation.status is gp.AllocationStatus.OPTIMAL


def assert_alike(three: Sequence[gp.RoundScheduler], jobs: Sequence[gp.Job], *, fails: bool) -> None:
    """Assert that these schedulers have the same next round, that it is valid, and whether its solve fails."""
    rounds = [each.next_round() for each in three]
    assert rounds[0] == rounds[1] == rounds[2]
    assert (rounds[0].fallback is not None) is fails
    for each, round_ in zip(three, rounds, strict=True):
        check(round_, each, jobs)


def test_nearly_equal_throughputs_become_equal_and_the_round_says_so(breaks: Breaks, caplog: pytest.LogCaptureFixture) -> None:
    breaks.which = "exact"
    profile = gp.ThroughputProfile.from_matrix([[0.1], [0.1 + 1e-10]], job_ids=["a", "b"], accelerators=["v100"])
    made = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), profile)
    made.submit_all([gp.Job("a"), gp.Job("b")])
    with caplog.at_level(logging.WARNING):
        round_ = made.next_round()
    assert round_.fallback == gp.Fallback("max_min_fairness", "rounded")
    assert round_.notes == (
        "no proven answer of max_min_fairness was found (none, simplex: it was broken on purpose); "
        "throughputs were rounded to 1e-7 of themselves",
    )
    assert gp.Round.from_dict(round_.to_dict()) == round_
    assert caplog.messages == [f"round 0 at 0 s, number 1 without a solve: {round_.notes[0]}"]
    found = made.allocation
    assert found is not None
    assert found.status is gp.AllocationStatus.OPTIMAL
    assert found.verify().gap == pytest.approx(0, abs=1e-9)
    assert found.throughputs[0] == found.throughputs[1] == pytest.approx(0.05, rel=1e-7)
    assert found.throughputs[0] != 0.05
    breaks.which = "none"
    made.report("a", steps_done=1)
    assert made.next_round().fallback is None
    assert made.fallback_rounds == {"max_min_fairness": {"rounded": 1}}
    assert made.fallback_text == "Rounds without a proven answer of max_min_fairness: 1 with its answer for rounded throughputs."


def test_all_jobs_of_a_first_round_have_isolated_shares(breaks: Breaks) -> None:
    breaks.which = "all"
    jobs = [job("a"), job("b", 2), job("c", allowed_accelerators=("k80",)), job("d", 1, "stuck")]
    made = scheduler("v100:2/2,k80:1", jobs)
    assert made.next_round().fallback is not None
    breaks.which = "none"
    problem = gp.AllocationProblem.from_jobs(jobs, made.cluster, PROFILE)
    assert made.allocation is not None
    assert made.allocation.time_fractions == pytest.approx(gp.solve(problem, "isolated").time_fractions)
    assert made.allocation.excluded.keys() == {"d"}


def test_jobs_of_later_failures_share_equally_and_leave_what_was_solved_alone(breaks: Breaks) -> None:
    made = scheduler("v100:4", [job("a", 2)])
    made.next_round()
    breaks.which = "all"
    for job_id in "bcd":
        made.submit(job(job_id))
        made.next_round()
    assert made.allocation is not None
    assert made.allocation.time_fractions.ravel() == pytest.approx([1, 2 / 3, 2 / 3, 2 / 3])
    made.complete("a")
    made.next_round()
    assert made.allocation.time_fractions.ravel() == pytest.approx([1, 1, 1])


def test_the_next_change_is_solved_at_once_also_if_solves_are_far_apart(breaks: Breaks) -> None:
    made = scheduler("v100:4", [job("a")], solve_seconds=1e6)
    breaks.which = "all"
    made.next_round()
    breaks.which = "none"
    made.submit(job("b"))
    assert made.next_round().fallback is None


def test_jobs_that_start_within_such_a_round_follow_it(breaks: Breaks) -> None:
    made = scheduler("v100:4", [job("a")], round_seconds=SECONDS)
    breaks.which = "all"
    first = made.next_round()
    made.submit(job("b"))
    assert made.start_waiting(4.0).keys() == {"b"}
    made.plan_next()
    assert made.next_round().fallback == first.fallback
    assert made.allocation is not None
    assert made.allocation.time_fractions.ravel() == pytest.approx([1, 1])


@pytest.mark.parametrize("kind", ["gangs", "pairs", "elastic", "placements", "fractions"])
@pytest.mark.parametrize("first", [True, False])
def test_hard_limits_are_kept(kind: str, first: bool, breaks: Breaks) -> None:
    case = CASES[kind]
    jobs = [each.model_copy(update={"tenant": "xy"[i % 2]}) for i, each in enumerate([*case.jobs, *case.later])]
    limits = [
        gp.MaxGpus(tenant="x", gpus=1.5),
        gp.Quota(tenant="y", gpus=2, guaranteed=False, borrowable=False),
        gp.Forbid(job="a2", accelerators=("k80",)),
    ]
    limits = [each for each in limits if "k80" in str(case.cluster) or not isinstance(each, gp.Forbid)]
    made = replace(
        case,
        jobs=jobs[: len(case.jobs)],
        options={**case.options, "policy": gp.resolve_policy("max_min_fairness", constraints=limits)},
    ).scheduler()
    if not first:
        made.next_round()
    breaks.which = "all"
    made.submit_all(jobs[len(case.jobs) :])
    check(made.next_round(), made, jobs)
    allocation = made.allocation
    assert allocation is not None
    gpus = allocation.gpus.sum(axis=1)
    tenants = np.array([each.tenant for each in sorted(jobs, key=lambda each: allocation.job_ids.index(each.job_id))])
    assert gpus[tenants == "x"].sum() <= 1.5 + 1e-9
    assert gpus[tenants == "y"].sum() <= 2 + 1e-9
    assert all(each.kept for each in allocation.constraints)


def test_a_guarantee_that_cannot_be_given_without_a_solve_is_named(breaks: Breaks) -> None:
    policy = gp.resolve_policy("max_min_fairness", constraints=[gp.Quota(tenant="x", gpus=2), gp.MinThroughput(job="c", rate=4)])
    made = scheduler("v100:2", [job(i, tenant="y") for i in "abe"], policy=gp.resolve_policy("max_min_fairness"))
    made.next_round()
    breaks.which, made.policy = "all", policy
    made.submit_all([job("c", tenant="x"), job("d", tenant="x")])
    notes = made.next_round().notes
    assert "the quota of 2 GPUs for 'x' is not satisfied: it is missed by 100.00%" in notes[0]
    assert made.allocation is not None
    assert [each.missed_by for each in made.allocation.constraints] == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("error", [gp.InputError, gp.PolicyError])
def test_errors_of_the_input_are_raised(error: type[Exception], breaks: Breaks) -> None:
    breaks.which, breaks.error = "all", error
    made = scheduler("v100:1", [job("a")])
    with pytest.raises(error):
        made.next_round()
    assert made.fallback_rounds == {}


def test_conflicts_are_raised() -> None:
    policy = gp.resolve_policy("max_min_fairness", constraints=[gp.MinThroughput(job=i, rate=3) for i in "ab"])
    made = scheduler("v100:1", [job("a"), job("b")], policy=policy)
    with pytest.raises(gp.ConflictError):
        made.next_round()


def test_a_solve_is_not_repeated_once_its_time_is_over(breaks: Breaks) -> None:
    breaks.which = "exact"
    profile = gp.ThroughputProfile.from_matrix([[0.1]], job_ids=["a"], accelerators=["v100"])
    made = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), profile, time_limit_seconds=1e-9)
    made.submit(gp.Job("a"))
    assert made.next_round().fallback == gp.Fallback("max_min_fairness", "kept")
    assert breaks.solves == 1


def test_a_simulation_goes_on_and_counts_the_rounds(breaks: Breaks, tmp_path: Path) -> None:
    jobs = [gp.Job("a", total_steps=4000), gp.Job("b", total_steps=4000), gp.Job("c", total_steps=50, arrival_seconds=100)]
    profile = gp.ThroughputProfile.from_matrix([[1.0]] * 3, job_ids=list("abc"), accelerators=["v100"])
    simulation = gp.Simulation(jobs, gp.Cluster.from_counts({"v100": 2}), profile)
    simulation.step()
    breaks.which = "all"
    simulation.step()
    simulation.save(tmp_path / "simulation.json")
    for each in (simulation, gp.Simulation.load(tmp_path / "simulation.json", jobs, profile)):
        result = each.run()
        assert result.summary.outcomes["finished"] == 3
        assert result.summary.fallback_rounds == {"max_min_fairness": {"kept": result.summary.rounds - 1}}
        assert gp.SimulationResult.from_dict(result.to_dict()).summary == result.summary
        assert result.summary.fallback_text.startswith("Rounds without a proven answer of max_min_fairness: ")


def test_commands_say_which_rounds_had_no_proven_answer(
    breaks: Breaks, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    enter_folder(tmp_path, monkeypatch)
    written("s.csv", "job_id,g\na,0.1\nb,0.1\n")
    jobs, gavel, given = (
        written("j.csv", "job_id,total_steps\na,30\nb,30\n"),
        runner(capsys),
        ("-c", "g:1", "--throughputs", "s.csv"),
    )
    text = "Rounds without a proven answer of max_min_fairness: "
    breaks.which = "all"
    shown = " ".join(gavel("rounds", jobs, *given, "-n", "3").out.split())
    kept = "3 with the times of its last answer, or equal parts of the free GPUs."
    assert f"{text}{kept} no proven answer of max_min_fairness was found" in shown
    document = json.loads(gavel("rounds", jobs, *given, "-n", "3", "--json").out)
    assert document["fallback_rounds"] == {"max_min_fairness": {"kept": 3}}
    assert [each["fallback"] for each in document["rounds"]] == [{"policy": "max_min_fairness", "kind": "kept"}] * 3
    breaks.which = "exact"
    shown = " ".join(gavel("simulate", jobs, *given).out.split())
    assert f"{text}2 with its answer for rounded throughputs." in shown
    assert "rounds without a proven answer 2" in shown
    assert gavel("solve", jobs, *given).code == 1, "a single solve is strict"


def some_jobs(kind: str, draw: np.random.Generator, first: int, count: int) -> list[gp.Job]:
    """Return random jobs of the kind of one of the cases."""
    case, jobs = CASES[kind], list[gp.Job]()
    for i in range(first, first + count):
        model = case.jobs[draw.integers(len(case.jobs))]
        fields: dict[str, Any] = {
            "job_id": f"j{i}",
            "tenant": "xy"[draw.integers(2)],
            "depends_on": (),
            "weight": draw.uniform(0.5, 2),
        }
        if kind in ("gangs", "types"):
            fields |= {"num_gpus": int(draw.integers(1, 5)), "locality": str(draw.choice(["any", "node"]))}
        jobs.append(model.model_copy(update=fields))
    return jobs


LIMITS = (gp.MaxGpus(tenant="x", gpus=1.5), gp.Quota(tenant="y", gpus=1, guaranteed=False, borrowable=False))


def something_happens(made: gp.RoundScheduler, draw: np.random.Generator, jobs: list[gp.Job], kind: str) -> gp.RoundScheduler:
    """Let jobs or nodes change, or the scheduler be saved, or called within a round; return the scheduler."""
    what, down = draw.integers(6), [name for name, state in made.nodes.items() if state is gp.NodeState.DOWN]
    if what == 0:
        jobs += (new := some_jobs(kind, draw, len(jobs), int(draw.integers(1, 3))))
        made.submit_all(new)
    elif what == 1 and made.jobs:
        made.cancel(made.jobs[draw.integers(len(made.jobs))].job_id)
    elif what == 2:
        (made.node_up if down else made.node_down)(str(draw.choice(down or list(made.nodes))))
    elif what == 3:
        return gp.RoundScheduler.from_dict(made.to_dict(), CASES[kind].profile)
    elif what == 4:
        made.plan_next()
    elif made.last_start_seconds is not None:
        made.start_waiting(made.last_start_seconds + SECONDS / 2)
    return made


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
@pytest.mark.parametrize("kind", [name for name in CASES if name != "workflows"])
def test_random_histories_with_failures(kind: str, breaks: Breaks) -> None:
    for seed in range(100):
        draw = np.random.default_rng(seed)
        policy = gp.resolve_policy("max_min_fairness", constraints=[each for each in LIMITS if draw.random() < 0.3])
        options = CASES[kind].options | {"policy": policy, "solve_seconds": draw.choice([0.0, 25.0])}
        jobs = some_jobs(kind, draw, 0, int(draw.integers(1, 7)))
        made = replace(CASES[kind], jobs=jobs, options=options).scheduler()
        for _ in range(10):
            breaks.which = draw.choice(["none", "exact", "all"])
            made = something_happens(made, draw, jobs, kind)
            check(made.next_round(), made, jobs)
            down = {name for name, state in made.nodes.items() if state is gp.NodeState.DOWN}
            assert down.isdisjoint(node for held in made.running.values() for node, _ in held.gpus)
            if made.allocation is not None and made.allocation.evidence is not None:
                assert all(each.kept for each in made.allocation.constraints)
