"""The replay: rules around Kueue's cycle, and rules of the cycle that no published case touches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from gavel_py.integrations.kueue.preemption import FairOrder, QueuedWorkload, take
from gavel_py.integrations.kueue.quota import quota_tree
from gavel_py.integrations.kueue.replay import KueueReplay
from tests.kueue.support import GPU, local_queue, profile, queue, state, two_queues, workload
from tests.support.shared_data import SHARED

REAL = SHARED / "kueue" / "real"


def replayed(path: Path, items: Any, tie_order: int = 0, **settings: Any) -> gp.KueueForecast:
    return gp.forecast_kueue(state(path, items, **settings), tie_order=tie_order)


def test_jobs_run_one_after_the_other_in_the_order_of_their_creation(tmp_path: Path) -> None:
    items = two_queues({"x": 2}, None, workload("late", gpus=2, made=2, hours=3), workload("early", gpus=2, made=1, hours=2))
    found = replayed(tmp_path, items)
    assert found.starts == {"a/early": 0.0, "a/late": 2.0}
    assert found.ends == {"a/early": 2.0, "a/late": 5.0}


def test_jobs_of_one_second_run_in_the_order_of_their_uids(tmp_path: Path) -> None:
    items = two_queues({"x": 1}, None, workload("b"), workload("c"), workload("a"))
    items[-3]["metadata"]["uid"], items[-2]["metadata"]["uid"], items[-1]["metadata"]["uid"] = "2", "1", "3"
    assert list(replayed(tmp_path, items).starts) == ["a/c", "a/b", "a/a"]


def test_a_smaller_job_passes_a_head_that_does_not_fit_but_not_in_strict_order(tmp_path: Path) -> None:
    jobs = [workload("runs", on="x", hours=5), workload("big", gpus=2, made=1), workload("small", made=2)]
    assert replayed(tmp_path, two_queues({"x": 2}, None, *jobs)).starts["a/small"] == 0.0
    strict = replayed(tmp_path, two_queues({"x": 2}, None, *jobs, queueingStrategy="StrictFIFO"))
    assert strict.starts["a/small"] > strict.starts["a/big"] > 4.9


def test_the_length_of_a_job_falls_with_the_speed_of_its_flavor(tmp_path: Path) -> None:
    items = two_queues(
        {"fast": 1, "slow": 2}, None, workload("one", job_type="t", hours=4), workload("two", job_type="t", hours=4, made=1)
    )
    found = replayed(tmp_path, items, profile=profile({"t": {"fast": 4, "slow": 2}}), accelerators={"fast": "fast", "slow": "slow"})
    assert found.first_flavors == {"a/one": "fast", "a/two": "slow"}
    assert found.ends == {"a/one": pytest.approx(2.0), "a/two": pytest.approx(4.0)}


def test_a_reclaim_evicts_the_latest_reservation_and_costs_the_work_since_its_checkpoint(tmp_path: Path) -> None:
    jobs = [
        workload("old", "b", on="x", reserved=0, hours=5),
        workload("new", "b", on="x", reserved=6, hours=5),
        workload("mine", made=60, hours=1),
    ]
    found = replayed(tmp_path, two_queues({"x": 1}, {"x": 1}, *jobs))
    assert found.victims == ("b/new",)
    # It has run for 54 minutes before the dump; what it has done since then is less than half an hour, and lost.
    assert found.starts["a/mine"] == pytest.approx(30 / 3600, abs=1e-6)
    again = found.ends["a/mine"]
    assert found.ends["b/new"] == pytest.approx(again + 5 - 54 / 60 + 5 / 60, abs=1e-3)


def test_reservations_of_the_dump_come_before_those_of_the_replay(tmp_path: Path) -> None:
    jobs = [workload("before", "b", on="x", hours=5), workload("after", "b", made=1, hours=5), workload("mine", made=2)]
    found, _ = with_arrivals(tmp_path, two_queues({"x": 1}, {"x": 1}, *jobs), {"a/mine": 0.5})
    assert found.victims == ("b/after",)


def test_a_short_job_runs_for_its_own_length(tmp_path: Path) -> None:
    assert replayed(tmp_path, two_queues({"x": 1}, None, workload("short", hours=0.01))).ends == {"a/short": 0.01}


def test_what_a_held_queue_evicts_does_not_come_back(tmp_path: Path) -> None:
    job = workload("w", on="x", hours=5)
    evicted = {"type": "Evicted", "status": "True", "reason": "ClusterQueueStopped", "lastTransitionTime": "2026-01-01T00:05:00Z"}
    job["status"]["conditions"].append(evicted)
    items = two_queues({"x": 1}, None, job, workload("off", on="x", hours=5), stopPolicy="HoldAndDrain")
    found = replayed(tmp_path, items)
    assert "a/w" not in found.ends
    assert "a/w" in replayed(tmp_path, items, released=True).ends


def test_reservations_of_one_second_are_taken_by_uid(tmp_path: Path) -> None:
    jobs = [workload(name, "b", on="x", hours=5, made=made) for made, name in enumerate("uv")] + [workload("mine", made=60)]
    jobs[0]["metadata"]["uid"], jobs[1]["metadata"]["uid"] = "2", "1"
    assert replayed(tmp_path, two_queues({"x": 1}, {"x": 1}, *jobs)).victims == ("b/v",)


def test_later_cycles_reserve_later_and_other_orders_take_any_of_one_instant(tmp_path: Path) -> None:
    borrowers = [workload(f"b{number}", "b", made=1, hours=5) for number in range(4)]
    late = workload("mine", made=2, hours=1)
    late["metadata"]["creationTimestamp"] = "2026-01-01T00:02:00Z"
    items = two_queues({"x": 1}, {"x": 3}, *borrowers)
    base = state(tmp_path, [*items, late])
    # The head of queue a comes in the first cycle here; it must wait until b has borrowed.
    victims = set()
    for order in range(8):
        replay = KueueReplay(base, gp.KueueChanges(), order)
        arrivals = [(job, 0.5 if job.key == "a/mine" else 0.0) for job in base.jobs]
        found = replay.run(arrivals)
        assert len(found.victims) == 1
        victims |= {found.victims} if order else set()
        if order == 0:
            assert found.victims == ("b/b3",)
    assert len(victims) > 1


@pytest.mark.parametrize(("rule", "flavor"), [("TryNextFlavor", "y"), ("MayStopSearch", "x")])
def test_where_a_job_could_preempt_the_search_goes_on_or_stops(tmp_path: Path, rule: str, flavor: str) -> None:
    jobs = [workload("low", on="x", hours=5, priority=-1), workload("high", made=1, hours=1)]
    items = two_queues({"x": 1, "y": 1}, None, *jobs, flavorFungibility={"whenCanPreempt": rule})
    found = replayed(tmp_path, items)
    assert found.first_flavors["a/high"] == flavor
    assert bool(found.victims) == (flavor == "x")


@pytest.mark.parametrize(("rule", "flavor"), [("TryNextFlavor", "y"), ("MayStopSearch", "x")])
def test_where_a_job_could_borrow_the_search_goes_on_or_stops(tmp_path: Path, rule: str, flavor: str) -> None:
    items = two_queues({"x": 0, "y": 1}, {"x": 1}, workload("job"), flavorFungibility={"whenCanBorrow": rule})
    assert replayed(tmp_path, items).first_flavors["a/job"] == flavor


def test_limits_of_borrowing_and_lending_hold(tmp_path: Path) -> None:
    jobs = [workload(f"j{number}", made=number) for number in range(4)]
    limited = {"x": {"nominalQuota": "1", "borrowingLimit": "1"}}
    assert sorted(replayed(tmp_path, two_queues(limited, {"x": 3}, *jobs)).starts.values()) == [0.0, 0.0, 1.0, 1.0]
    lent = {"x": {"nominalQuota": "3", "lendingLimit": "2"}}
    assert sorted(replayed(tmp_path, two_queues({"x": 1}, lent, *jobs)).starts.values()) == [0.0, 0.0, 0.0, 1.0]


def test_a_job_that_can_never_run_has_no_forecast_and_stops_nobody(tmp_path: Path) -> None:
    found = replayed(tmp_path, two_queues({"x": 2}, None, workload("big", gpus=3), workload("small", made=1)))
    assert found.ends == {"a/small": 1.0}


def test_what_is_held_does_not_start_and_with_released_it_does(tmp_path: Path) -> None:
    items = two_queues({"x": 1}, None, workload("job"), stopPolicy="Hold")
    assert replayed(tmp_path, items).starts == {}
    assert replayed(tmp_path, items, released=True).starts == {"a/job": 0.0}


def test_a_queue_without_a_cohort_neither_lends_nor_borrows(tmp_path: Path) -> None:
    items = [
        *two_queues({"x": 1}, None),
        queue("b", {"x": 1}, cohort=None),
        local_queue("b"),
        workload("one"),
        workload("two", made=1),
    ]
    assert sorted(replayed(tmp_path, items).starts.values()) == [0.0, 1.0]


def test_admission_fair_sharing_lets_the_lighter_local_queue_go_first(tmp_path: Path) -> None:
    items = two_queues({"x": 1}, None, admissionScope={"admissionMode": "UsageBasedAdmissionFairSharing"})
    heavy = {"admissionFairSharingStatus": {"consumedResources": {GPU: "5"}, "lastUpdate": "2026-01-01T00:00:00Z"}}
    items[-1]["status"] = {"fairSharing": heavy}
    items.append({**local_queue("a"), "metadata": {"name": "main", "namespace": "light"}})
    items[-1]["spec"] = {"clusterQueue": "a"}
    items += [workload("first"), workload("second", "light", made=5)]
    assert list(replayed(tmp_path, items).starts) == ["light/second", "a/first"]
    items[1]["spec"].pop("admissionScope")
    assert list(replayed(tmp_path, items).starts) == ["a/first", "light/second"]


def test_heads_that_preempt_stay_heads(tmp_path: Path) -> None:
    """Without this, a smaller job behind would take the GPUs that the victims free."""
    jobs = [workload(f"b{number}", "b", on="x", hours=9) for number in range(2)]
    jobs += [workload("big", gpus=2, made=1, hours=1), workload("small", gpus=1, made=2, hours=1)]
    found = replayed(tmp_path, two_queues({"x": 2}, {"x": 0}, *jobs))
    assert found.starts["a/big"] < 0.1 < found.starts["a/small"]
    assert sorted(found.victims) == ["b/b0", "b/b1"]


def with_arrivals(path: Path, items: Any, hours: dict[str, float]) -> tuple[gp.KueueForecast, KueueReplay]:
    """Replay jobs of which some arrive later."""
    base = state(path, items)
    replay = KueueReplay(base, gp.KueueChanges())
    return replay.run([(job, hours.get(job.key, 0.0)) for job in base.jobs]), replay


def test_a_head_that_preempts_goes_before_what_arrives_until_its_victims_have_left(tmp_path: Path) -> None:
    jobs = [workload("victim", "b", on="x", hours=9), workload("head", hours=1), workload("urgent", hours=1, priority=9)]
    found, _ = with_arrivals(tmp_path, two_queues({"x": 1}, {"x": 0}, *jobs), {"a/urgent": 10 / 3600})
    assert found.starts["a/head"] == pytest.approx(30 / 3600)


def test_others_leave_what_a_head_that_preempts_waits_for(tmp_path: Path) -> None:
    """Half of it is free, and would go to the next job of the other queue, which would then be preempted, too."""
    jobs = [workload("victim", "b", on="x", gpus=4, hours=9), workload("head", gpus=8), workload("next", "b", gpus=4, made=1)]
    found = replayed(tmp_path, two_queues({"x": 8}, {"x": 0}, *jobs))
    assert found.victims == ("b/victim",)
    assert found.starts["a/head"] == pytest.approx(30 / 3600)


def test_an_eviction_loses_the_work_since_the_last_half_hour(tmp_path: Path) -> None:
    jobs = [workload("victim", "b", on="x", hours=2), workload("mine", hours=1)]
    found, _ = with_arrivals(tmp_path, two_queues({"x": 1}, {"x": 0}, *jobs), {"a/mine": 0.75})
    back = 0.75 + 30 / 3600 + 1
    assert found.ends["a/mine"] == pytest.approx(back)
    assert found.ends["b/victim"] == pytest.approx(back + 2 - 0.5 + 5 / 60)


def test_what_was_evicted_before_the_dump_needs_a_restart(tmp_path: Path) -> None:
    job = workload("again", hours=1)
    assert replayed(tmp_path, two_queues({"x": 1}, None, job)).ends == {"a/again": 1.0}
    job["status"]["schedulingStats"] = {"evictions": [{"reason": "Preempted", "count": 2}]}
    assert replayed(tmp_path, two_queues({"x": 1}, None, job)).ends == {"a/again": pytest.approx(1 + 5 / 60)}


def test_equal_heads_that_cannot_be_admitted_wait_together(tmp_path: Path) -> None:
    jobs = [workload("runs", on="x", hours=1), *(workload(f"w{n:02}", hours=1, made=1) for n in range(20))]
    _, replay = with_arrivals(tmp_path, two_queues({"x": 1}, None, *jobs), {})
    # One cycle fails at the start, then one admits and one fails after each end.
    assert replay.decisions <= 1 + 2 * 20


def test_a_head_that_comes_too_late_in_a_cycle_has_its_turn_in_the_next_one(tmp_path: Path) -> None:
    jobs = [workload("first", hours=5), workload("second", "b", hours=5)]
    found = replayed(tmp_path, two_queues({"x": 1, "y": 1}, {"x": 0, "y": 0}, *jobs))
    assert found.starts == {"a/first": 0.0, "b/second": 0.0}
    assert found.first_flavors == {"a/first": "x", "b/second": "y"}


def test_two_heads_of_a_cycle_do_not_preempt_the_same_workload(tmp_path: Path) -> None:
    items = [*two_queues({"x": 1}, {"x": 1}), queue("c", {"x": 0}), local_queue("c")]
    base = state(tmp_path, [*items, workload("both", "c", on="x", gpus=2, hours=9), workload("one"), workload("two", "b")])
    replay = KueueReplay(base, gp.KueueChanges())
    take(replay.queues, base.running[0].workload)
    outcomes = replay.scheduler.run([job.workload for job in base.pending])
    assert [len(each.targets) for each in outcomes] == [1, 0]


def test_of_equal_shares_a_cohort_gives_before_a_queue() -> None:
    queues = [queue("mine", {"x": 4}), queue("beside", {"x": 0}), queue("below", {"x": 0}, cohort="inner")]
    cohort = {"metadata": {"name": "inner"}, "spec": {"parentName": "all"}}
    nodes = quota_tree(queues, [cohort])
    held = [QueuedWorkload(name, name, usage={("x", GPU): 2}) for name in ("beside", "below")]
    for each in held:
        take(nodes, each)
    assert next(iter(FairOrder(nodes["mine"], held))).name == "below"


def test_after_a_timeout_of_its_pods_a_workload_queues_from_then_on(tmp_path: Path) -> None:
    jobs = [workload("early", made=0), workload("late", made=1)]
    evicted = {"type": "Evicted", "status": "True", "reason": "PodsReadyTimeout", "lastTransitionTime": "2026-01-01T00:05:00Z"}
    jobs[0]["status"]["conditions"] = [evicted]
    assert list(replayed(tmp_path, two_queues({"x": 1}, None, *jobs)).starts) == ["a/late", "a/early"]
    evicted["reason"] = "Preempted"
    assert list(replayed(tmp_path, two_queues({"x": 1}, None, *jobs)).starts) == ["a/early", "a/late"]


def test_an_init_container_that_needs_more_counts(tmp_path: Path) -> None:
    job = workload("w")
    pod = job["spec"]["podSets"][0]["template"]["spec"]
    pod["initContainers"] = [{"resources": {"requests": {GPU: "3"}}}]
    assert replayed(tmp_path, two_queues({"x": 2}, None, job)).starts == {}
    assert replayed(tmp_path, two_queues({"x": 3}, None, job)).starts == {"a/w": 0.0}


def test_what_is_not_modelled_refuses_a_forecast_by_name(tmp_path: Path) -> None:
    with pytest.raises(gp.InputError, match=r"ResourceFlavor x: topology-aware scheduling"):
        gp.forecast_kueue(
            state(
                tmp_path,
                [
                    {**each, "spec": {**each["spec"], "topologyName": "t"}} if each["kind"] == "ResourceFlavor" else each
                    for each in two_queues({"x": 1}, None, workload("w"))
                ],
            )
        )


@pytest.mark.skipif(not REAL.is_dir(), reason=f"{REAL} is absent")
def test_use_by_queue_and_flavor_is_what_kueue_states() -> None:
    found = gp.read_kueue(REAL / "running40.json")
    stated, held = {}, {}
    for name, each in found.objects["ClusterQueue"].items():
        for use in each["status"]["flavorsReservation"]:
            stated[name, use["name"]] = sum(int(one["total"]) for one in use["resources"])
    for each in gp.kueue_overview(found).queues:
        held |= {(each.queue, use.flavor): use.held for use in each.flavors}
    assert len(stated) == 6
    assert held == stated


def test_a_change_after_which_a_job_never_ends_is_no_advice(tmp_path: Path) -> None:
    """Its end would not count in the mean of those that end."""
    items = two_queues({"x": 1, "y": 1}, None, workload("long", pin="x", hours=20), workload("short", pin="y", hours=1))
    base = state(tmp_path, items)
    advice = gp.advise_kueue(base)
    lost = gp.KueueChanges(flavors={"a/long": frozenset()})
    forecasts = tuple(gp.forecast_kueue(base, lost, tie_order=order) for order in range(5))
    found = gp.KueueTry("lost", lost, forecasts, advice.base.counted)
    assert forecasts[0].mean < advice.base.forecasts[0].mean
    assert not found.is_worth(advice.base)
    assert advice.kept is None
