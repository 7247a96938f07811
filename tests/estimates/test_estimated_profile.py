"""Profiles with estimates: what stays as measured, what is estimated, what cannot run, and what cannot be estimated."""

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.estimates import gaussian_process
from tests.support.examples import examples
from tests.support.profiles import NVIDIA, OSDI

Entry = gp.throughput_profiles.Entry


def measured(*cells: tuple[str, float, str, float], **more: float) -> gp.ThroughputProfile:
    fields = ("job_type", "num_gpus", "accelerator", "steps_per_second")
    return gp.ThroughputProfile("mine", [gp.Measurement(**dict(zip(fields, cell, strict=True)), **more) for cell in cells])


def hidden(profile: gp.ThroughputProfile, share: float, seed: int) -> tuple[gp.ThroughputProfile, list[gp.Measurement]]:
    """Return the profile without a share of its gangs alone, and those left out of which the job type is still known."""
    alone = [
        m for m in profile.measurements if m.partner_job_type is None and m.placement == "consolidated" and m.steps_per_second > 0
    ]
    order = np.random.default_rng(seed).permutation(len(alone))
    count = int(share * len(alone))
    kept = gp.ThroughputProfile(profile.name, [alone[row] for row in order[count:]])
    return kept, [alone[row] for row in order[:count] if alone[row].job_type in kept.job_types]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("profile", "share", "median", "tail"), [(OSDI, 0.2, 0.10, 0.36), (OSDI, 0.5, 0.137, 0.44), (NVIDIA, 0.5, 0.10, 0.32)]
)
def test_errors_and_intervals_on_hidden_entries(profile: gp.ThroughputProfile, share: float, median: float, tail: float) -> None:
    errors: list[float] = []
    inside: list[bool] = []
    for seed in range(3):
        kept, left_out = hidden(profile, share, seed)
        estimated = kept.with_estimates()
        for each in left_out:
            found = estimated.estimate(each.entry)
            assert found is not None
            errors.append(abs(found.median / each.steps_per_second - 1))
            inside.append(found.low <= each.steps_per_second <= found.high)
    assert np.median(errors) <= median
    assert np.quantile(errors, 0.9) <= tail
    assert 0.70 <= np.mean(inside) <= 0.92


def test_measured_entries_stay_as_measured() -> None:
    estimated = NVIDIA.with_estimates()
    for m in NVIDIA.measurements:
        assert estimated.throughput(m.job_type, m.num_gpus, m.accelerator) == m.steps_per_second
        assert estimated.estimate(m.entry) is None
    assert estimated.rows == NVIDIA.rows


@pytest.mark.parametrize("method", ["gaussian_process", "additive", "specs"])
@settings(max_examples=examples(6, costly=True))
@given(st.randoms(use_true_random=False), st.floats(1e-3, 1e3))
def test_order_does_not_matter_and_units_scale(method: str, random: object, factor: float) -> None:
    kept, left_out = hidden(OSDI, 0.9, 0)
    entries = [m.entry for m in left_out[:6]]
    shuffled = list(kept.measurements)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    scaled = [m.model_copy(update={"steps_per_second": m.steps_per_second * factor}) for m in kept.measurements]
    first, second, third = (
        [gp.ThroughputProfile("p", given).with_estimates(method).throughput(*entry) for entry in entries]
        for given in (kept.measurements, shuffled, scaled)
    )
    assert first == second
    assert np.allclose(np.array(first) * factor, third, rtol=1e-6)


@pytest.mark.deep
def test_confidence_selects_the_value_that_is_used() -> None:
    kept, left_out = hidden(NVIDIA, 0.5, 0)
    entry = left_out[0].entry
    estimated = kept.with_estimates()
    found = estimated.estimate(entry)
    assert found is not None
    assert found.low < found.median < found.high
    assert estimated.throughput(*entry) == found.median == found.steps_per_second
    assert kept.with_estimates(confidence=0.9).throughput(*entry) == pytest.approx(found.low)
    assert kept.with_estimates(confidence=0.1).throughput(*entry) == pytest.approx(found.high)
    assert found.median < kept.with_estimates(confidence="optimistic").throughput(*entry) < found.high
    assert estimated.with_confidence(0.9).throughput(*entry) == pytest.approx(found.low)


