"""A scheduler that is saved and loaded goes on as if nothing had happened; other files are refused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.scheduling.snapshot import SCHEDULER
from tests.scheduling.schedulers import PROFILE, busy, goes_on, job, refused, scheduler, shares
from tests.scheduling.support import Fixed
from tests.support.fakes import FakeProfile, refusal

MaxMinFairness = gp.policy_class("max_min_fairness")
MaxProgressRate = gp.policy_class("max_progress_rate")
MaxTotalThroughput = gp.policy_class("max_total_throughput")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


@pytest.mark.parametrize("name", gp.policy_names())
def test_every_policy_goes_on_with_the_same_rounds(path: Path, name: str) -> None:
    made = _asked_for_much(name) if name in {"min_lateness", "throughput_per_dollar", "min_cost", "allox"} else busy(policy=name)
    made.save(path)
    again = gp.RoundScheduler.load(path, PROFILE)
    assert again.policy == made.policy
    assert goes_on(again) == goes_on(made)
    assert again.allocation is not None
    assert made.allocation is not None
    assert np.array_equal(again.allocation.time_fractions, made.allocation.time_fractions)


def _asked_for_much(name: str) -> gp.RoundScheduler:
    """A scheduler with all fields of jobs and types that the policy reads."""
    kinds = [gp.AcceleratorType(name=kind, price_per_hour=price) for kind, price in (("v100", 2.5), ("k80", 0.5))]
    made = gp.RoundScheduler(gp.Cluster(gp.Cluster.from_inline("v100:4/2,k80:4/2").nodes, kinds), PROFILE, name, 10)
    for i in range(6):
        made.submit(job(f"j{i}", total_steps=1000 + i, deadline_seconds=1e5))
    made.next_round()
    return made


@pytest.mark.parametrize(
    "policy",
    [
        gp.resolve_policy("fifo", backfill=True),
        gp.resolve_policy("least_attained_service", thresholds="5:10.5"),
        gp.resolve_policy("max_min_fairness", agnostic=True),
        gp.resolve_policy("hierarchical", tenants=gp.TenantTree.from_dict({"t0": {"weight": 2}, "t1": {"policy": "fifo"}})),
        MaxMinFairness(constraints=[gp.MaxGpus(7), gp.Forbid("j0", "k80"), gp.SwitchCost(0.1), gp.Quota("t0", share=0.5).soft(2)]),
        2 * MaxTotalThroughput() + MaxProgressRate(constraints=[gp.KeepRunning()]),
        gp.Then(MaxMinFairness(), gp.Then(MaxTotalThroughput(), MaxProgressRate(), tolerance=0.01)),
    ],
    ids=lambda policy: policy.label,
)
def test_options_constraints_and_compositions_are_kept(path: Path, policy: gp.Policy) -> None:
    made = scheduler(
        "v100:6/4,k80:4/2", [job(f"j{i}", 1 + i % 2, tenant=f"t{i % 2}", total_steps=90) for i in range(5)], policy=policy
    )
    made.next_round()
    made.save(path)
    again = gp.RoundScheduler.load(path, PROFILE)
    assert again.policy == policy
    assert again.next_round() == made.next_round()


def test_a_tree_of_tenants_is_kept_though_its_file_is_gone(path: Path, tmp_path: Path) -> None:
    (tmp_path / "tree.json").write_text('{"tenants": {"t0": {"weight": 3}, "t1": {}}}')
    made = scheduler(
        "v100:2",
        [job("j0", tenant="t0"), job("j1", tenant="t1")],
        policy=gp.resolve_policy("hierarchical", tenants=str(tmp_path / "tree.json")),
    )
    made.save(path)
    (tmp_path / "tree.json").unlink()
    assert gp.RoundScheduler.load(path, PROFILE).next_round() == made.next_round()


def test_has_run_is_saved(path: Path) -> None:
    """Of two that are owed as much, the one that has never run goes first, after loading too."""
    policy = shares(a=0.5, b=0.5)
    made = scheduler("v100:1", [job("a"), job("b")], policy=policy, round_seconds=10)
    assert list(made.next_round().assignments) == ["a"]
    made.interrupted("a")
    made.save(path)
    again = gp.RoundScheduler.load(path, PROFILE, policy=policy)
    assert list(again.next_round().assignments) == list(made.next_round().assignments) == ["b"]


def test_saving_changes_nothing(path: Path) -> None:
    made, plain = busy(), busy()
    made.save(path)
    made.save(path)
    assert goes_on(made) == goes_on(plain)


def test_a_scheduler_without_jobs_or_rounds(path: Path) -> None:
    for made in (scheduler(), scheduler(jobs=[job("a")]), scheduler("v100:0", [job("a")])):
        made.save(path)
        assert gp.RoundScheduler.load(path, PROFILE).next_round() == made.next_round()
        made.save(path)
        assert gp.RoundScheduler.load(path, PROFILE).next_round() == made.next_round()


def test_all_that_it_was_made_with_is_kept(path: Path) -> None:
    scheduler(round_seconds=0.1, restart_seconds=0.2, min_run_seconds=0.3, solve_seconds=0.4, mechanism="priority").save(path)
    again = gp.RoundScheduler.load(path, PROFILE)
    assert (again.round_seconds, again.restart_seconds, again.min_run_seconds, again.solve_seconds) == (0.1, 0.2, 0.3, 0.4)
    assert again.mechanism == "priority"


def test_types_that_the_profile_did_not_know_stay_left_out(path: Path) -> None:
    with pytest.warns(gp.GavelWarning, match="4 GPUs are ignored"):
        made = scheduler("t4:4,v100:1", [job("a", allowed_accelerators=("v100",))], allow_unknown_types=True)
    made.save(path)
    again = gp.RoundScheduler.load(path, PROFILE)
    again.submit(job("b", allowed_accelerators=("t4", "v100")))
    assert again.cluster == made.cluster


def test_a_policy_of_ones_own_is_handed_in_again(path: Path) -> None:
    policy = shares(a=0.5, b=0.5)
    made = scheduler(jobs=[job("a"), job("b")], policy=policy)
    made.next_round()
    made.save(path)
    message = refused(gp.RoundScheduler.load, path, PROFILE)
    assert "state.json: contains only the name of the policy, fixed,shares=" in message
    assert "pass the policy, as in RoundScheduler.load(..., policy=...)" in message
    assert "was written under the policy fixed" in refused(gp.RoundScheduler.load, path, PROFILE, policy="fifo")
    again = gp.RoundScheduler.load(path, PROFILE, policy=Fixed(shares=policy.shares))
    assert again.next_round() == made.next_round()


def test_a_mechanism_of_ones_own_is_handed_in_again(path: Path) -> None:
    def nobody(demand: gp.scheduling.RoundDemand) -> Any:
        return np.full(len(demand.num_gpus), -1)

    made = scheduler(jobs=[job("a")], mechanism=nobody)
    made.save(path)
    assert "with a custom mechanism; pass it" in refused(gp.RoundScheduler.load, path, PROFILE)
    assert gp.RoundScheduler.load(path, PROFILE, mechanism=nobody).next_round().assignments == {}


def test_another_profile_is_refused(path: Path) -> None:
    made = scheduler("v100:1,k80:1", [job("a")])
    for _ in range(2):
        made.save(path)
        other = FakeProfile({"fast": {"v100": 4.0, "k80": 1.25}}, "later")
        message = refused(gp.RoundScheduler.load, path, other)
        assert "was written when job 'a' did 1 steps/s on 'k80', but profile 'later' has 1.25" in message
        small = FakeProfile({"fast": {"v100": 4.0}}, "{small}")
        assert "about accelerator 'k80', which profile '{small}' does not have" in refused(gp.RoundScheduler.load, path, small)
        made.next_round()


def truncated(text: str) -> str:
    return text[: len(text) // 2]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (truncated, r"is not valid JSON"),
        (lambda _: "", "is not valid JSON"),
        (lambda _: "[]", "is not a scheduler state written by RoundScheduler.save"),
        (lambda _: '{"jobs": []}', "is not a scheduler state"),
        (lambda text: text.replace('"fast","slow"', '"slow","slow"', 1), "is damaged or was changed by hand"),
        (
            lambda text: text.replace('"version":3', '"version":4', 1),
            "has version 4, but this gavel-py reads up to version 3",
        ),
        (lambda text: text.replace('"version":3', '"version":"x"', 1), "is damaged: it has the invalid version 'x'"),
        (lambda text: re.sub(r'"state":.*', '"state":null}', text), "is damaged or was changed by hand"),
    ],
)
def test_damaged_foreign_and_newer_files_are_refused(path: Path, damage: Callable[[str], str], problem: str) -> None:
    busy().save(path)
    path.write_text(damage(path.read_text()))
    message = refused(gp.RoundScheduler.load, path, PROFILE)
    assert message.startswith(str(path))
    assert problem in message


@pytest.mark.parametrize("place", [("last", "assignments", "gpus", "types"), ("allocation", "input", "running_on")])
def test_a_number_that_is_too_large_is_refused(path: Path, place: tuple[str, ...]) -> None:
    busy().save(path)
    state = SCHEDULER.read(path)
    inner = state["scheduler"]
    for name in place:
        inner = inner[name]
    inner["array"][0] = 2**70
    SCHEDULER.write(path, state)
    message = refused(gp.RoundScheduler.load, path, PROFILE)
    assert message.startswith(f"{path}: is damaged, or was written by another version of gavel-py: OverflowError")


def test_every_part_that_is_missing_is_refused(path: Path) -> None:
    """Even in a file with the right checksum."""
    busy().save(path)
    state = SCHEDULER.read(path)

    def places(part: Any, way: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        if not isinstance(part, dict) or len(way) == 3:
            return []
        return [place for name, inner in part.items() for place in [(*way, name), *places(inner, (*way, name))]]

    # What stands under names of jobs and nodes may be more or less; parts that are empty are left out.
    free = {"options", "assignments", "excluded", "newly_failed", "nodes", "bases", "tenants"}
    for place in places(state):
        if free & set(place[:-1]) or place[-1] in free:
            continue
        changed = json.loads(json.dumps(state))
        *way, last = place
        inner = changed
        for name in way:
            inner = inner[name]
        del inner[last]
        SCHEDULER.write(path, changed)
        assert str(path) in refusal(gp.RoundScheduler.load, path, PROFILE), f"was loaded without {place}"


def test_a_file_that_there_is_not_and_a_place_that_cannot_be_written(path: Path) -> None:
    assert "cannot be read: No such file" in refused(gp.RoundScheduler.load, path, PROFILE)
    assert "cannot be written: No such file or directory" in refused(scheduler().save, path / "in" / "no" / "folder")
    assert "cannot be written: Is a directory" in refused(scheduler().save, path.parent)


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = scheduler(jobs=[job("a")])
    made.save(path)
    before = path.read_bytes()
    made.submit(job("b"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "state.json: cannot be written: No space left on device" in refused(made.save, path)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["state.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "real" / "state.json")
    scheduler().save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    gp.RoundScheduler.load(tmp_path / "real" / "state.json", PROFILE)


def test_saving_keeps_the_permissions_of_the_file(path: Path) -> None:
    scheduler().save(path)
    path.chmod(0o600)
    scheduler().save(path)
    assert path.stat().st_mode & 0o777 == 0o600
