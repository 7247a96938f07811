"""Checks of estimates on a profile's own data, contradictory measurements, and plans of what to measure."""

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.estimates import gaussian_process
from gavel_py.estimates.evaluation import CANDIDATES
from gavel_py.estimates.gaussian_process import GaussianProcess
from tests.support.profiles import NVIDIA, OSDI


def gangs(profile: gp.ThroughputProfile) -> list[gp.Measurement]:
    alone = [m for m in profile.measurements if m.partner_job_type is None and m.placement == "consolidated"]
    return [m for m in alone if m.steps_per_second > 0]


def test_a_check_shows_which_method_is_better() -> None:
    process, additive, specs = gp.check_estimates(NVIDIA, seeds=2, hidden=0.5)
    assert [each.method for each in (process, additive, specs)] == ["gaussian_process", "additive", "specs"]
    assert process.estimated == additive.estimated > 400
    assert process.median_error < 0.1 < 0.2 < min(additive.median_error, specs.median_error)
    assert 0.72 <= process.within_80 <= 0.94
    assert 0.90 <= process.within_95 <= 1


def test_a_check_needs_types_that_were_measured_twice() -> None:
    once = [gp.Measurement(job_type=name, num_gpus=1, accelerator="v100", steps_per_second=1) for name in "ab"]
    with pytest.raises(gp.InputError, match="measured at least twice"):
        gp.check_estimates(gp.ThroughputProfile("few", once))


@pytest.mark.deep
@pytest.mark.parametrize("profile", [OSDI, NVIDIA], ids=["osdi", "nvidia"])
def test_entries_off_by_a_factor_of_ten_are_found(profile: gp.ThroughputProfile) -> None:
    measured = gangs(profile)
    wrong = found = false = 0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        rows = rng.choice(len(measured), round(0.01 * len(measured)), replace=False).tolist()
        given = list(measured)
        for row in rows:
            factor = 10 if rng.uniform() < 0.5 else 0.1
            given[row] = given[row].model_copy(update={"steps_per_second": given[row].steps_per_second * factor})
        reported = [m.entry for m, _ in gp.contradictions(gp.ThroughputProfile("given", given))]
        entries = {given[row].entry for row in rows}
        wrong += len(entries)
        found += len(entries & set(reported))
        false += len(set(reported) - entries)
    assert found >= 0.9 * wrong
    assert false <= 0.01 * 3 * len(measured)
    assert gp.contradictions(profile) == []


@pytest.mark.deep
def test_a_contradiction_comes_with_what_was_to_be_expected() -> None:
    given = gangs(NVIDIA)
    given[100] = given[100].model_copy(update={"steps_per_second": given[100].steps_per_second * 10})
    ((found, expected),) = gp.contradictions(gp.ThroughputProfile("given", given))
    assert found == given[100]
    assert expected == pytest.approx(gangs(NVIDIA)[100].steps_per_second, rel=0.3)


def test_each_planned_entry_reduces_the_variance_most() -> None:
    kept = gp.ThroughputProfile("part", gangs(OSDI)[::6])
    plan = gp.plan_measurements(kept, 2)
    jobs = [gp.Job(f"{m.job_type} {m.num_gpus}", job_type=m.job_type, num_gpus=m.num_gpus) for m in gangs(kept)]
    entries = list(kept.missing({job.job_id: job for job in jobs}.values(), kept.accelerators))
    fitted = GaussianProcess().fit(kept.measurements, gp.AcceleratorTable.builtin().find)
    before = np.trace(fitted.covariance(entries))
    given = fitted
    for planned in plan:
        left = {}
        for entry in (
            e for e in entries if e not in given.entries
        ):  # one by one: what the variances would be after this measurement
            after = given.observed([entry], np.zeros(1), np.zeros(1))
            left[entry] = np.trace(after.covariance([e for e in entries if e not in after.entries])) / before
        assert left[planned.entry] == pytest.approx(min(left.values()), rel=1e-6)  # entries may be alike
        assert planned.remaining == pytest.approx(left[planned.entry], rel=1e-3)
        assert planned.error == pytest.approx(np.expm1(np.sqrt(given.covariance([planned.entry])[0, 0])), rel=1e-3)
        given = given.observed([planned.entry], np.zeros(1), np.zeros(1))


