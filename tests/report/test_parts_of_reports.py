"""Parts of a report, checked against independent computations."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

import gavel_py as gp
from gavel_py.report.charts import DARK, DASHES, LIGHT, MARKERS, NUM_STYLES, palette_of
from gavel_py.report.figures import limits_of
from gavel_py.report.measures import SampleMean, estimate, interval_limits, interval_means, quantiles, short
from gavel_py.report.run_charts import distribution_charts, heat_chart, load_charts, pareto_optimal, time_charts, tradeoff_charts
from gavel_py.report.settings import settings_of
from gavel_py.report.timeline import stay_grid, stays_gantt
from tests.report.some_runs import some_run
from tests.report.test_rounds_plot import EYES

NUMBERS = st.floats(-1e6, 1e6)


@given(st.lists(NUMBERS, min_size=3, max_size=12))
def test_intervals_are_those_of_students_t(values: list[float]) -> None:
    made = estimate([*values, None, math.nan])
    assert made is not None
    assert made.count == len(values)
    error = float(stats.sem(values))
    assume(error > 1e-9 * max(1.0, *map(abs, values)))
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=error)
    assert (made.low, made.high) == pytest.approx((low, high), rel=1e-9, abs=1e-6)


def test_fewer_than_three_seeds_have_no_interval_and_none_has_no_mean() -> None:
    for values in ([2.0, None], [1.0, 3.0]):
        few = estimate(values)
        assert few is not None
        assert (few.mean, few.half_width, few.low, few.high) == (2.0, None, 2.0, 2.0)
    assert estimate([None, math.nan]) is None


def test_intervals_cover_the_mean_with_the_stated_probability() -> None:
    rng = np.random.default_rng(0)
    made = [estimate(rng.normal(5.0, 2.0, 4).tolist()) for _ in range(4000)]
    assert sum(each.low <= 5.0 <= each.high for each in made if each) / 4000 == pytest.approx(0.95, abs=0.012)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_every_dominated_point_is_dominated_by_a_pareto_optimal_one(pairs: list[tuple[float, float]]) -> None:
    kept = {pair for pair, best in zip(pairs, pareto_optimal(pairs), strict=True) if best}
    for pair, best in zip(pairs, pareto_optimal(pairs), strict=True):
        as_good = [other for other in kept if other != pair and other[0] <= pair[0] and other[1] <= pair[1]]
        assert bool(as_good) != best


@given(arrays(float, st.integers(1, 30), elements=st.floats(0, 1) | st.just(math.nan)), st.integers(1, 40))
def test_interval_means_preserve_the_overall_mean(values: np.ndarray, most: int) -> None:
    seconds = np.concatenate([[0.0], np.cumsum(1.0 + np.arange(len(values)) % 3)])
    limits = interval_limits(seconds, most)
    assert len(limits) <= most + 1
    known = np.isfinite(values)
    whole = interval_means(seconds, values, seconds[[0, -1]])
    if known.any():
        assert whole[0] == pytest.approx(np.average(values[known], weights=np.diff(seconds)[known]))
        # The overall mean is the mean of the intervals, weighted by their known time.
        there = interval_means(seconds, known.astype(float), limits) * np.diff(limits)
        parts = interval_means(seconds, values, limits)
        assert np.nansum(parts * there) / there.sum() == pytest.approx(whole[0])
    else:
        assert np.isnan(whole[0])
    if most >= len(values):
        assert np.allclose(interval_means(seconds, values, limits), values, equal_nan=True)


@given(arrays(float, st.integers(1, 300), elements=NUMBERS), st.integers(2, 50))
def test_quantiles_are_values_with_the_share_of_values_no_larger(values: np.ndarray, most: int) -> None:
    points, parts = quantiles(values, most)
    assert len(points) <= max(most, 1)
    assert points[-1] == values.max()
    assert parts[-1] == 1.0
    for point, part in zip(points, parts, strict=True):
        assert (values < point).mean() <= part <= (values <= point).mean() + 1e-12


@st.composite
def stays(draw: st.DrawFn) -> list[gp.Stay]:
    drawn = draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(1, 8), st.integers(1, 4)), min_size=1, max_size=25)
    )
    return [
        gp.Stay(f"job-{n}", "lm", f"node-{node}", f"type-{node % 2}", gpus, float(start), float(start + length))
        for n, (node, start, length, gpus) in enumerate(drawn)
    ]


@given(stays())
def test_every_stay_has_its_gpus_on_its_node_and_shares_none(given_stays: list[gp.Stay]) -> None:
    gantt, nodes = stays_gantt(given_stays, ["type-1"]), {stay.job_id: stay.node for stay in given_stays}
    lanes, held = gantt.lanes, dict[str, int]()
    for bar in gantt.bars:
        node = next(node for node in lanes.nodes if node.first <= bar.first_lane < bar.end_lane <= node.end)
        assert node.name == nodes[bar.job_id]
        held[bar.job_id] = held.get(bar.job_id, 0) + bar.end_lane - bar.first_lane
    assert held == {stay.job_id: stay.gpus for stay in given_stays}
    for a, b in itertools.combinations(gantt.bars, 2):
        apart = a.end_lane <= b.first_lane or b.end_lane <= a.first_lane
        assert apart or a.end_seconds <= b.start_seconds or b.end_seconds <= a.start_seconds
    for node in lanes.nodes:
        here = [stay for stay in given_stays if stay.node == node.name]
        busiest = max(sum(s.gpus for s in here if s.start_seconds <= t < s.end_seconds) for t in range(30))
        assert node.end - node.first == busiest
    names = [kind.name for kind in lanes.types]
    assert names == sorted(names, reverse=True)  # type-1 was requested first


@given(stays(), st.integers(1, 60))
def test_the_grid_shows_the_jobs_at_the_middle_of_each_interval(given_stays: list[gp.Stay], columns: int) -> None:
    gantt = stays_gantt(given_stays)
    grid = stay_grid(gantt, columns)
    length = (gantt.end_seconds - gantt.start_seconds) / columns
    for column in range(columns):
        middle = gantt.start_seconds + (column + 0.5) * length
        if any(abs(middle - moment) < 1e-6 for s in given_stays for moment in (s.start_seconds, s.end_seconds)):
            continue
        there = sorted(s.job_id for s in given_stays if s.start_seconds <= middle < s.end_seconds for _ in range(s.gpus))
        assert sorted(grid.job_ids[job] for job in grid.jobs[:, column] if job >= 0) == there


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def lab(colour: np.ndarray) -> np.ndarray:
    """Convert linear RGB to CIE L*a*b*, in which distances correspond to perceived differences."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ np.clip(colour, 0, 1)
    f = np.where((xyz := xyz / [0.9505, 1, 1.089]) > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_contrast_with_the_page_and_each_other_in_all_colour_vision(theme: dict[str, str]) -> None:
    tones = [theme[f"tone-{style}"] for style in range(NUM_STYLES)]
    assert all(contrast(tone, theme["page"]) >= 2.99 for tone in tones)
    assert all(contrast(theme[ink], theme[page]) >= 4.5 for ink in ("ink", "muted", "good", "link") for page in ("page", "soft"))
    for eyes in EYES.values():
        seen = [lab(np.array(eyes) @ linear(tone)) for tone in tones]
        assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) > 20


