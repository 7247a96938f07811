"""The benchmark of rounds that teams can live with, in small."""

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from tests.support.benchmarks import imported


@pytest.fixture(scope="module")
def teams() -> Iterator[ModuleType]:
    with imported("round_teams") as made:
        yield made


def test_teams_are_counted_in_each_round(teams: ModuleType) -> None:
    jobs = teams.team_jobs({"a": (6, 1), "b": (3, 2)})
    _, held, firsts, short, least, *_ = teams.team_row("two", "", jobs, "g:4/4", rounds=4, arrives={"a": 0, "b": 1})
    assert held == "2/2: 3, 4/0: 1"
    assert (firsts, short, least) == ("0, 1", 0, 0)


def test_the_least_shortfall_is_that_of_whole_gangs(teams: ModuleType) -> None:
    promised = np.full((5, 3), 16 / 3)
    assert teams.least_shortfall(promised, (1, 2, 4), 16) == pytest.approx((16 / 3 - 4) / 16)
    assert teams.least_shortfall(promised, (1, 1, 1), 16) == pytest.approx(2 / 3 / 16)


def test_teams_drawn_at_random_have_all_figures(teams: ModuleType) -> None:
    scene = teams.labelled(teams.coming_and_going(0, per_type=4, rounds=12), 0, 3)
    name, *figures, _ = teams.label_row("small", None, [scene])
    assert name == "small"
    assert all(np.isfinite(each) and each >= 0 for each in figures)


def test_other_scenes_run_in_small(teams: ModuleType) -> None:
    above, delivered = teams.limit_row("limit", "", 2, teams.gang_jobs(1, 1, 2), "g:4/4")[3:5]
    assert above == 0
    assert delivered > 80
    assert float(teams.turn_row(4, 60.0, gpus=2)[2]) >= 2
    assert 0 < teams.stalls(count=30, rounds=4)[0] <= 4
    assert teams.watched(*teams.equal_types(4, (3, 2), replaced_every=2), 4).restart_rate < 1
    assert teams.fraction_turns([(2, 0.5)], "g:1", 3).longest_wait == 0
    assert teams.seconds_of_round(24, 2, rounds=2) > 0