def test_a_plan_is_worth_more_than_measurements_at_random() -> None:
    measured = gangs(NVIDIA)
    by_entry = {m.entry: m for m in measured}
    start = measured[::10]
    jobs = [
        gp.Job(f"j{n}", job_type=m.job_type, num_gpus=m.num_gpus, allowed_accelerators=[m.accelerator])
        for n, m in enumerate(measured)
    ]
    plan = gp.plan_measurements(gp.ThroughputProfile("start", start), 55, jobs, NVIDIA.accelerators)
    planned = [by_entry[each.entry] for each in plan]
    others = [m for m in measured if m not in start]

    def log_error(more: list[gp.Measurement]) -> float:
        fitted = GaussianProcess().fit([*start, *more], gp.AcceleratorTable.builtin().find)
        found = fitted.predict([m.entry for m in measured]).log_mean
        return float(np.sqrt(np.mean((found - np.log([m.steps_per_second for m in measured])) ** 2)))

    rng = np.random.default_rng(0)
    chance = [log_error([others[row] for row in rng.choice(len(others), 55, replace=False).tolist()]) for _ in range(3)]
    assert log_error(planned) < 0.6 * min(chance)


def test_jobs_weigh_in_a_plan() -> None:
    first, second = gp.Job("a", job_type=OSDI.job_types[0]), gp.Job("b", job_type=OSDI.job_types[5])
    many = [gp.Job(f"b{n}", job_type=second.job_type) for n in range(50)]
    (planned,) = gp.plan_measurements(OSDI, 1, [first, *many], ["k80", "v100", "h100"])
    assert planned.entry.job_type == second.job_type
    assert planned.jobs == 50
    assert gp.plan_measurements(OSDI, 1, [first], ["k80"]) == []
    with pytest.raises(gp.InputError, match="budget"):
        gp.plan_measurements(OSDI, 0)


def test_per_gpu_prefers_small_gangs() -> None:
    sizes = [
        sum(each.entry.num_gpus for each in gp.plan_measurements(OSDI, 10, cluster_accelerators=["h100"], per_gpu=per_gpu))
        for per_gpu in (False, True)
    ]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("budget", [0, 1.5, 3.0, "3", b"3", None])
def test_a_budget_is_a_whole_number_of_measurements(budget: object) -> None:
    with pytest.raises(gp.InputError, match="field budget: must be a whole number of at least 1, found"):
        gp.plan_measurements(OSDI, budget)  # type: ignore[arg-type]


