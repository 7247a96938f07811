"""The request simulator against published results: AlpaServe's simulator and its 16 GPUs, and two models on two GPUs."""

from __future__ import annotations

import numpy as np
import pytest

import gavel_py as gp
from tests.serving.alpaserve import DATA, LATENCY, OVERHEADS, RATES, published


@pytest.mark.skipif(not DATA.is_dir(), reason="the published tables are not here")
def test_published_attainments_are_met() -> None:
    trace = gp.RequestTrace.generate(RATES, 200, cv=4)
    limits = {(1, 1): (0.0015, 0.012), (4, 1): (0.003, 0.012), (1, 8): (0.003, 0.012)}
    cases = list(published())
    assert len(cases) >= 13
    for case in cases:
        found = gp.simulate_requests(trace, case.groups, case.scale * LATENCY, overheads=OVERHEADS).attainment
        to_simulated, to_measured = limits[case.shape]
        assert abs(found - case.simulated) <= to_simulated, case
        assert abs(found - case.measured) <= to_measured, case


def mean_seconds(cv: float, rate: float, groups: list[gp.ModelGroup]) -> float:
    found = []
    for seed in range(5):
        trace = gp.RequestTrace.generate({"a": rate / 2, "b": rate / 2}, 20_000, cv=cv, seed=seed)
        found.append(gp.simulate_requests(trace, groups, overheads=OVERHEADS).mean_seconds)
    return float(np.mean(found))


ONE_EACH = [gp.ModelGroup({"a": [0.148]}), gp.ModelGroup({"b": [0.148]})]
PIPELINE = [gp.ModelGroup({"a": [0.075, 0.076], "b": [0.075, 0.076]})]


def test_two_bursty_models_wait_less_on_a_pipeline_of_both_gpus_than_on_one_each() -> None:
    each, shared = mean_seconds(3, 4, ONE_EACH), mean_seconds(3, 4, PIPELINE)
    assert each == pytest.approx(0.745, rel=0.03)
    assert shared == pytest.approx(0.438, rel=0.03)


@pytest.mark.parametrize(("cv", "rate", "ratio"), [(1, 2, 1.0), (6, 4, 2.0)])
def test_the_gain_of_a_pipeline_grows_with_burstiness(cv: float, rate: float, ratio: float) -> None:
    assert mean_seconds(cv, rate, ONE_EACH) / mean_seconds(cv, rate, PIPELINE) == pytest.approx(ratio, rel=0.1)