def test_styles_differ_without_colour_too_and_themes_have_the_same_names() -> None:
    assert len(set(DASHES)) == len(set(MARKERS)) == NUM_STYLES
    assert list(LIGHT) == list(DARK)
    assert len(set(LIGHT.values())) == len(LIGHT)


@given(st.floats(1e-12, 1e15))
def test_short_numbers_are_near_and_short(value: float) -> None:
    text = short(value)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.006)
    assert len(text) <= 11
    assert short(-value) in {f"-{text}", text}


@given(st.lists(st.tuples(st.floats(-1e3, 1e6), st.floats(0, 1e7)), min_size=1, max_size=8))
def test_axes_show_every_mean_and_no_more_than_twice_of_them(given_pairs: list[tuple[float, float]]) -> None:
    low, high = limits_of([SampleMean(mean, half_width, 3) for mean, half_width in given_pairs])
    means = [mean for mean, _ in given_pairs]
    assert low < high
    assert all(low <= mean <= high for mean in means)
    assert high <= max(2.3 * max(map(abs, means)) + 0.3 * abs(min(means)), 0.5)
    assert low >= 0 or min(means) <= 0


@pytest.mark.parametrize("mean", [5e-324, -5e-324, 1e-308, 0.0, -0.0, 1.0, -7e15])
def test_axes_of_one_mean_have_a_width(mean: float) -> None:
    low, high = limits_of([SampleMean(mean, 0.0, 3)])
    assert low < high
    assert low <= mean <= high