@pytest.mark.parametrize("hidden", [0, 1, "a", "0.5", None, float("nan")])
def test_the_part_that_a_check_hides_is_checked(hidden: object) -> None:
    with pytest.raises(gp.InputError, match="field hidden: must be a finite number greater than 0 and less than 1, found"):
        gp.check_estimates(OSDI, hidden=hidden, seeds=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("seeds", [0, 1.5, 3.0, "x", "3"])
def test_the_number_of_seeds_of_a_check_is_a_whole_number(seeds: object) -> None:
    with pytest.raises(gp.InputError, match="field seeds: must be a whole number of at least 1, found"):
        gp.check_estimates(OSDI, seeds=seeds)  # type: ignore[arg-type]


@pytest.mark.deep
def test_missing_entries_are_counted_by_job() -> None:
    jobs = [gp.Job(f"j{n}", job_type=OSDI.job_types[0]) for n in range(3)]
    pair = next(m.job_type for m in gangs(OSDI) if m.num_gpus == 2)
    jobs.append(gp.Job("k", job_type=pair, num_gpus=2, allowed_accelerators=["k80", "h100"]))
    missing = OSDI.missing(jobs, ["k80", "h100", "h200"])
    assert {(e.num_gpus, e.accelerator): count for e, count in missing.items()} == {(1, "h100"): 3, (1, "h200"): 3, (2, "h100"): 1}
    assert OSDI.with_estimates().missing(jobs, ["k80", "h100", "h200"]) == {}


def test_elastic_jobs_need_all_of_their_numbers_of_gpus() -> None:
    """As listed, or of a range those in the profile; with estimates, the same entries are estimated."""
    rows = [
        ("a (batch size 8)", 1, "a100", 1.1),
        ("a (batch size 8)", 4, "a100", 3.9),
        ("b", 2, "a100", 5.0),
        ("b", 1, "l40s", 3.0),
    ]
    known = [gp.Measurement(job_type=t, num_gpus=n, accelerator=on, steps_per_second=speed) for t, n, on, speed in rows]
    profile, kind, names = gp.ThroughputProfile("mine", known), {"job_type": "a (batch size 8)"}, ["a100", "l40s"]
    jobs = [
        gp.Job("listed", gpu_counts=(1, 4, 8), **kind),
        gp.Job("range", min_gpus=2, max_gpus=8, **kind),
        gp.Job("fixed", num_gpus=4, allowed_accelerators=("l40s",), **kind),
    ]
    needed = {(1, "l40s"): 1, (4, "l40s"): 3, (8, "a100"): 1, (8, "l40s"): 1, (2, "a100"): 1, (2, "l40s"): 1}
    missing = profile.missing(jobs, names)
    assert {(entry.num_gpus, entry.accelerator): count for entry, count in missing.items()} == needed
    assert {each.entry for each in gp.plan_measurements(profile, 99, jobs, names)} == missing.keys()
    assert {each.entry for each in profile.with_estimates().estimates_of(jobs, names)} == missing.keys()


def test_a_range_without_any_measured_size_needs_its_smallest() -> None:
    empty = gp.ThroughputProfile("mine", [])
    for part, least in ((None, 3), (4, 4), (16, None)):
        job = gp.Job("a", job_type="a", min_gpus=3, max_gpus=8, gpus_per_node=part)
        assert [entry.num_gpus for entry in empty.missing([job], ["a100"])] == ([] if least is None else [least])


@pytest.mark.deep
def test_a_plan_of_thousands_of_measurements_has_the_errors_of_the_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian_process, "JOINT_LIMIT", 100)
    jobs = [gp.Job(f"{m.job_type} {m.num_gpus}", job_type=m.job_type, num_gpus=m.num_gpus) for m in gangs(NVIDIA)]
    entries = list(NVIDIA.missing(jobs, NVIDIA.accelerators))
    fitted = GaussianProcess().fit(NVIDIA.measurements, gp.AcceleratorTable.builtin().find)
    expected = np.expm1(fitted.predict(entries).log_sd)
    assert np.sqrt(np.diag(fitted.covariance(entries))) == pytest.approx(np.log1p(expected))
    first = gp.plan_measurements(NVIDIA, 1, jobs, NVIDIA.accelerators)[0]
    assert first.error == pytest.approx(expected[entries.index(first.entry)])


def test_a_plan_without_measurements_needs_jobs() -> None:
    nothing = gp.ThroughputProfile("nothing", ())
    with pytest.raises(gp.InputError, match="'nothing': has no measurement above 0 of a gang alone; give jobs and a cluster"):
        gp.plan_measurements(nothing, 3)
    (planned,) = gp.plan_measurements(nothing, 1, [gp.Job("a", job_type="a")], ["h100", "a100"])
    assert planned.entry.job_type == "a"


@pytest.mark.deep
def test_many_candidates_are_reduced_to_the_least_sure() -> None:
    jobs = [gp.Job(f"{m.job_type} {m.num_gpus}", job_type=m.job_type, num_gpus=m.num_gpus) for m in gangs(NVIDIA)]
    names = [spec.name for spec in gp.AcceleratorTable.builtin()][:20]
    assert len(NVIDIA.missing(jobs, names)) > CANDIDATES
    assert len(gp.plan_measurements(NVIDIA, 3, jobs, names)) == 3