@pytest.mark.parametrize("confidence", [0, 1, -1, 1.5, True, "brave", float("nan")])
def test_confidence_is_checked(confidence: object) -> None:
    with pytest.raises(gp.InputError, match="confidence"):
        OSDI.with_estimates(confidence=confidence)  # type: ignore[arg-type]
    with pytest.raises(gp.InputError, match="confidence"):
        OSDI.with_estimates().with_confidence(confidence)  # type: ignore[arg-type]


def test_unknown_methods_are_named_with_the_nearest() -> None:
    with pytest.raises(gp.UnknownNameError, match="gaussian_process"):
        OSDI.with_estimates("gausian_process")


@pytest.mark.parametrize("method", [5, None, gaussian_process.GaussianProcess])
def test_what_is_no_estimator_is_refused_at_once(method: object) -> None:
    with pytest.raises(gp.InputError, match="field method: must be 'gaussian_process', 'additive', 'specs' or an object with"):
        OSDI.with_estimates(method)  # type: ignore[arg-type]


def test_a_new_accelerator_is_placed_by_its_specifications() -> None:
    speeds = OSDI.with_estimates().matrix([gp.Job("j", job_type="ResNet-18 (batch size 32)")], ["k80", "v100", "a100", "h100"])[0]
    assert list(speeds) == sorted(speeds)


def test_accelerators_of_the_user_extend_the_table() -> None:
    table = gp.AcceleratorTable.builtin().extended(
        [{"name": "x9", "fp32_tflops": 60, "memory_bandwidth_gbs": 3000, "memory_gb": 48}]
    )
    profile = measured(("a", 1, "v100", 2.0), ("b", 1, "v100", 4.0), ("a", 1, "k80", 0.5))
    with pytest.raises(gp.UnknownNameError, match="specifications"):
        profile.with_estimates().throughput("b", 1, "x9")
    assert profile.with_estimates(accelerators=table).throughput("b", 1, "x9") > 4.0


@pytest.mark.deep
@pytest.mark.parametrize("name", ["gavel-osdi20", "nvidia-2023", "mpt-2023", "trtllm"])
def test_the_less_is_known_of_an_accelerator_the_wider_are_intervals(name: str) -> None:
    profile = gp.ThroughputProfile.builtin(name)
    full = {"fp32_tflops": 90, "tf32_tflops": 180, "fp16_tflops": 360, "fp8_tflops": 720, "memory_bandwidth_gbs": 1500}
    flops = {key: value for key, value in full.items() if key != "memory_bandwidth_gbs"}
    known = {"full": full, "flops": flops, "bandwidth": {"memory_bandwidth_gbs": 1500}, "memory": {"memory_gb": 48}}
    table = gp.AcceleratorTable.builtin().extended([{"name": each, **specs} for each, specs in known.items()])
    gang = profile.measurements[0]
    entries = [Entry(gang.job_type, gang.num_gpus, each) for each in known]
    found = dict(zip(known, profile.with_estimates(accelerators=table).fitted.predict(entries).log_sd, strict=True))
    assert found["full"] * 1.1 < min(found["flops"], found["bandwidth"])
    assert max(found["flops"], found["bandwidth"]) < found["memory"]


def test_specifications_say_nothing_if_none_of_the_measured_accelerators_has_any() -> None:
    profile = measured(("a", 1, "foo", 2.0), ("b", 1, "foo", 3.0), ("a", 1, "bar", 4.0))
    other, new = (profile.with_estimates().estimate(Entry("b", 1, name)) for name in ("bar", "h100"))
    assert other is not None
    assert new is not None
    assert 1 < new.median < 10
    assert new.high / new.low > 2 * other.high / other.low