def test_a_heat_map_has_the_job_types_with_the_most_time_and_its_table_all() -> None:
    shares = {f"type-{n}": {"v100": n / 100} for n in range(100)}
    (chart,) = heat_chart("shares", "Time by accelerator", gp.Run({}, {}, shares=shares))
    drawn, *_ = chart.draw.args  # type: ignore[attr-defined]
    assert drawn == [f"type-{n}" for n in range(70, 100)]
    assert len(chart.table.rows) == 100
    assert "The chart has the 30 of 100 job types with the most time" in chart.description


def load_runs(values: dict[str, list[float]]) -> list[gp.Run]:
    """Return runs of each policy at loads 1 and 2, with these mean completion times by seed."""
    return [
        gp.Run({"policy": policy, "load": load, "seed": seed}, {"mean_jct_seconds": load * value})
        for load in (1.0, 2.0)
        for policy, of_policy in values.items()
        for seed, value in enumerate(of_policy)
    ]


def test_where_bands_overlap_policies_are_compared_seed_by_seed() -> None:
    values = {"a": [110.0, 230.0, 312.0, 405.0], "b": [100.0, 210.0, 290.0, 390.0]}
    absolute, relative = load_charts(palette_of(settings_of(load_runs(values))[0]))
    assert absolute.name + "-relative" == relative.name
    ((panel,), _) = absolute.draw.args  # type: ignore[attr-defined]
    assert all(curve.low is None for curve in panel.curves)
    interval = stats.ttest_rel(values["a"], values["b"]).confidence_interval(0.95)
    low, high = (1 + limit / np.mean(values["b"]) for limit in interval)
    ratio = sum(values["a"]) / sum(values["b"])
    assert [row for row in relative.table.rows if row[0] == "a"] == [
        ["a", load, short(ratio), f"{short(low)} to {short(high)}", "4"] for load in ("1", "2")
    ]
    assert [row[2:4] for row in relative.table.rows if row[0] == "b"] == [["1", "1 to 1"]] * 2
    ((panel,), _) = relative.draw.args  # type: ignore[attr-defined]
    assert all(curve.low is not None for curve in panel.curves)


@pytest.mark.parametrize("seeds", [2, 4])
def test_bands_that_are_apart_are_drawn_from_three_seeds_on(seeds: int) -> None:
    values = {"a": [100.0, 101.0, 102.0, 103.0][:seeds], "b": [200.0, 201.0, 202.0, 203.0][:seeds]}
    (chart,) = load_charts(palette_of(settings_of(load_runs(values))[0]))
    ((panel,), _) = chart.draw.args  # type: ignore[attr-defined]
    assert [curve.low is not None for curve in panel.curves] == [seeds > 2] * 2


def test_nothing_is_drawn_of_zeros() -> None:
    runs = [some_run(policy, 2.0, seed, jobs=10) for policy in ("fifo", "las") for seed in range(2)]
    nothing = [
        replace(
            run,
            metrics={"mean_jct_seconds": 0.0, "makespan_seconds": 0.0, "cost": 0.0},
            jct_seconds=np.zeros(3),
            over_time=replace(run.over_time, prices={name: 0.0 * prices for name, prices in run.over_time.prices.items()}),
        )
        for run in runs
        if run.over_time is not None
    ]
    palette = palette_of(settings_of(nothing)[0])
    assert not [*load_charts(palette), *tradeoff_charts(palette)]
    assert [chart.name for chart in distribution_charts(palette)] == ["finish-time-fairness"]
    assert "prices-over-time" not in [chart.name for chart in time_charts(palette)]


@pytest.mark.parametrize(("seed", "message"), [(7, "One run of each policy (seed 7)."), (None, "One run of each policy.")])
def test_charts_of_one_run_of_each_policy_name_its_seed_if_it_has_one(seed: int | None, message: str) -> None:
    runs = [some_run(policy, 2.0, 0, jobs=20) for policy in ("fifo", "las")]
    (setting,) = settings_of([replace(run, labels={"policy": run.labels["policy"], "seed": seed}) for run in runs])
    charts = list(time_charts(palette_of(setting)))
    assert charts
    assert all(chart.description.endswith(message) for chart in charts)
