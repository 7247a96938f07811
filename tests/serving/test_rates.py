"""Rates at the SLO: known limits, and what formulas promise instead."""

from __future__ import annotations

import math
from typing import Any

import pytest

import gavel_py as gp

SECONDS = 0.148
QUICK: dict[str, Any] = {"seeds": 4, "num_requests": 6_000}


def kingman_tail(load: float, seconds: float, cv: float, service_cv: float = 0.0) -> float:
    """Return P(W > seconds) of one server with service times of 1 s on average, by Kingman's formula and an exponential tail."""
    mean_wait = load / (1 - load) * (cv**2 + service_cv**2) / 2
    return load * math.exp(-load * seconds / mean_wait)  # a part `load` of the requests waits, for mean_wait / load on average


def kingman_rate(slo: float, cv: float, missed: float = 0.01) -> float:
    """Return the rate of one server at which this tail exceeds the SLO for this part of the requests."""
    low, high = 1e-9, 1 - 1e-9
    for _ in range(50):
        load = (low + high) / 2
        low, high = (load, high) if kingman_tail(load, slo / SECONDS - 1, cv) <= missed else (low, load)
    return low / SECONDS


def test_kingmans_tail_is_that_of_poisson_arrivals_and_exponential_service() -> None:
    for load in (0.2, 0.9):
        assert kingman_tail(load, 3.0, 1, 1) == pytest.approx(load * math.exp(-(1 - load) * 3.0))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("cv", "scale", "formula", "simulated"),
    [(2, 2, 0.016, 0.0003), (2, 3, 0.026, 0.007), (4, 2, 0.011, 0.0), (4, 5, 0.016, 0.0), (4, 10, 0.030, 0.005)],
)
def test_kingmans_formula_promises_bursts_within_a_short_slo_what_is_not_there(
    cv: float, scale: float, formula: float, simulated: float
) -> None:
    """Figures of docs/serving.md, at a cv of 2 and 2 latencies, and of 4 and 10."""
    found = gp.rate_at_slo([SECONDS], scale * SECONDS, cv=cv)
    rate = kingman_rate(scale * SECONDS, cv)
    assert rate * SECONDS == pytest.approx(formula, abs=5e-4)
    assert found.rate * SECONDS == pytest.approx(simulated, abs=max(0.1 * simulated, 1e-5))
    assert found.half_width is not None
    assert found.rate + found.half_width < 0.5 * rate
    # A trace at the promised rate shows it.
    trace = gp.RequestTrace.generate({"a": rate}, 20_000 / rate, cv=cv, seed=9)
    assert gp.simulate_requests(trace, [gp.ModelGroup({"a": [SECONDS]})], scale * SECONDS).attainment < 0.985


@pytest.mark.deep
@pytest.mark.parametrize(
    ("cv", "scale", "formula", "all_served", "refused"), [(2, 5, 0.065, 0.07, 0.08), (1, 10, 0.76, 0.774, 0.86)]
)
def test_kingmans_formula_is_too_careful_where_late_requests_are_refused(
    cv: float, scale: float, formula: float, all_served: float, refused: float
) -> None:
    """Figures of docs/serving.md."""
    slo = scale * SECONDS
    assert kingman_rate(slo, cv) * SECONDS == pytest.approx(formula, rel=6e-3)
    assert gp.rate_at_slo([SECONDS], slo, cv=cv).rate * SECONDS == pytest.approx(refused, abs=5e-3)
    # Without refusals, about 1 % of the requests are late at this rate.
    trace = gp.RequestTrace.generate({"a": all_served / SECONDS}, 400_000 * SECONDS / all_served, cv=cv, seed=3)
    attained = gp.simulate_requests(trace, [gp.ModelGroup({"a": [SECONDS]})], slo, refuse=False).attainment
    assert attained == pytest.approx(0.99, abs=1e-3)


@pytest.mark.deep
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


@pytest.mark.deep
def test_a_longer_slo_and_a_lower_target_allow_more() -> None:
    rates = [gp.rate_at_slo([0.1], slo, attainment=part, **QUICK).rate for slo, part in ((0.2, 0.99), (0.4, 0.99), (0.4, 0.9))]
    assert rates == sorted(rates)
    assert gp.rate_at_slo([0.1], 0.2, **QUICK) == gp.rate_at_slo([0.1], 0.2, **QUICK)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"slo_seconds": 0.05}, "at least 0.1, the latency of a request that never waits, found 0.05"),
        ({"cv": 21.0}, "must be a finite number from 0 to 20"),
        ({"attainment": 0.0}, "must be a finite number greater than 0 and at most 1"),
        ({"stage_seconds": []}, "stage_seconds"),
        ({"replicas": 0}, "whole number of at least 1"),
        ({"num_requests": 5}, "whole number of at least 100"),
    ],
)
def test_bad_input_is_named(changed: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"stage_seconds": [0.1], "slo_seconds": 0.5}
    with pytest.raises(gp.InputError, match=problem):
        gp.rate_at_slo(**{**given, **changed})