def test_what_cannot_be_estimated_stays_an_error() -> None:
    estimated = measured(("a (batch size 2)", 1, "v100", 2.0), ("a (batch size 4)", 1, "k80", 2.0)).with_estimates()
    assert estimated.throughput("a (batch size 8)", 1, "v100") > 0
    for entry in (("c", 1, "v100"), ("a (batch size 2)", 1, "abacus")):
        with pytest.raises(gp.UnknownNameError, match="an estimate needs"):
            estimated.throughput(*entry)
    with pytest.raises(gp.UnknownNameError):
        estimated.with_values({}).with_confidence(None).measured.with_estimates("additive").throughput(
            "a (batch size 8)", 1, "v100"
        )


def in_units(**cells: tuple[str, str, float]) -> gp.ThroughputProfile:
    """Return a profile of {"name": (job type, unit, throughput)} on v100, and half as fast on k80."""
    rows = (
        gp.Measurement(job_type=kind, num_gpus=1, accelerator=accelerator, steps_per_second=speed / part, unit=unit)  # type: ignore[arg-type]
        for kind, unit, speed in cells.values()
        for accelerator, part in (("v100", 1), ("k80", 2))
    )
    return gp.ThroughputProfile("units", rows)


BOTH = in_units(
    a=("m (batch size 8)", "steps/s", 4.0),
    b=("m (batch size 16)", "steps/s", 2.0),
    c=("m (torch, batch size 8)", "tokens/s", 80_000.0),
    d=("m (torch, batch size 16)", "tokens/s", 90_000.0),
    e=("n (batch size 16)", "samples/s", 900.0),
)


@pytest.mark.parametrize(
    ("job_type", "unit", "low", "high"),
    [
        ("m (batch size 32)", "steps/s", 0.3, 4),
        ("m (torch, fp8, batch size 16)", "tokens/s", 1e4, 1e6),
        ("m (torch, batch size 32)", "tokens/s", 3e4, 3e5),
        ("n", "samples/s", 100, 9000),
    ],
)
def test_a_new_job_type_is_in_the_unit_of_its_family(job_type: str, unit: str, low: float, high: float) -> None:
    estimated = BOTH.with_estimates()
    found = estimated.estimate(Entry(job_type, 1, "v100"))
    assert found is not None
    assert found.unit == estimated.unit_of(job_type).unit == unit
    assert low < found.median < high


def test_a_family_in_several_units_says_nothing_about_the_unit_of_another_type() -> None:
    estimated = BOTH.with_estimates()
    assert estimated.estimate(Entry("m (jax, batch size 8)", 1, "v100")) is None
    with pytest.raises(
        gp.UnknownNameError, match=r"its unit may be samples/s or steps/s or tokens/s, so an estimate needs a measurement of the"
    ):
        estimated.throughput("m (jax, batch size 8)", 1, "v100")


@pytest.mark.parametrize("method", ["gaussian_process", "additive"])
def test_speeds_in_other_units_do_not_change_the_level_of_estimates(method: str) -> None:
    known = [m for m in OSDI.measurements if m.partner_job_type is None and m.job_type.startswith(("ResNet", "LM"))]
    tokens = [m for m in NVIDIA.measurements if m.unit == "tokens/s"]
    entry = Entry("ResNet-50 (batch size 64)", 16, "v100")
    alone, beside = (gp.ThroughputProfile("p", each).with_estimates(method).estimate(entry) for each in (known, known + tokens))
    assert alone is not None
    assert beside is not None
    assert abs(np.log(beside.median / alone.median)) < 0.5


@pytest.mark.deep
def test_public_profiles_of_two_units_are_not_averaged() -> None:
    estimated = gp.combine_profiles([OSDI, NVIDIA]).with_estimates()
    found = estimated.estimate(Entry("Transformer (batch size 512)", 1, "v100"))
    assert found is not None
    assert found.unit == "steps/s"
    assert 0.5 < found.median < OSDI.throughput("Transformer (batch size 256)", 1, "v100")


