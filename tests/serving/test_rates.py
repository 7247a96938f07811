"""Rates at the SLO: known limits, and what formulas promise instead."""

from __future__ import annotations

import math
from typing import Any

import pytest

import gavel_py as gp

SECONDS = 0.148
QUICK: dict[str, Any] = {"seeds": 4, "num_requests": 6_000}


def kingman_rate(slo: float, cv: float, missed: float = 0.01) -> float:
    """Return the rate of one server at which the exponential tail of Kingman's wait exceeds the SLO for this part of requests."""
    low, high = 0.0, 1.0
    for _ in range(50):
        load = (low + high) / 2
        tail = load * math.exp(-2 * (1 - load) * (slo - SECONDS) / (load * SECONDS * cv**2))
        low, high = (load, high) if tail <= missed else (low, load)
    return low / SECONDS


@pytest.mark.parametrize(("cv", "scale"), [(2, 2), (2, 3), (2, 5), (4, 2), (4, 5), (4, 10)])
def test_kingmans_formula_promises_bursty_requests_what_is_not_there(cv: float, scale: float) -> None:
    found = gp.rate_at_slo([SECONDS], scale * SECONDS, cv=cv, **QUICK)
    promised = kingman_rate(scale * SECONDS, cv)
    assert found.half_width is not None
    assert found.rate + found.half_width < 0.5 * promised
    # A trace at the promised rate shows it.
    trace = gp.RequestTrace.generate({"a": promised}, 20_000 / promised, cv=cv, seed=9)
    assert gp.simulate_requests(trace, [gp.ModelGroup({"a": [SECONDS]})], scale * SECONDS).attainment < 0.97


def test_kingmans_formula_is_too_careful_with_poisson_arrivals_and_a_long_slo() -> None:
    assert gp.rate_at_slo([SECONDS], 10 * SECONDS, **QUICK).rate > kingman_rate(10 * SECONDS, 1)


def test_a_trace_at_the_rate_found_has_the_attainment_asked_for() -> None:
    found = gp.rate_at_slo([0.1, 0.1], 1.0, cv=2, attainment=0.9, seeds=8)
    assert found.half_width is not None
    assert found.half_width < 0.05 * found.rate
    trace = gp.RequestTrace.generate({"a": found.rate}, 40_000 / found.rate, cv=2, seed=11)
    assert gp.simulate_requests(trace, [gp.ModelGroup({"a": [0.1, 0.1]})], 1.0).attainment == pytest.approx(0.9, abs=0.01)


def test_requests_of_equal_gaps_fill_the_server() -> None:
    assert gp.rate_at_slo([0.1], 0.1, cv=0, attainment=1.0, **QUICK).rate == pytest.approx(10.0, rel=0.002)


def test_the_burstiest_requests_have_no_rate() -> None:
    assert gp.rate_at_slo([0.1], 0.3, cv=20, **QUICK).rate == 0.0


def test_replicas_that_share_requests_serve_more_than_as_many_alone() -> None:
    one, four = (gp.rate_at_slo([0.1], 0.4, cv=2, replicas=count, **QUICK).rate for count in (1, 4))
    assert four > 4 * one


def test_a_longer_slo_and_a_lower_target_allow_more() -> None:
    rates = [gp.rate_at_slo([0.1], slo, attainment=part, **QUICK).rate for slo, part in ((0.2, 0.99), (0.4, 0.99), (0.4, 0.9))]
    assert rates == sorted(rates)
    assert gp.rate_at_slo([0.1], 0.2, **QUICK) == gp.rate_at_slo([0.1], 0.2, **QUICK)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"slo_seconds": 0.05}, "at least 0.1, the latency of a request that never waits, found 0.05"),
        ({"cv": 21.0}, "must be from 0 to 20"),
        ({"attainment": 0.0}, "must be above 0 and at most 1"),
        ({"stage_seconds": []}, "stage_seconds"),
        ({"replicas": 0}, "whole number of at least 1"),
        ({"num_requests": 5}, "whole number of at least 100"),
    ],
)
def test_bad_input_is_named(changed: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"stage_seconds": [0.1], "slo_seconds": 0.5}
    with pytest.raises(gp.InputError, match=problem):
        gp.rate_at_slo(**{**given, **changed})
