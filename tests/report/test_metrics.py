"""The table of metrics: each has a value for a simulation, by the definition of its figure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gavel_py as gp
from tests.support.profiles import OSDI


@pytest.fixture(scope="module")
def measured() -> gp.Measured:
    hours = gp.LogUniform(((1.0, 600.0, 7200.0),))
    trace = gp.generate_trace(12, OSDI, jobs_per_hour=12, durations=hours, gang_mix={1: 1.0}, seed=1)
    fifo, isolated = (gp.simulate(trace, gp.Cluster.from_inline("v100:2,k80:2"), OSDI, name) for name in ("fifo", "isolated"))
    return gp.Measured(fifo.summary, gp.Fairness.of(fifo.finish_time_fairness(isolated).values()))


def test_each_formula_has_a_value(measured: gp.Measured) -> None:
    window = replace(measured, summary=replace(measured.summary, measure_jobs=(2, 9)), jct_over_known=1.5)
    known = {name: metric.of(window) for name, metric in gp.METRICS.items() if metric.path}
    assert known["measured"] == 7
    assert [name for name, value in known.items() if value is None] == [
        *(f"{part}_workflow_jct_seconds" for part in ("mean", "median", "p90", "p99")),
        "late",
        "cost",
    ]
    assert known["mean_jct_seconds"] == measured.summary.jct.mean
    assert known["finished"] == 12
    usage = measured.summary.usage.values()
    assert known["utilization"] == sum(each["used"] for each in usage) / sum(each["gpu_seconds"] for each in usage)


def test_what_does_not_apply_is_unknown(measured: gp.Measured) -> None:
    empty = gp.simulate([], gp.Cluster.from_inline("v100:2"), OSDI, "fifo").summary
    metrics = gp.METRICS
    assert metrics["makespan_seconds"].of(gp.Measured(empty)) is None, "no job has ended, which is not the best makespan"
    assert metrics["late"].of(gp.Measured(empty)) is None, "no job with a deadline has finished, which is not the fewest late jobs"
    assert metrics["late"].of(gp.Measured(replace(empty, with_deadline=2))) == 0
    assert metrics["finish_time_fairness"].of(gp.Measured(empty)) is None
    assert metrics["undelivered_share"].of(replace(measured, in_rounds=False)) is None
    assert not metrics["unfinished"].applies_to(measured)
    assert metrics["max_finish_time_fairness"].applies_to(measured)
    assert not metrics["objective"].applies_to(measured)


def test_fairness_is_that_of_its_jobs() -> None:
    found = gp.Fairness.of([2.0, 0.5, 0.5])
    assert found is not None
    assert (found.jobs, found.mean, found.max, found.above_one) == (3, 1.0, 2.0, pytest.approx(1 / 3))
    assert gp.Fairness.of(np.zeros(0)) is None