@pytest.mark.parametrize(
    ("method", "job_type", "accelerator", "needed"),
    [
        ("gaussian_process", "new", "v100", "an estimate needs a measurement of the job type, or of its family"),
        ("gaussian_process", "zero", "k80", "an estimate needs a throughput above 0 of the job type alone, consolidated"),
        ("additive", "zero", "k80", "an estimate needs a throughput above 0 of the job type alone, consolidated"),
        ("additive", "a (batch size 4)", "v100", "the method 'additive' needs a measurement of the job type itself"),
        ("specs", "a (batch size 4)", "v100", "the method 'specs' needs a measurement of the job type itself"),
        ("additive", "a (batch size 2)", "l40s", "the method 'additive' needs a measurement on 'l40s'"),
        ("additive", "a (batch size 2)", "abacus", "an estimate needs a measurement on it"),
        ("specs", "a (batch size 2)", "abacus", "an estimate needs its specifications or a measurement on it"),
    ],
)
def test_errors_name_what_the_method_needs(method: str, job_type: str, accelerator: str, needed: str) -> None:
    profile = measured(("a (batch size 2)", 1, "v100", 2.0), ("a (batch size 2)", 1, "k80", 1.0), ("zero", 1, "v100", 0.0))
    with pytest.raises((gp.UnknownNameError, gp.MissingThroughputError)) as caught:
        profile.with_estimates(method).throughput(job_type, 1, accelerator)
    assert str(caught.value).endswith(f"; {needed}")


def test_spread_placements_are_named_as_the_reason() -> None:
    profile = measured(("a", 1, "v100", 2.0), ("b", 1, "v100", 1.0))
    with pytest.raises(gp.MissingThroughputError, match="; spread placements are not estimated"):
        profile.with_estimates().throughput("a", 1, "v100", "spread")


def test_zeros_come_from_memory_and_not_from_speeds() -> None:
    profile = measured(("big", 1, "a100-80gb", 2.0), gpu_memory_gb=40)
    assert profile.with_estimates().throughput("big", 1, "v100") == 0
    assert profile.with_estimates().throughput("big", 1, "h100") > 2.0
    seen = measured(("big", 1, "a100-80gb", 2.0), ("big", 1, "v100-32gb", 0.0), ("small", 1, "v100", 1.0))
    assert seen.with_estimates().throughput("big", 1, "v100") == 0
    assert seen.with_estimates().throughput("big", 1, "a100-40gb") > 0
    found = seen.with_estimates().estimate(Entry("big", 1, "v100"))
    assert found is not None
    assert "v100-32gb" in found.source


def test_fractions_of_a_gpu_run_as_fast_as_a_whole_one() -> None:
    profile = measured(("a", 1, "v100", 2.0), ("b", 1, "v100", 2.0), ("b", 1, "k80", 0.5)).with_estimates()
    assert profile.throughput("a", 0.5, "k80") == profile.throughput("a", 1, "k80")


@pytest.mark.deep
def test_every_missing_entry_of_jobs_is_listed_once() -> None:
    jobs = [gp.Job(f"j{n}", job_type=NVIDIA.job_types[0]) for n in range(3)]
    jobs += [gp.Job("k", job_type=NVIDIA.job_types[1], allowed_accelerators=["h100"])]
    found = NVIDIA.with_estimates().estimates_of(jobs, ["v100-16gb", "h100", "h200"])
    assert {(each.entry.job_type, each.entry.accelerator) for each in found} == {
        (NVIDIA.job_types[0], "h100"),
        (NVIDIA.job_types[0], "h200"),
        (NVIDIA.job_types[1], "h100"),
    }
    assert len(found) == 3


