"""The benchmark of learning, in small: each kind of figure on its side of the target."""

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from tests.support.benchmarks import imported


@pytest.fixture(scope="module")
def learning() -> Iterator[ModuleType]:
    with imported("learning") as made:
        yield made


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
def test_learning_from_nothing_comes_close_to_knowing(learning: ModuleType) -> None:
    jobs = learning.arrivals(0, 100, 0.95)
    known, agnostic, optimistic = (
        learning.completion_hours(jobs, 100, belief, 0, 0)[0] for belief in ("known", "agnostic", "optimistic")
    )
    assert optimistic < 1.04 * known
    assert agnostic > 1.2 * known


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
def test_the_third_pass_loses_little(learning: ModuleType) -> None:
    settings = [learning.Setting(seed, jobs=60) for seed in range(2)]
    for policy, first, third in (("min_makespan", 3.0, 0.05), ("max_total_throughput", 0.2, 0.03)):
        losses = np.mean([setting.losses(policy, "median", 3) for setting in settings], axis=0)
        assert -1e-6 <= losses[2] < third
        assert losses[0] < first
