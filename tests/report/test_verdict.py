"""Verdicts, checked against scipy's paired test, Holm's method by hand, and properties that any comparison has."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

import gavel_py as gp
from gavel_py.report.charts import palette_of
from gavel_py.report.measures import holm, paired
from gavel_py.report.run_charts import load_charts
from gavel_py.report.settings import Setting, settings_of
from gavel_py.report.verdict import NAME_BEGIN, NAME_END, Ranking, rankings_of, summaries_of, tenants_of, verdict_of

Table = Mapping[str, Sequence[float | None]]
"""{policy: values of the seeds 0, 1, ...}; None if a seed is missing."""


def setting(*tables: Table, metric: str = "makespan_seconds") -> Setting:
    """Return the setting of these values, one table for each load 1, 2, ..."""
    (made,) = settings_of(
        gp.Run({"policy": policy, "load": float(load), "seed": seed}, {metric: value})
        for load, table in enumerate(tables, 1)
        for policy, values in table.items()
        for seed, value in enumerate(values)
        if value is not None
    )
    return made


def ranking(table: Table, metric: str = "makespan_seconds") -> Ranking:
    return rankings_of(setting(table, metric=metric), metric)[1.0]


def sentences(*tables: Table, metric: str = "makespan_seconds") -> str:
    text = " ".join(finding.text for finding in verdict_of(setting(*tables, metric=metric)))
    return re.sub(f"[{NAME_BEGIN}{NAME_END}]", "", text)


VALUES = st.lists(st.floats(1.0, 1e6), min_size=3, max_size=8)


@given(VALUES, st.data())
def test_pairs_are_tested_as_by_scipy(best: list[float], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.floats(1.0, 1e6), min_size=len(best), max_size=len(best)))
    assume(np.std(np.subtract(other, best)) > 1e-6 * max(*best, *other))
    made = paired("other", dict(zip("abcdefgh", best, strict=False)), dict(zip("abcdefgh", other, strict=False)))
    expected = stats.ttest_rel(other, best)
    low, high = expected.confidence_interval(0.95)
    assert made.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert made.half_width is not None
    limits = made.difference - made.half_width, made.difference + made.half_width
    assert limits == pytest.approx((low, high), rel=1e-9, abs=1e-9 * max(*best, *other))


def test_only_common_seeds_are_compared() -> None:
    made = paired("b", {"0": 1.0, "1": 2.0, "2": 4.0, "7": 100.0}, {"0": 2.0, "1": 4.0, "2": 9.0, "5": -50.0})
    assert (made.seeds, made.base, made.difference) == (3, pytest.approx(7 / 3), pytest.approx(8 / 3))
    assert made.p_value == pytest.approx(stats.ttest_rel([2, 4, 9], [1, 2, 4]).pvalue)
    few = paired("b", {"0": 1.0, "1": 2.0}, {"0": 2.0, "1": 9.0, "2": 9.0})
    assert (few.seeds, few.difference, few.p_value, few.half_width) == (2, 4.0, None, None)
    none = paired("b", {"0": 1.0}, {"1": 3.0})
    assert (none.seeds, none.difference, none.p_value) == (0, 2.0, None)


@pytest.mark.parametrize(("shift", "p_value"), [(0.1, 0.0), (0.0, 1.0), (-1e-17, 1.0)])
def test_equal_differences_are_exact(shift: float, p_value: float) -> None:
    best = {"0": 0.1, "1": 0.2, "2": 0.3}
    made = paired("b", best, {seed: value + shift for seed, value in best.items()})
    assert (made.p_value, made.half_width) == (p_value, 0.0)
    assert made.is_separated == (shift == 0.1)


def test_holm_by_hand() -> None:
    # 4 · 0.005 = 0.02; 3 · 0.01 = 0.03; 2 · 0.03 = 0.06; 1 · 0.04 = 0.04 is raised to 0.06 (Holm 1979)
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_rejects_what_bonferroni_does_and_nothing_that_single_tests_do_not(p_values: list[float]) -> None:
    corrected = holm(p_values)
    for p_value, value in zip(p_values, corrected, strict=True):
        assert p_value <= value <= min(1.0, len(p_values) * p_value) + 1e-15
    assert [p for p, _ in sorted(zip(p_values, corrected, strict=True))] == sorted(p_values)
    assert [c for _, c in sorted(zip(p_values, corrected, strict=True))] == sorted(corrected)


TABLES = st.integers(1, 5).flatmap(
    lambda seeds: st.dictionaries(
        st.sampled_from("abcde"), st.lists(st.integers(1, 50).map(float), min_size=seeds, max_size=seeds), min_size=2
    )
)


@given(TABLES, st.randoms(use_true_random=False), st.sampled_from([0.25, 8.0, 1024.0]))
def test_neither_the_order_of_policies_nor_the_unit_changes_a_verdict(table: Table, random: object, factor: float) -> None:
    first = ranking(table)
    names = list(table)
    random.shuffle(names)  # type: ignore[attr-defined]
    again = ranking({name: [factor * (value or 0.0) for value in table[name]] for name in names})
    assert again.mark == first.mark
    means = {name: np.mean(values) for name, values in table.items()}
    if list(means.values()).count(min(means.values())) == 1:  # otherwise the first of equal means is the one compared
        assert again.leaders == first.leaders
        assert {pair.other: pair.p_value for pair in again.pairs} == pytest.approx({p.other: p.p_value for p in first.pairs})


@given(TABLES)
def test_equal_runs_are_never_apart(table: Table) -> None:
    twins = {name + suffix: values for name, values in table.items() for suffix in ("1", "2")}
    leaders = ranking(twins).leaders
    assert all((f"{name}1" in leaders) == (f"{name}2" in leaders) for name in table)
    same = ranking(dict.fromkeys(table, next(iter(table.values()))))
    assert (same.mark, same.leaders) == ("", frozenset(table))


@given(TABLES)
def test_less_is_better_for_times_and_more_for_throughput(table: Table) -> None:
    assume(all(len(values) >= 3 for values in table.values()))
    most = {name: [-(value or 0.0) for value in values] for name, values in table.items()}
    assert ranking(most, "total_normalized_throughput").leaders == ranking(table).leaders


ODD = st.sampled_from([None, math.nan, math.inf, 0.0, -0.0, 1e-100, 1e100, -5.0, 1.0, 2.0])


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.lists(ODD, max_size=4)), max_size=3))
def test_odd_numbers_make_no_odd_sentences(tables: list[Table]) -> None:
    runs = [
        gp.Run({"policy": policy, "load": load, "seed": seed}, {"makespan_seconds": value, "cost": value})
        for load, table in zip((None, 1.0, 2.0), tables, strict=False)
        for policy, values in table.items()
        for seed, value in enumerate(values)
    ]
    for each in settings_of(runs):
        assert not [finding for finding in verdict_of(each) if re.search("nan|inf", finding.text)]
        list(load_charts(palette_of(each)))
        assert summaries_of(each)


@pytest.mark.deep
def test_policies_that_do_not_differ_are_seldom_said_to() -> None:
    rng = np.random.default_rng(1)
    best = wrong = 0
    repetitions = 1500
    for _ in range(repetitions):
        trace = rng.normal(100, 30, 5)  # what a seed does to all policies
        made = ranking({name: (trace + rng.normal(0, 2, 5)).tolist() for name in "abcd"})
        best += made.mark == "best"
        wrong += len(made.leaders) < 4
    assert best / repetitions <= 0.05
    assert wrong / repetitions <= 0.1  # the best of four is compared, so somewhat more than for pairs chosen beforehand


def test_a_difference_that_all_seeds_share_is_shown_though_intervals_overlap() -> None:
    table = {"a": [100.0, 200.0, 300.0, 400.0], "b": [103.0, 204.0, 302.0, 403.0]}
    assert (ranking(table).mark, ranking(table).leaders) == ("best", {"a"})


def test_loads_with_the_same_result_share_a_sentence() -> None:
    table = {"fifo": [7200.0, 7300.0, 7150.0], "las": [3600.0, 3650.0, 3620.0]}
    text = sentences(table, table, table, {"fifo": table["las"], "las": table["fifo"]})
    assert text.startswith(
        "las has the best makespan at 1 to 3 jobs/h: 1.01 h at 1 jobs/h, 1.01 h at 3 jobs/h. The next is fifo with +99 %"
    )
    assert "fifo has the best makespan at 4 jobs/h: 1.01 h. The next is las with +99 %" in text
    assert stats.ttest_rel(table["fifo"], table["las"]).pvalue < 0.001
    assert text.count("3 seeds, p < 0.001.") == 2


def test_the_correction_covers_the_pairs_of_all_loads_that_share_a_sentence() -> None:
    table = {"fifo": [100.0, 104.0, 108.0], "las": [88.0, 88.0, 88.0]}
    assert stats.ttest_rel(table["fifo"], table["las"]).pvalue == pytest.approx(0.0202, abs=1e-4)
    swapped = {"fifo": table["las"], "las": table["fifo"]}  # another best mean, and so other sentences

    def found(*tables: Table) -> list[tuple[set[float], str]]:
        rankings = rankings_of(setting(*tables), "makespan_seconds").values()
        return [({round(pair.p_value or 0.0, 4) for pair in each.pairs}, each.mark) for each in rankings]

    assert found(table, swapped) == [({0.0202}, "best")] * 2
    assert found(table, swapped, table) == [({0.0404}, "best"), ({0.0202}, "best"), ({0.0404}, "best")]
    assert found(table, table | {"b": table["fifo"]}) == [({0.0606}, "tied")] * 2


def test_sentences_about_ties_and_about_too_few_seeds() -> None:
    tied = {"a": [60.0, 70.0, 65.0], "b": [61.0, 69.0, 66.0], "c": [90.0, 101.0, 95.0]}
    assert sentences(tied).startswith(
        "a has the lowest makespan: 65 s. These 3 seeds can show no difference from b. The nearest of the others is c with +47 %"
    )
    assert sentences({"a": [60.0], "b": [90.0]}) == "a has the lowest makespan in these runs: 60 s. The next is b with +50 %."
    assert sentences({"a": [60.0], "b": [900.0]}).endswith("The next is b with 15 ×.")
    assert sentences({"a": [6.0], "b": [6.0], "c": [9.0]}).startswith(
        "a has the lowest makespan in these runs: 6 s. In these runs it equals b. The next is c with +50 %."
    )
    assert sentences({"a": [6.0], "b": [6.0]}) == "All policies have the same makespan: 6 s."
    assert sentences({"a": [6.0, 7.0]}) == ""
    assert sentences({"a": [1.0], "b": [2.0]}, metric="preemptions") == ""
    assert sentences({"a": [0.0], "b": [2.0]}, metric="cost").endswith("The next is b with +2 price units.")


def test_ties_at_some_of_the_loads_are_named_with_them() -> None:
    apart = {"a": [60.0, 70.0, 65.0], "b": [90.0, 100.0, 95.0], "c": [190.0, 200.0, 195.0]}
    near = {"a": [60.0, 70.0, 65.0], "b": [61.0, 69.0, 66.0], "c": [190.0, 200.0, 195.0]}
    assert sentences(apart, near, apart | {"c": [64.0, 68.0, 66.0]}, near) == (
        "a has the lowest makespan at every load (1 to 4 jobs/h): 65 s at 1 jobs/h, 65 s at 4 jobs/h. "
        "It is best at 1 jobs/h; the next is b with +46 % (the same with each seed); 3 seeds, p < 0.001. "
        "These 3 seeds can show no difference from b at 2 and 4 jobs/h; c at 3 jobs/h. "
        "The nearest of the others is b with +46 % (the same with each seed) at 3 jobs/h, "
        "and c with +200 % (the same with each seed) at 4 jobs/h; "
        "3 seeds, p < 0.001."
    )


def test_marks_of_the_table_are_those_of_the_sentences() -> None:
    tied = {"a": [60.0, 70.0, 65.0], "b": [61.0, 69.0, 66.0], "c": [90.0, 101.0, 95.0]}
    (summary,) = summaries_of(setting(tied, {"a": [60.0], "b": [60.0, 61.0], "c": [59.0]}))
    marks = [
        [(row.name, row.seeds, cell.mark, cell.difference) for row in rows for cell in row.cells] for _, rows in summary.blocks
    ]
    assert marks == [
        [("a", 3, "tied", ""), ("b", 3, "tied", "+0.51 %"), ("c", 3, "", "+47 %")],
        [("a", 1, "", "+1.7 %"), ("b", 2, "", "+1.7 %"), ("c", 1, "lowest", "")],
    ]


def headings_of_tenants(*arrivals: float) -> list[str]:
    """Return the headings of the table of tenants after a simulation of jobs of 10 minutes each, on one GPU."""
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * len(arrivals), job_ids=list("abcd"), accelerators=["v100"])
    jobs = [gp.Job(name, tenant=name, total_steps=600, arrival_seconds=at) for name, at in zip("abcd", arrivals, strict=True)]
    run = gp.record_run(jobs, gp.Cluster.from_counts({"v100": 1}), speeds, "fifo")
    (setting,) = settings_of([run])
    table = tenants_of(setting)
    assert table is not None
    return [column.heading for column in table.columns]


def test_shares_of_a_batch_are_named_for_the_time_in_which_it_drains() -> None:
    names = ["promised share", "share of GPUs"]
    assert headings_of_tenants(0, 0, 0, 0)[:2] == [f"{name} while the batch drains, %" for name in names]
    assert headings_of_tenants(0, 0, 3000, 3000)[:2] == [f"{name}, %" for name in names]


def test_a_run_in_which_no_job_leaves_does_not_drain() -> None:
    over_time = gp.OverTime(np.arange(4.0), {}, {}, np.full(3, 2.0), np.zeros(3), np.zeros(3))
    falling = replace(over_time, active_jobs=np.array([3.0, 3.0, 1.0]))
    run = gp.Run({"policy": "fifo"}, {"cost": 1.0}, over_time=falling)
    assert settings_of([run])[0].drains
    assert not settings_of([run, replace(run, labels={"policy": "las"}, over_time=over_time)])[0].drains
    assert not settings_of([replace(run, over_time=None)])[0].drains