@pytest.mark.deep
def test_values_replace_estimates_and_not_measurements() -> None:
    estimated = NVIDIA.with_estimates()
    entry = Entry(NVIDIA.job_types[0], 1, "h100")
    assert estimated.with_values({entry: 7.0}).throughput(*entry) == 7.0
    assert estimated.throughput(*entry) != 7.0
    with pytest.raises(gp.InputError, match="is measured"):
        estimated.with_values({NVIDIA.measurements[0].entry: 7.0})


@pytest.mark.deep
def test_draws_have_the_intervals_of_the_estimates() -> None:
    estimated = NVIDIA.with_estimates()
    known, unknown = NVIDIA.measurements[0], Entry(NVIDIA.job_types[0], 1, "h100")
    drawn = estimated.sample([known.entry, unknown], 4000, seed=1)
    found = estimated.estimate(unknown)
    assert found is not None
    assert (drawn[:, 0] == known.steps_per_second).all()
    assert np.quantile(drawn[:, 1], [0.1, 0.5, 0.9]) == pytest.approx([found.low, found.median, found.high], rel=0.05)
    assert (estimated.sample([unknown], 5, seed=2) == estimated.sample([unknown], 5, seed=2)).all()


@pytest.mark.deep
def test_pairs_are_estimated_from_pairs() -> None:
    rng = np.random.default_rng(0)
    rows = [m for m in OSDI.measurements if m.placement == "consolidated" and m.num_gpus == 1]
    left_out = [m for m in rows if m.partner_job_type and m.steps_per_second and m.partner_steps_per_second and rng.uniform() < 0.3]
    ids = {id(m) for m in left_out}
    estimated = gp.ThroughputProfile("part", [m for m in rows if id(m) not in ids]).with_estimates()
    estimated.pair_matrix([gp.Job(name, job_type=name) for name in OSDI.job_types], ["k80", "p100", "v100"])
    errors, inside = [], []
    for m in left_out:
        found = estimated.estimate(m.entry)
        assert found is not None
        errors.append(abs(found.median / m.steps_per_second - 1))
        inside.append(found.low <= m.steps_per_second <= found.high)
    assert np.median(errors) <= 0.07
    assert np.quantile(errors, 0.9) <= 0.26
    assert 0.75 <= np.mean(inside) <= 0.92


def test_a_profile_without_pairs_has_none_estimated() -> None:
    assert NVIDIA.with_estimates().pair_matrix([gp.Job("j", job_type=NVIDIA.job_types[0])], ["v100-16gb"]) is None


@pytest.mark.guard
def test_a_problem_is_solved_on_estimates() -> None:
    some = gp.ThroughputProfile("some", [m for m in NVIDIA.measurements if m.job_type in NVIDIA.job_types[::4]])
    jobs = [gp.Job(f"j{n}", job_type=job_type) for n, job_type in enumerate(some.job_types[:6])]
    cluster = gp.Cluster.from_inline("a100-80gb:4,h100:4")
    with pytest.raises(gp.UnknownNameError, match="h100"):
        gp.AllocationProblem.from_jobs(jobs, cluster, some)
    allocation = gp.solve(gp.AllocationProblem.from_jobs(jobs, cluster, some.with_estimates()), "max_min_fairness")
    allocation.verify()


@pytest.mark.deep
def test_profiles_of_estimates_travel_between_processes() -> None:
    estimated = NVIDIA.with_estimates(confidence=0.8)
    entry = Entry(NVIDIA.job_types[0], 1, "h100")
    value = estimated.throughput(*entry)
    copy = pickle.loads(pickle.dumps(estimated))  # noqa: S301
    assert copy == estimated
    assert copy.throughput(*entry) == value


def test_an_estimator_of_ones_own() -> None:
    from gavel_py.estimates import Estimates

    class Constant:
        def fit(self, measurements: Sequence[gp.Measurement], find_spec: object) -> "Constant":  # noqa: ARG002
            return self

        def predict(self, entries: Sequence[Entry]) -> Estimates:
            return Estimates(np.zeros(len(entries)), np.ones(len(entries)), np.zeros(0))

        def sample(self, entries: Sequence[Entry], count: int, seed: int) -> np.ndarray:  # noqa: ARG002
            return np.ones((count, len(entries)))

    profile = measured(("a", 1, "v100", 2.0), ("b", 1, "k80", 2.0)).with_estimates(Constant())
    assert profile.throughput("a", 1, "k80") == 1.0


@pytest.mark.parametrize(
    "cells",
    [
        [("a", 1, "v100", 2.0)],
        [("a", 1, "v100", 2.0), ("a", 2, "v100", 3.0), ("a", 1, "k80", 1.0)],
        [("a", 1, "v100", 2.0), ("b", 1, "v100", 3.0), ("c", 1, "v100", 0.0)],
        [("a", 1, "oak", 2.0), ("a", 1, "elm", 3.0), ("b", 1, "elm", 3.0)],
    ],
    ids=["one row", "one type", "one accelerator, zeros", "no specifications"],
)
def test_small_profiles_have_estimates(cells: list[tuple[str, float, str, float]]) -> None:
    profile = measured(*cells)
    estimated = profile.with_estimates()
    for job_type in {cell[0] for cell in cells if cell[3]}:
        for accelerator in {*profile.accelerators, "h100"} if "oak" not in profile.accelerators else profile.accelerators:
            for size in (1, 2, 4):
                speed = estimated.throughput(job_type, size, accelerator)
                assert np.isfinite(speed)
                assert speed > 0


def many(families: int) -> gp.ThroughputProfile:
    """Return a profile of model families of three batch sizes on two types."""
    rows = [
        gp.Measurement(
            job_type=f"model {family} (batch size {2**size})",
            num_gpus=1,
            accelerator=name,
            steps_per_second=(1 + family % 7) * speed / 2 ** (size / 2) * (1 + (family * size) % 5 / 20),
        )
        for family in range(families)
        for size in (3, 4, 5)
        for name, speed in (("v100", 1.0), ("p100", 0.6))
        if (family + size) % 3 or name == "v100"
    ]
    return gp.ThroughputProfile("many", rows)


def test_estimates_of_many_measurements_do_not_depend_on_what_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian_process, "JOINT_LIMIT", 40)  # so that each estimate rests on a part of the measurements
    profile = many(30)
    entries = [Entry(f"model {family} (batch size {2**size})", 1, "p100") for family in range(32) for size in (3, 4, 5, 6)]
    together = profile.with_estimates().estimates(entries)
    backwards = gp.ThroughputProfile("many", profile.measurements[::-1]).with_estimates()
    for entry, found in list(zip(entries, together, strict=True))[::-5]:
        for each in (profile.with_estimates().estimate(entry), backwards.estimate(entry)):
            assert (each is None) == (found is None)
            if each is not None and found is not None:
                assert each[1:5] == pytest.approx(found[1:5], rel=1e-9)
    known = {entry.job_type: found for entry, found in zip(entries, together, strict=True) if found is not None}
    assert known["model 29 (batch size 64)"].median == pytest.approx((1 + 29 % 7) * 0.6 / 8, rel=0.5)


def test_sizes_of_gangs_are_uncertain_if_one_was_measured() -> None:
    speeds = {("a (batch size 8)", "a100"): 1.5, ("a (batch size 16)", "a100"): 1.0, ("b", "a100"): 6.0}
    rows = [gp.Measurement(job_type=kind, num_gpus=1, accelerator=name, steps_per_second=v) for (kind, name), v in speeds.items()]
    profile = gp.ThroughputProfile("lab", rows).with_estimates()
    widths = [found.high / found.low for n in (2, 4, 8) if (found := profile.estimate(Entry("b", n, "a100"))) is not None]
    assert 1.4 < widths[0] < widths[1] < widths[2] < 10
